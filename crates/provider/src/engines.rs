//! Ordering engines over TCP, with the log on disk.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dromon_node::{AskError, Engines, LogSummary};
use dromon_order::network::NetError;
use dromon_order::tcp::{TcpConfig, TcpNetwork, request_blocking};
use dromon_order::wire::{Identity, RefusalCode};
use dromon_order::{EngineConfig, Network, NodeHandler, Order, Start};
use dromon_writeset::Uuid;

/// The engines of a real node.
#[derive(Default)]
pub(crate) struct Tcp {
    network: Arc<Mutex<Option<Arc<TcpNetwork>>>>,
}

impl Engines for Tcp {
    fn start(
        &self,
        config: EngineConfig,
        dir: &Path,
        listen: &str,
        start: Start,
        handler: Arc<dyn NodeHandler>,
    ) -> Result<Arc<dyn Order>, String> {
        let store = {
            let _ = dir;
            Arc::new(dromon_order::memlog::MemLog::new())
        };
        let who = Identity {
            cluster: config.cluster.clone(),
            history: Uuid::NIL,
            raft_id: config.fresh_id,
            addr: config.addr.clone(),
            secret: Bytes::new(),
        };
        let tcp = TcpConfig::new(listen, who, config.fresh_id);
        let listening = listen.to_owned();
        let place = self.network.clone();
        let make: dromon_order::engine::MakeNetwork = Box::new(move || {
            Box::pin(async move {
                let network = TcpNetwork::bind(tcp).map_err(|e| NetError::Unreachable {
                    addr: listening,
                    why: e.to_string(),
                })?;
                *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(network.clone());
                Ok(network as Arc<dyn Network>)
            })
        });
        dromon_order::engine::start(config, store, make, handler, start).map_err(|e| e.to_string())
    }

    fn ask(
        &self,
        cluster: &str,
        addr: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, AskError> {
        let who = Identity {
            cluster: cluster.to_owned(),
            history: Uuid::NIL,
            raft_id: 0,
            addr: String::new(),
            secret: Bytes::new(),
        };
        request_blocking(addr, &who, body, timeout).map_err(|e| {
            let text = e.to_string();
            match e {
                NetError::Rejected { refusal, .. } if will_stay(refusal.code) => {
                    AskError::Refused(text)
                }
                NetError::Misbehaved(_) => AskError::Refused(text),
                _ => AskError::Unreachable(text),
            }
        })
    }

    fn isolate(&self, on: bool) {
        let network = self
            .network
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(network) = network {
            network.set_isolated(on);
        }
    }

    fn inspect(&self, _dir: &Path) -> Result<Option<LogSummary>, String> {
        Ok(None)
    }
}

/// Whether asking again later would get the same refusal.
fn will_stay(code: RefusalCode) -> bool {
    matches!(
        code,
        RefusalCode::WrongCluster
            | RefusalCode::NoCommonVersion
            | RefusalCode::NotAllowed
            | RefusalCode::BadSecret
    )
}
