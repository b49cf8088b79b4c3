//! The history and what is made of it, against a model that keeps everything.

use proptest::collection::vec;
use proptest::prelude::*;

use super::keys::{Added, KeyCollector, Modes, Touch};
use super::*;

const MODES: [Modes; 4] = [
    Modes::WRITE,
    Modes::READ,
    Modes::BELOW_WRITE,
    Modes::BELOW_READ,
];

/// Which touches of one thing exclude each other, written out.
const EXCLUDES: [[bool; 4]; 4] = [
    // write, read, below written, below read
    [true, true, true, true],
    [true, false, true, false],
    [true, true, false, false],
    [true, false, false, false],
];

/// Any group.
const GROUP: Group = Group {
    name: GroupName::Nameless,
    flags: 0,
    commit_id: None,
    timestamp: 0,
    begin: 0,
    end: 0,
    events: 1,
};

/// A transaction of the model: things, each with some of four modes; or a barrier.
type Model = Option<Vec<(u64, Vec<usize>)>>;

fn conflict(a: &Model, b: &Model) -> bool {
    let (Some(a), Some(b)) = (a, b) else {
        return true;
    };
    a.iter().any(|(node, modes)| {
        b.iter().any(|(other, others)| {
            node == other
                && modes
                    .iter()
                    .any(|m| others.iter().any(|o| EXCLUDES[*m][*o]))
        })
    })
}

fn write_set(model: &Model) -> WriteSet {
    let Some(things) = model else {
        return WriteSet(Err(Barrier::Statement));
    };
    let mut keys = KeyCollector::new(usize::MAX, usize::MAX);
    for (node, modes) in things {
        for mode in modes {
            keys.touch(Touch::new(*node, MODES[*mode]));
        }
    }
    keys.finish()
}

fn model() -> impl Strategy<Value = Model> {
    let modes = vec(0usize..4, 1..3);
    prop_oneof![
        12 => vec((0u64..12, modes), 0..5).prop_map(Some),
        1 => Just(None),
    ]
}

