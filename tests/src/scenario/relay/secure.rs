//! TLS on both sides, with real servers.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::plain::{Load, PASSWORD, Relay, Server, USER, program};
use super::{equal, place};
use crate::harness::Case;

/// An authority, and a certificate for 127.0.0.1 that it signed.
pub fn certificates(dir: &Path) -> anyhow::Result<()> {
    let run = |args: &str| -> anyhow::Result<()> {
        let out = program("openssl")
            .current_dir(dir)
            .args(args.split(' '))
            .output()
            .context("running openssl")?;
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        ensure!(out.status.success(), "openssl {args}: {said}");
        Ok(())
    };
    std::fs::create_dir_all(dir)?;
    std::fs::write(
        dir.join("for.cnf"),
        "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n",
    )?;
    for authority in ["ca", "stranger"] {
        run(&format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN={authority} -keyout \
             {authority}.key -out {authority}.pem"
        ))?;
    }
    run(
        "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=db -keyout db.key -out db.csr",
    )?;
    run(
        "x509 -req -in db.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile for.cnf -out db.pem",
    )?;
    // Servers may run as another user.
    for file in ["db.key", "db.pem", "ca.pem"] {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(dir.join(file), mode)?;
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
    let primary = Server::new(&dir, "primary", 1, &ssl)?;
    let replica = Server::new(&dir, "replica", 2, &[])?;
    primary.run(&[
        "SET sql_log_bin = 0",
        &format!("ALTER USER {USER}@'%' REQUIRE SSL"),
    ])?;
    Load::prepare(&primary)?;
    let tls = [
        "primary_tls=name".to_owned(),
        format!("primary_tls_ca={}", file("ca.pem")),
        format!("tls_cert={}", file("db.pem")),
        format!("tls_key={}", file("db.key")),
    ];
    let settings: Vec<&str> = tls.iter().map(String::as_str).collect();
    // The wrong authority: nothing is said.
    let wrong = format!("primary_tls_ca={}", file("stranger.pem"));
    let mut doubting = Relay::new(
        &dir,
        "doubting",
        8,
        primary.port,
        &[&settings[..], &[&wrong]].concat(),
    )?;
    doubting.start()?;
    let until = Instant::now() + Duration::from_secs(20);
    let log = dir.join("doubting.log");
    loop {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        ensure!(!said.contains("Follows"), "it followed a stranger: {said}");
        if said.contains("cannot be encrypted") {
            let line = said.lines().find(|l| l.contains("cannot be encrypted"));
            case.note(format!(
                "a stranger's certificate: {}",
                line.unwrap_or_default()
            ));
            break;
        }
        ensure!(Instant::now() < until, "{said}");
        thread::sleep(Duration::from_millis(100));
    }
    doubting.kill()?;

    let mut relay = Relay::new(&dir, "relay", 9, primary.port, &settings)?;
    relay.start()?;
    let follow = |port: u16, ssl: &str| {
        replica.run(&[
            "STOP SLAVE",
            &format!(
                "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, MASTER_USER='{USER}', \
                 MASTER_PASSWORD='{PASSWORD}', MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1, \
                 MASTER_HEARTBEAT_PERIOD=1, {ssl}"
            ),
            "START SLAVE",
        ])
    };
    let checked = format!(
        "MASTER_SSL=1, MASTER_SSL_CA='{}', MASTER_SSL_VERIFY_SERVER_CERT=1",
        file("ca.pem")
    );
    follow(relay.port, &checked)?;
    let load = Load::start(&primary, 3);
    thread::sleep(case.options.seconds.min(Duration::from_secs(8)));
    let done = load.stop()?;
    equal(case, &primary, &[&replica], &relay)?;
    let followed = std::fs::read_to_string(dir.join("relay.log"))?;
    ensure!(followed.contains("encrypted"), "{followed}");
    case.note(format!(
        "{done} transactions, encrypted from the primary to the relay and on"
    ));

    // From now on nobody without.
    let at = relay.port;
    relay.kill()?;
    relay.set("tls_required=on");
    relay.start_unseen()?;
    follow(at, "MASTER_SSL=0")?;
    let until = Instant::now() + Duration::from_secs(20);
    while !replica
        .status("Last_IO_Error")?
        .contains("encrypted connections only")
    {
        ensure!(
            Instant::now() < until,
            "a replica in the clear was not refused: {}",
            replica.status("Last_IO_Error")?
        );
        thread::sleep(Duration::from_millis(100));
    }
    follow(at, &checked)?;
    primary.run(&["INSERT INTO rt.t (client, v) VALUES (95, 95)"])?;
    equal(case, &primary, &[&replica], &relay)?;
    case.note("with tls_required a replica without TLS is refused, and told why");
    Ok(())
}
