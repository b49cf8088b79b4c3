//! XA transactions of the source. Without I/O.
//!
//! ```text
//!  source   XA PREPARE: rows ............ XA COMMIT, or XA ROLLBACK
//!  target   its events are kept,          its rows are applied as those of any transaction, or
//!           with the position             not, and its events removed, with the position
//! ```
//!
//! On the source its rows are locked in between, so nobody can have changed or read them there:
//! whether they come to the target with the first phase or with the second is the same. With the
//! second, nothing of it is ever left prepared in the target, where no position could be committed
//! with it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use dromon_binlog::{
    Checksum, Cut, EVENT_MAX, Ending, Event, EventError, EventType, Format, GtidEvent, Payload,
    XaName, cut_event, gtid_flags,
};

use crate::unit::{Events, Form, Transaction};

const BOTH: u8 = gtid_flags::PREPARED_XA | gtid_flags::COMPLETED_XA;

/// What a transaction is of an XA transaction, which is named as XA RECOVER FORMAT='SQL' names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its rows, to be kept.
    First(String),
    /// XA COMMIT (`true`) or XA ROLLBACK.
    Second(String, bool),
}

/// `X'6762',X'62',1`.
fn name(xa: &XaName<'_>) -> String {
    let mut out = String::new();
    for part in [xa.gtrid, xa.bqual] {
        out.push_str("X'");
        for byte in part {
            // Into a String it cannot fail.
            let _ = write!(out, "{byte:02x}");
        }
        out.push_str("',");
    }
    let _ = write!(out, "{}", xa.format);
    out
}

/// Which phase a transaction is, if it is one.
///
/// # Errors
/// An event that cannot be read.
pub fn phase(transaction: &Transaction) -> Result<Option<Phase>, EventError> {
    if transaction.group.flags & BOTH == 0 {
        return Ok(None);
    }
    let format = &transaction.form.format;
    let mut of = None;
    let mut commits = false;
    for event in transaction.events() {
        match event?.decode(format)? {
            Payload::Gtid(GtidEvent { xa: Some(xa), .. }) => of = Some(name(&xa)),
            Payload::Query(query) => commits |= starts(&query.begin(), b"XA COMMIT"),
            _ => {}
        }
    }
    Ok(of.map(|of| match transaction.ending {
        Ending::XaPrepare => Phase::First(of),
        _ => Phase::Second(of, commits),
    }))
}

fn starts(text: &[u8], with: &[u8]) -> bool {
    text.get(..with.len())
        .is_some_and(|begin| begin.eq_ignore_ascii_case(with))
}

/// The events of a first phase, to be applied when it is decided.
#[derive(Clone, Debug)]
pub struct Held {
    /// The GTID event first; without the frame.
    events: Events,
    form: Arc<Form>,
    /// As its GTID event has them.
    flags: u8,
}

impl Held {
    /// Of a first phase.
    pub fn of(transaction: &Transaction) -> Held {
        let (format, checksum) = (&transaction.form.format, transaction.checksum());
        let is_frame = |raw: &[u8]| {
            let event = Event::parse_unverified(raw, checksum);
            let payload = event.as_ref().ok().and_then(|e| e.decode(format).ok());
            matches!(payload, Some(Payload::Query(query)) if starts(&query.begin(), b"XA "))
        };
        let events = transaction.events.iter().filter(|raw| !is_frame(raw));
        Held {
            events: events.collect(),
            form: Arc::clone(&transaction.form),
            flags: transaction.group.flags,
        }
    }

    /// As it was kept: a format description, and events one behind the other.
    ///
    /// # Errors
    /// They are none.
    pub fn read(form: &[u8], mut bytes: &[u8]) -> Result<Held, String> {
        let format = Format::decode(form).map_err(|error| error.to_string())?;
        let checksum = format.checksum();
        let mut events = Events::default();
        let mut at = 0;
        while !bytes.is_empty() {
            match cut_event(bytes, at, EVENT_MAX).map_err(|error| error.to_string())? {
                Cut::Event(event) => {
                    Event::parse(event, checksum).map_err(|error| error.to_string())?;
                    events.push(event);
                    bytes = &bytes[event.len()..];
                    at += event.len() as u64;
                }
                Cut::More { .. } => return Err(format!("an event is cut off at byte {at}")),
            }
        }
        let flags = events
            .iter()
            .next()
            .and_then(|raw| gtid_flags_of(raw, checksum, &format))
            .ok_or("they do not begin with a GTID event")?;
        // One that was kept by an older replica has more in it.
        let form = Event::parse_unverified(form, checksum).and_then(|event| Form::of(&event));
        Ok(Held {
            events,
            form: Arc::new(form.map_err(|error| error.to_string())?),
            flags,
        })
    }

