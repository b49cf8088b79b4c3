//! `dromon bench catchup` on real servers, with backlogs so small that its figures mean nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, ensure};

use super::super::relay::place;
use super::super::relay::plain::program;
use crate::harness::Case;

/// Serial, two others, and the replica with threads that it finds by itself.
const CANDIDATES: usize = 4;
/// Seconds after which a bench is told to end; it then removes its servers.
const LIMIT: &str = "150";

pub fn run(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
    let others = ["--built-in", "none", "--relay", "group"];
    let all = "w1,w2,w3,w4,w5,w6";
    bench(
        case,
        &dir,
        "all",
        &["--workloads", all, "--conditions", "memory"],
        &others,
        6,
    )?;
    // In two parts: the second goes on with what the first has measured.
    let others = [
        "--built-in",
        "optimistic",
        "--relay",
        "none",
        "--workloads",
        "w5",
    ];
    let first = bench(
        case,
        &dir,
        "parts",
        &["--conditions", "slow-commit"],
        &others,
        1,
    )?;
    let conditions = "slow-commit,cache-miss";
    let both = ["--conditions", conditions, "--resume"];
    let second = bench(case, &dir, "parts", &both, &others, 2)?;
    // The serial server needs 20 s and more, and is cut after 5; what is left is compared all the same.
    let slow = ["--workloads", "w1", "--conditions", "slow-commit"];
    let others = [
        "--built-in",
        "none",
        "--relay",
        "group",
        "--fsync-ms",
        "200",
    ];
    let cut = bench(case, &dir, "cut", &slow, &others, 1)?;
    let serial = cut.lines().find(|l| l.contains("serial"));
    ensure!(
        serial.and_then(|l| l.split(',').nth(8)) == Some("1"),
        "the serial server was not cut:\n{cut}"
    );
    ensure!(
        second.starts_with(&first),
        "what was measured first is not there any more:\n{first}\n{second}"
    );
    Ok(())
}

/// Runs it; gives its trials.
fn bench(
    case: &mut Case,
    dir: &Path,
    name: &str,
    what: &[&str],
    others: &[&str],
    panels: usize,
) -> anyhow::Result<String> {
    let out = dir.join(format!("results-{name}"));
    let here = std::env::current_exe().context("finding this program")?;
    let dromon = here.with_file_name("dromon");
    ensure!(
        dromon.is_file(),
        "there is no {}: build it with cargo build --release -p dromon-cli",
        dromon.display()
    );
    let measured = program("timeout")
        .args(["--kill-after=30", LIMIT])
        .arg(&dromon)
        .args(["bench", "catchup"])
        .args(what)
        .args(["--transactions", "100", "--rows", "30000", "--limit", "5"])
        .args(["--threads", "3,auto"])
        .args(others)
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
        "{}: {good} trials, all caught up, their tables as on the primary",
        what.join(" ")
    ));
    Ok(trials)
}
