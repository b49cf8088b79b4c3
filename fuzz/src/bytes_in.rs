//! Taking an input apart: numbers and slices off its front; zeros when it is used up.

/// What is left of an input.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of it.
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input(bytes)
    }

    /// Whether it is used up.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// At most `n` bytes.
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        head
    }

    /// The rest.
    pub fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }

    /// One byte.
    pub fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// Two bytes, little endian.
    pub fn u16(&mut self) -> u16 {
        u16::from(self.u8()) | u16::from(self.u8()) << 8
    }

    /// Eight bytes, little endian.
    pub fn u64(&mut self) -> u64 {
        let mut n = [0; 8];
        let got = self.take(8);
        n[..got.len()].copy_from_slice(got);
        u64::from_le_bytes(n)
    }
}
