//! Calls about the node: life cycle, options, connection, positions, state transfer,
//! status.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::border::{
    Instance, Misuse, OnPanic, after_panic, call, ctx_of, exclusive, instance, optional_bytes,
    optional_text, shared, text,
};
use crate::abi::{
    self, c_bool, wsrep_buf_t, wsrep_gtid_t, wsrep_init_args, wsrep_stats_value, wsrep_stats_var,
    wsrep_t, wsrep_uuid_t,
};
use crate::provider::Provider;
use crate::recv::RecvContext;
use crate::server::{Callbacks, Server};
use crate::types::{
    Gtid, InitArgs, LogLevel, Parameter, ParameterValue, SEQNO_UNDEFINED, StatsValue, StatsVar,
    Status,
};

const NO_GTID: &str = "NULL for a position";

// ---------------------------------------------------------------- life cycle

pub(super) unsafe extern "C" fn init<P: Provider>(
    h: *mut wsrep_t,
    args: *const wsrep_init_args,
) -> Status {
    // SAFETY: all pointers are the server's and valid for the call.
    let (Some(ctx), Ok(args)) = (unsafe { (ctx_of(h), shared(args, "")) }) else {
        return Status::NodeFail;
    };
    let callbacks = match Callbacks::from_args(args) {
        Ok(callbacks) => callbacks,
        Err(missing) => {
            if let Some(logger) = args.logger_cb {
                let line = format!(
                    "The server passed no {missing} to the provider; it cannot be of the wsrep \
                     interface 26. The provider does not start.\0"
                );
                // SAFETY: the callback is the server's own; the line ends with NUL.
                unsafe { logger(LogLevel::Error as u32, line.as_ptr().cast()) };
            }
            return Status::NodeFail;
        }
    };
    let server = Server::new(callbacks);
    if !ctx.load(Ordering::Acquire).is_null() {
        server.log(
            LogLevel::Error,
            "The server called init of a provider that runs already; the call is refused.",
        );
        return Status::NodeFail;
    }
    server.make_current();
    let started = panic::catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the arguments are valid for the call.
        let args = unsafe { copy_args(args) }.map_err(|Misuse(what)| {
            server.log(
                LogLevel::Error,
                &format!("The server called init with {what}; the provider does not start."),
            );
            Status::NodeFail
        })?;
        P::init(args, server.clone())
    }));
    let status = match started {
        Ok(Ok(provider)) => {
            // Never freed, see `Instance`.
            let instance = Box::leak(Box::new(Instance {
                server,
                provider,
                closing: AtomicBool::new(false),
            }));
            ctx.store(ptr::from_mut(instance).cast(), Ordering::Release);
            return Status::Ok;
        }
        Ok(Err(Status::Ok)) => Status::NodeFail,
        Ok(Err(status)) => status,
        Err(payload) => {
            after_panic(&server, "init", payload, OnPanic::Answer);
            Status::NodeFail
        }
    };
    server.shut();
    status
}

/// # Safety
/// The pointers in `args` are valid for the call.
unsafe fn copy_args(args: &wsrep_init_args) -> Result<InitArgs, Misuse> {
    // SAFETY: by the contract above, as for all pointers here.
    unsafe {
        let data_dir = if args.data_dir.is_null() {
            return Err(Misuse("NULL for the data directory"));
        } else {
            PathBuf::from(OsStr::from_bytes(CStr::from_ptr(args.data_dir).to_bytes()))
        };
        let state_id = if args.state_id.is_null() {
            Gtid::UNDEFINED
        } else {
            *shared(args.state_id, "a misaligned position")?
        };
        Ok(InitArgs {
            node_name: optional_text(args.node_name).into_owned(),
            node_address: optional_text(args.node_address).into_owned(),
            node_incoming: optional_text(args.node_incoming).into_owned(),
            data_dir,
            options: optional_text(args.options).into_owned(),
            proto_ver: args.proto_ver,
            state_id,
            state: optional_bytes(args.state, "a state of an impossible size")?.map(<[u8]>::to_vec),
        })
    }
}

pub(super) unsafe extern "C" fn free<P: Provider>(h: *mut wsrep_t) {
    // SAFETY: the handle is the server's.
    let Some(ctx) = (unsafe { ctx_of(h) }) else {
        return;
    };
    // SAFETY: loaded for this `P`.
    let Some(it) = (unsafe { instance::<P>(h) }) else {
        return;
    };
    // Threads that end during `close` may still be called with this handle, so the
    // pointer goes only afterwards; of two callers one does the work.
    if it.closing.swap(true, Ordering::AcqRel) {
        return;
    }
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| it.provider.close())) {
        after_panic(&it.server, "free", payload, OnPanic::Answer);
    }
    ctx.store(ptr::null_mut(), Ordering::Release);
    it.server.shut();
}

