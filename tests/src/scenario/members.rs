//! Members that go: by an operator's word, one by one, outvoted, too far behind.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::{Cluster, JoinPlan, Node, SandboxError, Start, StopReport, Verdict};

use crate::check;
use crate::harness::{Case, JOIN_LIMIT, new_database};
use crate::load::{RETRY, Session, code};

const STOP_LIMIT: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(60);
/// How long an evicted node is watched for coming back by itself.
const AWAY: Duration = Duration::from_secs(8);
/// What `outvoted` writes while one node is held: more than a checkpoint's
/// distance (32 MB) and `dromon.log_max` together.
const BEHIND_MB: u64 = 100;

/// Five nodes: one is evicted by an operator and restarted, then they leave one by
/// one, whoever leads first, with a write on each that is left after every leave.
pub fn five_to_one(case: &mut Case) -> anyhow::Result<()> {
    let cluster = case.own_cluster(|spec| spec.nodes = 5)?;
    cluster.start_all(dromon_sandbox::JoinPlan::OneByOne, JOIN_LIMIT)?;
    let table = "CREATE TABLE t (id BIGINT PRIMARY KEY, size INT NOT NULL)";
    drop(new_database(cluster.node(0), &case.db, &[table])?);
    let mut next = 1;
    writes(&cluster, &case.db, 5, &mut next)?;

    evict(case, &cluster, &mut next)?;

    let mut slowest = Duration::ZERO;
    let mut leads = 0;
    for size in (1..5).rev() {
        let running: Vec<usize> = (0..5)
            .filter(|i| cluster.node(*i).process().is_some())
            .collect();
        // Who leads makes the hardest leave; the last leader may be any.
        let goes = leader(&cluster)?;
        let goes = match goes {
            Some(leader) => {
                leads += 1;
                leader
            }
            None => running[0],
        };
        let node = cluster.node(goes);
        let report = node.stop(STOP_LIMIT)?;
        ensure!(
            matches!(report, StopReport::Ended { .. }),
            "{} did not stop by itself: {report:?}",
            node.name()
        );
        let left = Instant::now();
        writes(&cluster, &case.db, size, &mut next)
            .with_context(|| format!("after {} had left", node.name()))?;
        slowest = slowest.max(left.elapsed());
        if size > 1 {
            check::settled(&cluster, &case.db)?;
        }
    }
    // The others come back to the one that is left.
    for node in cluster.nodes() {
        if node.process().is_none() {
            node.start(Start::Join, &[])?;
            node.wait_usable(JOIN_LIMIT)?;
        }
    }
    writes(&cluster, &case.db, 5, &mut next)?;
    check::settled(&cluster, &case.db)?;
    case.note(format!(
        "five to one by 4 leaves ({leads} of a leader), {} writes, those of all that are left {:.1} s after a leave at \
         most; back to five",
        next - 1,
        slowest.as_secs_f64()
    ));
    check::whole(&cluster)
}

