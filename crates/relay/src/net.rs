//! Sockets, encrypted or not.
//!
//! Both sides of the protocol begin in the clear: the client asks for encryption with a short
//! login packet, then TLS 1.3 begins, then comes the login itself.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, Error,
    RootCertStore, ServerConfig, ServerConnection, SignatureScheme, version,
};
use socket2::{SockRef, TcpKeepalive};

/// Encrypted bytes read at once.
const READ_AHEAD: usize = 128 << 10;
/// Bytes encrypted ahead of the socket.
const WRITE_AHEAD: usize = 256 << 10;

/// A file that TLS needs cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {}: {why}", path.display())]
pub struct TlsError {
    /// The setting.
    pub key: &'static str,
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub why: String,
}

fn fault(key: &'static str, path: &Path, why: impl Into<String>) -> TlsError {
    TlsError {
        key,
        path: path.to_owned(),
        why: why.into(),
    }
}

/// An instruction that the encryption needs and this processor lacks.
fn missing() -> Option<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let wanted = [
        ("AES", std::arch::is_x86_feature_detected!("aes")),
        ("SSSE3", std::arch::is_x86_feature_detected!("ssse3")),
        (
            "PCLMULQDQ",
            std::arch::is_x86_feature_detected!("pclmulqdq"),
        ),
        ("AVX", std::arch::is_x86_feature_detected!("avx")),
        ("AVX2", std::arch::is_x86_feature_detected!("avx2")),
        ("ADX", std::arch::is_x86_feature_detected!("adx")),
        ("BMI1", std::arch::is_x86_feature_detected!("bmi1")),
        ("BMI2", std::arch::is_x86_feature_detected!("bmi2")),
    ];
    #[cfg(target_arch = "aarch64")]
    let wanted = [
        ("AES", std::arch::is_aarch64_feature_detected!("aes")),
        ("SHA2", std::arch::is_aarch64_feature_detected!("sha2")),
        ("PMULL", std::arch::is_aarch64_feature_detected!("pmull")),
        ("NEON", std::arch::is_aarch64_feature_detected!("neon")),
    ];
    wanted.iter().find(|w| !w.1).map(|w| w.0)
}

fn provider(key: &'static str, path: &Path) -> Result<Arc<CryptoProvider>, TlsError> {
    if let Some(missing) = missing() {
        let why = format!(
            "this machine's processor has no {missing}, which encryption here is built on; use a newer machine, or no \
             TLS in a network you trust"
        );
        return Err(fault(key, path, why));
    }
    let mut provider = rustls_graviola::default_provider();
    provider.cipher_suites.retain(|s| s.tls13().is_some());
    Ok(Arc::new(provider))
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = std::fs::read(path).map_err(|e| fault(key, path, e.to_string()))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(fault(
            key,
            path,
            "there is no certificate in it; it must be in PEM format (-----BEGIN CERTIFICATE-----)",
        )),
    }
}

fn private_key(key: &'static str, path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = std::fs::read(path).map_err(|e| fault(key, path, e.to_string()))?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|_| {
        fault(
            key,
            path,
            "there is no private key in it that is in PEM format and without a password",
        )
    })
}

/// Those who may have signed the other side's certificate.
fn authorities(key: &'static str, path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(key, path)? {
        roots
            .add(certificate)
            .map_err(|e| fault(key, path, format!("it cannot be used: {e}")))?;
    }
    Ok(roots)
}

/// How the relay encrypts towards those who connect to it.
#[derive(Clone, Debug)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    certificates: bool,
}

impl ServerTls {
    /// From a certificate, with others between it and its authority behind it, and its key.
    /// `clients`: whose signature a replica's certificate must show; `None`: it needs none.
    ///
    /// # Errors
    /// [`TlsError`], with the setting of the file.
    pub fn load(cert: &Path, key: &Path, clients: Option<&Path>) -> Result<ServerTls, TlsError> {
        let chain = certificates("tls_cert", cert)?;
        let private = private_key("tls_key", key)?;
        let refused = |e: Error| fault("tls_cert", cert, format!("it cannot be used: {e}"));
        let provider = provider("tls_cert", cert)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(refused)?;
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let key = "tls_client_ca";
                let roots = Arc::new(authorities(key, ca)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
                    .build()
                    .map_err(|e| fault(key, ca, format!("it cannot be used: {e}")))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder
            .with_single_cert(chain, private)
            .map_err(|e| fault("tls_key", key, format!("it does not fit tls_cert: {e}")))?;
        // Each connection is a new one.
        config.send_tls13_tickets = 0;
        Ok(ServerTls {
            config: Arc::new(config),
            certificates: clients.is_some(),
        })
    }

    /// Whether a client must show a certificate. So it cannot come in the clear.
    pub fn wants_certificates(&self) -> bool {
        self.certificates
    }
}

/// How the settings are called that say how to encrypt towards a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsKeys {
    /// `off`, `ca` or `name`.
    pub mode: &'static str,
    /// Who may sign the server's certificate.
    pub ca: &'static str,
    /// What is shown to it.
    pub cert: &'static str,
    /// The key of that.
    pub key: &'static str,
}