// ---------------------------------------------------------------- options

pub(super) unsafe extern "C" fn capabilities<P: Provider>(h: *mut wsrep_t) -> u32 {
    // SAFETY: the handle is the server's.
    unsafe {
        call::<P, _>(h, "capabilities", OnPanic::Answer, 0, |it| {
            Ok(it.provider.capabilities())
        })
    }
}

pub(super) unsafe extern "C" fn options_set<P: Provider>(
    h: *mut wsrep_t,
    options: *const c_char,
) -> Status {
    // SAFETY: all pointers are the server's and valid for the call.
    unsafe {
        call::<P, _>(h, "options_set", OnPanic::Answer, Status::NodeFail, |it| {
            let options = text(options, "NULL for the options")?;
            Ok(it.provider.options_set(&options))
        })
    }
}

pub(super) unsafe extern "C" fn options_get<P: Provider>(h: *mut wsrep_t) -> *mut c_char {
    // SAFETY: the handle is the server's.
    let options = unsafe {
        call::<P, _>(h, "options_get", OnPanic::Answer, String::new(), |it| {
            Ok(it.provider.options_get())
        })
    };
    // The server frees it with C `free`, and cannot take NULL.
    // SAFETY: `strndup` stops at `len` bytes or a NUL, whichever comes first.
    unsafe { libc::strndup(options.as_ptr().cast(), options.len()) }
}

pub(super) unsafe extern "C" fn enc_set_key(_h: *mut wsrep_t, _key: *const wsrep_buf_t) -> Status {
    Status::NotImplemented
}

/// The function of the config service.
///
/// # Safety
/// `h` is the server's handle, loaded for this `P`; `callback` may be called with `context`.
pub unsafe extern "C" fn get_parameters<P: Provider>(
    h: *mut wsrep_t,
    callback: Option<abi::wsrep_get_parameters_cb>,
    context: *mut c_void,
) -> Status {
    // SAFETY: all pointers are the server's and valid for the call.
    unsafe {
        call::<P, _>(
            h,
            "get_parameters",
            OnPanic::Answer,
            Status::NodeFail,
            |it| {
                let callback = callback.ok_or(Misuse("NULL for the callback"))?;
                for parameter in it.provider.parameters() {
                    let status = report_parameter(&parameter, callback, context);
                    if status != Status::Ok as u32 {
                        return Ok(Status::from_raw(status).unwrap_or(Status::NodeFail));
                    }
                }
                Ok(Status::Ok)
            },
        )
    }
}

/// # Safety
/// `callback` may be called with `context`.
unsafe fn report_parameter(
    parameter: &Parameter,
    callback: abi::wsrep_get_parameters_cb,
    context: *mut c_void,
) -> u32 {
    let name = c_string(&parameter.name);
    let text;
    let (kind, value) = match &parameter.value {
        ParameterValue::Bool(value) => (
            abi::WSREP_PARAM_TYPE_BOOL,
            abi::wsrep_parameter_value {
                // The whole word is written: no byte of the union stays undefined.
                as_integer: i64::from(*value),
            },
        ),
        ParameterValue::Integer(value) => (
            abi::WSREP_PARAM_TYPE_INTEGER,
            abi::wsrep_parameter_value { as_integer: *value },
        ),
        ParameterValue::Double(value) => (
            abi::WSREP_PARAM_TYPE_DOUBLE,
            abi::wsrep_parameter_value { as_double: *value },
        ),
        ParameterValue::String(value) => {
            text = c_string(value);
            (
                0,
                abi::wsrep_parameter_value {
                    as_string: text.as_ptr(),
                },
            )
        }
    };
    let mut flags = kind;
    if parameter.read_only {
        flags |= abi::WSREP_PARAM_READONLY;
    }
    if parameter.deprecated {
        flags |= abi::WSREP_PARAM_DEPRECATED;
    }
    let raw = abi::wsrep_parameter_t {
        flags,
        name: name.as_ptr(),
        value,
    };
    // SAFETY: by the contract above; the texts outlive the call.
    unsafe { callback(&raw, context) }
}

/// The text up to its first NUL.
fn c_string(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    // No NUL is left, so this cannot fail; an empty text would be the harmless answer.
    CString::new(&text[..end]).unwrap_or_default()
}

// ---------------------------------------------------------------- connection

pub(super) unsafe extern "C" fn connect<P: Provider>(
    h: *mut wsrep_t,
    name: *const c_char,
    url: *const c_char,
    donor: *const c_char,
    bootstrap: c_bool,
) -> Status {
    // SAFETY: all pointers are the server's and valid for the call.
    unsafe {
        call::<P, _>(h, "connect", OnPanic::Answer, Status::NodeFail, |it| {
            let name = text(name, "NULL for the cluster name")?;
            let url = text(url, "NULL for the cluster address")?;
            let donor = optional_text(donor);
            Ok(it.provider.connect(&name, &url, &donor, bootstrap != 0))
        })
    }
}

