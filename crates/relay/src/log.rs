//! Lines for people: to standard error, or a file.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

/// Most characters of a line.
const LINE_MAX: usize = 8192;
/// So long what goes on happening is not said again.
const AGAIN: Duration = Duration::from_secs(60);

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something does not work and will not by itself.
    Error,
    /// Something does not work; the relay goes on trying.
    Warning,
    /// For the record.
    Note,
}

/// A log. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Log {
    file: Option<Arc<Target>>,
}

#[derive(Debug)]
struct Target {
    path: PathBuf,
    file: Mutex<File>,
}

impl Target {
    fn open(path: &Path) -> io::Result<File> {
        File::options()
            .create(true)
            .append(true)
            .mode(0o640)
            .open(path)
    }
}

/// Something that happens again and again, many times in a second or all night, and is to be said now and
/// then. No clock here: the time is told.
#[derive(Debug, Default)]
pub struct Seldom {
    said: Option<(String, Instant)>,
    /// How often it was not said since then.
    since: u64,
}

impl Seldom {
    /// It happened. Gives what to say; nothing, if the same was said a moment ago.
    pub fn happened(&mut self, text: &str, now: Instant) -> Option<String> {
        let same = self.said.as_ref().filter(|(said, _)| said == text);
        if same.is_some_and(|(_, at)| now.saturating_duration_since(*at) < AGAIN) {
            self.since += 1;
            return None;
        }
        let line = match (same, std::mem::take(&mut self.since)) {
            (None, _) | (_, 0) => text.to_owned(),
            (_, since) => format!("{text} ({since} times more since that was said.)"),
        };
        self.said = Some((text.to_owned(), now));
        Some(line)
    }
}

impl Log {
    /// To standard error.
    pub fn terminal() -> Log {
        Log { file: None }
    }

    /// Appended to a file. A new one is closed to others: names, addresses and values of rows stand
    /// in it. One that is there keeps its mode.
    pub fn file(path: &Path) -> io::Result<Log> {
        let path = std::path::absolute(path)?;
        let file = Mutex::new(Target::open(&path)?);
        Ok(Log {
            file: Some(Arc::new(Target { path, file })),
        })
    }

    /// Opens the file anew: the old one was moved away.
    pub fn reopen(&self) -> io::Result<()> {
        if let Some(target) = &self.file {
            let new = Target::open(&target.path)?;
            *target.file.lock().unwrap_or_else(PoisonError::into_inner) = new;
        }
        Ok(())
    }

    /// From now on SIGHUP ends nothing: it has the file [opened anew](Log::reopen).
    pub fn reopen_at_hangup(&self) -> io::Result<()> {
        let mut signals = Signals::new([SIGHUP])?;
        let log = self.clone();
        let until_the_end = move || {
            for _ in signals.forever() {
                if let Err(error) = log.reopen() {
                    let text = format!("The log file cannot be opened anew: {error}.");
                    log.say(Level::Warning, &text);
                }
            }
        };
        thread::Builder::new()
            .name("dromon-reopen".into())
            .spawn(until_the_end)?;
        Ok(())
    }

    /// Writes a line about what goes on happening, if it is time.
    pub fn say_seldom(&self, seldom: &mut Seldom, level: Level, message: &str) {
        if let Some(line) = seldom.happened(message, Instant::now()) {
            self.say(level, &line);
        }
    }

    /// Writes a line. What others have sent may stand in it: it stays one line, of 8,192 characters at most.
    pub fn say(&self, level: Level, message: &str) {
        let word = match level {
            Level::Error => "ERROR",
            Level::Warning => "Warning",
            Level::Note => "Note",
        };
        let message: String = message
            .chars()
            .take(LINE_MAX)
            .map(|c| if c.is_control() { '?' } else { c })
            .collect();
        let line = format!("{} [{word}] {message}\n", clock(SystemTime::now()));
        // There is nowhere to say that a line could not be written.
        let _ = match &self.file {
            None => io::stderr().write_all(line.as_bytes()),
            Some(target) => target
                .file
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .write_all(line.as_bytes()),
        };
    }
}

