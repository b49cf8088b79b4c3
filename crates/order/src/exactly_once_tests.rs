//! Queue, loss, copies, several leaders, sequencer: together they must deliver
//! each message once, and one that was taken back never. Checked against the naive truth: the list of pushes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use dromon_writeset::Uuid;
use proptest::prelude::*;

use crate::pending::{PendingLimits, PendingQueue, Progress};
use crate::sequencer::{Committed, CommittedBody, Delivered, RawMessage, Sequencer};

const ORIGINS: usize = 2;
const LEADERS: usize = 3;
const PIECE: usize = 100;

#[derive(Clone, Debug)]
enum Op {
    /// Origin pushes a body of this length.
    Push(usize, usize),
    /// Origin sends a batch of this size to the leader it believes in.
    Batch(usize, usize),
    /// Origin believes in this leader from now on.
    Leader(usize, u64),
    NoLeader(usize),
    Refused(usize),
    /// Origin gives no numbers, or gives them again.
    Hold(usize, bool),
    /// Origin takes its newest message but so many back, if it can.
    Withdraw(usize, usize),
    Wait(u64),
    /// The oldest message on its way from origin to leader reaches the log.
    Arrive(usize, usize),
    /// It is lost.
    Lose(usize, usize),
    /// It reaches the log and is still on its way.
    Copy(usize, usize),
    /// Everything on its way to this leader is lost.
    Crash(usize),
    /// The member's delivery restarts from its checkpoint.
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let (o, l) = (0..ORIGINS, 0..LEADERS);
    prop_oneof![
        4 => (o.clone(), prop_oneof![3 => 0..PIECE + 1, 1 => PIECE..PIECE * 8]).prop_map(|(o, n)| Op::Push(o, n)),
        4 => (o.clone(), 1..1000usize).prop_map(|(o, n)| Op::Batch(o, n)),
        2 => (o.clone(), l.clone()).prop_map(|(o, l)| Op::Leader(o, l as u64)),
        1 => o.clone().prop_map(Op::NoLeader),
        1 => o.clone().prop_map(Op::Refused),
        1 => (o.clone(), any::<bool>()).prop_map(|(o, held)| Op::Hold(o, held)),
        2 => (o.clone(), 0..6usize).prop_map(|(o, n)| Op::Withdraw(o, n)),
        2 => (1..40u64).prop_map(Op::Wait),
        8 => (o.clone(), l.clone()).prop_map(|(o, l)| Op::Arrive(o, l)),
        2 => (o.clone(), l.clone()).prop_map(|(o, l)| Op::Lose(o, l)),
        2 => (o.clone(), l.clone()).prop_map(|(o, l)| Op::Copy(o, l)),
        1 => l.prop_map(Op::Crash),
        1 => Just(Op::Restart),
    ]
}

struct World {
    now: Duration,
    queues: Vec<PendingQueue>,
    pushed: Vec<Vec<Bytes>>,
    /// Origin and tag of what was taken back.
    withdrawn: BTreeSet<(usize, u64)>,
    /// The same of what any leader was ever sent, whole or in part.
    sent: BTreeSet<(usize, u64)>,
    leader: Vec<usize>,
    ways: BTreeMap<(usize, usize), VecDeque<RawMessage>>,
    index: u64,
    member: Sequencer,
    /// A second member that is never restarted.
    other: Sequencer,
    delivered: Vec<Delivered>,
}

fn id(o: usize) -> Uuid {
    Uuid([o as u8 + 1; 16])
}

