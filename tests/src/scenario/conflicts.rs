//! Storms in which the nodes write the same rows: every acknowledged change is
//! counted and must be there afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use dromon_sandbox::JoinPlan;

use super::floors::Floors;
use super::increments::Acknowledged;
use super::{QUICK_START_MODE, ask, set_mode, set_up};
use crate::check;
use crate::harness::{Case, JOIN_LIMIT};
use crate::load::{self, DEADLOCK, RECORD_CHANGED, RETRY, Session, Writer};

type Count = Arc<AtomicU64>;

fn counted(count: &Count, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}

/// The others leave the row alone for the last part of each stretch: else who reads first and
/// writes then would hardly ever succeed.
const STRETCH: Duration = Duration::from_millis(400);
const ALONE: Duration = Duration::from_millis(100);
/// Streams of two nodes may wait for one another, which no server sees: it gives up waiting for a lock.
const LOCK_WAIT: u16 = 1205;
const SHORT_WAIT: &str = "SET SESSION innodb_lock_wait_timeout = 3";
const STATUS_LIMIT: Duration = Duration::from_secs(10);

fn wait_shortly_amid_streams(s: &mut Session) -> load::Sql<()> {
    match load::some_stream() {
        true => s.exec(SHORT_WAIT).map(drop),
        false => Ok(()),
    }
}

/// Two nodes, five clients each, one row: single statements, transactions, and
/// read-modify-write, which snapshot isolation must keep from losing updates.
pub fn counter(case: &mut Case) -> anyhow::Result<()> {
    set_up(
        case,
        &[
            "CREATE TABLE c (id INT PRIMARY KEY, v BIGINT NOT NULL)",
            "INSERT INTO c VALUES (1, 0)",
        ],
    )?;
    let acknowledged = Count::default();
    let (mut writers, mut floors) = (Vec::new(), Floors::default());
    let begin = Instant::now();
    for client in 0..10 {
        let count = Arc::clone(&acknowledged);
        let kind = match client / 2 {
            0 | 1 => "single statements",
            2 | 3 => "transactions",
            _ => "reads and writes",
        };
        let floor = floors.of(client % 2, kind);
        writers.push(Writer::new(&case.node(client % 2), move |s| {
            const INCREMENT: &str = "UPDATE c SET v = v + 1 WHERE id = 1";
            if client / 2 < 4 {
                let left = STRETCH.as_micros() - begin.elapsed().as_micros() % STRETCH.as_micros();
                if left <= ALONE.as_micros() {
                    thread::sleep(Duration::from_micros(left as u64));
                }
            }
            match client / 2 {
                0 | 1 => s.exec(INCREMENT).map(drop)?,
                2 | 3 => s.transaction(|s| s.exec(INCREMENT).map(drop))?,
                _ => s.transaction(|s| {
                    let v: Option<u64> = s.one("SELECT v FROM c WHERE id = 1")?;
                    s.exec(&format!(
                        "UPDATE c SET v = {} WHERE id = 1",
                        v.unwrap_or(0) + 1
                    ))
                    .map(drop)
                })?,
            }
            counted(&count, 1);
            floor.one();
            Ok(())
        }));
    }
    let tally = load::blow(&case.db, writers, RETRY, case.options.seconds)?;
    check::settled(&case.cluster(), &case.db)?;
    let acknowledged = acknowledged.load(Ordering::Relaxed);
    for node in 0..3 {
        let value: u64 = ask(case, node, "SELECT v FROM c WHERE id = 1")?;
        ensure!(
            value == acknowledged,
            "db{} counts {value}, {acknowledged} increments were acknowledged",
            node + 1
        );
    }
    floors.are_reached(case.options.seconds)?;
    case.note(format!("{tally}; {}", floors.words()));
    Ok(())
}

