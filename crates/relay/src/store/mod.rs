//! Stored events: binlog files as a server writes them, crash-safe, with an index.
//!
//! ```text
//!   ingest ──event──> Store ── buffer ──write, fsync──> relay-bin.000007
//!                       │  (a group that will not be finished is cut off)
//!                       v
//!                     View: what is on the disk ──> Cursor for each replica
//!                       places: states at file beginnings and points
//!                       tail: the newest bytes, once, in memory
//! ```
//!
//! Promises:
//! 1. What [`Store::flush`] returned for is on the disk, and only that is seen by readers.
//! 2. After a crash the files end with a whole group, and everything flushed is there.
//! 3. Damage is named with file and byte, never served, never mended by guessing.
//! 4. After the first failed write or fsync nothing more is stored.

mod beside;
mod error;
mod halt;
mod history;
mod lacks;
mod mark;
mod names;
mod places;
mod points;
mod purge;
mod recover;
mod scan;
mod stamps;
mod tail;
mod view;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use dromon_binlog::{
    BinlogState, CRC_LEN, Checksum, Event, FILE_MAGIC, Format, GroupName, Gtid, GtidList, GtidSet,
    LogicalClock, Maker, Place as At, format_for_replica, place,
};
use dromon_log::{Device, DeviceFile};

use beside::Beside;
use points::Pace;
use recover::{check_kind, check_prefix, damaged, open_mark, recover_last};

pub use beside::{GroupKey, HintReader, Hinted, Said, beside};
pub use error::StoreError;
pub use halt::HALTED;
pub use history::{History, Kind};
pub use lacks::Lacks;
pub use mark::Place;
pub use names::{file_name, file_number, file_prefix};
pub use places::{Begin, FileEntry, Places, Refused, Text, Wanted};
pub use points::Point;
pub use purge::{Candidate, Limits, Verdict, verdict};
pub(crate) use scan::ended;
pub use scan::{Head, Rest, Scan};
pub use stamps::Stamps;
pub use tail::{Chunk, Tail};
use view::Grown;
pub use view::{Cursor, Found, Listed, Next, Purged, Stored, View};

/// Bytes of a group that is not whole kept in memory before they are written.
const SPILL: usize = 4 << 20;

/// How events are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Of file names.
    pub prefix: String,
    /// A file of this size gets a successor before the next group.
    pub file_max: u64,
    /// Bytes of the newest events in memory.
    pub tail_max: usize,
    /// Bytes between places of the index; those that take much memory are further apart.
    pub point_every: u64,
    /// Of the events that the relay makes.
    pub server_id: u32,
    /// What the files are.
    pub kind: Kind,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            prefix: "relay-bin".into(),
            file_max: 256 << 20,
            tail_max: 32 << 20,
            point_every: 256 << 10,
            server_id: 1,
            kind: Kind::MariaDb,
        }
    }
}

/// What was found when the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Cut off at the end of the last file: its name, from where, how many bytes, why.
    pub torn: Option<(String, u64, u64, String)>,
    /// The mark names a file that is not there: files were moved away.
    pub shorter: Option<String>,
}

/// Writes events. There is one for a directory.
pub struct Store {
    device: Arc<dyn Device>,
    options: StoreOptions,
    view: Arc<View>,
    mark: Arc<dyn DeviceFile>,
    open: Option<OpenFile>,
    /// Of the mark, as long as there is no file. The first one has the next number: what was moved away
    /// keeps its own, by which replicas may ask, and in the list of what they need.
    before: Place,
    state: History,
    time: u32,
    /// Appended since the last flush.
    groups: u64,
    /// When the first of them was made, and the latest.
    made: Option<(u32, u32)>,
    failed: Option<Arc<StoreError>>,
}

struct OpenFile {
    number: u64,
    name: String,
    file: Arc<dyn DeviceFile>,
    format: Format,
    format_event: Vec<u8>,
    /// Bytes handed to the file.
    written: u64,
    /// What follows them.
    buf: Vec<u8>,
    /// All before is whole groups.
    settled: u64,
    /// All before is on the disk, and seen.
    published: u64,
    /// All groups of MySQL before it.
    start: GtidSet,
    points: Vec<Point>,
    pace: Pace,
    /// Where the newest group begins.
    group_at: u64,
    /// The checksum of its first event.
    group_first: u32,
    /// Of groups that are not shown yet.
    hints: Vec<Hinted>,
    beside: Beside,
}

