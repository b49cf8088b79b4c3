//! What a relay answers over HTTP.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;

use super::asked::{Asked, asked};
use super::judge::judge;
use super::listen::listen;
use super::metrics::metrics;
use super::page::{Request, Response};
use super::questions::{Questions, Told};
use super::status::{ForgottenStatus, HintStatus, PrimaryStatus, ReplicaStatus, Status};
use crate::log::Log;
use crate::pull::Following;
use crate::serve::{Forgotten, Known, Server};
use crate::store::{Kind, Place, View};
use crate::watch::{Watch, applied};

/// Answers.
pub struct HttpServer {
    /// Where the events come from.
    pub address: String,
    /// Who serves.
    pub server: Arc<Server>,
    /// What is stored.
    pub view: Arc<View>,
    /// The pulling side.
    pub following: Arc<Mutex<Following>>,
    /// Replicas are asked, too.
    pub watch: Option<Watch>,
    /// To them.
    pub questions: Questions,
    /// For what goes wrong.
    pub log: Log,
}

impl HttpServer {
    /// Takes connections until the process ends.
    pub fn listen(self: Arc<HttpServer>, listener: &TcpListener) {
        let log = self.log.clone();
        listen(
            listener,
            &log,
            Arc::new(move |request| self.answer(request)),
        );
    }

    fn answer(&self, request: &Request) -> Response {
        asked(request).map_or_else(|refused| refused, |asked| self.told(&asked))
    }

    fn told(&self, asked: &Asked) -> Response {
        match asked {
            Asked::Metrics => Response::metrics(metrics(&self.status())),
            Asked::Status => Response::json(200, &self.status().json()),
            Asked::Replica(name, max) => self.replica(name, *max),
        }
    }

    /// To `/replica/NAME`; `max`: milliseconds.
    pub(crate) fn replica(&self, name: &str, max: u64) -> Response {
        let named: Vec<(u32, Known)> = {
            let registry = self.server.registry();
            let named = registry.named(name).into_iter();
            named.map(|(id, k)| (id, k.clone())).collect()
        };
        let found: Vec<ReplicaStatus> = named.iter().map(|(id, k)| self.of(*id, k)).collect();
        let applied = match (&self.watch, &named[..]) {
            (Some(watch), [(id, known)]) => known.connection.map(|connection| {
                let ask = || -> Told { applied(watch, *id, known).map_err(|e| e.to_string()) };
                let told = self.questions.ask((*id, connection), ask);
                // What it wrote itself it never applies.
                told.map(|position| self.view.lag_ms(&known.has_if_applied(position)))
            }),
            _ => None,
        };
        let relay = self.primary().lag_ms;
        let judged = judge(name, &found, max, relay, applied.clone());
        let code = if judged.good { 200 } else { 503 };
        Response::json(
            code,
            &json!({
                "replica": name,
                "ok": judged.good,
                "lag_ms": judged.lag_ms,
                "max_lag_ms": max,
                "relay_lag_ms": relay,
                "sent_lag_ms": found.first().and_then(|r| r.sent_lag_ms),
                "applied_lag_ms": applied.and_then(Result::ok),
                "why": judged.why,
            }),
        )
    }

    fn of(&self, id: u32, known: &Known) -> ReplicaStatus {
        let here = known.connection.is_some();
        ReplicaStatus {
            server_id: id,
            host: known.host.clone(),
            port: known.port,
            address: known.address.map(|a| a.to_string()),
            congestion: known.congestion.clone(),
            connected: here,
            needs: self.view.name(known.needs),
            needs_by: match known.needs_by_applied() {
                true => "applied",
                false => "hold",
            },
            applied: known.applied_file().map(|file| self.view.name(file)),
            cut_off: known.is_cut_off(self.view.oldest().unwrap_or(0)),
            last_seen: known.last_seen,
            groups: known.groups,
            joined: known.joined,
            sent: match self.view.kind().by_place() {
                true => Place::of_position(&known.sent)
                    .map(|place| format!("{}:{}", self.view.name(place.file), place.at))
                    .unwrap_or_default(),
                false => known.sent.to_string(),
            },
            sent_lag_ms: here.then(|| self.view.lag_ms(&known.sent)),
            policy: self.server.policy(id).name(),
            zstd: known.zstd,
        }
    }