/// db1 is cut off and forced to go on alone, the others go on as the majority; both
/// take writes, both stop in order. What starts them next must not choose by itself.
pub fn two_halves(case: &mut Case) -> anyhow::Result<()> {
    let cluster = case.own_cluster(|spec| spec.nodes = 3)?;
    cluster.start_all(JoinPlan::Together, JOIN_LIMIT)?;
    let table = "CREATE TABLE t (id INT PRIMARY KEY, half INT NOT NULL)";
    drop(new_database(cluster.node(0), &case.db, &[table])?);
    let (forced, rest) = (cluster.node(0), cluster.node(1));
    let option = |option: &str| -> anyhow::Result<()> {
        Session::open(forced, "", 0)?
            .exec(&format!("SET GLOBAL wsrep_provider_options = '{option}'"))
            .with_context(|| option.to_owned())?;
        Ok(())
    };
    option("gmcast.isolate=1")?;
    forced.wait_for("cut off", LIMIT, |s| !s.is_primary())?;
    option("pc.bootstrap=YES")?;
    forced.wait_for("alone", LIMIT, |s| s.is_usable() && s.size() == 1)?;
    for node in &cluster.nodes()[1..] {
        node.wait_for("one of two", LIMIT, |s| s.is_usable() && s.size() == 2)?;
    }
    insert(forced, &case.db, "INSERT INTO t VALUES (1, 1)")?;
    for id in 2..6 {
        insert(rest, &case.db, &format!("INSERT INTO t VALUES ({id}, 2)"))?;
    }
    let status = cluster.status(LIMIT);
    ensure!(
        status.verdict == Verdict::Bad
            && status
                .sentence
                .starts_with("two primary components: {db1}, {db2, db3};"),
        "{status:?}"
    );
    for (name, report) in cluster.stop_all(STOP_LIMIT)? {
        ensure!(
            matches!(report, StopReport::Ended { .. }),
            "{name}: {report:?}"
        );
    }

    let refused = match cluster.start_all(JoinPlan::Together, JOIN_LIMIT) {
        Err(error @ SandboxError::TwoHalves { .. }) => error.to_string(),
        other => bail!("two halves, and the start said {other:?}"),
    };
    for words in ["db1: safe_to_bootstrap: 1", "db2: safe_to_bootstrap: 1"] {
        ensure!(refused.contains(words), "{refused}");
    }
    ensure!(cluster.running() == 0, "something runs");

    // As the message says: the forced half is given up.
    let path = forced.record().data_dir.join("grastate.dat");
    let text = fs::read_to_string(&path)?;
    fs::write(
        &path,
        text.replace("safe_to_bootstrap: 1", "safe_to_bootstrap: 0"),
    )?;
    cluster.start_all(JoinPlan::Together, JOIN_LIMIT)?;
    for node in cluster.nodes() {
        let sum: Option<i64> =
            Session::open(node, &case.db, 1)?.one("SELECT SUM(id * 10 + half) FROM t")?;
        ensure!(
            sum == Some(148),
            "{} has the sum {sum:?} of the majority's rows",
            node.name()
        );
    }
    check::settled(&cluster, &case.db)?;
    check::whole(&cluster)
}

/// db5 is removed by `evs.evict`, stays away, and joins when restarted.
fn evict(case: &mut Case, cluster: &Cluster, next: &mut u64) -> anyhow::Result<()> {
    if !cluster.record().is_dromon() {
        case.note("evs.evict: the peer's is tried by nobody here");
        return Ok(());
    }
    let (first, last) = (cluster.node(0), cluster.node(4));
    let uuid = last.status(LIMIT)?.get("wsrep_gcomm_uuid").to_owned();
    let began = Instant::now();
    Session::open(first, "", 0)?
        .exec(&format!(
            "SET GLOBAL wsrep_provider_options = 'evs.evict={uuid}'"
        ))
        .context("evs.evict")?;
    for node in &cluster.nodes()[..4] {
        node.wait_for("one of four", LIMIT, |s| s.is_usable() && s.size() == 4)?;
    }
    let took = began.elapsed();
    last.wait_for("told that it is out", LIMIT, |s| !s.is_usable())?;
    let end = Instant::now() + AWAY;
    let mut refused = 0;
    while Instant::now() < end {
        let wrote = Session::open(last, "", 0)
            .and_then(|mut s| Ok(s.exec(&format!("INSERT INTO {}.t VALUES (0, 0)", case.db))?));
        ensure!(wrote.is_err(), "the evicted db5 took a write");
        refused += 1;
        let sizes = first.status(LIMIT)?.size();
        ensure!(
            sizes == 4,
            "the evicted db5 came back by itself: {sizes} members"
        );
        thread::sleep(Duration::from_millis(250));
    }
    last.stop(STOP_LIMIT)?;
    // Four write on, the fifth is down.
    writes(cluster, &case.db, 4, next)?;
    last.start(Start::Join, &[])?;
    last.wait_usable(JOIN_LIMIT)?;
    writes(cluster, &case.db, 5, next)?;
    check::settled(cluster, &case.db)?;
    case.note(format!(
        "evs.evict: db5 was out {:.1} s later, refused {refused} writes and stayed away for {} s, joined when restarted",
        took.as_secs_f64(),
        AWAY.as_secs()
    ));
    Ok(())
}

