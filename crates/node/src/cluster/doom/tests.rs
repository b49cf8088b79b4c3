//! Which dooms count, and what they change; and whether all databases end equal,
//! whenever each of them rolls back.

use dromon_certify::FailReason;
use dromon_order::Part;
use dromon_writeset::{Flags, KeyCollector, KeyType};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

use super::super::tests::{Feed, join};
use super::*;
use crate::messages::{Control, LeaveReason, Need};

const TRX: u64 = 42;

/// A fragment of transaction 42 of `origin`, or its end, or its rollback.
fn fragment(origin: u8, last_seen: Seqno, row: u64, flags: Flags) -> bytes::Bytes {
    fragment_of((origin, TRX), last_seen, row, flags)
}

fn fragment_of(
    (origin, trx_id): (u8, u64),
    last_seen: Seqno,
    row: u64,
    flags: Flags,
) -> bytes::Bytes {
    let mut keys = KeyCollector::new();
    if !flags.is_rollback() {
        let row = row.to_le_bytes();
        keys.add(&[b"db", b"t", &row], KeyType::Exclusive)
            .expect("a key of three parts");
    }
    let header = Header {
        flags,
        source: Uuid([origin; 16]),
        trx_id,
        conn_id: 1,
        last_seen,
        prev_fragment: -1,
        chunk: 0,
    };
    dromon_writeset::encode(&header, &keys, b"rows")
}

const END: Flags = Flags::from_bits(Flags::TRX_END.bits() | Flags::PA_UNSAFE.bits());
const BACK: Flags = Flags::from_bits(Flags::ROLLBACK.bits() | Flags::PA_UNSAFE.bits());

/// Two members; what the second one sends is a stream.
fn two() -> Feed {
    let mut f = Feed::new();
    for n in [1, 2] {
        let position = f.state.position();
        f.send(n, &join(n, position, Need::Log));
    }
    f
}

fn now(f: &Feed) -> Seqno {
    f.state.position().seqno
}

fn send(f: &mut Feed, row: u64, flags: Flags) -> (Option<FailReason>, Option<RollsBack>) {
    let body = fragment(2, now(f), row, flags);
    match f.part(2, Part::Whole, body).pop() {
        Some(Event::WriteSet {
            verdict,
            rolls_back,
            ..
        }) => match verdict {
            dromon_certify::Verdict::Passed { .. } => (None, rolls_back),
            dromon_certify::Verdict::Failed { reason } => (Some(reason), rolls_back),
        },
        other => panic!("not a write set: {other:?}"),
    }
}

fn doom(f: &mut Feed, waits: Seqno) -> Option<Seqno> {
    let doom = Control::Doom {
        source: Uuid([2; 16]),
        trx_id: TRX,
        waits,
    };
    match f.send(1, &doom).pop() {
        None => None,
        Some(Event::Doomed { seqno, .. }) => Some(seqno),
        other => panic!("not a doom: {other:?}"),
    }
}

/// What the first member writes while the stream is open.
fn between(f: &mut Feed) -> Seqno {
    let ws = super::super::tests::write_set(1, now(f), 900);
    f.part(1, Part::Whole, ws);
    now(f)
}

#[test]
fn a_doom_counts_once_and_as_long_as_the_stream_is_open() {
    let mut f = two();
    assert_eq!(send(&mut f, 1, Flags::TRX_START), (None, None));
    let first = now(&f);
    assert_eq!(doom(&mut f, first), None, "nobody waits before it");
    let waits = between(&mut f);
    assert_eq!(doom(&mut f, waits + 1), None, "that is not ordered");
    assert_eq!(doom(&mut f, waits), Some(waits + 1));
    assert_eq!(doom(&mut f, waits), None, "once");

    // No fragment passes any more, nor its end; and its own rollback ends it.
    let at = waits + 1;
    let gone = Some(RollsBack {
        first,
        gone: Some(at),
    });
    let doomed = || Some(FailReason::Gone { at });
    assert_eq!(send(&mut f, 2, Flags::NONE), (doomed(), gone));
    assert_eq!(send(&mut f, 3, END), (doomed(), gone));
    assert_eq!(send(&mut f, 0, BACK), (None, gone));
    assert_eq!(f.state.open_streams().count(), 0);
    assert_eq!(doom(&mut f, waits), None);
    assert_eq!(
        send(&mut f, 4, Flags::TRX_START),
        (None, None),
        "another one"
    );
}

