//! A log read without opening it: for people, for tools, beside a running node.
//!
//! Opening a log locks the directory, cuts a torn end and repairs the small values. This
//! does none of that. It reads the files from front to back, one record at a time, and
//! judges them by the rules of [`recover`](crate::recover): what opening would refuse is
//! refused here in the same words, and what opening would cut is told.
//!
//! A running node writes meanwhile. So whatever looks torn is read again some times before
//! it is judged, and a file that is gone, or has other records than a moment ago, is a log
//! that changed, not one that is damaged.

use crate::checkpoint::{self, checkpoint_name, parse_checkpoint_name};
use crate::device::{Device, DeviceFile};
use crate::error::LogError;
use crate::format::{
    FRAME_HEADER, FrameHeader, SEGMENT_HEADER, SEGMENT_MAGIC, SegmentHeader, parse_segment_name,
    segment_name,
};
use crate::meta::{self, META_NAME, MetaState};
use crate::record::{Record, RecordId};
use crate::segment::{Found, Segment, Walker};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// How long to wait before looking again at what may be just being written.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// What a file of a log is, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A segment of the log.
    Segment,
    /// The small values beside it.
    SmallValues,
    /// A checkpoint.
    Checkpoint,
}

/// What the first bytes of a file say it is; `None` if they say nothing.
pub fn file_kind(head: &[u8]) -> Option<FileKind> {
    match head.get(..8)? {
        h if h == SEGMENT_MAGIC => Some(FileKind::Segment),
        h if h == meta::MAGIC => Some(FileKind::SmallValues),
        h if h == checkpoint::MAGIC => Some(FileKind::Checkpoint),
        _ => None,
    }
}

/// What a file of this name is in a log's directory; `None`: none of the log's. (Others there
/// may be named alike: the files of a server on a host named dromon-1.)
pub fn kind_by_name(name: &str) -> Option<FileKind> {
    if name == meta::META_NAME {
        Some(FileKind::SmallValues)
    } else if parse_segment_name(name).is_some() {
        Some(FileKind::Segment)
    } else {
        parse_checkpoint_name(name).map(|_| FileKind::Checkpoint)
    }
}

/// The small values beside a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallState {
    /// The log's identity.
    pub identity: u128,
    /// The log was being replaced: what the segments hold counts for nothing.
    pub resetting: bool,
    /// Up to where it was purged or reset.
    pub purged: Option<RecordId>,
    /// The index that comes next, if the log was closed cleanly.
    pub closed_at: Option<u64>,
    /// What the owner keeps there.
    pub values: BTreeMap<String, Bytes>,
    /// Both copies can be read and are alike.
    pub both_whole: bool,
}

impl SmallState {
    fn of(state: &MetaState, both_whole: bool) -> SmallState {
        SmallState {
            identity: state.identity,
            resetting: state.resetting,
            purged: state.purged,
            closed_at: state.closed.map(|c| c.next),
            values: state.values.clone(),
            both_whole,
        }
    }
}

/// What comes by while a log is walked.
#[derive(Debug)]
pub enum Seen<'a> {
    /// A file begins.
    Segment {
        /// Its name.
        file: &'a str,
        /// Index of its first record.
        first: u64,
        /// Every index below this was on stable storage when it was made.
        stable_below: u64,
        /// Its length in bytes.
        bytes: u64,
    },
    /// A record, every checksum of which is right.
    Record {
        /// The record.
        record: Record,
        /// The file it lies in.
        file: &'a str,
        /// Where, in bytes.
        offset: u64,
    },
    /// A mark: the note behind the last record.
    Mark {
        /// The file it lies in.
        file: &'a str,
        /// Where, in bytes.
        offset: u64,
        /// Every index below this was on stable storage.
        stable_below: u64,
    },
}

/// How a log ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It was closed, and ends where it was closed.
    Closed,
    /// Only zeros follow: it was not closed, or is in use.
    Open,
    /// Something that is no record follows, and nothing shows that it had been stable: a
    /// write under way, or one cut short by a crash, which is cut when the log is opened.
    Torn {
        /// The file.
        file: String,
        /// Where the readable log ends, in bytes.
        offset: u64,
    },
    /// The log was being replaced by a new one; what the files hold counts for nothing.
    Resetting,
    /// The walk was ended by who walked.
    Stopped,
}

