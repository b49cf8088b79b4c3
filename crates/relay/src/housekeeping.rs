//! What is done now and then: old files go, known replicas are written down. Nothing that is stored
//! depends on it, so nothing that goes wrong here ends anything: it is tried again.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dromon_log::Device;

use crate::clock::{Believed, Now};
use crate::log::{Level, Log};
use crate::serve::{KNOWN_MAX, Known, REPLICAS, Server};
use crate::store::{Limits, StoreError, View};

/// So long nothing is purged where there are files and no list of who needs them: replicas that run
/// come back within it.
pub(crate) const UNLISTED: Duration = Duration::from_secs(120);

/// A relay began so, and these two minutes were not over yet: it wrote a list of those that had come by then.
const UNLISTED_MARK: &str = "dromon-relay.unlisted";

/// Whether nobody knows who needs the files that are there: there is no list of that, or one that was begun less than
/// [`UNLISTED`] before the last relay ended. Until that is over the next start is told so, too.
pub(crate) fn is_unlisted(device: &dyn Device) -> bool {
    let names = device.list().unwrap_or_default();
    let is_there = |name: &str| names.iter().any(|other| other == name);
    let marked = is_there(UNLISTED_MARK);
    let unlisted = marked || !is_there(REPLICAS);
    if unlisted && !marked {
        // On a full disk the list cannot be written either.
        let _ = device.create(UNLISTED_MARK).map(drop);
    }
    unlisted
}

/// So long files are removed each time: no primary notices that nothing is pulled meanwhile.
pub(crate) const AT_ONCE: Duration = Duration::from_millis(100);

/// How often at most it is said that too many replicas are known, in seconds.
const CROWDED: u64 = 60;

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
    /// Files are removed for so long at once, and the others later: nothing is pulled meanwhile.
    pub at_once: Duration,
    /// There was no such list: purged is nothing before, but what the hard limit says.
    pub unlisted_until: Option<Instant>,
}

/// Retention, and what is known of replicas.
pub(crate) struct Housekeeping {
    server: Arc<Server>,
    view: Arc<View>,
    keep: Keep,
    log: Log,
    /// By which files are old.
    time: Believed,
    last: Instant,
    /// Whether it was said why nothing is purged yet.
    said_unlisted: bool,
    /// Of whom it was said that what they need is gone.
    cut_off: BTreeSet<u32>,
    /// When it was said last that too many are known, by [`Now::up`].
    said_crowded: Option<u64>,
    /// What went wrong last time.
    said: String,
}

impl Housekeeping {
    /// Of a relay that starts.
    pub fn new(server: &Arc<Server>, view: &Arc<View>, keep: Keep, log: &Log) -> Housekeeping {
        server.keeps(keep.limits, Arc::clone(&keep.device));
        let newest = view.newest().into();
        Housekeeping {
            time: Believed::new(newest, server.now()),
            server: Arc::clone(server),
            view: Arc::clone(view),
            keep,
            log: log.clone(),
            last: Instant::now(),
            said_unlisted: false,
            cut_off: BTreeSet::new(),
            said_crowded: None,
            said: String::new(),
        }
    }

    /// Called often; does something each second.
    pub fn now_and_then(&mut self) {
        if self.is_due() {
            self.keep_house(self.server.now());
        }
    }

    /// The same of a relay that stores nothing more: all files stay, and who comes is known at the next
    /// start, however it ends.
    pub fn without_purging(&mut self) {
        if self.is_due() {
            let saved = self.keep_list(self.server.now());
            let saved = saved.and_then(|()| self.is_listed());
            self.complain(saved.err());
        }
    }

