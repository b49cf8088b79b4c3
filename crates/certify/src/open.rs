//! Large write sets that passed and are being applied in chunks: until the last
//! chunk has its place nobody else may touch what they touch.
//!
//! A chunk that comes later would overwrite what another transaction changed
//! meanwhile, and nobody can wait for a chunk that comes after itself. So any
//! relation but "free" fails, whatever the newcomer has seen. A newcomer from the
//! same node met the same row locks: it cannot touch the same rows.
//!
//! One that inserts into or deletes from a unique index other than the primary one
//! locks neighbours of its rows too, which no key names, and where it is applied
//! not the same ones as at home. One that changes rows which no index finds is applied by
//! scans, which wait at all rows that others hold. Such a one closes its tables: nobody at all may change
//! anything in them. To look at rows there (foreign keys) is free. The end of a streaming
//! transaction names what it changed before, as if it only looked: a node that has set it
//! aside applies all of it there, and would wait for the locks of what ends behind it. So
//! it fails, too.

use std::collections::{BTreeMap, HashMap};

use dromon_writeset::{KeyHash, KeyType, Seqno, Uuid};

use crate::index::{Hit, Origin};
use crate::matrix::{Rule, rule};

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenSets {
    sets: BTreeMap<Seqno, OpenSet>,
    /// For each key: who holds it, with which types (a bit each).
    holders: HashMap<KeyHash, Vec<(Seqno, u8)>>,
    /// For each closed table: who closed it.
    closed: HashMap<KeyHash, Seqno>,
}

#[derive(Clone, Debug)]
pub(crate) struct OpenSet {
    pub origin: Origin,
    pub keys: Vec<(KeyHash, KeyType)>,
    /// What the index gets at its end, if not these.
    pub tables: Option<Vec<(KeyHash, KeyType)>>,
    /// Tables that it closes.
    pub closes: Vec<KeyHash>,
}

impl OpenSets {
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// Seqnos at which the open ones were certified.
    pub fn ids(&self) -> impl Iterator<Item = Seqno> {
        self.sets.keys().copied()
    }

    /// Keys held.
    pub fn keys(&self) -> usize {
        self.holders.len()
    }

    pub fn insert(&mut self, id: Seqno, set: OpenSet) {
        for (hash, key_type) in &set.keys {
            let holders = self.holders.entry(*hash).or_default();
            let bit = 1 << *key_type as u8;
            match holders.iter_mut().find(|(holder, _)| *holder == id) {
                Some((_, types)) => *types |= bit,
                None => holders.push((id, bit)),
            }
        }
        for table in &set.closes {
            // Whoever closed it before, nobody else opens one there.
            let before = self.closed.insert(*table, id);
            debug_assert!(before.is_none(), "a closed table was closed again");
        }
        self.sets.insert(id, set);
    }

    pub fn remove(&mut self, id: Seqno) -> Option<OpenSet> {
        let set = self.sets.remove(&id)?;
        for (hash, _) in &set.keys {
            if let Some(holders) = self.holders.get_mut(hash) {
                holders.retain(|(holder, _)| *holder != id);
                if holders.is_empty() {
                    self.holders.remove(hash);
                }
            }
        }
        for table in &set.closes {
            self.closed.remove(table);
        }
        if self.sets.is_empty() {
            // A huge one must not pin its memory.
            self.holders = HashMap::new();
        }
        Some(set)
    }

    /// The tables that `id` closes.
    pub fn closes(&self, id: Seqno) -> &[KeyHash] {
        self.sets.get(&id).map_or(&[], |set| &set.closes)
    }

    /// Who closed `table`, in which a newcomer changes something, wherever that
    /// comes from.
    pub fn closed_by(&self, table: KeyHash) -> Option<Hit> {
        let seqno = *self.closed.get(&table)?;
        Some(Hit {
            held_type: KeyType::Exclusive,
            seqno,
            origin: self.sets.get(&seqno)?.origin,
        })
    }

    /// The lowest open one that `source` did not send and that a key of a newcomer
    /// from there meets.
    pub fn meets(
        &self,
        hash: KeyHash,
        new: KeyType,
        whole_table: bool,
        source: Uuid,
    ) -> Option<Hit> {
        let all = self.related(hash, new, whole_table);
        all.filter(|hit| hit.origin.source != source)
            .min_by_key(|hit| hit.seqno)
    }

    /// The open ones, whoever sent them, that a key of a DDL meets.
    pub fn met_by(&self, hash: KeyHash, new: KeyType) -> impl Iterator<Item = Seqno> {
        self.related(hash, new, false).map(|hit| hit.seqno)
    }

    fn related(&self, hash: KeyHash, new: KeyType, whole_table: bool) -> impl Iterator<Item = Hit> {
        let holders = self.holders.get(&hash).map_or(&[][..], Vec::as_slice);
        holders.iter().filter_map(move |(id, types)| {
            let held_type = KeyType::ALL.into_iter().rev().find(|held| {
                types & (1 << *held as u8) != 0 && (whole_table || rule(*held, new) != Rule::Free)
            })?;
            Some(Hit {
                held_type,
                seqno: *id,
                origin: self.sets.get(id)?.origin,
            })
        })
    }
}
