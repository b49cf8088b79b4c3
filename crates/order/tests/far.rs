//! Members that are far from each other.

mod world;

use std::time::Duration;

use tokio::time::sleep;
use world::{World, ms, run};

/// What the node's default options ask for.
const TIMINGS: [Duration; 4] = [ms(142), ms(714), ms(892), ms(642)];
const ALL: [u64; 3] = [1, 2, 3];

/// The way there and back takes longer than the pause between two heartbeats.
#[test]
fn a_leader_far_from_all_others_keeps_its_lease_while_nothing_is_written() {
    for seed in 0..5 {
        run(async move {
            let mut w = World::new(seed);
            w.timings = Some(TIMINGS);
            w.grow(3).await;
            let leader = w.leader(&ALL).await;
            let term = w.status(leader).term;
            for from in ALL {
                for to in ALL.into_iter().filter(|to| *to != from) {
                    w.hub.slow(from, to, ms(100));
                }
            }
            w.propose(leader, 1);
            w.wait_delivered(&ALL, 1).await;
            let mut held = [0; 3];
            for _ in 0..100 {
                sleep(ms(100)).await;
                for (id, held) in ALL.into_iter().zip(&mut held) {
                    *held += u32::from(w.status(id).primary);
                }
            }
            // What the others are told of it travels, too.
            let shorter = held.iter().all(|held| *held >= 30);
            let led = held[leader as usize - 1] == 100;
            assert!(led && shorter, "seed {seed}: {held:?}, led by {leader}");
            assert_eq!(w.status(leader).term, term, "seed {seed}");
            for id in ALL {
                w.propose(id, 2);
            }
            w.wait_delivered(&ALL, 4).await;
        });
    }
}

/// Long packets from it are swallowed, short ones are not: its heartbeats would keep it in the lead for good.
#[test]
fn a_leader_whose_entries_reach_nobody_hands_over() {
    for seed in 0..3 {
        run(async move {
            let mut w = World::new(seed);
            w.timings = Some(TIMINGS);
            w.grow(3).await;
            let leader = w.leader(&ALL).await;
            w.propose(leader, 1);
            w.wait_delivered(&ALL, 1).await;
            let others: Vec<u64> = ALL.into_iter().filter(|id| *id != leader).collect();
            for to in &others {
                w.hub.narrow(leader, *to, 1);
            }
            w.propose(leader, 2);
            sleep(ms(10_000)).await;
            assert!(w.status(leader).is_leader, "seed {seed}: it may come yet");
            sleep(ms(25_000)).await;
            assert!(!w.status(leader).is_leader, "seed {seed}");
            w.leader(&others).await;
            w.propose(others[0], 3);
            w.wait(|w| w.bodies(others[1]).len() >= 2, "the others go on")
                .await;
        });
    }
}

/// Of two the other one cannot take over, and nothing is won.
#[test]
fn of_two_it_leads_on() {
    run(async {
        let mut w = World::new(3);
        w.timings = Some(TIMINGS);
        w.grow(2).await;
        let leader = w.leader(&[1, 2]).await;
        let other = 3 - leader;
        w.propose(leader, 1);
        w.wait_delivered(&[1, 2], 1).await;
        w.hub.narrow(leader, other, 1);
        w.propose(leader, 2);
        sleep(ms(60_000)).await;
        assert!(w.status(leader).is_leader && w.status(leader).primary);
    });
}
