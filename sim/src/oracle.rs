//! The oracles: what must hold in every run, checked as it goes.
//!
//! They see what the nodes deliver, commit, acknowledge and answer, and know
//! nothing of how. The first violation ends the run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use dromon_order::RaftId;
use dromon_writeset::Seqno;

use crate::database::{LostUpdate, Uncommitted};

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
    /// No transaction takes two places, and one that was taken back none.
    ExactlyOnce,
    /// A read index covers what was acknowledged before it was asked for, and
    /// nobody answers one who was cut from the majority since the question.
    ReadIndex,
    /// No transaction overwrites what it has not seen; the counters add up.
    LostUpdate,
    /// A large transaction is over on all nodes alike: nothing uncommitted stays.
    NothingOpen,
    /// After the faults, everybody comes back in bounded time.
    Liveness,
    /// While a majority is up, healthy and connected, writes go through.
    Standstill,
    /// A forced recovery begins a new line; nobody serves on an old one, or
    /// mixes the two.
    OneLine,
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
            Oracle::NothingOpen => "nothing stays open",
            Oracle::Liveness => "liveness",
            Oracle::Standstill => "no standing still",
            Oracle::OneLine => "one incarnation",
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
    /// Whether it is a part of a large transaction.
    pub part: Part,
}

/// What a place is to a large transaction, which is named by its first seqno.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// Nothing, or one more chunk.
    #[default]
    None,
    /// Its first chunk: from here on it is open.
    Opens {
        /// The client transaction.
        txn: u64,
        /// The counters it bumps.
        keys: Vec<u32>,
    },
    /// It commits.
    Ends(Seqno),
    /// It is rolled back.
    Drops(Seqno),
}

/// What the clients of one node got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Acknowledged transactions.
    pub writes: u64,
    /// Reads that were asked for while the node had an engine.
    pub asked: u64,
    /// Answered reads.
    pub reads: u64,
}

/// Everything the oracles know.
#[derive(Debug)]
pub struct Oracles {
    violation: Option<Violation>,
    /// By incarnation of the cluster, in the order in which they began.
    lines: Vec<Line>,
    /// The line of each incarnation, by the number that the order gives it.
    incarnations: BTreeMap<u32, usize>,
    /// A node is about to go on alone: in a line that is not in force yet.
    forking: Option<Line>,
    /// The line and the last seqno of each slot's present session.
    cursors: BTreeMap<usize, Cursor>,
    last_txn: u64,
    /// Client transactions that their node took back before it sent them.
    taken_back: BTreeSet<u64>,
    acked_ever: usize,
    /// Of each slot, what was acknowledged to its clients, and reads that they were answered.
    served: BTreeMap<usize, Served>,
    given_up: u64,
    large: LargeCounts,
}

/// How many large transactions there were, in all lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LargeCounts {
    /// Begun.
    pub begun: u64,
    /// Of these, committed.
    pub committed: u64,
    /// Of these, rolled back.
    pub rolled_back: u64,
}

/// What one incarnation of the cluster has in its log. A forced recovery begins
/// another one, with what one node's log holds.
#[derive(Clone, Debug, Default)]
struct Line {
    /// The one sequence; the first is seqno 1.
    sequence: Vec<Placed>,
    /// Database chains by seqno, as the first database had them.
    chains: BTreeMap<Seqno, u64>,
    /// State digests by log index.
    digests: BTreeMap<u64, (u64, usize)>,
    /// Where each client transaction stands.
    txns: BTreeMap<u64, Seqno>,
    /// What must never be lost from it.
    acked: BTreeMap<u64, Acked>,
    acked_seqno: Seqno,
    acked_index: u64,
    /// Large transactions that are not over: which, and the counters they bump.
    open: BTreeMap<Seqno, (u64, Vec<u32>)>,
}

#[derive(Clone, Copy, Debug)]
struct Cursor {
    line: usize,
    seqno: Seqno,
}

/// The place of a transaction in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its seqno.
    pub seqno: Seqno,
    /// Its log index.
    pub index: u64,
    /// The term of the entry there.
    pub term: u64,
}

#[derive(Clone, Copy, Debug)]
struct Acked {
    slot: usize,
    place: Option<Place>,
}

/// What a read must cover: fixed when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadFloor {
    /// Last seqno acknowledged to any client.
    pub seqno: Seqno,
    /// The log index it stands at, or later.
    pub index: u64,
    /// The line that was asked.
    line: usize,
}

impl Default for Oracles {
    fn default() -> Self {
        Oracles {
            violation: None,
            lines: vec![Line::default()],
            incarnations: BTreeMap::new(),
            forking: None,
            cursors: BTreeMap::new(),
            last_txn: 0,
            taken_back: BTreeSet::new(),
            acked_ever: 0,
            served: BTreeMap::new(),
            given_up: 0,
            large: LargeCounts::default(),
        }
    }
}

