//! A statement on the parent of a foreign key comes amid the chunks of a large transaction on the
//! child. No key of the statement names the child: the servers themselves throw away what they have applied
//! of the large one. No applier may be at a chunk just then, and nobody may leave the cluster for that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::{Cluster, mysql};

use super::origin::Large;
use super::{Needs, add_option, seconds, started};
use crate::check;
use crate::harness::{Case, new_database};
use crate::load::{DEADLOCK, RECORD_CHANGED, Session, Storm, Tally, Writer, code};
use crate::rng::Rng;

/// Rows of the child.
const ROWS: u64 = 40_000;
/// Rows of everything else.
const FEW: u64 = 50;
/// Bytes of changes above which a transaction goes in chunks.
const CHUNKED: &str = "dromon.auto_stream_size=1M";
/// No statement may take longer: more is a hang.
const LIMIT: Duration = Duration::from_secs(90);
/// How often a step is made of which the large transaction was over before the statement.
const TRIES: u64 = 4;
/// In the log of a node that throws away what it has.
const THROWN: &str = "gives up what it has of the large transaction";

/// Lock wait timeout; no such table: the parent has its other name just now; interrupted,
/// which the server says to a statement whose transaction had not begun when DDL took its
/// table; definition changed.
const ALLOWED: &[u16] = &[DEADLOCK, RECORD_CHANGED, 1205, 1146, 1317, 1412];

const UNCLE: &str = "CREATE TABLE uncle (id INT PRIMARY KEY)";

/// What comes amid a large transaction.
#[derive(Debug, Clone, Copy)]
enum Amid {
    Rename,
    Alter,
    Truncate,
    DropAndCreate,
}

/// What a round has, in its order, and whether small transactions come beside it: with nothing beside, appliers are at a
/// chunk most of the time.
fn steps(round: u64) -> Vec<(Amid, bool)> {
    let emptied = [Amid::Truncate, Amid::DropAndCreate][(round % 2) as usize];
    vec![
        (Amid::Rename, false),
        (Amid::Alter, true),
        (emptied, true),
        (Amid::Rename, true),
    ]
}

/// What was done so far, and how the tables are.
#[derive(Default)]
struct Done {
    /// Whether the parent has its other name.
    renamed: bool,
    /// Whether it has one column more.
    wider: bool,
    /// Large transactions so far, and which of them was acknowledged last.
    large: u64,
    written: u64,
    acknowledged: u64,
    /// Increments acknowledged.
    small: Arc<AtomicU64>,
    of_parent: Arc<AtomicU64>,
}

/// In each round the parent is renamed there and back, altered, and another parent emptied,
/// each amid a large transaction of its own; the nodes by chance.
pub fn amid_child(case: &mut Case) -> anyhow::Result<()> {
    let cluster = started(case, Needs::default(), |spec| {
        add_option(&mut spec.provider_options, CHUNKED);
    })?;
    let fill = format!(
        "INSERT INTO child SELECT seq, 1 + seq % {FEW}, 1 + seq % {FEW}, REPEAT('a', 150) FROM seq_1_to_{ROWS}"
    );
    let few = |table: &str, values: &str| {
        format!("INSERT INTO {table} SELECT {values} FROM seq_1_to_{FEW}")
    };
    let statements: [&str; 9] = [
        "CREATE TABLE parent (id INT PRIMARY KEY, v BIGINT NOT NULL)",
        UNCLE,
        "CREATE TABLE child (id INT PRIMARY KEY, p INT NOT NULL, u INT NOT NULL, note VARCHAR(200) NOT NULL, \
         KEY (p), KEY (u), FOREIGN KEY (p) REFERENCES parent (id), FOREIGN KEY (u) REFERENCES uncle (id))",
        "CREATE TABLE niece (id BIGINT AUTO_INCREMENT PRIMARY KEY, p INT NOT NULL, FOREIGN KEY (p) REFERENCES parent (id))",
        "CREATE TABLE small (id INT PRIMARY KEY, v BIGINT NOT NULL)",
        &few("parent", "seq, 0"),
        &few("uncle", "seq"),
        &few("small", "seq, 0"),
        &fill,
    ];
    drop(new_database(cluster.node(0), &case.db, &statements)?);
    check::drained(&cluster)?;
    let mut done = Done::default();
    // So many times a node threw away what it had.
    let mut thrown = 0;
    for round in 0..case.options.rounds {
        let mut rng = Rng::new(case.options.seed + round);
        let mut words = Vec::new();
        let mut beside = Tally::default();
        for (what, busy) in steps(round) {
            let storm = match busy {
                true => Some(small_ones(&cluster, &case.db, &done)?),
                false => None,
            };
            let seen = step(&cluster, &case.db, what, &mut rng, &mut done)
                .with_context(|| format!("round {}, {what:?}", round + 1))?;
            if let Some(storm) = storm {
                let tally = storm.stop()?;
                beside.add(&tally);
                beside.took += tally.took;
            }
            thrown += seen.thrown;
            words.push(seen.words);
        }
        check::settled(&cluster, &case.db)?;
        check::whole(&cluster)?;
        as_told(&cluster, &case.db, &done)?;
        case.progress(format!(
            "round {}: {}; all members, equal; beside it {beside}",
            round + 1,
            words.join("; ")
        ));
    }
    let (large, acknowledged) = (done.large, done.acknowledged);
    ensure!(
        thrown > 0 && acknowledged > 0,
        "too little was done to show anything: {thrown} times a node threw away what it had of a large \
         transaction, {acknowledged} of {large} of them were acknowledged"
    );
    case.progress(format!(
        "{acknowledged} of {large} large ones acknowledged; {thrown} times a node threw away what it had"
    ));
    Ok(())
}

