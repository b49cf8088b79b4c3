//! The disk under one node's log fails, hangs or fills up.

use std::fmt::Write as _;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use dromon_sandbox::{Cluster, Node, Start, StopReport};

use super::cut::{Pump, copies};
use super::{
    Needs, WRITE_LIMIT, add_option, all_back, leader, load_time, nothing_lost, seconds, started,
};
use crate::check::{self, ENGINE_FAILED};
use crate::harness::Case;
use crate::lab::LogFault;
use crate::ledger::{self, Ledger, Numbers, Told};
use crate::load::Session;
use crate::rng::Rng;

/// In so few rounds there is no time for the usual patience.
const SHORT: u64 = 2;
/// When a member whose log stands still is put out (`evs.inactive_timeout`), seconds.
const PATIENCE: u64 = 15;
const SHORT_PATIENCE: u64 = 6;
/// Clients on each node.
const CLIENTS: usize = 3;
/// A log has at most so many megabytes left when its disk is full: a segment, which it
/// takes as a whole, and what was left free.
const ROOM_MB: u64 = 68;
/// They are written within this time.
const FILLED_WITHIN: Duration = Duration::from_secs(120);
/// How often room that was made meanwhile is taken.
const FILL_AGAIN: Duration = Duration::from_millis(500);
/// Beyond that time, until the node says that it is not ready, and until the
/// others are a cluster of two: for a new leader and what it must agree on.
const MORE: Duration = Duration::from_secs(15);
/// What was stored before the fault may be acknowledged for so long after it.
const ON_THE_WAY: Duration = Duration::from_secs(2);
/// So long nothing may be acknowledged there from then on.
const WATCHED: Duration = Duration::from_secs(3);
/// The row written by this scenario itself; no client of the ledger has it.
const OWN_ROW: i64 = -1;
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// In each round the log's disk of one node fails, hangs and is full, of the
/// leader in odd rounds. That node acknowledges nothing more and says that it is
/// not ready, its process stays; the others go on as two; when the disk is well
/// again and the server started again, on the same log, it is back.
///
/// What does not hold is told at the end, so that the other faults are seen too.
pub fn log_disk(case: &mut Case) -> anyhow::Result<()> {
    let needs = Needs {
        log_disks: true,
        ..Needs::default()
    };
    let patience = match case.options.rounds {
        0..=SHORT => SHORT_PATIENCE,
        _ => PATIENCE,
    };
    let limit = Duration::from_secs(patience) + MORE;
    let cluster = started(case, needs, |spec| {
        let option = format!("evs.inactive_timeout=PT{patience}S");
        add_option(&mut spec.provider_options, &option);
    })?;
    for node in 0..cluster.nodes().len() {
        case.expect_in_log(node, ENGINE_FAILED);
    }
    ledger::set_up(cluster.node(0), &case.db)?;
    let mut numbers = Numbers::new();
    let (mut told, mut wrong) = (Told::default(), Vec::new());
    let mut faults = 0;
    for round in 0..case.options.rounds {
        let mut rng = Rng::new(case.options.seed + round);
        for fault in LogFault::ALL {
            let mut victim = leader(&cluster, &mut rng)?;
            let leads = round % 2 == 1;
            if !leads {
                victim = (victim + 1 + rng.below(2) as usize) % cluster.nodes().len();
            }
            let who = format!(
                "round {}, {} ({}), its log's disk {}",
                round + 1,
                cluster.node(victim).name(),
                if leads { "leader" } else { "follower" },
                fault.name()
            );
            let mut seen = Seen {
                limit,
                ..Seen::default()
            };
            once(
                case,
                &cluster,
                victim,
                fault,
                &mut rng,
                (&mut numbers, &mut told),
                &mut seen,
            )?;
            faults += 1;
            case.progress(format!("{who}: {}", seen.words));
            wrong.extend(seen.wrong.into_iter().map(|w| format!("{who}: {w}")));
        }
    }
    case.progress(format!(
        "{faults} faults; in all {told}; 0 lost, tables equal"
    ));
    ensure!(wrong.is_empty(), "{}", wrong.join("\n    "));
    Ok(())
}

#[derive(Default)]
struct Seen {
    /// What the fault may take to show.
    limit: Duration,
    words: String,
    wrong: Vec<String>,
}

impl Seen {
    /// A time that must have come.
    fn time(&mut self, what: &str, took: Option<Duration>) {
        match took.filter(|took| *took < self.limit) {
            Some(took) => {
                let _ = write!(self.words, "{what} after {}; ", seconds(took));
            }
            None => self.wrong(format!("{what}: not within {} s", self.limit.as_secs())),
        }
    }

    fn wrong(&mut self, what: String) {
        let _ = write!(self.words, "WRONG: {what}; ");
        self.wrong.push(what);
    }
}

