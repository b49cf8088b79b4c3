//! How a session begins: what it finds at the target, what of an earlier one it ends there, and the
//! threads that it starts then.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, mpsc};
use std::thread::{self, Scope};
use std::time::Duration;

use dromon_relay::log::{Level, Log};

use super::fence::fence;
use super::plan::{Begun, Planner};
use super::reader::Reader;
use super::server::{Facts, Server, elsewhere, forgives};
use super::settle::{Settled, settle};
use super::shared::{InDoubt, Session};
use super::worker::Worker;
use super::xa::Phases;
use super::{ANOTHER, Difference, End, Progress, Settings, Shared};
use super::{cases, close, gtids, guarded, monitor};
use crate::beside::Beside;
use crate::catalog::Known;
use crate::client::{Client, ClientError};
use crate::source::{Link, Puller};
use crate::target::{Channel, ONCE, Place, ROWS, Stand, StandError, Start, has_data};
use crate::unit_size;

/// Transactions in the channel between puller and planner.
const CHANNEL: usize = 8192;

/// Why a session has not begun.
pub(super) enum NotBegun {
    /// It cannot, or is not to.
    Over(End),
    /// The target does not answer, or what stands there is not ours.
    Target(StandError),
}

impl NotBegun {
    pub(super) fn fatal(why: impl Into<String>) -> NotBegun {
        NotBegun::Over(End::Fatal(why.into()))
    }

    fn another() -> NotBegun {
        NotBegun::Over(another())
    }
}

impl From<ClientError> for NotBegun {
    fn from(error: ClientError) -> NotBegun {
        NotBegun::Target(StandError::Client(error))
    }
}

impl From<StandError> for NotBegun {
    fn from(error: StandError) -> NotBegun {
        NotBegun::Target(error)
    }
}

/// Applies until something ends it; [`Progress::tell_to_end`] does.
pub fn session(settings: &Settings, log: &Log, progress: &Arc<Progress>) -> End {
    let ended = begin(settings, log, progress);
    progress.detach();
    match ended {
        Ok(end) | Err(NotBegun::Over(end)) => end,
        // Whoever begins now looks at all of it anew.
        Err(NotBegun::Target(error @ StandError::TakenBack)) => End::Again(error.to_string()),
        Err(NotBegun::Target(StandError::Client(error))) => unusable(error),
        Err(NotBegun::Target(error)) => End::Fatal(format!("The target cannot be used: {error}.")),
    }
}

/// It will be told apart by the epochs who goes on.
pub(super) fn another() -> End {
    End::Again("another replica of this channel has just begun".into())
}

/// How a session ends with an error of the target that is no unit's.
pub(super) fn unusable(error: ClientError) -> End {
    match error.is_lost() || error.passes() {
        // A commit of an older session may hold a lock for long.
        true => End::again(&error, error.to_string()),
        false => {
            let then =
                crate::target::too_long(&error).map_or(String::new(), |then| format!(" {then}."));
            End::Fatal(format!("The target cannot be used: {error}.{then}"))
        }
    }
}

