//! One question to several nodes at once: who is silent takes its whole time, and the others'
//! answers need not wait for that.

use std::time::Duration;

use bytes::Bytes;

use super::{AskError, Node};

impl Node {
    /// What the nodes at `addrs` answer, in this order, after `timeout` at most.
    pub(super) fn ask_all(
        &self,
        cluster: &str,
        addrs: &[String],
        body: &Bytes,
        timeout: Duration,
    ) -> Vec<Result<Bytes, AskError>> {
        let ask = |addr: &str| self.engines.ask(cluster, addr, body.clone(), timeout);
        let ask = &ask;
        std::thread::scope(|scope| {
            let begun = addrs.iter().map(|addr| {
                let thread = std::thread::Builder::new().name("dromon-ask".into());
                let thread = thread.spawn_scoped(scope, move || ask(addr));
                // Without a thread it is asked here, and the others wait for it.
                thread.map_err(|_| ask(addr))
            });
            let begun: Vec<_> = begun.collect();
            let lost = |_| Err(AskError::Barred("asking it failed here".to_owned()));
            let ended = begun.into_iter().map(|begun| match begun {
                Ok(thread) => thread.join().unwrap_or_else(lost),
                Err(answer) => answer,
            });
            ended.collect()
        })
    }
}
