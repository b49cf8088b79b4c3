//! Statements out of rows.

use dromon_binlog::{Cell, Change, ColumnType, Gtid, Row};
use rustc_hash::FxHashMap;

use super::rows::Cells;
use super::{Expect, Note, Op, Options, Style, note};
use crate::catalog::TableInfo;
use crate::unit::Own;
use crate::value::{Text, Unfit, put_literal, put_name};

/// Most rows in one statement: more gained nothing in measurements, and long lists are planned
/// otherwise.
const ROWS_MAX: usize = 400;
/// A statement with so many bytes takes no further row.
const STATEMENT_BYTES: usize = 256 << 10;

/// Bytes that a packet has beside its statement, at most.
const FRAME: usize = 64;

/// Collects statements into packets.
pub(super) struct Writer<'o> {
    options: &'o Options<'o>,
    ops: Vec<Op>,
    text: Vec<u8>,
    expects: Vec<Expect>,
    /// Foreign keys are checked.
    checks: bool,
    /// An INSERT that can take further rows: of this table, as many as are in it.
    open: Option<(*const TableInfo, u64)>,
    unfit: bool,
}

impl<'o> Writer<'o> {
    pub(super) fn new(options: &'o Options<'o>) -> Writer<'o> {
        Writer {
            options,
            ops: Vec::new(),
            text: Vec::new(),
            expects: Vec::new(),
            checks: true,
            open: None,
            unfit: false,
        }
    }

    /// Ends the packet, and adds a step.
    pub(super) fn push(&mut self, op: Op) {
        self.flush();
        self.ops.push(op);
    }

    fn flush(&mut self) {
        self.open = None;
        if !self.expects.is_empty() {
            self.ops.push(Op::Rows {
                text: std::mem::take(&mut self.text),
                expects: std::mem::take(&mut self.expects),
            });
        }
    }

    /// `None`: a value cannot be said.
    pub(super) fn finish(mut self) -> Option<Vec<Op>> {
        self.flush();
        (!self.unfit).then_some(self.ops)
    }

    fn add(&mut self, statement: &[u8], expect: Expect) {
        self.open = None;
        // With what may stand in front of it.
        self.unfit |= statement.len() + FRAME > self.options.longest;
        if self.text.len() + statement.len() > self.options.packet_max {
            self.flush();
        }
        if !self.text.is_empty() {
            self.text.push(b';');
        }
        self.text.extend_from_slice(statement);
        self.expects.push(expect);
        if self.options.style == Style::Single {
            // One packet each, so that it can be put right.
            self.flush();
        }
    }

    /// Whether foreign keys are checked from here on.
    pub(super) fn checks(&mut self, on: bool) {
        if std::mem::replace(&mut self.checks, on) != on {
            let text = format!("SET foreign_key_checks={}", u8::from(on));
            let nothing = Note {
                gtid: Gtid {
                    domain: 0,
                    server: 0,
                    seqno: 0,
                },
                table: String::new(),
                change: None,
                key: String::new(),
            };
            let expect = Expect {
                rows: None,
                note: nothing,
                mend: None,
            };
            self.add(text.as_bytes(), expect);
        }
    }

    /// What is done to the replica's own tables.
    pub(super) fn own(&mut self, own: &Own, gtid: Gtid) {
        for (text, rows) in &own.statements {
            let expect = Expect {
                rows: Some(*rows),
                note: Note {
                    gtid,
                    table: "dromon_replica.prepared".into(),
                    change: None,
                    key: String::from_utf8_lossy(&own.name).into_owned(),
                },
                mend: None,
            };
            self.add(text, expect);
        }
    }

    /// A row in the source's order.
    pub(super) fn row(
        &mut self,
        table: &TableInfo,
        types: &[ColumnType],
        gtid: Gtid,
        row: Row<'_>,
    ) {
        let done = match (row.before, row.after) {
            (None, Some(after)) => self.insert(table, types, gtid, &after),
            (Some(before), Some(after)) => self.update(table, types, gtid, &before, &after),
            (Some(before), None) => self.delete(table, types, gtid, &before),
            (None, None) => Ok(()),
        };
        if done.is_err() {
            self.unfit = true;
        }
    }

    fn insert(
        &mut self,
        table: &TableInfo,
        types: &[ColumnType],
        gtid: Gtid,
        after: &Cells<'_>,
    ) -> Result<(), Unfit> {
        let single = self.options.style == Style::Single;
        let mut values = Vec::new();
        put_values(&mut values, table, types, after)?;
        if let Some((open, rows)) = self.open
            && !single
            && std::ptr::eq(open, table)
            && rows < ROWS_MAX as u64
            && self.text.len() + values.len() < self.options.packet_max
        {
            self.text.push(b',');
            self.text.extend_from_slice(&values);
            self.open = Some((open, rows + 1));
            if let Some(last) = self.expects.last_mut() {
                last.rows = Some(rows + 1);
            }
            return Ok(());
        }
        let mut text = b"INSERT INTO ".to_vec();
        put_insert_head(&mut text, table);
        text.extend_from_slice(&values);
        let mut key = Vec::new();
        let mut mend = None;
        if single {
            put_where(&mut key, table, types, after, &table.key)?;
            let mut all = text.clone();
            put_on_duplicate(&mut all, table, |_| true);
            mend = Some(all);
        }
        self.add(
            &text,
            Expect {
                rows: Some(1),
                note: note(gtid, table, Change::Insert, &key),
                mend,
            },
        );
        self.open = Some((std::ptr::from_ref(table), 1));
        Ok(())
    }

    fn condition(
        &self,
        table: &TableInfo,
        types: &[ColumnType],
        before: &Cells<'_>,
    ) -> Result<Vec<u8>, Unfit> {
        let mut out = Vec::new();
        put_where(&mut out, table, types, before, &table.key)?;
        if self.options.whole_rows {
            let others = (0..table.columns.len())
                .filter(|n| !table.key.contains(n) && !table.columns[*n].generated);
            for n in others {
                // Byte by byte: what a collation takes for equal may differ.
                out.extend_from_slice(b" AND ");
                let text = table.columns[n].charset.is_some();
                out.extend_from_slice(if text { b"BINARY " } else { b"" });
                put_name(&mut out, table.columns[n].name.as_bytes());
                out.extend_from_slice(b"<=>");
                let stored = match text {
                    true => Text::Stored,
                    false => compared(table, n),
                };
                let unsigned = table.columns[n].unsigned;
                put_cell(&mut out, types[n], before[n], unsigned, stored)?;
            }
        }
        Ok(out)
    }

    fn update(
        &mut self,
        table: &TableInfo,
        types: &[ColumnType],
        gtid: Gtid,
        before: &Cells<'_>,
        after: &Cells<'_>,
    ) -> Result<(), Unfit> {
        if same(table, before, after) {
            return Ok(());
        }
        let condition = self.condition(table, types, before)?;
        let mut text = b"UPDATE ".to_vec();
        text.extend_from_slice(&table.quoted);
        text.extend_from_slice(b" SET ");
        let mut first = true;
        for (n, column) in table.columns.iter().enumerate() {
            if column.generated || before[n] == after[n] && !column.on_update {
                continue;
            }
            if !std::mem::take(&mut first) {
                text.push(b',');
            }
            put_name(&mut text, column.name.as_bytes());
            text.push(b'=');
            put_cell(&mut text, types[n], after[n], column.unsigned, Text::Stored)?;
        }
        text.extend_from_slice(b" WHERE ");
        text.extend_from_slice(&condition);
        let mut key = Vec::new();
        let mut mend = None;
        if self.options.style == Style::Single {
            put_where(&mut key, table, types, before, &table.key)?;
            let mut all = Vec::new();
            if table.key.iter().any(|n| before[*n] != after[*n]) {
                // The source has no row at the old key any more.
                all.extend_from_slice(b"DELETE FROM ");
                all.extend_from_slice(&table.quoted);
                all.extend_from_slice(b" WHERE ");
                all.extend_from_slice(&key);
                all.push(b';');
            }
            all.extend_from_slice(b"INSERT INTO ");
            put_insert_head(&mut all, table);
            put_values(&mut all, table, types, after)?;
            put_on_duplicate(&mut all, table, |_| true);
            mend = Some(all);
        }
        self.add(
            &text,
            Expect {
                rows: Some(1),
                note: note(gtid, table, Change::Update, &key),
                mend,
            },
        );
        Ok(())
    }

    fn delete(
        &mut self,
        table: &TableInfo,
        types: &[ColumnType],
        gtid: Gtid,
        before: &Cells<'_>,
    ) -> Result<(), Unfit> {
        let condition = self.condition(table, types, before)?;
        let mut text = b"DELETE FROM ".to_vec();
        text.extend_from_slice(&table.quoted);
        text.extend_from_slice(b" WHERE ");
        text.extend_from_slice(&condition);
        let mut key = Vec::new();
        let mut mend = None;
        if self.options.style == Style::Single {
            put_where(&mut key, table, types, before, &table.key)?;
            let mut all = b"DELETE FROM ".to_vec();
            all.extend_from_slice(&table.quoted);
            all.extend_from_slice(b" WHERE ");
            all.extend_from_slice(&key);
            mend = Some(all);
        }
        self.add(
            &text,
            Expect {
                rows: Some(1),
                note: note(gtid, table, Change::Delete, &key),
                mend,
            },
        );
        Ok(())
    }
}

