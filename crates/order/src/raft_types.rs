//! Our choice of the consensus library's types, and the way to and from ours.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use openraft::impls::leader_id_adv::LeaderId;

use crate::runtime::Runtime;
use crate::types::{Leadership, LogId, Members, RaftId};

/// A message of the order in its encoded form (see [`codec`](crate::codec)).
///
/// It is encoded once, at its origin; log, network and replication pass the
/// same bytes on without looking inside. A clone counts a reference.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Message(pub Bytes);

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message of {} bytes", self.0.len())
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What the log knows of a member besides its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Where its transport listens.
    pub addr: String,
}

openraft::declare_raft_types!(
    /// The types of our order.
    pub(crate) TypeConfig:
        D = Message,
        R = (),
        NodeId = RaftId,
        Node = Node,
        AsyncRuntime = Runtime,
);

/// Leadership id: several leaders per term are possible, ordered by node id.
pub(crate) type RaftLeader = LeaderId<u64, RaftId>;
pub(crate) type RaftLogId = openraft::LogId<RaftLeader>;
pub(crate) type RaftVote = openraft::impls::Vote<RaftLeader>;
pub(crate) type RaftPayload = openraft::EntryPayload<Message, RaftId, Node>;
pub(crate) type RaftEntry = openraft::Entry<RaftLeader, RaftPayload>;
pub(crate) type RaftMembership = openraft::Membership<RaftId, Node>;
pub(crate) type RaftMembers = openraft::StoredMembership<RaftLeader, RaftId, Node>;
pub(crate) type RaftSnapshotMeta = openraft::SnapshotMeta<RaftLeader, RaftId, Node>;
pub(crate) type AppendRequest = openraft::raft::AppendEntriesRequest<TypeConfig>;
pub(crate) type Raft = openraft::Raft<TypeConfig, crate::storage::StateMachine>;

/// Ours to the library's.
pub(crate) fn to_raft_log_id(id: LogId) -> RaftLogId {
    openraft::LogId {
        leader_id: LeaderId {
            term: id.term,
            node_id: id.leader,
        },
        index: id.index,
    }
}

/// The library's to ours.
pub(crate) fn from_raft_log_id(id: &RaftLogId) -> LogId {
    LogId {
        term: id.leader_id.term,
        leader: id.leader_id.node_id,
        index: id.index,
    }
}

impl From<RaftLeader> for Leadership {
    fn from(leader: RaftLeader) -> Leadership {
        Leadership {
            term: leader.term,
            leader: leader.node_id,
        }
    }
}

/// Ours to the library's. Fails for a voter without an address.
pub(crate) fn to_raft_members(members: &Members) -> Result<RaftMembers, String> {
    let nodes: BTreeMap<RaftId, Node> = members
        .addrs
        .iter()
        .map(|(id, addr)| (*id, Node { addr: addr.clone() }))
        .collect();
    let membership =
        RaftMembership::new(members.configs.clone(), nodes).map_err(|e| e.to_string())?;
    Ok(RaftMembers::new(
        members.log_id.map(to_raft_log_id),
        membership,
    ))
}

/// The library's to ours.
pub(crate) fn from_raft_members(stored: &RaftMembers) -> Members {
    Members {
        log_id: stored.log_id().as_ref().map(from_raft_log_id),
        ..from_raft_membership(stored.membership())
    }
}

/// The library's to ours, without a place in the log.
pub(crate) fn from_raft_membership(membership: &RaftMembership) -> Members {
    let configs: Vec<BTreeSet<RaftId>> = membership.get_joint_config().clone();
    Members {
        log_id: None,
        configs,
        addrs: membership
            .nodes()
            .map(|(id, node)| (*id, node.addr.clone()))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_compare_here_as_in_the_consensus() {
        let some = [0, 1, 7];
        let ids = some.iter().flat_map(|&term| {
            let leaders = some.iter().map(move |&leader| (term, leader));
            leaders.flat_map(|(term, leader)| {
                some.map(|index| LogId {
                    term,
                    leader,
                    index,
                })
            })
        });
        let ids: Vec<LogId> = ids.collect();
        for (a, b) in ids.iter().flat_map(|a| ids.iter().map(move |b| (a, b))) {
            let (ours, theirs) = (a.cmp(b), to_raft_log_id(*a).cmp(&to_raft_log_id(*b)));
            assert_eq!(ours, theirs, "{a} and {b}");
        }
    }
}
