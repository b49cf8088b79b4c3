//! What came in and was not taken yet: a queue per lane, each bounded in
//! bytes, so that bulk never stands before a vote. A full queue makes the
//! reader of that connection wait, and with it the sender.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::network::{Inbound, Lane};
use crate::types::{RaftId, Reply};

/// Bytes that may wait per lane, by [`Lane::index`].
pub(crate) const LANE_BYTES: [usize; 3] = [8 << 20, 64 << 20, 16 << 20];
/// Requests that may wait.
pub(crate) const REQUESTS: usize = 64;

#[derive(Default)]
struct State {
    lanes: [VecDeque<(RaftId, Bytes)>; 3],
    bytes: [usize; 3],
    requests: VecDeque<(String, Bytes, Reply)>,
    /// The newest state of each own link that changed.
    links: BTreeMap<(RaftId, Lane), (u64, bool)>,
    /// Whose turn it is: requests, node lane, bulk lane.
    turn: usize,
    closed: bool,
}

#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    readable: Notify,
    writable: Notify,
}

impl Inbox {
    /// Nothing here can panic half-way, so a poisoned lock is as good as any.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a frame as soon as there is room. False once closed.
    pub(crate) async fn frame(&self, from: RaftId, lane: Lane, body: Bytes) -> bool {
        let i = lane.index();
        loop {
            let mut room = pin!(self.writable.notified());
            room.as_mut().enable();
            {
                let mut s = self.lock();
                if s.closed {
                    return false;
                }
                if s.lanes[i].is_empty() || s.bytes[i] + body.len() <= LANE_BYTES[i] {
                    s.bytes[i] += body.len();
                    s.lanes[i].push_back((from, body));
                    drop(s);
                    self.readable.notify_one();
                    return true;
                }
            }
            room.await;
        }
    }

    /// Adds a request; gives it back (dropped: no answer) if there are too many.
    pub(crate) fn request(&self, from_addr: String, body: Bytes, reply: Reply) -> bool {
        let mut s = self.lock();
        if s.closed || s.requests.len() >= REQUESTS {
            return false;
        }
        s.requests.push_back((from_addr, body, reply));
        drop(s);
        self.readable.notify_one();
        true
    }

    pub(crate) fn link(&self, peer: RaftId, lane: Lane, epoch: u64, up: bool) {
        let mut s = self.lock();
        if !s.closed {
            s.links.insert((peer, lane), (epoch, up));
            drop(s);
            self.readable.notify_one();
        }
    }

    pub(crate) fn try_recv(&self) -> Option<Inbound> {
        let mut s = self.lock();
        if let Some(((peer, lane), (epoch, up))) = s.links.pop_first() {
            return Some(Inbound::Link {
                peer,
                lane,
                epoch,
                up,
            });
        }
        let pop = |s: &mut State, lane: Lane| {
            let (from, body) = s.lanes[lane.index()].pop_front()?;
            s.bytes[lane.index()] -= body.len();
            self.writable.notify_waiters();
            Some(Inbound::Frame { from, lane, body })
        };
        if let Some(got) = pop(&mut s, Lane::Raft) {
            return Some(got);
        }
        for _ in 0..3 {
            s.turn = (s.turn + 1) % 3;
            let got = match s.turn {
                0 => s
                    .requests
                    .pop_front()
                    .map(|(from_addr, body, reply)| Inbound::Request {
                        from_addr,
                        body,
                        reply,
                    }),
                1 => pop(&mut s, Lane::Node),
                _ => pop(&mut s, Lane::Bulk),
            };
            if got.is_some() {
                return got;
            }
        }
        None
    }

    /// The next thing; `None` once closed and empty.
    pub(crate) async fn recv(&self) -> Option<Inbound> {
        loop {
            if let Some(got) = self.try_recv() {
                return Some(got);
            }
            if self.lock().closed {
                // Whoever waits next must wake, too.
                self.readable.notify_one();
                return None;
            }
            self.readable.notified().await;
        }
    }

    /// Takes nothing more; what waits is dropped.
    pub(crate) fn close(&self) {
        let dropped = {
            let mut s = self.lock();
            let fresh = State {
                closed: true,
                ..State::default()
            };
            std::mem::replace(&mut *s, fresh)
        };
        // Outside of the lock: a dropped reply calls somebody.
        drop(dropped);
        self.readable.notify_one();
        self.writable.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn lane_of(i: Option<Inbound>) -> Option<Lane> {
        match i {
            Some(Inbound::Frame { lane, .. }) => Some(lane),
            _ => None,
        }
    }

    #[tokio::test]
    async fn urgent_first_the_others_take_turns() {
        let inbox = Inbox::default();
        for lane in [Lane::Bulk, Lane::Bulk, Lane::Node, Lane::Raft] {
            assert!(inbox.frame(1, lane, Bytes::from_static(b"x")).await);
        }
        inbox.link(1, Lane::Raft, 1, true);
        inbox.link(1, Lane::Raft, 2, false);
        assert!(matches!(
            inbox.try_recv(),
            Some(Inbound::Link {
                epoch: 2,
                up: false,
                ..
            })
        ));
        let order: Vec<_> = std::iter::from_fn(|| lane_of(inbox.try_recv())).collect();
        assert_eq!(order, [Lane::Raft, Lane::Node, Lane::Bulk, Lane::Bulk]);
    }

    #[tokio::test]
    async fn a_full_lane_makes_its_reader_wait_and_no_other() {
        let inbox = Arc::new(Inbox::default());
        let big = Bytes::from(vec![0; LANE_BYTES[1]]);
        assert!(inbox.frame(1, Lane::Bulk, big.clone()).await);
        let waiting = tokio::spawn({
            let inbox = inbox.clone();
            async move { inbox.frame(1, Lane::Bulk, Bytes::from_static(b"x")).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        assert!(inbox.frame(1, Lane::Raft, Bytes::from_static(b"v")).await);
        assert_eq!(lane_of(inbox.recv().await), Some(Lane::Raft));
        assert_eq!(lane_of(inbox.recv().await), Some(Lane::Bulk));
        assert!(waiting.await.unwrap());
        assert_eq!(lane_of(inbox.recv().await), Some(Lane::Bulk));

        let (tx, rx) = std::sync::mpsc::channel();
        let reply = Reply::new(move |a| tx.send(a).unwrap());
        assert!(inbox.request("a".into(), Bytes::new(), reply));
        inbox.close();
        assert_eq!(rx.recv().unwrap(), None, "told that there is no answer");
        assert!(inbox.recv().await.is_none());
        assert!(!inbox.frame(1, Lane::Bulk, big).await);
    }
}
