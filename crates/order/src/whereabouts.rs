//! Under which addresses the others are to be reached.
//!
//! The log names an address for each member. A member that was started again
//! elsewhere says so in its vote questions and heartbeats, long before a leader can
//! write it into the log: if a majority has moved, there is none before it is
//! answered. So what was heard counts, too, but never against a link that stands: a
//! wrong word, or an old one, must not part who can talk. Where neither address
//! leads to the member, both are tried in turn.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::types::RaftId;

/// Those that are no members remembered at most.
const STRANGERS_MAX: usize = 16;

/// What was heard of one.
#[derive(Debug)]
struct Place {
    addr: String,
    /// When it was last said.
    seen: Duration,
    /// The link goes there instead of where the log says.
    used: Option<String>,
    /// The link stood, or was last turned elsewhere.
    held: Option<Duration>,
    /// The last that was tried of what was heard.
    tried: String,
}

/// Addresses that others are said to have, and whether they are used.
#[derive(Debug, Default)]
pub(crate) struct Whereabouts(BTreeMap<RaftId, Place>);

impl Whereabouts {
    /// `id` is said to be at `addr`; `true`: that is news. Of strangers only some are
    /// remembered.
    pub fn hear(
        &mut self,
        id: RaftId,
        addr: &str,
        now: Duration,
        is_member: impl FnOnce() -> bool,
    ) -> bool {
        if let Some(place) = self.0.get_mut(&id) {
            place.seen = now;
            let news = place.addr != addr;
            if news {
                place.addr = addr.to_owned();
            }
            return news;
        }
        if self.0.len() >= STRANGERS_MAX && !is_member() {
            return false;
        }
        let place = Place {
            addr: addr.to_owned(),
            seen: now,
            used: None,
            held: None,
            tried: String::new(),
        };
        self.0.insert(id, place);
        true
    }

    /// Whether [`links`](Whereabouts::links) may come to something else by now.
    /// `named` is what the log says.
    pub fn unsettled<'a>(
        &self,
        named: impl Fn(&RaftId) -> Option<&'a str>,
        now: Duration,
        patience: Duration,
    ) -> bool {
        self.0.iter().any(|(id, place)| {
            now >= place.seen + patience || named(id).is_some_and(|named| named != place.addr)
        })
    }

    /// Where each is to be reached: the members that `log` names, and strangers heard
    /// of within `patience`. `up` tells whether the link to a member stands at an
    /// address.
    pub fn links(
        &mut self,
        log: BTreeMap<RaftId, String>,
        up: impl Fn(RaftId, &str) -> bool,
        now: Duration,
        patience: Duration,
    ) -> BTreeMap<RaftId, String> {
        self.0.retain(|id, place| {
            let fresh = now < place.seen + patience;
            let used = place.used.as_deref().filter(|_| log.contains_key(id));
            fresh || used.is_some_and(|used| up(*id, used))
        });
        let mut links = log;
        for (id, place) in &mut self.0 {
            let Some(named) = links.get_mut(id) else {
                links.insert(*id, place.addr.clone());
                continue;
            };
            place.settle(named, |addr| up(*id, addr), now, patience);
            if let Some(used) = &place.used {
                used.clone_into(named);
            }
        }
        links
    }
}

impl Place {
    /// Decides whether a member that the log has at `named` is reached elsewhere.
    fn settle(
        &mut self,
        named: &str,
        up: impl Fn(&str) -> bool,
        now: Duration,
        patience: Duration,
    ) {
        if self.used.as_deref() == Some(named) {
            self.used = None;
        }
        if up(self.used.as_deref().unwrap_or(named)) {
            self.held = Some(now);
            return;
        }
        // A new word is tried sooner than an old one again.
        let wait = match self.tried == self.addr {
            true => patience,
            false => patience / 4,
        };
        if self.held.is_some_and(|held| now < held + wait) {
            return;
        }
        let elsewhere = self.addr != named && self.used.as_ref() != Some(&self.addr);
        if elsewhere || self.used.is_some() {
            self.used = elsewhere.then(|| self.addr.clone());
            self.held = Some(now);
        }
        self.addr.clone_into(&mut self.tried);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(8);

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn log() -> BTreeMap<RaftId, String> {
        [(1, "old1".to_owned()), (2, "old2".to_owned())].into()
    }

    fn named(id: &RaftId) -> Option<&'static str> {
        match id {
            1 => Some("old1"),
            2 => Some("old2"),
            _ => None,
        }
    }