/// A write on each node that runs, once it sees so many members.
fn writes(cluster: &Cluster, db: &str, size: i64, next: &mut u64) -> anyhow::Result<()> {
    let running = cluster.nodes().iter().filter(|n| n.process().is_some());
    for node in running {
        node.wait_for("in a cluster of the size wanted", LIMIT, |s| {
            s.is_usable() && s.size() == size
        })
        .with_context(|| format!("{size} members"))?;
        insert(node, db, &format!("INSERT INTO t VALUES ({next}, {size})"))?;
        *next += 1;
    }
    // All that was acknowledged so far, on each that is left.
    let all = *next - 1;
    for node in cluster.nodes().iter().filter(|n| n.process().is_some()) {
        let mut session = Session::open(node, db, 0)?;
        session.exec("SET SESSION wsrep_sync_wait = 7")?;
        let rows: Vec<(u64, Option<u64>)> = session.rows("SELECT COUNT(*), MAX(id) FROM t")?;
        ensure!(
            rows == [(all, Some(all))],
            "{}: {rows:?} (rows, last id) of {all} acknowledged",
            node.name()
        );
    }
    Ok(())
}

/// Runs a statement, again while it loses or nobody leads.
fn insert(node: &Node, db: &str, sql: &str) -> anyhow::Result<()> {
    let end = Instant::now() + LIMIT;
    let mut session = Session::open(node, db, 0)?;
    while let Err(error) = session.exec(sql) {
        let again = code(&error).is_some_and(|c| RETRY.contains(&c) || c == 1047);
        ensure!(
            again && Instant::now() < end,
            "{sql} on {}: {error}",
            node.name()
        );
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Who leads, if that can be known.
fn leader(cluster: &Cluster) -> anyhow::Result<Option<usize>> {
    let nodes = cluster.nodes();
    let asked = nodes.iter().find(|n| n.process().is_some());
    let status = asked.context("no node runs")?.status(LIMIT)?;
    let said = status.get("wsrep_dromon_leader").to_owned();
    let of = |n: &Node| said.ends_with(&format!("{}:{}", n.record().address(), n.ports().group));
    Ok(nodes
        .iter()
        .position(|n| of(n))
        .filter(|i| nodes[*i].process().is_some()))
}

/// A write set that fails on one node of three: that one is voted out. Then one that
/// is held in quarantine while the others write more than `dromon.log_max`. Then one whose server rolls back
/// what it has given to the others. All take a full copy when restarted.
pub fn outvoted(case: &mut Case) -> anyhow::Result<()> {
    let ours = "gcache.size=1M;dromon.log_max=1M;dromon.slow_node=quarantine";
    let cluster = case.own_cluster(|spec| {
        if spec.provider.to_string_lossy().contains("dromon") {
            ours.clone_into(&mut spec.provider_options);
        }
        *spec = spec.clone().set("log_bin", "binlog");
    })?;
    cluster.start_all(dromon_sandbox::JoinPlan::OneByOne, JOIN_LIMIT)?;
    let (first, second, third) = (cluster.node(0), cluster.node(1), cluster.node(2));
    let tables = [
        "CREATE TABLE t (id INT PRIMARY KEY, v BIGINT NOT NULL)",
        "INSERT INTO t SELECT seq, 0 FROM seq_1_to_100",
        "CREATE TABLE held (id INT PRIMARY KEY, data LONGBLOB NOT NULL)",
    ];
    drop(new_database(first, &case.db, &tables)?);
    check::settled(&cluster, &case.db)?;
    case.expect_in_log(2, "Inconsisten");
    case.expect_in_log(2, "This node leaves the cluster");

    // db3 alone lacks a row.
    let mut session = Session::open(third, &case.db, 0)?;
    session.exec("SET SESSION wsrep_on = 0")?;
    session.exec("DELETE FROM t WHERE id = 7")?;
    drop(session);
    let mark = third.read_log()?.len();
    let began = Instant::now();
    insert(second, &case.db, "UPDATE t SET v = v + 1 WHERE id = 7")?;
    for node in [first, second] {
        node.wait_for("one of two", LIMIT, |s| s.is_usable() && s.size() == 2)?;
    }
    third.wait_for("out", LIMIT, |s| !s.is_usable())?;
    let took = began.elapsed();
    insert(first, &case.db, "UPDATE t SET v = v + 1 WHERE id = 8")?;
    let log = check::log_since(third, mark);
    ensure!(
        log.contains("Inconsistent by consensus") || !cluster.record().is_dromon(),
        "db3's log does not say that it was outvoted: {log}"
    );
    let copied = copy_after(&cluster, &case.db, mark)?;
    case.note(format!(
        "a row missing on db3 alone: voted out {:.1} s after the UPDATE, the others went on; {copied}",
        took.as_secs_f64()
    ));
    if !cluster.record().is_dromon() {
        case.note("the peer has no quarantine");
        return Ok(());
    }

    let mark = third.read_log()?.len();
    let mut lock = Session::open(third, &case.db, 0)?;
    lock.exec("LOCK TABLES held READ")?;
    let began = Instant::now();
    let mut longest = Duration::ZERO;
    for id in 0..BEHIND_MB {
        let one = Instant::now();
        let sql = format!("INSERT INTO held VALUES ({id}, REPEAT('x', 1048576))");
        insert(first, &case.db, &sql)?;
        longest = longest.max(one.elapsed());
    }
    for node in [first, second] {
        node.wait_for("one of two", LIMIT, |s| s.is_usable() && s.size() == 2)?;
    }
    let took = began.elapsed();
    let log = check::log_since(third, mark);
    ensure!(
        log.contains("more than dromon.log_max"),
        "db3's log does not say why it left: {log}"
    );
    // The server may have closed it already.
    let _ = lock.exec("UNLOCK TABLES");
    drop(lock);
    let copied = copy_after(&cluster, &case.db, mark)?;
    case.note(format!(
        "db3 held, {BEHIND_MB} MB written on db1 (longest INSERT {:.1} s): given up for dromon.log_max after {:.1} s; {copied}",
        longest.as_secs_f64(),
        took.as_secs_f64()
    ));

    for goes_on in [true, false] {
        let mark = third.read_log()?.len();
        let began = Instant::now();
        undone_on(third, &case.db, goes_on)?;
        for node in [first, second] {
            node.wait_for("one of two", LIMIT, |s| s.is_usable() && s.size() == 2)?;
        }
        let took = began.elapsed();
        insert(first, &case.db, "UPDATE t SET v = v + 1 WHERE id = 8")?;
        let copied = copy_after(&cluster, &case.db, mark)?;
        case.note(format!(
            "db3's binary log refused a GTID, and its client {}: out after {:.1} s; {copied}",
            if goes_on { "went on" } else { "was idle" },
            took.as_secs_f64()
        ));
    }
    check::whole(&cluster)
}

/// A client's transaction is given a GTID that others have passed when it commits: with `gtid_strict_mode` the
/// binary log refuses it behind commit order. `goes_on`: that client begins another one.
fn undone_on(node: &Node, db: &str, goes_on: bool) -> anyhow::Result<()> {
    const OUT_OF_ORDER: u16 = 1950;
    let (mut client, mut other) = (Session::open(node, db, 0)?, Session::open(node, db, 0)?);
    other.exec("SET GLOBAL gtid_strict_mode = 1")?;
    other.exec("UPDATE t SET v = v + 1 WHERE id = 1")?;
    let position: Option<String> = other.one("SELECT @@GLOBAL.gtid_binlog_pos")?;
    let at = position.as_deref().and_then(|p| p.rsplit('-').next());
    let at: u64 = at.context("a position")?.parse()?;
    client.exec(&format!("SET SESSION gtid_seq_no = {}", at + 2))?;
    client.exec("BEGIN")?;
    client.exec("UPDATE t SET v = v + 1 WHERE id = 2")?;
    for _ in 0..3 {
        other.exec("UPDATE t SET v = v + 1 WHERE id = 1")?;
    }
    let refused = client.exec("COMMIT");
    ensure!(
        refused.as_ref().err().and_then(code) == Some(OUT_OF_ORDER),
        "COMMIT gave {refused:?}"
    );
    if goes_on {
        // What it is told depends on how far the node is.
        let _ = client.exec("UPDATE t SET v = v + 1 WHERE id = 3");
    }
    node.wait_for("out", LIMIT, |s| !s.is_usable())?;
    Ok(())
}

/// db3, which is out, is restarted and takes a full copy.
fn copy_after(cluster: &Cluster, db: &str, mark: usize) -> anyhow::Result<String> {
    let third = cluster.node(2);
    let report = third.stop(STOP_LIMIT)?;
    ensure!(
        !matches!(report, StopReport::Killed { .. }),
        "db3 did not stop within {} s",
        STOP_LIMIT.as_secs()
    );
    third.start(Start::Join, &[])?;
    let back = third.wait_usable(JOIN_LIMIT)?;
    let log = check::log_since(third, mark);
    ensure!(
        !cluster.record().is_dromon() || log.contains("this node needs a full copy"),
        "db3 came back without a full copy: {log}"
    );
    check::settled(cluster, db)?;
    Ok(format!(
        "restarted, it took a full copy and was Synced after {:.1} s, tables equal",
        back.as_secs_f64()
    ))
}
