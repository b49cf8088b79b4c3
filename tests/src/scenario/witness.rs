//! Two data nodes and a witness: any one of the three may die.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_sandbox::{Cluster, JoinPlan, Start, Witness};

use super::outage::{BACK_LIMIT, TABLE, nothing_lost, written_after};
use crate::check;
use crate::harness::{Case, JOIN_LIMIT, new_database};
use crate::load::{RETRY, Session, code};

/// Clients on each data node.
const CLIENTS: u64 = 3;
/// How long nobody may be acknowledged after one of the three is killed.
const PAUSE_LIMIT: Duration = Duration::from_secs(15);

/// Each of the three is killed under load and started again, then all of them.
/// No acknowledged row is missing, and the tables are equal.
pub fn each_dies(case: &mut Case) -> anyhow::Result<()> {
    let program = program()?;
    let cluster = case.own_cluster(|spec| {
        *spec = spec.clone().set("innodb_flush_log_at_trx_commit", "0");
        spec.nodes = 2;
        spec.tls = true;
        spec.witness = Some(program);
    })?;
    let witness = Arc::clone(cluster.witness().context("a witness was asked for")?);
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    drop(new_database(cluster.node(0), &case.db, &[TABLE])?);
    let time = (case.options.seconds / 4).clamp(Duration::from_secs(2), Duration::from_secs(20));
    let load = Load::start(&cluster, &case.db);
    let result = one_by_one(case, &cluster, &witness, &load, time);
    let before = load.count();
    let killed = result.and_then(|()| {
        load.ending.store(true, Ordering::Release);
        cluster.kill_all().map_err(anyhow::Error::from)
    });
    let acknowledged = load.stop();
    killed?;
    ensure!(before > 300, "only {before} rows were acknowledged");

    // One data node and the witness are a majority; the other node comes later.
    witness.start(&[])?;
    cluster.node(1).start(Start::Join, &[])?;
    let back = written_after(Instant::now(), cluster.node(1), &case.db, -1)?;
    nothing_lost(cluster.node(1), &case.db, &acknowledged)?;
    cluster.node(0).start(Start::Join, &[])?;
    three(&cluster)?;
    check::settled(&cluster, &case.db)?;
    for node in cluster.nodes() {
        nothing_lost(node, &case.db, &acknowledged)?;
    }
    case.note(format!(
        "all three killed; db2 and the witness started: written to again after {:.1} s; then db1: {} acknowledged rows, \
         0 lost, tables equal",
        back.as_secs_f64(),
        acknowledged.len()
    ));
    check::whole(&cluster)
}

/// The witness dies and its disk with it, under load; started again without a log, it
/// becomes a member as if for the first time. Then db1 dies: db2 and it are a majority.
pub fn disk_lost(case: &mut Case) -> anyhow::Result<()> {
    let program = program()?;
    let cluster = case.own_cluster(|spec| {
        spec.nodes = 2;
        spec.witness = Some(program);
    })?;
    let witness = Arc::clone(cluster.witness().context("a witness was asked for")?);
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    three(&cluster)?;
    drop(new_database(cluster.node(0), &case.db, &[TABLE])?);
    let load = Load::start(&cluster, &case.db);
    let result = without_its_log(case, &cluster, &witness, &load);
    let acknowledged = load.stop();
    result?;
    three(&cluster)?;
    check::settled(&cluster, &case.db)?;
    for node in cluster.nodes() {
        nothing_lost(node, &case.db, &acknowledged)?;
    }
    case.note(format!(
        "{} acknowledged rows, 0 lost, tables equal",
        acknowledged.len()
    ));
    check::whole(&cluster)
}

