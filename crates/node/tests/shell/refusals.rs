//! Starts that are refused, and what is said.

use std::time::{Duration, Instant};

use dromon_node::{Phase, Position};

use crate::partition::QUICK;
use crate::toy::{Disk, row};
use crate::world::{World, run};

const LIMIT: Duration = Duration::from_secs(90);

#[test]
fn a_node_cut_off_at_start_is_cut_off_both_ways() {
    let options = "gmcast.isolate=1;pc.wait_prim_timeout=PT1S";
    run(1, options, LIMIT, |world| {
        let first = world.db(1);
        let second = world.open(2, Disk::empty(), Position::UNDEFINED);
        let why = second.connect(&World::url(), false);
        let why = why.expect_err("it asks nobody");
        assert!(
            why.contains("this node is cut off (gmcast.isolate)"),
            "{why}"
        );
        second
            .node()
            .set_options("gmcast.isolate=0")
            .expect("an order at any time");
        let why = second.connect(&World::url(), false);
        let why = why.expect_err("n1 hears nobody");
        assert!(!why.contains("gmcast.isolate"), "{why}");
        assert_eq!((first.size(), second.node().phase()), (1, Phase::Closed));
        first
            .node()
            .set_options("gmcast.isolate=0")
            .expect("an order at any time");
        second.connect(&World::url(), false).expect("now it does");
        world.synced(&second);
        // In the address it works as well.
        let third = world.open(3, Disk::empty(), Position::UNDEFINED);
        third
            .node()
            .set_options("gmcast.isolate=0")
            .expect("an order at any time");
        let url = format!("{}?gmcast.isolate=1", World::url());
        let why = third.connect(&url, false).expect_err("it asks nobody");
        assert!(
            why.contains("this node is cut off (gmcast.isolate)"),
            "{why}"
        );
    });
}

#[test]
fn an_address_that_names_only_this_node_is_refused_at_once() {
    run(1, "", LIMIT, |world| {
        let second = world.open(2, Disk::empty(), Position::UNDEFINED);
        for list in ["10.0.0.2:4567", "localhost,10.0.0.2"] {
            let began = Instant::now();
            let why = second.connect(&format!("gcomm://{list}"), false);
            let why = why.expect_err("there is nobody to ask");
            assert!(began.elapsed() < Duration::from_secs(5), "at once");
            let start = "wsrep_cluster_address names only this node itself (";
            assert!(why.starts_with(start), "{why}");
            assert!(why.contains("10.0.0.2:4567"), "{why}");
            assert_eq!(second.node().phase(), Phase::Closed);
        }
        second.connect(&World::url(), false).expect("n1 is there");
        world.synced(&second);
    });
}

/// Its address list was empty or named itself: it asks the voters of its log.
#[test]
fn a_founder_that_named_nobody_comes_back() {
    run(3, QUICK, LIMIT, |world| {
        let founder = world.db(1);
        let others = [World::addr(2), World::addr(3)];
        world.net.cut(&[World::addr(1)], &others);
        world.until("the others drop it", || {
            [2, 3].iter().all(|n| world.db(*n).size() == 2)
        });
        world.net.heal();
        world.synced(&founder);
        assert!(founder.set(row(1), 1).is_committed());
        world.settle();
        // The same for a whole outage.
        let disks: Vec<_> = [1, 2].map(|n| world.db(n).disk()).into();
        for n in 1..=3 {
            world.crash(n);
        }
        let opened: Vec<_> = (1..=2)
            .zip(disks)
            .map(|(n, disk)| world.open(n, disk.clone(), disk.position))
            .collect();
        std::thread::scope(|scope| {
            for db in &opened {
                let url = format!("gcomm://{}", db.addr);
                scope.spawn(move || db.connect(&url, false).expect("two of three logs"));
            }
        });
        for db in &opened {
            world.synced(db);
        }
        world.settle();
        assert_eq!(opened[1].read(row(1)), 1);
    });
}
