//! Typed values out of the bytes of a cell.
//!
//! ```text
//! DECIMAL    groups of nine digits in 4 bytes, big endian, fewer digits in
//!            fewer bytes, at the outer ends; the top bit inverted, of a
//!            negative number all bits
//! TIME       big endian, hours 10 bits, minutes 6, seconds 6, and the
//!            fraction; negative ones as two's complement, the top bit inverted
//! DATETIME   big endian, sign 1 (always 1), year * 13 + month 17, day 5,
//!            hour 5, minute 6, second 6, and the fraction
//! TIMESTAMP  big endian, seconds since 1970 u32, and the fraction
//! fraction   big endian, hundredths in 1 byte, ten-thousandths in 2,
//!            millionths in 3
//! DATE       little endian, year 15, month 4, day 5 bits
//! older      DATETIME u64 as YYYYMMDDhhmmss, TIME i24 as hhmmss, TIMESTAMP u32
//! ```

use std::borrow::Cow;
use std::fmt;

use crate::bytes::{be, le};
use crate::column::{ColumnType, decimal_part_len, fraction_len};
use crate::compress;

/// Bytes of a cell that are no value of the column's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a value of a {column:?} column cannot be read: {what}")]
pub struct ValueError {
    /// The column's type.
    pub column: ColumnType,
    /// What is wrong.
    pub what: &'static str,
}

/// A date, as stored: parts of it may be zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date {
    /// 0 to 9999.
    pub year: u16,
    /// 0 to 12.
    pub month: u8,
    /// 0 to 31.
    pub day: u8,
}

/// A span or a time of day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Below zero.
    pub negative: bool,
    /// Up to 838.
    pub hours: u16,
    /// 0 to 59.
    pub minutes: u8,
    /// 0 to 59.
    pub seconds: u8,
    /// Millionths of a second.
    pub micros: u32,
    /// Digits of the fraction that the column has.
    pub digits: u8,
}

/// A date and time of day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DateTime {
    /// The day.
    pub date: Date,
    /// The time of day.
    pub time: Time,
}

/// A number with a fixed point, as text: `-12.50`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decimal(String);

