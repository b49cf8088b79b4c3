//! What is proposed while no majority is in reach waits unsent, and can be
//! taken back; what was sent cannot.

mod world;

use dromon_order::RaftId;
use dromon_order::memnet::Cut;
use tokio::time::sleep;
use world::{World, ms, run};

/// The kind of all messages of these tests.
const KIND: u8 = 1;

fn others(ids: &[RaftId], one: RaftId) -> Vec<RaftId> {
    ids.iter().copied().filter(|id| *id != one).collect()
}

fn texts(id: RaftId, ns: &[u64]) -> Vec<String> {
    ns.iter().map(|n| format!("{id}:{n}")).collect()
}

#[test]
fn what_is_taken_back_while_the_majority_is_away_is_never_delivered() {
    run(async {
        for leads in [true, false] {
            let mut w = World::three(41).await;
            let leader = w.leader(&[1, 2, 3]).await;
            let one = if leads { leader } else { leader % 3 + 1 };
            w.hub.cut(&[one], &others(&[1, 2, 3], one), Cut::Silent);
            w.wait(|w| !w.status(one).primary, "the lease runs out")
                .await;
            for n in 0..6 {
                w.propose(one, n);
            }
            sleep(ms(3_000)).await;
            for n in [0, 2, 5] {
                assert!(w.order(one).withdraw(KIND, n), "{n} waits unsent");
                assert!(!w.order(one).withdraw(KIND, n), "{n} is gone");
            }
            assert!(!w.order(one).withdraw(KIND + 1, 1), "another kind");
            w.hub.heal();
            w.wait_delivered(&[1, 2, 3], 3).await;
            w.propose(one, 6);
            w.wait_delivered(&[1, 2, 3], 4).await;
            sleep(ms(5_000)).await;
            for id in 1..=3 {
                assert_eq!(w.texts(id), texts(one, &[1, 3, 4, 6]), "at {id}");
            }
        }
    });
}

#[test]
fn what_was_sent_cannot_be_taken_back() {
    run(async {
        for leads in [true, false] {
            let mut w = World::three(42).await;
            let leader = w.leader(&[1, 2, 3]).await;
            let one = if leads { leader } else { leader % 3 + 1 };
            w.hub.cut(&[one], &others(&[1, 2, 3], one), Cut::Silent);
            // Nobody has told it yet.
            w.propose(one, 0);
            sleep(ms(5)).await;
            assert!(!w.order(one).withdraw(KIND, 0));
            w.wait(|w| !w.status(one).primary, "the lease runs out")
                .await;
            assert!(!w.order(one).withdraw(KIND, 0));
            w.propose(one, 1);
            assert!(w.order(one).withdraw(KIND, 1));
            w.hub.heal();
            w.wait_delivered(&[1, 2, 3], 1).await;
            sleep(ms(5_000)).await;
            w.assert_exactly_once(&[1, 2, 3], &[one], 1);
        }
    });
}

/// Whoever dies closes its connections: that is known before the lease ends.
#[test]
fn a_closed_connection_counts_at_once() {
    run(async {
        for leads in [true, false] {
            let mut w = World::new(43);
            w.grow(2).await;
            let leader = w.leader(&[1, 2]).await;
            let one = if leads { leader } else { leader % 2 + 1 };
            let gone = others(&[1, 2], one)[0];
            w.kill(gone).await;
            sleep(ms(1)).await;
            assert!(w.status(one).primary, "the lease stands");
            w.propose(one, 0);
            w.propose(one, 1);
            sleep(ms(2_500)).await;
            assert!(w.order(one).withdraw(KIND, 0));
            w.resume(gone).await;
            w.want(gone, &[1, 2], &[]);
            w.wait_delivered(&[1, 2], 1).await;
            for id in [1, 2] {
                assert_eq!(w.texts(id), texts(one, &[1]), "at {id}");
            }
        }
    });
}

/// One link of several breaks for a moment: the leader still reaches a majority
/// and goes on, and so does who reaches the leader; the third with its link.
#[test]
fn a_link_that_comes_and_goes_stops_nobody() {
    run(async {
        let mut w = World::three(44).await;
        let leader = w.leader(&[1, 2, 3]).await;
        let rest = others(&[1, 2, 3], leader);
        let mut n = 0;
        for _ in 0..20 {
            w.hub.cut(&[leader], &[rest[0]], Cut::Closed);
            w.propose(leader, n);
            w.propose(rest[0], n);
            w.propose(rest[1], n);
            n += 1;
            sleep(ms(20)).await;
            assert_eq!(
                w.texts(leader)
                    .iter()
                    .filter(|t| t.starts_with(&format!("{leader}:")))
                    .count(),
                n as usize,
                "a majority is there"
            );
            w.hub.heal();
            sleep(ms(20)).await;
        }
        w.wait_delivered(&[1, 2, 3], 3 * n as usize).await;
        w.assert_exactly_once(&[1, 2, 3], &[1, 2, 3], n);
    });
}

/// What waits is sent as soon as there is a majority again, also by those who
/// never lead, and also if the leader is another.
#[test]
fn what_waits_goes_when_there_is_a_majority_again() {
    run(async {
        let mut w = World::three(45).await;
        for round in 0..10 {
            let leader = w.leader(&[1, 2, 3]).await;
            for id in 1..=3 {
                w.hub.cut(&[id], &[1, 2, 3], Cut::Silent);
            }
            w.wait(
                |w| (1..=3).all(|id| !w.status(id).primary),
                "nobody has a majority",
            )
            .await;
            for id in 1..=3 {
                w.propose(id, round);
            }
            w.hub.heal();
            if round % 2 == 1 {
                // Whoever led is away a while longer.
                w.hub
                    .cut(&[leader], &others(&[1, 2, 3], leader), Cut::Silent);
                let rest = others(&[1, 2, 3], leader);
                w.wait_primary(&rest).await;
                w.hub.heal();
            }
            w.wait_delivered(&[1, 2, 3], 3 * (round as usize + 1)).await;
        }
        w.assert_exactly_once(&[1, 2, 3], &[1, 2, 3], 10);
    });
}

#[test]
fn a_stopped_engine_gives_back_what_it_has_not_sent() {
    run(async {
        let mut w = World::three(46).await;
        let leader = w.leader(&[1, 2, 3]).await;
        w.hub
            .cut(&[leader], &others(&[1, 2, 3], leader), Cut::Silent);
        w.wait(|w| !w.status(leader).primary, "the lease runs out")
            .await;
        w.propose(leader, 0);
        w.stop(leader).await;
        assert!(w.order(leader).withdraw(KIND, 0));
    });
}
