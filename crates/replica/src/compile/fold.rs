//! Rows of a unit put together by primary key: what came of each, in few statements.

use dromon_binlog::{Cell, Change, ColumnType, Gtid, Row, Value};
use rustc_hash::{FxHashMap, FxHashSet};

use super::compare::{self, Compare, put_same};
use super::images::{self, Origin};
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
    /// Of the first rows: those of `first`.
    origin: Option<Origin<'a>>,
    first: Option<Gtid>,
    rows: Vec<Net<'a>>,
    by_key: FxHashMap<Vec<u8>, usize>,
    /// These a transaction touched that comes last.
    last: FxHashSet<usize>,
    /// Of these the row is a delete that was an update of the key: what it had goes elsewhere.
    moved: FxHashSet<usize>,
    /// The column with AUTO_INCREMENT.
    counter: Option<usize>,
    /// Of the rows that were inserted and are gone again the one with the greatest number there.
    counted: Option<(u64, Cells<'a>)>,
    odd: bool,
}

impl<'a> Fold<'a> {
    /// `origin`: of the rows that come first.
    pub(super) fn new(
        table: &'a TableInfo,
        types: &'a [ColumnType],
        origin: Option<Origin<'a>>,
    ) -> Fold<'a> {
        Fold {
            table,
            types,
            origin,
            first: None,
            rows: Vec::new(),
            by_key: FxHashMap::default(),
            last: FxHashSet::default(),
            moved: FxHashSet::default(),
            counter: table.columns.iter().position(|c| c.auto_increment),
            counted: None,
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

    /// The next row of the table. `last`: its transaction comes last.
    pub(super) fn row(&mut self, gtid: Gtid, row: Row<'a>, last: bool) {
        self.first.get_or_insert(gtid);
        let touched = match (row.before, row.after) {
            (Some(before), Some(after)) => {
                let (a, b) = (self.key(&before), self.key(&after));
                if a == b {
                    [Some(self.step(a, Some(before), Some(after))), None]
                } else {
                    let at = self.step(a, Some(before), None);
                    self.moved.insert(at);
                    [Some(at), Some(self.step(b, None, Some(after)))]
                }
            }
            (None, Some(after)) => {
                let key = self.key(&after);
                [Some(self.step(key, None, Some(after))), None]
            }
            (Some(before), None) => {
                let key = self.key(&before);
                [Some(self.step(key, Some(before), None)), None]
            }
            (None, None) => [None, None],
        };
        if last {
            self.last.extend(touched.into_iter().flatten());
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
            (Net::Insert(image), None) => {
                self.gone_again(image);
                Net::Nothing
            }
            (Net::Nothing, None) => Net::Nothing,
            (Net::Update(first, _) | Net::Delete(first), Some(after)) => Net::Update(first, after),
            (Net::Update(first, _) | Net::Delete(first), None) => Net::Delete(first),
            (Net::Odd, _) => Net::Odd,
        };
        at
    }

    /// What a row has where the table counts; 0: nothing that counts.
    fn number(&self, image: &Cells<'_>) -> u64 {
        let number = |n: usize| {
            let unsigned = self.table.columns[n].unsigned;
            match image
                .get(n)?
                .value(*self.types.get(n)?, unsigned, 8)?
                .ok()?
            {
                Value::Int(number) => u64::try_from(number).ok(),
                Value::UInt(number) => Some(number),
                _ => None,
            }
        };
        self.counter.and_then(number).unwrap_or(0)
    }

    /// Nothing comes of an inserted row, but the source has counted on.
    fn gone_again(&mut self, image: Cells<'a>) {
        let number = self.number(&image);
        if number > self.counted.as_ref().map_or(0, |(most, _)| *most) {
            self.counted = Some((number, image));
        }
    }

    /// Whether another unique key of a row is another one now. Updates that do so are not folded: it was
    /// deleted and inserted (REPLACE), and the key may have been another row's.
    fn is_replaced(&self, before: &Cells<'_>, after: &Cells<'_>) -> bool {
        self.table.unique.iter().any(|n| before[*n] != after[*n])
    }

    /// Whether an update need not wait for what the unit does last: no transaction touched the row that comes
    /// last. It is there before and after the unit, with the same keys, so that no other row of it
    /// depends on it.
    fn comes_first(&self, at: usize, before: &Cells<'_>, after: &Cells<'_>) -> bool {
        !self.last.contains(&at) && !self.is_replaced(before, after)
    }

    /// Adds its statements: deletes free the keys that inserts take. `first`, if there is one, gets the updates
    /// that come first.
    pub(super) fn write(self, writer: &mut Writer<'_>, mut first: Option<&mut Writer<'_>>) {
        let Some(gtid) = self.first else { return };
        let compares = writer.compare() == Compare::Changed;
        let mut order: Vec<(&Vec<u8>, &usize)> = self.by_key.iter().collect();
        order.sort_unstable();
        let (mut gone, mut compared_whole) = (Vec::new(), Vec::new());
        let mut updates: Vec<Update<'_, '_>> = Vec::new();
        let mut updates_first: Vec<Update<'_, '_>> = Vec::new();
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
                        match first.is_some() && self.comes_first(**at, before, after) {
                            true => updates_first.push((before, after)),
                            false => updates.push((before, after)),
                        }
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
        // Else the target would give out numbers a second time when it is written to in the source's place. Here
        // the row's key is free. If another unique one is not, as its row was deleted and inserted in
        // between, this fails, and the rows are tried one by one.
        if let Some((number, image)) = &self.counted
            && inserts.iter().all(|after| self.number(after) < *number)
        {
            done = done.and_then(|()| writer.insert(self.table, self.types, gtid, image));
            done = done.and_then(|()| self.deletes(writer, gtid, &[image], false));
        }
        for after in inserts {
            done = done.and_then(|()| writer.insert(self.table, self.types, gtid, after));
        }
        if self.odd {
            // Must fail, so that the rows are tried one by one and the wrong one is named.
            let expect = Expect {
                rows: Some(u64::MAX),
                note: note(gtid, self.table, Change::Update, b""),
                mend: Vec::new(),
                look: None,
            };
            writer.add(b"DO 0", expect);
        }
        if let Some(first) = &mut first {
            done = done.and_then(|()| self.updates(first, gtid, &updates_first));
        }
        if done.is_err() {
            writer.cannot_say(&self.table.name);
        }
    }

    fn updates(
        &self,
        writer: &mut Writer<'_>,
        gtid: Gtid,
        rows: &[Update<'_, '_>],
    ) -> Result<(), Unfit> {
        let compare = writer.compare();
        if let (Compare::Key, Some(origin)) = (compare, &self.origin) {
            let columns = updates::changed(self.table, rows);
            if images::write(
                writer,
                self.table,
                (self.types, &columns),
                gtid,
                origin,
                rows,
            ) {
                return Ok(());
            }
        }
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
                    mend: Vec::new(),
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
                    mend: Vec::new(),
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
            local: false,
            transactional: true,
            care: crate::catalog::Care::default(),
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
            let mut fold = Fold::new(&table, &[], None);
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
                fold.row(gtid, row, false);
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

    proptest! {
        /// A unit of which some transactions come last, beside an earlier one that has no row in common with
        /// the others: what is done first need not know what the earlier one does, and it ends as one after
        /// the other.
        #[test]
        fn some_rows_come_last(
            there in prop::collection::btree_map(0u8..12, 0u8..64, 0..12),
            earlier in prop::collection::vec((0u8..3, 0u8..12, 0u8..12, 0u8..64), 0..12),
            steps in prop::collection::vec((0u8..5, 0u8..12, 0u8..12, 0u8..64), 1..30),
        ) {
            let gtid = Gtid { domain: 0, server: 1, seqno: 1 };
            let table = table();
            let rows = |now: &mut BTreeMap<u8, u8>, steps: &[(u8, u8, u8, u8)]| {
                let mut rows = Vec::new();
                for (what, a, b, v) in steps {
                    let image = |k: &u8, v: u8| vec![cell(*k), cell(v)];
                    rows.push(match (what, now.get(a).copied()) {
                        (0, None) => Row { before: None, after: Some(image(a, *v)) },
                        (1, Some(was)) if a == b || !now.contains_key(b) => {
                            now.remove(a);
                            now.insert(*b, *v);
                            rows.push(Row { before: Some(image(a, was)), after: Some(image(b, *v)) });
                            continue;
                        }
                        (2, Some(was)) => Row { before: Some(image(a, was)), after: None },
                        (_, Some(was)) => Row { before: Some(image(a, was)), after: Some(image(a, *v)) },
                        _ => continue,
                    });
                    match what {
                        2 => now.remove(a),
                        _ => now.insert(*a, *v),
                    };
                }
                rows
            };
            let keys = |row: &Row<'_>| -> Vec<u8> {
                row.before.iter().chain(&row.after).map(|image| number(image[0])).collect()
            };
            let mut now = there.clone();
            let before = rows(&mut now, &earlier);
            let taken: std::collections::BTreeSet<u8> = before.iter().flat_map(&keys).collect();
            let mut fold = Fold::new(&table, &[], None);
            for row in rows(&mut now, &steps) {
                let last = keys(&row).iter().any(|key| taken.contains(key));
                fold.row(gtid, row, last);
            }
            // What is done first, without what the earlier one does.
            let (mut state, mut locked) = (there.clone(), Vec::new());
            let mut rest = Vec::new();
            for (at, net) in fold.rows.iter().enumerate() {
                match net {
                    Net::Update(before, after) if fold.comes_first(at, before, after) => {
                        let key = number(after[0]);
                        prop_assert!(!taken.contains(&key));
                        locked.push(key);
                        prop_assert_eq!(state.insert(key, number(after[1])), Some(number(before[1])));
                    }
                    net => rest.push(net),
                }
            }
            for row in &before {
                prop_assert!(keys(row).iter().all(|key| !locked.contains(key)));
                if let Some(image) = &row.before {
                    prop_assert_eq!(state.remove(&number(image[0])), Some(number(image[1])));
                }
                if let Some(image) = &row.after {
                    prop_assert_eq!(state.insert(number(image[0]), number(image[1])), None);
                }
            }
            rest.sort_by_key(|net| !matches!(net, Net::Delete(_)));
            for net in rest {
                match net {
                    Net::Nothing => {}
                    Net::Insert(row) => prop_assert_eq!(state.insert(number(row[0]), number(row[1])), None),
                    Net::Update(before, after) => {
                        prop_assert_eq!(state.insert(number(after[0]), number(after[1])), Some(number(before[1])));
                    }
                    Net::Delete(row) => prop_assert_eq!(state.remove(&number(row[0])), Some(number(row[1]))),
                    Net::Odd => panic!("rows follow each other"),
                }
            }
            prop_assert_eq!(state, now);
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
        let mut fold = Fold::new(&table, &[], None);
        let insert = || Row {
            before: None,
            after: Some(vec![cell(1), cell(1)]),
        };
        fold.row(gtid, insert(), false);
        fold.row(gtid, insert(), false);
        assert!(fold.odd);
    }
}
