//! One UPDATE of very many rows beside small transactions: streamed by the provider it keeps them less than whole.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_load::series;

use super::set_up;
use crate::check;
use crate::harness::Case;
use crate::load::{RETRY, Session, Storm, Writer};

/// Rows of the large transaction.
const ROWS: u64 = 300_000;
/// Rows that one INSERT fills in.
const STEP: u64 = 20_000;
/// Rows of the small ones.
const FEW: u64 = 300;
/// How long the small ones run before the large one begins.
const BEFORE: Duration = Duration::from_secs(1);
/// No statement may take longer, and no node to show what was committed.
const LIMIT: Duration = Duration::from_secs(120);
/// Bytes of changes above which a transaction is streamed; 0: never.
const SIZE: &str = "dromon.auto_stream_size";
/// What it is where nobody has set it: then it is not listed.
const SIZE_ALONE: &str = "16M";
/// Which of these are under way.
const OPEN: &str = "wsrep_dromon_large_open";

/// What was seen of a large transaction.
struct Seen {
    /// From its begin until all nodes showed it.
    took: Duration,
    /// The longest time in which the small ones of a node committed nothing.
    gap: Duration,
    small: u64,
    /// Whether each node named it while it was under way.
    named: Vec<bool>,
    /// How many large ones each node began to apply in chunks.
    streamed: Vec<i64>,
}

impl Seen {
    fn words(&self) -> String {
        format!(
            "{:.1} s until all nodes showed it, {} small ones, longest gap {:.2} s",
            self.took.as_secs_f64(),
            self.small,
            self.gap.as_secs_f64()
        )
    }
}

/// The same large transaction automatically streamed and whole. Only the two are compared: how long either takes
/// is the machine's.
pub fn stall(case: &mut Case) -> anyhow::Result<()> {
    if !case.cluster().record().is_dromon() {
        case.note("only Dromon streams by itself");
        return Ok(());
    }
    let mut statements = vec![
        "CREATE TABLE small (id INT PRIMARY KEY, v BIGINT NOT NULL)".to_owned(),
        format!("INSERT INTO small SELECT seq, 0 FROM seq_1_to_{FEW}"),
        "CREATE TABLE large (id INT PRIMARY KEY, v INT NOT NULL, pad CHAR(100) NOT NULL)"
            .to_owned(),
    ];
    statements.extend((1..=ROWS).step_by(STEP as usize).map(|from| {
        let to = from + STEP - 1;
        format!("INSERT INTO large SELECT seq, 0, REPEAT('l', 100) FROM seq_{from}_to_{to}")
    }));
    let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
    set_up(case, &statements)?;
    let size = size(case)?;
    let automatic = large(case, 1)?;
    set_size(case, "0")?;
    let whole = large(case, 2);
    set_size(case, &size)?;
    let whole = whole?;
    case.note(format!("automatic: {}", automatic.words()));
    case.note(format!("whole: {}", whole.words()));
    ensure!(
        automatic.streamed.iter().all(|n| *n == 1) && whole.streamed.iter().all(|n| *n == 0),
        "the nodes began to apply {:?} in chunks, and {:?} where none was to be",
        automatic.streamed,
        whole.streamed
    );
    ensure!(
        automatic.named.iter().all(|n| *n) && !whole.named.contains(&true),
        "who named it in {OPEN}: {:?}, and where it went whole {:?}",
        automatic.named,
        whole.named
    );
    if automatic.gap < whole.gap {
        return Ok(());
    }
    // A neighbour on this machine may have held up the one: once more, the other way round.
    set_size(case, "0")?;
    let whole = large(case, 3);
    set_size(case, &size)?;
    let (whole, automatic) = (whole?, large(case, 4)?);
    case.note(format!("again, whole: {}", whole.words()));
    case.note(format!("again, automatic: {}", automatic.words()));
    ensure!(
        automatic.gap < whole.gap,
        "streamed it kept the small ones twice longer than whole, at last for {:?}, whole for {:?}",
        automatic.gap,
        whole.gap
    );
    Ok(())
}

