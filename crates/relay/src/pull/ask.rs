//! A client that asks a server something: one statement, and all rows of its answer.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use super::entry::{Entry, EntryStep};
use super::session::Table;
use super::session::{SessionError, Told, answer, refused};
use crate::net::{ClientTls, Socket};
use crate::wire::{Command, Frames, Row, WireError, put_packet};

/// Longest packet of an answer.
const ANSWER_MAX: usize = 16 << 20;

/// Whom to ask, and as whom.
#[derive(Clone, Debug)]
pub struct Login {
    /// `host:port`.
    pub address: String,
    /// The account there.
    pub user: String,
    /// Its password.
    pub password: String,
    /// Say nothing before the connection is encrypted.
    pub tls: Option<ClientTls>,
    /// For connecting, and for each packet of an answer.
    pub limit: Duration,
    /// For all of it, from the beginning on.
    pub in_all: Option<Duration>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody there, or the connection broke.
    #[error("{address}: {source}")]
    Io {
        /// Who was asked.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// No answer of the protocol.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// Refused, or not understood.
    #[error("{0}")]
    Session(#[from] SessionError),
    /// It was asked for its position.
    #[error("it gave {text} as its position, which is none")]
    NoPosition {
        /// What came.
        text: String,
    },
    /// Another server is at the replica's address.
    #[error("the server id of who answers at its address is {found}, and not its own")]
    Another {
        /// As it says.
        found: String,
    },
    /// What it was asked for is not there.
    #[error("it has no position of the channel {channel}")]
    NoChannel {
        /// Which.
        channel: String,
    },
    /// The answer is larger than what was made room for.
    #[error("the answer to {statement} has more than {max} bytes")]
    TooLarge {
        /// What was asked.
        statement: String,
        /// Allowed.
        max: usize,
    },
}

/// A connection that stands.
#[derive(Debug)]
pub struct Asker {
    socket: Socket,
    frames: Frames,
    buf: Vec<u8>,
    address: String,
    warnings: u16,
    /// It has logged in.
    entered: bool,
}

impl Drop for Asker {
    /// A server that is left without a word counts and logs an aborted connection.
    fn drop(&mut self) {
        if self.entered {
            self.frames.set_sequence(0);
            // It may have gone.
            let _ = self.send(&Command::Quit.encode());
        }
    }
}

impl Asker {
    /// Connects and logs in.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn connect(login: &Login) -> Result<Asker, AskError> {
        let io = |source| AskError::Io {
            address: login.address.clone(),
            source,
        };
        let until = login.in_all.map(|limit| Instant::now() + limit);
        let mut socket = Socket::connect(&login.address, login.limit).map_err(io)?;
        socket.read_until(until);
        let mut asker = Asker {
            socket,
            frames: Frames::new(ANSWER_MAX),
            buf: vec![0; 16 << 10],
            address: login.address.clone(),
            warnings: 0,
            entered: false,
        };
        let mut entry = Entry::new(&login.user, &login.password, login.tls.is_some());
        loop {
            let packet = asker.packet()?;
            match entry.packet(&packet)? {
                EntryStep::Reply(reply) => asker.send(&reply)?,
                EntryStep::Wait => {}
                EntryStep::Done => {
                    asker.entered = true;
                    return Ok(asker);
                }
                EntryStep::Encrypt(request) => {
                    asker.send(&request)?;
                    // What came before could have been said by anybody on the way.
                    if !asker.frames.is_empty() {
                        return Err(io(io::Error::other("it speaks before its turn")));
                    }
                    if let Some(tls) = &login.tls {
                        asker.socket.encrypt(tls, &login.address).map_err(io)?;
                    }
                    asker.send(&entry.encrypted().unwrap_or_default())?;
                }
            }
        }
    }

    /// How many warnings the last answer came with.
    pub fn warnings(&self) -> u16 {
        self.warnings
    }

    fn io(&self, source: io::Error) -> AskError {
        AskError::Io {
            address: self.address.clone(),
            source,
        }
    }

    fn packet(&mut self) -> Result<Vec<u8>, AskError> {
        loop {
            if let Some(packet) = self.frames.packet()? {
                return Ok(packet);
            }
            match self.socket.read(&mut self.buf) {
                Ok(0) => return Err(self.io(io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => self.frames.feed(&self.buf[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.io(e)),
            }
        }
    }

    fn send(&mut self, packet: &[u8]) -> Result<(), AskError> {
        let mut out = Vec::new();
        let next = put_packet(&mut out, self.frames.sequence(), packet);
        self.frames.set_sequence(next);
        self.socket.send(&out).map_err(|e| self.io(e))
    }

    /// All rows of the answer to a statement, of at most so many bytes.
    ///
    /// # Errors
    /// [`AskError`]; after any but a refusal the connection is of no more use.
    pub fn ask(&mut self, statement: &str, max: usize) -> Result<Vec<Row>, AskError> {
        self.frames.set_sequence(0);
        self.send(&Command::Query(statement.as_bytes().to_vec()).encode())?;
        let mut rows = Vec::new();
        let mut table = Table::Answer;
        let mut bytes = 0;
        loop {
            let packet = self.packet()?;
            bytes += packet.len();
            if bytes > max {
                return Err(AskError::TooLarge {
                    statement: statement.to_owned(),
                    max,
                });
            }
            match answer(&mut table, &packet, |row| rows.push(row))? {
                Told::More => {}
                Told::Done(warnings) => {
                    self.warnings = warnings;
                    return Ok(rows);
                }
                Told::Refused(failure) => return Err(refused(statement, failure).into()),
                Told::Odd => {
                    let what = statement.to_owned();
                    return Err(SessionError::Unexpected { what }.into());
                }
            }
        }
    }
}
