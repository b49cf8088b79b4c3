//! Clients that append to lists and read them, through all faults; then the
//! checker reads their history.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::{Cluster, Node};

use super::nemesis::{Fault, Nemesis};
use super::{Needs, started};
use crate::check as tables;
use crate::harness::{Case, new_database};
use crate::history::{Final, Key, Op, Outcome, Txn, Value, check};
use crate::load::{RETRY, STATEMENT_LIMIT, Session, Sql, code};
use crate::rng::Rng;

const CLIENTS: usize = 3;
/// Lists written to at a time.
const ACTIVE: u64 = 10;
/// A list that long is left alone; a new one takes its place.
const LONGEST: u64 = 128;
const TABLES: u64 = 3;
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The settings of the quick start, and current reads.
pub fn under_faults(case: &mut Case) -> anyhow::Result<()> {
    let needs = Needs {
        disks: true,
        network: true,
        ..Needs::default()
    };
    let cluster = started(case, needs, |spec| {
        *spec = spec
            .clone()
            .set("innodb_snapshot_isolation", "ON")
            .set("wsrep_sync_wait", "1");
    })?;
    let mut nemesis = Nemesis::new(Fault::ALL, case.options.seed);
    let end = Instant::now() + case.options.seconds;
    let rage = || nemesis.rage(case, &cluster, end);
    let (history, raged) = clients_during(case, &cluster, rage)?;
    raged.with_context(|| format!("so far {nemesis}"))?;
    tables::settled(&cluster, &case.db)?;
    let finals = finals(&cluster, &case.db)?;
    case.progress(nemesis.to_string());
    let report = check(&history, &finals);
    case.progress(report.to_string());
    if !report.is_clean() {
        let file = cluster.record().dir.join("history.txt");
        write_down(&file, &history, &finals)?;
        bail!(
            "{report}\n    {}\n    the history: {}",
            report.examples.join("\n    "),
            file.display()
        );
    }
    done_on_each(case, &cluster, &history)?;
    Ok(())
}

/// Each node's clients committed one transaction in a second, faults and all: a sum would not
/// show one that took no part.
fn done_on_each(case: &Case, cluster: &Cluster, history: &[Txn]) -> anyhow::Result<()> {
    let wanted = case.options.seconds.as_secs().max(1);
    for (index, node) in cluster.nodes().iter().enumerate() {
        let of = |t: &&Txn| t.node == index && t.outcome == Outcome::Committed;
        let done = history.iter().filter(of).count() as u64;
        ensure!(
            done >= wanted,
            "only {done} transactions on {}, at least {wanted} were wanted",
            node.name()
        );
    }
    Ok(())
}

/// Sets up the lists and starts the clients, who work while `meanwhile` runs:
/// their history, and how it ended.
pub(super) fn clients_during(
    case: &Case,
    cluster: &Arc<Cluster>,
    meanwhile: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<(Vec<Txn>, anyhow::Result<()>)> {
    set_up(cluster.node(0), &case.db)?;
    let shared = Arc::new(Shared::default());
    let mut threads = Vec::new();
    for client in 0..CLIENTS * cluster.nodes().len() {
        let index = client % cluster.nodes().len();
        let client = Client {
            number: client,
            index,
            node: Arc::clone(cluster.node(index)),
            db: case.db.clone(),
            rng: Rng::new(case.options.seed * 1000 + client as u64),
            shared: Arc::clone(&shared),
        };
        threads.push(thread::spawn(move || client.work()));
    }
    let ended = meanwhile();
    shared.stop.store(true, Ordering::Release);
    let mut history = Vec::new();
    for thread in threads {
        history.extend(
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a client panicked"))?,
        );
    }
    Ok((history, ended))
}

/// The whole history, one transaction a line, in order of time.
fn write_down(file: &Path, history: &[Txn], finals: &[Final]) -> anyhow::Result<()> {
    let mut out = BufWriter::new(File::create(file)?);
    let mut order: Vec<usize> = (0..history.len()).collect();
    order.sort_by_key(|t| history[*t].invoked);
    for t in order {
        let txn = &history[t];
        writeln!(
            out,
            "{t} client {} node {} {:.4}..{:.4} s {:?} {:?}",
            txn.client,
            txn.node + 1,
            txn.invoked as f64 / 1e9,
            txn.completed as f64 / 1e9,
            txn.outcome,
            txn.ops
        )?;
    }
    for end in finals {
        for (key, list) in &end.lists {
            writeln!(out, "at last node {} list {key} {list:?}", end.node + 1)?;
        }
    }
    Ok(out.flush()?)
}

fn set_up(node: &Node, db: &str) -> anyhow::Result<()> {
    let mut session = new_database(node, db, &[])?;
    for table in 0..TABLES {
        session.exec(&format!(
            "CREATE TABLE l{table} (id BIGINT PRIMARY KEY, val TEXT NOT NULL)"
        ))?;
    }
    Ok(())
}

struct Shared {
    stop: AtomicBool,
    begin: Instant,
    next_value: AtomicU64,
    /// Keys written to, with how often; a full one is replaced.
    keys: Mutex<(Vec<(Key, u64)>, Key)>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            stop: AtomicBool::new(false),
            begin: Instant::now(),
            next_value: AtomicU64::new(1),
            keys: Mutex::new(((0..ACTIVE).map(|k| (k, 0)).collect(), ACTIVE)),
        }
    }
}