fn put_cell(
    out: &mut Vec<u8>,
    column: ColumnType,
    cell: Cell<'_>,
    unsigned: bool,
    text: Text<'_>,
) -> Result<(), Unfit> {
    match cell {
        Cell::Null => {
            out.extend_from_slice(b"NULL");
            Ok(())
        }
        Cell::Bytes(bytes) => put_literal(out, column, bytes, unsigned, text),
        Cell::Absent => Err(Unfit),
    }
}

fn put_insert_head(out: &mut Vec<u8>, table: &TableInfo) {
    out.extend_from_slice(&table.quoted);
    out.push(b'(');
    out.extend_from_slice(&table.column_list);
    out.extend_from_slice(b")VALUES");
}

fn put_values(
    out: &mut Vec<u8>,
    table: &TableInfo,
    types: &[ColumnType],
    image: &Cells<'_>,
) -> Result<(), Unfit> {
    out.push(b'(');
    let mut first = true;
    for (n, column) in table
        .columns
        .iter()
        .enumerate()
        .filter(|(_, c)| !c.generated)
    {
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        put_cell(out, types[n], image[n], column.unsigned, Text::Stored)?;
    }
    out.push(b')');
    Ok(())
}

fn put_on_duplicate(out: &mut Vec<u8>, table: &TableInfo, changed: impl Fn(usize) -> bool) {
    out.extend_from_slice(b"ON DUPLICATE KEY UPDATE ");
    let mut first = true;
    for (n, column) in table
        .columns
        .iter()
        .enumerate()
        .filter(|(_, c)| !c.generated)
    {
        if !changed(n) && !column.on_update {
            continue;
        }
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        put_name(out, column.name.as_bytes());
        out.extend_from_slice(b"=VALUES(");
        put_name(out, column.name.as_bytes());
        out.push(b')');
    }
}

