//! How the values of the target's columns look in a row, told from its catalog: what comes as an event of
//! rows must be what it has itself.

use dromon_binlog::ColumnType;

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
