//! The world of one run: machines, their processes, time, faults, and the end.
//!
//! Every process has a runtime of its own with a paused clock. A step gives
//! each of them, in order, one millisecond: its tasks run until all of them
//! wait, and its clock moves on. Only the network and the oracles are shared,
//! and what is sent in one step arrives in a later one. So a process can be
//! dropped in the middle of anything, or left without time, as with a signal.

mod directed;
mod force;
mod large;
mod watch;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::database::Image;
use crate::directed::Directed;
use crate::faults::{Fault, Health, deafen, next};
use crate::node::{Exit, Picture, Process, history};
use crate::oracle::{Oracle, Served, Violation};
use crate::plant::Plant;
use crate::rng::Rng;
use crate::shared::{Counts, Host, Settings, Shared, lock};
use crate::standstill::Standstill;
use crate::weights::Weights;
use force::Forcing;

/// A step, in microseconds.
const STEP_US: u64 = 1_000;
/// How long the cluster has to begin, to come back after the faults, and to
/// finish what is left.
const BOUND: Duration = Duration::from_secs(60);
/// How long a process may run whose log has failed.
const DOOMED: Duration = Duration::from_secs(3);
/// How often a process may go round in a step in which its clock stands still.
const TURNS: usize = 30;
/// Load after the faults, in which every node must get something done.
const AFTER: Duration = Duration::from_secs(2);
/// A leader gives a frame up that vanished on an open connection after 3 s. No
/// network does that, so nothing waits less long for the sake of it.
const VANISHED: Duration = Duration::from_secs(5);

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Decides everything.
    pub seed: u64,
    /// How many nodes.
    pub nodes: usize,
    /// Whether the last of them is a witness.
    pub witness: bool,
    /// Whether there are large transactions even if the seed says otherwise.
    pub large: bool,
    /// Whether members weigh other than 1 even if the seed says otherwise.
    pub weights: bool,
    /// Whether, instead of other faults, the leader hears nobody now and then.
    pub deaf: bool,
    /// The plan that takes the place of the random faults, if any.
    pub directed: Option<Directed>,
    /// For how long there are faults, in simulated time; behind a directed plan: none.
    pub faults_for: Duration,
    /// The fault to plant, if any.
    pub plant: Option<Plant>,
    /// Print every line of the trace.
    pub print: bool,
}

impl Config {
    /// The same with as many nodes as the seed says, with a witness or not.
    pub fn drawn(seed: u64) -> Self {
        let (nodes, witness) = match Rng::new(seed, &[0x5a9e]).below(8) {
            0..4 => (5, false),
            4 => (5, true),
            5 => (3, false),
            _ => (3, true),
        };
        Config {
            nodes,
            witness,
            ..Config::new(seed)
        }
    }

    /// Five nodes with data, 30 seconds of faults.
    pub fn new(seed: u64) -> Self {
        Config {
            seed,
            nodes: 5,
            witness: false,
            large: false,
            weights: false,
            deaf: false,
            directed: None,
            faults_for: Duration::from_secs(30),
            plant: None,
            print: false,
        }
    }
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The promise that was broken, if one was.
    pub violation: Option<Violation>,
    /// A hash over everything that happened.
    pub trace_hash: u64,
    /// How much happened.
    pub counts: Counts,
    /// How long it took until all was well again after the faults.
    pub convergence: Duration,
    /// The longest time that a majority was up and got nothing done.
    pub standstill: Duration,
    /// Simulated time, from beginning to end.
    pub simulated: Duration,
    /// The last lines of the trace.
    pub tail: Vec<String>,
}

/// A process and its clock.
struct Running {
    runtime: Runtime,
    process: Arc<Process>,
    /// Over without an exit: it panicked.
    life: JoinHandle<()>,
}

