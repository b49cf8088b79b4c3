//! What the writer and the readers share: the logical log, the cache of its tail, and
//! where older records lie.
//!
//! The logical log runs ahead of the files: records count as soon as they are accepted,
//! and are read from the cache until they are written.
//!
//! ```text
//!   purged | first ................ written ........... next
//!          |  in segments (some also in the cache)  |  only in the cache
//! ```

use crate::error::LogError;
use crate::format::{FRAME_HEADER, FrameHeader, FrameKind, SEGMENT_HEADER};
use crate::record::{MAX_BODY, Record, RecordId};
use crate::segment::Segment;
use crate::stats::Stats;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// What a cached record costs beside its body, in bytes.
const RECORD_COST: usize = 64;
/// Bytes read from a segment at a time.
const READ_CHUNK: u64 = 256 << 10;
/// The least that is read, when little is wanted.
const READ_MIN: u64 = 32 << 10;
/// Bodies up to this size are copied out of the chunk they were read with.
const COPY_MAX: usize = 4 << 10;

/// What a queued or cached record costs, in bytes.
pub(crate) fn cost(record: &Record) -> usize {
    record.body.len() + RECORD_COST
}

pub(crate) struct Shared {
    pub view: Mutex<View>,
    /// Every index below this is on stable storage (in memory mode: written).
    durable_end: AtomicU64,
    pub values: Mutex<BTreeMap<String, Bytes>>,
    /// Held while a checkpoint is written or removed.
    pub checkpoints: Mutex<()>,
    poison: OnceLock<Arc<LogError>>,
    /// Why no new segment can be begun.
    held_up: Mutex<Option<Arc<io::Error>>>,
    pub stats: Stats,
    pub identity: u128,
    cache_max: usize,
}

/// The logical log.
pub(crate) struct View {
    pub purged: Option<RecordId>,
    /// Index the next record will have.
    pub next: u64,
    /// Records below this can be read from the segments.
    pub written: u64,
    /// Counts truncations and resets.
    pub generation: u64,
    /// Who made the records: (first index, term, leader), ascending.
    runs: VecDeque<RecordId>,
    /// The newest records, at least all that are not written.
    cache: VecDeque<Record>,
    cache_bytes: usize,
    pub segments: VecDeque<Segment>,
}

impl View {
    /// A log that holds nothing in the cache.
    pub(crate) fn new(
        purged: Option<RecordId>,
        next: u64,
        runs: VecDeque<RecordId>,
        segments: VecDeque<Segment>,
    ) -> View {
        View {
            purged,
            next,
            written: next,
            generation: 0,
            runs,
            cache: VecDeque::new(),
            cache_bytes: 0,
            segments,
        }
    }

    pub(crate) fn first(&self) -> u64 {
        self.purged.map_or(0, |id| id.index + 1)
    }

    fn cache_first(&self) -> u64 {
        self.next - self.cache.len() as u64
    }

    /// Who made a record; also of the purged one.
    pub(crate) fn id_of(&self, index: u64) -> Option<RecordId> {
        if let Some(purged) = self.purged
            && purged.index == index
        {
            return Some(purged);
        }
        if index < self.first() || index >= self.next {
            return None;
        }
        let n = self.runs.partition_point(|r| r.index <= index);
        let run = self.runs.get(n.checked_sub(1)?)?;
        Some(RecordId { index, ..*run })
    }

    /// The last record, or the purged one if there is none.
    pub(crate) fn last_id(&self) -> Option<RecordId> {
        self.id_of(self.next.checked_sub(1)?)
    }

    /// Takes records at the end, whole or not at all.
    pub(crate) fn accept(&mut self, records: &[Record]) -> Result<(), LogError> {
        for (expected, record) in (self.next..).zip(records) {
            if record.index != expected {
                return Err(LogError::NotContiguous {
                    expected,
                    got: record.index,
                });
            }
            if record.body.len() > MAX_BODY {
                return Err(LogError::TooLarge {
                    what: "The body of a record",
                    bytes: record.body.len() as u64,
                    limit: MAX_BODY as u64,
                });
            }
        }
        for record in records {
            note_run(&mut self.runs, record.id());
            self.cache_bytes += cost(record);
            self.cache.push_back(record.clone());
        }
        self.next += records.len() as u64;
        Ok(())
    }

    /// Drops the records from `index` on.
    pub(crate) fn truncate(&mut self, index: u64) -> Result<(), LogError> {
        if index > self.next {
            return Err(LogError::BeyondEnd {
                index,
                next: self.next,
            });
        }
        if index < self.first() {
            return Err(LogError::Purged {
                wanted: index,
                first: self.first(),
            });
        }
        self.generation += 1;
        let cache_first = self.cache_first();
        while self.next > index && self.next > cache_first {
            if let Some(record) = self.cache.pop_back() {
                self.cache_bytes -= cost(&record);
            }
            self.next -= 1;
        }
        self.next = index;
        self.written = self.written.min(index);
        while self.runs.back().is_some_and(|r| r.index >= index) {
            self.runs.pop_back();
        }
        Ok(())
    }