pub(super) unsafe extern "C" fn disconnect<P: Provider>(h: *mut wsrep_t) -> Status {
    // SAFETY: the handle is the server's.
    unsafe {
        call::<P, _>(h, "disconnect", OnPanic::Answer, Status::NodeFail, |it| {
            Ok(it.provider.disconnect())
        })
    }
}

pub(super) unsafe extern "C" fn recv<P: Provider>(h: *mut wsrep_t, ctx: *mut c_void) -> Status {
    // SAFETY: all pointers are the server's and valid for the call.
    unsafe {
        call::<P, _>(h, "recv", OnPanic::Abort, Status::NodeFail, |it| {
            if ctx.is_null() {
                return Err(Misuse("NULL for the receiver context"));
            }
            Ok(it.provider.recv(RecvContext::new(&it.server, ctx)))
        })
    }
}

// ---------------------------------------------------------------- positions

pub(super) unsafe extern "C" fn sync_wait<P: Provider>(
    h: *mut wsrep_t,
    upto: *mut wsrep_gtid_t,
    timeout_s: c_int,
    out: *mut wsrep_gtid_t,
) -> Status {
    // SAFETY: all pointers are the server's and valid for the call.
    unsafe {
        // Read first: nothing forbids the two to be the same.
        let upto = if upto.is_null() {
            Ok(None)
        } else {
            shared(upto.cast_const(), NO_GTID).map(|gtid| Some(*gtid))
        };
        if let Ok(out) = exclusive(out, NO_GTID) {
            *out = Gtid::UNDEFINED;
        }
        call::<P, _>(h, "sync_wait", OnPanic::Answer, Status::NodeFail, |it| {
            let out = if out.is_null() {
                None
            } else {
                Some(exclusive(out, NO_GTID)?)
            };
            let (status, reached) = it.provider.sync_wait(upto?, timeout_s);
            if let Some(out) = out {
                *out = reached;
            }
            Ok(status)
        })
    }
}

pub(super) unsafe extern "C" fn last_committed_id<P: Provider>(
    h: *mut wsrep_t,
    out: *mut wsrep_gtid_t,
) -> Status {
    // SAFETY: all pointers are the server's and valid for the call.
    unsafe {
        if let Ok(out) = exclusive(out, NO_GTID) {
            *out = Gtid::UNDEFINED;
        }
        call::<P, _>(
            h,
            "last_committed_id",
            OnPanic::Answer,
            Status::NodeFail,
            |it| {
                let out = exclusive(out, NO_GTID)?;
                *out = it.provider.last_committed_id();
                Ok(Status::Ok)
            },
        )
    }
}

pub(super) unsafe extern "C" fn pause<P: Provider>(h: *mut wsrep_t) -> i64 {
    // SAFETY: the handle is the server's.
    unsafe {
        call::<P, _>(h, "pause", OnPanic::Answer, SEQNO_UNDEFINED, |it| {
            // The server takes any negative number but -1 for a position.
            Ok(it
                .provider
                .pause()
                .map_or(SEQNO_UNDEFINED, |seqno| seqno.max(SEQNO_UNDEFINED)))
        })
    }
}

pub(super) unsafe extern "C" fn resume<P: Provider>(h: *mut wsrep_t) -> Status {
    // SAFETY: the handle is the server's.
    unsafe {
        call::<P, _>(h, "resume", OnPanic::Answer, Status::NodeFail, |it| {
            Ok(it.provider.resume())
        })
    }
}

pub(super) unsafe extern "C" fn desync<P: Provider>(h: *mut wsrep_t) -> Status {
    // SAFETY: the handle is the server's.
    unsafe {
        call::<P, _>(h, "desync", OnPanic::Answer, Status::NodeFail, |it| {
            Ok(it.provider.desync())
        })
    }
}

pub(super) unsafe extern "C" fn resync<P: Provider>(h: *mut wsrep_t) -> Status {
    // SAFETY: the handle is the server's.
    unsafe {
        call::<P, _>(h, "resync", OnPanic::Answer, Status::NodeFail, |it| {
            Ok(it.provider.resync())
        })
    }
}

// ---------------------------------------------------------------- state transfer

pub(super) unsafe extern "C" fn sst_sent<P: Provider>(
    h: *mut wsrep_t,
    gtid: *const wsrep_gtid_t,
    rcode: c_int,
) -> Status {
    // SAFETY: all pointers are the server's and valid for the call.
    unsafe {
        call::<P, _>(h, "sst_sent", OnPanic::Answer, Status::NodeFail, |it| {
            let gtid = *shared(gtid, NO_GTID)?;
            Ok(it.provider.sst_sent(gtid, rcode))
        })
    }
}

