//! Tables and transactions of the workloads. The transactions are stored procedures, so that one
//! client commits many a second.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::ensure;
use dromon_sandbox::Standalone;

use crate::plan::Workload;
use crate::run::Stop;

/// The bench's database.
pub const DB: &str = "dromon_catchup";
/// All its tables.
pub const TABLES: [&str; 6] = ["t", "hot", "other", "uniq", "parent", "child"];
/// In the order in which they can be made.
const DEFINITIONS: [&str; 6] = [
    "t (id INT PRIMARY KEY, k INT NOT NULL, v BIGINT NOT NULL, pad CHAR(200) NOT NULL, KEY (k))",
    "hot (id INT PRIMARY KEY, n BIGINT NOT NULL)",
    "other (id INT PRIMARY KEY, n BIGINT NOT NULL)",
    "uniq (id INT AUTO_INCREMENT PRIMARY KEY, a INT NOT NULL UNIQUE, b VARCHAR(20) NOT NULL UNIQUE)",
    "parent (id INT PRIMARY KEY, code INT NOT NULL UNIQUE, v BIGINT NOT NULL)",
    "child (id INT PRIMARY KEY, parent INT NOT NULL, u INT NOT NULL UNIQUE, FOREIGN KEY (parent) REFERENCES parent (id) ON DELETE CASCADE)",
];
/// Rows that many transactions take.
const HOT: u64 = 4;
/// Rows of the tables with unique and foreign keys.
const KEYED: u64 = 2_000;
/// Rows of an INSERT while the table is filled.
const STEP: u64 = 10_000;
/// Transactions of a call; a multiple of [`TRUNCATE_EVERY`].
const CALL: u64 = 500;
const TRUNCATE_EVERY: u64 = 50;
/// No statement of preparing may take longer.
const LIMIT: Duration = Duration::from_secs(300);

/// Makes and fills all tables, and the procedure of the workload.
pub fn prepare(
    server: &Standalone,
    workload: Workload,
    rows: u64,
    stop: &Stop,
) -> anyhow::Result<()> {
    let mut conn = server.connect(LIMIT)?;
    let mut run = |sql: &str| server.run(&mut conn, &[sql]);
    run(&format!(
        "CREATE DATABASE {DB} DEFAULT CHARACTER SET latin1"
    ))?;
    run(&format!("USE {DB}"))?;
    for table in DEFINITIONS {
        run(&format!("CREATE TABLE {table} ENGINE=InnoDB"))?;
    }
    run("SET SESSION rand_seed1 = 20, rand_seed2 = 26")?;
    let mut from = 1;
    while from <= rows {
        stop.check()?;
        let to = (from + STEP - 1).min(rows);
        run(&format!(
            "INSERT INTO t SELECT seq, FLOOR(RAND() * {rows}), 0, REPEAT('p', 200) FROM seq_{from}_to_{to}"
        ))?;
        from = to + 1;
    }
    run(&format!(
        "INSERT INTO hot SELECT seq, 0 FROM seq_1_to_{HOT}"
    ))?;
    run(&format!(
        "INSERT INTO uniq (a, b) SELECT seq, CONCAT('b', seq) FROM seq_1_to_{KEYED}"
    ))?;
    run(&format!(
        "INSERT INTO parent SELECT seq, seq, 0 FROM seq_1_to_{KEYED}"
    ))?;
    run(&format!(
        "INSERT INTO child SELECT seq, seq, seq FROM seq_1_to_{KEYED}"
    ))?;
    run(&procedure(workload, rows))?;
    Ok(())
}

/// The client: so many transactions, one after the other.
pub fn commit(server: &Standalone, transactions: u64, stop: &Stop) -> anyhow::Result<()> {
    let mut conn = server.connect(LIMIT)?;
    let seed = "SET SESSION rand_seed1 = 1996, rand_seed2 = 2026";
    server.run(&mut conn, &[&format!("USE {DB}"), seed])?;
    let mut done = 0;
    while done < transactions {
        stop.check()?;
        let count = CALL.min(transactions - done);
        server.run(&mut conn, &[&format!("CALL work({count})")])?;
        done += count;
    }
    Ok(())
}

