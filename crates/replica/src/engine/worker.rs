//! Applies units, one at a time, over one connection.

mod finally;
mod load;
#[cfg(test)]
mod tests;
mod trouble;
mod turns;

use trouble::{Trouble, of_row};
use turns::Cause;

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar};
use std::time::{Duration, Instant};

use dromon_binlog::Gtid;
use dromon_relay::log::{Level, Log};

use super::gtids::{self, Logged};
use super::naming::Name;
use super::shared::{Activity, InDoubt, Session, Waits};
use super::{ANOTHER, Difference, End, Settings, Shared, naming, texts};
use crate::ahead::SLOTS;
use crate::client::{ClientError, Result as Answer};
use crate::compile::{
    Asks, Collations, Expect, Load, Note, Op, Options, Style, are_sent_alike, asks,
    binlog_statement, compile, in_fragments, may_name_others,
};
use crate::engine::Progress;
use crate::names::is_qualified;
use crate::schedule::{Failed, Order, State};
use crate::target::{Channel, LOCAL, OTHER_EPOCH, ROW_IS_THERE, ROWS, UTC};
use crate::unit::Unit;
use crate::words::Wording;

/// Error of a statement that was ended.
const INTERRUPTED: u16 = 1317;
/// How often a unit that runs into one of them alone is tried.
const TRIES: u32 = 20;
/// Error of a database that is not there.
const NO_DATABASE: u16 = 1049;
/// Where a statement cannot be run without it: why, and what to do.
const ASKED: &str =
    "it calls DATABASE() or SCHEMA(), or may do so where it cannot be read for sure";
const NAMED: &str = "it may name tables, sequences or functions without their database";
const NEEDED: &str = "make that database on the target, empty; or do it there by hand, and set gtid_pos in \
                      dromon_replica.position behind it";
/// Errors that say that what a DDL does is done already.
const DONE_ALREADY: [u16; 21] = [
    1007, 1008, 1050, 1051, 1054, 1060, 1061, 1068, 1072, 1091, 1146, 1304, 1305, 1359, 1360, 1396,
    1537, 1539, 1826, 4092, 4091,
];

pub(super) struct Worker {
    pub number: usize,
    pub session: Session,
    pub shared: Arc<Shared>,
    pub settings: Settings,
    pub channel: Channel,
    pub epoch: u64,
    pub log: Log,
    pub collations: Collations,
    pub packet_max: usize,
    /// The target takes no longer packet.
    pub allowed: usize,
    pub in_doubt: Option<InDoubt>,
    /// Number of the target as a server.
    pub own: u32,
    /// The target is a node of a cluster.
    pub node: bool,
    /// What it applies has the source's GTIDs in the target's binlog.
    pub gtids: bool,
    pub progress: Arc<Progress>,
    /// How long the unit that it executes waited for earlier ones amid that.
    pub waited: Duration,
    /// What follows the next statement in its packet, so that the target does it whatever becomes of this side.
    pub behind: Vec<u8>,
}

impl Worker {
    pub(super) fn run(mut self, shared: &Shared) {
        loop {
            let mut core = shared.lock();
            let (n, unit) = loop {
                if core.has_ended() {
                    return;
                }
                if let Some(n) = core.scheduler.start() {
                    let unit = core.unit(n).cloned().expect("a unit that has started");
                    core.running[self.number] = Some(n);
                    break (n, unit);
                }
                if let Some(unit) = core.not_made() {
                    drop(core);
                    // Whoever applies it sees what came of it.
                    let _ = unit
                        .made
                        .get(|| compile(&unit, &self.options(Style::Folded)));
                    core = shared.lock();
                    continue;
                }
                core = shared.wait(&shared.start, core);
            };
            drop(core);
            // There may be another one for another worker.
            shared.start.notify_one();
            let done = match unit.alone {
                Some(_) => self.alone(n, &unit),
                None => self.apply(n, &unit),
            };
            shared.lock().running[self.number] = None;
            match done {
                Ok(()) => {}
                Err(Trouble::Ended) => return,
                Err(Trouble::Lost(error)) => {
                    let why = format!("{error} (at {})", unit.name());
                    return shared.end(End::again(&error, why));
                }
                Err(trouble @ Trouble::MayBeDone { .. }) => {
                    let end = self.fatal(n, &unit, &trouble);
                    return shared.end_for_good(end);
                }
                Err(trouble) => {
                    let end = self.fatal(n, &unit, &trouble);
                    return shared.end(end);
                }
            }
        }
    }

