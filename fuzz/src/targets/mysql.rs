//! The protocol of MySQL's clients and servers.

use dromon_binlog::GtidSet;
use dromon_relay::wire::{
    AckSemiSync, Answer, AuthSwitch, Command, Dump, DumpGtid, Failure, Frames, Greeting, Login,
    NATIVE_PASSWORD, Register, TextResult, capabilities, eof, error, ok, parse_row, put_packet,
    put_result,
};

use super::Target;
use crate::bytes_in::Input;

/// A stream of packets, each read as everything that it could be. The first byte, if odd: the
/// rest is one packet, and gets its frame.
pub const MYSQL_PACKETS: Target = Target {
    name: "mysql_packets",
    run,
    seeds,
};

const MAX: usize = 16 << 10;

fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let framed = input.u8() & 1 == 1;
    let mut frames = Frames::new(MAX);
    if framed {
        let mut stream = Vec::new();
        put_packet(&mut stream, 0, input.rest());
        frames.feed(&stream);
    } else {
        frames.feed(input.rest());
    }
    while let Ok(Some(packet)) = frames.packet() {
        assert!(packet.len() <= MAX);
        one(&packet);
    }
}

/// What can be read is written such that it reads the same.
fn one(packet: &[u8]) {
    if let Ok(greeting) = Greeting::decode(packet) {
        let again = Greeting::decode(&greeting.encode()).expect("it was written just now");
        assert_eq!(again.salt, greeting.salt);
        assert_eq!(again.version, greeting.version);
    }
    if let Ok(Some(login)) = Login::decode(packet) {
        let again = Login::decode(&login.encode());
        let again = again.expect("it was written just now").expect("no TLS");
        assert_eq!((again.user, again.reply), (login.user, login.reply));
    }
    if let Ok(switch) = AuthSwitch::decode(packet) {
        assert_eq!(AuthSwitch::decode(&switch.encode()), Ok(switch));
    }
    if let Ok(command) = Command::decode(packet) {
        let again = Command::decode(&command.encode());
        if !matches!(&command, Command::Register(r) if r.host.len() > 255) {
            assert_eq!(again, Ok(command));
        }
    }
    // As it stands in a dump, and as if all of it was one.
    if let Ok(Command::DumpGtid(dump)) = Command::decode(packet) {
        gtid_set(&dump.set);
    }
    gtid_set(packet);
    if let Ok(text) = std::str::from_utf8(packet)
        && let Ok(set) = text.parse::<GtidSet>()
    {
        assert_eq!(set.to_string().parse(), Ok(set));
    }
    if let Ok(ack) = AckSemiSync::decode(packet) {
        assert_eq!(ack.encode(), packet);
    }
    if let Ok(Answer::Error(failure)) = Answer::decode(packet) {
        assert_eq!(Answer::decode(&error(&failure)), Ok(Answer::Error(failure)));
    }
    for columns in [0, 1, 3, 1 << 20] {
        if let Ok(row) = parse_row(packet, columns) {
            assert_eq!(row.len(), columns);
        }
    }
}

/// A set of MySQL: all that is done with one is as with plain sets.
fn gtid_set(bytes: &[u8]) {
    let Ok(set) = GtidSet::decode(bytes) else {
        return;
    };
    let mut again = Vec::new();
    set.encode(&mut again);
    assert_eq!(GtidSet::decode(&again).as_ref(), Ok(&set));
    assert_eq!(set.to_string().parse().as_ref(), Ok(&set));
    assert!(set.minus(&set).is_empty() && set.is_subset(&set));
    let Some((source, list)) = set.iter().next() else {
        return;
    };
    let (begin, end) = list[list.len() / 2];
    for number in [begin, end - 1, begin + (end - begin) / 2] {
        assert!(set.contains(source, number));
        let mut less = set.clone();
        less.remove(source, number);
        assert!(!less.contains(source, number) && less.is_subset(&set) && !set.is_subset(&less));
        let missing = set.minus(&less);
        let mut one = GtidSet::new();
        one.add(*source, number);
        assert_eq!(missing, one);
        less.add(*source, number);
        assert_eq!(less, set);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut set = GtidSet::new();
    set.add_interval([7; 16], 1, 40);
    set.add([7; 16], 77);
    set.add_interval([1; 16], 5, 9);
    let mut bytes = Vec::new();
    set.encode(&mut bytes);
    let by_gtid = DumpGtid {
        flags: 0,
        server_id: 7,
        set: bytes.clone(),
    };
    let greeting = Greeting {
        version: "5.5.5-10.11.19-MariaDB".into(),
        connection: 7,
        salt: [9; 20],
        capabilities: capabilities::OURS,
        plugin: NATIVE_PASSWORD.into(),
    };
    let login = Login {
        capabilities: capabilities::OURS | capabilities::PLUGIN_AUTH_LENENC,
        user: "repl".into(),
        reply: vec![5; 20],
        plugin: NATIVE_PASSWORD.into(),
    };
    let register = Register {
        server_id: 7,
        host: "db2".into(),
        port: 3306,
    };
    let dump = Dump {
        position: 4,
        flags: 2,
        server_id: 7,
        file: b"relay-bin.000001".to_vec(),
    };
    let ack = AckSemiSync {
        position: 1 << 33,
        file: b"bin.000001".to_vec(),
    };
    let switch = AuthSwitch {
        plugin: NATIVE_PASSWORD.into(),
        salt: vec![3; 20],
    };
    let packets = [
        greeting.encode(),
        login.encode(),
        switch.encode(),
        ok(),
        eof(),
        error(&Failure::new(1236, "no")),
        Command::Query(b"SELECT 1".to_vec()).encode(),
        Command::Register(register).encode(),
        Command::Dump(dump).encode(),
        Command::DumpGtid(by_gtid).encode(),
        bytes,
        set.to_string().into_bytes(),
        ack.encode(),
    ];
    let mut seeds: Vec<Vec<u8>> = packets.iter().map(|p| [&[1], &p[..]].concat()).collect();
    let mut table = TextResult::new(&["a", "b"]);
    table.row(["1".into(), "x".repeat(300)]);
    let mut stream = vec![0];
    put_result(&mut stream, 0, &table);
    seeds.push(stream);
    seeds
}
