//! What transactions touch and which of them conflict, from values alone; and what a replica may run
//! side by side. Naive.

use proptest::prelude::*;

use crate::decoder::Got;

/// A row that is inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Of `t (id INT PRIMARY KEY, u INT)`; `u` is unique, at times.
    T { id: i32, u: i32 },
    /// Of `c (id INT PRIMARY KEY, pid INT REFERENCES t (id))`.
    C { id: i32, pid: i32 },
    /// Of `n (x INT)`, without any key.
    N { x: i32 },
}

/// What a transaction does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Does {
    /// It inserts rows.
    Rows(Vec<Row>),
    /// `t.u` becomes unique, or ceases to be.
    Ddl,
    /// A statement whose effect nobody sees.
    Statement,
}

/// Whether the order of two matters. `unique`: what `t.u` is when the later one runs.
pub fn conflict(a: &Does, b: &Does, unique: bool) -> bool {
    let (Does::Rows(a), Does::Rows(b)) = (a, b) else {
        return true;
    };
    let pair = |a: &Row, b: &Row| match (*a, *b) {
        (Row::T { id, u }, Row::T { id: id2, u: u2 }) => id == id2 || unique && u == u2,
        (Row::C { id, .. }, Row::C { id: id2, .. }) => id == id2,
        (Row::T { id, .. }, Row::C { pid, .. }) | (Row::C { pid, .. }, Row::T { id, .. }) => {
            id == pid
        }
        (Row::N { .. }, Row::N { .. }) => true,
        _ => false,
    };
    a.iter().any(|a| b.iter().any(|b| pair(a, b)))
}

/// How a primary numbers a transaction: on its own, validly.
#[derive(Clone, Copy, Debug)]
pub enum Style {
    /// It does not know what it depends on.
    Zero,
    /// On the one before.
    Serial,
    /// On what it conflicts with, or this much more.
    Knows(u64),
}

impl Style {
    /// `last_committed` of a transaction of this sequence number, which conflicts with that of
    /// `newest` last; 0: with none.
    pub fn last_committed(self, newest: i64, sequence: i64) -> i64 {
        match self {
            _ if sequence == 1 => 0,
            Style::Zero => 0,
            Style::Serial => sequence - 1,
            Style::Knows(more) => {
                let least = newest.max(1);
                least + (more % (sequence - least) as u64) as i64
            }
        }
    }
}

/// A transaction to come.
#[derive(Clone, Debug)]
pub struct Plan {
    pub does: Does,
    pub style: Style,
    /// As MySQL 8 writes it, with more behind the clock.
    pub modern: bool,
    /// A file begins before it.
    pub file: bool,
}

fn row() -> impl Strategy<Value = Row> {
    let few = || 0i32..6;
    prop_oneof![
        4 => (few(), few()).prop_map(|(id, u)| Row::T { id, u }),
        3 => (few(), few()).prop_map(|(id, pid)| Row::C { id, pid }),
        1 => few().prop_map(|x| Row::N { x }),
    ]
}

pub fn plan() -> impl Strategy<Value = Plan> {
    let does = prop_oneof![
        24 => proptest::collection::vec(row(), 1..3).prop_map(Does::Rows),
        1 => Just(Does::Ddl),
        1 => Just(Does::Statement),
    ];
    let style = prop_oneof![
        1 => Just(Style::Zero),
        3 => Just(Style::Serial),
        2 => any::<u64>().prop_map(Style::Knows),
    ];
    let file = proptest::bool::weighted(0.06);
    (does, style, any::<bool>(), file).prop_map(|(does, style, modern, file)| Plan {
        does,
        style,
        modern,
        file,
    })
}

/// A transaction as it was done.
#[derive(Clone, Debug)]
pub struct Done {
    pub does: Does,
    /// What `t.u` was before it.
    pub unique: bool,
    /// Its file, from 1 on.
    pub file: usize,
    /// Its first byte there, and the one behind its last.
    pub begin: usize,
    pub end: usize,
    /// The primary's numbers.
    pub last_committed: i64,
    pub sequence: i64,
}

/// Whether what a replica got of one file lets no two run side by side that conflict. `of_file`: the
/// transactions of the file; `got`: their first events, those of the last so many.
pub fn check(of_file: &[&Done], got: &[Got]) -> Result<(), TestCaseError> {
    let behind = of_file.len() - got.len();
    for (n, got) in got.iter().enumerate() {
        let done = of_file[behind + n];
        let Some((last, sequence)) = got.clock else {
            return Err(TestCaseError::fail("a GTID event has numbers"));
        };
        prop_assert_eq!(sequence, done.sequence);
        prop_assert!((0..sequence).contains(&last));
        prop_assert!(done.last_committed == 0 || last <= done.last_committed);
        // With 0 it waits for all.
        if last == 0 {
            continue;
        }
        for beside in &of_file[..behind + n] {
            prop_assert!(
                beside.sequence <= last || !conflict(&beside.does, &done.does, done.unique),
                "{:?} beside {:?}, which has {}",
                beside,
                done,
                last
            );
        }
    }
    Ok(())
}
