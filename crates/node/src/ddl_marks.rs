//! What this node knows of the statement that its database ran last in total
//! order isolation, across a crash.
//!
//! Such a statement (DDL) is not one transaction with the database's position:
//! after a crash the tables may have its effect and the position not. So a mark
//! is made durable before the database runs it, and another one when it is over.
//!
//! ```text
//!   dromon.ddl.log   ┌───────── slot 0, 64 bytes ─────────┬───────── slot 1 ─────────┐
//!                    │ number kind history seqno data crc │ the same, older or newer │
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
//!
//! Each slot says, too, whether there were notes on large transactions ([`crate::lacking`]): a file of them that
//! somebody removed is not taken for one without any.
//!
//! Each mark names the files of the database that it is about, by `ibdata1` of the data directory. Where
//! others lie there since (a backup was restored, another node's files were copied), an orderly stop does
//! not count, and what a mark says is in doubt.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use dromon_writeset::{Seqno, Uuid};

use crate::messages::Position;

/// The file's name. At the top of the data directory the server's copy scripts
/// spare what ends in `.log`; the log's own files begin with `dromon-`.
pub const MARKS_FILE: &str = "dromon.ddl.log";

/// Bytes of one mark.
pub const SLOT: usize = 64;
/// Of the whole file: behind the marks lies what [`crate::failed`] keeps. A build from before that makes the file anew
/// without it, as soon as it notes anything.
pub(crate) const FILE_LEN: usize = 2 * SLOT + 2 * crate::failed::SLOT;
/// Bits for how many places the statement before is behind a mark's: what no database loses in a crash is further behind.
const FORMER_BITS: u32 = 14;
/// Bits for what was not told of it.
const UNTOLD_BITS: u32 = 9;
/// In the byte behind: the highest bit.
const HAS_NOTES: u8 = 0x80;
const MAGIC: [u8; 8] = *b"dromddl1";
/// What each database of InnoDB has, and a copy of it has anew.
const DATA_FILE: &str = "ibdata1";

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
    /// No statement: the node stopped cleanly here.
    Stopped {
        /// The database has all that the log here has and others may have been told of.
        whole: bool,
    },
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
    /// So many places right before it did nothing in the database when it began, which was told nothing of them: its
    /// position may never say that they are over.
    pub untold: u32,
    /// The last statement before it of which that is to be told: its own mark is gone when this one begins, and the
    /// database's position may be before both.
    pub former: Option<Former>,
}

/// What is kept of the statement before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Former {
    /// Its place.
    pub seqno: Seqno,
    /// See [`Mark::untold`].
    pub untold: u32,
}

impl Mark {
    /// Where a database at `position` stands: right before the statement, or the one before, if nothing between moves
    /// its position.
    pub fn stands(&self, position: Position) -> Seqno {
        if self.at.history != position.history {
            return position.seqno;
        }
        let own = Former {
            seqno: self.at.seqno,
            untold: self.untold,
        };
        let mut known = [Some(own), self.former].into_iter().flatten();
        known
            .find_map(|statement| {
                let before = statement.seqno - 1;
                let told = before - Seqno::from(statement.untold);
                (told..before).contains(&position.seqno).then_some(before)
            })
            .unwrap_or(position.seqno)
    }

    /// What a mark at `at` is to keep of this one.
    fn as_former(&self, at: Position) -> Option<Former> {
        if self.at.history != at.history || self.at.seqno > at.seqno {
            return None;
        }
        match self.untold {
            untold if untold > 0 && self.at.seqno < at.seqno => Some(Former {
                seqno: self.at.seqno,
                untold,
            }),
            _ => self.former,
        }
    }
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
    let next = mark.stands(position) + 1;
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
        Progress::Stopped { .. } => Left::Nothing,
        // Statements run alone: what comes next begins when this one is over.
        _ if mark.at.seqno > next => Left::Done,
        Progress::Ended { ok: true } => Left::Done,
        // They are applied again.
        Progress::RowsFailed => Left::Nothing,
        // Failed here, and the others were still to say whether there too.
        Progress::Ended { ok: false } | Progress::Begun => Left::Unknown,
    }
}

/// Where the node stopped by this mark, and whether its log had nothing more.
fn stop(mark: Mark) -> Option<(Position, bool)> {
    match mark.progress {
        Progress::Stopped { whole } => Some((mark.at, whole)),
        _ => None,
    }
}

