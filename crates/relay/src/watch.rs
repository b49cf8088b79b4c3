//! Asks replicas what they have applied: for those who check them, and now and then for what is kept for
//! them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dromon_binlog::Position;

use crate::clock::Now;
use crate::log::{Level, Log};
use crate::net::ClientTls;
use crate::pull::{AskError, Asker, Login, quoted};
use crate::serve::{Known, NOT_TOLD, Server};
use crate::store::View;
use crate::wire::Row;

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
    /// Of a relay that starts, before anybody is served.
    pub fn new(server: &Arc<Server>, view: &Arc<View>, watch: Watch, log: &Log) -> Watcher {
        server.registry().asks();
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
            if !self.ask_one(self.server.now()) {
                thread::sleep(LOOK);
            }
        }
    }

    /// Asks who is due, if anybody is.
    fn ask_one(&mut self, now: Now) -> bool {
        let next = {
            let mut registry = self.server.registry();
            let known = registry.known();
            self.silent.retain(|id| known.contains_key(id));
            registry.next_to_ask(now)
        };
        let Some((id, known)) = next else {
            return false;
        };
        let asked = applied(&self.watch, id, &known).map_err(|error| error.to_string());
        let file = asked.and_then(|position| {
            let has = known.has_if_applied(position);
            let file = self.view.file_for(&has);
            file.map_err(|_| format!("it is at {has}, and what follows that is not here"))
        });
        match (file, known.connection) {
            (Ok(file), Some(connection)) => {
                let mut registry = self.server.registry();
                registry.has_applied(id, connection, file, now);
                self.silent.remove(&id);
            }
            (Err(why), Some(connection)) => self.cannot_be_told(id, connection, &why),
            (_, None) => {}
        }
        true
    }

    /// Says so, if nothing that it said before counts any more. One that has gone meanwhile is asked when it
    /// is back.
    fn cannot_be_told(&mut self, id: u32, connection: u32, why: &str) {
        let from = {
            let registry = self.server.registry();
            let known = registry.known().get(&id);
            let known = known.filter(|k| k.connection == Some(connection));
            let known = known.filter(|k| k.applied_file().is_none());
            known.and_then(|k| k.address)
        };
        let Some(from) = from.filter(|_| !self.silent.contains(&id)) else {
            return;
        };
        // A client may come with a server id of its own each time. One that is passed over is said the next time.
        if let Some(more) = self.server.now_and_then(from, NOT_TOLD) {
            self.silent.insert(id);
            let text = format!(
                "What replica {id} has applied cannot be told: {why}. Until it can, the setting hold alone says what is kept \
                 for it.{more}"
            );
            self.log.say(Level::Warning, &text);
        }
    }
}

/// Asks a replica, at the address that it came from: whatever it says of itself, nobody else is asked.
/// It says how the password is to be proved; over TLS that may be the password itself. So whoever
/// replicates from here can have that with a certificate of the authority, unless the name must be
/// that address, too.
pub(crate) fn applied(watch: &Watch, id: u32, known: &Known) -> Result<Position, AskError> {
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
    let channel = known.channel.as_deref();
    let question = match channel {
        None => "SELECT @@GLOBAL.gtid_slave_pos, @@GLOBAL.server_id".to_owned(),
        Some(name) => format!(
            "SELECT gtid_pos FROM dromon_replica.position WHERE channel={}",
            quoted(name)
        ),
    };
    let rows = asker.ask(&question, POSITION_MAX)?;
    position_of(id, channel, &rows)
}

