//! A message of the order: its shape in the log, its bytes, its delivery.

use std::collections::BTreeSet;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use dromon_writeset::{Arrived, Uuid};
use serde::{Deserialize, Serialize};

use crate::types::{Leadership, RaftId};

/// Whether a message is complete or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Part {
    /// The whole message.
    Whole,
    /// A piece of a large one.
    Piece {
        /// Which large message of the origin.
        stream: u64,
        /// Which piece, from 0.
        i: u32,
        /// How many there are; at least 1.
        n: u32,
    },
}

/// One message, or one piece of one, as it lies in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawMessage {
    /// Who sent it.
    pub origin: Uuid,
    /// Its number among the origin's messages and pieces: 1, 2, 3, …
    pub oseq: u64,
    /// What it is to the node.
    pub kind: u8,
    /// Free for the node.
    pub tag: u64,
    /// Whole or a piece.
    pub part: Part,
    /// Payload.
    pub body: Bytes,
}

/// What a committed entry holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommittedBody {
    /// Nothing: a new leader's first entry.
    Blank,
    /// The members changed.
    Membership {
        /// Who votes and where they are, in id order.
        voters: Vec<(RaftId, String)>,
        /// Who only stores, in id order.
        learners: Vec<(RaftId, String)>,
        /// A majority of each of these must agree; more than one while the voters
        /// change.
        configs: Vec<BTreeSet<RaftId>>,
    },
    /// A message.
    Message(RawMessage),
}

/// One committed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its index in the log.
    pub index: u64,
    /// The term in which it was made.
    pub term: u64,
    /// The leader that made it.
    pub leader: RaftId,
    /// What it holds.
    pub body: CommittedBody,
}

impl Committed {
    /// The leadership under which it was made.
    pub const fn leadership(&self) -> Leadership {
        Leadership {
            term: self.term,
            leader: self.leader,
        }
    }
}

/// One message at its place in the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Index of the entry that completed it.
    pub index: u64,
    /// Index of its first piece; if it is whole, the same.
    pub from: u64,
    /// Term of the entry that completed it.
    pub term: u64,
    /// Who sent it.
    pub origin: Uuid,
    /// What it is to the node.
    pub kind: u8,
    /// As the origin set it.
    pub tag: u64,
    /// Size of the payload in bytes: the same on every member, wherever it is.
    pub len: u64,
    /// The whole payload, but for what `arrived` says was left where it lies.
    pub body: Bytes,
    /// What was found out of it as it came in pieces, if it is a write set.
    pub arrived: Option<Arrived>,
}

/// The bytes are not what this codec writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// It ends too early.
    #[error("a {what} ends after {len} bytes, in the middle; it is damaged or cut off")]
    Short {
        /// What was being read.
        what: &'static str,
        /// How long it is.
        len: usize,
    },
    /// A byte has no meaning.
    #[error(
        "a {what} begins with or holds the value {found:#x}, which this version does not know; it is damaged or from a newer version"
    )]
    Unknown {
        /// What was being read.
        what: &'static str,
        /// The value.
        found: u64,
    },
    /// Two things in it disagree.
    #[error("a {what} contradicts itself: {why}; it is damaged")]
    Inconsistent {
        /// What was being read.
        what: &'static str,
        /// How.
        why: &'static str,
    },
}

const TAG_WHOLE: u8 = 1;
const TAG_PIECE: u8 = 2;

impl RawMessage {
    /// Bytes in front of the body when encoded, at most.
    pub const MAX_HEADER: usize = 2 + 16 + 8 + 8 + 16;

    /// Length when encoded.
    pub fn encoded_len(&self) -> usize {
        let piece = match self.part {
            Part::Whole => 0,
            Part::Piece { .. } => 16,
        };
        Self::MAX_HEADER - 16 + piece + self.body.len()
    }

    /// Writes what stands in front of the body; header and body together are
    /// what [`decode`](RawMessage::decode) reads.
    pub fn encode_header(&self, out: &mut impl BufMut) {
        out.put_u8(match self.part {
            Part::Whole => TAG_WHOLE,
            Part::Piece { .. } => TAG_PIECE,
        });
        out.put_u8(self.kind);
        out.put_slice(&self.origin.0);
        out.put_u64_le(self.oseq);
        out.put_u64_le(self.tag);
        if let Part::Piece { stream, i, n } = self.part {
            out.put_u64_le(stream);
            out.put_u32_le(i);
            out.put_u32_le(n);
        }
    }

    /// Header and body in one. Copies the body.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.encoded_len());
        self.encode_header(&mut out);
        out.put_slice(&self.body);
        out.freeze()
    }

    /// Reads what [`encode`](RawMessage::encode) wrote; the body shares `buf`.
    /// There is no checksum: log records and frames have one.
    pub fn decode(mut buf: Bytes) -> Result<Self, CodecError> {
        const WHAT: &str = "message of the order";
        let len = buf.len();
        let short = CodecError::Short { what: WHAT, len };
        let form = buf.try_get_u8().map_err(|_| short.clone())?;
        let need = match form {
            TAG_WHOLE => Self::MAX_HEADER - 16,
            TAG_PIECE => Self::MAX_HEADER,
            other => {
                return Err(CodecError::Unknown {
                    what: WHAT,
                    found: other.into(),
                });
            }
        };
        if len < need {
            return Err(short);
        }
        // The length was checked above, so the getters below find their bytes.
        let kind = buf.get_u8();
        let mut origin = Uuid::NIL;
        buf.copy_to_slice(&mut origin.0);
        let oseq = buf.get_u64_le();
        let tag = buf.get_u64_le();
        let part = if form == TAG_PIECE {
            let (stream, i, n) = (buf.get_u64_le(), buf.get_u32_le(), buf.get_u32_le());
            if i >= n {
                return Err(CodecError::Inconsistent {
                    what: WHAT,
                    why: "the piece's number is not below their count",
                });
            }
            Part::Piece { stream, i, n }
        } else {
            Part::Whole
        };
        Ok(RawMessage {
            origin,
            oseq,
            kind,
            tag,
            part,
            body: buf,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message() -> impl Strategy<Value = RawMessage> {
        let part = prop_oneof![
            Just(Part::Whole),
            (any::<u64>(), 0..1000u32, 1..1000u32).prop_map(|(stream, i, n)| Part::Piece {
                stream,
                i: i % n,
                n
            }),
        ];
        (
            any::<[u8; 16]>(),
            any::<u64>(),
            any::<u8>(),
            any::<u64>(),
            part,
            prop::collection::vec(any::<u8>(), 0..200),
        )
            .prop_map(|(origin, oseq, kind, tag, part, body)| RawMessage {
                origin: Uuid(origin),
                oseq,
                kind,
                tag,
                part,
                body: Bytes::from(body),
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn messages_survive_the_codec(m in message()) {
            let bytes = m.encode();
            prop_assert_eq!(bytes.len(), m.encoded_len());
            prop_assert_eq!(RawMessage::decode(bytes), Ok(m));
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..100), form in 0..4u8) {
            let mut bytes = bytes;
            if let Some(b) = bytes.first_mut() {
                *b = form;
            }
            let bytes = Bytes::from(bytes);
            if let Ok(m) = RawMessage::decode(bytes.clone()) {
                prop_assert_eq!(m.encode(), bytes);
            }
        }
    }
}
