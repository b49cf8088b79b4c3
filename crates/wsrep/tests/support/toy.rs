//! A provider that writes down what it is called with, and can be told to fail.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dromon_wsrep::*;

/// What the toy was called with, in order.
static CALLS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// The call that shall panic.
static PANIC_IN: Mutex<Option<&'static str>> = Mutex::new(None);
/// What `recv` does.
static SCRIPT: Mutex<Vec<Step>> = Mutex::new(Vec::new());
/// The handle the toy was given, kept to try it after `free`.
static SERVER: Mutex<Option<Server>> = Mutex::new(None);

pub const HISTORY: Uuid = Uuid([7; 16]);
pub const NODE: Uuid = Uuid([9; 16]);

/// One thing that `recv` does.
#[derive(Clone)]
pub enum Step {
    Connected(View),
    View(View, Option<Vec<u8>>),
    Apply { seqno: Seqno, payload: Vec<u8> },
    Donate(Vec<u8>, bool),
    RequestSst,
    Synced,
    Allowed(&'static str),
    Event(&'static str),
    Log(&'static str),
}

pub enum Trx {
    Local {
        keys: Mutex<Vec<String>>,
        data: Mutex<Vec<u8>>,
    },
    Remote {
        seqno: Seqno,
    },
}

impl Trx {
    fn describe(&self) -> String {
        match self {
            Trx::Local { keys, data } => format!(
                "local {} {}",
                lock(keys).join(","),
                String::from_utf8_lossy(&lock(data))
            ),
            Trx::Remote { seqno } => format!("remote {seqno}"),
        }
    }
}

pub struct Toy {
    server: Server,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The calls since the last time.
pub fn calls() -> Vec<String> {
    std::mem::take(&mut lock(&CALLS))
}

pub fn panic_in(call: Option<&'static str>) {
    *lock(&PANIC_IN) = call;
}

pub fn script(steps: Vec<Step>) {
    *lock(&SCRIPT) = steps;
}

pub fn server() -> Option<Server> {
    lock(&SERVER).clone()
}

fn note(call: &str, text: String) {
    lock(&CALLS).push(format!("{call} {text}").trim_end().to_string());
    let panics = *lock(&PANIC_IN) == Some(call);
    assert!(!panics, "toy panic in {call}\nwith a second line");
}

fn local() -> Arc<Trx> {
    Arc::new(Trx::Local {
        keys: Mutex::default(),
        data: Mutex::default(),
    })
}

fn shown(error: Option<&[u8]>) -> String {
    error.map_or("none".into(), |e| {
        format!("{:?}", String::from_utf8_lossy(e))
    })
}

impl Provider for Toy {
    type Trx = Trx;

    fn init(args: InitArgs, server: Server) -> Result<Self, Status> {
        *lock(&SERVER) = Some(server.clone());
        note(
            "init",
            format!(
                "{}|{}|{}|{}|{}|{}|{}|{:?}",
                args.node_name,
                args.node_address,
                args.node_incoming,
                args.data_dir.display(),
                args.options,
                args.proto_ver,
                args.state_id,
                args.state,
            ),
        );
        if args.options == "fail" {
            return Err(Status::Fatal);
        }
        if args.options == "fail with ok" {
            return Err(Status::Ok);
        }
        Ok(Toy { server })
    }

    fn capabilities(&self) -> u32 {
        note("capabilities", String::new());
        capability::MULTI_MASTER | capability::STREAMING
    }

    fn options_set(&self, options: &str) -> Status {
        note("options_set", options.into());
        Status::NotAllowed
    }

    fn options_get(&self) -> String {
        note("options_get", String::new());
        "a = 1; b.c = zwei; ".into()
    }

    fn connect(&self, name: &str, url: &str, donor: &str, bootstrap: bool) -> Status {
        note("connect", format!("{name}|{url}|{donor}|{bootstrap}"));
        Status::Ok
    }

    fn disconnect(&self) -> Status {
        note("disconnect", String::new());
        Status::Ok
    }

    fn recv(&self, ctx: RecvContext<'_, Trx>) -> Status {
        note("recv", String::new());
        for step in std::mem::take(&mut *lock(&SCRIPT)) {
            let outcome = match step {
                Step::Connected(view) => format!("{:?}", ctx.server().connected(&view)),
                Step::View(view, state) => format!("{:?}", ctx.view(&view, state.as_deref())),
                Step::Apply { seqno, payload } => {
                    let trx = Arc::new(Trx::Remote { seqno });
                    let meta = TrxMeta {
                        gtid: Gtid {
                            uuid: HISTORY,
                            seqno,
                        },
                        stid: Stid {
                            node: NODE,
                            trx: 77,
                            conn: 88,
                        },
                        depends_on: seqno - 1,
                    };
                    let result = ctx.apply(&trx, 77, flags::TRX_START, &payload, &meta);
                    format!("{result:?} count {}", Arc::strong_count(&trx))
                }
                Step::Donate(request, bypass) => {
                    let position = Gtid {
                        uuid: HISTORY,
                        seqno: 5,
                    };
                    format!("{:?}", ctx.sst_donate(&request, position, None, bypass))
                }
                Step::RequestSst => format!("{:?}", self.server.sst_request()),
                Step::Synced => format!("{:?}", self.server.synced()),
                Step::Allowed(who) => {
                    format!("{}", self.server.allowed(AllowlistKey::TlsSubject, who))
                }
                Step::Event(json) => {
                    self.server.event("progress", json);
                    "sent".into()
                }
                Step::Log(text) => {
                    self.server.log(LogLevel::Warn, text);
                    "logged".into()
                }
            };
            note("step", outcome);
        }
        Status::ConnFail
    }

    fn append_key(
        &self,
        trx_id: u64,
        slot: &mut TrxSlot<'_, Trx>,
        parts: &[&[u8]],
        key_type: KeyType,
    ) -> Status {
        let key: Vec<_> = parts.iter().map(|p| String::from_utf8_lossy(p)).collect();
        let key = format!("{}:{key_type:?}", key.join("/"));
        note("append_key", format!("{trx_id} {key}"));
        if parts.is_empty() {
            return Status::TrxFail;
        }
        if let Trx::Local { keys, .. } = &**slot.get_or_insert_with(local) {
            lock(keys).push(key);
        }
        Status::Ok
    }

    fn append_data(
        &self,
        trx_id: u64,
        slot: &mut TrxSlot<'_, Trx>,
        data: &[u8],
        data_type: DataType,
    ) -> Status {
        note(
            "append_data",
            format!("{trx_id} {} {data_type:?}", data.len()),
        );
        if let Trx::Local { data: all, .. } = &**slot.get_or_insert_with(local) {
            lock(all).extend_from_slice(data);
        }
        Status::Ok
    }

    fn certify(
        &self,
        conn_id: u64,
        trx_id: u64,
        slot: &mut TrxSlot<'_, Trx>,
        flags: u32,
        meta: &mut TrxMeta,
    ) -> Status {
        let before = *meta;
        meta.stid = Stid {
            node: NODE,
            trx: trx_id,
            conn: conn_id,
        };
        if flags & flags::TRX_END == 0 {
            // Not ordered, but carelessly half filled.
            meta.gtid.uuid = HISTORY;
            note("certify", "unordered".into());
            return Status::ConnFail;
        }
        meta.gtid = Gtid {
            uuid: HISTORY,
            seqno: 12,
        };
        meta.depends_on = 11;
        note(
            "certify",
            format!(
                "{conn_id} {trx_id} {flags:#x} entry {} {} {} [{}]",
                before.gtid.is_undefined(),
                before.depends_on,
                before.stid.trx,
                slot.get().map_or("empty".into(), |trx| trx.describe()),
            ),
        );
        Status::Ok
    }

    fn commit_order_enter(&self, trx_id: u64, trx: &Arc<Trx>, meta: &TrxMeta) -> Status {
        note(
            "commit_order_enter",
            format!("{trx_id} [{}] {}", trx.describe(), meta.gtid.seqno),
        );
        Status::Ok
    }

    fn commit_order_leave(
        &self,
        trx_id: u64,
        trx: &Arc<Trx>,
        meta: &TrxMeta,
        error: Option<&[u8]>,
    ) -> Status {
        note(
            "commit_order_leave",
            format!(
                "{trx_id} [{}] {} {}",
                trx.describe(),
                meta.gtid.seqno,
                shown(error)
            ),
        );
        Status::Ok
    }

    fn release(&self, trx_id: u64, slot: &mut TrxSlot<'_, Trx>) -> Status {
        let trx = slot.take().expect("release never comes with an empty slot");
        note(
            "release",
            format!("{trx_id} count {}", Arc::strong_count(&trx)),
        );
        Status::Ok
    }

    fn replay_trx(&self, trx_id: u64, trx: &Arc<Trx>, ctx: ReplayContext<'_, Trx>) -> Status {
        note("replay_trx", format!("{trx_id} [{}]", trx.describe()));
        let meta = TrxMeta::default();
        let result = ctx.apply(trx, trx_id, flags::TRX_END, b"again", &meta);
        note("step", format!("{result:?}"));
        Status::TrxFail
    }

    fn abort_certification(&self, bf_seqno: Seqno, victim_trx_id: u64) -> (Status, Seqno) {
        note("abort_certification", format!("{bf_seqno} {victim_trx_id}"));
        (Status::NotAllowed, 41)
    }

    fn rollback(&self, trx_id: u64) -> Status {
        note("rollback", trx_id.to_string());
        Status::Ok
    }

    fn sync_wait(&self, upto: Option<Gtid>, timeout_s: i32) -> (Status, Gtid) {
        note(
            "sync_wait",
            format!("{:?} {timeout_s}", upto.map(|gtid| gtid.seqno)),
        );
        (
            Status::Ok,
            Gtid {
                uuid: HISTORY,
                seqno: 33,
            },
        )
    }

    fn last_committed_id(&self) -> Gtid {
        note("last_committed_id", String::new());
        Gtid {
            uuid: HISTORY,
            seqno: 34,
        }
    }

    fn to_execute_start(
        &self,
        conn_id: u64,
        keys: &[&[&[u8]]],
        data: &[&[u8]],
        flags: u32,
        meta: &mut TrxMeta,
    ) -> Status {
        meta.gtid = Gtid {
            uuid: HISTORY,
            seqno: 13,
        };
        let keys: Vec<_> = keys
            .iter()
            .map(|parts| String::from_utf8_lossy(&parts.join(&b'/')).into_owned())
            .collect();
        note(
            "to_execute_start",
            format!(
                "{conn_id} {} {} {flags:#x}",
                keys.join(","),
                String::from_utf8_lossy(&data.concat())
            ),
        );
        Status::Ok
    }

    fn to_execute_end(&self, conn_id: u64, error: Option<&[u8]>) -> Status {
        note("to_execute_end", format!("{conn_id} {}", shown(error)));
        Status::Ok
    }

    fn sst_sent(&self, gtid: Gtid, rcode: i32) -> Status {
        note("sst_sent", format!("{gtid} {rcode}"));
        Status::ConnFail
    }

    fn sst_received(&self, gtid: Gtid, state: Option<&[u8]>, rcode: i32) -> Status {
        note("sst_received", format!("{gtid} {state:?} {rcode}"));
        Status::Ok
    }

    fn stats_get(&self) -> Vec<StatsVar> {
        note("stats_get", String::new());
        vec![
            StatsVar::new("cluster_status", "Primary"),
            StatsVar::new("cluster_size", 3_i64),
            StatsVar::new("huge", u64::MAX),
            StatsVar::new("cert_interval", 1.5),
            StatsVar::new(String::from("local_state_comment"), String::new()),
        ]
    }

    fn stats_reset(&self) {
        note("stats_reset", String::new());
    }

    fn pause(&self) -> Result<Seqno, Status> {
        note("pause", String::new());
        Ok(-22)
    }

    fn resume(&self) -> Status {
        note("resume", String::new());
        Status::Ok
    }

    fn desync(&self) -> Status {
        note("desync", String::new());
        Status::Ok
    }

    fn resync(&self) -> Status {
        note("resync", String::new());
        Status::Ok
    }

    fn parameters(&self) -> Vec<Parameter> {
        note("parameters", String::new());
        vec![
            Parameter::new("a.bool", ParameterValue::Bool(true)).read_only(),
            Parameter::new("a.integer", ParameterValue::Integer(-5)),
            Parameter::new("a.double", ParameterValue::Double(0.5)).deprecated(),
            Parameter::new("a.string", ParameterValue::String(String::new())),
        ]
    }

    fn close(&self) {
        note("close", String::new());
    }
}

dromon_wsrep::export_provider! {
    provider: Toy,
    name: "Toy",
    version: "26.4.24(r0)",
    vendor: "Nobody",
}
