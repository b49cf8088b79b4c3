//! Everything measured, and what is drawn of it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use dromon_load::bench::unique;
use dromon_load::paper::{self, Csv, aligned, cell, number, with_notes};

use crate::chart;
use crate::figures::{Aim, Line, aims, is_read_bound, lines};
use crate::plan::{Candidate, Condition, Workload};
use crate::results::TRIALS;
use crate::trial::Outcome;

/// What came of one candidate in one round.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// What was committed.
    pub workload: Workload,
    /// Under which condition.
    pub condition: Condition,
    /// Who caught up.
    pub candidate: Candidate,
    /// From 1.
    pub round: usize,
    /// What came of it.
    pub outcome: Outcome,
    /// When, UTC, to the minute.
    pub begun: String,
    /// Which program measured it, and was measured: its checksum.
    pub build: String,
}

impl Entry {
    /// What no two of one report have in common.
    pub(crate) fn key(&self) -> (Workload, Condition, &Candidate, usize) {
        (self.workload, self.condition, &self.candidate, self.round)
    }

    /// The same in perhaps another round.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.workload == other.workload
            && self.condition == other.condition
            && self.candidate == other.candidate
    }
}

/// All of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// What was measured, in a line.
    pub title: String,
    /// By workload, condition, candidate and round.
    pub entries: Vec<Entry>,
    /// What a reader must know besides.
    pub notes: Vec<String>,
    /// What could not be measured at all.
    pub faults: Vec<String>,
}

impl Report {
    /// True if something was measured, nothing failed, all tables are the primary's, and every
    /// replica applied something.
    #[must_use]
    pub fn is_good(&self) -> bool {
        let measured = |e: &Entry| match &e.outcome {
            Outcome::Measured(m) => m.applied > 0 || !matches!(e.candidate, Candidate::Replica(..)),
            Outcome::Differs(..) | Outcome::Failed(_) => false,
        };
        self.faults.is_empty() && !self.entries.is_empty() && self.entries.iter().all(measured)
    }

    /// A line for each candidate.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        lines(&self.entries)
    }

    /// What is aimed at, and what came of it.
    #[must_use]
    pub fn aims(&self) -> Vec<Aim> {
        aims(&self.lines())
    }

    /// The tables for the terminal.
    #[must_use]
    pub fn table(&self) -> String {
        let lines = self.lines();
        let mut out = format!("{}\n", self.title);
        for own in lines.chunk_by(|a, b| (a.workload, a.condition) == (b.workload, b.condition)) {
            let (workload, condition) = (own[0].workload, own[0].condition);
            write!(out, "\n{workload} ({}), {condition}:\n", workload.about())
                .expect("writing to a String cannot fail");
            out += &aligned(&rows(own), 1);
            for line in own {
                if let Some(trouble) = &line.trouble {
                    writeln!(out, "{}: {trouble}", line.candidate)
                        .expect("writing to a String cannot fail");
                }
            }
        }
        let aims = aims(&lines);
        if !aims.is_empty() {
            out += "\nAims:\n";
            let head = ["", "", "found", "wanted", ""].map(String::from).to_vec();
            let rows: Vec<Vec<String>> =
                std::iter::once(head).chain(aims.iter().map(aim)).collect();
            out += &aligned(&rows, 2);
        }
        let faults = self.faults.iter().map(|f| format!("NOT MEASURED: {f}"));
        let notes = self.notes.iter().cloned();
        with_notes(out, notes.chain(not_read_bound(&lines)).chain(faults))
    }
}

/// Which rows were in memory, although pages are slow to read.
fn not_read_bound(lines: &[Line]) -> impl Iterator<Item = String> {
    let cells = lines.iter().map(|l| (l.workload, l.condition));
    let slow = cells.filter(|(_, condition)| *condition == Condition::CacheMiss);
    let workloads = unique(slow.map(|(workload, _)| workload)).into_iter();
    workloads
        .filter(move |w| !is_read_bound(lines, *w))
        .map(|workload| {
            format!(
                "{workload}, {}: the server's own threads hardly read a page, its rows fit into memory; so nothing is aimed at",
                Condition::CacheMiss
            )
        })
}

fn rows(own: &[Line]) -> Vec<Vec<String>> {
    let head = [
        "candidate",
        "threads",
        "trx/s",
        "speed-up",
        "seconds",
        "CPU s/1000",
        "own",
        "again",
        "fsyncs",
        "slow reads",
        "",
    ];
    let cells = |line: &Line| {
        vec![
            line.candidate.line(),
            match line.candidate {
                Candidate::Serial => "-".into(),
                _ => line.candidate.threads().to_string(),
            },
            number(line.rate, 0),
            number(line.speedup, 2),
            match line.is_cut {
                true => format!(">{}", number(line.seconds, 2)),
                false => number(line.seconds, 2),
            },
            number(line.cpu_server, 3),
            number(line.cpu_own, 3),
            number(line.retries, 0),
            number(line.fsyncs, 0),
            number(line.reads, 0),
            match (&line.trouble, line.is_cut) {
                (Some(_), _) => "see below".into(),
                (None, true) => "cut".into(),
                (None, false) => String::new(),
            },
        ]
    };
    let head = head.map(String::from).to_vec();
    std::iter::once(head).chain(own.iter().map(cells)).collect()
}

