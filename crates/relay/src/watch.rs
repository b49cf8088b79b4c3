//! Asks replicas what they have applied: for those who check them, and now and then for what is kept for
//! them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dromon_binlog::Position;

use crate::log::{Level, Log};
use crate::net::ClientTls;
use crate::pull::{AskError, Asker, Login, quoted};
use crate::serve::{Known, Server};
use crate::store::View;

/// Time for a replica that is asked, in all.
const REPLICA_LIMIT: Duration = Duration::from_secs(1);
/// Longest answer of it: positions of 1 MiB are taken from replicas, too.
const POSITION_MAX: usize = 2 << 20;
/// How often it is looked whether one is to be asked.
const LOOK: Duration = Duration::from_secs(1);

/// As whom replicas are asked what they have applied.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The account; it needs no privileges.
    pub user: String,
    /// Its password.
    pub password: String,
    /// Say nothing to a replica before the connection is encrypted. Then it may have the password itself.
    pub tls: Option<ClientTls>,
}

/// Asks all of them, one after the other, so that nothing is purged which they have not applied. On a thread
/// of its own: one that does not answer keeps none waiting but the others that are to be asked.
pub(crate) struct Watcher {
    server: Arc<Server>,
    view: Arc<View>,
    watch: Watch,
    log: Log,
    /// Those of whom it was said that they cannot be asked.
    silent: BTreeSet<u32>,
}

impl Watcher {
    /// Of a relay that starts.
    pub fn new(server: &Arc<Server>, view: &Arc<View>, watch: Watch, log: &Log) -> Watcher {
        Watcher {
            server: Arc::clone(server),
            view: Arc::clone(view),
            watch,
            log: log.clone(),
            silent: BTreeSet::new(),
        }
    }

    /// Asks until the process ends.
    pub fn ask_for_ever(mut self) {
        loop {
            if !self.ask_one() {
                thread::sleep(LOOK);
            }
        }
    }

    /// Asks who is due, if anybody is.
    fn ask_one(&mut self) -> bool {
        let next = {
            let mut registry = self.server.registry();
            let known = registry.known();
            self.silent.retain(|id| known.contains_key(id));
            registry.next_to_ask(self.server.now())
        };
        let Some((id, known)) = next else {
            return false;
        };
        let asked = applied(&self.watch, &known).map_err(|error| error.to_string());
        let file = asked.and_then(|position| {
            let has = known.has_if_applied(position);
            let file = self.view.file_for(&has);
            file.map_err(|_| format!("it is at {has}, and what follows that is not here"))
        });
        match (file, known.connection) {
            (Ok(file), Some(connection)) => {
                let now = self.server.now();
                let mut registry = self.server.registry();
                registry.has_applied(id, connection, file, now);
                self.silent.remove(&id);
            }
            (Err(why), _) if self.silent.insert(id) => self.log.say(
                Level::Warning,
                &format!(
                    "What replica {id} has applied cannot be told: {why}. Until it can, the setting hold alone says what is kept \
                     for it; an answer that it gave before counts as long as what it was sent then."
                ),
            ),
            _ => {}
        }
        true
    }
}

