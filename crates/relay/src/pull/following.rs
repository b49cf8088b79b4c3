//! How the relay stands towards its primary, for others.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::session::Primary;
use crate::clock::Moment;
use crate::http::{Heard, HintStatus, primary_lag_ms};
use crate::wire::Compressed;

/// So many seconds clocks may differ.
const CLOCKS: u64 = 2;

/// How it stands.
#[derive(Clone, Debug, Default)]
pub struct Following {
    /// Host and port of the primary.
    pub address: String,
    /// Account there.
    pub user: String,
    /// Events are coming.
    pub connected: bool,
    /// Of the present or last connection.
    pub primary: Primary,
    /// Its current file, as it calls it.
    pub file: String,
    /// Up to where events came.
    pub position: u64,
    /// Connections so far.
    pub connections: u64,
    /// Why the last one ended.
    pub last_error: Option<String>,
    /// Groups out of their domain's order.
    pub unordered: u64,
    /// Whether the connection is encrypted.
    pub encrypted: bool,
    /// And the primary's certificate was for its address.
    pub named: bool,
    /// When anything came last.
    pub heard: Option<Moment>,
    /// That was a heartbeat which says that the primary had nothing more.
    pub idle: bool,
    /// When the relay had last, on its disk, all that the primary had.
    pub complete: Option<Instant>,
    /// When the newest event was made, in milliseconds of the primary's clock.
    pub newest_ms: u64,
    /// What the last one said of that: a session may say any time.
    pub last_ms: u64,
    /// The primary is a relay, and said last that it is so many seconds behind its own; 0: it has all.
    pub behind: u32,
    /// How often something must come.
    pub beat: Duration,
    /// What compression has spared on the present or last connection, if that was agreed on.
    pub zstd: Option<Compressed>,
    /// If hints are computed.
    pub hints: Option<HintStatus>,
    pub(super) stopping: bool,
    pub(super) stream: Option<Arc<TcpStream>>,
}

pub(super) fn lock(following: &Mutex<Following>) -> MutexGuard<'_, Following> {
    following.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Following {
    /// Since when nothing came, in milliseconds.
    pub fn silent_ms(&self) -> Option<u64> {
        self.heard.map(|at| at.elapsed_ms())
    }

    /// How far the relay is behind its primary, in milliseconds, as far as it can know; `None`: not at
    /// all.
    pub fn lag_ms(&self) -> Option<u64> {
        primary_lag_ms(&Heard {
            silent_ms: self.silent_ms(),
            idle: self.idle,
            newest_ms: self.newest_ms.max(self.last_ms),
            behind: self.behind,
            now_ms: since_1970().as_millis() as u64,
            beat_ms: self.beat.as_millis() as u64,
        })
    }

    /// An event has come that says it was made at this time, in milliseconds; it is `now`, in seconds. What went before it was made before,
    /// though it says a time of long ago (SET TIMESTAMP, a long statement). One ahead of the clock counts only
    /// for itself.
    pub(super) fn comes(&mut self, made_ms: u64, now: u64) {
        self.last_ms = made_ms;
        if made_ms / 1000 <= now + CLOCKS {
            self.newest_ms = self.newest_ms.max(made_ms);
        }
    }

    /// Ends the connection and all attempts.
    pub fn stop(following: &Mutex<Following>) {
        let mut state = lock(following);
        state.stopping = true;
        if let Some(stream) = &state.stream {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn since_1970() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    since_1970().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that slept knows nothing of what the primary did meanwhile, until that says something.
    #[test]
    fn behind_after_a_sleep() {
        let mut following = Following {
            heard: Some(Moment::now()),
            idle: true,
            beat: Duration::from_secs(60),
            ..Following::default()
        };
        assert_eq!(following.lag_ms(), Some(0));
        following.heard = Some(Moment::now().slept(3_600_000));
        assert!(following.lag_ms() >= Some(3_600_000));
        assert!(following.silent_ms() >= Some(3_600_000));
        following.heard = Some(Moment::now());
        assert_eq!(following.lag_ms(), Some(0));
    }
}
