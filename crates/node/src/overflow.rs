//! Write sets that wait for an applier, in files: a node that takes a copy, or is paused, slows
//! nobody down, and what others write meanwhile would fill its memory.
//!
//! Only where each has its place in the log goes there, and what certification made of it; the
//! payload is read from the log when its turn comes. Files as of large payloads
//! ([`spool`](crate::spool)): without a name, so nothing of them outlives the process.
//!
//! ```text
//!   0        8           16     20       36      44       52     60
//!   | seqno | depends on | flags | source | trx id | conn id | index |   little endian
//! ```
//!
//! What no file takes (a full disk) stays in memory.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::{Buf, BufMut, BytesMut};
use dromon_gates::{Kept, Overflow, QueueItem, Seqno};
use dromon_log::ClosedLater;
use dromon_writeset::{Flags, Uuid};

use crate::database::{Database, Level};
use crate::spool::Spooler;

/// What is kept of a write set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Its place.
    pub seqno: Seqno,
    /// What must be finished before it starts.
    pub depends_on: Seqno,
    /// Its flags.
    pub flags: Flags,
    /// The member that sent it.
    pub source: Uuid,
    /// Its transaction there.
    pub trx_id: u64,
    /// The connection of that.
    pub conn_id: u64,
    /// Log index of its last part.
    pub index: u64,
}

/// Bytes of one.
const RECORD: usize = 60;
/// So many are written at a time.
const BATCH: usize = 1024;
/// So many lie in one file, which goes when all of them are through.
const FILE_RECORDS: usize = 1 << 20;

impl Queued {
    fn encode(&self, to: &mut BytesMut) {
        to.put_i64_le(self.seqno);
        to.put_i64_le(self.depends_on);
        to.put_u32_le(self.flags.bits());
        to.put_slice(&self.source.0);
        to.put_u64_le(self.trx_id);
        to.put_u64_le(self.conn_id);
        to.put_u64_le(self.index);
    }

    /// From [`RECORD`] bytes.
    fn decode(mut from: &[u8]) -> Self {
        let (seqno, depends_on) = (from.get_i64_le(), from.get_i64_le());
        let flags = Flags::from_bits(from.get_u32_le());
        let mut source = Uuid::NIL;
        from.copy_to_slice(&mut source.0);
        Queued {
            seqno,
            depends_on,
            flags,
            source,
            trx_id: from.get_u64_le(),
            conn_id: from.get_u64_le(),
            index: from.get_u64_le(),
        }
    }
}

/// What an event of the queue is to this.
pub trait Spills: Sized {
    /// What is to be kept of it; `None`: it has to stay in memory.
    fn spilled(item: &QueueItem<Self>) -> Option<Queued>;
    /// The event again.
    fn again(queued: Queued) -> QueueItem<Self>;
    /// It stands for all that could not be read again, from `first` on, and why.
    fn lost(why: String, first: Seqno) -> QueueItem<Self>;
}

/// Write sets in files, oldest first.
pub struct QueueFiles {
    spooler: Spooler,
    db: Arc<dyn Database>,
    files: VecDeque<Records>,
    /// The newest ones, not written yet.
    tail: BytesMut,
    /// The seqno of the first one that lies here, known also where that cannot be read.
    first: Option<Seqno>,
    /// No file took them, and that was said.
    refused: bool,
    /// What lies there cannot be read.
    broken: Option<String>,
}

impl std::fmt::Debug for QueueFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueFiles")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Records {
    file: Arc<ClosedLater>,
    /// Seqno of the first one of it.
    first: Seqno,
    /// Of these the first `read` are through.
    written: usize,
    read: usize,
}

impl Records {
    fn at(&self, n: usize) -> io::Result<Seqno> {
        let mut seqno = [0; 8];
        let place = (n * RECORD) as u64;
        self.file.get()?.read_exact_at(&mut seqno, place)?;
        Ok(Seqno::from_le_bytes(seqno))
    }

    fn next(&self, max: usize) -> io::Result<Vec<u8>> {
        let mut records = vec![0; max.min(self.written - self.read) * RECORD];
        let place = (self.read * RECORD) as u64;
        self.file.get()?.read_exact_at(&mut records, place)?;
        Ok(records)
    }

