//! A disk that stalls when what is no longer in memory is read.

mod world;

use dromon_order::OrderStatus;
use tokio::time::sleep;
use world::{World, ms, run};

/// So long, which is more than any lease and any election takes.
const STALLS: u64 = 2_000;
const STEP: u64 = 20;

/// Three nodes that keep next to nothing in memory, the leader, and the two others.
async fn three() -> (World, u64, [u64; 2]) {
    let mut w = World::new(50);
    w.cache_max = Some(2_000);
    w.grow(3).await;
    let leader = w.leader(&[1, 2, 3]).await;
    let mut others = [1, 2, 3].into_iter().filter(|id| *id != leader);
    let others = [(); 2].map(|()| others.next().expect("three of them"));
    (w, leader, others)
}

/// While it stalls, `asker` gets answers and is primary, and nobody else leads.
async fn goes_on(w: &mut World, asker: u64, leader: u64, began: &OrderStatus, n: &mut u64) {
    for _ in 0..STALLS / STEP {
        w.propose(asker, *n);
        *n += 1;
        sleep(ms(STEP)).await;
        for id in [asker, leader] {
            let s = w.status(id);
            assert!(s.primary && s.term == began.term, "{id}: {s:?}");
            assert!(w.bodies(id).len() as u64 + 5 > *n, "{id} is late");
        }
    }
}

#[test]
fn a_read_for_one_member_that_stalls_delays_nobody_else() {
    run(async {
        let (mut w, leader, [near, far]) = three().await;
        w.kill(far).await;
        let mut n = 0;
        while n < 300 {
            w.propose(near, n);
            n += 1;
            sleep(ms(2)).await;
        }
        w.wait_delivered(&[leader, near], n as usize).await;
        let began = w.status(leader);

        w.log(leader).stall_reads(true);
        w.resume(far).await;
        w.wait(|w| w.log(leader).stalled_reads() > 0, "it is read for")
            .await;
        goes_on(&mut w, near, leader, &began, &mut n).await;
        assert_eq!(w.log(leader).stalled_reads(), 1, "one at a time");
        assert!(w.status(far).primary, "it hears heartbeats");
        w.log(leader).stall_reads(false);
        w.wait_delivered(&[leader, near, far], n as usize).await;
        w.assert_same(&[1, 2, 3]);
    });
}

/// What lies between its checkpoint and what it learns to be committed.
#[test]
fn a_member_that_starts_on_a_disk_that_stalls_is_heard_meanwhile() {
    run(async {
        let (mut w, leader, [near, far]) = three().await;
        let mut n = 0;
        while n < 300 {
            w.propose(near, n);
            n += 1;
            sleep(ms(2)).await;
        }
        w.wait_delivered(&[1, 2, 3], n as usize).await;
        w.kill(far).await;
        let began = w.status(leader);
        w.resume(far).await;
        w.log(far).stall_reads(true);
        w.wait(|w| w.log(far).stalled_reads() > 0, "it reads").await;
        w.wait_primary(&[far]).await;
        // It counts: what the two acknowledge is a majority's.
        w.kill(near).await;
        let began_last = w.status(far).last.index;
        for _ in 0..STALLS / STEP {
            w.propose(leader, n);
            n += 1;
            sleep(ms(STEP)).await;
        }
        let s = w.status(leader);
        assert!(s.primary && s.is_leader && s.term == began.term, "{s:?}");
        assert_eq!(w.bodies(leader).len() as u64, n, "all of it came");
        assert!(w.status(far).last.index >= began_last + STALLS / STEP);
        assert!(w.bodies(far).is_empty(), "nothing of it is applied yet");
        w.log(far).stall_reads(false);
        w.wait_delivered(&[leader, far], n as usize).await;
        w.assert_same(&[leader, far]);
    });
}
