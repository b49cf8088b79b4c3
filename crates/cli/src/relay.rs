//! `dromon relay`.

use std::process::ExitCode;

use dromon_relay::{Config, RELAY};

use crate::settings;

/// Options of `dromon relay`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A binlog server: it pulls from a primary, keeps what it acknowledged through any crash, and serves\nunmodified replicas as a primary would (CHANGE MASTER TO … MASTER_USE_GTID = slave_pos).\n\nIt ends at SIGTERM or SIGINT.\nExit codes: 0 it was told to end, 1 it could not start or go on, 2 the settings are wrong.\n\nExample:\n  dromon relay --set primary=db1:3306 --set user=repl --set password_file=/etc/relay.pw \\\n    --set dir=/var/lib/dromon-relay --set server_id=101 --set account=repl:secret --set listen=0.0.0.0:3307"
)]
pub struct Args {
    #[command(flatten)]
    settings: settings::SettingArgs,
}

/// Runs a relay until its end.
pub fn run(args: &Args) -> ExitCode {
    settings::run(&args.settings, &RELAY, Config::settle, dromon_relay::run)
}
