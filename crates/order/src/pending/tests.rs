use super::*;

const NOW: Duration = Duration::ZERO;

fn queue() -> PendingQueue {
    let mut q = PendingQueue::new(
        Uuid([7; 16]),
        PendingLimits {
            piece_bytes: 1000,
            pieces_in_flight: 3000,
            max_count: 100,
            max_bytes: 1_000_000,
            ..PendingLimits::default()
        },
    );
    q.on_leader(Some((1, 1)), NOW);
    q
}

fn body(len: usize) -> Bytes {
    Bytes::from(vec![1; len])
}

fn numbers(batch: &[RawMessage]) -> Vec<u64> {
    batch.iter().map(|m| m.oseq).collect()
}

#[test]
fn nothing_goes_without_a_leader() {
    let mut q = queue();
    q.on_leader(None, NOW);
    assert_eq!(q.push(1, 0, body(1)), Ok(1));
    assert!(!q.has_work(NOW));
    assert!(q.next_batch(1 << 20, NOW).is_empty());
    q.on_leader(Some((2, 5)), NOW);
    assert!(q.has_work(NOW));
    assert_eq!(numbers(&q.next_batch(1 << 20, NOW)), [1]);
    assert!(!q.has_work(NOW));
    q.on_refused(NOW);
    q.on_leader(None, NOW);
    q.on_refused(NOW);
    assert_eq!(
        q.next_deadline(NOW),
        None,
        "only a leader is worth waking up for"
    );
}

#[test]
fn a_large_one_passes_no_small_one_from_before() {
    let mut q = queue();
    let tags = |b: &[RawMessage]| b.iter().map(|m| m.tag).collect::<Vec<_>>();
    for tag in 0..5 {
        q.push(1, tag, body(900)).unwrap();
    }
    q.push(1, 100, body(1500)).unwrap();
    for tag in 10..13 {
        q.push(1, tag, body(900)).unwrap();
    }
    let all = tags(&q.next_batch(1 << 20, NOW));
    let at = |tag| all.iter().position(|t| *t == tag).unwrap();
    let last_piece = all.iter().rposition(|t| *t == 100).unwrap();
    assert!((0..5).all(|tag| at(tag) < last_piece), "{all:?}");
    assert!((10..13).any(|tag| at(tag) > last_piece), "{all:?}");
}

#[test]
fn pieces_wait_while_they_are_held_and_small_ones_do_not() {
    let mut q = queue();
    q.push(1, 100, body(3000)).unwrap();
    assert!(q.hold_pieces(true) && !q.hold_pieces(true));
    assert!(!q.has_work(NOW) && q.next_deadline(NOW).is_none());
    q.push(1, 0, body(400)).unwrap();
    let tags = |b: &[RawMessage]| b.iter().map(|m| m.tag).collect::<Vec<_>>();
    assert_eq!(tags(&q.next_batch(1 << 20, NOW)), [0]);
    // Under a new origin, too.
    q.reset(Uuid([9; 16]));
    q.on_leader(Some((1, 1)), NOW);
    q.push(1, 200, body(3000)).unwrap();
    assert!(!q.has_work(NOW));
    assert!(q.hold_pieces(false));
    assert!(q.has_work(NOW));
    assert_eq!(tags(&q.next_batch(1 << 20, NOW))[0], 200);
}

#[test]
fn large_ones_take_turns_and_small_ones_pass_them() {
    let mut q = queue();
    q.push(1, 100, body(3000)).unwrap();
    q.push(1, 200, body(2000)).unwrap();
    for tag in 0..3 {
        q.push(1, tag, body(400)).unwrap();
    }
    let tags = |b: &[RawMessage]| b.iter().map(|m| m.tag).collect::<Vec<_>>();
    let first = q.next_batch(1 << 20, NOW);
    // A piece's worth of small ones, a piece, the rest, then turns up to the cap.
    assert_eq!(tags(&first), [0, 1, 2, 100, 200, 100]);
    assert_eq!(q.status().large, 2);
    // The cap holds pieces back, never small ones.
    q.push(1, 3, body(400)).unwrap();
    assert_eq!(tags(&q.next_batch(1 << 20, NOW)), [3]);
    for oseq in 1..=4 {
        assert_eq!(q.on_committed(oseq, NOW), Progress::Confirmed);
    }
    assert_eq!(tags(&q.next_batch(1 << 20, NOW)), [200]);
}

#[test]
fn a_short_rest_does_not_wait_for_a_pause() {
    let mut q = queue();
    q.set_bulk_share(0.25);
    let tags = |b: &[RawMessage]| b.iter().map(|m| m.tag).collect::<Vec<_>>();
    q.push(1, 100, body(4500)).unwrap();
    assert_eq!(tags(&q.next_batch(1 << 20, NOW)), [100; 3]);
    (0..10).for_each(|_| q.saw_small());
    q.on_committed(1, NOW);
    // The cap is for both.
    assert_eq!(tags(&q.next_batch(1 << 20, NOW)), [100]);
    q.on_committed(2, NOW);
    assert_eq!(tags(&q.next_batch(1 << 20, NOW)), [100]);
    q.push(1, 200, body(4500)).unwrap();
    q.on_committed(3, NOW);
    assert!(q.next_batch(1 << 20, NOW).is_empty(), "the next one waits");
    for oseq in 4..6 {
        q.on_committed(oseq, Duration::from_millis(10));
    }
    let at = Duration::from_millis(10 + 30);
    assert_eq!(q.next_deadline(Duration::from_millis(10)), Some(at));
    assert_eq!(tags(&q.next_batch(1 << 20, at)), [200; 3]);
}

