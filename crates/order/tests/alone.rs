//! Forced recovery: one member goes on without a majority.

mod world;

use dromon_order::incarnation;
use dromon_order::memnet::Cut;
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
            w.want(one, &[one], &[]);
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
        w.want(leader, &[leader], &[]);
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
