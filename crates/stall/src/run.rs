//! Clusters one after the other, all modes on each.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_load::bench::{Say, forth_and_back, in_rounds, make_place, version};
use dromon_load::rest;
use dromon_load::storm::{self, Session};
use dromon_sandbox::{Cluster, ClusterSpec, JoinPlan, Node, SandboxError, Setting, server_version};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::plan::{Mode, Pace, Plan, Provider, Small};
use crate::report::{Entry, Report};
use crate::tables;
use crate::trial::{self, Outcome};
use crate::work::{self, Feed};

/// How long a node may take to join, and to stop.
const NODE_LIMIT: Duration = Duration::from_secs(120);
/// How long capacity is measured.
const CALIBRATION: Duration = Duration::from_secs(5);
const AUTO: &str = "dromon.auto_stream_size";
/// As docs/options.md says.
const AUTO_DEFAULT: &str = "16M";

/// Measures everything. What fails in one mode is part of the report.
///
/// # Errors
/// When nothing can be measured at all: what the plan refuses, a server that
/// is missing, no cluster where one should run.
pub fn run(plan: &Plan, say: Say) -> anyhow::Result<Report> {
    plan.check()?;
    let mut report = Report {
        title: String::new(),
        entries: Vec::new(),
        notes: Vec::new(),
    };
    if let Some(dir) = &plan.cluster {
        let cluster = Arc::new(Cluster::open(dir)?);
        for node in cluster.nodes() {
            ensure!(
                node.process().is_some(),
                "Node {} of the cluster in {} does not run. Start it with `dromon up --dir {}`, or let this command start a cluster: --provider PATH",
                node.name(),
                dir.display(),
                dir.display()
            );
        }
        let plan = &Plan {
            nodes: cluster.nodes().len(),
            ..plan.clone()
        };
        plan.check()?;
        report.title = title(plan, &cluster.record().server);
        let library = cluster.record().provider;
        let stem = library.file_stem().unwrap_or_default().to_string_lossy();
        let name = stem.strip_prefix("lib").unwrap_or(&stem).to_string();
        let lent = Lent {
            own_size: own_size(&cluster, &name, say),
            cluster,
        };
        lent.give_back_on_signals()?;
        for round in 1..=plan.rounds {
            let size = lent.own_size.as_deref();
            measure(plan, &lent.cluster, &name, size, round, &mut report, say);
        }
        let left = lent.give_back();
        left.iter().for_each(|line| say(line));
        report.notes.extend(left);
        return Ok(report);
    }
    report.title = title(plan, &server_version()?);
    let differs = plan.providers.iter().filter_map(Provider::differs);
    report.notes.extend(differs);
    let base = base(plan)?;
    let current = Current::default();
    current.clean_up_on_signals()?;
    for round in 1..=plan.rounds {
        for provider in forth_and_back(plan.providers.iter().collect(), round) {
            let dir = base.join(format!("{}-{round}", directory_name(&provider.name)));
            say(&format!(
                "{}, round {round}: starting {} nodes",
                provider.name, plan.nodes
            ));
            match current.start(plan, provider, &dir) {
                Ok(cluster) => {
                    let size = own_size(&cluster, &provider.name, say);
                    let well = measure(
                        plan,
                        &cluster,
                        &provider.name,
                        size.as_deref(),
                        round,
                        &mut report,
                        say,
                    );
                    current.end(well, say)?;
                }
                Err(error) => {
                    current.end(false, say)?;
                    let why = format!("{error:#}");
                    say(&format!("{}: {why}", provider.name));
                    fail_all(plan, &provider.name, round, &why, &mut report);
                }
            }
        }
    }
    let _ = fs::remove_dir(&base); // stays when something was kept, or was there before
    Ok(report)
}