    /// Over the session of all that run alone.
    fn alone(&mut self, n: u64, unit: &Unit) -> Result<(), Trouble> {
        let shared = Arc::clone(&self.shared);
        let mut kept = shared.alone();
        if let Some(session) = &mut *kept {
            std::mem::swap(session, &mut self.session);
        }
        let done = match unit.alone {
            Some(alone) if alone.is_final() => self.finally(n, unit),
            _ => self.apply(n, unit),
        };
        if let Some(session) = &mut *kept {
            std::mem::swap(session, &mut self.session);
        }
        done
    }

    /// Who has the lock that it waited for in vain, if that is none of this session's connections.
    fn held_by(&mut self, n: u64, trouble: &Trouble) -> String {
        let stranger = self.shared.lock().stranger;
        let Some(id) = stranger.filter(|(of, _)| *of == n && trouble.is_of_lock()) else {
            return String::new();
        };
        let id = id.1;
        let who = format!(
            "SELECT CONCAT(USER,' from ',HOST,', ',COMMAND,' for ',TIME,' s') FROM information_schema.PROCESSLIST WHERE ID={id}"
        );
        match self.session.client.one(&who) {
            Ok(Some(who)) => format!(
                ". Connection {id} of the target ({who}), which is none of this replica's, has the lock: end its transaction (KILL {id})"
            ),
            _ => format!(". Connection {id} of the target had the lock, and is gone now"),
        }
    }