fn without_its_log(
    case: &mut Case,
    cluster: &Arc<Cluster>,
    witness: &Arc<Witness>,
    load: &Load,
) -> anyhow::Result<()> {
    let more = |wanted: usize, what: &str| -> anyhow::Result<()> {
        let (before, since) = (load.count(), Instant::now());
        while load.count() < before + wanted {
            ensure!(
                since.elapsed() < PAUSE_LIMIT * 2,
                "only {} rows were acknowledged {what}",
                load.count() - before
            );
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    };
    more(200, "with all three")?;
    witness.kill()?;
    let disk = witness.record().dir.join("log");
    let files = std::fs::read_dir(&disk)
        .with_context(|| disk.display().to_string())?
        .count();
    ensure!(
        files > 0,
        "the witness had nothing in {}: nothing would be shown",
        disk.display()
    );
    std::fs::remove_dir_all(&disk)?;
    more(100, "without the witness")?;
    let (began, before) = (Instant::now(), times_joined(witness));
    witness.start(&[])?;
    while times_joined(witness) == before {
        ensure!(
            began.elapsed() < BACK_LIMIT,
            "the witness did not become a member again: {}",
            witness.log_tail(20)
        );
        thread::sleep(Duration::from_millis(50));
    }
    three(cluster)?;
    let back = began.elapsed();
    // The vote of the life that was lost must not count beside the new one's.
    let dead = cluster.node(0);
    dead.kill()?;
    load.forget_pause();
    more(100, "by db2 and the witness without its old log")?;
    let pause = load.pause();
    dead.start(Start::Join, &[])?;
    dead.wait_usable(JOIN_LIMIT)?;
    more(100, "with all three again")?;
    case.note(format!(
        "the witness's {files} files removed; a member again after {:.1} s; then db1 killed: longest pause {:.1} s",
        back.as_secs_f64(),
        pause.as_secs_f64()
    ));
    Ok(())
}

/// Kills db1, db2 and the witness in turn; the others go on, and it comes back.
fn one_by_one(
    case: &mut Case,
    cluster: &Arc<Cluster>,
    witness: &Arc<Witness>,
    load: &Load,
    time: Duration,
) -> anyhow::Result<()> {
    for victim in ["db1", "db2", "witness"] {
        thread::sleep(time);
        load.forget_pause();
        let before = load.count();
        let node = cluster.nodes().iter().find(|n| n.name() == victim);
        match node {
            Some(node) => node.kill()?,
            None => witness.kill()?,
        }
        let since = Instant::now();
        while load.count() < before + 100 {
            ensure!(
                since.elapsed() < PAUSE_LIMIT,
                "{} rows were acknowledged within {PAUSE_LIMIT:?} after {victim} was killed",
                load.count() - before
            );
            thread::sleep(Duration::from_millis(50));
        }
        thread::sleep(time);
        let pause = load.pause();
        let meanwhile = load.count() - before;
        let began = Instant::now();
        match node {
            Some(node) => node.start(Start::Join, &[])?,
            None => {
                let before = times_joined(witness);
                witness.start(&[])?;
                // Soon killed again, it may never have been removed.
                while times_joined(witness) == before {
                    ensure!(
                        began.elapsed() < BACK_LIMIT,
                        "the witness did not come back: {}",
                        witness.log_tail(20)
                    );
                    thread::sleep(Duration::from_millis(50));
                }
            }
        }
        three(cluster)?;
        case.note(format!(
            "{victim} killed: {meanwhile} rows acknowledged without it, longest pause {:.1} s; back after {:.1} s",
            pause.as_secs_f64(),
            began.elapsed().as_secs_f64()
        ));
    }
    Ok(())
}

/// How often the witness has said that it is a member.
fn times_joined(witness: &Witness) -> usize {
    let text = std::fs::read_to_string(witness.record().log).unwrap_or_default();
    text.matches("member of the cluster: votes").count()
}

/// The `dromon` program beside this one.
fn program() -> anyhow::Result<PathBuf> {
    let here = std::env::current_exe().context("finding this program")?;
    let path = here.with_file_name("dromon");
    ensure!(
        path.is_file(),
        "there is no {}: build it with cargo build --release -p dromon-cli",
        path.display()
    );
    Ok(path)
}

/// Waits until both nodes serve clients and see three members.
fn three(cluster: &Cluster) -> anyhow::Result<()> {
    for node in cluster.nodes() {
        node.wait_for("one of three members", BACK_LIMIT, |s| {
            s.is_usable() && s.size() == 3 && s.number("wsrep_dromon_voters") == Some(3)
        })?;
    }
    Ok(())
}

/// Clients that insert, whatever happens to their nodes.
struct Load {
    stop: Arc<AtomicBool>,
    /// Everything is about to be killed: what fails is not tried again.
    ending: Arc<AtomicBool>,
    book: Arc<Mutex<Book>>,
    threads: Vec<JoinHandle<()>>,
}

struct Book {
    acknowledged: BTreeSet<i64>,
    last: Instant,
    /// The longest time without an acknowledgement since it was forgotten.
    pause: Duration,
}

impl Load {
    fn start(cluster: &Arc<Cluster>, db: &str) -> Self {
        let mut load = Load {
            stop: Arc::default(),
            ending: Arc::default(),
            book: Arc::new(Mutex::new(Book {
                acknowledged: BTreeSet::new(),
                last: Instant::now(),
                pause: Duration::ZERO,
            })),
            threads: Vec::new(),
        };
        for (n, node) in cluster.nodes().iter().enumerate() {
            for c in 0..CLIENTS {
                let (node, db) = (Arc::clone(node), db.to_owned());
                let (stop, ending) = (load.stop.clone(), load.ending.clone());
                let book = load.book.clone();
                let base = ((n as u64 * CLIENTS + c) * 100_000_000) as i64;
                load.threads.push(thread::spawn(move || {
                    let mut session = None;
                    for id in base.. {
                        if stop.load(Ordering::Acquire) {
                            return;
                        }
                        if session.is_none() && !ending.load(Ordering::Acquire) {
                            session =
                                Session::open_within(&node, &db, 0, Duration::from_secs(30)).ok();
                        }
                        let Some(open) = session.as_mut() else {
                            thread::sleep(Duration::from_millis(50));
                            continue;
                        };
                        match open.exec(&format!("INSERT INTO t VALUES ({id}, {n})")) {
                            Ok(_) => note(&book, id),
                            Err(e) if code(&e).is_some_and(|c| RETRY.contains(&c)) => {}
                            // Its outcome is unknown: it may be there or not.
                            Err(_) => {
                                session = None;
                                thread::sleep(Duration::from_millis(20));
                            }
                        }
                    }
                }));
            }
        }
        load
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> usize {
        self.book().acknowledged.len()
    }

    fn forget_pause(&self) {
        let mut book = self.book();
        book.pause = Duration::ZERO;
        book.last = Instant::now();
    }

    fn pause(&self) -> Duration {
        let book = self.book();
        book.pause.max(book.last.elapsed())
    }

    fn stop(self) -> BTreeSet<i64> {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads {
            thread.join().expect("a client does not panic");
        }
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut book.acknowledged)
    }
}

fn note(book: &Mutex<Book>, id: i64) {
    let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    book.pause = book.pause.max(now.duration_since(book.last));
    book.last = now;
    book.acknowledged.insert(id);
}
