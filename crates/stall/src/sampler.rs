//! What each node says of itself, ten times a second.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use dromon_load::storm::Session;
use dromon_sandbox::{Cluster, WsrepStatus};

use crate::Clock;

/// Distance of two samples.
pub const EVERY: Duration = Duration::from_millis(100);
/// A node that says nothing for so long is lost.
const LIMIT: Duration = Duration::from_secs(120);
/// Bytes beyond those of small transactions that show the large one on the
/// wire: more than a hundred small ones differ in length.
const SHOWS_BYTES: f64 = 4096.0;

/// One look at one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// When the answer was there.
    pub at: Duration,
    /// Position of the node in the cluster.
    pub node: usize,
    /// `wsrep_last_committed`.
    pub last_committed: i64,
    /// `wsrep_local_commits`.
    pub local_commits: i64,
    /// `Com_commit`, where it is asked for.
    pub commit_statements: i64,
    /// `wsrep_local_recv_queue`.
    pub recv_queue: i64,
    /// `wsrep_flow_control_paused_ns`.
    pub paused_ns: i64,
    /// `wsrep_replicated`.
    pub replicated: i64,
    /// `wsrep_replicated_bytes`.
    pub replicated_bytes: i64,
    /// `wsrep_dromon_memory_peak`, where the provider tells it.
    pub memory_peak: Option<i64>,
}

impl Sample {
    fn new(at: Duration, node: usize, status: &WsrepStatus, commit_statements: i64) -> Self {
        let number = |name| status.number(name).unwrap_or(0);
        Self {
            at,
            node,
            last_committed: status.last_committed(),
            local_commits: number("wsrep_local_commits"),
            commit_statements,
            recv_queue: number("wsrep_local_recv_queue"),
            paused_ns: number("wsrep_flow_control_paused_ns"),
            replicated: number("wsrep_replicated"),
            replicated_bytes: number("wsrep_replicated_bytes"),
            memory_peak: status.number("wsrep_dromon_memory_peak"),
        }
    }
}

type Taken = anyhow::Result<Vec<Sample>>;

/// A thread per node that samples it.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    applied: Arc<Vec<OnceLock<Duration>>>,
    threads: Vec<thread::JoinHandle<Taken>>,
}

impl Sampler {
    /// Connects and begins. `probe` is a query that gives 1 once a node shows
    /// the large transaction. `counts`: COMMITs are counted, too.
    pub fn start(
        cluster: &Cluster,
        clock: Clock,
        probe: &str,
        counts: bool,
    ) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let count = cluster.nodes().len();
        let applied: Arc<Vec<_>> = Arc::new((0..count).map(|_| OnceLock::new()).collect());
        let mut sessions = Vec::new();
        for node in cluster.nodes() {
            sessions.push((node.name(), Session::open_within(node, "", 0, LIMIT)?));
        }
        let threads = sessions
            .into_iter()
            .enumerate()
            .map(|(index, (name, session))| {
                let (stop, applied) = (Arc::clone(&stop), Arc::clone(&applied));
                let probe = probe.to_string();
                thread::spawn(move || {
                    let asked = Asked {
                        probe: &probe,
                        counts,
                    };
                    sample(index, session, clock, asked, &stop, &applied[index])
                        .with_context(|| format!("sampling {name}"))
                })
            })
            .collect();
        Ok(Self {
            stop,
            applied,
            threads,
        })
    }

    /// When each node first showed the large transaction.
    pub fn applied(&self) -> Vec<Option<Duration>> {
        self.applied.iter().map(|a| a.get().copied()).collect()
    }

    /// True when a node could not be sampled any more.
    pub fn has_failed(&self) -> bool {
        self.threads.iter().any(thread::JoinHandle::is_finished)
    }

    /// Ends sampling; all samples in order of time.
    pub fn stop(mut self) -> Taken {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for thread in std::mem::take(&mut self.threads) {
            let taken = thread.join();
            all.extend(taken.map_err(|_| anyhow::anyhow!("a sampling thread panicked"))??);
        }
        all.sort_by_key(|s| s.at);
        Ok(all)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        // What fails before it is stopped must not be sampled on into the next mode.
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What is asked beside the provider's status.
struct Asked<'a> {
    probe: &'a str,
    counts: bool,
}

