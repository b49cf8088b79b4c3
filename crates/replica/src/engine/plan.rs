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
use super::server::elsewhere;
use super::shared::Session;
use super::xa::Phases;
use super::{End, HISTORY_KEYS, Settings, Shared, gtids, limits};
use crate::ahead::Ahead;
use crate::catalog::{Known, Tables, Touched};
use crate::client::{Client, ClientError};
use crate::compile::{Filter, OWN, is_frame, is_place, is_savepoint};
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
    /// Something of it is left out by the filter, and nothing is applied.
    left_out: bool,
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
    /// Number of the target as a server.
    pub own: u32,
    /// Where the target's binlog was, if what is applied has the source's GTIDs there.
    pub logged: Option<Position>,
    pub log: &'s Log,
}

pub(super) struct Planner<'s> {
    settings: &'s Settings,
    pub(super) shared: &'s Shared,
    link: &'s Link,
    pub(super) control: Client,
    collector: Collector,
    placer: Placer,
    tables: Arc<Tables>,
    known: Known,
    position: Position,
    /// What the target has of what follows the position.
    ahead: Ahead,
    pub(super) channel: &'s Channel,
    pub(super) xa: Phases,
    /// Number of the target as a server.
    own: u32,
    /// See [`Begun::logged`].
    logged: Option<Position>,
    /// What was under way when the last run ended.
    under_way: Option<Gtid>,
    log: &'s Log,
    epoch: u64,
    /// The position that stands in the target, and since when.
    saved: (String, Instant),
    open: Open,
    /// Tables that may have changed since they were read. Several such statements in a row need
    /// one reading.
    stale: Option<Touched>,
    /// The session of what runs alone may have temporary tables.
    ran_alone: bool,
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
            logged,
            under_way: stand.doing.map(|doing| doing.gtid),
            log,
            epoch: stand.epoch,
            open: Open::default(),
            stale: None,
            ran_alone: false,
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
                return self.shared.end(End::Again(error.to_string()));
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
                Came::Refused(why) => {
                    return self.shared.end(End::Fatal(format!("The source: {why}.")));
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
                        return self.shared.end(end);
                    }
                }
            }
        }
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
            self.seal();
            self.open.bytes = bytes;
            self.open.transactions.push(transaction);
            self.seal_as(None, true);
            return Ok(());
        }
        let gtid = transaction.gtid;
        if gtid.server != self.own
            && let Some(logged) = &self.logged
            && let Some(why) = gtids::misplaced(logged, gtid, self.under_way)
        {
            return Err(End::Fatal(why));
        }
        let transaction = match gtid.server == self.own {
            true => self.came_back(&transaction),
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

    /// What the target wrote itself has gone round: it is there.
    fn came_back(&mut self, transaction: &Transaction) -> Transaction {
        if self.shared.came_back.fetch_add(1, Ordering::Relaxed) == 0 {
            let text = format!(
                "{} is of the target's own server_id, {}: it came back from there, and is passed over, as all like it.",
                transaction.gtid, self.own
            );
            self.log.say(Level::Note, &text);
        }
        if transaction.group.flags & (gtid_flags::STANDALONE | gtid_flags::DDL) != 0 {
            self.stale = Some(Touched::All);
        }
        without_rows(transaction)
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
            End::Again(format!(
                "the source was started anew, and no session of the target could be had that is without its temporary tables: {error}"
            ))
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
                .map_err(|error| End::Again(error.to_string()))?;
            let tables = self.known.prepare();
            self.collector.learn(Arc::clone(tables.catalog()));
            self.tables = Arc::new(tables);
            self.placer.settle();
        }
        self.shared.reading.store(false, Ordering::Relaxed);
        Ok(())
    }
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
    let mut touched: Option<Touched> = None;
    let (mut applied, mut passed_over) = (transaction.own.is_some(), false);
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
                final_tables |= table.is_some_and(|table| !table.transactional);
            }
            Payload::Query(query) => {
                let statement = !is_frame(query.stored) && !is_savepoint(query.stored);
                if statement {
                    let text = query.text(STATEMENT_MAX);
                    let by = match &text {
                        Ok(text) => Touched::by(text, query.database),
                        Err(_) => Touched::All,
                    };
                    makes |= steps == 0 && text.is_ok_and(|text| makes_table(&text));
                    steps += 1;
                    match wants(&query) {
                        _ if is_place(query.stored) => {}
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
                let begin = query.stored.get(..4).unwrap_or_default();
                sets |= begin.eq_ignore_ascii_case(b"SET ");
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
        left_out: passed_over && !applied,
    })
}

