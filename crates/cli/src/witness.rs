//! `dromon witness`.

use std::path::PathBuf;
use std::process::ExitCode;

use dromon_witness::{DEFAULT_DIR, Given};

use crate::output::refuse;

/// Options of `dromon witness`.
#[derive(Debug, clap::Args)]
#[command(
    version = dromon_node::version::words(),
    disable_version_flag = true,
    after_help = "A member without a MariaDB server and without data: it votes and stores the log, so that two data nodes\nand a witness survive the loss of any one of the three. Its options and its file of settings are garbd's.\n\nIt ends at SIGTERM or SIGINT, leaving the cluster; at SIGHUP it opens its log file anew\nand reads the files of socket.ssl and dromon.secret_file again.\nExit codes: 0 it was told to end, 1 it could not start or go on, 2 the command line is wrong.\n\nExample:\n  dromon witness --group my_cluster --address gcomm://10.0.0.1,10.0.0.2 --dir /var/lib/dromon-witness"
)]
pub struct Args {
    /// Name of the cluster (wsrep_cluster_name).
    #[arg(long, short, value_name = "NAME")]
    group: Option<String>,
    /// Address of the cluster: gcomm:// and the data nodes.
    #[arg(long, short, value_name = "URL")]
    address: Option<String>,
    /// Options as in wsrep_provider_options.
    #[arg(long, short, value_name = "LIST")]
    options: Option<String>,
    /// Name of this member [default: garb].
    #[arg(long, short, value_name = "NAME")]
    name: Option<String>,
    /// Where its log lies.
    #[arg(long, short = 'w', visible_alias = "workdir", value_name = "DIR", help = format!("Where its log lies [default: {DEFAULT_DIR}]"))]
    dir: Option<PathBuf>,
    /// File for its messages [default: standard error; the system's log for a daemon].
    #[arg(long, short, value_name = "FILE")]
    log: Option<PathBuf>,
    /// File with settings, lines of key = value; the command line comes first.
    #[arg(long, short, value_name = "FILE")]
    cfg: Option<PathBuf>,
    /// Leave the terminal.
    #[arg(long, short)]
    daemon: bool,
    /// Without a majority, go on with this witness's log alone: what only lost members have is given up.
    #[arg(long)]
    force_primary: bool,
    /// Print version.
    #[arg(long, short, action = clap::ArgAction::Version)]
    version: Option<bool>,
}

/// Runs a witness until its end.
pub fn run(args: &Args) -> ExitCode {
    let signals = match dromon_witness::heed_hangups() {
        Ok(signals) => signals,
        Err(e) => return refuse(&e, 1),
    };
    let file = match args.cfg.as_deref().map(Given::read).transpose() {
        Ok(file) => file.unwrap_or_default(),
        Err(e) => return refuse(&e, 2),
    };
    let given = Given {
        group: args.group.clone(),
        address: args.address.clone(),
        options: args.options.clone(),
        name: args.name.clone(),
        dir: args.dir.clone(),
        log: args.log.clone(),
        daemon: args.daemon,
        force_primary: args.force_primary,
    };
    let config = match given.or(file).settle() {
        Ok(config) => config,
        Err(e) => return refuse(&e, 2),
    };
    match dromon_witness::run(&config, signals) {
        Ok(code) => code,
        Err(e) => refuse(&e, 1),
    }
}
