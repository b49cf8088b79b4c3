//! Places that lie ahead, against what must hold of them whatever comes.

use dromon_order::Part;
use proptest::prelude::*;

use super::super::tests::{Feed, join, long_write_set, statement, write_set, write_set_flagged};
use super::super::{CHUNK_MIN, ChunkPart, Event};
use super::AHEAD_MAX;
use crate::messages::{Control, LeaveReason, Need, Position};
use dromon_writeset::{Flags, Seqno, Uuid};

/// What may come.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write {
        by: u8,
        row: u64,
    },
    Large {
        by: u8,
        row: u64,
    },
    Statement {
        by: u8,
        row: u64,
    },
    /// The next part of the n-th one that is open; that many places ahead.
    Chunk {
        nth: usize,
        ahead: u32,
    },
    Join(u8),
    Leave(u8),
    Cut,
}

fn step() -> impl Strategy<Value = Step> {
    let on = || (1u8..4, 0u64..9);
    prop_oneof![
        12 => on().prop_map(|(by, row)| Step::Write { by, row }),
        2 => on().prop_map(|(by, row)| Step::Large { by, row }),
        1 => on().prop_map(|(by, row)| Step::Statement { by, row }),
        8 => (0usize..3, 0u32..8).prop_map(|(nth, ahead)| Step::Chunk { nth, ahead }),
        1 => (4u8..6).prop_map(Step::Join),
        1 => (2u8..6).prop_map(Step::Leave),
        1 => Just(Step::Cut),
    ]
}

fn take(f: &mut Feed, step: Step) -> Vec<Event> {
    let now = f.state.position().seqno;
    match step {
        Step::Write { by, row } => f.part(by, Part::Whole, write_set(by, now, row)),
        Step::Large { by, row } => f.part(by, Part::Whole, long_write_set(by, now, row)),
        Step::Statement { by, row } => f.part(by, Part::Whole, statement(by, now, row)),
        Step::Chunk { nth, ahead } => {
            let open = f.state.chunked().nth(nth).map(|(c, n)| (c.id, n));
            let (id, n) = open.unwrap_or((0, 1));
            f.send(1, &Control::Chunk { id, n, ahead })
        }
        Step::Join(n) => f.send(n, &join(n, Position::UNDEFINED, Need::Copy)),
        Step::Leave(n) => {
            let (uuid, reason) = (Uuid([n; 16]), LeaveReason::Graceful);
            f.send(1, &Control::Leave { uuid, reason })
        }
        Step::Cut => f.send(1, &Control::Cut { seqno: now - 3 }),
    }
}

/// What was said of a part whose place lies ahead.
struct Said {
    id: Seqno,
    part: ChunkPart,
    place: Seqno,
    depends_on: Seqno,
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_place_is_taken_once_in_order_and_as_was_said(steps in prop::collection::vec(step(), 1..80)) {
        let mut f = Feed::of_three();
        let mut last = f.state.position().seqno;
        let mut said: Option<Said> = None;
        for step in steps {
            for event in take(&mut f, step) {
                match event {
                    Event::Ahead { place, chunked, part, depends_on } => {
                        prop_assert!(said.is_none(), "one at a time");
                        prop_assert!(place > last + 1);
                        prop_assert!(place <= last + 1 + Seqno::from(AHEAD_MAX));
                        prop_assert!(depends_on <= last, "what it waits for has its place");
                        said = Some(Said { id: chunked.id, part, place, depends_on });
                    }
                    Event::Nothing { first, last: to } => {
                        prop_assert_eq!(first, last + 1);
                        prop_assert_eq!(said.as_ref().map(|s| s.place), Some(to + 1));
                        last = to;
                    }
                    Event::Chunk { seqno, chunked, part, depends_on } => {
                        prop_assert_eq!(seqno, last + 1);
                        prop_assert!(depends_on < seqno);
                        last = seqno;
                        if let Some(s) = said.take() {
                            prop_assert_eq!((s.id, s.part, s.place, s.depends_on), (chunked.id, part, seqno, depends_on));
                        }
                    }
                    Event::WriteSet { seqno, write_set, .. } => {
                        prop_assert_eq!(seqno, last + 1);
                        last = seqno;
                        prop_assert!(said.is_none() || !write_set.flags().is_toi(), "a statement does not pass it");
                        prop_assert!(said.as_ref().is_none_or(|s| s.place > seqno));
                    }
                    Event::View { view, .. } => {
                        prop_assert_eq!(view.position.seqno, last + 1);
                        last += 1;
                        prop_assert!(said.is_none(), "a view does not pass it");
                    }
                    _ => {}
                }
            }
            prop_assert_eq!(f.state.position().seqno, last);
            prop_assert_eq!(f.state.ahead().map(|a| a.2), said.as_ref().map(|s| s.place));
        }
    }
}

