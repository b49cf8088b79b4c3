//! Who CURRENT_USER is in statements about accounts. Without I/O.
//!
//! Here it would be `target_user`. On the source it was the invoker, whom the statement's event names, and
//! whom the server's own replica threads take: so his name is put in that place.

use dromon_binlog::{StatusVar, StatusVars};

use super::parts::{Part, Parts};
use crate::value::put_name;
use crate::words::{Charset, Wording};

const USER: &[u8] = b"CURRENT_USER";
const ROLE: &[u8] = b"CURRENT_ROLE";

/// How it goes on without it.
const BEHIND: &str = "set gtid_pos in dromon_replica.position behind it";

/// Of what kind a statement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// About accounts: wherever they are named there may be the invoker.
    Accounts { altered: bool },
    /// An event is altered, and becomes the invoker's; what it does begins behind its name.
    Event,
}

fn kind(mut parts: Parts<'_>) -> Option<Kind> {
    if parts.pass(&["GRANT", "REVOKE"]) {
        return Some(Kind::Accounts { altered: false });
    }
    let alters = parts.pass(&["ALTER"]);
    if !alters && !parts.pass(&["CREATE", "DROP", "RENAME"]) {
        return None;
    }
    while parts.pass(&["OR", "REPLACE"]) {}
    if parts.pass(&["USER", "ROLE"]) {
        return Some(Kind::Accounts { altered: alters });
    }
    let event = parts.pass(&["EVENT"]);
    (alters && (event || parts.pass(&["DEFINER"]) && is_of_event(parts))).then_some(Kind::Event)
}

/// Whether an event follows its definer, who is not named by himself.
fn is_of_event(mut parts: Parts<'_>) -> bool {
    parts.pass_sign(b'=')
        && parts.pass(&["CURRENT_USER", "CURRENT_ROLE"])
        && (!parts.pass_sign(b'(') || parts.pass_sign(b')'))
        && parts.pass(&["EVENT"])
}

/// Who it was: an account, or a role if there is no host.
fn invoker<'a>(status: StatusVars<'a>) -> Option<(&'a [u8], &'a [u8])> {
    status.flatten().find_map(|var| match var {
        StatusVar::Invoker(user, host) => Some((user, host)),
        _ => None,
    })
}

/// The name of the account, or of the role, in backticks, which no `sql_mode` changes.
fn name_of(status: StatusVars<'_>, role: bool, wording: Wording) -> Result<Vec<u8>, String> {
    let what = String::from_utf8_lossy(if role { ROLE } else { USER }).into_owned();
    let known = invoker(status).filter(|(_, host)| host.is_empty() == role);
    let (user, host) = known.ok_or_else(|| {
        format!("it says {what}, and the source does not tell who that was there: run it on the target with his name by hand, and {BEHIND}")
    })?;
    if wording.charset != Charset::Utf8 && !(user.is_ascii() && host.is_ascii()) {
        return Err(format!(
            "it says {what}, and cannot be given the name of that, which is not in ASCII, as it is not in UTF-8 itself: run it on the target with his name by hand, and {BEHIND}"
        ));
    }
    let mut name = Vec::new();
    put_name(&mut name, user);
    if !role {
        name.push(b'@');
        put_name(&mut name, host);
    }
    Ok(name)
}

