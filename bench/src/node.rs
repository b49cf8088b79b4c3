//! One node of a measured cluster: a child process that loads the provider and
//! writes through it as it is told.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::Args;
use dromon_wsrep::host::{
    Call, CallMark, End, Events as _, Host, HostError, Library, NodeConfig, Transaction,
};
use dromon_wsrep::{Status, process};
use hdrhistogram::Histogram;

use crate::protocol::{
    Command, Drained, Ends, Measured, Provider, REPORT_PREFIX, Report, ThreadTime,
};
use crate::server::{TAG_BYTES, Tag, ToyServer};

/// Longest latency the histogram can hold, nanoseconds; longer ones count as this.
const LATENCY_MAX_NS: u64 = 600_000_000_000;
/// Relative precision of a latency: three digits.
const LATENCY_DIGITS: u8 = 3;
/// `wsrep_local_state` of a synced node.
const STATE_SYNCED: &str = "4";
/// How often a node looks at the provider's position or state.
const POLL: Duration = Duration::from_millis(5);
/// How long the applier threads may take to leave `recv` after `disconnect`.
const RECV_END_LIMIT: Duration = Duration::from_secs(20);
/// Pause of a writer after an aborted transaction, as a client's retry would take.
const ABORT_PAUSE: Duration = Duration::from_micros(200);

const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;

/// How a node is started.
#[derive(Args, Clone, Debug)]
pub struct NodeArgs {
    /// The provider's library.
    #[arg(long)]
    pub library: PathBuf,
    /// Its options.
    #[arg(long, default_value = "")]
    pub options: String,
    /// Number of this node, from 0.
    #[arg(long)]
    pub index: usize,
    /// Host and port of its group communication.
    #[arg(long)]
    pub address: String,
    /// Addresses of all nodes, `gcomm://...`.
    #[arg(long)]
    pub url: String,
    /// Found the cluster.
    #[arg(long)]
    pub bootstrap: bool,
    /// Where its files go.
    #[arg(long)]
    pub dir: PathBuf,
    #[command(flatten)]
    pub load: Load,
}

/// What the writers do.
#[derive(Args, Clone, Debug)]
pub struct Load {
    /// Applier threads per node.
    #[arg(long, default_value_t = 4)]
    pub appliers: usize,
    /// Bytes of data in a write set.
    #[arg(long, default_value_t = 1024)]
    pub size: usize,
    /// Rows (keys) in a write set.
    #[arg(long, default_value_t = 1)]
    pub rows: usize,
    /// Percent of the transactions that take the lock of a hot row; half of them change it.
    #[arg(long, default_value_t = 0)]
    pub conflicts: u32,
    /// Rows in the hot set.
    #[arg(long, default_value_t = 16)]
    pub hot_rows: usize,
}

/// Runs a node until it is told to stop. Ends the process.
pub fn run(args: &NodeArgs, writers: usize) -> ! {
    // The measuring process may be killed; then nobody is left to stop this one.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let code = match serve(args, writers) {
        Ok(()) => 0,
        Err(message) => {
            report(&Report::Failed(message));
            1
        }
    };
    process::exit_now(code)
}

/// Everything that is shared by the threads of a node.
struct Node {
    host: Host,
    server: Arc<ToyServer>,
    args: NodeArgs,
    phase: AtomicU8,
    writer_marks: Vec<CallMark>,
    applier_marks: Vec<CallMark>,
}

