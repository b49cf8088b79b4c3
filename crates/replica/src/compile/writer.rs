//! Statements out of rows, one after the other, and packets out of statements.

use dromon_binlog::{Cell, Change, ColumnType, Gtid, Row};
use rustc_hash::FxHashSet;

use super::compare::{self, Compare, is_set, put_same};
use super::rows::Cells;
use super::{Expect, Note, Op, Options, Style, note};
use crate::catalog::TableInfo;
use crate::unit::Own;
use crate::value::{Text, Unfit, put_literal, put_name};

/// Most rows in one statement: more gained nothing in measurements, and long lists are planned
/// otherwise.
pub(super) const ROWS_MAX: usize = 400;
/// A statement with so many bytes takes no further row, nor one with as many as a packet has.
pub(super) const STATEMENT_BYTES: usize = 256 << 10;

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
    /// Tables of which no statement says something, or only one that is too long.
    unfit: FxHashSet<String>,
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
            unfit: FxHashSet::default(),
        }
    }

    pub(super) fn compare(&self) -> Compare {
        self.options.compare
    }

    /// Whether events of rows may be made.
    pub(super) fn events(&self) -> bool {
        self.options.events
    }

    /// A packet has at most about so many bytes.
    pub(super) fn packet_max(&self) -> usize {
        self.options.packet_max
    }

    /// A statement with so many bytes takes no further row.
    pub(super) fn statement_bytes(&self) -> usize {
        STATEMENT_BYTES.min(self.options.packet_max)
    }

    /// Ends the packet, and adds a step.
    pub(super) fn push(&mut self, op: Op) {
        self.flush();
        // Before rows that follow it the session is set up anew.
        self.checks |= matches!(op, Op::Statement { .. });
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

    /// The steps, and the tables whose rows they do not say.
    pub(super) fn finish(mut self) -> (Vec<Op>, FxHashSet<String>) {
        self.flush();
        (self.ops, self.unfit)
    }

    /// There is a value of this table that no literal says.
    pub(super) fn cannot_say(&mut self, table: &str) {
        if !self.unfit.contains(table) {
            self.unfit.insert(table.to_owned());
        }
    }

    pub(super) fn add(&mut self, statement: &[u8], expect: Expect) {
        self.open = None;
        // With what may stand in front of it.
        if statement.len() + FRAME > self.options.longest {
            self.cannot_say(&expect.note.table);
        }
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
                mend: Vec::new(),
                look: None,
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
                mend: Vec::new(),
                look: None,
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
            self.cannot_say(&table.name);
        }
    }

    pub(super) fn insert(
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
        let mut mend = Vec::new();
        if single {
            put_where(&mut key, table, types, after, &table.key)?;
            mend = mending(table, types, None, after)?;
        }
        self.add(
            &text,
            Expect {
                rows: Some(1),
                note: note(gtid, table, Change::Insert, &key),
                mend,
                look: None,
            },
        );
        self.open = Some((std::ptr::from_ref(table), 1));
        Ok(())
    }

    /// The condition that finds a row, with what else is compared.
    fn condition(
        table: &TableInfo,
        types: &[ColumnType],
        before: &Cells<'_>,
        others: &[usize],
    ) -> Result<Vec<u8>, Unfit> {
        let mut out = Vec::new();
        put_where(&mut out, table, types, before, &table.key)?;
        for n in others {
            out.extend_from_slice(b" AND ");
            put_same(&mut out, table, types, *n, before[*n])?;
        }
        Ok(out)
    }

    /// What to ask if a row is not found so.
    fn look(
        &self,
        table: &TableInfo,
        types: &[ColumnType],
        before: &Cells<'_>,
        others: &[usize],
    ) -> Result<Option<Vec<u8>>, Unfit> {
        if self.options.style != Style::Single || others.is_empty() {
            return Ok(None);
        }
        compare::question(table, types, before, others).map(Some)
    }

    pub(super) fn update(
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
        let others = compare::columns(self.compare(), table, before, Some(after));
        let condition = Writer::condition(table, types, before, &others)?;
        let mut text = b"UPDATE ".to_vec();
        text.extend_from_slice(&table.quoted);
        if self.compare() == Compare::Changed && !others.is_empty() {
            // Other indexes know more of the condition, but nothing that helps.
            text.extend_from_slice(b" FORCE INDEX(PRIMARY)");
        }
        text.extend_from_slice(b" SET ");
        let mut first = true;
        for (n, column) in table.columns.iter().enumerate() {
            if !is_set(table, n, before, after) {
                continue;
            }
            if !std::mem::take(&mut first) {
                text.push(b',');
            }
            put_name(&mut text, column.name.as_bytes());
            text.push(b'=');
            put_stored(&mut text, table, types, n, after[n])?;
        }
        text.extend_from_slice(b" WHERE ");
        text.extend_from_slice(&condition);
        let mut key = Vec::new();
        let mut mend = Vec::new();
        if self.options.style == Style::Single {
            put_where(&mut key, table, types, before, &table.key)?;
            mend = mending(table, types, Some(before), after)?;
        }
        let look = self.look(table, types, before, &others)?;
        self.add(
            &text,
            Expect {
                rows: Some(1),
                note: note(gtid, table, Change::Update, &key),
                mend,
                look,
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
        let others = compare::columns(self.compare(), table, before, None);
        let condition = Writer::condition(table, types, before, &others)?;
        let mut text = b"DELETE FROM ".to_vec();
        text.extend_from_slice(&table.quoted);
        text.extend_from_slice(b" WHERE ");
        text.extend_from_slice(&condition);
        let mut key = Vec::new();
        let mut mend = Vec::new();
        if self.options.style == Style::Single {
            put_where(&mut key, table, types, before, &table.key)?;
            mend = vec![removing(table, &key)];
        }
        let look = self.look(table, types, before, &others)?;
        self.add(
            &text,
            Expect {
                rows: Some(1),
                note: note(gtid, table, Change::Delete, &key),
                mend,
                look,
            },
        );
        Ok(())
    }
}

fn removing(table: &TableInfo, key: &[u8]) -> Vec<u8> {
    [b"DELETE FROM ", &table.quoted[..], b" WHERE ", key].concat()
}

/// What makes `after` of a row, wherever it stands now: at its key, at the one of `before`, or nowhere.
fn mending(
    table: &TableInfo,
    types: &[ColumnType],
    before: Option<&Cells<'_>>,
    after: &Cells<'_>,
) -> Result<Vec<Vec<u8>>, Unfit> {
    let moved = before.filter(|before| table.key.iter().any(|n| before[*n] != after[*n]));
    let condition = |image: &Cells<'_>| {
        let mut key = Vec::new();
        put_where(&mut key, table, types, image, &table.key)?;
        Ok(key)
    };
    let mut all = Vec::new();
    let mut insert = b"INSERT INTO ".to_vec();
    put_insert_head(&mut insert, table);
    if table.unique.is_empty() && !table.related {
        if let Some(before) = moved {
            // The source has no row at the old key any more.
            all.push(removing(table, &condition(before)?));
        }
        put_values(&mut insert, table, types, after)?;
        put_on_duplicate(&mut insert, table, |_| true);
        all.push(insert);
        return Ok(all);
    }
    // A row that is found by another unique key is another one, which must stay as it is; and others may refer
    // to this one, which would go with it.
    for image in moved.into_iter().chain([after]) {
        let mut update = b"UPDATE ".to_vec();
        update.extend_from_slice(&table.quoted);
        update.extend_from_slice(b" SET ");
        let columns = table.columns.iter().enumerate();
        for (nth, (n, column)) in columns.filter(|(_, c)| !c.generated).enumerate() {
            if nth > 0 {
                update.push(b',');
            }
            put_name(&mut update, column.name.as_bytes());
            update.push(b'=');
            put_stored(&mut update, table, types, n, after[n])?;
        }
        update.extend_from_slice(b" WHERE ");
        update.extend_from_slice(&condition(image)?);
        all.push(update);
    }
    let mut values = Vec::new();
    put_values(&mut values, table, types, after)?;
    let head = insert.strip_suffix(b"VALUES").unwrap_or(&insert);
    let none = [&b"NOT EXISTS(SELECT 1 FROM "[..], &table.quoted, b" WHERE "].concat();
    let values = values.strip_prefix(b"(").and_then(|v| v.strip_suffix(b")"));
    all.push(
        [
            head,
            b"SELECT ",
            values.unwrap_or_default(),
            b" FROM DUAL WHERE ",
            &none,
            &condition(after)?,
            b")",
        ]
        .concat(),
    );
    Ok(all)
}

