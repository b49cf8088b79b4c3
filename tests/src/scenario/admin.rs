//! What administrators do while the clients write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::Node;

use super::floors::least;
use super::increments::Increments;
use super::{ask, set_up};
use crate::check;
use crate::harness::Case;
use crate::ledger::{self, Told};
use crate::load::{self, DEADLOCK, Session, Storm};

/// How long a state is held while it is looked at.
const HOLD: Duration = Duration::from_secs(1);
const STATE_LIMIT: Duration = Duration::from_secs(30);

/// Writers on db1 and db2; db3 is left to the administrator.
fn writers(case: &Case) -> anyhow::Result<(Storm, Increments)> {
    let increments = Increments::set_up(case)?;
    Ok((increments.on(case, [0, 1])?, increments))
}

fn position(node: &Node) -> anyhow::Result<i64> {
    Ok(node.status(Duration::from_secs(10))?.last_committed())
}

/// While `db3` is held, it stays where it is and db1 goes on.
fn held(case: &Case) -> anyhow::Result<(i64, i64)> {
    let (first, third) = (case.node(0), case.node(2));
    let before = (position(&first)?, position(&third)?);
    thread::sleep(HOLD);
    Ok((position(&first)? - before.0, position(&third)? - before.1))
}

fn wait_synced(case: &Case, increments: &Increments) -> anyhow::Result<()> {
    case.node(2).wait_usable(STATE_LIMIT)?;
    increments.are_there(case).map(drop)
}

/// A global read lock on db3.
pub fn ftwrl(case: &mut Case) -> anyhow::Result<()> {
    let (storm, increments) = writers(case)?;
    let mut admin = case.session(2)?;
    admin.exec("FLUSH TABLES WITH READ LOCK")?;
    let (others, own) = held(case)?;
    ensure!(
        own == 0,
        "db3 committed {own} write sets under its read lock"
    );
    ensure!(others > 0, "db3's read lock held up db1");
    admin.exec("UNLOCK TABLES")?;
    let tally = storm.stop()?;
    wait_synced(case, &increments)?;
    case.note(format!(
        "db1 went on by {others} in {} s; {tally}",
        HOLD.as_secs()
    ));
    Ok(())
}

/// The stages of a backup on db3, each while others write.
pub fn backup_stage(case: &mut Case) -> anyhow::Result<()> {
    let (storm, increments) = writers(case)?;
    let mut admin = case.session(2)?;
    let mut moved = 0;
    for stage in ["START", "FLUSH", "BLOCK_DDL", "BLOCK_COMMIT"] {
        admin
            .exec(&format!("BACKUP STAGE {stage}"))
            .with_context(|| format!("BACKUP STAGE {stage}"))?;
        let before = position(&case.node(0))?;
        thread::sleep(HOLD / 4);
        moved = position(&case.node(0))? - before;
    }
    ensure!(moved > 0, "BACKUP STAGE BLOCK_COMMIT on db3 held up db1");
    let (others, own) = held(case)?;
    ensure!(
        own == 0,
        "db3 committed {own} write sets although commits are blocked"
    );
    admin.exec("BACKUP STAGE END")?;
    let tally = storm.stop()?;
    wait_synced(case, &increments)?;
    case.note(format!(
        "db1 went on by {others} in {} s; {tally}",
        HOLD.as_secs()
    ));
    Ok(())
}

/// An index added on one node after the other, each time while the other two
/// write. (Not this one: a client that waits in COMMIT for the paused provider
/// holds the metadata lock the ALTER needs.)
pub fn rsu(case: &mut Case) -> anyhow::Result<()> {
    let increments = Increments::set_up(case)?;
    let mut longest = Duration::ZERO;
    for node in 0..3 {
        let others = [(node + 1) % 3, (node + 2) % 3];
        let storm = increments.on(case, others)?;
        let mut admin = case.session(node)?;
        admin.exec("SET SESSION wsrep_OSU_method = 'RSU'")?;
        let begin = Instant::now();
        admin
            .exec("ALTER TABLE t ADD INDEX by_v (v)")
            .with_context(|| format!("ALTER on db{} by RSU", node + 1))?;
        longest = longest.max(begin.elapsed());
        storm.blow(HOLD / 2);
        storm.stop()?;
        case.node(node).wait_usable(STATE_LIMIT)?;
        for (index, changed) in [(node, true), (others[0], node == 2)] {
            let found: u64 = ask(
                case,
                index,
                "SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = 'rsu' AND index_name = 'by_v'",
            )?;
            ensure!(
                (found > 0) == changed,
                "after RSU on db{}, db{} has {found} such indexes",
                node + 1,
                index + 1
            );
        }
    }
    wait_synced(case, &increments)?;
    case.note(format!(
        "the longest ALTER took {:.2} s",
        longest.as_secs_f64()
    ));
    Ok(())
}