impl OpenFile {
    fn end(&self) -> u64 {
        self.written + self.buf.len() as u64
    }
}

/// An event's part in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It begins one.
    Begin,
    /// It stands within one.
    Within,
    /// It ends one, of this name and time.
    End(GroupName, u32),
    /// It is one.
    Alone(GroupName, u32),
}

impl Store {
    /// Opens the files of a directory, mends what a crash left, and says what that was. If there
    /// are none, the first file will begin with `start`. If the disk is too full to go on, or
    /// descriptors are short, or it was [halted](Store::halt), it is open and has failed: see [`Store::failure`].
    pub fn open(
        device: Arc<dyn Device>,
        options: StoreOptions,
        start: impl Into<History>,
    ) -> Result<(Store, Opened), StoreError> {
        let place = device.place();
        let names = device.list().map_err(StoreError::io("list", &place))?;
        let mut numbers: Vec<u64> = names
            .iter()
            .filter_map(|name| file_number(&options.prefix, name))
            .collect();
        numbers.sort_unstable();
        if let Some(gap) = numbers.windows(2).find(|w| w[0] + 1 != w[1]) {
            return Err(StoreError::Missing {
                file: file_name(&options.prefix, gap[0] + 1),
            });
        }
        let mark = open_mark(&*device)?;
        let mut bytes = [0; mark::LEN];
        let n = mark
            .read_at(&mut bytes, 0)
            .map_err(StoreError::io("read", mark::NAME))?;
        let safe = mark::decode(&bytes[..n]).unwrap_or_default();
        if numbers.is_empty() && safe.file > 0 {
            check_prefix(&*device, &names, &options.prefix)?;
        }
        check_kind(&*device, &options, numbers.first().copied())?;
        let mut opened = Opened::default();
        if numbers.last().is_none_or(|last| *last < safe.file) && safe.file > 0 {
            opened.shorter = Some(file_name(&options.prefix, safe.file));
        }
        let last = recover_last(&device, &options, &mut numbers, safe, &mut opened)?;
        let mut files = VecDeque::new();
        for number in &numbers {
            let name = file_name(&options.prefix, *number);
            if let Some((last, scan, head)) = last.as_ref().filter(|l| l.0.number == *number) {
                files.push_back(FileEntry {
                    number: *number,
                    start: head.start.clone(),
                    start_time: head.since(),
                    len: last.settled,
                    list: head.list(),
                    body: head.body,
                    points: scan.points.clone(),
                    indexed: true,
                });
                continue;
            }
            let file = device.open(&name).map_err(StoreError::io("open", &name))?;
            let len = file.len().map_err(StoreError::io("look at", &name))?;
            let head = scan::head(&*file, &name, len, options.kind)?
                .map_err(|rest| damaged(name.clone(), rest))?;
            files.push_back(FileEntry {
                number: *number,
                start_time: head.since(),
                list: head.list(),
                start: head.start,
                len,
                body: head.body,
                points: Vec::new(),
                indexed: false,
            });
        }
        let (state, time, newest) = match &last {
            Some((_, scan, _)) => (scan.state.clone(), scan.time, scan.newest),
            None => (start.into(), 0, 0),
        };
        let places = Places::new(files, state.clone(), newest);
        let view = Arc::new(View::new(
            Arc::clone(&device),
            options.prefix.clone(),
            options.point_every,
            options.tail_max,
            options.kind,
            places,
        ));
        let finished = last.as_ref().is_some_and(|(_, scan, _)| scan.finished);
        // Of a mirror the numbers are the primary's, and one may come again.
        let before = match options.kind {
            Kind::Mirror => Place::default(),
            Kind::MariaDb | Kind::MySql => safe,
        };
        let mut store = Store {
            device,
            options,
            view,
            mark,
            open: last.map(|(open, _, _)| open),
            before,
            state,
            time,
            groups: 0,
            made: None,
            failed: None,
        };
        if opened.shorter.is_some() {
            // Before a file of the same number is made, of which the old mark would say too much.
            store.write_mark()?;
            store.sync_mark()?;
        }
        // Of a mirror the primary says what follows.
        let ready = match finished && store.options.kind != Kind::Mirror {
            true => store.successor(),
            false => store.write_mark(),
        };
        match ready {
            // What is here can be served, and room be made by purging; what is short comes back.
            Err(error) if error.passes() => {}
            ready => ready?,
        }
        if let (None, Some(halted)) = (&store.failed, halt::marked(&*store.device)?) {
            store.failed = Some(store.view.fail(&halted));
        }
        Ok((store, opened))
    }

