//! The host, with the toy as its provider: what it refuses to load, what it calls in which
//! order, and what its callbacks do. `cargo test -p dromon-wsrep --features host`.

mod support;

use std::ffi::c_int;
use std::mem::offset_of;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

use dromon_wsrep::abi::*;
use dromon_wsrep::host::{
    Call, CallMark, End, Events, Host, HostError, HotRow, Library, Loader, NodeConfig, Ordered,
    Transaction, ViewSummary,
};
use dromon_wsrep::{Gtid, MemberInfo, Status, TrxMeta, View, ViewStatus};
use support::server::wsrep_loader;
use support::toy::{HISTORY, NODE, Step, calls, lock, script};

const CHILD: &str = "DROMON_WSREP_HOST_CHILD";
/// A process has one provider, so its tests take turns.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    let turn = lock(&TURN);
    calls();
    script(Vec::new());
    turn
}

/// Writes down what the host hears.
#[derive(Default)]
struct Heard {
    lines: Mutex<Vec<String>>,
    row: HotRow,
    panics: bool,
}

impl Heard {
    fn note(&self, line: String) {
        lock(&self.lines).push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.lines))
    }
}

impl Events for Heard {
    fn log(&self, level: u32, line: &str) {
        // Also where a failing test shows it: the library takes the panics of tests too.
        eprintln!("[{level}] {line}");
        self.note(format!("log {level} {line}"));
    }

    fn connected(&self, view: ViewSummary) {
        self.note(format!("connected {view:?}"));
    }

    fn view(&self, view: ViewSummary) {
        self.note(format!("view {view:?}"));
    }

    fn synced(&self) {
        assert!(!self.panics, "a panic of the test");
        self.note("synced".into());
    }

    fn ordered(&self, set: Ordered<'_>) {
        let payload = String::from_utf8_lossy(set.payload);
        self.note(format!(
            "ordered {} {} passed {} {payload}",
            set.seqno, set.trx, set.passed
        ));
    }

    fn hot_row(&self, payload: &[u8]) -> Option<&HotRow> {
        (payload == b"hot").then_some(&self.row)
    }

    fn violation(&self, what: String) {
        self.note(format!("violation: {what}"));
    }
}

fn config(dir: &Path, options: &str) -> NodeConfig {
    NodeConfig {
        name: "eins".into(),
        address: "127.0.0.1:24510".into(),
        data_dir: dir.to_owned(),
        options: options.into(),
    }
}

fn library(loader: Loader) -> Result<Library, HostError> {
    // SAFETY: the toy's loader, or one of those below around it.
    unsafe { Library::linked(loader) }
}

fn start(loader: Loader, dir: &Path) -> (Host, Arc<Heard>) {
    let heard = Arc::new(Heard::default());
    let library = library(loader).expect("the toy");
    let host = library
        .init(&config(dir, "a=1"), heard.clone())
        .expect("a host");
    calls();
    heard.take();
    (host, heard)
}

fn transaction<'a>(rows: &'a [&'a [u8]], payload: &'a [u8]) -> Transaction<'a> {
    Transaction {
        conn: 7,
        rows,
        payload,
        hot_row: None,
    }
}

// ---------------------------------------------------------------- loaders

unsafe extern "C" fn refusing(_: *mut wsrep_t) -> c_int {
    libc::ENOMEM
}

/// Fills the table and writes a word over one of its fields.
unsafe fn with_field(h: *mut wsrep_t, offset: usize, word: usize) -> c_int {
    // SAFETY: the host's table; the caller passes the offset of one of its fields.
    unsafe {
        let code = wsrep_loader(h);
        h.cast::<u8>().add(offset).cast::<usize>().write(word);
        code
    }
}

unsafe extern "C" fn without_version(h: *mut wsrep_t) -> c_int {
    // SAFETY: a field of the table.
    unsafe { with_field(h, offset_of!(wsrep_t, version), 0) }
}

unsafe extern "C" fn without_certify(h: *mut wsrep_t) -> c_int {
    // SAFETY: a field of the table.
    unsafe { with_field(h, offset_of!(wsrep_t, certify), 0) }
}

unsafe extern "C" fn without_free(h: *mut wsrep_t) -> c_int {
    // SAFETY: a field of the table.
    unsafe { with_field(h, offset_of!(wsrep_t, free), 0) }
}

