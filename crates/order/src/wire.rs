//! What stands on the wire: the greeting that opens a connection, and frames.
//!
//! `docs/wire.md` draws the formats. Everything here is pure; the sockets are
//! in [`tcp`](crate::tcp). Decoders accept any bytes: they answer with a
//! value, "more is needed" or a [`Misbehaviour`], and reserve no memory on the
//! word of a length field.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use dromon_writeset::Uuid;

use crate::network::{Frame, Lane};
use crate::types::RaftId;

/// First bytes in both directions. Not text, so that text protocols show.
pub const MAGIC: [u8; 8] = [0xD2, b'D', b'R', b'O', b'M', b'O', b'N', b'\n'];
/// Oldest protocol version this code speaks.
pub const VERSION_MIN: u16 = 1;
/// Newest protocol version this code speaks.
pub const VERSION_MAX: u16 = 1;
/// Magic, length, checksum.
pub const GREETING_HEADER: usize = 16;
/// Longest body of a greeting, in bytes.
pub const GREETING_MAX: usize = 4096;
/// Length, type, flags, two bytes of zero, checksum.
pub const FRAME_HEADER: usize = 12;
/// Longest body of a frame, in bytes. Requests and answers may span frames.
pub const FRAME_MAX: usize = 64 << 20;

const CLUSTER_MAX: usize = 255;
const ADDRESS_MAX: usize = 261;
const SECRET_MAX: usize = 1024;
const TEXT_MAX: usize = 1024;

/// Somebody sent what no node sends. Whoever it is, nothing of it was used
/// beyond what was checked before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{addr} {what}")]
pub struct PeerMisbehaved {
    /// Where the bytes came from.
    pub addr: String,
    /// What was wrong with them.
    pub what: Misbehaviour,
}

/// What was wrong with bytes from another machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misbehaviour {
    /// The first bytes are not [`MAGIC`].
    #[error(
        "does not speak this protocol: it began with {first}{hint}; check the address and the port"
    )]
    NotDromon {
        /// The first bytes, printable.
        first: String,
        /// What it looks like, as an addition to the sentence, or empty.
        hint: &'static str,
    },
    /// A greeting's length is beyond all measure.
    #[error(
        "announced a greeting of {len} bytes (limit {GREETING_MAX}); the connection was closed"
    )]
    GreetingTooLong {
        /// What it said.
        len: u32,
    },
    /// A greeting's checksum does not fit.
    #[error(
        "sent a greeting with a wrong checksum: it was damaged on the way; the connection was closed"
    )]
    GreetingChecksum,
    /// A greeting's fields make no sense.
    #[error("sent a greeting that makes no sense ({0}); the connection was closed")]
    GreetingMalformed(&'static str),
    /// A frame's length is beyond the limit.
    #[error("announced a frame of {len} bytes (limit {FRAME_MAX}); the connection was closed")]
    FrameTooLong {
        /// What it said.
        len: u32,
    },
    /// A frame's checksum does not fit.
    #[error(
        "sent a frame of {len} bytes with a wrong checksum: it was damaged on the way (faulty network \
         hardware or memory); the connection was closed and the frame not used"
    )]
    FrameChecksum {
        /// The frame's length.
        len: usize,
    },
    /// A frame's type or flags are unknown, or not allowed on this connection.
    #[error("sent a frame of type {kind} that does not belong here; the connection was closed")]
    FrameUnexpected {
        /// The type byte.
        kind: u8,
    },
    /// A request or an answer is larger than allowed.
    #[error("sent more than {limit} bytes in one message; the connection was closed")]
    MessageTooLong {
        /// The limit.
        limit: usize,
    },
}

impl Misbehaviour {
    /// Names the culprit.
    pub fn by(self, addr: impl fmt::Display) -> PeerMisbehaved {
        PeerMisbehaved {
            addr: addr.to_string(),
            what: self,
        }
    }

    fn not_dromon(first: &[u8]) -> Self {
        let shown = &first[..first.len().min(16)];
        Misbehaviour::NotDromon {
            first: format!("\"{}\"", shown.escape_ascii()),
            hint: looks_like(first),
        }
    }
}

