//! Random transactions in a small database, their events through [`Hints`],
//! and the answers tried: whatever the hints allow must give the same rows.

use dromon_binlog::LogicalClock;
use dromon_binlog::hints::{Hint, KeyPart, Limits, TableSchema};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::stream::{
    Change, ORDINARY, Row, Stream, Val, batches, column, delete, insert, table, update, whole,
};
use crate::toy::{Design, Does, Link, Toy};

const TABLES: usize = 9;

/// Collations that compare in different ways.
const COLLATIONS: [&str; 3] = ["utf8mb4_unicode_ci", "utf8mb4_bin", "utf8mb4_lithuanian_ci"];

fn tables(collations: &[usize]) -> Vec<TableSchema> {
    let number = |name| column(name, "int(11)", None);
    let text = |name, which: usize| {
        let collation = COLLATIONS[collations[which] % COLLATIONS.len()];
        column(name, "varchar(50)", Some(collation))
    };
    let prefix = |name: &str| KeyPart {
        prefix: 2,
        ..whole(name)
    };
    let id = || vec![whole("id")];
    vec![
        table(
            "p",
            vec![number("id"), text("u", 0), number("r"), number("v")],
            vec![id(), vec![whole("u")]],
        ),
        table(
            "c",
            vec![number("id"), number("pid"), number("pr"), number("w")],
            vec![id(), vec![whole("w")]],
        ),
        table(
            "g",
            vec![number("a"), number("b"), number("cid"), number("cw")],
            vec![vec![whole("a"), whole("b")]],
        ),
        table("k", vec![number("x"), number("y")], vec![]),
        table("n", vec![number("q"), number("v")], vec![vec![whole("q")]]),
        table(
            "t",
            vec![number("id"), text("txt", 1)],
            vec![id(), vec![prefix("txt")]],
        ),
        table(
            "s",
            vec![text("code", 2), number("v")],
            vec![vec![whole("code")]],
        ),
        table("d", vec![number("id"), text("code", 2)], vec![id()]),
        table("tree", vec![number("id"), number("up")], vec![id()]),
    ]
}

fn links(does: &[(Does, Does)]) -> Vec<Link> {
    let all = [
        (1, 1, 0, 0),
        (1, 2, 0, 2),
        (2, 2, 1, 0),
        (2, 3, 1, 3),
        (3, 1, 0, 0),
        (7, 1, 6, 0),
        (8, 1, 8, 0),
    ];
    let link = |((child, column, parent, parent_column), does): (_, &(Does, Does))| Link {
        child,
        columns: vec![column],
        parent,
        parent_columns: vec![parent_column],
        on_delete: does.0,
        on_update: does.1,
    };
    all.into_iter().zip(does).map(link).collect()
}

fn does() -> impl Strategy<Value = Does> {
    prop_oneof![Just(Does::Refuse), Just(Does::Cascade), Just(Does::SetNull)]
}

fn design() -> impl Strategy<Value = Design> {
    (vec(0usize..3, 3), vec((does(), does()), 7))
        .prop_map(|(collations, does)| Design::new(tables(&collations), links(&does)))
}

/// What a client wants; what comes of it depends on the rows there are.
#[derive(Clone, Debug)]
struct Wish {
    kind: u8,
    table: usize,
    row: usize,
    values: Vec<u8>,
    /// Columns to change.
    which: u8,
}

fn wish() -> impl Strategy<Value = Wish> {
    (
        0u8..8,
        0..TABLES,
        any::<usize>(),
        vec(any::<u8>(), 4),
        any::<u8>(),
    )
        .prop_map(|(kind, table, row, values, which)| Wish {
            kind,
            table,
            row,
            values,
            which,
        })
}

const TEXTS: [&str; 12] = [
    "a", "A", "a ", "b", "ss", "ß", "e", "é", "", "y\u{1}", "i", "abc",
];

/// A value for a column; small ones, so that they meet.
fn value(schema: &TableSchema, n: usize, seed: u8) -> Val {
    let named = schema.unique.first().is_some_and(|key| {
        key.iter()
            .any(|part| part.column.as_deref() == Some(&schema.columns[n].name))
    });
    // A primary key is never NULL; only that of `n` is none.
    if seed % 5 == 4 && !(named && schema.name.table != "n") {
        return Val::Null;
    }
    match schema.columns[n].collation {
        Some(_) => Val::Text(TEXTS[usize::from(seed / 5) % TEXTS.len()].into()),
        None => Val::Int(i32::from(seed / 5 % 6)),
    }
}