/// Writes and reads the marks of one data directory.
#[derive(Debug)]
pub struct Marks {
    dir: PathBuf,
    data_dir: PathBuf,
    number: u64,
    /// Of a statement.
    newest: Option<Mark>,
    stopped: Option<Position>,
    /// Whether its log had nothing more then.
    whole: bool,
    /// The files that the newest mark is about ([`data_of`]), if they are others than those in the data directory.
    exchanged: Option<u64>,
    /// When the last statement that this process noted began.
    begun: Option<SystemTime>,
    /// Whether there are notes on large transactions.
    notes: bool,
    /// Kept open: a statement may come when no descriptor is left, and without its mark no database is to be trusted.
    file: Option<File>,
}

/// One slot's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slot {
    number: u64,
    mark: Option<Mark>,
    /// The database's files ([`data_of`]).
    data: u64,
    /// See [`Marks::has_notes`].
    notes: bool,
}

/// What the files of the database in `data_dir` are known by, until others are put there; 0: nothing.
pub(crate) fn data_of(data_dir: &Path) -> u64 {
    let Ok(found) = std::fs::metadata(data_dir.join(DATA_FILE)) else {
        return 0;
    };
    // Numbers are given again; with the time of its birth, where the file system keeps that, it is another one.
    let born = found.created().ok();
    let born = born.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let mut known = found.ino().to_le_bytes().to_vec();
    known.extend(born.map_or(0, |at| at.as_nanos()).to_le_bytes());
    twox_hash::XxHash3_64::oneshot(&known).max(1)
}

impl Marks {
    /// Reads what an earlier process left in `dir` of the database in `data_dir`.
    pub fn open(dir: &Path, data_dir: &Path) -> io::Result<Self> {
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
        let slot = found.ok_or_else(|| {
            let both = "both of its marks are damaged";
            io::Error::new(io::ErrorKind::InvalidData, both)
        })?;
        let there = data_of(data_dir);
        let is_other = |data| there != 0 && data != 0 && data != there;
        let (newest, data, stopped) = match slot.mark.and_then(stop) {
            // What was before it is still of use: the engine may have died while it shut down.
            Some(stopped) => {
                let before = before(&bytes, slot.number);
                let data = before.map_or(slot.data, |before| before.data);
                let stopped = Some(stopped).filter(|_| !is_other(slot.data));
                (before.and_then(|before| before.mark), data, stopped)
            }
            None => (slot.mark, slot.data, None),
        };
        Ok(Marks {
            dir: dir.to_owned(),
            data_dir: data_dir.to_owned(),
            number: slot.number,
            newest,
            stopped: stopped.map(|(at, _)| at),
            whole: stopped.is_some_and(|(_, whole)| whole),
            exchanged: Some(data).filter(|data| is_other(*data)),
            begun: None,
            notes: slot.notes,
            file: None,
        })
    }

    /// Whether the newest mark is about other files than those that were in the data directory at the start: nobody
    /// knows whether these have the statement's effect.
    pub fn exchanged(&self) -> bool {
        self.exchanged.is_some()
    }

    /// The newest mark of a statement.
    pub fn newest(&self) -> Option<Mark> {
        self.newest
    }

    /// Where the node stopped cleanly, if it has not run since.
    pub fn stopped(&self) -> Option<Position> {
        self.stopped
    }

    /// The same if its log has nothing behind that on which others may rest.
    pub fn stopped_whole(&self) -> Option<Position> {
        self.stopped.filter(|_| self.whole)
    }

    /// Whether there were notes on large transactions when the newest mark was made.
    pub fn has_notes(&self) -> bool {
        self.notes
    }

    /// Makes durable that there are notes, before they are written. That there are none any more the next mark says:
    /// until then it costs a copy if somebody removes their file, and nothing else.
    pub fn set_notes(&mut self, are_there: bool) -> io::Result<()> {
        // Behind a stop the node has to run first, which makes a mark.
        let now = are_there && !self.notes && self.stopped.is_none();
        self.notes = are_there;
        if !now {
            return Ok(());
        }
        let exchanged = self.exchanged;
        let data = exchanged.unwrap_or_else(|| data_of(&self.data_dir));
        let stored = self.store_about(self.newest, data);
        self.exchanged = exchanged;
        self.notes = stored.is_ok();
        stored
    }

    /// Makes sure that marks can be written: else it shows at a statement, which no node can put off.
    pub fn ready(&mut self) -> io::Result<()> {
        self.file().map(drop)
    }