    /// How many of all have a seqno up to this one.
    fn through(&self, seqno: Seqno) -> io::Result<usize> {
        let (mut low, mut high) = (self.read, self.written);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.at(middle)? <= seqno {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        Ok(low)
    }
}

impl QueueFiles {
    /// Files of `spooler`; where none can be written `db` is told.
    pub fn new(spooler: Spooler, db: Arc<dyn Database>) -> Self {
        QueueFiles {
            spooler,
            db,
            files: VecDeque::new(),
            tail: BytesMut::new(),
            first: None,
            refused: false,
            broken: None,
        }
    }

    fn write_tail(&mut self) -> io::Result<()> {
        let full = |r: &Records| r.written >= FILE_RECORDS;
        if let Some(first) = self.first_of_tail()
            && self.files.back().is_none_or(full)
        {
            self.files.push_back(Records {
                file: self.spooler.create()?,
                first,
                written: 0,
                read: 0,
            });
        }
        if let Some(last) = self.files.back_mut() {
            let place = (last.written * RECORD) as u64;
            last.file.get()?.write_all_at(&self.tail, place)?;
            last.written += self.tail.len() / RECORD;
            self.tail.clear();
        }
        Ok(())
    }

    fn say_refused(&mut self, e: &io::Error) {
        if !std::mem::replace(&mut self.refused, true) {
            self.db.log(
                Level::Warning,
                &format!(
                    "no file in {} takes what waits here for an applier: {e}. It stays in memory, 60 bytes for \
                     each write set, until this node has caught up. Nothing is lost; make room there",
                    self.spooler.dir().display()
                ),
            );
        }
    }

    fn first_of_tail(&self) -> Option<Seqno> {
        let some = self.tail.len() >= RECORD;
        some.then(|| Queued::decode(&self.tail).seqno)
    }

    /// How many are dropped, and the first one that lies in a file then.
    fn drop_from_files(&mut self, seqno: Seqno) -> io::Result<(usize, Option<Seqno>)> {
        let mut dropped = 0;
        for records in &mut self.files {
            let through = records.through(seqno)?;
            dropped += through - records.read;
            records.read = through;
            if through < records.written {
                return Ok((dropped, Some(records.at(through)?)));
            }
        }
        Ok((dropped, None))
    }
}

impl<T: Spills> Overflow<T> for QueueFiles {
    fn takes(&self, item: &QueueItem<T>) -> bool {
        T::spilled(item).is_some()
    }

    fn push(&mut self, item: QueueItem<T>) -> bool {
        let Some(queued) = T::spilled(&item) else {
            return false;
        };
        self.first.get_or_insert(queued.seqno);
        queued.encode(&mut self.tail);
        self.tail.len().is_multiple_of(BATCH * RECORD)
    }

    fn write(&mut self) {
        match self.write_tail() {
            Ok(()) => self.refused = false,
            Err(e) => self.say_refused(&e),
        }
    }

    fn pop(&mut self, max: usize) -> Kept<T> {
        while self.files.front().is_some_and(|r| r.read == r.written) {
            self.files.pop_front();
        }
        let behind = self.files.get(1).map(|r| r.first);
        let behind = behind.or_else(|| self.first_of_tail());
        let records = match (&self.broken, self.files.front_mut()) {
            (Some(why), _) => Err(why.clone()),
            // With the one behind them: if that cannot be read later, its place is known.
            (None, Some(records)) => match records.next(max + 1) {
                Ok(mut bytes) => {
                    let next = bytes.split_off(bytes.len().min(max * RECORD));
                    let next = (!next.is_empty()).then(|| Queued::decode(&next).seqno);
                    self.first = next.or(behind);
                    records.read += bytes.len() / RECORD;
                    Ok(bytes)
                }
                Err(e) => Err(e.to_string()),
            },
            (None, None) => {
                let n = max.min(self.tail.len() / RECORD);
                let bytes = self.tail.split_to(n * RECORD).to_vec();
                self.first = self.first_of_tail();
                Ok(bytes)
            }
        };
        match records {
            Ok(bytes) => {
                let events = bytes.chunks_exact(RECORD).map(Queued::decode);
                Kept::Events(events.map(T::again).collect())
            }
            Err(why) => {
                self.files.clear();
                self.tail.clear();
                self.broken = None;
                Kept::Lost(T::lost(why, self.first.take().unwrap_or_default()))
            }
        }
    }

