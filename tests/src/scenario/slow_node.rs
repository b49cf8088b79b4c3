//! A node that applies nothing for a while, as its appliers wait for a lock on a
//! table: what `dromon.slow_node` promises about the others.
//!
//! (A global read lock would take the node out of flow control, and a process
//! that is stopped is evicted: neither is a slow node.)

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::WsrepStatus;

use super::increments::Increments;
use crate::check;
use crate::harness::Case;
use crate::load::Session;

/// How long is looked at what goes on, or does not.
const LOOK: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(60);
const ASK: Duration = Duration::from_secs(10);

/// db3 is held twice: the others wait for it, then, in quarantine, they do not.
pub fn slow_node(case: &mut Case) -> anyhow::Result<()> {
    let increments = Increments::set_up(case)?;
    waited_for(case, &increments)?;
    if !case.cluster().record().is_dromon() {
        return Ok(()); // the peer has no quarantine
    }
    set_on_all(case, "quarantine")?;
    let result = in_quarantine(case, &increments);
    set_on_all(case, "wait")?;
    result
}

/// The default: everybody's writers stand still until db3 goes on, and status
/// and log say for whom.
fn waited_for(case: &mut Case, increments: &Increments) -> anyhow::Result<()> {
    let storm = increments.on(case, [0, 1])?;
    let before = seqno(case, 0)?;
    storm.blow(LOOK);
    let free = seqno(case, 0)? - before;
    ensure!(free > 0, "db1 wrote nothing while nobody was held");
    let marks = check::log_marks(&case.cluster());
    let lock = hold(case)?;
    if case.cluster().record().is_dromon() {
        for node in [0, 1] {
            until(case, node, "waits for db3", |s| {
                s.get("wsrep_dromon_waiting_for") == "db3"
            })?;
        }
    } else {
        thread::sleep(LOOK);
    }
    let before = seqno(case, 0)?;
    thread::sleep(LOOK);
    let held = seqno(case, 0)? - before;
    ensure!(
        held * 10 <= free,
        "db1 was to wait for db3 and went on by {held} in {} s; it did {free} before",
        LOOK.as_secs()
    );
    if case.cluster().record().is_dromon() {
        told(case, &marks, "it applies too slowly")?;
    }
    let queue = status(case, 2)?.number("wsrep_local_recv_queue");
    release(lock)?;
    storm.blow(LOOK / 2);
    let tally = storm.stop()?;
    increments.are_there(case)?;
    case.note(format!(
        "waited for: db1 went on by {held} while db3 was held ({free} before), {} waited there; {tally}",
        queue.unwrap_or(-1)
    ));
    Ok(())
}

/// `dromon.slow_node=quarantine`: after five seconds the others go on. db3 keeps
/// the log all the while, and catches up when it can.
fn in_quarantine(case: &mut Case, increments: &Increments) -> anyhow::Result<()> {
    let storm = increments.on(case, [0, 1])?;
    let marks = check::log_marks(&case.cluster());
    let before = seqno(case, 0)?;
    storm.blow(LOOK);
    let free = seqno(case, 0)? - before;
    ensure!(free > 0, "db1 wrote nothing while nobody was held");
    let lock = hold(case)?;
    let begin = Instant::now();
    for node in [0, 1] {
        until(case, node, "does not wait for db3 any more", |s| {
            s.get("wsrep_dromon_quarantined") == "db3"
                && s.get("wsrep_dromon_waiting_for").is_empty()
        })?;
    }
    let after = begin.elapsed();
    let (first, third) = (status(case, 0)?, status(case, 2)?);
    thread::sleep(LOOK);
    let (first_now, third_now) = (status(case, 0)?, status(case, 2)?);
    let went_on = first_now.last_committed() - first.last_committed();
    ensure!(
        went_on * 10 >= free,
        "db3 is in quarantine, and db1 went on by {went_on} in {} s; it did {free} before",
        LOOK.as_secs()
    );
    ensure!(
        third_now.last_committed() == third.last_committed(),
        "db3 was to be held and went on to {}",
        third_now.last_committed()
    );
    let log = |s: &WsrepStatus| s.number("wsrep_dromon_log_last").unwrap_or(0);
    ensure!(
        log(&third_now) - log(&third) >= went_on / 2,
        "db3 was to keep the log, which ended at {} and ends at {}",
        log(&third),
        log(&third_now)
    );
    ensure!(
        third_now.size() == 3,
        "db3 sees {} members",
        third_now.size()
    );
    told(case, &marks, "it is in quarantine")?;
    let behind = first_now.last_committed() - third_now.last_committed();
    release(lock)?;
    storm.blow(LOOK / 2);
    let tally = storm.stop()?;
    let begin = Instant::now();
    for node in [0, 1] {
        until(case, node, "waits for db3 again", |s| {
            s.get("wsrep_dromon_quarantined").is_empty()
        })?;
    }
    increments.are_there(case)?;
    case.note(format!(
        "quarantine: after {:.1} s; then db1 went on by {went_on} in {} s ({free} before); db3 was {behind} behind and \
         caught up {:.1} s after the load; {tally}",
        after.as_secs_f64(),
        LOOK.as_secs(),
        begin.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// Holds db3's appliers: none gets at the table.
fn hold(case: &Case) -> anyhow::Result<Session> {
    let mut session = case.session(2)?;
    session
        .exec("LOCK TABLES t READ")
        .context("LOCK TABLES t READ on db3")?;
    Ok(session)
}

fn release(mut lock: Session) -> anyhow::Result<()> {
    lock.exec("UNLOCK TABLES").map(drop).map_err(Into::into)
}

fn set_on_all(case: &Case, how: &str) -> anyhow::Result<()> {
    for node in 0..3 {
        case.session(node)?.exec(&format!(
            "SET GLOBAL wsrep_provider_options = 'dromon.slow_node={how}'"
        ))?;
    }
    Ok(())
}

fn status(case: &Case, node: usize) -> anyhow::Result<WsrepStatus> {
    Ok(case.node(node).status(ASK)?)
}

fn seqno(case: &Case, node: usize) -> anyhow::Result<i64> {
    Ok(status(case, node)?.last_committed())
}

fn until(
    case: &Case,
    node: usize,
    what: &str,
    is: impl Fn(&WsrepStatus) -> bool,
) -> anyhow::Result<()> {
    let end = Instant::now() + LIMIT;
    loop {
        let status = status(case, node)?;
        if is(&status) {
            return Ok(());
        }
        if Instant::now() > end {
            bail!(
                "db{} was asked for {} s whether it {what}; it waits for '{}', in quarantine is '{}'",
                node + 1,
                LIMIT.as_secs(),
                status.get("wsrep_dromon_waiting_for"),
                status.get("wsrep_dromon_quarantined")
            );
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until db1's log names db3 as the one that kept its writers waiting, and says what of it.
fn told(case: &Case, marks: &[usize], what: &str) -> anyhow::Result<()> {
    let end = Instant::now() + LIMIT;
    loop {
        let log = check::log_since(&case.node(0), marks[0]);
        let mut named = log
            .lines()
            .filter(|l| l.contains("member db3 (") && l.contains("writers waiting for 5 s"))
            .peekable();
        if let Some(other) = named.peek().filter(|l| !l.contains(what)) {
            bail!("db1's log was to say of db3: {what}. It says: {other}");
        }
        if named.next().is_some() {
            return Ok(());
        }
        ensure!(
            Instant::now() < end,
            "db1's log was to say of db3: {what}. It does not name it"
        );
        thread::sleep(Duration::from_millis(100));
    }
}
