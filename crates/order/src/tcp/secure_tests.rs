//! Encryption and the secret over real loopback sockets. The certificates lie
//! in `tests/pki`.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use dromon_writeset::Uuid;
use tempfile::TempDir;

use super::tests::{Events, SOON, addr, all_up, config, identity, next_frame, peers, until};
use super::*;
use crate::wire::{Hello, HelloAnswer, Purpose, read_greeting};

const NAME: &str = "test";

fn pki(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/pki")
        .join(name)
}

pub(super) fn files(name: &str) -> TlsFiles {
    TlsFiles {
        ca: pki("ca.pem"),
        cert: pki(&format!("{name}.pem")),
        key: match name {
            "node2" | "stranger" => pki(&format!("{name}.key")),
            _ => pki("node.key"),
        },
        ..TlsFiles::default()
    }
}

pub(super) fn tls(files: TlsFiles) -> SecurityConfig {
    SecurityConfig {
        tls: Some(files),
        ..SecurityConfig::default()
    }
}

/// A file with a secret in it, and the directory that holds it.
fn secret_file(content: &str, mode: u32) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    (dir, path)
}

pub(super) fn secret(content: &str) -> (TempDir, SecurityConfig) {
    let (dir, path) = secret_file(content, 0o600);
    let config = SecurityConfig {
        secret_file: Some(path),
        ..SecurityConfig::default()
    };
    (dir, config)
}

pub(super) fn security(config: &SecurityConfig) -> Arc<Security> {
    let s = Security::open();
    s.load(config).unwrap();
    s
}

pub(super) fn node(
    raft_id: RaftId,
    of: &SecurityConfig,
) -> (Arc<TcpNetwork>, Events, Arc<Security>) {
    let (mut c, events) = config(raft_id);
    let security = security(of);
    c.security = security.clone();
    c.greet_timeout = Duration::from_secs(2);
    (TcpNetwork::bind(c).unwrap(), events, security)
}

fn said(events: &Events, text: &str) -> bool {
    lock(events).iter().any(|e| e.to_string().contains(text))
}

/// What `asker` gets for a question to `n`.
async fn ask(n: &TcpNetwork, asker: &SecurityConfig) -> Result<Bytes, String> {
    let who = identity(0);
    let body = Bytes::from_static(b"?");
    let (at, security) = (addr(n), security(asker));
    let asking = request(&at, &who, &security, body, SOON);
    tokio::select! {
        r = asking => r.map_err(|e| e.to_string()),
        () = answer_all(n) => unreachable!("the node goes on answering"),
    }
}

async fn answer_all(n: &TcpNetwork) {
    loop {
        if let Some(Inbound::Request { body, reply, .. }) = n.recv().await {
            reply.send(body);
        }
    }
}

async fn exchange(one: &SecurityConfig, other: &SecurityConfig) -> (Events, Events) {
    let ((a, seen_a, _), (b, seen_b, _)) = (node(1, one), node(2, other));
    let both = peers(&[(1, &a), (2, &b)]);
    a.set_peers(both.clone());
    b.set_peers(both);
    until("both up", || all_up(&a, 2) && all_up(&b, 1)).await;
    // More than the buffers of the encryption and of the socket hold.
    let big = Bytes::from(vec![7; 3 << 20]);
    for i in 0..200u32 {
        let mut f = Frame::new();
        f.push(Bytes::copy_from_slice(&i.to_le_bytes()));
        if i % 50 == 0 {
            f.push(big.clone());
        }
        a.send(2, Lane::Bulk, f).unwrap();
    }
    for i in 0..200u32 {
        let (from, _, body) = next_frame(&b).await;
        assert_eq!((from, &body[..4]), (1, &i.to_le_bytes()[..]));
        assert!(body.len() == if i % 50 == 0 { 4 + (3 << 20) } else { 4 });
    }
    assert!(a.peers_status()[&2].rtt.is_some());
    (seen_a, seen_b)
}

#[tokio::test]
async fn nodes_of_one_authority_and_one_secret_talk_encrypted() {
    let (_dir, with) = secret("a secret of the cluster");
    let one = SecurityConfig {
        tls: Some(files("node")),
        ..with.clone()
    };
    let other = SecurityConfig {
        tls: Some(files("node2")),
        ..with
    };
    let (seen, _) = exchange(&one, &other).await;
    assert!(said(&seen, "connection established to 2 ssl://127.0.0.1:"));
}