impl World {
    fn new(fault: bool) -> Self {
        let limits = PendingLimits {
            piece_bytes: PIECE,
            pieces_in_flight: PIECE * 3,
            resend_after: Duration::from_millis(20),
            ..PendingLimits::default()
        };
        let mut member = Sequencer::new();
        let mut other = Sequencer::new();
        for o in 0..ORIGINS {
            assert!(member.register(id(o)) && other.register(id(o)));
        }
        member.fault_accept_duplicates = fault;
        other.fault_accept_duplicates = fault;
        World {
            now: Duration::ZERO,
            queues: (0..ORIGINS)
                .map(|o| PendingQueue::new(id(o), limits.clone()))
                .collect(),
            pushed: vec![Vec::new(); ORIGINS],
            withdrawn: BTreeSet::new(),
            sent: BTreeSet::new(),
            leader: vec![0; ORIGINS],
            ways: BTreeMap::new(),
            index: 0,
            member,
            other,
            delivered: Vec::new(),
        }
    }

    fn commit(&mut self, m: RawMessage) -> Result<(), String> {
        self.index += 1;
        let q = &mut self.queues[m.origin.0[0] as usize - 1];
        let progress = q.on_committed(m.oseq, self.now);
        let before = self.member.last(m.origin);
        let entry = Committed {
            index: self.index,
            term: 1,
            leader: 1,
            body: CommittedBody::Message(m),
        };
        let CommittedBody::Message(m) = &entry.body else {
            return Err("not a message".into());
        };
        let there = self.member.accept(&entry).map_err(|e| e.to_string())?;
        let here = self.other.accept(&entry).map_err(|e| e.to_string())?;
        if there != here {
            return Err(format!("members differ: {there:?} and {here:?}"));
        }
        let counted = self.member.last(m.origin) != before;
        if counted != (progress == Progress::Confirmed) {
            return Err(format!("the queue said {progress:?} to {}", m.oseq));
        }
        self.delivered.extend(here);
        Ok(())
    }

    fn step(&mut self, op: Op, fault: bool) -> Result<(), String> {
        match op {
            Op::Push(o, len) => {
                let tag = self.pushed[o].len() as u64;
                let body = Bytes::from(
                    (0..len)
                        .map(|i| (i as u64 * 7 + tag * 31 + o as u64) as u8)
                        .collect::<Vec<_>>(),
                );
                self.queues[o]
                    .push(o as u8, tag, body.clone())
                    .map_err(|e| e.to_string())?;
                self.pushed[o].push(body);
            }
            Op::Batch(o, max) => {
                let batch = self.queues[o].next_batch(max, self.now);
                self.sent.extend(batch.iter().map(|m| (o, m.tag)));
                let way = self.ways.entry((o, self.leader[o])).or_default();
                way.extend(batch);
            }
            Op::Leader(o, l) => {
                self.leader[o] = l as usize;
                self.queues[o].on_leader(Some((l, l)), self.now);
            }
            Op::NoLeader(o) => self.queues[o].on_leader(None, self.now),
            Op::Refused(o) => self.queues[o].on_refused(self.now),
            Op::Hold(o, held) => {
                self.queues[o].hold(held);
            }
            Op::Withdraw(o, n) => {
                let Some(tag) = self.pushed[o].len().checked_sub(n + 1) else {
                    return Ok(());
                };
                let me = (o, tag as u64);
                if self.queues[o].withdraw(o as u8, me.1) {
                    if self.sent.contains(&me) {
                        return Err(format!("message {tag} of {o} was taken back though sent"));
                    }
                    self.withdrawn.insert(me);
                }
            }
            Op::Wait(ms) => {
                self.now += Duration::from_millis(ms);
                for q in &mut self.queues {
                    q.on_timeout(self.now);
                }
            }
            Op::Arrive(o, l) => {
                if let Some(m) = self.ways.entry((o, l)).or_default().pop_front() {
                    self.commit(m)?;
                }
            }
            Op::Lose(o, l) => {
                self.ways.entry((o, l)).or_default().pop_front();
            }
            Op::Copy(o, l) => {
                if let Some(m) = self.ways.entry((o, l)).or_default().front().cloned() {
                    self.commit(m)?;
                }
            }
            Op::Crash(l) => {
                for o in 0..ORIGINS {
                    self.ways.remove(&(o, l));
                }
            }
            Op::Restart => {
                let saved = self.member.encode().map_err(|e| e.to_string())?;
                self.member = Sequencer::decode(saved.clone()).map_err(|e| e.to_string())?;
                self.member.fault_accept_duplicates = fault;
                if self.member.encode().map_err(|e| e.to_string())? != saved {
                    return Err("the state changed on its way through bytes".into());
                }
                if self.member.digest() != self.other.digest() {
                    return Err("the digest changed on its way through bytes".into());
                }
            }
        }
        Ok(())
    }

