//! The log against a naive model of it, under crashes at every step.
//!
//! The model is a list of records and how many of them must survive. After a crash the log
//! must hold at least those, in order, and nothing that was not next in the list: no
//! invented record, none from before a truncation.

use bytes::Bytes;
use dromon_log::{Log, LogError, LogOptions, Record, RecordId, Recovered, SimDevice};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Op {
    Append {
        count: u8,
        size: u8,
    },
    Sync,
    Mark,
    /// Place in the log, in 1/255.
    Truncate(u8),
    Purge(u8),
    Reset(u8),
    Meta {
        key: u8,
        value: u8,
    },
    Checkpoint,
    DropCheckpoints,
    Crash,
    Kill,
    Close,
    Read {
        from: u8,
        len: u8,
        max: u16,
    },
}

/// An operation, and after how many changes of the device the power goes during it.
#[derive(Clone, Debug)]
struct Step {
    op: Op,
    power: Option<u8>,
    seed: u64,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (1..9u8, any::<u8>()).prop_map(|(count, size)| Op::Append { count, size }),
        6 => Just(Op::Sync),
        1 => Just(Op::Mark),
        3 => any::<u8>().prop_map(Op::Truncate),
        2 => any::<u8>().prop_map(Op::Purge),
        1 => any::<u8>().prop_map(Op::Reset),
        2 => (0..3u8, any::<u8>()).prop_map(|(key, value)| Op::Meta { key, value }),
        1 => Just(Op::Checkpoint),
        1 => Just(Op::DropCheckpoints),
        3 => Just(Op::Crash),
        1 => Just(Op::Kill),
        1 => Just(Op::Close),
        3 => (any::<u8>(), any::<u8>(), any::<u16>())
            .prop_map(|(from, len, max)| Op::Read { from, len, max }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    (
        op(),
        proptest::option::weighted(0.15, 1..14u8),
        any::<u64>(),
    )
        .prop_map(|(op, power, seed)| Step { op, power, seed })
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    purged: Option<RecordId>,
    /// All records since the last reset, also purged ones.
    records: Vec<Record>,
    /// Index of `records[0]`.
    start: u64,
    /// Records below this were written.
    written: u64,
    /// Records below this must survive a power loss.
    durable: u64,
    meta: BTreeMap<String, Bytes>,
    checkpoints: BTreeMap<u64, Bytes>,
    /// Checkpoints that were being removed: each may be there or not.
    going: Vec<u64>,
}

impl Model {
    fn next(&self) -> u64 {
        self.start + self.records.len() as u64
    }

    fn first(&self) -> u64 {
        self.purged.map_or(0, |p| p.index + 1)
    }

    fn truncate(&mut self, index: u64) {
        self.records.truncate((index - self.start) as usize);
        self.written = self.written.min(index);
        self.durable = self.durable.min(index);
    }

    fn record(&self, index: u64) -> &Record {
        &self.records[(index - self.start) as usize]
    }

    fn id_of(&self, index: u64) -> Option<RecordId> {
        if self.purged.is_some_and(|p| p.index == index) {
            return self.purged;
        }
        (index >= self.first() && index < self.next()).then(|| self.record(index).id())
    }

    /// A place between the first and the next index.
    fn place(&self, n: u8) -> u64 {
        self.first() + (self.next() - self.first()) * u64::from(n) / 255
    }
}

struct World {
    device: SimDevice,
    options: LogOptions,
    log: Option<Log>,
    model: Model,
    serial: u64,
    term: u64,
}

impl World {
    fn new(options: LogOptions, seed: u64) -> World {
        World {
            device: SimDevice::new(seed),
            options,
            log: None,
            model: Model::default(),
            serial: 0,
            term: 1,
        }
    }

    fn open(&mut self) -> Result<Recovered, LogError> {
        let (log, recovered) = Log::open(Arc::new(self.device.clone()), self.options.clone())?;
        self.log = Some(log);
        Ok(recovered)
    }