/// What so many transactions are in the binlog: each is one, and w4 has TRUNCATEs besides. Of w5 some
/// find what they would change as it is already.
#[must_use]
pub fn commits(workload: Workload, transactions: u64) -> RangeInclusive<u64> {
    let all = transactions;
    match workload {
        Workload::W1 | Workload::W2 | Workload::W3 | Workload::W6 => all..=all,
        Workload::W4 => all + all / TRUNCATE_EVERY..=all + all / TRUNCATE_EVERY,
        Workload::W5 => all - all / 20..=all,
    }
}

/// What so many transactions of the workload changed: `v` of all rows of `t` in sum, at least and at
/// most, and `n` of all hot ones. Every change adds 1.
fn changes(workload: Workload, transactions: u64) -> (RangeInclusive<u64>, u64) {
    let all = transactions;
    let exactly = |rows: u64| rows * all..=rows * all;
    match workload {
        Workload::W1 | Workload::W4 => (exactly(1), 0),
        Workload::W2 => (exactly(5), 0),
        Workload::W3 => (exactly(2), all.div_ceil(4)),
        Workload::W5 => (exactly(0), 0),
        Workload::W6 => (all..=8 * all, all),
    }
}

/// Holds the primary's tables against what was to be committed: a backlog that is another than it is
/// said to be would be measured all the same.
///
/// # Errors
/// When they differ.
pub fn check(server: &Standalone, workload: Workload, transactions: u64) -> anyhow::Result<()> {
    let mut conn = server.connect(LIMIT)?;
    let mut sum = |column: &str, table: &str| -> anyhow::Result<u64> {
        let sql = format!("SELECT CAST(SUM({column}) AS UNSIGNED) FROM {DB}.{table}");
        let rows: Vec<Option<u64>> = server.rows(&mut conn, &sql)?;
        Ok(rows.into_iter().next().flatten().unwrap_or_default())
    };
    let (cold, hot) = (sum("v", "t")?, sum("n", "hot")?);
    let (cold_wanted, hot_wanted) = changes(workload, transactions);
    ensure!(
        cold_wanted.contains(&cold) && hot == hot_wanted,
        "Its {transactions} transactions changed {cold} rows of the table and {hot} hot ones, and should have changed {} to {} and {hot_wanted}",
        cold_wanted.start(),
        cold_wanted.end()
    );
    Ok(())
}

/// `work(times)` commits about so many transactions (exactly, but for the TRUNCATEs of w4). In a
/// statement its variables hide columns of the same name: no column has one of theirs.
fn procedure(workload: Workload, rows: u64) -> String {
    let body = match workload {
        Workload::W1 => update(rows),
        Workload::W2 => transaction(&update(rows).repeat(5)),
        Workload::W3 => transaction(&format!(
            "IF i MOD 4 = 0 THEN {} END IF; {}",
            hot(),
            update(rows).repeat(2)
        )),
        Workload::W4 => format!(
            "{} IF i MOD {TRUNCATE_EVERY} = {TRUNCATE_EVERY} - 1 THEN TRUNCATE TABLE other; END IF;",
            update(rows)
        ),
        Workload::W5 => keys(),
        Workload::W6 => transaction(&format!(
            "SET m = 1 + FLOOR(RAND() * 8); WHILE m > 0 DO {} SET m = m - 1; END WHILE; {}",
            update(rows),
            hot()
        )),
    };
    format!(
        "CREATE PROCEDURE work(times INT) BEGIN DECLARE i INT DEFAULT 0; DECLARE m INT; DECLARE x INT; DECLARE y INT; \
         WHILE i < times DO {body} SET i = i + 1; END WHILE; END"
    )
}

fn transaction(statements: &str) -> String {
    format!("START TRANSACTION; {statements} COMMIT;")
}

/// Of a row by chance: both indexes change.
fn update(rows: u64) -> String {
    // Variables, as RAND() in a condition is another number for each row.
    format!(
        "SET x = 1 + FLOOR(RAND() * {rows}); SET y = FLOOR(RAND() * {rows}); UPDATE t SET v = v + 1, k = y WHERE id = x; "
    )
}