    /// The list is on the disk: if there was time enough, it has all that run.
    fn is_listed(&mut self) -> Result<(), StoreError> {
        if self.keep.unlisted_until.is_none_or(|u| Instant::now() < u) {
            return Ok(());
        }
        match self.keep.device.remove(UNLISTED_MARK) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::access("remove", UNLISTED_MARK)(e))
            }
            _ => {
                self.keep.unlisted_until = None;
                Ok(())
            }
        }
    }

    fn is_due(&mut self) -> bool {
        let due = self.last.elapsed() >= EVERY;
        if due {
            self.last = Instant::now();
        }
        due
    }

    /// Writes down who is known, if that has changed.
    fn keep_list(&mut self, now: Now) -> Result<(), StoreError> {
        let mut registry = self.server.registry();
        let forgotten = registry.tick(now, self.keep.forget);
        let changed = registry.take_changed();
        let says = self.said_crowded.is_none_or(|at| at + CROWDED <= now.up);
        let (named, crowded) = match says {
            true => registry.take_crowded(),
            false => (Vec::new(), 0),
        };
        drop(registry);
        if crowded > 0 {
            self.said_crowded = Some(now.up);
            let ids: Vec<String> = named.iter().map(u32::to_string).collect();
            let more = match crowded - named.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            self.log.say(
                Level::Warning,
                &format!(
                    "More than {KNOWN_MAX} replicas were known, and those that were away for longest are forgotten: {}{more}. \
                     Nothing is kept for them any more. Does each replica come with a server id of its own that stays?",
                    ids.join(", ")
                ),
            );
        }
        for id in forgotten {
            self.log.say(
                Level::Warning,
                &format!("Replica {id} was away for too long and is forgotten."),
            );
        }
        if !changed {
            return Ok(());
        }
        let saved = self.server.write_down();
        if saved.is_err() {
            self.server.registry().is_unsaved();
        }
        saved
    }

    fn keep_house(&mut self, now: Now) {
        let saved = self.keep_list(now);
        let saved = saved.and_then(|()| self.is_listed());
        let held = self.server.registry().held().map_or(0, |(files, _)| files);
        // Not before: writing takes a while, and who comes in the meantime needs files, too.
        let oldest = self.view.oldest().unwrap_or(0);
        let needed = self.server.registry().needed(oldest);
        let waits = self.keep.unlisted_until.is_some_and(|u| Instant::now() < u);
        let from = match waits {
            true => Some(oldest),
            false => needed.map(|n| n.0),
        };
        let began = Instant::now();
        let time = self.time.at(now);
        let in_time = || began.elapsed() < self.keep.at_once;
        let purged = self.view.purge_while(self.keep.limits, from, time, in_time);
        if waits && purged.held > 0 && !std::mem::replace(&mut self.said_unlisted, true) {
            self.log.say(
                Level::Warning,
                &format!(
                    "{} files would be purged, but there was no list of what replicas need ({REPLICAS}) at the start: none goes \
                     in the first {} s, in which those that run connect. If others need them, stop the relay and take the \
                     keep_… settings out, until SHOW KNOWN REPLICAS lists all.",
                    purged.held,
                    UNLISTED.as_secs()
                ),
            );
        }
        if let [first, .., last] | [first @ last] = &purged.gone[..] {
            self.log
                .say(Level::Note, &format!("Purged {first} to {last}."));
        }
        if !waits
            && purged.held > held
            && let Some((file, id)) = needed
        {
            let name = self.view.name(file);
            let lags = |k: &Known| k.connection.is_some() && k.needs_by_applied();
            let lags = self.server.registry().known().get(&id).is_some_and(lags);
            let why = match lags {
                true => format!(
                    "has not applied {name} and what follows. Look at its SQL thread (SHOW SLAVE STATUS there), or set \
                     keep_size_hard = …."
                ),
                false => format!(
                    "needs {name} and what follows. If it is gone for good, say FORGET REPLICA {id} to the relay (as an account \
                     of the setting admin), or set forget = … or keep_size_hard = …."
                ),
            };
            let text = format!(
                "{} files would be purged, but replica {id} {why}",
                purged.held
            );
            self.log.say(Level::Warning, &text);
        }
        let held = needed.filter(|_| !waits);
        let held = held.map(|(_, id)| (purged.held, id));
        let held = held.filter(|(files, _)| *files > 0);
        self.server.registry().set_held(held);
        self.say_who_is_cut_off();
        self.complain(saved.err().or(purged.error));
    }

    /// Once for each replica.
    fn say_who_is_cut_off(&mut self) {
        let oldest = self.view.oldest().unwrap_or(0);
        let registry = self.server.registry();
        let cut: Vec<(u32, u64)> = registry
            .cut_off(oldest)
            .map(|(id, known)| (id, known.needs))
            .collect();
        drop(registry);
        for (id, needs) in cut.iter().filter(|(id, _)| !self.cut_off.contains(id)) {
            self.log.say(
                Level::Warning,
                &format!(
                    "Replica {id} is cut off: it needs {}, and the oldest file is {} (see keep_size_hard). Nothing is held for it \
                     any more. If it comes back it needs a new copy of the data; if it is gone for good, say FORGET REPLICA {id}.",
                    self.view.name(*needs),
                    self.view.name(oldest)
                ),
            );
        }
        self.cut_off = cut.into_iter().map(|(id, _)| id).collect();
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
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::sync::OnceLock;

    use dromon_binlog::{
        BinlogState, Checksum, EventType, Format, GroupName, Gtid, Header, Payload, encode_event,
        version_bytes,
    };
    use dromon_log::{DeviceFile, SimDevice};

    use super::*;
    use crate::serve::{Called, Policy, Registry, ServeOptions};
    use crate::store::{Part, Store, StoreOptions};

    /// Both clocks show this.
    fn at(secs: u64) -> Now {
        Now {
            unix: secs,
            up: secs,
        }
    }

    /// While the list of replicas is written, one comes.
    struct Meanwhile {
        device: SimDevice,
        server: OnceLock<Arc<Server>>,
    }

    impl Device for Meanwhile {
        fn list(&self) -> io::Result<Vec<String>> {
            self.device.list()
        }
        fn open(&self, name: &str) -> io::Result<Arc<dyn DeviceFile>> {
            self.device.open(name)
        }
        fn create(&self, name: &str) -> io::Result<Arc<dyn DeviceFile>> {
            self.device.create(name)
        }
        fn remove(&self, name: &str) -> io::Result<()> {
            self.device.remove(name)
        }
        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.device.rename(from, to)
        }
        fn sync_dir(&self) -> io::Result<()> {
            let server = self.server.get().expect("it is there");
            server.registry().begins(4, "db4", 3306, 2, 1, at(1001));
            self.device.sync_dir()
        }
        fn place(&self) -> String {
            self.device.place()
        }
    }

    #[test]
    fn who_comes_while_the_list_is_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Log::file(&dir.path().join("log")).expect("writable");
        let (mut housekeeping, mut store) = with_store(&SimDevice::new(1), &log);
        for _ in 0..3 {
            store.begin_file(&begins()).expect("a good disk");
        }
        let limits = Limits {
            size: Some(1),
            ..Limits::default()
        };
        housekeeping.server = Server::new(
            options(),
            Arc::clone(&housekeeping.view),
            Registry::new(60),
            log,
            0,
        );
        let device = Arc::new(Meanwhile {
            server: OnceLock::from(Arc::clone(&housekeeping.server)),
            device: SimDevice::new(2),
        });
        housekeeping.server.keeps(limits, device);
        housekeeping.keep.limits = limits;
        housekeeping.server.registry().is_unsaved();
        housekeeping.keep_house(at(1001));
        assert_eq!(housekeeping.view.oldest(), Some(1));
        // Without it they go.
        let mut registry = housekeeping.server.registry();
        registry.ends(4, 2, at(1002));
        registry
            .forget(&Called::Id(4), "me", at(1003))
            .expect("it is away");
        registry.take_changed();
        drop(registry);
        housekeeping.keep_house(at(1004));
        assert_eq!(housekeeping.view.oldest(), Some(3));
    }

    /// Who needs the files is not known, if the list was removed.
    #[test]
    fn without_a_list_nothing_goes_at_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Log::file(&dir.path().join("log")).expect("writable");
        let (mut housekeeping, mut store) = with_store(&SimDevice::new(1), &log);
        for _ in 0..3 {
            store.begin_file(&begins()).expect("a good disk");
        }
        housekeeping.server = Server::new(
            options(),
            Arc::clone(&housekeeping.view),
            Registry::new(60),
            log,
            0,
        );
        housekeeping.keep.limits = Limits {
            size: Some(1),
            ..Limits::default()
        };
        housekeeping.keep.unlisted_until = Some(Instant::now() + UNLISTED);
        for now in [1001, 1002] {
            housekeeping.keep_house(at(now));
        }
        assert_eq!(housekeeping.view.oldest(), Some(1));
        let said = fs::read_to_string(dir.path().join("log")).expect("readable");
        let why = "2 files would be purged, but there was no list";
        assert_eq!(said.matches(why).count(), 1, "{said}");
        housekeeping.keep.unlisted_until = Some(Instant::now());
        housekeeping.keep_house(at(1003));
        assert_eq!(housekeeping.view.oldest(), Some(3));
    }

    /// It is started anew before all had the time to come.
    #[test]
    fn the_next_start_is_without_a_list_too() {
        let log = Log::terminal();
        let device = SimDevice::new(1);
        let start = || is_unlisted(&device);
        assert!(start());
        let mut housekeeping = housekeeping(&device, &log);
        housekeeping.keep.unlisted_until = Some(Instant::now() + UNLISTED);
        housekeeping.server.registry().ends(3, 1, at(1001));
        housekeeping.keep_house(at(1001));
        assert!(device.content(REPLICAS).is_some(), "who was here is known");
        assert!(start(), "the others may still come");
        housekeeping.keep.unlisted_until = Some(Instant::now());
        housekeeping.keep_house(at(1121));
        assert!(!start(), "they had the time");
        assert!(device.content(UNLISTED_MARK).is_none());
    }

    /// What was sent long ago stays as long as it is not applied.
    #[test]
    fn what_is_not_applied_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Log::file(&dir.path().join("log")).expect("writable");
        let (mut housekeeping, mut store) = with_store(&SimDevice::new(1), &log);
        for _ in 0..5 {
            store.begin_file(&begins()).expect("a good disk");
        }
        housekeeping.keep.limits.size = Some(1);
        {
            let mut registry = housekeeping.server.registry();
            (2..6).for_each(|file| registry.enters(3, 1, file, at(1000)));
            registry.has_applied(3, 1, 3, at(1500));
        }
        housekeeping.keep_house(at(1600));
        assert_eq!(housekeeping.view.oldest(), Some(3));
        let said = fs::read_to_string(dir.path().join("log")).expect("readable");
        let why = "2 files would be purged, but replica 3 has not applied relay-bin.000003";
        assert!(said.contains(why), "{said}");
        let mut registry = housekeeping.server.registry();
        registry.has_applied(3, 1, 5, at(1601));
        drop(registry);
        housekeeping.keep_house(at(1602));
        assert_eq!(housekeeping.view.oldest(), Some(5));
    }

    /// A client that comes with another server id each time.
    #[test]
    fn too_many_are_known() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Log::file(&dir.path().join("log")).expect("writable");
        let mut housekeeping = housekeeping(&SimDevice::new(1), &log);
        let server = Arc::clone(&housekeeping.server);
        let max = u32::try_from(KNOWN_MAX).expect("a small number");
        let come = |from: u32, to: u32| {
            for id in from..to {
                let mut registry = server.registry();
                registry.begins(id, "x", 3306, id, 1, at(1000));
                registry.ends(id, id, at(1000));
            }
        };
        // The first one is here all the time.
        come(10, 10 + max + 14);
        assert_eq!(server.registry().known().len(), KNOWN_MAX);
        for now in 1001..1062 {
            housekeeping.keep_house(at(now));
            come(now as u32 * 10, now as u32 * 10 + 1);
        }
        housekeeping.keep_house(at(1062));
        let said = fs::read_to_string(dir.path().join("log")).expect("readable");
        let first = "are forgotten: 10, 11, 12, 13, 14, 15, 16, 17, 18, 19 and 5 more.";
        assert!(said.contains(first), "{said}");
        assert_eq!(said.matches("replicas were known").count(), 2, "{said}");
    }

    /// A replica that keep_size_hard has cut off holds nothing any more, until it begins anew.
    #[test]
    fn who_is_cut_off_holds_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Log::file(&dir.path().join("log")).expect("writable");
        let (mut housekeeping, mut store) = with_store(&SimDevice::new(1), &log);
        for _ in 0..5 {
            store.begin_file(&begins()).expect("a good disk");
        }
        let registry = |h: &Housekeeping| h.server.registry().clone();
        // The first one goes, which the replica needs.
        let list = housekeeping.view.list();
        let limits = |h: &mut Housekeeping, size, size_hard| {
            h.keep.limits = Limits {
                size,
                size_hard,
                age: None,
            };
        };
        let all: u64 = list.iter().map(|file| file.bytes).sum();
        limits(&mut housekeeping, Some(1), Some(all - 1));
        housekeeping.server.registry().ends(3, 1, at(1000));
        housekeeping.keep_house(at(1001));
        assert_eq!(housekeeping.view.oldest(), Some(2));
        let oldest = housekeeping.view.oldest().expect("files");
        assert_eq!(registry(&housekeeping).needed(oldest), None);
        // What is left goes as keep_size says, far below the hard limit.
        housekeeping.keep_house(at(1002));
        assert_eq!(housekeeping.view.oldest(), Some(5));
        assert_eq!(registry(&housekeeping).held(), None);
        housekeeping.keep_house(at(1003));
        let said = fs::read_to_string(dir.path().join("log")).expect("readable");
        assert_eq!(said.matches("Replica 3 is cut off").count(), 1, "{said}");
        assert!(said.contains("needs relay-bin.000001"), "{said}");
        // With a new copy of the data it counts again.
        housekeeping
            .server
            .registry()
            .begins(3, "db3", 3306, 2, 5, at(1004));
        store.begin_file(&begins()).expect("a good disk");
        housekeeping.keep_house(at(1005));
        assert_eq!(housekeeping.view.oldest(), Some(5));
        assert_eq!(registry(&housekeeping).held(), Some((1, 3)));
    }

    /// Thousands of files may be due at once, when somebody is forgotten: in between the relay pulls.
    #[test]
    fn files_go_a_few_at_a_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Log::file(&dir.path().join("log")).expect("writable");
        let (mut housekeeping, mut store) = with_store(&SimDevice::new(1), &log);
        for _ in 0..6 {
            store.begin_file(&begins()).expect("a good disk");
        }
        housekeeping.server = Server::new(
            options(),
            Arc::clone(&housekeeping.view),
            Registry::new(60),
            log,
            0,
        );
        housekeeping.keep.limits = Limits {
            size: Some(1),
            ..Limits::default()
        };
        // No time at all: one after the other.
        housekeeping.keep.at_once = Duration::ZERO;
        for oldest in [2, 3, 4] {
            housekeeping.keep_house(at(1000 + oldest));
            assert_eq!(housekeeping.view.oldest(), Some(oldest));
        }
        housekeeping.keep.at_once = Duration::MAX;
        housekeeping.keep_house(at(1005));
        assert_eq!(housekeeping.view.oldest(), Some(6));
    }

    /// All files were moved away, as they were damaged. What a replica that is away needs comes again.
    #[test]
    fn files_were_moved_away() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Log::file(&dir.path().join("log")).expect("writable");
        let device = SimDevice::new(1);
        let open = || {
            let device = Arc::new(device.clone());
            let opened = Store::open(device, StoreOptions::default(), BinlogState::new());
            opened.expect("no faults").0
        };
        let mut store = open();
        for _ in 0..4 {
            store.begin_file(&begins()).expect("a good disk");
        }
        drop(store);
        for file in device.list().expect("readable") {
            if file.starts_with("relay-bin.") {
                device.remove(&file).expect("there");
            }
        }
        // Twice: it may end before anything comes.
        drop(open());
        let mut store = open();
        let mut registry = Registry::parse("7 3 3306 1000 db7", 60).expect("a list");
        let last = |store: &Store| store.end().map(|end| end.file);
        assert!(registry.renumber(last(&store), store.first_file()));
        for _ in 0..4 {
            store.begin_file(&begins()).expect("a good disk");
        }
        let (mut housekeeping, _) = with_store(&SimDevice::new(1), &log);
        housekeeping.view = store.view();
        housekeeping.server = Server::new(options(), store.view(), registry.clone(), log, 0);
        housekeeping.keep.limits = Limits {
            size: Some(1),
            ..Limits::default()
        };
        housekeeping.keep_house(at(1001));
        let names = |view: &View| -> Vec<String> {
            let list = view.list();
            list.into_iter().map(|file| file.name).collect()
        };
        let all: Vec<String> = (5..9).map(|n| format!("relay-bin.{n:06}")).collect();
        assert_eq!(names(&store.view()), all);
        // Only the last ones were: what follows the one before is what was behind it.
        let mut registry =
            Registry::parse("7 9 3306 1000 db7\n8 6 3306 1000 db8", 60).expect("a list");
        assert!(registry.renumber(last(&store), store.first_file()));
        assert_eq!(registry.known()[&7].needs, 8);
        assert_eq!(registry.known()[&8].needs, 6);
        assert!(!registry.renumber(last(&store), store.first_file()));
    }

    /// With `keep_age` files do not come back when the clock does.
    #[test]
    fn a_clock_that_jumps_purges_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Log::file(&dir.path().join("log")).expect("writable");
        let (mut housekeeping, mut store) = with_store(&SimDevice::new(1), &log);
        for seqno in 1..4 {
            store.begin_file(&begins()).expect("a good disk");
            let (domain, server) = (0, 1);
            let name = GroupName::MariaDb(Gtid {
                domain,
                server,
                seqno,
            });
            store
                .append(begins(), Part::Alone(name, 900))
                .expect("a good disk");
            store.flush().expect("a good disk");
        }
        let newest = u64::from(housekeeping.view.newest());
        assert_eq!(newest, 900);
        let now = |unix, up| Now { unix, up };
        housekeeping.time = Believed::new(newest, now(900, 0));
        housekeeping.server = Server::new(
            options(),
            Arc::clone(&housekeeping.view),
            Registry::new(60),
            log,
            0,
        );
        housekeeping.keep.limits.age = Some(100_000);
        for (unix, up) in [(901, 1), (400_000_000, 2), (903, 3)] {
            housekeeping.keep_house(now(unix, up));
            assert_eq!(housekeeping.view.oldest(), Some(1));
        }
        for (up, oldest) in [(4, 1), (3603, 1), (3604, 3)] {
            housekeeping.keep_house(now(200_000 + up, up));
            assert_eq!(housekeeping.view.oldest(), Some(oldest), "it stands");
        }
    }

    pub(crate) fn begins() -> Vec<u8> {
        let format = Format {
            binlog_version: 4,
            server_version: version_bytes("10.11.6-MariaDB-log"),
            created: 0,
            post_header_lens: vec![0; 163],
            checksum: Some(Checksum::Crc32),
        };
        let header = Header {
            timestamp: 900,
            kind: EventType::FORMAT_DESCRIPTION,
            server_id: 1,
            len: 0,
            end_pos: 0,
            flags: 0,
        };
        let begins = Payload::Format(Box::new(format.clone()));
        encode_event(&header, &begins, &format)
    }

    fn housekeeping(device: &SimDevice, log: &Log) -> Housekeeping {
        with_store(device, log).0
    }

    pub(crate) fn options() -> ServeOptions {
        ServeOptions {
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
        }
    }

    fn with_store(device: &SimDevice, log: &Log) -> (Housekeeping, Store) {
        let (store, _) = Store::open(
            Arc::new(SimDevice::new(1)),
            StoreOptions::default(),
            BinlogState::new(),
        )
        .expect("empty");
        let mut registry = Registry::new(60);
        registry.begins(3, "db3", 3306, 1, 1, at(1000));
        let view = store.view();
        let server = Server::new(options(), Arc::clone(&view), registry, log.clone(), 0);
        let keep = Keep {
            limits: Limits::default(),
            forget: None,
            device: Arc::new(device.clone()),
            at_once: Duration::MAX,
            unlisted_until: None,
        };
        (Housekeeping::new(&server, &view, keep, log), store)
    }

    #[test]
    fn what_goes_wrong_is_tried_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Log::file(&dir.path().join("log")).expect("writable");
        let device = SimDevice::new(1);
        let mut housekeeping = housekeeping(&device, &log);
        for now in [1001, 1002] {
            device.fail_write(1, io::ErrorKind::StorageFull);
            housekeeping.keep_house(at(now));
        }
        let said = fs::read_to_string(dir.path().join("log")).expect("readable");
        assert_eq!(said.matches("could not write").count(), 1, "{said}");
        assert!(!said.contains("stores nothing more"), "{said}");
        assert!(housekeeping.view.failure().is_none());
        assert_eq!(device.content(REPLICAS), None);
        housekeeping.keep_house(at(1003));
        let kept = device.content(REPLICAS).expect("written");
        assert!(kept.starts_with(b"3 1 3306 "), "{kept:?}");
    }

    /// A list that could not be written before the relay failed is written then, and all files stay.
    #[test]
    fn the_list_of_a_relay_that_has_failed() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Log::file(&dir.path().join("log")).expect("writable");
        let device = SimDevice::new(1);
        let (mut housekeeping, mut store) = with_store(&device, &log);
        for _ in 0..3 {
            store.begin_file(&begins()).expect("a good disk");
        }
        housekeeping.server.registry().ends(3, 1, at(1001));
        device.fail_write(1, io::ErrorKind::StorageFull);
        housekeeping.keep_house(at(1002));
        assert_eq!(device.content(REPLICAS), None);
        let mut keep = housekeeping.keep.clone();
        keep.limits.size_hard = Some(1);
        let (server, view) = (&housekeeping.server, &housekeeping.view);
        let mut housekeeping = Housekeeping::new(server, view, keep, &log);
        housekeeping.without_purging();
        assert_eq!(device.content(REPLICAS), None, "it is not due");
        std::thread::sleep(EVERY);
        housekeeping.without_purging();
        let kept = device.content(REPLICAS).expect("written");
        assert!(kept.starts_with(b"3 1 3306 1001 "), "{kept:?}");
        assert_eq!(housekeeping.view.oldest(), Some(1));
    }
}
