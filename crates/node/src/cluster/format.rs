//! The format of a saved state.

use super::{ClusterState, FORMAT};

impl ClusterState {
    /// The format that this build reads and writes.
    pub const FORMAT: u8 = FORMAT;

    /// The format of an encoded checkpoint, if another build than this one reads it.
    pub fn other_format(node: &[u8]) -> Option<u8> {
        // It is the first byte, whatever follows.
        node.first().copied().filter(|format| *format != FORMAT)
    }
}
