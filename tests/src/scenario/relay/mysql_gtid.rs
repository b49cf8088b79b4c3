//! Primaries and replicas of MySQL 5.6 with GTIDs.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_load::rng::Rng;
use dromon_sandbox::mysql::Row;
use dromon_sandbox::mysql::prelude::Queryable;

use super::mysql::{LIMIT, Server, client, mysql, tables};
use super::place;
use super::plain::{PASSWORD, Relay, USER};
use crate::harness::Case;

const GTIDS: &[&str] = &["--gtid-mode=ON", "--enforce-gtid-consistency"];
/// Types of events.
const GTID: u8 = 33;
const FORMAT: u8 = 15;

fn plain(text: &str) -> String {
    text.replace(char::is_whitespace, "").to_lowercase()
}

fn executed(server: &Server) -> anyhow::Result<String> {
    let set: Option<String> = server
        .connect("")?
        .query_first("SELECT @@GLOBAL.gtid_executed")?;
    Ok(plain(&set.context("no gtid_executed")?))
}

fn follow(server: &Server, port: u16) -> anyhow::Result<()> {
    server.run(&[
        "STOP SLAVE",
        &format!(
            "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, MASTER_USER='{USER}', MASTER_PASSWORD='{PASSWORD}', \
             MASTER_AUTO_POSITION=1, MASTER_CONNECT_RETRY=1, MASTER_HEARTBEAT_PERIOD=1"
        ),
        "START SLAVE",
    ])
}

/// Waits until it has all that the primary has, and then its tables are the same.
fn equals(server: &Server, primary: &Server) -> anyhow::Result<()> {
    let wanted = executed(primary)?;
    let (mut last, mut since) = (String::new(), Instant::now());
    loop {
        let now = executed(server)?;
        if now == wanted {
            break;
        }
        // That it stands with an error is seen, too.
        server.applied()?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
        ensure!(
            since.elapsed() < LIMIT,
            "the replica stays at {last}; the primary has {wanted}"
        );
        thread::sleep(Duration::from_millis(100));
    }
    let (have, wanted) = (server.checksums()?, primary.checksums()?);
    ensure!(
        have == wanted,
        "tables differ: {have:?} instead of {wanted:?}"
    );
    Ok(())
}

/// The GTIDs in a relay's files, one after the other, and the number of its files.
fn stored(relay: &Relay) -> anyhow::Result<(Vec<String>, usize)> {
    let names = relay.files()?;
    let mut gtids = Vec::new();
    for name in &names {
        let bytes = fs::read(name)?;
        let mut at = 4;
        while at < bytes.len() {
            let event = &bytes[at..];
            let len = event.get(9..13).context("half an event")?;
            let len = u32::from_le_bytes(len.try_into()?) as usize;
            let event = event.get(..len).context("half an event")?;
            ensure!(
                (at == 4) == (event[4] == FORMAT),
                "{}: {at}",
                name.display()
            );
            if event[4] == GTID {
                let number = u64::from_le_bytes(event[36..44].try_into()?);
                let source: String = event[20..36].iter().map(|b| format!("{b:02x}")).collect();
                gtids.push(format!("{source}:{number}"));
            }
            at += len;
        }
    }
    Ok((gtids, names.len()))
}

/// Each transaction of the primary is in the relay's files, once.
fn each_once(relay: &Relay, primary: &Server) -> anyhow::Result<(usize, usize)> {
    let wanted = executed(primary)?;
    let until = Instant::now() + LIMIT;
    loop {
        let row: Option<Row> = relay.connect(PASSWORD)?.query_first("SHOW MASTER STATUS")?;
        let set: Option<String> = row.context("no status")?.get("Executed_Gtid_Set");
        let set = plain(&set.context("no set")?);
        if set == wanted {
            break;
        }
        ensure!(
            Instant::now() < until,
            "the relay stays at {set}; the primary has {wanted}"
        );
        thread::sleep(Duration::from_millis(100));
    }
    let (mut gtids, files) = stored(relay)?;
    let count = gtids.len();
    gtids.sort();
    gtids.dedup();
    ensure!(gtids.len() == count, "something was stored twice");
    // The set has all of them, and they are as many as it has.
    let mut in_set = 0;
    for source in wanted.split(',') {
        for interval in source.split(':').skip(1) {
            let (begin, end) = interval.split_once('-').unwrap_or((interval, interval));
            in_set += end.parse::<usize>()? + 1 - begin.parse::<usize>()?;
        }
    }
    ensure!(
        count == in_set,
        "{count} are stored, the primary has {in_set}"
    );
    Ok((count, files))
}

/// Runs clients on a primary, and something beside them again and again.
fn under_load(
    case: &Case,
    primary: &Server,
    seconds: Duration,
    mut beside: impl FnMut(u64) -> anyhow::Result<()>,
) -> anyhow::Result<u64> {
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..2)
        .map(|n| {
            let (conn, stop) = (primary.connect("rt")?, Arc::clone(&stop));
            Ok(thread::spawn(move || client(conn, n, &stop)))
        })
        .collect::<anyhow::Result<_>>()?;
    let mut dice = Rng::new(case.options.seed);
    let start = Instant::now();
    while start.elapsed() < seconds {
        thread::sleep(Duration::from_millis(200 + dice.below(800)));
        beside(dice.below(3))?;
    }
    stop.store(true, Ordering::Release);
    let mut done = 0;
    for thread in clients {
        done += thread
            .join()
            .map_err(|_| anyhow::anyhow!("a client panicked"))??;
    }
    Ok(done)
}

