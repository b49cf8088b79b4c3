//! Definitions of events, as they are to be on a replica. Without I/O.
//!
//! What an event does on the source comes as changes. So it must not run here, too: as the server's own
//! replica threads do, it is made with DISABLE ON SLAVE, whatever it is on the source.

/// What it says instead of ENABLE, DISABLE, or nothing.
const STATUS: &[u8] = b"DISABLE ON SLAVE";

/// A word, or a name in quotes.
#[derive(Clone, Copy, Debug)]
struct Word {
    from: usize,
    to: usize,
    quoted: bool,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || byte >= 0x80
}

/// Words one after the other.
struct Words<'t> {
    text: &'t [u8],
    at: usize,
}

impl Words<'_> {
    /// Passes what is no word. Texts in `'` are none.
    fn skip(&mut self) -> Option<()> {
        loop {
            let rest = &self.text[self.at..];
            let line = || rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
            self.at += match rest {
                [b'/', b'*', b'!', ..] => {
                    3 + rest[3..].iter().take_while(|b| b.is_ascii_digit()).count()
                }
                [b'/', b'*', ..] => 4 + rest[2..].windows(2).position(|two| two == b"*/")?,
                [b'#', ..] | [b'-', b'-', 0..=b' ', ..] => line(),
                [b'\'', ..] => self.quoted(b'\'')? - self.at,
                [] | [b'`' | b'"', ..] => return Some(()),
                [byte, ..] if is_word(*byte) => return Some(()),
                _ => 1,
            };
        }
    }

    /// Where it ends that begins with a quote here.
    fn quoted(&self, quote: u8) -> Option<usize> {
        let mut at = self.at + 1;
        loop {
            match *self.text.get(at)? {
                b'\\' if quote != b'`' => at += 2,
                byte if byte == quote && self.text.get(at + 1) == Some(&quote) => at += 2,
                byte if byte == quote => return Some(at + 1),
                _ => at += 1,
            }
        }
    }

    /// `None`: there is none, or it has no end.
    fn next(&mut self) -> Option<Word> {
        self.skip()?;
        let from = self.at;
        let first = *self.text.get(from)?;
        let quoted = !is_word(first);
        self.at = match quoted {
            true => self.quoted(first)?,
            false => {
                from + self.text[from..]
                    .iter()
                    .take_while(|b| is_word(**b))
                    .count()
            }
        };
        Some(Word {
            from,
            to: self.at,
            quoted,
        })
    }

    fn is(&self, word: Word, what: &str) -> bool {
        !word.quoted && self.text[word.from..word.to].eq_ignore_ascii_case(what.as_bytes())
    }

    /// Passes the next word if it is this one.
    fn pass(&mut self, what: &str) -> bool {
        let before = self.at;
        let found = self.next().is_some_and(|word| self.is(word, what));
        if !found {
            self.at = before;
        }
        found
    }

    /// Passes a name, with or without a database.
    fn name(&mut self) -> Option<()> {
        self.next()?;
        let rest = self.text[self.at..].trim_ascii_start();
        if rest.first() == Some(&b'.') {
            self.next()?;
        }
        Some(())
    }

    /// Whether an event is defined, up to its name.
    fn is_event(&mut self) -> bool {
        if !self.pass("CREATE") && !self.pass("ALTER") {
            return false;
        }
        while self.pass("OR") || self.pass("REPLACE") {}
        if self.pass("DEFINER") {
            // A user, and a host.
            for _ in 0..2 {
                if self.pass("EVENT") {
                    return true;
                }
                // A text is no word: it is passed with what follows it.
                let before = self.at;
                match self.next() {
                    Some(word) if self.is(word, "EVENT") => return true,
                    Some(_) => {}
                    None => self.at = before,
                }
            }
        }
        self.pass("EVENT")
    }
}

/// A statement that defines an event, as it is to be run here. `None`: it defines none.
///
/// # Errors
/// It does, but cannot be read.
pub(super) fn on_replica(text: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
    let mut words = Words { text, at: 0 };
    if !words.is_event() {
        return Ok(None);
    }
    if words.pass("IF") {
        words.pass("NOT");
        words.pass("EXISTS");
    }
    let cannot = "the definition of its event cannot be read";
    words.name().ok_or(cannot)?;
    let with = |from: usize, to: usize, before: &[u8], behind: &[u8]| {
        let status = [before, STATUS, behind].concat();
        Ok(Some([&text[..from], &status, &text[to..]].concat()))
    };
    loop {
        let at = words.at;
        let Some(word) = words.next() else {
            // All was read: what remains is no word.
            let rest = Words { text, at }.skip();
            return match rest {
                Some(()) => with(at, at, b" ", b""),
                None => Err(cannot),
            };
        };
        if words.is(word, "RENAME") {
            words.pass("TO");
            words.name().ok_or(cannot)?;
        } else if words.is(word, "ENABLE") {
            return with(word.from, word.to, b"", b"");
        } else if words.is(word, "DISABLE") {
            return match words.pass("ON") {
                true => Ok(None),
                false => with(word.from, word.to, b"", b""),
            };
        } else if words.is(word, "COMMENT") || words.is(word, "DO") {
            return with(word.from, word.from, b"", b" ");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(text: &str) -> Option<String> {
        let made = on_replica(text.as_bytes()).expect(text)?;
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
        assert!(on_replica(b"CREATE EVENT e COMMENT 'no end").is_ok());
        assert!(on_replica(b"ALTER EVENT e ON SCHEDULE AT 'no end").is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Nothing else of it changes, and a second time nothing at all.
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = on_replica(&bytes);
            let text = [b"CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO ", &bytes[..]].concat();
            let made = on_replica(&text).expect("it can be read").expect("it is changed");
            prop_assert_eq!(made.len(), text.len() + STATUS.len() + 1);
            prop_assert!(made.ends_with(&bytes));
            prop_assert_eq!(on_replica(&made), Ok(None));
        }
    }
}