fn serve(args: &NodeArgs, writers: usize) -> Result<(), String> {
    phase("load the provider");
    let log = File::create(log_path(&args.dir))
        .map_err(|error| format!("The log in {} cannot be made: {error}.", args.dir.display()))?;
    let server = Arc::new(ToyServer::new(args.load.hot_rows, log));
    let library = Library::load(&args.library).map_err(|error| error.to_string())?;
    phase("init");
    let with_log = |error: HostError| format!("{error} Last errors: {:?}", server.errors());
    let host = library
        .init(&config(args), server.clone())
        .map_err(with_log)?;
    let node = Arc::new(Node {
        host,
        server: Arc::clone(&server),
        args: args.clone(),
        phase: AtomicU8::new(WARM_UP),
        writer_marks: (0..writers).map(|_| CallMark::default()).collect(),
        applier_marks: (0..args.load.appliers.max(1))
            .map(|_| CallMark::default())
            .collect(),
    });
    phase("connect");
    node.host
        .connect("dromon-bench", &args.url, args.bootstrap)
        .map_err(with_log)?;
    report(&Report::Connected(node.provider()));

    let (ended, ends) = mpsc::channel();
    let mut appliers = vec![start_applier(&node, 0, ended.clone())?];
    let stdin = std::io::stdin();
    for line in stdin.lock().lines() {
        let line = line.map_err(|error| format!("The commands cannot be read: {error}."))?;
        let command = serde_json::from_str(&line)
            .map_err(|error| format!("The command '{line}' makes no sense: {error}."))?;
        match command {
            Command::AwaitMembers { members, limit_ms } => {
                phase(&format!("wait for {members} members"));
                let limit = Duration::from_millis(limit_ms);
                if !node.server.await_members(members, limit) {
                    return Err(node.stuck(&format!("did not see {members} members"), limit));
                }
                // As the server does: one applier first, the others once it has its data.
                for index in appliers.len()..node.applier_marks.len() {
                    appliers.push(start_applier(&node, index, ended.clone())?);
                }
                await_settled(&node, members, limit)?;
                report(&Report::Members);
            }
            Command::Go {
                warmup_ms,
                measure_ms,
                limit_ms,
            } => {
                let measured = measure(&node, warmup_ms, measure_ms, limit_ms)?;
                report(&Report::Measured(Box::new(measured)));
            }
            Command::Drain { seqno, limit_ms } => {
                phase("drain");
                let drained = drain(&node, seqno, Duration::from_millis(limit_ms))?;
                report(&Report::Drained(Box::new(drained)));
            }
            Command::Stop => {
                drop(ended);
                return stop(node, appliers, &ends);
            }
        }
    }
    Err("The measuring process closed the commands without saying stop.".to_owned())
}

/// Waits until the provider itself calls the node synced (a donor is not for a while, and
/// does not count for flow control until then) and, if its log has voters, all members are.
fn await_settled(node: &Node, members: i32, limit: Duration) -> Result<(), String> {
    let deadline = Instant::now() + limit;
    let wanted = [
        ("local_state", STATE_SYNCED.to_owned()),
        ("dromon_voters", members.to_string()),
    ];
    loop {
        let stats = node.host.stats();
        let not_yet: Vec<String> = stats
            .iter()
            .filter(|(name, value)| wanted.iter().any(|(n, v)| n == name && v != value))
            .map(|(name, value)| format!("{name} is {value}"))
            .collect();
        if not_yet.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let what = format!("is not settled: {}", not_yet.join(", "));
            return Err(node.stuck(&what, limit));
        }
        thread::sleep(POLL);
    }
}

fn start_applier(
    node: &Arc<Node>,
    index: usize,
    ended: mpsc::Sender<Status>,
) -> Result<JoinHandle<()>, String> {
    let node = Arc::clone(node);
    thread::Builder::new()
        .name(format!("applier-{index}"))
        .spawn(move || {
            let status = node.host.recv(&node.applier_marks[index]);
            // Nobody listens only when the process is about to end.
            let _ = ended.send(status);
        })
        .map_err(|error| format!("An applier thread cannot be started: {error}."))
}

