//! `dromon up`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::builder::RangedI64ValueParser;
use dromon_sandbox::{
    Cluster, ClusterRecord, ClusterSpec, JoinPlan, NodeRecord, Result, SandboxError, Setting,
    SstMethod, StopReport, is_ours, split_settings,
};

use crate::output::Output;
use crate::{banner, down, halves, output, place};

/// What a node of a new cluster that did not come to be has to end.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// The longest time that can be waited for.
pub const MOST_SECONDS: u64 = 86_400;

/// Options of `dromon up`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Everything listens on 127.0.0.1 only. The directory is --dir, else $XDG_STATE_HOME/dromon, else ./.dromon\n(or /var/tmp/dromon when user mysql cannot enter the current directory).\n\nExamples:\n  dromon up\n  dromon up --nodes 5 --dir /srv/five -- innodb_buffer_pool_size=1G\n  dromon up --nodes 2 --witness\n  dromon up --provider /usr/lib/galera/libgalera_smm.so --dir /srv/peer"
)]
pub struct Args {
    /// How many nodes.
    #[arg(long, short, help = "How many nodes [default: 3]", value_parser = parse_nodes)]
    nodes: Option<usize>,
    /// The provider library. Default: libdromon.so beside this program.
    #[arg(long, value_name = "PATH")]
    provider: Option<PathBuf>,
    /// Where the cluster lies.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// How a joining node gets its full copy: rsync, mariabackup or mysqldump [default: rsync].
    #[arg(long, value_name = "METHOD")]
    sst_method: Option<SstMethod>,
    /// A witness beside the nodes: it votes and stores the log, and has no data.
    #[arg(long)]
    witness: bool,
    /// Do not encrypt connections between nodes, and use no secret.
    #[arg(long)]
    no_tls: bool,
    /// First port; each node takes ten. Default: free ones from 23306 on.
    #[arg(long, value_name = "PORT", value_parser = RangedI64ValueParser::<u16>::new().range(1024..=65000))]
    port: Option<u16>,
    /// Seconds a node may take to become Synced.
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = clap::value_parser!(u64).range(1..=MOST_SECONDS))]
    timeout: u64,
    /// Drop the further settings that a stopped cluster was given before.
    #[arg(long)]
    reset_settings: bool,
    /// Further server settings, name=value. A stopped cluster keeps those it was given before under other names.
    #[arg(last = true, value_name = "SETTING")]
    settings: Vec<Setting>,
}

fn parse_nodes(text: &str) -> std::result::Result<usize, String> {
    match text.parse::<usize>() {
        Ok(0) => Err("a cluster needs at least one node; three survive the loss of one".into()),
        Ok(n) if n > 32 => Err("at most 32 nodes fit on one machine".into()),
        Ok(n) => Ok(n),
        Err(_) => Err("write a number, for instance 3".into()),
    }
}

/// Starts the cluster and prints how to use it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let dir = place::choose(args.dir.as_deref());
    let begin = Instant::now();
    let there = match Cluster::open(&dir) {
        Ok(cluster) => Some(cluster),
        Err(SandboxError::NoCluster { .. }) => None,
        Err(other) => return Err(other),
    };
    // From here to the end nobody else changes or starts it.
    let _hold = there.as_ref().map(Cluster::hold).transpose()?;
    let (cluster, found) = match there {
        Some(cluster) if cluster.running() > 0 => return complete(&cluster, args, begin),
        Some(cluster) if !cluster.record().complete => {
            // One that was to be removed may have all its data yet.
            if cluster.nodes().iter().any(|n| n.has_history()) {
                return Err(SandboxError::Incomplete {
                    dir: cluster.record().dir,
                });
            }
            output::tell(format_args!(
                "What lies in {} was not made whole, or not removed whole: it is made anew",
                cluster.record().dir.display()
            ));
            cluster.purge()?;
            (create(&dir, args)?, false)
        }
        Some(cluster) => (reuse(cluster, args)?, true),
        None => (create(&dir, args)?, false),
    };
    let count = cluster.nodes().len();
    output::tell(format_args!(
        "{} {count} node{} in {} …",
        if found {
            "Starting the stopped cluster of"
        } else {
            "Starting"
        },
        if count == 1 { "" } else { "s" },
        cluster.record().dir.display()
    ));
    match cluster.start_all(JoinPlan::Together, Duration::from_secs(args.timeout)) {
        Ok(took) => {
            let mut out = Output::new();
            out.text(banner::text(&cluster, &took, begin.elapsed()));
            Ok(out.end(0))
        }
        Err(error) => {
            let error = halves::with_logs(error);
            output::tell(format_args!("dromon: {error}"));
            // Of a cluster that was there before, what runs goes on: it may be serving, or
            // be about to. Of a new one half helps nobody; its files stay for a look.
            let stopped = (!found && cluster.running() > 0).then(|| cluster.stop_all(STOP_LIMIT));
            for line in afterwards(&cluster, &error, stopped, args) {
                output::tell(line);
            }
            Ok(ExitCode::FAILURE)
        }
    }
}

