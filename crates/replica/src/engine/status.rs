//! How a replica stands, for programs.

use std::time::Duration;

use dromon_binlog::Position;
use dromon_relay::http::Families;
use serde_json::{Value, json};

use super::shared::{Activity, Conflict, Stalls};
use crate::unit::Alone;

/// All that there is to say about a replica.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Its name.
    pub channel: String,
    /// Where the events come from.
    pub source: String,
    /// Where they go.
    pub target: String,
    /// What runs side by side.
    pub mode: String,
    /// Connections that apply, now.
    pub threads: usize,
    /// Most transactions of the source in one of the target, now.
    pub merge: usize,
    /// Connections that read ahead, now.
    pub readers: usize,
    /// Times that these three were changed.
    pub tuned: u64,
    /// Keys that were read ahead.
    pub read_ahead: u64,
    /// Events come.
    pub connected: bool,
    /// Connections to the target stand.
    pub applying: bool,
    /// All up to here is applied.
    pub position: Position,
    /// Where the source is, as far as is known.
    pub goal: Position,
    /// That is applied.
    pub caught_up: bool,
    /// What is applied is at most so old; `None`: not known.
    pub lag_ms: Option<u64>,
    /// Of what there was to apply when it began, and came since.
    pub percent: Option<f64>,
    /// Transactions of the source a second.
    pub rate: f64,
    /// Seconds to go.
    pub eta_s: Option<f64>,
    /// Since it began.
    pub uptime: Duration,
    /// Connections to the target, all of them together.
    pub sessions: u64,
    /// Transactions of the source that are applied.
    pub transactions: u64,
    /// Transactions of the target that they took.
    pub units: u64,
    /// Transactions of the source of which the filter left out all; they count as applied, too.
    pub left_out: u64,
    /// Transactions of the source that change a table without a unique key.
    pub keyless: u64,
    /// Bytes of events.
    pub bytes: u64,
    /// Bytes of events that came and are not planned yet.
    pub waiting: u64,
    /// XA transactions that are prepared on the source and not decided.
    pub prepared: usize,
    /// Transactions of the target's own that came back from the source in this session.
    pub came_back: usize,
    /// Units that gave way, by what showed it.
    pub by_keys: u64,
    /// The same.
    pub by_lock: u64,
    /// The same.
    pub by_error: u64,
    /// The newest of them; over HTTP and in the file without values of rows.
    pub conflicts: Vec<Conflict>,
    /// Units that were tried row by row.
    pub singles: u64,
    /// Rows that were put right.
    pub repaired: u64,
    /// Units that ran alone, by [`Alone`].
    pub alone: [u64; Alone::ALL.len()],
    /// Time by cause.
    pub stalls: Stalls,
    /// Time of all workers together, in microseconds, by [`Activity`].
    pub workers: [u64; Activity::ALL.len()],
    /// What has run out, at the target or here, if it waits for more of it.
    pub waits_for: Option<String>,
    /// And for how long it has.
    pub waits: Option<Duration>,
    /// How it ended.
    pub ended: Option<String>,
}

/// Whether readers may be sent to the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// They may.
    pub good: bool,
    /// In words.
    pub why: String,
}

impl Status {
    /// As JSON.
    pub fn json(&self) -> Value {
        let alone: Value = Alone::ALL
            .iter()
            .map(|which| (which.name().to_owned(), json!(self.alone[*which as usize])))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let time: Value = self
            .stalls
            .named()
            .iter()
            .map(|(name, us)| ((*name).to_owned(), json!(us / 1000)))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let workers: Value = Activity::ALL
            .iter()
            .map(|(doing, name)| {
                (
                    (*name).to_owned(),
                    json!(self.workers[*doing as usize] / 1000),
                )
            })
            .collect::<serde_json::Map<_, _>>()
            .into();
        let last: Vec<Value> = self
            .conflicts
            .iter()
            .map(|c| json!({"later": c.later, "earlier": c.earlier, "how": c.how, "what": c.what}))
            .collect();
        json!({
            "channel": self.channel,
            "source": self.source,
            "target": self.target,
            "mode": self.mode,
            "threads": self.threads,
            "merge": self.merge,
            "readers": self.readers,
            "tuned": self.tuned,
            "read_ahead_keys": self.read_ahead,
            "connected": self.connected,
            "applying": self.applying,
            "position": self.position.to_string(),
            "source_position": self.goal.to_string(),
            "caught_up": self.caught_up,
            "lag_ms": self.lag_ms,
            "percent": self.percent,
            "eta_seconds": self.eta_s,
            "rate_per_second": self.rate,
            "uptime_seconds": self.uptime.as_secs(),
            "sessions": self.sessions,
            "transactions": self.transactions,
            "target_transactions": self.units,
            "left_out": self.left_out,
            "keyless": self.keyless,
            "bytes": self.bytes,
            "waiting_bytes": self.waiting,
            "prepared": self.prepared,
            "came_back": self.came_back,
            "conflicts": {"keys": self.by_keys, "lock": self.by_lock, "error": self.by_error, "last": last},
            "row_by_row": self.singles,
            "repaired_rows": self.repaired,
            "alone": alone,
            "time_ms": time,
            "workers_ms": workers,
            "waits_for": self.waits_for,
            "waits_seconds": self.waits.map(|since| since.as_secs()),
            "ended": self.ended,
        })
    }

