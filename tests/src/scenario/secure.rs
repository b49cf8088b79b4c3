//! Who gets in: encryption, the secret, the allowlist.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_order::NetError;
use dromon_order::tcp::{Security, SecurityConfig, TlsFiles, request_blocking};
use dromon_order::wire::{Hello, HelloAnswer, Identity, Purpose, RefusalCode, read_greeting};
use dromon_sandbox::{Cluster, ClusterRecord, JoinPlan, Start};
use socket2::{Domain, Socket, Type};

use crate::check;
use crate::harness::{Case, JOIN_LIMIT, new_database};
use crate::ledger::{self, Ledger, Numbers, Told};
use crate::load::{RETRY, Session, Storm, Writer, blow};

const STOP_LIMIT: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(10);

/// Three encrypted nodes with a secret under load, new certificates on the
/// way, and strangers of every kind at the door.
pub fn tls(case: &mut Case) -> anyhow::Result<()> {
    let cluster = case.own_cluster(|spec| spec.tls = true)?;
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    copies_encrypted(&cluster)?;
    let mut first = Session::open(&case.node(0), "", 0)?;
    first.exec("CREATE DATABASE tls")?;
    first.exec("CREATE TABLE tls.t (id BIGINT AUTO_INCREMENT PRIMARY KEY, pad TEXT NOT NULL)")?;
    check::drained(&cluster)?;
    let time = case.options.seconds / 2;
    let told = Arc::new(Mutex::new(Told::default()));
    let mut tally = load(case, time, &told)?;
    all_there(&cluster, &told)?;

    // A new certificate on each node, then each link made anew under it.
    let record = cluster.record();
    for (index, node) in cluster.nodes().iter().enumerate() {
        renewed(&cluster, index, || {
            Session::open(node, "", 0)?
                .exec("SET GLOBAL wsrep_provider_options = 'socket.ssl_reload=1'")?;
            Ok(())
        })?;
    }
    links_anew(&cluster)?;
    new_authority(&cluster, &record).context("a new authority")?;
    case.note("each node served its new certificate after the reload and not before, also one of a new authority");
    // FLUSH SSL does the same by the server's own word.
    let mark = cluster.node(1).read_log()?.len();
    renewed(&cluster, 1, || {
        Session::open(cluster.node(1), "", 0)?.exec("FLUSH SSL")?;
        Ok(())
    })?;
    if record.is_dromon() {
        let log = check::log_since(cluster.node(1), mark);
        ensure!(
            log.contains("are encrypted with TLS 1.3"),
            "FLUSH SSL did not read the certificates again: {log}"
        );
    }
    let more = load(case, time, &told)?;
    tally.add(&more);
    all_there(&cluster, &told)?;
    check::whole(&cluster)?;

    if record.is_dromon() {
        for node in cluster.nodes() {
            let log = node.read_log()?;
            let made = |kind: &str| {
                let mut lines = log.lines();
                lines.any(|l| l.contains("connection established to") && l.contains(kind))
            };
            ensure!(
                made(" ssl://") && !made(" tcp://"),
                "{} has made connections that are not encrypted, or none at all",
                node.name()
            );
        }
        let tried = strangers(&cluster, &record)?;
        old_authority_is_out(&cluster, &record)?;
        case.note(format!(
            "{tried} strangers turned away, and one with a certificate of the old authority"
        ));
        check::whole(&cluster)?;
    }
    case.note(format!(
        "{} transactions, longest {:.2} s",
        tally.done,
        tally.longest.as_secs_f64()
    ));
    Ok(())
}

