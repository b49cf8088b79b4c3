//! What this node knows of the statement that its database ran last in total
//! order isolation, across a crash.
//!
//! Such a statement (DDL) is not one transaction with the database's position:
//! after a crash the tables may have its effect and the position not. So a mark
//! is made durable before the database runs it, and another one when it is over.
//!
//! ```text
//!   dromon.ddl.log   ┌───────── slot 0, 64 bytes ─────────┬───────── slot 1 ─────────┐
//!                    │ number  kind  history  seqno  crc  │ the same, older or newer │
//!                    └────────────────────────────────────┴──────────────────────────┘
//! ```
//!
//! Marks go into the slots by turns, so that a torn write leaves the one before;
//! a slot whose checksum is wrong counts for nothing. That a statement begins is
//! written to both, one after the other, before it runs: else a bit that flips
//! there would bring back the mark before, which says that nothing is under way.
//! Any other mark may be lost so: what is left then says less, and costs a copy
//! or a question. The file keeps its size, so that a full disk does not matter
//! to it.
//!
//! An orderly stop leaves its position here too: only such a one is believed
//! where `grastate.dat` says it, as anybody can edit that.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dromon_writeset::{Seqno, Uuid};

use crate::messages::Position;

/// The file's name. At the top of the data directory the server's copy scripts
/// spare what ends in `.log`; the log's own files begin with `dromon-`.
pub const MARKS_FILE: &str = "dromon.ddl.log";

/// Bytes of one mark.
pub const SLOT: usize = 64;
const MAGIC: [u8; 8] = *b"dromddl1";

/// How far a statement got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The database was about to run it.
    Begun,
    /// It was over; `ok`: without an error here.
    Ended {
        /// Whether it succeeded.
        ok: bool,
    },
    /// No statement: the node stopped in order here.
    Stopped,
    /// No statement: rows could not be applied here, and the members are asked whether that is so on
    /// the others, too.
    RowsFailed,
}

/// The newest mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The statement's place.
    pub at: Position,
    /// How far it got.
    pub progress: Progress,
}

/// What a crash left of the statement behind the database's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// No statement was under way there.
    Nothing,
    /// It is over: the database has its effect, and must only pass its place.
    Done,
    /// It had begun: nobody knows whether the tables have its effect.
    Unknown,
}

/// What is left behind `position`, by the newest mark.
pub fn left_behind(mark: Option<Mark>, position: Position) -> Left {
    let Some(mark) = mark else {
        return Left::Nothing;
    };
    let next = position.seqno + 1;
    if !position.is_defined() || mark.at.history != position.history {
        return Left::Nothing;
    }
    // The engine's position passes a statement before the others say what its failure here means.
    let failed = matches!(
        mark.progress,
        Progress::Ended { ok: false } | Progress::RowsFailed
    );
    if mark.at.seqno == position.seqno && failed {
        return Left::Unknown;
    }
    if mark.at.seqno < next {
        return Left::Nothing;
    }
    match mark.progress {
        Progress::Stopped => Left::Nothing,
        // Statements run alone: what comes next begins when this one is over.
        _ if mark.at.seqno > next => Left::Done,
        Progress::Ended { ok: true } => Left::Done,
        // They are applied again.
        Progress::RowsFailed => Left::Nothing,
        // Failed here, and the others were still to say whether there too.
        Progress::Ended { ok: false } | Progress::Begun => Left::Unknown,
    }
}

/// Writes and reads the marks of one data directory.
#[derive(Debug)]
pub struct Marks {
    dir: PathBuf,
    number: u64,
    /// Of a statement.
    newest: Option<Mark>,
    stopped: Option<Position>,
}

