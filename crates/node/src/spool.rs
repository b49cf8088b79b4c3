//! Large payloads in files: collected here, read back as mapped memory.
//!
//! A spool file is a top-level regular file named `dromon-spool-N.log` (state
//! transfer scripts spare such names) and is unlinked as soon as it is open:
//! nothing of it outlives the process. A kill between the two leaves an empty one, which the
//! next start removes.
//!
//! ```text
//!   0                     RESERVE - prefix     RESERVE
//!   | hole .............. | write set prefix   | payload ...           |
//! ```
//!
//! The payload begins at a fixed place, so that what comes before it (header
//! and keys, known only at the end) can be put in front without a copy.
//!
//! What a client here sends comes back in pieces as that of others does. It lies in
//! a file already: as long as the pieces are what was sent, no second one is made.
//!
//! What is going to be applied in chunks lies in no file if its pieces can be read from
//! the log again ([`in_log`](crate::in_log)).

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use dromon_log::{ClosedLater, Closer};
use dromon_order::Sums;
use dromon_order::sequencer::{PieceAt, PieceStore, StoreError, StreamKey};
use dromon_writeset::{
    Arrival, Arrived, HEADER_LEN, Header, KEY_BYTES_MAX, Kept, KeyCollector, PayloadSum,
};
use rustix::fs::Advice;

use crate::in_log::{LeftMessage, PieceLog};
use crate::messages::kind;
use crate::node::lock;

const PREFIX: &str = "dromon-spool-";
const SUFFIX: &str = ".log";

/// Payloads above this lie in a file, in bytes.
pub const SPOOL_ABOVE: usize = 4 << 20;
/// Where the payload begins in the file of a local transaction, in bytes.
const RESERVE: u64 = 64 << 20;
const _: () = assert!(
    ((KEY_BYTES_MAX + HEADER_LEN) as u64) < RESERVE,
    "no keys are too many"
);

/// What a file has beyond so many bytes is sent to the disk as it comes. Else the kernel
/// would do that, all at once: with more than a part of its memory to write it holds up every
/// writer, and so each commit.
const LAZY: u64 = 128 << 20;
/// So many bytes at a time.
const BEHIND: u64 = 8 << 20;

/// Header and keys of a payload that is left in the log are in memory; with more than so many
/// bytes of them it lies in a file.
const FRONT_MAX: u64 = 8 << 20;
/// So many bytes are read at a time of what becomes a file.
const COPY: u64 = 1 << 20;

/// Turns the first bytes of a file into memory that does not count as such.
pub type MapFile = Arc<dyn Fn(File, u64) -> io::Result<Bytes> + Send + Sync>;

/// Makes spool files in one directory.
#[derive(Clone)]
pub struct Spooler {
    dir: Arc<PathBuf>,
    map: MapFile,
    next: Arc<AtomicU64>,
    sending: Arc<Mutex<BTreeMap<u64, Bytes>>>,
    closer: Arc<Closer>,
    mapped: Arc<AtomicUsize>,
    /// No file takes anything.
    #[cfg(test)]
    pub(crate) full: bool,
}

/// Mapped memory of a file, which the closer unmaps before it may cut the file.
struct Unmapped {
    bytes: Bytes,
    closer: Arc<Closer>,
    mapped: Arc<AtomicUsize>,
    _file: Arc<ClosedLater>,
}

impl AsRef<[u8]> for Unmapped {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Unmapped {
    fn drop(&mut self) {
        self.mapped.fetch_sub(1, Ordering::Relaxed);
        self.closer.later(std::mem::take(&mut self.bytes));
    }
}

/// A message of this node's own is on its way, until this is dropped.
#[derive(Debug)]
pub struct Sending {
    n: u64,
    all: Arc<Mutex<BTreeMap<u64, Bytes>>>,
}

impl Drop for Sending {
    fn drop(&mut self) {
        lock(&self.all).remove(&self.n);
    }
}

impl std::fmt::Debug for Spooler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spooler")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

impl Spooler {
    /// Spool files in `dir`, mapped by `map`.
    pub fn new(dir: &Path, map: MapFile) -> Self {
        Spooler {
            dir: Arc::new(dir.to_owned()),
            map,
            next: Arc::new(AtomicU64::new(0)),
            sending: Arc::default(),
            closer: Arc::default(),
            mapped: Arc::default(),
            #[cfg(test)]
            full: false,
        }
    }

