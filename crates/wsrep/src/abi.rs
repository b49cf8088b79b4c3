//! The C layout of the wsrep provider interface, version 26, and of the optional
//! services. Every size and offset is checked when this file is compiled.
//!
//! Names follow the C interface. Nothing here has behaviour; the safe types that
//! authors use are in the other modules.

#![allow(non_camel_case_types)]
#![allow(missing_docs)]

use std::ffi::{c_char, c_double, c_int, c_void};
use std::mem::offset_of;

use crate::types::{Gtid, Status, Stid, TrxMeta, Uuid};

/// The interface version this crate speaks.
pub const INTERFACE_VERSION: &std::ffi::CStr = c"26";

/// Bytes of a view before its first member.
pub const VIEW_HEADER_BYTES: usize = 56;

/// Member name field, bytes.
pub const MEMBER_NAME_LEN: usize = 32;

/// Member address field, bytes.
pub const MEMBER_INCOMING_LEN: usize = 256;

/// `errno` value of the loader for a NULL argument.
pub const EINVAL: c_int = libc::EINVAL;

/// Callback result "success"; anything else is a failure.
pub const CB_SUCCESS: wsrep_cb_status_t = 0;

pub const WSREP_VAR_STRING: u32 = 0;
pub const WSREP_VAR_INT64: u32 = 1;
pub const WSREP_VAR_DOUBLE: u32 = 2;

pub const WSREP_PARAM_DEPRECATED: c_int = 1;
pub const WSREP_PARAM_READONLY: c_int = 2;
pub const WSREP_PARAM_TYPE_BOOL: c_int = 4;
pub const WSREP_PARAM_TYPE_INTEGER: c_int = 8;
pub const WSREP_PARAM_TYPE_DOUBLE: c_int = 16;