/// A statement in which the invoker is named. `None`: he is not needed.
///
/// # Errors
/// It needs him, and he is not known, or it cannot be read.
pub(super) fn named(
    text: &[u8],
    status: StatusVars<'_>,
    wording: Wording,
) -> Result<Option<Vec<u8>>, String> {
    let mut parts = Parts::new(text, wording);
    parts.settings();
    let Some(kind) = kind(parts) else {
        return Ok(None);
    };
    if kind == Kind::Event {
        return Ok(event(parts, status));
    }
    let has = |word: &[u8]| {
        text.windows(word.len())
            .any(|w| w.eq_ignore_ascii_case(word))
    };
    if !has(USER) && !has(ROLE) {
        return Ok(None);
    }
    let cannot = |()| {
        format!(
            "it is about accounts, may say CURRENT_USER, and cannot be read for sure: run it on the target with his name by hand, and {BEHIND}"
        )
    };
    if wording.charset == Charset::Any && !text.is_ascii() {
        return Err(cannot(()));
    }
    let mut out = Vec::new();
    let mut copied = 0;
    let mut before = Part::Sign(b' ');
    while let Some((part, from)) = parts.next().map_err(cannot)? {
        let word = &text[from..parts.at];
        let role = word.eq_ignore_ascii_case(ROLE);
        let is_name =
            matches!(before, Part::Sign(b'.' | b'@')) || text.get(parts.at) == Some(&b'.');
        before = part;
        if part != Part::Word || is_name || !role && !word.eq_ignore_ascii_case(USER) {
            continue;
        }
        out.extend_from_slice(&text[copied..from]);
        out.extend_from_slice(&name_of(status.clone(), role, wording)?);
        let mut braces = parts;
        if braces.pass_sign(b'(') && braces.pass_sign(b')') {
            parts = braces;
        }
        copied = parts.at;
        let mut after = parts;
        if kind == (Kind::Accounts { altered: true }) && after.pass(&["IDENTIFIED"]) {
            return Err(format!(
                "ALTER USER gives CURRENT_USER a password, or another way to show who he is, and servers pass over that without a word, at least \
                 those of 10.11: see what he has on the source, do the same on the target by hand, and {BEHIND}"
            ));
        }
    }
    out.extend_from_slice(&text[copied..]);
    Ok((copied > 0).then_some(out))
}

/// An ALTER EVENT that says whose it becomes.
fn event(mut parts: Parts<'_>, status: StatusVars<'_>) -> Option<Vec<u8>> {
    let text = parts.text;
    parts.pass(&["ALTER"]);
    let to = parts.at;
    let role = match parts.pass(&["DEFINER"]) {
        true => {
            parts.pass_sign(b'=');
            parts.pass(&["CURRENT_ROLE"])
        }
        false => false,
    };
    let from = match parts.pass(&["CURRENT_USER"]) || role {
        true => {
            if parts.pass_sign(b'(') {
                parts.pass_sign(b')');
            }
            parts.at
        }
        false => to,
    };
    // An old source may not say who it is: then it becomes `target_user`'s.
    let definer = name_of(status, role, parts.wording).ok()?;
    Some([&text[..to], b" DEFINER=", &definer, &text[from..]].concat())
}

#[cfg(test)]
mod tests {
    use dromon_binlog::{Event, Format, Payload};
    use proptest::prelude::*;

    use super::*;

    const APP: &[u8] = b"\x0b\x03app\x09localhost";
    const UTF8: Wording = Wording {
        escapes: Some(true),
        charset: Charset::Utf8,
    };

    fn with(text: &str, status: &[u8], wording: Wording) -> Result<Option<String>, String> {
        let raw = crate::compile::tests::query_with("", "d", status);
        let format = Format::unknown();
        let event = Event::parse_unverified(&raw, format.checksum()).expect("whole");
        let Ok(Payload::Query(query)) = event.decode(&format) else {
            panic!("a statement");
        };
        let made = named(text.as_bytes(), query.status(), wording)?;
        Ok(made.map(|text| String::from_utf8_lossy(&text).into_owned()))
    }

    fn run(text: &str) -> Option<String> {
        with(text, APP, UTF8).expect(text)
    }