/// What the answer says. Behind one address are several servers, or a client that is none beside a server:
/// who answers is the replica only if it has its server id, or, where that is the one of `dromon replica`
/// and not of its target, its channel.
fn position_of(id: u32, channel: Option<&str>, rows: &[Row]) -> Result<Position, AskError> {
    let cell = |n: usize| {
        let cell = rows.first().and_then(|row| row.get(n)?.as_deref());
        cell.map(|cell| String::from_utf8_lossy(cell).into_owned())
    };
    match (channel, cell(1)) {
        (None, Some(found)) if found == id.to_string() => {}
        (None, found) => {
            let found = found.unwrap_or_default();
            return Err(AskError::Another { found });
        }
        (Some(channel), _) if rows.is_empty() => {
            let channel = channel.to_owned();
            return Err(AskError::NoChannel { channel });
        }
        (Some(_), _) => {}
    }
    let text = cell(0).unwrap_or_else(|| "NULL".to_owned());
    text.parse().map_err(|_| AskError::NoPosition { text })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{IpAddr, TcpListener};
    use std::sync::Mutex;
    use std::time::Instant;

    use dromon_binlog::{BinlogState, GroupName, Gtid};
    use dromon_log::SimDevice;

    use super::*;
    use crate::clock::Moment;
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

    /// Serves that with this server id, to whoever asks.
    fn serves(id: u32, view: Arc<View>, log: &Log) -> (u16, Arc<Server>) {
        let mut options = options();
        options.server_id = id;
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
    fn replica(id: u32, has: u64, log: &Log) -> u16 {
        serves(id, stored(has).view(), log).0
    }

    /// Nobody listens there.
    fn nobody() -> u16 {
        let nobody = TcpListener::bind("127.0.0.1:0").expect("a port");
        nobody.local_addr().expect("bound").port()
    }

    /// Both clocks show this.
    fn at(secs: u64) -> Now {
        Now {
            unix: secs,
            up: secs,
        }
    }

    /// One comes that has nothing, from an address that ends so.
    fn comes(server: &Server, id: u32, from: u8, port: u16) {
        let mut registry = server.registry();
        registry.begins(id, "", port, id, 1, at(0));
        registry.at(id, id, IpAddr::from([127, 0, 0, from]), String::new());
        registry.comes_with(id, id, &Position::new(), true);
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
        assert!(!watcher.ask_one(at(0)), "nobody is here");
        // They were sent everything, and it is long ago. Behind one address are several servers.
        for (id, port) in [
            (3, replica(3, 2, &log)),
            (4, replica(3, 2, &log)),
            (5, replica(5, 9, &log)),
        ] {
            comes(&server, id, 1, port);
            let mut registry = server.registry();
            (2..=6).for_each(|file| registry.enters(id, id, file, at(0)));
        }
        for _ in 0..3 {
            assert!(watcher.ask_one(at(0)));
        }
        assert!(!watcher.ask_one(at(0)), "all were asked a moment ago");
        let mut registry = server.registry();
        registry.tick(at(500), None);
        let of = |id| {
            let known = &registry.known()[&id];
            (known.needs, known.needs_by_applied(), known.applied_file())
        };
        assert_eq!(of(3), (3, true, Some(3)), "the third file is to come");
        assert_eq!(of(4), (6, false, None), "another one answers for it");
        assert_eq!(of(5), (6, false, Some(6)), "it has more than is here");
        assert_eq!(registry.needed(1), Some((3, 3)));
        drop(registry);
        let said = fs::read_to_string(dir.path().join("log")).expect("readable");
        let why = "What replica 4 has applied cannot be told: the server id of who answers at its address is 3, and not its own.";
        assert_eq!(said.matches(why).count(), 1, "{said}");
        assert_eq!(said.matches("cannot be told").count(), 1, "{said}");
    }

    /// Only once nothing counts that it said before, and however many come, not a line for each.
    #[test]
    fn who_cannot_be_asked_is_said_now_and_then() {
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
        let lines = |of: &str| {
            let said = fs::read_to_string(dir.path().join("log")).expect("readable");
            said.matches(&format!("What replica {of}")).count()
        };
        let nobody = nobody();
        comes(&server, 3, 1, nobody);
        server.registry().has_applied(3, 3, 2, at(0));
        (100..150).for_each(|id| comes(&server, id, 2, nobody));
        while watcher.ask_one(at(60)) {}
        assert_eq!(lines("3 has"), 0, "what it said a minute ago counts");
        // Very slow machines say it again.
        assert!((1..25).contains(&lines("1")), "{}", lines("1"));
        server.registry().tick(at(599), None);
        while watcher.ask_one(at(599)) {}
        assert_eq!(lines("3 has"), 0, "it still does");
        for now in [600, 700, 800] {
            server.registry().tick(at(now), None);
            while watcher.ask_one(at(now)) {}
        }
        assert_eq!(lines("3 has"), 1);
        // One that has gone meanwhile, or has come anew, is asked again.
        comes(&server, 7, 3, nobody);
        watcher.cannot_be_told(7, 99, "its former connection");
        assert_eq!(lines("7 has"), 0);
        watcher.cannot_be_told(7, 7, "its connection");
        assert_eq!(lines("7 has"), 1);
    }

    /// The first question may come long after `hold`: what it needed before the relay's start counts.
    #[test]
    fn what_was_needed_before_the_start_is_kept_till_it_is_asked() {
        let log = Log::terminal();
        let view = stored(6).view();
        let registry = Registry::parse("3 2 3306 1000 db3", 1).expect("a list");
        let server = Server::new(options(), Arc::clone(&view), registry, log.clone(), 0);
        let mut watcher = Watcher::new(&server, &view, watch(), &log);
        let mut registry = server.registry();
        registry.begins(3, "", replica(3, 3, &log), 3, 6, at(1000));
        registry.at(3, 3, IpAddr::from([127, 0, 0, 1]), String::new());
        registry.comes_with(3, 3, &Position::new(), true);
        registry.tick(at(1500), None);
        assert_eq!(registry.needed(1), Some((2, 3)));
        drop(registry);
        assert!(watcher.ask_one(at(1500)));
        server.registry().tick(at(1501), None);
        assert_eq!(server.registry().needed(1), Some((4, 3)), "it was asked");
    }

    /// A replica that was the primary: all that is here it wrote, and applied is none of it.
    #[test]
    fn readers_go_to_one_that_wrote_itself() {
        let log = Log::terminal();
        let view = stored(6).view();
        let server = Server::new(
            options(),
            Arc::clone(&view),
            Registry::new(60),
            log.clone(),
            0,
        );
        let has: Position = "0-1-6".parse().expect("a position");
        // The relay itself has all.
        let mut following = Following::default();
        following.heard = Some(Moment::now());
        following.idle = true;
        following.beat = Duration::from_secs(600);
        let http = HttpServer {
            address: String::new(),
            server: Arc::clone(&server),
            view,
            following: Arc::new(Mutex::new(following)),
            watch: Some(watch()),
            questions: Questions::default(),
            log: log.clone(),
        };
        // Two that say the same, of which one wrote it.
        let mut said = Vec::new();
        for id in [1, 2] {
            let mut registry = server.registry();
            registry.begins(id, "", replica(id, 2, &log), id, 1, at(0));
            registry.at(id, id, IpAddr::from([127, 0, 0, 1]), String::new());
            registry.comes_with(id, id, &has, true);
            drop(registry);
            thread::sleep(Duration::from_millis(30));
            said.push(http.replica(&id.to_string(), 0));
        }
        let codes: Vec<u16> = said.iter().map(|response| response.code).collect();
        assert_eq!(codes, [200, 503], "{said:?}");
    }

    #[test]
    fn what_an_answer_says() {
        let cell = |text: &str| Some(text.as_bytes().to_vec());
        let says = |channel, rows: &[Row]| {
            let position = position_of(3, channel, rows);
            position.map_or_else(|e| e.to_string(), |p| format!("at {p}"))
        };
        assert_eq!(says(None, &[vec![cell("0-1-7"), cell("3")]]), "at 0-1-7");
        assert_eq!(says(None, &[vec![cell(""), cell("3")]]), "at ");
        let another = "the server id of who answers at its address is";
        let said = says(None, &[vec![cell("0-1-7"), cell("33")]]);
        assert_eq!(said, format!("{another} 33, and not its own"));
        assert!(says(None, &[]).starts_with(another));
        // A channel has its own server id, not that of the server where it has its position.
        let channel = Some("db");
        assert_eq!(says(channel, &[vec![cell("0-1-7")]]), "at 0-1-7");
        assert_eq!(says(channel, &[vec![cell("")]]), "at ", "it has begun");
        let said = says(channel, &[]);
        assert_eq!(said, "it has no position of the channel db");
        let said = says(channel, &[vec![None]]);
        assert!(said.starts_with("it gave NULL as its position"), "{said}");
    }

    /// One that follows the relay, has received everything, and has a port of its own for questions.
    #[test]
    fn one_that_follows() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Log::file(&dir.path().join("log")).expect("writable");
        let view = stored(6).view();
        let (port, server) = serves(1, Arc::clone(&view), &log);
        let source = Source {
            address: format!("127.0.0.1:{port}"),
            wish: Wish {
                user: "watch".into(),
                password: "secret".into(),
                tls: false,
                server_id: 3,
                report_host: "db3".into(),
                report_port: replica(3, 2, &log),
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
        while !watcher.ask_one(server.now()) {
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
