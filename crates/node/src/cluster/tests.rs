//! The cluster state, control message by control message.

mod first;
mod kept;
use super::*;
use crate::messages::encode;
use dromon_order::{Leadership, Part, RawMessage};

pub(crate) fn member(n: u8, name: &str, state: MemberState) -> Member {
    Member {
        uuid: Uuid([n; 16]),
        origin: Uuid([n; 16]),
        name: name.into(),
        incoming: String::new(),
        addr: format!("127.0.0.1:{n}"),
        raft_id: n as u64,
        segment: 0,
        weight: 1,
        state,
        desync: 0,
        complete: state != MemberState::Joiner,
        votes: false,
        joined_at: 0,
        log_start: 0,
        witness: false,
        stateless: false,
    }
}

pub(crate) fn join(n: u8, position: Position, need: Need) -> Control {
    Control::Join(Join {
        uuid: Uuid([n; 16]),
        origin: Uuid([n; 16]),
        name: format!("n{n}"),
        incoming: String::new(),
        addr: format!("127.0.0.1:{n}"),
        raft_id: n as u64,
        segment: 0,
        weight: 1,
        position,
        need,
        log_start: 0,
        vote_policy: n % 2,
        witness: false,
        stateless: false,
    })
}

#[test]
fn a_log_keeps_its_vote_while_its_database_takes_a_copy() {
    let mut f = Feed::new();
    f.send(1, &join(1, NOWHERE, Need::Log));
    f.send(2, &join(2, NOWHERE, Need::Copy));
    f.send(
        2,
        &Control::Joined {
            uuid: Uuid([2; 16]),
        },
    );
    assert!(f.state.desired()[&2].voter);
    let Control::Join(first) = join(2, NOWHERE, Need::Copy) else {
        unreachable!("just made");
    };
    let again = Join {
        uuid: Uuid([9; 16]),
        origin: Uuid([9; 16]),
        ..first.clone()
    };
    f.send(9, &Control::Join(again));
    assert_eq!(state_of(&f, 2), None);
    assert_eq!(state_of(&f, 9), Some(MemberState::Joiner), "it needs data");
    assert!(f.state.desired()[&2].voter, "its log has all that it had");
    let other_log = Join {
        uuid: Uuid([8; 16]),
        origin: Uuid([8; 16]),
        raft_id: 8,
        ..first
    };
    f.send(8, &Control::Join(other_log));
    assert!(!f.state.desired()[&8].voter, "a new log has nothing yet");
}

#[test]
fn the_first_members_policy_counts_for_all() {
    let mut f = Feed::new();
    f.send(1, &join(1, NOWHERE, Need::Log));
    assert_eq!(f.state.vote_policy(), 1);
    f.send(2, &join(2, NOWHERE, Need::Copy));
    assert_eq!(f.state.vote_policy(), 1, "the second one wants 0");
    let (sequencer, node) = f.state.encode();
    let read = ClusterState::decode(&sequencer, &node).expect("just encoded");
    assert_eq!(read.vote_policy(), 1);
    // The first one leaves; nobody with data is left, then the second begins.
    let leave = |n| Control::Leave {
        uuid: Uuid([n; 16]),
        reason: LeaveReason::Graceful,
    };
    f.send(2, &leave(2));
    f.send(1, &leave(1));
    f.send(4, &join(4, NOWHERE, Need::Log));
    assert_eq!(f.state.vote_policy(), 0);
}

pub(crate) struct Feed {
    pub state: ClusterState,
    pub index: u64,
    oseq: BTreeMap<u8, u64>,
    /// All that came.
    pub entries: Vec<Committed>,
}

impl Feed {
    fn new() -> Self {
        let start = Position {
            history: Uuid([0xee; 16]),
            seqno: 0,
        };
        Feed {
            state: ClusterState::genesis(start),
            index: 0,
            oseq: BTreeMap::new(),
            entries: Vec::new(),
        }
    }

