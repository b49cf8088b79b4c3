//! Asks the storage engine what it contains, after a crash.
//!
//! Nobody else knows: the state file says only that the node was running. The
//! server's own binary answers with `--wsrep-recover`, which opens the engines,
//! writes the position to its log and ends; it never loads a provider. This
//! runs while the starting server has not opened its engines yet. With
//! wsrep_sst_method=mysqldump it opens them first: nobody can ask them then.
//!
//! It is asked without its binary log. A server that has one takes from it what to keep of the transactions
//! that were prepared, and appliers prepare in any order: where the binary log reaches further than the
//! engine's own log (`innodb_flush_log_at_trx_commit` 0 or 2), or lacks what appliers did (`log_slave_updates`
//! off), it would keep a later one without an earlier one, and its position says that it has both. Without,
//! it keeps what follows its position without a gap.
//!
//! Where the binary log has all that is committed, and nothing that is not prepared for good, it is asked with
//! that ([`Settings::binlog_decides`]): else what it keeps is not what whoever follows this node gets.
//!
//! Older servers do not undo what is behind such a gap: they end, and leave it to whoever runs them, as all of them
//! do with what was not replicated (`wsrep_on=0`). Which of the two it is they do not say. So where the binary log may
//! have what lacks an earlier one, they are told to undo all that is prepared, and asked anew.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dromon_node::{ASK_ENGINE, Position};

use crate::notify::ServiceManager;

/// Crash recovery of a large database takes its time, but not for ever.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Options of the running server that the recovering one must not have, and whether the value
/// is the next word where none stands behind a `=`.
const DROPPED: [(&str, bool); 6] = [
    ("wsrep-new-cluster", false),
    ("wsrep-start-position", true),
    ("wsrep-recover", false),
    ("log-error", false),
    ("pid-file", true),
    ("socket", true),
];

/// A server without its binary log ends with these words where transactions of its own (`wsrep_on=0`) are prepared,
/// and an older one where a later transaction is without an earlier one.
const PREPARED: &str = "prepared transactions!";

/// What a server warns of that does not undo what is prepared without an earlier one (nor what was not replicated). Those
/// that undo it say the same in a Note.
const GAP: &str = "[Warning] WSREP: Discovered discontinuity in recovered wsrep transaction";

/// Undoes what is prepared, and ends without telling the position.
const UNDO_PREPARED: &str = "--tc-heuristic-recover=ROLLBACK";

/// How often whoever started the server hears that it takes longer.
const TOLD: Duration = Duration::from_secs(5);

/// The engine's position, or why it is not known. `say` gets progress; the
/// `manager` is told that it takes its time.
pub(crate) fn position(
    data_dir: &Path,
    say: &dyn Fn(&str),
    manager: &ServiceManager,
) -> Result<Position, String> {
    if engine_runs() {
        return Err(runs_already());
    }
    let exe = fs::read_link("/proc/self/exe").map_err(|e| format!("the server's binary: {e}"))?;
    let cmdline =
        fs::read("/proc/self/cmdline").map_err(|e| format!("the server's options: {e}"))?;
    let at = |name: &str| data_dir.join(name).to_string_lossy().into_owned();
    let (log, pid) = (at("dromon-recover.log"), at("dromon-recover.pid"));
    let mut args = args_of(&cmdline, &pid);
    // It would look for them from here.
    if let Some(began) = std::env::var_os("PWD") {
        make_absolute(&mut args, Path::new(&began));
    }
    args.extend(
        std::env::current_dir()
            .ok()
            .and_then(|here| stands_in(&here, data_dir)),
    );
    let remove = || {
        for file in [&log, &pid] {
            let _ = fs::remove_file(file); // may never have been there
        }
    };
    remove();
    let ask = |how: How| {
        let mut args = args.clone();
        args.extend(how.options().iter().map(|o| (*o).to_owned()));
        let outcome = run(&exe, &args, &log, manager)
            .map_err(Unsaid::from)
            .and_then(|()| read_position(Path::new(&log)));
        remove();
        outcome
    };
    let mut help = args.clone();
    help.retain(|arg| arg != "--wsrep-recover");
    help.extend(["--verbose", "--help"].map(str::to_owned));
    // Who cannot tell this is asked as if it had no binary log.
    let settings = run(&exe, &help, &log, manager)
        .and_then(|()| fs::read(&log).map_err(|e| e.to_string()))
        .map(|text| Settings(String::from_utf8_lossy(&text).into_owned()))
        .unwrap_or_default();
    remove();
    asked(&settings, &ask, say, &|| manager.told_to_stop())
}

