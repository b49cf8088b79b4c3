//! Which checkpoints are kept, and when the next one is due: pure decisions.
//!
//! Each view has a checkpoint, however little was written since the last one: a joiner may
//! begin there, and the history of a forced beginning is told from it. A node that comes and
//! goes all night would leave thousands of files with every member, so older ones go where they
//! lie close together. Whoever would begin at one of those, or shorten the log to it, takes the one
//! before:
//!
//! ```text
//!   log  |          |          |     |  | | ||||||||
//!        oldest     no further         the older,  the newest
//!                   than this          the rarer
//! ```

use std::collections::VecDeque;

use crate::retention::Mark;

/// The newest checkpoints stay as they are.
const NEWEST: usize = 8;
/// Of the others one is enough for as many entries as lie behind it, and for so many bytes of log
/// and so many entries.
const BYTES: u64 = 4 << 20;
const ENTRIES: u64 = 5_000;
/// No more are dropped at once.
const AT_ONCE: usize = 4;

/// A checkpoint at least every so many bytes of log.
const DUE_BYTES: u64 = 32 << 20;
/// And every so many entries.
const DUE_ENTRIES: u64 = 50_000;
/// So many times as many bytes of log as the last one had: whatever a checkpoint costs, it is a
/// small part of what the log costs.
const WORTH: u64 = 4;
/// But no rarer than this times the above.
const RAREST: u64 = 16;

/// Those of `marks` (ascending) that need not be: neither the oldest nor the newest ones.
pub fn superfluous(marks: &VecDeque<Mark>) -> Vec<u64> {
    let mut found = Vec::new();
    let Some(mut before) = marks.front() else {
        return found;
    };
    let newest = marks.back().map_or(0, |m| m.index);
    let older = marks.len().saturating_sub(NEWEST);
    for (mark, next) in marks.iter().zip(marks.iter().skip(1)).take(older).skip(1) {
        let near = next.bytes_before.saturating_sub(before.bytes_before) < BYTES
            && next.index - before.index < ENTRIES.min(newest - next.index);
        match near {
            true => found.push(mark.index),
            false => before = mark,
        }
        if found.len() == AT_ONCE {
            break;
        }
    }
    found
}

/// When the next checkpoint is due without a view: as of so many bytes of log or so many entries
/// since the last one, which had `size` bytes. Of the log that may be held (`log_max`) it is a
/// quarter at most.
pub fn due(size: u64, log_max: u64) -> (u64, u64) {
    let worth = size.saturating_mul(WORTH) / DUE_BYTES;
    let times = worth.min(log_max / 4 / DUE_BYTES).clamp(1, RAREST);
    (times * DUE_BYTES, times * DUE_ENTRIES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn after(mark: Mark, entries: u64, bytes: u64) -> Mark {
        Mark {
            index: mark.index + entries,
            seqno: mark.seqno + 1,
            bytes_before: mark.bytes_before + bytes,
        }
    }

    const FIRST: Mark = Mark {
        index: 5,
        seqno: 3,
        bytes_before: 0,
    };

    fn drop_superfluous(marks: &mut VecDeque<Mark>) {
        let found = superfluous(marks);
        marks.retain(|m| !found.contains(&m.index));
    }

    #[test]
    fn of_a_thousand_views_few_leave_a_checkpoint() {
        let mut marks = VecDeque::from([FIRST]);
        for _ in 0..2_000 {
            let last = *marks.back().expect("there is one");
            marks.push_back(after(last, 5, 400));
            drop_superfluous(&mut marks);
            assert!(marks.len() < 25, "{}", marks.len());
            // Whoever is some views behind what is written finds one that is not much older.
            let last = marks.back().expect("there is one").index;
            for behind in [10, 100, 1_000].map(|d| last.saturating_sub(d)) {
                let found = marks.iter().rev().find(|m| m.index <= behind);
                let age = last - found.map_or(last, |m| m.index);
                assert!(age <= 50 || age < 4 * (last - behind), "{age}");
            }
        }
        assert_eq!(marks[0], FIRST, "whose log this is begins there");
    }

    #[test]
    fn those_that_an_earlier_build_left_go_bit_by_bit() {
        let mut mark = FIRST;
        let mut marks = VecDeque::from([mark]);
        for _ in 0..2_000 {
            mark = after(mark, 2, 100);
            marks.push_back(mark);
        }
        for _ in 0..700 {
            mark = after(mark, 2, 100);
            marks.push_back(mark);
            drop_superfluous(&mut marks);
        }
        assert!(marks.len() < 25, "{}", marks.len());
    }

    #[test]
    fn what_a_checkpoint_costs_is_a_part_of_what_the_log_costs() {
        const MIB: u64 = 1 << 20;
        let many = u64::MAX;
        assert_eq!(due(0, many), (32 * MIB, 50_000));
        assert_eq!(due(15 * MIB, many), (32 * MIB, 50_000));
        assert_eq!(due(40 * MIB, many), (160 * MIB, 250_000));
        assert_eq!(due(4000 * MIB, many), (512 * MIB, 800_000));
        assert_eq!(due(u64::MAX, many), (512 * MIB, 800_000));
        assert_eq!(due(400 * MIB, 1024 * MIB), (256 * MIB, 400_000));
        assert_eq!(due(400 * MIB, 0), (32 * MIB, 50_000));
    }

    proptest! {
        #[test]
        fn there_is_always_one_near(
            steps in prop::collection::vec((1..3_000u64, 0..3_000_000u64), 1..200),
        ) {
            let mut marks = VecDeque::from([FIRST]);
            let mut all = vec![FIRST];
            for (entries, bytes) in steps {
                let next = after(*all.last().expect("one"), entries, bytes);
                all.push(next);
                marks.push_back(next);
                drop_superfluous(&mut marks);
                let newest = all.len().saturating_sub(NEWEST);
                prop_assert!(all[newest..].iter().all(|m| marks.contains(m)));
            }
            // Whoever would have begun at any of them begins no further back than this.
            for m in &all {
                let before = marks.iter().rev().find(|k| k.index <= m.index).expect("the first");
                prop_assert!(m.index - before.index < ENTRIES);
                prop_assert!(m.bytes_before - before.bytes_before < BYTES);
            }
            let (bytes, entries) = all.last().map(|m| (m.bytes_before, m.index)).expect("one");
            let most = NEWEST as u64 + 40 + 2 * (bytes / BYTES + entries / ENTRIES) + 3;
            prop_assert!(marks.len() as u64 <= most, "{} of {most}", marks.len());
        }
    }
}
