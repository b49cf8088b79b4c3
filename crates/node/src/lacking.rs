//! Which large transactions this database must not be given in parts, across a
//! crash.
//!
//! A node applies a large write set chunk by chunk, except where a client of its
//! own holds the whole transaction open, or where a statement in total order
//! isolation made its server throw away what it had of it. Such a database gets
//! the whole at the place where it commits. After a crash in between, its
//! position alone would say that the first chunks are in it: so a note is made
//! durable before the position may pass the first one.
//!
//! A streaming transaction that was set aside (`held.rs`) is noted likewise, before
//! the server rolls it back: with its name and where its first fragment lies in the
//! log, as no checkpoint tells that.
//!
//! ```text
//!   dromon.chunks.log   magic 8 | notes (postcard) | xxh3 of all that 8
//!   magic               dromchk2; dromchk1: notes without streams
//! ```
//!
//! The file is replaced as a whole. That there are notes stands in [`MARKS_FILE`](crate::ddl_marks::MARKS_FILE), too:
//! if that says so and the file is gone, nobody knows what the database lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use dromon_writeset::{Seqno, Uuid};
use serde::{Deserialize, Serialize};

use crate::messages::Position;

/// The file's name: see [`crate::ddl_marks::MARKS_FILE`].
pub const LACKING_FILE: &str = "dromon.chunks.log";
const NEW_FILE: &str = "dromon.chunks.new.log";
const MAGIC: [u8; 8] = *b"dromchk2";
const MAGIC_1: [u8; 8] = *b"dromchk1";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    history: Uuid,
    /// The seqno of the first chunk, or fragment.
    id: Seqno,
    /// None: it comes in chunks.
    stream: Option<StreamNote>,
}

/// A streaming transaction that is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamNote {
    /// The member it comes from.
    pub source: Uuid,
    /// Its number there.
    pub trx: u64,
    /// Where its first fragment lies in the log.
    pub index: u64,
}

/// What a database did not have for a while. A copy of it, taken at some place between, lacks
/// that too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The seqno of the first chunk, or fragment.
    pub first: Seqno,
    /// The database had come at least so far when it was thrown away.
    pub from: Seqno,
    /// From there on it has all of it again; the highest number there is: not known yet.
    pub until: Seqno,
}

impl Gap {
    /// Whether a copy that stands at `seqno` may lack it.
    pub fn is_in(&self, seqno: Seqno) -> bool {
        self.first <= seqno && self.from <= seqno && seqno < self.until
    }
}

/// Gaps kept one by one; more become one that covers them.
const GAPS_MAX: usize = 1024;

/// The notes about one database. Does no I/O: see [`LackingFile`].
#[derive(Debug)]
pub struct Lacking {
    /// Where each is over, once that is known.
    notes: BTreeMap<Seqno, (Note, Option<Seqno>)>,
    written: Notes,
    /// Those that came since a copy of the database was begun. Where the copy will stand only
    /// its receiver knows: some are taken while the database goes on.
    gaps: Option<Vec<Gap>>,
}

/// Notes as they lie in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notes(Vec<Note>);

impl Notes {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The file with the notes, in one data directory.
#[derive(Debug)]
pub struct LackingFile(PathBuf);

impl LackingFile {
    /// Reads what an earlier process left in `dir`. An error if it is damaged.
    pub fn open(dir: &Path) -> io::Result<(LackingFile, Lacking)> {
        let written = match std::fs::read(dir.join(LACKING_FILE)) {
            Ok(bytes) => decode(&bytes)
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is damaged"))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e),
        };
        let lacking = Lacking {
            notes: written.iter().map(|n| (n.id, (*n, None))).collect(),
            written: Notes(written),
            gaps: None,
        };
        Ok((LackingFile(dir.to_owned()), lacking))
    }

    /// Whether the file is there.
    pub fn exists(&self) -> io::Result<bool> {
        self.0.join(LACKING_FILE).try_exists()
    }

    /// Sees to it that the file is there, if without notes.
    pub fn make(&self) -> io::Result<()> {
        match self.exists()? {
            true => Ok(()),
            false => self.write(&Notes(Vec::new())),
        }
    }

    /// Makes `notes` durable, instead of those that were there.
    pub fn write(&self, notes: &Notes) -> io::Result<()> {
        let new = self.0.join(NEW_FILE);
        let mut file = File::create(&new)?;
        file.write_all(&encode(&notes.0))?;
        file.sync_all()?;
        std::fs::rename(&new, self.0.join(LACKING_FILE))?;
        File::open(&self.0)?.sync_all()
    }
}

impl Lacking {
    /// Whether the database gets the write set `id` whole.
    pub fn contains(&self, history: Uuid, id: Seqno) -> bool {
        self.notes
            .get(&id)
            .is_some_and(|(note, _)| note.history == history)
    }

