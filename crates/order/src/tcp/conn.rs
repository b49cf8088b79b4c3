//! One connection: making it, greeting, reading and writing frames.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::names::{resolve, unresolved};
use super::secure::Security;
use super::socket::Socket;
use crate::address::parse_address;
use crate::network::{Frame, NetError, Presence};
use crate::wire::{
    FRAME_HEADER, FrameKind, Hello, HelloAnswer, MESSAGE_PART, Misbehaviour, PeerMisbehaved,
    RawFrame, frame_header, read_frame, read_greeting, room_wanted,
};

/// The moment until which something must be done, and the words for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    pub(super) fn after(limit: Duration) -> Self {
        Deadline {
            at: Instant::now() + limit,
            limit,
        }
    }

    pub(super) fn at(self) -> Instant {
        self.at
    }

    /// Waits for `f`, or says that `addr`, which took the connection, did not do `what`.
    pub(super) async fn bound<T>(
        self,
        addr: &str,
        what: &'static str,
        f: impl Future<Output = T>,
    ) -> Result<T, NetError> {
        self.wait(addr, what, true, f).await
    }

    async fn wait<T>(
        self,
        addr: &str,
        what: &'static str,
        taken: bool,
        f: impl Future<Output = T>,
    ) -> Result<T, NetError> {
        timeout_at(self.at, f)
            .await
            .map_err(|_| NetError::TimedOut {
                addr: addr.to_owned(),
                what,
                taken,
                timeout: self.limit,
            })
    }

    /// A nearer deadline, so that `n` attempts fit before this one.
    fn share(self, n: usize) -> Self {
        let left = self.at.saturating_duration_since(Instant::now());
        Deadline {
            at: Instant::now() + left / n.max(1) as u32,
            limit: self.limit,
        }
    }
}

/// What a read can end with beside a frame.
#[derive(Debug)]
pub(super) enum ReadError {
    Misbehaved(Misbehaviour),
    Io(io::Error),
    /// The other end closed; whether in the middle of something.
    Closed {
        inside: bool,
    },
}

impl ReadError {
    /// The other end went without a word, or before it had read everything.
    pub(super) fn went(&self) -> bool {
        match self {
            ReadError::Closed { inside } => !inside,
            ReadError::Io(e) => e.kind() == io::ErrorKind::ConnectionReset,
            ReadError::Misbehaved(_) => false,
        }
    }

    /// As the answer to somebody who talked to `addr`.
    pub(super) fn into_net(self, addr: &str) -> NetError {
        match self {
            ReadError::Misbehaved(what) => NetError::Misbehaved(PeerMisbehaved {
                addr: addr.to_owned(),
                what,
            }),
            ReadError::Io(e) => match super::tls::words(&e) {
                Some(why) => NetError::NotEncrypted {
                    addr: addr.to_owned(),
                    why,
                    other_protocol: super::tls::is_other_protocol(&e),
                },
                None => NetError::Broken {
                    addr: addr.to_owned(),
                    why: e.to_string(),
                },
            },
            ReadError::Closed { inside } => NetError::Broken {
                addr: addr.to_owned(),
                why: if inside {
                    "the connection ended inside a message".to_owned()
                } else {
                    "it ended the connection".to_owned()
                },
            },
        }
    }
}

impl From<io::Error> for ReadError {
    fn from(e: io::Error) -> Self {
        ReadError::Io(e)
    }
}

/// Sets what every connection needs: no delay, and the end of a dead one.
pub(super) fn tune(stream: &TcpStream, dead_after: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let s = SockRef::from(stream);
    let second = Duration::from_secs(1);
    let keepalive = TcpKeepalive::new()
        .with_time((dead_after / 2).max(second))
        .with_interval((dead_after / 6).max(second))
        .with_retries(3);
    s.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    s.set_tcp_user_timeout(Some(dead_after))?;
    Ok(())
}

/// Resolves `addr` and connects to the first of its addresses that answers.
pub(super) async fn connect(
    security: &Security,
    addr: &str,
    default_port: u16,
    dead_after: Duration,
    deadline: Deadline,
) -> Result<Socket, NetError> {
    if security.cut_off() {
        return Err(NetError::Closed("cut off"));
    }
    let hp = parse_address(addr, default_port)?;
    let found: Vec<SocketAddr> = match hp.ip() {
        Some(ip) => vec![SocketAddr::new(ip, hp.port)],
        None => {
            let found = resolve(addr, &hp);
            // It may answer yet, that somebody is there.
            timeout_at(deadline.at, found)
                .await
                .map_err(|_| NetError::Resolving {
                    addr: addr.to_owned(),
                    limit: deadline.limit,
                })??
        }
    };
    let mut last = unresolved(addr, "the name has no address".to_owned(), false);
    for (i, at) in found.iter().enumerate() {
        let made = deadline
            .share(found.len() - i)
            .wait(addr, "take the connection", false, TcpStream::connect(at))
            .await;
        let failed = match made {
            Ok(Ok(s)) => {
                let Some(s) = Socket::new(s, security.brake()) else {
                    return Err(NetError::NotAsked {
                        addr: addr.to_owned(),
                        why: "too many connections are open".to_owned(),
                    });
                };
                match tune(s.tcp(), dead_after) {
                    Ok(()) => return Ok(s),
                    Err(e) => connect_error(addr, &e),
                }
            }
            Ok(Err(e)) => connect_error(addr, &e),
            Err(e) => e,
        };
        // A host with one version of IP has no way to the name's addresses of the other one.
        if i == 0 || failed.presence() != Presence::Unlooked {
            last = failed;
        }
    }
    Err(last)
}

