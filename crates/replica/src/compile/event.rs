//! Definitions of events, as they are to be on a replica. Without I/O.
//!
//! What an event does on the source comes as changes. So it must not run here, too: as the server's own
//! replica threads do, it is made with DISABLE ON SLAVE, whatever it is on the source.

use super::parts::{Part, Parts};
use crate::words::Wording;

/// What it says instead of ENABLE, DISABLE, or nothing.
const STATUS: &[u8] = b"DISABLE ON SLAVE";

/// Passes what it begins with, up to the name of its event. `Ok(false)`: it is about none.
///
/// # Errors
/// Whose it is to be cannot be read, and thus not what.
fn is_event(parts: &mut Parts<'_>) -> Result<bool, &'static str> {
    parts.settings();
    if !parts.pass(&["CREATE", "ALTER"]) {
        return Ok(false);
    }
    while parts.pass(&["OR", "REPLACE"]) {}
    let mut defined = *parts;
    if defined.pass(&["DEFINER"]) && !parts.definer() {
        return Err("its DEFINER cannot be read");
    }
    Ok(parts.pass(&["EVENT"]))
}

/// A statement that defines an event, as it is to be run here. `None`: it defines none.
///
/// # Errors
/// It does, or may, but cannot be read.
pub(super) fn on_replica(text: &[u8], wording: Wording) -> Result<Option<Vec<u8>>, &'static str> {
    let mut parts = Parts::new(text, wording);
    if !is_event(&mut parts)? {
        return Ok(None);
    }
    if parts.pass(&["IF"]) {
        parts.pass(&["NOT"]);
        parts.pass(&["EXISTS"]);
    }
    let cannot = "the definition of its event cannot be read";
    let pass_name = |parts: &mut Parts<'_>| {
        let found = parts.name() && (!parts.pass_sign(b'.') || parts.name());
        found.then_some(()).ok_or(cannot)
    };
    pass_name(&mut parts)?;
    let with = |from: usize, to: usize, before: &[u8], behind: &[u8]| {
        let status = [before, STATUS, behind].concat();
        Ok(Some([&text[..from], &status, &text[to..]].concat()))
    };
    let mut before = Part::Sign(b' ');
    loop {
        let at = parts.at;
        let Some((part, from)) = parts.next().map_err(|()| cannot)? else {
            return with(at, at, b" ", b"");
        };
        let is_name = matches!(before, Part::Sign(b'.' | b'@'));
        before = part;
        if part != Part::Word || is_name {
            continue;
        }
        let word = text[from..parts.at].to_ascii_uppercase();
        match &word[..] {
            b"RENAME" => {
                parts.pass(&["TO"]);
                pass_name(&mut parts)?;
            }
            b"ENABLE" => return with(from, parts.at, b"", b""),
            b"DISABLE" if parts.pass(&["ON"]) => return Ok(None),
            b"DISABLE" => return with(from, parts.at, b"", b""),
            b"COMMENT" | b"DO" => return with(from, from, b"", b" "),
            _ => {}
        }
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

    fn run(text: &str) -> Option<String> {
        let made = on_replica(text.as_bytes(), UTF8).expect(text)?;
        Some(String::from_utf8_lossy(&made).into_owned())
    }

    #[test]
    fn events_do_not_run_here() {
        for (text, wanted) in [
            (
                "CREATE EVENT e ON SCHEDULE EVERY 1 MINUTE DO INSERT INTO log (v) VALUES (1)",
                "CREATE EVENT e ON SCHEDULE EVERY 1 MINUTE DISABLE ON SLAVE DO INSERT INTO log (v) VALUES (1)",
            ),
            (
                "CREATE DEFINER=`root`@`localhost` EVENT IF NOT EXISTS `d`.`do` ON SCHEDULE AT '2030-01-01 DO' \
                 ON COMPLETION PRESERVE ENABLE COMMENT 'do it' DO UPDATE t SET a = 1",
                "CREATE DEFINER=`root`@`localhost` EVENT IF NOT EXISTS `d`.`do` ON SCHEDULE AT '2030-01-01 DO' \
                 ON COMPLETION PRESERVE DISABLE ON SLAVE COMMENT 'do it' DO UPDATE t SET a = 1",
            ),
            (
                "create or replace definer='a'@'%' event comment on schedule every 2 day comment 'it''s' do call p('enable')",
                "create or replace definer='a'@'%' event comment on schedule every 2 day DISABLE ON SLAVE comment 'it''s' do call p('enable')",
            ),
            (
                "CREATE /*!50106 EVENT */ e ON SCHEDULE EVERY 1 HOUR DISABLE DO SET @a = 'ä'",
                "CREATE /*!50106 EVENT */ e ON SCHEDULE EVERY 1 HOUR DISABLE ON SLAVE DO SET @a = 'ä'",
            ),
            (
                "CREATE /*M! EVENT */ e ON SCHEDULE EVERY 1 HOUR DO SET @a = 1",
                "CREATE /*M! EVENT */ e ON SCHEDULE EVERY 1 HOUR DISABLE ON SLAVE DO SET @a = 1",
            ),
            (
                "/*M!100100 ALTER EVENT e RENAME TO f */",
                "/*M!100100 ALTER EVENT e RENAME TO f DISABLE ON SLAVE */",
            ),
            (
                "SET STATEMENT max_statement_time=1 FOR ALTER EVENT e ENABLE",
                "SET STATEMENT max_statement_time=1 FOR ALTER EVENT e DISABLE ON SLAVE",
            ),
            (
                "ALTER EVENT e ON SCHEDULE AT '2030-01-01 00:00:00' -- soon",
                "ALTER EVENT e ON SCHEDULE AT '2030-01-01 00:00:00' DISABLE ON SLAVE -- soon",
            ),
            (
                "ALTER EVENT e ON SCHEDULE AT @do + INTERVAL (1) DAY ENDS NOW()",
                "ALTER EVENT e ON SCHEDULE AT @do + INTERVAL (1) DAY ENDS NOW() DISABLE ON SLAVE",
            ),
            (
                "ALTER DEFINER=event@10.0.0.1 EVENT e ENABLE",
                "ALTER DEFINER=event@10.0.0.1 EVENT e DISABLE ON SLAVE",
            ),
            (
                "ALTER DEFINER='a\\'b' EVENT e ENABLE",
                "ALTER DEFINER='a\\'b' EVENT e DISABLE ON SLAVE",
            ),
            (
                "ALTER EVENT d . e RENAME TO x.comment",
                "ALTER EVENT d . e RENAME TO x.comment DISABLE ON SLAVE",
            ),
            ("ALTER EVENT e ENABLE", "ALTER EVENT e DISABLE ON SLAVE"),
            (
                "ALTER DEFINER=CURRENT_USER EVENT e DO SELECT 1",
                "ALTER DEFINER=CURRENT_USER EVENT e DISABLE ON SLAVE DO SELECT 1",
            ),
        ] {
            assert_eq!(run(text).as_deref(), Some(wanted), "{text}");
        }
        for text in [
            "",
            "CREATE EVENT e ON SCHEDULE EVERY 1 DAY DISABLE ON SLAVE DO SELECT 1",
            "DROP EVENT e",
            "CREATE TABLE event (a INT)",
            "CREATE DEFINER=`event`@`%` PROCEDURE p() SELECT 1",
            "ALTER TABLE t COMMENT 'EVENT'",
            "INSERT INTO t VALUES ('CREATE EVENT')",
        ] {
            assert_eq!(run(text), None, "{text}");
        }
    }

    /// Where a text ends depends on the session that it had.
    #[test]
    fn what_cannot_be_read_is_refused() {
        let escapes = |escapes| Wording { escapes, ..UTF8 };
        let behind = b"ALTER EVENT e ON SCHEDULE AT 'a\\' DO SELECT 1";
        assert!(on_replica(behind, UTF8).is_err());
        assert!(on_replica(behind, escapes(None)).is_err());
        let made = on_replica(behind, escapes(Some(false))).expect("it can be read");
        assert!(made.is_some_and(|made| made.ends_with(b"'a\\' DISABLE ON SLAVE DO SELECT 1")));
        let any = Wording {
            charset: Charset::Any,
            ..UTF8
        };
        assert!(on_replica(b"ALTER EVENT `a\x83`` ENABLE", any).is_err());
        assert!(on_replica(b"CREATE EVENT e COMMENT 'no end", UTF8).is_ok());
        assert!(on_replica(b"ALTER EVENT e ON SCHEDULE AT 'no end", UTF8).is_err());
        assert!(on_replica(b"ALTER DEFINER=\"a\\\"b\" EVENT e ENABLE", UTF8).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Nothing else of it changes, and a second time nothing at all.
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = on_replica(&bytes, UTF8);
            let text = [b"CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO ", &bytes[..]].concat();
            let made = on_replica(&text, UTF8).expect("it can be read").expect("it is changed");
            prop_assert_eq!(made.len(), text.len() + STATUS.len() + 1);
            prop_assert!(made.ends_with(&bytes));
            prop_assert_eq!(on_replica(&made, UTF8), Ok(None));
        }
    }
}
