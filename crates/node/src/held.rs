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

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use dromon_writeset::{KeyHash, Made, Seqno, Uuid};

/// A write set that an applier has had for so long, while all before it is finished,
/// is taken for one that waits for a stream.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// The same where the ends of all these streams are known to lie behind: a node that
/// catches up meets many of them.
pub const PATIENCE_WITH_ENDED: Duration = Duration::from_millis(100);
/// And so many bytes of it per second are taken for work.
const BYTES_PER_SECOND: f64 = (1 << 20) as f64;

/// A member, and a number there.
pub type StreamId = (Uuid, u64);

/// See the module's text.
#[derive(Debug, Default)]
pub struct HeldRows {
    streams: BTreeMap<StreamId, Stream>,
    /// Those that are not shelved, by the place of their first fragment: a node that is behind
    /// knows very many.
    rows: BTreeSet<(Seqno, StreamId)>,
    /// Those of which nothing comes any more, by the place behind which.
    leaving: BTreeSet<(Seqno, StreamId)>,
    /// What appliers are at that may wait for a lock.
    work: BTreeMap<Seqno, Work>,
    /// Since when the lowest unfinished event is one of these.
    stands: Option<(Seqno, Duration)>,
    /// First fragment and end of those that committed and are not finished here, in the
    /// order of their ends.
    ends: VecDeque<(Seqno, Seqno)>,
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
    state: State,
    /// How many appliers have something of it: the one that is through with the last
    /// fragment says so, and the next one may have begun.
    at_work: u32,
    /// It cannot be shelved before its rollback is there.
    stays: bool,
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

    /// The same fragment made or removed keys there.
    pub fn made(&mut self, id: StreamId, made: &[Made]) {
        if let Some(stream) = self.streams.get_mut(&id) {
            let unique = made.iter().filter(|m| m.secondary);
            stream.gaps.extend(unique.map(|m| m.table));
        }
    }

    /// Whether a write set that comes now and makes or removes these keys may wait for a lock
    /// of a stream that no key names: it looks at neighbours of its rows, or a stream may have
    /// locked the gap that a row of it goes into.
    pub fn meets_neighbours(&self, made: &[Made]) -> bool {
        let gap = |m: &Made| {
            let mut streams = self.streams.values();
            streams.any(|s| s.gaps.contains(&m.table))
        };
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
        self.streams.insert(id, stream);
    }

