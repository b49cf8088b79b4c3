//! `dromon relay`.

use std::path::PathBuf;
use std::process::ExitCode;

use dromon_relay::{Given, SETTINGS};

/// Options of `dromon relay`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A binlog server: it pulls from a primary, keeps what it acknowledged through any crash, and serves\nunmodified replicas as a primary would (CHANGE MASTER TO … MASTER_USE_GTID = slave_pos).\n\nIt ends at SIGTERM or SIGINT.\nExit codes: 0 it was told to end, 1 it could not start or go on, 2 the settings are wrong.\n\nExample:\n  dromon relay --set primary=db1:3306 --set user=repl --set password_file=/etc/relay.pw \\\n    --set dir=/var/lib/dromon-relay --set server_id=101 --set account=repl:secret --set listen=0.0.0.0:3307"
)]
pub struct Args {
    /// File with settings, lines of key = value.
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A setting; it comes before the file's. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Show all settings and their defaults.
    #[arg(long)]
    settings: bool,
}

/// Runs a relay until its end.
pub fn run(args: &Args) -> ExitCode {
    if args.settings {
        for (key, what, default) in SETTINGS {
            match default.is_empty() {
                true => println!("{key:<15} {what}"),
                false => println!("{key:<15} {what} [default: {default}]"),
            }
        }
        return ExitCode::SUCCESS;
    }
    let file = match args.config.as_deref().map(Given::read).transpose() {
        Ok(file) => file.unwrap_or_default(),
        Err(e) => return refuse(&e, 2),
    };
    let mut given = Given::default();
    for set in &args.set {
        if let Err(e) = given.line(set, "--set".into()) {
            return refuse(&e, 2);
        }
    }
    let config = match file.and(given).settle() {
        Ok(config) => config,
        Err(e) => return refuse(&e, 2),
    };
    match dromon_relay::run(&config) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => refuse(&e, 1),
    }
}

fn refuse(error: &dyn std::fmt::Display, code: u8) -> ExitCode {
    eprintln!("dromon: {error}");
    ExitCode::from(code)
}
