//! When the next fragment of a streaming transaction that a client asked for may
//! be ordered. Pure: the times come from outside.
//!
//! ```text
//!    goes    ordered                  applied by all others          next one goes
//!   ──●────────●────────────────────────●──────────────────────────────●──
//!              <──────── work ──────────>                                  the longer
//!              <─ the client makes the next one ─>                         of both
//!                                                 <─── pause, if a share is set ───>
//! ```
//!
//! Work is what so many bytes have taken lately, whoever they came from. Taken from each
//! client's own fragments it would hold those of others that came before them, and whoever
//! comes behind another one once would pause longer, and come behind again.
//!
//! 1. No client is far ahead of the others' apply queues: [`AHEAD`] bytes and a
//!    fourth of what flow control allows are shared by all who stream now, on any
//!    node. One fragment each is always right, two if there is only one client.
//! 2. While anybody orders small ones, a client's fragments go in bursts of [`BURST`]
//!    bytes. Between two of them is a pause, so that work takes its share of the time,
//!    divided by all who stream now. The next one's way to its place is part of the pause. If no share is set it is [`SHARE`], the time in
//!    which the client makes the next ones counts as pause, and fragments below
//!    [`LITTLE`] go without: between them is room as it is.
//!
//! A client is small, and never waits, as long as it has not sent [`SMALL`] bytes
//! without a rest: also one whose every transaction streams.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use dromon_writeset::{Seqno, Uuid};

/// Who streams: a node and a connection there.
pub type Client = (Uuid, u64);

/// Up to so many bytes of fragments a client counts as small.
pub const SMALL: u64 = 256 << 10;
/// So many bytes of fragments may be ordered that some member has not applied.
pub const AHEAD: u64 = 256 << 10;
/// So many bytes are ordered between two pauses; at least one fragment. With five of them at once
/// small ones wait behind all five, by measurement.
pub const BURST: u64 = 64 << 10;
/// What part of the time the others are kept busy beside small ones, if nothing is set. By
/// measurement: then large ones take about as long as on the peer, which does not pause.
pub const SHARE: f64 = 0.8;
/// Fragments below so many bytes are not held back by that.
pub const LITTLE: u64 = 32 << 10;
/// No fragment waits longer.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// A client that sent nothing for so long, longer than [`PATIENCE`], rests, and is
/// forgotten.
const ACTIVE: Duration = Duration::from_secs(6);
/// Making the next fragment counts as work up to so many times what applying one
/// takes; beyond that it is the client who rests.
const MADE_MAX: u32 = 3;
/// A burst that took longer had another reason for it, and so had what is reported at once.
const WORK_MAX: Duration = Duration::from_millis(250);
/// What the others took for a byte is a mean over so many, and twice as many.
const LATELY: u64 = 4 << 20;

/// What is set, and what else is under way.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Above so many events in its queue a member asks for a pause.
    pub queue: usize,
    /// What part of the time all of them may take beside small ones, above 0, at
    /// most 1, if that is set.
    pub share: Option<f64>,
    /// How many large transactions are applied in chunks now.
    pub chunked: usize,
}

impl Limits {
    /// Whether the share holds a fragment of `len` bytes back.
    fn holds(&self, len: u64) -> bool {
        self.share.is_some() || len >= LITTLE
    }
}

/// What a fragment does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It may be ordered.
    Go,
    /// It waits until the others have applied more.
    WhenApplied,
    /// It waits until this time.
    At(Duration),
}

/// All who stream, as the order shows them.
#[derive(Debug, Default)]
pub struct Bulk {
    clients: BTreeMap<Client, State>,
    /// Small write sets ordered, by anybody.
    small: u64,
    /// When others were last heard to have applied a fragment.
    heard: Duration,
    /// How long they took lately, and for how many bytes.
    applied: (Duration, u64),
    pruned: Duration,
}

