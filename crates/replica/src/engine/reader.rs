//! Reads ahead of the workers what their units will touch.
//!
//! Units that have not executed are looked at in their order, the first one too: its worker reads
//! one page after the other, and these many at a time. How many of them are at work is found by
//! trying ([`crate::tune`]). What is read and not applied yet is bounded by a part of the target's
//! buffer pool.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dromon_relay::log::{Level, Log};

use super::{End, Progress, Settings, Shared};
use crate::client::{Client, ClientError};
use crate::compile::{Collations, Compare, Options, Style, reads};
use crate::schedule::State;
use crate::target::Channel;
use crate::unit::Unit;
use crate::unit_size::LEAST;

/// How long one that has nothing to do sleeps before it looks again.
const IDLE: Duration = Duration::from_millis(20);
/// The same for those that are not wanted now.
const UNWANTED: Duration = Duration::from_millis(500);
/// How long one whom the target has no room for does without it before it tries again.
const NO_ROOM: Duration = Duration::from_secs(5);

/// Reads of a unit.
struct Read {
    unit: u64,
    text: Vec<u8>,
    keys: usize,
}

#[derive(Default)]
struct Queue {
    /// The next unit to look at.
    next: u64,
    reads: VecDeque<Read>,
    /// Units that were looked at and have not committed, and their keys.
    units: VecDeque<(u64, usize)>,
    keys: usize,
}

/// What is to be read.
pub(super) struct ReadAhead {
    queue: Mutex<Queue>,
    more: Condvar,
    /// Those that are not wanted now wait here.
    unwanted: Condvar,
    /// Pages that may be read and not used yet.
    pages_max: usize,
    /// The same in keys: of many the page is in memory already.
    keys_max: AtomicUsize,
    /// It was said in this session that the target has no room for more of them.
    told_of_room: AtomicBool,
    /// Keys of a transaction of late, in thousandths: a mean that forgets. 0: none was looked at.
    each: AtomicUsize,
}

/// Fewer keys say nothing of how many lie in one page.
const KEYS_LEAST: u64 = 200;
/// No more keys than that are taken for one page that is read.
const KEYS_PER_PAGE: usize = 8;
/// A unit whose transactions have so many times the keys of late counts as no more.
const OUTLIER: usize = 4;
/// So many units are to be read ahead at a time, one of which is being executed.
const UNITS: usize = 4;

impl ReadAhead {
    /// At most about so many pages are read and not used yet.
    pub(super) fn new(pages_max: usize) -> ReadAhead {
        ReadAhead {
            queue: Mutex::default(),
            more: Condvar::new(),
            unwanted: Condvar::new(),
            pages_max,
            keys_max: AtomicUsize::new(pages_max),
            told_of_room: AtomicBool::new(false),
            each: AtomicUsize::new(0),
        }
    }

    /// Most transactions in a unit: of larger ones only the one that is executed anyway could be
    /// read ahead.
    pub(super) fn most(&self) -> usize {
        match self.each.load(Ordering::Relaxed) {
            0 => usize::MAX,
            each => (self.keys_max() / UNITS * 1000 / each).max(LEAST),
        }
    }

    /// A unit of so many transactions has so many keys. One large transaction among many small ones
    /// says little.
    fn looked_at(&self, keys: usize, transactions: usize) {
        if keys > 0 {
            let now = keys.saturating_mul(1000) / transactions.max(1);
            let each = match self.each.load(Ordering::Relaxed) {
                0 => now,
                before => (before * 7 + now.min(before * OUTLIER)) / 8,
            };
            self.each.store(each.max(1), Ordering::Relaxed);
        }
    }

    fn keys_max(&self) -> usize {
        self.keys_max.load(Ordering::Relaxed)
    }

    /// While so many keys were read ahead the target read so many pages, for whomever.
    pub(super) fn measured(&self, keys: u64, pages: u64) {
        if keys >= KEYS_LEAST {
            let wanted = self.pages_max as f64 * keys as f64 / pages.max(1) as f64;
            let most = self.pages_max * KEYS_PER_PAGE;
            let now = self.keys_max() as f64;
            // Half of the way, as one period says little.
            let next = (now + wanted.min(most as f64)) / 2.0;
            let next = (next as usize).clamp(self.pages_max, most);
            self.keys_max.store(next, Ordering::Relaxed);
        }
    }

    pub(super) fn wake(&self) {
        self.more.notify_all();
        self.unwanted.notify_all();
    }

