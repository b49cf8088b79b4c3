//! A workload of every kind: types, keys, foreign keys, statements, DDL, tables without keys.

use std::thread;

use anyhow::Context;
use dromon_sandbox::mysql::prelude::Queryable;

use crate::scenario::relay::plain::Server;

const TABLES: &[&str] = &[
    "CREATE DATABASE mx",
    "CREATE DATABASE mx2",
    "CREATE TABLE mx.types (id INT PRIMARY KEY, ti TINYINT, tu TINYINT UNSIGNED, sm SMALLINT, me MEDIUMINT UNSIGNED, bi BIGINT, \
     bu BIGINT UNSIGNED, de DECIMAL(30,10), f FLOAT, fl FLOAT(8,2), d DOUBLE, y YEAR, da DATE, t0 TIME, t6 TIME(6), dt DATETIME, dt3 DATETIME(3), \
     ts TIMESTAMP NULL, ts6 TIMESTAMP(6) NULL, bt BIT(17), en ENUM('a','b'), se SET('x','y','z'), c CHAR(10), \
     vc VARCHAR(300) CHARACTER SET utf8mb4, l1 VARCHAR(50) CHARACTER SET latin1, u16 VARCHAR(30) CHARACTER SET utf16, \
     sj VARCHAR(30) CHARACTER SET sjis, bn BINARY(8), vb VARBINARY(300), tx TEXT, bl MEDIUMBLOB, js JSON, \
     gv INT AS (ti + 1) VIRTUAL, gs INT AS (ti * 2) STORED) ENGINE=InnoDB",
    // Computed by the time zone: of all servers, and of a client that has its own.
    "CREATE TABLE mx.local (id INT PRIMARY KEY, ts TIMESTAMP NOT NULL, d DATE AS (DATE(ts)) STORED, u INT, UNIQUE (u, d)) ENGINE=InnoDB",
    "CREATE TABLE mx.indexed (id INT PRIMARY KEY, ts TIMESTAMP NOT NULL, v DATE AS (DATE(ts)) VIRTUAL, KEY (v)) ENGINE=InnoDB",
    "CREATE TABLE mx.zoned (id INT PRIMARY KEY, ts TIMESTAMP NOT NULL, d DATETIME AS (ts) STORED) ENGINE=InnoDB",
    "CREATE TABLE mx.u (id INT AUTO_INCREMENT PRIMARY KEY, k INT, name VARCHAR(60), n INT NOT NULL, UNIQUE (k), UNIQUE (name)) ENGINE=InnoDB",
    "CREATE TABLE mx.parent (id INT PRIMARY KEY, v INT) ENGINE=InnoDB",
    "CREATE TABLE mx.child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES mx.parent (id) ON DELETE CASCADE ON UPDATE CASCADE) ENGINE=InnoDB",
    "CREATE TABLE mx.orphan (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES mx.parent (id) ON DELETE SET NULL) ENGINE=InnoDB",
    "CREATE TABLE mx.keyless (a INT, b VARCHAR(20)) ENGINE=InnoDB",
    "CREATE TABLE mx.named (k VARCHAR(30) PRIMARY KEY, v INT, w TIMESTAMP(3) DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)) \
     ENGINE=InnoDB DEFAULT CHARSET utf8mb4",
    "CREATE TABLE mx.pair (k BINARY(6), j DATE, v INT, PRIMARY KEY (k, j)) ENGINE=InnoDB",
    "CREATE TABLE mx.uuids (id UUID PRIMARY KEY, ip INET6, v INT) ENGINE=InnoDB",
    "CREATE TABLE mx.old (id INT PRIMARY KEY, v INT) ENGINE=MyISAM",
    "CREATE TABLE mx.watched (id INT PRIMARY KEY, v INT) ENGINE=InnoDB",
    "CREATE TABLE mx.seen (id INT AUTO_INCREMENT PRIMARY KEY, v INT) ENGINE=InnoDB",
    "CREATE TRIGGER mx.watch AFTER INSERT ON mx.watched FOR EACH ROW INSERT INTO mx.seen (v) VALUES (NEW.v)",
    "CREATE TABLE mx.hot (id INT PRIMARY KEY, n INT) ENGINE=InnoDB",
    "INSERT INTO mx.hot VALUES (1, 0), (2, 0), (3, 0), (4, 0)",
    "CREATE TABLE mx.big (id INT PRIMARY KEY, x LONGBLOB) ENGINE=InnoDB",
    "CREATE TABLE mx.versions (id INT PRIMARY KEY, v INT) ENGINE=InnoDB WITH SYSTEM VERSIONING",
    "CREATE SEQUENCE mx.sq CACHE 3 ENGINE=InnoDB",
    "CREATE TABLE mx.typed (d DECIMAL(65,38), u BIGINT UNSIGNED) ENGINE=InnoDB",
    "CREATE TABLE mx2.t (id INT PRIMARY KEY, v INT, k INT, KEY (k)) ENGINE=InnoDB",
    "INSERT INTO mx2.t SELECT seq, 0, seq % 100 FROM mx2.seq_1_to_2000",
];