/// A client on each node that changes rows of its own table, of the parent and of a small child.
fn small_ones(cluster: &Cluster, db: &str, done: &Done) -> anyhow::Result<Storm> {
    let client = |node| {
        let (small, of_parent) = (Arc::clone(&done.small), Arc::clone(&done.of_parent));
        Writer::new(node, move |s| {
            thread::sleep(Duration::from_millis(2)); // leave the machine some air
            let id = s.rng.below(FEW) + 1;
            match s.rng.below(4) {
                0 | 1 => {
                    s.exec(&format!("UPDATE small SET v = v + 1 WHERE id = {id}"))?;
                    small.fetch_add(1, Ordering::Relaxed);
                }
                2 => {
                    let table = ["parent", "stepparent"][s.rng.below(2) as usize];
                    s.exec(&format!("UPDATE {table} SET v = v + 1 WHERE id = {id}"))?;
                    of_parent.fetch_add(1, Ordering::Relaxed);
                }
                _ => {
                    s.exec(&format!("INSERT INTO niece (p) VALUES ({id})"))?;
                }
            }
            Ok(())
        })
    };
    let writers = cluster.nodes().iter().map(client).collect();
    Storm::start_within(db, writers, ALLOWED, LIMIT)
}

struct Seen {
    /// How often a node threw away what it had.
    thrown: usize,
    words: String,
}

/// One large transaction and what comes amid it.
fn step(
    cluster: &Cluster,
    db: &str,
    what: Amid,
    rng: &mut Rng,
    done: &mut Done,
) -> anyhow::Result<Seen> {
    let marks = check::log_marks(cluster);
    for _ in 0..TRIES {
        let origin = rng.below(3) as usize;
        let from = rng.below(3) as usize;
        let wanted = 2 + rng.below(5);
        done.large += 1;
        let mut session = Session::open_within(cluster.node(from), db, 0, LIMIT)?;
        // Without them alone a parent may be emptied.
        let checks = match what {
            Amid::Rename | Amid::Alter => rng.below(2),
            Amid::Truncate | Amid::DropAndCreate => 0,
        };
        session.exec(&format!("SET SESSION foreign_key_checks = {checks}"))?;
        let update = format!(
            "UPDATE child SET note = CONCAT('{} ', REPEAT('c', 150))",
            done.large
        );
        let begin = Instant::now();
        let large = Large::of(
            Session::open_within(cluster.node(origin), db, 0, LIMIT)?,
            update,
        );
        let parts = large.watch(cluster.node((origin + 1) % 3), |parts| parts >= wanted)?;
        thread::sleep(Duration::from_millis(rng.below(30)));
        let said = if parts >= wanted {
            say(&mut session, what, done)
        } else {
            Ok(())
        };
        let refused = refusal(large.ended());
        let took = begin.elapsed();
        // Whoever was put out says why: that first.
        check::logs_clean(cluster, &marks, &[])?;
        check::whole(cluster)?;
        said.with_context(|| format!("on {}", cluster.node(from).name()))?;
        let refused = refused?;
        if refused.is_none() {
            done.written = done.large;
            done.acknowledged += 1;
        }
        if parts < wanted {
            continue;
        }
        let logs: Vec<String> = (cluster.nodes().iter().zip(&marks))
            .map(|(node, mark)| check::log_since(node, *mark))
            .collect();
        let thrown = logs
            .iter()
            .map(|l| l.matches(THROWN).count())
            .sum::<usize>();
        return Ok(Seen {
            thrown,
            words: format!(
                "{what:?} on db{} with {parts} parts of a large one of db{}, thrown away by {thrown}, {} after {}",
                from + 1,
                origin + 1,
                refused.map_or("done".to_owned(), |code| format!("error {code}")),
                seconds(took)
            ),
        });
    }
    bail!(
        "{TRIES} large transactions were over before anything came amid them: they must be larger"
    )
}