    /// The next read, if there is one now.
    fn next(
        &self,
        shared: &Shared,
        compiled: impl FnOnce(&Unit) -> Vec<(Vec<u8>, usize)>,
    ) -> Option<Read> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let unit = {
            let core = shared.lock();
            // Of one that has executed nothing need be read any more.
            let of_use = |n: u64| {
                core.scheduler
                    .state(n)
                    .is_some_and(|state| !state.has_executed())
            };
            while let Some(read) = queue.reads.pop_front() {
                if of_use(read.unit) {
                    return Some(read);
                }
            }
            let committed = core.scheduler.last_committed();
            while queue.units.front().is_some_and(|(n, _)| *n <= committed) {
                let gone = queue.units.pop_front();
                queue.keys -= gone.map_or(0, |(_, keys)| keys);
            }
            if queue.keys >= self.keys_max() {
                return None;
            }
            let from = queue.next.max(committed + 1);
            let found = (from..)
                .map_while(|n| Some((n, core.unit(n)?)))
                .find(|(n, unit)| unit.alone.is_none() && !unit.done && of_use(*n));
            let (n, unit) = found?;
            queue.next = n + 1;
            (n, Arc::clone(unit))
        };
        let (n, unit) = unit;
        for (text, keys) in compiled(&unit) {
            queue.keys += keys;
            queue.reads.push_back(Read {
                unit: n,
                text,
                keys,
            });
        }
        let keys: usize = queue.reads.iter().map(|read| read.keys).sum();
        queue.units.push_back((n, keys));
        self.looked_at(keys, unit.transactions.len());
        if queue.reads.len() > 1 {
            self.more.notify_all();
        }
        queue.reads.pop_front()
    }

    /// Others may do it.
    fn give_back(&self, read: Read) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.reads.push_front(read);
    }

    fn wait(&self, on: &Condvar, at_most: Duration) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever was woken looks for itself.
        drop(on.wait_timeout(queue, at_most));
    }
}

/// One of those who read.
pub(super) struct Reader {
    pub number: usize,
    /// The target is a node of a cluster.
    pub node: bool,
    pub settings: Settings,
    pub channel: Channel,
    pub collations: Collations,
    pub packet_max: usize,
    pub progress: Arc<Progress>,
    pub log: Log,
}

impl Reader {
    /// Until the session ends. It connects when it is wanted for the first time.
    pub(super) fn run(self, shared: &Shared) {
        if let Err(error) = self.read(shared) {
            // They are of no use without the target, as all others.
            shared.end(End::again(&error, format!("reading ahead: {error}")));
        }
    }