/// What became of the nodes that did start, and what to do next.
fn afterwards(
    cluster: &Cluster,
    error: &SandboxError,
    stopped: Option<Result<Vec<(String, StopReport)>>>,
    args: &Args,
) -> Vec<String> {
    let hint = place::hint(args.dir.as_deref());
    let mut lines = Vec::new();
    match stopped {
        Some(Ok(reports)) => {
            let bad = reports.iter().filter(|(_, r)| down::is_bad(r));
            lines.extend(bad.map(|(name, report)| down::line(cluster, name, report)));
            lines.push("The nodes that did start were stopped again; their files stay.".into());
        }
        Some(Err(why)) => lines.push(format!(
            "The nodes that did start could not all be stopped: {why}. `dromon down{hint}` tries again"
        )),
        None if cluster.running() == processes(cluster) => {
            lines.push(format!(
                "All of them run on: `dromon status{hint}` shows when the last one is there, `dromon down{hint}` stops \
                 them."
            ));
            return lines;
        }
        None if cluster.running() > 0 => lines.push(format!(
            "What did start runs on: `dromon status{hint}` shows how it is, `dromon up{hint}` starts the rest, \
             `dromon down{hint}` stops it."
        )),
        None => {}
    }
    if matches!(error, SandboxError::NotInTime { .. }) {
        lines.push(format!(
            "A node may need longer: --timeout {}",
            (args.timeout * 2).min(MOST_SECONDS)
        ));
    }
    lines
}

/// Its nodes, and the witness.
fn processes(cluster: &Cluster) -> usize {
    cluster.nodes().len() + usize::from(cluster.witness().is_some())
}

/// Starts what is missing of a cluster that runs, as it was; if nothing is, waits until it is whole.
fn complete(cluster: &Cluster, args: &Args, begin: Instant) -> Result<ExitCode> {
    let dir = cluster.record().dir;
    let hint = place::hint(args.dir.as_deref());
    let count = cluster.nodes().len();
    let all = processes(cluster);
    let given = args.nodes.is_some_and(|n| n != count)
        || args.provider.is_some()
        || args.sst_method.is_some()
        || (args.witness && cluster.witness().is_none())
        || args.no_tls
        || args.port.is_some()
        || args.reset_settings
        || !args.settings.is_empty();
    let running = cluster.running();
    if given && running == all {
        return Err(SandboxError::AlreadyThere {
            dir,
            nodes: count,
            running,
        });
    }
    if given {
        return Err(SandboxError::BadRequest(format!(
            "{} of the {all} processes of the cluster in {} run: it cannot be changed now. `dromon up{hint}` without \
             further options starts the rest as it was; to change it, stop it first (`dromon down{hint}`)",
            running,
            dir.display()
        )));
    }
    output::tell(match all.saturating_sub(running) {
        0 => format!("The cluster in {} runs already …", dir.display()),
        missing => format!(
            "Starting what does not run of the cluster in {}: {missing} of {all} …",
            dir.display()
        ),
    });
    // Whatever happens, those that ran go on.
    let took = match cluster.start_missing(Duration::from_secs(args.timeout)) {
        Ok(took) => took,
        Err(error) => {
            output::tell(format_args!("dromon: {error}"));
            for line in afterwards(cluster, &error, None, args) {
                output::tell(line);
            }
            return Ok(ExitCode::FAILURE);
        }
    };
    let mut out = Output::new();
    out.text(banner::text(cluster, &took, begin.elapsed()));
    Ok(out.end(0))
}

