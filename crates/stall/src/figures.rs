//! From what was recorded to the numbers of the table. Pure.

use std::ops::Range;
use std::time::Duration;

use dromon_load::series;

use crate::trial::Trace;
use crate::work::Commit;

/// A stall may end with the large one and still be seen a moment later.
const ECHO: Duration = Duration::from_secs(1);

/// How long the large one took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// From the statement to COMMIT.
    pub statement: Duration,
    /// From the statement to the acknowledgement.
    pub total: Duration,
    /// From the statement until all nodes show it.
    pub applied: Duration,
}

impl Times {
    fn of(trace: &Trace) -> Self {
        let since = |moment: Duration| moment.saturating_sub(trace.marks.begin);
        Self {
            statement: since(trace.marks.replicate),
            total: since(trace.marks.end),
            applied: since(trace.marks.over()),
        }
    }
}

/// What is said of one mode. Rates are commits of all nodes per second;
/// `docs/bench.md` says more of each.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// Alone, just before the large one.
    pub rate_before: f64,
    /// From the large one's begin until all nodes show it.
    pub rate_beside: f64,
    /// From its first bytes, or its COMMIT, until all nodes show it.
    pub rate_commit: f64,
    /// Longest time in which no node acknowledged anything.
    pub gap: Duration,
    /// The same for the node that fared worst.
    pub gap_of_a_node: Duration,
    /// Fewest commits of all nodes within any second; none if it took less.
    pub worst_second: Option<usize>,
    /// Open loop: transactions wanted per second.
    pub offered: Option<f64>,
    /// Open loop: what was done of what was wanted meanwhile.
    pub share_done: Option<f64>,
    /// The wait that 99 of 100 did not exceed, before.
    pub p99_before: Option<Duration>,
    /// And beside.
    pub p99_beside: Option<Duration>,
    /// The longest wait beside.
    pub longest_wait: Option<Duration>,
    /// The large one alone.
    pub alone: Times,
    /// The large one beside the small ones.
    pub beside: Times,
    /// Seqnos it took, alone: 1 is no streaming.
    pub seqnos: i64,
    /// The provider's own memory, where it tells it: most of any node, bytes.
    pub provider_memory: Option<u64>,
    /// The most memory of a server process, bytes.
    pub server_memory: u64,
    /// CPU time of all servers for the large one alone.
    pub cpu_alone: Duration,
    /// CPU time of all servers while it ran beside the small ones.
    pub cpu_beside: Duration,
    /// Alone or beside began while a server was still busy with what had been before.
    pub began_busy: bool,
}

impl Figures {
    /// `before`: how long the small ones ran alone.
    pub(crate) fn new(alone: &Trace, beside: &Trace, before: Duration) -> Self {
        let marks = &beside.marks;
        let all: Vec<Duration> = beside.commits.iter().map(|c| c.done).collect();
        let during = marks.begin..marks.over();
        let noticed = marks.begin..(marks.over() + ECHO).min(beside.until);
        let quiet = marks.begin.saturating_sub(before)..marks.begin;
        let gap_of_a_node = (0..beside.nodes.len())
            .map(|node| {
                let own = commits_of(&beside.commits, node);
                series::longest_gap(&own, &noticed)
            })
            .max();
        let waits = |window: &Range<Duration>| waits(beside, window);
        let (waits_before, waits_beside) = (waits(&quiet), waits(&noticed));
        Self {
            rate_before: series::rate(&all, &quiet),
            rate_beside: series::rate(&all, &during),
            rate_commit: series::rate(&all, &(marks.replicate..marks.over())),
            gap: series::longest_gap(&all, &noticed),
            gap_of_a_node: gap_of_a_node.unwrap_or_default(),
            worst_second: series::worst_second(&all, &noticed),
            offered: beside.offered,
            share_done: share_done(beside, &all, &during),
            p99_before: series::quantile(&waits_before, 0.99),
            p99_beside: series::quantile(&waits_beside, 0.99),
            longest_wait: waits_beside.last().copied(),
            alone: Times::of(alone),
            beside: Times::of(beside),
            seqnos: seqnos(alone),
            provider_memory: provider_memory(alone).max(provider_memory(beside)),
            server_memory: alone.server_memory.max(beside.server_memory),
            cpu_alone: alone.cpu,
            cpu_beside: beside.cpu,
            began_busy: alone.began_busy || beside.began_busy,
        }
    }

