//! Backlogs one after the other; on each, all conditions, rounds and candidates.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail, ensure};
use dromon_load::bench::{Say, forth_and_back, make_place};
use dromon_load::machine;
use dromon_sandbox::{end_left_behind, free_ports, server_version};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::backlog::{Backlog, Ports};
use crate::plan::{Candidate, Condition, Plan, Workload};
use crate::report::{Entry, Report};
use crate::results::{Known, Results};
use crate::slow::SlowDisk;
use crate::trial::{self, Bench, Outcome};

/// Whether somebody wants the end.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Set by Ctrl-C, SIGTERM, and the end of the terminal: the servers outlive that.
    fn on_signals() -> anyhow::Result<Self> {
        let stop = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
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

/// Measures everything that is not measured yet. What fails with one candidate or workload is part
/// of the report, and so is an interruption: what was measured until then is not lost.
///
/// # Errors
/// When nothing can be measured at all: what the plan refuses, a server or a compiler that is
/// missing, results that cannot be gone on with.
pub fn run(plan: &Plan, say: Say) -> anyhow::Result<Report> {
    plan.check()?;
    let mut results = Results::open(plan, &server_version()?)?;
    let all = plan
        .workloads
        .iter()
        .map(|w| left(plan, &results, *w).len());
    let mut progress = Progress {
        done: 0,
        all: all.sum(),
    };
    if progress.all == 0 {
        say("all of it was measured before");
        results.begin()?;
        return Ok(results.report(Vec::new()));
    }
    let build = build(&plan.program)?;
    let place = Place::make(plan, say)?;
    let stop = Stop::on_signals()?;
    let disk = SlowDisk::build(&place.dir)?;
    let found = free_ports(4, plan.port)?;
    let ports = Ports {
        target: found[0],
        primary: found[1],
        relay: found[2],
        relay_http: found[3],
    };
    results.begin()?;
    let mut faults = Vec::new();
    for workload in &plan.workloads {
        let dir = place.dir.join(workload.to_string());
        let bench = Bench {
            plan,
            dir: dir.join("target"),
            ports,
            disk: &disk,
            stop: &stop,
        };
        let measured = measure(&bench, *workload, &build, &mut results, &mut progress, say);
        if let Err(error) = measured {
            say(&format!("{workload}: {error:#}"));
            faults.push(format!("{workload}: {error:#}"));
        }
        if stop.is_wanted() || results.is_lost() {
            break;
        }
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
        }
    }
    if let (false, Some(out)) = (faults.is_empty(), &plan.out) {
        faults.push(format!(
            "{} of {} trials; the same command with --resume goes on with --out {}",
            progress.all - progress.done,
            progress.all,
            out.display()
        ));
    }
    Ok(results.report(faults))
}

/// Trials of this run.
struct Progress {
    done: usize,
    all: usize,
}

/// What of a workload is not measured yet, in the order in which it will be: all candidates in a
/// round, all rounds under a condition.
fn left(plan: &Plan, results: &Results, workload: Workload) -> Vec<(Condition, usize, Candidate)> {
    let mut all = Vec::new();
    for condition in &plan.conditions {
        for round in 1..=plan.rounds {
            for candidate in forth_and_back(plan.candidates(), round) {
                if !results.have(workload, *condition, &candidate, round) {
                    all.push((*condition, round, candidate));
                }
            }
        }
    }
    all
}

/// One workload.
fn measure(
    bench: &Bench,
    workload: Workload,
    build: &str,
    results: &mut Results,
    progress: &mut Progress,
    say: Say,
) -> anyhow::Result<()> {
    let (plan, dir) = (bench.plan, bench.dir.parent().context("a directory")?);
    let left = left(plan, results, workload);
    if left.is_empty() {
        return Ok(());
    }
    let backlog = Backlog::make(plan, workload, dir, bench.ports, bench.stop, say)?;
    results.backlog(
        workload,
        Known {
            asked: plan.transactions(workload),
            count: backlog.count,
            goal: backlog.goal.clone(),
            checksums: backlog.checksums.clone(),
            hints: backlog.hints.clone(),
        },
    )?;
    for (condition, round, candidate) in left {
        say(&format!(
            "[{}/{}] {workload}, {condition}, round {round}: {candidate}",
            progress.done + 1,
            progress.all
        ));
        let begun = machine::now();
        let outcome = trial::run(bench, &backlog, condition, &candidate);
        bench.stop.check()?;
        let outcome = outcome?;
        if let Outcome::Failed(why) = &outcome {
            // Else all that follows would fail as well, and count as measured.
            backlog.must_be_there().with_context(|| {
                format!("{candidate} failed ({why}), and that says nothing of it")
            })?;
        }
        say(&format!("    {}", line(&outcome)));
        results.add(Entry {
            workload,
            condition,
            candidate,
            round,
            outcome,
            begun,
            build: build.to_string(),
        })?;
        results.draw()?;
        progress.done += 1;
    }
    Ok(())
}