fn create(dir: &Path, args: &Args) -> Result<Cluster> {
    let provider = match &args.provider {
        Some(path) => path.clone(),
        None => default_provider(),
    };
    let mut spec = ClusterSpec::new(dir, &provider);
    spec.nodes = args.nodes.unwrap_or(spec.nodes);
    spec.sst_method = args.sst_method.unwrap_or(spec.sst_method);
    spec.port = args.port;
    spec.tls = !args.no_tls;
    if args.witness {
        spec.witness = Some(std::env::current_exe().unwrap_or_else(|_| "dromon".into()));
    }
    let (_, options) = split_settings(&args.settings)?;
    if let Some(words) = not_theirs(&provider, &options.unwrap_or_default()) {
        return Err(SandboxError::BadRequest(words));
    }
    spec.settings = with_binlog(args.settings.clone());
    Cluster::create(&spec)
}

/// What is to be done before another library than ours gets these options: with one that is only ours it does not start.
fn not_theirs(provider: &Path, options: &str) -> Option<String> {
    if is_ours(provider) {
        return None;
    }
    // A separator in a value has a backslash before it.
    let mut rest = options;
    let mut parts = Vec::new();
    while let Some(at) = rest
        .match_indices(';')
        .map(|(at, _)| at)
        .find(|at| !rest[..*at].ends_with('\\'))
    {
        parts.push(rest[..at].trim());
        rest = &rest[at + 1..];
    }
    parts.push(rest.trim());
    let (ours, others): (Vec<&str>, Vec<&str>) = parts
        .into_iter()
        .filter(|part| !part.is_empty())
        .partition(|part| part.to_lowercase().starts_with("dromon."));
    (!ours.is_empty()).then(|| {
        format!(
            "{} is not Dromon's library and would refuse to start with options that only Dromon has: {}. Nothing was changed. \
             Give its options without them: -- 'wsrep_provider_options={}'",
            provider.display(),
            ours.join(";"),
            others.join(";")
        )
    })
}

/// A stopped cluster keeps its nodes, ports and data, and what encrypts it;
/// provider, transfer method and settings may be given anew, and encryption
/// may be left out.
fn reuse(cluster: Cluster, args: &Args) -> Result<Cluster> {
    let found = cluster.record();
    let hint = place::hint(args.dir.as_deref());
    let count = found.nodes.len();
    if args.nodes.is_some_and(|n| n != count) {
        return Err(SandboxError::BadRequest(format!(
            "{} holds a stopped cluster of {count} nodes; leave --nodes out to start it, choose another --dir, or remove it with its data (`dromon down --purge{hint}`)",
            found.dir.display()
        )));
    }
    if let (Some(port), Some(first)) = (args.port, found.nodes.first())
        && port != first.ports.sql
    {
        return Err(SandboxError::BadRequest(format!(
            "{} holds a stopped cluster on the ports from {} on; leave --port out to start it, choose another --dir, or remove it with its data (`dromon down --purge{hint}`)",
            found.dir.display(),
            first.ports.sql
        )));
    }
    if args.witness && found.witness.is_none() {
        return Err(SandboxError::BadRequest(format!(
            "{} holds a stopped cluster without a witness; leave --witness out to start it, choose another --dir, or remove it with its data (`dromon down --purge{hint}`)",
            found.dir.display()
        )));
    }
    let (settings, options) = split_settings(&args.settings)?;
    let provider = match &args.provider {
        Some(path) => Some(
            fs::canonicalize(path)
                .map_err(|_| SandboxError::ProviderMissing { path: path.clone() })?,
        ),
        None => None,
    };
    let before = match args.reset_settings {
        true => "",
        false => &found.provider_options,
    };
    if let Some(words) = not_theirs(
        provider.as_deref().unwrap_or(&found.provider),
        options.as_deref().unwrap_or(before),
    ) {
        return Err(SandboxError::BadRequest(words));
    }
    if let Some(provider) = &provider {
        if found.witness.is_some() && !is_ours(provider) {
            return Err(SandboxError::BadRequest(format!(
                "{} holds a stopped cluster with a witness, which works with Dromon's library only, and {} is another one; leave --provider out to start it, choose another --dir, or remove it with its data (`dromon down --purge{hint}`)",
                found.dir.display(),
                provider.display()
            )));
        }
        if let Some(words) = not_clean(&cluster, provider, &hint) {
            return Err(SandboxError::BadRequest(words));
        }
        if let Some(words) = former_logs(&found, provider) {
            match is_ours(provider) {
                // Started on them it would go on where it was then.
                true => return Err(SandboxError::BadRequest(words)),
                false => output::tell(words),
            }
        }
    }
    cluster.change_settings(|record| {
        if let Some(provider) = provider {
            let name = provider.file_name().unwrap_or("provider.so".as_ref());
            record.provider_copy = record.dir.join("lib").join(name);
            record.provider = provider;
        }
        record.choose_copies(args.sst_method.unwrap_or(record.sst_method));
        if args.no_tls {
            record.tls = false;
        }
        if args.reset_settings {
            record.provider_options.clear();
            record.settings = with_binlog(Vec::new());
        }
        if let Some(options) = options {
            record.provider_options = options;
        }
        record.settings = merged(&record.settings, settings);
    })?;
    for line in what_changed(&found, &cluster.record()) {
        output::tell(line);
    }
    Ok(cluster)
}

