//! Events about files rather than transactions.
//!
//! ```text
//! rotate       position u64, file name to the end
//! heartbeat    file name to the end; the position is the header's end position.
//!              If that is 0 (MariaDB beyond 4 GiB): position u64, file name
//! heartbeat 2  fields of type u8, length, value: 1 file name, 2 position;
//!              type 0 ends them
//! checkpoint   length u32, file name
//! encryption   scheme u8, key version u32, nonce, 12 bytes
//! ```

use crate::bytes::{Reader, put_lenenc};
use crate::error::{EventError, Flaw};
use crate::header::Header;

/// The next file and where in it to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotate<'a> {
    /// In bytes; 4 is the first event.
    pub position: u64,
    /// Name of the file, without a directory.
    pub file: &'a [u8],
}

impl<'a> Rotate<'a> {
    pub(crate) fn decode(r: &mut Reader<'a>) -> Result<Rotate<'a>, EventError> {
        Ok(Rotate {
            position: r.u64("position")?,
            file: r.rest(),
        })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.position.to_le_bytes());
        out.extend_from_slice(self.file);
    }
}

/// Where the primary is while it has nothing to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat<'a> {
    /// Name of the primary's current file.
    pub file: &'a [u8],
    /// Its end, in bytes.
    pub position: u64,
    /// Whether the position stands in the body.
    pub(crate) long: bool,
}

impl<'a> Heartbeat<'a> {
    pub(crate) fn decode_v1(
        r: &mut Reader<'a>,
        header: &Header,
    ) -> Result<Heartbeat<'a>, EventError> {
        let long = header.end_pos == 0 && r.left() >= 8;
        let position = if long {
            r.u64("position")?
        } else {
            u64::from(header.end_pos)
        };
        Ok(Heartbeat {
            file: r.rest(),
            position,
            long,
        })
    }

    pub(crate) fn encode_v1(&self, out: &mut Vec<u8>) {
        if self.long {
            out.extend_from_slice(&self.position.to_le_bytes());
        }
        out.extend_from_slice(self.file);
    }

    pub(crate) fn decode_v2(r: &mut Reader<'a>) -> Result<Heartbeat<'a>, EventError> {
        let (mut file, mut position) = (None, None);
        while r.left() > 0 {
            let field = r.u8("field type")?;
            if field == 0 {
                break;
            }
            let len = r.lenenc_len("field length")?;
            let at = r.offset();
            let value = r.take(len, "field")?;
            let mut inner = r.within(value, at);
            match field {
                1 => file = Some(value),
                2 => position = Some(inner.lenenc("position")?),
                _ => {}
            }
        }
        let missing = |field| Flaw::Short {
            field,
            need: 1,
            have: 0,
        };
        Ok(Heartbeat {
            file: file.ok_or_else(|| r.error(missing("file name")))?,
            position: position.ok_or_else(|| r.error(missing("position")))?,
            long: true,
        })
    }

    pub(crate) fn encode_v2(&self, out: &mut Vec<u8>) {
        out.push(1);
        put_lenenc(out, self.file.len() as u64);
        out.extend_from_slice(self.file);
        let mut position = Vec::new();
        put_lenenc(&mut position, self.position);
        out.push(2);
        put_lenenc(out, position.len() as u64);
        out.extend_from_slice(&position);
        out.push(0);
    }
}

/// The oldest file that XA recovery of the primary needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint<'a> {
    /// Name of the file.
    pub file: &'a [u8],
}

impl<'a> Checkpoint<'a> {
    pub(crate) fn decode(r: &mut Reader<'a>) -> Result<Checkpoint<'a>, EventError> {
        let len = r.u32("length of the file name")?;
        let file = r.take(len as usize, "file name")?;
        r.end()?;
        Ok(Checkpoint { file })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.file.len() as u32).to_le_bytes());
        out.extend_from_slice(self.file);
    }
}

/// How the rest of a file is encrypted. In a file nothing behind it can be
/// read. A primary sends it too, but everything else in clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartEncryption {
    /// 1.
    pub scheme: u8,
    /// Of the key with which the file is encrypted.
    pub key_version: u32,
    /// Different for every file.
    pub nonce: [u8; 12],
}

impl StartEncryption {
    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<StartEncryption, EventError> {
        let start = StartEncryption {
            scheme: r.u8("scheme")?,
            key_version: r.u32("key version")?,
            nonce: r.array("nonce")?,
        };
        r.end()?;
        Ok(start)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.scheme);
        out.extend_from_slice(&self.key_version.to_le_bytes());
        out.extend_from_slice(&self.nonce);
    }
}