/// db3 leaves flow control and comes back.
pub fn desync(case: &mut Case) -> anyhow::Result<()> {
    let (storm, increments) = writers(case)?;
    let third = case.node(2);
    let mut admin = case.session(2)?;
    for round in 1..=3 {
        admin.exec("SET GLOBAL wsrep_desync = ON")?;
        third.wait_for("Donor/Desynced", STATE_LIMIT, |s| {
            s.state() == "Donor/Desynced"
        })?;
        thread::sleep(HOLD / 4);
        admin
            .exec("SET GLOBAL wsrep_desync = OFF")
            .with_context(|| format!("round {round}"))?;
        third.wait_usable(STATE_LIMIT)?;
    }
    let tally = storm.stop()?;
    wait_synced(case, &increments)?;
    case.note(tally.to_string());
    Ok(())
}

/// Averages start again, counters go on.
pub fn flush_status(case: &mut Case) -> anyhow::Result<()> {
    const AVERAGE: &str = "wsrep_cert_deps_distance";
    const COUNTER: &str = "wsrep_replicated_bytes";
    let (storm, increments) = writers(case)?;
    storm.blow(HOLD);
    let tally = storm.stop()?;
    check::drained(&case.cluster())?;
    let read = || -> anyhow::Result<(f64, i64)> {
        let status = case.node(0).status(Duration::from_secs(10))?;
        Ok((
            status.get(AVERAGE).parse().unwrap_or(-1.0),
            status.number(COUNTER).unwrap_or(-1),
        ))
    };
    let before = read()?;
    let mut session = case.session(0)?;
    let version: Option<String> = session.one("SELECT VERSION()")?;
    session.exec(flush_for(&version.unwrap_or_default()))?;
    let after = read()?;
    ensure!(
        before.0 > 1.0 && after.0 < before.0 / 2.0,
        "{AVERAGE} was {} and is {}",
        before.0,
        after.0
    );
    ensure!(
        before.1 > 0 && after.1 >= before.1,
        "{COUNTER} was {} and is {}",
        before.1,
        after.1
    );
    increments.are_there(case)?;
    case.note(format!("{AVERAGE} {} -> {}; {tally}", before.0, after.0));
    Ok(())
}

/// What resets the whole server's status: `FLUSH STATUS` does no longer since 11.5.
fn flush_for(version: &str) -> &'static str {
    let mut numbers = version.split(['.', '-']).map_while(|n| n.parse().ok());
    let release: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if release >= (11, 5) {
        "FLUSH GLOBAL STATUS"
    } else {
        "FLUSH STATUS"
    }
}

/// Clients of db1 are killed in the middle of their commits.
pub fn kills(case: &mut Case) -> anyhow::Result<()> {
    const CLIENTS: usize = 6;
    set_up_ends(case, CLIENTS)?;
    let stop = Arc::new(AtomicBool::new(false));
    let clients = (0..CLIENTS).map(|_| (0, &[] as &[f64]));
    let clients = start_ended(case, clients, &stop);
    let kills = Arc::new(AtomicU64::new(0));
    let killer = {
        let (mut session, stop, kills) = (case.session(0)?, Arc::clone(&stop), Arc::clone(&kills));
        thread::spawn(move || killer(&mut session, &stop, &kills))
    };
    thread::sleep(case.options.seconds);
    stop.store(true, Ordering::Relaxed);
    killer
        .join()
        .map_err(|_| anyhow::anyhow!("the killer panicked"))??;
    let sum = ended_right(case, clients)?;
    let kills = kills.load(Ordering::Relaxed);
    // A kill may come when the COMMIT that was seen is over: what was cut is told by its client.
    ensure!(
        sum.cut >= least(case.options.seconds),
        "{} clients were cut in COMMIT by {kills} kills",
        sum.cut
    );
    case.note(format!(
        "{} acknowledged, {} cut in COMMIT, {} of these without a word of what came of it, {kills} kills",
        sum.acknowledged, sum.cut, sum.unknown
    ));
    Ok(())
}

