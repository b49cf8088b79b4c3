//! `dromon log show` over a log that an engine wrote.

mod program;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dromon_log::{DirDevice, Log, LogOptions, WriterHandle};
use dromon_node::Position;
use dromon_node::cluster::ClusterState;
use dromon_node::messages::{Control, Join, Need, encode, kind};
use dromon_order::disklog::DiskLog;
use dromon_order::tcp::{TcpConfig, TcpNetwork};
use dromon_order::wire::Identity;
use dromon_order::{EngineConfig, NodeHandler, Order, OrderStatus, RaftId, Reply, Start};
use dromon_writeset::{Flags, Header, KeyCollector, KeyType, Uuid};
use program::Running;
use serde_json::Value;

/// Nothing here may take longer.
const LIMIT: Duration = Duration::from_secs(60);

struct Quiet;

impl NodeHandler for Quiet {
    fn request(&self, _: &str, body: Bytes, reply: Reply) {
        reply.send(body);
    }
    fn message(&self, _: RaftId, _: Bytes) {}
    fn tick(&self) -> Option<Bytes> {
        None
    }
    fn status(&self, _: &OrderStatus) {}
    fn position_lost(&self) {}
}

const ORIGIN: Uuid = Uuid([7; 16]);
const HISTORY: Uuid = Uuid([0xaa; 16]);

/// A node's order and its deterministic state, delivered on the test's thread.
struct Node {
    order: Arc<dyn Order>,
    state: ClusterState,
    index: u64,
}

impl Node {
    fn found(dir: &Path) -> Node {
        let device = DirDevice::open(dir).expect("the directory is there");
        let options = LogOptions {
            segment_bytes: 64 << 10,
            identity: 0xfeed,
            ..LogOptions::default()
        };
        let (log, _) = Log::open(Arc::new(device), options).expect("the log opens");
        let writer = WriterHandle::spawn(log, 64 << 20).expect("a thread can be made");
        let port = {
            let l = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
            l.local_addr().expect("it is bound").port()
        };
        let addr = format!("127.0.0.1:{port}");
        let start = Position {
            history: HISTORY,
            seqno: 0,
        };
        let state = ClusterState::genesis(start);
        let genesis = state.encode().1;
        let listen = addr.clone();
        let network = Box::new(move |raft_id| {
            let who = Identity {
                cluster: "show".to_owned(),
                raft_id,
                addr: listen.clone(),
                ..Identity::default()
            };
            let net = TcpNetwork::bind(TcpConfig::new(listen, who, raft_id));
            net.map(|n| n as Arc<dyn dromon_order::Network>)
                .map_err(|e| e.to_string())
        });
        let order = dromon_order::start(
            EngineConfig::lan("show", 11, ORIGIN, &addr),
            Arc::new(DiskLog::new(writer)),
            network,
            Arc::new(Quiet),
            Start::Bootstrap {
                genesis,
                after: None,
            },
        )
        .expect("the engine starts");
        let mut node = Node {
            order,
            state,
            index: 0,
        };
        let join = Control::Join(Join {
            uuid: Uuid([1; 16]),
            origin: ORIGIN,
            name: "db1".into(),
            incoming: String::new(),
            addr,
            raft_id: 11,
            segment: 0,
            weight: 1,
            vote_policy: 0,
            position: start,
            need: Need::Log,
            log_start: 0,
            witness: false,
            stateless: false,
        });
        node.send(kind::CONTROL, encode(&join));
        node
    }

    /// Orders a message and delivers up to it.
    fn send(&mut self, kind: u8, body: Bytes) {
        let deadline = Instant::now() + LIMIT;
        self.order.propose(kind, 1, body).expect("there is room");
        while self.order.status().pending > 0 || self.index < self.order.status().committed {
            assert!(Instant::now() < deadline, "it is never ordered");
            for entry in self.order.next_committed(100, Duration::from_millis(20)) {
                self.index = entry.index;
                let _ = self.state.deliver(&entry);
            }
        }
    }

