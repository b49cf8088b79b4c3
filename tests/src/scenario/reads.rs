//! What is answered while the other nodes are held or behind: current reads, and the end of a stream.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::JoinPlan;

use super::set_up;
use crate::check;
use crate::harness::{Case, JOIN_LIMIT};
use crate::load::{RETRY, Session, Storm, Writer};

/// A write on one node, a read on the next, round and round, beside other load.
pub fn sync_wait(case: &mut Case) -> anyhow::Result<()> {
    set_up(
        case,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, v BIGINT NOT NULL)",
            "INSERT INTO t SELECT seq, 0 FROM seq_1_to_100",
            "CREATE TABLE copy (turn BIGINT PRIMARY KEY, v BIGINT NOT NULL)",
        ],
    )?;
    let others = (0..3)
        .map(|node| {
            Writer::new(&case.node(node), |s| {
                let id = s.rng.below(90) + 10;
                s.exec(&format!("UPDATE t SET v = v + 1 WHERE id = {id}"))
                    .map(drop)
            })
        })
        .collect();
    let storm = Storm::start(&case.db, others, RETRY)?;
    let mut clients: Vec<Session> = (0..3)
        .map(|node| case.session(node))
        .collect::<anyhow::Result<_>>()?;
    for client in &mut clients {
        client.exec("SET SESSION wsrep_sync_wait = 7")?;
    }
    let begin = Instant::now();
    let (mut longest, mut stale) = (Duration::ZERO, 0);
    for turn in 1..=case.options.reads {
        let writer = usize::try_from(turn)? % 3;
        let reader = (writer + 1 + usize::try_from(turn / 3)? % 2) % 3;
        clients[writer].exec(&format!("UPDATE t SET v = {turn} WHERE id = 1"))?;
        let asked = Instant::now();
        let reader = &mut clients[reader];
        // A transaction that begins with a write is to be as current.
        if turn % 4 == 0 {
            let copy = format!("INSERT INTO copy SELECT {turn}, v FROM t WHERE id = 1");
            for sql in ["SET autocommit = 0", &copy, "COMMIT", "SET autocommit = 1"] {
                reader.exec(sql)?;
            }
        }
        let value: Option<u64> = reader.one(match turn % 4 {
            0 => "SELECT v FROM copy ORDER BY turn DESC LIMIT 1",
            _ => "SELECT v FROM t WHERE id = 1",
        })?;
        longest = longest.max(asked.elapsed());
        stale += u64::from(value != Some(turn));
    }
    let took = begin.elapsed();
    let tally = storm.stop()?;
    let reads = case.options.reads;
    ensure!(stale == 0, "{stale} of {reads} reads were stale");
    check::settled(&case.cluster(), &case.db)?;
    case.note(format!(
        "{reads} reads in {:.1} s, none stale, longest {:.3} s; beside them {tally}",
        took.as_secs_f64(),
        longest.as_secs_f64()
    ));
    Ok(())
}

