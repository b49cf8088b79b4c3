//! The sums against a model that keeps everything that took a seqno.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::cluster::Event;
use crate::cluster::tests::{Feed, join, long_write_set, write_set};
use crate::messages::{Control, LeaveReason, Need};
use dromon_order::Part;
use dromon_writeset::Uuid;

/// What may come.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A write set of member `by` on `row` that has seen so many seqnos less
    /// than there are.
    Write { by: u8, row: u64, behind: i64 },
    /// One that may be cut.
    Large { by: u8, row: u64 },
    /// The next chunk of the first one that is open, its place so far ahead.
    Chunk(u32),
    /// Somebody comes.
    Join(u8),
    /// Somebody goes.
    Leave(u8),
    /// Somebody returns after a lost lease.
    Rejoin(u8),
    /// What takes no seqno.
    Cut,
}

fn step() -> impl Strategy<Value = Step> {
    let by = 1u8..4;
    prop_oneof![
        6 => (by.clone(), 0u64..6, 0i64..4)
            .prop_map(|(by, row, behind)| Step::Write { by, row, behind }),
        1 => (by.clone(), 0u64..6).prop_map(|(by, row)| Step::Large { by, row }),
        3 => (0u32..6).prop_map(Step::Chunk),
        1 => (4u8..6).prop_map(Step::Join),
        1 => (2u8..6).prop_map(Step::Leave),
        1 => by.prop_map(Step::Rejoin),
        1 => Just(Step::Cut),
    ]
}

/// What took each seqno, in words, and the sum there.
#[derive(Default)]
struct Model {
    words: BTreeMap<Seqno, String>,
    sums: BTreeMap<Seqno, u64>,
}