/// What new clusters have, and why.
pub fn binlog() -> [(Setting, &'static str); 3] {
    [
        (
            Setting::new("log_bin", "binlog"),
            "what ROLLBACK TO SAVEPOINT undoes is not sent",
        ),
        (
            Setting::new("log_bin_trust_function_creators", "1"),
            "without SUPER, CREATE FUNCTION would fail on one node",
        ),
        (
            Setting::new("binlog_expire_logs_seconds", "604800"),
            "a week: without it they fill the disk",
        ),
    ]
}

/// A server without a binary log sends what was rolled back to a savepoint, if that was set before the first change
/// (docs/guarantees.md): new clusters have one, unless something else is said. A server that has one, whichever, refuses CREATE
/// FUNCTION to users without SUPER, but not to its appliers.
fn with_binlog(given: Vec<Setting>) -> Vec<Setting> {
    let says = |name: &str| {
        let named = Setting::new(name, "");
        given.iter().any(|s| same_name(s, &named))
    };
    let has_none = says("skip_log_bin") || says("disable_log_bin");
    let (has_own, trust) = (says("log_bin"), "log_bin_trust_function_creators");
    let own = binlog().into_iter().map(|(setting, _)| setting);
    let own = own.filter(|s| !has_none && (!has_own || s.name == trust));
    let own = own.filter(|s| !says(&s.name));
    own.collect::<Vec<_>>().into_iter().chain(given).collect()
}

/// Two ways to write a name are one name to the server.
fn same_name(a: &Setting, b: &Setting) -> bool {
    let plain = |s: &Setting| s.name.replace('-', "_").to_lowercase();
    plain(a) == plain(b)
}

/// What is given now takes the place of all that was given before under its name: a server takes
/// some names more than once.
fn merged(before: &[Setting], given: Vec<Setting>) -> Vec<Setting> {
    let is_kept = |old: &&Setting| !given.iter().any(|new| same_name(old, new));
    let kept: Vec<Setting> = before.iter().filter(is_kept).cloned().collect();
    kept.into_iter().chain(given).collect()
}

/// What becomes of the settings of before, if anything was given anew.
fn what_changed(before: &ClusterRecord, now: &ClusterRecord) -> Vec<String> {
    let all = |record: &ClusterRecord| {
        let mut all = record.settings.clone();
        if !record.provider_options.is_empty() {
            let name = "wsrep_provider_options";
            all.push(Setting::new(name, &record.provider_options));
        }
        all
    };
    let (before, now) = (all(before), all(now));
    let words = |which: &dyn Fn(&Setting) -> bool| {
        let found = before
            .iter()
            .filter(|old| which(old))
            .map(|old| match &old.value {
                Some(value) => format!("{}={value}", old.name),
                None => old.name.clone(),
            });
        found.collect::<Vec<_>>().join(" ")
    };
    if before == now {
        return Vec::new();
    }
    let is_named = |old: &Setting| now.iter().any(|new| same_name(old, new));
    let kept = words(&|old| now.contains(old));
    let replaced = words(&|old| !now.contains(old) && is_named(old));
    let dropped = words(&|old| !is_named(old));
    let lines = [
        (
            "Settings of before that stay (--reset-settings drops them)",
            kept,
        ),
        ("Settings of before that are replaced", replaced),
        ("Settings of before that are dropped", dropped),
    ];
    let said = lines.into_iter().filter(|(_, which)| !which.is_empty());
    said.map(|(what, which)| format!("{what}: {which}"))
        .collect()
}

/// What is to be done before another library than ours goes on with what ours left: it has no use for our logs.
fn not_clean(cluster: &Cluster, provider: &Path, hint: &str) -> Option<String> {
    let found = cluster.record();
    if is_ours(provider) || !found.is_dromon() {
        return None;
    }
    let left = cluster.nodes().iter().filter_map(|node| node.left());
    let nodes: Vec<String> = left.filter(|l| l.seqno == "-1").map(|l| l.node).collect();
    (!nodes.is_empty()).then(|| {
        format!(
            "{} holds a cluster of which {} did not stop cleanly (seqno: -1 in grastate.dat): its logs have what the \
             engines lack, and {} does not read them. Nothing was changed. Start it once more with Dromon (`dromon \
             up{hint}`) and stop it cleanly (`dromon down{hint}`), then give --provider again",
            found.dir.display(),
            nodes.join(", "),
            provider.display()
        )
    })
}

/// What is to be known of the logs of Dromon's that lie there when the library becomes another one.
fn former_logs(found: &ClusterRecord, provider: &Path) -> Option<String> {
    let is_log = |entry: fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("dromon-") && name.ends_with(".log")
    };
    let has_logs = |node: &&NodeRecord| {
        let entries = fs::read_dir(&node.data_dir).into_iter().flatten();
        entries.flatten().any(is_log)
    };
    if is_ours(provider) == found.is_dromon() {
        return None;
    }
    let nodes: Vec<&str> = (found.nodes.iter().filter(has_logs))
        .map(|node| node.name.as_str())
        .collect();
    (!nodes.is_empty()).then(|| {
        format!(
            "Before you come to Dromon a second time, remove the dromon-*.log files of the first time on every node: they end where Dromon was left. They lie in {}, in the data directories of {}",
            found.dir.display(),
            nodes.join(", ")
        )
    })
}

