//! One test per clause of the contract, section D.

use dromon_certify::{Certifier, FailReason, MAX_LENGTH, PA_RANGE_MAX, Rule, Verdict, rule};
use dromon_writeset::{Flags, KeyType, Seqno};

use crate::traffic::{ESCALATION, IMPLICIT, PA_UNSAFE, PLAIN, ROLLBACK, Spec, TOI};

use KeyType::{Exclusive, Reference, Shared, Update};

/// Sources.
const A: u8 = 1;
const B: u8 = 2;

const ROW: [&str; 3] = ["d", "t", "row"];

/// Gives each write set the next seqno.
struct Cluster(Certifier);

impl Cluster {
    /// With one unrelated write set at seqno 1, so that the index is not empty
    /// and dependencies show.
    fn new() -> Self {
        let mut c = Cluster(Certifier::new(0));
        let first = Spec::plain(A, 0).with(&["other"], Shared);
        assert!(c.run(first).passed());
        c
    }

    fn run(&mut self, spec: Spec) -> Verdict {
        let seqno = self.0.position() + 1;
        self.0.certify(seqno, &spec.make(seqno))
    }

    fn depends(&mut self, spec: Spec) -> Seqno {
        match self.run(spec) {
            Verdict::Passed { depends_on } => depends_on,
            Verdict::Failed { reason } => panic!("failed: {reason}"),
        }
    }

    /// The seqno it collides with.
    fn collides(&mut self, spec: Spec) -> Seqno {
        match self.run(spec) {
            Verdict::Failed {
                reason: FailReason::Conflict(c),
            } => c.seqno,
            other => panic!("no conflict but {other:?}"),
        }
    }
}

fn row(source: u8, last_seen: Seqno, t: KeyType) -> Spec {
    Spec::plain(source, last_seen).with(&ROW, t)
}

/// Many rows of table d.t: one key for the whole table.
fn whole_table(source: u8, last_seen: Seqno) -> Spec {
    (0..=ESCALATION).fold(Spec::plain(source, last_seen), |spec, n| {
        spec.with(&["d", "t", &format!("many{n}")], Update)
    })
}

#[test]
fn d3_the_matrix_between_two_sources() {
    const FREE: [[u8; 4]; 4] = [[0, 0, 1, 1], [0, 0, 1, 2], [1, 1, 2, 2], [2, 2, 2, 2]];
    for held in KeyType::ALL {
        for new in KeyType::ALL {
            let mut c = Cluster::new();
            assert_eq!(c.depends(row(A, 1, held)), 0);
            c.0.skip(3);
            match FREE[held as usize][new as usize] {
                0 => assert_eq!(c.depends(row(B, 1, new)), 0, "{held} {new}"),
                1 => assert_eq!(c.depends(row(B, 1, new)), 2, "{held} {new}"),
                _ => assert_eq!(c.collides(row(B, 1, new)), 2, "{held} {new}"),
            }
            let want = [Rule::Free, Rule::Depend, Rule::Conflict];
            assert_eq!(
                rule(held, new),
                want[FREE[held as usize][new as usize] as usize]
            );
        }
    }
}

#[test]
fn d3_what_was_seen_is_no_conflict_but_a_dependency() {
    let mut c = Cluster::new();
    c.depends(row(A, 1, Exclusive));
    assert_eq!(c.collides(row(B, 1, Exclusive)), 2);
    assert_eq!(c.depends(row(B, 2, Exclusive)), 2);
}

#[test]
fn d3_one_source_never_conflicts_with_itself_except_against_toi() {
    let mut c = Cluster::new();
    c.depends(row(A, 1, Exclusive));
    assert_eq!(c.depends(row(A, 1, Exclusive)), 2);
    c.depends(Spec::plain(A, 3).with(&["d", "t"], Exclusive).flags(TOI));
    assert_eq!(c.collides(row(A, 3, Exclusive)), 4);
    assert_eq!(c.depends(row(A, 4, Exclusive)), 4);
}

