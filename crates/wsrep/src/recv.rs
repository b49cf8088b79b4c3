//! Calling the server from a thread it lent: deliver views and write sets, ask for a
//! donation.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use crate::abi;
use crate::server::{Callbacks, Server};
use crate::slot;
use crate::types::{CallbackFailed, Gtid, TrxMeta};
use crate::view::{View, ViewBuffer};

/// What the server said about an event it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApplyResult {
    /// `false`: this node has become inconsistent and must leave the cluster.
    pub ok: bool,
    /// The server wants this thread back (the last one must ignore that).
    pub exit_loop: bool,
}

/// One thread of the server inside `recv`; stays on that thread.
pub struct RecvContext<'a, T> {
    target: Target<'a, T>,
}

/// The client's thread inside `replay_trx`; stays on that thread.
pub struct ReplayContext<'a, T> {
    target: Target<'a, T>,
}

/// Who is called: the server's callbacks with the thread's identity. The raw pointer
/// keeps it from moving to another thread.
struct Target<'a, T> {
    server: &'a Server,
    ctx: *mut c_void,
    // Handles made here hold `T`; the entry functions read them as the same `T`.
    trx: PhantomData<fn(&T)>,
}

impl<'a, T> RecvContext<'a, T> {
    /// # Safety
    /// `ctx` is the pointer the server passed to the `recv` that is running on this
    /// thread, and `T` the transaction type of the provider it called.
    pub(crate) unsafe fn new(server: &'a Server, ctx: *mut c_void) -> Self {
        RecvContext {
            target: Target {
                server,
                ctx,
                trx: PhantomData,
            },
        }
    }

    /// The callbacks that need no thread identity (`connected`, `synced`, `sst_request`).
    pub fn server(&self) -> &'a Server {
        self.target.server
    }

    /// Delivers a view, with the application state that belongs to it if there is any.
    pub fn view(&self, view: &View, state: Option<&[u8]>) -> Result<(), CallbackFailed> {
        let callbacks = self.target.server.callbacks("view")?;
        let buffer = ViewBuffer::new(view);
        let (state, state_len) = match state {
            Some(bytes) if !bytes.is_empty() => (bytes.as_ptr(), bytes.len()),
            _ => (ptr::null(), 0),
        };
        // SAFETY: the callback is the server's own; the buffers outlive the call.
        let answer = unsafe {
            (callbacks.view)(
                callbacks.app_ctx,
                self.target.ctx,
                buffer.as_ptr(),
                state.cast(),
                state_len,
            )
        };
        succeeded(answer, "view")
    }

    /// Has the server apply an ordered event. `trx` is what `commit_order_enter` and
    /// `commit_order_leave` will be called with before this returns.
    pub fn apply(
        &self,
        trx: &Arc<T>,
        trx_id: u64,
        flags: u32,
        payload: &[u8],
        meta: &TrxMeta,
    ) -> ApplyResult {
        self.target.apply(trx, trx_id, flags, payload, meta)
    }

    /// Has the server donate its state, answering the joiner's `request`. With `bypass`
    /// only the position is handed over.
    pub fn sst_donate(
        &self,
        request: &[u8],
        position: Gtid,
        state: Option<&[u8]>,
        bypass: bool,
    ) -> Result<(), CallbackFailed> {
        let callbacks = self.target.server.callbacks("sst_donate")?;
        // The server reads C strings out of the request: a NUL behind the last byte
        // keeps a malformed one from being read past its end.
        let mut terminated = Vec::with_capacity(request.len() + 1);
        terminated.extend_from_slice(request);
        terminated.push(0);
        let request = abi::wsrep_buf_t {
            ptr: terminated.as_ptr().cast(),
            len: request.len(),
        };
        let state = buf(state.unwrap_or_default());
        // SAFETY: the callback is the server's own; the buffers outlive the call.
        let answer = unsafe {
            (callbacks.sst_donate)(
                callbacks.app_ctx,
                self.target.ctx,
                &request,
                &position,
                &state,
                abi::c_bool::from(bypass),
            )
        };
        succeeded(answer, "sst_donate")
    }
}

impl<'a, T> ReplayContext<'a, T> {
    /// # Safety
    /// As [`RecvContext::new`], for the `replay_trx` that is running on this thread.
    pub(crate) unsafe fn new(server: &'a Server, ctx: *mut c_void) -> Self {
        ReplayContext {
            target: Target {
                server,
                ctx,
                trx: PhantomData,
            },
        }
    }

    /// Has the server apply the transaction again. The server enters and leaves commit
    /// order with the handle it had before, not with this `trx`.
    pub fn apply(
        &self,
        trx: &Arc<T>,
        trx_id: u64,
        flags: u32,
        payload: &[u8],
        meta: &TrxMeta,
    ) -> ApplyResult {
        self.target.apply(trx, trx_id, flags, payload, meta)
    }
}

impl<T> Target<'_, T> {
    fn apply(
        &self,
        trx: &Arc<T>,
        trx_id: u64,
        flags: u32,
        payload: &[u8],
        meta: &TrxMeta,
    ) -> ApplyResult {
        let Ok(callbacks) = self.server.callbacks("apply") else {
            return ApplyResult {
                ok: false,
                exit_loop: true,
            };
        };
        let handle = abi::wsrep_ws_handle_t {
            trx_id,
            opaque: slot::lend(trx),
        };
        let payload = buf(payload);
        let mut exit_loop: abi::c_bool = 0;
        // SAFETY: the callback is the server's own; handle, payload and metadata outlive
        // the call, and so does the lent `trx`.
        let answer =
            unsafe { (callbacks.apply)(self.ctx, &handle, flags, &payload, meta, &mut exit_loop) };
        ApplyResult {
            ok: answer == abi::CB_SUCCESS,
            exit_loop: exit_loop != 0,
        }
    }
}

/// A C buffer over `bytes`; NULL with length 0 when there are none.
fn buf(bytes: &[u8]) -> abi::wsrep_buf_t {
    abi::wsrep_buf_t {
        ptr: if bytes.is_empty() {
            ptr::null()
        } else {
            bytes.as_ptr().cast()
        },
        len: bytes.len(),
    }
}

pub(crate) fn succeeded(
    answer: abi::wsrep_cb_status_t,
    callback: &'static str,
) -> Result<(), CallbackFailed> {
    if answer == abi::CB_SUCCESS {
        Ok(())
    } else {
        Err(CallbackFailed { callback })
    }
}

impl Callbacks {
    /// Takes the callbacks out of the arguments of `init`; the error names the one that is missing.
    pub(crate) fn from_args(args: &abi::wsrep_init_args) -> Result<Callbacks, &'static str> {
        Ok(Callbacks {
            app_ctx: args.app_ctx,
            logger: args.logger_cb.ok_or("logger_cb")?,
            connected: args.connected_cb.ok_or("connected_cb")?,
            view: args.view_cb.ok_or("view_cb")?,
            sst_request: args.sst_request_cb.ok_or("sst_request_cb")?,
            apply: args.apply_cb.ok_or("apply_cb")?,
            sst_donate: args.sst_donate_cb.ok_or("sst_donate_cb")?,
            synced: args.synced_cb.ok_or("synced_cb")?,
        })
    }
}
