//! Entries of the own log, from memory or from the log's files.
//!
//! ```text
//!   delivery thread  ── read ────────> tail, else LogStore::read, which may wait for the disk
//!   engine's thread  ── read_aside ──> tail, else LogStore::read_then, and goes on with what else there is
//! ```
//!
//! A follower that is far behind, a new leader's search for where a follower is, and a start behind an old checkpoint
//! read what is in memory no more. A disk that stalls then must not hold up heartbeats, votes and the other members.

use super::*;

/// What was read so far of a range.
struct Gathered {
    out: Vec<RaftEntry>,
    bytes: usize,
    at: u64,
    to: u64,
    max_bytes: usize,
}

impl Gathered {
    fn new(from: u64, to: u64, max_bytes: usize) -> Self {
        Gathered {
            out: Vec::new(),
            bytes: 0,
            at: from,
            to,
            max_bytes,
        }
    }

    fn left(&self) -> usize {
        self.max_bytes.saturating_sub(self.bytes)
    }

    /// Takes what comes next from the tail. `false`: it does not reach back so far.
    fn take_tail(&mut self, s: &State) -> bool {
        let tail_first = s.tail.front().map_or(u64::MAX, |e| e.log_id.index);
        if self.at < tail_first {
            return false;
        }
        // A leader that was deposed may ask for what was cut off meanwhile.
        let skipped = s.tail.len().min((self.at - tail_first) as usize);
        for e in s.tail.range(skipped..) {
            if e.log_id.index > self.to {
                break;
            }
            self.bytes += weight(e);
            if !self.out.is_empty() && self.bytes > self.max_bytes {
                break;
            }
            self.out.push(e.clone());
        }
        true
    }

    /// Takes what was read from the files. `false`: no more is to be read.
    fn take(&mut self, batch: Vec<RaftEntry>) -> bool {
        let Some(last) = batch.last() else {
            return false;
        };
        self.at = last.log_id.index + 1;
        self.bytes += batch.iter().map(weight).sum::<usize>();
        self.out.extend(batch);
        self.bytes < self.max_bytes && self.at <= self.to
    }
}

impl Storage {
    /// Entries `from..=to`, at least one if there is one, about `max_bytes`. May wait for the disk.
    pub(super) fn read(&self, from: u64, to: u64, max_bytes: usize) -> io::Result<Vec<RaftEntry>> {
        let mut g = Gathered::new(from, to, max_bytes);
        while g.at <= to && !g.take_tail(&self.lock()) {
            let batch = read_store(&self.store, g.at, to, g.left())?;
            if !g.take(batch) {
                break;
            }
        }
        Ok(g.out)
    }

    /// The same, for the engine's thread, which goes on meanwhile.
    pub(super) async fn read_aside(
        &self,
        from: u64,
        to: u64,
        max_bytes: usize,
    ) -> io::Result<Vec<RaftEntry>> {
        let mut g = Gathered::new(from, to, max_bytes);
        while g.at <= to && !g.take_tail(&self.lock()) {
            let (tx, rx) = oneshot::channel();
            let done = Box::new(move |records| {
                // A receiver that went away no longer cares.
                let _ = tx.send(records);
            });
            self.store.read_then(g.at..=to, g.left(), done);
            let records = rx
                .await
                .unwrap_or_else(|_| Err(io::Error::other("the log was closed")))?;
            if !g.take(to_entries(records, g.at)?) {
                break;
            }
        }
        Ok(g.out)
    }

    /// What another member needs next. Of what cannot be read nothing, which the library takes for a heartbeat, and asks
    /// again some milliseconds later: an error would end this engine, which lacks nothing itself.
    pub(super) async fn read_for_others(
        &self,
        from: u64,
        to: u64,
        max_bytes: usize,
    ) -> Vec<RaftEntry> {
        let mut found = self.read_aside(from, to, max_bytes).await;
        if found.is_err() {
            // What lies before the damage can be sent.
            found = self.read_aside(from, from, max_bytes).await;
        }
        self.was_found(from, found)
    }

    fn was_found(&self, from: u64, found: io::Result<Vec<RaftEntry>>) -> Vec<RaftEntry> {
        match found {
            Ok(entries) => {
                self.unreadable.was_read(from);
                entries
            }
            Err(e) => {
                self.unreadable.failed(from, e.to_string());
                Vec::new()
            }
        }
    }

    /// Whether the entry at `index` is in memory, or there is none.
    pub(super) fn in_tail(&self, index: u64) -> bool {
        let s = self.lock();
        s.tail.front().is_some_and(|e| e.log_id.index <= index)
    }

    /// The last entry that others need and that is lost, and why.
    pub fn lost_entry(&self) -> Option<(u64, String)> {
        let (index, why, again) = self.unreadable.lost()?;
        if again {
            let found = self.read(index, index, READ_BYTES);
            if !self.was_found(index, found).is_empty() {
                return None;
            }
        }
        Some((index, why))
    }
}
