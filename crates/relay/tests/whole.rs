//! A whole relay, from its settings on.

mod common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use common::{append, format_event, gtid, open, transaction};
use dromon_binlog::Checksum;
use dromon_log::SimDevice;
use dromon_relay::log::Log;
use dromon_relay::pull::{Following, Puller, Source, Wish};
use dromon_relay::serve::{Account, Policy, Registry, ServeOptions, Server};
use dromon_relay::store::{Store, StoreOptions};
use dromon_relay::wire::PasswordHash;
use dromon_relay::{Config, Given, RELAY, run};

const CRC: Checksum = Checksum::Crc32;
/// Of the relay alone: nobody else is given a port of it.
const RELAY_HOST: &str = "127.83.7.1";

/// So many transactions, of which each fills a file of the relay.
fn stored(transactions: u64) -> Store {
    let mut store = open(&SimDevice::new(5), StoreOptions::default()).expect("empty");
    store.begin_file(&format_event(CRC)).expect("a good disk");
    for seqno in 1..=transactions {
        let name = gtid(0, 1, seqno);
        append(&mut store, &transaction(name, 3, 2000, CRC), name).expect("a good disk");
    }
    store.flush().expect("a good disk");
    store
}

/// A server with this id that has so much. Gives its port.
fn serves(server_id: u32, transactions: u64, log: &Log) -> u16 {
    let options = ServeOptions {
        server_id,
        accounts: vec![Account {
            name: "repl".into(),
            password: PasswordHash::of(b"secret"),
            admin: false,
        }],
        policy: Policy::Pass,
        policies: BTreeMap::new(),
        congestion: Some("system".into()),
        tls: None,
        tls_required: false,
        connections_max: 50,
        zstd: false,
        write_timeout: Duration::from_secs(60),
        heartbeat: Duration::from_secs(1),
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let view = stored(transactions).view();
    let server = Server::new(options, view, Registry::new(60), log.clone(), port);
    thread::spawn(move || server.listen(&listener));
    port
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((RELAY_HOST, 0)).expect("a port");
    listener.local_addr().expect("bound").port()
}

/// A replica that receives all from the relay, and has applied what this port says.
fn replica(relay: u16, report_port: u16, log: &Log) -> Puller {
    let source = Source {
        address: format!("{RELAY_HOST}:{relay}"),
        wish: Wish {
            user: "repl".into(),
            password: "secret".into(),
            tls: false,
            server_id: 3,
            report_host: "db3".into(),
            report_port,
            heartbeat: Duration::from_millis(200),
            semi_sync: false,
            zstd: None,
            position: String::new(),
            file: None,
            executed: None,
            channel: None,
        },
        tls: None,
        dead_after: Duration::from_secs(60),
        backoff_max: Duration::from_secs(1),
        start_file: None,
    };
    let store = open(&SimDevice::new(6), StoreOptions::default()).expect("empty");
    Puller::new(source, store, log.clone(), Box::new(|| ()), None)
}

fn status(http: u16) -> Option<serde_json::Value> {
    let mut stream = TcpStream::connect((RELAY_HOST, http)).ok()?;
    stream
        .write_all(b"GET /status.json HTTP/1.1\r\nHost: x\r\n\r\n")
        .ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
}

#[test]
fn replicas_are_asked_what_they_have_applied() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = Log::file(&dir.path().join("others")).expect("writable");
    let (listen, http) = (free_port(), free_port());
    let mut given = Given::new(&RELAY);
    for line in [
        &format!("primary = 127.0.0.1:{}", serves(1, 6, &log)),
        "user = repl",
        "password = secret",
        &format!("dir = {}", dir.path().join("relay").display()),
        &format!("log = {}", dir.path().join("log").display()),
        "server_id = 9",
        "account = repl:secret",
        &format!("listen = {RELAY_HOST}:{listen}"),
        &format!("http = {RELAY_HOST}:{http}"),
        "file_size = 4K",
        "hold = 1s",
        "watch_user = repl",
        "watch_password = secret",
    ] {
        given.line(line, String::new()).expect("a setting");
    }
    let config = Config::settle(&given).expect("enough");
    let relay = thread::spawn(move || run(&config).map_err(|e| e.to_string()));
    let begun = Instant::now();
    let wait = |what: &dyn Fn(&serde_json::Value) -> bool| loop {
        assert!(!relay.is_finished(), "it has ended");
        let status = status(http).unwrap_or_default();
        if what(&status) {
            return status;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{status}");
        thread::sleep(Duration::from_millis(50));
    };
    wait(&|status| status["gtid_binlog_pos"] == "0-1-6");
    let puller = replica(listen, serves(3, 2, &log), &log);
    let following = puller.following();
    let pulls = thread::spawn(move || puller.run());
    let told = wait(&|status| status["replicas"][0]["needs_by"] == "applied");
    let replica = &told["replicas"][0];
    assert_eq!(replica["server_id"], 3, "{told}");
    assert_eq!(replica["needs_file"], replica["applied_file"], "{told}");
    assert_eq!(replica["needs_file"], "relay-bin.000003", "{told}");
    Following::stop(&following);
    pulls.join().expect("it ends").expect("a good disk");
    signal_hook::low_level::raise(signal_hook::consts::SIGTERM).expect("a signal");
    assert_eq!(relay.join().expect("it ends"), Ok(true));
}
