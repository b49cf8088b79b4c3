//! Forced recovery: one member goes on without a majority.

mod world;

use std::io;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use bytes::Bytes;
use dromon_order::logstore::{LogStore, Record, WriteDone, WriteOp};
use dromon_order::memlog::MemLog;
use dromon_order::memnet::{Cut, Hub};
use dromon_order::{
    EngineConfig, Network, NodeHandler, Order, OrderError, OrderStatus, Reply, Start, incarnation,
    start,
};
use dromon_writeset::Uuid;
use world::{World, ms, run};

#[test]
fn what_waited_for_a_majority_is_ordered_by_one_alone() {
    run(async {
        for leads in [true, false] {
            let mut w = World::three(31).await;
            let leader = w.leader(&[1, 2, 3]).await;
            let one = if leads { leader } else { leader % 3 + 1 };
            let others: Vec<u64> = (1..=3).filter(|id| *id != one).collect();
            for i in 0..20 {
                w.propose(one, i);
            }
            w.wait_delivered(&[1, 2, 3], 20).await;
            w.hub.cut(&[one], &others, Cut::Silent);
            for i in 20..40 {
                w.propose(one, i);
            }
            tokio::time::sleep(ms(5_000)).await;
            assert!(!w.status(one).primary, "it has no majority");
            w.go_alone(one).await;
            w.wait_primary(&[one]).await;
            for i in 40..60 {
                w.propose(one, i);
            }
            w.wait_delivered(&[one], 60).await;
            assert_eq!(
                w.texts(one),
                (0..60).map(|i| format!("{one}:{i}")).collect::<Vec<_>>(),
                "each once and in order, across the change"
            );
            let status = w.status(one);
            assert_eq!(
                status.members.addrs.keys().copied().collect::<Vec<_>>(),
                [one]
            );
            assert!(incarnation(status.term) > 0);
            // The node's state still has the others, until it has evicted them.
            w.want(one, &[1, 2, 3], &[]);
            tokio::time::sleep(ms(10_000)).await;
            let members = w.status(one).members;
            assert_eq!(members.addrs.into_keys().collect::<Vec<_>>(), [one]);
        }
    });
}

#[test]
fn parted_incarnations_do_not_disturb_one_another() {
    run(async {
        let mut w = World::three_on_disks(32).await;
        let leader = w.leader(&[1, 2, 3]).await;
        let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
        w.hub.cut(&[leader], &others, Cut::Silent);
        w.wait_primary(&others).await;
        w.go_alone(leader).await;
        w.wait_primary(&[leader]).await;
        w.hub.heal();
        // Both go on, side by side, for longer than any election takes.
        for i in 0..100 {
            w.propose(leader, i);
            w.propose(others[0], i);
            w.propose(others[1], i);
            tokio::time::sleep(ms(100)).await;
        }
        w.wait_delivered(&[leader], 100).await;
        w.wait_delivered(&others, 200).await;
        w.assert_same(&others);
        w.assert_exactly_once(&others, &others, 100);
        assert_eq!(incarnation(w.status(others[0]).term), 0);
        assert!(
            !w.texts(leader)
                .iter()
                .any(|t| !t.starts_with(&format!("{leader}:")))
        );
        // It stays what it is after a restart, and after a crash.
        let term = w.status(leader).term;
        w.stop(leader).await;
        w.resume(leader).await;
        w.wait_primary(&[leader]).await;
        w.kill(leader).await;
        w.resume(leader).await;
        w.wait_primary(&[leader]).await;
        w.wait_delivered(&[leader], 100).await;
        assert_eq!(incarnation(w.status(leader).term), incarnation(term));
        assert!(w.read_index(leader, ms(1000)).await.is_ok());
    });
}