    /// Makes a mark durable.
    pub fn write(&mut self, mut mark: Mark) -> io::Result<()> {
        // That a statement is over is told when its place was left: rows behind it may have failed by then, and
        // their mark says the same of the statement.
        if matches!(mark.progress, Progress::Ended { .. }) && self.rows_failed_behind(mark.at) {
            return Ok(());
        }
        if let Progress::Ended { .. } = mark.progress {
            // What lay before it as it began.
            let begun = self.newest.filter(|newest| newest.at == mark.at);
            mark.untold = begun.map_or(0, |begun| begun.untold);
        }
        mark.former = self.newest.and_then(|newest| newest.as_former(mark.at));
        if mark.progress == Progress::Begun {
            self.begun = Some(SystemTime::now());
        }
        self.store(Some(mark))?;
        match mark.progress {
            // The other slot must not say that nothing is under way.
            Progress::Begun => self.store(Some(mark)),
            _ => Ok(()),
        }
    }

    /// When the last statement that this process noted began.
    pub fn begun(&self) -> Option<SystemTime> {
        self.begun
    }

    /// The node runs again: it does not stand where it stopped any more.
    pub fn runs(&mut self) -> io::Result<()> {
        // So that it is there when a statement comes, which tries again.
        let kept = self.ready();
        if self.stopped.is_none() {
            return Ok(());
        }
        kept?;
        let (mark, exchanged) = (self.newest, self.exchanged);
        let data = exchanged.unwrap_or_else(|| data_of(&self.data_dir));
        // Both slots: a flipped bit must not bring the stop back.
        for _ in 0..2 {
            self.store_about(mark, data)?;
        }
        self.exchanged = exchanged;
        Ok(())
    }

    /// The node does not run yet, but its log may get more than the database has.
    pub fn log_grows(&mut self) -> io::Result<()> {
        let Some(at) = self.stopped_whole() else {
            return Ok(());
        };
        let (number, data) = (self.number, data_of(&self.data_dir));
        let mark = Some(Mark {
            at,
            progress: Progress::Stopped { whole: false },
            untold: 0,
            former: None,
        });
        // In its place: the other slot has the statement before.
        let slot = encode(Slot {
            number,
            mark,
            data,
            notes: self.notes,
        });
        let file = self.file()?;
        file.write_all_at(&slot, (number % 2) * SLOT as u64)?;
        file.sync_data()?;
        self.whole = false;
        Ok(())
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
        self.store_about(mark, data_of(&self.data_dir))
    }

    fn store_about(&mut self, mark: Option<Mark>, data: u64) -> io::Result<()> {
        let number = self.number + 1;
        let notes = self.notes;
        let file = self.file()?;
        let slot = encode(Slot {
            number,
            mark,
            data,
            notes,
        });
        file.write_all_at(&slot, (number % 2) * SLOT as u64)?;
        file.sync_data()?;
        self.number = number;
        match mark.and_then(stop) {
            Some((at, whole)) => (self.stopped, self.whole) = (Some(at), whole),
            None => (self.newest, self.stopped, self.exchanged) = (mark, None, None),
        }
        Ok(())
    }

    /// The file at its name: a copy of the database may have replaced it.
    fn file(&mut self) -> io::Result<&File> {
        let path = self.dir.join(MARKS_FILE);
        let kept = self.file.take().filter(|file| leads_to(&path, file));
        let file = match kept.map_or_else(|| OpenOptions::new().write(true).open(&path), Ok) {
            Ok(file) if file.metadata()?.len() == FILE_LEN as u64 => file,
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => self.create(&path)?,
        };
        Ok(self.file.insert(file))
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        let file = File::create(path)?;
        let newest = encode(Slot {
            number: self.number,
            mark: self.newest,
            data: data_of(&self.data_dir),
            notes: self.notes,
        });
        file.write_all_at(&[0; FILE_LEN], 0)?;
        file.write_all_at(&newest, (self.number % 2) * SLOT as u64)?;
        file.sync_all()?;
        File::open(&self.dir)?.sync_all()?;
        Ok(file)
    }
}

/// Whether the name leads to the open file; told without a descriptor.
pub(crate) fn leads_to(path: &Path, file: &File) -> bool {
    match (std::fs::metadata(path), file.metadata()) {
        (Ok(named), Ok(open)) => (named.dev(), named.ino()) == (open.dev(), open.ino()),
        _ => false,
    }
}

