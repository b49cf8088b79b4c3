//! Writers: threads with a connection each, a step repeated until time is up,
//! every acknowledgement and every error counted.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use dromon_sandbox::Node;
use dromon_sandbox::mysql::prelude::{FromRow, Queryable};
use dromon_sandbox::mysql::{self, Conn};

use crate::rng::Rng;

/// No statement of a storm may take longer, unless its caller says so: more is a hang.
pub const STATEMENT_LIMIT: Duration = Duration::from_secs(45);

/// Deadlock found, or certification failed: the transaction is gone, retry.
pub const DEADLOCK: u16 = 1213;
/// Record has changed since last read (snapshot isolation): retry.
pub const RECORD_CHANGED: u16 = 1020;
/// What any client of a multi-master cluster must expect.
pub const RETRY: &[u16] = &[DEADLOCK, RECORD_CHANGED];

/// Whether every third client streams its transactions.
static STREAMING: AtomicBool = AtomicBool::new(false);

/// From now on every third client of this process (those are counted by their seeds, from 1 on)
/// streams its transactions, a fragment for each row, or for two: then the end may bring a
/// row, too.
pub fn stream_every_third() {
    STREAMING.store(true, Ordering::Relaxed);
}

/// Whether every third client streams.
#[must_use]
pub fn some_stream() -> bool {
    STREAMING.load(Ordering::Relaxed)
}

/// The result of one statement.
pub type Sql<T> = Result<T, mysql::Error>;

/// One connection of a writer.
pub struct Session {
    conn: Conn,
    /// Rows of a fragment, if it streams.
    fragment: Option<u64>,
    /// The writer's own random numbers.
    pub rng: Rng,
}

impl Session {
    /// Connects to `node` with the database `db`, not waiting for other nodes
    /// before statements.
    ///
    /// # Errors
    /// When the node refuses the connection or the database is missing.
    pub fn open(node: &Node, db: &str, seed: u64) -> anyhow::Result<Self> {
        Self::open_within(node, db, seed, STATEMENT_LIMIT)
    }

    /// The same with another limit per statement.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn open_within(node: &Node, db: &str, seed: u64, limit: Duration) -> anyhow::Result<Self> {
        let mut session = Self {
            conn: node.connect(limit)?,
            fragment: None,
            rng: Rng::new(seed),
        };
        session
            .exec("SET SESSION wsrep_sync_wait = 0")
            .with_context(|| node.name())?;
        if !db.is_empty() {
            session
                .exec(&format!("USE {db}"))
                .with_context(|| node.name())?;
        }
        if seed % 3 == 1 && some_stream() {
            let rows = if seed % 6 == 1 { 1 } else { 2 };
            session.fragment = Some(rows);
            session
                .exec("SET SESSION wsrep_trx_fragment_unit = 'rows'")
                .and_then(|_| {
                    session.exec(&format!("SET SESSION wsrep_trx_fragment_size = {rows}"))
                })
                .with_context(|| node.name())?;
        }
        Ok(session)
    }

    /// Connects as `open_within` does, for a client that does not wait for a row
    /// until its own limit has passed: the server answers 1205 first.
    ///
    /// # Errors
    /// No connection, or the server is not usable.
    pub fn open_impatient(
        node: &Node,
        db: &str,
        seed: u64,
        limit: Duration,
    ) -> anyhow::Result<Self> {
        let mut session = Self::open_within(node, db, seed, limit)?;
        session
            .exec("SET SESSION innodb_lock_wait_timeout = 3")
            .with_context(|| node.name())?;
        Ok(session)
    }

    /// Runs a statement; returns the number of rows it changed.
    ///
    /// # Errors
    /// The driver's; so for all statements here.
    pub fn exec(&mut self, sql: &str) -> Sql<u64> {
        self.conn.query_drop(sql)?;
        Ok(self.conn.affected_rows())
    }

    /// The number that the last INSERT was given by AUTO_INCREMENT.
    #[must_use]
    pub fn last_id(&self) -> u64 {
        self.conn.last_insert_id()
    }

    /// Runs a statement and returns its rows.
    ///
    /// # Errors
    /// The driver's.
    pub fn rows<T: FromRow>(&mut self, sql: &str) -> Sql<Vec<T>> {
        self.conn.query(sql)
    }

    /// A query of one value; none for no row.
    ///
    /// # Errors
    /// The driver's.
    pub fn one<T: FromRow>(&mut self, sql: &str) -> Sql<Option<T>> {
        // Not `query_first`: it drops what follows the first row, and that may be
        // the error that the transaction was rolled back.
        Ok(self.conn.query(sql)?.into_iter().next())
    }

    /// `BEGIN`, the body, `COMMIT`. After an error the caller rolls back.
    ///
    /// # Errors
    /// Of the statement that failed.
    pub fn transaction<T>(&mut self, body: impl FnOnce(&mut Self) -> Sql<T>) -> Sql<T> {
        self.exec("BEGIN")?;
        let value = body(self)?;
        self.exec("COMMIT")?;
        Ok(value)
    }

    /// What `LOAD DATA LOCAL INFILE` reads on this connection: `write` is called
    /// for each such statement and writes the lines.
    pub fn feed(
        &mut self,
        mut write: impl FnMut(&mut dyn std::io::Write) -> std::io::Result<()> + Send + 'static,
    ) {
        let handler = mysql::LocalInfileHandler::new(move |_, stream| write(stream));
        self.conn.set_local_infile_handler(Some(handler));
    }

    /// Whether a transaction of so many rows is streamed: this is one of every third client, and they fill
    /// a fragment.
    #[must_use]
    pub fn streams(&self, rows: u64) -> bool {
        self.fragment.is_some_and(|fragment| rows >= fragment)
    }

    /// The server's id of this connection.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.conn.connection_id()
    }
}