    /// Why it takes nothing more.
    pub fn failure(&self) -> Option<&StoreError> {
        self.failed.as_deref()
    }

    /// Takes nothing more, for this reason, and does not after a restart either, until the operator
    /// removes the mark. What is stored is served.
    pub fn halt(&mut self, why: &str) -> Result<StoreError, StoreError> {
        let marked = halt::mark(&*self.device, why);
        let halted = StoreError::Halted { why: why.into() };
        self.failed = Some(self.view.fail(&halted));
        marked.map(|()| halted)
    }

    /// What readers see.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view)
    }

    /// All whole groups appended, whether or not they are on the disk.
    pub fn state(&self) -> &BinlogState {
        &self.state.mariadb
    }

    /// The same, of MySQL.
    pub fn executed(&self) -> &GtidSet {
        &self.state.mysql
    }

    /// Both.
    pub fn history(&self) -> &History {
        &self.state
    }

    /// As text for messages: the GTIDs that are here, of the kind that there are.
    pub fn has(&self) -> String {
        match self.options.kind {
            Kind::MySql => self.state.mysql.shown(1000),
            Kind::MariaDb | Kind::Mirror => self.state.mariadb.position().to_string(),
        }
    }

    /// What the files are.
    pub fn kind(&self) -> Kind {
        self.options.kind
    }

    /// Whether the files equal those of a primary without GTIDs.
    pub fn is_mirror(&self) -> bool {
        self.options.kind == Kind::Mirror
    }

    /// Of the current file.
    pub fn format(&self) -> Option<&Format> {
        self.open.as_ref().map(|open| &open.format)
    }

    /// Whether a group has begun and not ended.
    pub fn in_group(&self) -> bool {
        self.open.as_ref().is_some_and(|o| o.settled < o.end())
    }

    /// The end of what was appended, whether or not it is whole and on the disk.
    pub fn end(&self) -> Option<Place> {
        let open = self.open.as_ref()?;
        Some(Place {
            file: open.number,
            at: open.end(),
        })
    }

    /// The number of the file that will be begun, if there is none. Of a mirror the primary says it.
    pub fn first_file(&self) -> Option<u64> {
        (self.open.is_none() && !self.is_mirror()).then_some(self.before.file + 1)
    }

    /// Whether it is time for the next file. Never for a mirror: its files end where the primary's do.
    pub fn is_full(&self) -> bool {
        let full = |o: &OpenFile| o.end() >= self.options.file_max && o.settled == o.end();
        !self.is_mirror() && self.open.as_ref().is_some_and(full)
    }

    /// Ends the current file, if there is one, and begins the next one with this format
    /// description, which speaks of CRC-32.
    pub fn begin_file(&mut self, format_event: &[u8]) -> Result<(), StoreError> {
        self.alive()?;
        self.abandon()?;
        // What is whole is seen even if there is no room for another file.
        self.flush()?;
        let mut ended = None;
        let number = match &self.open {
            Some(open) => {
                let next = file_name(&self.options.prefix, open.number + 1);
                let rotate = Maker {
                    server_id: self.options.server_id,
                    timestamp: self.time,
                    checksum: Checksum::Crc32,
                    place: At::At(open.end()),
                }
                .rotate(&next, FILE_MAGIC.len() as u64);
                let number = open.number + 1;
                self.append_settled(&rotate);
                ended = self.bring()?;
                number
            }
            None => self.before.file + 1,
        };
        self.new_file(number, format_event, ended)
    }

    /// As [`Store::begin_file`], with the format of the current file.
    pub fn rotate(&mut self) -> Result<(), StoreError> {
        let Some(open) = &self.open else {
            return Err(StoreError::NoFormat);
        };
        let event = Event::parse(&open.format_event, Checksum::Crc32)?;
        let format_event = format_for_replica(&event, false)?;
        self.begin_file(&format_event)
    }

    /// Begins the mirror of the primary's file of this number with this format description, which
    /// speaks of CRC-32. It follows the current one, if there is one.
    pub fn begin_mirror(&mut self, number: u64, format_event: &[u8]) -> Result<(), StoreError> {
        self.alive()?;
        self.abandon()?;
        self.flush()?;
        debug_assert!(self.open.as_ref().is_none_or(|o| o.number + 1 == number));
        self.new_file(number, format_event, None)
    }

    /// Adds an event that belongs to no group.
    pub fn append_between(&mut self, mut raw: Vec<u8>) -> Result<(), StoreError> {
        if self.in_group() {
            return self.append(raw, Part::Within);
        }
        self.alive()?;
        let Some(open) = &self.open else {
            return Err(StoreError::NoFormat);
        };
        place(&mut raw, Checksum::Crc32, open.end())?;
        self.append_settled(&raw);
        Ok(())
    }

    /// The current file ends with a rotate already.
    fn successor(&mut self) -> Result<(), StoreError> {
        let Some(open) = &self.open else {
            return Err(StoreError::NoFormat);
        };
        let event = Event::parse(&open.format_event, Checksum::Crc32)?;
        let format_event = format_for_replica(&event, false)?;
        self.new_file(open.number + 1, &format_event, None)
    }

    /// `ended`: the end of the file before, which is seen with the new one and not without it: who has
    /// read the new one's name waits for its events.
    fn new_file(
        &mut self,
        number: u64,
        format_event: &[u8],
        ended: Option<Grown>,
    ) -> Result<(), StoreError> {
        let name = file_name(&self.options.prefix, number);
        let mut buf = FILE_MAGIC.to_vec();
        let mut format_event = format_event.to_vec();
        place(&mut format_event, Checksum::Crc32, buf.len() as u64)?;
        let format = Format::decode(&format_event)?;
        buf.extend_from_slice(&format_event);
        let list = buf.len() as u64;
        // All groups before it are seen by now.
        let newest = self.view.newest();
        let maker = Maker {
            server_id: self.options.server_id,
            timestamp: newest,
            checksum: Checksum::Crc32,
            place: At::At(list),
        };
        match self.options.kind {
            Kind::Mirror => {}
            Kind::MariaDb => {
                buf.extend_from_slice(&maker.gtid_list(&GtidList::of(&self.state.mariadb)));
            }
            Kind::MySql => buf.extend_from_slice(&maker.previous_gtids(&self.state.mysql)),
        }
        let made = self.make(&name, &buf);
        let file = self.or_end(made)?;
        let body = buf.len() as u64;
        self.view.begun(
            FileEntry {
                number,
                start: self.state.clone(),
                start_time: newest,
                len: body,
                list,
                body,
                points: Vec::new(),
                indexed: true,
            },
            Chunk {
                place: Place {
                    file: number,
                    at: 0,
                },
                bytes: buf.into(),
            },
            ended,
        );
        self.open = Some(OpenFile {
            number,
            name,
            file,
            format,
            format_event,
            written: body,
            buf: Vec::new(),
            settled: body,
            published: body,
            start: self.state.mysql.clone(),
            points: Vec::new(),
            pace: Pace::new(self.options.point_every, body),
            group_at: body,
            group_first: 0,
            hints: Vec::new(),
            beside: Beside::of(number),
        });
        self.write_mark()?;
        self.sync_mark()
    }

    fn make(&self, name: &str, bytes: &[u8]) -> Result<Arc<dyn DeviceFile>, StoreError> {
        let file = self
            .device
            .create(name)
            .map_err(StoreError::io("create", name))?;
        // Of a file that had this number before, and was moved away.
        if let Some(number) = file_number(&self.options.prefix, name) {
            beside::remove(&*self.device, number)?;
        }
        file.write_at(&mut [IoSlice::new(bytes)], 0)
            .map_err(StoreError::io("write", name))?;
        file.sync_all().map_err(StoreError::io("sync", name))?;
        self.device
            .sync_dir()
            .map_err(StoreError::io("sync the directory of", name))?;
        Ok(file)
    }

    /// Adds an event, which ends with a CRC-32. Its place is written into it.
    pub fn append(&mut self, mut raw: Vec<u8>, part: Part) -> Result<(), StoreError> {
        self.alive()?;
        let Some(open) = &mut self.open else {
            return Err(StoreError::NoFormat);
        };
        let at = open.end();
        place(&mut raw, Checksum::Crc32, at)?;
        if let Part::Begin | Part::Alone(..) = part {
            open.group_at = at;
            open.group_first = checksum_of(&raw);
        }
        if let Part::Begin | Part::Alone(..) = part {
            let point = open.pace.point(at, &self.state, &open.start, self.time);
            open.points.extend(point);
        }
        open.buf.extend_from_slice(&raw);
        if let Part::End(name, time) | Part::Alone(name, time) = part {
            open.settled = open.end();
            self.state.add(name);
            self.time = time;
            self.groups += 1;
            let (first, latest) = self.made.unwrap_or((time, time));
            self.made = Some((first, latest.max(time)));
        }
        if self.open.as_ref().is_some_and(|o| o.buf.len() >= SPILL) {
            self.spill()?;
        }
        Ok(())
    }

    /// What replicas shall see of the group of MariaDB that was appended last, which is whole.
    pub fn hint(&mut self, gtid: Gtid, commit_id: Option<u64>) {
        self.hinted(|_| (GroupKey::Gtid(gtid), Said::Batch(commit_id)));
    }

    /// The same of a group of MySQL.
    pub fn hint_clock(&mut self, clock: LogicalClock) {
        self.hinted(|first| (GroupKey::First(first), Said::Clock(clock)));
    }

    fn hinted(&mut self, what: impl FnOnce(u32) -> (GroupKey, Said)) {
        if let Some(open) = self.open.as_mut().filter(|o| o.settled == o.end()) {
            let (key, said) = what(open.group_first);
            open.hints.push(Hinted {
                at: open.group_at,
                key,
                said,
            });
        }
    }

    fn append_settled(&mut self, raw: &[u8]) {
        if let Some(open) = &mut self.open {
            open.buf.extend_from_slice(raw);
            open.settled = open.end();
        }
    }

    /// Takes back the group that is open.
    pub fn abandon(&mut self) -> Result<(), StoreError> {
        self.alive()?;
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        if let Some(keep) = open.settled.checked_sub(open.written) {
            open.buf.truncate(keep as usize);
        } else {
            open.buf.clear();
            open.written = open.settled;
            // A mirror's next file may begin without a word in this one, whose length counts then.
            let cut = open.file.set_len(open.settled);
            let cut = cut.and_then(|()| open.file.sync_data());
            let cut = cut.map_err(StoreError::io("cut", &open.name));
            self.or_end(cut)?;
        }
        if let Some(open) = &mut self.open {
            let settled = open.settled;
            open.points.retain(|p| p.at < settled);
            open.pace.back(open.points.last().map(|p| p.at));
        }
        Ok(())
    }

    /// Writes without waiting for the disk.
    fn spill(&mut self) -> Result<(), StoreError> {
        self.flush_settled_first()?;
        let len = self.open.as_ref().map_or(0, |o| o.buf.len());
        let written = self.write_buf(len);
        self.or_end(written)
    }

    /// What is whole must not wait for a large group behind it.
    fn flush_settled_first(&mut self) -> Result<(), StoreError> {
        match &self.open {
            Some(open) if open.settled > open.published => self.flush(),
            _ => Ok(()),
        }
    }

    /// Writes the first `len` bytes of what is in memory.
    fn write_buf(&mut self, len: usize) -> Result<(), StoreError> {
        let Some(open) = self.open.as_mut().filter(|_| len > 0) else {
            return Ok(());
        };
        open.file
            .write_at(&mut [IoSlice::new(&open.buf[..len])], open.written)
            .map_err(StoreError::io("write", &open.name))?;
        open.written += len as u64;
        open.buf.drain(..len);
        Ok(())
    }

    /// Brings everything whole to the disk, then shows it to readers.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        if let Some(grown) = self.bring()? {
            self.view.publish(grown);
        }
        Ok(())
    }

    /// Brings everything whole to the disk. Gives what readers are to be shown of it.
    fn bring(&mut self) -> Result<Option<Grown>, StoreError> {
        self.alive()?;
        let Some(open) = &mut self.open else {
            return Ok(None);
        };
        if open.settled == open.published {
            return Ok(None);
        }
        // Of a group that is not whole nothing is written here: what follows of it would not be in memory any more,
        // and all replicas would read the file.
        let to = (open.settled - open.written) as usize;
        let from = open.published.checked_sub(open.written);
        let chunk = from.map(|from| Chunk {
            place: Place {
                file: open.number,
                at: open.published,
            },
            bytes: open.buf[from as usize..to].into(),
        });
        let written = self.write_buf(to);
        self.or_end(written)?;
        let synced = match &self.open {
            Some(open) => open
                .file
                .sync_data()
                .map_err(StoreError::io("sync", &open.name)),
            None => Ok(()),
        };
        self.or_end(synced)?;
        if let Some(open) = &mut self.open {
            let hints = std::mem::take(&mut open.hints);
            let added = open.beside.add(&*self.device, &hints);
            self.or_end(added)?;
        }
        let Some(open) = &mut self.open else {
            return Ok(None);
        };
        open.published = open.settled;
        let settled = open.settled;
        let later = open.points.iter().position(|p| p.at >= settled);
        let rest = open.points.split_off(later.unwrap_or(open.points.len()));
        let points = std::mem::replace(&mut open.points, rest);
        self.write_mark()?;
        Ok(Some(Grown {
            len: settled,
            chunk,
            points,
            position: self.state.mariadb.position(),
            state: Arc::new(self.state.clone()),
            groups: std::mem::take(&mut self.groups),
            made: self.made.take().unwrap_or_default(),
        }))
    }

    fn write_mark(&mut self) -> Result<(), StoreError> {
        let place = self.open.as_ref().map_or(self.before, |open| Place {
            file: open.number,
            at: open.published,
        });
        let bytes = mark::encode(place);
        let written = self.mark.write_at(&mut [IoSlice::new(&bytes)], 0);
        self.or_end(written.map_err(StoreError::io("write", mark::NAME)))
    }

    /// Cuts off what is not whole, brings the rest to the disk. Readers are told that the end
    /// has come.
    pub fn close(mut self) -> Result<(), StoreError> {
        let result = self.finish();
        self.view.close();
        result
    }

    fn finish(&mut self) -> Result<(), StoreError> {
        self.abandon()?;
        self.flush()?;
        self.sync_mark()
    }

    fn sync_mark(&mut self) -> Result<(), StoreError> {
        let synced = self.mark.sync_data();
        self.or_end(synced.map_err(StoreError::io("sync", mark::NAME)))
    }

    fn alive(&self) -> Result<(), StoreError> {
        match &self.failed {
            None => Ok(()),
            Some(cause) => Err(StoreError::Ended(Arc::clone(cause))),
        }
    }

    /// After a failure the store takes nothing more: a second fsync may succeed without having
    /// stored anything.
    fn or_end<T>(&mut self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &result {
            self.failed = Some(self.view.fail(error));
        }
        result
    }
}

/// The CRC-32 with which a stored event ends.
pub fn checksum_of(raw: &[u8]) -> u32 {
    let at = raw.len().saturating_sub(CRC_LEN);
    raw[at..]
        .first_chunk()
        .map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
