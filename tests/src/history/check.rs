//! The checker: from what the clients saw to what cannot have been.
//!
//! Every transaction is two points in time, its start (when its snapshot was
//! taken) and its commit. What was seen and overwritten says which point lies
//! before which:
//!
//! ```text
//! B overwrote A (ww)        commit A ──> start B     first updater wins
//! B saw A (wr)              commit A ──> start B
//! B did not see C (rw)      start B  ──> commit C
//! same client, A first      commit A ──> start B
//! A over before B began     commit A ──> start B     current reads
//! ```
//!
//! If no order in time fits, the graph has a cycle, and the kinds of its edges
//! name the anomaly.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use super::graph::{Graph, Kind};
use super::{Anomaly, Final, Key, Op, Outcome, Txn, Value};

/// Examples kept of each anomaly; all are counted.
const EXAMPLES: usize = 5;

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    /// How often each anomaly was found.
    pub found: BTreeMap<Anomaly, usize>,
    /// A few of each, in words.
    pub examples: Vec<String>,
    /// Transactions acknowledged.
    pub committed: usize,
    /// Transactions that failed.
    pub failed: usize,
    /// Transactions whose outcome the client does not know.
    pub unknown: usize,
    /// Those of them that turned out to be there.
    pub unknown_there: usize,
    /// Lists read by transactions that committed.
    pub reads: usize,
    /// Values appended by transactions that committed.
    pub appends: usize,
}

impl Report {
    /// True if nothing was wrong.
    pub fn is_clean(&self) -> bool {
        self.found.is_empty()
    }

    fn add(&mut self, anomaly: Anomaly, example: impl FnOnce() -> String) {
        let count = self.found.entry(anomaly).or_default();
        *count += 1;
        if *count <= EXAMPLES {
            self.examples.push(format!("{anomaly}: {}", example()));
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} transactions committed ({} reads, {} appends), {} failed, {} unknown of which {} are there; ",
            self.committed, self.reads, self.appends, self.failed, self.unknown, self.unknown_there
        )?;
        if self.is_clean() {
            return f.write_str("no anomaly");
        }
        let list: Vec<String> = self
            .found
            .iter()
            .map(|(a, n)| format!("{n} times {a}"))
            .collect();
        write!(f, "{}", list.join(", "))
    }
}

/// Who appended a value.
#[derive(Clone, Copy)]
struct Writer {
    txn: usize,
    /// It is the transaction's last append to the list.
    last: bool,
}

struct Checker<'a> {
    txns: &'a [Txn],
    writers: HashMap<Value, Writer>,
    /// The versions of each list: its beginnings.
    order: BTreeMap<Key, &'a [Value]>,
    /// Committed, or unknown and visible.
    there: Vec<bool>,
    /// What each transaction read of others' work: list and length.
    seen: Vec<Vec<(Key, usize)>>,
    report: Report,
}

/// Looks for everything in [`Anomaly`].
pub fn check(txns: &[Txn], finals: &[Final]) -> Report {
    let mut checker = Checker {
        txns,
        writers: HashMap::new(),
        order: BTreeMap::new(),
        there: vec![false; txns.len()],
        seen: vec![Vec::new(); txns.len()],
        report: Report::default(),
    };
    checker.count();
    checker.version_order(finals);
    checker.same_everywhere(finals);
    checker.visible();
    for t in 0..txns.len() {
        if checker.there[t] {
            checker.inside(t);
        }
    }
    checker.cycles();
    checker.report
}

impl<'a> Checker<'a> {
    fn count(&mut self) {
        for (t, txn) in self.txns.iter().enumerate() {
            let mut last: HashMap<Key, Value> = HashMap::new();
            for op in &txn.ops {
                if let Op::Append(key, value) = op {
                    if let Some(before) = last.insert(*key, *value) {
                        self.writers.insert(
                            before,
                            Writer {
                                txn: t,
                                last: false,
                            },
                        );
                    }
                    self.writers.insert(*value, Writer { txn: t, last: true });
                }
            }
            match txn.outcome {
                Outcome::Committed => self.report.committed += 1,
                Outcome::Failed => self.report.failed += 1,
                Outcome::Unknown => self.report.unknown += 1,
            }
        }
    }

    /// The longest list of each key that a node ended with, or that an
    /// acknowledged transaction read.
    fn version_order(&mut self, finals: &'a [Final]) {
        let ends = finals.iter().flat_map(|f| f.lists.iter());
        let txns = self.txns;
        let reads = txns
            .iter()
            .filter(|t| t.outcome == Outcome::Committed)
            .flat_map(|t| &t.ops)
            .filter_map(|op| match op {
                Op::Read(key, list) => Some((key, list)),
                Op::Append(..) => None,
            });
        for (key, list) in ends.chain(reads) {
            let longest = self.order.entry(*key).or_insert(list);
            if list.len() > longest.len() {
                *longest = list;
            }
        }
        for (key, list) in &self.order {
            let mut once = HashSet::new();
            for value in *list {
                if !once.insert(value) {
                    self.report.add(Anomaly::Duplicate, || {
                        format!("{value} is twice in list {key}")
                    });
                }
            }
        }
    }