fn aim(aim: &Aim) -> Vec<String> {
    let sign = if aim.at_most { "<=" } else { ">=" };
    vec![
        format!("{}, {}", aim.workload, aim.condition),
        format!("{} ({})", aim.what, aim.of),
        number(aim.found, 2),
        format!("{sign} {}", aim.wanted),
        aim.verdict(),
    ]
}

/// A line per candidate: the medians.
fn speedup(report: &Report) -> String {
    let mut out = Csv::new(&[
        "workload",
        "condition",
        "candidate",
        "threads",
        "trx_per_second",
        "speedup",
        "cpu_server_s_per_1000",
        "cpu_own_s_per_1000",
        "rounds",
        "cut",
        "trouble",
    ]);
    for line in report.lines() {
        out.add(&[
            line.workload.to_string(),
            line.condition.to_string(),
            line.candidate.line(),
            line.candidate.threads().to_string(),
            cell(line.rate, 4),
            cell(line.speedup, 4),
            cell(line.cpu_server, 4),
            cell(line.cpu_own, 4),
            line.rounds.to_string(),
            u8::from(line.is_cut).to_string(),
            line.trouble.unwrap_or_default(),
        ]);
    }
    out.end()
}

/// Writes `speedup.csv`, `table.txt` and `catchup.svg` into `dir`, where `trials.csv` has been
/// written while it was measured; returns the paths of all.
///
/// # Errors
/// When a file cannot be written.
pub fn write_files(report: &Report, dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let drawn = write_drawn(report, dir)?;
    Ok([vec![dir.join(TRIALS)], drawn].concat())
}