/// A guess at another protocol by its first bytes.
fn looks_like(b: &[u8]) -> &'static str {
    if b.len() >= 5 && b[3] == 0 && matches!(b[4], 0x0a | 0xff) {
        ", like a MariaDB or MySQL server (the cluster's port is usually 4567, not 3306)"
    } else if b.len() >= 2 && matches!(b[0], 0x15 | 0x16) && b[1] == 3 {
        ", like TLS"
    } else if b.starts_with(b"HTTP/")
        || b.starts_with(b"GET ")
        || b.starts_with(b"POST")
        || b.starts_with(b"HEAD")
    {
        ", like HTTP"
    } else if b.starts_with(b"SSH-") {
        ", like an SSH server"
    } else if b.starts_with(b"@RSYN") {
        ", like an rsync server"
    } else {
        ""
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Frames of one lane, from the one who connected to the one who accepted.
    Lane(Lane),
    /// One question and its answer.
    Request,
}

impl Purpose {
    fn code(self) -> u8 {
        match self {
            Purpose::Lane(l) => l.index() as u8,
            Purpose::Request => 16,
        }
    }

    fn from_code(c: u8) -> Option<Self> {
        match c {
            16 => Some(Purpose::Request),
            c => Lane::ALL.get(usize::from(c)).map(|l| Purpose::Lane(*l)),
        }
    }
}

/// How a node introduces itself, whatever the connection is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Cluster name; must be equal at both ends.
    pub cluster: String,
    /// The history the node belongs to; nil while it does not know one.
    pub history: Uuid,
    /// Identity in the log; 0 while it has none.
    pub raft_id: RaftId,
    /// Where others reach the node; may be empty for one that only asks.
    pub addr: String,
    /// Place for proof that the node may take part (nothing is proven yet).
    pub secret: Bytes,
}

/// The first message of whoever connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Oldest version it speaks.
    pub version_min: u16,
    /// Newest version it speaks.
    pub version_max: u16,
    /// What it wants the connection for.
    pub purpose: Purpose,
    /// Who it is.
    pub who: Identity,
}

impl Hello {
    /// A greeting with the versions of this code.
    pub fn new(purpose: Purpose, who: Identity) -> Self {
        Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            purpose,
            who,
        }
    }

    /// The version both speak, the newest such; `None` without one.
    pub fn common_version(&self, min: u16, max: u16) -> Option<u16> {
        let v = self.version_max.min(max);
        (v >= self.version_min && v >= min).then_some(v)
    }
}

/// Why a node is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// The cluster names differ.
    WrongCluster,
    /// No protocol version is spoken by both.
    NoCommonVersion,
    /// This raft id was removed from the membership.
    Evicted,
    /// The address is not on the list of those allowed.
    NotAllowed,
    /// The secret is missing or wrong.
    BadSecret,
    /// The histories differ.
    WrongHistory,
    /// Too many connections.
    Busy,
    /// The node is cut off by its operator, or stopping.
    Closed,
    /// It is the same node, or one with the same raft id.
    OwnId,
    /// A code of a newer version.
    Other(u16),
}

impl RefusalCode {
    fn code(self) -> u16 {
        match self {
            RefusalCode::WrongCluster => 1,
            RefusalCode::NoCommonVersion => 2,
            RefusalCode::Evicted => 3,
            RefusalCode::NotAllowed => 4,
            RefusalCode::BadSecret => 5,
            RefusalCode::WrongHistory => 6,
            RefusalCode::Busy => 7,
            RefusalCode::Closed => 8,
            RefusalCode::OwnId => 9,
            RefusalCode::Other(c) => c,
        }
    }

    fn from_code(c: u16) -> Self {
        match c {
            1 => RefusalCode::WrongCluster,
            2 => RefusalCode::NoCommonVersion,
            3 => RefusalCode::Evicted,
            4 => RefusalCode::NotAllowed,
            5 => RefusalCode::BadSecret,
            6 => RefusalCode::WrongHistory,
            7 => RefusalCode::Busy,
            8 => RefusalCode::Closed,
            9 => RefusalCode::OwnId,
            c => RefusalCode::Other(c),
        }
    }
}

/// A refusal as it travels: a code for programs, a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// Which of the reasons.
    pub code: RefusalCode,
    /// The refusing side's words; printable, at most 1024 bytes.
    pub text: String,
}

