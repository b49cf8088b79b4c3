//! The stored files as their readers see them: what is on the disk, and nothing else.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dromon_binlog::{BinlogState, Cut, EVENT_MAX, Grouper, GtidSet, Position, cut_event};
use dromon_log::{Device, DeviceFile};

use super::beside::{self, HintReader};
use super::error::StoreError;
use super::history::{History, Kind};
use super::mark::Place;
use super::names::{file_name, file_number};
use super::places::{Begin, FileEntry, Places, Refused};
use super::points::Point;
use super::purge::{Candidate, Limits, Verdict, verdict};
use super::scan::{Events, Head, ended, head, scan};
use super::stamps::{Stamps, since};
use super::tail::{Chunk, Tail};
use crate::clock::Clock;

/// Bytes read from a file at once.
const PIECE: usize = 256 << 10;

/// What readers and the writer share.
pub struct View {
    device: Arc<dyn Device>,
    prefix: String,
    point_every: u64,
    kind: Kind,
    shared: Mutex<Shared>,
    grown: Condvar,
    /// That of [`Stamps`].
    clock: Clock,
}

struct Shared {
    places: Places,
    tail: Tail,
    stamps: Stamps,
    /// When the latest group was made, in seconds since 1970, if that can be.
    made: u32,
    /// Groups, bytes and fsyncs since the start.
    stored: Stored,
    failed: Option<Arc<StoreError>>,
    closed: bool,
}

/// Milliseconds since 1970.
fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(i64::MAX)
}

fn seconds(unix_ms: i64) -> u32 {
    u32::try_from(unix_ms / 1000).unwrap_or(u32::MAX)
}

/// When what was here before the start was committed, as far as is known without reading it: at the
/// earliest when the file was begun, or a place in it was reached.
fn of_before(places: &Places, kind: Kind, unix_ms: i64) -> Stamps {
    let mut stamps = Stamps::default();
    let mut made = 0;
    let mut up_to = |state: &History, place: Place, next: u32| {
        let position = match kind.by_place() {
            true => place.as_position(),
            false => state.mariadb.position(),
        };
        stamps.came(since(0, unix_ms, made), position);
        made = next.max(made);
    };
    for file in places.files() {
        let number = file.number;
        let place = |at| Place { file: number, at };
        up_to(&file.start, place(0), file.start_time);
        for point in &file.points {
            up_to(&point.state, place(point.at), point.time);
        }
    }
    up_to(places.state(), places.end(), 0);
    stamps
}

impl Shared {
    /// Gives what is to be let go when nobody is kept waiting by that.
    fn grown(&mut self, grown: Grown, now: i64, kind: Kind) -> Arc<History> {
        self.stored.groups += grown.groups;
        self.stored.bytes += grown.len.saturating_sub(self.places.end().at);
        self.stored.syncs += 1;
        let Grown { len, points, .. } = grown;
        let (first, latest) = grown.made;
        let unix_ms = unix_ms();
        let newest = latest.min(seconds(unix_ms));
        let before = self.places.grown(len, points, grown.state, newest);
        let came = match kind.by_place() {
            true => self.places.end().as_position(),
            false => grown.position,
        };
        // Two seconds: clocks differ. A transaction may be made with any time.
        let possible = |time: u32| i64::from(time) * 1000 <= unix_ms + 2000;
        let made = Some(first).filter(|time| possible(*time)).unwrap_or(0);
        self.made = self.made.max(made);
        self.stamps.came(since(now, unix_ms, self.made), came);
        let made = Some(latest).filter(|time| possible(*time)).unwrap_or(0);
        self.made = self.made.max(made);
        match grown.chunk {
            Some(chunk) => self.tail.push(chunk),
            None => self.tail.clear(),
        }
        before
    }
}

