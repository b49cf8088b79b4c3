//! Names for what units meet in.
//!
//! Write sets are hashes. The key in which two units meet is found by going through the rows of one
//! of them again. That is never done where others wait, and not for every conflict: of the time that
//! passes a small part may be spent on it. What is not named so is told with its tables.

use std::time::{Duration, Instant};

use dromon_binlog::hints::{Meeting, Met, Namer};

use super::limits;
use crate::catalog::{TableInfo, Tables};
use crate::unit::Unit;
use crate::value::{Text, put_literal};

/// Rows at most that are gone through for one name.
const ROWS: usize = 20_000;
/// Of the time that passes one part in so many may be spent on names.
const PART: u32 = 100;
/// No more than so much is saved up.
const SAVED: Duration = Duration::from_millis(50);
/// Characters of a value that are shown.
const SHOWN: usize = 40;

/// What units meet in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// Without values of rows.
    pub open: String,
    /// All of it.
    pub whole: String,
}

impl<T: Into<String>> From<T> for Name {
    fn from(text: T) -> Name {
        let open = text.into();
        let whole = open.clone();
        Name { open, whole }
    }
}

impl Name {
    /// Values behind it, which not everybody may see.
    pub(super) fn with(mut self, values: &str) -> Name {
        self.whole += &format!(" ({values})");
        self
    }

    fn push(&mut self, text: &str) {
        self.open += text;
        self.whole += text;
    }
}

/// What may be spent on names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    left: Duration,
    /// More than there was.
    debt: Duration,
    looked: Instant,
}

impl Budget {
    /// All that may be saved up.
    pub(super) fn new(now: Instant) -> Budget {
        Budget {
            left: SAVED,
            debt: Duration::ZERO,
            looked: now,
        }
    }

    /// Whether anything is left.
    pub(super) fn may(&mut self, now: Instant) -> bool {
        let more = now.saturating_duration_since(self.looked) / PART;
        self.looked = now;
        let paid = more.min(self.debt);
        self.debt -= paid;
        self.left = (self.left + (more - paid)).min(SAVED);
        self.debt.is_zero() && !self.left.is_zero()
    }

    /// So much was spent.
    pub(super) fn spent(&mut self, time: Duration) {
        let paid = time.min(self.left);
        self.left -= paid;
        self.debt += time - paid;
    }
}

/// The tables that two units have in common.
pub(super) fn tables(one: &Unit, other: &Unit) -> String {
    let others = other.table_names();
    let mut both = one.table_names();
    both.retain(|name| others.contains(name));
    both.into_iter().collect::<Vec<_>>().join(", ")
}

/// The first key found in which two units meet: `shop.stock PRIMARY (17, 'ab')`, and how many there
/// are besides. `None`: it is no key, or too far away.
pub(super) fn key(one: &Unit, other: &Unit) -> Option<Name> {
    let meeting = Meeting::of(&one.keys, &other.keys);
    if meeting.is_empty() {
        return None;
    }
    let unit = if one.bytes <= other.bytes { one } else { other };
    let catalog = unit.tables.catalog();
    let mut namer = Namer::new(catalog, &meeting, ROWS, limits().bytes);
    let mut met = None;
    'all: for transaction in &unit.transactions {
        for event in transaction.events().flatten() {
            met = namer.event(&event, &transaction.form.format);
            if met.is_some() || namer.is_tired() {
                break 'all;
            }
        }
    }
    let met = met.or_else(|| namer.rest())?;
    let mut name = shown(&unit.tables, &met);
    match meeting.len() - 1 {
        0 => {}
        1 => name.push(" and one more key"),
        n => name.push(&format!(" and {n} more keys")),
    }
    Some(name)
}

