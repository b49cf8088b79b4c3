//! Who may talk to this node: encryption and the secret, before any greeting.
//!
//! ```text
//!   TCP ─> TLS, if socket.ssl ─> proofs, if dromon.secret_file ─> greeting (wire.rs)
//! ```
//!
//! [`Security`] is shared by everything that makes or takes connections. What
//! it holds can be exchanged at any time; connections that stand stay as they
//! are, later ones use what is new.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsStream;

use super::conn::{Deadline, ReadError, connect, no_greeting, read_hello};
use super::socket::{Brake, Socket};
use super::tls::{self, Tls, TlsFiles};
use crate::network::NetError;
use crate::proof::{
    About, Accepting, Connecting, Nonce, PROOF_LEN, ProofError, SECRET_MIN, Secret, is_call,
    no_secret,
};
use crate::wire::Misbehaviour;

/// What a TLS connection reads at once: a few of its records.
const READ_AHEAD: usize = 64 << 10;
/// Bytes it encrypts ahead of the socket.
const WRITE_AHEAD: usize = 256 << 10;
/// Longest file taken for a secret.
const SECRET_FILE_MAX: u64 = 64 << 10;
/// How long the end of a refused connection is waited for.
const LINGER: Duration = Duration::from_millis(300);
/// First byte of everything that speaks TLS.
const TLS_HANDSHAKE: u8 = 0x16;

/// What the options say about encryption and the secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityConfig {
    /// Connections are encrypted with these files; `None`: they are not.
    pub tls: Option<TlsFiles>,
    /// Connections that are not encrypted are taken, and made, as well.
    pub dynamic: bool,
    /// The file with the cluster's secret; `None`: there is none.
    pub secret_file: Option<PathBuf>,
}

/// A file that security needs cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option}={}: {why}; {todo}", .path.display())]
pub struct SecurityError {
    option: &'static str,
    path: PathBuf,
    why: String,
    todo: &'static str,
}

impl SecurityError {
    pub(super) fn new(
        option: &'static str,
        path: &Path,
        why: String,
        todo: &'static str,
    ) -> SecurityError {
        SecurityError {
            option,
            path: path.to_owned(),
            why,
            todo,
        }
    }
}

/// What counts at one moment.
#[derive(Default)]
struct Posture {
    tls: Option<Tls>,
    dynamic: bool,
    secret: Option<Secret>,
}

/// Encryption and secret for connections to come, and what may cut those there are.
/// See the module's words.
#[derive(Default)]
pub struct Security {
    posture: RwLock<Arc<Posture>>,
    brake: Option<Arc<dyn Brake>>,
}

impl Security {
    /// No encryption and no secret.
    pub fn open() -> Arc<Security> {
        Arc::default()
    }

    /// The same with a brake on every connection.
    pub fn under(brake: Option<Arc<dyn Brake>>) -> Arc<Security> {
        Arc::new(Security {
            brake,
            ..Security::default()
        })
    }

    /// Whether the brake is pulled.
    pub(super) fn cut_off(&self) -> bool {
        self.brake.as_ref().is_some_and(|b| b.pulled())
    }

    pub(super) fn brake(&self) -> Option<Arc<dyn Brake>> {
        self.brake.clone()
    }

    /// Reads the files and uses them from now on; on an error all stays as it
    /// was. The answer is worth a line in the log each.
    pub fn load(&self, config: &SecurityConfig) -> Result<Vec<String>, SecurityError> {
        let mut notes = Vec::new();
        let mut posture = Posture {
            dynamic: config.dynamic,
            ..Posture::default()
        };
        if let Some(files) = &config.tls {
            let (tls, said) = tls::load(files)?;
            posture.tls = Some(tls);
            notes = said;
        }
        if let Some(path) = &config.secret_file {
            posture.secret = Some(read_secret(path)?);
        }
        *self.posture.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(posture);
        Ok(notes)
    }

    fn now(&self) -> Arc<Posture> {
        self.posture
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = self.now();
        f.debug_struct("Security")
            .field("tls", &now.tls.is_some())
            .field("dynamic", &now.dynamic)
            .field("secret", &now.secret.is_some())
            .finish()
    }
}

fn read_secret(path: &Path) -> Result<Secret, SecurityError> {
    let fault = |why: String, todo| SecurityError::new("dromon.secret_file", path, why, todo);
    let readable = "check the path, and that the server's user may read the file";
    let facts =
        fs::metadata(path).map_err(|e| fault(format!("the file cannot be read: {e}"), readable))?;
    if !facts.is_file() || facts.len() > SECRET_FILE_MAX {
        return Err(fault(
            format!("it is not a file of at most {SECRET_FILE_MAX} bytes"),
            "name a small file, for example one made with: openssl rand -hex 32",
        ));
    }
    let mode = facts.permissions().mode() & 0o777;
    if mode & 0o027 != 0 {
        return Err(fault(
            format!("others than its owner may use the file (mode {mode:04o})"),
            "chmod 600 it (the group may read it: 640)",
        ));
    }
    let content =
        fs::read(path).map_err(|e| fault(format!("the file cannot be read: {e}"), readable))?;
    Secret::new(&content).ok_or_else(|| {
        fault(
            format!("the secret in it is shorter than {SECRET_MIN} bytes"),
            "make one with: openssl rand -hex 32, the same on all nodes",
        )
    })
}

