//! Streaming transactions ("streams") of other nodes that hold rows in this database,
//! and when one of them has to go. Decided without a clock: times come in from outside.
//!
//! The engine may need more than keys tell: an insert into a unique index looks at the
//! neighbouring record, and waits if a stream has that. The stream's end lies behind,
//! so nothing moves any more. Then the stream is *shelved* here: rolled back in this
//! database alone, and applied whole at its end, from the log.
//!
//! ```text
//!   Here      its fragments are applied, its rows are locked
//!     │
//!   Going     the server rolls it back; fragments wait
//!     │
//!   Shelved   fragments are left out; its end brings all of it
//! ```

mod named;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use dromon_writeset::{KeyHash, Made, RowKey, Seqno, Uuid};

use named::{NamedRows, OfStream};

/// A write set that an applier has had for so long, while all before it is finished,
/// is taken for one that waits for a stream.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// The same where the ends of all these streams are known to lie behind: a node that
/// catches up meets many of them.
pub const PATIENCE_WITH_ENDED: Duration = Duration::from_millis(100);
/// And so many bytes of it per second are taken for work.
const BYTES_PER_SECOND: f64 = (1 << 20) as f64;
/// What was asked for so long ago, and no thread has taken, none will take.
pub const TAKEN_WITHIN: Duration = Duration::from_secs(3);

/// A member, and a number there.
pub type StreamId = (Uuid, u64);

/// See the module's text.
#[derive(Debug, Default)]
pub struct HeldRows {
    streams: BTreeMap<StreamId, Stream>,
    /// Open streams of this node's own clients, which hold their rows themselves: what is needed of
    /// one if it comes without its client ([`HeldRows::comes_alone`]).
    own: BTreeMap<StreamId, Stream>,
    /// The same as `named`, of `own`.
    own_named: NamedRows,
    /// In which tables how many of `streams` have gaps: each write set asks, and there may be very many.
    gaps: BTreeMap<KeyHash, usize>,
    /// Rows that `streams` name, and others may name beside them.
    named: NamedRows,
    /// Those that are not shelved, by the place of their first fragment: a node that is behind
    /// knows very many.
    rows: BTreeSet<(Seqno, StreamId)>,
    /// Those of which nothing comes any more, by the place behind which.
    leaving: BTreeSet<(Seqno, StreamId)>,
    /// What appliers are at that may wait for a lock.
    work: BTreeMap<Seqno, Work>,
    /// Since when the lowest unfinished event is one of these.
    stands: Option<(Seqno, Duration)>,
    /// Which streams are to be shelved, for what, since when: no thread has taken it yet.
    asked: Option<(Seqno, Vec<StreamId>, Duration)>,
    /// First fragment and end of those that committed and are not finished here, in the
    /// order of their ends.
    ends: VecDeque<(Seqno, Seqno)>,
    /// How many appliers have the server roll back what is no stream.
    rolling_back: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Here,
    Going,
    Shelved,
}

#[derive(Debug)]
struct Stream {
    /// Place of its first fragment.
    first: Seqno,
    /// Where that begins in the log.
    begins: u64,
    /// Delivery began behind that: where its fragments lie, and what they name, is not
    /// known.
    lost: bool,
    /// Where its fragments lie in the log.
    parts: Vec<u64>,
    /// What it names.
    tables: BTreeSet<KeyHash>,
    /// Tables in which it made or removed keys of a unique index beside the primary one: it
    /// may have locked gaps there.
    gaps: BTreeSet<KeyHash>,
    named: OfStream,
    state: State,
    /// How many appliers have something of it: the one that is through with the last
    /// fragment says so, and the next one may have begun.
    at_work: u32,
    /// It cannot be shelved before its rollback is there.
    stays: bool,
    /// It is shelved, and the server has to hear of it.
    untold: bool,
    /// Behind this place nothing of it comes any more, and whether it committed there.
    over: Option<(Seqno, bool)>,
}

#[derive(Debug)]
struct Work {
    /// The tables it names; none: not known.
    tables: Vec<KeyHash>,
    bytes: u64,
}

