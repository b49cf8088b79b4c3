//! One connection of a replica or a tool: its login, and what it asks before events.

use std::io::{self, Read};
use std::mem;
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::registry::{Known, Registry};
use super::server::{Server, unix_now};
use super::session::{Facts, Host, Listing, Reply, Session, errors};
use super::wants::Wants;
use crate::log::Level;
use crate::net::{Socket, prepare};
use crate::store::StoreError;
use crate::wire::{
    AuthSwitch, Command, Compressor, Failure, Frames, Greeting, Login, NATIVE_PASSWORD,
    PasswordHash, Register, SALT_LEN, WireError, capabilities, error, ok, put_packet, put_result,
};

/// Longest packet before and after the login.
const LOGIN_MAX: usize = 64 << 10;
const COMMAND_MAX: usize = 1 << 20;
/// Of a name that is no account's so many characters are said again.
const NAME_MAX: usize = 128;
/// Time for a login, all of it.
const LOGIN_TIME: Duration = Duration::from_secs(10);
/// So many more connections may be there of operators: they are needed when all places are taken.
const OPERATORS_MORE: usize = 4;
/// A connection that asks nothing for so long is closed, as servers do.
const IDLE: Duration = Duration::from_secs(8 * 3600);
/// What is gathered before it is sent.
pub(super) const OUT: usize = 64 << 10;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("it went")]
    Gone,
    /// What the system says of it ("temporarily unavailable") names neither whose doing it is nor the setting.
    #[error(
        "it took nothing for {} s (write_timeout): look at its I/O thread, its disk and relay_log_space_limit, and at the network",
        .0.as_secs_f32()
    )]
    TookNothing(Duration),
    #[error("it asked nothing for {} h", IDLE.as_secs() / 3600)]
    Idle,
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

fn not_for_admins() -> Failure {
    let why = "Access denied; accounts of the relay's setting admin do not replicate. Use one of the setting account as user";
    Failure {
        state: *b"42000",
        ..Failure::new(errors::DENIED, why)
    }
}

/// A name that anybody may have sent, for a message.
fn shown(name: &str) -> String {
    name.chars().take(NAME_MAX).collect()
}

/// An open one.
pub(super) struct Connection<'a> {
    pub(super) server: &'a Server,
    pub(super) stream: Socket,
    pub(super) frames: Frames,
    buf: Vec<u8>,
    pub(super) number: u32,
    user: String,
    /// The user may have replicas forgotten.
    admin: bool,
    session: Session,
    pub(super) registered: Option<Register>,
    /// It counts as one of those that may be at a time.
    pub(super) admitted: bool,
    /// Of a relay, after its dump.
    pub(super) compressor: Option<Compressor>,
    squeezed: Vec<u8>,
}

