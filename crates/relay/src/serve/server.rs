//! Sockets of replicas.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dromon_binlog::Position;
use socket2::SockRef;

use super::feed::{Feed, FeedError, Policy};
use super::registry::Registry;
use super::session::{Facts, From, Reply, Session, Wants, errors};
use crate::log::{Level, Log};
use crate::net::{ServerTls, Silence, Socket, prepare};
use crate::store::{Cursor, Found, Next, Place, StoreError, View, Wanted};
use crate::wire::{
    AuthSwitch, Command, Compressor, Failure, Frames, Greeting, Login, NATIVE_PASSWORD,
    PasswordHash, Register, SALT_LEN, WireError, capabilities, eof, error, ok, put_packet,
    put_result,
};

/// Longest packet before and after the login.
const LOGIN_MAX: usize = 64 << 10;
const COMMAND_MAX: usize = 1 << 20;
/// Time for a login.
const LOGIN_TIME: Duration = Duration::from_secs(10);
/// A connection that asks nothing for so long is closed, as servers do.
const IDLE: Duration = Duration::from_secs(8 * 3600);
/// What is gathered before it is sent.
const OUT: usize = 64 << 10;
/// How often a waiting dump looks whether its replica is still there.
const LOOK: Duration = Duration::from_secs(1);
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
    options: ServeOptions,
    view: Arc<View>,
    registry: Mutex<Registry>,
    log: Log,
    next: AtomicU32,
    count: AtomicUsize,
    /// It was said that the system does not have the wanted congestion control.
    congested: AtomicBool,
    port: u16,
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
    #[error("the relay ends")]
    Ending,
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
            congested: AtomicBool::new(false),
            port,
        })
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

    fn connection(&self, stream: TcpStream, address: SocketAddr) {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
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
            compressor: None,
            squeezed: Vec::new(),
        };
        let result = match count >= self.options.connections_max {
            true => connection.refuse(
                0,
                &Failure {
                    state: *b"08004",
                    ..Failure::new(1040, "Too many connections")
                },
            ),
            false => connection.run(),
        };
        self.count.fetch_sub(1, Ordering::Relaxed);
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
        self.stream.tcp().set_read_timeout(Some(LOGIN_TIME))?;
        self.login()?;
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
        let in_the_clear = self.server.options.tls_required && !self.stream.is_encrypted();
        match login {
            Some(login) if !in_the_clear => Ok(login),
            _ => {
                let failure = no_tls(
                    "This relay takes encrypted connections only (tls_required). Use MASTER_SSL = 1 in CHANGE MASTER TO",
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
        feed.policy(server.policy(wants.server_id));
        if server.view.is_mirror() {
            feed.mirrors();
        }
        let result = self.stream_to(&mut feed, wants, place, state, id);
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
                Err(error) => Err(refuse(error.to_string())),
                Ok(Err(refused)) => Err(refuse(refused.to_string())),
                Ok(Ok(Found { begin: None, .. })) => Err(Ended::Nothing),
                Ok(Ok(Found {
                    begin: Some(begin),
                    damage,
                })) => {
                    if let Some(damage) = damage {
                        self.server.log.say(Level::Error, &damage.to_string());
                    }
                    let ahead: Vec<String> = begin.wanted.ahead().map(|g| g.to_string()).collect();
                    if !ahead.is_empty() && !view.state().position().is_empty() {
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
                    Err(error) => Err(refuse(error.to_string())),
                }
            }
        }
    }

    /// A relay that is new has nothing until its primary has said something.
    fn wait_for_a_file(&self) -> Result<(), Ended> {
        let view = &self.server.view;
        let until = Instant::now() + LOGIN_TIME;
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
        let until = Instant::now() + LOGIN_TIME;
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
    ) -> Result<(), Ended> {
        let server = self.server;
        let view = Arc::clone(&server.view);
        let damaged = |error: &StoreError| {
            server.log.say(Level::Error, &error.to_string());
            Ended::Refused(Failure::new(errors::DUMP, error.to_string()))
        };
        let mut name = view.name(place.file);
        let mut cursor = Cursor::new(Arc::clone(&view), place);
        let mut hints = view.hints();
        let feeding = |e: FeedError, name: &str, at: u64| match e {
            FeedError::Refused(refused) => {
                Ended::Refused(Failure::new(errors::DUMP, refused.to_string()))
            }
            other => damaged(&StoreError::Damaged {
                file: name.to_owned(),
                at,
                what: other.to_string(),
            }),
        };
        if place.at == 4 {
            feed.begin_file(&name);
        } else {
            let head = view.head(place.file).map_err(|e| damaged(&e))?;
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
            match cursor.look().map_err(|e| damaged(&e))? {
                Next::Event(len) => {
                    let at = cursor.place().at;
                    let place = cursor.place();
                    let hint = |key| hints.look(place, key);
                    feed.event(cursor.event(len), hint)
                        .map_err(|e| feeding(e, &name, at))?;
                    cursor.pass(len);
                    // Much may be left out in silence.
                    if feed.out().is_empty() && sent.elapsed() >= heartbeat {
                        feed.heartbeat(&name, cursor.place().at);
                    }
                    if feed.out().len() >= OUT
                        || !feed.out().is_empty() && sent.elapsed() >= heartbeat
                    {
                        self.flush(feed, &mut sent, id)?;
                        self.still_wanted(&view, id)?;
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
                    if sent.elapsed() >= heartbeat {
                        feed.heartbeat(&name, cursor.place().at);
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
