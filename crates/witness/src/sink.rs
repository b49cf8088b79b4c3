//! Where the lines of a witness's log go.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dromon_node::{Database, Level};

/// The system's log.
const SYSLOG: &str = "/dev/log";
/// Facility "daemon".
const FACILITY: u32 = 3 << 3;

/// One log.
#[derive(Debug)]
pub struct Sink {
    to: Mutex<To>,
}

#[derive(Debug)]
enum To {
    Terminal,
    File { path: PathBuf, file: File },
    System { path: PathBuf, socket: UnixDatagram },
}

impl Sink {
    /// Standard error.
    pub fn terminal() -> Self {
        Sink {
            to: Mutex::new(To::Terminal),
        }
    }

    /// Lines are appended to the file at `path`.
    pub fn file(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let file = open(&path)?;
        Ok(Sink {
            to: Mutex::new(To::File { path, file }),
        })
    }

    /// The system's log.
    pub fn system() -> io::Result<Self> {
        Self::system_at(Path::new(SYSLOG))
    }

    fn system_at(path: &Path) -> io::Result<Self> {
        let (path, socket) = (path.to_owned(), connect(path)?);
        Ok(Sink {
            to: Mutex::new(To::System { path, socket }),
        })
    }

    /// Opens the file anew: the old one was moved away.
    pub fn reopen(&self) -> io::Result<()> {
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        if let To::File { path, file } = &mut *to {
            *file = open(path)?;
        }
        Ok(())
    }
}

/// To a log that takes datagrams at `path`. A line that cannot be taken at once is lost; nobody may wait for it.
fn connect(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    socket.set_write_timeout(Some(Duration::from_millis(100)))?;
    Ok(socket)
}

fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(path)
}

impl Database for Sink {
    fn log(&self, level: Level, message: &str) {
        let (word, severity) = match level {
            Level::Error => ("ERROR", 3),
            Level::Warning => ("Warning", 4),
            Level::Note => ("Note", 5),
            Level::Debug => return,
        };
        let line = format!("{} [{word}] {message}\n", clock(SystemTime::now()));
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        // There is nowhere to say that a line could not be written.
        let _ = match &mut *to {
            To::Terminal => io::stderr().write_all(line.as_bytes()),
            To::File { file, .. } => file.write_all(line.as_bytes()),
            To::System { path, socket } => {
                let pid = std::process::id();
                let text = format!("<{}>dromon-witness[{pid}]: {message}", FACILITY | severity);
                let sent = socket.send(text.as_bytes()).map(drop);
                // Whoever took them may have been started anew, with a socket of its own.
                sent.or_else(|e| {
                    if e.kind() == io::ErrorKind::WouldBlock {
                        return Err(e);
                    }
                    *socket = connect(path)?;
                    socket.send(text.as_bytes()).map(drop)
                })
            }
        };
    }
}

/// `2026-11-22 06:05:20.123Z`.
fn clock(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, rest) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    format!(
        "{year}-{month:02}-{day:02} {:02}:{:02}:{:02}.{:03}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60,
        since.subsec_millis()
    )
}

/// Year, month and day that are `days` after the first of January 1970.
fn date(mut days: u64) -> (u64, u64, u64) {
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let mut year = 1970;
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let february = if leap(year) { 29 } else { 28 };
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in months {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let at = |secs: u64| clock(UNIX_EPOCH + Duration::from_millis(secs * 1000 + 7));
        assert_eq!(at(0), "1970-01-01 00:00:00.007Z");
        assert_eq!(at(951_782_399), "2000-02-28 23:59:59.007Z");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00.007Z");
        assert_eq!(at(1_795_327_520), "2026-11-22 06:05:20.007Z");
    }

    #[test]
    fn the_systems_log_may_be_started_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log");
        let listen = || {
            let socket = UnixDatagram::bind(&path).expect("a new socket");
            let limit = Some(Duration::from_secs(10));
            socket.set_read_timeout(limit).expect("a socket's option");
            socket
        };
        let takes = |socket: &UnixDatagram, text: &str| {
            let mut line = [0; 200];
            let n = socket.recv(&mut line).expect("a line");
            let line = String::from_utf8_lossy(&line[..n]);
            assert!(line.starts_with('<') && line.ends_with(text), "{line}");
        };
        let first = listen();
        let sink = Sink::system_at(&path).expect("it is there");
        sink.log(Level::Note, "one");
        takes(&first, ": one");
        drop(first);
        sink.log(Level::Note, "nobody takes it");
        std::fs::remove_file(&path).expect("its name is there still");
        let second = listen();
        sink.log(Level::Error, "two");
        takes(&second, ": two");
    }

    #[test]
    fn a_file_is_appended_to_and_made_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("w.log");
        let sink = Sink::file(&path).expect("a new file");
        sink.log(Level::Note, "one");
        sink.log(Level::Debug, "not shown");
        let moved = dir.path().join("w.log.1");
        std::fs::rename(&path, &moved).expect("moved");
        sink.reopen().expect("made again");
        sink.log(Level::Error, "two");
        let old = std::fs::read_to_string(moved).expect("there");
        assert!(old.ends_with("Z [Note] one\n"), "{old}");
        let new = std::fs::read_to_string(path).expect("there");
        assert!(new.ends_with("Z [ERROR] two\n"), "{new}");
        assert_eq!(new.lines().count(), 1);
    }
}
