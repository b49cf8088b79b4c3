//! The list of known replicas on the disk, and how an operator takes one off it.
//!
//! ```text
//!   FORGET REPLICA 7 ── of the registry ── written down ── answered
//!                                                            └ each second: what nobody needs is purged
//! ```

use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dromon_log::Device;

use super::registry::{Called, Forgotten, Known, Unforgettable};
use super::server::Server;
use super::session::{Reply, errors};
use crate::log::Level;
use crate::store::{Limits, StoreError};
use crate::wire::{Failure, TextResult};

/// Known replicas, across restarts.
pub(crate) const REPLICAS: &str = "dromon-relay.replicas";
/// The same while it is written.
const ASIDE: &str = "dromon-relay.replicas.new";

/// Where the list is, and what makes files go.
#[derive(Default)]
pub(super) struct ReplicaList {
    keeps: OnceLock<(Limits, Arc<dyn Device>)>,
    /// One at a time, and who was forgotten is on no list that is written later.
    writing: Mutex<()>,
}

/// Writes the list of known replicas aside, then renames it: it is there as a whole, old or new, and
/// new when this returns.
pub(crate) fn save(device: &dyn Device, text: &str) -> Result<(), StoreError> {
    let write = || {
        match device.remove(ASIDE) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let file = device.create(ASIDE)?;
        file.write_at(&mut [IoSlice::new(text.as_bytes())], 0)?;
        file.sync_all()?;
        device.rename(ASIDE, REPLICAS)?;
        device.sync_dir()
    };
    write().map_err(StoreError::access("write", REPLICAS))
}

impl Server {
    /// What makes files go, and where the list of known replicas is. Said once.
    pub fn keeps(&self, limits: Limits, device: Arc<dyn Device>) {
        // A second one would be of the same relay.
        let _ = self.replica_list.keeps.set((limits, device));
    }

    /// Writes down who is known.
    ///
    /// # Errors
    /// The disk's: the list is the one before, and is to be written again.
    pub(crate) fn write_down(&self) -> Result<(), StoreError> {
        let writing = self.replica_list.writing.lock();
        let _writing = writing.unwrap_or_else(PoisonError::into_inner);
        // Taken behind the lock: an older list never replaces a newer one.
        let text = self.registry().text();
        match self.replica_list.keeps.get() {
            Some((_, device)) => save(&**device, &text),
            None => Ok(()),
        }
    }

    /// An operator says that nothing is to be kept for a replica any more. `by`: who.
    pub(super) fn forget(&self, name: &Called, by: &str) -> Reply {
        let forgotten = self.registry().forget(name, by, self.now());
        let (id, known) = match forgotten {
            Ok(forgotten) => forgotten,
            Err(why) => {
                let text = self.not_forgotten(name, &why);
                let failure = Failure::new(errors::ARGUMENTS, text);
                return Reply::Error(failure);
            }
        };
        // The disk may be full, and this is what is to make room: it is forgotten in any case.
        let written = self.write_down();
        let mut text = format!(
            "{} If it comes back it is served and known again as long as what it lacks is here; when that was purged it \
             gets error 1236 and needs a new copy of the data.",
            self.released(&known)
        );
        if let Err(error) = &written {
            text.push_str(&format!(
                " That is not on the disk yet ({error}): should the relay end before it is, the replica is known again. \
                 It is tried again each second; SHOW KNOWN REPLICAS after the next start tells."
            ));
        }
        let who = called(id, &known.host);
        let line = format!("{who} is forgotten, as {by} said. {text}");
        self.log.say(Level::Warning, &line);
        let mut table = TextResult::new(&["Server_id", "Host", "Needed_file", "Message"]);
        table.row([
            id.to_string(),
            known.host.clone(),
            self.view.name(known.needs),
            format!("{who} is forgotten. {text}"),
        ]);
        Reply::Table(table)
    }

    fn not_forgotten(&self, name: &Called, why: &Unforgettable) -> String {
        match why {
            Unforgettable::Unknown => format!(
                "There is no replica {name} to forget. SHOW KNOWN REPLICAS names those for which files are kept"
            ),
            Unforgettable::Several(ids) => {
                let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
                let ids = ids.join(", ");
                format!(
                    "Several replicas are called {name}: {ids}. Nothing was forgotten. Give the server id"
                )
            }
            Unforgettable::TooSoon(id, known, secs) => format!(
                "{} was not forgotten: the relay has started a moment ago, and replicas come back by themselves within a minute \
                 or two (MASTER_CONNECT_RETRY). If it is still away in {secs} s (SHOW KNOWN REPLICAS), say it again",
                called(*id, &known.host)
            ),
            Unforgettable::Here(id, known) => {
                let from = known
                    .address
                    .map_or(String::new(), |a| format!(" from {a}"));
                format!(
                    "{} is connected{from} and was not forgotten: what it needs is kept while it is here. Stop it first (STOP \
                     SLAVE there). If its host is gone, the relay finds out when its packets were not acknowledged for \
                     write_timeout ({:?}); then say it again",
                    called(*id, &known.host),
                    self.options.write_timeout
                )
            }
        }
    }

    /// Which files were kept for a replica alone, and whether they go.
    fn released(&self, known: &Known) -> String {
        let last = self.view.end().file;
        let oldest = self.view.oldest().unwrap_or(last);
        let first = known.holds(oldest).unwrap_or(last);
        let other = self.registry().needed(oldest);
        // The last one is written to, and never goes.
        let end = other.map_or(last, |(file, _)| file.min(last));
        let also = match other {
            Some((file, id)) => format!(
                " {} and what follows is kept for replica {id}.",
                self.view.name(file)
            ),
            None => String::new(),
        };
        if first >= end {
            return format!("No file was kept for it alone.{also}");
        }
        let limits = self.replica_list.keeps.get().map(|keeps| keeps.0);
        let limits = limits.unwrap_or_default();
        let then = match limits == Limits::default() {
            true => {
                "They stay all the same until keep_size or keep_age is set, as without these nothing is purged."
            }
            false => "What the keep_… settings do not keep of them is purged within a second.",
        };
        format!(
            "{} to {} were kept for it alone ({} files). {then}{also}",
            self.view.name(first),
            self.view.name(end - 1),
            end - first
        )
    }
}

fn called(id: u32, host: &str) -> String {
    match host {
        "" => format!("Replica {id}"),
        host => format!("Replica {id} ({host})"),
    }
}

impl Forgotten {
    /// By the setting, not by somebody.
    pub(crate) const BY_SETTING: &'static str = "the setting forget";
    /// By nobody: too many were known.
    pub(crate) const BY_NUMBER: &'static str = "the number of replicas";
}

#[cfg(test)]
mod tests {
    use dromon_log::SimDevice;

    use super::*;

    /// The power goes, whenever: the list is the old one or the new one, and the new one once it was saved.
    #[test]
    fn the_list_is_there_after_a_power_cut() {
        for (n, seed) in (1..8).flat_map(|n| (0..20).map(move |seed| (n, seed))) {
            let device = SimDevice::new(seed);
            save(&device, "old").expect("a good disk");
            device.power_off_after(n);
            let saved = save(&device, "new").is_ok();
            device.crash(seed);
            let found = device.content(REPLICAS).expect("it is there");
            let fits = found == b"new" || found == b"old" && !saved;
            assert!(fits, "{n}: {}", String::from_utf8_lossy(&found));
            // What was left of it is no obstacle.
            save(&device, "newer").expect("a good disk");
        }
    }
}
