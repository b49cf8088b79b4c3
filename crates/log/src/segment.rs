//! One segment file: making it, and walking its frames.

use crate::device::{Device, DeviceFile, write_one};
use crate::error::LogError;
use crate::format::{
    ALIGN, FRAME_HEADER, FrameHeader, FrameKind, SEGMENT_HEADER, SegmentHeader, SegmentKey,
    segment_name,
};
use crate::record::MAX_BODY;
use std::io;
use std::sync::Arc;

pub(crate) const TEMP: &str = "dromon-tmp-seg.log";
/// Bytes read at a time while walking.
const WINDOW: usize = 1 << 20;
/// A remembered place every so many bytes.
const PLACE_EVERY: u64 = 16 << 10;

/// An open segment and where to look for records in it.
#[derive(Clone)]
pub(crate) struct Segment {
    pub file: Arc<dyn DeviceFile>,
    pub name: Arc<str>,
    pub key: SegmentKey,
    pub first: u64,
    /// Chain value before the first record.
    pub chain: u32,
    /// End of the last frame, in bytes.
    pub end: u64,
    /// Some (index, offset), ascending; the first is the first record's.
    pub places: Vec<(u64, u64)>,
}

impl Segment {
    pub(crate) fn new(file: Arc<dyn DeviceFile>, header: &SegmentHeader) -> Segment {
        Segment {
            file,
            name: segment_name(header.first).into(),
            key: SegmentKey::new(header.identity, header.first),
            first: header.first,
            chain: header.chain,
            end: SEGMENT_HEADER,
            places: vec![(header.first, SEGMENT_HEADER)],
        }
    }

    /// Makes the file of a new segment, still without its name. Whoever gets an error has
    /// changed nothing.
    pub(crate) fn begin(device: &dyn Device) -> io::Result<Arc<dyn DeviceFile>> {
        device.create(TEMP)
    }

    /// Makes a new segment.
    pub(crate) fn create(
        device: &dyn Device,
        header: &SegmentHeader,
        bytes: u64,
    ) -> Result<Segment, LogError> {
        let file = Segment::begin(device).map_err(|e| LogError::io("create", TEMP, e))?;
        Segment::complete(device, file, header, bytes)
    }

    /// Makes a segment of a file that was begun. Its header is durable before it gets its
    /// name, and its name is durable when this returns.
    pub(crate) fn complete(
        device: &dyn Device,
        file: Arc<dyn DeviceFile>,
        header: &SegmentHeader,
        bytes: u64,
    ) -> Result<Segment, LogError> {
        let name = segment_name(header.first);
        file.allocate(bytes)
            .map_err(|e| LogError::io("reserve room for", TEMP, e))?;
        write_one(&*file, &header.encode(), 0).map_err(|e| LogError::io("write", TEMP, e))?;
        file.sync_all().map_err(|e| LogError::io("sync", TEMP, e))?;
        device
            .rename(TEMP, &name)
            .map_err(|e| LogError::io("rename", TEMP, e))?;
        device
            .sync_dir()
            .map_err(|e| LogError::io("sync", &device.place(), e))?;
        Ok(Segment::new(file, header))
    }

    /// Opens an existing segment and checks its header against the name.
    pub(crate) fn open(
        device: &dyn Device,
        first: u64,
        identity: u128,
    ) -> Result<(Segment, SegmentHeader), LogError> {
        let name = segment_name(first);
        let file = device
            .open(&name)
            .map_err(|e| LogError::io("open", &name, e))?;
        let mut block = vec![0; SEGMENT_HEADER as usize];
        let got = file
            .read_at(&mut block, 0)
            .map_err(|e| LogError::io("read", &name, e))?;
        let header = SegmentHeader::decode(&name, &block[..got])?;
        if header.identity != identity {
            return Err(LogError::corrupt(
                &name,
                16,
                format!(
                    "it belongs to the log {:032x}, and the log in this directory is {identity:032x}",
                    header.identity
                ),
            ));
        }
        if header.first != first {
            return Err(LogError::corrupt(
                &name,
                32,
                format!(
                    "it begins with index {} but its name says {first}",
                    header.first
                ),
            ));
        }
        Ok((Segment::new(file, &header), header))
    }

    /// Remembers where a record begins, if it is far enough from the last such place.
    pub(crate) fn note_place(&mut self, index: u64, offset: u64) {
        let far = self
            .places
            .last()
            .is_none_or(|(_, at)| offset >= at + PLACE_EVERY);
        if far {
            self.places.push((index, offset));
        }
    }

    /// The nearest remembered place at or before a record.
    pub(crate) fn place_before(&self, index: u64) -> (u64, u64) {
        let n = self.places.partition_point(|(i, _)| *i <= index);
        match n.checked_sub(1).and_then(|n| self.places.get(n)) {
            Some(place) => *place,
            None => (self.first, SEGMENT_HEADER),
        }
    }

