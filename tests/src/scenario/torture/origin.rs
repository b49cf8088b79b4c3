//! The origin of a large transaction dies when half of it has gone out. What the
//! cluster has decided is done by all; what it has not is undone by all.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::{Cluster, Node, Start};

use super::pauses::{Answer, ask_until, longest_gap};
use super::{Needs, all_back, leader, seconds, started};
use crate::check;
use crate::harness::{Case, new_database};
use crate::load::{RETRY, Session, Sql, code};
use crate::rng::Rng;

/// Rows that one INSERT fills in.
const STEP: u64 = 10_000;
/// No statement of the large transaction may take longer.
const LARGE_LIMIT: Duration = Duration::from_secs(600);
/// From the death until its rows can be written by others.
const LIMIT: Duration = Duration::from_secs(120);
/// How long the small ones are watched beyond that.
const AFTER: Duration = Duration::from_secs(1);
/// Lock wait timeout: the row is held, try again. No majority yet.
const HELD: u16 = 1205;
const NOT_READY: u16 = 1047;

/// How the large transaction travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// As a plain one.
    Automatic,
    /// In fragments of so many bytes, as the session asks.
    Native(u32),
}

impl How {
    fn name(self) -> String {
        match self {
            Self::Automatic => "automatic".into(),
            Self::Native(bytes) => format!("fragments of {bytes} bytes"),
        }
    }
}

/// Automatic and native streaming; beside another provider, if one is named.
pub fn dies(case: &mut Case) -> anyhow::Result<()> {
    measure(case, None, &[How::Automatic, How::Native(100_000)])?;
    if let Some(peer) = case.options.peer.clone() {
        case.retire_cluster()?;
        measure(case, Some(&peer), &[How::Native(100_000)])?;
    }
    Ok(())
}

fn measure(case: &mut Case, peer: Option<&Path>, ways: &[How]) -> anyhow::Result<()> {
    let rows = case.options.large_rows;
    let cluster = started(case, Needs::default(), |spec| {
        if let Some(peer) = peer {
            spec.provider = peer.to_path_buf();
        }
    })?;
    let whose = if peer.is_some() { "the peer, " } else { "" };
    fill(&cluster, &case.db, rows)?;
    let ids = Arc::new(AtomicI64::new(1));
    let mut generation = 0;
    for how in ways {
        generation += 1;
        let idle = Instant::now();
        let large = Large::start(cluster.node(0), &case.db, *how, generation)?;
        let most = large.watch(cluster.node(1), |_| false)?;
        large.ended()?;
        let idle = idle.elapsed();
        ensure!(
            most >= 4,
            "{}: the others never had more than {most} parts of it, so it cannot be stopped halfway; it must be larger",
            how.name()
        );
        check::settled(&cluster, &case.db)?;
        for round in 0..case.options.rounds {
            generation += 1;
            let mut rng = Rng::new(case.options.seed + round);
            let leads = leader(&cluster, &mut rng)?;
            let origin = (leads + usize::from(round % 2 == 0)) % 3;
            let seen = once(case, &cluster, origin, *how, generation, most / 2, &ids)
                .with_context(|| format!("{whose}{}, round {}", how.name(), round + 1))?;
            case.progress(format!(
                "{whose}{}, round {} (alone {}): the origin killed{} with {} of {most} parts at the others; writes on these \
                 paused for {:.2} s, its rows could be written {} after its death, {}; all Synced {} after its start, equal",
                how.name(),
                round + 1,
                seconds(idle),
                if origin == leads && peer.is_none() { " (it led)" } else { "" },
                seen.parts,
                seen.pause.as_secs_f64(),
                seconds(seen.free),
                if seen.done { "all changed" } else { "none changed" },
                seconds(seen.back),
            ));
        }
    }
    Ok(())
}

pub(super) fn fill(cluster: &Cluster, db: &str, rows: u64) -> anyhow::Result<()> {
    let mut session = new_database(
        cluster.node(0),
        db,
        &[
            "CREATE TABLE t (id BIGINT PRIMARY KEY)",
            "CREATE TABLE big (id INT PRIMARY KEY, v INT NOT NULL, touched INT NOT NULL, pad CHAR(100) NOT NULL)",
        ],
    )?;
    for from in (1..=rows).step_by(usize::try_from(STEP)?) {
        let to = (from + STEP - 1).min(rows);
        session.exec(&format!(
            "INSERT INTO big SELECT seq, 0, 0, REPEAT('b', 100) FROM seq_{from}_to_{to}"
        ))?;
    }
    check::drained(cluster).map(drop)
}

/// The large transaction, on its way.
pub(super) struct Large {
    client: JoinHandle<Sql<()>>,
}

impl Large {
    pub(super) fn start(node: &Node, db: &str, how: How, generation: u32) -> anyhow::Result<Self> {
        let mut session = Session::open_within(node, db, 0, LARGE_LIMIT)?;
        if let How::Native(bytes) = how {
            session.exec("SET SESSION wsrep_trx_fragment_unit = 'bytes'")?;
            session.exec(&format!("SET SESSION wsrep_trx_fragment_size = {bytes}"))?;
        }
        Ok(Self::of(
            session,
            format!("UPDATE big SET v = {generation}"),
        ))
    }

    /// This statement.
    pub(super) fn of(mut session: Session, sql: String) -> Self {
        let client = thread::spawn(move || session.exec(&sql).map(drop));
        Self { client }
    }