    /// Drops the records up to and with `index`. `None` if they were gone before.
    pub(crate) fn purge(&mut self, index: u64) -> Result<Option<RecordId>, LogError> {
        if index < self.first() {
            return Ok(None);
        }
        let Some(id) = self.id_of(index) else {
            return Err(LogError::BeyondEnd {
                index,
                next: self.next,
            });
        };
        self.purged = Some(id);
        while self.runs.get(1).is_some_and(|r| r.index <= index + 1) {
            self.runs.pop_front();
        }
        let first = self.first();
        while self.cache_first() < first.min(self.written) {
            match self.cache.pop_front() {
                Some(record) => self.cache_bytes -= cost(&record),
                None => break,
            }
        }
        Ok(Some(id))
    }

    /// Makes the log empty and purged up to `id`.
    pub(crate) fn reset(&mut self, id: Option<RecordId>) {
        self.generation += 1;
        self.purged = id;
        self.next = self.first();
        self.written = self.next;
        self.runs.clear();
        self.cache.clear();
        self.cache_bytes = 0;
    }

    /// Lets go of cached records that are in the files, oldest first.
    fn shrink_cache(&mut self, max: usize) {
        while self.cache_bytes > max && self.cache_first() < self.written {
            match self.cache.pop_front() {
                Some(record) => self.cache_bytes -= cost(&record),
                None => break,
            }
        }
    }

    pub(crate) fn segment_of(&self, index: u64) -> Option<&Segment> {
        let n = self.segments.partition_point(|s| s.first <= index);
        self.segments.get(n.checked_sub(1)?)
    }
}

/// Extends the list of who made what.
pub(crate) fn note_run(runs: &mut VecDeque<RecordId>, id: RecordId) {
    let same = runs
        .back()
        .is_some_and(|r| (r.term, r.leader) == (id.term, id.leader));
    if !same {
        runs.push_back(id);
    }
}

impl Shared {
    pub(crate) fn new(
        view: View,
        values: BTreeMap<String, Bytes>,
        identity: u128,
        cache_max: usize,
    ) -> Shared {
        let durable_end = AtomicU64::new(view.next);
        Shared {
            view: Mutex::new(view),
            durable_end,
            values: Mutex::new(values),
            checkpoints: Mutex::new(()),
            poison: OnceLock::new(),
            held_up: Mutex::new(None),
            stats: Stats::default(),
            identity,
            cache_max,
        }
    }

    /// An error if the log has stopped.
    pub(crate) fn usable(&self) -> Result<(), LogError> {
        match self.poison.get() {
            None => Ok(()),
            Some(cause) if matches!(**cause, LogError::Closed) => Err(LogError::Closed),
            Some(cause) => Err(LogError::Poisoned {
                cause: cause.clone(),
            }),
        }
    }

    /// Stops the log for good because of `cause`, which is handed back.
    pub(crate) fn poison(&self, cause: LogError) -> LogError {
        if !cause.is_poisoned() {
            let _ = self.poison.set(Arc::new(cause.clone()));
        }
        cause
    }

    /// A new segment could not be begun, and why; or it could.
    pub(crate) fn set_held_up(&self, why: Option<io::Error>) {
        *self.held_up.lock() = why.map(Arc::new);
    }

    pub(crate) fn durable_end(&self) -> u64 {
        self.durable_end.load(Ordering::Acquire)
    }

    /// Records below `end`, accepted in `generation`, are durable.
    pub(crate) fn set_durable(&self, generation: u64, end: u64) {
        let view = self.view.lock();
        if view.generation == generation {
            self.durable_end.store(end, Ordering::Release);
        }
    }

    /// Changes the logical log in a way that may take records away.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut View) -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        let mut view = self.view.lock();
        let result = change(&mut view)?;
        let end = view.written.min(self.durable_end()).max(view.first());
        self.durable_end.store(end, Ordering::Release);
        Ok(result)
    }

    /// Takes records at the end; hands back the generation they belong to.
    pub(crate) fn accept(&self, records: &[Record]) -> Result<u64, LogError> {
        let mut view = self.view.lock();
        view.accept(records)?;
        view.shrink_cache(self.cache_max);
        Ok(view.generation)
    }

    /// Records below `end`, accepted in `generation`, are in the files. `change` brings
    /// the list of segments up to date.
    pub(crate) fn set_written(
        &self,
        generation: u64,
        end: u64,
        change: impl FnOnce(&mut VecDeque<Segment>),
    ) {
        let mut view = self.view.lock();
        change(&mut view.segments);
        if view.generation == generation {
            view.written = end;
            view.shrink_cache(self.cache_max);
        }
    }
}