/// All modes on one cluster, which has `own_size` as its [`AUTO`]; false if it is not
/// to be trusted any more.
fn measure(
    plan: &Plan,
    cluster: &Cluster,
    provider: &str,
    own_size: Option<&str>,
    round: usize,
    report: &mut Report,
    say: Say,
) -> bool {
    let feed = match prepare(plan, cluster, provider, report, say) {
        Ok(feed) => feed,
        Err(error) => {
            let why = format!("{error:#}");
            say(&format!("{provider}: {why}"));
            fail_all(plan, provider, round, &why, report);
            return false;
        }
    };
    let mut generations = 0;
    let mut broken: Option<String> = None;
    for &mode in &plan.modes {
        let outcome = match &broken {
            Some(why) => Outcome::Failed(format!("not tried: {why}")),
            None => {
                say(&format!("{provider}, round {round}: {mode}"));
                match stream(plan, cluster, mode, own_size) {
                    Ok(None) => {
                        match trial::run(cluster, plan, mode, feed, round, &mut generations) {
                            Ok(all) => Outcome::Measured(Box::new(all)),
                            Err(error) => Outcome::Failed(format!("{error:#}")),
                        }
                    }
                    Ok(Some(why)) => Outcome::Skipped(why),
                    Err(error) => Outcome::Failed(format!("{error:#}")),
                }
            }
        };
        match &outcome {
            Outcome::Measured(all) => {
                say(&format!("    {}", line(&all.0)));
                if all.0.began_busy {
                    report
                        .notes
                        .push(still_busy(&format!("{provider}, {mode}, round {round}")));
                }
                if mode == Mode::Auto && all.0.seqnos <= 1 {
                    report.notes.push(format!(
                        "{provider}, auto, round {round}: {AUTO} was {}, and yet the large one had one seqno: it was not streamed",
                        plan.auto_stream_size.map_or(own_size.unwrap_or_default().to_string(), |s| s.to_string())
                    ));
                }
            }
            Outcome::Skipped(why) => say(&format!("    left out: {why}")),
            Outcome::Failed(why) => {
                say(&format!("    FAILED: {why}"));
                if broken.is_none()
                    && let Err(error) = rest::at_rest(cluster)
                {
                    broken = Some(format!("after {mode}, {error:#}"));
                }
            }
        }
        report.entries.push(Entry {
            provider: provider.to_string(),
            round,
            mode,
            outcome,
        });
    }
    if let (None, Some(size)) = (&broken, own_size)
        && let Err(error) = set_auto_stream_size(cluster, size)
    {
        say(&format!("{provider}: {error:#}"));
    }
    let entries = report.entries.iter();
    let mut own = entries.filter(|e| e.provider == provider && e.round == round);
    own.all(|e| !matches!(e.outcome, Outcome::Failed(_)))
}

/// What a reader must know of figures that began beside the servers' work on what had been before.
fn still_busy(what: &str) -> String {
    format!(
        "{what}: the servers were still busy with what had been before when it began, after {} s: compare it with care",
        rest::IDLE_LIMIT.as_secs()
    )
}

/// Tables, and how many transactions are offered.
fn prepare(
    plan: &Plan,
    cluster: &Cluster,
    provider: &str,
    report: &mut Report,
    say: Say,
) -> anyhow::Result<Feed> {
    say(&format!("{provider}: filling the tables"));
    tables::make(cluster, plan.large)?;
    match plan.small {
        Small::Sysbench { threads } => {
            work::prepare_sysbench(cluster, threads)?;
            Ok(Feed::Sysbench { threads })
        }
        Small::Clients { clients, pace } => {
            let open = match pace {
                Pace::Closed => None,
                Pace::Rate { per_second, spread } => Some((spread, per_second)),
                Pace::Share { part, spread } => {
                    // Filling has put work off that is not to count.
                    if !rest::settled(cluster, plan.limit)? {
                        let what = format!("{provider}, what the cluster can do");
                        report.notes.push(still_busy(&what));
                    }
                    let most = trial::capacity(cluster, clients, CALIBRATION)?;
                    say(&format!(
                        "{provider}: {most:.0} transactions a second in closed loop, {:.0} are offered",
                        most * part
                    ));
                    Some((spread, most * part))
                }
            };
            Ok(Feed::Clients { clients, open })
        }
    }
}

