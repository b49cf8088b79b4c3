//! What a replica asks for.

use dromon_binlog::{Checksum, GtidSet, Position};

/// Where a replica wants to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// Behind what it has.
    Gtid(Position),
    /// With what is not in this set of MySQL.
    Set(GtidSet),
    /// At a byte of a file; an empty name is the oldest one.
    File(String, u64),
}

/// What a replica wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wants {
    /// From where on.
    pub from: From,
    /// How events end.
    pub checksum: Checksum,
    /// And up to here (START SLAVE UNTIL master_gtid_pos); nothing of domains that it does not name.
    pub until: Option<Position>,
    /// The statements behind rows, too.
    pub annotate: bool,
    /// End instead of waiting.
    pub non_block: bool,
    /// Nanoseconds between heartbeats; 0: as the relay likes.
    pub heartbeat_ns: u64,
    /// Its own.
    pub server_id: u32,
    /// It is MariaDB or a relay.
    pub mariadb: bool,
    /// It is a relay, and heartbeats are to tell how far this one is behind its primary.
    pub lag: bool,
    /// It gets the same history by other ways, too, and may be ahead of this one for as long as that is behind
    /// (gtid_ignore_duplicates).
    pub other_ways: bool,
    /// It is `dromon replica`, and its target has what it applied under this name.
    pub channel: Option<String>,
}
