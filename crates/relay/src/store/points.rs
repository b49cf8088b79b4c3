//! Places in a file at which a replica can begin, and how far apart they are.
//!
//! Each takes memory for all that the relay has had up to it: something for each domain, and for each server
//! that ever wrote there. With hundreds of domains, or tens of thousands of servers that are gone, that is as
//! much as the binlog between two of them. So those that are heavy are rarer: all of a file take a small part
//! of its bytes at most.

use dromon_binlog::GtidSet;

use super::history::History;

/// A group begins here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Byte of the file.
    pub at: u64,
    /// All groups before; of MySQL those in the file alone: a set may be large, and there are many places.
    pub state: History,
    /// When the last of them began, in seconds since 1970.
    pub time: u32,
}

/// Bytes of memory that a place takes, beside its domains.
const EACH: usize = 450;

impl Point {
    /// Bytes of memory that it takes, about.
    pub fn weight(&self) -> usize {
        EACH + self.state.weight()
    }
}

/// Bytes of memory of a place that are as close as they are meant to be.
const LIGHT: usize = 4 << 10;
/// For each one above that so many bytes of the file lie before the next place.
const FILE_BYTES: u64 = 64;

/// Which groups of a file begin at a place that is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    every: u64,
    last: u64,
    next: u64,
}

impl Pace {
    /// `every`: bytes between places that take little memory. `last`: where the latest one is, or where the
    /// first group can begin.
    pub fn new(every: u64, last: u64) -> Pace {
        Pace {
            every,
            last,
            next: last.saturating_add(every),
        }
    }

    /// A group begins at `at`, behind all of `state`. Gives its place, if that is to be kept. `start`: those
    /// of MySQL before the file.
    pub fn point(&mut self, at: u64, state: &History, start: &GtidSet, time: u32) -> Option<Point> {
        if at < self.next {
            return None;
        }
        let state = state.since(start);
        let point = Point { at, state, time };
        let heavy = point.weight().saturating_sub(LIGHT) as u64;
        let apart = self.every.saturating_add(heavy.saturating_mul(FILE_BYTES));
        self.next = self.last.saturating_add(apart);
        if at < self.next {
            return None;
        }
        self.last = at;
        self.next = at.saturating_add(apart);
        Some(point)
    }

    /// What was behind this place, the latest one that stays, is taken back.
    pub fn back(&mut self, last: Option<u64>) {
        *self = Pace::new(self.every, last.unwrap_or(self.last));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dromon_binlog::{
        BinlogState, Checksum, EventType, Format, GroupName, Gtid, GtidEvent, Header, Payload,
        encode_event, gtid_flags, version_bytes,
    };
    use dromon_log::{Device, SimDevice};

    use super::super::scan::scan;
    use super::super::{Kind, Part, Store, StoreOptions};
    use super::*;

    fn state(domains: u32, servers: u32) -> BinlogState {
        let ids = (0..domains).flat_map(|d| (1..=servers).map(move |s| (d, s)));
        BinlogState::from_gtids(ids.map(|(domain, server)| Gtid {
            domain,
            server,
            seqno: 7,
        }))
    }

    fn points(state: BinlogState, bytes: u64) -> Vec<Point> {
        let state = state.into();
        let mut pace = Pace::new(256 << 10, 500);
        let groups = (500..bytes).step_by(10_000);
        groups
            .filter_map(|at| pace.point(at, &state, &GtidSet::new(), 0))
            .collect()
    }

    /// However many domains there are, and servers that ever wrote: the places of a file take a small part
    /// of its size.
    #[test]
    fn heavy_places_are_rare() {
        const BYTES: u64 = 64 << 20;
        for (domains, servers) in [(1, 1), (10, 3), (30, 1), (500, 1), (1, 10_000), (20, 400)] {
            let points = points(state(domains, servers), BYTES);
            let weight: usize = points.iter().map(Point::weight).sum();
            let text = format!("{} places, {weight} bytes", points.len());
            assert!(weight as u64 <= BYTES / FILE_BYTES, "{text}");
            assert!(points.len() > 1, "{text}");
        }
        // With few domains each is where it is meant to be.
        for (domains, servers) in [(1, 1), (10, 3)] {
            assert_eq!(points(state(domains, servers), BYTES).len(), 248);
        }
    }

    /// Behind what was taken back they go on as before.
    #[test]
    fn a_place_is_taken_back() {
        let state = state(500, 1).into();
        let mut pace = Pace::new(1000, 0);
        let apart = (1000..).step_by(1000);
        let mut next = apart.filter_map(|at| {
            let point = pace.point(at, &state, &GtidSet::new(), 0)?;
            Some(point.at)
        });
        let (first, second) = (next.next().expect("one"), next.next().expect("another"));
        drop(next);
        pace.back(Some(first));
        let between = first + 1000..second;
        for at in between.step_by(1000) {
            assert_eq!(pace.point(at, &state, &GtidSet::new(), 0), None, "{at}");
        }
        assert!(pace.point(second, &state, &GtidSet::new(), 0).is_some());
    }

    /// Who writes a file and who reads it through find the same ones.
    #[test]
    fn of_a_store_and_a_file() {
        let format = Format {
            binlog_version: 4,
            server_version: version_bytes("10.11.18-MariaDB"),
            created: 0,
            post_header_lens: vec![0; 163],
            checksum: Some(Checksum::Crc32),
        };
        let event = |kind, payload: &Payload<'_>| {
            let header = Header {
                timestamp: 1000,
                kind,
                server_id: 1,
                len: 0,
                end_pos: 0,
                flags: 0,
            };
            encode_event(&header, payload, &format)
        };
        let text = [b'x'; 10_000];
        for (domains, has) in [(1, 599), (100, 3)] {
            let options = StoreOptions {
                point_every: 200,
                ..StoreOptions::default()
            };
            let device = Arc::new(SimDevice::new(1));
            let start = state(domains, 3);
            let (mut store, _) = Store::open(device.clone(), options, start).expect("empty");
            let begins = Payload::Format(Box::new(format.clone()));
            let begins = event(EventType::FORMAT_DESCRIPTION, &begins);
            store.begin_file(&begins).expect("a good disk");
            for seqno in 8..608 {
                let gtid = Gtid {
                    domain: 0,
                    server: 1,
                    seqno,
                };
                let begin = GtidEvent {
                    gtid,
                    flags: gtid_flags::TRANSACTIONAL,
                    commit_id: None,
                    xa: None,
                    extra: None,
                    tail: &[0; 8],
                };
                let end = Part::End(GroupName::MariaDb(gtid), 1000);
                for (raw, part) in [
                    (event(EventType::GTID, &Payload::Gtid(begin)), Part::Begin),
                    (
                        event(EventType::ANNOTATE_ROWS, &Payload::Annotate(&text)),
                        Part::Within,
                    ),
                    (event(EventType::XID, &Payload::Xid(7)), end),
                ] {
                    store.append(raw, part).expect("a good disk");
                }
            }
            store.flush().expect("a good disk");
            let written = store.view().points(1);
            let name = store.view().name(1);
            let file = device.open(&name).expect("it is there");
            let len = file.len().expect("known");
            let read = scan(&*file, &name, len, 200, Kind::MariaDb).expect("readable");
            assert_eq!(written, read.points);
            assert_eq!(written.len(), has);
        }
    }
}
