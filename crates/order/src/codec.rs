//! Bytes of what the engine writes into the log and says to other engines.
//!
//! Little endian throughout. A log record's body begins with a byte that says
//! what it is: 0 blank, 16 membership, anything else a message of the order in
//! the encoding of [`RawMessage`](crate::sequencer::RawMessage). Decoding never
//! trusts a length: it checks it against what is there. Bodies are slices of
//! the buffer they came in.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{BufMut, Bytes, BytesMut};
use openraft::EntryPayload;
use openraft::raft::{StreamAppendError, StreamAppendResult};

use crate::network::Frame;
use crate::raft_types::{
    AppendRequest, Message, RaftEntry, RaftLeader, RaftLogId, RaftPayload, RaftVote, TypeConfig,
    from_raft_membership, to_raft_members,
};
use crate::sequencer::RawMessage;
use crate::types::{Checkpoint, LogId, Members, RaftId};

/// Bytes that are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} cannot be read: {why} at byte {at} of {len}")]
pub(crate) struct CodecError {
    what: &'static str,
    why: &'static str,
    at: usize,
    len: usize,
}

/// What engines say to one another, apart from the node's own messages.
#[derive(Debug)]
pub(crate) enum Wire {
    /// Replication, in order within a session; every one is answered.
    Append {
        /// One run of the leader's stream to this member.
        session: u64,
        /// Counts the requests of the session, from 0.
        seq: u64,
        /// What is left of the leader's lease, in microseconds.
        lease_us: u64,
        /// Where the leader listens; empty except in heartbeats. A member may
        /// hear from a leader before the entry that names it.
        addr: String,
        request: AppendRequest,
    },
    /// The answer to the request of that number.
    Appended {
        session: u64,
        seq: u64,
        result: StreamAppendResult<TypeConfig>,
    },
    /// Asks for a vote, or (pre) whether a vote would be given.
    Vote {
        id: u64,
        pre: bool,
        transfer: bool,
        /// Where the asker listens.
        addr: String,
        vote: RaftVote,
        last: Option<RaftLogId>,
    },
    /// The answer to that.
    Voted {
        id: u64,
        granted: bool,
        vote: RaftVote,
        last: Option<RaftLogId>,
    },
    /// The leader wants `to` to take over.
    TransferLeader {
        vote: RaftVote,
        to: RaftId,
        last: Option<RaftLogId>,
    },
    /// The leader has no log left for this member.
    PositionLost { vote: RaftVote },
    /// Own messages on their way to the leader, in order.
    Forward {
        /// Echoed in a refusal.
        round: u64,
        messages: Vec<Message>,
    },
    /// The leader did not take all of that round.
    Refused { round: u64 },
    /// Asks the leader for a confirmed index.
    ReadIndex { id: u64 },
    /// The answer; `None`: not the leader, or no majority.
    ReadIndexIs { id: u64, index: Option<u64> },
    /// A member asks the leader to hand over to another one (0: to any).
    AskTransfer { to: RaftId },
    /// A message of the node, for every member.
    Cast(Bytes),
}

