//! All of it over TCP: a server that answers as MySQL does, a relay that follows it and reads its
//! tables, and a replica of the relay.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use dromon_binlog::GtidSet;
use dromon_log::SimDevice;
use dromon_relay::http::{HttpServer, Questions};
use dromon_relay::log::Log;
use dromon_relay::pull::{
    Desk, Following, Login, PositionKind, Puller, Session, Source, Step, Wish, read_for_ever,
};
use dromon_relay::serve::{Account, Policy, Registry, ServeOptions, Server};
use dromon_relay::store::{Place, Store};
use dromon_relay::wire::{
    Command, Failure, Frames, Greeting, NATIVE_PASSWORD, PasswordHash, SALT_LEN, TextResult,
    capabilities, error, ok, put_packet, put_result,
};

use crate::decoder::{self, Got};
use crate::gtids;
use crate::model::{Does, Plan, Row, Style, check};
use crate::primary::{COMMITTED, Primary, SOURCE, name};
use crate::served::{files, open};

const LOCK: &str = "LOCK INSTANCE FOR BACKUP";
/// As `gtid_owned` says it: the GTID and its thread.
const OWNED: &str = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:7#23";

/// A server and what it was asked beside the stream.
struct MySql {
    primary: Mutex<Primary>,
    asked: Mutex<Vec<String>>,
    /// Statements that begin so are refused.
    refuses: &'static str,
    /// What is being committed, each time that it is asked; then nothing is.
    owned: Mutex<Vec<&'static str>>,
    /// As far as replicas are sent it; `None`: all.
    sends: Mutex<Option<Primary>>,
    crashes: AtomicU32,
}

