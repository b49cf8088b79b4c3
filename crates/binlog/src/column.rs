//! The types of columns, as a table map gives them.

use crate::bytes::Reader;
use crate::error::{EventError, Flaw};
use crate::format::Flavour;
use crate::header::EventType;

/// How a column's values look in a row.
///
/// Dates and times of MariaDB tables older than 10.1 (or made with
/// `mysql56_temporal_format=OFF`) that have fractions of a second cannot be
/// told from those without: their rows cannot be read from the events alone,
/// not by the server's own tools either. Reading ends in an error or, where
/// the bytes happen to fit, in wrong values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// A whole number of so many bytes: 1, 2, 3, 4 or 8.
    Int {
        /// Its size.
        bytes: u8,
    },
    /// FLOAT.
    Float,
    /// DOUBLE.
    Double,
    /// DECIMAL.
    Decimal {
        /// Digits in all, at most 65.
        precision: u8,
        /// Digits behind the point.
        scale: u8,
    },
    /// YEAR.
    Year,
    /// DATE.
    Date,
    /// TIME of before MySQL 5.6.
    OldTime,
    /// DATETIME of before MySQL 5.6.
    OldDateTime,
    /// TIMESTAMP of before MySQL 5.6.
    OldTimestamp,
    /// TIME.
    Time {
        /// Digits of the fraction, at most 6.
        fraction: u8,
    },
    /// DATETIME.
    DateTime {
        /// Digits of the fraction, at most 6.
        fraction: u8,
    },
    /// TIMESTAMP.
    Timestamp {
        /// Digits of the fraction, at most 6.
        fraction: u8,
    },
    /// BIT.
    Bit {
        /// At most 64.
        bits: u8,
    },
    /// ENUM.
    Enum {
        /// 1 or 2.
        bytes: u8,
    },
    /// SET.
    Set {
        /// 1 to 8.
        bytes: u8,
    },
    /// CHAR and BINARY; also UUID and INET6.
    Char {
        /// Longest value in bytes.
        bytes: u16,
    },
    /// VARCHAR and VARBINARY.
    VarChar {
        /// Longest value in bytes.
        bytes: u16,
    },
    /// A VARCHAR declared COMPRESSED (MariaDB).
    CompressedVarChar {
        /// Longest value in bytes.
        bytes: u16,
    },
    /// BLOB and TEXT of all sizes; MariaDB's JSON.
    Blob {
        /// Bytes of the length, 1 to 4.
        len_bytes: u8,
    },
    /// A BLOB or TEXT declared COMPRESSED (MariaDB).
    CompressedBlob {
        /// Bytes of the length, 1 to 4.
        len_bytes: u8,
    },
    /// MySQL's JSON, in its binary form.
    Json {
        /// Bytes of the length, 1 to 4.
        len_bytes: u8,
    },
    /// Geometries: SRID and well-known binary.
    Geometry {
        /// Bytes of the length, 1 to 4.
        len_bytes: u8,
    },
    /// MySQL's VECTOR.
    Vector {
        /// Bytes of the length, 1 to 4.
        len_bytes: u8,
    },
    /// Only NULL.
    Null,
}

/// Bytes of so many digits of a decimal, beyond groups of nine.
const DIGITS_TO_BYTES: [usize; 10] = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4];

/// Bytes of a decimal's part with so many digits.
pub(crate) fn decimal_part_len(digits: usize) -> usize {
    digits / 9 * 4 + DIGITS_TO_BYTES[digits % 9]
}

/// Bytes of so many digits of a second's fraction.
pub(crate) fn fraction_len(digits: u8) -> usize {
    usize::from(digits).div_ceil(2)
}

const CHAR: u8 = 254;
const ENUM: u8 = 247;
const SET: u8 = 248;