    /// What is noted of what comes in chunks.
    pub fn in_chunks(&self) -> BTreeSet<Seqno> {
        let noted = self.notes.values().filter(|(n, _)| n.stream.is_none());
        noted.map(|(note, _)| note.id).collect()
    }

    /// Notes `id`, not durably yet.
    pub fn add(&mut self, history: Uuid, id: Seqno) {
        self.insert(history, id, None, None);
    }

    fn insert(
        &mut self,
        history: Uuid,
        id: Seqno,
        stream: Option<StreamNote>,
        over: Option<Seqno>,
    ) {
        let note = Note {
            history,
            id,
            stream,
        };
        self.notes.insert(id, (note, over));
    }

    /// A copy of the database is begun.
    pub fn watch(&mut self) {
        self.gaps = Some(Vec::new());
    }

    /// The copy is made: what the database did not have meanwhile.
    pub fn unwatch(&mut self) -> Vec<Gap> {
        self.gaps.take().unwrap_or_default()
    }

    fn gap(&mut self, first: Seqno, from: Seqno, over: Option<Seqno>) {
        let Some(gaps) = &mut self.gaps else { return };
        let until = over.unwrap_or(Seqno::MAX);
        gaps.push(Gap { first, from, until });
        if gaps.len() > GAPS_MAX {
            let closed: Vec<Gap> = gaps.extract_if(.., |g| g.until < Seqno::MAX).collect();
            let join = |a: Gap, b: Gap| Gap {
                first: a.first.min(b.first),
                from: a.from.min(b.from),
                until: a.until.max(b.until),
            };
            gaps.extend(closed.into_iter().reduce(join));
        }
    }

    fn gap_ends(&mut self, first: Seqno, seqno: Seqno) {
        let gaps = self.gaps.iter_mut().flatten();
        for gap in gaps.filter(|g| g.first == first) {
            gap.until = gap.until.min(seqno);
        }
    }

    /// Notes the streaming transaction that began at `id`, not durably yet. The database has
    /// come at least to `from`.
    pub fn add_stream(&mut self, history: Uuid, id: Seqno, stream: StreamNote, from: Seqno) {
        self.insert(history, id, Some(stream), None);
        self.gap(id, from, None);
    }

    /// What began at `id` is over at `seqno`.
    pub fn over(&mut self, id: Seqno, seqno: Seqno) {
        if let Some((_, over)) = self.notes.get_mut(&id) {
            over.get_or_insert(seqno);
        }
        self.gap_ends(id, seqno);
    }

    /// Streaming transactions that are noted and not known to be over in the `database`,
    /// which stands there, and where each began. The end of some may have been delivered
    /// and not applied.
    pub fn streams(&self, database: Position) -> Vec<(Seqno, StreamNote)> {
        let is_over = |over: &Option<Seqno>| over.is_some_and(|at| at <= database.seqno);
        let noted = self.notes.values().filter(|(_, over)| !is_over(over));
        noted
            .filter(|(note, _)| note.history == database.history)
            .filter_map(|(note, _)| Some((note.id, note.stream?)))
            .collect()
    }

    /// The database throws away what it has of `id`. Delivery runs ahead of it:
    /// that may be over at or before `delivered`, if it is not open any more. It has come at
    /// least to `from`.
    pub fn thrown_away(
        &mut self,
        history: Uuid,
        id: Seqno,
        is_open: bool,
        delivered: Seqno,
        from: Seqno,
    ) {
        let over = (!is_open).then_some(delivered);
        self.insert(history, id, None, over);
        self.gap(id, from, over);
    }

    /// Whether nothing is noted.
    pub fn is_empty(&self) -> bool {
        self.notes.is_empty()
    }

    /// What is to be written, if the file has something else. What was over at
    /// or before `durable` in the database is dropped.
    pub fn unwritten(&mut self, durable: Seqno) -> Option<Notes> {
        self.notes
            .retain(|_, (_, over)| over.is_none_or(|at| at > durable));
        let notes = Notes(self.notes.values().map(|(note, _)| *note).collect());
        (notes != self.written).then_some(notes)
    }

    /// The file has `notes` now.
    pub fn written(&mut self, notes: Notes) {
        self.written = notes;
    }

    /// Whether the database at `position` lacks chunks of something that began
    /// before and ends after it. `is_open`: not over yet.
    pub fn lacks_at(&self, position: Position, is_open: impl Fn(Seqno) -> bool) -> bool {
        let ends_after = |id, over: Option<Seqno>| match over {
            Some(at) => at > position.seqno,
            None => is_open(id),
        };
        self.notes
            .range(..=position.seqno)
            .any(|(id, (note, over))| note.history == position.history && ends_after(*id, *over))
    }

