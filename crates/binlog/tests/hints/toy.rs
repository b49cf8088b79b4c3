//! A database of the smallest kind that has unique keys, foreign keys and
//! cascades, and compares texts as collations do.
//!
//! It takes rows as a replica does: a row that is not there, or a key that is
//! there twice, is an error. Cascades happen by themselves and are in no event.

use dromon_binlog::hints::{Action, Catalog, ForeignKey, KeyPart, TableSchema};

use crate::stream::{Change, Row, Val};

/// What a cascade does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    Refuse,
    Cascade,
    SetNull,
}

impl Does {
    fn action(self) -> Action {
        match self {
            Does::Refuse => Action::Refuse,
            _ => Action::Change,
        }
    }
}

/// A foreign key: child, its columns, parent, its columns, on delete, on update.
#[derive(Clone, Debug)]
pub struct Link {
    pub child: usize,
    pub columns: Vec<usize>,
    pub parent: usize,
    pub parent_columns: Vec<usize>,
    pub on_delete: Does,
    pub on_update: Does,
}

/// Tables without rows.
#[derive(Clone, Debug)]
pub struct Design {
    pub tables: Vec<TableSchema>,
    pub links: Vec<Link>,
}

impl Design {
    /// With the foreign keys written into the tables.
    pub fn new(mut tables: Vec<TableSchema>, links: Vec<Link>) -> Design {
        for link in &links {
            let name = |table: usize, columns: &[usize]| -> Vec<String> {
                let of = &tables[table].columns;
                columns.iter().map(|n| of[*n].name.clone()).collect()
            };
            let key = ForeignKey {
                columns: name(link.child, &link.columns),
                parent: tables[link.parent].name.clone(),
                parent_columns: name(link.parent, &link.parent_columns),
                on_delete: link.on_delete.action(),
                on_update: link.on_update.action(),
            };
            tables[link.child].foreign.push(key);
        }
        Design { tables, links }
    }

    pub fn catalog(&self) -> Catalog {
        Catalog::new(self.tables.clone())
    }
}

/// As the column's collation compares.
fn weights(text: &str, collation: Option<&str>) -> String {
    let name = collation.unwrap_or("binary");
    if name == "binary" {
        return text.into();
    }
    let text = text.trim_end_matches(' ');
    if name.ends_with("_bin") {
        return text.into();
    }
    let mut out = String::new();
    for c in text.chars() {
        match c {
            'ß' => out.push_str("ss"),
            'é' => out.push('e'),
            c if c.is_control() => {}
            'y' | 'Y' if name.contains("lithuanian") => out.push('i'),
            c => out.extend(c.to_lowercase()),
        }
    }
    out
}

/// Equal values give equal texts; NULL gives none.
fn folded(value: &Val, prefix: u32, collation: Option<&str>) -> Option<String> {
    match value {
        Val::Null => None,
        Val::Int(n) => Some(n.to_string()),
        Val::Text(text) => {
            let cut: String = match prefix {
                0 => text.clone(),
                n => text.chars().take(n as usize).collect(),
            };
            Some(weights(&cut, collation))
        }
    }
}

/// A database.
#[derive(Clone, Debug)]
pub struct Toy<'d> {
    design: &'d Design,
    pub rows: Vec<Vec<Row>>,
}

type Outcome = Result<(), &'static str>;

impl<'d> Toy<'d> {
    pub fn new(design: &'d Design) -> Toy<'d> {
        Toy {
            design,
            rows: vec![Vec::new(); design.tables.len()],
        }
    }

    /// Its rows, in no matter what order they came.
    pub fn content(&self) -> Vec<Vec<Row>> {
        let mut all = self.rows.clone();
        all.iter_mut().for_each(|rows| rows.sort());
        all
    }

    /// A change as a whole, or not at all.
    pub fn apply(&mut self, change: &Change) -> Outcome {
        let before = self.rows.clone();
        let done = self.try_apply(change);
        if done.is_err() {
            self.rows = before;
        }
        done
    }

    fn try_apply(&mut self, change: &Change) -> Outcome {
        let at = |toy: &Toy<'_>, row: &Row| {
            let found = toy.rows[change.table].iter().position(|r| r == row);
            found.ok_or("the row is not there")
        };
        match (&change.before, &change.after) {
            (None, Some(row)) => {
                self.check_parents(change.table, row, None)?;
                self.rows[change.table].push(row.clone());
                self.check_unique(change.table, row)
            }
            (Some(row), None) => {
                let at = at(self, row)?;
                self.delete(change.table, at, 0)
            }
            (Some(before), Some(after)) => {
                let at = at(self, before)?;
                self.check_parents(change.table, after, Some(before))?;
                self.update(change.table, at, after.clone(), 0)
            }
            _ => Err("nothing to do"),
        }
    }