struct Machine {
    host: Arc<Host>,
    running: Option<Running>,
    births: u64,
    start_at_us: Option<u64>,
    paused_until_us: Option<u64>,
    /// How far its clock is to jump in its next step.
    jump: Duration,
    /// For how long its clock is to stand still.
    lag: Duration,
    /// Until when its disk is full; 0: it is not.
    full_until_us: u64,
    /// When and how it is to be killed, and for how long.
    kill_at_us: Option<(u64, bool, Duration)>,
    /// For how long it has run since its log failed.
    doomed: Duration,
    /// When it last had time.
    stepped_us: u64,
    /// How much faster than the world's its clock runs, in parts per million.
    drift_ppm: i64,
    drift: i64,
    /// Until when its disk is slow, and its database.
    slow_until_us: (u64, u64),
    /// Until when its disk may still be at what it began while it hung.
    hung_until_us: u64,
    /// It was asked to leave.
    leaves: bool,
    /// How long it stays away when it has left.
    away: Duration,
}

struct World {
    shared: Arc<Shared>,
    rng: Rng,
    machines: Vec<Machine>,
    /// When the present partition heals.
    heal_at_us: Option<u64>,
    slow_links: Vec<(u64, usize, usize)>,
    terms: u64,
    /// A forced recovery that is under way.
    forcing: Option<Forcing>,
    standstill: Standstill,
}

/// Runs one seed.
pub fn run(config: Config) -> Outcome {
    let mut world = World::new(config);
    let convergence = world.history(config);
    world.end(convergence)
}

impl World {
    fn new(config: Config) -> World {
        let mut settings = Settings::draw(config.seed, config.nodes, config.witness, config.large);
        // What a planted fault does is known from runs without.
        if config.plant.is_none() || config.weights {
            settings.weights = Weights::draw(config.seed, config.weights);
        }
        let shared = Shared::new(config.seed, settings, config.plant, config.print);
        let mut rng = Rng::new(config.seed, &[0x3021d]);
        let machines = (0..config.nodes)
            .map(|slot| Machine {
                host: Host::new(config.seed, slot),
                running: None,
                births: 0,
                start_at_us: Some(rng.range(0, 400_000)),
                paused_until_us: None,
                jump: Duration::ZERO,
                lag: Duration::ZERO,
                full_until_us: 0,
                kill_at_us: None,
                doomed: Duration::ZERO,
                stepped_us: 0,
                drift_ppm: rng.range(0, 4_000) as i64 - 2_000,
                drift: 0,
                slow_until_us: (0, 0),
                hung_until_us: 0,
                leaves: false,
                away: Duration::ZERO,
            })
            .collect();
        shared.note(
            None,
            format_args!("seed {} {:?}", config.seed, shared.settings),
        );
        World {
            shared,
            rng,
            machines,
            heal_at_us: None,
            slow_links: Vec::new(),
            terms: 0,
            forcing: None,
            standstill: Standstill::default(),
        }
    }

    /// The whole run; answers how long it took to come back after the faults.
    fn history(&mut self, config: Config) -> Duration {
        if !self.until_settled("after the start") {
            return Duration::ZERO;
        }
        if let Some(plan) = config.directed {
            self.direct(plan);
            self.run_for(config.faults_for);
            return self.aftermath();
        }
        let mut next_fault_us = self.now();
        let end_us = self.now() + config.faults_for.as_micros() as u64;
        let mut aim = Rng::new(config.seed, &[0x1a49e, 1]);
        let wanted = config.plant.map_or(&[][..], Plant::aim);
        while self.now() < end_us && !self.violated() {
            self.aim_at_large(&mut aim);
            if self.now() >= next_fault_us {
                let health = self.health();
                let (fault, pause) = match config.deaf {
                    true => deafen(self.leader(), health.nodes),
                    false => next(&mut self.rng, health, wanted),
                };
                if let Some(fault) = fault.filter(|f| self.may_be(f)) {
                    self.shared.note(None, format_args!("{fault:?}"));
                    self.inflict(fault);
                }
                next_fault_us = self.now() + pause.as_micros() as u64;
            }
            self.step();
        }
        self.finish_forcing();
        self.aftermath()
    }

