//! Sockets of replicas.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dromon_binlog::Position;
use socket2::SockRef;

use super::feed::{Feed, FeedError, Policy};
use super::registry::Registry;
use super::session::{Facts, From, Reply, Session, Wants, errors};
use crate::log::{Level, Log};
use crate::net::{ServerTls, Silence, Socket, prepare};
use crate::pull::Following;
use crate::store::{Cursor, Found, Next, Place, StoreError, View, Wanted};
use crate::wire::{
    AuthSwitch, Command, Compressor, Failure, Frames, Greeting, Login, NATIVE_PASSWORD,
    PasswordHash, Register, SALT_LEN, WireError, capabilities, eof, error, ok, put_packet,
    put_result,
};

/// Longest packet before and after the login.
const LOGIN_MAX: usize = 64 << 10;
const COMMAND_MAX: usize = 1 << 20;
/// Time for a login, all of it.
const LOGIN_TIME: Duration = Duration::from_secs(10);
/// As long may the relay have no file to begin with, or be behind the replica.
const PLACE_TIME: Duration = Duration::from_secs(10);
/// Connections that are not logged in yet. With one more the oldest ends: who knows the password needs
/// no time.
const LOGINS_MAX: usize = 128;
/// A connection that asks nothing for so long is closed, as servers do.
const IDLE: Duration = Duration::from_secs(8 * 3600);
/// What is gathered before it is sent.
const OUT: usize = 64 << 10;
/// How often a waiting dump looks whether its replica is still there.
const LOOK: Duration = Duration::from_secs(1);
/// A replica that moves here may have what the primary, a replica itself, gets only then.
const ON_THE_WAY: Duration = Duration::from_secs(10);
/// As much may the primary's clock be ahead of the relay's, in seconds.
const CLOCKS: u32 = 60;
/// Stack of a connection's thread.
const STACK: usize = 512 << 10;

/// Someone who may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Their name.
    pub name: String,
    /// Their password.
    pub password: PasswordHash,
}

/// How replicas are served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Own server id, shown to replicas.
    pub server_id: u32,
    /// Who may connect.
    pub accounts: Vec<Account>,
    /// What is done with commit ids, for those who are not in `policies`.
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
    options: ServeOptions,
    view: Arc<View>,
    registry: Mutex<Registry>,
    log: Log,
    next: AtomicU32,
    /// Connections that are logged in.
    count: AtomicUsize,
    /// Those that are not, oldest first.
    logins: Mutex<VecDeque<(u32, Arc<TcpStream>)>>,
    /// It was said that the system does not have the wanted congestion control.
    congested: AtomicBool,
    port: u16,
    following: OnceLock<Arc<Mutex<Following>>>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("it went")]
    Gone,
    #[error("{0}")]
    Refused(Failure),
    #[error("it asked for TLS, which did not come about: {0}")]
    NotEncrypted(io::Error),
    #[error("another connection of the same server id has come")]
    Replaced,
    /// It comes again; an error would stop it for good.
    #[error("nothing has come from the primary yet that it could be sent")]
    Nothing,
    /// The same.
    #[error("{0}")]
    Short(StoreError),
    #[error("the relay ends")]
    Ending,
}

/// What cannot be read. An error stops a replica for good; that descriptors are short does not.
fn unreadable(error: StoreError) -> Ended {
    match error.is_shortage() {
        true => Ended::Short(error),
        false => Ended::Refused(Failure::new(errors::DUMP, error.to_string())),
    }
}

