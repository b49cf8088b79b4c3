//! Rows come into a table whose trigger does nothing, while the table that it names is altered: no key
//! of these rows names that table.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::ensure;

use super::floors::Floors;
use super::{ask, set_up};
use crate::check;
use crate::harness::Case;
use crate::load::{RETRY, Writer, blow};

/// Rows of a large write set.
const LARGE: u64 = 3000;

const CHANGES: [&str; 4] = [
    "ALTER TABLE named ADD COLUMN extra INT NOT NULL DEFAULT 7, ALGORITHM=COPY",
    "ALTER TABLE named ADD INDEX by_v (v)",
    "ALTER TABLE named DROP COLUMN extra, ALGORITHM=COPY",
    "ALTER TABLE named DROP INDEX by_v",
];

/// With any provider the cluster stands still: a client waits for the table that the trigger names, and the
/// ALTER of it for that client.
pub fn amid_ddl(case: &mut Case) -> anyhow::Result<()> {
    set_up(
        case,
        &[
            "CREATE TABLE named (id INT PRIMARY KEY, v INT NOT NULL)",
            "CREATE TABLE fires (id BIGINT AUTO_INCREMENT PRIMARY KEY, v INT NOT NULL)",
            "CREATE TRIGGER does_nothing BEFORE INSERT ON fires FOR EACH ROW \
             IF NEW.v < 0 THEN INSERT INTO named VALUES (NEW.v, 0); END IF",
        ],
    )?;
    let fired = Arc::new(AtomicU64::new(0));
    let (mut writers, mut floors) = (Vec::new(), Floors::default());
    for client in 0..6 {
        let node = client % 3;
        let fired = Arc::clone(&fired);
        let [few, large] = ["single rows", "large write sets"].map(|kind| floors.of(node, kind));
        writers.push(Writer::new(&case.node(node), move |s| {
            let (many, floor) = [(1, &few), (LARGE, &large)][usize::from(s.rng.below(4) == 0)];
            let id = s.rng.below(100);
            let rows = vec![format!("({id})"); many as usize].join(",");
            let rows = s.exec(&format!("INSERT INTO fires (v) VALUES {rows}"))?;
            fired.fetch_add(rows, Ordering::Relaxed);
            floor.rows(rows);
            Ok(())
        }));
    }
    let mut turn = 0;
    let altered = CHANGES.map(|sql| floors.of(2, sql));
    writers.push(Writer::new(&case.node(2), move |s| {
        thread::sleep(Duration::from_millis(30));
        let nth = turn % CHANGES.len();
        // An ALTER is refused for nothing: each one finds what the one before it made.
        s.exec(CHANGES[nth])?;
        turn += 1;
        altered[nth].one();
        Ok(())
    }));
    let tally = blow(&case.db, writers, RETRY, case.options.seconds)?;
    check::settled(&case.cluster(), &case.db)?;
    check::whole(&case.cluster())?;
    let fired = fired.load(Ordering::Relaxed);
    for node in 0..3 {
        let (rows, named): (u64, u64) = ask(
            case,
            node,
            "SELECT (SELECT COUNT(*) FROM fires), (SELECT COUNT(*) FROM named)",
        )?;
        ensure!(
            rows == fired && named == 0,
            "db{} has {rows} rows under a trigger, {fired} were acknowledged; {named} rows that it makes",
            node + 1
        );
    }
    floors.are_reached(case.options.seconds)?;
    case.note(format!("{tally}; {}", floors.words()));
    Ok(())
}
