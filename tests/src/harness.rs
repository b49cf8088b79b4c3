//! Runs scenarios, each within its time, on a shared or its own cluster, and
//! counts. Those with servers of their own may run in lanes beside each other.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_sandbox::{Cluster, ClusterSpec, JoinPlan, Node, Setting, SstMethod, StopReport};

use crate::check::{self, Conflicts};
use crate::lab::{Disks, LogDisks, Network};
use crate::load::Session;
use crate::report::Report;
use crate::scenario::relay::process::nothing_panicked;
use crate::watch;

/// How long a node may take to join.
pub const JOIN_LIMIT: Duration = Duration::from_secs(120);
/// What a scenario may take beyond its load.
const SLACK: Duration = Duration::from_secs(240);
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// After that their threads are shown.
const STOP_LOOK: Duration = Duration::from_secs(40);

/// Between a scenario's name and that of a directory of it that is not its cluster's.
const BESIDE: &str = ".";

/// How scenarios are run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The provider library.
    pub provider: PathBuf,
    /// Load in each scenario.
    pub seconds: Duration,
    /// Write-then-read pairs.
    pub reads: u64,
    /// Size of the big write set.
    pub big_mb: u64,
    /// The big write set may not hold up the small ones.
    pub big_strict: bool,
    /// Applier threads of each node.
    pub appliers: usize,
    /// How nodes of the shared cluster get their full copy.
    pub sst_method: SstMethod,
    /// Provider options for every node.
    pub provider_options: String,
    /// Server settings for every node.
    pub settings: Vec<Setting>,
    /// Where the clusters lie.
    pub dir: Option<PathBuf>,
    /// Rounds of each scenario that has rounds.
    pub rounds: u64,
    /// Where its random numbers begin.
    pub seed: u64,
    /// Entries to feed again after an outage.
    pub entries: u64,
    /// Rows of a large transaction (origin_dies, cut_off).
    pub large_rows: u64,
    /// Another provider to measure beside.
    pub peer: Option<PathBuf>,
    /// Whether the times of the fault rounds are judged. They are measured in
    /// any case; a busy machine must not fail a test by being slow.
    pub times_judged: bool,
}

impl Options {
    /// Where the clusters of this run lie.
    pub fn base(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(|| {
            let pid = std::process::id();
            std::env::temp_dir().join(format!("dromon-tests-{pid}"))
        })
    }

    /// What may pass where `wanted` is promised.
    pub fn limit(&self, wanted: Duration) -> Duration {
        if self.times_judged {
            wanted
        } else {
            STANDS_STILL
        }
    }
}

/// Longer than any machine needs: something stands still.
const STANDS_STILL: Duration = Duration::from_secs(60);

/// What hurts servers beyond signals; given back when the servers are gone.
#[derive(Default)]
pub struct Gear {
    /// File systems that lose power.
    pub disks: Option<Disks>,
    /// File systems for the nodes' logs that fail, hang and fill up.
    pub log_disks: Option<LogDisks>,
    /// Networks that lose packets.
    pub network: Option<Network>,
}

/// Which servers a scenario runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Servers {
    /// Three nodes that earlier scenarios used too.
    Shared,
    /// None yet: the scenario starts its own with [`Case::own_cluster`].
    Own,
}

/// What a scenario does.
pub type Run = fn(&mut Case) -> anyhow::Result<()>;

/// A named test.
pub struct Scenario {
    /// As on the command line.
    pub name: &'static str,
    /// What it shows, in a few words.
    pub shows: &'static str,
    /// Which servers.
    pub servers: Servers,
    /// The test.
    pub run: Run,
    /// What a round may take, for a scenario that has rounds.
    pub round: Duration,
    /// It judges how long something takes: nothing runs beside it then.
    pub timed: bool,
}

/// A scenario's surroundings while it runs.
pub struct Case {
    /// How it is run.
    pub options: Options,
    /// A database of its own (created on the shared cluster).
    pub db: String,
    base: PathBuf,
    port_hint: u16,
    cluster: Arc<Mutex<Option<Arc<Cluster>>>>,
    notes: Vec<Note>,
    gear: Gear,
    expected: Vec<Expected>,
}

