//! A relay that pulls nothing any more, in a process of its own.

mod common;

use std::env;
use std::fs;
use std::net::TcpListener;
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
use dromon_relay::pull::{Following, Puller, Source, Wish};
use dromon_relay::store::{Store, StoreOptions};
use dromon_relay::{Config, RELAY};

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
    let end = Instant::now() + Duration::from_secs(20);
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

/// What a replica needs that came since is known after a SIGKILL, too: when the relay is started again, that is
/// not purged.
#[test]
fn who_comes_is_written_down() {
    if let Some(settings) = env::var_os(SETTINGS) {
        let given = Given::read(&RELAY, Path::new(&settings)).expect("settings");
        let config = Config::settle(&given).expect("good ones");
        dromon_relay::run(&config).expect("it starts");
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("relay");
    fs::create_dir(&dir).expect("made");
    halted(&dir);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    drop(listener);
    let settings = home.path().join("relay.cnf");
    let text = format!(
        "primary = 127.0.0.1:1\nuser = repl\nserver_id = 42\naccount = repl:secret\ndir = {}\nlisten = {address}\nlog = {}\n",
        dir.display(),
        home.path().join("relay.log").display()
    );
    fs::write(&settings, text).expect("written");
    let mut relay = Command::new(env::current_exe().expect("this program"));
    relay.args(["--exact", "who_comes_is_written_down", "--nocapture"]);
    relay.env(SETTINGS, &settings).stdout(Stdio::null());
    let relay = Killed(relay.spawn().expect("it runs"));

    let log = Log::file(&home.path().join("replica.log")).expect("writable");
    let puller = replica(address, log);
    let following = puller.following();
    let pulls = thread::spawn(move || puller.run());
    let list = || fs::read_to_string(dir.join("dromon-relay.replicas")).unwrap_or_default();
    until("it is written down", || list().starts_with("43 1 3306 "));
    drop(relay);
    assert!(list().ends_with(" db43\n"), "{}", list());
    Following::stop(&following);
    pulls.join().expect("it ends").expect("a good disk");
}
