//! Statements of the source, with the session that they had.

use dromon_binlog::{
    ColumnType, Event, EventType, Flavour, Format, Gtid, Query, StatusVar, StatusVars, Value,
    flags, gtid_extra,
};
use rustc_hash::FxHashMap;

use super::{CompileError, Op};
use crate::names::is_of_default;
use crate::value::{put_name, put_text};
use crate::words::{Charset, Wording};

/// Longest statement.
const TEXT_MAX: usize = 1 << 30;

/// A bit of sql_mode.
pub(super) const NO_BACKSLASH_ESCAPES: u64 = 1 << 20;

/// The same: directories that a statement names for a table are left out. Where they would be is the
/// target's own affair.
const NO_DIR_IN_CREATE: u64 = 1 << 7;

/// Bits of a statement's flags, and the variables that they are.
const SWITCHES: [(u32, &str, bool); 7] = [
    (0x400_0000, "foreign_key_checks", false),
    (0x800_0000, "unique_checks", false),
    (0x4000, "sql_auto_is_null", true),
    (0x8000, "check_constraint_checks", false),
    (0x1000_0000, "sql_if_exists", true),
    (0x100_0000, DEFAULTS, true),
    (0x8_0000, "autocommit", false),
];

/// Of these, what a TIMESTAMP is whose definition does not say it.
const DEFAULTS: &str = "explicit_defaults_for_timestamp";

/// Whether such a source sets its bit. Elsewhere it is never set, whatever the variable is there.
fn says_defaults(format: &Format) -> bool {
    let (major, minor, patch) = format.version();
    let since = match (major, minor) {
        (10, ..=4) => return false,
        (10, 5) => 17,
        (10, 6) => 9,
        (10, 7) => 5,
        (10, 8) => 4,
        (10, 9) => 2,
        _ => 0,
    };
    format.flavour() == Flavour::MariaDb && major >= 10 && patch >= since
}

/// Of the same flags: system_versioning_insert_history, which servers have from 10.11 on.
const INSERT_HISTORY: u32 = 0x4000_0000;

/// Names of collations and their character sets, by number, and what else not every target has.
#[derive(Clone, Debug, Default)]
pub struct Collations {
    names: FxHashMap<u32, (String, String)>,
    /// The target has `character_set_collations`.
    has_defaults: bool,
    /// It has `system_versioning_insert_history`.
    pub(crate) has_history: bool,
    /// Its own `sql_mode` has NO_DIR_IN_CREATE.
    no_directories: bool,
    /// It does not survive a BINLOG of rows of a sequence.
    pub(crate) falls_by_sequences: bool,
}

impl Collations {
    /// Of (number, collation, character set).
    pub fn of(all: impl IntoIterator<Item = (u32, String, String)>) -> Collations {
        Collations {
            names: all.into_iter().map(|(n, a, b)| (n, (a, b))).collect(),
            has_defaults: false,
            has_history: false,
            no_directories: false,
            falls_by_sequences: false,
        }
    }

    /// The same for a target whose sessions have defaults of their own, `character_set_collations`.
    #[must_use]
    pub fn with_defaults(self, has_defaults: bool) -> Collations {
        Collations {
            has_defaults,
            ..self
        }
    }

    /// The same for a target that can insert history, with `system_versioning_insert_history`.
    #[must_use]
    pub fn with_history(self, has_history: bool) -> Collations {
        Collations {
            has_history,
            ..self
        }
    }

    /// The same for a target that puts tables into no other directories, whatever a statement says.
    #[must_use]
    pub fn without_directories(self, no_directories: bool) -> Collations {
        Collations {
            no_directories,
            ..self
        }
    }

    /// The same for a target that ends by a signal where BINLOG brings it rows of a sequence.
    #[must_use]
    pub fn that_falls_by_sequences(self, falls_by_sequences: bool) -> Collations {
        Collations {
            falls_by_sequences,
            ..self
        }
    }

    /// A collation and its character set.
    pub(super) fn find(&self, number: u32) -> Option<&(String, String)> {
        self.names.get(&number)
    }

