//! From the greeting to the first event: what a replica says to its primary. Without I/O.
//!
//! ```text
//! greeting ─> login ─> [another proof] ─> questions, one after the other ─> register ─> dump ─> stream
//! ```

use std::time::Duration;

use dromon_binlog::{GtidSet, ParseGtidSetError};

use super::cluster::{IS_NODE, Node, OF_NODE, SET, is_node};
use super::entry::{Entry, EntryStep};
use super::lost::lost_set;
use super::position::whole;
use crate::wire::{
    Answer, CHANNEL_VARIABLE, Command, Dump, DumpGtid, Failure, Frames, LAG_VARIABLE, Register,
    Row, WireError, ZSTD_LEVEL_MAX, ZSTD_VARIABLE, dump_flags, parse_row, server_uuid,
};

/// Who comes, and what it wants.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Account on the primary.
    pub user: String,
    /// Its password.
    pub password: String,
    /// Say nothing before the connection is encrypted.
    pub tls: bool,
    /// Own server id; no other replica of the primary may have it.
    pub server_id: u32,
    /// Shown by the primary's SHOW SLAVE HOSTS.
    pub report_host: String,
    /// The same.
    pub report_port: u16,
    /// How often to hear from a primary that has nothing to send.
    pub heartbeat: Duration,
    /// Acknowledge, if the primary wants that.
    pub semi_sync: bool,
    /// Level at which another relay shall compress; `None`: not at all.
    pub zstd: Option<u8>,
    /// `gtid_slave_pos`: all up to here is stored.
    pub position: String,
    /// Of a mirror, instead: the primary's file, empty for the oldest, and the byte in it.
    pub file: Option<(String, u64)>,
    /// Of MySQL with GTIDs, instead: all of these are stored.
    pub executed: Option<GtidSet>,
    /// Of `dromon replica`: the name under which its target has what it applied.
    pub channel: Option<String>,
}

/// A text as a literal.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// Why there is no stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The primary refused something.
    #[error("The primary refused {what}: {failure}")]
    Refused {
        /// What was asked for.
        what: String,
        /// What it said.
        failure: Failure,
    },
    /// Not understood.
    #[error("The primary cannot be understood: {0}")]
    Wire(#[from] WireError),
    /// An answer of a kind that does not fit.
    #[error("The primary answered {what} with something else than it should")]
    Unexpected {
        /// The question.
        what: String,
    },
    /// It wants a proof that is not known here.
    #[error(
        "The server wants to see a password by {plugin}, which is not offered. Give the account there \
         mysql_native_password: ALTER USER … IDENTIFIED VIA mysql_native_password USING PASSWORD('…'), or of MySQL \
         IDENTIFIED WITH mysql_native_password BY '…'; or ed25519 or caching_sha2_password"
    )]
    Plugin {
        /// Its name.
        plugin: String,
    },
    /// It wants the password itself, which nobody on the way is to see.
    #[error(
        "The server wants the password itself ({plugin}), which is said over TLS only; nothing of it was said. Set TLS towards \
         that server on, or give the account mysql_native_password"
    )]
    WantsTls {
        /// Its way to prove.
        plugin: String,
    },
    /// It does not offer TLS.
    #[error(
        "The server does not offer TLS, which the settings ask for; nothing was said to it. Give it a certificate \
         (ssl_cert, ssl_key), or set TLS towards it off if the network between is trusted"
    )]
    NoTls,
    /// By GTID only MariaDB can be followed.
    #[error(
        "The primary ({version}) is no MariaDB server and has no GTIDs of MariaDB. If it has gtid_mode = ON, set follow = \
         mysql_gtid; else set follow = file, which mirrors its files. Begin with an empty directory"
    )]
    NotMariaDb {
        /// Its version.
        version: String,
    },
    /// MySQL's GTIDs.
    #[error(
        "The primary has gtid_mode = {mode}. With follow = file it must be OFF or OFF_PERMISSIVE. With GTIDs set follow = \
         mysql_gtid and begin with an empty directory"
    )]
    MySqlGtids {
        /// What it said.
        mode: String,
    },
    /// No GTIDs of MySQL.
    #[error(
        "The primary ({version}) has {mode} as its gtid_mode. With follow = mysql_gtid it must be a MySQL server, from 5.6 on, \
         with gtid_mode = ON, or a relay of one. For MariaDB set follow = gtid, for MySQL without GTIDs follow = file; and \
         begin with an empty directory"
    )]
    NoMySqlGtids {
        /// Its version.
        version: String,
        /// What it said.
        mode: String,
    },
    /// It is not what the relay followed so far.
    #[error(
        "The primary lacks transactions that the relay has: {lacks}. Either it is behind, and the relay is let in when it has \
         them, or it has another history: then replicas of the relay have what this primary's do not. Nothing was stored. \
         Follow the right primary, or begin with an empty directory, and the replicas with new copies of the data"
    )]
    Lacks {
        /// Which, as a set, which is cut if it is long.
        lacks: String,
    },
    /// The same, of what it wrote itself.
    #[error(
        "The primary lacks {lost}, which are its own transactions, and which the relay has or is to begin behind (start). Nothing \
         was stored"
    )]
    Lost {
        /// Which, as a set, which is cut if it is long.
        lost: String,
    },
    /// Not a set of GTIDs.
    #[error("The primary's gtid_executed cannot be read: {0}")]
    Executed(#[from] ParseGtidSetError),
    /// The protocol has 32 bits for it.
    #[error(
        "The relay's copy of {file} ends at byte {at}: beyond 4 GiB a primary cannot be asked for what follows in a file. Purge \
         the relay's directory and begin with the next file (start)"
    )]
    TooFar {
        /// Which.
        file: String,
        /// Where.
        at: u64,
    },
    /// A node of a cluster whose binlog lacks the other nodes' writes.
    #[error(
        "The primary is a node of a cluster (wsrep_on = ON), and its log_slave_updates is OFF: its binlog has only what its own clients \
         write, and all that the clients of the other nodes write would be missing, though nothing would say so. Nothing was \
         taken. {SET}; and begin with a copy of the data that is made after that, as that binlog never gets what it lacks"
    )]
    OwnWrites,
    /// Itself.
    #[error(
        "The primary has the relay's own server id {0}. Every server needs its own: choose another one for the relay"
    )]
    SameServerId(u32),
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read on.
    Read,
    /// An answer within the exchange, behind which TLS begins: see [`Session::encrypted`].
    Encrypt(Vec<u8>),
    /// An answer within the exchange: it takes the next sequence number.
    Reply(Vec<u8>),
    /// A new command: sequence numbers begin anew.
    Send(Vec<u8>),
    /// As [`Step::Send`]; what comes from now on are events.
    Stream(Vec<u8>),
}