#[test]
fn many_small_ones_do_not_starve_a_large_one() {
    let mut q = queue();
    q.push(1, 999, body(2500)).unwrap();
    for _ in 0..50 {
        q.push(1, 0, body(186)).unwrap();
    }
    let batch = q.next_batch(1 << 20, NOW);
    let places: Vec<_> = (0..batch.len()).filter(|i| batch[*i].tag == 999).collect();
    assert_eq!(places, [4, 9, 14]);
}

#[test]
fn a_batch_has_a_size_and_is_never_empty() {
    let mut q = queue();
    for _ in 0..4 {
        q.push(1, 0, body(436)).unwrap();
    }
    assert_eq!(numbers(&q.next_batch(1000, NOW)), [1, 2]);
    assert_eq!(numbers(&q.next_batch(10, NOW)), [3]);
    q.on_refused(NOW);
    let later = NOW + Duration::from_millis(10);
    assert!(q.next_batch(1000, NOW).is_empty());
    assert_eq!(q.next_deadline(NOW), Some(later));
    assert_eq!(numbers(&q.next_batch(1000, later)), [1, 2]);
    assert_eq!(numbers(&q.next_batch(1 << 20, later)), [3, 4]);
}

#[test]
fn a_new_leader_is_sent_everything_in_flight_with_the_same_bytes() {
    let mut q = queue();
    q.push(1, 1, body(10)).unwrap();
    q.push(1, 2, body(2500)).unwrap();
    let first = q.next_batch(1 << 20, NOW);
    q.on_committed(1, NOW);
    q.push(1, 3, body(10)).unwrap();
    q.on_leader(Some((1, 1)), NOW);
    assert_eq!(numbers(&q.next_batch(1 << 20, NOW)), [5]);
    q.on_leader(Some((2, 2)), NOW);
    let again = q.next_batch(1 << 20, NOW);
    assert_eq!(again[..3], first[1..]);
    assert_eq!(numbers(&again), [2, 3, 4, 5]);
    assert_eq!(q.status().resent, 4);
}

#[test]
fn without_progress_everything_goes_again_less_and_less_often() {
    let mut q = queue();
    let s = Duration::from_secs;
    q.push(1, 1, body(10)).unwrap();
    assert!(!q.on_timeout(s(9)));
    assert_eq!(q.next_deadline(NOW), None);
    q.next_batch(1 << 20, s(10));
    assert!(!q.on_timeout(s(10) + Duration::from_millis(999)));
    assert_eq!(q.next_deadline(NOW), Some(s(11)));
    assert!(q.on_timeout(s(11)));
    assert!(!q.on_timeout(s(20)), "nothing is under way");
    assert_eq!(numbers(&q.next_batch(1 << 20, s(20))), [1]);
    assert_eq!(q.next_deadline(NOW), Some(s(22)));
    assert_eq!(q.on_committed(1, s(21)), Progress::Confirmed);
    assert_eq!(q.next_deadline(NOW), None);
    assert!(q.is_empty());
    assert_eq!(q.status().bytes, 0);
}

/// A frame of half a mebibyte takes eight seconds on the slowest way.
#[test]
fn what_is_still_on_a_narrow_way_is_not_sent_again() {
    let s = Duration::from_secs;
    let mut q = PendingQueue::new(
        Uuid([1; 16]),
        PendingLimits {
            piece_bytes: 64 << 10,
            ..PendingLimits::default()
        },
    );
    q.on_leader(Some((1, 1)), NOW);
    q.push(1, 1, body(512 << 10)).unwrap();
    assert_eq!(q.next_batch(1 << 20, NOW).len(), 8);
    assert!(!q.on_timeout(s(8)));
    assert_eq!(q.next_deadline(NOW), Some(s(9)));
    // With half of it there, the rest takes half as long.
    for n in 1..=4 {
        assert_eq!(q.on_committed(n, s(8)), Progress::Confirmed);
    }
    assert_eq!(q.next_deadline(s(8)), Some(s(8 + 5)));
    assert!(q.on_timeout(s(13)));
    assert_eq!(numbers(&q.next_batch(1 << 20, s(13))), [5, 6, 7, 8]);
    // It may be lost after all, and no size makes anybody wait for ever.
    assert_eq!(q.next_deadline(s(13)), Some(s(13 + 2 + 4)));
    for n in 5..=8 {
        q.on_committed(n, s(14));
    }
    assert!(q.is_empty());
    let whole = 8 << 20;
    for n in 0..whole / 1000 {
        q.push(1, n, body(1000)).unwrap();
    }
    assert!(q.next_batch(usize::MAX, s(20)).len() > 8000);
    assert_eq!(q.next_deadline(s(20)), Some(s(20 + 1 + 30)));
}

