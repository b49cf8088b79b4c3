//! A statement cut into parts, of which some are found and changed. Without I/O.

use crate::words::{Charset, Wording};

/// What a statement consists of, without spaces and comments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Not in quotes.
    Word,
    Quoted,
    Sign(u8),
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || byte >= 0x80
}

/// Parts one after the other.
#[derive(Clone, Copy)]
pub(super) struct Parts<'t> {
    pub text: &'t [u8],
    /// Behind the last one.
    pub at: usize,
    pub wording: Wording,
}

impl<'t> Parts<'t> {
    pub fn new(text: &'t [u8], wording: Wording) -> Parts<'t> {
        Parts {
            text,
            at: 0,
            wording,
        }
    }

    /// Passes spaces and comments. `None`: one has no end.
    fn skip(&mut self) -> Option<()> {
        loop {
            let rest = &self.text[self.at..];
            let line = || rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
            let digits = |rest: &[u8]| rest.iter().take_while(|b| b.is_ascii_digit()).count();
            self.at += match rest {
                // What stands in it is run by servers of that version, and does no harm with others.
                [b'/', b'*', b'!', ..] => 3 + digits(&rest[3..]),
                [b'/', b'*', b'M', b'!', ..] => 4 + digits(&rest[4..]),
                [b'/', b'*', ..] => 4 + rest[2..].windows(2).position(|two| two == b"*/")?,
                [b'*', b'/', ..] => 2,
                [b'#', ..] | [b'-', b'-', 0..=b' ', ..] => line(),
                [0..=b' ', ..] => 1,
                _ => return Some(()),
            };
        }
    }

    /// Where it ends that begins with a quote here. `None`: that cannot be said for sure.
    fn quoted(&self, quote: u8) -> Option<usize> {
        let mut at = self.at + 1;
        // With the byte of a quote no character ends, but for a backtick.
        let special = if quote == b'`' { quote } else { b'\\' };
        loop {
            match *self.text.get(at)? {
                0x80..
                    if self.wording.charset == Charset::Any
                        && self.text.get(at + 1) == Some(&special) =>
                {
                    return None;
                }
                // Of a name or of a text.
                b'\\' if quote == b'"' => return None,
                b'\\' if quote == b'\'' && self.wording.escapes? => at += 2,
                byte if byte == quote && self.text.get(at + 1) == Some(&quote) => at += 2,
                byte if byte == quote => return Some(at + 1),
                _ => at += 1,
            }
        }
    }

    /// The next one, and where it begins; `None` at the end.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn next(&mut self) -> Result<Option<(Part, usize)>, ()> {
        self.skip().ok_or(())?;
        let from = self.at;
        let rest = &self.text[from..];
        let (part, to) = match rest.first() {
            None => return Ok(None),
            Some(quote @ (b'\'' | b'"' | b'`')) => (Part::Quoted, self.quoted(*quote).ok_or(())?),
            Some(byte) if is_word(*byte) => {
                let len = rest.iter().take_while(|b| is_word(**b)).count();
                (Part::Word, from + len)
            }
            Some(byte) => (Part::Sign(*byte), from + 1),
        };
        self.at = to;
        Ok(Some((part, from)))
    }

    /// Passes the next part if it is one of these words.
    pub fn pass(&mut self, words: &[&str]) -> bool {
        let mut after = *self;
        let Ok(Some((Part::Word, from))) = after.next() else {
            return false;
        };
        let word = &self.text[from..after.at];
        let found = words
            .iter()
            .any(|w| word.eq_ignore_ascii_case(w.as_bytes()));
        if found {
            *self = after;
        }
        found
    }

    pub fn pass_sign(&mut self, sign: u8) -> bool {
        let mut after = *self;
        let found = matches!(after.next(), Ok(Some((Part::Sign(s), _))) if s == sign);
        if found {
            *self = after;
        }
        found
    }

    /// Passes whose a thing is to be, from the word DEFINER on: `true` if that is there, and can be read.
    pub fn definer(&mut self) -> bool {
        let mut after = *self;
        let found = after.pass(&["DEFINER"]) && after.pass_sign(b'=') && after.account();
        if found {
            *self = after;
        }
        found
    }

    /// Passes an account, or a role.
    fn account(&mut self) -> bool {
        if self.pass(&["CURRENT_USER", "CURRENT_ROLE"]) {
            return !self.pass_sign(b'(') || self.pass_sign(b')');
        }
        if !self.name() {
            return false;
        }
        if !self.pass_sign(b'@') {
            return true;
        }
        // Without quotes a host is of several words.
        while self.name() {
            if !self.pass_sign(b'.') {
                return true;
            }
        }
        false
    }

    /// Passes a name, without what it is qualified by.
    pub fn name(&mut self) -> bool {
        let mut after = *self;
        let found = matches!(after.next(), Ok(Some((Part::Word | Part::Quoted, _))));
        if found {
            *self = after;
        }
        found
    }

    /// Passes what may stand in front of a statement.
    pub fn settings(&mut self) {
        let mut after = *self;
        if after.pass(&["SET"]) && after.pass(&["STATEMENT"]) {
            while !after.pass(&["FOR"]) {
                if !matches!(after.next(), Ok(Some(_))) {
                    return;
                }
            }
            *self = after;
        }
    }
}
