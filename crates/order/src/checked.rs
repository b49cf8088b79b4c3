//! Bodies that lie in a file: what they must be when they are read to be sent.
//!
//! Nobody reads such a file between the write and the sending, and what a disk has made of it
//! meanwhile would be found by every member at once, behind the last piece. So its pieces are
//! compared here, as copied to be sent: they are in memory then anyway. If all of them
//! together are not what was handed in, the last one never goes. In its place goes one that
//! fits to nothing, and the [`Sequencer`](crate::Sequencer) of every member drops the others.

use bytes::Bytes;
use dromon_writeset::PayloadSum;

use crate::message::{Part, RawMessage};

/// What a body must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sums {
    /// Size of its front, in bytes.
    pub front: usize,
    /// Checksum of that, as [`PayloadSum`] computes it.
    pub front_sum: u64,
    /// Checksum of what follows.
    pub rest_sum: u64,
}

impl Sums {
    /// Whether `body` is that.
    pub fn are_of(&self, body: &[u8]) -> bool {
        body.split_at_checked(self.front)
            .is_some_and(|(front, rest)| {
                PayloadSum::of(front) == self.front_sum && PayloadSum::of(rest) == self.rest_sum
            })
    }
}

/// Compares a body piece by piece.
#[derive(Debug)]
pub(crate) struct Check {
    sums: Sums,
    front: PayloadSum,
    rest: PayloadSum,
    /// The piece that comes next.
    next: u32,
    is_whole: bool,
}

impl Check {
    pub fn new(sums: Sums) -> Self {
        Check {
            sums,
            front: PayloadSum::new(),
            rest: PayloadSum::new(),
            next: 0,
            is_whole: true,
        }
    }

    /// Whether piece `i` was taken already: it is sent again as it was.
    pub fn has_taken(&self, i: u32) -> bool {
        i < self.next
    }

    /// Takes a piece as it is going to be sent. False: it is the last one, and together they are
    /// not what they must be.
    pub fn take(&mut self, piece: &RawMessage) -> bool {
        let Part::Piece { i, n, .. } = piece.part else {
            return false;
        };
        self.is_whole &= i == self.next;
        self.next = i + 1;
        let of_front = self.sums.front as u64 - self.front.len();
        let (front, rest) = match piece.body.split_at_checked(of_front as usize) {
            Some((front, rest)) => (front, rest),
            None => (&piece.body[..], &[][..]),
        };
        self.front.update(front);
        self.rest.update(rest);
        let sums = (self.front.sum(), self.rest.sum());
        i + 1 < n || self.is_whole && sums == (self.sums.front_sum, self.sums.rest_sum)
    }
}

