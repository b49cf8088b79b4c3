//! How long writes stand still when one of three is gone, and what the one that
//! was cut off says to its clients.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::ensure;
use dromon_sandbox::{Cluster, Node, Start};

use super::{Needs, all_back, leader, started};
use crate::check;
use crate::harness::{Case, new_database};
use crate::ledger::{self, Told};
use crate::load::{Session, Sql};
use crate::rng::Rng;

/// The longest pause, and the longest time until a node without a majority
/// refuses, with default options.
const LIMIT: Duration = Duration::from_secs(3);
/// Load before the fault.
const BEFORE: Duration = Duration::from_millis(1500);
/// How long the fault lasts, ours and the peer's (who may take longer). Ours lasts on
/// until each of the others has acknowledged a write: that must be within
/// [`NO_WRITES`], also where times are not judged.
const LASTS: Duration = Duration::from_secs(6);
const NO_WRITES: Duration = Duration::from_secs(60);
const LASTS_PEER: Duration = Duration::from_secs(12);
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Killed,
    Held,
    CutOff,
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Held => "held (SIGSTOP)",
            Self::CutOff => "cut off",
        }
    }
}

/// An answer to a client: when it was asked for, when it came, and whether it
/// was what was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    asked: Instant,
    came: Instant,
    good: bool,
}

/// Each round each fault; the leader in even rounds, a follower in odd ones.
pub fn one_of_three(case: &mut Case) -> anyhow::Result<()> {
    let ours = measure(case, None)?;
    if let Some(peer) = case.options.peer.clone() {
        case.retire_cluster()?;
        let theirs = measure(case, Some(&peer))?;
        for (fault, (a, b)) in FAULTS.iter().zip(ours.iter().zip(&theirs)) {
            case.progress(format!(
                "{}: longest pause of writes {:.2} s, the peer's {:.2} s",
                fault.name(),
                a.as_secs_f64(),
                b.as_secs_f64()
            ));
        }
    }
    Ok(())
}

const FAULTS: [Fault; 3] = [Fault::Killed, Fault::Held, Fault::CutOff];

fn measure(case: &mut Case, peer: Option<&Path>) -> anyhow::Result<[Duration; 3]> {
    let needs = Needs {
        network: true,
        ..Needs::default()
    };
    let cluster = started(case, needs, |spec| {
        if let Some(peer) = peer {
            spec.provider = peer.to_path_buf();
        }
    })?;
    let judged = cluster.record().is_dromon();
    let limit = case.options.limit(LIMIT);
    let table = "CREATE TABLE t (id BIGINT PRIMARY KEY)";
    drop(new_database(cluster.node(0), &case.db, &[table])?);
    check::drained(&cluster)?;
    let rows = Rows::default();
    let mut worst = [Duration::ZERO; 3];
    for round in 0..case.options.rounds {
        let mut rng = Rng::new(case.options.seed + round);
        for (nth, fault) in FAULTS.into_iter().enumerate() {
            let mut victim = leader(&cluster, &mut rng)?;
            if round % 2 == 1 {
                victim = (victim + 1 + rng.below(2) as usize) % 3;
            }
            let before = term(&cluster);
            let seen = once(case, &cluster, victim, fault, &rows, judged)?;
            worst[nth] = worst[nth].max(seen.pause);
            let who = match (judged, seen.led) {
                (false, _) => "a node",
                (true, true) => "the leader",
                (true, false) => "a follower",
            };
            let mut words = format!(
                "{}round {}, {who} {}: writes on the others paused for {:.2} s",
                if judged { "" } else { "the peer, " },
                round + 1,
                fault.name(),
                seen.pause.as_secs_f64()
            );
            if let Some((write, read)) = seen.refused {
                let said = |d: Option<Duration>| {
                    d.map_or("never".into(), |d| {
                        format!("after {:.2} s", d.as_secs_f64())
                    })
                };
                words += &format!(
                    "; the one cut off refused a write {}, a current read {}",
                    said(write),
                    said(read)
                );
                if judged {
                    for (what, time) in [("write", write), ("current read", read)] {
                        ensure!(
                            time.is_some_and(|t| t < limit),
                            "{words}: a {what} must be refused within {} s",
                            limit.as_secs()
                        );
                    }
                }
            }
            ensure!(
                !judged || seen.pause < limit,
                "{words}; the limit is {} s",
                limit.as_secs()
            );
            all_back(&cluster)?;
            check::settled(&cluster, &case.db)?;
            if judged {
                ledger::hold_ids(&cluster, &case.db, "t", &lock(&rows.told))?;
                words += &format!("; terms: {}", term(&cluster) - before);
            }
            case.progress(words);
        }
    }
    Ok(worst)
}