/// Three nodes: range updates, inserts into the ranges, and rows that move in
/// the index. Gap locks collide where certification keys do not: replays.
pub fn ranges(case: &mut Case) -> anyhow::Result<()> {
    set_up(
        case,
        &[
            "CREATE TABLE r (id INT AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL, v BIGINT NOT NULL, KEY (k))",
            "INSERT INTO r (k, v) SELECT seq % 200, 0 FROM seq_1_to_1000",
        ],
    )?;
    let allowed = match load::some_stream() {
        true => &[DEADLOCK, RECORD_CHANGED, LOCK_WAIT],
        false => RETRY,
    };
    let (changed, inserted) = (Count::default(), Count::default());
    let (mut writers, mut floors) = (Vec::new(), Floors::default());
    for node in 0..3 {
        for _ in 0..2 {
            let count = Arc::clone(&changed);
            let floor = floors.of(node, "ranges");
            writers.push(Writer::new(&case.node(node), move |s| {
                wait_shortly_amid_streams(s)?;
                let low = s.rng.below(190);
                let sql = format!(
                    "UPDATE r SET v = v + 1 WHERE k BETWEEN {low} AND {}",
                    low + 5
                );
                let rows = s.transaction(|s| s.exec(&sql))?;
                counted(&count, rows);
                floor.rows(rows);
                Ok(())
            }));
        }
        let count = Arc::clone(&inserted);
        let floor = floors.of(node, "inserts");
        writers.push(Writer::new(&case.node(node), move |s| {
            wait_shortly_amid_streams(s)?;
            let (a, b) = (s.rng.below(200), s.rng.below(200));
            s.exec(&format!("INSERT INTO r (k, v) VALUES ({a}, 0), ({b}, 0)"))?;
            counted(&count, 2);
            floor.one();
            Ok(())
        }));
        let floor = floors.of(node, "rows that move");
        writers.push(Writer::new(&case.node(node), move |s| {
            wait_shortly_amid_streams(s)?;
            let (id, k) = (s.rng.below(1000) + 1, s.rng.below(200));
            let rows = s.exec(&format!("UPDATE r SET k = {k} WHERE id = {id}"))?;
            floor.rows(rows);
            Ok(())
        }));
    }
    let tally = load::blow(&case.db, writers, allowed, case.options.seconds)?;
    check::settled(&case.cluster(), &case.db)?;
    let (changed, inserted) = (
        changed.load(Ordering::Relaxed),
        inserted.load(Ordering::Relaxed),
    );
    let (sum, rows): (u64, u64) = ask(case, 1, "SELECT CAST(SUM(v) AS UNSIGNED), COUNT(*) FROM r")?;
    ensure!(
        sum == changed,
        "the rows were changed {sum} times, {changed} changes were acknowledged"
    );
    ensure!(
        rows == 1000 + inserted,
        "there are {rows} rows, {} were acknowledged",
        1000 + inserted
    );
    floors.are_reached(case.options.seconds)?;
    case.note(format!("{tally}; {}", floors.words()));
    Ok(())
}

/// Parents that a server names in two ways: where it names the row itself, and where a child
/// names it. How such a key looks, and a value by chance.
#[derive(Clone, Copy)]
enum TwoNames {
    Uuid,
    Inet4,
    Char,
    AddedInPlace,
    BesideLongPrimaryKey,
    UuidWithPart,
}

impl TwoNames {
    const ALL: [TwoNames; 6] = [
        TwoNames::Uuid,
        TwoNames::Inet4,
        TwoNames::Char,
        TwoNames::AddedInPlace,
        TwoNames::BesideLongPrimaryKey,
        TwoNames::UuidWithPart,
    ];

    /// The parent's and the child's table.
    fn tables(self) -> [String; 2] {
        let n = self as u8;
        [format!("two_names_{n}"), format!("two_names_child_{n}")]
    }