#[cfg(test)]
mod tests {
    use dromon_binlog::hints::{Catalog, Column, KeyPart, TableName, TableSchema};

    use super::*;
    use crate::compile::tests::{block, load, query, rows, unit, xid};

    /// What is found about a transaction of these events, if `d.plain` is all that the target has.
    fn found(filter: &Filter, events: Vec<Vec<crate::compile::tests::Raw>>) -> Found {
        found_by(false, filter, events)
    }

    /// `any_case`: the target has `lower_case_table_names`.
    fn found_by(
        any_case: bool,
        filter: &Filter,
        events: Vec<Vec<crate::compile::tests::Raw>>,
    ) -> Found {
        let column = |name: &str, kind: &str, collation: Option<&str>| Column {
            name: name.into(),
            kind: kind.into(),
            collation: collation.map(str::to_owned),
            generated: false,
        };
        let key = KeyPart {
            column: Some("id".into()),
            prefix: 0,
        };
        let plain = TableSchema {
            name: TableName::new("d", "plain"),
            columns: vec![
                column("id", "int(11)", None),
                column("v", "varchar(9)", Some("latin1_swedish_ci")),
            ],
            unique: vec![vec![key]],
            foreign: Vec::new(),
            opaque: false,
        };
        let mut collector = Collector::new(limits());
        let catalog = Catalog::new(vec![plain]);
        collector.learn(match any_case {
            true => catalog.of_any_case(),
            false => catalog,
        });
        found_with(&mut collector, filter, events)
    }

    fn found_with(
        collector: &mut Collector,
        filter: &Filter,
        events: Vec<Vec<crate::compile::tests::Raw>>,
    ) -> Found {
        let mut all = vec![query("BEGIN", "d")];
        all.extend(events.into_iter().flatten());
        all.push(xid());
        let mut of = unit(vec![all]);
        of.transactions[0].group.flags = gtid_flags::TRANSACTIONAL | gtid_flags::ALLOW_PARALLEL;
        let tables = Arc::clone(&of.tables);
        look(collector, &tables, filter, &of.transactions[0]).expect("it can be read")
    }

    /// Of what came behind a DDL only what changes tables itself is read again.
    #[test]
    fn what_is_forgotten_is_told_once() {
        let all = Filter::default();
        let mut collector = Collector::new(limits());
        collector.learn(Catalog::new(Vec::new()));
        let mut schema = |text: &str| {
            let events = vec![vec![query(text, "d")]];
            found_with(&mut collector, &all, events).schema
        };
        assert!(schema("ALTER TABLE plain ADD c INT").is_some());
        assert!(schema("UPDATE plain SET v='b'").is_none());
        assert!(schema("ALTER TABLE plain ADD e INT").is_some());
    }

    /// It is about rows, of whatever database.
    #[test]
    fn a_place_to_go_back_to_is_no_change() {
        let only = Filter::new(vec!["x".into()], vec![]);
        let text = |text| vec![query(text, "d")];
        let places = || vec![text("SAVEPOINT `a`"), text("ROLLBACK TO `a`")];
        assert!(!found(&only, places()).left_out);
        assert!(found(&only, [places(), vec![insert("plain")]].concat()).left_out);
    }

    fn insert(table: &str) -> Vec<crate::compile::tests::Raw> {
        rows(table, &[(None, Some((1, Some("a"))))])
    }

