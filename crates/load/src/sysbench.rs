//! sysbench on the nodes of a local cluster.

use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use dromon_sandbox::ClusterRecord;

/// A run of `oltp_read_write`.
#[derive(Debug, Clone)]
pub struct Sysbench<'a> {
    /// The database; it must exist.
    pub db: &'a str,
    /// `--tables`.
    pub tables: u32,
    /// `--table-size`.
    pub rows: u32,
    /// `--threads`, over all nodes named.
    pub threads: u32,
    /// `--rand-seed`.
    pub seed: usize,
}

impl Sysbench<'_> {
    /// The command without its last word (`prepare` or `run`), for the nodes
    /// at these positions. It runs for `time` and goes on after errors 1213
    /// and 1020, which every client of such a cluster must expect. It can be
    /// started once: the password, which must not stand in the list of
    /// processes, is what it reads first.
    ///
    /// # Errors
    /// When the system has no pipe for it.
    pub fn command(
        &self,
        cluster: &ClusterRecord,
        nodes: &[usize],
        time: Duration,
    ) -> io::Result<Command> {
        let sockets: Vec<String> = nodes
            .iter()
            .map(|n| cluster.nodes[*n].socket.display().to_string())
            .collect();
        let (options, mut to) = io::pipe()?;
        // Far less than a pipe holds.
        writeln!(to, "mysql-password={}", cluster.password)?;
        let mut command = Command::new("sysbench");
        command
            .arg("oltp_read_write")
            .arg(format!("--mysql-socket={}", sockets.join(",")))
            .arg(format!("--mysql-user={}", cluster.user))
            .arg(format!("--mysql-db={}", self.db))
            .arg("--mysql-ignore-errors=1213,1020")
            .arg(format!("--tables={}", self.tables))
            .arg(format!("--table-size={}", self.rows))
            .arg(format!("--threads={}", self.threads))
            .args(["--db-driver=mysql", "--rand-type=pareto"])
            .arg(format!("--time={}", time.as_secs()))
            .arg(format!("--rand-seed={}", self.seed))
            .arg("--config-file=/dev/stdin")
            .stdin(Stdio::from(options));
        Ok(command)
    }

    /// Makes and fills the tables, through the first node.
    ///
    /// # Errors
    /// When sysbench is missing or fails; with what it said.
    pub fn prepare(&self, cluster: &ClusterRecord) -> anyhow::Result<()> {
        let out = self
            .command(cluster, &[0], Duration::ZERO)
            .context("making a pipe")?
            .arg("prepare")
            .output()
            .context("running sysbench (apt-get install sysbench)")?;
        ensure!(
            out.status.success(),
            "sysbench prepare: {}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
        Ok(())
    }
}

/// The first word behind `name` in sysbench's report, `?` if it is not there.
#[must_use]
pub fn figure(report: &str, name: &str) -> String {
    let line = report
        .lines()
        .find(|l| l.trim_start().starts_with(name))
        .unwrap_or_default();
    line.split_once(':')
        .map_or("?", |(_, v)| v.split_whitespace().next().unwrap_or("?"))
        .to_string()
}

/// The lines that say why sysbench gave up.
#[must_use]
pub fn complaints(report: &str) -> String {
    let lines: Vec<&str> = report
        .lines()
        .filter(|l| l.contains("FATAL"))
        .take(3)
        .collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use dromon_sandbox::SstMethod;

    use super::*;

    /// Everybody can read the arguments of a process.
    #[test]
    fn no_argument_has_the_password() {
        let cluster = ClusterRecord {
            shape: 1,
            complete: true,
            id: String::new(),
            name: "c".into(),
            dir: "/c".into(),
            server: "10.11".into(),
            provider: "/p.so".into(),
            provider_copy: "/c/p.so".into(),
            sst_method: SstMethod::Rsync,
            appliers: 1,
            provider_options: String::new(),
            tls: false,
            sst_tls: false,
            settings: Vec::new(),
            user: "u".into(),
            password: "geheim".into(),
            nodes: Vec::new(),
            witness: None,
        };
        let load = Sysbench {
            db: "d",
            tables: 1,
            rows: 1,
            threads: 1,
            seed: 1,
        };
        let command = load.command(&cluster, &[], Duration::ZERO).expect("a pipe");
        let seen = format!("{command:?}");
        assert!(!seen.contains("geheim"), "{seen}");
        assert!(seen.contains("--config-file=/dev/stdin"), "{seen}");
    }

    #[test]
    fn figures_are_found_in_a_report() {
        let report =
            "SQL statistics:\n    transactions:  1234   (123.4 per sec.)\n    max:   17.5\n";
        assert_eq!(figure(report, "transactions:"), "1234");
        assert_eq!(figure(report, "max:"), "17.5");
        assert_eq!(figure(report, "ignored errors:"), "?");
        assert_eq!(complaints(report), "");
        assert_eq!(complaints("x\nFATAL: no\ny"), "FATAL: no");
    }
}
