//! Further names of a row that the server names in two ways.
//!
//! The name of a parent's row in a REFERENCE key is made from the child's foreign key
//! check, that in its own UPDATE or EXCLUSIVE key from its table's definition. Where they
//! differ, nobody would see that the two transactions meet: a child could be applied
//! before its parent, and one is taken out while the other comes. Seen on real servers,
//! each with the bytes that follow the number of the index:
//!
//! | the parent's key is | a child names it by | it names itself by |
//! |---|---|---|
//! | a UUID or INET6 (MDEV-41012) | its 16 bytes | these as text of latin1_swedish_ci, without case and accents |
//! | a CHAR in a charset of several bytes (MDEV-41028) | the characters, padded to as many *bytes* as it has characters | the characters, padded to all of them |
//!
//! So such a name is followed by another one that is the same on both sides. That of a
//! short INET4 would look like a number, which is the most usual key: it has none here,
//! nor has a CHAR amid a key of several columns, or one whose key is as long as a number's,
//! nor a UUID amid a key of more than two other columns.

use crate::key::{KeyType, ROW_RAW_MAX};

/// How a blank at the end looks in the collations' weights.
const BLANKS: [&[u8]; 4] = [b"\0 ", b"\0\0 ", b"\x02\x09", b"\x02\x0a"];

const ADDRESS_LEN: usize = 16;

/// Calls `add` with each further name of `row`, the only part below its table, which a
/// transaction names with `key_type`.
pub(crate) fn aliases(row: &[u8], key_type: KeyType, mut add: impl FnMut(&[u8])) {
    if key_type == KeyType::Shared || row.is_empty() {
        return;
    }
    let len = row.len() - 1;
    for blank in BLANKS
        .iter()
        .filter(|blank| may_be_text(len, key_type, blank))
    {
        let mut bare = row;
        while let Some(shorter) = bare[1..].strip_suffix(*blank).map(<[u8]>::len) {
            bare = &bare[..=shorter];
        }
        if bare.len() < row.len() {
            add(bare);
        }
    }
    if key_type != KeyType::Reference {
        return;
    }
    let mut folded = |from: usize, to: usize| {
        let mut name = row.to_vec();
        fold(&mut name[1 + from..1 + to]);
        if name != row {
            add(&name);
        }
    };
    match len {
        // Alone, or two or three of them.
        16 | 32 | 48 => folded(0, len),
        // Something before or behind it, or behind or before two of them.
        17.. => {
            for addresses in [ADDRESS_LEN, 2 * ADDRESS_LEN] {
                if addresses < len {
                    folded(0, addresses);
                    folded(len - addresses, len);
                }
            }
            if len == 24 {
                // Or between two numbers.
                folded(4, 4 + ADDRESS_LEN);
            }
        }
        _ => {}
    }
    // Of a long key the index is not seen any more: it is told beside it.
    if row.len() > ROW_RAW_MAX && row[0] != 0 {
        add(&row[..1]);
    }
}

/// Whether a key of so many bytes may end with text that has such blanks. A row's own key not where
/// numbers and times are as long: of these two that end otherwise would have one name.
fn may_be_text(len: usize, key_type: KeyType, blank: &[u8]) -> bool {
    let number = key_type.changes() && (len <= 4 || len == 8);
    !number && (blank.len() != 2 || len.is_multiple_of(2))
}

/// What latin1_swedish_ci makes of each byte before it compares.
pub(crate) fn fold(bytes: &mut [u8]) {
    for byte in bytes {
        *byte = folded(*byte);
    }
}