/// What [`write_files`] writes.
pub(crate) fn write_drawn(report: &Report, dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let files = [
        ("speedup.csv", speedup(report)),
        ("table.txt", report.table()),
        ("catchup.svg", chart::svg(report)),
    ];
    paper::write_files(dir, files)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::plan::{Policy, ServerMode, Threads};
    use crate::trial::tests::measured;
    use std::time::Duration;

    /// w1 under two conditions: serial 10/s, built-in 100/s and 500/s; with hints 6 times as fast
    /// as conservative; the replica 500/s.
    pub(crate) fn sample() -> Report {
        let mut entries = Vec::new();
        let replica = || "writeset".parse().expect("a mode");
        let mut add = |condition, candidate, applied| {
            entries.push(Entry {
                workload: Workload::W1,
                condition,
                candidate,
                round: 1,
                outcome: Outcome::Measured(measured(100, applied)),
                begun: "2026-11-24 04:00".into(),
                build: "0badcafe".into(),
            });
        };
        let conservative = |n| Candidate::BuiltIn(ServerMode::Conservative, n);
        add(Condition::SlowCommit, Candidate::Serial, 1000);
        add(Condition::SlowCommit, conservative(1), 1000);
        add(Condition::SlowCommit, conservative(8), 10_000);
        add(
            Condition::SlowCommit,
            Candidate::Replica(replica(), Threads::Fixed(8)),
            50_000,
        );
        add(Condition::CacheMiss, Candidate::Serial, 1000);
        add(Condition::CacheMiss, conservative(8), 1000);
        add(
            Condition::CacheMiss,
            Candidate::BuiltIn(ServerMode::Optimistic, 8),
            50_000,
        );
        add(
            Condition::CacheMiss,
            Candidate::Relay(Policy::Group, 8),
            6000,
        );
        add(
            Condition::CacheMiss,
            Candidate::Replica(replica(), Threads::Fixed(8)),
            50_000,
        );
        for entry in &mut entries {
            if let Outcome::Measured(m) = &mut entry.outcome {
                // 2 s and 1 s for 1,000.
                m.cpu_server = Duration::from_millis(m.applied * 2);
                m.cpu_own = Duration::from_millis(m.applied);
                if entry.condition == Condition::CacheMiss {
                    m.reads = m.applied * 2;
                }
            }
        }
        Report {
            title: "w1 & more".into(),
            entries,
            notes: vec!["a note".into()],
            faults: Vec::new(),
        }
    }

    #[test]
    fn the_table_of_a_run() {
        let mut report = sample();
        report.entries.truncate(4);
        report.entries[1].outcome = Outcome::Differs(measured(1, 1), "d.t".into());
        if let Outcome::Measured(m) = &mut report.entries[0].outcome {
            m.is_cut = true;
        }
        let expected = "\
w1 & more

w1 (single rows), slow-commit:
candidate              threads  trx/s  speed-up  seconds  CPU s/1000    own  again  fsyncs  slow reads
built-in serial              -     10      1.00  >100.00       2.000  1.000      7      10           0        cut
built-in conservative        1      -         -        -           -      -      -       -           -  see below
built-in conservative        8    100     10.00   100.00       2.000  1.000      7      10           0
replica writeset             8    500     50.00   100.00       2.000  1.000      7      10           0
built-in conservative, 1 threads: TABLES DIFFER: d.t

Aims:
                                                                                                  found  wanted
w1, slow-commit  replica by best built-in (replica writeset, 8 threads : built-in conservative, 8 threads, the best of 2)   5.00    >= 4  not judged: built-in conservative, 1 threads has no figures
w1, slow-commit  replica by serial (replica writeset, 8 threads : built-in serial)  50.00   >= 40  met

a note
";
        let squeeze = |text: &str| {
            let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            text.lines().map(words).collect::<Vec<_>>()
        };
        assert_eq!(squeeze(&report.table()), squeeze(expected));
    }

    #[test]
    fn a_difference_or_a_failure_makes_it_bad() {
        let mut report = sample();
        assert!(report.is_good());
        report.entries[0].outcome = Outcome::Differs(measured(1, 1), "d.t".into());
        assert!(!report.is_good());
        report.entries[0].outcome = Outcome::Failed("gone".into());
        assert!(!report.is_good());
        let mut report = sample();
        report.faults.push("w2: interrupted".into());
        assert!(!report.is_good());
        assert!(report.table().ends_with("NOT MEASURED: w2: interrupted\n"));
        report.entries.clear();
        report.faults.clear();
        assert!(!report.is_good(), "nothing was measured");
    }

    #[test]
    fn a_replica_that_applied_nothing_makes_it_bad() {
        let nothing = |is_replica: bool| {
            let mut report = sample();
            for entry in &mut report.entries {
                if matches!(entry.candidate, Candidate::Replica(..)) == is_replica {
                    entry.outcome = Outcome::Measured(measured(30, 0));
                }
            }
            report
        };
        assert!(nothing(false).is_good(), "the server's own threads may");
        let report = nothing(true);
        assert!(!report.is_good());
        let table = report.table();
        let missed = table.lines().filter(|l| l.ends_with(" missed")).count();
        assert_eq!(missed, 3, "{table}");
    }

    #[test]
    fn who_failed_in_one_round_has_no_figures() {
        let mut report = sample();
        let mut again = report.entries[2].clone();
        again.round = 2;
        again.outcome = Outcome::Failed("gone".into());
        report.entries.push(again);
        let table = report.table();
        let line = |name: &str| {
            let found = table.lines().find(|l| l.starts_with(name));
            found.unwrap_or_else(|| panic!("{name} is not in {table}"))
        };
        let own = line("built-in conservative        8");
        assert!(
            own.ends_with("-  see below") && !own.contains("100"),
            "{own}"
        );
        let below = line("built-in conservative, 8 threads:");
        assert_eq!(
            below,
            "built-in conservative, 8 threads: FAILED in round 2: gone"
        );
        assert!(!table.contains("replica writeset, 8 threads : built-in conservative, 8 threads"));
        assert!(speedup(&report).contains(",8,,,,,2,0,FAILED in round 2: gone"));
    }

    #[test]
    fn rows_that_fit_into_memory_are_said_to() {
        let mut report = sample();
        assert!(!report.table().contains("hardly read a page"));
        for entry in &mut report.entries {
            if let Outcome::Measured(m) = &mut entry.outcome {
                m.reads = m.applied / 100;
            }
        }
        let table = report.table();
        assert!(
            table.contains("w1, cache-miss: the server's own threads hardly read a page"),
            "{table}"
        );
        assert!(!table.contains("w1, slow-commit: the"), "{table}");
    }

    #[test]
    fn all_files_are_written() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let out = dir.path().join("new");
        let written = write_files(&sample(), &out).expect("written");
        let names = ["trials.csv", "speedup.csv", "table.txt", "catchup.svg"];
        assert_eq!(written, names.map(|n| out.join(n)));
        // The trials are written as they come.
        assert!(written[1..].iter().all(|p| p.is_file()));
        let speedup = std::fs::read_to_string(&written[1]).expect("there");
        assert!(
            speedup.contains(
                "w1,slow-commit,replica writeset,8,500.0000,50.0000,2.0000,1.0000,1,0,\n"
            ),
            "{speedup}"
        );
    }
}
