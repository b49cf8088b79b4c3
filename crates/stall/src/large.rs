//! The large transaction, on a connection of its own to the first node.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use dromon_load::storm::Session;
use dromon_sandbox::Cluster;

use crate::Clock;
use crate::plan::{Large, Mode};
use crate::tables::{self, DB};

/// What the client that runs it knows.
#[derive(Debug, Clone, Copy, Default)]
pub struct Told {
    /// The statement was sent.
    pub begin: Option<Duration>,
    /// COMMIT was sent.
    pub commit: Option<Duration>,
    /// COMMIT was acknowledged.
    pub end: Option<Duration>,
}

/// It, under way.
pub struct Running {
    told: Arc<Mutex<Told>>,
    thread: thread::JoinHandle<anyhow::Result<()>>,
}

impl Running {
    /// Connects, then begins. No statement may take longer than `limit`.
    pub fn start(
        cluster: &Cluster,
        large: Large,
        mode: Mode,
        generation: u32,
        clock: Clock,
        limit: Duration,
    ) -> anyhow::Result<Self> {
        let mut session = Session::open_within(cluster.node(0), DB, 0, limit)?;
        let (unit, size) = mode.fragments().unwrap_or(("bytes", 0));
        session.exec(&format!("SET SESSION wsrep_trx_fragment_unit = '{unit}'"))?;
        session.exec(&format!("SET SESSION wsrep_trx_fragment_size = {size}"))?;
        let rows = tables::rows(large);
        session.feed(move |stream| tables::write_lines(stream, rows, generation));
        let statement = tables::statement(large, generation);
        let told = Arc::new(Mutex::new(Told::default()));
        let shared = Arc::clone(&told);
        let thread = thread::spawn(move || {
            let tell = |change: &dyn Fn(&mut Told, Duration)| {
                let mut told = shared.lock().unwrap_or_else(PoisonError::into_inner);
                change(&mut told, clock.now());
            };
            session.exec("BEGIN").context("BEGIN of the large one")?;
            tell(&|t, now| t.begin = Some(now));
            let changed = session
                .exec(&statement)
                .context("the statement of the large one")?;
            anyhow::ensure!(
                changed == rows,
                "the large one changed {changed} rows where {rows} were to change"
            );
            tell(&|t, now| t.commit = Some(now));
            session.exec("COMMIT").context("COMMIT of the large one")?;
            tell(&|t, now| t.end = Some(now));
            Ok(())
        });
        Ok(Self { told, thread })
    }

    /// What is known so far.
    pub fn told(&self) -> Told {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when it has ended, well or not.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for its end.
    pub fn join(self) -> anyhow::Result<Told> {
        let result = self.thread.join();
        result.map_err(|_| anyhow::anyhow!("the large transaction's thread panicked"))??;
        Ok(*self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
