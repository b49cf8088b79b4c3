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

mod cases;
mod close;
mod fence;
mod gtids;
mod monitor;
mod naming;
mod pace;
mod plan;
mod reader;
#[cfg(test)]
mod session_tests;
mod settle;
mod shared;
mod status;
mod texts;
mod worker;
mod xa;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use dromon_binlog::Position;
use dromon_binlog::hints::Limits;
use dromon_relay::log::{Level, Log};
use dromon_relay::wire::Row;

pub use monitor::Progress;
pub use shared::{Activity, Conflict, Counters, End, Sample, Shared, Stalls};
pub use status::{Ready, Status};

use crate::catalog::Known;
use crate::client::{Account, Client, ClientError};
use crate::compile::{Collations, Compare, Filter};
use crate::schedule::{Mode, Order};
use crate::source::{Link, Puller, Source};
use crate::target::{Channel, ONCE, Place, ROWS, StandError};
use crate::tune::Knob;
use crate::unit_size;
use fence::fence;
use plan::{Begun, Planner};
use reader::Reader;
use settle::{Settled, settle};
use shared::{InDoubt, Session};
use worker::Worker;
use xa::Phases;

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
    /// Most transactions of the source in one of the target; none: by what they cost
    /// ([`crate::unit_size`]).
    pub merge: Option<usize>,
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
    /// See [`Compare`].
    pub compare: Compare,
    /// See [`Doubt`].
    pub doubt: Doubt,
    /// Transactions of the source are written to the target's binlog.
    pub binlog: bool,
    /// They have their GTIDs there.
    pub source_gtid: bool,
    /// In what order units commit.
    pub order: Order,
}

/// Transactions in the channel between puller and planner.
const CHANNEL: usize = 8192;
/// Keys in the history of the planner.
const HISTORY_KEYS: usize = 500_000;

/// How it ends when it is not the newest any more.
pub(crate) const ANOTHER: &str = "Another replica has begun to apply this channel: this one can commit nothing any more, and nothing is doubled.";

/// Limits of write sets.
pub(crate) fn limits() -> Limits {
    Limits {
        history_keys: HISTORY_KEYS,
        ..Limits::default()
    }
}

/// The oldest version of MariaDB that can be a target.
const OLDEST: (u32, u32, u32) = (10, 6, 9);

/// Why a server of this version cannot be a target. One that does not tell a version is tried.
fn too_old(version: &str) -> Option<String> {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|n| n.parse::<u32>().ok());
    let found = (next()?, next()?, next()?);
    (found < OLDEST).then(|| {
        let (a, b, c) = OLDEST;
        format!(
            "The target is version {version}; this replica needs MariaDB {a}.{b}.{c} or newer there (not MySQL). Nothing was \
             applied. Upgrade the target first."
        )
    })
}

/// Connects for applying. Whoever ends the session can end it, too.
fn connect(settings: &Settings, shared: &Shared) -> Result<Client, ClientError> {
    let mut client = Client::connect(&settings.target)?;
    shared.connected(client.cut());
    client.identify()?;
    client.query(ONCE.as_bytes())?;
    client.query(ROWS.as_bytes())?;
    // Statements on rows are not safe otherwise, and READ COMMITTED is refused.
    if client.one("SELECT @@log_bin")?.as_deref() == Some("1") {
        client.query(b"SET SESSION binlog_format=ROW")?;
        if !settings.binlog {
            client.query(b"SET SESSION sql_log_bin=0")?;
        }
        gtids::in_one_group(&mut client)?;
    }
    Ok(client)
}

impl Session {
    /// For what runs alone. None: another session of the channel has the lock of such a connection.
    fn for_alone(
        settings: &Settings,
        shared: &Shared,
        channel: &Channel,
    ) -> Result<Option<Session>, ClientError> {
        let mut client = connect(settings, shared)?;
        // It has it as long as it lives.
        let has = client.one(&format!("SELECT GET_LOCK({},10)", channel.lock_name()))?;
        Ok((has.as_deref() != Some("0")).then(|| Session::of(client)))
    }
}

