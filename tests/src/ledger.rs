//! Clients that go on through every fault and remember what they were told:
//! the ledger against which the tables are held afterwards.
//!
//! A client's transaction inserts a row and counts it in its counter. What it is
//! told at COMMIT decides which list the row's id goes to:
//!
//! ```text
//! acknowledged   OK                                     must be there
//! refused        1213, 1020; any error before COMMIT    must not be there
//! unknown        any other error, lost connection       may be there
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_sandbox::{Cluster, Node};

use crate::harness::new_database;
use crate::load::{RETRY, Session, Sql, code};

/// A client waits no longer for an answer; then the outcome is unknown to it.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Between two attempts on a node that refuses or is down.
const BREATH: Duration = Duration::from_millis(30);
/// How long a node may take for the writes of which nobody is in the way.
const WRITES_WITHIN: Duration = Duration::from_secs(20);
/// Below it no scenario writes a row.
const PROBE: i64 = -1 << 40;
/// Rows named in a complaint.
const NAMED: usize = 10;

/// What the clients were told.
#[derive(Debug, Default, Clone)]
pub struct Told {
    /// Rows whose COMMIT was acknowledged.
    pub acknowledged: BTreeSet<i64>,
    /// Rows that certainly did not commit.
    pub refused: BTreeSet<i64>,
    /// Rows of which the client does not know.
    pub unknown: BTreeSet<i64>,
    /// How often each error number was seen; 0 is a lost connection or a timeout.
    pub errors: BTreeMap<u16, u64>,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rows acknowledged, {} refused, {} unknown",
            self.acknowledged.len(),
            self.refused.len(),
            self.unknown.len()
        )
    }
}

/// Clients at work.
pub struct Ledger {
    told: Arc<Mutex<Told>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Ids and clients are numbered through all rounds of a scenario.
pub struct Numbers {
    next_row: Arc<AtomicI64>,
    next_client: i64,
}

impl Numbers {
    /// From the beginning.
    pub fn new() -> Self {
        Self {
            next_row: Arc::new(AtomicI64::new(1)),
            next_client: 1,
        }
    }
}

/// Creates the tables in a new database.
pub fn set_up(node: &Node, db: &str) -> anyhow::Result<()> {
    new_database(
        node,
        db,
        &[
            "CREATE TABLE t (id BIGINT PRIMARY KEY, client INT NOT NULL, pad VARCHAR(100) NOT NULL, KEY (client))",
            "CREATE TABLE counters (client INT PRIMARY KEY, n BIGINT NOT NULL)",
        ],
    )
    .map(drop)
}

impl Ledger {
    /// Starts `clients` clients on each of the nodes.
    pub fn open(nodes: &[Arc<Node>], db: &str, clients: usize, numbers: &mut Numbers) -> Self {
        Self::start(nodes, db, clients, numbers, false)
    }

    /// The same, each transaction a single INSERT: as many as possible.
    pub fn open_plain(
        nodes: &[Arc<Node>],
        db: &str,
        clients: usize,
        numbers: &mut Numbers,
    ) -> Self {
        Self::start(nodes, db, clients, numbers, true)
    }

