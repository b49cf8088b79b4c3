//! A node of a cluster as the primary: which of the cluster's transactions its binlog has.
//!
//! ```text
//!   log_slave_updates   its binlog has
//!   OFF                 what its own clients write, and nothing of the other nodes' clients
//!   ON                  all of the cluster
//!
//!   wsrep_gtid_mode     a GTID is
//!   OFF                 this node's own count
//!   ON                  the same on all nodes of one server_id and one wsrep_gtid_domain_id
//! ```

use crate::log::{Level, Log};
use crate::wire::Row;

/// Whether a server is a node. Not by SELECT, which on a node may wait for what the others acknowledged.
pub(super) const IS_NODE: &str = "SHOW GLOBAL VARIABLES LIKE 'wsrep_on'";
/// How long that answer may be.
pub(super) const IS_NODE_MAX: usize = 4096;
/// How a node writes its binlog.
pub(super) const OF_NODE: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
     ('wsrep_provider', 'log_slave_updates', 'log_replica_updates', 'wsrep_gtid_mode')";

/// What is to be done there.
pub(super) const SET: &str = "On all nodes set log_slave_updates = ON, wsrep_gtid_mode = ON, one server_id and one \
     wsrep_gtid_domain_id, and restart one after the other";

/// How a node of a cluster writes its binlog. What it does not say counts as right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// What comes from the other nodes, too.
    pub all: bool,
    /// With GTIDs that are the cluster's.
    pub common_gtids: bool,
}

/// Whether a variable of an answer is on; `None`: it is not there.
fn switch(rows: &[Row], names: &[&str]) -> Option<bool> {
    let value = value(rows, names)?;
    Some(value.eq_ignore_ascii_case(b"ON") || value == b"1")
}

fn value<'a>(rows: &'a [Row], names: &[&str]) -> Option<&'a [u8]> {
    rows.iter().find_map(|row| {
        let name = row.first()?.as_deref()?;
        let named = |one: &&str| name.eq_ignore_ascii_case(one.as_bytes());
        names.iter().any(named).then_some(())?;
        row.get(1)?.as_deref()
    })
}

/// Of the answer to [`IS_NODE`].
pub(super) fn is_node(rows: &[Row]) -> bool {
    switch(rows, &["wsrep_on"]) == Some(true)
}

impl Node {
    /// Of the answer to [`OF_NODE`]. `None`: it is in no cluster.
    pub(super) fn of(rows: &[Row]) -> Option<Node> {
        let alone = |provider: &[u8]| provider.is_empty() || provider.eq_ignore_ascii_case(b"none");
        if value(rows, &["wsrep_provider"]).is_some_and(alone) {
            return None;
        }
        Some(Node {
            all: switch(rows, &["log_slave_updates", "log_replica_updates"]) != Some(false),
            common_gtids: switch(rows, &["wsrep_gtid_mode"]) != Some(false),
        })
    }

    /// Says what whoever follows it already is to know; `warned`: not what was said last.
    pub fn warn(&self, address: &str, warned: &mut String, log: &Log) {
        let Some(text) = self.warning(address).filter(|text| text != warned) else {
            return;
        };
        log.say(Level::Warning, &text);
        *warned = text;
    }

    fn warning(&self, address: &str) -> Option<String> {
        let is = format!("{address} is a node of a cluster");
        if !self.all {
            return Some(format!(
                "{is}, and its log_slave_updates is OFF: its binlog has only what its own clients write. What the clients of the other \
                 nodes write is missing here, and goes on to be, though nothing else says so. {SET}; then begin anew, with a \
                 copy of the data."
            ));
        }
        (!self.common_gtids).then(|| {
            format!(
                "{is}, and its wsrep_gtid_mode is OFF: each node counts GTIDs by itself, so the position here means something else on \
                 another node. Do not move to another one: transactions would be missing or come twice, without a word. {SET}; then \
                 begin anew, with a copy of the data."
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(all: &[[&str; 2]]) -> Vec<Row> {
        let cell = |text: &&str| Some(text.as_bytes().to_vec());
        all.iter()
            .map(|row| row.iter().map(cell).collect())
            .collect()
    }

    #[test]
    fn what_a_node_says_of_its_binlog() {
        assert!(is_node(&rows(&[["wsrep_on", "ON"]])));
        assert!(!is_node(&rows(&[["wsrep_on", "OFF"]])));
        assert!(!is_node(&rows(&[])));
        let found = |updates: &str, gtids: &str| {
            let said = rows(&[
                ["log_slave_updates", updates],
                ["wsrep_gtid_mode", gtids],
                ["wsrep_provider", "/usr/lib/libdromon.so"],
            ]);
            let node = Node::of(&said).expect("a node");
            node.warning("db1:3306").unwrap_or_default()
        };
        assert_eq!(found("ON", "ON"), "");
        for gtids in ["ON", "OFF"] {
            let said = found("OFF", gtids);
            assert!(said.contains("only what its own clients write"), "{said}");
        }
        let said = found("ON", "OFF");
        assert!(said.contains("Do not move to another one"), "{said}");
        // What is not there is no reason for anything.
        let node = Node::of(&[]).expect("it said that it is one");
        assert_eq!(node.warning("db1:3306"), None);
        let replica = Node::of(&rows(&[["log_replica_updates", "OFF"]]));
        assert!(!replica.expect("a node").all);
        assert_eq!(Node::of(&rows(&[["wsrep_provider", "none"]])), None);
    }
}
