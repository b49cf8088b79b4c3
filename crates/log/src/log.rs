//! The log itself: one owner, called in order. `docs/log.md` explains it.

use crate::ahead::Ahead;
use crate::checkpoint::{self, Unsaved};
use crate::device::{Device, DeviceFile, write_one};
use crate::error::{LogError, is_short};
use crate::format::{
    FRAME_HEADER, FrameHeader, FrameKind, SEGMENT_HEADER, SegmentHeader, body_crc, frame_len,
    padding, parse_segment_name,
};
use crate::meta::{self, Closed, META_KEY_MAX, META_NAME, MetaStore};
use crate::record::{Record, RecordId};
use crate::recover::{self, Recovered};
use crate::segment::{self, Found, Segment, Walker, sync_file};
use crate::soon::SoonRead;
use crate::stats::LogStats;
use crate::view::{LogReader, Shared, View};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Bodies up to this size are copied beside their header; larger ones are written from
/// where they are.
const COPY_MAX: usize = 2 << 10;
/// Stored bytes of a segment are released when there are so many.
const RELEASE: u64 = 4 << 20;
/// So many times its size a segment may get while no new one can be begun.
const STRETCH: u64 = 16;
/// So many times that at once: who had much to read leaves no long work behind.
const RELEASE_AT_ONCE: usize = 2;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// How a log is opened.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Size at which a new segment is begun, in bytes. A record larger than this has a
    /// segment of its own.
    pub segment_bytes: u64,
    /// Whether `sync` waits for the disk. `false` is durability memory: records are written
    /// but not synced; the small values, truncations and resets are synced all the same.
    pub sync: bool,
    /// Bytes of zeros written at a time ahead of the records, so that most syncs store
    /// blocks that were written before. 0: never.
    pub zero_ahead_bytes: u64,
    /// Bytes of recent records kept in memory for readers.
    pub cache_bytes: usize,
    /// Identity given to a log that is created; ignored if there is one.
    pub identity: u128,
    /// What the kernel's memory should not lose.
    pub soon: SoonRead,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions {
            segment_bytes: 64 << 20,
            sync: true,
            zero_ahead_bytes: 256 << 10,
            cache_bytes: 64 << 20,
            identity: 0,
            soon: SoonRead::default(),
        }
    }
}

/// A durable ordered log in one directory.
///
/// Records are accepted by `append` and stable after `sync`. After a failed write or sync
/// every later change returns [`LogError::Poisoned`]; reading goes on.
pub struct Log {
    device: Arc<dyn Device>,
    options: LogOptions,
    meta: MetaStore,
    pub(crate) shared: Arc<Shared>,
    /// The segments, as in the view, and in step with the files.
    tail: Segment,
    ahead: Ahead,
    /// Up to here the kernel was told to forget the last segment, or will be.
    released: u64,
    /// Stored, and not yet released: the records are below these indices.
    kept: VecDeque<(u64, Arc<dyn DeviceFile>, Range<u64>)>,
    /// Chain value of the last record written.
    chain: u32,
    /// Index of the next record to be written.
    written: u64,
    /// Every index below this is on stable storage. Stands still in memory mode.
    stable: u64,
    /// Accepted, not yet written.
    staged: Vec<Record>,
    generation: u64,
    /// Whether something was written since the last sync.
    dirty: bool,
    /// Whether the end of the file says how far it is stable.
    marked: bool,
}

