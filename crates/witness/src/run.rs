//! A witness from its start to its end.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dromon_node::options::ClusterAddress;
use dromon_node::spool::MapFile;
use dromon_node::tcp::{Brake, Host, Tcp};
use dromon_node::{
    ConnectError, Database, FINISH, Level, Node, OpenError, Phase, Position, QUEUE_HERE, Setup,
};
use dromon_wsrep::MappedFile;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::Config;
use crate::daemon;
use crate::place::{self, PlaceError};
use crate::sink::Sink;

/// Pause before it connects again after a failure that may pass.
const AGAIN: Duration = Duration::from_secs(2);
/// How often it looks how it is.
const LOOK: Duration = Duration::from_millis(200);
/// How long connecting may take to notice that it is over.
const NOTICE: Duration = Duration::from_secs(5);
/// What a system may not let it.
const TAKE_NOTE: &str = "take note of signals";

/// A witness cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The directory.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Options or state.
    #[error("{0}")]
    Open(String),
    /// The log of messages.
    #[error("messages cannot be written to {to}: {source}. Choose a file with --log")]
    Sink {
        /// Where to.
        to: String,
        /// Why.
        source: io::Error,
    },
    /// The system does not let it.
    #[error("the witness cannot {what}: {source}")]
    System {
        /// Do what.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Where only the servers' allowlist keeps strangers out.
const LETS_IN: &str = "this witness has neither the cluster's secret (dromon.secret_file) nor encryption \
     (socket.ssl_*), and knows no allowlist, which is in the servers: whoever reaches its port and knows the cluster's \
     name is let in. Give all nodes and the witness the secret, or let only the nodes reach the port (a firewall)";

/// The process around the node's engines.
struct Process {
    sink: Arc<Sink>,
}

impl Host for Process {
    fn event(&self, text: &str) {
        self.sink.log(Level::Note, text);
    }

    fn admit(&self, _ip: IpAddr) -> Result<(), String> {
        Ok(()) // the allowlist is a server's: see LETS_IN
    }

    fn map_file(&self) -> MapFile {
        Arc::new(|file, len| Ok(Bytes::from_owner(MappedFile::open(file, len)?)))
    }

    fn recover_position(&self, _data_dir: &Path) -> Result<Position, String> {
        Err("a witness has no storage engine".into())
    }

    // The kernel counts it, for the whole process.
    fn forget_memory_peak(&self) {}

    fn memory(&self) -> (u64, u64) {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name));
            let number = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
            number.unwrap_or(0) * 1024
        };
        (kib("VmRSS:"), kib("VmHWM:"))
    }

    fn brake(&self) -> Option<Arc<dyn Brake>> {
        None // it ends at once, without a report
    }
}

/// Takes note of SIGHUP. It ends a process that does not, and a service manager takes that
/// for an end in order: so this comes before whatever may last.
///
/// # Errors
/// [`StartError::System`].
pub fn heed_hangups() -> Result<Signals, StartError> {
    Signals::new([SIGHUP]).map_err(|source| StartError::System {
        what: TAKE_NOTE,
        source,
    })
}