impl Wire {
    /// Encodes into a frame of this incarnation; message bodies are not copied.
    pub fn encode(&self, incarnation: u32) -> Frame {
        let mut w = Writer::default();
        w.buf.put_u32_le(incarnation);
        match self {
            Wire::Append {
                session,
                seq,
                lease_us,
                addr,
                request,
            } => {
                w.buf.put_u8(1);
                w.buf.put_u64_le(*session);
                w.buf.put_u64_le(*seq);
                w.buf.put_u64_le(*lease_us);
                put_text(&mut w.buf, addr);
                put_vote(&mut w.buf, &request.vote);
                put_opt_log_id(&mut w.buf, request.prev_log_id.as_ref());
                put_opt_log_id(&mut w.buf, request.leader_commit.as_ref());
                w.buf.put_u32_le(request.entries.len() as u32);
                for e in &request.entries {
                    put_log_id(&mut w.buf, &e.log_id);
                    let body = encode_payload(&e.payload);
                    w.buf.put_u32_le(body.len() as u32);
                    w.put_shared(&body);
                }
            }
            Wire::Appended {
                session,
                seq,
                result,
            } => {
                w.buf.put_u8(2);
                w.buf.put_u64_le(*session);
                w.buf.put_u64_le(*seq);
                match result {
                    Ok(last) => {
                        w.buf.put_u8(0);
                        put_opt_log_id(&mut w.buf, last.as_ref());
                    }
                    Err(StreamAppendError::Conflict(at)) => {
                        w.buf.put_u8(1);
                        put_log_id(&mut w.buf, at);
                    }
                    Err(StreamAppendError::HigherVote(vote)) => {
                        w.buf.put_u8(2);
                        put_vote(&mut w.buf, vote);
                    }
                }
            }
            Wire::Vote {
                id,
                pre,
                transfer,
                addr,
                vote,
                last,
            } => {
                w.buf.put_u8(3);
                w.buf.put_u64_le(*id);
                w.buf.put_u8(u8::from(*pre));
                w.buf.put_u8(u8::from(*transfer));
                put_text(&mut w.buf, addr);
                put_vote(&mut w.buf, vote);
                put_opt_log_id(&mut w.buf, last.as_ref());
            }
            Wire::Voted {
                id,
                granted,
                vote,
                last,
            } => {
                w.buf.put_u8(4);
                w.buf.put_u64_le(*id);
                w.buf.put_u8(u8::from(*granted));
                put_vote(&mut w.buf, vote);
                put_opt_log_id(&mut w.buf, last.as_ref());
            }
            Wire::TransferLeader { vote, to, last } => {
                w.buf.put_u8(5);
                put_vote(&mut w.buf, vote);
                w.buf.put_u64_le(*to);
                put_opt_log_id(&mut w.buf, last.as_ref());
            }
            Wire::PositionLost { vote } => {
                w.buf.put_u8(6);
                put_vote(&mut w.buf, vote);
            }
            Wire::Forward { round, messages } => {
                w.buf.put_u8(7);
                w.buf.put_u64_le(*round);
                w.buf.put_u32_le(messages.len() as u32);
                for m in messages {
                    w.buf.put_u32_le(m.0.len() as u32);
                    w.put_shared(&m.0);
                }
            }
            Wire::Refused { round } => {
                w.buf.put_u8(8);
                w.buf.put_u64_le(*round);
            }
            Wire::ReadIndex { id } => {
                w.buf.put_u8(9);
                w.buf.put_u64_le(*id);
            }
            Wire::ReadIndexIs { id, index } => {
                w.buf.put_u8(10);
                w.buf.put_u64_le(*id);
                w.buf.put_u8(u8::from(index.is_some()));
                w.buf.put_u64_le(index.unwrap_or(0));
            }
            Wire::AskTransfer { to } => {
                w.buf.put_u8(11);
                w.buf.put_u64_le(*to);
            }
            Wire::Cast(body) => {
                w.buf.put_u8(12);
                w.put_shared(body);
            }
        }
        w.finish()
    }

    /// Decodes a frame's body.
    pub fn decode(body: Bytes) -> Result<(u32, Wire), CodecError> {
        let mut r = Reader::new("a frame of another engine", body);
        let incarnation = r.u32()?;
        let wire = match r.u8()? {
            1 => {
                let session = r.u64()?;
                let seq = r.u64()?;
                let lease_us = r.u64()?;
                let addr = r.text()?;
                let vote = r.vote()?;
                let prev_log_id = r.opt_log_id()?;
                let leader_commit = r.opt_log_id()?;
                let n = r.u32()? as usize;
                // Every entry takes more than 16 bytes: no huge allocation on a lie.
                let mut entries = Vec::with_capacity(n.min(r.left() / 16));
                for _ in 0..n {
                    let log_id = r.log_id()?;
                    let len = r.u32()? as usize;
                    let payload = decode_payload(r.bytes(len)?)?;
                    entries.push(RaftEntry { log_id, payload });
                }
                Wire::Append {
                    session,
                    seq,
                    lease_us,
                    addr,
                    request: AppendRequest {
                        vote,
                        prev_log_id,
                        entries,
                        leader_commit,
                    },
                }
            }
            2 => Wire::Appended {
                session: r.u64()?,
                seq: r.u64()?,
                result: match r.u8()? {
                    0 => Ok(r.opt_log_id()?),
                    1 => Err(StreamAppendError::Conflict(r.log_id()?)),
                    2 => Err(StreamAppendError::HigherVote(r.vote()?)),
                    _ => return Err(r.error("an unknown outcome")),
                },
            },
            3 => Wire::Vote {
                id: r.u64()?,
                pre: r.bool()?,
                transfer: r.bool()?,
                addr: r.text()?,
                vote: r.vote()?,
                last: r.opt_log_id()?,
            },
            4 => Wire::Voted {
                id: r.u64()?,
                granted: r.bool()?,
                vote: r.vote()?,
                last: r.opt_log_id()?,
            },
            5 => Wire::TransferLeader {
                vote: r.vote()?,
                to: r.u64()?,
                last: r.opt_log_id()?,
            },
            6 => Wire::PositionLost { vote: r.vote()? },
            7 => {
                let round = r.u64()?;
                let n = r.u32()? as usize;
                let mut messages = Vec::with_capacity(n.min(r.left() / 16));
                for _ in 0..n {
                    let len = r.u32()? as usize;
                    messages.push(Message(r.bytes(len)?));
                }
                Wire::Forward { round, messages }
            }
            8 => Wire::Refused { round: r.u64()? },
            9 => Wire::ReadIndex { id: r.u64()? },
            10 => Wire::ReadIndexIs {
                id: r.u64()?,
                index: {
                    let some = r.bool()?;
                    Some(r.u64()?).filter(|_| some)
                },
            },
            11 => Wire::AskTransfer { to: r.u64()? },
            12 => Wire::Cast(r.rest()),
            _ => return Err(r.error("an unknown kind")),
        };
        r.end()?;
        Ok((incarnation, wire))
    }
}

