//! Clients that never stop, and the proof that nothing was lost.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::net::lock;
use crate::rng::Rng;
use crate::toy::{Db, End, Key, row};
use crate::world::World;

/// Counters that all clients fight for.
const COUNTERS: u64 = 6;
/// Where every transaction leaves its mark.
const MARKS: u8 = 1;

/// One mark in so many has to do with one of those right behind it.
const BESIDE: u64 = 8;
const NEAR: u64 = 4;
const MARKS_BESIDE: u32 = 20_000;

/// Where large transactions write: whole blocks of rows.
const BLOCK_TABLE: u8 = 2;
const BLOCKS: u32 = 6;
const BLOCK_ROWS: u32 = 60;

fn block(n: u32) -> impl Iterator<Item = Key> {
    (0..BLOCK_ROWS).map(move |i| Key {
        table: BLOCK_TABLE,
        row: n * BLOCK_ROWS + i,
    })
}

fn mark(n: u32) -> Key {
    Key {
        table: MARKS,
        row: n,
    }
}

/// As if marks were in a unique index of `db`: who leaves one may need what lies beside
/// it. Not the same ones as elsewhere.
fn stand_beside(db: &Arc<Db>, seed: u64) {
    let mut rng = Rng::new(seed ^ ((db.n as u64) << 32));
    for n in 0..MARKS_BESIDE {
        if rng.one_in(BESIDE) {
            let next = n + 1 + rng.below(NEAR) as u32;
            db.neighbour(mark(n), mark(next));
            db.neighbour(mark(next), mark(n));
        }
    }
}

/// How one transaction ended for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Committed,
    RolledBack,
    Unknown,
}

#[derive(Default)]
struct Book {
    stop: AtomicBool,
    next: AtomicU32,
    done: AtomicU64,
    /// By mark: the counters it added to, and the answer.
    said: Mutex<BTreeMap<u32, (Vec<Key>, Said)>>,
}

/// Clients at work.
pub struct Load {
    book: Arc<Book>,
    threads: Vec<JoinHandle<()>>,
    streaming: bool,
    neighbours: bool,
    large: bool,
    padding: usize,
}

/// How transactions are sent in fragments.
#[derive(Clone, Copy)]
struct Streaming {
    /// One transaction in so many.
    share: u64,
    /// Bytes more in each.
    padding: usize,
}

impl Load {
    /// No clients yet. `streaming`: some transactions are sent in fragments.
    pub fn new(streaming: bool) -> Self {
        Load {
            book: Arc::default(),
            threads: Vec::new(),
            streaming,
            neighbours: false,
            large: false,
            padding: 0,
        }
    }

    /// Fragments are so large that their clients wait for one another.
    pub fn with_large_fragments(mut self) -> Self {
        self.padding = 300_000;
        self
    }

    /// More are sent in fragments, and stand in the way of others at locks that no key
    /// names.
    pub fn with_neighbours(mut self) -> Self {
        self.neighbours = true;
        self
    }

    /// Some transactions also write a block of rows: enough to go in chunks.
    pub fn with_large(mut self) -> Self {
        self.large = true;
        self
    }

    /// Lets `n` more clients work on `db`, as long as it serves clients.
    pub fn add(&mut self, db: &Arc<Db>, n: u64, seed: u64) {
        if self.neighbours {
            stand_beside(db, seed);
        }
        for client in 0..n {
            let (book, db) = (self.book.clone(), db.clone());
            let streaming = self.streaming.then_some(Streaming {
                share: if self.neighbours { 3 } else { 4 },
                padding: self.padding,
            });
            let large = self.large;
            let mut rng = Rng::new(seed * 1000 + db.n as u64 * 10 + client);
            self.threads.push(std::thread::spawn(move || {
                while !book.stop.load(Ordering::Relaxed) {
                    if db.ready() {
                        one(&book, &db, &mut rng, streaming, large);
                    }
                    // As fast as clients are, not as fast as the machine is.
                    std::thread::sleep(Duration::from_millis(2));
                }
            }));
        }
    }

