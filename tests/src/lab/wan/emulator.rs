//! The process that moves the packets of a link: `storms --link …`, started by [`super::Wan`].
//!
//! Its standard input and output are the two ends, as TUN devices hand over whole packets. It is
//! told to cut the link over a Unix socket, and ends when whoever started it has ended.
//!
//! ```text
//!   near ── TUN (0) ─> reader ─ fate ─> queue ─ at its time ─> writer ─ TUN (1) ──> far
//!                                                                         and back the same
//! ```

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::parent_id;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::lane::{Fate, Lane, Line};
use super::reset::reset;

/// More packets than a queue of a megabyte and a link of a second hold.
const PACKETS: usize = 200_000;
const PACKET_MAX: usize = 1 << 16;

/// What a link was told, and what it did.
#[derive(Debug, Default)]
struct State {
    /// Nothing passes before this time, in milliseconds since the start.
    cut_until: AtomicU64,
    /// Connections whose packets pass before this time are reset.
    reset_until: AtomicU64,
    passed: AtomicU64,
    lost: AtomicU64,
    dropped: AtomicU64,
    cut: AtomicU64,
    reset: AtomicU64,
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Moves packets until the parent has ended.
///
/// # Errors
/// The line cannot be read; the ends are no packet devices; the socket cannot be made.
pub fn run(text: &str) -> anyhow::Result<()> {
    let (line, seed, control) = parse(text).with_context(|| format!("--link {text}"))?;
    let near = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let far = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let parent = parent_id();
    let control = UnixDatagram::bind(control).context("the socket of a link")?;
    control.set_read_timeout(Some(Duration::from_millis(300)))?;
    let state = Arc::new(State::default());
    let begin = Instant::now();
    for (n, (from, to)) in [(near.try_clone()?, far.try_clone()?), (far, near)]
        .into_iter()
        .enumerate()
    {
        let (sender, receiver) = sync_channel(PACKETS);
        let lane = Lane::new(line, seed * 2 + n as u64);
        let state = Arc::clone(&state);
        thread::spawn(move || move_in(from, lane, begin, &state, &sender));
        thread::spawn(move || move_out(to, begin, &receiver));
    }
    let mut buf = [0; 200];
    while parent_id() == parent {
        let Ok((n, who)) = control.recv_from(&mut buf) else {
            continue;
        };
        let said = String::from_utf8_lossy(&buf[..n]).into_owned();
        let now = millis(begin.elapsed());
        let until = |ms: &str| now + ms.parse::<u64>().unwrap_or(0);
        match said.split_once(' ') {
            Some(("cut", ms)) => state.cut_until.store(until(ms), Ordering::Relaxed),
            Some(("reset", ms)) => state.reset_until.store(until(ms), Ordering::Relaxed),
            _ => {}
        }
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let answer = format!(
            "{} {} {} {} {}",
            of(&state.passed),
            of(&state.lost),
            of(&state.dropped),
            of(&state.cut),
            of(&state.reset)
        );
        if let Some(path) = who.as_pathname() {
            // It may have gone.
            let _ = control.send_to(answer.as_bytes(), path);
        }
    }
    Ok(())
}

fn parse(text: &str) -> anyhow::Result<(Line, u64, &str)> {
    let mut words = text.splitn(6, ':');
    let mut number = || -> anyhow::Result<u64> {
        let word = words.next().context("too few numbers")?;
        word.parse().with_context(|| format!("{word} is no number"))
    };
    let line = Line {
        delay: Duration::from_millis(number()?),
        lost_of_1000: number()?,
        bits_per_second: number()? * 1_000_000,
        queue_bytes: number()? * 1000,
    };
    let seed = number()?;
    Ok((line, seed, words.next().context("no socket")?))
}

/// How [`run`] is told.
pub fn format(line: &Line, seed: u64, control: &str) -> String {
    format!(
        "{}:{}:{}:{}:{seed}:{control}",
        line.delay.as_millis(),
        line.lost_of_1000,
        line.bits_per_second / 1_000_000,
        line.queue_bytes / 1000
    )
}

type Due = (Duration, Vec<u8>);

fn move_in(mut from: File, mut lane: Lane, begin: Instant, state: &State, to: &SyncSender<Due>) {
    let mut buf = vec![0; PACKET_MAX];
    while let Ok(n @ 1..) = from.read(&mut buf) {
        let now = begin.elapsed();
        let until = |what: &AtomicU64| millis(now) < what.load(Ordering::Relaxed);
        let count = |what: &AtomicU64| what.fetch_add(1, Ordering::Relaxed);
        if until(&state.cut_until) {
            count(&state.cut);
            continue;
        }
        let mut packet = buf[..n].to_vec();
        if until(&state.reset_until)
            && let Some(made) = reset(&packet)
        {
            count(&state.reset);
            packet = made;
        }
        match lane.packet(now, n as u64) {
            Fate::Lost => count(&state.lost),
            Fate::Dropped => count(&state.dropped),
            Fate::Arrives(due) => {
                if to.send((due, packet)).is_err() {
                    return;
                }
                count(&state.passed)
            }
        };
    }
}

fn move_out(mut to: File, begin: Instant, from: &Receiver<Due>) {
    while let Ok((due, packet)) = from.recv() {
        thread::sleep(due.saturating_sub(begin.elapsed()));
        // A device that is down takes none, as a cable that is out.
        let _ = to.write(&packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_told_as_it_was_meant() {
        let line = Line {
            delay: Duration::from_millis(40),
            lost_of_1000: 20,
            bits_per_second: 100_000_000,
            queue_bytes: 1_000_000,
        };
        let text = format(&line, 5, "/tmp/a:b");
        assert_eq!(parse(&text).expect("readable"), (line, 5, "/tmp/a:b"));
        for bad in ["", "1:2:3:4:5", "1:2:3:x:5:/s"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
