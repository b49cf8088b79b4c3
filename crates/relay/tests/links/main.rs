//! Sockets: TLS between a relay and those who ask it, and HTTP.

mod acks;
mod beats;
mod by_file;
#[path = "../common/mod.rs"]
mod common;
mod http;
mod lines;
mod logins;
mod lost;
mod restarts;
mod searches;
mod upstream;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{append, format_event, gtid, transaction};
use dromon_binlog::{BinlogState, Checksum};
use dromon_log::{Device, DeviceFile, SimDevice};
use dromon_relay::http::{HttpServer, Questions};
use dromon_relay::net::{ClientTls, ServerTls, TlsKeys};
use dromon_relay::pull::{AskError, Asker, Following, Login, Puller, Source, Wish};
use dromon_relay::serve::{Account, Policy, Registry, ServeOptions, Server};
use dromon_relay::store::{Limits, Store, StoreOptions, View};
use dromon_relay::wire::{
    Command, Dump, Frames, Greeting, NATIVE_PASSWORD, PasswordHash, Register, capabilities,
    native_reply, put_packet,
};
use dromon_relay::{Now, log::Log};

fn pki(name: &str) -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.join("../order/tests/pki").join(name)
}

fn serve(tls: bool, tls_required: bool) -> (String, Arc<Server>, Arc<View>) {
    let load = || ServerTls::load(&pki("node.pem"), &pki("node.key"), None).expect("a pair");
    serve_with(tls.then(load), tls_required)
}

fn serve_with(tls: Option<ServerTls>, tls_required: bool) -> (String, Arc<Server>, Arc<View>) {
    serve_from(Arc::new(SimDevice::new(5)), tls, tls_required)
}

fn serve_from(
    device: Arc<dyn Device>,
    tls: Option<ServerTls>,
    tls_required: bool,
) -> (String, Arc<Server>, Arc<View>) {
    let options = StoreOptions {
        // Files are read from the disk.
        tail_max: 0,
        ..StoreOptions::default()
    };
    let (mut store, _) = Store::open(device, options, BinlogState::new()).expect("empty");
    store
        .begin_file(&format_event(Checksum::Crc32))
        .expect("a good disk");
    let name = gtid(0, 1, 7);
    append(&mut store, &transaction(name, 1, 9, Checksum::Crc32), name).expect("a good disk");
    store.flush().expect("a good disk");
    serve_view(store.view(), tls, tls_required)
}

fn serve_view(
    view: Arc<View>,
    tls: Option<ServerTls>,
    tls_required: bool,
) -> (String, Arc<Server>, Arc<View>) {
    let log = Log::file(&std::env::temp_dir().join("dromon-relay-links.log")).expect("writable");
    serve_logged(view, tls, tls_required, log)
}

