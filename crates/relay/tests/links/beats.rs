//! Heartbeats to replicas that want many.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use dromon_relay::pull::Following;
use dromon_relay::wire::{Command, Dump, put_packet};

use super::{Raw, hears, number, serve};

/// A replica that has set this, and asks for all that follows.
pub(super) fn follows(address: &str, set: &str) -> Raw {
    let (mut raw, answer) = Raw::login(address, "repl");
    assert_eq!(number(&answer), 0);
    let set = format!("SET @master_binlog_checksum='CRC32', @mariadb_slave_capability=4, {set}");
    let answer = raw.tell(0, &Command::Query(set.into()).encode());
    assert_eq!(number(&answer), 0);
    let dump = Command::Dump(Dump {
        position: 4,
        flags: 0,
        server_id: 7,
        file: Vec::new(),
    });
    let mut out = Vec::new();
    put_packet(&mut out, 0, &dump.encode());
    raw.frames.any_sequence();
    raw.stream.write_all(&out).expect("taken");
    raw
}

/// One that wants them each nanosecond keeps the relay no busier than others do.
#[test]
fn heartbeats_without_a_pause() {
    let (address, ..) = serve(false, false);
    let mut raw = follows(
        &address,
        "@master_heartbeat_period=1, @slave_connect_state='0-1-7'",
    );
    let began = Instant::now();
    thread::sleep(Duration::from_millis(400));
    let mut beats = 0;
    while beats < 3 {
        let packet = raw.packet();
        assert_eq!(packet[0], 0, "an event");
        beats += u32::from(packet[5] == 27);
    }
    // All that had come by now is here: nothing waits to be read for long.
    let quick = Duration::from_millis(20);
    raw.stream.set_read_timeout(Some(quick)).expect("open");
    let mut buf = [0; 1 << 16];
    while began.elapsed() < Duration::from_secs(1)
        && let Ok(n @ 1..) = std::io::Read::read(&mut raw.stream, &mut buf)
    {
        raw.frames.feed(&buf[..n]);
    }
    while let Some(packet) = raw.frames.packet().expect("in order") {
        beats += u32::from(packet[5] == 27);
    }
    let most = began.elapsed().as_millis() / 50 + 1;
    assert!(u128::from(beats) <= most, "{beats}, not {most} at most");
}

/// A replica that gets the same history by other ways waits on where another one is refused.
#[test]
fn nothing_more_but_by_other_ways() {
    let (address, server, _) = serve(false, false);
    let upstream: Arc<Mutex<Following>> = Arc::default();
    hears(&upstream, 0);
    server.follows(Arc::clone(&upstream));
    let comes = |ignores: u8| {
        let set = format!(
            "@master_heartbeat_period=100000000, @slave_connect_state='0-1-500', @slave_gtid_ignore_duplicates={ignores}"
        );
        follows(&address, &set)
    };
    let (mut one, mut other) = (comes(0), comes(1));
    // Each has come by now.
    assert_eq!((one.packet()[0], other.packet()[0]), (0, 0));
    let later = Instant::now() + Duration::from_secs(11);
    upstream.lock().expect("alive").complete = Some(later);
    while one.packet()[0] != 0xff {}
    for _ in 0..20 {
        assert_eq!(other.packet()[0], 0, "an event");
    }
}