/// What was learnt of the primary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Primary {
    /// Its version.
    pub version: String,
    /// Its server id.
    pub server_id: u32,
    /// It was told that it may wait for acknowledgements.
    pub semi_sync: bool,
    /// And it does: it said so when it was asked, or has waited since.
    pub semi_sync_on: bool,
    /// It is a relay that compresses what it sends, at this level.
    pub zstd: Option<u8>,
    /// It is a node of a cluster.
    pub node: Option<Node>,
}

/// One connection.
#[derive(Debug)]
pub struct Session {
    wish: Wish,
    entry: Entry,
    at: At,
    primary: Primary,
    /// Nothing of any primary is there yet.
    begins: bool,
    /// The primary is a relay.
    relay: bool,
}

#[derive(Debug)]
enum At {
    Entry,
    Question(usize, Table, Vec<Row>),
    SemiSync,
    Zstd(u8),
    Register,
    Stream,
}

/// How far an answer was read.
#[derive(Debug)]
pub(super) enum Table {
    Answer,
    Columns { count: usize, left: usize },
    Rows { columns: usize },
}

/// Rows of an answer that are kept: no question has more that matter.
const ROWS_MAX: usize = 8;
/// The number of the question whose answer tells whether the primary knows semi-sync.
const SEMI_SYNC: usize = 3;
/// The same of compression.
const ZSTD: usize = 2;
/// The same of what a mirror cannot be of.
const GTID_MODE: usize = 4;
/// The same of which server can be gone on with, of MySQL with GTIDs.
const EXECUTED: usize = 5;
/// By GTID of MariaDB: of whether the primary is a node of a cluster. A relay says nothing of that, and stores what
/// it was given.
const CLUSTER: usize = 4;
/// And of how that node writes its binlog.
const NODE: usize = 5;
/// Longest text of what it lacks.
const LACKS_MAX: usize = 400;
/// Switches of semi-sync on a primary; the second one is that of a plugin of MySQL 8.0.26 and later.
const SEMI_SYNC_SWITCHES: &[&str] = &[
    "rpl_semi_sync_master_enabled",
    "rpl_semi_sync_source_enabled",
];

