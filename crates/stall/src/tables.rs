//! The tables of the experiment.

use std::time::Duration;

use anyhow::Context;
use dromon_load::rest;
use dromon_load::storm::Session;
use dromon_sandbox::Cluster;

use crate::plan::Large;

/// The experiment's database; removed at its end.
pub const DB: &str = "dromon_stall";
/// Tables of the small transactions: s1, s2, …
pub const SMALL_TABLES: u64 = 4;
/// Rows in each.
pub const SMALL_ROWS: u64 = 1_000;
/// Rows per INSERT while the big table is filled.
const STEP: u64 = 10_000;
/// Bytes of a line for LOAD DATA: id, comma, v, comma, 100 of filling, end.
const LINE: u64 = 10 + 1 + 10 + 1 + 100 + 1;
/// No step of preparing may take longer.
const LIMIT: Duration = Duration::from_secs(120);

/// Makes and fills all tables, on the first node.
pub fn make(cluster: &Cluster, large: Large) -> anyhow::Result<()> {
    let mut session = Session::open_within(cluster.node(0), "", 0, LIMIT)?;
    let mut exec = |sql: &str| {
        session
            .exec(sql)
            .with_context(|| format!("preparing the tables: {sql}"))
    };
    exec(&format!("DROP DATABASE IF EXISTS {DB}"))?;
    exec(&format!("CREATE DATABASE {DB}"))?;
    exec(&format!("USE {DB}"))?;
    for table in 1..=SMALL_TABLES {
        exec(&format!(
            "CREATE TABLE s{table} (id INT PRIMARY KEY, v BIGINT NOT NULL, pad CHAR(60) NOT NULL)"
        ))?;
        exec(&format!(
            "INSERT INTO s{table} SELECT seq, 0, REPEAT('s', 60) FROM seq_1_to_{SMALL_ROWS}"
        ))?;
    }
    exec("CREATE TABLE big (id INT PRIMARY KEY, v INT NOT NULL, pad CHAR(100) NOT NULL)")?;
    if let Large::Update { rows } = large {
        let mut from = 1;
        while from <= rows {
            let to = (from + STEP - 1).min(rows);
            exec(&format!(
                "INSERT INTO big SELECT seq, 0, REPEAT('b', 100) FROM seq_{from}_to_{to}"
            ))?;
            from = to + 1;
        }
    }
    rest::at_rest(cluster).map(drop)
}

/// Empties what the large one fills; an UPDATE needs nothing. Has extremes begin anew on all nodes: what the
/// tables took is not the large one's.
pub fn renew(cluster: &Cluster, large: Large) -> anyhow::Result<()> {
    if let Large::Load { .. } = large {
        let mut session = Session::open_within(cluster.node(0), DB, 0, LIMIT)?;
        session.exec("TRUNCATE TABLE big")?;
    }
    for node in cluster.nodes() {
        Session::open_within(node, DB, 0, LIMIT)?.exec("FLUSH LOCAL STATUS")?;
    }
    Ok(())
}

/// Removes the database.
pub fn remove(cluster: &Cluster) -> anyhow::Result<()> {
    let mut session = Session::open_within(cluster.node(0), "", 0, LIMIT)?;
    session.exec(&format!("DROP DATABASE IF EXISTS {DB}"))?;
    Ok(())
}

/// The statement of the large transaction; `generation` is what it writes.
pub fn statement(large: Large, generation: u32) -> String {
    match large {
        Large::Update { .. } => format!("UPDATE big SET v = {generation}"),
        Large::Load { .. } => {
            "LOAD DATA LOCAL INFILE 'generated' INTO TABLE big FIELDS TERMINATED BY ','".into()
        }
    }
}

/// Gives 1 once a node shows the large transaction of this generation.
pub fn probe(large: Large, generation: u32) -> String {
    let last = rows(large);
    format!("SELECT COUNT(*) FROM {DB}.big WHERE id = {last} AND v = {generation}")
}

/// Rows that the large one changes.
pub fn rows(large: Large) -> u64 {
    match large {
        Large::Update { rows } => rows,
        Large::Load { bytes } => (bytes / LINE).max(1),
    }
}

/// Writes the file that LOAD DATA reads.
pub fn write_lines(
    stream: &mut dyn std::io::Write,
    rows: u64,
    generation: u32,
) -> std::io::Result<()> {
    // Whole packets: the stream sends one for each 4 KiB.
    let mut text = Vec::with_capacity(128 << 10);
    let filling = "l".repeat(100);
    for id in 1..=rows {
        std::io::Write::write_fmt(
            &mut text,
            format_args!("{id:010},{generation:010},{filling}\n"),
        )?;
        if text.len() >= 64 << 10 || id == rows {
            stream.write_all(&text)?;
            text.clear();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_size_asked_for() {
        let large = Large::Load { bytes: 1 << 20 };
        let mut file = Vec::new();
        write_lines(&mut file, rows(large), 3).expect("memory takes it");
        assert!(file.len() <= 1 << 20 && file.len() > (1 << 20) - 200);
        let text = String::from_utf8(file).expect("text");
        assert_eq!(text.lines().count() as u64, rows(large));
        let last: Vec<&str> = text.lines().last().expect("a line").split(',').collect();
        assert_eq!(last[0].parse(), Ok(rows(large)));
        assert_eq!(last[1].parse(), Ok(3));
        assert!(probe(large, 3).ends_with(&format!("id = {} AND v = 3", rows(large))));
    }
}
