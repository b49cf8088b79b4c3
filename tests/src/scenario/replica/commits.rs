//! Commits that are under way side by side, and what is left of them by crashes.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::{Replica, equal, grant};
use crate::harness::Case;
use crate::scenario::relay::place;
use crate::scenario::relay::plain::{Load, Server, TABLES};

/// How often replica and target are killed in turn, with each setting.
const KILLS: u64 = 8;

fn commits(target: &Server) -> anyhow::Result<(u64, u64)> {
    let of = |name: &str| {
        target.one::<u64>(&format!(
            "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = '{name}'"
        ))
    };
    Ok((of("Binlog_commits")?, of("Binlog_group_commits")?))
}

pub fn run(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let primary = Server::new(&dir, "primary", 1, &[])?;
    let durable = ["--sync-binlog=1", "--innodb-flush-log-at-trx-commit=1"];
    let mut target = Server::new(&dir, "target", 2, &durable)?;
    grant(&target)?;
    Load::prepare(&primary)?;
    let load = Load::start(&primary, 3);
    thread::sleep(case.options.seconds.min(Duration::from_secs(30)));
    let done = load.stop()?;
    case.note(format!("{done} transactions"));
    let mut killed = false;
    for (what, settings) in [
        ("strict", &["commit_order=strict"][..]),
        ("strict, no binlog", &["commit_order=strict", "binlog=off"]),
        ("group", &["commit_order=group"]),
        (
            "group, merged",
            &["commit_order=group", "merge=3", "mode=optimistic"],
        ),
        // What one leaves the other takes up.
        ("in turn", &["commit_order=group"]),
    ] {
        target.run(&[
            "DROP DATABASE IF EXISTS rt",
            "DROP DATABASE IF EXISTS dromon_replica",
        ])?;
        let all = [&["merge=1", "threads=16"], settings].concat();
        let mut replica = Replica::new(&dir, primary.port, target.port, &all)?;
        let mut hits = 0;
        for n in 0..KILLS {
            let other = match what {
                "in turn" if n % 2 == 1 => &["commit_order=strict"][..],
                _ => &[],
            };
            let after = Duration::from_millis(n * 173 % 700);
            hits += u64::from(replica.kill_amid(&mut target, other, after, n % 3 == 2)?);
        }
        ensure!(hits > 0, "{what}: each of {KILLS} kills came too late");
        let before = commits(&target)?;
        let began = Instant::now();
        ensure!(replica.finish(&[])?, "{what}: {}", replica.log.display());
        let took = began.elapsed().as_secs_f64();
        let after = commits(&target)?;
        equal(&primary, &target, TABLES, what)?;
        let said = replica.said()?;
        killed |= said.contains("and of what follows");
        let wanted: String = primary.one("SELECT @@gtid_binlog_pos")?;
        let have: String = target.one("SELECT gtid_pos FROM dromon_replica.position")?;
        ensure!(have == wanted, "{what}: {have} is said, not {wanted}");
        case.note(format!(
            "{what}: {KILLS} kills, {hits} of them amid, checksums equal; the rest in {took:.1} s, {} commits of the target in {} groups",
            after.0 - before.0,
            after.1 - before.1
        ));
    }
    case.note(match killed {
        true => "a crash left commits ahead of earlier ones; they were known",
        false => "no crash left commits ahead of earlier ones this time",
    });
    Ok(())
}