/// Limits of a statement, in seconds: about as long as a commit takes.
const LIMITS: &[f64] = &[0.0005, 0.001, 0.002, 0.004, 0.008, 0.0];

/// `max_statement_time` ends clients of all nodes in the middle of their commits; half of the time each
/// transaction of a binary log, if there is one, is synced.
pub fn limits(case: &mut Case) -> anyhow::Result<()> {
    const CLIENTS: usize = 12;
    set_up_ends(case, CLIENTS)?;
    let before = ask::<String>(case, 0, "SELECT CAST(@@GLOBAL.sync_binlog AS CHAR)")?;
    let stop = Arc::new(AtomicBool::new(false));
    let clients = start_ended(case, (0..CLIENTS).map(|i| (i % 3, LIMITS)), &stop);
    for synced in ["0", "1", &before] {
        for node in 0..3 {
            case.session(node)?
                .exec(&format!("SET GLOBAL sync_binlog = {synced}"))?;
        }
        thread::sleep(case.options.seconds / 3);
    }
    stop.store(true, Ordering::Relaxed);
    let sum = ended_right(case, clients)?;
    // Hardly any in COMMIT: whom the time ends there, a server tells so only where it waits.
    ensure!(
        sum.limited >= least(case.options.seconds),
        "{} met their limit",
        sum.limited
    );
    case.note(format!(
        "{} acknowledged, {} met their limit, {} of those in COMMIT",
        sum.acknowledged, sum.limited, sum.unknown
    ));
    Ok(())
}

fn set_up_ends(case: &Case, clients: usize) -> anyhow::Result<()> {
    let rows = format!("INSERT INTO t SELECT seq, 0 FROM seq_1_to_{clients}");
    set_up(
        case,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, v BIGINT NOT NULL)",
            &rows,
            "CREATE TABLE l (client INT, n BIGINT, PRIMARY KEY (client, n))",
        ],
    )
}

/// What a client was told.
#[derive(Default)]
struct Ended {
    /// Of each turn; unknown: cut in COMMIT.
    told: Told,
    /// COMMITs that failed, other than by a limit.
    cut: u64,
    /// Ended by `max_statement_time`.
    limited: u64,
}

type EndedClient = (usize, thread::JoinHandle<anyhow::Result<Ended>>);

