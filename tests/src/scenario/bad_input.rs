//! The rows of docs/bad-input.md that need a server: message, exit code, time.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::{Bytes, BytesMut};
use dromon_order::wire::{
    Hello, HelloAnswer, Identity, Purpose, Refusal, RefusalCode, read_greeting,
};
use dromon_sandbox::{Cluster, Node, SandboxError, Start};

use crate::check;
use crate::harness::{Case, JOIN_LIMIT};

/// What a refusal may take beside the time its row names: a server starts and ends.
const SERVER: Duration = Duration::from_secs(20);
const AT_ONCE: Duration = Duration::ZERO;

/// db1 and db2 run, db3 is started wrongly in every way; then its log is damaged.
pub fn bad_input(case: &mut Case) -> anyhow::Result<()> {
    let cluster = case.own_cluster(|_| {})?;
    cluster.node(0).start(Start::NewCluster, &[])?;
    cluster.node(0).wait_usable(JOIN_LIMIT)?;
    cluster.node(1).start(Start::Join, &[])?;
    cluster.node(1).wait_usable(JOIN_LIMIT)?;
    other_nodes(&cluster)?;
    other_version(&cluster)?;
    own_side(&cluster)?;
    disks(&cluster)?;
    strangers(cluster.node(0))?;
    for node in 0..2 {
        ensure!(
            cluster
                .node(node)
                .status(Duration::from_secs(10))?
                .is_usable(),
            "db{} did not stay usable",
            node + 1
        );
    }
    cluster.node(2).start(Start::Join, &[])?;
    cluster.node(2).wait_usable(JOIN_LIMIT)?;
    damaged_log(case, &cluster)?;
    edited_state(case, &cluster)?;
    case.expect_in_log(2, check::ENGINE_FAILED);
    full_while_running(&cluster)
}

/// A start that must end with exit code 1, with all `words` in the log, in time.
fn refused(
    node: &Node,
    start: Start,
    extra: &[String],
    words: &[&str],
    within: Duration,
) -> anyhow::Result<()> {
    let mark = node.read_log().map_or(0, |text| text.len());
    start_again(node, start, extra)?;
    let began = Instant::now();
    let limit = within + SERVER;
    let end = node.wait_for("refused", limit, |_| false);
    let what = words.first().copied().unwrap_or_default();
    match end {
        Err(SandboxError::NodeEnded { how, .. }) => ensure!(
            how.contains("exit status: 1") || how.contains("code 1"),
            "{what}: ended with {how}, not with code 1"
        ),
        Ok(_) => bail!("{what}: it came up"),
        Err(e) => {
            // It must not stay in the way of what follows.
            let _ = node.kill();
            bail!("{what}: not refused within {} s: {e}", limit.as_secs())
        }
    }
    let log = check::log_since(node, mark);
    for word in words {
        ensure!(
            log.contains(word),
            "{what}: the log does not say {word:?}:\n{}",
            node.log_tail(15)
        );
    }
    ensure!(began.elapsed() <= limit, "{what}: took too long");
    ensure!(log.contains("Aborting"), "{what}: no orderly end");
    Ok(())
}