#[test]
fn d3_a_failed_write_set_takes_its_seqno_and_leaves_no_trace() {
    let mut c = Cluster::new();
    c.depends(row(A, 1, Update));
    let failing = row(B, 1, Update).with(&["d", "t", "second"], Exclusive);
    let before = c.0.stats();
    c.collides(failing);
    assert_eq!(c.0.position(), 3);
    assert_eq!(
        (c.0.stats().keys, c.0.stats().write_sets),
        (before.keys, before.write_sets)
    );
    assert_eq!(
        c.depends(Spec::plain(A, 1).with(&["d", "t", "second"], Exclusive)),
        0
    );
}

#[test]
fn d3_the_first_reference_of_another_type_is_kept() {
    // The last EXCLUSIVE one is above the last UPDATE one, and the reverse.
    let mut c = Cluster::new();
    c.depends(row(A, 1, Exclusive));
    c.depends(row(B, 2, Shared));
    assert_eq!(
        c.collides(row(B, 1, Reference)),
        2,
        "a later SHARED does not hide it"
    );
}

#[test]
fn d3_too_old_too_long_and_impossible() {
    let mut c = Certifier::new(100);
    let fails = |c: &mut Certifier, last_seen| {
        let seqno = c.position() + 1;
        match c.certify(seqno, &row(A, last_seen, Update).make(seqno)) {
            Verdict::Failed { reason } => reason,
            passed => panic!("{passed:?}"),
        }
    };
    assert_eq!(
        fails(&mut c, 99),
        FailReason::TooOld {
            last_seen: 99,
            floor: 100
        }
    );
    assert_eq!(
        fails(&mut c, -1),
        FailReason::TooOld {
            last_seen: -1,
            floor: 100
        }
    );
    assert_eq!(
        fails(&mut c, 103),
        FailReason::FromFuture {
            last_seen: 103,
            seqno: 103
        }
    );
    assert_eq!(
        fails(&mut c, i64::MAX),
        FailReason::FromFuture {
            last_seen: i64::MAX,
            seqno: 104
        }
    );
    let end = 100 + MAX_LENGTH;
    (105..end).for_each(|s| c.skip(s));
    assert!(c.certify(end, &row(A, 100, Update).make(end)).passed());
    assert_eq!(
        fails(&mut c, 100),
        FailReason::TooLong {
            last_seen: 100,
            seqno: end + 1
        }
    );
    assert!(
        c.certify(end + 2, &row(A, 102, Update).make(end + 2))
            .passed()
    );
}

#[test]
fn d3_toi_always_passes_and_covers_what_lies_below() {
    let mut c = Cluster::new();
    c.depends(row(A, 1, Exclusive));
    // Not tested: neither against the row nor for its age.
    let toi = |names: &[&str]| Spec::plain(B, 0).with(names, Shared).flags(TOI);
    assert_eq!(c.depends(toi(&["d", "t"])), 2);
    assert_eq!(
        c.collides(row(A, 2, Shared)),
        3,
        "a TOI's key is EXCLUSIVE, as whatever given"
    );
    assert_eq!(
        c.depends(Spec::plain(A, 2).with(&["d", "u", "r"], Exclusive)),
        0
    );
    assert_eq!(c.depends(toi(&["d"])), 5);
    assert_eq!(
        c.collides(Spec::plain(A, 5).with(&["d", "u", "r"], Update)),
        6
    );
    assert_eq!(
        c.depends(Spec::plain(A, 6).with(&["d", "u", "r"], Update)),
        6
    );
}

#[test]
fn d3_a_toi_leaves_shared_on_its_prefixes() {
    let mut c = Cluster::new();
    c.depends(Spec::plain(A, 0).with(&["d", "t"], Exclusive).flags(TOI));
    c.0.skip(3);
    let db = |t| Spec::plain(B, 1).with(&["d"], t);
    assert_eq!(c.depends(db(Shared)), 0);
    assert_eq!(
        c.depends(db(Exclusive)),
        4,
        "SHARED of the TOI and of the one above"
    );
}

