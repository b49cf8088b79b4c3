//! Deaths of running members.

use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use dromon_sandbox::{Cluster, Start};

use super::cut::{self, Cut};
use super::{
    BACK_LIMIT, Needs, WRITE_LIMIT, all_back, leader, load_time, nothing_lost, seconds, shuffled,
    start_down, started,
};
use crate::check;
use crate::harness::{Case, JOIN_LIMIT};
use crate::lab::log_files_direct;
use crate::ledger::{self, Ledger, Numbers, Told};
use crate::load::Session;
use crate::rng::Rng;

/// Clients on each node.
const CLIENTS: usize = 3;
/// "At once" for SIGKILL.
const AT_ONCE: Duration = Duration::from_millis(100);
/// A round that wrote less shows nothing.
pub(super) const LEAST_ROWS: usize = 50;

pub(super) fn set_flush(cluster: &Cluster, value: u64) -> anyhow::Result<()> {
    for node in cluster.nodes() {
        Session::open(node, "", 0)?.exec(&format!(
            "SET GLOBAL innodb_flush_log_at_trx_commit = {value}"
        ))?;
    }
    Ok(())
}

/// In which rounds.
type Rounds = fn(u64) -> bool;

/// Rounds in which `strike` takes all nodes at once, under load; it says how. The
/// engine's flush is set to each of `flushes` in turn. In the rounds that `cuts`
/// names the nodes keep little log (`gcache.size`) and have just cut it when that happens. In those that
/// `alone` names the two that did not lead come back first: what was acknowledged must be on their disks.
fn all_at_once(
    case: &mut Case,
    needs: Needs,
    rounds: u64,
    flushes: [u64; 3],
    (cuts, alone): (Rounds, Rounds),
    strike: impl Fn(&Case, &Cluster) -> anyhow::Result<String>,
) -> anyhow::Result<Told> {
    let cluster = started(case, needs, |_| {})?;
    ledger::set_up(cluster.node(0), &case.db)?;
    let (mut numbers, mut told) = (Numbers::new(), Told::default());
    // Only this provider's log must bring again what an engine has lost.
    let cuts = |round: u64| cuts(round) && cluster.record().is_dromon();
    let (mut rounds_cut, mut copies) = (0, 0);
    for round in 0..rounds {
        let mut rng = Rng::new(case.options.seed + round);
        let flush = flushes[round as usize % 3];
        set_flush(&cluster, flush)?;
        if needs.disks && cluster.record().is_dromon() {
            nothing_direct(&cluster)?;
        }
        let clients = Ledger::open(cluster.nodes(), &case.db, CLIENTS, &mut numbers);
        thread::sleep(load_time(case, &mut rng));
        clients.wait_more(LEAST_ROWS, WRITE_LIMIT)?;
        let mut cut = match cuts(round) {
            true => Some(cut::until_cut(&cluster, &case.db)?),
            false => None,
        };
        if cut.is_some() {
            rounds_cut += 1;
            // Into the next writing, cutting and syncing.
            thread::sleep(Duration::from_millis(rng.below(1500)));
        }
        ensure!(cluster.running() == 3, "a node had ended by itself");
        let led = match alone(round) && cluster.record().is_dromon() {
            true => Some(leader(&cluster, &mut rng)?),
            false => None,
        };
        let how = strike(case, &cluster)?;
        cut.iter_mut().for_each(Cut::stop_writing);
        let words = clients.close_into(&mut told)?;
        if cluster.record().is_dromon() {
            cut::set_log_size(&cluster, cuts(round + 1))?;
        }
        let marks = check::log_marks(&cluster);
        let mut order = Vec::new();
        if let Some(led) = led {
            order = start_others(&cluster, led, &mut rng)?;
            nothing_lost(&cluster, &case.db, &told)
                .with_context(|| format!("without db{}, which led", led + 1))?;
        }
        order.extend(start_down(&cluster, &mut rng)?);
        let order = order.join(", ");
        let back = all_back(&cluster)?;
        nothing_lost(&cluster, &case.db, &told)?;
        if let Some(cut) = &cut {
            cut.was_made(&cluster)?;
        }
        let cut_words = cut.map(|cut| cut.words).unwrap_or_default();
        if !needs.disks {
            cut::no_copies(&cluster, &marks)?;
        }
        let taken = cut::copies(&cluster, &marks)?;
        copies += taken.len();
        for copy in taken {
            case.progress(copy);
        }
        case.progress(format!(
            "round {} at flush {flush}: {words}; {cut_words}{how}, started as {order}, all Synced {} after the last \
             start; 0 lost",
            round + 1,
            seconds(back)
        ));
    }
    if cluster.record().is_dromon() {
        case.progress(format!(
            "in {rounds_cut} of {rounds} rounds the log had been cut on all nodes; {copies} full copies afterwards"
        ));
    }
    Ok(told)
}

fn every_other(round: u64) -> bool {
    round % 2 == 1
}

/// Starts all but `left`, and waits until they are a cluster.
fn start_others(cluster: &Cluster, left: usize, rng: &mut Rng) -> anyhow::Result<Vec<String>> {
    let others: Vec<usize> = shuffled(cluster, rng)
        .into_iter()
        .filter(|index| *index != left)
        .collect();
    for index in &others {
        cluster.node(*index).start(Start::Join, &[])?;
    }
    for index in &others {
        let node = cluster.node(*index);
        node.wait_for("a member of what is left", BACK_LIMIT, |s| s.is_usable())?;
    }
    Ok(others.iter().map(|i| cluster.node(*i).name()).collect())
}