impl Model {
    fn step(&mut self, f: &mut Feed, step: Step) {
        let now = f.state.position().seqno;
        let events = match step {
            Step::Write { by, row, behind } => {
                f.part(by, Part::Whole, write_set(by, now - behind, row))
            }
            Step::Large { by, row } => f.part(by, Part::Whole, long_write_set(by, now, row)),
            Step::Chunk(ahead) => {
                let open = f.state.chunked().next().map(|(c, n)| (c.id, n));
                let (id, n) = open.unwrap_or((0, 1));
                f.send(1, &Control::Chunk { id, n, ahead })
            }
            Step::Join(n) => f.send(n, &join(n, Position::UNDEFINED, Need::Copy)),
            Step::Leave(n) => {
                let (uuid, reason) = (Uuid([n; 16]), LeaveReason::Graceful);
                f.send(1, &Control::Leave { uuid, reason })
            }
            Step::Rejoin(n) => {
                let (uuid, released) = (Uuid([n; 16]), now);
                f.send(1, &Control::Rejoin { uuid, released })
            }
            Step::Cut => f.send(1, &Control::Cut { seqno: now - 3 }),
        };
        for event in events {
            match event {
                Event::WriteSet {
                    seqno,
                    write_set,
                    verdict,
                    ..
                } => {
                    let head = write_set.head();
                    let words = format!("{head:?} {:?} {}", write_set.payload(), verdict.passed());
                    self.words.insert(seqno, words);
                }
                Event::Chunk {
                    seqno,
                    chunked,
                    part,
                    ..
                } => {
                    let words = format!("{} {part:?} {:?}", chunked.id, chunked.write_set);
                    self.words.insert(seqno, words);
                }
                Event::Nothing { first, last } => {
                    let nobody = (first..=last).map(|seqno| (seqno, "nobody".to_owned()));
                    self.words.extend(nobody);
                }
                Event::View { view, .. } => {
                    self.words.insert(view.position.seqno, format!("{view:?}"));
                }
                _ => {}
            }
        }
        self.sums.extend(f.state.sums());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn two_sums_are_the_same_where_all_before_is_the_same(
        both in prop::collection::vec(step(), 0..25),
        one in prop::collection::vec(step(), 0..25),
        other in prop::collection::vec(step(), 0..25),
    ) {
        let run = |apart: &[Step]| {
            let (mut f, mut m) = (Feed::of_three(), Model::default());
            both.iter().chain(apart).for_each(|s| m.step(&mut f, *s));
            prop_assert_eq!(f.state.sum(), m.sums.last_key_value().map_or(f.state.sum(), |s| *s.1));
            Ok(m)
        };
        let (a, b) = (run(&one)?, run(&other)?);
        let keys = |m: &Model| m.words.keys().copied().collect::<Vec<_>>();
        prop_assert_eq!(keys(&a), a.sums.keys().copied().collect::<Vec<_>>());
        let mut same = true;
        for (seqno, words) in &a.words {
            let Some(others) = b.words.get(seqno) else { break };
            same &= words == others;
            prop_assert_eq!(a.sums[seqno] == b.sums[seqno], same, "seqno {}", seqno);
        }
    }

    #[test]
    fn a_sum_is_counted_again_from_any_checkpoint(
        steps in prop::collection::vec(step(), 1..40),
        from in 0usize..40,
        wanted in 0i64..60,
        lot in 1usize..5,
    ) {
        let (mut f, mut m) = (Feed::of_three(), Model::default());
        let first = f.state.position().seqno;
        m.sums.insert(first, f.state.sum());
        let mut checkpoint = None;
        for (n, s) in steps.iter().enumerate() {
            if n >= from && checkpoint.is_none() && !f.state.has_chunked() {
                checkpoint = Some((f.state.encode(), f.index));
            }
            m.step(&mut f, *s);
        }
        let Some(((sequencer, node), index)) = checkpoint else { return Ok(()) };
        let state = ClusterState::decode(&sequencer, &node).expect("its own bytes");
        let at = state.position().seqno;
        let wanted = first + wanted;
        let mut rest = f.entries.iter().filter(|e| e.index > index).cloned();
        let counted = count(state, wanted, || Ok(rest.by_ref().take(lot).collect()));
        let expected = m.sums.get(&wanted).filter(|_| wanted >= at).copied();
        prop_assert_eq!(counted, Ok(expected));
    }

    #[test]
    fn the_newest_sums_are_at_hand(
        starts in prop::collection::vec((0i64..1000, 1usize..50), 1..5),
        asked in prop::collection::vec(-5i64..1100, 20),
    ) {
        let (mut sums, mut all) = (Sums::default(), BTreeMap::new());
        for (start, many) in starts {
            if all.last_key_value().is_none_or(|(s, _)| *s + 1 != start) {
                all.clear();
            }
            for (seqno, n) in (start..).zip(0..many) {
                all.insert(seqno, n as u64 ^ 0x55);
                sums.push(seqno, n as u64 ^ 0x55);
            }
        }
        for seqno in asked {
            prop_assert_eq!(sums.at(seqno), all.get(&seqno).copied());
        }
    }
}

#[test]
fn no_more_than_the_newest_are_kept() {
    let mut sums = Sums::default();
    let many = KEPT as Seqno + 10;
    (0..many).for_each(|s| sums.push(s, s as u64));
    assert_eq!(sums.sums.len(), KEPT);
    assert_eq!(sums.at(9), None);
    assert_eq!(sums.at(10), Some(10));
    assert_eq!(sums.at(many - 1), Some(many as u64 - 1));
    assert_eq!(sums.at(many), None);
}

#[test]
fn a_history_begins_with_its_name_and_place() {
    let at = |n, seqno| {
        root(Position {
            history: Uuid([n; 16]),
            seqno,
        })
    };
    assert_eq!(at(1, 7), at(1, 7));
    assert_ne!(at(1, 7), at(1, 8));
    assert_ne!(at(1, 7), at(2, 7));
}

#[test]
fn only_two_sums_can_differ() {
    assert_eq!(Compared::of(1, None), Compared::Unknown);
    assert_eq!(Compared::of(1, Some(1)), Compared::Same);
    let differs = Compared::of(1, Some(2));
    assert_eq!(differs, Compared::Differs { ours: 1, yours: 2 });
    assert!(differs.differs());
}