    /// Everybody comes back, and serves; answers how long that took.
    fn aftermath(&mut self) -> Duration {
        if self.violated() {
            return Duration::ZERO;
        }
        let healed_us = self.now();
        self.heal_all();
        let before = self.served();
        let mut converged = Duration::ZERO;
        if self.until_settled("after the faults") {
            converged = Duration::from_micros(self.now() - healed_us);
        }
        self.run_for(AFTER);
        for _ in 0..VANISHED.as_secs() {
            if self.violated() || self.without_service(&before).is_empty() {
                break;
            }
            self.run_for(Duration::from_secs(1));
        }
        self.shared.clients_on.store(false, Ordering::Relaxed);
        self.standstill.forget();
        let without = self.without_service(&before);
        if !self.violated() && !without.is_empty() {
            let what = format!("after the faults {}", without.join(", "));
            self.shared.oracles().fire(Oracle::Liveness, what);
        }
        if self.until_settled("after the load") {
            self.compare();
        }
        converged
    }

    /// What the clients of each node got so far.
    fn served(&self) -> Vec<Served> {
        let oracles = self.shared.oracles();
        (0..self.machines.len())
            .map(|slot| oracles.served(slot))
            .collect()
    }

    /// The nodes with data that have acknowledged nothing, or answered no read of those asked, since `before`.
    fn without_service(&self, before: &[Served]) -> Vec<String> {
        let now = self.served();
        let mut without = Vec::new();
        for (slot, (now, before)) in now.iter().zip(before).enumerate() {
            if self.shared.settings.is_witness(slot) {
                continue;
            }
            if now.writes == before.writes {
                without.push(format!("n{slot} acknowledged nothing"));
            }
            if now.reads == before.reads && now.asked > before.asked {
                without.push(format!("n{slot} answered no read"));
            }
        }
        without
    }

    fn health(&self) -> Health {
        let whole = self.settled().is_ok();
        if whole {
            self.shared.wiped.store(false, Ordering::Relaxed);
        }
        Health {
            nodes: self.machines.len(),
            running: self.machines.iter().filter(|m| m.running.is_some()).count(),
            whole,
            witness: self.shared.settings.witness,
        }
    }

    fn now(&self) -> u64 {
        self.shared.now_us()
    }

    fn violated(&self) -> bool {
        self.shared.oracles().violation().is_some()
    }

    fn run_for(&mut self, for_: Duration) {
        let end_us = self.now() + for_.as_micros() as u64;
        while self.now() < end_us && !self.violated() {
            self.step();
        }
    }

    /// One millisecond for everybody.
    fn step(&mut self) {
        let now_us = self.now() + STEP_US;
        self.shared.set_now_us(now_us);
        self.shared.net.advance(now_us);
        self.undo(now_us);
        for slot in 0..self.machines.len() {
            self.start_if_due(slot, now_us);
            self.machines[slot].step(now_us);
            self.watch_disk(slot);
            self.bury(slot, now_us);
        }
        self.drive_forcing();
        if now_us.is_multiple_of(50_000) {
            self.watch_elections();
            self.watch_standstill();
        }
    }

    /// Ends the faults whose time has come.
    fn undo(&mut self, now_us: u64) {
        if self.heal_at_us.is_some_and(|at| now_us >= at) {
            self.heal_at_us = None;
            self.shared.note(None, format_args!("heals"));
            self.shared.net.heal();
        }
        for m in &mut self.machines {
            if m.slow_until_us.0 > 0 && now_us >= m.slow_until_us.0 {
                m.slow_until_us.0 = 0;
                m.host.speed.set_extra(Duration::ZERO);
            }
            if m.hung_until_us > 0 && now_us >= m.hung_until_us {
                m.hung_until_us = 0;
            }
            if m.full_until_us > 0 && now_us >= m.full_until_us {
                m.full_until_us = 0;
                m.host.has_room();
            }
            if m.slow_until_us.1 > 0 && now_us >= m.slow_until_us.1 {
                m.slow_until_us.1 = 0;
                m.host.applying.set_extra(Duration::ZERO);
            }
        }
        for slot in 0..self.machines.len() {
            if let Some((at, power, down)) = self.machines[slot].kill_at_us
                && now_us >= at
            {
                self.machines[slot].kill_at_us = None;
                self.crash(slot, power, down);
            }
        }
        let net = &self.shared.net;
        self.slow_links.retain(|&(until_us, from, to)| {
            if now_us >= until_us {
                net.slow(from, to, Duration::ZERO);
            }
            now_us < until_us
        });
    }