#[test]
fn whoever_takes_the_freed_rows_comes_after_the_doom() {
    let mut f = two();
    send(&mut f, 1, Flags::TRX_START);
    let waits = between(&mut f);
    let at = doom(&mut f, waits).expect("it is open");
    let ws = super::super::tests::write_set(1, now(&f), 1);
    let events = f.part(1, Part::Whole, ws);
    let [Event::WriteSet { verdict, .. }] = events.as_slice() else {
        panic!("not a write set: {events:?}")
    };
    assert_eq!(verdict.depends_on(), at);
}

#[test]
fn what_failed_or_ended_first_needs_no_doom() {
    let mut f = two();
    send(&mut f, 1, Flags::TRX_START);
    let waits = between(&mut f);
    assert_eq!(send(&mut f, 1, END), (None, None));
    assert_eq!(doom(&mut f, waits), None, "it commits");

    send(&mut f, 1, Flags::TRX_START);
    let first = now(&f);
    let waits = between(&mut f);
    let seen = now(&f) - 1;
    let late = fragment(2, seen, 900, Flags::NONE);
    let events = f.part(2, Part::Whole, late);
    let failed = now(&f);
    let back = RollsBack { first, gone: None };
    let Some(Event::WriteSet {
        verdict,
        rolls_back,
        ..
    }) = events.first()
    else {
        panic!("not a write set: {events:?}")
    };
    assert!(!verdict.passed(), "it has not seen what it meets");
    assert_eq!(*rolls_back, Some(back));
    assert_eq!(doom(&mut f, waits), None, "that rolls it back");
    let (reason, _) = send(&mut f, 2, END);
    assert_eq!(
        reason,
        Some(FailReason::Gone { at: failed }),
        "others have nothing of it"
    );
    let gone = RollsBack {
        first,
        gone: Some(failed),
    };
    assert_eq!(send(&mut f, 0, BACK), (None, Some(gone)));
    assert_eq!(send(&mut f, 0, BACK), (None, None), "nobody knows it");
}

#[test]
fn a_checkpoint_remembers_what_was_doomed_and_a_view_forgets_it() {
    let mut f = two();
    send(&mut f, 1, Flags::TRX_START);
    let waits = between(&mut f);
    let before = f.state.digest();
    let at = doom(&mut f, waits).expect("it is open");
    assert_ne!(f.state.digest(), before);
    let (sequencer, node) = f.state.encode();
    let digest = f.state.digest();
    f.state = ClusterState::decode(&sequencer, &node).expect("its own bytes");
    assert_eq!(f.state.digest(), digest);
    let (failed, _) = send(&mut f, 2, Flags::NONE);
    assert_eq!(failed, Some(FailReason::Gone { at }));
    let leave = Control::Leave {
        uuid: Uuid([2; 16]),
        reason: LeaveReason::Evicted,
    };
    f.send(1, &leave);
    assert_eq!(f.state.open_streams().count(), 0);
    assert_eq!(doom(&mut f, waits), None);
}

#[test]
fn who_lost_touch_has_no_stream_when_it_is_back() {
    let mut f = two();
    send(&mut f, 1, Flags::TRX_START);
    let released = now(&f);
    let uuid = Uuid([2; 16]);
    f.send(2, &Control::Rejoin { uuid, released });
    assert_eq!(f.state.open_streams().count(), 0);
    // What was on its way belongs to nothing.
    assert_eq!(send(&mut f, 2, Flags::NONE), (None, None));
    assert_eq!(f.state.open_streams().count(), 0);
}

/// What one of two members does next with one of its three streams.
#[derive(Clone, Copy, Debug)]
enum Step {
    Fragment {
        unseen: bool,
        row: u64,
    },
    End,
    Back,
    /// Asked for by the other one, for what stands so far back.
    Doom {
        back: Seqno,
    },
    /// The member comes back after it had lost touch.
    Rejoins,
    /// Everybody starts from a checkpoint.
    Checkpoint,
}

