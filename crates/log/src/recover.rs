//! Opening what a crash, a kill or a clean stop left.
//!
//! The hard question is whether bytes that are no valid record are the torn end of a
//! write that was never acknowledged (cut them) or damage to something that was (refuse).
//! Every frame and segment header says below which index everything was on stable storage
//! when it was written. So: the first unreadable record has index i; if anything that can
//! still be read, before or behind it, says that i had been stable, it is damage.

use crate::device::Device;
use crate::error::LogError;
use crate::format::{SEGMENT_HEADER, SegmentHeader, parse_segment_name, segment_name};
use crate::log::LogOptions;
use crate::meta::{META_NAME, MetaState, MetaStore, is_temp};
use crate::record::RecordId;
use crate::segment::{Found, Segment, Walker, sync_file};
use crate::view::note_run;
use std::collections::VecDeque;

/// What opening a log found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The directory held no log; an empty one was made.
    pub created: bool,
    /// The log's identity (that of the options only if it was created now).
    pub identity: u128,
    /// First index that can be read, if there is a record.
    pub first: Option<u64>,
    /// The last record, if there is one.
    pub last: Option<RecordId>,
    /// Up to where the log was purged or reset.
    pub last_purged: Option<RecordId>,
    /// The torn end that was cut, if there was one.
    pub torn: Option<TornTail>,
    /// The log had been closed, not crashed.
    pub closed_cleanly: bool,
    /// One of the two copies of the small values was torn or damaged and was restored from
    /// the other.
    pub meta_repaired: bool,
    /// Indices of the checkpoints there are, ascending; not yet verified.
    pub checkpoints: Vec<u64>,
    /// Number of segment files.
    pub segments: usize,
    /// Bytes the segments hold.
    pub bytes: u64,
}

/// An unacknowledged write that a crash had left in pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The segment's file name.
    pub file: String,
    /// Where it was cut, in bytes.
    pub offset: u64,
    /// The index that comes next now.
    pub index: u64,
}

/// The files of a log, ready to be written on.
pub(crate) struct Opened {
    pub meta: MetaStore,
    pub segments: VecDeque<Segment>,
    pub runs: VecDeque<RecordId>,
    pub next: u64,
    /// Chain value of the last record.
    pub chain: u32,
    pub recovered: Recovered,
}

/// Reads, judges and repairs the files in the directory, or makes a new log.
pub(crate) fn open(device: &dyn Device, options: &LogOptions) -> Result<Opened, LogError> {
    let mut names = list(device)?;
    let temps: Vec<String> = names.extract_if(.., |n| is_temp(n)).collect();
    for temp in &temps {
        remove(device, temp)?;
    }
    let is_there = names
        .iter()
        .any(|n| n == META_NAME || parse_segment_name(n).is_some());
    if is_there || !temps.is_empty() {
        // Their names are used again. And who was killed amid a change of names has not synced that.
        device
            .sync_dir()
            .map_err(|e| LogError::io("sync", &device.place(), e))?;
    }
    if names.iter().any(|n| n == META_NAME) {
        only_what_is_stored(device, META_NAME)?;
    }
    let mut recovered = Recovered::default();
    let mut firsts: Vec<u64> = names.iter().filter_map(|n| parse_segment_name(n)).collect();
    firsts.sort_unstable();
    let mut meta = if names.iter().any(|n| n == META_NAME) {
        let (meta, repaired) = MetaStore::open(device)?;
        recovered.meta_repaired = repaired;
        meta
    } else {
        if let Some(first) = firsts.first() {
            return Err(LogError::corrupt(
                META_NAME,
                0,
                format!(
                    "the file is missing, but {} is there; without it the node would not know for \
                     whom it voted",
                    segment_name(*first)
                ),
            ));
        }
        recovered.created = true;
        let state = MetaState {
            identity: options.identity,
            resetting: true,
            ..MetaState::default()
        };
        MetaStore::create(device, state)?
    };
    recovered.identity = meta.state().identity;
    recovered.last_purged = meta.state().purged;

    if meta.state().resetting {
        let segment = replace_segments(device, &mut meta, options)?;
        let next = segment.first;
        return finish(
            device,
            recovered,
            meta,
            VecDeque::from([segment]),
            VecDeque::new(),
            next,
            0,
        );
    }

    let base = meta.state().purged.map_or(0, |id| id.index + 1);
    let Some(start) = firsts.iter().rposition(|f| *f <= base) else {
        return Err(LogError::corrupt(
            &segment_name(base),
            0,
            match firsts.first() {
                None => "no segment of the log is there any more".to_owned(),
                Some(first) => format!(
                    "the log must hold index {base}, but its oldest segment begins with {first}"
                ),
            },
        ));
    };
    for old in firsts.drain(..start) {
        // Left over from a purge.
        remove(device, &segment_name(old))?;
    }
    for (n, first) in firsts.iter().enumerate() {
        // What was stored before a clean stop, or before the next one was begun, is passed by: it may be large.
        let stored = meta.state().closed.is_some()
            || match firsts.get(n + 1) {
                Some(next) => Segment::open(device, *next, meta.state().identity)
                    .is_ok_and(|(_, header)| header.durable_end >= *next),
                None => false,
            };
        if !stored {
            only_what_is_stored(device, &segment_name(*first))?;
        }
    }
    let mut scan = Scan::run(device, &firsts, meta.state())?;

    if scan.next < base {
        return Err(scan.damage(&format!(
            "the log was purged up to index {}, so it had held that safely",
            base - 1
        )));
    }
    if let Some(closed) = meta.state().closed {
        let same = closed.next == scan.next && closed.chain == scan.chain;
        if !same || scan.cut.is_some() {
            return Err(scan.damage(&format!(
                "the log was closed cleanly with next index {}, and what is there now is not what \
                 was closed",
                closed.next
            )));
        }
        recovered.closed_cleanly = true;
    }
    recovered.torn = scan.repair(device, options)?;
    // What was read was stored before (`only_what_is_stored`); what was repaired is now.
    for (n, (segment, _)) in scan.segments.iter().enumerate() {
        let known = scan
            .segments
            .get(n + 1)
            .is_some_and(|(_, next)| next.durable_end >= next.first);
        if !known {
            sync_file(segment)?;
        }
    }
    if meta.state().closed.is_some() {
        let mut state = meta.state().clone();
        state.closed = None;
        meta.save(state)?;
    }
    let segments = scan.segments.into_iter().map(|(s, _)| s).collect();
    finish(
        device, recovered, meta, segments, scan.runs, scan.next, scan.chain,
    )
}

