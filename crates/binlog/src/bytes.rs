//! Reading fields off the front of a slice, and writing them.
//!
//! The reader never looks beyond its slice, and knows where in the event it
//! is, so that every error can say so.

use crate::error::{EventError, Flaw};
use crate::header::EventType;

/// A reader of fields. Numbers are little endian unless said otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    base: usize,
    kind: EventType,
}

impl<'a> Reader<'a> {
    /// Of `bytes`, which begin `base` bytes into an event of this type.
    pub(crate) fn new(bytes: &'a [u8], base: usize, kind: EventType) -> Reader<'a> {
        Reader {
            bytes,
            at: 0,
            base,
            kind,
        }
    }

    /// An error at the current place.
    pub(crate) fn error(&self, flaw: Flaw) -> EventError {
        EventError {
            kind: self.kind,
            offset: self.offset(),
            flaw,
        }
    }

    /// A value that a field cannot have.
    pub(crate) fn bad(&self, field: &'static str, value: u64) -> EventError {
        self.error(Flaw::Value { field, value })
    }

    /// Bytes from the beginning of the event.
    pub(crate) fn offset(&self) -> usize {
        self.base + self.at
    }

    /// Bytes left.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `n` bytes.
    pub(crate) fn take(&mut self, n: usize, field: &'static str) -> Result<&'a [u8], EventError> {
        let have = self.left();
        if n > have {
            return Err(self.error(Flaw::Short {
                field,
                need: n,
                have,
            }));
        }
        let taken = &self.bytes[self.at..self.at + n];
        self.at += n;
        Ok(taken)
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }

    /// All that is left, not taken.
    pub(crate) fn peek_rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// Nothing may be left.
    pub(crate) fn end(&self) -> Result<(), EventError> {
        match self.left() {
            0 => Ok(()),
            count => Err(self.error(Flaw::Excess { count })),
        }
    }

    /// `N` bytes as an array.
    pub(crate) fn array<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], EventError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, field)?);
        Ok(out)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, EventError> {
        Ok(self.array::<1>(field)?[0])
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, EventError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, EventError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, EventError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// A number of `n` bytes, at most 8.
    pub(crate) fn le(&mut self, n: usize, field: &'static str) -> Result<u64, EventError> {
        Ok(le(self.take(n, field)?))
    }

    /// A number with a length of its own: one byte below 251, or 252, 253, 254
    /// and two, three, eight bytes.
    pub(crate) fn lenenc(&mut self, field: &'static str) -> Result<u64, EventError> {
        match self.u8(field)? {
            n @ 0..=250 => Ok(u64::from(n)),
            252 => self.le(2, field),
            253 => self.le(3, field),
            254 => self.le(8, field),
            other => {
                self.at -= 1;
                Err(self.bad(field, u64::from(other)))
            }
        }
    }

    /// Such a number as a length of what follows.
    pub(crate) fn lenenc_len(&mut self, field: &'static str) -> Result<usize, EventError> {
        let begin = self.at;
        let n = self.lenenc(field)?;
        match usize::try_from(n) {
            Ok(n) => Ok(n),
            Err(_) => {
                self.at = begin;
                Err(self.bad(field, n))
            }
        }
    }

    /// One byte of length and so many bytes.
    pub(crate) fn short_bytes(&mut self, field: &'static str) -> Result<&'a [u8], EventError> {
        let n = self.u8(field)?;
        self.take(usize::from(n), field)
    }

    /// A reader of bytes taken from here, which begin at this place.
    pub(crate) fn within(&self, bytes: &'a [u8], base: usize) -> Reader<'a> {
        Reader::new(bytes, base, self.kind)
    }

    /// A zero byte.
    pub(crate) fn zero(&mut self, field: &'static str) -> Result<(), EventError> {
        match self.u8(field)? {
            0 => Ok(()),
            other => {
                self.at -= 1;
                Err(self.bad(field, u64::from(other)))
            }
        }
    }
}

/// At most eight bytes as a little-endian number.
pub(crate) fn le(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// At most eight bytes as a big-endian number.
pub(crate) fn be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// The lowest `n` bytes of a number, little endian.
pub(crate) fn put_le(out: &mut Vec<u8>, value: u64, n: usize) {
    out.extend_from_slice(&value.to_le_bytes()[..n]);
}

/// A number with a length of its own, as short as it can be.
pub(crate) fn put_lenenc(out: &mut Vec<u8>, value: u64) {
    match value {
        0..=250 => out.push(value as u8),
        251..=0xffff => {
            out.push(252);
            put_le(out, value, 2);
        }
        0x1_0000..=0xff_ffff => {
            out.push(253);
            put_le(out, value, 3);
        }
        _ => {
            out.push(254);
            put_le(out, value, 8);
        }
    }
}

/// A length of one byte.
///
/// # Panics
/// If it is longer: what was decoded never is.
pub(crate) fn put_len_u8(out: &mut Vec<u8>, len: usize) {
    out.push(u8::try_from(len).expect("a name of at most 255 bytes"));
}

/// Bit `n` of a bitmap that begins with the lowest bit.
pub(crate) fn bit(map: &[u8], n: usize) -> bool {
    map.get(n / 8).is_some_and(|byte| byte >> (n % 8) & 1 == 1)
}

/// Bytes that hold `n` bits.
pub(crate) fn bitmap_len(n: usize) -> usize {
    n.div_ceil(8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_with_their_length(n in any::<u64>(), shift in 0u32..64) {
            let n = n >> shift;
            let mut out = Vec::new();
            put_lenenc(&mut out, n);
            let mut r = Reader::new(&out, 0, EventType::QUERY);
            prop_assert_eq!(r.lenenc("n").unwrap(), n);
            prop_assert!(r.end().is_ok());
        }

        #[test]
        fn nothing_beyond_the_end(bytes in proptest::collection::vec(any::<u8>(), 0..12), n in 0usize..20) {
            let mut r = Reader::new(&bytes, 5, EventType::QUERY);
            match r.take(n, "field") {
                Ok(got) => prop_assert_eq!(got, &bytes[..n]),
                Err(e) => {
                    prop_assert!(n > bytes.len());
                    prop_assert_eq!(e.offset, 5);
                    prop_assert_eq!(r.left(), bytes.len());
                }
            }
            let _ = r.lenenc("n");
            prop_assert!(r.left() <= bytes.len());
        }
    }

    #[test]
    fn reserved_lengths_are_refused() {
        for byte in [251, 255] {
            let mut r = Reader::new(&[0], 0, EventType::QUERY);
            r.bytes = if byte == 251 { &[251] } else { &[255] };
            assert_eq!(r.lenenc("n").unwrap_err().offset, 0);
        }
    }
}