    fn drop_through(&mut self, seqno: Seqno) -> usize {
        let (mut dropped, in_files) = match self.drop_from_files(seqno) {
            Ok(dropped) => dropped,
            Err(e) => {
                self.broken = Some(e.to_string());
                self.first = self.first.map(|first| first.max(seqno + 1));
                return 0;
            }
        };
        while self.tail.len() >= RECORD && Queued::decode(&self.tail).seqno <= seqno {
            self.tail.advance(RECORD);
            dropped += 1;
        }
        self.first = in_files.or_else(|| self.first_of_tail());
        dropped
    }

    fn fresh(&self) -> Box<dyn Overflow<T>> {
        Box::new(QueueFiles::new(self.spooler.clone(), self.db.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::node::lock;
    use crate::spool::read_whole;

    #[derive(Default)]
    struct Lines(Mutex<Vec<String>>);

    impl Database for Lines {
        fn log(&self, _: Level, message: &str) {
            lock(&self.0).push(message.to_owned());
        }
    }

    #[derive(Clone, Debug, PartialEq)]
    enum Value {
        Kept(Queued),
        Lost(String),
    }

    impl Spills for Value {
        fn spilled(item: &QueueItem<Value>) -> Option<Queued> {
            match &item.value {
                Value::Kept(queued) => Some(*queued),
                Value::Lost(_) => None,
            }
        }

        fn again(queued: Queued) -> QueueItem<Value> {
            item(queued.seqno)
        }

        fn lost(why: String, first: Seqno) -> QueueItem<Value> {
            QueueItem {
                value: Value::Lost(why),
                ..item(first)
            }
        }
    }

    /// All that is kept of the one at `seqno` follows from that.
    fn item(seqno: Seqno) -> QueueItem<Value> {
        QueueItem {
            seqno,
            ordered: true,
            depends_on: seqno - 3,
            exclusive: false,
            bytes: 0,
            value: Value::Kept(Queued {
                seqno,
                depends_on: seqno - 3,
                flags: Flags::TRX_START | Flags::TRX_END,
                source: Uuid([seqno as u8; 16]),
                trx_id: !(seqno as u64),
                conn_id: seqno as u64 ^ 0x5555,
                index: seqno as u64 * 2,
            }),
        }
    }

    fn files(dir: &std::path::Path, full: bool) -> (QueueFiles, Arc<Lines>) {
        let mut spooler = Spooler::new(dir, read_whole());
        spooler.full = full;
        let lines = Arc::new(Lines::default());
        (QueueFiles::new(spooler, lines.clone()), lines)
    }

    fn push_all(files: &mut QueueFiles, seqnos: std::ops::Range<Seqno>) {
        for seqno in seqnos {
            if files.push(item(seqno)) {
                Overflow::<Value>::write(files);
            }
        }
    }

    fn popped(files: &mut QueueFiles, max: usize) -> Vec<QueueItem<Value>> {
        match files.pop(max) {
            Kept::Events(events) => events,
            Kept::Lost(item) => vec![item],
        }
    }

    fn seqnos(events: &[QueueItem<Value>]) -> Vec<Seqno> {
        for event in events {
            assert_eq!(event.value, item(event.seqno).value);
        }
        events.iter().map(|e| e.seqno).collect()
    }

    #[test]
    fn all_come_back_in_order_from_files_and_from_what_is_not_written_yet() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut files, lines) = files(dir.path(), false);
        let n = 3 * BATCH as Seqno + 100;
        push_all(&mut files, 1..n);
        let mut all = Vec::new();
        while let events = seqnos(&popped(&mut files, 700))
            && !events.is_empty()
        {
            assert!(events.len() <= 700);
            all.extend(events);
        }
        assert_eq!(all, (1..n).collect::<Vec<_>>());
        push_all(&mut files, n..n + 5);
        assert_eq!(seqnos(&popped(&mut files, 3)), [n, n + 1, n + 2]);
        push_all(&mut files, n + 5..n + 6);
        assert_eq!(seqnos(&popped(&mut files, 9)), [n + 3, n + 4, n + 5]);
        assert!(lock(&lines.0).is_empty());
        let left = std::fs::read_dir(dir.path())
            .expect("the directory")
            .count();
        assert_eq!(left, 0, "they have no names");
    }

    #[test]
    fn a_position_drops_what_lies_in_files_and_what_is_not_written_yet() {
        let batch = BATCH as Seqno;
        for (at, first) in [
            (0, 5),
            (4, 5),
            (700, 701),
            (3 * batch, 3 * batch + 1),
            (3 * batch + 50, 3 * batch + 51),
        ] {
            let dir = tempfile::tempdir().expect("a directory");
            let (mut files, _) = files(dir.path(), false);
            push_all(&mut files, 5..3 * batch + 100);
            let dropped = Overflow::<Value>::drop_through(&mut files, at);
            assert_eq!(dropped as Seqno, first - 5, "at {at}");
            assert_eq!(seqnos(&popped(&mut files, 2)), [first, first + 1]);
        }
    }

    #[test]
    fn a_full_disk_keeps_them_in_memory_and_says_so_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut files, lines) = files(dir.path(), true);
        let n = 2 * BATCH as Seqno + 7;
        push_all(&mut files, 1..n);
        assert_eq!(lock(&lines.0).len(), 1);
        files.spooler.full = false;
        files.files.clear();
        push_all(&mut files, n..2 * n);
        assert_eq!(files.files.len(), 1, "there is room again");
        let mut all = Vec::new();
        while let events = seqnos(&popped(&mut files, 999))
            && !events.is_empty()
        {
            all.extend(events);
        }
        assert_eq!(all, (1..2 * n).collect::<Vec<_>>());
    }

