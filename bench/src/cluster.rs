//! Starts the nodes of one run, tells them what to do, and ends them: in order, or
//! by process id when one hangs. Every wait has a limit.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command as Program, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::node::{Load, log_path};
use crate::protocol::{Command, Drained, Measured, Provider, REPORT_PREFIX, Report};

/// From the start of a node until its provider has connected.
const CONNECT_LIMIT: Duration = Duration::from_secs(60);
/// Until a node sees all members.
const MEMBERS_LIMIT: Duration = Duration::from_secs(60);
/// From the end of the measured time until all writers have stopped.
const WRITERS_STOP_LIMIT: Duration = Duration::from_secs(30);
/// Until everything is applied everywhere.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);
/// Until a node has left, freed its provider and ended.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// What the measuring process waits longer than a node, which knows more about its state.
const GRACE: Duration = Duration::from_secs(5);
/// Ports are looked for from here on, below the range the kernel hands out by itself.
const PORTS: std::ops::Range<u16> = 21_000..32_000;
/// Each node has two: group communication and state transfer.
const PORTS_PER_NODE: u16 = 2;

/// Why a run gave no figures.
#[derive(Debug, Error)]
pub enum RunError {
    /// A system call of this process failed.
    #[error("The run could not {what}: {source}.")]
    System {
        what: String,
        source: std::io::Error,
    },
    /// A node gave up.
    #[error("Node {node} (process {pid}) failed in phase '{phase}': {message}")]
    Node {
        node: usize,
        pid: u32,
        phase: String,
        message: String,
    },
    /// A node died.
    #[error("Node {node} (process {pid}) ended in phase '{phase}' ({status}).")]
    Died {
        node: usize,
        pid: u32,
        phase: String,
        status: String,
    },
    /// A node does not get on.
    #[error(
        "Node {node} (process {pid}) hung for {seconds} s in phase '{phase}' and was killed. \
         Its threads: {threads}."
    )]
    Hung {
        node: usize,
        pid: u32,
        phase: String,
        seconds: u64,
        threads: String,
    },
    /// The nodes saw different orders, or the contract was broken.
    #[error("The provider broke its contract: {0}")]
    Wrong(String),
    /// No two neighbouring ports are free.
    #[error("There are not enough free ports between {} and {}.", PORTS.start, PORTS.end)]
    Ports,
}

/// What a run starts.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// The provider's library.
    pub library: &'a Path,
    /// Its options, those for the ports excepted.
    pub options: &'a str,
    pub nodes: usize,
    pub writers: usize,
    pub warmup: Duration,
    pub measure: Duration,
    pub load: &'a Load,
    /// Where the nodes' directories go.
    pub dir: &'a Path,
}

/// What a run gave, one entry per node.
#[derive(Clone, Debug)]
pub struct RunResult {
    pub provider: Provider,
    pub measured: Vec<Measured>,
    pub drained: Vec<Drained>,
}

/// Runs one cluster from start to end.
pub fn run(plan: &Plan<'_>) -> Result<RunResult, RunError> {
    let mut cluster = Cluster::start(plan)?;
    cluster.run(plan)
}

struct Node {
    child: Child,
    commands: Option<ChildStdin>,
    phase: String,
    /// It said that it has stopped; its end is expected.
    stopped: bool,
}

struct Cluster {
    nodes: Vec<Node>,
    /// What the founder said about its provider.
    provider: Option<Provider>,
    reports: Receiver<(usize, Option<Report>)>,
    sender: Sender<(usize, Option<Report>)>,
}

impl Cluster {
    fn start(plan: &Plan<'_>) -> Result<Cluster, RunError> {
        let ports = free_ports(plan.nodes)?;
        let addresses: Vec<String> = ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let url = format!("gcomm://{}", addresses.join(","));
        let (sender, reports) = mpsc::channel();
        let mut cluster = Cluster {
            nodes: Vec::new(),
            provider: None,
            reports,
            sender,
        };
        for (index, port) in ports.iter().enumerate() {
            cluster.start_node(plan, index, *port, &url)?;
            // One after the other, as servers are started: the next one joins a cluster
            // that is complete so far.
            let mut connected = cluster.gather(&[index], CONNECT_LIMIT, |report| match report {
                Report::Connected(provider) => Some(provider),
                _ => None,
            })?;
            cluster.provider = cluster.provider.take().or(connected.pop());
            cluster.await_members(index + 1)?;
        }
        Ok(cluster)
    }