/// Makes the tables.
pub fn prepare(server: &Server) -> anyhow::Result<()> {
    server.run(TABLES)
}

/// All tables there are now, for CHECKSUM TABLE. Not those of [`computed`]: the same rows have many checksums there.
pub fn tables(server: &Server) -> anyhow::Result<String> {
    server
        .one(
            "SELECT GROUP_CONCAT(CONCAT(TABLE_SCHEMA, '.', TABLE_NAME) ORDER BY 1 SEPARATOR ', ') FROM information_schema.TABLES \
             WHERE TABLE_SCHEMA IN ('mx', 'mx2') AND TABLE_TYPE <> 'SEQUENCE' AND TABLE_NAME NOT IN ('local', 'zoned', 'indexed')",
        )
        .context("no tables")
}

/// A time zone that is not UTC, for both servers: in UTC nothing of it would be seen.
pub const ZONE: &str = "--default-time-zone=+05:00";

/// What tables have that is computed by the time zone, an index among it, and how far the sequence is.
pub fn computed(server: &Server) -> anyhow::Result<String> {
    server
        .one(
            "SELECT CONCAT((SELECT GROUP_CONCAT(id, ' ', UNIX_TIMESTAMP(ts), ' ', d, ' ', u ORDER BY id) FROM mx.local), '; ', \
             (SELECT GROUP_CONCAT(id, ' ', UNIX_TIMESTAMP(ts), ' ', d ORDER BY id) FROM mx.zoned), '; ', \
             (SELECT GROUP_CONCAT(id, ' ', UNIX_TIMESTAMP(ts) ORDER BY id) FROM mx.indexed FORCE INDEX (PRIMARY)), '; ', \
             (SELECT GROUP_CONCAT(id, ' ', v ORDER BY id) FROM mx.indexed FORCE INDEX (v)), '; ', (SELECT next_not_cached_value FROM mx.sq))",
        )
        .context("a table has no rows")
}

