//! Every function pointer, called as the server calls it, through the exported symbols.

mod support;

use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::Ordering;

use dromon_wsrep::abi::*;
use dromon_wsrep::{Gtid, MemberInfo, Status, Stid, TrxMeta, Uuid, View, ViewStatus, flags};
use support::server::*;
use support::toy::{HISTORY, NODE, Step, calls, script, server};

const UNDEFINED_META: TrxMeta = TrxMeta::UNDEFINED;

#[test]
fn the_loader_fills_garbage_memory() {
    let host = Host::load();
    // SAFETY: the exported symbol is a pointer to text.
    let exported = unsafe { CStr::from_ptr(wsrep_interface_version) };
    assert_eq!(exported, c"26");
    let f = host.f();
    for (text, expected) in [
        (f.version, c"26"),
        (f.provider_name, c"Toy"),
        (f.provider_version, c"26.4.24(r0)"),
        (f.provider_vendor, c"Nobody"),
    ] {
        // SAFETY: texts of the library.
        assert_eq!(unsafe { CStr::from_ptr(text) }, expected);
    }
    assert!(f.ctx.is_null() && f.dlh.is_null());
    // No pointer of the structure is left as garbage or NULL, except the two above.
    // SAFETY: 360 bytes of initialised memory.
    let words = unsafe { std::slice::from_raw_parts(host.h.cast::<u64>(), 45) };
    let garbage = u64::from_ne_bytes([GARBAGE; 8]);
    assert!(
        words[..43]
            .iter()
            .all(|word| *word != garbage && *word != 0)
    );
    // SAFETY: the loader checks for NULL.
    assert_eq!(unsafe { wsrep_loader(ptr::null_mut()) }, libc::EINVAL);
}

#[test]
fn init_copies_its_arguments() {
    let host = Host::load();
    let position = Gtid {
        uuid: HISTORY,
        seqno: 99,
    };
    let mut args = args(c"a=1; b=2", &position);
    let state = buf(b"st");
    args.state = &state;
    // SAFETY: the arguments live through the call.
    assert_eq!(unsafe { (host.f().init)(host.h, &args) }, Status::Ok);
    assert_eq!(
        calls(),
        ["init eins|127.0.0.1:24510|AUTO|/var/lib/mysql/|a=1; b=2|4|\
             07070707-0707-0707-0707-070707070707:99|Some([115, 116])"]
    );
    assert_eq!(host.init(""), Status::NodeFail, "a second init is refused");
    assert!(calls().is_empty());
}

#[test]
fn init_takes_null_texts_and_no_position() {
    let host = Host::load();
    let mut args = args(c"", &Gtid::UNDEFINED);
    args.options = ptr::null();
    args.node_incoming = ptr::null();
    args.state_id = ptr::null();
    // SAFETY: the arguments live through the call.
    assert_eq!(unsafe { (host.f().init)(host.h, &args) }, Status::Ok);
    let nil = "00000000-0000-0000-0000-000000000000:-1";
    assert_eq!(
        calls(),
        [format!(
            "init eins|127.0.0.1:24510||/var/lib/mysql/||4|{nil}|None"
        )]
    );
}

/// The server drops what a line has beyond 1016 bytes, and the last words say what to do.
#[test]
fn a_long_message_reaches_the_log_with_its_end() {
    let _host = Host::start();
    let long = "Wörter, die alle ankommen sollen. ".repeat(3000 / 35) + "Das ist\nzu tun";
    assert!(long.len() > 2900);
    let server = server().expect("it runs");
    server.log(dromon_wsrep::LogLevel::Error, &long);
    let mut whole = String::new();
    for (i, (level, line)) in lines().into_iter().enumerate() {
        assert_eq!(level, dromon_wsrep::LogLevel::Error as u32);
        assert!(line.len() <= 1016, "{} bytes", line.len());
        let mark = if i == 0 { "" } else { "… " };
        let text = line.strip_prefix(mark).expect("who goes on says so");
        assert!(!text.starts_with(' '), "{text}");
        whole.push_str(text);
    }
    assert_eq!(whole, long.replace('\n', " "));
}