fn begin(settings: &Settings, log: &Log, progress: &Arc<Progress>) -> Result<End, NotBegun> {
    let mut server = Server::find(settings, log, progress)?;
    let channel = Channel::new(&settings.channel);
    let mut stand = take_over(&mut server, &channel, settings, log, progress)?;
    let in_doubt = end_doing(&mut server, &channel, &mut stand, settings, log, progress)?;
    let logged = server.has_own_logged(settings);
    let control = &mut server.control;
    if logged && stand.slots {
        channel.tell_replicas(control, &stand)?;
    }
    if let Some(why) = forgives(control)? {
        match settings.difference {
            Difference::Stop => {
                return Err(NotBegun::fatal(format!(
                    "{why} Or set difference = repair."
                )));
            }
            Difference::Repair => log.say(Level::Warning, &why),
        }
    }
    let there = match server.gtids {
        true => Some(gtids::logged(control)?),
        false => None,
    };
    let beside = Beside::ask(control)?;
    let facts = Facts::read(&mut server)?;
    let control = &mut server.control;
    let known = Known::read(control)?;
    let spelled = match cases::filter(settings, known.is_of_any_case(), progress, log) {
        Ok(filter) => Settings {
            filter,
            ..settings.clone()
        },
        Err(why) => return Err(NotBegun::Over(End::Again(why))),
    };
    let settings = &spelled;
    cases::warn(&settings.filter, control, &known, log)?;
    let xa = Phases::new(
        channel.prepared(control)?,
        &stand.position,
        settings,
        logged,
        facts.packet_max,
    );
    // A key takes a page or two; the rest is for what is being applied, and for others.
    let ahead_max = usize::max(facts.pages / 8, 64);
    let shared = Arc::new(Shared::new(settings, stand.position.to_string(), ahead_max));
    progress.attach(&shared);
    warn_if_back(&stand, log, progress);
    let crew = Crew {
        settings,
        log,
        progress,
        channel: &channel,
        shared: &shared,
        facts: &facts,
        beside,
    };
    let threads = crew.threads(&mut server, stand.epoch, in_doubt)?;
    let binlog = server.logs && settings.binlog;
    let begun = Begun {
        known,
        stand,
        channel: &channel,
        xa,
        own: facts.own.clone(),
        node: server.node,
        logged: there,
        log,
    };
    crew.run(threads, server.control, begun, binlog);
    Ok(shared.take_end())
}

/// From here on nobody older commits anything on this channel; what there is of it is answered.
fn take_over(
    server: &mut Server,
    channel: &Channel,
    settings: &Settings,
    log: &Log,
    progress: &Progress,
) -> Result<Stand, NotBegun> {
    let logged = server.has_own_logged(settings);
    let control = &mut server.control;
    let own = || {
        progress
            .epoch
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    };
    // Whoever has begun since this one last did is to go on.
    let mine = *own();
    let is_new = channel.is_new(control)?;
    if let Some(mine) = mine
        && !is_new
        && channel.epoch(control)?.is_some_and(|newest| newest > mine)
    {
        return Err(NotBegun::fatal(ANOTHER));
    }
    // A row that this process has found is no less gone if nothing has come since.
    let found = mine.is_some() && !progress.is_new.load(Ordering::Relaxed);
    if is_new && (found || progress.has_applied()) {
        return Err(NotBegun::fatal(gone(settings)));
    }
    if is_new && let Some(why) = lacks_start(control, settings)? {
        return Err(NotBegun::fatal(why));
    }
    // Before the row is there: if this fails behind it, the next session knows whose it is.
    progress.is_new.fetch_or(is_new, Ordering::Relaxed);
    // Told to end, it must not wait for long for the lock of a commit that is under way.
    control.query(b"SET SESSION innodb_lock_wait_timeout=5")?;
    if !server.gtids
        && let Some(why) = channel.widen(control, &settings.start, logged)?
        && !progress.told_of_columns.swap(true, Ordering::Relaxed)
    {
        log.say(Level::Warning, &why);
    }
    // Whether the next epoch is this one's nobody knows if the answer is lost.
    *own() = None;
    let start = Start {
        at: &settings.start,
        is_new,
    };
    let stand = channel.begin(control, settings.order, start, logged)?;
    *own() = Some(stand.epoch);
    if !stand.is_at(&settings.start) {
        progress.is_new.store(false, Ordering::Relaxed);
    }
    if mine.is_none() && !stand.position.covers(&settings.start) {
        return Err(NotBegun::fatal(lies_before(&stand, settings, channel)));
    }
    if mine.is_none() {
        say_passed_over(&stand, is_new, settings, log);
    }
    say_begun(server, &stand, settings, log);
    if server.gtids
        && let Some(why) = gtids::has_gaps(&stand.position, &stand.ahead)
    {
        return Err(NotBegun::fatal(why));
    }
    let control = &mut server.control;
    if let Some(end) = fence(control, channel, stand.epoch, log, progress)? {
        return Err(NotBegun::Over(end));
    }
    control.query(b"SET SESSION innodb_lock_wait_timeout=DEFAULT")?;
    match channel.hold(control, Place::Control)? {
        true => Ok(stand),
        false => Err(NotBegun::another()),
    }
}