/// Starts a node that was killed: the system may hold its ports for a moment.
fn start_again(node: &Node, start: Start, extra: &[String]) -> anyhow::Result<()> {
    let until = Instant::now() + Duration::from_secs(15);
    loop {
        match node.start(start, extra) {
            Ok(()) => return Ok(()),
            Err(e) if Instant::now() > until => return Err(e.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

/// The node's own provider options and more.
fn options(node: &Node, more: &str) -> anyhow::Result<String> {
    let path = node.record().dir.join("my.cnf");
    let text = fs::read_to_string(&path)?;
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix("wsrep_provider_options="))
        .with_context(|| format!("{} has no provider options", path.display()))?;
    let own = line.trim().trim_matches('"');
    Ok(format!("--wsrep_provider_options={own};{more}"))
}

fn address(list: &str) -> String {
    format!("--wsrep_cluster_address={list}")
}

/// What is wrong with the others, or with the way to them.
fn other_nodes(cluster: &Cluster) -> anyhow::Result<()> {
    let (first, node) = (cluster.node(0).ports(), cluster.node(2));
    let join =
        |extra: &[String], words: &[&str], within| refused(node, Start::Join, extra, words, within);
    join(
        &["--wsrep_cluster_name=another".into()],
        &[
            "refused this node: its cluster is named",
            "set wsrep_cluster_name alike",
        ],
        AT_ONCE,
    )?;
    join(
        &[address(&format!("gcomm://127.0.0.1:{}", first.sql))],
        &[
            "does not speak this protocol",
            "like a MariaDB or MySQL server",
        ],
        AT_ONCE,
    )?;
    let soon = options(node, "pc.wait_prim_timeout=PT4S")?;
    let free = TcpListener::bind("127.0.0.1:0")?;
    let nobody = free.local_addr()?.port();
    drop(free);
    join(
        &[
            address(&format!("gcomm://127.0.0.1:{nobody}")),
            soon.clone(),
        ],
        &[
            "failed to reach primary view within 4 s",
            "no node listens there",
        ],
        Duration::from_secs(7),
    )?;
    // One that takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let port = silent.local_addr()?.port();
    join(
        &[address(&format!("gcomm://127.0.0.1:{port}")), soon.clone()],
        &[
            "failed to reach primary view within 4 s",
            "did not greet within 3s",
        ],
        Duration::from_secs(7),
    )?;
    drop(silent);
    join(
        &[address("gcomm://no-such-host.invalid"), soon],
        &[
            "failed to reach primary view within 4 s",
            "cannot resolve the host name",
        ],
        Duration::from_secs(20),
    )?;
    join(
        &[address(&format!(
            "gcomm://127.0.0.1:{}",
            node.ports().group
        ))],
        &[
            "wsrep_cluster_address names only this node itself",
            "--wsrep-new-cluster",
        ],
        AT_ONCE,
    )
}

/// A member of a later version answers db3, and one greets db1.
fn other_version(cluster: &Cluster) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let later = thread::spawn(move || {
        // Until somebody calls and does not greet.
        for stream in listener.incoming().flatten() {
            if answer_as_later(stream).is_err() {
                return;
            }
        }
    });
    refused(
        cluster.node(2),
        Start::Join,
        &[address(&format!("gcomm://127.0.0.1:{port}"))],
        &[
            "refused this node: it speaks protocol versions 8 to 9, the connecting node 2 to 2",
            "upgrade the older one",
        ],
        AT_ONCE,
    )?;
    // The sign to end.
    drop(TcpStream::connect(("127.0.0.1", port))?);
    ensure!(later.join().is_ok(), "the later member's thread failed");

    let node = cluster.node(0);
    let mark = node.read_log()?.len();
    let mut stream = TcpStream::connect(("127.0.0.1", node.ports().group))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut hello = Hello::new(Purpose::Request, Identity::default());
    (hello.version_min, hello.version_max) = (8, 9);
    stream.write_all(&hello.encode())?;
    let answer = HelloAnswer::decode(greeting(&mut stream)?)?;
    let code = answer.verdict.as_ref().map_err(|refusal| refusal.code);
    ensure!(
        code == Err(RefusalCode::NoCommonVersion),
        "a later version was answered with {answer:?}"
    );
    let mut rest = Vec::new();
    stream
        .read_to_end(&mut rest)
        .context("the connection was not closed within 5 s")?;
    let words =
        "refused, because this node speaks protocol versions 2 to 2, the connecting node 8 to 9";
    let until = Instant::now() + Duration::from_secs(5);
    while !check::log_since(node, mark).contains(words) {
        ensure!(
            Instant::now() < until,
            "the later version is not named:\n{}",
            check::log_since(node, mark)
        );
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// What a member that speaks only versions 8 and 9 says to this one.
fn answer_as_later(mut stream: TcpStream) -> anyhow::Result<()> {
    let hello = Hello::decode(greeting(&mut stream)?)?;
    let own = (8, 9);
    let refusal = Refusal::no_common_version(own, (hello.version_min, hello.version_max));
    let answer = HelloAnswer {
        verdict: Err(refusal),
        versions: own,
        who: Identity {
            cluster: hello.who.cluster,
            ..Identity::default()
        },
        instance: 0,
    };
    Ok(stream.write_all(&answer.encode())?)
}

/// The body of the other end's first message.
fn greeting(stream: &mut TcpStream) -> anyhow::Result<Bytes> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let (mut buf, mut part) = (BytesMut::new(), [0; 4096]);
    loop {
        if let Some(body) = read_greeting(&mut buf)? {
            return Ok(body);
        }
        match stream.read(&mut part)? {
            0 => bail!("closed before a whole greeting"),
            n => buf.extend_from_slice(&part[..n]),
        }
    }
}

/// What is wrong with the own addresses, options and state file.
fn own_side(cluster: &Cluster) -> anyhow::Result<()> {
    let node = cluster.node(2);
    let join = |extra: String, words: &[&str]| refused(node, Start::Join, &[extra], words, AT_ONCE);
    join(
        address("gcom://127.0.0.1"),
        &["Backend not supported: gcom://"],
    )?;
    join(
        options(node, "gcs.fc_limitt=5")?,
        &[
            "Unknown parameter 'gcs.fc_limitt'",
            "Did you mean 'gcs.fc_limit'?",
        ],
    )?;
    join(
        options(node, "gcs.fc_limit=x")?,
        &["Option 'gcs.fc_limit' cannot be 'x'"],
    )?;
    join(
        options(node, "gcs.fc_limit")?,
        &["contain 'gcs.fc_limit' without a value"],
    )?;
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let at = taken.local_addr()?;
    join(
        options(node, &format!("gmcast.listen_addr=tcp://{at}"))?,
        &["cannot listen for other nodes", "is in use by"],
    )?;
    join(
        options(node, "gmcast.listen_addr=tcp://192.0.2.1:4567")?,
        &["is not an address of this machine"],
    )?;
    let state = node.record().data_dir.join("grastate.dat");
    let before = fs::read_to_string(&state).unwrap_or_default();
    let uuid = "d020871d-e5f0-11f1-9a18-667f5d04e35a";
    let text = |seqno: &str| {
        format!(
            "# GALERA saved state\nversion: 2.1\nuuid:    {uuid}\nseqno:   {seqno}\nsafe_to_bootstrap: 0\n"
        )
    };
    // Written in place: the owner stays the server's user.
    fs::write(&state, text("?"))?;
    refused(
        node,
        Start::Join,
        &[],
        &["is damaged: line 4 has '?' for seqno"],
        AT_ONCE,
    )?;
    fs::write(&state, text("5"))?;
    refused(
        node,
        Start::NewCluster,
        &[],
        &["It may not be safe to bootstrap the cluster from this node"],
        AT_ONCE,
    )?;
    fs::write(&state, before)?;
    Ok(())
}

/// A directory that cannot be written, and one without room.
fn disks(cluster: &Cluster) -> anyhow::Result<()> {
    let node = cluster.node(2);
    let dir = node.record().dir.join("closed");
    fs::create_dir_all(&dir)?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o555))?;
    for (option, words) in [
        ("base_dir", ["grastate.dat cannot be", "Permission denied"]),
        (
            "gcache.dir",
            ["The log could not create", "Permission denied"],
        ),
    ] {
        let extra = options(node, &format!("{option}={}", dir.display()))?;
        refused(node, Start::Join, &[extra], &words, AT_ONCE)?;
    }
    fs::remove_dir(&dir)?;
    let missing = options(node, "gcache.dir=/nowhere/at/all")?;
    let words = ["the log in /nowhere/at/all", "No such file or directory"];
    refused(node, Start::Join, &[missing], &words, AT_ONCE)?;
    let small = Small::mount(&node.record().dir.join("small"), "8k")
        .context("no room for the log at start: not tested")?;
    let extra = options(node, &format!("gcache.dir={}", small.0.display()))?;
    let words = ["The log could not", "No space left on device"];
    refused(node, Start::Join, &[extra], &words, AT_ONCE)
}

/// A small file system in memory, gone with this value.
struct Small(PathBuf);

impl Small {
    fn mount(dir: &Path, size: &str) -> anyhow::Result<Small> {
        fs::create_dir_all(dir)?;
        let done = Command::new("mount")
            .args([
                "-t",
                "tmpfs",
                "-o",
                &format!("size={size},mode=1777"),
                "tmpfs",
            ])
            .arg(dir)
            .output()?;
        if !done.status.success() {
            fs::remove_dir(dir)?;
            bail!("mount: {}", String::from_utf8_lossy(&done.stderr).trim());
        }
        Ok(Small(dir.to_owned()))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // The server that used it may end a moment later: lazily.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
        let _ = fs::remove_dir(&self.0);
    }
}

/// Text of other protocols at a member's port: closed, named, harmless.
fn strangers(node: &Node) -> anyhow::Result<()> {
    let mark = node.read_log()?.len();
    for text in [
        "GET / HTTP/1.0\r\n\r\n",
        "\u{7f}\u{1}nonsense nonsense nonsense",
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", node.ports().group))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(text.as_bytes())?;
        let mut rest = Vec::new();
        // Closed with or without a word; a timeout is an error of another kind.
        if let Err(e) = stream.read_to_end(&mut rest)
            && e.kind() != std::io::ErrorKind::ConnectionReset
        {
            bail!("{text:?} was not refused within 5 s: {e}");
        }
    }
    let log = check::log_since(node, mark);
    ensure!(
        log.contains("does not speak this protocol") && log.contains("like HTTP"),
        "the stranger is not named:\n{log}"
    );
    Ok(())
}

/// Changes one bit of the oldest record in a stopped node's log.
fn damage(node: &Node) -> anyhow::Result<()> {
    let dir = node.record().data_dir;
    let mut segments: Vec<_> = fs::read_dir(&dir)?
        .flatten()
        .map(|e| e.path())
        .filter(|p| {
            p.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with("dromon-0"))
        })
        .collect();
    segments.sort();
    let path = segments.first().context("no segment of the log")?;
    let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
    let mut byte = [0];
    // Behind the header block, in the body of the first record.
    let at = 4096 + 100;
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, at)?;
    std::os::unix::fs::FileExt::write_all_at(&file, &[byte[0] ^ 4], at)?;
    Ok(())
}