/// Connects for reading ahead: nothing is locked, and no view is kept.
fn connect_to_read(
    settings: &Settings,
    shared: &Shared,
    channel: &Channel,
    number: usize,
) -> Result<Client, ClientError> {
    let mut client = connect(settings, shared)?;
    // Whoever has it now is newer, and ends this session soon: it is read without it.
    channel.hold(&mut client, Place::Reader(number))?;
    client.query(b"SET SESSION tx_isolation='READ-UNCOMMITTED'")?;
    Ok(client)
}

fn adapted(is_fixed: bool) -> &'static str {
    match is_fixed {
        true => "",
        false => " at first",
    }
}

/// Applies until something ends it; [`Progress::tell_to_end`] does.
pub fn session(settings: &Settings, log: &Log, progress: &Arc<Progress>) -> End {
    let ended = begin(settings, log, progress);
    progress.detach();
    match ended {
        Ok(end) => end,
        Err(StandError::Client(error)) => unusable(error),
        Err(error) => End::Fatal(format!("The target cannot be used: {error}.")),
    }
}

/// How a session ends with an error of the target that is no unit's.
fn unusable(error: ClientError) -> End {
    match error.is_lost() || error.passes() {
        // A commit of an older session may hold a lock for long.
        true => End::Again(error.to_string()),
        false => End::Fatal(format!("The target cannot be used: {error}.")),
    }
}

