//! Over TCP: a server that answers as MySQL with GTIDs does, a relay, a relay behind it, and replicas
//! that ask as MySQL's do.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use dromon_binlog::{GtidSet, uuid_text};
use dromon_log::SimDevice;
use dromon_relay::http::{HttpServer, Questions};
use dromon_relay::log::Log;
use dromon_relay::pull::{Following, Puller, Session, Source, Step, Wish};
use dromon_relay::serve::{Account, Policy, Registry, ServeOptions, Server};
use dromon_relay::store::{Kind, Store, StoreOptions, View};
use dromon_relay::wire::{
    Answer, Command, DumpGtid, Frames, Greeting, NATIVE_PASSWORD, PasswordHash, SALT_LEN,
    TextResult, capabilities, ok, put_packet, put_result,
};

use crate::primary::{A, B, Got, Name, Primary, set};

/// A server, which may become another one.
struct MySql {
    primary: Mutex<Primary>,
    /// Being committed.
    owned: Mutex<String>,
    streams: Mutex<Vec<TcpStream>>,
}

impl MySql {
    fn primary(&self) -> MutexGuard<'_, Primary> {
        self.primary.lock().expect("alive")
    }

    fn start() -> (Arc<MySql>, String) {
        let server = Arc::new(MySql {
            primary: Mutex::new(Primary::new(1)),
            owned: Mutex::default(),
            streams: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let taken = Arc::clone(&server);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.expect("a client");
                let other = stream.try_clone().expect("a descriptor");
                taken.streams.lock().expect("alive").push(other);
                let server = Arc::clone(&taken);
                thread::spawn(move || server.connection(stream));
            }
        });
        (server, address)
    }

    /// Breaks all connections.
    fn breaks(&self) {
        for stream in self.streams.lock().expect("alive").drain(..) {
            // It may have gone.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn connection(&self, mut stream: TcpStream) {
        let mut frames = Frames::new(1 << 20);
        let greeting = Greeting {
            version: "5.7.44-log".into(),
            connection: 1,
            salt: [b'x'; SALT_LEN],
            capabilities: capabilities::OURS,
            plugin: NATIVE_PASSWORD.into(),
        };
        let mut out = Vec::new();
        put_packet(&mut out, 0, &greeting.encode());
        frames.set_sequence(1);
        if stream.write_all(&out).is_err() || packet(&mut stream, &mut frames).is_none() {
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
                Command::Query(text) => table = self.query(&String::from_utf8_lossy(&text)),
                Command::DumpGtid(dump) => {
                    let has = GtidSet::decode(&dump.set).expect("a set");
                    return self.dump(stream, frames.sequence(), &has);
                }
                Command::Register(_) => {}
                other => panic!("asked for {other:?}"),
            }
        }
    }

    /// Sends what is there, and what comes, and else heartbeats.
    fn dump(&self, mut stream: TcpStream, mut sequence: u8, has: &GtidSet) {
        let id = self.primary().server_id;
        let mut sent = 0;
        loop {
            let (all, idle) = {
                let primary = self.primary();
                // Another one has taken its place.
                if primary.server_id != id {
                    return;
                }
                (primary.send(has), primary.idle())
            };
            let mut out = Vec::new();
            for event in &all[sent..] {
                sequence = put_packet(&mut out, sequence, &[&[0], &event[..]].concat());
            }
            if sent == all.len() {
                sequence = put_packet(&mut out, sequence, &[&[0], &idle[..]].concat());
            }
            sent = all.len();
            if stream.write_all(&out).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(30));
        }
    }

    fn query(&self, text: &str) -> Option<TextResult> {
        let row = |cells: &[String]| {
            let mut table = TextResult::new(&["a", "b", "c"][..cells.len()]);
            table.row(cells.iter().cloned());
            Some(table)
        };
        match text {
            text if text.starts_with("SET ") => {
                assert!(text.contains("@slave_uuid='64726f6d-"), "{text}");
                None
            }
            "SELECT @@GLOBAL.server_id, @@GLOBAL.version" => {
                row(&[self.primary().server_id.to_string(), "5.7.44-log".into()])
            }
            "SELECT @@GLOBAL.gtid_owned, @@GLOBAL.gtid_executed, @@GLOBAL.server_uuid" => {
                let owned = self.owned.lock().expect("alive").clone();
                let primary = self.primary();
                row(&[
                    owned,
                    primary.executed().to_string(),
                    uuid_text(&primary.uuid()),
                ])
            }
            "SHOW VARIABLES LIKE 'gtid_mode'" => row(&["gtid_mode".into(), "ON".into()]),
            text if text.starts_with("SHOW VARIABLES") => Some(TextResult::new(&["a", "b"])),
            text => panic!("asked {text}"),
        }
    }
}