/// Why a channel cannot begin with the oldest that the source has: that would come to a copy of what the source
/// has made of it since.
fn lacks_start(control: &mut Client, settings: &Settings) -> Result<Option<String>, ClientError> {
    if settings.beginning || !settings.start.is_empty() {
        return Ok(None);
    }
    let found = has_data(control)?;
    Ok(found.map(|found| {
        format!(
            "The channel {} is new, start is empty, and the target is not: {found}. All since the source's oldest binlog would be applied to \
             what is there. Nothing was applied. Set start to the GTID position of the copy of the source's data that the target has \
             (gtid_slave_pos, if its own threads followed the source up to there); or start = beginning, if what is there is not \
             the source's.",
            settings.channel
        )
    }))
}

/// The channel lacks some of what its `start` says that the target has.
fn lies_before(stand: &Stand, settings: &Settings, channel: &Channel) -> String {
    let Settings {
        start,
        channel: name,
        ..
    } = settings;
    format!(
        "start = {start}, but the channel {name} has its row in dromon_replica.position, and stands at '{}', which lacks some of it. If the \
         data are a newer copy, what lies between would be applied to them once more. Nothing was applied. If they are what this channel \
         has applied, take start out of the settings: it goes on from where it stands. If they are a copy at that start: {}; then start \
         this again",
        stand.position,
        channel.removed_by()
    )
}

/// This process has applied on a channel, or gone on with it, whose row is not there any more.
fn gone(settings: &Settings) -> String {
    format!(
        "The row of the channel {} in dromon_replica.position is gone, or this is another target than before: what is applied \
         on it so far is not known there. Nothing was applied to it. If that is right, start this again with the start that is right \
         for the data there",
        settings.channel
    )
}

/// A start that is given, and is not where the channel goes on.
fn say_passed_over(stand: &Stand, is_new: bool, settings: &Settings, log: &Log) {
    if settings.start.is_empty() || stand.is_at(&settings.start) {
        return;
    }
    let (level, why) = match is_new {
        true => (
            Level::Warning,
            "has commits of an earlier one in dromon_replica.commits, or another replica has just begun it",
        ),
        false => (
            Level::Note,
            "is not new. Its row in dromon_replica.position says where it goes on",
        ),
    };
    let text = format!(
        "start = {} is not looked at: the channel {} {why}: behind {}.",
        settings.start, settings.channel, stand.position
    );
    log.say(level, &text);
}

