//! Counts the memory that the library holds.
//!
//! A library inside somebody else's process cannot read its own share from the
//! system, so its allocator counts. Each thread gathers its changes and hands
//! them in when they exceed [`STEP`] bytes: the figures are right to that many
//! bytes a thread, and the counting costs next to nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering};

/// Bytes a thread may hold back.
pub const STEP: i64 = 64 << 10;

static HELD: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

thread_local! {
    // No destructor: the server's threads may outlive the library.
    static UNCOUNTED: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, counted. Only Rust code of the library it is
/// installed in uses it.
pub struct Counting;

fn count(change: i64) {
    // A thread that is being torn down is counted no more.
    let _ = UNCOUNTED.try_with(|cell| {
        let sum = cell.get() + change;
        if sum.abs() < STEP {
            cell.set(sum);
            return;
        }
        cell.set(0);
        let held = HELD.fetch_add(sum, Ordering::Relaxed) + sum;
        PEAK.fetch_max(held, Ordering::Relaxed);
    });
}

// SAFETY: every call goes to the system's allocator unchanged; counting neither
// allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as i64 - layout.size() as i64);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

/// Lets the most that was held begin anew at what is held now.
pub fn forget_peak() {
    PEAK.store(HELD.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Bytes held now, and at most since the start or [`forget_peak`]. Zero where [`Counting`] is not
/// installed.
pub fn held() -> (u64, u64) {
    let get = |a: &AtomicI64| a.load(Ordering::Relaxed).max(0) as u64;
    (get(&HELD), get(&PEAK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_changes_are_seen_at_once() {
        let layout = Layout::from_size_align(3 << 20, 8).expect("a layout");
        let before = held().0;
        // SAFETY: allocated and freed with the same layout.
        let ptr = unsafe { Counting.alloc(layout) };
        assert!(!ptr.is_null());
        let during = held();
        // SAFETY: as above.
        unsafe { Counting.dealloc(ptr, layout) };
        assert!(during.0 >= before + (3 << 20) - STEP as u64);
        assert!(during.1 >= during.0);
        assert!(held().0 < during.0);
        forget_peak();
        assert!(held().1 < during.1, "the peak is what is held now");
    }
}
