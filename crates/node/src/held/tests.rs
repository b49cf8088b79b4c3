use super::*;
use dromon_writeset::KeyType;
use proptest::prelude::*;

const A: StreamId = (Uuid([1; 16]), 7);
const B: StreamId = (Uuid([2; 16]), 7);

fn table(name: &[u8]) -> KeyHash {
    KeyHash::ROOT.child(dromon_writeset::Part::Raw(name))
}

fn s(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// A at 5 in table t, B at 6 and 8 in tables u and v; all lie ten places further
/// on in the log. B's first one came in pieces.
fn two() -> HeldRows {
    let mut held = HeldRows::default();
    held.fragment(A, (5, 15), Some(15), &[table(b"t")]);
    held.fragment(B, (6, 16), Some(14), &[table(b"u")]);
    held.fragment(B, (8, 18), None, &[table(b"v")]);
    held
}

#[test]
fn a_row_without_a_unique_key_may_meet_gaps_of_a_stream_in_that_table_alone() {
    let made = |name: &[u8], secondary| {
        let table = table(name);
        let surely = secondary;
        [Made {
            table,
            secondary,
            surely,
        }]
    };
    let mut held = two();
    held.made(A, &made(b"t", true));
    held.made(B, &made(b"u", false));
    assert!(held.meets_neighbours(&made(b"t", false)));
    assert!(!held.meets_neighbours(&made(b"u", false)), "no gap there");
    assert!(held.meets_neighbours(&made(b"u", true)), "it looks itself");
    assert!(!held.meets_neighbours(&[]));
    held.over(A, 20, true);
    held.finished(20);
    assert!(!held.meets_neighbours(&made(b"t", false)), "A is over");
    held.lost(A, 5, 15, false);
    assert!(
        !held.meets_neighbours(&made(b"w", false)),
        "nobody knows, and most have none"
    );
}

/// The n-th table's keys, one made.
fn made(n: i64, secondary: bool) -> [Made; 1] {
    [Made {
        table: table(&n.to_le_bytes()),
        secondary,
        surely: secondary,
    }]
}

/// A joiner that copies for long gets to know very many, and each write set asks.
#[test]
fn to_ask_for_neighbours_costs_no_walk_over_all_streams() {
    let mut held = HeldRows::default();
    for n in 1..=100_000 {
        held.fragment(
            (Uuid([1; 16]), n as u64),
            (n, n as u64),
            Some(n as u64),
            &[],
        );
    }
    held.made((Uuid([1; 16]), 7), &made(1, true));
    // A walk over all would be ten thousand million steps.
    for n in 0..100_000 {
        assert_eq!(held.meets_neighbours(&made(n, false)), n == 1);
    }
}

fn shelve(held: &mut HeldRows, id: StreamId, released: Seqno) -> Option<(Seqno, bool)> {
    held.goes(id, released).expect("it can go");
    held.gone(id)
}

/// Its node did not hear of the end, was cut off, and sends a rollback when it is back.
#[test]
fn what_comes_behind_its_end_opens_no_table_before_that_is_finished() {
    let mut held = two();
    shelve(&mut held, A, 9);
    assert_eq!(held.over(A, 20, true), Some(5));
    assert_eq!(held.over(A, 22, false), None);
    assert!(held.finished(19).1.is_empty());
    assert_eq!(held.finished(21).1, [5]);
}

proptest! {
    /// What is looked up says the same as walking all of them would.
    #[test]
    fn lookups_agree_with_a_walk(steps in prop::collection::vec((0u8..10, 0u64..5, 0i64..4), 1..120)) {
        let mut held = HeldRows::default();
        let (mut seqno, mut released) = (0, 0);
        let mut ends: Vec<(Seqno, Seqno)> = Vec::new();
        for (step, trx, back) in steps {
            let id = (Uuid([1; 16]), trx);
            seqno += 1;
            match step {
                0 | 1 => {
                    let known = held.streams.get(&id).is_some_and(|s| s.over.is_none());
                    let begins = (!known).then_some(seqno as u64);
                    held.fragment(id, (seqno, seqno as u64), begins, &[table(b"t")]);
                }
                2 => {
                    let open = held.streams.get(&id).filter(|s| s.over.is_none());
                    if let Some(first) = open.map(|s| s.first) {
                        ends.push((first, seqno));
                        held.over(id, seqno, true);
                    }
                }
                3 => {
                    held.over(id, seqno, false);
                }
                8 => held.made(id, &made(back, trx % 2 == 0)),
                9 => {
                    held.lost(id, seqno, seqno as u64, back > 1);
                }
                4 => {
                    if held.goes(id, released).is_some() && back == 0 {
                        held.stays(id);
                    }
                }
                5 if held.streams.get(&id).is_some_and(|s| s.state == State::Going) => {
                    held.gone(id);
                }
                6 => {
                    held.keep_members(seqno, |_| back > 0);
                }
                _ => {
                    released = released.max(seqno - back);
                    held.finished(released);
                    ends.retain(|(_, end)| *end > released);
                }
            }
            let over = |s: &Stream| s.over.is_some_and(|(at, _)| at <= released);
            prop_assert!(step != 7 || !held.streams.values().any(over));
            let holds = |s: &Stream| s.state != State::Shelved && s.first <= released;
            prop_assert_eq!(held.hold_rows(released), held.streams.values().any(holds));
            let will = held.streams.values().any(|s| s.state != State::Shelved);
            prop_assert_eq!(held.will_hold_rows(), will);
            for n in 0..4 {
                let [m] = made(n, false);
                let gap = held.streams.values().any(|s| s.gaps.contains(&m.table));
                prop_assert_eq!(held.meets_neighbours(&[m]), gap);
            }
            for depends_on in [0, released, seqno - back, seqno] {
                let met = ends.iter().filter(|(f, e)| *f <= depends_on && *e < seqno);
                let walked = met.map(|(_, end)| *end).fold(depends_on, Seqno::max);
                prop_assert_eq!(held.depends_on(seqno, depends_on), walked);
            }
        }
    }
}

#[test]
fn who_stands_for_long_waits_for_those_on_its_tables() {
    let mut held = two();
    held.works(10, vec![table(b"v"), table(b"w")], 0);
    assert_eq!(held.stuck(9, s(3.0)), None);
    assert_eq!(held.stuck(9, s(3.9)), None);
    assert_eq!(held.stuck(9, s(4.0)), Some((10, vec![B])));
    assert_eq!(held.stuck(9, s(4.5)), None, "somebody is at it");
    assert_eq!(held.stuck(9, s(5.0)), Some((10, vec![B])));
    shelve(&mut held, B, 9);
    assert_eq!(held.stuck(9, s(40.0)), None);
}

#[test]
fn what_nobody_can_see_to_is_left_to_who_waits() {
    let mut held = two();
    held.works(10, vec![table(b"v"), table(b"w")], 0);
    assert_eq!(held.due_to_shelve(9, s(3.0), false), None);
    assert_eq!(held.due_to_shelve(9, s(4.0), false), Some((10, vec![B])));
    assert_eq!(held.due_to_shelve(9, s(5.0), true), None);
    assert_eq!(held.stuck(9, s(5.1)), Some((10, vec![B])), "at once");
}

#[test]
fn what_no_thread_takes_is_told_once() {
    let mut held = two();
    held.works(10, vec![table(b"v")], 0);
    held.due_to_shelve(9, s(3.0), false);
    assert_eq!(held.nobody_shelves(s(9.0)), None, "nothing is asked for");
    assert!(held.due_to_shelve(9, s(4.0), false).is_some());
    held.due_to_shelve(9, s(6.9), true);
    assert_eq!(held.nobody_shelves(s(6.9)), None);
    held.due_to_shelve(9, s(7.0), true);
    assert_eq!(held.nobody_shelves(s(7.0)), Some((10, vec![B])));
    assert_eq!(held.nobody_shelves(s(70.0)), None, "once");
    assert!(held.due_to_shelve(9, s(80.0), false).is_some(), "taken");
    held.worked(10);
    held.due_to_shelve(10, s(84.0), false);
    assert_eq!(held.nobody_shelves(s(84.0)), None, "it is through");
}

#[test]
fn those_whose_rows_a_write_set_names_go_by_their_first_fragments() {
    let row = |n: u8, key_type| RowKey {
        table: table(b"t"),
        row: table(b"t").child(dromon_writeset::Part::Raw(&[n])),
        key_type,
    };
    let (looks, changes) = (KeyType::Reference, KeyType::Update);
    let mut held = two();
    assert!(!held.names_rows());
    held.names(A, &[row(1, changes)]);
    held.names(B, &[row(1, looks), row(2, changes)]);
    held.names((A.0, 99), &[row(3, changes)]);
    assert!(held.names_rows());
    let met = |held: &HeldRows, keys: &[RowKey]| -> Vec<Seqno> {
        held.meets_rows(keys).into_iter().collect()
    };
    let both = [row(1, looks), row(2, looks)];
    assert_eq!(met(&held, &both), [5, 6]);
    assert_eq!(met(&held, &[row(1, changes), row(3, looks)]), [6]);
    assert_eq!(held.that_began(&[5, 6, 7], 9), [A, B]);
    assert_eq!(held.that_began(&[5, 6], 5), [A], "nothing of B is here");
    shelve(&mut held, A, 9);
    assert_eq!(held.that_began(&[5, 6], 9), [B]);
    held.over(A, 12, false);
    held.over(B, 13, true);
    assert_eq!(met(&held, &both), [5, 6]);
    held.finished(12);
    assert_eq!(met(&held, &both), [6]);
    assert_eq!(held.that_began(&[6], 13), [], "it is over");
    held.finished(13);
    assert!(!held.names_rows());
}

#[test]
fn what_is_not_known_may_be_any_table() {
    let mut held = two();
    held.works(10, Vec::new(), 0);
    held.stuck(9, s(0.0));
    assert_eq!(held.stuck(9, s(1.0)), Some((10, vec![A, B])));
}

#[test]
fn whoever_moves_or_works_is_not_stuck() {
    let mut held = two();
    held.works(10, Vec::new(), 0);
    held.works(11, Vec::new(), 3 << 20);
    assert_eq!(held.stuck(9, s(0.0)), None);
    held.worked(10);
    assert_eq!(held.stuck(9, s(2.0)), None, "it waits for its turn");
    assert_eq!(held.stuck(10, s(2.5)), None, "the next one begins");
    assert_eq!(held.stuck(10, s(6.4)), None, "it is larger");
    assert_eq!(held.stuck(10, s(6.6)), Some((11, vec![A, B])));
    let mut later = two();
    later.works(5, Vec::new(), 0);
    later.stuck(4, s(0.0));
    assert_eq!(later.stuck(4, s(5.0)), None, "none is applied here");
}

#[test]
fn whose_end_is_known_is_not_given_as_long() {
    let mut held = two();
    held.works(10, vec![table(b"u")], 0);
    assert_eq!(held.stuck(9, s(0.0)), None);
    assert_eq!(held.stuck(9, s(0.5)), None, "it may end before");
    held.over(B, 12, true);
    assert_eq!(held.stuck(9, s(0.6)), Some((10, vec![B])));
    assert_eq!(held.stuck(9, s(0.65)), None, "somebody is at it");
}

#[test]
fn one_that_is_over_holds_rows_until_its_end_is_finished() {
    let mut held = two();
    held.over(B, 12, true);
    held.works(10, Vec::new(), 0);
    held.stuck(9, s(0.0));
    assert_eq!(held.stuck(9, s(1.0)), Some((10, vec![A, B])));
    assert!(held.goes(B, 12).is_none(), "through");
}

#[test]
fn a_thread_is_spared_while_rows_are_held() {
    let mut held = two();
    assert_eq!([4, 5].map(|r| held.finished(r).0), [false, true]);
    shelve(&mut held, A, 9);
    assert!(held.finished(9).0, "B");
    held.over(B, 12, true);
    assert!(held.finished(11).0);
    assert_eq!(held.finished(12), (false, vec![]), "B was here");
    assert!(!held.is_empty(), "A is shelved");
    held.over(A, 13, false);
    assert_eq!(held.finished(12), (false, vec![]));
    assert_eq!(held.finished(13), (false, vec![5]));
    assert!(held.is_empty());
    let mut held = two();
    assert_eq!(held.keep_members(10, |m| *m == B.0), []);
    shelve(&mut held, B, 9);
    assert_eq!(held.keep_members(11, |m| *m == A.0), [6]);
    assert_eq!(held.keep_members(12, |_| false), [], "once");
    assert_eq!(held.finished(11), (false, vec![6]));
    assert!(held.is_empty());
}

#[test]
fn what_comes_of_one_that_is_shelved() {
    let mut held = two();
    assert_eq!(held.begins(B, 18, false), Share::Apply);
    assert!(held.goes(B, 9).is_none(), "an applier is at it");
    held.ended(B);
    assert_eq!(held.ends_early(B), Share::Apply);
    assert!(held.goes(B, 9).is_none(), "an applier is at it");
    held.ended(B);
    let leaving = held.goes(B, 9).expect("it can go");
    assert_eq!(
        (leaving.first, leaving.begins, leaving.lost),
        (6, 14, false)
    );
    assert_eq!(leaving.tables.len(), 2);
    assert_eq!(held.begins(B, 20, false), Share::Wait);
    assert_eq!(held.ends_early(B), Share::Wait);
    assert!(held.some_go());
    assert!(held.goes(B, 9).is_none(), "it goes already");
    assert_eq!(held.gone(B), None);
    assert!(!held.some_go());
    assert_eq!(held.fragment(B, (10, 20), None, &[table(b"x")]), Some(6));
    assert_eq!(held.fragment(A, (11, 21), None, &[]), None);
    assert_eq!(held.begins(B, 20, false), Share::Nothing);
    held.fragment(B, (12, 22), None, &[]);
    assert_eq!(held.over(B, 12, true), Some(6));
    let whole = Share::Whole(vec![16, 18, 20]);
    assert_eq!(held.begins(B, 22, true), whole);
    assert_eq!(held.over(A, 13, true), None);
    assert_eq!(held.begins(A, 23, true), Share::Apply);
    assert_eq!(held.begins((A.0, 99), 24, true), Share::Apply);
}

/// What finishes a fragment's place wakes whoever has the next one, before the first
/// applier has said that it is through with it.
#[test]
fn the_next_fragment_may_begin_before_the_last_one_is_reported() {
    let mut held = two();
    assert_eq!(held.begins(B, 16, false), Share::Apply);
    assert_eq!(held.begins(B, 18, false), Share::Apply);
    held.ended(B);
    assert!(held.goes(B, 9).is_none(), "an applier is at the second one");
    held.ended(B);
    assert!(held.goes(B, 9).is_some());
}

#[test]
fn one_that_cannot_go_stays() {
    let mut held = two();
    assert!(held.goes(A, 4).is_none(), "nothing of it is here");
    assert!(held.goes(A, 9).is_some());
    held.stays(A);
    assert!(held.goes(A, 9).is_none());
    assert_eq!(held.begins(A, 17, false), Share::Apply);
    held.ended(A);
    assert_eq!(held.met_by(&[], 9), [B]);
    held.over(A, 20, false);
    assert!(
        held.goes(A, 9).is_some_and(|l| l.rolled_back),
        "no need to apply it"
    );
}

#[test]
fn whose_end_came_while_it_went_is_known() {
    let mut held = two();
    held.goes(A, 9);
    assert_eq!(held.over(A, 12, false), Some(5));
    assert_eq!(held.gone(A), Some((12, false)));
}

#[test]
fn what_lies_behind_an_end_and_may_have_seen_the_stream_waits_for_the_end() {
    let mut held = two();
    held.over(B, 12, true);
    held.over(A, 14, false);
    let behind = [5, 6, 11, 12, 13].map(|d| held.depends_on(20, d));
    assert_eq!(behind, [5, 12, 12, 12, 13]);
    assert_eq!(held.depends_on(11, 10), 10, "before the end");
    held.finished(12);
    assert_eq!(held.depends_on(20, 6), 6, "it is finished");
}

#[test]
fn an_earlier_process_shelved_it() {
    let mut held = HeldRows::default();
    held.noted(A, 5, 14);
    assert_eq!((held.shelved(), held.needs_log()), (vec![A], Some(14)));
    // Delivered once more.
    let first = held.fragment(A, (5, 15), Some(14), &[table(b"t")]);
    assert_eq!(first, Some(5));
    assert_eq!(held.fragment(A, (9, 19), None, &[table(b"u")]), Some(5));
    assert_eq!(held.tables_of(A).len(), 2);
    held.fragment(A, (12, 22), None, &[]);
    held.over(A, 12, true);
    let whole = Share::Whole(vec![15, 19]);
    assert_eq!(held.begins(A, 22, true), whole);
    let mut held = HeldRows::default();
    held.noted(A, 5, 15);
    assert_eq!(held.keep_members(4, |_| false), [], "it comes later");
    assert_eq!((held.shelved(), held.is_open(5)), (vec![A], true));
    held.fragment(B, (6, 16), Some(16), &[]);
    assert_eq!(held.needs_log(), Some(15), "of B nothing is needed yet");
    held.copied();
    assert_eq!((held.shelved(), held.needs_log()), (vec![], None));
    assert!(held.is_open(5) && held.is_open(6) && !held.is_open(7));
}

#[test]
fn one_whose_beginning_was_not_delivered_may_stand_in_anybodys_way() {
    let mut held = two();
    held.lost((A.0, 8), 3, 13, false);
    let lost = (A.0, 8);
    held.fragment(lost, (7, 17), None, &[table(b"t")]);
    assert_eq!(held.met_by(&[table(b"w")], 9), [lost]);
    let leaving = held.goes(lost, 9).expect("it can be asked for");
    assert!(leaving.lost && leaving.begins == 13);
    held.stays(lost);
    assert_eq!(held.met_by(&[table(b"w")], 9), [], "once");
    held.over(lost, 12, false);
    assert_eq!(held.met_by(&[table(b"w")], 9), [lost], "its rollback");
    assert_eq!(held.finished(12), (true, vec![]));
    assert_eq!(held.met_by(&[], 12), [A, B]);
}

#[test]
fn the_end_of_one_that_is_shelved_and_not_delivered_whole_cannot_be_applied() {
    let mut held = HeldRows::default();
    held.lost(A, 5, 15, true);
    assert_eq!(held.fragment(A, (7, 17), None, &[table(b"t")]), Some(5));
    assert_eq!(held.begins(A, 17, false), Share::Nothing);
    assert!(held.ending().is_empty());
    assert_eq!(held.over(A, 9, true), Some(5));
    assert_eq!(held.ending(), [15]);
    assert_eq!(held.begins(A, 19, true), Share::Lost);
    // A database that has the end is not asked for it.
    assert_eq!(held.finished(9), (false, vec![5]));
    assert!(held.ending().is_empty());
}

/// An own stream of which a client knew the first two fragments, and nobody the rest.
#[test]
fn an_own_stream_that_comes_alone_brings_all_of_it_at_its_end() {
    let mut held = HeldRows::default();
    held.own_fragment(A, (5, 15), Some(14), &[table(b"t")]);
    held.own_fragment(A, (6, 17), None, &[table(b"u")]);
    assert!(
        held.is_empty() && !held.hold_rows(9),
        "its client has the rows"
    );
    assert_eq!(held.begins(A, 17, false), Share::Apply);
    assert_eq!(
        held.comes_alone(A, (8, 19), None),
        (5, vec![table(b"t"), table(b"u")])
    );
    held.fragment(A, (8, 19), None, &[table(b"v")]);
    assert_eq!(held.untold(A), Some((5, 14)));
    assert_eq!(held.begins(A, 19, false), Share::Nothing);
    assert_eq!(held.needs_log(), Some(14));
    held.comes_alone(A, (9, 20), None);
    held.fragment(A, (9, 20), None, &[]);
    assert_eq!(held.over(A, 9, true), Some(5));
    assert_eq!(held.told(A), Some((9, true)));
    assert_eq!(held.untold(A), None);
    assert_eq!(held.begins(A, 20, true), Share::Whole(vec![15, 17, 19]));
    assert_eq!(held.finished(9), (false, vec![5]));
    // One whose beginning nobody here has seen.
    held.comes_alone(B, (11, 21), None);
    assert_eq!(held.begins(B, 21, true), Share::Lost);
}

#[test]
fn an_own_stream_that_has_ended_is_forgotten() {
    let mut held = HeldRows::default();
    held.own_fragment(A, (5, 15), Some(15), &[]);
    held.own_over(A);
    held.own_fragment(B, (6, 16), Some(16), &[]);
    held.keep_members(7, |_| false);
    for id in [A, B] {
        held.comes_alone(id, (8, 18), None);
        assert_eq!(held.begins(id, 18, true), Share::Lost);
    }
}

#[test]
fn rows_of_own_streams_are_known_also_once_they_come_alone() {
    use dromon_writeset::KeyType::{Reference, Update};
    use dromon_writeset::Part;
    let row = |n: u8, key_type| RowKey {
        table: table(b"t"),
        row: table(b"t").child(Part::Raw(&[n])),
        key_type,
    };
    let mut held = HeldRows::default();
    for (id, first, n) in [(A, 5, 1), (B, 6, 2)] {
        held.own_fragment(id, (first, 15), Some(15), &[]);
        held.own_names(id, &[row(n, Update)]);
    }
    let looks = [row(1, Reference), row(2, Reference)];
    assert!(held.own_names_rows() && !held.names_rows());
    assert_eq!(held.own_met_by(&looks), [A.1, B.1]);
    assert_eq!(held.own_met_by(&[row(1, Update)]), []);
    assert!(held.meets_rows(&looks).is_empty());
    held.comes_alone(A, (8, 18), None);
    assert_eq!(held.own_met_by(&looks), [B.1]);
    assert_eq!(Vec::from_iter(held.meets_rows(&looks)), [5]);
    held.over(A, 9, true);
    held.over(B, 10, true);
    assert_eq!(
        held.last_end_of(&[5, 6]),
        9,
        "the other one is its client's"
    );
    assert_eq!(held.last_end_of(&[6]), -1);
    held.finished(9);
    assert_eq!(held.last_end_of(&[5]), -1);
    assert!(!held.names_rows());
    held.keep_members(11, |_| false);
    assert!(!held.own_names_rows());
}