/// What an applier does with a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Share {
    /// It applies it.
    Apply,
    /// The stream is being rolled back: it asks again.
    Wait,
    /// Nothing.
    Nothing,
    /// It is the end: all fragments, which lie there in the log, and then the end itself.
    Whole(Vec<u64>),
    /// It is the end, and not all fragments were delivered.
    Lost,
}

/// A stream that is to be shelved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Place of its first fragment.
    pub first: Seqno,
    /// Where that begins in the log.
    pub begins: u64,
    /// It cannot be applied whole: what lies there was not delivered.
    pub lost: bool,
    /// What it names.
    pub tables: Vec<KeyHash>,
    /// It never commits: nothing of it will be needed.
    pub rolled_back: bool,
}

impl HeldRows {
    /// A fragment took its place at `seqno`, and passed; it lies at `index` and names
    /// `tables`. `begins`: it is the first one, and begins there in the log. Answers where
    /// the stream began if it is shelved: nobody here may touch these tables either.
    pub fn fragment(
        &mut self,
        id: StreamId,
        (seqno, index): (Seqno, u64),
        begins: Option<u64>,
        tables: &[KeyHash],
    ) -> Option<Seqno> {
        if let Some(begins) = begins {
            // Shelved by an earlier process, and delivered once more.
            let noted = self.streams.get(&id).is_some_and(|s| s.first == seqno);
            if !noted {
                self.insert(id, Stream::new(seqno, begins, State::Here));
            }
        }
        let stream = self.streams.get_mut(&id)?;
        if stream.parts.last().is_none_or(|last| *last < index) {
            stream.parts.push(index);
        }
        stream.tables.extend(tables);
        (stream.state == State::Shelved).then_some(stream.first)
    }

    /// The same of a client here, which waits for that.
    pub fn own_fragment(
        &mut self,
        id: StreamId,
        (seqno, index): (Seqno, u64),
        begins: Option<u64>,
        tables: &[KeyHash],
    ) {
        if let Some(begins) = begins {
            self.own_over(id);
            self.own
                .insert(id, Stream::new(seqno, begins, State::Shelved));
        }
        if let Some(stream) = self.own.get_mut(&id) {
            stream.parts.push(index);
            stream.tables.extend(tables);
        }
    }

    /// The same fragment names these rows.
    pub fn own_names(&mut self, id: StreamId, rows: &[RowKey]) {
        if let Some(stream) = self.own.get_mut(&id) {
            self.own_named.add(stream.first, &mut stream.named, rows);
        }
    }

    /// One of a client here has ended.
    pub fn own_over(&mut self, id: StreamId) {
        if let Some(mut stream) = self.own.remove(&id) {
            self.own_named.remove(stream.first, &mut stream.named);
        }
    }

    /// Whether streams of clients here name rows that others may name beside them.
    pub fn own_names_rows(&self) -> bool {
        !self.own_named.is_empty()
    }

    /// The same as [`HeldRows::meets_rows`] of clients here: their numbers.
    pub fn own_met_by(&self, rows: &[RowKey]) -> Vec<u64> {
        let met = self.own_named.met_by(rows);
        let own = self.own.iter().filter(|(_, s)| met.contains(&s.first));
        own.map(|(id, _)| id.1).collect()
    }

    /// A fragment of this node itself passed at `at`, and its client does not wait for it any more: it
    /// was told that nobody knows, as the others were out of reach, and the server has taken back the
    /// rows of all fragments before. So the stream is shelved from here on. `begins`: it is the first
    /// one. Answers where the stream began, and what it names.
    pub fn comes_alone(
        &mut self,
        id: StreamId,
        (seqno, index): (Seqno, u64),
        begins: Option<u64>,
    ) -> (Seqno, Vec<KeyHash>) {
        if !self.streams.contains_key(&id) {
            let stream = self.own.remove(&id).unwrap_or_else(|| {
                let mut stream = Stream::new(seqno, begins.unwrap_or(index), State::Shelved);
                stream.lost = begins.is_none();
                stream
            });
            let (first, of) = (stream.first, &stream.named);
            self.own_named.hand_over(&mut self.named, first, of);
            self.insert(
                id,
                Stream {
                    untold: true,
                    ..stream
                },
            );
        }
        let first = self.streams.get(&id).map_or(seqno, |s| s.first);
        (first, self.tables_of(id))
    }

