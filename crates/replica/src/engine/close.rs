//! How a session ends: what is waited for, and what is cut then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dromon_relay::log::{Level, Log};

use super::{Progress, Shared};

/// What it may take to end in good order, before all connections are cut.
pub(super) const GRACE: Duration = Duration::from_secs(3);
/// What commits may take: others would only wait for them to be undone.
pub(super) const COMMITS: Duration = Duration::from_secs(1);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(20);

/// Waits for what has ended to come to its end: a commit, and what no rollback takes back, as nobody may be able
/// to say whether that was done if its connection is cut. `logs`: the target writes a binlog.
pub(super) fn wait(shared: &Shared, progress: &Progress, logs: bool, log: &Log) {
    let began = Instant::now();
    let mut said = false;
    loop {
        let (patience, last) = {
            let core = shared.lock();
            (core.patience(progress.is_told()), core.last_begun())
        };
        if patience.is_some_and(|patience| began.elapsed() >= patience) {
            if let Some(unit) = last {
                let (gtid, then) = (unit.name(), then(logs));
                let text = format!(
                    "{gtid} is still running on the target, which goes on with it. The next start waits for its end, {then}."
                );
                log.say(Level::Warning, &text);
            }
            return;
        }
        if let (None, Some(unit)) = (patience, last)
            && !std::mem::replace(&mut said, true)
        {
            let text = format!(
                "The session has ended, but {} is still running on the target, and no rollback takes it back: its end is waited for.",
                unit.name()
            );
            log.say(Level::Note, &text);
        }
        thread::sleep(LOOK);
    }
}

/// What the next start does then.
fn then(logs: bool) -> &'static str {
    match logs {
        true => "and sees in the target's binlog whether it was done",
        false => {
            "but cannot see whether it was done, as no binlog of the target shows it: look there when it has ended, and start with \
             in_doubt = skip if it was done (in_doubt = again would do it twice)"
        }
    }
}

/// Cuts all connections if the session has ended and does not come to its end, because the target
/// does not answer.
pub(super) fn close(shared: &Shared, progress: &Progress, over: &AtomicBool) {
    let mut until = None;
    while !over.load(Ordering::Acquire) {
        let counts = {
            let core = shared.lock();
            core.has_ended() && core.patience(progress.is_told()).is_some()
        };
        match counts {
            true => until = until.or(Some(Instant::now() + GRACE)),
            false => until = None,
        }
        if until.is_some_and(|until| Instant::now() > until) {
            return shared.cut();
        }
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::client::Client;
    use crate::compile::tests::{query, unit};
    use crate::engine::End;
    use crate::fake_target::{Fake, settings};
    use crate::schedule::After;
    use crate::unit::Alone;

    /// A target that does not answer holds up nobody who is told to end.
    #[test]
    fn what_hangs_is_cut() {
        let fake = Fake::new(|_| None);
        let settings = settings(&fake, &[]);
        let shared = Shared::new(&settings, String::new(), 64);
        let mut client = Client::connect(&settings.target).expect("a target");
        shared.connected(client.cut());
        shared.end(End::Told);
        close(&shared, &Progress::default(), &AtomicBool::new(false));
        assert!(client.query(b"SELECT 1").is_err());
        // And one that has only just come.
        let mut late = Client::connect(&settings.target).expect("a target");
        shared.connected(late.cut());
        assert!(late.query(b"SELECT 1").is_err());
    }

    /// A session that lasts for months holds no connection that another one has taken the place of.
    #[test]
    fn what_is_over_is_not_held() {
        let fake = Fake::new(|_| None);
        let settings = settings(&fake, &[]);
        let shared = Shared::new(&settings, String::new(), 64);
        let mut kept = Client::connect(&settings.target).expect("a target");
        shared.connected(kept.cut());
        let mut ended = Vec::new();
        for _ in 0..3 {
            let next = Client::connect(&settings.target).expect("a target");
            shared.connected(next.cut());
            ended.push(next.cut());
            assert_eq!(shared.connections(), 2);
        }
        assert!(ended.iter().all(crate::client::Cut::is_over));
        assert!(kept.query(b"SELECT 1").is_ok());
        shared.cut();
        assert!(kept.query(b"SELECT 1").is_err());
    }

    /// What no rollback takes back is let through; for how long depends on why all ends. What waits for a
    /// worker, or could not be applied, holds up nobody.
    #[test]
    fn what_is_waited_for() {
        let fake = Fake::new(|_| None);
        let (all, short, none) = (None, Some(GRACE), Some(Duration::ZERO));
        let again = || End::Again("a connection was lost".into());
        for (alone, end, told, wanted) in [
            (Some(Alone::Statement), again(), false, all),
            (Some(Alone::NotTransactional), again(), false, all),
            (Some(Alone::Statement), again(), true, short),
            (Some(Alone::Statement), End::Told, false, short),
            (
                Some(Alone::Statement),
                End::Fatal("no".into()),
                false,
                short,
            ),
            (Some(Alone::Within), again(), false, none),
            (None, again(), false, none),
        ] {
            let shared = Shared::new(&settings(&fake, &[]), String::new(), 64);
            let mut one = unit(vec![vec![query("ALTER TABLE t ADD c INT", "d")]]);
            one.alone = alone;
            let mut core = shared.lock();
            core.push(After::default(), Arc::new(one));
            drop(core);
            shared.end(end);
            let patience = || shared.lock().patience(told);
            assert_eq!(patience(), none, "nobody has begun");
            let n = shared.lock().scheduler.start();
            shared.lock().running[0] = n;
            assert_eq!(patience(), wanted, "{alone:?}, {told}");
            shared.lock().running[0] = None;
            assert_eq!(patience(), none, "it has failed");
        }
    }
}
