//! At what pace the chunks of large write sets come: one thread asks for them,
//! if it is for this node to do so.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dromon_gates::{Seqno, WaitError, Waiter};
use dromon_order::Order;
use dromon_writeset::Uuid;

use super::super::{Node, lock};
use super::{AHEAD, Begun, Open};
use crate::cluster::{AHEAD_MAX, Member, MemberState};
use crate::messages::{Control, encode, kind};
use crate::turn::{Cycle, Turns};
use crate::yielding::Pause;

/// A request for a chunk that is not answered by the order within this time is
/// made again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// If nothing was asked for in this time, the next member in line asks, and so on:
/// the first one may be unable to.
const TAKE_OVER: Duration = Duration::from_secs(10);
/// The end waits no longer than this, and no longer than [`END_TIMES`] times as long as this node
/// took, for others to be ready for it.
const END_MAX: Duration = Duration::from_secs(4);
const END_TIMES: u32 = 3;
/// A chunk that is begun on other members only is waited for no longer than so many times what one took here.
const OTHERS_TIMES: u32 = 2;
/// A chunk takes its place when so much of it should be done: what is left keeps
/// small ones waiting, and the server does not wait for the next one.
const PART_DONE: f64 = 0.75;
/// A pause that a share asks for is not longer.
const LEAST_MAX: Duration = Duration::from_secs(2);

/// What the asking thread does next.
enum Step {
    Ask(Ask),
    Wait(Duration),
    End,
}

/// When a part was asked for last, and what had come by then.
#[derive(Clone, Copy)]
struct Since {
    at: Instant,
    /// Small ones that had taken their place.
    small: i64,
    released: Seqno,
}

/// Which part it asks for.
struct Ask {
    id: Seqno,
    n: u32,
    /// The place of the one before it.
    last: Seqno,
    /// That lies ahead.
    ahead: bool,
    /// It is the end.
    ends: bool,
    /// It is nothing: the end comes before it.
    over: bool,
    /// What all members must have applied first.
    all_through: Option<Seqno>,
}

impl Node {
    /// Starts the thread that asks, if there is something to ask for.
    pub(in crate::node) fn start_pacing(self: &Arc<Self>) {
        let mut chunks = lock(&self.chunks);
        if chunks.open.is_empty() || std::mem::replace(&mut chunks.pacing, true) {
            return;
        }
        drop(chunks);
        let node = Arc::downgrade(self);
        let thread = std::thread::Builder::new()
            .name("dromon-chunks".into())
            .spawn(move || {
                if catch_unwind(AssertUnwindSafe(|| pace(&node))).is_err()
                    && let Some(node) = node.upgrade()
                {
                    // The next tick starts another one.
                    lock(&node.chunks).pacing = false;
                }
            });
        if let Err(e) = thread {
            lock(&self.chunks).pacing = false;
            self.warn(&format!(
                "no thread that asks for the chunks of large transactions could be started: {e}; tried again every \
                 second. Until then they wait, with their clients, unless another member asks"
            ));
        }
    }

    /// At what pace small ones come.
    pub(in crate::node) fn look_at_small(&self) {
        let seen = (Instant::now(), self.count_small.load(Relaxed));
        let mut chunks = lock(&self.chunks);
        if let Some((at, count)) = chunks.looked.replace(seen) {
            let passed = (seen.1 - count).max(0) as u64;
            chunks.yielding.look(seen.0 - at, passed);
        }
    }

    /// Since a chunk was asked for small ones had what they had: pauses, if that is much less
    /// than before. False: the node ends.
    fn yield_to_small(&self, waiter: &Arc<Waiter>, since: Since) -> bool {
        let count = || self.count_small.load(Relaxed);
        let passed = (count() - since.small).max(0) as u64;
        let pause = (lock(&self.chunks).yielding).pause(since.at.elapsed(), passed);
        let goes_on = |time: Duration| {
            let by = Some(Instant::now() + time);
            let waited = self.gates.wait_released(Seqno::MAX, waiter, false, by);
            waited != Err(WaitError::Closed)
        };
        match pause {
            Pause::None => true,
            Pause::Wait(time) => goes_on(time),
            Pause::Probe(time) => {
                if !goes_on(time / 2) {
                    return false;
                }
                let (begun, before) = (Instant::now(), count());
                let stays = goes_on(time / 2);
                let passed = (count() - before).max(0) as u64;
                lock(&self.chunks).yielding.found(begun.elapsed(), passed);
                stays
            }
        }
    }