    pub fn send(&mut self, origin: u8, control: &Control) -> Vec<Event> {
        let oseq = self.oseq.entry(origin).or_insert(0);
        *oseq += 1;
        let (origin, oseq) = (Uuid([origin; 16]), *oseq);
        self.raw(origin, oseq, control)
    }

    fn deliver(&mut self, entry: Committed) -> Vec<Event> {
        self.entries.push(entry.clone());
        self.state.deliver(&entry)
    }

    fn raw(&mut self, origin: Uuid, oseq: u64, control: &Control) -> Vec<Event> {
        self.index += 1;
        self.deliver(Committed {
            index: self.index,
            term: 1,
            leader: 1,
            body: CommittedBody::Message(RawMessage {
                origin,
                oseq,
                kind: kind::CONTROL,
                tag: 0,
                part: Part::Whole,
                body: encode(control),
            }),
        })
    }
}

const NOWHERE: Position = Position::UNDEFINED;

fn state_of(f: &Feed, n: u8) -> Option<MemberState> {
    f.state
        .members()
        .find(|m| m.uuid == Uuid([n; 16]))
        .map(|m| m.state)
}

#[test]
fn first_member_is_synced_and_later_ones_take_a_copy() {
    let mut f = Feed::new();
    let events = f.send(1, &join(1, NOWHERE, Need::Log));
    assert!(
        matches!(&events[0], Event::View { view, .. } if view.position.seqno == 1 && view.number == 1)
    );
    assert_eq!(state_of(&f, 1), Some(MemberState::Synced));

    f.send(1, &join(2, NOWHERE, Need::Copy));
    assert_eq!(state_of(&f, 2), Some(MemberState::Joiner));
    assert!(
        !f.state.desired()[&2].voter,
        "a joiner stores but does not vote"
    );

    let two = Uuid([2; 16]);
    let ask = Control::StateRequest {
        joiner: two,
        donors: String::new(),
        request: vec![1, 2],
    };
    let events = f.send(2, &ask);
    assert!(
        events
            .iter()
            .any(|e| matches!(e, Event::Donate { donor, .. } if *donor == Uuid([1; 16])))
    );
    assert_eq!(state_of(&f, 1), Some(MemberState::Donor));
    assert!(f.send(2, &ask).is_empty(), "one transfer at a time");

    let sent = Control::StateSent {
        donor: Uuid([1; 16]),
        joiner: two,
        position: f.state.position(),
        error: 0,
        gaps: Vec::new(),
    };
    f.send(1, &sent);
    assert_eq!(state_of(&f, 1), Some(MemberState::Joined));
    f.send(2, &Control::Joined { uuid: two });
    f.send(2, &Control::Synced { uuid: two });
    assert_eq!(state_of(&f, 2), Some(MemberState::Synced));
    assert!(f.state.desired()[&2].voter);
}

fn witness(n: u8) -> Control {
    match join(n, NOWHERE, Need::Log) {
        Control::Join(j) => Control::Join(Join { witness: true, ..j }),
        other => other,
    }
}

#[test]
fn a_witness_votes_in_the_log_and_has_no_say_about_data() {
    let mut f = Feed::new();
    assert_eq!(f.send(4, &witness(4)).len(), 1);
    assert_eq!(
        state_of(&f, 4),
        Some(MemberState::Joiner),
        "without data nobody is the first with a complete state"
    );
    f.send(1, &join(1, NOWHERE, Need::Log));
    assert_eq!(state_of(&f, 1), Some(MemberState::Synced));
    let four = Uuid([4; 16]);
    f.send(4, &Control::Joined { uuid: four });
    f.send(4, &Control::Synced { uuid: four });
    assert!(f.state.desired()[&4].voter);
    assert_eq!(f.state.view().members.len(), 2);

    // Asked for by name, it is no donor; it opens no vote and is not asked.
    f.send(2, &join(2, NOWHERE, Need::Copy));
    let ask = |donors: &str| Control::StateRequest {
        joiner: Uuid([2; 16]),
        donors: donors.into(),
        request: vec![1],
    };
    let events = f.send(2, &ask("n4"));
    assert!(matches!(events[..], [Event::NoDonor { .. }]), "{events:?}");
    let events = f.send(2, &ask("n4,"));
    assert!(
        events
            .iter()
            .any(|e| matches!(e, Event::Donate { donor, .. } if *donor == Uuid([1; 16])))
    );
    let vote = |n: u8| Control::Vote {
        uuid: Uuid([n; 16]),
        seqno: 1,
        digest: 9,
    };
    assert!(f.send(4, &vote(4)).is_empty());
    let events = f.send(1, &vote(1));
    assert!(
        events
            .iter()
            .any(|e| matches!(e, Event::VoteDecided { winner: 9, .. })),
        "decided by the only one with data: {events:?}"
    );
}

