//! Values of keys as bytes to be hashed: equal values give equal bytes.
//!
//! Only this direction counts. Two different values that give the same bytes
//! are a conflict that is none, and cost some parallelism; two equal ones that
//! gave different bytes would let transactions run side by side that must not.
//! Where equality cannot be seen from the bytes there is no answer
//! ([`Folded::Vague`]), and the whole index counts as touched.

use crate::column::ColumnType;

/// What is known of how a text column compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Equality {
    /// By bytes, blanks at the end aside.
    Bytes,
    /// Of two texts in ASCII that are equal, letters and digits are, whatever
    /// their case. Of others nothing is known ("ss" may be "ß").
    AsciiLetters,
    /// Nothing is known.
    Unknown,
}

/// Collations of which it is known that they tell all ASCII letters and all
/// digits apart, case aside, and that a byte below 128 is the ASCII character.
///
/// Most of the others are right as well, but some are not: to Lithuanian and
/// Latvian rules i is y, to Roman ones i is j, in swe7 [ is a letter.
const ASCII_LETTERS: [&str; 11] = [
    "ascii_general",
    "latin1_swedish",
    "latin1_general",
    "utf8_general",
    "utf8mb3_general",
    "utf8mb4_general",
    "utf8_unicode",
    "utf8mb3_unicode",
    "utf8mb4_unicode",
    "utf8mb4_0900",
    "utf8mb4_uca1400",
];

/// Endings that say how strictly such a collation compares.
const STRENGTHS: [&str; 9] = [
    "_ci",
    "_cs",
    "_ai_ci",
    "_as_ci",
    "_as_cs",
    "_ai_cs",
    "_nopad_ci",
    "_520_ci",
    "_520_nopad_ci",
];

/// Further ones, of the newest family.
const NOPAD_STRENGTHS: [&str; 4] = [
    "_nopad_ai_ci",
    "_nopad_as_ci",
    "_nopad_as_cs",
    "_nopad_ai_cs",
];

impl Equality {
    /// By the collation's name as `information_schema` has it; `None`: the
    /// column is no text, or binary.
    pub(crate) fn of(collation: Option<&str>) -> Equality {
        let Some(name) = collation else {
            return Equality::Bytes;
        };
        let name = name.to_ascii_lowercase();
        if name == "binary" || name.ends_with("_bin") {
            return Equality::Bytes;
        }
        let known = ASCII_LETTERS.iter().any(|family| {
            name.strip_prefix(family)
                .is_some_and(|rest| STRENGTHS.contains(&rest) || NOPAD_STRENGTHS.contains(&rest))
        });
        match known {
            true => Equality::AsciiLetters,
            false => Equality::Unknown,
        }
    }
}

/// What came of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Folded {
    /// Its bytes were appended.
    Bytes,
    /// It cannot be said which others it equals. Nothing was appended.
    Vague,
}