#[test]
fn small_ones_take_the_places_before_it_and_nobody_the_rest() {
    let mut f = Feed::of_three();
    let now = f.state.position().seqno;
    f.part(1, Part::Whole, long_write_set(1, now, 1));
    let id = now + 1;
    let ask = |n, ahead| Control::Chunk { id, n, ahead };
    let events = f.send(2, &ask(1, 3));
    assert!(matches!(events.as_slice(), [Event::Ahead { place, .. }] if *place == id + 4));
    assert!(f.send(2, &ask(1, 0)).is_empty(), "asked twice");
    let small = |f: &mut Feed, row| {
        let now = f.state.position().seqno;
        f.part(2, Part::Whole, write_set(2, now, row))
    };
    assert!(
        matches!(small(&mut f, 7).as_slice(), [Event::WriteSet { seqno, .. }] if *seqno == id + 1)
    );
    let events = f.send(2, &ask(2, 2));
    assert!(
        matches!(
            events.as_slice(),
            [
                Event::Nothing { first, last },
                Event::Chunk { seqno, part: ChunkPart::Data(1), .. },
                Event::Ahead { place, .. },
            ] if (*first, *last, *seqno, *place) == (id + 2, id + 3, id + 4, id + 7)
        ),
        "{events:?}"
    );
    small(&mut f, 8);
    let events = small(&mut f, 9);
    assert!(
        matches!(
            events.as_slice(),
            [Event::WriteSet { seqno: id6, .. }, Event::Chunk { seqno, part: ChunkPart::Data(2), .. }]
                if (*id6, *seqno) == (id + 6, id + 7)
        ),
        "its place was reached: {events:?}"
    );
}

#[test]
fn who_touches_its_rows_fails_until_its_end_has_its_place() {
    let mut f = Feed::of_three();
    let now = f.state.position().seqno;
    f.part(1, Part::Whole, long_write_set(1, now, 1));
    let id = now + 1;
    let chunks = f.state.chunked().next().map_or(0, |(c, _)| c.chunks());
    for n in 1..chunks {
        f.send(2, &Control::Chunk { id, n, ahead: 0 });
    }
    let end = f.send(
        2,
        &Control::Chunk {
            id,
            n: chunks,
            ahead: 5,
        },
    );
    assert!(matches!(
        end.as_slice(),
        [Event::Ahead {
            part: ChunkPart::End,
            ..
        }]
    ));
    let touch = |f: &mut Feed| {
        let now = f.state.position().seqno;
        let events = f.part(2, Part::Whole, write_set(2, now, 1));
        events.iter().find_map(|e| match e {
            Event::WriteSet { verdict, .. } => Some(verdict.passed()),
            _ => None,
        })
    };
    assert_eq!(touch(&mut f), Some(false));
    assert!(f.state.has_chunked());
    let events = f.send(
        2,
        &Control::Chunk {
            id,
            n: chunks + 1,
            ahead: 0,
        },
    );
    assert!(
        matches!(
            events.as_slice(),
            [
                Event::Nothing { .. },
                Event::Chunk {
                    part: ChunkPart::End,
                    ..
                }
            ]
        ),
        "{events:?}"
    );
    assert!(!f.state.has_chunked());
    assert_eq!(touch(&mut f), Some(true), "it has seen the end");
}

#[test]
fn a_statement_lets_it_take_its_place_before_it_gives_way() {
    let mut f = Feed::of_three();
    let now = f.state.position().seqno;
    f.part(1, Part::Whole, long_write_set(1, now, 1));
    let id = now + 1;
    f.send(2, &Control::Chunk { id, n: 1, ahead: 2 });
    let now = f.state.position().seqno;
    let events = f.part(3, Part::Whole, statement(3, now, 1));
    let parts: Vec<ChunkPart> = events
        .iter()
        .filter_map(|e| match e {
            Event::Chunk { part, .. } => Some(*part),
            _ => None,
        })
        .collect();
    assert_eq!(
        parts,
        [ChunkPart::Data(1), ChunkPart::Rollback],
        "{events:?}"
    );
    assert!(matches!(events.last(), Some(Event::WriteSet { .. })));
}

/// Whether a large payload passes that was on its way while very many small ones came, if
/// places ahead of another large one are left when its last piece comes.
fn passes_after_a_long_way(ahead: u32, flags: Flags) -> bool {
    let mut f = Feed::of_three();
    let now = f.state.position().seqno;
    f.part(1, Part::Whole, long_write_set(1, now, 1));
    let id = now + 1;
    let now = f.state.position().seqno;
    // It had seen little when it went off, and is as far behind as it may be.
    let large = write_set_flagged(3, now, 1_000_000, CHUNK_MIN, b"rows", flags);
    let piece = |i| Part::Piece { stream: 1, i, n: 2 };
    for row in 0..dromon_certify::MAX_LENGTH - 1 {
        small(&mut f, row);
    }
    f.part(3, piece(0), large.slice(..20));
    for row in 0..17_000 {
        small(&mut f, row);
    }
    if ahead > 0 {
        f.send(2, &Control::Chunk { id, n: 1, ahead });
    }
    let events = f.part(3, piece(1), large.slice(20..));
    match events.last() {
        Some(Event::WriteSet { verdict, .. }) => verdict.passed(),
        other => panic!("not a write set: {other:?}"),
    }
}

fn small(f: &mut Feed, row: Seqno) {
    let now = f.state.position().seqno;
    f.part(2, Part::Whole, write_set(2, now, 2 + row as u64 % 500));
}

#[test]
fn places_that_nobody_takes_make_no_payload_on_its_way_too_old() {
    // It makes the part take its place first, as it may not share its time.
    let alone = Flags::PA_UNSAFE;
    assert!(passes_after_a_long_way(0, alone));
    assert!(passes_after_a_long_way(AHEAD_MAX, alone));
}
