//! Files in memory: the one place of the project that maps them.

use std::fs::File;
use std::io;
use std::ops::Deref;

use memmap2::{Mmap, MmapOptions};

/// The first bytes of a file, read-only, as memory.
///
/// The file may grow and be renamed or unlinked meanwhile. It must not be cut below
/// the mapped length, and the mapped bytes must not be rewritten, by anybody: reading
/// a page that is no longer there ends the process with SIGBUS.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps the first `len_bytes` of `file`, which must be there. The file may be closed
    /// afterwards (it is dropped here).
    pub fn open(file: File, len_bytes: u64) -> io::Result<MappedFile> {
        let have_bytes = file.metadata()?.len();
        if have_bytes < len_bytes {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!(
                    "The file to be mapped has {have_bytes} bytes, but {len_bytes} are expected; \
                     it was cut short."
                ),
            ));
        }
        let len = usize::try_from(len_bytes).map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{len_bytes} bytes are more than this machine can map."),
            )
        })?;
        // SAFETY: the bytes exist (checked above) and, by the rule stated at the type, are
        // neither cut off nor rewritten while the map lives.
        let map = unsafe { MmapOptions::new().len(len).map(&file) }?;
        Ok(MappedFile { map })
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn maps_a_prefix_and_refuses_more_than_there_is() {
        fn assert_send_sync<T: Send + Sync + 'static>() {}
        assert_send_sync::<MappedFile>();

        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"hello, world").unwrap();
        let map = MappedFile::open(file.try_clone().unwrap(), 5).unwrap();
        assert_eq!(map.as_ref(), b"hello");
        file.write_all(b" and more").unwrap();
        assert_eq!(&map[..], b"hello");

        let error = MappedFile::open(file.try_clone().unwrap(), 1000).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(error.to_string().contains("21 bytes"), "{error}");

        let empty = MappedFile::open(file, 0).unwrap();
        assert!(empty.is_empty());
    }
}