unsafe extern "C" fn of_version_25(h: *mut wsrep_t) -> c_int {
    // SAFETY: a field of the table, and text that stays.
    unsafe { with_field(h, offset_of!(wsrep_t, version), c"25".as_ptr().addr()) }
}

unsafe extern "C" fn answering_nonsense(h: *mut wsrep_t) -> c_int {
    unsafe extern "C" fn disconnect(_: *mut wsrep_t) -> u32 {
        4711
    }
    let disconnect = disconnect as unsafe extern "C" fn(*mut wsrep_t) -> u32;
    // SAFETY: a field of the table, and a function that only the host calls.
    unsafe { with_field(h, offset_of!(wsrep_t, disconnect), disconnect as usize) }
}

unsafe extern "C" fn aborting(h: *mut wsrep_t) -> c_int {
    unsafe extern "C" fn certify(
        _: *mut wsrep_t,
        _: u64,
        _: *mut wsrep_ws_handle_t,
        _: u32,
        meta: *mut TrxMeta,
    ) -> Status {
        // SAFETY: the host's metadata.
        unsafe { (*meta).gtid.seqno = 12 };
        Status::BfAbort
    }
    // SAFETY: the host's table.
    unsafe {
        let code = wsrep_loader(h);
        (*h).certify = certify;
        code
    }
}

// ---------------------------------------------------------------- loading

#[test]
fn what_is_no_provider_is_not_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("none.so");
    let error = Library::load(&missing).unwrap_err();
    assert!(matches!(&error, HostError::Load { path, .. } if *path == missing));
    assert!(error.to_string().contains("none.so"), "{error}");

    let text = dir.path().join("text.so");
    std::fs::write(&text, "no library").unwrap();
    let error = Library::load(&text).unwrap_err();
    assert!(matches!(error, HostError::Load { .. }), "{error}");

    let error = Library::load(Path::new("libm.so.6")).unwrap_err();
    assert!(matches!(error, HostError::NoLoader { .. }), "{error}");
    assert!(error.to_string().contains("wsrep_loader"), "{error}");
}

#[test]
fn what_the_loader_leaves_is_checked() {
    let _turn = turn();
    let error = library(refusing).unwrap_err();
    assert!(matches!(
        error,
        HostError::Loader {
            code: libc::ENOMEM,
            ..
        }
    ));
    for (loader, expected) in [
        (without_version as Loader, 0),
        (without_certify, 80),
        (without_free, 336),
    ] {
        match library(loader).unwrap_err() {
            HostError::MissingField { offset, .. } => assert_eq!(offset, expected),
            other => panic!("{other}"),
        }
    }
    match library(of_version_25).unwrap_err() {
        HostError::Version { found, .. } => assert_eq!(found, "25"),
        other => panic!("{other}"),
    }
    let about = library(wsrep_loader).unwrap().about().clone();
    assert_eq!((&*about.name, &*about.vendor), ("Toy", "Nobody"));
    assert_eq!(about.version, "26.4.24(r0)");
}

#[test]
fn a_process_has_one_provider_at_a_time() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let init = |options| {
        let heard = Arc::new(Heard::default());
        let library = library(wsrep_loader).unwrap();
        library.init(&config(dir.path(), options), heard)
    };
    // None of the refused ones is in the way of the next.
    assert!(matches!(init("a\0b"), Err(HostError::ZeroByte(text)) if text == "a\0b"));
    match init("fail") {
        Err(HostError::Call { call, status }) => {
            assert_eq!((call, status), ("init", Status::Fatal))
        }
        _ => panic!("the toy was told to fail"),
    }
    let first = init("a=1").unwrap_or_else(|error| panic!("{error}"));
    assert!(matches!(init("a=1"), Err(HostError::Busy)));
    assert_eq!(first.about().name, "Toy");
    first.close();
    let second = init("a=1").unwrap_or_else(|error| panic!("{error}"));
    second.close();
}

// ---------------------------------------------------------------- the calls