impl ColumnType {
    /// Reads the metadata of a column of this number.
    pub(crate) fn decode(number: u8, meta: &mut Reader<'_>) -> Result<ColumnType, EventError> {
        Ok(match number {
            1 => ColumnType::Int { bytes: 1 },
            2 => ColumnType::Int { bytes: 2 },
            9 => ColumnType::Int { bytes: 3 },
            3 => ColumnType::Int { bytes: 4 },
            8 => ColumnType::Int { bytes: 8 },
            4 => {
                size_is(meta, 4)?;
                ColumnType::Float
            }
            5 => {
                size_is(meta, 8)?;
                ColumnType::Double
            }
            6 => ColumnType::Null,
            7 => ColumnType::OldTimestamp,
            10 | 14 => ColumnType::Date,
            11 => ColumnType::OldTime,
            12 => ColumnType::OldDateTime,
            13 => ColumnType::Year,
            15 | 253 => ColumnType::VarChar {
                bytes: meta.u16("metadata of a column")?,
            },
            141 => ColumnType::CompressedVarChar {
                bytes: meta.u16("metadata of a column")?,
            },
            16 => {
                let rest = meta.u8("metadata of a column")?;
                let bytes = meta.u8("metadata of a column")?;
                let bits = u16::from(bytes) * 8 + u16::from(rest);
                if rest > 7 || !(1..=64).contains(&bits) {
                    return Err(meta.bad("number of bits", u64::from(bits)));
                }
                ColumnType::Bit { bits: bits as u8 }
            }
            17 => ColumnType::Timestamp {
                fraction: fraction(meta)?,
            },
            18 => ColumnType::DateTime {
                fraction: fraction(meta)?,
            },
            19 => ColumnType::Time {
                fraction: fraction(meta)?,
            },
            246 => {
                let precision = meta.u8("metadata of a column")?;
                let scale = meta.u8("metadata of a column")?;
                if !(1..=65).contains(&precision) || scale > precision {
                    return Err(meta.bad("precision of a decimal", u64::from(precision)));
                }
                ColumnType::Decimal { precision, scale }
            }
            140 => ColumnType::CompressedBlob {
                len_bytes: len_bytes(meta)?,
            },
            242 => ColumnType::Vector {
                len_bytes: len_bytes(meta)?,
            },
            245 => ColumnType::Json {
                len_bytes: len_bytes(meta)?,
            },
            249..=252 => ColumnType::Blob {
                len_bytes: len_bytes(meta)?,
            },
            255 => ColumnType::Geometry {
                len_bytes: len_bytes(meta)?,
            },
            CHAR | ENUM | SET => {
                let kind = meta.u8("metadata of a column")?;
                let len = meta.u8("metadata of a column")?;
                string(number, kind, len, meta)?
            }
            _ => {
                return Err(meta.error(Flaw::Unsupported(
                    "a column has a type that is not known to this build",
                )));
            }
        })
    }

    /// Whether a table can have such a column. What was decoded always is; a
    /// caller can make others, whose values are not read.
    pub(crate) fn is_possible(self) -> bool {
        match self {
            ColumnType::Int { bytes } => matches!(bytes, 1..=4 | 8),
            ColumnType::Decimal { precision, scale } => {
                (1..=65).contains(&precision) && scale <= precision
            }
            ColumnType::Time { fraction }
            | ColumnType::DateTime { fraction }
            | ColumnType::Timestamp { fraction } => fraction <= 6,
            ColumnType::Bit { bits } => (1..=64).contains(&bits),
            ColumnType::Enum { bytes } => matches!(bytes, 1 | 2),
            ColumnType::Set { bytes } => (1..=8).contains(&bytes),
            ColumnType::Blob { len_bytes }
            | ColumnType::CompressedBlob { len_bytes }
            | ColumnType::Json { len_bytes }
            | ColumnType::Geometry { len_bytes }
            | ColumnType::Vector { len_bytes } => (1..=4).contains(&len_bytes),
            ColumnType::Char { .. }
            | ColumnType::VarChar { .. }
            | ColumnType::CompressedVarChar { .. }
            | ColumnType::Float
            | ColumnType::Double
            | ColumnType::Year
            | ColumnType::Date
            | ColumnType::OldTime
            | ColumnType::OldDateTime
            | ColumnType::OldTimestamp
            | ColumnType::Null => true,
        }
    }

