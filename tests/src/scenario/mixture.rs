//! Statements of all kinds, drawn by lot, while clients are killed: what no scenario thought of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::Node;

use super::floors::{Floor, Floors};
use super::set_up;
use crate::check;
use crate::harness::Case;
use crate::ledger::{self, Told};
use crate::load::{self, DEADLOCK, RECORD_CHANGED, STATEMENT_LIMIT, Session, Sql};
use crate::rng::Rng;

const CLIENTS: usize = 9;
/// A server waits for a replay in its own way before it asks the library (`wait_for_replayers`): who does so with a row
/// that an applier needs is told after `innodb_lock_wait_timeout`, 50 s.
const STANDS: Duration = Duration::from_secs(100);

/// Besides what any client must expect: foreign keys, unique keys, a savepoint that is not there, a CHECK, what a
/// KILL leaves.
const ALLOWED: &[u16] = &[
    DEADLOCK,
    RECORD_CHANGED,
    1205,
    1062,
    1180,
    1064, // A KILL amid the reading of a trigger, or of
    1146, // a table.
    1305,
    1317,
    1451,
    1452,
    1761,
    1927,
    4025,
];

const TABLES: &[&str] = &[
    "CREATE TABLE parent (id INT PRIMARY KEY, v VARCHAR(30), n INT, UNIQUE KEY (n), CHECK (n < 5000))",
    "CREATE TABLE child (id INT AUTO_INCREMENT PRIMARY KEY, p INT, t VARCHAR(20), KEY (p), \
     FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE ON UPDATE CASCADE)",
    "CREATE TABLE loose (id INT AUTO_INCREMENT PRIMARY KEY, p INT, KEY (p), \
     FOREIGN KEY (p) REFERENCES parent (id) ON DELETE SET NULL ON UPDATE SET NULL)",
    "CREATE TABLE deep (id INT AUTO_INCREMENT PRIMARY KEY, c INT, n INT, KEY (c), KEY (n), \
     FOREIGN KEY (c) REFERENCES child (id) ON DELETE CASCADE, \
     FOREIGN KEY (n) REFERENCES parent (n) ON DELETE SET NULL ON UPDATE CASCADE)",
    "CREATE TABLE tree (id INT PRIMARY KEY, up INT, KEY (up), \
     FOREIGN KEY (up) REFERENCES tree (id) ON DELETE CASCADE)",
    "CREATE TABLE words (k VARCHAR(20) COLLATE utf8mb4_general_ci, k2 CHAR(6) CHARACTER SET latin1, v INT, \
     PRIMARY KEY (k, k2), UNIQUE KEY (v)) CHARACTER SET utf8mb4",
    "CREATE TABLE prefixes (b VARBINARY(300), t TEXT, n INT, PRIMARY KEY (b(8)), UNIQUE KEY (t(5)), KEY (n))",
    "CREATE TABLE split (id INT, d INT, v VARCHAR(20), PRIMARY KEY (id, d)) PARTITION BY RANGE (d) \
     (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20), PARTITION c VALUES LESS THAN MAXVALUE)",
    "CREATE TABLE hashed (id INT PRIMARY KEY, v INT) PARTITION BY HASH (id) PARTITIONS 4",
    "CREATE TABLE told (id INT AUTO_INCREMENT PRIMARY KEY, v INT)",
    "CREATE TABLE told_log (id INT AUTO_INCREMENT PRIMARY KEY, w INT, op CHAR(1), KEY (w))",
    "CREATE TABLE pairs (id INT AUTO_INCREMENT PRIMARY KEY, a INT, b INT, UNIQUE KEY (a, b))",
    "CREATE TABLE typed (id INT PRIMARY KEY, u UUID, j JSON, e ENUM ('a', 'b'), s SET ('x', 'y'), d DECIMAL (20, 6), \
     at TIMESTAMP (6) NULL, lb LONGBLOB, UNIQUE KEY (u))",
    "CREATE TABLE wide (id INT AUTO_INCREMENT PRIMARY KEY, k INT, pad CHAR(200), KEY (k))",
    // One row for each transaction of several statements: what its client was told is held against it.
    "CREATE TABLE said (id BIGINT PRIMARY KEY)",
    "CREATE TRIGGER told_i AFTER INSERT ON told FOR EACH ROW INSERT INTO told_log (w, op) VALUES (NEW.v, 'i')",
    "CREATE TRIGGER told_u AFTER UPDATE ON told FOR EACH ROW INSERT INTO told_log (w, op) VALUES (NEW.v, 'u')",
    "CREATE TRIGGER told_d AFTER DELETE ON told FOR EACH ROW DELETE FROM told_log WHERE w = OLD.v",
    "CREATE PROCEDURE moves (a INT, b INT) BEGIN UPDATE parent SET n = n + 1000 WHERE id = a; \
     UPDATE parent SET n = n - 1000 WHERE id = b; INSERT INTO told (v) VALUES (a); END",
    "CREATE VIEW seen AS SELECT id, v FROM parent WHERE id < 50",
];

