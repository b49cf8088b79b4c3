//! Everything measured, and the files made of it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use dromon_load::bench::unique;
use dromon_load::paper;

use crate::chart;
use crate::csv;
use crate::figures::Figures;
use crate::plan::Mode;
use crate::table;
use crate::trial::Outcome;

/// What came of one mode with one provider in one round.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The provider's name.
    pub provider: String,
    /// From 1.
    pub round: usize,
    /// How the large one travelled.
    pub mode: Mode,
    /// What came of it.
    pub outcome: Outcome,
}

impl Entry {
    pub(crate) fn figures(&self) -> Option<&Figures> {
        match &self.outcome {
            Outcome::Measured(all) => Some(&all.0),
            _ => None,
        }
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
}

impl Report {
    /// The tables for the terminal.
    #[must_use]
    pub fn table(&self) -> String {
        table::text(self)
    }

    /// True if nothing failed and something was measured.
    #[must_use]
    pub fn is_good(&self) -> bool {
        let failed = |e: &&Entry| matches!(e.outcome, Outcome::Failed(_));
        self.entries.iter().find(failed).is_none()
            && self.entries.iter().any(|e| e.figures().is_some())
    }

    /// Providers in the order of their first entry.
    pub(crate) fn providers(&self) -> Vec<&str> {
        unique(self.entries.iter().map(|e| e.provider.as_str()))
    }

    /// Modes in the order of their first entry.
    pub(crate) fn modes(&self) -> Vec<Mode> {
        unique(self.entries.iter().map(|e| e.mode))
    }
}

/// Writes `samples.csv`, `events.csv`, `summary.csv`, `table.txt` and a chart
/// per round into `dir`; returns what was written.
///
/// # Errors
/// When a file cannot be written.
pub fn write_files(report: &Report, dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = vec![
        ("samples.csv".to_string(), csv::samples(report)),
        ("events.csv".to_string(), csv::events(report)),
        ("summary.csv".to_string(), csv::summary(report)),
        ("table.txt".to_string(), report.table()),
    ];
    let rounds: BTreeSet<usize> = report.entries.iter().map(|e| e.round).collect();
    for round in &rounds {
        let name = match rounds.len() {
            1 => "stall.svg".to_string(),
            _ => format!("stall-{round}.svg"),
        };
        files.push((name, chart::svg(report, *round)));
    }
    paper::write_files(dir, files)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::figures::tests::stalled;
    use std::time::Duration;

    /// Two providers, two modes; one failed, one skipped.
    pub(crate) fn sample() -> Report {
        let trace = stalled();
        let figures = Figures::new(&trace, &trace, Duration::from_secs(4));
        let measured = Outcome::Measured(Box::new((figures, trace)));
        let entry = |provider: &str, mode, outcome: &Outcome| Entry {
            provider: provider.into(),
            round: 1,
            mode,
            outcome: outcome.clone(),
        };
        let skipped = Outcome::Skipped("no such option".into());
        let failed = Outcome::Failed("it said \"no\" & <left>".into());
        Report {
            title: "UPDATE of 1000 rows".into(),
            entries: vec![
                entry("dromon", Mode::Whole, &measured),
                entry("dromon", Mode::Auto, &skipped),
                entry("a<b", Mode::Whole, &measured),
                entry("a<b", Mode::Auto, &failed),
            ],
            notes: vec!["a note".into()],
        }
    }

    #[test]
    fn a_failure_makes_the_report_bad_and_a_skipped_mode_does_not() {
        let mut report = sample();
        assert!(!report.is_good());
        report.entries.pop();
        assert!(report.is_good());
        report.entries = report.entries.split_off(1);
        report.entries.truncate(1);
        assert!(!report.is_good(), "nothing was measured");
    }

    #[test]
    fn all_files_are_written() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let out = dir.path().join("new");
        let written = write_files(&sample(), &out).expect("written");
        let names: Vec<_> = written
            .iter()
            .map(|p| {
                p.file_name()
                    .expect("a name")
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        assert_eq!(
            names,
            [
                "samples.csv",
                "events.csv",
                "summary.csv",
                "table.txt",
                "stall.svg"
            ]
        );
        assert!(written.iter().all(|p| p.is_file()));
    }
}
