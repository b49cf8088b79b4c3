//! The index: who last passed with which key.
//!
//! ```text
//!  map     key hash -> Refs { last seqno per type, that of a second source }
//!  slots   one per seqno, from the lowest write set held on: its origin
//!  hashes  the keys of all slots in seqno order, for purging
//! ```

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};

use dromon_writeset::{KeyHash, KeyType, Seqno, Uuid};

use crate::matrix::{Rule, rule};

/// Says that no write set holds the key with that type; seqnos start at 1.
pub(crate) const NO_REF: Seqno = 0;

/// Capacity in keys below which the map is never shrunk.
const SHRINK_MIN: usize = 1 << 16;
/// Hashes below which those of no use are left where they are.
const HASHES_MIN: usize = 1 << 20;

/// Last references to one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refs {
    /// The last write set per key type.
    pub last: [Seqno; 4],
    /// The last SHARED, and the last EXCLUSIVE one, that another origin than
    /// that of `last` of this type has. Zero for the other types.
    pub other: Others,
}

/// See [`Refs::other`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Others {
    pub shared: Seqno,
    pub exclusive: Seqno,
}

impl Others {
    fn of(&mut self, key_type: KeyType) -> Option<&mut Seqno> {
        match key_type {
            KeyType::Shared => Some(&mut self.shared),
            KeyType::Exclusive => Some(&mut self.exclusive),
            KeyType::Reference | KeyType::Update => None,
        }
    }
}

impl Refs {
    fn is_empty(&self) -> bool {
        *self == Refs::default()
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Seqno> {
        self.last
            .iter_mut()
            .chain([&mut self.other.shared, &mut self.other.exclusive])
    }

    /// The four last ones, then the two others.
    pub fn all(&self) -> [Seqno; 6] {
        let [s, r, u, e] = self.last;
        [s, r, u, e, self.other.shared, self.other.exclusive]
    }

    /// Back from [`Self::all`].
    pub fn from_all([s, r, u, e, shared, exclusive]: [Seqno; 6]) -> Refs {
        Refs {
            last: [s, r, u, e],
            other: Others { shared, exclusive },
        }
    }
}

/// Where a write set came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub source: Uuid,
    pub trx_id: u64,
    pub conn_id: u64,
    pub toi: bool,
}

impl Origin {
    /// Whether the locks of `source` have ordered this one before its own.
    fn ordered_by(&self, source: Uuid) -> bool {
        !self.toi && self.source == source
    }

    /// Whether locks of one and the same node ordered the two.
    fn same(&self, other: &Origin) -> bool {
        self.toi == other.toi && (self.toi || self.source == other.source)
    }
}

/// One seqno of the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// None: the seqno carries no write set that passed.
    pub origin: Option<Origin>,
    /// How many of the index's hashes are this one's.
    keys: u32,
}

/// A reference that must not be overtaken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit {
    pub held_type: KeyType,
    pub seqno: Seqno,
    pub origin: Origin,
}

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    map: HashMap<MapKey, Refs, BuildHasherDefault<Identity>>,
    /// The first one is never empty.
    slots: VecDeque<Slot>,
    /// Seqno of the first slot.
    first: Seqno,
    hashes: VecDeque<KeyHash>,
    /// How many hashes were left when those that are of no use were last taken out.
    of_use: usize,
    held: usize,
}

impl Index {
    /// The lowest seqno whose write set is held.
    pub fn lowest(&self) -> Option<Seqno> {
        (!self.slots.is_empty()).then_some(self.first)
    }

    /// How many write sets are held.
    pub fn held(&self) -> usize {
        self.held
    }

    /// How many keys and prefixes are held.
    pub fn keys(&self) -> usize {
        self.map.len()
    }

    /// Memory in use, about, in bytes.
    pub fn memory(&self) -> usize {
        self.map.capacity() * (size_of::<(MapKey, Refs)>() + 1)
            + self.slots.capacity() * size_of::<Slot>()
            + self.hashes.capacity() * size_of::<KeyHash>()
    }

