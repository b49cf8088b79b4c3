//! What a key type means to a later one (contract D.3).

use dromon_writeset::KeyType;

/// What a reference in the index does to a newcomer with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Nothing.
    Free,
    /// The newcomer is applied after it.
    Depend,
    /// The newcomer fails if it did not see it; otherwise as [`Rule::Depend`].
    Conflict,
}

/// By the type of the reference, then that of the newcomer.
const MATRIX: [[Rule; 4]; 4] = {
    use Rule::{Conflict as C, Depend as D, Free as F};
    [
        // newcomer: SHARED, REFERENCE, UPDATE, EXCLUSIVE
        [F, F, D, D], // SHARED
        [F, F, D, C], // REFERENCE
        [D, D, C, C], // UPDATE
        [C, C, C, C], // EXCLUSIVE
    ]
};

/// The rule for a reference of type `held` and a newcomer of type `new`.
#[inline]
pub const fn rule(held: KeyType, new: KeyType) -> Rule {
    MATRIX[held as usize][new as usize]
}