    /// What [`Held::read`] needs.
    pub fn bytes(&self) -> &[u8] {
        self.events.bytes()
    }

    /// The same, of the format description.
    pub fn form(&self) -> &[u8] {
        &self.form.raw
    }

    fn len(&self) -> usize {
        self.events.bytes().len()
    }

    /// The second phase: what is applied in its place.
    pub fn decided(self, second: &Transaction) -> Transaction {
        let mut group = second.group;
        group.flags = self.flags & !BOTH;
        Transaction {
            gtid: second.gtid,
            group,
            ending: Ending::Xid,
            events: self.events,
            form: self.form,
            own: None,
        }
    }
}

fn gtid_flags_of(raw: &[u8], checksum: Checksum, format: &Format) -> Option<u8> {
    let event = Event::parse_unverified(raw, checksum).ok()?;
    match event.decode(format).ok()? {
        Payload::Gtid(gtid) => Some(gtid.flags),
        _ => None,
    }
}

/// A phase of which nothing is applied to the tables: it moves the position.
pub fn without_rows(transaction: &Transaction) -> Transaction {
    let mut group = transaction.group;
    group.flags = gtid_flags::TRANSACTIONAL | gtid_flags::ALLOW_PARALLEL;
    let is_first = |raw: &&[u8]| raw.get(4) == Some(&EventType::GTID.0);
    Transaction {
        gtid: transaction.gtid,
        group,
        ending: Ending::Xid,
        events: transaction.events.iter().filter(is_first).take(1).collect(),
        form: Arc::clone(&transaction.form),
        own: None,
    }
}

#[derive(Debug)]
struct Entry {
    /// Rows in which it is kept.
    parts: u64,
    /// Here as well.
    held: Option<Held>,
}

/// What is prepared and not decided. All of it is kept in the target; what has room, here as well.
#[derive(Debug)]
pub struct Prepared {
    all: BTreeMap<String, Entry>,
    bytes: usize,
    bytes_max: usize,
}