    fn start_if_due(&mut self, slot: usize, now_us: u64) {
        let m = &mut self.machines[slot];
        if m.running.is_some() || m.start_at_us.is_none_or(|at| now_us < at) {
            return;
        }
        m.start_at_us = None;
        m.births += 1;
        m.stepped_us = now_us;
        m.paused_until_us = None;
        m.host.disk_failed.store(false, Ordering::Relaxed);
        (m.jump, m.lag) = (Duration::ZERO, Duration::ZERO);
        self.shared.net.set_started(slot, true);
        self.shared
            .note(Some(slot), format_args!("process {} starts", m.births));
        let process = Process::new(
            self.shared.clone(),
            m.host.clone(),
            m.births,
            slot == 0 && m.births == 1,
        );
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        match runtime {
            Ok(runtime) => {
                let life = runtime.spawn(process.clone().live());
                m.running = Some(Running {
                    runtime,
                    process,
                    life,
                });
            }
            Err(e) => self.shared.unsound(slot, format_args!("no runtime: {e}")),
        }
    }

    /// A process that has ended by itself is started again later.
    fn bury(&mut self, slot: usize, now_us: u64) {
        let exit = self.machines[slot]
            .running
            .as_ref()
            .and_then(|r| r.process.exit());
        let running = self.machines[slot].running.as_ref();
        if exit.is_none() && running.is_some_and(|r| r.life.is_finished()) {
            self.shared
                .unsound(slot, format_args!("the process panicked"));
            self.kill(slot, true);
            return;
        }
        let Some(exit) = exit else { return };
        let again = match exit {
            Exit::Died => self.rng.ms(50, 1_500),
            Exit::Left => self.machines[slot].away,
        };
        if exit == Exit::Left {
            self.shared.count(|c| c.leaves += 1);
        }
        // What it had not written is lost with it, except if it left.
        self.kill(slot, exit == Exit::Died);
        self.machines[slot].start_at_us = Some(now_us + again.as_micros() as u64);
    }

    /// A node whose log has failed must leave, and write no more of it.
    fn watch_disk(&mut self, slot: usize) {
        let m = &mut self.machines[slot];
        let truth = lock(&m.host.truth).clone();
        if m.running.is_none() || !truth.failed() {
            m.doomed = Duration::ZERO;
            return;
        }
        if m.paused_until_us.is_none() {
            m.doomed += Duration::from_micros(STEP_US);
        }
        if truth.went_on() {
            let what = format!("the log of node {slot} took more after a failed write or sync");
            self.shared.oracles().fire(Oracle::Durable, what);
        } else if m.doomed > DOOMED {
            let what = format!("node {slot} goes on {DOOMED:?} after its log has failed");
            self.shared.oracles().fire(Oracle::Durable, what);
        }
    }

    /// A process dies, if there is one, and is started again after `down`.
    fn crash(&mut self, slot: usize, power: bool, down: Duration) {
        if self.machines[slot].running.is_some() {
            self.shared.count(|c| c.crashes += 1);
            self.kill(slot, power);
            let at_us = self.now() + down.as_micros() as u64;
            self.machines[slot].start_at_us = Some(at_us);
        }
    }

    /// A process dies and its disks are emptied.
    fn wipe(&mut self, slot: usize, down: Duration) {
        self.shared.wiped.store(true, Ordering::Relaxed);
        self.shared.count(|c| c.crashes += 1);
        self.kill(slot, true);
        let at_us = self.now() + down.as_micros() as u64;
        let m = &mut self.machines[slot];
        m.full_until_us = 0;
        m.host = Host::new(self.rng.u64(), slot);
        m.start_at_us = Some(at_us);
    }

    fn kill(&mut self, slot: usize, power: bool) {
        let m = &mut self.machines[slot];
        m.paused_until_us = None;
        m.leaves = false;
        let Some(running) = m.running.take() else {
            return;
        };
        running.process.crash(power);
        self.shared.net.set_started(slot, false);
        // Its tasks vanish where they stand.
        drop(running.runtime);
    }