/// Words that collations take for one another. None ends with blanks, and no unique key is one of a hash: a server's keys
/// do not tell of these, so that streams of both may meet on another node only.
const WORDS: &[&str] = &[
    "a", "A", "b", "ä", "Ä", "ss", "ß", "Zz", "", "é", "e", "abc",
];

/// One statement, on rows that many others touch.
fn statement(rng: &mut Rng) -> String {
    let (i, j, k) = (rng.below(60), rng.below(60), rng.below(80));
    let or_null = |rng: &mut Rng, n: u64| match rng.chance(25) {
        true => "NULL".to_owned(),
        false => n.to_string(),
    };
    let word = |rng: &mut Rng| match rng.chance(30) {
        true => format!("x{}", rng.below(20)),
        false => WORDS[rng.below(WORDS.len() as u64) as usize].to_owned(),
    };
    let (w, x) = (word(rng), word(rng));
    let short: String = x.chars().take(5).collect();
    let maybe = or_null(rng, k);
    match rng.below(56) {
        0 => format!("INSERT INTO parent VALUES ({i}, '{w}', {maybe})"),
        1 => format!("INSERT IGNORE INTO parent VALUES ({i}, '{w}', {k}), ({j}, 'q', {i})"),
        2 => format!("REPLACE INTO parent VALUES ({i}, '{w}', {k})"),
        3 => format!("UPDATE parent SET id = id + 1000 WHERE id = {i}"),
        4 => format!(
            "UPDATE parent SET id = id - 1000 WHERE id >= {} ORDER BY id LIMIT 1",
            1000 + i
        ),
        5 => format!("UPDATE parent SET n = {maybe} WHERE id = {i}"),
        6 => format!("DELETE FROM parent WHERE id = {i}"),
        7 => format!("DELETE FROM parent WHERE n BETWEEN {k} AND {}", k + 3),
        8 => format!(
            "INSERT INTO parent VALUES ({i}, 'd', {k}) ON DUPLICATE KEY UPDATE v = CONCAT(LEFT(v, 10), '+'), n = n + 1"
        ),
        9 => format!("INSERT INTO child (p, t) VALUES ({i}, '{w}'), ({j}, 'z')"),
        10 => format!(
            "INSERT INTO child (p, t) SELECT id, 's' FROM parent WHERE id < {i} ORDER BY id LIMIT 5"
        ),
        11 => format!("DELETE FROM child WHERE p = {i}"),
        12 => format!(
            "UPDATE child SET p = {} WHERE id % 17 = {}",
            or_null(rng, j),
            i % 17
        ),
        13 => format!("INSERT INTO loose (p) VALUES ({i}), (NULL)"),
        14 => "DELETE FROM loose WHERE p IS NULL ORDER BY id LIMIT 5".to_owned(),
        15 => format!(
            "INSERT INTO deep (c, n) SELECT c.id, p.n FROM child c JOIN parent p ON p.id = c.p WHERE p.id = {i} LIMIT 3"
        ),
        16 => format!("UPDATE deep SET n = NULL WHERE id % 13 = {}", i % 13),
        17 => format!("DELETE d FROM deep d JOIN child c ON d.c = c.id WHERE c.p = {i}"),
        18 => format!(
            "UPDATE parent p JOIN child c ON c.p = p.id SET p.v = 'j', c.t = 'j' WHERE p.id = {i}"
        ),
        19 => format!("INSERT INTO tree VALUES ({i}, {})", or_null(rng, j)),
        20 => format!("DELETE FROM tree WHERE id = {i}"),
        21 => format!("UPDATE tree SET up = {} WHERE id = {i}", or_null(rng, j)),
        22 => format!("INSERT INTO words VALUES ('{w}', '{short}', {maybe})"),
        23 => format!("UPDATE words SET k = '{w}' WHERE k = '{x}'"),
        24 => format!("REPLACE INTO words VALUES ('{w}', '{short}', {k})"),
        25 => format!("DELETE FROM words WHERE v = {k}"),
        26 => format!(
            "INSERT INTO prefixes VALUES (REPEAT('{w}', {}), '{w}{x}', {i})",
            1 + i % 10
        ),
        27 => format!("UPDATE prefixes SET t = '{x}{w}', n = n + 1 WHERE n = {i}"),
        28 => format!("DELETE FROM prefixes WHERE n < {i} ORDER BY b LIMIT 2"),
        29 => format!("INSERT INTO split VALUES ({i}, {}, '{w}')", j % 40),
        30 => format!("UPDATE split SET d = d + 5 WHERE id = {i} ORDER BY d DESC"),
        31 => format!("DELETE FROM split WHERE d = {}", j % 40),
        32 => format!("REPLACE INTO hashed VALUES ({i}, {j})"),
        33 => format!("UPDATE hashed SET id = id + 100 WHERE id = {i}"),
        34 => format!("DELETE FROM hashed WHERE id > {}", 60 + k),
        35 => format!("INSERT INTO told (v) VALUES ({i}), ({j})"),
        36 => format!(
            "UPDATE told SET v = {i} WHERE id % 9 = {} ORDER BY id LIMIT 3",
            j % 9
        ),
        37 => format!("DELETE FROM told WHERE v = {i}"),
        38 => format!("CALL moves({i}, {j})"),
        39 => format!("UPDATE seen SET v = 'seen' WHERE id = {i}"),
        40 => format!(
            "REPLACE INTO typed VALUES ({i}, UUID(), '{{\"a\":{j}}}', 'a', 'x,y', {i}.123, NOW(6), REPEAT('k', {}))",
            i * 300
        ),
        41 => format!(
            "UPDATE typed SET j = JSON_SET(j, '$.b', {j}), at = NULL, lb = CONCAT(lb, 'q') WHERE id = {i}"
        ),
        42 => format!("DELETE FROM typed WHERE id = {i}"),
        43 => format!(
            "INSERT INTO pairs (a, b) VALUES ({}, {}) ON DUPLICATE KEY UPDATE b = b + 1",
            or_null(rng, i % 8),
            or_null(rng, j % 8)
        ),
        44 => format!(
            "INSERT IGNORE INTO pairs (a, b) SELECT a + 1, b FROM pairs WHERE a = {} LIMIT 4",
            i % 8
        ),
        45 => format!(
            "DELETE FROM pairs WHERE a <=> {} ORDER BY id LIMIT 3",
            or_null(rng, i % 8)
        ),
        46 | 47 => format!(
            "INSERT INTO wide (k, pad) SELECT seq, REPEAT('p', {k}) FROM seq_1_to_{}",
            [5, 100, 900][(i % 3) as usize]
        ),
        48 => format!("UPDATE wide SET k = k + 1 WHERE k < {}", 5 * i),
        49 => format!(
            "UPDATE wide SET pad = CONCAT('u', LEFT(pad, 150)) ORDER BY id LIMIT {}",
            [10, 1000, 4000][(i % 3) as usize]
        ),
        50 => format!(
            "DELETE FROM wide ORDER BY id LIMIT {}",
            [50, 2000][(i % 2) as usize]
        ),
        51 => format!("SELECT * FROM parent WHERE id = {i} FOR UPDATE"),
        52 => format!("SELECT COUNT(*) FROM child WHERE p = {i} LOCK IN SHARE MODE"),
        53 => format!("INSERT INTO told (v) VALUES ({i}) RETURNING id"),
        54 => format!("DELETE FROM wide WHERE k = {k}"),
        _ => format!(
            "UPDATE parent SET v = '{w}' WHERE id BETWEEN {i} AND {}",
            i + 5
        ),
    }
}