#[test]
fn a_failed_init_leaves_a_handle_that_can_be_freed_and_started_again() {
    let host = Host::load();
    assert_eq!(host.init("fail"), Status::Fatal);
    assert!(host.f().ctx.is_null());
    let late = server().unwrap();
    late.log(dromon_wsrep::LogLevel::Error, "too late");
    assert!(late.synced().is_err());
    assert!(lines().is_empty() && seen().is_empty());
    // SAFETY: as the server calls it.
    unsafe {
        (host.f().free)(host.h);
        (host.f().free)(host.h);
    }
    assert_eq!(host.init("fail with ok"), Status::NodeFail);
    assert_eq!(host.init(""), Status::Ok);
    assert_eq!(calls().len(), 3, "three times init, no close");
}

#[test]
fn init_refuses_missing_callbacks_and_missing_places() {
    let host = Host::load();
    // SAFETY: the arguments live through the calls.
    unsafe {
        let init = host.f().init;
        assert_eq!(init(host.h, ptr::null()), Status::NodeFail);
        let mut incomplete = args(c"", &Gtid::UNDEFINED);
        incomplete.apply_cb = None;
        assert_eq!(init(host.h, &incomplete), Status::NodeFail);
        let logged = lines();
        assert!(logged[0].1.contains("no apply_cb"), "{logged:?}");
        incomplete.logger_cb = None;
        assert_eq!(init(host.h, &incomplete), Status::NodeFail);
        let mut incomplete = args(c"", &Gtid::UNDEFINED);
        incomplete.data_dir = ptr::null();
        assert_eq!(init(host.h, &incomplete), Status::NodeFail);
        let logged = lines();
        assert!(
            logged[0].1.contains("NULL for the data directory"),
            "{logged:?}"
        );
    }
    assert!(calls().is_empty());
}

#[test]
fn free_closes_once_and_silences_the_server_handle() {
    let host = Host::start();
    // SAFETY: as the server calls it.
    unsafe {
        (host.f().free)(host.h);
        assert!(host.f().ctx.is_null());
        (host.f().free)(host.h);
    }
    assert_eq!(calls(), ["close"]);
    let late = server().unwrap();
    late.log(dromon_wsrep::LogLevel::Error, "too late");
    late.event("event", "{}");
    assert!(late.connected(&View::last(Gtid::UNDEFINED, 0, 4)).is_err());
    assert!(late.sst_request().is_err());
    assert!(!late.allowed(dromon_wsrep::AllowlistKey::Ip, "::1"));
    assert!(lines().is_empty() && seen().is_empty());
}