#[test]
fn d3_rollback_fragments_pass_without_being_tested() {
    let mut c = Cluster::new();
    c.depends(row(A, 1, Exclusive));
    c.0.skip(3);
    let rollback = Spec::plain(B, -1).flags(ROLLBACK);
    assert_eq!(c.depends(rollback), 3);
    assert_eq!(c.depends(row(A, 3, Shared)), 4, "it is PA_UNSAFE");
}

#[test]
fn d4_pa_unsafe_waits_for_all_and_nothing_overtakes_it() {
    let mut c = Cluster::new();
    c.0.skip(2);
    c.0.skip(3);
    assert_eq!(c.depends(row(A, 3, Update).flags(PA_UNSAFE)), 3);
    c.0.skip(5);
    assert_eq!(
        c.depends(Spec::plain(B, 2).with(&["x", "y", "z"], Update)),
        4
    );
    c.collides(row(B, 1, Update).flags(PA_UNSAFE));
    assert_eq!(
        c.depends(Spec::plain(B, 2).with(&["x", "y", "z"], Shared)),
        6,
        "by its key; a PA_UNSAFE one that failed holds nothing back"
    );
}

#[test]
fn d4_nothing_overtakes_a_view() {
    let mut c = Cluster::new();
    c.0.view(2);
    c.0.skip(3);
    assert_eq!(c.depends(row(A, 1, Update)), 2);
}

#[test]
fn d4_implicit_deps_start_at_last_seen() {
    let mut c = Cluster::new();
    (2..10).for_each(|s| c.0.skip(s));
    assert_eq!(c.depends(row(A, 6, Update).flags(IMPLICIT)), 6);
}

#[test]
fn d4_the_parallel_range_is_limited() {
    let mut c = Cluster::new();
    let last_seen = PA_RANGE_MAX + 1000;
    (2..=last_seen + 1).for_each(|s| c.0.skip(s));
    assert_eq!(c.depends(row(A, last_seen, Update)), 1000);
}

#[test]
fn the_end_of_a_streaming_transaction_does_not_pass_ddl_it_has_not_seen() {
    let mut c = Cluster::new();
    let end = |last_seen| {
        let spec = Spec::plain(A, last_seen).with(&["d", "t"], Shared);
        spec.flags(Flags::TRX_END | Flags::PA_UNSAFE)
    };
    let elsewhere = Spec::plain(B, 1).with(&["x", "y"], Exclusive).flags(TOI);
    assert_eq!(c.depends(elsewhere), 1); // at 2
    let verdict = c.0.certify(3, &end(1).make(3));
    let reason = FailReason::BesideDdl {
        last_seen: 1,
        ddl: 2,
    };
    assert_eq!(verdict, Verdict::Failed { reason });
    assert_eq!(c.depends(end(2)), 3, "it has seen the statement");
    assert_eq!(
        c.depends(row(A, 1, Update)),
        4,
        "one that came in one piece is free of it"
    );
    let fragment = row(A, 1, Update).flags(Flags::NONE);
    assert_eq!(c.depends(fragment), 5, "and so are other fragments");
}

#[test]
fn d4_a_follow_up_fragment_waits_for_the_one_before() {
    let mut c = Cluster::new();
    (2..20).for_each(|s| c.0.skip(s));
    for flags in [Flags::NONE, Flags::TRX_END] {
        let mut fragment = row(A, 15, Update).flags(flags);
        fragment.prev_fragment = 12;
        assert!(c.depends(fragment) >= 12);
    }
    let mut first = Spec::plain(A, 15)
        .with(&["d", "u", "1"], Update)
        .flags(Flags::TRX_START);
    first.prev_fragment = -1;
    assert_eq!(c.depends(first), 0);
    // Even if the origin is wrong about it, it never waits for itself.
    let mut wrong = row(A, 15, Update).flags(Flags::NONE);
    wrong.prev_fragment = 1 << 40;
    assert_eq!(c.depends(wrong), 22);
}