fn measure(
    node: &Arc<Node>,
    warmup_ms: u64,
    measure_ms: u64,
    limit_ms: u64,
) -> Result<Measured, String> {
    phase("warm up");
    let limit = Duration::from_millis(limit_ms);
    let start = Arc::new(Barrier::new(node.writer_marks.len() + 1));
    let (done, results) = mpsc::channel();
    let mut writers = Vec::new();
    for index in 0..node.writer_marks.len() {
        let (node, start, done) = (Arc::clone(node), Arc::clone(&start), done.clone());
        let writer = thread::Builder::new()
            .name(format!("writer-{index}"))
            .spawn(move || {
                let writer = Writer::new(&node, index);
                start.wait();
                // Nobody listens only when the process is about to end.
                let _ = done.send(writer.run());
            })
            .map_err(|error| format!("A writer thread cannot be started: {error}."))?;
        writers.push(writer);
    }
    drop(done);
    start.wait();
    thread::sleep(Duration::from_millis(warmup_ms));

    phase("measure");
    let threads_before = thread_times();
    let before = process::usage();
    let begin = Instant::now();
    node.phase.store(MEASURE, Ordering::Relaxed);
    thread::sleep(Duration::from_millis(measure_ms));
    let after = process::usage();
    let window = begin.elapsed();
    // Before the writers stop, because ended threads are no longer listed.
    let threads = thread_times_since(&threads_before);
    node.phase.store(STOP, Ordering::Relaxed);

    phase("stop the writers");
    let stop_by = Instant::now() + limit;
    let mut ends = Ends::default();
    let mut latencies = new_histogram();
    for _ in &node.writer_marks {
        let left = stop_by.saturating_duration_since(Instant::now());
        let written = match results.recv_timeout(left) {
            Ok(written) => written?,
            Err(RecvTimeoutError::Timeout) => {
                return Err(node.stuck("did not finish its transactions", limit));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err("A writer thread panicked; its message is above.".to_owned());
            }
        };
        ends.add(&written.ends);
        latencies
            .add(&written.latencies)
            .map_err(|error| format!("The histograms cannot be added: {error}."))?;
    }
    for writer in writers {
        // All have sent their results, so none is in a call of the provider.
        writer
            .join()
            .map_err(|_| "A writer thread panicked; its message is above.".to_owned())?;
    }
    Ok(Measured {
        window_ns: nanoseconds(window),
        cpu_ns: nanoseconds(after.cpu.saturating_sub(before.cpu)),
        switches: after.switches.saturating_sub(before.switches),
        threads,
        ends,
        latencies: latencies
            .iter_recorded()
            .map(|v| (v.value_iterated_to(), v.count_at_value()))
            .collect(),
        last_seqno: node.server.order_seen().last,
        stats: node.host.stats().into_iter().collect::<BTreeMap<_, _>>(),
    })
}

/// Name and times of each living thread of this process, by its id.
fn thread_times() -> BTreeMap<String, (String, ThreadTime)> {
    let tasks = std::fs::read_dir("/proc/self/task");
    tasks
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|task| {
            let read = |file| std::fs::read_to_string(task.path().join(file)).ok();
            let (comm, schedstat) = (read("comm")?, read("schedstat")?);
            let mut numbers = schedstat.split(' ').map(str::parse);
            let time = ThreadTime {
                cpu_ns: numbers.next()?.ok()?,
                queued_ns: numbers.next()?.ok()?,
            };
            let id = task.file_name().to_string_lossy().into_owned();
            Some((id, (thread_group(&comm).to_owned(), time)))
        })
        .collect()
}

/// What the threads have used since then, added up by name.
fn thread_times_since(
    before: &BTreeMap<String, (String, ThreadTime)>,
) -> BTreeMap<String, ThreadTime> {
    let mut sums = BTreeMap::<String, ThreadTime>::new();
    for (id, (name, now)) in thread_times() {
        let then = before.get(&id).map(|(_, time)| *time).unwrap_or_default();
        let sum = sums.entry(name).or_default();
        sum.cpu_ns += now.cpu_ns.saturating_sub(then.cpu_ns);
        sum.queued_ns += now.queued_ns.saturating_sub(then.queued_ns);
    }
    sums
}

/// A thread's name without the number at its end.
fn thread_group(comm: &str) -> &str {
    let name = comm.trim();
    let bare = name.trim_end_matches(|c: char| c.is_ascii_digit());
    match bare.strip_suffix('-') {
        Some(group) if bare.len() < name.len() => group,
        _ => name,
    }
}

fn drain(node: &Node, seqno: i64, limit: Duration) -> Result<Drained, String> {
    let deadline = Instant::now() + limit;
    loop {
        let released = node
            .host
            .last_committed()
            .map_err(|error| error.to_string())?;
        if released >= seqno {
            break;
        }
        if Instant::now() >= deadline {
            return Err(node.stuck(
                &format!("has released {released} but not yet {seqno}"),
                limit,
            ));
        }
        thread::sleep(POLL);
    }
    let (violation_count, violations) = node.server.violations();
    Ok(Drained {
        seen: node.server.order_seen(),
        violation_count,
        violations,
        rss_max_bytes: process::usage().rss_max_bytes,
    })
}

