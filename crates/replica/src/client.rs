//! A connection to a server that runs statements. Blocking; statements are bytes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use dromon_relay::wire::{
    Answer, AuthSwitch, Command, Failure, Frames, Greeting, Login, NATIVE_PASSWORD, Row, SALT_LEN,
    WireError, capabilities, native_reply, parse_row, put_packet,
};
use socket2::{SockRef, TcpKeepalive};

/// Several statements in one packet, and several answers.
const MULTI: u32 = 0x1_0000 | 0x2_0000;
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
    /// It wants a proof that is not known here.
    #[error(
        "the server wants to see a password by {0}, which is not offered; give the account mysql_native_password"
    )]
    Plugin(String),
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

    /// Whether the connection cannot be used any more.
    pub fn is_lost(&self) -> bool {
        // Shutdown, and connections killed.
        !matches!(self.code(), Some(code) if !matches!(code, 1053 | 1927 | 1152 | 1158..=1161))
    }
}

/// What one statement gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Result {
    /// No table: so many rows were changed.
    Done(u64),
    /// A table.
    Table(Vec<Row>),
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: Arc<TcpStream>,
    frames: Frames,
    buf: Vec<u8>,
    out: Vec<u8>,
    /// Its number there.
    pub id: u32,
    /// What the server says it is.
    pub version: String,
}

/// Ends a connection from another thread.
#[derive(Clone, Debug)]
pub struct Cut(Arc<TcpStream>);

impl Cut {
    /// Ends it.
    pub fn cut(&self) {
        // It may have ended by itself.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

fn prepare(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // Statements may take long: only a dead host ends the wait.
    let socket = SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(patience))?;
    let probe = (patience / 3).max(Duration::from_secs(1));
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(probe)
            .with_interval(probe)
            .with_retries(3),
    )
}

impl Client {
    /// Connects and logs in.
    pub fn connect(account: &Account) -> std::result::Result<Client, ClientError> {
        let cannot = |source| ClientError::Connect {
            address: account.address.clone(),
            source,
        };
        let found: Vec<SocketAddr> = account.address.to_socket_addrs().map_err(cannot)?.collect();
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for one in found {
            match TcpStream::connect_timeout(&one, account.patience) {
                Ok(stream) => {
                    prepare(&stream, account.patience)?;
                    return Client::log_in(stream, account);
                }
                Err(error) => last = error,
            }
        }
        Err(cannot(last))
    }

    fn log_in(stream: TcpStream, account: &Account) -> std::result::Result<Client, ClientError> {
        let mut client = Client {
            stream: Arc::new(stream),
            frames: Frames::new(PACKET_MAX),
            buf: vec![0; READ_MAX],
            out: Vec::new(),
            id: 0,
            version: String::new(),
        };
        let packet = client.packet()?;
        if packet.first() == Some(&0xff) {
            client.answer(&packet, 0)?;
        }
        let greeting = Greeting::decode(&packet)?;
        client.id = greeting.connection;
        client.version = greeting.version;
        let login = Login {
            capabilities: (capabilities::OURS | MULTI) & greeting.capabilities,
            user: account.user.clone(),
            reply: native_reply(account.password.as_bytes(), &greeting.salt),
            plugin: NATIVE_PASSWORD.into(),
        };
        client.reply(&login.encode())?;
        let mut packet = client.packet()?;
        if packet.first() == Some(&0xfe) {
            let switch = AuthSwitch::decode(&packet)?;
            let salt: Option<[u8; SALT_LEN]> = switch.salt[..].try_into().ok();
            let Some(salt) = salt.filter(|_| switch.plugin == NATIVE_PASSWORD) else {
                return Err(ClientError::Plugin(switch.plugin));
            };
            client.reply(&native_reply(account.password.as_bytes(), &salt))?;
            packet = client.packet()?;
        }
        client.answer(&packet, 0)?;
        Ok(client)
    }

    /// For another thread to end it.
    pub fn cut(&self) -> Cut {
        Cut(Arc::clone(&self.stream))
    }

    fn reply(&mut self, payload: &[u8]) -> io::Result<()> {
        let sequence = self.frames.sequence();
        self.out.clear();
        let next = put_packet(&mut self.out, sequence, payload);
        self.frames.set_sequence(next);
        (&*self.stream).write_all(&self.out)
    }

    fn packet(&mut self) -> std::result::Result<Vec<u8>, ClientError> {
        loop {
            if let Some(packet) = self.frames.packet()? {
                return Ok(packet);
            }
            match (&*self.stream).read(&mut self.buf) {
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
            let packet = self.packet()?;
            let status;
            match self.answer(&packet, all.len())? {
                Answer::Ok => {
                    let (rows, more) = done(&packet).ok_or(odd("an answer"))?;
                    status = more;
                    all.push(Result::Done(rows));
                }
                Answer::Table(columns) => {
                    let mut rows = Vec::new();
                    for _ in 0..=columns {
                        self.packet()?;
                    }
                    status = loop {
                        let packet = self.packet()?;
                        if packet.first() == Some(&0xfe) && packet.len() < 9 {
                            let status = packet.get(3..5).ok_or(odd("the end of a table"))?;
                            break u16::from_le_bytes([status[0], status[1]]);
                        }
                        if packet.first() == Some(&0xff) {
                            self.answer(&packet, all.len())?;
                        }
                        rows.push(parse_row(&packet, columns)?);
                    };
                    all.push(Result::Table(rows));
                }
                Answer::End | Answer::Error(_) => return Err(odd("an answer").into()),
            }
            if status & MORE == 0 {
                return Ok(all);
            }
        }
    }

    /// The rows of a single statement.
    pub fn rows(&mut self, text: &str) -> std::result::Result<Vec<Row>, ClientError> {
        match self.query(text.as_bytes())?.pop() {
            Some(Result::Table(rows)) => Ok(rows),
            _ => Ok(Vec::new()),
        }
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
    fn which_errors_end_a_connection() {
        let refused = |code| ClientError::Refused {
            after: 0,
            failure: Failure::new(code, ""),
        };
        assert!(ClientError::Closed.is_lost() && refused(1053).is_lost());
        assert!(!refused(1213).is_lost() && !refused(1062).is_lost());
    }
}