    fn records(&mut self, count: u8, size: u8) -> Vec<Record> {
        let next = self.model.next();
        (0..u64::from(count))
            .map(|n| {
                self.serial += 1;
                if self.serial.is_multiple_of(5) {
                    self.term += 1;
                }
                // Mostly small, some larger than a sector, few larger than a segment.
                let len = match size {
                    0..=99 => u64::from(size) + n,
                    100..=239 => u64::from(size) * 9 + n,
                    _ => 9000 + n,
                };
                let mut body = self.serial.to_le_bytes().repeat(len as usize / 8 + 1);
                body.truncate(len as usize);
                Record {
                    index: next + n,
                    term: self.term,
                    leader: self.term % 3,
                    body: body.into(),
                }
            })
            .collect()
    }

    /// Does one step. Returns the states that are allowed if the power went during it.
    fn apply(&mut self, op: &Op) -> (Result<(), LogError>, Vec<Model>) {
        let before = self.model.clone();
        let mut after = before.clone();
        let Some(log) = self.log.as_mut() else {
            return (Ok(()), vec![before]);
        };
        match op {
            Op::Append { count, size } => {
                let records = self.records(*count, *size);
                after.records.extend(records.iter().cloned());
                let Some(log) = self.log.as_mut() else {
                    return (Ok(()), vec![before]);
                };
                let result = log.append(records);
                self.model = after.clone();
                (result, vec![after])
            }
            Op::Sync => {
                let result = log.sync();
                after.written = after.next();
                if self.options.sync {
                    after.durable = after.next();
                }
                self.finish(result, vec![before], after)
            }
            Op::Mark => {
                let result = log.mark();
                self.finish(result, vec![before], after)
            }
            Op::Truncate(n) => {
                let index = before.place(*n);
                let result = log.truncate_from(index);
                after.truncate(index);
                let mut between = before;
                between.durable = between.durable.min(index);
                self.finish(result, vec![between], after)
            }
            Op::Purge(n) => {
                let place = before.place(*n);
                if place == before.first() {
                    return (Ok(()), vec![before]);
                }
                let result = log.purge_to(place - 1);
                after.purged = before.id_of(place - 1);
                after.written = after.next();
                after.durable = after.durable.max(place);
                if self.options.sync {
                    after.durable = after.next();
                }
                let mut between = after.clone();
                between.durable = before.durable.max(place);
                self.finish(result, vec![before, between], after)
            }
            Op::Reset(n) => {
                let id = (*n > 0).then(|| RecordId {
                    index: before.next() + u64::from(*n % 16),
                    term: self.term,
                    leader: 4,
                });
                let result = log.reset_to(id);
                after.purged = id;
                after.records.clear();
                after.start = after.first();
                after.written = after.start;
                after.durable = after.start;
                self.finish(result, vec![before, after.clone()], after)
            }
            Op::Meta { key, value } => {
                let (key, value) = (
                    format!("key-{key}"),
                    Bytes::from(vec![*value; usize::from(*value)]),
                );
                let result = log.save_meta(&key, value.clone());
                after.meta.insert(key, value);
                self.finish(result, vec![before, after.clone()], after)
            }
            Op::Checkpoint => {
                self.serial += 1;
                let body = Bytes::from(self.serial.to_le_bytes().repeat(200));
                let index = before.next();
                let result = log.checkpoints().save(index, &body);
                after.checkpoints.insert(index, body);
                self.finish(result, vec![before, after.clone()], after)
            }
            Op::DropCheckpoints => {
                let index = before.place(128);
                let result = log.checkpoints().drop_before(index);
                let mut between = before;
                between.going = between.checkpoints.range(..index).map(|c| *c.0).collect();
                after.checkpoints.retain(|n, _| *n >= index);
                self.finish(result, vec![between], after)
            }
            Op::Close => {
                let result = match self.log.take() {
                    Some(log) => log.close(),
                    None => Ok(()),
                };
                after.written = after.next();
                after.durable = after.next();
                if result.is_ok() {
                    self.model = after.clone();
                    match self.open() {
                        Ok(recovered) => {
                            assert!(recovered.closed_cleanly);
                            assert_eq!(recovered.torn, None);
                            (Ok(()), vec![after])
                        }
                        Err(e) => (Err(e), vec![after]),
                    }
                } else {
                    (result, vec![before])
                }
            }
            Op::Read { from, len, max } => {
                check_read(log, &before, *from, *len, *max);
                (Ok(()), vec![before])
            }
            Op::Crash | Op::Kill => (Ok(()), vec![before]),
        }
    }

