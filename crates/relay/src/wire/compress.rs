//! The stream of events between two relays as one zstd frame.
//!
//! ```text
//! relay that pulls                           relay that serves
//!   SHOW VARIABLES LIKE 'dromon_relay_zstd' ─>   no row from servers; from relays the highest level
//!   SET @dromon_relay_zstd=3                ─>
//!   COM_BINLOG_DUMP                         ─>
//!         <─ one zstd frame; in it the packets as they would have come without
//! ```
//!
//! All goes through one window, so that small transactions shrink as well as large ones. Whatever is
//! put in can be taken out at once: each time the block is ended.

use std::io;

use zstd::stream::raw::{DParameter, Decoder, Encoder, InBuffer, Operation, OutBuffer};

/// The variable by which relays agree, and which tells the highest level.
pub const ZSTD_VARIABLE: &str = "dromon_relay_zstd";
/// Higher ones need more memory for each connection than a replica may take.
pub const ZSTD_LEVEL_MAX: u8 = 9;
/// Memory of the side that decompresses: 2 to this power. Levels up to [`ZSTD_LEVEL_MAX`] need no
/// more; a frame that asks for more is refused.
const WINDOW_LOG_MAX: u32 = 23;
/// Room that is made at once.
const PIECE: usize = 64 << 10;

/// What compressing has spared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compressed {
    /// Bytes of packets.
    pub raw: u64,
    /// What was sent or came instead of them.
    pub wire: u64,
}

impl Compressed {
    /// How many times smaller it became; 0: nothing was sent yet.
    pub fn ratio(self) -> f64 {
        match self.wire {
            0 => 0.0,
            wire => self.raw as f64 / wire as f64,
        }
    }
}

/// The side that sends.
pub struct Compressor {
    encoder: Encoder<'static>,
    count: Compressed,
}

impl Compressor {
    /// At a level, which is brought within 1 and [`ZSTD_LEVEL_MAX`].
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(level: u8) -> io::Result<Compressor> {
        Ok(Compressor {
            encoder: Encoder::new(i32::from(level.clamp(1, ZSTD_LEVEL_MAX)))?,
            count: Compressed::default(),
        })
    }

    /// So far.
    pub fn count(&self) -> Compressed {
        self.count
    }

    /// Adds to `out` what is to be sent instead of `bytes`; with it they can be taken out.
    ///
    /// # Errors
    /// Those of the library.
    pub fn put(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let before = out.len();
        let mut input = InBuffer::around(bytes);
        loop {
            let fed = input.pos() == bytes.len();
            let from = out.len();
            out.resize(from + PIECE, 0);
            let mut room = OutBuffer::around(&mut out[from..]);
            let left = match fed {
                false => self.encoder.run(&mut input, &mut room),
                true => self.encoder.flush(&mut room),
            };
            let made = room.pos();
            out.truncate(from + made);
            if left? == 0 && fed {
                break;
            }
        }
        self.count.raw += bytes.len() as u64;
        self.count.wire += (out.len() - before) as u64;
        Ok(())
    }
}

/// The side that receives.
pub struct Decompressor {
    decoder: Decoder<'static>,
    came: Vec<u8>,
    used: usize,
    /// Its memory may hold more than was taken.
    full: bool,
    count: Compressed,
}

