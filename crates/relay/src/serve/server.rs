//! Sockets of replicas.

use std::collections::BTreeMap;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::connection::{Connection, Ended};
use super::feed::Policy;
use super::logins::Logins;
use super::quiet::Quiet;
use super::registry::Registry;
use super::replica_list::ReplicaList;
use super::upstream::Upstream;
use crate::clock::Now;
use crate::log::{Level, Log, Seldom};
use crate::net::ServerTls;
use crate::pull::Following;
use crate::store::{Kind, View};
use crate::wire::PasswordHash;

/// What is said now and then of too many logins; numbers of errors are larger, others below.
const TOO_MANY_LOGINS: u16 = 5;
/// The same of those who do not say what they have applied.
pub(crate) const NOT_TOLD: u16 = 6;
/// Stack of a connection's thread.
const STACK: usize = 512 << 10;

/// Someone who may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Their name.
    pub name: String,
    /// Their password.
    pub password: PasswordHash,
    /// They may have replicas forgotten.
    pub admin: bool,
}

/// How replicas are served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Own server id, shown to replicas.
    pub server_id: u32,
    /// Who may connect.
    pub accounts: Vec<Account>,
    /// What is done with commit ids and clocks, for those who are not in `policies`.
    pub policy: Policy,
    /// The same, by server id.
    pub policies: BTreeMap<u32, Policy>,
    /// Congestion control of their connections; `None`: bbr, if the system has it; `system`: its own.
    pub congestion: Option<String>,
    /// For those who ask for TLS.
    pub tls: Option<ServerTls>,
    /// Nobody is let in without.
    pub tls_required: bool,
    /// Most connections at a time.
    pub connections_max: usize,
    /// Compress for relays that ask for it.
    pub zstd: bool,
    /// A replica that takes nothing for so long is disconnected.
    pub write_timeout: Duration,
    /// Heartbeats for replicas that did not say how often.
    pub heartbeat: Duration,
}

/// Serves replicas.
pub struct Server {
    pub(super) options: ServeOptions,
    pub(super) view: Arc<View>,
    registry: Mutex<Registry>,
    pub(super) replica_list: ReplicaList,
    pub(super) log: Log,
    next: AtomicU32,
    /// Connections that are logged in.
    pub(super) count: AtomicUsize,
    /// Those that are not.
    logins: Mutex<Logins<Arc<TcpStream>>>,
    /// Of lines that others could fill the log with; times count from the start.
    quiet: Mutex<Quiet>,
    started: Instant,
    /// It was said that the system does not have the wanted congestion control.
    pub(super) congested: AtomicBool,
    pub(super) port: u16,
    pub(super) following: OnceLock<Arc<Mutex<Following>>>,
}

pub(super) fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

impl Server {
    /// Of a store's files.
    pub fn new(
        options: ServeOptions,
        view: Arc<View>,
        registry: Registry,
        log: Log,
        port: u16,
    ) -> Arc<Server> {
        let logins = Logins::new(options.connections_max);
        Arc::new(Server {
            options,
            view,
            registry: Mutex::new(registry),
            replica_list: ReplicaList::default(),
            log,
            next: AtomicU32::new(1),
            count: AtomicUsize::new(0),
            logins: Mutex::new(logins),
            quiet: Mutex::default(),
            started: Instant::now(),
            congested: AtomicBool::new(false),
            port,
            following: OnceLock::new(),
        })
    }

    /// What the time is.
    pub fn now(&self) -> Now {
        Now {
            unix: unix_now(),
            up: self.started.elapsed().as_secs(),
        }
    }

    /// How the pulling side stands. Said once.
    pub fn follows(&self, following: Arc<Mutex<Following>>) {
        // A second one would be that of the same puller.
        let _ = self.following.set(following);
    }

    /// How many milliseconds the relay is behind its primary, as far as it can know.
    pub(super) fn relay_lag_ms(&self) -> Option<u64> {
        match self.following.get() {
            None => Some(0),
            Some(following) => {
                let following = following.lock();
                following.unwrap_or_else(PoisonError::into_inner).lag_ms()
            }
        }
    }

    /// How it stands towards its primary.
    pub(super) fn upstream(&self) -> Option<Upstream> {
        let following = self.following.get()?.lock();
        let following = following.unwrap_or_else(PoisonError::into_inner);
        Some(Upstream {
            address: following.address.clone(),
            user: following.user.clone(),
            connected: following.connected,
            encrypted: following.encrypted,
            named: following.named,
            server_id: following.primary.server_id,
            file: following.file.clone(),
            position: following.position,
            last_error: following.last_error.clone(),
        })
    }

    /// When the relay had last all that its primary had.
    pub(super) fn complete(&self) -> Option<Instant> {
        let following = self.following.get()?.lock();
        following.unwrap_or_else(PoisonError::into_inner).complete
    }