fn unix_now() -> u64 {
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
        Arc::new(Server {
            options,
            view,
            registry: Mutex::new(registry),
            log,
            next: AtomicU32::new(1),
            count: AtomicUsize::new(0),
            logins: Mutex::default(),
            congested: AtomicBool::new(false),
            port,
            following: OnceLock::new(),
        })
    }

    /// How the pulling side stands. Said once.
    pub fn follows(&self, following: Arc<Mutex<Following>>) {
        // A second one would be that of the same puller.
        let _ = self.following.set(following);
    }

    /// When the relay had last all that its primary had.
    fn complete(&self) -> Option<Instant> {
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

    /// What is done with commit ids for a replica.
    pub fn policy(&self, id: u32) -> Policy {
        let own = self.options.policies.get(&id);
        own.copied().unwrap_or(self.options.policy)
    }

    /// Takes connections until the process ends.
    pub fn listen(self: Arc<Server>, listener: &TcpListener) {
        loop {
            let (stream, address) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, mostly: it may pass.
                    self.log.say(
                        Level::Warning,
                        &format!("A connection could not be taken: {error}."),
                    );
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
                self.log.say(
                    Level::Warning,
                    &format!("No thread for a connection: {error}."),
                );
            }
        }
    }

    fn logins(&self) -> MutexGuard<'_, VecDeque<(u32, Arc<TcpStream>)>> {
        self.logins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody comes, and is to log in.
    fn comes(&self, number: u32, tcp: &Arc<TcpStream>) {
        let mut logins = self.logins();
        logins.push_back((number, Arc::clone(tcp)));
        if logins.len() > LOGINS_MAX
            && let Some((_, oldest)) = logins.pop_front()
        {
            // It may have gone.
            let _ = oldest.shutdown(Shutdown::Both);
        }
    }

    /// The login is over, one way or the other.
    fn came(&self, number: u32) {
        self.logins().retain(|login| login.0 != number);
    }

    fn connection(&self, stream: TcpStream, address: SocketAddr) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut connection = Connection {
            server: self,
            stream: Socket::new(stream),
            frames: Frames::new(LOGIN_MAX),
            buf: vec![0; 16 << 10],
            number,
            user: String::new(),
            session: match self.view.is_mirror() {
                true => Session::mirroring(),
                false => Session::new(),
            },
            registered: None,
            admitted: false,
            compressor: None,
            squeezed: Vec::new(),
        };
        self.comes(number, connection.stream.tcp());
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
            Err(ended) => self
                .log
                .say(Level::Warning, &format!("{who} was disconnected: {ended}.")),
        }
    }

    fn version(&self) -> String {
        let head = self
            .view
            .oldest()
            .and_then(|_| self.view.head(self.view.end().file).ok());
        head.map_or_else(
            || "10.11.0-MariaDB".into(),
            |head| head.format.version_text(),
        )
    }
}

struct Connection<'a> {
    server: &'a Server,
    stream: Socket,
    frames: Frames,
    buf: Vec<u8>,
    number: u32,
    user: String,
    session: Session,
    registered: Option<Register>,
    /// It counts as one of those that may be at a time.
    admitted: bool,
    /// Of a relay, after its dump.
    compressor: Option<Compressor>,
    squeezed: Vec<u8>,
}