/// Settings that say how to encrypt towards a server do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsWish {
    /// Words.
    #[error("{why}")]
    Bad {
        /// The setting.
        key: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A file.
    #[error("{0}")]
    File(#[from] TlsError),
}

/// How to encrypt towards a server, a primary for one.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    keys: TlsKeys,
    named: bool,
}

impl ClientTls {
    /// As settings say, looked up by their names; `None`: not at all.
    ///
    /// # Errors
    /// [`TlsWish`], with the setting.
    pub fn wished(
        keys: TlsKeys,
        said: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<ClientTls>, TlsWish> {
        let bad = |key, why: String| Err(TlsWish::Bad { key, why });
        let file = |key| said(key).map(PathBuf::from);
        let named = match said(keys.mode).as_deref() {
            None | Some("off") => {
                let useless = [keys.ca, keys.cert, keys.key];
                return match useless.into_iter().find(|key| said(key).is_some()) {
                    Some(key) => bad(
                        key,
                        format!("it has no effect: write {} = ca, or name, too", keys.mode),
                    ),
                    None => Ok(None),
                };
            }
            Some("ca") => false,
            Some("name") => true,
            Some(_) => return bad(keys.mode, "write off, ca or name".into()),
        };
        let Some(ca) = file(keys.ca) else {
            let why = format!(
                "there is no {}: without it anybody could pass for the server",
                keys.ca
            );
            return bad(keys.mode, why);
        };
        let own = (file(keys.cert), file(keys.key));
        let own = match &own {
            (Some(cert), Some(key)) => Some((cert.as_path(), key.as_path())),
            (None, None) => None,
            _ => {
                return bad(
                    keys.mode,
                    format!("give both {} and {}", keys.cert, keys.key),
                );
            }
        };
        Ok(Some(ClientTls::load(keys, &ca, named, own)?))
    }

    /// The setting with the authority, for messages.
    pub fn ca(&self) -> &'static str {
        self.keys.ca
    }

    /// `ca`: whose signature the server must show. `named`: and its certificate must be for the
    /// name or address that was connected to. `own`: certificate and key that are shown to it.
    ///
    /// # Errors
    /// [`TlsError`], with the setting of the file.
    pub fn load(
        keys: TlsKeys,
        ca: &Path,
        named: bool,
        own: Option<(&Path, &Path)>,
    ) -> Result<ClientTls, TlsError> {
        let refused = |e: String| fault(keys.ca, ca, format!("it cannot be used: {e}"));
        let roots = authorities(keys.ca, ca)?;
        let provider = provider(keys.ca, ca)?;
        let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|e| refused(e.to_string()))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|e| refused(e.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Judge { chain, named }));
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let chain = certificates(keys.cert, cert)?;
                let private = private_key(keys.key, key)?;
                let unfit = |e| fault(keys.key, key, format!("it cannot be used: {e}"));
                builder
                    .with_client_auth_cert(chain, private)
                    .map_err(unfit)?
            }
        };
        config.resumption = rustls::client::Resumption::disabled();
        Ok(ClientTls {
            config: Arc::new(config),
            keys,
            named,
        })
    }

    /// Whether the server's certificate must be for the name or address that was connected to.
    pub fn is_named(&self) -> bool {
        self.named
    }
}

/// Judges a server's certificate.
#[derive(Debug)]
struct Judge {
    chain: Arc<WebPkiServerVerifier>,
    named: bool,
}

