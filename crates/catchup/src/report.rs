//! Everything measured, and the files made of it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use dromon_load::paper::{aligned, field, number};

use crate::chart;
use crate::figures::{Aim, Line, aims, lines};
use crate::plan::{Candidate, Condition, Workload};
use crate::trial::{Measured, Outcome};

/// What came of one candidate in one round.
#[derive(Debug, Clone)]
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
}

impl Entry {
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
    /// In the order in which it was measured.
    pub entries: Vec<Entry>,
    /// What a reader must know besides.
    pub notes: Vec<String>,
    /// What could not be measured at all.
    pub faults: Vec<String>,
}

impl Report {
    /// True if something was measured, nothing failed, and all tables are the primary's.
    #[must_use]
    pub fn is_good(&self) -> bool {
        let measured = |e: &Entry| matches!(e.outcome, Outcome::Measured(_));
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
        for note in &self.notes {
            out += "\n";
            out += note;
        }
        for fault in &self.faults {
            write!(out, "\nNOT MEASURED: {fault}").expect("writing to a String cannot fail");
        }
        out.truncate(out.trim_end().len());
        out + "\n"
    }
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
            number(line.seconds, 2),
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
        number(Some(aim.found), 2),
        format!("{sign} {}", aim.wanted),
        if aim.is_met() { "met" } else { "missed" }.into(),
    ]
}

/// A line per trial; numbers are empty where it failed.
fn trials(report: &Report) -> String {
    let mut out = String::from(
        "workload,condition,candidate,threads,round,outcome,seconds,applied,cut,trx_per_second,cpu_server_s,cpu_own_s,again,fsyncs,slow_reads\n",
    );
    for entry in &report.entries {
        let (outcome, measured) = match &entry.outcome {
            Outcome::Measured(m) => ("measured", Some(m)),
            Outcome::Differs(m, _) => ("differs", Some(m)),
            Outcome::Failed(_) => ("failed", None),
        };
        let numbers = measured.map_or(",,,,,,,,".into(), numbers);
        writeln!(
            out,
            "{},{},{},{},{},{outcome},{numbers}",
            entry.workload,
            entry.condition,
            field(&entry.candidate.line()),
            entry.candidate.threads(),
            entry.round,
        )
        .expect("writing to a String cannot fail");
    }
    out
}

fn numbers(m: &Measured) -> String {
    format!(
        "{:.3},{},{},{:.2},{:.3},{:.3},{},{},{}",
        m.time.as_secs_f64(),
        m.applied,
        u8::from(m.is_cut),
        m.rate(),
        m.cpu_server.as_secs_f64(),
        m.cpu_own.as_secs_f64(),
        m.retries,
        m.fsyncs,
        m.reads,
    )
}

/// A line per candidate: the medians.
fn speedup(report: &Report) -> String {
    let mut out = String::from(
        "workload,condition,candidate,threads,trx_per_second,speedup,cpu_server_s_per_1000,cpu_own_s_per_1000\n",
    );
    let cell = |value: Option<f64>| value.map_or(String::new(), |v| format!("{v:.4}"));
    for line in report.lines() {
        writeln!(
            out,
            "{},{},{},{},{},{},{},{}",
            line.workload,
            line.condition,
            field(&line.candidate.line()),
            line.candidate.threads(),
            cell(line.rate),
            cell(line.speedup),
            cell(line.cpu_server),
            cell(line.cpu_own),
        )
        .expect("writing to a String cannot fail");
    }
    out
}

/// Writes `trials.csv`, `speedup.csv`, `table.txt` and `catchup.svg` into `dir`; returns what was
/// written.
///
/// # Errors
/// When a file cannot be written.
pub fn write_files(report: &Report, dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let files = [
        ("trials.csv", trials(report)),
        ("speedup.csv", speedup(report)),
        ("table.txt", report.table()),
        ("catchup.svg", chart::svg(report)),
    ];
    let mut written = Vec::new();
    for (name, text) in files {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        written.push(path);
    }
    Ok(written)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::plan::{Policy, ServerMode};
    use crate::trial::tests::measured;

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
            });
        };
        let conservative = |n| Candidate::BuiltIn(ServerMode::Conservative, n);
        add(Condition::SlowCommit, Candidate::Serial, 1000);
        add(Condition::SlowCommit, conservative(1), 1000);
        add(Condition::SlowCommit, conservative(8), 10_000);
        add(
            Condition::SlowCommit,
            Candidate::Replica(replica(), 8),
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
            Candidate::Replica(replica(), 8),
            50_000,
        );
        for entry in &mut entries {
            if let Outcome::Measured(m) = &mut entry.outcome {
                // 2 s and 1 s for 1,000.
                m.cpu_server = std::time::Duration::from_millis(m.applied * 2);
                m.cpu_own = std::time::Duration::from_millis(m.applied);
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
built-in serial              -     10      1.00   100.00       2.000  1.000      7      10           0        cut
built-in conservative        1      -         -        -           -      -      -       -           -  see below
built-in conservative        8    100     10.00   100.00       2.000  1.000      7      10           0
replica writeset             8    500     50.00   100.00       2.000  1.000      7      10           0
built-in conservative, 1 threads: TABLES DIFFER: d.t

Aims:
                                                                                                  found  wanted
w1, slow-commit  replica by best built-in (replica writeset, 8 threads : built-in conservative, 8 threads)   5.00    >= 4  met
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
    fn every_line_of_a_file_has_all_fields() {
        let mut report = sample();
        report.entries[0].outcome = Outcome::Failed("gone".into());
        for text in [trials(&report), speedup(&report)] {
            let count = |line: &str| {
                // The one quoted name has one comma within.
                line.matches(',').count() - line.matches("relay group, conservative").count()
            };
            let head = count(text.lines().next().expect("a head"));
            assert!(text.lines().all(|l| count(l) == head), "{text}");
        }
    }

    #[test]
    fn all_files_are_written() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let out = dir.path().join("new");
        let written = write_files(&sample(), &out).expect("written");
        assert_eq!(written.len(), 4);
        assert!(written.iter().all(|p| p.is_file()));
    }
}