fn packet(stream: &mut TcpStream, frames: &mut Frames) -> Option<Vec<u8>> {
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

fn wish(server_id: u32, executed: GtidSet) -> Wish {
    Wish {
        user: "repl".into(),
        password: "secret".into(),
        tls: false,
        server_id,
        report_host: String::new(),
        report_port: 0,
        heartbeat: Duration::from_millis(200),
        semi_sync: false,
        zstd: Some(3),
        position: String::new(),
        file: None,
        executed: Some(executed),
        channel: None,
    }
}

fn log() -> Log {
    Log::file(&std::env::temp_dir().join("dromon-relay-mysql-gtid.log")).expect("writable")
}

struct Relay {
    following: Arc<Mutex<Following>>,
    view: Arc<View>,
    serves: String,
    http: String,
    pulls: Option<thread::JoinHandle<()>>,
}

impl Relay {
    fn start(device: &SimDevice, server_id: u32, primary: &str) -> Relay {
        let options = StoreOptions {
            file_max: 4096,
            tail_max: 2000,
            point_every: 500,
            server_id,
            kind: Kind::MySql,
            ..StoreOptions::default()
        };
        let device = Arc::new(device.clone());
        let (store, _) = Store::open(device, options, GtidSet::new()).expect("mended");
        let view = store.view();
        let source = Source {
            address: primary.to_owned(),
            wish: wish(server_id, GtidSet::new()),
            tls: None,
            dead_after: Duration::from_secs(60),
            backoff_max: Duration::from_millis(200),
            start_file: None,
        };
        let puller = Puller::new(source, store, log(), Box::new(|| ()), None);
        let following = puller.following();
        let pulls = thread::spawn(move || puller.run().expect("a good disk"));
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
            zstd: true,
            write_timeout: Duration::from_secs(60),
            heartbeat: Duration::from_secs(60),
        };
        let server = Server::new(options, Arc::clone(&view), Registry::new(60), log(), 0);
        server.follows(Arc::clone(&following));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let serves = listener.local_addr().expect("bound").to_string();
        let taken = Arc::clone(&server);
        thread::spawn(move || taken.listen(&listener));
        let answers = Arc::new(HttpServer {
            address: primary.to_owned(),
            server,
            view: Arc::clone(&view),
            following: Arc::clone(&following),
            watch: None,
            questions: Questions::default(),
            log: log(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let http = listener.local_addr().expect("bound").to_string();
        thread::spawn(move || answers.listen(&listener));
        Relay {
            following,
            view,
            serves,
            http,
            pulls: Some(pulls),
        }
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.http).expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("taken");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("text");
        text.split_once("\r\n\r\n").expect("a body").1.to_owned()
    }

    fn has(&self, executed: &GtidSet) {
        until("it has all", || &self.view.executed() == executed);
    }

    fn stop(&mut self) {
        Following::stop(&self.following);
        if let Some(pulls) = self.pulls.take() {
            pulls.join().expect("it ends");
        }
    }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A replica of MySQL, in its own words.
struct Replica {
    stream: TcpStream,
    frames: Frames,
}

impl Replica {
    fn enter(address: &str) -> Replica {
        let mut stream = TcpStream::connect(address).expect("it listens");
        // Up to the first question it is as a relay.
        let mut session = Session::new(wish(9, GtidSet::new()));
        let mut frames = Frames::new(1 << 20);
        loop {
            let packet = packet(&mut stream, &mut frames).expect("it answers");
            let (payload, sequence) = match session.packet(&packet).expect("it lets in") {
                Step::Reply(payload) => (payload, frames.sequence()),
                _ => break,
            };
            let mut out = Vec::new();
            let next = put_packet(&mut out, sequence, &payload);
            frames.set_sequence(next);
            stream.write_all(&out).expect("taken");
        }
        Replica { stream, frames }
    }

    fn send(&mut self, command: &Command) {
        let mut out = Vec::new();
        put_packet(&mut out, 0, &command.encode());
        self.frames.set_sequence(1);
        self.stream.write_all(&out).expect("taken");
    }

    /// The last cell of the only row, or nothing for ok.
    fn ask(&mut self, text: &str) -> Option<String> {
        self.send(&Command::Query(text.into()));
        let mut ends = 0;
        let mut row = None;
        loop {
            let packet = packet(&mut self.stream, &mut self.frames).expect("it answers");
            match Answer::decode(&packet) {
                Ok(Answer::Ok) if ends == 0 && row.is_none() => return None,
                Ok(Answer::Error(failure)) => panic!("{text}: {failure}"),
                Ok(Answer::End) => ends += 1,
                _ if ends == 1 => row = Some(packet),
                _ => {}
            }
            if ends == 2 {
                let row = row.expect("a row");
                let mut rest = &row[..];
                let mut cell = Vec::new();
                while let Some((len, more)) = rest.split_first() {
                    let (now, later) = more.split_at(usize::from(*len));
                    (cell, rest) = (now.to_vec(), later);
                }
                return Some(String::from_utf8(cell).expect("text"));
            }
        }
    }

    /// As MySQL 5.6 begins.
    fn dump(address: &str, has: &GtidSet) -> Replica {
        let mut replica = Replica::enter(address);
        let now = replica.ask("SELECT UNIX_TIMESTAMP()").expect("a time");
        assert!(now.parse::<u64>().expect("a number") > 1_700_000_000);
        let id = replica
            .ask("SHOW VARIABLES LIKE 'SERVER_ID'")
            .expect("its id");
        assert!(["42", "43"].contains(&&id[..]), "{id}");
        assert_eq!(replica.ask("SET @master_heartbeat_period= 100000000"), None);
        assert_eq!(
            replica.ask("SET @master_binlog_checksum= @@global.binlog_checksum"),
            None
        );
        assert_eq!(
            replica.ask("SELECT @master_binlog_checksum").expect("one"),
            "CRC32"
        );
        assert_eq!(replica.ask("SELECT @@GLOBAL.GTID_MODE").expect("one"), "ON");
        let uuid = replica.ask("SHOW VARIABLES LIKE 'SERVER_UUID'");
        assert!(uuid.expect("one").starts_with("64726f6d-"));
        assert_eq!(
            replica.ask("SET @slave_uuid= '3e11fa47-71ca-11e1-9e33-c80aa9429562'"),
            None
        );
        let mut set = Vec::new();
        has.encode(&mut set);
        replica.send(&Command::DumpGtid(DumpGtid {
            flags: 0,
            server_id: 9,
            set,
        }));
        replica
    }

    /// So many groups, or the error that comes instead.
    fn gets(&mut self, groups: usize) -> Result<Got, String> {
        let mut events = Vec::new();
        let mut ended = 0;
        while ended < groups {
            let packet = packet(&mut self.stream, &mut self.frames).expect("it sends");
            match packet.split_first() {
                Some((0, event)) => {
                    ended += usize::from(event[4] == 16);
                    events.push(event.to_vec());
                }
                _ => match Answer::decode(&packet) {
                    Ok(Answer::Error(failure)) => return Err(failure.to_string()),
                    other => panic!("{other:?}"),
                },
            }
        }
        Ok(Got::of(&events))
    }
}

fn of(source: [u8; 16], numbers: std::ops::RangeInclusive<u64>) -> Vec<Name> {
    numbers.map(|n| (source, n)).collect()
}

/// Connections break and the relay is killed while the primary goes on; then another server, which has
/// all of it in other files, takes its place. Both relays have each group once, and replicas get what
/// they lack.
#[test]
fn all_the_way() {
    let (server, address) = MySql::start();
    let devices = [SimDevice::new(3), SimDevice::new(4)];
    let mut relay = Relay::start(&devices[0], 42, &address);
    let behind = Relay::start(&devices[1], 43, &relay.serves);
    let mut promoted = Primary::new(2);
    let both = |promoted: &mut Primary, name: Name| {
        server.primary().does(name, 50);
        promoted.does(name, 50);
    };
    for n in 1..=30 {
        both(&mut promoted, (A, n));
        match n % 10 {
            3 => server.primary().cut(),
            5 => promoted.cut(),
            7 => server.breaks(),
            _ => thread::sleep(Duration::from_millis(10)),
        }
    }
    let executed = server.primary().executed().clone();
    relay.has(&executed);
    behind.has(&executed);
    // The relay is killed, and serves elsewhere: the one behind it stays where it is.
    relay.stop();
    devices[0].kill();
    let relay = Relay::start(&devices[0], 42, &address);
    server.breaks();
    *server.primary() = promoted;
    for n in 1..=10 {
        server.primary().does((B, n), 50);
    }
    let executed = server.primary().executed().clone();
    relay.has(&executed);
    let names = [of(A, 1..=30), of(B, 1..=10)].concat();
    let all = Replica::dump(&relay.serves, &GtidSet::new())
        .gets(40)
        .expect("all");
    assert_eq!(all.names, names);
    let has = set(&[of(A, 1..=12), of(A, 14..=30), of(B, 2..=3)].concat());
    let lacks = [of(A, 13..=13), of(B, 1..=1), of(B, 4..=10)].concat();
    let got = Replica::dump(&relay.serves, &has)
        .gets(9)
        .expect("the rest");
    assert_eq!(got.names, lacks);
    let got = Replica::dump(&behind.serves, &set(&of(A, 1..=29))).gets(1);
    assert_eq!(got.expect("one").names, of(A, 30..=30));

    let mut tool = Replica::enter(&relay.serves);
    let text = executed.to_string();
    for ask in [
        "SHOW MASTER STATUS",
        "SELECT @@GLOBAL.gtid_executed",
        "SHOW GLOBAL VARIABLES LIKE 'gtid_executed'",
    ] {
        assert_eq!(tool.ask(ask).as_deref(), Some(&text[..]), "{ask}");
    }
    let purged = tool.ask("SELECT @@GLOBAL.gtid_purged");
    assert_eq!(purged.as_deref(), Some(""));
    let status: serde_json::Value = serde_json::from_str(&relay.get("/status.json")).expect("JSON");
    assert_eq!(status["gtid_executed"], text);
    assert_eq!(status["gtid_purged"], "");
    let metrics = relay.get("/metrics");
    let last = "dromon_relay_gtid_last{source=\"bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb\"} 10\n";
    assert!(metrics.contains(last), "{metrics}");
    for relay in [&relay, &behind] {
        Following::stop(&relay.following);
    }
}

/// A primary that lacks what the relay has is not followed; one that is just committing it is.
#[test]
fn a_primary_that_lacks_something() {
    let (server, address) = MySql::start();
    let mut ahead = Primary::new(1);
    for n in 1..=3 {
        server.primary().does((A, n), 10);
        ahead.does((A, n), 10);
    }
    let relay = Relay::start(&SimDevice::new(3), 42, &address);
    relay.has(&set(&of(A, 1..=3)));
    let mut lacking = Primary::new(2);
    for n in [1, 3] {
        lacking.does((A, n), 10);
    }
    *server.primary() = lacking;
    server.breaks();
    let why = || {
        let following = relay.following.lock().expect("alive");
        following.last_error.clone().unwrap_or_default()
    };
    let named = set(&of(A, 2..=2)).to_string();
    until("it is refused", || {
        why().contains(&format!("lacks transactions that the relay has: {named}."))
    });
    // Two are owned, one of them the one that was lacking.
    let owned = format!("{named}#17:9#3");
    *server.owned.lock().expect("alive") = owned;
    until("it is followed", || {
        relay.following.lock().expect("alive").connected
    });
    server.breaks();
    server.owned.lock().expect("alive").clear();
    *server.primary() = ahead;
    server.primary().does((A, 4), 10);
    relay.has(&set(&of(A, 1..=4)));
    Following::stop(&relay.following);
}

/// One that has lost transactions of its own will use their numbers again: then nothing would show it.
#[test]
fn a_primary_that_has_lost_its_own() {
    let (server, address) = MySql::start();
    (1..=3).for_each(|n| server.primary().does((A, n), 10));
    let device = SimDevice::new(3);
    let relay = Relay::start(&device, 42, &address);
    relay.has(&set(&of(A, 1..=3)));
    let mut reset = Primary::new(1);
    reset.does((A, 1), 10);
    // What is being committed is not lost, and what cannot be read may be that.
    *server.owned.lock().expect("alive") = format!("{}#17:tag:9#4", set(&of(A, 2..=2)));
    *server.primary() = reset;
    server.breaks();
    let why = || {
        let following = relay.following.lock().expect("alive");
        following.last_error.clone().unwrap_or_default()
    };
    until("it waits", || why().contains("lacks transactions"));
    assert!(relay.view.failure().is_none());
    server.owned.lock().expect("alive").clear();
    until("it ends", || relay.view.failure().is_some());
    let named = set(&of(A, 2..=3)).to_string();
    let text = relay.view.failure().expect("it ended").to_string();
    assert!(
        text.contains(&format!("(server id 1) has lost {named},")),
        "{text}"
    );
    // It makes them again.
    (2..=9).for_each(|n| server.primary().does((A, n), 10));
    let again = Relay::start(&device, 42, &address);
    assert_eq!(again.view.executed(), set(&of(A, 1..=3)));
    assert_eq!(again.view.failure().expect("marked").to_string(), text);
}

/// What a replica has and nobody else is named to it, once the primary had nothing more for a while;
/// what cannot be read, and what another kind of replica asks, at once.
#[test]
fn replicas_that_are_refused() {
    let (server, address) = MySql::start();
    for n in 1..=3 {
        server.primary().does((A, n), 10);
    }
    let relay = Relay::start(&SimDevice::new(3), 42, &address);
    relay.has(&set(&of(A, 1..=3)));
    let mut has = set(&of(A, 1..=4));
    let error = Replica::dump(&relay.serves, &has).gets(1);
    let error = error.expect_err("it has what nobody has");
    let named = set(&of(A, 4..=4)).to_string();
    assert!(error.contains("1236") && error.contains(&named), "{error}");
    let mut replica = Replica::enter(&relay.serves);
    replica.ask("SET @master_binlog_checksum= @@global.binlog_checksum");
    replica.send(&Command::DumpGtid(DumpGtid {
        flags: 0,
        server_id: 9,
        set: vec![1, 2, 3],
    }));
    let error = replica.gets(1).expect_err("no set");
    assert!(
        error.contains("1236") && error.contains("cannot be read"),
        "{error}"
    );
    let mut replica = Replica::enter(&relay.serves);
    replica.ask("SET @master_binlog_checksum= @@global.binlog_checksum");
    replica.ask("SET @slave_connect_state= '0-1-5'");
    let dump = dromon_relay::wire::Dump {
        position: 4,
        flags: 0,
        server_id: 9,
        file: Vec::new(),
    };
    replica.send(&Command::Dump(dump));
    let error = replica.gets(1).expect_err("of MariaDB");
    assert!(error.contains("GTIDs of MySQL"), "{error}");
    // By file and byte it is served.
    let mut replica = Replica::enter(&relay.serves);
    replica.ask("SET @master_binlog_checksum= @@global.binlog_checksum");
    replica.send(&Command::Dump(dromon_relay::wire::Dump {
        position: 4,
        flags: 0,
        server_id: 9,
        file: b"relay-bin.000001".to_vec(),
    }));
    assert_eq!(replica.gets(3).expect("all").names, of(A, 1..=3));
    // One that is ahead by what still comes is served.
    has.remove(&A, 2);
    let mut replica = Replica::dump(&relay.serves, &has);
    for n in 4..=5 {
        server.primary().does((A, n), 10);
    }
    let got = replica.gets(2).expect("what it lacks");
    assert_eq!(got.names, [of(A, 2..=2), of(A, 5..=5)].concat());
    Following::stop(&relay.following);
}