fn begin(settings: &Settings, log: &Log, progress: &Arc<Progress>) -> Result<End, StandError> {
    let mut control = Client::connect(&settings.target)?;
    control.identify()?;
    // A proxy greets with a version of its own.
    let version = control.one("SELECT VERSION()")?;
    if let Some(why) = too_old(version.as_ref().unwrap_or(&control.version)) {
        return Ok(End::Fatal(why));
    }
    control.query(ONCE.as_bytes())?;
    let node = is_node(&mut control)?;
    if node && !settings.binlog {
        return Ok(End::Fatal(
            "The target is a node of a cluster, and binlog = off: the other nodes would get nothing of what is applied. Nothing \
             was applied. Leave binlog at on."
                .into(),
        ));
    }
    // What a node does not log the other nodes do not get, and they need the replica's own tables, too.
    let logs = !node && control.one("SELECT @@log_bin")?.as_deref() == Some("1");
    if logs {
        // What is written here is this replica's own affair.
        control.query(b"SET SESSION sql_log_bin=0")?;
    }
    progress.beginning(control.cut());
    let gtids = match settings.source_gtid {
        false => false,
        true => match gtids::check(&mut control, node)? {
            Ok(gtids) => gtids,
            Err(why) => return Ok(End::Fatal(why)),
        },
    };
    if settings.source_gtid && !gtids {
        log.say(
            Level::Note,
            "The target writes no binlog: source_gtid = on has nothing to do.",
        );
    }
    // What only this replica needs would have GTIDs of the target.
    let logged = logs && settings.binlog && !gtids;
    let channel = Channel::new(&settings.channel);
    // Whoever has begun since this one last did is to go on.
    let mine = progress
        .epoch
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    if let Some(mine) = mine
        && channel
            .epoch(&mut control)?
            .is_some_and(|newest| newest > mine)
    {
        return Ok(End::Fatal(ANOTHER.into()));
    }
    // Told to end, it must not wait for long for the lock of a commit that is under way.
    control.query(b"SET SESSION innodb_lock_wait_timeout=5")?;
    let mut stand = channel.begin(&mut control, settings.order, &settings.start, logged)?;
    *progress
        .epoch
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = Some(stand.epoch);
    log.say(
        Level::Note,
        &format!(
            "Applies to {} ({}){} with {} threads{}, mode {}, up to {}{} transactions in one{}{}; {} is applied{}.",
            settings.target.address,
            control.version,
            if control.is_encrypted() { ", encrypted," } else { "" },
            settings.threads.level(),
            adapted(settings.threads.is_fixed()),
            settings.mode,
            settings.merge.unwrap_or(unit_size::FIRST),
            adapted(settings.merge.is_some()),
            if gtids { ", which have their GTIDs in its binlog" } else { "" },
            match settings.filter.is_empty() {
                true => String::new(),
                false => format!("; {}", settings.filter),
            },
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
    if gtids && let Some(why) = gtids::has_gaps(&stand.position, &stand.ahead) {
        return Ok(End::Fatal(why));
    }
    if let Some(end) = fence(&mut control, &channel, stand.epoch, log, progress)? {
        return Ok(end);
    }
    control.query(b"SET SESSION innodb_lock_wait_timeout=DEFAULT")?;
    if !channel.hold(&mut control, Place::Control)? {
        return Ok(another());
    }
    let mut in_doubt = None;
    if let Some(doing) = &stand.doing.clone() {
        match settle(settings, log, progress, &mut control, doing, logs)? {
            Settled::Done => {
                stand.position.set(doing.gtid);
                let mut text = Vec::new();
                channel.put_move(&mut text, stand.epoch, None, &stand.position.to_string());
                control.query(&text)?;
            }
            Settled::Again(sure, steps) => {
                in_doubt = Some(InDoubt {
                    gtid: doing.gtid,
                    sure,
                    steps,
                });
            }
            Settled::Stop(end) => return Ok(end),
        }
    }
    if logged && stand.slots {
        channel.tell_replicas(&mut control, &stand)?;
    }
    if let Some(why) = forgives(&mut control)? {
        match settings.difference {
            Difference::Stop => {
                return Ok(End::Fatal(format!("{why} Or set difference = repair.")));
            }
            Difference::Repair => log.say(Level::Warning, &why),
        }
    }
    let there = match gtids {
        true => Some(gtids::logged(&mut control)?),
        false => None,
    };
    let collations = collations(&mut control)?;
    let collations = Collations::of(collations.into_iter().filter_map(|row| {
        let mut texts = row
            .into_iter()
            .map(|c| String::from_utf8_lossy(&c.unwrap_or_default()).into_owned());
        Some((texts.next()?.parse().ok()?, texts.next()?, texts.next()?))
    }));
    let mut has = |name: &str| {
        let asked = format!("SHOW VARIABLES WHERE Variable_name='{name}'");
        control.rows(&asked).map(|rows| !rows.is_empty())
    };
    let collations = collations
        .with_defaults(has("character_set_collations")?)
        .with_history(has("system_versioning_insert_history")?);
    let own = control.one("SELECT @@global.sql_mode")?;
    let no_directories = own.is_some_and(|mode| mode.contains("NO_DIR_IN_CREATE"));
    let collations = collations.without_directories(no_directories);
    let packet_max = control.one("SELECT @@max_allowed_packet")?;
    let packet_max = packet_max
        .and_then(|n| n.parse::<usize>().ok())
        .unwrap_or(1 << 20);
    let known = Known::read(&mut control)?;
    let spelled = match cases::filter(settings, known.is_of_any_case(), progress, log) {
        Ok(filter) => Settings {
            filter,
            ..settings.clone()
        },
        Err(why) => return Ok(End::Again(why)),
    };
    let settings = &spelled;
    cases::warn(&settings.filter, &mut control, &known, log)?;
    let own = control.one("SELECT @@server_id")?;
    let own = own.and_then(|n| n.parse::<u32>().ok()).unwrap_or(0);
    let xa = Phases::new(
        channel.prepared(&mut control)?,
        settings,
        logged,
        packet_max,
    );
    let base = stand.position.to_string();
    let pages = control.one("SELECT @@innodb_buffer_pool_size DIV @@innodb_page_size")?;
    let pages = pages.and_then(|n| n.parse().ok()).unwrap_or(8192);
    // A key takes a page or two; the rest is for what is being applied, and for others.
    let shared = Arc::new(Shared::new(settings, base, usize::max(pages / 8, 64)));
    progress.attach(&shared);
    if let Some(lost) = progress.position(&stand.position) {
        let text = format!(
            "The target has gone back: this replica had applied {lost} there, and now {} is. Is it another server, a copy, or one that lost its \
             last commits? What follows is applied again, if the source still has it; how old it is is not known until then (lag, /ready).",
            match stand.position.is_empty() {
                true => "nothing".to_owned(),
                false => stand.position.to_string(),
            }
        );
        log.say(Level::Warning, &text);
    }
    let mut workers = Vec::new();
    shared.connected(control.cut());
    match Session::for_alone(settings, &shared, &channel)? {
        Some(session) => shared.keep_alone(session),
        None => return Ok(another()),
    }
    for n in 0..settings.threads.max() {
        let mut client = connect(settings, &shared)?;
        // A node's server may take whoever has such a lock for one that must not give way to a statement.
        if !node && !channel.hold(&mut client, Place::Worker(n))? {
            return Ok(another());
        }
        shared.lock().connections[n] = client.id;
        workers.push(Worker {
            number: n,
            session: Session::of(client),
            shared: Arc::clone(&shared),
            settings: settings.clone(),
            channel: channel.clone(),
            epoch: stand.epoch,
            log: log.clone(),
            collations: collations.clone(),
            packet_max: (packet_max / 2).clamp(16 << 10, 1 << 20),
            allowed: packet_max,
            in_doubt: in_doubt.clone(),
            own,
            node,
            gtids,
            progress: Arc::clone(progress),
            waited: Duration::ZERO,
            behind: Vec::new(),
        });
    }
    let readers: Vec<Reader> = (0..settings.readers.max())
        .map(|number| Reader {
            number,
            settings: settings.clone(),
            channel: channel.clone(),
            collations: collations.clone(),
            packet_max,
            progress: Arc::clone(progress),
        })
        .collect();
    let mut watcher = connect(settings, &shared)?;
    if !channel.hold(&mut watcher, Place::Watcher)? {
        return Ok(another());
    }
    {
        let mut alone = shared.alone();
        let alone = alone.iter_mut().map(|session| &mut session.client);
        let applying = workers.iter_mut().map(|worker| &mut worker.session.client);
        if let Some(why) = elsewhere(&mut watcher, alone.chain(applying).chain([&mut control]))? {
            return Ok(End::Fatal(why));
        }
    }
    let (to, from) = mpsc::sync_channel(CHANNEL);
    let link = Arc::new(Link::new(settings.memory as u64));
    progress.link(&link);
    let puller = Puller::new(
        settings.source.clone(),
        stand.position.clone(),
        to,
        Arc::clone(&link),
        log.clone(),
    )
    .for_target(own);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let spawn = |name: &str| thread::Builder::new().name(format!("dromon-{name}"));
        let mut failed = None;
        for worker in workers {
            let name = format!("apply-{}", worker.number);
            let shared = Arc::clone(&shared);
            let number = worker.number;
            let run = move || {
                guarded(&shared, "applies", || worker.run(&shared));
                shared.lock().running[number] = None;
            };
            let spawned = spawn(&name).spawn_scoped(scope, run);
            failed = failed.or(spawned.err());
        }
        for reader in readers {
            let name = format!("read-{}", reader.number);
            let shared = Arc::clone(&shared);
            let run = move || guarded(&shared, "reads ahead", || reader.run(&shared));
            let spawned = spawn(&name).spawn_scoped(scope, run);
            failed = failed.or(spawned.err());
        }
        let pulled = Arc::clone(&shared);
        let run = move || guarded(&pulled, "follows the source", || puller.run());
        failed = failed.or(spawn("pull").spawn_scoped(scope, run).err());
        let watched = Arc::clone(&shared);
        let (progress_of, log_of) = (Arc::clone(progress), log.clone());
        let spawned = spawn("watch").spawn_scoped(scope, move || {
            guarded(&watched, "watches", || {
                monitor::run(watcher, &watched, settings, &progress_of, &log_of);
            });
        });
        failed = failed.or(spawned.err());
        let closed = Arc::clone(&shared);
        let over = &over;
        let of = Arc::clone(progress);
        let run = move || close::close(&closed, &of, over);
        let spawned = spawn("close").spawn_scoped(scope, run);
        failed = failed.or(spawned.err());
        progress.has_begun();
        if let Some(error) = failed {
            shared.end(End::Fatal(format!("A thread cannot be started: {error}.")));
        }
        let begun = Begun {
            known,
            stand,
            channel: &channel,
            xa,
            own,
            logged: there,
            log,
        };
        let mut planner = Planner::new(settings, &shared, &link, control, begun);
        guarded(&shared, "plans", || planner.run(&from));
        link.stop();
        drop(from);
        close::wait(&shared, progress, logs && settings.binlog, log);
        // If that fails now, the next session knows it from the slots.
        let _ = planner.save();
        shared.cut();
        over.store(true, Ordering::Release);
    });
    shared.ended.store(true, Ordering::Release);
    Ok(shared.take_end())
}

