//! What comes from the primary or a relay: whole transactions, in order, over any number of
//! connections.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dromon_binlog::{
    Event, EventType, Format, Group, GroupName, Grouper, Gtid, Payload, Position, Step as Place,
    StreamError, raw_len,
};
use dromon_relay::log::{Level, Log};
use dromon_relay::net::ClientTls;
use dromon_relay::pull::{Attempts, Connection, Fault, Lived, Session, SessionError, Wish, sent};
use dromon_relay::wire::WireError;

use crate::beside::Beside;
use crate::unit::{Events, Form, Transaction};

const READ_MAX: usize = 256 << 10;
/// Error of a primary that does not have the position.
const NOT_THERE: u16 = 1236;

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
    /// Longest transaction in bytes of events, with what comes of compressed ones: it is held in memory as a
    /// whole.
    pub transaction_max: usize,
}

/// What comes.
#[derive(Debug)]
pub enum Came {
    /// The next transaction.
    Transaction(Box<Transaction>),
    /// The source was started anew, behind all that came so far: its temporary tables are gone, whether or not it
    /// has said so.
    Restarted,
    /// It cannot go on, and trying again does not help.
    Refused(String),
    /// The same, of a new channel before anything came.
    NotBegun(String),
}

#[derive(Debug, thiserror::Error)]
enum PullError {
    #[error("the source {0} cannot be reached: {1}")]
    Connect(String, io::Error),
    #[error(
        "the connection to the source cannot be encrypted: {0}. Nothing secret was said to it. Compare source_tls_ca with who \
         signed the source's certificate (its ssl_cert)"
    )]
    NotEncrypted(io::Error),
    #[error("the connection to the source broke: {0}")]
    Broken(#[from] io::Error),
    #[error("nothing came from the source for {} s, not even a heartbeat", .0.as_secs_f64())]
    Silent(Duration),
    #[error("the source closed the connection")]
    Closed,
    #[error("the source cannot be understood: {0}")]
    Wire(#[from] WireError),
    #[error("{0}")]
    Session(#[from] SessionError),
    #[error("what the source sent cannot be followed: {0}")]
    Stream(#[from] StreamError),
    #[error("{0}")]
    Never(String),
    #[error("it was told to end")]
    Stopping,
}

impl From<Fault> for PullError {
    fn from(fault: Fault) -> PullError {
        match fault {
            Fault::Connect(address, error) => PullError::Connect(address, error),
            Fault::Broken(error) => PullError::Broken(error),
            Fault::NotEncrypted(error) => PullError::NotEncrypted(error),
            Fault::Silent(after) => PullError::Silent(after),
            Fault::Closed => PullError::Closed,
            Fault::Wire(error) => PullError::Wire(error),
            Fault::Session(error) => PullError::Session(error),
        }
    }
}

/// How it stands, for others.
#[derive(Debug, Default)]
pub struct Link {
    /// Connected, and events come.
    pub connected: AtomicBool,
    /// Connections so far.
    pub connections: AtomicU64,
    /// Bytes of events.
    pub bytes: AtomicU64,
    /// Bytes of events that were passed on and not planned yet.
    pub waiting: AtomicU64,
    /// It was refused for good: what is behind it is not known.
    pub refused: AtomicBool,
    waiting_max: u64,
    stopping: AtomicBool,
    stream: Mutex<Option<Arc<TcpStream>>>,
}

impl Link {
    /// At most about so many bytes wait.
    pub fn new(waiting_max: u64) -> Link {
        Link {
            waiting_max,
            ..Link::default()
        }
    }

    /// Ends the connection and all attempts.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = &*stream {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// What was said of a source, and is not to be said again.
#[derive(Debug, Default)]
pub struct Told {
    /// That it is a node of a cluster, and which.
    pub(crate) of_cluster: String,
    /// That the target's own threads may follow it.
    of_threads: String,
}

/// Pulls until it is told to end.
pub struct Puller {
    source: Source,
    position: Position,
    to: SyncSender<Came>,
    link: Arc<Link>,
    log: Log,
    /// The transaction that is under way.
    open: Events,
    form: Option<Arc<Form>>,
    /// The source's file that comes, as it says.
    file: Vec<u8>,
    /// The source's start that was told last: the file that began with it, and when. Two may be in one second.
    started: Option<(Vec<u8>, u32)>,
    /// Something was passed on since the source was started last.
    passed: bool,
    /// Number of the server that all is for.
    target: Option<u32>,
    /// What else may apply there, and whether something is left out here.
    beside: (Beside, bool),
    /// Where the channel begins, if nothing of any source is applied yet.
    begins: Option<Position>,
    /// What was said of the source, over all sessions.
    told: Arc<Mutex<Told>>,
    /// What was said of whom it follows, since the place to go on was found last.
    followed: String,
    attempts: Attempts,
    /// How the connection is.
    lived: Lived,
}

impl Puller {
    /// From what follows a position.
    pub fn new(
        source: Source,
        position: Position,
        to: SyncSender<Came>,
        link: Arc<Link>,
        log: Log,
    ) -> Puller {
        Puller {
            attempts: Attempts::new(Duration::from_millis(100), source.backoff_max),
            lived: Lived::default(),
            source,
            position,
            to,
            link,
            log,
            open: Events::default(),
            form: None,
            file: Vec::new(),
            started: None,
            passed: false,
            target: None,
            beside: (Beside::default(), false),
            begins: None,
            told: Arc::default(),
            followed: String::new(),
        }
    }

    /// For a server with this number, which its source must not have.
    #[must_use]
    pub fn for_target(self, server: u32) -> Puller {
        Puller {
            target: Some(server),
            ..self
        }
    }

    /// With what else applies to the target, which must not be from the same source. `filters`: something is
    /// left out here.
    #[must_use]
    pub(crate) fn beside(self, beside: Beside, filters: bool) -> Puller {
        Puller {
            beside: (beside, filters),
            ..self
        }
    }

    /// `begins`: the channel is new, and nothing is applied yet: one that would not send all is refused.
    #[must_use]
    pub fn beginning(self, begins: bool) -> Puller {
        Puller {
            begins: begins.then(|| self.position.clone()),
            ..self
        }
    }

    /// With what was said in earlier sessions, so that it is not said again.
    #[must_use]
    pub fn having_told(self, told: Arc<Mutex<Told>>) -> Puller {
        Puller { told, ..self }
    }

    /// Connects, and connects again.
    pub fn run(mut self) {
        let mut said = String::new();
        loop {
            let began = Instant::now();
            let had = self.position.clone();
            self.lived = Lived::default();
            let Err(error) = self.connection();
            self.open.clear();
            self.link.connected.store(false, Ordering::Release);
            if self.link.stopping.load(Ordering::Acquire) {
                return;
            }
            let refused = match &error {
                PullError::Never(_) => true,
                PullError::Session(SessionError::Refused { failure, .. }) => {
                    failure.code == NOT_THERE
                }
                PullError::Session(SessionError::SameServerId(_) | SessionError::OwnWrites) => true,
                _ => false,
            };
            if refused {
                self.link.refused.store(true, Ordering::Release);
                // Nobody takes it any more if the applier has ended.
                let came = match self.is_beginning() {
                    true => Came::NotBegun,
                    false => Came::Refused,
                };
                let _ = self.to.send(came(error.to_string()));
                return;
            }
            let pause = self.ended(&error, self.position != had, began.elapsed());
            let text = error.to_string();
            if text != said || self.attempts.failures().is_power_of_two() {
                let attempt = self.attempts.failures() + 1;
                let line = format!(
                    "{text}. Attempt {attempt} follows in {:.1} s.",
                    pause.as_secs_f64()
                );
                self.log.say(Level::Warning, &line);
                said = text;
            }
            let until = Instant::now() + pause;
            while Instant::now() < until && !self.link.stopping.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// A connection ended so: how long to wait.
    fn ended(&mut self, error: &PullError, brought: bool, lasted: Duration) -> Duration {
        let lived = Lived {
            brought,
            silent: matches!(error, PullError::Silent(_)),
            lasted,
            ..self.lived
        };
        let random = getrandom::u32().unwrap_or(1 << 31);
        self.attempts.ended(lived, random)
    }

    /// Nothing of any source is applied yet, nor has anything come.
    fn is_beginning(&self) -> bool {
        self.begins.as_ref() == Some(&self.position)
    }

    fn connection(&mut self) -> Result<std::convert::Infallible, PullError> {
        let address = &self.source.address;
        let mut connection = Connection::connect(address, self.source.dead_after, READ_MAX)?;
        {
            let mut kept = self
                .link
                .stream
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *kept = Some(Arc::clone(connection.tcp()));
        }
        if self.link.stopping.load(Ordering::Acquire) {
            return Err(PullError::Stopping);
        }
        let mut session = Session::new(Wish {
            position: self.position.to_string(),
            semi_sync: false,
            ..self.source.wish.clone()
        })
        .begins(self.is_beginning());
        let tls = self.source.tls.as_ref();
        connection.introduce(&mut session, tls, address)?;
        let primary = session.primary();
        if self.target == Some(primary.server_id) {
            return Err(PullError::Never(format!(
                "source {} and target have the same server_id, {}: what comes from there could not be told from what the target wrote \
                 itself. Give one of them another server_id",
                self.source.address, primary.server_id
            )));
        }
        let text = format!(
            "Follows {} ({}, server id {}){} behind {}.",
            self.source.address,
            primary.version,
            primary.server_id,
            if connection.is_encrypted() {
                ", encrypted,"
            } else {
                ""
            },
            match self.position.is_empty() {
                true => "nothing".to_owned(),
                false => self.position.to_string(),
            }
        );
        // Not each time that it is refused then.
        if text != self.followed {
            self.log.say(Level::Note, &text);
            self.followed = text;
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let (beside, filters) = &self.beside;
        let is = (address.as_str(), primary.server_id);
        if let Some(why) = beside.refuses(is, *filters, &mut told.of_threads, &self.log) {
            return Err(PullError::Never(why));
        }
        if let Some(node) = primary.node {
            node.warn(address, &mut told.of_cluster, &self.log);
        }
        drop(told);
        self.link.connected.store(true, Ordering::Release);
        self.link.connections.fetch_add(1, Ordering::Relaxed);
        self.lived.asked = true;
        connection.follow(self.attempts.searches())?;
        let mut grouper = Grouper::of_connection();
        self.form = None;
        loop {
            while let Some(packet) = connection.frames.next()? {
                if self.event(&mut grouper, packet)? {
                    self.followed.clear();
                    self.lived.found = true;
                    connection.found()?;
                }
            }
            connection.read()?;
        }
    }

    /// Takes an event. Whether it shows that the source has found the place to go on.
    fn event(&mut self, grouper: &mut Grouper, packet: &[u8]) -> Result<bool, PullError> {
        let sent = sent(packet, false)?;
        self.link
            .bytes
            .fetch_add(sent.event.len() as u64, Ordering::Relaxed);
        let seen = grouper.event(sent.event)?;
        if seen.abandoned.is_some() {
            self.open.clear();
        }
        match seen.event.kind() {
            EventType::ROTATE => self.turns(&seen.event, grouper.format())?,
            EventType::FORMAT_DESCRIPTION => self.begins(&seen.event)?,
            _ => {}
        }
        let step = seen.step;
        let found = step != Place::Between || seen.event.kind() == EventType::HEARTBEAT;
        if matches!(step, Place::Begin(_) | Place::Alone(..)) {
            self.open.clear();
        }
        if step != Place::Between {
            self.open.push(sent.event);
            if let Some(form) = &self.form {
                self.open.unpacks(unpacked(&seen.event, &form.format));
            }
            if self.open.weight() > self.source.transaction_max {
                return Err(PullError::Never(self.too_long()));
            }
        }
        if let Place::End(group, ending) | Place::Alone(group, ending) = step {
            self.done(group, ending, &seen.event)?;
        }
        Ok(found)
    }

    /// The source says which file comes, before each one, and at the beginning of each connection.
    fn turns(&mut self, event: &Event<'_>, format: Option<&Format>) -> Result<(), PullError> {
        let unknown = Format::unknown();
        let payload = event.decode(format.unwrap_or(&unknown));
        if let Payload::Rotate(rotate) =
            payload.map_err(|error| StreamError::Event { at: 0, error })?
        {
            self.file = rotate.file.to_vec();
        }
        Ok(())
    }

    /// A file of the source begins, or what is sent of one.
    fn begins(&mut self, event: &Event<'_>) -> Result<(), PullError> {
        let form = Form::of(event).map_err(|error| StreamError::Event { at: 0, error })?;
        let started = Some((self.file.clone(), form.format.created));
        // Amid a file, and where one follows another by itself, no time stands in it. What is told a second time is
        // no news.
        let is_news = form.format.created != 0 && started != self.started;
        self.form = Some(Arc::new(form));
        if is_news {
            self.started = started;
        }
        match is_news && std::mem::take(&mut self.passed) {
            true => self.send(Came::Restarted),
            false => Ok(()),
        }
    }

    fn too_long(&self) -> String {
        format!(
            "it sent a transaction of more than {} bytes, behind {}, and a transaction is held in memory as a whole. Nothing of it is in the \
             target; everything before it is, or will be. With enough memory (several times its size), raise transaction_max",
            self.source.transaction_max,
            match self.position.is_empty() {
                true => "nothing".to_owned(),
                false => self.position.to_string(),
            }
        )
    }

    /// A transaction is whole with this event.
    fn done(
        &mut self,
        group: Group,
        ending: dromon_binlog::Ending,
        event: &Event<'_>,
    ) -> Result<(), PullError> {
        let next = Events::like(&self.open);
        let events = std::mem::replace(&mut self.open, next);
        let never = |text: String| Err(PullError::Never(text));
        let gtid = match group.name {
            GroupName::MariaDb(gtid) => gtid,
            // MariaDB writes it without a GTID, behind a statement that is lost.
            GroupName::Nameless if event.kind() == EventType::INCIDENT => {
                let behind = match self.position.is_empty() {
                    true => "at the beginning".to_owned(),
                    false => format!("behind {}", self.position),
                };
                return never(format!(
                    "the source sent an INCIDENT {behind}: {}",
                    incident(event)
                ));
            }
            GroupName::Nameless | GroupName::MySql { .. } => {
                return never("the source sent a transaction without a GTID of MariaDB; MySQL is not offered yet".into());
            }
        };
        if let Some(last) = self.position.get(gtid.domain)
            && last.seqno >= gtid.seqno
        {
            return never(out_of_order(gtid, last));
        }
        let Some(form) = self.form.clone() else {
            return never("the source sent no format description".into());
        };
        let transaction = Transaction {
            gtid,
            group,
            ending,
            events,
            form,
            own: None,
        };
        self.position.set(gtid);
        self.passed = true;
        self.send(Came::Transaction(Box::new(transaction)))
    }

    /// Waits for room, and meanwhile sees whether it shall end.
    fn send(&mut self, mut came: Came) -> Result<(), PullError> {
        while self.link.waiting.load(Ordering::Relaxed) > self.link.waiting_max {
            if self.link.stopping.load(Ordering::Acquire) {
                return Err(PullError::Stopping);
            }
            thread::sleep(Duration::from_millis(1));
        }
        if let Came::Transaction(transaction) = &came {
            let bytes = transaction.bytes() as u64;
            self.link.waiting.fetch_add(bytes, Ordering::Relaxed);
        }
        loop {
            match self.to.try_send(came) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(_)) => return Err(PullError::Stopping),
                Err(TrySendError::Full(back)) => {
                    if self.link.stopping.load(Ordering::Acquire) {
                        return Err(PullError::Stopping);
                    }
                    came = back;
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }
}

/// How many bytes come of what is compressed in an event, by its own word. What cannot be read is told
/// when it is applied.
fn unpacked(event: &Event<'_>, format: &Format) -> usize {
    let packed = match event.kind() {
        EventType::QUERY_COMPRESSED
        | EventType::WRITE_ROWS_COMPRESSED_V1
        | EventType::UPDATE_ROWS_COMPRESSED_V1
        | EventType::DELETE_ROWS_COMPRESSED_V1
        | EventType::WRITE_ROWS_COMPRESSED_V2
        | EventType::UPDATE_ROWS_COMPRESSED_V2
        | EventType::DELETE_ROWS_COMPRESSED_V2 => match event.decode(format) {
            Ok(Payload::Rows(rows)) => raw_len(rows.stored),
            Ok(Payload::Query(query)) => raw_len(query.stored),
            _ => None,
        },
        _ => None,
    };
    packed.map_or(0, |bytes| bytes as usize)
}

/// Why a group cannot follow another one of its domain.
fn out_of_order(gtid: Gtid, last: Gtid) -> String {
    let why = match gtid.server == last.server {
        true => "this is another history. Was RESET MASTER run there, or is it another server?",
        false => {
            "two servers wrote in one domain. Where gtid_strict_mode is off they may; it cannot be followed here, since a position says \
             of a domain up to where it is applied. Let the target be made anew from a copy of the source"
        }
    };
    format!("the source sent {gtid}, but what comes next must be behind {last}: {why}")
}

/// What an INCIDENT means, and what to do.
pub(crate) fn incident(event: &Event<'_>) -> String {
    // A number u16, the length of a text u8, the text.
    let text = match event.body() {
        [_, _, len, text @ ..] => text.get(..usize::from(*len)).unwrap_or(text),
        _ => &[],
    };
    let said = match String::from_utf8_lossy(text).trim() {
        "" => String::new(),
        text => format!(" It says: '{}'.", text.escape_debug()),
    };
    format!(
        "it has changed data that its binlog lacks (it could not write a change that cannot be taken back: a full disk, or one larger than \
         its caches).{said} Nobody can tell from the binlog what that was, so nothing behind it is applied; all before it is, or will be. \
         The error log of the source has the cause. Then make a new copy of its data, and begin behind the position of that copy"
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use dromon_binlog::{Checksum, Header, Rotate, compress, encode_event, version_bytes};

    use super::*;
    use crate::fake_target::{Fake, Reply, settings};

    /// A source that lets it in, and then sends nothing, night after night.
    #[test]
    fn the_same_again_is_said_now_and_then() {
        let fake = Fake::new(|text| match text {
            _ if text.contains("@@GLOBAL.server_id") => {
                let cells = ["1", "10.11.18-MariaDB-log"];
                Some(Reply::Row(cells.map(str::to_owned).to_vec()))
            }
            _ if text.starts_with("SET ") => None,
            _ => Some(Reply::Nothing),
        });
        let source = Source {
            address: fake.account().address,
            ..settings(&fake, &[]).source
        };
        let path = std::env::temp_dir().join(format!("dromon-source-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let log = Log::file(&path).expect("writable");
        let (to, _from) = std::sync::mpsc::sync_channel(1);
        let link = Arc::new(Link::new(1000));
        let puller = Puller::new(source, Position::new(), to, Arc::clone(&link), log);
        let thread = thread::spawn(move || puller.run());
        let until = Instant::now() + Duration::from_secs(60);
        let said = loop {
            let said = std::fs::read_to_string(&path).expect("readable");
            if said.contains("Attempt 5 follows") {
                break said;
            }
            assert!(Instant::now() < until, "{said}");
            thread::sleep(Duration::from_millis(10));
        };
        link.stop();
        thread.join().expect("it ends");
        std::fs::remove_file(&path).expect("there");
        assert_eq!(said.matches("Follows").count(), 1, "{said}");
        assert!(said.contains("Attempt 3 follows"), "{said}");
        assert!(!said.contains("Attempt 4 follows"), "{said}");
    }

    fn format() -> Format {
        Format {
            binlog_version: 4,
            server_version: version_bytes("10.11.19-MariaDB-log"),
            created: 0,
            post_header_lens: vec![0; 164],
            checksum: Some(Checksum::Crc32),
        }
    }

    /// As a packet.
    pub(crate) fn event(kind: EventType, payload: &Payload<'_>) -> Vec<u8> {
        let header = Header {
            timestamp: 1000,
            kind,
            server_id: 1,
            len: 0,
            end_pos: 0,
            flags: 0,
        };
        [vec![0], encode_event(&header, payload, &format())].concat()
    }

    /// One that follows what the test says.
    fn puller(transaction_max: usize, to: SyncSender<Came>) -> (Puller, Grouper) {
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
            transaction_max,
        };
        let position = "0-1-9".parse().expect("a position");
        let mut puller = Puller::new(source, position, to, Arc::default(), Log::terminal());
        let mut grouper = Grouper::of_connection();
        puller
            .event(&mut grouper, &started(0))
            .expect("a beginning");
        (puller, grouper)
    }

    /// That a source was started then, as a packet.
    pub(crate) fn started(created: u32) -> Vec<u8> {
        let format = Format {
            created,
            ..format()
        };
        let payload = Payload::Format(Box::new(format));
        event(EventType::FORMAT_DESCRIPTION, &payload)
    }

    /// A GTID of domain 0 and server 1, as a packet.
    pub(crate) fn gtid(seqno: u8, flags: u8) -> Vec<u8> {
        let mut body = [0; 19];
        (body[0], body[12]) = (seqno, flags);
        event(EventType::GTID, &Payload::Other(&body))
    }

    /// That a file of this name comes, as a packet.
    fn file(name: &[u8]) -> Vec<u8> {
        let rotate = Rotate {
            position: 4,
            file: name,
        };
        event(EventType::ROTATE, &Payload::Rotate(rotate))
    }

    /// Of what comes, the seqnos of transactions; 0: the source was started.
    fn passed_on(from: &std::sync::mpsc::Receiver<Came>) -> Vec<u64> {
        let all = from.try_iter().map(|came| match came {
            Came::Transaction(transaction) => transaction.gtid.seqno,
            Came::Restarted => 0,
            Came::Refused(why) | Came::NotBegun(why) => panic!("{why}"),
        });
        all.collect()
    }

    /// A start of the source is told behind all that came before, once, and only if anything did: what is
    /// made from a file is never lost by the beginning of that file.
    #[test]
    fn a_source_that_is_started_anew() {
        let gtid = |seqno| gtid(seqno, 0);
        let end = || event(EventType::XID, &Payload::Other(&[1, 0, 0, 0, 0, 0, 0, 0]));
        let (to, from) = std::sync::mpsc::sync_channel(10);
        let (mut all, mut grouper) = puller(1 << 20, to.clone());
        all.link = Arc::new(Link::new(1 << 20));
        let mut takes = |packets: &[Vec<u8>]| {
            for packet in packets {
                all.event(&mut grouper, packet).expect("it may come");
            }
            passed_on(&from)
        };
        // Of a file that it comes into the middle of, or that follows another one, no time is told.
        assert_eq!(
            takes(&[gtid(10), end(), started(0), gtid(11), end()]),
            [10, 11]
        );
        // It crashed amid a transaction.
        assert_eq!(takes(&[gtid(12), started(77), gtid(12), end()]), [0, 12]);
        // The same again, and behind a connection that broke.
        assert_eq!(takes(&[started(77), gtid(13), end(), started(0)]), [13]);
        assert_eq!(takes(&[started(77), started(0), gtid(14), end()]), [14]);
        // Twice within a second: the time is the same, the file is not. That one again is no news.
        for (name, seqno, wanted) in [
            (&b"bin.5"[..], 15, &[0, 15][..]),
            (b"bin.6", 16, &[0, 16]),
            (b"bin.6", 17, &[17]),
        ] {
            let all = [file(name), started(78), gtid(seqno), end()];
            assert_eq!(takes(&all), wanted);
        }
        // Twice, with nothing in between.
        assert_eq!(takes(&[started(79), started(80), gtid(18), end()]), [0, 18]);
        let read = &all.form.as_ref().expect("a form").format;
        assert_eq!(read.created, 80);

        // Nothing was made before what comes first, nor does it count when it comes again.
        let (mut first, mut grouper) = puller(1 << 20, to);
        first.link = Arc::new(Link::new(1 << 20));
        let mut takes = |packets: &[Vec<u8>]| {
            for packet in packets {
                first.event(&mut grouper, packet).expect("it may come");
            }
            passed_on(&from)
        };
        assert_eq!(takes(&[started(77), gtid(10), end()]), [10]);
        assert_eq!(takes(&[started(77), gtid(11), end()]), [11]);
    }

    /// A source that has not found the place in time is given more of it at the next attempt, until it has.
    #[test]
    fn who_looks_for_the_place_is_given_time() {
        let (to, _from) = std::sync::mpsc::sync_channel(1);
        let (mut puller, _) = puller(1 << 20, to);
        let mut minutes = |lived: Lived| {
            let searches = puller.attempts.searches();
            puller.lived = lived;
            puller.ended(&PullError::Silent(searches), false, searches);
            puller.attempts.searches().as_secs() / 60
        };
        let looks = Lived {
            asked: true,
            ..Lived::default()
        };
        assert_eq!(minutes(looks), 2);
        assert_eq!(minutes(looks), 4);
        assert_eq!(minutes(Lived::default()), 4, "it was not asked");
        let found = Lived {
            found: true,
            ..looks
        };
        assert_eq!(minutes(found), 1);
    }

    /// What is compressed is as long as what comes of it.
    #[test]
    fn compressed_events() {
        let zeros = compress(&vec![0; 1 << 20]);
        let rows = [&[1, 0, 0, 0, 0, 0, 1, 0, 1, 1][..], &zeros].concat();
        let statement = [&[0; 14][..], &zeros].concat();
        for (kind, body) in [
            (EventType::WRITE_ROWS_COMPRESSED_V1, &rows),
            (EventType::QUERY_COMPRESSED, &statement),
        ] {
            assert!(body.len() < 10_000);
            let packets = [
                gtid(10, 0),
                event(kind, &Payload::Other(body)),
                event(EventType::XID, &Payload::Other(&[1, 0, 0, 0, 0, 0, 0, 0])),
            ];
            let (to, from) = std::sync::mpsc::sync_channel(1);
            let (mut all, mut grouper) = puller(2 << 20, to.clone());
            all.link = Arc::new(Link::new(1000));
            for packet in &packets {
                all.event(&mut grouper, packet).expect("it may come");
            }
            let Ok(Came::Transaction(came)) = from.try_recv() else {
                panic!("a transaction");
            };
            assert!((1 << 20..(1 << 20) + 20_000).contains(&came.bytes()));
            let waiting = all.link.waiting.load(Ordering::Relaxed);
            assert_eq!(waiting, came.bytes() as u64);
            let (mut few, mut grouper) = puller(100 << 10, to);
            few.event(&mut grouper, &packets[0]).expect("it may come");
            let error = few.event(&mut grouper, &packets[1]).expect_err("too long");
            let text = error.to_string();
            assert!(text.contains("of more than 102400 bytes"), "{text}");
        }
    }

    /// MariaDB writes it without a GTID: that is no transaction of another server.
    #[test]
    fn an_incident() {
        let (to, _from) = std::sync::mpsc::sync_channel(1);
        let (mut puller, mut grouper) = puller(1 << 20, to);
        for (body, says) in [
            (&b"\x01\0\x04lost"[..], "It says: 'lost'."),
            (b"\x01\0\xfflost", "It says: 'lost'."),
            (b"\x01\0\0", "larger than its caches). Nobody"),
            (b"", "larger than its caches). Nobody"),
        ] {
            let lost = event(EventType::INCIDENT, &Payload::Other(body));
            let error = puller
                .event(&mut grouper, &lost)
                .expect_err("no transaction");
            assert!(
                matches!(error, PullError::Never(_)),
                "trying again is no help"
            );
            let text = error.to_string();
            assert!(
                text.starts_with("the source sent an INCIDENT behind 0-1-9: it has changed data")
                    && text.contains(says)
                    && text.contains("new copy")
                    && !text.contains("MySQL"),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_out_of_order() {
        let gtid = |text: &str| text.parse::<Gtid>().expect("a GTID");
        let text = out_of_order(gtid("0-1-4"), gtid("0-1-9"));
        assert!(text.contains("RESET MASTER"), "{text}");
        let text = out_of_order(gtid("0-2-9"), gtid("0-1-9"));
        assert!(
            text.contains("gtid_strict_mode") && !text.contains("RESET"),
            "{text}"
        );
    }
}