const BODY_BLANK: u8 = 0;
const BODY_MEMBERSHIP: u8 = 16;

/// A record's body for the log. A message is shared, not copied.
pub(crate) fn encode_payload(payload: &RaftPayload) -> Bytes {
    match payload {
        EntryPayload::Blank => Bytes::from_static(&[BODY_BLANK]),
        EntryPayload::Normal(m) => m.0.clone(),
        EntryPayload::Membership(m) => {
            let mut buf = BytesMut::new();
            buf.put_u8(BODY_MEMBERSHIP);
            put_members(&mut buf, &from_raft_membership(m));
            buf.freeze()
        }
    }
}

/// The reverse of [`encode_payload`].
pub(crate) fn decode_payload(body: Bytes) -> Result<RaftPayload, CodecError> {
    let mut r = Reader::new("a log entry", body);
    match r.u8()? {
        BODY_BLANK => {
            r.end()?;
            Ok(EntryPayload::Blank)
        }
        BODY_MEMBERSHIP => {
            let members = r.members()?;
            r.end()?;
            let stored =
                to_raft_members(&members).map_err(|_| r.error("a voter without an address"))?;
            Ok(EntryPayload::Membership(stored.membership().clone()))
        }
        _ => Ok(EntryPayload::Normal(Message(r.buf))),
    }
}

/// Encodes a message; the only copy of its body on this node.
pub(crate) fn encode_message(m: &RawMessage) -> Message {
    Message(m.encode())
}

/// The reverse of [`encode_message`]; the body is a slice of the input.
pub(crate) fn decode_message(m: &Message) -> Result<RawMessage, CodecError> {
    RawMessage::decode(m.0.clone()).map_err(|_| CodecError {
        what: "a message in the log",
        why: "it is damaged",
        at: 0,
        len: m.0.len(),
    })
}

const CHECKPOINT_VERSION: u8 = 1;

/// A checkpoint as it lies in the log and travels to joiners.
pub(crate) fn encode_checkpoint(c: &Checkpoint) -> Bytes {
    let mut buf = BytesMut::with_capacity(c.sequencer.len() + c.node.len() + 256);
    buf.put_u8(CHECKPOINT_VERSION);
    put_our_log_id(&mut buf, &c.log_id);
    put_members(&mut buf, &c.members);
    buf.put_u64_le(c.sequencer.len() as u64);
    buf.put_slice(&c.sequencer);
    buf.put_slice(&c.node);
    buf.freeze()
}

/// The reverse of [`encode_checkpoint`].
pub(crate) fn decode_checkpoint(body: Bytes) -> Result<Checkpoint, CodecError> {
    let mut r = Reader::new("a checkpoint", body);
    if r.u8()? != CHECKPOINT_VERSION {
        return Err(r.error("an unknown version"));
    }
    let log_id = r.our_log_id()?;
    let members = r.members()?;
    let len = r.u64()? as usize;
    Ok(Checkpoint {
        log_id,
        members,
        sequencer: r.bytes(len)?,
        node: r.rest(),
    })
}

/// What a log remembers besides its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    /// Whose log this is.
    pub id: RaftId,
    /// The newest vote.
    pub vote: Option<RaftVote>,
    /// Known to be committed and durable.
    pub committed: Option<RaftLogId>,
    /// Last entry gone from the front of the log.
    pub purged: Option<RaftLogId>,
    /// Whether an answer meant "on the disk" ever since this log was made. If not, it may have forgotten
    /// what it has answered for.
    pub durable: bool,
}