    /// Everything ordered up to `seqno` is known, and of what comes in chunks and is
    /// noted only `open` is not over.
    pub fn over_but(&mut self, open: &[Seqno], seqno: Seqno) {
        let mut ended = Vec::new();
        for (id, (note, over)) in &mut self.notes {
            if note.stream.is_none() && *id <= seqno && !open.contains(id) {
                over.get_or_insert(seqno);
                ended.push(*id);
            }
        }
        for id in ended {
            self.gap_ends(id, seqno);
        }
    }

    /// The database is another one now (a copy): no note is about it.
    pub fn clear(&mut self) {
        self.notes.clear();
    }
}

fn encode(notes: &[Note]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(postcard::to_allocvec(notes).unwrap_or_default());
    let sum = twox_hash::XxHash3_64::oneshot(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<Vec<Note>> {
    let (body, sum) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
    let right = twox_hash::XxHash3_64::oneshot(body).to_le_bytes() == sum;
    if !right {
        return None;
    }
    if let Some(notes) = body.strip_prefix(&MAGIC_1) {
        let notes: Vec<(Uuid, Seqno)> = postcard::from_bytes(notes).ok()?;
        let note = |(history, id)| Note {
            history,
            id,
            stream: None,
        };
        return Some(notes.into_iter().map(note).collect());
    }
    postcard::from_bytes(body.strip_prefix(&MAGIC)?).ok()
}

/// For fuzzing: the file that these bytes are taken for, made again.
#[doc(hidden)]
pub fn fuzzed(bytes: &[u8]) -> Option<Vec<u8>> {
    decode(bytes).map(|notes| encode(&notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HISTORY: Uuid = Uuid([7; 16]);

    fn at(seqno: Seqno) -> Position {
        Position {
            history: HISTORY,
            seqno,
        }
    }

    fn store(file: &LackingFile, notes: &mut Lacking, durable: Seqno) {
        if let Some(unwritten) = notes.unwritten(durable) {
            file.write(&unwritten).expect("room");
            notes.written(unwritten);
        }
    }

    #[test]
    fn notes_outlive_the_process_until_the_end_is_durable() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = || LackingFile::open(dir.path()).expect("readable");
        let (file, mut notes) = open();
        notes.add(HISTORY, 5);
        assert!(notes.contains(HISTORY, 5));
        assert!(!open().1.contains(HISTORY, 5), "not durable yet");
        store(&file, &mut notes, 0);
        let (file, mut notes) = open();
        assert!(notes.contains(HISTORY, 5));
        assert!(!notes.contains(Uuid([1; 16]), 5), "another history's");
        notes.add(HISTORY, 9);
        notes.over_but(&[9], 12);
        store(&file, &mut notes, 11);
        assert!(open().1.contains(HISTORY, 5), "its end is not durable");
        store(&file, &mut notes, 12);
        assert!(!open().1.contains(HISTORY, 5));
        assert!(open().1.contains(HISTORY, 9));
        assert_eq!(notes.unwritten(12), None, "the file has it");
        notes.clear();
        store(&file, &mut notes, 12);
        assert!(!open().1.contains(HISTORY, 9));
    }

    #[test]
    fn a_copy_lacks_what_began_before_it_and_ends_after() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_, mut notes) = LackingFile::open(dir.path()).expect("nothing there");
        notes.add(HISTORY, 5);
        let lacks = |notes: &Lacking, seqno, is_open: bool| {
            let history = HISTORY;
            notes.lacks_at(Position { history, seqno }, |id| is_open && id == 5)
        };
        assert!(!lacks(&notes, 4, true), "all of it comes later");
        assert!(lacks(&notes, 5, true) && lacks(&notes, 9, true));
        assert!(
            !lacks(&notes, 9, false),
            "an old one, over before a restart"
        );
        notes.over_but(&[], 12);
        assert!(lacks(&notes, 11, false));
        assert!(!lacks(&notes, 12, false), "it has the whole");
        let other = Position {
            history: Uuid([1; 16]),
            seqno: 9,
        };
        assert!(!notes.lacks_at(other, |_| true));
    }

    #[test]
    fn what_is_thrown_away_after_its_end_was_ordered_is_lacking_until_then() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_, mut notes) = LackingFile::open(dir.path()).expect("nothing there");
        notes.thrown_away(HISTORY, 5, false, 20, 4);
        let lacks = |notes: &Lacking, seqno| {
            let history = HISTORY;
            notes.lacks_at(Position { history, seqno }, |_| false)
        };
        assert!(notes.contains(HISTORY, 5));
        assert!(lacks(&notes, 9) && lacks(&notes, 19) && !lacks(&notes, 20));
        assert!(notes.unwritten(19).is_some(), "to be written");
        notes.unwritten(20);
        assert!(!notes.contains(HISTORY, 5), "through");
        notes.thrown_away(HISTORY, 30, true, 33, 31);
        assert!(!lacks(&notes, 33), "that it is open counts");
        notes.over_but(&[], 40);
        assert!(lacks(&notes, 33) && !lacks(&notes, 40));
    }

