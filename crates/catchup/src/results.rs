//! What was measured, on disk as it comes. A run that is killed loses the trial that was under
//! way; another one goes on with the rest, and all of it becomes one report.
//!
//! ```text
//! OUT/run.json      what all trials have in common, and which backlogs they had
//! OUT/trials.csv    a line for each trial, in the order in which they were measured
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use dromon_load::bench::{in_rounds, version};
use dromon_load::machine;
use dromon_load::series::median;
use serde_json::{Map, Value, json};

use crate::plan::{Candidate, Condition, Plan, Workload};
use crate::report::{Entry, Report, write_drawn};
use crate::trials;

/// Raised when old files would be read wrongly.
const FORMAT: u64 = 1;
const RUN: &str = "run.json";
/// The trials, below the directory of the results.
pub const TRIALS: &str = "trials.csv";

/// All that was measured so far.
pub struct Results {
    dir: Option<PathBuf>,
    /// Locked, and open for appending, once something may be added.
    trials: Option<Locked>,
    /// Bytes of it that were whole lines when it was read.
    whole: u64,
    /// Something could not be written.
    is_lost: bool,
    /// What must be the same for all trials that are compared.
    alike: BTreeMap<String, String>,
    backlogs: BTreeMap<Workload, Known>,
    entries: Vec<Entry>,
}

/// A backlog that trials were measured on.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// Transactions that were asked for.
    pub asked: u64,
    /// Transactions in it.
    pub count: u64,
    /// Where it ends.
    pub goal: String,
    /// Of all tables, behind it.
    pub checksums: BTreeMap<String, u64>,
    /// What the relay found out about it.
    pub hints: Option<String>,
}

impl Results {
    /// Those of a plan; with [`Plan::resume`] what is there already is read. Writes nothing.
    ///
    /// # Errors
    /// When what is there cannot be read, or was measured in another way.
    pub fn open(plan: &Plan, server: &str) -> anyhow::Result<Self> {
        let mut results = Self {
            dir: plan.out.clone(),
            trials: None,
            whole: 0,
            is_lost: false,
            alike: alike(plan, server),
            backlogs: BTreeMap::new(),
            entries: Vec::new(),
        };
        let nothing_yet = |dir: &PathBuf| {
            let text = fs::read_to_string(dir.join(TRIALS)).unwrap_or_default();
            !dir.join(RUN).exists() && text == trials::head()
        };
        // A run that was killed before its first trial leaves that: it is no different from none.
        if let (true, Some(dir)) = (plan.resume, plan.out.as_ref().filter(|d| !nothing_yet(d))) {
            ensure!(
                dir.join(RUN).is_file() && dir.join(TRIALS).is_file(),
                "--out {} holds no results to go on with ({RUN}, {TRIALS}); leave --resume out to begin",
                dir.display()
            );
            let path = dir.join(TRIALS);
            results.trials = Some(lock(&path)?);
            results.read(&dir.join(RUN), plan)?;
            let text =
                fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
            results.entries = trials::read(whole).with_context(|| untouched(&path))?;
            results.whole = whole.len() as u64;
        }
        Ok(results)
    }

    fn read(&mut self, path: &Path, plan: &Plan) -> anyhow::Result<()> {
        let (alike, backlogs) = fs::read_to_string(path)
            .context("reading it")
            .and_then(|text| parse(&text))
            .with_context(|| untouched(path))?;
        let mut others: Vec<String> = Vec::new();
        for (name, now) in &self.alike {
            let then = alike.get(name).map_or("unknown", String::as_str);
            if then != now {
                others.push(format!("{name}: {then} then, {now} now"));
            }
        }
        for workload in &plan.workloads {
            let (asked, now) = (
                backlogs.get(workload).map(|b| b.asked),
                plan.transactions(*workload),
            );
            if let Some(then) = asked.filter(|then| *then != now) {
                others.push(format!(
                    "transactions of {workload}: {then} then, {now} now"
                ));
            }
        }
        ensure!(
            others.is_empty(),
            "What is in {} was measured in another way, and would not be comparable ({}). Measure as it was measured, or into another directory; nothing was touched",
            path.parent().unwrap_or(path).display(),
            others.join("; ")
        );
        self.backlogs = backlogs;
        Ok(())
    }