    fn statements(self) -> Vec<String> {
        let [parent, child] = self.tables();
        let key = match self {
            TwoNames::Uuid | TwoNames::UuidWithPart => "UUID",
            TwoNames::Inet4 => "INET4",
            TwoNames::Char => "CHAR(12) CHARACTER SET utf8mb4",
            TwoNames::AddedInPlace | TwoNames::BesideLongPrimaryKey => "BIGINT",
        };
        let (columns, added) = match self {
            TwoNames::AddedInPlace => (
                "id BIGINT AUTO_INCREMENT PRIMARY KEY, KEY (n)",
                Some(format!(
                    "ALTER TABLE {parent} ADD UNIQUE KEY (k), ALGORITHM=INPLACE"
                )),
            ),
            TwoNames::BesideLongPrimaryKey => (
                "id BIGINT AUTO_INCREMENT, part INT NOT NULL DEFAULT 7, PRIMARY KEY (id, part), UNIQUE KEY (k)",
                None,
            ),
            // The number is no sign that the address is one.
            TwoNames::Inet4 => (
                "id INT NOT NULL AUTO_INCREMENT, PRIMARY KEY (k), UNIQUE KEY (id)",
                None,
            ),
            TwoNames::UuidWithPart => (
                "part SMALLINT NOT NULL DEFAULT 7, PRIMARY KEY (k, part)",
                None,
            ),
            TwoNames::Uuid | TwoNames::Char => ("PRIMARY KEY (k)", None),
        };
        let (part, parts) = match self {
            TwoNames::UuidWithPart => ("part SMALLINT NOT NULL DEFAULT 7, ", "k, part"),
            _ => ("", "k"),
        };
        let mut all = vec![format!(
            "CREATE TABLE {parent} (k {key} NOT NULL, n INT NOT NULL DEFAULT 0, {columns})"
        )];
        all.extend(added);
        all.push(format!(
            "CREATE TABLE {child} (id BIGINT AUTO_INCREMENT PRIMARY KEY, k {key} NOT NULL, {part}KEY ({parts}), \
             FOREIGN KEY ({parts}) REFERENCES {parent} ({parts}))"
        ));
        all
    }

    fn value(self, s: &mut Session) -> String {
        let mut below = |bound| s.rng.below(bound);
        match self {
            TwoNames::Uuid | TwoNames::UuidWithPart => format!(
                "'{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}'",
                below(1 << 32),
                below(1 << 16),
                below(1 << 12),
                below(1 << 12),
                below(1 << 48)
            ),
            TwoNames::Inet4 => {
                let [a, b, c, d] = [(); 4].map(|()| 1 + below(254));
                format!("'{a}.{b}.{c}.{d}'")
            }
            TwoNames::Char => {
                let letters = ['À', 'Ç', 'É', 'Í', 'Ñ', 'Ó', 'Ú', 'Ý'];
                let word = (0..8).map(|_| letters[below(8) as usize]);
                format!("'{}'", word.collect::<String>())
            }
            TwoNames::AddedInPlace | TwoNames::BesideLongPrimaryKey => below(1 << 62).to_string(),
        }
    }

    /// A parent comes, then its child, each by itself; some of them go again.
    fn come_and_go(self, s: &mut Session) -> load::Sql<()> {
        let [parent, child] = self.tables();
        let k = self.value(s);
        s.exec(&format!("INSERT INTO {parent} (k) VALUES ({k})"))?;
        s.exec(&format!("INSERT INTO {child} (k) VALUES ({k})"))?;
        s.exec(&format!("UPDATE {parent} SET n = n + 1 WHERE k = {k}"))?;
        if s.rng.chance(50) {
            s.exec(&format!("DELETE FROM {child} WHERE k = {k}"))?;
            s.exec(&format!("DELETE FROM {parent} WHERE k = {k}"))?;
        }
        Ok(())
    }
}

