//! A primary that has lost what it had sent (RESET MASTER, or a crash without sync_binlog) is not gone on with
//! once it has used the same numbers again.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dromon_binlog::{BinlogState, Checksum};
use dromon_log::{Device, SimDevice};
use dromon_relay::log::Log;
use dromon_relay::pull::Following;
use dromon_relay::store::{HALTED, Store, StoreError, StoreOptions};
use dromon_relay::wire::{
    Command, Failure, Frames, Greeting, NATIVE_PASSWORD, SALT_LEN, TextResult, capabilities, error,
    ok, put_packet, put_result,
};

use super::common::{append, artificial_rotate, format_event, gtid, transaction};
use super::{puller, puller_with, until};

const CRC: Checksum = Checksum::Crc32;

/// A server that says it has not 0-1-7, and the second time that it has.
fn primary(server_id: u32) -> (String, Arc<AtomicUsize>) {
    is_primary(server_id, None, None)
}

/// What a node of a cluster has as its log_slave_updates and wsrep_gtid_mode.
type Node = Option<[&'static str; 2]>;

const ALL: Node = Some(["ON", "ON"]);

/// The same, as a node of a cluster or not. `refuses`: when it has said so, it turns one connection away with
/// this error.
fn is_primary(server_id: u32, node: Node, mut refuses: Option<u16>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let dumps = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&dumps);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client");
            let said = counted.load(Ordering::SeqCst) > 0;
            if let Some(code) = refuses.take_if(|_| said) {
                let mut out = Vec::new();
                let refusal = error(&Failure::new(code, "not now"));
                put_packet(&mut out, 0, &refusal);
                stream.write_all(&out).expect("sent");
                continue;
            }
            serves(stream, server_id, node, &counted);
        }
    });
    (address, dumps)
}

pub(super) fn packet(stream: &mut TcpStream, frames: &mut Frames) -> Option<Vec<u8>> {
    let mut buf = [0; 4096];
    loop {
        if let Some(packet) = frames.packet().expect("in order") {
            return Some(packet);
        }
        match stream.read(&mut buf) {
            Ok(0) | Err(_) => return None,
            Ok(n) => frames.feed(&buf[..n]),
        }
    }
}

fn serves(mut stream: TcpStream, server_id: u32, node: Node, dumps: &AtomicUsize) {
    let mut frames = Frames::new(1 << 20);
    let greeting = Greeting {
        version: "5.5.5-10.11.18-MariaDB-log".into(),
        connection: 1,
        salt: [b'x'; SALT_LEN],
        capabilities: capabilities::OURS,
        plugin: NATIVE_PASSWORD.into(),
    };
    let mut out = Vec::new();
    put_packet(&mut out, 0, &greeting.encode());
    frames.set_sequence(1);
    stream.write_all(&out).expect("sent");
    if packet(&mut stream, &mut frames).is_none() {
        return;
    }
    let mut table: Option<TextResult> = None;
    loop {
        let mut out = Vec::new();
        match table.take() {
            Some(table) => put_result(&mut out, frames.sequence(), &table),
            None => put_packet(&mut out, frames.sequence(), &ok()),
        };
        if stream.write_all(&out).is_err() {
            return;
        }
        frames.set_sequence(0);
        let Some(packet) = packet(&mut stream, &mut frames) else {
            return;
        };
        match Command::decode(&packet).expect("a command") {
            Command::Query(text) => {
                let text = String::from_utf8_lossy(&text).into_owned();
                let mut answer = TextResult::new(&["a", "b"]);
                if text.contains("@@GLOBAL.server_id") {
                    answer.row([server_id.to_string(), "10.11.18-MariaDB-log".into()]);
                }
                if let Some([all, gtids]) = node {
                    if text.contains("'wsrep_on'") {
                        answer.row(["wsrep_on".to_owned(), "ON".to_owned()]);
                    }
                    if text.contains("'wsrep_gtid_mode'") {
                        answer.row(["log_slave_updates".to_owned(), all.to_owned()]);
                        answer.row(["wsrep_gtid_mode".to_owned(), gtids.to_owned()]);
                        answer.row(["wsrep_provider".to_owned(), "/lib.so".to_owned()]);
                    }
                }
                table = (!text.starts_with("SET ")).then_some(answer);
            }
            Command::Dump(_) => {
                let mut out = Vec::new();
                if dumps.fetch_add(1, Ordering::SeqCst) == 0 {
                    let text = "the replica asked for GTID 0-1-7, which is not here";
                    let refusal = error(&Failure::new(1236, text));
                    put_packet(&mut out, frames.sequence(), &refusal);
                } else {
                    let mut sequence = frames.sequence();
                    let begins = [artificial_rotate("f.000001", 4, CRC), format_event(CRC)];
                    let other = transaction(gtid(0, 1, 8), 1, 9, CRC);
                    for event in begins.iter().chain(&other) {
                        sequence = put_packet(&mut out, sequence, &[&[0], &event[..]].concat());
                    }
                }
                // The relay may have gone.
                let _ = stream.write_all(&out);
            }
            _ => {}
        }
    }
}

fn opened(device: &SimDevice) -> Store {
    let options = StoreOptions::default();
    let opened = Store::open(Arc::new(device.clone()), options, BinlogState::new());
    opened.expect("good files").0
}