fn stop(
    node: Arc<Node>,
    appliers: Vec<JoinHandle<()>>,
    ends: &mpsc::Receiver<Status>,
) -> Result<(), String> {
    phase("disconnect");
    node.host.disconnect().map_err(|error| error.to_string())?;
    phase("wait for the appliers to leave recv");
    let deadline = Instant::now() + RECV_END_LIMIT;
    for _ in &appliers {
        let left = deadline.saturating_duration_since(Instant::now());
        if let Err(RecvTimeoutError::Timeout) = ends.recv_timeout(left) {
            return Err(node.stuck("still has threads in recv", RECV_END_LIMIT));
        }
    }
    for applier in appliers {
        applier
            .join()
            .map_err(|_| "An applier thread panicked; its message is above.".to_owned())?;
    }
    phase("free the provider");
    let node = Arc::try_unwrap(node)
        .map_err(|_| "A thread still holds the provider after it was stopped.".to_owned())?;
    node.host.close();
    report(&Report::Stopped);
    Ok(())
}

fn config(args: &NodeArgs) -> NodeConfig {
    NodeConfig {
        name: format!("node{}", args.index + 1),
        address: args.address.clone(),
        data_dir: args.dir.clone(),
        options: args.options.clone(),
    }
}

impl Node {
    fn provider(&self) -> Provider {
        let about = self.host.about();
        Provider {
            name: about.name.clone(),
            version: about.version.clone(),
            vendor: about.vendor.clone(),
            durability: option_value(&self.host.options(), "dromon.durability")
                // Shown only if it was given.
                .or((about.name == "Dromon").then(|| "majority".to_owned())),
        }
    }

    /// A sentence about a node that does not get on, with the calls its threads are in.
    fn stuck(&self, what: &str, limit: Duration) -> String {
        let calls = |marks: &[CallMark]| {
            let mut counts = BTreeMap::new();
            for mark in marks {
                *counts.entry(mark.get().name()).or_insert(0_u32) += 1;
            }
            counts
        };
        format!(
            "After {} s the node {what}. Writers by call: {:?}. Appliers by call: {:?}. \
             Violations: {:?}. Last errors in its log: {:?}.",
            limit.as_secs(),
            calls(&self.writer_marks),
            calls(&self.applier_marks),
            self.server.violations().1,
            self.server.errors(),
        )
    }
}

/// What one writer did in the measured time.
struct Written {
    ends: Ends,
    latencies: Histogram<u64>,
}

struct Writer<'a> {
    node: &'a Node,
    index: usize,
    tag: Tag,
    payload: Vec<u8>,
    row_keys: Vec<[u8; 13]>,
    random: u64,
    written: Written,
}