impl Decimal {
    /// Sign, digits and point.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// NULL.
    Null,
    /// A whole number of a signed column, or of one whose sign is not known.
    Int(i64),
    /// A whole number of an unsigned column.
    UInt(u64),
    /// FLOAT.
    Float(f32),
    /// DOUBLE.
    Double(f64),
    /// DECIMAL.
    Decimal(Decimal),
    /// YEAR; 0 is the year zero.
    Year(u16),
    /// DATE.
    Date(Date),
    /// TIME.
    Time(Time),
    /// DATETIME.
    DateTime(DateTime),
    /// TIMESTAMP.
    Timestamp {
        /// Since 1970; 0 with no micros is the time zero.
        seconds: u32,
        /// Millionths of a second.
        micros: u32,
        /// Digits of the fraction that the column has.
        digits: u8,
    },
    /// BIT.
    Bit(u64),
    /// ENUM: number of the value from 1 on; 0 is the empty, wrong value.
    Enum(u16),
    /// SET: one bit for each value.
    Set(u64),
    /// Text or binary, in the column's character set; a CHAR without the
    /// spaces at its end, a BINARY without the zeros.
    Bytes(Cow<'a, [u8]>),
    /// MySQL's binary JSON.
    Json(&'a [u8]),
    /// SRID u32 and well-known binary.
    Geometry(&'a [u8]),
    /// MySQL's VECTOR: little-endian floats.
    Vector(&'a [u8]),
}

impl<'a> Value<'a> {
    /// Reads a cell's bytes. Whether a whole number is unsigned is not in its
    /// bytes; it is in the table map's metadata, or in the schema. What is
    /// compressed may have `max` bytes.
    pub fn decode(
        column: ColumnType,
        bytes: &'a [u8],
        unsigned: bool,
        max: usize,
    ) -> Result<Value<'a>, ValueError> {
        match column.is_possible() {
            true => decode(column, bytes, unsigned, max),
            false => Err("no table has such a column"),
        }
        .map_err(|what| ValueError { column, what })
    }
}

fn decode(
    column: ColumnType,
    bytes: &[u8],
    unsigned: bool,
    max: usize,
) -> Result<Value<'_>, &'static str> {
    let sized = |n: usize| match bytes.len() == n {
        true => Ok(()),
        false => Err("it has not the size of its type"),
    };
    Ok(match column {
        ColumnType::Null => Value::Null,
        ColumnType::Int { bytes: n } => {
            sized(usize::from(n))?;
            match unsigned {
                true => Value::UInt(le(bytes)),
                false => Value::Int(signed(le(bytes), u32::from(n) * 8)),
            }
        }
        ColumnType::Float => {
            sized(4)?;
            Value::Float(f32::from_bits(le(bytes) as u32))
        }
        ColumnType::Double => {
            sized(8)?;
            Value::Double(f64::from_bits(le(bytes)))
        }
        ColumnType::Decimal { precision, scale } => decimal(bytes, precision, scale)?,
        ColumnType::Year => {
            sized(1)?;
            Value::Year(match bytes[0] {
                0 => 0,
                n => 1900 + u16::from(n),
            })
        }
        ColumnType::Date => {
            sized(3)?;
            let n = le(bytes);
            Value::Date(Date {
                year: (n >> 9) as u16,
                month: (n >> 5 & 15) as u8,
                day: (n & 31) as u8,
            })
        }
        ColumnType::OldTime => {
            sized(3)?;
            let n = signed(le(bytes), 24);
            Value::Time(old_time(n.unsigned_abs(), n < 0)?)
        }
        ColumnType::OldDateTime => {
            sized(8)?;
            old_datetime(le(bytes))?
        }
        ColumnType::OldTimestamp => {
            sized(4)?;
            Value::Timestamp {
                seconds: le(bytes) as u32,
                micros: 0,
                digits: 0,
            }
        }
        ColumnType::Time { fraction } => {
            sized(3 + fraction_len(fraction))?;
            Value::Time(time(bytes, fraction)?)
        }
        ColumnType::DateTime { fraction } => {
            sized(5 + fraction_len(fraction))?;
            datetime(bytes, fraction)?
        }
        ColumnType::Timestamp { fraction } => {
            sized(4 + fraction_len(fraction))?;
            Value::Timestamp {
                seconds: be(&bytes[..4]) as u32,
                micros: micros(be(&bytes[4..]), fraction)?,
                digits: fraction,
            }
        }
        ColumnType::Bit { bits } => {
            sized(usize::from(bits).div_ceil(8))?;
            Value::Bit(be(bytes))
        }
        ColumnType::Enum { bytes: n } => {
            sized(usize::from(n))?;
            Value::Enum(le(bytes) as u16)
        }
        ColumnType::Set { bytes: n } => {
            sized(usize::from(n))?;
            Value::Set(le(bytes))
        }
        ColumnType::Char { .. } | ColumnType::VarChar { .. } | ColumnType::Blob { .. } => {
            Value::Bytes(Cow::Borrowed(bytes))
        }
        ColumnType::CompressedVarChar { .. } | ColumnType::CompressedBlob { .. } => {
            Value::Bytes(compress::decompress_column(bytes, max)?)
        }
        ColumnType::Json { .. } => Value::Json(bytes),
        ColumnType::Geometry { .. } => Value::Geometry(bytes),
        ColumnType::Vector { .. } => Value::Vector(bytes),
    })
}

/// The lowest `bits` of a number as a signed one.
fn signed(n: u64, bits: u32) -> i64 {
    let unused = 64 - bits;
    (n << unused) as i64 >> unused
}

fn decimal(bytes: &[u8], precision: u8, scale: u8) -> Result<Value<'static>, &'static str> {
    let scale = usize::from(scale);
    let whole = usize::from(precision)
        .checked_sub(scale)
        .ok_or("it has not the size of its type")?;
    let whole_len = decimal_part_len(whole);
    if bytes.len() != whole_len + decimal_part_len(scale) || bytes.is_empty() {
        return Err("it has not the size of its type");
    }
    let negative = bytes[0] & 0x80 == 0;
    let mask = if negative { 0xff } else { 0 };
    let mut plain: Vec<u8> = bytes.iter().map(|b| b ^ mask).collect();
    plain[0] ^= 0x80;
    let mut text = String::with_capacity(usize::from(precision) + 3);
    if negative {
        text.push('-');
    }
    let (before, behind) = plain.split_at(whole_len);
    let mut digits = String::with_capacity(whole);
    let (first, groups) = before.split_at(decimal_part_len(whole % 9));
    push_digits(&mut digits, first, whole % 9)?;
    for group in groups.chunks(4) {
        push_digits(&mut digits, group, 9)?;
    }
    match digits.trim_start_matches('0') {
        "" => text.push('0'),
        digits => text.push_str(digits),
    }
    if scale > 0 {
        text.push('.');
        let (groups, last) = behind.split_at(scale / 9 * 4);
        for group in groups.chunks(4) {
            push_digits(&mut text, group, 9)?;
        }
        push_digits(&mut text, last, scale % 9)?;
    }
    Ok(Value::Decimal(Decimal(text)))
}

fn push_digits(out: &mut String, group: &[u8], digits: usize) -> Result<(), &'static str> {
    if digits == 0 {
        return Ok(());
    }
    let n = be(group);
    if n >= 10u64.pow(digits as u32) {
        return Err("a group of its digits is too large");
    }
    out.push_str(&format!("{n:0digits$}"));
    Ok(())
}

fn micros(stored: u64, fraction: u8) -> Result<u32, &'static str> {
    let unit = [1, 10_000, 100, 1][fraction_len(fraction)];
    match stored * unit {
        n @ 0..1_000_000 => Ok(if fraction == 0 { 0 } else { n as u32 }),
        _ => Err("its fraction is a second or more"),
    }
}

fn clock(hours: u64, minutes: u64, seconds: u64) -> Result<(u16, u8, u8), &'static str> {
    if minutes > 59 || seconds > 59 {
        return Err("its minutes or seconds are above 59");
    }
    let hours = u16::try_from(hours).map_err(|_| "its hours are beyond all measure")?;
    Ok((hours, minutes as u8, seconds as u8))
}