    /// Removes the names that are left of a process that was killed before it had removed them
    /// itself. No other process may use the directory.
    pub fn remove_left(&self) {
        let entries = std::fs::read_dir(&*self.dir).into_iter().flatten();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
                // It is in nobody's way.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Says that `body` is about to be sent, if it is so large that its pieces would be
    /// collected in a file when they come back.
    pub fn sending(&self, body: &Bytes) -> Option<Sending> {
        if body.len() <= SPOOL_ABOVE {
            return None;
        }
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.sending).insert(n, body.clone());
        Some(Sending {
            n,
            all: self.sending.clone(),
        })
    }

    /// What is on its way from here and begins with `piece`.
    fn sent_with(&self, piece: &[u8]) -> Option<Bytes> {
        let sending = lock(&self.sending);
        sending.values().find(|b| b.starts_with(piece)).cloned()
    }

    /// The first `len` bytes of `file`.
    fn map(&self, file: &Arc<ClosedLater>, len: u64) -> io::Result<Bytes> {
        let bytes = (self.map)(file.get()?.try_clone()?, len)?;
        self.mapped.fetch_add(1, Ordering::Relaxed);
        Ok(Bytes::from_owner(Unmapped {
            bytes,
            closer: self.closer.clone(),
            mapped: self.mapped.clone(),
            _file: file.clone(),
        }))
    }

    /// How many files are mapped: each has a descriptor, and its room on the disk.
    pub fn mapped(&self) -> usize {
        self.mapped.load(Ordering::Relaxed)
    }

    /// All of a payload that was left elsewhere, in a file if it is large. The error says why
    /// it cannot be had.
    pub fn collect(&self, kept: &Kept) -> Result<Bytes, String> {
        let len = kept.len();
        if len <= SPOOL_ABOVE as u64 {
            return kept.read(0..len);
        }
        let say = |e: io::Error| e.to_string();
        let file = self.create().map_err(say)?;
        let mut at = 0;
        while at < len {
            let part: Range<u64> = at..len.min(at + COPY);
            let bytes = kept.read(part.clone())?;
            let open = file.get().map_err(say)?;
            write_behind(open, &bytes, at, at).map_err(say)?;
            at = part.end;
        }
        self.map(&file, len).map_err(say)
    }

    /// Where its files are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A file without a name.
    pub(crate) fn create(&self) -> io::Result<Arc<ClosedLater>> {
        let (path, file) = loop {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            let name = format!("{PREFIX}{}-{n}{SUFFIX}", std::process::id());
            let path = self.dir.join(name);
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true);
            // Rows lie in it: whoever opens it before it has lost its name reads what comes later.
            options.mode(0o600);
            match options.open(&path) {
                Ok(file) => break (path, file),
                // Left by one of the same number, as in a container.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        };
        std::fs::remove_file(&path)?;
        #[cfg(test)]
        let file = match self.full {
            true => OpenOptions::new().write(true).open("/dev/full")?,
            false => file,
        };
        let file = ClosedLater::new(file, self.closer.clone());
        file.removed();
        Ok(Arc::new(file))
    }
}

/// Writes `data` at `at`, where `of` bytes of payload lie before it.
fn write_behind(file: &File, data: &[u8], at: u64, of: u64) -> io::Result<()> {
    file.write_all_at(data, at)?;
    let (from, to) = (at / BEHIND, (at + data.len() as u64) / BEHIND);
    if of > LAZY
        && let Some(len) = NonZeroU64::new((to - from) * BEHIND)
    {
        // Dirty pages are only begun to be written by that; clean ones go.
        let _ = rustix::fs::fadvise(file, from * BEHIND, Some(len), Advice::DontNeed);
    }
    Ok(())
}

/// The data of one local transaction while it grows.
#[derive(Debug, Default)]
pub struct Collected {
    memory: BytesMut,
    file: Option<SpoolFile>,
    /// Why a part of the transaction is not here. The server goes on with it all the same.
    lacks: Option<Cow<'static, str>>,
}

#[derive(Debug)]
struct SpoolFile {
    file: Arc<ClosedLater>,
    len: u64,
    sum: PayloadSum,
}

impl Collected {
    /// Adds data behind what is there. After an error nothing can be encoded any more.
    pub fn push(&mut self, data: &[u8], spooler: &Spooler) -> io::Result<()> {
        self.whole()?;
        // Also after a panic.
        self.lacks = Some("an addition to it did not come to its end".into());
        let added = self.add(data, spooler);
        self.lacks = added.as_ref().err().map(|e| e.to_string().into());
        added
    }