/// A connection, encrypted or not.
pub(super) enum Stream {
    Plain(Socket),
    Tls(Box<TlsStream<BufReader<Socket>>>),
}

impl Stream {
    pub(super) fn encrypted(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }

    pub(super) fn tcp(&self) -> &TcpStream {
        match self {
            Stream::Plain(s) => s.tcp(),
            Stream::Tls(s) => s.get_ref().0.get_ref().tcp(),
        }
    }

    /// A number that only the two ends of this encrypted connection know.
    fn channel(&self) -> io::Result<Option<[u8; PROOF_LEN]>> {
        let Stream::Tls(stream) = self else {
            return Ok(None);
        };
        const LABEL: &[u8] = b"EXPORTER-dromon-cluster-secret";
        let exported = match &**stream {
            TlsStream::Client(s) => {
                let connection = s.get_ref().1;
                connection.export_keying_material([0; PROOF_LEN], LABEL, None)
            }
            TlsStream::Server(s) => {
                let connection = s.get_ref().1;
                connection.export_keying_material([0; PROOF_LEN], LABEL, None)
            }
        };
        exported
            .map(Some)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Tls(s) => Pin::new(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(s) => Pin::new(s).poll_write(cx, buf),
            Stream::Tls(s) => Pin::new(s).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(s) => Pin::new(s).poll_write_vectored(cx, parts),
            Stream::Tls(s) => Pin::new(s).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(s) => Pin::new(s).poll_flush(cx),
            Stream::Tls(s) => Pin::new(s).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Tls(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}

/// Connects to `addr` and encrypts if that is asked for. When both kinds are
/// allowed, the encrypted one is tried first.
pub(super) async fn dial(
    security: &Security,
    addr: &str,
    default_port: u16,
    dead_after: Duration,
    connecting: Deadline,
    greeting: impl Fn() -> Deadline,
) -> Result<Stream, NetError> {
    let now = security.now();
    let plain = connect(security, addr, default_port, dead_after, connecting).await?;
    let Some(tls) = &now.tls else {
        return Ok(Stream::Plain(plain));
    };
    // No name is compared, see tls.rs; the library wants one all the same.
    let name = ServerName::from(std::net::Ipv4Addr::LOCALHOST);
    let shaking =
        tls.connector
            .connect_with(name, BufReader::with_capacity(READ_AHEAD, plain), |c| {
                c.set_buffer_limit(Some(WRITE_AHEAD));
            });
    let shaking = shaking.into_fallible();
    match greeting()
        .bound(addr, "agree on encryption", shaking)
        .await?
    {
        Ok(stream) => Ok(Stream::Tls(Box::new(stream.into()))),
        Err((e, _)) if now.dynamic && tls::speaks_no_tls(&e) => {
            let plain = connect(security, addr, default_port, dead_after, connecting).await?;
            Ok(Stream::Plain(plain))
        }
        Err((e, stream)) => {
            let other_protocol = tls::is_other_protocol(&e);
            let first = stream.get_ref().first();
            if let Some(what) = Misbehaviour::of_another_service(first).filter(|_| other_protocol) {
                return Err(NetError::Misbehaved(what.by(addr)));
            }
            Err(NetError::NotEncrypted {
                addr: addr.to_owned(),
                other_protocol,
                why: tls::words(&e).unwrap_or_else(|| {
                    format!(
                        "it ended the connection when encryption began ({e}); if socket.ssl is not on \
                         there, set it alike on all nodes (socket.dynamic lets both in while you switch)"
                    )
                }),
            })
        }
    }
}

/// Proves the secret to the other end, and has it prove it, if there is one.
pub(super) async fn prove(
    security: &Security,
    stream: &mut Stream,
    addr: &str,
    cluster: &str,
) -> Result<(), NetError> {
    let Some(secret) = security.now().secret.clone() else {
        return Ok(());
    };
    let fault = |why: &'static str| NetError::NotProven {
        addr: addr.to_owned(),
        why,
    };
    let proof_fault = |e: ProofError| match e {
        ProofError::NotAsked => fault("it has no secret; set dromon.secret_file on all nodes"),
        ProofError::Wrong | ProofError::Missing => fault(
            "it does not know the secret of this node: the files that dromon.secret_file names \
             differ, or the cluster names",
        ),
        ProofError::Malformed(what) => what.by(addr).into(),
    };
    let io = |e: io::Error| ReadError::Io(e).into_net(addr);
    let about = About {
        cluster: cluster.to_owned(),
        channel: stream.channel().map_err(io)?,
    };
    let (mut state, call) = Connecting::new(secret, about, nonce().map_err(io)?);
    let mut buf = BytesMut::new();
    // A refusing end may close before it has read everything: a failed write
    // is told only if nothing can be read.
    let wrote = send(stream, &call).await;
    let countercall = match read_hello(stream, &mut buf).await {
        Ok(body) => body,
        Err(e) if e.went() => return Err(no_greeting(addr, wrote)),
        Err(e) => return Err(e.into_net(addr)),
    };
    let proof = state.prove(&countercall).map_err(proof_fault)?;
    send(stream, &proof).await.map_err(io)?;
    match read_hello(stream, &mut buf).await {
        Ok(body) => state.check(&body).map_err(proof_fault),
        // Whoever does not accept a proof says nothing and goes.
        Err(e) if e.went() => Err(fault(
            "it does not accept the secret of this node: the files that dromon.secret_file names \
             differ, or the cluster names",
        )),
        Err(e) => Err(e.into_net(addr)),
    }
}

/// Why somebody who connected was sent away before the greeting.
#[derive(Debug)]
pub(super) enum Turned {
    /// Not worth a word: it went by itself.
    Gone,
    /// It is not encrypted, and must be.
    Plain,
    /// TLS did not come about.
    Tls(String),
    /// It has no secret.
    SecretMissing,
    /// It has another secret, or another cluster name.
    SecretWrong,
    /// It has a secret and this node has none.
    SecretUnknown,
    /// It sent what no node sends.
    Misbehaved(Misbehaviour),
}

impl From<ReadError> for Turned {
    fn from(e: ReadError) -> Self {
        match e {
            ReadError::Misbehaved(what) => Turned::Misbehaved(what),
            ReadError::Closed { inside: true } => {
                Turned::Misbehaved(Misbehaviour::GreetingMalformed("it ends too early"))
            }
            ReadError::Io(e) => match tls::words(&e) {
                Some(words) => Turned::Tls(words),
                None => Turned::Gone,
            },
            // Port scans and health checks connect and go.
            ReadError::Closed { inside: false } => Turned::Gone,
        }
    }
}

/// Encrypts a connection that was taken, has the other end prove the secret,
/// and reads its greeting.
pub(super) async fn receive(
    security: &Security,
    stream: Socket,
    cluster: &str,
    buf: &mut BytesMut,
) -> Result<(Stream, Bytes), Turned> {
    let now = security.now();
    let mut stream = match &now.tls {
        Some(tls) => encrypt(tls, stream, now.dynamic).await?,
        None => Stream::Plain(stream),
    };
    let first = read_hello(&mut stream, buf).await?;
    let Some(secret) = now.secret.clone() else {
        if is_call(&first) {
            // Says nothing about this node but that.
            let _ = send(&mut stream, &no_secret()).await;
            let _ = stream.shutdown().await;
            return Err(Turned::SecretUnknown);
        }
        return Ok((stream, first));
    };
    let turned = |e| match e {
        ProofError::Missing | ProofError::NotAsked => Turned::SecretMissing,
        ProofError::Wrong => Turned::SecretWrong,
        ProofError::Malformed(what) => Turned::Misbehaved(what),
    };
    let about = About {
        cluster: cluster.to_owned(),
        channel: stream.channel().map_err(ReadError::Io)?,
    };
    let nonce = nonce().map_err(ReadError::Io)?;
    let (state, countercall) = Accepting::new(secret, about, nonce, &first).map_err(turned)?;
    send(&mut stream, &countercall)
        .await
        .map_err(ReadError::Io)?;
    let proof = read_hello(&mut stream, buf).await?;
    let own = state.check(&proof).map_err(turned)?;
    send(&mut stream, &own).await.map_err(ReadError::Io)?;
    let hello = read_hello(&mut stream, buf).await?;
    Ok((stream, hello))
}

async fn encrypt(tls: &Tls, stream: Socket, dynamic: bool) -> Result<Stream, Turned> {
    let mut first = [0];
    match stream.tcp().peek(&mut first).await {
        Ok(0) | Err(_) => return Err(Turned::Gone),
        Ok(_) if first[0] == TLS_HANDSHAKE => {}
        Ok(_) if dynamic => return Ok(Stream::Plain(stream)),
        Ok(_) => return Err(Turned::Plain),
    }
    let stream = BufReader::with_capacity(READ_AHEAD, stream);
    let shaking = tls.acceptor.accept_with(stream, |c| {
        c.set_buffer_limit(Some(WRITE_AHEAD));
    });
    match shaking.into_fallible().await {
        Ok(stream) => Ok(Stream::Tls(Box::new(stream.into()))),
        Err((e, mut stream)) => {
            // Closing with unread bytes would throw away the alert that says why.
            let _ = stream.shutdown().await;
            let _ = timeout(LINGER, async {
                let mut sink = [0; 1024];
                while matches!(stream.read(&mut sink).await, Ok(n) if n > 0) {}
            })
            .await;
            Err(match tls::words(&e) {
                Some(words) => Turned::Tls(words),
                None => Turned::Gone,
            })
        }
    }
}

async fn send(stream: &mut Stream, message: &[u8]) -> io::Result<()> {
    stream.write_all(message).await?;
    stream.flush().await
}

fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; PROOF_LEN];
    getrandom::fill(&mut nonce).map_err(|e| io::Error::other(format!("no random bytes: {e}")))?;
    Ok(nonce)
}
