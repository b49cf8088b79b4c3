//! The few statements that a relay answers, cut into words.

/// A piece of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// A keyword, a name, or a function; as written.
    Word(String),
    /// `@name`, in small letters.
    UserVar(String),
    /// `@@name`, in small letters; whether with `global.` in front.
    SysVar(String, bool),
    /// In quotes.
    Text(String),
    /// Digits, perhaps with a point.
    Number(String),
    /// Anything else.
    Sign(char),
}

/// A token, and where in the statement it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The token.
    pub token: Token,
    /// Its first byte.
    pub from: usize,
    /// Behind its last byte.
    pub to: usize,
}

/// Words of a statement: each takes fifty times as much memory as the shortest one is long.
const WORDS_MAX: usize = 8192;

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

/// Cuts a statement. `Err`: a quote or comment has no end, or it has too many words.
pub fn tokens(text: &str) -> Result<Vec<Placed>, &'static str> {
    let mut out = Vec::new();
    let mut chars = text.char_indices().peekable();
    while let Some((from, c)) = chars.next() {
        let rest = &text[from..];
        if c.is_whitespace() {
            continue;
        }
        if let Some(comment) = rest.strip_prefix("/*") {
            let end = comment.find("*/").ok_or("a comment has no end")?;
            let to = from + 2 + end + 2;
            while chars.next_if(|(n, _)| *n < to).is_some() {}
            continue;
        }
        if c == '#' || rest.starts_with("-- ") {
            while chars.next_if(|(_, c)| *c != '\n').is_some() {}
            continue;
        }
        let token = match c {
            '\'' | '"' | '`' => {
                let mut inner = String::new();
                loop {
                    match chars.next() {
                        None => return Err("a quote has no end"),
                        Some((_, q)) if q == c => {
                            // Doubled, it stands for itself.
                            if chars.next_if(|(_, n)| *n == c).is_none() {
                                break;
                            }
                            inner.push(c);
                        }
                        Some((_, '\\')) if c != '`' => {
                            let (_, escaped) = chars.next().ok_or("a quote has no end")?;
                            // For LIKE, which takes them apart itself.
                            if matches!(escaped, '%' | '_') {
                                inner.push('\\');
                            }
                            inner.push(match escaped {
                                'n' => '\n',
                                't' => '\t',
                                'r' => '\r',
                                '0' => '\0',
                                other => other,
                            });
                        }
                        Some((_, other)) => inner.push(other),
                    }
                }
                match c {
                    '`' => Token::Word(inner),
                    _ => Token::Text(inner),
                }
            }
            '@' => {
                let system = chars.next_if(|(_, c)| *c == '@').is_some();
                let mut name = String::new();
                while let Some((_, c)) = chars.next_if(|(_, c)| is_name(*c) || *c == '.') {
                    name.extend(c.to_lowercase());
                }
                match system {
                    false => Token::UserVar(name),
                    true => match name.strip_prefix("global.") {
                        Some(name) => Token::SysVar(name.to_owned(), true),
                        None => {
                            let scopes = ["session.", "local."];
                            let short = scopes.iter().find_map(|s| name.strip_prefix(s));
                            Token::SysVar(short.unwrap_or(&name).to_owned(), false)
                        }
                    },
                }
            }
            c if c.is_ascii_digit() => {
                let mut number = c.to_string();
                while let Some((_, c)) = chars.next_if(|(_, c)| c.is_ascii_digit() || *c == '.') {
                    number.push(c);
                }
                Token::Number(number)
            }
            c if is_name(c) => {
                let mut word = c.to_string();
                while let Some((_, c)) = chars.next_if(|(_, c)| is_name(*c)) {
                    word.push(c);
                }
                Token::Word(word)
            }
            other => Token::Sign(other),
        };
        if out.len() == WORDS_MAX {
            return Err("it has too many words");
        }
        let to = chars.peek().map_or(text.len(), |(n, _)| *n);
        out.push(Placed { token, from, to });
    }
    while out.last().is_some_and(|t| t.token == Token::Sign(';')) {
        out.pop();
    }
    Ok(out)
}

/// Whether a word is this one, whatever its case.
pub fn is(token: Option<&Placed>, word: &str) -> bool {
    matches!(token.map(|t| &t.token), Some(Token::Word(w)) if w.eq_ignore_ascii_case(word))
}

/// Whether the tokens are these words, all of them.
pub fn are(tokens: &[Placed], words: &[&str]) -> bool {
    tokens.len() == words.len() && starts(tokens, words)
}