#[test]
fn a_gap_sends_again_once() {
    let mut q = queue();
    for _ in 0..4 {
        q.push(1, 0, body(1)).unwrap();
    }
    q.next_batch(1 << 20, NOW);
    assert_eq!(q.on_committed(2, NOW), Progress::Gap);
    assert_eq!(q.on_committed(3, NOW), Progress::Gap);
    assert_eq!(numbers(&q.next_batch(1 << 20, NOW)), [1, 2, 3, 4]);
    assert_eq!(q.on_committed(4, NOW), Progress::Gap);
    assert!(!q.has_work(NOW), "an echo of the first attempt");
    for oseq in 1..=4 {
        assert_eq!(q.on_committed(oseq, NOW), Progress::Confirmed);
        assert_eq!(q.on_committed(oseq, NOW), Progress::Duplicate);
    }
    assert_eq!(q.on_committed(9, NOW), Progress::Gap);
    assert_eq!(q.on_committed(5, NOW), Progress::Gap);
    assert_eq!(q.confirmed(), 4);
}

#[test]
fn what_is_held_has_no_number_and_can_be_taken_back() {
    let mut q = queue();
    q.push(1, 1, body(10)).unwrap();
    q.push(1, 2, body(2500)).unwrap();
    let sent = q.next_batch(1 << 20, NOW);
    assert_eq!(numbers(&sent), [1, 2, 3, 4]);
    assert!(q.hold(true) && !q.hold(true));
    q.push(1, 3, body(10)).unwrap();
    q.push(1, 4, body(3000)).unwrap();
    q.push(1, 5, body(10)).unwrap();
    q.push(2, 3, body(10)).unwrap();
    assert!(!q.has_work(NOW) && q.next_batch(1 << 20, NOW).is_empty());
    // What has a number goes to the next leader as ever.
    q.on_leader(Some((2, 2)), NOW);
    assert!(q.has_work(NOW));
    assert_eq!(q.next_batch(1 << 20, NOW), sent);
    assert!(!q.withdraw(1, 1) && !q.withdraw(1, 2), "they were sent");
    let before = q.status();
    assert!(q.withdraw(1, 3) && q.withdraw(1, 4));
    assert!(!q.withdraw(1, 3) && !q.withdraw(1, 9));
    let after = q.status();
    assert_eq!(before.count - after.count, 2);
    assert_eq!(before.bytes - after.bytes, 3010 + 2 * OVERHEAD);
    // Forgetting everything does not end it.
    assert!(q.hold(false));
    let rest = q.next_batch(1 << 20, NOW);
    let got: Vec<_> = rest.iter().map(|m| (m.oseq, m.kind, m.tag)).collect();
    assert_eq!(got, [(5, 1, 5), (6, 2, 3)]);
    q.hold(true);
    q.reset(Uuid([8; 16]));
    q.push(1, 6, body(1)).unwrap();
    assert!(q.next_batch(1 << 20, NOW).is_empty());
    for oseq in 1..=6 {
        q.on_committed(oseq, NOW);
    }
    q.withdraw(1, 6);
    assert!(q.is_empty());
    assert_eq!(q.status().bytes, 0);
}

#[test]
fn a_large_one_that_has_begun_cannot_be_taken_back() {
    let mut q = queue();
    q.push(1, 7, body(9000)).unwrap();
    q.push(1, 8, body(9000)).unwrap();
    // Two pieces of the first, one of the second: the limit.
    assert_eq!(numbers(&q.next_batch(1 << 20, NOW)), [1, 2, 3]);
    q.push(1, 9, body(9000)).unwrap();
    q.hold(true);
    assert!(!q.withdraw(1, 7) && !q.withdraw(1, 8) && q.withdraw(1, 9));
    for oseq in 1..=3 {
        q.on_committed(oseq, NOW);
    }
    assert!(q.next_batch(1 << 20, NOW).is_empty());
    q.hold(false);
    assert_eq!(numbers(&q.next_batch(1 << 20, NOW)), [4, 5, 6]);
}

#[test]
fn it_is_bounded() {
    let mut q = queue();
    for _ in 0..100 {
        q.push(1, 0, body(1)).unwrap();
    }
    let e = q.push(1, 0, body(1)).unwrap_err();
    assert!(matches!(e, PushError::Full { count: 100, .. }));
    let mut q = queue();
    q.push(1, 0, body(2_000_000)).unwrap();
    assert!(matches!(
        q.push(1, 0, body(1)),
        Err(PushError::Full { count: 1, .. })
    ));
    q.reset(Uuid([8; 16]));
    assert_eq!(q.push(1, 0, body(1)), Ok(1));
    let batch = q.next_batch(1 << 20, NOW);
    assert_eq!((batch[0].oseq, batch[0].origin), (1, Uuid([8; 16])));
}