impl Refusal {
    /// A refusal for `code` in the words `text`.
    pub fn new(code: RefusalCode, text: impl Into<String>) -> Self {
        Refusal {
            code,
            text: text.into(),
        }
    }

    /// The cluster names differ.
    pub fn wrong_cluster(own: &str, theirs: &str) -> Self {
        Refusal::new(
            RefusalCode::WrongCluster,
            format!(
                "its cluster is named \"{own}\", the connecting node's \"{theirs}\"; set \
                 wsrep_cluster_name alike on all nodes of one cluster"
            ),
        )
    }

    /// No version is spoken by both.
    pub fn no_common_version(own: (u16, u16), theirs: (u16, u16)) -> Self {
        Refusal::new(
            RefusalCode::NoCommonVersion,
            format!(
                "it speaks protocol versions {} to {}, the connecting node {} to {}; upgrade the older one",
                own.0, own.1, theirs.0, theirs.1
            ),
        )
    }

    /// The connecting node's raft id was evicted.
    pub fn evicted(id: RaftId) -> Self {
        Refusal::new(
            RefusalCode::Evicted,
            format!(
                "member {id:x} was removed from the cluster; the node must join again under a new identity"
            ),
        )
    }
}

/// The first message of whoever accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloAnswer {
    /// The version to speak from here on, or why not to.
    pub verdict: Result<u16, Refusal>,
    /// Oldest and newest version it speaks.
    pub versions: (u16, u16),
    /// Who it is. (Its secret is not sent.)
    pub who: Identity,
}

const KIND_HELLO: u8 = 1;
const KIND_ANSWER: u8 = 2;

impl Hello {
    /// The greeting with magic, length and checksum. Texts that are too long
    /// for their fields are cut.
    pub fn encode(&self) -> Bytes {
        let mut b = BytesMut::with_capacity(256);
        b.put_u8(KIND_HELLO);
        b.put_u16_le(self.version_min);
        b.put_u16_le(self.version_max);
        b.put_u8(self.purpose.code());
        put_identity(&mut b, &self.who);
        put_bytes(&mut b, &self.who.secret, SECRET_MAX);
        seal(b)
    }

    /// Reads the body that [`read_greeting`] returned. Bytes behind the known
    /// fields are a newer version's and are skipped.
    pub fn decode(mut body: Bytes) -> Result<Self, Misbehaviour> {
        let b = &mut body;
        if take_u8(b)? != KIND_HELLO {
            return Err(Misbehaviour::GreetingMalformed(
                "it is not a first greeting",
            ));
        }
        let (version_min, version_max) = (take_u16(b)?, take_u16(b)?);
        if version_min > version_max {
            return Err(Misbehaviour::GreetingMalformed(
                "its oldest version is above its newest",
            ));
        }
        let purpose = Purpose::from_code(take_u8(b)?)
            .ok_or(Misbehaviour::GreetingMalformed("its purpose is unknown"))?;
        let mut who = take_identity(b)?;
        who.secret = take_bytes(b, SECRET_MAX)?;
        Ok(Hello {
            version_min,
            version_max,
            purpose,
            who,
        })
    }
}

impl HelloAnswer {
    /// The greeting with magic, length and checksum.
    pub fn encode(&self) -> Bytes {
        let mut b = BytesMut::with_capacity(256);
        b.put_u8(KIND_ANSWER);
        let (code, version, text) = match &self.verdict {
            Ok(v) => (0, *v, ""),
            Err(r) => (r.code.code(), 0, r.text.as_str()),
        };
        b.put_u16_le(code);
        b.put_u16_le(version);
        b.put_u16_le(self.versions.0);
        b.put_u16_le(self.versions.1);
        put_identity(&mut b, &self.who);
        put_text(&mut b, text, TEXT_MAX);
        seal(b)
    }

    /// Reads the body that [`read_greeting`] returned.
    pub fn decode(mut body: Bytes) -> Result<Self, Misbehaviour> {
        let b = &mut body;
        if take_u8(b)? != KIND_ANSWER {
            return Err(Misbehaviour::GreetingMalformed(
                "it is not an answer to a greeting",
            ));
        }
        let (code, version) = (take_u16(b)?, take_u16(b)?);
        let versions = (take_u16(b)?, take_u16(b)?);
        let who = take_identity(b)?;
        let text = take_text(b, TEXT_MAX)?;
        Ok(HelloAnswer {
            verdict: match code {
                0 => Ok(version),
                c => Err(Refusal::new(RefusalCode::from_code(c), text)),
            },
            versions,
            who,
        })
    }
}

