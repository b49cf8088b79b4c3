//! What the entries of a log mean, one by one: for `dromon log show`.
//!
//! The entries run through the same [`ClusterState`] as in a node, so a write set is shown
//! with its seqno and its verdict. For that the book must begin at a checkpoint; without
//! one, entries are only taken apart. Nothing here says whether an entry is committed:
//! the newest ones of a log may not be, and another leader may replace them.

mod counted;

use std::collections::BTreeMap;
use std::fmt;

use dromon_certify::Verdict;
use dromon_order::{Checkpoint, Committed, CommittedBody, LogId, Part, RawMessage};
use dromon_writeset::{Head, Seqno, Uuid};

use crate::cluster::{ChunkPart, ClusterState, ClusterView, Event};
use crate::messages::{Control, Need, Position, decode, kind};
use crate::spool::SPOOL_ABOVE;
use crate::votes::NOBODY;

use counted::Counted;

/// One entry, explained.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its place in the log.
    pub place: LogId,
    /// Size of its record, in bytes.
    pub bytes: u64,
    /// The seqno it takes, or the last one if it takes two; `None`: none, or not known.
    pub seqno: Option<Seqno>,
    /// Who sent it: the origin, its name if it is known, and the origin's number for it.
    pub from: Option<(Uuid, Option<String>, u64)>,
    /// What it is.
    pub what: What,
    /// What in it cannot be read: a node that delivers it stops.
    pub damage: Option<String>,
}

/// What an entry is.
#[derive(Clone, Debug)]
pub enum What {
    /// A new leader's first entry.
    Blank,
    /// The members of the log changed: id and address.
    Members {
        /// Who votes.
        voters: Vec<(u64, String)>,
        /// Who only stores.
        learners: Vec<(u64, String)>,
    },
    /// A write set, or the last piece of one.
    WriteSet(Box<WriteSetLine>),
    /// A piece of a large message, which is complete with a later one.
    Piece {
        /// Which, from 1.
        number: u32,
        /// Of how many.
        of: u32,
    },
    /// A control message.
    Control {
        /// What it asks for.
        asks: String,
        /// What came of it; empty if nothing did, or the state is not known.
        came: String,
    },
    /// Nobody delivers it: a copy of one that counted, or out of its origin's order, or of
    /// an origin that is no member.
    DoesNotCount {
        /// What it is.
        of: String,
    },
    /// It cannot be read.
    Unreadable,
}

/// What there is to say about a write set.
#[derive(Clone, Debug)]
pub struct WriteSetLine {
    /// Header and keys.
    pub head: Head,
    /// In how many pieces it travelled; 1: whole.
    pub pieces: u32,
    /// Whether it commits, if the state is known.
    pub verdict: Option<Verdict>,
}

impl What {
    /// In one or two words.
    pub fn kind(&self) -> &'static str {
        match self {
            What::Blank => "blank",
            What::Members { .. } => "members",
            What::WriteSet(_) => "write set",
            What::Piece { .. } => "piece",
            What::Control { .. } => "control",
            What::DoesNotCount { .. } => "copy",
            What::Unreadable => "unreadable",
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Blank => f.write_str("first entry of a leader"),
            What::Members { voters, learners } => {
                write!(f, "votes: {}", nodes(voters))?;
                if learners.is_empty() {
                    return Ok(());
                }
                write!(f, "; stores: {}", nodes(learners))
            }
            What::WriteSet(w) => w.fmt(f),
            What::Piece { number, of } => write!(f, "{number} of {of}"),
            What::Control { asks, came } => {
                f.write_str(asks)?;
                if came.is_empty() {
                    return Ok(());
                }
                write!(f, ": {came}")
            }
            What::DoesNotCount { of } => write!(f, "{of} that does not count (sent again)"),
            What::Unreadable => f.write_str("cannot be read"),
        }
    }
}

impl fmt::Display for WriteSetLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.verdict {
            Some(Verdict::Passed { depends_on }) => write!(f, "passed, after {depends_on}; ")?,
            Some(Verdict::Failed { reason }) => write!(f, "failed: {reason}; ")?,
            None => {}
        }
        let header = self.head.header();
        // All ones is a statement outside of transactions.
        match header.trx_id {
            u64::MAX => f.write_str("no transaction")?,
            id => write!(f, "transaction {id}")?,
        }
        write!(
            f,
            ", connection {}, {}, {} bytes of data, had seen {}, {}",
            header.conn_id as i64,
            match self.head.keys().len() {
                1 => "1 key".to_owned(),
                n => format!("{n} keys"),
            },
            self.head.payload_len(),
            header.last_seen,
            header.flags
        )?;
        if self.pieces > 1 {
            write!(f, ", in {} pieces", self.pieces)?;
        }
        Ok(())
    }
}