    fn same_everywhere(&mut self, finals: &[Final]) {
        for (key, list) in &self.order {
            for end in finals {
                let own = end.lists.get(key).map_or(&[][..], Vec::as_slice);
                if own != *list {
                    self.report.add(Anomaly::Divergence, || {
                        let same = own.iter().zip(*list).take_while(|(a, b)| a == b).count();
                        format!(
                            "list {key} on node {} has {} values, {} elsewhere or earlier; they agree in the first {same}",
                            end.node + 1,
                            own.len(),
                            list.len()
                        )
                    });
                }
            }
        }
    }

    /// Who is there: lost, torn and aborted writes.
    fn visible(&mut self) {
        let mut there: HashSet<Value> = HashSet::new();
        for (key, list) in &self.order {
            for value in *list {
                there.insert(*value);
                match self.writers.get(value) {
                    None => self.report.add(Anomaly::Unwritten, || {
                        format!("{value} is in list {key}, and no client appended it")
                    }),
                    Some(w) if self.txns[w.txn].outcome == Outcome::Failed => {
                        let txn = &self.txns[w.txn];
                        self.report.add(Anomaly::AbortedRead, || {
                            format!("{value} is in list {key}; {} had failed", name(w.txn, txn))
                        });
                    }
                    Some(_) => {}
                }
            }
        }
        for (t, txn) in self.txns.iter().enumerate() {
            let (mut present, mut missing) = (0, None);
            for op in &txn.ops {
                if let Op::Append(key, value) = op {
                    if there.contains(value) {
                        present += 1;
                    } else {
                        missing = Some((*key, *value));
                    }
                }
            }
            match (txn.outcome, missing) {
                (Outcome::Committed, Some((key, value))) => {
                    self.report.add(Anomaly::LostWrite, || {
                        format!(
                            "{value} is not in list {key}; {} was acknowledged",
                            name(t, txn)
                        )
                    });
                }
                (Outcome::Unknown, Some((key, value))) if present > 0 => {
                    self.report.add(Anomaly::Torn, || {
                        format!(
                            "of {} {present} appends are there, {value} to list {key} is not",
                            name(t, txn)
                        )
                    });
                }
                _ => {}
            }
            self.there[t] = match txn.outcome {
                Outcome::Committed => true,
                Outcome::Unknown => present > 0,
                Outcome::Failed => false,
            };
            self.report.unknown_there +=
                usize::from(self.there[t] && txn.outcome == Outcome::Unknown);
        }
    }

    /// One transaction's reads against its own appends and the lists.
    fn inside(&mut self, t: usize) {
        let txn = &self.txns[t];
        let mut own: BTreeMap<Key, Vec<Value>> = BTreeMap::new();
        let mut base: BTreeMap<Key, usize> = BTreeMap::new();
        for op in &txn.ops {
            let (key, list) = match op {
                Op::Append(key, value) => {
                    own.entry(*key).or_default().push(*value);
                    self.report.appends += 1;
                    continue;
                }
                Op::Read(key, list) => (*key, list),
            };
            self.report.reads += 1;
            let mine = own.get(&key).map_or(&[][..], Vec::as_slice);
            let Some(others) = list.strip_suffix(mine) else {
                self.report.add(Anomaly::Internal, || {
                    format!(
                        "{} does not see its own appends to list {key}",
                        name(t, txn)
                    )
                });
                continue;
            };
            let whole = self.order.get(&key).copied().unwrap_or_default();
            if !whole.starts_with(others) {
                self.report.add(Anomaly::Divergence, || {
                    format!("{} read a list {key} that no longer exists", name(t, txn))
                });
                continue;
            }
            let before = base.get(&key).copied();
            if before.is_some_and(|b| b != others.len()) {
                self.report.add(Anomaly::Internal, || {
                    format!("{} read list {key} twice, differently", name(t, txn))
                });
                continue;
            }
            if before.is_some() {
                continue;
            }
            base.insert(key, others.len());
            if let Some(writer) = others.last().and_then(|v| self.writers.get(v))
                && !writer.last
                && writer.txn != t
            {
                let other = name(writer.txn, &self.txns[writer.txn]);
                self.report.add(Anomaly::IntermediateRead, || {
                    format!(
                        "{} read list {key} amid the appends of {other}",
                        name(t, txn)
                    )
                });
            }
            if mine.is_empty() {
                self.seen[t].push((key, others.len()));
            }
        }
        for (key, mine) in own {
            let whole = self.order.get(&key).copied().unwrap_or_default();
            let Some(at) = whole.iter().position(|v| *v == mine[0]) else {
                continue; // lost: said already
            };
            let read_first = self.seen[t].iter().find(|(k, _)| *k == key);
            if let Some((_, read)) = read_first
                && *read != at
            {
                self.report.add(Anomaly::P4, || {
                    format!(
                        "{} read {read} values of list {key} and appended behind {at}",
                        name(t, txn)
                    )
                });
            }
        }
    }

