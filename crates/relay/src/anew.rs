//! With a full disk, or without descriptors: when there is room again, the relay takes its own place.

use std::env;
use std::io::{self, IoSlice};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use dromon_log::Device;

/// How often it looks whether there is room, for how much, and by which file.
const LOOK: Duration = Duration::from_secs(5);
const ROOM_BYTES: u64 = 16 << 20;
const ROOM: &str = "dromon-relay.room";
/// So many descriptors at once, more than a start takes: one that finds none would be the end of the relay.
const DESCRIPTORS: usize = 16;
/// What could not be run now cannot be run in five seconds, but perhaps later.
const LATER: Duration = Duration::from_secs(60);

/// The program that runs, wherever it is, also if it is nowhere any more.
const OWN: &str = "/proc/self/exe";

/// When to look for room. Times are those since some beginning.
#[derive(Debug)]
pub(crate) struct Anew {
    due: Duration,
    said: String,
}

impl Anew {
    /// At the beginning.
    pub fn new() -> Anew {
        Anew {
            due: LOOK,
            said: String::new(),
        }
    }

    /// Whether it is time to look.
    pub fn is_due(&mut self, now: Duration) -> bool {
        let due = now >= self.due;
        if due {
            self.due = now + LOOK;
        }
        due
    }

    /// There was room, and it could not begin anew. Whether that is news.
    pub fn failed(&mut self, now: Duration, why: &str) -> bool {
        self.due = now + LATER;
        let news = self.said != why;
        why.clone_into(&mut self.said);
        news
    }
}

/// Whether so much can be written, and so many files be open, that it is worth going on.
pub(crate) fn has_room(device: &dyn Device) -> bool {
    let zeros = vec![0; 1 << 20];
    let write = || {
        let file = device.create(ROOM)?;
        for n in 0..ROOM_BYTES >> 20 {
            file.write_at(&mut [IoSlice::new(&zeros)], n << 20)?;
        }
        file.sync_all()?;
        let all: io::Result<Vec<_>> = (0..DESCRIPTORS).map(|_| device.open(ROOM)).collect();
        all.map(drop)
    };
    let had = write().is_ok();
    // If it cannot be removed, the next attempt cannot make it.
    let gone = device.remove(ROOM).is_ok();
    had && gone
}

/// What to run: the file of this name. When a package was upgraded it is not there any more, and the
/// system adds something to its name; the program that runs is the same still.
fn program(named: Option<&Path>) -> PathBuf {
    let there = named.filter(|named| named.exists());
    there.unwrap_or(Path::new(OWN)).to_owned()
}

/// Whether a program can be run, seen in a child: an attempt in this process that fails leaves it one whom SIGPIPE
/// ends, as when a replica with TLS goes.
fn runs(program: &Path) -> io::Result<()> {
    let mut child = Command::new(program);
    child.arg("--version").stdin(Stdio::null());
    let ended = child.stdout(Stdio::null()).stderr(Stdio::null()).status();
    ended.map(drop)
}

/// The same program in the place of this one: a start is what puts a torn end right. Gives why it
/// could not be.
pub(crate) fn begin_anew() -> String {
    let program = program(env::current_exe().ok().as_deref());
    let mut args = env::args_os();
    let name = args.next().unwrap_or_else(|| program.clone().into());
    let error = match runs(&program) {
        Ok(()) => Command::new(&program).arg0(name).args(args).exec(),
        Err(error) => error,
    };
    format!(
        "The relay cannot begin anew ({}): {error}. It is tried again each minute; what is stored is served meanwhile. Start it again.",
        program.display()
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_program_that_cannot_be_run() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("dromon");
        assert!(runs(&file).is_err());
        fs::write(&file, "#!/bin/sh\n").expect("writable");
        assert!(runs(&file).is_err());
        assert!(runs(Path::new("/bin/true")).is_ok());
    }

    #[test]
    fn a_program_that_was_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("dromon");
        fs::write(&file, "").expect("writable");
        assert_eq!(program(Some(&file)), file);
        fs::remove_file(&file).expect("there");
        let named = format!("{} (deleted)", file.display());
        let own = program(Some(Path::new(&named)));
        assert_eq!(own, program(None));
        // It is one that can be run: it lists these tests.
        let mut list = Command::new(own);
        let ran = list.arg("--list").stdout(Stdio::null()).status();
        assert!(ran.expect("a program").success());
    }

    #[test]
    fn it_is_tried_again() {
        let s = Duration::from_secs;
        let mut anew = Anew::new();
        assert!(!anew.is_due(s(4)));
        assert!(anew.is_due(s(5)) && !anew.is_due(s(9)));
        assert!(anew.is_due(s(10)) && anew.failed(s(10), "no such file"));
        assert!(!anew.is_due(s(69)));
        assert!(anew.is_due(s(70)) && !anew.failed(s(70), "no such file"));
        assert!(anew.is_due(s(130)) && anew.failed(s(130), "no memory"));
    }
}
