//! What a machine must lend to hurt servers properly: file systems that lose
//! power, fail, hang and fill up, networks that lose packets. Needs root.
//!
//! All of it lives in namespaces of our own (see [`enter`]): when the last of our
//! processes has ended, however it ended, the system takes back mounts, loop
//! devices and network devices. Nothing outside sees them.

mod disks;
mod log_disks;
mod network;
mod wan;

use std::env;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

pub use disks::{Disks, PlainDisk, log_files_direct};
pub use log_disks::{LogDisks, LogFault};
pub use network::Network;
pub use wan::{FAR_ASIDE, Line, NEAR, Wan, emulate};

/// Set in the process that runs inside.
const INSIDE: &str = "DROMON_TEST_LAB";
/// Its value where the network is our own, too.
const WITH_NET: &str = "net";

/// Starts this program again in a mount namespace of its own and becomes it.
/// Returns (doing nothing) when that is where it runs already, or when the
/// system refuses: then scenarios that need it fail and say why. `net`: in a
/// network namespace, too, where nothing but the loopback device is.
pub fn enter(net: bool) {
    if is_inside() {
        if has_net() {
            // Whoever needs it says that it is down.
            let _ = run("ip", &["link", "set", "lo", "up"], "");
        }
        return;
    }
    if private_mounts().is_err() {
        return;
    }
    let Ok(own) = env::current_exe() else { return };
    let error = Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .args(net.then_some("--net"))
        .arg("--")
        .arg(own)
        .args(env::args_os().skip(1))
        .env(INSIDE, if net { WITH_NET } else { "1" })
        .exec();
    eprintln!("storms: starting in a mount namespace of its own failed: {error}");
}

fn is_inside() -> bool {
    env::var_os(INSIDE).is_some()
}

fn has_net() -> bool {
    env::var_os(INSIDE).is_some_and(|v| v == WITH_NET)
}

/// As [`required`], of the network.
fn required_net(what: &str) -> anyhow::Result<()> {
    required(what)?;
    ensure!(
        has_net(),
        "{what} cannot be made: this program was not started in a network namespace of its own"
    );
    Ok(())
}

/// Fails, saying what is missing, where faults of disk and network cannot be made.
pub fn required(what: &str) -> anyhow::Result<()> {
    if is_inside() {
        return Ok(());
    }
    let why = match private_mounts() {
        Ok(()) => "this program was not started in a mount namespace of its own".into(),
        Err(e) => format!("{e:#}"),
    };
    bail!("{what} cannot be made on this machine, so nothing was shown: {why}")
}

fn private_mounts() -> anyhow::Result<()> {
    run(
        "unshare",
        &["--mount", "--propagation", "private", "--", "true"],
        "",
    )
    .context("a mount namespace of our own needs root (CAP_SYS_ADMIN)")
    .map(drop)
}

/// No program of the system takes longer: one that does hangs.
const RUN_LIMIT: Duration = Duration::from_secs(300);

/// Runs a program of the system to its end; its output.
fn run(program: &str, args: &[&str], input: &str) -> anyhow::Result<String> {
    run_within(RUN_LIMIT, program, args, input)
}

fn run_within(
    limit: Duration,
    program: &str,
    args: &[&str],
    input: &str,
) -> anyhow::Result<String> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("running {program}"))?;
    let mut stdin = child.stdin.take().context("no pipe to the program")?;
    stdin.write_all(input.as_bytes())?;
    drop(stdin);
    let id = child.id().to_string();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    let Ok(out) = receiver.recv_timeout(limit) else {
        // It may be one that nothing ends, as its file system hangs: nobody waits for it.
        let _ = Command::new("kill").args(["-9", &id]).status();
        bail!(
            "{program} {} has not ended within {limit:?}",
            args.join(" ")
        );
    };
    let out = out?;
    ensure!(
        out.status.success(),
        "{program} {} ended with {}: {}",
        args.join(" "),
        out.status,
        String::from_utf8_lossy(&out.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_hangs_is_not_waited_for() {
        assert_eq!(run("cat", &[], "words").expect("it ends"), "words");
        let limit = Duration::from_millis(50);
        let error = run_within(limit, "sleep", &["100"], "").expect_err("it sleeps");
        assert!(error.to_string().contains("has not ended"), "{error}");
    }
}