fn serve_logged(
    view: Arc<View>,
    tls: Option<ServerTls>,
    tls_required: bool,
    log: Log,
) -> (String, Arc<Server>, Arc<View>) {
    let options = ServeOptions {
        server_id: 42,
        accounts: [("repl", false), ("ops", true)]
            .map(|(name, admin)| Account {
                name: name.into(),
                password: PasswordHash::of(b"secret"),
                admin,
            })
            .into(),
        policy: Policy::Pass,
        policies: BTreeMap::new(),
        // No system has it: that must be no reason not to serve.
        congestion: Some("nonesuch".into()),
        tls,
        tls_required,
        connections_max: 50,
        zstd: true,
        write_timeout: Duration::from_secs(5),
        heartbeat: Duration::from_secs(1),
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let server = Server::new(options, Arc::clone(&view), Registry::new(60), log, 0);
    let taken = Arc::clone(&server);
    thread::spawn(move || taken.listen(&listener));
    (address, server, view)
}

fn ask(address: &str, password: &str, tls: Option<ClientTls>) -> Result<String, AskError> {
    let login = Login {
        address: address.to_owned(),
        user: "repl".into(),
        password: password.into(),
        tls,
        limit: Duration::from_secs(10),
        in_all: None,
    };
    let mut asker = Asker::connect(&login)?;
    let rows = asker.ask("SELECT @@server_id, @@gtid_binlog_pos", 4096)?;
    let cells: Vec<String> = rows[0]
        .iter()
        .map(|c| String::from_utf8_lossy(c.as_deref().unwrap_or_default()).into_owned())
        .collect();
    // Again, on the same connection; and more than is allowed.
    let refused = asker.ask("SELECT nothing", 4096).expect_err("refused");
    assert!(refused.to_string().contains("1235"), "{refused}");
    let large = asker.ask("SHOW VARIABLES", 50).expect_err("large");
    assert!(matches!(large, AskError::TooLarge { .. }), "{large}");
    Ok(cells.join(" "))
}

const KEYS: TlsKeys = TlsKeys {
    mode: "primary_tls",
    ca: "primary_tls_ca",
    cert: "primary_tls_cert",
    key: "primary_tls_key",
};

fn ca(name: &str, named: bool) -> Option<ClientTls> {
    Some(ClientTls::load(KEYS, &pki(name), named, None).expect("an authority"))
}

#[test]
fn asked_with_and_without_tls() {
    let (open, ..) = serve(false, false);
    let (both, ..) = serve(true, false);
    let (strict, ..) = serve(true, true);
    for (address, tls) in [
        (&open, None),
        (&both, None),
        (&both, ca("ca.pem", false)),
        (&strict, ca("ca.pem", false)),
    ] {
        assert_eq!(ask(address, "secret", tls).expect("an answer"), "42 0-1-7");
    }
    let refused = |address: &str, tls| {
        ask(address, "secret", tls)
            .expect_err("refused")
            .to_string()
    };
    let said = refused(&strict, None);
    assert!(said.contains("encrypted connections only"), "{said}");
    let said = refused(&open, ca("ca.pem", false));
    assert!(said.contains("does not offer TLS"), "{said}");
    let said = refused(&both, ca("other-ca.pem", false));
    assert!(said.contains("UnknownIssuer"), "{said}");
    // Signed by the right one, but for another name.
    let said = refused(&both, ca("ca.pem", true));
    assert!(said.contains("certificate"), "{said}");
    for tls in [None, ca("ca.pem", false)] {
        let said = ask(&both, "wrong", tls).expect_err("refused").to_string();
        assert!(said.contains("Access denied"), "{said}");
    }
}

/// Passes all on, with answers of its own behind the greeting: of the login and of what is asked.
fn says_more(server: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.expect("a connection");
            let mut server = TcpStream::connect(&server).expect("it listens");
            let mut buf = vec![0; 4096];
            let n = server.read(&mut buf).expect("a greeting");
            let mut said = buf[..n].to_vec();
            said.extend_from_slice(&[7, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0]);
            client.write_all(&said).expect("taken");
            let (mut from, mut to) = (
                client.try_clone().expect("open"),
                server.try_clone().expect("open"),
            );
            thread::spawn(move || io::copy(&mut from, &mut to));
            thread::spawn(move || io::copy(&mut server, &mut client));
        }
    });
    address
}

#[test]
fn what_is_said_before_tls_does_not_count() {
    let (address, ..) = serve(true, true);
    let address = says_more(address);
    let said = ask(&address, "secret", ca("ca.pem", false)).expect_err("somebody else");
    assert!(
        said.to_string().contains("speaks before its turn"),
        "{said}"
    );
    let (following, _, thread) = pull(&address, "", None, ca("ca.pem", false));
    until("it is refused", || {
        let said = following.lock().expect("alive").last_error.clone();
        said.unwrap_or_default().contains("speaks before its turn")
    });
    Following::stop(&following);
    thread.join().expect("it ends");
}

/// One that answers a byte at a time takes no longer than it may in all.
#[test]
fn asked_in_all() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("it comes");
        client.write_all(&[200, 0, 0, 0]).expect("taken");
        while client.write_all(&[10]).is_ok() {
            thread::sleep(Duration::from_millis(100));
        }
    });
    let login = Login {
        address,
        user: "repl".into(),
        password: String::new(),
        tls: None,
        limit: Duration::from_secs(1),
        in_all: Some(Duration::from_secs(1)),
    };
    let begun = Instant::now();
    let said = Asker::connect(&login).expect_err("no answer");
    assert!(matches!(said, AskError::Io { .. }), "{said}");
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(6), "{took:?}");
}

