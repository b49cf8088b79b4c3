//! The newest bytes, in memory once for all replicas that are close together.

use std::collections::VecDeque;
use std::sync::Arc;

use super::mark::Place;

/// Bytes in a row of one file.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// Where they begin.
    pub place: Place,
    /// Shared by all who send them.
    pub bytes: Arc<[u8]>,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.place.at + self.bytes.len() as u64
    }
}

/// Chunks that follow each other, up to a limit in bytes.
#[derive(Debug, Default)]
pub struct Tail {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    limit: usize,
}

impl Tail {
    /// Empty, for so many bytes.
    pub fn new(limit: usize) -> Tail {
        Tail {
            limit,
            ..Tail::default()
        }
    }

    /// Adds what follows. Something that does not fit empties it.
    pub fn push(&mut self, chunk: Chunk) {
        let follows = self.chunks.back().is_none_or(|last| {
            chunk.place.at == last.end() && chunk.place.file == last.place.file
                || chunk.place.file == last.place.file + 1
        });
        if !follows || chunk.bytes.len() > self.limit {
            self.clear();
        }
        if chunk.bytes.len() > self.limit {
            return;
        }
        self.bytes += chunk.bytes.len();
        self.chunks.push_back(chunk);
        while self.bytes > self.limit
            && let Some(old) = self.chunks.pop_front()
        {
            self.bytes -= old.bytes.len();
        }
    }

    /// Forgets all: something is missing behind it.
    pub fn clear(&mut self) {
        self.chunks.clear();
        self.bytes = 0;
    }

    /// The bytes from this place on, as far as they lie together: a chunk and the offset in it.
    pub fn get(&self, place: Place) -> Option<(Arc<[u8]>, usize)> {
        let n = self.chunks.partition_point(|c| c.place <= place);
        let chunk = self.chunks.get(n.checked_sub(1)?)?;
        (chunk.place.file == place.file && place.at < chunk.end()).then(|| {
            let offset = (place.at - chunk.place.at) as usize;
            (Arc::clone(&chunk.bytes), offset)
        })
    }

    /// Bytes in it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against the whole stream: what it gives is what stood there, and the newest is there.
        #[test]
        fn gives_what_was_put(lens in proptest::collection::vec((1usize..40, any::<bool>()), 1..30), limit in 40usize..100) {
            let mut tail = Tail::new(limit);
            let mut files: Vec<Vec<u8>> = vec![Vec::new()];
            for (n, (len, next)) in lens.into_iter().enumerate() {
                if next {
                    files.push(Vec::new());
                }
                let number = files.len() as u64;
                let file = files.last_mut().expect("one at least");
                let bytes: Arc<[u8]> = vec![n as u8; len].into();
                tail.push(Chunk { place: Place { file: number, at: file.len() as u64 }, bytes: bytes.clone() });
                file.extend_from_slice(&bytes);
                prop_assert!(tail.bytes() <= limit);
                let newest = Place { file: number, at: (file.len() - len) as u64 };
                prop_assert!(tail.get(newest).is_some());
                let end = Place { at: file.len() as u64, ..newest };
                prop_assert!(tail.get(end).is_none());
                for (number, file) in files.iter().enumerate() {
                    for at in 0..file.len() {
                        let place = Place { file: number as u64 + 1, at: at as u64 };
                        if let Some((bytes, offset)) = tail.get(place) {
                            prop_assert_eq!(&file[at..at + bytes.len() - offset], &bytes[offset..]);
                        }
                    }
                }
            }
        }
    }
}