/// The joiners' full copies came encrypted, from who showed a certificate of the
/// cluster's authority.
fn copies_encrypted(cluster: &Cluster) -> anyhow::Result<()> {
    for node in cluster.nodes().iter().skip(1) {
        let log = node.read_log()?;
        let stunnel = log.lines().find(|l| l.contains("Using stunnel for SSL"));
        ensure!(
            stunnel.is_some_and(|l| l.contains("ssl-mode='VERIFY_CA'")),
            "the full copy for {} was not encrypted: {}",
            node.name(),
            stunnel.unwrap_or("its log does not name stunnel (package stunnel4)")
        );
    }
    Ok(())
}

/// A new certificate for a node: `reload` has it served, and nothing does before.
fn renewed(
    cluster: &Cluster,
    index: usize,
    reload: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let record = cluster.record();
    let port = cluster.node(index).ports().group;
    let old = served(&record, port)?;
    cluster.renew_certificate(index)?;
    let file = record.dir.join(format!("tls/db{}.pem", index + 1));
    let new = serial(&fs::read_to_string(&file)?)?;
    ensure!(old != new, "the new certificate is the old one");
    ensure!(
        served(&record, port)? == old,
        "db{} served its new certificate before it was told to read it",
        index + 1
    );
    reload()?;
    let now = served(&record, port)?;
    ensure!(
        now == new,
        "db{} was told to read its new certificate {new} and still serves {now} (before: {old})",
        index + 1
    );
    Ok(())
}

/// The serial number of the certificate that a node shows who connects.
fn served(record: &ClusterRecord, port: u16) -> anyhow::Result<String> {
    let dir = record.dir.join("tls");
    let out = Command::new("openssl")
        .args(["s_client", "-connect", &format!("127.0.0.1:{port}")])
        .arg("-CAfile")
        .arg(dir.join("ca.pem"))
        .arg("-cert")
        .arg(dir.join("db1.pem"))
        .arg("-key")
        .arg(dir.join("db1.key"))
        .stdin(Stdio::null())
        .output()
        .context("running openssl s_client")?;
    let text = String::from_utf8_lossy(&out.stdout);
    serial(&text).with_context(|| {
        format!(
            "no certificate at port {port}: {}",
            String::from_utf8_lossy(&out.stderr)
        )
    })
}

