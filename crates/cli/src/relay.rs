//! `dromon relay`.

use std::process::ExitCode;

use dromon_relay::{Config, RELAY};

use crate::settings;

/// Options of `dromon relay`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A binlog server: it pulls from a primary, keeps what it acknowledged through any crash, and serves\nunmodified replicas as a primary would (CHANGE MASTER TO … MASTER_USE_GTID = slave_pos).\n\nIt ends at SIGTERM or SIGINT.\nExit codes: 0 it was told to end, 1 it could not start or go on, 2 the settings are wrong.\n\nExample:\n  dromon relay --config /etc/dromon-relay.cnf\nwhere that file (chmod 600) has\n  primary = db1:3306\n  user = repl\n  password_file = /etc/dromon-relay.pw\n  dir = /var/lib/dromon-relay\n  server_id = 101\n  account_file = /etc/dromon-relay.accounts\n  listen = 0.0.0.0:3307\nand the file of accounts has lines name:password. A password in --set stands in the list of processes."
)]
pub struct Args {
    #[command(flatten)]
    settings: settings::SettingArgs,
}

/// Runs a relay until its end.
pub fn run(args: &Args) -> ExitCode {
    settings::run(&args.settings, &RELAY, Config::settle, dromon_relay::run)
}