impl Log {
    /// Opens the log in the device's directory, or makes one. Reads all of it once and
    /// verifies every checksum.
    ///
    /// Errors: [`LogError::Corrupt`] if anything but the torn end of a write that was never
    /// acknowledged is damaged; [`LogError::Version`]; [`LogError::Io`].
    pub fn open(
        device: Arc<dyn Device>,
        options: LogOptions,
    ) -> Result<(Log, Recovered), LogError> {
        let opened = recover::open(&*device, &options)?;
        let Some(tail) = opened.segments.back().cloned() else {
            return Err(LogError::corrupt(
                META_NAME,
                0,
                "no segment of the log is there any more",
            ));
        };
        let step = match options.sync {
            true => options.zero_ahead_bytes,
            false => 0,
        };
        let ahead = Ahead::new(step, reserved(&tail)?, tail.end);
        let state = opened.meta.state();
        let view = View::new(state.purged, opened.next, opened.runs, opened.segments);
        let shared = Shared::new(
            view,
            state.values.clone(),
            state.identity,
            options.cache_bytes,
        );
        let mut log = Log {
            device,
            meta: opened.meta,
            shared: Arc::new(shared),
            tail,
            ahead,
            released: 0,
            kept: VecDeque::new(),
            chain: opened.chain,
            written: opened.next,
            stable: opened.next,
            staged: Vec::new(),
            generation: 0,
            dirty: false,
            marked: false,
            options,
        };
        log.mark()?;
        Ok((log, opened.recovered))
    }

    /// Removes every file of a log (values and checkpoints too) from a directory. For a
    /// node that starts its life anew.
    pub fn wipe(device: &dyn Device) -> Result<(), LogError> {
        let names = recover::list(device)?;
        let sync = || {
            device
                .sync_dir()
                .map_err(|e| LogError::io("sync", &device.place(), e))
        };
        // The values go last: segments without them would be refused, values without
        // segments too, and neither taken for a whole log.
        for name in &names {
            let ours = parse_segment_name(name).is_some()
                || checkpoint::parse_checkpoint_name(name).is_some()
                || meta::is_temp(name);
            if ours {
                recover::remove(device, name)?;
            }
        }
        sync()?;
        if names.iter().any(|n| n == META_NAME) {
            recover::remove(device, META_NAME)?;
        }
        sync()
    }

    /// A handle that reads beside the writer.
    pub fn reader(&self) -> LogReader {
        LogReader {
            shared: self.shared.clone(),
        }
    }

    /// Takes records that continue the log. They can be read at once, and are written by
    /// the next [`Log::sync`]. All or none are taken.
    ///
    /// Errors: [`LogError::NotContiguous`], [`LogError::TooLarge`], [`LogError::Poisoned`].
    pub fn append(&mut self, records: Vec<Record>) -> Result<(), LogError> {
        self.shared.usable()?;
        let generation = self.shared.accept(&records)?;
        self.stage(records, generation);
        Ok(())
    }

    /// Takes over records that the view has accepted.
    pub(crate) fn stage(&mut self, records: Vec<Record>, generation: u64) {
        self.generation = generation;
        if self.staged.is_empty() {
            self.staged = records;
        } else {
            self.staged.extend(records);
        }
    }

    /// Writes what was appended and makes it stable: one write and one fdatasync (more
    /// only where a segment ends). In memory mode it only writes.
    pub fn sync(&mut self) -> Result<(), LogError> {
        self.shared.usable()?;
        let result = self.write_staged().and_then(|()| self.sync_tail());
        result.map_err(|e| self.shared.poison(e))
    }

    /// Leaves a note behind the last record that it is stable, so that later damage to it
    /// is not taken for a torn write. Not synced: it is worth something after a kill, and
    /// after a power loss if it got to the disk in time. The next record overwrites it.
    /// The writer does this when it has nothing else to do.
    pub fn mark(&mut self) -> Result<(), LogError> {
        self.shared.usable()?;
        if self.marked || !self.options.sync || self.stable != self.written {
            return Ok(());
        }
        let mark = FrameHeader {
            kind: FrameKind::Mark,
            body_len: 0,
            index: self.written,
            term: 0,
            leader: 0,
            durable_end: self.stable,
            chain: self.chain,
            body_crc: 0,
        };
        let (bytes, _) = mark.encode(self.tail.key, self.tail.end);
        match write_one(&*self.tail.file, &bytes, self.tail.end) {
            // A file system that copies on writing has no room for it. Without it, too, all is
            // stored; what came of it to the file reads like a torn end.
            Err(e) if is_full(&e) => {}
            written => written
                .map_err(|e| LogError::io("write", &self.tail.name, e))
                .map_err(|e| self.shared.poison(e))?,
        }
        self.marked = true;
        Ok(())
    }