/// A word that is right in one node's log although it mostly is not: the node's
/// number from 0, and the word.
pub type Expected = (usize, &'static str);

/// A line about what a scenario saw.
pub struct Note {
    /// The line.
    pub text: String,
    printed: bool,
}

impl Case {
    /// The cluster. Panics if the scenario has none yet.
    pub fn cluster(&self) -> Arc<Cluster> {
        slot(&self.cluster)
            .clone()
            .expect("a scenario asks for its cluster after it was started")
    }

    /// Node by position, 0 is db1.
    pub fn node(&self, index: usize) -> Arc<Node> {
        Arc::clone(self.cluster().node(index))
    }

    /// A connection to a node, in the scenario's database.
    pub fn session(&self, index: usize) -> anyhow::Result<Session> {
        Session::open(&self.node(index), &self.db, 0)
    }

    /// Remembers a line to print below the result.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(Note {
            text: text.into(),
            printed: false,
        });
    }

    /// Takes it as right if this node (0 is db1) logs lines with this word.
    pub fn expect_in_log(&mut self, node: usize, word: &'static str) {
        self.expected.push((node, word));
    }

    /// A note of a long scenario: printed now, and kept for the report.
    pub fn progress(&mut self, text: impl Into<String>) {
        let text = text.into();
        println!("    {}: {text}", self.db);
        self.notes.push(Note {
            text,
            printed: true,
        });
    }

    /// Gives the cluster, which was not started yet, file systems that lose power.
    pub fn give_disks(&mut self) -> anyhow::Result<()> {
        self.gear.disks = Some(Disks::give(&self.cluster())?);
        Ok(())
    }

    /// Gives the logs of the cluster, which was not started yet, file systems
    /// that fail, hang and fill up.
    pub fn give_log_disks(&mut self) -> anyhow::Result<()> {
        self.gear.log_disks = Some(LogDisks::give(&self.cluster())?);
        Ok(())
    }

    /// Gives the cluster, which was not started yet, a network that loses packets.
    pub fn give_network(&mut self) -> anyhow::Result<()> {
        self.gear.network = Some(Network::give(&self.cluster())?);
        Ok(())
    }

    /// The file systems given. Panics if there are none.
    pub fn disks(&self) -> &Disks {
        self.gear.disks.as_ref().expect("give_disks comes first")
    }

    /// The logs' file systems. Panics if there are none.
    pub fn log_disks(&self) -> &LogDisks {
        self.gear
            .log_disks
            .as_ref()
            .expect("give_log_disks comes first")
    }

    /// The network given. Panics if there is none.
    pub fn network(&self) -> &Network {
        self.gear
            .network
            .as_ref()
            .expect("give_network comes first")
    }

    /// Stops and removes the scenario's cluster, so that it can have another one.
    pub fn retire_cluster(&mut self) -> anyhow::Result<()> {
        // It stays the scenario's until it is gone: what fails is kept for a look.
        let Some(cluster) = slot(&self.cluster).clone() else {
            return Ok(());
        };
        if cluster.record().is_dromon() {
            check::none_gone(&cluster)?;
            check::logs_clean(&cluster, &vec![0; cluster.nodes().len()], &self.expected)?;
        }
        stop(&cluster, &self.expected)?;
        self.gear = Gear::default();
        let dir = cluster.record().dir;
        Cluster::open(&dir)?.purge()?;
        *slot(&self.cluster) = None;
        Ok(())
    }

    /// A directory of the scenario's own; not made.
    pub fn dir(&self) -> PathBuf {
        self.base.join(&self.db)
    }

    /// A new directory for servers and programs that do not belong to the scenario's cluster.
    pub fn dir_beside(&self, name: &str) -> anyhow::Result<PathBuf> {
        let dir = self.base.join(format!("{}{BESIDE}{name}", self.db));
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// Its directory, and those beside that are there.
    fn dirs(&self) -> Vec<PathBuf> {
        let beside = format!("{}{BESIDE}", self.db);
        let all = fs::read_dir(&self.base).into_iter().flatten().flatten();
        all.filter(|e| e.file_name().to_string_lossy().starts_with(&beside))
            .map(|e| e.path())
            .chain([self.dir()])
            .collect()
    }

    /// Prepares (does not start) a cluster of the scenario's own and makes it
    /// the scenario's cluster.
    pub fn own_cluster(
        &self,
        change: impl FnOnce(&mut ClusterSpec),
    ) -> anyhow::Result<Arc<Cluster>> {
        let dir = self.dir();
        let mut spec = spec(&self.options, dir, self.port_hint);
        change(&mut spec);
        let cluster = Arc::new(Cluster::create(&spec)?);
        *slot(&self.cluster) = Some(Arc::clone(&cluster));
        Ok(cluster)
    }
}

fn slot<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spec(options: &Options, dir: PathBuf, port_hint: u16) -> ClusterSpec {
    let mut spec = ClusterSpec::new(&dir, &options.provider);
    spec.appliers = options.appliers;
    spec.sst_method = options.sst_method;
    spec.provider_options.clone_from(&options.provider_options);
    spec.settings.clone_from(&options.settings);
    spec.port_hint = Some(port_hint);
    spec
}

