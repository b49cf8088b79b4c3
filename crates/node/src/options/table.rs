//! The one table of every option name.
//!
//! Order is the order in which the options are shown: sorted by name, as in
//! the peer's own string; ours follow at their place in the alphabet.
//! What each row says about the peer (names, defaults, which of them are shown,
//! kind and flags in the config service) was read off a running 26.4.23.

/// What values an option takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// yes/no, true/false, on/off, 1/0.
    Bool,
    /// A whole number within bounds, both included.
    Int(i64, i64),
    /// Bytes (or a plain count) with K, M, G, T behind, within bounds.
    Size(i64, i64),
    /// A size or the word `auto`.
    SizeOrAuto,
    /// A number, decimal or 0x hexadecimal, kept as text.
    Mask,
    /// A decimal number within bounds, both included.
    Double(f64, f64),
    /// A duration, at least so many milliseconds.
    Span(u64),
    /// One of a few words.
    Choice(&'static [&'static str]),
    /// Any text.
    Text,
    /// A TCP port.
    Port,
    /// `tcp://host:port` or `ssl://host:port`; scheme and port may be missing.
    Listen,
    /// A host name or IP address.
    Node,
    /// A host, or host and port; may be empty.
    Address,
    /// The uuid of a member, or nothing.
    Member,
}

/// Where a default comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    /// The same everywhere.
    Is(&'static str),
    /// The server's data directory.
    DataDir,
    /// The value of another option.
    Of(&'static str),
    /// Half the duration of another option.
    HalfOf(&'static str),
    /// Host of the node's own address.
    Host,
    /// Port of the node's own address, else 4567.
    Port,
    /// All addresses of this host at `base_port`.
    Listen,
}

/// When an option can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// When the library is loaded, and never again.
    Load,
    /// Whenever this node is not connected to a cluster.
    Connect,
    /// At any time.
    Any,
    /// At any time; it is an order to do something, not a value to keep.
    Action,
}

/// Whether `wsrep_provider_options` shows an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// Always.
    Always,
    /// Only when given at start or different from its default.
    IfSet,
    /// While connections are encrypted: `FLUSH SSL` looks for it in the string.
    Encrypted,
    /// Never.
    Never,
}

/// Kind in the server's config service; `No` = not listed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    Str,
    Bool,
    Int,
    Dbl,
    No,
}

/// What became of the peer's option here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Means what it means in the peer.
    Kept,
    /// Has an effect, but another one than in the peer.
    Mapped,
    /// Has no effect: nothing here needs it, or not in this version.
    Ignored,
    /// Exists only here, and has an effect.
    Ours,
}

/// One row.
#[derive(Debug)]
pub(super) struct Spec {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) origin: Origin,
    pub(super) when: When,
    pub(super) shown: Shown,
    pub(super) listed: Listed,
    /// Flags in the config service.
    pub(super) read_only: bool,
    pub(super) deprecated: bool,
    pub(super) fate: Fate,
    /// For kept and ours: what it does. For mapped: what it does here. For
    /// ignored: why it has no effect, a clause without a full stop.
    pub(super) why: &'static str,
}

/// The place of a name in [`TABLE`].
pub(super) fn index(name: &str) -> Option<usize> {
    TABLE.binary_search_by(|s| s.name.cmp(name)).ok()
}

const BIG: i64 = i64::MAX;
const MIB: i64 = 1 << 20;

use Fate::{Ignored, Kept, Mapped, Ours};
use Kind::{
    Address, Bool as B, Choice, Double, Int, Listen as ListenOn, Mask, Member, Node,
    Port as PortNo, Size, SizeOrAuto, Span, Text,
};
use Listed::{Bool, Dbl, No, Str};
use Origin::{DataDir, HalfOf, Host, Is, Listen, Of, Port};
use Shown::{Always, Encrypted, IfSet, Never};
use When::{Action, Any, Connect, Load};