    fn key(&self, table: usize, parts: &[KeyPart], row: &Row) -> Option<Vec<String>> {
        let columns = &self.design.tables[table].columns;
        let value = |part: &KeyPart| {
            let name = part.column.as_deref().unwrap();
            let n = columns.iter().position(|c| c.name == name).unwrap();
            folded(&row[n], part.prefix, columns[n].collation.as_deref())
        };
        parts.iter().map(value).collect()
    }

    fn check_unique(&self, table: usize, row: &Row) -> Outcome {
        for parts in &self.design.tables[table].unique {
            let Some(key) = self.key(table, parts, row) else {
                continue;
            };
            let others = self.rows[table].iter();
            let same = others.filter(|r| self.key(table, parts, r).as_ref() == Some(&key));
            if same.count() > 1 {
                return Err("the key is there twice");
            }
        }
        Ok(())
    }

    fn values(&self, table: usize, columns: &[usize], row: &Row) -> Option<Vec<String>> {
        let of = &self.design.tables[table].columns;
        let value = |n: &usize| folded(&row[*n], 0, of[*n].collation.as_deref());
        columns.iter().map(value).collect()
    }

    /// Only those that `before` had not.
    fn check_parents(&self, table: usize, row: &Row, before: Option<&Row>) -> Outcome {
        for link in self.design.links.iter().filter(|l| l.child == table) {
            let Some(wanted) = self.values(table, &link.columns, row) else {
                continue;
            };
            let had = before.and_then(|row| self.values(table, &link.columns, row));
            // A row may be its own parent.
            let itself = link.parent == table
                && self.values(table, &link.parent_columns, row).as_ref() == Some(&wanted);
            let mut parents = self.rows[link.parent].iter();
            let there = parents.any(|r| {
                self.values(link.parent, &link.parent_columns, r).as_ref() == Some(&wanted)
            });
            if had.as_ref() != Some(&wanted) && !itself && !there {
                return Err("the parent is not there");
            }
        }
        Ok(())
    }

    fn children(&self, link: &Link, wanted: &[String]) -> Vec<usize> {
        let rows = self.rows[link.child].iter().enumerate();
        rows.filter(|(_, row)| {
            self.values(link.child, &link.columns, row).as_deref() == Some(wanted)
        })
        .map(|(n, _)| n)
        .collect()
    }

    fn delete(&mut self, table: usize, at: usize, depth: usize) -> Outcome {
        if depth > 8 {
            return Err("it goes on for too long");
        }
        let row = self.rows[table].remove(at);
        let design = self.design;
        for link in design.links.iter().filter(|l| l.parent == table) {
            let Some(gone) = self.values(table, &link.parent_columns, &row) else {
                continue;
            };
            while let Some(child) = self.children(link, &gone).first().copied() {
                match link.on_delete {
                    Does::Refuse => return Err("there are children"),
                    Does::Cascade => self.delete(link.child, child, depth + 1)?,
                    Does::SetNull => {
                        let mut row = self.rows[link.child][child].clone();
                        link.columns.iter().for_each(|n| row[*n] = Val::Null);
                        self.update(link.child, child, row, depth + 1)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn update(&mut self, table: usize, at: usize, row: Row, depth: usize) -> Outcome {
        if depth > 8 {
            return Err("it goes on for too long");
        }
        let before = std::mem::replace(&mut self.rows[table][at], row.clone());
        self.check_unique(table, &row)?;
        let design = self.design;
        for link in design.links.iter().filter(|l| l.parent == table) {
            let same = link.parent_columns.iter().all(|n| before[*n] == row[*n]);
            let Some(gone) = self.values(table, &link.parent_columns, &before) else {
                continue;
            };
            if same {
                continue;
            }
            for child in self.children(link, &gone) {
                let mut changed = self.rows[link.child][child].clone();
                for (mine, theirs) in link.columns.iter().zip(&link.parent_columns) {
                    changed[*mine] = match link.on_update {
                        Does::Refuse => return Err("there are children"),
                        Does::Cascade => row[*theirs].clone(),
                        Does::SetNull => Val::Null,
                    };
                }
                self.update(link.child, child, changed, depth + 1)?;
            }
        }
        Ok(())
    }
}
