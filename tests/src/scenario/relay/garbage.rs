//! Garbage from a primary and from replicas: whoever gets it says so, takes little memory, and has
//! in the end what the primary has.
//!
//! ```text
//!   primary ──> middle ──┬─> relay ───> replica            compared in the end
//!                        └─> dromon replica ──> target     compared in the end
//!                            relay <─── middle <── victim, clients: not compared
//! ```

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_load::rng::Rng;
use dromon_sandbox::mysql::prelude::Queryable;
use dromon_sandbox::mysql::{Conn, OptsBuilder};

use super::plain::{Load, PASSWORD, Relay, Server, TABLES, USER, free_port};
use super::{equal, place, same};
use crate::harness::Case;
use crate::scenario::replica::{self, Replica};

/// The middle says what it hears.
const HONEST: u8 = 0;
/// After a few messages it says something else, to the end of the connection.
const LIES: u8 = 1;
/// It changes bytes here and there once events flow.
const SPOILS: u8 = 2;

/// Sent at most by an endless lie.
const ENDLESS: usize = 64 << 20;
/// For so long at most.
const ENDLESS_FOR: Duration = Duration::from_secs(4);
/// What a process may take: a few times an endless lie, as such an event is held whole.
const MEMORY_KIB: u64 = 400 << 10;
/// Of a binlog dump, by position and by a replica's registration.
const DUMP: u8 = 0x12;
/// One in so many pieces of the stream is spoilt.
const SPOILT_EACH: u64 = 40;

/// What lies are made of.
const KINDS: [&str; 8] = [
    "noise",
    "endless noise",
    "endless packet",
    "empty packets",
    "packets of noise",
    "silence",
    "another protocol",
    "an error with control characters",
];

/// Which side's words are changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Server,
    Client,
}

/// Somebody between two who speak the client/server protocol.
struct Middle {
    port: u16,
    mode: Arc<AtomicU8>,
    stop: Arc<AtomicBool>,
    told: Arc<Told>,
}

/// What was done.
#[derive(Default)]
struct Told {
    before_events: AtomicU64,
    amid_events: AtomicU64,
    spoilt: AtomicU64,
    kinds: Mutex<[u64; KINDS.len()]>,
}