#[test]
fn d4_never_below_what_was_purged() {
    let mut c = Certifier::new(0);
    for s in 1..=10 {
        // Held: 1, 4, 7, 10.
        if s % 3 == 1 {
            let spec = Spec::plain(A, 0).with(&["d", "t", &s.to_string()], Update);
            assert_eq!(c.certify(s, &spec.make(s)).depends_on(), 0);
        } else {
            c.skip(s);
        }
    }
    let free = |c: &mut Certifier| {
        let s = c.position() + 1;
        let spec = Spec::plain(B, s - 1).with(&["x"], Shared);
        c.certify(s, &spec.make(s)).depends_on()
    };
    c.purge(2);
    assert_eq!(free(&mut c), 3, "the lowest held is 4");
    c.purge(7);
    assert_eq!(free(&mut c), 9, "the lowest held is 10");
    c.purge(12);
    assert_eq!(c.stats().write_sets, 0);
    assert_eq!(free(&mut c), 12, "nothing is held");
    assert_eq!(free(&mut c), 12, "the lowest held is 13");
}

#[test]
fn d6_purging_frees_and_never_goes_back() {
    let mut c = Certifier::new(0);
    for s in 1..=20_000 {
        let spec = (0..4).fold(Spec::plain(A, s - 1), |spec, n| {
            spec.with(&["d", "t", &format!("{s}/{n}")], Update)
        });
        assert!(c.certify(s, &spec.make(s)).passed());
    }
    let full = c.stats();
    assert_eq!(
        (full.keys, full.write_sets, full.interval),
        (80_002, 20_000, 20_000)
    );
    c.purge(19_990);
    let left = c.stats();
    assert_eq!((left.keys, left.write_sets, left.interval), (42, 10, 10));
    assert!(left.memory_bytes < full.memory_bytes / 100, "{left:?}");
    c.purge(5);
    assert_eq!((c.stats(), c.floor()), (left, 19_990));
    c.purge(i64::MAX);
    assert_eq!(
        (c.stats().keys, c.stats().write_sets, c.floor()),
        (0, 0, 20_000)
    );
}

#[test]
fn many_keys_are_forgotten_from_the_oldest_on() {
    let mut c = Certifier::new(0);
    let change = |source, seqno: Seqno, last_seen| {
        (0..ESCALATION).fold(Spec::plain(source, last_seen), |spec, n| {
            spec.with(&["d", "t", &format!("{seqno}/{n}")], Update)
        })
    };
    for s in 1..=20 {
        assert!(c.certify(s, &change(A, s, s - 1).make(s)).passed());
        c.keep_within(10 * ESCALATION + 2, 4);
    }
    // Ten have so many, and their prefixes two.
    let left = c.stats();
    assert_eq!((left.write_sets, c.floor()), (10, 10));
    assert_eq!(left.keys, 10 * ESCALATION + 2);
    // The last four stay, however many keys they have.
    c.keep_within(0, 4);
    assert_eq!((c.stats().write_sets, c.floor()), (4, 16));
    let next = |source, row, last_seen| {
        let ws = change(source, row, last_seen).make(21);
        c.clone().certify(21, &ws)
    };
    assert!(next(B, 17, 17).passed());
    assert!(next(B, 17, 16).conflict().is_some());
    assert_eq!(next(B, 1, 16).depends_on(), 16, "nothing below is known");
    assert!(matches!(
        next(B, 1, 15),
        Verdict::Failed {
            reason: FailReason::TooOld { .. },
            ..
        }
    ));
}

