//! From the results of single runs to the table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;

use crate::cluster::RunResult;
use crate::node::new_histogram;
use crate::protocol::{Ends, Provider, ThreadTime};

/// One run of one provider.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Index into the providers.
    pub provider: usize,
    pub writers: usize,
    /// From 0.
    pub round: usize,
    /// Load average of the machine (1 min) when the run began.
    pub load_before: f64,
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Whether a run gave figures.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It did.
    Figures(Box<Figures>),
    /// It did not, and why.
    Failed { message: String, logs: Vec<PathBuf> },
}

/// What one run printed, all nodes taken together.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Committed write sets per second, sum of the nodes.
    pub per_second: f64,
    pub per_second_by_node: Vec<f64>,
    /// From the start of `certify` to the end of `release`.
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// The highest of the nodes' own.
    pub p50_worst_node_ms: f64,
    pub p99_worst_node_ms: f64,
    pub max_ms: f64,
    /// User and system time of all processes per 100,000 committed write sets.
    pub cpu_seconds_per_100k: f64,
    pub cpu_seconds_by_node: Vec<f64>,
    /// Context switches of all processes per committed write set.
    pub switches_per_write_set: f64,
    /// CPU time by thread name, microseconds per committed write set.
    pub cpu_us_by_thread: BTreeMap<String, f64>,
    /// Time the threads were ready but had no core, by the time they had one.
    pub queued_by_cpu: f64,
    /// Peak resident memory of the largest process.
    pub rss_max_mib: f64,
    pub ends: Ends,
    pub write_sets_in_order: u64,
    /// Hash of the order, equal on all nodes.
    pub order_hash: String,
    pub stats_by_node: Vec<BTreeMap<String, String>>,
}

impl Figures {
    /// Puts the nodes of a run together.
    pub fn new(result: &RunResult) -> Figures {
        let mut all = new_histogram();
        let (mut p50_worst_ns, mut p99_worst_ns) = (0, 0);
        let mut ends = Ends::default();
        let mut per_second_by_node = Vec::new();
        let mut cpu_seconds_by_node = Vec::new();
        for node in &result.measured {
            let mut own = new_histogram();
            for (value, count) in &node.latencies {
                own.saturating_record_n(*value, *count);
                all.saturating_record_n(*value, *count);
            }
            p50_worst_ns = p50_worst_ns.max(own.value_at_quantile(0.5));
            p99_worst_ns = p99_worst_ns.max(own.value_at_quantile(0.99));
            ends.add(&node.ends);
            per_second_by_node.push(node.ends.successful() as f64 * 1e9 / node.window_ns as f64);
            cpu_seconds_by_node.push(node.cpu_ns as f64 / 1e9);
        }
        let mut threads = BTreeMap::<String, ThreadTime>::new();
        for (name, time) in result.measured.iter().flat_map(|node| &node.threads) {
            let sum = threads.entry(name.clone()).or_default();
            sum.cpu_ns += time.cpu_ns;
            sum.queued_ns += time.queued_ns;
        }
        let queued_ns: u64 = threads.values().map(|time| time.queued_ns).sum();
        let on_core_ns: u64 = threads.values().map(|time| time.cpu_ns).sum();
        let switches: u64 = result.measured.iter().map(|node| node.switches).sum();
        let successful = ends.successful() as f64;
        let rss_max = result.drained.iter().map(|d| d.rss_max_bytes).max();
        let seen = result.drained.first().map(|d| d.seen).unwrap_or_default();
        let ms = |ns: u64| ns as f64 / 1e6;
        Figures {
            per_second: per_second_by_node.iter().sum(),
            per_second_by_node,
            p50_ms: ms(all.value_at_quantile(0.5)),
            p99_ms: ms(all.value_at_quantile(0.99)),
            p50_worst_node_ms: ms(p50_worst_ns),
            p99_worst_node_ms: ms(p99_worst_ns),
            max_ms: ms(all.max()),
            cpu_seconds_per_100k: cpu_seconds_by_node.iter().sum::<f64>() * 100_000.0 / successful,
            cpu_seconds_by_node,
            switches_per_write_set: switches as f64 / successful,
            cpu_us_by_thread: threads
                .into_iter()
                .map(|(name, time)| (name, time.cpu_ns as f64 / 1e3 / successful))
                .collect(),
            queued_by_cpu: queued_ns as f64 / on_core_ns as f64,
            rss_max_mib: rss_max.unwrap_or(0) as f64 / f64::from(1 << 20),
            ends,
            write_sets_in_order: seen.write_sets,
            order_hash: format!("{:016x}", seen.hash),
            stats_by_node: result.measured.iter().map(|m| m.stats.clone()).collect(),
        }
    }
}

