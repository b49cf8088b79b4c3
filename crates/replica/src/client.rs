//! A connection to a server that runs statements. Blocking; statements are bytes.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dromon_relay::net::{ClientTls, Socket};
use dromon_relay::pull::{Entry, EntryStep, SessionError};
use dromon_relay::wire::{Answer, Command, Failure, Frames, Row, WireError, parse_row, put_packet};

/// Several statements in one packet, and several answers.
const MULTI: u32 = 0x1_0000 | 0x2_0000;
/// Files for LOAD DATA LOCAL.
const LOCAL_FILES: u32 = 0x80;
/// The only file that a server gets: what [`Client::load`] has. A LOAD DATA must name it so.
pub const FILE: &str = "dromon";
/// Of a packet: the server asks for a file.
const ASKS: u8 = 0xfb;
/// Of a status: another answer follows.
const MORE: u16 = 8;
/// Longest answer packet.
const PACKET_MAX: usize = 1 << 30;
const READ_MAX: usize = 64 << 10;

/// Where a server is and who comes.
#[derive(Clone, Debug)]
pub struct Account {
    /// `host:port`.
    pub address: String,
    /// Its name there.
    pub user: String,
    /// Its password.
    pub password: String,
    /// Say nothing before the connection is encrypted.
    pub tls: Option<ClientTls>,
    /// How long connecting, and lost packets, may take.
    pub patience: Duration,
}

/// Why a statement was not run, or no connection made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody there.
    #[error("the server {address} cannot be reached: {source}")]
    Connect {
        /// Which.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// It broke.
    #[error("the connection to the server broke: {0}")]
    Broken(#[from] io::Error),
    /// The other side ended it.
    #[error("the server closed the connection")]
    Closed,
    /// Packets that are none.
    #[error("the server cannot be understood: {0}")]
    Wire(#[from] WireError),
    /// It does not let in.
    #[error("the server {address} does not let in: {why}")]
    Entry {
        /// Which.
        address: String,
        /// Why.
        why: SessionError,
    },
    /// TLS did not come about.
    #[error(
        "the connection to {address} cannot be encrypted: {why}. Nothing secret was said to it. Compare {ca} with who signed \
         that server's certificate (its ssl_cert)"
    )]
    NotEncrypted {
        /// Which.
        address: String,
        /// Why.
        why: io::Error,
        /// The setting with the authority.
        ca: &'static str,
    },
    /// It wants to read a file here that no statement of ours names.
    #[error(
        "the server asked for the file {0:?} of this host, for which it was not told to ask. It got nothing of it"
    )]
    AsksForFile(String),
    /// Nobody is there to ask it.
    #[error("a thread cannot be started: {0}")]
    Thread(io::Error),
    /// It refused.
    #[error("{failure}")]
    Refused {
        /// So many statements of the packet were run before.
        after: usize,
        /// What it said.
        failure: Failure,
    },
}

impl ClientError {
    /// The server's number of the error, if it said one.
    pub fn code(&self) -> Option<u16> {
        match self {
            ClientError::Refused { failure, .. } => Some(failure.code),
            _ => None,
        }
    }

    /// Whether it may go away by itself: lock waits, deadlocks, what has run out, a host that is blocked
    /// until somebody flushes its errors.
    pub fn passes(&self) -> bool {
        self.scarce().is_some()
            || matches!(self.code(), Some(1020 | 1129 | 1205 | 1213 | 1317 | 1969))
    }

    /// What has run out, if that is it, and comes back.
    pub fn scarce(&self) -> Option<&'static str> {
        match self {
            ClientError::Thread(_) => Some(
                "a thread on this host, which has as many as it may have (RLIMIT_NPROC, TasksMax, pids.max)",
            ),
            ClientError::Refused { failure, .. } => scarce(failure.code, &failure.message),
            _ => None,
        }
    }

    /// Whether the connection cannot be used any more.
    pub fn is_lost(&self) -> bool {
        // Shutdown, connections killed, a packet that is too long, a node of a cluster that is not ready, or not any more.
        !matches!(self.code(), Some(code) if !matches!(code, 1047 | 1053 | 1927 | 1152 | 1153 | 1158..=1161))
    }
}