#[derive(Debug, Default)]
struct State {
    seen: Duration,
    bytes: u64,
    /// Of the last fragment.
    len: u64,
    /// Its transaction is over, and the next one has not begun.
    rests: bool,
    /// Ordered, and not known to be applied by all others.
    under_way: VecDeque<Fragment>,
    /// How many small ones had been ordered when the last one was.
    small_then: u64,
    burst: Burst,
    /// When its fragment went that has no place yet, if it is of this node.
    sent: Option<Duration>,
    /// How long the last one was on its way to its place.
    way: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Fragment {
    seqno: Seqno,
    len: u64,
    /// When it was ordered.
    at: Duration,
}

#[derive(Debug, Default)]
struct Burst {
    bytes: u64,
    /// How long the client took to make those behind the first one.
    made: Duration,
    /// When its first fragment was ordered, and its last.
    ordered: Option<(Duration, Duration)>,
    /// Small ones that were ordered when the burst before was through.
    small: u64,
}

impl Bulk {
    /// Whether a client has a fragment of `len` bytes ordered now; it has been
    /// `ready` since then.
    pub fn next(
        &mut self,
        client: Client,
        len: u64,
        ready: Duration,
        now: Duration,
        limits: &Limits,
    ) -> Next {
        let small = self.small;
        match self.clients.get_mut(&client) {
            Some(state) if state.is_large() => state.seen = now,
            _ => return Next::Go,
        }
        if now.saturating_sub(ready) >= PATIENCE {
            return Next::Go;
        }
        // This one may just begin its next transaction.
        let held = limits.holds(len);
        let active = self.active(now).max(1) + limits.chunked;
        let state = &self.clients[&client];
        if state.is_ahead(len, active, limits.queue) {
            return Next::WhenApplied;
        }
        if !held || small <= state.burst.small || !state.ends_burst(len) {
            return Next::Go;
        }
        let applied = self.takes(state.burst.bytes);
        let made = match limits.share {
            Some(_) => state.made(ready),
            None => Duration::ZERO,
        };
        let share = match limits.share {
            Some(share) => share / active as f64,
            None => SHARE / self.held(now).max(1) as f64,
        };
        state.after_burst(applied, made, share, now)
    }

    /// A client's fragment, that was `ready` since then, is sent.
    pub fn goes(
        &mut self,
        client: Client,
        len: u64,
        ready: Duration,
        now: Duration,
        limits: &Limits,
    ) {
        let state = self.client(client);
        state.seen = now;
        state.sent = Some(now);
        if !limits.holds(len) {
            return;
        }
        if state.ends_burst(len) {
            state.burst = Burst {
                small: state.small_then,
                ..Burst::default()
            };
        } else {
            state.burst.made = state.made(ready);
        }
        state.burst.bytes += len;
    }

    /// A fragment took its place.
    pub fn ordered(&mut self, client: Client, seqno: Seqno, len: u64, now: Duration) {
        if now.saturating_sub(self.pruned) >= ACTIVE {
            self.pruned = now;
            self.clients.retain(|_, s| s.is_known(now));
        }
        let state = self.client(client);
        state.seen = now;
        state.rests = false;
        state.bytes += len;
        state.len = len;
        if let Some(sent) = state.sent.take() {
            state.way = now.saturating_sub(sent);
        }
        state.under_way.push_back(Fragment {
            seqno,
            len,
            at: now,
        });
        let ordered = &mut state.burst.ordered;
        *ordered = Some((ordered.map_or(now, |(first, _)| first), now));
        if !state.is_large() {
            self.small += 1;
        }
    }

    /// A client's transaction is over.
    pub fn ended(&mut self, client: Client) {
        if let Some(state) = self.clients.get_mut(&client) {
            state.rests = true;
        }
    }

    /// A small write set took its place.
    pub fn small(&mut self) {
        self.small += 1;
    }

    /// All others have applied everything up to `upto`; none: nobody else applies anything.
    /// Whether that was news.
    pub fn applied(&mut self, upto: Option<Seqno>, now: Duration) -> bool {
        let others = upto.is_some();
        let upto = upto.unwrap_or(Seqno::MAX);
        // One after the other, since the last was, or the first of these was ordered.
        let through = |s: &State| s.under_way.iter().take_while(|f| f.seqno <= upto).count();
        let all = || {
            let states = self.clients.values();
            states.flat_map(|s| s.under_way.iter().take(through(s)))
        };
        let Some(first) = all().map(|f| f.at).min() else {
            return false;
        };
        let took = now.saturating_sub(first.max(self.heard));
        let bytes: u64 = all().map(|f| f.len).sum();
        for state in self.clients.values_mut() {
            let passed = state.under_way.drain(..through(state)).count();
            if passed > 0 && state.under_way.is_empty() {
                state.small_then = self.small;
            }
        }
        self.heard = now;
        let (lately, of) = &mut self.applied;
        if *of > LATELY {
            (*lately, *of) = (*lately / 2, *of / 2);
        }
        if others {
            *lately += took.min(WORK_MAX);
        }
        *of += bytes;
        true
    }