    /// How long no chunk of what `source` sent must have come, for this node to
    /// ask for the next one. None: it never does.
    fn asks_after(&self, source: Uuid) -> Option<Duration> {
        let shared = self.shared();
        let view = shared.view.as_ref()?;
        let able =
            |m: &Member| m.state == MemberState::Synced && !self.flow.is_quarantined(&m.uuid);
        let rank = |m: &Member| (!m.complete, !able(m), m.uuid == source, m.uuid);
        let with_data = || view.members.iter().filter(|m| !m.witness);
        let own = with_data().find(|m| m.uuid == shared.uuid)?;
        let before = with_data().filter(|m| rank(m) < rank(own)).count() as u32;
        Some(TAKE_OVER * before)
    }

    /// What to do next, and the change up to which that was looked at.
    fn next_step(&self) -> (Step, u64) {
        let (sources, seen) = {
            let mut chunks = lock(&self.chunks);
            if chunks.open.is_empty() {
                chunks.pacing = false;
                chunks.yielding.over();
                return (Step::End, 0);
            }
            let of = |o: &Open| (o.chunked.id, o.chunked.source());
            let sources: Vec<_> = chunks.open.values().map(of).collect();
            (sources, chunks.changes)
        };
        let after = |(id, source): &(Seqno, Uuid)| Some((*id, self.asks_after(*source)?));
        let after: Vec<(Seqno, Duration)> = sources.iter().filter_map(after).collect();
        let mut chunks = lock(&self.chunks);
        let mut mine = Vec::new();
        for (id, after) in after {
            let open = chunks.open.get_mut(&id);
            if let Some(open) = open.filter(|o| o.taken_over || o.moved.elapsed() >= after) {
                open.taken_over = !after.is_zero();
                mine.push(id);
            }
        }
        let due = |o: &Open| match o.asked {
            Some((n, at)) => n != o.next || at.elapsed() >= ASK_AGAIN,
            None => true,
        };
        let open = mine.iter().filter_map(|id| chunks.open.get(id));
        // An end that lies ahead comes first: with what is asked of another one it would have its
        // place at once, and what comes behind it would wait for all that is left of it.
        let ending = chunks.open.values().find(|o| o.is_ending());
        let ending = ending.filter(|o| o.moved.elapsed() < TAKE_OVER);
        let may = |o: &&Open| ending.is_none_or(|e| e.chunked.id == o.chunked.id);
        // The one that has waited longest: large ones share.
        let next = open
            .filter(|o| due(o))
            .filter(may)
            .min_by_key(|o| o.at.last().copied());
        let step = match next {
            None => Step::Wait(ASK_AGAIN / 4),
            Some(o) => {
                let over = o.next > o.chunked.chunks();
                Step::Ask(Ask {
                    id: o.chunked.id,
                    n: o.next,
                    last: o.at.last().copied().unwrap_or(o.chunked.id),
                    ahead: o.ahead.is_some(),
                    ends: o.next == o.chunked.chunks(),
                    over,
                    // Behind the end nothing comes: who is far behind holds only himself up.
                    all_through: (o.at.len() == AHEAD && !over).then(|| o.at[0]),
                })
            }
        };
        (step, seen)
    }

    /// Asks for part `n` of `id`, with `ahead` places before it.
    fn ask_for_chunk(&self, order: &Arc<dyn Order>, id: Seqno, n: u32, ahead: u32) {
        let body = encode(&Control::Chunk { id, n, ahead });
        // An error means full, or stopped: again in a while, as without an answer.
        let _ = order.propose(kind::CONTROL, 0, body);
        if let Some(open) = lock(&self.chunks).open.get_mut(&id) {
            open.asked = Some((n, Instant::now()));
        }
    }

    /// What part of the time chunks may take, if that is set: all of them together
    /// as much as so many clients that stream.
    fn chunks_share(&self) -> Option<f64> {
        let share = self.settings().bulk_bound?;
        let (chunked, streaming) = (self.count_chunked().max(1), self.count_streaming());
        Some(share * chunked as f64 / (chunked + streaming) as f64)
    }