    fn start_node(
        &mut self,
        plan: &Plan<'_>,
        index: usize,
        port: u16,
        url: &str,
    ) -> Result<(), RunError> {
        let dir = node_dir(plan.dir, index);
        std::fs::create_dir_all(&dir).map_err(system("make a node's directory"))?;
        let address = format!("127.0.0.1:{port}");
        let mut options = format!(
            "base_port={port};gmcast.listen_addr=tcp://{address};ist.recv_addr=127.0.0.1:{}",
            port + 1
        );
        if !plan.options.is_empty() {
            options.push(';');
            options.push_str(plan.options);
        }
        let program = std::env::current_exe().map_err(system("find its own program"))?;
        let load = plan.load;
        let stderr = std::fs::File::create(dir.join("stderr.log"))
            .map_err(system("make a node's stderr.log"))?;
        let mut command = Program::new(program);
        command
            .arg("node")
            .arg("--library")
            .arg(plan.library)
            .arg(format!("--options={options}"))
            .args(["--index", &index.to_string()])
            .args(["--address", &address])
            .args(["--url", url])
            .arg("--dir")
            .arg(&dir)
            .args(["--writers", &plan.writers.to_string()])
            .args(["--appliers", &load.appliers.to_string()])
            .args(["--size", &load.size.to_string()])
            .args(["--rows", &load.rows.to_string()])
            .args(["--conflicts", &load.conflicts.to_string()])
            .args(["--hot-rows", &load.hot_rows.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr);
        if index == 0 {
            command.arg("--bootstrap");
        }
        let mut child = command.spawn().map_err(system("start a node"))?;
        if let Some(out) = child.stdout.take() {
            let sender = self.sender.clone();
            thread::spawn(move || read_reports(index, out, &sender));
        }
        let commands = child.stdin.take();
        self.nodes.push(Node {
            child,
            commands,
            phase: "start".to_owned(),
            stopped: false,
        });
        Ok(())
    }

    fn run(&mut self, plan: &Plan<'_>) -> Result<RunResult, RunError> {
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        self.tell(
            &all,
            &Command::Go {
                warmup_ms: milliseconds(plan.warmup),
                measure_ms: milliseconds(plan.measure),
                limit_ms: milliseconds(WRITERS_STOP_LIMIT),
            },
        )?;
        let limit = plan.warmup + plan.measure + WRITERS_STOP_LIMIT + GRACE;
        let measured = self.gather(&all, limit, |report| match report {
            Report::Measured(measured) => Some(*measured),
            _ => None,
        })?;
        let last = measured.iter().map(|m| m.last_seqno).max().unwrap_or(0);
        self.tell(
            &all,
            &Command::Drain {
                seqno: last,
                limit_ms: milliseconds(DRAIN_LIMIT),
            },
        )?;
        let drained = self.gather(&all, DRAIN_LIMIT + GRACE, |report| match report {
            Report::Drained(drained) => Some(*drained),
            _ => None,
        })?;
        self.stop(&all)?;
        check(&measured, &drained, plan.load.conflicts > 0)?;
        let provider = self.provider.take().ok_or_else(|| {
            RunError::Wrong("no node said what its provider is called".to_owned())
        })?;
        Ok(RunResult {
            provider,
            measured,
            drained,
        })
    }

    /// One node after the other, the founder last, as an operator would.
    fn stop(&mut self, all: &[usize]) -> Result<(), RunError> {
        for node in all.iter().rev() {
            self.tell(&[*node], &Command::Stop)?;
            self.gather(&[*node], STOP_LIMIT, |report| {
                matches!(report, Report::Stopped).then_some(())
            })?;
            let child = &mut self.nodes[*node].child;
            child.wait().map_err(system("wait for a stopped node"))?;
        }
        Ok(())
    }

    fn await_members(&mut self, members: usize) -> Result<(), RunError> {
        let all: Vec<usize> = (0..members).collect();
        self.tell(
            &all,
            &Command::AwaitMembers {
                members: i32::try_from(members).unwrap_or(i32::MAX),
                limit_ms: milliseconds(MEMBERS_LIMIT),
            },
        )?;
        self.gather(&all, MEMBERS_LIMIT + GRACE, |report| {
            matches!(report, Report::Members).then_some(())
        })?;
        Ok(())
    }

    fn tell(&mut self, nodes: &[usize], command: &Command) -> Result<(), RunError> {
        let line = serde_json::to_string(command)
            .map_err(|error| system("write a command")(error.into()))?;
        for node in nodes {
            let told = match &mut self.nodes[*node].commands {
                Some(commands) => writeln!(commands, "{line}").and_then(|()| commands.flush()),
                None => Err(std::io::ErrorKind::BrokenPipe.into()),
            };
            if told.is_err() {
                // It has ended; its last report says why, or its exit status.
                return Err(self.end_of(*node));
            }
        }
        Ok(())
    }

    /// Waits for one report of a kind from each of the nodes, in the order of `nodes`.
    fn gather<T>(
        &mut self,
        nodes: &[usize],
        limit: Duration,
        take: impl Fn(Report) -> Option<T>,
    ) -> Result<Vec<T>, RunError> {
        let deadline = Instant::now() + limit;
        let mut gathered: Vec<Option<T>> = nodes.iter().map(|_| None).collect();
        while let Some(missing) = gathered.iter().position(Option::is_none) {
            let left = deadline.saturating_duration_since(Instant::now());
            let (node, report) = match self.reports.recv_timeout(left) {
                Ok(received) => received,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(self.hung(nodes[missing], limit));
                }
            };
            match report {
                Some(Report::Phase(phase)) => self.nodes[node].phase = phase,
                Some(Report::Failed(message)) => return Err(self.failed(node, message)),
                Some(report) => {
                    self.nodes[node].stopped |= matches!(report, Report::Stopped);
                    if let Some(place) = nodes.iter().position(|n| *n == node) {
                        gathered[place] = take(report).or(gathered[place].take());
                    }
                }
                None if self.nodes[node].stopped => {}
                None => return Err(self.died(node)),
            }
        }
        Ok(gathered.into_iter().flatten().collect())
    }

