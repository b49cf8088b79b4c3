//! Tables of other kinds, and what is stored beside tables, under load from all nodes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::ensure;

use super::floors::Floors;
use super::{ask, set_up};
use crate::check;
use crate::harness::Case;
use crate::ledger::{self, Told};
use crate::load::{RETRY, Writer, blow};

const ROWS: u64 = 30;

/// One client of db2 makes them anew while they are used.
const ANEW: [&str; 6] = [
    "CREATE OR REPLACE TRIGGER versioned_u AFTER UPDATE ON versioned FOR EACH ROW UPDATE changes SET n = n + 1 WHERE id = NEW.id",
    "CREATE OR REPLACE PROCEDURE up (a INT) UPDATE versioned SET v = v + 1 WHERE id = a",
    "CREATE OR REPLACE FUNCTION twice (a INT) RETURNS INT DETERMINISTIC RETURN 2 * a",
    "CREATE OR REPLACE EVENT each_day ON SCHEDULE EVERY 1 DAY COMMENT 'anew' DO UPDATE changes SET n = 0",
    "CREATE OR REPLACE PROCEDURE up (IN b INT) BEGIN UPDATE versioned SET v = v + 1 WHERE id = b; END",
    "ALTER SEQUENCE numbers INCREMENT BY 0 CACHE 10",
];

/// Numbers of a sequence are given once, what a trigger counts is what was changed, history and
/// definitions are the same everywhere.
pub fn kinds(case: &mut Case) -> anyhow::Result<()> {
    let rows = [
        format!("INSERT INTO versioned SELECT seq, 0 FROM seq_1_to_{ROWS}"),
        format!("INSERT INTO changes SELECT seq, 0 FROM seq_1_to_{ROWS}"),
    ];
    let mut statements = vec![
        "CREATE SEQUENCE numbers INCREMENT BY 0 CACHE 20",
        "CREATE TABLE given (id BIGINT PRIMARY KEY)",
        "CREATE TABLE versioned (id INT PRIMARY KEY, v BIGINT NOT NULL) WITH SYSTEM VERSIONING",
        "CREATE TABLE changes (id INT PRIMARY KEY, n BIGINT NOT NULL)",
        "CREATE TABLE spans (id INT PRIMARY KEY, v INT, a TIMESTAMP(6) GENERATED ALWAYS AS ROW START, \
         b TIMESTAMP(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (a, b)) WITH SYSTEM VERSIONING",
        &rows[0],
        &rows[1],
    ];
    statements.extend(ANEW);
    set_up(case, &statements)?;
    let told = Arc::new(Mutex::new(Told::default()));
    let changed = Arc::new(Mutex::new(0u64));
    let mut floors = Floors::default();
    let mut writers = Vec::new();
    for client in 0..6 {
        let node = client % 3;
        let (told, changed) = (Arc::clone(&told), Arc::clone(&changed));
        let [given, calls, spans] =
            ["numbers", "changes by a procedure", "spans"].map(|kind| floors.of(node, kind));
        writers.push(Writer::new(&case.node(node), move |s| {
            let id = s.rng.below(ROWS) + 1;
            match s.rng.below(4) {
                0 | 1 => {
                    let Some(id) = s.one::<i64>("SELECT NEXTVAL(numbers)")? else {
                        return Ok(());
                    };
                    s.exec(&format!("INSERT INTO given VALUES ({id})"))?;
                    let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                    told.acknowledged.insert(id);
                    given.one();
                }
                2 => {
                    s.exec(&format!("CALL up({id})"))?;
                    *changed.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                    calls.one();
                }
                _ => {
                    s.transaction(|s| {
                        s.exec(&format!("REPLACE INTO spans (id, v) VALUES ({id}, 1)"))?;
                        s.exec(&format!("UPDATE spans SET v = twice(v) WHERE id = {id}"))
                    })?;
                    spans.one();
                }
            }
            Ok(())
        }));
    }
    let mut turn = 0;
    let anew = floors.of(1, "definitions made anew");
    writers.push(Writer::new(&case.node(1), move |s| {
        thread::sleep(Duration::from_millis(100));
        s.exec(ANEW[turn % ANEW.len()])?;
        turn += 1;
        anew.one();
        Ok(())
    }));
    let tally = blow(&case.db, writers, RETRY, case.options.seconds)?;
    let cluster = case.cluster();
    check::settled(&cluster, &case.db)?;
    floors.are_reached(case.options.seconds)?;
    let told = told.lock().unwrap_or_else(PoisonError::into_inner).clone();
    ledger::hold_ids(&cluster, &case.db, "given", &told)?;
    let changed = *changed.lock().unwrap_or_else(PoisonError::into_inner);
    let mut beside = BTreeSet::new();
    for node in 0..3 {
        let (sum, counted): (u64, u64) = ask(
            case,
            node,
            "SELECT CAST((SELECT SUM(v) FROM versioned) AS UNSIGNED), CAST((SELECT SUM(n) FROM changes) AS UNSIGNED)",
        )?;
        ensure!(
            sum == changed && counted == changed,
            "db{}: {changed} changes were acknowledged, {sum} are there, {counted} were counted by the trigger",
            node + 1
        );
        beside.insert(ask::<u64>(
            case,
            node,
            "SELECT COUNT(*) FROM versioned FOR SYSTEM_TIME ALL",
        )?);
    }
    case.note(format!(
        "{tally}; {} numbers given, {changed} changes, rows with history {beside:?}; {}",
        told.acknowledged.len(),
        floors.words()
    ));
    Ok(())
}