#[test]
fn a_joiner_may_be_ready_before_its_donor_says_so() {
    let mut f = Feed::new();
    f.send(1, &join(1, NOWHERE, Need::Log));
    f.send(1, &join(2, NOWHERE, Need::Copy));
    let (one, two) = (Uuid([1; 16]), Uuid([2; 16]));
    let ask = Control::StateRequest {
        joiner: two,
        donors: String::new(),
        request: vec![],
    };
    f.send(2, &ask);
    f.send(2, &Control::Joined { uuid: two });
    assert_eq!(state_of(&f, 1), Some(MemberState::Donor));
    let position = f.state.position();
    f.send(
        1,
        &Control::StateSent {
            donor: one,
            joiner: two,
            position,
            error: 0,
            gaps: Vec::new(),
        },
    );
    assert_eq!(state_of(&f, 1), Some(MemberState::Joined));
    assert_eq!(state_of(&f, 2), Some(MemberState::Joined));
}

#[test]
fn a_bypass_is_given_to_whoever_needs_no_copy() {
    let mut f = Feed::new();
    for n in 1..=2 {
        f.send(1, &join(n, NOWHERE, Need::Copy));
        let uuid = Uuid([n; 16]);
        f.send(1, &Control::Joined { uuid });
        f.send(1, &Control::Synced { uuid });
    }
    let three = Uuid([3; 16]);
    let at = f.state.position();
    f.send(1, &join(3, at, Need::Log));
    assert_eq!(state_of(&f, 3), Some(MemberState::Joined), "lacks nothing");
    let request = vec![1];
    let copy = Control::StateRequest {
        joiner: three,
        donors: String::new(),
        request: request.clone(),
    };
    assert!(f.send(1, &copy).is_empty(), "no copy for a complete one");
    let bypass = Control::BypassRequest {
        joiner: three,
        donors: "nobody,n2".into(),
        request,
        position: at,
    };
    let events = f.send(1, &bypass);
    let given = |e: &Event| match e {
        Event::Donate { donor, bypass, .. } => Some((donor.0[0], *bypass)),
        _ => None,
    };
    assert_eq!(events.iter().find_map(given), Some((2, Some(at))));
    assert!(f.send(1, &bypass).is_empty(), "one transfer at a time");
    let failed = Control::StateSent {
        donor: Uuid([2; 16]),
        joiner: three,
        position: NOWHERE,
        error: -32,
        gaps: Vec::new(),
    };
    f.send(2, &failed);
    assert_eq!(state_of(&f, 2), Some(MemberState::Joined), "free again");
    let events = f.send(1, &bypass);
    assert_eq!(
        events.iter().find_map(given),
        Some((1, Some(at))),
        "who is named is not synced: another one"
    );
    f.send(3, &Control::Synced { uuid: three });
    assert!(f.send(1, &bypass).is_empty(), "too late");
}

#[test]
fn a_departed_incarnation_stays_departed() {
    let mut f = Feed::new();
    f.send(1, &join(1, NOWHERE, Need::Log));
    f.send(1, &join(2, NOWHERE, Need::Copy));
    f.send(
        1,
        &Control::Leave {
            uuid: Uuid([2; 16]),
            reason: LeaveReason::Evicted,
        },
    );
    assert_eq!(state_of(&f, 2), None);
    let late = f.raw(Uuid([2; 16]), 1, &join(2, NOWHERE, Need::Copy));
    assert!(late.is_empty());
    assert_eq!(f.state.position().seqno, 3);
}