/// The highest term that a node knows; 0: none answers, or has any.
fn term(cluster: &Cluster) -> i64 {
    let terms = cluster.nodes().iter().filter_map(|n| {
        let status = n.status(Duration::from_secs(2)).ok()?;
        status.number("wsrep_dromon_term")
    });
    terms.max().unwrap_or(0)
}

/// The rows of all rounds, and what the clients were told of them.
#[derive(Default, Clone)]
struct Rows {
    last: Arc<AtomicI64>,
    told: Arc<Mutex<Told>>,
}

fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Seen {
    /// Whether the victim led just before it was hurt.
    led: bool,
    /// Longest time without an acknowledged write on one of the other nodes.
    pause: Duration,
    /// From the cut until the node cut off refused a write, and a read.
    refused: Option<(Option<Duration>, Option<Duration>)>,
}

fn once(
    case: &Case,
    cluster: &Arc<Cluster>,
    victim: usize,
    fault: Fault,
    rows: &Rows,
    judged: bool,
) -> anyhow::Result<Seen> {
    let stop = Arc::new(AtomicBool::new(false));
    let written = Arc::new(Written::default());
    let client = |index: usize, reads: bool| {
        let node = Arc::clone(cluster.node(index));
        let (db, rows, stop) = (case.db.clone(), rows.clone(), Arc::clone(&stop));
        let written = Arc::clone(&written);
        thread::spawn(move || {
            ask_until(&stop, &node, &db, move |s| {
                if reads {
                    return s.rows::<i64>("SELECT id FROM t WHERE id = 1").map(drop);
                }
                let id = rows.last.fetch_add(1, Ordering::Relaxed) + 1;
                let counts = written.is_hurt.load(Ordering::Acquire);
                let answer = s.exec(&format!("INSERT INTO t VALUES ({id})"));
                lock(&rows.told).note(id, &answer);
                answer?;
                if counts {
                    written.acknowledged[index].fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })
        })
    };
    let writers: Vec<JoinHandle<Vec<Answer>>> = (0..3).map(|index| client(index, false)).collect();
    let reader = client(victim, true);
    thread::sleep(BEFORE);
    let node = cluster.node(victim);
    let led = judged && leader(cluster, &mut Rng::new(0))? == victim;
    let lasts = if judged { LASTS } else { LASTS_PEER };
    let others: Vec<usize> = (0..3).filter(|i| *i != victim).collect();
    let wait_for = if judged { &others[..] } else { &[] };
    let times = hurt_for(lasts, case, node, victim, fault, &written, wait_for);
    // Whatever came of it, no client goes on.
    stop.store(true, Ordering::Release);
    let mut answers: Vec<Vec<Answer>> = Vec::new();
    for writer in writers {
        answers.push(
            writer
                .join()
                .map_err(|_| anyhow::anyhow!("a client panicked"))?,
        );
    }
    let reads = reader
        .join()
        .map_err(|_| anyhow::anyhow!("a client panicked"))?;
    let (hurt, was_hurt, end) = times?;
    for i in wait_for {
        ensure!(
            good_within(&answers[*i], was_hurt, end) > 0,
            "{} was {}: {} acknowledged no write in {:.1} s",
            node.name(),
            fault.name(),
            cluster.node(*i).name(),
            (end - was_hurt).as_secs_f64()
        );
    }
    let pause = others
        .iter()
        .map(|i| longest_gap(&answers[*i], hurt, end))
        .max()
        .unwrap_or_default();
    if fault == Fault::CutOff {
        for (what, list) in [("write", &answers[victim]), ("current read", &reads)] {
            let wrong = list
                .iter()
                .filter(|a| a.good && a.asked > was_hurt && a.came < end)
                .count();
            // The peer answers from what it has; that is shown by `refused`.
            ensure!(
                !judged || wrong == 0,
                "{} was cut off and {wrong} times said yes to a {what}",
                node.name()
            );
        }
    }
    let refused = (fault == Fault::CutOff).then(|| {
        (
            first_refusal(&answers[victim], hurt, end),
            first_refusal(&reads, hurt, end),
        )
    });
    Ok(Seen {
        led,
        pause,
        refused,
    })
}

/// Writes acknowledged on each node that were asked for while one was hurt.
#[derive(Default)]
struct Written {
    is_hurt: AtomicBool,
    acknowledged: [AtomicU64; 3],
}

/// Hurts a node and mends it again, not before each of those in `wait_for` has
/// acknowledged a write; when it began to be hurt, when it was, and until when.
fn hurt_for(
    lasts: Duration,
    case: &Case,
    node: &Node,
    victim: usize,
    fault: Fault,
    written: &Written,
    wait_for: &[usize],
) -> anyhow::Result<(Instant, Instant, Instant)> {
    let hurt = Instant::now();
    match fault {
        Fault::Killed => node.kill()?,
        Fault::Held => node.pause()?,
        Fault::CutOff => case.network().cut_off(victim)?,
    }
    let was_hurt = Instant::now();
    written.is_hurt.store(true, Ordering::Release);
    thread::sleep(lasts);
    let wrote = |i: &usize| written.acknowledged[*i].load(Ordering::Relaxed) > 0;
    while !wait_for.iter().all(wrote) && was_hurt.elapsed() < NO_WRITES {
        thread::sleep(Duration::from_millis(20));
    }
    // What was counted has not come later.
    let end = Instant::now();
    match fault {
        Fault::Killed => node.start(Start::Join, &[])?,
        Fault::Held => node.resume()?,
        Fault::CutOff => case.network().heal()?,
    }
    Ok((hurt, was_hurt, end))
}

/// Repeats `step` on a node, connecting anew after each error, until it is told to stop.
pub(super) fn ask_until(
    stop: &AtomicBool,
    node: &Node,
    db: &str,
    mut step: impl FnMut(&mut Session) -> Sql<()>,
) -> Vec<Answer> {
    let mut answers = Vec::new();
    let mut session: Option<Session> = None;
    while !stop.load(Ordering::Acquire) {
        let Some(open) = session.as_mut() else {
            session = Session::open_impatient(node, db, 0, ANSWER_LIMIT)
                .ok()
                .and_then(|mut s| {
                    s.exec("SET SESSION wsrep_sync_wait = 1")
                        .is_ok()
                        .then_some(s)
                });
            if session.is_none() {
                thread::sleep(Duration::from_millis(20));
            }
            continue;
        };
        let asked = Instant::now();
        let good = step(open).is_ok();
        answers.push(Answer {
            asked,
            came: Instant::now(),
            good,
        });
        if !good {
            session = None;
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(Duration::from_millis(2));
    }
    answers
}

/// The longest time between two good answers, of which the later came after
/// `from` (or never before `to`).
pub(super) fn longest_gap(answers: &[Answer], from: Instant, to: Instant) -> Duration {
    let (mut last, mut longest) = (None, Duration::ZERO);
    for answer in answers.iter().filter(|a| a.good && a.came <= to) {
        if answer.came > from {
            longest = longest.max(answer.came - last.unwrap_or(from));
        }
        last = Some(answer.came);
    }
    longest.max(to.saturating_duration_since(last.unwrap_or(from)))
}

/// Good answers that were asked for and came between two moments.
fn good_within(answers: &[Answer], from: Instant, to: Instant) -> usize {
    let within = |a: &&Answer| a.good && a.asked > from && a.came <= to;
    answers.iter().filter(within).count()
}

fn first_refusal(answers: &[Answer], from: Instant, to: Instant) -> Option<Duration> {
    answers
        .iter()
        .find(|a| !a.good && a.came > from && a.came < to)
        .map(|a| a.came - from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_measured_over_the_fault_and_to_the_end() {
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let answer = |ms: u64, good| Answer {
            asked: at(ms),
            came: at(ms),
            good,
        };
        let list = [
            answer(0, true),
            answer(800, true),
            answer(1500, false),
            answer(2000, true),
            answer(2100, true),
        ];
        let ms = Duration::from_millis;
        assert_eq!(longest_gap(&list, at(1000), at(2200)), ms(1200));
        assert_eq!(longest_gap(&list, at(1000), at(9100)), ms(7000));
        assert_eq!(longest_gap(&[], at(1000), at(5000)), ms(4000));
        assert_eq!(first_refusal(&list, at(1000), at(9000)), Some(ms(500)));
        assert_eq!(first_refusal(&list, at(1600), at(9000)), None);
        assert_eq!(good_within(&list, at(1000), at(2050)), 1);
        assert_eq!(good_within(&list, at(1000), at(1900)), 0);
    }
}