/// Which program it is: what of it is measured, and measures.
fn build(program: &Path) -> anyhow::Result<String> {
    let bytes = fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    Ok(format!("{:08x}", crc32fast::hash(&bytes)))
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

const PLACE: &str = "dromon-catchup-";
/// A file in a place, locked as long as its process lives.
const LOCK: &str = "lock";

/// Where the servers lie; what was made is removed at the end.
struct Place {
    dir: PathBuf,
    _lock: File,
}

impl Place {
    fn make(plan: &Plan, say: Say) -> anyhow::Result<Self> {
        let base = match &plan.dir {
            Some(dir) => dir.clone(),
            None => std::env::temp_dir(),
        };
        // Servers run in directories of their own.
        let base =
            std::path::absolute(&base).with_context(|| format!("finding {}", base.display()))?;
        make_place(&base)?;
        clean(&base, say)?;
        let dir = base.join(format!("{PLACE}{}", std::process::id()));
        ensure!(
            !dir.exists(),
            "{} is there already; remove it, or name another --dir",
            dir.display()
        );
        make_place(&dir)?;
        let lock = File::create(dir.join(LOCK))
            .and_then(|file| file.lock().map(|()| file))
            .with_context(|| format!("locking {}", dir.display()))?;
        Ok(Self { dir, _lock: lock })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("dromon: {} is left: {error}", self.dir.display());
        }
    }
}

/// Ends and removes what runs left behind that were killed: their servers would be measured, too.
fn clean(base: &Path, say: Say) -> anyhow::Result<()> {
    for entry in fs::read_dir(base).with_context(|| format!("reading {}", base.display()))? {
        let dir = entry?.path();
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let number = name.strip_prefix(PLACE).map(str::parse::<u32>);
        if !matches!(number, Some(Ok(_))) {
            continue;
        }
        let Ok(lock) = File::open(dir.join(LOCK)) else {
            continue;
        };
        if lock.try_lock().is_ok() {
            let ended = end_left_behind(&dir)?;
            if let Err(error) = fs::remove_dir_all(&dir) {
                // Somebody else's, most likely.
                say(&format!(
                    "{} of a run that was killed cannot be removed ({error}); its servers, if they run, use processors, too",
                    dir.display()
                ));
                continue;
            }
            say(&format!(
                "removed {} of a run that was killed, and ended its processes that were left: {ended}",
                dir.display()
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::sample;

    #[test]
    fn what_was_measured_is_not_measured_again() {
        let mut plan = sample();
        (plan.rounds, plan.relay) = (2, Vec::new());
        plan.conditions = vec![Condition::Memory, Condition::SlowCommit];
        let mut results = Results::open(&plan, "10.11").expect("in memory");
        let all = left(&plan, &results, Workload::W1);
        // Serial, optimistic and the replica, the last two with 1 and 8 threads.
        assert_eq!(all.len(), 5 * 2 * 2);
        let names = |some: &[(Condition, usize, Candidate)]| {
            some.iter().map(|(_, _, c)| c.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&all[..5]), plan.candidates());
        let back: Vec<Candidate> = plan.candidates().into_iter().rev().collect();
        assert_eq!(names(&all[5..10]), back);
        for (condition, round, candidate) in all[..7].iter().cloned() {
            let entry = Entry {
                workload: Workload::W1,
                condition,
                candidate,
                round,
                outcome: Outcome::Failed("it counts, too".into()),
                begun: String::new(),
                build: String::new(),
            };
            results.add(entry).expect("kept");
        }
        assert_eq!(left(&plan, &results, Workload::W1), all[7..]);
        assert_eq!(left(&plan, &results, Workload::W2).len(), all.len());
    }

    #[test]
    fn what_a_killed_run_left_is_removed_and_what_lives_is_not() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let plan = Plan {
            dir: Some(home.path().join("here")),
            ..sample()
        };
        let silent = |line: &str| panic!("{line}");
        let place = Place::make(&plan, &silent).expect("made");
        let base = plan.dir.as_deref().expect("named");
        // As another process would leave it, and what is nobody's.
        let killed = base.join(format!("{PLACE}4000000000"));
        for dir in [killed.clone(), base.join(format!("{PLACE}notes"))] {
            fs::create_dir(&dir).expect("made");
            fs::write(dir.join(LOCK), "").expect("written");
        }
        let said = std::cell::RefCell::new(Vec::new());
        clean(base, &|line| said.borrow_mut().push(line.to_string())).expect("cleaned");
        assert!(!killed.exists() && place.dir.exists());
        assert!(base.join(format!("{PLACE}notes")).exists());
        assert_eq!(said.borrow().len(), 1);
        assert!(said.borrow()[0].contains("4000000000"), "{said:?}");
        drop(place);
        assert_eq!(fs::read_dir(base).expect("there").count(), 1);
    }

    #[test]
    fn a_program_is_known_by_its_bytes() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("program");
        fs::write(&file, "123456789").expect("written");
        assert_eq!(build(&file).expect("read"), "cbf43926");
        assert!(build(&dir.path().join("none")).is_err());
    }

    #[test]
    fn nothing_is_started_for_a_plan_that_is_refused() {
        let mut plan = sample();
        plan.rows = 1;
        let error = run(&plan, &|_| panic!("nothing happens")).expect_err("refused");
        assert!(error.to_string().contains("1 rows"), "{error}");
    }
}