    fn write_staged(&mut self) -> Result<(), LogError> {
        if self.staged.is_empty() {
            return Ok(());
        }
        let records = std::mem::take(&mut self.staged);
        let mut batch = Batch::new(self.tail.end);
        // Once for all of these: what stands in the way will not go so soon.
        let mut wait = false;
        for record in &records {
            let len = frame_len(record.body.len());
            let filled = batch.end > SEGMENT_HEADER;
            if filled && !wait && batch.end + len > self.options.segment_bytes {
                match self.new_file(batch.end)? {
                    Some(file) => {
                        self.write_batch(&mut batch)?;
                        self.begin_segment(file)?;
                        batch = Batch::new(self.tail.end);
                    }
                    None => wait = true,
                }
            }
            let header = FrameHeader {
                kind: FrameKind::Record,
                // The view refuses bodies above MAX_BODY.
                body_len: record.body.len() as u32,
                index: record.index,
                term: record.term,
                leader: record.leader,
                durable_end: self.stable,
                chain: self.chain,
                body_crc: body_crc(&record.body),
            };
            let (bytes, crc) = header.encode(self.tail.key, batch.end);
            self.tail.note_place(record.index, batch.end);
            batch.push(&bytes, &record.body, len);
            self.chain = crc;
            self.written = record.index + 1;
        }
        self.write_batch(&mut batch)
    }

    fn write_batch(&mut self, batch: &mut Batch) -> Result<(), LogError> {
        if batch.end > batch.start {
            self.marked = false;
            self.dirty = true;
            let zeros = self.ahead.behind(batch.end);
            batch
                .write(&self.tail, zeros)
                .map_err(|e| LogError::io("write", &self.tail.name, e))?;
            let stats = &self.shared.stats;
            stats.writes.fetch_add(1, Relaxed);
            stats.bytes.fetch_add(batch.end - batch.start, Relaxed);
            stats.records.fetch_add(batch.records, Relaxed);
        }
        self.tail.end = batch.end;
        self.publish(self.written);
        Ok(())
    }

    /// Brings the view's last segment up to date.
    fn publish(&self, written: u64) {
        let tail = &self.tail;
        self.shared
            .set_written(self.generation, written, |segments| {
                if let Some(last) = segments.back_mut() {
                    last.end = tail.end;
                    let known = last.places.len();
                    last.places.extend(tail.places.iter().skip(known));
                }
            });
    }

    fn sync_tail(&mut self) -> Result<(), LogError> {
        if !self.dirty {
            return Ok(());
        }
        if self.options.sync {
            let start = Instant::now();
            self.tail
                .file
                .sync_data()
                .map_err(|e| LogError::io("sync", &self.tail.name, e))?;
            self.shared.stats.note_sync(start.elapsed());
            self.stable = self.written;
        }
        self.dirty = false;
        self.shared.set_durable(self.generation, self.written);
        Ok(())
    }

    /// What is stored of the last segment need not stay in the kernel's memory, if it is
    /// much: who is near the end of the log reads from the cache of records, and the log
    /// would take memory that the server wants, page by page. What somebody is going to read
    /// ([`LogOptions::soon`]) stays until then. For a writer that has called back: nobody waits
    /// for it.
    pub(crate) fn release_stored(&mut self) {
        if self.options.sync && !self.dirty && self.tail.end >= self.released + RELEASE {
            self.may_go();
        }
        let wanted = self.options.soon.from();
        for _ in 0..RELEASE_AT_ONCE {
            if self.kept.front().is_none_or(|(below, ..)| *below > wanted) {
                return;
            }
            if let Some((_, file, bytes)) = self.kept.pop_front() {
                file.release(bytes);
            }
        }
    }

    /// What was written to the last segment is stored.
    fn may_go(&mut self) {
        let bytes = self.released..self.tail.end;
        self.released = self.tail.end;
        (self.kept).push_back((self.written, self.tail.file.clone(), bytes));
    }