/// Makes the provider stream, or not; says why the mode is left out.
fn stream(
    plan: &Plan,
    cluster: &Cluster,
    mode: Mode,
    own_size: Option<&str>,
) -> anyhow::Result<Option<String>> {
    let Some(own_size) = own_size else {
        return Ok((mode == Mode::Auto).then(|| format!("this provider has no {AUTO}")));
    };
    let asked = plan.auto_stream_size.map(|s| s.to_string());
    let size = match mode {
        Mode::Auto => asked.as_deref().unwrap_or(own_size),
        _ => "0",
    };
    let _changing = changing();
    set_auto_stream_size(cluster, size)?;
    Ok(None)
}

/// Held while [`AUTO`] is changed, so that nothing changes it behind whoever restores it.
fn changing() -> MutexGuard<'static, ()> {
    static CHANGING: Mutex<()> = Mutex::new(());
    CHANGING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the provider has before it is measured.
fn own_size(cluster: &Cluster, provider: &str, say: Say) -> Option<String> {
    auto_stream_size(cluster).unwrap_or_else(|error| {
        say(&format!("{provider}: {error:#}"));
        None
    })
}

/// What the provider has; none: it does not know the option. It may know it and
/// not list it as long as nobody has set it.
fn auto_stream_size(cluster: &Cluster) -> anyhow::Result<Option<String>> {
    let mut session = Session::open(cluster.node(0), "", 0)?;
    let options: Option<String> = session.one("SELECT @@GLOBAL.wsrep_provider_options")?;
    if let Some(size) = option(&options.unwrap_or_default(), AUTO) {
        return Ok(Some(size.to_string()));
    }
    match set_auto_stream_size(cluster, AUTO_DEFAULT) {
        Ok(()) => Ok(Some(AUTO_DEFAULT.to_string())),
        // Refused by the server or the provider; a lost node is another thing.
        Err(error) if error.downcast_ref().and_then(storm::code).is_some() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sets it on all nodes, also behind one that fails; the first failure.
fn set_auto_stream_size(cluster: &Cluster, size: &str) -> anyhow::Result<()> {
    let set = |node: &Arc<Node>| -> anyhow::Result<()> {
        let mut session = Session::open(node, "", 0)?;
        session
            .exec(&setting(size))
            .with_context(|| format!("setting {AUTO} on {}", node.name()))
            .map(drop)
    };
    let all: Vec<_> = cluster.nodes().iter().map(set).collect();
    all.into_iter().collect()
}

fn setting(size: &str) -> String {
    format!("SET GLOBAL wsrep_provider_options = '{AUTO}={size}'")
}

/// A value in `name = value; name = value; …`.
fn option<'a>(list: &'a str, name: &str) -> Option<&'a str> {
    list.split(';').find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        (key.trim() == name).then_some(value.trim())
    })
}

fn fail_all(plan: &Plan, provider: &str, round: usize, why: &str, report: &mut Report) {
    report.entries.extend(plan.modes.iter().map(|&mode| Entry {
        provider: provider.to_string(),
        round,
        mode,
        outcome: Outcome::Failed(why.to_string()),
    }));
}

/// A mode's result while the run goes on.
fn line(f: &crate::Figures) -> String {
    format!(
        "{:.0}/s before, {:.0}/s beside, longest gap {:.2} s, {} seqnos, applied everywhere after {:.2} s (alone {:.2} s)",
        f.rate_before,
        f.rate_beside,
        f.gap.as_secs_f64(),
        f.seqnos,
        f.beside.applied.as_secs_f64(),
        f.alone.applied.as_secs_f64()
    )
}

fn title(plan: &Plan, server: &str) -> String {
    let small = match plan.small {
        Small::Sysbench { threads } => format!("sysbench oltp_read_write, {threads} threads"),
        Small::Clients { clients, pace } => {
            let pace = match pace {
                Pace::Closed => "closed loop".to_string(),
                Pace::Share { part, .. } => {
                    format!(
                        "open loop at {:.0} % of what the cluster can do",
                        part * 100.0
                    )
                }
                Pace::Rate { per_second, .. } => format!("open loop, {per_second}/s"),
            };
            format!("{clients} clients, {pace}")
        }
    };
    format!(
        "{} beside {small}; {} nodes, MariaDB {}{}",
        plan.large,
        plan.nodes,
        version(server),
        in_rounds(plan.rounds)
    )
}