/// What the server's system lacks where it says so, with its number. A quota is none of these: a server has words of its own
/// for numbers from 120 on.
const OF_SYSTEM: [(&str, &str); 4] = [
    ("28 \"No space left on device\"", DISK),
    ("59 'Temp file write failure'", DISK),
    ("12 \"Cannot allocate memory\"", MEMORY),
    ("24 \"Too many open files\"", FILES),
];
const DISK: &str = "room on the target's disk";
const MEMORY: &str = "memory on the target";
const FILES: &str = "open files on the target, which has as many as it may have";
/// Errors that say so of an engine, or of a sort.
const OF_ENGINE: [u16; 3] = [1028, 1030, 1296];
/// The same, of a file that cannot be made, opened, written or renamed, or of a commit: what was to be done may be
/// done, and its last trace not.
const OF_FILE: [u16; 15] = [
    1, 3, 4, 7, 14, 21, 23, 1004, 1005, 1006, 1016, 1023, 1025, 1026, 1180,
];
/// How the names of files end that say what a table, a view, or a trigger is. A server writes them before it
/// does anything by them.
const SAYS_WHAT_IS: [&str; 6] = [".frm", ".frm~", ".TRG", ".TRG~", ".TRN", ".TRN~"];
/// How the name of a file begins that becomes a table when an ALTER TABLE is done.
const ALTERED: &str = "#sql-alter";

/// Errors that a file could not be written, or not brought to the disk: of its binlog a server says them behind what it did.
const OF_WRITING: [u16; 3] = [3, 27, 1026];
/// What a server's system says of a disk that is broken, with its number.
const BROKEN: &str = "5 \"Input/output error\"";

/// Whether a server that says this error may have done what it was to do, if no rollback takes that back. It may be its
/// binlog that has no room, or cannot be written for another reason.
pub(crate) fn may_be_done(code: u16, text: &str) -> bool {
    let is_of_disk = OF_WRITING.contains(&code)
        || of_system(code, text).is_some()
        || OF_FILE.contains(&code) && says(text, BROKEN);
    // `… '<name>' (errno: …`, whatever language it speaks. Names have no quotes of their own on a disk.
    let before = text.split_once("' (").map_or("", |(before, _)| before);
    let name = before.rsplit('\'').next().unwrap_or_default();
    let base = name.rsplit('/').next().unwrap_or_default();
    let is_before = SAYS_WHAT_IS.iter().any(|end| name.ends_with(end)) || base.starts_with(ALTERED);
    let is_of_file = OF_WRITING.contains(&code) || OF_FILE.contains(&code);
    is_of_disk && is_of_file && !(is_before && matches!(code, 1 | 3))
}

/// What the server's system says that it lacks, and what that is.
pub(crate) fn of_system(code: u16, text: &str) -> Option<(&'static str, &'static str)> {
    if !OF_ENGINE.contains(&code) && !OF_FILE.contains(&code) {
        return None;
    }
    OF_SYSTEM.into_iter().find(|(said, _)| says(text, said))
}

/// Whether a text says this number of the system's. With a digit before it, it is another one.
fn says(text: &str, said: &str) -> bool {
    let mut found = text.match_indices(said);
    found.any(|(at, _)| !text[..at].ends_with(|c: char| c.is_ascii_digit()))
}

/// Whether it is a file that has no room, by the number of the server's system. It may be one that only this statement needs,
/// in a `tmpdir` of its own.
pub(crate) fn is_of_full_file(code: u16, text: &str) -> bool {
    matches!(of_system(code, text), Some((_, DISK)))
}

