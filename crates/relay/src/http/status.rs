//! All that there is to say about a relay.

use dromon_binlog::GtidSet;
use serde_json::{Value, json};

use crate::store::Stored;
use crate::wire::Compressed;

/// The way to the primary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrimaryStatus {
    /// `host:port`.
    pub address: String,
    /// Events are coming.
    pub connected: bool,
    /// Of the present or last connection.
    pub server_id: u32,
    /// The same.
    pub version: String,
    /// Whether it is acknowledged to, if it waits for that.
    pub semi_sync: bool,
    /// It does: it said so when the connection began, or has waited since.
    pub semi_sync_on: bool,
    /// Whether the connection is encrypted.
    pub encrypted: bool,
    /// Its file, and where in it the relay is.
    pub file: String,
    /// The same.
    pub position: u64,
    /// Connections so far.
    pub connections: u64,
    /// Why the last one ended.
    pub last_error: Option<String>,
    /// Milliseconds since anything came; `None`: nothing has come yet.
    pub silent_ms: Option<u64>,
    /// See [`primary_lag_ms`].
    pub lag_ms: Option<u64>,
    /// Groups out of their domain's order.
    pub unordered: u64,
    /// What compression has spared, if the primary is a relay and compresses.
    pub zstd: Option<Compressed>,
}

/// A replica that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Its server id.
    pub server_id: u32,
    /// As it calls itself.
    pub host: String,
    /// The same.
    pub port: u16,
    /// Where it comes from.
    pub address: Option<String>,
    /// Congestion control of its connection.
    pub congestion: String,
    /// Whether it is here.
    pub connected: bool,
    /// The oldest file that is kept for it.
    pub needs: String,
    /// What says so: `applied`, what it has not applied, or `hold`, what it was sent not so long ago.
    pub needs_by: &'static str,
    /// It was asked, and has applied all before this file; `None`: that is not known, and `hold` alone counts.
    pub applied: Option<String>,
    /// What it needs is gone, and nothing is kept for it.
    pub cut_off: bool,
    /// When it was here, in seconds since 1970.
    pub last_seen: u64,
    /// Groups sent since it came.
    pub groups: u64,
    /// Of them, those that may run beside the one before: they have its commit id, or a
    /// `last_committed` before it.
    pub joined: u64,
    /// What it had when it came, and was sent since.
    pub sent: String,
    /// Age of the oldest group that it was not sent; `None`: it is not here.
    pub sent_lag_ms: Option<u64>,
    /// What compression has spared, if it is a relay that asked for it.
    pub zstd: Option<Compressed>,
    /// What is done with parallelism: `pass`, `group` or `logical_clock`.
    pub policy: &'static str,
}

/// A replica for which nothing is kept any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForgottenStatus {
    /// Its server id.
    pub server_id: u32,
    /// As it called itself.
    pub host: String,
    /// The oldest file that was kept for it.
    pub needed: String,
    /// When, in seconds since 1970.
    pub at: u64,
    /// `an operator`, `the setting forget`, or `the number of replicas`.
    pub by: &'static str,
}

/// What is known of hints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HintStatus {
    /// Tables are known.
    pub catalog: bool,
    /// Times that they were read.
    pub catalogs: u64,
    /// Why reading them failed last.
    pub error: Option<String>,
    /// Groups looked at.
    pub groups: u64,
    /// Of them, those that may run beside the one before: in a batch with it, or by their logical
    /// clock.
    pub joined: u64,
    /// Of them, barriers.
    pub barriers: u64,
}

/// A relay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Of this program.
    pub version: &'static str,
    /// Its own.
    pub server_id: u32,
    /// `gtid_binlog_pos`.
    pub position: String,
    /// `gtid_executed`, of MySQL.
    pub executed: Option<GtidSet>,
    /// `gtid_purged`, of MySQL.
    pub purged: Option<GtidSet>,
    /// Seqno of each domain and server.
    pub seqnos: Vec<(u32, u32, u64)>,
    /// Files and their bytes.
    pub files: u64,
    /// The same.
    pub bytes: u64,
    /// The oldest file.
    pub oldest: String,
    /// Files that would be purged, and the replica that needs them.
    pub held: Option<(usize, u32)>,
    /// Bytes of the newest events in memory.
    pub memory: u64,
    /// Since the start.
    pub stored: Stored,
    /// Why nothing more is stored.
    pub failure: Option<String>,
    /// Where events come from.
    pub primary: PrimaryStatus,
    /// Who is known.
    pub replicas: Vec<ReplicaStatus>,
    /// Those that were forgotten since the start, the last ones.
    pub forgotten: Vec<ForgottenStatus>,
    /// If they are computed.
    pub hints: Option<HintStatus>,
}