impl Session {
    /// Before the greeting.
    pub fn new(wish: Wish) -> Session {
        Session {
            entry: Entry::new(&wish.user, &wish.password, wish.tls),
            wish,
            at: At::Entry,
            primary: Primary::default(),
            begins: false,
            relay: false,
        }
    }

    /// Whether nothing of any primary is there yet: then one that would not send all is refused.
    #[must_use]
    pub fn begins(self, begins: bool) -> Session {
        Session { begins, ..self }
    }

    /// What is known so far.
    pub fn primary(&self) -> &Primary {
        &self.primary
    }

    /// TLS has come about. Gives what to send.
    pub fn encrypted(&mut self) -> Option<Vec<u8>> {
        self.entry.encrypted()
    }

    fn question(&self, n: usize) -> Option<String> {
        let wish = &self.wish;
        Some(match n {
            0 => "SELECT @@GLOBAL.server_id, @@GLOBAL.version".into(),
            // By its uuid a server knows an old connection of the same replica, and ends it.
            1 if wish.executed.is_some() => format!(
                "SET @master_heartbeat_period={}, @master_binlog_checksum=@@global.binlog_checksum, @slave_uuid='{}', \
                 @mariadb_slave_capability=4, @{LAG_VARIABLE}=1",
                wish.heartbeat.as_nanos(),
                server_uuid(wish.server_id)
            ),
            1 if wish.file.is_some() => format!(
                "SET @master_heartbeat_period={}, @master_binlog_checksum=@@global.binlog_checksum, \
                 @mariadb_slave_capability=4, @{LAG_VARIABLE}=1",
                wish.heartbeat.as_nanos()
            ),
            // One statement: over a long link each costs its round trip, at every reconnection.
            1 => format!(
                "SET @master_heartbeat_period={}, @master_binlog_checksum=@@global.binlog_checksum, \
                 @mariadb_slave_capability=4, @slave_connect_state='{}', @slave_gtid_strict_mode=1, \
                 @slave_gtid_ignore_duplicates=0, @{LAG_VARIABLE}=1{}",
                wish.heartbeat.as_nanos(),
                wish.position,
                wish.channel.as_ref().map_or_else(String::new, |name| {
                    format!(", @{CHANNEL_VARIABLE}={}", quoted(name))
                })
            ),
            // Servers have no such variable.
            ZSTD => format!("SHOW VARIABLES LIKE '{ZSTD_VARIABLE}'"),
            SEMI_SYNC if self.may_be_mysql() => {
                "SHOW VARIABLES LIKE 'rpl_semi_sync_%_enabled'".into()
            }
            SEMI_SYNC => "SHOW VARIABLES LIKE 'rpl_semi_sync_master_enabled'".into(),
            GTID_MODE if self.may_be_mysql() => "SHOW VARIABLES LIKE 'gtid_mode'".into(),
            CLUSTER if !self.may_be_mysql() && !self.relay => IS_NODE.into(),
            NODE if self.primary.node.is_some() => OF_NODE.into(),
            // In this order: what is committed in between is in one of the two at least.
            EXECUTED if wish.executed.is_some() => {
                "SELECT @@GLOBAL.gtid_owned, @@GLOBAL.gtid_executed, @@GLOBAL.server_uuid".into()
            }
            _ => return None,
        })
    }

    fn may_be_mysql(&self) -> bool {
        may_be_mysql(&self.wish)
    }

    fn ask(&mut self, n: usize) -> Step {
        match self.question(n) {
            Some(text) => {
                self.at = At::Question(n, Table::Answer, Vec::new());
                Step::Send(Command::Query(text.into_bytes()).encode())
            }
            None => self.register(),
        }
    }

    fn register(&mut self) -> Step {
        self.at = At::Register;
        let register = Register {
            server_id: self.wish.server_id,
            host: self.wish.report_host.clone(),
            port: self.wish.report_port,
        };
        Step::Send(Command::Register(register).encode())
    }

