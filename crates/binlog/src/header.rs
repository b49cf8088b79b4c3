//! The header that all events share, and their types.
//!
//! ```text
//!  0  timestamp u32, seconds      9  length u32, header and checksum included
//!  4  type u8                    13  end position u32, modulo 2^32; 0: none
//!  5  server id u32              17  flags u16
//! ```

use std::fmt;

use crate::bytes::Reader;
use crate::error::{EventError, Flaw};

/// Size in bytes of the header of every event.
pub const HEADER_LEN: usize = 19;
/// First bytes of a binlog file.
pub const FILE_MAGIC: [u8; 4] = [0xfe, b'b', b'i', b'n'];

/// Where the length stands.
pub(crate) const LENGTH_AT: usize = 9;
/// Where the flags stand.
pub(crate) const FLAGS_AT: usize = 17;

/// The type of an event. Below 160 as MySQL has them, from 160 on MariaDB's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventType(pub u8);

macro_rules! types {
    ($($(#[$doc:meta])* $name:ident = $n:literal;)*) => {
        impl EventType {
            $($(#[$doc])* pub const $name: EventType = EventType($n);)*

            /// Its name, if it is known here.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($n => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

types! {
    /// Never written.
    UNKNOWN = 0;
    /// Before MySQL 5.0.
    START_V3 = 1;
    /// A statement.
    QUERY = 2;
    /// The server stopped.
    STOP = 3;
    /// The next file.
    ROTATE = 4;
    /// LAST_INSERT_ID or INSERT_ID of the statement that follows.
    INTVAR = 5;
    /// Seeds of RAND() in the statement that follows.
    RAND = 13;
    /// A user variable that the statement that follows reads.
    USER_VAR = 14;
    /// The beginning of a file: which formats follow.
    FORMAT_DESCRIPTION = 15;
    /// Commit of a transaction.
    XID = 16;
    /// First block of a file for LOAD DATA.
    BEGIN_LOAD_QUERY = 17;
    /// LOAD DATA of the blocks before it.
    EXECUTE_LOAD_QUERY = 18;
    /// A further block of a file for LOAD DATA.
    APPEND_BLOCK = 9;
    /// A file for LOAD DATA is not needed after all.
    DELETE_FILE = 11;
    /// Columns of a table that rows which follow belong to.
    TABLE_MAP = 19;
    /// Rows, as MySQL 5.1.0 to 5.1.15 wrote them.
    PRE_GA_WRITE_ROWS = 20;
    /// Rows, as MySQL 5.1.0 to 5.1.15 wrote them.
    PRE_GA_UPDATE_ROWS = 21;
    /// Rows, as MySQL 5.1.0 to 5.1.15 wrote them.
    PRE_GA_DELETE_ROWS = 22;
    /// Inserted rows, version 1 (MariaDB, MySQL 5.1 and 5.5).
    WRITE_ROWS_V1 = 23;
    /// Updated rows, version 1.
    UPDATE_ROWS_V1 = 24;
    /// Deleted rows, version 1.
    DELETE_ROWS_V1 = 25;
    /// The primary lost events.
    INCIDENT = 26;
    /// The primary has nothing to send.
    HEARTBEAT = 27;
    /// To be skipped.
    IGNORABLE = 28;
    /// The statement that made the rows which follow (MySQL).
    ROWS_QUERY = 29;
    /// Inserted rows, version 2 (MySQL 5.6 and later).
    WRITE_ROWS_V2 = 30;
    /// Updated rows, version 2.
    UPDATE_ROWS_V2 = 31;
    /// Deleted rows, version 2.
    DELETE_ROWS_V2 = 32;
    /// Begin of a transaction with a GTID of MySQL.
    MYSQL_GTID = 33;
    /// Begin of a transaction without one.
    ANONYMOUS_GTID = 34;
    /// All GTIDs before this file (MySQL).
    PREVIOUS_GTIDS = 35;
    /// Group replication.
    TRANSACTION_CONTEXT = 36;
    /// Group replication.
    VIEW_CHANGE = 37;
    /// Prepare of an XA transaction.
    XA_PREPARE = 38;
    /// Updated rows with parts of JSON documents (MySQL 8).
    PARTIAL_UPDATE_ROWS = 39;
    /// A compressed transaction (MySQL 8).
    TRANSACTION_PAYLOAD = 40;
    /// A heartbeat beyond 4 GiB (MySQL 8).
    HEARTBEAT_V2 = 41;
    /// Begin of a transaction with a tagged GTID (MySQL 8.3).
    MYSQL_GTID_TAGGED = 42;
    /// The statement that made the rows which follow (MariaDB).
    ANNOTATE_ROWS = 160;
    /// From which file on XA recovery must look; of no use to replicas.
    BINLOG_CHECKPOINT = 161;
    /// Begin of a group (MariaDB).
    GTID = 162;
    /// The state of all domains before this file (MariaDB).
    GTID_LIST = 163;
    /// All that follows in this file is encrypted (MariaDB).
    START_ENCRYPTION = 164;
    /// A statement, compressed (MariaDB).
    QUERY_COMPRESSED = 165;
    /// Inserted rows, version 1, compressed (MariaDB).
    WRITE_ROWS_COMPRESSED_V1 = 166;
    /// Updated rows, version 1, compressed (MariaDB).
    UPDATE_ROWS_COMPRESSED_V1 = 167;
    /// Deleted rows, version 1, compressed (MariaDB).
    DELETE_ROWS_COMPRESSED_V1 = 168;
    /// Inserted rows, version 2, compressed (MariaDB).
    WRITE_ROWS_COMPRESSED_V2 = 169;
    /// Updated rows, version 2, compressed (MariaDB).
    UPDATE_ROWS_COMPRESSED_V2 = 170;
    /// Deleted rows, version 2, compressed (MariaDB).
    DELETE_ROWS_COMPRESSED_V2 = 171;
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "type {}", self.0),
        }
    }
}

impl fmt::Debug for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Flags of the common header.
pub mod flags {
    /// The file was not closed; not covered by the checksum.
    pub const IN_USE: u16 = 0x1;
    /// The statement depends on its connection (temporary tables).
    pub const THREAD_SPECIFIC: u16 = 0x4;
    /// The statement needs no USE.
    pub const SUPPRESS_USE: u16 = 0x8;
    /// Made while sending; not in the file, and without a place in it.
    pub const ARTIFICIAL: u16 = 0x20;
    /// In a replica's relay log: made by the replica.
    pub const RELAY_LOG: u16 = 0x40;
    /// Whoever does not know the type may skip it (MySQL).
    pub const IGNORABLE: u16 = 0x80;
    /// Must not be filtered (MySQL).
    pub const NO_FILTER: u16 = 0x100;
    /// Must be applied alone (MySQL).
    pub const MTS_ISOLATE: u16 = 0x200;
    /// Logged under skip_replication (MariaDB).
    pub const SKIP_REPLICATION: u16 = 0x8000;
}

/// The common header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// When the statement began, in seconds since 1970; 0 in events made while
    /// sending.
    pub timestamp: u32,
    /// What it is.
    pub kind: EventType,
    /// The server on which it was executed first.
    pub server_id: u32,
    /// Length in bytes of header, body and checksum.
    pub len: u32,
    /// Where in the primary's file the next event begins, modulo 2^32; 0 in
    /// events that are in no file.
    pub end_pos: u32,
    /// See [`flags`].
    pub flags: u16,
}

impl Header {
    /// Reads the header off the front of `bytes`, which may go on behind it.
    pub fn decode(bytes: &[u8]) -> Result<Header, EventError> {
        let kind = EventType(bytes.get(4).copied().unwrap_or(0));
        let mut r = Reader::new(bytes, 0, kind);
        if bytes.len() < HEADER_LEN {
            return Err(r.error(Flaw::Short {
                field: "header",
                need: HEADER_LEN,
                have: bytes.len(),
            }));
        }
        let timestamp = r.u32("timestamp")?;
        let kind = EventType(r.u8("type")?);
        let server_id = r.u32("server id")?;
        let len = r.u32("length")?;
        if (len as usize) < HEADER_LEN {
            return Err(EventError {
                kind,
                offset: LENGTH_AT,
                flaw: Flaw::Value {
                    field: "length",
                    value: u64::from(len),
                },
            });
        }
        Ok(Header {
            timestamp,
            kind,
            server_id,
            len,
            end_pos: r.u32("end position")?,
            flags: r.u16("flags")?,
        })
    }

    /// Writes its 19 bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.timestamp.to_le_bytes());
        out.push(self.kind.0);
        out.extend_from_slice(&self.server_id.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&self.end_pos.to_le_bytes());
        out.extend_from_slice(&self.flags.to_le_bytes());
    }

    /// Whether all these flags are set.
    pub fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn round_trip(
            timestamp: u32, kind: u8, server_id: u32, len in 19u32.., end_pos: u32, flags: u16,
            more in proptest::collection::vec(any::<u8>(), 0..4)
        ) {
            let header = Header { timestamp, kind: EventType(kind), server_id, len, end_pos, flags };
            let mut bytes = Vec::new();
            header.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), HEADER_LEN);
            bytes.extend(more);
            prop_assert_eq!(Header::decode(&bytes), Ok(header));
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(header) = Header::decode(&bytes) {
                let mut again = Vec::new();
                header.encode(&mut again);
                prop_assert_eq!(&again[..], &bytes[..HEADER_LEN]);
            }
        }
    }

    #[test]
    fn errors_name_type_and_place() {
        let mut bytes = vec![0; 19];
        bytes[4] = 162;
        bytes[9] = 18;
        let error = Header::decode(&bytes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "A GTID event cannot be read: its length cannot be 18 (byte 9 of the event)."
        );
        assert!(Header::decode(&bytes[..7]).is_err());
        assert!(Header::decode(&[]).is_err());
    }
}