/// It was cut off when it was looked at, and the others were asked. Meanwhile they
/// are there again, and form a majority with it.
#[test]
fn who_is_back_among_the_others_does_not_go_on_alone() {
    run(async {
        for leads in [true, false] {
            let mut w = World::three(33).await;
            let leader = w.leader(&[1, 2, 3]).await;
            let one = if leads { leader } else { leader % 3 + 1 };
            let others: Vec<u64> = (1..=3).filter(|id| *id != one).collect();
            w.hub.cut(&[one], &others, Cut::Silent);
            tokio::time::sleep(ms(5_000)).await;
            let seen = w.status(one);
            assert!(!seen.primary, "it has no majority");
            w.hub.heal();
            w.wait_primary(&[1, 2, 3]).await;
            w.order(one).transfer_leader(Some(one));
            while w.leader(&[1, 2, 3]).await != one {
                tokio::time::sleep(ms(100)).await;
            }
            w.want(one, &[1, 2, 3], &[]);
            let outcome = w.go_alone_if(one, &seen).await;
            assert_eq!(outcome, Err(OrderError::NotAsSeen));
            // Nothing has come of it.
            w.propose(one, 0);
            w.wait_delivered(&[1, 2, 3], 1).await;
            tokio::time::sleep(ms(20_000)).await;
            let members = w.status(one).members;
            assert_eq!(members.voters(), [1, 2, 3].into(), "nobody is removed");
            assert_eq!(incarnation(w.status(one).term), 0);
            assert_eq!(w.status(one).failed, None);
        }
    });
}

/// It was given entries and has voted, and is cut off again before it counts itself
/// to the majority: the others acknowledged meanwhile what it has.
#[test]
fn who_has_heard_of_the_others_does_not_go_on_alone() {
    run(async {
        let mut w = World::three(34).await;
        let leader = w.leader(&[1, 2, 3]).await;
        let one = leader % 3 + 1;
        let others: Vec<u64> = (1..=3).filter(|id| *id != one).collect();
        w.hub.cut(&[one], &others, Cut::Silent);
        w.propose(leader, 0);
        tokio::time::sleep(ms(5_000)).await;
        let seen = w.status(one);
        w.hub.heal();
        w.wait_delivered(&[1, 2, 3], 1).await;
        w.hub.cut(&[one], &others, Cut::Silent);
        tokio::time::sleep(ms(5_000)).await;
        assert!(!w.status(one).primary, "it has no majority again");
        let outcome = w.go_alone_if(one, &seen).await;
        assert_eq!(outcome, Err(OrderError::NotAsSeen));
        let outcome = w.go_alone_if(one, &w.status(one)).await;
        assert_eq!(outcome, Ok(()), "on what is so now");
    });
}

/// The disk refuses what it is told. The node hears that its engine failed, and the others that this
/// log is still there, which may have more than theirs.
#[test]
fn whose_disk_refuses_to_go_on_alone_says_so_and_still_answers() {
    run(async {
        let mut w = World::three(36).await;
        let leader = w.leader(&[1, 2, 3]).await;
        let one = leader % 3 + 1;
        let others: Vec<u64> = (1..=3).filter(|id| *id != one).collect();
        w.propose(leader, 0);
        w.wait_delivered(&[1, 2, 3], 1).await;
        w.hub.cut(&[one], &others, Cut::Silent);
        tokio::time::sleep(ms(5_000)).await;
        w.log(one).break_with("the disk is full");
        let outcome = w.go_alone_if(one, &w.status(one)).await;
        assert!(outcome.is_err(), "{outcome:?}");
        let told = |w: &World| w.told_of_failure(one);
        w.wait(|w| told(w).is_some(), "the node is told").await;
        let why = told(&w).expect("just seen");
        assert!(why.contains("the disk is full"), "{why}");
        let ticks = w.ticks(one);
        w.wait(|w| w.ticks(one) > ticks + 1, "its tick goes on")
            .await;
        let read = w.read_index(one, ms(1000)).await;
        assert!(matches!(read, Err(OrderError::Failed(_))), "{read:?}");
        w.hub.heal();
        let addr = format!("n{one}:1");
        let answer = w.request(others[0], &addr, "a question", ms(5000)).await;
        assert_eq!(answer, Ok(Bytes::from(format!("n{one} got a question"))));
        w.propose(others[0], 1);
        w.wait_delivered(&others, 2).await;
        w.stop(one).await;
    });
}

/// A log on a disk that may hang: then it holds what it is told to write.
struct Hanging {
    log: MemLog,
    held: Mutex<Option<Vec<(WriteOp, WriteDone)>>>,
}

impl LogStore for Hanging {
    fn submit(&self, op: WriteOp, done: WriteDone) {
        match self.held.lock().unwrap().as_mut() {
            Some(held) => held.push((op, done)),
            None => self.log.submit(op, done),
        }
    }

    fn bounds(&self) -> (u64, u64) {
        self.log.bounds()
    }

    fn bytes_before(&self, index: u64) -> u64 {
        self.log.bytes_before(index)
    }

    fn read(&self, range: RangeInclusive<u64>, max_bytes: usize) -> io::Result<Vec<Record>> {
        self.log.read(range, max_bytes)
    }