impl ServerCertVerifier for Judge {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verdict = self
            .chain
            .verify_server_cert(certificate, between, name, ocsp, now);
        match verdict {
            // The name is compared last: the rest was good.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.named => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// A connection.
#[derive(Debug)]
pub struct Socket {
    tcp: Arc<TcpStream>,
    tls: Option<Box<Tls>>,
    until: Option<Instant>,
}

/// Reads of a socket, all of them up to a time, if there is one.
struct Timed<'a> {
    tcp: &'a TcpStream,
    until: Option<Instant>,
}

impl Read for Timed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if let Some(until) = self.until {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.tcp.set_read_timeout(Some(left))?;
        }
        match self.tcp.read(buf) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && self.until.is_some() => {
                Err(io::ErrorKind::TimedOut.into())
            }
            read => read,
        }
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.tcp.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
    }
}

#[derive(Debug)]
struct Tls {
    connection: Connection,
    /// Read from the socket, and how much of it was taken: many records with one call.
    raw: Vec<u8>,
    used: usize,
}

impl Tls {
    /// Takes all that was read. Gives bytes that are there in the clear, and whether the other end
    /// said that it goes.
    fn take(&mut self) -> io::Result<(usize, bool)> {
        let mut rest = &self.raw[self.used..];
        let n = self.connection.read_tls(&mut rest)?;
        self.used += n;
        let state = self.connection.process_new_packets();
        let state = state.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        Ok((state.plaintext_bytes_to_read(), state.peer_has_closed()))
    }

    fn fill(&mut self, mut tcp: impl Read) -> io::Result<usize> {
        self.raw.resize(READ_AHEAD, 0);
        self.used = 0;
        let read = tcp.read(&mut self.raw);
        self.raw.truncate(*read.as_ref().unwrap_or(&0));
        read
    }

    fn has_raw(&self) -> bool {
        self.used < self.raw.len()
    }
}

/// Writes what is encrypted. A write that is interrupted (SIGSTOP and SIGCONT do, as it has a timeout) goes on: whoever
/// gave the bytes takes an interruption for nothing done, and would give them again.
fn push(connection: &mut Connection, mut out: impl Write) -> io::Result<()> {
    while connection.wants_write() {
        match connection.write_tls(&mut out) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            written => drop(written?),
        }
    }
    Ok(())
}

/// What comes without being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// Nothing: it is there.
    There,
    /// It went, or speaks.
    Broken,
}

impl Socket {
    /// Of a connection that stands.
    pub fn new(tcp: TcpStream) -> Socket {
        Socket {
            tcp: Arc::new(tcp),
            tls: None,
            until: None,
        }
    }

    /// All that is read from now on must have come by then, however slowly; `None`: each read may take
    /// what the socket's own timeout says.
    pub fn read_until(&mut self, until: Option<Instant>) {
        self.until = until;
    }