    /// Where the link to member 1 goes, if it stands at `up`.
    fn link(w: &mut Whereabouts, up: &str, now: u64) -> String {
        let links = w.links(log(), |_, addr| addr == up, secs(now), PATIENCE);
        assert_eq!(links[&2], "old2");
        links[&1].clone()
    }

    fn hear(w: &mut Whereabouts, addr: &str, now: u64) -> bool {
        w.hear(1, addr, secs(now), || true)
    }

    #[test]
    fn a_member_that_moved_is_reached_where_it_says_and_stays_so() {
        let mut w = Whereabouts::default();
        assert!(hear(&mut w, "new", 100));
        assert!(!hear(&mut w, "new", 101));
        assert_eq!(link(&mut w, "", 101), "new");
        // Long after it said so: the link stands.
        for now in [102, 150, 1000] {
            assert_eq!(link(&mut w, "new", now), "new");
            assert!(w.unsettled(named, secs(now), PATIENCE));
        }
        // It broke, and nothing is heard.
        assert_eq!(link(&mut w, "", 1001), "old1");
        assert!(!w.unsettled(named, secs(1001), PATIENCE));
    }

    #[test]
    fn a_link_that_stands_is_not_turned_by_a_word() {
        let mut w = Whereabouts::default();
        hear(&mut w, "new", 100);
        assert_eq!(link(&mut w, "old1", 100), "old1");
        assert_eq!(link(&mut w, "old1", 105), "old1");
        hear(&mut w, "new", 105);
        // A short break.
        assert_eq!(link(&mut w, "", 106), "old1");
        assert_eq!(link(&mut w, "old1", 107), "old1");
        for now in 108..117 {
            hear(&mut w, "new", now);
            assert_eq!(
                link(&mut w, "", now),
                if now < 109 { "old1" } else { "new" }
            );
        }
    }

    #[test]
    fn a_word_that_leads_nowhere_is_tried_in_turn_with_the_log() {
        let mut w = Whereabouts::default();
        let mut turns = Vec::new();
        for now in 100..132 {
            hear(&mut w, "nowhere", now);
            turns.push(link(&mut w, "", now));
        }
        for (i, at) in turns.iter().enumerate() {
            assert_eq!(at, if i / 8 % 2 == 0 { "nowhere" } else { "old1" }, "{i}");
        }
        // The log's leads there after all.
        hear(&mut w, "nowhere", 132);
        assert_eq!(link(&mut w, "", 132), "nowhere");
        hear(&mut w, "nowhere", 140);
        assert_eq!(link(&mut w, "", 140), "old1");
        for now in [141, 160] {
            hear(&mut w, "nowhere", now);
            assert_eq!(link(&mut w, "old1", now), "old1");
        }
    }

    #[test]
    fn two_words_take_turns_only_while_no_link_stands() {
        let mut w = Whereabouts::default();
        let mut at = String::new();
        for now in 100..110 {
            hear(&mut w, "name", now);
            at = link(&mut w, "name", now);
            hear(&mut w, "number", now);
            assert_eq!(link(&mut w, "name", now), at);
        }
        assert_eq!(at, "name");
    }

    #[test]
    fn a_member_that_moved_twice_and_back_is_found() {
        let mut w = Whereabouts::default();
        hear(&mut w, "old1", 100);
        assert_eq!(link(&mut w, "old1", 100), "old1");
        hear(&mut w, "new", 110);
        assert_eq!(link(&mut w, "", 110), "new");
        assert_eq!(link(&mut w, "new", 111), "new");
        hear(&mut w, "newer", 112);
        assert_eq!(link(&mut w, "", 112), "new");
        assert_eq!(link(&mut w, "", 113), "newer");
        hear(&mut w, "old1", 120);
        assert_eq!(link(&mut w, "", 120), "old1");
    }

    #[test]
    fn strangers_are_few_and_soon_forgotten() {
        let mut w = Whereabouts::default();
        for id in 10..30 {
            w.hear(id, "there", secs(100), || false);
        }
        assert!(hear(&mut w, "new", 100), "a member always");
        let links = w.links(log(), |_, _| true, secs(107), PATIENCE);
        assert_eq!(links.len(), 2 + STRANGERS_MAX);
        assert!(w.unsettled(named, secs(108), PATIENCE));
        assert_eq!(w.links(log(), |_, _| true, secs(108), PATIENCE), log());
    }
}