/// What was added to the last file.
pub(super) struct Grown {
    /// Its new end.
    pub len: u64,
    /// The bytes before that, if they are still in memory.
    pub chunk: Option<Chunk>,
    /// Places in them.
    pub points: Vec<Point>,
    /// All groups up to there.
    pub state: Arc<History>,
    /// The last ones of it.
    pub position: Position,
    /// Groups in it.
    pub groups: u64,
    /// When the first of them was made, and the latest, in seconds since 1970.
    pub made: (u32, u32),
}

/// A file, for lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Its bytes that are on the disk.
    pub bytes: u64,
}

/// What was stored since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Groups.
    pub groups: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Times that something was brought to the disk.
    pub syncs: u64,
}

/// Where a replica begins.
#[derive(Debug)]
pub struct Found {
    /// What to leave out from there on, and the place itself; `None`: there is no file yet.
    pub begin: Option<Begin>,
    /// A file that had to be read through and is damaged.
    pub damage: Option<StoreError>,
}

impl View {
    pub(super) fn new(
        device: Arc<dyn Device>,
        prefix: String,
        point_every: u64,
        tail_max: usize,
        kind: Kind,
        mut places: Places,
    ) -> View {
        let unix_ms = unix_ms();
        places.came_by(seconds(unix_ms));
        View {
            device,
            prefix,
            point_every,
            kind,
            clock: Clock::default(),
            shared: Mutex::new(Shared {
                stamps: of_before(&places, kind, unix_ms),
                made: places.newest(),
                stored: Stored::default(),
                places,
                tail: Tail::new(tail_max),
                failed: None,
                closed: false,
            }),
            grown: Condvar::new(),
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the files equal the primary's, and have no GTIDs.
    pub fn is_mirror(&self) -> bool {
        self.kind == Kind::Mirror
    }

    /// What the files are.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What the names of the files begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The name of a file by its number.
    pub fn name(&self, number: u64) -> String {
        file_name(&self.prefix, number)
    }

    /// The number of a file by its name.
    pub fn number(&self, name: &str) -> Option<u64> {
        file_number(&self.prefix, name)
    }

    /// All groups that are on the disk or were purged.
    pub fn state(&self) -> BinlogState {
        let state = Arc::clone(self.shared().places.state());
        state.mariadb.clone()
    }

    /// The same, of MySQL.
    pub fn executed(&self) -> GtidSet {
        let state = Arc::clone(self.shared().places.state());
        state.mysql.clone()
    }

    /// Those of MySQL that are not in the files any more, or never were.
    pub fn purged(&self) -> GtidSet {
        self.shared().places.oldest().mysql.clone()
    }

    /// No group was made later, in seconds since 1970; 0: not known.
    pub fn newest(&self) -> u32 {
        self.shared().places.newest()
    }

    /// The end.
    pub fn end(&self) -> Place {
        self.shared().places.end()
    }

    /// The oldest file; `None`: there is none at all.
    pub fn oldest(&self) -> Option<u64> {
        self.shared().places.files().front().map(|f| f.number)
    }

    /// All files, oldest first.
    pub fn list(&self) -> Vec<Listed> {
        let shared = self.shared();
        let files = shared.places.files().iter();
        files
            .map(|f| Listed {
                name: self.name(f.number),
                bytes: f.len,
            })
            .collect()
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.clock.now_ms()).unwrap_or(i64::MAX)
    }

    /// For how many milliseconds something is here that someone with this position lacks; 0: it
    /// has all.
    pub fn lag_ms(&self, has: &Position) -> u64 {
        self.shared().stamps.lag(self.now_ms(), has)
    }

    /// What was stored since the start.
    pub fn stored(&self) -> Stored {
        self.shared().stored
    }

    /// Bytes of the newest events held in memory.
    pub fn tail_bytes(&self) -> usize {
        self.shared().tail.bytes()
    }

    /// Why nothing more is stored.
    pub fn failure(&self) -> Option<Arc<StoreError>> {
        self.shared().failed.clone()
    }

    /// Whether nothing more will come: the relay ends.
    pub fn is_closed(&self) -> bool {
        self.shared().closed
    }

    /// Tells all readers that the relay ends.
    pub fn close(&self) {
        self.shared().closed = true;
        self.grown.notify_all();
    }

    /// Wakes all readers.
    pub fn wake(&self) {
        self.grown.notify_all();
    }

    /// Waits until there is more than up to `place`, or the store is closed or woken, or for so
    /// long. Gives whether there is more.
    pub fn wait(&self, place: Place, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut shared = self.shared();
        if shared.places.end() > place || shared.closed {
            return !shared.closed;
        }
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.grown.wait_timeout(shared, left);
        shared = waited.unwrap_or_else(PoisonError::into_inner).0;
        shared.places.end() > place && !shared.closed
    }

    /// Nothing more is stored, for this reason, or one that was told before.
    pub fn fail(&self, error: &StoreError) -> Arc<StoreError> {
        let mut shared = self.shared();
        let cause = shared
            .failed
            .get_or_insert_with(|| Arc::new(error.clone()))
            .clone();
        self.grown.notify_all();
        cause
    }

    /// A file was begun, behind the end of the one before.
    pub(super) fn begun(&self, file: FileEntry, head: Chunk, ended: Option<Grown>) {
        let now = self.now_ms();
        let mut shared = self.shared();
        let before = ended.map(|grown| shared.grown(grown, now, self.kind));
        shared.places.push(file);
        shared.tail.push(head);
        drop(shared);
        drop(before);
        self.grown.notify_all();
    }

    /// The last file has grown.
    pub(super) fn publish(&self, grown: Grown) {
        let now = self.now_ms();
        let before = self.shared().grown(grown, now, self.kind);
        drop(before);
        self.grown.notify_all();
    }

    fn open(&self, number: u64) -> Result<Arc<dyn DeviceFile>, StoreError> {
        let name = self.name(number);
        self.device
            .open(&name)
            .map_err(StoreError::access("open", &name))
    }

    /// In which domains of `until` a replica that has `has`, and all before a place, is not there yet.
    /// `before`: all that, if it is known.
    pub fn not_there(
        &self,
        until: &Position,
        has: &Position,
        place: Place,
        before: Option<&BinlogState>,
    ) -> Position {
        let shared = self.shared();
        let file = shared.places.file(place.file);
        let before = before.or_else(|| file.map(|file| &file.start.mariadb));
        let nothing = BinlogState::new();
        let before = before.unwrap_or(&nothing);
        shared.places.not_there(until, has, before)
    }

    /// The last file before which who has this position has everything; 0: there is none.
    ///
    /// # Errors
    /// It lacks something of before the oldest file, or has another history.
    pub fn file_for(&self, position: &Position) -> Result<u64, Refused> {
        self.shared().places.file_for(position)
    }

    /// Where a replica with this position begins. A file that was not read through since
    /// the start is read now.
    pub fn find(&self, position: &Position) -> Result<Result<Found, Refused>, StoreError> {
        let number = match self.file_for(position) {
            Ok(number) => number,
            Err(refused) => return Ok(Err(refused)),
        };
        let damage = self.index(number)?;
        let begin = self.shared().places.begin(position);
        Ok(begin.map(|begin| Found { begin, damage }))
    }

    /// The same of a replica that has this set of MySQL.
    pub fn find_set(&self, has: &GtidSet) -> Result<Result<Found, Refused>, StoreError> {
        let number = match self.shared().places.file_for_set(has) {
            Ok(number) => number,
            Err(refused) => return Ok(Err(refused)),
        };
        let damage = self.index(number)?;
        let begin = self.shared().places.begin_set(has);
        Ok(begin.map(|begin| Found { begin, damage }))
    }

    /// The places of a file.
    #[cfg(test)]
    pub(super) fn points(&self, number: u64) -> Vec<Point> {
        let shared = self.shared();
        shared
            .places
            .file(number)
            .map_or(Vec::new(), |f| f.points.clone())
    }

    /// Reads hints.
    pub fn hints(&self) -> HintReader {
        HintReader::new(Arc::clone(&self.device))
    }

    /// Reads a file through if that was not done.
    fn index(&self, number: u64) -> Result<Option<StoreError>, StoreError> {
        let len = match self.shared().places.file(number) {
            Some(file) if !file.indexed => file.len,
            _ => return Ok(None),
        };
        let name = self.name(number);
        let file = self.open(number)?;
        let scan =
            scan(&*file, &name, len, self.point_every, self.kind).map_err(StoreError::passing)?;
        self.shared().places.index(number, scan.points);
        Ok(scan.rest.map(|rest| StoreError::Damaged {
            file: name,
            at: rest.at,
            what: rest.what,
        }))
    }

    /// What a file begins with.
    pub fn head(&self, number: u64) -> Result<Head, StoreError> {
        let name = self.name(number);
        let len = match self.shared().places.file(number) {
            Some(file) => file.len,
            None => return Err(StoreError::NoFile { file: name }),
        };
        let file = self.open(number)?;
        let head = head(&*file, &name, len, self.kind).map_err(StoreError::passing)?;
        head.map_err(|rest| StoreError::Damaged {
            file: name,
            at: rest.at,
            what: rest.what,
        })
    }

    /// What who has all before a place has, if an event begins there or the file ends: the last group of each
    /// domain. `None`: none does.
    pub fn before(&self, place: Place) -> Result<Option<Position>, StoreError> {
        let name = self.name(place.file);
        let head = self.head(place.file)?;
        let (len, from, mut has) = match self.shared().places.file(place.file) {
            None => return Err(StoreError::NoFile { file: name }),
            Some(file) => {
                let points = file.points.partition_point(|p| p.at <= place.at);
                match points.checked_sub(1).map(|n| &file.points[n]) {
                    None => (file.len, 4, head.start.mariadb.position()),
                    Some(point) => (file.len, point.at, point.state.mariadb.position()),
                }
            }
        };
        let mut grouper = Grouper::of_file_from(from, head.format);
        let file = self.open(place.file)?;
        let mut events = Events::new(&*file, &name, from, len);
        while events.at < place.at {
            match events.next().map_err(StoreError::passing)? {
                // What is damaged is found when it is sent.
                Ok(Some(raw)) => {
                    let ended = grouper.event(raw).ok().and_then(|seen| ended(seen.step));
                    ended.map(|gtid| has.set(gtid));
                }
                Ok(None) | Err(_) => return Ok(None),
            }
        }
        Ok((events.at == place.at).then_some(has))
    }

    /// Removes what may go; tells what, and how many more would go if no replica needed them. One
    /// that somebody has removed already is no error. With another error the rest stays, and is tried
    /// again with the next call.
    pub fn purge(&self, limits: Limits, needed: Option<u64>, now: u64) -> Purged {
        self.purge_while(limits, needed, now, || true)
    }

    /// As [`View::purge`], of which each file takes its time: asked after each whether to go on. The rest is
    /// for the next call.
    pub fn purge_while(
        &self,
        limits: Limits,
        needed: Option<u64>,
        now: u64,
        mut go_on: impl FnMut() -> bool,
    ) -> Purged {
        let (remove, held) = {
            let shared = self.shared();
            let places = &shared.places;
            let files: Vec<_> = places
                .files()
                .iter()
                .enumerate()
                .map(|(n, f)| Candidate {
                    number: f.number,
                    bytes: f.len,
                    newest: places.newest_group(n),
                })
                .collect();
            let Verdict { remove, held } = verdict(&files, limits, needed, now);
            (remove, held)
        };
        let mut purged = Purged {
            held,
            ..Purged::default()
        };
        for _ in 0..remove {
            // Who begins to read from now on does not find it.
            let Some(file) = self.shared().places.pop() else {
                break;
            };
            let name = self.name(file.number);
            if let Err(error) = self.remove(&name, file.number) {
                self.shared().places.unpop(file);
                purged.error = Some(error.passing());
                break;
            }
            purged.gone.push(name);
            if !go_on() {
                break;
            }
        }
        purged
    }

    fn remove(&self, name: &str, number: u64) -> Result<(), StoreError> {
        beside::remove(&*self.device, number)?;
        match self.device.remove(name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            removed => removed.map_err(StoreError::io("remove", name))?,
        }
        // One after the other: a crash must not leave a gap.
        self.device
            .sync_dir()
            .map_err(StoreError::io("sync the directory of", name))
    }
}

/// What became of [`View::purge`].
#[derive(Debug, Default)]
pub struct Purged {
    /// Names of the files that are gone.
    pub gone: Vec<String>,
    /// So many more would go if no replica needed them.
    pub held: usize,
    /// Why no more are gone.
    pub error: Option<StoreError>,
}

/// Reads events from a place on, as far as they are on the disk.
pub struct Cursor {
    view: Arc<View>,
    place: Place,
    piece: Piece,
    file: Option<(u64, Arc<dyn DeviceFile>)>,
}

enum Piece {
    Nothing,
    Shared(Arc<[u8]>, usize),
    Own(Vec<u8>, usize),
}

impl Piece {
    fn rest(&self) -> &[u8] {
        match self {
            Piece::Nothing => &[],
            Piece::Shared(bytes, at) => &bytes[*at..],
            Piece::Own(bytes, at) => &bytes[*at..],
        }
    }

