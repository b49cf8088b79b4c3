//! What the toy server remembers: what its node saw, in which order, and which
//! local transactions sit on the hot rows.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dromon_wsrep::host::{Events, HotRow, Ordered, ViewSummary};
use serde::{Deserialize, Serialize};

/// Log lines and violations kept for the report.
const KEPT_LINES_MAX: usize = 8;
/// `wsrep_log_level_t` of an error; fatal is below.
const LOG_ERROR: u32 = 1;

/// The bytes of a payload that say where it comes from.
pub const TAG_BYTES: usize = 24;

/// The first bytes of every payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Node and writer.
    pub writer: u64,
    /// Count of the writer's transactions.
    pub count: u64,
    /// The hot row it changes, or none.
    pub hot_row: Option<usize>,
}

impl Tag {
    /// Writes the tag to the start of a payload of at least [`TAG_BYTES`].
    pub fn write(&self, payload: &mut [u8]) {
        let hot = self.hot_row.map_or(0, |row| row as u64 + 1);
        payload[..8].copy_from_slice(&self.writer.to_le_bytes());
        payload[8..16].copy_from_slice(&self.count.to_le_bytes());
        payload[16..TAG_BYTES].copy_from_slice(&hot.to_le_bytes());
    }

    /// The tag of a payload, `None` if it is too short to have one.
    pub fn read(payload: &[u8]) -> Option<Tag> {
        let mut words = payload.get(..TAG_BYTES)?.as_chunks::<8>().0.iter();
        let mut next = || words.next().map(|word| u64::from_le_bytes(*word));
        Some(Tag {
            writer: next()?,
            count: next()?,
            hot_row: next()?.checked_sub(1).map(|row| row as usize),
        })
    }
}

/// What one node saw of the order. Equal on all nodes, field by field, if the
/// provider is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderSeen {
    /// Seqno of the first write set, 0 if there was none.
    pub first: i64,
    /// Seqno of the last write set.
    pub last: i64,
    /// Write sets with a seqno, failed ones included.
    pub write_sets: u64,
    /// Those that failed certification.
    pub failed: u64,
    /// Hash over seqno, source, transaction, verdict, length and tag of each, in order.
    pub hash: u64,
}

#[derive(Debug, Default)]
struct Order {
    seen: OrderSeen,
    /// Seqno of the last event, views included; 0 before the first.
    last_event: i64,
}

impl Order {
    /// Enters an event; tells what is wrong with its place.
    fn event(&mut self, seqno: i64, what: &str) -> Option<String> {
        let last = std::mem::replace(&mut self.last_event, seqno);
        (last != 0 && seqno != last + 1)
            .then(|| format!("{what} {seqno} came right after seqno {last} in the commit order"))
    }

    fn write_set(&mut self, write_set: &Ordered<'_>) {
        let seen = &mut self.seen;
        if seen.first == 0 {
            seen.first = write_set.seqno;
        }
        seen.last = write_set.seqno;
        seen.write_sets += 1;
        seen.failed += u64::from(!write_set.passed);
        let mut mix = |word: u64| {
            seen.hash = (seen.hash ^ word)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29);
        };
        mix(write_set.seqno.unsigned_abs());
        for word in write_set.node.0.as_chunks::<8>().0 {
            mix(u64::from_le_bytes(*word));
        }
        mix(write_set.trx);
        mix(u64::from(write_set.passed));
        // A failed write set may be delivered without its data.
        if write_set.passed {
            mix(write_set.payload.len() as u64);
            if let Some(tag) = Tag::read(write_set.payload) {
                mix(tag.writer);
                mix(tag.count);
            }
        }
    }
}

#[derive(Debug, Default)]
struct State {
    synced: bool,
    members: i32,
    violations: VecDeque<String>,
    violation_count: u64,
    errors: VecDeque<String>,
}

/// The server side of one node.
#[derive(Debug)]
pub struct ToyServer {
    order: Mutex<Order>,
    state: Mutex<State>,
    changed: Condvar,
    hot_rows: Vec<HotRow>,
    log: Mutex<File>,
    started: Instant,
}

impl ToyServer {
    /// A server that writes the provider's log lines to a file.
    pub fn new(hot_rows: usize, log: File) -> ToyServer {
        ToyServer {
            order: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            hot_rows: (0..hot_rows).map(|_| HotRow::default()).collect(),
            log: Mutex::new(log),
            started: Instant::now(),
        }
    }

    /// Waits until the node is synced and its primary view has that many members.
    pub fn await_members(&self, members: i32, limit: Duration) -> bool {
        let (state, timeout) = self
            .changed
            .wait_timeout_while(lock(&self.state), limit, |state| {
                !state.synced || state.members != members
            })
            .unwrap_or_else(PoisonError::into_inner);
        drop(state);
        !timeout.timed_out()
    }

    /// What this node saw of the order so far.
    pub fn order_seen(&self) -> OrderSeen {
        lock(&self.order).seen
    }

    /// How often something happened that must not, and the first few of them.
    pub fn violations(&self) -> (u64, Vec<String>) {
        let state = lock(&self.state);
        (
            state.violation_count,
            state.violations.iter().cloned().collect(),
        )
    }

    /// The last few lines the provider logged as errors.
    pub fn errors(&self) -> Vec<String> {
        lock(&self.state).errors.iter().cloned().collect()
    }
}