/// The change that a wish comes to, if there is a row for it.
fn change(toy: &Toy<'_>, schemas: &[TableSchema], wish: &Wish) -> Option<Change> {
    let schema = &schemas[wish.table];
    let fresh = || -> Row {
        (0..schema.columns.len())
            .map(|n| value(schema, n, wish.values[n]))
            .collect()
    };
    let rows = &toy.rows[wish.table];
    let old = || (!rows.is_empty()).then(|| rows[wish.row % rows.len()].clone());
    match wish.kind {
        0..=3 => Some(insert(wish.table, fresh())),
        4..=5 => {
            let before = old()?;
            let wanted = fresh();
            let after = before
                .iter()
                .zip(wanted)
                .enumerate()
                .map(|(n, (old, new))| match wish.which >> n & 1 {
                    0 => old.clone(),
                    _ => new,
                })
                .collect();
            Some(update(wish.table, before, after))
        }
        _ => Some(delete(wish.table, old()?)),
    }
}

/// A transaction: its wishes, and how it is written.
#[derive(Clone, Debug)]
struct Plan {
    wishes: Vec<Wish>,
    style: u8,
    mask: u8,
}

fn plan() -> impl Strategy<Value = Plan> {
    (vec(wish(), 1..4), any::<u8>(), any::<u8>()).prop_map(|(wishes, style, mask)| Plan {
        wishes,
        style,
        mask,
    })
}

fn limits() -> impl Strategy<Value = Limits> {
    let some = |list: &[usize]| prop::sample::select(list.to_vec());
    (
        some(&[1, 2, 1000]),
        some(&[8, 1000]),
        some(&[0, 12, 40, 10_000]),
        some(&[2, 4, 32]),
        some(&[2, 4096]),
    )
        .prop_map(
            |(table_keys, transaction_keys, history_keys, batch, tables)| Limits {
                table_keys,
                transaction_keys,
                history_keys,
                batch,
                tables,
                ..Limits::default()
            },
        )
}

/// What was done, what the hints said, and the rows before each.
struct Run<'d> {
    done: Vec<Vec<Change>>,
    hints: Vec<Hint>,
    before: Vec<Toy<'d>>,
    after: Toy<'d>,
}

fn run<'d>(design: &'d Design, plans: &[Plan], limits: Limits) -> Run<'d> {
    let stream = Stream::new(design.tables.clone(), limits);
    run_in(stream, design, plans)
}

fn run_in<'d>(mut stream: Stream, design: &'d Design, plans: &[Plan]) -> Run<'d> {
    let mut toy = Toy::new(design);
    stream.hints.learn(design.catalog());
    let (mut all, mut hints, mut before) = (Vec::new(), Vec::new(), Vec::new());
    for plan in plans {
        before.push(toy.clone());
        let mut done = Vec::new();
        for wish in &plan.wishes {
            if let Some(change) = change(&toy, &design.tables, wish)
                && toy.apply(&change).is_ok()
            {
                done.push(change);
            }
        }
        let mut events = Vec::new();
        for (n, change) in done.iter().enumerate() {
            // Not every column stands in the rows.
            let width = design.tables[change.table].columns.len();
            let mask: Vec<bool> = (0..width).map(|n| plan.mask >> n & 1 == 1).collect();
            let all = vec![true; width];
            // Or after an update only what it changed.
            let changed: Vec<bool> = match (&change.before, &change.after) {
                (Some(before), Some(after)) => (0..width).map(|n| before[n] != after[n]).collect(),
                _ => all.clone(),
            };
            let present = match plan.style % 8 {
                0 if mask.contains(&true) => [&mask, &mask],
                3 => [&all, &changed],
                _ => [&all, &all],
            };
            events.extend(stream.some_rows(change, present.map(|p| &p[..])));
            if plan.style % 8 == 1 {
                events.push(stream.statement(&format!("SAVEPOINT s{n}")));
            }
        }
        if plan.style % 16 == 2 {
            events.push(stream.statement("update n set v = 1 where false"));
        }
        let begin = stream.begin(ORDINARY);
        hints.push(stream.group(begin, events));
        if plan.style % 16 == 5 {
            hints.push(stream.alone("alter table x add y int"));
            stream.hints.learn(design.catalog());
            before.push(toy.clone());
            all.push(done);
            done = Vec::new();
        }
        all.push(done);
    }
    Run {
        done: all,
        hints,
        before,
        after: toy,
    }
}