    fn cycles(&mut self) {
        let graph = self.graph();
        let phases: [(&[Kind], Option<Anomaly>); 5] = [
            (&[Kind::WriteWrite], Some(Anomaly::G0)),
            (&[Kind::WriteWrite, Kind::WriteRead], Some(Anomaly::G1c)),
            (&[Kind::WriteWrite, Kind::WriteRead, Kind::ReadWrite], None),
            (
                &[
                    Kind::WriteWrite,
                    Kind::WriteRead,
                    Kind::ReadWrite,
                    Kind::Session,
                ],
                Some(Anomaly::NonMonotonic),
            ),
            (
                &[
                    Kind::WriteWrite,
                    Kind::WriteRead,
                    Kind::ReadWrite,
                    Kind::Session,
                    Kind::RealTime,
                ],
                Some(Anomaly::StaleRead),
            ),
        ];
        for (kinds, anomaly) in phases {
            let cycles = graph.cycles(|k| k == Kind::Own || kinds.contains(&k));
            // Later phases contain these cycles too.
            let any = !cycles.is_empty();
            for cycle in cycles {
                let misses = cycle.iter().filter(|(_, k)| *k == Kind::ReadWrite).count();
                let anomaly = anomaly.unwrap_or(match misses {
                    1 => Anomaly::GSingle,
                    _ => Anomaly::SnapshotCycle,
                });
                self.report.add(anomaly, || words(self.txns, &cycle));
            }
            if any {
                return;
            }
        }
    }

    fn graph(&self) -> Graph {
        let start = |t: usize| 2 * t;
        let commit = |t: usize| 2 * t + 1;
        let mut graph = Graph::new(2 * self.txns.len());
        for t in (0..self.txns.len()).filter(|t| self.there[*t]) {
            graph.add(start(t), commit(t), Kind::Own);
        }
        let writer = |v: &Value| {
            self.writers
                .get(v)
                .map(|w| w.txn)
                .filter(|t| self.there[*t])
        };
        for list in self.order.values() {
            for pair in list.windows(2) {
                if let (Some(a), Some(b)) = (writer(&pair[0]), writer(&pair[1]))
                    && a != b
                {
                    graph.add(commit(a), start(b), Kind::WriteWrite);
                }
            }
        }
        for (t, seen) in self.seen.iter().enumerate() {
            for (key, length) in seen {
                // Nobody need have appended to a list that is empty.
                let list = self.order.get(key).copied().unwrap_or_default();
                let seen_of = length.checked_sub(1).and_then(|i| writer(&list[i]));
                if let Some(a) = seen_of.filter(|a| *a != t) {
                    graph.add(commit(a), start(t), Kind::WriteRead);
                }
                let missed = list.get(*length).and_then(writer);
                if let Some(c) = missed.filter(|c| *c != t) {
                    graph.add(start(t), commit(c), Kind::ReadWrite);
                }
            }
        }
        let mut by_client: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut moments = Vec::new();
        for (t, txn) in self.txns.iter().enumerate().filter(|(t, _)| self.there[*t]) {
            moments.push((txn.invoked, false, t));
            if txn.outcome == Outcome::Committed {
                // At the same nanosecond the beginning comes first: not before.
                moments.push((txn.completed, true, t));
                by_client.entry(txn.client).or_default().push(t);
            }
        }
        for own in by_client.values_mut() {
            own.sort_by_key(|t| self.txns[*t].invoked);
            for pair in own.windows(2) {
                graph.add(commit(pair[0]), start(pair[1]), Kind::Session);
            }
        }
        // What is over and not yet followed by something that is over too: each
        // beginning comes after these; the rest follows.
        moments.sort_unstable();
        let mut over: Vec<usize> = Vec::new();
        for (_, ended, t) in moments {
            if ended {
                over.retain(|o| self.txns[*o].completed >= self.txns[t].invoked);
                over.push(t);
            } else {
                for o in &over {
                    graph.add(commit(*o), start(t), Kind::RealTime);
                }
            }
        }
        graph
    }
}

fn name(t: usize, txn: &Txn) -> String {
    format!(
        "transaction {t} (client {}, node {})",
        txn.client,
        txn.node + 1
    )
}

/// A cycle as a sentence.
fn words(txns: &[Txn], cycle: &[(usize, Kind)]) -> String {
    let mut text = String::new();
    for (vertex, kind) in cycle {
        let word = match kind {
            Kind::Own => continue,
            Kind::WriteWrite => "was overwritten by",
            Kind::WriteRead => "was seen by",
            Kind::ReadWrite => "did not see",
            Kind::Session => "had ended before the same client's",
            Kind::RealTime => "had ended before the beginning of",
        };
        let t = vertex / 2;
        text += &format!("{} {word} ", name(t, &txns[t]));
    }
    text + "the first"
}
