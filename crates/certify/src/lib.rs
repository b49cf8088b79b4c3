//! Certification: an ordered write set in, a verdict and its dependency out.
//!
//! Every node runs the same write sets through a [`Certifier`] in the one total
//! order and gets the same verdicts. Nothing else goes in: no clock, no
//! configuration, no hash-map order.
//!
//! ```text
//!  seqno ──> certify ──> Passed { depends_on }   apply after depends_on is released
//!        │           └─> Failed { reason }       takes its seqno, leaves no trace
//!        ├─> view                                nothing later overtakes it
//!        └─> skip                                a seqno without a write set
//!  cut   ──> purge                               forget write sets <= cut
//! ```
//!
//! # The invariants
//!
//! 1. For each key and key type the index holds the last write set that passed
//!    with it. Only write sets that passed are in the index.
//! 2. A conflict needs a reference above the newcomer's `last_seen`, by another
//!    source or by a TOI: the origin's own locks have ordered its transactions.
//! 3. `depends_on` is below the own seqno and never below what was purged.
//! 4. A write set whose `last_seen` is below the cut fails: what it would have
//!    to be compared with is gone. Cuts are ordered and below the `last_seen`
//!    of everything in flight, so this never hits a sane node.
//! 5. Two certifiers that took the same calls have the same digest, and so has
//!    one that was restored from the other's checkpoint in between.
//!
//! # The key that stands for a whole table
//!
//! A transaction with too many keys on one table sends one EXCLUSIVE key on
//! the table instead ([`dromon_writeset::KeyCollector`]). By the matrix alone
//! that key only *depends* on row changes of others, which leave no more than
//! a SHARED prefix on the table: an update would be lost. So such a key
//! conflicts with any reference by another source above `last_seen`, SHARED
//! included.
//!
//! At table level no lock orders the transactions of one source either, so its
//! own last reference may hide another source's that it has not seen. The
//! index therefore keeps, for SHARED and EXCLUSIVE, also the last reference of
//! a second source. (For rows this changes nothing: whoever holds a row
//! EXCLUSIVE after another source had seen that one, and so has whoever waited
//! for its lock.)
//!
//! A write set with very many keys ([`LISTED_MAX`]) is tested by all of them, and
//! leaves in the index such a key for each of its tables.

#![forbid(unsafe_code)]

mod certifier;
mod checkpoint;
mod index;
mod matrix;
mod open;
mod verdict;

pub use certifier::{Certifier, LISTED_MAX, MAX_LENGTH, PA_RANGE_MAX, Stats};
pub use checkpoint::CheckpointError;
pub use matrix::{Rule, rule};
pub use verdict::{Conflict, FailReason, Verdict};