#[test]
fn a_local_transaction_from_first_key_to_release() {
    let host = Host::start();
    let f = host.f();
    let mut ws = handle(5);
    let mut meta = UNDEFINED_META;
    // The server passes what the last transaction left behind.
    meta.gtid.seqno = 1234;
    meta.stid.trx = 4711;
    let parts = [buf(b"db"), buf(b"t"), buf(b"r1")];
    let long: Vec<_> = [b"1", b"2", b"3", b"4", b"5"].map(|p| buf(p)).into();
    let none: [wsrep_buf_t; 0] = [];
    let key = |parts: &[wsrep_buf_t]| wsrep_key_t {
        key_parts: parts.as_ptr(),
        key_parts_num: parts.len(),
    };
    // SAFETY: everything passed lives through the calls.
    unsafe {
        let two = [key(&parts), key(&long)];
        assert_eq!(
            (f.append_key)(host.h, &mut ws, two.as_ptr(), 2, 3, 1),
            Status::Ok
        );
        // The first failing key ends the call.
        let bad = [key(&none), key(&parts)];
        assert_eq!(
            (f.append_key)(host.h, &mut ws, bad.as_ptr(), 2, 0, 1),
            Status::TrxFail
        );
        let data = [buf(b"eins "), buf(b""), buf(b"zwei")];
        assert_eq!(
            (f.append_data)(host.h, &mut ws, data.as_ptr(), 3, 0, 1),
            Status::Ok
        );
        assert_eq!(
            (f.certify)(
                host.h,
                8,
                &mut ws,
                flags::TRX_START | flags::TRX_END,
                &mut meta
            ),
            Status::Ok
        );
        assert_eq!(
            meta,
            TrxMeta {
                gtid: Gtid {
                    uuid: HISTORY,
                    seqno: 12
                },
                stid: Stid {
                    node: NODE,
                    trx: 5,
                    conn: 8
                },
                depends_on: 11,
            }
        );
        assert_eq!((f.commit_order_enter)(host.h, &ws, &meta), Status::Ok);
        let error = buf(b"Error_code: 1050;\0");
        assert_eq!(
            (f.commit_order_leave)(host.h, &ws, &meta, &error),
            Status::Ok
        );
        assert_eq!(
            (f.commit_order_leave)(host.h, &ws, &meta, ptr::null()),
            Status::Ok
        );
        assert!(!ws.opaque.is_null());
        assert_eq!((f.release)(host.h, &mut ws), Status::Ok);
        assert!(ws.opaque.is_null());
    }
    let trx = "local db/t/r1:Exclusive,1/2/3/4/5:Exclusive eins zwei";
    assert_eq!(
        calls(),
        [
            "append_key 5 db/t/r1:Exclusive".to_string(),
            "append_key 5 1/2/3/4/5:Exclusive".into(),
            "append_key 5 :Shared".into(),
            "append_data 5 5 Ordered".into(),
            "append_data 5 0 Ordered".into(),
            "append_data 5 4 Ordered".into(),
            format!("certify 8 5 0x41 entry true -1 4711 [{trx}]"),
            format!("commit_order_enter 5 [{trx}] 12"),
            format!("commit_order_leave 5 [{trx}] 12 \"Error_code: 1050;\\0\""),
            format!("commit_order_leave 5 [{trx}] 12 none"),
            "release 5 count 1".into(),
        ]
    );
}

#[test]
fn an_unordered_certify_leaves_no_half_gtid() {
    let host = Host::start();
    let mut ws = handle(5);
    let mut meta = UNDEFINED_META;
    meta.gtid.seqno = 1234;
    meta.depends_on = 1233;
    // SAFETY: everything passed lives through the call.
    let status = unsafe { (host.f().certify)(host.h, 8, &mut ws, 0, &mut meta) };
    assert_eq!(status, Status::ConnFail);
    assert!(meta.gtid.is_undefined());
    assert_eq!((meta.depends_on, meta.stid.trx), (-1, 5));
}

#[test]
fn release_without_a_transaction_does_not_reach_the_provider() {
    let host = Host::start();
    // SAFETY: NULL handles of every kind.
    unsafe {
        let release = host.f().release;
        assert_eq!(release(host.h, &mut handle(u64::MAX)), Status::Ok);
        assert_eq!(release(ptr::null_mut(), &mut handle(1)), Status::Ok);
        assert_eq!(release(host.h, ptr::null_mut()), Status::NodeFail);
    }
    assert!(calls().is_empty());
}