    fn start(
        nodes: &[Arc<Node>],
        db: &str,
        clients: usize,
        numbers: &mut Numbers,
        plain: bool,
    ) -> Self {
        let told = Arc::new(Mutex::new(Told::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for node in nodes {
            for _ in 0..clients {
                let client = Client {
                    node: Arc::clone(node),
                    db: db.to_string(),
                    number: numbers.next_client,
                    next_row: Arc::clone(&numbers.next_row),
                    told: Arc::clone(&told),
                    stop: Arc::clone(&stop),
                    plain,
                };
                numbers.next_client += 1;
                threads.push(thread::spawn(move || client.work()));
            }
        }
        Self {
            told,
            stop,
            threads,
        }
    }

    /// Rows acknowledged so far.
    pub fn acknowledged(&self) -> usize {
        lock(&self.told).acknowledged.len()
    }

    /// Waits until `more` further rows were acknowledged.
    pub fn wait_more(&self, more: usize, limit: Duration) -> anyhow::Result<()> {
        let (end, wanted) = (Instant::now() + limit, self.acknowledged() + more);
        while self.acknowledged() < wanted {
            ensure!(
                Instant::now() < end,
                "the clients wrote fewer than {more} rows within {} s: errors so far {:?}",
                limit.as_secs(),
                lock(&self.told).errors
            );
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Stops the clients; what they were told.
    pub fn close(mut self) -> anyhow::Result<Told> {
        self.stop.store(true, Ordering::Release);
        for thread in std::mem::take(&mut self.threads) {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a client panicked"))?;
        }
        Ok(lock(&self.told).clone())
    }

    /// Stops the clients and adds what they were told to `all`; answers it in words.
    pub fn close_into(self, all: &mut Told) -> anyhow::Result<String> {
        let told = self.close()?;
        let words = told.to_string();
        all.add(told);
        Ok(words)
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Client {
    node: Arc<Node>,
    db: String,
    number: i64,
    next_row: Arc<AtomicI64>,
    told: Arc<Mutex<Told>>,
    stop: Arc<AtomicBool>,
    plain: bool,
}

impl Client {
    fn work(&self) {
        let mut session: Option<Session> = None;
        while !self.stop.load(Ordering::Acquire) {
            let Some(open) = session.as_mut() else {
                session =
                    Session::open_impatient(&self.node, &self.db, self.number as u64, ANSWER_LIMIT)
                        .ok();
                if session.is_none() {
                    thread::sleep(BREATH);
                }
                continue;
            };
            if !self.write(open) {
                session = None;
                thread::sleep(BREATH);
            }
        }
    }

    /// One transaction; false if the connection is of no more use.
    fn write(&self, session: &mut Session) -> bool {
        let id = self.next_row.fetch_add(1, Ordering::Relaxed);
        let number = self.number;
        if self.plain {
            return self.finish(session, id, &format!("INSERT INTO t VALUES ({id}, 0, 'x')"));
        }
        let before = [
            "BEGIN".to_string(),
            format!(
                "INSERT INTO t VALUES ({id}, {number}, REPEAT('x', {}))",
                id % 97
            ),
            format!("INSERT INTO counters VALUES ({number}, 1) ON DUPLICATE KEY UPDATE n = n + 1"),
        ];
        for statement in before {
            if let Err(error) = session.exec(&statement) {
                let mut told = lock(&self.told);
                told.refused.insert(id);
                *told.errors.entry(code(&error).unwrap_or(0)).or_default() += 1;
                drop(told);
                return code(&error).is_some_and(|c| RETRY.contains(&c))
                    && session.exec("ROLLBACK").is_ok();
            }
        }
        self.finish(session, id, "COMMIT")
    }

    /// The statement that commits; false if the connection is of no more use.
    fn finish(&self, session: &mut Session, id: i64, statement: &str) -> bool {
        let answer = session.exec(statement);
        lock(&self.told).note(id, &answer);
        answer.map_or_else(|e| code(&e).is_some_and(|c| RETRY.contains(&c)), |_| true)
    }
}

/// Holds the ids in one table of every running node against what the clients were told.
pub fn hold_ids(cluster: &Cluster, db: &str, table: &str, told: &Told) -> anyhow::Result<()> {
    for node in cluster.nodes().iter().filter(|n| n.process().is_some()) {
        let name = node.name();
        let mut session = Session::open_within(node, db, 0, Duration::from_secs(60))?;
        let rows: Vec<i64> = session.rows(&format!("SELECT id FROM {table}"))?;
        let there: BTreeSet<i64> = rows.iter().copied().collect();
        ensure!(there.len() == rows.len(), "{name} has rows twice");
        compare(told, &there).with_context(|| name)?;
    }
    Ok(())
}

/// Holds every running node's tables against what the clients were told.
pub fn hold_against(cluster: &Cluster, db: &str, told: &Told) -> anyhow::Result<()> {
    hold_ids(cluster, db, "t", told)?;
    for node in cluster.nodes().iter().filter(|n| n.process().is_some()) {
        let name = node.name();
        let mut session = Session::open_within(node, db, 0, Duration::from_secs(60))?;
        let wrong: Vec<(i64, i64, i64)> = session.rows(
            // Client 0 are all that count nothing.
            "SELECT c.client, c.n, COUNT(t.id) FROM counters c LEFT JOIN t ON t.client = c.client \
             GROUP BY c.client, c.n HAVING c.n <> COUNT(t.id) UNION ALL \
             SELECT t.client, 0, COUNT(*) FROM t LEFT JOIN counters c ON c.client = t.client \
             WHERE c.client IS NULL AND t.client <> 0 GROUP BY t.client",
        )?;
        ensure!(
            wrong.is_empty(),
            "{name}: parts of transactions are missing: client, counted, rows: {wrong:?}"
        );
    }
    Ok(())
}

/// Each node that runs may be Synced and say that it is ready, and yet answer no COMMIT: the others' clients
/// alone do not tell.
pub fn takes_writes(cluster: &Cluster, db: &str) -> anyhow::Result<()> {
    for (n, node) in cluster.nodes().iter().enumerate() {
        if node.process().is_none() {
            continue;
        }
        let end = Instant::now() + WRITES_WITHIN;
        let mut session = Session::open_within(node, db, 0, WRITES_WITHIN)?;
        for sql in [
            format!("INSERT INTO t VALUES ({PROBE} - {n}, 0, 'x')"),
            format!("DELETE FROM t WHERE id = {PROBE} - {n}"),
        ] {
            while let Err(error) = session.exec(&sql) {
                let again = code(&error).is_some_and(|c| RETRY.contains(&c));
                ensure!(
                    again && Instant::now() < end,
                    "{} is a member and takes no write: {error}",
                    node.name()
                );
            }
        }
    }
    Ok(())
}

/// Holds the rows that are there against what clients were told of them.
pub fn compare(told: &Told, there: &BTreeSet<i64>) -> anyhow::Result<()> {
    let some = |ids: &mut dyn Iterator<Item = &i64>| -> Vec<i64> { ids.copied().collect() };
    let lost = some(&mut told.acknowledged.difference(there));
    ensure!(
        lost.is_empty(),
        "{} of {} acknowledged rows are lost: {:?}",
        lost.len(),
        told.acknowledged.len(),
        &lost[..lost.len().min(NAMED)]
    );
    let risen = some(&mut told.refused.intersection(there));
    ensure!(
        risen.is_empty(),
        "{} rows are there although the client was told that they failed: {:?}",
        risen.len(),
        &risen[..risen.len().min(NAMED)]
    );
    let strange: Vec<i64> = there
        .iter()
        .filter(|id| !told.acknowledged.contains(id) && !told.unknown.contains(id))
        .copied()
        .collect();
    ensure!(
        strange.is_empty(),
        "{} rows are there that no client sent COMMIT for: {:?}",
        strange.len(),
        &strange[..strange.len().min(NAMED)]
    );
    Ok(())
}

impl Told {
    /// Remembers what came of the statement that was to commit row `id`.
    pub fn note<T>(&mut self, id: i64, answer: &Sql<T>) {
        let list = match answer.as_ref().map_err(code) {
            Ok(_) => &mut self.acknowledged,
            Err(Some(number)) if RETRY.contains(&number) => &mut self.refused,
            Err(_) => &mut self.unknown,
        };
        list.insert(id);
        if let Err(error) = answer {
            *self.errors.entry(code(error).unwrap_or(0)).or_default() += 1;
        }
    }

    /// Adds what another round's clients were told.
    pub fn add(&mut self, other: Self) {
        self.acknowledged.extend(other.acknowledged);
        self.refused.extend(other.refused);
        self.unknown.extend(other.unknown);
        for (code, count) in other.errors {
            *self.errors.entry(code).or_default() += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told() -> Told {
        Told {
            acknowledged: [1, 2].into(),
            refused: [3].into(),
            unknown: [4, 5].into(),
            errors: BTreeMap::new(),
        }
    }

    #[test]
    fn unknown_rows_may_be_there_or_not() {
        assert!(compare(&told(), &[1, 2, 4].into()).is_ok());
        assert!(compare(&told(), &[1, 2].into()).is_ok());
    }

    #[test]
    fn what_must_not_be_is_named() {
        for (there, word) in [
            (vec![1, 4], "1 of 2 acknowledged rows are lost: [2]"),
            (vec![1, 2, 3], "1 rows are there although"),
            (vec![1, 2, 9], "1 rows are there that no client"),
        ] {
            let error = compare(&told(), &there.into_iter().collect()).expect_err(word);
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
