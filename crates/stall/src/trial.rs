//! One mode: the large transaction alone, and beside the small ones.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use dromon_load::bench::forth_and_back;
use dromon_load::rest;
use dromon_sandbox::Cluster;

use crate::Clock;
use crate::figures::Figures;
use crate::large::{Running, Told};
use crate::plan::{Mode, Plan};
use crate::sampler::{EVERY, Sample, Sampler, commits_by_counter, first_bytes};
use crate::tables;
use crate::work::{Commit, Feed, Seen, Work};

/// Time for connections and caches before anything is measured.
const WARM_UP: Duration = Duration::from_secs(2);
/// Samples before and after a large one that runs alone.
const ALONE_EDGE: Duration = Duration::from_millis(500);

/// What a small transaction may wait beyond the large one.
const CLIENT_EXTRA: Duration = Duration::from_secs(30);

/// When what happened to the large transaction, since the trial's zero.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marks {
    /// The statement was sent.
    pub begin: Duration,
    /// COMMIT was sent, or the first bytes went out before it.
    pub replicate: Duration,
    /// COMMIT was acknowledged.
    pub end: Duration,
    /// Each node showed it.
    pub applied: Vec<Duration>,
}

impl Marks {
    /// Acknowledged, and shown by all nodes.
    #[must_use]
    pub fn over(&self) -> Duration {
        self.applied.iter().copied().fold(self.end, Duration::max)
    }
}

/// All that was recorded of one large transaction.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// In order of time.
    pub samples: Vec<Sample>,
    /// Small transactions, in order of their end. By sysbench: in the order of
    /// the samples that counted them, and without waits.
    pub commits: Vec<Commit>,
    /// The clients' own record, so that waits are known.
    pub waits_known: bool,
    /// Open loop: when transactions were wanted.
    pub arrivals: Option<Vec<Duration>>,
    /// Open loop: how many were to be wanted per second.
    pub offered: Option<f64>,
    /// The large one.
    pub marks: Marks,
    /// When recording ended.
    pub until: Duration,
    /// CPU time of all servers, from the large one's begin to its `over`.
    pub cpu: Duration,
    /// The most memory a server had, in bytes; 0 if it cannot be told.
    pub server_memory: u64,
    /// When it began, a server was still busy with what had been before.
    pub began_busy: bool,
}

/// What came of a mode.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// Figures, and what they were made of: the large one beside the small.
    Measured(Box<(Figures, Trace)>),
    /// There was nothing to measure, and why.
    Skipped(String),
    /// It did not go as it must, and why.
    Failed(String),
}

/// Measures one mode. `generations` counts the large ones of this cluster. Who is first takes turns with
/// the rounds: the second finds the rows' pages as the first has left them.
pub fn run(
    cluster: &Cluster,
    plan: &Plan,
    mode: Mode,
    feed: Feed,
    round: usize,
    generations: &mut u32,
) -> anyhow::Result<(Figures, Trace)> {
    let (mut alone, mut beside) = (Trace::default(), Trace::default());
    let both = vec![(&mut alone, None), (&mut beside, Some(feed))];
    for (trace, feed) in forth_and_back(both, round) {
        *generations += 1;
        *trace = observe(cluster, plan, mode, feed, *generations)?;
    }
    Ok((Figures::new(&alone, &beside, plan.before), beside))
}

/// Closed loop without anything beside: commits per second.
pub fn capacity(cluster: &Cluster, clients: usize, time: Duration) -> anyhow::Result<f64> {
    let clock = Clock::start();
    let feed = Feed::Clients {
        clients,
        open: None,
    };
    let work = Work::start(cluster, feed, 1, clock, rest::DRAIN_LIMIT)?;
    let from = clock.now() + WARM_UP;
    clock.sleep_until(from + time);
    let window = from..clock.now();
    let seen = work.stop()?;
    let commits: Vec<Duration> = seen.commits.iter().map(|c| c.done).collect();
    let rate = dromon_load::series::rate(&commits, &window);
    ensure!(rate > 0.0, "the cluster committed nothing in {time:?}");
    Ok(rate)
}