impl Events for ToyServer {
    fn log(&self, level: u32, line: &str) {
        let name = ["FATAL", "ERROR", "WARN", "INFO"]
            .get(level as usize)
            .unwrap_or(&"DEBUG");
        let at = self.started.elapsed().as_secs_f64();
        // A full disk must not end the run: the log is for reading afterwards.
        let _ = writeln!(lock(&self.log), "{at:10.4} {name} {line}");
        if level <= LOG_ERROR {
            keep_last(&mut lock(&self.state).errors, line.to_owned());
        }
    }

    fn connected(&self, view: ViewSummary) {
        lock(&self.state).members = view.members;
        self.changed.notify_all();
    }

    fn view(&self, view: ViewSummary) {
        if view.primary {
            let complaint = lock(&self.order).event(view.seqno, "View");
            if let Some(complaint) = complaint {
                self.violation(complaint);
            }
        }
        let mut state = lock(&self.state);
        state.members = if view.primary { view.members } else { 0 };
        drop(state);
        self.changed.notify_all();
    }

    fn synced(&self) {
        lock(&self.state).synced = true;
        self.changed.notify_all();
    }

    fn ordered(&self, write_set: Ordered<'_>) {
        let mut order = lock(&self.order);
        let complaint = order.event(write_set.seqno, "Write set");
        order.write_set(&write_set);
        drop(order);
        if let Some(complaint) = complaint {
            self.violation(complaint);
        }
    }

    fn hot_row(&self, payload: &[u8]) -> Option<&HotRow> {
        self.hot_rows.get(Tag::read(payload)?.hot_row?)
    }

    fn violation(&self, what: String) {
        let mut state = lock(&self.state);
        state.violation_count += 1;
        if state.violations.len() < KEPT_LINES_MAX {
            state.violations.push_back(what);
        }
    }
}

fn keep_last(lines: &mut VecDeque<String>, line: String) {
    if lines.len() == KEPT_LINES_MAX {
        lines.pop_front();
    }
    lines.push_back(line);
}

/// A panic in another thread ends the process at the border, so a poisoned lock
/// is no reason to stop here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dromon_wsrep::Uuid;

    fn write_set(seqno: i64, payload: &[u8]) -> Ordered<'_> {
        Ordered {
            seqno,
            node: Uuid([7; 16]),
            trx: 3,
            passed: true,
            payload,
        }
    }

    fn server() -> ToyServer {
        ToyServer::new(2, tempfile::tempfile().expect("a temporary file"))
    }

    #[test]
    fn a_tag_survives_the_payload() {
        for hot_row in [None, Some(0), Some(41)] {
            let tag = Tag {
                writer: 5,
                count: 9,
                hot_row,
            };
            let mut payload = [0xff; 40];
            tag.write(&mut payload);
            assert_eq!(Tag::read(&payload), Some(tag));
        }
        assert_eq!(Tag::read(&[0; TAG_BYTES - 1]), None);
    }

    #[test]
    fn a_hole_and_a_swap_in_the_order_are_violations() {
        let server = server();
        let view = ViewSummary {
            seqno: 3,
            primary: true,
            members: 2,
        };
        server.view(view);
        server.ordered(write_set(4, b"a"));
        server.ordered(write_set(5, b"b"));
        assert_eq!(server.violations().0, 0);
        server.ordered(write_set(7, b"c"));
        server.ordered(write_set(6, b"d"));
        let (count, lines) = server.violations();
        assert_eq!(count, 2);
        assert!(lines[0].contains("Write set 7 came right after seqno 5"));
        assert_eq!(server.order_seen().write_sets, 4);
        assert_eq!(
            (server.order_seen().first, server.order_seen().last),
            (4, 6)
        );
    }

    #[test]
    fn the_hash_depends_on_order_and_verdict() {
        let seen = |sets: &[Ordered<'_>]| {
            let server = server();
            sets.iter().for_each(|set| server.ordered(*set));
            server.order_seen().hash
        };
        let (a, b) = (write_set(1, &[1; 24]), write_set(2, &[2; 24]));
        assert_eq!(seen(&[a, b]), seen(&[a, b]));
        assert_ne!(seen(&[a, b]), seen(&[b, a]));
        assert_ne!(seen(&[a, b]), seen(&[a, Ordered { passed: false, ..b }]));
        assert_ne!(seen(&[a, b]), seen(&[a, write_set(2, &[3; 24])]));
    }

    #[test]
    fn a_hot_row_is_found_by_the_payload() {
        let server = server();
        let mut payload = [0; TAG_BYTES];
        let mut found = |hot_row| {
            let (writer, count) = (1, 1);
            Tag {
                writer,
                count,
                hot_row,
            }
            .write(&mut payload);
            server.hot_row(&payload).map(std::ptr::from_ref)
        };
        assert_eq!(found(None), None);
        assert_eq!(found(Some(1)), Some(&raw const server.hot_rows[1]));
        assert_eq!(found(Some(2)), None);
    }

    #[test]
    fn members_count_only_when_synced_and_primary() {
        let server = server();
        let mut view = ViewSummary {
            seqno: 1,
            primary: true,
            members: 3,
        };
        let at_once = Duration::ZERO;
        server.view(view);
        assert!(!server.await_members(3, at_once));
        server.synced();
        assert!(server.await_members(3, at_once));
        view.primary = false;
        server.view(view);
        assert!(!server.await_members(3, at_once));
    }
}