    /// Goes on in this segment, at its end.
    fn write_on(&mut self, segment: Segment) -> Result<(), LogError> {
        self.ahead = self.ahead.moved(reserved(&segment)?, segment.end);
        self.released = 0;
        self.marked = false;
        self.tail = segment;
        Ok(())
    }

    /// The file of the segment that follows the last one, which ends at `end`. `None`: the
    /// process has no room for it now, and nothing was changed; the last segment takes more.
    fn new_file(&self, end: u64) -> Result<Option<Arc<dyn DeviceFile>>, LogError> {
        let cause = match Segment::begin(&*self.device) {
            Ok(file) => {
                self.shared.set_held_up(None);
                return Ok(Some(file));
            }
            Err(e) => e,
        };
        let limit = self.options.segment_bytes.saturating_mul(STRETCH);
        if !is_short(&cause) || end >= limit {
            return Err(LogError::io("create", segment::TEMP, cause));
        }
        self.shared.set_held_up(Some(cause));
        Ok(None)
    }

    /// Ends the last segment and begins a new one in `file`.
    fn begin_segment(&mut self, file: Arc<dyn DeviceFile>) -> Result<(), LogError> {
        self.tail
            .file
            .set_len(self.tail.end)
            .map_err(|e| LogError::io("cut", &self.tail.name, e))?;
        if self.options.sync {
            let start = Instant::now();
            sync_file(&self.tail)?;
            self.shared.stats.note_sync(start.elapsed());
            self.stable = self.written;
            self.shared.set_durable(self.generation, self.written);
            self.may_go();
        }
        self.dirty = false;
        let header = SegmentHeader {
            identity: self.shared.identity,
            first: self.written,
            durable_end: self.stable,
            chain: self.chain,
        };
        let segment = Segment::complete(&*self.device, file, &header, self.options.segment_bytes)?;
        self.write_on(segment.clone())?;
        self.shared
            .set_written(self.generation, self.written, |segments| {
                segments.push_back(segment);
            });
        Ok(())
    }

    /// Removes the records from `index` on, durably. Nothing of them can come back.
    ///
    /// Errors: [`LogError::Purged`], [`LogError::BeyondEnd`], or a failure of the disk.
    pub fn truncate_from(&mut self, index: u64) -> Result<(), LogError> {
        self.shared.usable()?;
        self.shared.change(|view| view.truncate(index))?;
        self.truncate_files(index)
    }

    pub(crate) fn truncate_files(&mut self, index: u64) -> Result<(), LogError> {
        self.shared.usable()?;
        self.generation += 1;
        self.staged.retain(|r| r.index < index);
        self.truncate_written(index)
            .map_err(|e| self.shared.poison(e))?;
        // A write that ended after the view was truncated could not say so to the view.
        self.publish(self.written);
        let durable = if self.options.sync {
            self.stable
        } else {
            self.written
        };
        self.shared.set_durable(self.generation, durable);
        Ok(())
    }

    fn truncate_written(&mut self, index: u64) -> Result<(), LogError> {
        if index >= self.written {
            return Ok(());
        }
        // From the end, each step durable: whatever a crash leaves is still one log.
        loop {
            let last = {
                let mut view = self.shared.view.lock();
                let whole = view.segments.len() > 1
                    && view.segments.back().is_some_and(|s| s.first >= index);
                if whole {
                    view.segments.pop_back()
                } else {
                    None
                }
            };
            let Some(segment) = last else { break };
            (self.kept).retain(|(_, file, _)| !Arc::ptr_eq(file, &segment.file));
            recover::remove(&*self.device, &segment.name)?;
            self.sync_dir()?;
        }
        let mut segment = {
            let view = self.shared.view.lock();
            match view.segments.back() {
                Some(segment) => segment.clone(),
                None => self.tail.clone(),
            }
        };
        let (offset, chain) = find(&segment, index)?;
        segment
            .file
            .set_len(offset)
            .map_err(|e| LogError::io("cut", &segment.name, e))?;
        sync_file(&segment)?;
        recover::reserve(&segment, &self.options)?;
        segment.cut(index, offset);
        self.write_on(segment.clone())?;
        self.chain = chain;
        self.written = index;
        self.stable = self.stable.min(index);
        self.dirty = false;
        if let Some(last) = self.shared.view.lock().segments.back_mut() {
            *last = segment;
        }
        if self.options.sync {
            // The sync of the cut has stored the rest of the segment too.
            self.stable = index;
        }
        Ok(())
    }