impl Line {
    /// What a node takes along that has delivered `seqno` and the log up to
    /// `index`, and whose log has an entry of term `holds(i)` at each later `i`.
    fn taken_along(&self, seqno: Seqno, index: u64, holds: impl Fn(u64) -> Option<u64>) -> Line {
        let sequence: Vec<Placed> = self.sequence[..seqno as usize].to_vec();
        let mut line = Line {
            txns: BTreeMap::new(),
            chains: self.chains.range(..=seqno).map(|(s, c)| (*s, *c)).collect(),
            digests: self
                .digests
                .range(..=index)
                .map(|(i, d)| (*i, *d))
                .collect(),
            ..Line::default()
        };
        for (at, placed) in sequence.iter().enumerate() {
            if let Some(txn) = placed.txn {
                line.txns.insert(txn, at as Seqno + 1);
            }
            line.part(at as Seqno + 1, placed);
        }
        line.sequence = sequence;
        for (txn, acked) in &self.acked {
            let there = |p: &Place| p.index <= index || holds(p.index) == Some(p.term);
            if let Some(place) = acked.place.filter(there) {
                line.acked.insert(*txn, *acked);
                line.acked_seqno = line.acked_seqno.max(place.seqno);
                line.acked_index = line.acked_index.max(place.index);
            }
        }
        line
    }

    /// Keeps in mind what is open. Answers what `placed` touches of another one
    /// that is: the counter, and where that one began.
    fn part(&mut self, seqno: Seqno, placed: &Placed) -> Option<(u32, Seqno)> {
        let (own, touched) = match &placed.part {
            Part::None => (seqno, &placed.keys),
            Part::Opens { keys, .. } => (seqno, keys),
            Part::Ends(id) | Part::Drops(id) => (*id, &placed.keys),
        };
        let mut others = self.open.iter().filter(|(id, _)| **id != own);
        let met = others.find_map(|(id, (_, keys))| {
            let key = touched.iter().find(|k| keys.contains(k))?;
            Some((*key, *id))
        });
        match &placed.part {
            Part::None => {}
            Part::Opens { txn, keys } => {
                self.open.insert(seqno, (*txn, keys.clone()));
            }
            Part::Ends(id) | Part::Drops(id) => {
                self.open.remove(id);
            }
        }
        met
    }

    fn passed(&self, seqno: Seqno) -> bool {
        let placed = self.sequence.get((seqno - 1) as usize);
        placed.is_some_and(|p| !p.keys.is_empty())
    }
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

    /// Length of the sequence in force.
    pub fn entries(&self) -> usize {
        self.present().sequence.len()
    }

    /// Transactions acknowledged.
    pub fn acked_count(&self) -> usize {
        self.acked_ever
    }

    /// What the clients of `slot` got.
    pub fn served(&self, slot: usize) -> Served {
        self.served.get(&slot).copied().unwrap_or_default()
    }

    /// Acknowledged transactions that a forced recovery gave up.
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// How many large transactions there were.
    pub fn large(&self) -> LargeCounts {
        self.large
    }

    /// The incarnations that began by a forced recovery: how many.
    pub fn recoveries(&self) -> usize {
        self.lines.len() - 1
    }

    /// Whether `slot` is in the incarnation in force.
    pub fn is_present(&self, slot: usize) -> bool {
        let last = self.lines.len() - 1;
        self.cursors.get(&slot).is_some_and(|c| c.line == last)
    }

    fn present(&self) -> &Line {
        &self.lines[self.lines.len() - 1]
    }

    /// The line that `slot` delivers.
    fn line(&mut self, slot: usize) -> &mut Line {
        let at = self.cursors.get(&slot).map_or(0, |c| c.line);
        match &mut self.forking {
            // In force as soon as it is known to be durable.
            Some(line) if at == self.lines.len() => line,
            _ => {
                let last = self.lines.len() - 1;
                &mut self.lines[at.min(last)]
            }
        }
    }

    /// `slot` begins to deliver behind `seqno`, in this incarnation.
    pub fn begins(&mut self, slot: usize, seqno: Seqno, incarnation: u32) {
        if self.incarnations.is_empty() {
            self.incarnations.insert(incarnation, 0);
        }
        if !self.incarnations.contains_key(&incarnation) {
            // It went alone, and died before it could say so.
            self.forked(slot, incarnation);
        }
        if let Some(&line) = self.incarnations.get(&incarnation) {
            self.cursors.insert(slot, Cursor { line, seqno });
        }
    }

