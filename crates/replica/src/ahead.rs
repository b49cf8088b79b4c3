//! What is applied beyond a position. Without I/O.
//!
//! ```text
//!   position            ahead
//!   ──────────────┬───┬────┬───┬────
//!    all applied  │   │####│   │####      units that committed before an earlier one
//!   ──────────────┴───┴────┴───┴────
//! ```
//!
//! Where commits are not one after the other, each writes what it is, and up to where all before
//! it were confirmed, into a slot: unit n into slot n modulo [`SLOTS`]. So a slot is written over
//! only when what stood in it is confirmed, with all before it, which is what the new one says.
//! After a crash the slots tell exactly what is there, see [`recover`].

use std::fmt;
use std::str::FromStr;

use dromon_binlog::{Gtid, Position};

/// A unit may commit when the one so many before it was confirmed, with all before that.
pub const SLOTS: u64 = 256;

/// Transactions of a domain that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// Of this domain.
    pub domain: u32,
    /// Behind this sequence number.
    pub after: u64,
    /// Up to this one.
    pub last: u64,
}

/// Transactions beyond a position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ahead(Vec<Span>);

/// No such list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no list of transactions, such as 0:17-19,1:3-4")]
pub struct ParseAheadError(String);

impl Ahead {
    /// Those that lead from one position to a later one, by what each has of the domains of the
    /// transactions.
    pub fn between(before: &Position, gtids: impl IntoIterator<Item = Gtid>) -> Ahead {
        let mut spans: Vec<Span> = Vec::new();
        for gtid in gtids {
            match spans.iter_mut().find(|span| span.domain == gtid.domain) {
                Some(span) => span.last = gtid.seqno,
                None => spans.push(Span {
                    domain: gtid.domain,
                    after: before.get(gtid.domain).map_or(0, |last| last.seqno),
                    last: gtid.seqno,
                }),
            }
        }
        Ahead(spans)
    }

    /// Whether this transaction is one of them.
    pub fn has(&self, gtid: Gtid) -> bool {
        self.0
            .iter()
            .any(|s| s.domain == gtid.domain && s.after < gtid.seqno && gtid.seqno <= s.last)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These, too.
    pub fn add(&mut self, more: &Ahead) {
        self.0.extend(&more.0);
        self.0.sort_unstable();
        self.0.dedup();
    }

    /// Without those that a position has.
    pub fn beyond(&mut self, position: &Position) {
        self.0.retain(|span| {
            position
                .get(span.domain)
                .is_none_or(|last| last.seqno < span.last)
        });
    }
}

impl fmt::Display for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, span) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            write!(f, "{comma}{}:{}-{}", span.domain, span.after, span.last)?;
        }
        Ok(())
    }
}

impl FromStr for Ahead {
    type Err = ParseAheadError;

    fn from_str(text: &str) -> Result<Ahead, ParseAheadError> {
        let span = |part: &str| {
            let (domain, rest) = part.split_once(':')?;
            let (after, last) = rest.split_once('-')?;
            let span = Span {
                domain: domain.parse().ok()?,
                after: after.parse().ok()?,
                last: last.parse().ok()?,
            };
            (span.after < span.last).then_some(span)
        };
        let parts = text.split(',').filter(|part| !part.is_empty());
        let spans: Option<Vec<Span>> = parts.map(span).collect();
        spans
            .map(Ahead)
            .ok_or_else(|| ParseAheadError(text.to_owned()))
    }
}

