//! Threads around the schedule: one that reads and plans, workers that apply, one that watches.
//!
//! ```text
//!  Puller ──transactions──> planner ──units──> Scheduler <──> workers ──SQL──> target
//!                              │                   ^
//!                              └ reads the catalog └── monitor: lock waits, samples, status
//! ```
//!
//! All of it is one *session*: it ends when a connection to the target is lost, and the next one
//! begins at the position that the target has then. So whether a commit succeeded whose answer
//! was lost is never guessed.

mod monitor;
mod pace;
mod plan;
mod reader;
mod shared;
mod status;
mod worker;

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use dromon_binlog::Position;
use dromon_binlog::hints::Limits;
use dromon_relay::log::{Level, Log};

pub use monitor::Progress;
pub use shared::{Conflict, Counters, End, Sample, Shared, Stalls};
pub use status::{Ready, Status};

use crate::catalog::Known;
use crate::client::{Account, Client, ClientError};
use crate::compile::{Collations, Filter};
use crate::schedule::{Mode, Order};
use crate::source::{Link, Puller, Source};
use crate::target::{Channel, Doing, ONCE, ROWS, StandError};
use crate::tune::Knob;
use plan::Planner;
use reader::Reader;
use shared::InDoubt;
use worker::Worker;

/// What to do with what may or may not have been done before a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doubt {
    /// Do it again; an error that says that it was done is none.
    #[default]
    Again,
    /// Take it for done.
    Skip,
    /// Stop, and let people decide.
    Stop,
}

/// What to do with a row that is not as the source had it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Difference {
    /// Stop.
    #[default]
    Stop,
    /// Make it what it is after the change, and count.
    Repair,
}

/// How to apply.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the events come from.
    pub source: Source,
    /// Where they go.
    pub target: Account,
    /// Name of the row in `dromon_replica.position`.
    pub channel: String,
    /// Where a channel begins that is not there yet.
    pub start: Position,
    /// What runs side by side.
    pub mode: Mode,
    /// Connections that apply.
    pub threads: Knob,
    /// Most transactions of the source in one of the target.
    pub merge: Knob,
    /// Connections that read ahead.
    pub readers: Knob,
    /// The same in bytes of events.
    pub merge_bytes: usize,
    /// Transactions of the source that wait in memory, at most, in bytes.
    pub memory: usize,
    /// What is left out.
    pub filter: Filter,
    /// See [`Difference`].
    pub difference: Difference,
    /// Rows are compared as a whole.
    pub whole_rows: bool,
    /// See [`Doubt`].
    pub doubt: Doubt,
    /// Transactions of the source are written to the target's binlog.
    pub binlog: bool,
    /// In what order units commit.
    pub order: Order,
}

/// Transactions in the channel between puller and planner.
const CHANNEL: usize = 8192;
/// Keys in the history of the planner.
const HISTORY_KEYS: usize = 500_000;

/// Limits of write sets.
pub(crate) fn limits() -> Limits {
    Limits {
        history_keys: HISTORY_KEYS,
        ..Limits::default()
    }
}

/// Connects for applying.
pub(crate) fn connect(settings: &Settings) -> Result<Client, ClientError> {
    let mut client = Client::connect(&settings.target)?;
    client.query(ONCE.as_bytes())?;
    client.query(ROWS.as_bytes())?;
    // Statements on rows are not safe otherwise, and READ COMMITTED is refused.
    if client.one("SELECT @@log_bin")?.as_deref() == Some("1") {
        client.query(b"SET SESSION binlog_format=ROW")?;
        if !settings.binlog {
            client.query(b"SET SESSION sql_log_bin=0")?;
        }
    }
    Ok(client)
}

/// Connects for reading ahead: nothing is locked, and no view is kept.
fn connect_to_read(settings: &Settings) -> Result<Client, ClientError> {
    let mut client = connect(settings)?;
    client.query(b"SET SESSION tx_isolation='READ-UNCOMMITTED'")?;
    Ok(client)
}

fn adapted(knob: &Knob) -> &'static str {
    match knob.is_fixed() {
        true => "",
        false => " at first",
    }
}

/// Applies until something ends it; [`Progress::tell_to_end`] does.
pub fn session(settings: &Settings, log: &Log, progress: &Arc<Progress>) -> End {
    match begin(settings, log, progress) {
        Ok(end) => end,
        // A commit of an older session may hold a lock for long.
        Err(StandError::Client(error))
            if error.is_lost() || matches!(error.code(), Some(1205 | 1213)) =>
        {
            End::Again(error.to_string())
        }
        Err(error) => End::Fatal(format!("The target cannot be used: {error}.")),
    }
}