/// Why all these connections cannot be used together: one is to another server than the watcher, which sees
/// all that are where it is.
fn elsewhere<'c>(
    watcher: &mut Client,
    others: impl Iterator<Item = &'c mut Client>,
) -> Result<Option<String>, ClientError> {
    let mut others: Vec<&mut Client> = others.collect();
    let ids = others.iter().map(|client| client.id).chain([watcher.id]);
    let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
    let there = watcher.rows(&format!(
        "SELECT ID FROM information_schema.PROCESSLIST WHERE ID IN ({})",
        ids.join(",")
    ))?;
    let sees = |id: u32| {
        there
            .iter()
            .flatten()
            .flatten()
            .any(|seen| *seen == id.to_string().into_bytes())
    };
    let missing = others.iter_mut().find(|client| !sees(client.id));
    let Some(client) = missing.filter(|_| sees(watcher.id)) else {
        return Ok(None);
    };
    // Or it has been ended meanwhile.
    client.query(b"DO 1")?;
    Ok(Some(format!(
        "target leads to several servers: connection {} is to another one than connection {}. What one of them commits the others \
         would wait for. Name one server; a proxy or a balancer in between must lead all connections to one.",
        client.id, watcher.id
    )))
}

/// It will be told apart by the epochs who goes on.
fn another() -> End {
    End::Again("another replica of this channel has just begun".into())
}