    /// Makes the files, or, when going on, cuts off a line that was not written to its end.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn begin(&mut self) -> anyhow::Result<()> {
        let Some(dir) = &self.dir else {
            return Ok(());
        };
        let path = dir.join(TRIALS);
        let written = match &self.trials {
            // What stands behind them was not written to its end.
            Some(file) => file.0.set_len(self.whole),
            None => {
                fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
                let file = &mut self.trials.insert(lock(&path)?).0;
                let head = trials::head();
                match file.metadata()?.len() {
                    0 => file.write_all(head.as_bytes()),
                    // See `open`.
                    there if there == head.len() as u64 => Ok(()),
                    _ => bail!("{} holds trials; name another --out", path.display()),
                }
            }
        };
        written.with_context(|| format!("writing {}", path.display()))?;
        self.remember()
    }

    fn remember(&self) -> anyhow::Result<()> {
        let Some(dir) = &self.dir else {
            return Ok(());
        };
        let (path, aside) = (dir.join(RUN), dir.join(format!("{RUN}.new")));
        let text = format!("{:#}\n", json(&self.alike, &self.backlogs));
        fs::write(&aside, text)
            .and_then(|()| fs::rename(&aside, &path))
            .with_context(|| format!("writing {}", path.display()))
    }

    /// Whether this trial was measured, or failed.
    #[must_use]
    pub fn have(
        &self,
        workload: Workload,
        condition: Condition,
        candidate: &Candidate,
        round: usize,
    ) -> bool {
        let wanted = (workload, condition, candidate, round);
        self.entries.iter().any(|e| e.key() == wanted)
    }

    /// A backlog was made: the first one of its workload, or the same again.
    ///
    /// # Errors
    /// When it is another one than that of the trials which are there.
    pub fn backlog(&mut self, workload: Workload, known: Known) -> anyhow::Result<()> {
        if let Some(before) = self.backlogs.get(&workload) {
            let same = before.goal == known.goal && before.checksums == known.checksums;
            ensure!(
                same,
                "The backlog that was made now is not the one of the trials before (up to {} with checksums {:?}, then {} with {:?}); none is added to them. Measure this workload into another directory",
                known.goal,
                known.checksums,
                before.goal,
                before.checksums
            );
            // What went before may have had no relay.
            if known.hints.is_none() {
                return Ok(());
            }
        }
        self.backlogs.insert(workload, known);
        self.remember()
    }

    /// A trial was measured. Its line is on the disk when this returns.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&mut self, entry: Entry) -> anyhow::Result<()> {
        let line = trials::line(&entry);
        self.entries.push(entry);
        let Some(Locked(file)) = &mut self.trials else {
            return Ok(());
        };
        let written = file
            .write_all(line.as_bytes())
            .and_then(|()| file.sync_data());
        self.is_lost = written.is_err();
        written.with_context(|| {
            format!("writing {TRIALS}; nothing more is measured, as it could not be kept")
        })
    }

    /// Whether a trial could not be written. What follows it would stand behind half a line.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Tables and chart of what there is so far.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn draw(&self) -> anyhow::Result<()> {
        match &self.dir {
            Some(dir) => write_drawn(&self.report(Vec::new()), dir).map(drop),
            None => Ok(()),
        }
    }

    /// The report of all there is; `faults` kept something from being measured.
    #[must_use]
    pub fn report(&self, faults: Vec<String>) -> Report {
        let mut entries = self.entries.clone();
        entries.sort_by(|a, b| a.key().cmp(&b.key()));
        let rounds = entries.iter().map(|e| e.round).max().unwrap_or(1);
        let mut notes: Vec<String> = Vec::new();
        for (workload, known) in &self.backlogs {
            let hints = known
                .hints
                .as_ref()
                .map_or(String::new(), |h| format!("; {h}"));
            notes.push(format!(
                "{workload}: {} transactions, up to {}{hints}",
                known.count, known.goal
            ));
        }
        notes.extend(self.measured(&entries));
        notes.extend(beside(&entries));
        Report {
            title: self.title(rounds),
            entries,
            notes,
            faults,
        }
    }

    fn of(&self, name: &str) -> &str {
        self.alike.get(name).map_or("unknown", String::as_str)
    }

    fn title(&self, rounds: usize) -> String {
        format!(
            "Catching up, table of {} rows, fsync +{} ms, reads +{} ms, MariaDB {}{}",
            self.of("rows"),
            self.of("fsync_ms"),
            self.of("read_ms"),
            version(self.of("server")),
            in_rounds(rounds)
        )
    }

    /// When, on what, and by which program.
    fn measured(&self, entries: &[Entry]) -> Option<String> {
        let first = entries.iter().map(|e| &e.begun).min()?;
        let last = entries.iter().map(|e| &e.begun).max()?;
        let mut builds: Vec<&str> = entries.iter().map(|e| e.build.as_str()).collect();
        builds.sort_unstable();
        builds.dedup();
        let builds = match builds[..] {
            [one] => format!("one build of dromon ({one})"),
            _ => format!(
                "{} BUILDS of dromon ({}; which trial by which stands in {TRIALS})",
                builds.len(),
                builds.join(", ")
            ),
        };
        Some(format!(
            "Measured from {first} to {last} UTC on {}, {}, with {builds}; each candidate for {} s at most",
            self.of("processors"),
            self.of("kernel"),
            self.of("limit_s")
        ))
    }
}