/// Lets a file be read as it is on the disk. If a sync of it failed, in the process before this one, say, memory
/// holds what the disk does not, and no later sync would store it: it must not count.
fn only_what_is_stored(device: &dyn Device, name: &str) -> Result<(), LogError> {
    let file = device
        .open(name)
        .map_err(|e| LogError::io("open", name, e))?;
    file.sync_all().map_err(|e| LogError::io("sync", name, e))?;
    file.reread();
    Ok(())
}

fn finish(
    device: &dyn Device,
    mut recovered: Recovered,
    meta: MetaStore,
    segments: VecDeque<Segment>,
    runs: VecDeque<RecordId>,
    next: u64,
    chain: u32,
) -> Result<Opened, LogError> {
    recovered.checkpoints = crate::checkpoint::list(device)?;
    recovered.segments = segments.len();
    recovered.bytes = segments.iter().map(|s| s.end).sum();
    let base = recovered.last_purged.map_or(0, |id| id.index + 1);
    if next > base {
        recovered.first = Some(base);
        recovered.last = runs.back().map(|run| RecordId {
            index: next - 1,
            ..*run
        });
    }
    Ok(Opened {
        meta,
        segments,
        runs,
        next,
        chain,
        recovered,
    })
}

/// The second half of a reset: with `resetting` durably set, removes all segments, makes
/// the first one of the new log, and ends the reset.
pub(crate) fn replace_segments(
    device: &dyn Device,
    meta: &mut MetaStore,
    options: &LogOptions,
) -> Result<Segment, LogError> {
    for name in list(device)? {
        if parse_segment_name(&name).is_some() {
            remove(device, &name)?;
        }
    }
    let next = meta.state().purged.map_or(0, |id| id.index + 1);
    let header = SegmentHeader {
        identity: meta.state().identity,
        first: next,
        durable_end: next,
        chain: 0,
    };
    let segment = Segment::create(device, &header, options.segment_bytes)?;
    let mut state = meta.state().clone();
    state.resetting = false;
    meta.save(state)?;
    Ok(segment)
}

/// All segments, walked from front to back.
struct Scan {
    segments: VecDeque<(Segment, SegmentHeader)>,
    runs: VecDeque<RecordId>,
    next: u64,
    chain: u32,
    /// The segment (by place in the list) and offset where the readable log ends, if
    /// anything but zeros follows.
    cut: Option<(usize, u64)>,
}

impl Scan {
    fn run(device: &dyn Device, firsts: &[u64], meta: &MetaState) -> Result<Scan, LogError> {
        let mut scan = Scan {
            segments: VecDeque::new(),
            runs: VecDeque::new(),
            next: firsts.first().copied().unwrap_or(0),
            chain: 0,
            cut: None,
        };
        for (n, first) in firsts.iter().enumerate() {
            let (mut segment, header) = Segment::open(device, *first, meta.identity)?;
            if n == 0 {
                scan.chain = header.chain;
            }
            let joined = header.first == scan.next && header.chain == scan.chain;
            if scan.cut.is_none() && !joined {
                if header.first <= scan.next && n > 0 {
                    return Err(LogError::corrupt(
                        &segment.name,
                        32,
                        format!(
                            "it does not continue the segment before it, which ends below index {}",
                            scan.next
                        ),
                    ));
                }
                let end = scan.segments.back().map_or(SEGMENT_HEADER, |(s, _)| s.end);
                scan.cut = Some((n.saturating_sub(1), end));
            }
            if scan.cut.is_some() {
                scan.judge(&segment.name, header.durable_end, 40)?;
                if let Some((claim, at)) = Walker::new(&segment)?.strongest_claim(SEGMENT_HEADER)? {
                    scan.judge(&segment.name, claim, at)?;
                }
            } else {
                scan.walk(n, &mut segment)?;
            }
            scan.segments.push_back((segment, header));
        }
        Ok(scan)
    }