#[test]
fn a_new_incarnation_replaces_the_old_one_in_one_view() {
    let mut f = Feed::new();
    f.send(1, &join(1, NOWHERE, Need::Log));
    f.send(1, &join(2, NOWHERE, Need::Copy));
    let mut again = join(3, NOWHERE, Need::Copy);
    if let Control::Join(j) = &mut again {
        j.addr = "127.0.0.1:2".into();
    }
    let events = f.send(1, &again);
    let Some(Event::View { view, left, .. }) = events.last() else {
        panic!("{events:?}")
    };
    assert_eq!(view.members.len(), 2);
    assert_eq!(left[0].0.uuid, Uuid([2; 16]));
}

#[test]
fn the_donor_of_a_lost_joiner_is_free_again() {
    let mut f = Feed::new();
    f.send(1, &join(1, NOWHERE, Need::Log));
    f.send(1, &join(2, NOWHERE, Need::Copy));
    let two = Uuid([2; 16]);
    f.send(
        2,
        &Control::StateRequest {
            joiner: two,
            donors: String::new(),
            request: vec![],
        },
    );
    let events = f.send(
        1,
        &Control::Leave {
            uuid: two,
            reason: LeaveReason::Evicted,
        },
    );
    assert!(
        events
            .iter()
            .any(|e| matches!(e, Event::TransferEnded { error, .. } if *error < 0))
    );
    assert_eq!(state_of(&f, 1), Some(MemberState::Joined));
}

#[test]
fn a_rejoin_is_two_views_and_keeps_the_member_a_voter() {
    let mut f = Feed::new();
    f.send(1, &join(1, NOWHERE, Need::Log));
    f.send(1, &join(2, NOWHERE, Need::Copy));
    let two = Uuid([2; 16]);
    f.send(2, &Control::Joined { uuid: two });
    f.send(2, &Control::Synced { uuid: two });
    let rejoin = |released| Control::Rejoin {
        uuid: two,
        released,
    };
    // So much was ordered without it.
    let far = f.state.position().seqno - super::CAUGHT_UP - 1;
    let events = f.send(2, &rejoin(far));
    let sizes: Vec<usize> = events
        .iter()
        .filter_map(|e| match e {
            Event::View { view, .. } => Some(view.members.len()),
            _ => None,
        })
        .collect();
    assert_eq!(sizes, [1, 2]);
    assert_eq!(state_of(&f, 2), Some(MemberState::Joined));
    assert!(f.state.desired()[&2].voter);
    f.send(2, &Control::Synced { uuid: two });
    assert_eq!(
        state_of(&f, 2),
        Some(MemberState::Synced),
        "its messages still count"
    );
    let events = f.send(2, &rejoin(f.state.position().seqno));
    assert_eq!(
        state_of(&f, 2),
        Some(MemberState::Synced),
        "there was nothing to catch up with"
    );
    let last = events.last().expect("two views and this");
    assert!(
        matches!(last, Event::State { uuid, to: MemberState::Synced, .. } if *uuid == two),
        "{last:?}"
    );
    f.send(2, &Control::Desync { uuid: two });
    f.send(2, &rejoin(f.state.position().seqno));
    assert_eq!(
        state_of(&f, 2),
        Some(MemberState::Joined),
        "it was not synced before"
    );
}

