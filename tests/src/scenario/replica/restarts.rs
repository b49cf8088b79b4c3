//! A primary that is killed and started again: its temporary tables are gone, and it has not said so.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use dromon_sandbox::mysql::Conn;
use dromon_sandbox::mysql::prelude::Queryable;

use super::{LIMIT, Replica, equal};
use crate::scenario::relay::plain::Server;

/// Each session of the primary has the same number, as after a restart.
const SESSION: &str = "SET binlog_format = STATEMENT, pseudo_thread_id = 4711";
const MAKE: &str = "CREATE TEMPORARY TABLE IF NOT EXISTS again (id INT)";
const READ: &str = "INSERT INTO orders SELECT id FROM again";
const SAID: &str = "The source was started anew";

pub fn run(primary: &mut Server, target: &Server, replica: &mut Replica) -> anyhow::Result<()> {
    primary.run(&["CREATE TABLE od.orders (id INT) ENGINE=InnoDB"])?;
    replica.start(&[])?;
    for starts in 0..3 {
        let mut conn = primary.connect("od")?;
        let insert = format!("INSERT INTO again VALUES ({starts})");
        for text in [SESSION, MAKE, &insert, READ] {
            conn.query_drop(text)?;
        }
        replica.reaches(primary, target)?;
        equal(primary, target, "od.orders", "temporary tables")?;
        // It outlives the primary's file, and a connection that goes on amid one.
        conn.query_drop("FLUSH BINARY LOGS")?;
        conn.query_drop(READ)?;
        replica.reaches(primary, target)?;
        cut(&mut conn)?;
        conn.query_drop(READ)?;
        replica.reaches(primary, target)?;
        equal(primary, target, "od.orders", "a temporary table for long")?;
        let said = replica.said()?.matches(SAID).count();
        ensure!(said == starts, "{said} instead of {starts} starts");
        // Before the session ends, so nothing is said of its tables.
        primary.kill()?;
        primary.start()?;
    }
    replica.kill()?;
    Ok(())
}

/// The connection to the replica breaks.
fn cut(conn: &mut Conn) -> anyhow::Result<()> {
    const DUMP: &str =
        "SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND = 'Binlog Dump'";
    let ids: Vec<u64> = conn.query(DUMP)?;
    ensure!(!ids.is_empty(), "nobody follows");
    for id in &ids {
        conn.query_drop(format!("KILL {id}"))?;
    }
    let until = Instant::now() + LIMIT;
    while conn.query::<u64, _>(DUMP)? == ids {
        ensure!(Instant::now() < until, "it does not end");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