/// Whether the tokens begin with these words.
pub fn starts(tokens: &[Placed], words: &[&str]) -> bool {
    words.iter().enumerate().all(|(n, w)| is(tokens.get(n), w))
}

/// Splits at commas outside brackets.
pub fn items(tokens: &[Placed]) -> Vec<&[Placed]> {
    let mut depth = 0;
    let mut out = Vec::new();
    let mut from = 0;
    for (n, placed) in tokens.iter().enumerate() {
        match placed.token {
            Token::Sign('(') => depth += 1,
            Token::Sign(')') => depth -= 1,
            Token::Sign(',') if depth == 0 => {
                out.push(&tokens[from..n]);
                from = n + 1;
            }
            _ => {}
        }
    }
    out.push(&tokens[from..]);
    out
}

/// SQL's LIKE, without regard to case: `%` any text, `_` any character, `\` takes the next one as it is.
pub fn like(text: &str, pattern: &str) -> bool {
    let text: Vec<char> = text.to_lowercase().chars().collect();
    let pattern: Vec<char> = pattern.to_lowercase().chars().collect();
    // Where the pattern can stand after each character: no recursion, whatever the pattern is.
    let mut states = vec![false; pattern.len() + 1];
    states[0] = true;
    let open = |states: &mut Vec<bool>| {
        for (n, c) in pattern.iter().enumerate() {
            if states[n] && *c == '%' {
                states[n + 1] = true;
            }
        }
    };
    open(&mut states);
    for c in text {
        let mut next = vec![false; pattern.len() + 1];
        for n in (0..pattern.len()).filter(|n| states[*n]) {
            match pattern[n] {
                '%' => next[n] = true,
                '_' => next[n + 1] = true,
                '\\' if pattern.get(n + 1) == Some(&c) => next[n + 2] = true,
                p if p == c => next[n + 1] = true,
                _ => {}
            }
        }
        open(&mut next);
        states = next;
    }
    states[pattern.len()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kinds(text: &str) -> Vec<Token> {
        let placed = tokens(text).expect("whole");
        placed.into_iter().map(|t| t.token).collect()
    }

    #[test]
    fn cuts() {
        let word = |w: &str| Token::Word(w.into());
        assert_eq!(
            kinds("SET @Master_x = 'a\\'b''c', @@GLOBAL.y:=1.5 /* no */ -- rest\n;"),
            [
                word("SET"),
                Token::UserVar("master_x".into()),
                Token::Sign('='),
                Token::Text("a'b'c".into()),
                Token::Sign(','),
                Token::SysVar("y".into(), true),
                Token::Sign(':'),
                Token::Sign('='),
                Token::Number("1.5".into()),
            ]
        );
        assert_eq!(
            kinds("@@session.Z `a b`"),
            [Token::SysVar("z".into(), false), word("a b")]
        );
        for bad in ["'", "\"a", "/* a", "'\\"] {
            assert!(tokens(bad).is_err(), "{bad}");
        }
        let signs = |n: usize| tokens(&",".repeat(n)).map(|t| t.len());
        assert_eq!(signs(WORDS_MAX), Ok(WORDS_MAX));
        assert!(signs(WORDS_MAX + 1).is_err());
    }

    #[test]
    fn likes() {
        for (text, pattern) in [
            ("server_id", "SERVER_ID"),
            ("gtid_pos", "gtid%"),
            ("a", "%"),
            ("", "%"),
            ("a_b", "a\\_b"),
            ("abc", "%b%"),
        ] {
            assert!(like(text, pattern), "{text} {pattern}");
        }
        for (text, pattern) in [
            ("server_id", "server"),
            ("axb", "a\\_b"),
            ("", "_"),
            ("ab", "b%"),
        ] {
            assert!(!like(text, pattern), "{text} {pattern}");
        }
    }

    proptest! {
        #[test]
        fn any_text(text in "[a-z@ '\"`/*#\\\\.,();=%é-]{0,40}", pattern in "[a%_\\\\]{0,20}") {
            if let Ok(tokens) = tokens(&text) {
                let mut at = 0;
                for t in &tokens {
                    prop_assert!(t.from >= at && t.to > t.from);
                    prop_assert!(text.get(t.from..t.to).is_some());
                    at = t.to;
                }
                items(&tokens);
            }
            like(&text, &pattern);
        }
    }
}