/// How much others used of the machine: where it was much, figures say who got a processor.
fn beside(entries: &[Entry]) -> Option<String> {
    let all = entries
        .iter()
        .filter_map(|e| Some((e.outcome.measured()?.others(), e)));
    let (most, entry) = all.clone().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let median = median(all.map(|(others, _)| others))?;
    Some(format!(
        "Others used {median:.2} of a processor beside the trials (median), and {most:.2} beside {}, {}, {}, round {}",
        entry.workload, entry.condition, entry.candidate, entry.round
    ))
}

fn untouched(path: &Path) -> String {
    format!(
        "{} cannot be gone on with; nothing was touched",
        path.display()
    )
}

/// A file that nobody else appends to.
struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing alone leaves the lock to a child that was forked and has not yet begun its program.
        let _ = self.0.unlock();
    }
}

/// Opens the file for appending, for this process alone.
fn lock(path: &Path) -> anyhow::Result<Locked> {
    let file = File::options()
        .append(true)
        .create(true)
        .open(path)
        .with_context(|| format!("opening {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(Locked(file)),
        Err(fs::TryLockError::WouldBlock) => bail!(
            "Another dromon bench catchup is adding to {}; wait for its end",
            path.display()
        ),
        Err(fs::TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("locking {}", path.display()))
        }
    }
}

/// Where the servers will lie.
fn place(plan: &Plan) -> PathBuf {
    plan.dir.clone().unwrap_or_else(std::env::temp_dir)
}

fn alike(plan: &Plan, server: &str) -> BTreeMap<String, String> {
    let settings: Vec<String> = plan
        .settings
        .iter()
        .map(|s| match &s.value {
            Some(value) => format!("{}={value}", s.name),
            None => s.name.clone(),
        })
        .collect();
    let ms = |time: std::time::Duration| (time.as_secs_f64() * 1e3).to_string();
    [
        ("rows", plan.rows.to_string()),
        ("fsync_ms", ms(plan.fsync)),
        ("read_ms", ms(plan.read)),
        ("limit_s", plan.limit.as_secs_f64().to_string()),
        ("settings", settings.join(" ")),
        ("server", server.to_string()),
        ("kernel", machine::kernel()),
        ("machine", machine::identity()),
        ("memory", machine::memory()),
        ("file_system", machine::file_system(&place(plan))),
        ("priority", machine::priority()),
        (
            "processors",
            format!("{} x {}", machine::processors(), machine::processor()),
        ),
    ]
    .map(|(name, value)| (name.to_string(), value))
    .into()
}

