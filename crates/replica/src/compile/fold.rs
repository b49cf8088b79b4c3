//! Rows of a unit put together by primary key: what came of each, in few statements.

use dromon_binlog::{Cell, Change, ColumnType, Gtid, Row};
use rustc_hash::{FxHashMap, FxHashSet};

use super::compare::{self, Compare, put_same};
use super::rows::Cells;
use super::updates::{self, Update};
use super::writer::{
    ROWS_MAX, Writer, compared, put_cell, put_insert_head, put_on_duplicate, put_values, put_where,
    same,
};
use super::{Expect, note};
use crate::catalog::TableInfo;
use crate::value::{Unfit, put_name};

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
    /// Of these the row is a delete that was an update of the key: what it had goes elsewhere.
    moved: FxHashSet<usize>,
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
            moved: FxHashSet::default(),
            odd: false,
        }
    }

    /// Tells rows apart. In its order they lie about as in the primary key, so that neighbours are
    /// in one page.
    fn key(&self, image: &Cells<'_>) -> Vec<u8> {
        let mut key = Vec::new();
        for n in &self.table.key {
            let Cell::Bytes(bytes) = image[*n] else {
                continue;
            };
            if let Some(ColumnType::Int { .. }) = self.types.get(*n) {
                // The lowest byte comes first, and the sign is the highest bit.
                let unsigned = self.table.columns[*n].unsigned;
                let at = key.len();
                key.extend(bytes.iter().rev());
                key[at] ^= if unsigned { 0 } else { 0x80 };
            } else {
                key.extend_from_slice(bytes);
                key.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
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
                    let at = self.step(a, Some(before), None);
                    self.moved.insert(at);
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

    /// Gives the row's place.
    fn step(&mut self, key: Vec<u8>, before: Option<Cells<'a>>, after: Option<Cells<'a>>) -> usize {
        let next = self.rows.len();
        let at = *self.by_key.entry(key).or_insert(next);
        if at == next {
            self.rows.push(match (before, after) {
                (None, Some(after)) => Net::Insert(after),
                (Some(before), Some(after)) => Net::Update(before, after),
                (Some(before), None) => Net::Delete(before),
                (None, None) => Net::Nothing,
            });
            return at;
        }
        let was = std::mem::replace(&mut self.rows[at], Net::Odd);
        let there = matches!(was, Net::Insert(_) | Net::Update(..));
        if there != before.is_some() {
            self.odd = true;
            return at;
        }
        self.rows[at] = match (was, after) {
            (Net::Nothing | Net::Insert(_), Some(after)) => Net::Insert(after),
            (Net::Nothing | Net::Insert(_), None) => Net::Nothing,
            (Net::Update(first, _) | Net::Delete(first), Some(after)) => Net::Update(first, after),
            (Net::Update(first, _) | Net::Delete(first), None) => Net::Delete(first),
            (Net::Odd, _) => Net::Odd,
        };
        at
    }

    /// Whether another unique key of a row is another one now. Updates that do so are not folded: it was
    /// deleted and inserted (REPLACE), and the key may have been another row's.
    fn is_replaced(&self, before: &Cells<'_>, after: &Cells<'_>) -> bool {
        self.table.unique.iter().any(|n| before[*n] != after[*n])
    }

    /// Adds its statements: deletes free the keys that inserts take.
    pub(super) fn write(self, writer: &mut Writer<'_>) {
        let Some(gtid) = self.first else { return };
        let compares = writer.compare() == Compare::Changed;
        let mut order: Vec<(&Vec<u8>, &usize)> = self.by_key.iter().collect();
        order.sort_unstable();
        let (mut gone, mut compared_whole) = (Vec::new(), Vec::new());
        let mut updates: Vec<Update<'_, '_>> = Vec::new();
        let mut inserts = Vec::new();
        for (_, at) in &order {
            let (before, takes_along) = match &self.rows[**at] {
                Net::Delete(before) => (before, self.moved.contains(at)),
                Net::Update(before, after) if self.is_replaced(before, after) => {
                    inserts.push(after);
                    (before, true)
                }
                Net::Update(before, after) => {
                    if !same(self.table, before, after) {
                        updates.push((before, after));
                    }
                    continue;
                }
                Net::Insert(after) => {
                    inserts.push(after);
                    continue;
                }
                Net::Nothing | Net::Odd => continue,
            };
            match compares && takes_along {
                true => compared_whole.push(before),
                false => gone.push(before),
            }
        }
        let mut done = self.deletes(writer, gtid, &gone, false);
        done = done.and_then(|()| self.deletes(writer, gtid, &compared_whole, true));
        done = done.and_then(|()| self.updates(writer, gtid, &updates));
        for after in inserts {
            done = done.and_then(|()| writer.insert(self.table, self.types, gtid, after));
        }
        if self.odd {
            // Must fail, so that the rows are tried one by one and the wrong one is named.
            let expect = Expect {
                rows: Some(u64::MAX),
                note: note(gtid, self.table, Change::Update, b""),
                mend: None,
                look: None,
            };
            writer.add(b"DO 0", expect);
        }
        if done.is_err() {
            writer.unfit = true;
        }
    }

    fn updates(
        &self,
        writer: &mut Writer<'_>,
        gtid: Gtid,
        rows: &[Update<'_, '_>],
    ) -> Result<(), Unfit> {
        let compare = writer.compare();
        let (listed, rest) = updates::split(compare, self.table, self.types, rows);
        updates::write(writer, self.table, self.types, gtid, &listed)?;
        // Inserts that find their rows cannot compare.
        if self.table.unique.is_empty() && compare == Compare::Key {
            return self.upserts(writer, gtid, &rest);
        }
        for (before, after) in rest {
            writer.update(self.table, self.types, gtid, before, after)?;
        }
        Ok(())
    }

    /// `whole`: all of a row is compared.
    fn deletes(
        &self,
        writer: &mut Writer<'_>,
        gtid: Gtid,
        rows: &[&Cells<'_>],
        whole: bool,
    ) -> Result<(), Unfit> {
        let table = self.table;
        let mut text: Vec<u8> = Vec::new();
        let mut count = 0;
        let bytes = writer.statement_bytes();
        let in_list = table.key.len() == 1 && !whole;
        let mut end = |text: &mut Vec<u8>, count: &mut u64| {
            if *count > 0 {
                if in_list {
                    text.push(b')');
                }
                let expect = Expect {
                    rows: Some(std::mem::take(count)),
                    note: note(gtid, table, Change::Delete, b""),
                    mend: None,
                    look: None,
                };
                writer.add(text, expect);
                text.clear();
            }
        };
        for row in rows {
            if count as usize >= ROWS_MAX || text.len() > bytes {
                end(&mut text, &mut count);
            }
            if count == 0 {
                text.extend_from_slice(b"DELETE FROM ");
                text.extend_from_slice(&table.quoted);
                text.extend_from_slice(b" WHERE ");
            }
            if let ([n], true) = (&table.key[..], in_list) {
                let n = *n;
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
                if whole {
                    for n in compare::columns(Compare::Row, table, row, None) {
                        text.extend_from_slice(b" AND ");
                        put_same(&mut text, table, self.types, n, row[n])?;
                    }
                }
                text.push(b')');
            }
            count += 1;
        }
        end(&mut text, &mut count);
        Ok(())
    }

    /// Updates as inserts that find their rows there: each counts as two changed rows; one that
    /// finds none counts as one, and one that finds it as it shall become as none.
    fn upserts(
        &self,
        writer: &mut Writer<'_>,
        gtid: Gtid,
        rows: &[Update<'_, '_>],
    ) -> Result<(), Unfit> {
        let table = self.table;
        let mut text: Vec<u8> = Vec::new();
        let mut count = 0u64;
        let bytes = writer.statement_bytes();
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
                    look: None,
                };
                writer.add(text, expect);
                text.clear();
                changed.fill(false);
            }
        };
        for (before, after) in rows {
            if count as usize >= ROWS_MAX || text.len() > bytes {
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
            keys: Vec::new(),
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
