//! Backlogs one after the other; on each, all conditions, rounds and candidates.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use dromon_sandbox::{free_ports, server_version};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::backlog::{Backlog, Ports};
use crate::plan::{Candidate, Plan, Workload};
use crate::report::{Entry, Report};
use crate::slow::SlowDisk;
use crate::trial::{self, Bench, Outcome};

/// Told what happens, line by line.
pub type Say<'a> = &'a dyn Fn(&str);

/// Whether somebody wants the end.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Set by Ctrl-C and SIGTERM.
    fn on_signals() -> anyhow::Result<Self> {
        let stop = Self::default();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop.0))
                .context("waiting for signals")?;
        }
        Ok(stop)
    }

    /// Fails if so.
    pub fn check(&self) -> anyhow::Result<()> {
        match self.is_wanted() {
            true => bail!("interrupted; the servers are stopped and removed"),
            false => Ok(()),
        }
    }

    fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Measures everything. What fails with one candidate or workload is part of the report, and so is
/// an interruption: what was measured until then is not lost.
///
/// # Errors
/// When nothing can be measured at all: what the plan refuses, a server or a compiler that is
/// missing.
pub fn run(plan: &Plan, say: Say) -> anyhow::Result<Report> {
    plan.check()?;
    let version = server_version()?;
    let place = Place::make(plan)?;
    let stop = Stop::on_signals()?;
    let disk = SlowDisk::build(&place.dir)?;
    let found = free_ports(4, plan.port)?;
    let ports = Ports {
        target: found[0],
        primary: found[1],
        relay: found[2],
        relay_http: found[3],
    };
    let mut report = Report {
        title: title(plan, &version),
        entries: Vec::new(),
        notes: Vec::new(),
        faults: Vec::new(),
    };
    for workload in &plan.workloads {
        let dir = place.dir.join(workload.to_string());
        let bench = Bench {
            plan,
            dir: dir.join("target"),
            ports,
            disk: &disk,
            stop: &stop,
        };
        if let Err(error) = measure(&bench, *workload, &dir, &mut report, say) {
            say(&format!("{workload}: {error:#}"));
            report.faults.push(format!("{workload}: {error:#}"));
        }
        if stop.is_wanted() {
            break;
        }
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
        }
    }
    // As they are compared, however the rounds went forth and back.
    let all = plan.candidates();
    report.entries.sort_by_key(|e| {
        let at = |found: Option<usize>| found.unwrap_or(usize::MAX);
        (
            at(plan.workloads.iter().position(|w| *w == e.workload)),
            at(plan.conditions.iter().position(|c| *c == e.condition)),
            at(all.iter().position(|c| *c == e.candidate)),
            e.round,
        )
    });
    Ok(report)
}

/// One workload.
fn measure(
    bench: &Bench,
    workload: Workload,
    dir: &Path,
    report: &mut Report,
    say: Say,
) -> anyhow::Result<()> {
    let plan = bench.plan;
    let backlog = Backlog::make(plan, workload, dir, bench.ports, bench.stop, say)?;
    report.notes.push(format!(
        "{workload}: {} transactions, up to {}",
        backlog.count, backlog.goal
    ));
    for condition in &plan.conditions {
        for round in 1..=plan.rounds {
            for candidate in order(plan.candidates(), round) {
                say(&format!(
                    "{workload}, {condition}, round {round}: {candidate}"
                ));
                let outcome = trial::run(bench, &backlog, *condition, &candidate);
                bench.stop.check()?;
                say(&format!("    {}", line(&outcome)));
                report.entries.push(Entry {
                    workload,
                    condition: *condition,
                    candidate,
                    round,
                    outcome,
                });
            }
        }
    }
    Ok(())
}

/// Forth, and back in the next round, so that a slow drift of the machine hits all alike.
fn order(mut all: Vec<Candidate>, round: usize) -> Vec<Candidate> {
    if round.is_multiple_of(2) {
        all.reverse();
    }
    all
}

fn line(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Measured(m) => format!(
            "{:.0} transactions/s ({} in {:.2} s{}), CPU {:.2} s + {:.2} s, again {}, {} fsyncs, {} slow reads",
            m.rate(),
            m.applied,
            m.time.as_secs_f64(),
            if m.is_cut { ", cut" } else { "" },
            m.cpu_server.as_secs_f64(),
            m.cpu_own.as_secs_f64(),
            m.retries,
            m.fsyncs,
            m.reads
        ),
        Outcome::Differs(_, why) => format!("TABLES DIFFER: {why}"),
        Outcome::Failed(why) => format!("FAILED: {why}"),
    }
}

fn title(plan: &Plan, server: &str) -> String {
    let version = server
        .split_whitespace()
        .find(|w| w.starts_with(|c: char| c.is_ascii_digit()))
        .and_then(|w| w.split('-').next())
        .unwrap_or("of unknown version");
    let rounds = match plan.rounds {
        1 => String::new(),
        n => format!("; {n} rounds"),
    };
    format!(
        "Catching up, table of {} rows, fsync +{} ms, reads +{} ms, MariaDB {version}{rounds}",
        plan.rows,
        plan.fsync.as_secs_f64() * 1e3,
        plan.read.as_secs_f64() * 1e3
    )
}

/// Where the servers lie; what was made is removed at the end.
struct Place {
    dir: PathBuf,
}

impl Place {
    fn make(plan: &Plan) -> anyhow::Result<Self> {
        let base = match &plan.dir {
            Some(dir) => dir.clone(),
            None => std::env::temp_dir(),
        };
        if !base.exists() {
            fs::create_dir_all(&base).with_context(|| format!("creating {}", base.display()))?;
            fs::set_permissions(&base, fs::Permissions::from_mode(0o755))?;
        }
        let dir = base.join(format!("dromon-catchup-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("creating {}", dir.display()))?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
        Ok(Self { dir })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("dromon: {} is left: {error}", self.dir.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::sample;

    #[test]
    fn rounds_go_forth_and_back() {
        let all = sample().candidates();
        assert_eq!(order(all.clone(), 1), all);
        assert_eq!(order(all.clone(), 3), all);
        let back = order(all.clone(), 2);
        assert_eq!(back.first(), all.last());
    }

    #[test]
    fn the_title_says_what_was_measured() {
        let mut plan = sample();
        plan.rounds = 2;
        assert_eq!(
            title(&plan, "mariadbd  Ver 10.11.6-MariaDB for Linux"),
            "Catching up, table of 1000 rows, fsync +4 ms, reads +2 ms, MariaDB 10.11.6; 2 rounds"
        );
    }

    #[test]
    fn nothing_is_started_for_a_plan_that_is_refused() {
        let mut plan = sample();
        plan.rows = 1;
        let error = run(&plan, &|_| panic!("nothing happens")).expect_err("refused");
        assert!(error.to_string().contains("1 rows"), "{error}");
    }
}