    fn advance(&mut self, n: usize) {
        match self {
            Piece::Nothing => {}
            Piece::Shared(_, at) | Piece::Own(_, at) => *at += n,
        }
    }
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// An event of so many bytes: [`Cursor::event`].
    Event(usize),
    /// Nothing yet.
    End,
    /// The next file.
    File(u64),
}

impl Cursor {
    /// From a place at which an event begins.
    pub fn new(view: Arc<View>, place: Place) -> Cursor {
        Cursor {
            view,
            place,
            piece: Piece::Nothing,
            file: None,
        }
    }

    /// Where the next event begins.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Whether its bytes come from memory, not from the file.
    pub fn is_near(&self) -> bool {
        matches!(self.piece, Piece::Shared(..))
    }

    /// Looks what comes next. Whether its checksum fits was not looked at.
    pub fn look(&mut self) -> Result<Next, StoreError> {
        let mut need = 1;
        loop {
            let at = self.place.at;
            let rest = self.piece.rest();
            if rest.len() >= need {
                match cut_event(rest, at, EVENT_MAX) {
                    Ok(Cut::Event(raw)) => return Ok(Next::Event(raw.len())),
                    Ok(Cut::More { need: more }) => need = more,
                    Err(error) => return Err(self.damaged(error.to_string())),
                }
            }
            let have = rest.len();
            match self.fetch(need)? {
                Some(next) => return Ok(next),
                None if self.piece.rest().len() >= need => {}
                None => {
                    let what = format!("It has {have} bytes of an event of {need}.");
                    return Err(self.damaged(what));
                }
            }
        }
    }