    fn write(&mut self, source: u8, last_seen: i64, key: &[u8], payload: usize) {
        let mut keys = KeyCollector::new();
        keys.add(&[b"test", b"t", key], KeyType::Exclusive)
            .expect("a key");
        let header = Header {
            flags: Flags::TRX_START | Flags::TRX_END,
            source: Uuid([source; 16]),
            trx_id: 40 + last_seen as u64,
            conn_id: 9,
            last_seen,
            prev_fragment: -1,
            chunk: 0,
        };
        let body = dromon_writeset::encode(&header, &keys, &vec![0x5a; payload]);
        self.send(kind::WRITE_SET, body);
    }

    fn checkpoint(&mut self) {
        let (sequencer, node) = self.state.encode();
        self.order
            .save_checkpoint(self.index, sequencer, node)
            .expect("room");
    }
}

/// Join, three small transactions, one that fails, one of 200,000 bytes, a checkpoint, one more.
fn filled(dir: &Path) -> Node {
    let mut node = Node::found(dir);
    node.write(1, 1, b"one", 10);
    node.write(1, 2, b"two", 10);
    node.write(2, 2, b"one", 10);
    node.write(3, 2, b"one", 10);
    node.write(1, 5, b"large", 200_000);
    node.checkpoint();
    node.write(1, 6, b"last", 10);
    node
}

fn dromon(args: &[&str]) -> (i32, String, String) {
    Running::start(Path::new("."), args).ended(LIMIT)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain name")
}

fn show(dir: &Path, more: &[&str]) -> (i32, String, String) {
    dromon(&[&["log", "show", text(dir)], more].concat())
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory").flatten();
    let mut names: Vec<String> = entries
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

fn segments(dir: &Path) -> Vec<String> {
    let all = names(dir).into_iter();
    all.filter(|n| n.starts_with("dromon-0")).collect()
}

/// The bytes of all files.
fn picture(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let read = |n: String| (n.clone(), fs::read(dir.join(n)).expect("a file"));
    names(dir).into_iter().map(read).collect()
}

fn objects(out: &str) -> Vec<Value> {
    let parse = |l| serde_json::from_str(l).expect("each line is an object");
    out.lines().map(parse).collect()
}

#[test]
fn it_says_what_is_in_a_log_while_its_node_runs_and_after() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let node = filled(dir);
    let last = node.index;
    // The log's thread writes its mark when it has nothing else to do.
    let deadline = Instant::now() + LIMIT;
    while !show(dir, &[]).1.contains("\n# mark: every entry below ") {
        assert!(Instant::now() < deadline, "no mark is ever written");
    }
    for running in [true, false] {
        if !running {
            node.order.stop();
        }
        let before = picture(dir);
        let (code, out, err) = show(dir, &["--keys"]);
        assert_eq!(code, 0, "{out}{err}");
        for words in [
            "db1 (01010101-0101-0101-0101-010101010101) at 127.0.0.1:",
            "view 1 of db1",
            "passed, after 1; transaction 41, connection 9, 1 key, 10 bytes of data, had seen 1, TRX_START|TRX_END",
            "EXCLUSIVE test.t one",
            "failed: EXCLUSIVE on test.t key one meets EXCLUSIVE of write set 4",
            "in 4 pieces",
            "1 of 4",
            "first entry of a leader",
        ] {
            assert!(out.contains(words), "{words} is not in\n{out}");
        }
        // By what two logs are compared.
        let newest = objects(&show(dir, &["--json"]).1);
        let newest = newest.iter().rfind(|o| o["type"] == "entry");
        let newest = newest.expect("there are some");
        let leader = newest["leader"].as_str().expect("a number as text");
        let compared = format!(
            "\n# last entry: term {}, leader {leader}, index {last}\n",
            newest["term"]
        );
        let text = newest["term_text"].as_str().expect("the same as text");
        assert_eq!(text, newest["term"].to_string());
        assert!(out.ends_with(&compared), "{compared} does not end\n{out}");
        let (code, out, err) = show(dir, &["--verify"]);
        assert_eq!(code, 0, "{out}{err}");
        let end = match running {
            true => "not closed: its node runs, or was killed",
            false => "closed cleanly",
        };
        let expected = format!(
            "{} segments, {last} entries, 1 to {last} (seqnos 1 to 7), 2 checkpoints, intact; {end}\n",
            segments(dir).len()
        );
        assert_eq!(out, expected);
        assert!(picture(dir) == before, "looking changes nothing");
    }
}

