//! A target for tests: it remembers what it was asked, and answers what it is told to.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use dromon_relay::given::Given;
use dromon_relay::wire::{
    Command, Failure, Frames, Greeting, NATIVE_PASSWORD, TextResult, capabilities, error, ok,
    put_packet, put_result,
};

use crate::client::Account;
use crate::config::{Config, REPLICA};
use crate::engine::Settings;

const MULTI: u32 = 0x1_0000 | 0x2_0000;
/// Of a status: another answer follows.
const MORE: u8 = 8;

const ASKED: &str = "Records: 3  Deleted: 0  Skipped: 1  Warnings: 2";

/// What a statement gives.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// So many rows changed.
    Done(u8),
    /// A table of one row.
    Row(Vec<String>),
    /// The same, of several.
    Rows(Vec<Vec<String>>),
    /// The same, with the names of its columns.
    Named(&'static [&'static str], Vec<Vec<String>>),
    /// A table of no rows.
    Nothing,
    /// An error.
    Fail(u16),
    /// The same, with this text.
    Says(u16, &'static str),
    /// No answer, ever.
    Silence,
    /// To `dump`: these packets, and then silence.
    Events(Vec<Vec<u8>>),
    /// It asks for this file, and then says that it left out one row of it.
    Ask(&'static str),
}

/// A row of one cell.
pub(crate) fn cell(text: &str) -> Reply {
    Reply::Row(vec![text.to_owned()])
}

type Answers = Arc<dyn Fn(&str) -> Option<Reply> + Send + Sync>;

/// A server that runs nothing.
pub(crate) struct Fake {
    address: String,
    said: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    /// What it has no answer for changes one row.
    pub(crate) fn new(answers: impl Fn(&str) -> Option<Reply> + Send + Sync + 'static) -> Fake {
        Fake::of_version("10.11.0-Fake", answers)
    }

    /// The same, of this version.
    pub(crate) fn of_version(
        version: &'static str,
        answers: impl Fn(&str) -> Option<Reply> + Send + Sync + 'static,
    ) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let said = Arc::new(Mutex::new(Vec::new()));
        let (answers, kept): (Answers, _) = (Arc::new(answers), Arc::clone(&said));
        let ids = AtomicU32::new(10);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let id = ids.fetch_add(1, Ordering::Relaxed);
                let (answers, kept) = (Arc::clone(&answers), Arc::clone(&kept));
                // A test's connections end with it.
                thread::spawn(move || serve(stream, (version, id), &answers, &kept));
            }
        });
        Fake { address, said }
    }

    pub(crate) fn account(&self) -> Account {
        Account {
            address: self.address.clone(),
            user: "t".into(),
            password: String::new(),
            tls: None,
            patience: Duration::from_secs(10),
        }
    }

    /// All statements so far.
    pub(crate) fn said(&self) -> Vec<String> {
        self.said.lock().expect("nobody panics").clone()
    }

    /// The same, without what only looks and switches.
    pub(crate) fn done(&self) -> Vec<String> {
        let mut all = self.said();
        let looks = ["SET ", "SELECT ", "SHOW ", "DO 1"];
        all.retain(|text| !looks.iter().any(|looks| text.starts_with(looks)));
        all
    }
}

fn send(stream: &mut TcpStream, sequence: &mut u8, payload: &[u8]) {
    let mut out = Vec::new();
    *sequence = put_packet(&mut out, *sequence, payload);
    // The other side may have gone.
    let _ = stream.write_all(&out);
}

fn packet(stream: &mut TcpStream, frames: &mut Frames) -> Option<Vec<u8>> {
    let mut buf = [0; 4096];
    loop {
        if let Some(packet) = frames.packet().ok()? {
            return Some(packet);
        }
        match stream.read(&mut buf).ok()? {
            0 => return None,
            n => frames.feed(&buf[..n]),
        }
    }
}

