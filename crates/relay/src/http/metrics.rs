//! What a relay tells Prometheus.

use dromon_binlog::uuid_text;

use super::families::Families;
use super::status::Status;

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

/// All of a relay.
pub fn metrics(s: &Status) -> String {
    let mut out = Families::new("dromon_relay_");
    let flag = |is: bool| if is { 1.0 } else { 0.0 };
    out.family("info", "gauge", "Version of the relay.");
    out.value("info", &[("version", s.version)], 1.0);
    out.one(
        "storing",
        "gauge",
        "0 after a failed write or fsync: nothing more is stored.",
        flag(s.failure.is_none()),
    );
    out.one("files", "gauge", "Files of events.", s.files as f64);
    out.one("file_bytes", "gauge", "Bytes of them.", s.bytes as f64);
    out.one(
        "purge_held_files",
        "gauge",
        "Files that would be purged if no replica needed them.",
        s.held.map_or(0, |(files, _)| files) as f64,
    );
    out.one(
        "memory_bytes",
        "gauge",
        "Newest events in memory.",
        s.memory as f64,
    );
    out.one(
        "stored_groups_total",
        "counter",
        "Transactions stored since the start.",
        s.stored.groups as f64,
    );
    out.one(
        "stored_bytes_total",
        "counter",
        "Bytes stored since the start.",
        s.stored.bytes as f64,
    );
    out.one(
        "syncs_total",
        "counter",
        "Times something was brought to the disk.",
        s.stored.syncs as f64,
    );
    out.family(
        "seqno",
        "gauge",
        "Last sequence number of each domain and server.",
    );
    for (domain, server, seqno) in &s.seqnos {
        let (domain, server) = (domain.to_string(), server.to_string());
        out.value(
            "seqno",
            &[("domain", &domain), ("server_id", &server)],
            *seqno as f64,
        );
    }
    if let Some(executed) = &s.executed {
        out.family("gtid_last", "gauge", "Last number of each source of MySQL.");
        for (source, list) in executed.iter() {
            let last = list.last().map_or(0, |(_, end)| end - 1);
            out.value("gtid_last", &[("source", &uuid_text(source))], last as f64);
        }
    }
    let p = &s.primary;
    out.one(
        "primary_connected",
        "gauge",
        "Events are coming from the primary.",
        flag(p.connected),
    );
    out.one(
        "primary_semi_sync",
        "gauge",
        "The primary is acknowledged to, if it waits for that.",
        flag(p.semi_sync),
    );
    out.one(
        "primary_semi_sync_on",
        "gauge",
        "It waits for acknowledgements, or has over this connection.",
        flag(p.semi_sync_on),
    );
    out.one(
        "primary_connections_total",
        "counter",
        "Connections to the primary.",
        p.connections as f64,
    );
    out.one(
        "primary_unordered_groups_total",
        "counter",
        "Transactions out of their domain's order.",
        p.unordered as f64,
    );
    if let Some(ms) = p.silent_ms {
        out.one(
            "primary_silent_seconds",
            "gauge",
            "Since anything came from the primary.",
            seconds(ms),
        );
    }
    if let Some(ms) = p.lag_ms {
        out.one(
            "primary_lag_seconds",
            "gauge",
            "The relay behind the primary.",
            seconds(ms),
        );
    }
    if let Some(count) = p.zstd {
        out.one(
            "primary_zstd_ratio",
            "gauge",
            "How many times smaller compression makes what comes, on the present or last connection.",
            count.ratio(),
        );
        out.one(
            "primary_wire_bytes",
            "gauge",
            "Compressed bytes that came on the present or last connection.",
            count.wire as f64,
        );
    }
    if let Some(h) = &s.hints {
        out.one(
            "hints_catalog",
            "gauge",
            "Tables are known.",
            flag(h.catalog),
        );
        out.one(
            "hints_catalogs_total",
            "counter",
            "Times that tables were read.",
            h.catalogs as f64,
        );
        out.one(
            "hints_groups_total",
            "counter",
            "Transactions looked at.",
            h.groups as f64,
        );
        out.one(
            "hints_joined_total",
            "counter",
            "Transactions that may run beside the one before: in one batch, or by their logical clock.",
            h.joined as f64,
        );
        out.one(
            "hints_barriers_total",
            "counter",
            "Transactions that nothing may run beside.",
            h.barriers as f64,
        );
    }
    out.family("replica_connected", "gauge", "The replica is here.");
    let named: Vec<(String, &super::ReplicaStatus)> = s
        .replicas
        .iter()
        .map(|r| (r.server_id.to_string(), r))
        .collect();
    for (id, r) in &named {
        out.value(
            "replica_connected",
            &[("server_id", id), ("host", &r.host)],
            flag(r.connected),
        );
    }
    out.family(
        "replica_cut_off",
        "gauge",
        "What it needs was purged, and nothing is kept for it (see keep_size_hard).",
    );
    for (id, r) in &named {
        out.value(
            "replica_cut_off",
            &[("server_id", id), ("host", &r.host)],
            flag(r.cut_off),
        );
    }
    out.family(
        "replica_sent_groups",
        "gauge",
        "Transactions sent since it came.",
    );
    for (id, r) in named.iter().filter(|(_, r)| r.connected) {
        out.value(
            "replica_sent_groups",
            &[("server_id", id), ("host", &r.host)],
            r.groups as f64,
        );
    }
    out.family(
        "replica_joined_groups",
        "gauge",
        "Of them, those that may run beside the one before: by their commit id or logical clock.",
    );
    for (id, r) in named.iter().filter(|(_, r)| r.connected) {
        out.value(
            "replica_joined_groups",
            &[("server_id", id), ("host", &r.host)],
            r.joined as f64,
        );
    }
    out.family(
        "replica_zstd_ratio",
        "gauge",
        "How many times smaller compression makes what it is sent; relays only.",
    );
    for (id, r) in &named {
        if let Some(count) = r.zstd {
            out.value(
                "replica_zstd_ratio",
                &[("server_id", id), ("host", &r.host)],
                count.ratio(),
            );
        }
    }
    out.family(
        "replica_sent_lag_seconds",
        "gauge",
        "Age of the oldest transaction that it was not sent.",
    );
    for (id, r) in &named {
        if let Some(ms) = r.sent_lag_ms {
            out.value(
                "replica_sent_lag_seconds",
                &[("server_id", id), ("host", &r.host)],
                seconds(ms),
            );
        }
    }
    out.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::ReplicaStatus;

    #[test]
    fn looks_as_prometheus_wants_it() {
        let status = Status {
            version: "0.1.0",
            seqnos: vec![(0, 1, 17)],
            replicas: vec![ReplicaStatus {
                server_id: 3,
                host: "a\"b\\c\n".into(),
                connected: true,
                sent_lag_ms: Some(1500),
                ..ReplicaStatus::default()
            }],
            hints: Some(Default::default()),
            held: Some((4, 3)),
            ..Status::default()
        };
        let text = metrics(&status);
        assert!(text.contains("\ndromon_relay_purge_held_files 4\n"));
        assert_eq!(status.json()["purge_held"]["server_id"], 3);
        assert!(text.contains("\ndromon_relay_seqno{domain=\"0\",server_id=\"1\"} 17\n"));
        assert!(text.contains(
            "\ndromon_relay_replica_sent_lag_seconds{server_id=\"3\",host=\"a\\\"b\\\\c\\n\"} 1.5\n"
        ));
        assert!(
            text.contains("# TYPE dromon_relay_syncs_total counter\ndromon_relay_syncs_total 0\n")
        );
        Families::check(&text);
    }
}