/// What an operator says to the relay of `serve`.
fn says(address: &str, user: &str, statement: &str) -> Result<Vec<String>, String> {
    let login = Login {
        address: address.to_owned(),
        user: user.into(),
        password: "secret".into(),
        tls: None,
        limit: Duration::from_secs(10),
        in_all: None,
    };
    let mut asker = Asker::connect(&login).expect("an account");
    let rows = asker.ask(statement, 1 << 16).map_err(|e| e.to_string())?;
    let cell = |c: &Option<Vec<u8>>| String::from_utf8_lossy(c.as_deref().unwrap_or(b"")).into();
    Ok(rows.iter().flatten().map(cell).collect())
}

/// A replica that is gone for good holds nothing any more, at once and after a restart; one that is
/// there is not forgotten.
#[test]
fn forgotten_while_it_runs() {
    let device = Arc::new(SimDevice::new(5));
    let list = |device: &SimDevice| {
        let text = device.content("dromon-relay.replicas").unwrap_or_default();
        Registry::parse(&String::from_utf8_lossy(&text), 60).expect("as written")
    };
    let (address, server, view) = serve_from(Arc::clone(&device) as Arc<dyn Device>, None, false);
    let limits = Limits {
        size: Some(1),
        ..Limits::default()
    };
    server.keeps(limits, Arc::clone(&device) as Arc<dyn Device>);
    {
        let mut registry = server.registry();
        let [begun, over] = [1000, 1001].map(|t| Now { unix: t, up: t });
        registry.begins(7, "db7", 3306, 100, 1, begun);
        registry.begins(8, "db8", 3306, 101, 1, begun);
        registry.ends(8, 101, over);
    }
    let (told, saved) = (
        says(&address, "repl", "SHOW KNOWN REPLICAS").expect("anybody may"),
        says(&address, "ops", "FORGET REPLICA 7").expect_err("it is here"),
    );
    assert_eq!(told[..4], ["7", "db7", "3306", "Yes"], "{told:?}");
    assert!(
        saved.contains("1210") && saved.contains("Replica 7 (db7) is connected"),
        "{saved}"
    );
    let denied = says(&address, "repl", "FORGET REPLICA 8").expect_err("no operator");
    assert!(denied.contains("1227"), "{denied}");
    let nobody = says(&address, "ops", "FORGET REPLICA 9").expect_err("not known");
    assert!(nobody.contains("SHOW KNOWN REPLICAS"), "{nobody}");
    assert_eq!(server.registry().known().len(), 2, "none was");

    let said = says(&address, "ops", "FORGET REPLICA db8").expect("away");
    assert_eq!(said[..3], ["8", "db8", "relay-bin.000001"], "{said:?}");
    assert!(
        said[3].contains("No file was kept for it alone. relay-bin.000001 and what follows is kept for replica 7."),
        "{said:?}"
    );
    assert!(said[3].contains("error 1236"), "{said:?}");
    // It was written down before that was said, so no crash brings it back.
    let after_crash = |device: &SimDevice| {
        let known = list(device).known().keys().copied().collect::<Vec<_>>();
        assert_eq!(known, [7]);
    };
    after_crash(&device);
    device.crash(3);
    after_crash(&device);

    // A full disk is no obstacle: this is what makes room.
    let now = server.now();
    server.registry().ends(7, 100, now);
    device.fail_write(1, io::ErrorKind::StorageFull);
    let said = says(&address, "ops", "FORGET REPLICA 7").expect("away");
    assert!(said[3].contains("not on the disk yet"), "{said:?}");
    assert!(server.registry().known().is_empty());
    assert!(server.registry().take_changed(), "it is written again");

    let http = HttpServer {
        address: "db1:3306".into(),
        server: Arc::clone(&server),
        view,
        following: Arc::default(),
        watch: None,
        questions: Questions::default(),
        log: Log::terminal(),
    };
    let forgotten = &http.status().json()["forgotten"];
    assert_eq!(forgotten[0]["server_id"], 8);
    assert_eq!(forgotten[1]["needed_file"], "relay-bin.000001");
    assert_eq!(forgotten[1]["by"], "an operator");
}

