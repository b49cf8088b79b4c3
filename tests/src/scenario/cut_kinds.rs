//! Every kind of large transaction, once from each node, with small chunks: what may be cut is cut, what may
//! not goes whole, and all nodes are equal behind each.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_sandbox::{Cluster, Start};

use super::relay::plain::{PASSWORD, Server, USER};
use super::torture::add_option;
use crate::check;
use crate::harness::{Case, JOIN_LIMIT, new_database};
use crate::load::{RETRY, Session, Storm, Writer};

/// Bytes of changes above which a transaction goes in chunks, and of a chunk.
const CHUNKED: &str = "dromon.auto_stream_size=128K";
/// Rows of most tables, of some 200 bytes.
const ROWS: u64 = 2000;
/// Rows of the table without a key: each row is looked for among all.
const UNKEYED: u64 = 1000;
/// Rows of the small ones.
const FEW: u64 = 30;
/// No statement may take longer.
const LIMIT: Duration = Duration::from_secs(90);
/// At the origin of what goes whole although it is large.
const WHOLE: &str = "are applied whole by the other nodes";
/// What compresses badly, so that it stays large in a compressed event.
const FILLING: &str = "CONCAT(MD5(seq), MD5(seq + 10000), MD5(seq + 20000), MD5(seq + 30000), MD5(seq + 40000), MD5(seq + 50000))";

/// How the others apply one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// In chunks.
    Chunks,
    /// In one piece, for its kind; its node says so.
    Whole,
}

/// A large transaction: what is run before it, itself, and what puts the session back. `{n}` is its node's
/// number, from 0.
struct Kind {
    what: &'static str,
    before: &'static [&'static str],
    large: &'static [&'static str],
    after: &'static [&'static str],
    way: Way,
}

const fn kind(what: &'static str, large: &'static [&'static str], way: Way) -> Kind {
    Kind {
        what,
        before: &[],
        large,
        after: &[],
        way,
    }
}

const fn within(
    what: &'static str,
    before: &'static [&'static str],
    large: &'static [&'static str],
    after: &'static [&'static str],
) -> Kind {
    Kind {
        what,
        before,
        large,
        after,
        way: Way::Chunks,
    }
}