/// What all lanes have counted.
pub struct Tally {
    passed: usize,
    /// What failed and why.
    failed: Vec<(String, String)>,
    kept: Vec<PathBuf>,
    conflicts: Conflicts,
    streams_count: bool,
    report: Report,
}

impl Tally {
    /// Nothing so far.
    pub fn new(report: Report) -> Self {
        Self {
            passed: 0,
            failed: Vec::new(),
            kept: Vec::new(),
            conflicts: Conflicts::default(),
            streams_count: false,
            report,
        }
    }

    /// Conflicts counted so far.
    pub fn conflicts(&self) -> Conflicts {
        self.conflicts
    }

    /// Whether streams were counted: on servers that nobody started anew meanwhile, and not on the peer.
    pub fn streams_count(&self) -> bool {
        self.streams_count
    }

    /// Counts a failure that belongs to no scenario.
    pub fn fail(&mut self, why: &str) {
        println!("FAILED: {why}");
        self.failed.push(("storms".to_string(), why.to_string()));
    }

    /// Counts a scenario and prints its result.
    fn add(&mut self, scenario: &Scenario, result: &anyhow::Result<Vec<Note>>, took: f64) {
        self.report.add(scenario, result, took);
        match result {
            Ok(notes) => {
                println!("test {} ... ok ({took:.1} s)", scenario.name);
                let later = notes.iter().filter(|n| !n.printed);
                later.for_each(|n| println!("    {}", n.text));
                self.passed += 1;
            }
            Err(error) => {
                println!(
                    "test {} ... FAILED ({took:.1} s)\n    {error:#}",
                    scenario.name
                );
                (self.failed).push((scenario.name.to_string(), format!("{error:#}")));
            }
        }
    }

    /// Prints the sums; true if nothing failed.
    pub fn finish(self) -> bool {
        for dir in &self.kept {
            println!("kept for a look: {}", dir.display());
        }
        println!("storms: {} in all", self.conflicts);
        // Once more, and last: who reads only the end of a long log sees why.
        for (name, why) in &self.failed {
            println!("failed: {name}: {}", first_words(why));
        }
        println!(
            "storms: {} passed, {} failed",
            self.passed,
            self.failed.len()
        );
        self.failed.is_empty() && self.passed > 0
    }
}

/// One line, of at most so many characters that a log's end has room for several.
fn first_words(why: &str) -> String {
    let words: Vec<&str> = why.split_whitespace().collect();
    words.join(" ").chars().take(600).collect()
}

/// Runs all of them: first those that must be alone, then the others in so many
/// lanes; those with shared servers all in the first one.
pub fn run_all(
    options: &Options,
    tally: &Mutex<Tally>,
    chosen: Vec<Scenario>,
    lanes: usize,
) -> anyhow::Result<()> {
    let mut first = Harness::new(options.clone(), tally, 0)?;
    let alone = |s: &Scenario| options.times_judged && s.timed;
    let (alone, others): (Vec<_>, Vec<_>) = chosen.into_iter().partition(alone);
    if lanes < 2 {
        alone.iter().chain(&others).for_each(|s| first.run(s));
        first.finish();
        return Ok(());
    }
    alone.iter().for_each(|s| first.run(s));
    let (shared, own): (Vec<_>, Vec<_>) =
        (others.into_iter()).partition(|s| s.servers == Servers::Shared);
    let left = Mutex::new(VecDeque::from(own));
    let take_all = |harness: &mut Harness| {
        while let Some(scenario) = { slot(&left).pop_front() } {
            harness.run(&scenario);
        }
    };
    thread::scope(|scope| -> anyhow::Result<()> {
        for lane in 1..lanes {
            let mut harness = Harness::new(options.clone(), tally, lane)?;
            let take_all = &take_all;
            scope.spawn(move || {
                take_all(&mut harness);
                harness.finish();
            });
        }
        shared.iter().for_each(|s| first.run(s));
        // Its servers have nothing more to do, and their memory is wanted.
        first.end_shared();
        take_all(&mut first);
        Ok(())
    })?;
    first.finish();
    Ok(())
}

/// Runs scenarios, one after the other.
struct Harness<'a> {
    options: Options,
    tally: &'a Mutex<Tally>,
    base: PathBuf,
    port_hint: u16,
    shared: Option<Arc<Cluster>>,
    shared_made: usize,
}

