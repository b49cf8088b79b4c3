//! MariaDB's GTID list, near the beginning of every file.
//!
//! ```text
//! 0  count u32, in its lower 28 bits; flags in the upper 4
//! 4  for each: domain u32, server u32, seqno u64
//!    an empty list: two zeros more
//! ```

use crate::bytes::Reader;
use crate::error::EventError;
use crate::gtid::{BinlogState, Gtid};

const COUNT_MAX: u32 = (1 << 28) - 1;
const EMPTY_LEN: usize = 6;

/// Flags of a GTID list.
pub mod gtid_list_flags {
    /// Made while sending: the replica's UNTIL has been reached.
    pub const UNTIL_REACHED: u32 = 1 << 28;
    /// Made while sending: the replica shall forget about the domains it lists.
    pub const IGNORE_GTIDS: u32 = 1 << 29;
}

/// The groups before this place of the binlog.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GtidList {
    /// See [`gtid_list_flags`].
    pub flags: u32,
    /// In the order of the event.
    pub gtids: Vec<Gtid>,
}

impl GtidList {
    /// Of this state, without flags.
    pub fn of(state: &BinlogState) -> GtidList {
        GtidList {
            flags: 0,
            gtids: state.iter().collect(),
        }
    }

    /// As a state.
    pub fn state(&self) -> BinlogState {
        BinlogState::from_gtids(self.gtids.iter().copied())
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<GtidList, EventError> {
        let first = r.u32("count")?;
        let count = (first & COUNT_MAX) as usize;
        let mut gtids = Vec::with_capacity(count.min(r.left() / 16));
        for _ in 0..count {
            gtids.push(Gtid {
                domain: r.u32("domain")?,
                server: r.u32("server id")?,
                seqno: r.u64("seqno")?,
            });
        }
        if count == 0 {
            // The padding; anything else has none.
            while r.left() > 0 {
                r.zero("padding")?;
            }
        }
        r.end()?;
        Ok(GtidList {
            flags: first & !COUNT_MAX,
            gtids,
        })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        let count = self.gtids.len() as u32;
        assert!(count <= COUNT_MAX, "so many GTIDs fit no event");
        out.extend_from_slice(&(count | (self.flags & !COUNT_MAX)).to_le_bytes());
        for gtid in &self.gtids {
            out.extend_from_slice(&gtid.domain.to_le_bytes());
            out.extend_from_slice(&gtid.server.to_le_bytes());
            out.extend_from_slice(&gtid.seqno.to_le_bytes());
        }
        if out.len() - begin < EMPTY_LEN {
            out.resize(begin + EMPTY_LEN, 0);
        }
    }
}