impl Connection<'_> {
    fn packet(&mut self) -> Result<Vec<u8>, Ended> {
        loop {
            if let Some(packet) = self.frames.packet()? {
                return Ok(packet);
            }
            match self.stream.read(&mut self.buf) {
                Ok(0) => return Err(Ended::Gone),
                Ok(n) => self.frames.feed(&self.buf[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Err(Ended::Gone),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Sends an answer to what came last.
    fn send(&mut self, packet: &[u8]) -> Result<(), Ended> {
        let mut out = Vec::new();
        let next = put_packet(&mut out, self.frames.sequence(), packet);
        self.frames.set_sequence(next);
        Ok(self.stream.send(&out)?)
    }

    /// Sends, compressed if that was agreed on.
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(compressor) = &mut self.compressor else {
            return self.stream.send(bytes);
        };
        self.squeezed.clear();
        compressor.put(bytes, &mut self.squeezed)?;
        self.stream.send(&self.squeezed)?;
        // After one large event not all of its room is kept.
        self.squeezed.shrink_to(OUT);
        Ok(())
    }

    fn refuse(&mut self, sequence: u8, failure: &Failure) -> Result<(), Ended> {
        let mut out = Vec::new();
        put_packet(&mut out, sequence, &error(failure));
        self.put(&out)?;
        Err(Ended::Refused(failure.clone()))
    }

    fn run(&mut self) -> Result<(), Ended> {
        prepare(self.stream.tcp(), self.server.options.write_timeout)?;
        self.choose_congestion();
        self.stream.read_until(Some(Instant::now() + LOGIN_TIME));
        self.login()?;
        self.server.came(self.number);
        self.stream.read_until(None);
        self.stream.tcp().set_read_timeout(Some(IDLE))?;
        self.frames.set_max(COMMAND_MAX);
        loop {
            self.frames.set_sequence(0);
            let packet = self.packet()?;
            match Command::decode(&packet)? {
                Command::Quit => return Ok(()),
                Command::Ping | Command::InitDb => self.send(&ok())?,
                Command::Query(text) => {
                    let text = String::from_utf8_lossy(&text).into_owned();
                    let facts = self.facts();
                    match self.session.query(&text, &facts) {
                        Reply::Ok => self.send(&ok())?,
                        Reply::Error(failure) => self.send(&error(&failure))?,
                        Reply::Table(table) => {
                            let mut out = Vec::new();
                            put_result(&mut out, self.frames.sequence(), &table);
                            self.stream.send(&out)?;
                        }
                    }
                }
                Command::Register(register) => {
                    self.registered = Some(register);
                    self.send(&ok())?;
                }
                Command::Dump(dump) => {
                    let level = self.session.zstd(&self.facts());
                    self.compressor = level.map(Compressor::new).transpose()?;
                    return match self.session.dump(&dump) {
                        Ok(wants) => self.dump(&wants),
                        Err(failure) => self.refuse(self.frames.sequence(), &failure),
                    };
                }
                Command::Other(kind) => {
                    let why = format!(
                        "This is a dromon relay. Command {kind} of the protocol is not offered"
                    );
                    self.send(&error(&Failure {
                        state: *b"08S01",
                        ..Failure::new(1047, why)
                    }))?;
                }
            }
        }
    }

    /// Over long links with losses some send many times as much as others. One that is not there is
    /// no reason not to serve.
    fn choose_congestion(&self) {
        let server = self.server;
        let socket = SockRef::from(&**self.stream.tcp());
        let name = match server.options.congestion.as_deref() {
            Some("system") => return,
            Some(name) => name,
            None => {
                // Not asked for: no reason to complain.
                let _ = socket.set_tcp_congestion(b"bbr");
                return;
            }
        };
        if let Err(error) = socket.set_tcp_congestion(name.as_bytes())
            && !server.congested.swap(true, Ordering::Relaxed)
        {
            let text = format!(
                "Congestion control {name} cannot be used: {error}. Replicas are served with the system's. See modprobe \
                 tcp_{name} and the sysctl net.ipv4.tcp_allowed_congestion_control."
            );
            server.log.say(Level::Warning, &text);
        }
    }

    /// What is used on this connection.
    fn congestion(&self) -> String {
        let name = SockRef::from(&**self.stream.tcp()).tcp_congestion();
        let name = String::from_utf8_lossy(&name.unwrap_or_default()).into_owned();
        name.trim_end_matches('\0').to_owned()
    }

    fn login(&mut self) -> Result<(), Ended> {
        let mut salt = [0; SALT_LEN];
        getrandom::fill(&mut salt)
            .map_err(|_| io::Error::other("the system gives no random numbers"))?;
        // Letters and signs: a zero would end it.
        salt.iter_mut().for_each(|b| *b = 33 + *b % 94);
        let version = self.server.version();
        // Older clients know no major version of two digits.
        let version = match version.starts_with("10.") {
            true => format!("5.5.5-{version}"),
            false => version,
        };
        let mut offered =
            capabilities::OURS | capabilities::PLUGIN_AUTH_LENENC | capabilities::CONNECT_ATTRS;
        if self.server.options.tls.is_some() {
            offered |= capabilities::SSL;
        }
        let greeting = Greeting {
            version,
            connection: self.number,
            salt,
            capabilities: offered,
            plugin: NATIVE_PASSWORD.into(),
        };
        self.send(&greeting.encode())?;
        let login = self.encrypted_login()?;
        let mut reply = login.reply;
        if login.plugin != NATIVE_PASSWORD {
            let switch = AuthSwitch {
                plugin: NATIVE_PASSWORD.into(),
                salt: salt.to_vec(),
            };
            self.send(&switch.encode())?;
            reply = self.packet()?;
        }
        let account = self
            .server
            .options
            .accounts
            .iter()
            .find(|a| a.name == login.user);
        // A stranger takes as long as a known name.
        let nobody = PasswordHash::of(b"nobody has this");
        let password = account.map_or(&nobody, |a| &a.password);
        if !password.admits(&reply, &salt) || account.is_none() {
            let failure = Failure {
                state: *b"28000",
                ..Failure::new(1045, format!("Access denied for user '{}'", login.user))
            };
            return self.refuse(self.frames.sequence(), &failure);
        }
        let count = self.server.count.fetch_add(1, Ordering::Relaxed);
        self.admitted = true;
        if count >= self.server.options.connections_max {
            let failure = Failure {
                state: *b"08004",
                ..Failure::new(1040, "Too many connections")
            };
            return self.refuse(self.frames.sequence(), &failure);
        }
        self.user = login.user;
        self.send(&ok())
    }

    /// The login, behind TLS if the client asks for that.
    fn encrypted_login(&mut self) -> Result<Login, Ended> {
        let no_tls = |message: &str| Failure {
            state: *b"08S01",
            ..Failure::new(2026, message)
        };
        let mut packet = self.packet()?;
        let mut login = Login::decode(&packet)?;
        if login.is_none() {
            let Some(tls) = &self.server.options.tls else {
                let failure = no_tls("This relay does not offer TLS: it has no tls_cert");
                return Err(self
                    .refuse(self.frames.sequence(), &failure)
                    .err()
                    .unwrap_or(Ended::Gone));
            };
            // Servers' own clients do not wait before they go on in TLS.
            let begun = self.frames.take_rest();
            self.stream
                .accept(tls, &begun)
                .map_err(Ended::NotEncrypted)?;
            packet = self.packet()?;
            login = Login::decode(&packet)?;
        }
        let options = &self.server.options;
        let certificates = options.tls.as_ref().is_some_and(|t| t.wants_certificates());
        let required = options.tls_required || certificates;
        let in_the_clear = required && !self.stream.is_encrypted();
        match login {
            Some(login) if !in_the_clear => Ok(login),
            _ => {
                let failure = no_tls(
                    "This relay takes encrypted connections only (tls_required, tls_client_ca). Use MASTER_SSL = 1 in CHANGE MASTER TO",
                );
                Err(self
                    .refuse(self.frames.sequence(), &failure)
                    .err()
                    .unwrap_or(Ended::Gone))
            }
        }
    }

    fn facts(&self) -> Facts {
        let state = self.server.view.state();
        Facts {
            server_id: self.server.options.server_id,
            version: self.server.version(),
            connection: self.number,
            user: self.user.clone(),
            position: state.position().to_string(),
            state: state.to_string(),
            files: self.server.view.list(),
            hosts: self.server.registry().hosts(),
            now: unix_now(),
            port: self.server.port,
            zstd: self.server.options.zstd,
            mirror: self.server.view.is_mirror(),
        }
    }

    fn dump(&mut self, wants: &Wants) -> Result<(), Ended> {
        let sequence = self.frames.sequence();
        match self.feed(wants, sequence) {
            Err((Ended::Refused(failure), sequence)) => self.refuse(sequence, &failure),
            Err((ended, _)) => Err(ended),
            Ok(sequence) => {
                let mut out = Vec::new();
                put_packet(&mut out, sequence, &eof());
                Ok(self.put(&out)?)
            }
        }
    }

    /// Feeds a replica until it goes. Errors come with the sequence number of the next packet.
    fn feed(&mut self, wants: &Wants, sequence: u8) -> Result<u8, (Ended, u8)> {
        let server = self.server;
        let id = self
            .registered
            .as_ref()
            .map(|r| r.server_id)
            .filter(|id| *id != 0);
        let came = Instant::now();
        let now = u32::try_from(unix_now()).unwrap_or(u32::MAX);
        let late = now.max(server.view.time()).saturating_add(CLOCKS);
        let (place, state, wanted) = self.begin(wants).map_err(|e| (e, sequence))?;
        let has = match &wants.from {
            From::Gtid(position) => position.clone(),
            From::File(..) if server.view.is_mirror() => place.as_position(),
            From::File(..) => server
                .view
                .head(place.file)
                .map_or_else(|_| Position::new(), |head| head.start.position()),
        };
        if let (Some(id), Some(r)) = (id, &self.registered) {
            let mut registry = server.registry();
            registry.begins(id, &r.host, r.port, self.number, place.file, unix_now());
            if let Ok(address) = self.stream.tcp().peer_addr() {
                registry.at(id, self.number, address.ip(), self.congestion());
            }
            registry.was_sent(id, self.number, &has, 0, 0);
            drop(registry);
            // A leftover connection of it looks now.
            server.view.wake();
        }
        let mut feed = Feed::new(
            server.options.server_id,
            wants.checksum,
            wants.annotate,
            wanted,
            sequence,
        );
        feed.has(has);
        feed.came(late);
        feed.policy(server.policy(wants.server_id));
        if server.view.is_mirror() {
            feed.mirrors();
        }
        if !wants.mariadb {
            feed.is_mysql();
        }
        let result = self.stream_to(&mut feed, wants, place, state, id, came);
        if let Some(id) = id {
            server.registry().ends(id, self.number, unix_now());
        }
        match result {
            Ok(()) => Ok(feed.sequence()),
            Err(ended) => Err((ended, feed.sequence())),
        }
    }

    /// Where it begins, all groups before, and what is left out.
    fn begin(
        &self,
        wants: &Wants,
    ) -> Result<(Place, Option<dromon_binlog::BinlogState>, Wanted), Ended> {
        let view = &self.server.view;
        let refuse = |why: String| Ended::Refused(Failure::new(errors::DUMP, why));
        self.wait_for_a_file()?;
        match &wants.from {
            From::Gtid(position) => match view.find(position) {
                Err(error) => Err(unreadable(error)),
                Ok(Err(refused)) => Err(refuse(refused.to_string())),
                Ok(Ok(Found { begin: None, .. })) => Err(Ended::Nothing),
                Ok(Ok(Found {
                    begin: Some(begin),
                    damage,
                })) => {
                    if let Some(damage) = damage {
                        self.server.log.say(Level::Error, &damage.to_string());
                    }
                    // Domains that are not here concern others, mostly for ever.
                    let here = view.state().position();
                    let ahead = begin.wanted.ahead();
                    let ahead = ahead.filter(|g| here.get(g.domain).is_some());
                    let ahead: Vec<String> = ahead.map(|g| g.to_string()).collect();
                    if !ahead.is_empty() {
                        let ahead = ahead.join(",");
                        let text = format!(
                            "A replica has {ahead}, which has not come here yet. It waits for what follows."
                        );
                        self.server.log.say(Level::Note, &text);
                    }
                    Ok((begin.place, Some(begin.state), begin.wanted))
                }
            },
            From::File(name, at) => {
                let file = match name.is_empty() {
                    true => view.oldest(),
                    false => view.number(name),
                };
                let Some(file) = file else {
                    return Err(refuse(format!("There is no file {name} on this relay.")));
                };
                let place = Place {
                    file,
                    at: (*at).max(4),
                };
                self.wait_for(place)?;
                match view.is_boundary(place) {
                    Ok(true) => Ok((place, None, Wanted::all())),
                    Ok(false) => Err(refuse(format!(
                        "No event begins at byte {at} of {}.",
                        view.name(file)
                    ))),
                    Err(error) => Err(unreadable(error)),
                }
            }
        }
    }

    /// A relay that is new has nothing until its primary has said something.
    fn wait_for_a_file(&self) -> Result<(), Ended> {
        let view = &self.server.view;
        let until = Instant::now() + PLACE_TIME;
        while view.oldest().is_none() && Instant::now() < until {
            if view.is_closed() {
                return Err(Ended::Ending);
            }
            view.wait(Place::default(), LOOK);
        }
        Ok(())
    }

    /// A replica that comes from the primary itself may be ahead of a mirror. An error would stop it.
    fn wait_for(&self, place: Place) -> Result<(), Ended> {
        let view = &self.server.view;
        let until = Instant::now() + PLACE_TIME;
        while view.is_mirror() && view.end() < place {
            if view.is_closed() {
                return Err(Ended::Ending);
            }
            if Instant::now() > until {
                return Err(Ended::Nothing);
            }
            view.wait(view.end(), LOOK);
        }
        Ok(())
    }

    fn stream_to(
        &mut self,
        feed: &mut Feed,
        wants: &Wants,
        place: Place,
        state: Option<dromon_binlog::BinlogState>,
        id: Option<u32>,
        came: Instant,
    ) -> Result<(), Ended> {
        let server = self.server;
        let view = Arc::clone(&server.view);
        let damaged = |error: StoreError| {
            if !error.is_shortage() {
                server.log.say(Level::Error, &error.to_string());
            }
            unreadable(error)
        };
        let mut name = view.name(place.file);
        let mut cursor = Cursor::new(Arc::clone(&view), place);
        let mut hints = view.hints();
        let feeding = |e: FeedError, name: &str, at: u64| match e {
            FeedError::Refused(refused) => {
                Ended::Refused(Failure::new(errors::DUMP, refused.to_string()))
            }
            other => damaged(StoreError::Damaged {
                file: name.to_owned(),
                at,
                what: other.to_string(),
            }),
        };
        if place.at == 4 {
            feed.begin_file(&name);
        } else {
            let head = view.head(place.file).map_err(damaged)?;
            feed.begin(&name, place.at, &head.format_event, state.as_ref())
                .map_err(|e| feeding(e, &name, 4))?;
        }
        let heartbeat = match wants.heartbeat_ns {
            0 => server.options.heartbeat,
            ns => Duration::from_nanos(ns),
        };
        let mut sent = Instant::now();
        let mirror = view.is_mirror();
        loop {
            if mirror {
                feed.has(cursor.place().as_position());
            }
            match cursor.look().map_err(damaged)? {
                Next::Event(len) => {
                    let at = cursor.place().at;
                    let place = cursor.place();
                    let hint = |gtid| Some(hints.look(place, gtid)?.commit_id);
                    feed.event(cursor.event(len), hint)
                        .map_err(|e| feeding(e, &name, at))?;
                    cursor.pass(len);
                    // Much may be left out in silence.
                    if feed.out().is_empty() && sent.elapsed() >= heartbeat {
                        let behind = self.behind(feed, wants);
                        feed.heartbeat(&name, cursor.place().at, behind);
                    }
                    if feed.out().len() >= OUT
                        || !feed.out().is_empty() && sent.elapsed() >= heartbeat
                    {
                        self.flush(feed, &mut sent, id)?;
                        self.still_wanted(&view, id)?;
                        self.still_fits(feed, came)?;
                    }
                }
                Next::File(number) => {
                    let next = view.name(number);
                    feed.next_file(&next)
                        .map_err(|e| feeding(e, &name, cursor.place().at))?;
                    name = next;
                    cursor.turn(Place {
                        file: number,
                        at: 4,
                    });
                    if let Some(id) = id {
                        server
                            .registry()
                            .enters(id, self.number, number, unix_now());
                    }
                }
                Next::End => {
                    self.flush(feed, &mut sent, id)?;
                    if wants.non_block {
                        return Ok(());
                    }
                    let left = heartbeat.saturating_sub(sent.elapsed());
                    if view.wait(cursor.place(), left.min(LOOK)) {
                        continue;
                    }
                    self.still_wanted(&view, id)?;
                    self.still_there()?;
                    self.still_fits(feed, came)?;
                    if sent.elapsed() >= heartbeat {
                        let behind = self.behind(feed, wants);
                        feed.heartbeat(&name, cursor.place().at, behind);
                        self.flush(feed, &mut sent, id)?;
                    }
                }
            }
        }
    }

    fn still_wanted(&self, view: &View, id: Option<u32>) -> Result<(), Ended> {
        if view.is_closed() {
            return Err(Ended::Ending);
        }
        match id {
            Some(id) if !self.server.registry().is_current(id, self.number) => Err(Ended::Replaced),
            _ => Ok(()),
        }
    }

    /// What a heartbeat tells a relay: how many seconds all that it was given is behind the primary.
    fn behind(&self, feed: &Feed, wants: &Wants) -> u32 {
        if !wants.lag {
            return 0;
        }
        let relay = match self.server.following.get() {
            None => Some(0),
            Some(following) => {
                let following = following.lock();
                following.unwrap_or_else(PoisonError::into_inner).lag_ms()
            }
        };
        let ms = relay.map(|ms| ms.saturating_add(self.server.view.lag_ms(feed.given())));
        ms.map_or(u32::MAX, |ms| {
            u32::try_from(ms.div_ceil(1000)).unwrap_or(u32::MAX)
        })
    }

    /// What the replica has and the relay does not may still come, until the primary has nothing more.
    fn still_fits(&self, feed: &mut Feed, came: Instant) -> Result<(), Ended> {
        if feed.wanted().ahead().next().is_none()
            || self
                .server
                .complete()
                .is_none_or(|at| at < came + ON_THE_WAY)
        {
            return Ok(());
        }
        let state = self.server.view.state();
        let fits = feed.complete(&state);
        fits.map_err(|why| Ended::Refused(Failure::new(errors::DUMP, why.to_string())))
    }

    fn flush(&mut self, feed: &mut Feed, sent: &mut Instant, id: Option<u32>) -> Result<(), Ended> {
        if !feed.out().is_empty() {
            self.put(feed.out())?;
            feed.sent();
            *sent = Instant::now();
            if let Some(id) = id {
                let mut registry = self.server.registry();
                registry.was_sent(id, self.number, feed.given(), feed.groups(), feed.joined());
                if let Some(compressor) = &self.compressor {
                    registry.squeezed(id, self.number, compressor.count());
                }
            }
        }
        Ok(())
    }

    /// A replica says nothing while it is fed; that it went can be read.
    fn still_there(&mut self) -> Result<(), Ended> {
        match self.stream.silence()? {
            Silence::There => Ok(()),
            // Its end, or that it quits.
            Silence::Broken => Err(Ended::Gone),
        }
    }
}