fn damaged_log(case: &mut Case, cluster: &Cluster) -> anyhow::Result<()> {
    let node = cluster.node(2);
    let mut session = crate::load::Session::open(cluster.node(0), "", 0)?;
    session.exec("CREATE DATABASE bad")?;
    session.exec("CREATE TABLE bad.t (id INT PRIMARY KEY, v LONGTEXT)")?;
    for id in 0..50 {
        session.exec(&format!("INSERT INTO bad.t VALUES ({id}, 'v')"))?;
    }
    check::drained(cluster)?;
    node.kill()?;
    damage(node)?;
    let mark = node.read_log()?.len();
    start_again(node, Start::Join, &[])?;
    let took = node.wait_usable(JOIN_LIMIT)?;
    let log = check::log_since(node, mark);
    ensure!(
        log.contains("this node's log was damaged") && log.contains("takes a full copy"),
        "the damage is not told:\n{}",
        node.log_tail(30)
    );
    let aside = |name: &str| name.starts_with("damaged-") && name.ends_with(".log");
    let kept = fs::read_dir(node.record().data_dir)?
        .flatten()
        .filter(|e| aside(&e.file_name().to_string_lossy()))
        .count();
    ensure!(kept >= 2, "{kept} files were set aside");
    case.note(format!(
        "a damaged log was set aside, full copy in {:.1} s",
        took.as_secs_f64()
    ));

    // Everybody is gone: it may be the only place of something.
    check::drained(cluster)?;
    for node in cluster.nodes() {
        node.kill()?;
    }
    damage(node)?;
    let soon = options(node, "pc.wait_prim_timeout=PT4S")?;
    let words = [
        "this node's log is damaged, and no primary component",
        "Start the other nodes first",
    ];
    refused(node, Start::Join, &[soon], &words, Duration::from_secs(7))?;
    for other in 0..2 {
        start_again(cluster.node(other), Start::Join, &[])?;
    }
    for other in 0..2 {
        cluster.node(other).wait_usable(JOIN_LIMIT)?;
    }
    start_again(node, Start::Join, &[])?;
    node.wait_usable(JOIN_LIMIT)?;
    let mut session = crate::load::Session::open(node, "", 0)?;
    let rows: Option<i64> = session.one("SELECT COUNT(*) FROM bad.t")?;
    ensure!(rows == Some(50), "{rows:?} rows of 50 are left");
    check::whole(cluster)
}

