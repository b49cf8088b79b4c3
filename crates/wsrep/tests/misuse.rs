//! Arguments the interface forbids, calls before `init` and after `free`, and panics.

mod support;

use std::ffi::CStr;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::ptr;

use dromon_wsrep::abi::*;
use dromon_wsrep::{Gtid, Status, TrxMeta, flags};
use support::server::*;
use support::toy::{Step, calls, panic_in, script};

const CHILD: &str = "DROMON_WSREP_CHILD";
const FAIL: Status = Status::NodeFail;

/// Calls everything with correct arguments and expects each call to fail in its way.
fn expect_every_call_to_fail(f: &wsrep_t, h: *mut wsrep_t) {
    let mut ws = handle(5);
    let mut meta = TrxMeta::UNDEFINED;
    meta.gtid.seqno = 1234;
    let mut gtid = Gtid::UNDEFINED;
    let mut victim = 7;
    let data = buf(b"d");
    // SAFETY: everything passed lives through the calls.
    unsafe {
        assert_eq!((f.capabilities)(h), 0);
        assert_eq!((f.options_set)(h, c"a=1".as_ptr()), FAIL);
        let options = (f.options_get)(h);
        assert_eq!(CStr::from_ptr(options), c"");
        libc::free(options.cast());
        let text = c"x".as_ptr();
        assert_eq!((f.connect)(h, text, text, text, 0), FAIL);
        assert_eq!((f.disconnect)(h), FAIL);
        assert_eq!((f.recv)(h, RECV_CTX), FAIL);
        assert_eq!((f.certify)(h, 1, &mut ws, 0x41, &mut meta), FAIL);
        assert!(meta.gtid.is_undefined());
        assert_eq!((f.commit_order_enter)(h, &ws, &meta), FAIL);
        assert_eq!((f.commit_order_leave)(h, &ws, &meta, &data), FAIL);
        assert_eq!((f.replay_trx)(h, &ws, RECV_CTX), FAIL);
        assert_eq!((f.abort_certification)(h, 1, 2, &mut victim), FAIL);
        assert_eq!(victim, -1);
        assert_eq!((f.rollback)(h, 1, ptr::null()), FAIL);
        let key = wsrep_key_t {
            key_parts: &data,
            key_parts_num: 1,
        };
        assert_eq!((f.append_key)(h, &mut ws, &key, 1, 0, 1), FAIL);
        assert_eq!((f.append_data)(h, &mut ws, &data, 1, 0, 1), FAIL);
        assert!(ws.opaque.is_null());
        gtid.seqno = 5;
        assert_eq!((f.sync_wait)(h, ptr::null_mut(), 1, &mut gtid), FAIL);
        assert!(gtid.is_undefined());
        gtid.seqno = 5;
        assert_eq!((f.last_committed_id)(h, &mut gtid), FAIL);
        assert!(gtid.is_undefined());
        assert_eq!(
            (f.to_execute_start)(h, 1, &key, 1, &data, 1, 0x41, &mut meta),
            FAIL
        );
        assert_eq!((f.to_execute_end)(h, 1, ptr::null()), FAIL);
        assert_eq!((f.sst_sent)(h, &gtid, 0), FAIL);
        assert_eq!((f.sst_received)(h, &gtid, ptr::null(), 0), FAIL);
        let stats = (f.stats_get)(h);
        assert!((*stats).name.is_null());
        (f.stats_free)(h, stats);
        (f.stats_reset)(h);
        assert_eq!((f.pause)(h), -1);
        assert_eq!((f.resume)(h), FAIL);
        assert_eq!((f.desync)(h), FAIL);
        assert_eq!((f.resync)(h), FAIL);
    }
}

#[test]
fn calls_before_init_after_free_and_without_a_handle_fail_quietly() {
    let host = Host::load();
    let f = host.f();
    expect_every_call_to_fail(&f, host.h);
    assert_eq!(host.init(""), Status::Ok);
    // SAFETY: as the server calls it.
    unsafe { (f.free)(host.h) };
    calls();
    expect_every_call_to_fail(&f, host.h);
    expect_every_call_to_fail(&f, ptr::null_mut());
    // SAFETY: NULL is checked.
    unsafe {
        (f.free)(ptr::null_mut());
        assert_eq!((f.init)(ptr::null_mut(), ptr::null()), FAIL);
    }
    assert!(calls().is_empty());
    assert!(lines().is_empty());
}