fn time(bytes: &[u8], fraction: u8) -> Result<Time, &'static str> {
    let bits = bytes.len() as u32 * 8;
    let n = be(bytes) as i64 - (1i64 << (bits - 1));
    let fraction_bits = fraction_len(fraction) * 8;
    let size = n.unsigned_abs();
    let seconds = size >> fraction_bits;
    let part = size & ((1 << fraction_bits) - 1);
    let (hours, minutes, seconds) = clock(seconds >> 12, seconds >> 6 & 63, seconds & 63)?;
    Ok(Time {
        negative: n < 0,
        hours,
        minutes,
        seconds,
        micros: micros(part, fraction)?,
        digits: fraction,
    })
}

fn datetime(bytes: &[u8], fraction: u8) -> Result<Value<'static>, &'static str> {
    let n = be(&bytes[..5]);
    if n >> 39 != 1 {
        return Err("it is before the year zero");
    }
    let months = n >> 22 & 0x1_ffff;
    let (hours, minutes, seconds) = clock(n >> 12 & 31, n >> 6 & 63, n & 63)?;
    Ok(Value::DateTime(DateTime {
        date: Date {
            year: (months / 13) as u16,
            month: (months % 13) as u8,
            day: (n >> 17 & 31) as u8,
        },
        time: Time {
            negative: false,
            hours,
            minutes,
            seconds,
            micros: micros(be(&bytes[5..]), fraction)?,
            digits: fraction,
        },
    }))
}

fn old_time(n: u64, negative: bool) -> Result<Time, &'static str> {
    let (hours, minutes, seconds) = clock(n / 10_000, n / 100 % 100, n % 100)?;
    Ok(Time {
        negative,
        hours,
        minutes,
        seconds,
        micros: 0,
        digits: 0,
    })
}

