//! Servers started as systemd starts them: by the line of the package's unit, with
//! `galera_recovery`, and with somebody who gives up a start that takes too long.
//!
//! The line runs in a mount namespace of its own, in which `/etc/mysql` is the
//! node's. systemd's part at `NOTIFY_SOCKET` is played by [`Manager`].

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::{Node, SandboxError};

use crate::check;
use crate::harness::{Case, JOIN_LIMIT};
use crate::ledger::{self, Ledger, Numbers, Told};

/// Where Debian's package has its unit.
const UNITS: [&str; 2] = [
    "/lib/systemd/system/mariadb.service",
    "/usr/lib/systemd/system/mariadb.service",
];
/// Rows that clients write before all are killed.
const ROWS: usize = 300;
/// How long one of three waits alone; longer in the long rounds.
const ALONE: Duration = Duration::from_secs(14);
const ALONE_LONG: Duration = Duration::from_secs(90);
/// Who waits says so at least this often, on a busy machine too.
const EVERY: Duration = Duration::from_secs(12);
/// How long after that a status may still say that it starts.
const SHOWN: Duration = Duration::from_secs(10);
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// A first start, an outage with a node that waits for the others, an ordered stop;
/// each time by the unit's line.
pub fn unit(case: &mut Case) -> anyhow::Result<()> {
    let unit = Unit::read()?;
    let cluster = case.own_cluster(|spec| {
        // The peer loses at that setting what the engine had not written.
        if spec.provider.to_string_lossy().contains("dromon") {
            *spec = spec.clone().set("innodb_flush_log_at_trx_commit", "0");
        }
    })?;
    let ours = cluster.record().is_dromon();
    let by_unit = |index: usize, founds| unit.start(cluster.node(index), founds);

    let mut first = vec![by_unit(0, true)?];
    cluster.node(0).wait_usable(JOIN_LIMIT)?;
    for index in [1, 2] {
        first.push(by_unit(index, false)?);
        cluster.node(index).wait_usable(JOIN_LIMIT)?;
    }
    let took = all_ready(&mut first)?;
    case.note(format!(
        "founded and joined by the unit's line: ready after {took}"
    ));

    ledger::set_up(cluster.node(0), &case.db)?;
    let (mut numbers, mut told) = (Numbers::new(), Told::default());
    let clients = Ledger::open(cluster.nodes(), &case.db, 2, &mut numbers);
    clients.wait_more(ROWS, Duration::from_secs(60))?;
    cluster.kill_all()?;
    told.add(clients.close()?);

    // Who is started again with galera_new_cluster after that must not come up.
    if ours {
        let refused = by_unit(0, true)?;
        match cluster.node(0).wait_for("refused", JOIN_LIMIT, |_| false) {
            Err(SandboxError::NodeEnded { how, .. }) if how.ends_with("exit code 1") => {}
            Err(e) => return Err(e).context("galera_new_cluster after an outage"),
            Ok(_) => bail!("galera_new_cluster founded a cluster after an outage"),
        }
        ensure!(!refused.is_ready(), "it was ready before it was refused");
        case.note("galera_new_cluster after the outage: refused, exit status 1");
    }

    let alone = if case.options.times_judged {
        ALONE_LONG
    } else {
        ALONE
    };
    let mut again = vec![by_unit(0, false)?];
    // galera_recovery first; then it is the server.
    let position = given_position(cluster.node(0))?;
    thread::sleep(alone);
    let asked = again[0].asked();
    ensure!(
        !again[0].is_ready(),
        "db1 was ready alone, one of three logs"
    );
    if ours {
        let least = alone.as_secs() / EVERY.as_secs();
        ensure!(
            asked.len() as u64 >= least,
            "in {} s that db1 waited for the others it asked {} times for more time, not {least} times: {:?}",
            alone.as_secs(),
            asked.len(),
            again[0].said()
        );
    }
    for index in [1, 2] {
        again.push(by_unit(index, false)?);
    }
    for node in cluster.nodes() {
        node.wait_usable(JOIN_LIMIT)?;
    }
    let took = all_ready(&mut again)?;
    for (index, manager) in again.iter().enumerate() {
        manager
            .never_gives_up(EVERY)
            .with_context(|| format!("db{}", index + 1))?;
        if ours {
            manager
                .wait_shown()
                .with_context(|| format!("db{}", index + 1))?;
        }
    }
    check::settled(&cluster, &case.db)?;
    ledger::hold_against(&cluster, &case.db, &told)?;
    case.note(format!(
        "all killed ({told}); db1 started from {position} by galera_recovery asked {} times for more time in {} s alone, \
         then db2 and db3 came: ready after {took}; 0 lost",
        asked.len(),
        alone.as_secs()
    ));

    for node in cluster.nodes() {
        node.stop(STOP_LIMIT)?;
    }
    let mut last = vec![by_unit(2, true)?];
    cluster.node(2).wait_usable(JOIN_LIMIT)?;
    for index in [0, 1] {
        last.push(by_unit(index, false)?);
        cluster.node(index).wait_usable(JOIN_LIMIT)?;
    }
    let took = all_ready(&mut last)?;
    check::settled(&cluster, &case.db)?;
    ledger::hold_against(&cluster, &case.db, &told)?;
    case.note(format!(
        "stopped cleanly, the last one started with galera_new_cluster's variable: ready after {took}"
    ));
    check::whole(&cluster)
}