    fn failed(&self, node: usize, message: String) -> RunError {
        let Node { child, phase, .. } = &self.nodes[node];
        RunError::Node {
            node: node + 1,
            pid: child.id(),
            phase: phase.clone(),
            message,
        }
    }

    /// Why a node does not take commands any more.
    fn end_of(&mut self, node: usize) -> RunError {
        // What it said last may still be on its way.
        while let Ok((from, report)) = self.reports.recv_timeout(GRACE) {
            match report {
                Some(Report::Phase(phase)) => self.nodes[from].phase = phase,
                Some(Report::Failed(message)) => return self.failed(from, message),
                None if from == node => break,
                _ => {}
            }
        }
        self.died(node)
    }

    fn died(&mut self, node: usize) -> RunError {
        let ended = &mut self.nodes[node];
        // Its output is closed; if it lives all the same, it is of no more use.
        let _ = ended.child.kill();
        RunError::Died {
            node: node + 1,
            pid: ended.child.id(),
            phase: ended.phase.clone(),
            status: match ended.child.wait() {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            },
        }
    }

    fn hung(&self, node: usize, limit: Duration) -> RunError {
        let Node { child, phase, .. } = &self.nodes[node];
        RunError::Hung {
            node: node + 1,
            pid: child.id(),
            phase: phase.clone(),
            seconds: limit.as_secs(),
            threads: threads(child.id()),
        }
    }
}

impl Drop for Cluster {
    /// Whatever is still there after an error is killed, each by its own process id.
    fn drop(&mut self) {
        for node in &mut self.nodes {
            // A node that has ended and was waited for is left alone by both calls.
            let _ = node.child.kill();
            let _ = node.child.wait();
        }
    }
}

fn read_reports(node: usize, out: ChildStdout, sender: &Sender<(usize, Option<Report>)>) {
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        let report = line
            .strip_prefix(REPORT_PREFIX)
            .and_then(|json| serde_json::from_str(json).ok());
        // Other lines are the provider's.
        if let Some(report) = report
            && sender.send((node, Some(report))).is_err()
        {
            return;
        }
    }
    let _ = sender.send((node, None));
}

/// The same order on all nodes, nothing lost, no rule of the contract broken.
fn check(measured: &[Measured], drained: &[Drained], conflicts: bool) -> Result<(), RunError> {
    for (node, drained) in drained.iter().enumerate() {
        if drained.violation_count > 0 {
            return Err(RunError::Wrong(format!(
                "node {} counted {} violations, the first ones {:?}",
                node + 1,
                drained.violation_count,
                drained.violations
            )));
        }
    }
    let seen = drained.first().map(|d| d.seen).unwrap_or_default();
    for (node, drained) in drained.iter().enumerate() {
        if drained.seen != seen {
            return Err(RunError::Wrong(format!(
                "the nodes saw different orders: node 1 {seen:?}, node {} {:?}",
                node + 1,
                drained.seen
            )));
        }
    }
    let unsuccessful: u64 = measured.iter().map(|m| m.ends.unsuccessful()).sum();
    if !conflicts && (unsuccessful > 0 || seen.failed > 0) {
        return Err(RunError::Wrong(format!(
            "{unsuccessful} transactions were aborted and {} write sets failed certification,              though all keys were unique",
            seen.failed
        )));
    }
    let successful: u64 = measured.iter().map(|m| m.ends.successful()).sum();
    if successful == 0 || seen.write_sets < successful {
        return Err(RunError::Wrong(format!(
            "{successful} transactions committed, but the order holds {} write sets",
            seen.write_sets
        )));
    }
    Ok(())
}

