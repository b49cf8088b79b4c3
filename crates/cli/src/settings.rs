//! Programs that are told what to do by settings, in a file and on the command line.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

use dromon_relay::given::{ConfigError, Given, Known};

use crate::output::{self, Output};

/// Options of such a program.
#[derive(Debug, clap::Args)]
pub struct SettingArgs {
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

/// Shows the settings, or runs the program until its end with what they come to.
pub fn run<C, E: Display>(
    args: &SettingArgs,
    known: &'static Known,
    settle: impl FnOnce(&Given) -> Result<C, ConfigError>,
    program: impl FnOnce(&C) -> Result<bool, E>,
) -> ExitCode {
    if args.settings {
        let names = known.settings.iter().map(|(key, _, _)| key.len());
        let width = names.max().unwrap_or(0);
        let mut out = Output::new();
        for (key, what, default) in known.settings {
            match default.strip_prefix('(').and_then(|d| d.strip_suffix(')')) {
                Some(means) => out.line(format_args!(
                    "{key:<width$} {what} [default: empty, {means}]"
                )),
                None if default.is_empty() => out.line(format_args!("{key:<width$} {what}")),
                None => out.line(format_args!("{key:<width$} {what} [default: {default}]")),
            }
        }
        out.line("");
        out.line("What is empty by default is made so by `key =`, with nothing behind it.");
        return out.end(0);
    }
    let given = match given(args, known) {
        Ok(given) => given,
        Err(e) => return refuse(&e, 2),
    };
    for warning in given.exposed() {
        output::tell(format_args!("dromon: {warning}"));
    }
    let config = match settle(&given) {
        Ok(config) => config,
        Err(e) => return refuse(&e, 2),
    };
    match program(&config) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => refuse(&e, 1),
    }
}

fn given(args: &SettingArgs, known: &'static Known) -> Result<Given, ConfigError> {
    let mut given = match &args.config {
        Some(file) => Given::read(known, file)?,
        None => Given::new(known),
    };
    for set in &args.set {
        given.line(set, "--set".into())?;
    }
    Ok(given)
}

fn refuse(error: &dyn Display, code: u8) -> ExitCode {
    output::tell(format_args!("dromon: {error}"));
    ExitCode::from(code)
}
