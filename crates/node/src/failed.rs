//! What an earlier process of this node could not apply, and the other members could not either.
//!
//! A process knows what failed in it. What came before it started is in the database, or not, and the database's
//! position does not tell: it passes what failed as well. So where the members decide, behind that position, that
//! something at or before it counts as failed, this file says which of the two it is here. Who has the rows then,
//! or a statement's effect, was outvoted while it was away.
//!
//! ```text
//!   dromon.ddl.log   ┌─ 128 bytes ─┬──────────── slot 0, 4096 bytes ────────────┬────── slot 1 ───────┐
//!                    │    marks    │ number data history since count seqnos sum │ the same, one older │
//!                    └─────────────┴────────────────────────────────────────────┴─────────────────────┘
//! ```
//!
//! What failed up to `since` nobody knows; behind it, what is not listed succeeded. A seqno is on the disk before
//! the members hear of the failure, so whatever they decide, who failed alike is listed. Slots are written by turns:
//! a torn one leaves the one before, and the ballot that belongs to it was never sent. The file keeps its size, so
//! that a full disk does not matter to it. It is that of the marks ([`crate::ddl_marks`]): a build that knows no
//! failures notes each of them there, and leaves nothing behind the marks then, so that nothing is known any more.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dromon_writeset::{Seqno, Uuid};

use crate::ddl_marks::{self, FILE_LEN, MARKS_FILE, data_of, leads_to};
use crate::messages::Position;

/// Bytes of one slot.
pub const SLOT: usize = 4096;
/// Where the first one lies in the file.
const FIRST: usize = 2 * ddl_marks::SLOT;
const HEAD: usize = 56;
/// So many are kept.
const KEPT: usize = (SLOT - HEAD - 8) / 8;
const MAGIC: [u8; 8] = *b"dromfai1";

/// What one slot says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Content {
    number: u64,
    /// The files of the database, as in the marks of statements.
    data: u64,
    history: Uuid,
    since: Seqno,
    failed: BTreeSet<Seqno>,
}

/// What failed lawfully in one data directory.
#[derive(Debug)]
pub struct Failed {
    dir: PathBuf,
    data_dir: PathBuf,
    /// Nothing is known without it.
    content: Option<Content>,
    /// Of the slots in the file.
    number: u64,
    /// What could not be written so far: what lies there may not be all, and nobody goes by it.
    unwritten: Option<Content>,
    /// What is to be written with the next one.
    later: BTreeSet<Seqno>,
    /// Kept open: it is wanted where no descriptor may be left.
    file: Option<File>,
}

