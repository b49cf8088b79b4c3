//! The optional services the server offers before `init` (allowlist, event) or asks
//! for after `connect` (config). They are global to the library: the interface hands
//! them over without a provider handle.

use std::ffi::{CString, c_int, c_void};
use std::sync::{PoisonError, RwLock};

use crate::abi;
use crate::types::{AllowlistKey, Status};

/// A function of the server's with its own context.
#[derive(Clone, Copy)]
struct Hook<F: Copy> {
    call: F,
    context: *mut c_void,
}

// SAFETY: the context is only handed back to the server's function, which the
// interface allows from any thread.
unsafe impl<F: Copy + Send> Send for Hook<F> {}
// SAFETY: as above.
unsafe impl<F: Copy + Sync> Sync for Hook<F> {}

type Offered<F> = RwLock<Option<Hook<F>>>;

static ALLOWLIST: Offered<abi::wsrep_allowlist_cb_t> = RwLock::new(None);
static EVENT: Offered<abi::wsrep_event_cb_t> = RwLock::new(None);

fn store<F: Copy>(place: &Offered<F>, hook: Option<Hook<F>>) {
    *place.write().unwrap_or_else(PoisonError::into_inner) = hook;
}

/// A copy, so that no lock is held while the server is called.
fn load<F: Copy>(place: &Offered<F>) -> Option<Hook<F>> {
    *place.read().unwrap_or_else(PoisonError::into_inner)
}

/// # Safety
/// `service` is NULL or points to the server's structure.
pub unsafe fn init_allowlist(service: *mut abi::wsrep_allowlist_service_v1_t) -> c_int {
    // SAFETY: by the contract above.
    let Some(service) = (unsafe { service.as_ref() }) else {
        return abi::EINVAL;
    };
    let hook = service.allowlist_cb.map(|call| Hook {
        call,
        context: service.context,
    });
    store(&ALLOWLIST, hook);
    0
}

/// Forgets the allowlist service.
pub fn deinit_allowlist() {
    store(&ALLOWLIST, None);
}

/// # Safety
/// `service` is NULL or points to the server's structure.
pub unsafe fn init_event(service: *mut abi::wsrep_event_service_v1_t) -> c_int {
    // SAFETY: by the contract above.
    let Some(service) = (unsafe { service.as_ref() }) else {
        return abi::EINVAL;
    };
    let hook = service.event_cb.map(|call| Hook {
        call,
        context: service.context,
    });
    store(&EVENT, hook);
    0
}

/// Forgets the event service.
pub fn deinit_event() {
    store(&EVENT, None);
}

/// # Safety
/// `service` is NULL or points to the server's structure.
pub unsafe fn init_config(
    service: *mut abi::wsrep_config_service_v1_t,
    get_parameters: abi::wsrep_get_parameters_fn,
) -> c_int {
    // SAFETY: by the contract above.
    let Some(service) = (unsafe { service.as_mut() }) else {
        return abi::EINVAL;
    };
    service.get_parameters = Some(get_parameters);
    0
}

pub(crate) fn allowed(key: AllowlistKey, value: &str) -> bool {
    let Some(hook) = load(&ALLOWLIST) else {
        return true;
    };
    // The server reads the value up to a NUL, whatever length is given.
    let Ok(value) = CString::new(value) else {
        return false;
    };
    let value_buf = abi::wsrep_buf_t {
        ptr: value.as_ptr().cast(),
        len: value.as_bytes().len(),
    };
    // SAFETY: the callback is the server's own; the value outlives the call.
    let answer = unsafe { (hook.call)(hook.context, key as u32, &value_buf) };
    answer == Status::Ok as u32
}

pub(crate) fn event(name: &str, json: &str) {
    let Some(hook) = load(&EVENT) else {
        return;
    };
    let (Ok(name), Ok(json)) = (CString::new(name), CString::new(json)) else {
        return;
    };
    // SAFETY: the callback is the server's own; both strings outlive the call.
    unsafe { (hook.call)(hook.context, name.as_ptr(), json.as_ptr()) }
}
