//! Starts that are refused, and what is said.

use std::time::{Duration, Instant};

use dromon_node::{Phase, Position};

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

/// It has been a member before: its own log knows whom to ask.
#[test]
fn a_member_that_names_only_itself_asks_those_in_its_log() {
    run(3, "", LIMIT, |world| {
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        world.crash(2);
        let disk = world.crashed_disk(2);
        let position = disk.position;
        let again = world.open(2, disk, position);
        again.connect("gcomm://10.0.0.2", false).expect("two run");
        world.synced(&again);
        world.settle();
        assert_eq!(again.read(row(1)), 1);
    });
}