/// How a server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    WithBinlog,
    WithoutBinlog,
    /// Not for an answer.
    Undoing,
}

impl How {
    fn options(self) -> &'static [&'static str] {
        match self {
            How::WithBinlog => &[],
            How::WithoutBinlog => &["--skip-log-bin"],
            How::Undoing => &["--skip-log-bin", UNDO_PREPARED],
        }
    }
}

/// Why a server did not tell its position.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unsaid {
    why: String,
    /// Whether a later transaction is prepared without an earlier one.
    gap: bool,
}

impl From<String> for Unsaid {
    fn from(why: String) -> Self {
        Unsaid { why, gap: false }
    }
}

impl Unsaid {
    /// Whether it is for another to decide what becomes of what is prepared.
    fn undecided(&self) -> bool {
        self.why.contains(PREPARED)
    }
}

/// Asks in the ways that a server needs, until it answers as it may be believed.
fn asked(
    settings: &Settings,
    ask: &dyn Fn(How) -> Result<Position, Unsaid>,
    say: &dyn Fn(&str),
    stops: &dyn Fn() -> bool,
) -> Result<Position, String> {
    if settings.binlog_decides() {
        say("asking the storage engine for its position (--wsrep-recover), with its binary log");
        match ask(How::WithBinlog) {
            Err(Unsaid { why, .. }) if !stops() => say(&format!(
                "it does not tell its position with its binary log ({why}): asking again without"
            )),
            outcome => return outcome.map_err(|unsaid| unsaid.why),
        }
    }
    say("asking the storage engine for its position (--wsrep-recover --skip-log-bin)");
    let mut outcome = ask(How::WithoutBinlog);
    let gap = matches!(&outcome, Err(unsaid) if unsaid.undecided() && unsaid.gap);
    // Else the binary log has nothing whose earlier ones the engine had not prepared for good.
    let for_good = settings.prepares_for_good();
    let undo = gap && for_good == Some(false) && !stops();
    if undo {
        say(&format!(
            "it has prepared a later transaction without an earlier one, or what was not replicated (wsrep_on=0), and this \
             server leaves both: it is told to undo what is prepared ({UNDO_PREPARED}), and asked again. What was \
             replicated comes again from the cluster's log"
        ));
        // It ends as one that failed, whatever came of it.
        let _ = ask(How::Undoing);
        outcome = ask(How::WithoutBinlog);
    }
    match outcome {
        Err(Unsaid { why, .. }) if undo && why.contains(PREPARED) => Err(format!(
            "it has prepared a later transaction without an earlier one, and does not undo that, nor with {UNDO_PREPARED}. By its \
             binary log it would keep the later one without the earlier one, so it is not asked with that ({why})"
        )),
        Err(Unsaid { why, .. }) if gap && for_good.is_none() => Err(format!(
            "it has prepared a later transaction without an earlier one, or what was not replicated (wsrep_on=0), and does not \
             tell its settings, which decide what is to become of that ({why})"
        )),
        Err(unsaid) if unsaid.undecided() && !stops() => {
            say(
                "it has prepared what was not replicated, which its binary log decides: asking again with that",
            );
            ask(How::WithBinlog).map_err(|unsaid| unsaid.why)
        }
        outcome => outcome.map_err(|unsaid| unsaid.why),
    }
}

/// The options with which the server of this command line is asked.
fn args_of(cmdline: &[u8], pid: &str) -> Vec<String> {
    let mut args = options_of(cmdline);
    args.push("--wsrep-recover".into());
    // To stderr, which goes to a file of ours.
    args.push("--disable-log-error".into());
    // The position is told in a Note.
    args.push("--skip-silent-startup".into());
    args.push("--skip-networking".into());
    // Nor a socket, whose path may be too long.
    args.push("--socket=".into());
    args.push(format!("--pid-file={pid}"));
    args
}