impl Prepared {
    /// Names, and in how many rows each is kept; here at most about so many bytes are held.
    pub fn new(kept: impl IntoIterator<Item = (String, u64)>, bytes_max: usize) -> Prepared {
        let entry = |(name, parts)| (name, Entry { parts, held: None });
        Prepared {
            all: kept.into_iter().map(entry).collect(),
            bytes: 0,
            bytes_max,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// One more.
    pub fn add(&mut self, name: String, held: Held, parts: u64) {
        let len = held.len();
        let held = (self.bytes + len <= self.bytes_max).then_some(held);
        self.bytes += held.as_ref().map_or(0, Held::len);
        self.all.insert(name, Entry { parts, held });
    }

    /// It is decided. Gives in how many rows it is kept, and its events if they are here.
    pub fn take(&mut self, name: &str) -> Option<(u64, Option<Held>)> {
        let entry = self.all.remove(name)?;
        self.bytes -= entry.held.as_ref().map_or(0, Held::len);
        Some((entry.parts, entry.held))
    }
}

#[cfg(test)]
mod tests {
    use dromon_binlog::{GroupName, Gtid, Header, encode_event};

    use super::*;
    use crate::compile::tests::{packed, query, rows, started, unit, xid};

    fn format() -> Format {
        Format::unknown()
    }

    fn gtid_event(flags: u8, seqno: u64) -> Vec<u8> {
        let header = Header {
            timestamp: 1,
            kind: EventType::GTID,
            server_id: 1,
            len: 0,
            end_pos: 0,
            flags: 0,
        };
        let payload = Payload::Gtid(GtidEvent {
            gtid: Gtid {
                domain: 0,
                server: 1,
                seqno,
            },
            flags,
            commit_id: None,
            xa: Some(XaName {
                format: 3,
                gtrid: b"a1",
                bqual: b"",
            }),
            extra: None,
            tail: &[],
        });
        encode_event(&header, &payload, &format())
    }

    fn transaction(seqno: u64, flags: u8, ending: Ending, middle: Vec<Vec<u8>>) -> Transaction {
        let mut events = vec![gtid_event(flags, seqno)];
        events.extend(middle);
        let mut of = unit(vec![events]).transactions.remove(0);
        of.gtid.seqno = seqno;
        of.group.name = GroupName::MariaDb(of.gtid);
        of.group.flags = flags;
        of.ending = ending;
        of
    }

    fn first() -> Transaction {
        let mut middle = rows("plain", &[(None, Some((1, Some("a"))))]);
        middle.push(query("XA END X'6131',X'',3", "d"));
        // Which it is, is told by its ending.
        middle.push(xid());
        let flags = gtid_flags::PREPARED_XA | gtid_flags::TRANSACTIONAL;
        transaction(5, flags, Ending::XaPrepare, middle)
    }

    fn second(text: &str) -> Transaction {
        let flags = gtid_flags::COMPLETED_XA | gtid_flags::STANDALONE;
        transaction(8, flags, Ending::Statement, vec![query(text, "d")])
    }

    #[test]
    fn phases_and_names() {
        let name = "X'6131',X'',3".to_owned();
        let found = |of: &Transaction| phase(of).expect("it can be read");
        assert_eq!(found(&first()), Some(Phase::First(name.clone())));
        let commit = second("XA COMMIT X'6131',X'',3");
        assert_eq!(found(&commit), Some(Phase::Second(name.clone(), true)));
        let text = packed(&query("XA COMMIT X'6131',X'',3", "d"));
        let flags = gtid_flags::COMPLETED_XA | gtid_flags::STANDALONE;
        let commit = transaction(8, flags, Ending::Statement, vec![text]);
        assert_eq!(found(&commit), Some(Phase::Second(name.clone(), true)));
        let rollback = second("xa rollback X'6131',X'',3");
        assert_eq!(found(&rollback), Some(Phase::Second(name, false)));
        let plain = transaction(1, 0, Ending::Xid, vec![query("XA COMMIT", "d")]);
        assert_eq!(found(&plain), None);
    }

    /// What is applied at the second phase has the rows of the first one and the name of the second.
    #[test]
    fn rows_come_with_the_second_phase() {
        let of = first();
        let none = without_rows(&of);
        assert_eq!(none.gtid.seqno, 5);
        assert!(!none.has_rows() && none.events.len() == 1);
        let held = Held::of(&of);
        assert_eq!(held.events.len(), of.events.len() - 1, "without XA END");
        let decided = held.clone().decided(&second("XA COMMIT X'6131',X'',3"));
        assert_eq!(decided.gtid.seqno, 8);
        assert!(decided.has_rows());
        assert_eq!(decided.group.flags, gtid_flags::TRANSACTIONAL);
        assert_eq!(decided.ending, Ending::Xid);
        assert!(phase(&decided).expect("it can be read").is_none());
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let held = Held::of(&first());
        let kept = held.bytes();
        let form = started(77);
        let read = Held::read(&form, kept).expect("what was kept");
        assert_eq!(read.bytes(), kept);
        assert_eq!(read.flags, held.flags);
        let told = Format::decode(read.form()).expect("a format description");
        assert_eq!(told.created, 0, "no target is told of a start");
        assert!(Held::read(&form, &kept[..kept.len() - 1]).is_err());
        assert!(
            Held::read(
                &form,
                &kept[held.events.iter().next().expect("an event").len()..]
            )
            .is_err()
        );
        assert!(Held::read(&form, b"").is_err());
        assert!(Held::read(b"", kept).is_err());
    }

    #[test]
    fn what_has_no_room_is_in_the_target_alone() {
        let held = Held::of(&first());
        let mut all = Prepared::new([("old".to_owned(), 2)], held.len() * 2);
        for name in ["a", "b", "c"] {
            all.add(name.into(), held.clone(), 1);
        }
        assert_eq!(all.len(), 4);
        let mut here = |name: &str| all.take(name).map(|(parts, held)| (parts, held.is_some()));
        assert_eq!(here("old"), Some((2, false)));
        assert_eq!(here("c"), Some((1, false)));
        assert_eq!(here("a"), Some((1, true)));
        assert_eq!(here("a"), None);
        all.add("d".into(), held, 1);
        assert!(all.take("d").is_some_and(|(_, held)| held.is_some()));
        assert!(!all.is_empty());
    }
}
