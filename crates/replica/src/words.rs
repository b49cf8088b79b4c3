//! Words and names that a statement is cut into. Without I/O.
//!
//! Where one ends may depend on the session that the statement had ([`Wording`]). What is not understood
//! for sure ends the reading.

/// A word or a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub text: String,
    /// It cannot be a word of the language.
    pub quoted: bool,
    /// The text is it; else its characters are not known.
    pub known: bool,
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

/// What it depends on where words end. By default nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wording {
    /// Whether a backslash in a text has a meaning of its own.
    pub escapes: Option<bool>,
    /// What the statement is written in.
    pub charset: Charset,
}

/// A character set, as far as it counts here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Charset {
    /// A character may end with the byte of a backslash or a backtick, as in `gbk`.
    #[default]
    Any,
    /// None does.
    Plain,
    /// UTF-8.
    Utf8,
}

impl Charset {
    /// By its name.
    pub(crate) fn named(name: &str) -> Charset {
        match name {
            "utf8" | "utf8mb3" | "utf8mb4" => Charset::Utf8,
            "ascii" | "cp1250" | "cp1251" | "cp1256" | "cp1257" | "greek" | "hebrew" | "koi8r"
            | "koi8u" | "latin1" | "latin2" | "latin5" | "latin7" => Charset::Plain,
            _ => Charset::Any,
        }
    }
}

/// Cuts a statement into words and names.
pub(crate) struct Lexer<'t> {
    bytes: &'t [u8],
    at: usize,
    wording: Wording,
    pub tokens: Vec<Token>,
    comma: bool,
    /// Behind the last token stands what no name goes on with.
    pub closed: bool,
}

impl<'t> Lexer<'t> {
    /// As far as it is understood.
    pub(crate) fn read(bytes: &'t [u8], wording: Wording) -> Lexer<'t> {
        let mut lexer = Lexer {
            bytes,
            at: 0,
            wording,
            tokens: Vec::new(),
            comma: false,
            closed: false,
        };
        while lexer.step().is_some() {}
        lexer
    }

    /// What follows those that were found, and is not understood.
    pub(crate) fn tail(&self) -> Option<&'t [u8]> {
        Some(&self.bytes[self.at..]).filter(|tail| !tail.is_empty())
    }

    fn push(&mut self, text: String, quoted: bool, known: bool) {
        self.closed = false;
        self.tokens.push(Token {
            text,
            quoted,
            known,
            qualifies: false,
            listed: std::mem::take(&mut self.comma),
            valued: false,
        });
    }

    fn value(&mut self) {
        self.closed = true;
        if let Some(last) = self.tokens.last_mut() {
            last.valued = true;
        }
    }

    /// Where a quoted text ends, from behind its first quote on, and what stands in it; `false`: these are
    /// not its characters.
    fn quoted(&self, bytes: &[u8], quote: u8) -> Option<(String, bool, usize)> {
        let Wording { escapes, charset } = self.wording;
        // With the byte of a quote no character ends.
        let special = if quote == b'`' { quote } else { b'\\' };
        let mut out = Vec::new();
        let mut at = 0;
        loop {
            let next = bytes.get(at + 1).copied();
            match *bytes.get(at)? {
                0x80.. if charset == Charset::Any && next == Some(special) => return None,
                // What it means depends on the session. In `"` it may be a name, too.
                b'\\' if quote == b'"' => return None,
                b'\\' if quote == b'\'' && escapes? => {
                    next.filter(|byte| charset != Charset::Any || byte.is_ascii())?;
                    at += 2;
                }
                byte if byte == quote => {
                    if next != Some(quote) {
                        break;
                    }
                    out.push(quote);
                    at += 2;
                }
                byte => {
                    out.push(byte);
                    at += 1;
                }
            }
        }
        let known = quote != b'\'' && (charset == Charset::Utf8 || out.is_ascii());
        let text = match known {
            true => String::from_utf8(out).ok()?,
            false => String::from_utf8_lossy(&out).into_owned(),
        };
        Some((text, known, at + 1))
    }

    /// Passes what comes next. `None`: there is nothing, or it is not understood.
    fn step(&mut self) -> Option<()> {
        let rest = &self.bytes[self.at..];
        let line = || rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
        let utf8 = self.wording.charset == Charset::Utf8;
        let is_word = |byte: u8| is_word(byte) || utf8 && !byte.is_ascii();
        self.at += match *rest.first()? {
            quote @ (b'`' | b'"' | b'\'') => {
                if quote == b'\'' {
                    self.value();
                }
                let (text, known, used) = self.quoted(&rest[1..], quote)?;
                if quote != b'\'' {
                    self.push(text, true, known);
                }
                1 + used
            }
            // Others would have to know the version.
            b'/' if rest.starts_with(b"/*!") || rest.starts_with(b"/*M!") => return None,
            b'/' if rest.starts_with(b"/*") => {
                4 + rest[2..].windows(2).position(|two| two == b"*/")?
            }
            b'#' => line(),
            b'-' if rest.starts_with(b"--") && rest.get(2).is_none_or(|b| *b <= b' ') => line(),
            b',' => {
                self.closed = true;
                self.comma = true;
                1
            }
            b'=' => {
                self.value();
                1
            }
            b'.' => {
                if let Some(last) = self.tokens.last_mut() {
                    last.qualifies = true;
                }
                1
            }
            byte if is_word(byte) => {
                let end = rest.iter().position(|b| !is_word(*b)).unwrap_or(rest.len());
                if rest.get(end).is_some_and(|byte| !byte.is_ascii()) {
                    return None;
                }
                let text = String::from_utf8(rest[..end].to_vec()).ok()?;
                self.push(text, false, true);
                end
            }
            0x80.. => return None,
            byte => {
                self.closed |= byte > b' ';
                1
            }
        };
        Some(())
    }
}

/// `None`: it is not understood.
pub(crate) fn tokens(bytes: &[u8]) -> Option<Vec<Token>> {
    let lexer = Lexer::read(bytes, Wording::default());
    (bytes.is_ascii() && lexer.tail().is_none()).then_some(lexer.tokens)
}