/// The connections of all clients: who is killed is drawn from them.
type Clients = Arc<Mutex<BTreeMap<(usize, usize), u32>>>;

struct Client {
    node: Arc<Node>,
    db: String,
    /// Which it is, by node and among all.
    place: (usize, usize),
    clients: Clients,
    /// What the transactions of all clients were told, and the next one's row.
    told: Arc<Mutex<Told>>,
    next: Arc<AtomicI64>,
    single: Floor,
    whole: Floor,
}

impl Client {
    fn connect(&self, rng: &mut Rng) -> anyhow::Result<Session> {
        let (_, number) = self.place;
        let mut session = Session::open_within(&self.node, &self.db, 0, STANDS)?;
        let mut settings = vec!["SET SESSION innodb_lock_wait_timeout = 30".to_owned()];
        if self.streams() {
            let unit = ["rows", "bytes", "statements"][rng.below(3) as usize];
            let size = [1, 3, 10, 500][rng.below(4) as usize];
            settings.push(format!("SET SESSION wsrep_trx_fragment_unit = '{unit}'"));
            settings.push(format!("SET SESSION wsrep_trx_fragment_size = {size}"));
        }
        if number % 4 == 1 {
            settings.push("SET SESSION tx_isolation = 'READ-COMMITTED'".to_owned());
        }
        if number % 2 == 1 {
            settings.push("SET SESSION wsrep_sync_wait = 1".to_owned());
        }
        for setting in settings {
            let set = match session.exec(&setting) {
                // A server may tell a new client what was meant for the one before it.
                Err(error) if load::code(&error) == Some(DEADLOCK) => session.exec(&setting),
                set => set,
            };
            set.with_context(|| format!("{}: {setting}", self.node.name()))?;
        }
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.insert(self.place, session.id());
        Ok(session)
    }