#[test]
fn forbidden_arguments_are_refused_and_named() {
    let host = Host::start();
    let f = host.f();
    let h = host.h;
    let mut ws = handle(5);
    let mut meta = TrxMeta::UNDEFINED;
    let data = buf(b"d");
    let hole = wsrep_buf_t {
        ptr: ptr::null(),
        len: 3,
    };
    let vast = wsrep_buf_t {
        ptr: data.ptr,
        len: usize::MAX,
    };
    let key = |part: &wsrep_buf_t, parts| wsrep_key_t {
        key_parts: part,
        key_parts_num: parts,
    };
    let odd = ptr::without_provenance_mut::<TrxMeta>(0x1001);
    let expect = |status: Status, what: &str| {
        assert_eq!(status, FAIL, "{what}");
        let logged = lines();
        assert_eq!(logged.len(), 1, "{what}: {logged:?}");
        assert_eq!(logged[0].0, 1);
        assert!(logged[0].1.contains(what), "{what}: {}", logged[0].1);
    };
    // SAFETY: what is not NULL or marked bad lives through the calls; the rest must be
    // noticed before it is used.
    unsafe {
        let append_key = f.append_key;
        expect(
            append_key(h, ptr::null_mut(), &key(&data, 1), 1, 0, 1),
            "transaction handle",
        );
        expect(
            append_key(h, &mut ws, ptr::null(), 1, 0, 1),
            "NULL for the keys",
        );
        expect(
            append_key(h, &mut ws, &key(&data, 1), 1, 4, 1),
            "unknown key type",
        );
        expect(
            append_key(h, &mut ws, &key(&hole, 1), 1, 0, 1),
            "a part of a key",
        );
        expect(
            append_key(h, &mut ws, &key(&vast, 1), 1, 0, 1),
            "a part of a key",
        );
        expect(
            append_key(h, &mut ws, &key(&data, 1025), 1, 0, 1),
            "1024 parts",
        );
        let no_parts = wsrep_key_t {
            key_parts: ptr::null(),
            key_parts_num: 2,
        };
        expect(
            append_key(h, &mut ws, &no_parts, 1, 0, 1),
            "the parts of a key",
        );
        let append_data = f.append_data;
        expect(
            append_data(h, ptr::null_mut(), &data, 1, 0, 1),
            "transaction handle",
        );
        expect(
            append_data(h, &mut ws, ptr::null(), 1, 0, 1),
            "NULL for the data",
        );
        expect(append_data(h, &mut ws, &hole, 1, 0, 1), "a piece of data");
        expect(
            append_data(h, &mut ws, &data, usize::MAX, 0, 1),
            "NULL for the data",
        );
        expect(append_data(h, &mut ws, &data, 1, 3, 1), "unknown data type");
        assert!(ws.opaque.is_null());
        // A handle that was lent to the server is not one to collect in.
        let lent = ptr::without_provenance_mut(0x1001);
        let mut lent = wsrep_ws_handle_t {
            trx_id: 5,
            opaque: lent,
        };
        expect(append_data(h, &mut lent, &data, 1, 0, 1), "remote event");
        expect(
            (f.certify)(h, 1, &mut lent, 0x41, &mut meta),
            "remote event",
        );

        expect(
            (f.certify)(h, 1, ptr::null_mut(), 0x41, &mut meta),
            "transaction handle",
        );
        expect(
            (f.certify)(h, 1, &mut ws, 0x41, ptr::null_mut()),
            "metadata",
        );
        expect((f.certify)(h, 1, &mut ws, 0x41, odd), "metadata");
        let enter = f.commit_order_enter;
        expect(enter(h, ptr::null(), &meta), "transaction handle");
        expect(enter(h, &ws, &meta), "without a transaction");
        expect(enter(h, &ws, ptr::null()), "metadata");
        let leave = f.commit_order_leave;
        expect(leave(h, ptr::null(), &meta, &data), "transaction handle");
        expect(leave(h, &ws, &meta, &data), "without a transaction");
        expect(leave(h, &ws, ptr::null(), &data), "metadata");
        expect(leave(h, &ws, &meta, &vast), "impossible size");
        expect((f.release)(h, ptr::null_mut()), "transaction handle");
        expect((f.replay_trx)(h, &ws, RECV_CTX), "without a transaction");
        expect((f.replay_trx)(h, &ws, ptr::null_mut()), "applier context");
        expect(
            (f.abort_certification)(h, 1, 2, ptr::null_mut()),
            "victim's seqno",
        );
        expect((f.last_committed_id)(h, ptr::null_mut()), "position");
        expect((f.sst_sent)(h, ptr::null(), 0), "position");
        expect((f.sst_received)(h, ptr::null(), ptr::null(), 0), "position");
        expect((f.options_set)(h, ptr::null()), "NULL for the options");
        let x = c"x".as_ptr();
        expect((f.connect)(h, ptr::null(), x, x, 0), "cluster name");
        expect((f.connect)(h, x, ptr::null(), x, 0), "cluster address");
        expect((f.recv)(h, ptr::null_mut()), "receiver context");
        let start = f.to_execute_start;
        expect(
            start(h, 1, &key(&hole, 1), 1, &data, 1, 0, &mut meta),
            "a part of a key",
        );
        expect(
            start(h, 1, &key(&data, 1), 1, &hole, 1, 0, &mut meta),
            "a piece of data",
        );
        expect(
            start(h, 1, &key(&data, 1), 1, &data, 1, 0, ptr::null_mut()),
            "metadata",
        );
        expect((f.to_execute_end)(h, 1, &vast), "impossible size");
    }
    let reached: Vec<String> = calls();
    assert!(reached.is_empty(), "reached the provider: {reached:?}");
}

