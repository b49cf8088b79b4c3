//! Statement kinds in total order, failing DDL, DDL behind transactions.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::JoinPlan;

use super::{QUICK_START_MODE, set_mode, set_up};
use crate::check;
use crate::harness::{Case, JOIN_LIMIT, new_database};
use crate::load::{self, DEADLOCK, Session};

/// A statement, how many seqnos it takes, and a query that shows its effect on
/// every node.
struct Kind {
    sql: &'static str,
    seqnos: i64,
    query: &'static str,
    answer: &'static str,
}

const fn kind(sql: &'static str, seqnos: i64, query: &'static str, answer: &'static str) -> Kind {
    Kind {
        sql,
        seqnos,
        query,
        answer,
    }
}

const COLUMNS: &str = "SELECT GROUP_CONCAT(column_name ORDER BY 1) FROM information_schema.columns WHERE table_schema = 'toi' AND table_name = 't'";
const TABLES: &str = "SELECT GROUP_CONCAT(table_name ORDER BY 1) FROM information_schema.tables WHERE table_schema = 'toi'";
const USERS: &str = "SELECT COUNT(*) FROM mysql.global_priv WHERE user = 'toi_user'";
const TRIGGERS: &str =
    "SELECT COUNT(*) FROM information_schema.triggers WHERE trigger_schema = 'toi'";
const ROUTINES: &str =
    "SELECT COUNT(*) FROM information_schema.routines WHERE routine_schema = 'toi'";
const EVENTS: &str = "SELECT COUNT(*) FROM information_schema.events WHERE event_schema = 'toi'";
const DATABASES: &str =
    "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = 'toi_more'";
const NOTHING: &str = "SELECT 1";

const KINDS: &[Kind] = &[
    kind("CREATE DATABASE toi_more", 1, DATABASES, "1"),
    kind(
        "ALTER DATABASE toi_more CHARACTER SET latin1",
        1,
        DATABASES,
        "1",
    ),
    kind("DROP DATABASE toi_more", 1, DATABASES, "0"),
    kind("CREATE TABLE t (id INT PRIMARY KEY, v INT)", 1, TABLES, "t"),
    kind(
        "INSERT INTO t VALUES (1, 10), (2, 20)",
        1,
        "SELECT SUM(v) FROM t",
        "30",
    ),
    kind("ALTER TABLE t ADD COLUMN w INT", 1, COLUMNS, "id,v,w"),
    kind("CREATE INDEX by_w ON t (w)", 1, COLUMNS, "id,v,w"),
    kind("DROP INDEX by_w ON t", 1, COLUMNS, "id,v,w"),
    kind("ALTER TABLE t DROP COLUMN w", 1, COLUMNS, "id,v"),
    kind("ANALYZE TABLE t", 1, NOTHING, "1"),
    kind("OPTIMIZE TABLE t", 1, "SELECT COUNT(*) FROM t", "2"),
    kind("REPAIR TABLE t", 1, "SELECT COUNT(*) FROM t", "2"),
    kind(
        "CREATE VIEW s AS SELECT v FROM t",
        1,
        "SELECT SUM(v) FROM s",
        "30",
    ),
    kind("DROP VIEW s", 1, TABLES, "t"),
    kind(
        "CREATE TABLE l (id INT AUTO_INCREMENT PRIMARY KEY)",
        1,
        TABLES,
        "l,t",
    ),
    kind(
        "CREATE TRIGGER g AFTER INSERT ON t FOR EACH ROW INSERT INTO l VALUES (NULL)",
        1,
        TRIGGERS,
        "1",
    ),
    kind(
        "INSERT INTO t VALUES (3, 30)",
        1,
        "SELECT COUNT(*) FROM l",
        "1",
    ),
    kind("DROP TRIGGER g", 1, TRIGGERS, "0"),
    kind("CREATE PROCEDURE p() SELECT 1", 1, ROUTINES, "1"),
    kind(
        "CREATE FUNCTION f() RETURNS INT DETERMINISTIC RETURN 7",
        1,
        "SELECT f()",
        "7",
    ),
    kind("DROP FUNCTION f", 1, ROUTINES, "1"),
    kind("DROP PROCEDURE p", 1, ROUTINES, "0"),
    kind(
        "CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO SELECT 1",
        1,
        EVENTS,
        "1",
    ),
    kind("DROP EVENT e", 1, EVENTS, "0"),
    kind("RENAME TABLE l TO m", 1, TABLES, "m,t"),
    kind("CREATE TABLE c LIKE t", 1, TABLES, "c,m,t"),
    kind("TRUNCATE TABLE m", 1, "SELECT COUNT(*) FROM m", "0"),
    kind("DROP TABLE c, m", 1, TABLES, "t"),
    kind(
        "CREATE TABLE d (PRIMARY KEY (id)) SELECT * FROM t",
        1,
        "SELECT COUNT(*) FROM d",
        "3",
    ),
    kind("DROP TABLE d", 1, TABLES, "t"),
    kind("CREATE SEQUENCE q INCREMENT BY 0", 1, TABLES, "q,t"),
    kind("DROP SEQUENCE q", 1, TABLES, "t"),
    kind("CREATE USER toi_user@localhost", 1, USERS, "1"),
    kind(
        "GRANT SELECT ON toi.* TO toi_user@localhost",
        1,
        "SELECT COUNT(*) FROM mysql.db WHERE user = 'toi_user'",
        "1",
    ),
    kind(
        "REVOKE SELECT ON toi.* FROM toi_user@localhost",
        1,
        "SELECT COUNT(*) FROM mysql.db WHERE user = 'toi_user'",
        "0",
    ),
    kind(
        "SET PASSWORD FOR toi_user@localhost = PASSWORD('x')",
        1,
        USERS,
        "1",
    ),
    kind("FLUSH PRIVILEGES", 1, NOTHING, "1"),
    kind("DROP USER toi_user@localhost", 1, USERS, "0"),
    kind("FLUSH STATUS", 1, NOTHING, "1"),
    kind("CREATE TEMPORARY TABLE x (id INT)", 0, NOTHING, "1"),
    kind("LOCK TABLES t READ", 0, NOTHING, "1"),
    kind("UNLOCK TABLES", 0, NOTHING, "1"),
    kind("DROP TABLE t", 1, TABLES, "NULL"),
];

