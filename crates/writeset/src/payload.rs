//! Where a write set's payload is: in memory, or with somebody who reads it when it is wanted.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

/// Keeps a payload elsewhere than in memory. Reading may take as long as a disk likes.
pub trait Keeper: fmt::Debug + Send + Sync {
    /// The payload's size in bytes.
    fn len(&self) -> u64;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds its bytes in `range` to `out`. The error says why they cannot be had.
    fn read_to(&self, range: Range<u64>, out: &mut BytesMut) -> Result<(), String>;
}

/// A payload that is elsewhere. Two are equal if it is the same keeper.
#[derive(Clone)]
pub struct Kept(Arc<dyn Keeper>);

impl Kept {
    /// What `keeper` has.
    pub fn by(keeper: Arc<dyn Keeper>) -> Self {
        Kept(keeper)
    }

    /// Its size in bytes.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its bytes in `range`, read now.
    pub fn read(&self, range: Range<u64>) -> Result<Bytes, String> {
        let len = range.end.saturating_sub(range.start).min(self.len());
        let mut out = BytesMut::with_capacity(len as usize);
        self.read_to(range, &mut out)?;
        Ok(out.freeze())
    }

    /// The same, added to `out`.
    pub fn read_to(&self, range: Range<u64>, out: &mut BytesMut) -> Result<(), String> {
        let before = out.len() as u64;
        let wanted = range.end.saturating_sub(range.start);
        self.0.read_to(range, out)?;
        match out.len() as u64 - before == wanted {
            true => Ok(()),
            false => Err(format!(
                "{} of {wanted} bytes came",
                out.len() as u64 - before
            )),
        }
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl PartialEq for Kept {
    fn eq(&self, other: &Kept) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Kept {}

/// See the module's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// In memory, or in a mapped file.
    Here(Bytes),
    /// It has to be read.
    Elsewhere(Kept),
}

impl Payload {
    /// The bytes, if they are here.
    pub fn here(&self) -> Option<&Bytes> {
        match self {
            Payload::Here(bytes) => Some(bytes),
            Payload::Elsewhere(_) => None,
        }
    }

    /// Who has it otherwise.
    pub fn elsewhere(&self) -> Option<&Kept> {
        match self {
            Payload::Here(_) => None,
            Payload::Elsewhere(kept) => Some(kept),
        }
    }
}
