//! What `dromon up` prints when the cluster stands.

use std::time::Duration;

use dromon_node::version;
use dromon_sandbox::{Cluster, ClusterRecord, QUICK_START};

use crate::place;

/// What a node has to answer.
const LIMIT: Duration = Duration::from_secs(2);

/// What runs says of itself; empty where it does not answer.
#[derive(Debug, Default)]
struct Said {
    /// Versions of the servers, each once: not those of the programs that the cluster was made with.
    servers: Vec<String>,
    provider: String,
    uuid: String,
}

/// The banner: versions, nodes, settings, how to connect and how to stop.
pub fn text(cluster: &Cluster, took: &[Duration], total: Duration) -> String {
    let mut said = Said::default();
    if let Ok(status) = cluster.nodes()[0].status(LIMIT) {
        let get = |name| status.get(name);
        said.provider = format!(
            "{} {}",
            get("wsrep_provider_name"),
            get("wsrep_provider_version")
        );
        said.uuid = get("wsrep_cluster_state_uuid").to_owned();
    }
    let versions = cluster.nodes().iter().map(|n| n.server_version(LIMIT));
    for version in versions.flatten() {
        if !said.servers.contains(&version) {
            said.servers.push(version);
        }
    }
    render(&cluster.record(), took, total, &said, &place::program())
}

/// `program`: how this one is called.
fn render(
    record: &ClusterRecord,
    took: &[Duration],
    total: Duration,
    said: &Said,
    program: &str,
) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    let count = record.nodes.len();
    let plural = if count == 1 { "" } else { "s" };
    let when = match took.iter().all(Duration::is_zero) {
        true => "; runs already".to_owned(),
        false => format!(" after {:.1} s", total.as_secs_f64()),
    };
    line(String::new());
    line(format!(
        "Cluster \"{}\": {count} node{plural} Synced{when}",
        record.name
    ));
    line(format!("  dromon     {}", version::words()));
    if !said.servers.is_empty() {
        line(format!("  server     {}", said.servers.join(", ")));
    }
    let from = record.provider.display();
    line(match said.provider.trim() {
        "" => format!("  provider   {from}"),
        provider => format!("  provider   {provider}, from {from}"),
    });
    if !said.uuid.is_empty() {
        line(format!("  uuid       {}", said.uuid));
    }
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
    // Wherever they are run: the default depends on the directory.
    let dir = record.dir.display();
    line(format!("Look:  {program} status --dir {dir}"));
    line(format!(
        "Stop:  {program} down --dir {dir}          (--purge removes the data too)"
    ));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> ClusterRecord {
        let node = serde_json::json!({
            "name": "db1", "dir": "/srv/try/db1", "data_dir": "/srv/try/db1/data", "socket": "/s", "log": "/l",
            "ports": {"sql": 1, "group": 2, "ist": 3, "sst": 4}, "network": null, "process": null
        });
        let record = serde_json::json!({
            "shape": 1, "id": "0", "name": "dromon", "dir": "/srv/try", "server": "10.11.1-of-its-making",
            "provider": "/p.so", "provider_copy": "/c.so", "sst_method": "rsync", "appliers": 8,
            "provider_options": "", "tls": false, "settings": [], "user": "u", "password": "p", "nodes": [node]
        });
        serde_json::from_value(record).expect("a record")
    }

    #[test]
    fn commands_are_those_that_can_be_typed_and_name_the_directory() {
        let took = [Duration::from_secs(2)];
        let said = Said::default();
        let text = render(&record(), &took, took[0], &said, "target/release/dromon");
        for line in [
            "Look:  target/release/dromon status --dir /srv/try\n",
            "Stop:  target/release/dromon down --dir /srv/try  ",
            "Cluster \"dromon\": 1 node Synced after 2.0 s\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn versions_are_those_of_what_runs() {
        let text = |said: &Said| render(&record(), &[Duration::ZERO], LIMIT, said, "dromon");
        let known = Said {
            servers: vec!["10.11.14-MariaDB".into(), "10.11.15-MariaDB".into()],
            provider: "Dromon 4.24".into(),
            uuid: "1-2".into(),
        };
        let known = text(&known);
        for line in [
            "  server     10.11.14-MariaDB, 10.11.15-MariaDB\n",
            "  provider   Dromon 4.24, from /p.so\n",
            "  uuid       1-2\n",
            "Cluster \"dromon\": 1 node Synced; runs already\n",
        ] {
            assert!(known.contains(line), "{line}: {known}");
        }
        let unknown = text(&Said::default());
        for word in ["of-its-making", "  server ", "  uuid "] {
            assert!(!unknown.contains(word), "{word}: {unknown}");
        }
        assert!(unknown.contains("  provider   /p.so\n"), "{unknown}");
    }
}
