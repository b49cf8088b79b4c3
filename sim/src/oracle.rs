//! The oracles: what must hold in every run, checked as it goes.
//!
//! They see what the nodes deliver, commit, acknowledge and answer, and know
//! nothing of how. The first violation ends the run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use dromon_order::RaftId;
use dromon_writeset::Seqno;

use crate::database::LostUpdate;

/// What an oracle watches over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Oracle {
    /// Every node delivers a part of one global sequence: the same thing with
    /// the same verdict and the same dependency at each seqno.
    SameOrder,
    /// Seqnos have no gaps.
    Dense,
    /// What is acknowledged is on the node's own disk and on those of a majority.
    Durable,
    /// What was acknowledged is in the sequence and in every database.
    Acknowledged,
    /// The deterministic states are equal wherever they are compared.
    StateDigest,
    /// Databases go through the same states and end with the same contents.
    Contents,
    /// No transaction takes two places.
    ExactlyOnce,
    /// A read index covers what was acknowledged before it was asked for, and
    /// nobody answers one who was cut from the majority since the question.
    ReadIndex,
    /// No transaction overwrites what it has not seen; the counters add up.
    LostUpdate,
    /// After the faults, everybody comes back in bounded time.
    Liveness,
    /// Nothing panics, no log is unreadable, no engine dies by itself.
    Sound,
}

impl fmt::Display for Oracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Oracle::SameOrder => "same order",
            Oracle::Dense => "dense seqnos",
            Oracle::Durable => "durable before acknowledged",
            Oracle::Acknowledged => "acknowledged never lost",
            Oracle::StateDigest => "equal state digests",
            Oracle::Contents => "equal databases",
            Oracle::ExactlyOnce => "exactly once",
            Oracle::ReadIndex => "current reads",
            Oracle::LostUpdate => "no lost update",
            Oracle::Liveness => "liveness",
            Oracle::Sound => "soundness",
        })
    }
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{oracle}: {what}")]
pub struct Violation {
    /// Which promise.
    pub oracle: Oracle,
    /// How, with places and values.
    pub what: String,
}

/// What stands at one seqno.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The client transaction, if it is one.
    pub txn: Option<u64>,
    /// The counters it bumps; empty if it failed.
    pub keys: Vec<u32>,
    /// A hash of the event itself.
    pub event: u64,
    /// Whether it commits, after what, or why not.
    pub verdict: String,
}

/// Everything the oracles know.
#[derive(Debug, Default)]
pub struct Oracles {
    violation: Option<Violation>,
    /// The global sequence; the first is seqno 1.
    sequence: Vec<Placed>,
    /// Database chains by seqno, as the first database had them.
    chains: BTreeMap<Seqno, u64>,
    /// State digests by log index.
    digests: BTreeMap<u64, (u64, usize)>,
    /// Where each client transaction stands.
    txns: BTreeMap<u64, Seqno>,
    acked: BTreeMap<u64, Acked>,
    acked_seqno: Seqno,
    acked_index: u64,
    /// The last seqno each slot delivered in its present session.
    cursors: BTreeMap<usize, Seqno>,
    last_txn: u64,
}

#[derive(Clone, Copy, Debug)]
struct Acked {
    slot: usize,
    seqno: Option<Seqno>,
}

/// What a read must cover: fixed when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadFloor {
    /// Last seqno acknowledged to any client.
    pub seqno: Seqno,
    /// The log index it stands at, or later.
    pub index: u64,
}

impl Oracles {
    /// The first violation.
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// A promise was broken. The first one stays.
    pub fn fire(&mut self, oracle: Oracle, what: String) {
        self.violation.get_or_insert(Violation { oracle, what });
    }

    /// A number for a new client transaction.
    pub fn new_txn(&mut self) -> u64 {
        self.last_txn += 1;
        self.last_txn
    }

    /// Length of the global sequence.
    pub fn entries(&self) -> usize {
        self.sequence.len()
    }

    /// Transactions acknowledged.
    pub fn acked_count(&self) -> usize {
        self.acked.len()
    }

    /// `slot` begins to deliver behind `seqno`.
    pub fn begins(&mut self, slot: usize, seqno: Seqno) {
        self.cursors.insert(slot, seqno);
    }

