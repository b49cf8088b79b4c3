//! Units that cannot be rolled back, or not as a whole.
//!
//! ```text
//!   doing = GTID ──> statements, each of which commits by itself ──> rows, in one transaction
//!                                                                    with the position
//!   doing = GTID ──> BEGIN, all of it, tables without transactions among them ──> end, COMMIT ──> position
//!                    BEGIN, all of it, if all of it can be rolled back here ──> position, COMMIT
//! ```
//!
//! The end is written down in the packet of the last statement: the target does that, too, if this side dies.
//!
//! What was begun is written down first. What failed is tried again only behind what is there for
//! good, and only if it is known what that is.

use std::ops::Range;

use dromon_binlog::{Ending, Gtid};
use dromon_relay::log::Level;

use super::super::gtids::{self, Logged};
use super::super::texts::{begun, begun_rows};
use super::{DONE_ALREADY, TRIES, Trouble, Worker};
use crate::client::Result as Answer;
use crate::compile::{Op, Options, Style, compile};
use crate::names::{Temporary, temporary};
use crate::target::{Doing, OTHER_EPOCH, ROW_IS_THERE, too_long};
use crate::unit::{Alone, Unit};

/// Warning of a ROLLBACK that could not take back everything.
const NOT_ALL_TAKEN_BACK: &str = "1196";

/// Warning of a CREATE … IF NOT EXISTS that did nothing.
const IS_THERE: &str = "1050";

/// A temporary table that one attempt has made.
struct Made<'o> {
    /// The session that it belongs to, as for any statement.
    setup: &'o [u8],
    uses: &'o Range<usize>,
    drop: Vec<u8>,
}

/// Whether the last step is one packet, behind which all is done that no rollback takes back.
fn has_end(unit: &Unit, ops: &[Op]) -> bool {
    let is_one = match ops.last() {
        // Behind what is a statement to itself (`…; -- tail`) another one would be a wrong one.
        Some(Op::Statement {
            load, error, text, ..
        }) => load.is_none() && *error == 0 && !text.contains(&b';'),
        // The server's answer to a BINLOG does not say that others follow.
        Some(Op::Binlog { .. } | Op::Rows { .. } | Op::Last) | None => false,
    };
    is_one
        && unit.alone == Some(Alone::NotTransactional)
        && unit.transactions[0].ending != Ending::Rollback
}

