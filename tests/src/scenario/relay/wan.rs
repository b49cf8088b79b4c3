//! Two places with a long link that loses packets between them: how fast, and whether it holds.
//!
//! ```text
//!   primary ─> relay near ══ 80 ms, 2 % loss, 100 Mbit/s ══> relay far ─> replica
//!      └──────────────────── the same, one stream over cubic ──────────────┘
//! ```

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::group::get_at;
use super::plain::{Load, Relay, Server, TABLES, free_port, gtids_of};
use super::{equal_tables, place};
use crate::harness::Case;
use crate::lab::{FAR_ASIDE, Line, NEAR, Wan};

/// There and back 80 ms, with 2 % loss each way, as issues have it.
const LINE: Line = Line {
    delay: Duration::from_millis(40),
    lost_of_1000: 20,
    bits_per_second: 100_000_000,
    queue_bytes: 1_000_000,
};
/// Times that the link is broken.
const BREAKS: u32 = 100;
/// How much faster a relay at each end must be.
const WANTED: f64 = 20.0;

/// A relay at each end of a link.
struct Ends {
    near: Relay,
    far: Relay,
    http: u16,
    near_http: u16,
}

impl Ends {
    fn new(dir: &Path, wan: &Wan, primary: &Server) -> anyhow::Result<Ends> {
        let mut near = Relay::new(dir, "near", 9, primary.port, &["file_size=16M"])?;
        near.set(&format!("listen=0.0.0.0:{}", near.port));
        let (http, near_http) = (free_port()?, free_port()?);
        near.set(&format!("http=127.0.0.1:{near_http}"));
        let mut far = Relay::new(dir, "far", 10, 0, &["file_size=16M"])?;
        far.net = Some(wan.far());
        far.host = FAR_ASIDE.to_string();
        for setting in [
            format!("primary={NEAR}:{}", near.port),
            format!("listen=0.0.0.0:{}", far.port),
            format!("http=0.0.0.0:{http}"),
            // Three heartbeats lost in a row are likelier than a second without any.
            "heartbeat=400ms".into(),
            "dead_after=2s".into(),
            "backoff_max=2s".into(),
        ] {
            far.set(&setting);
        }
        Ok(Ends {
            near,
            far,
            http,
            near_http,
        })
    }

    /// A value of the far relay's status, as JSON text.
    fn status(&self, section: &str, key: &str) -> anyhow::Result<String> {
        let (code, body) = get_at(&FAR_ASIDE.to_string(), self.http, "/status.json")?;
        ensure!(code == 200, "{code} {body}");
        let from = match section {
            "" => 0,
            section => body
                .find(&format!("\"{section}\": {{"))
                .with_context(|| format!("no {section} in {body}"))?,
        };
        let mark = format!("\"{key}\": ");
        let at = body[from..]
            .find(&mark)
            .with_context(|| format!("no {key} in {body}"))?;
        let rest = &body[from + at + mark.len()..];
        let end = rest.find([',', '\n', '}']).unwrap_or(rest.len());
        Ok(rest[..end].trim().trim_matches('"').to_owned())
    }

    fn number(&self, section: &str, key: &str) -> anyhow::Result<f64> {
        let text = self.status(section, key)?;
        text.parse().with_context(|| format!("{key} is {text}"))
    }
}

fn primary(dir: &Path) -> anyhow::Result<Server> {
    Server::new(
        dir,
        "primary",
        1,
        &[
            "--bind-address=0.0.0.0",
            "--sync-binlog=0",
            "--innodb-flush-log-at-trx-commit=0",
            "--max-binlog-size=1073741824",
        ],
    )
}

/// Bytes a second of what a counter tells, from when it first moves until the time is over or it
/// says that all has come.
fn rate(
    time: Duration,
    all: u64,
    mut counter: impl FnMut() -> anyhow::Result<u64>,
) -> anyhow::Result<f64> {
    let limit = Instant::now() + Duration::from_secs(60);
    let begin = counter()?;
    while counter()? == begin {
        ensure!(Instant::now() < limit, "nothing comes at all");
        thread::sleep(Duration::from_millis(20));
    }
    let (from, start) = (counter()?, Instant::now());
    loop {
        thread::sleep(Duration::from_millis(100));
        let (now, took) = (counter()?, start.elapsed());
        if took >= time || now >= all {
            return Ok((now - from) as f64 / took.as_secs_f64());
        }
    }
}

