//! Names that stand in statements. Without I/O.
//!
//! Statements are cut into words and names, no more. What is not understood for sure is said to be
//! so, and whoever asks assumes the worst.

use crate::value::put_name;
use crate::words::{Lexer, Token, Wording};

/// Whether a statement of this kind changes only tables that it names.
pub(crate) fn is_of_tables(tokens: &[Token]) -> bool {
    let cursor = || Cursor::of(tokens);
    is_rebuild(cursor()) || matches!(read(&mut cursor()), Some(About::Tables(_)))
}

/// Whether a statement makes tables anew as they are. It is none that [`about`] knows: where some of its
/// tables are left out, it does no harm to do what there is of it.
fn is_rebuild(mut at: Cursor<'_>) -> bool {
    if !at.word(&["OPTIMIZE", "REPAIR"]) {
        return false;
    }
    at.word(&["NO_WRITE_TO_BINLOG", "LOCAL"]);
    at.word(&["TABLE", "TABLES"])
}

/// What a statement is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// These tables: database and name of each.
    Tables(Vec<(String, String)>),
    /// A database itself.
    Database(String),
    /// Nobody knows.
    Unknown,
}

/// It is of a kind that is about tables, but it cannot be seen which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unclear;

/// What kind of statement it is, as far as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Any,
    Tables,
    Database,
}

/// Reads names from tokens, one after the other.
struct Cursor<'t> {
    tokens: &'t [Token],
    database: &'t str,
    /// What follows the tokens, and is not understood.
    tail: Option<&'t [u8]>,
    /// It does not begin with a dot.
    closed: bool,
    kind: Kind,
    /// What was looked for may be in the tail.
    lost: bool,
}

impl<'t> Cursor<'t> {
    /// Of tokens behind which nothing counts.
    fn of(tokens: &'t [Token]) -> Cursor<'t> {
        Cursor {
            tokens,
            database: "",
            tail: None,
            closed: false,
            kind: Kind::Any,
            lost: false,
        }
    }

    /// The next token, and those behind it.
    fn next(&mut self) -> Option<(&'t Token, &'t [Token])> {
        let next = self.tokens.split_first();
        self.lost |= next.is_none() && self.tail.is_some();
        next
    }

    /// Passes the next token, if it is one of these words.
    fn word(&mut self, words: &[&str]) -> bool {
        let Some((first, rest)) = self.next() else {
            return false;
        };
        let found = !first.quoted
            && words
                .iter()
                .any(|word| first.text.eq_ignore_ascii_case(word));
        if found {
            self.tokens = rest;
        }
        found
    }

    fn if_exists(&mut self) {
        if self.word(&["IF"]) {
            self.word(&["NOT"]);
            self.word(&["EXISTS"]);
        }
    }

    fn pass(&mut self) -> Option<&'t Token> {
        let (first, rest) = self.next()?;
        self.tokens = rest;
        Some(first)
    }

    fn name(&mut self) -> Option<String> {
        let token = self.pass()?;
        token.known.then(|| token.text.clone())
    }

    fn table(&mut self) -> Option<(String, String)> {
        let qualified = self.tokens.first().is_some_and(|token| token.qualifies);
        let first = self.name()?;
        if qualified {
            return Some((first, self.name()?));
        }
        self.lost |= self.tokens.is_empty() && self.tail.is_some() && !self.closed;
        Some((self.database.to_owned(), first))
    }

    /// Passes the rest of an ALTER TABLE: its new name, and tables that change places with partitions.
    fn others(&mut self, tables: &mut Vec<(String, String)>) -> Option<()> {
        while !self.tokens.is_empty() {
            if self.word(&["RENAME"]) {
                // Columns and keys have new names, too.
                if self.word(&["COLUMN", "INDEX", "KEY"]) {
                    continue;
                }
                self.word(&["TO", "AS"]);
                tables.push(self.table()?);
            } else if self.word(&["WITH", "CONVERT", "TO"]) {
                if !self.tokens.is_empty() && self.word(&["TABLE"]) {
                    tables.push(self.table()?);
                }
            } else {
                self.pass()?;
            }
        }
        // Whatever it says, without these words it names no other table.
        self.lost |= self
            .tail
            .is_some_and(|tail| has_word(tail, &["RENAME", "TABLE"]));
        Some(())
    }

