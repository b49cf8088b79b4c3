//! What a node shows about itself and the others: status and view file.

use std::time::Duration;

use dromon_node::Position;
use dromon_node::grastate::ViewState;
use dromon_node::status::StatusValue;

use crate::net::lock;
use crate::toy::row;
use crate::world::{World, run};

#[test]
fn the_view_file_is_there_while_a_node_runs_and_after_a_crash() {
    run(3, "gmcast.segment=2", |world| {
        world.db(3).disconnect();
        assert_eq!(world.view_file(3), None, "gone after an orderly leave");
        let size = |n| {
            let text = world.view_file(n)?;
            let view = ViewState::parse(&text).expect("its own format");
            assert!(view.members.iter().all(|(_, segment)| *segment == 2));
            assert!(view.members.iter().any(|(uuid, _)| *uuid == view.my_uuid));
            Some(view.members.len())
        };
        world.until("both have written the view of two", || {
            [1, 2].iter().all(|n| size(*n) == Some(2))
        });
        world.crash(2);
        assert_eq!(size(2), Some(2), "it tells of the last view");
        let own = world.db(1).stat("gcomm_uuid");
        let text = world.view_file(1).expect("n1 runs");
        assert!(text.starts_with(&format!("my_uuid: {own}\n#vwbeg\n")));
    });
}

#[test]
fn the_deciding_state_has_the_same_digest_everywhere() {
    run(3, "", |world| {
        for n in 1..=30 {
            assert!(world.db(1 + n % 3).set(row(n as u32), 1).is_committed());
        }
        world.db(3).disconnect();
        let third = world.db(3);
        third.connect(&World::url(), false).expect("two run");
        world.synced(&third);
        world.settle();
        let digests: Vec<_> = (1..=3)
            .map(|n| world.db(n).stat("dromon_state_digest"))
            .collect();
        assert!(!digests[0].is_empty());
        assert!(digests.iter().all(|d| *d == digests[0]), "{digests:?}");
        for n in 1..=3 {
            assert_eq!(world.db(n).stat("dromon_state_differs"), "");
        }
    });
}

#[test]
fn the_documentation_lists_every_status_variable() {
    let page = include_str!("../../../../docs/status.md");
    let (page, _) = page.split_once("\n## States\n").expect("variables first");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.split(" | ").collect())
        .collect();
    run(1, "", move |world| {
        let shown = world.db(1).node().status();
        assert!(shown.len() > 80, "all of them");
        for var in &shown {
            let name = format!("| `{}`", var.name);
            let types: Vec<&str> = rows.iter().filter(|r| r[0] == name).map(|r| r[1]).collect();
            let wanted: &[&str] = match var.value {
                StatusValue::Str(_) => &["text", "`true`/`false`"],
                StatusValue::Int(_) => &["number"],
                StatusValue::Double(_) => &["decimal"],
            };
            assert!(
                matches!(types[..], [one] if wanted.contains(&one)),
                "{name}: {types:?}"
            );
        }
        for row in &rows {
            let name = row[0].trim_start_matches("| `").trim_end_matches('`');
            let name = name.strip_prefix("wsrep_").unwrap_or(name);
            let is_shown = shown.iter().any(|var| var.name == name);
            assert!(
                is_shown,
                "{name} stands in docs/status.md, and is not shown"
            );
        }
    });
}

/// Stops node 3 in order and starts it again with these options besides.
fn restart_third(world: &World, options: &'static str) {
    let third = world.db(3);
    third.disconnect();
    lock(&world.own_options).insert(3, options);
    let third = world.open(3, third.disk(), Position::UNDEFINED);
    third.connect(&World::url(), false).expect("two run");
    world.synced(&third);
}

#[test]
fn a_member_that_keeps_its_log_otherwise_is_named() {
    run(3, "", |world| {
        restart_third(world, "dromon.durability=memory");
        let shown = |n| world.db(n).stat("dromon_durability_differs");
        let all = || [1, 2, 3].map(shown);
        world.until("it is named", || all() == ["n3", "n3", "n1,n2"]);
        for (name, words) in [
            ("n1", "majority here and memory on n3:"),
            ("n2", "majority here and memory on n3:"),
            ("n3", "memory here and majority on n1, n2:"),
        ] {
            assert_eq!(world.report.times(name, words), 1, "{name} says it once");
        }
        assert!(world.db(3).set(row(1), 1).is_committed(), "it is let in");
        restart_third(world, "");
        world.until("it is like the others", || all() == ["", "", ""]);
        assert_eq!(world.report.times("n1", "the same on all members again"), 1);
    });
}

#[test]
fn a_silent_member_is_shown_as_delayed() {
    run(3, "evs.delay_margin=PT0.5S", |world| {
        let (first, third) = (world.db(1), world.db(3));
        let uuid = third.stat("gcomm_uuid");
        // Who has never reported is not late yet.
        std::thread::sleep(Duration::from_secs(1));
        let others = [World::addr(1), World::addr(2)];
        world.net.cut(&[World::addr(3)], &others);
        // Long before it is evicted. On a busy machine it may have been late before.
        let shown = format!("{uuid}:10.0.0.3:4567:");
        world.until("n3 is shown as delayed", || {
            first.stat("evs_delayed").contains(&shown)
        });
        assert_eq!(first.size(), 3);
        world.net.heal();
        world.synced(&third);
    });
}
