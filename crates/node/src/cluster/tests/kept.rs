//! How much of the past is remembered.

use super::*;

/// A member reports nothing, so that nobody cuts, and the others write much.
#[test]
fn large_write_sets_are_forgotten_before_small_ones_would_be() {
    let mut f = Feed::of_three();
    f.state.keys_max = 1002;
    let mut most = 0;
    for row in 0..2_000 {
        let seen = f.state.position().seqno;
        assert!(f.passes(1, Part::Whole, write_set(1, seen, row)));
        most = most.max(f.state.certifier().stats().keys);
    }
    assert_eq!(most, 1002, "a thousand rows, their table and its database");
    let (last, floor) = (f.state.position().seqno, f.state.certifier().floor());
    assert_eq!(last - floor, 1000);
    // Who has not seen what is forgotten may try again.
    let fresh = 5_000;
    assert!(!f.passes(2, Part::Whole, write_set(2, floor - 1, fresh)));
    assert!(f.passes(2, Part::Whole, write_set(2, floor + 1, fresh)));
    assert!(!f.passes(3, Part::Whole, write_set(3, floor + 1, 1_999)));
    f.state.keys_max = 0;
    let seen = f.state.position().seqno;
    assert!(f.passes(1, Part::Whole, write_set(1, seen, 6_000)));
    let behind = f.state.position().seqno - f.state.certifier().floor();
    assert_eq!(
        behind, KEYS_KEPT,
        "who is this little behind is not refused"
    );
}
