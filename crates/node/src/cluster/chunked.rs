//! Large write sets that are applied in chunks, so that small ones pass.
//!
//! ```text
//!   seqno   1200          1207        1215             1240
//!           chunk 0  ...  chunk 1 ... chunk 2 (last) .. end
//!           certified                                   commits
//!           START         -           -                 END
//!           └──────────── its keys are open ────────────┘
//! ```
//!
//! The write set travels and is certified whole; from then on it is decided.
//! Each further chunk gets its place by a [`Control::Chunk`] that one member
//! proposes at the appliers' pace; one that comes twice counts once.
//!
//! That place may lie ahead, so that servers can begin with the chunk while small
//! ones still take theirs before it:
//!
//! ```text
//!   Chunk{1200, 2, ahead: 6}                Chunk{1200, 3, ..}, a statement, a view ...
//!   1208  1209  1210  1211       1212  1213      1214        1215
//!   small small small small      nobody's        chunk 2     what comes
//!   └──── chunk 2 is applied ────┘
//! ```
//!
//! At most one has a place ahead. Whatever is not a plain write set makes it take
//! it first, so that all rules hold as if it had come then.
//!
//! Two things end it early, at a place of its own: a DDL on one of its tables,
//! and the departure of the member it came from.

use std::sync::{Arc, OnceLock};

use dromon_writeset::{Arrived, Flags, KeyHash, Made, Plan, Seqno, Uuid, WriteSet};
pub use dromon_writeset::{CHUNK_MAX, CHUNK_MIN};

use super::{ClusterState, Event, MemberState};
use crate::chain::Taken;

/// Set in the header's `chunk` beside the size: the write set inserts into or
/// deletes from a unique index other than the primary one, or changes rows that no
/// index finds, so that in chunks it closes its tables.
pub const CHUNK_CLOSES: u8 = 0x80;

/// The size of the chunks, as a power of two, in a header's `chunk`.
pub fn chunk_log2(chunk: u8) -> u8 {
    chunk & !CHUNK_CLOSES
}

/// While something is applied in chunks no checkpoint is taken, so that the log
/// grows. After this many bytes of it, further ones are not cut.
const SPAN_MAX: u64 = 1 << 30;

/// A chunk's place lies at most so far ahead.
pub const AHEAD_MAX: u32 = 1 << 12;

/// Set in the transaction numbers under which servers know what they apply in
/// chunks: no number of a server's own has it. The server keeps the number in a
/// table and passes it through a double on the way: 53 bits are all there are.
const CHUNKED_TRX: u64 = 1 << 52;

/// A large write set that passed, and how it is cut.
#[derive(Debug)]
pub struct Chunked {
    /// The seqno of its first chunk, where it was certified.
    pub id: Seqno,
    /// The whole of it.
    pub write_set: WriteSet,
    /// Where it is cut.
    pub plan: Plan,
    /// The origin under which it travelled.
    pub origin: Uuid,
    /// Its sender's mark.
    pub tag: u64,
    /// Log index of its last piece.
    pub index: u64,
    /// See [`Chunked::tables`].
    tables: OnceLock<Vec<KeyHash>>,
    /// See [`Chunked::made`].
    made: OnceLock<Vec<Made>>,
    /// See [`Chunked::looks_around`].
    looks_around: OnceLock<bool>,
}

/// One of the events that make up a [`Chunked`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkPart {
    /// Data, counted from 0.
    Data(u32),
    /// It commits.
    End,
    /// It is rolled back.
    Rollback,
}

impl Chunked {
    /// The tables that it names, found out once: that takes a while.
    pub fn tables(&self) -> &[KeyHash] {
        let named = || self.write_set.keys().named_tables();
        self.tables.get_or_init(named)
    }

    /// The tables in which it makes or removes keys, found out once.
    pub fn made(&self) -> &[Made] {
        let made = || self.write_set.keys().made_tables();
        self.made.get_or_init(made)
    }

    /// See [`Head::looks_around`](dromon_writeset::Head::looks_around), found out once.
    pub fn looks_around(&self) -> bool {
        let looks = || self.write_set.looks_around();
        *self.looks_around.get_or_init(looks)
    }

    /// The member it came from.
    pub fn source(&self) -> Uuid {
        self.write_set.header().source
    }

    /// How many chunks of data it has.
    pub fn chunks(&self) -> u32 {
        self.plan.len() as u32
    }

    /// The part that comes as number `n`, counted from 0.
    pub fn part(&self, n: u32) -> ChunkPart {
        if n < self.chunks() {
            ChunkPart::Data(n)
        } else {
            ChunkPart::End
        }
    }

    /// The transaction number for the servers that apply it: the same on all.
    pub fn trx_id(&self) -> u64 {
        trx_id(self.id)
    }

