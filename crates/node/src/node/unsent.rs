//! What `wsrep_local_send_queue` counts, as with the peer: not who waits for an answer.

use std::sync::Mutex;

use super::lock;
use crate::status::QueueStat;

/// Clients whose write set waits to be sent: for flow control, a pause, or room in the order.
#[derive(Debug, Default)]
pub(super) struct Unsent(pub(super) Mutex<QueueStat>);

impl Unsent {
    /// One of them, until that is dropped.
    pub(super) fn enter(&self) -> InUnsent<'_> {
        lock(&self.0).enters();
        InUnsent(self)
    }
}

pub(super) struct InUnsent<'u>(&'u Unsent);

impl Drop for InUnsent<'_> {
    fn drop(&mut self) {
        lock(&self.0.0).leaves();
    }
}