#[test]
fn a_donor_that_rejoins_goes_on_giving() {
    let mut f = Feed::new();
    let (one, two) = (Uuid([1; 16]), Uuid([2; 16]));
    f.send(1, &join(1, NOWHERE, Need::Log));
    f.send(1, &Control::Joined { uuid: one });
    f.send(1, &Control::Synced { uuid: one });
    f.send(1, &join(2, NOWHERE, Need::Copy));
    f.send(
        2,
        &Control::StateRequest {
            joiner: two,
            donors: String::new(),
            request: vec![],
        },
    );
    assert_eq!(state_of(&f, 1), Some(MemberState::Donor));
    let rejoin = Control::Rejoin {
        uuid: one,
        released: f.state.position().seqno,
    };
    let events = f.send(1, &rejoin);
    assert!(
        !events
            .iter()
            .any(|e| matches!(e, Event::TransferEnded { .. }))
    );
    assert_eq!(state_of(&f, 1), Some(MemberState::Donor));
    let sent = Control::StateSent {
        donor: one,
        joiner: two,
        position: NOWHERE,
        error: 0,
        gaps: Vec::new(),
    };
    let events = f.send(1, &sent);
    assert!(
        events
            .iter()
            .any(|e| matches!(e, Event::TransferEnded { error: 0, .. }))
    );
    assert_eq!(state_of(&f, 1), Some(MemberState::Joined));
}

#[test]
fn a_state_of_another_format_is_refused() {
    let at = Position {
        history: Uuid([7; 16]),
        seqno: 4,
    };
    let (sequencer, node) = ClusterState::genesis(at).encode();
    assert_eq!(ClusterState::peek_position(&node), Some(at));
    for other in [FORMAT - 1, FORMAT + 1] {
        let mut node = node.to_vec();
        node[0] = other;
        let why = ClusterState::decode(&sequencer, &node).map(|_| ());
        let why = why.expect_err("nobody may misread it").to_string();
        assert!(why.contains(&format!("format {other} ")), "{why}");
        assert_eq!(ClusterState::peek_position(&node), None);
    }
}

#[test]
fn an_eviction_counts_only_under_the_leader_that_proposed_it() {
    let mut f = Feed::new();
    f.send(1, &join(1, NOWHERE, Need::Log));
    f.send(1, &join(2, NOWHERE, Need::Copy));
    let uuid = Uuid([2; 16]);
    let evict = |term, leader| {
        let by = Leadership { term, leader };
        Control::Evict { uuid, by }
    };
    // Entries of these tests are of member 1 in term 1.
    assert!(f.send(1, &evict(7, 1)).is_empty());
    assert!(f.send(1, &evict(1, 0)).is_empty(), "it took the term over");
    assert_eq!(state_of(&f, 2), Some(MemberState::Joiner));
    assert!(!f.send(1, &evict(1, 1)).is_empty());
    assert_eq!(state_of(&f, 2), None);
}

#[test]
fn a_restart_on_the_same_log_keeps_its_vote() {
    let mut f = Feed::new();
    f.send(1, &join(1, NOWHERE, Need::Log));
    f.send(1, &join(2, NOWHERE, Need::Copy));
    f.send(
        2,
        &Control::Joined {
            uuid: Uuid([2; 16]),
        },
    );
    let mut again = join(3, NOWHERE, Need::Log);
    if let Control::Join(j) = &mut again {
        j.raft_id = 2;
    }
    f.send(3, &again);
    assert_eq!(state_of(&f, 2), None);
    assert_eq!(state_of(&f, 3), Some(MemberState::Joined));
    assert!(f.state.desired()[&2].voter);
}

#[test]
fn desync_is_counted() {
    let mut f = Feed::new();
    f.send(1, &join(1, NOWHERE, Need::Log));
    let uuid = Uuid([1; 16]);
    f.send(1, &Control::Desync { uuid });
    f.send(1, &Control::Desync { uuid });
    f.send(1, &Control::Resync { uuid });
    assert_eq!(state_of(&f, 1), Some(MemberState::Donor));
    f.send(1, &Control::Resync { uuid });
    assert_eq!(state_of(&f, 1), Some(MemberState::Joined));
}