const META_VERSION: u8 = 2;
/// Without [`Meta::durable`].
const META_VERSION_1: u8 = 1;

/// The bytes of `meta`; `None` marks a log that is being made new and holds
/// nothing to resume from.
pub(crate) fn encode_meta(meta: Option<&Meta>) -> Bytes {
    let mut buf = BytesMut::with_capacity(128);
    buf.put_u8(META_VERSION);
    buf.put_u8(u8::from(meta.is_some()));
    if let Some(m) = meta {
        buf.put_u64_le(m.id);
        buf.put_u8(u8::from(m.vote.is_some()));
        if let Some(v) = &m.vote {
            put_vote(&mut buf, v);
        }
        put_opt_log_id(&mut buf, m.committed.as_ref());
        put_opt_log_id(&mut buf, m.purged.as_ref());
        buf.put_u8(u8::from(m.durable));
    }
    buf.freeze()
}

/// The reverse of [`encode_meta`].
pub(crate) fn decode_meta(body: Bytes) -> Result<Option<Meta>, CodecError> {
    let mut r = Reader::new("the log's small state", body);
    let version = r.u8()?;
    if version != META_VERSION && version != META_VERSION_1 {
        return Err(r.error("an unknown version"));
    }
    if !r.bool()? {
        return Ok(None);
    }
    let id = r.u64()?;
    let vote = if r.bool()? { Some(r.vote()?) } else { None };
    let meta = Meta {
        id,
        vote,
        committed: r.opt_log_id()?,
        purged: r.opt_log_id()?,
        durable: version == META_VERSION_1 || r.bool()?,
    };
    r.end()?;
    Ok(Some(meta))
}

fn put_vote(buf: &mut BytesMut, v: &RaftVote) {
    buf.put_u64_le(v.leader_id.term);
    buf.put_u64_le(v.leader_id.node_id);
    buf.put_u8(u8::from(v.committed));
}

fn put_log_id(buf: &mut BytesMut, id: &RaftLogId) {
    buf.put_u64_le(id.leader_id.term);
    buf.put_u64_le(id.leader_id.node_id);
    buf.put_u64_le(id.index);
}

fn put_our_log_id(buf: &mut BytesMut, id: &LogId) {
    buf.put_u64_le(id.term);
    buf.put_u64_le(id.leader);
    buf.put_u64_le(id.index);
}

fn put_opt_log_id(buf: &mut BytesMut, id: Option<&RaftLogId>) {
    buf.put_u8(u8::from(id.is_some()));
    if let Some(id) = id {
        put_log_id(buf, id);
    }
}

fn put_members(buf: &mut BytesMut, m: &Members) {
    buf.put_u8(u8::from(m.log_id.is_some()));
    if let Some(id) = &m.log_id {
        put_our_log_id(buf, id);
    }
    buf.put_u8(m.configs.len() as u8);
    for config in &m.configs {
        buf.put_u32_le(config.len() as u32);
        for id in config {
            buf.put_u64_le(*id);
        }
    }
    buf.put_u32_le(m.addrs.len() as u32);
    for (id, addr) in &m.addrs {
        buf.put_u64_le(*id);
        put_text(buf, addr);
    }
}

fn put_text(buf: &mut BytesMut, text: &str) {
    buf.put_u16_le(text.len() as u16);
    buf.put_slice(text.as_bytes());
}

/// Collects a frame: small things in one buffer, large ones by reference.
#[derive(Default)]
struct Writer {
    buf: BytesMut,
    frame: Frame,
}

/// Below this a copy is cheaper than another part.
const SHARE_FROM: usize = 1024;

impl Writer {
    fn put_shared(&mut self, bytes: &Bytes) {
        if bytes.len() < SHARE_FROM {
            self.buf.put_slice(bytes);
        } else {
            self.frame.push(self.buf.split().freeze());
            self.frame.push(bytes.clone());
        }
    }

    fn finish(mut self) -> Frame {
        self.frame.push(self.buf.freeze());
        self.frame
    }
}

/// Takes bytes apart, checking every length.
struct Reader {
    what: &'static str,
    buf: Bytes,
    at: usize,
}

impl Reader {
    fn new(what: &'static str, buf: Bytes) -> Self {
        Reader { what, buf, at: 0 }
    }

