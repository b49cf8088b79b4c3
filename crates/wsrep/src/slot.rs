//! The provider's place in a transaction handle of the server.
//!
//! A handle is `{ trx_id, opaque }`. For local transactions `opaque` owns one count
//! of an `Arc` of the author's transaction type. For events that the provider hands
//! to the server (`apply`), it is only lent for the duration of the callback; bit 0
//! marks that, so that a lent handle can never be released as if it were owned.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

const LENT: usize = 1;

/// The `opaque` field of a local transaction's handle: empty, or an `Arc` of the
/// author's transaction object, kept by the server between calls.
pub struct TrxSlot<'a, T> {
    opaque: &'a mut *mut c_void,
    // The same count that `opaque` stands for; never dropped from here.
    held: Option<ManuallyDrop<Arc<T>>>,
}

impl<'a, T> TrxSlot<'a, T> {
    /// # Safety
    /// `*opaque` is null or was made by [`TrxSlot::set`] for the same `T`.
    pub(crate) unsafe fn new(opaque: &'a mut *mut c_void) -> TrxSlot<'a, T> {
        check_alignment::<T>();
        let held = (!opaque.is_null()).then(|| {
            // SAFETY: by the contract above this pointer came from `Arc::into_raw`
            // and its count has not been given back.
            ManuallyDrop::new(unsafe { Arc::from_raw(opaque.cast_const().cast::<T>()) })
        });
        TrxSlot { opaque, held }
    }

    /// The object, if there is one; clone it to keep it longer than the call.
    pub fn get(&self) -> Option<&Arc<T>> {
        self.held.as_deref()
    }

    /// Whether the server holds no object for this transaction.
    pub fn is_empty(&self) -> bool {
        self.held.is_none()
    }

    /// Puts an object in; the server keeps it until it is taken out. Returns the former one.
    pub fn set(&mut self, trx: Arc<T>) -> Option<Arc<T>> {
        let former = self.take();
        let raw = Arc::into_raw(trx);
        *self.opaque = raw.cast_mut().cast();
        // SAFETY: `raw` was made one line above; its one count is shared by `opaque`
        // and `held`, and `held` never drops it.
        self.held = Some(ManuallyDrop::new(unsafe { Arc::from_raw(raw) }));
        former
    }

    /// The object, made and put in first if there is none.
    pub fn get_or_insert_with(&mut self, make: impl FnOnce() -> Arc<T>) -> &Arc<T> {
        if self.held.is_none() {
            self.set(make());
        }
        self.held
            .as_deref()
            .expect("the slot was filled just above")
    }

    /// Takes the object out; the server's handle is empty afterwards.
    pub fn take(&mut self) -> Option<Arc<T>> {
        *self.opaque = ptr::null_mut();
        self.held.take().map(ManuallyDrop::into_inner)
    }
}

/// Pointer for a handle that lends `trx` to the server while a callback runs.
pub(crate) fn lend<T>(trx: &Arc<T>) -> *mut c_void {
    check_alignment::<T>();
    Arc::as_ptr(trx)
        .cast_mut()
        .cast::<c_void>()
        .map_addr(|address| address | LENT)
}

/// Whether a handle's pointer was made by [`lend`].
pub(crate) fn is_lent(opaque: *mut c_void) -> bool {
    opaque.addr() & LENT != 0
}

/// The object behind an owned or lent pointer, without touching its count.
///
/// # Safety
/// `opaque` is null, or comes from a [`TrxSlot`] or [`lend`] of the same `T` and the
/// object is alive for as long as the result is used.
pub(crate) unsafe fn peek<T>(opaque: *mut c_void) -> Option<ManuallyDrop<Arc<T>>> {
    if opaque.is_null() {
        return None;
    }
    let raw = opaque.map_addr(|address| address & !LENT);
    // SAFETY: by the contract above this is the pointer of a living `Arc<T>`; the
    // `ManuallyDrop` keeps its count as it is.
    Some(ManuallyDrop::new(unsafe {
        Arc::from_raw(raw.cast_const().cast::<T>())
    }))
}

fn check_alignment<T>() {
    const {
        assert!(
            align_of::<T>() >= 2,
            "the transaction type needs an alignment of at least 2: bit 0 of its address is a mark"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_follows_set_and_take() {
        let mut opaque = ptr::null_mut();
        let trx = Arc::new(5_u64);
        // SAFETY: null is allowed.
        let mut slot = unsafe { TrxSlot::<u64>::new(&mut opaque) };
        assert!(slot.is_empty());
        assert!(slot.set(trx.clone()).is_none());
        assert_eq!(Arc::strong_count(&trx), 2);
        let _ = slot;
        assert!(!opaque.is_null());
        assert!(!is_lent(opaque));

        // SAFETY: filled by `set` above.
        let mut slot = unsafe { TrxSlot::<u64>::new(&mut opaque) };
        assert_eq!(**slot.get().unwrap(), 5);
        assert_eq!(Arc::strong_count(&trx), 2);
        let former = slot.set(Arc::new(6)).unwrap();
        assert_eq!(*former, 5);
        drop(former);
        assert_eq!(Arc::strong_count(&trx), 1);
        assert_eq!(*slot.take().unwrap(), 6);
        assert!(slot.take().is_none());
        assert_eq!(**slot.get_or_insert_with(|| Arc::new(7)), 7);
        assert_eq!(**slot.get_or_insert_with(|| Arc::new(8)), 7);
        slot.take();
        assert!(opaque.is_null());
    }

    #[test]
    fn a_lent_pointer_is_marked_and_leaves_the_count_alone() {
        let trx = Arc::new(9_u64);
        let opaque = lend(&trx);
        assert!(is_lent(opaque));
        // SAFETY: lent from `trx`, which lives on.
        let seen = unsafe { peek::<u64>(opaque) }.unwrap();
        assert_eq!(**seen, 9);
        assert_eq!(Arc::strong_count(&trx), 1);
        // SAFETY: null is allowed.
        assert!(unsafe { peek::<u64>(ptr::null_mut()) }.is_none());
    }
}