    fn finish(
        &mut self,
        result: Result<(), LogError>,
        allowed: Vec<Model>,
        after: Model,
    ) -> (Result<(), LogError>, Vec<Model>) {
        if result.is_ok() {
            self.model = after.clone();
            return (result, vec![after]);
        }
        (result, allowed)
    }

    /// Reopens after a crash and checks that one of the allowed states is there.
    fn recover(&mut self, allowed: &[Model], killed: bool, context: &str) {
        let recovered = match self.open() {
            Ok(recovered) => recovered,
            Err(e) => panic!("{context}: a crash alone must not be refused: {e}"),
        };
        let Some(log) = self.log.as_ref() else {
            panic!("just opened")
        };
        let reader = log.reader();
        let mut why = String::new();
        let found = allowed.iter().find_map(|candidate| {
            let mut model = candidate.clone();
            let must = if killed { model.written } else { model.durable };
            let next = reader.next_index();
            if reader.last_purged() != model.purged || next < must || next > model.next() {
                why += &format!(
                    "\n purged {:?} next {next}, allowed purged {:?} {must}..={}",
                    reader.last_purged(),
                    model.purged,
                    model.next()
                );
                return None;
            }
            model.truncate(next);
            model.written = next;
            model.durable = next;
            let list = log.checkpoints().list().unwrap_or_default();
            for n in std::mem::take(&mut model.going) {
                if !list.contains(&n) {
                    model.checkpoints.remove(&n);
                }
            }
            match same(log, &model) {
                Ok(()) => Some(model),
                Err(e) => {
                    why += &e;
                    None
                }
            }
        });
        match found {
            Some(model) => {
                assert_eq!(recovered.last_purged, model.purged);
                assert_eq!(
                    recovered.last,
                    reader.last_index().and_then(|n| model.id_of(n))
                );
                assert_eq!(recovered.first, reader.first_index());
                assert_eq!(reader.durable_index(), model.next().checked_sub(1));
                self.model = model;
            }
            None => panic!("{context}: recovered {recovered:?}, which is none of:{why}"),
        }
    }