    /// A node is asked to leave, and stays away for `away`.
    fn leave(&mut self, slot: usize, away: Duration) {
        let m = &mut self.machines[slot];
        if let Some(running) = m.running.as_ref().filter(|_| !m.leaves) {
            running.process.leave();
            m.leaves = true;
            m.away = away;
        }
    }

    fn inflict(&mut self, fault: Fault) {
        let now_us = self.now();
        let after = |d: Duration| now_us + d.as_micros() as u64;
        match fault {
            Fault::Crash { slots, power, down } => {
                let all = slots.len() == self.machines.len();
                self.shared.count(|c| c.outages += u64::from(all));
                for (slot, down) in slots.into_iter().zip(down) {
                    self.crash(slot, power, down);
                }
            }
            Fault::Wipe {
                slot,
                foreign,
                down,
            } => {
                let at = self.machines[slot].host.database().now.position.seqno;
                let by = self.machines.iter().find_map(Machine::leads);
                self.wipe(slot, down);
                if foreign {
                    let seqno = (at - self.rng.range(0, 20) as i64).max(0);
                    let mut image = Image::foreign(self.rng.u64(), seqno);
                    // Every other time as a copy of a member has it that ran by itself.
                    if let Some(by) = by.filter(|_| down.as_millis() % 2 == 0) {
                        image.position.history = history(self.shared.seed);
                        self.machines[slot].host.claims(by, image.chain | 1);
                    }
                    self.machines[slot].host.database().replace(image);
                }
            }
            Fault::ClockJump { slot, by } => {
                let m = &mut self.machines[slot];
                if m.running.is_some() && m.paused_until_us.is_none() {
                    self.shared.count(|c| c.jumps += 1);
                    m.jump = by;
                }
            }
            Fault::ClockBack { slot, by } => {
                let m = &mut self.machines[slot];
                if m.running.is_some() && m.paused_until_us.is_none() {
                    self.shared.count(|c| c.backs += 1);
                    m.lag += by;
                }
            }
            Fault::Outage { power, down } => {
                self.shared.count(|c| {
                    c.outages += 1;
                    c.absences += 1;
                });
                self.calm();
                for (slot, down) in down.into_iter().enumerate() {
                    self.crash(slot, power, down);
                    // Also if it was down already.
                    let at_us = after(down);
                    self.machines[slot].start_at_us = Some(at_us);
                }
            }
            Fault::Force {
                slot,
                apart,
                power,
                down,
                victim,
                hurt,
            } => self.force(slot, apart, (power, down, (victim, hurt))),
            Fault::Pause { slot, for_ } => {
                let m = &mut self.machines[slot];
                if m.running.is_some() && m.paused_until_us.is_none() {
                    self.shared.count(|c| c.pauses += 1);
                    m.paused_until_us = Some(after(for_));
                }
            }
            Fault::Partition { cuts, for_ } => {
                if self.heal_at_us.is_none() && !cuts.is_empty() {
                    self.shared.count(|c| c.partitions += 1);
                    for (from, to, how) in cuts {
                        self.shared.net.cut(from, to, how);
                    }
                    self.heal_at_us = Some(after(for_));
                }
            }
            Fault::Break { a, b, lane } => {
                let lane = lane.map(|l| dromon_order::Lane::ALL[l]);
                self.shared.net.break_link(a, b, lane);
            }
            Fault::SlowDisk { slot, extra, for_ } => {
                let m = &mut self.machines[slot];
                m.host.speed.set_extra(extra);
                m.slow_until_us.0 = after(for_);
                if extra >= Duration::from_secs(1) {
                    self.shared.count(|c| c.hangs += 1);
                    m.hung_until_us = m.hung_until_us.max(after(for_ + extra));
                }
            }
            Fault::SlowApply { slot, extra, for_ } => {
                let m = &mut self.machines[slot];
                m.host.applying.set_extra(extra);
                m.slow_until_us.1 = after(for_);
            }
            Fault::SlowLink {
                from,
                to,
                extra,
                for_,
            } => {
                self.shared.net.slow(from, to, extra);
                self.slow_links.push((after(for_), from, to));
            }
            Fault::DiskError { slot, nth, sync } => {
                let m = &self.machines[slot];
                if m.running.is_some() {
                    self.shared.count(|c| c.disk_errors += 1);
                    m.host.disk_failed.store(true, Ordering::Relaxed);
                    let kind = std::io::ErrorKind::Other;
                    if sync {
                        m.host.device.fail_sync(nth, kind);
                    } else {
                        m.host.device.fail_write(nth, kind);
                    }
                }
            }
            Fault::FullDisk { slot, for_ } => {
                let m = &mut self.machines[slot];
                if m.full_until_us == 0 {
                    self.shared.count(|c| c.disk_errors += 1);
                    m.full_until_us = after(for_);
                    m.host.disk_full.store(true, Ordering::Relaxed);
                    m.host.device.set_capacity(Some(0));
                }
            }
            Fault::ChangeAndCrash {
                slot,
                wipe,
                down,
                victim,
                after: later,
                power,
                victim_down,
            } => {
                self.shared.count(|c| c.changes += 1);
                let at_us = if wipe {
                    self.wipe(slot, down);
                    after(down + later)
                } else {
                    self.leave(slot, down);
                    after(later)
                };
                self.machines[victim].kill_at_us = Some((at_us, power, victim_down));
            }
            Fault::Leave { slot, down } => self.leave(slot, down),
        }
    }