#[tokio::test]
async fn one_without_the_other_works_too() {
    let (_dir, with) = secret("a secret of the cluster");
    exchange(&with, &with).await;
    exchange(&tls(files("node")), &tls(files("node2"))).await;
    // A certificate that is trusted itself: no authority file, all alike.
    let shared = TlsFiles {
        ca: PathBuf::new(),
        ..files("self")
    };
    exchange(&tls(shared.clone()), &tls(shared)).await;
    let mut sealed = files("node");
    sealed.key = pki("node.key.sealed");
    sealed.password_file = pki("node.password");
    sealed.cipher = "TLS_AES_128_GCM_SHA256".to_owned();
    exchange(&tls(sealed), &tls(files("node2"))).await;
}

/// Who signed a node's certificate signs many others, too.
#[tokio::test]
async fn without_authorities_the_chain_of_the_own_certificate_vouches_for_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let chain = dir.path().join("chain.pem");
    let read = |name| fs::read_to_string(pki(name)).unwrap();
    fs::write(&chain, read("node.pem") + &read("ca.pem")).unwrap();
    let alone = tls(TlsFiles {
        ca: PathBuf::new(),
        cert: chain,
        ..files("node")
    });
    let (a, seen, _) = node(1, &alone);
    // Of the same authority, and trusts what this one shows.
    let e = ask(&a, &tls(files("node2"))).await.unwrap_err();
    assert!(e.contains("has signed it"), "{e}");
    let there = "has signed its certificate";
    until(there, || said(&seen, there)).await;
    let (b, _, _) = node(2, &tls(files("node2")));
    let e = ask(&b, &alone).await.unwrap_err();
    assert!(e.contains("has signed its"), "{e}");
    // The certificate itself is let in.
    exchange(&alone, &alone).await;
}

#[tokio::test]
async fn version_6_addresses_are_encrypted_alike() {
    let Ok(probe) = TcpListener::bind("[::1]:0") else {
        // A machine without IPv6 cannot show it.
        assert!(!Path::new("/proc/net/if_inet6").exists());
        return;
    };
    drop(probe);
    let make = |id, name| {
        let (mut c, _) = config(id);
        c.listen = "[::1]:0".to_owned();
        c.security = security(&tls(files(name)));
        c.greet_timeout = Duration::from_secs(2);
        TcpNetwork::bind(c).unwrap()
    };
    let (a, b) = (make(1, "node"), make(2, "node2"));
    let both = peers(&[(1, &a), (2, &b)]);
    assert!(both[&1].starts_with("[::1]:"));
    a.set_peers(both.clone());
    b.set_peers(both);
    until("both up", || all_up(&a, 2) && all_up(&b, 1)).await;
    a.send(2, Lane::Raft, Bytes::from_static(b"six").into())
        .unwrap();
    assert_eq!(next_frame(&b).await.2, Bytes::from_static(b"six"));
}

/// Everything that `n` sends to somebody who says `bytes`, one piece after the
/// other, and reads in between.
async fn hear(n: &TcpNetwork, pieces: Vec<Vec<u8>>) -> Vec<u8> {
    let at = addr(n);
    tokio::task::spawn_blocking(move || {
        let mut s = TcpStream::connect(at).unwrap();
        s.set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let mut all = Vec::new();
        for piece in pieces {
            // The other end may have gone.
            let _ = s.write_all(&piece);
            let mut buf = [0; 4096];
            while let Ok(n @ 1..) = s.read(&mut buf) {
                all.extend_from_slice(&buf[..n]);
            }
        }
        all
    })
    .await
    .unwrap()
}

/// Nothing of the node's identity is in what it sent.
fn reveals_nothing(heard: &[u8]) {
    let who = identity(1);
    let holds = |what: &[u8]| heard.windows(what.len()).any(|w| w == what);
    assert!(!holds(NAME.as_bytes()), "{heard:?}");
    assert!(!holds(&who.history.0), "{heard:?}");
    assert!(!holds(b"127.0.0.1"), "{heard:?}");
}

fn hello() -> Vec<u8> {
    Hello::new(Purpose::Request, identity(0)).encode().to_vec()
}