/// Files of options that the server found from where it was started, as it would not from its data directory, in which
/// it stands by now.
fn make_absolute(args: &mut [String], began: &Path) {
    for arg in args {
        if let Some((option, file)) = arg.split_once('=')
            && ["--defaults-file", "--defaults-extra-file"].contains(&option)
            && Path::new(file).is_relative()
            && began.join(file).is_file()
        {
            *arg = format!("{option}={}", began.join(file).display());
        }
    }
}

/// The option that leads to `data_dir` from anywhere, if this process stands there, as a server does in its data
/// directory. The options that led there may be relative. (The state file's directory may be another one.)
fn stands_in(here: &Path, data_dir: &Path) -> Option<String> {
    let same = fs::canonicalize(data_dir).ok()? == fs::canonicalize(here).ok()?;
    same.then(|| format!("--datadir={}", here.display()))
}

/// What a server's settings are, in the words of its own help.
#[derive(Default)]
struct Settings(String);

impl Settings {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| {
            let mut words = line.split_ascii_whitespace();
            (words.next() == Some(name)).then(|| words.next())?
        })
    }

    /// Whether the binary log has all that is committed, that of the appliers too, and the engine's
    /// own log has prepared for good whatever is in it. What was in force before a crash was the
    /// same, unless somebody had set it meanwhile.
    fn binlog_decides(&self) -> bool {
        let has_binlog = self
            .get("log-bin")
            .is_some_and(|name| !["0", "(No"].contains(&name));
        has_binlog
            && self.get("log-slave-updates") == Some("TRUE")
            && self.prepares_for_good() == Some(true)
    }

    /// Whether what is prepared survives any crash; `None`: nothing is known of the settings.
    fn prepares_for_good(&self) -> Option<bool> {
        let flush = self.get("innodb-flush-log-at-trx-commit")?;
        Some(["1", "3"].contains(&flush))
    }
}

/// What is said where nobody can look.
fn runs_already() -> String {
    format!(
        "it runs already (wsrep_sst_method=mysqldump needs it), so that nobody else can look. Stop the server, run \
         '{ASK_ENGINE}' and start it with --wsrep-start-position=<the recovered position>"
    )
}

/// Whether this process has opened the files of the storage engine.
fn engine_runs() -> bool {
    let Ok(open) = fs::read_dir("/proc/self/fd") else {
        return false; // then the files are locked, and it takes longer to find out
    };
    open.flatten()
        .filter_map(|fd| fs::read_link(fd.path()).ok())
        .any(|file| is_of_engine(&file))
}

fn is_of_engine(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("ibdata") || name.starts_with("ib_logfile")
}

/// The options in a command line (as `/proc` has it, each word ended by NUL) that the recovering
/// server shares.
fn options_of(cmdline: &[u8]) -> Vec<String> {
    let words = cmdline.strip_suffix(&[0]).unwrap_or(cmdline);
    let words = words.split(|b| *b == 0).skip(1);
    let mut words = words.map(|w| String::from_utf8_lossy(w).into_owned());
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match dropped(&word) {
            None => kept.push(word),
            Some(true) => drop(words.next()),
            Some(false) => {}
        }
    }
    kept
}

/// Whether an option is left out, and then whether the next word belongs to it.
fn dropped(word: &str) -> Option<bool> {
    let name = word.strip_prefix("--")?.replace('_', "-");
    let name = name.strip_prefix("loose-").unwrap_or(&name);
    let (name, valued) = match name.split_once('=') {
        Some((name, _)) => (name, true),
        None => (name, false),
    };
    let (_, takes_next) = DROPPED.iter().find(|(dropped, _)| *dropped == name)?;
    Some(*takes_next && !valued)
}