#[test]
fn an_isolated_statement() {
    let host = Host::start();
    let f = host.f();
    let parts = [buf(b"db"), buf(b"t")];
    let keys = [
        wsrep_key_t {
            key_parts: parts.as_ptr(),
            key_parts_num: 2,
        },
        wsrep_key_t {
            key_parts: parts.as_ptr(),
            key_parts_num: 1,
        },
    ];
    let data = [buf(b"ALTER "), buf(b"TABLE")];
    let mut meta = UNDEFINED_META;
    // SAFETY: everything passed lives through the calls.
    unsafe {
        let start = f.to_execute_start;
        assert_eq!(
            start(
                host.h,
                3,
                keys.as_ptr(),
                2,
                data.as_ptr(),
                2,
                0x41,
                &mut meta
            ),
            Status::Ok
        );
        assert_eq!(meta.gtid.seqno, 13);
        let empty = wsrep_buf_t {
            ptr: ptr::null(),
            len: 0,
        };
        assert_eq!((f.to_execute_end)(host.h, 3, &empty), Status::Ok);
        assert_eq!((f.to_execute_end)(host.h, 3, &buf(b"no")), Status::Ok);
        // No keys, no data.
        let status = start(host.h, 4, ptr::null(), 0, ptr::null(), 0, 0, &mut meta);
        assert_eq!(status, Status::Ok);
        assert_eq!(
            start(host.h, 4, ptr::null(), 1, ptr::null(), 0, 0, &mut meta),
            Status::NodeFail
        );
        assert!(meta.gtid.is_undefined());
    }
    assert_eq!(
        calls(),
        [
            "to_execute_start 3 db/t,db ALTER TABLE 0x41",
            "to_execute_end 3 none",
            "to_execute_end 3 \"no\"",
            "to_execute_start 4   0x0",
        ]
    );
}

#[test]
fn the_plain_calls() {
    let host = Host::start();
    let f = host.f();
    let h = host.h;
    // SAFETY: everything passed lives through the calls.
    unsafe {
        assert_eq!((f.capabilities)(h), 0x8001);
        assert_eq!((f.options_set)(h, c"k=v;".as_ptr()), Status::NotAllowed);
        let options = (f.options_get)(h);
        assert_eq!(CStr::from_ptr(options), c"a = 1; b.c = zwei; ");
        libc::free(options.cast());
        let (name, url) = (c"n".as_ptr(), c"gcomm://a".as_ptr());
        assert_eq!((f.connect)(h, name, url, c"x,".as_ptr(), 1), Status::Ok);
        assert_eq!((f.connect)(h, name, url, ptr::null(), 0), Status::Ok);
        assert_eq!((f.disconnect)(h), Status::Ok);

        let mut victim = 0;
        let status = (f.abort_certification)(h, -1, 6, &mut victim);
        assert_eq!((status, victim), (Status::NotAllowed, 41));
        assert_eq!((f.rollback)(h, 6, ptr::null()), Status::Ok);

        let mut upto = Gtid {
            uuid: HISTORY,
            seqno: 20,
        };
        let mut out = Gtid::UNDEFINED;
        assert_eq!(
            (f.sync_wait)(h, &mut upto, i32::MAX, ptr::null_mut()),
            Status::Ok
        );
        assert_eq!((f.sync_wait)(h, ptr::null_mut(), -1, &mut out), Status::Ok);
        assert_eq!(out.seqno, 33);
        assert_eq!((f.last_committed_id)(h, &mut out), Status::Ok);
        assert_eq!(out.seqno, 34);

        assert_eq!((f.sst_sent)(h, &Gtid::UNDEFINED, -255), Status::ConnFail);
        assert_eq!((f.sst_received)(h, &upto, ptr::null(), 0), Status::Ok);
        assert_eq!((f.sst_received)(h, &upto, &buf(b"s"), 0), Status::Ok);

        assert_eq!((f.pause)(h), -1, "no negative number but -1");
        assert_eq!((f.resume)(h), Status::Ok);
        assert_eq!((f.desync)(h), Status::Ok);
        assert_eq!((f.resync)(h), Status::Ok);
        (f.stats_reset)(h);
    }
    let history = HISTORY.to_string();
    assert_eq!(
        calls(),
        [
            "capabilities".to_string(),
            "options_set k=v;".into(),
            "options_get".into(),
            "connect n|gcomm://a|x,|true".into(),
            "connect n|gcomm://a||false".into(),
            "disconnect".into(),
            "abort_certification -1 6".into(),
            "rollback 6".into(),
            "sync_wait Some(20) 2147483647".into(),
            "sync_wait None -1".into(),
            "last_committed_id".into(),
            format!("sst_sent {}:-1 -255", Uuid::UNDEFINED),
            format!("sst_received {history}:20 None 0"),
            format!("sst_received {history}:20 Some([115]) 0"),
            "pause".into(),
            "resume".into(),
            "desync".into(),
            "resync".into(),
            "stats_reset".into(),
        ]
    );
}

