//! What certification answers.

use std::fmt;

use dromon_writeset::{KeyType, Seqno, Uuid};

/// The verdict on one write set; the same on every node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// It commits.
    Passed {
        /// It may be applied once everything up to here is released. Below its
        /// own seqno.
        depends_on: Seqno,
    },
    /// It does not commit on any node; its seqno is used up.
    Failed {
        /// Why.
        reason: FailReason,
    },
}

impl Verdict {
    /// Whether the write set commits.
    pub fn passed(&self) -> bool {
        matches!(self, Verdict::Passed { .. })
    }

    /// The dependency, -1 for a write set that failed, as the server wants it.
    pub fn depends_on(&self) -> Seqno {
        match self {
            Verdict::Passed { depends_on } => *depends_on,
            Verdict::Failed { .. } => -1,
        }
    }

    /// What it met, if it failed by a key.
    pub fn conflict(&self) -> Option<&Conflict> {
        match self {
            Verdict::Failed {
                reason: FailReason::Conflict(c),
            } => Some(c),
            _ => None,
        }
    }
}

/// Why a write set failed certification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailReason {
    /// Another transaction changed the same thing first.
    Conflict(Box<Conflict>),
    /// It saw less than what the index still knows.
    TooOld {
        /// What its origin had released.
        last_seen: Seqno,
        /// Start of the index: the state's start or the last cut.
        floor: Seqno,
    },
    /// Too much happened between its sending and its place in the order.
    TooLong {
        /// What its origin had released.
        last_seen: Seqno,
        /// Its own place.
        seqno: Seqno,
    },
    /// It is the end of a streaming transaction, and a statement in total order
    /// isolation stands between it and what its origin had released.
    BesideDdl {
        /// What its origin had released.
        last_seen: Seqno,
        /// The statement's place.
        ddl: Seqno,
    },
    /// It goes on with a streaming transaction, or ends it, of which no fragment is left: it was rolled
    /// back, or its node has lost touch since.
    NoStream,
    /// It was sent before its node became a member, perhaps again: the rows that it had locked were
    /// given back then.
    BeforeItsView {
        /// What its origin had released.
        last_seen: Seqno,
        /// Where its node became a member.
        joined_at: Seqno,
    },
    /// Its origin claims to have seen its own place or later: a bug there.
    FromFuture {
        /// What its origin claims.
        last_seen: Seqno,
        /// Its own place.
        seqno: Seqno,
    },
}

impl fmt::Display for FailReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FailReason::Conflict(c) => c.fmt(f),
            FailReason::TooOld { last_seen, floor } => write!(
                f,
                "its origin had seen only {last_seen}, but the certification index starts at \
                 {floor}; the client may retry"
            ),
            FailReason::TooLong { last_seen, seqno } => write!(
                f,
                "its origin had seen only {last_seen} when it was ordered at {seqno}, further \
                 behind than the index reaches; the client may retry"
            ),
            FailReason::BesideDdl { last_seen, ddl } => write!(
                f,
                "it ends a streaming transaction and was on its way (its origin had seen \
                 {last_seen}) when DDL came at {ddl}; the client may retry"
            ),
            FailReason::NoStream => f.write_str(
                "it goes on with a streaming transaction of which no fragment is left; the client may \
                 retry",
            ),
            FailReason::BeforeItsView {
                last_seen,
                joined_at,
            } => write!(
                f,
                "its origin had seen only {last_seen}, but became a member at {joined_at}: what it had \
                 locked is free since; the client may retry"
            ),
            FailReason::FromFuture { last_seen, seqno } => write!(
                f,
                "its origin claims to have seen {last_seen}, but it was ordered at {seqno}; this \
                 is a bug of the node it comes from"
            ),
        }
    }
}

/// Where and with whom a write set collided; for `cert.log_conflicts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// `database.table`, or the database alone.
    pub table: String,
    /// The row key as text or hexadecimal digits; empty for the table itself.
    pub key: String,
    /// What the failed write set does with the key.
    pub new_type: KeyType,
    /// The failed one's key stands for a whole table, having too many rows.
    pub whole_table: bool,
    /// What the other one did with it.
    pub held_type: KeyType,
    /// The other one's place.
    pub seqno: Seqno,
    /// The node the other one came from.
    pub source: Uuid,
    /// The other one's transaction id at its server.
    pub trx_id: u64,
    /// The other one's connection id at its server.
    pub conn_id: u64,
    /// The other one is DDL or its like.
    pub toi: bool,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.new_type, self.table)?;
        if !self.key.is_empty() {
            write!(f, " key {}", self.key)?;
        }
        if self.whole_table {
            f.write_str(" (whole table)")?;
        }
        write!(f, " meets {} of write set {}", self.held_type, self.seqno)?;
        if self.toi {
            f.write_str(" (TOI)")?;
        }
        write!(
            f,
            " from node {}, transaction {}",
            self.source, self.trx_id as i64
        )?;
        write!(f, ", connection {}", self.conn_id as i64)
    }
}