/// The same rows again and again, and nobody cuts.
#[test]
fn what_is_named_often_takes_memory_once() {
    const LAST: Seqno = 2_000;
    let mut c = Certifier::new(0);
    let take = |c: &mut Certifier, s: Seqno| {
        let own = Spec::plain(A, s - 1).with(&["d", "own", &s.to_string()], Update);
        let rows = (0..200).flat_map(|t| (0..4).map(move |n| (t.to_string(), n.to_string())));
        let spec = rows.fold(own, |spec, (t, n)| spec.with(&["d", &t, &n], Update));
        assert!(c.certify(s, &spec.make(s)).passed());
    };
    let (mut most, mut early) = (0, None);
    for s in 1..=LAST {
        take(&mut c, s);
        most = most.max(c.stats().memory_bytes);
        if s == LAST - 10 {
            early = Some(c.clone());
        }
    }
    // Two million hashes would be 32 MB. One million are left where they are, in room for as many.
    assert!(most < 20 << 20, "{most}");
    // Whether they were taken out changes nothing.
    let mut other = early.expect("it came so far");
    other = Certifier::decode(&other.encode()).expect("it is whole");
    (LAST - 9..=LAST).for_each(|s| take(&mut other, s));
    assert_eq!(c.digest(), other.digest());
    for cut in [LAST - 5, LAST] {
        c.purge(cut);
        other.purge(cut);
        assert_eq!(c.digest(), other.digest());
    }
    assert_eq!(c.stats().keys, 0);
}

#[test]
fn a_cut_max_length_below_the_present_is_always_safe() {
    let change = |source, row: Seqno, last_seen| {
        Spec::plain(source, last_seen).with(&["d", "t", &row.to_string()], Update)
    };
    let mut kept = Certifier::new(0);
    for s in 1..=MAX_LENGTH + 200 {
        assert!(kept.certify(s, &change(A, s, s - 1).make(s)).passed());
    }
    let mut purged = kept.clone();
    let cut = kept.position() - MAX_LENGTH;
    purged.purge(cut);
    assert_eq!(purged.stats().write_sets, MAX_LENGTH as usize);
    let next = kept.position() + 1;
    let mut passed = 0;
    for last_seen in cut - 3..cut + 4 {
        for row in cut - 3..cut + 4 {
            let ws = change(B, row, last_seen).make(next);
            let a = kept.clone().certify(next, &ws);
            let b = purged.clone().certify(next, &ws);
            assert_eq!((a.passed(), a.conflict()), (b.passed(), b.conflict()));
            passed += usize::from(a.passed());
        }
    }
    assert_eq!(
        passed,
        5 + 6 + 7,
        "all rows at or below last_seen, for three of them"
    );
}

#[test]
fn a_write_set_that_saw_less_than_the_cut_fails() {
    let mut c = Cluster::new();
    c.depends(row(A, 1, Update));
    c.depends(Spec::plain(A, 1).with(&["x"], Update));
    c.0.purge(2);
    assert!(matches!(
        c.run(row(B, 1, Update)),
        Verdict::Failed {
            reason: FailReason::TooOld {
                last_seen: 1,
                floor: 2
            }
        }
    ));
    assert_eq!(c.depends(row(B, 2, Update)), 2);
}

#[test]
fn a_whole_table_conflicts_with_rows_it_has_not_seen() {
    // By the matrix alone the row's SHARED prefix would let it pass: the row's
    // change would be overwritten.
    let mut c = Cluster::new();
    c.depends(row(A, 1, Update));
    assert_eq!(c.collides(whole_table(B, 1)), 2);
    assert_eq!(c.depends(whole_table(B, 2)), 2);
    // And rows with a whole table they have not seen.
    assert_eq!(c.collides(row(A, 3, Update)), 4);
    assert_eq!(c.depends(row(A, 4, Update)), 4);
    // Own rows it depends on; other tables it leaves alone.
    assert_eq!(c.depends(whole_table(A, 4)), 6);
    assert_eq!(
        c.depends(Spec::plain(B, 1).with(&["d", "u", "1"], Update)),
        0
    );
}

#[test]
fn a_whole_table_sees_past_its_own_sources_rows() {
    let mut c = Cluster::new();
    c.depends(row(A, 1, Update));
    c.depends(Spec::plain(B, 2).with(&["d", "t", "elsewhere"], Update));
    assert_eq!(c.collides(whole_table(B, 1)), 2);
    // The same the other way round: whole tables of two sources, then a row.
    let mut c = Cluster::new();
    c.depends(whole_table(A, 1));
    c.depends(whole_table(B, 2));
    assert_eq!(c.collides(row(B, 1, Update)), 2);
}