    fn timed(&self) -> Timed<'_> {
        Timed {
            tcp: &self.tcp,
            until: self.until,
        }
    }

    /// Connects to `host:port`, to the first of its addresses that answers within the time.
    ///
    /// # Errors
    /// Those of the last address.
    pub fn connect(address: &str, limit: Duration) -> io::Result<Socket> {
        let found: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for one in found {
            match TcpStream::connect_timeout(&one, limit) {
                Ok(stream) => {
                    prepare(&stream, limit)?;
                    return Ok(Socket::new(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The connection below, to be shut down from elsewhere or set up.
    pub fn tcp(&self) -> &Arc<TcpStream> {
        &self.tcp
    }

    /// Whether it is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Begins encryption as the client. `address`: what was connected to.
    ///
    /// # Errors
    /// What the other end's certificate lacks, in words, or those of the socket.
    pub fn encrypt(&mut self, tls: &ClientTls, address: &str) -> io::Result<()> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let connection =
            ClientConnection::new(Arc::clone(&tls.config), name).map_err(io::Error::other)?;
        self.shake(connection.into(), &[])
    }

    /// Begins encryption as the server. `begun`: what came of it already.
    ///
    /// # Errors
    /// Those of the handshake and the socket.
    pub fn accept(&mut self, tls: &ServerTls, begun: &[u8]) -> io::Result<()> {
        let connection =
            ServerConnection::new(Arc::clone(&tls.config)).map_err(io::Error::other)?;
        self.shake(connection.into(), begun)
    }

    fn shake(&mut self, mut connection: Connection, mut begun: &[u8]) -> io::Result<()> {
        connection.set_buffer_limit(Some(WRITE_AHEAD));
        while !begun.is_empty() {
            connection.read_tls(&mut begun)?;
            if let Err(error) = connection.process_new_packets() {
                // It is told why, if it listens.
                let _ = connection.write_tls(&mut &*self.tcp);
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
        while connection.is_handshaking() {
            connection.complete_io(&mut self.timed())?;
        }
        // What the last step left to say.
        push(&mut connection, &*self.tcp)?;
        self.tls = Some(Box::new(Tls {
            connection,
            raw: Vec::new(),
            used: 0,
        }));
        Ok(())
    }

    /// Whether the other end, which has nothing to say now, is still there.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn silence(&mut self) -> io::Result<Silence> {
        self.tcp.set_nonblocking(true)?;
        let found = match &mut self.tls {
            None => match self.tcp.peek(&mut [0]) {
                Ok(_) => Ok(Silence::Broken),
                Err(e) => Err(e),
            },
            Some(tls) => match tls.fill(&*self.tcp) {
                Ok(0) => Ok(Silence::Broken),
                // Keys may be renewed in silence.
                Ok(_) => loop {
                    match tls.take() {
                        Ok((0, false)) if tls.has_raw() => {}
                        Ok((0, false)) => break Ok(Silence::There),
                        _ => break Ok(Silence::Broken),
                    }
                },
                Err(e) => Err(e),
            },
        };
        self.tcp.set_nonblocking(false)?;
        match found {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Silence::There),
            other => other,
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut timed = Timed {
            tcp: &self.tcp,
            until: self.until,
        };
        let Some(tls) = &mut self.tls else {
            return timed.read(buf);
        };
        let mut done = 0;
        while done < buf.len() {
            match tls.connection.reader().read(&mut buf[done..]) {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // Closed without a word, as many do.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(e) => return Err(e),
            }
            if tls.has_raw() {
                tls.take()?;
            } else if done > 0 {
                break;
            } else {
                push(&mut tls.connection, &*self.tcp)?;
                if tls.fill(&mut timed)? == 0 {
                    break;
                }
            }
        }
        Ok(done)
    }
}

impl Write for Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return (&*self.tcp).write(buf);
        };
        let n = tls.connection.writer().write(buf)?;
        push(&mut tls.connection, &*self.tcp)?;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Socket {
    /// Sends all of it.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)?;
        self.flush()
    }
}

/// Whose connections count together: one host has many addresses of IPv6.
pub(crate) fn share(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => {
            let [a, b, c, d, ..] = six.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        four => four,
    }
}

/// Longest times that the system takes: between probes, and without an acknowledgement.
const PROBE_MAX: Duration = Duration::from_secs(7200);
const USER_TIMEOUT_MAX: Duration = Duration::from_secs(20 * 86_400);

/// Options of a socket over which silence means death.
pub(crate) fn prepare(stream: &TcpStream, dead_after: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(dead_after))?;
    stream.set_write_timeout(Some(dead_after))?;
    let socket = SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(dead_after.min(USER_TIMEOUT_MAX)))?;
    let probe = (dead_after / 3).clamp(Duration::from_secs(1), PROBE_MAX);
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(probe)
            .with_interval(probe)
            .with_retries(3),
    )
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Takes some bytes, and is interrupted, in turn.
    #[derive(Default)]
    struct Interrupted {
        took: Vec<u8>,
        calls: usize,
    }

    impl Write for Interrupted {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            self.calls += 1;
            if self.calls % 2 == 1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let n = buf.len().min(100);
            self.took.extend(&buf[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_interrupted_write_goes_on() {
        let provider = provider("tls", Path::new("none")).expect("a processor of today");
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .expect("it is known")
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = ServerName::try_from("relay").expect("a name");
        let hello = ClientConnection::new(Arc::new(config), name).expect("it begins");
        let mut connection = Connection::from(hello);
        let mut out = Interrupted::default();
        push(&mut connection, &mut out).expect("it is taken");
        assert!(!connection.wants_write() && out.calls > 3);
        // One record, once.
        let len = usize::from(u16::from_be_bytes([out.took[3], out.took[4]]));
        assert_eq!(out.took.len(), 5 + len);
    }

    #[test]
    fn times_of_any_length() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let stream = TcpStream::connect(address).expect("it listens");
        for seconds in [1, 60, 2 * 86_400, 60 * 86_400, u64::from(u32::MAX)] {
            let set = prepare(&stream, Duration::from_secs(seconds));
            assert!(set.is_ok(), "{seconds} s: {set:?}");
        }
    }
}