/// Middle, lowest and highest of a figure over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// `None` without values. The median of an even number is the mean of the middle two.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[half]
        } else {
            f64::midpoint(values[half - 1], values[half])
        };
        Some(Spread { median, min, max })
    }
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub provider: String,
    pub durable: String,
    pub writers: usize,
    pub runs: usize,
    pub failed_runs: usize,
    #[serde(flatten)]
    pub spreads: Option<Spreads>,
    /// This line's median by the first provider's, same number of writers.
    pub per_second_ratio: Option<f64>,
    pub cpu_ratio: Option<f64>,
}

/// The figures of a line.
#[derive(Clone, Debug, Serialize)]
pub struct Spreads {
    pub per_second: Spread,
    pub p50_ms: Spread,
    pub p99_ms: Spread,
    pub p50_worst_node_ms: Spread,
    pub p99_worst_node_ms: Spread,
    pub cpu_seconds_per_100k: Spread,
    pub rss_max_mib: Spread,
    pub switches_per_write_set: Spread,
    pub queued_by_cpu: Spread,
    /// Medians, microseconds per write set.
    pub cpu_us_by_thread: BTreeMap<String, f64>,
    /// Share of the transactions that did not commit.
    pub unsuccessful: Spread,
    pub replayed: u64,
}

/// The table: for each number of writers one line per provider, in the order given.
pub fn lines(names: &[(String, String)], writers: &[usize], runs: &[Run]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for writers in writers {
        let first = lines.len();
        for (index, (provider, durable)) in names.iter().enumerate() {
            let mine = || {
                runs.iter()
                    .filter(|run| run.provider == index && run.writers == *writers)
            };
            let figures: Vec<&Figures> = mine()
                .filter_map(|run| match &run.outcome {
                    Outcome::Figures(figures) => Some(&**figures),
                    Outcome::Failed { .. } => None,
                })
                .collect();
            let spreads = Spreads::of(&figures);
            let ratio = |of: fn(&Spreads) -> Spread| {
                let base = match lines.get(first) {
                    Some(line) => line.spreads.as_ref(),
                    None => spreads.as_ref(),
                };
                Some(of(spreads.as_ref()?).median / of(base?).median)
            };
            lines.push(Line {
                provider: provider.clone(),
                durable: durable.clone(),
                writers: *writers,
                runs: figures.len(),
                failed_runs: mine().count() - figures.len(),
                per_second_ratio: ratio(|s| s.per_second),
                cpu_ratio: ratio(|s| s.cpu_seconds_per_100k),
                spreads,
            });
        }
    }
    lines
}

impl Spreads {
    fn of(figures: &[&Figures]) -> Option<Spreads> {
        let spread = |of: fn(&Figures) -> f64| Spread::of(figures.iter().map(|f| of(f)));
        Some(Spreads {
            per_second: spread(|f| f.per_second)?,
            p50_ms: spread(|f| f.p50_ms)?,
            p99_ms: spread(|f| f.p99_ms)?,
            p50_worst_node_ms: spread(|f| f.p50_worst_node_ms)?,
            p99_worst_node_ms: spread(|f| f.p99_worst_node_ms)?,
            cpu_seconds_per_100k: spread(|f| f.cpu_seconds_per_100k)?,
            rss_max_mib: spread(|f| f.rss_max_mib)?,
            switches_per_write_set: spread(|f| f.switches_per_write_set)?,
            queued_by_cpu: spread(|f| f.queued_by_cpu)?,
            cpu_us_by_thread: figures
                .first()?
                .cpu_us_by_thread
                .keys()
                .filter_map(|name| {
                    let values = figures
                        .iter()
                        .map(|f| f.cpu_us_by_thread.get(name).copied().unwrap_or(0.0));
                    Some((name.clone(), Spread::of(values)?.median))
                })
                .collect(),
            unsuccessful: spread(|f| {
                let failed = f.ends.unsuccessful() as f64;
                failed / (failed + f.ends.successful() as f64)
            })?,
            replayed: figures.iter().map(|f| f.ends.replayed).sum(),
        })
    }
}

