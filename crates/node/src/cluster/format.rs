//! The format of a saved state.

use dromon_writeset::{Seqno, Uuid};

use super::{ClusterState, FORMAT};
use crate::messages::Position;

impl ClusterState {
    /// The format that this build reads and writes.
    pub const FORMAT: u8 = FORMAT;

    /// The format of an encoded checkpoint, if another build than this one reads it.
    pub fn other_format(node: &[u8]) -> Option<u8> {
        // It is the first byte, whatever follows.
        node.first().copied().filter(|format| *format != FORMAT)
    }

    /// The position in an encoded checkpoint, without reading all of it.
    pub fn peek_position(node: &[u8]) -> Option<Position> {
        let of_this = Self::other_format(node).is_none();
        Self::peek_of_any_build(node).filter(|_| of_this)
    }

    /// The same whichever build wrote it.
    pub fn peek_of_any_build(node: &[u8]) -> Option<Position> {
        // Behind the format these come first, in all of them.
        let (_, history, seqno): (u8, Uuid, Seqno) = postcard::take_from_bytes(node).ok()?.0;
        Some(Position { history, seqno })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_position_is_where_every_build_looks_for_it() {
        let at = Position {
            history: Uuid([7; 16]),
            seqno: 4,
        };
        let (_, node) = ClusterState::genesis(at).encode();
        for other in [FORMAT - 1, FORMAT, FORMAT + 1] {
            let mut node = node.to_vec();
            node[0] = other;
            assert_eq!(ClusterState::peek_of_any_build(&node), Some(at));
        }
    }
}