#[test]
fn functions_the_server_never_calls_answer_harmlessly() {
    let host = Host::start();
    let f = host.f();
    let h = host.h;
    let null = ptr::null();
    // SAFETY: none of them looks at its arguments.
    unsafe {
        let no = Status::NotImplemented;
        assert_eq!((f.enc_set_key)(h, ptr::null()), no);
        assert_eq!((f.assign_read_view)(h, ptr::null_mut(), ptr::null()), no);
        assert_eq!(
            (f.preordered_collect)(h, ptr::null_mut(), ptr::null(), 0, 0),
            no
        );
        assert_eq!(
            (f.preordered_commit)(h, ptr::null_mut(), ptr::null(), 0, 0, 0),
            no
        );
        assert_eq!((f.snapshot)(h, ptr::null(), null), no);
        assert_eq!((f.lock)(h, null, 0, 0, 0), no);
        assert_eq!((f.unlock)(h, null, 0), no);
        assert_eq!((f.is_locked)(h, null, ptr::null_mut(), ptr::null_mut()), 0);
        assert_eq!((f.free_connection)(h, 1), Status::Ok);
    }
    assert!(calls().is_empty());
}

#[test]
fn status_variables() {
    let host = Host::start();
    let f = host.f();
    let mut shown = Vec::new();
    // SAFETY: the array ends with a NULL name; the type says which member is set.
    unsafe {
        let array = (f.stats_get)(host.h);
        let mut at = array;
        while !(*at).name.is_null() {
            let name = CStr::from_ptr((*at).name).to_str().unwrap();
            let value = match (*at).var_type {
                WSREP_VAR_STRING => format!("{:?}", CStr::from_ptr((*at).value.string)),
                WSREP_VAR_INT64 => (*at).value.int64.to_string(),
                WSREP_VAR_DOUBLE => (*at).value.double.to_string(),
                other => panic!("type {other}"),
            };
            shown.push(format!("{name}={value}"));
            at = at.add(1);
        }
        (f.stats_free)(host.h, array);
        (f.stats_free)(host.h, ptr::null_mut());
    }
    assert_eq!(
        shown,
        [
            "cluster_status=\"Primary\"",
            "cluster_size=3",
            "huge=9223372036854775807",
            "cert_interval=1.5",
            "local_state_comment=\"\"",
        ]
    );
}

fn member(i: u8, name: &str) -> MemberInfo {
    MemberInfo {
        id: Uuid([i; 16]),
        name: name.into(),
        incoming: format!("10.0.0.{i}:3306"),
    }
}

fn view_of(members: Vec<MemberInfo>) -> View {
    View {
        state_id: Gtid {
            uuid: HISTORY,
            seqno: 35,
        },
        view: 4,
        status: ViewStatus::Primary,
        capabilities: 0x817f,
        own_index: Some(1),
        members,
        proto_ver: 4,
    }
}