/// The server's error number; none for a lost connection or a timeout.
#[must_use]
pub fn code(error: &mysql::Error) -> Option<u16> {
    match error {
        mysql::Error::MySqlError(e) => Some(e.code),
        _ => None,
    }
}

type Step = Box<dyn FnMut(&mut Session) -> Sql<()> + Send>;

/// A writer: its node and the transaction it repeats.
pub struct Writer {
    node: Arc<Node>,
    step: Step,
}

impl Writer {
    /// A writer on `node`.
    pub fn new(
        node: &Arc<Node>,
        step: impl FnMut(&mut Session) -> Sql<()> + Send + 'static,
    ) -> Self {
        Self {
            node: Arc::clone(node),
            step: Box::new(step),
        }
    }
}

/// What a storm did.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    /// Steps that returned without an error.
    pub done: u64,
    /// Allowed errors by number.
    pub refused: BTreeMap<u16, u64>,
    /// The longest step, failed ones included.
    pub longest: Duration,
    /// How long the storm blew.
    pub took: Duration,
}

impl Tally {
    /// Adds what another writer did; the time is not added.
    pub fn add(&mut self, other: &Self) {
        self.done += other.done;
        for (code, count) in &other.refused {
            *self.refused.entry(*code).or_default() += count;
        }
        self.longest = self.longest.max(other.longest);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.done as f64 / self.took.as_secs_f64().max(0.001);
        write!(f, "{} transactions ({rate:.0}/s)", self.done)?;
        for (code, count) in &self.refused {
            write!(f, ", {count} times error {code}")?;
        }
        write!(f, ", longest {:.2} s", self.longest.as_secs_f64())
    }
}

/// A running storm.
pub struct Storm {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<anyhow::Result<Tally>>>,
    begin: Instant,
}

impl Storm {
    /// Starts all writers. Errors in `allowed` are counted, any other ends the
    /// storm as a failure.
    ///
    /// # Errors
    /// When a writer cannot connect.
    pub fn start(db: &str, writers: Vec<Writer>, allowed: &'static [u16]) -> anyhow::Result<Self> {
        Self::start_within(db, writers, allowed, STATEMENT_LIMIT)
    }