impl Worker {
    /// It runs alone.
    pub(super) fn finally(&mut self, n: u64, unit: &Unit) -> Result<(), Trouble> {
        let mut ops = compile(unit, &self.options(Style::Single))?;
        let gtid = unit.transactions[0].gtid;
        if self.chosen(unit).is_some()
            && let Some(why) = gtids::several(unit, &ops, &self.settings.filter)
        {
            let begun = self.in_doubt.as_ref().filter(|d| d.gtid == gtid);
            return Err(match begun {
                Some(d) if !d.sure => Trouble::Begun(gtid, why.into(), None),
                Some(d) if d.steps > 0 => Trouble::Begun(gtid, why.into(), Some(d.steps)),
                _ => Trouble::Groups(gtid, why.into()),
            });
        }
        let statement = ops.iter().find_map(|op| match op {
            Op::Statement { text, .. } => Some(begun(text)),
            _ => None,
        });
        let rows = ops.iter().find_map(|op| match op {
            Op::Binlog { note, .. } => Some(begun_rows(&note.table)),
            Op::Rows { expects, .. } => Some(begun_rows(&expects.first()?.note.table)),
            Op::Statement { .. } | Op::Last => None,
        });
        let in_doubt = self.in_doubt.as_ref().filter(|d| d.gtid == gtid);
        let maybe_done = in_doubt.is_some_and(|d| !d.sure);
        let mut done = in_doubt.map_or(0, |d| d.steps);
        // Nothing of it is there until that is written down, or if that is known.
        let is_new = in_doubt.is_none_or(|d| d.sure && d.steps == 0);
        let not_begun = |trouble: Trouble| match is_new {
            true => trouble.rolled_back(),
            false => trouble,
        };
        self.again_if_it_passes(|worker| {
            worker.clean()?;
            worker.act_as(unit)
        })
        .map_err(not_begun)?;
        let mut doing = Doing {
            gtid,
            text: statement.or(rows).unwrap_or_default(),
            connection: u64::from(self.session.client.id),
            binlog: String::new(),
        };
        let several = ops.len() > 1;
        let in_parts = unit.alone == Some(Alone::NotTransactional)
            || ops
                .iter()
                .any(|op| matches!(op, Op::Statement { text, .. } if !gtids::is_whole(text)));
        // What is in one transaction with the position is there with it, or not at all.
        let stays = unit.alone != Some(Alone::NotTransactional)
            || unit.may_stay(&ops, &self.settings.filter);
        if !ops.is_empty() && stays {
            self.bookkeeping(|worker| {
                // If it may have been done already, no binlog will show that it was not.
                let now = worker.again_if_it_passes(|worker| {
                    Ok(worker.session.client.one("SELECT @@gtid_binlog_pos")?)
                });
                let now = now.map_err(not_begun)?;
                let now = now.unwrap_or_default();
                doing.binlog = match maybe_done || done > 0 {
                    true => "?".into(),
                    // Of several steps it cannot be seen whether the last one was done.
                    false if several => now + "+",
                    // Rows that no rollback takes back may be there before the binlog has them.
                    false if unit.alone == Some(Alone::NotTransactional) => now + "~",
                    false => now,
                };
                if worker.chosen(unit).is_some() {
                    // Killed midway, it has its GTID for a part.
                    if in_parts && !doing.binlog.ends_with(['+', '~']) {
                        doing.binlog += "~";
                    }
                    doing.binlog += Doing::CHOSEN;
                }
                worker.put_down(&doing).map_err(not_begun)
            })?;
        }
        let end = match stays && has_end(unit, &ops) {
            true => self.end_of(unit, &doing),
            false => Vec::new(),
        };
        let mut tries = 0;
        let mut computed = false;
        loop {
            let mut made = Vec::new();
            let steps = (&ops[..], &end[..]);
            let run = self.execute_finally(unit, steps, &mut done, maybe_done, &mut made);
            let trouble = match run {
                Ok(()) => break,
                Err(Trouble::Lost(error)) => return Err(Trouble::Lost(error)),
                Err(trouble) => trouble,
            };
            // What was to follow the last one follows nothing else.
            self.behind.clear();
            // Before anything else is said: what is full for it may be full for that, too.
            if unit.alone == Some(Alone::Statement)
                && matches!(ops.get(done), Some(Op::Statement { .. }))
                && trouble.may_be_done()
            {
                return Err(self.ask(doing, done, &made, trouble));
            }
            let remains = self.take_back()?;
            self.drop_made(&made)?;
            if trouble.passes() && !remains && tries < TRIES {
                tries += 1;
                continue;
            }
            // As in `apply`, where all of it is in one transaction with the position. Else its steps may be
            // known already, and must stay the same.
            if !stays && !remains && !computed && trouble.is_of_computed(&unit.tables) {
                computed = true;
                let options = Options {
                    computed,
                    ..self.options(Style::Single)
                };
                if let Ok(others) = compile(unit, &options) {
                    ops = others;
                    continue;
                }
            }
            self.clean().map_err(Trouble::Lost)?;
            if done == 0 && !remains {
                // It failed as a whole: nothing is in doubt.
                self.bookkeeping(|worker| {
                    let mut text = Vec::new();
                    worker.channel.put_undone(&mut text, worker.epoch);
                    worker.say(&text).map(|_| ())
                })
                // Else the next session finds out that it was not done.
                .map_err(Trouble::rolled_back)?;
                return Err(trouble.rolled_back());
            }
            // How far it came is known; not what a table without transactions has.
            doing.binlog = match remains {
                true => Doing::PARTS.into(),
                false => format!("{}{done}", Doing::PARTS),
            };
            self.bookkeeping(|worker| worker.put_down(&doing))?;
            return Err(Trouble::Parts {
                steps: (!remains).then_some((done, ops.len())),
                trouble: Box::new(trouble),
            });
        }
        // All of it may be there for good: from here on nothing is tried again, and what is there is found out by
        // a new session.
        self.clean().map_err(Trouble::Lost)?;
        let beside = match self.chosen(unit) {
            Some(gtid) => self.log_once(gtid)?,
            None => None,
        };
        if self.turn(n, unit, None)?.is_some() {
            return Err(Trouble::Ended);
        }
        match beside {
            None => self.commit(n, unit),
            // Nothing may follow it.
            Some(trouble) => {
                let mut text = Vec::new();
                self.channel
                    .put_move(&mut text, self.epoch, Some(&unit.before), &unit.position);
                text.extend_from_slice(ROW_IS_THERE);
                self.session
                    .client
                    .query(&text)
                    .map_err(|error| match error.code() {
                        Some(OTHER_EPOCH) => Trouble::Misplaced,
                        _ => Trouble::Lost(error),
                    })?;
                Err(trouble)
            }
        }
    }

