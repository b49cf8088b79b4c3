//! Elections where storing a vote takes longer than an election may by default.

mod world;

use std::time::Duration;

use tokio::time::{Instant, sleep};
use world::{World, ms, run};

/// What the node's default options ask for.
const TIMINGS: [Duration; 4] = [ms(142), ms(714), ms(892), ms(642)];

/// A cluster whose disks take so long for each write, once it stands.
struct Slow {
    w: World,
    all: Vec<u64>,
    /// What was proposed last.
    n: u64,
    seed: u64,
}

impl Slow {
    async fn of(seed: u64, takes: &[u64]) -> Slow {
        let mut w = World::new(seed);
        w.timings = Some(TIMINGS);
        let n = takes.len() as u64;
        w.grow(n).await;
        let all: Vec<u64> = (1..=n).collect();
        let mut slow = Slow { w, all, n: 0, seed };
        slow.all_deliver(&slow.all.clone()).await;
        slow.take(takes);
        slow
    }

    fn take(&self, takes: &[u64]) {
        for (id, takes) in self.all.iter().zip(takes) {
            self.w.log(*id).slow_down(ms(*takes));
        }
    }

    /// How long it takes until `ids` have a leader, and then until a message of each has come to all of them.
    async fn go_on(&mut self, ids: &[u64], limit: Duration) {
        let began = Instant::now();
        self.w.leader(ids).await;
        self.w.wait_primary(ids).await;
        let took = began.elapsed();
        assert!(took < limit, "seed {}: {took:?}", self.seed);
        self.all_deliver(ids).await;
    }

    async fn all_deliver(&mut self, ids: &[u64]) {
        self.n += 1;
        let texts: Vec<_> = ids.iter().map(|id| format!("{id}:{}", self.n)).collect();
        for id in ids {
            self.w.propose(*id, self.n);
        }
        let there = |w: &World| {
            ids.iter().all(|id| {
                let seen = w.texts(*id);
                texts.iter().all(|text| seen.contains(text))
            })
        };
        self.w.wait(there, "messages go on").await;
    }

    /// The leader, its term and that all are primary stay, with work.
    async fn stays(&mut self, ids: &[u64]) {
        let led = |w: &World| {
            w.status(ids[0])
                .leader
                .map(|l| (l.0, w.status(ids[0]).term))
        };
        let before = led(&self.w);
        for _ in 0..20 {
            self.n += 1;
            for id in ids {
                self.w.propose(*id, self.n);
            }
            sleep(ms(500)).await;
            assert_eq!(led(&self.w), before, "seed {}", self.seed);
        }
        self.all_deliver(ids).await;
        self.w.wait_primary(ids).await;
        assert_eq!(led(&self.w), before, "seed {}", self.seed);
    }

    async fn outage(&mut self) {
        for id in self.all.clone() {
            self.w.kill(id).await;
        }
        for id in self.all.clone() {
            self.w.resume(id).await;
            self.w.want(id, &self.all, &[]);
        }
    }

    async fn leader_dies(&mut self) -> (u64, Vec<u64>) {
        let old = self.w.leader(&self.all).await;
        self.w.kill(old).await;
        let others = self.all.iter().copied().filter(|id| *id != old);
        (old, others.collect())
    }
}

/// All are started again.
fn after_an_outage(takes: &'static [u64], limit: Duration) {
    for seed in 1..=3 {
        run(async move {
            let mut slow = Slow::of(seed, takes).await;
            let all = slow.all.clone();
            slow.outage().await;
            slow.go_on(&all, limit).await;
            slow.stays(&all).await;
        });
    }
}

#[test]
fn slow_disks_elect_after_an_outage() {
    for (takes, limit) in [
        (&[400; 3][..], ms(4000)),
        (&[1000; 3], ms(7000)),
        (&[2000; 3], ms(14_000)),
        (&[2000; 5], ms(20_000)),
        (&[5000; 3], ms(40_000)),
    ] {
        after_an_outage(takes, limit);
    }
}

/// It would ask for votes in one term after another before it has those of the first.
#[test]
fn a_quick_candidate_waits_for_slow_voters() {
    for (takes, limit) in [
        (&[1, 1000, 1000][..], ms(10_000)),
        (&[2000, 2000, 1], ms(20_000)),
        (&[1, 1, 2000, 2000], ms(20_000)),
        (&[2000, 400, 1, 1500, 700], ms(20_000)),
    ] {
        after_an_outage(takes, limit);
    }
}

/// Once the disks are quick again, so are elections.
#[test]
fn a_leader_lost_on_slow_disks_is_replaced() {
    for (takes, limit) in [
        (&[2000; 3][..], ms(20_000)),
        (&[1, 2000, 2000], ms(20_000)),
        (&[2000, 1, 1, 2000, 2000], ms(20_000)),
    ] {
        for seed in 1..=3 {
            run(async move {
                let mut slow = Slow::of(seed, takes).await;
                let (old, others) = slow.leader_dies().await;
                slow.go_on(&others, limit).await;
                slow.stays(&others).await;
                slow.w.resume(old).await;
                slow.w.want(old, &slow.all, &[]);
                slow.w.wait_primary(&slow.all).await;
                slow.take(&vec![0; takes.len()]);
                // The vote that was stored last counts no more.
                sleep(ms(10_000)).await;
                let (_, others) = slow.leader_dies().await;
                slow.go_on(&others, ms(1950)).await;
            });
        }
    }
}
