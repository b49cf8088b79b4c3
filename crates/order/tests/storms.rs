//! Random cuts, deaths and power losses; then the histories are compared.

mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use dromon_order::memnet::Cut;
use world::{World, ms};

const NODES: [u64; 3] = [1, 2, 3];

struct Storm {
    w: World,
    rng: u64,
    /// Proposed so far, by start of a node.
    proposed: BTreeMap<dromon_writeset::Uuid, u64>,
    down: BTreeSet<u64>,
    /// Longest history any node ever delivered.
    seen: Vec<Bytes>,
}

impl Storm {
    /// SplitMix64, as in the simulated network.
    fn random(&mut self, below: u64) -> u64 {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.rng ^ (self.rng >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    fn propose(&mut self, id: u64) {
        let origin = self.w.origin(id);
        let n = self.proposed.entry(origin).or_insert(0);
        let body = Bytes::from(format!("{origin}:{n}"));
        // A dead disk or a full queue refuse; then it was not proposed.
        if self.w.order(id).propose(1, 0, body).is_ok() {
            *n += 1;
        }
    }

    /// Whatever one node delivered must be the beginning of what any other did.
    fn compare(&mut self, id: u64) {
        let own = self.w.bodies(id);
        let common = own.len().min(self.seen.len());
        assert!(
            own[..common] == self.seen[..common],
            "node {id} tells another history"
        );
        if own.len() > self.seen.len() {
            self.seen = own;
        }
    }

    async fn die(&mut self, id: u64) {
        self.compare(id);
        self.w.kill(id).await;
        let seed = self.random(u64::MAX);
        self.w.disk(id).crash(seed);
        self.down.insert(id);
    }

    async fn rise(&mut self, id: u64) {
        self.w.resume(id).await;
        self.down.remove(&id);
    }

    async fn step(&mut self) {
        let id = NODES[self.random(3) as usize];
        match self.random(40) {
            0 => {
                let others: Vec<u64> = NODES.into_iter().filter(|n| *n != id).collect();
                let how = if self.random(2) == 0 {
                    Cut::Closed
                } else {
                    Cut::Silent
                };
                self.w.hub.cut(&[id], &others, how);
            }
            1 | 2 => self.w.hub.heal(),
            3 => {
                let other = NODES[self.random(3) as usize];
                if other != id {
                    self.w.hub.break_link(id, other);
                }
            }
            4 if !self.down.contains(&id) => self.die(id).await,
            5 if !self.down.contains(&id) => {
                let n = self.random(20) + 1;
                self.w.disk(id).power_off_after(n);
            }
            6 | 7 => {
                let down: Vec<u64> = self.down.iter().copied().collect();
                for id in down {
                    self.rise(id).await;
                }
            }
            8 if self.random(20) == 0 => {
                // The whole building.
                for id in NODES {
                    if !self.down.contains(&id) {
                        self.die(id).await;
                    }
                }
            }
            9 => self.w.order(id).transfer_leader(None),
            _ if !self.down.contains(&id) => {
                for _ in 0..self.random(5) {
                    self.propose(id);
                }
            }
            _ => {}
        }
        let off: Vec<u64> = NODES
            .into_iter()
            .filter(|id| !self.down.contains(id) && self.w.status(*id).failed.is_some())
            .collect();
        for id in off {
            self.die(id).await;
        }
        let pause = [0, 1, 5, 20, 100, 500][self.random(6) as usize];
        tokio::time::sleep(ms(pause)).await;
    }

    async fn calm(&mut self) {
        self.w.hub.heal();
        for id in NODES {
            if !self.down.contains(&id) {
                // Some disk may be about to lose its power.
                self.die(id).await;
            }
        }
        for id in NODES {
            self.rise(id).await;
        }
        self.w.wait_primary(&NODES).await;
        for id in NODES {
            self.propose(id);
        }
        let last: Vec<Bytes> = NODES
            .iter()
            .map(|id| Bytes::from(format!("{}:0", self.w.origin(*id))))
            .collect();
        let all = |w: &World| {
            NODES.iter().all(|id| {
                let bodies = w.bodies(*id);
                last.iter().all(|l| bodies.contains(l))
            })
        };
        self.w
            .wait(all, "everyone delivers everyone's last word")
            .await;
        for id in NODES {
            self.compare(id);
            assert_eq!(self.w.bodies(id).len(), self.seen.len());
        }
        self.check_origins();
    }

    /// Each origin's messages: 0, 1, 2, … without a gap or a double.
    fn check_origins(&self) {
        let mut next: BTreeMap<String, u64> = BTreeMap::new();
        for body in &self.seen {
            let text = String::from_utf8_lossy(body);
            let (origin, n) = text.split_once(':').expect("it was made with one");
            let expected = next.entry(origin.to_owned()).or_insert(0);
            assert_eq!(n, expected.to_string(), "origin {origin}");
            *expected += 1;
        }
    }
}

fn storm(seed: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing from the system");
    runtime.block_on(async {
        let mut s = Storm {
            w: World::three_on_disks(seed).await,
            rng: seed,
            proposed: BTreeMap::new(),
            down: BTreeSet::new(),
            seen: Vec::new(),
        };
        let weather = async {
            for _ in 0..400 {
                s.step().await;
            }
            s.calm().await;
        };
        tokio::time::timeout(Duration::from_secs(7200), weather)
            .await
            .expect("the storm hangs");
        println!("seed {seed}: {} messages", s.seen.len());
    });
}

#[test]
fn one_history_whatever_happens() {
    // DROMON_SEED repeats one run; DROMON_SEEDS makes more of them.
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    if let Some(seed) = number("DROMON_SEED") {
        return storm(seed);
    }
    for seed in 1..=number("DROMON_SEEDS").unwrap_or(20) {
        println!("seed {seed}");
        storm(seed);
    }
}