/// Changes a line of a stopped node's `grastate.dat`, in place.
fn edit_state(node: &Node, key: &str, value: &str) -> anyhow::Result<()> {
    let path = node.record().data_dir.join("grastate.dat");
    let text = fs::read_to_string(&path)?;
    let edited = text.lines().map(|line| match line.split_once(':') {
        Some((name, _)) if name == key => format!("{key}: {value}\n"),
        _ => format!("{line}\n"),
    });
    fs::write(&path, edited.collect::<String>())?;
    Ok(())
}

/// What an edit of db3's `grastate.dat` may do: leave nothing out, found no
/// second cluster, and after an outage found one with all that was acknowledged.
fn edited_state(case: &mut Case, cluster: &Cluster) -> anyhow::Result<()> {
    let node = cluster.node(2);
    let mut first = crate::load::Session::open(cluster.node(0), "", 0)?;
    first.exec("CREATE TABLE bad.edits (id INT PRIMARY KEY)")?;
    check::drained(cluster)?;
    let seqno: i64 = node
        .status(Duration::from_secs(10))?
        .get("wsrep_last_committed")
        .parse()
        .context("wsrep_last_committed")?;
    let mut rows = 0;
    let mut insert = |session: &mut crate::load::Session| -> anyhow::Result<i64> {
        for _ in 0..30 {
            session.exec(&format!("INSERT INTO bad.edits VALUES ({rows})"))?;
            rows += 1;
        }
        Ok(rows)
    };
    let has = |node: &Node, rows: i64| -> anyhow::Result<()> {
        let mut session = crate::load::Session::open(node, "", 0)?;
        let there: Option<i64> = session.one("SELECT COUNT(*) FROM bad.edits")?;
        ensure!(
            there == Some(rows),
            "{there:?} rows of {rows} on {}",
            node.name()
        );
        Ok(())
    };
    let said = |mark: usize, words: &str| -> anyhow::Result<()> {
        ensure!(
            check::log_since(node, mark).contains(words),
            "{words:?} is not in the log:\n{}",
            node.log_tail(40)
        );
        Ok(())
    };

    // A seqno further on than the data.
    node.kill()?;
    let expected = insert(&mut first)?;
    edit_state(node, "seqno", &(seqno + 20).to_string())?;
    let mark = node.read_log()?.len();
    start_again(node, Start::Join, &[])?;
    node.wait_usable(JOIN_LIMIT)?;
    said(mark, "which this node did not write")?;
    has(node, expected)?;

    // The flag, while two are primary.
    node.kill()?;
    let expected = insert(&mut first)?;
    edit_state(node, "safe_to_bootstrap", "1")?;
    let mark = node.read_log()?.len();
    start_again(node, Start::NewCluster, &[])?;
    node.wait_usable(JOIN_LIMIT)?;
    said(mark, "joining that one")?;
    has(node, expected)?;
    check::drained(cluster)?;
    check::whole(cluster)?;

    // The flag after a full outage.
    let history = |node: &Node| -> anyhow::Result<String> {
        let status = node.status(Duration::from_secs(10))?;
        Ok(status.get("wsrep_cluster_state_uuid").to_owned())
    };
    let expected = insert(&mut first)?;
    let before = history(node)?;
    check::drained(cluster)?;
    for node in cluster.nodes() {
        node.kill()?;
    }
    edit_state(node, "safe_to_bootstrap", "1")?;
    let mark = node.read_log()?.len();
    start_again(node, Start::NewCluster, &[])?;
    let took = node.wait_usable(JOIN_LIMIT)?;
    said(mark, "goes on without them")?;
    has(node, expected)?;
    ensure!(history(node)? == before, "the history is another one");
    insert(&mut crate::load::Session::open(node, "", 0)?)?;
    for other in 0..2 {
        let other = cluster.node(other);
        start_again(other, Start::Join, &[])?;
        other.wait_usable(JOIN_LIMIT)?;
        has(other, expected + 30)?;
    }
    case.note(format!(
        "safe_to_bootstrap after an outage: usable in {:.1} s",
        took.as_secs_f64()
    ));
    check::drained(cluster)?;
    check::whole(cluster)
}