    /// Drops the records up to and with `index`; `last_purged` is durable when this
    /// returns. Files go as whole segments, so room is freed in steps. An index that was
    /// purged before changes nothing.
    ///
    /// Errors: [`LogError::BeyondEnd`] (use [`Log::reset_to`]), or a failure of the disk.
    pub fn purge_to(&mut self, index: u64) -> Result<(), LogError> {
        self.shared.usable()?;
        match self.shared.change(|view| view.purge(index))? {
            None => Ok(()),
            Some(id) => self.purge_files(id),
        }
    }

    pub(crate) fn purge_files(&mut self, id: RecordId) -> Result<(), LogError> {
        // What is declared purged must have been stable, or a crash would leave a log that
        // ends below its start.
        self.sync()?;
        if id.index >= self.stable {
            let kept = self.shared.view.lock().segment_of(id.index).cloned();
            if let Some(segment) = kept {
                sync_file(&segment).map_err(|e| self.shared.poison(e))?;
            }
        }
        self.save_state(|state| state.purged = Some(id))?;
        loop {
            let first = {
                let mut view = self.shared.view.lock();
                let whole = view
                    .segments
                    .get(1)
                    .is_some_and(|s| s.first <= id.index + 1);
                if whole {
                    view.segments.pop_front()
                } else {
                    None
                }
            };
            let Some(segment) = first else {
                return Ok(());
            };
            // Nothing may hold the file that goes.
            (self.kept).retain(|(_, file, _)| !Arc::ptr_eq(file, &segment.file));
            // Not synced: one that comes back is removed at the next opening.
            recover::remove(&*self.device, &segment.name).map_err(|e| self.shared.poison(e))?;
            segment.file.removed();
        }
    }

    /// Empties the log and lets it begin after `id` (at index 0 with `None`), durably and
    /// as one step: after a crash it is the old log or the new one. Values and checkpoints
    /// stay.
    pub fn reset_to(&mut self, id: Option<RecordId>) -> Result<(), LogError> {
        self.shared.usable()?;
        self.shared.change(|view| {
            view.reset(id);
            Ok(())
        })?;
        self.reset_files(id)
    }

    pub(crate) fn reset_files(&mut self, id: Option<RecordId>) -> Result<(), LogError> {
        self.shared.usable()?;
        self.generation += 1;
        self.staged.clear();
        self.save_state(|state| {
            state.purged = id;
            state.resetting = true;
            state.closed = None;
        })?;
        let segment = recover::replace_segments(&*self.device, &mut self.meta, &self.options)
            .map_err(|e| self.shared.poison(e))?;
        self.kept.clear();
        self.written = segment.first;
        self.stable = segment.first;
        self.chain = 0;
        self.dirty = false;
        self.write_on(segment.clone())
            .map_err(|e| self.shared.poison(e))?;
        let mut view = self.shared.view.lock();
        view.segments.clear();
        view.segments.push_back(segment);
        Ok(())
    }

    /// The records of `range` as far as they exist; see [`LogReader::read`].
    pub fn read(&self, range: Range<u64>, max_bytes: u64) -> Result<Vec<Record>, LogError> {
        self.reader().read(range, max_bytes)
    }

    /// Saves a small value under `key` (at most [`META_KEY_MAX`] bytes; all together at
    /// most [`crate::META_BYTES_MAX`]); durable when this returns, also in memory mode.
    /// After a crash during the call it is the old or the new value.
    pub fn save_meta(&mut self, key: &str, value: Bytes) -> Result<(), LogError> {
        check_key(key)?;
        self.change_values(|values| {
            values.insert(key.to_owned(), value);
        })
    }

    /// Removes a small value, durably.
    pub fn remove_meta(&mut self, key: &str) -> Result<(), LogError> {
        self.change_values(|values| {
            values.remove(key);
        })
    }

