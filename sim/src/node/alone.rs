//! Forced recovery: a node goes on without a majority, as an operator tells it
//! to. It takes the same steps as the server's node.

use std::sync::Arc;
use std::time::Duration;

use dromon_node::messages::Control;
use dromon_order::logstore::LogStore;
use dromon_order::{Engine, Order, OrderError, incarnation};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Process, Session};
use crate::shared::lock;

/// How long a node may take to lead itself.
const LEAD: Duration = Duration::from_secs(5);

impl Process {
    /// Has the node go on alone. To be called inside its runtime.
    pub fn go_alone(&self) {
        if let Some(session) = lock(&self.inner).session.clone() {
            session.spawn(session.clone().go_alone());
        }
    }
}

impl Session {
    async fn go_alone(self: Arc<Self>) {
        let Some(engine) = self.engine().cloned() else {
            return;
        };
        let slot = self.host.slot;
        let mut status = engine.status();
        {
            let mut inner = self.inner();
            let others = status.members.addrs.keys().copied();
            inner
                .forced_out
                .extend(others.filter(|id| *id != status.id));
            // What is in this log and not delivered yet goes along.
            let store = lock(&self.store).clone();
            let term_at = |index| {
                let read = store.as_ref()?.read(index..=index, 1).ok()?;
                read.first().filter(|r| r.index == index).map(|r| r.term)
            };
            self.shared.oracles().forks(slot, inner.index, term_at);
            self.note(format_args!(
                "goes on alone: delivered to {}, log to {}",
                inner.index, status.last.index
            ));
        }
        loop {
            let (tx, rx) = oneshot::channel();
            let done = Box::new(move |outcome| {
                // The asker waits below.
                let _ = tx.send(outcome);
            });
            engine.go_alone_then(&status, done);
            match rx.await {
                Ok(Ok(())) => break,
                // Nobody else is there: it wrote something itself.
                Ok(Err(OrderError::NotAsSeen)) => status = engine.status(),
                other => return self.note(format_args!("did not go on alone: {other:?}")),
            }
        }
        let begun = incarnation(engine.status().term);
        self.note(format_args!("is incarnation {begun:x}"));
        self.shared.oracles().forked(slot, begun);
        let index = status.last.index + 1;
        self.shared.electorate().alone(index, status.id);
        self.shared.count(|c| c.forced += 1);
        self.drop_others(&engine).await;
    }

    /// Orders the eviction of everybody else.
    async fn drop_others(&self, engine: &Arc<Engine>) {
        let until = Instant::now() + LEAD;
        let mut status = engine.status();
        while !(status.is_leader && status.primary) && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(10)).await;
            status = engine.status();
        }
        let members: Vec<_> = self.inner().state.members().map(|m| m.uuid).collect();
        for uuid in members.into_iter().filter(|uuid| *uuid != self.uuid) {
            let by = status.leads();
            self.say(&Control::Evict { uuid, by });
        }
    }
}