    fn load_meta(&self) -> io::Result<Option<Bytes>> {
        self.log.load_meta()
    }

    fn checkpoints(&self) -> io::Result<Vec<u64>> {
        self.log.checkpoints()
    }

    fn load_checkpoint(&self, index: u64) -> io::Result<Bytes> {
        self.log.load_checkpoint(index)
    }

    fn close(&self) {}
}

struct Nobody;

impl NodeHandler for Nobody {
    fn request(&self, _: &str, _: Bytes, _: Reply) {}
    fn message(&self, _: u64, _: Bytes) {}
    fn tick(&self) -> Option<Bytes> {
        None
    }
    fn status(&self, _: &OrderStatus) {}
    fn position_lost(&self) {}
}

impl Hanging {
    /// From now on it keeps what it is told.
    fn hang(&self) {
        *self.held.lock().unwrap() = Some(Vec::new());
    }

    fn was_told(&self) -> bool {
        let held = self.held.lock().unwrap();
        held.as_ref().is_some_and(|held| !held.is_empty())
    }

    fn go_on(&self) {
        let mut held = self.held.lock().unwrap();
        for (op, done) in held.take().expect("it hung") {
            self.log.submit(op, done);
        }
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let limit = Instant::now() + ms(20_000);
    while !done() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(ms(5));
    }
}

/// A node alone, whose disk hangs now.
fn on_a_disk_that_hangs() -> (Arc<Hanging>, Arc<dyn Order>) {
    let store = Arc::new(Hanging {
        log: MemLog::new(),
        held: Mutex::default(),
    });
    let port = Hub::new(1, ms(0), ms(0)).port(1, "n1:1");
    let order = start(
        EngineConfig::lan("test", 1, Uuid::NIL, "n1:1"),
        store.clone(),
        Box::new(move |_| Ok(port as Arc<dyn Network>)),
        Arc::new(Nobody),
        Start::Bootstrap {
            genesis: Bytes::new(),
            after: None,
        },
    )
    .expect("the engine starts");
    until("one node alone leads itself", || order.status().primary);
    store.hang();
    (store, order)
}

#[test]
fn a_disk_that_hangs_does_not_hold_who_forces_the_recovery() {
    let (store, order) = on_a_disk_that_hangs();
    let before = incarnation(order.status().term);
    let (tx, rx) = mpsc::channel();
    let done = Box::new(move |outcome| tx.send(outcome).unwrap());
    let answer = order.go_alone(&order.status(), ms(200), done);
    assert_eq!(answer, Err(OrderError::StillNotAlone(ms(200))));
    // It is done when the disk answers, as the error says.
    store.go_on();
    until("it goes on alone", || {
        incarnation(order.status().term) != before
    });
    assert_eq!(
        rx.recv_timeout(ms(10_000)),
        Ok(Ok(())),
        "told, however late"
    );
    order.stop();
}

/// A second recovery waits behind one that the disk holds up, and is refused then.
#[test]
fn who_is_refused_later_than_it_waits_is_told_so() {
    let (store, order) = on_a_disk_that_hangs();
    let seen = order.status();
    order.go_alone_then(&seen, Box::new(|_| ()));
    let (tx, rx) = mpsc::channel();
    let done = Box::new(move |outcome| tx.send(outcome).unwrap());
    let answer = order.go_alone(&seen, ms(200), done);
    assert_eq!(answer, Err(OrderError::StillNotAlone(ms(200))));
    store.go_on();
    let outcome = rx.recv_timeout(ms(10_000));
    assert_eq!(outcome, Ok(Err(OrderError::NotAsSeen)));
    order.stop();
}

/// Who looks in the middle, and sees a failed engine, gives it up for ever.
#[test]
fn it_does_not_look_failed_meanwhile() {
    let (store, order) = on_a_disk_that_hangs();
    let before = incarnation(order.status().term);
    let (tx, rx) = mpsc::channel();
    let done = Box::new(move |outcome| tx.send(outcome).unwrap());
    order.go_alone_then(&order.status(), done);
    until("the disk is asked for the new entry", || store.was_told());
    let status = order.status();
    assert!(!status.primary, "the old consensus is gone");
    assert_eq!(status.failed, None);
    store.go_on();
    assert_eq!(rx.recv_timeout(ms(10_000)), Ok(Ok(())));
    until("it goes on alone", || order.status().primary);
    assert_ne!(incarnation(order.status().term), before);
    order.stop();
}