    /// Compares one key of a newcomer with the index: the highest reference it
    /// depends on ([`NO_REF`] if none), or the one it conflicts with.
    #[inline]
    pub fn test(
        &self,
        hash: KeyHash,
        new: KeyType,
        whole_table: bool,
        source: Uuid,
        last_seen: Seqno,
    ) -> Result<Seqno, Hit> {
        let Some(refs) = self.map.get(&MapKey::from(hash)) else {
            return Ok(NO_REF);
        };
        let mut depends = NO_REF;
        for held in KeyType::ALL.into_iter().rev() {
            let seqno = refs.last[held as usize];
            if seqno == NO_REF {
                continue;
            }
            let rule = if whole_table {
                Rule::Conflict
            } else {
                rule(held, new)
            };
            match rule {
                Rule::Free => continue,
                Rule::Depend => {}
                Rule::Conflict => {
                    let other = match held {
                        KeyType::Shared => refs.other.shared,
                        KeyType::Exclusive => refs.other.exclusive,
                        // Row locks ordered the source's own last one after it.
                        KeyType::Reference | KeyType::Update => NO_REF,
                    };
                    for seqno in [seqno, other] {
                        if seqno > last_seen
                            && let Some(origin) = self.origin(seqno)
                            && !origin.ordered_by(source)
                        {
                            return Err(Hit {
                                held_type: held,
                                seqno,
                                origin,
                            });
                        }
                    }
                }
            }
            depends = depends.max(seqno);
        }
        Ok(depends)
    }

    /// Takes in a write set that passed at `seqno`, above all before.
    pub fn install(
        &mut self,
        seqno: Seqno,
        origin: Origin,
        keys: impl ExactSizeIterator<Item = (KeyHash, KeyType)>,
    ) {
        if self.slots.is_empty() {
            self.first = seqno;
        }
        let count = keys.len() as u32;
        for (hash, key_type) in keys {
            self.hashes.push_back(hash);
            let refs = self.map.entry(hash.into()).or_default();
            let last = refs.last[key_type as usize];
            if last != NO_REF
                && last != seqno
                && let Some(other) = refs.other.of(key_type)
                && slot(&self.slots, self.first, last).is_some_and(|o| !o.same(&origin))
            {
                *other = last;
            }
            refs.last[key_type as usize] = seqno;
        }
        self.slots.push_back(Slot {
            origin: Some(origin),
            keys: count,
        });
        self.held += 1;
        if self.hashes.len() > HASHES_MIN.max(2 * self.of_use) {
            self.drop_useless();
        }
    }

    /// A key that many write sets name has a hash for each, and few references. Changes nothing but memory.
    fn drop_useless(&mut self) {
        let mut left = VecDeque::with_capacity(self.map.len());
        let mut hashes = self.hashes.iter();
        for (seqno, slot) in (self.first..).zip(&mut self.slots) {
            let before = left.len();
            let is_of_use = |hash: &&KeyHash| {
                let refs = self.map.get(&MapKey::from(**hash));
                refs.is_some_and(|refs| refs.all().contains(&seqno))
            };
            left.extend(hashes.by_ref().take(slot.keys as usize).filter(is_of_use));
            slot.keys = (left.len() - before) as u32;
        }
        (self.of_use, self.hashes) = (left.len(), left);
    }

    /// Notes that `seqno` carries no write set that passed.
    pub fn pass_over(&mut self) {
        if !self.slots.is_empty() {
            self.slots.push_back(Slot {
                origin: None,
                keys: 0,
            });
        }
    }