    /// A source that takes upper and lower case for two, and a target that does not.
    #[test]
    fn names_in_any_case() {
        let all = Filter::default();
        let lower = found_by(true, &all, vec![insert("plain")]);
        let upper = found_by(true, &all, vec![insert("Plain")]);
        assert_eq!(upper.alone, None);
        assert!(upper.set.barrier().is_none() && upper.set.conflicts_with(&lower.set));
        let exact = found(&all, vec![insert("Plain")]);
        assert_eq!(exact.alone, Some(Alone::UnknownTable));
    }

    /// Rows of tables that are left out, and that the target need not have.
    #[test]
    fn what_is_left_out_counts_for_nothing() {
        let without = Filter::new(Vec::new(), vec!["d.elsewhere".into()]);
        let all = Filter::default();
        let mixed = || vec![insert("elsewhere"), insert("plain")];
        let known = found(&all, vec![insert("plain")]);
        assert_eq!(known.alone, None);
        assert!(known.set.barrier().is_none());
        assert_eq!(found(&all, mixed()).alone, Some(Alone::UnknownTable));
        let some = found(&without, mixed());
        assert_eq!(some.alone, None);
        assert!(some.set.barrier().is_none() && some.set.conflicts_with(&known.set));
        let none = found(&without, vec![insert("elsewhere")]);
        assert_eq!(none.alone, None);
        assert!(none.set.barrier().is_none() && none.databases.is_empty());
        assert!(none.left_out && !some.left_out && !known.left_out);
        // Statements, too; one about both kinds of tables is refused later.
        let update = |table: &str| vec![query(&format!("TRUNCATE TABLE {table}"), "d")];
        let left_out = |events| found(&without, events).left_out;
        assert!(left_out(vec![update("elsewhere")]));
        assert!(!left_out(vec![update("elsewhere"), update("plain")]));
        assert!(!left_out(vec![insert("plain"), update("elsewhere")]));
        assert!(!left_out(vec![]), "nothing was there to be applied");
    }

    /// What was rolled back on the source must be here, whatever statements it has.
    #[test]
    fn what_was_rolled_back() {
        let text = "INSERT INTO my SELECT id FROM plain";
        let mut of = unit(vec![vec![
            query("BEGIN", "d"),
            query(text, "d"),
            query("ROLLBACK", "d"),
        ]]);
        for flags in [0, gtid_flags::DDL] {
            of.transactions[0].group.flags = flags;
            of.transactions[0].ending = Ending::Rollback;
            let tables = Arc::clone(&of.tables);
            let mut collector = Collector::new(limits());
            let filter = Filter::default();
            let found = look(&mut collector, &tables, &filter, &of.transactions[0]);
            let alone = found.expect("it can be read").alone;
            assert_eq!(alone, Some(Alone::NotTransactional));
        }
    }

    /// A temporary table in a transaction makes no DDL of it; a table that is made from a SELECT does.
    #[test]
    fn temporary_tables_in_a_transaction() {
        let update = || vec![query("UPDATE plain SET v = 'b'", "d")];
        let of = |flags: u8, text: &str, more: Vec<crate::compile::tests::Raw>| {
            let mut events = vec![query("BEGIN", "d"), query(text, "d")];
            events.extend(more);
            events.push(xid());
            let mut of = unit(vec![events]);
            of.transactions[0].group.flags = flags | gtid_flags::ALLOW_PARALLEL;
            let mut collector = Collector::new(limits());
            collector.learn(Catalog::new(Vec::new()));
            let tables = Arc::clone(&of.tables);
            let filter = Filter::default();
            let found = look(&mut collector, &tables, &filter, &of.transactions[0]);
            found.expect("it can be read").alone
        };
        let ddl = gtid_flags::DDL;
        for text in [
            "CREATE TEMPORARY TABLE x (a INT)",
            "DROP TEMPORARY TABLE `x` /* generated by server */",
            "/* by hand */ CREATE TEMPORARY TABLE x (a INT)",
            "CREATE /*!32302 TEMPORARY */ TABLE x (a INT)",
            "UPDATE plain SET v = 'a'",
        ] {
            let alone = of(ddl, text, update());
            assert_eq!(alone, Some(Alone::NotTransactional), "{text}");
        }
        // Of tables with and without transactions.
        let odd = of(0, "/*! UPDATE */ m SET v = 1", update());
        assert_eq!(odd, Some(Alone::NotTransactional));
        for text in [
            "CREATE TABLE `new` (`a` INT)",
            "CREATE OR REPLACE TABLE `new` (`a` INT)",
        ] {
            let made = of(ddl, text, insert("new"));
            assert_eq!(made, Some(Alone::Statement), "{text}");
        }
        let set = "SET STATEMENT gtid_domain_id=3 FOR TRUNCATE x";
        assert_eq!(of(0, set, Vec::new()), Some(Alone::Statement));
        let standalone = of(
            ddl | gtid_flags::STANDALONE,
            "CREATE TEMPORARY TABLE x (a INT)",
            Vec::new(),
        );
        assert_eq!(standalone, Some(Alone::Statement));
    }

