//! What this node wants ordered and has not seen ordered yet.
//!
//! A message goes through three places:
//!
//! ```text
//!   push ──> small ones ──┐
//!        └─> large ones ──┴─> in flight (numbered) ──> confirmed, gone
//!            (cut here)        └── sent again from the front when in doubt
//! ```
//!
//! * A number is given when a message, or a piece of a large one, enters the
//!   flight, and stays with its bytes for ever. The [`Sequencer`] of every
//!   member takes each number once and in order, so sending again is harmless.
//! * Small messages keep their order among themselves. They pass large ones:
//!   after each piece as many bytes of small messages may go as a piece has;
//!   large ones take turns piece by piece, and only a limited number of bytes
//!   of pieces is in flight at once. No large one passes a small one that was
//!   pushed before it: its last piece waits.
//! * While the queue is held ([`hold`](PendingQueue::hold)) no number is given.
//!   What has none was never sent, so it can be taken back
//!   ([`withdraw`](PendingQueue::withdraw)); what has one cannot.
//! * The machine reads no clock: `now` is the time since any fixed moment.
//!
//! [`Sequencer`]: crate::sequencer::Sequencer

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dromon_writeset::Uuid;

use crate::checked::{Check, Sums};
use crate::network::SLOWEST;
use crate::pacing::Pacing;
use crate::sequencer::{Part, RawMessage};
use crate::types::RaftId;

/// How much longer confirmation is waited for, at most, for what is on its way.
const TRAVELS_MAX: Duration = Duration::from_secs(30);

/// Limits of a [`PendingQueue`].
#[derive(Clone, Debug, PartialEq)]
pub struct PendingLimits {
    /// Bodies longer than this travel in pieces of this size, in bytes.
    pub piece_bytes: usize,
    /// Bytes of pieces in flight at once. One piece may always be.
    pub pieces_in_flight: usize,
    /// What part of the time pieces may be under way while small messages are
    /// ordered, by whomever: 0.01 to 1.
    pub bulk_share: f64,
    /// Messages in the queue, in flight or not.
    pub max_count: usize,
    /// Their bytes. A single message may exceed it if it is alone.
    pub max_bytes: usize,
    /// Without progress for this long, and for as long as what is in flight takes on the slowest way that is
    /// enough, everything in flight is sent again; doubled after each time in vain, up to 16-fold.
    pub resend_after: Duration,
    /// How long to hold back after a refusal; doubled likewise, up to
    /// `resend_after`.
    pub refused_pause: Duration,
}

impl Default for PendingLimits {
    fn default() -> Self {
        PendingLimits {
            piece_bytes: 64 << 10,
            pieces_in_flight: 1 << 20,
            bulk_share: 1.0,
            max_count: 65_536,
            max_bytes: 512 << 20,
            resend_after: Duration::from_secs(1),
            refused_pause: Duration::from_millis(10),
        }
    }
}

/// Why a message was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The queue is at a limit.
    #[error(
        "{count} messages with {bytes} bytes of this node wait to be ordered (limits {max_count} and \
         {max_bytes}); nothing was queued: wait and try again"
    )]
    Full {
        /// Messages in the queue.
        count: usize,
        /// Their bytes.
        bytes: usize,
        /// Limit of messages.
        max_count: usize,
        /// Limit of bytes.
        max_bytes: usize,
    },
    /// More pieces than can be counted.
    #[error(
        "a message of {len} bytes cannot be cut into pieces of {piece_bytes}; nothing was queued"
    )]
    TooLarge {
        /// The message's length.
        len: usize,
        /// The size of a piece.
        piece_bytes: usize,
    },
}

/// What an own message seen in the committed log meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It counts: it, and nothing else, left the flight.
    Confirmed,
    /// Its number had counted before.
    Duplicate,
    /// A number before it has not come yet, so it does not count.
    Gap,
}

/// A picture for the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingStatus {
    /// Messages not fully confirmed (a large one counts once).
    pub count: usize,
    /// Their unconfirmed bytes.
    pub bytes: usize,
    /// Large messages not yet completely in flight.
    pub large: usize,
    /// Times everything in flight was taken back to be sent again.
    pub rewinds: u64,
    /// Messages and pieces sent again.
    pub resent: u64,
}