    /// The rate beside as a part of the one before.
    #[must_use]
    pub fn ratio_beside(&self) -> f64 {
        self.rate_beside / self.rate_before
    }

    /// The rate during its commit as a part of the one before.
    #[must_use]
    pub fn ratio_commit(&self) -> f64 {
        self.rate_commit / self.rate_before
    }

    /// Open loop: the worst second as a part of what was offered.
    #[must_use]
    pub fn worst_of_offered(&self) -> Option<f64> {
        Some(self.worst_second? as f64 / self.offered?)
    }

    /// How many times as long as alone the large one took beside, until all nodes showed it.
    #[must_use]
    pub fn times_alone(&self) -> f64 {
        self.beside.applied.as_secs_f64() / self.alone.applied.as_secs_f64()
    }
}

/// The acknowledgements of one node.
pub(crate) fn commits_of(commits: &[Commit], node: usize) -> Vec<Duration> {
    let own = commits.iter().filter(|c| c.node == node);
    own.map(|c| c.done).collect()
}

/// Sorted waits of the transactions wanted in the window. One that arrived and
/// was not done when the load ended has waited until then at least.
fn waits(trace: &Trace, window: &Range<Duration>) -> Vec<Duration> {
    if !trace.waits_known {
        return Vec::new();
    }
    let mut all: Vec<Duration> = trace
        .commits
        .iter()
        .filter(|c| window.contains(&c.wanted))
        .map(|c| c.done.saturating_sub(c.wanted))
        .collect();
    if let Some(arrivals) = &trace.arrivals {
        // What was wanted and is not among the commits was left.
        let mut done: Vec<Duration> = trace.commits.iter().map(|c| c.wanted).collect();
        done.sort();
        let mut done = done.into_iter().peekable();
        let left = arrivals.iter().filter(|arrival| {
            while done.next_if(|d| d < *arrival).is_some() {}
            done.next_if_eq(*arrival).is_none() && window.contains(*arrival)
        });
        all.extend(left.map(|a| trace.until.saturating_sub(*a)));
    }
    all.sort();
    all
}

fn share_done(trace: &Trace, commits: &[Duration], window: &Range<Duration>) -> Option<f64> {
    let wanted = series::count(trace.arrivals.as_ref()?, window);
    (wanted > 0).then(|| series::count(commits, window) as f64 / wanted as f64)
}

/// How far the origin's position moved while nothing else was committed.
fn seqnos(alone: &Trace) -> i64 {
    let mut origin = alone.samples.iter().filter(|s| s.node == 0);
    match (origin.next(), origin.next_back()) {
        (Some(first), Some(last)) => last.last_committed - first.last_committed,
        _ => 0,
    }
}