    /// A handle for reading from the nearest remembered place on.
    pub(crate) fn for_reading(&self, index: u64) -> Segment {
        Segment {
            file: self.file.clone(),
            name: self.name.clone(),
            places: vec![self.place_before(index)],
            ..*self
        }
    }

    /// Forgets the records from `index` on, which begins at `offset`.
    pub(crate) fn cut(&mut self, index: u64, offset: u64) {
        self.places.retain(|(i, _)| *i < index || *i == self.first);
        self.end = offset;
    }
}

/// What stands at an offset.
pub(crate) enum Found {
    /// A record whose body (at offset + 64) has the right checksum; with its chain value.
    Record(FrameHeader, u32),
    /// A mark that ends the log here.
    Mark(FrameHeader),
    /// No whole frame.
    Nothing,
}

/// Reads a segment front to back in large pieces.
pub(crate) struct Walker<'a> {
    segment: &'a Segment,
    len: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl<'a> Walker<'a> {
    pub(crate) fn new(segment: &'a Segment) -> Result<Walker<'a>, LogError> {
        let len = segment
            .file
            .len()
            .map_err(|e| LogError::io("measure", &segment.name, e))?;
        Ok(Walker {
            segment,
            len,
            window: Vec::new(),
            window_at: 0,
        })
    }

    /// `n` bytes (at most the window) at `offset`; fewer at the end of the file.
    fn bytes(&mut self, offset: u64, n: usize) -> Result<&[u8], LogError> {
        let have = self.window_at + self.window.len() as u64;
        let inside = offset >= self.window_at && offset + n as u64 <= have;
        if !inside {
            let want = (self.len.saturating_sub(offset)).min(WINDOW as u64) as usize;
            self.window.resize(want, 0);
            let got = self
                .segment
                .file
                .read_at(&mut self.window, offset)
                .map_err(|e| LogError::io("read", &self.segment.name, e))?;
            self.window.truncate(got);
            self.window_at = offset;
        }
        let at = (offset - self.window_at) as usize;
        let end = (at + n).min(self.window.len());
        Ok(&self.window[at.min(end)..end])
    }

    fn header(&mut self, offset: u64) -> Result<Option<(FrameHeader, u32)>, LogError> {
        let key = self.segment.key;
        let b = self.bytes(offset, FRAME_HEADER as usize)?;
        if b.len() < FRAME_HEADER as usize {
            return Ok(None);
        }
        Ok(FrameHeader::decode(key, offset, b))
    }

    /// What stands at `offset`, verified.
    pub(crate) fn frame(&mut self, offset: u64) -> Result<Found, LogError> {
        let Some((header, crc)) = self.header(offset)? else {
            return Ok(Found::Nothing);
        };
        if header.kind == FrameKind::Mark {
            return Ok(Found::Mark(header));
        }
        let end = offset + header.frame_len();
        if header.body_len as usize > MAX_BODY || end > self.len {
            return Ok(Found::Nothing);
        }
        let mut at = offset + FRAME_HEADER;
        let mut sum = 0;
        while at < end {
            let n = (end - at).min(WINDOW as u64) as usize;
            let part = self.bytes(at, n)?;
            if part.is_empty() {
                return Ok(Found::Nothing);
            }
            sum = crc32c::crc32c_append(sum, part);
            at += part.len() as u64;
        }
        if sum != header.body_crc {
            return Ok(Found::Nothing);
        }
        Ok(Found::Record(header, crc))
    }

    /// Whether there is nothing but zeros from `offset` to the end of the file.
    pub(crate) fn is_zero_from(&mut self, mut offset: u64) -> Result<bool, LogError> {
        while offset < self.len {
            let n = (self.len - offset).min(WINDOW as u64) as usize;
            let part = self.bytes(offset, n)?;
            if part.is_empty() {
                break;
            }
            if part.iter().any(|b| *b != 0) {
                return Ok(false);
            }
            offset += part.len() as u64;
        }
        Ok(true)
    }

    /// The frame header at or after `offset` that claims most: the highest index below
    /// which everything was on stable storage when the header was written, and where it
    /// stands. Looks at every aligned offset, so damage cannot hide what is behind it.
    pub(crate) fn strongest_claim(&mut self, offset: u64) -> Result<Option<(u64, u64)>, LogError> {
        let mut best: Option<(u64, u64)> = None;
        let mut at = offset.next_multiple_of(ALIGN);
        while at + FRAME_HEADER <= self.len {
            if let Some((header, _)) = self.header(at)?
                && best.is_none_or(|(claim, _)| header.durable_end > claim)
            {
                best = Some((header.durable_end, at));
            }
            at += ALIGN;
        }
        Ok(best)
    }
}

/// Makes all of a segment durable.
pub(crate) fn sync_file(segment: &Segment) -> Result<(), LogError> {
    segment
        .file
        .sync_all()
        .map_err(|e| LogError::io("sync", &segment.name, e))
}