/// Children are counted in their parent in the same transaction, while parents
/// vanish, come back and change their id, cascading. Beside it parents come and go whose
/// rows have two names.
pub fn foreign_keys(case: &mut Case) -> anyhow::Result<()> {
    const ALLOWED: &[u16] = &[DEADLOCK, RECORD_CHANGED, 1062, 1451, 1452];
    const PARENTS: u64 = 40;
    set_up(
        case,
        &[
            "CREATE TABLE parent (id INT PRIMARY KEY, n INT NOT NULL)",
            "CREATE TABLE child (id BIGINT AUTO_INCREMENT PRIMARY KEY, pid INT NOT NULL, KEY (pid), \
             FOREIGN KEY (pid) REFERENCES parent (id) ON DELETE CASCADE ON UPDATE CASCADE)",
            "INSERT INTO parent SELECT seq, 0 FROM seq_1_to_40",
        ],
    )?;
    let mut first = Session::open(&case.node(0), &case.db, 0)?;
    for statement in TwoNames::ALL.iter().flat_map(|two| two.statements()) {
        first.exec(&statement)?;
    }
    let (mut writers, mut floors) = (Vec::new(), Floors::default());
    for client in 0..9 {
        let node = client % 3;
        let families = floors.of(node, "families of two names");
        writers.push(Writer::new(&case.node(node), move |s| {
            let two = TwoNames::ALL[s.rng.below(TwoNames::ALL.len() as u64) as usize];
            two.come_and_go(s)?;
            families.one();
            Ok(())
        }));
        let [deleted, inserted, moved, born] = [
            "parents deleted",
            "parents inserted",
            "parents that changed their id",
            "children",
        ]
        .map(|kind| floors.of(node, kind));
        writers.push(Writer::new(&case.node(node), move |s| {
            let (id, other) = (s.rng.below(PARENTS) + 1, s.rng.below(PARENTS) + 1);
            let (floor, sql) = match s.rng.below(20) {
                0 | 1 => (&deleted, format!("DELETE FROM parent WHERE id = {id}")),
                2..=5 => (&inserted, format!("INSERT INTO parent VALUES ({id}, 0)")),
                6 | 7 => (
                    &moved,
                    format!("UPDATE parent SET id = {other} WHERE id = {id}"),
                ),
                _ => {
                    let rows = s.transaction(|s| {
                        let rows =
                            s.exec(&format!("UPDATE parent SET n = n + 1 WHERE id = {id}"))?;
                        if rows > 0 {
                            s.exec(&format!("INSERT INTO child (pid) VALUES ({id})"))?;
                        }
                        Ok(rows)
                    })?;
                    born.rows(rows);
                    return Ok(());
                }
            };
            let rows = s.exec(&sql)?;
            floor.rows(rows);
            Ok(())
        }));
    }
    let tally = load::blow(&case.db, writers, ALLOWED, case.options.seconds)?;
    check::settled(&case.cluster(), &case.db)?;
    for node in 0..3 {
        let orphans: u64 = ask(
            case,
            node,
            "SELECT COUNT(*) FROM child LEFT JOIN parent ON parent.id = pid WHERE parent.id IS NULL",
        )?;
        ensure!(
            orphans == 0,
            "db{} has {orphans} children without parent",
            node + 1
        );
        let wrong: u64 = ask(
            case,
            node,
            "SELECT COUNT(*) FROM parent WHERE n <> (SELECT COUNT(*) FROM child WHERE pid = parent.id)",
        )?;
        ensure!(
            wrong == 0,
            "db{} has {wrong} parents that miscount their children",
            node + 1
        );
    }
    let children: u64 = ask(case, 0, "SELECT COUNT(*) FROM child")?;
    floors.are_reached(case.options.seconds)?;
    case.note(format!(
        "{tally}; {children} children left; {}",
        floors.words()
    ));
    Ok(())
}

