//! The functions behind the pointers of `wsrep_t`: they check what the server passed,
//! call the author's [`Provider`], and let no panic out.
//!
//! [`transaction`] has those that carry a transaction or an isolated statement,
//! [`node`] all others, [`border`] the guard and the pointer checks.

mod border;
mod node;
mod transaction;

use std::ffi::{CStr, c_int};
use std::ptr;

use crate::abi;
use crate::provider::Provider;

pub use node::get_parameters;

/// Fills in the server's `wsrep_t`. Returns 0, or an `errno` value.
///
/// # Safety
/// `handle` is NULL or points to memory for a `wsrep_t`, whatever that holds.
pub unsafe fn load<P: Provider>(
    handle: *mut abi::wsrep_t,
    name: &'static CStr,
    version: &'static CStr,
    vendor: &'static CStr,
) -> c_int {
    if handle.is_null() || !handle.is_aligned() {
        return abi::EINVAL;
    }
    border::report_panics();
    let filled = abi::wsrep_t {
        version: abi::INTERFACE_VERSION.as_ptr(),
        init: node::init::<P>,
        capabilities: node::capabilities::<P>,
        options_set: node::options_set::<P>,
        options_get: node::options_get::<P>,
        enc_set_key: node::enc_set_key,
        connect: node::connect::<P>,
        disconnect: node::disconnect::<P>,
        recv: node::recv::<P>,
        assign_read_view: transaction::assign_read_view,
        certify: transaction::certify::<P>,
        commit_order_enter: transaction::commit_order_enter::<P>,
        commit_order_leave: transaction::commit_order_leave::<P>,
        release: transaction::release::<P>,
        replay_trx: transaction::replay_trx::<P>,
        abort_certification: transaction::abort_certification::<P>,
        rollback: transaction::rollback::<P>,
        append_key: transaction::append_key::<P>,
        append_data: transaction::append_data::<P>,
        sync_wait: node::sync_wait::<P>,
        last_committed_id: node::last_committed_id::<P>,
        free_connection: transaction::free_connection,
        to_execute_start: transaction::to_execute_start::<P>,
        to_execute_end: transaction::to_execute_end::<P>,
        preordered_collect: transaction::preordered_collect,
        preordered_commit: transaction::preordered_commit,
        sst_sent: node::sst_sent::<P>,
        sst_received: node::sst_received::<P>,
        snapshot: node::snapshot,
        stats_get: node::stats_get::<P>,
        stats_free: node::stats_free,
        stats_reset: node::stats_reset::<P>,
        pause: node::pause::<P>,
        resume: node::resume::<P>,
        desync: node::desync::<P>,
        resync: node::resync::<P>,
        lock: node::lock,
        unlock: node::unlock,
        is_locked: node::is_locked,
        provider_name: name.as_ptr(),
        provider_version: version.as_ptr(),
        provider_vendor: vendor.as_ptr(),
        free: node::free::<P>,
        dlh: ptr::null_mut(),
        ctx: ptr::null_mut(),
    };
    // SAFETY: non-null and aligned (checked), and by the contract room for it.
    unsafe { handle.write(filled) };
    0
}
