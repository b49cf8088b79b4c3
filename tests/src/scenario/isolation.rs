//! Reads with a lock, and levels of isolation that are not the server's default: what was read so
//! and then written is not overwritten by anybody who read the same.

use super::floors::Floors;
use super::increments::Acknowledged;
use super::set_up;
use crate::check;
use crate::harness::Case;
use crate::load::{RETRY, Session, Sql, Writer, blow};

const ROWS: u64 = 40;

/// What a client does, and how it is named: its level, and how it reads before it writes. At the levels
/// below REPEATABLE READ a read without a lock may be old by the time of the write, as with one server.
const WAYS: [(&str, &str, Option<&str>); 7] = [
    (
        "REPEATABLE READ with FOR UPDATE",
        "REPEATABLE READ",
        Some("FOR UPDATE"),
    ),
    (
        "READ COMMITTED with FOR UPDATE",
        "READ COMMITTED",
        Some("FOR UPDATE"),
    ),
    (
        "READ UNCOMMITTED with FOR UPDATE",
        "READ UNCOMMITTED",
        Some("FOR UPDATE"),
    ),
    ("SERIALIZABLE", "SERIALIZABLE", Some("")),
    (
        "SERIALIZABLE with LOCK IN SHARE MODE",
        "SERIALIZABLE",
        Some("LOCK IN SHARE MODE"),
    ),
    ("increments at READ COMMITTED", "READ COMMITTED", None),
    ("increments at SERIALIZABLE", "SERIALIZABLE", None),
];

/// Clients of all levels on all nodes count up the same rows.
pub fn isolation(case: &mut Case) -> anyhow::Result<()> {
    let rows = format!("INSERT INTO c SELECT seq, 0 FROM seq_1_to_{ROWS}");
    let table = "CREATE TABLE c (id INT PRIMARY KEY, v BIGINT NOT NULL)";
    set_up(case, &[table, &rows])?;
    let acknowledged = Acknowledged::default();
    let (mut writers, mut floors) = (Vec::new(), Floors::default());
    for client in 0..WAYS.len() * 3 {
        // Every third client may stream: so these are spread over the nodes, and each kind is on each node.
        let (node, (kind, level, read)) = ((client + client / 3) % 3, WAYS[client / 3]);
        let (all, floor) = (acknowledged.clone(), floors.of(node, kind));
        let streams = floors.of_streams(node);
        writers.push(Writer::new(&case.node(node), move |s| {
            // Mostly rows of its own node's: who reads first and writes then hardly ever succeeds else.
            let id = match s.rng.below(4) {
                0 => s.rng.below(ROWS) + 1,
                _ => (s.rng.below(ROWS / 3) * 3 + node as u64) % ROWS + 1,
            };
            s.exec(&format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}"))?;
            s.transaction(|s| match read {
                Some(lock) => read_and_write(s, id, lock),
                None => s
                    .exec(&format!("UPDATE c SET v = v + 1 WHERE id = {id}"))
                    .map(drop),
            })?;
            all.one(id);
            floor.one();
            streams.one(s, 1);
            Ok(())
        }));
    }
    let tally = blow(&case.db, writers, RETRY, case.options.seconds)?;
    check::settled(&case.cluster(), &case.db)?;
    acknowledged.are_there(case, "SELECT id, v FROM c", ROWS)?;
    floors.are_reached(case.options.seconds)?;
    case.note(format!("{tally}; {}", floors.words()));
    Ok(())
}

fn read_and_write(s: &mut Session, id: u64, lock: &str) -> Sql<()> {
    let found: Option<i64> = s.one(&format!("SELECT v FROM c WHERE id = {id} {lock}"))?;
    let next = found.unwrap_or(0) + 1;
    s.exec(&format!("UPDATE c SET v = {next} WHERE id = {id}"))
        .map(drop)
}