const KINDS: &[Kind] = &[
    kind(
        "UPDATE of all rows",
        &["UPDATE plain SET pad = REVERSE(pad)"],
        Way::Chunks,
    ),
    kind(
        "statements on several tables",
        &[
            "BEGIN",
            "UPDATE plain SET pad = REVERSE(pad)",
            "DELETE FROM other WHERE id % 5 = {n}",
            "INSERT INTO other SELECT id, g, pad FROM plain WHERE id % 5 = {n}",
            "COMMIT",
        ],
        Way::Chunks,
    ),
    kind(
        "triggers",
        &["UPDATE fires SET pad = REVERSE(pad)"],
        Way::Chunks,
    ),
    kind(
        "cascades",
        &[
            "BEGIN",
            "UPDATE parent SET id = id + 100000, pad = REVERSE(pad) ORDER BY id DESC",
            "DELETE FROM parent WHERE id % 10 = {n}",
            "COMMIT",
        ],
        Way::Chunks,
    ),
    kind(
        "UPDATE of two tables",
        &[
            "UPDATE plain JOIN other USING (id) SET plain.pad = REVERSE(plain.pad), other.g = other.g + 1, \
             other.pad = REVERSE(other.pad)",
        ],
        Way::Chunks,
    ),
    kind(
        "DELETE from two tables",
        &[
            "BEGIN",
            "DELETE plain, other FROM plain JOIN other USING (id) WHERE id % 2 = 0",
            "INSERT INTO plain SELECT seq, {n}, CONCAT(MD5(seq), MD5(seq + 10000), MD5(seq + 20000)) FROM seq_2_to_2000_step_2",
            "INSERT INTO other SELECT id, g, pad FROM plain WHERE id % 2 = 0",
            "COMMIT",
        ],
        Way::Chunks,
    ),
    within(
        "join with a temporary table",
        &[
            "CREATE TEMPORARY TABLE chosen (id INT PRIMARY KEY, added INT)",
            "INSERT INTO chosen SELECT seq, seq % 7 FROM seq_1_to_2000",
        ],
        &["UPDATE plain JOIN chosen USING (id) SET g = g + added, pad = REVERSE(pad)"],
        &["DROP TEMPORARY TABLE chosen"],
    ),
    kind(
        "INSERT ... SELECT",
        &["INSERT INTO copies (source, pad) SELECT id, pad FROM plain"],
        Way::Chunks,
    ),
    kind(
        "INSERT ... ON DUPLICATE KEY UPDATE, a second unique key",
        &[
            "INSERT INTO uniques SELECT s.id + 10000, s.u, NULL, s.pad FROM uniques s \
             ON DUPLICATE KEY UPDATE pad = REVERSE(uniques.pad), w = uniques.id * 3 + {n}",
        ],
        Way::Chunks,
    ),
    kind(
        "unique keys exchanged",
        &[
            "BEGIN",
            "UPDATE uniques SET u = -u",
            "UPDATE uniques SET u = 2001 + u, pad = REVERSE(pad)",
            "COMMIT",
        ],
        Way::Chunks,
    ),
    kind(
        "savepoints",
        &[
            "BEGIN",
            "UPDATE plain SET pad = REVERSE(pad) WHERE id <= 1000",
            "SAVEPOINT a",
            "UPDATE plain SET g = g + 1 WHERE id <= 1000",
            "SAVEPOINT b",
            "UPDATE plain SET pad = REVERSE(pad) WHERE id > 1000",
            "COMMIT",
        ],
        Way::Chunks,
    ),
    kind(
        "ROLLBACK TO a savepoint",
        &[
            "BEGIN",
            "UPDATE plain SET pad = REVERSE(pad)",
            "SAVEPOINT a",
            "DELETE FROM plain WHERE id > 500",
            "INSERT INTO other SELECT seq, 0, MD5(seq) FROM seq_3001_to_4000",
            "ROLLBACK TO a",
            "UPDATE plain SET g = g + 10 WHERE id <= 1500",
            "COMMIT",
        ],
        Way::Chunks,
    ),
    // A temporary table made within the transaction has the server keep what was rolled back, and the ROLLBACK TO.
    Kind {
        what: "ROLLBACK TO among the rows",
        before: &[],
        large: &[
            "BEGIN",
            "UPDATE plain SET pad = REVERSE(pad)",
            "SAVEPOINT a",
            "CREATE TEMPORARY TABLE held (id INT PRIMARY KEY)",
            "DELETE FROM plain WHERE id > 500",
            "ROLLBACK TO a",
            "UPDATE plain SET g = g + 10 WHERE id <= 1500",
            "COMMIT",
        ],
        after: &["DROP TEMPORARY TABLE held"],
        way: Way::Whole,
    },
    within(
        "MINIMAL images",
        &["SET SESSION binlog_row_image = 'MINIMAL'"],
        &[
            "BEGIN",
            "UPDATE plain SET pad = REVERSE(pad)",
            "UPDATE other SET pad = REVERSE(pad) WHERE id % 2 = 1",
            "COMMIT",
        ],
        &["SET SESSION binlog_row_image = 'FULL'"],
    ),
    within(
        "compressed events",
        &[
            "SET GLOBAL log_bin_compress_min_len = 100",
            "SET GLOBAL log_bin_compress = ON",
        ],
        &[
            "BEGIN",
            "UPDATE plain SET pad = REVERSE(pad)",
            "DELETE FROM other WHERE id % 5 = {n}",
            "INSERT INTO other SELECT id, g, pad FROM plain WHERE id % 5 = {n}",
            "COMMIT",
        ],
        &[
            "SET GLOBAL log_bin_compress = OFF",
            "SET GLOBAL log_bin_compress_min_len = DEFAULT",
        ],
    ),
    kind(
        "no primary key",
        &["UPDATE unkeyed SET pad = REVERSE(pad)"],
        Way::Chunks,
    ),
    kind(
        "a table with history, in partitions",
        &[
            "BEGIN",
            "UPDATE versioned SET pad = REVERSE(pad)",
            "UPDATE parts SET id = id + 1, pad = REVERSE(pad) ORDER BY id DESC",
            "COMMIT",
        ],
        Way::Chunks,
    ),
    kind(
        "CREATE TABLE ... SELECT",
        &["CREATE TABLE made{n} (PRIMARY KEY (id)) SELECT id, g, pad FROM plain"],
        Way::Whole,
    ),
    kind(
        "a giant row",
        &["INSERT INTO giants (data) VALUES (REPEAT('{n}', 3000000))"],
        Way::Whole,
    ),
    kind(
        "giant rows among others",
        &[
            "BEGIN",
            "UPDATE plain SET pad = REVERSE(pad)",
            "INSERT INTO giants (data) VALUES (REPEAT('{n}', 3000000)), ('few'), (REPEAT('b', 1000000))",
            "UPDATE giants SET data = CONCAT(data, '{n}') WHERE data LIKE '{n}%'",
            "COMMIT",
        ],
        Way::Chunks,
    ),
];

