//! sysbench on all nodes at once.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use dromon_load::sysbench::{Sysbench, complaints, figure};

use crate::check;
use crate::harness::Case;

const TABLES: u32 = 4;
const ROWS: u32 = 5000;
const THREADS: u32 = 4;

/// Prepares on db1, runs on all nodes, compares.
pub fn read_write(case: &mut Case) -> anyhow::Result<()> {
    let seconds = case.options.seconds;
    let mut prepare = command(case, 0, Duration::ZERO);
    let out = prepare
        .arg("prepare")
        .output()
        .context("running sysbench (apt-get install sysbench)")?;
    ensure!(
        out.status.success(),
        "sysbench prepare: {}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    check::drained(&case.cluster())?;

    let runs: Vec<Child> = (0..3)
        .map(|node| {
            let mut run = command(case, node, seconds);
            run.arg("run")
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
        notes.push(format!(
            "db{}: {} transactions, {} retried, 95th percentile {} ms, longest {} ms",
            index + 1,
            figure(&text, "transactions:"),
            figure(&text, "ignored errors:"),
            figure(&text, "95th percentile:"),
            figure(&text, "max:")
        ));
    }
    ensure!(
        failures.is_empty(),
        "sysbench met other errors than 1213 and 1020: {}",
        failures.join("; ")
    );
    let seqno = check::settled(&case.cluster(), &case.db)?;
    notes.push(format!(
        "tables equal, all at {seqno}, equal to the engine's checkpoint"
    ));
    notes.into_iter().for_each(|n| case.note(n));
    Ok(())
}

fn command(case: &Case, node: usize, time: Duration) -> Command {
    let run = Sysbench {
        db: &case.db,
        tables: TABLES,
        rows: ROWS,
        threads: THREADS,
        seed: node + 1,
    };
    run.command(&case.cluster().record(), &[node], time)
}
