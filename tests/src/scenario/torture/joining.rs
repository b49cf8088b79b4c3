//! Deaths while a node joins.

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
/// Tries more for each round, on average, that may come too late.
const AGAIN: u64 = 4;
/// So many rounds are the short version of a scenario.
const SHORT: u64 = 2;

/// A node that missed writes is started and dies again before it has caught
/// up; in odd rounds the leader dies instead. A round in which the node was
/// Synced before anything died shows nothing and is made again.
pub fn by_log(case: &mut Case) -> anyhow::Result<()> {
    let cluster = started(case, Needs::default(), |_| {})?;
    ledger::set_up(cluster.node(0), &case.db)?;
    let (mut numbers, mut told) = (Numbers::new(), Told::default());
    let (mut leaders, mut again) = (0, 0);
    for round in 0..case.options.rounds {
        let mut rng = Rng::new(case.options.seed + round);
        // Between "its process exists" and "it is Synced", at random.
        let mut most = Duration::from_millis(1750);
        let words = loop {
            let clients = Ledger::open(cluster.nodes(), &case.db, CLIENTS, &mut numbers);
            let leader_dies = round % 2 == 1;
            let tried = catch_up(&cluster, &clients, leader_dies, most, &mut rng)?;
            let told_words = clients.close_into(&mut told)?;
            nothing_lost(&cluster, &case.db, &told)?;
            match tried {
                Tried::Hit(what) => break format!("{told_words}; {what}"),
                Tried::TooLate(took) => {
                    again += 1;
                    most = took.min(most) * 3 / 4;
                    ensure!(
                        again <= case.options.rounds * AGAIN,
                        "in {again} tries a node was Synced before it could be hit: nothing was shown"
                    );
                }
            }
        };
        leaders += round % 2;
        case.progress(format!("round {}: {words}; all Synced; 0 lost", round + 1));
    }
    case.progress(format!(
        "{} rounds in which a node was hit before it was Synced, the leader in {leaders} of them ({again} more came too \
         late and were made again); in all {told}; 0 lost, tables equal",
        case.options.rounds
    ));
    Ok(())
}

/// How a try at a round went; all is well again afterwards.
enum Tried {
    /// In words what was hit, in time.
    Hit(String),
    /// What was to be interrupted was over, so long after it began.
    TooLate(Duration),
}

fn catch_up(
    cluster: &Cluster,
    clients: &Ledger,
    leader_dies: bool,
    most: Duration,
    rng: &mut Rng,
) -> anyhow::Result<Tried> {
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
    // Asked for now: later there is no time for it.
    let struck = match leader_dies {
        true => cluster.node(leader(cluster, rng)?),
        false => joiner,
    };
    joiner.start(Start::Join, &[])?;
    let begin = Instant::now();
    let least = most / 12;
    let wait = least + Duration::from_millis(rng.below((most - least).as_millis() as u64));
    let mut state = state_of(joiner);
    while begin.elapsed() < wait && state != "Synced" {
        thread::sleep(Duration::from_millis(10));
        state = state_of(joiner);
    }
    if state == "Synced" {
        let took = begin.elapsed();
        all_back(cluster)?;
        return Ok(Tried::TooLate(took));
    }
    struck.kill()?;
    thread::sleep(Duration::from_millis(rng.below(1500)));
    struck.start(Start::Join, &[])?;
    all_back(cluster)?;
    clients.wait_more(20, WRITE_LIMIT)?;
    let who = match leader_dies {
        true => format!("the leader, {},", struck.name()),
        false => "it".into(),
    };
    Ok(Tried::Hit(format!(
        "{joiner} {how}, started again, {who} killed when {joiner} was {state}",
        joiner = joiner.name()
    )))
}

fn state_of(node: &Node) -> String {
    match node.status(Duration::from_secs(1)) {
        Ok(status) => status.state().to_string(),
        Err(_) => "not answering yet".into(),
    }
}

/// A node without data takes a full copy, and one of the two ends of it dies:
/// the donor, then the joiner, by rsync, then by mariabackup; each of the four
/// as often as there are rounds, in the short version once. A round whose copy
/// was over before anything died shows nothing and is made again.
pub fn full_copy(case: &mut Case) -> anyhow::Result<()> {
    let cluster = started(case, Needs::default(), |_| {})?;
    ledger::set_up(cluster.node(0), &case.db)?;
    fill(&cluster, &case.db)?;
    let (mut numbers, mut told) = (Numbers::new(), Told::default());
    let each = match case.options.rounds {
        0..=SHORT => 1,
        rounds => rounds,
    };
    let mut again = 0;
    for round in 0..each * 4 {
        let mut rng = Rng::new(case.options.seed + round);
        let donor_dies = round % 2 == 0;
        let method = [SstMethod::Rsync, SstMethod::Mariabackup][(round / 2) as usize % 2];
        cluster.change_settings(|record| record.sst_method = method)?;
        let mut most = Duration::from_millis(400);
        let words = loop {
            let clients = Ledger::open(cluster.nodes(), &case.db, CLIENTS, &mut numbers);
            let tried = copy(&cluster, &clients, donor_dies, most, &mut rng)?;
            let told_words = clients.close_into(&mut told)?;
            nothing_lost(&cluster, &case.db, &told)?;
            match tried {
                Tried::Hit(what) => break format!("{told_words}; {what}"),
                Tried::TooLate(took) => {
                    again += 1;
                    most = took.min(most) * 3 / 4;
                    ensure!(
                        again <= each * 4 * AGAIN,
                        "in {again} tries the copy was over before anything could be hit: nothing was shown"
                    );
                }
            }
        };
        case.progress(format!(
            "round {}, by {}: {words}; all Synced; 0 lost",
            round + 1,
            method.name()
        ));
    }
    case.progress(format!(
        "donor and joiner each hit {each} times during a copy by rsync, {each} times by mariabackup ({again} more came \
         too late and were made again); in all {told}; 0 lost, tables equal"
    ));
    Ok(())
}

fn copy(
    cluster: &Cluster,
    clients: &Ledger,
    donor_dies: bool,
    most: Duration,
    rng: &mut Rng,
) -> anyhow::Result<Tried> {
    clients.wait_more(20, WRITE_LIMIT)?;
    let joiner = rng.below(3) as usize;
    cluster.node(joiner).stop(STOP_LIMIT)?;
    wipe(cluster.node(joiner))?;
    cluster.node(joiner).start(Start::Join, &[])?;
    let donor = wait_for_donor(cluster, joiner)?;
    let begin = Instant::now();
    thread::sleep(Duration::from_millis(rng.below(most.as_millis() as u64)));
    let [joiner, donor] = [joiner, donor].map(|n| cluster.node(n));
    let struck = if donor_dies { donor } else { joiner };
    let joined = state_of(joiner) == "Synced";
    // The last thing asked: the donor is one until the copy is over.
    let state = state_of(donor);
    if joined || !state.starts_with("Donor") {
        all_back_restarted(cluster, RESTARTS)?;
        return Ok(Tried::TooLate(begin.elapsed()));
    }
    struck.kill()?;
    thread::sleep(Duration::from_millis(rng.below(1000)));
    struck.start(Start::Join, &[])?;
    let restarts = all_back_restarted(cluster, RESTARTS)?;
    clients.wait_more(20, WRITE_LIMIT)?;
    Ok(Tried::Hit(format!(
        "{} copied from {}, {} killed (the donor was {state}); the service manager restarted {restarts}",
        joiner.name(),
        donor.name(),
        struck.name(),
    )))
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
