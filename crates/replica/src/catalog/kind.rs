//! How the values of the target's columns look in a row, told from its catalog: what comes as an event of
//! rows must be what it has itself, and what comes as a literal must be stored as it is.

use dromon_binlog::ColumnType;

use super::ColumnInfo;

/// The type of a column, from COLUMN_TYPE and CHARACTER_OCTET_LENGTH; `None`: not known here.
pub(super) fn column_type(kind: &str, octets: Option<u64>) -> Option<ColumnType> {
    // Formats of old servers stand in a comment.
    if kind.contains("/*") || kind.contains("COMPRESSED") {
        return None;
    }
    let name = kind.split(['(', ' ']).next().unwrap_or("");
    let inner = kind
        .split_once('(')
        .and_then(|(_, rest)| Some(rest.rsplit_once(')')?.0));
    let number = |text: &str| text.trim().parse::<u8>().ok();
    let fraction = || inner.map_or(Some(0), number);
    let bytes = || octets.and_then(|n| u16::try_from(n).ok());
    Some(match name {
        "tinyint" => ColumnType::Int { bytes: 1 },
        "smallint" => ColumnType::Int { bytes: 2 },
        "mediumint" => ColumnType::Int { bytes: 3 },
        "int" => ColumnType::Int { bytes: 4 },
        "bigint" => ColumnType::Int { bytes: 8 },
        "float" => ColumnType::Float,
        "double" => ColumnType::Double,
        "decimal" => {
            let (precision, scale) = inner?.split_once(',')?;
            ColumnType::Decimal {
                precision: number(precision)?,
                scale: number(scale)?,
            }
        }
        "year" => ColumnType::Year,
        "date" => ColumnType::Date,
        "time" => ColumnType::Time {
            fraction: fraction()?,
        },
        "datetime" => ColumnType::DateTime {
            fraction: fraction()?,
        },
        "timestamp" => ColumnType::Timestamp {
            fraction: fraction()?,
        },
        "bit" => ColumnType::Bit {
            bits: number(inner?)?,
        },
        "enum" => ColumnType::Enum {
            bytes: if values(inner?) < 256 { 1 } else { 2 },
        },
        "set" => ColumnType::Set {
            bytes: match values(inner?).div_ceil(8) {
                n @ 1..=4 => n as u8,
                _ => 8,
            },
        },
        "char" | "binary" => ColumnType::Char { bytes: bytes()? },
        "varchar" | "varbinary" => ColumnType::VarChar { bytes: bytes()? },
        "tinytext" | "tinyblob" => ColumnType::Blob { len_bytes: 1 },
        "text" | "blob" => ColumnType::Blob { len_bytes: 2 },
        "mediumtext" | "mediumblob" => ColumnType::Blob { len_bytes: 3 },
        "longtext" | "longblob" => ColumnType::Blob { len_bytes: 4 },
        _ => return None,
    })
}

/// Digits of a FLOAT(M,D) or a DOUBLE(M,D), from COLUMN_TYPE.
pub(super) fn digits(kind: &str) -> Option<(u8, u8)> {
    let mut names = ["float(", "double("].iter();
    let (inner, _) = names
        .find_map(|name| kind.strip_prefix(name))?
        .split_once(')')?;
    let (all, behind) = inner.split_once(',')?;
    Some((all.trim().parse().ok()?, behind.trim().parse().ok()?))
}

/// A power of ten, as exact as a double can be.
fn ten(exponent: u8) -> f64 {
    format!("1e{exponent}").parse().unwrap_or(f64::INFINITY)
}

/// Most bytes of a text or a BLOB of this type.
fn room(kind: ColumnType) -> Option<u64> {
    match kind {
        ColumnType::Char { bytes } | ColumnType::VarChar { bytes } => Some(u64::from(bytes)),
        // One more says how it is compressed.
        ColumnType::CompressedVarChar { bytes } => Some(u64::from(bytes).saturating_sub(1)),
        ColumnType::Blob { len_bytes } | ColumnType::CompressedBlob { len_bytes } => {
            Some((1 << (8 * len_bytes)) - 1)
        }
        _ => None,
    }
}