fn compared<'t>(table: &'t TableInfo, n: usize) -> Text<'t> {
    let column = &table.columns[n];
    match (&column.charset, column.padded) {
        (Some(charset), _) => Text::Compared(charset),
        (None, Some(len)) => Text::Padded(len),
        (None, None) => Text::Stored,
    }
}

pub(super) fn put_where(
    out: &mut Vec<u8>,
    table: &TableInfo,
    types: &[ColumnType],
    image: &Cells<'_>,
    columns: &[usize],
) -> Result<(), Unfit> {
    for (nth, n) in columns.iter().enumerate() {
        if nth > 0 {
            out.extend_from_slice(b" AND ");
        }
        put_name(out, table.columns[*n].name.as_bytes());
        out.extend_from_slice(if table.key.contains(n) { b"=" } else { b"<=>" });
        let column = &table.columns[*n];
        put_cell(
            out,
            types[*n],
            image[*n],
            column.unsigned,
            compared(table, *n),
        )?;
    }
    Ok(())
}

/// Whether nothing changes that a statement could say.
fn same(table: &TableInfo, before: &Cells<'_>, after: &Cells<'_>) -> bool {
    let mut columns = table.columns.iter().enumerate();
    columns.all(|(n, column)| column.generated || before[n] == after[n])
}