fn mbit(rate: f64) -> f64 {
    rate * 8.0 / 1e6
}

pub fn throughput(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let wan = Wan::new(&dir, &LINE, case.options.seed)?;
    let known = Wan::known();
    wan.congestion("cubic")?;
    let passed = wan.knock(200)?;
    ensure!(
        passed > 150,
        "of 200 packets {passed} passed: there is no link"
    );
    let primary = primary(&dir)?;
    primary.run(&[
        "CREATE DATABASE w",
        "CREATE TABLE w.t (id INT AUTO_INCREMENT PRIMARY KEY, a INT, b BIGINT, name VARCHAR(100), note VARCHAR(250))",
    ])?;
    // Names, numbers, a date, and as much of it by chance as orders or log lines have.
    for _ in 0..150 {
        primary.run(&[
            "INSERT INTO w.t (a, b, name, note) SELECT seq, FLOOR(RAND() * 1e12), CONCAT('customer ', MD5(RAND())), \
             CONCAT('order of ', NOW(6), ', paid by transfer, to be sent to street ', FLOOR(RAND() * 10000), ', ', SHA1(RAND())) \
             FROM w.seq_1_to_4000",
        ])?;
    }
    let (_, all, _, _): (String, u64, String, String) = primary.one("SHOW MASTER STATUS")?;
    let time = case
        .options
        .seconds
        .clamp(Duration::from_secs(8), Duration::from_secs(60));

    // An unmodified replica, with the link's own cubic.
    let replica = Server::within(Some(&wan.far()), &dir, "replica", 2, &[])?;
    replica.follow_at(&NEAR.to_string(), primary.port)?;
    replica.run(&["STOP SLAVE SQL_THREAD"])?;
    let direct = rate(time, all, || {
        Ok(replica
            .status("Read_Master_Log_Pos")?
            .parse::<u64>()
            .unwrap_or(0))
    })?;
    let rtt = super::plain::program("ss")
        .args(["-tinH", "state", "established", "src"])
        .arg(format!("{NEAR}:{}", primary.port))
        .output()?;
    let said = String::from_utf8_lossy(&rtt.stdout).into_owned();
    ensure!(
        said.contains("cubic"),
        "the replica is not served over cubic: {said}"
    );
    case.progress(format!("a replica over cubic: {:.2} Mbit/s", mbit(direct)));
    replica.run(&["STOP SLAVE", "RESET SLAVE ALL"])?;

    // Relay to relay, plain and compressed.
    let mut best = 0.0f64;
    for zstd in ["off", "3"] {
        let part = dir.join(format!("zstd-{zstd}"));
        std::fs::create_dir(&part)?;
        let mut ends = Ends::new(&part, &wan, &primary)?;
        ends.near.start()?;
        let limit = Instant::now() + Duration::from_secs(90);
        let wanted: String = primary.one("SELECT @@gtid_binlog_pos")?;
        while ends.near.one::<String>("SELECT @@gtid_binlog_pos")? != wanted {
            ensure!(
                Instant::now() < limit,
                "the near relay does not get all of it"
            );
            thread::sleep(Duration::from_millis(100));
        }
        let size: u64 = primary_bytes(&ends.near)?;
        ends.far.set(&format!("zstd={zstd}"));
        ends.far.start_unseen()?;
        let until = Instant::now() + Duration::from_secs(30);
        while ends.status("", "files").is_err() {
            ensure!(Instant::now() < until, "the far relay does not start");
            thread::sleep(Duration::from_millis(20));
        }
        let rate = rate(time, size, || Ok(ends.number("", "stored_bytes")? as u64))?;
        let ratio = match zstd {
            "off" => String::new(),
            _ => format!(", compressed {:.1} times", ends.number("zstd", "ratio")?),
        };
        let (_, seen) = super::group::get(ends.near_http, "/status.json")?;
        let used = seen
            .split("\"congestion\": \"")
            .nth(1)
            .and_then(|rest| rest.split('"').next())
            .unwrap_or("unknown")
            .to_owned();
        case.progress(format!(
            "relay to relay, zstd {zstd}, {used}: {:.1} Mbit/s{ratio}, {:.0} times a replica over cubic",
            mbit(rate),
            rate / direct
        ));
        best = best.max(rate);
    }
    let counts = wan.counts()?;
    case.note(format!(
        "the link moved {} packets, lost {}, dropped {}; congestion controls here: {known}",
        counts.passed, counts.lost, counts.dropped
    ));
    ensure!(
        best / direct >= WANTED,
        "relay to relay {:.1} Mbit/s, a replica over cubic {:.2} Mbit/s: {:.1} times, not {WANTED}",
        mbit(best),
        mbit(direct),
        best / direct
    );
    Ok(())
}