/// `2026-11-22 06:05:20.123Z`.
fn clock(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:03}Z", utc(since.as_secs()), since.subsec_millis())
}

/// `2026-11-22 06:05:20`, of seconds since 1970.
pub(crate) fn utc(secs: u64) -> String {
    let (days, rest) = (secs / 86_400, secs % 86_400);
    let (year, month, day) = date(days);
    format!(
        "{year}-{month:02}-{day:02} {:02}:{:02}:{:02}",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

/// The date so many days after 1970-01-01 (Hinnant: chrono-compatible low-level date algorithms,
/// 2014; years from March on, so that the leap day is a year's last).
pub fn date(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, day) = (z / 146_097, z % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
    fn a_file_that_was_moved_away_is_made_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, old) = (dir.path().join("r.log"), dir.path().join("r.log.1"));
        let log = Log::file(&path).expect("writable");
        log.say(Level::Note, "one");
        std::fs::rename(&path, &old).expect("moved");
        log.say(Level::Note, "two");
        log.clone().reopen().expect("it can be made");
        log.say(Level::Note, "three");
        let lines = |path| -> Vec<String> {
            let text = std::fs::read_to_string(path).expect("there");
            text.lines().map(|l| l[25..].to_owned()).collect()
        };
        assert_eq!(lines(&old), ["[Note] one", "[Note] two"]);
        assert_eq!(lines(&path), ["[Note] three"]);
        // It goes on with what it has if there is no way.
        std::fs::remove_dir_all(dir.path()).expect("removed");
        log.reopen().expect_err("no directory");
        log.say(Level::Note, "four");
        Log::terminal().reopen().expect("nothing to do");
    }

    #[test]
    fn a_hangup_opens_the_file_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("r.log");
        let log = Log::file(&path).expect("writable");
        log.reopen_at_hangup().expect("a thread");
        std::fs::rename(&path, dir.path().join("old")).expect("moved");
        signal_hook::low_level::raise(SIGHUP).expect("sent");
        let until = Instant::now() + Duration::from_secs(60);
        while !path.exists() {
            assert!(Instant::now() < until, "it is not made again");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn what_goes_on_is_said_now_and_then() {
        let (mut seldom, start) = (Seldom::default(), Instant::now());
        let mut lines = Vec::new();
        for n in 0..1000 {
            lines.extend(seldom.happened("No.", start + AGAIN / 400 * n));
        }
        let more = "No. (399 times more since that was said.)";
        assert_eq!(lines, ["No.", more, more]);
        let mut at = |text: &str| seldom.happened(text, start + 4 * AGAIN);
        assert_eq!(at("Another.").as_deref(), Some("Another."));
        assert_eq!(at("Another."), None);
        assert_eq!(at("No.").as_deref(), Some("No."), "anew");
    }

    #[test]
    fn a_line_is_not_endless() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("r.log");
        let log = Log::file(&path).expect("writable");
        log.say(Level::Note, &"é".repeat(60_000));
        let text = std::fs::read_to_string(&path).expect("there");
        let line = text.strip_suffix('\n').expect("a line");
        assert_eq!(line.chars().count(), 32 + LINE_MAX);
    }

    #[test]
    fn a_file_is_appended_to() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("r.log");
        for word in ["one", "two\n2026-11-22 06:05:20.123Z [Note] three\u{1b}"] {
            Log::file(&path).expect("writable").say(Level::Note, word);
        }
        let text = std::fs::read_to_string(&path).expect("there");
        let lines: Vec<_> = text.lines().map(|l| &l[25..]).collect();
        assert_eq!(
            lines,
            [
                "[Note] one",
                "[Note] two?2026-11-22 06:05:20.123Z [Note] three?"
            ]
        );
        let mode = std::fs::metadata(path).expect("there").permissions().mode();
        assert_eq!(mode & 0o137, 0, "{mode:o}");
    }
}