    /// `slot` delivered something.
    pub fn delivered(&mut self, slot: usize, seqno: Seqno, placed: Placed) {
        let before = self.cursors.insert(slot, seqno).unwrap_or(0);
        if seqno != before + 1 {
            let what = format!("node {slot} delivered seqno {seqno} after {before}");
            return self.fire(Oracle::Dense, what);
        }
        let at = (seqno - 1) as usize;
        if at > self.sequence.len() {
            let what = format!(
                "node {slot} delivered seqno {seqno} but nobody delivered {}",
                self.sequence.len() + 1
            );
            return self.fire(Oracle::Dense, what);
        }
        match self.sequence.get(at) {
            Some(known) if *known == placed => {}
            Some(known) => {
                let what =
                    format!("at seqno {seqno} node {slot} has {placed:?}, others have {known:?}");
                self.fire(Oracle::SameOrder, what);
            }
            None => self.extend(slot, seqno, placed),
        }
    }

    fn extend(&mut self, slot: usize, seqno: Seqno, placed: Placed) {
        if let Some(txn) = placed.txn
            && let Some(first) = self.txns.insert(txn, seqno)
        {
            let what = format!(
                "transaction {txn} stands at seqno {first} and again at {seqno} (node {slot})"
            );
            self.fire(Oracle::ExactlyOnce, what);
        }
        self.sequence.push(placed);
    }

    /// The database of `slot` has come to `seqno`.
    pub fn committed(&mut self, slot: usize, seqno: Seqno, chain: u64) {
        let known = *self.chains.entry(seqno).or_insert(chain);
        if known != chain {
            let what = format!(
                "the database of node {slot} at seqno {seqno} has chain {chain:016x}, the first \
                 one there had {known:016x}"
            );
            self.fire(Oracle::Contents, what);
        }
    }

    /// A transaction overwrote what it had not seen.
    pub fn lost_update(&mut self, slot: usize, seqno: Seqno, txn: u64, lost: LostUpdate) {
        let what = format!(
            "transaction {txn} at seqno {seqno} (node {slot}) writes counter {} having seen {}, but \
             it was {}",
            lost.key, lost.seen, lost.found
        );
        self.fire(Oracle::LostUpdate, what);
    }

    /// The deterministic state of `slot` behind the entry at `index`.
    pub fn digest(&mut self, slot: usize, index: u64, digest: u64) {
        let (known, first) = *self.digests.entry(index).or_insert((digest, slot));
        if known != digest {
            let what = format!(
                "behind log index {index} node {slot} has state {digest:016x}, node {first} had \
                 {known:016x}"
            );
            self.fire(Oracle::StateDigest, what);
        }
    }

    /// A client was told that its transaction has committed.
    pub fn acked(&mut self, slot: usize, txn: u64, place: Option<(Seqno, u64)>) {
        let seqno = place.map(|(seqno, _)| seqno);
        self.acked.insert(txn, Acked { slot, seqno });
        if let Some((seqno, index)) = place {
            self.acked_seqno = self.acked_seqno.max(seqno);
            self.acked_index = self.acked_index.max(index);
            if self.txns.get(&txn) != Some(&seqno) || !self.passed(seqno) {
                let what = format!(
                    "node {slot} acknowledged transaction {txn} at seqno {seqno}, where the \
                     sequence has {:?}",
                    self.sequence.get((seqno - 1) as usize)
                );
                self.fire(Oracle::Acknowledged, what);
            }
        }
    }

    /// `slot`, member `own` of the order, acknowledges what stands at `index`.
    /// Of the `voters` that were in force meanwhile, one set must have it on a
    /// majority of its disks, as `synced` knows them.
    pub fn durable(
        &mut self,
        slot: usize,
        index: u64,
        own: RaftId,
        voters: &[BTreeSet<RaftId>],
        synced: impl Fn(RaftId) -> u64,
    ) {
        let has = |id: &&RaftId| synced(**id) >= index;
        let majority = |set: &BTreeSet<RaftId>| 2 * set.iter().filter(has).count() > set.len();
        if !has(&&own) {
            let what = format!(
                "node {slot} acknowledges log index {index}, its own disk has {}",
                synced(own)
            );
            self.fire(Oracle::Durable, what);
        } else if !voters.iter().any(majority) {
            let disks: Vec<u64> = voters.iter().flatten().map(|id| synced(*id)).collect();
            let what = format!(
                "node {slot} acknowledges log index {index}, the disks of the voters have {disks:?}"
            );
            self.fire(Oracle::Durable, what);
        }
    }