fn begin(settings: &Settings, log: &Log, progress: &Arc<Progress>) -> Result<End, StandError> {
    let mut control = Client::connect(&settings.target)?;
    control.query(ONCE.as_bytes())?;
    let logs = control.one("SELECT @@log_bin")?.as_deref() == Some("1");
    if logs {
        // What is written here is this replica's own affair.
        control.query(b"SET SESSION sql_log_bin=0")?;
    }
    let channel = Channel::new(&settings.channel);
    let mut stand = channel.begin(&mut control, settings.order, &settings.start)?;
    log.say(
        Level::Note,
        &format!(
            "Applies to {} ({}){} with {} threads{}, mode {}, up to {}{} transactions in one; {} is applied{}.",
            settings.target.address,
            control.version,
            if control.is_encrypted() { ", encrypted," } else { "" },
            settings.threads.level(),
            adapted(&settings.threads),
            settings.mode,
            settings.merge.level(),
            adapted(&settings.merge),
            match stand.position.is_empty() {
                true => "nothing".to_owned(),
                false => stand.position.to_string(),
            },
            match stand.ahead.is_empty() {
                true => String::new(),
                false => format!(", and of what follows {}", stand.ahead),
            }
        ),
    );
    let mut in_doubt = None;
    if let Some(doing) = &stand.doing.clone() {
        match settle(settings, log, &mut control, doing, logs)? {
            Settled::Done => {
                stand.position.set(doing.gtid);
                let mut text = Vec::new();
                channel.put_move(&mut text, stand.epoch, None, &stand.position.to_string());
                control.query(&text)?;
            }
            Settled::Again(sure) => {
                in_doubt = Some(InDoubt {
                    gtid: doing.gtid,
                    sure,
                });
            }
            Settled::Stop(why) => return Ok(End::Fatal(why)),
        }
    }
    let collations = control.rows(
        "SELECT ID, COLLATION_NAME, CHARACTER_SET_NAME FROM information_schema.COLLATIONS WHERE ID IS NOT NULL",
    )?;
    let collations = Collations::of(collations.into_iter().filter_map(|row| {
        let mut texts = row
            .into_iter()
            .map(|c| String::from_utf8_lossy(&c.unwrap_or_default()).into_owned());
        Some((texts.next()?.parse().ok()?, texts.next()?, texts.next()?))
    }));
    let packet_max = control.one("SELECT @@max_allowed_packet")?;
    let packet_max = packet_max
        .and_then(|n| n.parse::<usize>().ok())
        .unwrap_or(1 << 20);
    let known = Known::read(&mut control)?;
    let base = stand.position.to_string();
    let pages = control.one("SELECT @@innodb_buffer_pool_size DIV @@innodb_page_size")?;
    let pages = pages.and_then(|n| n.parse().ok()).unwrap_or(8192);
    // A key takes a page or two; the rest is for what is being applied, and for others.
    let shared = Arc::new(Shared::new(settings, base, usize::max(pages / 8, 64)));
    progress.attach(&shared);
    progress.position(&stand.position);
    let mut workers = Vec::new();
    let mut cuts = Vec::new();
    for n in 0..settings.threads.max() {
        let client = connect(settings)?;
        shared.lock().connections[n] = client.id;
        cuts.push(client.cut());
        workers.push(Worker {
            number: n,
            client,
            shared: Arc::clone(&shared),
            settings: settings.clone(),
            channel: channel.clone(),
            epoch: stand.epoch,
            log: log.clone(),
            collations: collations.clone(),
            packet_max: (packet_max / 2).clamp(16 << 10, 1 << 20),
            allowed: packet_max,
            dirty: false,
            form: None,
            in_doubt: in_doubt.clone(),
            progress: Arc::clone(progress),
        });
    }
    let readers: Vec<Reader> = (0..settings.readers.max())
        .map(|number| Reader {
            number,
            settings: settings.clone(),
            collations: collations.clone(),
            packet_max,
            progress: Arc::clone(progress),
        })
        .collect();
    let watcher = connect(settings)?;
    let (to, from) = mpsc::sync_channel(CHANNEL);
    let link = Arc::new(Link::new(settings.memory as u64));
    progress.link(&link);
    let puller = Puller::new(
        settings.source.clone(),
        stand.position.clone(),
        to,
        Arc::clone(&link),
        log.clone(),
    );
    thread::scope(|scope| {
        let spawn = |name: &str| thread::Builder::new().name(format!("dromon-{name}"));
        let mut failed = None;
        for worker in workers {
            let name = format!("apply-{}", worker.number);
            let shared = Arc::clone(&shared);
            let spawned = spawn(&name).spawn_scoped(scope, move || worker.run(&shared));
            failed = failed.or(spawned.err());
        }
        for reader in readers {
            let name = format!("read-{}", reader.number);
            let shared = Arc::clone(&shared);
            let spawned = spawn(&name).spawn_scoped(scope, move || reader.run(&shared));
            failed = failed.or(spawned.err());
        }
        failed = failed.or(spawn("pull")
            .spawn_scoped(scope, move || puller.run())
            .err());
        let watched = Arc::clone(&shared);
        let (progress_of, log_of) = (Arc::clone(progress), log.clone());
        let spawned = spawn("watch").spawn_scoped(scope, move || {
            monitor::run(watcher, &watched, settings, &progress_of, &log_of);
        });
        failed = failed.or(spawned.err());
        if let Some(error) = failed {
            shared.end(End::Fatal(format!("A thread cannot be started: {error}.")));
        }
        let mut planner = Planner::new(settings, &shared, &link, control, known, stand, &channel);
        planner.run(&from);
        link.stop();
        drop(from);
        // A commit that is under way is let through: others would only wait for it to be undone.
        let waited = (0..50).take_while(|_| {
            let busy = shared.lock().is_committing();
            if busy {
                thread::sleep(Duration::from_millis(20));
            }
            busy
        });
        waited.count();
        // If that fails now, the next session knows it from the slots.
        let _ = planner.save();
        cuts.iter().for_each(crate::client::Cut::cut);
    });
    progress.detach();
    shared.ended.store(true, Ordering::Release);
    Ok(shared.take_end())
}