/// What slots and an older position say together: everything up to the position is there, and
/// what is ahead of it.
pub fn recover<'a>(
    mut position: Position,
    slots: impl IntoIterator<Item = &'a (Position, Ahead)>,
) -> (Position, Ahead) {
    let mut ahead = Ahead::default();
    for (base, done) in slots {
        for gtid in base
            .iter()
            .filter(|gtid| !position.has(*gtid))
            .collect::<Vec<_>>()
        {
            position.set(gtid);
        }
        ahead.add(done);
    }
    ahead.beyond(&position);
    (position, ahead)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn gtid(domain: u32, seqno: u64) -> Gtid {
        Gtid {
            domain,
            server: 1,
            seqno,
        }
    }

    #[test]
    fn lists() {
        let before: Position = "0-1-10".parse().expect("a position");
        let ahead = Ahead::between(&before, [gtid(0, 12), gtid(3, 1), gtid(0, 13)]);
        assert_eq!(ahead.to_string(), "0:10-13,3:0-1");
        assert_eq!(ahead.to_string().parse(), Ok(ahead.clone()));
        assert!(ahead.has(gtid(0, 11)) && ahead.has(gtid(0, 13)) && ahead.has(gtid(3, 1)));
        assert!(!ahead.has(gtid(0, 10)) && !ahead.has(gtid(0, 14)) && !ahead.has(gtid(1, 1)));
        assert_eq!("".parse(), Ok(Ahead::default()));
        for bad in ["0", "0:1", "0:2-1", "0:1-2;", "x:1-2"] {
            assert!(bad.parse::<Ahead>().is_err(), "{bad}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

        /// Units of one to three transactions in two domains commit in any order that the rules
        /// allow; some are confirmed later, some not at all. Then there is a crash, and another
        /// run after it, that begins at what was recovered.
        #[test]
        fn what_committed_is_known_after_a_crash(
            units in prop::collection::vec(prop::collection::vec(0u32..2, 1..4), 1..60),
            slots in 1u64..6,
            steps in prop::collection::vec((any::<u8>(), any::<u8>()), 0..400),
            crash_every in 1usize..200,
        ) {
            let mut seqnos = [0u64; 2];
            let all: Vec<Vec<Gtid>> = units.iter().map(|unit| unit.iter().map(|d| {
                seqnos[*d as usize] += 1;
                gtid(*d, seqnos[*d as usize])
            }).collect()).collect();
            // The target: what is committed, and its slots and position.
            let mut there: BTreeSet<Gtid> = BTreeSet::new();
            let mut stored: BTreeMap<u64, (Position, Ahead)> = BTreeMap::new();
            let mut row = (Position::new(), Ahead::default());
            // The replica: units left, numbered from 1, and where they are.
            let mut todo: Vec<(Position, Vec<Gtid>, Position)> = Vec::new();
            let mut sent: BTreeMap<u64, Position> = BTreeMap::new();
            let mut durable: BTreeSet<u64> = BTreeSet::new();
            let mut confirmed = 0u64;
            let mut begun = false;
            for (n, (what, which)) in steps.iter().enumerate() {
                if !begun || n % crash_every == 0 {
                    begun = true;
                    let (position, mut ahead) = recover(row.0.clone(), stored.values());
                    let mut old = row.1.clone();
                    old.beyond(&position);
                    ahead.add(&old);
                    for gtid in all.iter().flatten() {
                        let known = position.has(*gtid) || ahead.has(*gtid);
                        prop_assert_eq!(known, there.contains(gtid), "{} {} {}", gtid, position, ahead);
                    }
                    stored.clear();
                    row = (position.clone(), ahead.clone());
                    todo.clear();
                    (sent, durable, confirmed) = (BTreeMap::new(), BTreeSet::new(), 0);
                    let mut at = position;
                    for unit in &all {
                        // What is there is a unit that does nothing.
                        for gtid in unit.iter().filter(|g| !row.0.has(**g)) {
                            let before = at.clone();
                            at.set(*gtid);
                            todo.push((before, vec![*gtid], at.clone()));
                        }
                    }
                }
                let last = todo.len() as u64;
                match what % 3 {
                    // Sent: any within the slots.
                    0 => {
                        let n = confirmed + 1 + u64::from(*which) % slots;
                        if n <= last && !sent.contains_key(&n) {
                            let base = match confirmed {
                                0 => row.0.clone(),
                                c => todo[c as usize - 1].2.clone(),
                            };
                            sent.insert(n, base);
                        }
                    }
                    // One that was sent commits.
                    1 => {
                        let waiting: Vec<u64> = sent.keys().filter(|n| !durable.contains(n)).copied().collect();
                        if !waiting.is_empty() {
                            let n = waiting[*which as usize % waiting.len()];
                            let (before, gtids, _) = &todo[n as usize - 1];
                            durable.insert(n);
                            there.extend(gtids.iter().copied());
                            stored.insert(n % slots, (sent[&n].clone(), Ahead::between(before, gtids.iter().copied())));
                        }
                    }
                    // Confirmed, as far as all before it are.
                    _ => while durable.contains(&(confirmed + 1)) { confirmed += 1; },
                }
            }
        }
    }
}