/// Runs one call into a panicking toy and gives back what the server sees of it.
type Call = fn(&wsrep_t, *mut wsrep_t) -> i64;

/// Every call whose panic only fails that call, with the answer expected.
const ANSWERING: &[(&str, i64, Call)] = {
    const NO: i64 = Status::NodeFail as i64;
    // SAFETY (all): everything passed lives through the calls.
    &[
        ("capabilities", 0, |f, h| unsafe {
            (f.capabilities)(h) as i64
        }),
        ("options_set", NO, |f, h| unsafe {
            (f.options_set)(h, c"".as_ptr()) as i64
        }),
        ("options_get", 0, |f, h| unsafe {
            let text = (f.options_get)(h);
            let len = libc::strlen(text);
            libc::free(text.cast());
            len as i64
        }),
        ("connect", NO, |f, h| unsafe {
            (f.connect)(h, c"".as_ptr(), c"".as_ptr(), ptr::null(), 0) as i64
        }),
        ("disconnect", NO, |f, h| unsafe { (f.disconnect)(h) as i64 }),
        ("append_key", NO, |f, h| unsafe {
            let part = buf(b"k");
            let key = wsrep_key_t {
                key_parts: &part,
                key_parts_num: 1,
            };
            (f.append_key)(h, &mut handle(1), &key, 1, 0, 1) as i64
        }),
        ("append_data", NO, |f, h| unsafe {
            (f.append_data)(h, &mut handle(1), &buf(b"k"), 1, 0, 1) as i64
        }),
        ("certify", NO, |f, h| unsafe {
            // Without TRX_END the toy does not order it.
            let mut meta = TrxMeta::UNDEFINED;
            let status = (f.certify)(h, 1, &mut handle(1), 0, &mut meta);
            assert!(meta.gtid.is_undefined());
            status as i64
        }),
        ("abort_certification", NO, |f, h| unsafe {
            let mut seqno = 9;
            let status = (f.abort_certification)(h, 1, 1, &mut seqno);
            assert_eq!(seqno, -1);
            status as i64
        }),
        ("rollback", NO, |f, h| unsafe {
            (f.rollback)(h, 1, ptr::null()) as i64
        }),
        ("sync_wait", NO, |f, h| unsafe {
            (f.sync_wait)(h, ptr::null_mut(), 1, ptr::null_mut()) as i64
        }),
        ("last_committed_id", NO, |f, h| unsafe {
            (f.last_committed_id)(h, &mut Gtid::default()) as i64
        }),
        ("sst_sent", NO, |f, h| unsafe {
            (f.sst_sent)(h, &Gtid::UNDEFINED, 0) as i64
        }),
        ("sst_received", NO, |f, h| unsafe {
            (f.sst_received)(h, &Gtid::UNDEFINED, ptr::null(), 0) as i64
        }),
        ("stats_get", 1, |f, h| unsafe {
            let stats = (f.stats_get)(h);
            let empty = (*stats).name.is_null();
            (f.stats_free)(h, stats);
            empty.into()
        }),
        ("stats_reset", 0, |f, h| unsafe {
            (f.stats_reset)(h);
            0
        }),
        ("pause", -1, |f, h| unsafe { (f.pause)(h) }),
        ("resume", NO, |f, h| unsafe { (f.resume)(h) as i64 }),
        ("desync", NO, |f, h| unsafe { (f.desync)(h) as i64 }),
        ("resync", NO, |f, h| unsafe { (f.resync)(h) as i64 }),
        ("parameters", NO, |_, h| unsafe {
            let mut service = wsrep_config_service_v1_t {
                get_parameters: None,
            };
            wsrep_init_config_service_v1(&mut service);
            service.get_parameters.unwrap()(h, Some(parameter), APP_CTX) as i64
        }),
    ]
};