    /// What goes on by itself is over: networks and disks work.
    fn calm(&mut self) {
        self.heal_at_us = None;
        self.shared.net.heal();
        for (_, from, to) in std::mem::take(&mut self.slow_links) {
            self.shared.net.slow(from, to, Duration::ZERO);
        }
        for m in &mut self.machines {
            m.host.speed.set_extra(Duration::ZERO);
            m.host.applying.set_extra(Duration::ZERO);
            m.host.has_room();
            (m.full_until_us, m.kill_at_us) = (0, None);
            m.slow_until_us = (0, 0);
        }
    }

    /// The faults are over: everybody runs, everybody can talk.
    fn heal_all(&mut self) {
        self.shared.note(None, format_args!("the faults are over"));
        self.calm();
        let soon_us = self.now() + 200_000;
        for m in &mut self.machines {
            m.paused_until_us = m.paused_until_us.map(|at| at.min(soon_us));
            m.start_at_us = m.start_at_us.map(|at| at.min(soon_us));
            m.away = Duration::from_millis(100);
        }
    }

    fn pictures(&self) -> Vec<Option<Picture>> {
        self.machines
            .iter()
            .map(|m| {
                let r = m.running.as_ref()?;
                let _inside = r.runtime.enter();
                r.process.picture()
            })
            .collect()
    }

    /// Whether all are synced members of one cluster, at one position once the
    /// load is off; else what is missing.
    fn settled(&self) -> Result<i64, String> {
        let loaded = self.shared.clients_on.load(Ordering::Relaxed);
        let mut at = None;
        let mut missing = Vec::new();
        for (slot, picture) in self.pictures().into_iter().enumerate() {
            let paused = self.machines[slot].paused_until_us.is_some();
            let Some(p) = picture else {
                missing.push(format!("n{slot} does not run"));
                continue;
            };
            let same = *at.get_or_insert(p.position.seqno) == p.position.seqno;
            let well = if loaded { p.serves } else { p.settled && same };
            if !well || p.members != self.machines.len() || paused {
                missing.push(format!("n{slot} {}", p.text));
            }
        }
        match (missing.is_empty(), at) {
            (true, Some(at)) => Ok(at),
            _ => Err(missing.join("\n")),
        }
    }

    fn until_settled(&mut self, when: &str) -> bool {
        let end_us = self.now() + BOUND.as_micros() as u64;
        while !self.violated() {
            for _ in 0..20 {
                self.step();
            }
            match self.settled() {
                Ok(_) => return true,
                Err(missing) if self.now() >= end_us => {
                    let what = format!("{when}, {BOUND:?} were not enough:\n{missing}");
                    self.shared.oracles().fire(Oracle::Liveness, what);
                }
                Err(_) => {}
            }
        }
        false
    }

