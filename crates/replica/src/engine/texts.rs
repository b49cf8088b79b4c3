//! What is written down and shown of a statement: its beginning, or less if a password may stand in it.
//! Without I/O.

use sha2::{Digest, Sha256};

use crate::names::{changes_rows, leading_words};

/// So many characters of a statement are written down.
pub(super) const TEXT: usize = 100;
/// So many stand in an error.
const SHOWN: usize = 200;
/// In the place of a statement's text.
const ROWS_OF: &str = "rows of ";
/// What shows that a password, or a key, may stand in a statement: wherever it is, a text that is run as
/// one among them. It comes before that, mostly; a name that has it hides a statement more than needed.
const SIGNS: [&[u8]; 7] = [
    b"IDENTIFIED",
    b"PASSWORD",
    b"PASSWD",
    b"SECRET",
    b"_ENCRYPT",
    b"_DECRYPT",
    b"ENCRYPT(",
];
/// So far it is looked: a server shows no more of what a connection runs.
const LOOKED: usize = 60_000;
/// Behind the words of one that is not shown.
const HIDDEN: &str = " … #";

fn first(text: &[u8], characters: usize) -> String {
    // No more than they can be.
    let bytes = &text[..text.len().min(4 * characters)];
    String::from_utf8_lossy(bytes)
        .chars()
        .take(characters)
        .collect()
}

/// Whether a password may stand in a statement.
pub(super) fn is_secret(text: &[u8]) -> bool {
    let text = &text[..text.len().min(LOOKED)];
    let has_sign = SIGNS.iter().any(|sign| {
        let mut parts = text.windows(sign.len());
        parts.any(|part| part.eq_ignore_ascii_case(sign))
    });
    has_sign || has_account(text)
}

/// Whether there is a URL with an account before its host.
fn has_account(text: &[u8]) -> bool {
    let ends = |byte: &u8| byte.is_ascii_whitespace() || b"/'\"`".contains(byte);
    let behind = text.windows(3).enumerate().filter(|(_, w)| *w == b"://");
    behind
        .filter_map(|(at, _)| text[at + 3..].split(ends).next())
        .any(|host| host.contains(&b'@'))
}

/// The beginning of another long text.
pub(super) fn plain(text: &[u8]) -> String {
    first(text, TEXT)
}

/// What is written down of a statement: its beginning. Where a password may stand in it, the first words and
/// a hash of that, by which it is known again: so short that no guess of a password can be proved by it.
pub(super) fn begun(text: &[u8]) -> String {
    let plain = plain(text);
    if !is_secret(text) {
        return plain;
    }
    let hash = Sha256::digest(plain.trim_end());
    let words = leading_words(text);
    format!("{words}{HIDDEN}{:02x}{:02x}", hash[0], hash[1])
}

/// The same of rows, of these tables.
pub(super) fn begun_rows(tables: &str) -> String {
    plain(format!("{ROWS_OF}{tables}").as_bytes())
}

/// Whether a statement is the one of which this was written down; an older build wrote the beginning of any.
pub(super) fn is_of(text: &[u8], written: &str) -> bool {
    let written = written.trim_end();
    // It may have come with a line's end.
    begun(text).trim_end() == written || plain(text).trim_end() == written
}

/// Whether what was written down is of a statement that changes rows, or a temporary table, and commits
/// nothing.
pub(super) fn is_of_rows(written: &str) -> bool {
    let hidden = written.split_once(HIDDEN);
    // The name, which may be missing here, is what the others need.
    let temporary = |words: &str| {
        words
            .split(' ')
            .any(|w| w.eq_ignore_ascii_case("TEMPORARY"))
    };
    changes_rows(written.as_bytes()) || hidden.is_some_and(|(words, _)| temporary(words))
}

/// What is shown of what was written down, by an older build, too.
pub(super) fn shown(written: &str) -> String {
    let is_safe = written.starts_with(ROWS_OF) || written.contains(HIDDEN);
    match !is_safe && is_secret(written.as_bytes()) {
        true => format!("{} ", leading_words(written.as_bytes())),
        false => written.to_owned(),
    }
}

