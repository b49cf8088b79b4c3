//! `dromon down`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use dromon_sandbox::{Cluster, Result, SandboxError, StopReport};

use crate::output::{Output, tell};
use crate::place;
use crate::up::MOST_SECONDS;

/// Options of `dromon down`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Nodes are stopped one after the other, the founder last, so that `dromon up` can start them again.\nOnly processes that `dromon up` started in this directory are touched.\n\nExit codes: 0 all ended cleanly, or there was nothing to stop; 1 one crashed while it stopped, says its log, or\nhad to be killed, or runs on as it was started by hand, or it could not be tried. Then --purge removes nothing, as the logs say why; a second call does."
)]
pub struct Args {
    /// Where the cluster lies.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Remove data, logs and settings too, if all ended cleanly.
    #[arg(long)]
    purge: bool,
    /// Seconds a server has to end before it is killed.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = clap::value_parser!(u64).range(1..=MOST_SECONDS))]
    timeout: u64,
}

/// The messages of a node, or of the witness.
fn log_of(cluster: &Cluster, name: &str) -> PathBuf {
    let node = cluster.nodes().iter().find(|n| n.name() == name);
    let witness = cluster.witness().map(|w| w.record().log);
    node.map(|n| n.record().log).or(witness).unwrap_or_default()
}

/// How a node, or the witness, was stopped.
pub fn line(cluster: &Cluster, name: &str, report: &StopReport) -> String {
    match report {
        StopReport::WasDown => format!("{name}  was not running"),
        StopReport::ByHand { pid } => format!(
            "{name}  runs as process {pid}, which was not started by `dromon up`; left alone (end it with SIGTERM)"
        ),
        StopReport::Ended { took } => format!("{name}  stopped in {:.1} s", took.as_secs_f64()),
        StopReport::Failed { took, how } => format!(
            "{name}  did not stop cleanly: it ended with {how} after {:.1} s; why is at the end of {}",
            took.as_secs_f64(),
            log_of(cluster, name).display()
        ),
        StopReport::Killed { after } => format!(
            "{name}  did not end within {} s and was killed; what it was doing is at the end of {}",
            after.as_secs(),
            log_of(cluster, name).display()
        ),
    }
}

/// Whether it crashed or had to be killed.
pub fn is_bad(report: &StopReport) -> bool {
    matches!(
        report,
        StopReport::Killed { .. } | StopReport::Failed { .. }
    )
}

/// Stops the cluster.
pub fn run(args: &Args) -> Result<ExitCode> {
    let dir = place::choose(args.dir.as_deref());
    // Nothing that is printed stops the stopping.
    let mut out = Output::new();
    let cluster = match Cluster::open(&dir) {
        Ok(cluster) => cluster,
        Err(error @ SandboxError::NoCluster { .. }) => {
            out.line(format_args!("Nothing to stop. {error}"));
            return Ok(out.end(0));
        }
        Err(error) => return Err(error),
    };
    let _hold = cluster.hold()?;
    let (mut all_well, mut all_tried, mut runs_on) = (true, true, false);
    for (name, report) in cluster.stop_each(Duration::from_secs(args.timeout))? {
        match report {
            Ok(report) => {
                all_well &= !is_bad(&report);
                runs_on |= matches!(report, StopReport::ByHand { .. });
                out.line(line(&cluster, &name, &report));
            }
            Err(error) => {
                all_tried = false;
                tell(format_args!(
                    "dromon: {name} was not stopped cleanly: {error}"
                ));
            }
        }
    }
    if !all_tried {
        return Ok(out.end(1));
    }
    let dir = cluster.record().dir;
    if args.purge && !all_well {
        // Why is in the logs, as was just said.
        out.line(format_args!(
            "Nothing was removed, as its logs say why. To remove it all the same: dromon down --purge{}",
            place::hint(args.dir.as_deref())
        ));
    } else if args.purge {
        cluster.purge()?;
        out.line(format_args!("Removed {}", dir.display()));
    } else {
        out.line(format_args!(
            "Data and logs stay in {}. Start again: dromon up{}",
            dir.display(),
            place::hint(args.dir.as_deref())
        ));
    }
    // Who stops a cluster to copy it must know.
    Ok(out.end(u8::from(!all_well || runs_on)))
}