    /// From now on the network is kind: everything must arrive, soon.
    fn settle(&mut self, fault: bool) -> Result<(), String> {
        for o in 0..ORIGINS {
            self.step(Op::Leader(o, 0), fault)?;
            self.step(Op::Hold(o, false), fault)?;
        }
        for _ in 0..1000 {
            if self.queues.iter().all(PendingQueue::is_empty) {
                return Ok(());
            }
            for o in 0..ORIGINS {
                self.step(Op::Batch(o, 500), fault)?;
                for l in 0..LEADERS {
                    while self.ways.get(&(o, l)).is_some_and(|w| !w.is_empty()) {
                        self.step(Op::Arrive(o, l), fault)?;
                    }
                }
            }
            self.step(Op::Wait(7), fault)?;
        }
        Err("the queues do not become empty".into())
    }

    fn check(&self) -> Result<(), String> {
        for o in 0..ORIGINS {
            let mut seen = vec![false; self.pushed[o].len()];
            let mut last_small = None;
            for d in self.delivered.iter().filter(|d| d.origin == id(o)) {
                let tag = d.tag as usize;
                if self.withdrawn.contains(&(o, d.tag)) {
                    return Err(format!("message {tag} of {o} was taken back and delivered"));
                }
                if std::mem::replace(&mut seen[tag], true) {
                    return Err(format!("message {tag} of {o} was delivered twice"));
                }
                if d.body != self.pushed[o][tag] || d.kind != o as u8 {
                    return Err(format!("message {tag} of {o} was changed"));
                }
                if d.body.len() <= PIECE {
                    if last_small > Some(tag) {
                        return Err(format!("message {tag} of {o} came after {last_small:?}"));
                    }
                    last_small = Some(tag);
                }
            }
            let lost = |tag: &usize| !seen[*tag] && !self.withdrawn.contains(&(o, *tag as u64));
            if let Some(lost) = (0..seen.len()).find(lost) {
                return Err(format!("message {lost} of {o} was not delivered"));
            }
        }
        if self.other.open_bytes() != 0 || self.other.open_pieces_from().is_some() {
            return Err("pieces are left".into());
        }
        Ok(())
    }
}

fn run(ops: &[Op], fault: bool) -> Result<(), String> {
    let mut w = World::new(fault);
    for op in ops {
        w.step(op.clone(), fault)?;
    }
    w.settle(fault)?;
    w.check()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_message_once_whatever_happens(ops in prop::collection::vec(op(), 0..200)) {
        prop_assert_eq!(run(&ops, false), Ok(()));
    }
}

/// The check itself is checked: with a sequencer that takes copies, it fires.
#[test]
fn the_check_finds_a_sequencer_without_dedupe() {
    let ops = [
        Op::Push(0, 10),
        Op::Leader(0, 0),
        Op::Batch(0, 100),
        Op::Copy(0, 0),
        Op::Arrive(0, 0),
    ];
    assert_eq!(run(&ops, false), Ok(()));
    let found = run(&ops, true).unwrap_err();
    assert_eq!(found, "message 0 of 0 was delivered twice");

    // Random runs find it as well, most of the time.
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let many = prop::collection::vec(op(), 200);
    let caught = (0..50)
        .filter(|_| {
            let ops = many.new_tree(&mut runner).unwrap().current();
            run(&ops, true).is_err()
        })
        .count();
    assert!(caught > 25, "only {caught} of 50 runs noticed");
}
