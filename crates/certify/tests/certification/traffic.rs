//! Write sets for the tests: described, then made as the wire carries them.

use std::collections::{BTreeMap, BTreeSet};

use dromon_writeset::{Flags, Header, KeyCollector, KeyType, Seqno, Uuid, WriteSet, encode};
use proptest::prelude::*;

/// Row keys on one table above which they become one key.
pub const ESCALATION: usize = 4;

pub const PLAIN: Flags = Flags::from_bits(0x41);
pub const PA_UNSAFE: Flags = Flags::from_bits(0x49);
pub const TOI: Flags = Flags::from_bits(0x45);
pub const ROLLBACK: Flags = Flags::from_bits(0x0a);
pub const IMPLICIT: Flags = Flags::from_bits(0x241);

pub type Path = Vec<Vec<u8>>;

/// A write set before it has its place.
#[derive(Clone, Debug)]
pub struct Spec {
    pub flags: Flags,
    pub source: u8,
    pub last_seen: Seqno,
    pub prev_fragment: Seqno,
    pub keys: Vec<(Path, KeyType)>,
}

impl Spec {
    pub fn plain(source: u8, last_seen: Seqno) -> Spec {
        Spec {
            flags: PLAIN,
            source,
            last_seen,
            prev_fragment: -1,
            keys: Vec::new(),
        }
    }

    pub fn with(mut self, parts: &[&str], key_type: KeyType) -> Spec {
        self.keys.push((
            parts.iter().map(|p| p.as_bytes().to_vec()).collect(),
            key_type,
        ));
        self
    }

    pub fn flags(mut self, flags: Flags) -> Spec {
        self.flags = flags;
        self
    }

    pub fn source(&self) -> Uuid {
        Uuid([self.source + 1; 16])
    }

    /// Through the collector, the encoder and the decoder.
    pub fn make(&self, seqno: Seqno) -> WriteSet {
        let mut keys = KeyCollector::with_escalation(ESCALATION);
        for (path, key_type) in &self.keys {
            let parts: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
            keys.add(&parts, *key_type).expect("the key has parts");
        }
        let header = Header {
            flags: self.flags,
            source: self.source(),
            trx_id: 1000 + seqno as u64,
            conn_id: 2000 + seqno as u64,
            last_seen: self.last_seen,
            prev_fragment: self.prev_fragment,
            chunk: 0,
        };
        WriteSet::decode(encode(&header, &keys, b"payload")).expect("just encoded")
    }

    /// How many keys travel, worked out apart from the collector.
    pub fn key_count(&self) -> usize {
        let keys = self.expanded();
        let full: BTreeSet<&Path> = keys.iter().filter(|k| !k.prefix).map(|k| &k.path).collect();
        let is_changed = |k: &NaiveKey| {
            let mut below = self
                .keys
                .iter()
                .filter(|(path, _)| path.starts_with(&k.path));
            below.any(|(_, t)| t.changes())
        };
        // Of a whole table that is only looked at a row says so.
        let looked_at = keys.iter().filter(|k| k.whole_table && !is_changed(k));
        full.len() + looked_at.count()
    }

    /// What the keys mean, worked out apart from the collector: full keys with
    /// the strongest type, the tables that stand for all their rows, prefixes.
    pub fn expanded(&self) -> Vec<NaiveKey> {
        let mut full: BTreeMap<Path, KeyType> = BTreeMap::new();
        for (path, t) in &self.keys {
            let e = full.entry(path.clone()).or_insert(*t);
            *e = (*e).max(*t);
        }
        let mut rows: BTreeMap<Path, usize> = BTreeMap::new();
        for path in full.keys().filter(|p| p.len() > 2) {
            *rows.entry(path[..2].to_vec()).or_default() += 1;
        }
        let whole: Vec<Path> = rows
            .into_iter()
            .filter(|(_, n)| *n > ESCALATION)
            .map(|(t, _)| t)
            .collect();
        full.retain(|path, _| !whole.iter().any(|t| path.starts_with(t)));

        let naive = |path: &[Vec<u8>], key_type, whole_table| NaiveKey {
            path: path.to_vec(),
            key_type,
            whole_table,
            prefix: false,
        };
        let prefix = |path: &[Vec<u8>]| NaiveKey {
            prefix: true,
            ..naive(path, KeyType::Shared, false)
        };
        let mut out: Vec<NaiveKey> = Vec::new();
        for (path, t) in &full {
            out.extend((1..path.len()).map(|n| prefix(&path[..n])));
            let toi = self.flags.is_toi();
            out.push(naive(
                path,
                if toi { KeyType::Exclusive } else { *t },
                false,
            ));
        }
        for table in &whole {
            out.push(prefix(&table[..1]));
            out.push(naive(table, KeyType::Exclusive, true));
        }
        out
    }
}