    /// Whether options of a database come next, where its name may be missing. Only COMMENT may be a name, too.
    fn is_option(&mut self) -> bool {
        let Some((first, rest)) = self.next() else {
            return true;
        };
        let is = |word: &str| !first.quoted && first.text.eq_ignore_ascii_case(word);
        let in_quotes = || rest.first().is_some_and(|next| next.quoted);
        if is("COMMENT") && !first.valued && rest.is_empty() {
            self.lost |= self.tail.is_some();
        }
        ["CHARACTER", "COLLATE", "DEFAULT"].into_iter().any(is)
            || is("COMMENT") && (first.valued || in_quotes())
    }

    fn is_listed(&mut self) -> bool {
        self.next().is_some_and(|(first, _)| first.listed)
    }
}

/// Whether one of these words may stand in a text.
fn has_word(text: &[u8], words: &[&str]) -> bool {
    words.iter().any(|word| {
        text.windows(word.len())
            .any(|part| part.eq_ignore_ascii_case(word.as_bytes()))
    })
}

fn read(at: &mut Cursor<'_>) -> Option<About> {
    const BETWEEN: [&str; 10] = [
        "OR",
        "REPLACE",
        "TEMPORARY",
        "ONLINE",
        "OFFLINE",
        "IGNORE",
        "UNIQUE",
        "FULLTEXT",
        "SPATIAL",
        "VECTOR",
    ];
    let mut tables = Vec::new();
    if at.word(&["LOAD"]) {
        if at.word(&["DATA", "XML"]) {
            at.kind = Kind::Tables;
        }
        at.word(&["LOW_PRIORITY", "CONCURRENT"]);
        at.word(&["LOCAL"]);
        // The name of the file is no token.
        let infile = at.word(&["INFILE"]);
        at.word(&["REPLACE", "IGNORE"]);
        if !infile || !at.word(&["INTO"]) || !at.word(&["TABLE"]) {
            return None;
        }
        tables.push(at.table()?);
    } else if at.word(&["TRUNCATE"]) {
        at.kind = Kind::Tables;
        at.word(&["TABLE"]);
        tables.push(at.table()?);
    } else if at.word(&["RENAME"]) {
        if !at.word(&["TABLE", "TABLES"]) {
            return None;
        }
        at.kind = Kind::Tables;
        at.if_exists();
        loop {
            tables.push(at.table()?);
            if at.word(&["WAIT"]) {
                at.pass();
            } else {
                at.word(&["NOWAIT"]);
            }
            if !at.word(&["TO"]) {
                return None;
            }
            tables.push(at.table()?);
            if !at.is_listed() {
                break;
            }
        }
    } else {
        let drops = at.word(&["DROP"]);
        let alters = !drops && at.word(&["ALTER"]);
        if !drops && !alters && !at.word(&["CREATE"]) {
            return None;
        }
        while at.word(&BETWEEN) {}
        if at.word(&["DATABASE", "SCHEMA"]) {
            at.kind = Kind::Database;
            at.if_exists();
            let name = match alters && at.is_option() {
                true => at.database.to_owned(),
                false => at.name()?,
            };
            return Some(About::Database(name));
        }
        if at.word(&["INDEX"]) {
            at.kind = Kind::Tables;
            while !at.word(&["ON"]) {
                at.pass()?;
            }
            tables.push(at.table()?);
        } else if at.word(&["TABLE", "TABLES"]) {
            at.kind = Kind::Tables;
            at.if_exists();
            tables.push(at.table()?);
            while drops && at.is_listed() {
                tables.push(at.table()?);
            }
            if alters {
                at.others(&mut tables)?;
            }
        } else {
            return None;
        }
    }
    Some(About::Tables(tables))
}

/// A statement that dumps write: all of it is in a comment that servers of some version read. If it is in a
/// binlog, the source has done it.
fn without_comment(text: &[u8]) -> Option<&[u8]> {
    let text = text.trim_ascii().strip_suffix(b"*/")?;
    let text = text
        .strip_prefix(b"/*!")
        .or_else(|| text.strip_prefix(b"/*M!"))?;
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    let text = &text[digits..];
    let is_whole = matches!(digits, 0 | 5 | 6) && text.first()?.is_ascii_whitespace();
    let has = |what: &[u8]| text.windows(2).any(|two| two == what);
    (is_whole && !has(b"/*") && !has(b"*/")).then_some(text)
}