impl ColumnInfo {
    /// Whether it keeps the values of a source's column of this type as they are: its own type is the same, or
    /// a wider one of that kind. A strict session refuses a number that is too large and a text that
    /// is too long, but takes many others for what they are not: the number of an ENUM for a text, UTC for
    /// local time, a DECIMAL without its last digits.
    ///
    /// If its own type is not known, it is taken for the same.
    pub(crate) fn holds(&self, from: ColumnType) -> bool {
        use ColumnType as T;
        let Some(to) = self.stored else {
            return true;
        };
        let is_text = self.charset.is_some();
        match (from, to) {
            // How large they are, and the sign, is looked at elsewhere.
            (T::Int { .. }, T::Int { .. } | T::Decimal { .. }) => true,
            (T::Int { .. }, T::Char { .. } | T::VarChar { .. } | T::Blob { .. }) => is_text,
            (T::Float, T::Float | T::Double) => true,
            (
                T::Decimal { precision, scale },
                T::Decimal {
                    precision: digits,
                    scale: behind,
                },
            ) => scale <= behind && precision - scale <= digits - behind,
            (T::Date, T::DateTime { .. }) => true,
            (T::Time { fraction: from }, T::Time { fraction: to })
            | (T::DateTime { fraction: from }, T::DateTime { fraction: to })
            | (T::Timestamp { fraction: from }, T::Timestamp { fraction: to })
            | (T::Bit { bits: from }, T::Bit { bits: to })
            | (T::Enum { bytes: from }, T::Enum { bytes: to })
            | (T::Set { bytes: from }, T::Set { bytes: to }) => from <= to,
            (T::Char { .. }, T::Char { .. }) => room(from) <= room(to),
            // A BINARY comes without the zeros at its end.
            (T::Char { .. }, T::VarChar { .. } | T::Blob { .. }) => {
                is_text && room(from) <= room(to)
            }
            (
                T::VarChar { .. }
                | T::Blob { .. }
                | T::CompressedVarChar { .. }
                | T::CompressedBlob { .. },
                T::VarChar { .. } | T::Blob { .. },
            ) => room(from) <= room(to),
            _ => from == to,
        }
    }

    /// Whether the bytes of texts in this character set are the same characters in its own. Nobody converts them.
    pub(crate) fn reads(&self, from: &str) -> bool {
        let Some(to) = &self.charset else {
            // They are bytes here, or no texts.
            return true;
        };
        match (from, to.as_str()) {
            ("binary", _) | ("utf8" | "utf8mb3", "utf8" | "utf8mb3" | "utf8mb4") => true,
            ("ucs2", "utf16") => true,
            ("ascii", to) => !["ucs2", "utf16", "utf16le", "utf32", "swe7"].contains(&to),
            (from, to) => from == to,
        }
    }

    /// Whether a FLOAT or a DOUBLE stores this number as it is, if a statement says it. One with digits rounds, without
    /// a word, and refuses what is then too large: of a FLOAT(8,2) 1000000, which an event of rows brings, as the
    /// source rounded 999999.99 and made a FLOAT of it.
    pub(crate) fn keeps(&self, n: f64) -> bool {
        let Some((all, behind)) = self.digits else {
            return true;
        };
        let (most, part) = (ten(all.saturating_sub(behind)), ten(behind));
        let rounded = n.floor() + ((n - n.floor()) * part).round_ties_even() / part;
        // By their bits: -0 becomes 0.
        let same = match self.stored {
            Some(ColumnType::Float) => (rounded as f32).to_bits() == (n as f32).to_bits(),
            _ => rounded.to_bits() == n.to_bits(),
        };
        same && rounded.abs() <= most - 1.0 / part
    }
}