const RW: (bool, bool) = (false, false);
const RO: (bool, bool) = (true, false);
const OLD: (bool, bool) = (false, true);
const RO_OLD: (bool, bool) = (true, true);

/// The words of `repl.key_format`.
const FLAT: &[&str] = &["FLAT8", "FLAT8A", "FLAT16", "FLAT16A"];

macro_rules! table {
    ($($name:literal: $kind:expr, $origin:expr, $when:ident, $shown:ident, $listed:expr, $flags:ident, $fate:ident: $why:literal;)*) => {
        /// Every option, sorted by name.
        pub(super) static TABLE: &[Spec] = &[$(Spec {
            name: $name, kind: $kind, origin: $origin, when: $when, shown: $shown,
            listed: $listed, read_only: $flags.0, deprecated: $flags.1, fate: $fate, why: $why,
        }),*];
    };
}

table! {
    "allocator.disk_pages_encryption": B, Is("no"), Load, IfSet, No, RO, Ignored:
        "nothing is spilled to pages of the peer's kind; encrypt the file system that holds the data directory";
    "allocator.encryption_cache_page_size": Size(0, BIG), Is("32K"), Load, IfSet, No, RO, Ignored:
        "nothing is spilled to pages of the peer's kind";
    "allocator.encryption_cache_size": Size(0, BIG), Is("16777216"), Load, IfSet, No, RO, Ignored:
        "nothing is spilled to pages of the peer's kind";
    "base_dir": Text, DataDir, Load, Always, Str, RO, Kept:
        "directory of the state files: the data directory itself, or one outside of it";
    "base_host": Node, Host, Connect, Always, Str, RO, Kept:
        "host under which the other nodes reach this one";
    "base_port": PortNo, Port, Connect, Always, Listed::Int, RO, Kept:
        "port of the cluster's connections, and of members whose address names none";
    "cert.length_check": Int(0, BIG), Is("127"), Load, IfSet, No, RO, Ignored:
        "write sets are forgotten at an agreed cut, not by counting";
    "cert.log_conflicts": B, Is("no"), Any, Always, Bool, RW, Kept:
        "log the keys and transactions of each conflict";
    "cert.max_length": Int(0, BIG), Is("16384"), Load, IfSet, No, RO, Ignored:
        "the length of the certification index must be the same on all nodes and is fixed at 16384";
    "cert.optimistic_pa": B, Is("yes"), Any, Always, Bool, RW, Ignored:
        "applying in parallel beyond what the origin had seen cannot be switched off in this version";
    "debug": B, Is("no"), Any, Always, Bool, RW, Ignored:
        "there are no debug messages in this version";
    "dromon.auto_stream_size": Size(0, BIG), Is("16M"), Any, IfSet, Listed::Int, RW, Ours:
        "a transaction above this is applied by the other nodes in chunks that small ones pass; 0 = never";
    "dromon.binlog_groups": B, Is("no"), Any, IfSet, Bool, RW, Ours:
        "whether clients of a server with log_bin may commit in groups: with sync_binlog=1 faster where many write, but what ends one amid COMMIT (KILL, max_statement_time, a shutdown) may stop this server's commits, and with them the cluster, until it is started anew; no = a client commits when what comes before is finished";
    "dromon.bulk_share": Double(0.01, 1.0), Is("0.6"), Any, IfSet, Dbl, RW, Ours:
        "what part of the time the pieces of this node's large write sets may be under way while anybody orders small ones; 1 holds nothing back. Once it is set, by whatever value, it also bounds what chunks may take, and fragments (which have 0.8 and a milder rule without)";
    "dromon.durability": Choice(&["majority", "memory"]), Is("majority"), Load, IfSet, Str, RO, Ours:
        "where a write set must be before a commit is acknowledged: on the disks of a majority, or in their memory";
    "dromon.found_alone": B, Is("yes"), Any, IfSet, Bool, RW, Ours:
        "whether safe_to_bootstrap founds a cluster here although this node's log names other voters of which too few answer for a majority; no = such a start is refused";
    "dromon.gather": Choice(&["auto", "always", "never"]), Is("auto"), Load, IfSet, Str, RO, Ours:
        "whether the node that leads waits for more commits to write at once where several come: up to 4 ms while its threads must wait for a core, always up to 1 ms, or never";
    "dromon.key_escalation": Size(0, BIG), Is("200000"), Any, IfSet, Listed::Int, RW, Ours:
        "rows of one table in one transaction above which the whole table becomes the key; 0 = only where all keys of the transaction come to 60 MiB (then the largest tables do, whatever this is)";
    "dromon.log_max": Size(0, BIG), Is("4G"), Any, IfSet, Listed::Int, RW, Ours:
        "a member that is paused, desynced or behind holds no more of the others' log than this and gcache.size, but for what it has not stored itself: if it is removed then, it takes a full copy. One in quarantine that is further behind is given up. Never less than gcache.size";
    "dromon.piece_size": Size(4096, 16 * MIB), Is("256K"), Connect, IfSet, Listed::Int, RW, Ours:
        "large write sets travel in pieces of this size";
    "dromon.secret_file": Text, Is(""), Any, Never, No, RW, Ours:
        "file with the secret that every node must prove to know before it is told anything, at least 16 bytes; empty = none";
    "dromon.slow_node": Choice(&["wait", "quarantine"]), Is("wait"), Any, IfSet, Str, RW, Ours:
        "what this node does about a member that keeps its writers waiting for 5 s: wait on, or wait for it no more until it has caught up (it is Synced meanwhile, with old rows: wsrep_dromon_slow)";
    "dromon.stall_patience": Span(0), Is("PT1S"), Any, IfSet, Dbl, RW, Ours:
        "how long this node's queue may be above gcs.fc_limit before it asks the others to pause: a disk that hesitates stops nobody. A tenth of the time below the limit is earned again. PT0S = the limit counts at once";
    "evs.auto_evict": Int(0, BIG), Is("0"), Any, Always, Bool, RO, Ignored:
        "nobody is evicted for being late; a member silent for evs.suspect_timeout is removed by the majority";
    "evs.causal_keepalive_period": Span(0), Of("evs.keepalive_period"), Any, Always, Dbl, RW, Ignored:
        "a current read asks the majority at once and needs no keepalive";
    "evs.consensus_timeout": Span(0), Is("PT30S"), Any, IfSet, No, OLD, Ignored:
        "members are agreed on through the ordered log, without a consensus round of their own";
    "evs.debug_log_mask": Mask, Is("0x1"), Any, Always, Str, RW, Ignored:
        "there are no debug messages in this version";
    "evs.delay_margin": Span(0), Is("PT1S"), Any, Always, Dbl, RW, Kept:
        "a member whose reports are late by more than this is shown in wsrep_evs_delayed";
    "evs.delayed_keep_period": Span(0), Is("PT30S"), Any, Always, Dbl, RW, Kept:
        "how long a member is shown in wsrep_evs_delayed after it was late";
    "evs.evict": Member, Is(""), Action, Never, Str, RW, Kept:
        "remove the member with this uuid from the cluster; it may join again";
    "evs.inactive_check_period": Span(0), Is("PT0.5S"), Any, Always, Dbl, RW, Ignored:
        "silence is noticed by a timer for each member, not by looking now and then";
    "evs.inactive_timeout": Span(100), Is("PT15S"), Any, Always, Dbl, RW, Kept:
        "a member that answers, but whose log has stored nothing for this long, is removed by the majority: its disk hangs, or the way to it carries too little";
    "evs.info_log_mask": Mask, Is("0"), Any, Always, Str, RW, Ignored:
        "membership changes are always logged";
    "evs.install_timeout": Span(0), HalfOf("evs.inactive_timeout"), Any, Always, Dbl, RW, Ignored:
        "a view is an entry of the ordered log and needs no separate installation";
    "evs.join_retrans_period": Span(0), Is("PT1S"), Any, Always, Dbl, RW, Ignored:
        "a joiner always asks again every two seconds until its join is ordered";
    "evs.keepalive_period": Span(10), Is("PT1S"), Any, Always, Dbl, RW, Kept:
        "an idle connection carries a message at least this often";
    "evs.max_install_timeouts": Int(0, BIG), Is("3"), Any, Always, Listed::Int, RW, Ignored:
        "a view is an entry of the ordered log and needs no separate installation";
    "evs.send_window": Int(1, BIG), Is("4"), Any, Always, Listed::Int, RW, Ignored:
        "messages in flight are limited by bytes, which adapts by itself";
    "evs.stats_report_period": Span(0), Is("PT1M"), Any, Always, Dbl, RW, Ignored:
        "statistics are in SHOW STATUS at any time and are not reported periodically";
    "evs.suspect_timeout": Span(100), Is("PT5S"), Any, Always, Dbl, RW, Kept:
        "a member silent for this long is removed by the majority; the times of elections and of the primary lease follow from it";
    "evs.use_aggregate": B, Is("true"), Any, Always, Bool, RW, Ignored:
        "small messages always share a packet";
    "evs.user_send_window": Int(1, BIG), Is("2"), Any, Always, Listed::Int, RW, Ignored:
        "messages in flight are limited by bytes, which adapts by itself";
    "evs.version": Int(0, BIG), Is("1"), Any, Always, Str, RO, Ignored:
        "the cluster agrees on its protocol by itself";
    "evs.view_forget_timeout": Span(0), Is("P1D"), Connect, Always, Dbl, RO, Ignored:
        "views have numbers in the ordered log, so old ones need no forgetting";
    "gcache.dir": Text, Of("base_dir"), Load, Always, Str, RO, Kept:
        "directory of the log (dromon-*.log): the data directory itself, or one outside of it";
    "gcache.encryption": B, Is("no"), Load, IfSet, No, RO, Ignored:
        "the log is not encrypted; encrypt the file system that holds it";
    "gcache.encryption_cache_page_size": Size(0, BIG), Is("32K"), Load, IfSet, No, RO, Ignored:
        "the log is not encrypted; encrypt the file system that holds it";
    "gcache.encryption_cache_size": Size(0, BIG), Is("16777216"), Load, IfSet, No, RO, Ignored:
        "the log is not encrypted; encrypt the file system that holds it";
    "gcache.freeze_purge_at_seqno": Text, Is("-1"), Any, IfSet, No, RW, Ignored:
        "the log keeps by itself what a member or joiner still needs";
    "gcache.keep_pages_count": Int(0, BIG), Is("0"), Any, IfSet, No, RW, Ignored:
        "the log has no overflow pages";
    "gcache.keep_pages_size": Size(0, BIG), Is("0"), Any, Always, Listed::Int, RW, Ignored:
        "the log has no overflow pages";
    "gcache.keep_plaintext_size": Size(0, BIG), Is("128M"), Any, IfSet, No, RW, Ignored:
        "the log is not encrypted and keeps no second copy";
    "gcache.mem_size": Size(0, BIG), Is("0"), Any, Always, Listed::Int, RW, Ignored:
        "write sets are kept in the log, and the operating system caches its recent part";
    "gcache.name": Text, Is("galera.cache"), Load, Always, Str, RO, Ignored:
        "the log is several files named dromon-*.log, a name that the server's copy scripts spare";
    "gcache.page_size": Size(0, BIG), Is("128M"), Any, Always, Listed::Int, RW, Ignored:
        "the log has no overflow pages";
    "gcache.recover": B, Is("yes"), Load, Always, Bool, RO, Ignored:
        "the log is durable and is always read back after a restart";
    "gcache.size": Size(0, BIG), Is("128M"), Load, Always, Listed::Int, RO, Kept:
        "write sets of at least this size stay in the log for joiners";
    "gcomm.thread_prio": Text, Is(""), Connect, Always, Str, RW, Ignored:
        "thread priorities belong to the service manager (CPUSchedulingPolicy= in the unit file)";
    "gcs.check_appl_proto": B, Is("yes"), Load, IfSet, No, RO, Ignored:
        "the cluster agrees on its protocol by itself";
    "gcs.fc_auto_evict_threshold": Double(0.0, 1.0), Is("0.75"), Load, IfSet, No, RO, Ignored:
        "a slow node does not evict itself; the others wait for it";
    "gcs.fc_auto_evict_window": Double(0.0, 1e9), Is("0"), Load, IfSet, No, RO, Ignored:
        "a slow node does not evict itself; the others wait for it";
    "gcs.fc_debug": Int(0, BIG), Is("0"), Any, Always, Listed::Int, RW, Ignored:
        "the state of flow control is in SHOW STATUS at any time";
    "gcs.fc_factor": Double(0.0, 1.0), Is("1.0"), Any, Always, Dbl, RW, Kept:
        "writers run at full rate again when the slowest queue is below this part of gcs.fc_limit";
    "gcs.fc_limit": Size(0, BIG), Is("16"), Any, Always, Listed::Int, RW, Kept:
        "length of the slowest member's queue at which writers slow down";
    "gcs.fc_master_slave": B, Is("no"), Connect, Always, Bool, OLD, Kept:
        "old name of gcs.fc_single_primary";
    "gcs.fc_single_primary": B, Is("no"), Connect, Always, Bool, RO, Kept:
        "only one node writes: gcs.fc_limit does not grow with the number of nodes";
    "gcs.max_packet_size": Size(0, BIG), Is("64500"), Connect, Always, Listed::Int, RW, Ignored:
        "small write sets share messages and large ones travel in pieces of dromon.piece_size";
    "gcs.max_throttle": Double(0.0, 1.0), Is("0.25"), Any, Always, Dbl, RW, Ignored:
        "writers are slowed by gcs.fc_limit alone, and a member that takes a copy does not count";
    "gcs.recv_q_hard_limit": Size(0, BIG), Is("9223372036854775807"), Any, Always, Listed::Int, RW, Ignored:
        "payloads that wait leave memory at 128 MiB, which cannot be set in this version; they are read again from the log";
    "gcs.recv_q_soft_limit": Double(0.0, 1.0), Is("0.25"), Any, Always, Dbl, RW, Ignored:
        "payloads that wait leave memory at 128 MiB, which cannot be set in this version; they are read again from the log";
    "gcs.stateless": B, Is("false"), Connect, IfSet, Bool, RO, Kept:
        "this node gives nobody a copy";
    "gcs.sync_donor": B, Is("no"), Any, Always, Bool, RW, Ignored:
        "not available in this version: a donor does not count for flow control";
    "gcs.vote_policy": Int(0, 255), Is("0"), Connect, IfSet, Listed::Int, RO, Kept:
        "what wins when applying fails on some nodes: 0 = what most nodes have, success in a tie; N = success if N nodes have it, else as with 0. The first node of a cluster sets it for all";
    "gmcast.group": Text, Is(""), Connect, IfSet, Str, RO, Ignored:
        "the group is named by wsrep_cluster_name";
    "gmcast.isolate": Int(0, 2), Is("0"), Action, Never, No, RW, Mapped:
        "1 and 2 = drop all connections and accept none, 0 = back to normal; 2 does not shut the node down too";
    "gmcast.listen_addr": ListenOn, Listen, Connect, Always, Str, RO, Kept:
        "address on which this node listens; its port is the one that others are sent to, unless base_port or \
         wsrep_node_address names another";
    "gmcast.mcast_addr": Text, Is(""), Connect, Always, Str, RO, Ignored:
        "connections are TCP, never multicast";
    "gmcast.mcast_port": Int(0, 65535), Is("0"), Connect, IfSet, No, RO, Ignored:
        "connections are TCP, never multicast";
    "gmcast.mcast_ttl": Int(0, 255), Is("1"), Connect, Always, Listed::Int, RO, Ignored:
        "connections are TCP, never multicast";
    "gmcast.peer_addr": Text, Is(""), Any, IfSet, Str, RW, Ignored:
        "the members know each other from the log; addresses to try first belong into wsrep_cluster_address";
    "gmcast.peer_timeout": Span(10), Is("PT3S"), Connect, Always, Dbl, RO, Ignored:
        "an attempt to connect is always given up after 3 s";
    "gmcast.segment": Int(0, 255), Is("0"), Connect, Always, Listed::Int, RO, Kept:
        "network segment of this node; a donor is sought in the same one first";
    "gmcast.time_wait": Span(0), Is("PT5S"), Connect, Always, Dbl, RO, Ignored:
        "a removed member may come back at once";
    "gmcast.version": Int(0, BIG), Is("0"), Connect, Always, Str, RO, Ignored:
        "the cluster agrees on its protocol by itself";
    "ist.keep_keys": B, Is("true"), Load, IfSet, No, RO, Ignored:
        "write sets always keep their keys";
    "ist.recv_addr": Address, Of("base_host"), Connect, Always, Str, RO, Ignored:
        "a joiner catches up over the cluster's own connections, so no second port is opened";
    "ist.recv_bind": Address, Is(""), Connect, IfSet, Str, RO, Ignored:
        "a joiner catches up over the cluster's own connections, so no second port is opened";
    "pc.announce_timeout": Span(0), Is("PT3S"), Connect, Always, Dbl, RO, Ignored:
        "a node told to found a cluster looks for a running one for 3 s, at those that its own log names, or, without a log, where wsrep_cluster_address does; it founds at once if nobody listens there";
    "pc.bootstrap": B, Is("no"), Action, Never, Bool, RW, Mapped:
        "makes this node primary without a majority: a new incarnation of the cluster with what its log holds. For one node only. Refused while a member that is reached has more or does the same, or one may be there that cannot be asked";
    "pc.checksum": B, Is("false"), Connect, Always, Bool, RW, Ignored:
        "every message always carries a checksum";
    "pc.ignore_quorum": B, Is("false"), Any, Always, Bool, RW, Mapped:
        "this node goes on by itself when the majority is lost, whoever else is there, as a new incarnation: two parts may do so, and one of them takes a full copy later, which an operator decides";
    "pc.ignore_sb": B, Is("false"), Any, Always, Bool, RW, Mapped:
        "the half of a cluster that the other half cannot be heard from goes on by itself, as a new incarnation: both may do so, and one of them takes a full copy later, which an operator decides";
    "pc.linger": Span(0), Is("PT20S"), Connect, Always, Dbl, RO, Ignored:
        "a leaving node waits until its leave is ordered, and no longer";
    "pc.npvo": B, Is("false"), Connect, Always, Bool, RW, Ignored:
        "there is one history: of two primary components the one with the majority is the only one";
    "pc.recovery": B, Is("true"), Connect, Always, Bool, RO, Ignored:
        "after an outage of all nodes the members always form the primary component again by themselves, and so does the last one that was left";
    "pc.version": Int(0, BIG), Is("0"), Connect, Always, Str, RO, Ignored:
        "the cluster agrees on its protocol by itself";
    "pc.wait_prim": B, Is("true"), Connect, Always, Bool, RO, Ignored:
        "connecting always waits for a primary component, for pc.wait_prim_timeout";
    "pc.wait_prim_timeout": Span(0), Is("PT30S"), Connect, Always, Dbl, RO, Kept:
        "connecting waits this long for a primary component; if it is not set, a node whose own log names other voters waits for a majority of the logs without limit";
    "pc.wait_restored_prim_timeout": Span(0), Is("PT0S"), Connect, IfSet, No, RO, Ignored:
        "a node whose log names other voters waits for a majority of the logs without limit, or for pc.wait_prim_timeout if that is set";
    "pc.weight": Int(0, 255), Is("1"), Any, Always, Listed::Int, RW, Mapped:
        "if one of three or more members weighs more than all others together, it alone votes; a member of weight 0 has no vote while others of more have one; else each has one vote, and of two that vote the heavier one goes on without the other";
    "protonet.backend": Text, Is("asio"), Load, Always, Str, RO_OLD, Ignored:
        "there is only one network layer";
    "protonet.version": Int(0, BIG), Is("0"), Load, Always, Str, RO_OLD, Ignored:
        "there is only one network layer";
    "repl.causal_read_timeout": Span(0), Is("PT30S"), Any, Always, Dbl, RW, Kept:
        "a current read gives up after this time";
    "repl.commit_order": Int(0, 3), Is("3"), Load, Always, Str, RW, Ignored:
        "all nodes always commit in the same order, as with 3";
    "repl.key_format": Choice(FLAT), Is("FLAT8"), Any, Always, Str, RW, Ignored:
        "short keys travel as they are and long ones as hashes of 16 bytes";
    "repl.max_ws_size": Size(0, BIG), Is("2147483647"), Any, Always, Listed::Int, RW, Kept:
        "larger write sets are refused; sizes count as in the peer's encoding";
    "repl.proto_max": Int(0, BIG), Is("11"), Any, Always, Str, RW, Ignored:
        "the cluster agrees on its protocol by itself";
    "socket.checksum": Int(0, 2), Is("2"), Connect, Always, Listed::Int, RO, Ignored:
        "every message always carries a CRC-32C";
    "socket.dynamic": B, Is("false"), Connect, IfSet, Bool, RO, Kept:
        "with socket.ssl: plain connections are taken as well, and made where encrypted ones are not understood";
    "socket.recv_buf_size": SizeOrAuto, Is("auto"), Any, Always, Str, RW, Ignored:
        "the operating system chooses the buffers of connections";
    "socket.send_buf_size": SizeOrAuto, Is("auto"), Connect, Always, Str, RW, Ignored:
        "the operating system chooses the buffers of connections";
    "socket.ssl": B, Is("no"), Connect, IfSet, Bool, RO, Kept:
        "connections between nodes are encrypted and both ends show a certificate; on by itself when certificate and key are named";
    "socket.ssl_ca": Text, Is(""), Connect, IfSet, Str, RO, Kept:
        "file with the authorities whose certificates are trusted; empty = only the certificate in socket.ssl_cert";
    "socket.ssl_cert": Text, Is(""), Connect, IfSet, Str, RO, Kept:
        "file with the certificate of this node (version 3), others between it and the authority behind it";
    "socket.ssl_cipher": Text, Is(""), Connect, IfSet, Str, RO, Mapped:
        "only names of TLS 1.3 suites count, such as TLS_AES_256_GCM_SHA384; older ones have no effect, as TLS 1.3 is always used";
    "socket.ssl_compression": B, Is("no"), Connect, IfSet, Bool, RO_OLD, Ignored:
        "TLS 1.3 has no compression";
    "socket.ssl_key": Text, Is(""), Connect, IfSet, Str, RO, Kept:
        "file with the private key of the certificate";
    "socket.ssl_password_file": Text, Is(""), Connect, IfSet, Str, RO, Kept:
        "file with the password of the private key, in its first line";
    "socket.ssl_reload": B, Is("no"), Action, Encrypted, Bool, RW, Kept:
        "read certificates, key and secret again; new connections use them";
}