/// Waits until all have said so; how long each took from its start, in words.
fn all_ready(managers: &mut [Manager]) -> anyhow::Result<String> {
    let mut words = Vec::new();
    for manager in managers {
        let took = manager.wait_ready(JOIN_LIMIT)?;
        words.push(format!("{:.1} s", took.as_secs_f64()));
    }
    Ok(words.join(", "))
}

/// The position that the server's command line names; waits until it is the server's.
fn given_position(node: &Node) -> anyhow::Result<String> {
    let end = Instant::now() + JOIN_LIMIT;
    loop {
        let process = node.process().context("it has ended")?;
        // It may be gone by now; the next look says so.
        let line = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        let mut words = line.split('\0');
        if words.next().is_some_and(|w| w.ends_with("mariadbd")) {
            let position = words.find_map(|w| w.strip_prefix("--wsrep_start_position="));
            return Ok(position
                .with_context(|| format!("galera_recovery gave no position: {line:?}"))?
                .to_owned());
        }
        ensure!(
            Instant::now() < end,
            "the unit's line did not become the server: {line:?}"
        );
        thread::sleep(Duration::from_millis(50));
    }
}

/// What the package's unit says.
struct Unit {
    /// What the shell in `ExecStart` runs.
    script: String,
    user: String,
}

impl Unit {
    fn read() -> anyhow::Result<Self> {
        let file = UNITS.iter().find(|f| Path::new(f).is_file());
        let file = file.with_context(|| {
            format!("there is no {}: nothing was shown", UNITS.join(" and no "))
        })?;
        ensure!(
            Path::new("/usr/bin/galera_recovery").is_file(),
            "there is no /usr/bin/galera_recovery: nothing was shown"
        );
        let text = fs::read_to_string(file).with_context(|| (*file).to_owned())?;
        Self::parse(&text).with_context(|| (*file).to_owned())
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let text = text.replace("\\\n", " ");
        // The last one counts, as for systemd: a drop-in empties a list before it fills it anew.
        let value = |name: &str| {
            let mut lines = text.lines().rev();
            lines.find_map(|l| l.trim().strip_prefix(name)?.strip_prefix('='))
        };
        ensure!(
            value("Type") == Some("notify"),
            "the unit is not Type=notify"
        );
        let line = value("ExecStart").context("no ExecStart")?;
        ensure!(
            !value("ExecStartPre").is_some_and(|l| l.contains("galera_recovery")),
            "the unit runs galera_recovery before ExecStart, a shape that this test does not know"
        );
        let script = line
            .strip_prefix("/bin/sh -c \"")
            .and_then(|l| l.trim_end().strip_suffix('"'));
        let script = script.with_context(|| {
            format!("ExecStart has a shape that this test does not know: {line}")
        })?;
        ensure!(
            script.contains("galera_recovery") && script.contains("$_WSREP_NEW_CLUSTER"),
            "ExecStart does not start a cluster's node: {line}"
        );
        Ok(Self {
            script: script.to_owned(),
            user: value("User").context("no User")?.to_owned(),
        })
    }

    /// Starts the server; `founds`: as `galera_new_cluster` has it.
    fn start(&self, node: &Node, founds: bool) -> anyhow::Result<Manager> {
        let record = node.record();
        let etc = record.dir.join("etc-mysql");
        fs::create_dir_all(&etc)?;
        fs::copy(record.dir.join("my.cnf"), etc.join("my.cnf"))?;
        for (path, mode) in [(&etc, 0o755), (&etc.join("my.cnf"), 0o644)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
        let manager = Manager::listen(&record.dir.join("notify"))?;
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "private", "--", "sh", "-c"])
            .arg("mount --bind \"$1\" /etc/mysql && exec setpriv --reuid=\"$2\" --regid=\"$2\" --init-groups /bin/sh -c \"$3\"")
            .arg("unit")
            .arg(&etc)
            .args([&self.user, &self.script])
            .env("NOTIFY_SOCKET", &manager.place)
            .env_remove("MYSQLD_OPTS");
        if founds {
            command.env("_WSREP_NEW_CLUSTER", "--wsrep-new-cluster");
        } else {
            command.env_remove("_WSREP_NEW_CLUSTER");
        }
        node.start_by(command)?;
        Ok(manager)
    }
}

/// Hears what a service tells systemd.
struct Manager {
    place: PathBuf,
    began: Instant,
    heard: Arc<Mutex<Vec<(Instant, String)>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Manager {
    fn listen(place: &Path) -> anyhow::Result<Self> {
        if place.exists() {
            fs::remove_file(place)?;
        }
        let socket = UnixDatagram::bind(place)
            .with_context(|| format!("listening at {}", place.display()))?;
        fs::set_permissions(place, fs::Permissions::from_mode(0o777))?;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        let heard = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (heard, stop) = (Arc::clone(&heard), Arc::clone(&stop));
            thread::spawn(move || {
                let mut buf = [0; 4096];
                while !stop.load(Ordering::Acquire) {
                    // Else the time is over: look whether to stop.
                    if let Ok(len) = socket.recv(&mut buf) {
                        let text = String::from_utf8_lossy(&buf[..len]).into_owned();
                        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
                        heard.push((Instant::now(), text));
                    }
                }
            })
        };
        Ok(Self {
            place: place.to_owned(),
            began: Instant::now(),
            heard,
            stop,
            thread: Some(thread),
        })
    }

