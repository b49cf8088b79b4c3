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
//!
//! That is so of rows. Of a transaction that was logged as statements, what these read, or looked
//! for and did not find, is locked on the source until XA PREPARE only: behind what others commit in
//! between they may do something else. And what they did to tables without transactions XA ROLLBACK
//! leaves there. Neither is done here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use dromon_binlog::{
    Checksum, Cut, EVENT_MAX, Ending, Event, EventError, EventType, Format, Gtid, GtidEvent,
    Payload, Position, XaName, cut_event, gtid_flags,
};

use crate::catalog::Tables;
use crate::compile::{Filter, Touched, is_frame, is_place, touched};
use crate::unit::{Events, Form, Transaction};

/// Of a longer one that is compressed only the beginning is shown.
const STATEMENT_MAX: usize = 1 << 20;

/// If more tables were changed, any may have been.
const TABLES_MAX: usize = 10_000;

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
    /// Not all of it is rows.
    statements: bool,
}

/// The text of an event, if it is a statement that changes something here.
fn statement(raw: &[u8], checksum: Checksum, format: &Format, filter: &Filter) -> Option<Vec<u8>> {
    let event = Event::parse_unverified(raw, checksum).ok()?;
    let query = match event.decode(format).ok()? {
        Payload::Query(query) => query,
        Payload::LoadQuery(load) => load.query,
        _ => return None,
    };
    let begin = query.begin();
    if is_frame(&begin) || is_place(&begin) {
        return None;
    }
    let text = query.text(STATEMENT_MAX);
    // What cannot be read, or is refused, is told when it is to be applied.
    let wanted = match &text {
        Ok(text) if !filter.is_empty() => filter.wants_statement(text, query.database) != Ok(false),
        _ => true,
    };
    wanted.then(|| text.unwrap_or(begin).into_owned())
}

impl Held {
    /// Of a first phase.
    pub fn of(transaction: &Transaction, filter: &Filter) -> Held {
        let (format, checksum) = (&transaction.form.format, transaction.checksum());
        let is_of_xa = |raw: &[u8]| {
            let event = Event::parse_unverified(raw, checksum);
            let payload = event.as_ref().ok().and_then(|e| e.decode(format).ok());
            matches!(payload, Some(Payload::Query(query)) if starts(&query.begin(), b"XA "))
        };
        let events = transaction.events.iter().filter(|raw| !is_of_xa(raw));
        let events: Events = events.collect();
        let mut held = Held {
            events,
            form: Arc::clone(&transaction.form),
            flags: transaction.group.flags,
            statements: false,
        };
        held.statements = held.statement(filter).is_some();
        held
    }

