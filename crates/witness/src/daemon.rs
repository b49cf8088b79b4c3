//! Away from the terminal: the program starts itself once more, in a session of
//! its own, and reports when that one stands.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, Stdio};

/// Tells the second process that it is the one that stays.
const MARK: &str = "DROMON_WITNESS_DETACHED";
/// What it says when it stands.
const READY: &str = "ready";

/// Whether this process is the one that stays.
pub fn is_detached() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Starts the process that stays and waits until it stands or has failed; what
/// it has to say before that goes to this terminal.
pub fn start() -> io::Result<ExitCode> {
    // The name it was called by says how its arguments are read.
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "dromon".into());
    let mut child = Command::new(std::env::current_exe()?)
        .arg0(name)
        .args(arguments)
        .env(MARK, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut said)?;
    }
    if said.trim() == READY {
        // It stands, whether or not somebody reads that.
        let _ = writeln!(io::stdout(), "witness started, process {}", child.id());
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait()?;
    if let Some(signal) = status.signal() {
        let words = format!("dromon: the witness ended at its start by signal {signal}");
        let _ = writeln!(io::stderr(), "{words}");
    }
    let code = status.code().and_then(|c| u8::try_from(c).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Leaves the terminal's session. An error means that it has none, which will do.
pub fn leave_session() {
    let _ = rustix::process::setsid();
}

/// Tells the waiting process that this one stands, and lets go of the terminal.
pub fn stands() -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{READY}")?;
    out.flush()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