struct Small {
    kind: u8,
    tag: u64,
    body: Bytes,
    /// How many were pushed with this one.
    pushed: u64,
}

struct Large {
    kind: u8,
    tag: u64,
    rest: Bytes,
    /// As of a small one.
    pushed: u64,
    stream: u64,
    next: u32,
    n: u32,
}

/// Counted beside a body's bytes, so that empty ones are not free.
const OVERHEAD: usize = 64;

/// The queue of one origin. See the module's words.
pub struct PendingQueue {
    origin: Uuid,
    limits: PendingLimits,
    small: VecDeque<Small>,
    large: VecDeque<Large>,
    /// Large ones that are compared as they are sent, by their streams.
    checks: BTreeMap<u64, Arc<Mutex<Check>>>,
    /// Numbers `confirmed + 1 ..` without gaps.
    flight: VecDeque<RawMessage>,
    /// How many of `flight` the current leader has been sent.
    sent: usize,
    /// Their bodies' bytes.
    sent_bytes: usize,
    /// The highest number sent to anyone.
    sent_high: u64,
    confirmed: u64,
    /// The highest number sent when the flight was last taken back. A gap at
    /// or below it is an echo of an older attempt.
    rewind_high: u64,
    piece_bytes: usize,
    count: usize,
    bytes: usize,
    /// Bytes of small messages that may go before the next piece.
    small_credit: usize,
    pacing: Pacing,
    next_stream: u64,
    pushed: u64,
    leader: Option<(RaftId, u64)>,
    /// No numbers are given.
    held: bool,
    /// Pieces get none.
    pieces_held: bool,
    progress_at: Duration,
    vain: u32,
    hold_until: Option<Duration>,
    refusals: u32,
    rewinds: u64,
    resent: u64,
}

impl PendingQueue {
    /// An empty queue, without a leader. `origin` must be fresh, and
    /// registered in the log before [`next_batch`](Self::next_batch) is first
    /// called: numbers that come before the registration do not count.
    pub fn new(origin: Uuid, limits: PendingLimits) -> Self {
        let limits = PendingLimits {
            piece_bytes: limits.piece_bytes.max(1),
            ..limits
        };
        PendingQueue {
            origin,
            small_credit: limits.piece_bytes,
            pacing: Pacing::new(limits.bulk_share),
            limits,
            small: VecDeque::new(),
            large: VecDeque::new(),
            checks: BTreeMap::new(),
            flight: VecDeque::new(),
            sent: 0,
            sent_bytes: 0,
            sent_high: 0,
            confirmed: 0,
            rewind_high: 0,
            piece_bytes: 0,
            count: 0,
            bytes: 0,
            next_stream: 1,
            pushed: 0,
            leader: None,
            held: false,
            pieces_held: false,
            progress_at: Duration::ZERO,
            vain: 0,
            hold_until: None,
            refusals: 0,
            rewinds: 0,
            resent: 0,
        }
    }

    /// Forgets everything and goes on under a new origin, numbering from 1.
    /// What was sent under the old one may still be ordered.
    pub fn reset(&mut self, origin: Uuid) {
        let (leader, held, pieces_held) = (self.leader, self.held, self.pieces_held);
        *self = PendingQueue::new(origin, self.limits.clone());
        self.leader = leader;
        self.held = held;
        self.pieces_held = pieces_held;
    }

    /// Under whom the messages travel.
    pub fn origin(&self) -> Uuid {
        self.origin
    }

    /// Adds a message. Returns how many were pushed with this one: 1, 2, 3, …
    /// (not its number in the log, which it gets later).
    pub fn push(&mut self, kind: u8, tag: u64, body: Bytes) -> Result<u64, PushError> {
        self.push_with(kind, tag, body, None)
    }

    /// The same. A large one is compared as it is sent ([`check_of`](Self::check_of)).
    pub(crate) fn push_checked(
        &mut self,
        kind: u8,
        tag: u64,
        body: Bytes,
        sums: Sums,
    ) -> Result<u64, PushError> {
        self.push_with(kind, tag, body, Some(sums))
    }

