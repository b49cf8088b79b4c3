//! Names that stand in statements. Without I/O.
//!
//! Statements are cut into words and names, no more. What is not understood for sure is said to be
//! so, and whoever asks assumes the worst.

use crate::value::put_name;

/// A word or a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub text: String,
    /// It cannot be a word of the language.
    pub quoted: bool,
    /// A dot follows.
    pub qualifies: bool,
    /// A comma came before it.
    pub listed: bool,
    /// A text or an equals sign follows.
    pub valued: bool,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$')
}

/// Where a quoted text ends, from behind its first quote on, and what stands in it.
fn quoted(bytes: &[u8], quote: u8) -> Option<(String, usize)> {
    let mut out = String::new();
    let mut at = 0;
    loop {
        match *bytes.get(at)? {
            0x80.. => return None,
            // What it means depends on the session.
            b'\\' if quote != b'`' => return None,
            byte if byte == quote => {
                if bytes.get(at + 1) != Some(&quote) {
                    return Some((out, at + 1));
                }
                out.push(char::from(quote));
                at += 2;
            }
            byte => {
                out.push(char::from(byte));
                at += 1;
            }
        }
    }
}

/// `None`: it is not understood.
pub(crate) fn tokens(bytes: &[u8]) -> Option<Vec<Token>> {
    let mut all = Vec::new();
    let whole = bytes.is_ascii() && read_tokens(bytes, &mut all).is_some();
    whole.then_some(all)
}

/// `None`: what follows those that were found is not understood.
fn read_tokens(bytes: &[u8], all: &mut Vec<Token>) -> Option<()> {
    let mut at = 0;
    let mut comma = false;
    let value = |all: &mut Vec<Token>| {
        if let Some(last) = all.last_mut() {
            last.valued = true;
        }
    };
    while let Some(byte) = bytes.get(at) {
        let rest = &bytes[at..];
        match byte {
            b'`' | b'"' | b'\'' => {
                let (text, used) = quoted(&rest[1..], *byte)?;
                if *byte == b'\'' {
                    value(all);
                } else {
                    all.push(Token {
                        text,
                        quoted: true,
                        qualifies: false,
                        listed: std::mem::take(&mut comma),
                        valued: false,
                    });
                }
                at += 1 + used;
            }
            // Others would have to know the version.
            b'/' if rest.starts_with(b"/*!") || rest.starts_with(b"/*M!") => return None,
            b'/' if rest.starts_with(b"/*") => {
                at += 4 + rest[2..].windows(2).position(|two| two == b"*/")?;
            }
            b'#' => at += rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len()),
            b'-' if rest.starts_with(b"--") && rest.get(2).is_none_or(|b| *b <= b' ') => {
                at += rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
            }
            b',' => {
                comma = true;
                at += 1;
            }
            b'=' => {
                value(all);
                at += 1;
            }
            b'.' => {
                if let Some(last) = all.last_mut() {
                    last.qualifies = true;
                }
                at += 1;
            }
            0x80.. => return None,
            byte if is_word(*byte) => {
                let end = rest.iter().position(|b| !is_word(*b)).unwrap_or(rest.len());
                if rest.get(end).is_some_and(|byte| !byte.is_ascii()) {
                    return None;
                }
                all.push(Token {
                    text: String::from_utf8_lossy(&rest[..end]).into_owned(),
                    quoted: false,
                    qualifies: false,
                    listed: std::mem::take(&mut comma),
                    valued: false,
                });
                at += end;
            }
            _ => at += 1,
        }
    }
    Some(())
}

/// Whether a statement of this kind changes only tables that it names.
pub(crate) fn is_of_tables(tokens: &[Token]) -> bool {
    let cursor = || Cursor {
        tokens,
        database: "",
    };
    is_rebuild(cursor()) || matches!(read(cursor()), Some(About::Tables(_)))
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

/// Reads names from tokens, one after the other.
struct Cursor<'t> {
    tokens: &'t [Token],
    database: &'t str,
}