/// What is shown of a statement with an error.
pub(super) fn of_error(text: &[u8]) -> String {
    match is_secret(text) {
        true => format!(
            "{} …; a password may stand in the rest",
            leading_words(text)
        ),
        false => first(text, SHOWN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRETS: [(&str, &str); 10] = [
        (
            "CREATE USER a@'%' IDENTIFIED BY 'geheim'",
            "CREATE USER a IDENTIFIED",
        ),
        (
            "create user 'geheim' identified via ed25519 using 'geheim'",
            "create user identified",
        ),
        (
            "ALTER USER a IDENTIFIED VIA x USING 'geheim'",
            "ALTER USER a IDENTIFIED",
        ),
        ("SET PASSWORD FOR a = 'geheim'", "SET PASSWORD"),
        (
            "GRANT ALL ON *.* TO a IDENTIFIED BY 'geheim'",
            "GRANT ALL ON TO",
        ),
        (
            "CREATE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS (PASSWORD 'geheim')",
            "CREATE SERVER s FOREIGN",
        ),
        (
            "CHANGE MASTER TO MASTER_PASSWORD='geheim'",
            "CHANGE MASTER TO MASTER_PASSWORD",
        ),
        (
            "/* x */ EXECUTE IMMEDIATE \"CREATE USER a IDENTIFIED BY 'geheim'\"",
            "EXECUTE IMMEDIATE",
        ),
        (
            "INSERT INTO t VALUES (4711, AES_ENCRYPT('x', 'geheim'))",
            "INSERT INTO t VALUES",
        ),
        (
            "CREATE TABLE t (a INT) ENGINE=FEDERATED CONNECTION='mysql://u:geheim@h/d/t'",
            "CREATE TABLE t a",
        ),
    ];

    #[test]
    fn passwords_are_neither_written_down_nor_shown() {
        for (text, words) in SECRETS {
            let written = begun(text.as_bytes());
            let (begin, hash) = written.split_once(HIDDEN).expect("hidden");
            assert_eq!((begin, hash.len()), (words, 4), "{text}");
            let all = [written.clone(), shown(&written), of_error(text.as_bytes())];
            // As an older build wrote it down.
            for shown in all.iter().chain([&shown(text)]) {
                assert!(!shown.contains("geheim"), "{shown}");
                assert!(shown.starts_with(words), "{shown}");
            }
            for same in [written.as_str(), text] {
                assert!(is_of(text.as_bytes(), same), "{text}");
                assert!(is_of(format!("{text}\n").as_bytes(), same), "{text}");
                assert!(!is_of(b"ALTER TABLE t ADD c INT", same), "{text}");
            }
            let other = text.replace("geheim", "secreta");
            assert!(!is_of(other.as_bytes(), &written), "{text}");
        }
        // Wherever the sign is.
        let late = format!(
            "CREATE PROCEDURE p() SET @a = '{}', PASSWORD = 1",
            "x".repeat(900)
        );
        assert_eq!(begun(late.as_bytes()).find('x'), None);
    }

    #[test]
    fn others_are_as_they_are() {
        let long = format!("ALTER TABLE t COMMENT '{}'", "ä".repeat(300));
        let written = begun(long.as_bytes());
        assert_eq!(written.chars().count(), TEXT);
        assert!(long.starts_with(&written) && is_of(long.as_bytes(), &written));
        assert_eq!(of_error(long.as_bytes()).chars().count(), SHOWN);
        assert_eq!(shown(&written), written);
        assert!(!is_secret(
            b"UPDATE t SET a = 'https://example.org/x', b = 'a@b'"
        ));
        let rows = begun_rows("d.passwords");
        assert_eq!(
            (rows.as_str(), shown(&rows)),
            ("rows of d.passwords", rows.clone())
        );
    }

    /// Done twice, these would be there twice.
    #[test]
    fn what_changes_rows_is_seen_of_hidden_ones() {
        for text in [
            "INSERT INTO m SELECT PASSWORD('x')",
            "/* x */ replace m SELECT PASSWORD('x')",
            "CREATE TEMPORARY TABLE t SELECT PASSWORD('x')",
            "create or replace temporary table `t` SELECT PASSWORD('x')",
        ] {
            assert!(is_of_rows(text), "{text}");
            assert!(is_of_rows(&begun(text.as_bytes())), "{text}");
        }
        for text in ["CREATE USER a IDENTIFIED BY 'x'", "SET PASSWORD = 'x'"] {
            assert!(!is_of_rows(&begun(text.as_bytes())), "{text}");
        }
    }
}