/// Every kind from changing nodes; its effect is asked on all of them.
pub fn toi(case: &mut Case) -> anyhow::Result<()> {
    let cluster = case.cluster();
    // With REQUIRED_PRIMARY_KEY the server refuses CREATE TABLE ... LIKE.
    set_mode(case, "")?;
    let mut total = 0;
    for (turn, kind) in KINDS.iter().enumerate() {
        let origin = turn % 3;
        let before = check::at_rest(&cluster)?;
        // Kept until after the count: what it locks must not hide a seqno.
        let mut session = case.session(origin)?;
        session
            .exec(kind.sql)
            .with_context(|| format!("{} on db{}", kind.sql, origin + 1))?;
        // Not the engine's checkpoint: CREATE TABLE ... SELECT does not move it on
        // its origin (the server's doing), the next statement does.
        let after = check::at_rest(&cluster)?;
        ensure!(
            after - before == kind.seqnos,
            "{} took {} seqnos, {} expected",
            kind.sql,
            after - before,
            kind.seqnos
        );
        for node in 0..3 {
            let query = format!("SELECT CAST(IFNULL(({}), 'NULL') AS CHAR)", kind.query);
            let answer: String = super::ask(case, node, &query)?;
            ensure!(
                answer == kind.answer,
                "after {} from db{}, db{} answers {answer} to {}; {} expected",
                kind.sql,
                origin + 1,
                node + 1,
                kind.query,
                kind.answer
            );
        }
        total += kind.seqnos;
    }
    set_mode(case, QUICK_START_MODE)?;
    check::settled(&cluster, &case.db)?;
    case.note(format!("{} statements, {total} seqnos", KINDS.len()));
    Ok(())
}