/// Whether a commit waits for the disk, as far as the provider's options tell.
pub fn durable(provider: Option<&Provider>) -> String {
    match provider {
        None => "?".to_owned(),
        Some(Provider {
            durability: Some(durability),
            ..
        }) => match durability.as_str() {
            "majority" => "yes (fdatasync by a majority)".to_owned(),
            other => format!("no ({other})"),
        },
        // Only Dromon has the option. The peer's cache is a mapped file that is not synced.
        Some(_) => "no".to_owned(),
    }
}

/// The table in Markdown.
pub fn markdown(lines: &[Line], base: &str, conflicts: bool) -> String {
    let mut table = format!(
        "| writers/node | provider | durable | runs | ws/s median (range) | p50 ms (worst node) \
         | p99 ms (worst node) | CPU s/100k median (range) | RSS MiB | ws/s vs {base} | CPU vs {base} |"
    );
    let mut rule = "|---|---|---|---|---|---|---|---|---|---|---|".to_owned();
    if conflicts {
        table.push_str(" not committed | replayed |");
        rule.push_str("---|---|");
    }
    table.push('\n');
    table.push_str(&rule);
    for line in lines {
        let runs = match line.failed_runs {
            0 => line.runs.to_string(),
            failed => format!("{} ({failed} failed)", line.runs),
        };
        // Writing to a string does not fail.
        let _ = write!(
            table,
            "\n| {} | {} | {} | {runs} |",
            line.writers, line.provider, line.durable
        );
        let Some(s) = &line.spreads else {
            table.push_str(" no figures |||||||");
            continue;
        };
        let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |r| format!("{r:.2}x"));
        let _ = write!(
            table,
            " {} ({}-{}) | {:.2} ({:.2}) | {:.2} ({:.2}) | {:.2} ({:.2}-{:.2}) | {:.0} | {} | {} |",
            thousands(s.per_second.median),
            thousands(s.per_second.min),
            thousands(s.per_second.max),
            s.p50_ms.median,
            s.p50_worst_node_ms.median,
            s.p99_ms.median,
            s.p99_worst_node_ms.median,
            s.cpu_seconds_per_100k.median,
            s.cpu_seconds_per_100k.min,
            s.cpu_seconds_per_100k.max,
            s.rss_max_mib.median,
            ratio(line.per_second_ratio),
            ratio(line.cpu_ratio),
        );
        if conflicts {
            let share = s.unsuccessful.median * 100.0;
            let _ = write!(table, " {share:.2} % | {} |", s.replayed);
        }
    }
    table
}

/// A second table: where the CPU time went, and how crowded the machine was.
pub fn threads_markdown(lines: &[Line]) -> String {
    let mut table = "| writers/node | provider | CPU us per write set by thread (all nodes) \
                     | switches per write set | waiting for a core / running |\n|---|---|---|---|---|"
        .to_owned();
    for line in lines {
        let Some(s) = &line.spreads else { continue };
        let mut threads: Vec<(&String, &f64)> = s.cpu_us_by_thread.iter().collect();
        threads.sort_by(|a, b| b.1.total_cmp(a.1));
        let threads: Vec<String> = threads
            .iter()
            .filter(|(_, us)| **us >= 0.05)
            .map(|(name, us)| format!("{name} {us:.1}"))
            .collect();
        // Writing to a string does not fail.
        let _ = write!(
            table,
            "\n| {} | {} | {} | {:.1} | {:.2} |",
            line.writers,
            line.provider,
            threads.join(", "),
            s.switches_per_write_set.median,
            s.queued_by_cpu.median,
        );
    }
    table
}

fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Drained, Measured};
    use crate::server::OrderSeen;

    fn node(committed: u64, latency_ns: u64) -> Measured {
        Measured {
            window_ns: 2_000_000_000,
            cpu_ns: 500_000_000,
            switches: 100_000,
            threads: BTreeMap::from([(
                "writer".to_owned(),
                ThreadTime {
                    cpu_ns: 400_000_000,
                    queued_ns: 100_000_000,
                },
            )]),
            ends: Ends {
                committed,
                ..Ends::default()
            },
            latencies: vec![(latency_ns, committed)],
            last_seqno: 1,
            stats: Default::default(),
        }
    }

    fn result(committed: u64) -> RunResult {
        let drained = Drained {
            seen: OrderSeen::default(),
            violation_count: 0,
            violations: Vec::new(),
            rss_max_bytes: 3 << 20,
        };
        RunResult {
            provider: Provider {
                name: "P".to_owned(),
                version: "1".to_owned(),
                vendor: "V".to_owned(),
                durability: None,
            },
            measured: vec![node(committed, 1_000_000), node(committed, 4_000_000)],
            drained: vec![drained],
        }
    }

    fn run(provider: usize, round: usize, committed: u64) -> Run {
        Run {
            provider,
            writers: 8,
            round,
            load_before: 0.0,
            outcome: Outcome::Figures(Box::new(Figures::new(&result(committed)))),
        }
    }

    #[test]
    fn figures_add_the_nodes() {
        let figures = Figures::new(&result(50_000));
        assert_eq!(figures.per_second, 50_000.0);
        assert_eq!(figures.cpu_seconds_per_100k, 1.0);
        assert_eq!(figures.rss_max_mib, 3.0);
        assert_eq!(figures.switches_per_write_set, 2.0);
        assert_eq!(figures.cpu_us_by_thread["writer"], 8.0);
        assert_eq!(figures.queued_by_cpu, 0.25);
        assert!((figures.p50_ms - 1.0).abs() < 0.002, "{}", figures.p50_ms);
        assert!((figures.p99_worst_node_ms - 4.0).abs() < 0.005);
    }

    #[test]
    fn the_median_of_rounds() {
        assert_eq!(Spread::of([]), None);
        let odd = Spread::of([3.0, 1.0, 2.0]).expect("values");
        assert_eq!((odd.min, odd.median, odd.max), (1.0, 2.0, 3.0));
        assert_eq!(Spread::of([4.0, 2.0]).expect("values").median, 3.0);
    }

    #[test]
    fn lines_compare_with_the_first_provider() {
        let failed = Run {
            outcome: Outcome::Failed {
                message: "why".to_owned(),
                logs: Vec::new(),
            },
            ..run(1, 1, 1)
        };
        let runs = [run(0, 0, 1_000), run(1, 0, 3_000), failed];
        let names = [
            ("a".to_owned(), "no".to_owned()),
            ("b".to_owned(), "yes".to_owned()),
        ];
        let lines = lines(&names, &[8, 64], &runs);
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[0].per_second_ratio, Some(1.0));
        assert_eq!(lines[1].per_second_ratio, Some(3.0));
        assert_eq!((lines[1].runs, lines[1].failed_runs), (1, 1));
        assert!(lines[2].spreads.is_none());
        let table = markdown(&lines, "a", false);
        assert!(
            table.contains("| 8 | b | yes | 1 (1 failed) | 3,000 (3,000-3,000) |"),
            "{table}"
        );
        assert!(
            table.contains("| 64 | a | no | 0 | no figures |"),
            "{table}"
        );
        let cells = |line: &str| line.matches('|').count();
        assert!(table.lines().all(|line| cells(line) == 12), "{table}");
        let threads = threads_markdown(&lines);
        assert!(
            threads.contains("| 8 | a | writer 400.0 | 100.0 | 0.25 |"),
            "{threads}"
        );
    }

    #[test]
    fn digits_are_grouped() {
        for (value, text) in [
            (0.0, "0"),
            (999.4, "999"),
            (1234.0, "1,234"),
            (1e6, "1,000,000"),
        ] {
            assert_eq!(thousands(value), text);
        }
    }
}