    /// A session's defaults: pairs of a character set, by any of its collations, and a collation.
    fn defaults(&self, pairs: &[(u16, u16)]) -> Option<String> {
        let name = |(charset, collation): &(u16, u16)| {
            let (_, charset) = self.find(u32::from(*charset))?;
            let (collation, _) = self.find(u32::from(*collation))?;
            Some(format!("{charset}={collation}"))
        };
        let all: Option<Vec<String>> = pairs.iter().map(name).collect();
        Some(all?.join(","))
    }
}

/// How a statement with this status is written.
pub(super) fn wording(status: StatusVars<'_>, collations: &Collations) -> Wording {
    let mut wording = Wording::default();
    for var in status.flatten() {
        match var {
            StatusVar::SqlMode(mode) => wording.escapes = Some(mode & NO_BACKSLASH_ESCAPES == 0),
            StatusVar::Charset(client, ..) => {
                let found = collations.find(u32::from(client));
                wording.charset = found.map_or(Charset::Any, |(_, name)| Charset::named(name));
            }
            _ => {}
        }
    }
    wording
}

/// Errors that say nothing of how far a statement came: it was ended, or something ran out.
const CUT_OFF: [u16; 17] = [
    1020, 1021, 1026, 1028, 1030, 1037, 1038, 1041, 1053, 1114, 1184, 1205, 1213, 1317, 1613, 1927,
    1969,
];
/// The same: the client's connection.
const NET: std::ops::RangeInclusive<u16> = 1156..=1161;

/// Why a statement cannot be run that ended with this error on the source, after a part of what it was to
/// do. Others end with the same error here, at the same row.
pub(super) fn cut_off(error: u16) -> Option<String> {
    (CUT_OFF.contains(&error) || NET.contains(&error)).then(|| {
        format!(
            "a statement of it was cut off by error {error} on the source, and a part of what it was to do remained there, in tables without \
             transactions; how large a part is not known here. Make these tables what they are on the source by hand, and set gtid_pos in \
             dromon_replica.position behind it"
        )
    })
}