/// What a server lacks that says this error, if it may have more of it later.
pub(crate) fn scarce(code: u16, text: &str) -> Option<&'static str> {
    if let Some((_, what)) = of_system(code, text) {
        return Some(what);
    }
    Some(match code {
        // 1878: a file that ALTER TABLE or a sort needs for a while.
        20 | 1021 | 1878 => DISK,
        5 | 1037 | 1038 | 1041 => MEMORY,
        1040 | 1203 | 1226 => "the target's leave to connect, or to ask so much",
        1114 => {
            "room on the target: its disk is full, or a table has as much as it may have (of ENGINE=MEMORY: max_heap_table_size)"
        }
        1135 => "a thread on the target, which has as many as it may have",
        _ => return None,
    })
}

/// What one statement gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Result {
    /// No table: so many rows were changed.
    Done(u64),
    /// A table.
    Table(Vec<Row>),
}

/// What a LOAD DATA gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Rows of the file that are not in the table; `None`: it does not say so in English.
    pub left_out: Option<u64>,
    /// How many warnings there are; 65,535: or more.
    pub warnings: u16,
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    frames: Frames,
    buf: Vec<u8>,
    out: Vec<u8>,
    /// Names of the columns of the last table, while somebody wants to know them.
    names: Option<Vec<String>>,
    /// Its number there; a proxy may have given one of its own until [`Client::identify`].
    pub id: u32,
    /// What the server says it is.
    pub version: String,
}

/// Ends a connection from another thread. It keeps none open: a session may last for months, and whoever ends
/// it must not hold what is over.
#[derive(Clone, Debug)]
pub struct Cut(Weak<TcpStream>);

