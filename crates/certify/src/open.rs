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

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU8;

use dromon_writeset::{KeyHash, KeyType, Seqno, Uuid};

use crate::index::{Hit, Origin};
use crate::matrix::{Rule, rule};

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenSets {
    sets: BTreeMap<Seqno, OpenSet>,
    /// For each key: who holds it.
    holders: HashMap<KeyHash, Holders>,
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

/// Who holds a key: its seqno, and the types with which it does (a bit each, and never none, so that
/// [`Holders`] take no more room).
type Holder = (Seqno, NonZeroU8);

fn bit(key_type: KeyType) -> NonZeroU8 {
    NonZeroU8::MIN.saturating_add((1 << key_type as u8) - 1)
}

/// All who hold a key, oldest first: mostly one, of millions of keys.
#[derive(Clone, Debug)]
enum Holders {
    One(Holder),
    /// Boxed, so that a key takes no more room than one of them needs.
    #[expect(
        clippy::box_collection,
        reason = "a vector itself takes more than one holder does"
    )]
    More(Box<Vec<Holder>>),
}

impl Holders {
    fn add(&mut self, id: Seqno, bit: NonZeroU8) {
        let all = match self {
            Holders::One(holder) => std::slice::from_mut(holder),
            Holders::More(all) => all.as_mut_slice(),
        };
        if let Some((_, types)) = all.iter_mut().find(|(holder, _)| *holder == id) {
            *types |= bit;
            return;
        }
        match self {
            Holders::One(holder) => *self = Holders::More(Box::new(vec![*holder, (id, bit)])),
            Holders::More(all) => all.push((id, bit)),
        }
    }

    /// True: nobody is left.
    fn remove(&mut self, id: Seqno) -> bool {
        match self {
            Holders::One((holder, _)) => *holder == id,
            Holders::More(all) => {
                all.retain(|(holder, _)| *holder != id);
                if let [only] = all[..] {
                    *self = Holders::One(only);
                }
                false
            }
        }
    }

    fn all(&self) -> &[Holder] {
        match self {
            Holders::One(holder) => std::slice::from_ref(holder),
            Holders::More(all) => all,
        }
    }
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
            let bit = bit(*key_type);
            self.holders
                .entry(*hash)
                .and_modify(|holders| holders.add(id, bit))
                .or_insert(Holders::One((id, bit)));
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
            if let Entry::Occupied(mut held) = self.holders.entry(*hash)
                && held.get_mut().remove(id)
            {
                held.remove();
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
        let holders = self.holders.get(&hash).map_or(&[][..], Holders::all);
        holders.iter().filter_map(move |(id, types)| {
            let held_type = KeyType::ALL.into_iter().rev().find(|held| {
                types.get() & bit(*held).get() != 0
                    && (whole_table || rule(*held, new) != Rule::Free)
            })?;
            Some(Hit {
                held_type,
                seqno: *id,
                origin: self.sets.get(id)?.origin,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(n: u8, keys: &[(u8, KeyType)]) -> OpenSet {
        OpenSet {
            origin: Origin {
                source: Uuid([n; 16]),
                trx_id: 1,
                conn_id: 1,
                toi: false,
            },
            keys: keys.iter().map(|(key, t)| (hash(*key), *t)).collect(),
            tables: None,
            closes: Vec::new(),
        }
    }

    fn hash(key: u8) -> KeyHash {
        KeyHash(key.into())
    }

    #[test]
    fn a_key_takes_as_much_room_as_one_who_holds_it() {
        assert_eq!(size_of::<Holders>(), size_of::<Holder>());
    }

    #[test]
    fn a_key_is_held_until_the_last_one_ends_and_the_oldest_comes_first() {
        let mut open = OpenSets::default();
        let write = KeyType::Exclusive;
        open.insert(
            5,
            set(5, &[(1, KeyType::Shared), (1, KeyType::Update), (2, write)]),
        );
        open.insert(7, set(7, &[(1, KeyType::Shared)]));
        open.insert(9, set(9, &[(1, KeyType::Shared), (3, write)]));
        let held = |open: &OpenSets, key| open.met_by(hash(key), write).collect::<Vec<_>>();
        assert_eq!(held(&open, 1), [5, 7, 9]);
        assert_eq!((held(&open, 2), held(&open, 3)), (vec![5], vec![9]));
        // With the strongest of its types.
        let meets = |n: u8| open.meets(hash(1), write, false, Uuid([n; 16]));
        assert_eq!(
            meets(7).map(|hit| (hit.seqno, hit.held_type)),
            Some((5, KeyType::Update))
        );
        assert_eq!(meets(5).map(|hit| hit.seqno), Some(7));
        assert!(open.remove(7).is_some());
        assert_eq!(held(&open, 1), [5, 9]);
        assert!(open.remove(5).is_some());
        assert_eq!((held(&open, 1), held(&open, 2)), (vec![9], vec![]));
        assert_eq!(open.keys(), 2);
        open.insert(11, set(11, &[(1, KeyType::Shared)]));
        assert_eq!(held(&open, 1), [9, 11]);
        assert!(open.remove(9).is_some());
        assert_eq!((held(&open, 1), open.keys()), (vec![11], 1));
        assert!(open.remove(11).is_some());
        assert_eq!((open.keys(), open.is_empty()), (0, true));
    }
}