/// Whether it is a node of a cluster.
fn is_node(client: &mut Client) -> Result<bool, ClientError> {
    let on = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_VARIABLES WHERE VARIABLE_NAME='WSREP_ON'";
    Ok(client.one(on)?.as_deref() == Some("ON"))
}

/// Whether the target's own row applier, which runs BINLOG statements, passes over rows that are missing
/// or there already; and what to do about it.
fn forgives(client: &mut Client) -> Result<Option<String>, ClientError> {
    let mode = client.one("SELECT @@global.slave_exec_mode")?;
    let errors = client.one("SELECT @@global.slave_skip_errors")?;
    let set = match (mode.as_deref(), errors.as_deref()) {
        (Some("IDEMPOTENT"), _) => "slave_exec_mode = IDEMPOTENT",
        (_, Some(errors)) if !errors.is_empty() && errors != "OFF" => "slave_skip_errors",
        _ => return Ok(None),
    };
    Ok(Some(format!(
        "The target has {set}: of tables without a primary key, and all others whose rows go by BINLOG, rows that are missing or there \
         already would be passed over in silence. Take it back."
    )))
}

/// All collations by number: those that several character sets share have one for each.
fn collations(client: &mut Client) -> Result<Vec<Row>, ClientError> {
    const NO_COLUMN: u16 = 1054;
    let of_each = client.rows(
        "SELECT ID, FULL_COLLATION_NAME, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY \
         WHERE ID IS NOT NULL",
    );
    match of_each {
        // None are shared.
        Err(error) if error.code() == Some(NO_COLUMN) => client.rows(
            "SELECT ID, COLLATION_NAME, CHARACTER_SET_NAME FROM information_schema.COLLATIONS WHERE ID IS NOT NULL",
        ),
        rows => rows,
    }
}

