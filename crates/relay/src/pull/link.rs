//! The connection to the primary: sockets, and what is done when they break.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use dromon_binlog::hints::{Hints, Limits, Reached};

use super::ask::{AskError, Asker, Login};
use super::backoff::{Attempts, Lived};
use super::cluster::{IS_NODE, IS_NODE_MAX, is_node};
use super::connection::{Connection, Fault};
use super::desk::Desk;
use super::following::{Following, lock, now};
use super::hinted::{HintTook, Statements, keep};
use super::ingest::{Act, Ingest, IngestError};
use super::lost::{lost, why};
use super::offers::Offers;
use super::session::{Primary, Session, SessionError, Wish, follow};
use crate::http::HintStatus;
use crate::log::{Level, Log};
use crate::net::ClientTls;
use crate::store::{History, Kind, Part, Place, Store, StoreError};
use crate::wire::{AckSemiSync, Compressed, Decompressor, WireError};

/// Bytes read at once, and so the most that one fsync waits for.
const READ_MAX: usize = 1 << 20;
/// For hints. A batch is short, and replicas look no further ahead: keys of some thousand transactions
/// are plenty.
const LIMITS: Limits = Limits {
    history_keys: 100_000,
    table_keys: 20_000,
    transaction_keys: 50_000,
    tables: 4096,
    bytes: 64 << 20,
    batch: 32,
    domains: 64,
};
/// What comes after so long a wait was sent after it had begun.
const WAITED: Duration = Duration::from_millis(10);

