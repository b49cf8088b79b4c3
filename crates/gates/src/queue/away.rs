//! A queue of which the most lies elsewhere, on a disk that may hang.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::tests::{item, popped};
use super::*;
use crate::line::Kept;

const LONG: Duration = Duration::from_secs(30);

/// Whether its file hangs, and whether somebody is in it.
#[derive(Debug, Default)]
struct Disk {
    hangs: Mutex<(bool, bool)>,
    turn: Condvar,
}

impl Disk {
    fn hang(&self, hangs: bool) {
        self.hangs.lock().0 = hangs;
        self.turn.notify_all();
    }

    fn enter(&self) {
        let mut state = self.hangs.lock();
        state.1 = true;
        self.turn.notify_all();
        self.turn.wait_while(&mut state, |state| state.0);
        state.1 = false;
    }

    fn wait_inside(&self) {
        self.turn.wait_while(&mut self.hangs.lock(), |s| !s.1);
    }
}

/// Writes with each fifth one.
#[derive(Debug, Default)]
struct File {
    seqnos: VecDeque<Seqno>,
    disk: Arc<Disk>,
}

impl Overflow<&'static str> for File {
    fn takes(&self, item: &QueueItem<&'static str>) -> bool {
        !item.exclusive
    }

    fn push(&mut self, item: QueueItem<&'static str>) -> bool {
        self.seqnos.push_back(item.seqno);
        self.seqnos.len().is_multiple_of(5)
    }

    fn write(&mut self) {
        self.disk.enter();
    }

    fn pop(&mut self, max: usize) -> Kept<&'static str> {
        self.disk.enter();
        let n = max.min(self.seqnos.len()).min(3);
        Kept::Events(self.seqnos.drain(..n).map(|s| item(s, false)).collect())
    }

    fn drop_through(&mut self, seqno: Seqno) -> usize {
        self.disk.enter();
        let before = self.seqnos.len();
        self.seqnos.retain(|s| *s > seqno);
        before - self.seqnos.len()
    }

    fn fresh(&self) -> Box<dyn Overflow<&'static str>> {
        Box::new(File {
            seqnos: VecDeque::new(),
            disk: self.disk.clone(),
        })
    }
}

/// With room for one in memory.
fn with_file(disk: &Arc<Disk>) -> ApplyQueue<&'static str> {
    let file = File {
        disk: disk.clone(),
        ..File::default()
    };
    ApplyQueue::with_overflow(1, Box::new(file))
}

/// What the node asks and does at any moment: its answers to others wait for that.
fn ask_all(q: &ApplyQueue<&'static str>) -> QueueStats {
    q.reset_stats();
    q.spare_one(true);
    q.spare_one(false);
    q.sets_aside(true);
    q.is_back(true);
    q.push_urgent(item(99, false));
    assert!(q.has_urgent());
    assert_eq!(popped(q), Some(99));
    q.done(false);
    assert!(!q.has_exclusive() && !q.is_empty());
    assert!(q.idle() <= 1);
    assert_eq!((q.len(), q.bytes()), (q.stats().len, q.stats().bytes));
    q.stats()
}