/// Numbers that look random; the same for the same seed.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    fn roll(&mut self, of: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % of
    }

    fn one(&mut self, of: &[&str]) -> String {
        of[self.roll(of.len() as u64) as usize].to_owned()
    }

    fn number(&mut self, low: &str, high: &str) -> String {
        match self.roll(5) {
            0 => low.into(),
            1 => high.into(),
            2 => "NULL".into(),
            _ => self.roll(100).to_string(),
        }
    }

    fn bytes(&mut self, max: u64) -> String {
        let len = self.roll(max + 1);
        let mut out = "x'".to_owned();
        for _ in 0..len {
            let b = [0, 39, 92, 255, 10, 13, 26, self.roll(256)][self.roll(8) as usize];
            out.push_str(&format!("{b:02x}"));
        }
        out + "'"
    }

    fn hour(&mut self) -> String {
        format!("'2024-03-0{} {:02}:30:00'", self.roll(9) + 1, self.roll(24))
    }

    fn text(&mut self) -> String {
        self.one(&[
            "NULL",
            "''",
            "'a'",
            "'it\\'s'",
            "'back\\\\slash'",
            "'ß'",
            "'ÄÖ'",
            "'日本語'",
            "'😀'",
            "'trail '",
            "'A'",
        ])
    }

    /// Of all columns of `mx.types` but the key.
    pub(super) fn values(&mut self) -> Vec<(&'static str, String)> {
        vec![
            ("ti", self.number("-64", "63")),
            ("tu", self.number("0", "255")),
            ("sm", self.number("-32768", "32767")),
            ("me", self.number("0", "16777215")),
            (
                "bi",
                self.number("-9223372036854775808", "9223372036854775807"),
            ),
            ("bu", self.number("0", "18446744073709551615")),
            (
                "de",
                self.one(&[
                    "0",
                    "-12345678901234567890.0123456789",
                    "1.5",
                    "-0.0000000001",
                    "NULL",
                ]),
            ),
            (
                "f",
                self.one(&[
                    "0.1", "-1e30", "3.4e38", "1e-40", "16777217", "NULL", "-0e0", "-1e-60",
                ]),
            ),
            // The first is then above what a literal may say.
            ("fl", self.one(&["999999.99", "-0.005", "12345.67", "NULL"])),
            (
                "d",
                self.one(&["0.1", "-1e300", "1e-320", "NULL", "0.30000000000000004"]),
            ),
            ("y", self.one(&["1901", "2155", "0", "NULL"])),
            (
                "da",
                self.one(&["'0000-00-00'", "'2024-02-30'", "'9999-12-31'"]),
            ),
            (
                "t0",
                self.one(&["'-838:59:59'", "'00:00:00'", "'12:34:56'"]),
            ),
            (
                "t6",
                self.one(&["'-00:00:00.000001'", "'838:59:58.999999'", "'-12:34:56.5'"]),
            ),
            (
                "dt",
                self.one(&["'0000-00-00 00:00:00'", "'2024-05-05 05:05:05'"]),
            ),
            ("dt3", self.one(&["'2024-05-05 05:05:05.123'", "NULL"])),
            (
                "ts",
                self.one(&[
                    "'2024-05-05 05:05:05'",
                    "'1970-01-02 12:00:01'",
                    "0",
                    "NULL",
                ]),
            ),
            ("ts6", self.one(&["'2030-05-05 05:05:05.654321'", "NULL"])),
            ("bt", self.roll(1 << 17).to_string()),
            ("en", self.one(&["'a'", "'b'", "NULL", "''"])),
            ("se", self.one(&["''", "'x,z'", "'x,y,z'"])),
            ("c", self.one(&["''", "'ab'", "'a b'"])),
            ("vc", self.text()),
            ("l1", self.one(&["''", "'é'", "'ß'", "'it\\'s'"])),
            ("u16", self.text()),
            ("sj", self.one(&["''", "'表'", "'ソ'", "'abc'"])),
            ("bn", self.bytes(8)),
            ("vb", self.bytes(60)),
            ("tx", self.text()),
            ("bl", self.bytes(300)),
            ("js", format!("'{{\"a\": {}}}'", self.roll(99))),
        ]
    }

    /// Statements of one transaction, or one alone.
    fn statements(&mut self, base: u64, i: u64) -> Vec<String> {
        let id = base + self.roll(300);
        let key = self.roll(2000) + 1;
        let parent = self.roll(60);
        let kind = self.roll(100);
        let one = |text: String| vec![text];
        match kind {
            0..14 => {
                let values = self.values();
                let names: Vec<&str> = values.iter().map(|v| v.0).collect();
                let values: Vec<&str> = values.iter().map(|v| v.1.as_str()).collect();
                one(format!(
                    "INSERT IGNORE INTO mx.types (id, {}) VALUES ({id}, {})",
                    names.join(", "),
                    values.join(", ")
                ))
            }
            14..23 => {
                let values = self.values();
                let from = self.roll(29) as usize;
                let set: Vec<String> = values[from..from + 2]
                    .iter()
                    .map(|(n, v)| format!("{n} = {v}"))
                    .collect();
                one(format!(
                    "UPDATE IGNORE mx.types SET {} WHERE id = {id}",
                    set.join(", ")
                ))
            }
            23..26 => one(format!(
                "DELETE FROM mx.types WHERE id BETWEEN {id} AND {}",
                id + 2
            )),
            26..35 => one(format!(
                "INSERT IGNORE INTO mx.u (k, name, n) VALUES ({}, 'n{}', {i}), ({}, {}, {i})",
                self.roll(60),
                self.roll(80),
                self.roll(60),
                self.text()
            )),
            35..40 => one(format!(
                "UPDATE IGNORE mx.u SET k = {}, n = n + 1 WHERE id = {}",
                self.roll(60),
                self.roll(400)
            )),
            40..43 => vec![
                "BEGIN".into(),
                format!("SELECT k INTO @k FROM mx.u WHERE id = {}", i % 50 + 1),
                format!("UPDATE mx.u SET k = NULL WHERE id = {}", i % 50 + 1),
                format!("UPDATE IGNORE mx.u SET k = @k WHERE id = {}", i % 50 + 2),
                "COMMIT".into(),
            ],
            43 => one(format!(
                "DELETE FROM mx.u WHERE id % 17 = {}",
                self.roll(17)
            )),
            44..47 => one(format!(
                "INSERT IGNORE INTO mx.parent VALUES ({parent}, {i})"
            )),
            47..52 => one(format!(
                "INSERT IGNORE INTO mx.child VALUES ({}, {parent})",
                self.roll(300)
            )),
            52..55 => one(format!(
                "INSERT IGNORE INTO mx.orphan VALUES ({}, {parent})",
                self.roll(300)
            )),
            55 => one(format!(
                "UPDATE IGNORE mx.parent SET id = {} WHERE id = {parent}",
                self.roll(60)
            )),
            56 => one(format!("DELETE IGNORE FROM mx.parent WHERE id = {parent}")),
            57..60 => one(format!(
                "INSERT INTO mx.keyless VALUES ({}, 'v{}')",
                self.roll(5),
                self.roll(3)
            )),
            60 => one(format!(
                "UPDATE mx.keyless SET b = 'w{}' WHERE a = {} LIMIT 1",
                self.roll(3),
                self.roll(5)
            )),
            61 => one(format!(
                "DELETE FROM mx.keyless WHERE a = {} LIMIT 1",
                self.roll(5)
            )),
            62..66 => {
                let name = self.one(&["a", "A", "b ", "ß", "ss", "日本", "it\\'s", "\\\\"]);
                one(format!(
                    "INSERT INTO mx.named (k, v) VALUES ('{name}{}', {i}) ON DUPLICATE KEY UPDATE v = v + 1",
                    self.roll(9)
                ))
            }
            66 => one(format!(
                "UPDATE IGNORE mx.named SET k = 'a{}' WHERE k = 'A{}'",
                self.roll(9),
                self.roll(9)
            )),
            67..69 => one(format!(
                "REPLACE INTO mx.pair VALUES ({}, '2024-01-{:02}', {i})",
                self.bytes(6),
                self.roll(20) + 1
            )),
            69 => one(format!(
                "DELETE FROM mx.pair WHERE j = '2024-01-{:02}' LIMIT 2",
                self.roll(20) + 1
            )),
            70 => one(format!(
                "INSERT INTO mx.uuids VALUES (UUID(), '::{:x}', {i})",
                self.roll(65536)
            )),
            71 => one(format!(
                "UPDATE mx.uuids SET v = v + 1 WHERE v % 7 = {} LIMIT 2",
                self.roll(7)
            )),
            72 => one(format!(
                "REPLACE INTO mx.old VALUES ({}, {i})",
                self.roll(50)
            )),
            73 => one(format!(
                "INSERT IGNORE INTO mx.watched VALUES ({}, {i})",
                base + i
            )),
            74..80 => vec![
                "BEGIN".into(),
                format!(
                    "UPDATE mx.hot SET n = n + 1 WHERE id = {}",
                    self.roll(4) + 1
                ),
                format!("UPDATE mx2.t SET v = v + 1 WHERE id = {key}"),
                "COMMIT".into(),
            ],
            80 => {
                let (id, hour, u) = (self.roll(300), self.hour(), self.roll(9));
                vec![
                    format!("INSERT IGNORE INTO mx.local (id, ts, u) VALUES ({id}, {hour}, {u})"),
                    format!("REPLACE INTO mx.indexed (id, ts) VALUES ({id}, {hour})"),
                ]
            }
            81 => {
                let (id, hour) = (self.roll(300), self.hour());
                vec![
                    format!("UPDATE IGNORE mx.local SET ts = {hour} WHERE id = {id}"),
                    format!("UPDATE mx.indexed SET ts = {hour} WHERE id > {id} LIMIT 3"),
                    format!("DELETE FROM mx.indexed WHERE id > {id} LIMIT 1"),
                ]
            }
            82 => vec![
                "SET time_zone = '-03:00'".into(),
                format!(
                    "REPLACE INTO mx.zoned (id, ts) VALUES ({}, {})",
                    self.roll(50),
                    self.hour()
                ),
                "SET time_zone = DEFAULT".into(),
            ],
            83..87 => one(format!(
                "UPDATE mx2.t SET v = v + 1, k = {} WHERE id = {key}",
                self.roll(100)
            )),
            87 => one(format!(
                "UPDATE mx2.t SET v = v + 1 WHERE k = {}",
                self.roll(100)
            )),
            88 => one(format!(
                "REPLACE INTO mx.big VALUES ({}, REPEAT({}, {}))",
                self.roll(5),
                self.bytes(9),
                self.roll(300_000)
            )),
            89 => one(format!(
                "INSERT INTO mx.versions VALUES ({}, {i}) ON DUPLICATE KEY UPDATE v = v + 1",
                self.roll(40)
            )),
            90 if self.roll(3) == 0 => vec![
                format!(
                    "CREATE TABLE IF NOT EXISTS mx.x{} (id INT PRIMARY KEY)",
                    i % 7
                ),
                format!("INSERT IGNORE INTO mx.x{} VALUES ({i})", i % 7),
            ],
            91 if self.roll(3) == 0 => one(format!("DROP TABLE IF EXISTS mx.x{}", i % 7)),
            92 if self.roll(3) == 0 => one(format!(
                "ALTER TABLE mx2.t ADD COLUMN IF NOT EXISTS e{} INT DEFAULT 5",
                self.roll(3)
            )),
            93 if self.roll(3) == 0 => vec![
                "SET binlog_alter_two_phase = 1".into(),
                format!("ALTER TABLE mx2.t DROP COLUMN IF EXISTS e{}", self.roll(3)),
                // Fails while it is under way, often: a value twice.
                "ALTER TABLE mx2.t ADD UNIQUE one_of_each (k)".into(),
                "SET binlog_alter_two_phase = 0".into(),
            ],
            94 if self.roll(3) == 0 => one("TRUNCATE TABLE mx.pair".into()),
            95 => vec![
                "SET @uv = CONCAT(_latin1 'é', RAND())".into(),
                "SET binlog_format = STATEMENT".into(),
                format!(
                    "INSERT INTO mx.u (k, name, n) VALUES (NULL, CONCAT(@uv, {i}, RAND()), {base})"
                ),
                "SET binlog_format = ROW".into(),
            ],
            96 => vec![
                "SET time_zone = '+03:00', binlog_format = STATEMENT".into(),
                format!(
                    "UPDATE mx.types SET ts = FROM_UNIXTIME(1700000000), dt = FROM_UNIXTIME(1700000000) WHERE id = {id}"
                ),
                "SET time_zone = DEFAULT, binlog_format = ROW".into(),
            ],
            97 => vec![
                "BEGIN".into(),
                "SAVEPOINT s".into(),
                "UPDATE mx.hot SET n = n + 1 WHERE id = 1".into(),
                "ROLLBACK TO s".into(),
                "UPDATE mx.hot SET n = n + 1 WHERE id = 2".into(),
                "COMMIT".into(),
            ],
            98 => vec![
                "SET foreign_key_checks = 0".into(),
                format!(
                    "INSERT IGNORE INTO mx.child VALUES ({}, {parent})",
                    1000 + i
                ),
                "SET foreign_key_checks = 1".into(),
            ],
            99 => vec![
                format!(
                    "INSERT INTO mx.u (k, name, n) VALUES (NULL, CONCAT('s', NEXTVAL(mx.sq)), {base})"
                ),
                // What these are made of, a statement says that only names them.
                format!("SELECT CAST({i} AS DECIMAL(20,0)), CAST({i} AS UNSIGNED) INTO @ud, @uu"),
                "SET binlog_format = STATEMENT".into(),
                "CREATE OR REPLACE TABLE mx.typed ENGINE=InnoDB AS SELECT @ud AS d, @uu AS u"
                    .into(),
                "SET binlog_format = ROW".into(),
            ],
            _ => one(format!(
                "UPDATE mx2.t SET k = {} WHERE id = {key}",
                self.roll(100)
            )),
        }
    }
}

