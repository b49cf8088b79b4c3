//! Which tables statements and rows touch, if that can be told for certain. Without I/O.
//!
//! A statement is read as one on a single table only if nothing in it can be another table, a view, a sequence or a
//! function that somebody made. And the target's tables say whether more happens with it: triggers, foreign keys. Of all
//! else nothing is said.

use std::collections::BTreeSet;

use dromon_binlog::{Checksum, Event, EventType, Format, Payload, Query};

use super::Filter;
use super::parts::{Part, Parts};
use super::rows::{is_frame, is_place};
use crate::catalog::Tables;
use crate::words::Wording;

/// Longer statements are not read.
const TEXT_MAX: usize = 1 << 20;

/// Tables, as database, 0, name, in lower case: more of them may be the same so than are.
pub(crate) type Touched = BTreeSet<Vec<u8>>;

/// Words behind which a parenthesis is no call of a function: none can have such a name.
const WORDS: [&str; 19] = [
    "VALUES", "IN", "AND", "OR", "NOT", "XOR", "WHERE", "LIKE", "BETWEEN", "WHEN", "THEN", "ELSE",
    "BY", "DIV", "MOD", "REGEXP", "RLIKE", "INTERVAL", "BINARY",
];
/// Functions of the server that depend on what they are given alone. Behind a space some could be another one's.
const FUNCTIONS: [&str; 26] = [
    "IF",
    "IFNULL",
    "NULLIF",
    "COALESCE",
    "GREATEST",
    "LEAST",
    "ABS",
    "ROUND",
    "FLOOR",
    "CEIL",
    "CEILING",
    "CONCAT",
    "CONCAT_WS",
    "LOWER",
    "UPPER",
    "LEFT",
    "RIGHT",
    "REPLACE",
    "SUBSTRING",
    "TRIM",
    "LENGTH",
    "CHAR_LENGTH",
    "NOW",
    "HEX",
    "UNHEX",
    "MD5",
];
/// Words with which something else may be read.
const OTHERS: [&str; 15] = [
    "SELECT",
    "FROM",
    "TABLE",
    "JOIN",
    "UNION",
    "WITH",
    "USING",
    "PROCEDURE",
    "RETURNING",
    "CALL",
    "INTO",
    "NEXT",
    "PREVIOUS",
    "NEXTVAL",
    "LASTVAL",
];

/// A name that is written as it is, in ASCII.
fn name(parts: &mut Parts<'_>) -> Option<Vec<u8>> {
    let (part, from) = parts.next().ok()??;
    let text = &parts.text[from..parts.at];
    let name = match part {
        Part::Word => text,
        Part::Quoted => text.strip_prefix(b"`")?.strip_suffix(b"`")?,
        Part::Sign(_) => return None,
    };
    let plain = name.is_ascii() && !name.is_empty() && !name.contains(&b'`');
    plain.then(|| name.to_vec())
}

/// The rest of a statement reads nothing but the columns of its table.
fn reads_nothing_else(mut parts: Parts<'_>) -> Option<()> {
    // The part before: whether a call may follow it, and where it ends.
    let mut before = (Part::Sign(b' '), 0, 0);
    loop {
        let behind_dot = before.0 == Part::Sign(b'.');
        let Some((part, from)) = parts.next().ok()? else {
            return Some(());
        };
        let text = &parts.text[from..parts.at];
        let is = |words: &[&str], text: &[u8]| {
            let mut words = words.iter();
            words.any(|word| text.eq_ignore_ascii_case(word.as_bytes()))
        };
        match part {
            Part::Word if !text.is_ascii() || is(&OTHERS, text) => return None,
            Part::Sign(b'@' | b';' | b'[' | b']' | b'{' | b'}' | 0x80..) => return None,
            Part::Sign(b'(') => {
                let (last, begin, end) = before;
                let called = &parts.text[begin..end];
                match last {
                    Part::Sign(_) => {}
                    Part::Word if is(&WORDS, called) => {}
                    Part::Word if is(&FUNCTIONS, called) && end == from => {}
                    _ => return None,
                }
            }
            _ => {}
        }
        // Behind a dot every word is a name.
        before = match behind_dot {
            true => (Part::Quoted, from, parts.at),
            false => (part, from, parts.at),
        };
    }
}