    /// LOAD DATA is a statement, and changes no table's columns.
    #[test]
    fn files_that_are_loaded() {
        let text = "LOAD DATA INFILE 'a' INTO TABLE `plain`";
        let events = vec![block(true, 1, "1\ta\n"), load(1, text, "d", &[], 0)];
        let found = found(&Filter::default(), vec![events]);
        assert_eq!(found.alone, Some(Alone::Within));
        assert!(found.schema.is_none());
    }

    /// What a source with `binlog_format=MIXED` writes all day long.
    #[test]
    fn statements_that_change_no_table() {
        let all = Filter::default();
        let of = |text: &str| found(&all, vec![vec![query(text, "d")]]);
        for text in [
            "DROP /*!40005 TEMPORARY */ TABLE IF EXISTS `t`,`plain`",
            "DROP TEMPORARY TABLE `plain` /* generated by server */",
            "CREATE ALGORITHM=UNDEFINED DEFINER=`r`@`h` SQL SECURITY DEFINER VIEW `v` AS select 1",
            "ALTER USER `a`@`h` ACCOUNT LOCK",
        ] {
            let found = of(text);
            assert_eq!(found.schema, None, "{text}");
            assert!(
                found.alone.is_some() && found.set.barrier().is_some(),
                "{text}"
            );
        }
        for text in [
            "DROP /*!199999 TEMPORARY */ TABLE `plain`",
            "DROP TRIGGER plain",
        ] {
            assert_eq!(of(text).schema, Some(Touched::All), "{text}");
        }
        let rebuilt = of("OPTIMIZE TABLE plain").schema.expect("it may change");
        assert_eq!(rebuilt, Touched::by(b"OPTIMIZE TABLE plain", b"d"));
        assert_ne!(rebuilt, Touched::All);
        // Whoever wants but some of its tables gets what the target can do of it.
        let only = Filter::new(vec!["d.plain".into()], Vec::new());
        let some = found(&only, vec![vec![query("OPTIMIZE TABLE plain, other", "d")]]);
        assert!(!some.left_out);
        assert_eq!(
            only.wants_statement(b"OPTIMIZE TABLE plain, other", b"d"),
            Ok(true)
        );
    }

    /// A place to go back to, and nobody goes back there.
    #[test]
    fn savepoints() {
        let all = Filter::default();
        let with = |texts: &[&str]| {
            let mut events: Vec<_> = texts.iter().map(|text| vec![query(text, "d")]).collect();
            events.push(insert("plain"));
            found(&all, events).alone
        };
        assert_eq!(with(&["SAVEPOINT `x`"]), None);
        assert_eq!(with(&["SAVEPOINT a", "savepoint `b`"]), None);
        let back = ["SAVEPOINT a", "ROLLBACK TO `a`"];
        assert_eq!(with(&back), Some(Alone::Within));
        let statement = ["SAVEPOINT a", "INSERT INTO plain VALUES (9, 'a')"];
        assert_eq!(with(&statement), Some(Alone::Within));
    }
}
