//! A replica from its start to its end.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dromon_binlog::Position;
use dromon_relay::log::{Level, Log, Seldom};
use dromon_relay::pull::Backoff;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::client::{Account, Client, ClientError};
use crate::config::Config;
use crate::engine::{Activity, Conflict, End, Progress, session};
use crate::http;

/// A session that lived so long was a success.
const LIVED: Duration = Duration::from_secs(10);
/// How long a start waits for a thread that this host does not give.
const NO_THREAD: Duration = Duration::from_secs(30);
/// How often the source is asked where it is, as long as it answers.
const ASK: Duration = Duration::from_millis(200);
/// When it has been behind for so long, it says what it did meanwhile.
const CATCH_UP: Duration = Duration::from_secs(10);

const WHERE: &str = "SELECT @@gtid_binlog_pos";
const RELAY_WHERE: &str = "SELECT @@gtid_binlog_pos, @@dromon_relay_lag_ms";
const RELAY_LAG: &str = "SELECT @@dromon_relay_lag_ms";
const UNKNOWN_VARIABLE: u16 = 1193;

/// A replica cannot start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The log of messages.
    #[error("messages cannot be written to {}: {source}. Choose a file with log = …", path.display())]
    Log {
        /// Where to.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The port of HTTP.
    #[error("HTTP cannot be answered on {address}: {source}. Choose another one with http = …")]
    Http {
        /// Which.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The system does not let it.
    #[error("the replica cannot {what}: {source}")]
    System {
        /// Do what.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Runs until it is told to end, or has caught up if that was wanted. Gives whether all went well.
///
/// # Errors
/// [`RunError`]: it could not start.
pub fn run(config: &Config) -> Result<bool, RunError> {
    let log = match &config.log {
        None => Log::terminal(),
        Some(path) => Log::file(path).map_err(|source| RunError::Log {
            path: path.clone(),
            source,
        })?,
    };
    // A name may be looked up for long: a signal that nobody catches yet ends that.
    let bind = |address: &String| {
        TcpListener::bind(address).map_err(|source| RunError::Http {
            address: address.clone(),
            source,
        })
    };
    let listener = config.http.as_ref().map(bind).transpose()?;
    let told = Told::by_signals().map_err(no_signals)?;
    match follow_with_threads(config, &log, &told, listener) {
        Err(error) if told.is_told() => {
            let text = format!("Ends, as told, before it has begun: {error}.");
            log.say(Level::Note, &text);
            Ok(true)
        }
        done => done,
    }
}

/// Whether signals tell the process to end. There may be no thread that waits for them yet, nor for long.
struct Told {
    at_once: Arc<AtomicBool>,
    signals: Arc<Mutex<Signals>>,
}

impl Told {
    fn by_signals() -> io::Result<Told> {
        // Those that come from here on are kept for the thread, too.
        let signals = Arc::new(Mutex::new(Signals::new([SIGTERM, SIGINT])?));
        let at_once = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&at_once))?;
        }
        Ok(Told { at_once, signals })
    }

    fn is_told(&self) -> bool {
        self.at_once.load(Ordering::Acquire)
    }
}

fn no_signals(source: io::Error) -> RunError {
    let what = "wait for signals";
    RunError::System { what, source }
}

