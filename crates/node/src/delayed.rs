//! Which members answer late (`wsrep_evs_delayed`), and for how long one that has
//! never spoken is known.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dromon_order::RaftId;
use dromon_writeset::Uuid;

/// A member as the watch sees it.
pub(crate) struct Seen {
    pub uuid: Uuid,
    pub addr: String,
    /// Since its last report.
    pub silent: Duration,
}

/// Members that were late at least once, until they have been in time for long.
#[derive(Debug, Default)]
pub(crate) struct Delayed(BTreeMap<Uuid, Entry>);

#[derive(Debug)]
struct Entry {
    addr: String,
    times: u64,
    late: bool,
    last: Instant,
}

impl Delayed {
    /// Looks at all members: late is who is silent for more than `margin`; who
    /// is in time for `keep` is forgotten, as is who left.
    pub fn look(&mut self, now: Instant, members: Vec<Seen>, margin: Duration, keep: Duration) {
        let uuids: Vec<Uuid> = members.iter().map(|m| m.uuid).collect();
        for m in members {
            let late = m.silent > margin;
            if !late && !self.0.contains_key(&m.uuid) {
                continue;
            }
            let entry = self.0.entry(m.uuid).or_insert(Entry {
                addr: m.addr,
                times: 0,
                late: false,
                last: now,
            });
            entry.times += u64::from(late && !entry.late);
            entry.late = late;
            if late {
                entry.last = now;
            }
        }
        let fresh = |e: &Entry| e.late || now.duration_since(e.last) < keep;
        self.0.retain(|uuid, e| uuids.contains(uuid) && fresh(e));
    }

    /// `uuid:address:times`, with commas: how often each became late.
    pub fn text(&self) -> String {
        let one = |(uuid, e): (&Uuid, &Entry)| format!("{uuid}:{}:{}", e.addr, e.times);
        self.0.iter().map(one).collect::<Vec<_>>().join(",")
    }
}

/// When the leader first saw each member: incarnation and log. Who was removed and
/// joins again has another one of them, and is new.
#[derive(Debug, Default)]
pub(crate) struct FirstSeen(BTreeMap<(Uuid, RaftId), Instant>);

impl FirstSeen {
    /// These are the members now; none if this node does not lead.
    pub fn look(&mut self, now: Instant, members: impl Iterator<Item = (Uuid, RaftId)>) {
        let before = std::mem::take(&mut self.0);
        let since = |id| (id, before.get(&id).copied().unwrap_or(now));
        self.0 = members.map(since).collect();
    }

    /// How long this member is known.
    pub fn known_for(&self, now: Instant, uuid: Uuid, log: RaftId) -> Duration {
        let since = self.0.get(&(uuid, log));
        since.map_or(Duration::ZERO, |at| now.duration_since(*at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_back_is_new() {
        let began = Instant::now();
        let at = |second| began + Duration::from_secs(second);
        let member = |n: u8, log: RaftId| (Uuid([n; 16]), log);
        let mut seen = FirstSeen::default();
        seen.look(at(0), [member(1, 1), member(2, 2)].into_iter());
        seen.look(at(40), [member(1, 1), member(2, 2)].into_iter());
        let known =
            |seen: &FirstSeen, second, (uuid, log)| seen.known_for(at(second), uuid, log).as_secs();
        assert_eq!(known(&seen, 41, member(2, 2)), 41);
        // At once with another log, as another incarnation, or after a while.
        let back = [member(1, 1), member(2, 3)];
        seen.look(at(50), back.into_iter());
        assert_eq!(known(&seen, 51, member(1, 1)), 51);
        assert_eq!(known(&seen, 51, member(2, 3)), 1);
        assert_eq!(known(&seen, 51, member(2, 2)), 0, "nobody knows it");
        seen.look(at(60), [member(3, 1)].into_iter());
        assert_eq!(known(&seen, 61, member(3, 1)), 1);
        seen.look(at(70), [member(1, 1), member(3, 1)].into_iter());
        assert_eq!(known(&seen, 71, member(1, 1)), 1);
        seen.look(at(80), std::iter::empty());
        seen.look(at(90), [member(3, 1)].into_iter());
        assert_eq!(known(&seen, 91, member(3, 1)), 1);
    }

    #[test]
    fn who_is_late_stands_there_until_it_was_in_time_for_long() {
        let began = Instant::now();
        let mut delayed = Delayed::default();
        let mut look = |second: u64, silent: &[(u8, u64)]| {
            let member = |(n, ms): &(u8, u64)| Seen {
                uuid: Uuid([*n; 16]),
                addr: format!("10.0.0.{n}:4567"),
                silent: Duration::from_millis(*ms),
            };
            let now = began + Duration::from_secs(second);
            let keep = Duration::from_secs(30);
            let members = silent.iter().map(member).collect();
            delayed.look(now, members, Duration::from_secs(1), keep);
            delayed.text()
        };
        let one = |times| format!("01010101-0101-0101-0101-010101010101:10.0.0.1:4567:{times}");
        let two = "02020202-0202-0202-0202-020202020202:10.0.0.2:4567:1";
        assert_eq!(look(0, &[(1, 1000), (2, 0)]), "");
        assert_eq!(look(1, &[(1, 1001), (2, 0)]), one(1));
        assert_eq!(look(2, &[(1, 2000), (2, 0)]), one(1), "the same delay");
        assert_eq!(look(3, &[(1, 100), (2, 0)]), one(1));
        assert_eq!(
            look(4, &[(1, 1500), (2, 1500)]),
            format!("{},{two}", one(2))
        );
        assert_eq!(look(5, &[(1, 0)]), one(2), "the other has left");
        assert_eq!(look(33, &[(1, 0)]), one(2));
        assert_eq!(look(34, &[(1, 0)]), "");
        assert_eq!(look(90, &[(1, 60_000)]), one(1));
        assert_eq!(look(190, &[(1, 160_000)]), one(1), "as long as it is late");
    }
}
