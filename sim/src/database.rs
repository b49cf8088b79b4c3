//! The toy database: counters in memory, and an image of them on a disk that
//! is written now and then.
//!
//! It takes write sets in commit order, one seqno after the other, and folds
//! everything it does into a chain of hashes: two databases with the same chain
//! have gone through the same states.

use std::collections::BTreeMap;

use dromon_node::Position;
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
}

impl Image {
    /// No data.
    pub const NONE: Image = Image {
        position: Position::UNDEFINED,
        rows: BTreeMap::new(),
        chain: 0,
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

    fn mix(&mut self, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.chain = XxHash3_64::oneshot_with_seed(self.chain, &bytes);
    }
}

/// One node's database: what it holds, and what of it would survive a crash.
#[derive(Clone, Debug)]
pub struct Database {
    /// As the node sees it.
    pub now: Image,
    durable: Image,
}

impl Default for Database {
    fn default() -> Self {
        Database {
            now: Image::NONE,
            durable: Image::NONE,
        }
    }
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
    }

    /// The disk is empty, or what is on it is not to be used.
    pub fn erase(&mut self) {
        *self = Database::default();
    }

    /// A copy came from another node.
    pub fn replace(&mut self, image: Image) {
        self.now = image;
        self.flush();
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