    fn push_with(
        &mut self,
        kind: u8,
        tag: u64,
        body: Bytes,
        sums: Option<Sums>,
    ) -> Result<u64, PushError> {
        let cost = body.len() + OVERHEAD;
        if self.count >= self.limits.max_count
            || (self.count > 0 && self.bytes + cost > self.limits.max_bytes)
        {
            return Err(PushError::Full {
                count: self.count,
                bytes: self.bytes,
                max_count: self.limits.max_count,
                max_bytes: self.limits.max_bytes,
            });
        }
        let pushed = self.pushed + 1;
        if body.len() <= self.limits.piece_bytes {
            self.small.push_back(Small {
                kind,
                tag,
                body,
                pushed,
            });
        } else {
            let n = body.len().div_ceil(self.limits.piece_bytes);
            let n = u32::try_from(n).ok().filter(|n| *n < u32::MAX);
            let n = n.ok_or(PushError::TooLarge {
                len: body.len(),
                piece_bytes: self.limits.piece_bytes,
            })?;
            if let Some(sums) = sums {
                let check = Arc::new(Mutex::new(Check::new(sums)));
                self.checks.insert(self.next_stream, check);
            }
            self.large.push_back(Large {
                kind,
                tag,
                rest: body,
                pushed,
                stream: self.next_stream,
                next: 0,
                n,
            });
            self.next_stream += 1;
        }
        self.count += 1;
        self.bytes += cost;
        self.pushed = pushed;
        Ok(pushed)
    }

    /// What to send to the current leader now, in this order: what must be
    /// sent again first, then new ones. About `max_bytes` at most, but never
    /// nothing if there is something to send.
    pub fn next_batch(&mut self, max_bytes: usize, now: Duration) -> Vec<RawMessage> {
        let mut out = Vec::new();
        if self.leader.is_none() || self.hold_until.is_some_and(|t| now < t) {
            return out;
        }
        self.hold_until = None;
        let mut total = 0;
        loop {
            if self.sent == self.flight.len() && !self.number_next(max_bytes, total, now) {
                break;
            }
            let m = &self.flight[self.sent];
            let cost = m.body.len() + OVERHEAD;
            if !out.is_empty() && total + cost > max_bytes {
                break;
            }
            if self.sent == 0 && out.is_empty() {
                // Nothing was under way: the wait for progress begins now.
                self.progress_at = now;
            }
            if m.oseq <= self.sent_high {
                self.resent += 1;
            }
            self.sent_high = self.sent_high.max(m.oseq);
            total += cost;
            self.sent_bytes += m.body.len();
            out.push(m.clone());
            self.sent += 1;
        }
        out
    }

    /// Who compares `message`, of a batch, if that is to be done before it is sent. Whoever does
    /// it says what is sent ([`sends`](Self::sends)) before the next batch.
    pub(crate) fn check_of(&self, message: &RawMessage) -> Option<Arc<Mutex<Check>>> {
        let Part::Piece { stream, i, .. } = message.part else {
            return None;
        };
        let check = self.checks.get(&stream)?;
        (!crate::engine_core::lock(check).has_taken(i)).then(|| check.clone())
    }

    /// This is what goes under its number, now and if it is sent again.
    pub(crate) fn sends(&mut self, message: RawMessage) {
        if message.origin != self.origin {
            return;
        }
        let at = message.oseq.checked_sub(self.confirmed + 1);
        let Some(one) = at.and_then(|at| self.flight.get_mut(at as usize)) else {
            return;
        };
        let less = one.body.len() - message.body.len();
        *one = message;
        if at.is_some_and(|at| (at as usize) < self.sent) {
            self.sent_bytes -= less;
        }
        self.bytes -= less;
        self.piece_bytes -= less;
    }

    #[cfg(test)]
    pub(crate) fn has_checks(&self) -> bool {
        !self.checks.is_empty()
    }

    /// Whether [`next_batch`](Self::next_batch) would return something now.
    pub fn has_work(&self, now: Duration) -> bool {
        self.leader.is_some()
            && self.hold_until.is_none_or(|t| now >= t)
            && (self.sent < self.flight.len()
                || (!self.held && (!self.small.is_empty() || self.piece_may_go(now))))
    }

    /// From now on messages wait without a number (`true`), or get one again.
    /// What has one is sent as ever. Says whether that is new.
    pub fn hold(&mut self, held: bool) -> bool {
        std::mem::replace(&mut self.held, held) != held
    }