    /// A packet of the primary.
    pub fn packet(&mut self, packet: &[u8]) -> Result<Step, SessionError> {
        let unexpected = |what: &str| SessionError::Unexpected { what: what.into() };
        match &mut self.at {
            At::Entry => match self.entry.packet(packet)? {
                EntryStep::Reply(reply) => Ok(Step::Reply(reply)),
                EntryStep::Encrypt(request) => Ok(Step::Encrypt(request)),
                EntryStep::Wait => Ok(Step::Read),
                EntryStep::Done => {
                    self.primary.version = self.entry.version().to_owned();
                    Ok(self.ask(0))
                }
            },
            At::Question(n, table, rows) => {
                let n = *n;
                let of_cluster = asks_of_cluster(&self.wish, n);
                let keep = |row| {
                    if rows.len() < ROWS_MAX {
                        rows.push(row);
                    }
                };
                match answer(table, packet, keep)? {
                    Told::More => Ok(Step::Read),
                    // That it does not say so is no reason not to follow it.
                    Told::Refused(_) if of_cluster => Ok(self.register()),
                    Told::Refused(failure) => {
                        let question = self.question(n).unwrap_or_default();
                        Err(refused(&question, failure))
                    }
                    Told::Odd => {
                        let question = self.question(n).unwrap_or_default();
                        Err(unexpected(&question))
                    }
                    Told::Done(_) => {
                        let rows = std::mem::take(rows);
                        self.told(n, &rows)
                    }
                }
            }
            At::SemiSync => match Answer::decode(packet)? {
                Answer::Ok => {
                    self.primary.semi_sync = true;
                    Ok(self.ask(SEMI_SYNC + 1))
                }
                Answer::Error(failure) => Err(refused("semi-sync", failure)),
                _ => Err(unexpected("semi-sync")),
            },
            At::Zstd(level) => match Answer::decode(packet)? {
                Answer::Ok => {
                    self.primary.zstd = Some(*level);
                    Ok(self.ask(ZSTD + 1))
                }
                Answer::Error(failure) => Err(refused("compression", failure)),
                _ => Err(unexpected("compression")),
            },
            At::Register => match Answer::decode(packet)? {
                Answer::Ok => {
                    self.at = At::Stream;
                    if let Some(executed) = &self.wish.executed {
                        let mut set = Vec::new();
                        executed.encode(&mut set);
                        let dump = DumpGtid {
                            flags: 0,
                            server_id: self.wish.server_id,
                            set,
                        };
                        return Ok(Step::Stream(Command::DumpGtid(dump).encode()));
                    }
                    let (file, position) = match &self.wish.file {
                        None => (Vec::new(), 4),
                        Some((file, at)) => {
                            let far = |_| SessionError::TooFar {
                                file: file.clone(),
                                at: *at,
                            };
                            (file.clone().into_bytes(), u32::try_from(*at).map_err(far)?)
                        }
                    };
                    let dump = Dump {
                        position,
                        flags: dump_flags::ANNOTATE_ROWS,
                        server_id: self.wish.server_id,
                        file,
                    };
                    Ok(Step::Stream(Command::Dump(dump).encode()))
                }
                Answer::Error(failure) => Err(refused("the registration as a replica", failure)),
                _ => Err(unexpected("the registration as a replica")),
            },
            At::Stream => Err(unexpected("the dump")),
        }
    }

