//! A relay that stores nothing any more, in a process of its own.

mod common;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::net::TcpListener;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::{append, format_event, gtid, transaction};
use dromon_binlog::{BinlogState, Checksum};
use dromon_log::{DirDevice, SimDevice};
use dromon_relay::given::Given;
use dromon_relay::log::Log;
use dromon_relay::pull::{Asker, Following, Login, Puller, Source, Wish};
use dromon_relay::serve::{Account, Policy, Registry, ServeOptions, Server};
use dromon_relay::store::{Store, StoreOptions};
use dromon_relay::wire::PasswordHash;
use dromon_relay::{Config, RELAY};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

const CRC: Checksum = Checksum::Crc32;
/// Says to a process of its own where its settings are.
const SETTINGS: &str = "DROMON_RELAY_TEST_SETTINGS";

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Stores a group in a directory, and is halted.
fn halted(dir: &Path) {
    let device = Arc::new(DirDevice::open(dir).expect("its own"));
    let opened = Store::open(device, StoreOptions::default(), BinlogState::new());
    let (mut store, _) = opened.expect("empty");
    store.begin_file(&format_event(CRC)).expect("a good disk");
    let name = gtid(0, 1, 7);
    append(&mut store, &transaction(name, 1, 9, CRC), name).expect("a good disk");
    store.flush().expect("a good disk");
    store.halt("It is tried.").expect("a good disk");
}

/// A replica of it.
fn replica(address: String, log: Log) -> Puller {
    let opened = Store::open(
        Arc::new(SimDevice::new(6)),
        StoreOptions::default(),
        BinlogState::new(),
    );
    let source = Source {
        address,
        wish: Wish {
            user: "repl".into(),
            password: "secret".into(),
            tls: false,
            server_id: 43,
            report_host: "db43".into(),
            report_port: 3306,
            heartbeat: Duration::from_millis(200),
            semi_sync: false,
            zstd: None,
            position: String::new(),
            file: None,
            executed: None,
            channel: None,
        },
        tls: None,
        dead_after: Duration::from_secs(5),
        backoff_max: Duration::from_millis(200),
        start_file: None,
    };
    let (store, _) = opened.expect("empty");
    Puller::new(source, store, log, Box::new(|| ()), None)
}

/// Is the relay, if this process is to be that. `true`: it was, and has ended.
fn is_relay() -> bool {
    let Some(settings) = env::var_os(SETTINGS) else {
        return false;
    };
    let given = Given::read(&RELAY, Path::new(&settings)).expect("settings");
    let config = Config::settle(&given).expect("good ones");
    dromon_relay::run(&config).expect("it starts");
    true
}

/// A relay in a process of its own, and where it listens: its files, and what it says, are in `home`. `test`
/// begins with [`is_relay`].
fn relay(test: &str, home: &Path, primary: &str) -> (Killed, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    drop(listener);
    let settings = home.join("relay.cnf");
    let text = format!(
        "primary = {primary}\nuser = repl\npassword = secret\nserver_id = 42\naccount = repl:secret\ndir = {}\n\
         listen = {address}\nlog = {}\nfile_size = 4K\n",
        home.join("relay").display(),
        home.join("relay.log").display()
    );
    fs::write(&settings, text).expect("written");
    let mut relay = Command::new(env::current_exe().expect("this program"));
    relay.args(["--exact", test, "--nocapture"]);
    relay.env(SETTINGS, &settings).stdout(Stdio::null());
    (Killed(relay.spawn().expect("it runs")), address)
}

/// A primary that has what this store has.
fn primary(store: &Store, log: Log) -> String {
    let options = ServeOptions {
        server_id: 41,
        accounts: [Account {
            name: "repl".into(),
            password: PasswordHash::of(b"secret"),
            admin: false,
        }]
        .into(),
        policy: Policy::Pass,
        policies: BTreeMap::new(),
        congestion: None,
        tls: None,
        tls_required: false,
        connections_max: 50,
        zstd: true,
        write_timeout: Duration::from_secs(5),
        heartbeat: Duration::from_secs(1),
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let server = Server::new(options, store.view(), Registry::new(60), log, 0);
    thread::spawn(move || server.listen(&listener));
    address
}

/// What a relay has, if it answers.
fn position(address: &str) -> Option<String> {
    let login = Login {
        address: address.to_owned(),
        user: "repl".into(),
        password: "secret".into(),
        tls: None,
        limit: Duration::from_secs(10),
        in_all: None,
    };
    let mut asker = Asker::connect(&login).ok()?;
    let rows = asker.ask("SELECT @@gtid_binlog_pos", 4096).ok()?;
    let cell = rows.first()?.first()?.as_deref()?;
    Some(String::from_utf8_lossy(cell).into_owned())
}

/// No descriptor for the next file, for a moment: the relay stores again when there are some.
#[test]
fn no_descriptor_for_a_file() {
    if is_relay() {
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    let options = StoreOptions::default();
    let opened = Store::open(Arc::new(SimDevice::new(7)), options, BinlogState::new());
    let (mut store, _) = opened.expect("empty");
    store.begin_file(&format_event(CRC)).expect("a good disk");
    let grow = |store: &mut Store, numbers: RangeInclusive<u64>| {
        for name in numbers.map(|n| gtid(0, 1, n)) {
            append(store, &transaction(name, 1, 1000, CRC), name).expect("a good disk");
        }
        store.flush().expect("a good disk");
    };
    grow(&mut store, 1..=1);
    let log = Log::file(&home.path().join("primary.log")).expect("writable");
    let primary = primary(&store, log);
    let (relay, address) = relay("no_descriptor_for_a_file", home.path(), &primary);
    until("it has the first one", || {
        position(&address).as_deref() == Some("0-1-1")
    });
    let may_open = |current: Option<u64>| {
        let limit = Rlimit {
            current,
            ..getrlimit(Resource::Nofile)
        };
        let pid = Pid::from_child(&relay.0);
        prlimit(Some(pid), Resource::Nofile, limit).expect("its own child")
    };
    let before = may_open(Some(3));
    grow(&mut store, 2..=20);
    let said = || fs::read_to_string(home.path().join("relay.log")).unwrap_or_default();
    until("it stores nothing more", || {
        said().contains("Nothing more is stored")
    });
    assert!(said().contains("Too many open files"), "{}", said());
    may_open(before.current);
    until("it has all", || {
        position(&address).as_deref() == Some("0-1-20")
    });
    assert!(said().contains("begins anew"), "{}", said());
}

/// What a replica needs that came since is known after a SIGKILL, too: when the relay is started again, that is
/// not purged.
#[test]
fn who_comes_is_written_down() {
    if is_relay() {
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("relay");
    fs::create_dir(&dir).expect("made");
    halted(&dir);
    let (relay, address) = relay("who_comes_is_written_down", home.path(), "127.0.0.1:1");

    let log = Log::file(&home.path().join("replica.log")).expect("writable");
    let puller = replica(address, log);
    let following = puller.following();
    let pulls = thread::spawn(move || puller.run());
    let list = || fs::read_to_string(dir.join("dromon-relay.replicas")).unwrap_or_default();
    until("it is written down", || list().starts_with("43 1 3306 "));
    drop(relay);
    assert!(list().ends_with(" db43\n"), "{}", list());
    // It began without a list: the next one knows that others may be missing in this one.
    assert!(dir.join("dromon-relay.unlisted").exists());
    Following::stop(&following);
    pulls.join().expect("it ends").expect("a good disk");
}