/// What a function of ours returns.
pub type wsrep_status_t = Status;
/// What a callback returns: any bit pattern may arrive.
pub type wsrep_cb_status_t = u32;
/// C `_Bool` in arguments and results: a byte, so that no value is invalid.
pub type c_bool = u8;
pub type wsrep_uuid_t = Uuid;
pub type wsrep_gtid_t = Gtid;
pub type wsrep_stid_t = Stid;
pub type wsrep_trx_meta_t = TrxMeta;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct wsrep_buf_t {
    pub ptr: *const c_void,
    pub len: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct wsrep_ws_handle_t {
    pub trx_id: u64,
    pub opaque: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct wsrep_key_t {
    pub key_parts: *const wsrep_buf_t,
    pub key_parts_num: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct wsrep_member_info_t {
    pub id: wsrep_uuid_t,
    pub name: [u8; MEMBER_NAME_LEN],
    pub incoming: [u8; MEMBER_INCOMING_LEN],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct wsrep_view_info_t {
    pub state_id: wsrep_gtid_t,
    pub view: i64,
    pub status: u32,
    pub capabilities: u32,
    pub my_idx: i32,
    pub memb_num: i32,
    pub proto_ver: i32,
    /// The first of `memb_num` members; there may be none.
    pub members: [wsrep_member_info_t; 1],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct wsrep_po_handle_t {
    pub opaque: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct wsrep_enc_ctx_t {
    pub key: *const wsrep_buf_t,
    pub iv: *const [u8; 32],
    pub ctx: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union wsrep_stats_value {
    pub string: *const c_char,
    pub int64: i64,
    pub double: c_double,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct wsrep_stats_var {
    pub name: *const c_char,
    pub var_type: u32,
    pub value: wsrep_stats_value,
}

// ---------------------------------------------------------------- callbacks

pub type wsrep_log_cb_t = unsafe extern "C-unwind" fn(u32, *const c_char);
pub type wsrep_connected_cb_t =
    unsafe extern "C-unwind" fn(*mut c_void, *const wsrep_view_info_t) -> wsrep_cb_status_t;
pub type wsrep_view_cb_t = unsafe extern "C-unwind" fn(
    *mut c_void,
    *mut c_void,
    *const wsrep_view_info_t,
    *const c_char,
    usize,
) -> wsrep_cb_status_t;
pub type wsrep_sst_request_cb_t =
    unsafe extern "C-unwind" fn(*mut c_void, *mut *mut c_void, *mut usize) -> wsrep_cb_status_t;
pub type wsrep_encrypt_cb_t = unsafe extern "C-unwind" fn(
    *mut c_void,
    *mut wsrep_enc_ctx_t,
    *const wsrep_buf_t,
    *mut c_void,
    u32,
    c_bool,
) -> c_int;
pub type wsrep_apply_cb_t = unsafe extern "C-unwind" fn(
    *mut c_void,
    *const wsrep_ws_handle_t,
    u32,
    *const wsrep_buf_t,
    *const wsrep_trx_meta_t,
    *mut c_bool,
) -> wsrep_cb_status_t;
pub type wsrep_unordered_cb_t =
    unsafe extern "C-unwind" fn(*mut c_void, *const wsrep_buf_t) -> wsrep_cb_status_t;
pub type wsrep_sst_donate_cb_t = unsafe extern "C-unwind" fn(
    *mut c_void,
    *mut c_void,
    *const wsrep_buf_t,
    *const wsrep_gtid_t,
    *const wsrep_buf_t,
    c_bool,
) -> wsrep_cb_status_t;
pub type wsrep_synced_cb_t = unsafe extern "C-unwind" fn(*mut c_void) -> wsrep_cb_status_t;

/// What the server hands to `init`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wsrep_init_args {
    pub app_ctx: *mut c_void,
    pub node_name: *const c_char,
    pub node_address: *const c_char,
    pub node_incoming: *const c_char,
    pub data_dir: *const c_char,
    pub options: *const c_char,
    pub proto_ver: c_int,
    pub state_id: *const wsrep_gtid_t,
    pub state: *const wsrep_buf_t,
    pub logger_cb: Option<wsrep_log_cb_t>,
    pub connected_cb: Option<wsrep_connected_cb_t>,
    pub view_cb: Option<wsrep_view_cb_t>,
    pub sst_request_cb: Option<wsrep_sst_request_cb_t>,
    pub encrypt_cb: Option<wsrep_encrypt_cb_t>,
    pub apply_cb: Option<wsrep_apply_cb_t>,
    pub unordered_cb: Option<wsrep_unordered_cb_t>,
    pub sst_donate_cb: Option<wsrep_sst_donate_cb_t>,
    pub synced_cb: Option<wsrep_synced_cb_t>,
}

// ---------------------------------------------------------------- the provider

/// The provider as the server sees it. The function fields cannot be null, so a
/// literal of this structure fills them all.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wsrep_t {
    pub version: *const c_char,
    pub init: unsafe extern "C" fn(*mut wsrep_t, *const wsrep_init_args) -> wsrep_status_t,
    pub capabilities: unsafe extern "C" fn(*mut wsrep_t) -> u32,
    pub options_set: unsafe extern "C" fn(*mut wsrep_t, *const c_char) -> wsrep_status_t,
    pub options_get: unsafe extern "C" fn(*mut wsrep_t) -> *mut c_char,
    pub enc_set_key: unsafe extern "C" fn(*mut wsrep_t, *const wsrep_buf_t) -> wsrep_status_t,
    pub connect: unsafe extern "C" fn(
        *mut wsrep_t,
        *const c_char,
        *const c_char,
        *const c_char,
        c_bool,
    ) -> wsrep_status_t,
    pub disconnect: unsafe extern "C" fn(*mut wsrep_t) -> wsrep_status_t,
    pub recv: unsafe extern "C" fn(*mut wsrep_t, *mut c_void) -> wsrep_status_t,
    pub assign_read_view: unsafe extern "C" fn(
        *mut wsrep_t,
        *mut wsrep_ws_handle_t,
        *const wsrep_gtid_t,
    ) -> wsrep_status_t,
    pub certify: unsafe extern "C" fn(
        *mut wsrep_t,
        u64,
        *mut wsrep_ws_handle_t,
        u32,
        *mut wsrep_trx_meta_t,
    ) -> wsrep_status_t,
    pub commit_order_enter: unsafe extern "C" fn(
        *mut wsrep_t,
        *const wsrep_ws_handle_t,
        *const wsrep_trx_meta_t,
    ) -> wsrep_status_t,
    pub commit_order_leave: unsafe extern "C" fn(
        *mut wsrep_t,
        *const wsrep_ws_handle_t,
        *const wsrep_trx_meta_t,
        *const wsrep_buf_t,
    ) -> wsrep_status_t,
    pub release: unsafe extern "C" fn(*mut wsrep_t, *mut wsrep_ws_handle_t) -> wsrep_status_t,
    pub replay_trx:
        unsafe extern "C" fn(*mut wsrep_t, *const wsrep_ws_handle_t, *mut c_void) -> wsrep_status_t,
    pub abort_certification:
        unsafe extern "C" fn(*mut wsrep_t, i64, u64, *mut i64) -> wsrep_status_t,
    pub rollback: unsafe extern "C" fn(*mut wsrep_t, u64, *const wsrep_buf_t) -> wsrep_status_t,
    pub append_key: unsafe extern "C" fn(
        *mut wsrep_t,
        *mut wsrep_ws_handle_t,
        *const wsrep_key_t,
        usize,
        u32,
        c_bool,
    ) -> wsrep_status_t,
    pub append_data: unsafe extern "C" fn(
        *mut wsrep_t,
        *mut wsrep_ws_handle_t,
        *const wsrep_buf_t,
        usize,
        u32,
        c_bool,
    ) -> wsrep_status_t,
    pub sync_wait: unsafe extern "C" fn(
        *mut wsrep_t,
        *mut wsrep_gtid_t,
        c_int,
        *mut wsrep_gtid_t,
    ) -> wsrep_status_t,
    pub last_committed_id: unsafe extern "C" fn(*mut wsrep_t, *mut wsrep_gtid_t) -> wsrep_status_t,
    pub free_connection: unsafe extern "C" fn(*mut wsrep_t, u64) -> wsrep_status_t,
    pub to_execute_start: unsafe extern "C" fn(
        *mut wsrep_t,
        u64,
        *const wsrep_key_t,
        usize,
        *const wsrep_buf_t,
        usize,
        u32,
        *mut wsrep_trx_meta_t,
    ) -> wsrep_status_t,
    pub to_execute_end:
        unsafe extern "C" fn(*mut wsrep_t, u64, *const wsrep_buf_t) -> wsrep_status_t,
    pub preordered_collect: unsafe extern "C" fn(
        *mut wsrep_t,
        *mut wsrep_po_handle_t,
        *const wsrep_buf_t,
        usize,
        c_bool,
    ) -> wsrep_status_t,
    pub preordered_commit: unsafe extern "C" fn(
        *mut wsrep_t,
        *mut wsrep_po_handle_t,
        *const wsrep_uuid_t,
        u32,
        c_int,
        c_bool,
    ) -> wsrep_status_t,
    pub sst_sent: unsafe extern "C" fn(*mut wsrep_t, *const wsrep_gtid_t, c_int) -> wsrep_status_t,
    pub sst_received: unsafe extern "C" fn(
        *mut wsrep_t,
        *const wsrep_gtid_t,
        *const wsrep_buf_t,
        c_int,
    ) -> wsrep_status_t,
    pub snapshot:
        unsafe extern "C" fn(*mut wsrep_t, *const wsrep_buf_t, *const c_char) -> wsrep_status_t,
    pub stats_get: unsafe extern "C" fn(*mut wsrep_t) -> *mut wsrep_stats_var,
    pub stats_free: unsafe extern "C" fn(*mut wsrep_t, *mut wsrep_stats_var),
    pub stats_reset: unsafe extern "C" fn(*mut wsrep_t),
    pub pause: unsafe extern "C" fn(*mut wsrep_t) -> i64,
    pub resume: unsafe extern "C" fn(*mut wsrep_t) -> wsrep_status_t,
    pub desync: unsafe extern "C" fn(*mut wsrep_t) -> wsrep_status_t,
    pub resync: unsafe extern "C" fn(*mut wsrep_t) -> wsrep_status_t,
    pub lock: unsafe extern "C" fn(*mut wsrep_t, *const c_char, c_bool, u64, i64) -> wsrep_status_t,
    pub unlock: unsafe extern "C" fn(*mut wsrep_t, *const c_char, u64) -> wsrep_status_t,
    pub is_locked:
        unsafe extern "C" fn(*mut wsrep_t, *const c_char, *mut u64, *mut wsrep_uuid_t) -> c_bool,
    pub provider_name: *const c_char,
    pub provider_version: *const c_char,
    pub provider_vendor: *const c_char,
    pub free: unsafe extern "C" fn(*mut wsrep_t),
    /// The server's `dlopen` handle.
    pub dlh: *mut c_void,
    /// Our instance.
    pub ctx: *mut c_void,
}

// ---------------------------------------------------------------- services

pub type wsrep_allowlist_cb_t =
    unsafe extern "C-unwind" fn(*mut c_void, u32, *const wsrep_buf_t) -> u32;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct wsrep_allowlist_service_v1_t {
    pub allowlist_cb: Option<wsrep_allowlist_cb_t>,
    pub context: *mut c_void,
}

pub type wsrep_event_cb_t = unsafe extern "C-unwind" fn(*mut c_void, *const c_char, *const c_char);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct wsrep_event_service_v1_t {
    pub event_cb: Option<wsrep_event_cb_t>,
    pub context: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union wsrep_parameter_value {
    pub as_bool: c_bool,
    pub as_integer: i64,
    pub as_double: c_double,
    pub as_string: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct wsrep_parameter_t {
    pub flags: c_int,
    pub name: *const c_char,
    pub value: wsrep_parameter_value,
}

pub type wsrep_get_parameters_cb =
    unsafe extern "C-unwind" fn(*const wsrep_parameter_t, *mut c_void) -> u32;
pub type wsrep_get_parameters_fn = unsafe extern "C" fn(
    *mut wsrep_t,
    Option<wsrep_get_parameters_cb>,
    *mut c_void,
) -> wsrep_status_t;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct wsrep_config_service_v1_t {
    pub get_parameters: Option<wsrep_get_parameters_fn>,
}

// ---------------------------------------------------------------- checks

macro_rules! layout {
    ($type:ty, size $size:literal, align $align:literal $(, $field:ident @ $offset:literal)* $(,)?) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            assert!(align_of::<$type>() == $align);
            $(assert!(offset_of!($type, $field) == $offset);)*
        };
    };
}

layout!(Status, size 4, align 4);
layout!(wsrep_uuid_t, size 16, align 8);
layout!(wsrep_gtid_t, size 24, align 8, uuid @ 0, seqno @ 16);
layout!(wsrep_stid_t, size 32, align 8, node @ 0, trx @ 16, conn @ 24);
layout!(wsrep_trx_meta_t, size 64, align 8, gtid @ 0, stid @ 24, depends_on @ 56);
layout!(wsrep_buf_t, size 16, align 8, ptr @ 0, len @ 8);
layout!(wsrep_ws_handle_t, size 16, align 8, trx_id @ 0, opaque @ 8);
layout!(wsrep_key_t, size 16, align 8, key_parts @ 0, key_parts_num @ 8);
layout!(wsrep_member_info_t, size 304, align 8, id @ 0, name @ 16, incoming @ 48);
layout!(
    wsrep_view_info_t, size 360, align 8,
    state_id @ 0, view @ 24, status @ 32, capabilities @ 36, my_idx @ 40, memb_num @ 44,
    proto_ver @ 48, members @ 56,
);
layout!(wsrep_po_handle_t, size 8, align 8, opaque @ 0);
layout!(wsrep_enc_ctx_t, size 24, align 8, key @ 0, iv @ 8, ctx @ 16);
layout!(wsrep_stats_var, size 24, align 8, name @ 0, var_type @ 8, value @ 16);
layout!(wsrep_parameter_t, size 24, align 8, flags @ 0, name @ 8, value @ 16);
layout!(wsrep_allowlist_service_v1_t, size 16, align 8, allowlist_cb @ 0, context @ 8);
layout!(wsrep_event_service_v1_t, size 16, align 8, event_cb @ 0, context @ 8);
layout!(wsrep_config_service_v1_t, size 8, align 8, get_parameters @ 0);
layout!(
    wsrep_init_args, size 144, align 8,
    app_ctx @ 0, node_name @ 8, node_address @ 16, node_incoming @ 24, data_dir @ 32,
    options @ 40, proto_ver @ 48, state_id @ 56, state @ 64, logger_cb @ 72, connected_cb @ 80,
    view_cb @ 88, sst_request_cb @ 96, encrypt_cb @ 104, apply_cb @ 112, unordered_cb @ 120,
    sst_donate_cb @ 128, synced_cb @ 136,
);
layout!(
    wsrep_t, size 360, align 8,
    version @ 0, init @ 8, capabilities @ 16, options_set @ 24, options_get @ 32,
    enc_set_key @ 40, connect @ 48, disconnect @ 56, recv @ 64, assign_read_view @ 72,
    certify @ 80, commit_order_enter @ 88, commit_order_leave @ 96, release @ 104,
    replay_trx @ 112, abort_certification @ 120, rollback @ 128, append_key @ 136,
    append_data @ 144, sync_wait @ 152, last_committed_id @ 160, free_connection @ 168,
    to_execute_start @ 176, to_execute_end @ 184, preordered_collect @ 192,
    preordered_commit @ 200, sst_sent @ 208, sst_received @ 216, snapshot @ 224,
    stats_get @ 232, stats_free @ 240, stats_reset @ 248, pause @ 256, resume @ 264,
    desync @ 272, resync @ 280, lock @ 288, unlock @ 296, is_locked @ 304,
    provider_name @ 312, provider_version @ 320, provider_vendor @ 328, free @ 336,
    dlh @ 344, ctx @ 352,
);