fn step() -> impl Strategy<Value = (u8, u64, Step)> {
    let what = prop_oneof![
        8 => (any::<bool>(), 0u64..6).prop_map(|(u, row)| Step::Fragment { unseen: u && row == 0, row }),
        2 => Just(Step::End),
        2 => Just(Step::Back),
        3 => (0i64..4).prop_map(|back| Step::Doom { back }),
        1 => Just(Step::Rejoins),
        1 => Just(Step::Checkpoint),
    ];
    (1u8..3, 0u64..3, what)
}

type Id = (u8, u64);

/// A database that only applies these streams.
#[derive(Debug, Default)]
struct Applied {
    open: BTreeMap<Id, BTreeSet<Seqno>>,
    committed: BTreeMap<Id, BTreeSet<Seqno>>,
    /// Rolled back before their turn: what comes of them is left out.
    begun: BTreeSet<Id>,
}

/// What an event is to a database that applies it.
#[derive(Clone, Copy, Debug)]
enum Told {
    Fragment {
        id: Id,
        starts: bool,
        ends: bool,
    },
    RollsBack(Id),
    /// The streams of this one are gone.
    Left(u8),
    Nothing,
}

impl Applied {
    fn rolls_back(&mut self, id: Id) {
        self.open.remove(&id);
        self.begun.insert(id);
    }

    /// The event at `seqno` has its turn.
    fn turn(&mut self, seqno: Seqno, told: Told) -> Result<(), String> {
        match told {
            Told::Fragment { id, starts, ends } => {
                if starts {
                    self.begun.remove(&id);
                    if let Some(old) = self.open.insert(id, BTreeSet::new()) {
                        return Err(format!("{id:?} begins again at {seqno} over {old:?}"));
                    }
                }
                if self.begun.contains(&id) {
                    return match ends {
                        true => Err(format!("{id:?} commits at {seqno} and was rolled back")),
                        false => Ok(()),
                    };
                }
                let Some(mut rows) = self.open.remove(&id) else {
                    return Ok(()); // lost with its node's touch: the server leaves it out
                };
                rows.insert(seqno);
                let to = if ends {
                    &mut self.committed
                } else {
                    &mut self.open
                };
                to.insert(id, rows);
            }
            Told::RollsBack(id) => self.rolls_back(id),
            Told::Left(of) => self.open.retain(|id, _| id.0 != of),
            Told::Nothing => {}
        }
        Ok(())
    }
}

/// What the events of one entry are to a database that is not `own`'s.
fn told(events: &[Event], ids: &BTreeMap<(Uuid, u64), Id>) -> Vec<(Seqno, Told)> {
    let one = |event: &Event| match event {
        Event::WriteSet {
            seqno,
            write_set,
            verdict,
            rolls_back,
            ..
        } => {
            let header = write_set.header();
            let id = ids[&(header.source, header.trx_id)];
            let told = match rolls_back {
                Some(RollsBack { gone: Some(_), .. }) => Told::Nothing,
                Some(RollsBack { gone: None, .. }) => Told::RollsBack(id),
                None if verdict.passed() && header.flags.is_fragment() => Told::Fragment {
                    id,
                    starts: header.flags.starts(),
                    ends: header.flags.ends(),
                },
                None => Told::Nothing,
            };
            Some((*seqno, told))
        }
        Event::Doomed { seqno, stream, .. } => {
            let id = ids[&(stream.source, stream.trx_id)];
            Some((*seqno, Told::RollsBack(id)))
        }
        Event::View { view, left, .. } => {
            let of = left.first().map(|(m, _)| m.uuid.0[0]);
            Some((view.position.seqno, of.map_or(Told::Nothing, Told::Left)))
        }
        _ => None,
    };
    events.iter().filter_map(one).collect()
}