/// A statement that servers write when a session ends that has temporary tables, without its comment.
fn end_of_session(text: &[u8]) -> Option<Vec<u8>> {
    let rest = text.strip_prefix(b"DROP /*!40005 TEMPORARY */ TABLE ")?;
    Some([b"DROP TEMPORARY TABLE ", rest].concat())
}

/// What a statement in a default database is about, if it is known how it is written.
///
/// # Errors
/// That cannot be seen for sure, and may be tables.
pub(crate) fn about_of(text: &[u8], database: &[u8], wording: Wording) -> Result<About, Unclear> {
    let text = without_comment(text).unwrap_or(text);
    let written = end_of_session(text);
    let text = written.as_deref().unwrap_or(text);
    let lexer = Lexer::read(text, wording);
    let Ok(database) = std::str::from_utf8(database) else {
        return Err(Unclear);
    };
    let mut cursor = Cursor {
        database,
        tail: lexer.tail(),
        closed: lexer.closed,
        ..Cursor::of(&lexer.tokens)
    };
    let found = read(&mut cursor);
    match (cursor.kind, found) {
        (_, Some(found)) if !cursor.lost => Ok(found),
        (Kind::Tables, _) => Err(Unclear),
        // No statement about tables is without these words.
        (Kind::Any, _)
            if cursor.lost && has_word(text, &["TABLE", "INDEX", "TRUNCATE", "LOAD"]) =>
        {
            Err(Unclear)
        }
        (Kind::Any | Kind::Database, _) => Ok(About::Unknown),
    }
}

/// What a statement in a default database is about.
pub fn about(text: &[u8], database: &[u8]) -> About {
    about_of(text, database, Wording::default()).unwrap_or(About::Unknown)
}

/// Whether all tables that a statement is about are named with their databases.
pub(crate) fn is_qualified(text: &[u8]) -> bool {
    match about(text, b"") {
        About::Tables(tables) => tables.iter().all(|(database, _)| !database.is_empty()),
        About::Database(name) => !name.is_empty(),
        About::Unknown => false,
    }
}

/// Whether a statement is about its default database, and does not name it.
pub(crate) fn is_of_default(text: &[u8]) -> bool {
    about(text, b"") == About::Database(String::new())
}

/// The words and names that a statement begins with, as far as they are understood.
fn beginning(text: &[u8]) -> Vec<Token> {
    Lexer::read(text, Wording::default()).tokens
}

/// The words that a statement begins with, four at most: none that is quoted or a number, nor what is
/// behind one, or behind a password's sign.
pub(crate) fn leading_words(text: &[u8]) -> String {
    let tokens = beginning(text);
    let is_word = |token: &&Token| {
        let first = token.text.bytes().next();
        !token.quoted && first.is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
    };
    let mut words: Vec<&str> = Vec::new();
    for token in tokens.iter().take_while(is_word).take(4) {
        words.push(&token.text);
        let upper = token.text.to_ascii_uppercase();
        if upper.contains("IDENTIFIED") || upper.contains("PASS") {
            break;
        }
    }
    words.join(" ")
}

/// Whether a statement changes rows, or a temporary table, and commits nothing.
pub(crate) fn changes_rows(text: &[u8]) -> bool {
    let tokens = beginning(text);
    let mut at = Cursor::of(&tokens);
    at.word(&["INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD"]) || temporary(text).is_some()
}

/// Whether it is a CREATE TABLE, and not of a temporary one.
pub(crate) fn makes_table(text: &[u8]) -> bool {
    let tokens = beginning(text);
    let mut at = Cursor::of(&tokens);
    if !at.word(&["CREATE"]) {
        return false;
    }
    while at.word(&["OR", "REPLACE"]) {}
    at.word(&["TABLE"])
}

/// A statement on a temporary table itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Temporary {
    /// It makes it.
    Made {
        /// What drops it again.
        drop: Vec<u8>,
        /// But only if there is none of that name.
        if_missing: bool,
    },
    /// It makes one, whatever was there, or drops some.
    Other,
}