    /// From now on pieces of large messages wait (`true`), or go again. Says whether that is new.
    pub fn hold_pieces(&mut self, held: bool) -> bool {
        std::mem::replace(&mut self.pieces_held, held) != held
    }

    /// Takes a message back that nothing of which has a number: it was never
    /// sent, and never will be. False: there is none, or it is too late.
    pub fn withdraw(&mut self, kind: u8, tag: u64) -> bool {
        let small = |s: &Small| s.kind == kind && s.tag == tag;
        let large = |l: &Large| l.kind == kind && l.tag == tag && l.next == 0;
        let len = if let Some(at) = self.small.iter().position(small) {
            self.small.remove(at).map(|s| s.body.len())
        } else if let Some(at) = self.large.iter().position(large) {
            self.large.remove(at).map(|l| {
                self.checks.remove(&l.stream);
                l.rest.len()
            })
        } else {
            None
        };
        let Some(len) = len else { return false };
        self.count -= 1;
        self.bytes -= len + OVERHEAD;
        true
    }

    /// An own message was seen in the committed log. To be called for every
    /// one, in log order, copies included; this applies the rule of the
    /// [`Sequencer`](crate::sequencer::Sequencer).
    pub fn on_committed(&mut self, oseq: u64, now: Duration) -> Progress {
        if oseq <= self.confirmed {
            return Progress::Duplicate;
        }
        if oseq > self.confirmed + 1 {
            // Something before it got lost, so it must go again, and all
            // behind it. Once: copies of what was sent before that rewind
            // will show gaps too.
            if oseq > self.rewind_high && oseq <= self.sent_high {
                self.rewind();
            }
            return Progress::Gap;
        }
        let Some(m) = self.flight.pop_front() else {
            // Nothing of that number was sent by this queue.
            return Progress::Gap;
        };
        debug_assert_eq!(m.oseq, oseq);
        self.confirmed = oseq;
        if self.sent > 0 {
            self.sent -= 1;
            self.sent_bytes -= m.body.len();
        }
        self.progress_at = now;
        self.vain = 0;
        self.refusals = 0;
        self.bytes -= m.body.len();
        let complete = match m.part {
            Part::Whole => {
                self.pacing.small();
                true
            }
            Part::Piece { stream, i, n } => {
                if i + 1 == n {
                    self.checks.remove(&stream);
                }
                self.piece_bytes -= m.body.len();
                if self.piece_bytes == 0 {
                    self.pacing.all_ordered(now);
                }
                i + 1 == n
            }
        };
        if complete {
            self.count -= 1;
            self.bytes -= OVERHEAD;
        }
        Progress::Confirmed
    }

    /// Who leads now, and in which term; `None` holds everything back. A
    /// change means that everything in flight is sent again.
    pub fn on_leader(&mut self, leader: Option<(RaftId, u64)>, now: Duration) {
        if self.leader == leader {
            return;
        }
        self.leader = leader;
        self.hold_until = None;
        if leader.is_some() {
            self.rewind();
            self.vain = 0;
            self.refusals = 0;
            self.progress_at = now;
        }
    }

    /// The leader did not take something, or the link to it broke: everything
    /// in flight is sent again, after a pause.
    pub fn on_refused(&mut self, now: Duration) {
        self.rewind();
        if self.leader.is_none() {
            return;
        }
        let pause = self.limits.refused_pause * (1 << self.refusals.min(16));
        self.hold_until = Some(now + pause.min(self.limits.resend_after));
        self.refusals += 1;
    }

    /// If nothing was confirmed for too long, everything in flight will be
    /// sent again; says whether that was so.
    pub fn on_timeout(&mut self, now: Duration) -> bool {
        if self.sent == 0 || now < self.progress_at + self.patience() {
            return false;
        }
        self.rewind();
        self.vain += 1;
        self.progress_at = now;
        true
    }

    /// When to call [`on_timeout`](Self::on_timeout) or
    /// [`next_batch`](Self::next_batch) next if nothing else happens.
    pub fn next_deadline(&self, now: Duration) -> Option<Duration> {
        let resend = (self.sent > 0).then(|| self.progress_at + self.patience());
        let pause = self
            .pacing
            .ends()
            .filter(|t| *t > now && !self.large.is_empty() && !self.held && !self.pieces_held);
        [self.hold_until, resend, pause].into_iter().flatten().min()
    }