    /// `slot` is about to go on without a majority. It has delivered the log up
    /// to `index`; behind that its log has an entry of term `holds(i)` at each `i`.
    pub fn forks(&mut self, slot: usize, index: u64, holds: impl Fn(u64) -> Option<u64>) {
        let Some(cursor) = self.cursors.get(&slot).copied() else {
            return;
        };
        self.forking = Some(self.lines[cursor.line].taken_along(cursor.seqno, index, holds));
        let line = self.lines.len();
        self.cursors.insert(slot, Cursor { line, ..cursor });
    }

    /// It has: what others acknowledged and its log has not is given up, and
    /// only that.
    pub fn forked(&mut self, slot: usize, incarnation: u32) {
        let Some(line) = self.forking.take() else {
            let what = format!("node {slot} is in incarnation {incarnation}, which nobody began");
            return self.fire(Oracle::OneLine, what);
        };
        self.given_up +=
            (self.present().acked.len() as u64).saturating_sub(line.acked.len() as u64);
        self.incarnations.insert(incarnation, self.lines.len());
        self.lines.push(line);
    }

    /// It has not, and the others go on as before.
    pub fn not_forked(&mut self) {
        self.forking = None;
    }

    /// `slot` delivered something.
    pub fn delivered(&mut self, slot: usize, seqno: Seqno, placed: Placed) {
        let cursor = self
            .cursors
            .entry(slot)
            .or_insert(Cursor { line: 0, seqno: 0 });
        let before = std::mem::replace(&mut cursor.seqno, seqno);
        if seqno != before + 1 {
            let what = format!("node {slot} delivered seqno {seqno} after {before}");
            return self.fire(Oracle::Dense, what);
        }
        let at = (seqno - 1) as usize;
        let line = self.line(slot);
        if at > line.sequence.len() {
            let what = format!(
                "node {slot} delivered seqno {seqno} but nobody delivered {}",
                line.sequence.len() + 1
            );
            return self.fire(Oracle::Dense, what);
        }
        match line.sequence.get(at) {
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
        let line = self.line(slot);
        line.sequence.push(placed.clone());
        if let Some((key, id)) = line.part(seqno, &placed) {
            let what = format!(
                "seqno {seqno} ({placed:?}) touches counter {key}, which is open since seqno {id}"
            );
            self.fire(Oracle::LostUpdate, what);
        }
        match placed.part {
            Part::None => {}
            Part::Opens { .. } => self.large.begun += 1,
            Part::Ends(_) => self.large.committed += 1,
            Part::Drops(_) => self.large.rolled_back += 1,
        }
        let line = self.line(slot);
        if let Some(txn) = placed.txn
            && let Some(first) = line.txns.insert(txn, seqno)
        {
            let what = format!(
                "transaction {txn} stands at seqno {first} and again at {seqno} (node {slot})"
            );
            self.fire(Oracle::ExactlyOnce, what);
        }
        let begins = match placed.part {
            Part::Opens { txn, .. } => Some(txn),
            _ => placed.txn,
        };
        if let Some(txn) = begins.filter(|t| self.taken_back.contains(t)) {
            let what = format!("transaction {txn} was taken back and stands at seqno {seqno}");
            self.fire(Oracle::ExactlyOnce, what);
        }
    }

    /// The order said that it never sent `txn` and never will.
    pub fn taken_back(&mut self, txn: u64) {
        let places = self.lines.iter().chain(&self.forking);
        let place = |l: &Line| {
            let begun = l.open.iter().find(|(_, (t, _))| *t == txn);
            l.txns.get(&txn).copied().or(begun.map(|(id, _)| *id))
        };
        if let Some(seqno) = places.filter_map(place).next() {
            let what = format!("transaction {txn} stands at seqno {seqno} and was taken back");
            self.fire(Oracle::ExactlyOnce, what);
        }
        self.taken_back.insert(txn);
    }

    /// The database of `slot` has come to `seqno`.
    pub fn committed(&mut self, slot: usize, seqno: Seqno, chain: u64) {
        let known = *self.line(slot).chains.entry(seqno).or_insert(chain);
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
        let digests = &mut self.line(slot).digests;
        let (known, first) = *digests.entry(index).or_insert((digest, slot));
        if known != digest {
            let what = format!(
                "behind log index {index} node {slot} has state {digest:016x}, node {first} had \
                 {known:016x}"
            );
            self.fire(Oracle::StateDigest, what);
        }
    }

    /// A client was told that its transaction has committed.
    pub fn acked(&mut self, slot: usize, txn: u64, place: Option<Place>) {
        self.acked_ever += 1;
        self.served.entry(slot).or_default().writes += 1;
        let present = self.lines.len() - 1;
        if self.cursors.get(&slot).is_some_and(|c| c.line < present) {
            let what = format!(
                "node {slot} acknowledged transaction {txn} in an incarnation that a forced recovery \
                 has ended"
            );
            self.fire(Oracle::OneLine, what);
        }
        let line = self.line(slot);
        line.acked.insert(txn, Acked { slot, place });
        if let Some(p) = place {
            line.acked_seqno = line.acked_seqno.max(p.seqno);
            line.acked_index = line.acked_index.max(p.index);
            if line.txns.get(&txn) != Some(&p.seqno) || !line.passed(p.seqno) {
                let what = format!(
                    "node {slot} acknowledged transaction {txn} at seqno {}, where the sequence has \
                     {:?}",
                    p.seqno,
                    line.sequence.get((p.seqno - 1) as usize)
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

    /// What a read that begins now on `slot` must see.
    pub fn read_begins(&mut self, slot: usize) -> ReadFloor {
        let line = self.cursors.get(&slot).map_or(0, |c| c.line);
        let asked = self.line(slot);
        ReadFloor {
            seqno: asked.acked_seqno,
            index: asked.acked_index,
            line,
        }
    }

    /// Whether `slot` is still where it was when the read began. A node that
    /// went on alone in between answers for what it took along.
    fn same_line(&self, slot: usize, floor: ReadFloor) -> bool {
        self.cursors.get(&slot).map_or(0, |c| c.line) == floor.line
    }

    /// The order answered a read index that was asked for at `floor`.
    /// `cut_off`: no majority can have taken part since then.
    pub fn read_index(&mut self, slot: usize, floor: ReadFloor, index: u64, cut_off: bool) {
        if !self.same_line(slot, floor) {
            return;
        }
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

    /// A client is about to read.
    pub fn read_asked(&mut self, slot: usize) {
        self.served.entry(slot).or_default().asked += 1;
    }

    /// A client read at `seqno`.
    pub fn read_done(&mut self, slot: usize, floor: ReadFloor, seqno: Seqno) {
        self.served.entry(slot).or_default().reads += 1;
        if seqno < floor.seqno && self.same_line(slot, floor) {
            let what = format!(
                "a read on node {slot} saw the database at seqno {seqno}, but seqno {} had been \
                 acknowledged before it began",
                floor.seqno
            );
            self.fire(Oracle::ReadIndex, what);
        }
    }

    /// The database of `slot` has these uncommitted: only what `may_be` may be
    /// there.
    pub fn uncommitted(
        &mut self,
        slot: usize,
        when: &str,
        rows: &BTreeMap<Seqno, Uncommitted>,
        may_be: impl Fn(&Uncommitted) -> bool,
    ) {
        if let Some((id, rows)) = rows.iter().find(|(_, rows)| !may_be(rows)) {
            let what = format!(
                "{when} the database of node {slot} still has chunks of the large transaction {} that \
                 began at seqno {id}: {:?}",
                rows.txn, rows.ops
            );
            self.fire(Oracle::NothingOpen, what);
        }
    }

    /// The last comparison: every database stands at `seqno` with these rows.
    pub fn finish(&mut self, seqno: Seqno, databases: &[(usize, BTreeMap<u32, i64>)]) {
        for (slot, _) in databases {
            if self.recoveries() > 0 && !self.is_present(*slot) {
                let what = format!("node {slot} ends in an incarnation that is over");
                self.fire(Oracle::OneLine, what);
            }
        }
        let line = self.present();
        if seqno as usize != line.sequence.len() {
            let what = format!(
                "everybody stands at seqno {seqno}, but {} were delivered once",
                line.sequence.len()
            );
            return self.fire(Oracle::Dense, what);
        }
        let mut lost = Vec::new();
        for (txn, acked) in &line.acked {
            let place = line.txns.get(txn).copied();
            let same = acked.place.is_none_or(|p| Some(p.seqno) == place);
            if !same || !place.is_some_and(|s| line.passed(s)) {
                lost.push((*txn, *acked, place));
            }
        }
        let lost = lost.first().map(|(txn, acked, place)| {
            format!(
                "{} acknowledged transactions are lost; the first is {txn}, acknowledged on node {} \
                 at {:?}, now at {place:?}",
                lost.len(),
                acked.slot,
                acked.place
            )
        });
        let mut expected: BTreeMap<u32, i64> = BTreeMap::new();
        for key in line.sequence.iter().flat_map(|p| &p.keys) {
            *expected.entry(*key).or_default() += 1;
        }
        let mut first: Option<(usize, &BTreeMap<u32, i64>)> = None;
        let mut found: Vec<_> = lost
            .map(|w| (Oracle::Acknowledged, w))
            .into_iter()
            .collect();
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
mod tests;
