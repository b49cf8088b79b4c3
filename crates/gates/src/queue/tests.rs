//! The queue: in order, with holds; and whether it can stand still.

use std::collections::BTreeSet;

use super::*;
use crate::positions::Positions;
use proptest::prelude::*;

fn item(seqno: Seqno, exclusive: bool) -> QueueItem<&'static str> {
    QueueItem {
        seqno,
        ordered: true,
        depends_on: 0,
        exclusive,
        turn: Turn::InOrder,
        bytes: 10,
        value: "x",
    }
}

fn now() -> Option<Instant> {
    Some(Instant::now())
}

fn popped(q: &ApplyQueue<&'static str>) -> Option<Seqno> {
    match q.pop(now()) {
        Popped::Item(i) => Some(i.seqno),
        Popped::Nothing | Popped::Closed => None,
    }
}

#[test]
fn an_exclusive_event_holds_later_ones() {
    let q = ApplyQueue::new();
    q.push(item(1, false));
    q.push(item(2, true));
    q.push(item(3, false));
    assert_eq!(popped(&q), Some(1));
    assert_eq!(popped(&q), Some(2));
    assert_eq!(popped(&q), None);
    q.done(Turn::InOrder, true);
    assert_eq!(popped(&q), Some(3));
}

#[test]
fn a_pause_holds_later_ones_and_a_position_drops_earlier_ones() {
    let q = ApplyQueue::new();
    for s in 1..=4 {
        q.push(item(s, false));
    }
    assert_eq!(q.drop_through(1), 1);
    q.push(item(1, false));
    q.hold_after(2);
    assert_eq!(popped(&q), Some(2));
    assert_eq!(popped(&q), None);
    assert_eq!((q.len(), q.bytes()), (2, 20));
    q.resume();
    assert_eq!(popped(&q), Some(3));
}

#[test]
fn closed_only_after_the_last_event() {
    let q = ApplyQueue::new();
    q.push(item(1, true));
    q.close();
    assert_eq!(popped(&q), Some(1));
    assert!(
        matches!(q.pop(now()), Popped::Nothing),
        "the exclusive one still runs"
    );
    q.done(Turn::InOrder, true);
    assert!(matches!(q.pop(now()), Popped::Closed));
}

fn rollback(seqno: Seqno, depends_on: Seqno) -> QueueItem<&'static str> {
    QueueItem {
        depends_on,
        turn: Turn::Rollback,
        ..item(seqno, false)
    }
}

/// As if so many threads waited.
fn with_idle(q: &ApplyQueue<&'static str>, idle: usize) -> Option<Seqno> {
    let mut inner = q.lock();
    inner.idle = idle;
    let taken = inner.take().map(|i| i.seqno);
    inner.idle = 0;
    taken
}

#[test]
fn a_rollback_comes_first_once_its_fragments_are_applied() {
    let q = ApplyQueue::new();
    [5, 6].into_iter().for_each(|s| q.push(item(s, false)));
    q.push(rollback(7, 4));
    q.keep(1, 3);
    assert_eq!(with_idle(&q, 2), Some(5), "a fragment at 4 is not applied");
    assert_eq!(with_idle(&q, 1), None, "one thread is kept");
    q.keep(1, 4);
    assert_eq!(with_idle(&q, 1), Some(7));
    assert_eq!(q.rollbacks_out(), 1);
    assert_eq!(with_idle(&q, 1), None);
    q.keep(0, 4);
    assert_eq!(with_idle(&q, 1), Some(6));
}

#[test]
fn one_thread_is_left_for_what_is_next_in_order() {
    let q = ApplyQueue::new();
    q.push(item(5, false));
    q.push(rollback(6, 4));
    q.keep(1, 4);
    assert_eq!(with_idle(&q, 1), Some(5), "it is the only one");
    q.done(Turn::InOrder, false);
    assert_eq!(with_idle(&q, 1), Some(6), "now that is next in order");
}

#[test]
fn a_rollback_passes_an_exclusive_event_and_no_hold() {
    let q = ApplyQueue::new();
    q.push(item(5, true));
    q.push(item(6, false));
    q.push(rollback(7, 4));
    q.hold_after(6);
    assert_eq!(with_idle(&q, 3), Some(5));
    q.keep(1, 4);
    assert_eq!(with_idle(&q, 3), None);
    q.resume();
    assert_eq!(with_idle(&q, 3), Some(7));
    q.done(Turn::InOrder, true);
    assert_eq!(with_idle(&q, 3), Some(6));
    q.push(rollback(8, 4));
    assert_eq!(q.drop_through(8), 1);
    assert_eq!(with_idle(&q, 3), None);
}

