//! A transaction that MySQL compressed as a whole (8.0.20, `binlog_transaction_compression`).
//!
//! ```text
//! event 40   fields: type n, length n, value; 0 alone ends them
//!              1  bytes of what follows the fields, n
//!              2  algorithm, n: 0 is zstd, 255 none
//!              3  bytes of the raw data, n
//!            the events from behind the GTID to the commit, without checksums
//! ```
//!
//! `n` is a number of 1, 3, 4 or 9 bytes.

use std::borrow::Cow;
use std::io::Read;

use zstd::stream::read::Decoder;

use crate::bytes::Reader;
use crate::checksum::Checksum;
use crate::compress::Damage;
use crate::error::EventError;
use crate::event::Event;
use crate::header::EventType;
use crate::stream::{Cut, cut_event};

const ZSTD: u64 = 0;
const NONE: u64 = 255;

/// The raw events of such an event's body, if they are at most `max` bytes.
///
/// Memory is used as data come, not on the word of a length.
pub(crate) fn unpack(body: &[u8], max: usize) -> Result<Cow<'_, [u8]>, Damage> {
    let (algorithm, data) = fields(body).map_err(|_| "its fields do not fit")?;
    let raw = match algorithm {
        Some(NONE) => Cow::Borrowed(data),
        Some(ZSTD) => Cow::Owned(decompress(data, max)?),
        _ => return Err("its algorithm is not zstd"),
    };
    match raw.len() <= max {
        true => Ok(raw),
        false => Err("its raw data are longer than allowed"),
    }
}

/// The algorithm, and what follows the fields.
fn fields(body: &[u8]) -> Result<(Option<u64>, &[u8]), EventError> {
    let mut r = Reader::new(body, 0, EventType::TRANSACTION_PAYLOAD);
    let (mut algorithm, mut len) = (None, None);
    loop {
        let kind = r.lenenc("type of a field")?;
        if kind == 0 {
            break;
        }
        let value = r.lenenc_len("length of a field")?;
        let value = r.take(value, "field")?;
        let mut number = Reader::new(value, 0, EventType::TRANSACTION_PAYLOAD);
        match kind {
            1 => len = Some(number.lenenc("length")?),
            2 => algorithm = Some(number.lenenc("algorithm")?),
            _ => continue,
        }
        number.end()?;
    }
    let data = r.rest();
    match len {
        Some(len) if len == data.len() as u64 => Ok((algorithm, data)),
        _ => Err(r.bad("length", len.unwrap_or(0))),
    }
}

fn decompress(data: &[u8], max: usize) -> Result<Vec<u8>, Damage> {
    let damaged = |_| "its stream is not zstd's";
    let decoder = Decoder::with_buffer(data).map_err(damaged)?;
    let mut raw = Vec::new();
    let most = (max as u64).saturating_add(1);
    decoder.take(most).read_to_end(&mut raw).map_err(damaged)?;
    Ok(raw)
}

/// The first of these events, and what follows it.
pub(crate) fn first(raw: &[u8]) -> Option<(Event<'_>, &[u8])> {
    let Ok(Cut::Event(event)) = cut_event(raw, 0, u32::MAX) else {
        return None;
    };
    let rest = &raw[event.len()..];
    let event = Event::parse(event, Checksum::Off).ok()?;
    Some((event, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn body(fields: &[&[u8]], data: &[u8]) -> Vec<u8> {
        [&fields.concat(), &b"\0"[..], data].concat()
    }

    proptest! {
        #[test]
        fn there_and_back(raw in proptest::collection::vec(0u8..4, 0..70_000), level in 1..10) {
            let data = zstd::encode_all(&raw[..], level).unwrap();
            let mut len = vec![1, 9, 0xfe];
            len.extend((data.len() as u64).to_le_bytes());
            let packed = body(&[&[2, 1, 0], &len], &data);
            prop_assert_eq!(&*unpack(&packed, raw.len()).unwrap(), &raw[..]);
            prop_assert!(raw.is_empty() || unpack(&packed, raw.len() - 1).is_err());
            for cut in 0..packed.len().min(40) {
                prop_assert!(unpack(&packed[..packed.len() - 1 - cut], 1 << 20).is_err());
            }
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            for packed in [bytes.clone(), body(&[&[2, 1, 0, 1, 1, bytes.len() as u8]], &bytes)] {
                if let Ok(raw) = unpack(&packed, 1 << 20) {
                    prop_assert!(raw.len() <= 1 << 20);
                    let mut rest = &raw[..];
                    while let Some((event, behind)) = first(rest) {
                        prop_assert!(behind.len() < rest.len() && !event.raw().is_empty());
                        rest = behind;
                    }
                }
            }
        }
    }

    #[test]
    fn fields_that_do_not_fit() {
        let zstd = [2, 1, 0];
        let none = [2, 3, 0xfc, 255, 0];
        // One that is not known is passed over.
        let later = [9, 2, 7, 7];
        let ok = body(&[&none, &later, &[1, 1, 3]], b"abc");
        assert_eq!(&*unpack(&ok, 3).unwrap(), b"abc");
        assert!(unpack(&ok, 2).is_err(), "longer than allowed");
        for wrong in [
            body(&[&none, &[1, 1, 2]], b"abc"),
            body(&[&none, &[1, 1, 4]], b"abc"),
            body(&[&none], b"abc"),
            body(&[&[1, 1, 3]], b"abc"),
            body(&[&zstd, &[1, 1, 3]], b"abc"),
            body(&[&[2, 1, 1], &[1, 1, 3]], b"abc"),
            body(&[&[2, 2, 0, 0], &[1, 1, 3]], b"abc"),
            vec![2, 3],
            Vec::new(),
        ] {
            assert!(unpack(&wrong, 100).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_claim_is_not_believed() {
        // Some bytes that become very many.
        let data = zstd::encode_all(std::io::repeat(0).take(64 << 20), 1).unwrap();
        assert!(data.len() < 1 << 15);
        let mut len = vec![1, 9, 0xfe];
        len.extend((data.len() as u64).to_le_bytes());
        let packed = body(&[&[2, 1, 0], &len], &data);
        assert!(unpack(&packed, 1 << 16).is_err());
    }
}
