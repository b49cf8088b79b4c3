//! How much each kind of writer got done on each node. A storm of which one part did
//! nothing shows nothing of that part, however equal the tables are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::ensure;

use crate::load::{self, Session};

/// What was done, by node and kind.
#[derive(Default)]
pub struct Floors {
    done: BTreeMap<(usize, &'static str), Arc<AtomicU64>>,
}

/// One node's part of one kind; what succeeded and changed something is counted.
#[derive(Clone)]
pub struct Floor(Arc<AtomicU64>);

impl Floor {
    /// One step that did what it was to do.
    pub fn one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// A statement that changed so many rows: none is nothing done.
    pub fn rows(&self, rows: u64) {
        self.0.fetch_add(u64::from(rows > 0), Ordering::Relaxed);
    }
}

/// Of one node: what its clients have streamed.
#[derive(Clone)]
pub struct Streams(Option<Floor>);

impl Streams {
    /// A transaction of this client, of so many rows, that did what it was to do.
    pub fn one(&self, client: &Session, rows: u64) {
        if let Some(floor) = self.0.as_ref().filter(|_| client.streams(rows)) {
            floor.one();
        }
    }
}

impl Floors {
    /// If clients stream, so much is asked for of what this node's do stream.
    pub fn of_streams(&mut self, node: usize) -> Streams {
        Streams(load::some_stream().then(|| self.of(node, "streams")))
    }

    /// From now on so much is asked for of this kind on this node.
    pub fn of(&mut self, node: usize, kind: &'static str) -> Floor {
        Floor(Arc::clone(self.done.entry((node, kind)).or_default()))
    }

    /// One step in ten seconds, and one at least, of each kind on each node: little for
    /// the slowest machine, but not nothing.
    pub fn are_reached(&self, seconds: Duration) -> anyhow::Result<()> {
        let least = least(seconds);
        let done = |count: &Arc<AtomicU64>| count.load(Ordering::Relaxed);
        let lacking: Vec<String> = self
            .done
            .iter()
            .filter(|(_, count)| done(count) < least)
            .map(|((node, kind), count)| format!("db{}: {} of {kind}", node + 1, done(count)))
            .collect();
        ensure!(
            lacking.is_empty(),
            "too little was done to show anything, at least {least} of each was wanted: {}",
            lacking.join("; ")
        );
        Ok(())
    }

    /// The kind of which least was done, for the report.
    pub fn words(&self) -> String {
        let done = |count: &Arc<AtomicU64>| count.load(Ordering::Relaxed);
        let least = self.done.iter().min_by_key(|(_, count)| done(count));
        least.map_or(String::new(), |((node, kind), count)| {
            format!("least: {} of {kind} on db{}", done(count), node + 1)
        })
    }
}

/// What is asked for at least in so much time.
pub fn least(seconds: Duration) -> u64 {
    (seconds.as_secs() / 10).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_did_nothing_is_named() {
        let mut floors = Floors::default();
        let (a, b) = (floors.of(0, "inserts"), floors.of(1, "inserts"));
        a.one();
        b.rows(0);
        let limit = Duration::from_secs(4);
        let error = floors.are_reached(limit).expect_err("db2").to_string();
        assert!(error.ends_with("wanted: db2: 0 of inserts"), "{error}");
        b.rows(2);
        assert!(floors.are_reached(limit).is_ok());
        assert!(floors.are_reached(limit * 5).is_err(), "two are wanted");
        assert_eq!(floors.words(), "least: 1 of inserts on db1");
    }
}