    fn told(&mut self, n: usize, rows: &[Row]) -> Result<Step, SessionError> {
        let cell = |row: Option<&Row>, n: usize| {
            let cell = row.and_then(|row| row.get(n)?.as_deref());
            String::from_utf8_lossy(cell.unwrap_or_default()).into_owned()
        };
        let text = |n: usize| cell(rows.first(), n);
        if n == 0 {
            self.primary.server_id = text(0).parse().unwrap_or(0);
            self.primary.version = text(1);
            if self.primary.server_id == self.wish.server_id {
                return Err(SessionError::SameServerId(self.wish.server_id));
            }
            let by_gtid = self.wish.file.is_none() && self.wish.executed.is_none();
            if by_gtid && is_mysql(&self.primary.version) {
                return Err(SessionError::NotMariaDb {
                    version: self.primary.version.clone(),
                });
            }
        }
        if asks_of_cluster(&self.wish, n) {
            self.of_cluster(n, rows)?;
            return Ok(self.ask(n + 1));
        }
        // Whatever it says: only relays have the variable.
        self.relay |= n == ZSTD && !rows.is_empty();
        if n == ZSTD
            && let (Some(wanted), Ok(offered @ 1..)) = (self.wish.zstd, text(1).parse::<u8>())
        {
            let level = wanted.min(offered).min(ZSTD_LEVEL_MAX);
            self.at = At::Zstd(level);
            let text = format!("SET @{ZSTD_VARIABLE}={level}");
            return Ok(Step::Send(Command::Query(text.into_bytes()).encode()));
        }
        let is_switch = |row: &&Row| {
            let name = cell(Some(row), 0).to_ascii_lowercase();
            SEMI_SYNC_SWITCHES.contains(&&name[..])
        };
        let mut switches = rows.iter().filter(is_switch).peekable();
        // Also if it is off: it may be switched on while the connection lives.
        if n == SEMI_SYNC && self.wish.semi_sync && switches.peek().is_some() {
            self.primary.semi_sync_on =
                switches.any(|row| cell(Some(row), 1).eq_ignore_ascii_case("ON"));
            self.at = At::SemiSync;
            let text = match self.may_be_mysql() {
                true => "SET @rpl_semi_sync_slave=1, @rpl_semi_sync_replica=1",
                false => "SET @rpl_semi_sync_slave=1",
            };
            return Ok(Step::Send(Command::Query(text.into()).encode()));
        }
        if let Some(has) = &self.wish.executed {
            if n == GTID_MODE && !text(1).eq_ignore_ascii_case("ON") {
                let mode = match text(1) {
                    none if none.is_empty() => "nothing".to_owned(),
                    mode => mode,
                };
                let version = self.primary.version.clone();
                return Err(SessionError::NoMySqlGtids { version, mode });
            }
            if n == EXECUTED {
                let lacks = has.minus(&owned(&text(0))).minus(&text(1).parse()?);
                let lost = lost_set(&lacks, &text(2));
                // What is being committed counts only if all of it was read.
                if !lost.is_empty() && whole(&text(0)).is_some() {
                    let lost = lost.shown(LACKS_MAX);
                    return Err(SessionError::Lost { lost });
                }
                if !lacks.is_empty() {
                    let lacks = lacks.shown(LACKS_MAX);
                    return Err(SessionError::Lacks { lacks });
                }
            }
        } else if n == GTID_MODE && text(1).starts_with("ON") {
            return Err(SessionError::MySqlGtids { mode: text(1) });
        }
        Ok(self.ask(n + 1))
    }

    fn of_cluster(&mut self, n: usize, rows: &[Row]) -> Result<(), SessionError> {
        self.primary.node = match n {
            CLUSTER => is_node(rows).then_some(Node {
                all: true,
                common_gtids: true,
            }),
            _ => Node::of(rows),
        };
        match self.primary.node {
            Some(node) if !node.all && self.begins => Err(SessionError::OwnWrites),
            _ => Ok(()),
        }
    }
}

fn may_be_mysql(wish: &Wish) -> bool {
    wish.file.is_some() || wish.executed.is_some()
}

fn asks_of_cluster(wish: &Wish, n: usize) -> bool {
    !may_be_mysql(wish) && [CLUSTER, NODE].contains(&n)
}

/// What is being committed: a primary with semi-sync sends it before it counts as executed, and waits.
/// As `uuid:7#thread:8#thread`; another source follows with no sign between.
pub(super) fn owned(text: &str) -> GtidSet {
    const UUID_LEN: usize = 36;
    let mut set = GtidSet::new();
    let mut words = text.split(':');
    let (mut source, mut tagged) = (words.next().unwrap_or_default(), false);
    for word in words {
        // A number and its thread are shorter than a uuid.
        let at = word.len().checked_sub(UUID_LEN).filter(|at| *at > 0);
        let next = at.and_then(|at| word.split_at_checked(at));
        let (mine, next) = next.map_or((word, None), |(mine, next)| (mine, Some(next)));
        match mine.split_once('#') {
            // What cannot be read counts as nothing: then it is asked again soon.
            Some((number, _)) if !tagged => {
                if let Ok(one) = format!("{source}:{number}").parse() {
                    set.unite(&one);
                }
            }
            Some(_) => {}
            None => tagged = true,
        }
        if let Some(next) = next {
            (source, tagged) = (next, false);
        }
    }
    set
}

/// MySQL's versions, unlike those of MariaDB, do not say whose they are.
fn is_mysql(version: &str) -> bool {
    !version.contains("MariaDB") && ["5.", "8.", "9."].iter().any(|v| version.starts_with(v))
}