    /// The bytes of a value, without the length in front of it. The type must
    /// be possible.
    pub(crate) fn take<'a>(self, r: &mut Reader<'a>) -> Result<&'a [u8], EventError> {
        let len = match self {
            ColumnType::Null => 0,
            ColumnType::Int { bytes } | ColumnType::Enum { bytes } | ColumnType::Set { bytes } => {
                usize::from(bytes)
            }
            ColumnType::Float | ColumnType::OldTimestamp => 4,
            ColumnType::Double | ColumnType::OldDateTime => 8,
            ColumnType::Decimal { precision, scale } => {
                let scale = usize::from(scale);
                decimal_part_len(usize::from(precision) - scale) + decimal_part_len(scale)
            }
            ColumnType::Year => 1,
            ColumnType::Date | ColumnType::OldTime => 3,
            ColumnType::Time { fraction } => 3 + fraction_len(fraction),
            ColumnType::DateTime { fraction } => 5 + fraction_len(fraction),
            ColumnType::Timestamp { fraction } => 4 + fraction_len(fraction),
            ColumnType::Bit { bits } => usize::from(bits).div_ceil(8),
            ColumnType::Char { bytes }
            | ColumnType::VarChar { bytes }
            | ColumnType::CompressedVarChar { bytes } => {
                let n = if bytes > 255 { 2 } else { 1 };
                r.le(n, "length of a value")? as usize
            }
            ColumnType::Blob { len_bytes }
            | ColumnType::CompressedBlob { len_bytes }
            | ColumnType::Json { len_bytes }
            | ColumnType::Geometry { len_bytes }
            | ColumnType::Vector { len_bytes } => {
                r.le(usize::from(len_bytes), "length of a value")? as usize
            }
        };
        r.take(len, "value of a column")
    }

    /// Writes a value as [`Cell::Bytes`](crate::Cell) has it, with the length in front of it. False: it is
    /// too long for the type, or has another length than all values of it; nothing is written then.
    pub(crate) fn put(self, value: &[u8], out: &mut Vec<u8>) -> bool {
        let len_bytes = match self {
            ColumnType::Char { bytes }
            | ColumnType::VarChar { bytes }
            | ColumnType::CompressedVarChar { bytes } => 1 + usize::from(bytes > 255),
            ColumnType::Blob { len_bytes }
            | ColumnType::CompressedBlob { len_bytes }
            | ColumnType::Json { len_bytes }
            | ColumnType::Geometry { len_bytes }
            | ColumnType::Vector { len_bytes } => usize::from(len_bytes),
            _ => 0,
        };
        let at = out.len();
        let len = (value.len() as u64).to_le_bytes();
        out.extend_from_slice(&len[..len_bytes.min(len.len())]);
        out.extend_from_slice(value);
        // As who reads it would take it.
        let mut reader = Reader::new(&out[at..], 0, EventType::UPDATE_ROWS_V1);
        let same = self.take(&mut reader).is_ok_and(|bytes| bytes == value) && reader.left() == 0;
        if !same {
            out.truncate(at);
        }
        same
    }

    /// Whether it counts among the numbers of a table map's signs.
    pub(crate) fn has_sign(self) -> bool {
        matches!(
            self,
            ColumnType::Int { .. }
                | ColumnType::Float
                | ColumnType::Double
                | ColumnType::Decimal { .. }
                | ColumnType::Year
        )
    }

    /// Whether it counts among the texts of a table map's character sets. To
    /// MariaDB geometries do.
    pub(crate) fn has_charset(self, flavour: Flavour) -> bool {
        let geometry = matches!(self, ColumnType::Geometry { .. });
        let text = matches!(
            self,
            ColumnType::Char { .. }
                | ColumnType::VarChar { .. }
                | ColumnType::CompressedVarChar { .. }
                | ColumnType::Blob { .. }
                | ColumnType::CompressedBlob { .. }
        );
        text || geometry && flavour == Flavour::MariaDb
    }
}

/// The real type stands in the metadata; a CHAR above 255 bytes has bits 8 and
/// 9 of its length, inverted, in bits 4 and 5 of it.
fn string(number: u8, kind: u8, len: u8, meta: &Reader<'_>) -> Result<ColumnType, EventError> {
    if kind & 0x30 != 0x30 {
        return Ok(ColumnType::Char {
            bytes: u16::from(len) | u16::from(kind & 0x30 ^ 0x30) << 4,
        });
    }
    match kind {
        ENUM if matches!(len, 1 | 2) => Ok(ColumnType::Enum { bytes: len }),
        SET if (1..=8).contains(&len) => Ok(ColumnType::Set { bytes: len }),
        CHAR => Ok(ColumnType::Char {
            bytes: u16::from(len),
        }),
        // A CHAR under another number than its own.
        _ if number == CHAR && kind == 253 => Ok(ColumnType::Char {
            bytes: u16::from(len),
        }),
        _ => Err(meta.bad("type of a text column", u64::from(kind))),
    }
}

fn fraction(meta: &mut Reader<'_>) -> Result<u8, EventError> {
    match meta.u8("metadata of a column")? {
        n @ 0..=6 => Ok(n),
        other => Err(meta.bad("number of digits of a fraction", u64::from(other))),
    }
}

fn len_bytes(meta: &mut Reader<'_>) -> Result<u8, EventError> {
    match meta.u8("metadata of a column")? {
        n @ 1..=4 => Ok(n),
        other => Err(meta.bad("number of bytes of a length", u64::from(other))),
    }
}

fn size_is(meta: &mut Reader<'_>, size: u8) -> Result<(), EventError> {
    match meta.u8("metadata of a column")? {
        n if n == size => Ok(()),
        other => Err(meta.bad("size of a number", u64::from(other))),
    }
}
