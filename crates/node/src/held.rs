//! Streaming transactions of other nodes that hold rows in this database, and when
//! one of them has to go. Decided without a clock: times come in from outside.
//!
//! The engine may need more than keys tell: an insert into a unique index looks at the
//! neighbouring record, and waits if a streaming transaction has it. That one's end,
//! or its rollback, lies behind. A rollback may be carried out before its turn, if a
//! thread is kept for it; if there is none in the order, somebody has to ask.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dromon_writeset::{KeyHash, Seqno, Uuid};

use crate::cluster::OpenStream;

/// A write set that an applier has had for so long, while all before it is finished,
/// is taken for one that waits for a streaming transaction.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// And so many bytes of it per second are taken for work.
const BYTES_PER_SECOND: f64 = (1 << 20) as f64;
/// Who asked for a doom and was not heard asks again.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Of one that touches more tables, it is not known which.
const TABLES_MAX: usize = 1024;

/// A member, and a number there.
pub type StreamId = (Uuid, u64);

/// See the module's text.
#[derive(Debug, Default)]
pub struct Held {
    streams: BTreeMap<StreamId, Stream>,
    /// What appliers are at that does not wait for its turn yet.
    work: BTreeMap<Seqno, Work>,
    /// Since when the lowest unfinished event is one of these.
    stands: Option<(Seqno, Duration)>,
}

#[derive(Debug)]
struct Stream {
    /// Place of its first fragment.
    first: Seqno,
    /// Place of the newest fragment that an applier here has begun with.
    applied: Seqno,
    /// Where it changes something; `None`: not known.
    tables: Option<BTreeSet<KeyHash>>,
    /// The first place at which it is rolled back here.
    gone: Option<Seqno>,
    /// An applier has that.
    begun: bool,
    /// Behind this place nothing of it comes any more.
    over: Option<Seqno>,
    /// When its doom was asked for.
    asked: Option<Duration>,
}

#[derive(Debug)]
struct Work {
    /// The tables it names; none: not known.
    tables: Vec<KeyHash>,
    bytes: u64,
}