/// The changes of several transactions, in an order that keeps that of each,
/// as `picks` say.
fn mixed<'c>(transactions: &[&'c [Change]], picks: &[usize]) -> Vec<&'c Change> {
    let mut left: Vec<&[Change]> = transactions
        .iter()
        .copied()
        .filter(|t| !t.is_empty())
        .collect();
    let mut picks = picks.iter().cycle();
    let mut out = Vec::new();
    while !left.is_empty() {
        let n = picks.next().unwrap() % left.len();
        let (first, rest) = left[n].split_first().unwrap();
        out.push(first);
        left[n] = rest;
        if rest.is_empty() {
            left.remove(n);
        }
    }
    out
}

fn apply_all(toy: &mut Toy<'_>, changes: &[&Change]) -> Result<(), String> {
    for change in changes {
        toy.apply(change)
            .map_err(|why| format!("{why}: {change:?} of {changes:?}"))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    /// What stands in one batch may run in any order, change by change.
    #[test]
    fn batches_in_any_order(
        design in design(), plans in vec(plan(), 1..40), limits in limits(),
        picks in vec(vec(any::<usize>(), 1..12), 4)
    ) {
        let run = run(&design, &plans, limits);
        for batch in batches(&run.hints) {
            prop_assert!(batch.len() <= limits.batch);
            let (first, last) = (batch[0], batch[batch.len() - 1]);
            let expected = run.before.get(last + 1).unwrap_or(&run.after).content();
            let mut reversed: Vec<&[Change]> = batch.iter().map(|n| &run.done[*n][..]).collect();
            reversed.reverse();
            for picks in picks.iter().map(|p| &p[..]).chain([&[0][..]]) {
                let mut toy = run.before[first].clone();
                let done = apply_all(&mut toy, &mixed(&reversed, picks));
                prop_assert_eq!(done, Ok(()), "batch {:?}", batch);
                prop_assert_eq!(toy.content(), expected.clone(), "batch {:?}", batch);
            }
        }
    }

    /// Whoever runs as soon as its logical clock allows it, runs in time: in a
    /// stream of MySQL, all in one file.
    #[test]
    fn clocks_in_any_order(
        design in design(), plans in vec(plan(), 1..40), limits in limits(),
        picks in vec(any::<usize>(), 1..50)
    ) {
        let stream = Stream::mysql(design.tables.clone(), limits);
        let run = run_in(stream, &design, &plans);
        let clocks: Vec<LogicalClock> = run.hints.iter().map(|h| h.clock.expect("numbers")).collect();
        for (n, clock) in clocks.iter().enumerate() {
            prop_assert_eq!(clock.sequence_number, n as i64 + 1);
        }
        let mut left: Vec<usize> = (0..run.done.len()).collect();
        let mut toy = Toy::new(&design);
        let mut picks = picks.iter().cycle();
        while let Some(oldest) = left.first().copied() {
            // All up to the one before the oldest have committed.
            let free: Vec<usize> = left
                .iter()
                .copied()
                .filter(|n| clocks[*n].last_committed as usize <= oldest)
                .collect();
            let n = free[picks.next().unwrap() % free.len()];
            left.retain(|m| *m != n);
            let changes: Vec<&Change> = run.done[n].iter().collect();
            prop_assert_eq!(apply_all(&mut toy, &changes), Ok(()), "transaction {}", n);
        }
        prop_assert_eq!(toy.content(), run.after.content());
    }

    /// The same stream gives the same hints.
    #[test]
    fn always_the_same(design in design(), plans in vec(plan(), 1..20), limits in limits()) {
        let (first, second) = (run(&design, &plans, limits), run(&design, &plans, limits));
        prop_assert_eq!(first.hints, second.hints);
    }
}
