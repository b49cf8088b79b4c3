//! A primary under sysbench, a relay, five replicas, and all of them hurt.

use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_load::rng::Rng;
use dromon_load::sysbench::{complaints, figure};
use dromon_sandbox::mysql::prelude::Queryable;

use super::plain::{Relay, Server, program};
use super::{equal_tables, gtids_of, place};
use crate::harness::Case;

const TABLES: &str = "sb.sbtest1, sb.sbtest2, sb.sbtest3, sb.sbtest4";
const NAMES: [&str; 5] = ["one", "two", "three", "four", "five"];
/// The last two of them move between relay and primary.
const MOVE: usize = 3;

fn sysbench(primary: &Server, seconds: Duration, what: &str) -> anyhow::Result<Child> {
    program("sysbench")
        .args([
            "oltp_read_write",
            "--db-driver=mysql",
            "--mysql-user=root",
            "--mysql-db=sb",
            "--tables=4",
            "--table-size=2000",
            "--threads=4",
            "--rand-type=uniform",
            "--db-ps-mode=disable",
            "--mysql-ignore-errors=1213,1020,1205",
        ])
        .arg(format!("--mysql-socket={}", primary.socket().display()))
        .arg(format!("--time={}", seconds.as_secs()))
        .arg(what)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("running sysbench (apt-get install sysbench)")
}

fn ended(child: Child, what: &str) -> anyhow::Result<String> {
    let out = child.wait_with_output()?;
    let mut text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&out.stderr));
    ensure!(
        out.status.success(),
        "sysbench {what}: {}",
        complaints(&text)
    );
    Ok(text)
}

/// Ends all connections that the primary sends its binlog over. Gives how many.
fn cut_dumps(primary: &Server) -> anyhow::Result<usize> {
    let mut conn = primary.connect("")?;
    let ids: Vec<u64> = conn
        .query("SELECT id FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'")?;
    for id in &ids {
        // It may have gone by itself.
        let _ = conn.query_drop(format!("KILL {id}"));
    }
    Ok(ids.len())
}

pub fn run(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let primary = Server::new(&dir, "primary", 1, &["--sync-binlog=0"])?;
    primary.run(&["CREATE DATABASE sb"])?;
    ended(sysbench(&primary, Duration::ZERO, "prepare")?, "prepare")?;
    let mut relay = Relay::new(
        &dir,
        "relay",
        9,
        primary.port,
        &["file_size=4M", "memory=4M"],
    )?;
    relay.start()?;
    let mut replicas = Vec::new();
    for (n, name) in NAMES.into_iter().enumerate() {
        // One serial, the others parallel, each in another way.
        let mode = ["conservative", "optimistic", "aggressive"][n % 3];
        let parallel = [
            format!("--slave-parallel-mode={mode}"),
            format!("--slave-parallel-threads={}", if n == 0 { 0 } else { 4 }),
            "--innodb-flush-log-at-trx-commit=1".into(),
        ];
        let parallel: Vec<&str> = parallel.iter().map(String::as_str).collect();
        let replica = Server::new(&dir, name, 20 + n as u32, &parallel)?;
        replica.follow(relay.port)?;
        replicas.push(replica);
    }
    let seconds = case.options.seconds;
    let bench = sysbench(&primary, seconds, "run")?;
    let begin = Instant::now();
    let mut dice = Rng::new(case.options.seed);
    let (mut relays, mut dumps, mut servers, mut moves) = (0, 0, 0, 0);
    while begin.elapsed() < seconds {
        thread::sleep(Duration::from_millis(200 + dice.below(800)));
        match dice.below(4) {
            0 => {
                relay.kill()?;
                thread::sleep(Duration::from_millis(dice.below(500)));
                relay.start()?;
                relays += 1;
            }
            1 => dumps += cut_dumps(&primary)?,
            2 => {
                let replica = &mut replicas[dice.below(NAMES.len() as u64) as usize];
                replica.kill()?;
                replica.start()?;
                servers += 1;
            }
            _ => {
                let which = MOVE + dice.below((NAMES.len() - MOVE) as u64) as usize;
                moves += 1;
                let to = match moves % 2 {
                    1 => primary.port,
                    _ => relay.port,
                };
                replicas[which].follow(to)?;
            }
        }
    }
    let text = ended(bench, "run")?;
    case.note(format!(
        "{} transactions; killed: the relay {relays} times, the primary's connections {dumps}, replicas {servers}; {moves} moves",
        figure(&text, "transactions:")
    ));
    // There and back, whoever followed whom.
    for to in [relay.port, primary.port, relay.port] {
        for replica in &replicas[MOVE..] {
            replica.follow(to)?;
        }
        primary
            .run(&["INSERT INTO sb.sbtest1 (k, c, pad) VALUES (1, 'moved', 'there and back')"])?;
        for replica in &replicas[MOVE..] {
            replica.reaches(&primary)?;
        }
    }
    let all: Vec<&Server> = replicas.iter().collect();
    equal_tables(case, &primary, &all, TABLES)?;
    let (theirs, ours) = (gtids_of(&primary)?, relay.gtids()?);
    ensure!(
        theirs == ours && !ours.is_empty(),
        "the primary has {} groups, the relay {}",
        theirs.len(),
        ours.len()
    );
    for replica in &replicas {
        for field in ["Last_SQL_Errno", "Last_IO_Errno"] {
            let errno = replica.status(field)?;
            ensure!(errno == "0", "{}: {field} {errno}", replica.name);
        }
    }
    case.note(format!(
        "{} groups in the relay's files, each once",
        ours.len()
    ));
    Ok(())
}