fn connect_error(addr: &str, e: &io::Error) -> NetError {
    /// The system or this process has no file descriptor left.
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    let addr = addr.to_owned();
    match (e.kind(), e.raw_os_error()) {
        (io::ErrorKind::ConnectionRefused, _) => NetError::Refused { addr },
        (io::ErrorKind::OutOfMemory, _) | (_, Some(ENFILE | EMFILE)) => NetError::NotAsked {
            addr,
            why: e.to_string(),
        },
        (kind, _) => NetError::Unreachable {
            addr,
            why: e.to_string(),
            // That a host does not answer is said by another word, also by this host.
            here: matches!(
                kind,
                io::ErrorKind::NetworkUnreachable
                    | io::ErrorKind::NetworkDown
                    | io::ErrorKind::AddrNotAvailable
            ),
        },
    }
}

/// Sends `hello` and waits for an acceptance. Bytes behind the answer stay in
/// the returned reader.
pub(super) async fn greet(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    addr: &str,
    hello: &Hello,
    deadline: Deadline,
) -> Result<(HelloAnswer, BytesMut), NetError> {
    let talk = async {
        // A refusing end may answer and close before it has read everything:
        // a failed write is told only if nothing can be read.
        let wrote = match stream.write_all(&hello.encode()).await {
            Ok(()) => stream.flush().await,
            failed => failed,
        };
        let mut buf = BytesMut::new();
        match read_hello(stream, &mut buf).await {
            Ok(body) => Ok((body, buf)),
            Err(e) if e.went() => Err(no_greeting(addr, wrote)),
            Err(e) => Err(e.into_net(addr)),
        }
    };
    let (body, buf) = deadline.bound(addr, "greet", talk).await??;
    let answer = HelloAnswer::decode(body).map_err(|w| w.by(addr))?;
    match &answer.verdict {
        Err(_) if hello.is_of(answer.instance) => Err(NetError::Itself {
            addr: addr.to_owned(),
        }),
        Err(refusal) => Err(NetError::Rejected {
            addr: addr.to_owned(),
            refusal: refusal.clone(),
        }),
        Ok(v) if !(hello.version_min..=hello.version_max).contains(v) => Err(
            Misbehaviour::GreetingMalformed("it chose a version that was not offered")
                .by(addr)
                .into(),
        ),
        Ok(_) => Ok((answer, buf)),
    }
}

/// The other end went before it said anything.
pub(super) fn no_greeting(addr: &str, wrote: io::Result<()>) -> NetError {
    NetError::Broken {
        addr: addr.to_owned(),
        why: match wrote {
            Ok(()) => "it ended the connection without a greeting (it is stopping or cut off, or \
                       asks for TLS, socket.ssl, or a secret, dromon.secret_file, that this node \
                       has not)"
                .to_owned(),
            Err(e) => e.to_string(),
        },
    }
}

/// Reads what has come; 0 is the end. An encrypted connection that ends without TLS's own
/// farewell ends like any other: what we read says by its lengths whether it is whole.
async fn read_some(from: &mut (impl AsyncRead + Unpin), buf: &mut BytesMut) -> io::Result<usize> {
    match from.read_buf(buf).await {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof && super::tls::words(&e).is_none() => {
            Ok(0)
        }
        read => read,
    }
}

/// Reads one greeting's body.
pub(super) async fn read_hello(
    stream: &mut (impl AsyncRead + Unpin),
    buf: &mut BytesMut,
) -> Result<Bytes, ReadError> {
    loop {
        if let Some(body) = read_greeting(buf).map_err(ReadError::Misbehaved)? {
            return Ok(body);
        }
        buf.reserve(4096);
        if read_some(stream, buf).await? == 0 {
            return Err(ReadError::Closed {
                inside: !buf.is_empty(),
            });
        }
    }
}