#[test]
fn while_a_disk_hangs_all_is_told_of_the_queue_and_what_is_urgent_is_taken() {
    type Work = fn(&ApplyQueue<&'static str>);
    let push: Work = |q| assert!(q.push(item(6, false)));
    let pop: Work = |q| {
        assert_eq!(popped(q), Some(2), "it has come meanwhile");
        q.push(item(6, false));
    };
    let drop: Work = |q| {
        assert_eq!(q.drop_through(3), 2);
        q.push(item(6, false));
    };
    for (work, len, last) in [(push, 6, 1), (pop, 4, 3), (drop, 4, 4)] {
        let disk = Arc::new(Disk::default());
        let q = Arc::new(with_file(&disk));
        for seqno in 1..=5 {
            q.push(item(seqno, false));
        }
        if len < 6 {
            assert_eq!(popped(&q), Some(1));
            q.done(false);
        }
        disk.hang(true);
        let worker = std::thread::spawn({
            let q = q.clone();
            move || work(&q)
        });
        disk.wait_inside();
        let (tx, told) = mpsc::channel();
        let asker = q.clone();
        std::thread::spawn(move || tx.send(ask_all(&asker)));
        let told = told.recv_timeout(LONG);
        disk.hang(false);
        assert_eq!(told.expect("it answers").len, len);
        assert!(worker.join().is_ok());
        let rest: Vec<_> = std::iter::from_fn(|| popped(&q)).collect();
        assert_eq!(rest, (last..=6).collect::<Vec<_>>());
    }
}

#[test]
fn a_view_does_not_wait_for_a_disk_that_hangs() {
    let disk = Arc::new(Disk::default());
    let q = Arc::new(with_file(&disk));
    for seqno in 1..=5 {
        q.push(item(seqno, false));
    }
    disk.hang(true);
    let worker = std::thread::spawn({
        let q = q.clone();
        move || q.push(item(6, false))
    });
    disk.wait_inside();
    let (tx, told) = mpsc::channel();
    let sender = q.clone();
    std::thread::spawn(move || tx.send(sender.push(item(7, true))));
    let told = told.recv_timeout(LONG);
    disk.hang(false);
    assert!(told.expect("it is taken"));
    assert!(worker.join().is_ok_and(|taken| taken));
    let rest = std::iter::from_fn(|| {
        let seqno = popped(&q)?;
        q.done(seqno == 7);
        Some(seqno)
    });
    assert_eq!(rest.collect::<Vec<_>>(), (1..=7).collect::<Vec<_>>());
}

#[test]
fn who_fetches_while_nobody_sleeps_is_woken_later() {
    let disk = Arc::new(Disk::default());
    let q = Arc::new(with_file(&disk));
    q.push(item(1, false));
    q.push(item(2, false));
    assert_eq!(popped(&q), Some(1));
    disk.hang(true);
    let (took, taken) = mpsc::channel();
    let thread = std::thread::spawn({
        let q = q.clone();
        move || {
            while let Popped::Item(i) = q.pop(None) {
                let _ = took.send(i.seqno);
            }
        }
    });
    disk.wait_inside();
    q.push(item(3, false));
    disk.hang(false);
    let next = || taken.recv_timeout(LONG);
    assert_eq!((next(), next()), (Ok(2), Ok(3)));
    while q.idle() == 0 {
        std::thread::yield_now();
    }
    q.push(item(4, false));
    assert_eq!(next(), Ok(4));
    q.close();
    assert!(thread.join().is_ok());
}

#[test]
fn none_is_left_however_many_fetch_and_push_beside_each_other() {
    const N: Seqno = 20_000;
    let q = Arc::new(ApplyQueue::with_overflow(2, Box::<File>::default()));
    let (took, taken) = mpsc::channel();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (q, took) = (q.clone(), took.clone());
            std::thread::spawn(move || {
                let mut last = 0;
                while let Popped::Item(i) = q.pop(None) {
                    assert!(i.seqno > last, "{} behind {last}", i.seqno);
                    last = i.seqno;
                    let _ = took.send(i.seqno);
                    q.done(i.exclusive);
                }
            })
        })
        .collect();
    for round in 0..20 {
        let n = N / 20;
        for seqno in round * n..(round + 1) * n {
            q.push(item(seqno + 1, seqno % 97 == 0));
        }
        // Nobody else wakes who sleeps.
        let seen = (0..n).map_while(|_| taken.recv_timeout(LONG).ok());
        let mut seen: Vec<_> = seen.collect();
        seen.sort_unstable();
        let expected: Vec<_> = (round * n + 1..=(round + 1) * n).collect();
        assert_eq!(seen, expected);
    }
    q.close();
    assert!(threads.into_iter().all(|t| t.join().is_ok()));
}