pub(super) unsafe extern "C" fn sst_received<P: Provider>(
    h: *mut wsrep_t,
    gtid: *const wsrep_gtid_t,
    state: *const wsrep_buf_t,
    rcode: c_int,
) -> Status {
    // SAFETY: all pointers are the server's and valid for the call.
    unsafe {
        call::<P, _>(h, "sst_received", OnPanic::Answer, Status::NodeFail, |it| {
            let gtid = *shared(gtid, NO_GTID)?;
            let state = optional_bytes(state, "a state of an impossible size")?;
            Ok(it.provider.sst_received(gtid, state, rcode))
        })
    }
}

pub(super) unsafe extern "C" fn snapshot(
    _h: *mut wsrep_t,
    _message: *const wsrep_buf_t,
    _donor: *const c_char,
) -> Status {
    Status::NotImplemented
}

// ---------------------------------------------------------------- status

pub(super) unsafe extern "C" fn stats_get<P: Provider>(h: *mut wsrep_t) -> *mut wsrep_stats_var {
    // SAFETY: the handle is the server's.
    let variables = unsafe {
        call::<P, _>(h, "stats_get", OnPanic::Answer, Vec::new(), |it| {
            Ok(it.provider.stats_get())
        })
    };
    stats_array(&variables)
}

/// One C allocation: the entries, a terminator with a NULL name, then the texts.
fn stats_array(variables: &[StatsVar]) -> *mut wsrep_stats_var {
    let entries_bytes = (variables.len() + 1) * size_of::<wsrep_stats_var>();
    let text_bytes: usize = variables
        .iter()
        .map(|variable| {
            let value = match &variable.value {
                StatsValue::String(value) => value.len() + 1,
                StatsValue::Int(_) | StatsValue::Double(_) => 0,
            };
            variable.name.len() + 1 + value
        })
        .sum();
    // SAFETY: `malloc` aligns for any type; every write below stays inside the two
    // parts just counted.
    unsafe {
        let block = libc::malloc(entries_bytes + text_bytes).cast::<u8>();
        if block.is_null() {
            return ptr::null_mut();
        }
        let entries = block.cast::<wsrep_stats_var>();
        let mut free = block.add(entries_bytes);
        let mut put = |text: &str| {
            let start = free;
            ptr::copy_nonoverlapping(text.as_ptr(), start, text.len());
            start.add(text.len()).write(0);
            free = start.add(text.len() + 1);
            start.cast_const().cast::<c_char>()
        };
        for (i, variable) in variables.iter().enumerate() {
            let name = put(&variable.name);
            let (var_type, value) = match &variable.value {
                StatsValue::String(value) => (
                    abi::WSREP_VAR_STRING,
                    wsrep_stats_value { string: put(value) },
                ),
                StatsValue::Int(value) => {
                    (abi::WSREP_VAR_INT64, wsrep_stats_value { int64: *value })
                }
                StatsValue::Double(value) => {
                    (abi::WSREP_VAR_DOUBLE, wsrep_stats_value { double: *value })
                }
            };
            entries.add(i).write(wsrep_stats_var {
                name,
                var_type,
                value,
            });
        }
        entries.add(variables.len()).write(wsrep_stats_var {
            name: ptr::null(),
            var_type: abi::WSREP_VAR_INT64,
            value: wsrep_stats_value { int64: 0 },
        });
        entries
    }
}

pub(super) unsafe extern "C" fn stats_free(_h: *mut wsrep_t, array: *mut wsrep_stats_var) {
    // SAFETY: NULL or the block of `stats_array`.
    unsafe { libc::free(array.cast()) }
}

pub(super) unsafe extern "C" fn stats_reset<P: Provider>(h: *mut wsrep_t) {
    // SAFETY: the handle is the server's.
    unsafe {
        call::<P, _>(h, "stats_reset", OnPanic::Answer, (), |it| {
            it.provider.stats_reset();
            Ok(())
        });
    }
}

// ---------------------------------------------------------------- named locks, never called

pub(super) unsafe extern "C" fn lock(
    _h: *mut wsrep_t,
    _name: *const c_char,
    _shared: c_bool,
    _owner: u64,
    _timeout_ns: i64,
) -> Status {
    Status::NotImplemented
}

pub(super) unsafe extern "C" fn unlock(
    _h: *mut wsrep_t,
    _name: *const c_char,
    _owner: u64,
) -> Status {
    Status::NotImplemented
}

pub(super) unsafe extern "C" fn is_locked(
    _h: *mut wsrep_t,
    _name: *const c_char,
    _conn: *mut u64,
    _node: *mut wsrep_uuid_t,
) -> c_bool {
    0
}
