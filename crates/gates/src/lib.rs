//! The three gates: certify in order, apply in parallel, commit in order.
//!
//! ```text
//!   delivery ──ordered(seqno)──┐
//!                              v
//!        apply gate    enter when released >= depends_on     leave: release(seqno)
//!        commit gate   enter when left == seqno - 1          leave: leave(seqno)
//!                      (some: when released == seqno - 1)
//!
//!   left      every seqno up to here has left the commit gate
//!   released  every seqno up to here is finished: durable and visible
//! ```
//!
//! Certification in order is the delivery thread itself: it is one thread.
//! [`Positions`] is the plain state machine: no threads, no clock. [`Gates`] is
//! the thin blocking shell around it, [`ApplyQueue`] hands ordered events to
//! applier threads in seqno order. The simulation steps [`Positions`] alone.
//!
//! Invariants:
//!
//! * `released <= left <= ordered`, each only grows (but for [`Positions::reset`]).
//! * Every ordered seqno leaves the commit gate exactly once, in order.
//! * The lowest unfinished seqno can always move: it depends only on lower ones.

#![forbid(unsafe_code)]

mod line;
mod positions;
mod queue;
mod shell;
mod waiter;

pub use line::{Drained, Kept, Overflow};
pub use positions::{ApplyStats, Positions, Seqno};
pub use queue::{ApplyQueue, Popped, QueueItem, QueueStats};
pub use shell::{Before, Gates, WaitError};
pub use waiter::Waiter;