impl Failed {
    /// Reads what an earlier process left in `dir` of the database in `data_dir`.
    pub fn open(dir: &Path, data_dir: &Path) -> io::Result<Self> {
        let mut bytes = Vec::new();
        match File::open(dir.join(MARKS_FILE)) {
            Ok(file) => {
                file.take(FILE_LEN as u64).read_to_end(&mut bytes)?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        let content = newest(bytes.get(FIRST..).unwrap_or_default());
        Ok(Failed {
            dir: dir.to_owned(),
            data_dir: data_dir.to_owned(),
            number: content.as_ref().map_or(0, |c| c.number),
            content,
            unwritten: None,
            later: BTreeSet::new(),
            file: None,
        })
    }

    /// The database stands at `position`: what lies behind comes, or comes again, and the new try counts. `anew`: it
    /// is not the database that was here before.
    pub fn stands(&mut self, position: Position, anew: bool) -> io::Result<()> {
        let data = data_of(&self.data_dir);
        let same = |c: &Content| {
            let files = c.data == data || c.data == 0 || data == 0;
            files && c.history == position.history
        };
        let kept = self.content.take().filter(|c| !anew && same(c));
        let mut next = kept.clone().unwrap_or_else(|| Content {
            data,
            history: position.history,
            since: position.seqno,
            ..Content::default()
        });
        next.since = next.since.min(position.seqno);
        next.failed.split_off(&(position.seqno + 1));
        next.data = data;
        match kept.is_some() {
            true => drop(self.later.split_off(&(position.seqno + 1))),
            false => self.later.clear(),
        }
        if kept.as_ref() == Some(&next) {
            self.unwritten = kept;
            // So that it is there when something fails.
            self.file()?;
            self.content = self.unwritten.take();
            return Ok(());
        }
        self.store(next)
    }

    /// Makes durable that `seqno` failed here.
    pub fn add(&mut self, seqno: Seqno) -> io::Result<()> {
        let written = self.content.as_ref();
        let known = written.is_some_and(|c| seqno <= c.since || c.failed.contains(&seqno));
        if self.unwritten.is_none() && (known || self.content.is_none()) {
            // Before the database has a place nothing is applied.
            return Ok(());
        }
        self.later.insert(seqno);
        self.flush()
    }

    /// `seqno` has no effect here: known from now on, and durable with what comes next. Nobody is asked about most of these.
    pub fn add_later(&mut self, seqno: Seqno) {
        self.later.insert(seqno);
        if self.later.len() > KEPT {
            self.later.pop_first();
        }
    }

    /// Makes durable what is known.
    pub fn flush(&mut self) -> io::Result<()> {
        let content = self.unwritten.as_ref().or(self.content.as_ref());
        let Some(mut next) = content.cloned() else {
            return Ok(());
        };
        if self.later.is_empty() && self.unwritten.is_none() {
            return Ok(());
        }
        let since = next.since;
        next.failed
            .extend(self.later.iter().filter(|seqno| **seqno > since));
        while next.failed.len() > KEPT {
            if let Some(first) = next.failed.pop_first() {
                next.since = first;
            }
        }
        self.store(next)?;
        self.later.clear();
        Ok(())
    }

    /// Whether `seqno` failed here; `None`: nobody knows.
    pub fn has(&self, seqno: Seqno) -> Option<bool> {
        let content = self.content.as_ref()?;
        let failed = || content.failed.contains(&seqno) || self.later.contains(&seqno);
        (seqno > content.since).then(failed)
    }

    fn store(&mut self, mut next: Content) -> io::Result<()> {
        next.number = self.number + 1;
        // What cannot be written is not to be judged by.
        (self.content, self.unwritten) = (None, Some(next.clone()));
        let place = FIRST as u64 + (next.number % 2) * SLOT as u64;
        let slot = encode(&next);
        let file = self.file()?;
        file.write_all_at(&slot, place)?;
        file.sync_data()?;
        self.number = next.number;
        (self.content, self.unwritten) = (Some(next), None);
        Ok(())
    }

    /// The file at its name: a copy of the database may have replaced it. The marks make it.
    fn file(&mut self) -> io::Result<&File> {
        let path = self.dir.join(MARKS_FILE);
        let kept = self.file.take().filter(|file| leads_to(&path, file));
        let file = kept.map_or_else(|| OpenOptions::new().write(true).open(&path), Ok)?;
        if file.metadata()?.len() != FILE_LEN as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it was cut off"));
        }
        Ok(self.file.insert(file))
    }
}

/// `magic 8 | number 8 | data 8 | history 16 | since 8 | count 8 | seqnos 8 each, ascending | 0 … | xxh3 of all that 8`
fn encode(content: &Content) -> [u8; SLOT] {
    let mut slot = [0; SLOT];
    slot[..8].copy_from_slice(&MAGIC);
    slot[8..16].copy_from_slice(&content.number.to_le_bytes());
    slot[16..24].copy_from_slice(&content.data.to_le_bytes());
    slot[24..40].copy_from_slice(&content.history.0);
    slot[40..48].copy_from_slice(&content.since.to_le_bytes());
    slot[48..HEAD].copy_from_slice(&(content.failed.len() as u64).to_le_bytes());
    let places = slot[HEAD..SLOT - 8].chunks_exact_mut(8);
    for (place, seqno) in places.zip(&content.failed) {
        place.copy_from_slice(&seqno.to_le_bytes());
    }
    let sum = twox_hash::XxHash3_64::oneshot(&slot[..SLOT - 8]);
    slot[SLOT - 8..].copy_from_slice(&sum.to_le_bytes());
    slot
}

fn decode(slot: &[u8]) -> Option<Content> {
    let (body, sum) = slot.split_last_chunk::<8>()?;
    let whole = slot.len() == SLOT && slot.starts_with(&MAGIC);
    if !whole || twox_hash::XxHash3_64::oneshot(body) != u64::from_le_bytes(*sum) {
        return None;
    }
    let word = |at: usize| {
        let bytes = body.get(at..at + 8)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*bytes))
    };
    let since = word(40)?.cast_signed();
    let count = usize::try_from(word(48)?).ok().filter(|n| *n <= KEPT)?;
    let failed: Option<BTreeSet<Seqno>> = (0..count)
        .map(|n| Some(word(HEAD + 8 * n)?.cast_signed()))
        .collect();
    let failed = failed.filter(|f| f.len() == count && f.iter().all(|seqno| *seqno > since))?;
    Some(Content {
        number: word(8)?,
        data: word(16)?,
        history: Uuid(*body.get(24..40)?.first_chunk()?),
        since,
        failed,
    })
}