/// A disk that is full is often why somebody looks: the program writes nowhere.
#[test]
fn a_large_payload_needs_no_room() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let mut node = Node::found(dir);
    node.write(1, 1, b"large", 5 << 20);
    node.order.stop();
    let nowhere = dir.join("nowhere");
    for more in [&[][..], &["--verify"]] {
        let args = [&["log", "show", text(dir)], more].concat();
        let shown = Running::start_with(Path::new("."), &args, &[("TMPDIR", text(&nowhere))]);
        let (code, out, err) = shown.ended(LIMIT);
        assert_eq!(code, 0, "{out}{err}");
        assert!(out.contains(", intact; closed cleanly"), "{out}");
        if more.is_empty() {
            assert!(
                out.contains("1 key, 5242880 bytes of data") && out.contains("\n# last entry: ")
            );
        }
    }
}

#[test]
fn ranges_and_objects() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let node = filled(dir);
    node.order.stop();
    let (code, out, _) = show(dir, &["--json", "--keys"]);
    assert_eq!(code, 0);
    let all = objects(&out);
    let entries: Vec<&Value> = all.iter().filter(|o| o["type"] == "entry").collect();
    assert_eq!(entries.len() as u64, node.index);
    let seqnos: Vec<i64> = entries.iter().filter_map(|e| e["seqno"].as_i64()).collect();
    assert_eq!(seqnos, [1, 2, 3, 4, 5, 6, 7]);
    let failed = entries.iter().find(|e| e["write_set"]["passed"] == false);
    let failed = failed.expect("one failed");
    assert_eq!(failed["seqno"], 5);
    assert_eq!(failed["node"], "db1");
    assert_eq!(failed["write_set"]["keys"][0]["table"], "test.t");
    let large = entries.iter().find(|e| e["write_set"]["pieces"] == 4);
    assert_eq!(large.expect("one came in pieces")["seqno"], 6);
    let end = all.last().expect("a last line");
    assert_eq!(
        (&end["type"], &end["intact"]),
        (&"end".into(), &true.into())
    );

    let seen = |args: &[&str]| -> Vec<i64> {
        let (code, out, err) = show(dir, &[&["--json"], args].concat());
        assert_eq!(code, 0, "{out}{err}");
        let entries = objects(&out).into_iter().filter(|o| o["type"] == "entry");
        entries.filter_map(|e| e["seqno"].as_i64()).collect()
    };
    assert_eq!(seen(&["--from", "3", "--to", "5"]), [3, 4, 5]);
    let index = |seqno: i64| {
        let entry = entries.iter().find(|e| e["seqno"] == seqno);
        format!("index:{}", entry.expect("it is there")["index"])
    };
    assert_eq!(seen(&["--from", &index(2), "--to", &index(3)]), [2, 3]);
    assert!(seen(&["--from", "99"]).is_empty());
    let (_, out, _) = show(dir, &["--from", "99"]);
    assert!(out.contains("no entry of this log lies in that range"));
    let last = |args: &[&str]| {
        let (code, out, err) = show(dir, &[&["--json"], args].concat());
        (code, objects(&out).pop().expect("a line"), err)
    };
    let (_, end, _) = last(&["--from", "9999"]);
    assert_eq!(
        (&end["type"], &end["intact"]),
        (&"end".into(), &true.into())
    );

    // Damage behind what was asked for is not seen, and nothing is claimed.
    let name = segments(dir).pop().expect("a segment");
    let whole = fs::read(dir.join(&name)).expect("a file");
    let mut bad = whole.clone();
    let at = whole
        .iter()
        .rposition(|b| *b == 0x5a)
        .expect("the last payload");
    bad[at] ^= 1;
    fs::write(dir.join(&name), &bad).expect("written");
    let (code, end, err) = last(&["--to", "3"]);
    assert_eq!((code, &end["type"]), (0, &"end".into()), "{err}");
    assert!(end["intact"].is_null() && end["end"] == "stopped", "{end}");
    let (_, out, _) = show(dir, &["--to", "3"]);
    assert!(out.contains("what follows was not looked at"), "{out}");
    assert!(!out.contains("last entry"), "nobody has seen it: {out}");
    let (code, end, _) = last(&[]);
    assert_eq!((code, &end["intact"]), (1, &false.into()), "{end}");
}