    /// If the target's binlog has what was done, with its GTID, the position does not go there. If not, it
    /// is the group. Gives what ends the session when the position is behind it: all of it is there, as
    /// several groups.
    fn log_once(&mut self, gtid: Gtid) -> Result<Option<Trouble>, Trouble> {
        match gtids::last(&mut self.session.client, gtid).map_err(Trouble::Lost)? {
            Logged::No => return Ok(None),
            Logged::Once => {}
            last => return Err(self.remains(gtid, last)?),
        }
        // The position would be another group. What else was changed is one, too: no statement says so before.
        self.session
            .client
            .query(b"COMMIT;SET SESSION sql_log_bin=0")
            .map_err(Trouble::Lost)?;
        match gtids::last(&mut self.session.client, gtid).map_err(Trouble::Lost)? {
            Logged::Once => Ok(None),
            Logged::More(last) => Ok(Some(Trouble::Beside(gtid, Some(last), true))),
            Logged::No => Err(self.remains(gtid, Logged::No)?),
        }
    }

    /// Writes down that parts of it are there for good: what is in the binlog stays.
    pub(super) fn remains(&mut self, gtid: Gtid, last: Logged) -> Result<Trouble, Trouble> {
        self.take_back()?;
        self.again_if_it_passes(|worker| Ok(worker.clean()?))?;
        let doing = Doing {
            gtid,
            text: begun_rows("tables without transactions"),
            connection: u64::from(self.session.client.id),
            binlog: Doing::PARTS.into(),
        };
        self.bookkeeping(|worker| worker.put_down(&doing))?;
        let last = match last {
            Logged::More(last) => Some(last),
            Logged::Once | Logged::No => None,
        };
        Ok(Trouble::Beside(gtid, last, false))
    }

    /// What makes known that it was done to its end. By the target's binlog alone a KILL looks alike. It is
    /// in one transaction with all that can be rolled back; but a GTID is for one group only.
    fn end_of(&self, unit: &Unit, doing: &Doing) -> Vec<u8> {
        let mut text = Vec::new();
        let silent = self.chosen(unit).is_some();
        if silent {
            text.extend_from_slice(b"COMMIT;SET @dromon_log=@@sql_log_bin, SESSION sql_log_bin=0;");
        }
        self.channel.put_done(&mut text, doing);
        let end: &[u8] = match silent {
            true => b";SET SESSION sql_log_bin=@dromon_log",
            false => b";COMMIT",
        };
        text.extend_from_slice(end);
        text
    }

    /// `ops`: and what follows the last one in its packet. `done`: so many statements, the first ones, have
    /// committed. `maybe_done`: an error that says that a statement was done is none. Rows that follow it are in one transaction with the
    /// position, so that they cannot have been done. `made`: gets the temporary tables that it makes.
    fn execute_finally<'o>(
        &mut self,
        unit: &Unit,
        (ops, end): (&'o [Op], &[u8]),
        done: &mut usize,
        maybe_done: bool,
        made: &mut Vec<Made<'o>>,
    ) -> Result<(), Trouble> {
        // Another try has another group.
        self.act_as(unit)?;
        self.session.dirty = true;
        self.session
            .client
            .query(b"SET SESSION tx_isolation='REPEATABLE-READ'")?;
        let mut in_transaction = unit.alone == Some(Alone::NotTransactional);
        if in_transaction {
            // Tables that can be rolled back may take part, too.
            self.session.client.query(b"BEGIN")?;
        }
        for (n, op) in ops.iter().enumerate().skip(*done) {
            self.behind = match n + 1 == ops.len() {
                true => end.to_vec(),
                false => Vec::new(),
            };
            if let Op::Statement {
                setup,
                uses,
                text,
                load,
                error,
                gtid,
            } = op
            {
                match self.statement(setup, uses, text, load.as_ref(), *error) {
                    Err(Trouble::Error(code, why))
                        if maybe_done && DONE_ALREADY.contains(&code) =>
                    {
                        let text =
                            format!("{gtid} is taken for done before the last run ended: {why}.");
                        self.log.say(Level::Warning, &text);
                    }
                    Err(trouble @ Trouble::NoError(..)) => {
                        if !in_transaction {
                            *done = n + 1;
                        }
                        return Err(trouble);
                    }
                    other => other?,
                }
                if !in_transaction {
                    *done = n + 1;
                } else if let Some(Temporary::Made { drop, if_missing }) = temporary(text)
                    && !(if_missing && self.warns(IS_THERE)?)
                {
                    made.push(Made { setup, uses, drop });
                }
                continue;
            }
            self.clean()?;
            if !std::mem::replace(&mut in_transaction, true) {
                self.session.client.query(b"BEGIN")?;
            }
            match op {
                Op::Rows { text, expects } => self.rows(b"", text, expects, Style::Single)?,
                Op::Binlog { text, note, local } => self.binlog(unit, text, note, *local)?,
                Op::Statement { .. } | Op::Last => {}
            }
        }
        if unit.transactions[0].ending == Ending::Rollback {
            // As on the source: what cannot be taken back remains, and nothing else.
            self.session.client.query(b"ROLLBACK")?;
        }
        Ok(())
    }

