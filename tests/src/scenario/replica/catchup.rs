//! `dromon bench catchup` on real servers, with backlogs so small that its figures mean nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, ensure};

use super::super::relay::place;
use super::super::relay::plain::program;
use crate::harness::Case;

/// Serial, the server's optimistic, hints, the replica.
const CANDIDATES: usize = 4;

pub fn run(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
    bench(case, &dir, "w1,w2,w3,w4,w5,w6", "memory", 6)?;
    bench(case, &dir, "w5", "slow-commit,cache-miss", 2)
}

fn bench(
    case: &mut Case,
    dir: &Path,
    workloads: &str,
    conditions: &str,
    panels: usize,
) -> anyhow::Result<()> {
    let out = dir.join(format!("results-{conditions}"));
    let here = std::env::current_exe().context("finding this program")?;
    let dromon = here.with_file_name("dromon");
    ensure!(
        dromon.is_file(),
        "there is no {}: build it with cargo build --release -p dromon-cli",
        dromon.display()
    );
    let measured = program(dromon.to_str().context("a path that is not text")?)
        .args(["bench", "catchup", "--workloads", workloads])
        .args(["--conditions", conditions])
        .args(["--transactions", "150", "--rows", "30000", "--limit", "5"])
        .args(["--threads", "3", "--built-in", "optimistic"])
        .arg("--dir")
        .arg(dir)
        .arg("--out")
        .arg(&out)
        .output()
        .context("running the bench")?;
    let said = String::from_utf8_lossy(&measured.stdout);
    let why = String::from_utf8_lossy(&measured.stderr);
    ensure!(measured.status.success(), "{why}\n{said}");
    let trials = fs::read_to_string(out.join("trials.csv"))?;
    let good = trials.lines().filter(|l| l.contains(",measured,")).count();
    ensure!(good == panels * CANDIDATES, "{good} trials: {trials}");
    let chart = fs::read_to_string(out.join("catchup.svg"))?;
    let drawn = chart.matches("class=\"panel\"").count();
    ensure!(drawn == panels, "{drawn} panels");
    ensure!(said.contains("replica by best built-in"), "no aims: {said}");
    // Nothing of the servers stays.
    for entry in fs::read_dir(dir)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        ensure!(name.starts_with("results-"), "left behind: {name}");
    }
    case.note(format!(
        "{conditions}: {good} trials, all caught up, their tables as on the primary"
    ));
    Ok(())
}
