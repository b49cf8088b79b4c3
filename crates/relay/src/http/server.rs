//! What a relay answers over HTTP.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dromon_binlog::Position;
use serde_json::json;

use super::asked::{Asked, asked};
use super::judge::judge;
use super::listen::listen;
use super::metrics::metrics;
use super::page::{Request, Response};
use super::questions::{Questions, Told};
use super::status::{ForgottenStatus, HintStatus, PrimaryStatus, ReplicaStatus, Status};
use crate::log::Log;
use crate::net::ClientTls;
use crate::pull::{AskError, Asker, Following, Login, quoted};
use crate::serve::{Forgotten, Known, Server};
use crate::store::{Kind, Place, View};

/// Time for a replica that is asked, in all.
const REPLICA_LIMIT: Duration = Duration::from_secs(1);
/// Longest answer of it: positions of 1 MiB are taken from replicas, too.
const POSITION_MAX: usize = 2 << 20;

/// As whom replicas are asked what they have applied.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The account; it needs no privileges.
    pub user: String,
    /// Its password.
    pub password: String,
    /// Say nothing to a replica before the connection is encrypted. Then it may have the password itself.
    pub tls: Option<ClientTls>,
}

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

    fn replica(&self, name: &str, max: u64) -> Response {
        let named: Vec<(u32, Known)> = {
            let registry = self.server.registry();
            let named = registry.named(name).into_iter();
            named.map(|(id, k)| (id, k.clone())).collect()
        };
        let found: Vec<ReplicaStatus> = named.iter().map(|(id, k)| self.of(*id, k)).collect();
        let applied = match (&self.watch, &named[..]) {
            (Some(watch), [(id, known)]) => known.connection.map(|connection| {
                let ask = || -> Told { applied(watch, known).map_err(|e| e.to_string()) };
                let told = self.questions.ask((*id, connection), ask);
                told.map(|position| self.view.lag_ms(&position))
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
                by: match f.by == Forgotten::BY_SETTING {
                    true => Forgotten::BY_SETTING,
                    // Who that was is in the log: anybody may ask here.
                    false => "an operator",
                },
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

/// Asks a replica, at the address that it came from: whatever it says of itself, nobody else is asked.
/// It says how the password is to be proved; over TLS that may be the password itself. So whoever
/// replicates from here can have that with a certificate of the authority, unless the name must be
/// that address, too.
fn applied(watch: &Watch, known: &Known) -> Result<Position, AskError> {
    let port = if known.port == 0 { 3306 } else { known.port };
    let address = match known.address {
        Some(ip) if ip.is_ipv6() => format!("[{ip}]:{port}"),
        Some(ip) => format!("{ip}:{port}"),
        None => String::new(),
    };
    let mut asker = Asker::connect(&Login {
        address,
        user: watch.user.clone(),
        password: watch.password.clone(),
        tls: watch.tls.clone(),
        limit: REPLICA_LIMIT,
        in_all: Some(REPLICA_LIMIT),
    })?;
    let question = match &known.channel {
        None => "SELECT @@GLOBAL.gtid_slave_pos".to_owned(),
        Some(name) => format!(
            "SELECT gtid_pos FROM dromon_replica.position WHERE channel={}",
            quoted(name)
        ),
    };
    let rows = asker.ask(&question, POSITION_MAX)?;
    let cell = rows.first().and_then(|row| row.first()?.as_deref());
    let text = String::from_utf8_lossy(cell.unwrap_or_default()).into_owned();
    text.parse().map_err(|_| AskError::NoPosition { text })
}