fn old_datetime(n: u64) -> Result<Value<'static>, &'static str> {
    let (day, clock) = (n / 1_000_000, n % 1_000_000);
    let year = u16::try_from(day / 10_000).map_err(|_| "its year is beyond all measure")?;
    Ok(Value::DateTime(DateTime {
        date: Date {
            year,
            month: (day / 100 % 100) as u8,
            day: (day % 100) as u8,
        },
        time: old_time(clock, false)?,
    }))
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

/// A point and so many digits; nothing if none.
pub(crate) fn write_fraction(f: &mut fmt::Formatter<'_>, micros: u32, digits: u8) -> fmt::Result {
    match digits {
        1..=6 => {
            let shown = micros / 10u32.pow(6 - u32::from(digits));
            write!(f, ".{shown:0width$}", width = usize::from(digits))
        }
        _ => Ok(()),
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.negative { "-" } else { "" };
        let (h, m, s) = (self.hours, self.minutes, self.seconds);
        write!(f, "{sign}{h:02}:{m:02}:{s:02}")?;
        write_fraction(f, self.micros, self.digits)
    }
}

impl fmt::Display for DateTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.date, self.time)
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Value<'_> {
    /// As a literal of SQL. Bytes are shown in quotes if they are plain text,
    /// else as hexadecimal digits; an ENUM and a SET by their numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("NULL"),
            Value::Int(n) => write!(f, "{n}"),
            Value::UInt(n) | Value::Set(n) => write!(f, "{n}"),
            Value::Float(n) => write!(f, "{n:?}"),
            Value::Double(n) => write!(f, "{n:?}"),
            Value::Decimal(n) => write!(f, "{n}"),
            Value::Year(n) => write!(f, "{n:04}"),
            Value::Date(d) => write!(f, "'{d}'"),
            Value::Time(t) => write!(f, "'{t}'"),
            Value::DateTime(t) => write!(f, "'{t}'"),
            Value::Timestamp {
                seconds,
                micros,
                digits,
            } => {
                write!(f, "{seconds}")?;
                write_fraction(f, *micros, *digits)
            }
            Value::Bit(n) => write!(f, "b'{n:b}'"),
            Value::Enum(n) => write!(f, "{n}"),
            Value::Bytes(bytes) => write_bytes(f, bytes),
            Value::Json(bytes) | Value::Geometry(bytes) | Value::Vector(bytes) => {
                write_bytes(f, bytes)
            }
        }
    }
}