    fn damaged(&self, what: String) -> StoreError {
        StoreError::Damaged {
            file: self.view.name(self.place.file),
            at: self.place.at,
            what,
        }
    }

    /// Makes `need` bytes there, or as many as there are; else tells why there is nothing.
    fn fetch(&mut self, need: usize) -> Result<Option<Next>, StoreError> {
        let (len, near) = {
            let shared = self.view.shared();
            let Some(file) = shared.places.file(self.place.file) else {
                let file = self.view.name(self.place.file);
                return Err(StoreError::NoFile { file });
            };
            if self.place.at >= file.len {
                // A part of the tail stays no longer than that itself.
                self.piece = Piece::Nothing;
                let next = self.place.file + 1;
                return Ok(Some(match shared.places.file(next) {
                    Some(_) => Next::File(next),
                    None => Next::End,
                }));
            }
            (file.len, shared.tail.get(self.place))
        };
        if let Some((bytes, offset)) = near {
            // Chunks end where events do.
            self.piece = Piece::Shared(bytes, offset);
            return Ok(None);
        }
        let file = match &self.file {
            Some((number, file)) if *number == self.place.file => Arc::clone(file),
            _ => {
                let file = self.view.open(self.place.file)?;
                self.file = Some((self.place.file, Arc::clone(&file)));
                file
            }
        };
        let want = (need.max(PIECE) as u64).min(len - self.place.at) as usize;
        // A damaged length must not make room for more than there is.
        let mut bytes = vec![0; want];
        let n = file
            .read_at(&mut bytes, self.place.at)
            .map_err(StoreError::access("read", &self.view.name(self.place.file)))?;
        bytes.truncate(n);
        self.piece = Piece::Own(bytes, 0);
        Ok(None)
    }

