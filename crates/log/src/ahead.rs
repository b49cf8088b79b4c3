//! Zeros written ahead of the records, so that a sync has only data to store.
//!
//! Room that is merely reserved is unwritten to the file system: the first write to each
//! block of it changes the file's metadata, which `fdatasync` must store, too (with ext4 a
//! commit of its journal, with XFS a force of its log). Over blocks that were written before, it
//! stores the block and nothing else. So now and then a batch takes zeros along behind it:
//!
//! ```text
//!   | records ... | batch | zeros of one step ......... | reserved ...
//!                         ^ end                         ^ written
//! ```
//!
//! Where batches use a step up within a few syncs (bulk), zeros would only double what is
//! written, and the metadata is a small part of each sync: then they are left out for a while.

/// Syncs that a step must serve to be worth its writing.
const WORTH: u32 = 8;
/// After one that was not: so many syncs without.
const REST: u32 = 256;

/// How far a segment's blocks are written. In memory only: after opening it begins anew.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// Bytes of zeros at a time; 0: never any.
    step: u64,
    /// Length of the file: zeros never extend it.
    reserved: u64,
    /// Up to here every block of the file was written.
    written: u64,
    /// Batches that found room since the last step.
    served: u32,
    /// Batches to come that get no step.
    rest: u32,
}

impl Ahead {
    /// For a file of `reserved` bytes that is written up to `end`.
    pub(crate) fn new(step: u64, reserved: u64, end: u64) -> Ahead {
        Ahead {
            step,
            reserved,
            written: end,
            served: WORTH,
            rest: 0,
        }
    }

    /// The same, in another file or after a cut.
    pub(crate) fn moved(&self, reserved: u64, end: u64) -> Ahead {
        Ahead {
            reserved,
            written: end,
            ..*self
        }
    }

    /// A batch that ends at `end` is about to be written: how many zeros go with it.
    pub(crate) fn behind(&mut self, end: u64) -> u64 {
        if end <= self.written {
            self.served += 1;
            return 0;
        }
        self.written = end;
        if self.rest > 0 {
            self.rest -= 1;
            return 0;
        }
        if self.served < WORTH {
            // The next one after the rest is given the benefit of the doubt.
            (self.rest, self.served) = (REST, WORTH);
            return 0;
        }
        let zeros = self.step.min(self.reserved.saturating_sub(end));
        self.written += zeros;
        // The end of the file says nothing of how long a step lasts.
        self.served = if zeros < self.step { WORTH } else { 0 };
        zeros
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes `batches` of `bytes` each; how many zeros went with them, and the end.
    fn write(ahead: &mut Ahead, mut end: u64, bytes: u64, batches: u32) -> (u64, u64) {
        let mut zeros = 0;
        for _ in 0..batches {
            end += bytes;
            zeros += ahead.behind(end);
            assert!(ahead.written >= end);
        }
        (zeros, end)
    }

    #[test]
    fn small_batches_find_room() {
        let mut ahead = Ahead::new(1000, 1 << 30, 50);
        let (zeros, end) = write(&mut ahead, 50, 10, 1010);
        // 10 bytes and a step of 1,000 serve 101 batches.
        assert_eq!(zeros, 10_000);
        assert_eq!(end, 10_150);
    }

    #[test]
    fn bulk_gets_hardly_any() {
        let mut ahead = Ahead::new(1000, 1 << 30, 50);
        let (zeros, end) = write(&mut ahead, 50, 400, 10_000);
        assert!(end > 4_000_000);
        assert!(zeros <= 40_000, "{zeros}");
        // Small ones have it again after the rest.
        let (zeros, _) = write(&mut ahead, end, 10, REST + 1000);
        assert!(zeros >= 8_000, "{zeros}");
    }

    #[test]
    fn zeros_do_not_extend_the_file() {
        let mut ahead = Ahead::new(1000, 1500, 50);
        assert_eq!(ahead.behind(60), 1000);
        assert_eq!(write(&mut ahead, 60, 10, 100).0, 0);
        assert_eq!(ahead.behind(1070), 430);
        assert_eq!(write(&mut ahead, 1070, 10, 43).0, 0);
        // Records may.
        assert_eq!(write(&mut ahead, 1500, 10, 5).0, 0);
        // The next file has all it needs.
        let mut next = ahead.moved(1500, 50);
        assert_eq!(next.behind(60), 1000);
    }

    #[test]
    fn without_a_step_there_are_none() {
        let mut ahead = Ahead::new(0, 1 << 30, 50);
        assert_eq!(write(&mut ahead, 50, 10, 1000).0, 0);
    }
}