    /// Who is known.
    pub fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The relay's own.
    pub fn server_id(&self) -> u32 {
        self.options.server_id
    }

    /// What is done with commit ids and clocks for a replica.
    pub fn policy(&self, id: u32) -> Policy {
        let own = self.options.policies.get(&id);
        own.copied().unwrap_or(self.options.policy)
    }

    /// Takes connections until the process ends.
    pub fn listen(self: Arc<Server>, listener: &TcpListener) {
        let (mut not_taken, mut no_thread) = (Seldom::default(), Seldom::default());
        loop {
            let (stream, address) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, mostly: it may pass.
                    let text = format!("A connection could not be taken: {error}.");
                    self.log.say_seldom(&mut not_taken, Level::Warning, &text);
                    thread::sleep(Duration::from_millis(200));
                    continue;
                }
            };
            let server = Arc::clone(&self);
            let builder = thread::Builder::new()
                .name("dromon-replica".into())
                .stack_size(STACK);
            let spawned = builder.spawn(move || server.connection(stream, address));
            if let Err(error) = spawned {
                let text = format!("No thread for a connection: {error}.");
                self.log.say_seldom(&mut no_thread, Level::Warning, &text);
            }
        }
    }

    fn logins(&self) -> MutexGuard<'_, Logins<Arc<TcpStream>>> {
        self.logins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody comes, and is to log in.
    fn comes(&self, number: u32, from: IpAddr, tcp: &Arc<TcpStream>) {
        let mut logins = self.logins();
        let max = logins.max();
        let ends = logins.comes(number, from, Arc::clone(tcp));
        drop(logins);
        let Some((from, ends)) = ends else {
            return;
        };
        // It may have gone.
        let _ = ends.shutdown(Shutdown::Both);
        if let Some(more) = self.now_and_then(from, TOO_MANY_LOGINS) {
            let text = format!(
                "More than {max} connections are logging in at once. The oldest one from {from}, where most of them come from, was \
                 ended; if it is a replica, it comes again after its MASTER_CONNECT_RETRY.{more}"
            );
            self.log.say(Level::Warning, &text);
        }
    }

    /// The login is over, one way or the other.
    pub(super) fn came(&self, number: u32) {
        self.logins().over(number);
    }

    fn connection(&self, stream: TcpStream, address: SocketAddr) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut connection = Connection::new(self, stream, number);
        self.comes(number, address.ip(), connection.stream.tcp());
        let result = connection.run();
        self.came(number);
        if connection.admitted {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        let who = match &connection.registered {
            Some(r) => format!("Replica {} ({address})", r.server_id),
            None => format!("{address}"),
        };
        match result {
            Ok(()) | Err(Ended::Gone) if connection.registered.is_none() => {}
            Ok(()) | Err(Ended::Gone) => self.log.say(Level::Note, &format!("{who} went.")),
            Err(ended) => {
                let known = connection.registered.is_some();
                if let Some(more) = self.says(address, &ended, known) {
                    let text = format!("{who} was disconnected: {ended}.{more}");
                    let level = match ended {
                        Ended::Idle => Level::Note,
                        _ => Level::Warning,
                    };
                    self.log.say(level, &text);
                }
            }
        }
    }

    /// Whether it is said why somebody was disconnected, and what is added. What a stranger can bring about, or
    /// two replicas that have one server id, is said once in a while.
    fn says(&self, address: SocketAddr, ended: &Ended, registered: bool) -> Option<String> {
        let what = match ended {
            Ended::Replaced => 1,
            _ if registered => return Some(String::new()),
            Ended::Refused(failure) => failure.code,
            Ended::NotEncrypted(_) => 2,
            Ended::Wire(_) => 3,
            _ => 4,
        };
        self.now_and_then(address.ip(), what)
    }

    /// Whether something that others bring about is said now, and what is added.
    pub(crate) fn now_and_then(&self, from: IpAddr, what: u16) -> Option<String> {
        let mut quiet = self.quiet.lock().unwrap_or_else(PoisonError::into_inner);
        let before = quiet.says(from, what, self.started.elapsed())?;
        Some(match before {
            0 => String::new(),
            n => format!(" The like of it happened {n} times more since that was last said."),
        })
    }

    /// As of the server whose events are stored.
    pub(super) fn version(&self) -> String {
        let head = self
            .view
            .oldest()
            .and_then(|_| self.view.head(self.view.end().file).ok());
        head.map_or_else(
            || match self.view.kind() {
                Kind::MariaDb => "10.11.0-MariaDB".into(),
                Kind::Mirror | Kind::MySql => "5.6.10-log".into(),
            },
            |head| head.format.version_text(),
        )
    }
}