impl Middle {
    fn start(upstream: u16, side: Side, seed: u64) -> anyhow::Result<Middle> {
        let port = free_port()?;
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let middle = Middle {
            port,
            mode: Arc::default(),
            stop: Arc::default(),
            told: Arc::default(),
        };
        let (mode, stop, told) = (
            Arc::clone(&middle.mode),
            Arc::clone(&middle.stop),
            Arc::clone(&middle.told),
        );
        thread::spawn(move || {
            for (n, client) in listener.incoming().enumerate() {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                let Ok(client) = client else { continue };
                let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)) else {
                    continue;
                };
                let talk = Talk {
                    mode: Arc::clone(&mode),
                    told: Arc::clone(&told),
                    events: Arc::default(),
                    dice: Rng::new(seed.wrapping_add(n as u64)),
                };
                // Both ends are closed when either is, so these threads end.
                let _ = talk.begin(client, server, side);
            }
        });
        Ok(middle)
    }

    fn set(&self, mode: u8) {
        self.mode.store(mode, Ordering::Release);
    }

    fn lies(&self) -> u64 {
        let told = &self.told;
        told.before_events.load(Ordering::Relaxed) + told.amid_events.load(Ordering::Relaxed)
    }

    fn kinds(&self) -> [u64; KINDS.len()] {
        *self
            .told
            .kinds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Middle {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes who accepts.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// One connection through the middle.
struct Talk {
    mode: Arc<AtomicU8>,
    told: Arc<Told>,
    /// Whether events were asked for.
    events: Arc<AtomicBool>,
    dice: Rng,
}

impl Talk {
    fn begin(self, client: TcpStream, server: TcpStream, side: Side) -> std::io::Result<()> {
        for socket in [&client, &server] {
            socket.set_nodelay(true)?;
            socket.set_write_timeout(Some(Duration::from_secs(5)))?;
        }
        let (from_client, to_client) = (client.try_clone()?, client);
        let (from_server, to_server) = (server.try_clone()?, server);
        let events = Arc::clone(&self.events);
        let (changed, plain) = match side {
            Side::Server => ((from_server, to_client), (from_client, to_server)),
            Side::Client => ((from_client, to_server), (from_server, to_client)),
        };
        thread::spawn(move || {
            let (from, to) = plain;
            pass_on(from, to, &events);
        });
        thread::spawn(move || self.change(changed.0, changed.1));
        Ok(())
    }

    /// Passes on, and changes what the mode says. Ends with the connection.
    fn change(mut self, mut from: TcpStream, mut to: TcpStream) {
        let mut buf = vec![0; 16 << 10];
        let mut honest = self.dice.below(13);
        while let Ok(n @ 1..) = from.read(&mut buf) {
            let mut chunk = buf[..n].to_vec();
            watch_for_dump(&chunk, &self.events);
            match self.mode.load(Ordering::Acquire) {
                LIES if honest == 0 => {
                    let sequence = chunk.get(3).copied().unwrap_or(0);
                    self.lie(&mut to, &mut from, sequence);
                    break;
                }
                LIES => honest -= 1,
                SPOILS
                    if self.events.load(Ordering::Acquire) && self.dice.below(SPOILT_EACH) == 0 =>
                {
                    self.spoil(&mut chunk);
                }
                _ => {}
            }
            if to.write_all(&chunk).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }

    fn spoil(&mut self, chunk: &mut Vec<u8>) {
        self.told.spoilt.fetch_add(1, Ordering::Relaxed);
        let at = self.dice.below(chunk.len() as u64) as usize;
        let some = 1 + self.dice.below(40) as usize;
        match self.dice.below(5) {
            0 => chunk[at] ^= 1 << self.dice.below(8),
            1 => {
                chunk.drain(at..(at + some).min(chunk.len()));
            }
            2 => {
                let noise = self.noise(some);
                chunk.splice(at..at, noise);
            }
            3 => chunk.extend_from_within(at..),
            _ => {
                let end = (at + some).min(chunk.len());
                let noise = self.noise(end - at);
                chunk[at..end].copy_from_slice(&noise);
            }
        }
    }

    fn noise(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.dice.below(256) as u8).collect()
    }

    /// Says something else, for as long as it is listened to, within limits.
    fn lie(&mut self, to: &mut TcpStream, from: &mut TcpStream, mut sequence: u8) {
        let told = match self.events.load(Ordering::Acquire) {
            true => &self.told.amid_events,
            false => &self.told.before_events,
        };
        told.fetch_add(1, Ordering::Relaxed);
        let kind = self.dice.below(KINDS.len() as u64) as usize;
        self.told
            .kinds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)[kind] += 1;
        // What is still said to it is not heard.
        let _ = from.shutdown(Shutdown::Read);
        let begin = Instant::now();
        let mut sent = 0;
        let mut say = |bytes: &[u8]| {
            sent += bytes.len();
            to.write_all(bytes).is_ok() && sent < ENDLESS && begin.elapsed() < ENDLESS_FOR
        };
        let noise = self.noise(64 << 10);
        match kind {
            0 => {
                say(&noise);
            }
            1 => while say(&noise) {},
            2 => loop {
                let head = [0xff, 0xff, 0xff, sequence];
                sequence = sequence.wrapping_add(1);
                let pieces = 0xff_ffff / noise.len();
                let rest = 0xff_ffff % noise.len();
                if !say(&head) || !(0..pieces).all(|_| say(&noise)) || !say(&noise[..rest]) {
                    break;
                }
            },
            3 => loop {
                let mut many = Vec::new();
                for _ in 0..1000 {
                    many.extend([0, 0, 0, sequence]);
                    sequence = sequence.wrapping_add(1);
                }
                if !say(&many) {
                    break;
                }
            },
            4 => loop {
                let mut many = Vec::new();
                for piece in noise.chunks(37) {
                    many.extend([piece.len() as u8, 0, 0, sequence]);
                    many.extend(piece);
                    sequence = sequence.wrapping_add(1);
                }
                if !say(&many) {
                    break;
                }
            },
            5 => thread::sleep(Duration::from_secs(3)),
            6 => {
                say(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
            }
            _ => {
                // A server that shuts down (1053): to be tried again.
                let mut packet = vec![0xff, 0x1d, 0x04, b'#'];
                packet.extend(b"HY000\x1b[2J\r\n\0 go away \x07");
                packet.extend(&noise[..100]);
                let mut all = vec![packet.len() as u8, 0, 0, sequence];
                all.extend(packet);
                say(&all);
            }
        }
    }
}

fn watch_for_dump(chunk: &[u8], events: &AtomicBool) {
    // A command begins anew with number 0.
    if chunk.len() > 4 && chunk[3] == 0 && chunk[4] == DUMP {
        events.store(true, Ordering::Release);
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, events: &AtomicBool) {
    let mut buf = vec![0; 16 << 10];
    while let Ok(n @ 1..) = from.read(&mut buf) {
        watch_for_dump(&buf[..n], events);
        if to.write_all(&buf[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// The most memory that a process has had, in KiB.
fn most_memory(pid: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} is gone"))?;
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .with_context(|| format!("process {pid} has ended"))?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}

/// What a log says, without times and numbers, so that the same is counted once.
fn complaints(path: &std::path::Path) -> anyhow::Result<Vec<String>> {
    let text = String::from_utf8_lossy(&fs::read(path)?).into_owned();
    ensure!(
        !text.contains("panicked"),
        "{} speaks of a panic",
        path.display()
    );
    if let Some(line) = text
        .lines()
        .find(|l| l.chars().any(|c| c.is_control() && c != '\t'))
    {
        anyhow::bail!("{}: control characters in {line:?}", path.display());
    }
    let mut kinds: Vec<String> = text
        .lines()
        .map(|l| {
            let l: String = l
                .chars()
                .filter(char::is_ascii_alphabetic)
                .take(60)
                .collect();
            l
        })
        .collect();
    kinds.sort();
    kinds.dedup();
    Ok(kinds)
}

/// Clients of a relay whose words are changed on the way; until told to stop.
fn clients(port: u16, stop: &Arc<AtomicBool>) -> Vec<thread::JoinHandle<()>> {
    (0..4)
        .map(|_| {
            let stop = Arc::clone(stop);
            thread::spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    let limit = Some(Duration::from_secs(2));
                    let options = OptsBuilder::new()
                        .ip_or_hostname(Some("127.0.0.1"))
                        .tcp_port(port)
                        .user(Some(USER))
                        .pass(Some(PASSWORD))
                        .read_timeout(limit)
                        .write_timeout(limit)
                        .prefer_socket(false);
                    // Most of these fail: that is the point.
                    if let Ok(mut conn) = Conn::new(options) {
                        for sql in ["SELECT @@gtid_binlog_pos", "SHOW BINARY LOGS"] {
                            let _ = conn.query_drop(sql);
                        }
                    }
                    thread::sleep(Duration::from_millis(20));
                }
            })
        })
        .collect()
}

/// Waits until so many lies were told.
fn told(middles: &[(&Middle, u64)], limit: Duration) -> anyhow::Result<()> {
    let until = Instant::now() + limit;
    while middles.iter().any(|(m, least)| m.lies() < *least) {
        let now: Vec<u64> = middles.iter().map(|(m, _)| m.lies()).collect();
        ensure!(
            Instant::now() < until,
            "only {now:?} lies in {limit:?}: somebody does not come back"
        );
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

pub fn run(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let seed = case.options.seed;
    let primary = Server::new(&dir, "primary", 1, &["--sync-binlog=0"])?;
    let target = Server::new(&dir, "target", 2, &[])?;
    let follower = Server::new(&dir, "follower", 3, &[])?;
    let victim = Server::new(&dir, "victim", 4, &[])?;
    replica::grant(&target)?;
    Load::prepare(&primary)?;
    let (for_relay, for_replica) = (
        Middle::start(primary.port, Side::Server, seed)?,
        Middle::start(primary.port, Side::Server, seed ^ 0x55)?,
    );
    let quick = ["heartbeat=200ms", "dead_after=1s", "backoff_max=200ms"];
    let more = [&quick[..], &["file_size=4M", "memory=4M"]].concat();
    let mut relay = Relay::new(&dir, "relay", 9, for_relay.port, &more)?;
    relay.start()?;
    let of_relay = relay.pid()?;
    let more = [&quick[..], &["threads=4"]].concat();
    let mut applier = Replica::new(&dir, for_replica.port, target.port, &more)?;
    applier.start(&[])?;
    let of_applier = applier.pid()?;
    let from_replicas = Middle::start(relay.port, Side::Client, seed ^ 0xaa)?;
    follower.follow(relay.port)?;
    victim.follow(from_replicas.port)?;

    let load = Load::paced(&primary, 2, Duration::from_millis(20));
    let stop = Arc::new(AtomicBool::new(false));
    let strangers = clients(from_replicas.port, &stop);
    let seconds = case.options.seconds;
    let middles = [&for_relay, &for_replica, &from_replicas];
    middles.iter().for_each(|m| m.set(LIES));
    // Each second should see one, on a machine as slow as ten times this one.
    let least = (seconds.as_secs() / 2).max(8);
    told(
        &[
            (&for_relay, least),
            (&for_replica, least),
            (&from_replicas, least),
        ],
        seconds * 10,
    )?;
    for (what, pid) in [("the relay", of_relay), ("the replica", of_applier)] {
        let kib = most_memory(pid).with_context(|| format!("{what} amid lies"))?;
        ensure!(kib < MEMORY_KIB, "{what} took {} MiB", kib >> 10);
        case.note(format!("{what} took {} MiB at most amid lies", kib >> 10));
    }
    for (who, middle) in [
        ("the relay by its primary", &for_relay),
        ("the replica by its source", &for_replica),
        ("the relay by its replicas", &from_replicas),
    ] {
        let kinds: Vec<String> = KINDS
            .iter()
            .zip(middle.kinds())
            .map(|(kind, n)| format!("{kind} {n}"))
            .collect();
        case.note(format!(
            "{who} was lied to {} times before events and {} times amid them: {}",
            middle.told.before_events.load(Ordering::Relaxed),
            middle.told.amid_events.load(Ordering::Relaxed),
            kinds.join(", ")
        ));
    }

    middles.iter().for_each(|m| m.set(SPOILS));
    let until = Instant::now() + seconds * 10;
    let spoilt = |m: &Middle| m.told.spoilt.load(Ordering::Relaxed);
    while spoilt(&for_relay) < 2 * least || spoilt(&for_replica) < 2 * least {
        ensure!(
            Instant::now() < until,
            "only {} and {} pieces were spoilt",
            spoilt(&for_relay),
            spoilt(&for_replica)
        );
        thread::sleep(Duration::from_millis(50));
    }
    middles.iter().for_each(|m| m.set(HONEST));
    case.note(format!(
        "{} and {} pieces of the stream spoilt",
        spoilt(&for_relay),
        spoilt(&for_replica)
    ));
    stop.store(true, Ordering::Release);
    for stranger in strangers {
        stranger.join().ok().context("a client panicked")?;
    }
    let done = load.stop()?;
    case.note(format!("{done} transactions meanwhile"));

    applier.reaches(&primary, &target)?;
    same::all(&primary, &target, TABLES, "behind garbage")?;
    equal(case, &primary, &[&follower], &relay)?;
    ensure!(
        (relay.pid()?, applier.pid()?) == (of_relay, of_applier),
        "one was started again"
    );
    for (what, pid, log) in [
        ("the relay", of_relay, dir.join("relay.log")),
        ("the replica", of_applier, dir.join("replica.log")),
    ] {
        let kib = most_memory(pid).with_context(|| format!("{what} in the end"))?;
        ensure!(kib < MEMORY_KIB, "{what} took {} MiB", kib >> 10);
        let kinds = complaints(&log)?;
        ensure!(
            kinds.len() >= 4,
            "{what} hardly complained: {kinds:?}; {}",
            log.display()
        );
        case.note(format!(
            "{what}: {} MiB at most, {} kinds of lines in its log",
            kib >> 10,
            kinds.len()
        ));
    }
    Ok(())
}