/// That of the first certificate in a text.
fn serial(pem: &str) -> anyhow::Result<String> {
    let begin = pem
        .find("-----BEGIN CERTIFICATE-----")
        .context("there is no certificate")?;
    let mut child = Command::new("openssl")
        .args(["x509", "-noout", "-serial"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("running openssl x509")?;
    let mut stdin = child.stdin.take().context("no pipe to openssl")?;
    stdin.write_all(&pem.as_bytes()[begin..])?;
    drop(stdin);
    let out = child.wait_with_output()?;
    ensure!(out.status.success(), "openssl x509: {}", out.status);
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// db3's links are made anew by a restart.
fn links_anew(cluster: &Cluster) -> anyhow::Result<()> {
    cluster.node(2).stop(STOP_LIMIT)?;
    cluster.node(2).start(Start::Join, &[])?;
    cluster.node(2).wait_usable(JOIN_LIMIT)?;
    check::whole(cluster)
}

/// The three steps of docs/security.md, each with links made under it.
fn new_authority(cluster: &Cluster, record: &ClusterRecord) -> anyhow::Result<()> {
    let dir = record.dir.join("tls");
    let (ca, key) = (dir.join("ca.pem"), dir.join("ca.key"));
    let old = fs::read_to_string(&ca)?;
    // What a member had until now.
    for end in ["pem", "key"] {
        fs::copy(
            dir.join(format!("db1.{end}")),
            dir.join(format!("old.{end}")),
        )?;
    }
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "9"])
        .args(["-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=new"])
        .arg("-config")
        .arg(dir.join("openssl.cnf"))
        .args(["-extensions", "authority", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&ca)
        .output()
        .context("running openssl")?;
    ensure!(
        made.status.success(),
        "openssl: {}",
        String::from_utf8_lossy(&made.stderr)
    );
    let new = fs::read_to_string(&ca)?;
    let reload = |index: usize| -> anyhow::Result<()> {
        Session::open(cluster.node(index), "", 0)?
            .exec("SET GLOBAL wsrep_provider_options = 'socket.ssl_reload=1'")?;
        Ok(())
    };
    // The new one first: with it the certificates are signed from now on.
    fs::write(&ca, format!("{new}{old}"))?;
    (0..3).try_for_each(reload)?;
    links_anew(cluster)?;
    for index in 0..3 {
        renewed(cluster, index, || reload(index))?;
    }
    links_anew(cluster)?;
    fs::write(&ca, &new)?;
    (0..3).try_for_each(reload)?;
    links_anew(cluster)?;
    Ok(())
}

/// A certificate of the old authority opens no door.
fn old_authority_is_out(cluster: &Cluster, record: &ClusterRecord) -> anyhow::Result<()> {
    let dir = record.dir.join("tls");
    let at = format!("127.0.0.1:{}", cluster.node(0).ports().group);
    let config = SecurityConfig {
        tls: Some(TlsFiles {
            ca: dir.join("ca.pem"),
            cert: dir.join("old.pem"),
            key: dir.join("old.key"),
            ..TlsFiles::default()
        }),
        dynamic: false,
        secret_file: Some(dir.join("secret")),
    };
    if let Err(NetError::Rejected { .. } | NetError::NoAnswer { .. }) | Ok(_) =
        ask(&at, &record.name, &config)?
    {
        bail!("a certificate of the old authority was good for a greeting");
    }
    Ok(())
}

/// Serialization failures, and 1062.
const OR_TAKEN: &[u16] = &[RETRY[0], RETRY[1], 1062];

/// A cluster in the clear is encrypted node by node under load, with
/// `socket.dynamic` in between.
pub fn rolling(case: &mut Case) -> anyhow::Result<()> {
    // The sandbox makes the files; the servers do not use them yet.
    let cluster = case.own_cluster(|spec| spec.tls = true)?;
    cluster.change_settings(|record| record.tls = false)?;
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    let db = "tls_rolling";
    let table = "CREATE TABLE t (id BIGINT AUTO_INCREMENT PRIMARY KEY, pad TEXT NOT NULL)";
    drop(new_database(cluster.node(0), db, &[table])?);
    check::drained(&cluster)?;
    let record = cluster.record();
    let ours = record.is_dromon();
    ensure!(
        !ours || heard_in_the_clear(&cluster, &record)? > 0,
        "nobody answers in the clear before the switch: the test would show nothing"
    );
    let file = |name: &str| record.dir.join("tls").join(name).display().to_string();
    let encrypted = format!(
        "socket.ssl=yes;socket.ssl_ca={};socket.ssl_cert={};socket.ssl_key={}",
        file("ca.pem"),
        file("db1.pem"),
        file("db1.key")
    );
    let mut done = 0;
    for (step, options) in [
        ("to both kinds", format!("{encrypted};socket.dynamic=yes")),
        ("to encryption alone", encrypted),
    ] {
        cluster.change_settings(|record| record.provider_options = options)?;
        for index in 0..3 {
            let others = [(index + 1) % 3, (index + 2) % 3];
            let writers = others
                .iter()
                .map(|other| {
                    Writer::new(cluster.node(*other), |s| {
                        s.exec("INSERT INTO t (pad) VALUES (REPEAT('x', 2000))")
                            .map(drop)
                    })
                })
                .collect();
            // As the members change, so do the numbers that each server gives (wsrep_auto_increment_control): two
            // may give the same one, and whoever comes second is told.
            let storm = Storm::start(db, writers, OR_TAKEN)?;
            cluster.node(index).stop(STOP_LIMIT)?;
            cluster.node(index).start(Start::Join, &[])?;
            let back = cluster.node(index).wait_usable(JOIN_LIMIT);
            done += storm
                .stop()
                .with_context(|| format!("db{} {step}", index + 1))?
                .done;
            back.with_context(|| format!("db{} {step}", index + 1))?;
            check::whole(&cluster).with_context(|| format!("db{} {step}", index + 1))?;
        }
        check::settled(&cluster, db)?;
        if ours && step == "to both kinds" {
            ensure!(
                heard_in_the_clear(&cluster, &record)? > 0,
                "with socket.dynamic nobody answers in the clear any more"
            );
        }
    }
    if ours {
        ensure!(
            heard_in_the_clear(&cluster, &record)? == 0,
            "a greeting in the clear is still answered"
        );
    }
    let count = "SELECT COUNT(*) FROM t";
    let rows: Option<u64> = Session::open(cluster.node(0), db, 0)?.one(count)?;
    ensure!(
        rows == Some(done),
        "{rows:?} rows of {done} acknowledged transactions"
    );
    case.note(format!(
        "six restarts, node by node, from plain to socket.dynamic to encryption alone: {done} transactions on the \
         other two meanwhile, whole after each"
    ));
    Ok(())
}

/// Bytes that db1 answers a greeting that is not encrypted.
fn heard_in_the_clear(cluster: &Cluster, record: &ClusterRecord) -> anyhow::Result<usize> {
    let at = format!("127.0.0.1:{}", cluster.node(0).ports().group);
    Ok(greet(&mut TcpStream::connect(at)?, &record.name)?.len())
}

/// Three nodes that know each other by `[::1]` only.
pub fn ipv6(case: &mut Case) -> anyhow::Result<()> {
    let cluster = case.own_cluster(|_| {})?;
    let record = cluster.record();
    TcpListener::bind("[::1]:0").context("this machine has no ::1: nothing was shown")?;
    let all: Vec<String> = record
        .nodes
        .iter()
        .map(|n| format!("[::1]:{}", n.ports.group))
        .collect();
    let extra = |index: usize| {
        let ports = record.nodes[index].ports;
        vec![
            format!("--wsrep-cluster-address=gcomm://{}", all.join(",")),
            format!("--wsrep-node-address=[::1]:{}", ports.group),
            format!("--wsrep-sst-receive-address=[::1]:{}", ports.sst),
            format!(
                "--wsrep-provider-options=gmcast.listen_addr=tcp://[::1]:{};ist.recv_addr=[::1]:{}",
                ports.group, ports.ist
            ),
        ]
    };
    for index in 0..3 {
        let how = if index == 0 {
            Start::NewCluster
        } else {
            Start::Join
        };
        cluster.node(index).start(how, &extra(index))?;
        cluster.node(index).wait_usable(JOIN_LIMIT)?;
    }
    ledger::set_up(cluster.node(0), &case.db)?;
    let mut numbers = Numbers::new();
    let clients = Ledger::open(cluster.nodes(), &case.db, 2, &mut numbers);
    clients.wait_more(200, SOON * 3)?;
    // Whatever door the servers have in the clear, they use the other one.
    for (index, node) in cluster.nodes().iter().enumerate() {
        let port = node.ports().group;
        ensure!(
            TcpStream::connect(("127.0.0.1", port)).is_err(),
            "db{} listens at 127.0.0.1:{port} too",
            index + 1
        );
    }
    cluster.node(2).kill()?;
    clients.wait_more(200, SOON * 3)?;
    cluster.node(2).start(Start::Join, &extra(2))?;
    cluster.node(2).wait_usable(JOIN_LIMIT)?;
    clients.wait_more(200, SOON * 3)?;
    cluster.kill_all()?;
    for index in [2, 0, 1] {
        cluster.node(index).start(Start::Join, &extra(index))?;
    }
    for node in cluster.nodes() {
        node.wait_usable(JOIN_LIMIT)?;
    }
    clients.wait_more(100, SOON * 3)?;
    let told = clients.close()?;
    check::settled(&cluster, &case.db)?;
    ledger::hold_against(&cluster, &case.db, &told)?;
    case.note(format!(
        "full copies, a node killed, all killed, all of it by [::1]: {told}; 0 lost"
    ));
    check::whole(&cluster)
}

fn load(
    case: &Case,
    time: Duration,
    told: &Arc<Mutex<Told>>,
) -> anyhow::Result<crate::load::Tally> {
    let writers = (0..3)
        .map(|node| {
            let told = Arc::clone(told);
            Writer::new(&case.node(node), move |s| {
                let len = s.rng.below(60_000);
                s.exec(&format!("INSERT INTO t (pad) VALUES (REPEAT('x', {len}))"))?;
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                told.acknowledged.insert(s.last_id() as i64);
                Ok(())
            })
        })
        .collect();
    blow("tls", writers, RETRY, time)
}

/// On each node what was acknowledged, and no more: any other error ends the load.
fn all_there(cluster: &Cluster, told: &Mutex<Told>) -> anyhow::Result<()> {
    check::settled(cluster, "tls")?;
    let told = told.lock().unwrap_or_else(PoisonError::into_inner);
    ledger::hold_ids(cluster, "tls", "t", &told)
}

/// Everybody who lacks something, at the first node's door; how many there were.
fn strangers(cluster: &Cluster, record: &ClusterRecord) -> anyhow::Result<usize> {
    let node = cluster.node(0);
    let at = format!("127.0.0.1:{}", node.ports().group);
    let mark = node.read_log()?.len();
    let dir = record.dir.join("tls");
    // What a server of the cluster has, as root reads it.
    let ours = || TlsFiles {
        ca: dir.join("ca.pem"),
        cert: dir.join("db1.pem"),
        key: dir.join("db1.key"),
        ..TlsFiles::default()
    };
    let full = SecurityConfig {
        tls: Some(ours()),
        dynamic: false,
        secret_file: Some(dir.join("secret")),
    };
    // The door does open for a member: it takes the question, and does not know it.
    match ask(&at, &record.name, &full)? {
        Ok(_) | Err(NetError::NoAnswer { .. }) => {}
        Err(e) => bail!("a member was turned away: {e}"),
    }
    let foreign = foreign_files(&record.dir.join("lib"), &dir)?;
    let none = SecurityConfig::default();
    let cases = [
        ("neither TLS nor secret", none.clone()),
        (
            "the secret, no TLS",
            SecurityConfig {
                tls: None,
                ..full.clone()
            },
        ),
        (
            "the certificate, no secret",
            SecurityConfig {
                secret_file: None,
                ..full.clone()
            },
        ),
        (
            "the secret, a certificate of another authority",
            SecurityConfig {
                tls: Some(foreign),
                ..full.clone()
            },
        ),
    ];
    for (what, config) in &cases {
        match ask(&at, &record.name, config)? {
            Err(NetError::Rejected { .. } | NetError::NoAnswer { .. }) | Ok(_) => {
                bail!("somebody with {what} came as far as the greeting")
            }
            Err(_) => {}
        }
    }
    // Byte by byte: a greeting in the clear gets nothing back.
    let mut stream = TcpStream::connect(&at)?;
    let heard = greet(&mut stream, &record.name)?;
    ensure!(
        heard.is_empty(),
        "a stranger in the clear was sent {} bytes",
        heard.len()
    );
    let log = check::log_since(node, mark);
    for words in [
        "it is not encrypted, but socket.ssl is on here",
        "it offers no proof of the cluster's secret",
        "no authority in socket.ssl_ca has signed",
    ] {
        ensure!(log.contains(words), "db1's log does not say \"{words}\"");
    }
    Ok(cases.len() + 1)
}

fn ask(
    at: &str,
    cluster: &str,
    config: &SecurityConfig,
) -> anyhow::Result<Result<bytes::Bytes, NetError>> {
    let security = Security::open();
    security.load(config)?;
    let who = Identity {
        cluster: cluster.to_owned(),
        ..Identity::default()
    };
    let body = bytes::Bytes::from_static(b"?");
    Ok(request_blocking(at, &who, &security, body, SOON))
}

/// Certificate and key of somebody else's authority.
fn foreign_files(place: &Path, tls: &Path) -> anyhow::Result<TlsFiles> {
    let (cert, key) = (place.join("stranger.pem"), place.join("stranger.key"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "9"])
        .args(["-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=member"])
        .arg("-config")
        .arg(tls.join("openssl.cnf"))
        .args(["-extensions", "node", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .context("running openssl")?;
    ensure!(
        made.status.success(),
        "openssl: {}",
        String::from_utf8_lossy(&made.stderr)
    );
    // It trusts the cluster, only the cluster does not trust it.
    Ok(TlsFiles {
        ca: tls.join("ca.pem"),
        cert,
        key,
        ..TlsFiles::default()
    })
}

/// Says hello in the clear and hears everything until the end.
fn greet(stream: &mut TcpStream, cluster: &str) -> anyhow::Result<Vec<u8>> {
    let who = Identity {
        cluster: cluster.to_owned(),
        ..Identity::default()
    };
    stream.write_all(&Hello::new(Purpose::Request, who).encode())?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let (mut heard, mut buf) = (Vec::new(), [0; 4096]);
    while let Ok(n @ 1..) = stream.read(&mut buf) {
        heard.extend_from_slice(&buf[..n]);
    }
    Ok(heard)
}

/// The server's own list of addresses: from its setting at first, from its
/// table afterwards.
pub fn allowlist(case: &mut Case) -> anyhow::Result<()> {
    let cluster = case.own_cluster(|spec| {
        spec.nodes = 2;
        let list = dromon_sandbox::Setting::new("wsrep_allowlist", "127.0.0.1");
        spec.settings.push(list);
    })?;
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    let record = cluster.record();
    if !record.is_dromon() {
        case.note("the door is tried with our own greeting only");
        return Ok(());
    }
    let knock = || -> anyhow::Result<HelloAnswer> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into())?;
        let door = SocketAddr::from(([127, 0, 0, 1], cluster.node(0).ports().group));
        socket.connect(&door.into())?;
        let heard = greet(&mut socket.into(), &record.name)?;
        let mut buf = bytes::BytesMut::from(&heard[..]);
        let body = read_greeting(&mut buf)?.context("it said nothing")?;
        Ok(HelloAnswer::decode(body)?)
    };
    let refused = knock()?;
    let Err(refusal) = &refused.verdict else {
        bail!("127.0.0.2 is not on the list and was let in");
    };
    ensure!(refusal.code == RefusalCode::NotAllowed, "{refusal}");
    ensure!(
        refused.who == Identity::default(),
        "the refusal names the node"
    );
    let mut first = Session::open(&case.node(0), "", 0)?;
    first.exec("INSERT INTO mysql.wsrep_allowlist (ip) VALUES ('127.0.0.2')")?;
    let begin = Instant::now();
    while let Err(refusal) = knock()?.verdict {
        ensure!(begin.elapsed() < SOON, "still refused: {refusal}");
        thread::sleep(Duration::from_millis(200));
    }
    // The members stay what they were while others knock.
    let mark = cluster.node(0).read_log()?.len();
    for _ in 0..4 {
        knock()?;
    }
    first.exec("CREATE DATABASE allowlist")?;
    check::drained(&cluster)?;
    check::whole(&cluster)?;
    let log = check::log_since(cluster.node(0), mark);
    ensure!(!log.contains("lost"), "a link broke: {log}");
    let lines = fs::read_to_string(cluster.node(0).record().log)?
        .matches("allowlist does not name 127.0.0.2")
        .count();
    case.note(format!("refusals told in {lines} line"));
    Ok(())
}