    fn streams(&self) -> bool {
        self.place.1.is_multiple_of(3)
    }

    fn step(&self, session: &mut Session, rng: &mut Rng) -> Sql<()> {
        if rng.chance(55) {
            session.exec(&statement(rng))?;
            self.single.one();
            return Ok(());
        }
        session.exec("BEGIN")?;
        let mut changed = false;
        for _ in 0..=rng.below(8) {
            // Without a binary log a server does not take back from the write set what is rolled back to a savepoint
            // before the first change: the other nodes get it, with any provider (docs/guarantees.md). In streams
            // there is more of that kind.
            let back = changed && !self.streams();
            let text = match rng.below(100) {
                0..=7 if back => format!("SAVEPOINT s{}", rng.below(3)),
                8..=12 if back => format!("ROLLBACK TO s{}", rng.below(3)),
                _ => statement(rng),
            };
            match session.exec(&text) {
                Ok(rows) => changed |= rows > 0,
                // The transaction goes on behind these.
                Err(error)
                    if matches!(load::code(&error), Some(1062 | 1305 | 1451 | 1452 | 4025)) => {}
                Err(error) => return Err(error),
            }
        }
        if rng.chance(10) {
            session.exec("ROLLBACK")?;
            return Ok(());
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let said = session
            .exec(&format!("INSERT INTO said VALUES ({id})"))
            .and_then(|_| session.exec("COMMIT"));
        let told = || self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let Err(error) = said else {
            told().acknowledged.insert(id);
            self.whole.one();
            return Ok(());
        };
        match load::code(&error) {
            Some(DEADLOCK | RECORD_CHANGED) => told().refused.insert(id),
            _ => told().unknown.insert(id),
        };
        Err(error)
    }

    fn run(&self, seed: u64, stop: &AtomicBool) -> anyhow::Result<u64> {
        let mut rng = Rng::new(seed);
        let mut session = self.connect(&mut rng)?;
        let mut done = 0;
        while !stop.load(Ordering::Relaxed) {
            let begin = Instant::now();
            let Err(error) = self.step(&mut session, &mut rng) else {
                done += 1;
                continue;
            };
            let code = load::code(&error);
            if begin.elapsed() >= STANDS {
                bail!(
                    "a client of {} stood still for {:.0} s: {error}",
                    self.node.name(),
                    begin.elapsed().as_secs_f64()
                );
            }
            match code {
                Some(code) if !ALLOWED.contains(&code) => {
                    return Err(error).with_context(|| format!("a client of {}", self.node.name()));
                }
                Some(_) if session.exec("ROLLBACK").is_ok() => {}
                // Killed.
                _ => session = self.connect(&mut rng)?,
            }
        }
        Ok(done)
    }
}

/// Kills a client of this node now and then; gives how often.
fn kills(
    case: &Case,
    index: usize,
    clients: &Clients,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<thread::JoinHandle<u64>> {
    let mut session = case.session(index)?;
    let (clients, stop) = (Arc::clone(clients), Arc::clone(stop));
    let mut rng = Rng::new(case.options.seed + 1000 + index as u64);
    Ok(thread::spawn(move || {
        let mut done = 0;
        while !stop.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(rng.below(700)));
            let of_this: Vec<u32> = {
                let clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
                clients
                    .iter()
                    .filter(|((n, _), _)| *n == index)
                    .map(|(_, id)| *id)
                    .collect()
            };
            let victim = of_this[rng.below(of_this.len() as u64) as usize];
            let how = ["QUERY", "CONNECTION", "HARD QUERY"][rng.below(3) as usize];
            // It may be gone already.
            done += u64::from(session.exec(&format!("KILL {how} {victim}")).is_ok());
        }
        done
    }))
}