/// Runs, once signals are caught. `listener`: HTTP's.
fn follow_with_threads(
    config: &Config,
    log: &Log,
    told: &Told,
    listener: Option<TcpListener>,
) -> Result<bool, RunError> {
    let is_told = || told.is_told();
    patiently(log, NO_THREAD, is_told, || log.reopen_at_hangup()).map_err(no_signals)?;
    let progress = Arc::new(Progress::default());
    if let (Some(address), Some(listener)) = (&config.http, listener) {
        let listener = Arc::new(listener);
        let (l, s, p) = (log.clone(), config.settings.clone(), Arc::clone(&progress));
        start(log, told, "http-listen", move || {
            http::serve(&listener, &l, s, p)
        })?;
        log.say(Level::Note, &format!("Answers HTTP on {address}."));
    }
    let (signals, ends) = (Arc::clone(&told.signals), Arc::clone(&progress));
    start(log, told, "signals", move || {
        let mut signals = signals.lock().unwrap_or_else(PoisonError::into_inner);
        if signals.forever().next().is_some() {
            ends.tell_to_end();
        }
    })?;
    let over = Arc::new(AtomicBool::new(false));
    let (asking, reporting) = {
        let (p, o) = (Arc::clone(&progress), Arc::clone(&over));
        let (c, l) = (config.clone(), log.clone());
        let asking = start(log, told, "goal", move || ask(&c, &p, &o, &l))?;
        let (p, o, c, l) = (
            Arc::clone(&progress),
            Arc::clone(&over),
            config.clone(),
            log.clone(),
        );
        let reporting = start(log, told, "report", move || report(&c, &p, &o, &l))?;
        (asking, reporting)
    };
    let began = Done::by_now(&progress);
    let well = follow(config, log, &progress);
    over.store(true, Ordering::Release);
    progress.set_end(if well { "as told" } else { "with an error" });
    let _ = asking.join();
    let _ = reporting.join();
    log.say(Level::Note, &Done::by_now(&progress).since(&began));
    Ok(well)
}

/// Starts a thread that lives as long as the replica.
fn start(
    log: &Log,
    told: &Told,
    name: &str,
    run: impl FnOnce() + Clone + Send + 'static,
) -> Result<JoinHandle<()>, RunError> {
    let named = || thread::Builder::new().name(format!("dromon-{name}"));
    let spawn = || named().spawn(run.clone());
    let started = patiently(log, NO_THREAD, || told.is_told(), spawn);
    started.map_err(|source| RunError::System {
        what: "start a thread",
        source,
    })
}

/// Does what takes a thread. A host that has none to give may have one soon, as where many programs start at once.
/// Whoever is told to end waits for none.
fn patiently<T>(
    log: &Log,
    patience: Duration,
    is_told: impl Fn() -> bool,
    mut attempt: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let until = Instant::now() + patience;
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
    loop {
        let error = match attempt() {
            Err(error) if is_of_threads(&error) && Instant::now() < until && !is_told() => error,
            done => return done,
        };
        if backoff.failures() == 0 {
            let text = format!(
                "A thread cannot be started: {error}. This host has as many as it may have (RLIMIT_NPROC, TasksMax, pids.max), or no memory \
                 for one more. It tries again for {} s before it gives up.",
                patience.as_secs()
            );
            log.say(Level::Warning, &text);
        }
        thread::sleep(backoff.failed(u32::MAX));
    }
}

/// Whether the system had no thread to give, or no memory for it.
fn is_of_threads(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory
    )
}

/// Sessions one after the other.
struct Retries {
    backoff: Backoff,
    said: Seldom,
}

impl Retries {
    fn new(limit: Duration) -> Retries {
        Retries {
            backoff: Backoff::new(Duration::from_millis(100), limit),
            said: Seldom::default(),
        }
    }

    /// One ended that `lasted` so long. `waits`: something had run out; `applied`: it has applied something before.
    /// Gives how long to wait.
    fn ended(&mut self, lasted: Duration, waits: bool, applied: bool, random: u32) -> Duration {
        // What runs out late, in a long statement, is no less there: it would be begun again and again without a pause.
        if lasted > LIVED && (applied || !waits) {
            self.backoff.succeeded();
            self.said = Seldom::default();
        } else if applied && !waits {
            // It goes on, though in pieces.
            self.backoff.succeeded();
        }
        self.backoff.failed(random)
    }

    /// What to say of that; nothing, if the same was said a moment ago.
    fn say(&mut self, pause: Duration, why: &str) -> Option<String> {
        let line = self.said.happened(&format!("{why}."), Instant::now())?;
        Some(format!(
            "Begins again in {:.1} s: {line}",
            pause.as_secs_f64()
        ))
    }
}