impl Status {
    /// As JSON.
    pub fn json(&self) -> Value {
        let p = &self.primary;
        let replicas: Vec<Value> = self
            .replicas
            .iter()
            .map(|r| {
                json!({
                    "server_id": r.server_id,
                    "host": r.host,
                    "port": r.port,
                    "address": r.address,
                    "congestion": r.congestion,
                    "connected": r.connected,
                    "needs_file": r.needs,
                    "needs_by": r.needs_by,
                    "applied_file": r.applied,
                    "cut_off": r.cut_off,
                    "last_seen": r.last_seen,
                    "sent_groups": r.groups,
                    "sent_joined_groups": r.joined,
                    "sent_position": r.sent,
                    "sent_lag_ms": r.sent_lag_ms,
                    "policy": r.policy,
                    "zstd": zstd(r.zstd),
                })
            })
            .collect();
        let forgotten: Vec<Value> = self
            .forgotten
            .iter()
            .map(|f| {
                json!({
                    "server_id": f.server_id,
                    "host": f.host,
                    "needed_file": f.needed,
                    "at": f.at,
                    "by": f.by,
                })
            })
            .collect();
        json!({
            "version": self.version,
            "server_id": self.server_id,
            "gtid_binlog_pos": self.position,
            "gtid_executed": self.executed.as_ref().map(GtidSet::to_string),
            "gtid_purged": self.purged.as_ref().map(GtidSet::to_string),
            "files": self.files,
            "bytes": self.bytes,
            "oldest_file": self.oldest,
            "purge_held": self.held.map(|(files, id)| json!({"files": files, "server_id": id})),
            "memory_bytes": self.memory,
            "stored_groups": self.stored.groups,
            "stored_bytes": self.stored.bytes,
            "syncs": self.stored.syncs,
            "failure": self.failure,
            "primary": {
                "address": p.address,
                "connected": p.connected,
                "server_id": p.server_id,
                "version": p.version,
                "semi_sync": p.semi_sync,
                "semi_sync_on": p.semi_sync_on,
                "encrypted": p.encrypted,
                "file": p.file,
                "position": p.position,
                "connections": p.connections,
                "last_error": p.last_error,
                "silent_ms": p.silent_ms,
                "lag_ms": p.lag_ms,
                "unordered_groups": p.unordered,
                "zstd": zstd(p.zstd),
            },
            "replicas": replicas,
            "forgotten": forgotten,
            "hints": self.hints.as_ref().map(|h| json!({
                "catalog": h.catalog,
                "catalogs_read": h.catalogs,
                "catalog_error": h.error,
                "groups": h.groups,
                "joined_groups": h.joined,
                "barriers": h.barriers,
            })),
        })
    }
}

fn zstd(count: Option<Compressed>) -> Value {
    match count {
        None => Value::Null,
        Some(count) => json!({
            "bytes": count.raw,
            "wire_bytes": count.wire,
            "ratio": (count.ratio() * 100.0).round() / 100.0,
        }),
    }
}

/// What was heard of the primary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Milliseconds since anything came; `None`: nothing has come yet.
    pub silent_ms: Option<u64>,
    /// That was a heartbeat, which a primary sends only if it has nothing else.
    pub idle: bool,
    /// When the newest group was made, in milliseconds of the primary's clock, mostly of whole seconds; 0: none
    /// came.
    pub newest_ms: u64,
    /// The primary is a relay, and so many seconds behind its own, as it said itself.
    pub behind: u32,
    /// Now, in milliseconds since 1970.
    pub now_ms: u64,
    /// How often something must come, in milliseconds.
    pub beat_ms: u64,
}

/// How far the relay is behind its primary, in milliseconds, as far as it can know.
pub fn primary_lag_ms(heard: &Heard) -> Option<u64> {
    let silent = heard.silent_ms?;
    if heard.behind > 0 {
        return Some(u64::from(heard.behind) * 1000 + silent);
    }
    // What is committed is sent at once. So it has nothing, unless it is away.
    let away = match silent > 2 * heard.beat_ms {
        true => silent,
        false => 0,
    };
    // What a connection begins with says nothing of what is to come.
    if !heard.idle && heard.newest_ms == 0 {
        return None;
    }
    let at = heard.now_ms.saturating_sub(silent);
    // Mostly whole seconds, cut off, and clocks differ: below two nothing can be said.
    let old = at.saturating_sub(heard.newest_ms);
    let behind = match heard.idle || old < 2000 {
        true => 0,
        false => old,
    };
    Some(behind + away)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behind_the_primary() {
        let said = |silent_ms, idle, newest_ms, behind| {
            primary_lag_ms(&Heard {
                silent_ms,
                idle,
                newest_ms,
                behind,
                now_ms: 100_000_500,
                beat_ms: 1000,
            })
        };
        let lag = |silent, idle, newest| said(silent, idle, newest, 0);
        assert_eq!(
            said(Some(700), false, 99_999_000, 3600),
            Some(3_600_700),
            "a relay that is cut off"
        );
        assert_eq!(lag(None, true, 0), None);
        assert_eq!(
            lag(Some(5), false, 0),
            None,
            "a start: neither a group nor a heartbeat came"
        );
        assert_eq!(lag(Some(900), true, 5000), Some(0), "a heartbeat");
        assert_eq!(lag(Some(1999), false, 99_999_000), Some(0));
        let late = lag(Some(0), false, 99_990_000);
        assert_eq!(late, Some(10_500), "it catches up");
        let late = lag(Some(0), false, 99_990_321);
        assert_eq!(late, Some(10_179), "from one that says it better");
        assert_eq!(lag(Some(7000), true, 5000), Some(7000), "it is away");
        assert_eq!(
            lag(Some(7000), false, 99_990_000),
            Some(3500 + 7000),
            "it went while catching up"
        );
    }
}