    /// Looks how many parts of it `node` has until `enough` says so or it is over;
    /// the most that were seen.
    pub(super) fn watch(&self, node: &Node, enough: impl Fn(u64) -> bool) -> anyhow::Result<u64> {
        let mut session = Session::open(node, "", 0)?;
        let mut most = 0;
        while !self.client.is_finished() {
            let parts: Option<u64> =
                session.one("SELECT COUNT(*) FROM mysql.wsrep_streaming_log")?;
            most = most.max(parts.unwrap_or(0));
            if enough(most) {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(most)
    }

    /// What its client was told; a refusal is the driver's error.
    pub(super) fn ended(self) -> anyhow::Result<()> {
        match self.client.join() {
            Ok(told) => told.context("the large transaction failed"),
            Err(_) => bail!("the client of the large transaction panicked"),
        }
    }
}

struct Seen {
    parts: u64,
    /// Longest time without an acknowledged write on one of the others.
    pause: Duration,
    /// From the death until a row of the large one was written on each of them.
    free: Duration,
    /// Whether the large one is there.
    done: bool,
    /// From the start of the origin until all were Synced.
    back: Duration,
}

fn once(
    case: &Case,
    cluster: &Arc<Cluster>,
    origin: usize,
    how: How,
    generation: u32,
    half: u64,
    ids: &Arc<AtomicI64>,
) -> anyhow::Result<Seen> {
    let others: Vec<&Arc<Node>> = (0..3)
        .filter(|i| *i != origin)
        .map(|i| cluster.node(i))
        .collect();
    let stop = Arc::new(AtomicBool::new(false));
    let writers = small_ones(&others, &case.db, ids, &stop);
    let mark = others[0].read_log()?.len();
    let large = Large::start(cluster.node(origin), &case.db, how, generation)?;
    let result = large.watch(others[0], |parts| parts >= half);
    let died = Instant::now();
    let killed = cluster.node(origin).kill();
    let free = result.and_then(|parts| {
        killed?;
        ensure!(
            parts >= half,
            "it was over when only {parts} parts of it had been seen: nothing was interrupted"
        );
        Ok((parts, written(&others, &case.db, generation, died)?))
    });
    thread::sleep(AFTER);
    // Whatever came of it, no client goes on.
    stop.store(true, Ordering::Release);
    let end = Instant::now();
    let mut pause = Duration::ZERO;
    for writer in writers {
        let answers = writer
            .join()
            .map_err(|_| anyhow::anyhow!("a client panicked"))?;
        pause = pause.max(longest_gap(&answers, died, end));
    }
    let (parts, free) = free?;
    ensure!(
        large.ended().is_err(),
        "the client of the killed origin was told that it is done: it was over before"
    );
    check::nothing_open(cluster, LIMIT.saturating_sub(died.elapsed()))?;
    let begin = Instant::now();
    cluster.node(origin).start(Start::Join, &[])?;
    all_back(cluster)?;
    let back = begin.elapsed();
    check::settled(cluster, &case.db)?;
    let rows = case.options.large_rows;
    let changed: Option<u64> = Session::open_within(others[0], &case.db, 0, LARGE_LIMIT)?
        .one(&format!("SELECT COUNT(*) FROM big WHERE v = {generation}"))?;
    let changed = changed.unwrap_or(0);
    // A plain one was decided when its first part came, but is undone everywhere if its
    // origin is evicted before the last one is out, which a slow machine brings about; a
    // streamed one is not before its COMMIT, which its origin did not send.
    let undone = check::log_since(others[0], mark)
        .contains("nothing of it remains on any node: its node left the cluster");
    let wanted = match how {
        How::Automatic if !undone => rows,
        How::Automatic | How::Native(_) => 0,
    };
    ensure!(
        changed == wanted,
        "{changed} of {rows} rows have what it wrote, {wanted} should"
    );
    Ok(Seen {
        parts,
        pause,
        free,
        done: changed == rows,
        back,
    })
}

/// A client on each of `nodes` that inserts single rows until `stop`.
pub(super) fn small_ones(
    nodes: &[&Arc<Node>],
    db: &str,
    ids: &Arc<AtomicI64>,
    stop: &Arc<AtomicBool>,
) -> Vec<JoinHandle<Vec<Answer>>> {
    let client = |node: &&Arc<Node>| {
        let (node, db) = (Arc::clone(node), db.to_string());
        let (ids, stop) = (Arc::clone(ids), Arc::clone(stop));
        thread::spawn(move || {
            ask_until(&stop, &node, &db, move |s| {
                let id = ids.fetch_add(1, Ordering::Relaxed);
                s.exec(&format!("INSERT INTO t VALUES ({id})")).map(drop)
            })
        })
    };
    nodes.iter().map(client).collect()
}

/// Writes a row of the large one on each of these nodes, however often it takes; how
/// long after its origin's death the last one was written.
fn written(
    nodes: &[&Arc<Node>],
    db: &str,
    generation: u32,
    died: Instant,
) -> anyhow::Result<Duration> {
    for (nth, node) in nodes.iter().enumerate() {
        let mut session = Session::open(node, db, 0)?;
        session.exec("SET SESSION innodb_lock_wait_timeout = 1")?;
        let sql = format!(
            "UPDATE big SET touched = {generation} WHERE id = {}",
            nth + 1
        );
        while let Err(error) = session.exec(&sql) {
            let number = code(&error);
            let again =
                number.is_some_and(|c| RETRY.contains(&c) || [HELD, NOT_READY].contains(&c));
            ensure!(again, "its rows on {}: {error}", node.name());
            ensure!(
                died.elapsed() < LIMIT,
                "its rows on {} cannot be written {} after its origin's death: {error}",
                node.name(),
                seconds(died.elapsed())
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(died.elapsed())
}