impl<'a> Harness<'a> {
    /// Makes the directory; starts nothing.
    fn new(options: Options, tally: &'a Mutex<Tally>, lane: usize) -> anyhow::Result<Self> {
        let pid = std::process::id();
        let base = options.base();
        fs::create_dir_all(&base).with_context(|| format!("creating {}", base.display()))?;
        fs::set_permissions(&base, fs::Permissions::from_mode(0o755))?;
        // Spread over the port range, so that several test runs and lanes seldom meet.
        let apart = (usize::try_from(pid)? + lane * 300) % 900;
        let port_hint = 23306 + u16::try_from(apart)? * 10;
        Ok(Self {
            options,
            tally,
            base,
            port_hint,
            shared: None,
            shared_made: 0,
        })
    }

    /// Runs one scenario; prints its result.
    fn run(&mut self, scenario: &Scenario) {
        let begin = Instant::now();
        let result = self.attempt(scenario);
        let took = begin.elapsed().as_secs_f64();
        slot(self.tally).add(scenario, &result, took);
    }

    fn attempt(&mut self, scenario: &Scenario) -> anyhow::Result<Vec<Note>> {
        let shared = scenario.servers == Servers::Shared;
        if shared && self.shared.is_none() {
            self.shared_made += 1;
            let dir = self.base.join(format!("shared{}", self.shared_made));
            let cluster = Arc::new(Cluster::create(&spec(&self.options, dir, self.port_hint))?);
            // Kept even if the start fails: it must be stopped and shown.
            self.shared = Some(Arc::clone(&cluster));
            if let Err(error) = cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT) {
                self.shared = None;
                self.give_up(&cluster);
                return Err(error).context("starting the shared cluster");
            }
        }
        let cluster = Arc::new(Mutex::new(if shared { self.shared.clone() } else { None }));
        let before = self
            .shared
            .as_ref()
            .filter(|_| shared)
            .map(|c| (Conflicts::of(c), check::log_marks(c)));
        let mut case = Case {
            options: self.options.clone(),
            db: scenario.name.to_string(),
            base: self.base.clone(),
            port_hint: self.port_hint,
            cluster: Arc::clone(&cluster),
            notes: Vec::new(),
            gear: Gear::default(),
            expected: Vec::new(),
        };
        let run = scenario.run;
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            let result = prepare(&case, shared).and_then(|()| run(&mut case));
            // Also beside the cluster's own directory, where there is one (see `dir_beside`).
            let beside = case.dirs().into_iter().map(|dir| nothing_panicked(&dir));
            let result = match beside.collect::<anyhow::Result<()>>() {
                Ok(()) => result,
                Err(panic) => Err(match result {
                    Ok(()) => panic,
                    Err(error) => error.context(panic.to_string()),
                }),
            };
            let _ = sender.send(()); // the watchdog may have given up
            // The gear outlives the scenario: its servers still use it.
            (result, case.notes, case.gear, case.expected)
        });
        let rounds = u32::try_from(self.options.rounds).unwrap_or(u32::MAX);
        let limit = self.options.seconds * 3 + SLACK + scenario.round * rounds;
        let in_time = receiver.recv_timeout(limit) != Err(mpsc::RecvTimeoutError::Timeout);
        let used = slot(&cluster).clone();
        if !in_time {
            println!(
                "    {} did not end within {} s:",
                scenario.name,
                limit.as_secs()
            );
            if let Some(cluster) = &used {
                watch::report(cluster);
                cluster.kill_all()?; // its clients get an error and the thread ends
            }
        }
        let (mut result, mut notes, gear, expected) = thread.join().unwrap_or_else(|_| {
            let why = anyhow::anyhow!("the scenario panicked");
            (Err(why), Vec::new(), Gear::default(), Vec::new())
        });
        if !in_time {
            result = Err(anyhow::anyhow!(
                "hung, the servers were killed after {} s",
                limit.as_secs()
            ));
        }
        let Some(used) = used else {
            return result.map(|()| notes);
        };
        let (conflicts, marks) =
            before.unwrap_or_else(|| (Conflicts::default(), vec![0; used.nodes().len()]));
        let grown = Conflicts::of(&used).since(conflicts);
        {
            let mut tally = slot(self.tally);
            tally.conflicts.add(grown);
            tally.streams_count |= shared && used.record().is_dromon();
        }
        if grown != Conflicts::default() {
            notes.push(Note {
                text: grown.to_string(),
                printed: false,
            });
        }
        // A scenario may kill the peer, or see it go; ours goes on.
        if used.record().is_dromon() {
            result = result.and_then(|()| check::none_gone(&used));
        }
        result = result.and_then(|()| check::logs_clean(&used, &marks, &expected));
        if result.is_err() {
            if in_time {
                watch::report(&used);
            }
            self.shared = self.shared.take().filter(|_| !shared);
            self.give_up(&used);
        } else if !shared {
            result = self.put_away(&used, gear, &expected);
        }
        result.map(|()| notes)
    }

    /// Stops a cluster gracefully and removes it.
    fn put_away(
        &mut self,
        cluster: &Arc<Cluster>,
        gear: Gear,
        expected: &[Expected],
    ) -> anyhow::Result<()> {
        let look = watch::unless_over(cluster, STOP_LOOK);
        let stopped = stop(cluster, expected);
        drop((look, gear));
        if stopped.is_err() {
            self.give_up(cluster);
            return stopped;
        }
        let dir = cluster.record().dir;
        Cluster::open(&dir)?.purge()?;
        Ok(())
    }

    /// Kills a cluster and keeps its files for a look.
    fn give_up(&mut self, cluster: &Arc<Cluster>) {
        if let Err(error) = cluster.kill_all() {
            println!("    {error}");
        }
        slot(self.tally).kept.push(cluster.record().dir);
    }

    /// Stops and removes the shared servers.
    fn end_shared(&mut self) {
        if let Some(shared) = self.shared.take()
            && let Err(error) = self.put_away(&shared, Gear::default(), &[])
        {
            slot(self.tally).fail(&format!("stopping the shared cluster: {error:#}"));
        }
    }

    /// Stops what still runs.
    fn finish(mut self) {
        self.end_shared();
        let _ = fs::remove_dir(&self.base); // stays when something was kept, or others use it
    }
}