    /// A part of the transaction could not be taken: nothing can be encoded any more.
    pub fn lacks(&mut self, why: String) {
        self.lacks.get_or_insert(why.into());
    }

    fn whole(&self) -> io::Result<()> {
        match &self.lacks {
            None => Ok(()),
            Some(why) => Err(io::Error::other(format!(
                "a part of it could not be kept: {why}"
            ))),
        }
    }

    fn add(&mut self, data: &[u8], spooler: &Spooler) -> io::Result<()> {
        if self.file.is_none() && self.memory.len() + data.len() > SPOOL_ABOVE {
            let mut spool = SpoolFile {
                file: spooler.create()?,
                len: 0,
                sum: PayloadSum::new(),
            };
            spool.push(&self.memory)?;
            self.memory = BytesMut::new();
            self.file = Some(spool);
        }
        match &mut self.file {
            Some(file) => file.push(data),
            None => {
                self.memory.extend_from_slice(data);
                Ok(())
            }
        }
    }

    /// Bytes collected.
    pub fn len(&self) -> u64 {
        self.file
            .as_ref()
            .map_or(self.memory.len() as u64, |f| f.len)
    }

    /// Whether nothing was collected.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The whole write set.
    pub fn encode(
        &self,
        header: &Header,
        keys: &KeyCollector,
        spooler: &Spooler,
    ) -> io::Result<Encoded> {
        self.whole()?;
        let mut sums = None;
        let whole = match &self.file {
            None => dromon_writeset::encode(header, keys, &self.memory),
            Some(spool) => {
                let prefix =
                    dromon_writeset::encode_prefix(header, keys, spool.len, spool.sum.sum());
                let at = RESERVE.checked_sub(prefix.len() as u64).ok_or_else(|| {
                    io::Error::other(format!("{} bytes of keys are too many", prefix.len()))
                })?;
                spool.file.get()?.write_all_at(&prefix, at)?;
                sums = Some(Sums {
                    front: prefix.len(),
                    front_sum: PayloadSum::of(&prefix),
                    rest_sum: spool.sum.sum(),
                });
                let mapped = spooler.map(&spool.file, RESERVE + spool.len)?;
                mapped.slice(at as usize..)
            }
        };
        let payload = whole.slice(whole.len() - self.len() as usize..);
        Ok(Encoded {
            whole,
            payload,
            sums,
        })
    }
}

/// A write set that is ready to be sent.
#[derive(Debug)]
pub struct Encoded {
    /// All of it.
    pub whole: Bytes,
    /// The payload inside it.
    pub payload: Bytes,
    /// What it must be when it is read, if it lies in a file.
    pub sums: Option<Sums>,
}

impl SpoolFile {
    fn push(&mut self, data: &[u8]) -> io::Result<()> {
        write_behind(self.file.get()?, data, RESERVE + self.len, self.len)?;
        self.len += data.len() as u64;
        self.sum.update(data);
        Ok(())
    }
}

/// Half-arrived payloads, a file each, or left in the log.
#[derive(Debug)]
pub struct PieceFiles {
    spooler: Spooler,
    log: Option<PieceLog>,
    places: HashMap<StreamKey, (Place, Arrival)>,
}

/// Where the pieces of one payload are, and how many bytes have come.
#[derive(Debug)]
enum Place {
    File(Arc<ClosedLater>, u64),
    /// All that has come is the beginning of what was sent from here.
    Sent(Bytes, usize),
    Log(Box<LeftMessage>),
}

impl PieceFiles {
    /// Files made by `spooler`.
    pub fn new(spooler: Spooler) -> Self {
        PieceFiles {
            spooler,
            log: None,
            places: HashMap::new(),
        }
    }

