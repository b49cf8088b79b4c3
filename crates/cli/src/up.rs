//! `dromon up`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::builder::RangedI64ValueParser;
use dromon_sandbox::{
    Cluster, ClusterSpec, JoinPlan, Result, SandboxError, Setting, SstMethod, split_settings,
};

use crate::{banner, halves, place};

/// Options of `dromon up`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Everything listens on 127.0.0.1 only. The directory is --dir, else $XDG_STATE_HOME/dromon, else ./.dromon\n(or /var/tmp/dromon when user mysql cannot enter the current directory).\n\nExamples:\n  dromon up\n  dromon up --nodes 5 --dir /tmp/five -- innodb_buffer_pool_size=1G\n  dromon up --nodes 2 --witness\n  dromon up --provider /usr/lib/galera/libgalera_smm.so --dir /tmp/peer"
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
    #[arg(long, value_name = "SECONDS", default_value = "120")]
    timeout: u64,
    /// Further server settings, name=value.
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
    let (cluster, found) = match Cluster::open(&dir) {
        Ok(cluster) if is_in_part(&cluster) => return complete(&cluster, args, begin),
        Ok(cluster) if cluster.running() > 0 => {
            return Err(SandboxError::AlreadyThere {
                dir: cluster.record().dir,
                nodes: cluster.nodes().len(),
                running: cluster.running(),
            });
        }
        Ok(cluster) if !cluster.record().complete => {
            eprintln!(
                "What lies in {} was not made whole, or not removed whole: it is made anew",
                cluster.record().dir.display()
            );
            cluster.purge()?;
            (create(&dir, args)?, false)
        }
        Ok(cluster) => (reuse(cluster, args)?, true),
        Err(SandboxError::NoCluster { .. }) => (create(&dir, args)?, false),
        Err(other) => return Err(other),
    };
    let count = cluster.nodes().len();
    eprintln!(
        "{} {count} node{} in {} …",
        if found {
            "Starting the stopped cluster of"
        } else {
            "Starting"
        },
        if count == 1 { "" } else { "s" },
        cluster.record().dir.display()
    );
    match cluster.start_all(JoinPlan::Together, Duration::from_secs(args.timeout)) {
        Ok(took) => {
            print!(
                "{}",
                banner::text(&cluster, &took, begin.elapsed(), args.dir.as_deref())
            );
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            // Half a cluster helps nobody; the data and logs stay for a look.
            if cluster.running() > 0 {
                cluster.stop_all(Duration::from_secs(10))?;
                eprintln!("dromon: the nodes that did start were stopped again");
            }
            Err(halves::with_logs(error))
        }
    }
}

/// Whether some of its processes run, and some do not.
fn is_in_part(cluster: &Cluster) -> bool {
    let all = cluster.nodes().len() + usize::from(cluster.witness().is_some());
    (1..all).contains(&cluster.running())
}

/// Starts what is missing of a cluster that runs in part, as it was.
fn complete(cluster: &Cluster, args: &Args, begin: Instant) -> Result<ExitCode> {
    let dir = cluster.record().dir;
    let count = cluster.nodes().len();
    let all = count + usize::from(cluster.witness().is_some());
    let given = args.nodes.is_some_and(|n| n != count)
        || args.provider.is_some()
        || args.sst_method.is_some()
        || (args.witness && cluster.witness().is_none())
        || args.no_tls
        || args.port.is_some()
        || !args.settings.is_empty();
    if given {
        return Err(SandboxError::BadRequest(format!(
            "{} of the {all} processes of the cluster in {} run: it cannot be changed now. `dromon up` without \
             options starts the rest as it was; to change it, stop it first (`dromon down`)",
            cluster.running(),
            dir.display()
        )));
    }
    eprintln!(
        "Starting what does not run of the cluster in {}: {} of {all} …",
        dir.display(),
        all - cluster.running()
    );
    // Whatever happens, those that ran go on.
    let took = cluster.start_missing(Duration::from_secs(args.timeout))?;
    print!(
        "{}",
        banner::text(cluster, &took, begin.elapsed(), args.dir.as_deref())
    );
    Ok(ExitCode::SUCCESS)
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
    spec.settings.clone_from(&args.settings);
    Cluster::create(&spec)
}

/// A stopped cluster keeps its nodes, ports and data, and what encrypts it;
/// provider, transfer method and settings may be given anew, and encryption
/// may be left out.
fn reuse(cluster: Cluster, args: &Args) -> Result<Cluster> {
    let found = cluster.record();
    let count = found.nodes.len();
    if args.nodes.is_some_and(|n| n != count) {
        return Err(SandboxError::BadRequest(format!(
            "{} holds a stopped cluster of {count} nodes; leave --nodes out to start it, choose another --dir, or remove it with its data (`dromon down --purge`)",
            found.dir.display()
        )));
    }
    if let (Some(port), Some(first)) = (args.port, found.nodes.first())
        && port != first.ports.sql
    {
        return Err(SandboxError::BadRequest(format!(
            "{} holds a stopped cluster on the ports from {} on; leave --port out to start it, choose another --dir, or remove it with its data (`dromon down --purge`)",
            found.dir.display(),
            first.ports.sql
        )));
    }
    if args.witness && found.witness.is_none() {
        return Err(SandboxError::BadRequest(format!(
            "{} holds a stopped cluster without a witness; leave --witness out to start it, choose another --dir, or remove it with its data (`dromon down --purge`)",
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
        if let Some(options) = options {
            record.provider_options = options;
        }
        if !settings.is_empty() {
            record.settings = settings;
        }
    })?;
    Ok(cluster)
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

    #[test]
    fn node_counts() {
        assert_eq!(parse_nodes("5"), Ok(5));
        for bad in ["0", "33", "-1", "three", ""] {
            assert!(parse_nodes(bad).is_err(), "{bad}");
        }
    }
}