    /// How long the others take for `len` bytes of fragments.
    fn takes(&self, len: u64) -> Duration {
        let (lately, of) = self.applied;
        lately.mul_f64(len as f64 / of.max(1) as f64)
    }

    /// Whether a client has sent more than small ones do.
    pub fn is_large(&self, client: Client) -> bool {
        self.clients.get(&client).is_some_and(State::is_large)
    }

    /// How many stream large amounts now.
    pub fn active(&self, now: Duration) -> usize {
        let large = |s: &&State| s.is_large() && s.is_active(now);
        self.clients.values().filter(large).count()
    }

    /// How many of them are held back if no share is set.
    fn held(&self, now: Duration) -> usize {
        let held = |s: &&State| s.is_large() && s.is_active(now) && s.len >= LITTLE;
        self.clients.values().filter(held).count()
    }

    /// Whether nobody streams.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// They belong to a connection to the cluster.
    pub fn clear(&mut self) {
        *self = Bulk::default();
    }

    fn client(&mut self, client: Client) -> &mut State {
        let small = self.small;
        self.clients.entry(client).or_insert_with(|| State {
            small_then: small,
            burst: Burst {
                small,
                ..Burst::default()
            },
            ..State::default()
        })
    }
}

impl State {
    fn is_large(&self) -> bool {
        self.bytes >= SMALL
    }

    fn is_known(&self, now: Duration) -> bool {
        !self.under_way.is_empty() || now.saturating_sub(self.seen) < ACTIVE
    }

    fn is_active(&self, now: Duration) -> bool {
        self.is_known(now) && !(self.rests && self.under_way.is_empty())
    }

    fn is_ahead(&self, len: u64, active: usize, queue: usize) -> bool {
        let active = active.max(1);
        // The second one is there when the first is applied.
        let right = if active == 1 { 2 } else { 1 };
        let (parts, most) = (self.under_way.len(), (queue / 4 / active).max(right));
        let bytes: u64 = self.under_way.iter().map(|f| f.len).sum();
        parts >= right && (parts >= most || bytes + len > AHEAD / active as u64)
    }

    fn ends_burst(&self, len: u64) -> bool {
        self.burst.bytes > 0 && self.burst.bytes + len > BURST
    }

    /// How long the client has made fragments behind the first of its burst, one of which
    /// is `ready` since then.
    fn made(&self, ready: Duration) -> Duration {
        let last = self.burst.ordered.map_or(ready, |(_, last)| last);
        self.burst.made + ready.saturating_sub(last)
    }

