//! The streaming transactions that clients asked for (`wsrep_trx_fragment_size`)
//! and that are not over, as the order shows them: the same on every node, but
//! for those that began before a node came.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dromon_writeset::{Header, Seqno, Uuid};

/// The log tells of one that is under way when it is so old, then each time it is
/// twice as old.
pub const TOLD_AGE: Duration = Duration::from_secs(10);

/// A rollback that did not take its place within this time is sent again.
const ROLLBACK_AGAIN: Duration = Duration::from_secs(10);

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
    /// How long its fragments were held back; known at its own node only.
    pub held: Duration,
    /// It was doomed, and its own node has not sent its rollback yet.
    pub doomed: bool,
    /// The log tells of it when it is so old.
    tell_at: Duration,
    /// When its rollback was last sent; known at its own node only.
    rollback_sent: Option<Instant>,
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
            held: Duration::ZERO,
            doomed: false,
            tell_at: TOLD_AGE,
            rollback_sent: None,
        });
        stream.fragments += 1;
        stream.bytes += bytes;
        if !flags.ends() {
            return None;
        }
        self.open.remove(&id).map(|s| (s, StreamEnd::Committed))
    }

    /// A fragment of transaction `id` was held back for `time`.
    pub fn held(&mut self, id: (Uuid, u64), time: Duration) {
        if let Some(stream) = self.open.get_mut(&id) {
            stream.held += time;
        }
    }

    /// Transaction `id` was doomed.
    pub fn doomed(&mut self, id: (Uuid, u64)) -> Option<Stream> {
        let stream = self.open.get_mut(&id)?;
        stream.doomed = true;
        Some(*stream)
    }

    /// The rollback of transaction `id` was sent.
    pub fn rollback_sent(&mut self, id: (Uuid, u64)) {
        if let Some(stream) = self.open.get_mut(&id) {
            stream.rollback_sent = Some(Instant::now());
        }
    }

    /// Whether transaction `id` is not over, and nobody has sent its rollback.
    pub fn is_open(&self, id: (Uuid, u64)) -> bool {
        self.open
            .get(&id)
            .is_some_and(|s| s.rollback_sent.is_none())
    }

    /// The numbers of those of `source` that the server does not know any more, and
    /// whose rollback was not sent for a while.
    pub fn dropped(&self, source: Uuid, is_known: impl Fn(u64) -> bool) -> Vec<u64> {
        let own = self.open.range((source, 0)..=(source, u64::MAX));
        own.filter(|((_, trx), stream)| {
            let sent = stream.rollback_sent;
            sent.is_none_or(|at| at.elapsed() >= ROLLBACK_AGAIN) && !is_known(*trx)
        })
        .map(|((_, trx), _)| *trx)
        .collect()
    }

    /// Those the log should tell of: they have become old.
    pub fn take_old(&mut self) -> Vec<Stream> {
        let old = self.open.values_mut().filter(|s| s.age() >= s.tell_at);
        old.map(|s| {
            s.tell_at = next_told(s.age());
            *s
        })
        .collect()
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

/// When the log tells again of one that is so old.
pub fn next_told(age: Duration) -> Duration {
    let mut next = TOLD_AGE;
    while next <= age {
        next *= 2;
    }
    next
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
    fn the_log_tells_of_old_ones_less_and_less_often() {
        let s = Duration::from_secs;
        let told = [0, 9, 10, 19, 20, 70].map(|age| next_told(s(age)));
        assert_eq!(told, [10, 10, 20, 20, 40, 80].map(s));
        let mut all = Streams::default();
        all.delivered(1, &header(1, Flags::TRX_START), 1, true);
        assert_eq!(all.take_old(), []);
        if let Some(stream) = all.open.values_mut().next() {
            stream.tell_at = Duration::ZERO;
        }
        assert_eq!(all.take_old().len(), 1);
        assert_eq!(all.take_old(), [], "once");
    }

    #[test]
    fn how_long_one_was_held_back_adds_up() {
        let mut all = Streams::default();
        all.delivered(1, &header(1, Flags::TRX_START), 1, true);
        for id in [1, 1, 2] {
            all.held((Uuid([3; 16]), id), Duration::from_millis(20));
        }
        let held: Vec<_> = all.open().map(|s| s.held.as_millis()).collect();
        assert_eq!(held, [40]);
    }

    #[test]
    fn who_is_open_without_a_client() {
        let own = Uuid([3; 16]);
        let mut all = Streams::default();
        for trx in [1, 2, 3] {
            all.delivered(1, &header(trx, Flags::TRX_START), 1, true);
        }
        let mut other = header(4, Flags::TRX_START);
        other.source = Uuid([4; 16]);
        all.delivered(1, &other, 1, true);
        assert_eq!(all.dropped(own, |trx| trx == 2), [1, 3]);
        all.rollback_sent((own, 3));
        assert_eq!(all.dropped(own, |trx| trx == 2), [1], "3 is on its way");
        assert_eq!(
            [1, 3, 9].map(|t| all.is_open((own, t))),
            [true, false, false]
        );
        all.delivered(2, &header(1, Flags::TRX_END), 1, true);
        assert!(!all.is_open((own, 1)));
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
