//! `dromon replica`.

use std::process::ExitCode;

use dromon_replica::{Config, REPLICA};

use crate::settings;

/// Options of `dromon replica`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A parallel applier: it follows the binlog of a primary or a relay into a server, over several connections,\nin the source's order and exactly once.\n\nIt ends at SIGTERM or SIGINT.\nExit codes: 0 it was told to end or has caught up, 1 it could not start or go on, 2 the settings are wrong.\n\nExample:\n  dromon replica --set source=db1:3306 --set source_user=repl --set source_password_file=/etc/repl.pw --set server_id=201 \\\n    --set target=db2:3306 --set target_user=dromon --set target_password_file=/etc/dromon.pw \\\n    --set start=0-1-4711\n\nstart: the GTID position of the copy of the data that the target has (docs/replica.md, The first start)."
)]
pub struct Args {
    #[command(flatten)]
    settings: settings::SettingArgs,
}

/// Runs a replica until its end.
pub fn run(args: &Args) -> ExitCode {
    settings::run(
        &args.settings,
        &REPLICA,
        Config::settle,
        dromon_replica::run,
    )
}