fn sample(
    node: usize,
    mut session: Session,
    clock: Clock,
    asked: Asked<'_>,
    stop: &AtomicBool,
    applied: &OnceLock<Duration>,
) -> Taken {
    let mut all = Vec::new();
    let mut tick = 0;
    while !stop.load(Ordering::Relaxed) {
        // A late answer skips ticks and does not shift those that follow.
        tick = (clock.now().as_millis() / EVERY.as_millis()).max(tick) + 1;
        clock.sleep_until(EVERY * u32::try_from(tick).unwrap_or(u32::MAX));
        let rows = session.rows("SHOW GLOBAL STATUS LIKE 'wsrep_%'")?;
        let counted: Option<(String, i64)> = match asked.counts {
            true => session.one("SHOW GLOBAL STATUS LIKE 'Com_commit'")?,
            false => None,
        };
        all.push(Sample::new(
            clock.now(),
            node,
            &WsrepStatus::from_rows(rows),
            counted.map_or(0, |(_, count)| count),
        ));
        if applied.get().is_none() && session.one::<u64>(asked.probe)? == Some(1) {
            // Set once, by this thread only.
            let _ = applied.set(clock.now());
        }
    }
    Ok(all)
}

/// When the origin's counters first showed bytes that small transactions do not
/// explain, at or after `begin`. `samples` are the origin's, in order.
pub fn first_bytes(samples: &[Sample], begin: Duration) -> Option<Duration> {
    let before = samples.partition_point(|s| s.at < begin);
    let usual = match (samples.first(), samples[..before].last()) {
        (Some(first), Some(last)) if last.replicated > first.replicated => {
            (last.replicated_bytes - first.replicated_bytes) as f64
                / (last.replicated - first.replicated) as f64
        }
        _ => 0.0,
    };
    samples
        .windows(2)
        .find(|pair| {
            let bytes = (pair[1].replicated_bytes - pair[0].replicated_bytes) as f64;
            let explained = (pair[1].replicated - pair[0].replicated) as f64 * usual;
            pair[1].at >= begin && bytes - explained > SHOWS_BYTES
        })
        .map(|pair| pair[1].at)
}

/// The moments at which clients of each node sent COMMIT, as far as its counter
/// tells: all of a sample at the time of the sample. Not by `wsrep_local_commits`,
/// in which Galera counts each fragment of a streamed transaction, and we do not.
pub fn commits_by_counter(samples: &[Sample], nodes: usize) -> Vec<(Duration, usize)> {
    let mut last: Vec<Option<i64>> = vec![None; nodes];
    let mut all = Vec::new();
    for sample in samples {
        if let Some(before) = last[sample.node].replace(sample.commit_statements) {
            let new = (sample.commit_statements - before).max(0);
            all.extend((0..new).map(|_| (sample.at, sample.node)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(tenths: u32, replicated: i64, replicated_bytes: i64) -> Sample {
        Sample {
            at: EVERY * tenths,
            replicated,
            replicated_bytes,
            ..Sample::default()
        }
    }

    #[test]
    fn bytes_of_small_ones_are_not_the_large_one() {
        let begin = EVERY * 3;
        let mut samples = vec![
            at(1, 10, 3000),
            at(2, 30, 9000),
            at(3, 50, 15_050),
            // Many small ones, a little longer than usual.
            at(4, 250, 75_900),
            at(5, 251, 76_200),
        ];
        assert_eq!(first_bytes(&samples, begin), None);
        samples.push(at(6, 253, 88_000));
        assert_eq!(first_bytes(&samples, begin), Some(EVERY * 6));
    }

    #[test]
    fn alone_every_byte_is_the_large_ones() {
        let samples = [at(1, 7, 500), at(2, 7, 500), at(3, 8, 70_500)];
        assert_eq!(first_bytes(&samples, EVERY), Some(EVERY * 3));
        assert_eq!(first_bytes(&[], EVERY), None);
        assert_eq!(first_bytes(&samples[..2], EVERY), None);
    }

    #[test]
    fn a_counter_gives_commits_from_its_second_sample_on() {
        let sample = |tenths, node, commit_statements| Sample {
            at: EVERY * tenths,
            node,
            commit_statements,
            ..Sample::default()
        };
        let samples = [
            sample(1, 0, 100),
            sample(1, 1, 5),
            sample(2, 0, 102),
            sample(2, 1, 5),
            sample(3, 1, 6),
        ];
        assert_eq!(
            commits_by_counter(&samples, 2),
            [(EVERY * 2, 0), (EVERY * 2, 0), (EVERY * 3, 1)]
        );
    }

    #[test]
    fn fragments_are_no_commits() {
        let sample = |tenths, local_commits| Sample {
            at: EVERY * tenths,
            local_commits,
            commit_statements: 7,
            ..Sample::default()
        };
        let samples = [sample(1, 100), sample(2, 160), sample(3, 220)];
        assert_eq!(commits_by_counter(&samples, 1), []);
    }
}