    fn error(&self, why: &'static str) -> CodecError {
        CodecError {
            what: self.what,
            why,
            at: self.at,
            len: self.buf.len(),
        }
    }

    fn left(&self) -> usize {
        self.buf.len() - self.at
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let all: &[u8] = &self.buf;
        match all.get(self.at..).and_then(|s| s.first_chunk::<N>()) {
            Some(chunk) => {
                self.at += N;
                Ok(*chunk)
            }
            None => Err(self.error("the end too early")),
        }
    }

    fn u8(&mut self) -> Result<u8, CodecError> {
        Ok(self.array::<1>()?[0])
    }

    fn bool(&mut self) -> Result<bool, CodecError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.error("neither yes nor no")),
        }
    }

    fn u16(&mut self) -> Result<u16, CodecError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, CodecError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, CodecError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn bytes(&mut self, len: usize) -> Result<Bytes, CodecError> {
        if len > self.left() {
            return Err(self.error("the end too early"));
        }
        let b = self.buf.slice(self.at..self.at + len);
        self.at += len;
        Ok(b)
    }

    fn rest(&mut self) -> Bytes {
        let b = self.buf.slice(self.at..);
        self.at = self.buf.len();
        b
    }

    fn end(&self) -> Result<(), CodecError> {
        if self.left() == 0 {
            Ok(())
        } else {
            Err(self.error("more than there should be"))
        }
    }

    fn text(&mut self) -> Result<String, CodecError> {
        let len = self.u16()? as usize;
        let bytes = self.bytes(len)?;
        std::str::from_utf8(&bytes)
            .map(str::to_owned)
            .map_err(|_| self.error("what should be a text and is none"))
    }

    fn vote(&mut self) -> Result<RaftVote, CodecError> {
        Ok(RaftVote {
            leader_id: self.leader()?,
            committed: self.bool()?,
        })
    }

    fn leader(&mut self) -> Result<RaftLeader, CodecError> {
        Ok(RaftLeader {
            term: self.u64()?,
            node_id: self.u64()?,
        })
    }

    fn log_id(&mut self) -> Result<RaftLogId, CodecError> {
        Ok(RaftLogId {
            leader_id: self.leader()?,
            index: self.u64()?,
        })
    }

    fn our_log_id(&mut self) -> Result<LogId, CodecError> {
        Ok(LogId {
            term: self.u64()?,
            leader: self.u64()?,
            index: self.u64()?,
        })
    }

    fn opt_log_id(&mut self) -> Result<Option<RaftLogId>, CodecError> {
        if self.bool()? {
            Ok(Some(self.log_id()?))
        } else {
            Ok(None)
        }
    }

    fn members(&mut self) -> Result<Members, CodecError> {
        let log_id = if self.bool()? {
            Some(self.our_log_id()?)
        } else {
            None
        };
        let mut configs = Vec::new();
        for _ in 0..self.u8()? {
            let mut config = BTreeSet::new();
            for _ in 0..self.u32()? {
                config.insert(self.u64()?);
            }
            configs.push(config);
        }
        let mut addrs = BTreeMap::new();
        for _ in 0..self.u32()? {
            let id = self.u64()?;
            addrs.insert(id, self.text()?);
        }
        Ok(Members {
            log_id,
            configs,
            addrs,
        })
    }
}

#[cfg(test)]
mod tests {
    use dromon_writeset::Uuid;

    use super::*;
    use crate::sequencer::Part;

    fn leader(term: u64, node_id: u64) -> RaftLeader {
        RaftLeader { term, node_id }
    }

    fn id(index: u64) -> RaftLogId {
        RaftLogId {
            leader_id: leader(3, 7),
            index,
        }
    }

    fn members() -> Members {
        Members {
            log_id: Some(LogId {
                term: 1,
                leader: 2,
                index: 3,
            }),
            configs: vec![BTreeSet::from([1, 2]), BTreeSet::from([2])],
            addrs: BTreeMap::from([(1, "a:1".to_owned()), (2, "b:2".to_owned())]),
        }
    }

    fn raw(part: Part, len: usize) -> RawMessage {
        RawMessage {
            origin: Uuid([9; 16]),
            oseq: 5,
            kind: 2,
            tag: 77,
            part,
            body: Bytes::from(vec![0xab; len]),
        }
    }

