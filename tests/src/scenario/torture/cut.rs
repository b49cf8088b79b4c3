//! Logs that were cut (shortened at their lower end) just before the fault: what
//! is gone from them must be in the databases, whatever these had in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use dromon_sandbox::{Cluster, Node};

use super::{add_option, seconds};
use crate::check::log_since;
use crate::load::Session;

/// The least that a node keeps; its checkpoints are what decides then.
const SMALL: &str = "gcache.size=1M";
/// For the database's flush to age, a sync, and two checkpoints.
const CUT_LIMIT: Duration = Duration::from_secs(120);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// From the next start on the nodes keep little log, or as much as usual.
pub fn set_log_size(cluster: &Cluster, small: bool) -> anyhow::Result<()> {
    let record = cluster.record();
    let mut options = String::new();
    let usual = record.provider_options.split(';').filter(|o| *o != SMALL);
    for option in usual.chain(small.then_some(SMALL)) {
        if !option.is_empty() {
            add_option(&mut options, option);
        }
    }
    Ok(cluster.change_settings(|record| record.provider_options = options)?)
}

/// Logs that were cut, and the writing that goes on until this is dropped.
pub struct Cut {
    pump: Option<Pump>,
    begins: Vec<i64>,
    /// In words.
    pub words: String,
}

/// Writes much until every node has cut its log at a place that was not written
/// yet when this began. Fails if a node does not.
pub fn until_cut(cluster: &Cluster, db: &str) -> anyhow::Result<Cut> {
    let before = numbers(cluster, "wsrep_local_cached_downto")?;
    // A cut at what the last start found may have been made long ago.
    let written = numbers(cluster, "wsrep_last_committed")?;
    let began = Instant::now();
    let pump = Pump::start(cluster.nodes(), db);
    loop {
        thread::sleep(Duration::from_millis(100));
        let now = numbers(cluster, "wsrep_local_cached_downto")?;
        if now.iter().zip(&written).all(|(now, then)| now > then) {
            let words = format!(
                "logs cut from seqnos {before:?} to {now:?} after {} MB and {}, ",
                pump.written(),
                seconds(began.elapsed())
            );
            return Ok(Cut {
                pump: Some(pump),
                begins: now,
                words,
            });
        }
        if began.elapsed() > CUT_LIMIT {
            bail!(
                "the log was not cut on every node within {} s and {} MB, so nothing was shown: \
                 wsrep_local_cached_downto was {before:?} and is {now:?}, wsrep_last_committed was {written:?}",
                CUT_LIMIT.as_secs(),
                pump.written()
            );
        }
    }
}

impl Cut {
    /// Ends the writing.
    pub fn stop_writing(&mut self) {
        self.pump = None;
    }

    /// Fails if a node's log begins earlier now than it did after the cut: then it
    /// had not been cut.
    pub fn was_made(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let now = numbers(cluster, "wsrep_local_cached_downto")?;
        ensure!(
            now.iter().zip(&self.begins).all(|(now, then)| now >= then),
            "the nodes said that their logs begin at seqnos {:?}; started again, they begin at {now:?}",
            self.begins
        );
        Ok(())
    }
}

/// A status variable of each node; one that is not above zero tells nothing.
fn numbers(cluster: &Cluster, name: &str) -> anyhow::Result<Vec<i64>> {
    let mut all = Vec::new();
    for node in cluster.nodes() {
        let number = node.status(ANSWER_LIMIT)?.number(name);
        ensure!(
            number.is_some_and(|n| n > 0),
            "{} does not tell {name}",
            node.name()
        );
        all.extend(number);
    }
    Ok(all)
}

/// Who took a full copy since the marks, and what its log says of the reason.
/// Fails if that was a database before the beginning of its own log.
pub fn copies(cluster: &Cluster, marks: &[usize]) -> anyhow::Result<Vec<String>> {
    let mut copies = Vec::new();
    for (node, mark) in cluster.nodes().iter().zip(marks) {
        let log = log_since(node, *mark);
        let line = log.lines().find(|l| l.contains("log begins only at"));
        ensure!(
            line.is_none(),
            "{}'s log was cut too far: {}",
            node.name(),
            line.unwrap_or_default()
        );
        if log.contains(RECEIVED) {
            let why: Vec<&str> = log.lines().filter(|l| l.contains("full copy")).collect();
            copies.push(format!(
                "{} took a full copy: {}",
                node.name(),
                why.join("; ")
            ));
        }
    }
    Ok(copies)
}

/// Fails if a node took a full copy since the marks: none had lost what it needs to go on.
pub fn no_copies(cluster: &Cluster, marks: &[usize]) -> anyhow::Result<()> {
    let copies = copies(cluster, marks)?;
    ensure!(
        copies.is_empty() || !cluster.record().is_dromon(),
        "copies were not needed: {}",
        copies.join("; ")
    );
    Ok(())
}

/// What the server says when a full copy has arrived.
const RECEIVED: &str = "SST received";

const TABLE: &str = "CREATE TABLE IF NOT EXISTS bulk (id INT PRIMARY KEY, pad MEDIUMTEXT NOT NULL)";
/// Rows that are written again and again: the table stays small, the log grows.
const ROWS: u64 = 8;
/// Bytes of a row.
const BYTES: u64 = 1 << 20;
/// Between two rows, so that small transactions get their turn.
const PAUSE: Duration = Duration::from_millis(10);

/// A client that writes rows of a megabyte until it is dropped, through all faults.
pub struct Pump {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Pump {
    /// Starts it on one of `nodes`, on the next one after an error.
    pub fn start(nodes: &[Arc<Node>], db: &str) -> Self {
        let (nodes, db) = (nodes.to_vec(), db.to_string());
        let (stop, written) = (Arc::default(), Arc::default());
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&written));
        let thread = thread::spawn(move || {
            for node in nodes.iter().cycle() {
                if !write(node, &db, &stopped, &count) {
                    return;
                }
                thread::sleep(Duration::from_millis(100));
            }
        });
        Self {
            stop,
            written,
            thread: Some(thread),
        }
    }

    /// Rows acknowledged so far, each a megabyte.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it has nothing to say
        }
    }
}

/// Writes until an error; false when it is to stop.
fn write(node: &Node, db: &str, stop: &AtomicBool, count: &AtomicU64) -> bool {
    let Ok(mut session) = Session::open_impatient(node, db, 0, ANSWER_LIMIT) else {
        return !stop.load(Ordering::Acquire);
    };
    let mut usable = session.exec(TABLE).is_ok();
    while usable && !stop.load(Ordering::Acquire) {
        let n = count.load(Ordering::Acquire);
        let row = format!(
            "REPLACE INTO bulk VALUES ({}, REPEAT(CHAR(97 + {n} % 26), {BYTES}))",
            n % ROWS
        );
        usable = session.exec(&row).is_ok();
        count.fetch_add(u64::from(usable), Ordering::AcqRel);
        thread::sleep(PAUSE);
    }
    !stop.load(Ordering::Acquire)
}