    /// Waits until the part behind that at `step.last` may come (see the module's
    /// text), and that at `step.all_through` is applied everywhere. Some: so many
    /// places are to lie before it.
    fn wait_for_turn(
        &self,
        waiter: &Arc<Waiter>,
        turns: &mut Turns,
        since: Since,
        step: &Ask,
    ) -> Option<u32> {
        let last = step.last;
        let history = self.history();
        let here = {
            let chunks = lock(&self.chunks);
            !chunks.own.contains_key(&step.id) && !chunks.lacking.contains(history, step.id)
        };
        let through = |seqno| {
            self.is_through(waiter, seqno, ASK_AGAIN)
                && (here || self.wait_others_through(since, seqno))
        };
        let places = if step.ahead {
            self.wait_begun_ahead(waiter, since, last, step.over)
                .then(|| self.places_ahead(since, step))?
        } else if !through(last - 1) {
            return None;
        } else if !step.ends && self.newest_small.load(Relaxed) <= last {
            0
        } else if self.shared().receivers > 1 {
            if !through(last) {
                return None;
            }
            self.places_ahead(since, step)
        } else {
            let in_its_turn = Instant::now();
            if !through(last) || !self.wait_turn_of_small(waiter, turns, since, in_its_turn) {
                return None;
            }
            0
        };
        // It is over, and ready everywhere: nobody gains by a pause.
        if !step.over && !self.yield_to_small(waiter, since) {
            return None;
        }
        let deadline = Instant::now() + ASK_AGAIN;
        while let Some(all) = step.all_through {
            let seen = lock(&self.chunks).changes;
            if self.flow.lowest_released().is_none_or(|low| low >= all) {
                break;
            }
            if Instant::now() >= deadline {
                return None;
            }
            // Reports wake it.
            self.wait_chunks(seen, ASK_AGAIN / 4);
        }
        self.flow.wait_unpaused(waiter).then_some(places)
    }

    /// What is not applied here is over here at once: waits for the others, about as long as what was begun
    /// here took.
    fn wait_others_through(&self, since: Since, seqno: Seqno) -> bool {
        loop {
            let (work, seen) = {
                let chunks = lock(&self.chunks);
                (chunks.work, chunks.changes)
            };
            let until = since.at + (work * OTHERS_TIMES).min(ASK_AGAIN);
            let now = Instant::now();
            if now >= until || (self.flow.lowest_released()).is_none_or(|low| low >= seqno) {
                return true;
            }
            // Reports wake it.
            self.wait_chunks(seen, until - now);
        }
    }

    fn is_through(&self, waiter: &Arc<Waiter>, seqno: Seqno, limit: Duration) -> bool {
        let by = Some(Instant::now() + limit);
        self.gates.wait_released(seqno, waiter, false, by).is_ok()
    }

    /// How many places the next part is to have before it: twice as many as small
    /// ones will need while it is applied. Those left over cost only their numbers.
    ///
    /// At the end the server removes all that it stored of the chunks, and small ones that came seldom so far come then, too.
    fn places_ahead(&self, since: Since, step: &Ask) -> u32 {
        if step.ends {
            return for_an_end(step.n);
        }
        let passed = (self.count_small.load(Relaxed) - since.small).max(0) as f64;
        let elapsed = since.at.elapsed().max(Duration::from_millis(1));
        let work = lock(&self.chunks).work;
        let time = work.as_secs_f64() / self.chunks_share().unwrap_or(1.0);
        let small = passed / elapsed.as_secs_f64() * time;
        (2.0 * small).ceil().min(f64::from(AHEAD_MAX)) as u32
    }

    /// Waits until little is left of what lies ahead, at `place`, here; of the end
    /// nothing, and nothing on the others (see [`for_others`]). Behind a chunk then for what a
    /// share asks for. False: not yet.
    fn wait_begun_ahead(
        &self,
        waiter: &Arc<Waiter>,
        since: Since,
        place: Seqno,
        is_end: bool,
    ) -> bool {
        let deadline = Instant::now() + ASK_AGAIN;
        let busy = loop {
            let (begun, work, way, seen) = {
                let chunks = lock(&self.chunks);
                let begun = chunks.begun(place).copied();
                (begun, chunks.work, chunks.way, chunks.changes)
            };
            let now = Instant::now();
            let others = self.flow.lowest_ready().is_none_or(|low| low >= place);
            let at = begun.and_then(|b| b.at);
            let until = match begun {
                None if is_end && (others || now >= deadline) => break None,
                None if is_end => deadline,
                // It is over here, or is not applied here, but by others: they take about as long as
                // those took that were begun here.
                None => {
                    let until = (since.at + work * OTHERS_TIMES).min(deadline);
                    if others || now >= until || self.gates.released() >= place {
                        break Some((now - since.at).min(work * OTHERS_TIMES));
                    }
                    until
                }
                Some(Begun { ready: Some(_), .. }) if others || !is_end => {
                    break at.map(|at| now - at);
                }
                Some(Begun {
                    ready: Some(took), ..
                }) => match at.map(|at| at + took + for_others(took)) {
                    Some(until) if now < until => until.min(deadline),
                    _ => break None,
                },
                Some(_) => {
                    let early = work.mul_f64(PART_DONE).saturating_sub(way);
                    match at.filter(|_| !is_end).map(|at| at + early) {
                        Some(until) if now < until => until.min(deadline),
                        Some(_) => break at.map(|at| now - at),
                        None => deadline,
                    }
                }
            };
            if now >= deadline {
                return false;
            }
            // Reports wake it, too.
            self.wait_chunks(seen, until - now);
        };
        if let (Some(busy), Some(share), false) = (busy, self.chunks_share(), is_end) {
            let pause = busy.mul_f64(1.0 / share - 1.0).min(LEAST_MAX);
            let by = Some(Instant::now() + pause);
            let waited = self.gates.wait_released(Seqno::MAX, waiter, false, by);
            let nanos = pause.as_nanos() as u64;
            self.counters.bulk_held_ns.fetch_add(nanos, Relaxed);
            return waited != Err(WaitError::Closed);
        }
        true
    }