/// The only table that a statement reads or changes, as far as its words go: database and name.
fn one_table(text: &[u8], database: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    // Some servers run what stands there, others do not.
    let runs = |begin: &[u8]| text.windows(begin.len()).any(|part| part == begin);
    if runs(b"/*!") || runs(b"/*M!") {
        return None;
    }
    let mut parts = Parts::new(text, Wording::default());
    let update = parts.pass(&["UPDATE"]);
    let delete = !update && parts.pass(&["DELETE"]);
    if !update && !delete && !parts.pass(&["INSERT", "REPLACE"]) {
        return None;
    }
    while parts.pass(&["LOW_PRIORITY", "HIGH_PRIORITY", "QUICK", "IGNORE"]) {}
    let into = match delete {
        true => parts.pass(&["FROM"]),
        false => update || parts.pass(&["INTO"]),
    };
    if !into {
        return None;
    }
    let first = name(&mut parts)?;
    let (database, table) = match parts.pass_sign(b'.') {
        true => (first, name(&mut parts)?),
        false => (database.to_vec(), first),
    };
    let rest = parts;
    let goes_on = match (update, delete) {
        (true, _) => parts.pass(&["SET"]),
        (_, true) => parts.pass(&["WHERE", "ORDER", "LIMIT"]) || matches!(parts.next(), Ok(None)),
        // Names of columns may stand there.
        _ if parts.pass_sign(b'(') => {
            while name(&mut parts).is_some() && parts.pass_sign(b',') {}
            parts.pass_sign(b')') && parts.pass(&["VALUES"])
        }
        _ => parts.pass(&["VALUES", "SET"]),
    };
    // What was passed is read once more, but for the list of columns, which looks like a call.
    let from = if update || delete { rest } else { parts };
    reads_nothing_else(from).filter(|()| goes_on)?;
    Some((database, table))
}

/// Adds a table, if nothing else happens with its rows on the target.
fn add(touched: &mut Touched, tables: &Tables, database: &[u8], table: &[u8]) -> Option<()> {
    let found = tables.find(database, table)?;
    if !found.plain || found.related || !database.is_ascii() || !table.is_ascii() {
        return None;
    }
    touched.insert([database, &[0], table].concat().to_ascii_lowercase());
    Some(())
}

