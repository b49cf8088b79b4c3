//! The identifiers every crate shares.

use std::fmt;
use std::str::FromStr;

/// The global total-order number. The first is 1; -1 means undefined.
pub type Seqno = i64;

/// A 128-bit identifier: of a history, or of one incarnation of one node.
///
/// The all-zero value means undefined. Ordered by bytes: that order decides
/// the order of members in views.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize,
)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// The undefined identifier.
    pub const NIL: Uuid = Uuid([0; 16]);

    /// Whether this is the undefined identifier.
    pub fn is_nil(&self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, b) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{b:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text was not 32 hexadecimal digits in the groups 8-4-4-4-12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a uuid: expected 8-4-4-4-12 hexadecimal digits")]
pub struct ParseUuidError;

impl FromStr for Uuid {
    type Err = ParseUuidError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let bytes = s.as_bytes();
        if bytes.len() != 36 {
            return Err(ParseUuidError);
        }
        let mut out = [0u8; 16];
        let mut digits = 0;
        for (i, &b) in bytes.iter().enumerate() {
            if matches!(i, 8 | 13 | 18 | 23) {
                if b != b'-' {
                    return Err(ParseUuidError);
                }
                continue;
            }
            let v = (b as char).to_digit(16).ok_or(ParseUuidError)? as u8;
            out[digits / 2] = out[digits / 2] << 4 | v;
            digits += 1;
        }
        Ok(Uuid(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trip() {
        let u = Uuid(*b"\x01\x23\x45\x67\x89\xab\xcd\xef\xfe\xdc\xba\x98\x76\x54\x32\x10");
        let s = u.to_string();
        assert_eq!(s, "01234567-89ab-cdef-fedc-ba9876543210");
        assert_eq!(s.parse::<Uuid>(), Ok(u));
        assert!(
            "01234567-89ab-cdef-fedc-ba987654321g"
                .parse::<Uuid>()
                .is_err()
        );
        assert!("0123456789abcdeffedcba9876543210".parse::<Uuid>().is_err());
    }
}