/// A proof message of the given kind as wire.md draws it.
fn raw(kind: u8, content: &[u8]) -> Vec<u8> {
    let body = [&[kind], content].concat();
    let sum = crc32c::crc32c(&body).to_le_bytes();
    let len = (body.len() as u32).to_le_bytes();
    [&crate::wire::MAGIC[..], &len, &sum, &body].concat()
}

#[tokio::test]
async fn a_stranger_who_knows_name_and_address_learns_nothing_without_the_secret() {
    let (_dir, with) = secret("a secret of the cluster");
    let (a, seen, _) = node(1, &with);
    // As a node without a secret would: the true greeting, at once.
    let heard = hear(&a, vec![hello()]).await;
    assert!(heard.is_empty(), "{heard:?}");
    until("a line in the log", || {
        said(&seen, "it offers no proof of the cluster's secret")
    })
    .await;
    lock(&a.shared.said).clear();
    // With a proof made up: a random number comes back, and nothing else.
    let heard = hear(&a, vec![raw(3, &[1; 32]), raw(5, &[2; 32]), hello()]).await;
    assert_eq!(heard.len(), 16 + 33, "{heard:?}");
    assert_eq!(heard[16], 4);
    reveals_nothing(&heard);
    until("a line in the log", || {
        said(&seen, "it does not know this cluster's secret")
    })
    .await;
    // Said once a minute, however often it tries.
    let lines = lock(&seen).len();
    hear(&a, vec![raw(3, &[1; 32]), raw(5, &[3; 32])]).await;
    hear(&a, vec![hello()]).await;
    assert_eq!(lock(&seen).len(), lines);
    // Out of turn, or too short.
    for first in [raw(5, &[1; 32]), raw(3, &[1; 31]), raw(6, &[1; 32])] {
        assert!(hear(&a, vec![first]).await.is_empty());
    }
    assert_eq!(ask(&a, &with).await, Ok(Bytes::from_static(b"?")));
}

/// Takes any certificate and keeps it.
#[derive(Debug, Default)]
struct Credulous(Mutex<Vec<Vec<u8>>>);