/// Where the events come from.
#[derive(Clone, Debug)]
pub struct Source {
    /// `host:port`.
    pub address: String,
    /// All but the position.
    pub wish: Wish,
    /// How to encrypt, if [`Wish::tls`].
    pub tls: Option<ClientTls>,
    /// Silence for so long means that the connection is dead.
    pub dead_after: Duration,
    /// Longest pause between attempts.
    pub backoff_max: Duration,
    /// Of a mirror without files: the primary's file that it begins with; `None`: the oldest.
    pub start_file: Option<u64>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// No name, no route, nobody there.
    #[error("The primary {address} cannot be reached: {source}.")]
    Connect {
        /// Which.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// It broke.
    #[error("The connection to the primary broke: {0}.")]
    Broken(io::Error),
    /// TLS did not come about.
    #[error(
        "The connection to the primary cannot be encrypted: {0}. Nothing secret was said to it. Compare primary_tls_ca \
         with who signed the primary's certificate (its ssl_cert)."
    )]
    NotEncrypted(io::Error),
    /// Silence.
    #[error("Nothing came from the primary for {} s, not even a heartbeat: the connection counts as dead.", .0.as_secs_f64())]
    Silent(Duration),
    /// The other side ended it.
    #[error("The primary closed the connection.")]
    Closed,
    /// The stream of another relay.
    #[error(
        "What the other relay sends cannot be decompressed: {0}. It comes again from what is stored."
    )]
    Zstd(io::Error),
    /// Packets that are none.
    #[error("The primary cannot be understood: {0}.")]
    Wire(#[from] WireError),
    /// It refused.
    #[error("{0}.")]
    Session(#[from] SessionError),
    /// Its events cannot be stored.
    #[error("{0}")]
    Ingest(#[from] IngestError),
    /// The own disk. Not tried again.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The relay ends.
    #[error("The relay ends.")]
    Stopping,
}

impl From<Fault> for PullError {
    fn from(fault: Fault) -> PullError {
        match fault {
            Fault::Connect(address, source) => PullError::Connect { address, source },
            Fault::Broken(error) => PullError::Broken(error),
            Fault::NotEncrypted(error) => PullError::NotEncrypted(error),
            Fault::Silent(after) => PullError::Silent(after),
            Fault::Closed => PullError::Closed,
            Fault::Wire(error) => PullError::Wire(error),
            Fault::Session(error) => PullError::Session(error),
        }
    }
}

/// The stream of a relay that compresses it.
struct Inflate {
    from: Decompressor,
    buf: Vec<u8>,
}

/// Pulls until it is told to end.
pub struct Puller {
    source: Source,
    desk: Option<Arc<Desk>>,
    offers: Offers,
    /// A group out of its domain's order has begun.
    unordered: bool,
    store: Store,
    ingest: Ingest,
    following: Arc<Mutex<Following>>,
    log: Log,
    attempts: Attempts,
    /// Of the connection that is there, as far as it is known before its end.
    lived: Lived,
    /// It was said that hints have no place in what this version sends.
    clockless: String,
    /// Groups that nothing can be found out about.
    statements: Statements,
    /// What was said of whom it follows, since the place to go on was found last.
    followed: String,
    /// What was said of the cluster that it follows a node of.
    warned: String,
    /// Called now and then between events: retention.
    every_now_and_then: Box<dyn FnMut() + Send>,
}

impl Puller {
    /// Of a store, which it fills.
    pub fn new(
        source: Source,
        store: Store,
        log: Log,
        every_now_and_then: Box<dyn FnMut() + Send>,
        desk: Option<Arc<Desk>>,
    ) -> Puller {
        let view = store.view();
        let (ingest, reached) = match view.kind() {
            Kind::Mirror => {
                let end = store.end().unwrap_or_default();
                (Ingest::mirroring(view.prefix()), end.as_position().into())
            }
            Kind::MariaDb => (Ingest::new(), store.state().position().into()),
            Kind::MySql => (Ingest::of_mysql(), Reached::from(store.executed().clone())),
        };
        let ingest = match desk {
            None => ingest,
            Some(_) => ingest.with_hints(Hints::behind(LIMITS, reached)),
        };
        let following = Following {
            address: source.address.clone(),
            user: source.wish.user.clone(),
            beat: source.wish.heartbeat,
            ..Following::default()
        };
        Puller {
            attempts: Attempts::new(Duration::from_millis(100), source.backoff_max),
            lived: Lived::default(),
            source,
            store,
            desk,
            offers: Offers::default(),
            unordered: false,
            ingest,
            following: Arc::new(Mutex::new(following)),
            log,
            clockless: String::new(),
            statements: Statements::default(),
            followed: String::new(),
            warned: String::new(),
            every_now_and_then,
        }
    }

    /// How it stands.
    pub fn following(&self) -> Arc<Mutex<Following>> {
        Arc::clone(&self.following)
    }

    /// Connects, and connects again, until told to end or the disk fails.
    pub fn run(mut self) -> Result<(), StoreError> {
        // The disk was full already when the store was opened.
        if let Some(error) = self.store.failure() {
            self.log.say(Level::Error, &error.to_string());
            return Err(error.clone());
        }
        let mut said = String::new();
        loop {
            let began = Instant::now();
            let had = self.stored();
            self.lived = Lived::default();
            let Err(error) = self.connection();
            if self.lived.found {
                self.followed.clear();
            }
            self.ingest.interrupt();
            {
                let mut following = lock(&self.following);
                following.connected = false;
                following.stream = None;
                following.last_error = Some(error.to_string());
                if following.stopping {
                    drop(following);
                    return self.store.close();
                }
            }
            if let PullError::Store(error) = error {
                self.log.say(Level::Error, &error.to_string());
                return Err(error);
            }
            self.store.abandon()?;
            self.store.flush()?;
            if let Some(why) = self.lost(&error) {
                return Err(self.halt(&why));
            }
            let lived = Lived {
                brought: self.stored() != had,
                silent: matches!(error, PullError::Silent(_)),
                lasted: began.elapsed(),
                ..self.lived
            };
            let pause = self.attempts.ended(lived, random());
            let text = error.to_string();
            // A primary that is away for a night does not fill the log.
            if text != said || self.attempts.failures().is_power_of_two() {
                self.log.say(
                    Level::Warning,
                    &format!(
                        "{text} Attempt {} follows in {:.1} s.",
                        self.attempts.failures() + 1,
                        pause.as_secs_f64()
                    ),
                );
                said = text;
            }
            self.pause(pause);
        }
    }

    /// Whether the primary has lost what it had sent, as this tells.
    fn lost(&self, error: &PullError) -> Option<String> {
        // Of a position with which the relay is to begin nobody knows whether it was right.
        self.store.end()?;
        let PullError::Session(error) = error else {
            return None;
        };
        let server_id = lock(&self.following).primary.server_id;
        match error {
            SessionError::Lost { lost } => Some(why(server_id, lost)),
            _ if self.store.kind() == Kind::MariaDb => {
                let has = self.store.state().position();
                let gtid = lost(error, &has, server_id)?;
                (!self.is_node()).then(|| why(server_id, &gtid.to_string()))
            }
            _ => None,
        }
    }

    /// Whether the primary is a node of a cluster: others of it may have its server id and write the same GTIDs,
    /// and what it lacks it gets from them. Also if that cannot be asked now, as it is tried again.
    fn is_node(&self) -> bool {
        let login = Login {
            address: self.source.address.clone(),
            user: self.source.wish.user.clone(),
            password: self.source.wish.password.clone(),
            tls: self.source.tls.clone(),
            limit: self.source.dead_after,
            in_all: Some(self.source.dead_after),
        };
        // Who is not let in has not answered: amid a storm of connections a node has no room.
        let Ok(mut asker) = Asker::connect(&login) else {
            return true;
        };
        match asker.ask(IS_NODE, IS_NODE_MAX) {
            Ok(rows) => is_node(&rows),
            // It knows no such question.
            Err(AskError::Session(SessionError::Refused { .. })) => false,
            Err(_) => true,
        }
    }

    fn halt(&mut self, why: &str) -> StoreError {
        let halted = self.store.halt(why);
        let halted = halted.unwrap_or_else(|error| {
            // Said at least, and found again at the next start.
            self.log.say(Level::Error, &error.to_string());
            StoreError::Halted { why: why.into() }
        });
        self.log.say(Level::Error, &halted.to_string());
        halted
    }

    /// What differs when something whole was brought: groups, or, of a mirror, the end.
    fn stored(&self) -> (History, Option<Place>) {
        let end = self.store.end().filter(|_| self.store.is_mirror());
        (self.store.history().clone(), end)
    }

    fn pause(&mut self, pause: Duration) {
        let until = Instant::now() + pause;
        loop {
            (self.every_now_and_then)();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || lock(&self.following).stopping {
                return;
            }
            thread::sleep(left.min(Duration::from_millis(100)));
        }
    }

    /// Of a mirror: the primary's file and byte behind which nothing is stored.
    fn file_position(&self) -> Option<(String, u64)> {
        let view = self.store.view();
        if !view.is_mirror() {
            return None;
        }
        let first = || match self.source.start_file {
            Some(number) => (view.name(number), 4),
            // Its oldest one.
            None => (String::new(), 4),
        };
        let end = self.store.end();
        Some(end.map_or_else(first, |end| (view.name(end.file), end.at)))
    }

    fn connection(&mut self) -> Result<std::convert::Infallible, PullError> {
        let Source {
            address,
            dead_after,
            ..
        } = &self.source;
        let mut connection = Connection::connect(address, *dead_after, READ_MAX)?;
        {
            let mut following = lock(&self.following);
            if following.stopping {
                return Err(PullError::Stopping);
            }
            following.stream = Some(Arc::clone(connection.tcp()));
        }
        let mut session = Session::new(Wish {
            position: self.store.state().position().to_string(),
            file: self.file_position(),
            executed: (self.store.kind() == Kind::MySql).then(|| self.store.executed().clone()),
            ..self.source.wish.clone()
        })
        .begins(self.store.end().is_none());
        let (tls, name) = (self.source.tls.as_ref(), &self.source.address);
        connection.introduce(&mut session, tls, name)?;
        let primary = session.primary().clone();
        let text = format!(
            "Follows {} ({}, server id {}){} from {}.",
            self.source.address,
            primary.version,
            primary.server_id,
            match (
                primary.semi_sync,
                primary.semi_sync_on,
                connection.is_encrypted()
            ) {
                (true, true, true) => " with semi-sync, encrypted,",
                (true, true, false) => " with semi-sync",
                (true, false, true) => " with semi-sync (off there as yet), encrypted,",
                (true, false, false) => " with semi-sync (off there as yet)",
                (false, _, true) => ", encrypted,",
                (false, _, false) => "",
            },
            match (self.store.has(), self.file_position()) {
                (_, Some((file, at))) if !file.is_empty() => format!("{file} byte {at}"),
                (has, _) if has.is_empty() => "the beginning".to_owned(),
                (has, _) => has,
            }
        );
        // Not each time that it is refused then.
        if text != self.followed {
            self.log.say(Level::Note, &text);
            self.followed = text;
        }
        if let Some(node) = primary.node {
            node.warn(&self.source.address, &mut self.warned, &self.log);
        }
        self.look_for_clocks(&primary.version);
        let (semi_sync, primary_zstd) = (primary.semi_sync, primary.zstd);
        // One that does not wait does not read what it is told either.
        let mut waits_for_us = primary.semi_sync_on;
        let mariadb = primary.version.contains("MariaDB");
        self.connected(primary, connection.is_encrypted());
        connection.follow(self.attempts.searches())?;
        self.lived.asked = true;
        if semi_sync && !mariadb {
            // Newer ones of MySQL read acknowledgements aside, and count on.
            connection.frames.any_sequence();
        }
        let mut inflate = match primary_zstd {
            None => None,
            Some(_) => Some(Inflate {
                from: Decompressor::new().map_err(PullError::Zstd)?,
                buf: vec![0; READ_MAX],
            }),
        };
        let mut acknowledged = None;
        // Since when nothing was there to be read, if something is now.
        let mut waits: Option<Instant> = None;
        // The same, if nothing is yet.
        let mut silent = None;
        loop {
            let mut ack = None;
            let mut last = None;
            let mut counted = HintStatus::default();
            let mut begun = false;
            while let Some(packet) = connection.frames.packet()? {
                let sent = follow(&mut connection.frames, &packet, semi_sync)?;
                let took = take(&mut self.ingest, &mut self.store, sent.event)?;
                last = Some(took);
                begun |= took.heartbeat || took.in_group;
                if let Some(hinted) = took.hinted {
                    counted.groups += 1;
                    counted.joined += u64::from(hinted.joined);
                    counted.barriers += u64::from(hinted.barrier);
                    if let Some(text) = self.statements.count(hinted) {
                        self.log.say(Level::Warning, &text);
                    }
                }
                if took.unordered {
                    lock(&self.following).unordered += 1;
                    self.unordered = true;
                }
                if self.unordered && !self.store.in_group() {
                    self.unordered = false;
                    if let Some(hints) = self.ingest.hints() {
                        let position = self.store.state().position();
                        self.offers.unordered(hints, LIMITS, position);
                    }
                }
                // What was stored but not acknowledged when a connection broke is not sent again:
                // the first heartbeat tells where it ended.
                let again = took.heartbeat && waits_for_us && !self.store.in_group();
                if sent.ack && !waits_for_us {
                    waits_for_us = true;
                    lock(&self.following).primary.semi_sync_on = true;
                    let text = "The primary waits for acknowledgements from now on (semi-sync).";
                    self.log.say(Level::Note, text);
                }
                if sent.ack || again {
                    let (file, position) = self.ingest.place();
                    ack = Some(AckSemiSync {
                        position,
                        file: file.to_vec(),
                    });
                }
            }
            if begun {
                self.lived.found = true;
                connection.found()?;
            }
            // Everything that has come is taken: one fsync for all of it.
            self.store.flush()?;
            if let Some(ack) = ack.filter(|ack| acknowledged.as_ref() != Some(ack)) {
                connection.tell(&ack.encode())?;
                acknowledged = Some(ack);
            }
            {
                let (file, position) = self.ingest.place();
                let mut following = lock(&self.following);
                following.position = position;
                if let Some(inflate) = &inflate {
                    following.zstd = Some(inflate.from.count());
                }
                if let Some(Took {
                    heartbeat,
                    idle,
                    time,
                    ..
                }) = last
                {
                    following.heard = Some(crate::clock::Moment::now());
                    // A relay tells by a heartbeat's time, which servers leave at 0.
                    following.behind = if heartbeat { time } else { 0 };
                    following.idle = idle && time == 0;
                    if following.idle && !self.store.in_group() {
                        following.complete = waits.or(following.complete);
                    }
                    // What a connection begins with has none.
                    if time > 0 && !heartbeat {
                        following.comes(self.ingest.made_ms(time), now());
                    }
                }
                if following.file.as_bytes() != file {
                    following.file = String::from_utf8_lossy(file).into_owned();
                }
            }
            self.exchange(counted);
            (self.every_now_and_then)();
            let asked = silent.unwrap_or_else(Instant::now);
            let came = match &mut inflate {
                None => connection.read()?,
                Some(inflate) => self.inflate(&mut connection, inflate)?,
            };
            silent = (!came).then_some(asked);
            waits = (came && asked.elapsed() >= WAITED).then_some(asked);
        }
    }

    /// A new connection, to the same server or to another one. What was read over the one before and
    /// waits to be learnt is void: the server may have crashed, lost its last transactions and used
    /// their numbers again.
    fn connected(&mut self, primary: Primary, encrypted: bool) {
        self.offers.withdraw();
        if let Some(hints) = self.ingest.hints() {
            hints.withdraw();
        }
        let mut following = lock(&self.following);
        following.connected = true;
        following.connections += 1;
        following.encrypted = encrypted;
        following.named = encrypted && self.source.tls.as_ref().is_some_and(ClientTls::is_named);
        following.zstd = primary.zstd.map(|_| Compressed::default());
        if following.primary.server_id != primary.server_id {
            // Another clock.
            (following.newest_ms, following.last_ms) = (0, 0);
        }
        following.primary = primary;
    }

    /// As [`Connection::read`], of a relay that compresses. Each time no more than one piece: a little
    /// may become very much.
    fn inflate(
        &self,
        connection: &mut Connection,
        inflate: &mut Inflate,
    ) -> Result<bool, PullError> {
        let mut came = false;
        loop {
            let n = inflate
                .from
                .take(&mut inflate.buf)
                .map_err(PullError::Zstd)?;
            if n > 0 {
                connection.frames.feed(&inflate.buf[..n]);
                return Ok(true);
            }
            let bytes = connection.bytes()?;
            if bytes.is_empty() {
                return Ok(came);
            }
            came = true;
            inflate.from.put(bytes);
        }
    }

    /// Of a relay with logical clocks: whether there is a place for them in what comes.
    fn look_for_clocks(&mut self, version: &str) {
        let missing =
            self.desk.is_some() && self.store.kind().by_place() && !writes_clocks(version);
        let version = if missing { version } else { "" };
        if missing && self.clockless != version {
            let text = format!(
                "policy = logical_clock has no effect: the primary ({version}) writes no logical clocks into its binlog. MySQL does \
                 from 5.7 on. Replicas get its events as they are."
            );
            self.log.say(Level::Warning, &text);
        }
        version.clone_into(&mut self.clockless);
    }

    /// Takes the tables that were read, asks for them if they are not known.
    fn exchange(&mut self, counted: HintStatus) {
        let (Some(desk), Some(hints)) = (&self.desk, self.ingest.hints()) else {
            return;
        };
        let mut following = lock(&self.following);
        let connection = following.connections;
        let read = desk.take(connection, counted.groups > counted.barriers);
        match self.store.kind() {
            // On one connection places in files rise, and sets are exact.
            Kind::Mirror | Kind::MySql => {
                if let Some(read) = read {
                    hints.offer(read.before, read.after, read.catalog);
                }
            }
            Kind::MariaDb => {
                let useless = self.offers.take(read, hints, self.store.state());
                if let Some((why, is_new)) = useless {
                    if is_new {
                        let text = format!("The primary's tables cannot be used: {why}.");
                        self.log.say(Level::Warning, &text);
                    }
                    desk.is_useless(why);
                }
            }
        }
        let wanted = !hints.has_catalog() && !hints.has_offer();
        let wanted = wanted && !self.offers.waits() && self.clockless.is_empty();
        let server_id = following.primary.server_id;
        if wanted {
            let state = self.store.state();
            self.offers.wanted(server_id, || state.position());
        }
        desk.want(wanted, server_id, connection);
        let (catalogs, error) = desk.told();
        let so_far = following.hints.take().unwrap_or_default();
        following.hints = Some(HintStatus {
            catalog: hints.has_catalog(),
            catalogs,
            error,
            groups: so_far.groups + counted.groups,
            joined: so_far.joined + counted.joined,
            barriers: so_far.barriers + counted.barriers,
        });
    }
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Took {
    /// It was out of its domain's order.
    pub unordered: bool,
    /// It belongs to a group. What a file of the primary begins with comes before the place is looked for.
    pub in_group: bool,
    /// The primary is there.
    pub heartbeat: bool,
    /// And it has nothing more.
    pub idle: bool,
    /// When the event was made, in seconds of the primary's clock; 0: it does not say.
    pub time: u32,
    /// Of a group that became whole, if hints are computed.
    pub hinted: Option<HintTook>,
}

/// Stores an event as [`Ingest`] says.
pub fn take(ingest: &mut Ingest, store: &mut Store, event: &[u8]) -> Result<Took, PullError> {
    let taken = ingest.event(event, store.history(), store.format(), store.end())?;
    if taken.abandon {
        store.abandon()?;
    }
    let in_group = matches!(taken.act, Act::Store(..));
    match taken.act {
        Act::Nothing => {}
        Act::File(format) => store.begin_file(&format)?,
        Act::Mirror(number, format) => store.begin_mirror(number, &format)?,
        Act::Between(raw) => store.append_between(raw)?,
        Act::Store(raw, part) => {
            if matches!(part, Part::Begin | Part::Alone(..)) && store.is_full() {
                store.rotate()?;
            }
            store.append(raw, part)?;
        }
    }
    let hinted = taken.hint.as_ref().map(|hint| keep(hint, store));
    Ok(Took {
        hinted,
        unordered: taken.unordered.is_some(),
        in_group,
        heartbeat: taken.heartbeat,
        idle: taken.idle,
        time: taken.time,
    })
}

/// Whether a server of this version writes logical clocks: MySQL from 5.7 on.
fn writes_clocks(version: &str) -> bool {
    let old = ["3.", "4.", "5.0", "5.1", "5.4", "5.5", "5.6"];
    !version.contains("MariaDB") && !old.iter().any(|old| version.starts_with(old))
}

/// For jitter only.
fn random() -> u32 {
    getrandom::u32().unwrap_or(0x8000_0000)
}

#[cfg(test)]
mod tests {
    use dromon_binlog::hints::Catalog;
    use dromon_binlog::{
        BinlogState, Checksum, EventType, Format, GroupName, Header, Payload, Position,
        encode_event, version_bytes,
    };
    use dromon_log::SimDevice;

    use super::super::desk::ReadTables;
    use super::*;
    use crate::store::StoreOptions;

    fn puller(kind: Kind, desk: Option<Arc<Desk>>) -> Puller {
        puller_on(SimDevice::new(1), kind, desk)
    }

    fn puller_on(device: SimDevice, kind: Kind, desk: Option<Arc<Desk>>) -> Puller {
        let options = StoreOptions {
            kind,
            ..StoreOptions::default()
        };
        let device = Arc::new(device);
        let (store, _) = Store::open(device, options, BinlogState::new()).expect("empty");
        let source = Source {
            address: "nowhere:1".into(),
            wish: Wish {
                user: String::new(),
                password: String::new(),
                tls: false,
                server_id: 7,
                report_host: String::new(),
                report_port: 0,
                heartbeat: Duration::from_secs(1),
                semi_sync: false,
                zstd: None,
                position: String::new(),
                file: None,
                executed: None,
                channel: None,
            },
            tls: None,
            dead_after: Duration::from_secs(1),
            backoff_max: Duration::from_secs(1),
            start_file: None,
        };
        Puller::new(source, store, Log::terminal(), Box::new(|| ()), desk)
    }

    /// Tables that wait for their place are void with their connection, though it is the same server
    /// that comes back: it may have lost what they show.
    #[test]
    fn tables_wait_no_longer_than_their_connection() {
        let desk = Arc::<Desk>::default();
        let mut puller = puller(Kind::MariaDb, Some(Arc::clone(&desk)));
        let mariadb = Primary {
            version: "10.11.6-MariaDB".into(),
            server_id: 1,
            ..Primary::default()
        };
        let read = |connection| {
            let ahead: Position = "0-1-7".parse().expect("a position");
            desk.put(ReadTables {
                connection,
                before: ahead.clone().into(),
                after: ahead.into(),
                catalog: Catalog::new(Vec::new()),
            });
        };
        puller.connected(mariadb.clone(), false);
        read(1);
        puller.exchange(HintStatus::default());
        assert!(puller.offers.waits());
        puller.connected(mariadb.clone(), false);
        assert!(!puller.offers.waits());
        // And what was begun to be read before.
        read(1);
        puller.exchange(HintStatus::default());
        assert!(!puller.offers.waits());
        read(2);
        puller.exchange(HintStatus::default());
        assert!(puller.offers.waits());
    }

    /// A domain was dropped at the primary (DELETE_DOMAIN_ID): its tables are used if it wrote that itself, and else
    /// it is said why not.
    #[test]
    fn a_primary_that_names_a_domain_no_more() {
        for (has, error) in [("0-1-9,5-1-7", None), ("0-1-9,5-2-7", Some("5-2-7"))] {
            let desk = Arc::<Desk>::default();
            let mut puller = puller(Kind::MariaDb, Some(Arc::clone(&desk)));
            let state: BinlogState = has.parse().expect("a state");
            let hints = Hints::behind(LIMITS, state.position());
            puller.ingest = Ingest::new().with_hints(hints);
            let device = Arc::new(SimDevice::new(1));
            let opened = Store::open(device, StoreOptions::default(), state);
            puller.store = opened.expect("empty").0;
            let primary = Primary {
                server_id: 1,
                ..Primary::default()
            };
            puller.connected(primary, false);
            for _ in 0..3 {
                puller.exchange(HintStatus::default());
                let named: Position = "0-1-9".parse().expect("a position");
                desk.put(ReadTables {
                    connection: 1,
                    before: named.clone().into(),
                    after: named.into(),
                    catalog: Catalog::new(Vec::new()),
                });
            }
            puller.exchange(HintStatus::default());
            let hints = puller.ingest.hints().expect("computed");
            assert_eq!(hints.has_catalog(), error.is_none(), "{has}");
            let told = desk.told().1.unwrap_or_default();
            assert_eq!(
                error.is_some_and(|gtid| told.contains(gtid)),
                error.is_some(),
                "{told}"
            );
        }
    }

    /// One session that says a time of long ago, or of the future, makes the relay neither late nor early.
    #[test]
    fn what_a_session_says_of_its_time() {
        let mut following = Following {
            heard: Some(crate::clock::Moment::now()),
            beat: Duration::from_secs(3600),
            ..Following::default()
        };
        let now = now();
        let mut comes = |time| {
            following.comes(time * 1000, now);
            following.lag_ms().expect("something came")
        };
        assert!(comes(now - 1000) >= 1_000_000);
        assert!(comes(now - 900) < 1_000_000);
        let late = comes(now - 86_400);
        assert!((900_000..1_000_000).contains(&late), "{late}");
        assert_eq!(comes(now + 86_400), 0);
        let late = comes(now - 800);
        assert!(late >= 800_000, "the one ahead counts no more: {late}");
        assert!(comes(now) < 60_000);
        // Another primary has another clock.
        let mut puller = puller(Kind::MariaDb, None);
        puller.following = Arc::new(Mutex::new(following));
        puller.connected(Primary::default(), false);
        assert!(puller.following().lock().expect("alive").newest_ms > 0);
        let other = Primary {
            server_id: 9,
            ..Primary::default()
        };
        puller.connected(other, false);
        assert_eq!(puller.following().lock().expect("alive").lag_ms(), None);
    }

    /// Nothing is asked of a primary when nothing can be stored.
    #[test]
    fn begun_with_a_full_disk() {
        let device = SimDevice::new(1);
        device.set_capacity(Some(0));
        let puller = puller_on(device, Kind::MariaDb, None);
        let following = puller.following();
        assert!(puller.run().expect_err("no room").is_full());
        assert_eq!(lock(&following).last_error, None, "it tried to connect");
    }

    /// A connection that brings something to a mirror is a success, too.
    #[test]
    fn what_a_connection_has_brought() {
        let format = Format {
            binlog_version: 4,
            server_version: version_bytes("5.6.51-log"),
            created: 0,
            post_header_lens: vec![0; 35],
            checksum: Some(Checksum::Crc32),
        };
        let event = |kind, payload: &Payload<'_>| {
            let header = Header {
                timestamp: 1000,
                kind,
                server_id: 1,
                len: 0,
                end_pos: 0,
                flags: 0,
            };
            encode_event(&header, payload, &format)
        };
        let mut puller = puller(Kind::Mirror, None);
        let begins = Payload::Format(Box::new(format.clone()));
        let begins = event(EventType::FORMAT_DESCRIPTION, &begins);
        puller.store.begin_mirror(1, &begins).expect("a good disk");
        let had = puller.stored();
        assert_eq!(puller.stored(), had);
        let group = event(EventType::XID, &Payload::Xid(5));
        let part = Part::Alone(GroupName::Nameless, 1000);
        puller.store.append(group, part).expect("a good disk");
        puller.store.flush().expect("a good disk");
        assert_ne!(puller.stored(), had);
    }
}