impl Decompressor {
    /// Before the first byte.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new() -> io::Result<Decompressor> {
        let mut decoder = Decoder::new()?;
        decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX))?;
        Ok(Decompressor {
            decoder,
            came: Vec::new(),
            used: 0,
            full: false,
            count: Compressed::default(),
        })
    }

    /// So far.
    pub fn count(&self) -> Compressed {
        self.count
    }

    /// Bytes that came.
    pub fn put(&mut self, bytes: &[u8]) {
        self.came.drain(..self.used);
        self.used = 0;
        self.came.extend_from_slice(bytes);
        self.count.wire += bytes.len() as u64;
    }

    /// Takes out as much as `out` holds: a little of what comes may be very much. 0: more must come.
    ///
    /// # Errors
    /// It is no zstd frame, damaged, wants too much memory, or has ended.
    pub fn take(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < out.len() && (self.used < self.came.len() || self.full) {
            let mut input = InBuffer::around(&self.came[self.used..]);
            let mut room = OutBuffer::around(&mut out[done..]);
            let hint = self.decoder.run(&mut input, &mut room)?;
            let (took, made) = (input.pos(), room.pos());
            self.used += took;
            done += made;
            self.full = done == out.len();
            if hint == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the zstd frame has ended; the stream of a relay never ends",
                ));
            }
            if took == 0 && made == 0 {
                break;
            }
        }
        self.count.raw += done as u64;
        Ok(done)
    }
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressor")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decompressor")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Everything that can be taken out now, through a window of so many bytes.
    fn all(from: &mut Decompressor, window: usize) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut buf = vec![0; window];
        loop {
            match from.take(&mut buf)? {
                0 => return Ok(out),
                n => out.extend_from_slice(&buf[..n]),
            }
        }
    }

    proptest! {
        /// However it is cut on the way, each part is there as soon as its bytes have come.
        #[test]
        fn there_and_back(
            parts in proptest::collection::vec((any::<u8>(), 0usize..3000, any::<bool>()), 1..12),
            cuts in proptest::collection::vec(1usize..400, 1..20), level in 0u8..12, window in 1usize..5000
        ) {
            let mut compressor = Compressor::new(level).expect("memory");
            let mut decompressor = Decompressor::new().expect("memory");
            let mut cuts = cuts.iter().cycle();
            let (mut raw, mut wire) = (0u64, 0u64);
            for (seed, len, even) in parts {
                let part: Vec<u8> = (0..len)
                    .map(|n| if even { seed } else { (n as u32 ^ u32::from(seed)).wrapping_mul(0x9e37_79b9).to_le_bytes()[3] })
                    .collect();
                let mut sent = Vec::new();
                compressor.put(&part, &mut sent).expect("compressed");
                let mut got = Vec::new();
                let mut rest = &sent[..];
                while !rest.is_empty() {
                    let (now, later) = rest.split_at((*cuts.next().expect("a cycle")).min(rest.len()));
                    decompressor.put(now);
                    got.extend(all(&mut decompressor, window).expect("as sent"));
                    rest = later;
                }
                prop_assert_eq!(&got, &part);
                raw += part.len() as u64;
                wire += sent.len() as u64;
            }
            prop_assert_eq!(compressor.count(), Compressed { raw, wire });
            prop_assert_eq!(decompressor.count(), Compressed { raw, wire });
        }

        /// Anything may come: an error, or bytes, but neither a panic nor much memory.
        #[test]
        fn anything(bytes in proptest::collection::vec(any::<u8>(), 0..300), flip in 0usize..200) {
            let mut from = Decompressor::new().expect("memory");
            from.put(&bytes);
            let _ = all(&mut from, 100);
            let mut good = Vec::new();
            Compressor::new(3).expect("memory").put(&[7; 5000], &mut good).expect("compressed");
            let at = flip % good.len();
            good[at] ^= 1 << (flip % 8);
            let mut from = Decompressor::new().expect("memory");
            from.put(&good);
            let _ = all(&mut from, 100);
        }
    }

    #[test]
    fn much_out_of_little_comes_in_pieces() {
        let mut compressor = Compressor::new(3).expect("memory");
        let mut sent = Vec::new();
        compressor
            .put(&vec![0; 20 << 20], &mut sent)
            .expect("compressed");
        assert!(sent.len() < 10_000, "{}", sent.len());
        assert!(compressor.count().ratio() > 2000.0);
        let mut from = Decompressor::new().expect("memory");
        from.put(&sent);
        let mut buf = vec![1; 1 << 20];
        let mut pieces = 0;
        while let n @ 1.. = from.take(&mut buf).expect("as sent") {
            assert!(buf[..n].iter().all(|b| *b == 0));
            pieces += 1;
        }
        assert!((20..40).contains(&pieces), "{pieces}");
        assert_eq!(from.count().raw, 20 << 20);
    }

    #[test]
    fn a_window_that_is_too_large_is_refused() {
        // Magic, a descriptor without content size, a window of 2^31.
        let mut from = Decompressor::new().expect("memory");
        from.put(&[0x28, 0xb5, 0x2f, 0xfd, 0x00, (31 - 10) << 3, 1, 0, 0, 0]);
        let said = all(&mut from, 100).expect_err("too much").to_string();
        assert!(said.contains("memory") || said.contains("Frame"), "{said}");
        // In the clear instead of compressed: an error of the protocol.
        let mut from = Decompressor::new().expect("memory");
        from.put(b"\x10\0\0\x01\xff\xd4\x04#HY000damaged");
        all(&mut from, 100).expect_err("no frame");
    }
}