fn follow(config: &Config, log: &Log, progress: &Arc<Progress>) -> bool {
    let mut retries = Retries::new(config.settings.source.backoff_max);
    let applied = || progress.counters.units.load(Ordering::Relaxed);
    loop {
        let (began, before) = (Instant::now(), applied());
        let (why, waits) = match session(&config.settings, log, progress) {
            End::Told => {
                log.say(Level::Note, "Ends, as told.");
                return true;
            }
            End::Fatal(why) => {
                log.say(Level::Error, &why);
                return false;
            }
            End::Again(why) => {
                // What it lacked before is not what ended it now.
                progress.session_has_all();
                (why, false)
            }
            End::Waits(waits) => {
                let why = format!("{}. It waits for {}", waits.why, waits.what);
                progress.waits(waits);
                (why, true)
            }
        };
        if progress.is_told() {
            return true;
        }
        let random = getrandom::u32().unwrap_or(1 << 31);
        let pause = retries.ended(began.elapsed(), waits, applied() > before, random);
        if let Some(line) = retries.say(pause, &why) {
            log.say(Level::Warning, &line);
        }
        let until = Instant::now() + pause;
        while Instant::now() < until {
            if progress.is_told() {
                return true;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Asks the source now and then where it is.
fn ask(config: &Config, progress: &Progress, over: &AtomicBool, log: &Log) {
    let source = &config.settings.source;
    let account = Account {
        address: source.address.clone(),
        user: source.wish.user.clone(),
        password: source.wish.password.clone(),
        tls: source.tls.clone(),
        patience: source.dead_after,
    };
    let mut client: Option<(Client, &str)> = None;
    // One that lets nobody in is not asked more often than it is followed.
    let mut backoff = Backoff::new(ASK, source.backoff_max);
    let mut due = Instant::now();
    let mut said = false;
    while !over.load(Ordering::Acquire) {
        thread::sleep(Duration::from_millis(20));
        if Instant::now() < due {
            if config.until_caught_up && progress.is_there() {
                progress.tell_to_end();
            }
            continue;
        }
        due = Instant::now() + ASK;
        if client.is_none() {
            let connected = Client::connect(&account).and_then(|client| {
                client.limit(account.patience)?;
                asking(client)
            });
            client = match connected {
                Ok(connected) => Some(connected),
                // One that is away is said by whoever follows it; one that lets in no second
                // connection is not.
                Err(error) if error.code().is_some() && !said => {
                    said = true;
                    let text = format!(
                        "The source cannot be asked where it is: {error}. Until it can, the lag is by the clocks, and nobody knows \
                         whether all is applied."
                    );
                    log.say(Level::Warning, &text);
                    None
                }
                Err(_) => None,
            };
        }
        let asked = Instant::now();
        let answer = client
            .as_mut()
            .and_then(|(connected, question)| connected.rows(question).ok());
        match answer {
            Some(rows) => {
                backoff.succeeded();
                let mut cells = rows.into_iter().flatten().map(|cell| {
                    let bytes = cell.unwrap_or_default();
                    String::from_utf8_lossy(&bytes).into_owned()
                });
                let goal = cells.next().unwrap_or_default();
                // One that does not know how far it is behind says nothing.
                let behind = cells.next().map_or(Some(0), |text| text.parse().ok());
                if let Ok(goal) = goal.parse::<Position>() {
                    progress.goal(asked, goal, behind);
                }
            }
            None => {
                client = None;
                due = Instant::now() + backoff.failed(getrandom::u32().unwrap_or(1 << 31));
            }
        }
    }
}

/// With what to ask a source: a relay knows how far it is behind.
fn asking(mut client: Client) -> Result<(Client, &'static str), ClientError> {
    match client.one(RELAY_LAG) {
        Ok(_) => Ok((client, RELAY_WHERE)),
        Err(error) if error.code() == Some(UNKNOWN_VARIABLE) => Ok((client, WHERE)),
        Err(error) => Err(error),
    }
}

fn report(config: &Config, progress: &Progress, over: &AtomicBool, log: &Log) {
    let mut second = Instant::now();
    let mut line = Instant::now();
    let terminal = config.log.is_none() && io::stderr().is_terminal();
    // Since when it is behind.
    let mut behind: Option<Done> = None;
    // The newest conflict that the log has.
    let mut told: Option<Conflict> = None;
    let mut unwritten = Seldom::default();
    loop {
        let last = over.load(Ordering::Acquire);
        match progress.is_there() {
            false => {
                behind.get_or_insert_with(|| Done::by_now(progress));
            }
            true => {
                let long = behind.take().filter(|b| b.at.elapsed() >= CATCH_UP);
                if let Some(before) = long {
                    let done = Done::by_now(progress).since(&before);
                    log.say(Level::Note, &format!("Caught up: {done}"));
                }
            }
        }
        if second.elapsed() >= Duration::from_secs(1) || last {
            second = Instant::now();
            progress.second();
            if let Some(path) = &config.status {
                // Beside it, under no other status's name.
                let mut aside = path.clone().into_os_string();
                aside.push(".new");
                let aside = PathBuf::from(aside);
                let write = || {
                    let text = format!("{:#}\n", progress.status(&config.settings).json());
                    closed(&aside)?.write_all(text.as_bytes())?;
                    fs::rename(&aside, path)
                };
                if let Err(error) = write() {
                    let text = format!(
                        "The status cannot be written to {}: {error}.",
                        path.display()
                    );
                    log.say_seldom(&mut unwritten, Level::Warning, &text);
                }
            }
            if terminal {
                // On a terminal one line that changes.
                let _ = write!(io::stderr(), "\r\x1b[K{}", progress.line());
            }
        }
        if last {
            if terminal {
                let _ = writeln!(io::stderr());
            }
            return;
        }
        if !terminal && !config.progress.is_zero() && line.elapsed() >= config.progress {
            line = Instant::now();
            log.say(Level::Note, &format!("{}.", progress.line()));
            // With what it is about: only here, as who asks for the status need not log in.
            if let Some(newest) = progress.conflict()
                && told.as_ref() != Some(&newest)
            {
                log.say(Level::Note, &format!("The newest conflict: {newest}."));
                told = Some(newest);
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// A new file that is closed to others.
fn closed(path: &Path) -> io::Result<File> {
    // One that a crash left has the mode that it has.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o640).open(path)
}

/// What was done up to a moment.
struct Done {
    at: Instant,
    transactions: u64,
    units: u64,
    /// By keys, by locks, by errors.
    gave_way: [u64; 3],
    singles: u64,
    repaired: u64,
    stalls: Vec<(&'static str, u64)>,
    workers: [u64; Activity::ALL.len()],
}

impl Done {
    fn by_now(progress: &Progress) -> Done {
        let c = &progress.counters;
        let get = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
        Done {
            at: Instant::now(),
            transactions: get(&c.transactions),
            units: get(&c.units),
            gave_way: [get(&c.by_keys), get(&c.by_lock), get(&c.by_error)],
            singles: get(&c.singles),
            repaired: get(&c.repaired),
            stalls: progress.stalls().named().to_vec(),
            workers: std::array::from_fn(|n| get(&c.workers[n])),
        }
    }

    /// What was done since an earlier moment, and where the time went.
    fn since(&self, before: &Done) -> String {
        let took = (self.at - before.at).as_secs_f64();
        let stalls = self.stalls.iter().zip(&before.stalls);
        let time: Vec<String> = stalls
            .map(|((name, us), (_, before))| format!("{name} {:.1} s", (us - before) as f64 / 1e6))
            .collect();
        let workers: Vec<String> = Activity::ALL
            .iter()
            .map(|(doing, name)| {
                let of = |done: &Done| done.workers[*doing as usize];
                format!("{name} {:.1} s", (of(self) - of(before)) as f64 / 1e6)
            })
            .collect();
        let transactions = self.transactions - before.transactions;
        let gave_way = |n: usize| self.gave_way[n] - before.gave_way[n];
        format!(
            "{transactions} transactions in {took:.1} s ({:.0}/s) as {} of the target; gave way: {} by keys, {} by locks, {} by errors; tried row \
             by row: {}; repaired rows: {}. Time by cause: {}. Of all workers together: {}.",
            transactions as f64 / took.max(0.001),
            self.units - before.units,
            gave_way(0),
            gave_way(1),
            gave_way(2),
            self.singles - before.singles,
            self.repaired - before.repaired,
            time.join(", "),
            workers.join(", "),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::AtomicUsize;

    use dromon_relay::given::Given;

    use super::*;
    use crate::config::REPLICA;
    use crate::fake_target::{Fake, Reply};

    /// What runs out late, each time, is not begun again without a pause; what goes on is.
    #[test]
    fn pauses_between_sessions() {
        let limit = Duration::from_secs(10);
        let long = Duration::from_secs(3600);
        let after = |lasted, waits, applied| {
            let mut retries = Retries::new(limit);
            let mut pause = Duration::ZERO;
            for _ in 0..20 {
                pause = retries.ended(lasted, waits, applied, u32::MAX);
            }
            pause
        };
        assert_eq!(after(long, true, false), limit);
        assert!(after(long, true, true) < Duration::from_secs(1));
        assert!(after(long, false, false) < Duration::from_secs(1));
        // One that ends soon, and has applied something, is no attempt that failed.
        let short = Duration::from_secs(1);
        assert!(after(short, false, true) < Duration::from_secs(1));
        assert_eq!(after(short, false, false), limit);
        assert_eq!(after(short, true, true), limit);
        // It is said at once, and then now and then.
        let mut retries = Retries::new(limit);
        let said = retries.say(limit, "no room").expect("it is news");
        assert_eq!(said, "Begins again in 10.0 s: no room.");
        assert_eq!(retries.say(limit, "no room"), None);
        assert!(retries.say(limit, "no thread").is_some());
    }

    /// A host that has no thread to give when the replica starts.
    #[test]
    fn a_start_waits_for_threads() {
        let (log, long) = (Log::terminal(), Duration::from_secs(3600));
        let short_of = |times: u32, kind: io::ErrorKind, patience| {
            let mut tried = 0;
            let done = patiently(
                &log,
                patience,
                || false,
                || {
                    tried += 1;
                    match tried > times {
                        true => Ok(tried),
                        false => Err(kind.into()),
                    }
                },
            );
            (done.map_err(|error| error.kind()), tried)
        };
        for kind in [io::ErrorKind::WouldBlock, io::ErrorKind::OutOfMemory] {
            assert_eq!(short_of(3, kind, long), (Ok(4), 4));
            // It is not waited for without an end.
            assert_eq!(short_of(1, kind, Duration::ZERO), (Err(kind), 1));
        }
        let refused = io::ErrorKind::PermissionDenied;
        assert_eq!(short_of(1, refused, long), (Err(refused), 1));
    }

    /// Whoever is told to end by a signal while no thread is given, not even one that would hear of it, ends.
    #[test]
    fn a_start_that_waits_for_threads_hears_signals() {
        let (log, told) = (Log::terminal(), Told::by_signals().expect("handlers"));
        let mut tried = 0;
        let began = Instant::now();
        let attempt = || -> io::Result<()> {
            tried += 1;
            if tried == 2 {
                signal_hook::low_level::raise(SIGTERM)?;
            }
            Err(io::ErrorKind::WouldBlock.into())
        };
        let done = patiently(&log, Duration::from_secs(20), || told.is_told(), attempt);
        assert_eq!(
            done.map_err(|error| error.kind()),
            Err(io::ErrorKind::WouldBlock)
        );
        assert!(began.elapsed() < Duration::from_secs(10));
        assert_eq!(tried, 2);
        // Whoever listens later has it, too.
        let mut signals = told.signals.lock().expect("nobody panics");
        assert_eq!(signals.pending().next(), Some(SIGTERM));
    }

    /// A target that has run out of something all night: the status says of what, and it ends only when told.
    #[test]
    fn what_is_waited_for_is_said() {
        let target = Fake::new(|text| (text == "connect").then_some(Reply::Fail(1135)));
        let mut given = Given::new(&REPLICA);
        let address = format!("target={}", target.account().address);
        let rest = [
            "source=127.0.0.1:1",
            "source_user=r",
            "server_id=7",
            "target_user=t",
        ];
        for line in [&*address].iter().chain(&rest) {
            given.line(line, "here".into()).expect("a setting");
        }
        let config = Config::settle(&given).expect("enough");
        let progress = Arc::new(Progress::default());
        let (status, line, ended) = thread::scope(|scope| {
            let runs = scope.spawn(|| follow(&config, &Log::terminal(), &progress));
            let status = loop {
                let status = progress.status(&config.settings);
                if status.waits_for.is_some() || runs.is_finished() {
                    break status;
                }
                thread::sleep(Duration::from_millis(1));
            };
            let line = progress.line();
            progress.tell_to_end();
            (status, line, runs.join().expect("no panic"))
        });
        let said = status.json();
        let what = said["waits_for"].as_str().unwrap_or_default();
        assert!(what.contains("a thread on the target"), "{said}");
        assert!(said["waits_seconds"].is_u64(), "{said}");
        let ready = status.ready(u64::MAX);
        assert!(!ready.good && ready.why.contains(what), "{ready:?}");
        assert!(status.metrics().contains("dromon_replica_waiting 1\n"));
        assert!(
            line.contains("It waits for a thread on the target"),
            "{line}"
        );
        assert!(ended, "it was told to end");
    }

    /// A target that lets in, and does not answer its first question, is no reason not to end.
    #[test]
    fn a_target_that_is_silent_from_the_start_holds_up_no_end() {
        let first = "SELECT CONNECTION_ID()";
        let target = Fake::new(move |text| (text == first).then_some(Reply::Silence));
        let settings = crate::fake_target::settings(&target, &[]);
        let progress = Arc::new(Progress::default());
        let told = Arc::clone(&progress);
        let runs = thread::spawn(move || session(&settings, &Log::terminal(), &progress));
        let long = Instant::now() + Duration::from_secs(10);
        while !target.said().iter().any(|text| text == first) {
            assert!(Instant::now() < long, "it must ask");
            thread::sleep(Duration::from_millis(1));
        }
        told.tell_to_end();
        while !runs.is_finished() {
            assert!(Instant::now() < long, "it must end");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// A source that lets nobody in, night after night.
    #[test]
    fn who_lets_nobody_in_is_asked_more_and_more_seldom() {
        let attempts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&attempts);
        let source = Fake::new(move |text| {
            (text == "connect").then(|| {
                counted.fetch_add(1, Ordering::Relaxed);
                Reply::Fail(1045)
            })
        });
        let mut given = Given::new(&REPLICA);
        let address = format!("source={}", source.account().address);
        let rest = [
            "source_user=r",
            "server_id=7",
            "target=b:2",
            "target_user=t",
        ];
        for line in [&*address].iter().chain(&rest) {
            given.line(line, "here".into()).expect("a setting");
        }
        let config = Config::settle(&given).expect("enough");
        let log = Log::file(Path::new("/dev/null")).expect("there");
        let (progress, over) = (Progress::default(), AtomicBool::new(false));
        let began = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| ask(&config, &progress, &over, &log));
            thread::sleep(Duration::from_millis(2500));
            over.store(true, Ordering::Release);
        });
        // At once, and then after at least 0.1, 0.2, 0.4 and 0.8 s.
        let asked = attempts.load(Ordering::Relaxed);
        let most = 1 + (began.elapsed().as_secs_f64() / 0.1 + 1.0).log2() as usize;
        assert!((1..=most).contains(&asked), "{asked}");
    }

    /// The status names accounts' hosts, tables and keys of tables: no stranger's business.
    #[test]
    fn the_status_is_closed_to_others() {
        let path = std::env::temp_dir().join(format!("dromon-status-{}", std::process::id()));
        for mode in [0o666, 0o600] {
            // Also if there is one, of a crash.
            let _ = fs::write(&path, "old");
            let _ = fs::set_permissions(&path, fs::Permissions::from_mode(mode));
            let mut file = closed(&path).expect("it is made");
            file.write_all(b"new").expect("writable");
            let found = fs::metadata(&path).expect("there").permissions().mode();
            assert_eq!(found & 0o137, 0, "{found:o}");
            assert_eq!(fs::read_to_string(&path).expect("there"), "new");
        }
        fs::remove_file(&path).expect("there");
    }
}