/// Which tables these events touch of those that are not left out. `statements`: only what is not rows, and with what that
/// reads. `None`: it may be any.
pub(crate) fn touched<'e>(
    events: impl IntoIterator<Item = &'e [u8]>,
    (checksum, format): (Checksum, &Format),
    filter: &Filter,
    tables: &Tables,
    statements: bool,
) -> Option<Touched> {
    // A default of a column may take the next value of one.
    if tables.has_sequences() {
        return None;
    }
    let leaves_out = |query: &Query<'_>, text: &[u8]| {
        !filter.is_empty() && filter.wants_statement(text, query.database) == Ok(false)
    };
    let mut found = Touched::new();
    for raw in events {
        let event = Event::parse_unverified(raw, checksum).ok()?;
        match event.decode(format).ok()? {
            Payload::TableMap(map) => {
                if statements || !filter.wants(map.database, map.table) {
                    continue;
                }
                add(&mut found, tables, map.database, map.table)?;
            }
            Payload::Query(query) => {
                let begin = query.begin();
                if is_frame(&begin) || is_place(&begin) {
                    continue;
                }
                let text = query.text(TEXT_MAX).ok()?;
                if leaves_out(&query, &text) {
                    continue;
                }
                let (database, table) = one_table(&text, query.database)?;
                add(&mut found, tables, &database, &table)?;
            }
            Payload::Gtid(_)
            | Payload::Rows(_)
            | Payload::Annotate(_)
            | Payload::Xid(_)
            | Payload::XaPrepare(_) => {}
            Payload::Other(_) if matches!(event.kind(), EventType::INTVAR | EventType::RAND) => {}
            _ => return None,
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::tests::{event, packed, query, rows, tables, xid};

    #[test]
    fn statements_on_one_table() {
        for text in [
            "UPDATE t SET a = a + 1 WHERE id = 5",
            "update low_priority ignore `t` set a='x (y)', b=NULL where id in (1,2) and not (c=3) limit 4",
            "DELETE FROM t",
            "DELETE FROM t /* SELECT */ WHERE a BETWEEN 3 AND (4 + 5) ORDER BY id -- x\n LIMIT 1",
            "DELETE FROM d.t WHERE d.t.a = 1",
            "INSERT INTO t VALUES (1,'a'),(2,CONCAT('b',HEX(3)))",
            "INSERT INTO `d`.`t` (id, `v`) VALUES (1, 'ä') ON DUPLICATE KEY UPDATE v = VALUES(v)",
            "insert ignore into t set a=IF(1 > 0, NOW(), NULL)",
            "REPLACE INTO t(id) VALUES(3)",
        ] {
            let found = one_table(text.as_bytes(), b"d");
            assert_eq!(found, Some((b"d".to_vec(), b"t".to_vec())), "{text}");
        }
        for text in [
            "UPDATE t, u SET t.a = u.a",
            "UPDATE t JOIN u SET a = 1",
            "UPDATE t x SET a = 1",
            "UPDATE t PARTITION (p) SET a = 1",
            "UPDATE t SET a = (SELECT 1)",
            "UPDATE t SET a = f(1)",
            "UPDATE t SET a = d.concat(1)",
            "UPDATE t SET a = d.in(1)",
            "UPDATE t SET a = concat (1)",
            "UPDATE t SET a = concat/**/(1)",
            "UPDATE t SET a = `f`(1)",
            "UPDATE t SET a = \"f\"(1)",
            "UPDATE t SET a = [f](1)",
            "UPDATE t SET a = {fn f(1)}",
            "UPDATE t SET a = @x",
            "UPDATE t SET a = NEXT VALUE FOR s",
            "UPDATE t SET a = s.nextval",
            "UPDATE /*!50000 d. */ t SET a = 1",
            "UPDATE /*M!100000 d. */ t SET a = 1",
            "UPDATE `t``u` SET a = 1",
            "UPDATE tä SET a = 1",
            "UPDATE t SET a = 'x\\'', b = 1",
            "UPDATE t SET a = 1; DELETE FROM u",
            "DELETE t FROM t JOIN u",
            "DELETE FROM t USING t, u",
            "DELETE FROM t, u USING t JOIN u",
            "DELETE FROM t WHERE a IN (SELECT b FROM u)",
            "DELETE FROM t RETURNING f(a)",
            "DELETE HISTORY FROM t",
            "INSERT INTO t SELECT * FROM u",
            "INSERT INTO t (SELECT * FROM u)",
            "INSERT INTO t (a) SELECT 1",
            "INSERT INTO t () VALUES ()",
            "INSERT INTO t VALUE (1)",
            "INSERT t VALUES (1)",
            "INSERT DELAYED INTO t VALUES (1)",
            "INSERT INTO t WITH x AS (VALUES (1)) SELECT 1",
            "SET STATEMENT max_statement_time=1 FOR DELETE FROM t",
            "LOAD DATA INFILE 'x' INTO TABLE t",
            "TRUNCATE t",
            "CALL p()",
        ] {
            assert_eq!(one_table(text.as_bytes(), b"d"), None, "{text}");
        }
    }

    #[test]
    fn what_is_touched() {
        let format = Format::unknown();
        let with = |filter: &Filter, events: &[Vec<u8>], statements: bool| {
            let events = events.iter().map(Vec::as_slice);
            let how = (format.checksum(), &format);
            let found = touched(events, how, filter, &tables(), statements)?;
            let found = found.iter().map(|name| String::from_utf8_lossy(name));
            Some(
                found
                    .map(|name| name.replace('\0', "."))
                    .collect::<Vec<_>>(),
            )
        };
        let all = Filter::default();
        let row = |name| rows(name, &[(None, Some((1, Some("a"))))]);
        let update = |name: &str| vec![query(&format!("UPDATE {name} SET v='a'"), "d")];
        let frame = [query("BEGIN", "d"), query("SAVEPOINT a", "d"), xid()];
        let both = [&frame[..], &row("plain"), &update("unique")].concat();
        let some = |names: &[&str]| Some(names.iter().map(|n| (*n).to_owned()).collect());
        assert_eq!(with(&all, &both, false), some(&["d.plain", "d.unique"]));
        assert_eq!(with(&all, &both, true), some(&["d.unique"]));
        let packed = vec![packed(&update("unique")[0])];
        assert_eq!(with(&all, &packed, true), some(&["d.unique"]));
        // More happens with these, or they are not known.
        for name in ["child", "keyless", "other"] {
            assert_eq!(with(&all, &update(name), true), None, "{name}");
            assert_eq!(with(&all, &row(name), false), None, "{name}");
        }
        assert_eq!(with(&all, &[query("CALL p()", "d")], false), None);
        let variable = event(EventType::USER_VAR.0, &[0; 9]);
        assert_eq!(with(&all, &[variable], false), None);
        let without = Filter::new(vec![], vec!["d".into()]);
        assert_eq!(with(&without, &both, false), some(&[]));
        // Whose next value an INSERT may take.
        let sequence = dromon_binlog::hints::TableName::new("d", "s");
        let tables = tables().with_sequences([&sequence]);
        let how = (format.checksum(), &format);
        let events = both.iter().map(Vec::as_slice);
        assert_eq!(touched(events, how, &all, &tables, false), None);
    }
}