fn provider_memory(trace: &Trace) -> Option<u64> {
    let told = trace.samples.iter().filter_map(|s| s.memory_peak);
    told.max().and_then(|most| u64::try_from(most).ok())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::sampler::Sample;
    use crate::trial::Marks;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// 100 commits a second on each of three nodes for 12 s. The large one
    /// begins at 5 s, commits at 6 s, is acknowledged at 7 s and applied at 9 s
    /// everywhere; meanwhile db2 and db3 do nothing, and db1 nothing from 7 s.
    pub(crate) fn stalled() -> Trace {
        let mut commits = Vec::new();
        for tick in 0..1200 {
            let done = ms(tick * 10 + 5);
            for node in 0..3 {
                let from = if node == 0 { ms(7000) } else { ms(6000) };
                if !(from..ms(9000)).contains(&done) {
                    commits.push(Commit {
                        wanted: done - ms(4),
                        done,
                        node,
                    });
                }
            }
        }
        Trace {
            nodes: ["db1", "db2", "db3"].map(String::from).to_vec(),
            samples: vec![
                Sample {
                    at: ms(100),
                    last_committed: 10,
                    memory_peak: Some(5 << 20),
                    ..Sample::default()
                },
                Sample {
                    at: ms(11_900),
                    last_committed: 17,
                    memory_peak: Some(9 << 20),
                    ..Sample::default()
                },
            ],
            commits,
            waits_known: true,
            arrivals: None,
            offered: None,
            marks: Marks {
                begin: ms(5000),
                replicate: ms(6000),
                end: ms(7000),
                applied: vec![ms(7000), ms(9000), ms(8900)],
            },
            until: ms(12_000),
            cpu: ms(2500),
            server_memory: 300 << 20,
            began_busy: false,
        }
    }

    #[test]
    fn a_stall_is_seen_in_every_number() {
        let trace = stalled();
        let f = Figures::new(&trace, &trace, ms(4000));
        assert!((f.rate_before - 300.0).abs() < 1.0, "{}", f.rate_before);
        // 300 in the first second, 100 in the second, nothing in two.
        assert!((f.rate_beside - 100.0).abs() < 1.0, "{}", f.rate_beside);
        assert!((f.ratio_beside() - 1.0 / 3.0).abs() < 0.01);
        assert!((f.rate_commit - 100.0 / 3.0).abs() < 1.0);
        assert!((f.ratio_commit() - 1.0 / 9.0).abs() < 0.01);
        assert_eq!(f.gap, ms(2010));
        assert_eq!(f.gap_of_a_node, ms(3010));
        assert_eq!(f.worst_second, Some(0));
        assert_eq!((f.share_done, f.worst_of_offered()), (None, None));
        assert_eq!(f.times_alone(), 1.0);
        assert_eq!((f.p99_before, f.longest_wait), (Some(ms(4)), Some(ms(4))));
        assert_eq!(
            f.beside,
            Times {
                statement: ms(1000),
                total: ms(2000),
                applied: ms(4000)
            }
        );
        assert_eq!((f.seqnos, f.provider_memory), (7, Some(9 << 20)));
    }

    #[test]
    fn open_loop_counts_what_was_wanted_and_what_was_left() {
        let mut trace = stalled();
        // Three wanted in every 10 ms; those of the stall are never done.
        let mut arrivals: Vec<Duration> =
            (0..1200).flat_map(|tick| [ms(tick * 10 + 1); 3]).collect();
        arrivals.sort();
        trace.arrivals = Some(arrivals);
        let f = Figures::new(&trace, &trace, ms(4000));
        // 400 of 1200.
        let share = f.share_done.expect("open loop");
        assert!((share - 1.0 / 3.0).abs() < 0.01, "{share}");
        // The first that was left: wanted at 6.001 s, still not done at the end.
        assert_eq!(f.longest_wait, Some(ms(12_000 - 6001)));
        assert!(f.p99_beside > Some(ms(4000)));
        assert_eq!(f.p99_before, Some(ms(4)));
    }

    #[test]
    fn the_worst_second_and_the_large_one_are_told_as_parts() {
        let (mut alone, mut trace) = (stalled(), stalled());
        trace.offered = Some(320.0);
        alone.marks.applied[1] = ms(8900);
        alone.marks.applied[2] = ms(7500);
        // One node commits on.
        let on = (600..900).map(|tick| Commit {
            wanted: ms(tick * 10),
            done: ms(tick * 10 + 5),
            node: 2,
        });
        trace.commits.extend(on);
        trace.commits.sort_by_key(|c| c.done);
        let f = Figures::new(&alone, &trace, ms(4000));
        assert_eq!(f.offered, Some(320.0));
        assert_eq!(f.worst_of_offered(), Some(100.0 / 320.0));
        // 4 s by 3.9 s.
        assert!((f.times_alone() - 4.0 / 3.9).abs() < 1e-9);
    }

    #[test]
    fn a_busy_begin_of_either_is_told() {
        let (calm, mut busy) = (stalled(), stalled());
        busy.began_busy = true;
        let told = |alone, beside| Figures::new(alone, beside, ms(4000)).began_busy;
        assert!(told(&calm, &busy) && told(&busy, &calm) && !told(&calm, &calm));
    }

    #[test]
    fn counters_alone_tell_no_waits() {
        let mut trace = stalled();
        trace.waits_known = false;
        let f = Figures::new(&trace, &trace, ms(4000));
        assert_eq!((f.p99_beside, f.longest_wait), (None, None));
        assert_eq!(f.gap, ms(2010));
    }

    #[test]
    fn a_short_one_has_no_worst_second() {
        let mut trace = stalled();
        trace.marks = Marks {
            begin: ms(1000),
            replicate: ms(1000),
            end: ms(1100),
            applied: vec![ms(1100); 3],
        };
        trace.until = ms(1500);
        let f = Figures::new(&trace, &trace, ms(1000));
        assert_eq!(f.worst_second, None);
        assert!(f.ratio_beside() > 0.9);
    }
}
