//! The certifier against the model, and the proof that the comparison bites.

use dromon_certify::{Certifier, Rule, rule};
use dromon_writeset::{KeyType, Seqno};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

use crate::model::{Fault, Model, NaiveVerdict, Reading, agree};
use crate::traffic::{Placed, events, listed_max, make_cuts_safe, place};

const START: Seqno = 5;

/// A certifier that keeps the tables of write sets with more keys than `keys`.
fn listing(start: Seqno, keys: usize) -> Certifier {
    let mut c = Certifier::new(start);
    c.set_listed_max(keys);
    c
}

/// Runs one order through both; the first difference is the error.
fn compare(order: &[Placed], listed: usize, fault: Fault) -> Result<(), TestCaseError> {
    let mut real = listing(START, listed);
    let mut model = Model::new(START, Reading::Contract, fault).listing(listed);
    for placed in order {
        match placed {
            Placed::WriteSet(seqno, spec) => {
                let verdict = real.certify(*seqno, &spec.make(*seqno));
                let naive = model.certify(*seqno, spec);
                agree(&verdict, &naive)
                    .map_err(|e| TestCaseError::fail(format!("at {seqno}, {spec:?}: {e}")))?;
            }
            Placed::View(seqno) => {
                real.view(*seqno);
                model.view(*seqno);
            }
            Placed::Skip(seqno) => {
                real.skip(*seqno);
                model.skip(*seqno);
            }
            Placed::Cut(cut) => {
                real.purge(*cut);
                model.cut(*cut);
            }
        }
    }
    Ok(())
}

/// `last_seen` as row locks force it on a sane origin: a source that takes a
/// row it held itself has seen everything before that.
fn raise_by_row_locks(order: &mut [Placed], verdict: impl Fn(Seqno) -> bool, upto: usize) {
    let (before, rest) = order.split_at_mut(upto);
    let Some(Placed::WriteSet(_, spec)) = rest.first_mut() else {
        return;
    };
    let new = spec.expanded();
    for placed in before.iter() {
        let Placed::WriteSet(seqno, earlier) = placed else {
            continue;
        };
        if earlier.source != spec.source || !verdict(*seqno) {
            continue;
        }
        let locked = earlier.expanded().iter().any(|held| {
            let same = |n: &&crate::traffic::NaiveKey| n.path == held.path;
            matches!(held.key_type, KeyType::Reference | KeyType::Update)
                && new
                    .iter()
                    .filter(same)
                    .any(|n| n.whole_table || rule(held.key_type, n.key_type) == Rule::Conflict)
        });
        if locked {
            spec.last_seen = spec.last_seen.max(*seqno);
        }
    }
}