#[test]
fn a_conflict_names_both_sides() {
    let mut c = Cluster::new();
    c.depends(row(A, 1, Exclusive));
    let verdict = c.run(row(B, 1, Update));
    let conflict = verdict.conflict().expect("a conflict").clone();
    assert_eq!(
        (conflict.table.as_str(), conflict.key.as_str()),
        ("d.t", "row")
    );
    assert_eq!((conflict.new_type, conflict.held_type), (Update, Exclusive));
    assert_eq!(
        (conflict.seqno, conflict.trx_id, conflict.conn_id),
        (2, 1002, 2002)
    );
    assert_eq!(conflict.source, Spec::plain(A, 0).source());
    assert_eq!(
        conflict.to_string(),
        "UPDATE on d.t key row meets EXCLUSIVE of write set 2 from node \
         02020202-0202-0202-0202-020202020202, transaction 1002, connection 2002"
    );
    c.depends(Spec::plain(A, 0).with(&["d", "t"], Exclusive).flags(TOI));
    let verdict = c.run(whole_table(B, 3));
    let text = verdict.conflict().expect("a conflict").to_string();
    assert!(
        text.starts_with("EXCLUSIVE on d.t (whole table) meets EXCLUSIVE of write set 4 (TOI)"),
        "{text}"
    );
}

#[test]
fn plain_flags_are_the_recorded_ones() {
    assert_eq!(PLAIN, Flags::TRX_START | Flags::TRX_END);
    assert_eq!(TOI, PLAIN | Flags::ISOLATION);
    assert_eq!(PA_UNSAFE, PLAIN | Flags::PA_UNSAFE);
    assert_eq!(ROLLBACK, Flags::ROLLBACK | Flags::PA_UNSAFE);
    assert_eq!(IMPLICIT, PLAIN | Flags::IMPLICIT_DEPS);
}

#[test]
#[should_panic(expected = "a hole or a repetition in the total order")]
fn a_hole_in_the_order_stops_the_node() {
    let mut c = Certifier::new(0);
    c.skip(2);
}

#[test]
#[should_panic(expected = "a hole or a repetition in the total order")]
fn a_repeated_seqno_stops_the_node() {
    let mut c = Certifier::new(0);
    c.view(1);
    c.view(1);
}

/// A write set at the next seqno that is applied in chunks from there on.
fn open(c: &mut Cluster, spec: Spec) -> Seqno {
    let seqno = c.0.position() + 1;
    assert!(c.0.certify_open(seqno, &spec.make(seqno), false).passed());
    seqno
}

/// The same, and it closes its tables.
fn open_closing(c: &mut Cluster, spec: Spec) -> Seqno {
    let seqno = c.0.position() + 1;
    assert!(c.0.certify_open(seqno, &spec.make(seqno), true).passed());
    seqno
}

/// One more chunk behind that at `before`: its place, and what it depends on.
fn chunk(c: &mut Cluster, before: Seqno) -> (Seqno, Seqno) {
    let seqno = c.0.position() + 1;
    let depends_on = c.0.chunk_depends_on(before);
    c.0.skip(seqno);
    (seqno, depends_on)
}

#[test]
fn whoever_touches_an_open_write_set_fails_whatever_it_has_seen() {
    for (held, new) in KeyType::ALL
        .into_iter()
        .flat_map(|h| KeyType::ALL.map(|n| (h, n)))
    {
        let mut c = Cluster::new();
        let id = open(&mut c, row(A, 1, held));
        let (last, _) = chunk(&mut c, id);
        let newcomer = row(B, last, new);
        if rule(held, new) == Rule::Free {
            assert_eq!(c.depends(newcomer), id, "{held} {new}");
        } else {
            assert_eq!(c.collides(newcomer), id, "{held} {new}");
        }
        // Row locks of its own node keep A's others away from the row.
        assert!(c.depends(row(A, last, new)) >= id);
    }
}

