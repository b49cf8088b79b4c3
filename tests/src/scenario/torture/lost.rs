//! Members that lose what they had: the leader's directory is gone for good, or a member has kept its
//! log in memory only. The others are a majority, and have all that was acknowledged.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use dromon_sandbox::{Cluster, Node, Start};

use super::{
    BACK_LIMIT, Needs, WRITE_LIMIT, add_option, all_back, leader, load_time, nothing_lost, seconds,
    started, wipe,
};
use crate::harness::{Case, JOIN_LIMIT};
use crate::ledger::{self, Ledger, Numbers, Told};
use crate::rng::Rng;

/// Clients on each node.
const CLIENTS: usize = 3;
/// Rows that are written while one is gone.
const WITHOUT: usize = 200;
const MEMORY: &str = "dromon.durability=memory";
const ASK: Duration = Duration::from_secs(10);

/// The leader is killed and its directory emptied; the others go on, and have all that was
/// acknowledged. Then it comes again as one that never was.
pub fn leader_is_lost(case: &mut Case) -> anyhow::Result<()> {
    let cluster = started(case, Needs::default(), |_| {})?;
    ledger::set_up(cluster.node(0), &case.db)?;
    let (mut numbers, mut told) = (Numbers::new(), Told::default());
    for round in 0..case.options.rounds {
        let mut rng = Rng::new(case.options.seed + round);
        let clients = Ledger::open(cluster.nodes(), &case.db, CLIENTS, &mut numbers);
        clients.wait_more(WITHOUT, WRITE_LIMIT)?;
        thread::sleep(load_time(case, &mut rng));
        let lost = leader(&cluster, &mut rng)?;
        let node = cluster.node(lost);
        node.kill()?;
        wipe(node)?;
        clients.wait_more(WITHOUT, WRITE_LIMIT)?;
        let words = clients.close_into(&mut told)?;
        are_members(&others(&cluster, lost))?;
        nothing_lost(&cluster, &case.db, &told)
            .with_context(|| format!("without {}, which led", node.name()))?;
        let clients = Ledger::open(cluster.nodes(), &case.db, CLIENTS, &mut numbers);
        node.start(Start::Join, &[])?;
        let back = all_back(&cluster)?;
        clients.wait_more(WITHOUT, WRITE_LIMIT)?;
        clients.close_into(&mut told)?;
        nothing_lost(&cluster, &case.db, &told)?;
        case.progress(format!(
            "round {}: {words}; {} led and lost its directory: 0 lost on the others; it came anew {} after its start",
            round + 1,
            node.name(),
            seconds(back)
        ));
    }
    case.progress(format!("in all {told}; 0 lost, tables equal"));
    Ok(())
}

/// One of three acknowledges what is in memory; it is killed, and then another one: each time a
/// majority goes on, and has all that was acknowledged on any of them.
pub fn memory_of_one(case: &mut Case) -> anyhow::Result<()> {
    let cluster = started(case, Needs::default(), |_| {})?;
    ledger::set_up(cluster.node(0), &case.db)?;
    let (mut numbers, mut told) = (Numbers::new(), Told::default());
    for round in 0..case.options.rounds {
        let mut rng = Rng::new(case.options.seed + round);
        // In turns the leader and another one.
        let led = leader(&cluster, &mut rng)?;
        let forgets = (led + round as usize % 3) % 3;
        let other = (forgets + 1 + rng.below(2) as usize) % 3;
        cluster.node(forgets).stop(ASK * 6)?;
        start_with(&cluster, forgets, true)?;
        all_back(&cluster)?;
        // Members say so in their reports.
        let name = cluster.node(forgets).name();
        cluster.node(other).wait_for(
            "told that one keeps its log in memory",
            ASK * 2,
            |status| {
                status
                    .get("wsrep_dromon_durability_differs")
                    .contains(&name)
            },
        )?;
        for (nth, victim) in [forgets, other].into_iter().enumerate() {
            let clients = Ledger::open(cluster.nodes(), &case.db, CLIENTS, &mut numbers);
            clients.wait_more(WITHOUT, WRITE_LIMIT)?;
            thread::sleep(load_time(case, &mut rng));
            let node = cluster.node(victim);
            node.kill()?;
            clients.wait_more(WITHOUT, WRITE_LIMIT)?;
            let words = clients.close_into(&mut told)?;
            are_members(&others(&cluster, victim))?;
            nothing_lost(&cluster, &case.db, &told)
                .with_context(|| format!("without {}", node.name()))?;
            // The first one comes back with its setting.
            start_with(&cluster, victim, nth == 0)?;
            all_back(&cluster)?;
            nothing_lost(&cluster, &case.db, &told)?;
            case.progress(format!(
                "round {}: {words}; {}{} killed and back: 0 lost",
                round + 1,
                node.name(),
                match nth {
                    0 => ", its log in memory,",
                    _ => "",
                }
            ));
        }
        cluster.node(forgets).stop(ASK * 6)?;
        start_with(&cluster, forgets, false)?;
        all_back(&cluster)?;
    }
    case.progress(format!("in all {told}; 0 lost, tables equal"));
    Ok(())
}

/// Starts one with its log in memory or on disk; the others' settings stay.
fn start_with(cluster: &Cluster, index: usize, memory: bool) -> anyhow::Result<()> {
    let usual = cluster.record().provider_options;
    let mut options = usual.clone();
    if memory {
        add_option(&mut options, MEMORY);
    }
    cluster.change_settings(|record| record.provider_options = options)?;
    let node = cluster.node(index);
    let came = node.start(Start::Join, &[]);
    if came.is_ok() {
        node.wait_usable(JOIN_LIMIT)?;
    }
    cluster.change_settings(|record| record.provider_options = usual)?;
    Ok(came?)
}

fn others(cluster: &Cluster, one: usize) -> Vec<Arc<Node>> {
    let all = cluster.nodes().iter().enumerate();
    all.filter(|(index, _)| *index != one)
        .map(|(_, node)| Arc::clone(node))
        .collect()
}

fn are_members(nodes: &[Arc<Node>]) -> anyhow::Result<()> {
    for node in nodes {
        node.wait_for("a member of what is left", BACK_LIMIT, |s| s.is_usable())?;
    }
    Ok(())
}
