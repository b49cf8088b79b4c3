//! How long messages stand still when the leader is gone.

mod world;

use std::time::Duration;

use dromon_order::Start;
use tokio::time::{Instant, sleep};
use world::{World, ms, run};

/// How the leader goes.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Killed,
    CutOff,
    /// One way after the other, so that one follower has more than the other.
    CutOffSlowly,
}

/// The longest time until a message proposed on each of the others is ordered.
async fn pause(seed: u64, loss: Loss) -> Duration {
    let mut w = three(seed).await;
    let leader = w.leader(&[1, 2, 3]).await;
    let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    let mut n = [0u64; 4];
    for _ in 0..(100 + seed % 50) {
        for id in 1..=3 {
            w.propose(id, n[id as usize]);
            n[id as usize] += 1;
        }
        sleep(ms(3)).await;
    }
    let began = Instant::now();
    match loss {
        Loss::Killed => w.kill(leader).await,
        Loss::CutOff => {
            for &id in &others {
                w.hub.mute(leader, id);
                w.hub.mute(id, leader);
            }
        }
        Loss::CutOffSlowly => {
            for &id in &others {
                for (a, b) in [(leader, id), (id, leader)] {
                    w.hub.mute(a, b);
                    for _ in 0..10 {
                        for id in 1..=3 {
                            w.propose(id, n[id as usize]);
                            n[id as usize] += 1;
                        }
                        sleep(ms(5)).await;
                    }
                }
            }
        }
    }
    for &id in &others {
        w.propose(id, n[id as usize]);
    }
    let last: Vec<_> = others
        .iter()
        .map(|&id| (id, format!("{id}:{}", n[id as usize])))
        .collect();
    w.wait(
        |w| last.iter().all(|(id, text)| w.texts(*id).contains(text)),
        "the others go on",
    )
    .await;
    began.elapsed()
}

/// What the node's default options ask for.
const TIMINGS: [Duration; 4] = [ms(142), ms(714), ms(892), ms(642)];

#[test]
fn a_lost_leader_is_replaced_in_time() {
    for (loss, limit) in [
        (Loss::Killed, ms(1950)),
        (Loss::CutOff, ms(1950)),
        (Loss::CutOffSlowly, ms(2150)),
    ] {
        for seed in 1..=8 {
            run(async move {
                let took = pause(seed, loss).await;
                assert!(took < limit, "{loss:?}, seed {seed}: {took:?}");
            });
        }
    }
}

#[test]
fn a_leader_that_is_silent_for_more_than_a_second_stays() {
    for seed in 1..=4 {
        run(async move {
            let w = three(seed).await;
            let leader = w.leader(&[1, 2, 3]).await;
            let term = w.status(leader).term;
            for id in (1..=3).filter(|id| *id != leader) {
                w.hub.mute(leader, id);
            }
            sleep(ms(1400)).await;
            w.hub.heal();
            w.wait_primary(&[1, 2, 3]).await;
            sleep(ms(3000)).await;
            assert_eq!(w.leader(&[1, 2, 3]).await, leader, "seed {seed}");
            assert_eq!(w.status(leader).term, term, "seed {seed}");
        });
    }
}

/// A firewall drops what comes to the leader's port, so that it can speak and not hear.
#[test]
fn a_leader_that_hears_nobody_is_replaced_and_stays_out_of_the_way() {
    for seed in 1..=8 {
        run(async move {
            let mut w = three(seed).await;
            let old = w.leader(&[1, 2, 3]).await;
            let others: Vec<u64> = (1..=3).filter(|id| *id != old).collect();
            for &id in &others {
                w.hub.mute(id, old);
            }
            // Under way to all, and answered in vain.
            w.propose(old, 0);
            let began = Instant::now();
            let new = w.leader(&others).await;
            let took = began.elapsed();
            assert!(took < ms(2800), "seed {seed}: {took:?}");
            w.propose(others[0], 0);
            let went_on = |w: &World| {
                let text = format!("{}:0", others[0]);
                others.iter().all(|id| w.texts(*id).contains(&text))
            };
            w.wait(went_on, "the others go on").await;
            let term = w.status(new).term;
            sleep(ms(30_000)).await;
            assert!(!w.status(old).primary);
            for &id in &others {
                let s = w.status(id);
                assert!(s.primary, "seed {seed}");
                let led = (s.leader.expect("there is one").0, s.term);
                assert_eq!(led, (new, term), "seed {seed}");
            }
            w.hub.heal();
            w.wait_primary(&[1, 2, 3]).await;
            w.wait_delivered(&[1, 2, 3], 2).await;
            assert_eq!(w.status(old).term, term, "seed {seed}");
        });
    }
}

