//! Replicas that come by file and byte.

use std::io::Write;

use dromon_relay::wire::{Command, Dump, Register, put_packet};

use super::{Raw, number, serve};

/// One that has everything lacks nothing, though nothing comes any more that would say so.
#[test]
fn who_is_at_the_end_is_not_behind() {
    let (address, server, view) = serve(false, false);
    let end = view.end();
    // The file begins with nothing, and has one group.
    for (id, at, lacks) in [(7, 4, true), (8, end.at, false)] {
        let (mut raw, answer) = Raw::login(&address, "repl");
        assert_eq!(number(&answer), 0);
        let set = "SET @master_binlog_checksum='CRC32', @mariadb_slave_capability=4, @master_heartbeat_period=100000000";
        assert_eq!(
            number(&raw.tell(0, &Command::Query(set.into()).encode())),
            0
        );
        let register = Command::Register(Register {
            server_id: id,
            host: String::new(),
            port: 3306,
        });
        assert_eq!(number(&raw.tell(0, &register.encode())), 0);
        let dump = Command::Dump(Dump {
            position: u32::try_from(at).expect("a small file"),
            flags: 0,
            server_id: id,
            file: view.name(end.file).into_bytes(),
        });
        let mut out = Vec::new();
        put_packet(&mut out, 0, &dump.encode());
        raw.frames.any_sequence();
        raw.stream.write_all(&out).expect("taken");
        if lacks {
            while raw.packet()[5] != 16 {}
        }
        while raw.packet()[5] != 27 {}
        let registry = server.registry();
        let sent = registry.known()[&id].sent.clone();
        assert_eq!(sent.to_string(), "0-1-7");
        assert_eq!(view.lag_ms(&sent), 0);
    }
}