fn base(plan: &Plan) -> anyhow::Result<PathBuf> {
    let dir = match &plan.dir {
        Some(dir) => dir.clone(),
        None => std::env::temp_dir().join(format!("dromon-stall-{}", std::process::id())),
    };
    make_place(&dir)?;
    Ok(dir)
}

fn directory_name(provider: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    provider.chars().map(plain).collect()
}

/// The pool holds the big table and its changes, so that no mode waits for
/// the disk more than another.
fn pool_size(plan: &Plan) -> u64 {
    const MIB: u64 = 1 << 20;
    let bytes = tables::rows(plan.large) * 300;
    (bytes / MIB).clamp(256, 2048) * MIB
}

/// A running cluster of somebody's, who gets it back as it was.
#[derive(Clone)]
struct Lent {
    cluster: Arc<Cluster>,
    /// Its [`AUTO`]; none: it has no such option.
    own_size: Option<String>,
}

impl Lent {
    /// Restores the option and removes the tables; what could not be done, in words.
    fn give_back(&self) -> Vec<String> {
        let size = self.own_size.as_deref();
        let set = size.map_or(Ok(()), |size| set_auto_stream_size(&self.cluster, size));
        left_behind(size, set, tables::remove(&self.cluster))
    }

    /// Ctrl-C ends the measurement, and leaves nothing of it on the cluster.
    fn give_back_on_signals(&self) -> anyhow::Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM]).context("waiting for signals")?;
        let lent = self.clone();
        thread::spawn(move || {
            if signals.forever().next().is_some() {
                // Held until the program ends: the next mode sets nothing any more.
                let _changing = changing();
                let left = lent.give_back();
                left.iter().for_each(|line| warn(line));
                std::process::exit(130);
            }
        });
        Ok(())
    }
}

/// Kills and removes a cluster that is perhaps being started just now, which ends by that.
fn remove(cluster: &Cluster) -> Result<(), SandboxError> {
    let dir = cluster.record().dir;
    let begin = Instant::now();
    loop {
        let removed = cluster
            .kill_all()
            .and_then(|_| Cluster::open(&dir)?.purge());
        match removed {
            Err(SandboxError::Busy { .. }) if begin.elapsed() < NODE_LIMIT => {
                thread::sleep(Duration::from_millis(100));
            }
            other => return other,
        }
    }
}

/// What a measurement leaves on a cluster, and how it is put right.
fn left_behind(
    size: Option<&str>,
    set: anyhow::Result<()>,
    removed: anyhow::Result<()>,
) -> Vec<String> {
    let mut left = Vec::new();
    if let (Err(error), Some(size)) = (set, size) {
        left.push(format!(
            "{AUTO} may not be {size} again on every node: {error:#}. On each: {}",
            setting(size)
        ));
    }
    if let Err(error) = removed {
        left.push(format!(
            "The database {0} is still there: {error:#}. DROP DATABASE {0} removes it",
            tables::DB
        ));
    }
    left
}

/// Words for the standard error; nobody may be reading it any more.
fn warn(line: &str) {
    let _ = writeln!(io::stderr(), "dromon: {line}");
}

/// The cluster that runs now, also for the thread that waits for signals.
#[derive(Default, Clone)]
struct Current(Arc<Mutex<Option<Arc<Cluster>>>>);