impl<'a> Writer<'a> {
    fn new(node: &'a Node, index: usize) -> Writer<'a> {
        let load = &node.args.load;
        let writer = ((node.args.index as u64) << 32) | index as u64;
        Writer {
            node,
            index,
            tag: Tag {
                writer,
                count: 0,
                hot_row: None,
            },
            payload: vec![0x5a; load.size.max(TAG_BYTES)],
            row_keys: vec![[0; 13]; load.rows.max(1)],
            random: writer.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            written: Written {
                ends: Ends::default(),
                latencies: new_histogram(),
            },
        }
    }

    fn run(mut self) -> Result<Written, String> {
        loop {
            if self.node.phase.load(Ordering::Relaxed) == STOP {
                return Ok(self.written);
            }
            self.transaction()?;
        }
    }

    fn transaction(&mut self) -> Result<(), String> {
        let node = self.node;
        self.tag.count += 1;
        self.tag.hot_row = self.pick_hot_row();
        self.tag.write(&mut self.payload);
        self.write_keys();
        let rows: Vec<&[u8]> = self.row_keys.iter().map(|key| key.as_slice()).collect();
        let outcome = node.host.transaction(
            &Transaction {
                conn: self.index as u64 + 1,
                rows: &rows,
                payload: &self.payload,
                hot_row: node.server.hot_row(&self.payload),
            },
            &node.writer_marks[self.index],
        );
        let mut ends = Ends::default();
        match outcome.end {
            End::Committed => ends.committed = 1,
            End::Replayed => ends.replayed = 1,
            End::CertificationFailed => ends.certification_failed = 1,
            End::Aborted => {
                ends.aborted = 1;
                thread::sleep(ABORT_PAUSE);
            }
            End::Refused { call, status } => return Err(self.refused(call, status)),
        }
        // What ends within the measured time counts, wherever it began.
        if node.phase.load(Ordering::Relaxed) == MEASURE {
            self.written.ends.add(&ends);
            if ends.successful() > 0 {
                self.written
                    .latencies
                    .saturating_record(nanoseconds(outcome.latency).max(1));
            }
        }
        Ok(())
    }

    /// A hot row for the share of transactions that asked for one.
    fn pick_hot_row(&mut self) -> Option<usize> {
        let load = &self.node.args.load;
        if load.conflicts == 0 || load.hot_rows == 0 {
            return None;
        }
        // xorshift64 (Marsaglia 2003); the high bits are the good ones.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let high = self.random >> 32;
        (high % 100 < u64::from(load.conflicts)).then(|| (high / 100) as usize % load.hot_rows)
    }

    /// Keys shaped like the server's: the index number, then the column. All are used once
    /// in the whole cluster, but for the first of every second transaction with a hot row.
    /// The others with a hot row collide with it by its lock only, as on a gap: their
    /// aborts end in replays, not in certification failures.
    fn write_keys(&mut self) {
        let writer = (self.node.args.index * 1024 + self.index) as u32;
        let rows = self.row_keys.len() as u64;
        for (row, key) in self.row_keys.iter_mut().enumerate() {
            match self.tag.hot_row {
                Some(hot) if row == 0 && self.tag.count.is_multiple_of(2) => {
                    key[1..5].copy_from_slice(&u32::MAX.to_le_bytes());
                    key[5..].copy_from_slice(&(hot as u64).to_le_bytes());
                }
                _ => {
                    let unique = self.tag.count * rows + row as u64;
                    key[1..5].copy_from_slice(&writer.to_le_bytes());
                    key[5..].copy_from_slice(&unique.to_le_bytes());
                }
            }
        }
    }

    fn refused(&self, call: Call, status: Status) -> String {
        format!(
            "Writer {} got {status:?} from {} in its transaction {}; a healthy node does not \
             answer that here. Violations: {:?}. Last errors in its log: {:?}.",
            self.index,
            call.name(),
            self.tag.count,
            self.node.server.violations().1,
            self.node.server.errors(),
        )
    }
}

/// The value of an option in a `key = value; ...` list.
fn option_value(options: &str, name: &str) -> Option<String> {
    options.split(';').find_map(|item| {
        let (key, value) = item.split_once('=')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

/// An empty histogram of latencies in nanoseconds.
pub fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, LATENCY_DIGITS)
        .expect("the bounds are constants the library accepts")
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn phase(name: &str) {
    report(&Report::Phase(name.to_owned()));
}

fn report(report: &Report) {
    let line = serde_json::to_string(report).expect("reports have no map keys but strings");
    let mut out = std::io::stdout().lock();
    // If nobody reads, the parent is gone and this process is about to be killed.
    let _ = writeln!(out, "{REPORT_PREFIX}{line}");
    let _ = out.flush();
}

/// Where the log of a node is, given its directory.
pub fn log_path(dir: &Path) -> PathBuf {
    dir.join("provider.log")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_found_by_its_whole_name() {
        let options = "a.dromon.durability = no; dromon.durability = memory; x = 1; ";
        assert_eq!(
            option_value(options, "dromon.durability").as_deref(),
            Some("memory")
        );
        assert_eq!(option_value(options, "durability"), None);
    }

    #[test]
    fn threads_are_grouped_by_name() {
        for (comm, group) in [
            ("writer-12\n", "writer"),
            ("dromon-log\n", "dromon-log"),
            ("a1\n", "a1"),
        ] {
            assert_eq!(thread_group(comm), group);
        }
        let before = thread_times();
        assert!(!before.is_empty());
        let busy = Instant::now();
        while busy.elapsed() < Duration::from_millis(20) {}
        let used: u64 = thread_times_since(&before).values().map(|t| t.cpu_ns).sum();
        assert!(used > 0);
    }

    #[test]
    fn the_histogram_keeps_three_digits_and_the_extremes() {
        let mut histogram = new_histogram();
        for value in [1, 999_999, LATENCY_MAX_NS * 2] {
            histogram.saturating_record(value);
        }
        let near = histogram.value_at_quantile(0.5) as f64;
        assert!((near / 999_999.0 - 1.0).abs() < 0.001);
        assert!(histogram.max() as f64 >= LATENCY_MAX_NS as f64 * 0.999);
    }
}