/// A replica without anything, of a relay that has purged its first files.
fn refused(from: &Path, dir: &Path, relay: &Relay) -> anyhow::Result<String> {
    let empty = Server::with(from, dir, "empty", 4, GTIDS)?;
    follow(&empty, relay.port)?;
    let until = Instant::now() + LIMIT;
    loop {
        let row: Option<Row> = empty.connect("")?.query_first("SHOW SLAVE STATUS")?;
        let row = row.context("it is no replica")?;
        let code: Option<u64> = row.get("Last_IO_Errno");
        let text: Option<String> = row.get("Last_IO_Error");
        if code == Some(1236) {
            return text.context("no text");
        }
        ensure!(Instant::now() < until, "it is not refused: {code:?}");
        thread::sleep(Duration::from_millis(100));
    }
}

pub fn run(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let from = match mysql(&dir) {
        Ok(from) => from,
        Err(why) => {
            case.progress(format!(
                "SKIPPED, NOTHING WAS SHOWN: there is no MySQL here ({why}). Name a directory with mysqld and share in \
                 DROMON_TEST_MYSQL"
            ));
            return Ok(());
        }
    };
    let server = |name: &str, id| Server::with(&from, &dir, name, id, GTIDS);
    let primary = server("primary", 1)?;
    tables(&primary)?;
    // This one has no logical clocks: that must be said, and no reason not to serve.
    let clocks = ["follow=mysql_gtid", "policy=logical_clock"];
    let mut relay = Relay::new(&dir, "relay", 9, primary.port, &clocks)?;
    relay.start()?;
    let more = ["follow=mysql_gtid", "file_size=256K"];
    let mut second = Relay::new(&dir, "second", 10, relay.port, &more)?;
    second.start()?;
    let one = server("one", 2)?;
    let two = server("two", 3)?;
    follow(&one, second.port)?;
    follow(&two, relay.port)?;

    let (mut kills, mut moves, mut dumps) = (0, 0, 0);
    let done = under_load(case, &primary, case.options.seconds, |what| {
        match what {
            0 => {
                relay.kill()?;
                relay.start()?;
                kills += 1;
            }
            1 => dumps += primary.breaks()?,
            _ => {
                moves += 1;
                let port = if moves % 2 == 1 {
                    primary.port
                } else {
                    relay.port
                };
                follow(&two, port)?;
            }
        }
        Ok(())
    })?;
    case.note(format!(
        "{done} statements; the relay killed {kills} times, connections to the primary {dumps} times; {moves} moves"
    ));
    follow(&two, relay.port)?;
    equals(&one, &primary)?;
    equals(&two, &primary)?;
    let said = fs::read_to_string(dir.join("relay.log"))?;
    ensure!(
        said.contains("policy = logical_clock has no effect: the primary (5.6."),
        "it is not said that there are no logical clocks"
    );
    let (count, files) = each_once(&relay, &primary)?;
    let (_, files_behind) = each_once(&second, &primary)?;
    case.note(format!(
        "checksums equal; each of {count} transactions once in the {files} files of the relay and the {files_behind} of the one \
         behind it"
    ));

    // Another server takes the primary's place.
    drop(primary);
    one.run(&["STOP SLAVE", "RESET SLAVE ALL"])?;
    relay.kill()?;
    relay.set(&format!("primary=127.0.0.1:{}", one.port));
    relay.start()?;
    let (mut kills, mut dumps) = (0, 0);
    let done = under_load(case, &one, case.options.seconds / 3, |what| {
        match what {
            0 => {
                relay.kill()?;
                relay.start()?;
                kills += 1;
            }
            _ => dumps += one.breaks()?,
        }
        Ok(())
    })?;
    equals(&two, &one)?;
    let (count, _) = each_once(&relay, &one)?;
    each_once(&second, &one)?;
    case.note(format!(
        "{done} statements at another primary; the relay killed {kills} times, connections {dumps} times; checksums equal, each \
         of {count} transactions once"
    ));

    relay.kill()?;
    relay.set("keep_size_hard=256K");
    relay.start()?;
    let until = Instant::now() + LIMIT;
    loop {
        let purged: (String,) = relay.one("SELECT @@GLOBAL.gtid_purged")?;
        if !purged.0.is_empty() {
            break;
        }
        ensure!(Instant::now() < until, "nothing was purged");
        thread::sleep(Duration::from_millis(100));
    }
    let said = refused(&from, &dir, &relay)?;
    ensure!(
        said.contains("MASTER_AUTO_POSITION") && said.contains("purged"),
        "it does not say why: {said}"
    );
    one.run(&["INSERT INTO rt.u VALUES (1000, 1)"])?;
    equals(&two, &one)?;
    case.note(
        "a replica that lacks what was purged is refused with error 1236; the others go on"
            .to_owned(),
    );
    Ok(())
}
