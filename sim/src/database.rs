//! The toy database: counters in memory, and an image of them on a disk that
//! is written now and then.
//!
//! It takes write sets in commit order, one seqno after the other, and folds
//! everything it does into a chain of hashes: two databases with the same chain
//! have gone through the same states.
//!
//! Chunks of large transactions lie beside the counters, unseen, until their
//! transaction commits or is rolled back. They are part of the image, as a
//! server's are of its log of streaming transactions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use dromon_node::Position;
use dromon_node::lacking::{Lacking, LackingFile};
use dromon_writeset::{Seqno, Uuid};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

/// What a transaction does to one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Writes `seen + 1`, having read `seen`.
    Bump {
        /// Which counter.
        key: u32,
        /// Its value when the transaction read it.
        seen: i64,
    },
    /// Adds one to whatever is there: a statement that every node runs itself.
    Add {
        /// Which counter.
        key: u32,
    },
}

impl Op {
    /// The counter.
    pub fn key(&self) -> u32 {
        match *self {
            Op::Bump { key, .. } | Op::Add { key } => key,
        }
    }
}

/// The payload of a write set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Txn {
    /// Unique in the whole run.
    pub id: u64,
    /// What it does.
    pub ops: Vec<Op>,
    /// Makes some write sets large.
    pub filler: Vec<u8>,
}

/// A transaction overwrote a value it had not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostUpdate {
    /// Which counter.
    pub key: u32,
    /// What the transaction had read.
    pub seen: i64,
    /// What was there.
    pub found: i64,
}

/// Everything a database holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Of which history, and up to where.
    pub position: Position,
    /// The counters that were ever touched.
    pub rows: BTreeMap<u32, i64>,
    /// Hash over all that was done.
    pub chain: u64,
    /// What is not committed, by the seqno of its first chunk.
    pub uncommitted: BTreeMap<Seqno, Uncommitted>,
}

/// What a database has of a large transaction that is not over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uncommitted {
    /// The member that it came from.
    pub source: Uuid,
    /// Which one it is.
    pub txn: u64,
    /// What its chunks do.
    pub ops: Vec<Op>,
}

impl Image {
    /// No data.
    pub const NONE: Image = Image {
        position: Position::UNDEFINED,
        rows: BTreeMap::new(),
        chain: 0,
        uncommitted: BTreeMap::new(),
    };

    /// The empty database in which `history` begins.
    pub fn genesis(history: Uuid) -> Image {
        Image {
            position: Position { history, seqno: 0 },
            ..Image::NONE
        }
    }

    /// The data of another cluster at `seqno`.
    pub fn foreign(seed: u64, seqno: Seqno) -> Image {
        let mut history = Uuid::NIL;
        history.0[..8].copy_from_slice(&(seed | 1).to_le_bytes());
        Image {
            position: Position { history, seqno },
            rows: BTreeMap::from([(0, 1_000_000)]),
            chain: seed,
            ..Image::NONE
        }
    }

    /// `seqno` has nothing for the database but its number.
    pub fn pass(&mut self, seqno: Seqno) {
        assert_eq!(
            seqno,
            self.position.seqno + 1,
            "the database was given {seqno} out of turn"
        );
        self.position.seqno = seqno;
        self.mix(&[seqno as u64]);
    }

    /// Carries out a transaction at `seqno`.
    pub fn commit(&mut self, seqno: Seqno, txn: &Txn) -> Result<(), LostUpdate> {
        self.pass(seqno);
        let mut lost = Ok(());
        for op in &txn.ops {
            let found = self.rows.get(&op.key()).copied().unwrap_or(0);
            let value = match *op {
                Op::Bump { key, seen } => {
                    if seen != found {
                        lost = Err(LostUpdate { key, seen, found });
                    }
                    seen + 1
                }
                Op::Add { .. } => found + 1,
            };
            self.rows.insert(op.key(), value);
            self.mix(&[txn.id, u64::from(op.key()), found as u64, value as u64]);
        }
        lost
    }