/// Runs a witness until it is told to stop (SIGTERM, SIGINT), an operator
/// evicts it, or it cannot go on. `signals`: what came since [`heed_hangups`].
///
/// # Errors
/// What keeps it from starting.
pub fn run(config: &Config, mut signals: Signals) -> Result<ExitCode, StartError> {
    let system = |what| move |source| StartError::System { what, source };
    // While somebody looks, and before anything is made.
    check_address(&config.address)?;
    if config.daemon && !daemon::is_detached() {
        return daemon::start().map_err(system("start itself as a daemon"));
    }
    if config.daemon {
        daemon::leave_session();
    }
    let place = place::take(&config.dir)?;
    let sink = Arc::new(open_sink(config)?);
    for ends in [SIGTERM, SIGINT] {
        signals.add_signal(ends).map_err(system(TAKE_NOTE))?;
    }
    let address = with_ports(&config.address, &config.options, &place.dir);
    let setup = Setup {
        name: config.name.clone(),
        incoming: String::new(),
        address: place::own_address(&config.options, &address, &place.dir),
        data_dir: place.dir.clone(),
        position: Position::UNDEFINED,
        witness: true,
        finish: FINISH,
        queue_here: QUEUE_HERE,
    };
    let host = Arc::new(Process { sink: sink.clone() });
    let engines = Box::new(Tcp::new(host));
    let node = Node::open(sink.clone(), engines, setup, &config.options).map_err(|e| {
        StartError::Open(match e {
            OpenError::Option(e) => format!("--options: {e}"),
            e => e
                .to_string()
                .replace("wsrep_provider_options:", "--options:"),
        })
    })?;
    if config.force_primary {
        node.force_primary();
    }
    let settings = node.settings();
    sink.log(
        Level::Note,
        &format!(
            "dromon witness {}: '{}' of cluster '{}', log in {}, listens at {}, is reached at {}",
            env!("CARGO_PKG_VERSION"),
            config.name,
            config.group,
            settings.log_dir.display(),
            settings.listen,
            settings.advertised
        ),
    );
    if settings.secret_file.as_os_str().is_empty() && !settings.tls.enabled {
        sink.log(Level::Warning, LETS_IN);
    }
    if config.daemon {
        daemon::stands().map_err(system("leave the terminal"))?;
    }

    let (events, happened) = mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let worker = Worker {
        node: node.clone(),
        sink: sink.clone(),
        stop: stop.clone(),
        group: config.group.clone(),
        address,
    };
    let ended = events.clone();
    let serving = thread::Builder::new()
        .name("witness".into())
        .spawn(move || {
            // Nobody listens any more once a signal was heeded.
            let _ = ended.send(Event::Ended(worker.serve()));
        });
    serving.map_err(system("start a thread"))?;
    let listening = thread::Builder::new()
        .name("witness-signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                if events.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        });
    listening.map_err(system("start a thread"))?;
    let code = wait(&node, &sink, &stop, &happened);
    drop(place);
    Ok(code)
}

fn check_address(address: &str) -> Result<(), StartError> {
    if address.is_empty() {
        return Ok(());
    }
    let parsed = ClusterAddress::parse(address);
    let parsed = parsed.map_err(|e| StartError::Open(format!("--address: {e}")))?;
    match parsed.founds() {
        true => Err(StartError::Open(format!(
            "--address: {}",
            ConnectError::NothingToFound
        ))),
        false => Ok(()),
    }
}

/// What the main thread waits for.
enum Event {
    Signal(i32),
    /// The worker is done: why.
    Ended(End),
}

/// Why a witness ends by itself.
enum End {
    /// It was told to.
    Told,
    /// An operator evicted it.
    Expelled,
    /// It cannot go on.
    Failed(String),
}

fn wait(
    node: &Arc<Node>,
    sink: &Sink,
    stop: &AtomicBool,
    happened: &mpsc::Receiver<Event>,
) -> ExitCode {
    loop {
        match happened.recv() {
            Ok(Event::Signal(SIGHUP)) => {
                if let Err(e) = sink.reopen() {
                    sink.log(
                        Level::Error,
                        &format!("the log file cannot be opened anew: {e}"),
                    );
                }
                read_again(node, sink);
            }
            Ok(Event::Signal(_)) => {
                sink.log(Level::Note, "told to stop; leaving the cluster");
                stop.store(true, Ordering::Relaxed);
                let began = Instant::now();
                node.disconnect();
                // It may be in the middle of connecting.
                while began.elapsed() < NOTICE {
                    match happened.recv_timeout(Duration::from_millis(100)) {
                        Ok(Event::Ended(_)) | Err(mpsc::RecvTimeoutError::Disconnected) => break,
                        Ok(Event::Signal(_)) | Err(mpsc::RecvTimeoutError::Timeout) => {}
                    }
                }
                node.disconnect();
                sink.log(Level::Note, "stopped; the log stays for the next start");
                return ExitCode::SUCCESS;
            }
            Ok(Event::Ended(end)) => {
                node.disconnect();
                return match end {
                    End::Told => ExitCode::SUCCESS,
                    End::Expelled => {
                        sink.log(Level::Error, "evicted by an operator; ends for good");
                        ExitCode::SUCCESS
                    }
                    End::Failed(why) => {
                        sink.log(Level::Error, &why);
                        sink.log(Level::Error, "the witness ends; its log stays as it is");
                        ExitCode::FAILURE
                    }
                };
            }
            Err(_) => return ExitCode::FAILURE,
        }
    }
}

/// Takes new files of encryption and secret. A server is told so by SQL; a witness takes none.
fn read_again(node: &Node, sink: &Sink) {
    let settings = node.settings();
    if !settings.tls.enabled && settings.secret_file.as_os_str().is_empty() {
        return;
    }
    match node.set_options("socket.ssl_reload=1") {
        Ok(()) => sink.log(
            Level::Note,
            "SIGHUP: the files of socket.ssl and dromon.secret_file were read again; new connections use them",
        ),
        Err(why) => sink.log(
            Level::Error,
            &format!("SIGHUP: files of socket.ssl or dromon.secret_file cannot be used, and what was in use stays: {why}"),
        ),
    }
}

/// The thread that connects and looks after the connection.
struct Worker {
    node: Arc<Node>,
    sink: Arc<Sink>,
    stop: Arc<AtomicBool>,
    group: String,
    address: String,
}

impl Worker {
    fn serve(&self) -> End {
        loop {
            if let Some(end) = self.connect() {
                return end;
            }
            self.sink.log(
                Level::Note,
                "member of the cluster: votes and stores the log",
            );
            if let Some(end) = self.look_after() {
                return end;
            }
            self.node.disconnect();
            thread::sleep(AGAIN);
        }
    }

    fn told(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Connects, as often as it takes; an end if it never will.
    fn connect(&self) -> Option<End> {
        loop {
            let result = self.node.connect(&self.group, &self.address, "", false);
            if self.told() {
                return Some(End::Told);
            }
            let Err(error) = result else { return None };
            let passing = matches!(
                error,
                ConnectError::NoPrimary { .. }
                    | ConnectError::JoinTimeout { .. }
                    | ConnectError::JoinRefused { .. }
                    | ConnectError::DamagedAlone { .. }
                    | ConnectError::OtherBuild { .. }
                    | ConnectError::LedByOtherBuild { .. }
                    | ConnectError::Evicted
            );
            if !passing || self.node.settings().wait_prim_timeout_given {
                return Some(End::Failed(error.to_string()));
            }
            self.sink
                .log(Level::Note, &format!("{error}. Trying again"));
            thread::sleep(AGAIN);
        }
    }

    /// Returns when the connection is over; an end if there is to be no other.
    fn look_after(&self) -> Option<End> {
        loop {
            thread::sleep(LOOK);
            if self.told() {
                return Some(End::Told);
            }
            if let Some(why) = self.node.engine_failure() {
                return Some(End::Failed(format!(
                    "the ordering engine failed: {why}. The others go on; this witness acknowledges nothing any more. \
                     When the cause is gone, start it again"
                )));
            }
            match self.node.phase() {
                Phase::Leaving if self.node.has_left() => return Some(End::Expelled),
                Phase::Leaving | Phase::Inconsistent | Phase::Closed => return None,
                _ => {}
            }
        }
    }
}

fn open_sink(config: &Config) -> Result<Sink, StartError> {
    let error = |to: String| move |source| StartError::Sink { to, source };
    match &config.log {
        Some(path) => Sink::file(path).map_err(error(path.display().to_string())),
        None if config.daemon => {
            Sink::system().map_err(error("the system's log (/dev/log)".into()))
        }
        None => Ok(Sink::terminal()),
    }
}

/// The address with a port at each member: without one it is the base port,
/// whatever this witness listens at.
fn with_ports(address: &str, options: &str, dir: &Path) -> String {
    let Ok(parsed) = ClusterAddress::parse(address) else {
        return address.to_owned();
    };
    let members: Vec<String> = parsed
        .resolve(place::base_port(options, dir))
        .iter()
        .map(ToString::to_string)
        .collect();
    let query: Vec<String> = parsed
        .options
        .iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    let mark = if query.is_empty() { "" } else { "?" };
    format!("gcomm://{}{mark}{}", members.join(","), query.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_the_base_port() {
        let of = |address, options| with_ports(address, options, Path::new("/tmp"));
        assert_eq!(
            of(
                "gcomm://10.0.0.1,10.0.0.2:5000?gmcast.segment=1&pc.wait_prim=no",
                "gmcast.listen_addr=tcp://0.0.0.0:4999"
            ),
            "gcomm://10.0.0.1:4567,10.0.0.2:5000?gmcast.segment=1&pc.wait_prim=no"
        );
        assert_eq!(of("gcomm://[::1]", "base_port=7000"), "gcomm://[::1]:7000");
        assert_eq!(of("gcomm://", ""), "gcomm://");
        assert_eq!(of("10.0.0.1", ""), "10.0.0.1", "refused elsewhere");
    }
}
