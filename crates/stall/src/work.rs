//! The small transactions: who runs them, and what is remembered of each.

use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use dromon_load::arrivals::{Arrivals, Spread};
use dromon_load::storm::{RETRY, Storm, Writer};
use dromon_load::sysbench::{Sysbench, complaints};
use dromon_sandbox::Cluster;

use crate::Clock;
use crate::tables::{DB, SMALL_ROWS, SMALL_TABLES};

/// A client that waits for its next arrival looks whether it is over.
const NAP: Duration = Duration::from_millis(50);
const SYSBENCH_TABLES: u32 = 4;
const SYSBENCH_ROWS: u32 = 10_000;

/// The small load with everything settled, capacity measured where needed.
#[derive(Debug, Clone, Copy)]
pub enum Feed {
    /// Clients; with a rate (all of them together) open loop.
    Clients {
        clients: usize,
        open: Option<(Spread, f64)>,
    },
    /// sysbench.
    Sysbench { threads: u32 },
}

/// A small transaction that was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// When the client wanted to begin: its arrival in open loop.
    pub wanted: Duration,
    /// When it was acknowledged.
    pub done: Duration,
    /// Position of the node in the cluster.
    pub node: usize,
}

/// What the clients saw.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// In order of `done`.
    pub commits: Vec<Commit>,
    /// Open loop: all arrivals until the load was stopped, in order.
    pub arrivals: Option<Vec<Duration>>,
}

type Log = Arc<Mutex<Vec<Commit>>>;

/// The load while it runs.
pub enum Work {
    /// Our clients.
    Clients {
        storm: Storm,
        logs: Vec<Log>,
        schedules: Vec<(Duration, Arrivals)>,
        clock: Clock,
    },
    /// sysbench: only the nodes' counters tell of its commits.
    Sysbench(Child),
}

impl Work {
    /// Connects and begins. `seed` varies rows and arrivals; no statement may
    /// take longer than `limit`.
    pub fn start(
        cluster: &Cluster,
        feed: Feed,
        seed: u64,
        clock: Clock,
        limit: Duration,
    ) -> anyhow::Result<Self> {
        let (clients, open) = match feed {
            Feed::Sysbench { threads } => return sysbench(cluster, threads, limit),
            Feed::Clients { clients, open } => (clients, open),
        };
        let mut logs = Vec::new();
        let mut schedules = Vec::new();
        let mut writers = Vec::new();
        for client in 0..clients {
            let node = client % cluster.nodes().len();
            let log = Log::default();
            logs.push(Arc::clone(&log));
            let schedule = open.map(|(spread, rate)| {
                let seed = seed * 1000 + client as u64 + 1;
                (
                    clock.now(),
                    Arrivals::new(spread, rate / clients as f64, seed),
                )
            });
            schedules.extend(schedule.clone());
            writers.push(client_step(cluster, node, schedule, log, clock));
        }
        Ok(Self::Clients {
            storm: Storm::start_within(DB, writers, RETRY, limit)?,
            logs,
            schedules,
            clock,
        })
    }

    /// True as long as nothing has failed.
    pub fn goes_on(&mut self) -> bool {
        match self {
            Self::Clients { storm, .. } => storm.is_blowing(),
            Self::Sysbench(child) => matches!(child.try_wait(), Ok(None)),
        }
    }

    /// Ends the load.
    pub fn stop(self) -> anyhow::Result<Seen> {
        match self {
            Self::Clients {
                storm,
                logs,
                schedules,
                clock,
            } => {
                let end = clock.now();
                storm.stop()?;
                let mut commits: Vec<Commit> = logs
                    .iter()
                    .flat_map(|log| log.lock().unwrap_or_else(PoisonError::into_inner).clone())
                    .collect();
                commits.sort_by_key(|c| c.done);
                let open = !schedules.is_empty();
                let mut arrivals: Vec<Duration> = schedules
                    .into_iter()
                    .flat_map(|(from, schedule)| {
                        let all = schedule.until(end.saturating_sub(from));
                        all.into_iter().map(move |a| from + a)
                    })
                    .collect();
                arrivals.sort();
                Ok(Seen {
                    commits,
                    arrivals: open.then_some(arrivals),
                })
            }
            Self::Sysbench(mut child) => {
                if let Some(status) = child.try_wait()? {
                    let out = child.wait_with_output()?;
                    let mut text = String::from_utf8_lossy(&out.stdout).into_owned();
                    text += &String::from_utf8_lossy(&out.stderr);
                    bail!("sysbench ended by itself ({status}): {}", complaints(&text));
                }
                child.kill().context("stopping sysbench")?;
                child.wait()?;
                Ok(Seen::default())
            }
        }
    }
}

fn client_step(
    cluster: &Cluster,
    node: usize,
    schedule: Option<(Duration, Arrivals)>,
    log: Log,
    clock: Clock,
) -> Writer {
    let mut schedule = schedule;
    // Kept over a retry: the client still wants the same transaction.
    let mut wanted = None;
    Writer::new(cluster.node(node), move |session| {
        let moment = *wanted.get_or_insert_with(|| match &mut schedule {
            None => clock.now(),
            Some((from, arrivals)) => *from + arrivals.next().unwrap_or_default(),
        });
        let now = clock.now();
        if moment > now {
            clock.sleep_until(moment.min(now + NAP));
            if moment > clock.now() {
                return Ok(()); // nothing yet; the storm asks whether it is over
            }
        }
        let table = session.rng.below(SMALL_TABLES) + 1;
        let id = session.rng.below(SMALL_ROWS) + 1;
        session.exec(&format!("UPDATE s{table} SET v = v + 1 WHERE id = {id}"))?;
        log.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Commit {
                wanted: moment,
                done: clock.now(),
                node,
            });
        wanted = None;
        Ok(())
    })
}

fn sysbench_run(threads: u32) -> Sysbench<'static> {
    Sysbench {
        db: DB,
        tables: SYSBENCH_TABLES,
        rows: SYSBENCH_ROWS,
        threads,
        seed: 1,
    }
}

fn sysbench(cluster: &Cluster, threads: u32, limit: Duration) -> anyhow::Result<Work> {
    let nodes: Vec<usize> = (0..cluster.nodes().len()).collect();
    let child = sysbench_run(threads)
        .command(&cluster.record(), &nodes, limit * 2)
        .context("making a pipe")?
        .arg("run")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("running sysbench (apt-get install sysbench)")?;
    Ok(Work::Sysbench(child))
}

/// Makes sysbench's tables.
pub fn prepare_sysbench(cluster: &Cluster, threads: u32) -> anyhow::Result<()> {
    sysbench_run(threads).prepare(&cluster.record())
}
