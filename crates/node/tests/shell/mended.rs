//! Founders that come back, votes that failure wins, pauses that hold.

use dromon_node::Phase;

use crate::load::Load;
use crate::partition::QUICK;
use crate::toy::{End, row};
use crate::votes::{left_inconsistent, starts_anew};
use crate::world::{World, run};

#[test]
fn failing_alike_on_all_appliers_costs_the_origin_its_place() {
    run(3, "", |world| {
        let origin = world.db(1);
        for n in [2, 3] {
            world
                .db(n)
                .fail_at(row(2), "Duplicate entry, Error_code: 1062;\0");
        }
        // Acknowledged before anybody could apply it.
        assert!(origin.set(row(2), 1).is_committed());
        left_inconsistent(world, &origin);
        world.until("the others see it go", || world.db(2).size() == 2);
        for n in [2, 3] {
            assert_eq!(world.db(n).node().phase(), Phase::Joined);
            assert!(world.db(n).set(row(10 + n as u32), 1).is_committed());
        }
        // The server connects again without having left: it has seen the end.
        // Only a new process can take the copy that it needs then, and it is told so.
        let why = origin
            .connect(&World::url(), false)
            .expect_err("it needs a copy");
        assert!(why.contains("so its server must be restarted"), "{why}");
        starts_anew(world, &origin);
        world.settle();
    });
}

#[test]
fn an_evicted_founder_joins_again_by_itself() {
    run(3, QUICK, |world| {
        let mut load = Load::new(false);
        for db in world.members() {
            load.add(&db, 1, 5);
        }
        load.go_on(world, 10);
        let founder = world.db(1);
        let cut = |ns: &[usize]| ns.iter().map(|n| World::addr(*n)).collect::<Vec<_>>();
        world.net.cut(&cut(&[1]), &cut(&[2, 3]));
        world.until("the others drop it", || {
            world.db(2).size() == 2 && world.db(3).size() == 2
        });
        world.until("it knows", || founder.node().phase() != Phase::Joined);
        assert_eq!(founder.set(row(900), 1), End::ConnFail);
        world.net.heal();
        world.synced(&founder);
        world.until("all three are members", || {
            world.members().iter().all(|d| d.size() == 3)
        });
        load.go_on(world, 10);
        load.verify(world);
    });
}