    /// Where a stream began, there and in the log, that is shelved before the server was told.
    pub fn untold(&self, id: StreamId) -> Option<(Seqno, u64)> {
        let stream = self.streams.get(&id).filter(|s| s.untold)?;
        Some((stream.first, stream.begins))
    }

    /// It was told now. Answers where the stream is over and whether it commits there, if that is
    /// known.
    pub fn told(&mut self, id: StreamId) -> Option<(Seqno, bool)> {
        let stream = self.streams.get_mut(&id)?;
        stream.untold = false;
        stream.over
    }

    /// The same fragment made or removed keys there.
    pub fn made(&mut self, id: StreamId, made: &[Made]) {
        if let Some(stream) = self.streams.get_mut(&id) {
            for m in made.iter().filter(|m| m.secondary) {
                if stream.gaps.insert(m.table) {
                    *self.gaps.entry(m.table).or_default() += 1;
                }
            }
        }
    }

    /// The same fragment names these rows.
    pub fn names(&mut self, id: StreamId, rows: &[RowKey]) {
        if let Some(stream) = self.streams.get_mut(&id) {
            self.named.add(stream.first, &mut stream.named, rows);
        }
    }

    /// Whether there are any that a write set may name beside them.
    pub fn names_rows(&self) -> bool {
        !self.named.is_empty()
    }

    /// The streams, by their first fragments, of which a write set that comes now and names these
    /// rows needs locks, though it passed certification.
    pub fn meets_rows(&self, rows: &[RowKey]) -> BTreeSet<Seqno> {
        self.named.met_by(rows)
    }

    /// Whether a write set that comes now and makes or removes these keys may wait for a lock
    /// of a stream that no key names: it looks at neighbours of its rows, or a stream may have
    /// locked the gap that a row of it goes into.
    pub fn meets_neighbours(&self, made: &[Made]) -> bool {
        let gap = |m: &Made| self.gaps.contains_key(&m.table);
        made.iter().any(|m| m.secondary || gap(m))
    }

    /// One that was shelved by an earlier process, and will be delivered once more from its
    /// first fragment on: that stands at `first`, and begins at `begins` in the log.
    pub fn noted(&mut self, id: StreamId, first: Seqno, begins: u64) {
        self.insert(id, Stream::new(first, begins, State::Shelved));
    }

    fn insert(&mut self, id: StreamId, stream: Stream) {
        self.forget(id);
        if stream.state != State::Shelved {
            self.rows.insert((stream.first, id));
        }
        for table in &stream.gaps {
            *self.gaps.entry(*table).or_default() += 1;
        }
        self.streams.insert(id, stream);
    }

    fn forget(&mut self, id: StreamId) -> Option<Stream> {
        let mut stream = self.streams.remove(&id)?;
        self.rows.remove(&(stream.first, id));
        self.named.remove(stream.first, &mut stream.named);
        if let Some((at, _)) = stream.over {
            self.leaving.remove(&(at, id));
        }
        for table in &stream.gaps {
            if let Entry::Occupied(mut count) = self.gaps.entry(*table) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
        Some(stream)
    }

    fn set_state(&mut self, id: StreamId, state: State) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.state = state;
        match state {
            State::Shelved => self.rows.remove(&(stream.first, id)),
            State::Here | State::Going => self.rows.insert((stream.first, id)),
        };
    }

    /// One that was open where delivery began, behind its first fragment. If it was shelved
    /// by an earlier process its end cannot be applied, unless the database has that.
    pub fn lost(&mut self, id: StreamId, first: Seqno, begins: u64, shelved: bool) {
        let state = match shelved {
            true => State::Shelved,
            false => State::Here,
        };
        let mut stream = Stream::new(first, begins, state);
        stream.lost = true;
        self.insert(id, stream);
    }

