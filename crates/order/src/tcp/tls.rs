//! TLS for connections between nodes: files in, two configurations out.
//!
//! Both ends show a certificate and both check that an authority of
//! `socket.ssl_ca` signed it. Host names are not compared: nodes are reached
//! under addresses that certificates seldom name, and what counts is that the
//! cluster's authority vouches for the node. TLS 1.3 only, nothing is resumed:
//! every connection is checked anew, by the certificates of the moment.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    InconsistentKeys, PeerIncompatible, RootCertStore, ServerConfig, SignatureScheme, version,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::secure::SecurityError;
use super::x509;

/// The files and choices of `socket.ssl_…`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// `socket.ssl_ca`: trusted authorities; empty: only nodes that show the
    /// very certificate of `cert`.
    pub ca: PathBuf,
    /// `socket.ssl_cert`: the own certificate, others between it and the
    /// authority behind it.
    pub cert: PathBuf,
    /// `socket.ssl_key`: its private key.
    pub key: PathBuf,
    /// `socket.ssl_password_file`: the key's password; empty: it has none.
    pub password_file: PathBuf,
    /// `socket.ssl_cipher`: names of cipher suites; empty: all there are.
    pub cipher: String,
}

/// Ready to encrypt.
pub(super) struct Tls {
    pub(super) connector: TlsConnector,
    pub(super) acceptor: TlsAcceptor,
}

/// Reads the files. The second value is worth a line in the log each.
pub(super) fn load(files: &TlsFiles) -> Result<(Tls, Vec<String>), SecurityError> {
    let mut notes = Vec::new();
    if let Some(missing) = missing_instructions() {
        return Err(SecurityError::new(
            "socket.ssl",
            Path::new("yes"),
            format!("this machine's processor has no {missing}, which encryption here is built on"),
            "switch socket.ssl off and keep the port in a network you trust, or use a newer machine",
        ));
    }
    let provider = Arc::new(provider(&files.cipher, &mut notes));
    let chain = read_certificates("socket.ssl_cert", &files.cert)?;
    let trusted = if files.ca.as_os_str().is_empty() {
        notes.push(
            "socket.ssl_ca is not set: only nodes that show the certificate in socket.ssl_cert \
             itself are let in"
                .to_owned(),
        );
        // Who signed it signs others, too.
        chain[..1].to_vec()
    } else {
        read_certificates("socket.ssl_ca", &files.ca)?
    };
    let key = read_key(files, &provider, &mut notes)?;
    let certified = CertifiedKey::new(chain.clone(), key);
    if let Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) = certified.keys_match() {
        return Err(SecurityError::new(
            "socket.ssl_key",
            &files.key,
            format!(
                "it is not the key of the certificate in {}",
                files.cert.display()
            ),
            "name certificate and key that were made together",
        ));
    }
    let peers = Arc::new(Peers::new(trusted, &provider, &files.ca)?);
    notes.push(describe(&chain, &peers, files));

    let failed = |e: Error| {
        SecurityError::new(
            "socket.ssl",
            Path::new("yes"),
            format!("the TLS library refuses it: {e}"),
            "check the files that the other socket.ssl options name",
        )
    };
    let own = Arc::new(SingleCertAndKey::from(certified));
    let mut client = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(failed)?
        .dangerous()
        .with_custom_certificate_verifier(peers.clone())
        .with_client_cert_resolver(own.clone());
    client.resumption = Resumption::disabled();
    client.enable_sni = false;
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])
        .map_err(failed)?
        .with_client_cert_verifier(peers)
        .with_cert_resolver(own);
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    let tls = Tls {
        connector: TlsConnector::from(Arc::new(client)),
        acceptor: TlsAcceptor::from(Arc::new(server)),
    };
    Ok((tls, notes))
}

/// The instructions that the encryption needs and this processor lacks.
fn missing_instructions() -> Option<String> {
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
    let missing: Vec<_> = wanted.iter().filter(|w| !w.1).map(|w| w.0).collect();
    (!missing.is_empty()).then(|| missing.join(", "))
}

/// The cryptography, cut down to the suites that `socket.ssl_cipher` names.
fn provider(cipher: &str, notes: &mut Vec<String>) -> CryptoProvider {
    let mut provider = rustls_graviola::default_provider();
    provider.cipher_suites.retain(|s| s.tls13().is_some());
    let name = |s: &rustls::SupportedCipherSuite| {
        let debug = format!("{:?}", s.suite());
        debug.replacen("TLS13_", "TLS_", 1)
    };
    let listed = |s: &rustls::SupportedCipherSuite| {
        cipher
            .split([':', ',', ' '])
            .any(|word| word.eq_ignore_ascii_case(&name(s)))
    };
    if provider.cipher_suites.iter().any(listed) {
        provider.cipher_suites.retain(listed);
    } else if !cipher.is_empty() {
        let known: Vec<_> = provider.cipher_suites.iter().map(name).collect();
        notes.push(format!(
            "socket.ssl_cipher = '{cipher}' has no effect: connections use TLS 1.3 only, whose \
             suites are {}",
            known.join(", ")
        ));
    }
    provider
}