    /// As it was kept: a format description, and events one behind the other.
    ///
    /// # Errors
    /// They are none.
    pub fn read(form: &[u8], mut bytes: &[u8], filter: &Filter) -> Result<Held, String> {
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
        let mut held = Held {
            events,
            form: Arc::new(form.map_err(|error| error.to_string())?),
            flags,
            statements: false,
        };
        held.statements = held.statement(filter).is_some();
        Ok(held)
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

    /// Whether something of it that is not left out was logged as a statement.
    pub fn has_statements(&self) -> bool {
        self.statements
    }

    /// The first such statement.
    pub fn statement(&self, filter: &Filter) -> Option<Vec<u8>> {
        let format = &self.form.format;
        let mut events = self.events.iter();
        events.find_map(|raw| statement(raw, format.checksum(), format, filter))
    }

    /// Which tables its statements read or change here; `None`: it may be any.
    pub(crate) fn touches(&self, filter: &Filter, tables: &Tables) -> Option<Touched> {
        let format = &self.form.format;
        let how = (format.checksum(), format);
        touched(self.events.iter(), how, filter, tables, true)
    }

    /// Whether something of it may be there on the source when it is rolled back: of tables without
    /// transactions, or temporary ones. Rows of such are a group of their own.
    pub fn may_stay(&self) -> bool {
        self.statements && self.flags & gtid_flags::TRANSACTIONAL == 0
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

/// One that the target has kept since before this session.
#[derive(Debug)]
pub struct Kept {
    /// As XA RECOVER names it.
    pub name: String,
    /// Rows in which it is kept.
    pub parts: u64,
    /// Its first phase.
    pub first: Gtid,
}

#[derive(Debug)]
struct Entry {
    parts: u64,
    first: Gtid,
    /// How many changes came before its first phase, if that is known.
    changes: Option<u64>,
    /// See [`Held::may_stay`]; known of what came in this session.
    stays: Option<bool>,
    /// Here as well.
    held: Option<Held>,
}

/// What was prepared, and is decided.
#[derive(Debug)]
pub struct Taken {
    /// Rows in which it is kept.
    pub parts: u64,
    /// Its first phase.
    pub first: Gtid,
    /// How many changes came before that, if it is known: see [`Prepared::changed_since`].
    pub changes: Option<u64>,
    /// See [`Held::may_stay`], if that is known.
    pub stays: Option<bool>,
    /// Its events, if they are here.
    pub held: Option<Held>,
}

/// What is prepared and not decided. All of it is kept in the target; what has room, here as well.
#[derive(Debug)]
pub struct Prepared {
    all: BTreeMap<String, Entry>,
    /// Transactions so far that change something.
    changes: u64,
    /// The last one of them that may have changed any table.
    any: u64,
    /// The last one of each table, since something was prepared.
    by_table: BTreeMap<Vec<u8>, u64>,
    bytes: usize,
    bytes_max: usize,
}

impl Prepared {
    /// `position`: where the target stands. Here at most about `bytes_max` are held.
    pub fn new(kept: Vec<Kept>, position: &Position, bytes_max: usize) -> Prepared {
        let mut all = position.iter();
        // Of several domains it is not known which one was the last.
        let last = all.next().filter(|_| all.next().is_none());
        let entry = |kept: Kept| {
            let entry = Entry {
                parts: kept.parts,
                first: kept.first,
                changes: (last == Some(kept.first)).then_some(0),
                stays: None,
                held: None,
            };
            (kept.name, entry)
        };
        Prepared {
            all: kept.into_iter().map(entry).collect(),
            changes: 0,
            any: 0,
            by_table: BTreeMap::new(),
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

    /// A transaction changes something: these tables, or perhaps any.
    pub(crate) fn changed(&mut self, tables: Option<Touched>) {
        self.changes += 1;
        if self.all.is_empty() {
            // What is prepared later counts from there on.
            self.by_table.clear();
            return;
        }
        match tables {
            Some(tables) if self.by_table.len() + tables.len() <= TABLES_MAX => {
                let changes = self.changes;
                let named = tables.into_iter().map(|table| (table, changes));
                self.by_table.extend(named);
            }
            _ => {
                self.any = self.changes;
                self.by_table.clear();
            }
        }
    }

    /// Whether something was changed since there were so many changes. `tables`: that may be in these; else in any.
    pub(crate) fn changed_since(&self, changes: u64, tables: Option<&Touched>) -> bool {
        let Some(tables) = tables else {
            return self.changes > changes;
        };
        let is_later = |table: &Vec<u8>| self.by_table.get(table).is_some_and(|n| *n > changes);
        self.any > changes || tables.iter().any(is_later)
    }

    /// A transaction comes that the target has already.
    pub fn passes(&mut self, gtid: Gtid) {
        match self.all.values_mut().find(|entry| entry.first == gtid) {
            Some(entry) => entry.changes = Some(self.changes),
            None => self.changed(None),
        }
    }

    /// One more.
    pub fn add(&mut self, name: String, first: Gtid, held: Held, parts: u64) {
        let len = held.len();
        let stays = Some(held.may_stay());
        let held = (self.bytes + len <= self.bytes_max).then_some(held);
        self.bytes += held.as_ref().map_or(0, Held::len);
        let entry = Entry {
            parts,
            first,
            changes: Some(self.changes),
            stays,
            held,
        };
        self.all.insert(name, entry);
    }

    /// It is decided.
    pub fn take(&mut self, name: &str) -> Option<Taken> {
        let entry = self.all.remove(name)?;
        self.bytes -= entry.held.as_ref().map_or(0, Held::len);
        Some(Taken {
            parts: entry.parts,
            first: entry.first,
            changes: entry.changes,
            stays: entry.stays,
            held: entry.held,
        })
    }
}

#[cfg(test)]
mod tests {
    use dromon_binlog::{GroupName, Header, encode_event};

    use super::*;
    use crate::compile::tests::{block, load, packed, query, rows, started, unit, xid};

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
        let held = Held::of(&of, &Filter::default());
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
        let held = Held::of(&first(), &Filter::default());
        let (kept, all) = (held.bytes(), Filter::default());
        let form = started(77);
        let read = Held::read(&form, kept, &all).expect("what was kept");
        assert_eq!(read.bytes(), kept);
        assert_eq!(read.flags, held.flags);
        let told = Format::decode(read.form()).expect("a format description");
        assert_eq!(told.created, 0, "no target is told of a start");
        assert!(Held::read(&form, &kept[..kept.len() - 1], &all).is_err());
        assert!(
            Held::read(
                &form,
                &kept[held.events.iter().next().expect("an event").len()..],
                &all
            )
            .is_err()
        );
        assert!(Held::read(&form, b"", &all).is_err());
        assert!(Held::read(b"", kept, &all).is_err());
    }

    /// Rows can be applied whatever came in between, and rows of tables without transactions are a group of their own.
    #[test]
    fn what_is_logged_as_statements() {
        let held_by = |filter: &Filter, middle: Vec<Vec<u8>>, flags: u8| {
            let flags = gtid_flags::PREPARED_XA | flags;
            let of = transaction(5, flags, Ending::XaPrepare, middle);
            let held = Held::of(&of, filter);
            let read = Held::read(&started(77), held.bytes(), filter).expect("what was kept");
            let has = |held: &Held| (held.has_statements(), held.may_stay());
            assert_eq!(has(&read), has(&held));
            assert_eq!(held.has_statements(), held.statement(filter).is_some());
            has(&held)
        };
        let all = Filter::default();
        let held = |middle, flags| held_by(&all, middle, flags);
        let whole = gtid_flags::TRANSACTIONAL;
        let row = || rows("plain", &[(None, Some((1, Some("a"))))]);
        let place = |text| [vec![query(text, "d")], row()].concat();
        let delete = || place("DELETE FROM t WHERE grp = 5");
        assert_eq!(held(delete(), whole), (true, false));
        assert_eq!(held(delete(), 0), (true, true));
        assert_eq!(
            held(vec![packed(&query("DELETE FROM t", "d"))], 0),
            (true, true)
        );
        for only_rows in [row(), place("SAVEPOINT `a`"), place("ROLLBACK TO `a`")] {
            assert_eq!(held(only_rows, 0), (false, false));
        }
        let text = r"LOAD DATA INFILE '/a.txt' INTO TABLE `plain` LINES TERMINATED BY '\n'";
        let loads = vec![block(true, 1, "7\n"), load(1, text, "d", &[], 0)];
        assert_eq!(held(loads, whole), (true, false));
        let without = Filter::new(Vec::new(), vec!["d".into()]);
        assert_eq!(held_by(&without, delete(), 0), (false, false));
    }

    /// Also where it was kept before this session, as far as its position tells.
    #[test]
    fn whether_others_came_in_between() {
        let kept = |name: &str, first: &str| Kept {
            name: name.into(),
            parts: 1,
            first: first.parse().expect("a GTID"),
        };
        let all = |position: &str| {
            let kept = vec![
                kept("old", "0-1-4"),
                kept("last", "0-1-7"),
                kept("ahead", "0-1-9"),
            ];
            Prepared::new(kept, &position.parse().expect("a position"), 1000)
        };
        let unchanged = |all: &mut Prepared, name: &str| {
            let taken = all.take(name).expect("it is kept");
            let changes = taken.changes?;
            Some(!all.changed_since(changes, None))
        };
        let mut one = all("0-1-7");
        assert_eq!(unchanged(&mut one, "old"), None);
        assert_eq!(unchanged(&mut one, "last"), Some(true));
        // Which domain was the last one is not known.
        assert_eq!(unchanged(&mut all("0-1-7,1-1-3"), "last"), None);
        // What the target has already comes once more.
        let mut one = all("0-1-7");
        one.passes("0-1-9".parse().expect("a GTID"));
        assert_eq!(unchanged(&mut one, "ahead"), Some(true));
        let mut one = all("0-1-7");
        one.passes("0-1-9".parse().expect("a GTID"));
        one.passes("0-1-10".parse().expect("a GTID"));
        assert_eq!(unchanged(&mut one, "ahead"), Some(false));
        assert_eq!(unchanged(&mut one, "last"), Some(false));
        let held = Held::of(&first(), &Filter::default());
        one.add("x".into(), first().gtid, held.clone(), 1);
        one.add("y".into(), first().gtid, held, 1);
        assert_eq!(unchanged(&mut one, "x"), Some(true));
        one.changed(None);
        assert_eq!(unchanged(&mut one, "y"), Some(false));
    }

    /// What others changed meanwhile counts by tables, if both know theirs.
    #[test]
    fn which_tables_others_changed() {
        let of = |names: &[&str]| -> Touched {
            names.iter().map(|name| name.as_bytes().to_vec()).collect()
        };
        let held = Held::of(&first(), &Filter::default());
        let prepared = |all: &mut Prepared, name: &str| {
            all.add(name.into(), first().gtid, held.clone(), 1);
        };
        let changes = |all: &Prepared, name: &str| all.all[name].changes.expect("it came here");
        let mut all = Prepared::new(Vec::new(), &Position::new(), 1000);
        all.changed(Some(of(&["t"])));
        all.changed(None);
        prepared(&mut all, "x");
        let x = changes(&all, "x");
        let (t, u) = (of(&["t"]), of(&["u", "v"]));
        assert!(!all.changed_since(x, Some(&t)) && !all.changed_since(x, None));
        all.changed(Some(of(&["u", "w"])));
        assert!(all.changed_since(x, None));
        assert!(!all.changed_since(x, Some(&t)) && all.changed_since(x, Some(&u)));
        prepared(&mut all, "y");
        let y = changes(&all, "y");
        assert!(!all.changed_since(y, Some(&u)) && all.changed_since(x, Some(&u)));
        all.changed(None);
        assert!(all.changed_since(x, Some(&t)) && all.changed_since(y, Some(&t)));
        prepared(&mut all, "z");
        let z = changes(&all, "z");
        // More than is held of them.
        for n in 0..=TABLES_MAX {
            all.changed(Some(of(&[&n.to_string()])));
        }
        assert!(all.by_table.len() <= TABLES_MAX);
        assert!(all.changed_since(z, Some(&t)));
        // One that the target has already may be of any.
        prepared(&mut all, "a");
        let a = changes(&all, "a");
        all.passes("0-1-99".parse().expect("a GTID"));
        assert!(all.changed_since(a, Some(&t)));
        for name in ["x", "y", "z", "a"] {
            all.take(name).expect("it is there");
        }
        all.changed(Some(of(&["t"])));
        assert!(all.by_table.is_empty());
    }

    #[test]
    fn what_has_no_room_is_in_the_target_alone() {
        let held = Held::of(&first(), &Filter::default());
        let gtid = first().gtid;
        let kept = Kept {
            name: "old".into(),
            parts: 2,
            first: gtid,
        };
        let mut all = Prepared::new(vec![kept], &Position::new(), held.len() * 2);
        for name in ["a", "b", "c"] {
            all.add(name.into(), gtid, held.clone(), 1);
        }
        assert_eq!(all.len(), 4);
        let mut here = |name: &str| {
            let taken = all.take(name)?;
            Some((taken.parts, taken.held.is_some()))
        };
        assert_eq!(here("old"), Some((2, false)));
        assert_eq!(here("c"), Some((1, false)));
        assert_eq!(here("a"), Some((1, true)));
        assert_eq!(here("a"), None);
        all.add("d".into(), gtid, held, 1);
        assert!(all.take("d").is_some_and(|taken| taken.held.is_some()));
        assert!(!all.is_empty());
    }
}
