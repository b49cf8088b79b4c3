//! Watches how fast it goes, for the tuner, and whether the target reads pages.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::reader::is_executing;
use super::shared::Sample;
use super::{Progress, Settings, Shared};
use crate::client::{Client, ClientError};
use crate::tune::{Knob, Tuner};

/// How long a level is tried.
const PERIOD: Duration = Duration::from_millis(700);
/// How often the target is asked whether it reads pages.
const LOOK: Duration = Duration::from_millis(120);
/// How often it is asked how far behind the target is.
const AGE: Duration = Duration::from_millis(50);
/// Pages read in a second from which on reading ahead may be worth something, and below which not.
const PAGES: (f64, f64) = (40.0, 10.0);

const READS: &str = "SELECT VARIABLE_NAME, VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS \
    WHERE VARIABLE_NAME IN ('INNODB_BUFFER_POOL_READS', 'INNODB_DATA_PENDING_READS')";

/// Of a session.
pub(super) struct Pace {
    tuner: Tuner,
    tunes: bool,
    began: Instant,
    ticks: u32,
    busy: u32,
    /// Transactions, units, units that gave way and keys read ahead, when the period began.
    counted: [u64; 4],
    looked: Instant,
    /// When it was asked how far behind the target is.
    aged: Instant,
    /// How often the target was asked in this period, and was reading pages.
    looks: u32,
    reading: u32,
    /// Pages read so far, and when the period began.
    pages: Option<u64>,
    pages_began: Option<u64>,
    /// Of late the target reads so many pages that reading ahead may be worth something.
    reads_many: Option<bool>,
    /// The target was reading pages when it was asked last.
    pub reads_pages: bool,
}

fn counts(progress: &Progress) -> [u64; 4] {
    let c = &progress.counters;
    let get = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
    let gave_way = get(&c.by_keys) + get(&c.by_lock) + get(&c.by_error);
    let ahead = get(&c.read_ahead);
    [get(&c.transactions), get(&c.units), gave_way, ahead]
}

impl Pace {
    pub(super) fn new(settings: &Settings, progress: &Progress) -> Pace {
        let knobs = [&settings.threads, &settings.readers];
        let [threads, readers] = knobs.map(Knob::clone);
        Pace {
            tunes: knobs.iter().any(|knob| !knob.is_fixed()),
            tuner: Tuner::new(threads, readers),
            began: Instant::now(),
            ticks: 0,
            busy: 0,
            counted: counts(progress),
            looked: Instant::now(),
            aged: Instant::now(),
            looks: 0,
            reading: 0,
            pages: None,
            pages_began: None,
            reads_many: None,
            reads_pages: false,
        }
    }

    /// Every few milliseconds, with what the first unit is doing.
    pub(super) fn tick(
        &mut self,
        client: &mut Client,
        shared: &Shared,
        progress: &Progress,
        sample: Sample,
    ) -> Result<(), ClientError> {
        self.ticks += 1;
        self.busy += u32::from(matches!(sample, Sample::Unit(..)));
        match sample {
            Sample::Unit(state, _) if is_executing(state) => {
                let since = self.looked.elapsed();
                if since > LOOK {
                    self.looked = Instant::now();
                    self.look(client, since)?;
                }
            }
            _ => self.reads_pages = false,
        }
        if self.aged.elapsed() > AGE {
            self.aged = Instant::now();
            // Where pages are read, long units wait for one after the other.
            let lag = match self.reads_many {
                Some(false) => progress.lag_ms().unwrap_or(0),
                _ => 0,
            };
            shared.lock().size.behind(Duration::from_millis(lag));
        }
        if self.began.elapsed() > PERIOD {
            self.period(shared, progress);
        }
        Ok(())
    }

    fn look(&mut self, client: &mut Client, since: Duration) -> Result<(), ClientError> {
        for row in client.rows(READS)? {
            let mut cells = row.into_iter().map(Option::unwrap_or_default);
            let (name, value) = (cells.next(), cells.next());
            let value = value.and_then(|v| String::from_utf8(v).ok()?.parse::<u64>().ok());
            match name.as_deref() {
                Some(b"INNODB_BUFFER_POOL_READS") => {
                    if let (Some(before), Some(now)) = (self.pages, value) {
                        let rate = now.saturating_sub(before) as f64 / since.as_secs_f64();
                        if !(PAGES.1..=PAGES.0).contains(&rate) {
                            self.reads_many = Some(rate > PAGES.0);
                        }
                    }
                    self.pages = value;
                }
                _ => self.reads_pages = value.is_some_and(|n| n > 0),
            }
        }
        self.looks += 1;
        self.reading += u32::from(self.reads_pages);
        Ok(())
    }

    fn period(&mut self, shared: &Shared, progress: &Progress) {
        let now = counts(progress);
        let [transactions, units, gave_way, keys] =
            std::array::from_fn(|n| now[n] - self.counted[n]);
        let seconds = self.began.elapsed().as_secs_f64();
        // Nothing is learnt from a time in which there was not always something to do.
        let behind = self.busy * 10 > self.ticks * 9;
        if let (Some(a), Some(b), true) = (self.pages_began, self.pages, self.looks > 0) {
            shared.ahead.measured(keys, b.saturating_sub(a));
        }
        let waste = gave_way as f64 / (units + gave_way).max(1) as f64;
        shared.lock().size.wasted(waste);
        if self.tunes {
            let moves = self.tuner.moves();
            if let (Some(a), Some(b)) = (self.pages_began, self.pages) {
                let rate = b.saturating_sub(a) as f64 / seconds;
                if rate > PAGES.0 || rate < PAGES.1 {
                    let mostly = self.reading * 2 > self.looks;
                    self.tuner.reads(rate > PAGES.0, mostly);
                }
            }
            match behind && transactions > 0 {
                true => {
                    self.tuner.period(transactions as f64 / seconds, waste);
                }
                false => self.tuner.idle(),
            }
            shared.tune(&self.tuner);
            let moved = self.tuner.moves() - moves;
            progress.counters.tuned.fetch_add(moved, Ordering::Relaxed);
        }
        (self.ticks, self.busy, self.began) = (0, 0, Instant::now());
        (self.looks, self.reading) = (0, 0);
        (self.counted, self.pages_began) = (now, self.pages);
    }
}