impl rustls::client::danger::ServerCertVerifier for Credulous {
    fn verify_server_cert(
        &self,
        shown: &rustls::pki_types::CertificateDer<'_>,
        between: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        let all = [shown].into_iter().chain(between);
        lock(&self.0).extend(all.map(|c| c.to_vec()));
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &rustls::pki_types::CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.verify_tls12_signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        vec![rustls::SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// What a stranger reads who speaks TLS, shows the certificate `own` and asks
/// nobody who is there: the certificates shown to him, and all else, decrypted.
async fn see_through(
    n: &TcpNetwork,
    own: Option<&str>,
    pieces: Vec<Vec<u8>>,
) -> (Vec<Vec<u8>>, Vec<u8>) {
    use rustls::pki_types::pem::PemObject;
    let keeps = Arc::new(Credulous::default());
    let builder =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls_graviola::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(keeps.clone());
    let config = match own.map(files) {
        None => builder.with_no_client_auth(),
        Some(of) => {
            let chain = rustls::pki_types::CertificateDer::from_pem_file(of.cert).unwrap();
            let key = rustls::pki_types::PrivateKeyDer::from_pem_file(of.key).unwrap();
            builder.with_client_auth_cert(vec![chain], key).unwrap()
        }
    };
    let at = addr(n);
    let heard = tokio::task::spawn_blocking(move || {
        let mut s = TcpStream::connect(at).unwrap();
        s.set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let name = rustls::pki_types::ServerName::try_from("node").unwrap();
        let mut tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut all = Vec::new();
        for piece in pieces {
            let mut stream = rustls::Stream::new(&mut tls, &mut s);
            // The other end may have gone.
            let _ = stream.write_all(&piece);
            let mut buf = [0; 4096];
            while let Ok(n @ 1..) = stream.read(&mut buf) {
                all.extend_from_slice(&buf[..n]);
            }
        }
        all
    });
    let heard = heard.await.unwrap();
    let shown = lock(&keeps.0).clone();
    (shown, heard)
}

#[tokio::test]
async fn a_stranger_who_decrypts_sees_the_certificate_and_no_more() {
    use rustls::pki_types::pem::PemObject;
    let (_dir, with_secret) = secret("a secret of the cluster");
    let both = SecurityConfig {
        secret_file: with_secret.secret_file.clone(),
        ..tls(files("node"))
    };
    let (a, seen, _) = node(1, &both);
    let certificate = rustls::pki_types::CertificateDer::from_pem_file(pki("node.pem")).unwrap();
    let made_up = || vec![raw(3, &[1; 32]), raw(5, &[2; 32]), hello()];
    for own in [None, Some("stranger")] {
        let (shown, heard) = see_through(&a, own, made_up()).await;
        assert_eq!(shown, [certificate.to_vec()], "as far as that: {own:?}");
        assert!(heard.is_empty(), "{own:?} heard {heard:?}");
    }
    // With a certificate of the cluster: the secret is still between.
    let (_, heard) = see_through(&a, Some("node2"), vec![hello()]).await;
    assert!(heard.is_empty(), "{heard:?}");
    lock(&a.shared.said).clear();
    let (_, heard) = see_through(&a, Some("node2"), made_up()).await;
    assert_eq!(heard.len(), 16 + 33, "a random number: {heard:?}");
    reveals_nothing(&heard);
    until("a line in the log", || {
        said(&seen, "it does not know this cluster's secret")
    })
    .await;
    assert_eq!(ask(&a, &both).await, Ok(Bytes::from_static(b"?")));
}

#[tokio::test]
async fn a_handshake_that_was_overheard_opens_nothing() {
    let (_dir, with) = secret("a secret of the cluster");
    let (a, _, _) = node(1, &with);
    // Somebody in the middle who passes everything on and keeps it.
    let middle = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = middle.local_addr().unwrap().to_string();
    let to = addr(&a);
    let heard: Arc<Mutex<Vec<u8>>> = Arc::default();
    let keep = heard.clone();
    thread::spawn(move || {
        let (mut from, _) = middle.accept().unwrap();
        let mut onward = TcpStream::connect(to).unwrap();
        let (mut back_from, mut back_to) = (onward.try_clone().unwrap(), from.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
        let mut buf = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut buf) {
            lock(&keep).extend_from_slice(&buf[..n]);
            onward.write_all(&buf[..n]).unwrap();
        }
    });
    let (who, body) = (identity(0), Bytes::from_static(b"?"));
    let known = security(&with);
    let asked = tokio::select! {
        r = request(&at, &who, &known, body, SOON) => r,
        () = answer_all(&a) => unreachable!("the node goes on answering"),
    };
    assert_eq!(asked, Ok(Bytes::from_static(b"?")));
    let said = lock(&heard).clone();
    let (call, rest) = said.split_at(16 + 33);
    let (proof, rest) = rest.split_at(16 + 33);
    assert_eq!((call[16], proof[16]), (3, 5));
    let again = vec![call.to_vec(), proof.to_vec(), rest.to_vec()];
    let answered = hear(&a, again).await;
    assert_eq!(answered.len(), 16 + 33, "a nonce and no more");
    reveals_nothing(&answered);
}

#[tokio::test]
async fn each_wrong_secret_has_its_words() {
    let (_d1, with) = secret("a secret of the cluster");
    let (_d2, other) = secret("a secret of another one");
    for files in [None, Some(files("node"))] {
        let under = |config: &SecurityConfig| SecurityConfig {
            tls: files.clone(),
            ..config.clone()
        };
        let (with, other) = (under(&with), under(&other));
        let none = under(&SecurityConfig::default());
        let (a, _, _) = node(1, &with);
        let e = ask(&a, &other).await.unwrap_err();
        assert!(e.contains("does not accept the secret of this node"), "{e}");
        let e = ask(&a, &none).await.unwrap_err();
        assert!(e.contains("ended the connection without a greeting"), "{e}");
        assert!(e.contains("dromon.secret_file"), "{e}");
        let (b, seen, _) = node(2, &none);
        let e = ask(&b, &with).await.unwrap_err();
        assert!(e.contains("it has no secret"), "{e}");
        until("a line in the log", || {
            said(&seen, "it asks for a secret that this node has not")
        })
        .await;
    }
    // Somebody who answers a call with made-up bytes is not believed either.
    let fake = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = fake.local_addr().unwrap().to_string();
    let seen = thread::spawn(move || {
        let (mut s, _) = fake.accept().unwrap();
        s.write_all(&raw(4, &[1; 32])).unwrap();
        s.write_all(&raw(6, &[2; 32])).unwrap();
        let mut all = Vec::new();
        let _ = s.read_to_end(&mut all);
        all
    });
    let who = identity(0);
    let e = request(&at, &who, &security(&with), Bytes::new(), SOON).await;
    let e = e.unwrap_err().to_string();
    assert!(
        e.contains("it does not know the secret of this node"),
        "{e}"
    );
    // And heard nothing but a nonce and a proof.
    let all = seen.join().unwrap();
    assert_eq!(all.len(), 2 * (16 + 33));
    reveals_nothing(&all);
}

#[tokio::test]
async fn an_encrypted_link_whose_other_end_stops_is_said_to_have_ended() {
    let one = tls(files("node"));
    let (b, _, _) = node(2, &one);
    let (mut c, seen) = config(1);
    c.security = security(&one);
    // Bytes that b has not read would make its end a reset.
    c.ping_every = Duration::from_secs(60);
    let a = TcpNetwork::bind(c).unwrap();
    a.set_peers(peers(&[(1, &a), (2, &b)]));
    until("b has read all that came", || {
        b.shared.inbound.lock().lanes.len() == 3
    })
    .await;
    b.stop();
    until("all three are lost", || {
        let seen = lock(&seen);
        let lost = |e: &&TransportEvent| matches!(e, TransportEvent::Lost { .. });
        seen.iter().filter(lost).count() == 3
    })
    .await;
    assert!(said(&seen, "it ended the connection"), "{seen:?}");
    assert!(!said(&seen, "close_notify"), "{seen:?}");
}

/// Its certificate, or the secret that it knows, may be taken from it meanwhile.
#[tokio::test]
async fn who_is_no_member_any_more_has_to_greet_anew() {
    let (a, b) = (
        node(1, &SecurityConfig::default()).0,
        node(2, &SecurityConfig::default()).0,
    );
    let both = peers(&[(1, &a), (2, &b)]);
    a.set_peers(both.clone());
    b.set_peers(both);
    let lanes = |n: &TcpNetwork| {
        n.shared
            .inbound
            .lock()
            .lanes
            .keys()
            .copied()
            .collect::<Vec<_>>()
    };
    until("both hear each other", || {
        lanes(&a).len() == 3 && lanes(&b).len() == 3
    })
    .await;
    let before: Vec<u64> = a.shared.inbound.lock().conns.keys().copied().collect();
    a.set_peers(peers(&[(1, &a)]));
    until("it is there on connections that it has made since", || {
        let inbound = a.shared.inbound.lock();
        inbound.lanes.len() == 3 && before.iter().all(|id| !inbound.conns.contains_key(id))
    })
    .await;
}

#[tokio::test]
async fn each_wrong_certificate_has_its_words_at_both_ends() {
    let (a, seen, _) = node(1, &tls(files("node")));
    let mut foreign = files("stranger");
    // It trusts us; we do not trust it.
    foreign.ca = pki("ca.pem");
    for (theirs, here, there) in [
        (
            tls(foreign),
            "no authority in its socket.ssl_ca has signed it",
            "no authority in socket.ssl_ca has signed its certificate",
        ),
        (
            tls(files("expired")),
            "that has expired",
            "its certificate has expired",
        ),
        (
            tls(files("server-only")),
            "refuses this node's certificate",
            "not made for this end",
        ),
        (
            SecurityConfig::default(),
            "asks for TLS",
            "it is not encrypted, but socket.ssl is on here",
        ),
    ] {
        lock(&a.shared.said).clear();
        let e = ask(&a, &theirs).await.unwrap_err();
        assert!(e.contains(here), "{e}");
        until(there, || said(&seen, there)).await;
    }
    // The other way round: what answers is not trusted.
    let mut elsewhere = files("stranger");
    elsewhere.ca = pki("other-ca.pem");
    let e = ask(&a, &tls(elsewhere)).await.unwrap_err();
    assert!(
        e.contains("no authority in socket.ssl_ca has signed its"),
        "{e}"
    );
    let (b, seen, _) = node(2, &SecurityConfig::default());
    let e = ask(&b, &tls(files("node"))).await.unwrap_err();
    assert!(e.contains("socket.ssl"), "{e}");
    until("named", || said(&seen, "like TLS (it has socket.ssl on")).await;
    let (c, _, _) = node(3, &tls(files("expired")));
    let e = ask(&c, &tls(files("node"))).await.unwrap_err();
    assert!(e.contains("its certificate has expired"), "{e}");
    // A greeting in the clear is not answered.
    assert!(hear(&a, vec![hello()]).await.is_empty());
    let own = identity(1);
    assert_eq!(own.history, Uuid([9; 16]), "what strangers look for is set");
}

#[tokio::test]
async fn dynamic_takes_both_kinds_and_prefers_the_encrypted_one() {
    let both = |name| SecurityConfig {
        dynamic: true,
        ..tls(files(name))
    };
    let plain = SecurityConfig::default();
    let (seen, _) = exchange(&both("node"), &both("node2")).await;
    assert!(said(&seen, " ssl://") && !said(&seen, " tcp://"));
    let (seen, seen_b) = exchange(&both("node"), &plain).await;
    assert!(said(&seen, " tcp://") && !said(&seen, " ssl://"));
    assert!(said(&seen_b, " tcp://"));
    let (seen, _) = exchange(&both("node"), &tls(files("node2"))).await;
    assert!(said(&seen, " ssl://") && !said(&seen, " tcp://"));
    // A certificate that is not trusted is no reason to go without.
    let (a, _, _) = node(1, &tls(files("node")));
    let mut elsewhere = files("stranger");
    elsewhere.ca = pki("other-ca.pem");
    let e = ask(
        &a,
        &SecurityConfig {
            dynamic: true,
            ..tls(elsewhere)
        },
    )
    .await;
    assert!(e.unwrap_err().contains("no authority"), "no way round");
}

#[tokio::test]
async fn files_read_again_count_for_new_connections_and_bad_ones_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let put = |from: &str, to: &str| fs::copy(pki(from), dir.path().join(to)).unwrap();
    put("expired.pem", "cert");
    put("node.key", "key");
    let mine = tls(TlsFiles {
        ca: pki("ca.pem"),
        cert: dir.path().join("cert"),
        key: dir.path().join("key"),
        ..TlsFiles::default()
    });
    let asker = tls(files("node2"));
    let (a, _, security) = node(1, &mine);
    assert!(ask(&a, &asker).await.unwrap_err().contains("has expired"));
    put("node.pem", "cert");
    assert!(ask(&a, &asker).await.unwrap_err().contains("has expired"));
    let notes = security.load(&mine).unwrap();
    assert!(notes.iter().any(|n| n.contains("valid until 2119-01-01")));
    assert!(ask(&a, &asker).await.is_ok());
    // Half a copy, and a key of another certificate.
    fs::write(dir.path().join("cert"), "-----BEGIN CERT").unwrap();
    let e = security.load(&mine).unwrap_err().to_string();
    assert!(e.contains("the PEM text in it is damaged"), "{e}");
    put("node2.pem", "cert");
    let e = security.load(&mine).unwrap_err().to_string();
    assert!(e.contains("it is not the key of the certificate in"), "{e}");
    assert!(ask(&a, &asker).await.is_ok(), "the last good files count");
}

#[tokio::test]
async fn who_is_not_on_the_list_is_refused_without_a_word_about_the_node() {
    let (mut c, seen) = config(1);
    c.admit = Some(Arc::new(|_, ip| {
        // Blocking is allowed here.
        thread::sleep(Duration::from_millis(20));
        assert_eq!(ip, IpAddr::from([127, 0, 0, 1]), "as people write it");
        Err(Refusal::new(
            crate::wire::RefusalCode::NotAllowed,
            "it does not take nodes from there",
        ))
    }));
    c.listen = "[::]:0".to_owned();
    let a = match TcpNetwork::bind(c.clone()) {
        Ok(a) => a,
        Err(_) => {
            c.listen = "127.0.0.1:0".to_owned();
            TcpNetwork::bind(c).unwrap()
        }
    };
    let at = format!("127.0.0.1:{}", a.local_addr().port());
    let (who, none) = (identity(0), Security::default());
    let r = request(&at, &who, &none, Bytes::new(), SOON).await;
    let e = r.unwrap_err().to_string();
    assert!(e.contains("it does not take nodes from there"), "{e}");
    assert!(said(&seen, "this node does not take nodes from there"));
    // Any other fault is looked at later: what is said of that says who this is.
    let other = Identity {
        cluster: "other".to_owned(),
        ..identity(0)
    };
    let greets = |purpose, who| Hello::new(purpose, who).encode().to_vec();
    for (code, hello) in [
        (RefusalCode::NotAllowed, hello()),
        (RefusalCode::WrongCluster, greets(Purpose::Request, other)),
        (
            RefusalCode::NotAllowed,
            greets(Purpose::Lane(Lane::Raft), identity(1)),
        ),
    ] {
        let mut s = TcpStream::connect(&at).unwrap();
        s.write_all(&hello).unwrap();
        let heard = tokio::task::spawn_blocking(move || {
            let mut all = Vec::new();
            let mut buf = [0; 4096];
            let from = Instant::now();
            s.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            while from.elapsed() < SOON
                && let Ok(n @ 1..) = s.read(&mut buf)
            {
                all.extend_from_slice(&buf[..n]);
            }
            all
        })
        .await
        .unwrap();
        let mut buf = bytes::BytesMut::from(&heard[..]);
        let body = read_greeting(&mut buf).unwrap().unwrap();
        let answer = HelloAnswer::decode(body).unwrap();
        assert_eq!((answer.who, answer.instance), (Identity::default(), 0));
        let refusal = answer.verdict.unwrap_err();
        assert!(
            refusal.code == code && !refusal.text.contains("test"),
            "{refusal:?}"
        );
    }
}

#[test]
fn every_bad_file_is_named_with_its_option_and_a_way_out() {
    let (_d1, short) = secret_file("too short", 0o600);
    let (_d2, open) = secret_file("a secret of the cluster", 0o644);
    let with = |path: &Path| SecurityConfig {
        secret_file: Some(path.to_owned()),
        ..SecurityConfig::default()
    };
    let with_tls = |change: &dyn Fn(&mut TlsFiles)| {
        let mut files = files("node");
        change(&mut files);
        tls(files)
    };
    let none = PathBuf::from("/no/such/file");
    let cases: Vec<(SecurityConfig, &str)> = vec![
        (
            with(&none),
            "dromon.secret_file=/no/such/file: the file cannot be read",
        ),
        (with(&short), "shorter than 16 bytes; make one with"),
        (with(&open), "(mode 0644); chmod 600 it"),
        (with(Path::new("/tmp")), "it is not a file"),
        (
            with_tls(&|f| f.cert = none.clone()),
            "socket.ssl_cert=/no/such/file: the file cannot",
        ),
        (
            with_tls(&|f| f.key = none.clone()),
            "socket.ssl_key=/no/such/file: the file cannot",
        ),
        (
            with_tls(&|f| f.ca = none.clone()),
            "socket.ssl_ca=/no/such/file: the file cannot",
        ),
        (
            with_tls(&|f| f.cert = PathBuf::new()),
            "socket.ssl_cert=: it is not set",
        ),
        (
            with_tls(&|f| f.cert = pki("node.key")),
            "there is no certificate in it",
        ),
        (
            with_tls(&|f| f.key = pki("node.pem")),
            "there is no private key in it",
        ),
        (
            with_tls(&|f| f.key = pki("node2.key")),
            "it is not the key of the certificate",
        ),
        (
            with_tls(&|f| f.key = pki("node.key.sealed")),
            "it is encrypted; name the file",
        ),
        (
            with_tls(&|f| {
                f.key = pki("node.key.sealed");
                f.password_file = pki("ca.pem");
            }),
            "socket.ssl_password_file=",
        ),
    ];
    for (config, text) in cases {
        let e = Security::open().load(&config).unwrap_err().to_string();
        assert!(e.contains(text), "{e}");
    }
}

#[test]
fn what_others_will_refuse_is_said_when_it_is_read() {
    let notes = |name: &str, cipher: &str| {
        let mut files = files(name);
        files.cipher = cipher.to_owned();
        Security::open().load(&tls(files)).unwrap().join("\n")
    };
    assert!(notes("expired", "").contains("refuse this node, because its certificate has expired"));
    assert!(notes("version1", "").contains("a certificate of version 1"));
    assert!(notes("node", "AES256-SHA").contains("socket.ssl_cipher = 'AES256-SHA' has no effect"));
    let good = notes("node", "TLS_AES_256_GCM_SHA384");
    assert!(
        good.contains("valid until 2119-01-01") && !good.contains("cipher"),
        "{good}"
    );
    let mut foreign = files("stranger");
    foreign.ca = pki("ca.pem");
    let said = Security::open().load(&tls(foreign)).unwrap().join("\n");
    assert!(
        said.contains("no authority in socket.ssl_ca has signed"),
        "{said}"
    );
}
