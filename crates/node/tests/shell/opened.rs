//! A log that an engine has open.

use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use dromon_order::logstore::{LogStore, Record, WriteDone, WriteOp};
use dromon_order::memlog::MemLog;

use crate::net::{Ill, Net, lock};

/// A log as one process has it open: dead with the process.
pub struct Opened {
    pub net: Arc<Net>,
    pub addr: String,
    pub dir: PathBuf,
    pub log: Arc<MemLog>,
    pub alive: Arc<AtomicBool>,
}

impl LogStore for Opened {
    fn submit(&self, op: WriteOp, done: WriteDone) {
        if !self.alive.load(Ordering::Acquire) {
            return done(Err(io::Error::other("the process was killed")));
        }
        match lock(&self.net.disks).get_mut(&self.addr) {
            Some(Ill::Hangs(told)) => return told.push((self.log.clone(), op, done)),
            Some(Ill::Full) if matches!(op, WriteOp::SaveCheckpoint(..)) => {
                return done(Err(io::ErrorKind::StorageFull.into()));
            }
            Some(Ill::Fails) => {}
            Some(Ill::Full | Ill::Complains) | None => return self.log.submit(op, done),
        }
        done(Err(io::Error::other("the disk is broken")));
    }

    fn bounds(&self) -> (u64, u64) {
        self.log.bounds()
    }

    fn bytes_before(&self, index: u64) -> u64 {
        self.log.bytes_before(index)
    }

    fn held_up(&self) -> Option<String> {
        let complains = matches!(lock(&self.net.disks).get(&self.addr), Some(Ill::Complains));
        complains.then(|| "too many files are open".to_owned())
    }

    fn read(&self, range: RangeInclusive<u64>, max_bytes: usize) -> io::Result<Vec<Record>> {
        self.log.read(range, max_bytes)
    }

    fn load_meta(&self) -> io::Result<Option<Bytes>> {
        self.log.load_meta()
    }

    fn checkpoints(&self) -> io::Result<Vec<u64>> {
        self.log.checkpoints()
    }

    fn load_checkpoint(&self, index: u64) -> io::Result<Bytes> {
        self.log.load_checkpoint(index)
    }

    fn close(&self) {
        lock(&self.net.open).remove(&self.dir);
    }
}