    fn change_values(
        &mut self,
        change: impl FnOnce(&mut BTreeMap<String, Bytes>),
    ) -> Result<(), LogError> {
        self.shared.usable()?;
        let mut values = self.meta.state().values.clone();
        change(&mut values);
        meta::check_size(&values)?;
        self.save_state(|state| state.values = values.clone())?;
        *self.shared.values.lock() = values;
        Ok(())
    }

    fn save_state(&mut self, change: impl FnOnce(&mut meta::MetaState)) -> Result<(), LogError> {
        self.shared.usable()?;
        let mut state = self.meta.state().clone();
        change(&mut state);
        self.shared.stats.meta_saves.fetch_add(1, Relaxed);
        self.meta.save(state).map_err(|e| self.shared.poison(e))
    }

    /// A small value as last saved.
    pub fn load_meta(&self, key: &str) -> Option<Bytes> {
        self.meta.state().values.get(key).cloned()
    }

    /// The checkpoints beside this log.
    pub fn checkpoints(&self) -> Checkpoints {
        Checkpoints {
            device: self.device.clone(),
            shared: self.shared.clone(),
        }
    }

    /// The log's counters.
    pub fn stats(&self) -> LogStats {
        self.shared.stats.read()
    }

    /// Writes and syncs everything (in memory mode too) and notes the end of the log, so
    /// that the next opening can tell that nothing is missing.
    pub fn close(mut self) -> Result<(), LogError> {
        self.sync()?;
        self.settle().map_err(|e| self.shared.poison(e))?;
        let closed = Closed {
            next: self.written,
            chain: self.chain,
        };
        self.save_state(|state| state.closed = Some(closed))?;
        let _ = self.shared.poison(LogError::Closed);
        Ok(())
    }

    /// Cuts the room reserved ahead and makes all segments stable.
    fn settle(&self) -> Result<(), LogError> {
        self.tail
            .file
            .set_len(self.tail.end)
            .map_err(|e| LogError::io("cut", &self.tail.name, e))?;
        if self.options.sync {
            return sync_file(&self.tail);
        }
        let segments = self.shared.view.lock().segments.clone();
        segments.iter().try_for_each(sync_file)
    }

    fn sync_dir(&self) -> Result<(), LogError> {
        self.device
            .sync_dir()
            .map_err(|e| LogError::io("sync", &self.device.place(), e))
    }
}

/// Whether there was no room.
fn is_full(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

pub(crate) fn check_key(key: &str) -> Result<(), LogError> {
    if key.len() > META_KEY_MAX {
        return Err(LogError::TooLarge {
            what: "The key of a small value",
            bytes: key.len() as u64,
            limit: META_KEY_MAX as u64,
        });
    }
    Ok(())
}

/// Length of a segment's file: so much room it has.
fn reserved(segment: &Segment) -> Result<u64, LogError> {
    let len = segment.file.len();
    len.map_err(|e| LogError::io("measure", &segment.name, e))
}

/// Where a record begins, and the chain value before it. `index` may be the next one.
fn find(segment: &Segment, index: u64) -> Result<(u64, u32), LogError> {
    if index <= segment.first {
        return Ok((SEGMENT_HEADER, segment.chain));
    }
    // The record before it has the chain value.
    let (mut at, mut offset) = segment.place_before(index - 1);
    let mut walker = Walker::new(segment)?;
    loop {
        let Found::Record(header, crc) = walker.frame(offset)? else {
            return Err(LogError::corrupt(
                &segment.name,
                offset,
                format!("record {at} cannot be read any more"),
            ));
        };
        offset += header.frame_len();
        at += 1;
        if at == index {
            return Ok((offset, crc));
        }
    }
}

/// Frames on their way to a segment: one vectored write.
struct Batch {
    start: u64,
    end: u64,
    records: u64,
    /// Headers, small bodies and padding.
    copied: Vec<u8>,
    parts: Vec<Part>,
}

enum Part {
    Copied(Range<usize>),
    Body(Bytes),
}

impl Batch {
    fn new(start: u64) -> Batch {
        Batch {
            start,
            end: start,
            records: 0,
            copied: Vec::new(),
            parts: Vec::new(),
        }
    }

    fn push(&mut self, header: &[u8], body: &Bytes, len: u64) {
        self.copy(header);
        if body.len() <= COPY_MAX {
            self.copy(body);
        } else {
            self.parts.push(Part::Body(body.clone()));
        }
        self.copy(&[0; 8][..padding(body.len())]);
        debug_assert_eq!(
            len,
            FRAME_HEADER + (body.len() + padding(body.len())) as u64
        );
        self.end += len;
        self.records += 1;
    }

    fn copy(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let from = self.copied.len();
        self.copied.extend_from_slice(bytes);
        let to = self.copied.len();
        match self.parts.last_mut() {
            Some(Part::Copied(range)) => range.end = to,
            _ => self.parts.push(Part::Copied(from..to)),
        }
    }

    /// Writes it, and `zeros` behind it.
    fn write(&self, segment: &Segment, mut zeros: u64) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = self
            .parts
            .iter()
            .map(|part| match part {
                Part::Copied(range) => IoSlice::new(&self.copied[range.clone()]),
                Part::Body(body) => IoSlice::new(body),
            })
            .collect();
        while zeros > 0 {
            let n = zeros.min(ZEROS.len() as u64);
            slices.push(IoSlice::new(&ZEROS[..n as usize]));
            zeros -= n;
        }
        segment.file.write_at(&mut slices, self.start)
    }
}