/// A key or prefix as the model sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NaiveKey {
    pub path: Path,
    pub key_type: KeyType,
    pub whole_table: bool,
    pub prefix: bool,
}

/// One event of the total order, with `last_seen` still relative.
#[derive(Clone, Debug)]
pub enum Event {
    /// `lag` 0: the origin had released everything before.
    WriteSet {
        spec: Spec,
        lag: Seqno,
        fragment: Option<Seqno>,
    },
    View,
    Skip,
    /// A cut at this many percent of the history (or of what is safe).
    Cut(u8),
}

fn path() -> impl Strategy<Value = Path> {
    // Few enough that keys meet, with every depth and a key that travels hashed.
    let db = (0u8..2).prop_map(|n| vec![b'd', n]);
    let table = (0u8..2).prop_map(|n| vec![b't', n]);
    let row = (0u8..6).prop_map(|n| if n == 5 { vec![n; 30] } else { vec![0, n] });
    prop_oneof![
        1 => db.clone().prop_map(|d| vec![d]),
        3 => (db.clone(), table.clone()).prop_map(|(d, t)| vec![d, t]),
        14 => (db.clone(), table.clone(), row.clone()).prop_map(|(d, t, r)| vec![d, t, r]),
        1 => (db, table, row.clone(), row).prop_map(|(d, t, r, s)| vec![d, t, r, s]),
    ]
}

fn spec() -> impl Strategy<Value = (Spec, Option<Seqno>)> {
    let flags = prop_oneof![
        20 => Just(PLAIN),
        2 => Just(PA_UNSAFE),
        1 => Just(IMPLICIT),
        2 => Just(TOI),
        1 => Just(ROLLBACK),
        1 => Just(Flags::TRX_START),
        3 => Just(Flags::NONE),
        1 => Just(Flags::TRX_END | Flags::PA_UNSAFE),
    ];
    let key_type = (0usize..4).prop_map(|t| KeyType::ALL[t]);
    let few = prop::collection::vec((path(), key_type.clone()), 0..4);
    let many = prop::collection::vec((path(), key_type), 8..30);
    let keys = prop_oneof![12 => few, 1 => many];
    (flags, 0u8..3, keys, 0i64..6).prop_map(|(flags, source, mut keys, prev)| {
        if flags.is_rollback() {
            keys.clear();
        }
        let fragment = flags.is_followup_fragment().then_some(prev);
        (
            Spec {
                flags,
                source,
                last_seen: 0,
                prev_fragment: -1,
                keys,
            },
            fragment,
        )
    })
}

/// How many keys of a write set are listed: mostly all of them.
pub fn listed_max() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(usize::MAX), 1 => 0usize..12]
}

/// A total order of up to `len` events.
pub fn events(len: usize) -> impl Strategy<Value = Vec<Event>> {
    let lag = prop_oneof![4 => 0i64..8, 1 => 0i64..40, 1 => -2i64..1];
    let event = prop_oneof![
        24 => (spec(), lag)
            .prop_map(|((spec, fragment), lag)| Event::WriteSet { spec, lag, fragment }),
        1 => Just(Event::View),
        1 => Just(Event::Skip),
        2 => (0u8..=100).prop_map(Event::Cut),
    ];
    prop::collection::vec(event, 1..len)
}

/// One event with its place; a cut has none.
#[derive(Clone, Debug)]
pub enum Placed {
    WriteSet(Seqno, Spec),
    View(Seqno),
    Skip(Seqno),
    Cut(Seqno),
}

/// Gives every event its seqno, from `start` + 1 on, and makes `last_seen`
/// absolute. A cut lies anywhere up to the present.
pub fn place(events: Vec<Event>, start: Seqno) -> Vec<Placed> {
    let mut at = start;
    events
        .into_iter()
        .map(|event| match event {
            Event::WriteSet {
                mut spec,
                lag,
                fragment,
            } => {
                at += 1;
                spec.last_seen = (at - 1 - lag).max(-1);
                if let Some(back) = fragment {
                    spec.prev_fragment = spec.last_seen - back;
                }
                Placed::WriteSet(at, spec)
            }
            Event::View => {
                at += 1;
                Placed::View(at)
            }
            Event::Skip => {
                at += 1;
                Placed::Skip(at)
            }
            Event::Cut(percent) => Placed::Cut(at * Seqno::from(percent) / 100),
        })
        .collect()
}

/// Lowers every cut to what the contract allows: nothing still in flight has
/// seen less.
pub fn make_cuts_safe(order: &mut [Placed]) {
    let mut min_last_seen = Seqno::MAX;
    for placed in order.iter_mut().rev() {
        match placed {
            Placed::WriteSet(_, spec) => min_last_seen = min_last_seen.min(spec.last_seen),
            Placed::Cut(cut) => *cut = (*cut).min(min_last_seen),
            Placed::View(_) | Placed::Skip(_) => {}
        }
    }
}