fn write_bytes(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    let plain = |b: &u8| (b' '..=b'~').contains(b) && !matches!(b, b'\'' | b'\\');
    match std::str::from_utf8(bytes) {
        Ok(text) if bytes.iter().all(plain) => write!(f, "'{text}'"),
        _ => {
            f.write_str("x'")?;
            bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))?;
            f.write_str("'")
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: usize = 1 << 16;

    fn shown(column: ColumnType, bytes: &[u8]) -> String {
        Value::decode(column, bytes, false, MAX)
            .unwrap()
            .to_string()
    }

    /// By the definition of the format, the other way round.
    fn put_decimal(whole: &str, behind: &str, negative: bool) -> Vec<u8> {
        let len = |n: usize| [0, 1, 1, 2, 2, 3, 3, 4, 4, 4][n];
        let mut out = Vec::new();
        let mut put = |digits: &str| {
            let n: u64 = digits.parse().unwrap_or(0);
            let bytes = n.to_be_bytes();
            out.extend_from_slice(&bytes[8 - len(digits.len())..]);
        };
        let (first, mut rest) = whole.split_at(whole.len() % 9);
        put(first);
        while !rest.is_empty() {
            put(&rest[..9]);
            rest = &rest[9..];
        }
        let mut rest = behind;
        while !rest.is_empty() {
            let n = rest.len().min(9);
            put(&rest[..n]);
            rest = &rest[n..];
        }
        out[0] ^= 0x80;
        if negative {
            out.iter_mut().for_each(|b| *b = !*b);
        }
        out
    }

    proptest! {
        #[test]
        fn decimals(whole in "[0-9]{0,35}", behind in "[0-9]{0,30}", negative: bool) {
            prop_assume!(!whole.is_empty() || !behind.is_empty());
            let bytes = put_decimal(&whole, &behind, negative);
            let column = ColumnType::Decimal {
                precision: (whole.len() + behind.len()) as u8,
                scale: behind.len() as u8,
            };
            let mut expected = String::new();
            if negative {
                expected.push('-');
            }
            let trimmed = whole.trim_start_matches('0');
            expected.push_str(if trimmed.is_empty() { "0" } else { trimmed });
            if !behind.is_empty() {
                expected.push('.');
                expected.push_str(&behind);
            }
            prop_assert_eq!(shown(column, &bytes), expected);
        }

        #[test]
        fn times(negative: bool, h in 0u16..839, m in 0u8..60, s in 0u8..60, frac in 0u32..1_000_000, digits in 0u8..7) {
            let micros = frac / 10u32.pow(6 - u32::from(digits)) * 10u32.pow(6 - u32::from(digits));
            let len = fraction_len(digits);
            let unit = [1_000_000, 10_000, 100, 1][len];
            let size = (i64::from(h) << 12 | i64::from(m) << 6 | i64::from(s)) << (len * 8)
                | i64::from(micros / unit);
            let n = (1i64 << ((3 + len) * 8 - 1)) + if negative { -size } else { size };
            let bytes = &n.to_be_bytes()[8 - 3 - len..];
            let time = Time { negative: negative && size != 0, hours: h, minutes: m, seconds: s, micros, digits };
            prop_assert_eq!(
                Value::decode(ColumnType::Time { fraction: digits }, bytes, false, MAX),
                Ok(Value::Time(time))
            );
        }

        #[test]
        fn whole_numbers(n: i64, size in prop::sample::select(vec![1u8, 2, 3, 4, 8])) {
            let bytes = &n.to_le_bytes()[..usize::from(size)];
            let bits = u32::from(size) * 8;
            let column = ColumnType::Int { bytes: size };
            prop_assert_eq!(Value::decode(column, bytes, false, MAX), Ok(Value::Int(signed(n as u64, bits))));
            let mask = u64::MAX >> (64 - bits);
            prop_assert_eq!(Value::decode(column, bytes, true, MAX), Ok(Value::UInt(n as u64 & mask)));
        }

        #[test]
        fn any_bytes(number: u8, meta in proptest::collection::vec(any::<u8>(), 2), bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            use crate::bytes::Reader;
            use crate::header::EventType;
            let mut meta = Reader::new(&meta, 0, EventType::TABLE_MAP);
            if let Ok(column) = ColumnType::decode(number, &mut meta) {
                let mut r = Reader::new(&bytes, 0, EventType::WRITE_ROWS_V1);
                prop_assert!(column.is_possible());
                if let Ok(cell) = column.take(&mut r) {
                    prop_assert_eq!(r.offset() + r.left(), bytes.len());
                    let _ = Value::decode(column, cell, true, MAX).map(|v| v.to_string());
                }
                let _ = Value::decode(column, &bytes, false, MAX).map(|v| v.to_string());
            }
        }

        /// Column types that a caller made up.
        #[test]
        fn any_column(which in 0usize..10, n: u8, m: u8, bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let column = [
                ColumnType::Int { bytes: n },
                ColumnType::Decimal { precision: n, scale: m },
                ColumnType::Time { fraction: n },
                ColumnType::DateTime { fraction: n },
                ColumnType::Timestamp { fraction: n },
                ColumnType::Bit { bits: n },
                ColumnType::Enum { bytes: n },
                ColumnType::Set { bytes: n },
                ColumnType::Blob { len_bytes: n },
                ColumnType::CompressedBlob { len_bytes: n },
            ][which];
            for len in [bytes.len(), usize::from(n).min(bytes.len()), 0] {
                let value = Value::decode(column, &bytes[..len], m % 2 == 0, MAX);
                prop_assert!(column.is_possible() || value.is_err());
            }
        }
    }

    #[test]
    fn examples() {
        let decimal = ColumnType::Decimal {
            precision: 14,
            scale: 4,
        };
        // The example of the server's documentation, both signs.
        assert_eq!(
            shown(decimal, &[0x81, 0x0d, 0xfb, 0x38, 0xd2, 0x04, 0xd2]),
            "1234567890.1234"
        );
        assert_eq!(
            shown(decimal, &[0x7e, 0xf2, 0x04, 0xc7, 0x2d, 0xfb, 0x2d]),
            "-1234567890.1234"
        );
        assert_eq!(shown(ColumnType::Date, &[0x5d, 0xd0, 0x0f]), "'2024-02-29'");
        assert_eq!(shown(ColumnType::Year, &[0]), "0000");
        assert_eq!(shown(ColumnType::Year, &[255]), "2155");
        assert_eq!(shown(ColumnType::Bit { bits: 9 }, &[1, 1]), "b'100000001'");
        assert_eq!(shown(ColumnType::Enum { bytes: 2 }, &[1, 1]), "257");
        assert_eq!(
            shown(ColumnType::VarChar { bytes: 9 }, b"it's"),
            "x'69742773'"
        );
        let old = 20240229235958u64.to_le_bytes();
        assert_eq!(
            shown(ColumnType::OldDateTime, &old),
            "'2024-02-29 23:59:58'"
        );
        let bytes = (-8385958i32).to_le_bytes();
        assert_eq!(shown(ColumnType::OldTime, &bytes[..3]), "'-838:59:58'");
        assert!(Value::decode(ColumnType::OldTime, &[1, 2], false, MAX).is_err());
        assert!(Value::decode(decimal, &[0xff; 7], false, MAX).is_err());
    }
}
