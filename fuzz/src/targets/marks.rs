//! The small files beside the log: what the database was doing when the node stopped.

use dromon_node::ddl_marks::{self, SLOT};
use dromon_node::failed;
use dromon_node::lacking;
use twox_hash::XxHash3_64;

use super::Target;

/// Puts the checksum at the end of `bytes` right.
fn put_right(bytes: &mut [u8]) {
    if let Some((body, sum)) = bytes.split_last_chunk_mut::<8>() {
        *sum = XxHash3_64::oneshot(body).to_le_bytes();
    }
}

/// `dromon.ddl.log`, as it is and with the checksums put right.
pub const DDL_MARKS: Target = Target {
    name: "ddl_marks",
    run: |data| {
        let mut file = [0; 2 * SLOT];
        let some = data.len().min(file.len());
        file[..some].copy_from_slice(&data[..some]);
        let stable = |file: &[u8; 2 * SLOT]| {
            if let Some(once) = ddl_marks::fuzzed(file) {
                assert_eq!(ddl_marks::fuzzed(&once), Some(once), "said differently");
            }
        };
        stable(&file);
        for slots in [[true, false], [false, true], [true, true]] {
            let mut right = file;
            for (slot, wanted) in right.chunks_mut(SLOT).zip(slots) {
                if wanted {
                    put_right(slot);
                }
            }
            stable(&right);
        }
    },
    seeds: || {
        let slot = |number: u64, kind: u8| {
            let mut slot = [0; SLOT];
            slot[..8].copy_from_slice(b"dromddl1");
            slot[8..16].copy_from_slice(&number.to_le_bytes());
            slot[16] = kind;
            slot[17..33].fill(7);
            slot[33..41].copy_from_slice(&12i64.to_le_bytes());
            put_right(&mut slot);
            slot
        };
        let mut seeds = vec![Vec::new(), vec![0; 2 * SLOT]];
        for kind in 0..=5 {
            seeds.push([slot(4, kind), slot(3, 1)].concat());
        }
        seeds
    },
};

/// `dromon.chunks.log`, as it is and with the checksum put right.
pub const LACKING: Target = Target {
    name: "lacking",
    run: |data| {
        let mut right = data.to_vec();
        put_right(&mut right);
        for file in [data, &right] {
            if let Some(once) = lacking::fuzzed(file) {
                assert_eq!(lacking::fuzzed(&once), Some(once), "said differently");
            }
        }
    },
    seeds: || {
        let file = |notes: &[u8]| {
            let mut file = [b"dromchk1", notes, &[0; 8]].concat();
            put_right(&mut file);
            file
        };
        // Their number, then history and seqno of each.
        let note = [&[16][..], &[7; 16], &[10]].concat();
        vec![
            Vec::new(),
            file(&[0]),
            file(&[&[1][..], &note].concat()),
            file(&[&[1][..], &note[1..]].concat()),
            file(&[0xff, 0xff, 0xff, 0xff, 0x0f]),
        ]
    },
};

/// A slot behind the marks in `dromon.ddl.log`, as it is and with the checksum put right.
pub const FAILED: Target = Target {
    name: "failed",
    run: |data| {
        let mut right = data.to_vec();
        right.resize(failed::SLOT, 0);
        put_right(&mut right);
        for slot in [data, &right] {
            if let Some(once) = failed::fuzzed(slot) {
                assert_eq!(failed::fuzzed(&once), Some(once), "said differently");
            }
        }
    },
    seeds: || {
        let slot = |count: u64, seqnos: &[i64]| {
            let mut slot = vec![0; failed::SLOT];
            slot[..8].copy_from_slice(b"dromfai1");
            slot[8] = 3;
            slot[24..40].fill(7);
            slot[48..56].copy_from_slice(&count.to_le_bytes());
            for (place, seqno) in slot[56..].chunks_exact_mut(8).zip(seqnos) {
                place.copy_from_slice(&seqno.to_le_bytes());
            }
            put_right(&mut slot);
            slot
        };
        vec![
            Vec::new(),
            slot(0, &[]),
            slot(2, &[4, 9]),
            slot(2, &[9, 4]),
            slot(2, &[4, 4]),
            slot(u64::MAX, &[1]),
        ]
    },
};