    /// The event that [`Cursor::look`] found, of that length.
    pub fn event(&self, len: usize) -> &[u8] {
        &self.piece.rest()[..len]
    }

    /// Goes on behind it.
    pub fn pass(&mut self, len: usize) {
        self.piece.advance(len);
        self.place.at += len as u64;
        // It may be one event of many megabytes, that takes minutes on its way, and nothing may follow.
        if let Piece::Own(..) = self.piece
            && self.piece.rest().is_empty()
        {
            self.piece = Piece::Nothing;
        }
    }

    /// Goes on in another file, at a byte at which an event begins.
    pub fn turn(&mut self, place: Place) {
        self.place = place;
        self.piece = Piece::Nothing;
        // It may be purged, and would keep its room on the disk.
        self.file = None;
    }
}

#[cfg(test)]
mod tests {
    use dromon_binlog::{
        Checksum, EventType, Format, GroupName, Header, MySqlGtid, Payload, encode_event,
        version_bytes,
    };
    use dromon_log::SimDevice;

    use super::super::{Part, Store, StoreOptions};
    use super::*;

    fn encoded(kind: EventType, payload: &Payload<'_>, format: &Format) -> Vec<u8> {
        let header = Header {
            timestamp: 1000,
            kind,
            server_id: 1,
            len: 0,
            end_pos: 0,
            flags: 0,
        };
        encode_event(&header, payload, format)
    }