    fn fatal(&mut self, n: u64, unit: &Unit, trouble: &Trouble) -> End {
        // What another one has applied already cannot be applied here.
        let newest = self.channel.epoch(&mut self.session.client);
        if matches!(newest, Ok(Some(newest)) if newest != self.epoch) {
            return End::Fatal(ANOTHER.into());
        }
        if matches!((&newest, trouble), (Ok(None), Trouble::Misplaced)) {
            let base = self.shared.lock().base.clone();
            return End::Fatal(format!(
                "The row of channel {} in dromon_replica.position is gone: nothing can be committed without it. The target is at {base}; \
                 start with start = {base}, and nothing is doubled.",
                self.settings.channel
            ));
        }
        if matches!(trouble, Trouble::Misplaced) {
            return End::Again(format!(
                "{} could not commit: {}",
                unit.name(),
                trouble.text()
            ));
        }
        if let Trouble::Short(what, why) = trouble {
            return End::Waits(Waits {
                what,
                at: Some(unit.name()),
                why: format!(
                    "{} cannot be applied now: {}. Nothing of it is in the target; everything before it is",
                    unit.name(),
                    why.text()
                ),
            });
        }
        let (there, then) = match trouble {
            Trouble::Parts {
                steps: Some((done, of)),
                ..
            } => (
                format!("{done} of its {of} steps are in the target for good, and everything before it"),
                "Put the target right and start again: it goes on behind them.".to_owned(),
            ),
            Trouble::Parts { steps: None, .. } => (
                "Of tables without transactions parts of it are in the target, and everything before it".to_owned(),
                format!(
                    "Do the rest by hand and start once with in_doubt = skip; or take the parts back by hand, and say so: UPDATE \
                     dromon_replica.position SET doing = NULL WHERE channel = '{}'.",
                    self.settings.channel
                ),
            ),
            Trouble::MayBeDone {
                mark,
                unwritten,
                trouble,
            } => {
                let full = trouble.scarce().is_some();
                trouble::of_doubt(mark, full, unwritten.as_deref(), &self.settings.channel)
            }
            Trouble::Beside(_, last, true) => (
                "All of it is in the target, the position is behind it, and nothing of what follows is there".to_owned(),
                format!("Start again.{}", gtids::out_of_order(*last)),
            ),
            Trouble::Beside(_, last, false) => (
                "Of tables without transactions parts of it are in the target, and everything before it".to_owned(),
                format!(
                    "Do the rest by hand, with a gtid_domain_id of the target's own, and start once with in_doubt = skip.{}",
                    gtids::out_of_order(*last)
                ),
            ),
            Trouble::Begun(_, _, steps) => (
                match steps {
                    Some(steps) => format!("Its first {steps} steps are in the target for good, and everything before it"),
                    None => "It was under way when the last run ended: all of it may be in the target, or parts, and everything before it is".to_owned(),
                },
                "Start with source_gtid = off until it is done (see in_doubt, too); then source_gtid = on again.".to_owned(),
            ),
            Trouble::Groups(gtid, _) => (
                "Nothing of it is in the target; everything before it is".to_owned(),
                gtids::by_hand(*gtid, &self.settings.channel),
            ),
            other => (
                match &unit.transactions[..] {
                    // It may be the last one that is named.
                    [first, _, ..] => format!(
                        "They are applied as one: none of {} is in the target; everything before {} is",
                        unit.name(),
                        first.gtid
                    ),
                    _ => "Nothing of it is in the target; everything before it is".to_owned(),
                },
                match other.can_be_repaired() {
                    true if matches!(other, Trouble::Differs(..)) => "Somebody else wrote to the target, or it is no true copy: compare \
                        the table with the source's (CHECKSUM TABLE). Put the row right; or set difference = repair: it becomes what \
                        it is on the source, and is counted; or copy the table anew. With compare = key such rows are overwritten."
                        .to_owned(),
                    true if self.settings.difference == Difference::Stop => "Put the target right, or set difference = repair for rows that are missing or there already.".to_owned(),
                    _ => "Put the target right and start again.".to_owned(),
                },
            ),
        };
        let by_itself = match unit.transactions.len() {
            0 | 1 => "",
            _ => {
                " To pass over one of them, start with merge = 1 first: then those before it are in the target, and it is named by itself."
            }
        };
        let held = self.held_by(n, trouble);
        End::Fatal(format!(
            "{} cannot be applied: {}{held}. {there}. {then}{by_itself}",
            unit.name(),
            trouble.text()
        ))
    }