#[test]
fn recv_delivers_views_of_any_size_and_events() {
    let host = Host::start();
    let three = view_of(vec![
        member(1, "eins"),
        member(2, "zwei"),
        member(3, &"n".repeat(40)),
    ]);
    *REQUEST.lock().unwrap() = b"rsync\x00127.0.0.1:4444/rsync_sst\0".to_vec();
    script(vec![
        Step::Connected(three.clone()),
        Step::RequestSst,
        Step::View(three, Some(b"state".to_vec())),
        Step::Apply {
            seqno: 36,
            payload: b"events".to_vec(),
        },
        Step::Apply {
            seqno: 37,
            payload: Vec::new(),
        },
        Step::Donate(b"rsync\0addr".to_vec(), true),
        Step::Synced,
        Step::View(View::last(Gtid::UNDEFINED, 0x7f, 4), None),
    ]);
    assert_eq!(host.recv(), Status::ConnFail);
    let members = format!(
        "[01:eins:10.0.0.1:3306 02:zwei:10.0.0.2:3306 03:{}:10.0.0.3:3306]",
        "n".repeat(31)
    );
    let head = "07:35 view 4 status 0 caps 0x817f own 1 count 3 proto 4";
    assert_eq!(
        seen(),
        [
            format!("connected {head} {members}"),
            "sst_request".into(),
            format!("view {head} {members} state state last 34"),
            "apply 77 0x40 events 36 depends 35".into(),
            "apply 77 0x40 NULL/0 37 depends 36".into(),
            "sst_donate \"rsync\\0addr\\0\" at 5 state 0x0 0 bypass 1".into(),
            "synced".into(),
            "view 00:-1 view -1 status 1 caps 0x7f own -1 count 0 proto 4 [] state NULL/0 last 34"
                .into(),
        ]
    );
    let request = REQUEST.lock().unwrap().clone();
    assert_eq!(
        calls(),
        [
            "recv".to_string(),
            "step Ok(())".into(),
            format!("step Ok({request:?})"),
            "last_committed_id".into(),
            "step Ok(())".into(),
            "commit_order_enter 77 [remote 36] 36".into(),
            "commit_order_leave 77 [remote 36] 36 none".into(),
            "step ApplyResult { ok: true, exit_loop: true } count 1".into(),
            "commit_order_enter 77 [remote 37] 37".into(),
            "commit_order_leave 77 [remote 37] 37 none".into(),
            "step ApplyResult { ok: true, exit_loop: true } count 1".into(),
            "step Ok(())".into(),
            "step Ok(())".into(),
            "last_committed_id".into(),
            "step Ok(())".into(),
        ]
    );
}

#[test]
fn callbacks_that_fail_are_told() {
    let host = Host::start();
    ANSWER.store(1, Ordering::SeqCst);
    *REQUEST.lock().unwrap() = b"lost".to_vec();
    script(vec![
        Step::Connected(view_of(Vec::new())),
        Step::RequestSst,
        Step::View(view_of(Vec::new()), None),
        Step::Apply {
            seqno: 36,
            payload: Vec::new(),
        },
        Step::Donate(Vec::new(), false),
        Step::Synced,
    ]);
    host.recv();
    let steps: Vec<String> = calls()
        .into_iter()
        .filter(|call| call.starts_with("step"))
        .collect();
    assert_eq!(steps.len(), 6);
    for (i, step) in steps.iter().enumerate() {
        let failed = step.contains("Err(CallbackFailed") || step.contains("ok: false");
        assert!(failed, "step {i}: {step}");
    }
}

#[test]
fn an_empty_request_for_a_copy_stays_empty() {
    let host = Host::start();
    REQUEST.lock().unwrap().clear();
    script(vec![Step::RequestSst]);
    host.recv();
    assert_eq!(calls(), ["recv", "step Ok([])"]);
}

#[test]
fn a_replay_lends_the_local_transaction() {
    let host = Host::start();
    let f = host.f();
    let mut ws = handle(6);
    // SAFETY: everything passed lives through the calls.
    unsafe {
        (f.append_data)(host.h, &mut ws, &buf(b"d"), 1, 0, 1);
        assert_eq!((f.replay_trx)(host.h, &ws, RECV_CTX), Status::TrxFail);
        assert_eq!(
            (f.replay_trx)(host.h, &ws, ptr::null_mut()),
            Status::NodeFail
        );
        assert_eq!((f.release)(host.h, &mut ws), Status::Ok);
    }
    assert_eq!(
        calls(),
        [
            "append_data 6 1 Ordered",
            "replay_trx 6 [local  d]",
            "commit_order_enter 6 [local  d] -1",
            "commit_order_leave 6 [local  d] -1 none",
            "step ApplyResult { ok: true, exit_loop: true }",
            "release 6 count 1",
        ]
    );
}