    fn primary(&self) -> PrimaryStatus {
        let following = self
            .following
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let silent_ms = following.silent_ms();
        PrimaryStatus {
            address: self.address.clone(),
            connected: following.connected,
            server_id: following.primary.server_id,
            version: following.primary.version.clone(),
            semi_sync: following.primary.semi_sync,
            semi_sync_on: following.primary.semi_sync_on,
            encrypted: following.encrypted,
            file: following.file.clone(),
            position: following.position,
            connections: following.connections,
            last_error: following.last_error.clone(),
            silent_ms,
            lag_ms: following.lag_ms(),
            unordered: following.unordered,
            zstd: following.zstd,
        }
    }

    fn hints(&self) -> Option<HintStatus> {
        let following = self
            .following
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        following.hints.clone()
    }

    /// All of it.
    pub fn status(&self) -> Status {
        let (known, held, forgotten) = {
            let registry = self.server.registry();
            let known = registry.known().iter().map(|(id, k)| (*id, k.clone()));
            let known: Vec<(u32, Known)> = known.collect();
            let forgotten = registry.forgotten().map(|f| ForgottenStatus {
                server_id: f.server_id,
                host: f.host.clone(),
                needed: self.view.name(f.needed),
                at: f.at,
                // Who an operator was is in the log: anybody may ask here.
                by: [Forgotten::BY_SETTING, Forgotten::BY_NUMBER]
                    .into_iter()
                    .find(|by| f.by == *by)
                    .unwrap_or("an operator"),
            });
            (known, registry.held(), forgotten.collect())
        };
        let files = self.view.list();
        let state = self.view.state();
        Status {
            version: env!("CARGO_PKG_VERSION"),
            server_id: self.server.server_id(),
            position: state.position().to_string(),
            executed: (self.view.kind() == Kind::MySql).then(|| self.view.executed()),
            purged: (self.view.kind() == Kind::MySql).then(|| self.view.purged()),
            seqnos: state
                .iter()
                .map(|g| (g.domain, g.server, g.seqno))
                .collect(),
            files: files.len() as u64,
            bytes: files.iter().map(|f| f.bytes).sum(),
            oldest: files.first().map(|f| f.name.clone()).unwrap_or_default(),
            held,
            memory: self.view.tail_bytes() as u64,
            stored: self.view.stored(),
            failure: self.view.failure().map(|e| e.to_string()),
            primary: self.primary(),
            replicas: known.iter().map(|(id, k)| self.of(*id, k)).collect(),
            forgotten,
            hints: self.hints(),
        }
    }
}

#[cfg(test)]
mod tests {
    use dromon_binlog::BinlogState;
    use dromon_log::SimDevice;

    use super::*;
    use crate::clock::Now;
    use crate::housekeeping::tests::{begins, options};
    use crate::serve::Registry;
    use crate::store::{Limits, Store, StoreOptions};

    #[test]
    fn who_is_cut_off() {
        let device = Arc::new(SimDevice::new(1));
        let opened = Store::open(device, StoreOptions::default(), BinlogState::new());
        let mut store = opened.expect("empty").0;
        for _ in 0..4 {
            store.begin_file(&begins()).expect("a good disk");
        }
        let (view, log) = (store.view(), Log::terminal());
        let registry = Registry::new(60);
        let server = Server::new(options(), Arc::clone(&view), registry, log.clone(), 0);
        for (id, file) in [(3, 1), (4, 4)] {
            let mut registry = server.registry();
            registry.begins(id, "db", 3306, id, file, Now::default());
            registry.ends(id, id, Now::default());
        }
        let http = HttpServer {
            address: String::new(),
            server,
            view: Arc::clone(&view),
            following: Arc::default(),
            watch: None,
            questions: Questions::default(),
            log,
        };
        let cut_off = || {
            let told = http.status().json();
            [0, 1].map(|n| told["replicas"][n]["cut_off"].as_bool())
        };
        assert_eq!(cut_off(), [Some(false); 2]);
        let hard = Limits {
            size_hard: Some(1),
            ..Limits::default()
        };
        assert_eq!(view.purge(hard, Some(1), 0).gone.len(), 3);
        assert_eq!(cut_off(), [Some(true), Some(false)]);
        let text = metrics(&http.status());
        let line = "dromon_relay_replica_cut_off{server_id=\"3\",host=\"db\"} 1\n";
        assert!(text.contains(line), "{text}");
    }
}