/// What goes in place of the last piece, `piece`: none of a stream of so many. Whoever counts the
/// pieces of this node's own still takes it for a last one.
pub(crate) fn in_place_of(piece: &RawMessage) -> RawMessage {
    let part = match piece.part {
        Part::Piece { stream, n, .. } => Part::Piece {
            stream,
            i: n,
            n: n.saturating_add(1),
        },
        Part::Whole => Part::Whole,
    };
    RawMessage {
        part,
        body: Bytes::new(),
        ..*piece
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dromon_writeset::Uuid;

    use super::*;
    use crate::pending::{PendingLimits, PendingQueue, Progress};
    use crate::{Committed, CommittedBody, Sequencer};

    const NOW: Duration = Duration::ZERO;
    const ORIGIN: Uuid = Uuid([7; 16]);

    fn sums(body: &[u8], front: usize) -> Sums {
        Sums {
            front,
            front_sum: PayloadSum::of(&body[..front]),
            rest_sum: PayloadSum::of(&body[front..]),
        }
    }

    /// Sends all that is in `queue`, as the engine does, and orders it. Answers what is delivered
    /// and the tags of what was spoilt.
    fn order_all(queue: &mut PendingQueue, sequencer: &mut Sequencer) -> (Vec<Bytes>, Vec<u64>) {
        let (mut delivered, mut spoilt) = (Vec::new(), Vec::new());
        let mut index = 0;
        loop {
            let batch = queue.next_batch(5000, NOW);
            if batch.is_empty() {
                return (delivered, spoilt);
            }
            for message in batch {
                let mut sent = message.clone();
                if let Some(check) = queue.check_of(&message) {
                    if !check.lock().expect("no panic").take(&message) {
                        spoilt.push(message.tag);
                        sent = in_place_of(&message);
                    }
                    queue.sends(sent.clone());
                }
                index += 1;
                let oseq = sent.oseq;
                let decoded = RawMessage::decode(sent.encode()).expect("it can be read");
                let entry = Committed {
                    index,
                    term: 1,
                    leader: 1,
                    body: CommittedBody::Message(decoded),
                };
                let whole = sequencer.accept(&entry).expect("in memory");
                delivered.extend(whole.map(|d| d.body));
                assert_eq!(queue.on_committed(oseq, NOW), Progress::Confirmed);
            }
        }
    }

    fn queue() -> PendingQueue {
        let mut queue = PendingQueue::new(
            ORIGIN,
            PendingLimits {
                piece_bytes: 1000,
                pieces_in_flight: 3000,
                ..PendingLimits::default()
            },
        );
        queue.on_leader(Some((1, 1)), NOW);
        queue
    }

    #[test]
    fn the_last_piece_of_what_is_spoilt_never_goes() {
        let body: Vec<u8> = (0..4500u32).map(|i| (i / 9) as u8).collect();
        let expected = sums(&body, 1700);
        assert!(expected.are_of(&body));
        for at in (0..4500).step_by(450).chain([1699, 1700, 4499]) {
            let mut other = body.clone();
            other[at] ^= 1;
            assert!(!expected.are_of(&other));
            let (mut queue, mut sequencer) = (queue(), Sequencer::default());
            sequencer.register(ORIGIN);
            let mut push = |tag, body: &[u8]| {
                let body = Bytes::copy_from_slice(body);
                queue.push_checked(1, tag, body, expected).expect("room");
            };
            push(1, &body);
            push(2, &other);
            push(3, &body);
            queue
                .push(1, 4, Bytes::from_static(b"small"))
                .expect("room");
            let (delivered, spoilt) = order_all(&mut queue, &mut sequencer);
            assert_eq!(spoilt, [2], "byte {at}");
            assert_eq!(delivered.len(), 3);
            assert_eq!(delivered.iter().filter(|d| **d == body).count(), 2);
            // Nothing is left of it.
            let status = queue.status();
            assert_eq!((status.count, status.bytes, status.large), (0, 0, 0));
            assert!(!queue.has_checks());
            assert_eq!(sequencer.open_pieces_from(), None);
            assert_eq!(sequencer.stats().malformed, 1);
        }
    }

    #[test]
    fn what_is_sent_again_is_what_was_compared() {
        let body: Vec<u8> = (0..2500u32).map(|i| i as u8).collect();
        let mut queue = queue();
        let pushed = Bytes::from(body.clone());
        (queue.push_checked(1, 1, pushed, sums(&body, 30))).expect("room");
        let batch = queue.next_batch(2200, NOW);
        assert_eq!(batch.len(), 2);
        for message in &batch {
            let check = queue.check_of(message).expect("it is to be compared");
            assert!(check.lock().expect("no panic").take(message));
            let body = Bytes::copy_from_slice(&message.body);
            queue.sends(RawMessage {
                body,
                ..message.clone()
            });
        }
        queue.on_leader(Some((2, 2)), NOW);
        let again = queue.next_batch(9000, NOW);
        assert_eq!((&again[..2], again.len()), (&batch[..], 3));
        for (before, now) in batch.iter().zip(&again) {
            assert_ne!(before.body.as_ptr(), now.body.as_ptr(), "the copy");
            assert!(queue.check_of(now).is_none());
        }
        let check = queue.check_of(&again[2]).expect("it is to be compared");
        assert!(check.lock().expect("no panic").take(&again[2]));
        // One that was passed over would not be noticed by its sum alone.
        let mut check = Check::new(sums(&body[2000..], 0));
        assert!(!check.take(&again[2]));
    }

    #[test]
    fn what_is_taken_back_is_not_compared() {
        let mut queue = queue();
        let body = Bytes::from(vec![1; 2500]);
        let expected = sums(&body, 0);
        queue.push_checked(1, 1, body, expected).expect("room");
        assert!(queue.has_checks());
        assert!(queue.withdraw(1, 1));
        assert!(!queue.has_checks());
    }
}
