//! Names that stand for several hosts.
//!
//! One name may be the whole of `wsrep_cluster_address`, as that of a Kubernetes service without an address of its own.
//! Whoever connects to it talks to one of its hosts, and to this one first once that listens: the system's resolver
//! sorts by nearness. So each of them is asked.

use std::net::IpAddr;

use super::{Node, lock};
use crate::options::{HostPort, Settings};

/// Whether this node, if `at` is an address of this host (`here`), listens there.
fn is_own(settings: &Settings, at: &HostPort, here: bool) -> bool {
    let heard = settings.listen.host.parse::<IpAddr>();
    // One that it listens at alone is known by its words; of a name nothing is known.
    let everywhere = heard.map_or(true, |ip| ip.is_unspecified());
    settings.is_own(at) || here && everywhere && at.port == settings.listen.port
}

impl Node {
    /// Those of `listed` whom to ask now: for a name with several addresses each of them, without this node's own. They
    /// change as hosts come and go, so each round looks anew. A name of which there is no other one (yet) stays.
    pub(super) fn each_address(&self, listed: &[String], settings: &Settings) -> Vec<String> {
        let mut each = Vec::new();
        for name in listed {
            let all = self.engines.addresses(name).into_iter();
            let others = all.filter(|(at, here)| !is_own(settings, at, *here));
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
        let others = others.join(", ");
        let mut told = lock(&self.addresses_told);
        if told.get(name) != Some(&others) {
            self.note(&format!(
                "{name} stands for several addresses: asking at each of them but this node's own: {others}"
            ));
            told.insert(name.to_owned(), others);
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
}
