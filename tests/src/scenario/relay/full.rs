//! A relay whose disk is full, and then is not.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::plain::{Load, Relay, Server, program};
use super::{equal, place};
use crate::harness::Case;
use crate::lab::PlainDisk;

/// Of the relay's disk.
const BYTES: u64 = 2 << 30;
const LIMIT: Duration = Duration::from_secs(90);

/// Takes all room but a little.
fn fill(path: &Path) -> anyhow::Result<()> {
    let dir = path.parent().context("it lies in a directory")?;
    let out = program("df")
        .args(["-B1", "--output=avail"])
        .arg(dir)
        .output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let free = text.split_whitespace().last().unwrap_or_default();
    let free: u64 = free.parse().with_context(|| format!("df said {text}"))?;
    let len = free.saturating_sub(2 << 20).to_string();
    let made = program("fallocate").args(["-l", &len]).arg(path).status()?;
    ensure!(made.success(), "fallocate -l {len}: {made}");
    Ok(())
}

pub fn run(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let primary = Server::new(&dir, "primary", 1, &[])?;
    let mut relay = Relay::new(&dir, "relay", 9, primary.port, &["file_size=1M"])?;
    let _disk = PlainDisk::make_of(BYTES, &dir.join("disk.img"), &relay.dir)?;
    relay.start()?;
    let replica = Server::new(&dir, "replica", 2, &[])?;
    replica.follow(relay.port)?;
    Load::prepare(&primary)?;
    let pid = relay.pid()?;
    let log = dir.join("relay.log");
    let full_file = relay.dir.join("full");
    let mut done = 0;
    for round in 0..2u64 {
        let said = |what: &str| -> anyhow::Result<u64> {
            Ok(fs::read_to_string(&log)?.matches(what).count() as u64)
        };
        let comes = |what: &str| -> anyhow::Result<()> {
            let until = Instant::now() + LIMIT;
            while said(what)? <= round {
                ensure!(Instant::now() < until, "{what}: {}", log.display());
                thread::sleep(Duration::from_millis(100));
            }
            Ok(())
        };
        fill(&full_file)?;
        let load = Load::start(&primary, 3);
        comes("Nothing more is stored")?;
        thread::sleep(Duration::from_secs(6));
        // What it has is served meanwhile.
        let has: String = relay.one("SELECT @@gtid_binlog_pos")?;
        let until = Instant::now() + LIMIT;
        while replica.one::<String>("SELECT @@gtid_slave_pos")? != has {
            ensure!(Instant::now() < until, "the replica did not get {has}");
            thread::sleep(Duration::from_millis(100));
        }
        ensure!(
            said("There is room again")? == round,
            "it began anew without room"
        );
        fs::remove_file(&full_file).context("making room")?;
        comes("There is room again")?;
        thread::sleep(Duration::from_secs(2));
        done += load.stop()?;
        replica.reaches(&primary)?;
        equal(case, &primary, &[&replica], &relay)?;
    }
    ensure!(relay.pid()? == pid, "it is another process");
    ensure!(
        !relay.dir.join("dromon-relay.room").exists(),
        "what it tried the disk with is there still"
    );
    case.note(format!(
        "{done} transactions, the disk full twice: served meanwhile, went on by itself, checksums equal"
    ));
    Ok(())
}
