//! Makes units of transactions, and places them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use dromon_binlog::hints::{Barrier, Collector, Union, WriteSet};
use dromon_binlog::{
    Ending, Event, EventType, Gtid, Payload, Position, Query, Seen, Step, gtid_flags,
};

use dromon_relay::log::{Level, Log};
use rustc_hash::FxHashSet;

use super::begin::another;
use super::own::{Own, not_its_own};
use super::server::elsewhere;
use super::shared::Session;
use super::xa::Phases;
use super::{End, HISTORY_KEYS, Settings, Shared, gtids, limits};
use crate::ahead::Ahead;
use crate::catalog::{Care, Known, Tables, Touched};
use crate::client::{Client, ClientError};
use crate::compile::{Filter, OWN, is_frame, is_place, is_savepoint, touched};
use crate::names::makes_table;
use crate::schedule::{Facts, Order, Placer};
use crate::source::{Came, Link};
use crate::target::{Channel, Stand};
use crate::unit::{Alone, Made, Transaction, Unit};
use crate::xa::without_rows;

/// Units between being planned and having committed, for each worker.
const WINDOW: usize = 4;
/// The same, for all together, where units are read ahead.
const READ_WINDOW: usize = 96;
/// How long it waits for more before it looks whether workers are idle.
const LOOK: Duration = Duration::from_micros(500);
/// The same while nothing comes.
const IDLE: Duration = Duration::from_millis(20);
/// Statements that are longer may have changed any table.
const STATEMENT_MAX: usize = 1 << 20;
/// How often the position is written for others to read.
const SAVE: Duration = Duration::from_millis(500);

/// What was found out about a transaction.
struct Found {
    set: WriteSet,
    alone: Option<Alone>,
    careful: bool,
    databases: BTreeSet<Vec<u8>>,
    /// Tables that may have changed.
    schema: Option<Touched>,
    /// Not all that it would change is left out by the filter.
    changes: bool,
    /// Something of it is left out by the filter, and nothing is applied.
    left_out: bool,
    /// Rows of a table without a unique key are among it.
    keyless: bool,
}

/// Transactions that will be one unit.
struct Open {
    transactions: Vec<Transaction>,
    set: Union,
    careful: bool,
    databases: BTreeSet<Vec<u8>>,
    group: Option<(u32, u64)>,
    bytes: usize,
    left_out: u64,
    keyless: u64,
    /// Of each, the last unit with which it conflicts, if that counts.
    last_before: Vec<u64>,
}

impl Default for Open {
    fn default() -> Self {
        Open {
            transactions: Vec::new(),
            set: Union::new(limits().transaction_keys),
            careful: false,
            databases: BTreeSet::new(),
            group: None,
            bytes: 0,
            left_out: 0,
            keyless: 0,
            last_before: Vec::new(),
        }
    }
}

/// What a session has found when it begins.
pub(super) struct Begun<'s> {
    pub known: Known,
    pub stand: Stand,
    pub channel: &'s Channel,
    pub xa: Phases,
    /// What the target wrote itself.
    pub own: Own,
    /// It is a node of a cluster.
    pub node: bool,
    /// Where the target's binlog was, if what is applied has the source's GTIDs there.
    pub logged: Option<Position>,
    pub log: &'s Log,
}

pub(super) struct Planner<'s> {
    pub(super) settings: &'s Settings,
    pub(super) shared: &'s Shared,
    link: &'s Link,
    pub(super) control: Client,
    collector: Collector,
    placer: Placer,
    pub(super) tables: Arc<Tables>,
    known: Known,
    position: Position,
    /// What the target has of what follows the position.
    ahead: Ahead,
    pub(super) channel: &'s Channel,
    pub(super) xa: Phases,
    /// What the target wrote itself.
    own: Own,
    /// It is a node of a cluster.
    node: bool,
    /// See [`Begun::logged`].
    logged: Option<Position>,
    /// What was under way when the last run ended.
    under_way: Option<Gtid>,
    pub(super) log: &'s Log,
    epoch: u64,
    /// The position that stands in the target, and since when.
    saved: (String, Instant),
    open: Open,
    /// Tables that may have changed since they were read. Several such statements in a row need
    /// one reading.
    stale: Option<Touched>,
    /// It was said that the other nodes may have written what came back.
    told_of_lacking: bool,
    /// The session of what runs alone may have temporary tables.
    ran_alone: bool,
    /// A new channel was refused before anything came: its row would keep the next start from where it is to begin.
    pub(super) has_not_begun: bool,
}