impl Marks {
    /// Reads what an earlier process left in `dir`.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let mut bytes = [0; 2 * SLOT];
        match File::open(dir.join(MARKS_FILE)) {
            Ok(file) => {
                // A file cut short has lost what it lacks.
                let mut read = 0;
                while read < bytes.len() {
                    match file.read_at(&mut bytes[read..], read as u64)? {
                        0 => break,
                        n => read += n,
                    }
                }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        let found = read(&bytes);
        let (number, newest) = found.ok_or_else(|| {
            let both = "both of its marks are damaged";
            io::Error::new(io::ErrorKind::InvalidData, both)
        })?;
        let (newest, stopped) = match newest {
            // What was before it is still of use: the engine may have died while it shut down.
            Some(m) if m.progress == Progress::Stopped => (before(&bytes, number), Some(m.at)),
            newest => (newest, None),
        };
        Ok(Marks {
            dir: dir.to_owned(),
            number,
            newest,
            stopped,
        })
    }

    /// The newest mark of a statement.
    pub fn newest(&self) -> Option<Mark> {
        self.newest
    }

    /// Where the node stopped in order, if it has not run since.
    pub fn stopped(&self) -> Option<Position> {
        self.stopped
    }

    /// Makes a mark durable.
    pub fn write(&mut self, mark: Mark) -> io::Result<()> {
        // That a statement is over is told when its place was left: rows behind it may have failed by then, and
        // their mark says the same of the statement.
        if matches!(mark.progress, Progress::Ended { .. }) && self.rows_failed_behind(mark.at) {
            return Ok(());
        }
        self.store(Some(mark))?;
        match mark.progress {
            // The other slot must not say that nothing is under way.
            Progress::Begun => self.store(Some(mark)),
            _ => Ok(()),
        }
    }

    /// The node runs again: it does not stand where it stopped any more.
    pub fn runs(&mut self) -> io::Result<()> {
        let mark = self.newest;
        match self.stopped {
            None => Ok(()),
            // Both slots: a flipped bit must not bring the stop back.
            Some(_) => self.store(mark).and_then(|()| self.store(mark)),
        }
    }

    /// The database is another one now (a copy): no mark is about it.
    pub fn forget(&mut self) -> io::Result<()> {
        match self.newest {
            None => Ok(()),
            Some(_) => self.store(None),
        }
    }

    /// Whether the newest mark is of rows that failed behind `at`.
    fn rows_failed_behind(&self, at: Position) -> bool {
        let failed = (self.newest).filter(|m| m.progress == Progress::RowsFailed);
        failed.is_some_and(|m| m.at.history == at.history && m.at.seqno > at.seqno)
    }

    fn store(&mut self, mark: Option<Mark>) -> io::Result<()> {
        // Opened anew: a copy of the database may have replaced the file.
        let path = self.dir.join(MARKS_FILE);
        let file = match OpenOptions::new().write(true).open(&path) {
            Ok(file) if file.metadata()?.len() == 2 * SLOT as u64 => file,
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => self.create(&path)?,
        };
        let number = self.number + 1;
        let slot = encode(number, mark);
        file.write_all_at(&slot, (number % 2) * SLOT as u64)?;
        file.sync_data()?;
        self.number = number;
        match mark {
            Some(m) if m.progress == Progress::Stopped => self.stopped = Some(m.at),
            mark => (self.newest, self.stopped) = (mark, None),
        }
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        let file = File::create(path)?;
        let newest = encode(self.number, self.newest);
        file.write_all_at(&[0; 2 * SLOT], 0)?;
        file.write_all_at(&newest, (self.number % 2) * SLOT as u64)?;
        file.sync_all()?;
        File::open(&self.dir)?.sync_all()?;
        Ok(file)
    }
}

/// `magic 8 | number 8 | kind 1 | history 16 | seqno 8 | zeros | xxh3 of all that 8`
fn encode(number: u64, mark: Option<Mark>) -> [u8; SLOT] {
    let mut slot = [0; SLOT];
    slot[..8].copy_from_slice(&MAGIC);
    slot[8..16].copy_from_slice(&number.to_le_bytes());
    slot[16] = match mark.map(|m| m.progress) {
        None => 0,
        Some(Progress::Begun) => 1,
        Some(Progress::Ended { ok: true }) => 2,
        Some(Progress::Ended { ok: false }) => 3,
        Some(Progress::Stopped) => 4,
        Some(Progress::RowsFailed) => 5,
    };
    if let Some(mark) = mark {
        slot[17..33].copy_from_slice(&mark.at.history.0);
        slot[33..41].copy_from_slice(&mark.at.seqno.to_le_bytes());
    }
    let sum = twox_hash::XxHash3_64::oneshot(&slot[..SLOT - 8]);
    slot[SLOT - 8..].copy_from_slice(&sum.to_le_bytes());
    slot
}

fn decode(slot: &[u8]) -> Option<(u64, Option<Mark>)> {
    let (body, sum) = slot.split_at_checked(SLOT - 8)?;
    if body[..8] != MAGIC || sum != twox_hash::XxHash3_64::oneshot(body).to_le_bytes() {
        return None;
    }
    let progress = match body[16] {
        0 => None,
        1 => Some(Progress::Begun),
        2 => Some(Progress::Ended { ok: true }),
        3 => Some(Progress::Ended { ok: false }),
        4 => Some(Progress::Stopped),
        5 => Some(Progress::RowsFailed),
        _ => return None,
    };
    let at = Position {
        history: Uuid(body[17..33].try_into().ok()?),
        seqno: Seqno::from_le_bytes(body[33..41].try_into().ok()?),
    };
    let number = u64::from_le_bytes(body[8..16].try_into().ok()?);
    Some((number, progress.map(|progress| Mark { at, progress })))
}

/// The newest mark and its number; `None`: damaged as no crash does it, which
/// leaves one slot whole, or the first one torn and no second.
fn read(bytes: &[u8; 2 * SLOT]) -> Option<(u64, Option<Mark>)> {
    let written = |slot: &[u8]| slot.iter().any(|b| *b != 0);
    let mut slots = bytes.chunks(SLOT);
    match slots.all(|s| written(s) && decode(s).is_none()) {
        true => None,
        false => Some(newest(bytes)),
    }
}

/// For fuzzing: the file that these bytes are taken for, made again.
#[doc(hidden)]
pub fn fuzzed(bytes: &[u8; 2 * SLOT]) -> Option<[u8; 2 * SLOT]> {
    let (number, mark) = read(bytes)?;
    let mut again = [0; 2 * SLOT];
    again[(number % 2) as usize * SLOT..][..SLOT].copy_from_slice(&encode(number, mark));
    Some(again)
}

/// The mark of a statement before the newest one, which has `number`.
fn before(bytes: &[u8; 2 * SLOT], number: u64) -> Option<Mark> {
    let mut slots = bytes.chunks(SLOT).filter_map(decode);
    let found = slots.find(|(n, _)| n.checked_add(1) == Some(number));
    found
        .and_then(|(_, mark)| mark)
        .filter(|m| m.progress != Progress::Stopped)
}

/// The slot with the higher number.
fn newest(bytes: &[u8; 2 * SLOT]) -> (u64, Option<Mark>) {
    let slots = bytes.chunks(SLOT).filter_map(decode);
    slots.max_by_key(|(number, _)| *number).unwrap_or((0, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mark(seqno: Seqno, progress: Progress) -> Mark {
        Mark {
            at: Position {
                history: Uuid([7; 16]),
                seqno,
            },
            progress,
        }
    }

    const BEGUN: Progress = Progress::Begun;
    const OVER: Progress = Progress::Ended { ok: true };
    const FAILED: Progress = Progress::Ended { ok: false };

    #[test]
    fn marks_are_read_back_and_forgotten() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut marks = Marks::open(dir.path()).expect("no file yet");
        assert_eq!(marks.newest(), None);
        let all = [
            mark(5, BEGUN),
            mark(5, Progress::Ended { ok: false }),
            mark(9, BEGUN),
            mark(9, OVER),
            mark(12, Progress::RowsFailed),
        ];
        for m in all {
            marks.write(m).expect("a disk that works");
            let again = Marks::open(dir.path()).expect("a file");
            assert_eq!(again.newest(), Some(m));
        }
        // A copy script has swept the directory.
        std::fs::remove_file(dir.path().join(MARKS_FILE)).expect("a file");
        marks.forget().expect("a disk that works");
        assert_eq!(Marks::open(dir.path()).expect("a file").newest(), None);
    }

    #[test]
    fn rows_that_failed_are_in_doubt_where_the_engine_has_passed_them() {
        let failed = mark(9, Progress::RowsFailed);
        let left = |seqno| left_behind(Some(failed), mark(seqno, BEGUN).at);
        assert_eq!(left(9), Left::Unknown);
        assert_eq!(left(8), Left::Nothing, "they are applied again");
        assert_eq!(left(10), Left::Nothing);
        assert_eq!(left(5), Left::Done, "a statement at 6 was over before them");
        let decided = mark(9, OVER);
        assert_eq!(left_behind(Some(decided), failed.at), Left::Nothing);
    }

    #[test]
    fn a_statement_that_is_over_does_not_hide_rows_that_failed_behind_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut marks = Marks::open(dir.path()).expect("no file yet");
        let failed = mark(6, Progress::RowsFailed);
        for m in [mark(5, BEGUN), failed, mark(5, OVER), mark(5, FAILED)] {
            marks.write(m).expect("a disk that works");
        }
        let in_file = || Marks::open(dir.path()).expect("a file").newest();
        assert_eq!((marks.newest(), in_file()), (Some(failed), Some(failed)));
        let left = |seqno| left_behind(in_file(), mark(seqno, BEGUN).at);
        assert_eq!(left(6), Left::Unknown);
        assert_eq!(left(5), Left::Nothing, "6 comes again");
        assert_eq!(left(4), Left::Done, "5 is over");
        let other = Mark {
            at: Position {
                history: Uuid([1; 16]),
                seqno: 5,
            },
            progress: OVER,
        };
        for m in [mark(6, OVER), mark(5, BEGUN), failed, other] {
            marks.write(m).expect("a disk that works");
            assert_eq!((marks.newest(), in_file()), (Some(m), Some(m)));
        }
    }

    #[test]
    fn damage_that_no_crash_does_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut marks = Marks::open(dir.path()).expect("no file yet");
        marks.write(mark(5, BEGUN)).expect("a disk that works");
        marks.write(mark(5, OVER)).expect("a disk that works");
        let path = dir.path().join(MARKS_FILE);
        let whole = std::fs::read(&path).expect("there");
        let damaged = |places: &[usize]| {
            let mut bytes = whole.clone();
            places.iter().for_each(|at| bytes[*at] ^= 1);
            std::fs::write(&path, bytes).expect("room");
            Marks::open(dir.path()).map(|marks| marks.newest())
        };
        assert!(damaged(&[20]).is_ok_and(|m| m.is_some()));
        assert!(damaged(&[SLOT + 20]).is_ok_and(|m| m.is_some()));
        let refused = damaged(&[20, SLOT + 20]).expect_err("neither can be read");
        assert!(refused.to_string().contains("damaged"), "{refused}");
    }

