//! MariaDB's compression of statements, rows and columns.
//!
//! ```text
//! event   0  1aaannnn: algorithm a, 0 is zlib; n, 1 to 4: bytes of the length
//!         1  length of the raw data, n bytes, big endian
//!            zlib stream
//!
//! column  0  aaaarnnn: a = 0: the rest is not compressed; 8: zlib
//!                      r: no zlib header and trailer; n: bytes of the length
//!         1  length of the raw data, n bytes, big endian
//!            stream
//! ```

use std::borrow::Cow;
use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::{DeflateDecoder, ZlibDecoder};
use flate2::write::ZlibEncoder;

use crate::bytes::be;

/// More than deflate can gain on any data; a claim above it is a lie.
const GAIN_MAX: usize = 1100;

/// Why data cannot be decompressed.
pub(crate) type Damage = &'static str;

/// The raw data of an event's compressed part, if they are at most `max` bytes.
///
/// Memory is reserved as data come, not on the word of the length.
pub fn decompress(data: &[u8], max: usize) -> Result<Vec<u8>, Damage> {
    let (&first, rest) = data.split_first().ok_or("it is empty")?;
    if first & 0x80 == 0 {
        return Err("its first byte lacks the mark of compression");
    }
    if first & 0x70 != 0 {
        return Err("its algorithm is not zlib");
    }
    let n = usize::from(first & 0x0f);
    if !(1..=4).contains(&n) || rest.len() < n {
        return Err("the length of its raw data is missing");
    }
    let (len, stream) = rest.split_at(n);
    if be(len) > max as u64 {
        return Err("its raw data are longer than allowed");
    }
    inflate(ZlibDecoder::new(stream), stream.len(), be(len))
}

/// The first bytes of what [`decompress`] gives, at most so many; none where there is damage so far.
pub(crate) fn begin(data: &[u8], most: usize) -> Vec<u8> {
    let n = data.first().map_or(0, |first| usize::from(first & 0x0f));
    let stream = data.get(1 + n..).unwrap_or_default();
    let mut raw = Vec::new();
    match raw_len(data).map(|_| {
        ZlibDecoder::new(stream)
            .take(most as u64)
            .read_to_end(&mut raw)
    }) {
        Some(Ok(_)) => raw,
        _ => Vec::new(),
    }
}

/// How many bytes [`decompress`] gives, by the word of the data; `None` if
/// they do not say.
pub fn raw_len(data: &[u8]) -> Option<u64> {
    let (&first, rest) = data.split_first()?;
    let n = usize::from(first & 0x0f);
    (first & 0xf0 == 0x80 && (1..=4).contains(&n)).then_some(())?;
    rest.get(..n).map(be)
}

/// Compresses as the server does. At most 4 GiB - 1.
pub fn compress(raw: &[u8]) -> Vec<u8> {
    let len = u32::try_from(raw.len()).expect("events are shorter than 4 GiB");
    let n = (4 - len.leading_zeros() as usize / 8).max(1);
    let mut out = Vec::with_capacity(raw.len() / 2 + 16);
    out.push(0x80 | n as u8);
    out.extend_from_slice(&len.to_be_bytes()[4 - n..]);
    let mut encoder = ZlibEncoder::new(out, Compression::default());
    encoder.write_all(raw).expect("memory can be written");
    encoder.finish().expect("memory can be written")
}

/// The value of a column declared COMPRESSED, if it is at most `max` bytes
/// where it is compressed.
///
/// Memory is reserved as data come, not on the word of the length.
pub fn decompress_column(data: &[u8], max: usize) -> Result<Cow<'_, [u8]>, Damage> {
    // The empty value has not even the first byte.
    let Some((&first, rest)) = data.split_first() else {
        return Ok(Cow::Borrowed(data));
    };
    match first >> 4 {
        0 => Ok(Cow::Borrowed(rest)),
        8 => {
            let n = usize::from(first & 7);
            if n > 4 || rest.len() < n {
                return Err("the length of its raw data is missing");
            }
            let (len, stream) = rest.split_at(n);
            if be(len) > max as u64 {
                return Err("its raw data are longer than allowed");
            }
            let raw = if first & 8 != 0 {
                inflate(DeflateDecoder::new(stream), stream.len(), be(len))
            } else {
                inflate(ZlibDecoder::new(stream), stream.len(), be(len))
            };
            raw.map(Cow::Owned)
        }
        _ => Err("its algorithm is not zlib"),
    }
}