#[test]
fn a_life_is_called_in_the_servers_order() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let heard = Arc::new(Heard::default());
    let host = library(wsrep_loader)
        .unwrap()
        .init(&config(dir.path(), "a=1"), heard.clone())
        .unwrap_or_else(|error| panic!("{error}"));
    host.connect("c", "gcomm://", true).unwrap();
    assert!(matches!(
        host.connect("c\0", "", false),
        Err(HostError::ZeroByte(_))
    ));
    let data_dir = format!("{}/", dir.path().display());
    assert_eq!(
        calls(),
        [
            format!(
                "init eins|127.0.0.1:24510|127.0.0.1:24510|{data_dir}|a=1|4|\
                 00000000-0000-0000-0000-000000000000:-1|None"
            ),
            "capabilities".into(),
            "connect c|gcomm://||true".into(),
        ]
    );

    assert_eq!(host.options(), "a = 1; b.c = zwei; ");
    assert_eq!(host.last_committed().unwrap(), 34);
    let stats = host.stats();
    let stats: Vec<_> = stats.iter().map(|(n, v)| format!("{n}={v}")).collect();
    assert_eq!(
        stats,
        [
            "cluster_status=Primary",
            "cluster_size=3",
            "huge=9223372036854775807",
            "cert_interval=1.5",
            "local_state_comment=",
        ]
    );
    host.disconnect().unwrap();
    calls();
    host.close();
    assert_eq!(calls(), ["close"]);
    assert_eq!(heard.take(), [""; 0]);
}

#[test]
fn an_applier_hears_views_and_applies() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (host, heard) = start(wsrep_loader, dir.path());
    let state_id = Gtid {
        uuid: HISTORY,
        seqno: 4,
    };
    let mut view = View::last(state_id, 0, 4);
    script(vec![
        Step::Connected(view.clone()),
        Step::View(
            {
                view.status = ViewStatus::Primary;
                view.members = vec![MemberInfo {
                    id: NODE,
                    name: "eins".into(),
                    incoming: "AUTO".into(),
                }];
                view
            },
            None,
        ),
        Step::Synced,
        Step::Log("a line"),
        Step::Apply {
            seqno: 5,
            payload: b"hot".to_vec(),
        },
    ]);
    let mark = CallMark::default();
    assert_eq!(host.recv(&mark), Status::ConnFail);
    assert_eq!(mark.get(), Call::None);
    assert_eq!(
        calls(),
        [
            "recv",
            "step Ok(())",
            "last_committed_id",
            "step Ok(())",
            "step Ok(())",
            "step logged",
            "commit_order_enter 77 [remote 5] 5",
            "commit_order_leave 77 [remote 5] 5 none",
            "step ApplyResult { ok: true, exit_loop: false } count 1",
        ]
    );
    assert_eq!(
        heard.take(),
        [
            "connected ViewSummary { seqno: 4, primary: false, members: 0 }",
            "view ViewSummary { seqno: 4, primary: true, members: 1 }",
            "synced",
            "log 2 a line",
            "ordered 5 77 passed true hot",
        ]
    );
    host.close();
}

#[test]
fn a_transaction_goes_from_its_keys_to_its_release() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (host, heard) = start(wsrep_loader, dir.path());
    let mark = CallMark::default();
    let outcome = host.transaction(&transaction(&[b"k", b"l"], b"abc"), &mark);
    assert_eq!(outcome.end, End::Committed);
    let trx = "[local bench/t/k:Exclusive,bench/t/l:Exclusive abc]";
    assert_eq!(
        calls(),
        [
            "append_key 1 bench/t/k:Exclusive".into(),
            "append_key 1 bench/t/l:Exclusive".into(),
            "append_data 1 3 Ordered".into(),
            format!("certify 7 1 0x41 entry true -1 {} {trx}", u64::MAX),
            format!("commit_order_enter 1 {trx} 12"),
            format!("commit_order_leave 1 {trx} 12 none"),
            "release 1 count 1".into(),
        ]
    );
    assert_eq!(heard.take(), ["ordered 12 1 passed true abc"]);
    // The next one has an id of its own.
    host.transaction(&transaction(&[], b"d"), &mark);
    assert_eq!(calls()[0], "append_data 2 1 Ordered");
    assert_eq!(mark.get(), Call::None);
    host.close();
}

