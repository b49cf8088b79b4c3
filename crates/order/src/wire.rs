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
pub use crate::refusal::{Refusal, RefusalCode};
use crate::types::RaftId;

/// First bytes in both directions. Not text, so that text protocols show.
pub const MAGIC: [u8; 8] = [0xD2, b'D', b'R', b'O', b'M', b'O', b'N', b'\n'];
/// Oldest protocol version this code speaks.
pub const VERSION_MIN: u16 = 2;
/// Newest protocol version this code speaks.
pub const VERSION_MAX: u16 = 2;
/// Magic, length, checksum.
pub const GREETING_HEADER: usize = 16;
/// Longest body of a greeting, in bytes.
pub const GREETING_MAX: usize = 4096;
/// Length, type, flags, two bytes of zero, checksum.
pub const FRAME_HEADER: usize = 12;
/// Longest body of a frame, in bytes. Requests and answers may span frames.
pub const FRAME_MAX: usize = 64 << 20;
/// The longest frame with a part of a question or an answer: all but the last may be
/// followed by more.
pub const MESSAGE_PART: usize = 1 << 20;

const CLUSTER_MAX: usize = 255;
const ADDRESS_MAX: usize = 261;
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
    /// A node of Galera is there.
    #[error(
        "is a node of Galera: the two libraries do not talk to each other, and a cluster changes over as a whole: stop \
         all of its nodes before the first one starts with this library"
    )]
    Galera,
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
    #[error("announced a frame of {len} bytes (limit {limit}); the connection was closed")]
    FrameTooLong {
        /// What it said.
        len: u32,
        /// The most that one of its type may have.
        limit: usize,
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

/// Whether these are the first bytes of a node of Galera, which greets who connects: a header (length
/// and flags, checksum) and a message of version 0 and type 1.
fn is_galera(b: &[u8]) -> bool {
    b.len() >= 11 && b[1..3] == [0, 0] && b[3] & 0xf0 == 0 && b[8..11] == [0, 1, 0x10]
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
        if is_galera(first) {
            return Misbehaviour::Galera;
        }
        let shown = &first[..first.len().min(16)];
        Misbehaviour::NotDromon {
            first: format!("\"{}\"", shown.escape_ascii()),
            hint: looks_like(first),
        }
    }

    /// What these first bytes are of, if they are known to be neither TLS nor a node's.
    pub(crate) fn of_another_service(first: &[u8]) -> Option<Self> {
        let known = is_galera(first) || !looks_like(first).is_empty();
        (known && !is_tls(first)).then(|| Misbehaviour::not_dromon(first))
    }
}

fn is_tls(b: &[u8]) -> bool {
    b.len() >= 2 && matches!(b[0], 0x15 | 0x16) && b[1] == 3
}

/// A guess at another protocol by its first bytes.
fn looks_like(b: &[u8]) -> &'static str {
    if b.len() >= 5 && b[3] == 0 && matches!(b[4], 0x0a | 0xff) {
        ", like a MariaDB or MySQL server (the cluster's port is usually 4567, not 3306)"
    } else if is_tls(b) {
        ", like TLS (it has socket.ssl on, this node has not)"
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
    /// A random number of this run of the node; 0 if it has none. Tells a node from its copy.
    pub instance: u64,
}

impl Hello {
    /// A greeting with the versions of this code.
    pub fn new(purpose: Purpose, who: Identity) -> Self {
        Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            purpose,
            who,
            instance: 0,
        }
    }

    /// Whether the run of a node that has the number `instance` greets so.
    pub fn is_of(&self, instance: u64) -> bool {
        instance != 0 && self.instance == instance
    }

    /// The version both speak, the newest such; `None` without one.
    pub fn common_version(&self, min: u16, max: u16) -> Option<u16> {
        let v = self.version_max.min(max);
        (v >= self.version_min && v >= min).then_some(v)
    }
}

/// The first message of whoever accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloAnswer {
    /// The version to speak from here on, or why not to.
    pub verdict: Result<u16, Refusal>,
    /// Oldest and newest version it speaks.
    pub versions: (u16, u16),
    /// Who it is.
    pub who: Identity,
    /// As in [`Hello`].
    pub instance: u64,
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
        b.put_u64_le(self.instance);
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
        let who = take_identity(b)?;
        Ok(Hello {
            version_min,
            version_max,
            purpose,
            who,
            instance: take_instance(b),
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
        b.put_u64_le(self.instance);
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
            instance: take_instance(b),
        })
    }
}