/// Takes a greeting's body off the front of `buf`; `None` until all of it is
/// there. Decides as early as it can: the first wrong byte is enough.
pub fn read_greeting(buf: &mut BytesMut) -> Result<Option<Bytes>, Misbehaviour> {
    let n = buf.len().min(MAGIC.len());
    if buf[..n] != MAGIC[..n] {
        return Err(Misbehaviour::not_dromon(buf));
    }
    if buf.len() < GREETING_HEADER {
        return Ok(None);
    }
    let mut head = &buf[MAGIC.len()..GREETING_HEADER];
    let (len, sum) = (head.get_u32_le(), head.get_u32_le());
    if len as usize > GREETING_MAX {
        return Err(Misbehaviour::GreetingTooLong { len });
    }
    let end = GREETING_HEADER + len as usize;
    if buf.len() < end {
        return Ok(None);
    }
    let body = buf.split_to(end).freeze().slice(GREETING_HEADER..);
    if crc32c::crc32c(&body) != sum {
        return Err(Misbehaviour::GreetingChecksum);
    }
    Ok(Some(body))
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A lane's payload.
    Data,
    /// "Are you there": eight bytes to be sent back.
    Ping,
    /// The eight bytes of a ping.
    Pong,
    /// A part of a question; [`FLAG_LAST`] on the last.
    Request,
    /// A part of an answer; [`FLAG_LAST`] on the last.
    Answer,
    /// There is no answer to the question.
    NoAnswer,
}

/// The last frame of a question or an answer.
pub const FLAG_LAST: u8 = 1;

impl FrameKind {
    /// Its number on the wire.
    pub fn code(self) -> u8 {
        match self {
            FrameKind::Data => 1,
            FrameKind::Ping => 2,
            FrameKind::Pong => 3,
            FrameKind::Request => 4,
            FrameKind::Answer => 5,
            FrameKind::NoAnswer => 6,
        }
    }

    fn from_code(c: u8) -> Option<Self> {
        Some(match c {
            1 => FrameKind::Data,
            2 => FrameKind::Ping,
            3 => FrameKind::Pong,
            4 => FrameKind::Request,
            5 => FrameKind::Answer,
            6 => FrameKind::NoAnswer,
            _ => return None,
        })
    }
}

/// A frame as it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawFrame {
    /// What it is.
    pub kind: FrameKind,
    /// Flags, [`FLAG_LAST`] or none.
    pub flags: u8,
    /// Its body; shares the read buffer.
    pub body: Bytes,
}

/// The bytes in front of `frame` on the wire. `frame` must not be longer than
/// [`FRAME_MAX`].
pub fn frame_header(kind: FrameKind, flags: u8, frame: &Frame) -> [u8; FRAME_HEADER] {
    debug_assert!(frame.len() <= FRAME_MAX);
    let mut head = [0; FRAME_HEADER];
    head[..4].copy_from_slice(&(frame.len() as u32).to_le_bytes());
    head[4] = kind.code();
    head[5] = flags;
    let mut sum = crc32c::crc32c(&head[..8]);
    for p in frame.parts() {
        sum = crc32c::crc32c_append(sum, p);
    }
    head[8..].copy_from_slice(&sum.to_le_bytes());
    head
}

/// Takes the next frame off the front of `buf`; `None` until all of it is
/// there. The header's length is judged as soon as it is there.
pub fn read_frame(buf: &mut BytesMut) -> Result<Option<RawFrame>, Misbehaviour> {
    if buf.len() < FRAME_HEADER {
        return Ok(None);
    }
    let mut head = [0; FRAME_HEADER];
    head.copy_from_slice(&buf[..FRAME_HEADER]);
    let [l0, l1, l2, l3, kind, flags, z0, z1, s0, s1, s2, s3] = head;
    let len = u32::from_le_bytes([l0, l1, l2, l3]);
    if len as usize > FRAME_MAX {
        return Err(Misbehaviour::FrameTooLong { len });
    }
    let known =
        FrameKind::from_code(kind).filter(|_| flags & !FLAG_LAST == 0 && [z0, z1] == [0, 0]);
    let Some(kind) = known else {
        return Err(Misbehaviour::FrameUnexpected { kind });
    };
    let end = FRAME_HEADER + len as usize;
    if buf.len() < end {
        return Ok(None);
    }
    let body = buf.split_to(end).freeze().slice(FRAME_HEADER..);
    let sum = crc32c::crc32c_append(crc32c::crc32c(&head[..8]), &body);
    if sum != u32::from_le_bytes([s0, s1, s2, s3]) {
        return Err(Misbehaviour::FrameChecksum { len: body.len() });
    }
    Ok(Some(RawFrame { kind, flags, body }))
}