fn nodes(list: &[(u64, String)]) -> String {
    let one = |(id, addr): &(u64, String)| format!("{id:016x} at {addr}");
    list.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The state that explains entries.
#[derive(Debug, Default)]
pub struct LogBook {
    state: Option<ClusterState>,
    names: BTreeMap<Uuid, String>,
}

impl LogBook {
    /// A book without a state: entries are taken apart, seqnos are not known.
    pub fn new() -> LogBook {
        LogBook::default()
    }

    /// Goes on from `checkpoint`: the next entry is the one behind it. Payloads of more
    /// than 4 MiB that come in pieces are only counted and summed, not kept.
    ///
    /// An error is a sentence: the checkpoint's content is damaged or of another version.
    pub fn start_at(&mut self, checkpoint: &Checkpoint) -> Result<(), String> {
        let mut state = ClusterState::decode(&checkpoint.sequencer, &checkpoint.node)
            .map_err(|e| e.to_string())?;
        state.set_piece_store(Box::new(Counted::default()), SPOOL_ABOVE as u64);
        self.state = Some(state);
        self.learn_names();
        Ok(())
    }

    /// History and seqno of the last entry, if the state is known.
    pub fn position(&self) -> Option<Position> {
        self.state.as_ref().map(ClusterState::position)
    }

    /// The members now, if the state is known: by name, with uuid and id of their logs.
    pub fn members(&self) -> Vec<(String, Uuid, u64)> {
        let members = self.state.iter().flat_map(ClusterState::members);
        members
            .map(|m| (m.name.clone(), m.uuid, m.raft_id))
            .collect()
    }

    fn learn_names(&mut self) {
        for m in self.state.iter().flat_map(ClusterState::members) {
            self.names.insert(m.origin, m.name.clone());
        }
    }

    /// Explains the next entry. `bytes` is the size of its record.
    pub fn entry(&mut self, place: LogId, bytes: u64, entry: &Committed) -> Line {
        let before = self.position();
        let events = self.state.as_mut().map(|s| s.deliver(entry));
        let events = events.unwrap_or_default();
        if events.iter().any(|e| matches!(e, Event::View { .. })) {
            self.learn_names();
        }
        let after = self.position();
        let damage = events.iter().find_map(|e| match e {
            Event::Corrupt { why, .. } => Some(why.clone()),
            _ => None,
        });
        let mut line = Line {
            place,
            bytes,
            seqno: after.filter(|p| Some(*p) != before).map(|p| p.seqno),
            from: None,
            what: What::Blank,
            damage,
        };
        match &entry.body {
            CommittedBody::Blank => {}
            CommittedBody::Membership {
                voters, learners, ..
            } => {
                line.what = What::Members {
                    voters: voters.clone(),
                    learners: learners.clone(),
                };
            }
            CommittedBody::Message(m) => {
                let name = self.names.get(&m.origin).cloned();
                line.from = Some((m.origin, name, m.oseq));
                self.message(m, events, &mut line);
            }
        }
        line
    }

    fn message(&self, m: &RawMessage, events: Vec<Event>, line: &mut Line) {
        let known = self.state.is_some();
        let pieces = match m.part {
            Part::Whole => 1,
            Part::Piece { n, .. } => n,
        };
        let delivered = events.iter().find_map(|e| match e {
            Event::WriteSet {
                write_set, verdict, ..
            } => Some((write_set.head().clone(), verdict.clone())),
            Event::Chunk {
                seqno,
                chunked,
                part: ChunkPart::Data(0),
                ..
            } => {
                let verdict = Verdict::Passed {
                    depends_on: seqno - 1,
                };
                Some((chunked.write_set.head().clone(), verdict))
            }
            _ => None,
        });
        if let Some((head, verdict)) = delivered {
            line.what = What::WriteSet(Box::new(WriteSetLine {
                head,
                pieces,
                verdict: Some(verdict),
            }));
            return;
        }
        if let Part::Piece { i, n, .. } = m.part {
            line.what = What::Piece {
                number: i + 1,
                of: n,
            };
            return;
        }
        line.what = match m.kind {
            kind::WRITE_SET => match Head::decode(&m.body) {
                Ok(_) if known => What::DoesNotCount {
                    of: "a write set".into(),
                },
                Ok(head) => What::WriteSet(Box::new(WriteSetLine {
                    head,
                    pieces,
                    verdict: None,
                })),
                Err(e) => {
                    line.damage.get_or_insert(e.to_string());
                    What::Unreadable
                }
            },
            kind::CONTROL => match decode::<Control>(&m.body) {
                Some(control) => What::Control {
                    asks: self.asks(&control),
                    came: came(&events),
                },
                None => {
                    line.damage
                        .get_or_insert("a control message that cannot be decoded".into());
                    What::Unreadable
                }
            },
            other => {
                line.damage
                    .get_or_insert(format!("a message of the unknown kind {other}"));
                What::Unreadable
            }
        };
    }

    fn name(&self, uuid: &Uuid) -> String {
        let known = self.state.iter().flat_map(ClusterState::members);
        known
            .into_iter()
            .find(|m| m.uuid == *uuid)
            .map_or_else(|| uuid.to_string(), |m| m.name.clone())
    }

    fn asks(&self, control: &Control) -> String {
        match control {
            Control::Join(j) => format!(
                "{} ({}) at {} joins from {}, {}",
                j.name,
                j.uuid,
                j.addr,
                j.position,
                match j.need {
                    _ if j.witness => "as a witness",
                    Need::Log => "by the log",
                    Need::Copy => "by a full copy",
                }
            ),
            Control::Leave { uuid, reason } => {
                format!("{} leaves ({reason:?})", self.name(uuid))
            }
            Control::Evict { uuid, by } => {
                format!(
                    "the leader of term {} ({:x}) evicts {}",
                    by.term,
                    by.leader,
                    self.name(uuid)
                )
            }
            Control::Rejoin { uuid, .. } => format!("{} comes back", self.name(uuid)),
            Control::StateRequest { joiner, donors, .. } => {
                format!("{} asks for a copy of '{donors}'", self.name(joiner))
            }
            Control::BypassRequest {
                joiner,
                donors,
                position,
                ..
            } => format!(
                "{} asks for a bypass at {position}, first of '{donors}'",
                self.name(joiner)
            ),
            Control::StateSent {
                donor,
                joiner,
                position,
                error,
                ..
            } => format!(
                "copy from {} to {} ended at {position} with {error}",
                self.name(donor),
                self.name(joiner)
            ),
            Control::Joined { uuid } => format!("{} has a state", self.name(uuid)),
            Control::Synced { uuid } => format!("{} has caught up", self.name(uuid)),
            Control::Desync { uuid } => format!("{} desyncs", self.name(uuid)),
            Control::Resync { uuid } => format!("{} ends a desync", self.name(uuid)),
            Control::Cut { seqno } => format!("all have released {seqno}"),
            Control::Vote {
                uuid,
                seqno,
                digest,
            } => format!("{} votes {digest:016x} on {seqno}", self.name(uuid)),
            Control::Weight { uuid, weight } => {
                format!("{} has weight {weight}", self.name(uuid))
            }
            Control::Chunk { id, n, ahead } => match ahead {
                0 => format!("chunk {n} of the large write set from {id} on"),
                _ => format!("chunk {n} of the large write set from {id} on, {ahead} ahead"),
            },
        }
    }
}

fn view(view: &ClusterView) -> String {
    let names: Vec<&str> = view.members.iter().map(|m| m.name.as_str()).collect();
    format!("view {} of {}", view.number, names.join(", "))
}

/// What came of a control message.
fn came(events: &[Event]) -> String {
    let text = |e: &Event| match e {
        Event::View { view: v, .. } => Some(view(v)),
        Event::State { from, to, .. } => Some(format!("{from:?} to {to:?}")),
        Event::Ahead { place, .. } => Some(format!("its place is {place}")),
        Event::Chunk {
            seqno,
            part: ChunkPart::End,
            ..
        } => Some(format!("it commits at {seqno}")),
        Event::Chunk {
            seqno,
            chunked,
            part: ChunkPart::Rollback,
            ..
        } => Some(format!(
            "the large write set from {} on is rolled back at {seqno}",
            chunked.id
        )),
        Event::NoDonor { .. } => Some("nobody can give one".into()),
        Event::VoteAsked { seqno, .. } => Some(format!("a vote on {seqno} begins")),
        Event::VoteDecided { seqno, winner } => Some(match winner {
            &NOBODY => format!("the vote on {seqno} has no outcome"),
            winner => format!("{winner:016x} wins the vote on {seqno}"),
        }),
        _ => None,
    };
    let all: Vec<String> = events.iter().filter_map(text).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests;