/// Appends a value's bytes, with their number in front.
///
/// `prefix`: so many characters of it count, 0: all. Characters have at least
/// one byte, so as many bytes are looked at: those that are equal up to the
/// prefix are equal up to there.
pub(crate) fn fold(
    column: ColumnType,
    equality: Equality,
    prefix: usize,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> Folded {
    match column {
        ColumnType::Int { .. }
        | ColumnType::Year
        | ColumnType::Date
        | ColumnType::OldTime
        | ColumnType::OldDateTime
        | ColumnType::OldTimestamp
        | ColumnType::Time { .. }
        | ColumnType::DateTime { .. }
        | ColumnType::Timestamp { .. }
        | ColumnType::Bit { .. }
        | ColumnType::Enum { .. }
        | ColumnType::Set { .. } => put(out, bytes),
        // -0 is 0.
        ColumnType::Float | ColumnType::Double => match bytes.split_last() {
            Some((0 | 0x80, rest)) if rest.iter().all(|b| *b == 0) => put(out, &[]),
            _ => put(out, bytes),
        },
        ColumnType::Decimal { .. } => match is_negative_zero(bytes) {
            true => {
                let zero: Vec<u8> = bytes.iter().map(|b| !b).collect();
                put(out, &zero)
            }
            false => put(out, bytes),
        },
        ColumnType::Char { .. } | ColumnType::VarChar { .. } | ColumnType::Blob { .. } => {
            return text(equality, prefix, bytes, out);
        }
        // No key can have these.
        ColumnType::CompressedVarChar { .. }
        | ColumnType::CompressedBlob { .. }
        | ColumnType::Json { .. }
        | ColumnType::Geometry { .. }
        | ColumnType::Vector { .. }
        | ColumnType::Null => return Folded::Vague,
    }
    Folded::Bytes
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// All bits of a negative number are inverted, but its top one says plus.
fn is_negative_zero(bytes: &[u8]) -> bool {
    bytes
        .split_first()
        .is_some_and(|(first, rest)| *first == 0x7f && rest.iter().all(|b| *b == 0xff))
}

fn text(equality: Equality, prefix: usize, bytes: &[u8], out: &mut Vec<u8>) -> Folded {
    let counts = match prefix {
        0 => bytes,
        n => &bytes[..bytes.len().min(n)],
    };
    match equality {
        Equality::Unknown => Folded::Vague,
        // CHAR and BINARY come without what fills them up, and to most
        // collations blanks at the end are nothing. Zeros too: in UTF-16 they
        // are a half of a blank.
        Equality::Bytes => {
            let end = counts.iter().rposition(|b| !matches!(b, b' ' | 0));
            put(out, &counts[..end.map_or(0, |at| at + 1)]);
            Folded::Bytes
        }
        // All of it is looked at, as a prefix beyond ASCII has more bytes than
        // characters.
        Equality::AsciiLetters if !bytes.is_ascii() => Folded::Vague,
        // All else may be ignored by the collation, as control characters are.
        Equality::AsciiLetters => {
            let begin = out.len();
            put(out, &[]);
            let letters = counts.iter().filter(|b| b.is_ascii_alphanumeric());
            out.extend(letters.map(u8::to_ascii_lowercase));
            let len = (out.len() - begin - 8) as u64;
            out[begin..begin + 8].copy_from_slice(&len.to_le_bytes());
            Folded::Bytes
        }
    }
}

/// Whether a table map's type has no width for its fraction, while the column
/// has one: rows with such a column cannot be read.
pub(crate) fn hides_its_width(column: ColumnType, kind: &str) -> bool {
    let old = matches!(
        column,
        ColumnType::OldTime | ColumnType::OldDateTime | ColumnType::OldTimestamp
    );
    old && kind.contains('(')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn folded(
        column: ColumnType,
        equality: Equality,
        prefix: usize,
        bytes: &[u8],
    ) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        match fold(column, equality, prefix, bytes, &mut out) {
            Folded::Bytes => Some(out),
            Folded::Vague => {
                assert!(out.is_empty());
                None
            }
        }
    }

    const VARCHAR: ColumnType = ColumnType::VarChar { bytes: 100 };

    /// A collation as Unicode's, in small: case and control characters do not
    /// count, blanks at the end neither, nor accents; ß is ss.
    fn weights(text: &str) -> String {
        let mut out = String::new();
        for c in text.trim_end_matches(' ').chars() {
            match c {
                'ß' => out.push_str("ss"),
                'é' | 'É' => out.push('e'),
                c if c.is_control() => {}
                c => out.extend(c.to_lowercase()),
            }
        }
        out
    }

    proptest! {
        /// Texts that are equal give the same bytes, or one of them gives none.
        #[test]
        fn equal_texts(a in "[aAbs ß\u{1}é_-]{0,6}", b in "[aAbs ß\u{1}é_-]{0,6}", prefix in 0usize..5) {
            let cut = |text: &str| -> String {
                match prefix {
                    0 => text.into(),
                    n => text.chars().take(n).collect(),
                }
            };
            let of = |text: &str, equality| folded(VARCHAR, equality, prefix, text.as_bytes());
            if weights(&cut(&a)) == weights(&cut(&b)) {
                let (a, b) = (of(&a, Equality::AsciiLetters), of(&b, Equality::AsciiLetters));
                prop_assert!(a.is_none() || b.is_none() || a == b);
            }
            if cut(&a).trim_end_matches(' ') == cut(&b).trim_end_matches(' ') {
                prop_assert_eq!(of(&a, Equality::Bytes), of(&b, Equality::Bytes));
            }
            prop_assert_eq!(of(&a, Equality::Unknown), None);
        }

        /// Values one after the other cannot be taken for others.
        #[test]
        fn nothing_runs_together(a in "[ab]{0,3}", b in "[ab]{0,3}", c in "[ab]{0,3}", d in "[ab]{0,3}") {
            let both = |x: &str, y: &str| {
                let mut out = Vec::new();
                for text in [x, y] {
                    fold(VARCHAR, Equality::Bytes, 0, text.as_bytes(), &mut out);
                }
                out
            };
            prop_assert_eq!(both(&a, &b) == both(&c, &d), (a, b) == (c, d));
        }

        #[test]
        fn floats(a: f64, b: f64) {
            let of = |x: f64| folded(ColumnType::Double, Equality::Bytes, 0, &x.to_le_bytes());
            prop_assert!(a != b || of(a) == of(b));
            prop_assert_eq!(of(0.0), of(-0.0));
        }
    }

    #[test]
    fn zeros() {
        let decimal = ColumnType::Decimal {
            precision: 4,
            scale: 2,
        };
        let of = |bytes: &[u8]| folded(decimal, Equality::Bytes, 0, bytes);
        assert_eq!(of(&[0x7f, 0xff]), of(&[0x80, 0]));
        assert_ne!(of(&[0x7f, 0xfe]), of(&[0x80, 1]));
        let float = |x: f32| folded(ColumnType::Float, Equality::Bytes, 0, &x.to_le_bytes());
        assert_eq!(float(0.0), float(-0.0));
        assert_ne!(float(1.0), float(-1.0));
        // An INET6 of :: comes without any byte.
        let address = ColumnType::Char { bytes: 16 };
        let of = |bytes: &[u8]| folded(address, Equality::Bytes, 0, bytes);
        assert_eq!(of(&[0; 16]), of(&[]));
        assert_ne!(of(&[1]), of(&[0, 1]));
    }

    #[test]
    fn collations() {
        let of = |name| Equality::of(Some(name));
        assert_eq!(Equality::of(None), Equality::Bytes);
        for name in [
            "binary",
            "utf8mb4_bin",
            "utf8mb4_0900_bin",
            "latin1_nopad_bin",
        ] {
            assert_eq!(of(name), Equality::Bytes, "{name}");
        }
        for name in [
            "utf8mb4_general_ci",
            "utf8mb3_unicode_520_ci",
            "utf8mb4_0900_ai_ci",
            "utf8mb4_uca1400_nopad_as_ci",
            "latin1_swedish_ci",
            "latin1_swedish_nopad_ci",
            "UTF8_UNICODE_CI",
        ] {
            assert_eq!(of(name), Equality::AsciiLetters, "{name}");
        }
        for name in [
            "utf8mb4_lithuanian_ci",
            "utf8mb4_roman_ci",
            "utf8mb4_uca1400_lithuanian_ai_ci",
            "utf8mb4_lt_0900_ai_ci",
            "swe7_swedish_ci",
            "utf16_general_ci",
            "utf8mb4_tr_0900_ai_ci",
            "",
        ] {
            assert_eq!(of(name), Equality::Unknown, "{name}");
        }
    }

    #[test]
    fn old_times() {
        assert!(hides_its_width(ColumnType::OldDateTime, "datetime(3)"));
        assert!(!hides_its_width(ColumnType::OldDateTime, "datetime"));
        assert!(!hides_its_width(
            ColumnType::DateTime { fraction: 3 },
            "datetime(3)"
        ));
    }
}