fn serve(
    mut stream: TcpStream,
    (version, id): (&str, u32),
    answers: &Answers,
    said: &Mutex<Vec<String>>,
) {
    let mut frames = Frames::new(1 << 30);
    frames.any_sequence();
    let greeting = Greeting {
        version: version.into(),
        connection: id,
        salt: [7; 20],
        capabilities: capabilities::OURS | MULTI,
        plugin: NATIVE_PASSWORD.into(),
    };
    let mut sequence = 0;
    send(&mut stream, &mut sequence, &greeting.encode());
    if packet(&mut stream, &mut frames).is_none() {
        return;
    }
    sequence = 2;
    match answers("connect") {
        Some(Reply::Fail(code)) => {
            return send(
                &mut stream,
                &mut sequence,
                &error(&Failure::new(code, "no")),
            );
        }
        _ => send(&mut stream, &mut sequence, &ok()),
    }
    loop {
        frames.any_sequence();
        let Some(command) = packet(&mut stream, &mut frames) else {
            return;
        };
        sequence = 1;
        let text = match Command::decode(&command) {
            Ok(Command::Query(text)) => String::from_utf8_lossy(&text).into_owned(),
            Ok(Command::Register(_)) => {
                send(&mut stream, &mut sequence, &ok());
                continue;
            }
            Ok(Command::Dump(_)) => {
                if let Some(Reply::Events(packets)) = answers("dump") {
                    for packet in packets {
                        send(&mut stream, &mut sequence, &packet);
                    }
                    while packet(&mut stream, &mut frames).is_some() {}
                }
                return;
            }
            _ => return,
        };
        let parts: Vec<&str> = text.split(';').map(str::trim_end).collect();
        for (n, part) in parts.iter().enumerate() {
            said.lock().expect("nobody panics").push((*part).to_owned());
            let more = if n + 1 < parts.len() { MORE } else { 0 };
            match answers(part).unwrap_or(Reply::Done(1)) {
                Reply::Done(rows) => {
                    send(&mut stream, &mut sequence, &[0, rows, 0, 2 | more, 0, 0, 0]);
                }
                Reply::Row(row) => table(&mut stream, &mut sequence, vec![row], more),
                Reply::Rows(rows) => table(&mut stream, &mut sequence, rows, more),
                Reply::Named(names, rows) => {
                    columns(&mut stream, &mut sequence, names, rows, more);
                }
                // Until the other side goes.
                Reply::Silence => {
                    while packet(&mut stream, &mut frames).is_some() {}
                    return;
                }
                Reply::Nothing => table(&mut stream, &mut sequence, Vec::new(), more),
                Reply::Ask(name) => {
                    let asks = [&[0xfb], name.as_bytes()].concat();
                    send(&mut stream, &mut sequence, &asks);
                    loop {
                        let Some(bytes) = packet(&mut stream, &mut frames) else {
                            return;
                        };
                        sequence = sequence.wrapping_add(1);
                        let text = String::from_utf8_lossy(&bytes);
                        said.lock()
                            .expect("nobody panics")
                            .push(format!("file {text}"));
                        if bytes.is_empty() {
                            break;
                        }
                    }
                    let end = [&[0, 2, 0, 2 | more, 0, 2, 0], ASKED.as_bytes()].concat();
                    send(&mut stream, &mut sequence, &end);
                }
                reply @ (Reply::Fail(_) | Reply::Says(..) | Reply::Events(_)) => {
                    let failure = match reply {
                        Reply::Says(code, why) => Failure::new(code, why),
                        Reply::Fail(code) => Failure::new(code, format!("on {part}")),
                        _ => return,
                    };
                    send(&mut stream, &mut sequence, &error(&failure));
                    break;
                }
            }
        }
    }
}

fn table(stream: &mut TcpStream, sequence: &mut u8, rows: Vec<Vec<String>>, more: u8) {
    let names = vec!["c"; rows.first().map_or(1, Vec::len)];
    columns(stream, sequence, &names, rows, more);
}

fn columns(
    stream: &mut TcpStream,
    sequence: &mut u8,
    names: &[&str],
    rows: Vec<Vec<String>>,
    more: u8,
) {
    let mut result = TextResult::new(names);
    for row in rows {
        result.row(row);
    }
    let mut out = Vec::new();
    *sequence = put_result(&mut out, *sequence, &result);
    // The status stands in the last packet's last two bytes.
    let at = out.len() - 2;
    out[at] |= more;
    // The other side may have gone.
    let _ = stream.write_all(&out);
}

/// Settings for this target.
pub(crate) fn settings(fake: &Fake, lines: &[&str]) -> Settings {
    let mut given = Given::new(&REPLICA);
    let target = format!("target={}", fake.address);
    let needed = [
        "source=127.0.0.1:1",
        "source_user=r",
        "server_id=7",
        target.as_str(),
        "target_user=t",
        "threads=1",
    ];
    for line in needed.iter().chain(lines) {
        given.line(line, "here".into()).expect(line);
    }
    Config::settle(&given).expect("enough").settings
}
