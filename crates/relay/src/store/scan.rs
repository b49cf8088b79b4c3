//! Reads a file of events through, and says what is in it and where it ends well.

use dromon_binlog::{
    BinlogState, Cut, EVENT_MAX, Event, EventType, FILE_MAGIC, Format, GroupName, Grouper, Gtid,
    GtidList, HEADER_LEN, Header, Payload, Step, StreamError, check_magic, cut_event,
};
use dromon_log::DeviceFile;

use super::error::StoreError;
use super::history::{History, Kind};
use super::points::{Pace, Point};

/// Bytes read at once.
const PIECE: usize = 256 << 10;

/// What a file begins with.
#[derive(Clone, Debug)]
pub struct Head {
    /// What its format description says.
    pub format: Format,
    /// That event.
    pub format_event: Vec<u8>,
    /// All groups before.
    pub start: History,
    /// None of them was made later.
    pub time: u32,
    /// Where the first group can begin.
    pub body: u64,
}

impl Head {
    /// Where the event stands that says what came before; of a mirror, where that could be.
    pub fn list(&self) -> u64 {
        (FILE_MAGIC.len() + self.format_event.len()) as u64
    }

    /// A time before which none of its groups was committed, in seconds since 1970; 0: not known.
    pub fn since(&self) -> u32 {
        match (self.time, Header::decode(&self.format_event)) {
            // Nothing comes before it. Its format description is that of the primary's file.
            (0, Ok(header)) => header.timestamp,
            (time, _) => time,
        }
    }
}

/// What was found in a file.
#[derive(Clone, Debug)]
pub struct Scan {
    /// What it begins with; `None`: not even that is there.
    pub head: Option<Head>,
    /// All groups up to its good end.
    pub state: History,
    /// When the last one began.
    pub time: u32,
    /// No group says that it was made later.
    pub newest: u32,
    /// Its good end: all before is whole.
    pub settled: u64,
    /// Places in it.
    pub points: Vec<Point>,
    /// It ends with the name of the next one.
    pub finished: bool,
    /// Why it does not end there, if it does not.
    pub rest: Option<Rest>,
}

/// What stands behind the good end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    /// Where what cannot be used begins to be unreadable.
    pub at: u64,
    /// What is wrong with it.
    pub what: String,
    /// It is a whole event, of this kind, that the relay writes to no such place: no torn write makes that.
    pub foreign: Option<EventType>,
}

impl Rest {
    /// Bytes that cannot be used.
    pub fn new(at: u64, what: impl Into<String>) -> Rest {
        Rest {
            at,
            what: what.into(),
            foreign: None,
        }
    }

    /// An event that does not follow what came before it.
    fn refused(at: u64, error: &StreamError) -> Rest {
        let encrypted = matches!(error, StreamError::Encrypted { .. });
        Rest {
            foreign: encrypted.then_some(EventType::START_ENCRYPTION),
            ..Rest::new(at, error.to_string())
        }
    }
}