    /// Leaves small ones their time, as what comes next stops them: see `turn.rs`.
    fn wait_turn_of_small(
        &self,
        waiter: &Arc<Waiter>,
        turns: &mut Turns,
        since: Since,
        in_its_turn: Instant,
    ) -> bool {
        let at = since.released;
        let applied = Instant::now();
        let share = self.chunks_share();
        let mut cycle = Cycle {
            blocked: applied - in_its_turn,
            way: lock(&self.chunks).way,
            share,
            ..Cycle::default()
        };
        let mut tail = None;
        loop {
            let released = self.gates.released();
            cycle.elapsed = since.at.elapsed();
            cycle.turn = applied.elapsed();
            // The chunk is one of them.
            cycle.passed = (released - at - 1).max(0) as u64;
            let Some((passed, left)) = turns.wait(&cycle) else {
                break;
            };
            // Those that waited come first: at what pace others come, says the last third.
            let measured = passed == u64::MAX && tail.is_none();
            let until = at.saturating_add_unsigned(passed.saturating_add(1));
            let by = Some(Instant::now() + if measured { left * 2 / 3 } else { left });
            if self.gates.wait_released(until, waiter, false, by) == Err(WaitError::Closed) {
                return false;
            }
            if measured {
                tail = Some((Instant::now(), self.gates.released()));
            }
        }
        let now = self.gates.released();
        turns.over(tail.map(|(from, at)| (from.elapsed(), (now - at).max(0) as u64)));
        true
    }
}

/// Places before the end of a transaction in so many `chunks`, at whatever pace small ones come: in 4 ms a
/// chunk, which is more than any server was seen to take, 2,000 a second. Those left over are no more
/// than that, as certification looks back by numbers, too.
fn for_an_end(chunks: u32) -> u32 {
    chunks.saturating_mul(8).saturating_add(64).min(AHEAD_MAX)
}

/// How long an end that is ready here, which `took` so long, waits for others to be ready, too. The
/// one that is not would stand still for the rest of it, and small ones can come meanwhile.
fn for_others(took: Duration) -> Duration {
    (took * END_TIMES).clamp(ASK_AGAIN / 10, END_MAX)
}

/// Asks for chunks until nothing is open.
fn pace(node: &Weak<Node>) {
    let waiter = Arc::new(Waiter::new());
    let mut turns = Turns::default();
    // When a chunk was asked for last, and what had come by then.
    let mut asked = None;
    loop {
        let Some(node) = node.upgrade() else { return };
        let (step, seen) = node.next_step();
        match step {
            Step::End => return,
            Step::Wait(time) => node.wait_chunks(seen, time),
            Step::Ask(ask) => match node.order() {
                Some(order) if node.serving() => {
                    let now = || Since {
                        at: Instant::now(),
                        small: node.count_small.load(Relaxed),
                        released: node.gates.released(),
                    };
                    let since = *asked.get_or_insert_with(now);
                    match node.wait_for_turn(&waiter, &mut turns, since, &ask) {
                        Some(ahead) => {
                            asked = Some(now());
                            node.ask_for_chunk(&order, ask.id, ask.n, ahead);
                        }
                        // The gates may be closed already.
                        None => node.wait_chunks(seen, ASK_AGAIN / 4),
                    }
                }
                _ => node.wait_chunks(seen, ASK_AGAIN / 4),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_short_one_uses_up_few_numbers() {
        let of = [0, 3, 32, 504, 505, u32::MAX].map(for_an_end);
        assert_eq!(of, [64, 88, 320, 4096, 4096, 4096]);
    }

    #[test]
    fn who_is_slower_gets_time_but_not_for_ever() {
        let of = |ms| for_others(Duration::from_millis(ms)).as_millis();
        assert_eq!(
            [of(0), of(10), of(800), of(60_000)],
            [100, 100, 2_400, 4_000]
        );
    }
}