/// The checkpoints beside a log: whole states of the node, each named by a log index.
///
/// Saving writes its own file and does not hold up the log's writer; it runs on the thread
/// that calls it, and waits for the disk.
#[derive(Clone)]
pub struct Checkpoints {
    device: Arc<dyn Device>,
    shared: Arc<Shared>,
}

impl Checkpoints {
    /// Saves a state; complete and durable when this returns, and after a crash it is
    /// there as a whole or not at all.
    ///
    /// Errors: [`LogError::NotSaved`], which leaves the log as it was: its own files have room
    /// and are open, when there is none for another one. Any other stops it.
    pub fn save(&self, index: u64, body: &[u8]) -> Result<(), LogError> {
        self.shared.usable()?;
        let _one = self.shared.checkpoints.lock();
        checkpoint::save(&*self.device, self.shared.identity, index, body).map_err(|e| match e {
            Unsaved::Alone(e) => e,
            Unsaved::Names(e) => self.shared.poison(e),
        })
    }

    /// Indices of the checkpoints there are, ascending.
    pub fn list(&self) -> Result<Vec<u64>, LogError> {
        checkpoint::list(&*self.device)
    }

    /// Reads and verifies a state.
    ///
    /// Errors: [`LogError::NoCheckpoint`], [`LogError::Corrupt`], [`LogError::Io`].
    pub fn load(&self, index: u64) -> Result<Bytes, LogError> {
        checkpoint::load(&*self.device, self.shared.identity, index)
    }

    /// Removes the checkpoint at `index`, if there is one, and no other. Not durably: one that
    /// comes back is as good as before, as long as the log behind it is there. Before that goes,
    /// [`Self::drop_before`] makes it durable.
    pub fn drop_one(&self, index: u64) -> Result<(), LogError> {
        self.shared.usable()?;
        let _one = self.shared.checkpoints.lock();
        checkpoint::remove(&*self.device, index).map_err(|e| self.shared.poison(e))
    }

    /// Removes the checkpoints below `index`, durably, also those that are gone already.
    ///
    /// Errors: if the directory cannot be listed, nothing was changed and the log goes on.
    /// Any other stops it.
    pub fn drop_before(&self, index: u64) -> Result<(), LogError> {
        self.shared.usable()?;
        let _one = self.shared.checkpoints.lock();
        let mut old = checkpoint::list(&*self.device)?;
        old.retain(|n| *n < index);
        checkpoint::remove_all(&*self.device, &old).map_err(|e| self.shared.poison(e))
    }
}