/// Asks a replica, at the address that it came from: whatever it says of itself, nobody else is asked.
/// It says how the password is to be proved; over TLS that may be the password itself. So whoever
/// replicates from here can have that with a certificate of the authority, unless the name must be
/// that address, too.
pub(crate) fn applied(watch: &Watch, known: &Known) -> Result<Position, AskError> {
    let port = if known.port == 0 { 3306 } else { known.port };
    let address = match known.address {
        Some(ip) if ip.is_ipv6() => format!("[{ip}]:{port}"),
        Some(ip) => format!("{ip}:{port}"),
        None => String::new(),
    };
    let mut asker = Asker::connect(&Login {
        address,
        user: watch.user.clone(),
        password: watch.password.clone(),
        tls: watch.tls.clone(),
        limit: REPLICA_LIMIT,
        in_all: Some(REPLICA_LIMIT),
    })?;
    let question = match &known.channel {
        None => "SELECT @@GLOBAL.gtid_slave_pos".to_owned(),
        Some(name) => format!(
            "SELECT gtid_pos FROM dromon_replica.position WHERE channel={}",
            quoted(name)
        ),
    };
    let rows = asker.ask(&question, POSITION_MAX)?;
    let cell = rows.first().and_then(|row| row.first()?.as_deref());
    let text = String::from_utf8_lossy(cell.unwrap_or_default()).into_owned();
    text.parse().map_err(|_| AskError::NoPosition { text })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{IpAddr, TcpListener};
    use std::time::Instant;

    use dromon_binlog::{BinlogState, GroupName, Gtid};
    use dromon_log::SimDevice;

    use super::*;
    use crate::clock::Now;
    use crate::housekeeping::tests::{begins, options};
    use crate::http::{HttpServer, Questions};
    use crate::pull::{Following, Puller, Source, Wish};
    use crate::serve::{Account, Registry};
    use crate::store::{Part, Store, StoreOptions};
    use crate::wire::PasswordHash;

    /// So many files, of which each has one group.
    fn stored(files: u64) -> Store {
        let device = Arc::new(SimDevice::new(1));
        let opened = Store::open(device, StoreOptions::default(), BinlogState::new());
        let mut store = opened.expect("empty").0;
        for seqno in 1..=files {
            store.begin_file(&begins()).expect("a good disk");
            let name = GroupName::MariaDb(Gtid {
                domain: 0,
                server: 1,
                seqno,
            });
            store
                .append(begins(), Part::Alone(name, 900))
                .expect("a good disk");
            store.flush().expect("a good disk");
        }
        store
    }

    /// Serves that, to whoever asks.
    fn serves(view: Arc<View>, log: &Log) -> (u16, Arc<Server>) {
        let mut options = options();
        options.connections_max = 10;
        options.accounts.push(Account {
            name: "watch".into(),
            password: PasswordHash::of(b"secret"),
            admin: false,
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let server = Server::new(options, view, Registry::new(60), log.clone(), 0);
        let listening = Arc::clone(&server);
        thread::spawn(move || listening.listen(&listener));
        (port, server)
    }

    /// A server that has applied so much: a relay says of itself what a replica would.
    fn replica(has: u64, log: &Log) -> u16 {
        serves(stored(has).view(), log).0
    }

    fn watch() -> Watch {
        Watch {
            user: "watch".into(),
            password: "secret".into(),
            tls: None,
        }
    }

    #[test]
    fn what_is_not_applied_is_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Log::file(&dir.path().join("log")).expect("writable");
        let view = stored(6).view();
        let server = Server::new(
            options(),
            Arc::clone(&view),
            Registry::new(60),
            log.clone(),
            0,
        );
        let mut watcher = Watcher::new(&server, &view, watch(), &log);
        assert!(!watcher.ask_one(), "nobody is here");
        let nobody = TcpListener::bind("127.0.0.1:0").expect("a port");
        let nobody = nobody.local_addr().expect("bound").port();
        let (zero, later) = (server.now(), server.now().up + 500);
        let later = Now {
            unix: later,
            up: later,
        };
        // They were sent everything, and it is long ago.
        for (id, port) in [(3, replica(2, &log)), (4, nobody), (5, replica(9, &log))] {
            let mut registry = server.registry();
            registry.begins(id, "", port, id, 1, zero);
            registry.at(id, id, IpAddr::from([127, 0, 0, 1]), String::new());
            registry.comes_with(id, id, &Position::new(), true);
            (2..=6).for_each(|file| registry.enters(id, id, file, zero));
        }
        for _ in 0..3 {
            assert!(watcher.ask_one());
        }
        assert!(!watcher.ask_one(), "all were asked a moment ago");
        let mut registry = server.registry();
        registry.tick(later, None);
        let of = |id| {
            let known = &registry.known()[&id];
            (known.needs, known.needs_by_applied(), known.applied_file())
        };
        assert_eq!(of(3), (3, true, Some(3)), "the third file is to come");
        assert_eq!(of(4), (6, false, None), "it cannot be asked");
        assert_eq!(of(5), (6, false, Some(6)), "it has more than is here");
        assert_eq!(registry.needed(1), Some((3, 3)));
        drop(registry);
        let said = fs::read_to_string(dir.path().join("log")).expect("readable");
        let why = "What replica 4 has applied cannot be told: 127.0.0.1";
        assert_eq!(said.matches(why).count(), 1, "{said}");
        assert_eq!(said.matches("cannot be told").count(), 1, "{said}");
    }

    /// One that follows the relay, has received everything, and has a port of its own for questions.
    #[test]
    fn one_that_follows() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Log::file(&dir.path().join("log")).expect("writable");
        let view = stored(6).view();
        let (port, server) = serves(Arc::clone(&view), &log);
        let source = Source {
            address: format!("127.0.0.1:{port}"),
            wish: Wish {
                user: "watch".into(),
                password: "secret".into(),
                tls: false,
                server_id: 3,
                report_host: "db3".into(),
                report_port: replica(2, &log),
                heartbeat: Duration::from_millis(200),
                semi_sync: false,
                zstd: None,
                position: String::new(),
                file: None,
                executed: None,
                channel: None,
            },
            tls: None,
            dead_after: Duration::from_secs(60),
            backoff_max: Duration::from_secs(1),
            start_file: None,
        };
        let puller = Puller::new(source, stored(6), log.clone(), Box::new(|| ()), None);
        let following = puller.following();
        let pulls = thread::spawn(move || puller.run());
        let mut watcher = Watcher::new(&server, &view, watch(), &log);
        let begun = Instant::now();
        while !watcher.ask_one() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is not here");
            thread::sleep(Duration::from_millis(10));
        }
        let http = HttpServer {
            address: String::new(),
            server,
            view,
            following: Arc::default(),
            watch: None,
            questions: Questions::default(),
            log: log.clone(),
        };
        let told = &http.status().json()["replicas"][0];
        let of = |key: &str| told[key].as_str().unwrap_or_default().to_owned();
        assert_eq!(of("sent_position"), "0-1-6");
        let keys = ["needs_file", "needs_by", "applied_file"];
        let file = "relay-bin.000003";
        assert_eq!(keys.map(of), [file, "applied", file], "{told}");
        Following::stop(&following);
        pulls.join().expect("it ends").expect("a good disk");
    }
}