fn json(alike: &BTreeMap<String, String>, backlogs: &BTreeMap<Workload, Known>) -> Value {
    let backlogs: Map<String, Value> = backlogs
        .iter()
        .map(|(workload, known)| {
            let value = json!({
                "asked": known.asked,
                "transactions": known.count,
                "position": known.goal,
                "checksums": known.checksums,
                "hints": known.hints,
            });
            (workload.to_string(), value)
        })
        .collect();
    json!({"format": FORMAT, "alike": alike, "backlogs": backlogs})
}

type Run = (BTreeMap<String, String>, BTreeMap<Workload, Known>);

fn parse(text: &str) -> anyhow::Result<Run> {
    let value: Value = serde_json::from_str(text)?;
    ensure!(
        value["format"].as_u64() == Some(FORMAT),
        "It is of format {}, and this program knows format {FORMAT}",
        value["format"]
    );
    let alike = value["alike"].as_object().context("It has no \"alike\"")?;
    let alike = alike
        .iter()
        .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_string()))
        .collect();
    let backlogs = value["backlogs"]
        .as_object()
        .context("It has no \"backlogs\"")?;
    let mut known = BTreeMap::new();
    for (workload, value) in backlogs {
        let workload: Workload = workload.parse().map_err(anyhow::Error::msg)?;
        let found =
            backlog(value).with_context(|| format!("The backlog of {workload} is not whole"))?;
        known.insert(workload, found);
    }
    Ok((alike, known))
}

