//! Whether generated columns have other values here than on the source: some are computed by what the
//! source's session was, its time zone, its day, its rules for dates.
//!
//! Only those that are kept count: a column that is stored, or in an index.

use std::collections::{BTreeMap, BTreeSet};

use dromon_binlog::hints::Column;

use crate::names::{Token, tokens};

/// How a column is computed.
#[derive(Clone, Debug)]
pub(super) struct Formula {
    /// It stands in the row.
    pub stored: bool,
    /// From what.
    pub text: String,
}

/// Parts of words that read a date or a time.
const DATES: [&str; 9] = [
    "date", "day", "month", "year", "week", "quarter", "hour", "minute", "second",
];

/// What a value is computed from.
#[derive(Default)]
struct From {
    /// Dates or times, as such or out of other values.
    dates: bool,
    /// Other values than dates: whether one is a date depends on `sql_mode`.
    others: bool,
    /// The time zone, or the day, may take part.
    zone: bool,
}

impl From {
    fn differs(&self) -> bool {
        self.zone || self.dates && self.others
    }
}

fn word(kind: &str) -> &str {
    kind.split(['(', ' ']).next().unwrap_or("")
}

/// The columns of a table, in their order, and the formulas of those that have one.
pub(super) struct Formulas<'t> {
    pub columns: Vec<&'t Column>,
    pub of: &'t BTreeMap<String, Formula>,
}

impl Formulas<'_> {
    /// Whether one that is kept may differ. `indexed`: columns of indexes of any kind.
    pub(super) fn differ(&self, indexed: &BTreeSet<String>) -> bool {
        self.of.iter().any(|(name, formula)| {
            let kept = formula.stored || indexed.contains(name);
            kept && {
                let mut from = From::default();
                self.read(name, &mut from, &mut BTreeSet::new());
                from.differs()
            }
        })
    }

    fn find(&self, name: &str) -> Option<&Column> {
        let name = name.to_lowercase();
        let mut columns = self.columns.iter();
        columns.find(|c| c.name.to_lowercase() == name).copied()
    }

    fn read(&self, name: &str, from: &mut From, seen: &mut BTreeSet<String>) {
        let Some(column) = self.find(name) else {
            from.zone = true;
            return;
        };
        let kind = word(&column.kind);
        // What becomes a TIMESTAMP, or comes from one, goes through the zone; a TIME gets the day.
        from.zone |= kind == "timestamp";
        let Some(formula) = self.of.get(&column.name) else {
            match kind {
                "timestamp" | "time" => from.zone = true,
                "date" | "datetime" => from.dates = true,
                _ => from.others = true,
            }
            return;
        };
        from.dates |= matches!(kind, "date" | "datetime" | "time");
        if !seen.insert(column.name.clone()) {
            return;
        }
        let Some(all) = tokens(formula.text.as_bytes()) else {
            // Not understood.
            from.zone = true;
            return;
        };
        for Token { text, quoted, .. } in &all {
            let lower = text.to_lowercase();
            if !quoted {
                from.zone |= lower.contains("time");
                from.dates |= DATES.iter().any(|part| lower.contains(part));
            }
            // Names may stand without quotes (sql_quote_show_create).
            if *quoted || self.find(text).is_some() {
                self.read(text, from, seen);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table with a column of this type, and one computed from it.
    fn differs(kind: &str, (own, text): (&str, &str), stored: bool, indexed: bool) -> bool {
        let column = |name: &str, kind: &str| Column {
            name: name.into(),
            kind: kind.into(),
            collation: None,
            generated: name != "a",
        };
        let columns = [
            column("a", kind),
            column("via", own),
            column("c", own),
            column("deep", "varchar(9)"),
        ];
        let formula = |text: &str, stored: bool| Formula {
            stored,
            text: text.into(),
        };
        let of = BTreeMap::from([
            ("c".to_owned(), formula(text, stored)),
            ("via".to_owned(), formula("`a`", false)),
        ]);
        let indexed: BTreeSet<String> = indexed.then(|| "c".to_owned()).into_iter().collect();
        let all = Formulas {
            columns: columns.iter().collect(),
            of: &of,
        };
        all.differ(&indexed)
    }

    #[test]
    fn what_depends_on_the_session() {
        let stored = |kind: &str, own: &str, text: &str| differs(kind, (own, text), true, false);
        for (kind, own, text) in [
            ("timestamp", "date", "cast(`a` as date)"),
            ("timestamp(6)", "datetime(6)", "`a`"),
            ("timestamp", "date", "cast(\"A\" as date)"),
            ("timestamp", "date", "cast(a as date)"),
            ("timestamp", "varchar(40)", "concat(`via`,'x')"),
            ("datetime", "bigint(20)", "unix_timestamp(`a`)"),
            ("datetime", "timestamp", "`a`"),
            ("time", "datetime", "`a`"),
            ("varchar(20)", "date", "`a`"),
            ("varchar(20)", "int(11)", "year(`a`)"),
            ("int(11)", "varchar(9)", "dayname(`a`)"),
            // Not understood.
            ("int(11)", "varchar(9)", "concat(`a`,'Ä')"),
            ("int(11)", "varchar(9)", "concat(`a`,`gone`)"),
        ] {
            assert!(stored(kind, own, text), "{kind}, {own} AS {text}");
        }
        for (kind, own, text) in [
            ("int(11)", "int(11)", "`a` + 1"),
            (
                "longtext",
                "varchar(40)",
                "json_value(`a`,'$.created_time')",
            ),
            ("varchar(20)", "varchar(20)", "lcase(hex(`a`))"),
            ("datetime", "date", "cast(`a` as date)"),
            ("date", "int(11)", "year(`via`)"),
        ] {
            assert!(!stored(kind, own, text), "{kind}, {own} AS {text}");
        }
    }

    /// What is computed anew whenever it is read is nobody's affair.
    #[test]
    fn only_what_is_kept() {
        let of = ("date", "cast(`a` as date)");
        assert!(!differs("timestamp", of, false, false));
        assert!(differs("timestamp", of, false, true));
        assert!(differs("timestamp", of, true, false));
    }
}