/// `None`: it is none, or not understood.
pub(crate) fn temporary(text: &[u8]) -> Option<Temporary> {
    let tokens = beginning(text);
    let mut at = Cursor::of(&tokens);
    let drops = at.word(&["DROP"]);
    if !drops && !at.word(&["CREATE"]) {
        return None;
    }
    let mut replaces = false;
    while at.word(&["OR", "REPLACE"]) {
        replaces = true;
    }
    if !at.word(&["TEMPORARY"]) || !at.word(&["TABLE", "TABLES"]) {
        return None;
    }
    if drops || replaces {
        return Some(Temporary::Other);
    }
    let before = at.tokens.len();
    at.if_exists();
    let if_missing = at.tokens.len() < before;
    let (database, table) = at.table()?;
    let mut drop = b"DROP TEMPORARY TABLE IF EXISTS ".to_vec();
    if !database.is_empty() {
        put_name(&mut drop, database.as_bytes());
        drop.push(b'.');
    }
    put_name(&mut drop, table.as_bytes());
    Some(Temporary::Made { drop, if_missing })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::words::Charset;

    fn tables(text: &str) -> Option<String> {
        match about(text.as_bytes(), b"d") {
            About::Tables(all) => {
                let all: Vec<String> = all.iter().map(|(d, t)| format!("{d}.{t}")).collect();
                Some(all.join(" "))
            }
            About::Database(_) | About::Unknown => None,
        }
    }

    /// No filter stops at what a source writes by itself.
    #[test]
    fn temporary_tables_of_sessions_that_end() {
        let text = "DROP /*!40005 TEMPORARY */ TABLE IF EXISTS `tmp`,`b`";
        assert_eq!(tables(text).as_deref(), Some("d.tmp d.b"));
        let other = "DROP /*!40005 TEMPORARY */ TABLE IF EXISTS `tmp` /*!50000 ,c.x */";
        let unclear = about_of(other.as_bytes(), b"d", Wording::default());
        assert_eq!(unclear, Err(Unclear));
    }

    #[test]
    fn temporary_tables() {
        let made = |text: &str| match temporary(text.as_bytes()) {
            Some(Temporary::Made { drop, if_missing }) => {
                Some((String::from_utf8(drop).expect("a text"), if_missing))
            }
            _ => None,
        };
        let drop = |name: &str| format!("DROP TEMPORARY TABLE IF EXISTS {name}");
        for (text, name, if_missing) in [
            ("CREATE TEMPORARY TABLE t (a INT)", "`t`", false),
            (
                "/* x */ create temporary table if not exists d.`t``u` AS SELECT 'ä'",
                "`d`.`t``u`",
                true,
            ),
        ] {
            assert_eq!(made(text), Some((drop(name), if_missing)), "{text}");
            assert!(!makes_table(text.as_bytes()), "{text}");
        }
        for text in [
            "CREATE OR REPLACE TEMPORARY TABLE t (a INT)",
            "DROP TEMPORARY TABLE `t` /* generated by server */",
        ] {
            assert_eq!(temporary(text.as_bytes()), Some(Temporary::Other), "{text}");
            assert!(!makes_table(text.as_bytes()), "{text}");
        }
        for text in [
            "CREATE TABLE t (a INT)",
            "create or replace table `t` (a INT)",
        ] {
            assert_eq!(temporary(text.as_bytes()), None, "{text}");
            assert!(makes_table(text.as_bytes()), "{text}");
        }
        for text in [
            "UPDATE t",
            "CREATE /*!32302 TEMPORARY */ TABLE t (a INT)",
            "DROP TABLE t",
            "",
        ] {
            assert_eq!(temporary(text.as_bytes()), None, "{text}");
            assert!(!makes_table(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn what_statements_are_about() {
        for (text, wanted) in [
            ("CREATE TABLE t (a INT, b INT)", "d.t"),
            (
                "create or replace table if not exists x.`t` like y.u",
                "x.t",
            ),
            ("ALTER ONLINE IGNORE TABLE t ADD c INT, ADD e INT", "d.t"),
            (
                "DROP TABLE IF EXISTS a, x.b , `c` /* generated by server */",
                "d.a x.b d.c",
            ),
            ("DROP TEMPORARY TABLE a CASCADE", "d.a"),
            ("RENAME TABLE a TO x.a, x.b TO b", "d.a x.a x.b d.b"),
            ("ALTER TABLE x.t RENAME TO y.t", "x.t y.t"),
            ("ALTER TABLE t ADD c INT, RENAME u, ADD KEY (c)", "d.t d.u"),
            (
                "ALTER TABLE t RENAME COLUMN a TO b, RENAME KEY k TO l",
                "d.t",
            ),
            (
                "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE y.u WITHOUT VALIDATION",
                "d.t y.u",
            ),
            ("ALTER TABLE t CONVERT PARTITION p TO TABLE y.u", "d.t y.u"),
            (
                "ALTER TABLE t CONVERT TABLE u TO PARTITION p VALUES LESS THAN (9)",
                "d.t d.u",
            ),
            ("TRUNCATE x.t", "x.t"),
            ("TRUNCATE TABLE t", "d.t"),
            ("CREATE UNIQUE INDEX i USING BTREE ON x.t (a, b)", "x.t"),
            ("DROP INDEX IF EXISTS i ON t", "d.t"),
            (
                r"LOAD DATA LOCAL INFILE 'dromon' REPLACE INTO TABLE `x`.`t` FIELDS TERMINATED BY '\t'",
                "x.t",
            ),
            (
                r"LOAD DATA CONCURRENT LOCAL INFILE 'dromon' INTO TABLE `t` FIELDS ESCAPED BY '\\' (`ä`)",
                "d.t",
            ),
            ("load xml infile 'a' ignore into table t", "d.t"),
        ] {
            assert_eq!(tables(text).as_deref(), Some(wanted), "{text}");
        }
        let database = About::Database("x".into());
        for text in [
            "DROP DATABASE IF EXISTS x",
            "create schema `x`",
            "ALTER DATABASE x COLLATE y",
        ] {
            assert_eq!(about(text.as_bytes(), b"d"), database, "{text}");
            assert!(is_qualified(text.as_bytes()), "{text}");
        }
        for (text, name) in [
            ("ALTER DATABASE CHARACTER SET utf8mb4", "d"),
            ("ALTER SCHEMA DEFAULT COLLATE x", "d"),
            ("alter database collate = x", "d"),
            ("ALTER DATABASE COMMENT 'x' COLLATE y", "d"),
            ("ALTER DATABASE COMMENT = 'x'", "d"),
            ("ALTER DATABASE COMMENT \"x\"", "d"),
            // Names, as a server takes them.
            ("ALTER DATABASE comment COMMENT 'x'", "comment"),
            ("ALTER DATABASE comment COLLATE y", "comment"),
            ("ALTER DATABASE charset CHARSET y", "charset"),
            ("ALTER DATABASE `default` COLLATE y", "default"),
        ] {
            let wanted = About::Database(name.into());
            assert_eq!(about(text.as_bytes(), b"d"), wanted, "{text}");
            assert_eq!(is_qualified(text.as_bytes()), name != "d", "{text}");
            assert_eq!(is_of_default(text.as_bytes()), name == "d", "{text}");
        }
        for text in [
            "",
            "INSERT INTO x.t VALUES (1)",
            "CREATE VIEW v AS SELECT 1",
            "CREATE TRIGGER g AFTER INSERT ON t FOR EACH ROW SET @a = 1",
            "RENAME USER a TO b",
            "DROP INDEX i",
            "ALTER TABLE",
            "CREATE /*!50000 TEMPORARY */ TABLE t (a INT)",
            "LOAD DATA LOCAL INFILE 'dromon' INTO TABLE tä (a)",
            "LOAD DATA LOCAL INFILE 'dromon' INTO TABLE `tä` (a)",
            r"LOAD DATA INFILE 'a\b' INTO TABLE t",
            "LOAD DATA INFILE 'a' INTO t",
            "LOAD INDEX INTO CACHE t",
        ] {
            assert_eq!(about(text.as_bytes(), b"d"), About::Unknown, "{text}");
        }
    }

    /// Where a text ends depends on the session.
    #[test]
    fn what_is_not_in_ascii() {
        let shown = |text: &[u8], escapes: Option<bool>, charset: Charset| match about_of(
            text,
            b"d",
            Wording { escapes, charset },
        ) {
            Ok(About::Tables(all)) => {
                let all: Vec<String> = all.iter().map(|(d, t)| format!("{d}.{t}")).collect();
                all.join(" ")
            }
            other => format!("{other:?}"),
        };
        let unclear = "Err(Unclear)";
        let (yes, no) = (Some(true), Some(false));
        let (any, plain, utf8) = (Charset::Any, Charset::Plain, Charset::Utf8);
        for (text, escapes, charset, wanted) in [
            ("DROP TABLE `tä`, tö.`x`, ü", yes, utf8, "d.tä tö.x d.ü"),
            ("DROP TABLE `tä`", yes, plain, unclear),
            ("DROP TABLE tä", yes, plain, unclear),
            ("DROP INDEX `ä` ON t", yes, plain, "d.t"),
            ("DROP INDEX `ä` ON t", yes, any, unclear),
            ("DROP INDEX `äx` ON t", yes, any, "d.t"),
            (
                r"ALTER TABLE t COMMENT 'a\', RENAME TO x.y, COMMENT '",
                yes,
                any,
                "d.t",
            ),
            (
                r"ALTER TABLE t COMMENT 'a\', RENAME TO x.y, COMMENT ''",
                no,
                any,
                "d.t x.y",
            ),
            (
                r"ALTER TABLE t COMMENT 'a\', RENAME TO x.y, COMMENT ''",
                yes,
                any,
                unclear,
            ),
            (
                r"ALTER TABLE t COMMENT 'ä\\', RENAME TO x.y",
                yes,
                utf8,
                "d.t x.y",
            ),
            (
                r"ALTER TABLE t COMMENT 'ä\\', RENAME TO x.y",
                yes,
                any,
                unclear,
            ),
            (r"ALTER TABLE t COMMENT 'ä\\', COMMENT 'x'", yes, any, "d.t"),
            (
                "ALTER TABLE t COMMENT 'ä', RENAME TO x.y",
                None,
                any,
                "d.t x.y",
            ),
            ("ALTER TABLE t RENAME COLUMN `a` TO `ä`", None, any, "d.t"),
            (
                "ALTER TABLE t COMMENT \"ä\", RENAME x.`y`",
                None,
                any,
                "d.t x.y",
            ),
            (
                r#"ALTER TABLE t COMMENT "\"", RENAME x.y"#,
                yes,
                utf8,
                unclear,
            ),
            ("CREATE VECTOR INDEX i ON t (v)", None, any, "d.t"),
            ("/*M!100000 TRUNCATE t */ ", None, any, "d.t"),
            ("/*!50000 TRUNCATE t */ /*!50000 .u */", None, any, unclear),
        ] {
            assert_eq!(shown(text.as_bytes(), escapes, charset), wanted, "{text}");
        }
        for (text, wanted) in [
            ("ALTER TABLE a.x ADD n INT COMMENT 'ä'", true),
            ("ALTER TABLE x ADD n INT COMMENT 'ä'", false),
            ("ALTER TABLE a.x /*!50000 RENAME y */", false),
        ] {
            assert_eq!(is_qualified(text.as_bytes()), wanted, "{text}");
        }
        // In gbk the first text has one character, and no end at its second quote; in latin1 it has.
        let text = b"ALTER TABLE t COMMENT '\xb5\\', RENAME TO x.y, COMMENT ' '";
        assert_eq!(shown(text, yes, any), unclear);
        // Not in UTF-8, but a text is one anyway.
        assert_eq!(shown(b"DROP TABLE `\xe4`", yes, utf8), unclear);
        let text = b"ALTER TABLE t COMMENT '\xe4', RENAME TO x.y";
        assert_eq!(shown(text, yes, utf8), "d.t x.y");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_table_of_a_list(
            names in prop::collection::vec(("[a-z]{1,5}x", prop::option::of("[a-z]{1,5}y"), any::<bool>()), 1..6),
            space in prop::sample::select(vec!["", " ", "/* , */", "\n"]),
        ) {
            let quote = |text: &str, on: bool| if on { format!("`{text}`") } else { text.to_owned() };
            let written: Vec<String> = names
                .iter()
                .map(|(table, database, on)| match database {
                    Some(database) => format!("{}.{}", quote(database, *on), quote(table, !*on)),
                    None => quote(table, *on),
                })
                .collect();
            let wanted: Vec<(String, String)> = names
                .iter()
                .map(|(table, database, _)| (database.clone().unwrap_or("d".into()), table.clone()))
                .collect();
            let text = format!("DROP TABLE {} RESTRICT", written.join(&format!("{space},{space}")));
            prop_assert_eq!(about(text.as_bytes(), b"d"), About::Tables(wanted), "{}", text);
        }

        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            about(&bytes, b"d");
            about(&[b"DROP TABLE ", &bytes[..]].concat(), b"d");
        }
    }
}