fn once(
    case: &Case,
    cluster: &Arc<Cluster>,
    victim: usize,
    fault: LogFault,
    rng: &mut Rng,
    (numbers, told): (&mut Numbers, &mut Told),
    seen: &mut Seen,
) -> anyhow::Result<()> {
    let node = cluster.node(victim);
    let others: Vec<Arc<Node>> = cluster
        .nodes()
        .iter()
        .filter(|n| n.name() != node.name())
        .cloned()
        .collect();
    let mark = node.read_log()?.len();
    let there = Ledger::open(std::slice::from_ref(node), &case.db, CLIENTS, numbers);
    let elsewhere = Ledger::open(&others, &case.db, CLIENTS, numbers);
    there.wait_more(20, WRITE_LIMIT)?;
    thread::sleep(load_time(case, rng));
    ensure!(cluster.running() == 3, "a node had ended by itself");

    let hurt = case.log_disks().hurt(victim, fault)?;
    let filling = Instant::now();
    let (mut struck, mut filled) = (filling, filling);
    // The load fills what is left in the end; this is sooner.
    let pump = (fault == LogFault::Full).then(|| Pump::start(&others, &case.db));
    let before = elsewhere.acknowledged();
    let (mut off, mut two, mut flows) = (None, None, None);
    // From when on no acknowledgement may come from there, and how many had come.
    let mut silent: Option<(Instant, usize)> = None;
    loop {
        // A busy machine takes its time to come to the end.
        let room = pump.as_ref().is_some_and(|p| p.written() < ROOM_MB);
        if room && off.is_none() && filling.elapsed() < FILLED_WITHIN {
            struck = Instant::now();
        }
        let now = struck.elapsed();
        if off.is_none() && is(node, |s| s.get("wsrep_ready") == "OFF") {
            off = Some(struck.elapsed());
        }
        if two.is_none() && others.iter().all(|n| is(n, |s| s.size() == 2)) {
            two = Some(struck.elapsed());
        }
        if flows.is_none() && elsewhere.acknowledged() >= before + 100 {
            flows = Some(struck.elapsed());
        }
        if off.is_some() {
            hurt.stays_full()?;
        } else if filled.elapsed() >= FILL_AGAIN {
            hurt.fills_up();
            filled = Instant::now();
        }
        // A full disk is met when the log comes to its end.
        let ended = match fault {
            LogFault::Full => off,
            LogFault::Errors | LogFault::Hangs => Some(Duration::ZERO),
        };
        if silent.is_none() && ended.is_some_and(|at| struck.elapsed() >= at + ON_THE_WAY) {
            silent = Some((Instant::now(), there.acknowledged()));
        }
        let watched = silent.is_some_and(|(since, _)| since.elapsed() >= WATCHED);
        let all = off.is_some() && two.is_some() && flows.is_some() && watched;
        if all || now >= seen.limit {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    drop(pump);
    seen.time("wsrep_ready OFF", off);
    seen.time("the others are two", two);
    seen.time("100 rows of theirs", flows);
    if node.process().is_none() {
        seen.wrong(format!("its process has ended: {}", node.log_tail(12)));
    }
    if let Some(answer) = answers(node, &case.db) {
        seen.wrong(answer);
    }
    told.unknown.insert(OWN_ROW);
    let later = silent.map(|(_, count)| there.acknowledged() - count);
    match later {
        Some(0) => seen.words += "0 rows acknowledged there afterwards; ",
        Some(rows) => seen.wrong(format!("{rows} rows were acknowledged there afterwards")),
        None => seen.wrong("it was not found out what it acknowledged afterwards".into()),
    }
    if let Some(words) = fault.words() {
        let log = check::log_since(node, mark);
        if !log.contains(ENGINE_FAILED) || !log.contains(words) {
            seen.wrong(format!("its log does not say {words:?}"));
        }
    }

    // A disk that hangs is pulled out with the server; else it can end.
    if fault != LogFault::Hangs
        && let StopReport::Killed { .. } = node.stop(STOP_LIMIT)?
    {
        seen.wrong(format!("it did not stop within {} s", STOP_LIMIT.as_secs()));
    }
    hurt.mended(node)?;
    let marks = check::log_marks(cluster);
    node.start(Start::Join, &[])?;
    let back = all_back(cluster)?;
    for copy in copies(cluster, &marks)? {
        seen.wrong(format!("its log was there to go on with: {copy}"));
    }
    there.wait_more(20, WRITE_LIMIT)?;
    there.close_into(told)?;
    elsewhere.close_into(told)?;
    nothing_lost(cluster, &case.db, told)?;
    let _ = write!(
        seen.words,
        "back in the same place {} after its start; {} rows acknowledged so far, 0 lost",
        seconds(back),
        told.acknowledged.len()
    );
    Ok(())
}

fn is(node: &Node, what: impl Fn(&dromon_sandbox::WsrepStatus) -> bool) -> bool {
    node.status(Duration::from_secs(1)).is_ok_and(|s| what(&s))
}

/// What a node that cannot store answered to a write or a current read, if it did.
fn answers(node: &Node, db: &str) -> Option<String> {
    const LIMIT: Duration = Duration::from_secs(5);
    let mut session = Session::open_within(node, db, 0, LIMIT).ok()?;
    if session
        .exec(&format!("REPLACE INTO t VALUES ({OWN_ROW}, 0, '')"))
        .is_ok()
    {
        return Some("it acknowledged a write".into());
    }
    let mut session = Session::open_within(node, db, 0, LIMIT).ok()?;
    session.exec("SET SESSION wsrep_sync_wait = 7").ok()?;
    let rows = session.one::<i64>("SELECT COUNT(*) FROM t");
    rows.is_ok().then(|| "it answered a current read".into())
}