    fn passed(&self, seqno: Seqno) -> bool {
        let placed = self.sequence.get((seqno - 1) as usize);
        placed.is_some_and(|p| !p.keys.is_empty())
    }

    /// What a read that begins now must see.
    pub fn read_begins(&self) -> ReadFloor {
        ReadFloor {
            seqno: self.acked_seqno,
            index: self.acked_index,
        }
    }

    /// The order answered a read index that was asked for at `floor`.
    /// `cut_off`: no majority can have taken part since then.
    pub fn read_index(&mut self, slot: usize, floor: ReadFloor, index: u64, cut_off: bool) {
        if cut_off {
            let what = format!(
                "node {slot} was answered read index {index} without a majority since it asked"
            );
            self.fire(Oracle::ReadIndex, what);
        }
        if index < floor.index {
            let what = format!(
                "node {slot} was answered read index {index}, but index {} had been acknowledged \
                 before it asked",
                floor.index
            );
            self.fire(Oracle::ReadIndex, what);
        }
    }

    /// A client read at `seqno`.
    pub fn read_done(&mut self, slot: usize, floor: ReadFloor, seqno: Seqno) {
        if seqno < floor.seqno {
            let what = format!(
                "a read on node {slot} saw the database at seqno {seqno}, but seqno {} had been \
                 acknowledged before it began",
                floor.seqno
            );
            self.fire(Oracle::ReadIndex, what);
        }
    }

