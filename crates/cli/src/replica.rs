//! `dromon replica`.

use std::path::PathBuf;
use std::process::ExitCode;

use dromon_replica::{Given, SETTINGS};

/// Options of `dromon replica`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A parallel applier: it follows the binlog of a primary or a relay into a server, over several connections,\nin the source's order and exactly once.\n\nIt ends at SIGTERM or SIGINT.\nExit codes: 0 it was told to end or has caught up, 1 it could not start or go on, 2 the settings are wrong.\n\nExample:\n  dromon replica --set source=db1:3306 --set source_user=repl --set source_password_file=/etc/repl.pw --set server_id=201 \\\n    --set target=db2:3306 --set target_user=dromon --set target_password_file=/etc/dromon.pw --set threads=8 --set merge=100"
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

/// Runs a replica until its end.
pub fn run(args: &Args) -> ExitCode {
    if args.settings {
        for (key, what, default) in SETTINGS {
            match default.is_empty() {
                true => println!("{key:<20} {what}"),
                false => println!("{key:<20} {what} [default: {default}]"),
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
    match dromon_replica::run(&config) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => refuse(&e, 1),
    }
}

fn refuse(error: &dyn std::fmt::Display, code: u8) -> ExitCode {
    eprintln!("dromon: {error}");
    ExitCode::from(code)
}