/// Each node has one applier, and half of the clients stream: where that applier meets a lock of a stream
/// nobody else is left to see to it. Some update parents, others insert their children, which only refers to
/// them, and in a table without keys a row is looked for among all: certification lets all of it pass.
pub fn one_applier(case: &mut Case) -> anyhow::Result<()> {
    const ALLOWED: &[u16] = &[DEADLOCK, RECORD_CHANGED, LOCK_WAIT];
    const ROWS: u64 = 12;
    let cluster = case.own_cluster(|spec| spec.appliers = 1)?;
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    let mut first = Session::open(&case.node(0), "", 0)?;
    first.exec(&format!("CREATE DATABASE {}", case.db))?;
    set_mode(case, "")?;
    set_up(
        case,
        &[
            "CREATE TABLE parent (id INT PRIMARY KEY, n INT NOT NULL)",
            "CREATE TABLE child (id BIGINT AUTO_INCREMENT PRIMARY KEY, pid INT NOT NULL, KEY (pid), \
             FOREIGN KEY (pid) REFERENCES parent (id))",
            "CREATE TABLE bare (id INT NOT NULL, n INT NOT NULL)",
            "INSERT INTO parent SELECT seq, 0 FROM seq_1_to_12",
            "INSERT INTO bare SELECT seq, 0 FROM seq_1_to_12",
        ],
    )?;
    let kinds = ["parents updated", "children", "rows without a key"];
    let counts = [(); 3].map(|()| Count::default());
    let (mut writers, mut floors) = (Vec::new(), Floors::default());
    for client in 0..18 {
        let (node, streams, kind) = (client % 3, client / 3 % 2, client / 6);
        let (count, floor) = (Arc::clone(&counts[kind]), floors.of(node, kinds[kind]));
        writers.push(Writer::new(&case.node(node), move |s| {
            s.exec(SHORT_WAIT)?;
            s.exec("SET SESSION wsrep_trx_fragment_unit = 'rows'")?;
            s.exec(&format!("SET SESSION wsrep_trx_fragment_size = {streams}"))?;
            // All go the same way, so that few wait for one another.
            let first = s.rng.below(ROWS - 1) + 1;
            let other = first + 1 + s.rng.below(ROWS - first);
            let sql = |id| match kind {
                0 => format!("UPDATE parent SET n = n + 1 WHERE id = {id}"),
                1 => format!("INSERT INTO child (pid) VALUES ({id})"),
                _ => format!("UPDATE bare SET n = n + 1 WHERE id = {id} LIMIT 1"),
            };
            s.transaction(|s| {
                s.exec(&sql(first))?;
                s.exec(&sql(other))
            })?;
            counted(&count, 2);
            floor.one();
            Ok(())
        }));
    }
    let tally = load::blow(&case.db, writers, ALLOWED, case.options.seconds)?;
    check::settled(&case.cluster(), &case.db)?;
    let expected = counts.map(|count| count.load(Ordering::Relaxed));
    let mut shelved = 0;
    for node in 0..3 {
        let (updated, born, bare): (u64, u64, u64) = ask(
            case,
            node,
            "SELECT CAST(SUM(n) AS UNSIGNED), (SELECT COUNT(*) FROM child), \
             (SELECT CAST(SUM(n) AS UNSIGNED) FROM bare) FROM parent",
        )?;
        ensure!(
            [updated, born, bare] == expected,
            "db{} has {updated} updates of parents, {born} children and {bare} updates without a key; acknowledged \
             were {expected:?}",
            node + 1
        );
        let status = case.node(node).status(STATUS_LIMIT)?;
        shelved += status.number("wsrep_dromon_streams_shelved").unwrap_or(0);
    }
    // That is what this storm is for. The peer shelves nothing.
    ensure!(
        shelved > 0 || !cluster.record().is_dromon(),
        "no stream was shelved: nothing was shown of that"
    );
    floors.are_reached(case.options.seconds)?;
    case.note(format!(
        "{tally}; {shelved} streams shelved; {}",
        floors.words()
    ));
    Ok(())
}

