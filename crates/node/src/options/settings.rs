//! The options as the node uses them: plain fields, one consistent set.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use dromon_order::Gathering;

use super::HostPort;

/// Where a write set must be before its commit is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// On the disks of a majority.
    Majority,
    /// In the memory of a majority.
    Memory,
}

/// What this node does about a member that has kept its writers waiting for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowNode {
    /// Its writers wait on.
    Wait,
    /// They wait for that member no more until it has caught up; it still stores the log.
    Quarantine,
}

/// Encryption of the cluster's connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Connections are encrypted: `socket.ssl`, or certificate and key are named.
    pub enabled: bool,
    /// Plain connections are accepted as well.
    pub dynamic: bool,
    /// File with trusted authorities; empty: none.
    pub ca: PathBuf,
    /// File with the own certificate.
    pub cert: PathBuf,
    /// File with the private key.
    pub key: PathBuf,
    /// Cipher list; empty: the library's choice.
    pub cipher: String,
    /// File with the password of the key; empty: none.
    pub password_file: PathBuf,
    /// One of certificate and key is named, and nothing says whether to encrypt.
    pub half_named: bool,
    /// `gmcast.listen_addr` says `ssl://`.
    pub said_by_address: bool,
}

/// The values of those options that the node reads, with units and limits applied. The others are checked and
/// shown, and that is all.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Directory of the state files.
    pub base_dir: PathBuf,
    /// Directory of the log.
    pub log_dir: PathBuf,
    /// Where the others reach this node.
    pub advertised: HostPort,
    /// Where this node listens.
    pub listen: HostPort,
    /// Port of members whose address names none.
    pub base_port: u16,
    /// Network segment, 0 to 255.
    pub segment: u8,
    /// What this node weighs, 0 to 255: see [`crate::electors`].
    pub weight: u8,
    /// This node gives nobody a copy.
    pub stateless: bool,

    /// Silence after which the majority removes a member.
    pub suspect_timeout: Duration,
    /// How long the log of a member that answers may store nothing, before the majority removes it; never below
    /// `suspect_timeout`.
    pub inactive_timeout: Duration,
    /// Longest pause on an idle connection; never above a third of
    /// `suspect_timeout`.
    pub keepalive_period: Duration,
    /// Silence after which a member is shown as delayed.
    pub delay_margin: Duration,
    /// How long it is shown after it was late.
    pub delayed_keep_period: Duration,

    /// How long `connect` waits for a primary component.
    pub wait_prim_timeout: Duration,
    /// The user has set `pc.wait_prim_timeout` (a node whose log names other
    /// members waits without limit otherwise).
    pub wait_prim_timeout_given: bool,
    /// A minority goes on by force.
    pub ignore_quorum: bool,
    /// Half of the cluster goes on by force.
    pub ignore_sb: bool,

    /// Queue length (events) at which writers slow down, for one node.
    pub fc_limit: u64,
    /// Part of the limit below which they run at full rate, 0 to 1.
    pub fc_factor: f64,
    /// One node writes: the limit does not grow with the cluster.
    pub fc_single_primary: bool,
    /// How long the queue may be above the limit before writers pause.
    pub stall_patience: Duration,

    /// How long a current read waits.
    pub causal_read_timeout: Duration,
    /// Largest write set in bytes.
    pub max_ws_size: u64,
    /// 0: most votes win; N: success wins once N members succeeded.
    pub vote_policy: u8,
    /// Log each conflict.
    pub log_conflicts: bool,
    /// Encryption.
    pub tls: Tls,
    /// File with the cluster's secret; empty: there is none.
    pub secret_file: PathBuf,

    /// Bytes of the log that are kept for joiners.
    pub log_retain: u64,
    /// Bytes of the log at which laggards are given up; never below
    /// `log_retain`.
    pub log_max: u64,
    /// Where a write set must be before it is acknowledged.
    pub durability: Durability,
    /// Whether the flag alone founds a cluster where the own log names other voters.
    pub found_alone: bool,
    /// Whether this node gathers commits while it leads.
    pub gather: Gathering,
    /// What happens when another member is slow.
    pub slow_node: SlowNode,
    /// Rows of one table that become one key; `u64::MAX`: never.
    pub key_escalation: u64,
    /// Bytes above which a write set is applied piecemeal; `u64::MAX`: never.
    pub auto_stream_size: u64,
    /// Whether clients of a database with a binary log may commit in groups.
    pub binlog_groups: bool,
    /// Part of the throughput for large write sets, above 0, at most 1.
    pub bulk_share: f64,
    /// The same, if somebody has set it: then it bounds chunks and fragments, too.
    pub bulk_bound: Option<f64>,
    /// Bytes of one piece of a large write set.
    pub piece_size: usize,
}

impl Settings {
    /// Whether `addr` is this node, as far as the words tell: the address it
    /// announces, the one it listens at, or its port on the loopback.
    pub fn is_own(&self, addr: &HostPort) -> bool {
        let alike = |own: &HostPort| own.host.eq_ignore_ascii_case(&addr.host);
        let ip = addr.host.parse::<IpAddr>();
        let loopback = addr.host.eq_ignore_ascii_case("localhost")
            || ip.is_ok_and(|ip| ip.to_canonical().is_loopback());
        let everywhere = self.listen.host.parse::<IpAddr>();
        let everywhere = everywhere.is_ok_and(|ip| ip.is_unspecified());
        let heard = alike(&self.listen) || loopback && everywhere;
        alike(&self.advertised) && addr.port == self.advertised.port
            || heard && addr.port == self.listen.port
    }

    /// What to say where the others are sent to another place than this node listens at: without somebody who passes
    /// connections on they cannot come. Names of hosts are not looked up.
    pub fn listens_elsewhere(&self) -> Option<String> {
        let (own, heard) = (&self.advertised, &self.listen);
        let ip = |host: &str| host.parse::<IpAddr>().ok();
        let hosts = (ip(&own.host), ip(&heard.host));
        let covered = match hosts {
            (Some(own), Some(heard)) if heard.is_unspecified() => own.is_ipv4() || heard.is_ipv6(),
            (Some(own), Some(heard)) => own.to_canonical() == heard.to_canonical(),
            _ => true,
        };
        (!covered || own.port != heard.port).then(|| {
            format!(
                "this node listens at {heard}, and tells the others to come to {own} (base_host, base_port; their \
                 defaults are those of wsrep_node_address): unless something passes connections on from there, no \
                 other node can reach this one, and it cannot join. Set these options or gmcast.listen_addr"
            )
        })
    }
}
