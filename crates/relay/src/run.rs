//! A relay from its start to its end.

use std::fs;
use std::io::{self, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dromon_log::DirDevice;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::Config;
use crate::http::HttpServer;
use crate::log::{Level, Log};
use crate::pull::{Desk, Following, Login, PositionKind, Puller, read_for_ever};
use crate::serve::{Registry, Server};
use crate::store::{Limits, Opened, Store, StoreError, View};

/// Known replicas, across restarts.
const REPLICAS: &str = "dromon-relay.replicas";
/// How often is looked what may go.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// For each packet of the answer when the primary's tables are read.
const TABLES_LIMIT: Duration = Duration::from_secs(60);

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
        "the file {} is damaged ({what}). It says what known replicas need. Remove it: then nothing is held for a replica \
         until it connects again", path.display()
    )]
    Replicas {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        what: String,
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
    let unusable = |source| RunError::Dir {
        path: config.dir.clone(),
        source,
    };
    fs::create_dir_all(&config.dir).map_err(unusable)?;
    let device = Arc::new(DirDevice::open(&config.dir).map_err(unusable)?);
    let (store, opened) = Store::open(device, config.store.clone(), config.start.clone())?;
    report(&log, &store, &opened);
    let path = config.dir.join(REPLICAS);
    let registry = load(&path, config.hold.as_secs())?;
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
    let mut housekeeping = Housekeeping {
        server: Arc::clone(&server),
        view: Arc::clone(&view),
        keep: config.keep,
        forget: config.forget.map(|f| f.as_secs()),
        path,
        log: log.clone(),
        last: Instant::now(),
        held: 0,
    };
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
    let system = |what| move |source| RunError::System { what, source };
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(system("wait for signals"))?;
    let told = Arc::new(AtomicBool::new(false));
    {
        let (following, told) = (Arc::clone(&following), Arc::clone(&told));
        thread::Builder::new()
            .name("dromon-signals".into())
            .spawn(move || {
                if signals.forever().next().is_some() {
                    told.store(true, Ordering::Release);
                    Following::stop(&following);
                }
            })
            .map_err(system("start a thread"))?;
    }
    if let Some(desk) = desk {
        let login = Login {
            address: config.source.address.clone(),
            user: config.source.wish.user.clone(),
            password: config.source.wish.password.clone(),
            tls: config.source.tls.clone(),
            limit: TABLES_LIMIT,
        };
        let kind = match config.store.mirror {
            true => PositionKind::ByFile(config.store.prefix.clone()),
            false => PositionKind::ByGtid,
        };
        let log = log.clone();
        thread::Builder::new()
            .name("dromon-tables".into())
            .spawn(move || read_for_ever(&desk, &login, &kind, &log))
            .map_err(system("start a thread"))?;
    }
    if let Some(address) = &config.http {
        let http = Arc::new(HttpServer {
            address: config.source.address.clone(),
            heartbeat: config.source.wish.heartbeat,
            server: Arc::clone(&server),
            view: Arc::clone(&view),
            following: Arc::clone(&following),
            watch: config.watch.clone(),
            log: log.clone(),
        });
        let listener = TcpListener::bind(address).map_err(|source| RunError::Http {
            address: address.clone(),
            source,
        })?;
        thread::Builder::new()
            .name("dromon-http-listen".into())
            .spawn(move || http.listen(&listener))
            .map_err(system("start a thread"))?;
        log.say(Level::Note, &format!("Answers HTTP on {address}."));
    }
    thread::Builder::new()
        .name("dromon-listen".into())
        .spawn(move || server.listen(&listener))
        .map_err(system("start a thread"))?;
    log.say(
        Level::Note,
        &format!("Serves replicas on {}.", config.listen),
    );
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new()
        .name("dromon-pull".into())
        .spawn(move || {
            // Nobody listens any more when the process ends.
            let _ = sender.send(puller.run());
        })
        .map_err(system("start a thread"))?;
    match receiver.recv() {
        Ok(Ok(())) => {
            log.say(Level::Note, "Ends, as told.");
            Ok(true)
        }
        result => {
            // What is on the disk goes on being served: replicas need it more than ever.
            let why = match result {
                Ok(Err(error)) => error.to_string(),
                _ => "the thread that pulls has panicked".to_owned(),
            };
            log.say(
                Level::Error,
                &format!("Nothing more is stored ({why}). What is stored is served until the relay is told to end."),
            );
            while !told.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(200));
            }
            Ok(false)
        }
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
            match store.state().position() {
                position if position.is_empty() => "nothing".to_owned(),
                position => position.to_string(),
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
        Err(e) => Err(damaged(e.to_string())),
        Ok(text) => Registry::parse(&text, hold).map_err(damaged),
    }
}

/// Retention, and what is known of replicas.
struct Housekeeping {
    server: Arc<Server>,
    view: Arc<View>,
    keep: Limits,
    forget: Option<u64>,
    path: PathBuf,
    log: Log,
    last: Instant,
    held: usize,
}

impl Housekeeping {
    fn now_and_then(&mut self) -> Result<(), StoreError> {
        if self.last.elapsed() < HOUSEKEEPING {
            return Ok(());
        }
        self.last = Instant::now();
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = since.unwrap_or_default().as_secs();
        let (forgotten, needed, text) = {
            let mut registry = self.server.registry();
            let forgotten = registry.tick(now, self.forget);
            let text = registry.take_changed().then(|| registry.text());
            (forgotten, registry.needed(), text)
        };
        for id in forgotten {
            self.log.say(
                Level::Warning,
                &format!("Replica {id} was away for too long and is forgotten."),
            );
        }
        if let Some(text) = text {
            self.save(&text)?;
        }
        let (gone, held) = self.view.purge(self.keep, needed.map(|n| n.0), now)?;
        if let [first, .., last] | [first @ last] = &gone[..] {
            self.log
                .say(Level::Note, &format!("Purged {first} to {last}."));
        }
        if held > self.held
            && let Some((file, id)) = needed
        {
            self.log.say(
                Level::Warning,
                &format!(
                    "{held} files would be purged, but replica {id} needs {} and what follows. If it is gone for good, set \
                     forget = … or keep_size_hard = ….",
                    self.view.name(file)
                ),
            );
        }
        self.held = held;
        Ok(())
    }

    /// Written aside, then renamed: it is there as a whole, old or new.
    fn save(&self, text: &str) -> Result<(), StoreError> {
        let aside = self.path.with_extension("replicas.new");
        let write = || {
            let mut file = fs::File::create(&aside)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&aside, &self.path)
        };
        write().map_err(StoreError::io("write", REPLICAS))
    }
}