#[test]
fn chunks_follow_their_own_and_what_shares_its_time_with_nothing() {
    let mut c = Cluster::new();
    let id = open(&mut c, row(A, 1, Update));
    let other = Spec::plain(B, id).with(&["d", "u", "row"], Update);
    assert_eq!(c.depends(other), id, "the first is alone");
    let (first, depends_on) = chunk(&mut c, id);
    assert_eq!(depends_on, id, "not on the small one between");
    let other = Spec::plain(B, first).with(&["d", "u", "row2"], Update);
    assert_eq!(c.depends(other), id, "nor the small ones on it");
    assert_eq!(chunk(&mut c, first).1, first);
    let view = c.0.position() + 1;
    c.0.view(view);
    assert_eq!(chunk(&mut c, view - 1).1, view);
}

#[test]
fn an_open_write_set_and_a_whole_table_meet_both_ways() {
    let mut c = Cluster::new();
    let id = open(&mut c, row(A, 1, Update));
    assert_eq!(c.collides(whole_table(B, 2)), id);
    let mut c = Cluster::new();
    let id = open(&mut c, whole_table(A, 1));
    assert_eq!(c.collides(row(B, 2, Shared)), id);
    assert!(c.depends(Spec::plain(B, 2).with(&["d", "u", "row"], Update)) >= id);
}

#[test]
fn a_closed_write_set_counts_from_where_it_commits() {
    let mut c = Cluster::new();
    let id = open(&mut c, row(A, 1, Update));
    let between = c.0.position();
    let end = c.0.position() + 1;
    c.0.close(id, end);
    assert_eq!(c.0.open().count(), 0);
    assert_eq!(
        c.collides(row(B, between, Update)),
        end,
        "it has seen a part"
    );
    assert_eq!(c.depends(row(B, end, Update)), end);
}

/// One of A with three rows, and what B and C touch while it commits.
#[test]
fn of_one_with_very_many_keys_the_tables_count() {
    let many = |seen| {
        row(A, seen, Update)
            .with(&["d", "t", "row2"], Update)
            .with(&["d", "parent", "row"], Reference)
    };
    let on = |source, seen, table, t| {
        let other = if source == A { "mine" } else { "theirs" };
        Spec::plain(source, seen).with(&["d", table, other], t)
    };
    for in_chunks in [false, true] {
        let mut c = Cluster::new();
        c.0.set_listed_max(2);
        let before = c.0.stats().keys;
        let end = match in_chunks {
            false => {
                c.depends(many(1));
                c.0.position()
            }
            true => {
                let id = open(&mut c, many(1));
                // Until its end its rows alone.
                assert!(c.depends(on(B, id, "t", Update)) >= id);
                assert_eq!(c.collides(row(B, id, Update)), id);
                let end = c.0.position() + 1;
                c.0.close(id, end);
                end
            }
        };
        let keys = c.0.stats().keys - before;
        assert_eq!(
            keys,
            3 + usize::from(in_chunks),
            "the database and two tables"
        );
        // Nobody knows any more which rows it were.
        for table in ["t", "parent"] {
            for key_type in KeyType::ALL {
                assert_eq!(c.collides(on(B, end - 1, table, key_type)), end);
                assert!(c.depends(on(A, end - 1, table, key_type)) >= end);
                assert!(c.depends(on(B, end, table, key_type)) >= end);
            }
        }
        assert_eq!(c.collides(whole_table(B, end - 1)), end);
        // Others have nothing to do with it.
        c.depends(on(B, 1, "other", Exclusive));
    }
    let mut c = Cluster::new();
    c.0.set_listed_max(3);
    c.depends(many(1));
    c.depends(on(B, 1, "t", Update));
}