/// What comes to it is late rather than lost, for less long than elections take.
/// It died before it knew of its vote, and says nothing before it does. Without it there is no majority.
#[test]
fn who_was_just_given_a_vote_is_told_so_when_it_is_back() {
    for seed in 1..=4 {
        run(async move {
            let mut w = World::new(seed);
            w.timings = Some(TIMINGS);
            w.bootstrap(1).await;
            let checkpoint = w
                .order(1)
                .load_checkpoint(None)
                .expect("a log")
                .expect("one");
            let join = Start::Join {
                checkpoint,
                term: 0,
            };
            w.start(2, join).await;
            w.want(1, &[1], &[2]);
            w.wait_members(1, &[1, 2]).await;
            w.propose(1, 0);
            w.wait_delivered(&[1, 2], 1).await;
            w.hub.mute(1, 2);
            w.want(1, &[1, 2], &[]);
            let given = |w: &World| w.status(1).members.configs.len() == 2;
            w.wait(given, "it is about to have a vote").await;
            w.kill(2).await;
            sleep(ms(3000)).await;
            assert!(!w.status(1).primary);
            w.hub.heal();
            w.resume(2).await;
            w.want(2, &[1, 2], &[]);
            w.wait_primary(&[1, 2]).await;
            w.propose(1, 1);
            w.wait_delivered(&[1, 2], 2).await;
        });
    }
}

#[test]
fn a_leader_that_hears_the_others_again_in_time_stays() {
    for seed in 1..=4 {
        run(async move {
            let mut w = three(seed).await;
            let leader = w.leader(&[1, 2, 3]).await;
            let term = w.status(leader).term;
            for id in (1..=3).filter(|id| *id != leader) {
                w.hub.mute(id, leader);
            }
            sleep(ms(1500)).await;
            w.hub.heal();
            w.wait_primary(&[1, 2, 3]).await;
            w.propose(leader, 0);
            w.wait_delivered(&[1, 2, 3], 1).await;
            assert_eq!(w.leader(&[1, 2, 3]).await, leader, "seed {seed}");
            assert_eq!(w.status(leader).term, term, "seed {seed}");
        });
    }
}

/// It stands for election like the others, is busy with its own vote while they elect one of them, and would end the lead
/// of that one with it.
#[test]
fn a_survivor_with_a_slow_disk_ends_nobodys_lead() {
    // In these the slow one is the first whose time is up.
    for seed in [2, 7, 12, 14] {
        run(async move {
            let mut w = World::new(seed);
            w.timings = Some(TIMINGS);
            w.grow(5).await;
            let old = w.leader(&[1, 2, 3, 4, 5]).await;
            // The highest id: its leadership of a term beats any other.
            let slow = (1..=5).rev().find(|id| *id != old).expect("five nodes");
            let others: Vec<u64> = (1..=5).filter(|id| *id != old && *id != slow).collect();
            w.log(slow).slow_down(ms(2000));
            for n in 0..40 {
                w.propose(old, n);
                sleep(ms(100)).await;
            }
            w.kill(old).await;
            let began = Instant::now();
            let new = w.leader(&others).await;
            let took = began.elapsed();
            assert!(took < ms(1950), "seed {seed}: {took:?}");
            let term = w.status(new).term;
            sleep(ms(8000)).await;
            for &id in &others {
                let s = w.status(id);
                let led = s.leader.map(|l| (l.0, s.term));
                assert_eq!(led, Some((new, term)), "seed {seed}, node {id}");
            }
        });
    }
}

/// Neither the candidate's vote nor the other's is stored within an election.
#[test]
fn who_elects_late_for_slow_disks_says_so() {
    run(async {
        let mut w = three(3).await;
        let leader = w.leader(&[1, 2, 3]).await;
        let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
        for &id in &others {
            w.log(id).slow_down(ms(1000));
        }
        for n in 0..10 {
            w.propose(leader, n);
            sleep(ms(500)).await;
        }
        assert!(others.iter().all(|id| w.status(*id).primary), "as before");
        w.kill(leader).await;
        let says = |w: &World, id: &u64| w.status(*id).log_too_slow;
        w.wait(
            |w| {
                others
                    .iter()
                    .any(|id| says(w, id).is_some_and(|d| d >= ms(1000)))
            },
            "it says so",
        )
        .await;
        w.leader(&others).await;
        w.wait_primary(&others).await;
        assert!(others.iter().all(|id| says(&w, id).is_none()), "no more");
    });
}

/// It would have to store what is purged before it says something again.
#[test]
fn a_leader_that_purges_on_a_slow_disk_keeps_the_lead() {
    run(async {
        let mut w = three(1).await;
        let leader = w.leader(&[1, 2, 3]).await;
        let term = w.status(leader).term;
        for n in 0..50 {
            w.propose(leader, n);
        }
        w.wait_delivered(&[1, 2, 3], 50).await;
        let at = w.checkpoint(leader, b"fifty");
        w.log(leader).slow_down(ms(2000));
        w.order(leader).purge_to(at).expect("the engine runs");
        let until = Instant::now() + ms(5000);
        while Instant::now() < until {
            assert!(w.status(leader).primary && w.status(leader).is_leader);
            sleep(ms(20)).await;
        }
        assert_eq!(w.status(leader).first_log, at + 1);
        assert_eq!(w.status(leader).term, term);
    });
}

/// The log fails at something nobody waits for.
#[test]
fn an_engine_whose_log_fails_at_a_purge_fails() {
    run(async {
        let mut w = three(2).await;
        w.propose(1, 0);
        w.wait_delivered(&[1, 2, 3], 1).await;
        let at = w.checkpoint(2, b"one");
        w.log(2).break_purges();
        w.order(2).purge_to(at).expect("the engine runs");
        w.wait(|w| w.status(2).failed.is_some(), "it fails").await;
    });
}

async fn three(seed: u64) -> World {
    let mut w = World::new(seed);
    w.timings = Some(TIMINGS);
    w.grow(3).await;
    w
}