/// Rows that replace one another through two unique secondary keys. What meets at such a key is aborted and
/// runs again, with the counter that it took before: mostly one that only its neighbours on the node want, so
/// that no key of another node's tells of it.
pub fn unique_keys(case: &mut Case) -> anyhow::Result<()> {
    const ALLOWED: &[u16] = &[DEADLOCK, RECORD_CHANGED, 1062];
    const AMID_STREAMS: &[u16] = &[DEADLOCK, RECORD_CHANGED, 1062, LOCK_WAIT];
    const VALUES: u64 = 60;
    /// One for each node, and some for all.
    const COUNTERS: u64 = 3 + 3;
    set_up(
        case,
        &[
            "CREATE TABLE u (id INT PRIMARY KEY, a INT NOT NULL, b INT NOT NULL, v INT NOT NULL, UNIQUE (a), UNIQUE (b))",
            "CREATE TABLE counted (id INT PRIMARY KEY, n BIGINT NOT NULL)",
            &format!("INSERT INTO counted SELECT seq, 0 FROM seq_1_to_{COUNTERS}"),
        ],
    )?;
    let acknowledged = Acknowledged::default();
    let (mut writers, mut floors) = (Vec::new(), Floors::default());
    for client in 0..9 {
        // Every third client may stream: so these are spread over the nodes.
        let node = (client + client / 3) % 3;
        let streams = floors.of_streams(node);
        let [one, upsert, two, deleted, moved, counted] = [
            "REPLACE",
            "ON DUPLICATE KEY UPDATE",
            "two times REPLACE",
            "DELETE",
            "UPDATE",
            "counted",
        ]
        .map(|kind| floors.of(node, kind));
        let acknowledged = acknowledged.clone();
        writers.push(Writer::new(&case.node(node), move |s| {
            wait_shortly_amid_streams(s)?;
            let (id, a, b) = (
                s.rng.below(VALUES),
                s.rng.below(VALUES),
                s.rng.below(VALUES),
            );
            let (floor, sql) = match s.rng.below(14) {
                0..=4 => (&one, format!("REPLACE INTO u VALUES ({id}, {a}, {b}, 0)")),
                5 | 6 => (
                    &upsert,
                    format!(
                        "INSERT INTO u VALUES ({id}, {a}, {b}, 0) ON DUPLICATE KEY UPDATE v = v + 1"
                    ),
                ),
                7 => {
                    let rows = s.transaction(|s| {
                        s.exec(&format!("REPLACE INTO u VALUES ({id}, {a}, {b}, 1)"))?;
                        s.exec(&format!("REPLACE INTO u VALUES ({a}, {b}, {id}, 2)"))
                    })?;
                    two.rows(rows);
                    streams.one(s, rows);
                    return Ok(());
                }
                8 | 9 => (&deleted, format!("DELETE FROM u WHERE b = {b}")),
                10 | 11 => {
                    let counter = match s.rng.below(4) {
                        0 => 4 + s.rng.below(3),
                        _ => 1 + node as u64,
                    };
                    let unique = match s.rng.chance(50) {
                        true => format!("UPDATE u SET a = {a} WHERE id = {id}"),
                        false => format!("REPLACE INTO u VALUES ({id}, {a}, {b}, 3)"),
                    };
                    let rows = s.transaction(|s| {
                        s.exec(&format!(
                            "UPDATE counted SET n = n + 1 WHERE id = {counter}"
                        ))?;
                        s.exec(&unique)
                    })?;
                    acknowledged.one(counter);
                    counted.one();
                    streams.one(s, 1 + rows);
                    return Ok(());
                }
                _ => (&moved, format!("UPDATE u SET a = {a} WHERE id = {id}")),
            };
            let rows = s.exec(&sql)?;
            floor.rows(rows);
            streams.one(s, rows);
            Ok(())
        }));
    }
    // Those who wait for a counter at which another one is aborted, and may be through before it runs again. They
    // rest, as the others are to come to something beside them.
    for node in 0..3 {
        let (acknowledged, floor) = (acknowledged.clone(), floors.of(node, "increments"));
        let counter = 1 + node as u64;
        let sql = format!("UPDATE counted SET n = n + 1 WHERE id = {counter}");
        writers.push(Writer::new(&case.node(node), move |s| {
            wait_shortly_amid_streams(s)?;
            s.exec(&sql)?;
            acknowledged.one(counter);
            floor.one();
            thread::sleep(Duration::from_millis(50));
            Ok(())
        }));
    }
    let allowed = match load::some_stream() {
        true => AMID_STREAMS,
        false => ALLOWED,
    };
    let tally = load::blow(&case.db, writers, allowed, case.options.seconds)?;
    check::settled(&case.cluster(), &case.db)?;
    for node in 0..3 {
        let (rows, a, b): (u64, u64, u64) = ask(
            case,
            node,
            "SELECT COUNT(*), COUNT(DISTINCT a), COUNT(DISTINCT b) FROM u IGNORE INDEX (a, b)",
        )?;
        ensure!(
            rows == a && rows == b,
            "db{} has {rows} rows, {a} values of a, {b} values of b",
            node + 1
        );
    }
    let counted = acknowledged.are_there(case, "SELECT id, n FROM counted", COUNTERS)?;
    floors.are_reached(case.options.seconds)?;
    case.note(format!("{tally}; {counted} counted; {}", floors.words()));
    Ok(())
}