    /// Applies a chunk of the large transaction `id` at `seqno`: nobody sees it.
    pub fn chunk(&mut self, seqno: Seqno, id: Seqno, source: Uuid, rows: &[(u64, Op)]) {
        self.pass(seqno);
        let all = self.uncommitted.entry(id).or_default();
        all.source = source;
        for (txn, op) in rows {
            all.txn = *txn;
            all.ops.push(*op);
        }
    }

    /// Commits at `seqno` what is there of the large transaction `id`; answers
    /// which transaction that is, too.
    pub fn end(&mut self, seqno: Seqno, id: Seqno) -> (u64, Result<(), LostUpdate>) {
        let all = self.uncommitted.remove(&id).unwrap_or_default();
        let txn = Txn {
            id: all.txn,
            ops: all.ops,
            filler: Vec::new(),
        };
        (txn.id, self.commit(seqno, &txn))
    }

    fn mix(&mut self, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.chain = XxHash3_64::oneshot_with_seed(self.chain, &bytes);
    }
}

/// One node's database: what it holds, and what of it would survive a crash.
#[derive(Debug)]
pub struct Database {
    /// As the node sees it.
    pub now: Image,
    durable: Image,
    /// What it must not be given in chunks.
    lacking: Lacking,
    /// What may be noted in that.
    named: BTreeSet<(Uuid, Seqno)>,
    /// What is in the file with these notes.
    file: BTreeSet<(Uuid, Seqno)>,
}

impl Default for Database {
    fn default() -> Self {
        Database {
            now: Image::NONE,
            durable: Image::NONE,
            lacking: notes(&BTreeSet::new()),
            named: BTreeSet::new(),
            file: BTreeSet::new(),
        }
    }
}

/// The node's own notes as it reads them from a file with just `file`.
fn notes(file: &BTreeSet<(Uuid, Seqno)>) -> Lacking {
    // There is no such directory, and so no file in it.
    let (_, mut lacking) = LackingFile::open(Path::new("/nonexistent"))
        .unwrap_or_else(|e| panic!("a file that is not there: {e}"));
    for (history, id) in file {
        lacking.add(*history, *id);
    }
    if let Some(all) = lacking.unwritten(Seqno::MIN) {
        lacking.written(all);
    }
    lacking
}

impl Database {
    /// Writes everything to the disk.
    pub fn flush(&mut self) {
        self.durable.clone_from(&self.now);
    }

    /// The last seqno that a crash would leave; -1 if there is no data.
    pub fn durable(&self) -> Seqno {
        self.durable.position.seqno
    }

    /// The process dies.
    pub fn crash(&mut self) {
        self.now.clone_from(&self.durable);
        self.lacking = notes(&self.file);
        self.named.clone_from(&self.file);
    }

    /// What is on the disk is not to be used.
    pub fn erase(&mut self) {
        (self.now, self.durable) = (Image::NONE, Image::NONE);
    }

    /// A copy came from another node.
    pub fn replace(&mut self, image: Image) {
        self.now = image;
        self.flush();
        self.lacking.clear();
        self.write_notes();
    }

    /// It is not given the chunks of the large transaction `id`. Not durable yet.
    pub fn lacks(&mut self, history: Uuid, id: Seqno) {
        self.lacking.add(history, id);
        self.named.insert((history, id));
    }

    /// Whether it gets the large transaction `id` whole.
    pub fn is_lacking(&self, history: Uuid, id: Seqno) -> bool {
        self.lacking.contains(history, id)
    }

    /// See [`Lacking::over_but`].
    pub fn over_but(&mut self, open: &[Seqno], seqno: Seqno) {
        self.lacking.over_but(open, seqno);
    }

    /// See [`Lacking::lacks_at`].
    pub fn lacks_at(&self, position: Position, is_open: impl Fn(Seqno) -> bool) -> bool {
        self.lacking.lacks_at(position, is_open)
    }

