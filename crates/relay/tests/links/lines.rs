//! Nobody fills the log from outside, and what it says of somebody's end names the cause.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dromon_binlog::{BinlogState, Checksum};
use dromon_log::SimDevice;
use dromon_relay::log::Log;
use dromon_relay::pull::{Asker, Login};
use dromon_relay::serve::{Account, Policy, Registry, ServeOptions, Server};
use dromon_relay::store::{Store, StoreOptions};
use dromon_relay::wire::PasswordHash;

use super::beats::follows;
use super::common::{append, format_event, gtid, statement};
use super::{serve_logged, until};

#[test]
fn names_and_refusals() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log");
    let log = Log::file(&path).expect("writable");
    let device = Arc::new(SimDevice::new(6));
    let options = StoreOptions::default();
    let (store, _) = Store::open(device, options, BinlogState::new()).expect("empty");
    let (address, ..) = serve_logged(store.view(), None, false, log);
    for _ in 0..20 {
        let login = Login {
            address: address.clone(),
            user: "x".repeat(60_000),
            password: "wrong".into(),
            tls: None,
            limit: Duration::from_secs(10),
            in_all: None,
        };
        let error = Asker::connect(&login).map(drop).expect_err("a stranger");
        let text = error.to_string();
        assert!(
            text.contains("Access denied") && text.len() < 1000,
            "{text}"
        );
    }
    let said = || std::fs::read_to_string(&path).expect("there");
    until("it is said", || said().contains("Access denied"));
    // Twenty came; one more may be said on a machine that took ten seconds for them.
    let lines = said().lines().count();
    assert!(
        lines < 10 && said().lines().all(|line| line.len() < 1000),
        "{lines}"
    );
}

/// A replica that asks for events and reads none, as one with a full disk or relay_log_space_limit.
#[test]
fn who_takes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log");
    let device = Arc::new(SimDevice::new(6));
    let options = StoreOptions::default();
    let (mut store, _) = Store::open(device, options, BinlogState::new()).expect("empty");
    let begun = store.begin_file(&format_event(Checksum::Crc32));
    begun.expect("a good disk");
    // More than the system takes for it.
    let text = "x".repeat(1 << 20);
    for seqno in 1..=64 {
        let name = gtid(0, 1, seqno);
        let large = statement(name, &text, Checksum::Crc32);
        append(&mut store, &large, name).expect("a good disk");
    }
    store.flush().expect("a good disk");
    let options = ServeOptions {
        server_id: 42,
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
        connections_max: 5,
        zstd: false,
        write_timeout: Duration::from_millis(200),
        heartbeat: Duration::from_secs(1),
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let log = Log::file(&path).expect("writable");
    let server = Server::new(options, store.view(), Registry::new(60), log, 0);
    thread::spawn(move || server.listen(&listener));
    let _silent = follows(&address, "@slave_connect_state=''");
    let said = || std::fs::read_to_string(&path).expect("there");
    until("it is said", || said().contains("was disconnected"));
    let words = "it took nothing for 0.2 s (write_timeout): look at its I/O thread";
    assert!(said().contains(words), "{}", said());
}
