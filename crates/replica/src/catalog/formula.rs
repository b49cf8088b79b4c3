//! Whether generated columns have other values here than on the source: some are computed by what the
//! source's session was, its time zone, its day, its rules for dates.
//!
//! Only those that are kept count: a column that is stored, or in an index.

use std::collections::{BTreeMap, BTreeSet};

use dromon_binlog::hints::Column;

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
    /// Something is divided: how many digits that has is `div_precision_increment` of whoever opened the table.
    digits: bool,
}

impl From {
    fn differs(&self) -> bool {
        self.zone || self.digits || self.dates && self.others
    }
}

/// What a formula consists of.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    /// In quotes of names.
    Name(String),
    /// A word of the language, a number, or a name without quotes (`sql_quote_show_create`).
    Word(String),
    /// A text.
    Text,
    /// Something else.
    Sign(char),
}

impl Part {
    fn is(&self, word: &str) -> bool {
        matches!(self, Part::Word(text) if text.eq_ignore_ascii_case(word))
    }

    /// Whether a condition may begin behind it, and nothing of it belongs to what stands before.
    fn opens(&self) -> bool {
        const WORDS: [&str; 8] = ["and", "or", "xor", "not", "case", "when", "then", "else"];
        matches!(self, Part::Sign('(' | ',')) || WORDS.iter().any(|word| self.is(word))
    }
}

/// The parts of a formula, as servers say them: with backslashes in texts, whatever the `sql_mode`. `None`: not
/// understood.
fn parts(formula: &str) -> Option<Vec<Part>> {
    let mut all = Vec::new();
    let mut chars = formula.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '`' | '"' | '\'' => {
                let mut text = String::new();
                loop {
                    match chars.next()? {
                        '\\' if char == '\'' => text.push(chars.next()?),
                        // A text, or a name with one.
                        '\\' if char == '"' => return None,
                        end if end == char => match chars.next_if_eq(&char) {
                            Some(twice) => text.push(twice),
                            None => break,
                        },
                        other => text.push(other),
                    }
                }
                all.push(match char {
                    '\'' => Part::Text,
                    _ => Part::Name(text),
                });
            }
            // Comments: of servers that keep a formula as it was written.
            '#' => return None,
            '-' if chars.peek() == Some(&'-') => return None,
            '/' if chars.peek() == Some(&'*') => return None,
            _ if char.is_ascii_alphanumeric() || matches!(char, '_' | '$') => {
                let mut text = String::from(char);
                let is_word = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$');
                while let Some(char) = chars.next_if(is_word) {
                    text.push(char);
                }
                all.push(Part::Word(text));
            }
            _ if !char.is_ascii() => return None,
            _ if char.is_ascii_whitespace() => {}
            _ => all.push(Part::Sign(char)),
        }
    }
    Some(all)
}

/// Whether of what stands at this place is read only whether it is NULL.
fn is_null_only(all: &[Part], at: usize) -> bool {
    let rest = match all.get(at + 1..) {
        Some([is, not, rest @ ..]) if is.is("is") && not.is("not") => rest,
        Some([is, rest @ ..]) if is.is("is") => rest,
        _ => return false,
    };
    // `x between y and z is null` is about all of it.
    rest.first().is_some_and(|part| part.is("null"))
        && (at == 0 || all[at - 1].opens())
        && !all.iter().any(|part| part.is("between"))
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
        let Some(all) = parts(&formula.text) else {
            from.zone = true;
            return;
        };
        for (at, part) in all.iter().enumerate() {
            let (text, quoted) = match part {
                Part::Name(text) => (text, true),
                Part::Word(text) => (text, false),
                Part::Sign('/') => {
                    from.digits = true;
                    continue;
                }
                Part::Text | Part::Sign(_) => continue,
            };
            let found = self.find(text);
            // Whether a value is NULL is the same in all sessions, if none of them computes it.
            let is_sent = found.is_some_and(|column| !self.of.contains_key(&column.name));
            if is_sent && is_null_only(&all, at) {
                continue;
            }
            if !quoted {
                let lower = text.to_lowercase();
                from.zone |= lower.contains("time");
                from.dates |= DATES.iter().any(|part| lower.contains(part));
            }
            if quoted || found.is_some() {
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
            generated: matches!(name, "via" | "c"),
        };
        let columns = [
            column("a", kind),
            column("via", own),
            column("c", own),
            column("b", "int(11)"),
            column("ä", "int(11)"),
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
            // Whether what is computed is NULL may depend on the session; and `is null` of more than a name.
            ("timestamp", "tinyint(4)", "if(`via` is null,1,NULL)"),
            ("timestamp", "tinyint(4)", "`a` = `b` is null"),
            ("timestamp", "tinyint(4)", "`b` between 1 and `a` is null"),
            ("timestamp", "tinyint(4)", "if(`a` is null,1,`a` > 5)"),
            ("timestamp", "tinyint(4)", "`a` is true"),
            ("timestamp", "varchar(9)", "concat('it\\'s',`a`,'x')"),
            ("int(11)", "varchar(40)", "concat(`a` / `b`)"),
            ("decimal(9,2)", "decimal(9,2)", "`a`/100"),
            // Not understood.
            ("int(11)", "varchar(9)", "concat(`a`,Ä)"),
            ("int(11)", "varchar(9)", "concat(`a`,'x"),
            ("int(11)", "varchar(9)", "concat(`a`,'x') -- '"),
            ("int(11)", "varchar(9)", "concat(`a`,\"x\\\"\")"),
            ("int(11)", "varchar(9)", "concat(`a`,`gone`)"),
        ] {
            assert!(stored(kind, own, text), "{kind}, {own} AS {text}");
        }
        for (kind, own, text) in [
            ("int(11)", "int(11)", "`a` + 1"),
            ("int(11)", "int(11)", "`a` DIV `b` % 7"),
            ("varchar(20)", "varchar(20)", "concat(`a`,'/')"),
            (
                "longtext",
                "varchar(40)",
                "json_value(`a`,'$.created_time')",
            ),
            ("varchar(20)", "varchar(20)", "lcase(hex(`a`))"),
            ("datetime", "date", "cast(`a` as date)"),
            ("date", "int(11)", "year(`via`)"),
            // Rows that are deleted by a mark.
            ("timestamp", "tinyint(4)", "if(`a` is null,1,NULL)"),
            ("timestamp", "tinyint(4)", "if(A IS NOT NULL,NULL,1)"),
            (
                "timestamp",
                "tinyint(4)",
                "`b` = 1 and `a` is null or `a` is not null",
            ),
            (
                "time",
                "tinyint(4)",
                "case when `a` is null then 1 else 0 end",
            ),
            ("int(11)", "varchar(9)", "concat(`a`,'Ä')"),
            ("int(11)", "varchar(9)", "concat(`a`,'it\\'s `time`')"),
            ("int(11)", "varchar(9)", "concat(`a`,'\\\\',`ä`)"),
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