/// Nothing stands still, no node is left out, and all end with the same rows.
pub fn mixture(case: &mut Case) -> anyhow::Result<()> {
    set_up(case, TABLES)?;
    let stop = Arc::new(AtomicBool::new(false));
    let clients = Clients::default();
    let (told, next) = (Arc::<Mutex<Told>>::default(), Arc::<AtomicI64>::default());
    let mut floors = Floors::default();
    let threads: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let index = number % 3;
            let client = Client {
                node: case.node(index),
                db: case.db.clone(),
                place: (index, number),
                clients: Arc::clone(&clients),
                told: Arc::clone(&told),
                next: Arc::clone(&next),
                single: floors.of(index, "single statements"),
                whole: floors.of(index, "transactions"),
            };
            let (stop, seed) = (Arc::clone(&stop), case.options.seed + number as u64);
            thread::spawn(move || {
                let done = client.run(seed, &stop);
                if done.is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
                done
            })
        })
        .collect();
    // All are connected before the first is killed.
    let begin = Instant::now();
    while clients.lock().unwrap_or_else(PoisonError::into_inner).len() < CLIENTS {
        ensure!(
            begin.elapsed() < STATEMENT_LIMIT,
            "not all clients have connected"
        );
        thread::sleep(Duration::from_millis(10));
    }
    let killers = (0..3).map(|index| kills(case, index, &clients, &stop));
    let killers: Vec<_> = killers.collect::<anyhow::Result<_>>()?;
    let end = Instant::now() + case.options.seconds;
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(20));
    }
    stop.store(true, Ordering::Relaxed);
    let (mut done, mut failures) = (0, Vec::new());
    for thread in threads {
        match thread.join() {
            Ok(Ok(n)) => done += n,
            Ok(Err(error)) => failures.push(format!("{error:#}")),
            Err(_) => failures.push("a client panicked".to_owned()),
        }
    }
    let mut killed = 0;
    for killer in killers {
        killed += killer
            .join()
            .map_err(|_| anyhow::anyhow!("a killer panicked"))?;
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n    and "));
    check::settled(&case.cluster(), &case.db)?;
    check::whole(&case.cluster())?;
    let told = std::mem::take(&mut *told.lock().unwrap_or_else(PoisonError::into_inner));
    for index in 0..3 {
        let rows: Vec<i64> = case.session(index)?.rows("SELECT id FROM said")?;
        let there: BTreeSet<i64> = rows.into_iter().collect();
        ledger::compare(&told, &there).with_context(|| case.node(index).name())?;
    }
    floors.are_reached(case.options.seconds)?;
    ensure!(killed > 0, "nobody was killed");
    case.note(format!(
        "{done} steps, {killed} kills; {told}; {}",
        floors.words()
    ));
    Ok(())
}
