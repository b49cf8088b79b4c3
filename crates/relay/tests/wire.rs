//! The protocol: there and back, any bytes, and another library on the other side.

use dromon_relay::wire::{
    AckSemiSync, Answer, AuthSwitch, Command, Dump, Failure, Frames, Greeting, Login,
    NATIVE_PASSWORD, Register, TextResult, capabilities, eof, error, ok, parse_row, put_result,
};
use mysql_common::constants::CapabilityFlags;
use mysql_common::io::ParseBuf;
use mysql_common::packets as theirs;
use mysql_common::proto::{MyDeserialize, MySerialize};
use proptest::prelude::*;

fn text() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9._-]{0,30}"
}

fn greeting() -> impl Strategy<Value = Greeting> {
    let salt = proptest::array::uniform20(1u8..);
    (text(), any::<u32>(), salt, any::<u32>()).prop_map(|(version, connection, salt, more)| {
        Greeting {
            version,
            connection,
            salt,
            capabilities: more | capabilities::OURS,
            plugin: NATIVE_PASSWORD.into(),
        }
    })
}

fn login() -> impl Strategy<Value = Login> {
    let reply = proptest::collection::vec(any::<u8>(), 0..40);
    (text(), reply, any::<bool>()).prop_map(|(user, reply, lenenc)| Login {
        capabilities: capabilities::OURS & !capabilities::CONNECT_WITH_DB
            | if lenenc {
                capabilities::PLUGIN_AUTH_LENENC
            } else {
                0
            },
        user,
        reply,
        plugin: NATIVE_PASSWORD.into(),
    })
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        Just(Command::Quit),
        Just(Command::Ping),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(Command::Query),
        (any::<u32>(), text(), any::<u16>()).prop_map(|(server_id, host, port)| Command::Register(
            Register {
                server_id,
                host,
                port
            }
        )),
        (any::<u32>(), any::<u16>(), any::<u32>(), text()).prop_map(
            |(position, flags, server_id, file)| {
                Command::Dump(Dump {
                    position,
                    flags,
                    server_id,
                    file: file.into_bytes(),
                })
            }
        ),
    ]
}

