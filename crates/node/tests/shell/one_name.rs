//! One name for all nodes, as a service of Kubernetes without an address of its own has it.

use dromon_node::Position;

use crate::edits::write;
use crate::toy::Disk;
use crate::world::{addrs, run};

const NAME: &str = "db:4567";
const URL: &str = "gcomm://db";

/// Whoever connects to the name reaches its own node as soon as that listens.
#[test]
fn nodes_with_one_name_join_and_found_no_second_cluster() {
    run(1, "", |world| {
        world.net.name(NAME, &addrs(&[1, 2, 3]));
        for n in [2, 3] {
            let db = world.open(n, Disk::empty(), Position::UNDEFINED);
            db.connect(URL, false)
                .unwrap_or_else(|e| panic!("n{n}: {e}"));
            world.synced(&db);
        }
        assert!(world.report.said("db:4567 stands for several addresses"));
        world.voters(3);
        write(&world.db(1), 0..5);
        world.settle();
        world.crash(1);
        world.crash(2);
        world.until("the third waits", || !world.db(3).node().is_primary());
        let first = world.open(1, Disk::empty(), Position::UNDEFINED);
        let why = first.connect(URL, true).expect_err("it does not found");
        assert!(why.contains("waits for a majority"), "{why}");
        world.crash(1);
        let second = world.open_again(2);
        second.connect(URL, false).expect("they are two");
        for n in [2, 3] {
            world.synced(&world.db(n));
        }
        world.settle();
    });
}