    fn read(&self, shared: &Shared) -> Result<(), ClientError> {
        let mut client: Option<Client> = None;
        let mut no_room: Option<Instant> = None;
        loop {
            if shared.lock().has_ended() {
                return Ok(());
            }
            let has_no_room = no_room.is_some_and(|since| since.elapsed() < NO_ROOM);
            if has_no_room || self.number >= shared.readers.load(Ordering::Relaxed) {
                let ahead = &shared.ahead;
                ahead.wait(&ahead.unwanted, UNWANTED);
                continue;
            }
            let options = Options {
                style: Style::Folded,
                filter: &self.settings.filter,
                compare: Compare::Key,
                packet_max: self.packet_max,
                longest: self.packet_max,
                collations: &self.collations,
                whole: false,
                events: false,
                computed: false,
            };
            let Some(next) = shared.ahead.next(shared, |unit| reads(unit, &options)) else {
                shared.ahead.wait(&shared.ahead.more, IDLE);
                continue;
            };
            let connected = match &mut client {
                Some(connected) => connected,
                None => match self.connect(shared) {
                    Ok(connected) => client.insert(connected),
                    // All that is to be applied can be without it.
                    Err(error) if error.scarce().is_some() => {
                        shared.ahead.give_back(next);
                        no_room = Some(Instant::now());
                        self.say_no_room(shared, &error);
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            match connected.query(&next.text) {
                Ok(_) => {
                    let counter = &self.progress.counters.read_ahead;
                    counter.fetch_add(next.keys as u64, Ordering::Relaxed);
                }
                // A table that is not there any more; a read that was ended.
                Err(error) if !error.is_lost() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Reader {
    fn connect(&self, shared: &Shared) -> Result<Client, ClientError> {
        let which = (self.number, self.node);
        super::begin::connect_to_read(&self.settings, shared, &self.channel, which)
    }

    fn say_no_room(&self, shared: &Shared, error: &ClientError) {
        if !shared.ahead.told_of_room.swap(true, Ordering::Relaxed) {
            let text = format!(
                "Reading ahead: the target has no room for one more connection: {error}. It goes on with those that it has, and tries again \
                 every {} s. Raise what the target allows, or lower readers.",
                NO_ROOM.as_secs()
            );
            self.log.say(Level::Warning, &text);
        }
    }
}

/// Whether the target is executing the first unit.
pub(super) fn is_executing(state: State) -> bool {
    matches!(state, State::Running | State::Doomed(_))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::compile::tests::{rows, unit};
    use crate::fake_target::{Fake, Reply, settings};
    use crate::schedule::After;

    /// Of more keys of which few pages must be read, more are read ahead, within bounds.
    #[test]
    fn as_many_keys_as_pages_allow() {
        let ahead = ReadAhead::new(100);
        assert_eq!((ahead.keys_max(), ahead.most()), (100, usize::MAX));
        ahead.measured(KEYS_LEAST - 1, 0);
        assert_eq!(ahead.keys_max(), 100, "too few to tell");
        for _ in 0..20 {
            ahead.measured(1000, 250);
        }
        assert!((395..=400).contains(&ahead.keys_max()), "four for a page");
        for _ in 0..20 {
            ahead.measured(1000, 0);
        }
        let most = 100 * KEYS_PER_PAGE;
        assert!((most - 2..=most).contains(&ahead.keys_max()));
        for _ in 0..20 {
            // The workers read, too.
            ahead.measured(1000, 5000);
        }
        assert_eq!(ahead.keys_max(), 100);
    }

    /// A read that the target does not answer holds up nobody when all ends.
    #[test]
    fn a_read_that_hangs_is_cut() {
        let fake = Fake::new(|text| text.contains("COUNT(").then_some(Reply::Silence));
        let (shared, ends) = reads_one(&fake);
        let begun = Instant::now();
        while !fake.said().iter().any(|text| text.contains("COUNT(")) {
            assert!(begun.elapsed() < Duration::from_secs(30), "it reads");
            thread::sleep(Duration::from_millis(1));
        }
        shared.end(End::Told);
        shared.cut();
        let long = Duration::from_secs(10);
        ends.recv_timeout(long).expect("it ends");
    }

    /// A target that is full for those who read ahead is none for those who apply.
    #[test]
    fn who_gets_no_connection_does_without() {
        let (full, tried) = (AtomicBool::new(true), Arc::new(AtomicBool::new(false)));
        let was_tried = Arc::clone(&tried);
        let fake = Fake::new(move |text| {
            let refused = text == "connect" && full.swap(false, Ordering::AcqRel);
            was_tried.fetch_or(refused, Ordering::AcqRel);
            refused.then_some(Reply::Fail(1226))
        });
        let (shared, ends) = reads_one(&fake);
        let begun = Instant::now();
        let long = Duration::from_secs(60);
        // What it was to read it reads when there is room again.
        while !fake.said().iter().any(|text| text.contains("COUNT(")) {
            assert!(!shared.lock().has_ended(), "it goes on");
            assert!(begun.elapsed() < long, "it tries again");
            thread::sleep(Duration::from_millis(1));
        }
        assert!(tried.load(Ordering::Acquire));
        shared.end(End::Told);
        shared.cut();
        ends.recv_timeout(long).expect("it ends");
    }

    /// One that has a unit to read for.
    fn reads_one(fake: &Fake) -> (Arc<Shared>, mpsc::Receiver<()>) {
        let settings = settings(fake, &["readers=1"]);
        let shared = Arc::new(Shared::new(&settings, String::new(), 64));
        let row = (Some((1, Some("a"))), Some((1, Some("b"))));
        let unit = unit(vec![rows("plain", &[row])]);
        shared.lock().push(After::default(), Arc::new(unit));
        let reader = Reader {
            number: 0,
            node: false,
            settings,
            channel: Channel::new("c"),
            collations: Collations::default(),
            packet_max: 1 << 20,
            progress: Arc::new(Progress::default()),
            log: Log::terminal(),
        };
        let (of, (ended, ends)) = (Arc::clone(&shared), mpsc::channel());
        thread::spawn(move || {
            reader.run(&of);
            ended.send(()).expect("somebody waits");
        });
        (shared, ends)
    }

    #[test]
    fn units_of_which_several_can_be_read_ahead() {
        let ahead = ReadAhead::new(100);
        ahead.looked_at(0, 3);
        assert_eq!(ahead.most(), usize::MAX);
        ahead.looked_at(100, 20);
        assert_eq!(ahead.most(), 5);
        // One large one changes little, many do.
        ahead.looked_at(100_000, 1);
        assert_eq!(ahead.most(), LEAST);
        for _ in 0..40 {
            ahead.looked_at(20, 20);
        }
        assert!((23..=25).contains(&ahead.most()), "{}", ahead.most());
    }
}
