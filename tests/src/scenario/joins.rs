//! Nodes that come and go under load.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use dromon_sandbox::{Cluster, JoinPlan, Node, SstMethod, Start, StopReport};

use crate::check;
use crate::harness::{Case, JOIN_LIMIT, new_database};
use crate::load::{RETRY, Session, Storm, Writer};

/// Rows before anyone joins: some MB to copy.
const ROWS: u64 = 40_000;
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Statements of a transaction that stays open for long, each on a row of its own.
const OPEN_ROWS: u64 = 20;
/// And how long its client does nothing behind each.
const IDLE: Duration = Duration::from_millis(120);

/// See [`join`].
pub fn rsync(case: &mut Case) -> anyhow::Result<()> {
    join(case, SstMethod::Rsync)
}

/// See [`join`].
pub fn mariabackup(case: &mut Case) -> anyhow::Result<()> {
    join(case, SstMethod::Mariabackup)
}

/// See [`join`].
pub fn mysqldump(case: &mut Case) -> anyhow::Result<()> {
    join(case, SstMethod::Mysqldump)
}

/// Two nodes write, each with a transaction open most of the time; a third, empty one joins meanwhile. Afterwards
/// its tables equal theirs and every acknowledged row is there.
fn join(case: &mut Case, method: SstMethod) -> anyhow::Result<()> {
    let cluster = case.own_cluster(|spec| {
        spec.sst_method = method;
        if method == SstMethod::Mysqldump {
            // The server's script does not switch waiting off: the donor's dump
            // would wait for a node that waits for the dump.
            *spec = spec.clone().set("wsrep_sync_wait", "0");
        }
    })?;
    cluster.node(0).start(Start::NewCluster, &[])?;
    cluster.node(0).wait_usable(JOIN_LIMIT)?;
    cluster.node(1).start(Start::Join, &[])?;
    cluster.node(1).wait_usable(JOIN_LIMIT)?;
    fill(case)?;
    let (storm, done) = write(case, &[0, 1])?;
    storm.blow(Duration::from_secs(1));
    cluster.node(2).start(Start::Join, &[])?;
    let took = cluster.node(2).wait_usable(JOIN_LIMIT)?;
    storm.blow((case.options.seconds / 4).min(Duration::from_secs(10)));
    let tally = storm.stop()?;
    same_rows(case, &cluster, &done)?;
    check::whole(&cluster)?;
    case.note(format!(
        "joined by {} in {:.1} s; meanwhile {tally}",
        method.name(),
        took.as_secs_f64()
    ));
    Ok(())
}

/// db3 leaves gracefully, misses writes, comes back with its log's help; then
/// it leaves and comes back as a running server.
pub fn rejoin(case: &mut Case) -> anyhow::Result<()> {
    let cluster = case.own_cluster(|_| {})?;
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    fill(case)?;
    let third = Arc::clone(cluster.node(2));
    let (storm, done) = write(case, &[0, 1])?;

    let report = third.stop(STOP_LIMIT)?;
    ensure!(
        matches!(report, StopReport::Ended { .. }),
        "db3 did not stop by itself: {report:?}"
    );
    state_file_is_true(&third)?;
    storm.blow((case.options.seconds / 4).max(Duration::from_secs(2)));
    cluster
        .node(0)
        .wait_for("a cluster of two", Duration::from_secs(5), |s| {
            s.size() == 2
        })?;
    let mark = check::log_marks(&cluster)[2];
    third.start(Start::Join, &[])?;
    let stopped_took = third.wait_usable(JOIN_LIMIT)?;
    storm.blow(Duration::from_secs(1));
    let stopped_words =
        catch_up_words(&check::log_since(&third, mark)).context("db3 after its restart")?;

    let mark = check::log_marks(&cluster)[2];
    let mut client = Session::open_within(&third, "", 0, Duration::from_secs(60))?;
    let address: Option<String> = client.one("SELECT @@wsrep_cluster_address")?;
    let address = address.context("wsrep_cluster_address is empty")?;
    // The same address again: the server disconnects and connects anew.
    client.exec(&format!("SET GLOBAL wsrep_cluster_address = '{address}'"))?;
    let running_took = third.wait_for("a member of three", JOIN_LIMIT, |s| {
        s.is_usable() && s.size() == 3
    })?;
    storm.blow(Duration::from_secs(1));
    let running_words =
        catch_up_words(&check::log_since(&third, mark)).context("db3 after SET GLOBAL");

    let tally = storm.stop()?;
    same_rows(case, &cluster, &done)?;
    check::whole(&cluster)?;
    case.note(format!(
        "stopped, back in {:.1} s: {stopped_words}",
        stopped_took.as_secs_f64()
    ));
    case.note(format!(
        "running, back in {:.1} s: {}",
        running_took.as_secs_f64(),
        running_words?
    ));
    case.note(format!("meanwhile {tally}"));
    Ok(())
}

