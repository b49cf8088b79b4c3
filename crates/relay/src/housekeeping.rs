//! What is done now and then: old files go, known replicas are written down. Nothing that is stored
//! depends on it, so nothing that goes wrong here ends anything: it is tried again.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::log::{Level, Log};
use crate::serve::Server;
use crate::store::{Limits, StoreError, View};

/// How often.
const EVERY: Duration = Duration::from_secs(1);

/// What is kept, and where it is written who needs it.
#[derive(Clone, Debug)]
pub(crate) struct Keep {
    /// Of files.
    pub limits: Limits,
    /// A replica that was away for so many seconds is forgotten.
    pub forget: Option<u64>,
    /// Of the list of known replicas.
    pub path: PathBuf,
}

/// Retention, and what is known of replicas.
pub(crate) struct Housekeeping {
    server: Arc<Server>,
    view: Arc<View>,
    keep: Keep,
    log: Log,
    last: Instant,
    held: usize,
    unsaved: bool,
    /// What went wrong last time.
    said: String,
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

impl Housekeeping {
    /// Of a relay that starts.
    pub fn new(server: &Arc<Server>, view: &Arc<View>, keep: Keep, log: &Log) -> Housekeeping {
        Housekeeping {
            server: Arc::clone(server),
            view: Arc::clone(view),
            keep,
            log: log.clone(),
            last: Instant::now(),
            held: 0,
            unsaved: false,
            said: String::new(),
        }
    }

    /// Called often; does something each second.
    pub fn now_and_then(&mut self) {
        if self.last.elapsed() >= EVERY {
            self.last = Instant::now();
            self.keep_house(unix_now());
        }
    }

    fn keep_house(&mut self, now: u64) {
        let (forgotten, needed, text) = {
            let mut registry = self.server.registry();
            let forgotten = registry.tick(now, self.keep.forget);
            self.unsaved |= registry.take_changed();
            let text = self.unsaved.then(|| registry.text());
            (forgotten, registry.needed(), text)
        };
        for id in forgotten {
            self.log.say(
                Level::Warning,
                &format!("Replica {id} was away for too long and is forgotten."),
            );
        }
        let saved = text.map_or(Ok(()), |text| self.save(&text));
        self.unsaved = saved.is_err();
        let purged = self.view.purge(self.keep.limits, needed.map(|n| n.0), now);
        if let [first, .., last] | [first @ last] = &purged.gone[..] {
            self.log
                .say(Level::Note, &format!("Purged {first} to {last}."));
        }
        if purged.held > self.held
            && let Some((file, id)) = needed
        {
            self.log.say(
                Level::Warning,
                &format!(
                    "{} files would be purged, but replica {id} needs {} and what follows. If it is gone for good, set \
                     forget = … or keep_size_hard = ….",
                    purged.held,
                    self.view.name(file)
                ),
            );
        }
        self.held = purged.held;
        self.complain(saved.err().or(purged.error));
    }

    /// Once for each cause: it is tried each second.
    fn complain(&mut self, error: Option<StoreError>) {
        let text = error.map_or_else(String::new, |error| {
            format!("{error} It is tried again each second; nothing else depends on it.")
        });
        if text != self.said && !text.is_empty() {
            self.log.say(Level::Warning, &text);
        }
        self.said = text;
    }

    /// Written aside, then renamed: it is there as a whole, old or new.
    fn save(&self, text: &str) -> Result<(), StoreError> {
        let path = &self.keep.path;
        let aside = path.with_extension("replicas.new");
        let write = || {
            let mut file = fs::File::create(&aside)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&aside, path)
        };
        write().map_err(StoreError::access("write", &path.display().to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use dromon_binlog::BinlogState;
    use dromon_log::SimDevice;

    use super::*;
    use crate::serve::{Policy, Registry, ServeOptions};
    use crate::store::{Store, StoreOptions};

    #[test]
    fn what_goes_wrong_is_tried_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let (store, _) = Store::open(
            Arc::new(SimDevice::new(1)),
            StoreOptions::default(),
            BinlogState::new(),
        )
        .expect("empty");
        let view = store.view();
        let log = Log::file(&dir.path().join("log")).expect("writable");
        let options = ServeOptions {
            server_id: 1,
            accounts: Vec::new(),
            policy: Policy::Pass,
            policies: BTreeMap::new(),
            congestion: None,
            tls: None,
            tls_required: false,
            connections_max: 1,
            zstd: false,
            write_timeout: Duration::from_secs(1),
            heartbeat: Duration::from_secs(1),
        };
        let mut registry = Registry::new(60);
        registry.begins(3, "db3", 3306, 1, 1, 1000);
        let server = Server::new(options, Arc::clone(&view), registry, log.clone(), 0);
        let there = dir.path().join("later");
        let keep = Keep {
            limits: Limits::default(),
            forget: None,
            path: there.join("dromon-relay.replicas"),
        };
        let mut housekeeping = Housekeeping::new(&server, &view, keep.clone(), &log);
        housekeeping.keep_house(1001);
        housekeeping.keep_house(1002);
        let said = fs::read_to_string(dir.path().join("log")).expect("readable");
        assert_eq!(said.matches("could not write").count(), 1, "{said}");
        assert!(!said.contains("stores nothing more"), "{said}");
        assert!(view.failure().is_none());
        fs::create_dir(&there).expect("made");
        housekeeping.keep_house(1003);
        let kept = fs::read_to_string(&keep.path).expect("written");
        assert!(kept.starts_with("3 1 3306 "), "{kept}");
    }
}