/// The weight of `byte` in latin1_swedish_ci, as a server says it (`WEIGHT_STRING`).
pub(crate) fn folded(byte: u8) -> u8 {
    // From 0xc0 on; the small letters have those of the capital ones.
    const UPPER: &[u8; 32] = b"AAAA\\[\\CEEEEIIIIDNOOOO]\xd7\xd8UUUYY\xde\xdf";
    match byte {
        b'a'..=b'z' => byte - 0x20,
        0xf7 | 0xff => byte,
        0xc0.. => UPPER[usize::from(byte & 0x1f)],
        _ => byte,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use KeyType::{Exclusive, Reference, Shared, Update};

    fn hex(text: &str) -> Vec<u8> {
        let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
        (0..text.len()).step_by(2).map(digit).collect()
    }

    fn of(row: &[u8], key_type: KeyType) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        aliases(row, key_type, |name| names.push(name.to_vec()));
        names
    }

    /// Whether a child that names its parent's row so meets who names it like that.
    fn meet(child: &str, parent: &str) -> bool {
        let all = |name: &str, key_type| {
            let mut names = of(&hex(name), key_type);
            names.push(hex(name));
            names
        };
        let child = all(child, Reference);
        [Update, Exclusive]
            .iter()
            .all(|t| all(parent, *t).iter().any(|name| child.contains(name)))
    }

    /// The names are those of a 10.11.19.
    #[test]
    fn a_child_and_its_parents_row_have_a_name_in_common() {
        for (child, parent) in [
            // UUID 01234567-89ab-1def-8123-456789abcdef
            (
                "00456789abcdef81231def89ab01234567",
                "00454789ab494981231d4989ab01234547",
            ),
            // CHAR(5) of utf8mb4: 'éé'
            ("00004500450020", "0000450045002000200020"),
            // CHAR(6): 'éé', 'ééé' in utf8mb4_unicode_ci, _520_ci and _bin
            ("000e8b0e8b02090209", "000e8b0e8b0209020902090209"),
            ("000e8b0e8b0e8b", "000e8b0e8b0e8b020902090209"),
            ("00126b126b020a020a", "00126b126b020a020a020a020a"),
            (
                "000000e90000e9000020000020",
                "000000e90000e9000020000020000020000020",
            ),
            (
                "000000e90000e90000e9",
                "000000e90000e90000e9000020000020000020",
            ),
            // A character whose weight ends in a zero byte.
            ("00004501000020", "0000450100002000200020"),
            // Nothing but blanks.
            ("00002000200020", "0000200020002000200020"),
            // One that is full.
            ("000045004500450045", "00004500450045004500200020"),
            ("0001000000", "0001000000"),
        ] {
            assert!(meet(child, parent), "{child} {parent}");
        }
        assert!(!meet("0001000000", "0002000000"));
    }

    #[test]
    fn an_address_beside_a_number_or_another_one_is_found_in_the_key() {
        let address = "456789abcdef81231def89ab01234567";
        let folded = "454789ab494981231d4989ab01234547";
        let small = "61000000";
        let big = "6100000000000000";
        for (child, parent) in [
            (format!("00{small}{address}"), format!("00{small}{folded}")),
            (format!("00{address}{small}"), format!("00{folded}{small}")),
            (format!("00{big}{address}"), format!("00{big}{folded}")),
            (format!("00{address}{big}"), format!("00{folded}{big}")),
            (
                format!("00{address}{address}"),
                format!("00{folded}{folded}"),
            ),
            (format!("00{address}6162"), format!("00{folded}6162")),
            (format!("00616263{address}"), format!("00616263{folded}")),
            (
                format!("00{small}{address}{small}"),
                format!("00{small}{folded}{small}"),
            ),
            (
                format!("00{address}{address}{small}"),
                format!("00{folded}{folded}{small}"),
            ),
            (
                format!("00{big}{address}{address}"),
                format!("00{big}{folded}{folded}"),
            ),
        ] {
            assert!(meet(&child, &parent), "{child} {parent}");
        }
    }

    #[test]
    fn the_usual_keys_have_one_name() {
        let names: [&[u8]; 5] = [b"\0abcd", b"\0abcdefgh", b"\0\0A\0B\0C", &[0; 17], b"\0"];
        for name in names {
            for key_type in [Update, Exclusive] {
                assert!(of(name, key_type).is_empty(), "{name:?}");
            }
        }
        for name in &names[3..] {
            assert!(of(name, Reference).is_empty(), "{name:?}");
        }
        let address = b"\0abcdefghijklmnop";
        assert!(of(address, Exclusive).is_empty() && of(address, Shared).is_empty());
        assert!(of(b"\0A\0 ", Shared).is_empty());
        assert!(of(b"", Reference).is_empty());
    }

    #[test]
    fn a_long_reference_by_another_index_tells_which() {
        assert!(of(b"\x03A", Reference).is_empty());
        let long = [vec![3], vec![65; 40]].concat();
        assert_eq!(of(&long, Reference), [[3]]);
        assert!(of(&long, Exclusive).is_empty());
        let primary = [vec![0], vec![65; 40]].concat();
        assert!(of(&primary, Reference).is_empty());
    }

    #[test]
    fn folding_once_is_enough() {
        for byte in 0..=255 {
            assert_eq!(folded(folded(byte)), folded(byte));
        }
        let text = "AAAA\\[\\CEEEEIIIIDNOOOO]";
        let mut swedish: Vec<u8> = (0xe0..=0xf6).collect();
        fold(&mut swedish);
        assert_eq!(swedish, text.as_bytes());
        assert_eq!(
            [folded(0xf7), folded(0xff), folded(0xdf)],
            [0xf7, 0xff, 0xdf]
        );
    }
}