fn backlog(value: &Value) -> Option<Known> {
    let sums = value["checksums"].as_object()?.iter();
    let checksums: Option<BTreeMap<String, u64>> = sums
        .map(|(table, sum)| Some((table.clone(), sum.as_u64()?)))
        .collect();
    Some(Known {
        asked: value["asked"].as_u64()?,
        count: value["transactions"].as_u64()?,
        goal: value["position"].as_str()?.to_string(),
        checksums: checksums?,
        hints: value["hints"].as_str().map(str::to_string),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Threads;
    use crate::plan::tests::sample as plan;
    use crate::report::tests::sample as report;
    use crate::trial::Outcome;

    const SERVER: &str = "mariadbd  Ver 10.11.6-MariaDB for Linux";

    fn known(sum: u64) -> Known {
        Known {
            asked: 100,
            count: 102,
            goal: "0-1-102".into(),
            checksums: [("d.t".to_string(), sum)].into(),
            hints: None,
        }
    }

    fn plan_in(dir: &Path, resume: bool) -> Plan {
        Plan {
            out: Some(dir.to_path_buf()),
            resume,
            ..plan()
        }
    }

    /// Results with the first of the sample's trials.
    fn begun(dir: &Path, trials: usize) -> Results {
        let mut results = Results::open(&plan_in(dir, false), SERVER).expect("new");
        results.begin().expect("written");
        results
            .backlog(Workload::W1, known(7))
            .expect("the first one");
        for entry in report().entries.into_iter().take(trials) {
            results.add(entry).expect("written");
        }
        results
    }

    fn refused(dir: &Path) -> String {
        match Results::open(&plan_in(dir, true), SERVER) {
            Ok(_) => panic!("it is gone on with"),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn what_was_measured_is_there_when_the_run_goes_on() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let dir = home.path().join("new");
        let all = report().entries;
        let before = begun(&dir, 3);
        let told = before.report(Vec::new()).table();
        drop(before);
        let mut results = Results::open(&plan_in(&dir, true), SERVER).expect("it goes on");
        assert_eq!(results.report(Vec::new()).table(), told);
        let have = |results: &Results, e: &Entry| {
            results.have(e.workload, e.condition, &e.candidate, e.round)
        };
        assert!(all[..3].iter().all(|e| have(&results, e)));
        assert!(!all[3..].iter().any(|e| have(&results, e)));
        assert!(!results.have(all[0].workload, all[0].condition, &all[0].candidate, 2));
        results.begin().expect("nothing to mend");
        results.backlog(Workload::W1, known(7)).expect("the same");
        for entry in &all[3..] {
            results.add(entry.clone()).expect("written");
        }
        drop(results);
        let results = Results::open(&plan_in(&dir, true), SERVER).expect("again");
        assert_eq!(results.entries, all);
    }

    #[test]
    fn a_trial_that_was_not_written_to_its_end_is_measured_again() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let dir = home.path().join("new");
        drop(begun(&dir, 2));
        let path = dir.join(TRIALS);
        let text = fs::read_to_string(&path).expect("there");
        for cut in 1..text.lines().last().expect("a trial").len() {
            fs::write(&path, &text[..text.len() - cut]).expect("written");
            let mut results = Results::open(&plan_in(&dir, true), SERVER).expect("it goes on");
            assert_eq!(results.entries.len(), 1);
            results.begin().expect("cut");
            results.add(report().entries[1].clone()).expect("written");
            drop(results);
            assert_eq!(fs::read_to_string(&path).expect("there"), text);
        }
    }

    #[test]
    fn what_was_measured_in_another_way_is_not_added_to() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let dir = home.path().join("new");
        assert!(refused(&dir).contains("leave --resume out"));
        drop(begun(&dir, 1));
        let other = |change: fn(&mut Plan), server: &str, word: &str| {
            let mut plan = plan_in(&dir, true);
            change(&mut plan);
            let error = match Results::open(&plan, server) {
                Ok(_) => panic!("{word}"),
                Err(error) => format!("{error:#}"),
            };
            assert!(
                error.contains(word) && error.contains("nothing was touched"),
                "{error}"
            );
        };
        other(|p| p.rows = 2000, SERVER, "rows: 1000 then, 2000 now");
        other(
            |p| p.limit = std::time::Duration::from_secs(7),
            SERVER,
            "limit_s: 60 then, 7 now",
        );
        other(
            |p| p.settings = vec!["sync_binlog=7".parse().expect("a setting")],
            SERVER,
            "sync_binlog=7 now",
        );
        other(
            |p| p.transactions = Some(60),
            SERVER,
            "transactions of w1: 100 then, 60 now",
        );
        other(|_| (), "mariadbd  Ver 11.8", "Ver 11.8 now");
        // Another number of rounds, other threads, other candidates are no other way.
        let mut plan = plan_in(&dir, true);
        (plan.rounds, plan.threads, plan.workloads) =
            (3, vec![Threads::Fixed(2)], vec![Workload::W2]);
        Results::open(&plan, SERVER).expect("it goes on");
    }

    #[test]
    fn files_that_cannot_be_read_are_refused_and_left() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let dir = home.path().join("new");
        drop(begun(&dir, 2));
        let damage = |name: &str, from: &str, to: &str, word: &str| {
            let path = dir.join(name);
            let text = fs::read_to_string(&path).expect("there");
            assert!(text.contains(from), "{from} is not in {text}");
            let damaged = text.replacen(from, to, 1);
            fs::write(&path, &damaged).expect("written");
            let error = refused(&dir);
            assert!(
                error.contains(word) && error.contains("nothing was touched"),
                "{error}"
            );
            assert_eq!(fs::read_to_string(&path).expect("there"), damaged);
            fs::write(&path, &text).expect("written");
        };
        damage(RUN, "\"format\": 1", "\"format\": 2", "format 2");
        damage(RUN, "\"asked\": 100", "\"asked\": -1", "backlog of w1");
        damage(RUN, "{", "", "line 2");
        damage(TRIALS, "w1,", "w9,", "line 2");
        damage(TRIALS, ",seconds,", ",hours,", "another version");
        refused_twice(&dir);
    }

    /// The same trial in two lines.
    fn refused_twice(dir: &Path) {
        let path = dir.join(TRIALS);
        let text = fs::read_to_string(&path).expect("there");
        let last = text.lines().last().expect("a trial");
        fs::write(&path, format!("{text}{last}\n")).expect("written");
        let error = refused(dir);
        assert!(
            error.contains("line 4") && error.contains("line 3"),
            "{error}"
        );
    }

    #[test]
    fn two_runs_do_not_write_to_one_file() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let dir = home.path().join("new");
        let results = begun(&dir, 1);
        assert!(refused(&dir).contains("Another dromon bench catchup"));
        // As a child holds it, between fork and exec.
        let Locked(file) = results.trials.as_ref().expect("open");
        let held = file.try_clone().expect("cloned");
        drop(results);
        Results::open(&plan_in(&dir, true), SERVER).expect("it is free");
        drop(held);
    }

    #[test]
    fn another_backlog_is_not_taken_for_the_same() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let mut results = begun(&home.path().join("new"), 1);
        let error = results
            .backlog(Workload::W1, known(8))
            .expect_err("another");
        assert!(error.to_string().contains("d.t"), "{error}");
        let mut shorter = known(7);
        shorter.goal = "0-1-101".into();
        assert!(results.backlog(Workload::W1, shorter).is_err());
        results
            .backlog(Workload::W2, known(8))
            .expect("the first of w2");
    }

    #[test]
    fn the_title_says_what_was_measured_and_a_note_by_what() {
        let mut results = Results::open(&plan(), SERVER).expect("in memory");
        results.begin().expect("nothing is written");
        for (round, build) in [(1, "a"), (2, "a"), (2, "b")] {
            let mut entry = report().entries[0].clone();
            entry.round = round;
            entry.build = build.into();
            results.add(entry).expect("kept");
        }
        let report = results.report(Vec::new());
        assert_eq!(
            report.title,
            "Catching up, table of 1000 rows, fsync +4 ms, reads +2 ms, MariaDB 10.11.6; 2 rounds"
        );
        let [.., note, beside] = &report.notes[..] else {
            panic!("{:?}", report.notes)
        };
        assert_eq!(
            beside,
            "Others used 0.02 of a processor beside the trials (median), and 0.02 beside w1, slow-commit, built-in serial, round 2"
        );
        assert!(note.contains("2 BUILDS of dromon (a, b;"), "{note}");
        assert!(
            note.contains("from 2026-11-24 04:00 to 2026-11-24 04:00 UTC"),
            "{note}"
        );
    }

    #[test]
    fn what_cannot_be_written_is_known() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let mut results = begun(&home.path().join("new"), 1);
        assert!(!results.is_lost());
        let full = File::options().append(true).open("/dev/full");
        results.trials = Some(Locked(full.expect("there")));
        let error = results
            .add(report().entries[1].clone())
            .expect_err("it is full");
        assert!(
            error.to_string().contains("nothing more is measured"),
            "{error}"
        );
        assert!(results.is_lost());
    }

    #[test]
    fn a_failure_is_kept_with_its_reason() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let dir = home.path().join("new");
        let mut results = begun(&dir, 0);
        let mut entry = report().entries[0].clone();
        entry.outcome = Outcome::Failed("it said \"no\",\nand ended".into());
        results.add(entry).expect("written");
        drop(results);
        let results = Results::open(&plan_in(&dir, true), SERVER).expect("it goes on");
        let expected = Outcome::Failed("it said \"no\", and ended".into());
        assert_eq!(results.entries[0].outcome, expected);
    }
}