fn inflate(decoder: impl Read, compressed: usize, len: u64) -> Result<Vec<u8>, Damage> {
    let len = usize::try_from(len).map_err(|_| "its length is beyond all measure")?;
    if len > compressed.saturating_mul(GAIN_MAX) {
        return Err("its length is beyond what so few bytes can hold");
    }
    let mut raw = Vec::new();
    decoder
        .take(len as u64 + 1)
        .read_to_end(&mut raw)
        .map_err(|_| "its stream is not zlib's")?;
    if raw.len() != len {
        return Err("its raw data are not as long as it says");
    }
    Ok(raw)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn round_trip(raw in proptest::collection::vec(0u8..4, 0..70_000)) {
            let packed = compress(&raw);
            prop_assert_eq!(raw_len(&packed), Some(raw.len() as u64));
            prop_assert_eq!(decompress(&packed, raw.len()).unwrap(), &raw[..]);
            prop_assert!(raw.is_empty() || decompress(&packed, raw.len() - 1).is_err());
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..64), first in 0x80u8..0x90) {
            if let Ok(raw) = decompress(&bytes, 1 << 20) {
                prop_assert_eq!(raw_len(&bytes), Some(raw.len() as u64));
            }
            for max in [0, 1 << 20] {
                if let Ok(value) = decompress_column(&bytes, max) {
                    prop_assert!(value.len() <= max.max(bytes.len()));
                }
            }
            let mut marked = vec![first];
            marked.extend(&bytes);
            if let Ok(raw) = decompress(&marked, 1 << 20) {
                prop_assert_eq!(raw_len(&marked), Some(raw.len() as u64));
            }
            let _ = decompress_column(&marked, 1 << 20);
        }

        #[test]
        fn a_changed_byte_is_noticed_or_harmless(
            raw in proptest::collection::vec(any::<u8>(), 1..400), at: usize, to: u8
        ) {
            let mut packed = compress(&raw);
            let at = at % packed.len();
            packed[at] = to;
            if let Ok(other) = decompress(&packed, 1 << 20) {
                prop_assert_eq!(other, raw);
            }
        }
    }

    #[test]
    fn only_the_beginning() {
        let packed = compress(&[b"SET ", &[b'x'; 3_000_000][..]].concat());
        assert_eq!(begin(&packed, 6), b"SET xx");
        assert_eq!(begin(&compress(b"SET"), 6), b"SET");
        assert_eq!(
            begin(&packed[..packed.len() / 2], 6),
            b"SET xx",
            "what is behind it is not read"
        );
        for damaged in [&packed[1..], &packed[..3], b"\x81\x03abc", b"\x84", b""] {
            assert_eq!(begin(damaged, 6), b"");
        }
    }

    #[test]
    fn columns_have_a_limit() {
        let raw = [7; 3000];
        // The stream is the same; the byte in front of it has another meaning.
        let mut packed = compress(&raw);
        assert_eq!(decompress_column(&packed, 3000).as_deref(), Ok(&raw[..]));
        let error = decompress_column(&packed, 2999).unwrap_err();
        assert_eq!(error, "its raw data are longer than allowed");
        packed[2] ^= 1;
        assert!(decompress_column(&packed, 5000).is_err());
        // What is not compressed has the length that it has.
        assert_eq!(decompress_column(b"\0abc", 0).as_deref(), Ok(&b"abc"[..]));
        assert_eq!(decompress_column(b"", 0).as_deref(), Ok(&b""[..]));
    }

    #[test]
    fn claims_are_not_believed() {
        let mut packed = compress(b"abc");
        assert_eq!(&packed[..2], &[0x81, 3]);
        packed[1] = 4;
        assert!(decompress(&packed, 100).is_err());
        // 4 GiB from a few bytes.
        let mut lie = vec![0x84, 0xff, 0xff, 0xff, 0xff];
        lie.extend(&packed[2..]);
        assert!(decompress(&lie, usize::MAX).is_err());
        assert_eq!(compress(&vec![0; 3088])[..3], [0x82, 0x0c, 0x10]);
    }
}