    fn options(&self, style: Style) -> Options<'_> {
        Options {
            style,
            filter: &self.settings.filter,
            compare: self.settings.compare,
            packet_max: self.packet_max,
            longest: self.allowed,
            collations: &self.collations,
            whole: self.gtids,
            events: self.settings.difference == Difference::Stop,
            computed: false,
        }
    }

    /// A unit that can be rolled back: until it has committed.
    fn apply(&mut self, n: u64, unit: &Unit) -> Result<(), Trouble> {
        let mut style = Style::Folded;
        let mut computed = false;
        let mut alone = 0;
        loop {
            let mut cost = None;
            let executed = self.act_as(unit).and_then(|()| match unit.done {
                true => self
                    .clean_but_zone()
                    .and_then(|()| self.session.client.query(b"BEGIN").map(|_| ()))
                    .map_err(Trouble::from),
                false => {
                    let began = Instant::now();
                    let executed = self.execute(n, unit, style, computed);
                    let waited = std::mem::take(&mut self.waited);
                    let took = began.elapsed().saturating_sub(waited);
                    self.progress.counters.spent(Activity::Execute, took);
                    self.progress.counters.spent(Activity::Last, waited);
                    executed.map(|()| cost = Some(took))
                }
            });
            if executed.is_ok()
                && unit.alone.is_some()
                && let Some(gtid) = self.chosen(unit)
            {
                // If it is not said, its locks may have been taken away, and all that was done with them.
                let last = gtids::last(&mut self.session.client, gtid).map_err(Trouble::Lost)?;
                if last != Logged::No {
                    return Err(self.remains(gtid, last)?);
                }
            }
            let trouble = match executed {
                Ok(()) => match self.turn(n, unit, cost)? {
                    None => return self.commit(n, unit),
                    Some((by, cause)) => {
                        let earlier = self.shared.lock().unit(by).cloned();
                        self.roll_back()?;
                        match cause {
                            // Nobody waits for its locks meanwhile.
                            Cause::Keys => {
                                let what = self.met(unit, earlier.as_deref());
                                self.count(n, Some(by), "keys", what);
                            }
                            Cause::Lock => self.count_lock(),
                        }
                        self.shared.lock().scheduler.failed(n);
                        self.wait_again(n)?;
                        continue;
                    }
                },
                Err(trouble @ (Trouble::Lost(_) | Trouble::Ended)) => return Err(trouble),
                Err(trouble) => trouble,
            };
            self.roll_back()?;
            let failed = {
                let mut core = self.shared.lock();
                let doomed = match core.scheduler.state(n) {
                    Some(State::Doomed(by)) => Some(by),
                    _ => None,
                };
                (core.scheduler.failed(n), doomed)
            };
            match failed {
                (Failed::Again, Some(_)) => self.count_lock(),
                (Failed::Again, None) => self.count(n, None, "error", trouble.name()),
                (Failed::Own, _) => {
                    alone += 1;
                    if trouble.passes() && alone < TRIES {
                        self.count(n, None, "error", trouble.name());
                    } else if style == Style::Folded
                        && trouble.is_of_full_file()
                        && self.is_folded(unit)
                    {
                        // Where `tmpdir` is too small for the temporary table of many rows, waiting might never end.
                        self.count(n, None, "error", trouble.name());
                        style = Style::Single;
                        self.progress
                            .counters
                            .singles
                            .fetch_add(1, Ordering::Relaxed);
                    } else if trouble.scarce().is_some() {
                        // At once there is no more of it, whatever the statements are.
                        return Err(trouble.rolled_back());
                    } else if style == Style::Folded && !matches!(trouble, Trouble::Compile(_)) {
                        // Row by row: then it passes, or the row can be named.
                        style = Style::Single;
                        self.progress
                            .counters
                            .singles
                            .fetch_add(1, Ordering::Relaxed);
                    } else if !computed && trouble.is_of_computed(&unit.tables) {
                        // The source, which is not strict, had cut it; an event says what it has become.
                        computed = true;
                    } else {
                        return Err(trouble);
                    }
                    self.shared.lock().scheduler.again(n);
                }
            }
            self.wait_again(n)?;
        }
    }

    /// Whether it is sent otherwise row by row.
    fn is_folded(&self, unit: &Unit) -> bool {
        let folded = unit
            .made
            .get(|| compile(unit, &self.options(Style::Folded)));
        match (folded, compile(unit, &self.options(Style::Single))) {
            (Ok(folded), Ok(single)) => !are_sent_alike(folded, &single),
            _ => false,
        }
    }

    /// Where a unit meets an earlier one.
    fn met(&self, unit: &Unit, earlier: Option<&Unit>) -> Name {
        let Some(earlier) = earlier else {
            return "".into();
        };
        let began = Instant::now();
        let may = self.shared.lock().names.may(began);
        let name = may.then(|| naming::key(unit, earlier)).flatten();
        if may {
            self.shared.lock().names.spent(began.elapsed());
        }
        name.unwrap_or_else(|| naming::tables(unit, earlier).into())
    }

    fn count(&self, n: u64, by: Option<u64>, how: &'static str, what: Name) {
        let counters = &self.progress.counters;
        let counter = match how {
            "keys" => &counters.by_keys,
            _ => &counters.by_error,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.shared.lock().conflict(n, by, how, what);
    }

    /// The same of one that held a lock: it has its name.
    fn count_lock(&self) {
        let counters = &self.progress.counters;
        counters.by_lock.fetch_add(1, Ordering::Relaxed);
    }

    fn roll_back(&mut self) -> Result<(), Trouble> {
        // Where it failed a variable may have been switched.
        self.session.dirty = true;
        loop {
            match self.session.client.query(b"ROLLBACK") {
                Ok(_) => return Ok(()),
                // A KILL that came late.
                Err(error) if error.code() == Some(1317) => {}
                Err(error) => return Err(Trouble::Lost(error)),
            }
        }
    }

    fn commit(&mut self, n: u64, unit: &Unit) -> Result<(), Trouble> {
        let mut text = Vec::new();
        let strict = self.settings.order == Order::Strict;
        match (strict, unit.alone) {
            (true, _) => {
                let (before, after) = (Some(unit.before.as_str()), &unit.position);
                self.channel.put_move(&mut text, self.epoch, before, after);
            }
            // Everything before it has committed: nothing is ahead of it.
            (false, Some(_)) => {
                self.channel
                    .put_move(&mut text, self.epoch, None, &unit.position);
            }
            (false, None) => {
                let base = self.shared.lock().base.clone();
                self.channel
                    .put_slot(&mut text, self.epoch, n % SLOTS, &base, &unit.ahead);
            }
        }
        text.extend_from_slice(ROW_IS_THERE);
        text.extend_from_slice(b";COMMIT");
        // Whether it is committed is found out by a new session.
        let lost = |error: ClientError| match error.code() {
            Some(OTHER_EPOCH) => Trouble::Misplaced,
            _ => Trouble::Lost(error),
        };
        let sent = Instant::now();
        self.session.client.send(&text).map_err(lost)?;
        let (moved, _) = self.session.client.next(0).map_err(lost)?;
        // If there was no such row, the next statement fails.
        if strict && moved == Answer::Done(1) {
            // It has the lock that every later one needs: they may come, and wait for it there.
            let mut core = self.shared.lock();
            core.scheduler.placed(n);
            self.shared.wake_ready(&core);
        }
        self.session.client.next(1).map_err(lost)?;
        self.session.client.next(2).map_err(lost)?;
        self.progress
            .counters
            .spent(Activity::Commit, sent.elapsed());
        self.committed(n, sent);
        Ok(())
    }

    fn committed(&self, n: u64, sent: Instant) {
        let shared = &self.shared;
        let mut core = shared.lock();
        for unit in core.committed(n, sent) {
            self.progress.applied(&unit);
        }
        shared.resize(&core);
        match core.restarting > 0 {
            true => shared.turns.iter().for_each(Condvar::notify_all),
            false => shared.wake_ready(&core),
        }
        drop(core);
        shared.start.notify_one();
        shared.room.notify_one();
    }

    /// All but the commit. `computed`: tables with generated columns by BINLOG.
    fn execute(
        &mut self,
        n: u64,
        unit: &Unit,
        style: Style,
        computed: bool,
    ) -> Result<(), Trouble> {
        let single;
        let ops = match style {
            Style::Folded => unit.made.get(|| compile(unit, &self.options(style)))?,
            Style::Single => {
                let options = Options {
                    computed,
                    ..self.options(style)
                };
                single = compile(unit, &options)?;
                &single
            }
        };
        let mut begin: &[u8] = b"BEGIN";
        if ops.iter().any(|op| matches!(op, Op::Statement { .. })) {
            // A binlog of statements refuses a lower level; it counts from the next BEGIN on.
            self.clean()?;
            self.session.dirty = true;
            self.session
                .client
                .query(b"SET SESSION tx_isolation='REPEATABLE-READ';BEGIN")?;
            begin = b"";
        }
        for op in ops {
            if !begin.is_empty() && !matches!(op, Op::Rows { .. } | Op::Last) {
                // The level counts from BEGIN on.
                self.clean_but_zone()?;
                self.session.client.query(begin)?;
                begin = b"";
            }
            match op {
                Op::Rows { text, expects } => {
                    self.clean()?;
                    self.rows(begin, text, expects, style)?;
                    begin = b"";
                }
                Op::Binlog { text, note, local } => self.binlog(unit, text, note, *local)?,
                Op::Last => self.wait_last(n)?,
                Op::Statement {
                    setup,
                    uses,
                    text,
                    load,
                    error,
                    ..
                } => self.statement(setup, uses, text, load.as_ref(), *error)?,
            }
        }
        if !begin.is_empty() {
            self.session.client.query(begin)?;
        }
        // Under the sql_mode of a statement the position may read otherwise. Not behind the turn: it is here that
        // what fails is tried again.
        Ok(self.clean_but_zone()?)
    }

    /// In the target's binlog its transactions have the number of the server that first had them: where
    /// that follows the target it knows them. What came back from there moves the position only, and
    /// goes into no binlog: else that would go round, too. But the other nodes of a cluster get only what is
    /// logged.
    fn act_as(&mut self, unit: &Unit) -> Result<(), Trouble> {
        if let Some(gtid) = self.chosen(unit) {
            self.session.client.query(gtids::next(gtid).as_bytes())?;
            self.session.server = Some(gtid.server);
            return Ok(());
        }
        let server = unit.transactions.first().map(|t| t.gtid.server);
        if !self.settings.binlog || self.session.server == server {
            return Ok(());
        }
        if let Some(server) = server {
            let text = match server == self.own {
                true if self.node => return Ok(()),
                true => "SET SESSION sql_log_bin=0".to_owned(),
                false => format!("SET SESSION sql_log_bin=1, server_id={server}"),
            };
            self.session.client.query(text.as_bytes())?;
            self.session.server = Some(server);
        }
        Ok(())
    }

    /// The GTID that its group must have in the target's binlog, if that is wanted.
    fn chosen(&self, unit: &Unit) -> Option<Gtid> {
        let gtid = unit.transactions.first()?.gtid;
        (self.gtids && gtid.server != self.own).then_some(gtid)
    }

    /// Runs a packet, unless the target would end the connection because of its length.
    fn query(&mut self, text: &[u8]) -> Result<Vec<Answer>, Trouble> {
        let behind = std::mem::take(&mut self.behind);
        if text.len() + 16 > self.allowed {
            return Err(Trouble::Long(text.len()));
        }
        if behind.is_empty() || text.len() + behind.len() + 18 > self.allowed {
            return Ok(self.session.client.query(text)?);
        }
        // It may end with a comment of one line.
        match self.session.client.query(&[text, b"\n;", &behind].concat()) {
            // The statement was done: a new session finds out what is there.
            Err(error @ ClientError::Refused { after: 1.., .. }) => Err(Trouble::Lost(error)),
            done => Ok(done?),
        }
    }

    fn clean(&mut self) -> Result<(), ClientError> {
        self.clean_but_zone()?;
        if std::mem::replace(&mut self.session.local, false) {
            self.session.client.query(UTC)?;
        }
        Ok(())
    }

    fn clean_but_zone(&mut self) -> Result<(), ClientError> {
        if self.session.dirty {
            let mut text = ROWS.to_owned();
            // Else rows could meet a temporary table of the client that the last statement was of.
            if self.session.client_of_source {
                text.push_str(", pseudo_thread_id=0");
            }
            if self.collations.has_history {
                text.push_str(", system_versioning_insert_history=0");
            }
            self.session.client.query(text.as_bytes())?;
            // What has failed is done once more.
            let session = &mut self.session;
            (session.dirty, session.client_of_source, session.local) = (false, false, false);
        }
        Ok(())
    }

    fn rows(
        &mut self,
        begin: &[u8],
        text: &[u8],
        expects: &[Expect],
        style: Style,
    ) -> Result<(), Trouble> {
        if begin.len() + text.len() + 16 > self.allowed {
            return Err(Trouble::Long(text.len()));
        }
        let repair = self.settings.difference == Difference::Repair && style == Style::Single;
        if repair {
            return self.repair(begin, text, expects);
        }
        let before = usize::from(!begin.is_empty());
        let answers = match before {
            0 => self.session.client.query(text),
            _ => self.session.client.query(&[begin, b";", text].concat()),
        };
        let answers = match answers {
            Ok(answers) => answers,
            Err(ClientError::Refused { after, failure }) => {
                let error = ClientError::Refused { after, failure };
                let trouble = Trouble::from(error);
                let of = expects.get(after.saturating_sub(before));
                return Err(match of {
                    Some(expect) => trouble.of_row(&expect.note),
                    None => trouble,
                });
            }
            Err(error) => return Err(error.into()),
        };
        for (answer, expect) in answers.iter().skip(before).zip(expects) {
            if let Err(wrong) = check(answer, expect) {
                return Err(self.explain(wrong, expect)?);
            }
        }
        Ok(())
    }

    /// Looks how the row differs.
    fn explain(&mut self, wrong: Trouble, expect: &Expect) -> Result<Trouble, Trouble> {
        let Some(look) = &expect.look else {
            return Ok(wrong);
        };
        let answers = match self.session.client.query(look).map_err(Trouble::from) {
            Err(Trouble::Lost(error)) => return Err(Trouble::Lost(error)),
            // What is wrong is known without it, too.
            Err(_) => return Ok(wrong),
            Ok(answers) => answers,
        };
        let Some(Answer::Table(rows)) = answers.into_iter().next_back() else {
            return Ok(wrong);
        };
        let note = expect.note.clone();
        let Some(row) = rows.into_iter().next() else {
            return Ok(Trouble::Missing(note));
        };
        Ok(match row.into_iter().next().flatten() {
            Some(how) if !how.is_empty() => {
                Trouble::Differs(note, String::from_utf8_lossy(&how).into_owned())
            }
            _ => wrong,
        })
    }

    /// One statement after the other; what does not do what it must is put right.
    fn repair(&mut self, begin: &[u8], text: &[u8], expects: &[Expect]) -> Result<(), Trouble> {
        if !begin.is_empty() {
            self.session.client.query(begin)?;
        }
        // Row by row a statement is a packet of its own, but for a switch of a variable.
        let answers = self.session.client.query(text);
        let wrong = match answers {
            Ok(answers) => answers
                .iter()
                .zip(expects)
                .find_map(|(a, e)| check(a, e).err()),
            Err(error) => {
                let trouble = Trouble::from(error);
                let of = expects.iter().find(|expect| !expect.mend.is_empty());
                let trouble = match of.or(expects.first()) {
                    Some(expect) => trouble.of_row(&expect.note),
                    None => trouble,
                };
                if !trouble.can_be_repaired() {
                    return Err(trouble);
                }
                Some(trouble)
            }
        };
        let Some(wrong) = wrong else {
            return Ok(());
        };
        let mut row = expects.iter().filter(|expect| !expect.mend.is_empty());
        let Some(Expect { mend, note, .. }) = row.next() else {
            return Err(wrong);
        };
        for statement in mend {
            let mended = self.session.client.query(statement);
            mended.map_err(|error| Trouble::from(error).of_row(note))?;
        }
        let counted = self
            .progress
            .counters
            .repaired
            .fetch_add(1, Ordering::Relaxed)
            + 1;
        if counted.is_power_of_two() {
            let text = format!(
                "Repaired: {} found the row otherwise. {counted} so far.",
                of_row(note)
            );
            self.log.say(Level::Warning, &text);
        }
        Ok(())
    }

    /// `local`: in the target's time zone, as its own replica threads do.
    fn binlog(
        &mut self,
        unit: &Unit,
        text: &[u8],
        note: &Note,
        local: bool,
    ) -> Result<(), Trouble> {
        self.clean_but_zone()?;
        if local && !std::mem::replace(&mut self.session.local, true) {
            self.session.client.query(LOCAL)?;
        }
        let of = unit.transactions.iter().find(|t| t.gtid == note.gtid);
        let form = of.map(|t| Arc::clone(&t.form));
        if let Some(form) = form
            && !self
                .session
                .form
                .as_ref()
                .is_some_and(|sent| Arc::ptr_eq(sent, &form))
        {
            self.session
                .client
                .query(&binlog_statement([&form.raw[..]]))?;
            self.session.form = Some(form);
        }
        let done = match text.len() + 16 > self.allowed {
            false => self.query(text).map(|_| ()),
            // One event that is longer than a packet may be.
            true => {
                let run = in_fragments(text)
                    .iter()
                    .try_for_each(|part| self.query(part).map(|_| ()));
                // The server need not keep them.
                let forgotten = self.query(b"SET @dromon_a=NULL, @dromon_b=NULL");
                run.and(forgotten.map(|_| ()))
            }
        };
        match done {
            Ok(()) => Ok(()),
            Err(Trouble::Error(code, text)) => {
                let text = trouble::of_events(code, text);
                Err(Trouble::Error(code, format!("{}: {text}", of_row(note))))
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// `uses`: where its setup chooses a database.
    fn statement(
        &mut self,
        setup: &[u8],
        uses: &Range<usize>,
        text: &[u8],
        load: Option<&Load>,
        error: u16,
    ) -> Result<(), Trouble> {
        // User variables stand in it.
        if setup.len() + 16 > self.allowed {
            return Err(Trouble::Long(setup.len()));
        }
        (self.session.dirty, self.session.client_of_source) = (true, true);
        match self.session.client.query(setup) {
            // The source's session was in a database that is left out here.
            Err(error) if error.code() == Some(NO_DATABASE) && is_qualified(text) => {
                // Another one may be left over here: it would be told that, or find something there, without a word.
                let how = Wording::default();
                let reason = match asks(text, how) {
                    Asks::No => may_name_others(text, how).then_some(NAMED),
                    Asks::Yes | Asks::Perhaps => Some(ASKED),
                };
                if let Some(reason) = reason {
                    let begin = texts::of_error(text);
                    let why = format!(
                        "{error}, and that is the default database that its client had, and {reason}: {NEEDED} (statement: {begin})"
                    );
                    return Err(Trouble::Error(NO_DATABASE, why));
                }
                let without = [&setup[..uses.start], &setup[uses.end..]].concat();
                self.session.client.query(&without)?;
            }
            done => {
                done?;
            }
        }
        let run = match load {
            None => self.query(text).map(|_| ()),
            Some(load) => self.load(text, load),
        };
        match run {
            Ok(()) if error != 0 => Err(Trouble::NoError(error, texts::of_error(text))),
            Ok(()) => Ok(()),
            // It failed on the source, too, and something of it remained.
            Err(Trouble::Error(code, _)) if error != 0 && code == error => Ok(()),
            Err(Trouble::Error(code, why)) => {
                let begin = texts::of_error(text);
                let why = trouble::of_statement(code, why, texts::is_secret(text));
                Err(Trouble::Error(code, format!("{why} (statement: {begin})")))
            }
            Err(trouble) => Err(trouble),
        }
    }
}

fn check(answer: &Answer, expect: &Expect) -> Result<(), Trouble> {
    match (expect.rows, answer) {
        (None, _) => Ok(()),
        (Some(wanted), Answer::Done(rows)) if *rows == wanted => Ok(()),
        (_, Answer::Done(rows)) => Err(Trouble::Rows(expect.note.clone(), *rows)),
        (_, Answer::Table(_)) => Err(Trouble::Rows(expect.note.clone(), 0)),
    }
}