    /// A large event is not held by each replica that has got it while it waits for the next one.
    #[test]
    fn a_cursor_holds_nothing_behind_an_event() {
        let format = Format {
            binlog_version: 4,
            server_version: version_bytes("10.11.18-MariaDB"),
            created: 0,
            post_header_lens: vec![0; 163],
            checksum: Some(Checksum::Crc32),
        };
        let event = |kind, payload: &Payload<'_>| encoded(kind, payload, &format);
        let begins = Payload::Format(Box::new(format.clone()));
        let begins = event(EventType::FORMAT_DESCRIPTION, &begins);
        let text = vec![b'x'; 8 << 20];
        for tail_max in [0, 32 << 20] {
            let options = StoreOptions {
                tail_max,
                ..StoreOptions::default()
            };
            let device = Arc::new(SimDevice::new(1));
            let (mut store, _) = Store::open(device, options, BinlogState::new()).expect("empty");
            store.begin_file(&begins).expect("a good disk");
            let large = event(EventType::ANNOTATE_ROWS, &Payload::Annotate(&text));
            let part = Part::Alone(GroupName::Nameless, 1000);
            store.append(large, part).expect("a good disk");
            store.flush().expect("a good disk");
            let at = store.view().shared().places.files()[0].body;
            let mut cursor = Cursor::new(store.view(), Place { file: 1, at });
            let Next::Event(len) = cursor.look().expect("readable") else {
                panic!("an event is there");
            };
            assert!(len > text.len() && cursor.is_near() == (tail_max > 0));
            cursor.pass(len);
            // What came from the file goes before the event is on its way.
            let held = matches!(cursor.piece, Piece::Nothing);
            assert_eq!(held, tail_max == 0);
            assert_eq!(cursor.look().expect("readable"), Next::End);
            assert!(matches!(cursor.piece, Piece::Nothing));
        }
    }