impl<'a> Connection<'a> {
    /// Of which nothing has been read.
    pub(super) fn new(server: &'a Server, stream: TcpStream, number: u32) -> Connection<'a> {
        Connection {
            server,
            stream: Socket::new(stream),
            frames: Frames::new(LOGIN_MAX),
            buf: vec![0; 16 << 10],
            number,
            user: String::new(),
            admin: false,
            session: Session::of(server.view.kind()),
            registered: None,
            admitted: false,
            compressor: None,
            squeezed: Vec::new(),
        }
    }

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
                // Of a login the time is up by another word.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(Ended::Idle),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Sends an answer to what came last.
    fn send(&mut self, packet: &[u8]) -> Result<(), Ended> {
        let mut out = Vec::new();
        let next = put_packet(&mut out, self.frames.sequence(), packet);
        self.frames.set_sequence(next);
        self.sends(&out)
    }

    fn sends(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        let sent = self.stream.send(bytes);
        sent.map_err(|error| self.stuck(error))
    }

    /// Why what was sent was not taken: the socket's time or TCP's own was up.
    pub(super) fn stuck(&self, error: io::Error) -> Ended {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                Ended::TookNothing(self.server.options.write_timeout)
            }
            _ => error.into(),
        }
    }

    /// Sends, compressed if that was agreed on.
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        let Some(compressor) = &mut self.compressor else {
            return self.sends(bytes);
        };
        let mut squeezed = mem::take(&mut self.squeezed);
        squeezed.clear();
        compressor.put(bytes, &mut squeezed)?;
        let sent = self.sends(&squeezed);
        // After one large event not all of its room is kept.
        squeezed.shrink_to(OUT);
        self.squeezed = squeezed;
        sent
    }

    pub(super) fn refuse(&mut self, sequence: u8, failure: &Failure) -> Result<(), Ended> {
        let mut out = Vec::new();
        put_packet(&mut out, sequence, &error(failure));
        self.put(&out)?;
        Err(Ended::Refused(failure.clone()))
    }

    /// All of it, until it ends.
    pub(super) fn run(&mut self) -> Result<(), Ended> {
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
                    let mut reply = self.session.query(&text, &facts);
                    if let Reply::Forget(name) = &reply {
                        reply = self.server.forget(name, &self.who());
                    }
                    match reply {
                        Reply::Forget(_) | Reply::Ok => self.send(&ok())?,
                        Reply::Error(failure) => self.send(&error(&failure))?,
                        Reply::Table(table) => {
                            let mut out = Vec::new();
                            put_result(&mut out, self.frames.sequence(), &table);
                            self.sends(&out)?;
                        }
                    }
                }
                Command::Register(_) if self.admin => self.send(&error(&not_for_admins()))?,
                Command::Dump(_) | Command::DumpGtid(_) if self.admin => {
                    return self.refuse(self.frames.sequence(), &not_for_admins());
                }
                Command::Register(register) => {
                    self.registered = Some(register);
                    self.send(&ok())?;
                }
                Command::Dump(dump) => return self.begins(self.session.dump(&dump)),
                Command::DumpGtid(dump) => return self.begins(self.session.dump_gtid(&dump)),
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

    /// A replica has asked for events.
    fn begins(&mut self, wants: Result<Wants, Failure>) -> Result<(), Ended> {
        let level = self.session.zstd(&self.facts());
        self.compressor = level.map(Compressor::new).transpose()?;
        match wants {
            Ok(wants) => self.dump(&wants),
            Err(failure) => self.refuse(self.frames.sequence(), &failure),
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
    pub(super) fn congestion(&self) -> String {
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
                ..Failure::new(
                    1045,
                    format!("Access denied for user '{}'", shown(&login.user)),
                )
            };
            return self.refuse(self.frames.sequence(), &failure);
        }
        let count = self.server.count.fetch_add(1, Ordering::Relaxed);
        self.admitted = true;
        let admin = account.is_some_and(|a| a.admin);
        let more = if admin { OPERATORS_MORE } else { 0 };
        if count >= self.server.options.connections_max.saturating_add(more) {
            let failure = Failure {
                state: *b"08004",
                ..Failure::new(1040, "Too many connections")
            };
            return self.refuse(self.frames.sequence(), &failure);
        }
        self.admin = admin;
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

    /// For the log.
    fn who(&self) -> String {
        let from = self.stream.tcp().peer_addr();
        let from = from.map_or_else(|_| "somewhere".to_owned(), |a| a.to_string());
        format!("'{}' from {from}", self.user)
    }

    fn known(&self, registry: &Registry) -> Vec<Listing> {
        let oldest = self.server.view.oldest().unwrap_or(0);
        let listing = |(id, known): (&u32, &Known)| Listing {
            host: Host {
                server_id: *id,
                host: known.host.clone(),
                port: known.port,
            },
            connected: known.connection.is_some(),
            last_seen: known.last_seen,
            needs: self.server.view.name(known.needs),
            cut_off: known.is_cut_off(oldest),
        };
        registry.known().iter().map(listing).collect()
    }

    fn facts(&self) -> Facts {
        // Before the position: one that catches up in between must not seem newer than it is.
        let lag_ms = self.server.relay_lag_ms();
        let state = self.server.view.state();
        let (hosts, known) = {
            let registry = self.server.registry();
            (registry.hosts(), self.known(&registry))
        };
        Facts {
            server_id: self.server.options.server_id,
            version: self.server.version(),
            connection: self.number,
            user: self.user.clone(),
            admin: self.admin,
            position: state.position().to_string(),
            state: state.to_string(),
            files: self.server.view.list(),
            hosts,
            known,
            now: unix_now(),
            port: self.server.port,
            zstd: self.server.options.zstd,
            kind: self.server.view.kind(),
            executed: self.server.view.executed().to_string(),
            purged: self.server.view.purged().to_string(),
            lag_ms,
            upstream: self.server.upstream(),
            failure: self.server.view.failure().map(|why| why.to_string()),
        }
    }
}