    /// Transactions committed so far.
    pub fn done(&self) -> u64 {
        self.book.done.load(Ordering::Relaxed)
    }

    /// Waits until `n` more transactions have committed.
    pub fn go_on(&self, world: &World, n: u64) {
        let target = self.done() + n;
        world.until(&format!("{n} more transactions commit"), || {
            self.done() >= target
        });
    }

    /// Ends the clients.
    pub fn stop(&mut self) {
        self.book.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            assert!(thread.join().is_ok(), "a client panicked");
        }
    }

    /// Ends the clients, lets everything settle, and compares what clients
    /// were told with what every node has.
    pub fn verify(&mut self, world: &World) {
        self.stop();
        world.settle();
        let said = lock(&self.book.said);
        for db in world.members() {
            let rows = db.disk().rows;
            let mut counted: BTreeMap<Key, i64> = BTreeMap::new();
            for (n, (keys, how)) in said.iter() {
                let there = rows.contains_key(&mark(*n));
                let fits = match how {
                    Said::Committed => there,
                    Said::RolledBack => !there,
                    Said::Unknown => true,
                };
                assert!(
                    fits,
                    "transaction {n} was said to be {how:?}, but on {} its mark is there: {there}",
                    db.name
                );
                if there {
                    for key in keys {
                        *counted.entry(*key).or_default() += 1;
                    }
                }
            }
            for n in 0..BLOCKS {
                let values: Vec<_> = block(n).map(|key| rows.get(&key)).collect();
                let torn = values.windows(2).any(|w| w[0] != w[1]);
                assert!(!torn, "half a transaction on {}: {values:?}", db.name);
            }
            for n in 0..COUNTERS as u32 {
                let expected = counted.get(&row(n)).copied().unwrap_or(0);
                assert_eq!(db.read(row(n)), expected, "counter {n} on {}", db.name);
            }
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // After a failure the clients must not outlive the test for long.
        self.book.stop.store(true, Ordering::Relaxed);
    }
}

/// One transaction: it adds to some counters and leaves its mark. `streaming`:
/// it may do so in fragments.
fn one(book: &Book, db: &Arc<Db>, rng: &mut Rng, streaming: Option<Streaming>, large: bool) {
    let n = book.next.fetch_add(1, Ordering::Relaxed);
    let mut keys: Vec<Key> = (0..1 + rng.below(3))
        .map(|_| row(rng.below(COUNTERS) as u32))
        .collect();
    keys.sort_unstable();
    let stream = streaming.filter(|s| rng.one_in(s.share));
    let gives_up = rng.one_in(10);
    let mut t = db.begin();
    let mut result = t.put(mark(n), 1);
    for key in &keys {
        if let Some(Streaming { padding, .. }) = stream
            && result.is_ok()
            && rng.one_in(2)
        {
            result = t.fragment_of(padding).map(|_| ());
        }
        if result.is_ok() {
            result = t.add(*key, 1);
        }
    }
    if large && rng.one_in(5) {
        for key in block(rng.below(u64::from(BLOCKS)) as u32) {
            if result.is_ok() {
                result = t.put(key, i64::from(n));
            }
        }
    }
    let end = match result {
        Ok(()) if gives_up => {
            t.rollback();
            End::Deadlock
        }
        Ok(()) => t.commit(),
        Err(end) => end,
    };
    let said = match end {
        End::Committed { .. } => Said::Committed,
        End::Unknown => Said::Unknown,
        End::Deadlock | End::ConnFail | End::LockWait => Said::RolledBack,
        End::TooLarge => panic!("a few rows are too large"),
    };
    if said == Said::Committed {
        book.done.fetch_add(1, Ordering::Relaxed);
    }
    if end == End::ConnFail {
        std::thread::sleep(Duration::from_millis(5));
    }
    lock(&book.said).insert(n, (keys, said));
}
