//! What `dromon up` prints when the cluster stands.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use dromon_sandbox::{Cluster, ClusterRecord, QUICK_START};

use crate::place;

/// The banner: versions, nodes, settings, how to connect and how to stop.
pub fn text(cluster: &Cluster, took: &[Duration], total: Duration, dir: Option<&Path>) -> String {
    let record = cluster.record();
    let (version, uuid) = cluster.nodes()[0]
        .status(Duration::from_secs(2))
        .map(|s| {
            let name = format!(
                "{} {}",
                s.get("wsrep_provider_name"),
                s.get("wsrep_provider_version")
            );
            (name, s.get("wsrep_cluster_state_uuid").to_string())
        })
        .unwrap_or_default();
    render(&record, took, total, version.trim(), &uuid, dir)
}

fn render(
    record: &ClusterRecord,
    took: &[Duration],
    total: Duration,
    provider_version: &str,
    uuid: &str,
    dir: Option<&Path>,
) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    let count = record.nodes.len();
    let hint = place::hint(dir);
    line(String::new());
    line(format!(
        "Cluster \"{}\": {count} node{} Synced after {:.1} s",
        record.name,
        if count == 1 { "" } else { "s" },
        total.as_secs_f64()
    ));
    line(format!("  dromon     {}", env!("CARGO_PKG_VERSION")));
    line(format!("  server     {}", server_words(&record.server)));
    line(format!(
        "  provider   {provider_version}, from {}",
        record.provider.display()
    ));
    line(format!("  uuid       {uuid}"));
    line(format!(
        "  transfer   {}, {} applier threads per node",
        record.sst_method.name(),
        record.appliers
    ));
    line(if record.tls {
        let copies = if record.copies_encrypted() {
            "full copies, too".into()
        } else {
            format!(
                "full copies by {} are NOT encrypted: {}",
                record.sst_method.name(),
                record.sst_method.encrypt_advice()
            )
        };
        format!(
            "  between    TLS and a secret, from {} ({copies})",
            record.dir.join("tls").display()
        )
    } else {
        "  between    nothing is encrypted and there is no secret".into()
    });
    for (node, took) in record.nodes.iter().zip(took) {
        line(String::new());
        line(format!(
            "  {}   SQL 127.0.0.1:{}   group 127.0.0.1:{}   {}",
            node.name,
            node.ports.sql,
            node.ports.group,
            match took.as_secs_f64() {
                0.0 => "ran already".to_owned(),
                took => format!("Synced at {took:.1} s"),
            }
        ));
        line(format!("      socket  {}", node.socket.display()));
        line(format!("      data    {}", node.data_dir.display()));
        line(format!("      log     {}", node.log.display()));
    }
    if let Some(witness) = &record.witness {
        line(String::new());
        line(format!(
            "  witness   group 127.0.0.1:{}   votes and stores the log, has no data",
            witness.port
        ));
        line(format!(
            "      log     {}",
            witness.dir.join("log").display()
        ));
        line(format!("      says    {}", witness.log.display()));
    }
    line(String::new());
    line("Settings (each node's my.cnf has them all):".into());
    for (name, value, why) in QUICK_START {
        if !record
            .settings
            .iter()
            .any(|s| s.name.replace('-', "_").eq_ignore_ascii_case(name))
        {
            line(format!("  {:<58} # {why}", format!("{name}={value}")));
        }
    }
    for setting in &record.settings {
        let value = setting
            .value
            .as_deref()
            .map(|v| format!("={v}"))
            .unwrap_or_default();
        let own = crate::up::binlog().into_iter();
        let mut why = own.filter(|(s, _)| s == setting).map(|(_, why)| why);
        let why = why.next().unwrap_or("yours");
        line(format!(
            "  {:<58} # {why}",
            format!("{}{value}", setting.name)
        ));
    }
    let first = &record.nodes[0];
    line(String::new());
    line("Connect (every node takes reads and writes):".into());
    line(format!(
        "  mariadb --defaults-file={}",
        first.dir.join("client.cnf").display()
    ));
    line(format!(
        "  mariadb -h 127.0.0.1 -P {} -u {} -p{}",
        first.ports.sql, record.user, record.password
    ));
    line(
        "  This user may do everything and its password is printed above: keep it to trial data."
            .into(),
    );
    line(format!("Look:  dromon status{hint}"));
    line(format!(
        "Stop:  dromon down{hint}          (--purge removes the data too)"
    ));
    out
}

/// `Ver 10.11.19-MariaDB-… for debian-linux-gnu …` without the program's path.
fn server_words(version: &str) -> String {
    let mut out = String::from("MariaDB");
    match version.split_once("Ver ") {
        Some((_, rest)) => write!(out, " {rest}").expect("writing to a String cannot fail"),
        None => write!(out, " {version}").expect("writing to a String cannot fail"),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_words_lose_the_path() {
        assert_eq!(
            server_words("/usr/sbin/mariadbd  Ver 10.11.19-MariaDB for debian"),
            "MariaDB 10.11.19-MariaDB for debian"
        );
        assert_eq!(server_words("odd"), "MariaDB odd");
    }
}
