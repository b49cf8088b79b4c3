//! Statements that ask for their default database, or may name something in it. Without I/O.
//!
//! What is only defined asks for nothing yet: whoever calls a procedure, or reads a view, has the database of his
//! own, or of that, on either side.

use super::parts::{Part, Parts};
use crate::words::Wording;

/// Whether a statement calls DATABASE() or SCHEMA() when it is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    No,
    Yes,
    /// It cannot be read that far.
    Perhaps,
}

/// What a statement defines.
enum Defined {
    /// Something of which nothing is run now, from here on.
    Body(usize),
    /// An event: its schedule is computed, what stands behind DO is not run.
    Event,
}

fn defined(mut parts: Parts<'_>) -> Option<Defined> {
    parts.settings();
    if !parts.pass(&["CREATE", "ALTER"]) {
        return None;
    }
    loop {
        if parts.pass(&["OR", "REPLACE", "AGGREGATE"]) || parts.definer() {
            continue;
        }
        let passed = match (parts.pass(&["ALGORITHM"]), parts.pass(&["SQL"])) {
            (true, _) => parts.pass_sign(b'=') && parts.name(),
            (_, true) => parts.pass(&["SECURITY"]) && parts.name(),
            _ => break,
        };
        if !passed {
            return None;
        }
    }
    if parts.pass(&["EVENT"]) {
        return Some(Defined::Event);
    }
    let bodies = ["PROCEDURE", "FUNCTION", "TRIGGER", "VIEW", "PACKAGE"];
    parts.pass(&bodies).then_some(Defined::Body(parts.at))
}

/// Whether one of the two may be called in what cannot be read.
fn may_be_called(rest: &[u8]) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$');
    ["DATABASE", "SCHEMA"].iter().any(|word| {
        let begins = 0..(rest.len() + 1).saturating_sub(word.len());
        begins.into_iter().any(|from| {
            let (before, at) = rest.split_at(from);
            let (found, behind) = at.split_at(word.len());
            let mut behind = behind.iter().skip_while(|byte| **byte <= b' ');
            // A comment may come between.
            found.eq_ignore_ascii_case(word.as_bytes())
                && !before.last().is_some_and(is_word)
                && matches!(behind.next(), Some(b'(' | b'/' | b'*' | b'#' | b'-'))
        })
    })
}

/// Whether a statement asks for its default database.
pub(crate) fn asks(text: &[u8], wording: Wording) -> Asks {
    let (text, is_event) = match defined(Parts::new(text, wording)) {
        Some(Defined::Body(from)) => (&text[..from], false),
        Some(Defined::Event) => (text, true),
        None => (text, false),
    };
    let mut parts = Parts::new(text, wording);
    let mut before = Part::Sign(b' ');
    loop {
        let (part, from) = match parts.next() {
            Ok(Some(found)) => found,
            Ok(None) => return Asks::No,
            Err(()) if may_be_called(&text[parts.at..]) => return Asks::Perhaps,
            Err(()) => return Asks::No,
        };
        // Behind a dot every word is a name.
        let is_name = before == Part::Sign(b'.');
        before = part;
        if part != Part::Word || is_name {
            continue;
        }
        let is = |word: &str| text[from..parts.at].eq_ignore_ascii_case(word.as_bytes());
        if is_event && is("DO") {
            return Asks::No;
        }
        if (is("DATABASE") || is("SCHEMA")) && parts.pass_sign(b'(') {
            return Asks::Yes;
        }
    }
}

/// Whether a statement on tables that it names with their databases may name something else without one: a table
/// that it reads or is made like, a sequence, a function. Of a query it is not looked at what it reads and calls.
pub(crate) fn may_name_others(text: &[u8], wording: Wording) -> bool {
    const ANY: [&str; 8] = [
        "SELECT", "LIKE", "UNION", "NEXTVAL", "LASTVAL", "SETVAL", "VALUE", "SET",
    ];
    let mut parts = Parts::new(text, wording);
    let loads = parts.pass(&["LOAD"]);
    let mut computes = false;
    let mut before = Part::Sign(b' ');
    loop {
        let (part, from) = match parts.next() {
            Ok(Some(found)) => found,
            Ok(None) => return false,
            Err(()) => {
                let rest = &text[parts.at..];
                let has = |word: &str| {
                    let mut all = rest.windows(word.len());
                    all.any(|some| some.eq_ignore_ascii_case(word.as_bytes()))
                };
                return computes || ANY.into_iter().any(has);
            }
        };
        // Behind a dot every word is a name.
        let is_name = before == Part::Sign(b'.');
        before = part;
        if computes && part == Part::Sign(b'(') {
            return true;
        }
        if part != Part::Word || is_name {
            continue;
        }
        let found = &text[from..parts.at];
        let is = |words: &[&str]| {
            let mut words = words.iter();
            words.any(|word| found.eq_ignore_ascii_case(word.as_bytes()))
        };
        if is(&["CHARACTER"]) && parts.pass(&["SET"]) {
            continue;
        }
        // What tables are merged of, too.
        let named = is(&["UNION", "NEXTVAL", "LASTVAL", "SETVAL"])
            || is(&["VALUE"]) && parts.pass(&["FOR"])
            || is(&["LIKE"]) && is_alone(parts)
            || computes && is(&["FROM", "JOIN"]);
        if named {
            return true;
        }
        computes |= is(&["SELECT"]) || loads && is(&["SET"]);
    }
}

