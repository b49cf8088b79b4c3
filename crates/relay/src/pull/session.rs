//! From the greeting to the first event: what a replica says to its primary. Without I/O.
//!
//! ```text
//! greeting ─> login ─> [another proof] ─> questions, one after the other ─> register ─> dump ─> stream
//! ```

use std::time::Duration;

use super::entry::{Entry, EntryStep};
use crate::wire::{
    Answer, Command, Dump, Failure, Frames, LAG_VARIABLE, Register, Row, WireError, ZSTD_LEVEL_MAX,
    ZSTD_VARIABLE, dump_flags, parse_row,
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
        "The primary wants to see a password by {plugin}, which is not offered. Give the account there \
         mysql_native_password: ALTER USER … IDENTIFIED VIA mysql_native_password USING PASSWORD('…')"
    )]
    Plugin {
        /// Its name.
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
        "The primary ({version}) is no MariaDB server and has no GTIDs of MariaDB. Its files can be mirrored: set follow = file \
         and begin with an empty directory"
    )]
    NotMariaDb {
        /// Its version.
        version: String,
    },
    /// MySQL's GTIDs.
    #[error(
        "The primary has gtid_mode = {mode}. A relay follows MySQL by file and byte, and its replicas do: gtid_mode must be OFF \
         or OFF_PERMISSIVE"
    )]
    MySqlGtids {
        /// What it said.
        mode: String,
    },
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
    /// Whether it is to be acknowledged to.
    pub semi_sync: bool,
    /// It is a relay that compresses what it sends, at this level.
    pub zstd: Option<u8>,
}

/// One connection.
#[derive(Debug)]
pub struct Session {
    wish: Wish,
    entry: Entry,
    at: At,
    primary: Primary,
}

#[derive(Debug)]
enum At {
    Entry,
    Question(usize, Table, Option<Row>),
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

/// The number of the question whose answer decides about semi-sync.
const SEMI_SYNC: usize = 3;
/// The same of compression.
const ZSTD: usize = 2;
/// The same of what a mirror cannot be of.
const GTID_MODE: usize = 4;

impl Session {
    /// Before the greeting.
    pub fn new(wish: Wish) -> Session {
        Session {
            entry: Entry::new(&wish.user, &wish.password, wish.tls),
            wish,
            at: At::Entry,
            primary: Primary::default(),
        }
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
            1 if wish.file.is_some() => format!(
                "SET @master_heartbeat_period={}, @master_binlog_checksum=@@global.binlog_checksum, \
                 @mariadb_slave_capability=4, @{LAG_VARIABLE}=1",
                wish.heartbeat.as_nanos()
            ),
            // One statement: over a long link each costs its round trip, at every reconnection.
            1 => format!(
                "SET @master_heartbeat_period={}, @master_binlog_checksum=@@global.binlog_checksum, \
                 @mariadb_slave_capability=4, @slave_connect_state='{}', @slave_gtid_strict_mode=1, \
                 @slave_gtid_ignore_duplicates=0, @{LAG_VARIABLE}=1",
                wish.heartbeat.as_nanos(),
                wish.position
            ),
            // Servers have no such variable.
            ZSTD => format!("SHOW VARIABLES LIKE '{ZSTD_VARIABLE}'"),
            SEMI_SYNC => "SHOW VARIABLES LIKE 'rpl_semi_sync_master_enabled'".into(),
            GTID_MODE if wish.file.is_some() => "SHOW VARIABLES LIKE 'gtid_mode'".into(),
            _ => return None,
        })
    }

    fn ask(&mut self, n: usize) -> Step {
        match self.question(n) {
            Some(text) => {
                self.at = At::Question(n, Table::Answer, None);
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
                EntryStep::Done => {
                    self.primary.version = self.entry.version().to_owned();
                    Ok(self.ask(0))
                }
            },
            At::Question(n, table, first) => {
                let n = *n;
                let keep = |row| {
                    first.get_or_insert(row);
                };
                match answer(table, packet, keep)? {
                    Told::More => Ok(Step::Read),
                    Told::Refused(failure) => {
                        let question = self.question(n).unwrap_or_default();
                        Err(refused(&question, failure))
                    }
                    Told::Odd => {
                        let question = self.question(n).unwrap_or_default();
                        Err(unexpected(&question))
                    }
                    Told::Done(_) => {
                        let row = first.take();
                        self.told(n, row)
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

    fn told(&mut self, n: usize, row: Option<Row>) -> Result<Step, SessionError> {
        let text = |n: usize| {
            let cell = row.as_ref().and_then(|row| row.get(n)?.as_deref());
            String::from_utf8_lossy(cell.unwrap_or_default()).into_owned()
        };
        if n == 0 {
            self.primary.server_id = text(0).parse().unwrap_or(0);
            self.primary.version = text(1);
            if self.primary.server_id == self.wish.server_id {
                return Err(SessionError::SameServerId(self.wish.server_id));
            }
            if self.wish.file.is_none() && is_mysql(&self.primary.version) {
                return Err(SessionError::NotMariaDb {
                    version: self.primary.version.clone(),
                });
            }
        }
        if n == ZSTD
            && let (Some(wanted), Ok(offered @ 1..)) = (self.wish.zstd, text(1).parse::<u8>())
        {
            let level = wanted.min(offered).min(ZSTD_LEVEL_MAX);
            self.at = At::Zstd(level);
            let text = format!("SET @{ZSTD_VARIABLE}={level}");
            return Ok(Step::Send(Command::Query(text.into_bytes()).encode()));
        }
        if n == SEMI_SYNC && self.wish.semi_sync && text(1).eq_ignore_ascii_case("ON") {
            self.at = At::SemiSync;
            let text = b"SET @rpl_semi_sync_slave=1".to_vec();
            return Ok(Step::Send(Command::Query(text).encode()));
        }
        if n == GTID_MODE && text(1).starts_with("ON") {
            return Err(SessionError::MySqlGtids { mode: text(1) });
        }
        Ok(self.ask(n + 1))
    }
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