#[test]
fn a_checkpoint_continues_like_the_original() {
    let mut f = Feed::new();
    f.send(1, &join(1, NOWHERE, Need::Log));
    f.send(1, &join(2, NOWHERE, Need::Copy));
    let (sequencer, node) = f.state.encode();
    assert_eq!(ClusterState::peek_position(&node), Some(f.state.position()));
    let copy = ClusterState::decode(&sequencer, &node).expect("own encoding");
    let mut g = Feed {
        state: copy,
        index: f.index,
        oseq: f.oseq.clone(),
        entries: Vec::new(),
    };
    for feed in [&mut f, &mut g] {
        feed.send(
            2,
            &Control::Joined {
                uuid: Uuid([2; 16]),
            },
        );
        feed.send(1, &Control::Cut { seqno: 1 });
    }
    assert_eq!(f.state.digest(), g.state.digest());
    g.send(
        1,
        &Control::Desync {
            uuid: Uuid([1; 16]),
        },
    );
    assert_ne!(f.state.digest(), g.state.digest());
}

/// A write set of `origin` that has seen `last_seen`, with one row.
pub(crate) fn write_set(origin: u8, last_seen: Seqno, row: u64) -> Bytes {
    write_set_of(origin, last_seen, row, 0, b"rows")
}

/// A statement that runs in isolation and names that row's table.
pub(crate) fn statement(origin: u8, last_seen: Seqno, row: u64) -> Bytes {
    let flags = dromon_writeset::Flags::ISOLATION;
    write_set_flagged(origin, last_seen, row, 0, b"ALTER", flags)
}

