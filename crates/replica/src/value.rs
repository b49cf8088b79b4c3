//! Values of rows as literals of SQL.
//!
//! They are written for a session of [`crate::target::ROWS`]: bytes are binary, a backslash
//! escapes, time is UTC.

use dromon_binlog::{ColumnType, DateTime, Value};
use dromon_relay::log::date;

/// A value that no literal says exactly: its rows are applied in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfit;

/// Longest value in bytes that a compressed column may have.
pub(crate) const VALUE_MAX: usize = 1 << 30;

/// Whether values of this type can be written.
pub fn is_fit(column: ColumnType) -> bool {
    !matches!(
        column,
        ColumnType::OldTime
            | ColumnType::OldDateTime
            | ColumnType::OldTimestamp
            | ColumnType::Json { .. }
            | ColumnType::Geometry { .. }
            | ColumnType::Vector { .. }
            | ColumnType::Null
    )
}

/// How a text is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text<'a> {
    /// As bytes: to be stored.
    Stored,
    /// In this character set: to be compared, so that an index helps.
    Compared(&'a str),
    /// A BINARY of this length, to be compared: rows come without the zeros at its end.
    Padded(usize),
}

/// Writes the bytes of a cell as a literal.
pub fn put_literal(
    out: &mut Vec<u8>,
    column: ColumnType,
    bytes: &[u8],
    unsigned: bool,
    text: Text<'_>,
) -> Result<(), Unfit> {
    let value = Value::decode(column, bytes, unsigned, VALUE_MAX).map_err(|_| Unfit)?;
    let mut plain = |text: String| out.extend_from_slice(text.as_bytes());
    match value {
        Value::Int(n) => plain(n.to_string()),
        Value::UInt(n) | Value::Set(n) | Value::Bit(n) => plain(n.to_string()),
        // As the double it is, exactly: its own shortest form is rounded twice.
        Value::Float(n) if n.is_finite() => plain(double(f64::from(n))),
        Value::Double(n) if n.is_finite() => plain(double(n)),
        Value::Float(_) | Value::Double(_) => return Err(Unfit),
        Value::Decimal(n) => plain(n.as_str().to_owned()),
        Value::Year(n) => plain(n.to_string()),
        Value::Date(d) => plain(format!("'{d}'")),
        Value::Time(t) => plain(format!("'{t}'")),
        Value::DateTime(t) => plain(format!("'{t}'")),
        Value::Timestamp {
            seconds: 0,
            micros: 0,
            ..
        } => plain("'0000-00-00 00:00:00'".into()),
        Value::Timestamp {
            seconds,
            micros,
            digits,
        } => plain(format!("'{}'", utc(seconds, micros, digits))),
        // The empty value of a wrong one cannot be written in strict mode.
        Value::Enum(0) => return Err(Unfit),
        Value::Enum(n) => plain(n.to_string()),
        Value::Bytes(bytes) => match text {
            Text::Stored => put_text(out, &bytes, 0),
            Text::Compared(charset) => {
                out.push(b'_');
                out.extend_from_slice(charset.as_bytes());
                put_text(out, &bytes, 0);
            }
            Text::Padded(len) => put_text(out, &bytes, len.saturating_sub(bytes.len())),
        },
        Value::Null | Value::Json(_) | Value::Geometry(_) | Value::Vector(_) => return Err(Unfit),
    }
    Ok(())
}

/// With an exponent, so that it is a double and no decimal.
fn double(n: f64) -> String {
    format!("{n:e}")
}

/// `2024-02-29 23:59:58.25`.
fn utc(seconds: u32, micros: u32, digits: u8) -> DateTime {
    let (year, month, day) = date(u64::from(seconds / 86_400));
    let clock = seconds % 86_400;
    DateTime {
        date: dromon_binlog::Date {
            year: year as u16,
            month: month as u8,
            day: day as u8,
        },
        time: dromon_binlog::Time {
            negative: false,
            hours: (clock / 3600) as u16,
            minutes: (clock / 60 % 60) as u8,
            seconds: (clock % 60) as u8,
            micros,
            digits,
        },
    }
}

/// Bytes in quotes, with so many zeros behind them. A server takes all other bytes as they are.
pub fn put_text(out: &mut Vec<u8>, bytes: &[u8], zeros: usize) {
    out.reserve(bytes.len() + 2);
    out.push(b'\'');
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|b| matches!(b, b'\'' | b'\\')) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(&[b'\\', rest[at]]);
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
    out.extend(std::iter::repeat_n(0, zeros));
    out.push(b'\'');
}

/// A name in backticks.
pub fn put_name(out: &mut Vec<u8>, name: &[u8]) {
    out.push(b'`');
    for b in name {
        if *b == b'`' {
            out.push(b'`');
        }
        out.push(*b);
    }
    out.push(b'`');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(column: ColumnType, bytes: &[u8], text: Text<'_>) -> String {
        let mut out = Vec::new();
        put_literal(&mut out, column, bytes, false, text).expect("fit");
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn literals() {
        let text = ColumnType::VarChar { bytes: 99 };
        let stored = Text::Stored;
        assert_eq!(written(text, b"it's\\\0", stored), "'it\\'s\\\\\0'");
        assert_eq!(
            written(text, b"a", Text::Compared("utf8mb4")),
            "_utf8mb4'a'"
        );
        let binary = ColumnType::Char { bytes: 4 };
        assert_eq!(written(binary, b"a", Text::Padded(3)), "'a\0\0'");
        let float = |n: f32| written(ColumnType::Float, &n.to_le_bytes(), stored);
        assert_eq!(float(0.1), "1.0000000149011612e-1");
        assert_eq!(float(-0.0), "-0e0");
        let double = |n: f64| written(ColumnType::Double, &n.to_le_bytes(), stored);
        assert_eq!(double(1e300), "1e300");
        let mut out = Vec::new();
        let nan = put_literal(
            &mut out,
            ColumnType::Double,
            &f64::NAN.to_le_bytes(),
            false,
            stored,
        );
        assert_eq!(nan, Err(Unfit));
        let none = put_literal(&mut out, ColumnType::Enum { bytes: 1 }, &[0], false, stored);
        assert_eq!(none, Err(Unfit));
        let at = |n: u32| {
            written(
                ColumnType::Timestamp { fraction: 0 },
                &n.to_be_bytes(),
                stored,
            )
        };
        assert_eq!(at(0), "'0000-00-00 00:00:00'");
        assert_eq!(at(1), "'1970-01-01 00:00:01'");
        assert_eq!(at(951_782_399), "'2000-02-28 23:59:59'");
        assert_eq!(at(951_782_400), "'2000-02-29 00:00:00'");
        assert_eq!(at(u32::MAX), "'2106-02-07 06:28:15'");
        let mut name = Vec::new();
        put_name(&mut name, b"a`b");
        assert_eq!(name, b"`a``b`");
    }
}