    /// The same, but what may be applied in chunks is left in `log`, where its pieces
    /// come from.
    pub fn with_log(spooler: Spooler, log: PieceLog) -> Self {
        PieceFiles {
            log: Some(log),
            ..PieceFiles::new(spooler)
        }
    }

    /// Where a payload goes that begins with `piece`, of which `arrival` knows.
    fn place(
        &self,
        key: StreamKey,
        at: Option<PieceAt>,
        piece: &[u8],
        arrival: &Arrival,
    ) -> io::Result<Place> {
        if let Some(body) = self.spooler.sent_with(piece) {
            return Ok(Place::Sent(body, 0));
        }
        let at = at.filter(|at| at.kind == kind::WRITE_SET && arrival.may_be_cut());
        let front = arrival.front_len().filter(|len| *len <= FRONT_MAX);
        Ok(match (&self.log, at, front) {
            (Some(log), Some(at), Some(front)) => {
                Place::Log(Box::new(LeftMessage::begin(key, log, at, front)))
            }
            _ => Place::File(self.spooler.create()?, 0),
        })
    }
}

impl Place {
    fn push(&mut self, at: Option<PieceAt>, piece: &[u8], spooler: &Spooler) -> io::Result<()> {
        if let Place::Sent(body, len) = self {
            if body[*len..].starts_with(piece) {
                *len += piece.len();
                return Ok(());
            }
            let file = spooler.create()?;
            file.get()?.write_all_at(&body[..*len], 0)?;
            *self = Place::File(file, *len as u64);
        }
        match (self, at) {
            (Place::File(file, len), _) => {
                write_behind(file.get()?, piece, *len, *len)?;
                *len += piece.len() as u64;
            }
            (Place::Log(left), Some(at)) => left.push(at, piece),
            // Only the first ones can be such.
            (Place::Log(_), None) => {
                return Err(io::Error::other(
                    "a piece is in the log, but not known where",
                ));
            }
            (Place::Sent(..), _) => {}
        }
        Ok(())
    }
}

impl PieceStore for PieceFiles {
    fn append(
        &mut self,
        key: StreamKey,
        at: Option<PieceAt>,
        piece: &[u8],
    ) -> Result<(), StoreError> {
        let failed = |e: io::Error| StoreError {
            key,
            doing: "written",
            why: e.to_string(),
        };
        if !self.places.contains_key(&key) {
            let mut arrival = Arrival::new();
            arrival.take(piece);
            let place = self.place(key, at, piece, &arrival).map_err(failed)?;
            let (place, _) = self.places.entry(key).or_insert((place, arrival));
            return place.push(at, piece, &self.spooler).map_err(failed);
        }
        let Some((place, arrival)) = self.places.get_mut(&key) else {
            return Ok(());
        };
        arrival.take(piece);
        place.push(at, piece, &self.spooler).map_err(failed)
    }

