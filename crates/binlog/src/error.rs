//! What is wrong with bytes that should be an event, and where.

use crate::header::EventType;

/// Why bytes are not an event, or not one that can be read here.
///
/// Nothing of such an event may be stored or passed on. Whose fault it is
/// cannot be seen from the bytes: the sender's, the network's or the disk's if
/// the checksum fails; this build's if the format is newer than it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("A {kind} event cannot be read: {flaw} (byte {offset} of the event).")]
pub struct EventError {
    /// The type in the header, [`EventType::UNKNOWN`] if there was no header.
    pub kind: EventType,
    /// Where, in bytes from the event's first byte.
    pub offset: usize,
    /// What.
    pub flaw: Flaw,
}

/// What is wrong at one place of an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// It ends within a field.
    #[error("it ends within its {field}, which needs {need} bytes where {have} are left")]
    Short {
        /// Which field.
        field: &'static str,
        /// Bytes it needs.
        need: usize,
        /// Bytes there are.
        have: usize,
    },
    /// The length in the header is not that of the bytes.
    #[error("its header says {said} bytes, but there are {have}")]
    Length {
        /// In the header.
        said: u32,
        /// Bytes there are.
        have: usize,
    },
    /// The checksum does not fit.
    #[error("its checksum is {stored:08x}, but that of its bytes is {computed:08x}")]
    Checksum {
        /// Of the bytes there are.
        computed: u32,
        /// Behind them.
        stored: u32,
    },
    /// A field has a value that it cannot have.
    #[error("its {field} cannot be {value}")]
    Value {
        /// Which field.
        field: &'static str,
        /// What it says.
        value: u64,
    },
    /// There is more than there should be.
    #[error("{count} bytes follow its last field")]
    Excess {
        /// Bytes too many.
        count: usize,
    },
    /// Compressed data that do not decompress to what they claim.
    #[error("its compressed part is damaged ({0})")]
    Compressed(&'static str),
    /// An event for which this build has no reader.
    #[error("{0}")]
    Unsupported(&'static str),
}