pub(super) fn put_cell(
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

/// The value that a column gets.
pub(super) fn put_stored(
    out: &mut Vec<u8>,
    table: &TableInfo,
    types: &[ColumnType],
    n: usize,
    cell: Cell<'_>,
) -> Result<(), Unfit> {
    let column = &table.columns[n];
    if let Cell::Bytes(bytes) = cell {
        let real = match types[n] {
            ColumnType::Float => bytes.try_into().ok().map(f32::from_le_bytes).map(f64::from),
            ColumnType::Double => bytes.try_into().ok().map(f64::from_le_bytes),
            _ => None,
        };
        if real.is_some_and(|n| !column.keeps(n)) {
            return Err(Unfit);
        }
        let is_minus_zero = real.is_some_and(|n| n == 0.0 && n.is_sign_negative());
        match (is_minus_zero, types[n]) {
            // Nothing that a statement can say is one to a DOUBLE; what is changed to it would count as no change.
            (true, ColumnType::Double) => return Err(Unfit),
            // -0 itself would be stored as 0. This is too small for a FLOAT, and keeps its sign.
            (true, _) if column.stored != Some(ColumnType::Double) => {
                out.extend_from_slice(b"-1e-60");
                return Ok(());
            }
            _ => {}
        }
    }
    put_cell(out, types[n], cell, column.unsigned, Text::Stored)
}

pub(super) fn put_insert_head(out: &mut Vec<u8>, table: &TableInfo) {
    out.extend_from_slice(&table.quoted);
    out.push(b'(');
    out.extend_from_slice(&table.column_list);
    out.extend_from_slice(b")VALUES");
}

pub(super) fn put_values(
    out: &mut Vec<u8>,
    table: &TableInfo,
    types: &[ColumnType],
    image: &Cells<'_>,
) -> Result<(), Unfit> {
    out.push(b'(');
    let mut first = true;
    let columns = table.columns.iter().enumerate();
    for (n, _) in columns.filter(|(_, c)| !c.generated) {
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        put_stored(out, table, types, n, image[n])?;
    }
    out.push(b')');
    Ok(())
}

pub(super) fn put_on_duplicate(
    out: &mut Vec<u8>,
    table: &TableInfo,
    changed: impl Fn(usize) -> bool,
) {
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

pub(super) fn compared<'t>(table: &'t TableInfo, n: usize) -> Text<'t> {
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
pub(super) fn same(table: &TableInfo, before: &Cells<'_>, after: &Cells<'_>) -> bool {
    let mut columns = table.columns.iter().enumerate();
    columns.all(|(n, column)| column.generated || before[n] == after[n])
}
