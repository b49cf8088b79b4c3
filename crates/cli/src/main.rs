//! The `dromon` command: one program for operators.
//!
//! Exit codes: 0 all is well, 1 the cluster works but not as it should (or the
//! command failed), 2 nothing can be written (or the command line is wrong).

#![forbid(unsafe_code)]

mod banner;
mod bench;
mod down;
mod halves;
mod log;
mod output;
mod place;
mod relay;
mod replica;
mod settings;
mod status;
mod up;

mod witness;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Multi-master MariaDB clusters with the Dromon wsrep provider.
#[derive(Debug, Parser)]
#[command(
    name = "dromon",
    version = dromon_node::version::words(),
    max_term_width = 100,
    disable_help_subcommand = true
)]
#[command(
    after_help = "First steps:\n  dromon up        three nodes on this machine, ready to use\n  dromon status    how they are\n  dromon down      stop them; --purge removes their data"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a local cluster: new, or the stopped one in the directory.
    Up(up::Args),
    /// Show every node of a local cluster and what it means together.
    Status(status::Args),
    /// Stop the cluster's servers.
    Down(down::Args),
    /// Look into the log that a node keeps on its disk.
    Log(log::Args),
    /// Measure on real servers.
    Bench(bench::Args),
    /// Run a member that votes and stores the log, without a server and without data.
    Witness(Box<witness::Args>),
    /// Run a binlog server between a primary and its replicas.
    Relay(relay::Args),
    /// Apply a binlog to a server in parallel.
    Replica(replica::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse_from(arguments(std::env::args_os())).command {
        Command::Up(args) => up::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Down(args) => down::run(&args),
        Command::Log(args) => Ok(log::run(&args)),
        Command::Bench(args) => Ok(bench::run(&args)),
        Command::Witness(args) => Ok(witness::run(&args)),
        Command::Relay(args) => Ok(relay::run(&args)),
        Command::Replica(args) => Ok(replica::run(&args)),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            output::tell(format_args!("dromon: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Under the name of Galera's arbitrator (a link `garbd`), what follows is for the
/// witness: service scripts that start one go on working.
fn arguments(given: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<_> = given.into_iter().collect();
    let name = arguments.first().map(Path::new).and_then(Path::file_name);
    if name == Some("garbd".as_ref()) {
        arguments.insert(1, "witness".into());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_version_says_whom_it_may_run_beside() {
        for asked in [
            &["dromon", "--version"][..],
            &["dromon", "witness", "--version"],
        ] {
            let said = Cli::try_parse_from(asked).expect_err("it ends").to_string();
            let numbers = said.split_once(" (cluster protocol ").expect("the first").1;
            assert!(numbers.contains(", log format "), "{said}");
        }
    }

    #[test]
    fn zero_nodes_are_refused_with_a_reason() {
        let error = Cli::try_parse_from(["dromon", "up", "--nodes", "0"])
            .expect_err("zero nodes")
            .to_string();
        assert!(
            error.contains("a cluster needs at least one node"),
            "{error}"
        );
        assert!(
            Cli::try_parse_from(["dromon", "up", "--nodes", "5", "--", "max_connections=9"])
                .is_ok()
        );
    }

    #[test]
    fn under_the_arbitrators_name_it_is_the_witness() {
        let given = |name: &str| [name, "--group", "g", "--address", "gcomm://h"].map(Into::into);
        for name in ["garbd", "/usr/bin/garbd"] {
            let cli = Cli::try_parse_from(arguments(given(name))).expect("garbd's options");
            assert!(matches!(cli.command, Command::Witness(_)));
        }
        assert!(Cli::try_parse_from(arguments(given("dromon"))).is_err());
        assert_eq!(arguments([]), Vec::<OsString>::new());
    }
}