/// Whether a greeting's body is a [`Hello`].
pub(crate) fn is_hello(body: &[u8]) -> bool {
    body.first() == Some(&KIND_HELLO)
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

    /// The longest body.
    fn limit(self) -> usize {
        match self {
            FrameKind::Request | FrameKind::Answer => MESSAGE_PART,
            _ => FRAME_MAX,
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
    let too_long = |limit| Misbehaviour::FrameTooLong { len, limit };
    if len as usize > FRAME_MAX {
        return Err(too_long(FRAME_MAX));
    }
    let known =
        FrameKind::from_code(kind).filter(|_| flags & !FLAG_LAST == 0 && [z0, z1] == [0, 0]);
    let Some(kind) = known else {
        return Err(Misbehaviour::FrameUnexpected { kind });
    };
    if len as usize > kind.limit() {
        return Err(too_long(kind.limit()));
    }
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

/// A body with magic, length and checksum in front.
pub(crate) fn seal(body: BytesMut) -> Bytes {
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

/// A field that was added later: who does not know it sends none.
fn take_instance(b: &mut Bytes) -> u64 {
    b.try_get_u64_le().unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn who() -> Identity {
        Identity {
            cluster: "prod".to_owned(),
            history: Uuid([3; 16]),
            raft_id: 0xABCD,
            addr: "db1:4567".to_owned(),
        }
    }

    fn body_of(greeting: Bytes) -> Bytes {
        let mut buf = BytesMut::from(&greeting[..]);
        let body = read_greeting(&mut buf).unwrap().unwrap();
        assert!(buf.is_empty());
        body
    }

    #[test]
    fn greetings_survive() {
        for purpose in Lane::ALL
            .map(Purpose::Lane)
            .into_iter()
            .chain([Purpose::Request])
        {
            let mut h = Hello::new(purpose, who());
            h.instance = 5;
            assert_eq!(Hello::decode(body_of(h.encode())), Ok(h));
        }
        for verdict in [Ok(1), Err(Refusal::wrong_cluster("a", "b"))] {
            let a = HelloAnswer {
                verdict,
                versions: (1, 4),
                who: who(),
                instance: 6,
            };
            assert_eq!(HelloAnswer::decode(body_of(a.encode())), Ok(a));
        }
    }

    #[test]
    fn the_greeting_is_what_the_document_draws() {
        let h = Hello::new(
            Purpose::Request,
            Identity {
                cluster: "c".to_owned(),
                ..Identity::default()
            },
        );
        let g = h.encode();
        assert_eq!(g[..8], MAGIC);
        assert_eq!(g[8..12], 43u32.to_le_bytes());
        assert_eq!(g[16..22], [1, 2, 0, 2, 0, 16]);
        assert_eq!(g[22..46], [0; 24]);
        assert_eq!(g[46..51], [1, 0, b'c', 0, 0]);
        assert_eq!(g[51..], [0; 8]);
    }

    #[test]
    fn an_older_greeting_may_be_shorter() {
        let mut h = Hello::new(Purpose::Request, who());
        h.instance = 5;
        let mut body = body_of(h.encode());
        body.truncate(body.len() - 8);
        h.instance = 0;
        assert_eq!(Hello::decode(body), Ok(h));
    }

    #[test]
    fn a_newer_greeting_may_be_longer() {
        let h = Hello::new(Purpose::Request, who());
        let mut longer = BytesMut::from(&body_of(h.encode())[..]);
        longer.put_slice(b"more fields");
        assert_eq!(Hello::decode(body_of(seal(longer))), Ok(h));
    }

    #[test]
    fn versions_meet_in_the_middle() {
        let mut h = Hello::new(Purpose::Request, who());
        (h.version_min, h.version_max) = (2, 5);
        assert_eq!(h.common_version(1, 3), Some(3));
        assert_eq!(h.common_version(4, 9), Some(5));
        assert_eq!(h.common_version(1, 1), None);
        assert_eq!(h.common_version(6, 9), None);
    }

    #[test]
    fn strangers_are_known_by_their_first_bytes() {
        let first = |b: &[u8]| {
            let e = read_greeting(&mut BytesMut::from(b)).unwrap_err();
            e.by("x:1").to_string()
        };
        assert!(first(b"\x4a\0\0\0\x0a5.5.5-10.11").contains("like a MariaDB or MySQL server"));
        assert!(first(b"HTTP/1.1 400 Bad").contains("like HTTP"));
        assert!(first(b"\x15\x03\x01").contains("like TLS"));
        assert!(first(b"SSH-2.0-OpenSSH").contains("like an SSH server"));
        let text = first(b"\xff\n?");
        assert!(
            text.starts_with("x:1 does not speak this protocol: it began with \"\\xff\\n?\";"),
            "{text}"
        );
        let galera = b"\x24\0\0\x02\x6b\x97\x26\x64\0\x01\x10\0\x02\xad\xc5\x82\x12";
        assert!(first(galera).starts_with("x:1 is a node of Galera"));
        // The beginning of the magic is no stranger yet.
        assert_eq!(read_greeting(&mut BytesMut::from(&MAGIC[..5])), Ok(None));
        assert_eq!(read_greeting(&mut BytesMut::new()), Ok(None));
    }

    fn raw_frame(kind: FrameKind, flags: u8, body: &[u8]) -> BytesMut {
        let f = Frame::from(Bytes::copy_from_slice(body));
        let mut b = BytesMut::from(&frame_header(kind, flags, &f)[..]);
        b.extend_from_slice(body);
        b
    }

    #[test]
    fn frames_come_in_one_after_the_other() {
        let mut buf = raw_frame(FrameKind::Data, 0, b"one");
        buf.unsplit(raw_frame(FrameKind::Answer, FLAG_LAST, b""));
        let all = buf.clone();
        for cut in 0..all.len() {
            let mut part = BytesMut::from(&all[..cut]);
            let n = std::iter::from_fn(|| read_frame(&mut part).unwrap()).count();
            assert_eq!(n, usize::from(cut >= 15));
        }
        let f = read_frame(&mut buf).unwrap().unwrap();
        assert_eq!(
            (f.kind, f.flags, &f.body[..]),
            (FrameKind::Data, 0, &b"one"[..])
        );
        let f = read_frame(&mut buf).unwrap().unwrap();
        assert_eq!((f.kind, f.flags, f.body.len()), (FrameKind::Answer, 1, 0));
        assert_eq!(read_frame(&mut buf), Ok(None));
    }

    #[test]
    fn every_flipped_bit_of_a_frame_shows() {
        let good = raw_frame(FrameKind::Data, 0, b"payload");
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // A larger length waits for more: then what follows is taken for
            // a part of this frame, and the checksum fails.
            bad.extend_from_slice(&[0; 1 << 16]);
            match read_frame(&mut bad) {
                Err(_) => {}
                Ok(None) => assert!(bit / 8 < 4, "bit {bit}"),
                Ok(Some(f)) => panic!("bit {bit}: {f:?}"),
            }
        }
    }

    #[test]
    fn a_length_alone_costs_no_memory() {
        let mut buf = BytesMut::from(&(FRAME_MAX as u32).to_le_bytes()[..]);
        buf.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(read_frame(&mut buf), Ok(None));
        assert_eq!(room_wanted(&buf), 64 << 10);
        buf.resize(1 << 20, 0);
        assert_eq!(room_wanted(&buf), 4 << 20);
        buf.resize(FRAME_MAX, 0);
        assert_eq!(room_wanted(&buf), 64 << 10);
        let over = (FRAME_MAX as u32 + 1).to_le_bytes();
        buf[..4].copy_from_slice(&over);
        assert!(matches!(
            read_frame(&mut buf),
            Err(Misbehaviour::FrameTooLong { .. })
        ));
        // A question's parts are shorter, and that is known before they come.
        let mut buf = raw_frame(FrameKind::Request, 0, &vec![0; MESSAGE_PART]);
        assert!(read_frame(&mut buf.clone()).is_ok_and(|f| f.is_some()));
        buf[..4].copy_from_slice(&(MESSAGE_PART as u32 + 1).to_le_bytes());
        buf.truncate(FRAME_HEADER);
        let limit = MESSAGE_PART;
        let len = limit as u32 + 1;
        let too_long = Misbehaviour::FrameTooLong { len, limit };
        assert_eq!(read_frame(&mut buf), Err(too_long));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_judged_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), lead in 0..4u8) {
            let raw = match lead {
                0 => bytes.clone(),
                1 => [&MAGIC[..], &bytes].concat(),
                // A right length and checksum around arbitrary fields.
                2 => seal(BytesMut::from(&bytes[..])).to_vec(),
                _ => raw_frame(FrameKind::Data, 0, &bytes).to_vec(),
            };
            let mut buf = BytesMut::from(&raw[..]);
            if let Ok(Some(body)) = read_greeting(&mut buf) {
                let _ = Hello::decode(body.clone());
                let _ = HelloAnswer::decode(body);
            }
            let mut buf = BytesMut::from(&raw[..]);
            while let Ok(Some(f)) = read_frame(&mut buf) {
                prop_assert!(f.body.len() <= raw.len());
            }
            prop_assert!(room_wanted(&BytesMut::from(&raw[..])) <= 64 << 10);
        }

        #[test]
        fn greetings_with_any_fields_survive_or_are_refused(
            kind in 1..3u8,
            rest in prop::collection::vec(prop_oneof![4 => 0..4u8, 1 => any::<u8>()], 0..120),
        ) {
            let body = Bytes::from([&[kind][..], &rest].concat());
            if let Ok(h) = Hello::decode(body.clone()) {
                prop_assert_eq!(Hello::decode(body_of(h.encode())), Ok(h));
            }
            if let Ok(a) = HelloAnswer::decode(body) {
                prop_assert_eq!(HelloAnswer::decode(body_of(a.encode())), Ok(a));
            }
        }

        #[test]
        fn texts_of_any_length_are_cut_to_what_fits(cluster in "\\PC{0,400}", text in "\\PC{0,1200}") {
            let a = HelloAnswer {
                verdict: Err(Refusal::new(RefusalCode::Other(99), text.clone())),
                versions: (1, 1),
                who: Identity { cluster: cluster.clone(), ..Identity::default() },
                instance: 0,
            };
            let back = HelloAnswer::decode(body_of(a.encode())).unwrap();
            prop_assert!(cluster.starts_with(&back.who.cluster));
            prop_assert!(text.starts_with(&back.verdict.unwrap_err().text));
        }
    }
}