    #[test]
    fn the_invoker_is_named() {
        for (text, wanted) in [
            (
                "alter user current_user() require subject 'current_user'",
                "alter user `app`@`localhost` require subject 'current_user'",
            ),
            (
                "alter user b@c identified by 'x', current_user account lock",
                "alter user b@c identified by 'x', `app`@`localhost` account lock",
            ),
            (
                "GRANT SELECT ON d.* TO CURRENT_USER",
                "GRANT SELECT ON d.* TO `app`@`localhost`",
            ),
            (
                "grant select on current_user.current_user to /* x */ b@current_user, `current_user`@b, Current_User /*!50000 ( */ )",
                "grant select on current_user.current_user to /* x */ b@current_user, `current_user`@b, `app`@`localhost`",
            ),
            (
                "revoke all, grant option from z@b, current_user (\n) -- current_user",
                "revoke all, grant option from z@b, `app`@`localhost` -- current_user",
            ),
            (
                "SET STATEMENT max_statement_time=0 FOR GRANT USAGE ON *.* TO CURRENT_USER IDENTIFIED BY 'it\\'s'",
                "SET STATEMENT max_statement_time=0 FOR GRANT USAGE ON *.* TO `app`@`localhost` IDENTIFIED BY 'it\\'s'",
            ),
            (
                "/*!50000 drop user if exists current_user */",
                "/*!50000 drop user if exists `app`@`localhost` */",
            ),
            (
                "rename user current_user to 'ä'@b",
                "rename user `app`@`localhost` to 'ä'@b",
            ),
            (
                "create or replace role r with admin current_user",
                "create or replace role r with admin `app`@`localhost`",
            ),
            (
                "alter event e on schedule every 1 day do select current_user()",
                "alter DEFINER=`app`@`localhost` event e on schedule every 1 day do select current_user()",
            ),
            (
                "ALTER DEFINER=CURRENT_USER() EVENT e ENABLE",
                "ALTER DEFINER=`app`@`localhost` EVENT e ENABLE",
            ),
        ] {
            assert_eq!(run(text).as_deref(), Some(wanted), "{text}");
            let role = with(text, b"\x0b\x02r0\x00", UTF8);
            assert!(role.is_err() || role == Ok(None), "{text}");
        }
        let role = "grant select on d.* to current_role()";
        assert_eq!(
            with(role, b"\x0b\x02r`\x00", UTF8),
            Ok(Some("grant select on d.* to `r```".into()))
        );
        assert!(with(role, APP, UTF8).is_err());
    }

    #[test]
    fn nobody_is_named() {
        for text in [
            "",
            "CREATE ROLE r",
            "GRANT SELECT ON d.* TO current_user_x@b, 'current_user'@b, \"current_user\"@b",
            "INSERT INTO t VALUES (CURRENT_USER())",
            "CREATE DEFINER=`app`@`localhost` PROCEDURE p() GRANT USAGE ON *.* TO CURRENT_USER",
            "CREATE TABLE t (a TEXT DEFAULT CURRENT_USER)",
            "ALTER DEFINER=`x`@`y` EVENT e ENABLE",
            "ALTER ALGORITHM=UNDEFINED DEFINER=`x`@`y` SQL SECURITY DEFINER VIEW v AS SELECT CURRENT_USER()",
            "ALTER TABLE user ADD a TEXT DEFAULT CURRENT_USER",
        ] {
            assert_eq!(run(text), None, "{text}");
        }
        assert_eq!(with("ALTER EVENT e ENABLE", &[], UTF8), Ok(None));
    }

    /// What the source does not say, or does not do, or cannot be read.
    #[test]
    fn what_is_refused() {
        let why = |text, status, wording| with(text, status, wording).expect_err("it is refused");
        let text = "GRANT r TO CURRENT_USER";
        assert!(why(text, &[], UTF8).contains("does not tell who"));
        let plain = Wording {
            charset: Charset::Plain,
            ..UTF8
        };
        let beyond = "\x0b\x02ä\x01h".as_bytes();
        assert!(why(text, beyond, plain).contains("not in ASCII"));
        assert_eq!(
            with(text, beyond, UTF8),
            Ok(Some("GRANT r TO `ä`@`h`".into()))
        );
        let password = "GRANT USAGE ON *.* TO CURRENT_USER IDENTIFIED BY 'a\\'";
        assert!(why(password, APP, UTF8).contains("cannot be read"));
        let mode = Wording {
            escapes: Some(false),
            ..UTF8
        };
        assert!(with(password, APP, mode).is_ok_and(|made| made.is_some()));
        let any = Wording {
            charset: Charset::Any,
            ..UTF8
        };
        let name = "GRANT USAGE ON *.* TO CURRENT_USER, 'ä'@b";
        assert!(why(name, APP, any).contains("cannot be read"));
        let altered = "ALTER USER CURRENT_USER() IDENTIFIED BY 'b'";
        assert!(why(altered, APP, UTF8).contains("without a word"));
        assert!(with(text, APP, any).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Nothing else of it changes, and a second time nothing at all.
        #[test]
        fn any_text(text in "[ a-z'\"`().@/*!#,\\\\-]{0,30}") {
            let text = format!("GRANT USAGE ON *.* TO CURRENT_USER,{text}");
            if let Ok(made) = with(&text, APP, UTF8) {
                let made = made.expect("it is named");
                prop_assert_eq!(with(&made, APP, UTF8), Ok(None), "{}", text);
            }
        }
    }
}