#[test]
fn what_lies_ahead_leaves_a_thread_for_what_comes_before_it() {
    let q = ApplyQueue::new();
    let lies_ahead = || QueueItem {
        turn: Turn::LiesAhead,
        ..item(9, false)
    };
    q.push(lies_ahead());
    q.push(item(5, false));
    assert_eq!(with_idle(&q, 1), Some(5));
    assert_eq!(with_idle(&q, 1), Some(9), "the one at 5 comes back");
    q.done(Turn::InOrder, false);
    q.push(item(6, false));
    assert_eq!(with_idle(&q, 1), Some(6));
    q.done(Turn::InOrder, false);
    q.done(Turn::LiesAhead, false);
    q.push(lies_ahead());
    assert_eq!(with_idle(&q, 1), Some(9), "nothing comes before it so far");
}

/// What has a place in a made-up history.
#[derive(Clone, Debug)]
enum What {
    /// Needs rows of these streams.
    WriteSet(Vec<usize>),
    /// Of this stream, or of one that commits; needs rows of others.
    Fragment(Option<usize>, Vec<usize>),
    /// Of a stream that commits.
    End,
    /// Of this stream.
    Rollback(usize),
    Statement,
    View,
}

/// Streams that are rolled back: places of the first fragment and of the rollback.
type Streams = Vec<(Seqno, Seqno)>;

/// A history in which no more than `most` streams that are rolled back are open at once.
/// Write sets need rows of any of those open at their place.
fn history(mut draws: impl FnMut(u64) -> u64, len: usize, most: usize) -> (Vec<What>, Streams) {
    let mut all = vec![What::View];
    let mut streams: Streams = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut committing = 0;
    while all.len() < len || !open.is_empty() {
        let seqno = all.len() as Seqno;
        let full = all.len() >= len;
        let needs = open.iter().copied().filter(|_| draws(2) == 0);
        let needs: Vec<usize> = needs.collect();
        let what = match draws(12) {
            0 | 1 if !full && open.len() < most => {
                let of = streams.len();
                open.push(of);
                streams.push((seqno, Seqno::MAX));
                What::Fragment(Some(of), needs)
            }
            2 if !open.is_empty() => {
                let of = open[draws(open.len() as u64) as usize];
                let needs = needs.into_iter().filter(|o| *o != of).collect();
                What::Fragment(Some(of), needs)
            }
            3 | 4 if !open.is_empty() => {
                let of = open.remove(draws(open.len() as u64) as usize);
                streams[of].1 = seqno;
                What::Rollback(of)
            }
            5 => {
                committing += 1;
                What::Fragment(None, needs)
            }
            6 if committing > 0 => {
                committing -= 1;
                What::End
            }
            7 => What::Statement,
            8 => What::View,
            _ => What::WriteSet(needs),
        };
        all.push(what);
    }
    (all, streams)
}