/// Reads frames one after the other; their bodies share its buffer.
pub(super) struct FrameReader<R> {
    from: R,
    buf: BytesMut,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Begins with what was read too far already.
    pub(super) fn new(from: R, buf: BytesMut) -> Self {
        FrameReader { from, buf }
    }

    pub(super) async fn next(&mut self) -> Result<RawFrame, ReadError> {
        const WORTH_READING: usize = 16 << 10;
        loop {
            if let Some(frame) = read_frame(&mut self.buf).map_err(ReadError::Misbehaved)? {
                return Ok(frame);
            }
            if self.buf.capacity() - self.buf.len() < WORTH_READING {
                self.buf.reserve(room_wanted(&self.buf));
            }
            if read_some(&mut self.from, &mut self.buf).await? == 0 {
                return Err(ReadError::Closed {
                    inside: !self.buf.is_empty(),
                });
            }
        }
    }
}

/// Parts below this many bytes are gathered into one buffer; longer ones are
/// written from where they are.
const GATHER_BELOW: usize = 4 << 10;
/// Buffers per system call.
const IOVECS: usize = 64;

/// Frames on their way into a socket.
#[derive(Default)]
pub(super) struct WriteList {
    chunks: VecDeque<Bytes>,
    gathered: BytesMut,
}

impl WriteList {
    pub(super) fn add(&mut self, kind: FrameKind, flags: u8, frame: &Frame) {
        let head: [u8; FRAME_HEADER] = frame_header(kind, flags, frame);
        self.gathered.extend_from_slice(&head);
        for part in frame.parts() {
            if part.len() < GATHER_BELOW {
                self.gathered.extend_from_slice(part);
            } else {
                self.flush_gathered();
                self.chunks.push_back(part.clone());
            }
        }
    }

    fn flush_gathered(&mut self) {
        if !self.gathered.is_empty() {
            self.chunks.push_back(self.gathered.split().freeze());
        }
    }

    /// Writes everything added.
    pub(super) async fn write_to(&mut self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        self.flush_gathered();
        while !self.chunks.is_empty() {
            let mut slices = [IoSlice::new(&[]); IOVECS];
            let mut n = 0;
            for (slot, chunk) in slices.iter_mut().zip(&self.chunks) {
                *slot = IoSlice::new(chunk);
                n += 1;
            }
            let mut wrote = to.write_vectored(&slices[..n]).await?;
            if wrote == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            while let Some(front) = self.chunks.front_mut() {
                if wrote < front.len() {
                    front.advance(wrote);
                    break;
                }
                wrote -= front.len();
                self.chunks.pop_front();
            }
        }
        // What encryption still holds back; nothing to do without it.
        to.flush().await
    }
}

/// Writes `body` in as many frames as it needs.
pub(super) async fn write_message(
    to: &mut (impl AsyncWrite + Unpin),
    kind: FrameKind,
    mut body: Bytes,
) -> io::Result<()> {
    let mut list = WriteList::default();
    loop {
        let part = body.split_to(body.len().min(MESSAGE_PART));
        let flags = if body.is_empty() {
            crate::wire::FLAG_LAST
        } else {
            0
        };
        list.add(kind, flags, &Frame::from(part));
        list.write_to(to).await?;
        if body.is_empty() {
            return Ok(());
        }
    }
}

/// Puts the parts of one message together; `limit` bytes at most.
pub(super) async fn read_message<R: AsyncRead + Unpin>(
    from: &mut FrameReader<R>,
    kind: FrameKind,
    limit: usize,
) -> Result<Option<Bytes>, ReadError> {
    let mut all = BytesMut::new();
    loop {
        let f = from.next().await?;
        if f.kind == FrameKind::NoAnswer && kind == FrameKind::Answer {
            return Ok(None);
        }
        if f.kind != kind {
            return Err(ReadError::Misbehaved(Misbehaviour::FrameUnexpected {
                kind: f.kind.code(),
            }));
        }
        if all.len() + f.body.len() > limit {
            return Err(ReadError::Misbehaved(Misbehaviour::MessageTooLong {
                limit,
            }));
        }
        let last = f.flags & crate::wire::FLAG_LAST != 0;
        if last && all.is_empty() {
            return Ok(Some(f.body));
        }
        all.extend_from_slice(&f.body);
        if last {
            return Ok(Some(all.freeze()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_way_from_this_host_is_told_from_nobody_there() {
        use io::ErrorKind::{
            AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable,
        };
        let of = |kind| connect_error("db2:4567", &io::Error::from(kind)).presence();
        for kind in [NetworkUnreachable, NetworkDown, AddrNotAvailable] {
            assert_eq!(of(kind), Presence::Unlooked, "{kind}");
        }
        for kind in [ConnectionRefused, HostUnreachable] {
            assert_eq!(of(kind), Presence::Nobody, "{kind}");
        }
    }
}