/// Stops a cluster gracefully. Fails if one did not end in order, or logged meanwhile what is
/// never right. How the peer ends is no failure of ours.
fn stop(cluster: &Cluster, expected: &[Expected]) -> anyhow::Result<()> {
    let marks = check::log_marks(cluster);
    let ended = ended_in_order(&cluster.stop_all(STOP_LIMIT)?);
    if !cluster.record().is_dromon() {
        if let Err(error) = ended {
            println!("    the peer: {error}");
        }
        return Ok(());
    }
    ended?;
    check::logs_clean(cluster, &marks, expected).context("while it stopped")
}

/// Fails if one crashed or was killed.
fn ended_in_order(stopped: &[(String, StopReport)]) -> anyhow::Result<()> {
    let bad: Vec<String> = stopped
        .iter()
        .filter_map(|(name, report)| match report {
            StopReport::WasDown | StopReport::Ended { .. } => None,
            StopReport::ByHand { pid } => Some(format!(
                "{name} still runs, as process {pid}, started by somebody else"
            )),
            StopReport::Failed { how, .. } => {
                Some(format!("{name} ended with {how} while it stopped"))
            }
            StopReport::Killed { after } => {
                Some(format!("{name} did not stop within {} s", after.as_secs()))
            }
        })
        .collect();
    ensure!(bad.is_empty(), "{}", bad.join("; "));
    Ok(())
}

/// Creates a database, runs statements in it, and returns the session that did.
pub fn new_database(node: &Node, db: &str, statements: &[&str]) -> anyhow::Result<Session> {
    let mut session = Session::open(node, "", 0)?;
    session.exec(&format!("CREATE DATABASE {db}"))?;
    session.exec(&format!("USE {db}"))?;
    for statement in statements {
        session.exec(statement)?;
    }
    Ok(session)
}

/// A fresh database on the shared cluster.
fn prepare(case: &Case, shared: bool) -> anyhow::Result<()> {
    if !shared {
        return Ok(());
    }
    check::whole(&case.cluster())?;
    let mut session = Session::open(&case.node(0), "", 0)?;
    session.exec(&format!("DROP DATABASE IF EXISTS {}", case.db))?;
    session.exec(&format!("CREATE DATABASE {}", case.db))?;
    check::drained(&case.cluster()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dromon_sandbox::BadEnd;

    #[test]
    fn who_crashes_while_it_stops_is_a_failure() {
        let took = Duration::from_secs(1);
        let well = |name: &str| (name.to_string(), StopReport::Ended { took });
        let down = ("db2".to_string(), StopReport::WasDown);
        assert!(ended_in_order(&[well("db1"), down.clone()]).is_ok());
        for (report, words) in [
            (
                StopReport::Failed {
                    took,
                    how: BadEnd::Signal(11),
                },
                "db3 ended with signal 11",
            ),
            (
                StopReport::Killed { after: took },
                "db3 did not stop within 1 s",
            ),
        ] {
            let all = [well("db1"), down.clone(), ("db3".to_string(), report)];
            let error = ended_in_order(&all).expect_err("db3").to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