/// One UPDATE of all rows from db1, beside two clients of each node.
fn large(case: &Case, generation: u64) -> anyhow::Result<Seen> {
    let before = check::streamed(&case.cluster())?;
    let mut session = Session::open_within(&case.node(0), &case.db, 0, LIMIT)?;
    let stamps: [Arc<Mutex<Vec<Instant>>>; 3] = Default::default();
    let writers = (0..6).map(|client| {
        let stamps = Arc::clone(&stamps[client % 3]);
        Writer::new(&case.node(client % 3), move |s| {
            let id = s.rng.below(FEW) + 1;
            s.exec(&format!("UPDATE small SET v = v + 1 WHERE id = {id}"))?;
            let mut stamps = stamps.lock().unwrap_or_else(PoisonError::into_inner);
            stamps.push(Instant::now());
            drop(stamps);
            thread::sleep(Duration::from_millis(2)); // leave the machine some air
            Ok(())
        })
    });
    let writers = writers.collect();
    let zero = Instant::now();
    let storm = Storm::start_within(&case.db, writers, RETRY, LIMIT)?;
    storm.blow(BEFORE);
    let watches: Vec<_> = (0..3).map(|node| watch(case, node, session.id())).collect();
    let from = zero.elapsed();
    let done = session
        .exec(&format!("UPDATE large SET v = {generation}"))
        .context("the large UPDATE")
        .and_then(|_| (0..3).try_for_each(|node| shown(case, node, generation)));
    let window = from..zero.elapsed();
    let named = watches.into_iter().map(|(over, thread)| {
        over.store(true, Ordering::Relaxed);
        thread.join().unwrap_or(false)
    });
    let named = named.collect();
    let tally = storm.stop();
    done?;
    let tally = tally?;
    let gap = |stamps: &Arc<Mutex<Vec<Instant>>>| {
        let stamps = stamps.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stamps: Vec<Duration> = stamps.iter().map(|s| *s - zero).collect();
        stamps.sort();
        series::longest_gap(&stamps, &window)
    };
    check::settled(&case.cluster(), &case.db)?;
    let after = check::streamed(&case.cluster())?;
    Ok(Seen {
        took: window.end - window.start,
        gap: stamps.iter().map(gap).max().unwrap_or_default(),
        small: tally.done,
        named,
        streamed: after.iter().zip(before).map(|(a, b)| a - b).collect(),
    })
}

/// Looks whether a node names what this connection of db1 does, until it is told that it is over.
fn watch(case: &Case, node: usize, connection: u32) -> (Arc<AtomicBool>, thread::JoinHandle<bool>) {
    let over = Arc::new(AtomicBool::new(false));
    let (node, told) = (case.node(node), Arc::clone(&over));
    let who = format!("connection {connection} on db1");
    let thread = thread::spawn(move || {
        let mut named = false;
        while !named && !told.load(Ordering::Relaxed) {
            // A node that does not answer now is asked again.
            let open = node.status(LIMIT).map(|s| s.get(OPEN).to_owned());
            named = open.is_ok_and(|open| open.contains(&who) && open.contains("automatic"));
            thread::sleep(Duration::from_millis(20));
        }
        named
    });
    (over, thread)
}

/// Waits until a node shows what was committed.
fn shown(case: &Case, node: usize, generation: u64) -> anyhow::Result<()> {
    let mut session = Session::open_within(&case.node(node), &case.db, 0, LIMIT)?;
    let end = Instant::now() + LIMIT;
    loop {
        let last = format!("SELECT v FROM large WHERE id = {ROWS}");
        if session.one::<u64>(&last)? == Some(generation) {
            return Ok(());
        }
        ensure!(
            Instant::now() < end,
            "db{} does not show it after {LIMIT:?}",
            node + 1
        );
        thread::sleep(Duration::from_millis(10));
    }
}

fn size(case: &Case) -> anyhow::Result<String> {
    let all: Option<String> = case
        .session(0)?
        .one("SELECT @@GLOBAL.wsrep_provider_options")?;
    let all = all.unwrap_or_default();
    let pairs = all.split(';').filter_map(|pair| pair.split_once('='));
    let own = pairs
        .map(|(name, value)| (name.trim(), value.trim()))
        .find(|(name, _)| *name == SIZE);
    Ok(own.map_or(SIZE_ALONE, |(_, value)| value).to_owned())
}

fn set_size(case: &Case, size: &str) -> anyhow::Result<()> {
    for node in 0..3 {
        case.session(node)?.exec(&format!(
            "SET GLOBAL wsrep_provider_options = '{SIZE}={size}'"
        ))?;
    }
    Ok(())
}