fn shown(tables: &Tables, met: &Met) -> Name {
    let (database, table) = (&met.table.database, &met.table.table);
    let mut name = format!("{database}.{table}");
    if met.columns.is_empty() {
        return (name + " (all of it)").into();
    }
    let info = tables.find(database.as_bytes(), table.as_bytes());
    name.push(' ');
    name += &index_name(info.map(|info| &**info), &met.columns);
    if met.values.is_empty() {
        return (name + " (any key)").into();
    }
    let unsigned = |column: &usize| {
        let column = info.and_then(|info| info.columns.get(*column));
        column.is_some_and(|column| column.unsigned)
    };
    let values = met.columns.iter().zip(&met.values);
    let values: Vec<String> = values
        .map(|(column, (kind, bytes))| {
            let mut text = Vec::new();
            match put_literal(&mut text, *kind, bytes, unsigned(column), Text::Stored) {
                Ok(()) => shortened(&String::from_utf8_lossy(&text)),
                Err(_) => "?".into(),
            }
        })
        .collect();
    Name::from(name).with(&values.join(", "))
}

fn index_name(info: Option<&TableInfo>, columns: &[usize]) -> String {
    let Some(info) = info else {
        return "?".into();
    };
    match info.keys.iter().find(|(_, of)| of == columns) {
        Some((name, _)) => name.clone(),
        None => {
            let names = columns.iter().filter_map(|n| info.columns.get(*n));
            let names: Vec<&str> = names.map(|column| column.name.as_str()).collect();
            format!("[{}]", names.join(", "))
        }
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dromon_binlog::hints::{
        Catalog, Collector, Column, ForeignKey, KeyPart, TableName, TableSchema,
    };
    use dromon_binlog::{Event, Seen, Step};

    use super::*;
    use crate::compile::tests::{Raw, rows, table, unit, xid};

    type Change = (
        Option<(i32, Option<&'static str>)>,
        Option<(i32, Option<&'static str>)>,
    );

    fn schema(name: &str, unique: &[&str]) -> TableSchema {
        let column = |name: &str, kind: &str, collation: Option<&str>| Column {
            name: name.into(),
            kind: kind.into(),
            collation: collation.map(str::to_owned),
            generated: false,
        };
        TableSchema {
            name: TableName::new("d", name),
            columns: vec![
                column("id", "int(11)", None),
                column("v", "varchar(9)", Some("latin1_bin")),
            ],
            unique: unique.iter().map(|of| vec![KeyPart::of(of)]).collect(),
            foreign: Vec::new(),
            opaque: false,
        }
    }

    /// Tables with a unique key `u`, with a foreign key to `plain`, and without any key.
    fn tables() -> Arc<Tables> {
        let child = TableSchema {
            foreign: vec![ForeignKey {
                columns: vec!["id".into()],
                parent: TableName::new("d", "plain"),
                parent_columns: vec!["id".into()],
                ..ForeignKey::default()
            }],
            ..schema("child", &["v"])
        };
        let catalog = Catalog::new(vec![
            schema("plain", &["id"]),
            schema("unique", &["id", "v"]),
            schema("keyless", &[]),
            child,
        ]);
        let infos = ["plain", "unique", "keyless", "child"].map(|name| {
            let mut info = table(name);
            info.keys.push(("u".into(), vec![1]));
            (TableName::new("d", name), info)
        });
        Arc::new(Tables::of(infos).with_catalog(catalog))
    }

    /// A transaction for each table and its changes.
    fn unit_of(tables: &Arc<Tables>, all: &[(&str, &[Change])]) -> Unit {
        let transactions = all.iter().map(|(name, changes)| {
            let mut events: Vec<Raw> = vec![crate::compile::tests::query("BEGIN", "d")];
            events.extend(rows(name, changes));
            events.push(xid());
            events
        });
        let mut of = unit(transactions.collect());
        let mut union = dromon_binlog::hints::Union::new(1000);
        for transaction in &mut of.transactions {
            transaction.group.flags = dromon_binlog::gtid_flags::TRANSACTIONAL
                | dromon_binlog::gtid_flags::ALLOW_PARALLEL;
            let mut collector = Collector::new(limits());
            collector.learn(Arc::clone(tables.catalog()));
            let (group, last) = (transaction.group, transaction.events.len() - 1);
            for (n, raw) in transaction.events.iter().enumerate() {
                let step = match n {
                    0 => Step::Begin(group),
                    _ if n == last => Step::End(group, transaction.ending),
                    _ => Step::Within,
                };
                let event = Event::parse_unverified(raw, transaction.checksum());
                let seen = Seen {
                    event: event.expect("an event"),
                    step,
                    abandoned: None,
                };
                if let Some(set) = collector.event(&seen, &transaction.form.format) {
                    union.add(&set);
                }
            }
        }
        of.keys = Arc::new(union.finish());
        of.bytes = of.transactions.iter().map(|t| t.bytes()).sum();
        of.tables = Arc::clone(tables);
        of
    }

    fn met(one: &[(&str, &[Change])], other: &[(&str, &[Change])]) -> Option<String> {
        let tables = tables();
        let (one, other) = (unit_of(&tables, one), unit_of(&tables, other));
        let name = key(&one, &other);
        assert_eq!(name, key(&other, &one), "whichever comes first");
        let name = name?;
        // Values stand in the whole name only.
        let at = name.whole.find(['(', '\'']).unwrap_or(name.whole.len());
        let begin = name.whole[..at].trim_end();
        assert!(name.open.starts_with(begin), "{name:?}");
        let safe = ["", " (all of it)", " (any key)", " and one more key"];
        assert!(safe.contains(&&name.open[begin.len()..]), "{name:?}");
        Some(name.whole)
    }

    const fn insert(id: i32, v: &'static str) -> Change {
        (None, Some((id, Some(v))))
    }

    #[test]
    fn keys_have_names() {
        let (a, b) = (insert(17, "a"), insert(17, "b"));
        let other = insert(4, "c");
        let one = met(&[("plain", &[other]), ("plain", &[a])], &[("plain", &[b])]);
        assert_eq!(one.as_deref(), Some("d.plain PRIMARY (17)"));
        assert_eq!(met(&[("plain", &[other])], &[("plain", &[b])]), None);
        // By another unique key; a row that got another value there.
        let passed = (Some((1, Some("it's"))), Some((1, Some("x"))));
        let one = met(
            &[("unique", &[passed])],
            &[("unique", &[insert(2, "it's")])],
        );
        assert_eq!(one.as_deref(), Some(r"d.unique u ('it\'s')"));
        // Several.
        let all = [insert(1, "a"), insert(2, "b"), insert(3, "c")];
        let one = met(&[("plain", &all)], &[("plain", &all[..2])]);
        assert_eq!(one.as_deref(), Some("d.plain PRIMARY (1) and one more key"));
    }

    /// The row that a foreign key names; a table that has no keys.
    #[test]
    fn what_is_no_key_of_the_row() {
        let one = met(
            &[("child", &[insert(5, "a")])],
            &[("plain", &[insert(5, "b")])],
        );
        assert_eq!(one.as_deref(), Some("d.plain PRIMARY (5)"));
        let one = met(
            &[("keyless", &[insert(1, "a")])],
            &[("keyless", &[insert(2, "b")])],
        );
        assert_eq!(one.as_deref(), Some("d.keyless (all of it)"));
    }

    #[test]
    fn long_values() {
        let long = "x".repeat(SHOWN + 1);
        assert_eq!(shortened(&long), format!("{}…", "x".repeat(SHOWN)));
        assert_eq!(shortened(&long[1..]), long[1..]);
        let info = table("plain");
        assert_eq!(index_name(Some(&info), &[0]), "PRIMARY");
        assert_eq!(index_name(Some(&info), &[1, 0]), "[v, id]");
    }

    /// What was spent must come back, a small part of the time that passes.
    #[test]
    fn names_cost_little() {
        let ms = Duration::from_millis;
        let begin = Instant::now();
        let mut budget = Budget::new(begin);
        assert!(budget.may(begin));
        budget.spent(SAVED + ms(10));
        assert!(!budget.may(begin + ms(999)));
        assert!(budget.may(begin + ms(1_500)));
        budget.spent(ms(10));
        assert!(!budget.may(begin + ms(1_600)));
        // No more than so much is saved up.
        assert!(budget.may(begin + ms(3_600_000)));
        budget.spent(SAVED);
        assert!(!budget.may(begin + ms(3_600_000)));
    }
}