    /// For Prometheus.
    pub fn metrics(&self) -> String {
        let mut out = Families::new("dromon_replica_");
        let flag = |is: bool| if is { 1.0 } else { 0.0 };
        out.family("info", "gauge", "Version and settings of the replica.");
        out.value(
            "info",
            &[
                ("version", env!("CARGO_PKG_VERSION")),
                ("channel", &self.channel),
                ("mode", &self.mode),
            ],
            1.0,
        );
        let gauges = [
            (
                "connected",
                "Events come from the source.",
                flag(self.connected),
            ),
            (
                "applying",
                "Connections to the target stand.",
                flag(self.applying),
            ),
            (
                "caught_up",
                "Everything that the source had when it was asked last is applied.",
                flag(self.caught_up),
            ),
            (
                "waiting",
                "Something has run out, at the target or on this host, and it waits for more of it.",
                flag(self.waits_for.is_some()),
            ),
            ("threads", "Connections that apply.", self.threads as f64),
            (
                "merge",
                "Most transactions of the source in one of the target.",
                self.merge as f64,
            ),
            (
                "readers",
                "Connections that read ahead.",
                self.readers as f64,
            ),
            (
                "waiting_bytes",
                "Events that came and are not planned yet.",
                self.waiting as f64,
            ),
            (
                "prepared",
                "XA transactions that are prepared on the source and not decided.",
                self.prepared as f64,
            ),
            (
                "transactions_per_second",
                "Transactions of the source applied, over ten seconds.",
                self.rate,
            ),
        ];
        for (name, help, value) in gauges {
            out.one(name, "gauge", help, value);
        }
        let maybe = [
            (
                "lag_seconds",
                "What is applied is at most so old.",
                self.lag_ms.map(|ms| ms as f64 / 1000.0),
            ),
            (
                "progress_ratio",
                "Applied of what there was at the start, and came since.",
                self.percent.map(|percent| percent / 100.0),
            ),
            ("eta_seconds", "Until it has caught up.", self.eta_s),
        ];
        for (name, help, value) in maybe {
            if let Some(value) = value {
                out.one(name, "gauge", help, value);
            }
        }
        let counters = [
            (
                "transactions_total",
                "Transactions of the source that are applied.",
                self.transactions,
            ),
            (
                "target_transactions_total",
                "Transactions of the target that they took.",
                self.units,
            ),
            (
                "left_out_total",
                "Transactions of the source of which only and without left out all; they count as applied, too.",
                self.left_out,
            ),
            (
                "keyless_total",
                "Transactions of the source that change a table without a unique key: those of one table go one after the other.",
                self.keyless,
            ),
            (
                "event_bytes_total",
                "Bytes of their events, with what comes of compressed ones.",
                self.bytes,
            ),
            (
                "read_ahead_keys_total",
                "Keys that were read ahead.",
                self.read_ahead,
            ),
            (
                "tuned_total",
                "Times that threads, merge or readers were changed.",
                self.tuned,
            ),
            (
                "sessions_total",
                "Times that it connected to the target.",
                self.sessions,
            ),
            (
                "row_by_row_total",
                "Units that were tried row by row.",
                self.singles,
            ),
            (
                "repaired_rows_total",
                "Rows that were missing or there already, and were put right.",
                self.repaired,
            ),
        ];
        for (name, help, value) in counters {
            out.one(name, "counter", help, value as f64);
        }
        out.family(
            "conflicts_total",
            "counter",
            "Units that gave way to an earlier one, by what showed it.",
        );
        for (how, count) in [
            ("keys", self.by_keys),
            ("lock", self.by_lock),
            ("error", self.by_error),
        ] {
            out.value("conflicts_total", &[("how", how)], count as f64);
        }
        out.family("alone_total", "counter", "Units that ran alone, by cause.");
        for which in Alone::ALL {
            let count = self.alone[which as usize] as f64;
            out.value("alone_total", &[("cause", which.name())], count);
        }
        out.family(
            "time_seconds_total",
            "counter",
            "Time by what the first unit that had not committed was doing.",
        );
        for (cause, us) in self.stalls.named() {
            out.value("time_seconds_total", &[("cause", cause)], us as f64 / 1e6);
        }
        out.family(
            "workers_seconds_total",
            "counter",
            "Time of all workers together, by what they did with their units.",
        );
        for (doing, name) in Activity::ALL {
            let seconds = self.workers[doing as usize] as f64 / 1e6;
            out.value("workers_seconds_total", &[("doing", name)], seconds);
        }
        for (name, help, position) in [
            ("applied_seqno", "Applied, in each domain.", &self.position),
            (
                "source_seqno",
                "Where the source is, in each domain.",
                &self.goal,
            ),
        ] {
            out.family(name, "gauge", help);
            for gtid in position.iter() {
                let domain = gtid.domain.to_string();
                out.value(name, &[("domain", &domain)], gtid.seqno as f64);
            }
        }
        out.text()
    }