    #[test]
    fn streams_are_noted_until_they_are_over() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = || LackingFile::open(dir.path()).expect("readable");
        let (file, mut notes) = open();
        let stream = |trx| StreamNote {
            source: Uuid([3; 16]),
            trx,
            index: 40 + trx,
        };
        notes.add(HISTORY, 4);
        notes.add_stream(HISTORY, 5, stream(1), 8);
        notes.add_stream(HISTORY, 6, stream(2), 8);
        notes.add_stream(Uuid([1; 16]), 7, stream(3), 8);
        store(&file, &mut notes, 0);
        let (file, mut notes) = open();
        let both = vec![(5, stream(1)), (6, stream(2))];
        assert_eq!(Vec::from_iter(notes.in_chunks()), [4]);
        assert_eq!(notes.streams(at(9)), both);
        notes.over_but(&[], 12);
        assert_eq!(notes.streams(at(12)), both, "that is about chunks");
        notes.over(5, 13);
        notes.over(99, 13);
        assert_eq!(notes.streams(at(12)), both, "a database there has no end");
        assert_eq!(notes.streams(at(13)), both[1..]);
        store(&file, &mut notes, 12);
        assert_eq!(open().1.streams(at(12)), both, "its end is not durable");
        store(&file, &mut notes, 13);
        assert_eq!(open().1.streams(at(13)), both[1..]);
        assert!(notes.lacks_at(at(20), |id| id == 6));
    }

    #[test]
    fn a_copy_made_meanwhile_lacks_what_was_thrown_away_and_has_not_ended() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_, mut notes) = LackingFile::open(dir.path()).expect("nothing there");
        let stream = StreamNote {
            source: Uuid([3; 16]),
            trx: 1,
            index: 40,
        };
        notes.add_stream(HISTORY, 3, stream, 8);
        notes.over(3, 9);
        notes.watch();
        notes.add_stream(HISTORY, 12, stream, 15);
        notes.thrown_away(HISTORY, 13, true, 20, 16);
        notes.add_stream(HISTORY, 30, stream, 31);
        notes.over(12, 25);
        notes.over(12, 28);
        notes.over_but(&[], 27);
        // Dropped from the file, and it counts all the same.
        notes.unwritten(28);
        let gaps = notes.unwatch();
        let lacks = |at| gaps.iter().filter(|g| g.is_in(at)).count();
        assert_eq!(
            [14, 15, 16, 24, 25, 26, 27, 30].map(lacks),
            [0, 1, 2, 2, 1, 1, 0, 0]
        );
        assert_eq!([31, 1000].map(lacks), [1, 1], "it is not over");
        assert_eq!(notes.unwatch(), []);
        notes.add_stream(HISTORY, 40, stream, 41);
        assert_eq!(notes.unwatch(), [], "nobody copies");
    }

    #[test]
    fn gaps_are_bounded_and_cover_what_they_replace() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_, mut notes) = LackingFile::open(dir.path()).expect("nothing there");
        notes.watch();
        for n in 0..5000 {
            notes.thrown_away(HISTORY, 10 * n + 1, n % 1000 == 0, 10 * n + 5, 10 * n + 2);
        }
        let gaps = notes.unwatch();
        assert!(gaps.len() <= GAPS_MAX, "{}", gaps.len());
        for n in 0..5000 {
            assert!(gaps.iter().any(|g| g.is_in(10 * n + 3)), "{n}");
        }
        let open = gaps.iter().filter(|g| g.until == Seqno::MAX).count();
        assert_eq!(open, 5);
    }

    #[test]
    fn a_file_of_the_first_version_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut bytes = MAGIC_1.to_vec();
        let notes = vec![(HISTORY, 5i64), (HISTORY, 9)];
        bytes.extend(postcard::to_allocvec(&notes).expect("short"));
        let sum = twox_hash::XxHash3_64::oneshot(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        std::fs::write(dir.path().join(LACKING_FILE), bytes).expect("room");
        let (_, notes) = LackingFile::open(dir.path()).expect("readable");
        assert!(notes.contains(HISTORY, 5) && notes.contains(HISTORY, 9));
        assert_eq!(notes.streams(at(9)), []);
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, mut notes) = LackingFile::open(dir.path()).expect("nothing there");
        notes.add(HISTORY, 5);
        store(&file, &mut notes, 0);
        let path = dir.path().join(LACKING_FILE);
        let whole = std::fs::read(&path).expect("there");
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).expect("room");
            assert!(LackingFile::open(dir.path()).is_err(), "byte {at}");
        }
        std::fs::write(&path, &whole[..4]).expect("room");
        assert!(LackingFile::open(dir.path()).is_err());
    }
}
