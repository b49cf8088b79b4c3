//! A connection to a primary or a relay, from the socket to the events. What they mean is not known
//! here.
//!
//! ```text
//!   connect ──> introduce ─────────────────> follow ──────────────> found ──────────>
//!               login, [TLS], dump request   the place to go on     heartbeats at least
//!                                            may be looked for
//! ```

use std::io::{self, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::session::{Session, SessionError, Step};
use crate::net::{ClientTls, Socket};
use crate::wire::{Frames, WireError, put_packet};

/// Longest answer before the stream.
const ANSWER_MAX: usize = 1 << 20;
/// Longest event, with the mark in front of it.
const EVENT_PACKET_MAX: usize = dromon_binlog::EVENT_MAX as usize + 3;

/// So long at most does whoever follows wait at once: there is more to be done.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Why it ended. The words are those of whoever connects.
#[derive(Debug)]
pub enum Fault {
    /// No name, no route, nobody there: whom, and why.
    Connect(String, io::Error),
    /// It broke.
    Broken(io::Error),
    /// TLS did not come about. Nothing secret was said.
    NotEncrypted(io::Error),
    /// Nothing came for so long.
    Silent(Duration),
    /// The other side ended it.
    Closed,
    /// Packets that are none.
    Wire(WireError),
    /// It refused.
    Session(SessionError),
}

impl From<WireError> for Fault {
    fn from(error: WireError) -> Fault {
        Fault::Wire(error)
    }
}

impl From<SessionError> for Fault {
    fn from(error: SessionError) -> Fault {
        Fault::Session(error)
    }
}

/// An open connection.
pub struct Connection {
    socket: Socket,
    /// What has come, packet by packet.
    pub frames: Frames,
    buf: Vec<u8>,
    dead_after: Duration,
    /// Silence for so long ends it.
    patience: Duration,
    /// Since when it is waited in vain.
    silent: Option<Instant>,
}

impl Connection {
    /// Connects. `dead_after`: silence for so long means that it is dead; at most `read_max` bytes are
    /// read at once.
    pub fn connect(
        address: &str,
        dead_after: Duration,
        read_max: usize,
    ) -> Result<Connection, Fault> {
        Ok(Connection {
            socket: Socket::connect(address, dead_after)
                .map_err(|error| Fault::Connect(address.to_owned(), error))?,
            frames: Frames::new(ANSWER_MAX),
            buf: vec![0; read_max],
            dead_after,
            patience: dead_after,
            silent: None,
        })
    }

    /// The connection below, to be shut down from elsewhere.
    pub fn tcp(&self) -> &Arc<TcpStream> {
        self.socket.tcp()
    }

    /// Whether it is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.socket.is_encrypted()
    }

    /// Says all that comes before the events. `tls`: how to encrypt, if the session asks for it, to
    /// the one called `name`.
    pub fn introduce(
        &mut self,
        session: &mut Session,
        tls: Option<&ClientTls>,
        name: &str,
    ) -> Result<(), Fault> {
        loop {
            while let Some(packet) = self.frames.packet()? {
                let step = session.packet(&packet)?;
                let (payload, sequence) = match &step {
                    Step::Read => continue,
                    Step::Reply(payload) | Step::Encrypt(payload) => {
                        (payload, self.frames.sequence())
                    }
                    Step::Send(payload) | Step::Stream(payload) => (payload, 0),
                };
                self.send(sequence, payload)?;
                match step {
                    Step::Stream(_) => return Ok(()),
                    Step::Encrypt(_) => self.encrypt(session, tls, name)?,
                    _ => {}
                }
            }
            self.read()?;
        }
    }

    fn encrypt(
        &mut self,
        session: &mut Session,
        tls: Option<&ClientTls>,
        name: &str,
    ) -> Result<(), Fault> {
        // What came before it could have been said by anybody on the way.
        let encrypted = match (tls, self.frames.is_empty()) {
            (Some(tls), true) => self.socket.encrypt(tls, name),
            _ => Err(io::Error::other("it speaks before its turn")),
        };
        encrypted.map_err(Fault::NotEncrypted)?;
        let login = session.encrypted().unwrap_or_default();
        self.send(self.frames.sequence(), &login)
    }

    /// Sends a packet; its answer has the next numbers.
    pub fn send(&mut self, sequence: u8, payload: &[u8]) -> Result<(), Fault> {
        let mut out = Vec::new();
        let next = put_packet(&mut out, sequence, payload);
        self.frames.set_sequence(next);
        self.socket.send(&out).map_err(Fault::Broken)
    }

    /// Sends a packet beside the stream, whose numbers go on.
    pub fn tell(&mut self, payload: &[u8]) -> Result<(), Fault> {
        let mut out = Vec::new();
        put_packet(&mut out, 0, payload);
        self.socket.send(&out).map_err(Fault::Broken)
    }

    /// Events come from here on. Until the first one is [found](Self::found) silence may last for so long.
    pub fn follow(&mut self, searches: Duration) -> Result<(), Fault> {
        self.frames.set_max(EVENT_PACKET_MAX);
        self.wait_at_most(self.dead_after.max(searches))
    }

    /// The other side has found the place to go on: from here on it sends heartbeats at least.
    pub fn found(&mut self) -> Result<(), Fault> {
        match self.patience == self.dead_after {
            true => Ok(()),
            false => self.wait_at_most(self.dead_after),
        }
    }

    fn wait_at_most(&mut self, patience: Duration) -> Result<(), Fault> {
        self.patience = patience;
        let wait = patience.min(WAIT_MAX);
        let set = self.socket.tcp().set_read_timeout(Some(wait));
        set.map_err(Fault::Broken)
    }

    /// Waits for more, and takes it for packets. Whether anything came.
    pub fn read(&mut self) -> Result<bool, Fault> {
        let n = self.receive()?;
        self.frames.feed(&self.buf[..n]);
        Ok(n > 0)
    }

    /// Waits for more, whatever it is; nothing, if nothing came.
    pub fn bytes(&mut self) -> Result<&[u8], Fault> {
        let n = self.receive()?;
        Ok(&self.buf[..n])
    }

    fn receive(&mut self) -> Result<usize, Fault> {
        let since = *self.silent.get_or_insert_with(Instant::now);
        match self.socket.read(&mut self.buf) {
            Ok(0) => Err(Fault::Closed),
            Ok(n) => {
                self.silent = None;
                Ok(n)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                match since.elapsed() < self.patience {
                    true => Ok(0),
                    false => Err(Fault::Silent(self.patience)),
                }
            }
            Err(e) => Err(Fault::Broken(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::time::Instant;

    use super::*;

    const SHORT: Duration = Duration::from_millis(100);

    #[test]
    fn silence_may_last_only_until_the_place_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let mut connection = Connection::connect(&address, SHORT, 1000).expect("it listens");
        let (mut other, _) = listener.accept().expect("it came");
        connection.follow(SHORT * 100).expect("set");
        let later = std::thread::spawn(move || {
            // Longer than a connection may be silent otherwise.
            std::thread::sleep(SHORT * 3);
            other.write_all(&[1, 0, 0, 0, 7]).expect("sent");
            other
        });
        connection.read().expect("it was looking for the place");
        assert_eq!(connection.frames.packet().expect("one"), Some(vec![7]));
        connection.found().expect("set");
        let begin = Instant::now();
        match connection.read() {
            Err(Fault::Silent(after)) => assert_eq!(after, SHORT),
            other => panic!("{other:?}"),
        }
        assert!(begin.elapsed() >= SHORT);
        drop(later.join().expect("no panic"));
        assert!(matches!(connection.read(), Err(Fault::Closed)));
    }

    /// Who waits for long has other things to do meanwhile.
    #[test]
    fn a_long_silence_comes_in_pieces() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let mut connection = Connection::connect(&address, SHORT, 1000).expect("it listens");
        let (mut other, _) = listener.accept().expect("it came");
        let patience = WAIT_MAX * 3 + WAIT_MAX / 2;
        connection.follow(patience).expect("set");
        let begin = Instant::now();
        assert!(!connection.read().expect("it may be silent for longer"));
        assert!(begin.elapsed() < patience);
        other.write_all(&[1, 0, 0, 0, 7]).expect("sent");
        assert!(connection.read().expect("it comes"));
        let begin = Instant::now();
        let mut pieces = 0;
        let end = loop {
            match connection.read() {
                Ok(came) => assert!(!came),
                Err(end) => break end,
            }
            pieces += 1;
        };
        assert!(
            matches!(end, Fault::Silent(after) if after == patience),
            "{end:?}"
        );
        assert!(begin.elapsed() >= patience && pieces >= 2, "{pieces}");
    }

    #[test]
    fn nobody_there() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        drop(listener);
        let error = Connection::connect(&address, SHORT, 1000).map(|_| ());
        assert!(matches!(error, Err(Fault::Connect(to, _)) if to == address));
    }
}