/// Each statement fails with the same error wherever it is run, after it was
/// ordered; nobody leaves.
pub fn ddl_fails(case: &mut Case) -> anyhow::Result<()> {
    const FAILING: &[(&str, u16)] = &[
        ("CREATE TABLE t (id INT PRIMARY KEY)", 1050),
        ("DROP TABLE missing", 1051),
        ("ALTER TABLE t DROP COLUMN missing", 1091),
        ("ALTER TABLE t ADD COLUMN v INT", 1060),
        ("ALTER TABLE t ADD UNIQUE (v)", 1062),
        ("ALTER TABLE missing ADD COLUMN w INT", 1146),
        ("RENAME TABLE missing TO other", 1146),
        ("TRUNCATE TABLE missing", 1146),
        ("CREATE VIEW w AS SELECT nothing FROM t", 1054),
        ("DROP VIEW missing", 4092),
        (
            "CREATE TRIGGER g AFTER INSERT ON missing FOR EACH ROW SET @a = 1",
            1146,
        ),
        ("DROP TRIGGER missing", 1360),
        ("CREATE DATABASE ddl_fails", 1007),
        ("DROP DATABASE missing", 1008),
        ("CREATE USER dromon@localhost", 1396),
        ("DROP USER missing@localhost", 1396),
        ("CREATE INDEX i ON t (missing)", 1072),
    ];
    set_up(
        case,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
            "INSERT INTO t VALUES (1, 5), (2, 5)",
        ],
    )?;
    let cluster = case.cluster();
    for (turn, (sql, expected)) in FAILING.iter().enumerate() {
        let origin = turn % 3;
        match case.session(origin)?.exec(sql) {
            Ok(_) => bail!("{sql} succeeded on db{}", origin + 1),
            Err(e) if load::code(&e) == Some(*expected) => {}
            Err(e) => {
                return Err(e).with_context(|| {
                    format!("{sql} on db{}, error {expected} expected", origin + 1)
                });
            }
        }
        // A node that had seen it otherwise would have been voted out.
        check::drained(&cluster)?;
        check::whole(&cluster)?;
    }
    check::settled(&cluster, &case.db)?;
    case.note(format!(
        "{} failing statements, three nodes left",
        FAILING.len()
    ));
    Ok(())
}

/// From each node, against a writer and a reader that have a transaction open
/// on db1.
pub fn ddl_waits(case: &mut Case) -> anyhow::Result<()> {
    const LIMIT: Duration = Duration::from_secs(20);
    set_up(
        case,
        &[
            "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v INT)",
            "INSERT INTO t (v) VALUES (1), (2)",
        ],
    )?;
    let mut longest = Duration::ZERO;
    let openers = [
        "INSERT INTO t (v) VALUES (9)",
        "UPDATE t SET v = v + 1 WHERE id = 1",
        "SELECT COUNT(*) FROM t",
    ];
    for (turn, opener) in openers.iter().enumerate() {
        for origin in 0..3 {
            let mut victim = case.session(0)?;
            victim.exec("BEGIN")?;
            victim.exec(opener)?;
            let mut changer = case.session(origin)?;
            let column = format!("c{turn}{origin}");
            let sql = format!("ALTER TABLE t ADD COLUMN {column} INT");
            let (sender, receiver) = mpsc::channel();
            let begin = Instant::now();
            thread::spawn(move || {
                let _ = sender.send(changer.exec(&sql)); // nobody waits after the limit
            });
            receiver
                .recv_timeout(LIMIT)
                .with_context(|| format!("ALTER from db{} hangs behind {opener}", origin + 1))?
                .with_context(|| format!("ALTER from db{} behind {opener}", origin + 1))?;
            longest = longest.max(begin.elapsed());
            expect_lost(&mut victim, opener, origin)?;
            for node in 0..3 {
                let there: u64 = super::ask(
                    case,
                    node,
                    &format!(
                        "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = 'ddl_waits' AND column_name = '{column}'"
                    ),
                )?;
                ensure!(there == 1, "db{} has no column {column}", node + 1);
            }
        }
    }
    check::settled(&case.cluster(), &case.db)?;
    let rows: (u64, u64) = super::ask(case, 2, "SELECT COUNT(*), CAST(SUM(v) AS UNSIGNED) FROM t")?;
    ensure!(rows == (2, 3), "a victim's change is there: {rows:?}");
    case.note(format!(
        "{} victims, the longest DDL took {:.2} s",
        openers.len() * 3,
        longest.as_secs_f64()
    ));
    Ok(())
}