    fn read(&self, key: StreamKey) -> Result<Bytes, StoreError> {
        let failed = |why: String| StoreError {
            key,
            doing: "read",
            why,
        };
        let (file, len) = match self.places.get(&key) {
            None => return Err(failed("there is no such file".into())),
            Some((Place::Sent(body, len), _)) => return Ok(body.slice(..*len)),
            Some((Place::Log(left), _)) => return left.read_all().map_err(failed),
            Some((Place::File(file, len), _)) => (file, len),
        };
        let mapped = self.spooler.map(file, *len);
        mapped.map_err(|e| failed(e.to_string()))
    }

    fn finish(&mut self, key: StreamKey) -> Result<(Bytes, Option<Arrived>), StoreError> {
        match self.places.remove(&key) {
            Some((Place::Log(left), arrival)) => {
                let (front, rest) = left.finish();
                let arrived = arrival.finish().zip(rest);
                Ok((front, arrived.map(|(found, rest)| found.left(rest))))
            }
            Some(other) => {
                self.places.insert(key, other);
                let body = self.read(key)?;
                let arrival = self.places.remove(&key).map(|(_, arrival)| arrival);
                Ok((body, arrival.and_then(Arrival::finish)))
            }
            None => Ok((self.read(key)?, None)),
        }
    }