fn run(exe: &Path, args: &[String], log: &str, manager: &ServiceManager) -> Result<(), String> {
    let out = fs::File::create(log).map_err(|e| format!("{log}: {e}"))?;
    let both = out.try_clone().map_err(|e| format!("{log}: {e}"))?;
    let mut command = Command::new(exe);
    command
        .args(args)
        .env_remove("NOTIFY_SOCKET")
        .env_remove("LISTEN_FDS")
        .stdin(Stdio::null())
        .stdout(both)
        .stderr(out);
    // One that outlived this server would keep the engine's files locked before the next.
    let mut child = dromon_wsrep::process::spawn_with_thread(&mut command)
        .map_err(|e| format!("{} did not start: {e}", exe.display()))?;
    let deadline = Instant::now() + PATIENCE;
    let mut told: Option<Instant> = None;
    loop {
        if manager.told_to_stop() {
            end(&mut child);
            return Err("this server was told to stop meanwhile".into());
        }
        if told.is_none_or(|at| at.elapsed() >= TOLD) {
            told = Some(Instant::now());
            manager.more_time("the storage engine recovers");
        }
        match child.try_wait() {
            Ok(Some(_)) => return Ok(()),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(50)),
            Ok(None) => {
                end(&mut child);
                return Err(format!("it did not end within {} s", PATIENCE.as_secs()));
            }
            Err(e) => return Err(format!("waiting for it: {e}")),
        }
    }
}

/// An engine that is killed amid its recovery begins anew the next time.
fn end(child: &mut Child) {
    let _ = child.kill(); // it may end this very moment
    let _ = child.wait();
}

fn read_position(log: &Path) -> Result<Position, Unsaid> {
    let text = fs::read(log).map_err(|e| format!("its log {}: {e}", log.display()))?;
    answer(&String::from_utf8_lossy(&text))
}

/// What a server said that was asked.
fn answer(text: &str) -> Result<Position, Unsaid> {
    if let Some(position) = text.lines().rev().find_map(Position::in_recovered_line) {
        return Ok(position);
    }
    Err(Unsaid {
        why: last_error(text).to_owned(),
        gap: text.contains(GAP),
    })
}