    /// The flags with which `part` goes to a server.
    pub fn flags(&self, part: ChunkPart) -> Flags {
        match part {
            ChunkPart::Data(0) => Flags::TRX_START,
            ChunkPart::Data(_) => Flags::NONE,
            ChunkPart::End => Flags::TRX_END | Flags::PA_UNSAFE,
            ChunkPart::Rollback => Flags::ROLLBACK | Flags::PA_UNSAFE,
        }
    }
}

/// Under which number servers know the write set `id`.
pub fn trx_id(id: Seqno) -> u64 {
    CHUNKED_TRX | id as u64
}

/// The write set that a server knows as transaction `trx`, if it is one that is
/// applied in chunks.
pub fn id_of(trx: u64) -> Option<Seqno> {
    (trx / CHUNKED_TRX == 1).then_some((trx & !CHUNKED_TRX) as Seqno)
}

/// One that is not over yet.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub chunked: Arc<Chunked>,
    /// The part that comes next.
    pub next: u32,
    /// The place of the one before it.
    pub last: Seqno,
}

/// A place that lies ahead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    /// Whose.
    pub id: Seqno,
    /// Which part of it.
    pub n: u32,
    /// Which place.
    pub place: Seqno,
    /// What must be finished before it starts.
    pub depends_on: Seqno,
}

impl ClusterState {
    /// How `write_set` is cut, if it is to be applied in chunks: a function of
    /// its bytes and the ordered state alone. `arrived`: what was found out of it as it came.
    ///
    /// Not that of a member that gives a copy: its own database shows only at the
    /// end what the copy, at a place before that, would have to hold in chunks.
    pub(super) fn plan_of(&self, write_set: &WriteSet, arrived: Option<&Arrived>) -> Option<Plan> {
        let header = write_set.header();
        let plain = Flags::TRX_START | Flags::TRX_END;
        let extra = Flags::PA_UNSAFE | Flags::IMPLICIT_DEPS;
        let known = self.members.contains_key(&header.source);
        let others = self
            .members
            .values()
            .any(|m| m.uuid != header.source && !m.witness && m.state != MemberState::Joiner);
        let gives = self.transfers.values().any(|d| *d == header.source);
        let log2 = chunk_log2(header.chunk);
        if !(CHUNK_MIN..=CHUNK_MAX).contains(&log2)
            || header.flags.without(extra) != plain
            || !known
            || !others
            || gives
            || self.chunked_span > SPAN_MAX
        {
            return None;
        }
        let cut = arrived.and_then(|a| a.plan(write_set, log2));
        // What was left in the log was looked at as it came.
        let here = || Some(Plan::of(write_set.payload().here()?, 1 << log2));
        cut.or_else(here)?.ok()
    }

    /// A write set with a plan takes its place: as its first chunk, or, if it
    /// fails, whole.
    pub(super) fn open_chunked(
        &mut self,
        origin: Uuid,
        tag: u64,
        index: u64,
        write_set: WriteSet,
        plan: Plan,
    ) -> Event {
        self.seqno += 1;
        let id = self.seqno;
        let closes = write_set.header().chunk & CHUNK_CLOSES != 0;
        let verdict = match self.unlawful(write_set.header()) {
            Some(reason) => self.certifier.refuse(id, reason),
            None => self.certifier.certify_open(id, write_set.head(), closes),
        };
        let source = write_set.header().source;
        self.takes(Taken::WriteSet {
            sum: write_set.sum(),
            passed: verdict.passed(),
            cut: verdict.passed(),
        });
        if !verdict.passed() {
            return Event::WriteSet {
                seqno: id,
                write_set,
                verdict,
                source,
                origin,
                tag,
                // Nothing of it is read.
                from: index,
                index,
            };
        }
        let chunked = Arc::new(Chunked {
            id,
            write_set,
            plan,
            origin,
            tag,
            index,
            tables: OnceLock::new(),
            made: OnceLock::new(),
            looks_around: OnceLock::new(),
        });
        let open = Open {
            chunked: chunked.clone(),
            next: 1,
            last: id,
        };
        self.chunked.insert(id, open);
        Event::Chunk {
            seqno: id,
            chunked,
            part: ChunkPart::Data(0),
            depends_on: id - 1,
        }
    }

    /// The next part of `id` gets its place, if it is `n`: `ahead` others may come
    /// before it.
    pub(super) fn next_chunk(&mut self, id: Seqno, n: u32, ahead: u32) -> Vec<Event> {
        let mut events = Vec::new();
        if self.chunked.get(&id).is_none_or(|o| o.next != n) {
            return events; // asked twice, or it is over
        }
        self.place_ahead(&mut events);
        // That may have been its end.
        let Some(open) = self.chunked.get_mut(&id) else {
            return events;
        };
        let chunked = open.chunked.clone();
        let part = chunked.part(n);
        let place = self.seqno + 1 + Seqno::from(ahead.min(AHEAD_MAX));
        let before = std::mem::replace(&mut open.last, place);
        open.next += 1;
        let depends_on = match part {
            ChunkPart::End if ahead == 0 => self.seqno,
            _ => self.certifier.chunk_depends_on(before),
        };
        self.ahead = Some(Ahead {
            id,
            n,
            place,
            depends_on,
        });
        if ahead == 0 {
            self.place_ahead(&mut events);
        } else {
            events.push(Event::Ahead {
                place,
                chunked,
                part,
                depends_on,
            });
        }
        events
    }