#[test]
fn services_are_kept_used_and_forgotten() {
    let host = Host::start();
    script(vec![Step::Allowed("CN=stranger"), Step::Event("{}")]);
    host.recv();
    assert_eq!(
        calls(),
        ["recv", "step true", "step sent"],
        "no service yet"
    );
    assert!(seen().is_empty());

    let mut allowlist_service = wsrep_allowlist_service_v1_t {
        allowlist_cb: Some(allowlist),
        context: APP_CTX,
    };
    let mut event_service = wsrep_event_service_v1_t {
        event_cb: Some(event),
        context: APP_CTX,
    };
    // SAFETY: the structures live through the calls.
    unsafe {
        assert_eq!(wsrep_init_allowlist_service_v1(&mut allowlist_service), 0);
        assert_eq!(wsrep_init_event_service_v1(&mut event_service), 0);
        assert_ne!(wsrep_init_allowlist_service_v1(ptr::null_mut()), 0);
        assert_ne!(wsrep_init_event_service_v1(ptr::null_mut()), 0);
    }
    script(vec![
        Step::Allowed("CN=stranger"),
        Step::Allowed("CN=friend"),
        Step::Allowed("CN=friend\0x"),
        Step::Event("{\"from\":1}"),
        Step::Event("\0"),
        Step::Log("two\nlines\0and a NUL"),
    ]);
    host.recv();
    assert_eq!(
        calls(),
        [
            "recv",
            "step false",
            "step true",
            "step false",
            "step sent",
            "step sent",
            "step logged"
        ]
    );
    assert_eq!(
        seen(),
        [
            "allowlist 1 CN=stranger",
            "allowlist 1 CN=friend",
            "event progress {\"from\":1}",
        ]
    );
    assert_eq!(lines(), [(2, "two lines and a NUL".to_string())]);
    // SAFETY: no arguments.
    unsafe {
        wsrep_deinit_event_service_v1();
        wsrep_deinit_allowlist_service_v1();
    }
    script(vec![Step::Allowed("CN=stranger"), Step::Event("{}")]);
    host.recv();
    assert_eq!(calls(), ["recv", "step true", "step sent"]);
    assert!(seen().is_empty());
}

#[test]
fn the_config_service_finds_the_instance_through_the_handle() {
    let host = Host::start();
    let mut service = wsrep_config_service_v1_t {
        get_parameters: None,
    };
    // SAFETY: the structure lives through the calls.
    unsafe {
        assert_ne!(wsrep_init_config_service_v1(ptr::null_mut()), 0);
        assert_eq!(wsrep_init_config_service_v1(&mut service), 0);
        wsrep_deinit_config_service_v1();
        let get = service.get_parameters.unwrap();
        assert_eq!(get(host.h, Some(parameter), APP_CTX), Status::Ok);
        assert_eq!(
            seen(),
            [
                "parameter a.bool 6 1",
                "parameter a.integer 8 -5",
                "parameter a.double 17 0.5",
                "parameter a.string 0 \"\"",
            ]
        );
        ANSWER.store(10, Ordering::SeqCst);
        assert_eq!(get(host.h, Some(parameter), APP_CTX), Status::NotAllowed);
        ANSWER.store(77, Ordering::SeqCst);
        assert_eq!(get(host.h, Some(parameter), APP_CTX), Status::NodeFail);
        assert_eq!(seen().len(), 2, "the first refusal ends the loop");
        assert_eq!(get(host.h, None, APP_CTX), Status::NodeFail);
        assert_eq!(
            get(ptr::null_mut(), Some(parameter), APP_CTX),
            Status::NodeFail
        );
    }
}

#[test]
fn the_isolation_hook_is_exported() {
    let _host = Host::load();
    // SAFETY: takes a number.
    unsafe {
        assert_eq!(wsrep_node_isolation_mode_set_v1(9), 1);
        assert_eq!(wsrep_node_isolation_mode_set_v1(1), 0);
        assert_eq!(
            dromon_wsrep::isolation::mode(),
            dromon_wsrep::isolation::Mode::Isolated
        );
        assert_eq!(wsrep_node_isolation_mode_set_v1(0), 0);
    }
}