    /// Makes the notes on what it lacks durable.
    pub fn write_notes(&mut self) {
        let Some(all) = self.lacking.unwritten(self.durable()) else {
            return;
        };
        let lacking = &self.lacking;
        self.named.retain(|(h, id)| lacking.contains(*h, *id));
        self.file.clone_from(&self.named);
        self.lacking.written(all);
    }

    /// The server throws away what it has of the large transaction `id`, once
    /// that is noted: at once on its disk too, if `durably`. For the rest see
    /// [`Lacking::thrown_away`].
    pub fn throw_away(
        &mut self,
        history: Uuid,
        id: Seqno,
        is_open: bool,
        delivered: Seqno,
        durably: bool,
    ) {
        (self.lacking).thrown_away(history, id, is_open, delivered, delivered);
        self.named.insert((history, id));
        self.write_notes();
        self.now.uncommitted.remove(&id);
        if durably {
            self.durable.uncommitted.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bump(id: u64, key: u32, seen: i64) -> Txn {
        Txn {
            id,
            ops: vec![Op::Bump { key, seen }],
            filler: Vec::new(),
        }
    }

    #[test]
    fn a_crash_takes_what_was_not_flushed() {
        let mut db = Database::default();
        db.replace(Image::genesis(Uuid([1; 16])));
        assert_eq!(db.now.commit(1, &bump(1, 5, 0)), Ok(()));
        db.flush();
        assert_eq!(db.now.commit(2, &bump(2, 5, 1)), Ok(()));
        let after_two = db.now.clone();
        db.crash();
        assert_eq!((db.durable(), db.now.rows[&5]), (1, 1));
        assert_eq!(db.now.commit(2, &bump(2, 5, 1)), Ok(()));
        assert_eq!(db.now, after_two, "done again it is the same");
    }

    #[test]
    fn chunks_are_unseen_survive_with_the_position_and_make_the_same_state() {
        let whole = Txn {
            id: 9,
            ops: vec![Op::Bump { key: 1, seen: 0 }, Op::Bump { key: 2, seen: 0 }],
            filler: Vec::new(),
        };
        let history = Uuid([1; 16]);
        let mut db = Database::default();
        db.replace(Image::genesis(history));
        let mut origin = db.now.clone();
        db.now.chunk(1, 1, Uuid([2; 16]), &[(9, whole.ops[0])]);
        db.flush();
        db.now.chunk(2, 1, Uuid([2; 16]), &[(9, whole.ops[1])]);
        assert!(db.now.rows.is_empty());
        db.crash();
        db.now.chunk(2, 1, Uuid([2; 16]), &[(9, whole.ops[1])]);
        assert_eq!(db.now.end(3, 1), (9, Ok(())));
        origin.pass(1);
        origin.pass(2);
        assert_eq!(origin.commit(3, &whole), Ok(()));
        assert_eq!(db.now, origin);
    }

    #[test]
    fn notes_on_what_is_lacking_survive_if_they_are_written() {
        let history = Uuid([1; 16]);
        let mut db = Database::default();
        db.replace(Image::genesis(history));
        db.lacks(history, 5);
        db.crash();
        assert!(!db.is_lacking(history, 5));
        db.lacks(history, 5);
        db.write_notes();
        db.lacks(history, 7);
        db.crash();
        assert!(db.is_lacking(history, 5) && !db.is_lacking(history, 7));
        db.replace(Image::genesis(history));
        db.crash();
        assert!(!db.is_lacking(history, 5));
    }

    #[test]
    fn overwriting_the_unseen_is_noticed_and_changes_the_chain() {
        let mut a = Image::genesis(Uuid([1; 16]));
        let mut b = a.clone();
        assert_eq!(a.commit(1, &bump(1, 5, 0)), Ok(()));
        b.pass(1);
        assert_ne!(a.chain, b.chain);
        assert_eq!(
            a.commit(2, &bump(2, 5, 0)),
            Err(LostUpdate {
                key: 5,
                seen: 0,
                found: 1
            })
        );
    }
}