    /// What has a place ahead takes it now. Nobody gets those before it that are
    /// left.
    pub(super) fn place_ahead(&mut self, events: &mut Vec<Event>) {
        let Some(ahead) = self.ahead.take() else {
            return;
        };
        let first = self.seqno + 1;
        while self.seqno + 1 < ahead.place {
            self.seqno += 1;
            self.certifier.skip(self.seqno);
            self.takes(Taken::Nothing);
            self.forget_old();
        }
        if first <= self.seqno {
            let last = self.seqno;
            events.push(Event::Nothing { first, last });
        }
        events.extend(self.place(ahead));
    }

    /// A plain write set took its place: it may have been the last one before the
    /// one that lies ahead.
    pub(super) fn place_if_reached(&mut self, events: &mut Vec<Event>) {
        if self.ahead.is_some_and(|a| a.place == self.seqno + 1) {
            self.place_ahead(events);
        }
    }

    fn place(&mut self, ahead: Ahead) -> Option<Event> {
        let Ahead {
            id, n, depends_on, ..
        } = ahead;
        let chunked = self.chunked.get(&id)?.chunked.clone();
        self.seqno += 1;
        let part = chunked.part(n);
        if part == ChunkPart::End {
            self.certifier.close(id, self.seqno);
            self.chunked.remove(&id);
        } else {
            self.certifier.skip(self.seqno);
        }
        self.takes(Taken::Chunk { id, part });
        Some(Event::Chunk {
            seqno: self.seqno,
            chunked,
            part,
            depends_on,
        })
    }

    /// The part that has a place ahead, as (id, part, place).
    pub fn ahead(&self) -> Option<(Seqno, u32, Seqno)> {
        self.ahead.map(|a| (a.id, a.n, a.place))
    }

    /// What is applied in chunks on a table of `ddl` gives way to it.
    pub(super) fn yield_to(&mut self, ddl: &WriteSet, events: &mut Vec<Event>) {
        for id in self.certifier.open_met_by(ddl.head()) {
            events.extend(self.roll_back(id));
        }
    }

    /// What came from a member that is gone is rolled back: nobody was told that
    /// it committed. Servers do so themselves at the view, and must find nothing.
    pub(super) fn roll_back_orphans(&mut self, events: &mut Vec<Event>) {
        let orphans: Vec<Seqno> = self
            .chunked
            .iter()
            .filter(|(_, o)| !self.members.contains_key(&o.chunked.source()))
            .map(|(id, _)| *id)
            .collect();
        for id in orphans {
            events.extend(self.roll_back(id));
        }
    }

    fn roll_back(&mut self, id: Seqno) -> Option<Event> {
        let open = self.chunked.remove(&id)?;
        self.seqno += 1;
        self.certifier.drop_open(id, self.seqno);
        let part = ChunkPart::Rollback;
        self.takes(Taken::Chunk { id, part });
        Some(Event::Chunk {
            seqno: self.seqno,
            chunked: open.chunked,
            part,
            depends_on: self.seqno - 1,
        })
    }

    /// Whether `uuid` is the source of something that is applied in chunks: its
    /// own database does not show it, so it must not give a copy.
    pub(super) fn sends_chunked(&self, uuid: &Uuid) -> bool {
        self.chunked.values().any(|o| o.chunked.source() == *uuid)
    }

    /// The tables that the large write set `id` closes while it is applied in chunks.
    pub fn closes(&self, id: Seqno) -> &[KeyHash] {
        self.certifier.closes(id)
    }

    /// What is applied in chunks now, and the part that comes next of each.
    pub fn chunked(&self) -> impl Iterator<Item = (&Arc<Chunked>, u32)> {
        self.chunked.values().map(|o| (&o.chunked, o.next))
    }
}

#[cfg(test)]
mod ahead_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_from_the_servers_table() {
        for id in [1, 130, 2110, (1 << 40) + 1, (1 << 52) - 1] {
            let trx = trx_id(id);
            assert_eq!((trx as f64) as u64, trx);
            assert_eq!(id_of(trx), Some(id));
        }
        // InnoDB's have 48 bits, a statement in isolation all of them.
        for other in [0, 7, (1 << 48) - 1, u64::MAX] {
            assert_eq!(id_of(other), None);
        }
    }
}