fn say_begun(server: &Server, stand: &Stand, settings: &Settings, log: &Log) {
    let adapted = |is_fixed| match is_fixed {
        true => "",
        false => " at first",
    };
    log.say(
        Level::Note,
        &format!(
            "Applies to {} ({}){} with {} threads{}, mode {}, up to {}{} transactions in one{}{}; {} is applied{}.",
            settings.target.address,
            server.control.version,
            if server.control.is_encrypted() { ", encrypted," } else { "" },
            settings.threads.level(),
            adapted(settings.threads.is_fixed()),
            settings.mode,
            settings.merge.unwrap_or(unit_size::FIRST),
            adapted(settings.merge.is_some()),
            if server.gtids { ", which have their GTIDs in its binlog" } else { "" },
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
}

/// What was under way when an earlier session ended: the position passes it if it was done.
fn end_doing(
    server: &mut Server,
    channel: &Channel,
    stand: &mut Stand,
    settings: &Settings,
    log: &Log,
    progress: &Progress,
) -> Result<Option<InDoubt>, NotBegun> {
    let Some(doing) = stand.doing.clone() else {
        return Ok(None);
    };
    let control = &mut server.control;
    match settle(settings, log, progress, control, &doing, server.logs)? {
        Settled::Done => {
            stand.position.set(doing.gtid);
            let mut text = Vec::new();
            channel.put_move(&mut text, stand.epoch, None, &stand.position.to_string());
            control.query(&text)?;
            Ok(None)
        }
        Settled::Again(sure, steps) => Ok(Some(InDoubt {
            gtid: doing.gtid,
            sure,
            steps,
        })),
        Settled::Stop(end) => Err(NotBegun::Over(end)),
    }
}

fn warn_if_back(stand: &Stand, log: &Log, progress: &Progress) {
    let Some(lost) = progress.position(&stand.position) else {
        return;
    };
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

/// What all threads of a session have in common.
struct Crew<'s> {
    settings: &'s Settings,
    log: &'s Log,
    progress: &'s Arc<Progress>,
    channel: &'s Channel,
    shared: &'s Arc<Shared>,
    facts: &'s Facts,
    beside: Beside,
}

/// What has a connection of its own. Readers connect when they are wanted.
struct Threads {
    workers: Vec<Worker>,
    readers: Vec<Reader>,
    watcher: Client,
}

impl Crew<'_> {
    /// Opens their connections, all to one server.
    fn threads(
        &self,
        server: &mut Server,
        epoch: u64,
        in_doubt: Option<InDoubt>,
    ) -> Result<Threads, NotBegun> {
        let (settings, shared, channel) = (self.settings, self.shared, self.channel);
        let Facts {
            ref collations,
            packet_max,
            ref own,
            ..
        } = *self.facts;
        shared.connected(server.control.cut());
        match Session::for_alone(settings, shared, channel)? {
            Some(session) => shared.keep_alone(session),
            None => return Err(NotBegun::another()),
        }
        let mut workers = Vec::new();
        for n in 0..settings.threads.max() {
            let mut client = connect(settings, shared)?;
            // A node's server may take whoever has such a lock for one that must not give way to a statement.
            if !server.node && !channel.hold(&mut client, Place::Worker(n))? {
                return Err(NotBegun::another());
            }
            shared.lock().connections[n] = client.id;
            workers.push(Worker {
                number: n,
                session: Session::of(client),
                shared: Arc::clone(shared),
                settings: settings.clone(),
                channel: channel.clone(),
                epoch,
                log: self.log.clone(),
                collations: collations.clone(),
                packet_max: (packet_max / 2).clamp(16 << 10, 1 << 20),
                allowed: packet_max,
                in_doubt: in_doubt.clone(),
                own: own.server,
                node: server.node,
                gtids: server.gtids,
                progress: Arc::clone(self.progress),
                waited: Duration::ZERO,
                behind: Vec::new(),
            });
        }
        let readers = (0..settings.readers.max()).map(|number| Reader {
            number,
            node: server.node,
            settings: settings.clone(),
            channel: channel.clone(),
            collations: collations.clone(),
            packet_max,
            progress: Arc::clone(self.progress),
            log: self.log.clone(),
        });
        let readers = readers.collect();
        let mut watcher = connect(settings, shared)?;
        // It asks how this server is. An epoch that another node has raised it sees when that comes here.
        if server.node {
            as_it_is(&mut watcher)?;
        }
        if !channel.hold(&mut watcher, Place::Watcher)? {
            return Err(NotBegun::another());
        }
        let mut alone = shared.alone();
        let alone = alone.iter_mut().map(|session| &mut session.client);
        let applying = workers.iter_mut().map(|worker| &mut worker.session.client);
        let others = alone.chain(applying).chain([&mut server.control]);
        if let Some(why) = elsewhere(&mut watcher, others)? {
            return Err(NotBegun::fatal(why));
        }
        Ok(Threads {
            workers,
            readers,
            watcher,
        })
    }

    /// Applies until something ends it; this thread plans. `binlog`: the target has what is applied in its own.
    fn run(&self, threads: Threads, control: Client, begun: Begun<'_>, binlog: bool) {
        let (settings, shared, progress, log) =
            (self.settings, self.shared, self.progress, self.log);
        let epoch = begun.stand.epoch;
        let logged = binlog && begun.logged.is_none();
        let (to, from) = mpsc::sync_channel(CHANNEL);
        let link = Arc::new(Link::new(settings.memory as u64));
        progress.link(&link);
        let puller = Puller::new(
            settings.source.clone(),
            begun.stand.position.clone(),
            to,
            Arc::clone(&link),
            log.clone(),
        )
        .for_target(begun.own.server)
        .beside(self.beside.clone(), !settings.filter.is_empty())
        .beginning(progress.is_new.load(Ordering::Relaxed))
        .having_told(Arc::clone(&progress.told_of_source));
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let mut failed = None;
            for worker in threads.workers {
                let number = worker.number;
                let run = move || {
                    guarded(shared, "applies", || worker.run(shared));
                    shared.lock().running[number] = None;
                };
                failed = failed.or(spawn(scope, &format!("apply-{number}"), run));
            }
            for reader in threads.readers {
                let name = format!("read-{}", reader.number);
                let run = move || guarded(shared, "reads ahead", || reader.run(shared));
                failed = failed.or(spawn(scope, &name, run));
            }
            let pull = move || guarded(shared, "follows the source", || puller.run());
            failed = failed.or(spawn(scope, "pull", pull));
            let watcher = threads.watcher;
            let ours = (self.channel, epoch);
            let watch = move || {
                guarded(shared, "watches", || {
                    monitor::run(watcher, ours, shared, settings, progress, log);
                });
            };
            failed = failed.or(spawn(scope, "watch", watch));
            let over = &over;
            let close = move || close::close(shared, progress, over);
            failed = failed.or(spawn(scope, "close", close));
            progress.has_begun();
            match failed {
                Some(error) => shared.end(unusable(ClientError::Thread(error))),
                None => progress.session_has_all(),
            }
            let mut planner = Planner::new(settings, shared, &link, control, begun);
            guarded(shared, "plans", || planner.run(&from));
            link.stop();
            drop(from);
            close::wait(shared, progress, binlog, log);
            match planner.has_not_begun {
                true => self.forget(&mut planner.control, epoch, logged),
                // If that fails now, the next session knows it from the slots.
                false => drop(planner.save()),
            }
            shared.cut();
            over.store(true, Ordering::Release);
        });
        shared.ended.store(true, Ordering::Release);
    }

    /// What was refused is to be begun otherwise, perhaps behind another start.
    fn forget(&self, control: &mut Client, epoch: u64, logged: bool) {
        let start = &self.settings.start;
        if let Err(error) = self.channel.forget(control, epoch, start, logged) {
            let text = format!(
                "The channel's row is to be taken back, as nothing was applied, but: {error}. A next start goes on behind the start of this \
                 one. If it is to begin elsewhere: {}",
                self.channel.removed_by()
            );
            self.log.say(Level::Warning, &text);
        }
    }
}

