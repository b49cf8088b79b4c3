//! XA transactions on their way through the planner ([`crate::xa`]).

use std::sync::atomic::Ordering;

use dromon_binlog::{Gtid, Position};
use dromon_relay::log::Level;

use super::begin::unusable;
use super::plan::Planner;
use super::{End, Settings, texts};
use crate::compile::Touched;
use crate::unit::{Own, Transaction};
use crate::xa::{Held, Kept, Phase, Prepared, Taken, phase, without_rows};

/// Bytes of events in a row of the table in which they are kept, at most.
const PART: usize = 256 << 10;

/// What the planner knows of them.
pub(super) struct Phases {
    prepared: Prepared,
    /// The table is there, or was made.
    has_table: bool,
    logged: bool,
    part: usize,
    /// It was said that statements are not locked in between.
    warned: bool,
}

impl Phases {
    /// `kept`: those that the target has, if it has the table. `position`: where it stands. `packet_max`:
    /// longest packet that it takes.
    pub(super) fn new(
        kept: Vec<Kept>,
        position: &Position,
        settings: &Settings,
        logged: bool,
        packet_max: usize,
    ) -> Phases {
        Phases {
            has_table: !kept.is_empty(),
            prepared: Prepared::new(kept, position, settings.memory / 4),
            logged,
            warned: false,
            // Each byte may become two.
            part: PART.min(packet_max / 4),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.prepared.len()
    }

    /// A transaction is planned that changes something: these tables, or perhaps any.
    pub(super) fn changed(&mut self, tables: Option<Touched>) {
        self.prepared.changed(tables);
    }

    /// One comes that the target has already.
    pub(super) fn passes(&mut self, gtid: Gtid) {
        self.prepared.passes(gtid);
    }
}

impl Planner<'_> {
    /// What is to be applied where a phase of an XA transaction comes; all else stays as it is.
    pub(super) fn phase(&mut self, transaction: Transaction) -> Result<Transaction, End> {
        let gtid = transaction.gtid;
        let phase = phase(&transaction)
            .map_err(|error| End::Fatal(format!("{gtid} cannot be read: {error}.")))?;
        let phased = match phase {
            None => return Ok(transaction),
            Some(Phase::First(name)) => self.first(&transaction, name)?,
            Some(Phase::Second(name, commits)) => self.second(&transaction, &name, commits)?,
        };
        let count = self.xa.len();
        self.shared.prepared.store(count, Ordering::Relaxed);
        Ok(phased)
    }

    fn first(&mut self, transaction: &Transaction, name: String) -> Result<Transaction, End> {
        if !self.xa.has_table {
            self.channel
                .prepare_prepared(&mut self.control, self.xa.logged)
                .map_err(unusable)?;
            self.xa.has_table = true;
        }
        let held = Held::of(transaction, &self.settings.filter);
        if held.has_statements() && !std::mem::replace(&mut self.xa.warned, true) {
            let text = format!(
                "The source logged statements of the XA transaction {name} ({}), as it does with binlog_format MIXED or STATEMENT. If others \
                 commit before it does, and that may be about the same tables, it ends this replica: what it did cannot be told then. Let clients of XA have binlog_format=ROW.",
                transaction.gtid
            );
            self.log.say(Level::Warning, &text);
        }
        let bytes = held.bytes();
        let mut statements = Vec::new();
        for (n, part) in bytes.chunks(self.xa.part.max(1)).enumerate() {
            let form = if n == 0 { held.form() } else { b"" };
            let mut text = Vec::new();
            self.channel
                .put_keep(&mut text, &name, n, transaction.gtid, form, part);
            statements.push((text, 1));
        }
        let own = Own {
            name: name.clone().into_bytes(),
            statements,
        };
        let parts = own.statements.len() as u64;
        self.xa.prepared.add(name, transaction.gtid, held, parts);
        Ok(Transaction {
            own: Some(own),
            ..without_rows(transaction)
        })
    }

