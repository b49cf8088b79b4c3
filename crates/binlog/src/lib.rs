//! MariaDB and MySQL replication events, read and made without I/O.
//!
//! [`cut_event`] finds an event's end in a stream of bytes. A [`Grouper`] takes
//! one after the other, checks each, and says where groups (transactions) begin
//! and end. [`Event::decode`] says what one contains; rows come out of a
//! [`RowsEvent`] with the columns of its [`TableMap`], and their cells become
//! [`Value`]s when asked.
//!
//! Events are kept and sent on byte for byte. The few that a relay makes are
//! made by a [`Maker`], and the few changes it makes are [`place`],
//! [`normalise_gtid`], [`patch_gtid`], [`patch_clock`], [`format_for_replica`]
//! and [`with_checksum`].
//!
//! [`hints`] finds out which transactions may run side by side.
//!
//! The formats, drawn, and what is not covered: `docs/binlog.md`.

#![forbid(unsafe_code)]

mod build;
mod bytes;
mod checksum;
mod column;
mod compress;
mod control;
mod error;
mod event;
mod format;
mod gtid;
mod gtid_event;
mod gtid_list;
mod gtid_set;
mod header;
pub mod hints;
mod load;
mod mysql_gtid;
mod packed;
mod query;
mod rows;
mod rows_event;
mod stream;
mod table_map;
mod updates;
mod value;

pub use build::{
    GtidHint, Maker, Place, format_for_replica, has_room, normalise_gtid, patch_clock, patch_gtid,
    place, with_checksum,
};
pub use checksum::{CRC_LEN, Checksum, crc32, mend, verify};
pub use column::ColumnType;
pub use compress::{compress, decompress, decompress_column, raw_len};
pub use control::{Checkpoint, Heartbeat, Rotate, StartEncryption};
pub use error::{EventError, Flaw};
pub use event::{Event, Payload, encode_event};
pub use format::{Flavour, Format, version_bytes};
pub use gtid::{BinlogState, Compared, Gtid, ParseGtidError, Position};
pub use gtid_event::{GtidEvent, GtidExtra, XaName, XaPrepare, gtid_extra, gtid_flags};
pub use gtid_list::{GtidList, gtid_list_flags};
pub use gtid_set::{GtidSet, ParseGtidSetError};
pub use header::{EventType, FILE_MAGIC, HEADER_LEN, Header, flags};
pub use load::{Duplicates, FileBlock, LoadQuery};
pub use mysql_gtid::{CommitInfo, LogicalClock, MySqlGtid, uuid_text};
pub use query::{Query, StatusVar, StatusVars};
pub use rows::{Cell, Image, Row, Rows};
pub use rows_event::{Change, RowsEvent, rows_flags};
pub use stream::{
    Cut, EVENT_MAX, Ending, Group, GroupName, Grouper, Seen, Step, StreamError, check_magic,
    cut_event,
};
pub use table_map::{KeyColumn, Metadata, TableMap, TableMapParts};
pub use updates::Updates;
pub use value::{Date, DateTime, Decimal, Time, Value, ValueError};
