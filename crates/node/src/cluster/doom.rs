//! Streaming transactions that clients asked for, as far as they decide something:
//! which are open, and which are doomed.
//!
//! ```text
//!   seqno      1200       1205              1230        1241          1260
//!              fragment   fragment   ...    doom        fragment      rollback
//!   verdict    passed     passed            -           failed        passed
//!   receivers  applied    applied           rolled back nothing       nothing
//!   origin     applied    applied           nothing     failed        rolled back
//! ```
//!
//! A fragment of one is applied at once and keeps its locks until its end. Should a
//! write set between the two need one of them that no key names, it would wait for
//! what comes after itself. Any member that sees it wait asks for the doom.

use dromon_writeset::{Header, Seqno, Uuid};
use serde::{Deserialize, Serialize};

use super::{ClusterState, Event};
use crate::chain::Taken;

/// A streaming transaction that is open at a place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenStream {
    /// The member that it comes from.
    pub source: Uuid,
    /// Its number there.
    pub trx_id: u64,
    /// Place of its first fragment.
    pub first: Seqno,
    /// The first place at which all but its own node roll it back: that of a fragment
    /// that failed, or of its doom. No fragment of it passes any more.
    pub gone: Option<Seqno>,
}

/// What rolls a streaming transaction back where it was only applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RollsBack {
    /// Place of its first fragment.
    pub first: Seqno,
    /// It was rolled back there already: nothing is left to do, but for its own node.
    pub gone: Option<Seqno>,
}

impl OpenStream {
    /// It is rolled back at `seqno`, unless it was before.
    fn goes(&mut self, seqno: Seqno) -> RollsBack {
        let before = RollsBack {
            first: self.first,
            gone: self.gone,
        };
        self.gone.get_or_insert(seqno);
        before
    }
}

impl ClusterState {
    /// Where the stream that this fragment continues or ends was rolled back, if it was:
    /// others have nothing left of it that could go on.
    pub(super) fn gone_at(&self, header: &Header) -> Option<Seqno> {
        if !header.flags.is_followup_fragment() {
            return None;
        }
        let stream = self.streams.get(&(header.source, header.trx_id))?;
        stream.gone
    }

    /// A write set took its place. Whether it rolls a stream back where that is only
    /// applied.
    pub(super) fn stream_placed(
        &mut self,
        seqno: Seqno,
        header: &Header,
        passed: bool,
    ) -> Option<RollsBack> {
        let flags = header.flags;
        let id = (header.source, header.trx_id);
        if flags.is_rollback() {
            return self.streams.remove(&id).map(|mut s| s.goes(seqno));
        }
        if !flags.is_fragment() {
            return None;
        }
        if flags.starts() {
            if passed {
                let stream = OpenStream {
                    source: header.source,
                    trx_id: header.trx_id,
                    first: seqno,
                    gone: None,
                };
                self.streams.insert(id, stream);
            }
            return None;
        }
        // One that nobody knows was rolled back when its node lost touch.
        let stream = self.streams.get_mut(&id)?;
        if !passed {
            return Some(stream.goes(seqno));
        }
        if flags.ends() {
            self.streams.remove(&id);
        }
        None
    }

    /// A member asks for the doom of a stream, as the write set at `waits` waits for
    /// it. It counts if the stream is open, and nothing has rolled it back.
    pub(super) fn doom(&mut self, source: Uuid, trx_id: u64, waits: Seqno) -> Vec<Event> {
        let Some(stream) = self.streams.get_mut(&(source, trx_id)) else {
            return Vec::new(); // it is over
        };
        if stream.gone.is_some() || waits <= stream.first || waits > self.seqno {
            return Vec::new();
        }
        self.seqno += 1;
        let seqno = self.seqno;
        stream.goes(seqno);
        let stream = *stream;
        // Whoever takes the freed rows comes after it.
        self.certifier.view(seqno);
        self.takes(Taken::Doom { source, trx_id });
        self.forget_old();
        vec![Event::Doomed {
            seqno,
            stream,
            waits,
        }]
    }

    /// Servers roll back what came from a member that is gone.
    pub(super) fn forget_streams_left(&mut self) {
        let members = &self.members;
        self.streams
            .retain(|(source, _), _| members.contains_key(source));
    }

    /// Streaming transactions that are open: neither their end nor their rollback has
    /// its place.
    pub fn open_streams(&self) -> impl Iterator<Item = &OpenStream> {
        self.streams.values()
    }
}

#[cfg(test)]
mod tests;
