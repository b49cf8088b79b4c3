//! A relay from its start to its end.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dromon_log::{Device, DirDevice};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::anew::{Anew, begin_anew, has_room};
use crate::clock::Now;
use crate::config::Config;
use crate::descriptors;
use crate::housekeeping::{AT_ONCE, Housekeeping, Keep, UNLISTED, is_unlisted};
use crate::http::{HttpServer, Questions};
use crate::log::{Level, Log};
use crate::pull::{Desk, Following, Login, PositionKind, Puller, read_for_ever};
use crate::serve::{REPLICAS, Registry, Server};
use crate::store::{Kind, Opened, Store, StoreError};
use crate::watch::Watcher;

/// For each packet of the answer when the primary's tables are read.
const TABLES_LIMIT: Duration = Duration::from_secs(60);
/// How often a relay that stores nothing any more looks whether it may go on, or is to end.
const LOOK: Duration = Duration::from_millis(200);

/// A relay cannot start, or cannot go on.
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
    /// The directory.
    #[error("the directory {} cannot be used: {source}", path.display())]
    Dir {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What is in it.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// Known replicas.
    #[error(
        "the file {} is damaged ({what}). It says what known replicas need. Take keep_size, keep_age and keep_size_hard out \
         of the settings, remove that file, and start again: a replica is known again once it has connected. When SHOW KNOWN \
         REPLICAS lists all of them, put the settings back: what a replica needs that is not listed is purged as they say", path.display()
    )]
    Replicas {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The same, and nobody could look at them.
    #[error(
        "the file {} cannot be read: {source}. It says what known replicas need, and nothing shows that it is damaged: leave it \
         there. If it is another user's, as after a start by hand as root, give the directory and all in it back to the relay's \
         user (chown -R), and start again", path.display()
    )]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The port.
    #[error("replicas cannot connect to {address}: {source}. Choose another one with listen = …")]
    Listen {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The port of HTTP.
    #[error("HTTP cannot be answered on {address}: {source}. Choose another one with http = …")]
    Http {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The system does not let it.
    #[error("the relay cannot {what}: {source}")]
    System {
        /// Do what.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Runs until it is told to end. Gives whether all went well.
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
    log.reopen_at_hangup().map_err(system("wait for signals"))?;
    descriptors::raise(config.serve.connections_max, &log);
    let unusable = |source| RunError::Dir {
        path: config.dir.clone(),
        source,
    };
    fs::create_dir_all(&config.dir).map_err(unusable)?;
    let device: Arc<dyn Device> = Arc::new(DirDevice::open(&config.dir).map_err(unusable)?);
    let (store, opened) = Store::open(
        Arc::clone(&device),
        config.store.clone(),
        config.start.clone(),
    )?;
    report(&log, &store, &opened);
    let path = config.dir.join(REPLICAS);
    let mut registry = load(&path, config.hold.as_secs())?;
    let unlisted = !store.view().list().is_empty() && is_unlisted(&*device);
    registry.started(Now::default());
    let renumbered = registry.renumber(store.end().map(|end| end.file), store.first_file());
    let cannot_listen = |source| RunError::Listen {
        address: config.listen.clone(),
        source,
    };
    let listener = TcpListener::bind(&config.listen).map_err(cannot_listen)?;
    let port = listener.local_addr().map_err(cannot_listen)?.port();
    let view = store.view();
    let server = Server::new(
        config.serve.clone(),
        Arc::clone(&view),
        registry,
        log.clone(),
        port,
    );
    let keep = Keep {
        limits: config.keep,
        forget: config.forget.map(|f| f.as_secs()),
        device: Arc::clone(&device),
        at_once: AT_ONCE,
        unlisted_until: unlisted.then(|| Instant::now() + UNLISTED),
    };
    let mut housekeeping = Housekeeping::new(&server, &view, keep.clone(), &log);
    // Before anything is pulled: at another start nobody could tell which numbers the list has.
    if renumbered && let Err(error) = server.write_down() {
        log.say(Level::Warning, &error.to_string());
    }
    let every_now_and_then = Box::new(move || housekeeping.now_and_then());
    let desk = config.hints().then(Arc::<Desk>::default);
    let puller = Puller::new(
        config.source.clone(),
        store,
        log.clone(),
        every_now_and_then,
        desk.clone(),
    );
    let following = puller.following();
    server.follows(Arc::clone(&following));
    let told = end_when_told(&following)?;
    if let Some(desk) = desk {
        read_tables(desk, config, &log)?;
    }
    if let Some(watch) = &config.watch {
        let watcher = Watcher::new(&server, &view, watch.clone(), &log);
        spawn("watch", move || watcher.ask_for_ever())?;
    }
    if let Some(address) = &config.http {
        let http = HttpServer {
            address: config.source.address.clone(),
            server: Arc::clone(&server),
            view: Arc::clone(&view),
            following: Arc::clone(&following),
            watch: config.watch.clone(),
            questions: Questions::default(),
            log: log.clone(),
        };
        answer_http(address, http, &log)?;
    }
    let listening = Arc::clone(&server);
    spawn("listen", move || listening.listen(&listener))?;
    log.say(
        Level::Note,
        &format!("Serves replicas on {}.", config.listen),
    );
    let (sender, receiver) = mpsc::channel();
    spawn("pull", move || {
        // Nobody listens any more when the process ends.
        let _ = sender.send(puller.run());
    })?;
    let stopped = match receiver.recv() {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error),
        Err(_) => Some(StoreError::Panicked),
    };
    if let Some(why) = &stopped {
        view.fail(why);
        let housekeeping = Housekeeping::new(&server, &view, keep, &log);
        serve_what_is_there(why, housekeeping, &server, &*device, &told, &log);
    } else {
        log.say(Level::Note, "Ends, as told.");
    }
    remember(&server, &log);
    Ok(stopped.is_none())
}

fn system(what: &'static str) -> impl Fn(io::Error) -> RunError {
    move |source| RunError::System { what, source }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), RunError> {
    let named = thread::Builder::new().name(format!("dromon-{name}"));
    named.spawn(run).map(drop).map_err(system("start a thread"))
}

/// Stops following at a signal; true from then on.
fn end_when_told(following: &Arc<Mutex<Following>>) -> Result<Arc<AtomicBool>, RunError> {
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(system("wait for signals"))?;
    let told = Arc::new(AtomicBool::new(false));
    let (following, tells) = (Arc::clone(following), Arc::clone(&told));
    spawn("signals", move || {
        if signals.forever().next().is_some() {
            tells.store(true, Ordering::Release);
            Following::stop(&following);
        }
    })?;
    Ok(told)
}

/// Keeps what hints need to know of the primary's tables up to date.
fn read_tables(desk: Arc<Desk>, config: &Config, log: &Log) -> Result<(), RunError> {
    let login = Login {
        address: config.source.address.clone(),
        user: config.source.wish.user.clone(),
        password: config.source.wish.password.clone(),
        tls: config.source.tls.clone(),
        limit: TABLES_LIMIT,
        in_all: None,
    };
    let kind = match config.store.kind {
        Kind::Mirror => PositionKind::ByFile(config.store.prefix.clone()),
        Kind::MySql => PositionKind::BySet,
        Kind::MariaDb => PositionKind::ByGtid,
    };
    let log = log.clone();
    spawn("tables", move || read_for_ever(&desk, &login, &kind, &log))
}

fn answer_http(address: &str, http: HttpServer, log: &Log) -> Result<(), RunError> {
    let listener = TcpListener::bind(address).map_err(|source| RunError::Http {
        address: address.to_owned(),
        source,
    })?;
    let http = Arc::new(http);
    spawn("http-listen", move || http.listen(&listener))?;
    log.say(Level::Note, &format!("Answers HTTP on {address}."));
    Ok(())
}

/// Nothing more can be stored. What is on the disk goes on being served until the relay is told to end:
/// replicas need it more than ever. What passes, a full disk or a shortage of descriptors, does not end the
/// storing: it begins anew when there is room.
fn serve_what_is_there(
    why: &StoreError,
    mut housekeeping: Housekeeping,
    server: &Server,
    device: &dyn Device,
    told: &AtomicBool,
    log: &Log,
) {
    let (full, passes) = (why.is_full(), why.passes());
    let then = match (full, passes) {
        (true, _) => {
            "What is stored is served, old files go as they are to, and when there is room again the relay goes on by itself"
        }
        (false, true) => {
            "What is stored is served, and when there are descriptors and memory again the relay goes on by itself"
        }
        (false, false) => "What is stored is served until the relay is told to end",
    };
    log.say(
        Level::Error,
        &format!("Nothing more is stored ({why}). {then}."),
    );
    let mut anew = Anew::new();
    let began = Instant::now();
    while !told.load(Ordering::Acquire) {
        thread::sleep(LOOK);
        match full {
            true => housekeeping.now_and_then(),
            false => housekeeping.without_purging(),
        }
        if passes && anew.is_due(began.elapsed()) && has_room(device) {
            log.say(Level::Note, "There is room again: the relay begins anew.");
            remember(server, log);
            // The signal is used up: who begins in its place would not know of it.
            if told.load(Ordering::Acquire) {
                break;
            }
            let why = begin_anew();
            if anew.failed(began.elapsed(), &why) {
                log.say(Level::Error, &why);
            }
        }
    }
}

/// Writes down who was here until now.
fn remember(server: &Server, log: &Log) {
    let now = server.now();
    server.registry().tick(now, None);
    if let Err(error) = server.write_down() {
        log.say(Level::Warning, &error.to_string());
    }
}

fn report(log: &Log, store: &Store, opened: &Opened) {
    if let Some((file, at, bytes, why)) = &opened.torn {
        log.say(
            Level::Note,
            &format!(
                "The end of {file} was cut off at byte {at} ({bytes} bytes of a write that was not finished): {why} It is \
                 pulled again."
            ),
        );
    }
    if let Some(file) = &opened.shorter {
        log.say(
            Level::Warning,
            &format!("{file} was here before and is not any more. What was in it is pulled again."),
        );
    }
    let files = store.view().list();
    let bytes: u64 = files.iter().map(|f| f.bytes).sum();
    log.say(
        Level::Note,
        &format!(
            "{} files, {bytes} bytes, up to {}.",
            files.len(),
            match store.has() {
                has if has.is_empty() => "nothing".to_owned(),
                has => has,
            }
        ),
    );
}

fn load(path: &std::path::Path, hold: u64) -> Result<Registry, RunError> {
    let damaged = |what| RunError::Replicas {
        path: path.to_owned(),
        what,
    };
    match fs::read_to_string(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Registry::new(hold)),
        // It was read, and is no text.
        Err(e) if e.kind() == io::ErrorKind::InvalidData => Err(damaged(e.to_string())),
        Err(source) => Err(RunError::Unreadable {
            path: path.to_owned(),
            source,
        }),
        Ok(text) => Registry::parse(&text, hold).map_err(damaged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_cannot_be_read_is_not_called_damaged() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(REPLICAS);
        let said = || load(&path, 60).map(drop).map_err(|e| e.to_string());
        assert_eq!(said(), Ok(()), "there is none");
        for text in [&b"what"[..], b"\xff"] {
            fs::write(&path, text).expect("written");
            let said = said().expect_err("no list");
            assert!(said.contains("is damaged ("), "{said}");
        }
        fs::remove_file(&path).expect("removed");
        // Root can read every file, but no directory.
        fs::create_dir(&path).expect("made");
        let said = said().expect_err("it cannot be read");
        assert!(said.contains("cannot be read: "), "{said}");
        assert!(said.contains("chown -R"), "{said}");
        assert!(!said.contains("is damaged ("), "{said}");
        assert!(!said.contains("remove"), "{said}");
    }
}