    fn heard(&self) -> Vec<(Instant, String)> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.clone()
    }

    fn said(&self) -> Vec<String> {
        self.heard().into_iter().map(|(_, text)| text).collect()
    }

    fn ready_at(&self) -> Option<Instant> {
        let mut heard = self.heard().into_iter();
        heard.find_map(|(at, text)| text.lines().any(|l| l == "READY=1").then_some(at))
    }

    fn is_ready(&self) -> bool {
        self.ready_at().is_some()
    }

    /// How long it took from the start.
    fn wait_ready(&self, limit: Duration) -> anyhow::Result<Duration> {
        let end = Instant::now() + limit;
        loop {
            if let Some(at) = self.ready_at() {
                return Ok(at.duration_since(self.began));
            }
            ensure!(
                Instant::now() < end,
                "no READY=1 within {} s, only {:?}",
                limit.as_secs(),
                self.said()
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// When the library asked for more time, and for how much.
    fn asked(&self) -> Vec<(Instant, Duration)> {
        let ours = |text: &str| text.lines().any(|l| l.starts_with("STATUS=Starting: "));
        let more = |text: &str| -> Option<Duration> {
            let mut lines = text.lines();
            let micros = lines.find_map(|l| l.strip_prefix("EXTEND_TIMEOUT_USEC="))?;
            Some(Duration::from_micros(micros.parse().ok()?))
        };
        let heard = self.heard().into_iter();
        heard
            .filter(|(_, text)| ours(text))
            .filter_map(|(at, text)| Some((at, more(&text)?)))
            .collect()
    }

    /// Of one that is synced: waits until the status shown last does not say that it starts.
    fn wait_shown(&self) -> anyhow::Result<()> {
        let end = Instant::now() + SHOWN;
        loop {
            let said = self.said();
            let mut lines = said.iter().rev().flat_map(|text| text.lines());
            let shown = lines.find_map(|l| l.strip_prefix("STATUS="));
            if !shown.is_some_and(|s| s.starts_with("Starting: ")) {
                return Ok(());
            }
            ensure!(
                Instant::now() < end,
                "it is synced, and for {} s its status has been {shown:?}",
                SHOWN.as_secs()
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// From the first request on: each next one came within `every`, which is
    /// well within what was asked for, and the last one reaches to READY.
    fn never_gives_up(&self, every: Duration) -> anyhow::Result<()> {
        let asked = self.asked();
        let ready = self.ready_at().context("not ready")?;
        for pair in asked.windows(2) {
            let gap = pair[1].0.duration_since(pair[0].0);
            ensure!(
                gap < every && 2 * every < pair[0].1,
                "it asked for {:?} more and again only {gap:?} later",
                pair[0].1
            );
        }
        if let Some((at, more)) = asked.last() {
            ensure!(
                *at + *more > ready,
                "{:?} after its last request systemd would have given it up",
                more
            );
        }
        Ok(())
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It ends within its read timeout; it cannot panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_unit_is_read() {
        let text = "[Service]\nType=notify\nUser=mysql\nExecStart=/bin/sh -c \"set -f; \\\n VAR=`/usr/bin/galera_recovery`; \
                    exec /usr/sbin/mariadbd $_WSREP_NEW_CLUSTER $VAR\"\nExecStartPost=!/x\n";
        let unit = Unit::parse(text).expect("a unit");
        assert_eq!(unit.user, "mysql");
        assert_eq!(
            unit.script,
            "set -f;   VAR=`/usr/bin/galera_recovery`; exec /usr/sbin/mariadbd $_WSREP_NEW_CLUSTER $VAR"
        );
        for other in [
            text.replace("notify", "simple"),
            text.replace("/bin/sh -c ", "/usr/sbin/mariadbd "),
            text.replace("galera_recovery", "true"),
            format!("{text}ExecStartPre=/bin/sh -c \"VAR=`/usr/bin/galera_recovery`\"\n"),
        ] {
            assert!(Unit::parse(&other).is_err(), "{other}");
        }
        // With a drop-in behind it: what is emptied there does not count.
        let emptied =
            "[Service]\nExecStartPre=\nExecStartPre=+/usr/bin/install -d /x\nExecStart=\n";
        let line =
            "ExecStart=/bin/sh -c \"VAR=`/usr/bin/galera_recovery`; x $_WSREP_NEW_CLUSTER\"\n";
        let other = Unit::parse(&format!("{text}{emptied}{line}")).expect("a unit");
        assert_eq!(
            other.script,
            "VAR=`/usr/bin/galera_recovery`; x $_WSREP_NEW_CLUSTER"
        );
    }
}