/// Bytes of events in a relay's files.
fn primary_bytes(relay: &Relay) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for file in relay.files()? {
        bytes += file.metadata()?.len();
    }
    // Beginnings of files are its own.
    Ok(bytes.saturating_sub(4096))
}

pub fn breaks(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let wan = Wan::new(&dir, &LINE, case.options.seed)?;
    let primary = primary(&dir)?;
    Load::prepare(&primary)?;
    let mut ends = Ends::new(&dir, &wan, &primary)?;
    ends.near.start()?;
    ends.far.start_unseen()?;
    let replica = Server::within(Some(&wan.far()), &dir, "replica", 2, &[])?;
    replica.follow(ends.far.port)?;
    // Not more than a replica on a slow machine takes.
    let load = Load::paced(&primary, 2, Duration::from_millis(80));
    let connected = || -> anyhow::Result<(bool, u64)> {
        let connected = ends.status("primary", "connected")? == "true";
        Ok((connected, ends.number("primary", "connections")? as u64))
    };
    let again = |least: u64| -> anyhow::Result<u64> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match connected() {
                Ok((true, connections)) if connections >= least => return Ok(connections),
                _ if Instant::now() > until => {
                    let why = ends.status("primary", "last_error");
                    bail!("the far relay did not come back: {why:?}")
                }
                _ => thread::sleep(Duration::from_millis(50)),
            }
        }
    };
    let mut connections = again(1)?;
    let (mut longest, mut cuts) = (Duration::ZERO, 0);
    let first = connections;
    for n in 0..BREAKS {
        // Mostly told by a reset, now and then silently.
        thread::sleep(Duration::from_millis(u64::from(n) * 37 % 400));
        let begin = Instant::now();
        if n % 5 == 4 {
            cuts += 1;
            wan.cut(Duration::from_millis(2600))?;
            connections = again(connections + 1)?;
        } else {
            // Again, if nothing was said meanwhile.
            let mut tried = Instant::now();
            wan.reset(Duration::from_millis(150))?;
            loop {
                let (is, now) = connected()?;
                if is && now > connections {
                    connections = now;
                    break;
                }
                if is && tried.elapsed() > Duration::from_secs(1) {
                    wan.reset(Duration::from_millis(150))?;
                    tried = Instant::now();
                }
                ensure!(
                    begin.elapsed() < Duration::from_secs(60),
                    "break {n}: the far relay did not come back"
                );
                thread::sleep(Duration::from_millis(30));
            }
        }
        longest = longest.max(begin.elapsed());
    }
    let done = load.stop()?;
    let counts = wan.counts()?;
    case.note(format!(
        "{done} transactions; {} connections broken ({cuts} times silently), the longest way back {:.1} s; {} packets lost, {} \
         cut off, {} made into resets",
        connections - first,
        longest.as_secs_f64(),
        counts.lost,
        counts.cut,
        counts.reset
    ));
    ensure!(u64::from(BREAKS) <= connections - first, "too few breaks");
    equal_tables(case, &primary, &[&replica], TABLES)?;
    let (theirs, ours) = (gtids_of(&primary)?, ends.far.gtids()?);
    let differs = theirs.iter().zip(&ours).position(|(a, b)| a != b);
    ensure!(
        theirs == ours && !ours.is_empty(),
        "the primary has {} groups, the far relay {}; the first difference is at {differs:?}",
        theirs.len(),
        ours.len()
    );
    ensure!(ends.number("primary", "unordered_groups")? == 0.0);
    case.note(format!(
        "{} groups at the far end, each once and in order; zstd made them {:.1} times smaller since the last break",
        ours.len(),
        ends.number("zstd", "ratio")?
    ));
    Ok(())
}