    /// Forgets all write sets up to `cut`.
    pub fn purge(&mut self, cut: Seqno) {
        while let Some(slot) = self.slots.front()
            && (self.first <= cut || slot.origin.is_none())
        {
            let seqno = self.first;
            self.held -= usize::from(slot.origin.is_some());
            for hash in self.hashes.drain(..slot.keys as usize) {
                let Entry::Occupied(mut held) = self.map.entry(MapKey::from(hash)) else {
                    continue;
                };
                let refs = held.get_mut();
                refs.all_mut()
                    .filter(|r| **r == seqno)
                    .for_each(|r| *r = NO_REF);
                if refs.is_empty() {
                    held.remove();
                }
            }
            self.slots.pop_front();
            self.first += 1;
        }
        self.of_use = self.of_use.min(self.hashes.len());
        // A burst's memory is given back once it is a small part of the whole.
        if self.map.capacity() > SHRINK_MIN && self.map.len() < self.map.capacity() / 8 {
            self.map.shrink_to(self.map.len() * 2);
            self.hashes.shrink_to(self.hashes.len() * 2);
            self.slots.shrink_to(self.slots.len() * 2);
        }
    }

    /// The last statement in total order isolation above `seqno`.
    pub fn toi_after(&self, seqno: Seqno) -> Option<Seqno> {
        let from = usize::try_from(seqno + 1 - self.first).unwrap_or(0);
        let range = from.min(self.slots.len())..;
        let at = self
            .slots
            .range(range)
            .rposition(|slot| slot.origin.is_some_and(|o| o.toi))?;
        Some(self.first + (from + at) as Seqno)
    }

    fn origin(&self, seqno: Seqno) -> Option<Origin> {
        slot(&self.slots, self.first, seqno)
    }

    /// All slots from [`Self::lowest`] on.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = Option<Origin>> {
        self.slots.iter().map(|s| s.origin)
    }

    /// All keys, in no order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (KeyHash, Refs)> {
        self.map.iter().map(|(k, r)| (KeyHash::from(*k), *r))
    }

    /// Puts an index together again; None if the parts do not fit each other.
    pub fn restore(
        first: Seqno,
        origins: Vec<Option<Origin>>,
        entries: Vec<(KeyHash, Refs)>,
    ) -> Option<Index> {
        if origins.first().is_some_and(Option::is_none) {
            return None;
        }
        let mut index = Index {
            first,
            held: origins.iter().flatten().count(),
            slots: origins
                .into_iter()
                .map(|origin| Slot { origin, keys: 0 })
                .collect(),
            ..Index::default()
        };
        let mut uses = Vec::with_capacity(entries.len());
        for (hash, refs) in &entries {
            let mut seqnos = refs.all();
            seqnos.sort_unstable();
            let mut before = NO_REF;
            for seqno in seqnos {
                if seqno != before {
                    index.origin(seqno)?;
                    uses.push((seqno, *hash));
                    before = seqno;
                }
            }
        }
        uses.sort_unstable();
        for (seqno, hash) in uses {
            index.slots[(seqno - first) as usize].keys += 1;
            index.hashes.push_back(hash);
        }
        index.map = entries.into_iter().map(|(h, r)| (h.into(), r)).collect();
        Some(index)
    }
}

#[inline]
fn slot(slots: &VecDeque<Slot>, first: Seqno, seqno: Seqno) -> Option<Origin> {
    let at = usize::try_from(seqno.checked_sub(first)?).ok()?;
    slots.get(at)?.origin
}

/// A [`KeyHash`] in two halves: a bucket of 64 bytes, without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MapKey {
    low: u64,
    high: u64,
}

impl From<KeyHash> for MapKey {
    fn from(h: KeyHash) -> Self {
        MapKey {
            low: h.0 as u64,
            high: (h.0 >> 64) as u64,
        }
    }
}

impl From<MapKey> for KeyHash {
    fn from(k: MapKey) -> Self {
        KeyHash(u128::from(k.high) << 64 | u128::from(k.low))
    }
}

impl Hash for MapKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.low);
    }
}

/// The key is a hash already.
#[derive(Clone, Copy, Debug, Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*b);
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