/// Starts clients, each given by its node and by limits for its statements.
fn start_ended(
    case: &Case,
    clients: impl Iterator<Item = (usize, &'static [f64])>,
    stop: &Arc<AtomicBool>,
) -> Vec<EndedClient> {
    let start = |(client, (node, limits)): (usize, (usize, &'static [f64]))| {
        let client = client + 1;
        let (node, db, stop) = (case.node(node), case.db.clone(), Arc::clone(stop));
        let repeats = move || ended_client(&node, &db, client as u64, limits, &stop);
        (client, thread::spawn(repeats))
    };
    clients.enumerate().map(start).collect()
}

/// What came of all of them.
#[derive(Default)]
struct Sum {
    acknowledged: u64,
    unknown: u64,
    cut: u64,
    limited: u64,
}

/// What was acknowledged is there; what was not may be there only if its COMMIT was cut.
fn ended_right(case: &Case, clients: Vec<EndedClient>) -> anyhow::Result<Sum> {
    let mut sum = Sum::default();
    for (client, thread) in clients {
        let ended = thread
            .join()
            .map_err(|_| anyhow::anyhow!("a client panicked"))??;
        let acknowledged = ended.told.acknowledged.len() as u64;
        ensure!(
            acknowledged >= least(case.options.seconds),
            "client {client}: {acknowledged} acknowledged"
        );
        sum.acknowledged += acknowledged;
        sum.unknown += ended.told.unknown.len() as u64;
        sum.cut += ended.cut;
        sum.limited += ended.limited;
        check::drained(&case.cluster())?;
        let (v, rows): (u64, u64) = ask(
            case,
            1,
            &format!(
                "SELECT v, (SELECT COUNT(*) FROM l WHERE client = {client}) FROM t WHERE id = {client}"
            ),
        )?;
        ensure!(
            v == rows,
            "client {client}: {v} increments and {rows} rows, which went together"
        );
        // Sums alone would not do: an unknown one that committed hides one that is lost.
        let turns = format!("SELECT n FROM l WHERE client = {client}");
        let there = case.session(1)?.rows(&turns)?.into_iter().collect();
        ledger::compare(&ended.told, &there).with_context(|| format!("client {client}"))?;
    }
    check::settled(&case.cluster(), &case.db)?;
    Ok(sum)
}

/// `max_statement_time` has passed.
const STATEMENT_TIMEOUT: u16 = 1969;

/// Repeats a transaction through kills and limits.
fn ended_client(
    node: &Node,
    db: &str,
    client: u64,
    limits: &[f64],
    stop: &AtomicBool,
) -> anyhow::Result<Ended> {
    let (mut ended, mut turn) = (Ended::default(), 0);
    let mut session = Session::open(node, db, client)?;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        if !limits.is_empty() {
            let limit = limits[session.rng.below(limits.len() as u64) as usize];
            let set = format!("SET SESSION max_statement_time = {limit}");
            let set = session.exec(&set);
            if set.as_ref().err().and_then(load::code) != Some(STATEMENT_TIMEOUT) {
                set?;
            }
        }
        let body = session
            .exec("BEGIN")
            .and_then(|_| session.exec(&format!("UPDATE t SET v = v + 1 WHERE id = {client}")))
            .and_then(|_| session.exec(&format!("INSERT INTO l VALUES ({client}, {turn})")));
        let told = &mut ended.told;
        let in_commit = body.is_ok();
        let (of, error) = match body {
            Err(error) => (&mut told.refused, error),
            Ok(_) => match session.exec("COMMIT") {
                Ok(_) => {
                    told.acknowledged.insert(turn);
                    continue;
                }
                // Nobody else wants the client's rows: it was killed.
                Err(error) if load::code(&error) == Some(DEADLOCK) => (&mut told.refused, error),
                Err(error) => (&mut told.unknown, error),
            },
        };
        of.insert(turn);
        let limited = load::code(&error) == Some(STATEMENT_TIMEOUT);
        ended.limited += u64::from(limited);
        ended.cut += u64::from(in_commit && !limited);
        match load::code(&error) {
            // Query interrupted, deadlock, error during COMMIT: the connection lives on.
            Some(DEADLOCK | 1317 | 1180 | STATEMENT_TIMEOUT)
                if session.exec("ROLLBACK").is_ok() => {}
            // Connection killed, or gone without a word.
            Some(DEADLOCK | 1317 | 1180 | 1927 | 1053 | STATEMENT_TIMEOUT) | None => {
                session = Session::open(node, db, client)?
            }
            Some(_) => {
                return Err(error).with_context(|| format!("client {client} of {}", node.name()));
            }
        }
    }
    Ok(ended)
}

fn killer(session: &mut Session, stop: &AtomicBool, kills: &AtomicU64) -> anyhow::Result<()> {
    let own = session.id();
    let mut soft = false;
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(5));
        let victims: Vec<u64> = session.rows(&format!(
            "SELECT id FROM information_schema.processlist WHERE db = 'kills' AND id <> {own} AND info LIKE 'COMMIT%' LIMIT 2"
        ))?;
        for victim in victims {
            soft = !soft;
            match session.exec(&format!(
                "KILL {} {victim}",
                if soft { "QUERY" } else { "CONNECTION" }
            )) {
                Ok(_) => {
                    kills.fetch_add(1, Ordering::Relaxed);
                }
                Err(e) if load::code(&e) == Some(1094) => {} // gone already
                Err(e) => bail!("KILL {victim}: {e}"),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::flush_for;

    #[test]
    fn the_server_decides_how_its_status_is_flushed() {
        for version in ["10.11.19-MariaDB-0+deb12u1", "11.4.5-MariaDB", ""] {
            assert_eq!(flush_for(version), "FLUSH STATUS", "{version}");
        }
        for version in ["11.8.6-MariaDB-0+deb13u1-log", "11.5.2-MariaDB", "12.0.1"] {
            assert_eq!(flush_for(version), "FLUSH GLOBAL STATUS", "{version}");
        }
    }
}