/// One that may be cut.
pub(crate) fn long_write_set(origin: u8, last_seen: Seqno, row: u64) -> Bytes {
    let event = |kind: u8, body: &[u8]| {
        let mut bytes = vec![0; 19];
        bytes[4] = kind;
        bytes[9..13].copy_from_slice(&(19 + body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(body);
        bytes
    };
    let (map, rows) = (19, 24);
    let mut payload = event(map, &[1, 0, 0, 0, 0, 0]);
    for n in 0..20 {
        let mut body = vec![1, 0, 0, 0, 0, 0, u8::from(n == 19), 0];
        body.extend([n; 100]);
        payload.extend(event(rows, &body));
    }
    write_set_of(origin, last_seen, row, CHUNK_MIN, &payload)
}

fn write_set_of(origin: u8, last_seen: Seqno, row: u64, chunk: u8, payload: &[u8]) -> Bytes {
    let flags = dromon_writeset::Flags::NONE;
    write_set_flagged(origin, last_seen, row, chunk, payload, flags)
}

pub(crate) fn write_set_flagged(
    origin: u8,
    last_seen: Seqno,
    row: u64,
    chunk: u8,
    payload: &[u8],
    flags: dromon_writeset::Flags,
) -> Bytes {
    let mut keys = dromon_writeset::KeyCollector::new();
    let row = row.to_le_bytes();
    keys.add(&[b"db", b"t", &row], dromon_writeset::KeyType::Exclusive)
        .expect("a key of three parts");
    let header = dromon_writeset::Header {
        flags: flags | dromon_writeset::Flags::TRX_START | dromon_writeset::Flags::TRX_END,
        source: Uuid([origin; 16]),
        trx_id: 1,
        conn_id: 1,
        last_seen,
        prev_fragment: -1,
        chunk,
    };
    dromon_writeset::encode(&header, &keys, payload)
}

impl Feed {
    pub fn part(&mut self, origin: u8, part: Part, body: Bytes) -> Vec<Event> {
        let oseq = self.oseq.entry(origin).or_insert(0);
        *oseq += 1;
        let oseq = *oseq;
        self.index += 1;
        self.deliver(Committed {
            index: self.index,
            term: 1,
            leader: 1,
            body: CommittedBody::Message(RawMessage {
                origin: Uuid([origin; 16]),
                oseq,
                kind: kind::WRITE_SET,
                tag: 0,
                part,
                body,
            }),
        })
    }

    fn passes(&mut self, origin: u8, part: Part, body: Bytes) -> bool {
        match self.part(origin, part, body).as_slice() {
            [Event::WriteSet { verdict, .. }] => verdict.passed(),
            other => panic!("not a write set: {other:?}"),
        }
    }
}

#[test]
fn however_many_pass_a_large_payload_on_its_way_it_is_not_too_far_behind() {
    let many = dromon_certify::MAX_LENGTH + 3000;
    let mut f = Feed::new();
    for n in [1, 2] {
        let position = f.state.position();
        f.send(n, &join(n, position, Need::Log));
    }
    let seen = f.state.position().seqno;
    let large = write_set(1, seen, 1_000_000);
    let (first, rest) = (large.slice(..20), large.slice(20..));
    let piece = |i| Part::Piece { stream: 1, i, n: 2 };
    assert!(f.part(1, piece(0), first).is_empty());
    for row in 0..many {
        let now = f.state.position().seqno;
        let ws = write_set(2, now, row as u64 % 500);
        assert!(f.passes(2, Part::Whole, ws));
        if row == many / 2 {
            // What is on its way is part of the state.
            let (sequencer, node) = f.state.encode();
            let digest = f.state.digest();
            f.state = ClusterState::decode(&sequencer, &node).expect("its own bytes");
            assert_eq!(f.state.digest(), digest);
        }
    }
    assert!(f.passes(1, piece(1), rest), "nobody touched its row");
    let late = write_set(1, seen, 2_000_000);
    assert!(
        !f.passes(1, Part::Whole, late),
        "a small one was never on its way"
    );
}

#[test]
fn a_large_payload_still_conflicts_with_the_first_that_passed_it() {
    let mut f = Feed::new();
    for n in [1, 2] {
        let position = f.state.position();
        f.send(n, &join(n, position, Need::Log));
    }
    let seen = f.state.position().seqno;
    let large = write_set(1, seen, 7);
    let (first, rest) = (large.slice(..20), large.slice(20..));
    let piece = |i| Part::Piece { stream: 1, i, n: 2 };
    f.part(1, piece(0), first);
    for row in 7..dromon_certify::MAX_LENGTH + 3000 {
        let now = f.state.position().seqno;
        assert!(f.passes(2, Part::Whole, write_set(2, now, row as u64)));
    }
    assert!(!f.passes(1, piece(1), rest), "row 7 was changed meanwhile");
}

impl Feed {
    /// Three members, complete and synced.
    pub fn of_three() -> Feed {
        let mut f = Feed::new();
        for n in 1..=3 {
            let position = f.state.position();
            f.send(n, &join(n, position, Need::Log));
            let uuid = Uuid([n; 16]);
            f.send(n, &Control::Joined { uuid });
            f.send(n, &Control::Synced { uuid });
        }
        f
    }

    /// Whether a large write set of `origin` on `row` is cut.
    fn cuts(&mut self, origin: u8, row: u64) -> bool {
        let seen = self.state.position().seqno;
        let ws = long_write_set(origin, seen, row);
        match self.part(origin, Part::Whole, ws).as_slice() {
            [Event::Chunk { part, .. }] => *part == ChunkPart::Data(0),
            [Event::WriteSet { .. }] => false,
            other => panic!("neither: {other:?}"),
        }
    }
}

#[test]
fn of_a_member_that_gives_a_copy_nothing_is_cut() {
    let mut f = Feed::of_three();
    assert!(f.cuts(1, 1));
    let nowhere = join(4, NOWHERE, Need::Copy);
    f.send(4, &nowhere);
    let request = |donors: &str| Control::StateRequest {
        joiner: Uuid([4; 16]),
        donors: donors.to_owned(),
        request: Vec::new(),
    };
    let asked = f.send(4, &request("n1"));
    assert!(
        matches!(asked.as_slice(), [Event::NoDonor { .. }]),
        "its own database does not show what is cut: {asked:?}"
    );
    f.send(4, &request("n2"));
    assert_eq!(state_of(&f, 2), Some(MemberState::Donor));
    assert!(!f.cuts(2, 2), "the copy would be without its first chunks");
    assert!(f.cuts(3, 3));
    let sent = Control::StateSent {
        donor: Uuid([2; 16]),
        joiner: Uuid([4; 16]),
        position: f.state.position(),
        error: 0,
        gaps: Vec::new(),
    };
    f.send(2, &sent);
    assert!(f.cuts(2, 4));
}

#[test]
fn for_a_joiner_alone_nothing_is_cut() {
    let mut f = Feed::new();
    let position = f.state.position();
    f.send(1, &join(1, position, Need::Log));
    f.send(2, &join(2, NOWHERE, Need::Copy));
    assert!(!f.cuts(1, 1), "nobody could ask for the next chunk");
    let uuid = Uuid([2; 16]);
    f.send(2, &Control::Joined { uuid });
    assert!(f.cuts(1, 2));
}

#[test]
fn no_more_is_cut_while_the_log_cannot_be_shortened_for_long() {
    let mut f = Feed::of_three();
    assert!(f.cuts(1, 1));
    let Some(id) = f.state.chunked().next().map(|(c, _)| c.id) else {
        panic!("one is open");
    };
    f.state.chunked_span = u64::MAX / 2;
    assert!(!f.cuts(2, 2));
    let mut n = 1;
    while f.state.has_chunked() {
        f.send(1, &Control::Chunk { id, n, ahead: 0 });
        n += 1;
    }
    f.send(1, &Control::Cut { seqno: 1 });
    assert!(f.cuts(2, 3), "a checkpoint could be taken");
}

#[test]
fn who_votes_follows_weights_as_they_are_ordered() {
    let mut f = Feed::new();
    for n in 1..=3 {
        f.send(n, &join(n, NOWHERE, Need::Copy));
        let uuid = Uuid([n; 16]);
        f.send(n, &Control::Joined { uuid });
    }
    let voters = |f: &Feed| -> Vec<u64> {
        let desired = f.state.desired().into_iter();
        desired.filter(|(_, d)| d.voter).map(|(id, _)| id).collect()
    };
    assert_eq!(voters(&f), [1, 2, 3]);
    let weight = |n: u8, weight| {
        let uuid = Uuid([n; 16]);
        Control::Weight { uuid, weight }
    };
    f.send(2, &weight(2, 3));
    assert_eq!(voters(&f), [2]);
    assert_eq!(f.state.desired().len(), 3, "the others stay members");
    // With one less there are two.
    f.send(
        3,
        &Control::Leave {
            uuid: Uuid([3; 16]),
            reason: LeaveReason::Graceful,
        },
    );
    assert_eq!(voters(&f), [1, 2]);
}

/// A node loses the majority amid a large payload: its server frees the rows. Once it is back, its clients
/// change them, and what is still to come of the payload must not come behind that.
#[test]
fn what_came_in_part_before_its_node_was_cut_off_never_comes() {
    let mut f = Feed::new();
    for n in [1, 2] {
        let position = f.state.position();
        f.send(n, &join(n, position, Need::Log));
    }
    let seen = f.state.position().seqno;
    let piece = |stream, i, n| Part::Piece { stream, i, n };
    let of_piece = |f: &mut Feed, part, body: &Bytes| f.part(1, part, body.clone());
    let (large, of_two) = (write_set(1, seen, 7), write_set(2, seen, 9));
    assert!(of_piece(&mut f, piece(1, 0, 3), &large.slice(..20)).is_empty());
    assert!(f.part(2, piece(1, 0, 2), of_two.slice(..20)).is_empty());
    let uuid = Uuid([1; 16]);
    let released = f.state.position().seqno;
    f.send(1, &Control::Rejoin { uuid, released });
    assert!(f.passes(1, Part::Whole, write_set(1, f.state.position().seqno, 7)));
    let before = f.state.position().seqno;
    for (i, body) in [(1, large.slice(20..40)), (2, large.slice(40..))] {
        assert!(of_piece(&mut f, piece(1, i, 3), &body).is_empty());
    }
    assert_eq!(f.state.position().seqno, before);
    assert_eq!(
        f.state.open_bytes(),
        20,
        "that of the other node is still to come"
    );
    // What it sends from then on comes, and what others do.
    let other = write_set(1, before, 8);
    assert!(of_piece(&mut f, piece(2, 0, 2), &other.slice(..20)).is_empty());
    assert!(f.passes(1, piece(2, 1, 2), other.slice(20..)));
    assert!(f.passes(2, piece(1, 1, 2), of_two.slice(20..)));
}
