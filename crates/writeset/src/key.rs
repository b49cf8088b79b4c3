//! Keys: their types, their parts, and the hash that certification compares.

use std::borrow::Cow;
use std::fmt;

use twox_hash::XxHash3_128;

/// Row-key parts longer than this travel as their 16-byte digest.
pub const ROW_RAW_MAX: usize = 24;

/// What a transaction does with a key, weakest first (contract A.3, D.3).
///
/// A stronger type conflicts with everything a weaker one conflicts with, so
/// the strongest type stands for all uses of a key in one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum KeyType {
    /// Only that it stays: prefixes, tables touched through foreign keys.
    Shared = 0,
    /// A child row points to it.
    Reference = 1,
    /// The row changes but not its key.
    Update = 2,
    /// The key comes, goes or changes.
    Exclusive = 3,
}

impl KeyType {
    /// All types, weakest first; the position is the number on the wire.
    pub const ALL: [KeyType; 4] = [
        KeyType::Shared,
        KeyType::Reference,
        KeyType::Update,
        KeyType::Exclusive,
    ];

    /// The type with this number in the server's interface, if there is one.
    pub const fn from_u8(n: u8) -> Option<KeyType> {
        match n {
            0 => Some(KeyType::Shared),
            1 => Some(KeyType::Reference),
            2 => Some(KeyType::Update),
            3 => Some(KeyType::Exclusive),
            _ => None,
        }
    }

    /// Whether the row is changed, not only looked at.
    pub const fn changes(self) -> bool {
        matches!(self, KeyType::Update | KeyType::Exclusive)
    }

    /// The name used in conflict lines.
    pub const fn name(self) -> &'static str {
        match self {
            KeyType::Shared => "SHARED",
            KeyType::Reference => "REFERENCE",
            KeyType::Update => "UPDATE",
            KeyType::Exclusive => "EXCLUSIVE",
        }
    }
}

impl fmt::Display for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One part of a key: its bytes, or the digest that travels in their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// The bytes as the server gave them.
    Raw(&'a [u8]),
    /// The xxh3-128 of the bytes, little-endian, as [`Part::digest`] makes it.
    Digest([u8; 16]),
}

impl<'a> Part<'a> {
    /// The digest that stands for `bytes` on the wire.
    pub fn digest(bytes: &[u8]) -> [u8; 16] {
        XxHash3_128::oneshot(bytes).to_le_bytes()
    }

    /// The part for people: text if it is text, else hexadecimal digits.
    pub fn printable(&self) -> Cow<'a, str> {
        match *self {
            Part::Raw(bytes) => match std::str::from_utf8(bytes) {
                Ok(s) if !s.is_empty() && !s.chars().any(char::is_control) => Cow::Borrowed(s),
                _ => Cow::Owned(format!("0x{}", hex(bytes))),
            },
            Part::Digest(d) => Cow::Owned(format!("hash:{}", hex(&d))),
        }
    }
}

/// What certification compares: the hash of a key or of a prefix of one.
///
/// A chain of xxh3-128 over (hash of the parent, length, part), so a table's
/// hash is computed once for all its rows. The same on every node. A part
/// longer than [`ROW_RAW_MAX`] enters as its digest, so that the hash does not
/// depend on whether the part came raw or as a digest. Two keys with one hash
/// only cost a needless abort.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u128);

impl KeyHash {
    /// The key of no parts, parent of all databases.
    pub const ROOT: KeyHash = KeyHash(0);

    /// Length byte that says a digest follows.
    const DIGEST_MARK: u8 = 0xff;

    /// The hash of this key with one more part.
    #[inline]
    pub fn child(self, part: Part<'_>) -> KeyHash {
        let digest;
        let (mark, bytes): (u8, &[u8]) = match part {
            Part::Raw(b) if b.len() <= ROW_RAW_MAX => (b.len() as u8, b),
            Part::Raw(b) => {
                digest = Part::digest(b);
                (KeyHash::DIGEST_MARK, &digest)
            }
            Part::Digest(d) => {
                digest = d;
                (KeyHash::DIGEST_MARK, &digest)
            }
        };
        let mut buf = [0u8; 16 + 1 + ROW_RAW_MAX];
        buf[..16].copy_from_slice(&self.0.to_le_bytes());
        buf[16] = mark;
        let end = 17 + bytes.len();
        buf[17..end].copy_from_slice(bytes);
        KeyHash(XxHash3_128::oneshot(&buf[..end]))
    }

    /// The hash of the key with these parts.
    pub fn of(parts: &[&[u8]]) -> KeyHash {
        parts
            .iter()
            .fold(KeyHash::ROOT, |h, p| h.child(Part::Raw(p)))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyHash({:032x})", self.0)
    }
}

/// Lower-case hexadecimal digits of `bytes`.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes of different builds compare these: a change needs a new key version.
    #[test]
    fn hashes_are_pinned() {
        let pinned: [(&[&[u8]], u128); 4] = [
            (&[b"d"], 0x795196a07d33b3dd1ee5eba626ec4620),
            (&[b"d", b"t"], 0x45a7f5df3320ea99edd3bfcaaf1486ff),
            (
                &[b"d", b"t", b"\x00\x01\x00\x00\x00"],
                0x4c610360cbfd71138802dba97af72482,
            ),
            (&[b"d", b"t", &[7; 40]], 0x2c84d66637e68a6654ab5075593c2607),
        ];
        let now = pinned.map(|(parts, _)| format!("{:032x}", KeyHash::of(parts).0));
        assert_eq!(now, pinned.map(|(_, hash)| format!("{hash:032x}")));
    }

    #[test]
    fn digest_and_raw_hash_alike() {
        let table = KeyHash::of(&[b"d", b"t"]);
        let long = [9u8; ROW_RAW_MAX + 1];
        assert_eq!(
            table.child(Part::Raw(&long)),
            table.child(Part::Digest(Part::digest(&long)))
        );
        // A short part is never a digest: the same bytes, another key.
        let short = Part::digest(&long);
        assert_ne!(
            table.child(Part::Raw(&short)),
            table.child(Part::Digest(short))
        );
    }

    #[test]
    fn part_boundaries_count() {
        assert_ne!(KeyHash::of(&[b"ab", b"c"]), KeyHash::of(&[b"a", b"bc"]));
        assert_ne!(KeyHash::of(&[b"ab"]), KeyHash::of(&[b"ab", b""]));
        assert_ne!(
            KeyHash::of(&[b"a", b"", b"b"]),
            KeyHash::of(&[b"a", b"b", b""])
        );
    }

    #[test]
    fn printable_parts() {
        assert_eq!(Part::Raw(b"accounts").printable(), "accounts");
        assert_eq!(Part::Raw(b"\x00\x01\xff").printable(), "0x0001ff");
        assert_eq!(Part::Raw(b"").printable(), "0x");
        assert!(Part::Digest([1; 16]).printable().starts_with("hash:0101"));
    }
}