impl Current {
    fn start(&self, plan: &Plan, provider: &Provider, dir: &Path) -> anyhow::Result<Arc<Cluster>> {
        let mut spec = ClusterSpec::new(dir, &provider.path);
        spec.nodes = plan.nodes;
        spec.appliers = plan.appliers;
        spec.provider_options.clone_from(&provider.options);
        spec.settings = vec![Setting::new(
            "innodb_buffer_pool_size",
            &pool_size(plan).to_string(),
        )];
        spec.settings.extend(plan.settings.iter().cloned());
        spec.settings.extend(provider.settings.iter().cloned());
        let cluster = Arc::new(Cluster::create(&spec)?);
        *self.slot() = Some(Arc::clone(&cluster));
        cluster.start_all(JoinPlan::OneByOne, NODE_LIMIT)?;
        Ok(cluster)
    }

    /// Stops the cluster; its files stay if something went wrong.
    fn end(&self, well: bool, say: Say) -> anyhow::Result<()> {
        let Some(cluster) = self.slot().take() else {
            return Ok(());
        };
        let dir = cluster.record().dir;
        if well {
            cluster.stop_all(NODE_LIMIT)?;
            Cluster::open(&dir)?.purge()?;
        } else {
            cluster.kill_all()?;
            say(&format!("the servers' logs are kept in {}", dir.display()));
        }
        Ok(())
    }

    /// Ctrl-C leaves no servers behind: they do not hear it themselves.
    fn clean_up_on_signals(&self) -> anyhow::Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM]).context("waiting for signals")?;
        let current = self.clone();
        thread::spawn(move || {
            if signals.forever().next().is_some() {
                // Held until the program ends: no further cluster is started.
                let mut slot = current.slot();
                if let Some(cluster) = slot.take() {
                    // The program ends either way; what fails here is said.
                    if let Err(error) = remove(&cluster) {
                        warn(&error.to_string());
                    }
                }
                std::process::exit(130);
            }
        });
        Ok(())
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Cluster>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::sample;

    #[test]
    fn an_option_is_found_by_its_whole_name() {
        let list = "a = 1; dromon.auto_stream_size = 16777216; dromon.auto = 2";
        assert_eq!(option(list, AUTO), Some("16777216"));
        assert_eq!(option(list, "dromon.auto"), Some("2"));
        assert_eq!(option(list, "auto"), None);
        assert_eq!(option("", AUTO), None);
    }

    #[test]
    fn what_is_left_on_a_lent_cluster_is_told_with_its_remedy() {
        let failed = |why: &'static str| Err(anyhow::anyhow!(why));
        assert!(left_behind(Some("16M"), Ok(()), Ok(())).is_empty());
        assert!(left_behind(None, Ok(()), Ok(())).is_empty());
        let left = left_behind(Some("16M"), failed("db2 is gone"), failed("no answer"));
        assert_eq!(left.len(), 2);
        assert!(
            left[0].contains("db2 is gone") && left[0].ends_with("'dromon.auto_stream_size=16M'"),
            "{left:?}"
        );
        assert!(left[1].contains("DROP DATABASE dromon_stall"), "{left:?}");
    }

    #[test]
    fn the_title_says_what_was_measured() {
        let mut plan = sample();
        assert_eq!(
            title(&plan, "mariadbd  Ver 10.11.6-MariaDB for Linux"),
            "UPDATE of 300000 rows beside 8 clients, closed loop; 3 nodes, MariaDB 10.11.6"
        );
        plan.small = Small::Sysbench { threads: 32 };
        plan.rounds = 3;
        let text = title(&plan, "10.11");
        assert!(
            text.contains("sysbench oltp_read_write, 32 threads; "),
            "{text}"
        );
        assert!(text.ends_with("; 3 rounds"), "{text}");
    }

    #[test]
    fn nothing_is_started_for_a_plan_that_is_refused() {
        let mut plan = sample();
        plan.providers[0].path = "/nothing.so".into();
        let error = run(&plan, &|_| panic!("nothing happens")).expect_err("refused");
        assert!(error.to_string().contains("/nothing.so"), "{error}");
    }

    #[test]
    fn the_pool_follows_the_table() {
        let mut plan = sample();
        assert_eq!(pool_size(&plan), 256 << 20);
        plan.large = crate::Large::Update { rows: 2_500_000 };
        assert_eq!(pool_size(&plan), 715 << 20);
    }
}