fn hot() -> String {
    format!("SET x = 1 + FLOOR(RAND() * {HOT}); UPDATE hot SET n = n + 1 WHERE id = x;")
}

/// In turns: a unique value leaves and another row takes it (two transactions); a child goes to
/// another parent; a parent is there with a new child; a parent goes with its children and comes
/// back with one; a parent changes.
fn keys() -> String {
    format!(
        "SET x = 1 + FLOOR(RAND() * {KEYED}); SET y = 1 + FLOOR(RAND() * {KEYED}); \
         CASE i MOD 6 \
         WHEN 0 THEN SET @gone = x; DELETE FROM uniq WHERE a = x; \
         WHEN 1 THEN INSERT INTO uniq (a, b) VALUES (@gone, CONCAT('b', @gone)) ON DUPLICATE KEY UPDATE b = CONCAT('c', i, '-', @gone); \
         WHEN 2 THEN REPLACE INTO child VALUES (x, y, x); \
         WHEN 3 THEN START TRANSACTION; UPDATE parent SET v = v + 1 WHERE id = x; REPLACE INTO child VALUES (y, x, y); COMMIT; \
         WHEN 4 THEN START TRANSACTION; DELETE FROM parent WHERE id = x; INSERT INTO parent VALUES (x, x, i); \
           REPLACE INTO child VALUES (x, x, x); COMMIT; \
         ELSE UPDATE parent SET v = v + 1 WHERE id = x; END CASE;"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_keep_the_rhythm_of_the_truncates() {
        assert_eq!(CALL % TRUNCATE_EVERY, 0);
        assert_eq!(CALL % 4, 0, "every fourth takes a hot row, across calls");
    }

    #[test]
    fn no_column_is_hidden_by_a_variable() {
        let text = procedure(Workload::W1, 9);
        let words: Vec<&str> = text.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        let mut variables: Vec<&str> = words
            .windows(2)
            .filter(|w| w[0] == "DECLARE" || w[0] == "work")
            .map(|w| w[1])
            .collect();
        variables.extend(
            text.split_once("work(")
                .and_then(|(_, rest)| rest.split(' ').next()),
        );
        for one in ["times", "i", "m", "x", "y"] {
            assert!(
                variables.contains(&one),
                "{one} is not found: {variables:?}"
            );
        }
        for definition in DEFINITIONS {
            let (table, columns) = definition.split_once(" (").expect("columns");
            let names = columns.split(", ").filter_map(|c| c.split(' ').next());
            for name in names {
                assert!(!variables.contains(&name), "{name} of {table}");
            }
        }
    }

    #[test]
    fn what_a_backlog_changes_is_known() {
        assert_eq!(changes(Workload::W1, 100), (100..=100, 0));
        assert_eq!(changes(Workload::W3, 102), (204..=204, 26));
        assert_eq!(changes(Workload::W6, 100), (100..=800, 100));
    }

    #[test]
    fn each_workload_does_what_it_is_said_to_do() {
        let count = |workload, word: &str| procedure(workload, 1000).matches(word).count();
        assert_eq!(count(Workload::W1, "UPDATE t "), 1);
        assert_eq!(count(Workload::W2, "UPDATE t "), 5);
        assert_eq!(count(Workload::W3, "UPDATE t "), 2);
        for hot in [Workload::W3, Workload::W6] {
            assert_eq!(count(hot, "UPDATE hot "), 1);
            assert!(hot.is_hot());
        }
        assert_eq!(count(Workload::W4, "TRUNCATE"), 1);
        assert_eq!(count(Workload::W5, "INTO uniq"), 1);
        assert_eq!(count(Workload::W5, "FROM parent"), 1);
        assert_eq!(count(Workload::W5, "INTO child"), 3);
        let w3 = procedure(Workload::W3, 9);
        assert!(w3.find("UPDATE hot") < w3.find("UPDATE t "));
        let w6 = procedure(Workload::W6, 9);
        assert!(w6.find("UPDATE hot") > w6.find("UPDATE t "));
    }
}