    /// Who lacked something when the machine fell asleep lacks it since before that.
    #[test]
    fn what_is_lacking_over_a_sleep() {
        let device = Arc::new(SimDevice::new(1));
        let (store, _) =
            Store::open(device, StoreOptions::default(), BinlogState::new()).expect("empty");
        let view = store.view();
        let at = |seqno: u64| format!("0-1-{seqno}").parse().expect("a position");
        let now = view.now_ms();
        view.shared().stamps.came(now, at(5));
        view.clock.sleeps(3_600_000);
        assert!(view.lag_ms(&at(4)) >= 3_600_000);
        assert_eq!(view.lag_ms(&at(5)), 0);
    }

    /// A set may have thousands of intervals, and there is a place each 256 KiB of files that are kept for
    /// weeks.
    #[test]
    fn places_hold_what_is_new_in_their_file() {
        let (a, b) = ([0xaa; 16], [0xbb; 16]);
        let mut start = GtidSet::new();
        (0..1000).for_each(|n| start.add(a, 2 * n + 1));
        let format = Format {
            binlog_version: 4,
            server_version: version_bytes("8.0.36"),
            created: 0,
            post_header_lens: vec![0; 41],
            checksum: Some(Checksum::Crc32),
        };
        let event = |kind, payload: &Payload<'_>| encoded(kind, payload, &format);
        let device = Arc::new(SimDevice::new(1));
        let open = || {
            let options = StoreOptions {
                point_every: 200,
                kind: Kind::MySql,
                ..StoreOptions::default()
            };
            let (store, _) = Store::open(device.clone(), options, start.clone()).expect("mended");
            store
        };
        let mut store = open();
        let begins = Payload::Format(Box::new(format.clone()));
        let begins = event(EventType::FORMAT_DESCRIPTION, &begins);
        store.begin_file(&begins).expect("a good disk");
        let does = |store: &mut Store, number| {
            let gtid = MySqlGtid {
                flags: 1,
                source: b,
                number,
                clock: None,
                commit: None,
                tail: &[],
                anonymous: false,
            };
            let name = GroupName::MySql { source: b, number };
            for (raw, part) in [
                (
                    event(EventType::MYSQL_GTID, &Payload::MySqlGtid(gtid)),
                    Part::Begin,
                ),
                (
                    event(EventType::XID, &Payload::Xid(7)),
                    Part::End(name, 1000),
                ),
            ] {
                store.append(raw, part).expect("a good disk");
            }
            store.flush().expect("a good disk");
        };
        let looks = |view: &View, groups: u64| {
            let places = view.shared().places.files()[0].points.clone();
            assert!(places.len() > 5);
            for point in &places {
                let held: usize = point.state.mysql.iter().map(|(_, list)| list.len()).sum();
                assert!(held <= 1, "{}", point.state.mysql);
            }
            for n in 0..=groups {
                let mut has = start.clone();
                has.add_interval(b, 1, n + 1);
                let begin = view.find_set(&has).expect("readable").expect("here").begin;
                let begin = begin.expect("a file");
                assert!(start.is_subset(&begin.state.mysql), "all before it");
                assert!(begin.state.mysql.is_subset(&has));
                let later = |p: &&Point| p.at > begin.place.at;
                if let Some(next) = places.iter().find(later) {
                    assert!(!next.state.mysql.is_subset(&has), "the best place");
                }
            }
        };
        (1..=20).for_each(|n| does(&mut store, n));
        looks(&store.view(), 20);
        // After a start it is all the same, and goes on so.
        drop(store);
        device.kill();
        let mut store = open();
        looks(&store.view(), 20);
        (21..=40).for_each(|n| does(&mut store, n));
        looks(&store.view(), 40);
    }
}