/// Rows without an identity: increments by key, and inserts against deletes.
pub fn no_primary_key(case: &mut Case) -> anyhow::Result<()> {
    const ALLOWED: &[u16] = &[DEADLOCK, RECORD_CHANGED, 1062, LOCK_WAIT];
    set_mode(case, "")?;
    set_up(
        case,
        &[
            "CREATE TABLE n (k INT NOT NULL, v BIGINT NOT NULL, KEY (k))",
            "CREATE TABLE m (k INT NOT NULL, v BIGINT NOT NULL)",
            "CREATE TABLE u (k INT, v INT NOT NULL, UNIQUE (k))",
            "INSERT INTO n SELECT seq % 50, 0 FROM seq_1_to_100",
            "INSERT INTO u SELECT seq * 3, 0 FROM seq_1_to_60",
        ],
    )?;
    let (changed, inserted) = (Count::default(), Count::default());
    let (mut writers, mut floors) = (Vec::new(), Floors::default());
    for node in 0..3 {
        for _ in 0..2 {
            let count = Arc::clone(&changed);
            let floor = floors.of(node, "increments");
            writers.push(Writer::new(&case.node(node), move |s| {
                let k = s.rng.below(50);
                let rows = s.exec(&format!("UPDATE n SET v = v + 1 WHERE k = {k}"))?;
                counted(&count, rows);
                floor.rows(rows);
                Ok(())
            }));
        }
        let count = Arc::clone(&inserted);
        let (made, removed) = (floors.of(node, "inserts"), floors.of(node, "deletes"));
        writers.push(Writer::new(&case.node(node), move |s| {
            let k = s.rng.below(10);
            if s.rng.chance(50) {
                s.exec(&format!("INSERT INTO m VALUES ({k}, 1)"))?;
                counted(&count, 1);
                made.one();
            } else {
                let rows = s.exec(&format!("DELETE FROM m WHERE k = {k} LIMIT 3"))?;
                // Counted down in two's complement; the sum never goes below zero.
                counted(&count, rows.wrapping_neg());
                removed.rows(rows);
            }
            Ok(())
        }));
        // A row is named by its first unique index, where a NULL may stand, as if by a primary key. Most that
        // several rows are moved or made in goes in chunks with a tiny threshold; next to it a single one.
        let (moved, single) = (floors.of(node, "moves"), floors.of(node, "neighbours"));
        for single_row in [false, true] {
            let (moved, single) = (moved.clone(), single.clone());
            writers.push(Writer::new(&case.node(node), move |s| {
                wait_shortly_amid_streams(s)?;
                let k = 3 * s.rng.below(60);
                let far = k + 20 + s.rng.below(40);
                let some = format!("WHERE k BETWEEN {k} AND {far} AND k % 3 = 0");
                let sql = match (single_row, s.rng.below(4)) {
                    (true, 0 | 1) => format!("INSERT INTO u VALUES ({k} + 1, 1)"),
                    (true, 2) => format!("DELETE FROM u WHERE k = {k} + 1"),
                    (true, _) => format!("UPDATE u SET k = k + 3 WHERE k = {k} + 1"),
                    (false, 0) => {
                        format!("REPLACE INTO u SELECT seq, 2 FROM seq_{k}_to_{far}_step_3")
                    }
                    (false, 1) => format!("DELETE FROM u {some}"),
                    (false, _) => format!("UPDATE u SET k = k + 3 {some} ORDER BY k DESC"),
                };
                let rows = s.exec(&sql)?;
                match single_row {
                    true => single.rows(rows),
                    false => moved.rows(rows),
                }
                Ok(())
            }));
        }
    }
    let tally = load::blow(&case.db, writers, ALLOWED, case.options.seconds)?;
    check::settled(&case.cluster(), &case.db)?;
    let changed = changed.load(Ordering::Relaxed);
    let sum: u64 = ask(case, 2, "SELECT CAST(SUM(v) AS UNSIGNED) FROM n")?;
    ensure!(
        sum == changed,
        "the rows were changed {sum} times, {changed} changes were acknowledged"
    );
    let inserted = inserted.load(Ordering::Relaxed);
    let rows: u64 = ask(case, 2, "SELECT COUNT(*) FROM m")?;
    ensure!(
        rows == inserted,
        "there are {rows} rows, inserts less deletes acknowledged are {inserted}"
    );
    set_mode(case, QUICK_START_MODE)?;
    floors.are_reached(case.options.seconds)?;
    case.note(format!("{tally}; {}", floors.words()));
    Ok(())
}