    /// The database is a full copy, with all that its donor had of them.
    pub fn copied(&mut self) {
        let all: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in all {
            self.set_state(id, State::Here);
        }
        for stream in self.streams.values_mut() {
            stream.untold = false;
        }
        self.own.clear();
        self.own_named = NamedRows::default();
    }

    /// Its end passed at `seqno`, or its own node's rollback took that place. Answers
    /// where a stream that is shelved began. The first one counts: a node that did not hear of its
    /// end sends a rollback when it is back.
    pub fn over(&mut self, id: StreamId, seqno: Seqno, commits: bool) -> Option<Seqno> {
        let stream = self.streams.get_mut(&id)?;
        if stream.over.is_some() {
            return None;
        }
        stream.over = Some((seqno, commits));
        self.leaving.insert((seqno, id));
        if commits {
            self.ends.push_back((stream.first, seqno));
        }
        (stream.state != State::Here).then_some(stream.first)
    }

    /// The view at `seqno`: servers roll back what came from who is no member. Answers
    /// where those began that are shelved. One that is known and comes later does not
    /// count: its node may not have come yet.
    pub fn keep_members(&mut self, seqno: Seqno, is_member: impl Fn(&Uuid) -> bool) -> Vec<Seqno> {
        let mut shelved = Vec::new();
        let gone = (self.own.iter()).filter(|(id, s)| s.first <= seqno && !is_member(&id.0));
        let gone: Vec<StreamId> = gone.map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|id| self.own_over(id));
        for (id, stream) in &mut self.streams {
            if stream.first <= seqno && stream.over.is_none() && !is_member(&id.0) {
                stream.over = Some((seqno, false));
                self.leaving.insert((seqno, *id));
                if stream.state != State::Here {
                    shelved.push(stream.first);
                }
            }
        }
        shelved
    }

    /// What a write set at `seqno` that depends on `depends_on` has to wait for. Where
    /// that lies behind the first fragment of a stream that ended meanwhile, its keys may
    /// name what the stream changed: where the stream is shelved, that comes at its
    /// end.
    pub fn depends_on(&self, seqno: Seqno, depends_on: Seqno) -> Seqno {
        let before = self.ends.iter().rev().skip_while(|(_, end)| *end >= seqno);
        let mut behind = before.take_while(|(_, end)| *end > depends_on);
        let met = behind.find(|(first, _)| *first <= depends_on);
        met.map_or(depends_on, |(_, end)| *end)
    }

    /// The last end of those that began there, as far as they commit and are not finished here.
    pub fn last_end_of(&self, firsts: &[Seqno]) -> Seqno {
        let ends = self.ends.iter().filter(|(f, _)| firsts.contains(f));
        ends.map(|(_, end)| *end).max().unwrap_or(-1)
    }

    /// Where a stream began that is known.
    pub fn first_of(&self, id: StreamId) -> Option<Seqno> {
        self.streams.get(&id).map(|s| s.first)
    }

    /// Everything up to `released` is finished. Answers whether a thread is to be spared
    /// for those that hold rows here; and where those began that were shelved, and are
    /// through.
    pub fn finished(&mut self, released: Seqno) -> (bool, Vec<Seqno>) {
        while self.ends.front().is_some_and(|(_, end)| *end <= released) {
            self.ends.pop_front();
        }
        let mut shelved = Vec::new();
        while let Some((_, id)) = self
            .leaving
            .first()
            .copied()
            .filter(|(at, _)| *at <= released)
        {
            let stream = self.forget(id).expect("what leaves is there");
            if stream.state != State::Here {
                shelved.push(stream.first);
            }
        }
        if self.is_empty() {
            self.work.clear();
        }
        (self.hold_rows(released), shelved)
    }

    /// Whether there are streams that hold rows here, where everything up to `released` is
    /// finished.
    pub fn hold_rows(&self, released: Seqno) -> bool {
        self.rows
            .first()
            .is_some_and(|(first, _)| *first <= released)
    }

    /// The same, now or later: their fragments may not be applied yet.
    pub fn will_hold_rows(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty() && self.ends.is_empty()
    }

    /// Whether the stream that began at `first` is not over, as far as delivery knows.
    pub fn is_open(&self, first: Seqno) -> bool {
        let mut all = self.streams.values();
        all.any(|s| s.first == first && s.over.is_none())
    }

    /// From where on the log is needed for those that are shelved.
    pub fn needs_log(&self) -> Option<u64> {
        let shelved = self.streams.values().filter(|s| s.state != State::Here);
        shelved.map(|s| s.begins).min()
    }

    /// Where those begin in the log that are over, and not finished here: they may still
    /// be in the way of what lies before their end.
    pub fn ending(&self) -> Vec<u64> {
        let ending = self.streams.values().filter(|s| s.over.is_some());
        ending.map(|s| s.begins).collect()
    }

    /// Those that are shelved.
    pub fn shelved(&self) -> Vec<StreamId> {
        let shelved = self
            .streams
            .iter()
            .filter(|(_, s)| s.state == State::Shelved);
        shelved.map(|(id, _)| *id).collect()
    }

    /// An applier is about to begin with the fragment, or the end, that lies at `index`:
    /// everything before it is finished.
    pub fn begins(&mut self, id: StreamId, index: u64, ends: bool) -> Share {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Share::Apply;
        };
        match stream.state {
            State::Here => {
                stream.at_work += 1;
                Share::Apply
            }
            State::Going => Share::Wait,
            State::Shelved if ends && stream.lost => Share::Lost,
            State::Shelved if ends => {
                let parts = stream.parts.iter().copied();
                Share::Whole(parts.filter(|part| *part != index).collect())
            }
            State::Shelved => Share::Nothing,
        }
    }

    /// An applier is about to roll it back, in its turn.
    pub fn ends_early(&mut self, id: StreamId) -> Share {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Share::Apply;
        };
        if stream.state == State::Going {
            return Share::Wait;
        }
        stream.at_work += 1;
        Share::Apply
    }

    /// The applier is through with it.
    pub fn ended(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.at_work = stream.at_work.saturating_sub(1);
        }
    }

    /// An applier has the write set at `seqno`, and hands it to the server.
    pub fn works(&mut self, seqno: Seqno, tables: Vec<KeyHash>, bytes: u64) {
        self.work.insert(seqno, Work { tables, bytes });
    }

    /// It needs no lock any more.
    pub fn worked(&mut self, seqno: Seqno) {
        self.work.remove(&seqno);
    }

    /// Everything up to `released` is finished, at `now`. Answers which write set waits
    /// for too long, and for which streams perhaps.
    pub fn stuck(&mut self, released: Seqno, now: Duration) -> Option<(Seqno, Vec<StreamId>)> {
        let waits = released + 1;
        let work = self.work.get(&waits);
        let (Some(work), false) = (work, self.streams.is_empty()) else {
            self.stands = None;
            return None;
        };
        let since = match self.stands {
            Some((seqno, since)) if seqno == waits => since,
            _ => {
                self.stands = Some((waits, now));
                now
            }
        };
        let stands = now.saturating_sub(since);
        let works = Duration::from_secs_f64(work.bytes as f64 / BYTES_PER_SECOND);
        if stands < PATIENCE_WITH_ENDED + works {
            return None;
        }
        let met = self.met_by(&work.tables, released);
        let over = |id: &StreamId| self.streams.get(id).is_some_and(|s| s.over.is_some());
        if stands < PATIENCE + works && !met.iter().all(over) {
            return None;
        }
        // Not again at once, if nothing comes of it.
        self.stands = Some((waits, now));
        (!met.is_empty()).then_some((waits, met))
    }

    /// The same for who has another thread see to it. `asked`: that waits to be done, as
    /// nobody is left to do it; one who waits himself and looks must find it still.
    pub fn due_to_shelve(
        &mut self,
        released: Seqno,
        now: Duration,
        asked: bool,
    ) -> Option<(Seqno, Vec<StreamId>)> {
        if asked {
            return None;
        }
        let stuck = self.stuck(released, now);
        self.asked = stuck.clone().map(|(waits, streams)| (waits, streams, now));
        stuck
    }

    /// What waits to be done, and has for so long that nobody will; once.
    pub fn nobody_shelves(&mut self, now: Duration) -> Option<(Seqno, Vec<StreamId>)> {
        let (_, _, since) = self.asked.as_ref()?;
        if now.saturating_sub(*since) < TAKEN_WITHIN {
            return None;
        }
        self.asked
            .take()
            .map(|(waits, streams, _)| (waits, streams))
    }

    /// Streams that hold rows here, and that a write set may wait for that names
    /// `tables` (none: not known). Everything up to `released` is finished.
    pub fn met_by(&self, tables: &[KeyHash], released: Seqno) -> Vec<StreamId> {
        let meets = |s: &Stream| {
            let known = !(tables.is_empty() || s.lost);
            let names = !known || tables.iter().any(|t| s.tables.contains(t));
            names && s.may_go(released)
        };
        let met = self.streams.iter().filter(|(_, s)| meets(s));
        met.map(|(id, _)| *id).collect()
    }

    /// Those that began at one of these places, and hold rows here.
    pub fn that_began(&self, firsts: &[Seqno], released: Seqno) -> Vec<StreamId> {
        let known = firsts.iter().filter_map(|first| {
            let from = (*first, (Uuid::NIL, 0));
            let (at, id) = self.rows.range(from..).next()?;
            (at == first).then_some(*id)
        });
        let held = |id: &StreamId| self.streams.get(id).is_some_and(|s| s.may_go(released));
        known.filter(held).collect()
    }

    /// It is to be rolled back here. `None`: it cannot be, or need not any more. All that
    /// comes of it waits until [`HeldRows::gone`] or [`HeldRows::stays`].
    pub fn goes(&mut self, id: StreamId, released: Seqno) -> Option<Leaving> {
        let stream = self.streams.get_mut(&id)?;
        if !stream.may_go(released) {
            return None;
        }
        stream.state = State::Going; // it holds its rows as before
        Some(Leaving {
            first: stream.first,
            begins: stream.begins,
            lost: stream.lost,
            tables: stream.tables.iter().copied().collect(),
            rolled_back: stream.over.is_some_and(|(_, commits)| !commits),
        })
    }

    /// Whether one of them is being rolled back, or something else is.
    pub fn some_go(&self) -> bool {
        self.rolling_back > 0 || self.streams.values().any(|s| s.state == State::Going)
    }

    /// An applier begins to have the server roll back what is no stream, or is through with that.
    pub fn rolls_back(&mut self, begins: bool) {
        self.rolling_back = match begins {
            true => self.rolling_back + 1,
            false => self.rolling_back.saturating_sub(1),
        };
    }

    /// The server rolled it back. Answers where it is over and whether it commits there,
    /// if that is known.
    pub fn gone(&mut self, id: StreamId) -> Option<(Seqno, bool)> {
        self.set_state(id, State::Shelved);
        self.streams.get(&id)?.over
    }

    /// It stays, unless it is rolled back: it cannot be applied whole.
    pub fn stays(&mut self, id: StreamId) {
        self.set_state(id, State::Here);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.stays = true;
        }
    }

    /// What it names by now.
    pub fn tables_of(&self, id: StreamId) -> Vec<KeyHash> {
        let stream = self.streams.get(&id);
        stream.map_or_else(Vec::new, |s| s.tables.iter().copied().collect())
    }
}

impl Stream {
    fn new(first: Seqno, begins: u64, state: State) -> Self {
        Stream {
            first,
            begins,
            lost: false,
            parts: Vec::new(),
            tables: BTreeSet::new(),
            gaps: BTreeSet::new(),
            named: OfStream::default(),
            state,
            at_work: 0,
            stays: false,
            untold: false,
            over: None,
        }
    }

    /// Whether it holds rows, and no applier is at it; what comes next of it comes
    /// behind everything up to `released`.
    fn may_go(&self, released: Seqno) -> bool {
        let over = self.over.is_some_and(|(at, _)| at <= released);
        let rolled_back = self.over.is_some_and(|(_, commits)| !commits);
        let free = self.state == State::Here && self.at_work == 0 && (!self.stays || rolled_back);
        free && self.first <= released && !over
    }
}

#[cfg(test)]
mod tests;