fn with_a_group() -> (SimDevice, Store) {
    let device = SimDevice::new(5);
    let mut store = opened(&device);
    store.begin_file(&format_event(CRC)).expect("a good disk");
    let name = gtid(0, 1, 7);
    append(&mut store, &transaction(name, 1, 9, CRC), name).expect("a good disk");
    store.flush().expect("a good disk");
    (device, store)
}

#[test]
fn what_it_wrote_itself_ends_the_pulling_for_good() {
    let (address, dumps) = primary(1);
    let (device, store) = with_a_group();
    let pull = |store| puller(store, &address, None, None, Duration::from_secs(5));
    let view = store.view();
    let puller = pull(store);
    let thread = thread::spawn(move || puller.run());
    until("it ends", || view.failure().is_some());
    let halted = thread.join().expect("it ends");
    let halted = halted.expect_err("it has lost 0-1-7");
    let text = halted.to_string();
    for part in [
        "(server id 1) has lost 0-1-7,",
        "remove dromon-relay.halted",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!halted.is_full());
    // A restart changes nothing, nor does a power cut.
    device.kill();
    let store = opened(&device);
    assert!(matches!(store.failure(), Some(StoreError::Halted { .. })));
    let again = pull(store).run().expect_err("marked");
    assert_eq!(again.to_string(), text);
    assert_eq!(dumps.load(Ordering::SeqCst), 1, "it is not asked again");
    // The operator says that it is well.
    device.remove(HALTED).expect("it is there");
    let store = opened(&device);
    assert!(store.failure().is_none());
    let (view, puller) = (store.view(), pull(store));
    let following = puller.following();
    let thread = thread::spawn(move || puller.run());
    until("it goes on", || {
        view.state().position().to_string() == "0-1-8"
    });
    Following::stop(&following);
    thread.join().expect("it ends").expect("a good disk");
}

/// It may be a replica that is behind.
#[test]
fn what_another_one_wrote_may_come() {
    goes_on(primary(2));
}

/// Another node may have written it under the same server id, and this one be behind.
#[test]
fn what_a_node_of_a_cluster_lacks_comes() {
    goes_on(is_primary(1, ALL, None));
}

/// That it is a node it cannot say: it has no room for another connection, or shuts down.
#[test]
fn who_lets_nobody_in_may_be_a_node() {
    for code in [1040, 1053, 1129, 1203, 1226] {
        goes_on(is_primary(1, ALL, Some(code)));
    }
}

/// What the other nodes' clients write is missing in its binlog: a relay that has nothing yet does not begin with
/// that, and one that runs is not stopped, but told.
#[test]
fn a_node_that_logs_its_own_clients_only() {
    let (address, dumps) = is_primary(1, Some(["OFF", "ON"]), None);
    let device = SimDevice::new(5);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log");
    let said = || std::fs::read_to_string(&path).expect("readable");
    let log = Log::file(&path).expect("writable");
    let wait = Duration::from_secs(5);
    let puller = puller_with(opened(&device), &address, None, None, wait, log);
    let following = puller.following();
    let thread = thread::spawn(move || puller.run());
    until("it tries again", || said().contains("Attempt 3 follows"));
    Following::stop(&following);
    thread.join().expect("it ends").expect("a good disk");
    assert_eq!(dumps.load(Ordering::SeqCst), 0, "{}", said());
    for part in ["its log_slave_updates is OFF", "Nothing was taken"] {
        assert!(said().contains(part), "{}", said());
    }
    for (node, warned) in [
        (["OFF", "ON"], Some("goes on to be")),
        (["OFF", "OFF"], Some("goes on to be")),
        (["ON", "OFF"], Some("Do not move to another one")),
        (["ON", "ON"], None),
    ] {
        let said = goes_on(is_primary(1, Some(node), None));
        let count = said.matches("is a node of a cluster").count();
        assert_eq!(count, usize::from(warned.is_some()), "once: {said}");
        assert!(said.contains(warned.unwrap_or_default()), "{said}");
    }
}

fn goes_on((address, dumps): (String, Arc<AtomicUsize>)) -> String {
    let (_, store) = with_a_group();
    let view = store.view();
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log");
    let log = Log::file(&path).expect("writable");
    let puller = puller_with(store, &address, None, None, Duration::from_secs(5), log);
    let following = puller.following();
    let thread = thread::spawn(move || puller.run());
    until("it goes on", || {
        view.state().position().to_string() == "0-1-8"
    });
    assert_eq!(dumps.load(Ordering::SeqCst), 2);
    Following::stop(&following);
    thread.join().expect("it ends").expect("a good disk");
    let said = std::fs::read_to_string(path).expect("readable");
    assert_eq!(
        said.matches("Follows").count(),
        1,
        "as often as refused: {said}"
    );
    said
}

/// Without files `start` alone says what was there.
#[test]
fn a_position_to_begin_with_may_be_any() {
    let (address, dumps) = primary(1);
    let start: BinlogState = "0-1-7".parse().expect("a state");
    let device = Arc::new(SimDevice::new(5));
    let (store, _) = Store::open(device, StoreOptions::default(), start).expect("empty");
    let view = store.view();
    let puller = puller(store, &address, None, None, Duration::from_secs(5));
    let following = puller.following();
    let thread = thread::spawn(move || puller.run());
    until("it goes on", || {
        view.state().position().to_string() == "0-1-8"
    });
    assert_eq!(dumps.load(Ordering::SeqCst), 2);
    Following::stop(&following);
    thread.join().expect("it ends").expect("a good disk");
}