/// A client that says what it likes.
struct Raw {
    stream: TcpStream,
    frames: Frames,
}

impl Raw {
    /// Logs in; gives the answer to that, too.
    fn login(address: &str, user: &str) -> (Raw, Vec<u8>) {
        let (mut raw, greeting) = Raw::greeted(address);
        let answer = raw.says_who(&greeting, user);
        (raw, answer)
    }

    fn greeted(address: &str) -> (Raw, Greeting) {
        let stream = TcpStream::connect(address).expect("it listens");
        let frames = Frames::new(1 << 16);
        let mut raw = Raw { stream, frames };
        let greeting = Greeting::decode(&raw.packet()).expect("a greeting");
        (raw, greeting)
    }

    fn says_who(&mut self, greeting: &Greeting, user: &str) -> Vec<u8> {
        let login = dromon_relay::wire::Login {
            capabilities: capabilities::OURS,
            user: user.into(),
            reply: native_reply(b"secret", &greeting.salt),
            plugin: NATIVE_PASSWORD.into(),
        };
        let sequence = self.frames.sequence();
        self.tell(sequence, &login.encode())
    }

    fn packet(&mut self) -> Vec<u8> {
        let mut buf = [0; 4096];
        loop {
            if let Some(packet) = self.frames.packet().expect("in order") {
                return packet;
            }
            let n = self.stream.read(&mut buf).expect("an answer");
            assert!(n > 0, "it closed");
            self.frames.feed(&buf[..n]);
        }
    }

    fn tell(&mut self, sequence: u8, packet: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let next = put_packet(&mut out, sequence, packet);
        self.frames.set_sequence(next);
        self.stream.write_all(&out).expect("taken");
        self.packet()
    }
}

/// An error's number; 0 if it is none.
fn number(answer: &[u8]) -> u16 {
    match answer {
        [0xff, low, high, ..] => u16::from_le_bytes([*low, *high]),
        _ => 0,
    }
}

/// An operator's account is none of a replica's.
#[test]
fn operators_do_not_replicate() {
    let (address, server, _) = serve(false, false);
    let (mut ops, answer) = Raw::login(&address, "ops");
    assert_eq!(number(&answer), 0);
    let register = Command::Register(Register {
        server_id: 7,
        host: "db7".into(),
        port: 3306,
    });
    let refused = ops.tell(0, &register.encode());
    let said = String::from_utf8_lossy(&refused).into_owned();
    assert_eq!(number(&refused), 1227, "{said}");
    assert!(
        said.contains("do not replicate. Use one of the setting account"),
        "{said}"
    );
    let dump = Command::Dump(Dump {
        position: 4,
        flags: 0,
        server_id: 7,
        file: b"relay-bin.000001".to_vec(),
    });
    let refused = ops.tell(0, &dump.encode());
    assert_eq!(number(&refused), 1227);
    assert!(server.registry().known().is_empty());
    // One of the setting account may.
    let (mut repl, _) = Raw::login(&address, "repl");
    assert_eq!(number(&repl.tell(0, &register.encode())), 0);
    for set in [
        "SET @master_binlog_checksum = @@global.binlog_checksum",
        "SET @mariadb_slave_capability = 4",
    ] {
        let set = Command::Query(set.into());
        assert_eq!(number(&repl.tell(0, &set.encode())), 0);
    }
    let event = repl.tell(0, &dump.encode());
    assert_eq!(event[0], 0, "{}", String::from_utf8_lossy(&event));
    assert!(server.registry().known().contains_key(&7));
}

/// When all places are taken an operator still comes in; not any number of them.
#[test]
fn a_place_for_operators() {
    let (address, ..) = serve(false, false);
    let mut all: Vec<Raw> = Vec::new();
    for _ in 0..50 {
        let (raw, answer) = Raw::login(&address, "repl");
        assert_eq!(number(&answer), 0);
        all.push(raw);
    }
    assert_eq!(number(&Raw::login(&address, "repl").1), 1040);
    // The one that was refused has gone when its place is free again.
    thread::sleep(Duration::from_millis(500));
    for n in 0..4 {
        let (raw, answer) = Raw::login(&address, "ops");
        assert_eq!(number(&answer), 0, "{n}");
        all.push(raw);
    }
    assert_eq!(number(&Raw::login(&address, "ops").1), 1040);
}