/// What a walk went over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Files.
    pub segments: u64,
    /// Records.
    pub records: u64,
    /// Bytes of the files' frames and headers.
    pub bytes: u64,
    /// The first record.
    pub first: Option<u64>,
    /// The last record.
    pub last: Option<RecordId>,
    /// How it ends.
    pub end: End,
}

/// A log, or one of its segments, to be walked.
pub struct Look {
    device: Arc<dyn Device>,
    /// The segments, by name, in order.
    segments: Vec<String>,
    small: Option<(MetaState, bool)>,
    checkpoints: Vec<u64>,
    /// How often to look again at what may be under way.
    patience: u32,
}

impl Look {
    /// All of the log in the device's directory. What looks torn is looked at `patience`
    /// times again, 50 ms apart; 0 for a log that nobody can be using.
    ///
    /// Errors: there is no log; the small values are gone or cannot be read; a segment
    /// that must be there is missing.
    pub fn whole(device: Arc<dyn Device>, patience: u32) -> Result<Look, LogError> {
        let mut tries = patience;
        loop {
            match Self::whole_now(&device, patience) {
                Err(LogError::Corrupt { .. } | LogError::Io { .. }) if tries > 0 => {
                    tries -= 1;
                    std::thread::sleep(AGAIN_AFTER);
                }
                found => return found,
            }
        }
    }

    fn whole_now(device: &Arc<dyn Device>, patience: u32) -> Result<Look, LogError> {
        let names = crate::recover::list(&**device)?;
        let mut firsts: Vec<u64> = names.iter().filter_map(|n| parse_segment_name(n)).collect();
        firsts.sort_unstable();
        if !names.iter().any(|n| n == META_NAME) {
            return Err(match firsts.first() {
                None => LogError::io("find", META_NAME, std::io::ErrorKind::NotFound.into()),
                Some(first) => LogError::corrupt(
                    META_NAME,
                    0,
                    format!(
                        "the file is missing, but {} is there; without it the node would not know \
                         for whom it voted",
                        segment_name(*first)
                    ),
                ),
            });
        }
        let file = open(&**device, META_NAME)?;
        let (_, state, both_whole) = meta::read(&*file)?;
        let base = state.purged.map_or(0, |id| id.index + 1);
        let start = match firsts.iter().rposition(|f| *f <= base) {
            Some(start) => start,
            None if state.resetting => firsts.len(),
            None => {
                return Err(LogError::corrupt(
                    &segment_name(base),
                    0,
                    match firsts.first() {
                        None => "no segment of the log is there any more".to_owned(),
                        Some(first) => format!(
                            "the log must hold index {base}, but its oldest segment begins with \
                             {first}"
                        ),
                    },
                ));
            }
        };
        let mut checkpoints: Vec<u64> = names
            .iter()
            .filter_map(|n| parse_checkpoint_name(n))
            .collect();
        checkpoints.sort_unstable();
        Ok(Look {
            device: device.clone(),
            segments: firsts[start..].iter().map(|f| segment_name(*f)).collect(),
            small: Some((state, both_whole)),
            checkpoints,
            patience,
        })
    }

    /// One segment, by itself: nothing is asked of the other files.
    pub fn segment(device: Arc<dyn Device>, name: &str, patience: u32) -> Look {
        Look {
            device,
            segments: vec![name.to_owned()],
            small: None,
            checkpoints: Vec::new(),
            patience,
        }
    }

    /// The small values; `None` for a segment by itself.
    pub fn small(&self) -> Option<SmallState> {
        let (state, both_whole) = self.small.as_ref()?;
        Some(SmallState::of(state, *both_whole))
    }

    /// Names of the segments that count, in order.
    pub fn segments(&self) -> &[String] {
        &self.segments
    }

    /// Indices of the checkpoints there are, ascending; not verified.
    pub fn checkpoints(&self) -> &[u64] {
        &self.checkpoints
    }