    /// `applied`: how long the others take for the burst. `made`: what of the client's own
    /// work for it counts.
    fn after_burst(&self, applied: Duration, made: Duration, share: f64, now: Duration) -> Next {
        if !self.under_way.is_empty() {
            return Next::WhenApplied;
        }
        let Some((began, _)) = self.burst.ordered else {
            return Next::Go; // none of it passed
        };
        let work = applied.max(made.min(applied * MADE_MAX));
        let pause = work.min(WORK_MAX).mul_f64(1.0 / share - 1.0);
        // While the next one is on its way nobody applies any of it either.
        let until = began + work + pause.saturating_sub(self.way);
        if now >= until {
            Next::Go
        } else {
            Next::At(until)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    const FREE: Limits = Limits {
        queue: 27,
        share: None,
        chunked: 0,
    };

    /// A client of a model in which the others apply one write set after the other.
    #[derive(Clone, Copy, Debug)]
    struct Streamer {
        /// Its node; its number is its connection.
        node: u8,
        len: u64,
        /// Milliseconds to make a fragment.
        makes: u64,
    }

    #[derive(Debug, Default)]
    struct Ran {
        /// Bytes applied of each client.
        bytes: Vec<u64>,
        /// Part of the time in which fragments were applied.
        busy: f64,
        /// Most bytes that were ordered and not applied.
        ahead: u64,
        /// Longest wait of one fragment.
        waited: Duration,
    }

    #[derive(Clone, Copy)]
    enum Doing {
        Makes(u64),
        Waits(u64),
        OnItsWay(u64),
    }

    /// Runs for `time` milliseconds. The others apply `speed` bytes in one; reports
    /// take one, and ordering does.
    fn run(streamers: &[Streamer], time: u64, speed: u64, load: bool, share: Option<f64>) -> Ran {
        let limits = Limits { share, ..FREE };
        let nodes = streamers.iter().map(|s| s.node);
        let mut bulks: BTreeMap<u8, Bulk> = nodes.map(|n| (n, Bulk::default())).collect();
        let client = |i: usize| (Uuid([streamers[i].node; 16]), i as u64);
        let mut doing: Vec<_> = streamers.iter().map(|s| Doing::Makes(s.makes)).collect();
        let mut queue: VecDeque<(Seqno, usize, u64)> = VecDeque::new();
        let (mut seqno, mut applied) = (0, 0);
        let mut ran = Ran {
            bytes: vec![0; streamers.len()],
            ..Ran::default()
        };
        let mut busy = 0;
        for ms in 0..time {
            let now = MS(ms);
            for (i, s) in streamers.iter().enumerate() {
                if let Doing::Makes(until) = doing[i]
                    && ms >= until
                {
                    doing[i] = Doing::Waits(ms);
                }
                if let Doing::Waits(since) = doing[i]
                    && let Some(bulk) = bulks.get_mut(&s.node)
                {
                    let next = bulk.next(client(i), s.len, MS(since), now, &limits);
                    if next == Next::Go {
                        bulk.goes(client(i), s.len, MS(since), now, &limits);
                        ran.waited = ran.waited.max(now - MS(since));
                        doing[i] = Doing::OnItsWay(ms + 1);
                    }
                }
                if let Doing::OnItsWay(at) = doing[i]
                    && ms >= at
                {
                    seqno += 1;
                    queue.push_back((seqno, i, s.len));
                    for bulk in bulks.values_mut() {
                        bulk.ordered(client(i), seqno, s.len, now);
                    }
                    doing[i] = Doing::Makes(ms + s.makes);
                }
            }
            for bulk in bulks.values_mut() {
                bulk.applied(Some(applied), now);
                if load {
                    bulk.small();
                }
            }
            let ahead = queue.iter().map(|(_, i, _)| streamers[*i].len).sum();
            ran.ahead = ran.ahead.max(ahead);
            busy += u64::from(!queue.is_empty());
            let mut left = speed;
            while let Some((at, i, rest)) = queue.front_mut() {
                if *rest > left {
                    *rest -= left;
                    break;
                }
                left -= *rest;
                ran.bytes[*i] += streamers[*i].len;
                applied = *at;
                queue.pop_front();
            }
        }
        ran.busy = busy as f64 / time as f64;
        ran
    }

    const ONE: Streamer = Streamer {
        node: 1,
        len: 1 << 20,
        makes: 20,
    };
    /// Bytes a millisecond: 1 MB takes 32 ms.
    const SPEED: u64 = 32 << 10;

    #[test]
    fn without_small_ones_the_others_always_have_something_to_do() {
        for len in [10_000, 100_000, 1 << 20] {
            // The origin is a little faster than the others.
            let makes = (len / SPEED) * 2 / 3;
            let one = Streamer { len, makes, ..ONE };
            let ran = run(&[one], 20_000, SPEED, false, None);
            // One more to be ordered.
            let most = (SPEED * 20_000).min(len * 20_000 / (makes.max(1) + 1));
            assert!(ran.bytes[0] > most * 8 / 10, "{len}: {ran:?} of {most}");
            assert!(ran.ahead <= AHEAD.max(2 * len), "{len}: {ran:?}");
        }
    }

    #[test]
    fn small_ones_have_a_part_of_the_time_if_nothing_is_set() {
        for len in [10_000, 100_000, 1 << 20] {
            let makes = (len / SPEED) * 2 / 3;
            let one = Streamer { len, makes, ..ONE };
            let alone = run(&[one], 20_000, SPEED, false, None).bytes[0] as f64;
            let ran = run(&[one], 20_000, SPEED, true, None);
            let part = ran.bytes[0] as f64 / alone;
            if len < LITTLE {
                assert!(part > 0.98, "{len}: {part}");
            } else {
                assert!(ran.busy <= SHARE + 0.05, "{len}: {ran:?}");
                // A report and the next one's way take a millisecond each, and a fragment begun ones.
                let work = len.div_ceil(SPEED) as f64;
                let least = (len as f64 / SPEED as f64) / (work / SHARE).max(work + 2.0);
                assert!((least * 0.8..SHARE * 1.1).contains(&part), "{len}: {part}");
            }
            assert!(ran.ahead <= AHEAD.max(2 * len), "{len}: {ran:?}");
        }
        // Who makes them that slowly leaves them the time already.
        let slow = Streamer { makes: 20, ..ONE };
        let slow = Streamer {
            len: 10_000,
            ..slow
        };
        let alone = run(&[slow], 20_000, SPEED, false, None).bytes[0];
        let ran = run(&[slow], 20_000, SPEED, true, None);
        assert!(ran.bytes[0] >= alone * 98 / 100, "{ran:?} of {alone}");
    }

    #[test]
    fn the_way_of_the_next_one_is_part_of_the_pause() {
        let (me, now) = ((Uuid([1; 16]), 1), MS(1000));
        let after = |way: u64| {
            let mut bulk = Bulk::default();
            for n in 0..2 {
                let sent = now + MS(n * 100) - MS(way);
                bulk.goes(me, 1 << 20, sent, sent, &FREE);
                bulk.ordered(me, n as Seqno + 1, 1 << 20, now + MS(n * 100));
                bulk.small();
                bulk.applied(Some(n as Seqno + 1), now + MS(n * 100 + 40));
            }
            bulk.small();
            let ready = now + MS(141);
            match bulk.next(me, 1 << 20, ready, ready, &FREE) {
                Next::At(until) => until - now,
                next => panic!("{next:?}"),
            }
        };
        // 40 ms of work and 10 of pause behind the second one, which was ordered 100 ms later.
        assert_eq!(after(0), MS(150));
        assert_eq!(after(6), MS(144));
    }

    #[test]
    fn a_share_makes_it_take_that_much_longer() {
        let alone = run(&[ONE], 20_000, SPEED, false, None).bytes[0] as f64;
        for share in [0.25, 0.5, 0.7] {
            let ran = run(&[ONE], 20_000, SPEED, true, Some(share));
            let part = ran.bytes[0] as f64 / alone;
            assert!(
                (share * 0.8..share * 1.02).contains(&part),
                "{share}: {part}"
            );
            let free = run(&[ONE], 20_000, SPEED, false, Some(share)).bytes[0] as f64;
            assert!(free > alone * 0.95, "no load, no pause: {free} of {alone}");
        }
        let whole = run(&[ONE], 20_000, SPEED, true, Some(1.0)).bytes[0] as f64;
        assert!(whole > alone * 0.85, "{whole} of {alone}");
    }

    #[test]
    fn a_client_that_thinks_is_not_slowed_down() {
        let slow = Streamer { makes: 500, ..ONE };
        let alone = run(&[slow], 20_000, SPEED, true, None).bytes[0];
        let ran = run(&[slow], 20_000, SPEED, true, Some(0.3));
        assert!(ran.bytes[0] >= alone * 98 / 100, "{ran:?} of {alone}");
        assert!(ran.waited < MS(3), "{ran:?}");
    }

    #[test]
    fn who_is_not_held_back_takes_no_part_of_the_share_if_none_is_set() {
        let large = Streamer {
            len: 64 << 10,
            makes: 1,
            ..ONE
        };
        let little = Streamer {
            len: 10_000,
            makes: 9,
            ..ONE
        };
        let all = [large, little, little, little, little];
        let ran = run(&all, 20_000, SPEED, true, None);
        let free = run(&all, 20_000, SPEED, false, None);
        assert!(ran.bytes[0] > free.bytes[0] * 6 / 10, "{ran:?} {free:?}");
    }

    #[test]
    fn where_nobody_else_applies_nothing_is_work() {
        let mut bulk = Bulk::default();
        let limits = FREE;
        let client = (Uuid([1; 16]), 7);
        for n in 1..100 {
            let now = MS(n * 100);
            bulk.applied(None, now);
            bulk.small();
            let next = bulk.next(client, 1 << 20, now, now, &limits);
            assert_eq!(next, Next::Go, "{n}");
            bulk.goes(client, 1 << 20, now, now, &limits);
            bulk.ordered(client, n as Seqno, 1 << 20, now);
        }
    }

    #[test]
    fn small_clients_never_wait() {
        let mut bulk = Bulk::default();
        let limits = Limits {
            share: Some(0.01),
            chunked: 3,
            ..FREE
        };
        let client = (Uuid([1; 16]), 7);
        for n in 0..SMALL / 1000 {
            let now = MS(n);
            assert_eq!(bulk.next(client, 1000, now, now, &limits), Next::Go);
            bulk.goes(client, 1000, now, now, &limits);
            bulk.ordered(client, n as Seqno, 1000, now);
        }
        assert!(!bulk.is_large(client));
        bulk.ordered(client, 999, 1000, MS(300));
        let next = bulk.next(client, 1000, MS(301), MS(301), &limits);
        assert_eq!(next, Next::WhenApplied);
        // With a rest it is a small one again.
        assert!(bulk.applied(Some(999), MS(310)));
        assert!(!bulk.applied(Some(999), MS(311)), "no news");
        bulk.ordered((Uuid([2; 16]), 1), 1000, 1, MS(10_000));
        assert!(!bulk.is_large(client));
        bulk.clear();
        assert!(bulk.is_empty());
    }

    #[test]
    fn nobody_waits_longer_than_some_seconds_for_who_does_not_apply() {
        let mut bulk = Bulk::default();
        let limits = FREE;
        let client = (Uuid([1; 16]), 7);
        for n in 1..3 {
            bulk.goes(client, SMALL, MS(n), MS(n), &limits);
            bulk.ordered(client, n as Seqno, SMALL, MS(n));
        }
        let mut at = |ms| bulk.next(client, SMALL, MS(10), MS(ms), &limits);
        assert_eq!(at(10), Next::WhenApplied);
        assert_eq!(at(5009), Next::WhenApplied);
        assert_eq!(at(5010), Next::Go);
    }

    fn streamer() -> impl Strategy<Value = Streamer> {
        (1u8..4, 12u32..21, 0u64..30).prop_map(|(node, log2, makes)| Streamer {
            node,
            len: 1 << log2,
            makes,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 64,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn all_together_keep_to_the_share(
            all in proptest::collection::vec(streamer(), 1..4),
            share in 0.2f64..1.0,
        ) {
            let ran = run(&all, 20_000, SPEED, true, Some(share));
            // The first SMALL bytes of each are free, and a burst may be under way.
            prop_assert!(ran.busy <= share + 0.05, "{ran:?}");
        }

        #[test]
        fn all_go_on_and_stay_near(
            all in proptest::collection::vec(streamer(), 1..5),
            share in proptest::option::of(0.05f64..1.0),
            load: bool,
        ) {
            let ran = run(&all, 20_000, SPEED, load, share);
            prop_assert!(ran.waited <= PATIENCE + MS(1), "{ran:?}");
            prop_assert!(ran.bytes.iter().all(|b| *b > SMALL), "{ran:?}");
            let parts: u64 = all.iter().map(|s| 2 * s.len).sum();
            prop_assert!(ran.ahead <= AHEAD + SMALL * all.len() as u64 + parts, "{ran:?}");
        }

        #[test]
        fn equal_ones_share_fairly(
            one in streamer(),
            n in 2u8..4,
            same_node: bool,
            share in proptest::option::of(0.3f64..1.0),
        ) {
            let of = |i| Streamer { node: if same_node { 1 } else { i }, ..one };
            let all: Vec<_> = (0..n).map(of).collect();
            let ran = run(&all, 20_000, SPEED, true, share);
            let (least, most) = (ran.bytes.iter().min(), ran.bytes.iter().max());
            let (least, most) = (*least.unwrap_or(&0), *most.unwrap_or(&0));
            prop_assert!(least * 10 >= most * 8, "{ran:?}");
        }
    }
}
