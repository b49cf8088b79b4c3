//! Keys that are the same to the server and not byte by byte: blanks at their end, letters in capitals,
//! and long ones in a unique index of hashes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::ensure;

use super::floors::Floors;
use super::{ask, set_up};
use crate::check;
use crate::harness::Case;
use crate::ledger::{self, Told};
use crate::load::{DEADLOCK, RECORD_CHANGED, Session, Writer, blow, code};

/// Taken already.
const DUPLICATE: u16 = 1062;
const ALLOWED: &[u16] = &[DEADLOCK, RECORD_CHANGED, DUPLICATE];
/// Names that are counted up.
const NAMES: u64 = 40;
/// So many clients want each long value.
const WANT: i64 = 6;

/// Each name is one row, and is taken once, however it was written.
pub fn blanks(case: &mut Case) -> anyhow::Result<()> {
    run(case, false)
}

/// The same with long values, whose unique index is one of hashes. No key of a write set names it: with any
/// provider appliers and replays get in each other's way there, and the cluster stands still.
pub fn hashed(case: &mut Case) -> anyhow::Result<()> {
    run(case, true)
}

fn run(case: &mut Case, hashes: bool) -> anyhow::Result<()> {
    set_up(
        case,
        &[
            "CREATE TABLE names (k VARCHAR(60) PRIMARY KEY, v BIGINT NOT NULL) \
             CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
            "CREATE TABLE taken (id BIGINT PRIMARY KEY, long_one TEXT NOT NULL, UNIQUE (long_one) USING HASH) \
             CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
            "CREATE TABLE other (id BIGINT PRIMARY KEY, name VARCHAR(60) NOT NULL, UNIQUE (name)) \
             CHARACTER SET latin1",
        ],
    )?;
    let counted = Arc::new(Mutex::new(BTreeMap::<String, u64>::new()));
    let told: [Arc<Mutex<Told>>; 2] = Default::default();
    let ids = Arc::new(AtomicI64::new(0));
    let (mut writers, mut floors) = (Vec::new(), Floors::default());
    for client in 0..9 {
        let node = client % 3;
        let (counted, told, ids) = (Arc::clone(&counted), told.clone(), Arc::clone(&ids));
        let [up, short] = ["names counted up", "names taken"].map(|kind| floors.of(node, kind));
        let long = hashes.then(|| floors.of(node, "long values taken"));
        writers.push(Writer::new(&case.node(node), move |s| {
            let end = " ".repeat(s.rng.below(4) as usize);
            let letter = ["k", "K"][s.rng.below(2) as usize];
            let turn = s.rng.below(3);
            if turn == 0 {
                let n = s.rng.below(NAMES);
                s.exec(&format!(
                    "INSERT INTO names VALUES ('{letter}{n}{end}', 1) ON DUPLICATE KEY UPDATE v = v + 1"
                ))?;
                let mut counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
                *counted.entry(format!("k{n}")).or_default() += 1;
                up.one();
                return Ok(());
            }
            let id = ids.fetch_add(1, Ordering::Relaxed) + 1;
            let n = id / WANT;
            let long = long.as_ref().filter(|_| turn == 1);
            let sql = match long {
                Some(_) => format!(
                    "INSERT INTO taken VALUES ({id}, CONCAT(REPEAT('{letter}', 3000), '{n}{end}'))"
                ),
                None => format!("INSERT INTO other VALUES ({id}, '{letter}{n}{end}')"),
            };
            let answer = s.exec(&sql);
            let list = &told[usize::from(long.is_none())];
            let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
            match answer.as_ref().map_err(code) {
                Err(Some(DUPLICATE)) => drop(list.refused.insert(id)),
                _ => list.note(id, &answer),
            }
            drop(list);
            answer?;
            long.unwrap_or(&short).one();
            Ok(())
        }));
    }
    let tally = blow(&case.db, writers, ALLOWED, case.options.seconds)?;
    let cluster = case.cluster();
    check::settled(&cluster, &case.db)?;
    check::whole(&cluster)?;
    let counted = counted
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let mut words = String::new();
    for (table, told) in ["taken", "other"].into_iter().zip(&told) {
        let told = told.lock().unwrap_or_else(PoisonError::into_inner);
        ledger::hold_ids(&cluster, &case.db, table, &told)?;
        words += &format!("{table}: {told}; ");
    }
    for node in 0..3 {
        let found: Vec<(String, u64)> = Session::open(&case.node(node), &case.db, 0)?
            .rows("SELECT LOWER(RTRIM(k)), v FROM names")?;
        let (rows, found) = (found.len(), found.into_iter().collect::<BTreeMap<_, _>>());
        ensure!(
            rows == found.len() && found == counted,
            "db{}: {rows} names, {found:?}; acknowledged: {counted:?}",
            node + 1
        );
        let (rows, values): (u64, u64) = ask(
            case,
            node,
            "SELECT COUNT(*), COUNT(DISTINCT LOWER(RTRIM(long_one))) FROM taken",
        )?;
        ensure!(
            rows == values,
            "db{}: {rows} rows and {values} long values",
            node + 1
        );
    }
    floors.are_reached(case.options.seconds)?;
    case.note(format!("{tally}; {words}{}", floors.words()));
    Ok(())
}