fn read(option: &'static str, path: &Path) -> Result<Vec<u8>, SecurityError> {
    if path.as_os_str().is_empty() {
        return Err(SecurityError::new(
            option,
            path,
            "it is not set, but socket.ssl is on".to_owned(),
            "name the file in PEM format, or switch socket.ssl off",
        ));
    }
    fs::read(path).map_err(|e| {
        SecurityError::new(
            option,
            path,
            format!("the file cannot be read: {e}"),
            "check the path, and that the server's user may read the file",
        )
    })
}

fn read_certificates(
    option: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, SecurityError> {
    let text = read(option, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(all) if !all.is_empty() && all.iter().all(|c| x509::facts(c).is_some()) => Ok(all),
        Ok(all) => Err(SecurityError::new(
            option,
            path,
            if all.is_empty() {
                "there is no certificate in it".to_owned()
            } else {
                "what it calls a certificate is none".to_owned()
            },
            "it must hold certificates in PEM format (-----BEGIN CERTIFICATE-----)",
        )),
        Err(_) => Err(SecurityError::new(
            option,
            path,
            "the PEM text in it is damaged".to_owned(),
            "copy the file anew",
        )),
    }
}

fn read_key(
    files: &TlsFiles,
    provider: &CryptoProvider,
    notes: &mut Vec<String>,
) -> Result<Arc<dyn rustls::sign::SigningKey>, SecurityError> {
    let (option, path) = ("socket.ssl_key", &files.key);
    let text = read(option, path)?;
    if fs::metadata(path).is_ok_and(|m| m.permissions().mode() & 0o004 != 0) {
        notes.push(format!(
            "socket.ssl_key={}: every user of this machine may read the private key; chmod 600 it",
            path.display()
        ));
    }
    let has = |label: &str| {
        text.windows(label.len())
            .any(|part| part == label.as_bytes())
    };
    let der = if has("-----BEGIN ENCRYPTED PRIVATE KEY-----") {
        decrypt(files, &text)?
    } else if has("Proc-Type: 4,ENCRYPTED") {
        return Err(SecurityError::new(
            option,
            path,
            "it is encrypted in a form that is no longer taken".to_owned(),
            "convert it with: openssl pkcs8 -topk8 -v2 aes256 -in OLD -out NEW",
        ));
    } else {
        PrivateKeyDer::from_pem_slice(&text).map_err(|_| {
            SecurityError::new(
                option,
                path,
                "there is no private key in it".to_owned(),
                "it must hold the key of socket.ssl_cert in PEM format",
            )
        })?
    };
    provider.key_provider.load_private_key(der).map_err(|e| {
        SecurityError::new(
            option,
            path,
            format!("the key cannot be used: {e}"),
            "use RSA of 2048 to 8192 bits, ECDSA P-256 or P-384, or Ed25519",
        )
    })
}

/// Opens a private key that a password protects.
fn decrypt(files: &TlsFiles, text: &[u8]) -> Result<PrivateKeyDer<'static>, SecurityError> {
    let (option, path) = ("socket.ssl_key", &files.key);
    if files.password_file.as_os_str().is_empty() {
        return Err(SecurityError::new(
            option,
            path,
            "it is encrypted".to_owned(),
            "name the file with its password in socket.ssl_password_file",
        ));
    }
    let password = read("socket.ssl_password_file", &files.password_file)?;
    let line = password.split(|b| *b == b'\n').next().unwrap_or_default();
    let password = line.strip_suffix(b"\r").unwrap_or(line);
    let unreadable = |why: String| {
        SecurityError::new(
            option,
            path,
            why,
            "write it anew with: openssl pkcs8 -topk8 -v2 aes256 -in OLD -out NEW",
        )
    };
    let text = std::str::from_utf8(text).map_err(|e| unreadable(e.to_string()))?;
    let begin = text.find("-----BEGIN ENCRYPTED").unwrap_or(0);
    let (_, document) =
        pkcs8::SecretDocument::from_pem(&text[begin..]).map_err(|e| unreadable(e.to_string()))?;
    let sealed = pkcs8::EncryptedPrivateKeyInfo::try_from(document.as_bytes())
        .map_err(|e| unreadable(format!("its encryption is not known here: {e}")))?;
    let open = sealed.decrypt(password).map_err(|_| {
        SecurityError::new(
            "socket.ssl_password_file",
            &files.password_file,
            format!("its first line is not the password of {}", path.display()),
            "write the key's password into it",
        )
    })?;
    Ok(PrivatePkcs8KeyDer::from(open.as_bytes().to_vec()).into())
}