/// How many there are of an ENUM or a SET: texts in quotes, with commas. A quote in one of them is
/// written twice.
fn values(list: &str) -> usize {
    let mut quoted = false;
    let mut count = 1;
    for c in list.chars() {
        match c {
            // Twice: out and in again.
            '\'' => quoted = !quoted,
            ',' if !quoted => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_as_the_catalog_says_them() {
        let of = |kind| column_type(kind, None);
        assert_eq!(of("int(11) unsigned"), Some(ColumnType::Int { bytes: 4 }));
        assert_eq!(of("tinyint(1)"), Some(ColumnType::Int { bytes: 1 }));
        assert_eq!(
            of("decimal(10,2) unsigned"),
            Some(ColumnType::Decimal {
                precision: 10,
                scale: 2
            })
        );
        assert_eq!(of("float(7,3)"), Some(ColumnType::Float));
        assert_eq!(of("time"), Some(ColumnType::Time { fraction: 0 }));
        assert_eq!(
            of("datetime(6)"),
            Some(ColumnType::DateTime { fraction: 6 })
        );
        assert_eq!(
            of("timestamp(3)"),
            Some(ColumnType::Timestamp { fraction: 3 })
        );
        assert_eq!(of("bit(9)"), Some(ColumnType::Bit { bits: 9 }));
        assert_eq!(of("year(4)"), Some(ColumnType::Year));
        assert_eq!(of("longtext"), Some(ColumnType::Blob { len_bytes: 4 }));
        for odd in [
            "uuid",
            "inet6",
            "point",
            "datetime /* mariadb-5.3 */",
            "decimal",
            "varchar(9)",
        ] {
            assert_eq!(of(odd), None, "{odd}");
        }
        assert_eq!(of("blob /*M!100301 COMPRESSED*/"), None);
    }

    /// A strict session would not refuse all of the others.
    #[test]
    fn what_a_column_keeps() {
        use ColumnType as T;
        let column = |stored, charset: Option<&str>| ColumnInfo {
            stored,
            charset: charset.map(str::to_owned),
            ..crate::compile::tests::table("t").columns[0].clone()
        };
        let holds = |from, to, charset| column(Some(to), charset).holds(from);
        let all = [
            T::Int { bytes: 4 },
            T::Float,
            T::Double,
            T::Decimal {
                precision: 10,
                scale: 4,
            },
            T::Year,
            T::Date,
            T::Time { fraction: 3 },
            T::DateTime { fraction: 3 },
            T::Timestamp { fraction: 3 },
            T::Bit { bits: 9 },
            T::Enum { bytes: 1 },
            T::Set { bytes: 2 },
            T::Char { bytes: 20 },
            T::VarChar { bytes: 20 },
            T::Blob { len_bytes: 2 },
        ];
        let decimal = |precision, scale| T::Decimal { precision, scale };
        let wider = [
            (all[0], T::Int { bytes: 1 }),
            (all[0], all[3]),
            (all[0], all[12]),
            (all[0], all[13]),
            (all[0], all[14]),
            (T::Float, T::Double),
            (all[3], decimal(12, 4)),
            (all[3], decimal(12, 6)),
            (T::Date, all[7]),
            (all[6], T::Time { fraction: 6 }),
            (all[7], T::DateTime { fraction: 4 }),
            (all[8], T::Timestamp { fraction: 6 }),
            (all[9], T::Bit { bits: 10 }),
            (all[10], T::Enum { bytes: 2 }),
            (all[11], T::Set { bytes: 8 }),
            (all[12], T::Char { bytes: 80 }),
            (all[12], all[13]),
            (all[12], all[14]),
            (all[13], all[14]),
            (all[13], T::VarChar { bytes: 300 }),
            (all[14], T::Blob { len_bytes: 4 }),
            (T::Blob { len_bytes: 1 }, T::VarChar { bytes: 255 }),
            // A compressed one has a byte more.
            (T::CompressedVarChar { bytes: 21 }, all[13]),
            (T::CompressedBlob { len_bytes: 2 }, all[14]),
        ];
        let narrower = [
            (all[0], T::Float),
            (all[0], T::Enum { bytes: 1 }),
            (T::Double, T::Float),
            (all[3], decimal(10, 2)),
            (all[3], decimal(10, 5)),
            (all[3], T::Double),
            (all[6], T::Time { fraction: 2 }),
            (all[7], T::DateTime { fraction: 0 }),
            (all[9], T::Bit { bits: 8 }),
            (T::Enum { bytes: 2 }, all[10]),
            (all[12], T::Char { bytes: 19 }),
            (all[13], T::VarChar { bytes: 19 }),
            (all[14], T::Blob { len_bytes: 1 }),
            (all[14], T::VarChar { bytes: 60_000 }),
        ];
        for from in all {
            for to in all {
                let wanted = from == to || wider.contains(&(from, to));
                assert_eq!(holds(from, to, Some("latin1")), wanted, "{from:?} {to:?}");
            }
            assert!(holds(from, from, None) && column(None, None).holds(from));
        }
        // Without the zeros at its end.
        assert!(!holds(all[12], all[13], None) && holds(all[13], all[14], None));
        for (from, to) in wider {
            assert!(holds(from, to, Some("latin1")), "{from:?} {to:?}");
        }
        for (from, to) in narrower {
            assert!(!holds(from, to, Some("latin1")), "{from:?} {to:?}");
        }
    }

    #[test]
    fn digits_of_numbers() {
        assert_eq!(digits("float(8,2)"), Some((8, 2)));
        assert_eq!(digits("double(10,2) unsigned zerofill"), Some((10, 2)));
        for none in ["float", "double unsigned", "decimal(10,2)", "int(11)"] {
            assert_eq!(digits(none), None, "{none}");
        }
    }

    #[test]
    fn characters_of_texts() {
        let reads = |from: &str, to: Option<&str>| {
            let mut column = crate::compile::tests::table("t").columns[0].clone();
            column.charset = to.map(str::to_owned);
            column.reads(from)
        };
        let same = [
            ("latin1", "latin1"),
            ("utf8mb3", "utf8mb4"),
            ("utf8", "utf8mb3"),
            ("ascii", "latin1"),
            ("ascii", "utf8mb4"),
            ("ucs2", "utf16"),
            ("binary", "latin1"),
        ];
        for (from, to) in same {
            assert!(reads(from, Some(to)), "{from} {to}");
        }
        for (from, to) in [
            ("utf8mb4", "latin1"),
            ("latin1", "utf8mb4"),
            ("utf8mb4", "utf8mb3"),
            ("latin1", "ascii"),
            ("ascii", "utf16"),
            ("ascii", "swe7"),
        ] {
            assert!(!reads(from, Some(to)), "{from} {to}");
        }
        assert!(reads("utf8mb4", None));
    }

    #[test]
    fn texts_by_their_bytes() {
        let of = column_type("varchar(100)", Some(400));
        assert_eq!(of, Some(ColumnType::VarChar { bytes: 400 }));
        let of = column_type("char(255)", Some(1020));
        assert_eq!(of, Some(ColumnType::Char { bytes: 1020 }));
        assert_eq!(column_type("varchar(9)", Some(1 << 20)), None);
    }

    #[test]
    fn values_of_lists() {
        assert_eq!(values("'a'"), 1);
        assert_eq!(values("'a','b,c','it''s, so'"), 3);
        let many = |n: usize| {
            (0..n)
                .map(|n| format!("'{n}'"))
                .collect::<Vec<_>>()
                .join(",")
        };
        let of = |name: &str, n| column_type(&format!("{name}({})", many(n)), Some(9));
        assert_eq!(of("enum", 255), Some(ColumnType::Enum { bytes: 1 }));
        assert_eq!(of("enum", 256), Some(ColumnType::Enum { bytes: 2 }));
        for (n, bytes) in [(1, 1), (8, 1), (9, 2), (24, 3), (32, 4), (33, 8), (64, 8)] {
            assert_eq!(of("set", n), Some(ColumnType::Set { bytes }), "{n}");
        }
    }
}