proptest! {
    #![proptest_config(Config::with_cases(1500))]

    /// Verdicts, reasons and dependencies equal the contract's, on any traffic
    /// and with cuts anywhere.
    #[test]
    fn agrees_with_the_contract(events in events(90), listed in listed_max()) {
        compare(&place(events, START), listed, Fault::None)?;
    }

    /// On traffic that row locks allow, comparing every pair of write sets in
    /// the whole history gives the same verdicts: keeping only the last
    /// reference per type loses no conflict.
    #[test]
    fn loses_no_conflict_of_any_pair(events in events(90), listed in listed_max()) {
        let mut order = place(events, 0);
        let mut real = listing(0, listed);
        let mut model = Model::new(0, Reading::EveryPair, Fault::None).listing(listed);
        let mut passed = std::collections::BTreeSet::new();
        for i in 0..order.len() {
            raise_by_row_locks(&mut order, |s| passed.contains(&s), i);
            match &order[i] {
                Placed::WriteSet(seqno, spec) => {
                    let verdict = real.certify(*seqno, &spec.make(*seqno));
                    let naive = model.certify(*seqno, spec);
                    if verdict.passed() {
                        passed.insert(*seqno);
                    }
                    if let NaiveVerdict::Passed { by_key, .. } = naive {
                        prop_assert!(verdict.passed(), "at {seqno}: {verdict:?}");
                        prop_assert!(verdict.depends_on() >= by_key);
                        prop_assert!(verdict.depends_on() < *seqno);
                    } else {
                        prop_assert!(!verdict.passed(), "at {}: {:?}", seqno, naive);
                    }
                }
                Placed::View(seqno) => { real.view(*seqno); model.view(*seqno); }
                Placed::Skip(seqno) => { real.skip(*seqno); model.skip(*seqno); }
                Placed::Cut(_) => {}
            }
        }
    }

    /// Whoever fails beside rows fails beside their tables: where only one of two certifiers lists all
    /// rows, and both hold the same write sets, the other one is never the milder.
    #[test]
    fn tables_are_never_milder_than_their_rows(events in events(90), listed in 0usize..12) {
        let (mut rows, mut tables) = (Certifier::new(0), listing(0, listed));
        for placed in place(events, 0) {
            match placed {
                Placed::WriteSet(seqno, spec) => {
                    let ws = spec.make(seqno);
                    let (a, b) = (rows.certify(seqno, &ws), tables.certify(seqno, &ws));
                    if b.passed() {
                        prop_assert!(a.passed(), "at {seqno}: {a:?}");
                        prop_assert!(a.depends_on() <= b.depends_on());
                    } else {
                        // From here on they would hold different ones.
                        if a.passed() {
                            break;
                        }
                    }
                }
                Placed::View(seqno) => { rows.view(seqno); tables.view(seqno); }
                Placed::Skip(seqno) => { rows.skip(seqno); tables.skip(seqno); }
                Placed::Cut(cut) => { rows.purge(cut); tables.purge(cut); }
            }
        }
    }

    /// A cut at or below every `last_seen` in flight changes no verdict, and
    /// dependencies only upwards, never to the own seqno.
    #[test]
    fn purging_changes_no_verdict(events in events(120), listed in listed_max()) {
        let mut order = place(events, START);
        make_cuts_safe(&mut order);
        let mut purged = listing(START, listed);
        let mut kept = listing(START, listed);
        for placed in &order {
            match placed {
                Placed::WriteSet(seqno, spec) => {
                    let ws = spec.make(*seqno);
                    let (a, b) = (purged.certify(*seqno, &ws), kept.certify(*seqno, &ws));
                    if b.passed() {
                        prop_assert!(a.passed(), "at {seqno}: {a:?}");
                        prop_assert!(b.depends_on() <= a.depends_on());
                        prop_assert!(a.depends_on() < *seqno);
                    } else {
                        // The same conflict, to the last field of its line.
                        prop_assert_eq!(a, b);
                    }
                }
                Placed::View(seqno) => { purged.view(*seqno); kept.view(*seqno); }
                Placed::Skip(seqno) => { purged.skip(*seqno); kept.skip(*seqno); }
                Placed::Cut(cut) => {
                    purged.purge(*cut);
                    let stats = purged.stats();
                    prop_assert!(stats.interval <= purged.position().abs_diff(purged.floor()));
                }
            }
        }
    }
}

/// Whether the comparison notices a mistake in the model.
fn notices(fault: Fault) -> bool {
    let config = Config {
        cases: 4000,
        failure_persistence: None,
        max_shrink_iters: 0,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    );
    let compared = runner.run(&(events(90), listed_max()), |(events, listed)| {
        compare(&place(events, START), listed, fault)
    });
    match compared {
        Ok(()) => false,
        Err(TestError::Fail(..)) => true,
        Err(TestError::Abort(why)) => panic!("the runner gave up: {why}"),
    }
}

#[test]
fn the_comparison_notices_each_wrong_rule() {
    for fault in [
        Fault::FailedIsInstalled,
        Fault::LastSeenIsUnseen,
        Fault::OwnToiIsForgiven,
        Fault::OwnSourceConflicts,
        Fault::NoPrefixes,
        Fault::WholeTableIsOrdinary,
        Fault::ViewsAreOvertaken,
        Fault::FailedPaUnsafeCounts,
        Fault::FragmentsAreFree,
        Fault::RollbackIsFree,
        Fault::CutIsIgnored,
        Fault::EndsPassDdl,
        Fault::AllRowsAreKept,
        Fault::ManyRowsAreLost,
        Fault::ToiRowsAreTables,
    ] {
        assert!(notices(fault), "{fault:?} went unnoticed");
    }
}

#[test]
fn the_comparison_notices_each_wrong_cell() {
    for held in KeyType::ALL {
        for new in KeyType::ALL {
            for other in [Rule::Free, Rule::Depend, Rule::Conflict] {
                let fault = Fault::Cell(held, new, other);
                assert!(
                    other == rule(held, new) || notices(fault),
                    "{fault:?} went unnoticed"
                );
            }
        }
    }
}
