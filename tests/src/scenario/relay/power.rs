//! A relay on a disk of its own: killed, and its disk loses power, under load, with semi-sync.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_load::rng::Rng;
use dromon_sandbox::mysql::prelude::Queryable;

use super::plain::{Load, Relay, Server, connect};
use super::{equal, place};
use crate::harness::Case;
use crate::lab::PlainDisk;

/// Kills, and power cuts among them.
const HURTS: u64 = 65;
/// Each so many is a power cut.
const CUT_EACH: u64 = 5;

/// A client that remembers what was acknowledged to it last.
struct Witness {
    stop: Arc<AtomicBool>,
    seqno: Arc<AtomicU64>,
    thread: thread::JoinHandle<anyhow::Result<()>>,
}

impl Witness {
    fn start(primary: &Server) -> Witness {
        let (stop, seqno) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (ends, said, socket) = (Arc::clone(&stop), Arc::clone(&seqno), primary.socket());
        let thread = thread::spawn(move || {
            let mut conn = connect(&socket, "rt")?;
            while !ends.load(Ordering::Acquire) {
                conn.query_drop("INSERT INTO t (client, v) VALUES (1000, 0)")?;
                let gtid: Option<String> = conn.query_first("SELECT @@last_gtid")?;
                let gtid = gtid.context("no GTID")?;
                let seqno = gtid.rsplit('-').next().context("no GTID")?.parse()?;
                said.store(seqno, Ordering::Release);
            }
            Ok(())
        });
        Witness {
            stop,
            seqno,
            thread,
        }
    }

    fn stop(self) -> anyhow::Result<u64> {
        self.stop.store(true, Ordering::Release);
        self.thread
            .join()
            .map_err(|_| anyhow::anyhow!("a client panicked"))??;
        Ok(self.seqno.load(Ordering::Acquire))
    }
}

/// What a relay that cannot reach its primary has.
fn stored(relay: &mut Relay) -> anyhow::Result<u64> {
    relay.start_with("primary=127.0.0.1:1")?;
    let position: String = relay.one("SELECT @@gtid_binlog_pos")?;
    relay.kill()?;
    let seqno = position.rsplit('-').next().unwrap_or_default();
    seqno
        .parse()
        .with_context(|| format!("its position is {position}"))
}

pub fn run(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let mut primary = Server::new(
        &dir,
        "primary",
        1,
        &[
            "--rpl-semi-sync-master-enabled=1",
            "--rpl-semi-sync-master-timeout=600000",
            "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
            "--sync-binlog=0",
        ],
    )?;
    let mut relay = Relay::new(&dir, "relay", 9, primary.port, &["file_size=1M"])?;
    let disk = PlainDisk::make(&dir.join("disk.img"), &relay.dir)?;
    relay.start()?;
    let replica = Server::new(&dir, "replica", 2, &[])?;
    replica.follow(relay.port)?;
    // Before that nothing is committed.
    let until = Instant::now() + Duration::from_secs(30);
    while primary
        .one::<(String, u64)>("SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'")?
        .1
        == 0
    {
        ensure!(
            Instant::now() < until,
            "the relay does not take part in semi-sync"
        );
        thread::sleep(Duration::from_millis(50));
    }
    Load::prepare(&primary)?;
    let load = Load::start(&primary, 2);
    let witness = Witness::start(&primary);
    let mut dice = Rng::new(case.options.seed);
    let (mut cuts, mut acknowledged) = (0, 0);
    for n in 1..=HURTS {
        let reached = load.done.load(Ordering::Relaxed) + 5;
        let until = Instant::now() + Duration::from_secs(60);
        while load.done.load(Ordering::Relaxed) < reached {
            ensure!(
                Instant::now() < until,
                "round {n}: nothing is committed any more"
            );
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(Duration::from_millis(dice.below(250)));
        if n % CUT_EACH == 0 {
            cuts += 1;
            relay.hold()?;
            // Nothing is acknowledged from here on.
            thread::sleep(Duration::from_millis(50));
            let before = witness.seqno.load(Ordering::Acquire);
            disk.power_cut(|| relay.kill())?;
            let have = stored(&mut relay)?;
            ensure!(
                have >= before,
                "round {n}: 0-1-{before} was acknowledged, but after the power cut the relay has up to {have}"
            );
            acknowledged = before;
        } else {
            relay.kill()?;
        }
        relay.start()?;
    }
    let last = witness.stop()?;
    let done = load.stop()?;
    case.note(format!(
        "{done} transactions; the relay killed {} times, its disk without power {cuts} times, the last time with 0-1-{acknowledged} \
         acknowledged and there; in the end 0-1-{last}",
        HURTS - cuts
    ));
    equal(case, &primary, &[&replica], &relay)?;
    relay.kill()?;
    // Before its disk goes.
    primary.kill()?;
    Ok(())
}