#[test]
fn a_panic_fails_the_call_and_is_logged_with_its_place() {
    let host = Host::start();
    let f = host.f();
    for &(name, expected, call) in ANSWERING {
        panic_in(Some(name));
        assert_eq!(call(&f, host.h), expected, "{name}");
        let logged = lines();
        assert_eq!(logged.len(), 2, "{name}: {logged:?}");
        let place = format!("{}:", file!().replace("misuse", "support/toy"));
        assert!(logged[0].1.contains(&place), "{name}: {logged:?}");
        let text = format!("toy panic in {name} with a second line");
        assert!(logged[0].1.contains(&text), "{name}: {logged:?}");
        assert!(logged[1].1.contains("panicked in "), "{name}: {logged:?}");
    }
    panic_in(None);
    // SAFETY: as the server calls it.
    assert_eq!(
        unsafe { (f.resume)(host.h) },
        Status::Ok,
        "the node goes on"
    );
}

#[test]
fn a_panic_in_init_or_close_leaves_nothing_behind() {
    let host = Host::load();
    panic_in(Some("init"));
    assert_eq!(host.init(""), FAIL);
    assert!(host.f().ctx.is_null());
    assert_eq!(lines().len(), 2);
    panic_in(Some("close"));
    assert_eq!(host.init(""), Status::Ok);
    // SAFETY: as the server calls it.
    unsafe { (host.f().free)(host.h) };
    assert!(host.f().ctx.is_null());
    assert_eq!(lines().len(), 2);
}

/// Every call whose panic ends the process: nobody could release the seqno.
const ABORTING: &[(&str, Call)] = {
    // SAFETY (all): everything passed lives through the calls.
    &[
        ("recv", |f, h| unsafe { (f.recv)(h, RECV_CTX) as i64 }),
        ("step", |f, h| unsafe {
            // Inside recv, with a callback done.
            script(vec![Step::Synced]);
            (f.recv)(h, RECV_CTX) as i64
        }),
        ("certify", |f, h| unsafe {
            // The toy orders this one first.
            let end = flags::TRX_END;
            (f.certify)(h, 1, &mut handle(1), end, &mut TrxMeta::default()) as i64
        }),
        ("to_execute_start", |f, h| unsafe {
            let meta = &mut TrxMeta::default();
            (f.to_execute_start)(h, 1, ptr::null(), 0, ptr::null(), 0, 0, meta) as i64
        }),
        ("to_execute_end", |f, h| unsafe {
            (f.to_execute_end)(h, 1, ptr::null()) as i64
        }),
        ("commit_order_enter", |f, h| unsafe {
            let mut ws = handle(1);
            (f.append_data)(h, &mut ws, &buf(b"d"), 1, 0, 1);
            (f.commit_order_enter)(h, &ws, &TrxMeta::UNDEFINED) as i64
        }),
        ("commit_order_leave", |f, h| unsafe {
            let mut ws = handle(1);
            (f.append_data)(h, &mut ws, &buf(b"d"), 1, 0, 1);
            (f.commit_order_leave)(h, &ws, &TrxMeta::UNDEFINED, ptr::null()) as i64
        }),
        ("release", |f, h| unsafe {
            let mut ws = handle(1);
            (f.append_data)(h, &mut ws, &buf(b"d"), 1, 0, 1);
            (f.release)(h, &mut ws) as i64
        }),
        ("replay_trx", |f, h| unsafe {
            let mut ws = handle(1);
            (f.append_data)(h, &mut ws, &buf(b"d"), 1, 0, 1);
            (f.replay_trx)(h, &ws, RECV_CTX) as i64
        }),
    ]
};

#[test]
fn a_panic_that_may_hold_a_seqno_aborts_after_logging() {
    if let Ok(child) = std::env::var(CHILD) {
        // SAFETY: a plain system call; keeps the aborts from leaving core files.
        unsafe {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
        }
        let host = Host::start();
        let (name, call) = ABORTING.iter().find(|(name, _)| *name == child).unwrap();
        panic_in(Some(name));
        let answer = call(&host.f(), host.h);
        println!("{name} came back with {answer}");
        return;
    }
    for (name, _) in ABORTING {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "a_panic_that_may_hold_a_seqno_aborts_after_logging",
            ])
            .arg("--nocapture")
            .env(CHILD, name)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.signal(),
            Some(libc::SIGABRT),
            "{name}: {} {stderr}",
            output.status
        );
        assert!(
            stderr.contains(&format!("toy panic in {name}")),
            "{name}: {stderr}"
        );
        assert!(
            stderr.contains("[0] The provider panicked in "),
            "{name}: {stderr}"
        );
    }
}