impl MySql {
    fn primary(&self) -> MutexGuard<'_, Primary> {
        self.primary.lock().expect("alive")
    }

    /// What replicas are sent of it.
    fn sent(&self) -> Primary {
        let primary = self.primary();
        let sends = self.sends.lock().expect("alive");
        sends.as_ref().unwrap_or(&primary).clone()
    }

    /// It crashes, and has no more than that when it is back.
    fn crash(&self, left: Primary) {
        let mut primary = self.primary();
        self.crashes.fetch_add(1, Ordering::SeqCst);
        *self.sends.lock().expect("alive") = None;
        *primary = left;
    }

    fn start(version: &'static str, refuses: &'static str) -> (Arc<MySql>, String) {
        MySql::of(Primary::new(version), refuses)
    }

    fn of(primary: Primary, refuses: &'static str) -> (Arc<MySql>, String) {
        let server = Arc::new(MySql {
            primary: Mutex::new(primary),
            owned: Mutex::default(),
            asked: Mutex::default(),
            refuses,
            sends: Mutex::default(),
            crashes: AtomicU32::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let taken = Arc::clone(&server);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let server = Arc::clone(&taken);
                thread::spawn(move || server.connection(stream.expect("a client")));
            }
        });
        (server, address)
    }

    fn connection(&self, mut stream: TcpStream) {
        let mut frames = Frames::new(1 << 20);
        let greeting = Greeting {
            version: self.primary().version.into(),
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
        let mut answer = ok();
        let mut table: Option<TextResult> = None;
        loop {
            let mut out = Vec::new();
            match table.take() {
                Some(table) => put_result(&mut out, frames.sequence(), &table),
                None => put_packet(&mut out, frames.sequence(), &answer),
            };
            if stream.write_all(&out).is_err() {
                return;
            }
            frames.set_sequence(0);
            let Some(packet) = packet(&mut stream, &mut frames) else {
                return;
            };
            answer = ok();
            match Command::decode(&packet).expect("a command") {
                Command::Query(text) => {
                    let text = String::from_utf8(text).expect("text");
                    match self.query(&text) {
                        Ok(found) => table = found,
                        Err(failure) => answer = error(&failure),
                    }
                }
                Command::Dump(dump) => {
                    let file = String::from_utf8(dump.file).expect("a name");
                    let number = file.strip_prefix("bin.").and_then(|n| n.parse().ok());
                    let from = Place {
                        file: number.unwrap_or(1),
                        at: dump.position.into(),
                    };
                    return self.dump(stream, frames.sequence(), |p| p.send(from));
                }
                Command::DumpGtid(dump) => {
                    let has = GtidSet::decode(&dump.set).expect("a set");
                    let has = (0..).take_while(|n| has.contains(&SOURCE, n + 1)).count();
                    return self.dump(stream, frames.sequence(), |p| p.send_behind(has));
                }
                Command::Register(_) => {}
                other => panic!("asked for {other:?}"),
            }
        }
    }

    /// Sends what is there, and what comes, and else heartbeats.
    fn dump(
        &self,
        mut stream: TcpStream,
        mut sequence: u8,
        events: impl Fn(&Primary) -> Vec<Vec<u8>>,
    ) {
        let mut sent = 0;
        let crashes = self.crashes.load(Ordering::SeqCst);
        loop {
            let primary = self.sent();
            if self.crashes.load(Ordering::SeqCst) != crashes {
                return;
            }
            let all = events(&primary);
            let mut out = Vec::new();
            for event in &all[sent..] {
                sequence = put_packet(&mut out, sequence, &[&[0], &event[..]].concat());
            }
            if sent == all.len() {
                let event = primary.heartbeat();
                sequence = put_packet(&mut out, sequence, &[&[0], &event[..]].concat());
            }
            sent = all.len();
            if stream.write_all(&out).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn query(&self, text: &str) -> Result<Option<TextResult>, Failure> {
        if !text.starts_with("SET ") {
            self.asked.lock().expect("alive").push(text.to_owned());
        }
        if !self.refuses.is_empty() && text.starts_with(self.refuses) {
            return Err(Failure::new(1227, "Access denied; you need BACKUP_ADMIN"));
        }
        let primary = self.primary();
        let table = |rows: &[&str]| {
            let width = rows.first().map_or(1, |row| row.split('|').count());
            let mut table = TextResult::new(&vec!["c"; width]);
            for row in rows {
                let cell = |c: &str| (c != "NULL").then(|| c.as_bytes().to_vec());
                table.rows.push(row.split('|').map(cell).collect());
            }
            Ok(Some(table))
        };
        let has = |part: &str| text.contains(part);
        if text.starts_with("SET ") || text == LOCK || text == "UNLOCK INSTANCE" {
            Ok(None)
        } else if text.starts_with("SELECT @@GLOBAL.server_id") {
            table(&[&format!("1|{}", primary.version)])
        } else if text == "SHOW VARIABLES LIKE 'gtid_mode'" {
            let on = primary.has_gtids();
            table(&[if on { "gtid_mode|ON" } else { "gtid_mode|OFF" }])
        } else if text == "SELECT @@GLOBAL.gtid_owned, @@GLOBAL.gtid_executed, @@GLOBAL.server_uuid"
        {
            table(&[&format!("|{}", primary.executed())])
        } else if text == "SELECT @@GLOBAL.gtid_executed" {
            table(&[&primary.executed().to_string()])
        } else if text == "SELECT @@GLOBAL.gtid_owned" {
            table(&[self.owned.lock().expect("alive").pop().unwrap_or_default()])
        } else if text.starts_with("SHOW VARIABLES") {
            table(&[])
        } else if text == "SHOW GLOBAL VARIABLES LIKE 'partial_revokes'" {
            match primary.version.starts_with('8') {
                true => table(&["partial_revokes|OFF"]),
                false => table(&[]),
            }
        } else if text == "SHOW MASTER STATUS" {
            let end = primary.end();
            table(&[&format!("{}|{}|||", name(end.file as usize), end.at)])
        } else if has("USER_PRIVILEGES") {
            table(&["SELECT", "REFERENCES"])
        } else if has("information_schema.TABLES") {
            table(&[
                "d|c|BASE TABLE|InnoDB",
                "d|n|BASE TABLE|InnoDB",
                "d|t|BASE TABLE|InnoDB",
            ])
        } else if has("information_schema.COLUMNS") {
            assert!(has("GENERATION_EXPRESSION"), "MySQL has no IS_GENERATED");
            table(&[
                "d|c|id|int|NULL|NEVER",
                "d|c|pid|int|NULL|NEVER",
                "d|n|x|int|NULL|NEVER",
                "d|t|id|int|NULL|NEVER",
                "d|t|u|int|NULL|NEVER",
            ])
        } else if has("STATISTICS") {
            let mut rows = vec!["d|c|PRIMARY|id|NULL|BTREE", "d|t|PRIMARY|id|NULL|BTREE"];
            rows.extend(primary.unique.then_some("d|t|u|u|NULL|BTREE"));
            table(&rows)
        } else if has("KEY_COLUMN_USAGE") {
            table(&["d|c|fk|pid|d|t|id"])
        } else if has("REFERENTIAL_CONSTRAINTS") {
            table(&["d|c|fk|RESTRICT|RESTRICT"])
        } else {
            panic!("asked {text}")
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

fn wish(server_id: u32, file: Option<(String, u64)>) -> Wish {
    Wish {
        user: "repl".into(),
        password: "secret".into(),
        tls: false,
        server_id,
        report_host: String::new(),
        report_port: 0,
        heartbeat: Duration::from_millis(200),
        semi_sync: false,
        zstd: None,
        position: String::new(),
        file,
        executed: None,
        channel: None,
    }
}

fn log() -> Log {
    Log::file(&std::env::temp_dir().join("dromon-relay-clock.log")).expect("writable")
}

/// A relay of which replica 9 gets logical clocks, and others do not.
struct Relay {
    following: Arc<Mutex<Following>>,
    serves: String,
    http: String,
}

impl Relay {
    fn start(primary: &str) -> Relay {
        let kind = PositionKind::ByFile("bin".into());
        Relay::of(primary, open(&SimDevice::new(3)), kind)
    }

    fn with_gtids(primary: &str) -> Relay {
        let store = gtids::open_with(&SimDevice::new(3), 1 << 20);
        Relay::of(primary, store, PositionKind::BySet)
    }

    fn of(primary: &str, store: Store, kind: PositionKind) -> Relay {
        let view = store.view();
        let desk = Arc::<Desk>::default();
        let source = Source {
            address: primary.to_owned(),
            wish: wish(42, None),
            tls: None,
            dead_after: Duration::from_secs(60),
            backoff_max: Duration::from_secs(1),
            start_file: None,
        };
        let none = Box::new(|| ());
        let puller = Puller::new(source, store, log(), none, Some(Arc::clone(&desk)));
        let following = puller.following();
        thread::spawn(move || puller.run().expect("a good disk"));
        let login = Login {
            address: primary.to_owned(),
            user: "repl".into(),
            password: "secret".into(),
            tls: None,
            limit: Duration::from_secs(60),
            in_all: None,
        };
        thread::spawn(move || read_for_ever(&desk, &login, &kind, &log()));
        let options = ServeOptions {
            server_id: 42,
            accounts: vec![Account {
                name: "repl".into(),
                password: PasswordHash::of(b"secret"),
                admin: false,
            }],
            policy: Policy::Pass,
            policies: BTreeMap::from([(9, Policy::LogicalClock)]),
            congestion: Some("system".into()),
            tls: None,
            tls_required: false,
            connections_max: 50,
            zstd: false,
            write_timeout: Duration::from_secs(60),
            heartbeat: Duration::from_secs(60),
        };
        let server = Server::new(options, Arc::clone(&view), Registry::new(60), log(), 0);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let serves = listener.local_addr().expect("bound").to_string();
        let taken = Arc::clone(&server);
        thread::spawn(move || taken.listen(&listener));
        let answers = Arc::new(HttpServer {
            address: primary.to_owned(),
            server,
            view,
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
            serves,
            http,
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

    fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.get("/status.json")).expect("JSON")
    }

    /// Waits until the primary's tables were read so often, and are known.
    fn knows_tables(&self, times: u64) {
        until("tables are known", || {
            let hints = self.following.lock().expect("alive").hints.clone();
            hints.is_some_and(|h| h.catalog && h.catalogs == times)
        });
    }

    fn has(&self, place: Place) {
        until("it has all", || {
            let following = self.following.lock().expect("alive");
            following.file == name(place.file as usize) && following.position == place.at
        });
    }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(240);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// All that a replica of this server id is sent, until it has so many groups.
fn replica(address: &str, gtids: bool, server_id: u32, groups: usize) -> Vec<Vec<Got>> {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let file = (!gtids).then(|| (name(1), 4));
    let mut session = Session::new(Wish {
        executed: gtids.then(GtidSet::new),
        ..wish(server_id, file)
    });
    let mut frames = Frames::new(1 << 20);
    loop {
        let packet = packet(&mut stream, &mut frames).expect("it answers");
        let step = session.packet(&packet).expect("it lets in");
        let (payload, sequence) = match &step {
            Step::Read => continue,
            Step::Reply(payload) => (payload, frames.sequence()),
            Step::Send(payload) | Step::Stream(payload) => (payload, 0),
            Step::Encrypt(_) => panic!("nobody wants TLS"),
        };
        let mut out = Vec::new();
        let next = put_packet(&mut out, sequence, payload);
        frames.set_sequence(next);
        stream.write_all(&out).expect("taken");
        if let Step::Stream(_) = step {
            break;
        }
    }
    let mut packets = Vec::new();
    let mut ended = 0;
    while ended < groups {
        let packet = packet(&mut stream, &mut frames).expect("it sends");
        let got = decoder::event(&packet, true);
        // An XID, or the one statement that is no BEGIN.
        let text = got.raw.windows(11).any(|w| w == b"ALTER TABLE");
        ended += usize::from(got.kind == 16 || got.kind == 2 && text);
        packets.push(packet);
    }
    files(&packets, true)
}

fn row(id: i32, u: i32) -> Plan {
    Plan {
        does: Does::Rows(vec![Row::T { id, u }]),
        style: Style::Serial,
        modern: true,
        file: false,
    }
}

fn clocks(files: &[Vec<Got>]) -> Vec<i64> {
    let all = files.iter().flatten().filter_map(|got| got.clock);
    all.map(|(last, _)| last).collect()
}

fn goes_all_the_way(primary: Primary) {
    let (version, gtids) = (primary.version, primary.has_gtids());
    let (server, address) = MySql::of(primary, "");
    server.primary().does(&row(1, 1));
    let relay = match gtids {
        false => Relay::start(&address),
        true => {
            // While the tables are read the first one is being committed, for a while.
            *server.owned.lock().expect("alive") = vec![OWNED, OWNED];
            Relay::with_gtids(&address)
        }
    };
    relay.knows_tables(1);
    for plan in [row(2, 2), row(3, 3), row(4, 4), row(2, 5), row(5, 5)] {
        server.primary().does(&plan);
    }
    // Tables change: they are read again.
    let ddl = Plan {
        does: Does::Ddl,
        ..row(0, 0)
    };
    server.primary().does(&ddl);
    relay.knows_tables(2);
    // Equal values of u do not meet any more.
    for plan in [row(11, 9), row(12, 9), row(13, 9)] {
        server.primary().does(&plan);
    }
    let next = Plan {
        file: true,
        ..row(21, 1)
    };
    for plan in [next, row(22, 2), row(23, 3)] {
        server.primary().does(&plan);
    }
    let end = server.primary().end();
    relay.has(end);
    // Lag counts from when it was committed.
    let newest = relay.following.lock().expect("alive").newest_ms;
    assert_eq!(newest, COMMITTED / 1000);
    let got = replica(&relay.serves, gtids, 9, 13);
    assert_eq!(clocks(&got), [0, 1, 1, 1, 2, 5, 6, 7, 7, 7, 0, 1, 1]);
    let primary = server.primary();
    for (n, got) in got.iter().enumerate() {
        let got: Vec<Got> = got
            .iter()
            .filter(|got| got.clock.is_some())
            .cloned()
            .collect();
        check(&primary.of_file(n + 1), &got).expect("none that conflict");
    }
    // Another replica gets what the primary says.
    let passed = replica(&relay.serves, gtids, 8, 13);
    let own: Vec<i64> = primary
        .done
        .iter()
        .map(|done| done.last_committed)
        .collect();
    assert_eq!(clocks(&passed), own);
    drop(primary);
    // What is told of it.
    let status = relay.status();
    let replicas = status["replicas"].as_array().expect("a list");
    let policy = |id: u32| {
        let of = replicas.iter().find(|r| r["server_id"] == id);
        of.expect("it was here")["policy"].clone()
    };
    assert_eq!(
        (policy(9), policy(8)),
        ("logical_clock".into(), "pass".into())
    );
    assert_eq!(status["hints"]["catalogs_read"], 2);
    assert_eq!(status["hints"]["groups"], 13);
    assert_eq!(status["hints"]["joined_groups"], 6);
    assert!(
        relay
            .get("/metrics")
            .contains("\ndromon_relay_hints_joined_total 6\n")
    );
    // Where the binlog ends is asked before and after, under the lock if it is MySQL 8.
    let asked = server.asked.lock().expect("alive");
    let at = |text: &str| asked.iter().position(|a| a.starts_with(text));
    let position = match gtids {
        true => "SELECT @@GLOBAL.gtid_executed",
        false => "SHOW MASTER STATUS",
    };
    let status = at(position).expect("asked");
    let tables = at("SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE").expect("asked");
    assert!(status < tables);
    let again = asked[tables..].iter().position(|a| a == position);
    let again = &asked[tables..tables + again.expect("asked again")];
    // What was being committed is over before it is asked.
    let looked = again.iter().filter(|a| *a == "SELECT @@GLOBAL.gtid_owned");
    assert_eq!(looked.count(), if gtids { 3 } else { 0 }, "{asked:?}");
    match version.starts_with('8') {
        true => {
            let both = (&asked[status - 1][..], &asked[status + 1][..]);
            assert_eq!(both, (LOCK, "UNLOCK INSTANCE"));
        }
        false => assert_eq!(at(LOCK), None),
    }
    Following::stop(&relay.following);
}

#[test]
fn mysql_5_7() {
    goes_all_the_way(Primary::new("5.7.44-log"));
}

#[test]
fn mysql_8() {
    goes_all_the_way(Primary::new("8.0.36"));
}

#[test]
fn mysql_5_7_with_gtids() {
    goes_all_the_way(Primary::with_gtids("5.7.44-log", 1));
}

#[test]
fn mysql_8_with_gtids() {
    goes_all_the_way(Primary::with_gtids("8.0.36", 1));
}

/// A primary crashes, has lost its last transaction and uses its number, or its place, again: what its
/// tables looked like behind that one is not learnt.
fn loses_its_last(primary: Primary) {
    let gtids = primary.has_gtids();
    let (server, address) = MySql::of(primary, "");
    server.primary().does(&row(1, 1));
    let mut left = server.primary().clone();
    *server.sends.lock().expect("alive") = Some(left.clone());
    let ddl = Plan {
        does: Does::Ddl,
        ..row(0, 0)
    };
    server.primary().does(&ddl);
    let relay = match gtids {
        false => Relay::start(&address),
        true => Relay::with_gtids(&address),
    };
    until("tables wait", || {
        let hints = relay.following.lock().expect("alive").hints.clone();
        hints.is_some_and(|h| !h.catalog && h.catalogs == 1)
    });
    // Some heartbeats.
    thread::sleep(Duration::from_millis(300));
    // t.u is unique still.
    for id in 2..6 {
        left.does(&row(id, 5));
    }
    let end = left.end();
    server.crash(left);
    relay.has(end);
    let got = replica(&relay.serves, gtids, 9, 5);
    assert_eq!(clocks(&got), [0, 1, 2, 3, 4]);
    let got: Vec<Got> = got
        .into_iter()
        .flatten()
        .filter(|got| got.clock.is_some())
        .collect();
    check(&server.primary().of_file(1), &got).expect("none that conflict");
    relay.knows_tables(2);
    Following::stop(&relay.following);
}

#[test]
fn loses_its_last_with_gtids() {
    loses_its_last(Primary::with_gtids("5.7.44-log", 1));
}

#[test]
fn loses_its_last_without_gtids() {
    loses_its_last(Primary::new("5.7.44-log"));
}

/// What belongs to a session for ever may be in the tables or not: nothing is computed, and the reason
/// is told.
#[test]
fn owned_for_ever() {
    let (server, address) = MySql::of(Primary::with_gtids("5.7.44-log", 1), "");
    *server.owned.lock().expect("alive") = vec![OWNED; 100_000];
    server.primary().does(&row(1, 1));
    let relay = Relay::with_gtids(&address);
    until("it is told", || {
        let hints = relay.following.lock().expect("alive").hints.clone();
        let why = hints.and_then(|h| h.error).unwrap_or_default();
        why.starts_with("aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:7 is being committed there for 5 s")
    });
    assert_eq!(relay.status()["hints"]["catalog"], false);
    server.owned.lock().expect("alive").clear();
    relay.knows_tables(1);
    Following::stop(&relay.following);
}

/// Without the lock what is read may be old: nothing is computed, and the reason is told.
#[test]
fn mysql_8_without_its_lock() {
    let (server, address) = MySql::start("8.0.36", LOCK);
    let relay = Relay::start(&address);
    for n in 0..4 {
        server.primary().does(&row(n, n));
    }
    until("it is refused", || {
        let hints = relay.following.lock().expect("alive").hints.clone();
        let why = hints.and_then(|h| h.error).unwrap_or_default();
        why.contains("GRANT BACKUP_ADMIN")
    });
    let end = server.primary().end();
    relay.has(end);
    assert_eq!(clocks(&replica(&relay.serves, false, 9, 4)), [0, 1, 2, 3]);
    assert_eq!(relay.status()["hints"]["catalog"], false);
    Following::stop(&relay.following);
}