/// `magic 8 | number 8 | kind 1 | history 16 | seqno 8 | data 8 | untold 4 | former and notes 3 | xxh3 of all that 8`
fn encode(content: Slot) -> [u8; SLOT] {
    let Slot {
        number,
        mark,
        data,
        notes,
    } = content;
    let mut slot = [0; SLOT];
    slot[..8].copy_from_slice(&MAGIC);
    slot[8..16].copy_from_slice(&number.to_le_bytes());
    slot[41..49].copy_from_slice(&data.to_le_bytes());
    slot[16] = match mark.map(|m| m.progress) {
        None => 0,
        Some(Progress::Begun) => 1,
        Some(Progress::Ended { ok: true }) => 2,
        Some(Progress::Ended { ok: false }) => 3,
        Some(Progress::Stopped { whole: true }) => 4,
        Some(Progress::RowsFailed) => 5,
        Some(Progress::Stopped { whole: false }) => 6,
    };
    if let Some(mark) = mark {
        slot[17..33].copy_from_slice(&mark.at.history.0);
        slot[33..41].copy_from_slice(&mark.at.seqno.to_le_bytes());
        slot[49..53].copy_from_slice(&mark.untold.to_le_bytes());
        slot[53..56].copy_from_slice(&former_bytes(mark));
    }
    if notes {
        slot[55] |= HAS_NOTES;
    }
    let sum = twox_hash::XxHash3_64::oneshot(&slot[..SLOT - 8]);
    slot[SLOT - 8..].copy_from_slice(&sum.to_le_bytes());
    slot
}

/// How far the statement before is behind `mark` ([`FORMER_BITS`]), and above that what was not told of it.
fn former_bytes(mark: Mark) -> [u8; 3] {
    let kept = mark.former.and_then(|former| {
        let behind = u32::try_from(mark.at.seqno.checked_sub(former.seqno)?).ok()?;
        // Less than there is says less.
        let untold = former.untold.min((1 << UNTOLD_BITS) - 1);
        (behind < 1 << FORMER_BITS).then_some(behind | untold << FORMER_BITS)
    });
    let [a, b, c, _] = kept.unwrap_or(0).to_le_bytes();
    [a, b, c]
}

fn former_in(bytes: &[u8], at: Seqno) -> Option<Former> {
    let kept = u32::from_le_bytes([*bytes.first()?, *bytes.get(1)?, *bytes.get(2)?, 0]);
    let behind = kept & ((1 << FORMER_BITS) - 1);
    let untold = (kept >> FORMER_BITS) & ((1 << UNTOLD_BITS) - 1);
    let seqno = at.checked_sub(Seqno::from(behind))?;
    (behind > 0 && untold > 0).then_some(Former { seqno, untold })
}

fn decode(slot: &[u8]) -> Option<Slot> {
    let (body, sum) = slot.split_at_checked(SLOT - 8)?;
    if body[..8] != MAGIC || sum != twox_hash::XxHash3_64::oneshot(body).to_le_bytes() {
        return None;
    }
    let progress = match body[16] {
        0 => None,
        1 => Some(Progress::Begun),
        2 => Some(Progress::Ended { ok: true }),
        3 => Some(Progress::Ended { ok: false }),
        4 => Some(Progress::Stopped { whole: true }),
        5 => Some(Progress::RowsFailed),
        6 => Some(Progress::Stopped { whole: false }),
        _ => return None,
    };
    let at = Position {
        history: Uuid(body[17..33].try_into().ok()?),
        seqno: Seqno::from_le_bytes(body[33..41].try_into().ok()?),
    };
    // All 0 also from a build that does not know of them, which reads over them.
    let former = former_in(&body[53..56], at.seqno);
    let untold = u32::from_le_bytes(body[49..53].try_into().ok()?);
    let number = u64::from_le_bytes(body[8..16].try_into().ok()?);
    Some(Slot {
        number,
        mark: progress.map(|progress| Mark {
            at,
            progress,
            untold,
            former,
        }),
        data: u64::from_le_bytes(body[41..49].try_into().ok()?),
        notes: body[55] & HAS_NOTES != 0,
    })
}

/// The newest slot; `None`: damaged as no crash does it, which
/// leaves one slot whole, or the first one torn and no second.
fn read(bytes: &[u8; 2 * SLOT]) -> Option<Slot> {
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
    let slot = read(bytes)?;
    let mut again = [0; 2 * SLOT];
    again[(slot.number % 2) as usize * SLOT..][..SLOT].copy_from_slice(&encode(slot));
    Some(again)
}

/// What was written of a statement before the newest slot, which has `number`.
fn before(bytes: &[u8; 2 * SLOT], number: u64) -> Option<Slot> {
    let mut slots = bytes.chunks(SLOT).filter_map(decode);
    let found = slots.find(|slot| slot.number.checked_add(1) == Some(number))?;
    Some(found).filter(|slot| slot.mark.and_then(stop).is_none())
}

/// The slot with the higher number.
fn newest(bytes: &[u8; 2 * SLOT]) -> Slot {
    let slots = bytes.chunks(SLOT).filter_map(decode);
    slots.max_by_key(|slot| slot.number).unwrap_or_default()
}

#[cfg(test)]
mod tests;