proptest! {
    /// One database does everything in turn; another one rolls back as soon as it may,
    /// some events before. Both end with the same rows, and nothing is left open that
    /// the order does not know.
    #[test]
    fn databases_that_roll_back_early_or_late_are_equal(
        steps in prop::collection::vec(step(), 1..60),
        early in 1usize..9,
    ) {
        let mut f = two();
        // Numbers of transactions are used once.
        let mut numbers: BTreeMap<Id, u64> = BTreeMap::new();
        let mut ids = BTreeMap::new();
        let mut running: BTreeSet<Id> = BTreeSet::new();
        let mut all = Vec::new();
        let mut next = 100;
        for (origin, slot, step) in steps {
            let slot = (origin, slot);
            let seen = now(&f);
            let send = |f: &mut Feed, trx, row, flags, seen| {
                let body = fragment_of((origin, trx), seen, row, flags);
                f.part(origin, Part::Whole, body)
            };
            let uuid = Uuid([origin; 16]);
            let events = match (step, numbers.get(&slot).copied()) {
                (Step::Fragment { unseen, row }, known) => {
                    let trx = known.unwrap_or(next);
                    next += 1;
                    numbers.insert(slot, trx);
                    ids.insert((uuid, trx), (origin, trx));
                    let first = known.is_none();
                    let flags = if first { Flags::TRX_START } else { Flags::NONE };
                    let seen = if unseen { seen.min(2) } else { seen };
                    // Rows of its own, but for one that all of them want.
                    let row = if row == 0 { 0 } else { trx * 10 + row };
                    let events = send(&mut f, trx, row, flags, seen);
                    if matches!(&events[..], [Event::WriteSet { verdict, .. }] if verdict.passed()) {
                        running.insert((origin, trx));
                    } else if first {
                        numbers.remove(&slot);
                    }
                    events
                }
                (Step::End, Some(trx)) => {
                    let events = send(&mut f, trx, trx * 10, END, seen);
                    if matches!(&events[..], [Event::WriteSet { verdict, .. }] if verdict.passed()) {
                        numbers.remove(&slot);
                        running.remove(&(origin, trx));
                    }
                    events
                }
                (Step::Back, Some(trx)) => {
                    numbers.remove(&slot);
                    running.remove(&(origin, trx));
                    send(&mut f, trx, 0, BACK, seen)
                }
                (Step::Doom { back }, Some(trx)) => {
                    let open = f.state.open_streams().find(|s| s.source == uuid && s.trx_id == trx).copied();
                    let waits = seen - back;
                    let events = f.send(3 - origin, &Control::Doom { source: uuid, trx_id: trx, waits });
                    // As often as the rule says, and no more.
                    let counts = open.is_some_and(|s| s.gone.is_none() && s.first < waits);
                    prop_assert_eq!(events.len(), usize::from(counts), "{:?}", open);
                    events
                }
                (Step::Rejoins, _) => {
                    numbers.retain(|s, _| s.0 != origin);
                    running.retain(|id| id.0 != origin);
                    f.send(origin, &Control::Rejoin { uuid, released: seen })
                }
                (Step::Checkpoint, _) => {
                    let (sequencer, node) = f.state.encode();
                    let digest = f.state.digest();
                    f.state = ClusterState::decode(&sequencer, &node).expect("its own bytes");
                    prop_assert_eq!(f.state.digest(), digest);
                    Vec::new()
                }
                _ => Vec::new(),
            };
            all.extend(told(&events, &ids));
        }
        // In turn.
        let mut late = Applied::default();
        for (seqno, told) in &all {
            late.turn(*seqno, *told).map_err(TestCaseError::fail)?;
        }
        // Ahead: a rollback passes what lies before it, but for the beginning of its
        // own stream and views.
        let mut ahead = Applied::default();
        for (at, (seqno, told)) in all.iter().enumerate() {
            for (_, later) in all.iter().skip(at).take(early) {
                match later {
                    Told::Left(_) => break,
                    Told::RollsBack(id) if ahead.open.contains_key(id) => ahead.rolls_back(*id),
                    _ => {}
                }
            }
            ahead.turn(*seqno, *told).map_err(TestCaseError::fail)?;
        }
        prop_assert_eq!(&late.committed, &ahead.committed);
        prop_assert_eq!(&late.open, &ahead.open);
        let open: BTreeSet<Id> = late.open.keys().copied().collect();
        let known = f.state.open_streams().filter(|s| s.gone.is_none());
        let known: BTreeSet<Id> = known.map(|s| (s.source.0[0], s.trx_id)).collect();
        prop_assert_eq!(&open, &known, "who is open in a database, and in the order");
        prop_assert!(known.is_subset(&running), "{:?} {:?}", known, running);
    }
}