/// Who has asked says that it goes: servers count and log those that do not.
#[test]
fn who_has_asked_says_that_it_goes() {
    let (server, ..) = serve(false, false);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let asks = thread::spawn(move || ask(&address, "secret", None).expect("an answer"));
    let (mut client, _) = listener.accept().expect("it comes");
    let mut server = TcpStream::connect(&server).expect("it listens");
    let (mut from, mut to) = (
        server.try_clone().expect("open"),
        client.try_clone().expect("open"),
    );
    thread::spawn(move || io::copy(&mut from, &mut to));
    let (mut said, mut buf) = (Vec::new(), [0; 4096]);
    while let Ok(n @ 1..) = client.read(&mut buf) {
        said.extend_from_slice(&buf[..n]);
        server.write_all(&buf[..n]).expect("taken");
    }
    assert_eq!(asks.join().expect("it ends"), "42 0-1-7");
    assert!(
        said.ends_with(&[1, 0, 0, 0, 1]),
        "{:?}",
        &said[said.len() - 9..]
    );
}

#[test]
fn certificates_of_replicas() {
    let authority = pki("ca.pem");
    let tls = ServerTls::load(&pki("node.pem"), &pki("node.key"), Some(&authority));
    let tls = tls.expect("a pair and an authority");
    // That TLS is required goes without saying.
    let (address, ..) = serve_with(Some(tls), false);
    let with = |cert: &str, key: &str| {
        let own = (pki(cert), pki(key));
        let own = Some((own.0.as_path(), own.1.as_path()));
        Some(ClientTls::load(KEYS, &authority, false, own).expect("a pair"))
    };
    let good = with("node2.pem", "node2.key");
    assert_eq!(
        ask(&address, "secret", good).expect("an answer"),
        "42 0-1-7"
    );
    for bad in [
        None,
        ca("ca.pem", false),
        with("stranger.pem", "stranger.key"),
    ] {
        let encrypted = bad.is_some();
        let said = ask(&address, "secret", bad).expect_err("refused");
        // Of TLS 1.3 the client's part is over before it is refused.
        assert!(
            matches!(said, AskError::Io { .. }) == encrypted,
            "{encrypted} {said}"
        );
    }
    let said = ServerTls::load(&pki("node.pem"), &pki("node.key"), Some(&pki("node.key")));
    assert_eq!(said.expect_err("no authority").key, "tls_client_ca");
}

#[test]
fn files_that_cannot_be_used() {
    let said = ServerTls::load(&pki("node.pem"), &pki("node2.key"), None).expect_err("no pair");
    assert_eq!(said.key, "tls_key");
    let said =
        ServerTls::load(&pki("node.key"), &pki("node.key"), None).expect_err("no certificate");
    assert!(said.to_string().contains("no certificate in it"), "{said}");
    let said = ClientTls::load(KEYS, &pki("nowhere"), false, None).expect_err("no file");
    assert!(said.to_string().starts_with("primary_tls_ca = "), "{said}");
    let own = (pki("node.pem"), pki("node.key"));
    ClientTls::load(KEYS, &pki("ca.pem"), true, Some((&own.0, &own.1))).expect("all of it");
}

type Pulls = (Arc<Mutex<Following>>, Arc<View>, thread::JoinHandle<()>);

/// A relay that pulls from another one, begun behind this position.
fn pull(address: &str, start: &str, zstd: Option<u8>, tls: Option<ClientTls>) -> Pulls {
    pull_with(address, start, zstd, tls, Duration::from_secs(5))
}

