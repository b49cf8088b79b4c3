//! Deaths while a node joins.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use dromon_sandbox::{Cluster, Node, SstMethod, Start};

use super::{
    Needs, WRITE_LIMIT, all_back, all_back_restarted, leader, nothing_lost, started, wipe,
};
use crate::harness::Case;
use crate::ledger::{self, Ledger, Numbers, Told};
use crate::load::Session;
use crate::rng::Rng;

const CLIENTS: usize = 3;
/// Rows that the joiner misses.
const MISSED: usize = 1500;
/// A full copy must last a while to be interrupted: this many MB of rows.
const FILL_MB: u64 = 60;
/// How long a joiner may take to find a donor.
const DONOR_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Restarts by the service manager in a round: a joiner whose copy failed ends.
const RESTARTS: usize = 4;

/// A node that missed writes is started and dies again before it has caught
/// up; in every third round the leader dies instead.
pub fn by_log(case: &mut Case) -> anyhow::Result<()> {
    let cluster = started(case, Needs::default(), |_| {})?;
    ledger::set_up(cluster.node(0), &case.db)?;
    let (mut numbers, mut told) = (Numbers::new(), Told::default());
    for round in 0..case.options.rounds {
        let mut rng = Rng::new(case.options.seed + round);
        let clients = Ledger::open(cluster.nodes(), &case.db, CLIENTS, &mut numbers);
        clients.wait_more(20, WRITE_LIMIT)?;
        let joiner = cluster.node(rng.below(3) as usize);
        let how = if rng.chance(50) {
            joiner.kill()?;
            "killed"
        } else {
            joiner.stop(STOP_LIMIT)?;
            "stopped"
        };
        clients.wait_more(MISSED, WRITE_LIMIT)?;
        joiner.start(Start::Join, &[])?;
        // Between "its process exists" and "it is Synced", at random.
        let until = Instant::now() + Duration::from_millis(150 + rng.below(1600));
        let mut state = state_of(joiner);
        while Instant::now() < until && state != "Synced" {
            thread::sleep(Duration::from_millis(10));
            state = state_of(joiner);
        }
        let struck = if round % 3 == 2 {
            Arc::clone(cluster.node(leader(&cluster, &mut rng)?))
        } else {
            Arc::clone(joiner)
        };
        struck.kill()?;
        thread::sleep(Duration::from_millis(rng.below(1500)));
        struck.start(Start::Join, &[])?;
        all_back(&cluster)?;
        clients.wait_more(20, WRITE_LIMIT)?;
        let words = clients.close_into(&mut told)?;
        nothing_lost(&cluster, &case.db, &told)?;
        case.progress(format!(
            "round {}: {words}; {} {how}, started again, {} killed when it was {state}; all Synced; 0 lost",
            round + 1,
            joiner.name(),
            if struck.name() == joiner.name() {
                "it".into()
            } else {
                format!("{} (leader)", struck.name())
            }
        ));
    }
    case.progress(format!("in all {told}; 0 lost, tables equal"));
    Ok(())
}

fn state_of(node: &Node) -> String {
    match node.status(Duration::from_secs(1)) {
        Ok(status) => status.state().to_string(),
        Err(_) => "not answering yet".into(),
    }
}

/// A node without data takes a full copy, and one of the two ends of it dies:
/// the donor in even rounds, the joiner in odd ones; by rsync and mariabackup.
pub fn full_copy(case: &mut Case) -> anyhow::Result<()> {
    let cluster = started(case, Needs::default(), |_| {})?;
    ledger::set_up(cluster.node(0), &case.db)?;
    fill(&cluster, &case.db)?;
    let (mut numbers, mut told) = (Numbers::new(), Told::default());
    for round in 0..case.options.rounds {
        let mut rng = Rng::new(case.options.seed + round);
        let method = [SstMethod::Rsync, SstMethod::Mariabackup][(round / 2) as usize % 2];
        cluster.change_settings(|record| record.sst_method = method)?;
        let clients = Ledger::open(cluster.nodes(), &case.db, CLIENTS, &mut numbers);
        clients.wait_more(20, WRITE_LIMIT)?;
        let joiner = rng.below(3) as usize;
        cluster.node(joiner).stop(STOP_LIMIT)?;
        wipe(cluster.node(joiner))?;
        cluster.node(joiner).start(Start::Join, &[])?;
        let donor = wait_for_donor(&cluster, joiner)?;
        thread::sleep(Duration::from_millis(rng.below(400)));
        let donor_dies = round % 2 == 0;
        let struck = cluster.node(if donor_dies { donor } else { joiner });
        let state = state_of(cluster.node(donor));
        struck.kill()?;
        thread::sleep(Duration::from_millis(rng.below(1000)));
        struck.start(Start::Join, &[])?;
        let restarts = all_back_restarted(&cluster, RESTARTS)?;
        clients.wait_more(20, WRITE_LIMIT)?;
        let words = clients.close_into(&mut told)?;
        nothing_lost(&cluster, &case.db, &told)?;
        case.progress(format!(
            "round {}: {words}; {} copied from {} by {}, {} killed (the donor was {state}); \
             the service manager restarted {restarts}; all Synced; 0 lost",
            round + 1,
            cluster.node(joiner).name(),
            cluster.node(donor).name(),
            method.name(),
            struck.name(),
        ));
    }
    case.progress(format!("in all {told}; 0 lost, tables equal"));
    Ok(())
}

fn wait_for_donor(cluster: &Cluster, joiner: usize) -> anyhow::Result<usize> {
    let end = Instant::now() + DONOR_LIMIT;
    loop {
        for index in (0..cluster.nodes().len()).filter(|i| *i != joiner) {
            if state_of(cluster.node(index)).starts_with("Donor") {
                return Ok(index);
            }
        }
        ensure!(
            cluster.node(joiner).process().is_some(),
            "{} ended instead of asking for a copy: {}",
            cluster.node(joiner).name(),
            cluster.node(joiner).log_tail(12)
        );
        ensure!(
            Instant::now() < end,
            "no node became a donor within {} s",
            DONOR_LIMIT.as_secs()
        );
        thread::sleep(Duration::from_millis(5));
    }
}

fn fill(cluster: &Cluster, db: &str) -> anyhow::Result<()> {
    let mut session = Session::open(cluster.node(0), db, 0)?;
    session.exec("CREATE TABLE filling (id BIGINT PRIMARY KEY, pad BLOB NOT NULL)")?;
    for mb in 0..FILL_MB {
        session.exec(&format!(
            "INSERT INTO filling SELECT {mb} * 1000 + seq, REPEAT(CHAR(97 + seq % 26), 10000) FROM seq_1_to_100"
        ))?;
    }
    Ok(())
}