impl Held {
    /// Forgets everything; `open` are those that are open where the order begins.
    pub fn start<'a>(&mut self, open: impl Iterator<Item = &'a OpenStream>) {
        *self = Held::default();
        for s in open {
            let stream = Stream {
                first: s.first,
                applied: s.first,
                tables: None,
                gone: s.gone,
                begun: false,
                over: None,
                asked: None,
            };
            self.streams.insert((s.source, s.trx_id), stream);
        }
    }

    /// Whether this database applies, or applied, fragments of it.
    pub fn knows(&self, id: StreamId) -> bool {
        self.streams.contains_key(&id)
    }

    /// Whether there is none: most write sets see only this.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// A fragment took its place at `seqno`, and passed; it names `tables`.
    pub fn fragment(&mut self, id: StreamId, seqno: Seqno, starts: bool, tables: &[KeyHash]) {
        if starts {
            let stream = Stream {
                first: seqno,
                applied: seqno,
                tables: Some(BTreeSet::new()),
                gone: None,
                begun: false,
                over: None,
                asked: None,
            };
            self.streams.insert(id, stream);
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if let Some(known) = &mut stream.tables {
            known.extend(tables);
            if tables.is_empty() || known.len() > TABLES_MAX {
                stream.tables = None;
            }
        }
    }

    /// It is rolled back at `seqno`, if it was not before.
    pub fn goes(&mut self, id: StreamId, seqno: Seqno) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.gone.get_or_insert(seqno);
        }
    }

    /// Its end, or its own node's rollback, took its place at `seqno`.
    pub fn over(&mut self, id: StreamId, seqno: Seqno) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.over.get_or_insert(seqno);
        }
    }

    /// The view at `seqno`: servers roll back what came from who is no member.
    pub fn keep_members(&mut self, seqno: Seqno, is_member: impl Fn(&Uuid) -> bool) {
        for ((source, _), stream) in &mut self.streams {
            if !is_member(source) {
                stream.over.get_or_insert(seqno);
            }
        }
    }

    /// An applier is about to begin with the fragment at `seqno`. False: its rollback
    /// came first, and nothing is left to do.
    pub fn fragment_begins(&mut self, id: StreamId, seqno: Seqno) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else {
            return true;
        };
        // The rollback waits for the first one, which is what the server knows it by.
        let begins = !stream.begun || seqno <= stream.applied;
        if begins {
            stream.applied = stream.applied.max(seqno);
        }
        begins
    }

    /// An applier is about to begin with its rollback: no fragment begins any more.
    /// Answers the last one that did.
    pub fn rollback_begins(&mut self, id: StreamId) -> Option<Seqno> {
        let stream = self.streams.get_mut(&id)?;
        stream.begun = true;
        Some(stream.applied)
    }

    /// Everything up to `released` is finished. Answers for how many streams a thread
    /// is to be kept: they hold rows here, and their rollback has not begun.
    pub fn finished(&mut self, released: Seqno) -> usize {
        self.streams
            .retain(|_, s| s.over.is_none_or(|at| at > released));
        let waits = |s: &&Stream| match s.gone {
            _ if s.begun || s.first > released => false,
            Some(at) => at > released,
            None => s.over.is_none(),
        };
        self.streams.values().filter(waits).count()
    }

    /// Those that were rolled back at or below `position` by all but their own node: a
    /// database that stands there may have them all the same, if it is that of this
    /// node or a copy of it.
    pub fn unsettled(&self, position: Seqno) -> Vec<StreamId> {
        let left = self.streams.iter().filter(|(_, s)| {
            s.gone.is_some_and(|at| at <= position) && s.over.is_none_or(|at| at > position)
        });
        left.map(|(id, _)| *id).collect()
    }

    /// An applier has the write set at `seqno`.
    pub fn works(&mut self, seqno: Seqno, tables: Vec<KeyHash>, bytes: u64) {
        self.work.insert(seqno, Work { tables, bytes });
    }

    /// It waits for its turn, or is finished.
    pub fn worked(&mut self, seqno: Seqno) {
        self.work.remove(&seqno);
    }

    /// Everything up to `released` is finished, at `now`. Answers which write set waits
    /// for too long, and whose doom is to be asked for.
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
        let patience = PATIENCE + Duration::from_secs_f64(work.bytes as f64 / BYTES_PER_SECOND);
        if now.saturating_sub(since) < patience {
            return None;
        }
        let mut doomed = Vec::new();
        for (id, stream) in &mut self.streams {
            let open = stream.first <= released && stream.gone.is_none() && stream.over.is_none();
            let asked = stream.asked.is_some_and(|at| now < at + ASK_AGAIN);
            let meets = match &stream.tables {
                Some(tables) if !work.tables.is_empty() => {
                    work.tables.iter().any(|t| tables.contains(t))
                }
                _ => true,
            };
            if open && meets && !asked {
                stream.asked = Some(now);
                doomed.push(*id);
            }
        }
        (!doomed.is_empty()).then_some((waits, doomed))
    }

    /// That could not be asked.
    pub fn not_asked(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.asked = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StreamId = (Uuid([1; 16]), 7);
    const B: StreamId = (Uuid([2; 16]), 7);

    fn table(name: &[u8]) -> KeyHash {
        KeyHash::ROOT.child(dromon_writeset::Part::Raw(name))
    }

    fn s(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// A at 5 in table t, B at 6 in table u; everything up to 9 is finished.
    fn two() -> Held {
        let mut held = Held::default();
        held.fragment(A, 5, true, &[table(b"t")]);
        held.fragment(B, 6, true, &[table(b"u")]);
        held.fragment(B, 8, false, &[table(b"v")]);
        held
    }

    #[test]
    fn who_stands_for_long_asks_for_those_on_its_tables() {
        let mut held = two();
        held.works(10, vec![table(b"v"), table(b"w")], 0);
        assert_eq!(held.stuck(9, s(3.0)), None);
        assert_eq!(held.stuck(9, s(3.9)), None);
        assert_eq!(held.stuck(9, s(4.0)), Some((10, vec![B])));
        assert_eq!(held.stuck(9, s(5.0)), None, "asked already");
        held.not_asked(B);
        assert_eq!(held.stuck(9, s(5.0)), Some((10, vec![B])));
        assert_eq!(held.stuck(9, s(14.9)), None);
        assert_eq!(held.stuck(9, s(15.0)), Some((10, vec![B])), "it was lost");
        held.goes(B, 11);
        assert_eq!(held.stuck(9, s(40.0)), None, "it is on its way");
    }

    #[test]
    fn what_is_not_known_may_be_any_table() {
        let mut held = two();
        held.works(10, Vec::new(), 0);
        held.stuck(9, s(0.0));
        assert_eq!(held.stuck(9, s(1.0)), Some((10, vec![A, B])));
        let mut held = two();
        held.fragment(A, 9, false, &[]);
        held.works(10, vec![table(b"w")], 0);
        held.stuck(9, s(0.0));
        assert_eq!(held.stuck(9, s(1.0)), Some((10, vec![A])));
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
        held.worked(11);
        assert_eq!(held.stuck(11, s(9.0)), None);
        held.works(12, Vec::new(), 0);
        held.over(A, 13);
        held.stuck(11, s(9.0));
        assert_eq!(
            held.stuck(11, s(30.0)),
            Some((12, vec![B])),
            "A has its end"
        );
        let mut later = two();
        later.works(5, Vec::new(), 0);
        later.stuck(4, s(0.0));
        assert_eq!(later.stuck(4, s(5.0)), None, "none is applied here");
    }

    #[test]
    fn a_thread_is_kept_until_the_rollback_begins() {
        let mut held = two();
        assert_eq!([4, 5, 6].map(|r| held.finished(r)), [0, 1, 2]);
        held.goes(A, 12);
        held.over(A, 12);
        assert_eq!(held.finished(9), 2, "its rollback waits in the queue");
        assert_eq!(held.rollback_begins(A), Some(5));
        assert_eq!(held.finished(9), 1);
        held.over(B, 13);
        assert_eq!(held.finished(9), 0, "B commits");
        assert!(!held.is_empty());
        assert_eq!(held.finished(13), 0);
        assert!(held.is_empty());
        let mut held = two();
        held.keep_members(10, |m| *m == B.0);
        assert_eq!(held.finished(9), 1, "A goes with its node");
    }

    #[test]
    fn a_rollback_comes_behind_the_fragment_that_is_being_applied_and_before_the_next() {
        let mut held = two();
        assert!(held.fragment_begins(B, 8));
        held.fragment(B, 9, false, &[]);
        assert_eq!(held.rollback_begins(B), Some(8));
        assert!(!held.fragment_begins(B, 9));
        assert_eq!(held.rollback_begins(A), Some(5));
        assert!(
            held.fragment_begins(A, 5),
            "its rollback waits for the first"
        );
        let unknown = (A.0, 1);
        assert!(held.fragment_begins(unknown, 9));
        assert_eq!(held.rollback_begins(unknown), None);
    }

    #[test]
    fn a_database_may_have_what_the_others_rolled_back() {
        let mut held = two();
        held.goes(A, 12);
        assert_eq!(held.unsettled(11), []);
        assert_eq!(held.unsettled(12), [A]);
        held.over(A, 20);
        held.over(B, 20);
        assert_eq!((held.unsettled(19), held.unsettled(20)), (vec![A], vec![]));
        let open = OpenStream {
            source: B.0,
            trx_id: B.1,
            first: 3,
            gone: Some(5),
        };
        held.start([open].iter());
        assert_eq!(held.unsettled(9), [B]);
        assert_eq!(held.finished(9), 0);
    }
}