/// libdromon.so where cargo or a package puts it: beside this program, or in
/// the library directory next to its bin directory.
fn default_provider() -> PathBuf {
    let here = std::env::current_exe().unwrap_or_default();
    let bin = here.parent().unwrap_or(Path::new("."));
    let beside = bin.join("libdromon.so");
    let installed = bin.join("../lib/dromon/libdromon.so");
    if !beside.is_file() && installed.is_file() {
        installed
    } else {
        beside
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cli, Command};
    use clap::Parser;
    use dromon_sandbox::{ClusterRecord, LogTail, ProcessId};
    use std::os::unix::fs::PermissionsExt;

    fn args(given: &[&str]) -> Args {
        let all = ["dromon", "up"].iter().chain(given);
        match Cli::try_parse_from(all).expect("accepted").command {
            Command::Up(args) => args,
            _ => panic!("it is up"),
        }
    }

    #[test]
    fn a_new_cluster_has_a_binary_log_unless_something_else_is_said() {
        let names = |given: &[&str]| -> Vec<String> {
            let given = given.iter().map(|s| s.parse().expect("a setting"));
            let all = with_binlog(given.collect()).into_iter();
            all.map(|s| s.name).collect()
        };
        let own = [
            "log_bin",
            "log_bin_trust_function_creators",
            "binlog_expire_logs_seconds",
        ];
        assert_eq!(names(&[]), own);
        let more = [&own[..], &["max_connections"]].concat();
        assert_eq!(names(&["max_connections=7"]), more);
        let given = "log-bin-trust-function-creators=0";
        assert_eq!(
            names(&[given]),
            [own[0], own[2], "log-bin-trust-function-creators"]
        );
        for none in ["skip-log-bin", "disable_log_bin"] {
            assert_eq!(names(&[none]), [none]);
        }
        // A log of another name is one, too; "0" is a name.
        for other in ["log-bin=mine", "LOG_BIN=0", "log_bin"] {
            let name = other.split('=').next().expect("a name");
            assert_eq!(names(&[other]), [own[1], name]);
            assert_eq!(names(&[other, given]).len(), 2, "{other}");
        }
    }

    /// A cluster of one node that never ran.
    fn cluster(dir: &Path) -> Cluster {
        cluster_with(dir, None)
    }

    /// The same with a witness, whose program is this one.
    fn cluster_with(dir: &Path, witness: Option<PathBuf>) -> Cluster {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("allowed");
        let provider = dir.join("libdromon.so");
        fs::write(&provider, "").expect("written");
        let mut spec = ClusterSpec::new(&dir.join("c"), &provider);
        spec.nodes = 1;
        spec.tls = false;
        spec.witness = witness;
        Cluster::create(&spec).expect("made")
    }

    #[test]
    fn after_a_failure_it_is_said_what_runs_was_killed_and_may_take_longer() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
        let cluster = cluster(dir.path());
        let late = || SandboxError::NotInTime {
            node: "db1".into(),
            wanted: "Synced",
            waited: Duration::from_secs(9),
            now: "it is Joined".into(),
            log: Box::new(LogTail {
                path: "/l".into(),
                lines: String::new(),
            }),
        };
        assert!(!late().to_string().contains("still runs"));
        let killed = StopReport::Killed {
            after: Duration::from_secs(60),
        };
        let args = args(&["--timeout", "9", "--dir", "/x"]);
        let said = afterwards(
            &cluster,
            &late(),
            Some(Ok(vec![("db1".into(), killed)])),
            &args,
        );
        assert!(
            said[0].starts_with("db1  did not end within 60 s and was killed"),
            "{said:?}"
        );
        assert!(said[1].contains("were stopped again"), "{said:?}");
        assert_eq!(said[2], "A node may need longer: --timeout 18");
        let why = SandboxError::BadRequest("no".into());
        let said = afterwards(
            &cluster,
            &why,
            Some(Err(SandboxError::BadRequest("held".into()))),
            &args,
        );
        assert_eq!(said.len(), 1);
        assert!(
            said[0].contains("held. `dromon down --dir /x` tries again"),
            "{said:?}"
        );
        assert!(
            afterwards(&cluster, &why, None, &args).is_empty(),
            "nothing runs"
        );
    }

    #[test]
    fn a_witness_that_does_not_run_is_not_forgotten() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
        let cluster = cluster_with(dir.path(), std::env::current_exe().ok());
        let own = ProcessId::of(std::process::id().cast_signed()).expect("it runs");
        let runs = |record: &mut ClusterRecord| record.nodes[0].process = Some(own);
        cluster.change_settings(runs).expect("recorded");
        let why = SandboxError::BadRequest("no".into());
        let said = afterwards(&cluster, &why, None, &args(&[]));
        assert!(said[0].contains("`dromon up` starts the rest"), "{said:?}");
        let runs = |record: &mut ClusterRecord| {
            record.witness.as_mut().expect("recorded").process = Some(own);
        };
        cluster.change_settings(runs).expect("recorded");
        let said = afterwards(&cluster, &why, None, &args(&[]));
        assert!(said[0].starts_with("All of them run on"), "{said:?}");
    }

    #[test]
    fn one_that_runs_whole_is_waited_for_unless_it_is_to_be_another() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
        let cluster = cluster(dir.path());
        let own = ProcessId::of(std::process::id().cast_signed()).expect("it runs");
        let runs = |record: &mut ClusterRecord| record.nodes[0].process = Some(own);
        cluster.change_settings(runs).expect("recorded");
        let place = cluster.record().dir;
        drop(cluster);
        let up = |more: &[&str]| {
            let given = ["--dir", place.to_str().expect("text"), "--timeout", "1"];
            run(&args(&[&given[..], more].concat()))
        };
        // This process answers nobody, so it is not Synced in time.
        for same in [&[][..], &["--nodes", "1"]] {
            let code = up(same).expect("nothing is refused");
            assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::FAILURE));
        }
        for other in [&["--nodes", "2"][..], &["--", "max_connections=9"]] {
            let why = up(other).expect_err("it runs");
            assert!(matches!(why, SandboxError::AlreadyThere { .. }), "{why}");
        }
    }

    /// Without it `down --purge` would remove the cluster of the current directory.
    #[test]
    fn what_is_refused_names_the_directory_in_its_commands() {
        for wrong in [
            ["--nodes", "9"],
            ["--port", "4000"],
            ["--witness", "--no-tls"],
        ] {
            let dir = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
            let mut given = wrong.to_vec();
            given.extend(["--dir", "/x"]);
            let refused = reuse(cluster(dir.path()), &args(&given)).map(|_| ());
            let why = refused.expect_err("another cluster").to_string();
            assert!(why.contains("`dromon down --purge --dir /x`"), "{why}");
        }
    }

    #[test]
    fn settings_of_before_stay_until_they_are_given_anew_or_dropped() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
        let place = cluster(dir.path()).record().dir;
        let up = |given: &[&str]| {
            let found = Cluster::open(&place).expect("it is there");
            let before = found.record();
            let record = reuse(found, &args(given)).expect("it may").record();
            let all = record.settings.iter().map(|s| {
                let value = s.value.as_deref().map(|v| format!("={v}"));
                format!("{}{}", s.name, value.unwrap_or_default())
            });
            let all = all.collect::<Vec<_>>().join(" ");
            let said = what_changed(&before, &record).join("; ");
            (all, record.provider_options, said)
        };
        let first = [
            "--",
            "plugin_load_add=a",
            "plugin-load-add=b",
            "sql_mode=ANSI",
        ];
        let options = "wsrep_provider_options=gcs.fc_limit=7";
        let (all, ..) = up(&[&first[..], &[options]].concat());
        assert_eq!(all, "plugin_load_add=a plugin-load-add=b sql_mode=ANSI");
        let (all, options, said) = up(&["--", "max_connections=9", "SQL-mode="]);
        assert_eq!(
            all,
            "plugin_load_add=a plugin-load-add=b max_connections=9 SQL-mode="
        );
        assert_eq!(options, "gcs.fc_limit=7");
        assert!(
            said.contains("stay (--reset-settings drops them): plugin_load_add=a plugin-load-add=b wsrep_provider_options=gcs.fc_limit=7; ")
                && said.ends_with("are replaced: sql_mode=ANSI"),
            "{said}"
        );
        let (_, _, said) = up(&[]);
        assert_eq!(said, "", "nothing was given");
        let (all, options, said) = up(&["--reset-settings", "--", "plugin_load_add=c"]);
        let own = binlog().map(|(s, _)| format!("{}={} ", s.name, s.value.unwrap_or_default()));
        assert_eq!((all, &*options), (own.concat() + "plugin_load_add=c", ""));
        assert!(
            said.contains("are dropped: max_connections=9 SQL-mode= wsrep_provider_options"),
            "{said}"
        );
    }

    #[test]
    fn a_cluster_with_a_witness_keeps_our_library() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
        let peer = dir.path().join("libgalera_smm.so");
        fs::write(&peer, "").expect("written");
        let wrong = ["--provider", peer.to_str().expect("text"), "--dir", "/x"];
        let cluster = cluster_with(dir.path(), std::env::current_exe().ok());
        let place = cluster.record().dir;
        let why = reuse(cluster, &args(&wrong)).map(|_| ()).expect_err("it");
        let why = why.to_string();
        assert!(
            why.contains("works with Dromon's library only")
                && why.contains("`dromon down --purge --dir /x`"),
            "{why}"
        );
        let found = Cluster::open(&place).expect("it is there");
        assert!(found.record().is_dromon(), "nothing was changed");
    }

    #[test]
    fn of_logs_of_a_former_time_it_is_told_when_the_library_changes() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
        let cluster = cluster(dir.path());
        let (mut record, peer) = (cluster.record(), Path::new("/x/libgalera_smm.so"));
        assert_eq!(former_logs(&record, peer), None, "there are none");
        let log = record.nodes[0].data_dir.join("dromon-meta.log");
        fs::write(log, "").expect("written");
        let words = former_logs(&record, peer).expect("one lies there");
        assert!(words.contains("remove the dromon-*.log files") && words.ends_with("of db1"));
        let ours = Path::new("/y/libdromon.so");
        assert_eq!(former_logs(&record, ours), None, "a newer build");
        record.provider = peer.to_path_buf();
        assert_eq!(former_logs(&record, ours), Some(words));
    }

    #[test]
    fn what_only_our_logs_have_is_not_left_to_another_library() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
        let peer = dir.path().join("libgalera_smm.so");
        fs::write(&peer, "").expect("written");
        let peer = peer.to_str().expect("text");
        let place = cluster(dir.path()).record().dir;
        let found = || Cluster::open(&place).expect("it is there");
        let stopped_at = |seqno: &str| {
            let file = found().record().nodes[0].data_dir.join("grastate.dat");
            let text = format!("uuid: a\nseqno: {seqno}\nsafe_to_bootstrap: 0\n");
            fs::write(file, text).expect("written");
        };
        let up = |given: &[&str]| {
            reuse(found(), &args(given))
                .map(|_| ())
                .map_err(|e| e.to_string())
        };
        stopped_at("-1");
        let why = up(&["--provider", peer, "--dir", "/x", "--", "sql_mode=ANSI"]);
        let why = why.expect_err("it crashed");
        assert!(
            why.contains("db1 did not stop cleanly") && why.contains("`dromon down --dir /x`"),
            "{why}"
        );
        let record = found().record();
        assert!(record.is_dromon(), "nothing was changed");
        assert!(record.settings.iter().all(|s| s.name != "sql_mode"));
        up(&[]).expect("with ours it goes on");
        stopped_at("7");
        // What was given by hand and only ours knows would keep the other one from starting.
        let both =
            "wsrep_provider_options=gcs.fc_limit=7; dromon.slow_node=quarantine;x=a\\;dromon.y";
        up(&["--", both]).expect("ours knows it");
        let why = up(&["--provider", peer]).expect_err("the other does not");
        let told = [
            "only Dromon has: dromon.slow_node=quarantine. Nothing",
            "-- 'wsrep_provider_options=gcs.fc_limit=7;x=a\\;dromon.y'",
        ];
        assert!(told.iter().all(|words| why.contains(words)), "{why}");
        assert!(found().record().is_dromon(), "nothing was changed");
        let plain = "wsrep_provider_options=gcs.fc_limit=7";
        up(&["--provider", peer, "--", plain]).expect("it was stopped cleanly");
        assert!(!found().record().is_dromon());
        assert!(up(&["--", both]).is_err(), "nor does it later");
    }

    #[test]
    fn settings_dropped_and_new_clusters_are_looked_at_for_options_of_ours_too() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
        let peer = dir.path().join("libgalera_smm.so");
        fs::write(&peer, "").expect("written");
        let peer = peer.to_str().expect("text");
        let cluster = cluster(dir.path());
        let given =
            |record: &mut ClusterRecord| record.provider_options = "dromon.gather=off".into();
        cluster.change_settings(given).expect("recorded");
        let dropped = args(&["--provider", peer, "--reset-settings"]);
        let record = reuse(cluster, &dropped).expect("it is dropped").record();
        assert!(!record.is_dromon() && record.provider_options.is_empty());
        let new = args(&[
            "--provider",
            peer,
            "--",
            "wsrep_provider_options=dromon.gather=off",
        ]);
        let why = create(&dir.path().join("n"), &new).map(|_| ());
        let why = why.expect_err("it would not start").to_string();
        assert!(why.contains("only Dromon has: dromon.gather=off."), "{why}");
        assert!(!dir.path().join("n").exists());
    }

    #[test]
    fn node_counts() {
        assert_eq!(parse_nodes("5"), Ok(5));
        for bad in ["0", "33", "-1", "three", ""] {
            assert!(parse_nodes(bad).is_err(), "{bad}");
        }
    }
}