/// Reads the log beside its writer. Holds no lock while it reads from the disk.
#[derive(Clone)]
pub struct LogReader {
    pub(crate) shared: Arc<Shared>,
}

/// Where the next records come from.
enum Source {
    Done,
    Disk(Segment, u64, u64),
}

impl LogReader {
    /// First index that can be read, if there is a record.
    pub fn first_index(&self) -> Option<u64> {
        let view = self.shared.view.lock();
        (view.first() < view.next).then(|| view.first())
    }

    /// Last index that can be read, if there is a record.
    pub fn last_index(&self) -> Option<u64> {
        let view = self.shared.view.lock();
        (view.first() < view.next).then(|| view.next - 1)
    }

    /// Index the next record will have.
    pub fn next_index(&self) -> u64 {
        self.shared.view.lock().next
    }

    /// The last record's place; that of the purged one if there is no record.
    pub fn last_id(&self) -> Option<RecordId> {
        self.shared.view.lock().last_id()
    }

    /// Up to where the log was purged or reset.
    pub fn last_purged(&self) -> Option<RecordId> {
        self.shared.view.lock().purged
    }

    /// Term of a record, also of the last purged one.
    pub fn term_of(&self, index: u64) -> Option<u64> {
        self.id_of(index).map(|id| id.term)
    }

    /// Place of a record, also of the last purged one.
    pub fn id_of(&self, index: u64) -> Option<RecordId> {
        self.shared.view.lock().id_of(index)
    }

    /// Bytes the segments hold (headers included, room reserved ahead not).
    pub fn bytes(&self) -> u64 {
        let view = self.shared.view.lock();
        view.segments.iter().map(|s| s.end).sum()
    }

    /// Bytes of the records below `index` that the segments still hold; up to 16 KiB too few.
    pub fn bytes_before(&self, index: u64) -> u64 {
        let view = self.shared.view.lock();
        let mut bytes = 0;
        for (n, segment) in view.segments.iter().enumerate() {
            let ends = view.segments.get(n + 1).map_or(view.next, |s| s.first);
            let end = match index >= ends {
                true => segment.end,
                false if index > segment.first => segment.place_before(index).1,
                false => break,
            };
            bytes += end - SEGMENT_HEADER;
        }
        bytes
    }

    /// Every index up to and with this one is on stable storage. In memory mode: is
    /// written to the file. `None` if there is none such.
    pub fn durable_index(&self) -> Option<u64> {
        self.shared.durable_end().checked_sub(1)
    }

    /// The identity of the log.
    pub fn identity(&self) -> u128 {
        self.shared.identity
    }

    /// A small value as last saved.
    pub fn load_meta(&self, key: &str) -> Option<Bytes> {
        self.shared.values.lock().get(key).cloned()
    }

    /// Why the log has stopped, if it has.
    pub fn poisoned(&self) -> Option<LogError> {
        self.shared.usable().err()
    }

    /// Why the log cannot begin a new segment and goes on in the old one for a while, if that
    /// is so: [`LogError::NotBegun`].
    pub fn held_up(&self) -> Option<LogError> {
        let source = self.shared.held_up.lock().clone()?;
        let segments = self.shared.view.lock().segments.len();
        Some(LogError::NotBegun { source, segments })
    }

    /// The records of `range` as far as they exist, at most `max_bytes` of bodies but at
    /// least one record if there is one. Records count from their append on, durable or
    /// not.
    ///
    /// Errors: [`LogError::Purged`] if the range begins below the log;
    /// [`LogError::Corrupt`] if stored bytes have changed; [`LogError::Io`].
    pub fn read(&self, range: Range<u64>, max_bytes: u64) -> Result<Vec<Record>, LogError> {
        let mut out = Out {
            records: Vec::new(),
            left: max_bytes,
            full: false,
        };
        let mut generation = None;
        let mut failed = None;
        loop {
            let source = {
                let view = self.shared.view.lock();
                if generation != Some(view.generation) {
                    generation = Some(view.generation);
                    out.records.clear();
                    out.left = max_bytes;
                    out.full = false;
                } else if let Some(e) = failed {
                    // Nothing was truncated meanwhile, so this is how it is.
                    return Err(e);
                }
                next_source(&view, &mut out, &range)?
            };
            match source {
                Source::Done => return Ok(out.records),
                Source::Disk(segment, from, to) => {
                    failed = read_segment(&segment, from, to, &mut out).err();
                }
            }
        }
    }
}

