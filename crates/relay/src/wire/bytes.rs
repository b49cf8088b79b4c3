//! Numbers and texts of the protocol, read within bounds.

use super::WireError;

/// Reads fields one after the other.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8], what: &'static str) -> Reader<'a> {
        Reader { bytes, what }
    }

    pub fn short(&self) -> WireError {
        WireError::Packet {
            what: self.what,
            why: "it ends within a field",
        }
    }

    pub fn bad(&self, why: &'static str) -> WireError {
        WireError::Packet {
            what: self.what,
            why,
        }
    }

    pub fn left(&self) -> usize {
        self.bytes.len()
    }

    pub fn take(&mut self, n: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.bytes.split_at_checked(n).ok_or_else(|| self.short())?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or_else(|| self.short())?;
        self.bytes = rest;
        Ok(*taken)
    }

    pub fn u8(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(|b| b[0])
    }

    pub fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of 1, 3, 4 or 9 bytes; `None` is NULL.
    pub fn lenenc(&mut self) -> Result<Option<u64>, WireError> {
        Ok(match self.u8()? {
            0xfb => None,
            0xfc => Some(self.u16()?.into()),
            0xfd => {
                let [a, b, c] = self.array()?;
                Some(u32::from_le_bytes([a, b, c, 0]).into())
            }
            0xfe => Some(self.u64()?),
            0xff => return Err(self.bad("a length cannot begin with 0xff")),
            n => Some(n.into()),
        })
    }

    /// Bytes with their length in front; `None` is NULL.
    pub fn lenenc_bytes(&mut self) -> Result<Option<&'a [u8]>, WireError> {
        match self.lenenc()? {
            None => Ok(None),
            Some(n) => {
                let n = usize::try_from(n).map_err(|_| self.short())?;
                self.take(n).map(Some)
            }
        }
    }

    /// Bytes with a length of one byte in front.
    pub fn short_bytes(&mut self) -> Result<&'a [u8], WireError> {
        let n = self.u8()?;
        self.take(n.into())
    }

    /// Bytes up to a zero.
    pub fn zero_ended(&mut self) -> Result<&'a [u8], WireError> {
        let n = self.bytes.iter().position(|b| *b == 0);
        let taken = self.take(n.ok_or_else(|| self.bad("a text has no end"))?)?;
        self.u8()?;
        Ok(taken)
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }
}

pub(super) fn put_lenenc(out: &mut Vec<u8>, n: u64) {
    let bytes = n.to_le_bytes();
    match n {
        0..=0xfa => out.push(bytes[0]),
        0xfb..=0xffff => {
            out.push(0xfc);
            out.extend_from_slice(&bytes[..2]);
        }
        0x1_0000..=0xff_ffff => {
            out.push(0xfd);
            out.extend_from_slice(&bytes[..3]);
        }
        _ => {
            out.push(0xfe);
            out.extend_from_slice(&bytes);
        }
    }
}

pub(super) fn put_lenenc_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_lenenc(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A length of one byte in front; what is longer is cut.
pub(super) fn put_short_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let n = bytes.len().min(255);
    out.push(n as u8);
    out.extend_from_slice(&bytes[..n]);
}

pub(super) fn put_zero_ended(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(bytes.iter().take_while(|b| **b != 0));
    out.push(0);
}
