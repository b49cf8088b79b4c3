//! Names that stand for several hosts.
//!
//! One name may be the whole of `wsrep_cluster_address`, as that of a Kubernetes service without an address of its own.
//! Whoever connects to it talks to one of its hosts, and to this one first once that listens: the system's resolver
//! sorts by nearness. So each of them is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use dromon_order::address::parse_address;

use super::asking::side_by_side;
use super::{Node, lock};
use crate::options::{HostPort, Settings};

/// Whether this node, if `at` is an address of this host (`here`), listens there.
fn is_own(settings: &Settings, at: &HostPort, here: bool) -> bool {
    let heard = settings.listen.host.parse::<IpAddr>();
    // One that it listens at alone is known by its words; of a name nothing is known.
    let everywhere = heard.map_or(true, |ip| ip.is_unspecified());
    settings.is_own(at) || here && everywhere && at.port == settings.listen.port
}

/// So often new addresses of a name are told as they come. One whose server gives others with each answer has always
/// more: then each [`SELDOM`].
const TOLD_MAX: usize = 64;
const SELDOM: Duration = Duration::from_secs(60);

/// Which addresses were told, by name.
#[derive(Debug, Default)]
pub(super) struct Told(BTreeMap<String, OfOne>);

#[derive(Debug)]
struct OfOne {
    addrs: BTreeSet<String>,
    words: usize,
    /// The last of them.
    at: Instant,
}

impl Told {
    /// Whether it is to be said at `now` that `name` has these addresses: one of them was not told.
    fn is_news(&mut self, name: &str, addrs: &[String], now: Instant) -> bool {
        let told = self.0.entry(name.to_owned()).or_insert(OfOne {
            addrs: BTreeSet::new(),
            words: 0,
            at: now,
        });
        let known = addrs.iter().all(|addr| told.addrs.contains(addr));
        if known || told.words >= TOLD_MAX && now < told.at + SELDOM {
            return false;
        }
        if told.addrs.len() >= TOLD_MAX {
            told.addrs.clear();
        }
        told.words += 1;
        told.at = now;
        told.addrs.extend(addrs.iter().cloned());
        true
    }
}

/// What `look` says of each of `listed`. A resolver that is silent takes its time for all of them, not for one after the
/// other.
fn looked_up<T: Default + Send>(
    listed: &[String],
    look: impl Fn(&str) -> T + Sync,
) -> Vec<(&String, T)> {
    let look = |name: &String| match parse_address(name, 0).is_ok_and(|at| at.ip().is_some()) {
        true => T::default(),
        false => look(name),
    };
    let found = match listed {
        [one] => vec![look(one)],
        all => side_by_side("dromon-names", all, look, T::default),
    };
    listed.iter().zip(found).collect()
}

impl Node {
    /// Those of `listed` whom to ask now: for a name with several addresses each of them, without this node's own. They
    /// change as hosts come and go, so each round looks anew. A name of which there is no other one (yet) stays.
    pub(super) fn each_address(&self, listed: &[String], settings: &Settings) -> Vec<String> {
        let mut each = Vec::new();
        for (name, all) in looked_up(listed, |name| self.engines.addresses(name)) {
            let others = all.into_iter();
            let others = others.filter(|(at, here)| !is_own(settings, at, *here));
            let mut others: Vec<String> = others.map(|(at, _)| at.to_string()).collect();
            if others.is_empty() {
                others.push(name.clone());
            } else {
                self.tell_addresses(name, &others);
            }
            others.retain(|addr| !each.contains(addr));
            each.append(&mut others);
        }
        each
    }

    /// What is said of an address has its number only: here is the name to it.
    fn tell_addresses(&self, name: &str, others: &[String]) {
        if lock(&self.addresses_told).is_news(name, others, Instant::now()) {
            self.note(&format!(
                "{name} stands for several addresses: asking at each of them but this node's own: {}",
                others.join(", ")
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Env, Options};

    #[test]
    fn an_address_of_this_host_is_own_where_this_node_listens() {
        let of = |options: &str, host: &str, port, here| {
            let mut parsed = Options::new(Env {
                node_address: "node.test".to_owned(),
                data_dir: "/tmp".to_owned(),
            });
            let _ = parsed.parse_init(options).expect("nothing is wrong");
            let host = host.to_owned();
            is_own(parsed.settings(), &HostPort { host, port }, here)
        };
        assert!(of("", "10.0.0.1", 4567, true));
        assert!(!of("", "10.0.0.1", 4567, false), "of another host");
        assert!(!of("", "10.0.0.1", 4568, true), "another node of this host");
        let one = "gmcast.listen_addr=tcp://10.0.0.1:4567";
        assert!(of(one, "10.0.0.1", 4567, true));
        assert!(!of(one, "10.0.0.2", 4567, true), "the same");
    }

    #[test]
    fn each_address_of_a_name_is_told_and_not_in_each_round() {
        let mut told = Told::default();
        let began = Instant::now();
        let mut says = |name: &str, addrs: &[usize], secs| {
            let addrs: Vec<String> = addrs.iter().map(|n| format!("10.0.0.{n}:4567")).collect();
            told.is_news(name, &addrs, began + Duration::from_secs(secs))
        };
        assert!(says("db", &[1, 2], 0));
        assert!(!says("db", &[1, 2], 1));
        assert!(says("other", &[1, 2], 1));
        assert!(says("db", &[2, 3], 1), "one more");
        // Its server gives some of them each time.
        for round in 2..100 {
            assert!(!says("db", &[round as usize % 3 + 1], round));
        }
        // Others each time. Two words were said.
        let words = (100..1000).filter(|round| says("db", &[2 * *round as usize], *round));
        let (last, seldom) = (100 + TOLD_MAX as u64 - 3, SELDOM.as_secs());
        let then = (999 - last) / seldom;
        assert_eq!(words.count(), TOLD_MAX - 2 + then as usize);
    }

    /// Each look ends when the other one has begun.
    #[test]
    fn names_are_looked_up_side_by_side() {
        let (begun, waits) = std::sync::mpsc::channel();
        let waits = std::sync::Mutex::new((0, waits));
        let look = |_: &str| {
            begun.send(()).expect("it is kept");
            let mut waits = waits.lock().expect("no look panics");
            while waits.0 < 2 {
                let next = waits.1.recv_timeout(Duration::from_secs(20));
                next.expect("the other look begins");
                waits.0 += 1;
            }
            true
        };
        let all = ["a:1", "10.0.0.1:1", "b:1"].map(str::to_owned);
        let found = looked_up(&all, look).into_iter();
        let found: Vec<(&str, bool)> = found.map(|(name, found)| (&name[..], found)).collect();
        let names = [("a:1", true), ("10.0.0.1:1", false), ("b:1", true)];
        assert_eq!(found, names, "a number is none");
    }
}
