//! The `dromon` command: one program for operators.
//!
//! Exit codes: 0 all is well, 1 the cluster works but not as it should (or the
//! command failed), 2 nothing can be written (or the command line is wrong).

#![forbid(unsafe_code)]

mod banner;
mod bench;
mod down;
mod log;
mod place;
mod relay;
mod status;
mod up;
mod witness;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Multi-master MariaDB clusters with the Dromon wsrep provider.
#[derive(Debug, Parser)]
#[command(
    name = "dromon",
    version,
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
    /// Show every node and what it means together.
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
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Up(args) => up::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Down(args) => down::run(&args),
        Command::Log(args) => Ok(log::run(&args)),
        Command::Bench(args) => Ok(bench::run(&args)),
        Command::Witness(args) => Ok(witness::run(&args)),
        Command::Relay(args) => Ok(relay::run(&args)),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("dromon: {error}");
            ExitCode::FAILURE
        }
    }
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
}