enum Settled {
    /// It was done.
    Done,
    /// It is to be done; true: it surely was not.
    Again(bool),
    Stop(String),
}

/// Finds out what came of something that was under way when a replica died.
fn settle(
    settings: &Settings,
    log: &Log,
    control: &mut Client,
    doing: &Doing,
    logs: bool,
) -> Result<Settled, StandError> {
    let running = format!(
        "SELECT 1 FROM information_schema.PROCESSLIST WHERE ID={} AND COMMAND='Query' AND INFO NOT LIKE '%PROCESSLIST%'",
        doing.connection
    );
    let mut waits = 0u32;
    while control.one(&running)?.is_some() {
        if waits.is_multiple_of(100) {
            log.say(
                Level::Note,
                &format!(
                    "{} is still running from before ({}…); its end is waited for.",
                    doing.gtid, doing.text
                ),
            );
        }
        waits += 1;
        thread::sleep(Duration::from_millis(100));
    }
    let what = format!(
        "{} was under way when the last run ended ({}…)",
        doing.gtid, doing.text
    );
    if logs && settings.binlog {
        let now = control.one("SELECT @@gtid_binlog_pos")?.unwrap_or_default();
        let before = doing.binlog.trim_end_matches(['+', '~']);
        let several = doing.binlog.ends_with('+');
        let rows = doing.binlog.ends_with('~');
        if now == before && !rows {
            log.say(
                Level::Note,
                &format!("{what}; the target's binlog shows that it was not done. It is done now."),
            );
            return Ok(Settled::Again(true));
        }
        let own = control.one("SELECT @@server_id")?.unwrap_or_default();
        if !several && is_next(before, &now, &own) {
            log.say(
                Level::Note,
                &format!("{what}; the target's binlog shows that it was done."),
            );
            return Ok(Settled::Done);
        }
    }
    let (level, then, settled) = match settings.doubt {
        Doubt::Again => (
            Level::Warning,
            "It is tried again (in_doubt = again).",
            Settled::Again(false),
        ),
        Doubt::Skip => (
            Level::Warning,
            "It is taken for done (in_doubt = skip).",
            Settled::Done,
        ),
        Doubt::Stop => (
            Level::Error,
            "Look at the target, then start with in_doubt = skip if it was done, or in_doubt = again.",
            Settled::Stop(String::new()),
        ),
    };
    let said = format!("{what}, and it cannot be said whether it was done. {then}");
    Ok(match settled {
        Settled::Stop(_) => Settled::Stop(said),
        settled => {
            log.say(level, &said);
            settled
        }
    })
}

/// Whether exactly one group of this server came between two positions.
fn is_next(before: &str, now: &str, server: &str) -> bool {
    let (Ok(before), Ok(now)) = (before.parse::<Position>(), now.parse::<Position>()) else {
        return false;
    };
    let changed: Vec<_> = now
        .iter()
        .filter(|g| before.get(g.domain) != Some(*g))
        .collect();
    match changed[..] {
        [one] => {
            let last = before.get(one.domain).map_or(0, |g| g.seqno);
            one.seqno == last + 1 && one.server.to_string() == server
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_group_more() {
        assert!(is_next("0-2-5", "0-2-6", "2"));
        assert!(is_next("", "0-2-1", "2"));
        assert!(is_next("0-2-5,1-7-9", "0-2-6,1-7-9", "2"));
        assert!(!is_next("0-2-5", "0-2-7", "2"));
        assert!(!is_next("0-2-5", "0-3-6", "2"));
        assert!(!is_next("0-2-5,1-7-9", "0-2-6,1-7-10", "2"));
        assert!(!is_next("?", "0-2-6", "2"));
    }
}
