//! A big write set beside small ones.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_load::series;

use super::set_up;
use crate::check;
use crate::harness::Case;
use crate::load::{RETRY, Session, Storm, Writer};

/// How long the small transactions run alone, for comparison.
const ALONE: Duration = Duration::from_secs(4);

type Stamps = Arc<Mutex<Vec<Instant>>>;

/// What the provider's own memory may reach meanwhile, in bytes.
const MEMORY_MAX: u64 = 256 << 20;

/// Three nodes commit small transactions while db1 commits one of `--big-mb`.
/// Their rate is compared from when the write set goes out until it is ordered,
/// as the provider's log says; applying it then holds commit order. Of a
/// provider without these lines: from the big COMMIT to its return.
pub fn beside_small(case: &mut Case) -> anyhow::Result<()> {
    let mb = case.options.big_mb;
    set_up(
        case,
        &[
            "CREATE TABLE small (id INT PRIMARY KEY, v BIGINT NOT NULL)",
            "INSERT INTO small SELECT seq, 0 FROM seq_1_to_300",
            "CREATE TABLE big (id INT PRIMARY KEY, data LONGBLOB NOT NULL)",
        ],
    )?;
    let mut big = Session::open_within(&case.node(0), &case.db, 0, Duration::from_secs(180))?;
    big.exec("SET SESSION innodb_lock_wait_timeout = 180")?;
    let is_dromon = case.cluster().record().is_dromon();
    let mut streamed = Vec::new();
    if is_dromon {
        for node in 0..3 {
            // What it took for earlier ones, and to copy a node, is not this one's.
            case.session(node)?.exec("FLUSH LOCAL STATUS")?;
        }
        streamed = check::streamed(&case.cluster())?;
    }
    let stamps: Vec<Stamps> = (0..3).map(|_| Stamps::default()).collect();
    let mut writers = Vec::new();
    for client in 0..6 {
        let stamps = Arc::clone(&stamps[client % 3]);
        writers.push(Writer::new(&case.node(client % 3), move |s| {
            let id = s.rng.below(300) + 1;
            s.exec(&format!("UPDATE small SET v = v + 1 WHERE id = {id}"))?;
            stamps
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(Instant::now());
            thread::sleep(Duration::from_millis(2)); // leave the machine some air
            Ok(())
        }));
    }
    let zero = Instant::now();
    let storm = Storm::start(&case.db, writers, RETRY)?;
    storm.blow(ALONE);
    let loaded = Instant::now();
    big.exec("BEGIN")?;
    big.exec(&format!(
        "INSERT INTO big SELECT seq, REPEAT(CHAR(97 + seq % 26), 1048576) FROM seq_1_to_{mb}"
    ))
    .context("filling the big transaction")?;
    let marks = Marks::watch(&case.node(0).record().log)?;
    let commit = Instant::now();
    big.exec("COMMIT")
        .context("committing the big transaction")?;
    let end = Instant::now();
    let window = marks.stop();
    storm.blow(Duration::from_secs(2));
    let tally = storm.stop()?;
    check::settled(&case.cluster(), &case.db)?;
    let rows: u64 = super::ask(
        case,
        2,
        "SELECT COUNT(*) FROM big WHERE LENGTH(data) = 1048576",
    )?;
    ensure!(rows == mb, "db3 has {rows} of {mb} big rows");

    case.note(format!(
        "{mb} MB: COMMIT took {:.1} s; {tally}",
        (end - commit).as_secs_f64()
    ));
    let (from, to, what) = match window {
        Some((from, to)) => (from, to, "from certify to delivery"),
        None => (commit, end, "from the big COMMIT to its return"),
    };
    case.note(format!(
        "the window is {:.2} s {what}",
        (to - from).as_secs_f64()
    ));
    let mut held_up = Vec::new();
    let since = |moment: Instant| moment.saturating_duration_since(zero);
    for (index, stamps) in stamps.iter().enumerate() {
        let mut stamps: Vec<Duration> = stamps
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .map(|s| since(*s))
            .collect();
        stamps.sort();
        let alone = series::rate(&stamps, &(since(loaded - ALONE / 2)..since(loaded)));
        let window = since(from)..since(to);
        let beside = series::rate(&stamps, &window);
        let gap = series::longest_gap(&stamps, &window);
        case.note(format!(
            "db{}: {alone:.0} commits/s alone, {beside:.0}/s in the window, longest gap {:.2} s",
            index + 1,
            gap.as_secs_f64()
        ));
        if beside < alone / 2.0 || gap > Duration::from_secs(1) {
            held_up.push(format!("db{}", index + 1));
        }
    }
    for node in 0..3 {
        let status = case.node(node).status(Duration::from_secs(10))?;
        let peak = status.get("wsrep_dromon_memory_peak");
        if !peak.is_empty() {
            case.note(format!(
                "db{}: the provider's memory peak is {peak} bytes",
                node + 1
            ));
            let bytes: u64 = peak.parse().context("wsrep_dromon_memory_peak")?;
            ensure!(
                bytes < MEMORY_MAX,
                "the provider of db{} took {bytes} bytes",
                node + 1
            );
        }
    }
    if is_dromon {
        let now = check::streamed(&case.cluster())?;
        ensure!(
            now.iter().zip(&streamed).all(|(now, before)| now > before),
            "not all nodes applied it in chunks: they had begun {streamed:?} before, and {now:?} behind it"
        );
    }
    ensure!(
        held_up.is_empty() || !case.options.big_strict,
        "the big write set held up the small ones of {}",
        held_up.join(", ")
    );
    Ok(())
}

/// Notes when lines appear in a server's log.
struct Marks {
    stop: mpsc::Sender<()>,
    thread: thread::JoinHandle<(Option<Instant>, Option<Instant>)>,
}

impl Marks {
    fn watch(log: &Path) -> anyhow::Result<Self> {
        let mut file = File::open(log).with_context(|| format!("opening {}", log.display()))?;
        file.seek(SeekFrom::End(0))?;
        let (stop, stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            let (mut text, mut from, mut to) = (String::new(), None, None);
            loop {
                let last = stopped.recv_timeout(Duration::from_millis(5)).is_ok();
                // What cannot be read now is read with the next look.
                let _ = file.read_to_string(&mut text);
                if from.is_none() && text.contains(" goes out in pieces") {
                    from = Some(Instant::now());
                }
                if to.is_none() && text.contains("the large write set is ordered") {
                    to = Some(Instant::now());
                }
                if last {
                    return (from, to);
                }
            }
        });
        Ok(Marks { stop, thread })
    }

    /// From when the write set went out until it was ordered.
    fn stop(self) -> Option<(Instant, Instant)> {
        // The thread listens until this.
        let _ = self.stop.send(());
        let (from, to) = self.thread.join().ok()?;
        Some((from?, to?))
    }
}