fn observe(
    cluster: &Cluster,
    plan: &Plan,
    mode: Mode,
    feed: Option<Feed>,
    generation: u32,
) -> anyhow::Result<Trace> {
    tables::renew(cluster, plan.large)?;
    let began_busy = !rest::settled(cluster, plan.limit)?;
    for process in cluster.nodes().iter().filter_map(|n| n.process()) {
        // Without the right to it the peak covers earlier modes too.
        process.forget_memory_peak();
    }
    let clock = Clock::start();
    // sysbench tells no single commit.
    let counts = matches!(feed, Some(Feed::Sysbench { .. }));
    let probe = tables::probe(plan.large, generation);
    let sampler = Sampler::start(cluster, clock, &probe, counts)?;
    let mut work = None;
    if let Some(feed) = feed {
        let seed = u64::from(generation);
        // A client behind a stalled commit waits as long as the large one.
        let limit = plan.limit + CLIENT_EXTRA;
        work = Some(Work::start(cluster, feed, seed, clock, limit)?);
    }
    let watched = watch(cluster, plan, mode, generation, clock, &sampler, &mut work);
    // Whatever came of it, nothing goes on running.
    let samples = sampler.stop();
    let until = clock.now();
    let seen = work.map(Work::stop).transpose();
    let (told, applied, cpu) = watched?;
    let (samples, seen) = (samples?, seen?);
    let (Some(begin), Some(commit), Some(end)) = (told.begin, told.commit, told.end) else {
        bail!("the large transaction ended without having committed");
    };
    let origin: Vec<Sample> = samples.iter().filter(|s| s.node == 0).copied().collect();
    let sent = first_bytes(&origin, begin).filter(|at| *at < end);
    let marks = Marks {
        begin,
        replicate: sent.map_or(commit, |at| at.min(commit)),
        end,
        applied,
    };
    let nodes: Vec<String> = cluster.nodes().iter().map(|n| n.name()).collect();
    let waits_known = matches!(feed, Some(Feed::Clients { .. }));
    let offered = match feed {
        Some(Feed::Clients { open, .. }) => open.map(|(_, rate)| rate),
        _ => None,
    };
    let Seen {
        mut commits,
        arrivals,
    } = seen.unwrap_or_default();
    if counts {
        let counted = commits_by_counter(&samples, nodes.len());
        commits = counted
            .into_iter()
            .map(|(done, node)| Commit {
                wanted: done,
                done,
                node,
            })
            .collect();
    }
    Ok(Trace {
        nodes,
        samples,
        commits,
        waits_known,
        arrivals,
        offered,
        marks,
        until,
        cpu,
        server_memory: memory(cluster),
        began_busy,
    })
}

type Watched = (Told, Vec<Duration>, Duration);

/// Runs the large one until all nodes show it, with some time around.
fn watch(
    cluster: &Cluster,
    plan: &Plan,
    mode: Mode,
    generation: u32,
    clock: Clock,
    sampler: &Sampler,
    work: &mut Option<Work>,
) -> anyhow::Result<Watched> {
    let (edge_before, edge_after) = match work {
        Some(_) => (WARM_UP + plan.before, plan.after),
        None => (ALONE_EDGE, ALONE_EDGE),
    };
    pause(edge_before, sampler, work)?;
    let before = cpu(cluster);
    let large = Running::start(cluster, plan.large, mode, generation, clock, plan.limit)?;
    let give_up = Instant::now() + plan.limit;
    loop {
        let applied = sampler.applied();
        if large.is_over() && (large.told().end.is_none() || applied.iter().all(Option::is_some)) {
            let told = large.join()?;
            let used = cpu(cluster).saturating_sub(before);
            pause(edge_after, sampler, work)?;
            return Ok((told, applied.into_iter().flatten().collect(), used));
        }
        if Instant::now() > give_up {
            let behind: Vec<String> = cluster
                .nodes()
                .iter()
                .zip(applied)
                .filter(|(_, a)| a.is_none())
                .map(|(n, _)| n.name())
                .collect();
            bail!(
                "after {} s the large transaction is {} and not to be seen on {}; --limit gives it more time",
                plan.limit.as_secs(),
                match (large.told().commit, large.told().end) {
                    (_, Some(_)) => "committed",
                    (Some(_), None) => "in COMMIT",
                    (None, None) => "in its statement",
                },
                behind.join(", ")
            );
        }
        pause(EVERY / 2, sampler, work)?;
    }
}

/// Waits, unless a client or a sampler fails meanwhile.
fn pause(time: Duration, sampler: &Sampler, work: &mut Option<Work>) -> anyhow::Result<()> {
    let end = Instant::now() + time;
    loop {
        ensure!(!sampler.has_failed(), "a node cannot be sampled any more");
        if work.as_mut().is_some_and(|w| !w.goes_on()) {
            // Its own words come first.
            let seen = work.take().map(Work::stop).transpose();
            return seen.and_then(|_| bail!("the small transactions ended by themselves"));
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(EVERY / 2));
    }
}

/// CPU time of all servers so far.
fn cpu(cluster: &Cluster) -> Duration {
    usages(cluster).map(|u| u.cpu).sum()
}

fn memory(cluster: &Cluster) -> u64 {
    usages(cluster).map(|u| u.memory_peak).max().unwrap_or(0)
}

fn usages(cluster: &Cluster) -> impl Iterator<Item = dromon_sandbox::Usage> {
    cluster.nodes().iter().filter_map(|n| n.process()?.usage())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_over_when_acknowledged_and_shown_by_all() {
        let s = Duration::from_secs;
        let mut marks = Marks {
            end: s(5),
            applied: vec![s(5), s(9), s(7)],
            ..Marks::default()
        };
        assert_eq!(marks.over(), s(9));
        marks.end = s(11);
        assert_eq!(marks.over(), s(11));
    }
}