    fn run(&mut self, steps: &[Step]) {
        self.open().expect("an empty device opens");
        for (n, step) in steps.iter().enumerate() {
            let context = format!("step {n} {step:?}");
            if let Some(power) = step.power {
                self.device.power_off_after(u64::from(power));
            }
            let (result, allowed) = self.apply(&step.op);
            if self.device.is_off() {
                // The power may also go again while the log is being opened.
                self.log = None;
                self.device.crash(step.seed);
                for again in 0..step.seed % 3 {
                    self.device.power_off_after(1 + (step.seed >> 8) % 7);
                    let _ = self.open();
                    self.log = None;
                    self.device.crash(step.seed.rotate_left(again as u32 + 1));
                }
                self.recover(&allowed, false, &context);
                continue;
            }
            result.unwrap_or_else(|e| panic!("{context}: {e}"));
            if matches!(step.op, Op::Crash | Op::Kill) {
                self.log = None;
                let killed = matches!(step.op, Op::Kill);
                if killed {
                    self.device.kill();
                } else {
                    self.device.crash(step.seed);
                }
                self.recover(&allowed, killed, &context);
            } else if step.power.is_some() {
                // Disarm.
                self.device.power_off_after(u64::MAX);
            }
            if n % 8 == 0
                && let Some(log) = &self.log
            {
                same(log, &self.model).unwrap_or_else(|e| panic!("{context}: {e}"));
            }
        }
        if let Some(log) = &self.log {
            same(log, &self.model).unwrap_or_else(|e| panic!("at the end: {e}"));
        }
    }
}

/// Whether the log holds exactly what the model holds.
fn same(log: &Log, model: &Model) -> Result<(), String> {
    let reader = log.reader();
    if reader.next_index() != model.next() {
        return Err(format!(
            "\n next index {} instead of {}",
            reader.next_index(),
            model.next()
        ));
    }
    let first = model.first();
    let records = reader
        .read(first..u64::MAX, u64::MAX)
        .map_err(|e| format!("\n {e}"))?;
    let expected = &model.records[(first - model.start) as usize..];
    if records != expected {
        return Err(format!(
            "\n other records: {:?} instead of {:?}",
            records.iter().map(Record::id).collect::<Vec<_>>(),
            expected.iter().map(Record::id).collect::<Vec<_>>()
        ));
    }
    for index in first.saturating_sub(2)..model.next() + 2 {
        if reader.id_of(index) != model.id_of(index) {
            return Err(format!("\n other id at {index}"));
        }
    }
    for n in 0..3 {
        let key = format!("key-{n}");
        if log.load_meta(&key) != model.meta.get(&key).cloned() {
            return Err(format!("\n other value of {key}"));
        }
    }
    let found = log.checkpoints();
    let list = found.list().map_err(|e| e.to_string())?;
    if list != model.checkpoints.keys().copied().collect::<Vec<_>>() {
        return Err(format!("\n other checkpoints: {list:?}"));
    }
    for (index, body) in &model.checkpoints {
        if found.load(*index).map_err(|e| e.to_string())? != body {
            return Err(format!("\n other checkpoint {index}"));
        }
    }
    Ok(())
}

fn check_read(log: &Log, model: &Model, from: u8, len: u8, max: u16) {
    let from = model.place(from);
    let to = from + u64::from(len) / 4;
    let records = log
        .read(from..to, u64::from(max))
        .expect("what is there can be read");
    let mut expected = Vec::new();
    let mut bytes = 0;
    for index in from..to.min(model.next()) {
        let record = model.record(index).clone();
        bytes += record.body.len() as u64;
        if !expected.is_empty() && bytes > u64::from(max) {
            break;
        }
        expected.push(record);
    }
    assert_eq!(records, expected);
    if model.first() > 0 {
        let below = log.read(model.first() - 1..to, 1);
        assert!(matches!(below, Err(LogError::Purged { .. })), "{below:?}");
    }
}

fn options(sync: bool) -> LogOptions {
    LogOptions {
        segment_bytes: 4096 + 6000,
        sync,
        zero_ahead_bytes: 700,
        cache_bytes: 3000,
        identity: 0xd0,
        ..LogOptions::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 600,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn synced_records_survive_and_nothing_is_invented(
        steps in proptest::collection::vec(step(), 1..60),
        seed in any::<u64>(),
    ) {
        World::new(options(true), seed).run(&steps);
    }

    #[test]
    fn memory_mode_loses_only_a_tail(
        steps in proptest::collection::vec(step(), 1..60),
        seed in any::<u64>(),
    ) {
        World::new(options(false), seed).run(&steps);
    }
}

/// Every step at which the power can go during the operations that touch several files.
#[test]
fn a_crash_at_every_step_of_each_operation() {
    let ops = [
        Op::Sync,
        Op::Truncate(20),
        Op::Truncate(128),
        Op::Purge(200),
        Op::Purge(255),
        Op::Reset(0),
        Op::Reset(7),
        Op::Meta { key: 1, value: 9 },
        Op::Checkpoint,
        Op::Close,
    ];
    let mut crashes = 0;
    for op in ops {
        for power in 1..60 {
            let mut off = false;
            for seed in 0..24 {
                let mut world = World::new(options(true), seed);
                let fill = Step {
                    op: Op::Append {
                        count: 8,
                        size: 180,
                    },
                    power: None,
                    seed,
                };
                let sync = Step {
                    op: Op::Sync,
                    power: None,
                    seed,
                };
                world.run(&[
                    fill.clone(),
                    fill.clone(),
                    sync.clone(),
                    fill.clone(),
                    sync,
                    fill,
                ]);
                world.device.power_off_after(power);
                let (_, allowed) = world.apply(&op);
                if world.device.is_off() {
                    off = true;
                    crashes += 1;
                    world.log = None;
                    world.device.crash(seed * 31 + power);
                    world.recover(
                        &allowed,
                        false,
                        &format!("{op:?} power {power} seed {seed}"),
                    );
                }
            }
            if !off {
                break;
            }
        }
    }
    assert!(crashes > 1000, "{crashes}");
}