    fn discard(&mut self, key: StreamKey) {
        self.places.remove(&key);
    }
}

/// Maps by reading: for tests and databases without a mapper.
pub fn read_whole() -> MapFile {
    Arc::new(|file, len| {
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(Bytes::from(bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dromon_order::{Committed, CommittedBody, Part, RawMessage};
    use dromon_writeset::{Flags, KeyType, Uuid, WriteSet};

    fn header() -> Header {
        Header {
            flags: Flags::TRX_START | Flags::TRX_END,
            source: Uuid([1; 16]),
            trx_id: 7,
            conn_id: 8,
            last_seen: 9,
            prev_fragment: -1,
            chunk: 0,
        }
    }

    #[test]
    fn a_spooled_write_set_is_the_same_as_one_in_memory() {
        let dir = tempfile::tempdir().expect("a directory");
        let spooler = Spooler::new(dir.path(), read_whole());
        let mut keys = KeyCollector::new();
        keys.add(&[b"d", b"t", b"row"], KeyType::Exclusive)
            .expect("a key");
        let mut collected = Collected::default();
        let mut plain = Vec::new();
        for i in 0..50u32 {
            let chunk = vec![i as u8; 100_000 + i as usize];
            collected.push(&chunk, &spooler).expect("room");
            plain.extend_from_slice(&chunk);
        }
        assert!(collected.file.is_some(), "5 MB lie in a file");
        let encoded = collected.encode(&header(), &keys, &spooler);
        let Encoded {
            whole,
            payload,
            sums,
        } = encoded.expect("mapped");
        assert!(sums.expect("it lies in a file").are_of(&whole));
        assert_eq!(whole, dromon_writeset::encode(&header(), &keys, &plain));
        assert_eq!(payload, plain);
        let decoded = WriteSet::decode(whole).expect("whole");
        assert_eq!(decoded.payload().here().map(|p| &p[..]), Some(&plain[..]));
        assert_eq!(
            std::fs::read_dir(dir.path()).expect("there").count(),
            0,
            "unlinked"
        );
    }

    #[test]
    fn what_a_full_disk_did_not_take_is_not_encoded() {
        let dir = tempfile::tempdir().expect("a directory");
        let well = Spooler::new(dir.path(), read_whole());
        let mut full = well.clone();
        full.full = true;
        let keys = KeyCollector::new();
        let (small, large) = (vec![1; 3 << 20], vec![2; 2 << 20]);
        // It fails as the file is begun, and as it grows.
        for grows in [false, true] {
            let mut collected = Collected::default();
            collected.push(&small, &well).expect("room");
            let pushed = match grows {
                false => collected.push(&large, &full),
                true => {
                    collected.push(&large, &well).expect("room");
                    let on = full.create().expect("opened");
                    collected.file.as_mut().expect("a file").file = on;
                    collected.push(&small, &full)
                }
            };
            let kind = pushed.expect_err("the disk is full").kind();
            assert_eq!(kind, io::ErrorKind::StorageFull);
            assert!(collected.len() >= small.len() as u64, "nothing is dropped");
            // Nor when there is room again.
            assert!(collected.push(b"more", &well).is_err());
            let encoded = collected.encode(&header(), &keys, &well);
            let why = encoded.expect_err("a part is missing").to_string();
            assert!(why.contains("a part of it could not be kept"), "{why}");
        }
        // Something else of the transaction.
        let mut collected = Collected::default();
        collected.push(&small, &well).expect("room");
        collected.lacks("a key without parts".into());
        assert!(collected.encode(&header(), &keys, &well).is_err());
    }

    #[test]
    fn names_that_a_kill_has_left_are_in_nobodys_way() {
        let dir = tempfile::tempdir().expect("a directory");
        let name = |pid: u32, n: u32| format!("dromon-spool-{pid}-{n}.log");
        let others = ["dromon-0000000000000001.log", "dromon-spool-1-1.txt"];
        let own = [0, 1, 3].map(|n| name(std::process::id(), n));
        let all = own.iter().map(String::as_str).chain(others);
        all.for_each(|name| std::fs::write(dir.path().join(name), b"").expect("room"));
        let spooler = Spooler::new(dir.path(), read_whole());
        for _ in 0..3 {
            spooler.create().expect("there are other numbers");
        }
        let count = || std::fs::read_dir(dir.path()).expect("there").count();
        assert_eq!(count(), own.len() + others.len());
        std::fs::write(dir.path().join(name(1, 7)), b"").expect("room");
        spooler.remove_left();
        assert_eq!(count(), others.len());
        assert!(others.iter().all(|name| dir.path().join(name).exists()));
    }

    #[test]
    fn what_was_sent_to_the_disk_early_is_still_there() {
        let file = tempfile::tempfile().expect("a file");
        let piece: Vec<u8> = (0..3 * BEHIND / 2).map(|i| (i / 4096) as u8).collect();
        for i in 0..4 {
            let at = i * piece.len() as u64;
            write_behind(&file, &piece, at, LAZY + at).expect("written");
        }
        let mut read = vec![0; piece.len()];
        for i in 0..4 {
            let at = i * piece.len() as u64;
            file.read_exact_at(&mut read, at).expect("read");
            assert!(read == piece, "piece {i}");
        }
    }

    #[test]
    fn pieces_come_back_in_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut files = PieceFiles::new(Spooler::new(dir.path(), read_whole()));
        let key = StreamKey {
            origin: Uuid([3; 16]),
            stream: 5,
        };
        files.append(key, None, b"ab").expect("room");
        files.append(key, None, b"cde").expect("room");
        assert_eq!(files.read(key).expect("there"), &b"abcde"[..]);
        let all = Bytes::from_static(b"abcde");
        assert_eq!(files.finish(key), Ok((all, None)), "no write set");
        files.discard(key);
        assert!(files.read(key).is_err());
        let whole = dromon_writeset::encode(&header(), &KeyCollector::new(), &[7; 5000]);
        (whole.chunks(999)).for_each(|p| files.append(key, None, p).expect("room"));
        let (read, arrived) = files.finish(key).expect("there");
        let arrived = arrived.expect("a write set");
        let decoded = WriteSet::decode_arrived(read, &arrived);
        assert_eq!(decoded, WriteSet::decode(whole));
    }

    /// Three payloads that come back in pieces, of which the second piece of one is not
    /// what was sent.
    #[test]
    fn what_was_sent_from_here_is_not_written_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let spooler = Spooler::new(dir.path(), read_whole());
        let bodies: Vec<Bytes> = (1..=3u8)
            .map(|n| Bytes::from(vec![n; SPOOL_ABOVE + 1000]))
            .collect();
        assert!(spooler.sending(&bodies[0].slice(..SPOOL_ABOVE)).is_none());
        let mut sending: Vec<_> = bodies.iter().map(|b| spooler.sending(b)).collect();
        let key = |stream| StreamKey {
            origin: Uuid([3; 16]),
            stream,
        };
        let mut files = PieceFiles::new(spooler);
        let mut come = |stream: usize, piece: &[u8]| {
            (files.append(key(stream as u64), None, piece)).expect("room");
            let is_file = matches!(files.places[&key(stream as u64)].0, Place::File(..));
            (files.read(key(stream as u64)).expect("there"), is_file)
        };
        for (n, body) in bodies.iter().enumerate() {
            assert_eq!(come(n, &body[..70_000]), (body.slice(..70_000), false));
        }
        // Whoever sent it need not wait any more.
        sending.remove(0);
        let (all, is_file) = come(0, &bodies[0][70_000..]);
        assert!(all == bodies[0] && !is_file);
        let (all, is_file) = come(1, b"another");
        assert!(is_file && all.starts_with(&bodies[1][..70_000]) && all.ends_with(b"another"));
        assert_eq!(all.len(), 70_007);
        assert_eq!(come(1, b"and").0.len(), 70_010);
        // More than was sent.
        come(2, &bodies[2][70_000..]);
        assert!(come(2, b"x").1);
        // What is not on its way any more is that of somebody else.
        assert!(come(7, &bodies[0][..70_000]).1);
        drop(sending);
        assert!(come(8, &bodies[2][..70_000]).1);
    }
    /// Rows of one table in events of 50 bytes.
    fn rows(n: usize) -> Vec<u8> {
        let event = |kind: u8, len: usize, flags: u8| {
            let mut e = vec![0; len];
            e[4] = kind;
            e[9..13].copy_from_slice(&(len as u32).to_le_bytes());
            if len > 25 {
                e[25] = flags;
            }
            e
        };
        let mut all = event(19, 22, 0);
        (1..=n).for_each(|i| all.extend(event(23, 50, u8::from(i == n))));
        all
    }

    fn key(stream: u64) -> StreamKey {
        StreamKey {
            origin: Uuid([3; 16]),
            stream,
        }
    }

    fn may_be_cut(keys: &KeyCollector) -> Bytes {
        let header = Header {
            chunk: 7,
            ..header()
        };
        dromon_writeset::encode(&header, keys, &rows(300))
    }

    #[test]
    fn what_may_be_cut_is_left_in_the_log() {
        let dir = tempfile::tempdir().expect("a directory");
        let entries: Arc<Mutex<BTreeMap<u64, Committed>>> = Arc::default();
        let theirs = entries.clone();
        let log = PieceLog {
            read: Arc::new(move |from, to| {
                let entries = lock(&theirs);
                Ok(entries.range(from..=to).map(|(_, e)| e.clone()).collect())
            }),
            left: Arc::default(),
        };
        let spooler = Spooler::new(dir.path(), read_whole());
        let mut files = PieceFiles::with_log(spooler.clone(), log.clone());
        let come = |files: &mut PieceFiles, stream, kind, whole: &Bytes, known: bool| {
            for (i, piece) in whole.chunks(999).enumerate() {
                let mut entries = lock(&entries);
                let index = entries.last_key_value().map_or(1, |(index, _)| index + 1);
                let body = Bytes::copy_from_slice(piece);
                let message = RawMessage {
                    origin: key(stream).origin,
                    oseq: index,
                    kind,
                    tag: 0,
                    part: Part::Piece {
                        stream,
                        i: i as u32,
                        n: 99,
                    },
                    body,
                };
                let body = CommittedBody::Message(message);
                entries.insert(
                    index,
                    Committed {
                        index,
                        term: 1,
                        leader: Default::default(),
                        body,
                    },
                );
                let at = known.then_some(PieceAt { index, kind });
                drop(entries);
                files.append(key(stream), at, piece).expect("room");
            }
            matches!(files.places[&key(stream)].0, Place::Log(_))
        };
        let mut keys = KeyCollector::new();
        for n in 0..100u32 {
            let n = n.to_be_bytes();
            keys.add(&[b"d", b"t", &n], KeyType::Exclusive)
                .expect("a key");
        }
        let whole = may_be_cut(&keys);
        assert!(come(&mut files, 1, kind::WRITE_SET, &whole, true));
        assert_eq!(files.read(key(1)).as_ref(), Ok(&whole));
        let (front, arrived) = files.finish(key(1)).expect("there");
        let arrived = arrived.expect("a write set");
        let expected = WriteSet::decode(whole.clone()).expect("right");
        assert_eq!(front, whole[..expected.payload_offset()]);
        let got = WriteSet::decode_arrived(front, &arrived).expect("right");
        assert_eq!(got.head(), expected.head());
        let plan = arrived.plan(&got, 7).expect("looked for").expect("rows");
        let kept = got.payload().elsewhere().expect("it is in the log");
        let payload = expected.payload().here().expect("decoded whole");
        for n in 0..plan.len() {
            let chunk = plan.chunk(payload, n).expect("there");
            assert_eq!(plan.read_chunk(kept, n), Ok(chunk));
        }
        assert_eq!(spooler.collect(kept).as_ref(), Ok(payload));
        assert_eq!(log.left.first(), Some(1), "as long as somebody has it");
        drop((got, arrived));
        assert_eq!(log.left.first(), None);

        // What of it came with a checkpoint, what is no write set, or only goes whole.
        assert!(!come(&mut files, 2, kind::WRITE_SET, &whole, false));
        assert!(!come(&mut files, 3, kind::CONTROL, &whole, true));
        let plain = dromon_writeset::encode(&header(), &keys, payload);
        assert!(!come(&mut files, 4, kind::WRITE_SET, &plain, true));
        // Whoever sent it has it.
        let sent = Bytes::from([&whole[..], &vec![0; SPOOL_ABOVE]].concat());
        let sending = spooler.sending(&sent);
        assert!(!come(&mut files, 5, kind::WRITE_SET, &whole, true));
        drop(sending);
        // Half of it: dropped, it holds nothing.
        assert!(come(
            &mut files,
            6,
            kind::WRITE_SET,
            &whole.slice(..5000),
            true
        ));
        assert!(log.left.first().is_some());
        files.discard(key(6));
        assert_eq!(log.left.first(), None);
        // Without a log to read from.
        let mut files = PieceFiles::new(spooler);
        assert!(!come(&mut files, 7, kind::WRITE_SET, &whole, true));
    }

    #[test]
    fn too_many_keys_are_in_a_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let spooler = Spooler::new(dir.path(), read_whole());
        let log = PieceLog {
            read: Arc::new(|_, _| Err("nobody asks".into())),
            left: Arc::default(),
        };
        let mut keys = KeyCollector::with_escalation(usize::MAX);
        let mut table = [7; 250];
        for n in 0..(FRONT_MAX as u32 / 250) {
            table[..4].copy_from_slice(&n.to_be_bytes());
            keys.add(&[b"d", &table, b"r"], KeyType::Exclusive)
                .expect("a key");
        }
        let whole = may_be_cut(&keys);
        assert!(whole.len() as u64 > FRONT_MAX);
        let mut files = PieceFiles::with_log(spooler, log);
        for (i, piece) in whole.chunks(64 << 10).enumerate() {
            let at = PieceAt {
                index: i as u64 + 1,
                kind: kind::WRITE_SET,
            };
            files.append(key(1), Some(at), piece).expect("room");
        }
        let (body, arrived) = files.finish(key(1)).expect("there");
        assert_eq!(body, whole);
        assert_eq!(arrived.expect("a write set").kept(), None);
    }
}
