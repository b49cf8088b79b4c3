//! Packets in frames.
//!
//! ```text
//! 0  length u24     of this frame, at most 0xffffff; a longer packet goes on in the next
//!                   frame, until one is shorter
//! 3  sequence u8    counts frames from 0 on, anew for each command
//! 4  payload
//! ```

use super::WireError;

/// Payload of a frame that is followed by another one.
pub const FRAME_MAX: usize = 0xff_ffff;
const HEAD: usize = 4;
/// Of what a packet of several frames took so much is kept for the next one.
const ROOM_KEPT: usize = 1 << 20;

/// Adds a packet to `out`, in frames. Gives the next sequence number.
pub fn put_packet(out: &mut Vec<u8>, sequence: u8, payload: &[u8]) -> u8 {
    put_packet_of(out, sequence, &[payload])
}

/// The same of a payload in parts.
pub fn put_packet_of(out: &mut Vec<u8>, mut sequence: u8, parts: &[&[u8]]) -> u8 {
    let mut left: usize = parts.iter().map(|p| p.len()).sum();
    let mut parts = parts.iter().copied();
    let mut part: &[u8] = &[];
    loop {
        let mut frame = left.min(FRAME_MAX);
        let last = frame < FRAME_MAX;
        left -= frame;
        out.extend_from_slice(&(frame as u32).to_le_bytes()[..3]);
        out.push(sequence);
        sequence = sequence.wrapping_add(1);
        while frame > 0 {
            if part.is_empty() {
                part = parts.next().unwrap_or_default();
                continue;
            }
            let (now, later) = part.split_at(frame.min(part.len()));
            out.extend_from_slice(now);
            frame -= now.len();
            part = later;
        }
        if last {
            return sequence;
        }
    }
}

/// Puts packets together from bytes as they come. Takes no more room than came.
#[derive(Clone, Debug)]
pub struct Frames {
    buf: Vec<u8>,
    /// Bytes of `buf` that are used up.
    used: usize,
    /// The packet so far, if it has several frames.
    packet: Vec<u8>,
    /// It was given away.
    whole: bool,
    sequence: u8,
    any_sequence: bool,
    max: usize,
}

impl Frames {
    /// For packets of at most `max` bytes.
    pub fn new(max: usize) -> Frames {
        Frames {
            buf: Vec::new(),
            used: 0,
            packet: Vec::new(),
            whole: false,
            sequence: 0,
            any_sequence: false,
            max,
        }
    }

    /// From now on packets of at most so many bytes.
    pub fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    /// The sequence number that the next frame must have, and that an answer begins with.
    pub fn sequence(&self) -> u8 {
        self.sequence
    }

    /// Sets it: 0 before a new command, or what follows the own answer.
    pub fn set_sequence(&mut self, sequence: u8) {
        self.sequence = sequence;
    }

    /// From now on the numbers of frames are not looked at.
    pub fn any_sequence(&mut self) {
        self.any_sequence = true;
    }

    /// Bytes that came.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.used > 0 {
            self.buf.drain(..self.used);
            self.used = 0;
        }
        self.buf.extend_from_slice(bytes);
    }

    /// What came and was not taken: the beginning of TLS, which some clients send at once.
    pub fn take_rest(&mut self) -> Vec<u8> {
        let rest = self.buf.split_off(self.used);
        self.buf.clear();
        self.used = 0;
        rest
    }

    /// Whether everything that came was taken.
    pub fn is_empty(&self) -> bool {
        self.used == self.buf.len() && (self.packet.is_empty() || self.whole)
    }

    /// The next packet, if it is whole.
    pub fn packet(&mut self) -> Result<Option<Vec<u8>>, WireError> {
        let short = self.next()?.map(|packet| match packet.len() < FRAME_MAX {
            true => Some(packet.to_vec()),
            false => None,
        });
        Ok(short.map(|packet| {
            // A long one was put together here: it is given away, not copied.
            packet.unwrap_or_else(|| std::mem::take(&mut self.packet))
        }))
    }

    /// The same without a copy, mostly: only packets of several frames are put together.
    #[expect(clippy::should_implement_trait, reason = "what it gives borrows")]
    pub fn next(&mut self) -> Result<Option<&[u8]>, WireError> {
        if self.whole {
            self.packet.clear();
            // One long packet must not hold its room for good.
            self.packet.shrink_to(ROOM_KEPT);
            self.whole = false;
        }
        loop {
            let rest = &self.buf[self.used..];
            let Some((head, rest)) = rest.split_first_chunk::<HEAD>() else {
                return Ok(None);
            };
            let len = u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize;
            if head[3] != self.sequence && !self.any_sequence {
                return Err(WireError::Sequence {
                    expected: self.sequence,
                    got: head[3],
                });
            }
            if self.packet.len() + len > self.max {
                return Err(WireError::TooLong {
                    len: self.packet.len() + len,
                    max: self.max,
                });
            }
            let Some(payload) = rest.get(..len) else {
                return Ok(None);
            };
            let begin = self.used + HEAD;
            self.used = begin + len;
            self.sequence = self.sequence.wrapping_add(1);
            let last = len < FRAME_MAX;
            if last && self.packet.is_empty() {
                return Ok(Some(&self.buf[begin..begin + len]));
            }
            self.packet.extend_from_slice(payload);
            if last {
                self.whole = true;
                return Ok(Some(&self.packet));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However they are cut, packets come out as they were put in.
        #[test]
        fn there_and_back(
            packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..10),
            cuts in proptest::collection::vec(1usize..40, 1..20), first: u8
        ) {
            let mut stream = Vec::new();
            let mut sequence = first;
            for packet in &packets {
                let (a, b) = packet.split_at(packet.len() / 3);
                sequence = put_packet_of(&mut stream, sequence, &[a, &[], b]);
            }
            let mut frames = Frames::new(50);
            frames.set_sequence(first);
            let mut got = Vec::new();
            let mut at = 0;
            for cut in cuts.iter().cycle() {
                let end = (at + cut).min(stream.len());
                frames.feed(&stream[at..end]);
                at = end;
                while let Some(packet) = frames.packet().expect("right sequence") {
                    got.push(packet);
                }
                if at == stream.len() {
                    break;
                }
            }
            prop_assert_eq!(got, packets);
            prop_assert_eq!(frames.sequence(), sequence);
            prop_assert!(frames.is_empty());
        }
    }

    #[test]
    fn long_packets() {
        for len in [FRAME_MAX - 1, FRAME_MAX, FRAME_MAX + 1] {
            let packet = vec![7; len];
            let mut stream = Vec::new();
            let next = put_packet(&mut stream, 0, &packet);
            assert_eq!(next, if len < FRAME_MAX { 1 } else { 2 });
            let mut frames = Frames::new(len);
            frames.feed(&stream);
            assert_eq!(frames.packet(), Ok(Some(packet)));
            let mut frames = Frames::new(len - 1);
            frames.feed(&stream);
            assert!(matches!(frames.packet(), Err(WireError::TooLong { .. })));
        }
    }

    #[test]
    fn a_wrong_sequence_is_refused() {
        let mut frames = Frames::new(10);
        frames.feed(&[1, 0, 0, 5, 0]);
        assert_eq!(
            frames.packet(),
            Err(WireError::Sequence {
                expected: 0,
                got: 5
            })
        );
    }
}
