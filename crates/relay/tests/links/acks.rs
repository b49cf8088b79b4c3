//! A primary with semi-sync hears of what is on the disk, and of nothing else.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dromon_binlog::{BinlogState, Checksum, place};
use dromon_log::SimDevice;
use dromon_relay::store::{Store, StoreOptions};
use dromon_relay::wire::{
    AckSemiSync, Command, Frames, Greeting, NATIVE_PASSWORD, SALT_LEN, TextResult, capabilities,
    ok, put_packet, put_result,
};

use super::common::{artificial_rotate, format_event, gtid, transaction};
use super::lost::packet;
use super::{puller, until};

const CRC: Checksum = Checksum::Crc32;

/// A primary that waits for acknowledgements, up to where its one client asks for events.
fn asked(listener: &TcpListener) -> (TcpStream, Frames) {
    let (mut stream, _) = listener.accept().expect("a client");
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
    packet(&mut stream, &mut frames).expect("a login");
    let mut table: Option<TextResult> = None;
    loop {
        let mut out = Vec::new();
        match table.take() {
            Some(table) => put_result(&mut out, frames.sequence(), &table),
            None => put_packet(&mut out, frames.sequence(), &ok()),
        };
        stream.write_all(&out).expect("sent");
        frames.set_sequence(0);
        let asks = packet(&mut stream, &mut frames).expect("a command");
        match Command::decode(&asks).expect("a command") {
            Command::Query(text) => {
                let text = String::from_utf8_lossy(&text).into_owned();
                let mut answer = TextResult::new(&["a", "b"]);
                if text.contains("@@GLOBAL.server_id") {
                    answer.row(["1", "10.11.18-MariaDB-log"].map(str::to_owned));
                }
                if text.contains("rpl_semi_sync_master_enabled") {
                    answer.row(["rpl_semi_sync_master_enabled", "ON"].map(str::to_owned));
                }
                table = (!text.starts_with("SET ")).then_some(answer);
            }
            Command::Dump(_) => return (stream, frames),
            _ => {}
        }
    }
}

/// The next group of the file, in its place; `end` is where it ends.
fn group(seqno: u64, end: &mut u64) -> Vec<Vec<u8>> {
    let mut events = transaction(gtid(0, 1, seqno), 1, 9, CRC);
    for event in &mut events {
        place(event, CRC, *end).expect("an event");
        *end += event.len() as u64;
    }
    events
}

/// Sends events; the last one is to be acknowledged if `ack` says so.
fn send(stream: &mut TcpStream, sequence: &mut u8, events: &[Vec<u8>], ack: bool) {
    let mut out = Vec::new();
    for (n, event) in events.iter().enumerate() {
        let wants = u8::from(ack && n + 1 == events.len());
        *sequence = put_packet(
            &mut out,
            *sequence,
            &[&[0, 0xef, wants], &event[..]].concat(),
        );
        if wants == 1 {
            // As if the answer had come in between.
            *sequence = 1;
        }
    }
    stream.write_all(&out).expect("sent");
}

fn opened(device: &SimDevice) -> Store {
    let options = StoreOptions::default();
    let opened = Store::open(Arc::new(device.clone()), options, BinlogState::new());
    opened.expect("good files").0
}

#[test]
fn what_is_not_on_the_disk_is_not_acknowledged() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let device = SimDevice::new(5);
    let store = opened(&device);
    let view = store.view();
    let puller = puller(store, &address, None, None, Duration::from_secs(5));
    let thread = thread::spawn(move || puller.run());
    let (mut stream, mut frames) = asked(&listener);
    let mut sequence = frames.sequence();
    let begins = [artificial_rotate("f.000001", 4, CRC), format_event(CRC)];
    send(&mut stream, &mut sequence, &begins, false);
    let mut end = 4 + begins[1].len() as u64;
    send(&mut stream, &mut sequence, &group(1, &mut end), true);
    frames.any_sequence();
    let ack = packet(&mut stream, &mut frames).expect("the first one is acknowledged");
    let ack = AckSemiSync::decode(&ack).expect("an acknowledgement");
    assert_eq!((&ack.file[..], ack.position), (&b"f.000001"[..], end));
    // What power leaves of the disk now has it.
    let copy = device.fork();
    copy.crash(7);
    assert_eq!(opened(&copy).state().position().to_string(), "0-1-1");

    device.fail_sync(1, io::ErrorKind::Other);
    send(&mut stream, &mut sequence, &group(2, &mut end), true);
    let more = packet(&mut stream, &mut frames);
    assert_eq!(more, None, "0-1-2 is on no disk");
    until("it ends", || view.failure().is_some());
    thread.join().expect("it ends").expect_err("a bad disk");
}