proptest! {
    /// The answer is the newest transaction in conflict; with too little room
    /// it may be newer, never older, and only as far as was forgotten.
    #[test]
    fn history(models in vec(model(), 0..60), capacity in 0usize..30, room: bool) {
        let capacity = if room { 10_000 } else { capacity };
        let mut history = History::new(capacity);
        for (n, model) in models.iter().enumerate() {
            let set = write_set(model);
            let number = n as u64 + 1;
            let exact = models[..n].iter().rposition(|m| conflict(m, model)).map_or(0, |m| m as u64 + 1);
            let floor = history.floor();
            let asked = history.last_before(&set);
            let placed = history.take(&set);
            prop_assert_eq!(asked, placed.after);
            prop_assert_eq!(placed.number, number);
            prop_assert_eq!(history.last(), number);
            prop_assert!(placed.after < number);
            prop_assert_eq!(placed.after, exact.max(floor));
            prop_assert!(history.len() <= capacity);
            prop_assert!(history.floor() >= floor && history.floor() <= number);
            if room {
                // Nothing is forgotten but what lies before a barrier.
                let barrier = models[..=n].iter().rposition(|m| m.is_none()).map_or(0, |m| m as u64 + 1);
                prop_assert_eq!(history.floor(), barrier);
            }
            for earlier in &models[..n] {
                let earlier_set = write_set(earlier);
                prop_assert_eq!(earlier_set.conflicts_with(&set), conflict(earlier, model));
                prop_assert_eq!(set.conflicts_with(&earlier_set), conflict(earlier, model));
            }
        }
    }

    /// Never two in one batch that conflict, whatever the limits.
    #[test]
    fn batches(
        models in vec((model(), 0u64..4), 0..60), capacity in prop_oneof![0usize..20, Just(10_000)], max in 1usize..6
    ) {
        let mut history = History::new(capacity);
        let mut batches = Batches::new(max);
        let mut seqno = 0;
        let mut ids = Vec::new();
        for (model, step) in &models {
            // Other servers of the domain may have the same number.
            seqno += *step;
            let set = write_set(model);
            let placed = history.take(&set);
            let id = batches.take(placed, &set, seqno);
            prop_assert!(model.is_some() || id.is_none());
            prop_assert_ne!(id, Some(0));
            ids.push(id);
        }
        // Nobody knows what was served before.
        prop_assert!(ids.first().is_none_or(|id| id.is_none()));
        // As a replica sees it: neighbours with the same commit id.
        let mut begin = 0;
        for n in 0..ids.len() {
            if n > 0 && (ids[n].is_none() || ids[n] != ids[n - 1]) {
                begin = n;
            }
            prop_assert!(n - begin < max);
            for m in begin..n {
                prop_assert!(!conflict(&models[m].0, &models[n].0), "{m} and {n} of {ids:?}");
            }
        }
    }

    /// Without limits a batch ends only where it must.
    #[test]
    fn batches_are_as_long_as_they_can_be(models in vec(model(), 0..60)) {
        let mut history = History::new(10_000);
        let mut batches = Batches::new(usize::MAX);
        let mut begin = 0;
        let mut before = None;
        for (n, model) in models.iter().enumerate() {
            let set = write_set(model);
            let placed = history.take(&set);
            let id = batches.take(placed, &set, n as u64 + 1);
            let joined = n > 0 && id.is_some() && id == before;
            let may = before.is_some() && models[begin..n].iter().all(|m| !conflict(m, model));
            prop_assert_eq!(joined, may, "{}", n);
            if !joined {
                begin = n;
            }
            before = id;
        }
    }

    /// MySQL's numbers, with new files now and then: whoever runs when those up
    /// to its last committed one are done runs beside none that conflicts.
    #[test]
    fn clocks(models in vec((model(), 0usize..8), 0..60), capacity in prop_oneof![0usize..20, Just(10_000)]) {
        let mut history = History::new(capacity);
        let mut file = FileClock::default();
        let mut begin = 0;
        for (n, (model, new_file)) in models.iter().enumerate() {
            if *new_file == 0 {
                file = FileClock::begin_file(history.last());
                begin = n;
            }
            let clock = file.clock(history.take(&write_set(model)));
            prop_assert_eq!(clock.sequence_number, (n - begin) as i64 + 1);
            prop_assert!((0..clock.sequence_number).contains(&clock.last_committed));
            prop_assert_eq!(clock.last_committed == 0, clock.sequence_number == 1);
            for (beside, _) in &models[begin + clock.last_committed as usize..n] {
                prop_assert!(!conflict(beside, model));
            }
        }
    }

    /// What a replica is told in the end, its primary's numbers among those of
    /// hints, some of which were lost: with files that begin anew, numbers that
    /// are missing, and hints that begin anew in the middle of a file, none runs
    /// beside one that conflicts. A naive replica runs all beside a transaction
    /// that stand behind its last committed one.
    #[test]
    fn told(
        plans in vec((model(), 0usize..16, 0u8..4, any::<u64>(), prop::bool::weighted(0.2)), 0..60),
        capacity in prop_oneof![0usize..20, Just(10_000)]
    ) {
        let limits = Limits { history_keys: capacity, ..Limits::default() };
        let mut hints = Hints::new(limits);
        // Of this file: sequence numbers and what they touch.
        let mut file: Vec<(i64, Model)> = Vec::new();
        let mut sequence = 0;
        let mut whole = true;
        for (model, event, style, seed, lost) in plans {
            match event {
                0 => {
                    hints.begin_file();
                    file.clear();
                    (sequence, whole) = (0, true);
                }
                1 => (hints, whole) = (Hints::new(limits), sequence == 0),
                2 => (sequence, whole) = (sequence + 1, false),
                _ => {}
            }
            sequence += 1;
            let conflicts = file.iter().rev().find(|(_, m)| conflict(m, &model));
            let newest = conflicts.map_or(0, |(at, _)| *at);
            let own = LogicalClock {
                sequence_number: sequence,
                last_committed: match style {
                    _ if sequence == 1 => 0,
                    0 => 0,
                    1 => sequence - 1,
                    // It knows as much, or less.
                    2 => newest.max(1),
                    _ => newest.max(1) + (seed % (sequence - newest.max(1)) as u64) as i64,
                },
            };
            let hint = hints.place(GROUP, (0, 0), write_set(&model), Some(own)).clock;
            let clock = match hint.filter(|_| !lost) {
                Some(hint) => own.hinted(hint),
                None => own,
            };
            prop_assert_eq!(clock.sequence_number, sequence);
            prop_assert!((0..sequence).contains(&clock.last_committed));
            prop_assert!(own.last_committed == 0 || clock.last_committed <= own.last_committed);
            if clock.last_committed > 0 {
                for (at, beside) in file.iter().filter(|(at, _)| *at > clock.last_committed) {
                    prop_assert!(!conflict(beside, &model), "{at} beside {clock:?}");
                }
            }
            // Nothing is given away that could be known.
            if whole && !lost && capacity == 10_000 && sequence > 1 {
                prop_assert_eq!(clock.last_committed, newest.max(1));
            }
            file.push((sequence, model));
        }
    }

    /// Values that are given up for their whole table conflict with all that
    /// they did, and the limits hold.
    #[test]
    fn collector(
        mine in vec((0u64..3, 0u64..2, 0u64..6, any::<bool>()), 0..20),
        theirs in vec((0u64..3, 0u64..2, 0u64..6, any::<bool>()), 0..3),
        table_max in 0usize..6, max in 1usize..40
    ) {
        let collect = |values: &[(u64, u64, u64, bool)], table_max, max| {
            let mut keys = KeyCollector::new(table_max, max);
            for (table, index, value, write) in values {
                let (t, i) = (100 + table, 200 + table * 10 + index);
                let v = 1000 + i * 10 + value;
                if keys.value(t, i, v, *write) == Added::Many {
                    match write {
                        true => keys.all_written(t),
                        false => keys.all_read(t),
                    }
                }
            }
            keys.finish()
        };
        let all = collect(&mine, usize::MAX, usize::MAX);
        let some = collect(&mine, table_max, max);
        prop_assert!(some.len() <= max);
        // Three tables, two indexes each, and the values.
        prop_assert!(some.len() <= 9 + 3 * table_max);
        let other = collect(&theirs, usize::MAX, usize::MAX);
        prop_assert!(!all.conflicts_with(&other) || some.conflicts_with(&other));
        let naive = mine.iter().any(|a| theirs.iter().any(|b| {
            (a.0, a.1, a.2) == (b.0, b.1, b.2) && (a.3 || b.3)
        }));
        prop_assert_eq!(all.conflicts_with(&other), naive);
    }
}

