//! XA transactions on their way through the planner ([`crate::xa`]).

use std::sync::atomic::Ordering;

use super::begin::unusable;
use super::plan::Planner;
use super::{End, Settings};
use crate::unit::{Own, Transaction};
use crate::xa::{Held, Phase, Prepared, phase, without_rows};

/// Bytes of events in a row of the table in which they are kept, at most.
const PART: usize = 256 << 10;

/// What the planner knows of them.
pub(super) struct Phases {
    prepared: Prepared,
    /// The table is there, or was made.
    has_table: bool,
    logged: bool,
    part: usize,
}

impl Phases {
    /// `kept`: those that the target has, if it has the table. `packet_max`: longest packet that it
    /// takes.
    pub(super) fn new(
        kept: Vec<(String, u64)>,
        settings: &Settings,
        logged: bool,
        packet_max: usize,
    ) -> Phases {
        Phases {
            has_table: !kept.is_empty(),
            prepared: Prepared::new(kept, settings.memory / 4),
            logged,
            // Each byte may become two.
            part: PART.min(packet_max / 4),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.prepared.len()
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
        let held = Held::of(transaction);
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
        self.xa.prepared.add(name, held, parts);
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
        let Some((parts, held)) = self.xa.prepared.take(name) else {
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
        let own = Own {
            name: name.as_bytes().to_vec(),
            statements: vec![(text, parts)],
        };
        let decided = match (commits, held) {
            (false, _) => without_rows(transaction),
            (true, Some(held)) => held.decided(transaction),
            (true, None) => self.kept(name)?.decided(transaction),
        };
        Ok(Transaction {
            own: Some(own),
            ..decided
        })
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
        Held::read(&form, &events).map_err(|why| {
            End::Fatal(format!(
                "The events of the XA transaction {name} in dromon_replica.prepared cannot be read: {why}. Nothing of it is in the target's \
                 tables. Did somebody change them?"
            ))
        })
    }
}