/// Connects for applying. Whoever ends the session can end it, too.
pub(super) fn connect(settings: &Settings, shared: &Shared) -> Result<Client, ClientError> {
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

/// What is asked over this connection to a node is answered as it stands there. Else an ALTER or a large transaction that
/// other nodes have, and this one not yet, would hold up each answer for as long as it takes, or until the node gives up.
fn as_it_is(client: &mut Client) -> Result<(), ClientError> {
    client.query(b"SET SESSION wsrep_sync_wait=0").map(|_| ())
}

/// Starts a thread that ends with its session; or why not.
fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    run: impl FnOnce() + Send + 'scope,
) -> Option<io::Error> {
    let named = thread::Builder::new().name(format!("dromon-{name}"));
    named.spawn_scoped(scope, run).err()
}

impl Session {
    /// For what runs alone. None: another session of the channel has the lock of such a connection.
    pub(super) fn for_alone(
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

/// Connects for reading ahead: nothing is locked, and no view is kept. `node`: to a node of a cluster.
pub(super) fn connect_to_read(
    settings: &Settings,
    shared: &Shared,
    channel: &Channel,
    (number, node): (usize, bool),
) -> Result<Client, ClientError> {
    let mut client = connect(settings, shared)?;
    if node {
        as_it_is(&mut client)?;
    }
    // Whoever has it now is newer, and ends this session soon: it is read without it.
    channel.hold(&mut client, Place::Reader(number))?;
    client.query(b"SET SESSION tx_isolation='READ-UNCOMMITTED'")?;
    Ok(client)
}

#[cfg(test)]
mod tests {
    use super::super::server::too_old;
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

    /// What the source did long ago is not done to a copy of what it has now.
    #[test]
    fn a_new_channel_says_where_it_begins() {
        for (position, table, row, lines, refused) in [
            (
                "0-1-7",
                None,
                None,
                &[][..],
                Some("gtid_slave_pos is 0-1-7. "),
            ),
            (
                "",
                Some("shop.stock"),
                None,
                &[],
                Some("it has the table shop.stock. "),
            ),
            (
                "0-1-7",
                Some("a.b"),
                None,
                &[],
                Some("is 0-1-7, and it has the table a.b. "),
            ),
            ("", None, None, &[], None),
            ("0-1-7", Some("a.b"), None, &["start = 0-1-7"], None),
            ("0-1-7", Some("a.b"), None, &["start = beginning"], None),
            ("0-1-7", Some("a.b"), Some("3"), &[], None),
        ] {
            let fake = Fake::new(move |text| match text {
                "SELECT @@GLOBAL.gtid_slave_pos" => Some(cell(position)),
                _ if text.contains("NOT IN ('mysql'") => Some(table.map_or(Reply::Nothing, cell)),
                _ if text.starts_with("SELECT epoch FROM") => match row {
                    Some(row) => Some(cell(row)),
                    None if table.is_some() => Some(Reply::Fail(1146)),
                    None => Some(Reply::Nothing),
                },
                _ => None,
            });
            let end = fake_session(&fake, lines);
            let why = match &end {
                End::Fatal(why) if why.contains("start is empty") => Some(why),
                _ => None,
            };
            assert_eq!(why.is_some(), refused.is_some(), "{end:?}");
            let made = fake.said().iter().any(|text| text.starts_with("CREATE"));
            match (why, refused) {
                (Some(why), Some(says)) => assert!(why.contains(says) && !made, "{why}"),
                _ => assert!(fake.said().iter().any(|text| text == "BEGIN"), "it begins"),
            }
        }
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

    /// Who only looks does not wait for what a node has not applied yet.
    #[test]
    fn what_is_read_on_a_node_as_it_is() {
        for node in [false, true] {
            let fake = Fake::new(|text| text.contains(" GET_LOCK(").then(|| cell("1")));
            let settings = settings(&fake, &[]);
            let shared = Shared::new(&settings, String::new(), 64);
            let channel = Channel::new("c");
            connect_to_read(&settings, &shared, &channel, (0, node)).expect("a target");
            let said = fake.said();
            let at = |text: &str| said.iter().position(|said| said.starts_with(text));
            let set = at("SET SESSION wsrep_sync_wait=0");
            assert_eq!(set.is_some(), node, "{said:?}");
            assert!(set < at("SELECT GET_LOCK("), "{said:?}");
        }
    }

    /// A proxy greets with a number of its own, which no lock has.
    #[test]
    fn connections_have_the_numbers_of_the_target() {
        let fake = Fake::new(|text| (text == "SELECT CONNECTION_ID()").then(|| cell("4711")));
        let settings = settings(&fake, &[]);
        let client = connect(&settings, &Shared::new(&settings, String::new(), 64));
        assert_eq!(client.expect("a target").id, 4711);
    }
    /// A target that is full, or that lets nobody in now, is not given up.
    #[test]
    fn errors_that_pass() {
        for (code, passes) in [
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
    /// One that has run out of something is waited for, at its door and behind it.
    #[test]
    fn what_runs_out_comes_back() {
        for (code, what) in [
            (1021, "disk"),
            (1037, "memory"),
            (1038, "memory"),
            (1040, "leave to connect"),
            (1041, "memory"),
            (1114, "room"),
            (1135, "thread on the target"),
            (1203, "leave to connect"),
            (1226, "leave to connect"),
        ] {
            for at in ["connect", "BEGIN"] {
                let fake = Fake::new(move |text| (text == at).then_some(Reply::Fail(code)));
                let end = fake_session(&fake, &[]);
                assert!(
                    matches!(&end, End::Waits(waits) if waits.what.contains(what) && waits.at.is_none()),
                    "{code} at {at}: {end:?}"
                );
            }
        }
        // And this host.
        let none = ClientError::Thread(io::ErrorKind::WouldBlock.into());
        let end = unusable(none);
        assert!(
            matches!(&end, End::Waits(waits) if waits.what.contains("a thread on this host")),
            "{end:?}"
        );
    }
}