#[test]
fn a_flipped_bit_anywhere_is_found_and_set_aside_logs_are_shown() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let node = filled(dir);
    node.order.stop();
    let first = segments(dir)[0].clone();
    let checkpoint = names(dir)
        .into_iter()
        .find(|n| n.starts_with("dromon-ckpt-"))
        .expect("a checkpoint");
    for (name, offset, words) in [
        (&*first, 100u64, "checksum of the segment header"),
        (&first, 4096, "cannot be read"),
        (&first, 4096 + 64 + 3, "is damaged at byte"),
        ("dromon-meta.log", 40, "One of the two copies"),
        (&checkpoint, 70, "the content's checksum does not match"),
    ] {
        let path = dir.join(name);
        let whole = fs::read(&path).expect("a file");
        let mut bad = whole.clone();
        bad[offset as usize] ^= 4;
        fs::write(&path, &bad).expect("written");
        for args in [&["--verify"][..], &["--verify", "--json"]] {
            let (code, out, err) = show(dir, args);
            assert_eq!(code, 1, "{name} {offset}: {out}{err}");
            assert!(err.contains(words) && err.contains(name), "{offset}: {err}");
            assert!(!out.contains("intact;"), "{out}");
            if args.len() == 2 {
                let last = objects(&out).pop().expect("a line");
                assert_eq!(last["intact"], false, "{last}");
            }
        }
        fs::write(&path, &whole).expect("written");
    }
    assert_eq!(show(dir, &["--verify"]).0, 0);

    // As a node sets it aside; then by the directory, and file by file.
    let mut bad = fs::read(dir.join(&first)).expect("a file");
    let at = bad.len() - 100;
    bad[at] ^= 1;
    fs::write(dir.join(&first), &bad).expect("written");
    for name in names(dir) {
        fs::rename(dir.join(&name), dir.join(format!("damaged-1700-{name}"))).expect("renamed");
    }
    // The same for one of another history.
    let (damaged, former) = (
        dir.join("damaged-1700-dromon-meta.log"),
        dir.join("former-1800-dromon-meta.log"),
    );
    fs::copy(&damaged, &former).expect("copied");
    let (code, _, err) = show(dir, &[]);
    assert!(
        code == 1 && err.contains("--set-aside 1700, --set-aside 1800"),
        "{err}"
    );
    let (_, out, err) = show(dir, &["--set-aside", "1800"]);
    assert!(!err.contains("there is no log"), "{out}{err}");
    fs::remove_file(&former).expect("removed");
    let (code, _, err) = show(dir, &[]);
    assert!(code == 1 && err.contains("--set-aside 1700"), "{err}");
    let (code, out, err) = show(dir, &["--set-aside", "1700"]);
    assert!(code == 1 && err.contains(&first), "{err}");
    assert!(
        out.contains("transaction 41"),
        "what can be read is shown: {out}"
    );
    let file = dir.join(format!("damaged-1700-{first}"));
    let readable = "passed, after 1; transaction 41";
    // What lies beside it tells that the record was whole once.
    let (code, out, err) = dromon(&["log", "show", text(&file)]);
    assert!(code == 1 && err.contains("is damaged"), "{code} {out}{err}");
    assert!(out.contains(readable) && !out.contains("intact"), "{out}");
    // Alone, it may be the end that a crash left.
    let away = tempfile::tempdir().expect("a directory");
    let alone = away.path().join(&first);
    fs::copy(&file, &alone).expect("copied");
    let (code, out, err) = dromon(&["log", "show", text(&alone)]);
    let torn = code == 0 && out.contains("or that a crash cut short");
    assert!(torn || err.contains("is damaged"), "{code} {out}{err}");
    let file = dir.join(format!("damaged-1700-{checkpoint}"));
    let (code, out, _) = dromon(&["log", "show", text(&file)]);
    assert!(code == 0 && out.contains("intact"), "{out}");
    let (code, out, _) = dromon(&[
        "log",
        "show",
        text(&dir.join("damaged-1700-dromon-meta.log")),
    ]);
    assert!(
        code == 0 && out.contains("of the member 000000000000000b"),
        "{out}"
    );
}