/// What a server's log says last of what went wrong, but for its good-bye.
fn last_error(log: &str) -> &str {
    let errors = || {
        log.lines()
            .filter_map(|l| Some(l.split_once("[ERROR] ")?.1))
    };
    errors()
        .rfind(|e| *e != "Aborting")
        .or_else(|| errors().next_back())
        .or(log.lines().next_back())
        .unwrap_or("it ended without a word")
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use dromon_writeset::Seqno;

    use super::*;

    #[test]
    fn the_line_of_the_server_is_read() {
        let line = "2026-11-21 22:17:25 0 [Note] WSREP: Recovered position: \
                    4c23a442-2c81-445d-9638-2706ef389008:29768,0-1-5";
        let position = Position::in_recovered_line(line).expect("a position");
        assert_eq!(position.seqno, 29768);
        assert_eq!(
            position.history.to_string(),
            "4c23a442-2c81-445d-9638-2706ef389008"
        );
        assert_eq!(
            Position::in_recovered_line("WSREP: Recovered position: nonsense"),
            None
        );
    }

    /// A server that has prepared transactions with an earlier one missing (`gapped`), or that were
    /// not replicated (`own`), and how it was asked.
    struct Server {
        gapped: Cell<bool>,
        own: Cell<bool>,
        /// It undoes by itself what is behind a gap.
        newer: bool,
        /// Told to undo it, it fails.
        stuck: bool,
        asked: RefCell<Vec<How>>,
    }

    impl Server {
        fn new(gapped: bool, own: bool, newer: bool) -> Self {
            Server {
                gapped: Cell::new(gapped),
                own: Cell::new(own),
                newer,
                stuck: false,
                asked: RefCell::default(),
            }
        }

        fn ask(&self, how: How) -> Result<Position, Unsaid> {
            const HISTORY: &str = "4c23a442-2c81-445d-9638-2706ef389008";
            self.asked.borrow_mut().push(how);
            let prepared = self.gapped.get() || self.own.get();
            let level = if self.newer { "Note" } else { "Warning" };
            let mut log = match prepared {
                true => format!(
                    "0 [{level}] WSREP: Discovered discontinuity in recovered wsrep transaction XIDs. Truncating the \
                     recovery list to 0 entries\n"
                ),
                false => String::new(),
            };
            let mut seqno = 5;
            match how {
                // As if all were committed.
                How::WithBinlog if self.gapped.get() => seqno = 9,
                How::WithBinlog => {}
                How::Undoing => {
                    self.gapped.set(self.gapped.get() && self.stuck);
                    self.own.set(false);
                    log.push_str("0 [ERROR] Can't init tc log\n0 [ERROR] Aborting\n");
                    return answer(&log);
                }
                How::WithoutBinlog => {
                    self.gapped.set(self.gapped.get() && !self.newer);
                    if self.gapped.get() || self.own.get() {
                        log.push_str("0 [ERROR] Found 2 prepared transactions! It means that server was not\n0 [ERROR] Aborting\n");
                        return answer(&log);
                    }
                }
            }
            log.push_str(&format!(
                "0 [Note] WSREP: Recovered position: {HISTORY}:{seqno}\n"
            ));
            answer(&log)
        }

        /// Where it stands, by the answers that it gives at this innodb_flush_log_at_trx_commit.
        fn position(&self, flush: u8) -> Result<Seqno, String> {
            self.position_by(&format!("innodb-flush-log-at-trx-commit {flush}\n"), false)
        }

        /// The same by these settings; `stops`: whoever started it tells it to end.
        fn position_by(&self, settings: &str, stops: bool) -> Result<Seqno, String> {
            let ask = |how| self.ask(how);
            let outcome = asked(&Settings(settings.into()), &ask, &|_| (), &|| stops);
            outcome.map(|position| position.seqno)
        }
    }

    #[test]
    fn an_older_server_is_told_to_undo_what_is_behind_a_gap() {
        for (own, flush) in [(false, 0), (false, 2), (true, 2)] {
            let server = Server::new(true, own, false);
            assert_eq!(server.position(flush), Ok(5));
            let asked = server.asked.take();
            assert!(!asked.contains(&How::WithBinlog), "{asked:?}");
        }
        let undoing = How::Undoing.options();
        assert!(undoing.contains(&"--skip-log-bin"), "{undoing:?}");
    }

    #[test]
    fn what_was_not_replicated_is_for_the_binary_log_to_decide() {
        // A newer one may have had a gap besides. At 1 all that is in the binary log is prepared.
        let servers = [
            (true, true, 2),
            (false, true, 0),
            (false, false, 1),
            (false, false, 3),
        ];
        for (gapped, newer, flush) in servers {
            let server = Server::new(gapped, true, newer);
            assert_eq!(server.position(flush), Ok(5));
            assert_eq!(
                server.asked.take(),
                [How::WithoutBinlog, How::WithBinlog],
                "{gapped} {newer} {flush}"
            );
        }
    }

    #[test]
    fn nothing_is_undone_where_the_settings_are_not_known_or_the_server_is_to_stop() {
        let known = "innodb-flush-log-at-trx-commit 0\n";
        for (settings, stops, words) in [("", false, "settings"), (known, true, PREPARED)] {
            let server = Server::new(true, true, false);
            let why = server.position_by(settings, stops);
            let why = why.expect_err("nobody knows what it has");
            assert!(why.contains(words) && !why.contains(UNDO_PREPARED), "{why}");
            assert_eq!(server.asked.take(), [How::WithoutBinlog]);
        }
    }

    #[test]
    fn a_server_that_keeps_what_is_behind_a_gap_is_not_asked_with_its_binary_log() {
        let server = Server {
            stuck: true,
            ..Server::new(true, false, false)
        };
        let why = server.position(0).expect_err("nobody knows what it has");
        assert!(why.contains("without an earlier one"), "{why}");
        assert!(!server.asked.take().contains(&How::WithBinlog));
    }

    #[test]
    fn what_went_wrong_is_told_without_the_good_bye() {
        let log = "2026-11-23 16:29:12 0 [ERROR] InnoDB: Unable to lock ./ibdata1 error: 11\n\
                   2026-11-23 16:29:12 0 [Note] InnoDB: Retrying\n\
                   2026-11-23 16:29:12 0 [ERROR] Aborting\n";
        assert_eq!(
            last_error(log),
            "InnoDB: Unable to lock ./ibdata1 error: 11"
        );
        assert_eq!(last_error("0 [ERROR] Aborting\n"), "Aborting");
        assert_eq!(last_error("Killed\n"), "Killed");
        assert_eq!(last_error(""), "it ended without a word");
    }

    #[test]
    fn an_engine_that_runs_is_asked_without_its_binary_log_too() {
        let said = runs_already();
        assert!(said.contains("--wsrep-recover --skip-log-bin"), "{said}");
    }

    #[test]
    fn an_engine_that_runs_here_is_not_asked() {
        assert!(!engine_runs());
        let dir = std::env::temp_dir().join(format!("dromon-recover-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let file = fs::File::create(dir.join("ibdata1")).expect("a file");
        let seen = engine_runs();
        drop(file);
        fs::remove_dir_all(&dir).expect("it was made here");
        assert!(seen);
    }

    /// The position is a Note, which options of the user's may silence.
    #[test]
    fn the_server_that_is_asked_answers() {
        let args = args_of(b"mariadbd\0--silent-startup\0--socket=/x\0", "/p");
        let last = |name: &str| args.iter().rev().find(|a| a.contains(name)).cloned();
        assert_eq!(last("silent-startup"), Some("--skip-silent-startup".into()));
        assert_eq!(last("socket"), Some("--socket=".into()));
        assert!(ASK_ENGINE.ends_with(" --skip-silent-startup"));
    }

    #[test]
    fn the_binary_log_decides_where_it_has_all_and_nothing_more() {
        let help = |log_bin: &str, updates: &str, flush: &str| {
            Settings(format!(
                "  --log-bin[=name]    Log update queries in binary format\n\
                 innodb-flush-log-at-trx-commit                               {flush}\n\
                 log-bin                                                      {log_bin}\n\
                 log-bin-compress                                             FALSE\n\
                 log-slave-updates                                            {updates}\n"
            ))
        };
        assert!(help("binlog", "TRUE", "1").binlog_decides());
        assert!(!help("binlog", "TRUE", "2").binlog_decides());
        assert!(!help("binlog", "TRUE", "0").binlog_decides());
        assert!(!help("binlog", "FALSE", "1").binlog_decides());
        assert!(!help("0", "TRUE", "1").binlog_decides());
        assert!(!help("(No default value)", "TRUE", "1").binlog_decides());
        assert!(!Settings::default().binlog_decides());
    }

    #[test]
    fn what_led_from_where_the_server_began_leads_from_its_data_directory_too() {
        let dir = std::env::temp_dir().join(format!("dromon-relative-{}", std::process::id()));
        let data = dir.join("data");
        fs::create_dir_all(&data).expect("a directory");
        fs::write(dir.join("my.cnf"), "").expect("a file");
        let words = "mariadbd\0--defaults-file=my.cnf\0--defaults-extra-file=none.cnf\0--port=1\0";
        let mut args = options_of(words.as_bytes());
        make_absolute(&mut args, &dir);
        let given = dir.join(".").join("data");
        let (there, elsewhere) = (stands_in(&data, &given), stands_in(&dir, &given));
        fs::remove_dir_all(&dir).expect("it was made here");
        let file = format!("--defaults-file={}/my.cnf", dir.display());
        assert_eq!(args, [&file, "--defaults-extra-file=none.cnf", "--port=1"]);
        assert_eq!(there, Some(format!("--datadir={}", data.display())));
        assert_eq!(elsewhere, None, "it has not gone there");
    }

    #[test]
    fn options_of_the_running_server_are_left_out() {
        let of = |words: &[&str]| {
            let line: String = words.iter().map(|w| format!("{w}\0")).collect();
            options_of(line.as_bytes())
        };
        let line = [
            "/usr/sbin/mariadbd",
            "--defaults-file=/etc/my.cnf",
            "--wsrep-new-cluster",
            "--datadir=/var/lib/mysql",
            "--wsrep_start_position=x:1",
            "--log-error=/tmp/a",
            "--log-error",
            "--loose-pid-file=x",
            "--wsrep-recover",
            "--user",
            "mysql",
        ];
        let kept = [
            "--defaults-file=/etc/my.cnf",
            "--datadir=/var/lib/mysql",
            "--user",
            "mysql",
        ];
        assert_eq!(of(&line), kept);
        // A value may be a word of its own, as many a container has it; the server refuses one
        // that is left over.
        let line = [
            "mariadbd",
            "--socket",
            "/run/x.sock",
            "--pid_file",
            "/run/x.pid",
            "--user",
            "socket",
            "--init-file",
            "",
            "--wsrep-start-position",
            "x:1",
            "--wsrep-new-cluster",
            "--port=1",
            "--socket",
        ];
        let kept = ["--user", "socket", "--init-file", "", "--port=1"];
        assert_eq!(of(&line), kept);
        assert!(of(&["mariadbd"]).is_empty() && of(&[]).is_empty());
    }
}