/// One line that says what this node shows to others, and what is wrong with
/// it if anything is.
fn describe(chain: &[CertificateDer<'static>], peers: &Peers, files: &TlsFiles) -> String {
    let Some((own, between)) = chain.split_first() else {
        return String::new();
    };
    let shown = files.cert.display();
    let Some(facts) = x509::facts(own) else {
        return String::new();
    };
    if facts.version != 3 && !peers.trusted.contains(own) {
        return format!(
            "socket.ssl_cert={shown}: it is a certificate of version {}; the other nodes will \
             refuse it. Make one of version 3",
            facts.version
        );
    }
    match peers.check(own, between, UnixTime::now()) {
        Ok(()) => format!(
            "connections between nodes are encrypted with TLS 1.3; the certificate in {shown} is \
             valid until {}",
            x509::date(facts.until)
        ),
        Err(e) => format!(
            "socket.ssl_cert={shown}: the other nodes will refuse this node, because {}",
            certificate_words(&e).unwrap_or_else(|| e.to_string())
        ),
    }
}

/// Judges the certificates of others.
#[derive(Debug)]
struct Peers {
    trusted: Vec<CertificateDer<'static>>,
    roots: RootCertStore,
    clients: Arc<dyn ClientCertVerifier>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Peers {
    fn new(
        trusted: Vec<CertificateDer<'static>>,
        provider: &Arc<CryptoProvider>,
        path: &Path,
    ) -> Result<Peers, SecurityError> {
        let mut roots = RootCertStore::empty();
        let unusable = |why: String| {
            SecurityError::new(
                "socket.ssl_ca",
                path,
                why,
                "it must hold the certificates of authorities",
            )
        };
        for certificate in &trusted {
            roots
                .add(certificate.clone())
                .map_err(|e| unusable(format!("a certificate in it cannot be used: {e}")))?;
        }
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots.clone()), provider.clone())
                .build()
                .map_err(|e| unusable(e.to_string()))?;
        Ok(Peers {
            trusted,
            roots,
            clients,
            algorithms: provider.signature_verification_algorithms,
        })
    }

    /// A certificate that is itself in the list of the trusted needs nobody
    /// to vouch for it, but must be valid now. `None`: it is not.
    fn itself(&self, certificate: &CertificateDer<'_>, now: UnixTime) -> Option<Result<(), Error>> {
        if !self.trusted.iter().any(|t| t == certificate) {
            return None;
        }
        let facts = x509::facts(certificate)?;
        Some(match now.as_secs() {
            t if t < facts.from => Err(CertificateError::NotValidYet.into()),
            t if t > facts.until => Err(CertificateError::Expired.into()),
            _ => Ok(()),
        })
    }

    /// As the one who connected.
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        if let Some(verdict) = self.itself(certificate, now) {
            return verdict;
        }
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, between, now, algorithms)
    }
}

/// Versions before 1.3 are not offered, so nothing of theirs can come.
fn old_version() -> Error {
    PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig.into()
}

impl ServerCertVerifier for Peers {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(certificate, between, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(old_version())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Peers {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.itself(certificate, now) {
            Some(verdict) => verdict.map(|()| ClientCertVerified::assertion()),
            None => self.clients.verify_client_cert(certificate, between, now),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(old_version())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// What is wrong with a certificate, and what to do; `None`: it is not about
/// one.
fn certificate_words(e: &Error) -> Option<String> {
    let Error::InvalidCertificate(what) = e else {
        return None;
    };
    Some(match what {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired; make a new one".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet; compare the clocks of both machines".to_owned()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "no authority in socket.ssl_ca has signed its certificate; use one authority on all \
             nodes, or name several in one file"
                .to_owned()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate is not made for this end of a connection; a node's certificate needs \
             both serverAuth and clientAuth, or neither"
                .to_owned()
        }
        other => format!("its certificate cannot be used ({other})"),
    })
}

/// Words for a connection that failed because of TLS; `None`: it was something
/// else.
pub(super) fn words(e: &std::io::Error) -> Option<String> {
    let inner = e.get_ref()?.downcast_ref::<Error>()?;
    if let Some(text) = certificate_words(inner) {
        return Some(text);
    }
    Some(match inner {
        Error::AlertReceived(alert) => {
            use rustls::AlertDescription as A;
            match alert {
                A::UnknownCA | A::CertificateUnknown | A::BadCertificate | A::DecryptError => {
                    "it refuses this node's certificate: no authority in its socket.ssl_ca has \
                     signed it"
                        .to_owned()
                }
                A::CertificateExpired => "it refuses this node's certificate: that has expired \
                                          (compare the clocks of both machines)"
                    .to_owned(),
                A::UnsupportedCertificate => "it refuses this node's certificate: that cannot be \
                                              used for both ends of a connection"
                    .to_owned(),
                other => format!("it ended the encrypted connection ({other:?})"),
            }
        }
        Error::NoCertificatesPresented => "it shows no certificate".to_owned(),
        Error::InvalidMessage(_) => "it does not speak TLS; socket.ssl must be alike on all \
                                     nodes (socket.dynamic lets both in while you switch)"
            .to_owned(),
        other => format!("TLS failed: {other}"),
    })
}

/// Whether the other end said something that is no TLS.
pub(super) fn is_other_protocol(e: &std::io::Error) -> bool {
    let inner = e.get_ref().and_then(|e| e.downcast_ref::<Error>());
    matches!(inner, Some(Error::InvalidMessage(_)))
}

/// Whether the other end seems not to know TLS at all.
pub(super) fn speaks_no_tls(e: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    is_other_protocol(e)
        || matches!(
            e.kind(),
            UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe
        )
}