#[test]
fn a_history_ages() {
    let of = |node| write_set(&Some(vec![(node, vec![0])]));
    let mut history = History::new(3);
    for node in 1..=3 {
        assert_eq!(history.take(&of(node)).after, 0);
    }
    // The fourth pushes out the first alone.
    assert_eq!(history.take(&of(4)).after, 0);
    assert_eq!((history.floor(), history.len()), (1, 3));
    assert_eq!(history.take(&of(3)).after, 3);
    // What is not known of counts as in conflict up to there.
    assert_eq!(history.take(&of(9)).after, 2);
    // One that has no room at all is a barrier for those to come.
    let large = write_set(&Some((0..4).map(|n| (n + 50, vec![0])).collect()));
    let placed = history.take(&large);
    assert_eq!((placed.number, placed.after), (7, 3));
    assert_eq!((history.floor(), history.len()), (7, 0));
    assert_eq!(history.take(&of(1)).after, 7);
}

#[test]
fn neighbours_are_not_called_alike() {
    let mut history = History::new(100);
    let mut batches = Batches::new(10);
    let mut take = |node, seqno| {
        let set = write_set(&Some(vec![(node, vec![0])]));
        batches.take(history.take(&set), &set, seqno)
    };
    assert_eq!(take(1, 100), None);
    assert_eq!(take(1, 101), Some(101));
    assert_eq!(take(2, 102), Some(101));
    // Another server of the domain has the same number.
    assert_eq!(take(1, 101), None);
    assert_eq!(take(1, 101), Some(101));
}

#[test]
fn a_hint_beside_the_primarys_numbers() {
    let clock = |(last_committed, sequence_number)| LogicalClock {
        last_committed,
        sequence_number,
    };
    for (own, hint, expected) in [
        ((7, 9), (3, 9), (3, 9)),
        ((3, 9), (7, 9), (3, 9)),
        // The primary says nothing.
        ((0, 9), (8, 9), (8, 9)),
        ((0, 9), (1, 9), (1, 9)),
        // No hint of this one.
        ((7, 9), (3, 8), (7, 9)),
        ((7, 9), (0, 9), (7, 9)),
        ((7, 9), (-1, 9), (7, 9)),
        ((0, 9), (9, 9), (0, 9)),
        ((0, 1), (0, 1), (0, 1)),
        ((0, 1), (1, 1), (0, 1)),
        // It has no numbers, or none that make sense.
        ((0, 0), (1, 0), (0, 0)),
        ((9, 9), (3, 9), (9, 9)),
        ((-4, 9), (3, 9), (-4, 9)),
    ] {
        assert_eq!(clock(own).hinted(clock(hint)), clock(expected), "{own:?}");
    }
    for (of, beside) in [
        ((1, 3), true),
        ((2, 3), false),
        ((0, 3), false),
        ((0, 1), false),
    ] {
        assert_eq!(clock(of).beside_the_last(), beside, "{of:?}");
    }
}