/// Packets of an answer.
fn packets(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Frames::new(1 << 20);
    frames.feed(stream);
    let mut out = Vec::new();
    while let Some(packet) = frames.packet().expect("in order") {
        out.push(packet);
    }
    assert!(frames.is_empty());
    out
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn greetings(g in greeting(), cut in 0usize..100) {
        let packet = g.encode();
        prop_assert_eq!(Greeting::decode(&packet), Ok(g.clone()));
        let _ = Greeting::decode(&packet[..cut.min(packet.len())]);
        let read = theirs::HandshakePacket::deserialize((), &mut ParseBuf(&packet)).expect("they read it");
        prop_assert_eq!(read.server_version_str(), g.version);
        prop_assert_eq!(read.nonce()[..20].to_vec(), g.salt.to_vec());
        prop_assert_eq!(read.connection_id(), g.connection);
    }

    #[test]
    fn logins(l in login(), cut in 0usize..100) {
        let packet = l.encode();
        prop_assert_eq!(Login::decode(&packet), Ok(Some(l.clone())));
        let short = &packet[..cut.min(packet.len() - 1)];
        // Without its plugin it is the native one; else it cannot be read, or asks for TLS.
        if let Ok(Some(read)) = Login::decode(short) {
            prop_assert_eq!(read.user, l.user);
        }
    }

    /// What another client sends.
    #[test]
    fn logins_of_another_library(user in "[a-z]{1,10}", reply in proptest::collection::vec(any::<u8>(), 20), lenenc: bool, db: bool) {
        let mut can = CapabilityFlags::CLIENT_PROTOCOL_41 | CapabilityFlags::CLIENT_SECURE_CONNECTION
            | CapabilityFlags::CLIENT_PLUGIN_AUTH;
        can.set(CapabilityFlags::CLIENT_PLUGIN_AUTH_LENENC_CLIENT_DATA, lenenc);
        can.set(CapabilityFlags::CLIENT_CONNECT_WITH_DB, db);
        let theirs = theirs::HandshakeResponse::new(
            Some(&reply[..]), (10, 11, 0), Some(user.as_bytes()), db.then_some(&b"base"[..]),
            Some(theirs::AuthPlugin::MysqlNativePassword), can, None, 1 << 24,
        );
        let mut packet = Vec::new();
        theirs.serialize(&mut packet);
        let read = Login::decode(&packet).expect("readable").expect("no TLS");
        prop_assert_eq!((read.user, read.reply, &read.plugin[..]), (user, reply, NATIVE_PASSWORD));
    }

    #[test]
    fn commands(c in command()) {
        prop_assert_eq!(Command::decode(&c.encode()), Ok(c));
    }

    #[test]
    fn commands_as_another_library_sends_them(server_id: u32, host in "[a-z]{0,20}", port: u16, position: u32, file in "[a-z.0-9]{0,20}") {
        let theirs = theirs::ComRegisterSlave::new(server_id).with_hostname(host.as_bytes()).with_port(port);
        let mut packet = Vec::new();
        theirs.serialize(&mut packet);
        let expected = Command::Register(Register { server_id, host: host.clone(), port });
        prop_assert_eq!(Command::decode(&packet), Ok(expected));
        let theirs = theirs::ComBinlogDump::new(server_id).with_pos(position).with_filename(file.as_bytes());
        let mut packet = Vec::new();
        theirs.serialize(&mut packet);
        let expected = Command::Dump(Dump { position, flags: 0, server_id, file: file.clone().into_bytes() });
        prop_assert_eq!(Command::decode(&packet), Ok(expected));
    }

    #[test]
    fn acknowledgements(position: u64, file in "[a-z.0-9]{0,20}") {
        let ack = AckSemiSync { position, file: file.clone().into_bytes() };
        prop_assert_eq!(AckSemiSync::decode(&ack.encode()), Ok(ack.clone()));
        let mut packet = Vec::new();
        theirs::SemiSyncAckPacket::new(position, file.as_bytes()).serialize(&mut packet);
        prop_assert_eq!(packet, ack.encode());
    }

    #[test]
    fn tables(
        rows in proptest::collection::vec(proptest::collection::vec(proptest::option::of(proptest::collection::vec(any::<u8>(), 0..300)), 3), 0..6)
    ) {
        let table = TextResult { rows: rows.clone(), ..TextResult::new(&["a", "b", "c"]) };
        let mut stream = Vec::new();
        let next = put_result(&mut stream, 1, &table);
        let mut frames = Frames::new(1 << 20);
        frames.set_sequence(1);
        frames.feed(&stream);
        let mut all = Vec::new();
        while let Some(packet) = frames.packet().expect("in order") {
            all.push(packet);
        }
        prop_assert_eq!(frames.sequence(), next);
        prop_assert_eq!(Answer::decode(&all[0]), Ok(Answer::Table(3)));
        prop_assert_eq!(Answer::decode(&all[4]), Ok(Answer::End));
        for (row, packet) in rows.iter().zip(&all[5..]) {
            prop_assert_eq!(&parse_row(packet, 3), &Ok(row.clone()));
            prop_assert!(parse_row(packet, 2).is_err());
            prop_assert!(parse_row(packet, 4).is_err());
        }
        prop_assert_eq!(Answer::decode(&all[all.len() - 1]), Ok(Answer::End));
        prop_assert_eq!(all.len(), rows.len() + 6);
        for (name, packet) in ["a", "b", "c"].iter().zip(&all[1..]) {
            let column = theirs::Column::deserialize((), &mut ParseBuf(packet)).expect("they read it");
            prop_assert_eq!(column.name_str(), *name);
        }
    }

    #[test]
    fn errors(code: u16, message in "[ -~]{0,60}") {
        let failure = Failure::new(code, message);
        prop_assert_eq!(Answer::decode(&error(&failure)), Ok(Answer::Error(failure)));
    }

    /// Nothing panics, nothing takes room that did not come.
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..80), columns in 0usize..100_000) {
        let _ = Greeting::decode(&bytes);
        let _ = Login::decode(&bytes);
        let _ = AuthSwitch::decode(&bytes);
        let _ = Command::decode(&bytes);
        let _ = AckSemiSync::decode(&bytes);
        let _ = Answer::decode(&bytes);
        let _ = parse_row(&bytes, columns);
        let mut frames = Frames::new(64);
        frames.feed(&bytes);
        while let Ok(Some(packet)) = frames.packet() {
            prop_assert!(packet.len() <= 64);
        }
    }
}

#[test]
fn small_answers() {
    assert_eq!(Answer::decode(&ok()), Ok(Answer::Ok));
    assert_eq!(Answer::decode(&eof()), Ok(Answer::End));
    let switch = AuthSwitch {
        plugin: "p".into(),
        salt: vec![1; 20],
    };
    assert_eq!(AuthSwitch::decode(&switch.encode()), Ok(switch));
    assert!(packets(&[]).is_empty());
}