impl Cut {
    /// Ends it.
    pub fn cut(&self) {
        if let Some(stream) = self.0.upgrade() {
            // It may have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// There is nothing any more to end.
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Client {
    /// Connects and logs in.
    pub fn connect(account: &Account) -> std::result::Result<Client, ClientError> {
        let cannot = |source| ClientError::Connect {
            address: account.address.clone(),
            source,
        };
        let socket = Socket::connect(&account.address, account.patience).map_err(cannot)?;
        let mut client = Client {
            socket,
            frames: Frames::new(PACKET_MAX),
            buf: vec![0; READ_MAX],
            out: Vec::new(),
            names: None,
            id: 0,
            version: String::new(),
        };
        client.enter(account)?;
        // Statements may take long: only a dead host ends the wait.
        client.socket.tcp().set_read_timeout(None)?;
        client.socket.tcp().set_write_timeout(None)?;
        Ok(client)
    }

    fn enter(&mut self, account: &Account) -> std::result::Result<(), ClientError> {
        let refused = |why| match why {
            SessionError::Refused { failure, .. } => ClientError::Refused { after: 0, failure },
            SessionError::Wire(error) => ClientError::Wire(error),
            why => ClientError::Entry {
                address: account.address.clone(),
                why,
            },
        };
        let mut entry = Entry::new(&account.user, &account.password, account.tls.is_some())
            .wanting(MULTI | LOCAL_FILES);
        loop {
            let packet = self.packet()?;
            match entry.packet(&packet).map_err(refused)? {
                EntryStep::Reply(reply) => self.reply(&reply)?,
                EntryStep::Wait => {}
                EntryStep::Done => break,
                EntryStep::Encrypt(request) => {
                    self.reply(&request)?;
                    self.encrypt(account)?;
                    self.reply(&entry.encrypted().unwrap_or_default())?;
                }
            }
        }
        self.id = entry.connection();
        // Old clients of the protocol took a first number above 9 for another server.
        let version = entry.version();
        self.version = version.strip_prefix("5.5.5-").unwrap_or(version).to_owned();
        Ok(())
    }

    fn encrypt(&mut self, account: &Account) -> std::result::Result<(), ClientError> {
        // What came before it could have been said by anybody on the way.
        let encrypted = match (&account.tls, self.frames.is_empty()) {
            (Some(tls), true) => self.socket.encrypt(tls, &account.address),
            _ => Err(io::Error::other("it speaks before its turn")),
        };
        encrypted.map_err(|why| ClientError::NotEncrypted {
            address: account.address.clone(),
            why,
            ca: account.tls.as_ref().map_or("", ClientTls::ca),
        })
    }

    /// Asks the server itself for the connection's number, which a proxy does not know.
    pub fn identify(&mut self) -> std::result::Result<(), ClientError> {
        let id = self.one("SELECT CONNECTION_ID()")?;
        self.id = id.and_then(|id| id.parse().ok()).unwrap_or(self.id);
        Ok(())
    }

    /// Whether it is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.socket.is_encrypted()
    }

    /// From now on an answer may take so long at most.
    ///
    /// # Errors
    /// The socket's.
    pub fn limit(&self, patience: Duration) -> io::Result<()> {
        self.socket.tcp().set_read_timeout(Some(patience))
    }

    /// For another thread to end it.
    pub fn cut(&self) -> Cut {
        Cut(Arc::downgrade(self.socket.tcp()))
    }

    fn reply(&mut self, payload: &[u8]) -> io::Result<()> {
        let sequence = self.frames.sequence();
        self.out.clear();
        let next = put_packet(&mut self.out, sequence, payload);
        self.frames.set_sequence(next);
        self.socket.send(&self.out)
    }

    fn packet(&mut self) -> std::result::Result<Vec<u8>, ClientError> {
        loop {
            if let Some(packet) = self.frames.packet()? {
                return Ok(packet);
            }
            match self.socket.read(&mut self.buf) {
                Ok(0) => return Err(ClientError::Closed),
                Ok(n) => self.frames.feed(&self.buf[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Ok and a table pass, an error does not.
    fn answer(&self, packet: &[u8], after: usize) -> std::result::Result<Answer, ClientError> {
        match Answer::decode(packet)? {
            Answer::Error(failure) => Err(ClientError::Refused { after, failure }),
            answer => Ok(answer),
        }
    }

    /// Runs a packet of one or several statements.
    pub fn query(&mut self, text: &[u8]) -> std::result::Result<Vec<Result>, ClientError> {
        self.send(text)?;
        self.receive()
    }

    /// Sends a packet of statements. [`Client::receive`] must follow.
    pub fn send(&mut self, text: &[u8]) -> std::result::Result<(), ClientError> {
        self.frames.set_sequence(0);
        let command = Command::Query(text.to_vec()).encode();
        self.reply(&command)?;
        Ok(())
    }

    /// The answers to what was sent.
    pub fn receive(&mut self) -> std::result::Result<Vec<Result>, ClientError> {
        let mut all = Vec::new();
        loop {
            let (answer, more) = self.next(all.len())?;
            all.push(answer);
            if !more {
                return Ok(all);
            }
        }
    }

    /// The next answer to what was sent, of which so many came before; and whether more follow.
    pub fn next(&mut self, before: usize) -> std::result::Result<(Result, bool), ClientError> {
        let packet = self.packet()?;
        self.no_file(&packet)?;
        let (answer, status) = match self.answer(&packet, before)? {
            Answer::Ok => {
                let (rows, status) = done(&packet).ok_or(odd("an answer"))?;
                (Result::Done(rows), status)
            }
            Answer::Table(columns) => {
                let mut rows = Vec::new();
                let mut names = Vec::new();
                for _ in 0..columns {
                    let packet = self.packet()?;
                    if self.names.is_some() {
                        names.push(column_name(&packet).ok_or(odd("a column"))?);
                    }
                }
                self.packet()?;
                self.names = self.names.take().map(|_| names);
                loop {
                    let packet = self.packet()?;
                    if packet.first() == Some(&0xfe) && packet.len() < 9 {
                        let status = packet.get(3..5).ok_or(odd("the end of a table"))?;
                        let status = u16::from_le_bytes([status[0], status[1]]);
                        break (Result::Table(rows), status);
                    }
                    if packet.first() == Some(&0xff) {
                        self.answer(&packet, before)?;
                    }
                    rows.push(parse_row(&packet, columns)?);
                }
            }
            Answer::End | Answer::Error(_) => return Err(odd("an answer").into()),
        };
        Ok((answer, status & MORE != 0))
    }

    /// Runs a single LOAD DATA LOCAL INFILE of the file [`FILE`], with these bytes, in packets of at
    /// most `block`.
    pub fn load(
        &mut self,
        text: &[u8],
        file: &[u8],
        block: usize,
    ) -> std::result::Result<Loaded, ClientError> {
        self.send(text)?;
        let mut packet = self.packet()?;
        if packet.split_first() == Some((&ASKS, FILE.as_bytes())) {
            for bytes in file.chunks(block.max(1)) {
                self.reply(bytes)?;
            }
            self.reply(b"")?;
            packet = self.packet()?;
        }
        self.no_file(&packet)?;
        match self.answer(&packet, 0)? {
            Answer::Ok => loaded(&packet).ok_or(odd("an answer").into()),
            _ => Err(odd("an answer").into()),
        }
    }

    /// Whatever else a server asks for, it gets nothing, and nothing more is said to it.
    fn no_file(&mut self, packet: &[u8]) -> std::result::Result<(), ClientError> {
        match packet.split_first() {
            Some((&ASKS, name)) => {
                self.reply(b"")?;
                let name = String::from_utf8_lossy(name).into_owned();
                Err(ClientError::AsksForFile(name))
            }
            _ => Ok(()),
        }
    }

    /// The rows of a single statement.
    pub fn rows(&mut self, text: &str) -> std::result::Result<Vec<Row>, ClientError> {
        match self.query(text.as_bytes())?.pop() {
            Some(Result::Table(rows)) => Ok(rows),
            _ => Ok(Vec::new()),
        }
    }

    /// The rows of a single statement by the names of their columns; NULL is an empty text.
    pub fn named(
        &mut self,
        text: &str,
    ) -> std::result::Result<Vec<BTreeMap<String, String>>, ClientError> {
        self.names = Some(Vec::new());
        let rows = self.rows(text);
        let names = self.names.take().unwrap_or_default();
        let cell =
            |cell: Option<Vec<u8>>| String::from_utf8_lossy(&cell.unwrap_or_default()).into_owned();
        let named = |row: Row| {
            names
                .iter()
                .cloned()
                .zip(row.into_iter().map(cell))
                .collect()
        };
        Ok(rows?.into_iter().map(named).collect())
    }

    /// The first cell of the first row, if there is one and it is not NULL.
    pub fn one(&mut self, text: &str) -> std::result::Result<Option<String>, ClientError> {
        let row = self.rows(text)?.into_iter().next();
        let cell = row.and_then(|row| row.into_iter().next().flatten());
        Ok(cell.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }
}

fn odd(what: &'static str) -> WireError {
    WireError::Packet {
        what,
        why: "it is something else",
    }
}

/// The name in the definition of a column: the fifth of its texts.
fn column_name(packet: &[u8]) -> Option<String> {
    let (mut rest, mut text) = (packet, packet);
    for _ in 0..5 {
        let len = usize::try_from(lenenc(&mut rest)?).ok()?;
        (text, rest) = rest.split_at_checked(len)?;
    }
    Some(String::from_utf8_lossy(text).into_owned())
}

/// Of an ok of LOAD DATA.
fn loaded(packet: &[u8]) -> Option<Loaded> {
    const LABEL: &[u8] = b"Skipped: ";
    let mut rest = packet.get(1..)?;
    lenenc(&mut rest)?;
    lenenc(&mut rest)?;
    let (numbers, text) = rest.split_at_checked(4)?;
    let at = text.windows(LABEL.len()).position(|part| part == LABEL);
    let left_out = at.and_then(|at| {
        let digits = &text[at + LABEL.len()..];
        let end = digits.iter().position(|b| !b.is_ascii_digit());
        let digits = &digits[..end.unwrap_or(digits.len())];
        std::str::from_utf8(digits).ok()?.parse().ok()
    });
    Some(Loaded {
        left_out,
        warnings: u16::from_le_bytes([numbers[2], numbers[3]]),
    })
}

/// Of an ok: rows changed, and the status.
fn done(packet: &[u8]) -> Option<(u64, u16)> {
    let mut rest = packet.get(1..)?;
    let rows = lenenc(&mut rest)?;
    lenenc(&mut rest)?;
    Some((rows, u16::from_le_bytes([*rest.first()?, *rest.get(1)?])))
}

fn lenenc(bytes: &mut &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first()?;
    let size = match first {
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        _ => 0,
    };
    let (number, after) = rest.split_at_checked(size)?;
    *bytes = after;
    Some(match size {
        0 => u64::from(*first),
        _ => number.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_target::{Fake, Reply};

    #[test]
    fn ok_packets() {
        assert_eq!(done(&[0, 3, 0, 2, 0, 0, 0]), Some((3, 2)));
        assert_eq!(
            done(&[0, 0xfc, 1, 1, 0xfd, 1, 0, 0, 10, 0, 0, 0]),
            Some((257, 10))
        );
        assert_eq!(done(&[0, 0xfe, 1]), None);
        assert_eq!(done(&[]), None);
    }

    #[test]
    fn answers_to_load_data() {
        let answer = |text: &str| {
            let mut packet = vec![0, 2, 0, 2, 0, 3, 0, text.len() as u8];
            packet.extend_from_slice(text.as_bytes());
            loaded(&packet).map(|loaded| (loaded.left_out, loaded.warnings))
        };
        let text = "Records: 12  Deleted: 0  Skipped: 10  Warnings: 3";
        assert_eq!(answer(text), Some((Some(10), 3)));
        assert_eq!(answer("Datensätze: 12  Ausgelassen: 10"), Some((None, 3)));
        assert_eq!(answer("Skipped: "), Some((None, 3)));
        assert_eq!(loaded(&[0, 2, 0, 2, 0, 3]), None);
    }

    /// What the fake one got of a file, in packets.
    fn parts(fake: &Fake) -> Vec<String> {
        let all = fake.said().into_iter();
        all.filter(|text| text.starts_with("file ")).collect()
    }

    #[test]
    fn a_file_that_is_asked_for() {
        let fake = Fake::new(|text| match text {
            _ if text.starts_with("LOAD") => Some(Reply::Ask("dromon")),
            _ => None,
        });
        let mut client = Client::connect(&fake.account()).expect("a server");
        let loaded = client.load(b"LOAD DATA", b"1\n22\n3", 4);
        let wanted = Loaded {
            left_out: Some(1),
            warnings: 2,
        };
        assert_eq!(loaded.expect("it is taken"), wanted);
        assert_eq!(parts(&fake), ["file 1\n22", "file \n3", "file "]);
        // The empty one.
        client.load(b"LOAD DATA", b"", 4).expect("it is taken");
        assert_eq!(parts(&fake)[3..], ["file "]);
        client.query(b"DO 1").expect("it goes on");
    }

    /// Nothing but the file of a LOAD DATA of ours.
    #[test]
    fn files_that_nobody_gets() {
        let fake = Fake::new(|text| match text {
            "LOAD DATA" | "SELECT 1" => Some(Reply::Ask("/etc/passwd")),
            "SELECT 2" => Some(Reply::Ask("dromon")),
            _ => None,
        });
        let connect = || Client::connect(&fake.account()).expect("a server");
        let errors = [
            connect().load(b"LOAD DATA", b"ours", 4).map(|_| ()),
            connect().query(b"SELECT 1").map(|_| ()),
            connect().query(b"SELECT 2").map(|_| ()),
            connect().query(b"DO 1;SELECT 2").map(|_| ()),
            connect().one("SELECT 2").map(|_| ()),
        ];
        for error in errors {
            let error = error.expect_err("it asks for a file");
            assert!(matches!(error, ClientError::AsksForFile(_)), "{error}");
            assert!(error.is_lost());
        }
        while parts(&fake).len() < 5 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(parts(&fake), ["file "; 5]);
    }

    #[test]
    fn which_errors_end_a_connection() {
        let refused = |code| ClientError::Refused {
            after: 0,
            failure: Failure::new(code, ""),
        };
        assert!(ClientError::Closed.is_lost() && refused(1053).is_lost());
        assert!(refused(1047).is_lost() && refused(1153).is_lost());
        assert!(!refused(1213).is_lost() && !refused(1062).is_lost());
    }
}