/// What a thread of the made-up server does.
#[derive(Debug)]
enum Thread {
    Idle,
    /// Has an event, and waits at the apply gate.
    Has(QueueItem<&'static str>),
    Works(QueueItem<&'static str>),
    /// Waits for its turn.
    Done(QueueItem<&'static str>),
}

/// Runs `all` with so many threads; answers what stands still, if anything does.
fn run(
    mut draws: impl FnMut(u64) -> u64,
    all: &[What],
    streams: &Streams,
    threads: usize,
) -> Result<(), String> {
    let q = ApplyQueue::new();
    let mut positions = Positions::new(0);
    let mut threads: Vec<Thread> = (0..threads).map(|_| Thread::Idle).collect();
    let mut pushed = 1;
    let mut begun = BTreeSet::new();
    let mut freed = BTreeSet::new();
    // The newest fragment begun of each stream.
    let mut applied: Vec<Seqno> = streams.iter().map(|s| s.0).collect();
    let mut last_in_order = 0;
    let end = all.len() as Seqno - 1;
    while positions.released() < end {
        let mut moved = false;
        // Delivery, at any time.
        while pushed < all.len() && (draws(3) > 0 || draws(7) == 0) {
            moved = true;
            let seqno = pushed as Seqno;
            positions.ordered(seqno);
            let mut i = item(seqno, matches!(all[pushed], What::View));
            i.depends_on = match &all[pushed] {
                What::WriteSet(_) => seqno.saturating_sub(1 + draws(4) as Seqno).max(0),
                What::Rollback(of) => streams[*of].0,
                _ => seqno - 1,
            };
            if matches!(all[pushed], What::Rollback(_)) {
                i.turn = Turn::Rollback;
            }
            if matches!(all[pushed], What::Statement | What::View) {
                positions.stands_alone(seqno);
            }
            q.push(i);
            pushed += 1;
        }
        let first = draws(threads.len() as u64) as usize;
        for at in 0..threads.len() {
            let at = (first + at) % threads.len();
            let idle = threads.iter().filter(|t| matches!(t, Thread::Idle)).count();
            let in_order = q.lock().in_order;
            let next = match std::mem::replace(&mut threads[at], Thread::Idle) {
                Thread::Idle => {
                    let released = positions.released();
                    let holding = |(of, s): (usize, &(Seqno, Seqno))| {
                        s.0 <= released && s.1 > released && !begun.contains(&of)
                    };
                    let kept = streams.iter().enumerate().filter(|s| holding(*s)).count();
                    q.keep(kept, released);
                    let lowest = q.lock().items.front().map(|i| i.seqno);
                    let mut inner = q.lock();
                    inner.idle = idle;
                    let taken = inner.take();
                    inner.idle = 0;
                    drop(inner);
                    match taken {
                        None => Thread::Idle,
                        Some(i) => {
                            moved = true;
                            if let What::Rollback(of) = all[i.seqno as usize] {
                                begun.insert(of);
                                let ahead = Some(i.seqno) != lowest;
                                if ahead && (i.depends_on > released || in_order == 0 && idle == 1)
                                {
                                    return Err(format!("{i:?} was handed out ahead"));
                                }
                            } else {
                                if i.seqno <= last_in_order {
                                    return Err(format!("{i:?} comes behind {last_in_order}"));
                                }
                                if in_order > 0 && idle <= kept {
                                    return Err(format!("{i:?} got a thread kept for rollbacks"));
                                }
                                last_in_order = i.seqno;
                            }
                            Thread::Has(i)
                        }
                    }
                }
                Thread::Has(i) => {
                    let enters = match &all[i.seqno as usize] {
                        What::Statement | What::View => positions.may_stand_alone(i.seqno),
                        What::Rollback(of) => positions.may_begin_ahead(i.seqno, applied[*of]),
                        _ => positions.may_apply(i.depends_on),
                    };
                    moved |= enters;
                    match enters {
                        false => Thread::Has(i),
                        true => {
                            match &all[i.seqno as usize] {
                                What::Rollback(_) => positions.begins_ahead(i.seqno),
                                // Of one that is rolled back nothing is left to do.
                                What::Fragment(Some(of), _) if begun.contains(of) => {
                                    threads[at] = Thread::Done(i);
                                    continue;
                                }
                                What::Fragment(Some(of), _) => applied[*of] = i.seqno,
                                _ => {}
                            }
                            Thread::Works(i)
                        }
                    }
                }
                Thread::Works(i) => match &all[i.seqno as usize] {
                    What::WriteSet(needs) | What::Fragment(_, needs)
                        if needs.iter().any(|of| !freed.contains(of)) =>
                    {
                        Thread::Works(i)
                    }
                    // It takes a while.
                    _ if draws(3) == 0 => {
                        moved = true;
                        Thread::Works(i)
                    }
                    what => {
                        moved = true;
                        if let What::Rollback(of) = what {
                            let beside = threads.iter().find(|t| {
                                matches!(t, Thread::Works(i) if
                                    matches!(all[i.seqno as usize], What::Statement | What::View))
                            });
                            if let Some(beside) = beside {
                                return Err(format!("{i:?} runs beside {beside:?}"));
                            }
                            freed.insert(*of);
                            positions.is_carried_out(i.seqno);
                        }
                        Thread::Done(i)
                    }
                },
                Thread::Done(i) => {
                    if positions.leave(i.seqno) {
                        moved = true;
                        positions.release(i.seqno);
                        q.done(i.turn, i.exclusive);
                        Thread::Idle
                    } else {
                        Thread::Done(i)
                    }
                }
            };
            threads[at] = next;
        }
        if !moved && pushed == all.len() {
            let released = positions.released();
            return Err(format!("stands still behind {released}: {threads:?}"));
        }
    }
    Ok(())
}

fn draws(mut state: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below.max(1)
    }
}

proptest! {
    /// Whatever rows write sets wait for, and whatever stands between: with more
    /// threads than streams that are open at once, nothing stands still.
    #[test]
    fn more_threads_than_open_streams_never_stand_still(seed in 1u64.., threads in 2usize..6, len in 5usize..60) {
        let mut d = draws(seed);
        let (all, streams) = history(&mut d, len, threads - 1);
        let ran = run(&mut d, &all, &streams, threads);
        prop_assert!(ran.is_ok(), "{ran:?} in {all:?}");
    }
}

/// The test above can tell: with a stream more than that, some histories do.
#[test]
fn as_many_threads_as_open_streams_may_stand_still() {
    let stuck = (1..400).filter(|seed| {
        let mut d = draws(*seed);
        let (all, streams) = history(&mut d, 40, 2);
        run(&mut d, &all, &streams, 2).is_err()
    });
    assert!(stuck.count() > 0);
}
