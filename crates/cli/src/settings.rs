//! Programs that are told what to do by settings, in a file and on the command line.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

use dromon_relay::given::{ConfigError, Given, Known};

use crate::output::{self, Output, refuse};

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

#[cfg(test)]
mod tests {
    use super::*;

    /// What stands between backticks.
    fn quoted(cell: &str) -> Vec<&str> {
        cell.split('`').skip(1).step_by(2).collect()
    }

    /// The table of settings in a page names each setting once, and no other, with the default that it has.
    fn is_in(page: &str, known: &Known) {
        let section = page.split("\n## Settings\n").nth(1).expect("a section");
        let rows = section.lines().skip_while(|line| !line.starts_with("|---"));
        let rows: Vec<Vec<&str>> = rows
            .skip(1)
            .take_while(|line| line.starts_with('|'))
            .map(|line| line.split('|').map(str::trim).collect())
            .collect();
        let named: Vec<&str> = rows.iter().flat_map(|row| quoted(row[1])).collect();
        for name in &named {
            let is_one = known.settings.iter().any(|(key, ..)| key == name);
            assert!(is_one, "{name} is no setting of a {}", known.program);
        }
        for (key, _, default) in known.settings {
            let times = named.iter().filter(|name| *name == key).count();
            assert_eq!(times, 1, "{key} of a {}", known.program);
            let row = rows.iter().find(|row| quoted(row[1]).contains(key));
            let row = row.expect("it is named");
            let (names, values) = (quoted(row[1]), quoted(row[2]));
            let empty = default.strip_prefix('(').and_then(|d| d.strip_suffix(')'));
            if default.is_empty() || empty.is_some() {
                let same = empty.is_some_and(|means| row[2].replace('`', "") == means);
                assert!(values.is_empty() || same, "{key}: {}", row[2]);
                continue;
            }
            // One for all of a row, or one for each.
            let at = names.iter().position(|name| name == key).expect("it is");
            let shown = if values.len() == 1 { 0 } else { at };
            assert_eq!(values.get(shown), Some(default), "{key}");
        }
    }

    #[test]
    fn the_pages_tell_settings_and_defaults() {
        is_in(include_str!("../../../docs/relay.md"), &dromon_relay::RELAY);
        is_in(
            include_str!("../../../docs/replica.md"),
            &dromon_replica::REPLICA,
        );
    }
}
