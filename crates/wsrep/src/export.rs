//! The macro that makes a cdylib a provider library.

use std::ffi::{CStr, c_char};

use crate::abi;

/// Exports a [`Provider`](crate::Provider) from a cdylib under the names the server
/// looks up. Write it once, at the top level of the cdylib's crate.
///
/// ```
/// # mod doc {
/// # use dromon_wsrep::*;
/// # use std::sync::Arc;
/// # struct Mine;
/// # impl Provider for Mine {
/// #   type Trx = u64;
/// #   fn init(_: InitArgs, _: Server) -> Result<Self, Status> { Ok(Mine) }
/// #   fn capabilities(&self) -> u32 { 0 }
/// #   fn options_set(&self, _: &str) -> Status { Status::Ok }
/// #   fn options_get(&self) -> String { String::new() }
/// #   fn connect(&self, _: &str, _: &str, _: &str, _: bool) -> Status { Status::Ok }
/// #   fn disconnect(&self) -> Status { Status::Ok }
/// #   fn recv(&self, _: RecvContext<'_, u64>) -> Status { Status::Ok }
/// #   fn append_key(&self, _: u64, _: &mut TrxSlot<'_, u64>, _: &[&[u8]], _: KeyType) -> Status { Status::Ok }
/// #   fn append_data(&self, _: u64, _: &mut TrxSlot<'_, u64>, _: &[u8], _: DataType) -> Status { Status::Ok }
/// #   fn certify(&self, _: u64, _: u64, _: &mut TrxSlot<'_, u64>, _: u32, _: &mut TrxMeta) -> Status { Status::Ok }
/// #   fn commit_order_enter(&self, _: u64, _: &Arc<u64>, _: &TrxMeta) -> Status { Status::Ok }
/// #   fn commit_order_leave(&self, _: u64, _: &Arc<u64>, _: &TrxMeta, _: Option<&[u8]>) -> Status { Status::Ok }
/// #   fn release(&self, _: u64, _: &mut TrxSlot<'_, u64>) -> Status { Status::Ok }
/// #   fn replay_trx(&self, _: u64, _: &Arc<u64>, _: ReplayContext<'_, u64>) -> Status { Status::Ok }
/// #   fn abort_certification(&self, _: Seqno, _: u64) -> (Status, Seqno) { (Status::Ok, -1) }
/// #   fn rollback(&self, _: u64) -> Status { Status::Ok }
/// #   fn sync_wait(&self, _: Option<Gtid>, _: i32) -> (Status, Gtid) { (Status::Ok, Gtid::UNDEFINED) }
/// #   fn last_committed_id(&self) -> Gtid { Gtid::UNDEFINED }
/// #   fn to_execute_start(&self, _: u64, _: &[&[&[u8]]], _: &[&[u8]], _: u32, _: &mut TrxMeta) -> Status { Status::Ok }
/// #   fn to_execute_end(&self, _: u64, _: Option<&[u8]>) -> Status { Status::Ok }
/// #   fn sst_sent(&self, _: Gtid, _: i32) -> Status { Status::Ok }
/// #   fn sst_received(&self, _: Gtid, _: Option<&[u8]>, _: i32) -> Status { Status::Ok }
/// #   fn stats_get(&self) -> Vec<StatsVar> { Vec::new() }
/// #   fn stats_reset(&self) {}
/// #   fn pause(&self) -> Result<Seqno, Status> { Ok(0) }
/// #   fn resume(&self) -> Status { Status::Ok }
/// #   fn desync(&self) -> Status { Status::Ok }
/// #   fn resync(&self) -> Status { Status::Ok }
/// #   fn parameters(&self) -> Vec<Parameter> { Vec::new() }
/// #   fn close(&self) {}
/// # }
/// dromon_wsrep::export_provider! {
///     provider: Mine,
///     name: "Dromon",
///     version: "26.4.24(r0)",
///     vendor: "Dromon",
/// }
/// # }
/// # fn main() {}
/// ```
///
/// The server shows `version` as `wsrep_provider_version`; its test suite reads the
/// leading dotted number.
#[macro_export]
macro_rules! export_provider {
    (
        provider: $provider:ty,
        name: $name:expr,
        version: $version:expr,
        vendor: $vendor:expr $(,)?
    ) => {
        const _: () = {
            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals)]
            static wsrep_interface_version: $crate::__private::InterfaceVersion =
                $crate::__private::InterfaceVersion::CURRENT;

            #[unsafe(no_mangle)]
            unsafe extern "C" fn wsrep_loader(
                handle: *mut $crate::abi::wsrep_t,
            ) -> ::std::ffi::c_int {
                const NAME: &::std::ffi::CStr =
                    $crate::__private::c_text(::std::concat!($name, "\0"));
                const VERSION: &::std::ffi::CStr =
                    $crate::__private::c_text(::std::concat!($version, "\0"));
                const VENDOR: &::std::ffi::CStr =
                    $crate::__private::c_text(::std::concat!($vendor, "\0"));
                // SAFETY: the server passes memory for a `wsrep_t`.
                unsafe { $crate::__private::load::<$provider>(handle, NAME, VERSION, VENDOR) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn wsrep_init_allowlist_service_v1(
                service: *mut $crate::abi::wsrep_allowlist_service_v1_t,
            ) -> ::std::ffi::c_int {
                // SAFETY: the server passes its structure.
                unsafe { $crate::__private::init_allowlist(service) }
            }

            #[unsafe(no_mangle)]
            extern "C" fn wsrep_deinit_allowlist_service_v1() {
                $crate::__private::deinit_allowlist();
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn wsrep_init_event_service_v1(
                service: *mut $crate::abi::wsrep_event_service_v1_t,
            ) -> ::std::ffi::c_int {
                // SAFETY: the server passes its structure.
                unsafe { $crate::__private::init_event(service) }
            }

            #[unsafe(no_mangle)]
            extern "C" fn wsrep_deinit_event_service_v1() {
                $crate::__private::deinit_event();
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn wsrep_init_config_service_v1(
                service: *mut $crate::abi::wsrep_config_service_v1_t,
            ) -> ::std::ffi::c_int {
                // SAFETY: the server passes its structure.
                unsafe {
                    $crate::__private::init_config(
                        service,
                        $crate::__private::get_parameters::<$provider>,
                    )
                }
            }

            #[unsafe(no_mangle)]
            extern "C" fn wsrep_deinit_config_service_v1() {}

            #[unsafe(no_mangle)]
            extern "C" fn wsrep_node_isolation_mode_set_v1(mode: u32) -> u32 {
                $crate::isolation::set_mode(mode)
            }
        };
    };
}

/// The type of the exported data symbol: a pointer to the version text.
#[repr(transparent)]
pub struct InterfaceVersion(#[allow(dead_code)] *const c_char);

// SAFETY: it points to constant text.
unsafe impl Sync for InterfaceVersion {}

impl InterfaceVersion {
    /// The version this crate speaks.
    pub const CURRENT: InterfaceVersion = InterfaceVersion(abi::INTERFACE_VERSION.as_ptr());
}

/// Text that ends with its only NUL, checked when compiling.
pub const fn c_text(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a provider string must not have a NUL inside"),
    }
}
