//! `dromon`, run by a test: with a limit, and gone when the test is.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// The program under way.
pub struct Running {
    pub child: Child,
    args: String,
    out: Receiver<String>,
    err: Receiver<String>,
}

impl Running {
    /// Starts it in `dir`.
    #[allow(dead_code, reason = "each test program takes what it needs")]
    pub fn start(dir: &Path, args: &[&str]) -> Running {
        Running::start_so(Path::new(env!("CARGO_BIN_EXE_dromon")), dir, args, &[])
    }

    /// Starts it in `dir`, by another name of it.
    #[allow(dead_code, reason = "each test program takes what it needs")]
    pub fn start_as(program: &Path, dir: &Path, args: &[&str]) -> Running {
        Running::start_so(program, dir, args, &[])
    }

    /// Starts it in `dir` with these variables in its environment.
    #[allow(dead_code, reason = "each test program takes what it needs")]
    pub fn start_with(dir: &Path, args: &[&str], variables: &[(&str, &str)]) -> Running {
        Running::start_so(
            Path::new(env!("CARGO_BIN_EXE_dromon")),
            dir,
            args,
            variables,
        )
    }

    /// Starts it in `dir` with this umask.
    #[allow(dead_code, reason = "each test program takes what it needs")]
    pub fn start_under(dir: &Path, umask: &str, args: &[&str]) -> Running {
        let script = format!("umask {umask}; exec \"$0\" \"$@\"");
        let ours = ["-c", &script, env!("CARGO_BIN_EXE_dromon")];
        Running::start_as(Path::new("/bin/sh"), dir, &[&ours[..], args].concat())
    }

    fn start_so(program: &Path, dir: &Path, args: &[&str], variables: &[(&str, &str)]) -> Running {
        let mut child = Command::new(program)
            .envs(variables.iter().copied())
            .args(args)
            .current_dir(dir)
            .env_remove("XDG_STATE_HOME")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let out = read(child.stdout.take().expect("it is piped"));
        let err = read(child.stderr.take().expect("it is piped"));
        Running {
            child,
            args: args.join(" "),
            out,
            err,
        }
    }

    /// Waits for its end; the exit code and what it wrote.
    pub fn ended(mut self, limit: Duration) -> (i32, String, String) {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                break status;
            }
            assert!(
                begin.elapsed() < limit,
                "dromon {} did not end within {limit:?}",
                self.args
            );
            thread::sleep(Duration::from_millis(5));
        };
        let text = |from: &Receiver<String>| {
            let left = limit.saturating_sub(begin.elapsed());
            from.recv_timeout(left).expect("nobody else holds the pipe")
        };
        let (out, err) = (text(&self.out), text(&self.err));
        (status.code().expect("it exits"), out, err)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended, if all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads all of a stream, on a thread: a full pipe would hold the program up.
fn read(mut stream: impl Read + Send + 'static) -> Receiver<String> {
    let (tx, rx) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error counts; nobody listens if the test is over.
        let _ = stream.read_to_end(&mut bytes);
        let _ = tx.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    rx
}
