//! A member whose log went back in time: its disk said "stored" and lost it, or it was put back from a copy.

mod world;

use dromon_order::logstore::{LogStore, WriteOp};
use world::{World, ms, run};

/// Its log loses this many entries at the end.
const LOST: u64 = 3;

/// Lets member `id` die and lose the end of its log.
async fn lose_the_end(w: &mut World, id: u64) {
    w.kill(id).await;
    let (_, next) = w.log(id).bounds();
    let gone = WriteOp::TruncateFrom(next - LOST);
    w.log(id).submit(gone, Box::new(|r| r.expect("it is cut")));
}

#[test]
fn who_lost_the_end_of_its_log_is_fed_again_by_the_same_leader() {
    for n in [2, 3] {
        run(async move {
            let mut w = World::new(40 + n);
            w.grow(n).await;
            let all: Vec<u64> = (1..=n).collect();
            for i in 0..10 {
                w.propose(1, i);
            }
            w.wait_delivered(&all, 10).await;
            let leader = w.leader(&all).await;
            let term = w.status(leader).term;
            let other = if leader == 2 { 1 } else { 2 };
            let told: Vec<_> = all.iter().map(|id| w.went_back(*id)).collect();
            assert!(told.iter().all(Vec::is_empty), "{told:?}");

            lose_the_end(&mut w, other).await;
            w.resume(other).await;
            for i in 0..10 {
                w.propose(leader, 100 + i);
                tokio::time::sleep(ms(20)).await;
            }
            w.wait_delivered(&all, 20).await;
            w.assert_same(&all);
            let now = w.status(leader);
            assert!(now.is_leader && now.term == term, "{now:?}");
            assert_eq!(w.went_back(leader), [other], "it is told once");
            for id in all.iter().filter(|id| **id != leader) {
                assert!(w.went_back(*id).is_empty(), "{id} does not lead");
            }
        });
    }
}

/// Whose position is gone from the leader's log, too, is told so as ever.
#[test]
fn who_lost_more_than_the_leader_keeps_is_told_that_its_position_is_lost() {
    run(async {
        let mut w = World::new(44);
        w.grow(2).await;
        for i in 0..10 {
            w.propose(1, i);
        }
        w.wait_delivered(&[1, 2], 10).await;
        let leader = w.leader(&[1, 2]).await;
        let other = 3 - leader;
        let at = w.checkpoint(leader, b"later");
        w.order(leader).purge_to(at).expect("it may go");
        lose_the_end(&mut w, other).await;
        w.resume(other).await;
        w.wait(|w| w.position_lost(other), "its position is lost")
            .await;
        assert_eq!(w.went_back(leader), [other]);
    });
}