#[test]
fn an_aborted_transaction_is_replayed() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (host, heard) = start(aborting, dir.path());
    let outcome = host.transaction(&transaction(&[], b"abc"), &CallMark::default());
    // The toy applies the replay and then says that it has failed certification.
    assert_eq!(outcome.end, End::CertificationFailed);
    assert_eq!(
        calls(),
        [
            "append_data 1 3 Ordered",
            "replay_trx 1 [local  abc]",
            "commit_order_enter 1 [local  abc] -1",
            "commit_order_leave 1 [local  abc] -1 none",
            "step ApplyResult { ok: true, exit_loop: false }",
            "commit_order_enter 1 [local  abc] 12",
            "sync_wait Some(11) 2147483647",
            "commit_order_leave 1 [local  abc] 12 none",
            "release 1 count 1",
        ]
    );
    assert_eq!(
        heard.take(),
        [
            format!("ordered -1 {} passed true again", u64::MAX),
            format!("ordered 12 {} passed false abc", u64::MAX),
        ]
    );
    host.close();
}

#[test]
fn a_state_transfer_hands_over_a_position() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (host, heard) = start(wsrep_loader, dir.path());
    let mut request = b"bench\0".to_vec();
    request.extend(
        dir.path()
            .join("state-transfer")
            .as_os_str()
            .as_encoded_bytes(),
    );
    request.push(0);
    script(vec![
        Step::RequestSst,
        Step::Donate(b"rsync\0/x\0".to_vec(), false),
        Step::Donate(request.clone(), false),
    ]);
    host.recv(&CallMark::default());
    // Waits for both sides.
    host.close();
    let position = format!("{HISTORY}:5");
    let mut seen = calls();
    assert_eq!(seen.pop().as_deref(), Some("close"));
    assert_eq!(seen[1], format!("step Ok({request:?})"));
    assert!(seen[2].starts_with("step Err"), "{}", seen[2]);
    assert!(seen.contains(&format!("sst_sent {position} 0")), "{seen:?}");
    assert!(
        seen.contains(&format!("sst_received {position} None 0")),
        "{seen:?}"
    );
    // The toy refuses every `sst_sent`.
    assert_eq!(
        heard.take(),
        [
            "violation: the donor got the request \"rsync\\0/x\\0\", which no joiner made".into(),
            format!("violation: sst_sent at {position} answered ConnFail"),
        ]
    );
}

// ---------------------------------------------------------------- what must not happen

#[test]
fn an_unknown_status_is_reported_and_counts_as_a_failure() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (host, heard) = start(answering_nonsense, dir.path());
    match host.disconnect() {
        Err(HostError::Call { call, status }) => {
            assert_eq!((call, status), ("disconnect", Status::NodeFail));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        heard.take(),
        ["violation: disconnect answered 4711, which is none of the interface's statuses"]
    );
    host.close();
}

#[test]
fn a_dropped_host_keeps_what_the_provider_may_use() {
    let name = "a_dropped_host_keeps_what_the_provider_may_use";
    if std::env::var_os(CHILD).is_some() {
        let dir = tempfile::tempdir().unwrap();
        let (host, heard) = start(wsrep_loader, dir.path());
        drop(host);
        // The toy's server calls back as if nothing had happened.
        let server = support::toy::server().expect("the toy has it");
        server.log(dromon_wsrep::LogLevel::Info, "still here");
        assert_eq!(server.synced(), Ok(()));
        assert_eq!(heard.take(), ["log 3 still here", "synced"]);
        return;
    }
    let output = child(name);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {stderr}", output.status);
}

#[test]
fn a_panic_in_an_event_ends_the_process() {
    let name = "a_panic_in_an_event_ends_the_process";
    if std::env::var_os(CHILD).is_some() {
        // SAFETY: a plain system call; keeps the abort from leaving a core file.
        unsafe {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            libc::setrlimit(libc::RLIMIT_CORE, ptr::from_ref(&none));
        }
        let dir = tempfile::tempdir().unwrap();
        let heard = Arc::new(Heard {
            panics: true,
            ..Heard::default()
        });
        let library = library(wsrep_loader).unwrap();
        let host = library.init(&config(dir.path(), ""), heard).ok().unwrap();
        script(vec![Step::Synced]);
        host.recv(&CallMark::default());
        return;
    }
    let output = child(name);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.signal(),
        Some(libc::SIGABRT),
        "{} {stderr}",
        output.status
    );
    assert!(stderr.contains("A panic in synced_cb"), "{stderr}");
}

/// Runs one of these tests in a process of its own, which may be lost.
fn child(test: &str) -> std::process::Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap()
}