/// Runs a thread's work: if it panics, the session ends, and the next one begins at what is there.
fn guarded(shared: &Shared, what: &str, run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        shared.end(End::Again(format!(
            "the thread that {what} has failed; this is an error of the program"
        )));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_target::{Fake, Reply, cell, settings};

    fn fake_session(fake: &Fake, lines: &[&str]) -> End {
        let settings = settings(fake, lines);
        session(&settings, &Log::terminal(), &Arc::new(Progress::default()))
    }

    #[test]
    fn old_targets_are_refused() {
        let refused = [
            "10.6.8-MariaDB",
            "10.5.29-MariaDB-log",
            "8.0.36",
            "5.7.44-log",
        ];
        for version in refused {
            let why = too_old(version).expect(version);
            assert!(why.contains(version) && why.contains("10.6.9"), "{why}");
        }
        let taken = [
            "10.6.9-MariaDB",
            "10.11.19-MariaDB-deb12",
            "11.8.2-MariaDB",
            "proxy",
        ];
        for version in taken {
            assert_eq!(too_old(version), None, "{version}");
        }
        let fake = Fake::of_version("10.6.8-MariaDB", |_| None);
        let end = fake_session(&fake, &[]);
        assert!(
            matches!(&end, End::Fatal(why) if why.contains("The target is version 10.6.8")),
            "{end:?}"
        );
        let asked = ["SELECT CONNECTION_ID()", "SELECT VERSION()"];
        assert_eq!(fake.said(), asked, "nothing was touched");
        // What a proxy greets with is not the target's.
        let behind = |text: &str| text.contains("VERSION()").then(|| cell("10.11.19-MariaDB"));
        let fake = Fake::of_version("5.7.44", behind);
        fake_session(&fake, &[]);
        assert!(fake.said().len() > 2, "it goes on");
    }

    /// Whoever has begun later goes on.
    #[test]
    fn the_newest_goes_on() {
        let fake = Fake::new(|text| text.starts_with("SELECT epoch").then(|| cell("5")));
        let settings = settings(&fake, &[]);
        let progress = Arc::new(Progress::default());
        *progress.epoch.lock().expect("nobody panics") = Some(4);
        let end = session(&settings, &Log::terminal(), &progress);
        assert_eq!(end, End::Fatal(ANOTHER.into()));
        assert!(!fake.said().iter().any(|text| text.contains("epoch + 1")));
    }

    /// What a node does not log the other nodes do not get.
    #[test]
    fn a_node_logs_everything() {
        let node = |text: &str| text.contains("'WSREP_ON'").then(|| cell("ON"));
        let fake = Fake::new(node);
        let end = fake_session(&fake, &["binlog = off"]);
        let refused =
            matches!(&end, End::Fatal(why) if why.contains("the other nodes would get nothing"));
        assert!(refused, "{end:?}");
        assert!(!fake.said().iter().any(|text| text.contains("CREATE")));
        let fake = Fake::new(move |text| match text {
            "SELECT @@log_bin" => Some(cell("1")),
            _ => node(text),
        });
        fake_session(&fake, &[]);
        let said = fake.said();
        assert!(
            said.iter().any(|text| text.contains("CREATE TABLE")),
            "{said:?}"
        );
        assert!(
            !said.iter().any(|text| text.contains("sql_log_bin")),
            "{said:?}"
        );
    }

    /// What was under way in a crash is known by one group of the target's binlog.
    #[test]
    fn an_alter_is_one_group_on_every_target() {
        for log_bin in ["0", "1"] {
            let fake = Fake::new(move |text| (text == "SELECT @@log_bin").then(|| cell(log_bin)));
            let settings = settings(&fake, &[]);
            connect(&settings, &Shared::new(&settings, String::new(), 64)).expect("a target");
            let one = "SET SESSION binlog_alter_two_phase=0";
            assert_eq!(fake.said().contains(&one.to_owned()), log_bin == "1");
        }
    }

    #[test]
    fn a_thread_that_fails_ends_the_session() {
        let fake = Fake::new(|_| None);
        let shared = Shared::new(&settings(&fake, &[]), String::new(), 64);
        guarded(&shared, "applies", || {});
        assert!(!shared.lock().has_ended());
        guarded(&shared, "applies", || panic!("a mistake"));
        let end = shared.take_end();
        assert!(
            matches!(&end, End::Again(why) if why.contains("applies")),
            "{end:?}"
        );
    }

    /// A balancer that leads to several servers.
    #[test]
    fn all_connections_are_to_one_server() {
        let found = |lacks: &'static [u32], cut: bool| {
            let fake = Fake::new(move |text| match text.split_once("WHERE ID IN (") {
                Some((_, ids)) => {
                    let ids = ids.trim_end_matches(')').split(',');
                    let seen = ids.filter(|id| !lacks.iter().any(|lack| lack.to_string() == *id));
                    Some(Reply::Rows(seen.map(|id| vec![id.into()]).collect()))
                }
                None => None,
            });
            let connect = || Client::connect(&fake.account()).expect("a target");
            let (mut watcher, mut one, mut two) = (connect(), connect(), connect());
            (watcher.id, one.id, two.id) = (7, 8, 9);
            if cut {
                two.cut().cut();
            }
            elsewhere(&mut watcher, [&mut one, &mut two].into_iter())
        };
        assert_eq!(found(&[], false).expect("answers"), None);
        let why = found(&[9], false)
            .expect("answers")
            .expect("it is elsewhere");
        assert!(
            why.contains("connection 9") && why.contains("Name one server"),
            "{why}"
        );
        assert!(found(&[9], true).is_err(), "it has only been lost");
        assert_eq!(
            found(&[7, 8, 9], false).expect("answers"),
            None,
            "nothing is seen"
        );
    }

    /// A proxy greets with a number of its own, which no lock has.
    #[test]
    fn connections_have_the_numbers_of_the_target() {
        let fake = Fake::new(|text| (text == "SELECT CONNECTION_ID()").then(|| cell("4711")));
        let settings = settings(&fake, &[]);
        let client = connect(&settings, &Shared::new(&settings, String::new(), 64));
        assert_eq!(client.expect("a target").id, 4711);
    }

    #[test]
    fn targets_that_forgive() {
        let said = |mode: &'static str, errors: &'static str| {
            let fake = Fake::new(move |text| match text {
                "SELECT @@global.slave_exec_mode" => Some(cell(mode)),
                "SELECT @@global.slave_skip_errors" => Some(cell(errors)),
                _ => None,
            });
            let mut client = Client::connect(&fake.account()).expect("a target");
            forgives(&mut client).expect("answers")
        };
        assert_eq!(said("STRICT", "OFF"), None);
        assert_eq!(said("STRICT", ""), None);
        let why = said("IDEMPOTENT", "OFF").expect("it forgives");
        assert!(why.contains("slave_exec_mode"), "{why}");
        let why = said("STRICT", "1062").expect("it forgives");
        assert!(why.contains("slave_skip_errors"), "{why}");
    }

    /// A target that is full, or that lets nobody in now, is not given up.
    #[test]
    fn errors_that_pass() {
        for (code, passes) in [
            (1040, true),
            (1203, true),
            (1226, true),
            (1205, true),
            (1213, true),
            (1053, true),
            (1045, false),
            (1142, false),
        ] {
            let fake = Fake::new(move |text| (text == "connect").then_some(Reply::Fail(code)));
            let end = fake_session(&fake, &[]);
            assert_eq!(matches!(end, End::Again(_)), passes, "{code}: {end:?}");
        }
    }
}
