//! The durable ordered log, which is also the write-set cache.
//!
//! [`Log`] is the plain log of one owner. [`WriterHandle`] puts it behind a thread that
//! gathers appends into one write and one fdatasync, or runs it inline for simulations.
//! [`LogReader`] reads beside either; [`Look`] reads without opening, for tools. [`Device`] is what lies below: [`DirDevice`] is a real
//! directory, [`SimDevice`] one in memory that forgets like a disk.
//!
//! The format, the invariants and what is lost when: `docs/log.md`.

#![forbid(unsafe_code)]

mod ahead;
mod checkpoint;
mod device;
mod error;
mod format;
#[doc(hidden)]
pub mod fuzzed;
mod log;
mod look;
mod meta;
mod record;
mod recover;
mod segment;
mod soon;
mod stats;
mod view;
mod writer;

pub use device::{ClosedLater, Closer, Device, DeviceFile, DirDevice, LookDevice, SimDevice};
pub use error::LogError;
pub use log::{Checkpoints, Log, LogOptions};
pub use look::{
    End, FileKind, Look, Seen, SmallState, Totals, file_kind, kind_by_name, load_checkpoint,
};
pub use meta::{META_BYTES_MAX, META_KEY_MAX};
pub use record::{MAX_BODY, Record, RecordId};
pub use recover::{Recovered, TornTail};
pub use soon::SoonRead;
pub use stats::{LogStats, SYNC_CLASSES};
pub use view::LogReader;
pub use writer::{Done, WriterHandle};