/// Runs it. DDL wins: it is not refused.
fn say(session: &mut Session, what: Amid, done: &mut Done) -> anyhow::Result<()> {
    let parent = ["parent", "stepparent"][usize::from(done.renamed)];
    let statements = match what {
        Amid::Rename => {
            let other = ["stepparent", "parent"][usize::from(done.renamed)];
            vec![format!("RENAME TABLE {parent} TO {other}")]
        }
        Amid::Alter if done.wider => vec![format!("ALTER TABLE {parent} DROP COLUMN more")],
        Amid::Alter => vec![format!(
            "ALTER TABLE {parent} ADD COLUMN more INT NOT NULL DEFAULT 7"
        )],
        Amid::Truncate => vec!["TRUNCATE TABLE uncle".to_owned()],
        Amid::DropAndCreate => vec!["DROP TABLE uncle".to_owned(), UNCLE.to_owned()],
    };
    for statement in statements {
        session.exec(&statement).context(statement)?;
    }
    match what {
        Amid::Rename => done.renamed = !done.renamed,
        Amid::Alter => done.wider = !done.wider,
        Amid::Truncate | Amid::DropAndCreate => {}
    }
    Ok(())
}

/// With which allowed error the large one was refused; none: it was acknowledged.
fn refusal(told: anyhow::Result<()>) -> anyhow::Result<Option<u16>> {
    let Err(error) = told else { return Ok(None) };
    let number = error.downcast_ref::<mysql::Error>().and_then(code);
    match number.filter(|n| ALLOWED.contains(n)) {
        Some(number) => Ok(Some(number)),
        None => Err(error),
    }
}

/// The tables, which are equal on all nodes, hold what clients were told.
fn as_told(cluster: &Cluster, db: &str, done: &Done) -> anyhow::Result<()> {
    let mut session = Session::open_within(cluster.node(0), db, 0, LIMIT)?;
    let mut ask = |sql: &str| -> anyhow::Result<u64> { session.one(sql)?.context("no row") };
    if done.written > 0 {
        let rows = ask(&format!(
            "SELECT COUNT(*) FROM child WHERE note LIKE '{} %'",
            done.written
        ))?;
        ensure!(
            rows == ROWS,
            "{rows} of {ROWS} rows have what large transaction {}, the last one acknowledged, wrote",
            done.written
        );
    }
    let parent = ["parent", "stepparent"][usize::from(done.renamed)];
    for (table, told) in [("small", &done.small), (parent, &done.of_parent)] {
        let told = told.load(Ordering::Relaxed);
        let sum = ask(&format!("SELECT CAST(SUM(v) AS UNSIGNED) FROM {table}"))?;
        ensure!(
            sum == told,
            "{table} counts {sum}, {told} increments were acknowledged"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_known_by_its_number() {
        let told = |code: u16| {
            let error = mysql::MySqlError {
                state: "HY000".into(),
                message: "no".into(),
                code,
            };
            let told: Result<(), _> = Err(mysql::Error::MySqlError(error));
            refusal(told.context("the large transaction failed"))
        };
        assert_eq!(refusal(Ok(())).expect("done"), None);
        assert_eq!(told(DEADLOCK).expect("allowed"), Some(DEADLOCK));
        assert!(told(1047).is_err(), "its node was put out");
    }
}