fn expect_lost(victim: &mut Session, opener: &str, origin: usize) -> anyhow::Result<()> {
    match victim.exec("COMMIT") {
        Err(e) if load::code(&e) == Some(DEADLOCK) => Ok(()),
        // A reader holds nothing that others could miss: the server may let it end.
        Ok(_) if opener.starts_with("SELECT") => Ok(()),
        Ok(_) => bail!(
            "COMMIT after {opener} succeeded although DDL from db{} went over it",
            origin + 1
        ),
        Err(e) => Err(e).with_context(|| format!("COMMIT after {opener}, error 1213 expected")),
    }
}

/// Rows that an ALTER copies for about a second.
const SLOW_ROWS: u64 = 300_000;

/// Only the node of a streaming transaction knows that it holds a table it has read.
pub fn ddl_streams(case: &mut Case) -> anyhow::Result<()> {
    set_up(
        case,
        &[
            "CREATE TABLE kept (id INT PRIMARY KEY, v INT NOT NULL)",
            "INSERT INTO kept VALUES (1, 0), (2, 0), (3, 0)",
            "CREATE TABLE looked_at (id INT PRIMARY KEY)",
            "CREATE TABLE slow (id INT PRIMARY KEY)",
            &format!("INSERT INTO slow SELECT seq FROM seq_1_to_{SLOW_ROWS}"),
        ],
    )?;
    let mut expected = 0;
    for (origin, id) in [(0, 1), (1, 2), (2, 3)] {
        let change = format!("UPDATE kept SET v = v + 1 WHERE id = {id}");
        for changer in [0, 1] {
            let mut victim = streaming(case, origin)?;
            victim.exec("BEGIN")?;
            victim.exec(&change)?;
            victim.rows::<u64>("SELECT id FROM looked_at")?;
            case.session(changer)?.exec("TRUNCATE looked_at")?;
            // The row is free for whoever comes next, there and elsewhere.
            for node in [origin, (origin + 1) % 3] {
                streaming(case, node)?.exec(&change)?;
                case.session(node)?.exec(&change)?;
                expected += 2;
            }
            expect_lost(&mut victim, "a streaming change", changer)?;
            nothing_streams(case, expected)?;
        }
        // The end stands behind both, unseen or not.
        let mut victim = streaming(case, origin)?;
        victim.exec("BEGIN")?;
        victim.exec(&change)?;
        victim.rows::<u64>("SELECT id FROM looked_at")?;
        let other = (origin + 1) % 3;
        let (mut slow, mut quick) = (case.session(other)?, case.session(other)?);
        let slow = thread::spawn(move || slow.exec("ALTER TABLE slow FORCE, ALGORITHM=COPY"));
        thread::sleep(Duration::from_millis(200));
        let quick = thread::spawn(move || quick.exec("TRUNCATE looked_at"));
        thread::sleep(Duration::from_millis(200));
        match victim.exec("COMMIT") {
            Ok(_) => expected += 1, // before the statement
            Err(e) => ensure!(load::code(&e) == Some(DEADLOCK), "COMMIT: {e}"),
        }
        for thread in [slow, quick] {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        nothing_streams(case, expected)?;
    }
    check::settled(&case.cluster(), &case.db)?;
    check::whole(&case.cluster())?;
    case.note(format!("{expected} changes"));
    Ok(())
}

fn streaming(case: &Case, node: usize) -> anyhow::Result<Session> {
    let mut session = case.session(node)?;
    session.exec("SET SESSION wsrep_trx_fragment_unit = 'rows', wsrep_trx_fragment_size = 1")?;
    Ok(session)
}

/// A transaction around savepoints: its statements, where `{}` is a number to which ids are added, and what is
/// to be there of it.
const SAVEPOINTS: &[(&str, &[&str], &[u64])] = &[
    (
        "behind a SELECT, as mappers of objects write it",
        &[
            "SELECT COUNT(*) FROM t",
            "SAVEPOINT a",
            "INSERT INTO t VALUES ({} + 1, 0)",
            "ROLLBACK TO a",
            "INSERT INTO t VALUES ({} + 2, 0)",
        ],
        &[2],
    ),
    (
        "behind a SELECT, and nothing else",
        &[
            "SELECT COUNT(*) FROM t",
            "SAVEPOINT a",
            "INSERT INTO t VALUES ({} + 1, 0)",
            "ROLLBACK TO a",
        ],
        &[],
    ),
    (
        "behind a change",
        &[
            "INSERT INTO t VALUES ({} + 1, 0)",
            "SAVEPOINT a",
            "INSERT INTO t VALUES ({} + 2, 0)",
            "ROLLBACK TO a",
            "INSERT INTO t VALUES ({} + 3, 0)",
        ],
        &[1, 3],
    ),
    (
        "one within another",
        &[
            "SELECT COUNT(*) FROM t",
            "SAVEPOINT a",
            "INSERT INTO t VALUES ({} + 1, 0)",
            "SAVEPOINT b",
            "UPDATE t SET v = v + 1 WHERE id = {} + 1",
            "INSERT INTO t VALUES ({} + 2, 0)",
            "ROLLBACK TO b",
            "RELEASE SAVEPOINT a",
        ],
        &[1],
    ),
];

/// With a binary log nothing is sent of what was rolled back.
pub fn savepoints(case: &mut Case) -> anyhow::Result<()> {
    let cluster = case.own_cluster(|spec| *spec = spec.clone().set("log_bin", "binlog"))?;
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    let table = "CREATE TABLE t (id BIGINT PRIMARY KEY, v INT NOT NULL)";
    drop(new_database(cluster.node(0), &case.db, &[table])?);
    check::drained(&cluster)?;
    let (mut from, mut wanted) = (0, Vec::new());
    for (index, node) in cluster.nodes().iter().enumerate() {
        let mut session = Session::open(node, &case.db, 0)?;
        let logs: Option<u64> = session.one("SELECT @@log_bin")?;
        ensure!(logs == Some(1), "{} has no binary log", node.name());
        for (what, statements, stays) in SAVEPOINTS {
            from += 10;
            let run = |session: &mut Session| -> load::Sql<()> {
                session.exec("BEGIN")?;
                for statement in *statements {
                    session.exec(&statement.replace("{}", &from.to_string()))?;
                }
                session.exec("COMMIT").map(drop)
            };
            run(&mut session).with_context(|| format!("a savepoint {what}, db{}", index + 1))?;
            wanted.extend(stays.iter().map(|id| (from + id, 0)));
        }
    }
    check::settled(&cluster, &case.db)?;
    for node in cluster.nodes() {
        let rows = "SELECT id, v FROM t ORDER BY id";
        let rows: Vec<(u64, u64)> = Session::open(node, &case.db, 0)?.rows(rows)?;
        ensure!(rows == wanted, "{}: {rows:?}, not {wanted:?}", node.name());
    }
    case.note(format!(
        "{} transactions, {} rows, on all nodes",
        3 * SAVEPOINTS.len(),
        wanted.len()
    ));
    check::whole(&cluster)
}

/// All nodes count `expected` changes, and their streaming logs become empty.
fn nothing_streams(case: &Case, expected: u64) -> anyhow::Result<()> {
    let end = Instant::now() + Duration::from_secs(10);
    for node in 0..3 {
        loop {
            let (left, sum): (u64, u64) = super::ask(
                case,
                node,
                "SELECT (SELECT COUNT(*) FROM mysql.wsrep_streaming_log), \
                 CAST((SELECT SUM(v) FROM kept) AS UNSIGNED)",
            )?;
            if (left, sum) == (0, expected) {
                break;
            }
            ensure!(
                Instant::now() < end,
                "db{}: {left} fragments lie there, {sum} changes of {expected} are there",
                node + 1
            );
            thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}