    fn frames() -> Vec<Wire> {
        let vote = RaftVote {
            leader_id: leader(3, 7),
            committed: true,
        };
        let stored = to_raft_members(&members()).expect("every voter has an address");
        let entries = vec![
            RaftPayload::Blank,
            RaftPayload::Normal(encode_message(&raw(Part::Whole, 10))),
            RaftPayload::Normal(encode_message(&raw(
                Part::Piece {
                    stream: 1,
                    i: 0,
                    n: 2,
                },
                5000,
            ))),
            RaftPayload::Membership(stored.membership().clone()),
        ]
        .into_iter()
        .enumerate()
        .map(|(i, payload)| RaftEntry {
            log_id: id(i as u64 + 1),
            payload,
        })
        .collect();
        vec![
            Wire::Append {
                session: 1,
                seq: 2,
                lease_us: 3,
                addr: "a:1".to_owned(),
                request: AppendRequest {
                    vote,
                    prev_log_id: None,
                    entries,
                    leader_commit: Some(id(1)),
                },
            },
            Wire::Appended {
                session: 1,
                seq: 2,
                result: Ok(Some(id(4))),
            },
            Wire::Appended {
                session: 1,
                seq: 2,
                result: Err(StreamAppendError::Conflict(id(4))),
            },
            Wire::Appended {
                session: 1,
                seq: 2,
                result: Err(StreamAppendError::HigherVote(vote)),
            },
            Wire::Vote {
                id: 1,
                pre: true,
                transfer: false,
                addr: "b:2".to_owned(),
                vote,
                last: Some(id(1)),
            },
            Wire::Voted {
                id: 1,
                granted: true,
                vote,
                last: None,
            },
            Wire::TransferLeader {
                vote,
                to: 2,
                last: Some(id(2)),
            },
            Wire::PositionLost { vote },
            Wire::Forward {
                round: 4,
                messages: vec![
                    encode_message(&raw(Part::Whole, 3)),
                    encode_message(&raw(Part::Whole, 3000)),
                ],
            },
            Wire::Refused { round: 4 },
            Wire::ReadIndex { id: 6 },
            Wire::ReadIndexIs {
                id: 6,
                index: Some(9),
            },
            Wire::ReadIndexIs { id: 6, index: None },
            Wire::AskTransfer { to: 0 },
            Wire::Cast(Bytes::from_static(b"hello")),
        ]
    }

    #[test]
    fn frames_round_trip_and_every_cut_is_an_error() {
        for wire in frames() {
            let bytes = wire.encode(7).to_bytes();
            let (incarnation, back) =
                Wire::decode(bytes.clone()).expect("what was encoded decodes");
            assert_eq!(incarnation, 7);
            assert_eq!(format!("{wire:?}"), format!("{back:?}"));
            assert_eq!(bytes, back.encode(7).to_bytes());
            if matches!(wire, Wire::Cast(_)) {
                continue;
            }
            for cut in 0..bytes.len() {
                assert!(
                    Wire::decode(bytes.slice(..cut)).is_err(),
                    "{wire:?} at {cut}"
                );
            }
        }
    }

    #[test]
    fn messages_and_checkpoints_round_trip() {
        for part in [
            Part::Whole,
            Part::Piece {
                stream: 4,
                i: 1,
                n: 3,
            },
        ] {
            let m = raw(part, 100);
            assert_eq!(decode_message(&encode_message(&m)).as_ref(), Ok(&m));
        }
        let c = Checkpoint {
            log_id: LogId {
                term: 1,
                leader: 2,
                index: 3,
            },
            members: members(),
            sequencer: Bytes::from_static(b"seq"),
            node: Bytes::from_static(b"node"),
        };
        let bytes = encode_checkpoint(&c);
        assert_eq!(decode_checkpoint(bytes.clone()).as_ref(), Ok(&c));
        assert!(decode_checkpoint(bytes.slice(..20)).is_err());
    }

    #[test]
    fn meta_round_trips() {
        let meta = Meta {
            id: 5,
            vote: Some(RaftVote {
                leader_id: leader(1, 5),
                committed: false,
            }),
            committed: Some(id(8)),
            purged: None,
            durable: false,
        };
        assert_eq!(decode_meta(encode_meta(Some(&meta))), Ok(Some(meta)));
        // Written before it was noted.
        let mut before = encode_meta(Some(&meta)).to_vec();
        before[0] = META_VERSION_1;
        before.pop();
        let durable = Meta {
            durable: true,
            ..meta
        };
        assert_eq!(decode_meta(before.into()), Ok(Some(durable)));
        assert_eq!(decode_meta(encode_meta(None)), Ok(None));
        assert!(decode_meta(Bytes::from_static(b"\x01\x01")).is_err());
    }
}
