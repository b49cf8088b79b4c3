//! One question to or about several nodes at once: who is silent takes its whole time, and the others'
//! answers need not wait for that.

use std::time::Duration;

use bytes::Bytes;

use super::Node;

/// Why a node could not be asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// It is not there, or not yet: try again or another one.
    #[error("{0}")]
    Unreachable(String),
    /// Whether it is there was not looked: this host's resolver or network is not up (yet).
    #[error("{0}")]
    Unlooked(String),
    /// The same is not known yet: this host's resolver has not answered.
    #[error("{0}")]
    Resolving(String),
    /// It is there and will never let this node in: wrong cluster name, or no
    /// cluster node at all.
    #[error("{0}")]
    Refused(String),
    /// It may be there, and nobody can ask it just now: encryption or the secret do not fit, it broke
    /// off or is too busy, or this node has not what asking takes.
    #[error("{0}")]
    Barred(String),
    /// The same, and asking again is in vain: this node is not on its list, or it talks nonsense.
    #[error("{0}")]
    ShutOut(String),
    /// Somebody took the connection and did not answer in time.
    #[error("{0}")]
    Silent(String),
    /// It is there, and a node of another version: neither understands the other.
    #[error("{0}")]
    OtherVersion(String),
}

impl Node {
    /// What the nodes at `addrs` answer, in this order, after `timeout` at most.
    pub(super) fn ask_all(
        &self,
        cluster: &str,
        addrs: &[String],
        body: &Bytes,
        timeout: Duration,
    ) -> Vec<Result<Bytes, AskError>> {
        let ask = |addr: &String| self.engines.ask(cluster, addr, body.clone(), timeout);
        let lost = || Err(AskError::Barred("asking it failed here".to_owned()));
        side_by_side("dromon-ask", addrs, ask, lost)
    }
}

/// What `ask` says of each of `all`, in this order, all asked at the same time on threads of this name; `lost`: where
/// that panicked.
pub(super) fn side_by_side<A: Sync, T: Send>(
    name: &str,
    all: &[A],
    ask: impl Fn(&A) -> T + Sync,
    lost: impl Fn() -> T,
) -> Vec<T> {
    let ask = &ask;
    std::thread::scope(|scope| {
        let begun = all.iter().map(|one| {
            let thread = std::thread::Builder::new().name(name.into());
            let thread = thread.spawn_scoped(scope, move || ask(one));
            // Without a thread it is asked here, and the others wait for it.
            thread.map_err(|_| ask(one))
        });
        let begun: Vec<_> = begun.collect();
        let ended = begun.into_iter().map(|begun| match begun {
            Ok(thread) => thread.join().unwrap_or_else(|_| lost()),
            Err(answer) => answer,
        });
        ended.collect()
    })
}