/// Runs so many transactions with each of so many clients. Gives the number of statements that
/// succeeded.
pub fn run(server: &Server, clients: u64, count: u64) -> anyhow::Result<u64> {
    let threads: Vec<_> = (1..=clients)
        .map(|client| {
            let mut conn = server.connect("mx")?;
            Ok(thread::spawn(move || -> anyhow::Result<u64> {
                conn.query_drop("SET NAMES utf8mb4, sql_mode = 'ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO', innodb_lock_wait_timeout = 5")?;
                let mut dice = Dice::new(client);
                let mut done = 0;
                for i in 0..count {
                    for statement in dice.statements(client * 100_000, i) {
                        // Some fail, as those of any application.
                        done += u64::from(conn.query_drop(&statement).is_ok());
                    }
                }
                Ok(done)
            }))
        })
        .collect::<anyhow::Result<_>>()?;
    let mut done = 0;
    for thread in threads {
        done += thread
            .join()
            .map_err(|_| anyhow::anyhow!("a client panicked"))??;
    }
    // Chance may have left one of these empty, of which [`computed`] says nothing then.
    server.run(&[
        // Another day in UTC.
        "REPLACE INTO mx.local (id, ts, u) VALUES (1000, '2024-03-05 02:30:00', 1000)",
        "REPLACE INTO mx.indexed (id, ts) VALUES (1000, '2024-03-05 02:30:00')",
        "REPLACE INTO mx.zoned (id, ts) VALUES (1000, '2024-03-05 23:30:00')",
        "DO NEXTVAL(mx.sq)",
    ])?;
    Ok(done)
}