/// The newest slot that is whole.
fn newest(bytes: &[u8]) -> Option<Content> {
    let slots = bytes.chunks(SLOT).filter_map(decode);
    slots.max_by_key(|content| content.number)
}

/// For fuzzing: what a slot says, encoded again.
#[doc(hidden)]
pub fn fuzzed(slot: &[u8]) -> Option<[u8; SLOT]> {
    decode(slot).map(|content| encode(&content))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddl_marks::{Mark, Marks, Progress};

    fn at(seqno: Seqno) -> Position {
        Position {
            history: Uuid([7; 16]),
            seqno,
        }
    }

    fn opened(dir: &Path) -> Failed {
        let mut marks = Marks::open(dir, dir).expect("they are read");
        marks.ready().expect("room");
        Failed::open(dir, dir).expect("it is read")
    }

    #[test]
    fn what_failed_is_known_to_the_next_process() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut failed = opened(dir.path());
        assert_eq!(failed.has(5), None, "the database has no place yet");
        failed.stands(at(10), true).expect("it is written");
        failed.add(12).expect("it is written");
        failed.add(14).expect("it is written");
        let known = |f: &Failed| [10, 11, 12, 13, 14].map(|seqno| f.has(seqno));
        let all = [None, Some(false), Some(true), Some(false), Some(true)];
        assert_eq!(known(&failed), all);
        let mut again = opened(dir.path());
        again.stands(at(20), false).expect("it is written");
        assert_eq!(known(&again), all);
        // 13 and 14 come again.
        again.stands(at(12), false).expect("it is written");
        assert_eq!(opened(dir.path()).has(14), Some(false));
        assert_eq!(opened(dir.path()).has(12), Some(true));
    }

    #[test]
    fn of_another_database_nothing_is_known() {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("ibdata1");
        std::fs::write(&data, b"").expect("room");
        let fill = || {
            let mut failed = opened(dir.path());
            failed.stands(at(10), true).expect("it is written");
            failed.add(12).expect("it is written");
            opened(dir.path())
        };
        let mut same = fill();
        same.stands(at(15), false).expect("it is written");
        assert_eq!((same.has(12), same.has(13)), (Some(true), Some(false)));
        let mut copied = fill();
        copied.stands(at(15), true).expect("it is written");
        let mut strange = fill();
        let history = Uuid([8; 16]);
        let elsewhere = Position { history, ..at(15) };
        strange.stands(elsewhere, false).expect("it is written");
        let mut exchanged = fill();
        std::fs::write(dir.path().join("copy"), b"").expect("room");
        std::fs::rename(dir.path().join("copy"), &data).expect("it is renamed");
        exchanged.stands(at(15), false).expect("it is written");
        for other in [copied, strange, exchanged] {
            let known = [12, 13, 15, 16].map(|seqno| other.has(seqno));
            assert_eq!(known, [None, None, None, Some(false)]);
        }
    }

    #[test]
    fn a_database_that_was_put_back_says_nothing_of_what_it_lacks() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut failed = opened(dir.path());
        failed.stands(at(10), true).expect("it is written");
        failed.add(12).expect("it is written");
        failed.stands(at(5), false).expect("it is written");
        assert_eq!(
            [5, 6, 12].map(|s| failed.has(s)),
            [None, Some(false), Some(false)]
        );
    }

    #[test]
    fn of_very_many_the_oldest_are_not_known_any_more() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut failed = opened(dir.path());
        failed.stands(at(0), true).expect("it is written");
        let last = KEPT as Seqno + 3;
        for seqno in 1..=last {
            failed.add(seqno).expect("it is written");
        }
        let again = opened(dir.path());
        let known = [1, 3, 4, last, last + 1].map(|seqno| again.has(seqno));
        assert_eq!(known, [None, None, Some(true), Some(true), Some(false)]);
    }

    #[test]
    fn what_may_wait_is_written_with_what_comes_next() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut failed = opened(dir.path());
        failed.stands(at(10), true).expect("it is written");
        failed.add_later(12);
        assert_eq!(failed.has(12), Some(true));
        assert_eq!(opened(dir.path()).has(12), Some(false));
        failed.add(12).expect("it is written");
        assert_eq!(opened(dir.path()).has(12), Some(true));
        failed.add_later(13);
        failed.add_later(15);
        // 15 comes again.
        failed.stands(at(14), false).expect("it is written");
        failed.flush().expect("it is written");
        let again = opened(dir.path());
        let known = [12, 13, 15].map(|seqno| again.has(seqno));
        assert_eq!(known, [Some(true), Some(true), Some(false)]);
    }

    #[test]
    fn a_torn_slot_leaves_the_one_before() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut failed = opened(dir.path());
        failed.stands(at(10), true).expect("it is written");
        failed.add(12).expect("it is written");
        failed.add(13).expect("it is written");
        let path = dir.path().join(MARKS_FILE);
        let whole = std::fs::read(&path).expect("it is there");
        let place = FIRST + (failed.number % 2) as usize * SLOT;
        for torn in [place, place + 60, place + SLOT - 1] {
            let mut bytes = whole.clone();
            bytes[torn] ^= 1;
            std::fs::write(&path, &bytes).expect("room");
            let left = opened(dir.path());
            assert_eq!((left.has(12), left.has(13)), (Some(true), Some(false)));
        }
    }

    #[test]
    fn marks_and_failures_leave_each_other_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut failed = opened(dir.path());
        failed.stands(at(10), true).expect("it is written");
        let mut marks = Marks::open(dir.path(), dir.path()).expect("they are read");
        for seqno in 11..20 {
            let mark = Mark {
                at: at(seqno),
                progress: Progress::Ended { ok: true },
                untold: 0,
                former: None,
            };
            marks.write(mark).expect("room");
            failed.add(seqno).expect("it is written");
            let read = Marks::open(dir.path(), dir.path()).expect("they are read");
            assert_eq!(read.newest(), Some(mark));
            assert_eq!(opened(dir.path()).has(seqno), Some(true));
        }
    }

    /// Which keeps nothing behind the marks, and does not list what fails in it.
    #[test]
    fn after_a_run_of_a_build_from_before_nothing_is_known() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut failed = opened(dir.path());
        failed.stands(at(10), true).expect("it is written");
        failed.add(12).expect("it is written");
        let path = dir.path().join(MARKS_FILE);
        let marks = std::fs::read(&path).expect("it is there");
        std::fs::write(&path, &marks[..FIRST]).expect("room");
        let mut again = opened(dir.path());
        again.stands(at(20), false).expect("it is written");
        let known = [12, 15, 20, 21].map(|seqno| again.has(seqno));
        assert_eq!(known, [None, None, None, Some(false)]);
    }

    #[test]
    fn where_it_cannot_be_written_nothing_is_known() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut failed = opened(dir.path());
        failed.stands(at(10), true).expect("it is written");
        let path = dir.path().join(MARKS_FILE);
        std::fs::remove_file(&path).expect("it is there");
        std::fs::create_dir(&path).expect("room");
        for seqno in [12, 13] {
            assert!(failed.add(seqno).is_err());
            assert_eq!(failed.has(seqno), None);
        }
        // It is there again.
        std::fs::remove_dir(&path).expect("it is empty");
        let mut marks = Marks::open(dir.path(), dir.path()).expect("they are read");
        marks.ready().expect("room");
        failed.add(14).expect("it is written");
        let known = |f: &Failed| [12, 13, 14, 15].map(|seqno| f.has(seqno));
        let all = [Some(true), Some(true), Some(true), Some(false)];
        assert_eq!(known(&failed), all);
        assert_eq!(known(&opened(dir.path())), all);
        let nowhere = dir.path().join("nowhere");
        let mut other = Failed::open(&nowhere, &nowhere).expect("it is read");
        assert!(other.stands(at(10), true).is_err(), "there is no file");
        assert!(other.add(12).is_err());
    }
}