#[test]
fn a_dropped_write_set_leaves_no_trace() {
    let mut c = Cluster::new();
    let id = open(&mut c, row(A, 1, Exclusive));
    let keys = c.0.stats().keys;
    let gone = c.0.position() + 1;
    c.0.drop_open(id, gone);
    assert!(c.0.stats().keys < keys);
    assert_eq!(
        c.depends(row(B, 1, Exclusive)),
        gone,
        "but after its rollback"
    );
}

#[test]
fn nobody_changes_anything_in_a_closed_table() {
    let other =
        |source, seen, key_type| Spec::plain(source, seen).with(&["d", "t", "other"], key_type);
    let mut c = Cluster::new();
    // It only looks at u.
    let large = row(A, 1, Exclusive).with(&["d", "u", "parent"], Reference);
    let id = open_closing(&mut c, large);
    assert_eq!(c.0.closes(id).len(), 1);
    for source in [A, B] {
        for key_type in [Update, Exclusive] {
            assert_eq!(c.collides(other(source, id, key_type)), id, "{source:?}");
        }
        for key_type in [Shared, Reference] {
            assert!(c.depends(other(source, id, key_type)) >= id);
        }
        assert_eq!(c.collides(whole_table(source, id)), id);
        // An end brings what its fragments changed where they were set aside.
        let part = |flags, table| {
            let spec = Spec::plain(source, id).with(&["d", table], Shared);
            Spec {
                prev_fragment: id,
                ..spec
            }
            .flags(flags)
        };
        let ends = Flags::TRX_END | Flags::PA_UNSAFE;
        assert_eq!(c.collides(part(ends, "t")), id);
        assert!(c.depends(part(ends, "u")) >= id);
        assert!(c.depends(part(Flags::NONE, "t")) >= id);
        // What one looks at is not closed.
        let name = if source == A { "a" } else { "b" };
        let neighbour = Spec::plain(source, id).with(&["d", "u", name], Exclusive);
        assert!(c.depends(neighbour) >= id);
    }
    // Nobody opens another one there.
    let next = c.0.position() + 1;
    let second = other(A, id, Exclusive).make(next);
    assert!(!c.0.certify_open(next, &second, true).passed());
    let end = c.0.position() + 1;
    c.0.close(id, end);
    assert_eq!(c.depends(other(B, 1, Exclusive)), end, "its rows are free");
    // A rolled back one opens its tables too.
    let id = open_closing(&mut c, row(A, end, Exclusive));
    assert_eq!(c.collides(other(B, id, Exclusive)), id);
    let gone = c.0.position() + 1;
    c.0.drop_open(id, gone);
    assert_eq!(c.depends(other(B, 1, Exclusive)), gone);
    // One that does not close its table leaves the rest of it to others.
    let id = open(&mut c, row(A, gone, Exclusive));
    assert!(c.depends(other(A, id, Exclusive)) >= id);
}

#[test]
fn what_is_too_late_does_not_open() {
    let mut c = Cluster::new();
    c.depends(row(B, 1, Update));
    let late = row(A, 1, Update).make(3);
    assert!(!c.0.certify_open(3, &late, true).passed());
    assert_eq!(c.0.open().count(), 0);
}

#[test]
fn ddl_finds_the_open_write_sets_on_its_table() {
    let mut c = Cluster::new();
    let one = open(&mut c, row(A, 1, Update));
    let other = open(&mut c, Spec::plain(A, 1).with(&["d", "u", "row"], Update));
    let both = open(&mut c, row(A, 1, Shared).with(&["d", "u", "row2"], Shared));
    let mut met = |keys: &[&[&str]]| {
        let spec = keys
            .iter()
            .fold(Spec::plain(A, 1), |s, k| s.with(k, Exclusive));
        c.0.open_met_by(&spec.flags(TOI).make(9))
    };
    assert_eq!(met(&[&["d", "t"]]), [one, both]);
    assert_eq!(met(&[&["d", "u"]]), [other, both]);
    assert_eq!(met(&[&["d"]]), [one, other, both]);
    assert_eq!(met(&[&["d", "v"]]), [] as [Seqno; 0]);
    assert_eq!(met(&[&["e"]]), [] as [Seqno; 0]);
}
