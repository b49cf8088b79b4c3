//! What this node shows of large transactions under way, in chunks or as fragments
//! that a client asked for: in the status, and in the log.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use dromon_gates::Seqno;
use dromon_writeset::{Uuid, WriteSet};

use super::{Node, lock};
use crate::cluster::ClusterView;
use crate::streams::{Stream, StreamEnd, TOLD_AGE};

/// So many of them, the largest, are shown.
const SHOWN: usize = 20;
/// The log tells the end of a streaming transaction from so many bytes on, or if
/// it took so long.
const TOLD_BYTES: u64 = 1 << 20;

/// One of them, for people.
pub(super) struct LargeOpen {
    /// Transaction, connection and node.
    pub whose: String,
    /// What is there so far.
    pub parts: String,
    pub bytes: u64,
    pub age: Duration,
    /// Who wanted it to travel so.
    pub by: &'static str,
    /// How long it was held back at this node, its own.
    pub held: Duration,
}

impl LargeOpen {
    fn text(&self) -> String {
        format!(
            "{}: {}, {:.1} MB, {:.1} s, {}{}",
            self.whose,
            self.parts,
            self.bytes as f64 / 1e6,
            self.age.as_secs_f64(),
            self.by,
            held_text(self.held)
        )
    }
}

fn held_text(held: Duration) -> String {
    match held.is_zero() {
        true => String::new(),
        false => format!(", held back for {:.1} s", held.as_secs_f64()),
    }
}

impl Node {
    /// The words for a transaction: `source` is a member's uuid.
    pub(super) fn whose_transaction(&self, source: Uuid, trx: u64, conn: u64) -> String {
        let name = self.names(&[source]).join("");
        format!("transaction {trx} of connection {conn} on {name}")
    }

    fn whose_stream(&self, stream: &Stream) -> String {
        self.whose_transaction(stream.source, stream.trx, stream.conn)
    }

    fn of_stream(&self, s: &Stream) -> LargeOpen {
        LargeOpen {
            whose: self.whose_stream(s),
            parts: format!("{} fragments", s.fragments),
            bytes: s.bytes,
            age: s.age(),
            by: match s.doomed {
                true => "asked for, doomed",
                false => "asked for",
            },
            held: s.held,
        }
    }

    /// The log tells of those that have become old.
    pub(super) fn tell_old(&self) {
        let streams = lock(&self.streams).take_old();
        let mut old = self.old_chunked();
        old.extend(streams.iter().map(|s| self.of_stream(s)));
        for large in old {
            self.note(&format!(
                "a large transaction is under way: {}",
                large.text()
            ));
        }
    }

    /// Large transactions that are not over, for the status.
    pub(super) fn open_large(&self) -> String {
        let streams: Vec<Stream> = lock(&self.streams).open().copied().collect();
        let mut open = self.open_chunked();
        open.extend(streams.iter().map(|s| self.of_stream(s)));
        open.sort_by_key(|l| std::cmp::Reverse(l.bytes));
        let more = open.len().saturating_sub(SHOWN);
        let mut texts: Vec<String> = open.iter().take(SHOWN).map(LargeOpen::text).collect();
        if more > 0 {
            texts.push(format!("and {more} smaller ones"));
        }
        texts.join("; ")
    }

    /// A write set took its place: it may be a fragment. On the delivery thread.
    pub(super) fn stream_delivered(&self, seqno: Seqno, write_set: &WriteSet, passed: bool) {
        let bytes = write_set.payload_len();
        let header = write_set.header();
        self.bulk_delivered(seqno, header, bytes, passed);
        if passed && header.flags.is_fragment() && header.flags.starts() {
            self.counters.streamed_asked_for.fetch_add(1, Relaxed);
        }
        let ended = lock(&self.streams).delivered(seqno, header, bytes, passed);
        let Some((stream, end)) = ended else { return };
        self.bulk_ended(&stream);
        if stream.bytes < TOLD_BYTES && stream.age() < TOLD_AGE {
            return;
        }
        let how = match end {
            StreamEnd::Committed => "committed",
            StreamEnd::RolledBack => "rolled back",
        };
        self.tell_stream(&stream, &format!("{how} at seqno {seqno}"));
    }

    /// Those of members that are gone are rolled back, at this view.
    pub(super) fn streams_left(&self, view: &ClusterView) {
        let is_member = |uuid: &Uuid| view.members.iter().any(|m| m.uuid == *uuid);
        let gone = lock(&self.streams).keep_members(is_member);
        for stream in gone {
            self.bulk_ended(&stream);
            self.tell_stream(
                &stream,
                "rolled back, as its node left the cluster or lost touch with it",
            );
        }
    }

    fn tell_stream(&self, stream: &Stream, how: &str) {
        self.note(&format!(
            "{}: {how}; it had come in {} fragments since seqno {}, {:.1} MB in {:.1} s{} (its client asked for that)",
            self.whose_stream(stream),
            stream.fragments,
            stream.first,
            stream.bytes as f64 / 1e6,
            stream.age().as_secs_f64(),
            held_text(stream.held)
        ));
    }
}