impl Cursor<'_> {
    /// Passes the next token, if it is one of these words.
    fn word(&mut self, words: &[&str]) -> bool {
        let Some((first, rest)) = self.tokens.split_first() else {
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

    fn one(&mut self) -> Option<String> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(first.text.clone())
    }

    fn table(&mut self) -> Option<(String, String)> {
        let qualified = self.tokens.first()?.qualifies;
        let first = self.one()?;
        match qualified {
            true => Some((first, self.one()?)),
            false => Some((self.database.to_owned(), first)),
        }
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
                if self.word(&["TABLE"]) {
                    tables.push(self.table()?);
                }
            } else {
                self.one()?;
            }
        }
        Some(())
    }

    /// Whether options of a database come next, where its name may be missing. Only COMMENT may be a name, too.
    fn is_option(&self) -> bool {
        let Some((first, rest)) = self.tokens.split_first() else {
            return true;
        };
        let is = |word: &str| !first.quoted && first.text.eq_ignore_ascii_case(word);
        let in_quotes = || rest.first().is_some_and(|next| next.quoted);
        ["CHARACTER", "COLLATE", "DEFAULT"].into_iter().any(is)
            || is("COMMENT") && (first.valued || in_quotes())
    }

    fn is_listed(&self) -> bool {
        self.tokens.first().is_some_and(|token| token.listed)
    }
}

fn read(mut at: Cursor<'_>) -> Option<About> {
    const BETWEEN: [&str; 9] = [
        "OR",
        "REPLACE",
        "TEMPORARY",
        "ONLINE",
        "OFFLINE",
        "IGNORE",
        "UNIQUE",
        "FULLTEXT",
        "SPATIAL",
    ];
    let mut tables = Vec::new();
    if at.word(&["LOAD"]) {
        at.word(&["DATA", "XML"]);
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
        at.word(&["TABLE"]);
        tables.push(at.table()?);
    } else if at.word(&["RENAME"]) {
        if !at.word(&["TABLE", "TABLES"]) {
            return None;
        }
        at.if_exists();
        loop {
            tables.push(at.table()?);
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
            at.if_exists();
            let name = match alters && at.is_option() {
                true => at.database.to_owned(),
                false => at.one()?,
            };
            return Some(About::Database(name));
        }
        if at.word(&["INDEX"]) {
            while !at.word(&["ON"]) {
                at.one()?;
            }
            tables.push(at.table()?);
        } else if at.word(&["TABLE", "TABLES"]) {
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

/// What a statement in a default database is about.
pub fn about(text: &[u8], database: &[u8]) -> About {
    let mut tokens = Vec::new();
    let whole = read_tokens(text, &mut tokens).is_some() && text.is_ascii();
    let Ok(database) = std::str::from_utf8(database) else {
        return About::Unknown;
    };
    // Of LOAD DATA the table comes first; behind it are terminators, mostly with a backslash.
    let loads = || {
        let first = tokens.first();
        first.is_some_and(|token| !token.quoted && token.text.eq_ignore_ascii_case("LOAD"))
    };
    if !whole && !loads() {
        return About::Unknown;
    }
    let cursor = Cursor {
        tokens: &tokens,
        database,
    };
    read(cursor).unwrap_or(About::Unknown)
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
    let mut tokens = Vec::new();
    // What follows need not be understood.
    let _ = read_tokens(text, &mut tokens);
    tokens
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
    let mut at = Cursor {
        tokens: &tokens,
        database: "",
    };
    at.word(&["INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD"]) || temporary(text).is_some()
}

/// Whether it is a CREATE TABLE, and not of a temporary one.
pub(crate) fn makes_table(text: &[u8]) -> bool {
    let tokens = beginning(text);
    let mut at = Cursor {
        tokens: &tokens,
        database: "",
    };
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
    let mut at = Cursor {
        tokens: &tokens,
        database: "",
    };
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

    fn tables(text: &str) -> Option<String> {
        match about(text.as_bytes(), b"d") {
            About::Tables(all) => {
                let all: Vec<String> = all.iter().map(|(d, t)| format!("{d}.{t}")).collect();
                Some(all.join(" "))
            }
            About::Database(_) | About::Unknown => None,
        }
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