/// The log's disk fills up under a running node: it stops taking part, the
/// others go on, and with room it comes back.
fn full_while_running(cluster: &Cluster) -> anyhow::Result<()> {
    let node = cluster.node(2);
    let small = Small::mount(&node.record().dir.join("small"), "20m")
        .context("disk full while the node runs: not tested")?;
    node.stop(Duration::from_secs(60))?;
    let extra = options(node, &format!("gcache.dir={}", small.0.display()))?;
    start_again(node, Start::Join, &[extra])?;
    node.wait_usable(JOIN_LIMIT)?;
    let mark = node.read_log()?.len();
    let mut session = crate::load::Session::open(cluster.node(0), "", 0)?;
    for id in 100..130 {
        session.exec(&format!(
            "INSERT INTO bad.t VALUES ({id}, REPEAT('x', 1000000))"
        ))?;
    }
    node.wait_for("out of the cluster", Duration::from_secs(30), |s| {
        s.get("wsrep_ready") == "OFF"
    })?;
    let log = check::log_since(node, mark);
    ensure!(
        log.contains(check::ENGINE_FAILED) && log.contains("No space left on device"),
        "the full disk is not told:\n{}",
        node.log_tail(20)
    );
    ensure!(node.process().is_some(), "the server has ended");
    session.exec("INSERT INTO bad.t VALUES (200, 'the others go on')")?;
    node.kill()?;
    drop(small);
    start_again(node, Start::Join, &[])?;
    node.wait_usable(JOIN_LIMIT)?;
    let mut session = crate::load::Session::open(node, "", 0)?;
    let rows: Option<i64> = session.one("SELECT COUNT(*) FROM bad.t")?;
    ensure!(rows == Some(81), "{rows:?} rows of 81 are there");
    check::whole(cluster)
}