    /// Reads a checkpoint of this log and verifies it.
    pub fn checkpoint(&self, index: u64) -> Result<Bytes, LogError> {
        let ((identity, found), content) = load_checkpoint(&*self.device, &checkpoint_name(index))?;
        let own = self.small.as_ref().is_none_or(|s| s.0.identity == identity);
        if !own || found != index {
            return Err(LogError::CorruptCheckpoint {
                file: checkpoint_name(index),
                what: "it was made for another log or another index",
            });
        }
        Ok(content)
    }

    /// Reads all from front to back, verifying every checksum and the chain, and hands
    /// out what there is, until `each` breaks off.
    ///
    /// Errors: [`LogError::Corrupt`] where opening the log would refuse it,
    /// [`LogError::Changed`] if a node that uses the log changed what was being read.
    pub fn walk(
        &self,
        each: &mut dyn FnMut(Seen<'_>) -> ControlFlow<()>,
    ) -> Result<Totals, LogError> {
        let mut walk = Walk {
            look: self,
            next: 0,
            chain: 0,
            end: SEGMENT_HEADER,
            cut: None,
            totals: Totals {
                segments: 0,
                records: 0,
                bytes: 0,
                first: None,
                last: None,
                end: End::Open,
            },
        };
        if self.small.as_ref().is_some_and(|s| s.0.resetting) {
            walk.totals.end = End::Resetting;
            return Ok(walk.totals);
        }
        for n in 0..self.segments.len() {
            if walk.file(n, each)?.is_break() {
                walk.totals.end = End::Stopped;
                return Ok(walk.totals);
            }
        }
        walk.judge_end()?;
        Ok(walk.totals)
    }

    /// Whether what was just found may be the work of a node that uses the log.
    fn in_use(&self) -> bool {
        self.patience > 0
    }
}

/// Reads a checkpoint's file and verifies it: (identity of its log, index), content.
pub fn load_checkpoint(device: &dyn Device, name: &str) -> Result<((u128, u64), Bytes), LogError> {
    let file = open(device, name)?;
    let len = file.len().map_err(|e| LogError::io("measure", name, e))?;
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    let got = file
        .read_at(&mut bytes, 0)
        .map_err(|e| LogError::io("read", name, e))?;
    bytes.truncate(got);
    checkpoint::verify(name, bytes)
}

impl SmallState {
    /// Reads a file of small values by itself.
    pub fn load(device: &dyn Device, name: &str) -> Result<SmallState, LogError> {
        let file = open(device, name)?;
        let (_, state, both_whole) = meta::read(&*file)?;
        Ok(SmallState::of(&state, both_whole))
    }
}

fn open(device: &dyn Device, name: &str) -> Result<Arc<dyn DeviceFile>, LogError> {
    device.open(name).map_err(|e| LogError::io("open", name, e))
}

/// What stands at the place a walk has come to.
enum Here {
    Record(FrameHeader, u32),
    Mark(FrameHeader),
    /// Zeros to the end of the file.
    Zeros,
    /// Anything else.
    Rubbish,
}

/// A walk under way.
struct Walk<'a> {
    look: &'a Look,
    next: u64,
    chain: u32,
    /// End of the last record, in its file.
    end: u64,
    /// Where the readable log ended, if anything but zeros follows.
    cut: Option<(String, u64)>,
    totals: Totals,
}