/// How much room to make in `buf` before reading more: enough for the frame
/// begun, but never more than a few times what has already come, so that a
/// length field alone costs no memory.
pub fn room_wanted(buf: &BytesMut) -> usize {
    const LEAST: usize = 64 << 10;
    if buf.len() < FRAME_HEADER {
        return LEAST;
    }
    let len = u32::from_le_bytes([buf[0], buf[1], buf[2], buf[3]]) as usize;
    let missing = (len.min(FRAME_MAX) + FRAME_HEADER).saturating_sub(buf.len());
    missing.clamp(LEAST, (4 * buf.len()).max(LEAST))
}

fn seal(body: BytesMut) -> Bytes {
    let mut out = BytesMut::with_capacity(GREETING_HEADER + body.len());
    out.put_slice(&MAGIC);
    out.put_u32_le(body.len() as u32);
    out.put_u32_le(crc32c::crc32c(&body));
    out.put_slice(&body);
    out.freeze()
}

fn put_identity(b: &mut BytesMut, who: &Identity) {
    b.put_u64_le(who.raft_id);
    b.put_slice(&who.history.0);
    put_text(b, &who.cluster, CLUSTER_MAX);
    put_text(b, &who.addr, ADDRESS_MAX);
}

fn take_identity(b: &mut Bytes) -> Result<Identity, Misbehaviour> {
    let raft_id = b.try_get_u64_le().map_err(|_| SHORT)?;
    let mut history = Uuid::NIL;
    b.try_copy_to_slice(&mut history.0).map_err(|_| SHORT)?;
    Ok(Identity {
        raft_id,
        history,
        cluster: take_text(b, CLUSTER_MAX)?,
        addr: take_text(b, ADDRESS_MAX)?,
        secret: Bytes::new(),
    })
}

fn put_text(b: &mut BytesMut, text: &str, max: usize) {
    let end = (0..=text.len().min(max))
        .rev()
        .find(|i| text.is_char_boundary(*i))
        .unwrap_or(0);
    put_bytes(b, &text.as_bytes()[..end], max);
}

fn put_bytes(b: &mut BytesMut, bytes: &[u8], max: usize) {
    let bytes = &bytes[..bytes.len().min(max)];
    b.put_u16_le(bytes.len() as u16);
    b.put_slice(bytes);
}

const SHORT: Misbehaviour = Misbehaviour::GreetingMalformed("it ends too early");

fn take_u8(b: &mut Bytes) -> Result<u8, Misbehaviour> {
    b.try_get_u8().map_err(|_| SHORT)
}

fn take_u16(b: &mut Bytes) -> Result<u16, Misbehaviour> {
    b.try_get_u16_le().map_err(|_| SHORT)
}

fn take_bytes(b: &mut Bytes, max: usize) -> Result<Bytes, Misbehaviour> {
    let len = usize::from(take_u16(b)?);
    if len > max {
        return Err(Misbehaviour::GreetingMalformed("a field is too long"));
    }
    if len > b.len() {
        return Err(SHORT);
    }
    Ok(b.split_to(len))
}

/// Texts end up in logs: only printable ones are taken.
fn take_text(b: &mut Bytes, max: usize) -> Result<String, Misbehaviour> {
    let raw = take_bytes(b, max)?;
    match std::str::from_utf8(&raw) {
        Ok(t) if !t.chars().any(char::is_control) => Ok(t.to_owned()),
        _ => Err(Misbehaviour::GreetingMalformed(
            "a text is not printable UTF-8",
        )),
    }
}