#[test]
fn refusals() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    fs::write(dir.join("ibdata1"), b"something else").expect("written");
    let missing = dir.join("nowhere");
    let other = dir.join("ibdata1");
    let cases: [(&[&str], i32, &str); 7] = [
        (&[text(&missing)], 1, "cannot be read: No such file"),
        (&[text(dir)], 1, "there is no log in"),
        (&[text(&other)], 1, "is no file of a log"),
        (
            &[text(dir), "--from", "soon"],
            2,
            "write a seqno (500) or a log index (index:700)",
        ),
        (&[text(dir), "--verify", "--keys"], 2, "cannot be used with"),
        (
            &[text(&other), "--set-aside", "17"],
            2,
            "--set-aside goes with a directory",
        ),
        (&[], 2, "<PATH>"),
    ];
    for (args, code, words) in cases {
        let (got, out, err) = dromon(&[&["log", "show"], args].concat());
        assert_eq!(got, code, "{args:?}: {out}{err}");
        assert!(err.contains(words), "{args:?}: {err}");
    }
}

#[test]
fn what_could_not_be_written_is_no_success() {
    let dir = tempfile::tempdir().expect("a directory");
    filled(dir.path()).order.stop();
    let ended = |out: std::process::Stdio| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dromon"));
        command.args(["log", "show", text(dir.path())]).stdout(out);
        let done = command.stderr(std::process::Stdio::piped()).output();
        let done = done.expect("it runs");
        (
            done.status.code(),
            String::from_utf8_lossy(&done.stderr).into_owned(),
        )
    };
    let full = fs::File::options().write(true).open("/dev/full");
    let (code, err) = ended(full.expect("it is there").into());
    assert!(
        code == Some(1) && err.contains("the output could not be written"),
        "{err}"
    );
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    assert_eq!(ended(writer.into()), (Some(0), String::new()));
}

/// A segment without checkpoints beside it: places by index only.
#[test]
fn a_lonely_segment_has_no_seqnos() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = filled(dir.path());
    node.order.stop();
    let away = tempfile::tempdir().expect("a directory");
    let name = &segments(dir.path())[0];
    let file = away.path().join(name);
    fs::copy(dir.path().join(name), &file).expect("copied");
    let (code, out, err) = dromon(&["log", "show", text(&file)]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(
        out.contains("transaction 41") && !out.contains("passed"),
        "{out}"
    );
    let (code, _, err) = dromon(&["log", "show", text(&file), "--from", "3"]);
    assert!(code == 2 && err.contains("index:N"), "{err}");
}