/// Reads the first two events of a file, or, of a mirror, the first. `Ok(Err(rest))`: they are not
/// there.
pub fn head(
    file: &dyn DeviceFile,
    name: &str,
    len: u64,
    kind: Kind,
) -> Result<Result<Head, Rest>, StoreError> {
    let mut reader = Events::new(file, name, 0, len);
    let mut magic = [0; FILE_MAGIC.len()];
    let n = file
        .read_at(&mut magic, 0)
        .map_err(StoreError::io("read", name))?;
    if let Err(error) = check_magic(&magic[..n]) {
        return Ok(Err(Rest::new(0, error.to_string())));
    }
    reader.at = FILE_MAGIC.len() as u64;
    let mut grouper = Grouper::of_file();
    let mut format_event = Vec::new();
    let rest = |at, what: String| Ok(Err(Rest::new(at, what)));
    loop {
        let at = reader.at;
        let raw = match reader.next()? {
            Ok(Some(raw)) => raw,
            Ok(None) => {
                return rest(
                    at,
                    format!("It ends before its {} event.", what_came_before(kind)),
                );
            }
            Err(what) => return rest(at, what),
        };
        match grouper.event(raw) {
            Err(error) => return Ok(Err(Rest::refused(at, &error))),
            Ok(seen) => match seen.event.kind() {
                EventType::FORMAT_DESCRIPTION => {
                    format_event = seen.event.raw().to_vec();
                    if let (Kind::Mirror, Some(format)) = (kind, grouper.format()) {
                        return Ok(Ok(Head {
                            format: format.clone(),
                            format_event,
                            start: History::default(),
                            time: seen.event.header().timestamp,
                            body: grouper.at(),
                        }));
                    }
                }
                list_kind if list_kind == what_came_before(kind) => {
                    let Some(format) = grouper.format() else {
                        return rest(at, "No format description comes first.".into());
                    };
                    return Ok(match list(&seen.event, format) {
                        Some(start) => Ok(Head {
                            format: format.clone(),
                            format_event,
                            start,
                            time: seen.event.header().timestamp,
                            body: grouper.at(),
                        }),
                        None => Err(Rest::new(
                            at,
                            format!("Its {list_kind} event cannot be read."),
                        )),
                    });
                }
                other => {
                    let list = what_came_before(kind);
                    let what = format!("A {other} event stands before its {list} event.");
                    return Ok(Err(Rest {
                        foreign: Some(other),
                        ..Rest::new(at, what)
                    }));
                }
            },
        }
    }
}

/// The event behind the format description.
fn what_came_before(kind: Kind) -> EventType {
    match kind {
        Kind::MariaDb | Kind::Mirror => EventType::GTID_LIST,
        Kind::MySql => EventType::PREVIOUS_GTIDS,
    }
}

fn list(event: &Event<'_>, format: &Format) -> Option<History> {
    match event.decode(format) {
        Ok(Payload::GtidList(GtidList { gtids, .. })) => {
            Some(BinlogState::from_gtids(gtids).into())
        }
        Ok(Payload::PreviousGtids(set)) => Some(set.into()),
        _ => None,
    }
}

/// Reads a file through. `every`: bytes between its points, at least; see [`Pace`].
pub fn scan(
    file: &dyn DeviceFile,
    name: &str,
    len: u64,
    every: u64,
    kind: Kind,
) -> Result<Scan, StoreError> {
    let head = match head(file, name, len, kind)? {
        Ok(head) => head,
        Err(rest) => {
            return Ok(Scan {
                head: None,
                state: History::default(),
                time: 0,
                newest: 0,
                settled: 0,
                points: Vec::new(),
                finished: false,
                rest: Some(rest),
            });
        }
    };
    let mut scan = Scan {
        state: head.start.clone(),
        time: head.time,
        newest: head.time,
        settled: head.body,
        points: Vec::new(),
        finished: false,
        rest: None,
        head: None,
    };
    let mut grouper = Grouper::of_file_from(head.body, head.format.clone());
    let mut reader = Events::new(file, name, head.body, len);
    let mut pace = Pace::new(every, head.body);
    loop {
        let at = reader.at;
        let rest = |what: String| Some(Rest::new(at, what));
        match reader.next()? {
            Ok(None) => break,
            Err(what) => {
                scan.rest = rest(what);
                break;
            }
            Ok(Some(raw)) => {
                if scan.finished {
                    scan.rest = rest("An event follows the name of the next file.".into());
                    break;
                }
                match grouper.event(raw) {
                    Err(error) => {
                        scan.rest = Some(Rest::refused(at, &error));
                        break;
                    }
                    Ok(seen) => {
                        if seen.abandoned.is_some() {
                            scan.rest = rest("A group was begun within another one.".into());
                            break;
                        }
                        if let Step::Begin(group) | Step::Alone(group, _) = seen.step {
                            let start = &head.start.mysql;
                            let point = pace.point(group.begin, &scan.state, start, scan.time);
                            scan.points.extend(point);
                        }
                        if let Step::End(group, _) | Step::Alone(group, _) = seen.step {
                            match (kind, group.name) {
                                (Kind::MariaDb, name @ GroupName::MariaDb(_))
                                | (Kind::MySql, name @ GroupName::MySql { .. }) => {
                                    scan.state.add(name);
                                }
                                _ => {}
                            }
                            scan.time = group.timestamp;
                            scan.newest = scan.newest.max(group.timestamp);
                        }
                        scan.finished = seen.event.kind() == EventType::ROTATE;
                        scan.settled = grouper.settled();
                    }
                }
            }
        }
    }
    if scan.rest.is_none() && scan.settled < len {
        scan.rest = Some(Rest::new(len, "It ends within a group."));
    }
    scan.head = Some(head);
    Ok(scan)
}

