//! What of a log is going to be read soon.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// From which index on records are going to be read soon. The log leaves those to the kernel's
/// memory that it would drop else. Clones are the same.
#[derive(Clone, Debug)]
pub struct SoonRead(Arc<AtomicU64>);

impl Default for SoonRead {
    fn default() -> Self {
        SoonRead(Arc::new(AtomicU64::new(u64::MAX)))
    }
}

impl SoonRead {
    /// Those from `from` on; `None`: none.
    pub fn set(&self, from: Option<u64>) {
        self.0.store(from.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The first one; the highest number if there is none.
    pub fn from(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, DeviceFile, Log, LogOptions, Record, SimDevice, WriterHandle};
    use bytes::Bytes;
    use std::io::{self, IoSlice};
    use std::ops::Range;
    use std::sync::Mutex;

    type Released = Arc<Mutex<Vec<(usize, Range<u64>)>>>;

    /// Notes which file is told to let go of what.
    #[derive(Clone)]
    struct Notes(SimDevice, Released, Arc<Mutex<Vec<Weak>>>);

    type Weak = std::sync::Weak<File>;

    struct File(Arc<dyn DeviceFile>, usize, Released);

    impl Notes {
        fn file(&self, file: Arc<dyn DeviceFile>) -> Arc<dyn DeviceFile> {
            let mut files = self.2.lock().expect("no panic");
            let file = Arc::new(File(file, files.len(), self.1.clone()));
            files.push(Arc::downgrade(&file));
            file
        }

        fn bytes(&self) -> u64 {
            let all = self.1.lock().expect("no panic");
            all.iter().map(|(_, r)| r.end - r.start).sum()
        }

        fn open_files(&self) -> usize {
            let files = self.2.lock().expect("no panic");
            files.iter().filter(|f| f.strong_count() > 0).count()
        }
    }

    impl Device for Notes {
        fn list(&self) -> io::Result<Vec<String>> {
            self.0.list()
        }
        fn open(&self, name: &str) -> io::Result<Arc<dyn DeviceFile>> {
            Ok(self.file(self.0.open(name)?))
        }
        fn create(&self, name: &str) -> io::Result<Arc<dyn DeviceFile>> {
            Ok(self.file(self.0.create(name)?))
        }
        fn remove(&self, name: &str) -> io::Result<()> {
            self.0.remove(name)
        }
        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.0.rename(from, to)
        }
        fn sync_dir(&self) -> io::Result<()> {
            self.0.sync_dir()
        }
        fn place(&self) -> String {
            self.0.place()
        }
    }

    impl DeviceFile for File {
        fn write_at(&self, slices: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
            self.0.write_at(slices, offset)
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            self.0.read_at(buf, offset)
        }
        fn sync_data(&self) -> io::Result<()> {
            self.0.sync_data()
        }
        fn sync_all(&self) -> io::Result<()> {
            self.0.sync_all()
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.0.set_len(len)
        }
        fn allocate(&self, len: u64) -> io::Result<()> {
            self.0.allocate(len)
        }
        fn release(&self, bytes: Range<u64>) {
            self.2.lock().expect("no panic").push((self.1, bytes));
        }
        fn len(&self) -> io::Result<u64> {
            self.0.len()
        }
    }

    const MIB: u64 = 1 << 20;

    fn append(log: &WriterHandle, count: u64) {
        let body = Bytes::from(vec![7; MIB as usize]);
        for _ in 0..count {
            let index = log.reader().next_index();
            let record = Record {
                index,
                term: 1,
                leader: 1,
                body: body.clone(),
            };
            log.append_wait(vec![record]).expect("written");
        }
    }

    #[test]
    fn what_is_read_soon_stays_and_goes_bit_by_bit() {
        let device = Notes(SimDevice::new(1), Released::default(), Arc::default());
        let soon = SoonRead::default();
        let options = LogOptions {
            segment_bytes: 16 * MIB,
            soon: soon.clone(),
            ..LogOptions::default()
        };
        let (log, _) = Log::open(Arc::new(device.clone()), options).expect("a new log");
        let log = WriterHandle::spawn(log, 64 << 20).expect("a thread");
        append(&log, 10);
        assert!(
            (4 * MIB..=10 * MIB).contains(&device.bytes()),
            "as it comes"
        );
        let wanted = log.reader().next_index();
        soon.set(Some(wanted));
        append(&log, 41);
        let then = device.bytes();
        assert!(then <= 11 * MIB, "{then}: only what is not wanted");
        // Read up to there: the kernel may have what lies before.
        soon.set(Some(wanted + 20));
        append(&log, 10);
        let then = device.bytes();
        assert!((24 * MIB..=31 * MIB).contains(&then), "{then}");
        soon.set(None);
        append(&log, 1);
        let at_once = device.bytes() - then;
        assert!(at_once <= 20 * MIB, "{at_once}: not all in one go");
        append(&log, 20);
        let all = device.bytes();
        assert!((76 * MIB..=83 * MIB).contains(&all), "{all}");
        // What is to be read holds no file that goes.
        soon.set(Some(0));
        append(&log, 40);
        let open = device.open_files();
        let last = log.reader().last_index().expect("there is one");
        log.purge_to(last - 1).expect("purged");
        append(&log, 1);
        assert!(
            device.open_files() + 5 < open,
            "{} of {open}",
            device.open_files()
        );
        log.close().expect("closed");
    }
}