    /// Reads one segment up to its end or to damage, which it judges.
    fn walk(&mut self, n: usize, segment: &mut Segment) -> Result<(), LogError> {
        let mut end = SEGMENT_HEADER;
        let mut places = Vec::new();
        let mut mark = None;
        let mut walker = Walker::new(segment)?;
        loop {
            match walker.frame(end)? {
                Found::Record(header, crc)
                    if header.index == self.next && header.chain == self.chain =>
                {
                    let id = RecordId {
                        index: header.index,
                        term: header.term,
                        leader: header.leader,
                    };
                    note_run(&mut self.runs, id);
                    places.push((self.next, end));
                    end += header.frame_len();
                    self.next += 1;
                    self.chain = crc;
                }
                Found::Mark(header)
                    if header.index == self.next && header.durable_end <= self.next =>
                {
                    mark = Some(header);
                    break;
                }
                _ => break,
            }
        }
        let tail = end + mark.map_or(0, |m| m.frame_len());
        let clean = walker.is_zero_from(tail)?;
        let claim = if clean {
            None
        } else {
            walker.strongest_claim(end)?
        };
        for (index, offset) in places {
            segment.note_place(index, offset);
        }
        segment.end = end;
        if !clean {
            self.cut = Some((n, end));
            if let Some((claim, at)) = claim
                && claim > self.next
            {
                return Err(stable_but_unreadable(
                    &segment.name,
                    end,
                    self.next,
                    &segment.name,
                    at,
                ));
            }
        }
        Ok(())
    }

    /// Refuses if a header somewhere behind the damage says that the damaged record had
    /// been stable.
    fn judge(&self, name: &str, claim: u64, at: u64) -> Result<(), LogError> {
        let Some((n, offset)) = self.cut else {
            return Ok(());
        };
        if claim <= self.next {
            return Ok(());
        }
        let file = self.segments.get(n).map_or(name, |(s, _)| &s.name);
        Err(stable_but_unreadable(file, offset, self.next, name, at))
    }

    /// The error for an end of the log that is too early.
    fn damage(&self, why: &str) -> LogError {
        let last = match self.cut {
            Some((n, _)) => self.segments.get(n),
            None => self.segments.back(),
        };
        let (file, offset) = last.map_or((META_NAME, 0), |(s, _)| (&*s.name, s.end));
        LogError::corrupt(
            file,
            offset,
            format!("the readable log ends before index {}: {why}", self.next),
        )
    }

    /// Cuts the torn end off, durably and before anything else is written, so that nothing
    /// of it can ever be read as a record.
    fn repair(
        &mut self,
        device: &dyn Device,
        options: &LogOptions,
    ) -> Result<Option<TornTail>, LogError> {
        let Some((n, offset)) = self.cut else {
            if let Some((segment, _)) = self.segments.back() {
                reserve(segment, options)?;
            }
            return Ok(None);
        };
        // From the end, each step durable: whatever a crash leaves is still one log.
        while self.segments.len() > n + 1 {
            if let Some((segment, _)) = self.segments.pop_back() {
                remove(device, &segment.name)?;
                device
                    .sync_dir()
                    .map_err(|e| LogError::io("sync", &device.place(), e))?;
            }
        }
        let Some((segment, _)) = self.segments.back() else {
            return Ok(None);
        };
        segment
            .file
            .set_len(offset)
            .map_err(|e| LogError::io("cut", &segment.name, e))?;
        sync_file(segment)?;
        reserve(segment, options)?;
        Ok(Some(TornTail {
            file: segment.name.to_string(),
            offset,
            index: self.next,
        }))
    }
}

/// Reserves room in a segment that will be written on.
pub(crate) fn reserve(segment: &Segment, options: &LogOptions) -> Result<(), LogError> {
    segment
        .file
        .allocate(options.segment_bytes)
        .map_err(|e| LogError::io("reserve room for", &segment.name, e))
}

pub(crate) fn stable_but_unreadable(
    file: &str,
    offset: u64,
    index: u64,
    witness: &str,
    at: u64,
) -> LogError {
    LogError::corrupt(
        file,
        offset,
        format!(
            "record {index} cannot be read, and {witness} at byte {at} shows that it had been \
             stored safely, so this is no write that a crash cut short"
        ),
    )
}

pub(crate) fn list(device: &dyn Device) -> Result<Vec<String>, LogError> {
    device
        .list()
        .map_err(|e| LogError::io("list", &device.place(), e))
}

pub(crate) fn remove(device: &dyn Device, name: &str) -> Result<(), LogError> {
    device
        .remove(name)
        .map_err(|e| LogError::io("remove", name, e))
}