    /// Whether readers may be sent to the target that want nothing older than this.
    pub fn ready(&self, max_lag_ms: u64) -> Ready {
        let verdict = |good, why: String| Ready { good, why };
        if let (false, Some(what)) = (self.applying, &self.waits_for) {
            return verdict(false, format!("It waits for {what}."));
        }
        if !self.applying {
            return verdict(
                false,
                "The target cannot be reached, or is being prepared.".into(),
            );
        }
        match self.lag_ms {
            None => verdict(
                false,
                "Nothing is applied yet of what the source has said of where it is: the lag is not known.".into(),
            ),
            Some(lag) => verdict(
                lag <= max_lag_ms,
                format!("What is applied is at most {lag} ms old; {max_lag_ms} ms are allowed."),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        Status {
            channel: "a\"b".into(),
            position: "0-1-5,3-1-9".parse().expect("a position"),
            applying: true,
            lag_ms: Some(1500),
            percent: Some(50.0),
            alone: [7, 0, 1, 0, 5, 0],
            left_out: 3,
            keyless: 6,
            stalls: Stalls {
                commit_us: 2_500_999,
                ..Stalls::default()
            },
            workers: [0, 2_500_000, 0, 250_000, 0],
            ..Status::default()
        }
    }

    #[test]
    fn for_prometheus() {
        let text = status().metrics();
        Families::check(&text);
        for line in [
            "dromon_replica_lag_seconds 1.5",
            "dromon_replica_progress_ratio 0.5",
            "dromon_replica_alone_total{cause=\"ddl\"} 7",
            "dromon_replica_alone_total{cause=\"triggers\"} 5",
            "dromon_replica_left_out_total 3",
            "dromon_replica_keyless_total 6",
            "dromon_replica_time_seconds_total{cause=\"commit\"} 2.500999",
            "dromon_replica_workers_seconds_total{doing=\"turn\"} 2.5",
            "dromon_replica_workers_seconds_total{doing=\"again\"} 0.25",
            "dromon_replica_applied_seqno{domain=\"3\"} 9",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
        assert!(text.contains("channel=\"a\\\"b\""), "{text}");
        assert!(!text.contains("eta_seconds"), "nothing is known of it");
    }

    #[test]
    fn as_json() {
        let value = status().json();
        assert_eq!(value["alone"]["ddl"], 7);
        assert_eq!(value["left_out"], 3);
        assert_eq!(value["time_ms"]["commit"], 2500);
        assert_eq!(value["keyless"], 6);
        assert_eq!(value["workers_ms"]["turn"], 2500);
        assert_eq!(value["workers_ms"]["again"], 250);
        assert_eq!(value["position"], "0-1-5,3-1-9");
        assert!(value["eta_seconds"].is_null());
    }

    #[test]
    fn readers() {
        assert!(status().ready(1500).good);
        assert!(!status().ready(1499).good);
        let away = Status {
            applying: false,
            ..status()
        };
        assert!(!away.ready(u64::MAX).good);
        let unknown = Status {
            lag_ms: None,
            ..status()
        };
        assert!(!unknown.ready(u64::MAX).good);
    }
}
