//! What is done now and then: old files go, known replicas are written down. Nothing that is stored
//! depends on it, so nothing that goes wrong here ends anything: it is tried again.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dromon_log::Device;

use crate::log::{Level, Log};
use crate::serve::Server;
use crate::store::{Limits, StoreError, View};

/// How often.
const EVERY: Duration = Duration::from_secs(1);

/// What is kept, and where it is written who needs it.
#[derive(Clone)]
pub(crate) struct Keep {
    /// Of files.
    pub limits: Limits,
    /// A replica that was away for so many seconds is forgotten.
    pub forget: Option<u64>,
    /// Where the list of known replicas is.
    pub device: Arc<dyn Device>,
}

/// Retention, and what is known of replicas.
pub(crate) struct Housekeeping {
    server: Arc<Server>,
    view: Arc<View>,
    keep: Keep,
    log: Log,
    last: Instant,
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
        server.keeps(keep.limits, Arc::clone(&keep.device));
        Housekeeping {
            server: Arc::clone(server),
            view: Arc::clone(view),
            keep,
            log: log.clone(),
            last: Instant::now(),
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
        let (forgotten, needed, held) = {
            let mut registry = self.server.registry();
            let forgotten = registry.tick(now, self.keep.forget);
            self.unsaved |= registry.take_changed();
            let held = registry.held().map_or(0, |(files, _)| files);
            (forgotten, registry.needed(), held)
        };
        for id in forgotten {
            self.log.say(
                Level::Warning,
                &format!("Replica {id} was away for too long and is forgotten."),
            );
        }
        let saved = match self.unsaved {
            true => self.server.write_down(),
            false => Ok(()),
        };
        self.unsaved = saved.is_err();
        let purged = self.view.purge(self.keep.limits, needed.map(|n| n.0), now);
        if let [first, .., last] | [first @ last] = &purged.gone[..] {
            self.log
                .say(Level::Note, &format!("Purged {first} to {last}."));
        }
        if purged.held > held
            && let Some((file, id)) = needed
        {
            self.log.say(
                Level::Warning,
                &format!(
                    "{} files would be purged, but replica {id} needs {} and what follows. If it is gone for good, say \
                     FORGET REPLICA {id} to the relay (as an account of the setting admin), or set forget = … or keep_size_hard = ….",
                    purged.held,
                    self.view.name(file)
                ),
            );
        }
        let held = needed.map(|(_, id)| (purged.held, id));
        let held = held.filter(|(files, _)| *files > 0);
        self.server.registry().set_held(held);
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
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::io;

    use dromon_binlog::BinlogState;
    use dromon_log::SimDevice;

    use super::*;
    use crate::serve::{Policy, REPLICAS, Registry, ServeOptions};
    use crate::store::{Store, StoreOptions};

    fn housekeeping(device: &SimDevice, log: &Log) -> Housekeeping {
        let (store, _) = Store::open(
            Arc::new(SimDevice::new(1)),
            StoreOptions::default(),
            BinlogState::new(),
        )
        .expect("empty");
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
        let view = store.view();
        let server = Server::new(options, Arc::clone(&view), registry, log.clone(), 0);
        let keep = Keep {
            limits: Limits::default(),
            forget: None,
            device: Arc::new(device.clone()),
        };
        Housekeeping::new(&server, &view, keep, log)
    }

    #[test]
    fn what_goes_wrong_is_tried_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Log::file(&dir.path().join("log")).expect("writable");
        let device = SimDevice::new(1);
        let mut housekeeping = housekeeping(&device, &log);
        for now in [1001, 1002] {
            device.fail_write(1, io::ErrorKind::StorageFull);
            housekeeping.keep_house(now);
        }
        let said = fs::read_to_string(dir.path().join("log")).expect("readable");
        assert_eq!(said.matches("could not write").count(), 1, "{said}");
        assert!(!said.contains("stores nothing more"), "{said}");
        assert!(housekeeping.view.failure().is_none());
        assert_eq!(device.content(REPLICAS), None);
        housekeeping.keep_house(1003);
        let kept = device.content(REPLICAS).expect("written");
        assert!(kept.starts_with(b"3 1 3306 "), "{kept:?}");
    }
}