/// The tables, with what is in them.
fn tables() -> Vec<String> {
    let filled = |table: &str, columns: &str, rows: u64| {
        format!("INSERT INTO {table} SELECT {columns}, {FILLING} FROM seq_1_to_{rows}")
    };
    let mut all: Vec<String> = [
        "CREATE TABLE small (id INT PRIMARY KEY, v BIGINT NOT NULL)",
        "CREATE TABLE plain (id INT PRIMARY KEY, g INT NOT NULL, pad VARCHAR(250) NOT NULL)",
        "CREATE TABLE other (id INT PRIMARY KEY, g INT NOT NULL, pad VARCHAR(250) NOT NULL)",
        "CREATE TABLE fires (id INT PRIMARY KEY, n INT NOT NULL, pad VARCHAR(250) NOT NULL)",
        "CREATE TABLE changes (id BIGINT AUTO_INCREMENT PRIMARY KEY, whose INT NOT NULL, was VARCHAR(250) NOT NULL)",
        "CREATE TRIGGER counts BEFORE UPDATE ON fires FOR EACH ROW SET NEW.n = OLD.n + 1",
        "CREATE TRIGGER notes AFTER UPDATE ON fires FOR EACH ROW INSERT INTO changes (whose, was) VALUES (OLD.id, OLD.pad)",
        "CREATE TABLE parent (id INT PRIMARY KEY, pad VARCHAR(250) NOT NULL)",
        "CREATE TABLE child (id INT PRIMARY KEY, p INT, pad VARCHAR(250) NOT NULL, \
         FOREIGN KEY (p) REFERENCES parent (id) ON UPDATE CASCADE ON DELETE SET NULL)",
        "CREATE TABLE leaves (id INT PRIMARY KEY, p INT NOT NULL, \
         FOREIGN KEY (p) REFERENCES parent (id) ON UPDATE CASCADE ON DELETE CASCADE)",
        "CREATE TABLE copies (id BIGINT AUTO_INCREMENT PRIMARY KEY, source INT NOT NULL, pad VARCHAR(250) NOT NULL)",
        "CREATE TABLE uniques (id INT PRIMARY KEY, u INT NOT NULL UNIQUE, w INT UNIQUE, pad VARCHAR(250) NOT NULL)",
        "CREATE TABLE unkeyed (g INT NOT NULL, pad VARCHAR(250) NOT NULL)",
        "CREATE TABLE versioned (id INT PRIMARY KEY, pad VARCHAR(250) NOT NULL) WITH SYSTEM VERSIONING",
        "CREATE TABLE parts (id INT PRIMARY KEY, pad VARCHAR(250) NOT NULL) PARTITION BY HASH (id) PARTITIONS 3",
        "CREATE TABLE giants (id BIGINT AUTO_INCREMENT PRIMARY KEY, data LONGBLOB NOT NULL)",
    ]
    .map(str::to_owned)
    .into();
    all.extend([
        format!("INSERT INTO small SELECT seq, 0 FROM seq_1_to_{FEW}"),
        filled("plain", "seq, seq % 10", ROWS),
        filled("other", "seq, seq % 10", ROWS),
        filled("fires", "seq, 0", ROWS),
        filled("parent", "seq", ROWS),
        filled("child", "seq, seq", ROWS),
        format!("INSERT INTO leaves SELECT seq, seq FROM seq_1_to_{ROWS}"),
        filled("uniques", "seq, seq, NULL", ROWS),
        filled("unkeyed", "seq % 5", UNKEYED),
        filled("versioned", "seq", ROWS),
        filled("parts", "seq", ROWS),
    ]);
    all
}

/// db1 and db2 have a binary log, and write what they apply into it; db3 has none.
pub fn cut_kinds(case: &mut Case) -> anyhow::Result<()> {
    let cluster = case.own_cluster(|spec| {
        add_option(&mut spec.provider_options, CHUNKED);
        *spec = spec
            .clone()
            .set("log_bin", "bin")
            .set("log_slave_updates", "ON")
            .set("wsrep_mode", "");
    })?;
    for (index, node) in cluster.nodes().iter().enumerate() {
        // As a node that follows another server should have them.
        let mut extra = vec![
            format!("--server-id={}", 101 + index),
            format!("--gtid-domain-id={}", 11 + index),
        ];
        if index == 2 {
            extra.push("--skip-log-bin".to_owned());
        }
        let start = [Start::NewCluster, Start::Join][index.min(1)];
        node.start(start, &extra)?;
        node.wait_usable(JOIN_LIMIT)?;
    }
    let tables = tables();
    let tables: Vec<&str> = tables.iter().map(String::as_str).collect();
    drop(new_database(cluster.node(0), &case.db, &tables)?);
    check::settled(&cluster, &case.db)?;
    let began = Instant::now();
    let mut small = 0;
    for kind in KINDS {
        for node in 0..3 {
            small += once(&cluster, &case.db, kind, node)
                .with_context(|| format!("{}, from db{}", kind.what, node + 1))?;
        }
    }
    case.note(format!(
        "{} kinds, each from three nodes, in {:.0} s; {small} small ones beside them",
        KINDS.len(),
        began.elapsed().as_secs_f64()
    ));
    from_a_source(case, &cluster).context("from a server that db1 follows")?;
    check::whole(&cluster)
}