struct Out {
    records: Vec<Record>,
    left: u64,
    full: bool,
}

impl Out {
    fn room_for(&mut self, body: usize) -> bool {
        let fits = self.records.is_empty() || (!self.full && body as u64 <= self.left);
        if !fits {
            self.full = true;
        }
        fits
    }

    fn push(&mut self, record: Record) {
        match self.left.checked_sub(record.body.len() as u64) {
            Some(left) => self.left = left,
            // The one record that comes whatever its size.
            None => self.full = true,
        }
        self.records.push(record);
    }
}

fn next_source(view: &View, out: &mut Out, range: &Range<u64>) -> Result<Source, LogError> {
    let at = range.start + out.records.len() as u64;
    let end = range.end.min(view.next);
    if out.full || at >= end {
        return Ok(Source::Done);
    }
    if at < view.first() {
        if out.records.is_empty() {
            return Err(LogError::Purged {
                wanted: at,
                first: view.first(),
            });
        }
        return Ok(Source::Done);
    }
    let cache_first = view.cache_first();
    if at >= cache_first {
        let from = (at - cache_first) as usize;
        let to = (end - cache_first) as usize;
        for record in view.cache.range(from..to) {
            if !out.room_for(record.body.len()) {
                break;
            }
            out.push(record.clone());
        }
        return Ok(Source::Done);
    }
    let Some(segment) = view.segment_of(at) else {
        return Err(LogError::Purged {
            wanted: at,
            first: view.first(),
        });
    };
    let next_segment = view
        .segments
        .iter()
        .find(|s| s.first > at)
        .map_or(u64::MAX, |s| s.first);
    Ok(Source::Disk(
        segment.for_reading(at),
        at,
        end.min(cache_first).min(next_segment),
    ))
}

/// Reads the records `from..to` of one segment into `out`.
fn read_segment(segment: &Segment, from: u64, to: u64, out: &mut Out) -> Result<(), LogError> {
    let (mut index, mut offset) = segment.place_before(from);
    let mut chunk = Bytes::new();
    let mut chunk_at = offset;
    let chunk_len = READ_CHUNK.min(out.left.saturating_add(READ_MIN));
    while index < to {
        let have = |chunk: &Bytes, chunk_at: u64| (chunk_at + chunk.len() as u64) - offset;
        if have(&chunk, chunk_at) < FRAME_HEADER {
            chunk = read_chunk(segment, offset, chunk_len)?;
            chunk_at = offset;
        }
        let damaged = |what: &str| {
            Err(LogError::corrupt(
                &segment.name,
                offset,
                format!("record {index} cannot be read any more: {what}"),
            ))
        };
        if have(&chunk, chunk_at) < FRAME_HEADER {
            return damaged("the file ends before it");
        }
        let at = (offset - chunk_at) as usize;
        let Some((header, _)) = FrameHeader::decode(segment.key, offset, &chunk[at..at + 64])
        else {
            return damaged("its header's checksum does not match");
        };
        if header.kind != FrameKind::Record || header.index != index {
            return damaged("something else stands in its place");
        }
        let len = header.frame_len();
        if index >= from {
            if !out.room_for(header.body_len as usize) {
                return Ok(());
            }
            if have(&chunk, chunk_at) < len {
                chunk = read_chunk(segment, offset, len.max(chunk_len))?;
                chunk_at = offset;
            }
            if have(&chunk, chunk_at) < len {
                return damaged("the file ends inside it");
            }
            let body_at = (offset - chunk_at) as usize + FRAME_HEADER as usize;
            let body = chunk.slice(body_at..body_at + header.body_len as usize);
            let padded = &chunk[body_at..(offset - chunk_at + len) as usize];
            if crc32c::crc32c(padded) != header.body_crc {
                return damaged("its body's checksum does not match");
            }
            let body = if body.len() <= COPY_MAX {
                Bytes::copy_from_slice(&body)
            } else {
                body
            };
            out.push(Record {
                index,
                term: header.term,
                leader: header.leader,
                body,
            });
        }
        offset += len;
        index += 1;
        if offset > chunk_at + chunk.len() as u64 {
            chunk = Bytes::new();
            chunk_at = offset;
        }
    }
    Ok(())
}

fn read_chunk(segment: &Segment, offset: u64, bytes: u64) -> Result<Bytes, LogError> {
    let mut buf = BytesMut::zeroed(bytes.min(segment.end.saturating_sub(offset)) as usize);
    let got = segment
        .file
        .read_at(&mut buf, offset)
        .map_err(|e| LogError::io("read", &segment.name, e))?;
    buf.truncate(got);
    Ok(buf.freeze())
}