/// Whether a name comes next, and no name in it: neither a function nor a text.
fn is_alone(mut parts: Parts<'_>) -> bool {
    let from = match parts.next() {
        Ok(Some((Part::Word | Part::Quoted, from))) => from,
        Ok(_) => return false,
        Err(()) => return true,
    };
    parts.text[from] != b'\'' && !parts.pass_sign(b'.') && !parts.pass_sign(b'(')
}

/// Why a statement cannot be run where another database is the default one: its client had none.
pub(super) fn asks_database(
    text: &[u8],
    database: &[u8],
    wording: Wording,
) -> Option<&'static str> {
    if !database.is_empty() {
        return None;
    }
    match asks(text, wording) {
        Asks::No => None,
        Asks::Yes => Some(
            "its client had no default database, and it calls DATABASE() or SCHEMA(): a connection to the target has one, and \
             cannot give it up. Do it there by hand, and set gtid_pos in dromon_replica.position behind it",
        ),
        Asks::Perhaps => Some(
            "its client had no default database, and it may call DATABASE() or SCHEMA(), which cannot be read for sure: a connection to \
             the target has one, and cannot give it up. Do it there by hand, and set gtid_pos in dromon_replica.position behind it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::words::Charset;

    const UTF8: Wording = Wording {
        escapes: Some(true),
        charset: Charset::Utf8,
    };

    #[test]
    fn what_asks_for_the_default_database() {
        let asks_in = |database: &str, text: &str| {
            asks_database(text.as_bytes(), database.as_bytes(), UTF8).is_some()
        };
        assert!(!asks_in("d", "INSERT INTO a.t VALUES (DATABASE())"));
        for text in [
            "INSERT INTO a.t VALUES (DATABASE())",
            "INSERT INTO a.t SELECT schema ()",
            "INSERT INTO a.t VALUES (1,/* of */database(/**/))",
            "INSERT INTO a.t VALUES (1,DATABASE/*!50000 ()*/)",
            "INSERT INTO a.t VALUES ('it\\'s', DATABASE())",
            "CREATE TABLE a.t AS SELECT DATABASE()",
            "CREATE TABLE a.procedure AS SELECT DATABASE()",
            "CREATE EVENT a.e ON SCHEDULE AT IF(DATABASE() IS NULL, NOW(), '2040-01-01') DO SELECT 1",
            "CREATE EVENT a.do ON SCHEDULE AT IF(DATABASE() IS NULL, NOW(), '2040-01-01') DO SELECT 1",
            "SET STATEMENT lc_messages=DATABASE() FOR CREATE VIEW a.v AS SELECT 1",
        ] {
            assert!(asks_in("", text), "{text}");
        }
        for text in [
            "CREATE DATABASE d",
            "CREATE DATABASE /*!32312 IF NOT EXISTS*/ `d` /*!40100 DEFAULT CHARACTER SET utf8mb4 */",
            "DROP SCHEMA IF EXISTS d",
            "ALTER SCHEMA d CHARACTER SET utf8mb4",
            "INSERT INTO a.t VALUES ('DATABASE()')",
            "INSERT INTO a.`schema` (a) VALUES (1)",
            "INSERT INTO a.schema (a) VALUES (1)",
            "CREATE TABLE a . database (a INT)",
            "SELECT a.database()",
        ] {
            assert!(!asks_in("", text), "{text}");
        }
    }

    #[test]
    fn what_may_be_named_in_the_default_database() {
        for text in [
            "CREATE TABLE a.t SELECT * FROM orders",
            "CREATE TABLE a.t (id INT) AS (SELECT 1 x FROM b.t STRAIGHT_JOIN orders)",
            "CREATE TABLE a.t AS SELECT f(1)",
            "CREATE TABLE a.t LIKE orders",
            "CREATE TABLE a.t (LIKE `orders`)",
            "CREATE TABLE a.t LIKE/*!50000 orders */",
            "CREATE TABLE a.t LIKE \"orders\"",
            "CREATE TABLE a.t (id INT) ENGINE=MERGE UNION=(orders)",
            "ALTER TABLE a.t ADD b INT DEFAULT NEXT VALUE FOR s",
            "ALTER TABLE a.t ADD b INT DEFAULT (nextval(s))",
            "LOAD DATA INFILE 'x' INTO TABLE a.t (b, @c) SET c = f(@c)",
            r"CREATE TABLE a.t (id INT COMMENT 'it\'s') SELECT * FROM orders",
        ] {
            assert!(
                may_name_others(text.as_bytes(), Wording::default()),
                "{text}"
            );
        }
        for text in [
            "CREATE DATABASE d",
            "CREATE TABLE a.t (id INT, v VARCHAR(9) DEFAULT 'like this', CHECK (v LIKE 'a%'))",
            "CREATE TABLE a.t (v INT COMMENT 'SELECT', CHECK (v LIKE concat(v, 'a')))",
            "CREATE TABLE a.t LIKE b.orders",
            "CREATE TABLE a.t (LIKE `b` . `orders`)",
            "CREATE TABLE a.`like` (`union` INT)",
            "CREATE TABLE a.select (id INT)",
            "CREATE TABLE a.t AS SELECT 1 AS x, 'from (this)' AS y",
            "ALTER TABLE a.t RENAME TO b.t, ADD KEY (v)",
            "LOAD DATA INFILE 'x' INTO TABLE a.t CHARACTER SET utf8 (b, c)",
            r"CREATE TABLE a.t (id INT COMMENT 'it\'s')",
        ] {
            assert!(
                !may_name_others(text.as_bytes(), Wording::default()),
                "{text}"
            );
        }
    }

    /// Nothing of it is run now.
    #[test]
    fn what_is_only_defined() {
        for text in [
            "CREATE PROCEDURE a.p() SELECT DATABASE()",
            "CREATE DEFINER=`r`@`%` PROCEDURE a.p() SELECT DATABASE()",
            "CREATE OR REPLACE DEFINER=CURRENT_USER() FUNCTION a.f() RETURNS TEXT RETURN SCHEMA()",
            "CREATE AGGREGATE FUNCTION a.f() RETURNS TEXT RETURN SCHEMA()",
            "CREATE TRIGGER a.r BEFORE INSERT ON a.t FOR EACH ROW SET NEW.d = DATABASE()",
            "CREATE OR REPLACE ALGORITHM=MERGE DEFINER=r@localhost SQL SECURITY INVOKER VIEW a.v AS SELECT DATABASE()",
            "ALTER VIEW a.v AS SELECT \"a\\\"\", DATABASE()",
            "/*!50003 CREATE*/ /*!50020 DEFINER=`r`@`%`*/ /*!50003 PROCEDURE a.p() SELECT DATABASE() */",
            "CREATE PACKAGE BODY a.p AS x TEXT := DATABASE(); END",
            "CREATE EVENT a.do ON SCHEDULE EVERY 1 DAY COMMENT 'do' DO SELECT DATABASE()",
            "ALTER DEFINER=`r`@`%` EVENT a.e RENAME TO a.f DO INSERT INTO a.t VALUES (DATABASE())",
        ] {
            assert_eq!(asks(text.as_bytes(), UTF8), Asks::No, "{text}");
        }
    }

    /// Where a text ends depends on the session that it had.
    #[test]
    fn what_cannot_be_read() {
        let escapes = |escapes| Wording { escapes, ..UTF8 };
        let text = r"INSERT INTO a.t VALUES ('\', DATABASE(), '\')";
        assert_eq!(asks(text.as_bytes(), escapes(Some(true))), Asks::No);
        assert_eq!(asks(text.as_bytes(), escapes(Some(false))), Asks::Yes);
        assert_eq!(asks(text.as_bytes(), escapes(None)), Asks::Perhaps);
        for (behind, wanted) in [
            ("Database ()", Asks::Perhaps),
            ("schema/**/()", Asks::Perhaps),
            ("schema -- x\n()", Asks::Perhaps),
            ("a.information_schema()", Asks::No),
            ("NULL) -- of the database", Asks::No),
            ("schema_of()", Asks::No),
        ] {
            let text = format!(r#"INSERT INTO a.t VALUES ("a\"b", {behind})"#);
            assert_eq!(asks(text.as_bytes(), UTF8), wanted, "{text}");
        }
        for text in [
            r#"CREATE DATABASE d COMMENT "a\"b""#,
            "DROP SCHEMA /* SCHEMA() */ `d",
            "",
        ] {
            assert_eq!(asks(text.as_bytes(), Wording::default()), Asks::No);
        }
        let why = asks_database(text.as_bytes(), b"", escapes(None)).expect("it may");
        assert!(why.contains("for sure"), "{why}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// What calls it is not passed over, whatever stands before it that cannot be read.
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = asks(&bytes, Wording::default());
            let text = [b"INSERT INTO a.t VALUES (\"\\\"", &bytes[..], b" DATABASE())"].concat();
            prop_assert_eq!(asks(&text, Wording::default()), Asks::Perhaps);
        }
    }
}