fn pull_with(
    address: &str,
    start: &str,
    zstd: Option<u8>,
    tls: Option<ClientTls>,
    dead_after: Duration,
) -> Pulls {
    let start: BinlogState = start.parse().expect("a state");
    let device = Arc::new(SimDevice::new(6));
    let (store, _) = Store::open(device, StoreOptions::default(), start).expect("empty");
    let view = store.view();
    let puller = puller(store, address, zstd, tls, dead_after);
    let following = puller.following();
    let thread = thread::spawn(move || puller.run().expect("a good disk"));
    (following, view, thread)
}

fn puller(
    store: Store,
    address: &str,
    zstd: Option<u8>,
    tls: Option<ClientTls>,
    dead_after: Duration,
) -> Puller {
    let log = Log::file(&std::env::temp_dir().join("dromon-relay-links.log")).expect("writable");
    puller_with(store, address, zstd, tls, dead_after, log)
}

fn puller_with(
    store: Store,
    address: &str,
    zstd: Option<u8>,
    tls: Option<ClientTls>,
    dead_after: Duration,
    log: Log,
) -> Puller {
    let source = source(address, zstd, tls, dead_after);
    Puller::new(source, store, log, Box::new(|| ()), None)
}

fn source(address: &str, zstd: Option<u8>, tls: Option<ClientTls>, dead_after: Duration) -> Source {
    Source {
        address: address.to_owned(),
        wish: Wish {
            user: "repl".into(),
            password: "secret".into(),
            tls: tls.is_some(),
            server_id: 43,
            report_host: String::new(),
            report_port: 0,
            heartbeat: Duration::from_millis(200),
            semi_sync: true,
            zstd,
            position: String::new(),
            file: None,
            executed: None,
            channel: None,
        },
        tls,
        dead_after,
        backoff_max: Duration::from_secs(1),
        start_file: None,
    }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// What comes is the same with and without compression, and both ends count the same.
#[test]
fn a_relay_pulls_compressed() {
    let (address, server, view) = serve(true, false);
    let stored = |view: &Arc<View>| common::groups_from(view, common::beginning(view));
    for (zstd, tls) in [
        (None, None),
        (Some(1), None),
        (Some(9), None),
        (Some(3), ca("ca.pem", false)),
    ] {
        let (following, pulled, thread) = pull(&address, "", zstd, tls);
        until("it has all", || pulled.state() == view.state());
        assert_eq!(stored(&pulled), stored(&view));
        let of = |known: &Mutex<Following>| known.lock().expect("alive").zstd;
        if zstd.is_some() {
            // Heartbeats, too, are counted on both sides.
            until("the counts are equal", || {
                let theirs = server.registry().known()[&43].zstd;
                let ours = of(&following);
                ours == theirs && ours.is_some_and(|z| z.wire > 0 && z.ratio() > 1.0)
            });
        }
        assert_eq!(of(&following).is_some(), zstd.is_some());
        Following::stop(&following);
        thread.join().expect("it ends");
    }
}

/// The relay hears its primary, itself a relay that is so far behind.
fn hears(following: &Mutex<Following>, behind: u32) {
    let mut following = following.lock().expect("alive");
    following.heard = Some(dromon_relay::Moment::now());
    following.idle = behind == 0;
    following.behind = behind;
    following.beat = Duration::from_secs(3600);
}

/// A relay hears from the one before it that this one is cut off.
#[test]
fn a_relay_behind_one_that_is_cut_off() {
    let (address, server, _) = serve(false, false);
    let upstream: Arc<Mutex<Following>> = Arc::default();
    hears(&upstream, 3600);
    server.follows(Arc::clone(&upstream));
    let (following, _, thread) = pull(&address, "", None, None);
    let lag = || {
        let following = following.lock().expect("alive");
        (following.lag_ms().unwrap_or(0) / 1000, following.complete)
    };
    until("it is behind, too", || (3600..3700).contains(&lag().0));
    assert_eq!(lag().1, None);
    hears(&upstream, 0);
    until("it has all", || lag().0 == 0 && lag().1.is_some());
    Following::stop(&following);
    thread.join().expect("it ends");
}

/// What the replica has may still come, until the primary has nothing more.
#[test]
fn nothing_more_to_wait_for() {
    let (address, server, _) = serve(false, false);
    let upstream: Arc<Mutex<Following>> = Arc::default();
    hears(&upstream, 0);
    server.follows(Arc::clone(&upstream));
    let (following, _, thread) = pull(&address, "0-9-500", None, None);
    until("it has all", || {
        let complete = following.lock().expect("alive").complete;
        complete.is_some_and(|at| at.elapsed() < Duration::from_secs(5))
    });
    let later = Instant::now() + Duration::from_secs(11);
    upstream.lock().expect("alive").complete = Some(later);
    until("it is refused", || {
        let said = following.lock().expect("alive").last_error.clone();
        said.unwrap_or_default().contains("The replica has 0-9-500")
    });
    Following::stop(&following);
    thread.join().expect("it ends");
}

/// Has no descriptors, from time to time.
struct Short {
    device: SimDevice,
    is: Arc<AtomicBool>,
}

impl Device for Short {
    fn list(&self) -> io::Result<Vec<String>> {
        self.device.list()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DeviceFile>> {
        const EMFILE: i32 = 24;
        match self.is.load(Ordering::Relaxed) {
            true => Err(io::Error::from_raw_os_error(EMFILE)),
            false => self.device.open(name),
        }
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DeviceFile>> {
        self.device.create(name)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.device.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.device.rename(from, to)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.device.sync_dir()
    }

    fn place(&self) -> String {
        self.device.place()
    }
}

/// It passes: no error that stops a replica for good.
#[test]
fn no_descriptors_for_a_replica() {
    let is = Arc::new(AtomicBool::new(false));
    let device = Arc::new(Short {
        device: SimDevice::new(5),
        is: Arc::clone(&is),
    });
    let (address, _, view) = serve_from(device, None, false);
    is.store(true, Ordering::Relaxed);
    let (following, pulled, thread) = pull(&address, "", None, None);
    until("it is sent away", || {
        let said = following.lock().expect("alive").last_error.clone();
        said.is_some_and(|said| {
            assert!(!said.contains("1236"), "{said}");
            said.contains("closed the connection")
        })
    });
    is.store(false, Ordering::Relaxed);
    until("it has all", || pulled.state() == view.state());
    Following::stop(&following);
    thread.join().expect("it ends");
}

/// Why it is refused is understood, though that comes compressed.
#[test]
fn a_refusal_comes_compressed() {
    let (address, ..) = serve(false, false);
    let (following, _, thread) = pull(&address, "0-5-3", Some(3), None);
    until("it is refused", || {
        let following = following.lock().expect("alive");
        let said = following.last_error.clone().unwrap_or_default();
        following.zstd.is_some() && said.contains("1236")
    });
    Following::stop(&following);
    thread.join().expect("it ends");
}

/// A login has its time, and not each byte of it.
#[test]
fn a_login_that_trickles() {
    let (address, ..) = serve(true, false);
    let threads: Vec<_> = [
        // A long packet, and the beginning of TLS.
        vec![0, 200, 0, 1],
        [
            &[32, 0, 0, 1, 0, 0x8a, 0, 0][..],
            &[0; 28],
            &[0x16, 3, 1, 2, 0],
        ]
        .concat(),
    ]
    .into_iter()
    .map(|begin| {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        thread::spawn(move || {
            let begun = Instant::now();
            stream.write_all(&begin).expect("taken");
            while stream.write_all(&[0]).is_ok() {
                assert!(
                    begun.elapsed() < Duration::from_secs(30),
                    "it keeps its place"
                );
                thread::sleep(Duration::from_millis(300));
            }
        })
    })
    .collect();
    for thread in threads {
        thread.join().expect("it ends");
    }
}

/// Garbage where a login or TLS is due.
#[test]
fn garbage_is_survived() {
    let (address, ..) = serve(true, false);
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0],
        // Asks for TLS, and goes on with something else, at once.
        &[
            &[32, 0, 0, 1, 0, 0x8a, 0, 0][..],
            &[0; 28],
            b"not TLS at all",
        ]
        .concat(),
    ] {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        stream.write_all(bytes).expect("taken");
        stream
            .set_read_timeout(Some(Duration::from_secs(15)))
            .expect("an option");
        // It ends, one way or the other.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert!(ask(&address, "secret", None).is_ok());
}