/// The others are held while the end of a stream is under way, or a fragment: its client is told that
/// nobody knows, and all nodes have the same in the end.
pub fn stream_cut(case: &mut Case) -> anyhow::Result<()> {
    const ANSWER: Duration = Duration::from_secs(40);
    const TRIES: u32 = 4;
    let cluster = case.own_cluster(|_| {})?;
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    let mut first = Session::open(&case.node(0), "", 0)?;
    first.exec(&format!("CREATE DATABASE {}", case.db))?;
    let table = format!("{}.t", case.db);
    first.exec(&format!("CREATE TABLE {table} (id INT PRIMARY KEY, v INT)"))?;
    // Who inserts before its node is through with that loses to it.
    check::drained(&cluster)?;
    let (mut ordered, mut refused) = (0, 0);
    for turn in 0..2 * TRIES {
        if ordered > 0 && turn > 3 {
            break;
        }
        let mut client = case.session(2)?;
        client.exec("SET SESSION wsrep_trx_fragment_unit = 'rows', wsrep_trx_fragment_size = 1")?;
        client.exec("BEGIN")?;
        let insert = |n| format!("INSERT INTO {table} VALUES ({}, 1)", 10 * turn + n);
        if !(0..3).all(|n| client.exec(&insert(n)).is_ok()) {
            continue; // lost to something else, as any client may
        }
        case.node(0).pause()?;
        case.node(1).pause()?;
        let commits = turn % 2 == 0;
        let last = match commits {
            true => "COMMIT".to_owned(),
            false => format!("UPDATE {table} SET v = 2 WHERE id = {}", 10 * turn),
        };
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let _ = sender.send(client.exec(&last)); // nobody waits after the limit
        });
        let answer = receiver.recv_timeout(ANSWER);
        case.node(0).resume()?;
        case.node(1).resume()?;
        match answer {
            Err(_) => bail!("the client heard nothing for {} s", ANSWER.as_secs()),
            Ok(Ok(_)) => bail!("the client was told that it is done, without a majority"),
            Ok(Err(_)) => refused += 1,
        }
        for node in cluster.nodes() {
            node.wait_for("a member of the whole cluster again", JOIN_LIMIT, |s| {
                s.is_usable() && s.size() == 3
            })?;
        }
        check::settled(&cluster, &case.db)?;
        let ids = format!("{} AND {}", 10 * turn, 10 * turn + 2);
        let rows: Option<u64> = first.one(&format!(
            "SELECT COUNT(*) FROM {table} WHERE id BETWEEN {ids}"
        ))?;
        ensure!(
            rows == Some(0) || commits && rows == Some(3),
            "{rows:?} of 3 rows are there after turn {turn}"
        );
        ordered += u64::from(rows == Some(3));
    }
    ensure!(ordered > 0, "no end was ordered: nothing was tried");
    case.note(format!(
        "{refused} clients told that nobody knows, {ordered} of them committed: all rows or none, on all nodes"
    ));
    Ok(())
}

/// The third node cannot know whether it is current: it must not answer.
pub fn cut_off(case: &mut Case) -> anyhow::Result<()> {
    /// The provider's limit for such a read, and what we grant on top.
    const READ_TIMEOUT: Duration = Duration::from_secs(4);
    const GRACE: Duration = Duration::from_secs(16);
    let cluster = case.own_cluster(|spec| {
        if !spec.provider_options.is_empty() {
            spec.provider_options.push(';');
        }
        spec.provider_options.push_str(&format!(
            "repl.causal_read_timeout=PT{}S",
            READ_TIMEOUT.as_secs()
        ));
    })?;
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    let mut first = Session::open(&case.node(0), "", 0)?;
    first.exec("CREATE DATABASE sync_wait_cut")?;
    first.exec("CREATE TABLE sync_wait_cut.t (id INT PRIMARY KEY, v INT)")?;
    first.exec("INSERT INTO sync_wait_cut.t VALUES (1, 1)")?;
    check::drained(&cluster)?;
    let mut reader = case.session(2)?;
    reader.exec("SET SESSION wsrep_sync_wait = 7")?;
    let value: Option<u64> = reader.one("SELECT v FROM t WHERE id = 1")?;
    ensure!(
        value == Some(1),
        "the read before the cut answered {value:?}"
    );

    case.node(0).pause()?;
    case.node(1).pause()?;
    let begin = Instant::now();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let _ = sender.send(reader.one::<u64>("SELECT v FROM t WHERE id = 1")); // nobody waits after the limit
    });
    let answer = receiver.recv_timeout(READ_TIMEOUT + GRACE);
    let took = begin.elapsed();
    case.node(0).resume()?;
    case.node(1).resume()?;
    let why = match answer {
        Err(_) => bail!(
            "the read neither answered nor failed within {} s",
            took.as_secs()
        ),
        Ok(Ok(value)) => bail!(
            "the read answered {value:?} after {:.1} s although it could not be current",
            took.as_secs_f64()
        ),
        Ok(Err(e)) => e.to_string(),
    };
    let failed = format!("the read failed after {:.1} s ({why})", took.as_secs_f64());
    for node in cluster.nodes() {
        node.wait_for("a member of the whole cluster again", JOIN_LIMIT, |s| {
            s.is_usable() && s.size() == 3
        })
        .with_context(|| format!("{failed}, as it should; but when the nodes went on"))?;
    }
    check::settled(&cluster, &case.db)?;
    case.note(failed);
    Ok(())
}