impl<'s> Planner<'s> {
    pub(super) fn new(
        settings: &'s Settings,
        shared: &'s Shared,
        link: &'s Link,
        control: Client,
        begun: Begun<'s>,
    ) -> Planner<'s> {
        let Begun {
            known,
            stand,
            channel,
            xa,
            own,
            node,
            logged,
            log,
        } = begun;
        shared.prepared.store(xa.len(), Ordering::Relaxed);
        let mut collector = Collector::new(limits());
        let tables = known.prepare();
        collector.learn(Arc::clone(tables.catalog()));
        Planner {
            settings,
            shared,
            link,
            control,
            collector,
            placer: Placer::new(settings.mode, HISTORY_KEYS),
            tables: Arc::new(tables),
            known,
            saved: (stand.position.to_string(), Instant::now()),
            position: stand.position,
            ahead: stand.ahead,
            channel,
            xa,
            own,
            node,
            logged,
            under_way: stand.doing.map(|doing| doing.gtid),
            log,
            epoch: stand.epoch,
            open: Open::default(),
            stale: None,
            told_of_lacking: false,
            ran_alone: false,
            has_not_begun: false,
        }
    }

    /// Until the session ends. Then [`Planner::save`] may be called again.
    pub(super) fn run(&mut self, from: &Receiver<Came>) {
        loop {
            if self.shared.lock().has_ended() {
                return;
            }
            if self.saved.1.elapsed() > SAVE
                && let Err(error) = self.save()
            {
                return self.shared.end(End::again(&error, error.to_string()));
            }
            let came = match from.try_recv() {
                Ok(came) => came,
                Err(TryRecvError::Disconnected) => {
                    return self
                        .shared
                        .end(End::Again("the source is not followed any more".into()));
                }
                Err(TryRecvError::Empty) => {
                    // Nothing more is there: what there is need not wait if workers are free.
                    let idle = {
                        let core = self.shared.lock();
                        core.scheduler.len() < self.settings.threads.max().min(2)
                    };
                    if idle {
                        self.seal();
                    }
                    let nothing = self.open.transactions.is_empty();
                    match from.recv_timeout(if nothing { IDLE } else { LOOK }) {
                        Ok(came) => came,
                        Err(RecvTimeoutError::Timeout) => continue,
                        Err(RecvTimeoutError::Disconnected) => continue,
                    }
                }
            };
            match came {
                Came::Refused(why) => return self.refused(&why),
                Came::NotBegun(why) => {
                    self.has_not_begun = true;
                    return self.refused(&why);
                }
                Came::Restarted => {
                    if let Err(end) = self.restarted() {
                        return self.shared.end(end);
                    }
                }
                Came::Transaction(transaction) => {
                    let bytes = transaction.bytes();
                    self.link.waiting.fetch_sub(bytes as u64, Ordering::Relaxed);
                    if let Err(end) = self.take(*transaction, bytes) {
                        return self.end_behind(end);
                    }
                }
            }
        }
    }

    /// The source has nothing more. What it sent before may be there no more when it is asked again.
    fn refused(&mut self, why: &str) {
        if !self.open.transactions.is_empty() || !self.shared.lock().scheduler.is_empty() {
            let text = format!("The source: {why}. What it sent before that is applied first.");
            self.log.say(Level::Warning, &text);
        }
        self.end_behind(End::Fatal(format!("The source: {why}.")));
    }

    /// What comes next cannot be applied. People are told that all before it is in the target, and may put the
    /// position behind it: so all of that comes first. If the session ends meanwhile, that reason counts.
    fn end_behind(&mut self, end: End) {
        if matches!(end, End::Fatal(_)) {
            self.drain();
        }
        self.shared.end(end);
    }

    /// Where commits are not one after the other, their position is written now and then for
    /// others to read; what is there is known without it.
    pub(super) fn save(&mut self) -> Result<(), ClientError> {
        self.saved.1 = Instant::now();
        if self.settings.order == Order::Strict {
            return Ok(());
        }
        let base = {
            let core = self.shared.lock();
            // One that runs alone writes it itself, and later.
            match core.units.iter().any(|unit| unit.alone.is_some()) {
                true => return Ok(()),
                false => core.base.clone(),
            }
        };
        if base != self.saved.0 {
            let mut text = Vec::new();
            self.channel.put_save(&mut text, self.epoch, &base);
            self.control.query(&text)?;
            self.saved.0 = base;
        }
        Ok(())
    }

    fn take(&mut self, transaction: Transaction, bytes: usize) -> Result<(), End> {
        if self.ahead.has(transaction.gtid) {
            self.xa.passes(transaction.gtid);
            self.seal();
            self.open.bytes = bytes;
            self.open.transactions.push(transaction);
            self.seal_as(None, true);
            return Ok(());
        }
        let gtid = transaction.gtid;
        if gtid.server != self.own.server
            && let Some(logged) = &self.logged
            && let Some(why) = gtids::misplaced(logged, gtid, self.under_way)
        {
            return Err(End::Fatal(why));
        }
        let transaction = match gtid.server == self.own.server {
            true => self.came_back(&transaction)?,
            false => self.phase(transaction)?,
        };
        let last = self.open.transactions.last();
        if last.is_some_and(|last| last.gtid.server != transaction.gtid.server) {
            // In the target's binlog a transaction is of one server.
            self.seal();
        }
        // Of others it counts, too, whether all tables can be rolled back.
        let flags = gtid_flags::STANDALONE | gtid_flags::TRANSACTIONAL;
        let unsure = transaction.group.flags & flags == 0;
        if self.stale.is_some() && (unsure || transaction.has_rows()) {
            self.read_again()?;
        }
        let found = look(
            &mut self.collector,
            &self.tables,
            &self.settings.filter,
            &transaction,
        )
        .map_err(|error| End::Fatal(format!("{} cannot be read: {error}.", transaction.gtid)))?;
        // What came back was done by others meanwhile.
        if gtid.server == self.own.server || transaction.events.len() > 1 && found.changes {
            let tables = match gtid.server == self.own.server || found.schema.is_some() {
                true => None,
                false => self.touches_of(&transaction),
            };
            self.xa.changed(tables);
        }
        let id = transaction.group.commit_id;
        let group = id.map(|id| (transaction.gtid.domain, id));
        let single = found.alone.is_some() || found.set.barrier().is_some();
        if single || self.open.bytes + bytes > self.settings.merge_bytes {
            self.seal();
        }
        let open = &mut self.open;
        if open.transactions.is_empty() {
            open.group = group;
        } else if open.group != group {
            open.group = None;
        }
        open.set.add(&found.set);
        open.careful |= found.careful;
        open.databases.extend(found.databases);
        open.bytes += bytes;
        open.left_out += u64::from(found.left_out);
        open.keyless += u64::from(found.keyless);
        open.last_before.extend(self.placer.last_before(&found.set));
        open.transactions.push(transaction);
        if single
            || open.transactions.len() >= self.shared.merge.load(Ordering::Relaxed)
            || open.bytes >= self.settings.merge_bytes
            || open.set.len() >= limits().transaction_keys / 2
        {
            self.seal_as(found.alone, false);
        }
        if let Some(touched) = found.schema {
            self.stale = Some(match self.stale.take() {
                None => touched,
                Some(before) => before.and(touched),
            });
        }
        Ok(())
    }

    /// Whether the tables are as they were read.
    pub(super) fn knows_tables(&self) -> bool {
        self.stale.is_none()
    }

    /// Which tables a transaction changes; `None`: it may be any, or nobody asks.
    fn touches_of(&self, transaction: &Transaction) -> Option<crate::compile::Touched> {
        if self.xa.len() == 0 || !self.knows_tables() {
            return None;
        }
        let how = (transaction.checksum(), &transaction.form.format);
        let filter = &self.settings.filter;
        touched(transaction.events.iter(), how, filter, &self.tables, false)
    }

    /// What the target wrote itself has gone round: it is there.
    fn came_back(&mut self, transaction: &Transaction) -> Result<Transaction, End> {
        let gtid = transaction.gtid;
        // Of what is not applied nothing can be missing: as the tables and rows of a replica, which go round, too.
        let lacks = match is_left_out(transaction, &self.settings.filter) {
            true => None,
            false => self
                .own
                .lacks(&mut self.control, gtid)
                .map_err(|error| End::again(&error, error.to_string()))?,
        };
        match lacks {
            Some(found) if !self.node && self.own.wrote_nothing() => {
                let why = not_its_own(gtid, &found, &self.settings.channel);
                return Err(End::Fatal(why));
            }
            // The binlog of a node need not have what the others wrote, nor by the same numbers; nor that of a target
            // from which somebody took what he numbered anew.
            Some(found) if !std::mem::replace(&mut self.told_of_lacking, true) => {
                let text = format!(
                    "{gtid} has the target's server_id, {}, and is passed over, as all like it. The target {found}: if neither it, by another \
                     number, nor another node of its cluster wrote that, it is missing there. Is this server_id that of the target (or its \
                     cluster) alone, and is the target no older copy of the server that wrote it?",
                    gtid.server
                );
                self.log.say(Level::Warning, &text);
            }
            _ => {}
        }
        if self.shared.came_back.fetch_add(1, Ordering::Relaxed) == 0 && !self.told_of_lacking {
            let text = format!(
                "{gtid} is of the target's own server_id, {}: it came back from there, and is passed over, as all like it.",
                gtid.server
            );
            self.log.say(Level::Note, &text);
        }
        if transaction.group.flags & (gtid_flags::STANDALONE | gtid_flags::DDL) != 0 {
            self.stale = Some(Touched::All);
        }
        Ok(without_rows(transaction))
    }

    pub(super) fn seal(&mut self) {
        self.seal_as(None, false);
    }

    /// Waits until the target has all that was planned. False: the session has ended.
    pub(super) fn drain(&mut self) -> bool {
        self.seal();
        let mut core = self.shared.lock();
        while !core.scheduler.is_empty() && !core.has_ended() {
            core = self.shared.wait(&self.shared.room, core);
        }
        !core.has_ended()
    }

    /// The source was started anew: temporary tables that it had before must be in nobody's way, nor be read. One that
    /// crashed has not said that they are gone, and gives the numbers of its threads, by which they are told apart,
    /// once more. They belong to the session of what runs alone, so another one takes its place behind all of that.
    fn restarted(&mut self) -> Result<(), End> {
        if !std::mem::take(&mut self.ran_alone) || !self.drain() {
            return Ok(());
        }
        let lost = |error: ClientError| {
            let why = format!(
                "the source was started anew, and no session of the target could be had that is without its temporary tables: {error}"
            );
            End::again(&error, why)
        };
        let old = self.shared.alone().take();
        if let Some(old) = old {
            // With it goes its lock.
            old.client.cut().cut();
        }
        let session = Session::for_alone(self.settings, self.shared, self.channel);
        let Some(mut session) = session.map_err(lost)? else {
            return Err(another());
        };
        match elsewhere(&mut self.control, [&mut session.client].into_iter()).map_err(lost)? {
            Some(why) => return Err(End::Fatal(why)),
            None => self.shared.keep_alone(session),
        }
        self.log.say(
            Level::Note,
            "The source was started anew: its temporary tables are gone, on the target too.",
        );
        Ok(())
    }

    /// `done`: the target has it.
    fn seal_as(&mut self, alone: Option<Alone>, done: bool) {
        let open = std::mem::take(&mut self.open);
        if open.transactions.is_empty() {
            return;
        }
        self.ran_alone |= alone.is_some();
        let before = self.position.to_string();
        let ahead = Ahead::between(&self.position, open.transactions.iter().map(|t| t.gtid));
        for transaction in &open.transactions {
            self.position.set(transaction.gtid);
        }
        let databases: Vec<Vec<u8>> = open.databases.into_iter().collect();
        let set = open.set.finish();
        let threads = self.shared.threads.load(Ordering::Relaxed);
        let after = self.placer.place(&Facts {
            alone: alone.is_some(),
            careful: open.careful,
            commit_group: open.group,
            databases: &databases,
            set: &set,
            last_before: &open.last_before,
            threads,
        });
        let last = after.comes_last(&open.last_before);
        let unit = Arc::new(Unit {
            transactions: open.transactions,
            before,
            ahead,
            done,
            position: self.position.to_string(),
            tables: Arc::clone(&self.tables),
            alone,
            keys: Arc::new(set),
            last,
            bytes: open.bytes,
            left_out: open.left_out,
            keyless: open.keyless,
            made: Made::default(),
        });
        let mut window = WINDOW * threads;
        if self.shared.readers.load(Ordering::Relaxed) > 0 {
            window = window.max(READ_WINDOW);
        }
        let mut core = self.shared.lock();
        let bytes = self.settings.memory;
        while !core.has_room(window.min(self.shared.window(&core)), bytes) && !core.has_ended() {
            core = self.shared.wait(&self.shared.room, core);
        }
        core.push(after, unit);
        drop(core);
        self.shared.start.notify_one();
    }

    /// A table may have changed: when the target has done all so far, its tables are read.
    fn read_again(&mut self) -> Result<(), End> {
        self.shared.reading.store(true, Ordering::Relaxed);
        if self.drain() {
            let touched = self.stale.take().unwrap_or(Touched::All);
            self.known
                .read_again(&mut self.control, &touched)
                .map_err(|error| End::again(&error, error.to_string()))?;
            let tables = self.known.prepare();
            self.collector.learn(Arc::clone(tables.catalog()));
            self.tables = Arc::new(tables);
            self.placer.settle();
        }
        self.shared.reading.store(false, Ordering::Relaxed);
        Ok(())
    }
}

