//! Which large write sets this database must not be given in chunks, across a
//! crash.
//!
//! A node applies a large write set chunk by chunk, except where a client of its
//! own holds the whole transaction open, or where a statement in total order
//! isolation made its server throw away what it had of it. Such a database gets
//! the whole at the place where it commits. After a crash in between, its
//! position alone would say that the first chunks are in it: so a note is made
//! durable before the position may pass the first one.
//!
//! ```text
//!   dromon.chunks.log   magic 8 | notes (postcard) | xxh3 of all that 8
//! ```
//!
//! The file is replaced as a whole.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use dromon_writeset::{Seqno, Uuid};
use serde::{Deserialize, Serialize};

/// The file's name: see [`crate::ddl_marks::MARKS_FILE`].
pub const LACKING_FILE: &str = "dromon.chunks.log";
const NEW_FILE: &str = "dromon.chunks.new.log";
const MAGIC: [u8; 8] = *b"dromchk1";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    history: Uuid,
    /// The seqno of the write set's first chunk.
    id: Seqno,
}

/// The notes of one data directory.
#[derive(Debug)]
pub struct Lacking {
    dir: PathBuf,
    /// Where each is over, once that is known.
    notes: BTreeMap<Seqno, (Note, Option<Seqno>)>,
    written: Vec<Note>,
}

impl Lacking {
    /// Reads what an earlier process left in `dir`.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let written = match std::fs::read(dir.join(LACKING_FILE)) {
            Ok(bytes) => decode(&bytes)
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is damaged"))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e),
        };
        Ok(Lacking {
            dir: dir.to_owned(),
            notes: written.iter().map(|n| (n.id, (*n, None))).collect(),
            written,
        })
    }

    /// Whether the database gets the write set `id` whole.
    pub fn contains(&self, history: Uuid, id: Seqno) -> bool {
        self.notes
            .get(&id)
            .is_some_and(|(note, _)| note.history == history)
    }

    /// Notes `id`, not durably yet.
    pub fn add(&mut self, history: Uuid, id: Seqno) {
        self.notes.insert(id, (Note { history, id }, None));
    }

    /// Makes what is noted durable. What was over at or before `durable` in the
    /// database is dropped.
    pub fn store(&mut self, durable: Seqno) -> io::Result<()> {
        self.notes
            .retain(|_, (_, over)| over.is_none_or(|at| at > durable));
        let notes: Vec<Note> = self.notes.values().map(|(note, _)| *note).collect();
        if notes == self.written {
            return Ok(());
        }
        let new = self.dir.join(NEW_FILE);
        let mut file = File::create(&new)?;
        file.write_all(&encode(&notes))?;
        file.sync_all()?;
        std::fs::rename(&new, self.dir.join(LACKING_FILE))?;
        File::open(&self.dir)?.sync_all()?;
        self.written = notes;
        Ok(())
    }

    /// Everything ordered up to `seqno` is known, and of what is noted only `open`
    /// is not over.
    pub fn over_but(&mut self, open: &[Seqno], seqno: Seqno) {
        for (id, (_, over)) in &mut self.notes {
            if *id <= seqno && !open.contains(id) {
                over.get_or_insert(seqno);
            }
        }
    }

    /// The database is another one now (a copy): no note is about it.
    pub fn clear(&mut self) -> io::Result<()> {
        self.notes.clear();
        self.store(0)
    }
}

fn encode(notes: &[Note]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(postcard::to_allocvec(notes).unwrap_or_default());
    let sum = twox_hash::XxHash3_64::oneshot(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<Vec<Note>> {
    let (body, sum) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
    let right = twox_hash::XxHash3_64::oneshot(body).to_le_bytes() == sum;
    let notes = body.strip_prefix(&MAGIC)?;
    right.then(|| postcard::from_bytes(notes).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HISTORY: Uuid = Uuid([7; 16]);

    #[test]
    fn notes_outlive_the_process_until_the_end_is_durable() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = || Lacking::open(dir.path()).expect("readable");
        let mut notes = open();
        notes.add(HISTORY, 5);
        assert!(notes.contains(HISTORY, 5));
        assert!(!open().contains(HISTORY, 5), "not durable yet");
        notes.store(0).expect("room");
        let mut notes = open();
        assert!(notes.contains(HISTORY, 5));
        assert!(!notes.contains(Uuid([1; 16]), 5), "another history's");
        notes.add(HISTORY, 9);
        notes.over_but(&[9], 12);
        notes.store(11).expect("room");
        assert!(open().contains(HISTORY, 5), "its end is not durable");
        notes.store(12).expect("room");
        assert!(!open().contains(HISTORY, 5));
        assert!(open().contains(HISTORY, 9));
        notes.clear().expect("room");
        assert!(!open().contains(HISTORY, 9));
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut notes = Lacking::open(dir.path()).expect("nothing there");
        notes.add(HISTORY, 5);
        notes.store(0).expect("room");
        let path = dir.path().join(LACKING_FILE);
        let whole = std::fs::read(&path).expect("there");
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).expect("room");
            assert!(Lacking::open(dir.path()).is_err(), "byte {at}");
        }
        std::fs::write(&path, &whole[..4]).expect("room");
        assert!(Lacking::open(dir.path()).is_err());
    }
}