    fn second(
        &mut self,
        transaction: &Transaction,
        name: &str,
        commits: bool,
    ) -> Result<Transaction, End> {
        let gtid = transaction.gtid;
        let Some(taken) = self.xa.prepared.take(name) else {
            return match commits {
                // There is nothing to take back.
                false => Ok(without_rows(transaction)),
                true => Err(End::Fatal(format!(
                    "The source committed the XA transaction {name} ({gtid}), and its first phase, XA PREPARE, came before this channel \
                     began: its rows are not known here. Nothing of it is in the target; everything before it is. If the target is a copy in \
                     which it is prepared (XA RECOVER), commit it there by hand; else make the target's rows right by hand. Then set gtid_pos \
                     in dromon_replica.position behind {gtid}."
                ))),
            };
        };
        let mut text = Vec::new();
        self.channel.put_decided(&mut text, name);
        let Taken {
            parts,
            first,
            changes,
            stays,
            held,
        } = taken;
        let held = match held {
            // Nothing of it is needed.
            _ if !commits && stays == Some(false) => None,
            Some(held) => Some(held),
            None => Some(self.kept(name)?),
        };
        let runs = commits && held.as_ref().is_some_and(Held::has_statements);
        // Of what ran between, and of its statements, the tables count if they are known for certain.
        let unchanged = match (&held, changes) {
            (Some(held), Some(changes)) if runs => {
                let since = |tables| self.xa.prepared.changed_since(changes, tables);
                let tables = since(None).then(|| self.touches(held));
                Some(!since(tables.as_ref().and_then(Option::as_ref)))
            }
            _ => None,
        };
        let by_hand = |why: String| {
            let begin = held
                .as_ref()
                .and_then(|held| held.statement(&self.settings.filter));
            let begin = texts::of_error(&begin.unwrap_or_default());
            let decided = String::from_utf8_lossy(&text);
            End::Fatal(format!(
                "{why} Its first statement: {begin}. Nothing of it is in the target; everything before it is. Make the tables of its \
                 statements the same as on the source, by hand or with a new copy. By hand: then do {decided}, and set gtid_pos in \
                 dromon_replica.position behind {gtid}. So that it does not come to this, let clients of XA have binlog_format=ROW on the source."
            ))
        };
        if runs && unchanged != Some(true) {
            let others = match unchanged {
                Some(_) => "others committed",
                None => "others may have committed",
            };
            return Err(by_hand(format!(
                "The source committed the XA transaction {name} ({gtid}), of which it logged statements, and {others} since its XA PREPARE \
                 ({first}): what its statements read, or did not find, was not locked there any more. Behind these others, which may \
                 be about the same tables, they may change other rows here than they did there, so they are not run."
            )));
        }
        if !commits && held.as_ref().is_some_and(Held::may_stay) {
            return Err(by_hand(format!(
                "The source rolled back the XA transaction {name} ({gtid}; XA PREPARE {first}), of which it logged statements, and not all of \
                 its tables can be rolled back there: what it did to tables without transactions, or to temporary ones, stays, and which \
                 of its statements that is cannot be told."
            )));
        }
        let decided = match held {
            Some(held) if commits => held.decided(transaction),
            _ => without_rows(transaction),
        };
        let own = Own {
            name: name.as_bytes().to_vec(),
            statements: vec![(text, parts)],
        };
        Ok(Transaction {
            own: Some(own),
            ..decided
        })
    }

    /// Which tables its statements read or change; `None`: it may be any.
    fn touches(&self, held: &Held) -> Option<Touched> {
        match self.knows_tables() {
            true => held.touches(&self.settings.filter, &self.tables),
            false => None,
        }
    }

    /// What the target has of one.
    fn kept(&mut self, name: &str) -> Result<Held, End> {
        // Its first phase may be under way.
        if !self.drain() {
            return Err(End::Told);
        }
        let (form, events) = self
            .channel
            .prepared_events(&mut self.control, name)
            .map_err(unusable)?;
        Held::read(&form, &events, &self.settings.filter).map_err(|why| {
            End::Fatal(format!(
                "The events of the XA transaction {name} in dromon_replica.prepared cannot be read: {why}. Nothing of it is in the target's \
                 tables. Did somebody change them?"
            ))
        })
    }
}