    /// The last comparison: every database stands at `seqno` with these rows.
    pub fn finish(&mut self, seqno: Seqno, databases: &[(usize, BTreeMap<u32, i64>)]) {
        if seqno as usize != self.sequence.len() {
            let what = format!(
                "everybody stands at seqno {seqno}, but {} were delivered once",
                self.sequence.len()
            );
            self.fire(Oracle::Dense, what);
        }
        let mut lost = Vec::new();
        for (txn, acked) in &self.acked {
            let place = self.txns.get(txn).copied();
            let same = acked.seqno.is_none_or(|s| Some(s) == place);
            if !same || !place.is_some_and(|s| self.passed(s)) {
                lost.push((*txn, *acked, place));
            }
        }
        if let Some((txn, acked, place)) = lost.first() {
            let what = format!(
                "{} acknowledged transactions are lost; the first is {txn}, acknowledged on node {} \
                 at {:?}, now at {place:?}",
                lost.len(),
                acked.slot,
                acked.seqno
            );
            self.fire(Oracle::Acknowledged, what);
        }
        let mut expected: BTreeMap<u32, i64> = BTreeMap::new();
        for key in self.sequence.iter().flat_map(|p| &p.keys) {
            *expected.entry(*key).or_default() += 1;
        }
        let mut first: Option<(usize, &BTreeMap<u32, i64>)> = None;
        let mut found = Vec::new();
        for (slot, rows) in databases {
            match first {
                Some((other, others)) if others != rows => found.push((
                    Oracle::Contents,
                    format!("node {slot} ends with {rows:?}, node {other} with {others:?}"),
                )),
                Some(_) => {}
                None => first = Some((*slot, rows)),
            }
            if *rows != expected {
                let what = format!(
                    "the counters of node {slot} are {rows:?}, the transactions that passed make \
                     {expected:?}"
                );
                found.push((Oracle::LostUpdate, what));
            }
        }
        for (oracle, what) in found {
            self.fire(oracle, what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(txn: u64, passed: bool) -> Placed {
        Placed {
            txn: Some(txn),
            keys: if passed { vec![1] } else { Vec::new() },
            event: txn,
            verdict: passed.to_string(),
        }
    }

    fn fired(o: &Oracles) -> Option<Oracle> {
        o.violation().map(|v| v.oracle)
    }

    fn with_two() -> Oracles {
        let mut o = Oracles::default();
        o.delivered(0, 1, placed(1, true));
        o.delivered(0, 2, placed(2, false));
        assert_eq!(fired(&o), None);
        o
    }

    #[test]
    fn order_gaps_and_copies_are_seen() {
        let mut o = with_two();
        o.delivered(1, 1, placed(2, true));
        assert_eq!(fired(&o), Some(Oracle::SameOrder));
        let mut o = with_two();
        o.delivered(0, 4, placed(4, true));
        assert_eq!(fired(&o), Some(Oracle::Dense));
        let mut o = with_two();
        o.begins(1, 3);
        o.delivered(1, 4, placed(4, true));
        assert_eq!(fired(&o), Some(Oracle::Dense));
        let mut o = with_two();
        o.delivered(0, 3, placed(1, true));
        assert_eq!(fired(&o), Some(Oracle::ExactlyOnce));
    }

    #[test]
    fn acknowledging_what_failed_or_was_lost_is_seen() {
        let mut o = with_two();
        o.acked(0, 1, Some((1, 10)));
        assert_eq!(fired(&o), None);
        o.acked(0, 2, Some((2, 11)));
        assert_eq!(fired(&o), Some(Oracle::Acknowledged));
        let mut o = with_two();
        o.acked(0, 7, None);
        o.finish(2, &[(0, [(1, 1)].into())]);
        assert_eq!(fired(&o), Some(Oracle::Acknowledged));
    }

    #[test]
    fn acknowledging_before_it_is_on_disks_is_seen() {
        let synced = |id| [0, 10, 10, 9, 9, 9][id as usize];
        let sets = |sets: &[&[u64]]| -> Vec<BTreeSet<u64>> {
            sets.iter().map(|s| s.iter().copied().collect()).collect()
        };
        let check = |own, voters: &[&[u64]]| {
            let mut o = with_two();
            o.durable(0, 10, own, &sets(voters), synced);
            fired(&o)
        };
        assert_eq!(check(1, &[&[1, 2, 3]]), None);
        assert_eq!(check(3, &[&[1, 2, 3]]), Some(Oracle::Durable));
        assert_eq!(check(1, &[&[1, 3, 4]]), Some(Oracle::Durable));
        assert_eq!(check(1, &[&[1, 2, 3, 4]]), Some(Oracle::Durable));
        assert_eq!(check(1, &[&[1, 3, 4], &[1, 2]]), None);
        assert_eq!(check(1, &[]), Some(Oracle::Durable));
    }

    #[test]
    fn stale_reads_are_seen() {
        let mut o = with_two();
        o.acked(0, 1, Some((1, 10)));
        let floor = o.read_begins();
        o.read_index(1, floor, 10, false);
        o.read_done(1, floor, 1);
        assert_eq!(fired(&o), None);
        o.read_index(1, floor, 9, false);
        assert_eq!(fired(&o), Some(Oracle::ReadIndex));
        let mut o = with_two();
        o.read_index(1, floor, 10, true);
        assert_eq!(fired(&o), Some(Oracle::ReadIndex));
        let mut o = with_two();
        o.read_done(1, floor, 0);
        assert_eq!(fired(&o), Some(Oracle::ReadIndex));
    }

    #[test]
    fn states_and_contents_are_compared() {
        let mut o = with_two();
        o.digest(0, 5, 1);
        o.digest(1, 5, 1);
        o.committed(0, 1, 7);
        o.committed(1, 1, 7);
        o.finish(2, &[(0, [(1, 1)].into()), (1, [(1, 1)].into())]);
        assert_eq!(fired(&o), None);
        let mut other = with_two();
        other.digest(0, 5, 1);
        other.digest(1, 5, 2);
        assert_eq!(fired(&other), Some(Oracle::StateDigest));
        let mut other = with_two();
        other.committed(0, 1, 7);
        other.committed(1, 1, 8);
        assert_eq!(fired(&other), Some(Oracle::Contents));
        let mut other = with_two();
        other.finish(2, &[(0, [(1, 1)].into()), (1, [(1, 2)].into())]);
        assert_eq!(fired(&other), Some(Oracle::Contents));
        let mut other = with_two();
        other.finish(2, &[(0, [(1, 2)].into())]);
        assert_eq!(fired(&other), Some(Oracle::LostUpdate));
        let mut other = with_two();
        other.finish(1, &[(0, [(1, 1)].into())]);
        assert_eq!(fired(&other), Some(Oracle::Dense));
    }
}