/// Whether nothing of a transaction would be applied, whoever wrote it. What cannot be read may be something.
fn is_left_out(transaction: &Transaction, filter: &Filter) -> bool {
    let format = &transaction.form.format;
    let leaves_out = |query: &Query<'_>| {
        let text = query.text(STATEMENT_MAX);
        text.is_ok_and(|text| filter.wants_statement(&text, query.database) == Ok(false))
    };
    transaction.events().all(|event| {
        let Ok(event) = event else { return false };
        match event.decode(format) {
            Ok(Payload::TableMap(map)) => !filter.wants(map.database, map.table),
            Ok(Payload::Query(query)) => {
                let begin = query.begin();
                is_frame(&begin) || is_place(&begin) || leaves_out(&query)
            }
            Ok(Payload::LoadQuery(load)) => leaves_out(&load.query),
            Ok(_) => true,
            Err(_) => false,
        }
    })
}

/// Finds out about a transaction. Rows of tables that are left out count for nothing.
fn look(
    collector: &mut Collector,
    tables: &Tables,
    filter: &Filter,
    transaction: &Transaction,
) -> Result<Found, dromon_binlog::EventError> {
    let format = &transaction.form.format;
    let group = transaction.group;
    // What an earlier one made it forget is known already.
    collector.take_lost();
    let mut set = None;
    let mut databases = BTreeSet::new();
    let mut left_out = FxHashSet::default();
    let mut statements = false;
    let mut sets = false;
    let mut makes = false;
    // Statements and rows, as far as they are told apart here.
    let mut steps = 0;
    let mut final_tables = false;
    let mut care = Care::default();
    let mut touched: Option<Touched> = None;
    let (mut applied, mut passed_over) = (false, false);
    // What cannot be read, or is refused, is told when it is to be applied.
    let wants = |query: &Query<'_>| match query.text(STATEMENT_MAX) {
        Ok(text) if !filter.is_empty() => {
            filter.wants_statement(&text, query.database) != Ok(false)
        }
        _ => true,
    };
    let last = transaction.events.len() - 1;
    for (n, raw) in transaction.events.iter().enumerate() {
        let event = Event::parse_unverified(raw, transaction.checksum())?;
        match event.decode(format)? {
            Payload::TableMap(map) if !filter.wants(map.database, map.table) => {
                left_out.insert(map.table_id);
                passed_over = true;
                continue;
            }
            Payload::Rows(rows) if left_out.contains(&rows.table_id) => continue,
            Payload::TableMap(map) => {
                left_out.remove(&map.table_id);
                applied = true;
                steps += 1;
                databases.insert(map.database.to_vec());
                let table = tables.find(map.database, map.table);
                if let Some(table) = table {
                    final_tables |= !table.transactional;
                    care.triggers_run |= table.care.fires(&map);
                    care.versions |= table.care.versions;
                    care.keyless |= table.care.keyless;
                }
            }
            Payload::Query(query) => {
                let begin = query.begin();
                let statement = !is_frame(&begin) && !is_savepoint(&begin);
                if statement {
                    let text = query.text(STATEMENT_MAX);
                    let by = match &text {
                        Ok(text) => Touched::by(text, query.database),
                        Err(_) => Touched::All,
                    };
                    makes |= steps == 0 && text.is_ok_and(|text| makes_table(&text));
                    steps += 1;
                    match wants(&query) {
                        _ if is_place(&begin) => {}
                        true => applied = true,
                        false => passed_over = true,
                    }
                    touched = Some(match touched {
                        None => by,
                        Some(before) => before.and(by),
                    });
                }
                statements |= statement;
                // SET STATEMENT … FOR: some of its variables cannot be set in a transaction.
                let word = begin.get(..4).unwrap_or_default();
                sets |= word.eq_ignore_ascii_case(b"SET ");
            }
            Payload::LoadQuery(load) => {
                statements = true;
                match wants(&load.query) {
                    true => applied = true,
                    false => passed_over = true,
                }
            }
            Payload::FileBlock(_) | Payload::DeleteFile(_) => statements = true,
            Payload::Other(_) => {
                statements |= matches!(
                    event.kind(),
                    EventType::INTVAR | EventType::RAND | EventType::USER_VAR
                );
            }
            _ => {}
        }
        let step = match n {
            _ if n == last && n == 0 => Step::Alone(group, transaction.ending),
            0 => Step::Begin(group),
            _ if n == last => Step::End(group, transaction.ending),
            _ => Step::Within,
        };
        let seen = Seen {
            event,
            step,
            abandoned: None,
        };
        set = collector.event(&seen, format).or(set);
    }
    let mut set = set.unwrap_or_default();
    if let Some(own) = &transaction.own {
        set.name(&own.name);
        databases.insert(OWN.to_vec());
    }
    let schema = collector.catalog().is_none();
    let flag = |flag| group.flags & flag != 0;
    // Of others it cannot be told whether they commit by themselves.
    let can_be_rolled_back =
        flag(gtid_flags::TRANSACTIONAL) && transaction.ending == Ending::Xid && !sets;
    // A transaction that made or dropped a temporary table has the flag of a DDL, too, but it was one on the
    // source, and must be one here: of several statements only a first one can commit by itself.
    let by_itself = makes || sets && steps == 1 || transaction.ending == Ending::Statement;
    let statement_alone = flag(gtid_flags::STANDALONE)
        || by_itself && (flag(gtid_flags::DDL) || schema && !can_be_rolled_back);
    // It runs in a transaction, so that it can be rolled back as far as it was on the source.
    let rolled_back = transaction.ending == Ending::Rollback;
    let alone = if statements && statement_alone && !rolled_back {
        Some(Alone::Statement)
    } else if !flag(gtid_flags::TRANSACTIONAL)
        || final_tables
        || matches!(transaction.ending, Ending::Commit | Ending::Rollback)
    {
        Some(Alone::NotTransactional)
    } else if statements {
        Some(Alone::Within)
    } else {
        match set.barrier() {
            Some(Barrier::UnknownTable(_) | Barrier::UnknownEvent(_) | Barrier::Damaged) => {
                Some(Alone::UnknownTable)
            }
            _ if care.triggers_run => Some(Alone::Triggers),
            _ if care.versions => Some(Alone::Versions),
            _ => None,
        }
    };
    Ok(Found {
        set,
        alone,
        careful: flag(gtid_flags::WAITED) || !flag(gtid_flags::ALLOW_PARALLEL),
        databases,
        schema: collector
            .take_lost()
            .then(|| touched.unwrap_or(Touched::All)),
        changes: applied || !passed_over,
        left_out: passed_over && !applied && transaction.own.is_none(),
        keyless: care.keyless,
    })
}

#[cfg(test)]
mod tests;