    #[test]
    fn what_cannot_be_read_again_is_told_of_in_place_of_all_by_the_first_of_it() {
        let all = 2 * BATCH as Seqno + 9;
        // What is popped and dropped before, each third seqno is one that lies there.
        for (pop, drop, first) in [
            (0, 0, 3),
            (100, 0, 303),
            (0, 301, 303),
            (100, 604, 606),
            (2 * BATCH, 0, 6 * BATCH as Seqno + 3),
        ] {
            let dir = tempfile::tempdir().expect("a directory");
            let (mut files, _) = files(dir.path(), false);
            (1..=all).for_each(|n| push_all(&mut files, 3 * n..3 * n + 1));
            if pop > 0 {
                assert_eq!(popped(&mut files, pop).len(), pop);
            }
            if drop > 0 {
                Overflow::<Value>::drop_through(&mut files, drop);
            }
            assert_eq!(files.first, Some(first));
            let cut = files.files[0].file.get().expect("a file");
            cut.set_len(RECORD as u64).expect("cut");
            if first > 6 * BATCH as Seqno {
                // All of the file was read.
                assert_eq!(popped(&mut files, 100).len(), 9);
                assert_eq!(files.first, None);
                continue;
            }
            let lost = popped(&mut files, 100);
            assert!(matches!(
                &lost[..],
                [QueueItem {
                    seqno,
                    value: Value::Lost(_),
                    ..
                }] if *seqno == first
            ));
            assert!(popped(&mut files, 100).is_empty());
            push_all(&mut files, 9_000..9_001);
            assert_eq!(files.first, Some(9_000));
        }
    }

    /// Its disk fails as it is looked for what is to be dropped.
    #[test]
    fn what_fails_to_be_dropped_is_lost_from_behind_that_place() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut files, _) = files(dir.path(), false);
        push_all(&mut files, 5..2 * BATCH as Seqno);
        let cut = files.files[0].file.get().expect("a file");
        cut.set_len(0).expect("cut");
        assert_eq!(Overflow::<Value>::drop_through(&mut files, 70), 0);
        assert_eq!(popped(&mut files, 100)[0].seqno, 71);
    }

    #[test]
    fn nobody_else_reads_a_spool_file() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        let file = Spooler::new(dir.path(), read_whole()).create();
        let kept = file.expect("room");
        let found = kept.get().and_then(std::fs::File::metadata);
        let mode = found.expect("it is open").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
    }
}