pub(crate) fn refused(what: &str, failure: Failure) -> SessionError {
    SessionError::Refused {
        what: what.to_owned(),
        failure,
    }
}

/// What became of a packet of an answer.
pub(super) enum Told {
    More,
    /// All of it, with so many warnings.
    Done(u16),
    Refused(Failure),
    Odd,
}

/// Reads an answer: ok, or a table, whose rows are given away one by one.
pub(super) fn answer(
    table: &mut Table,
    packet: &[u8],
    mut take: impl FnMut(Row),
) -> Result<Told, WireError> {
    match table {
        Table::Answer => Ok(match Answer::decode(packet)? {
            Answer::Ok => Told::Done(0),
            Answer::Error(failure) => Told::Refused(failure),
            Answer::Table(0) | Answer::End => Told::Odd,
            Answer::Table(count) => {
                *table = Table::Columns { count, left: count };
                Told::More
            }
        }),
        Table::Columns { count, left: 0 } => match Answer::decode(packet)? {
            Answer::End => {
                *table = Table::Rows { columns: *count };
                Ok(Told::More)
            }
            _ => Ok(Told::Odd),
        },
        Table::Columns { left, .. } => {
            *left -= 1;
            Ok(Told::More)
        }
        Table::Rows { columns } => {
            if packet.first() == Some(&0xfe) && packet.len() < 9 {
                let count = packet.get(1..3).unwrap_or_default();
                let count = count.first_chunk().map_or(0, |b| u16::from_le_bytes(*b));
                return Ok(Told::Done(count));
            }
            if packet.first() == Some(&0xff)
                && let Answer::Error(failure) = Answer::decode(packet)?
            {
                return Ok(Told::Refused(failure));
            }
            take(parse_row(packet, *columns)?);
            Ok(Told::More)
        }
    }
}

/// A packet of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent<'a> {
    /// The event.
    pub event: &'a [u8],
    /// The primary waits until it is stored.
    pub ack: bool,
}

/// Opens a packet of the stream that came out of `frames`. `semi_sync`: as agreed.
///
/// A primary that wants an acknowledgement counts as if that had come in between as packet 0: its
/// next packet has number 1, however many it goes on to send before it is answered.
pub fn follow<'a>(
    frames: &mut Frames,
    packet: &'a [u8],
    semi_sync: bool,
) -> Result<Sent<'a>, SessionError> {
    let sent = sent(packet, semi_sync)?;
    if sent.ack {
        frames.set_sequence(1);
    }
    Ok(sent)
}

/// Opens a packet of the stream. `semi_sync`: as agreed.
pub fn sent(packet: &[u8], semi_sync: bool) -> Result<Sent<'_>, SessionError> {
    match packet.split_first() {
        Some((0, rest)) if semi_sync => match rest {
            [0xef, ack, event @ ..] => Ok(Sent {
                event,
                ack: *ack & 1 == 1,
            }),
            _ => Err(SessionError::Unexpected {
                what: "the dump with semi-sync".into(),
            }),
        },
        Some((0, event)) => Ok(Sent { event, ack: false }),
        _ => match Answer::decode(packet)? {
            Answer::Error(failure) => Err(refused("to send its binlog (on)", failure)),
            _ => Err(SessionError::Refused {
                what: "to send more".into(),
                failure: Failure::new(0, "it ended the dump"),
            }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::owned;

    const A: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";
    const B: &str = "8e11fa47-71ca-11e1-9e33-c80aa9429563";

    #[test]
    fn what_is_being_committed() {
        for (text, set) in [
            (String::new(), String::new()),
            (format!("{A}:7#3"), format!("{A}:7")),
            (format!("{A}:7#3:9#4294967295"), format!("{A}:7:9")),
            // As servers write two sources: here the thread has the number 12, and B begins with a digit.
            (
                format!("{A}:7#3:9#12{B}:1#5:2#6"),
                format!("{A}:7:9,{B}:1-2"),
            ),
            // GTIDs with tags are others.
            (
                format!("{A}:7#3{A}:tag:8#4:9#5{B}:1#6"),
                format!("{A}:7,{B}:1"),
            ),
            ("x:7#3".into(), String::new()),
            (format!("{A}:#:x#:9"), String::new()),
            (format!("{A}:{}x:7#1", "é".repeat(40)), String::new()),
        ] {
            assert_eq!(owned(&text).to_string(), set, "{text}");
        }
    }
}
