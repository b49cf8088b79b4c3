//! The database as the node sees it.
//!
//! [`Database`] can be called from any thread of the node's; [`Applier`] is a
//! thread that the database has lent to the node, and only that thread calls
//! it. No method is ever called while the node holds a lock.

use std::sync::Arc;

use dromon_writeset::{Flags, Seqno, Uuid};

use crate::messages::Position;
use crate::trx::Trx;

/// How loud a line in the database's log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The node cannot go on.
    Error,
    /// Something an operator should look at.
    Warning,
    /// Normal.
    Note,
    /// For developers.
    Debug,
}

/// One member in a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewMember {
    /// This incarnation.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// Where clients reach it.
    pub incoming: String,
}

/// A view as the database gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Its place in the history.
    pub position: Position,
    /// Counts primary views; -1 for others.
    pub number: i64,
    /// Whether it belongs to a primary component.
    pub primary: bool,
    /// The own place among the members.
    pub own: Option<usize>,
    /// Members in uuid order; none in the final view.
    pub members: Vec<ViewMember>,
}

/// What the database must know about a write set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Its place; undefined until ordered.
    pub position: Position,
    /// The member that sent it.
    pub source: Uuid,
    /// The transaction's number there.
    pub trx_id: u64,
    /// The connection's number there.
    pub conn_id: u64,
    /// Everything up to here must be finished before it is applied; -1 if it
    /// failed certification or is not ordered.
    pub depends_on: Seqno,
}

/// How applying ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Whether the database did it, or noted that it need not.
    pub ok: bool,
    /// Whether the database wants this thread back.
    pub exit: bool,
}

/// How a node that has been up stands in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Current.
    Synced,
    /// Gives its state to another, or was told to fall behind.
    Donor,
    /// It is back, and catches up.
    Joined,
    /// Without a majority, or the others went on without it.
    NonPrimary,
    /// Its data differs from the cluster's.
    Inconsistent,
    /// It has left, or was put out.
    Gone,
}

impl Standing {
    /// For whoever looks at the service.
    pub fn words(self) -> &'static str {
        match self {
            Standing::Synced => "Synced with the cluster",
            Standing::Donor => {
                "Donor/Desynced: gives a copy of its data, or was told to fall behind"
            }
            Standing::Joined => {
                "Joined: catching up with the cluster, refuses reads and writes until then"
            }
            Standing::NonPrimary => {
                "Non-primary: refuses reads and writes until it is back in the cluster"
            }
            Standing::Inconsistent => {
                "Inconsistent: it has left the cluster, start it again: it takes a full copy"
            }
            Standing::Gone => "Disconnected: it has left the cluster",
        }
    }
}

/// What the node asks of the database as a whole.
pub trait Database: Send + Sync {
    /// Writes to the database's log.
    fn log(&self, level: Level, message: &str);

    /// Whether a database that comes back by the log wants a bypass first: to be
    /// told by a donor's script what no write set tells.
    fn wants_bypass(&self) -> bool {
        false
    }

    /// Whether the database writes a log of its own behind commit order, in groups: a client that is
    /// ended while it waits there for one before it to be finished takes all behind it along.
    /// Does not change. Asked at each commit of a client. Must not block.
    fn has_binary_log(&self) -> bool {
        false
    }

    /// The node is not up yet, and `doing` says why, in a few words. Comes every few
    /// seconds (at least every ten) from the call of connect until the node has caught
    /// up for the first time: for whoever has started this process and would give
    /// it up. Must not block.
    fn still_starting(&self, doing: &str) {
        let _ = doing;
    }

    /// How the node stands in its cluster, and not as it was said last: what
    /// [`Self::still_starting`] said is over. Must not block.
    fn stands(&self, standing: Standing) {
        let _ = standing;
    }

    /// Whether the process was told to end while it starts, at a time when nobody heeds that: a
    /// connect that waits ends then. Asked a few times a second at most. Must not block.
    fn told_to_stop(&self) -> bool {
        false
    }
}

/// A thread lent by the database.
pub trait Applier {
    /// The node is in the cluster: `view` is where.
    fn connected(&mut self, view: &View) -> bool;
    /// Asks for what a donor must be told. Empty: no full copy is possible now.
    fn state_request(&mut self) -> Option<Vec<u8>>;
    /// The members changed.
    fn view(&mut self, view: &View) -> bool;
    /// Applies a write set.
    fn apply(&mut self, trx: &Arc<Trx>, flags: Flags, payload: &[u8], meta: &Meta) -> Applied;
    /// Starts giving a full copy of `position`, or, with `bypass`, only tells
    /// a database that stands there; answers when it has begun.
    fn donate(&mut self, request: &[u8], position: Position, bypass: bool) -> bool;
    /// The node has caught up with the cluster.
    fn synced(&mut self);
    /// The copy that was asked for will never be whole, or what starts the engines will never come.
    /// The others know that this node goes, if anything can tell them. May end the process; else the
    /// node leaves.
    fn give_up(&mut self);
}

/// How a call of the database ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Ok,
    /// Unknown to the node.
    TrxMissing,
    /// Failed certification: the transaction must be rolled back.
    TrxFail,
    /// Must give way to another one; if ordered, it must be replayed.
    BfAbort,
    /// Too large.
    SizeExceeded,
    /// Not connected to a primary component.
    ConnFail,
    /// The outcome is unknown, or the node cannot go on.
    NodeFail,
    /// The whole process cannot go on.
    Fatal,
    /// Not offered.
    NotImplemented,
    /// Not now.
    NotAllowed,
}
