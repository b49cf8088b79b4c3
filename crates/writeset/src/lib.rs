//! Write sets: keys, flags, the wire codec and its checksums.
//!
//! While a client works, a [`KeyCollector`] gathers its keys; at commit
//! [`encode`] makes one buffer of a [`Header`], the keys and the payload. Every
//! node reads it back with [`WriteSet::decode`] (or [`Head::decode`] if the
//! payload stays in the log) and hands it to certification, which walks
//! [`Keys::expand`].

#![forbid(unsafe_code)]

mod aliases;
mod arrival;
mod chunks;
mod codec;
mod collector;
mod events;
mod filled;
mod flags;
mod ids;
mod key;
mod keys;
mod payload;

pub use arrival::{Arrival, Arrived};
pub use chunks::{CHUNK_MAX, CHUNK_MIN, Plan, WholeOnly};
pub use codec::{
    DecodeError, HEADER_LEN, Head, Header, PayloadSum, WRITESET_VERSION, WriteSet, encode,
    encode_chunks, encode_prefix, encoded_len, prefix_len, restamp,
};
pub use collector::{EmptyKeyError, KEY_BYTES_MAX, KEY_ESCALATION_DEFAULT, KeyCollector};
pub use filled::replacing;
pub use flags::Flags;
pub use ids::{ParseUuidError, Seqno, Uuid};
pub use key::{KeyHash, KeyType, Part, ROW_RAW_MAX};
pub use keys::{Expanded, KEYS_FORMAT, KEYS_VERSION, Key, Keys, KeysError, Kinship, Made, RowKey};
pub use payload::{Keeper, Kept, Payload};