/// One of a kind from one node, with small ones beside it; how many these were.
fn once(cluster: &Cluster, db: &str, kind: &Kind, node: usize) -> anyhow::Result<u64> {
    let mut session = Session::open_within(cluster.node(node), db, 0, LIMIT)?;
    let mut run = |statements: &[&str]| -> anyhow::Result<()> {
        for statement in statements {
            let statement = statement.replace("{n}", &node.to_string());
            session.exec(&statement).with_context(|| statement)?;
        }
        Ok(())
    };
    run(kind.before)?;
    let seen = Seen::now(cluster, node)?;
    let writers = (0..3).map(|of| small_one(cluster, of)).collect();
    let storm = Storm::start(db, writers, RETRY)?;
    let done = run(kind.large);
    let tally = storm.stop();
    done?;
    run(kind.after)?;
    check::settled(cluster, db)?;
    seen.went(cluster, kind.way)?;
    Ok(tally?.done)
}

/// A client with a row of its own at each step.
fn small_one(cluster: &Cluster, node: usize) -> Writer {
    Writer::new(cluster.node(node), move |s| {
        let id = 1 + node as u64 + 3 * s.rng.below(FEW / 3);
        thread::sleep(Duration::from_millis(5));
        s.exec(&format!("UPDATE small SET v = v + 1 WHERE id = {id}"))
            .map(drop)
    })
}

/// How it was before a large transaction from `origin`.
struct Seen {
    origin: usize,
    mark: usize,
    streamed: Vec<i64>,
}

impl Seen {
    fn now(cluster: &Cluster, origin: usize) -> anyhow::Result<Self> {
        Ok(Self {
            origin,
            mark: check::log_marks(cluster)[origin],
            streamed: check::streamed(cluster)?,
        })
    }

    /// Fails unless it was applied that way on all nodes.
    fn went(&self, cluster: &Cluster, way: Way) -> anyhow::Result<()> {
        let more: Vec<i64> = (check::streamed(cluster)?.iter().zip(&self.streamed))
            .map(|(now, before)| now - before)
            .collect();
        let wanted = i64::from(way == Way::Chunks);
        ensure!(
            more.iter().all(|n| *n == wanted),
            "{way:?} was expected, and the nodes began to apply {more:?} in chunks"
        );
        let log = check::log_since(cluster.node(self.origin), self.mark);
        ensure!(
            log.contains(WHOLE) == (way == Way::Whole),
            "{way:?} was expected, and its node logged {log}"
        );
        Ok(())
    }
}

/// db1 follows a server without a cluster: what comes from there has its GTID among the rows, and is not cut.
fn from_a_source(case: &mut Case, cluster: &Cluster) -> anyhow::Result<()> {
    let dir = case.dir_beside("plain")?;
    let source = Server::new(&dir, "source", 1, &[])?;
    let mut node = Session::open_within(cluster.node(0), &case.db, 0, LIMIT)?;
    node.exec(&format!(
        "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={}, MASTER_USER='{USER}', MASTER_PASSWORD='{PASSWORD}', \
         MASTER_USE_GTID=slave_pos",
        source.port
    ))?;
    node.exec("START SLAVE")?;
    let mut followed = |statements: &[&str]| -> anyhow::Result<()> {
        source.run(statements)?;
        let end: String = source.one("SELECT @@gtid_binlog_pos")?;
        let wait = format!("SELECT MASTER_GTID_WAIT('{end}', {})", LIMIT.as_secs() / 2);
        ensure!(
            node.one::<i64>(&wait)? == Some(0),
            "db1 did not come to {end}"
        );
        check::settled(cluster, "far").map(drop)
    };
    let fill = format!("INSERT INTO t SELECT seq, {FILLING} FROM seq_1_to_{ROWS}");
    followed(&[
        "CREATE DATABASE far",
        "USE far",
        "CREATE TABLE t (id INT PRIMARY KEY, pad VARCHAR(250) NOT NULL)",
        &fill,
    ])?;
    let seen = Seen::now(cluster, 0)?;
    followed(&["UPDATE far.t SET pad = REVERSE(pad)"])?;
    seen.went(cluster, Way::Whole)?;
    for sql in ["STOP SLAVE", "RESET SLAVE ALL"] {
        node.exec(sql)?;
    }
    drop(source);
    fs::remove_dir_all(&dir)?;
    Ok(())
}