    #[test]
    fn a_flipped_bit_does_not_hide_that_a_statement_had_begun() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(MARKS_FILE);
        let file = || -> [u8; 2 * SLOT] {
            let bytes = std::fs::read(&path).expect("there");
            bytes.try_into().expect("two slots")
        };
        let flipped = |at: usize, bit: u8| {
            let mut bytes = file();
            bytes[at] ^= 1 << bit;
            read(&bytes).expect("one is whole").1
        };
        let places = || (0..2 * SLOT).flat_map(|at| (0..8).map(move |bit| (at, bit)));
        let mut marks = Marks::open(dir.path()).expect("no file yet");
        for seqno in [5, 9, 30] {
            marks.write(mark(seqno, BEGUN)).expect("a disk that works");
            for (at, bit) in places() {
                let found = flipped(at, bit);
                assert_eq!(found, Some(mark(seqno, BEGUN)), "byte {at}, bit {bit}");
            }
            marks.write(mark(seqno, OVER)).expect("a disk that works");
            for (at, bit) in places() {
                let left = left_behind(flipped(at, bit), mark(seqno - 1, BEGUN).at);
                assert_ne!(left, Left::Nothing, "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn an_orderly_stop_counts_until_the_node_runs_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = || Marks::open(dir.path()).expect("readable");
        let stop = mark(12, Progress::Stopped);
        let mut marks = open();
        marks.write(mark(9, BEGUN)).expect("a disk that works");
        marks.write(mark(9, OVER)).expect("a disk that works");
        assert_eq!(marks.stopped(), None);
        marks.write(stop).expect("a disk that works");
        assert_eq!(open().stopped(), Some(stop.at));
        assert_eq!(left_behind(open().newest(), stop.at), Left::Nothing);
        // The engine lost its last moments, in spite of the orderly stop.
        let earlier = mark(8, BEGUN).at;
        assert_eq!(left_behind(open().newest(), earlier), Left::Done);
        marks = open();
        marks.runs().expect("a disk that works");
        assert_eq!(open().stopped(), None);
        assert_eq!(open().newest(), Some(mark(9, OVER)));
        let path = dir.path().join(MARKS_FILE);
        for at in 0..2 * SLOT {
            let whole = std::fs::read(&path).expect("there");
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            std::fs::write(&path, bytes).expect("room");
            assert_eq!(open().stopped(), None, "byte {at}");
            std::fs::write(&path, whole).expect("room");
        }
    }

    #[test]
    fn what_is_left_behind_a_position() {
        let at = |seqno| mark(seqno, BEGUN).at;
        assert_eq!(left_behind(None, at(4)), Left::Nothing);
        assert_eq!(left_behind(Some(mark(5, BEGUN)), at(4)), Left::Unknown);
        assert_eq!(left_behind(Some(mark(5, OVER)), at(4)), Left::Done);
        assert_eq!(left_behind(Some(mark(5, FAILED)), at(4)), Left::Unknown);
        assert_eq!(left_behind(Some(mark(5, OVER)), at(5)), Left::Nothing);
        assert_eq!(left_behind(Some(mark(5, BEGUN)), at(5)), Left::Nothing);
        assert_eq!(left_behind(Some(mark(5, FAILED)), at(5)), Left::Unknown);
        assert_eq!(left_behind(Some(mark(5, FAILED)), at(6)), Left::Nothing);
        assert_eq!(
            left_behind(Some(mark(8, BEGUN)), at(4)),
            Left::Done,
            "what lies between is over, or 8 had not begun"
        );
        let other = Position {
            history: Uuid([1; 16]),
            seqno: 4,
        };
        assert_eq!(left_behind(Some(mark(5, BEGUN)), other), Left::Nothing);
        let nothing = Position::UNDEFINED;
        assert_eq!(left_behind(Some(mark(0, BEGUN)), nothing), Left::Nothing);
    }

    proptest! {
        #[test]
        fn a_torn_or_damaged_slot_leaves_the_other_one(
            numbers in 1..1000u64,
            at in 0..SLOT,
            flip in 1..=255u8,
            torn in 0..SLOT,
        ) {
            let (old, new) = (mark(numbers as i64, OVER), mark(numbers as i64 + 3, BEGUN));
            let mut bytes = [0; 2 * SLOT];
            let place = |n: u64| (n % 2) as usize * SLOT;
            bytes[place(numbers)..][..SLOT].copy_from_slice(&encode(numbers, Some(old)));
            let next = encode(numbers + 1, Some(new));
            // A write that stopped half way over what was there before.
            let mut half = bytes;
            half[place(numbers + 1)..][..torn].copy_from_slice(&next[..torn]);
            let whole = half[place(numbers + 1)..][..SLOT] == next;
            prop_assert_eq!(newest(&half).1, Some(if whole { new } else { old }));
            bytes[place(numbers + 1)..][..SLOT].copy_from_slice(&next);
            prop_assert_eq!(newest(&bytes), (numbers + 1, Some(new)));
            bytes[place(numbers + 1) + at] ^= flip;
            prop_assert_eq!(newest(&bytes).1, Some(old));
        }
    }
}