/// The group of MariaDB that ends with a step.
pub fn ended(step: Step) -> Option<Gtid> {
    match step {
        Step::End(group, _) | Step::Alone(group, _) => match group.name {
            GroupName::MariaDb(gtid) => Some(gtid),
            GroupName::MySql { .. } | GroupName::Nameless => None,
        },
        Step::Between | Step::Begin(_) | Step::Within => None,
    }
}

/// Events of a file one after the other.
pub struct Events<'a> {
    file: &'a dyn DeviceFile,
    name: &'a str,
    len: u64,
    /// Where the next event begins.
    pub at: u64,
    buf: Vec<u8>,
    /// Byte of the file at which `buf` begins.
    from: u64,
}

impl<'a> Events<'a> {
    /// From a place at which an event begins, up to `len`.
    pub fn new(file: &'a dyn DeviceFile, name: &'a str, at: u64, len: u64) -> Events<'a> {
        Events {
            file,
            name,
            len,
            at,
            buf: Vec::new(),
            from: at,
        }
    }

    /// Has `need` bytes from `at` on in the buffer, or as many as there are.
    fn fill(&mut self, need: usize) -> Result<&[u8], StoreError> {
        let have = (self.from + self.buf.len() as u64).saturating_sub(self.at);
        let there = self.len.saturating_sub(self.at);
        if have < (need as u64).min(there) {
            self.buf.clear();
            self.from = self.at;
            let want = (need.max(PIECE) as u64).min(there) as usize;
            self.buf.resize(want, 0);
            let n = self
                .file
                .read_at(&mut self.buf, self.at)
                .map_err(StoreError::io("read", self.name))?;
            self.buf.truncate(n);
        }
        Ok(&self.buf[(self.at - self.from) as usize..])
    }

    /// The next one; `None` at the end; `Ok(Err(_))` if there is none that can be read.
    pub fn next(&mut self) -> Result<Result<Option<&[u8]>, String>, StoreError> {
        if self.at >= self.len {
            return Ok(Ok(None));
        }
        let at = self.at;
        let bytes = self.fill(HEADER_LEN)?;
        if bytes.len() < HEADER_LEN {
            return Ok(Err("It ends within the header of an event.".into()));
        }
        // Longer than the file: no room is made for what a damaged length claims.
        let header = Header::decode(bytes);
        let need = match header {
            Ok(header) if at + u64::from(header.len) > self.len => {
                return Ok(Err(format!("It ends within a {} event.", header.kind)));
            }
            Ok(header) => header.len as usize,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let bytes = self.fill(need)?;
        match cut_event(bytes, at, EVENT_MAX) {
            Ok(Cut::Event(raw)) => {
                let len = raw.len();
                let from = (at - self.from) as usize;
                self.at = at + len as u64;
                Ok(Ok(Some(&self.buf[from..from + len])))
            }
            Ok(Cut::More { .. }) => Ok(Err("It ends within an event.".into())),
            Err(error) => Ok(Err(error.to_string())),
        }
    }
}