    fn forget(&mut self, id: StreamId) -> Option<Stream> {
        let stream = self.streams.remove(&id)?;
        self.rows.remove(&(stream.first, id));
        if let Some((at, _)) = stream.over {
            self.leaving.remove(&(at, id));
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
    }

    /// Its end passed at `seqno`, or its own node's rollback took that place. Answers
    /// where a stream that is shelved began.
    pub fn over(&mut self, id: StreamId, seqno: Seqno, commits: bool) -> Option<Seqno> {
        let stream = self.streams.get_mut(&id)?;
        let (at, _) = *stream.over.get_or_insert((seqno, commits));
        self.leaving.insert((at, id));
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
        match asked {
            true => None,
            false => self.stuck(released, now),
        }
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

    /// Whether one of them is being rolled back.
    pub fn some_go(&self) -> bool {
        self.streams.values().any(|s| s.state == State::Going)
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
            state,
            at_work: 0,
            stays: false,
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: StreamId = (Uuid([1; 16]), 7);
    const B: StreamId = (Uuid([2; 16]), 7);

    fn table(name: &[u8]) -> KeyHash {
        KeyHash::ROOT.child(dromon_writeset::Part::Raw(name))
    }

    fn s(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// A at 5 in table t, B at 6 and 8 in tables u and v; all lie ten places further
    /// on in the log. B's first one came in pieces.
    fn two() -> HeldRows {
        let mut held = HeldRows::default();
        held.fragment(A, (5, 15), Some(15), &[table(b"t")]);
        held.fragment(B, (6, 16), Some(14), &[table(b"u")]);
        held.fragment(B, (8, 18), None, &[table(b"v")]);
        held
    }

    #[test]
    fn a_row_without_a_unique_key_may_meet_gaps_of_a_stream_in_that_table_alone() {
        let made = |name: &[u8], secondary| {
            let table = table(name);
            let surely = secondary;
            [Made {
                table,
                secondary,
                surely,
            }]
        };
        let mut held = two();
        held.made(A, &made(b"t", true));
        held.made(B, &made(b"u", false));
        assert!(held.meets_neighbours(&made(b"t", false)));
        assert!(!held.meets_neighbours(&made(b"u", false)), "no gap there");
        assert!(held.meets_neighbours(&made(b"u", true)), "it looks itself");
        assert!(!held.meets_neighbours(&[]));
        held.over(A, 20, true);
        held.finished(20);
        assert!(!held.meets_neighbours(&made(b"t", false)), "A is over");
        held.lost(A, 5, 15, false);
        assert!(
            !held.meets_neighbours(&made(b"w", false)),
            "nobody knows, and most have none"
        );
    }

    fn shelve(held: &mut HeldRows, id: StreamId, released: Seqno) -> Option<(Seqno, bool)> {
        held.goes(id, released).expect("it can go");
        held.gone(id)
    }

    proptest! {
        /// What is looked up says the same as walking all of them would.
        #[test]
        fn lookups_agree_with_a_walk(steps in prop::collection::vec((0u8..8, 0u64..5, 0i64..4), 1..120)) {
            let mut held = HeldRows::default();
            let (mut seqno, mut released) = (0, 0);
            let mut ends: Vec<(Seqno, Seqno)> = Vec::new();
            for (step, trx, back) in steps {
                let id = (Uuid([1; 16]), trx);
                seqno += 1;
                match step {
                    0 | 1 => {
                        let known = held.streams.get(&id).is_some_and(|s| s.over.is_none());
                        let begins = (!known).then_some(seqno as u64);
                        held.fragment(id, (seqno, seqno as u64), begins, &[table(b"t")]);
                    }
                    2 => {
                        let open = held.streams.get(&id).filter(|s| s.over.is_none());
                        if let Some(first) = open.map(|s| s.first) {
                            ends.push((first, seqno));
                            held.over(id, seqno, true);
                        }
                    }
                    3 => {
                        held.over(id, seqno, false);
                    }
                    4 => {
                        if held.goes(id, released).is_some() && back == 0 {
                            held.stays(id);
                        }
                    }
                    5 if held.streams.get(&id).is_some_and(|s| s.state == State::Going) => {
                        held.gone(id);
                    }
                    6 => {
                        held.keep_members(seqno, |_| back > 0);
                    }
                    _ => {
                        released = released.max(seqno - back);
                        held.finished(released);
                        ends.retain(|(_, end)| *end > released);
                    }
                }
                let over = |s: &Stream| s.over.is_some_and(|(at, _)| at <= released);
                prop_assert!(step != 7 || !held.streams.values().any(over));
                let holds = |s: &Stream| s.state != State::Shelved && s.first <= released;
                prop_assert_eq!(held.hold_rows(released), held.streams.values().any(holds));
                for depends_on in [0, released, seqno - back, seqno] {
                    let met = ends.iter().filter(|(f, e)| *f <= depends_on && *e < seqno);
                    let walked = met.map(|(_, end)| *end).fold(depends_on, Seqno::max);
                    prop_assert_eq!(held.depends_on(seqno, depends_on), walked);
                }
            }
        }
    }

    #[test]
    fn who_stands_for_long_waits_for_those_on_its_tables() {
        let mut held = two();
        held.works(10, vec![table(b"v"), table(b"w")], 0);
        assert_eq!(held.stuck(9, s(3.0)), None);
        assert_eq!(held.stuck(9, s(3.9)), None);
        assert_eq!(held.stuck(9, s(4.0)), Some((10, vec![B])));
        assert_eq!(held.stuck(9, s(4.5)), None, "somebody is at it");
        assert_eq!(held.stuck(9, s(5.0)), Some((10, vec![B])));
        shelve(&mut held, B, 9);
        assert_eq!(held.stuck(9, s(40.0)), None);
    }

    #[test]
    fn what_nobody_can_see_to_is_left_to_who_waits() {
        let mut held = two();
        held.works(10, vec![table(b"v"), table(b"w")], 0);
        assert_eq!(held.due_to_shelve(9, s(3.0), false), None);
        assert_eq!(held.due_to_shelve(9, s(4.0), false), Some((10, vec![B])));
        assert_eq!(held.due_to_shelve(9, s(5.0), true), None);
        assert_eq!(held.stuck(9, s(5.1)), Some((10, vec![B])), "at once");
    }

    #[test]
    fn what_is_not_known_may_be_any_table() {
        let mut held = two();
        held.works(10, Vec::new(), 0);
        held.stuck(9, s(0.0));
        assert_eq!(held.stuck(9, s(1.0)), Some((10, vec![A, B])));
    }

    #[test]
    fn whoever_moves_or_works_is_not_stuck() {
        let mut held = two();
        held.works(10, Vec::new(), 0);
        held.works(11, Vec::new(), 3 << 20);
        assert_eq!(held.stuck(9, s(0.0)), None);
        held.worked(10);
        assert_eq!(held.stuck(9, s(2.0)), None, "it waits for its turn");
        assert_eq!(held.stuck(10, s(2.5)), None, "the next one begins");
        assert_eq!(held.stuck(10, s(6.4)), None, "it is larger");
        assert_eq!(held.stuck(10, s(6.6)), Some((11, vec![A, B])));
        let mut later = two();
        later.works(5, Vec::new(), 0);
        later.stuck(4, s(0.0));
        assert_eq!(later.stuck(4, s(5.0)), None, "none is applied here");
    }

    #[test]
    fn whose_end_is_known_is_not_given_as_long() {
        let mut held = two();
        held.works(10, vec![table(b"u")], 0);
        assert_eq!(held.stuck(9, s(0.0)), None);
        assert_eq!(held.stuck(9, s(0.5)), None, "it may end before");
        held.over(B, 12, true);
        assert_eq!(held.stuck(9, s(0.6)), Some((10, vec![B])));
        assert_eq!(held.stuck(9, s(0.65)), None, "somebody is at it");
    }

    #[test]
    fn one_that_is_over_holds_rows_until_its_end_is_finished() {
        let mut held = two();
        held.over(B, 12, true);
        held.works(10, Vec::new(), 0);
        held.stuck(9, s(0.0));
        assert_eq!(held.stuck(9, s(1.0)), Some((10, vec![A, B])));
        assert!(held.goes(B, 12).is_none(), "through");
    }

    #[test]
    fn a_thread_is_spared_while_rows_are_held() {
        let mut held = two();
        assert_eq!([4, 5].map(|r| held.finished(r).0), [false, true]);
        shelve(&mut held, A, 9);
        assert!(held.finished(9).0, "B");
        held.over(B, 12, true);
        assert!(held.finished(11).0);
        assert_eq!(held.finished(12), (false, vec![]), "B was here");
        assert!(!held.is_empty(), "A is shelved");
        held.over(A, 13, false);
        assert_eq!(held.finished(12), (false, vec![]));
        assert_eq!(held.finished(13), (false, vec![5]));
        assert!(held.is_empty());
        let mut held = two();
        assert_eq!(held.keep_members(10, |m| *m == B.0), []);
        shelve(&mut held, B, 9);
        assert_eq!(held.keep_members(11, |m| *m == A.0), [6]);
        assert_eq!(held.keep_members(12, |_| false), [], "once");
        assert_eq!(held.finished(11), (false, vec![6]));
        assert!(held.is_empty());
    }

    #[test]
    fn what_comes_of_one_that_is_shelved() {
        let mut held = two();
        assert_eq!(held.begins(B, 18, false), Share::Apply);
        assert!(held.goes(B, 9).is_none(), "an applier is at it");
        held.ended(B);
        assert_eq!(held.ends_early(B), Share::Apply);
        assert!(held.goes(B, 9).is_none(), "an applier is at it");
        held.ended(B);
        let leaving = held.goes(B, 9).expect("it can go");
        assert_eq!(
            (leaving.first, leaving.begins, leaving.lost),
            (6, 14, false)
        );
        assert_eq!(leaving.tables.len(), 2);
        assert_eq!(held.begins(B, 20, false), Share::Wait);
        assert_eq!(held.ends_early(B), Share::Wait);
        assert!(held.some_go());
        assert!(held.goes(B, 9).is_none(), "it goes already");
        assert_eq!(held.gone(B), None);
        assert!(!held.some_go());
        assert_eq!(held.fragment(B, (10, 20), None, &[table(b"x")]), Some(6));
        assert_eq!(held.fragment(A, (11, 21), None, &[]), None);
        assert_eq!(held.begins(B, 20, false), Share::Nothing);
        held.fragment(B, (12, 22), None, &[]);
        assert_eq!(held.over(B, 12, true), Some(6));
        let whole = Share::Whole(vec![16, 18, 20]);
        assert_eq!(held.begins(B, 22, true), whole);
        assert_eq!(held.over(A, 13, true), None);
        assert_eq!(held.begins(A, 23, true), Share::Apply);
        assert_eq!(held.begins((A.0, 99), 24, true), Share::Apply);
    }

    /// What finishes a fragment's place wakes whoever has the next one, before the first
    /// applier has said that it is through with it.
    #[test]
    fn the_next_fragment_may_begin_before_the_last_one_is_reported() {
        let mut held = two();
        assert_eq!(held.begins(B, 16, false), Share::Apply);
        assert_eq!(held.begins(B, 18, false), Share::Apply);
        held.ended(B);
        assert!(held.goes(B, 9).is_none(), "an applier is at the second one");
        held.ended(B);
        assert!(held.goes(B, 9).is_some());
    }

    #[test]
    fn one_that_cannot_go_stays() {
        let mut held = two();
        assert!(held.goes(A, 4).is_none(), "nothing of it is here");
        assert!(held.goes(A, 9).is_some());
        held.stays(A);
        assert!(held.goes(A, 9).is_none());
        assert_eq!(held.begins(A, 17, false), Share::Apply);
        held.ended(A);
        assert_eq!(held.met_by(&[], 9), [B]);
        held.over(A, 20, false);
        assert!(
            held.goes(A, 9).is_some_and(|l| l.rolled_back),
            "no need to apply it"
        );
    }

    #[test]
    fn whose_end_came_while_it_went_is_known() {
        let mut held = two();
        held.goes(A, 9);
        assert_eq!(held.over(A, 12, false), Some(5));
        assert_eq!(held.gone(A), Some((12, false)));
    }

    #[test]
    fn what_lies_behind_an_end_and_may_have_seen_the_stream_waits_for_the_end() {
        let mut held = two();
        held.over(B, 12, true);
        held.over(A, 14, false);
        let behind = [5, 6, 11, 12, 13].map(|d| held.depends_on(20, d));
        assert_eq!(behind, [5, 12, 12, 12, 13]);
        assert_eq!(held.depends_on(11, 10), 10, "before the end");
        held.finished(12);
        assert_eq!(held.depends_on(20, 6), 6, "it is finished");
    }

    #[test]
    fn an_earlier_process_shelved_it() {
        let mut held = HeldRows::default();
        held.noted(A, 5, 14);
        assert_eq!((held.shelved(), held.needs_log()), (vec![A], Some(14)));
        // Delivered once more.
        let first = held.fragment(A, (5, 15), Some(14), &[table(b"t")]);
        assert_eq!(first, Some(5));
        assert_eq!(held.fragment(A, (9, 19), None, &[table(b"u")]), Some(5));
        assert_eq!(held.tables_of(A).len(), 2);
        held.fragment(A, (12, 22), None, &[]);
        held.over(A, 12, true);
        let whole = Share::Whole(vec![15, 19]);
        assert_eq!(held.begins(A, 22, true), whole);
        let mut held = HeldRows::default();
        held.noted(A, 5, 15);
        assert_eq!(held.keep_members(4, |_| false), [], "it comes later");
        assert_eq!((held.shelved(), held.is_open(5)), (vec![A], true));
        held.fragment(B, (6, 16), Some(16), &[]);
        assert_eq!(held.needs_log(), Some(15), "of B nothing is needed yet");
        held.copied();
        assert_eq!((held.shelved(), held.needs_log()), (vec![], None));
        assert!(held.is_open(5) && held.is_open(6) && !held.is_open(7));
    }

    #[test]
    fn one_whose_beginning_was_not_delivered_may_stand_in_anybodys_way() {
        let mut held = two();
        held.lost((A.0, 8), 3, 13, false);
        let lost = (A.0, 8);
        held.fragment(lost, (7, 17), None, &[table(b"t")]);
        assert_eq!(held.met_by(&[table(b"w")], 9), [lost]);
        let leaving = held.goes(lost, 9).expect("it can be asked for");
        assert!(leaving.lost && leaving.begins == 13);
        held.stays(lost);
        assert_eq!(held.met_by(&[table(b"w")], 9), [], "once");
        held.over(lost, 12, false);
        assert_eq!(held.met_by(&[table(b"w")], 9), [lost], "its rollback");
        assert_eq!(held.finished(12), (true, vec![]));
        assert_eq!(held.met_by(&[], 12), [A, B]);
    }

    #[test]
    fn the_end_of_one_that_is_shelved_and_not_delivered_whole_cannot_be_applied() {
        let mut held = HeldRows::default();
        held.lost(A, 5, 15, true);
        assert_eq!(held.fragment(A, (7, 17), None, &[table(b"t")]), Some(5));
        assert_eq!(held.begins(A, 17, false), Share::Nothing);
        assert!(held.ending().is_empty());
        assert_eq!(held.over(A, 9, true), Some(5));
        assert_eq!(held.ending(), [15]);
        assert_eq!(held.begins(A, 19, true), Share::Lost);
        // A database that has the end is not asked for it.
        assert_eq!(held.finished(9), (false, vec![5]));
        assert!(held.ending().is_empty());
    }
}