/// Where a node keeps its files.
fn node_dir(dir: &Path, index: usize) -> PathBuf {
    dir.join(format!("node{}", index + 1))
}

/// The log files of a run's nodes.
pub fn logs(dir: &Path, nodes: usize) -> Vec<PathBuf> {
    (0..nodes).map(|i| log_path(&node_dir(dir, i))).collect()
}

/// The first of two free ports for each node. Another program may take one before the
/// provider does; then that run fails and says so.
fn free_ports(nodes: usize) -> Result<Vec<u16>, RunError> {
    let mut held = Vec::new();
    let mut ports = Vec::new();
    let span = PORTS.end - PORTS.start;
    let first = PORTS.start + (std::process::id() * 16 % u32::from(span)) as u16;
    let candidates = (first..PORTS.end)
        .chain(PORTS.start..first)
        .step_by(usize::from(PORTS_PER_NODE));
    for port in candidates {
        if ports.len() == nodes {
            break;
        }
        let pair: Result<Vec<TcpListener>, _> = (port..port + PORTS_PER_NODE)
            .map(|port| TcpListener::bind(("127.0.0.1", port)))
            .collect();
        if let Ok(pair) = pair {
            held.extend(pair);
            ports.push(port);
        }
    }
    if ports.len() < nodes {
        return Err(RunError::Ports);
    }
    Ok(ports)
}

/// Name, state and kernel wait place of a process' threads, counted.
fn threads(pid: u32) -> String {
    let mut counts = std::collections::BTreeMap::<String, u32>::new();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let stat = read("stat");
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next())
            .unwrap_or('?');
        let comm = read("comm");
        let key = format!("{} {state} {}", comm.trim(), read("wchan").trim());
        *counts.entry(key).or_default() += 1;
    }
    let listed: Vec<String> = counts
        .iter()
        .map(|(thread, count)| format!("{count} x [{thread}]"))
        .collect();
    if listed.is_empty() {
        "none left".to_owned()
    } else {
        listed.join(", ")
    }
}

fn system(what: &str) -> impl FnOnce(std::io::Error) -> RunError {
    let what = what.to_owned();
    move |source| RunError::System { what, source }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Ends;
    use crate::server::OrderSeen;

    fn measured(committed: u64, failed: u64) -> Measured {
        Measured {
            window_ns: 1_000_000_000,
            cpu_ns: 1,
            switches: 0,
            threads: Default::default(),
            ends: Ends {
                committed,
                certification_failed: failed,
                ..Ends::default()
            },
            latencies: vec![(1, committed)],
            last_seqno: 12,
            stats: Default::default(),
        }
    }

    fn drained(hash: u64, failed: u64) -> Drained {
        Drained {
            seen: OrderSeen {
                first: 3,
                last: 12,
                write_sets: 10,
                failed,
                hash,
            },
            violation_count: 0,
            violations: Vec::new(),
            rss_max_bytes: 1,
        }
    }

    fn complaint(result: Result<(), RunError>) -> String {
        result.expect_err("this must not pass").to_string()
    }

    #[test]
    fn equal_orders_pass() {
        check(
            &[measured(4, 0), measured(6, 0)],
            &[drained(7, 0), drained(7, 0)],
            false,
        )
        .expect("equal");
        check(
            &[measured(4, 1), measured(4, 1)],
            &[drained(7, 2), drained(7, 2)],
            true,
        )
        .expect("equal");
    }

    #[test]
    fn each_check_fires() {
        let ten = [measured(5, 0), measured(5, 0)];
        let differ = check(&ten, &[drained(7, 0), drained(8, 0)], false);
        assert!(complaint(differ).contains("saw different orders"));
        let lost = check(&[measured(11, 0)], &[drained(7, 0)], false);
        assert!(complaint(lost).contains("but the order holds 10"));
        let idle = check(&[measured(0, 0)], &[drained(7, 0)], false);
        assert!(complaint(idle).contains("0 transactions committed"));
        let failed = check(&ten, &[drained(7, 1), drained(7, 1)], false);
        assert!(complaint(failed).contains("1 write sets failed certification"));
        let mut broken = drained(7, 0);
        broken.violation_count = 2;
        assert!(
            complaint(check(&ten, &[drained(7, 0), broken], false)).contains("node 2 counted 2")
        );
    }

    #[test]
    fn ports_are_pairs_that_do_not_overlap() {
        let ports = free_ports(5).expect("ten free ports");
        let mut all: Vec<u16> = ports.iter().flat_map(|p| [*p, p + 1]).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 10);
        assert!(all.iter().all(|port| PORTS.contains(port)));
    }

    #[test]
    fn the_threads_of_this_process_are_listed() {
        assert!(threads(std::process::id()).contains(" x ["));
        assert_eq!(threads(u32::MAX), "none left");
    }
}