impl Shared {
    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn key(&self, rng: &mut Rng, write: bool) -> Key {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let at = rng.below(ACTIVE) as usize;
        let chosen = keys.0[at].0;
        keys.0[at].1 += u64::from(write);
        if keys.0[at].1 >= LONGEST {
            let fresh = keys.1;
            keys.1 += 1;
            keys.0[at] = (fresh, 0);
        }
        chosen
    }
}

struct Client {
    number: usize,
    index: usize,
    node: Arc<Node>,
    db: String,
    rng: Rng,
    shared: Arc<Shared>,
}

impl Client {
    fn work(mut self) -> Vec<Txn> {
        let mut history = Vec::new();
        let mut session: Option<Session> = None;
        while !self.shared.stop.load(Ordering::Acquire) {
            let Some(open) = session.as_mut() else {
                session = self.open().ok();
                if session.is_none() {
                    thread::sleep(Duration::from_millis(30));
                }
                continue;
            };
            thread::sleep(Duration::from_millis(self.rng.below(5)));
            let (txn, usable) = self.transaction(open);
            history.push(txn);
            if !usable {
                session = None;
                thread::sleep(Duration::from_millis(20));
            }
        }
        history
    }

    fn open(&self) -> anyhow::Result<Session> {
        let mut session = Session::open_impatient(&self.node, &self.db, 0, ANSWER_LIMIT)?;
        session.exec("SET SESSION wsrep_sync_wait = 1")?;
        Ok(session)
    }

    /// One transaction; false if its connection is of no more use.
    fn transaction(&mut self, session: &mut Session) -> (Txn, bool) {
        let mut txn = Txn {
            client: self.number,
            node: self.index,
            invoked: self.shared.now(),
            completed: 0,
            outcome: Outcome::Failed,
            ops: Vec::new(),
        };
        let body = self.body(session, &mut txn.ops);
        let end = body
            .map_err(|e| (e, false))
            .and_then(|()| session.exec("COMMIT").map_err(|e| (e, true)));
        txn.completed = self.shared.now();
        let usable = match end {
            Ok(_) => {
                txn.outcome = Outcome::Committed;
                true
            }
            Err((error, at_commit)) => {
                let refused = code(&error).is_some_and(|c| RETRY.contains(&c));
                let unknown = at_commit && !refused;
                if unknown {
                    txn.outcome = Outcome::Unknown;
                }
                !unknown && code(&error).is_some() && session.exec("ROLLBACK").is_ok()
            }
        };
        (txn, usable)
    }

    fn body(&mut self, session: &mut Session, ops: &mut Vec<Op>) -> Sql<()> {
        session.exec("START TRANSACTION")?;
        for _ in 0..1 + self.rng.below(4) {
            if self.rng.chance(50) {
                let key = self.shared.key(&mut self.rng, false);
                let table = table_of(key);
                let list: Option<String> =
                    session.one(&format!("SELECT val FROM {table} WHERE id = {key}"))?;
                ops.push(Op::Read(key, parse(list.as_deref())));
            } else {
                let key = self.shared.key(&mut self.rng, true);
                let value = self.shared.next_value.fetch_add(1, Ordering::Relaxed);
                ops.push(Op::Append(key, value));
                self.append(session, key, value)?;
            }
        }
        Ok(())
    }

    /// Two ways to say the same; the server takes different paths.
    fn append(&mut self, session: &mut Session, key: Key, value: Value) -> Sql<()> {
        let table = table_of(key);
        if self.rng.chance(50) {
            session.exec(&format!(
                "INSERT INTO {table} VALUES ({key}, '{value}') ON DUPLICATE KEY UPDATE val = CONCAT(val, ',{value}')"
            ))?;
            return Ok(());
        }
        let changed = session.exec(&format!(
            "UPDATE {table} SET val = CONCAT(val, ',{value}') WHERE id = {key}"
        ))?;
        if changed == 0 {
            session.exec(&format!("INSERT INTO {table} VALUES ({key}, '{value}')"))?;
        }
        Ok(())
    }
}

/// Where a list lies.
fn table_of(key: Key) -> String {
    format!("l{}", key % TABLES)
}

fn parse(list: Option<&str>) -> Vec<Value> {
    list.unwrap_or_default()
        .split(',')
        .filter_map(|v| v.parse().ok())
        .collect()
}

pub(super) fn finals(cluster: &Cluster, db: &str) -> anyhow::Result<Vec<Final>> {
    let mut all = Vec::new();
    for (index, node) in cluster.nodes().iter().enumerate() {
        let mut session = Session::open_within(node, db, 0, STATEMENT_LIMIT)?;
        session.exec("SET SESSION wsrep_sync_wait = 7")?;
        let mut lists = BTreeMap::new();
        for table in 0..TABLES {
            let rows: Vec<(Key, String)> =
                session.rows(&format!("SELECT id, val FROM l{table}"))?;
            lists.extend(rows.into_iter().map(|(k, l)| (k, parse(Some(&l)))));
        }
        all.push(Final { node: index, lists });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_back() {
        assert_eq!(parse(Some("3,14,15")), vec![3, 14, 15]);
        assert_eq!(parse(Some("3")), vec![3]);
        assert!(parse(None).is_empty() && parse(Some("")).is_empty());
    }

    #[test]
    fn a_full_list_is_replaced_by_a_new_one() {
        let (shared, mut rng) = (Shared::default(), Rng::new(1));
        let mut counts: BTreeMap<Key, u64> = BTreeMap::new();
        for _ in 0..5000 {
            *counts.entry(shared.key(&mut rng, true)).or_default() += 1;
        }
        assert!(counts.len() > 30);
        assert!(counts.values().all(|n| *n <= LONGEST));
    }
}
