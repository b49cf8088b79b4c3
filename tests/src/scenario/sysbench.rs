//! sysbench on all nodes at once.

use std::process::{Child, Stdio};

use anyhow::{Context, ensure};
use dromon_load::sysbench::{Sysbench, complaints, figure};

use super::floors;
use crate::check;
use crate::harness::Case;

const TABLES: u32 = 4;
const ROWS: u32 = 5000;
const THREADS: u32 = 4;

/// Prepares on db1, runs on all nodes, compares.
pub fn read_write(case: &mut Case) -> anyhow::Result<()> {
    let seconds = case.options.seconds;
    load(case, 0).prepare(&case.cluster().record())?;
    check::drained(&case.cluster())?;

    let runs: Vec<Child> = (0..3)
        .map(|node| {
            load(case, node)
                .command(&case.cluster().record(), &[node], seconds)
                .context("making a pipe")?
                .arg("run")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .context("running sysbench")
        })
        .collect::<anyhow::Result<_>>()?;
    let mut notes = Vec::new();
    let mut failures = Vec::new();
    for (index, run) in runs.into_iter().enumerate() {
        let out = run.wait_with_output()?;
        let mut text = String::from_utf8_lossy(&out.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&out.stderr));
        if !out.status.success() {
            failures.push(format!("db{}: {}", index + 1, complaints(&text)));
        }
        let done = figure(&text, "transactions:");
        // Without the transactions of its own figures there are none that it knows of.
        if done.parse().unwrap_or(0) < floors::least(seconds) {
            failures.push(format!("db{}: {done} transactions", index + 1));
        }
        notes.push(format!(
            "db{}: {done} transactions, {} retried, 95th percentile {} ms, longest {} ms",
            index + 1,
            figure(&text, "ignored errors:"),
            figure(&text, "95th percentile:"),
            figure(&text, "max:")
        ));
    }
    ensure!(
        failures.is_empty(),
        "sysbench met other errors than 1213 and 1020, or did next to nothing: {}",
        failures.join("; ")
    );
    let seqno = check::settled(&case.cluster(), &case.db)?;
    notes.push(format!(
        "tables equal, all at {seqno}, equal to the engine's checkpoint"
    ));
    notes.into_iter().for_each(|n| case.note(n));
    Ok(())
}

/// The load of one node.
fn load(case: &Case, node: usize) -> Sysbench<'_> {
    Sysbench {
        db: &case.db,
        tables: TABLES,
        rows: ROWS,
        threads: THREADS,
        seed: node + 1,
    }
}
