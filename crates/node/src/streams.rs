//! The streaming transactions that clients asked for (`wsrep_trx_fragment_size`)
//! and that are not over, as the order shows them: the same on every node, but
//! for those that began before a node came.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dromon_writeset::{Header, Seqno, Uuid};

/// One that is not over, or has just ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The member it comes from.
    pub source: Uuid,
    /// Its number there.
    pub trx: u64,
    /// The connection of its client.
    pub conn: u64,
    /// Place of the first fragment seen here.
    pub first: Seqno,
    /// Fragments that passed.
    pub fragments: u64,
    /// Bytes of their changes.
    pub bytes: u64,
    /// When the first was seen here.
    pub began: Instant,
}

impl Stream {
    /// How long ago it began here.
    pub fn age(&self) -> Duration {
        self.began.elapsed()
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Streams {
    open: BTreeMap<(Uuid, u64), Stream>,
}

/// How a streaming transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// It committed at its last fragment's place.
    Committed,
    /// It was rolled back.
    RolledBack,
}

impl Streams {
    /// A write set took its place. What it ended, if it was the last fragment of a
    /// streaming transaction or its rollback.
    pub fn delivered(
        &mut self,
        seqno: Seqno,
        header: &Header,
        bytes: u64,
        passed: bool,
    ) -> Option<(Stream, StreamEnd)> {
        let flags = header.flags;
        let whole = flags.starts() && flags.ends();
        if flags.is_toi() || whole {
            return None;
        }
        let id = (header.source, header.trx_id);
        if flags.is_rollback() {
            return self.open.remove(&id).map(|s| (s, StreamEnd::RolledBack));
        }
        if !passed {
            // Its origin sends the rollback of what passed before.
            return None;
        }
        let stream = self.open.entry(id).or_insert_with(|| Stream {
            source: header.source,
            trx: header.trx_id,
            conn: header.conn_id,
            first: seqno,
            fragments: 0,
            bytes: 0,
            began: Instant::now(),
        });
        stream.fragments += 1;
        stream.bytes += bytes;
        if !flags.ends() {
            return None;
        }
        self.open.remove(&id).map(|s| (s, StreamEnd::Committed))
    }

    /// Servers roll back what came from a member that is gone.
    pub fn keep_members(&mut self, is_member: impl Fn(&Uuid) -> bool) -> Vec<Stream> {
        let gone = self
            .open
            .extract_if(.., |(source, _), _| !is_member(source));
        gone.map(|(_, s)| s).collect()
    }

    /// Those that are not over.
    pub fn open(&self) -> impl Iterator<Item = &Stream> {
        self.open.values()
    }

    /// They belong to a connection to the cluster.
    pub fn clear(&mut self) {
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dromon_writeset::Flags;

    fn header(trx_id: u64, flags: Flags) -> Header {
        Header {
            flags,
            source: Uuid([3; 16]),
            trx_id,
            conn_id: 7,
            last_seen: 0,
            prev_fragment: -1,
            chunk: 0,
        }
    }

    #[test]
    fn fragments_add_up_until_the_end() {
        let mut all = Streams::default();
        let whole = Flags::TRX_START | Flags::TRX_END;
        assert_eq!(all.delivered(1, &header(1, whole), 10, true), None);
        assert_eq!(all.open().count(), 0, "no streaming transaction");
        assert_eq!(
            all.delivered(2, &header(2, Flags::TRX_START), 100, true),
            None
        );
        assert_eq!(all.delivered(3, &header(2, Flags::NONE), 50, true), None);
        assert_eq!(all.delivered(4, &header(2, Flags::NONE), 50, false), None);
        let open: Vec<_> = all.open().copied().collect();
        assert_eq!(
            (open[0].fragments, open[0].bytes, open[0].first),
            (2, 150, 2)
        );
        let (ended, how) = all
            .delivered(5, &header(2, Flags::TRX_END), 5, true)
            .expect("it ends");
        assert_eq!(
            (ended.fragments, ended.bytes, how),
            (3, 155, StreamEnd::Committed)
        );
        assert_eq!(all.open().count(), 0);
    }

    #[test]
    fn rollbacks_and_departures_end_them() {
        let mut all = Streams::default();
        for trx in [1, 2] {
            all.delivered(1, &header(trx, Flags::TRX_START), 1, true);
        }
        let rollback = Flags::ROLLBACK | Flags::PA_UNSAFE;
        let ended = all.delivered(3, &header(1, rollback), 0, true);
        assert_eq!(ended.map(|(_, how)| how), Some(StreamEnd::RolledBack));
        assert_eq!(all.delivered(4, &header(1, rollback), 0, true), None);
        assert!(all.keep_members(|_| true).is_empty());
        let gone = all.keep_members(|m| *m != Uuid([3; 16]));
        assert_eq!(gone.iter().map(|s| s.trx).collect::<Vec<_>>(), [2]);
        assert_eq!(all.open().count(), 0);
    }
}
