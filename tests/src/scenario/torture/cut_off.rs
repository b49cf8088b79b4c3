//! A node is cut off while an applier of it has a part of a large transaction whose place
//! has not come. It comes back by itself and goes on with it, or is stopped and started.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_sandbox::{Cluster, Start, StopReport};

use super::origin::{How, Large, fill, small_ones};
use super::{Needs, all_back, seconds, started};
use crate::check;
use crate::harness::Case;
use crate::load::Session;
use crate::rng::Rng;

/// Until the one cut off and the others know.
const KNOWN: Duration = Duration::from_secs(60);
/// A server that is told to end does.
const STOPS: Duration = Duration::from_secs(120);
/// What has its place when a node is cut off needs no longer.
const THROUGH: Duration = Duration::from_millis(500);

/// In even rounds it comes back by itself, in odd ones it is stopped meanwhile.
pub fn amid_large(case: &mut Case) -> anyhow::Result<()> {
    let needs = Needs {
        network: true,
        ..Needs::default()
    };
    let cluster = started(case, needs, |_| {})?;
    fill(&cluster, &case.db, case.options.large_rows)?;
    let ids = Arc::new(AtomicI64::new(1));
    let mut waited = 0;
    for round in 0..case.options.rounds {
        let stops = round % 2 == 1;
        let seen = once(case, &cluster, round, stops, &ids)
            .with_context(|| format!("round {}", round + 1))?;
        waited += u64::from(seen.waits);
        case.progress(format!(
            "round {}: cut off with {} parts of it, {}; {}, usable {} later; the large one {}; all equal",
            round + 1,
            seen.parts,
            match seen.waits {
                true => "one waited for its place",
                false => "none waited for its place",
            },
            match stops {
                true => "stopped, and started when it could reach the others",
                false => "left out by the others, it came back by itself",
            },
            seconds(seen.back),
            seen.ended,
        ));
    }
    case.progress(format!(
        "a part waited for its place in {waited} of {} rounds",
        case.options.rounds
    ));
    ensure!(
        waited > 0 || case.options.rounds < 4,
        "nothing waited for its place in any round: what this is for was not tried"
    );
    Ok(())
}

struct Seen {
    parts: u64,
    /// Whether a part that was begun waited for its place when it was cut off.
    waits: bool,
    back: Duration,
    ended: String,
}

fn once(
    case: &Case,
    cluster: &Arc<Cluster>,
    round: u64,
    stops: bool,
    ids: &Arc<AtomicI64>,
) -> anyhow::Result<Seen> {
    let mut rng = Rng::new(case.options.seed + round);
    let victim = (round % 3) as usize;
    let (origin, other) = ((victim + 1) % 3, (victim + 2) % 3);
    let stop = Arc::new(AtomicBool::new(false));
    // Small ones, so that places lie ahead.
    let nodes = [origin, other, other].map(|i| cluster.node(i));
    let writers = small_ones(&nodes, &case.db, ids, &stop);
    let large = Large::start(
        cluster.node(origin),
        &case.db,
        How::Automatic,
        round as u32 + 1,
    )?;
    let wanted = 3 + round % 4;
    let parts = large.watch(cluster.node(victim), |parts| parts >= wanted)?;
    thread::sleep(Duration::from_millis(rng.below(30)));
    case.network().cut_off(victim)?;
    let result = away(case, cluster, victim, stops);
    stop.store(true, Ordering::Release);
    for writer in writers {
        let answers = writer.join();
        ensure!(answers.is_ok(), "a client panicked");
    }
    let (waits, back) = result?;
    ensure!(
        parts >= wanted,
        "it was over when only {parts} parts of it had been seen: nothing was cut off amid it; it must be larger"
    );
    let told = large.ended();
    check::nothing_open(cluster, KNOWN)?;
    check::settled(cluster, &case.db)?;
    let changed: i64 = Session::open(cluster.node(other), &case.db, 0)?
        .one(&format!("SELECT COUNT(*) FROM big WHERE v = {}", round + 1))?
        .context("no count")?;
    let rows = case.options.large_rows;
    ensure!(
        explains(told.is_ok(), changed as u64, rows),
        "{changed} of {rows} rows have what the large one wrote, whose client was told {told:?}"
    );
    let ended = match told {
        Ok(()) => "committed".to_owned(),
        Err(e) => format!("did not: {e:#}"),
    };
    Ok(Seen {
        parts,
        waits,
        back,
        ended,
    })
}

/// Whether `changed` of `rows` rows may be what a client left that was told so.
fn explains(committed: bool, changed: u64, rows: u64) -> bool {
    changed == rows || changed == 0 && !committed
}

/// From when it is cut off until it is back: whether a part waits there, and how long it
/// takes from when the others can be reached.
fn away(
    case: &Case,
    cluster: &Cluster,
    victim: usize,
    stops: bool,
) -> anyhow::Result<(bool, Duration)> {
    let (cut, others) = (cluster.node(victim), cluster.node((victim + 1) % 3));
    cut.wait_for("non-Primary", KNOWN, |s| {
        s.get("wsrep_cluster_status") != "Primary"
    })?;
    // What had its place is through by now.
    thread::sleep(THROUGH);
    let waits = cut.status(KNOWN)?.number("wsrep_dromon_chunks_ahead") > Some(0);
    if stops {
        let ended = cut.stop(STOPS)?;
        ensure!(
            matches!(ended, StopReport::Ended { .. }),
            "{} did not end by itself when it was cut off: {ended:?}",
            cut.name()
        );
    } else {
        others.wait_for("two members", KNOWN, |s| s.size() == 2)?;
    }
    case.network().heal()?;
    let healed = Instant::now();
    if stops {
        cut.start(Start::Join, &[])?;
    }
    all_back(cluster)?;
    Ok((waits, healed.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_it_is_never_right() {
        assert!(explains(true, 10, 10) && explains(false, 10, 10) && explains(false, 0, 10));
        assert!(!explains(true, 0, 10) && !explains(true, 4, 10) && !explains(false, 4, 10));
    }
}