/// What came of a row in a unit.
enum Net<'a> {
    /// It was not there before, and is not now.
    Nothing,
    Insert(Cells<'a>),
    Update(Cells<'a>, Cells<'a>),
    Delete(Cells<'a>),
    /// Its rows do not follow each other: another statement will find out.
    Odd,
}

/// All rows of one table in a unit, by primary key.
pub(super) struct Fold<'a> {
    table: &'a TableInfo,
    types: &'a [ColumnType],
    first: Option<Gtid>,
    rows: Vec<Net<'a>>,
    by_key: FxHashMap<Vec<u8>, usize>,
    odd: bool,
}

impl<'a> Fold<'a> {
    pub(super) fn new(table: &'a TableInfo, types: &'a [ColumnType]) -> Fold<'a> {
        Fold {
            table,
            types,
            first: None,
            rows: Vec::new(),
            by_key: FxHashMap::default(),
            odd: false,
        }
    }

    fn key(&self, image: &Cells<'_>) -> Vec<u8> {
        let mut key = Vec::new();
        for n in &self.table.key {
            if let Cell::Bytes(bytes) = image[*n] {
                key.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                key.extend_from_slice(bytes);
            }
        }
        key
    }

    /// The next row of the table.
    pub(super) fn row(&mut self, gtid: Gtid, row: Row<'a>) {
        self.first.get_or_insert(gtid);
        match (row.before, row.after) {
            (Some(before), Some(after)) => {
                let (a, b) = (self.key(&before), self.key(&after));
                if a == b {
                    self.step(a, Some(before), Some(after));
                } else {
                    self.step(a, Some(before), None);
                    self.step(b, None, Some(after));
                }
            }
            (None, Some(after)) => {
                let key = self.key(&after);
                self.step(key, None, Some(after));
            }
            (Some(before), None) => {
                let key = self.key(&before);
                self.step(key, Some(before), None);
            }
            (None, None) => {}
        }
    }

    fn step(&mut self, key: Vec<u8>, before: Option<Cells<'a>>, after: Option<Cells<'a>>) {
        let next = self.rows.len();
        let at = *self.by_key.entry(key).or_insert(next);
        if at == next {
            self.rows.push(match (before, after) {
                (None, Some(after)) => Net::Insert(after),
                (Some(before), Some(after)) => Net::Update(before, after),
                (Some(before), None) => Net::Delete(before),
                (None, None) => Net::Nothing,
            });
            return;
        }
        let was = std::mem::replace(&mut self.rows[at], Net::Odd);
        let there = matches!(was, Net::Insert(_) | Net::Update(..));
        if there != before.is_some() {
            self.odd = true;
            return;
        }
        self.rows[at] = match (was, after) {
            (Net::Nothing | Net::Insert(_), Some(after)) => Net::Insert(after),
            (Net::Nothing | Net::Insert(_), None) => Net::Nothing,
            (Net::Update(first, _) | Net::Delete(first), Some(after)) => Net::Update(first, after),
            (Net::Update(first, _) | Net::Delete(first), None) => Net::Delete(first),
            (Net::Odd, _) => Net::Odd,
        };
    }

    /// Adds its statements: deletes free the keys that inserts take.
    pub(super) fn write(self, writer: &mut Writer<'_>) {
        let Some(gtid) = self.first else { return };
        let mut done = Ok(());
        let deletes = self.rows.iter().filter_map(|net| match net {
            Net::Delete(before) => Some(before),
            _ => None,
        });
        done = done.and_then(|()| self.deletes(writer, gtid, deletes));
        if self.table.unique.is_empty() {
            done = done.and_then(|()| self.upserts(writer, gtid));
        } else {
            for net in &self.rows {
                if let Net::Update(before, after) = net {
                    done = done
                        .and_then(|()| writer.update(self.table, self.types, gtid, before, after));
                }
            }
        }
        for net in &self.rows {
            if let Net::Insert(after) = net {
                done = done.and_then(|()| writer.insert(self.table, self.types, gtid, after));
            }
        }
        if self.odd {
            // Must fail, so that the rows are tried one by one and the wrong one is named.
            let expect = Expect {
                rows: Some(u64::MAX),
                note: note(gtid, self.table, Change::Update, b""),
                mend: None,
            };
            writer.add(b"DO 0", expect);
        }
        if done.is_err() {
            writer.unfit = true;
        }
    }

    fn deletes<'r>(
        &self,
        writer: &mut Writer<'_>,
        gtid: Gtid,
        rows: impl Iterator<Item = &'r Cells<'a>>,
    ) -> Result<(), Unfit>
    where
        'a: 'r,
    {
        let table = self.table;
        let mut text: Vec<u8> = Vec::new();
        let mut count = 0;
        let mut end = |text: &mut Vec<u8>, count: &mut u64| {
            if *count > 0 {
                if table.key.len() == 1 {
                    text.push(b')');
                }
                let expect = Expect {
                    rows: Some(std::mem::take(count)),
                    note: note(gtid, table, Change::Delete, b""),
                    mend: None,
                };
                writer.add(text, expect);
                text.clear();
            }
        };
        for row in rows {
            if count as usize >= ROWS_MAX || text.len() > STATEMENT_BYTES {
                end(&mut text, &mut count);
            }
            if count == 0 {
                text.extend_from_slice(b"DELETE FROM ");
                text.extend_from_slice(&table.quoted);
                text.extend_from_slice(b" WHERE ");
            }
            if let [n] = table.key[..] {
                if count == 0 {
                    put_name(&mut text, table.columns[n].name.as_bytes());
                    text.extend_from_slice(b" IN(");
                } else {
                    text.push(b',');
                }
                put_cell(
                    &mut text,
                    self.types[n],
                    row[n],
                    table.columns[n].unsigned,
                    compared(table, n),
                )?;
            } else {
                text.extend_from_slice(if count == 0 { b"(" } else { b" OR(" });
                put_where(&mut text, table, self.types, row, &table.key)?;
                text.push(b')');
            }
            count += 1;
        }
        end(&mut text, &mut count);
        Ok(())
    }

    /// Updates as inserts that find their rows there: each counts as two changed rows; one that
    /// finds none counts as one, and one that finds it as it shall become as none.
    fn upserts(&self, writer: &mut Writer<'_>, gtid: Gtid) -> Result<(), Unfit> {
        let table = self.table;
        let mut text: Vec<u8> = Vec::new();
        let mut count = 0u64;
        let mut changed = vec![false; table.columns.len()];
        let end = |text: &mut Vec<u8>,
                   count: &mut u64,
                   changed: &mut Vec<bool>,
                   writer: &mut Writer<'_>| {
            if *count > 0 {
                put_on_duplicate(text, table, |n| changed[n]);
                let expect = Expect {
                    rows: Some(2 * std::mem::take(count)),
                    note: note(gtid, table, Change::Update, b""),
                    mend: None,
                };
                writer.add(text, expect);
                text.clear();
                changed.fill(false);
            }
        };
        let updates = self.rows.iter().filter_map(|net| match net {
            Net::Update(before, after) if !same(table, before, after) => Some((before, after)),
            _ => None,
        });
        for (before, after) in updates {
            if count as usize >= ROWS_MAX || text.len() > STATEMENT_BYTES {
                end(&mut text, &mut count, &mut changed, writer);
            }
            if count == 0 {
                text.extend_from_slice(b"INSERT INTO ");
                put_insert_head(&mut text, table);
            } else {
                text.push(b',');
            }
            put_values(&mut text, table, self.types, after)?;
            for (n, flag) in changed.iter_mut().enumerate() {
                *flag |= before[n] != after[n];
            }
            count += 1;
        }
        end(&mut text, &mut count, &mut changed, writer);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn table() -> TableInfo {
        TableInfo {
            name: "d.t".into(),
            quoted: b"t".to_vec(),
            column_list: b"`k`,`v`".to_vec(),
            columns: Vec::new(),
            key: vec![0],
            unique: Vec::new(),
            indexes: Vec::new(),
            related: false,
            plain: true,
            transactional: true,
        }
    }

    const BYTES: [u8; 64] = {
        let mut all = [0; 64];
        let mut n = 0;
        while n < 64 {
            all[n] = n as u8;
            n += 1;
        }
        all
    };

    fn cell(n: u8) -> Cell<'static> {
        Cell::Bytes(&BYTES[usize::from(n)..=usize::from(n)])
    }

    fn number(cell: Cell<'_>) -> u8 {
        match cell {
            Cell::Bytes(bytes) => bytes[0],
            _ => panic!("a number"),
        }
    }

    proptest! {
        /// What is folded does to a table what its rows do one after the other, and names no row
        /// twice.
        #[test]
        fn folded(there in prop::collection::btree_map(0u8..5, 0u8..64, 0..5), steps in prop::collection::vec((0u8..3, 0u8..5, 0u8..5, 0u8..64), 0..30)) {
            let gtid = Gtid { domain: 0, server: 1, seqno: 1 };
            let table = table();
            let mut fold = Fold::new(&table, &[]);
            let mut now: BTreeMap<u8, u8> = there.clone();
            for (what, a, b, v) in steps {
                let image = |k: u8, v: u8| vec![cell(k), cell(v)];
                let was = now.get(&a).copied();
                let row = match (what, was) {
                    (0, None) => {
                        now.insert(a, v);
                        Row { before: None, after: Some(image(a, v)) }
                    }
                    (1, Some(was)) if a == b || !now.contains_key(&b) => {
                        now.remove(&a);
                        now.insert(b, v);
                        Row { before: Some(image(a, was)), after: Some(image(b, v)) }
                    }
                    (2, Some(was)) => {
                        now.remove(&a);
                        Row { before: Some(image(a, was)), after: None }
                    }
                    _ => continue,
                };
                fold.row(gtid, row);
            }
            prop_assert!(!fold.odd);
            let mut folded = there.clone();
            let mut named = std::collections::BTreeSet::new();
            let mut deletes_first: Vec<&Net<'_>> = fold.rows.iter().collect();
            deletes_first.sort_by_key(|net| !matches!(net, Net::Delete(_)));
            for net in deletes_first {
                let key = match net {
                    Net::Nothing => continue,
                    Net::Insert(row) => {
                        prop_assert_eq!(folded.insert(number(row[0]), number(row[1])), None);
                        number(row[0])
                    }
                    Net::Update(before, after) => {
                        prop_assert_eq!(before[0], after[0]);
                        prop_assert_eq!(folded.insert(number(after[0]), number(after[1])), Some(number(before[1])));
                        number(after[0])
                    }
                    Net::Delete(row) => {
                        prop_assert_eq!(folded.remove(&number(row[0])), Some(number(row[1])));
                        number(row[0])
                    }
                    Net::Odd => panic!("rows follow each other"),
                };
                prop_assert!(named.insert(key));
            }
            prop_assert_eq!(folded, now);
        }
    }

    #[test]
    fn rows_that_do_not_follow_each_other() {
        let gtid = Gtid {
            domain: 0,
            server: 1,
            seqno: 1,
        };
        let table = table();
        let mut fold = Fold::new(&table, &[]);
        let insert = || Row {
            before: None,
            after: Some(vec![cell(1), cell(1)]),
        };
        fold.row(gtid, insert());
        fold.row(gtid, insert());
        assert!(fold.odd);
    }
}