/// Fails if a log file is open in a way that passes by the page cache.
fn nothing_direct(cluster: &Cluster) -> anyhow::Result<()> {
    for node in cluster.nodes() {
        let (files, direct) = log_files_direct(node)?;
        ensure!(
            files > 0 && direct == 0,
            "of {files} open log files of {} {direct} use O_DIRECT: the power cut would show nothing",
            node.name()
        );
    }
    Ok(())
}

/// All killed at once, at each setting of the engine's flush.
pub fn kill_all(case: &mut Case) -> anyhow::Result<()> {
    let rounds = case.options.rounds * 3;
    let strike = |_: &Case, cluster: &Cluster| {
        let spread = cluster.kill_all()?;
        ensure!(
            spread < AT_ONCE,
            "the nodes were killed over {} ms, not at once",
            spread.as_millis()
        );
        Ok(format!("killed within {} ms", spread.as_millis()))
    };
    // One round of each is over too soon for that.
    let cuts: fn(u64) -> bool = match case.options.rounds {
        0 | 1 => |_| false,
        _ => every_other,
    };
    let told = all_at_once(
        case,
        Needs::default(),
        rounds,
        [0, 1, 2],
        (cuts, |_| false),
        strike,
    )?;
    case.progress(format!("in all {told}; 0 lost, tables equal"));
    Ok(())
}

/// All lose power at once.
pub fn power_cut(case: &mut Case) -> anyhow::Result<()> {
    let needs = Needs {
        disks: true,
        ..Needs::default()
    };
    let rounds = case.options.rounds;
    let strike = |case: &Case, cluster: &Cluster| {
        case.disks().power_cut(cluster)?;
        Ok("power cut".into())
    };
    // The engine's setting may not matter: begin with the quick start's.
    let in_turns: (Rounds, Rounds) = (every_other, |round| !every_other(round));
    let told = all_at_once(case, needs, rounds, [2, 0, 1], in_turns, strike)?;
    case.progress(format!(
        "in all {told}; 0 lost, tables equal; no log file is open with O_DIRECT"
    ));
    Ok(())
}

/// One after the other. In even rounds each is Synced again before the next one
/// dies; in odd ones nobody waits, so that often no majority is left.
pub fn rolling(case: &mut Case) -> anyhow::Result<()> {
    let cluster = started(case, Needs::default(), |_| {})?;
    ledger::set_up(cluster.node(0), &case.db)?;
    let (mut numbers, mut told) = (Numbers::new(), Told::default());
    for round in 0..case.options.rounds {
        let mut rng = Rng::new(case.options.seed + round);
        let patient = round % 2 == 0;
        set_flush(&cluster, round % 3)?;
        let clients = Ledger::open(cluster.nodes(), &case.db, CLIENTS, &mut numbers);
        clients.wait_more(LEAST_ROWS, WRITE_LIMIT)?;
        let order = shuffled(&cluster, &mut rng);
        let marks = check::log_marks(&cluster);
        for &index in &order {
            let node = cluster.node(index);
            node.kill()?;
            if patient {
                clients.wait_more(LEAST_ROWS, WRITE_LIMIT)?;
            } else {
                thread::sleep(Duration::from_millis(rng.below(2000)));
            }
            node.start(Start::Join, &[])?;
            if patient {
                node.wait_usable(JOIN_LIMIT)?;
            } else {
                thread::sleep(Duration::from_millis(rng.below(2000)));
            }
        }
        let back = all_back(&cluster)?;
        clients.wait_more(LEAST_ROWS, WRITE_LIMIT)?;
        let words = clients.close_into(&mut told)?;
        nothing_lost(&cluster, &case.db, &told)?;
        cut::no_copies(&cluster, &marks)?;
        let names: Vec<String> = order.iter().map(|i| cluster.node(*i).name()).collect();
        case.progress(format!(
            "round {}: {words}; {} killed, {}; all Synced {} after the last start; 0 lost",
            round + 1,
            names.join(", "),
            if patient {
                "each after the one before was back"
            } else {
                "without waiting"
            },
            seconds(back)
        ));
    }
    case.progress(format!("in all {told}; 0 lost, tables equal"));
    Ok(())
}

/// The leader dies; the others go on and it comes back.
pub fn leader_dies(case: &mut Case) -> anyhow::Result<()> {
    let cluster = started(case, Needs::default(), |_| {})?;
    ledger::set_up(cluster.node(0), &case.db)?;
    let (mut numbers, mut told) = (Numbers::new(), Told::default());
    for round in 0..case.options.rounds {
        let mut rng = Rng::new(case.options.seed + round);
        set_flush(&cluster, round % 3)?;
        let clients = Ledger::open(cluster.nodes(), &case.db, CLIENTS, &mut numbers);
        thread::sleep(load_time(case, &mut rng));
        let dead = leader(&cluster, &mut rng)?;
        let node = cluster.node(dead);
        let marks = check::log_marks(&cluster);
        node.kill()?;
        clients.wait_more(LEAST_ROWS, WRITE_LIMIT)?;
        node.start(Start::Join, &[])?;
        let back = all_back(&cluster)?;
        let words = clients.close_into(&mut told)?;
        nothing_lost(&cluster, &case.db, &told)?;
        cut::no_copies(&cluster, &marks)?;
        case.progress(format!(
            "round {}: {words}; {} led and was killed, all Synced {} after its start; 0 lost",
            round + 1,
            node.name(),
            seconds(back)
        ));
    }
    case.progress(format!("in all {told}; 0 lost, tables equal"));
    Ok(())
}