    /// The same with another limit per statement.
    ///
    /// # Errors
    /// When a writer cannot connect.
    pub fn start_within(
        db: &str,
        writers: Vec<Writer>,
        allowed: &'static [u16],
        limit: Duration,
    ) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut sessions = Vec::new();
        for (seed, writer) in (1u64..).zip(writers) {
            let session = Session::open_within(&writer.node, db, seed, limit)?;
            sessions.push((session, writer));
        }
        let threads = sessions
            .into_iter()
            .map(|(session, writer)| {
                let stop = Arc::clone(&stop);
                thread::spawn(move || {
                    let result = write_until(&stop, session, writer, allowed, limit);
                    if result.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    result
                })
            })
            .collect();
        Ok(Self {
            stop,
            threads,
            begin: Instant::now(),
        })
    }

    /// True as long as no writer has failed.
    #[must_use]
    pub fn is_blowing(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Lets it blow for `time`, less if a writer fails.
    pub fn blow(&self, time: Duration) {
        let end = Instant::now() + time;
        while self.is_blowing() && Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops all writers after their current step.
    ///
    /// # Errors
    /// What the writers that failed met.
    pub fn stop(self) -> anyhow::Result<Tally> {
        self.stop.store(true, Ordering::Relaxed);
        let took = self.begin.elapsed();
        let mut sum = Tally::default();
        let mut failures = Vec::new();
        for thread in self.threads {
            match thread.join() {
                Ok(Ok(tally)) => sum.add(&tally),
                Ok(Err(e)) => failures.push(format!("{e:#}")),
                Err(_) => failures.push("a writer panicked".into()),
            }
        }
        failures.sort();
        failures.dedup();
        if !failures.is_empty() {
            bail!("{}", failures.join("\n    and "));
        }
        sum.took = took;
        Ok(sum)
    }
}

/// Starts a storm, waits and stops it.
///
/// # Errors
/// When a writer cannot connect or fails.
pub fn blow(
    db: &str,
    writers: Vec<Writer>,
    allowed: &'static [u16],
    time: Duration,
) -> anyhow::Result<Tally> {
    let storm = Storm::start(db, writers, allowed)?;
    storm.blow(time);
    storm.stop()
}

fn write_until(
    stop: &AtomicBool,
    mut session: Session,
    mut writer: Writer,
    allowed: &[u16],
    limit: Duration,
) -> anyhow::Result<Tally> {
    let mut tally = Tally::default();
    while !stop.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let result = (writer.step)(&mut session);
        tally.longest = tally.longest.max(begin.elapsed());
        let Err(error) = result else {
            tally.done += 1;
            continue;
        };
        let known = code(&error).filter(|c| allowed.contains(c));
        let Some(known) = known else {
            let name = writer.node.name();
            let seconds = begin.elapsed().as_secs_f64();
            if begin.elapsed() >= limit {
                bail!("a client of {name} had no answer for {seconds:.0} s");
            }
            return Err(error)
                .with_context(|| format!("a client of {name} failed after {seconds:.1} s"));
        };
        *tally.refused.entry(known).or_default() += 1;
        if let Err(error) = session.exec("ROLLBACK")
            && code(&error) != Some(DEADLOCK)
        {
            return Err(error)
                .with_context(|| format!("ROLLBACK on {} failed", writer.node.name()));
        }
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_add_up() {
        let one = Tally {
            done: 3,
            refused: BTreeMap::from([(1213, 2)]),
            longest: Duration::from_millis(10),
            took: Duration::ZERO,
        };
        let mut sum = Tally {
            done: 4,
            refused: BTreeMap::from([(1213, 1), (1020, 1)]),
            longest: Duration::from_millis(30),
            took: Duration::from_secs(7),
        };
        sum.add(&one);
        assert_eq!(
            sum.to_string(),
            "7 transactions (1/s), 1 times error 1020, 3 times error 1213, longest 0.03 s"
        );
    }
}
