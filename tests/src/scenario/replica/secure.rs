//! TLS towards both servers, and how it stands over HTTP.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::{Replica, equal, grant};
use crate::harness::Case;
use crate::scenario::relay::group::{get, metric};
use crate::scenario::relay::place;
use crate::scenario::relay::plain::{Load, Server, TABLES, USER, free_port};
use crate::scenario::relay::secure::certificates;

/// Waits until it says so.
pub fn becomes(what: &str, mut done: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let until = Instant::now() + Duration::from_secs(90);
    while !done()? {
        ensure!(Instant::now() < until, "{what} did not come");
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

pub fn run(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let pki = dir.join("pki");
    certificates(&pki)?;
    let file = |name: &str| pki.join(name).display().to_string();
    let ssl = [
        format!("--ssl-ca={}", file("ca.pem")),
        format!("--ssl-cert={}", file("db.pem")),
        format!("--ssl-key={}", file("db.key")),
    ];
    let ssl: Vec<&str> = ssl.iter().map(String::as_str).collect();
    let mut primary = Server::new(&dir, "primary", 1, &ssl)?;
    let target = Server::new(&dir, "target", 2, &ssl)?;
    grant(&target)?;
    // The source wants to see a certificate, too.
    for (server, how) in [(&primary, "X509"), (&target, "SSL")] {
        server.run(&[
            "SET sql_log_bin = 0",
            &format!("ALTER USER {USER}@'%' REQUIRE {how}"),
        ])?;
    }
    // MariaDB's newer way to show a password, once with TLS and once without.
    primary.run(&[
        "INSTALL SONAME 'auth_ed25519'",
        "SET sql_log_bin = 0",
        "CREATE USER signs@'%' IDENTIFIED VIA ed25519 USING PASSWORD('sealed and sent')",
        "GRANT REPLICATION SLAVE ON *.* TO signs@'%'",
    ])?;
    Load::prepare(&primary)?;
    let signs = ["source_user=signs", "source_password=sealed and sent"];
    let own = dir.join("clear");
    std::fs::create_dir_all(&own)?;
    target.run(&[&format!("ALTER USER {USER}@'%' REQUIRE NONE")])?;
    let mut clear = Replica::new(&own, primary.port, target.port, &["channel=clear"])?;
    let wrong = [
        "source_user=signs",
        "source_password=another",
        "until_caught_up=on",
    ];
    clear.start(&wrong)?;
    becomes("a refusal", || {
        let said = clear.said().unwrap_or_default();
        Ok(said.contains("Access denied for user 'signs'"))
    })?;
    clear.kill()?;
    ensure!(clear.finish(&signs)?, "{}", clear.log.display());
    equal(&primary, &target, TABLES, "by ed25519")?;
    target.run(&[
        "DROP DATABASE rt",
        &format!("ALTER USER {USER}@'%' REQUIRE SSL"),
    ])?;
    case.note("an account with ed25519");
    let http = free_port()?;
    let tls = [
        "source_tls=name".to_owned(),
        format!("source_tls_ca={}", file("ca.pem")),
        format!("source_tls_cert={}", file("db.pem")),
        format!("source_tls_key={}", file("db.key")),
        "target_tls=name".to_owned(),
        format!("target_tls_ca={}", file("ca.pem")),
        format!("http=127.0.0.1:{http}"),
    ];
    let settings: Vec<&str> = tls.iter().map(String::as_str).collect();
    let mut replica = Replica::new(&dir, primary.port, target.port, &settings)?;

    for wrong in ["source_tls_ca", "target_tls_ca"] {
        let setting = format!("{wrong}={}", file("stranger.pem"));
        replica.start(&[&setting])?;
        becomes("a refusal", || {
            let said = replica.said().unwrap_or_default();
            ensure!(!said.contains("Follows"), "it followed a stranger: {said}");
            let refused = format!("Compare {wrong}");
            Ok(said
                .lines()
                .any(|l| l.contains("cannot be encrypted") && l.contains(&refused)))
        })?;
        replica.kill()?;
    }
    case.note("a stranger in the place of the source, or of the target, is told nothing");

    let load = Load::start(&primary, 3);
    replica.start(&[])?;
    let ready = |lag: &str| -> anyhow::Result<bool> {
        Ok(get(http, &format!("/ready?max_lag={lag}")).is_ok_and(|(code, _)| code == 200))
    };
    thread::sleep(case.options.seconds.min(Duration::from_secs(8)));
    let lag = metric(http, "dromon_replica_lag_seconds")?;
    let done = load.stop()?;
    becomes("readiness", || ready("2"))?;
    let wanted: String = primary.one("SELECT @@gtid_binlog_pos")?;
    becomes("the last transaction", || {
        let (_, body) = get(http, "/status.json")?;
        Ok(body.contains(&format!("\"position\": \"{wanted}\"")))
    })?;
    becomes("caught up", || {
        Ok(metric(http, "dromon_replica_caught_up")? == 1.0)
    })?;
    equal(&primary, &target, TABLES, "over TLS")?;
    let applied = metric(http, "dromon_replica_transactions_total")?;
    ensure!(applied > 0.0, "nothing was counted");
    ensure!(replica.said()?.contains(", encrypted,"), "not encrypted");
    // Away from the source what it has grows old.
    primary.kill()?;
    becomes("the end of readiness", || {
        Ok(get(http, "/ready?max_lag=1.5")?.0 == 503)
    })?;
    primary.start()?;
    becomes("readiness again", || ready("1.5"))?;
    let (code, _) = get(http, "/else")?;
    ensure!(code == 404, "{code}");
    case.note(format!(
        "{done} transactions, encrypted on both sides; {lag:.1} s behind under load; checksums equal"
    ));
    Ok(())
}
