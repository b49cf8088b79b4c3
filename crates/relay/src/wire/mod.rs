//! The client/server protocol of MySQL and MariaDB, as far as replication needs it: packets to
//! bytes and back, without I/O. Everything read is checked for its bounds.

mod answer;
mod auth;
mod bytes;
mod command;
mod compress;
mod handshake;
mod packet;

pub use answer::{Answer, Failure, Row, TextResult, eof, error, ok, parse_row, put_result};
pub use auth::{PasswordHash, SALT_LEN, ed25519_reply, native_reply, sha2_reply};
pub use command::{AckSemiSync, Command, Dump, DumpGtid, Register, dump_flags};
pub use compress::{Compressed, Compressor, Decompressor, ZSTD_LEVEL_MAX, ZSTD_VARIABLE};
pub use handshake::{AuthSwitch, Greeting, Login, NATIVE_PASSWORD, capabilities, tls_request};
pub use packet::{FRAME_MAX, Frames, put_packet, put_packet_of};

/// The uuid of a relay: always the same of a server id, as no two servers may have one.
pub fn server_uuid(server_id: u32) -> String {
    format!("64726f6d-6f6e-4072-8000-0000{server_id:08x}")
}

/// The variable by which a relay asks another one to tell in its heartbeats' times how many seconds it
/// is behind its own primary. Servers leave that time at 0, and take any variable.
pub const LAG_VARIABLE: &str = "dromon_relay_lag";

/// The variable in which `dromon replica` tells its channel: what it has applied stands in its
/// target under that name.
pub const CHANNEL_VARIABLE: &str = "dromon_replica_channel";

/// The variable in which a relay tells how many milliseconds it is behind its primary; empty: it
/// does not know. Servers have no such variable.
pub const LAG_MS_VARIABLE: &str = "dromon_relay_lag_ms";

/// Why bytes are not what the protocol has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Frames are missing or doubled.
    #[error(
        "a packet has sequence number {got} where {expected} is due: it is no server or client of MySQL's protocol"
    )]
    Sequence {
        /// What was due.
        expected: u8,
        /// What came.
        got: u8,
    },
    /// Longer than allowed here.
    #[error("a packet has at least {len} bytes; {max} are allowed here")]
    TooLong {
        /// As far as known.
        len: usize,
        /// Allowed.
        max: usize,
    },
    /// A packet that cannot be read.
    #[error("a packet that should be {what} cannot be read: {why}")]
    Packet {
        /// What it should be.
        what: &'static str,
        /// What is wrong.
        why: &'static str,
    },
}