/// After a clean stop `grastate.dat` names the position the engine has.
fn state_file_is_true(node: &Node) -> anyhow::Result<()> {
    let path = node.record().data_dir.join("grastate.dat");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let field = |name: &str| {
        let line = text
            .lines()
            .find_map(|l| l.split_once(':').filter(|(key, _)| *key == name));
        line.map(|(_, value)| value.trim().to_string())
            .with_context(|| format!("{} has no {name}", path.display()))
    };
    let written = format!("{}:{}", field("uuid")?, field("seqno")?);
    let recovered = node.recovered_position()?;
    // With a GTID the server appends it after a comma.
    ensure!(
        recovered.split(',').next() == Some(written.as_str()),
        "the state file of {} says {written}, its engine {recovered}",
        node.name()
    );
    Ok(())
}

/// The log line that tells how much was caught up: it speaks of IST and has a
/// number. An error when there is none, or when a full copy was taken.
fn catch_up_words(log: &str) -> anyhow::Result<String> {
    ensure!(
        !log.contains("SST completed on joiner"),
        "it took a full copy instead of catching up"
    );
    let words = log
        .lines()
        .filter_map(|line| line.split_once("WSREP: ").map(|(_, words)| words))
        .find(|words| {
            let lower = words.to_lowercase();
            words.contains("IST")
                && (lower.contains("write set")
                    || lower.contains("writeset")
                    || lower.contains("seqno"))
                && words.contains(|c: char| c.is_ascii_digit())
        })
        .context("the log does not say what was caught up by IST")?;
    Ok(words.trim().to_string())
}

fn fill(case: &Case) -> anyhow::Result<()> {
    let tables = [
        "CREATE TABLE t (id BIGINT AUTO_INCREMENT PRIMARY KEY, v INT NOT NULL, pad VARCHAR(200) NOT NULL, KEY (v))",
        "CREATE TABLE kept (id BIGINT PRIMARY KEY, v INT NOT NULL, pad VARCHAR(200) NOT NULL)",
    ];
    let mut session = new_database(&case.node(0), &case.db, &tables)?;
    session.exec(&format!(
        "INSERT INTO t (v, pad) SELECT seq, REPEAT(CHAR(97 + seq % 26), 180) FROM seq_1_to_{ROWS}"
    ))?;
    let kept = 2 * OPEN_ROWS;
    session.exec(&format!(
        "INSERT INTO kept SELECT seq, 0, '' FROM seq_1_to_{kept}"
    ))?;
    check::drained(&case.cluster()).map(drop)
}

/// What was acknowledged.
#[derive(Default)]
struct Done {
    inserted: AtomicU64,
    /// Transactions that were open for long.
    long: AtomicU64,
}

/// Three clients on each of the nodes. The first of each keeps a transaction open for long; where every third client
/// streams, these do.
fn write(case: &Case, nodes: &[usize]) -> anyhow::Result<(Storm, Arc<Done>)> {
    let all = Arc::new(Done::default());
    let mut writers = Vec::new();
    for (nth, &node) in (0u64..).zip(nodes) {
        let done = Arc::clone(&all);
        writers.push(Writer::new(&case.node(node), move |s| {
            s.transaction(|s| {
                for row in 1..=OPEN_ROWS {
                    let id = nth * OPEN_ROWS + row;
                    s.exec(&format!(
                        "UPDATE kept SET v = v + 1, pad = REPEAT(CHAR(97 + v % 26), 180) WHERE id = {id}"
                    ))?;
                    thread::sleep(IDLE);
                }
                Ok(())
            })?;
            done.long.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }));
        let done = Arc::clone(&all);
        writers.push(Writer::new(&case.node(node), move |s| {
            let v = s.rng.below(1000);
            s.exec(&format!("INSERT INTO t (v, pad) VALUES ({v}, 'new')"))?;
            done.inserted.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }));
        writers.push(Writer::new(&case.node(node), |s| {
            let id = s.rng.below(ROWS) + 1;
            s.exec(&format!("UPDATE t SET v = v + 1 WHERE id = {id}"))
                .map(drop)
        }));
    }
    Ok((Storm::start(&case.db, writers, RETRY)?, all))
}

fn same_rows(case: &mut Case, cluster: &Cluster, done: &Done) -> anyhow::Result<()> {
    check::settled(cluster, &case.db)?;
    let expected = ROWS + done.inserted.load(Ordering::Relaxed);
    let long = done.long.load(Ordering::Relaxed);
    let (rows, kept): (u64, u64) = super::ask(
        case,
        2,
        "SELECT (SELECT COUNT(*) FROM t), CAST((SELECT SUM(v) FROM kept) AS UNSIGNED)",
    )?;
    ensure!(
        rows == expected && kept == long * OPEN_ROWS,
        "db3 has {rows} rows, {expected} were acknowledged; {kept} changes of {long} transactions that were open for long"
    );
    ensure!(long > 0, "no transaction that was open for long committed");
    case.note(format!("{long} transactions were open for long"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_catch_up_are_found() {
        let log = "2026-11-21 21:00:00 0 [Note] WSREP: Shifting OPEN -> PRIMARY\n\
                   2026-11-21 21:00:01 0 [Note] WSREP: IST received: seqnos 5-2036, 2032 write sets\n";
        assert_eq!(
            catch_up_words(log).expect("there"),
            "IST received: seqnos 5-2036, 2032 write sets"
        );
        assert!(catch_up_words("2026 [Note] WSREP: Synchronized with group").is_err());
    }
}