/// Why a statement with this status cannot be run on the target.
pub(super) fn lacks(status: StatusVars<'_>, collations: &Collations) -> Option<&'static str> {
    let history = |var| matches!(var, StatusVar::Flags(bits) if bits & INSERT_HISTORY != 0);
    (!collations.has_history && status.flatten().any(history)).then_some(
        "a statement of it ran with system_versioning_insert_history=ON, which the target does not have: there, rows \
         of the past would be rows of today. Insert them on the source under binlog_format=ROW",
    )
}

/// What the next statement needs beside its own event.
#[derive(Debug, Default)]
pub(super) struct Before {
    setup: Vec<u8>,
    /// There are texts in it.
    texts: bool,
    /// As of [`says_defaults`].
    defaults: bool,
}

fn le(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// A `SET` list.
struct Sets(Vec<u8>);

impl Sets {
    fn add(&mut self, what: &str) {
        let comma: &[u8] = if self.0.is_empty() { b"SET " } else { b"," };
        self.0.extend_from_slice(comma);
        self.0.extend_from_slice(what.as_bytes());
    }
}

impl Before {
    /// In a transaction of this form.
    pub(super) fn of(format: &Format) -> Before {
        Before {
            defaults: says_defaults(format),
            ..Before::default()
        }
    }

    fn add(&mut self, text: &[u8]) {
        self.setup.extend_from_slice(b";");
        self.setup.extend_from_slice(text);
    }

    /// An event in front of a statement. False: it is none.
    pub(super) fn event(
        &mut self,
        event: &Event<'_>,
        collations: &Collations,
    ) -> Option<Result<(), &'static str>> {
        let body = event.body();
        Some(match event.kind() {
            EventType::INTVAR => match body {
                [1, rest @ ..] => {
                    self.add(format!("SET last_insert_id={}", le(rest)).as_bytes());
                    Ok(())
                }
                [2, rest @ ..] => {
                    self.add(format!("SET insert_id={}", le(rest)).as_bytes());
                    Ok(())
                }
                _ => Err("a number for its auto_increment has an unknown kind"),
            },
            EventType::RAND => match body.split_at_checked(8) {
                Some((a, b)) => {
                    let text = format!("SET rand_seed1={}, rand_seed2={}", le(a), le(b));
                    self.add(text.as_bytes());
                    Ok(())
                }
                None => Err("seeds for RAND are cut off"),
            },
            EventType::USER_VAR => match user_variable(body, collations) {
                Some(text) => {
                    // A backslash is one, whatever the statement before was run with; this one's comes behind.
                    if !std::mem::replace(&mut self.texts, true) {
                        self.add(b"SET sql_mode=''");
                    }
                    self.add(&text);
                    Ok(())
                }
                None => Err("a user variable of it cannot be read"),
            },
            _ => return None,
        })
    }

    /// The statement.
    pub(super) fn statement(
        &mut self,
        query: &Query<'_>,
        event: &Event<'_>,
        gtid: Gtid,
        collations: &Collations,
    ) -> Result<Op, CompileError> {
        self.statement_of(query, query.status(), event, gtid, collations)
    }

    /// The same of one whose event has its status elsewhere.
    pub(super) fn statement_of(
        &mut self,
        query: &Query<'_>,
        status: StatusVars<'_>,
        event: &Event<'_>,
        gtid: Gtid,
        collations: &Collations,
    ) -> Result<Op, CompileError> {
        let bad = |error| CompileError::Event { gtid, error };
        let mut sets = Sets(Vec::new());
        let mut micros = 0;
        let mut late = Sets(Vec::new());
        let (mut increment, mut offset) = (1, 1);
        let mut lc_time = 0;
        let mut history = false;
        let mut defaults = Vec::new();
        for var in status {
            match var.map_err(bad)? {
                StatusVar::Flags(bits) => {
                    history = bits & INSERT_HISTORY != 0;
                    for (bit, name, on) in SWITCHES {
                        match name {
                            // A transaction is begun and ended here.
                            "autocommit" => {}
                            // The server's own threads take their own global value then.
                            DEFAULTS if !self.defaults => sets.add(&format!("{name}=DEFAULT")),
                            _ => {
                                let value = u8::from((bits & bit != 0) == on);
                                sets.add(&format!("{name}={value}"));
                            }
                        }
                    }
                }
                StatusVar::SqlMode(mode) => {
                    let own = match collations.no_directories {
                        true => NO_DIR_IN_CREATE,
                        false => 0,
                    };
                    sets.add(&format!("sql_mode={}", mode | own));
                }
                StatusVar::AutoIncrement(by, from) => (increment, offset) = (by, from),
                StatusVar::Charset(client, connection, server) => {
                    sets.add(&format!("character_set_client={client}"));
                    sets.add(&format!("collation_connection={connection}"));
                    sets.add(&format!("collation_server={server}"));
                }
                StatusVar::TimeZone(zone) => {
                    let mut text = b"time_zone=".to_vec();
                    put_text(&mut text, zone, 0);
                    sets.add(&String::from_utf8_lossy(&text));
                }
                StatusVar::LcTimeNames(n) => lc_time = n,
                StatusVar::DatabaseCharset(n) => late.add(&format!("collation_database={n}")),
                StatusVar::Microseconds(n) => micros = n,
                StatusVar::CollationMap(pairs) => defaults = pairs,
                _ => {}
            }
        }
        // An older target has none.
        if collations.has_defaults {
            let of = collations
                .defaults(&defaults)
                .ok_or_else(|| CompileError::Unsupported {
                    gtid,
                    what:
                        "the target does not know its default collations (character_set_collations)"
                            .into(),
                })?;
            sets.add(&format!("character_set_collations='{of}'"));
        }
        if collations.has_history {
            let value = u8::from(history);
            sets.add(&format!("system_versioning_insert_history={value}"));
        }
        sets.add(&format!("auto_increment_increment={increment}"));
        sets.add(&format!("auto_increment_offset={offset}"));
        sets.add(&format!("lc_time_names={lc_time}"));
        sets.add(&format!(
            "timestamp={}.{micros:06}",
            event.header().timestamp
        ));
        sets.add(&format!("pseudo_thread_id={}", query.thread_id));
        // Names are in UTF-8, whatever the statement is in.
        let mut setup = b"SET NAMES utf8mb4".to_vec();
        let begin = setup.len();
        let text = query.text(TEXT_MAX).map_err(bad)?.into_owned();
        // The source suppresses it for all statements on databases, also for those that do not name one.
        let suppressed = event.header().has(flags::SUPPRESS_USE) && !is_of_default(&text);
        if !suppressed && !query.database.is_empty() {
            setup.extend_from_slice(b";USE ");
            put_name(&mut setup, query.database);
        }
        let uses = begin..setup.len();
        setup.append(&mut self.setup);
        self.texts = false;
        setup.push(b';');
        setup.extend_from_slice(&sets.0);
        if !late.0.is_empty() {
            setup.push(b';');
            setup.extend_from_slice(&late.0);
        }
        Ok(Op::Statement {
            setup,
            uses,
            text,
            load: None,
            error: query.error,
            gtid,
        })
    }
}

/// Whether it only announces an ALTER, or takes that back: what is announced is done when its commit
/// comes, which says all of it once more.
pub(crate) fn is_announced(query: &Query<'_>) -> bool {
    const NOTHING_DONE: u8 = gtid_extra::START_ALTER | gtid_extra::ROLLBACK_ALTER;
    query
        .status()
        .flatten()
        .any(|var| matches!(var, StatusVar::AlterPhase(flags, _) if flags & NOTHING_DONE != 0))
}

fn user_variable(body: &[u8], collations: &Collations) -> Option<Vec<u8>> {
    let (len, rest) = body.split_at_checked(4)?;
    let (name, rest) = rest.split_at_checked(le(len) as usize)?;
    let mut text = b"SET @".to_vec();
    put_name(&mut text, name);
    text.push(b'=');
    let (null, rest) = rest.split_first()?;
    if *null != 0 {
        text.extend_from_slice(b"NULL");
        return Some(text);
    }
    let (kind, rest) = rest.split_first()?;
    let (collation, rest) = rest.split_at_checked(4)?;
    let (len, rest) = rest.split_at_checked(4)?;
    let (value, rest) = rest.split_at_checked(le(len) as usize)?;
    let unsigned = rest.first().is_some_and(|flags| flags & 1 != 0);
    match kind {
        0 => {
            let (collation, charset) = collations.find(le(collation) as u32)?;
            text.push(b'_');
            text.extend_from_slice(charset.as_bytes());
            // Not in hexadecimal: that would be twice as long.
            put_text(&mut text, value, 0);
            text.extend_from_slice(b" COLLATE ");
            // `binary` is a word of the language.
            put_name(&mut text, collation.as_bytes());
        }
        1 => {
            let n = f64::from_le_bytes(value.try_into().ok()?);
            text.extend_from_slice(format!("{n:e}").as_bytes());
        }
        // The literal alone is signed as long as it fits, and a column made of it is, too.
        2 if unsigned => {
            text.extend_from_slice(format!("CAST({} AS UNSIGNED)", le(value)).as_bytes())
        }
        2 => text.extend_from_slice((le(value) as i64).to_string().as_bytes()),
        4 => {
            let [precision, scale, digits @ ..] = value else {
                return None;
            };
            let column = ColumnType::Decimal {
                precision: *precision,
                scale: *scale,
            };
            match Value::decode(column, digits, false, 0).ok()? {
                Value::Decimal(n) => text.extend_from_slice(n.as_str().as_bytes()),
                _ => return None,
            }
            // Without a point it is a whole number, with which a statement computes otherwise.
            if *scale == 0 {
                text.push(b'.');
            }
        }
        _ => return None,
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_variables() {
        let all = Collations::of([(33, "utf8mb3_general_ci".into(), "utf8mb3".into())]);
        let shown = |body: &[u8]| {
            user_variable(body, &all).map(|text| String::from_utf8_lossy(&text).into_owned())
        };
        let head = |kind: u8, len: u8| {
            [&[1, 0, 0, 0, b'v', 0, kind, 33, 0, 0, 0, len, 0, 0, 0][..]].concat()
        };
        let text = [head(0, 2), b"a'".to_vec()].concat();
        assert_eq!(
            shown(&text).as_deref(),
            Some(r"SET @`v`=_utf8mb3'a\'' COLLATE `utf8mb3_general_ci`")
        );
        let int = [head(2, 8), (-5i64).to_le_bytes().to_vec(), vec![0]].concat();
        assert_eq!(shown(&int).as_deref(), Some("SET @`v`=-5"));
        let unsigned = |n: u64| [head(2, 8), n.to_le_bytes().to_vec(), vec![1]].concat();
        assert_eq!(
            shown(&unsigned(7)).as_deref(),
            Some("SET @`v`=CAST(7 AS UNSIGNED)")
        );
        assert_eq!(
            shown(&unsigned(u64::MAX)).as_deref(),
            Some("SET @`v`=CAST(18446744073709551615 AS UNSIGNED)")
        );
        // What a server logs of 100, -5, 0 and 0.5; the precision is of all digits that it has kept.
        for (value, wanted) in [
            (&[9, 0, 0x80, 0, 0, 100][..], "100."),
            (&[9, 0, 0x7f, 0xff, 0xff, 0xfa], "-5."),
            (&[9, 0, 0x80, 0, 0, 0], "0."),
            (&[2, 1, 0x80, 5], "0.5"),
            (&[12, 3, 0x7f, 0xff, 0xff, 0xf3, 0xfe, 0x0b], "-12.500"),
        ] {
            let decimal = [head(4, value.len() as u8), value.to_vec()].concat();
            assert_eq!(
                shown(&decimal),
                Some(format!("SET @`v`={wanted}")),
                "{value:?}"
            );
        }
        assert_eq!(shown(&int[..20]), None);
        assert_eq!(
            shown(&[1, 0, 0, 0, b'v', 1]).as_deref(),
            Some("SET @`v`=NULL")
        );
    }

    /// A source does not say USE for statements on databases, nor do those of others name it.
    #[test]
    fn the_default_database() {
        let gtid: Gtid = "0-1-1".parse().expect("a GTID");
        let format = dromon_binlog::Format::unknown();
        let uses = |text: &str| {
            let mut raw = crate::compile::tests::query(text, "d");
            raw[17..19].copy_from_slice(&flags::SUPPRESS_USE.to_le_bytes());
            let event = Event::parse_unverified(&raw, format.checksum()).expect("whole");
            let Ok(dromon_binlog::Payload::Query(query)) = event.decode(&format) else {
                panic!("a statement");
            };
            let made = Before::default().statement(&query, &event, gtid, &Collations::default());
            let Ok(Op::Statement { setup, uses, .. }) = made else {
                panic!("a statement");
            };
            String::from_utf8_lossy(&setup[uses]).into_owned()
        };
        assert_eq!(uses("ALTER DATABASE CHARACTER SET utf8mb4"), ";USE `d`");
        for text in [
            "ALTER DATABASE COMMENT 'ä'",
            r"ALTER DATABASE COMMENT = 'it\'s'",
            "/*!50000 ALTER DATABASE COMMENT \"ä\" */",
        ] {
            assert_eq!(uses(text), ";USE `d`", "{text}");
        }
        assert_eq!(uses("ALTER DATABASE COMMENT /*!50000 'x' */"), "");
        assert_eq!(uses("ALTER DATABASE d CHARACTER SET utf8mb4"), "");
        assert_eq!(uses("CREATE DATABASE d"), "");
    }

    #[test]
    fn how_a_statement_is_written() {
        let all = Collations::of([
            (8, "latin1_swedish_ci".into(), "latin1".into()),
            (28, "gbk_chinese_ci".into(), "gbk".into()),
            (45, "utf8mb4_general_ci".into(), "utf8mb4".into()),
        ]);
        for (mode, client, wanted) in [
            (0, 45, (Some(true), Charset::Utf8)),
            (NO_BACKSLASH_ESCAPES, 8, (Some(false), Charset::Plain)),
            (0, 28, (Some(true), Charset::Any)),
            (0, 99, (Some(true), Charset::Any)),
        ] {
            let mode = mode.to_le_bytes();
            let status = [&[1][..], &mode, &[4, client, 0, client, 0, client, 0]].concat();
            let raw = crate::compile::tests::query_with("DROP TABLE t", "d", &status);
            let format = dromon_binlog::Format::unknown();
            let event = Event::parse_unverified(&raw, format.checksum()).expect("whole");
            let Ok(dromon_binlog::Payload::Query(query)) = event.decode(&format) else {
                panic!("a statement");
            };
            let Wording { escapes, charset } = wording(query.status(), &all);
            assert_eq!((escapes, charset), wanted);
            assert_eq!(
                wording(query.status(), &Collations::default()).charset,
                Charset::Any
            );
        }
    }

    /// What a backslash is does not depend on what was run before.
    #[test]
    fn texts_have_their_sql_mode() {
        let all = Collations::of([(63, "binary".into(), "binary".into())]);
        let raw = |text: &[u8]| {
            let head = [
                1,
                0,
                0,
                0,
                b'v',
                0,
                0,
                63,
                0,
                0,
                0,
                text.len() as u8,
                0,
                0,
                0,
            ];
            crate::compile::tests::event(14, &[&head[..], text].concat())
        };
        let format = dromon_binlog::Format::unknown();
        let parsed = |raw: &'static [u8]| Event::parse_unverified(raw, format.checksum());
        let mut before = Before::default();
        for text in [&b"\\"[..], b"'"] {
            let event = parsed(raw(text).leak()).expect("whole");
            assert_eq!(before.event(&event, &all), Some(Ok(())));
        }
        // The mode of the statement itself.
        let status = [1, 0, 0, 32, 0, 0, 0, 0, 0];
        let query = crate::compile::tests::query_with("INSERT", "d", &status).leak();
        let event = parsed(query).expect("whole");
        let Ok(dromon_binlog::Payload::Query(query)) = event.decode(&format) else {
            panic!("a statement");
        };
        let gtid: Gtid = "0-1-1".parse().expect("a GTID");
        let Ok(Op::Statement { setup, .. }) = before.statement(&query, &event, gtid, &all) else {
            panic!("a statement");
        };
        let text = String::from_utf8_lossy(&setup);
        let wanted = [
            r"SET NAMES utf8mb4;USE `d`;SET sql_mode='';",
            r"SET @`v`=_binary'\\' COLLATE `binary`;SET @`v`=_binary'\'' COLLATE `binary`;",
            r"SET sql_mode=2097152,",
        ];
        assert!(text.starts_with(&wanted.concat()), "{text}");
        assert!(!before.texts && before.setup.is_empty());
    }

    /// What the target does with directories of tables stays its own affair.
    #[test]
    fn directories_of_tables() {
        let gtid: Gtid = "0-1-1".parse().expect("a GTID");
        for (own, theirs, wanted) in [
            (false, 6, 6),
            (true, 6, 134),
            (true, 134, 134),
            (false, 134, 134),
        ] {
            let all = Collations::default().without_directories(own);
            let status = [1, theirs, 0, 0, 0, 0, 0, 0, 0];
            let raw = crate::compile::tests::query_with("CREATE TABLE t (a INT)", "d", &status);
            let format = dromon_binlog::Format::unknown();
            let event = Event::parse_unverified(&raw, format.checksum()).expect("whole");
            let Ok(dromon_binlog::Payload::Query(query)) = event.decode(&format) else {
                panic!("a statement");
            };
            let made = Before::default().statement(&query, &event, gtid, &all);
            let Ok(Op::Statement { setup, .. }) = made else {
                panic!("a statement");
            };
            let text = String::from_utf8_lossy(&setup);
            assert!(text.contains(&format!("SET sql_mode={wanted},")), "{text}");
        }
    }

    /// What a text compares by without saying so.
    #[test]
    fn default_collations() {
        let all = Collations::of([
            (45, "utf8mb4_general_ci".into(), "utf8mb4".into()),
            (46, "utf8mb4_bin".into(), "utf8mb4".into()),
        ]);
        let gtid: Gtid = "0-1-1".parse().expect("a GTID");
        let setup = |all: &Collations, pairs: &[u8]| {
            let mut status = Vec::new();
            if !pairs.is_empty() {
                status.extend_from_slice(&[131, pairs.len() as u8 / 4]);
                status.extend_from_slice(pairs);
            }
            let raw = crate::compile::tests::query_with("CREATE TABLE t (k TEXT)", "d", &status);
            let format = dromon_binlog::Format::unknown();
            let event = Event::parse_unverified(&raw, format.checksum()).expect("whole");
            let Ok(dromon_binlog::Payload::Query(query)) = event.decode(&format) else {
                panic!("a statement");
            };
            let made = Before::default().statement(&query, &event, gtid, all);
            made.map(|op| match op {
                Op::Statement { setup, .. } => String::from_utf8_lossy(&setup).into_owned(),
                other => panic!("{other:?}"),
            })
        };
        let new = all.clone().with_defaults(true);
        let pair = [45, 0, 46, 0];
        let text = setup(&new, &pair).expect("it is known");
        assert!(
            text.contains("character_set_collations='utf8mb4=utf8mb4_bin'"),
            "{text}"
        );
        let text = setup(&new, &[]).expect("there are none");
        assert!(text.contains("character_set_collations=''"), "{text}");
        for pairs in [&pair[..], &[]] {
            let text = setup(&all, pairs).expect("an older target");
            assert!(!text.contains("character_set_collations"), "{text}");
        }
        assert!(setup(&new, &[99, 0, 46, 0]).is_err());
    }

    /// Where the source does not say what its TIMESTAMPs are by default, the target's own setting counts.
    #[test]
    fn timestamps_by_default() {
        let gtid: Gtid = "0-1-1".parse().expect("a GTID");
        for (version, unset, set) in [
            ("10.3.35-MariaDB-log", "DEFAULT", "DEFAULT"),
            ("10.5.16-MariaDB", "DEFAULT", "DEFAULT"),
            ("10.5.17-MariaDB", "0", "1"),
            ("10.6.8-MariaDB", "DEFAULT", "DEFAULT"),
            ("10.6.9-MariaDB", "0", "1"),
            ("10.9.1-MariaDB", "DEFAULT", "DEFAULT"),
            ("10.10.1-MariaDB", "0", "1"),
            ("10.11.19-MariaDB-deb12", "0", "1"),
            ("11.4.2-MariaDB", "0", "1"),
            ("8.0.36", "DEFAULT", "DEFAULT"),
        ] {
            for (bit, wanted) in [(0, unset), (1, set)] {
                let status = [0, 0, 0, 0, bit];
                let text = "CREATE TABLE t (a TIMESTAMP)";
                let raw = crate::compile::tests::query_with(text, "d", &status);
                let format = Format {
                    server_version: dromon_binlog::version_bytes(version),
                    ..Format::unknown()
                };
                let event = Event::parse_unverified(&raw, format.checksum()).expect("whole");
                let Ok(dromon_binlog::Payload::Query(query)) = event.decode(&format) else {
                    panic!("a statement");
                };
                let all = Collations::default();
                let made = Before::of(&format).statement(&query, &event, gtid, &all);
                let Ok(Op::Statement { setup, .. }) = made else {
                    panic!("a statement");
                };
                let text = String::from_utf8_lossy(&setup);
                let set = format!(",explicit_defaults_for_timestamp={wanted},");
                assert!(text.contains(&set), "{version}: {text}");
            }
        }
    }

    /// What a statement says of the past is not taken for today.
    #[test]
    fn inserted_history() {
        let gtid: Gtid = "0-1-1".parse().expect("a GTID");
        let (old, new) = (
            Collations::default(),
            Collations::default().with_history(true),
        );
        for (bits, wanted) in [(0x41, "=1"), (0x01, "=0")] {
            let status = [0, 0, 0x80, 0, bits];
            let raw = crate::compile::tests::query_with("INSERT INTO t", "d", &status);
            let format = dromon_binlog::Format::unknown();
            let event = Event::parse_unverified(&raw, format.checksum()).expect("whole");
            let Ok(dromon_binlog::Payload::Query(query)) = event.decode(&format) else {
                panic!("a statement");
            };
            for all in [&old, &new] {
                let made = Before::default().statement(&query, &event, gtid, all);
                let Ok(Op::Statement { setup, .. }) = made else {
                    panic!("a statement");
                };
                let text = String::from_utf8_lossy(&setup);
                let set = format!(",system_versioning_insert_history{wanted},");
                assert_eq!(text.contains(&set), all.has_history, "{text}");
            }
            assert_eq!(lacks(query.status(), &new), None);
            assert_eq!(lacks(query.status(), &old).is_some(), wanted == "=1");
        }
    }
}