    /// Where the newest leader is.
    fn leader(&self) -> usize {
        let pictures = self.pictures().into_iter().enumerate();
        let leads = pictures.filter_map(|(slot, p)| Some((p?.leads?.term, slot)));
        leads.max().map_or(0, |(_, slot)| slot)
    }

    fn watch_elections(&mut self) {
        for p in self.pictures().into_iter().flatten() {
            if let Some(by) = p.leads
                && by.term > self.terms
            {
                self.terms = by.term;
                self.shared.count(|c| c.elections += 1);
            }
        }
    }

    /// The last comparison of all.
    fn compare(&mut self) {
        let Ok(at) = self.settled() else { return };
        let databases: Vec<_> = self
            .machines
            .iter()
            .filter(|m| !self.shared.settings.is_witness(m.host.slot))
            .map(|m| (m.host.slot, m.host.database().now.rows.clone()))
            .collect();
        for m in &self.machines {
            let uncommitted = m.host.database().now.uncommitted.clone();
            let mut oracles = self.shared.oracles();
            oracles.uncommitted(m.host.slot, "in the end", &uncommitted, |_| false);
        }
        self.shared.oracles().finish(at, &databases);
    }

    fn end(mut self, convergence: Duration) -> Outcome {
        let violation = self.shared.oracles().violation().cloned();
        if let Some(v) = &violation {
            self.shared.note(None, format_args!("VIOLATION {v}"));
        }
        self.shared.count(|c| {
            c.breaks = self.shared.net.stats().breaks;
        });
        let (entries, acked, given_up, large) = {
            let o = self.shared.oracles();
            let (entries, acked) = (o.entries() as u64, o.acked_count() as u64);
            (entries, acked, o.given_up(), o.large())
        };
        self.shared.count(|c| {
            (c.entries, c.acked, c.given_up) = (entries, acked, given_up);
            (c.large, c.large_committed) = (large.begun, large.committed);
            c.large_rolled_back = large.rolled_back;
        });
        let (trace_hash, tail) = {
            let trace = self.shared.trace();
            (trace.hash(), trace.tail())
        };
        let counts = self.shared.counts();
        let simulated = Duration::from_micros(self.now());
        for slot in 0..self.machines.len() {
            self.kill(slot, false);
        }
        Outcome {
            violation,
            trace_hash,
            counts,
            convergence,
            standstill: self.standstill.worst(),
            simulated,
            tail,
        }
    }
}

impl Machine {
    /// The term in which its node leads, if it does.
    fn leads(&self) -> Option<dromon_order::Leadership> {
        self.running.as_ref()?.process.picture()?.leads
    }

    /// Gives the process its time, with what it missed while it was paused.
    fn step(&mut self, now_us: u64) {
        let Some(running) = &self.running else {
            return;
        };
        if self.paused_until_us.is_some_and(|until| now_us < until) {
            return;
        }
        let missed = now_us - self.stepped_us;
        self.stepped_us = now_us;
        if self.paused_until_us.take().is_some() {
            let jump = Duration::from_micros(missed.saturating_sub(STEP_US));
            running.runtime.block_on(tokio::time::advance(jump));
        }
        if !self.jump.is_zero() {
            let jump = std::mem::take(&mut self.jump);
            running.runtime.block_on(tokio::time::advance(jump));
        }
        if !self.lag.is_zero() {
            self.lag = self.lag.saturating_sub(Duration::from_micros(STEP_US));
            return running.runtime.block_on(async {
                for _ in 0..TURNS {
                    tokio::task::yield_now().await;
                }
            });
        }
        // A millionth of a step at a time; the clock knows whole milliseconds.
        self.drift += self.drift_ppm;
        let extra = self.drift / 1_000_000;
        self.drift -= extra * 1_000_000;
        let ms = (1 + extra) as u64;
        if ms > 0 {
            let pause = async { tokio::time::sleep(Duration::from_millis(ms)).await };
            running.runtime.block_on(pause);
        }
    }
}