    /// What commits by itself may be done but for a file that tells of it: done again, it could be there twice. That is
    /// written down, so that the next start asks. If it cannot be, what stands there lets the next one do it again.
    fn ask(
        &mut self,
        mut doing: Doing,
        done: usize,
        made: &[Made<'_>],
        trouble: Trouble,
    ) -> Trouble {
        doing.binlog = match done {
            0 => Doing::ASK.into(),
            _ => Doing::PARTS.into(),
        };
        let written = self.roll_back().and_then(|()| {
            self.clean().map_err(Trouble::Lost)?;
            self.bookkeeping(|worker| worker.put_down(&doing))?;
            // They end with the session, too.
            let _ = self.drop_made(made);
            Ok(())
        });
        Trouble::MayBeDone {
            trouble: Box::new(trouble),
            mark: doing.binlog,
            unwritten: written.err().map(|why| why.text()),
        }
    }

    /// Rolls back. Gives whether something remains.
    fn take_back(&mut self) -> Result<bool, Trouble> {
        self.roll_back()?;
        self.warns(NOT_ALL_TAKEN_BACK)
    }

    /// Whether the last statement did so with this code. If that is not said, a second question would be about the
    /// first one.
    fn warns(&mut self, wanted: &str) -> Result<bool, Trouble> {
        let warnings = self.session.client.rows("SHOW WARNINGS");
        let warnings = warnings.map_err(Trouble::Lost)?;
        let code = |row: &Vec<Option<Vec<u8>>>| row.get(1).cloned().flatten();
        Ok(warnings
            .iter()
            .any(|row| code(row).is_some_and(|code| code == wanted.as_bytes())))
    }

    /// No rollback takes temporary tables back, nor, where they were made of a SELECT, their rows.
    fn drop_made(&mut self, made: &[Made<'_>]) -> Result<(), Trouble> {
        if made.is_empty() {
            return Ok(());
        }
        self.bookkeeping(|worker| {
            for Made { setup, uses, drop } in made {
                worker.again_if_it_passes(|worker| worker.statement(setup, uses, drop, None, 0))?;
            }
            Ok(())
        })
    }

    /// Writes down what is begun.
    fn put_down(&mut self, doing: &Doing) -> Result<(), Trouble> {
        let mut text = Vec::new();
        self.channel.put_doing(&mut text, self.epoch, doing);
        let changed = self.again_if_it_passes(|worker| {
            let said = worker.session.client.query(&text);
            said.map_err(|error| match too_long(&error) {
                // Where the target's binlog is, and no trouble of the unit: what ends the session says what to do.
                Some(_) => Trouble::Lost(error),
                None => error.into(),
            })
        })?;
        // The same may stand there already.
        let is_there = changed == [Answer::Done(1)];
        let epoch = |worker: &mut Worker| Ok(worker.channel.epoch(&mut worker.session.client)?);
        if !is_there && self.again_if_it_passes(epoch)?.is_none() {
            return Err(Trouble::Misplaced);
        }
        Ok(())
    }

    /// What is no affair of the target's own replicas.
    fn bookkeeping(
        &mut self,
        run: impl FnOnce(&mut Worker) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        if self.node {
            return run(self);
        }
        self.say(b"SET @dromon_log=@@sql_log_bin, SESSION sql_log_bin=0")?;
        let done = run(self);
        self.say(b"SET SESSION sql_log_bin=@dromon_log")?;
        done
    }

    /// A packet of the replica's own, which may be said twice.
    fn say(&mut self, text: &[u8]) -> Result<Vec<Answer>, Trouble> {
        self.again_if_it_passes(|worker| Ok(worker.session.client.query(text)?))
    }

    /// What may be done twice is, if the target took it back for what passes: a query killed by hand, a deadlock.
    /// Not amid a transaction, which may be gone with it.
    fn again_if_it_passes<T>(
        &mut self,
        mut run: impl FnMut(&mut Worker) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let mut tries = 0;
        loop {
            match run(self) {
                Err(trouble) if trouble.passes() && tries < TRIES => tries += 1,
                done => return done,
            }
        }
    }
}