    /// Somebody else's small message was seen in the committed log.
    pub fn saw_small(&mut self) {
        self.pacing.small();
    }

    /// Sets [`PendingLimits::bulk_share`].
    pub fn set_bulk_share(&mut self, share: f64) {
        self.limits.bulk_share = share;
        self.pacing.set_share(share);
    }

    /// The last number known to count.
    pub fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// Whether nothing waits and nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Numbers for the status.
    pub fn status(&self) -> PendingStatus {
        PendingStatus {
            count: self.count,
            bytes: self.bytes,
            large: self.large.len(),
            rewinds: self.rewinds,
            resent: self.resent,
        }
    }

    /// What was sent lies behind itself on a narrow way, and is confirmed by frames: to send it again there would make
    /// the way as long again. Losses are told.
    fn patience(&self) -> Duration {
        let travels = self.sent_bytes as u64 * 1000 / u64::from(SLOWEST);
        let travels = Duration::from_millis(travels).min(TRAVELS_MAX);
        self.limits.resend_after * (1 << self.vain.min(4)) + travels
    }

    fn rewind(&mut self) {
        if self.sent > 0 {
            self.rewinds += 1;
        }
        (self.sent, self.sent_bytes) = (0, 0);
        self.rewind_high = self.sent_high;
    }

    fn piece_may_go(&self, now: Duration) -> bool {
        if self.pieces_held {
            return false;
        }
        self.large.front().is_some_and(|l| {
            let len = l.rest.len().min(self.limits.piece_bytes);
            let most = self.limits.pieces_in_flight;
            // A short rest belongs to the burst: nobody has a use for all but that.
            let rest = (l.next > 0 && l.rest.len() <= most / 2).then_some(l.rest.len());
            let ends = |rest| self.pacing.may_go(rest, most + most / 2, now);
            (self.piece_bytes == 0 || self.piece_bytes + len <= most)
                && (self.pacing.may_go(len, most, now) || rest.is_some_and(ends))
        })
    }

    /// Whether the next piece is the last of a large one that a small one was
    /// pushed before: that one has its place first.
    fn would_pass(&self) -> bool {
        match (self.large.front(), self.small.front()) {
            (Some(l), Some(s)) => l.next + 1 == l.n && s.pushed < l.pushed,
            _ => false,
        }
    }

    /// Moves the next message or piece into the flight, unless `total` bytes
    /// leave no room for it in a batch of `max_bytes`.
    fn number_next(&mut self, max_bytes: usize, total: usize, now: Duration) -> bool {
        if self.held {
            return false;
        }
        let piece_may_go = self.piece_may_go(now) && !self.would_pass();
        let small = !self.small.is_empty() && (self.small_credit > 0 || !piece_may_go);
        let oseq = self.confirmed + self.flight.len() as u64 + 1;
        let fits = |len: usize| total == 0 || total + len + OVERHEAD <= max_bytes;
        if small {
            if !self.small.front().is_some_and(|s| fits(s.body.len())) {
                return false;
            }
            let Some(s) = self.small.pop_front() else {
                return false;
            };
            self.small_credit = self.small_credit.saturating_sub(s.body.len() + OVERHEAD);
            self.flight.push_back(RawMessage {
                origin: self.origin,
                oseq,
                kind: s.kind,
                tag: s.tag,
                part: Part::Whole,
                body: s.body,
            });
            return true;
        }
        if !piece_may_go {
            return false;
        }
        let Some(mut l) = self.large.pop_front() else {
            return false;
        };
        let len = l.rest.len().min(self.limits.piece_bytes);
        if !fits(len) {
            self.large.push_front(l);
            return false;
        }
        self.flight.push_back(RawMessage {
            origin: self.origin,
            oseq,
            kind: l.kind,
            tag: l.tag,
            part: Part::Piece {
                stream: l.stream,
                i: l.next,
                n: l.n,
            },
            body: l.rest.split_to(len),
        });
        self.piece_bytes += len;
        self.pacing.goes(len, now);
        self.small_credit = self.limits.piece_bytes;
        l.next += 1;
        if l.next < l.n {
            self.large.push_back(l);
        }
        true
    }
}

#[cfg(test)]
mod tests;