impl Walk<'_> {
    fn file(
        &mut self,
        n: usize,
        each: &mut dyn FnMut(Seen<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, LogError> {
        let name = &self.look.segments[n];
        let (segment, header) = self.open(name)?;
        let bytes = segment
            .file
            .len()
            .map_err(|e| LogError::io("measure", name, e))?;
        if n == 0 {
            self.next = header.first;
            self.chain = header.chain;
        }
        let joined = header.first == self.next && header.chain == self.chain;
        if self.cut.is_none() && !joined {
            if header.first <= self.next {
                let what = format!(
                    "it does not continue the segment before it, which ends below index {}",
                    self.next
                );
                return Err(self.unless_changed(n - 1, LogError::corrupt(name, 32, what)));
            }
            self.cut = Some((self.look.segments[n - 1].clone(), self.end));
        }
        self.totals.segments += 1;
        if self.cut.is_some() {
            self.judge(n, header.durable_end, 40)?;
            if let Some((claim, at)) = Walker::new(&segment)?.strongest_claim(SEGMENT_HEADER)? {
                self.judge(n, claim, at)?;
            }
            return Ok(ControlFlow::Continue(()));
        }
        self.totals.bytes += SEGMENT_HEADER;
        self.end = SEGMENT_HEADER;
        let seen = Seen::Segment {
            file: name,
            first: header.first,
            stable_below: header.durable_end,
            bytes,
        };
        if each(seen).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        self.records(n, &segment, each)
    }

    fn open(&self, name: &str) -> Result<(Segment, SegmentHeader), LogError> {
        let file = self.look.device.open(name).map_err(|e| {
            let gone = e.kind() == std::io::ErrorKind::NotFound;
            if gone && self.look.patience > 0 && self.totals.segments + self.totals.records > 0 {
                return LogError::Changed {
                    what: format!("{name} is gone"),
                };
            }
            LogError::io("open", name, e)
        })?;
        let mut block = vec![0; SEGMENT_HEADER as usize];
        let got = file
            .read_at(&mut block, 0)
            .map_err(|e| LogError::io("read", name, e))?;
        let header = SegmentHeader::decode(name, &block[..got])?;
        if let Some((state, _)) = &self.look.small
            && state.identity != header.identity
        {
            return Err(LogError::corrupt(
                name,
                16,
                format!(
                    "it belongs to the log {:032x}, and the log in this directory is {:032x}",
                    header.identity, state.identity
                ),
            ));
        }
        if parse_segment_name(name).is_some_and(|first| first != header.first) {
            return Err(LogError::corrupt(
                name,
                32,
                format!(
                    "it begins with index {} but its name says otherwise",
                    header.first
                ),
            ));
        }
        let mut segment = Segment::new(file, &header);
        segment.name = name.into();
        Ok((segment, header))
    }

    /// The records of one segment, up to its end or to what cannot be read.
    fn records(
        &mut self,
        n: usize,
        segment: &Segment,
        each: &mut dyn FnMut(Seen<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, LogError> {
        let name = &*segment.name;
        let mut walker = Walker::new(segment)?;
        let mut tries = self.look.patience;
        loop {
            match here(&mut walker, self.end, self.next, self.chain)? {
                Here::Record(header, crc) => {
                    tries = self.look.patience;
                    let offset = self.end;
                    self.passed(&header, crc);
                    let record = Record {
                        index: header.index,
                        term: header.term,
                        leader: header.leader,
                        body: body(segment, offset, &header)?,
                    };
                    let seen = Seen::Record {
                        record,
                        file: name,
                        offset,
                    };
                    if each(seen).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Here::Mark(header) => {
                    return Ok(each(Seen::Mark {
                        file: name,
                        offset: self.end,
                        stable_below: header.durable_end,
                    }));
                }
                Here::Zeros => return Ok(ControlFlow::Continue(())),
                Here::Rubbish if tries > 0 => {
                    tries -= 1;
                    std::thread::sleep(AGAIN_AFTER);
                    walker = Walker::new(segment)?;
                }
                Here::Rubbish => break,
            }
        }
        self.cut = Some((name.to_owned(), self.end));
        if let Some((claim, at)) = walker.strongest_claim(self.end)? {
            self.judge(n, claim, at)?;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn passed(&mut self, header: &FrameHeader, crc: u32) {
        self.end += header.frame_len();
        self.next = header.index + 1;
        self.chain = crc;
        self.totals.records += 1;
        self.totals.bytes += header.frame_len();
        self.totals.first.get_or_insert(header.index);
        self.totals.last = Some(RecordId {
            index: header.index,
            term: header.term,
            leader: header.leader,
        });
    }

    /// Refuses if a header in segment `n` says that what cannot be read had been stable.
    fn judge(&self, n: usize, claim: u64, at: u64) -> Result<(), LogError> {
        let Some((file, offset)) = &self.cut else {
            return Ok(());
        };
        if claim <= self.next {
            return Ok(());
        }
        let witness = &self.look.segments[n];
        let damage = crate::recover::stable_but_unreadable(file, *offset, self.next, witness, at);
        let cut = self.look.segments.iter().position(|s| s == file);
        Err(self.unless_changed(cut.unwrap_or(n), damage))
    }

    /// The last judgement: whether the log may end where it ends.
    fn judge_end(&mut self) -> Result<(), LogError> {
        if let Some((file, offset)) = &self.cut {
            self.totals.end = End::Torn {
                file: file.clone(),
                offset: *offset,
            };
        }
        let Some((state, _)) = &self.look.small else {
            return Ok(());
        };
        let base = state.purged.map_or(0, |id| id.index + 1);
        if self.next < base {
            return Err(self.too_early(&format!(
                "the log was purged up to index {}, so it had held that safely",
                base - 1
            )));
        }
        let Some(closed) = state.closed else {
            return Ok(());
        };
        if closed.next == self.next && closed.chain == self.chain && self.cut.is_none() {
            self.totals.end = End::Closed;
            return Ok(());
        }
        let now = open(&*self.look.device, META_NAME).and_then(|f| meta::read(&*f));
        if self.look.in_use() && now.is_ok_and(|(_, s, _)| s.closed != state.closed) {
            // A node has begun to use it since.
            return Ok(());
        }
        Err(self.too_early(&format!(
            "the log was closed cleanly with next index {}, and what is there now is not what was \
             closed",
            closed.next
        )))
    }

    fn too_early(&self, why: &str) -> LogError {
        let (file, offset) = match (&self.cut, self.look.segments.last()) {
            (Some((file, offset)), _) => (file.as_str(), *offset),
            (None, Some(last)) => (last.as_str(), self.end),
            (None, None) => (META_NAME, 0),
        };
        LogError::corrupt(
            file,
            offset,
            format!("the readable log ends before index {}: {why}", self.next),
        )
    }

    /// `damage` found in segment `n`, unless a node that uses the log has replaced what
    /// was being read: then the segment reads otherwise now.
    fn unless_changed(&self, n: usize, damage: LogError) -> LogError {
        if !self.look.in_use() {
            return damage;
        }
        let name = &self.look.segments[n];
        let changed = |what: String| LogError::Changed { what };
        let Ok((segment, header)) = self.open(name) else {
            return changed(format!("{name} is gone"));
        };
        let Ok(mut walker) = Walker::new(&segment) else {
            return damage;
        };
        let (mut end, mut next, mut chain) = (SEGMENT_HEADER, header.first, header.chain);
        while let Ok(Here::Record(header, crc)) = here(&mut walker, end, next, chain) {
            end += header.frame_len();
            next = header.index + 1;
            chain = crc;
        }
        if (end, next, chain) == (self.end, self.next, self.chain) {
            return damage;
        }
        changed(format!("{name} has other records from index {next} on"))
    }
}

/// What stands at `offset`, where the record `next` would follow on one with `chain`.
fn here(walker: &mut Walker<'_>, offset: u64, next: u64, chain: u32) -> Result<Here, LogError> {
    let mut tail = offset;
    let mut mark = None;
    match walker.frame(offset)? {
        Found::Record(header, crc) if header.index == next && header.chain == chain => {
            return Ok(Here::Record(header, crc));
        }
        Found::Mark(header) if header.index == next && header.durable_end <= next => {
            tail += header.frame_len();
            mark = Some(header);
        }
        _ => {}
    }
    Ok(match (walker.is_zero_from(tail)?, mark) {
        (true, Some(mark)) => Here::Mark(mark),
        (true, None) => Here::Zeros,
        (false, _) => Here::Rubbish,
    })
}

/// The body of a record whose checksum was verified a moment ago.
fn body(segment: &Segment, offset: u64, header: &FrameHeader) -> Result<Bytes, LogError> {
    let mut body = vec![0; header.body_len as usize];
    let got = segment
        .file
        .read_at(&mut body, offset + FRAME_HEADER)
        .map_err(|e| LogError::io("read", &segment.name, e))?;
    if got < body.len() || crate::format::body_crc(&body) != header.body_crc {
        return Err(LogError::Changed {
            what: format!("{} was cut", segment.name),
        });
    }
    Ok(Bytes::from(body))
}
