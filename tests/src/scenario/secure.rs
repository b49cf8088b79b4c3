//! Who gets in: encryption, the secret, the allowlist.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_order::NetError;
use dromon_order::tcp::{Security, SecurityConfig, TlsFiles, request_blocking};
use dromon_order::wire::{Hello, HelloAnswer, Identity, Purpose, RefusalCode, read_greeting};
use dromon_sandbox::{Cluster, ClusterRecord, JoinPlan, Start};
use socket2::{Domain, Socket, Type};

use crate::check;
use crate::harness::{Case, JOIN_LIMIT};
use crate::load::{RETRY, Session, Writer, blow};

const STOP_LIMIT: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(10);

/// Three encrypted nodes with a secret under load, new certificates on the
/// way, and strangers of every kind at the door.
pub fn tls(case: &mut Case) -> anyhow::Result<()> {
    let cluster = case.own_cluster(|spec| spec.tls = true)?;
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    let mut first = Session::open(&case.node(0), "", 0)?;
    first.exec("CREATE DATABASE tls")?;
    first.exec("CREATE TABLE tls.t (id BIGINT AUTO_INCREMENT PRIMARY KEY, pad TEXT NOT NULL)")?;
    check::drained(&cluster)?;
    let time = case.options.seconds / 2;
    let mut tally = load(case, time)?;
    check::settled(&cluster, "tls")?;

    // A new certificate on each node, then each link made anew under it.
    let record = cluster.record();
    for (index, node) in cluster.nodes().iter().enumerate() {
        cluster.renew_certificate(index)?;
        Session::open(node, "", 0)?
            .exec("SET GLOBAL wsrep_provider_options = 'socket.ssl_reload=1'")?;
    }
    cluster.node(2).stop(STOP_LIMIT)?;
    cluster.node(2).start(Start::Join, &[])?;
    cluster.node(2).wait_usable(JOIN_LIMIT)?;
    // FLUSH SSL does the same by the server's own word.
    let mark = cluster.node(1).read_log()?.len();
    Session::open(cluster.node(1), "", 0)?.exec("FLUSH SSL")?;
    if record.is_dromon() {
        let log = check::log_since(cluster.node(1), mark);
        ensure!(
            log.contains("are encrypted with TLS 1.3"),
            "FLUSH SSL did not read the certificates again: {log}"
        );
    }
    let more = load(case, time)?;
    tally.add(&more);
    check::settled(&cluster, "tls")?;
    check::whole(&cluster)?;

    if record.is_dromon() {
        for node in cluster.nodes() {
            let log = node.read_log()?;
            ensure!(
                log.contains(" ssl://") && !log.contains(" tcp://127"),
                "{} has made connections that are not encrypted, or none at all",
                node.name()
            );
        }
        let tried = strangers(&cluster, &record)?;
        case.note(format!("{tried} strangers turned away"));
        check::whole(&cluster)?;
    }
    case.note(format!(
        "{} transactions, longest {:.2} s",
        tally.done,
        tally.longest.as_secs_f64()
    ));
    Ok(())
}

fn load(case: &Case, time: Duration) -> anyhow::Result<crate::load::Tally> {
    let writers = (0..3)
        .map(|node| {
            Writer::new(&case.node(node), |s| {
                let len = s.rng.below(60_000);
                s.exec(&format!("INSERT INTO t (pad) VALUES (REPEAT('x', {len}))"))
                    .map(drop)
            })
        })
        .collect();
    blow("tls", writers, RETRY, time)
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
    let made = std::process::Command::new("openssl")
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
