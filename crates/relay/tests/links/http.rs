//! Pages over HTTP, and what keeps strangers from using it up.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dromon_relay::http::HttpServer;
use dromon_relay::log::Log;

use crate::serve;

fn http() -> String {
    let (_, server, view) = serve(false, false);
    let http = Arc::new(HttpServer {
        address: "db1:3306".into(),
        server,
        view,
        following: Arc::default(),
        watch: None,
        log: Log::terminal(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    thread::spawn(move || http.listen(&listener));
    address
}

fn send(address: &str, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    // It may have answered and closed before it has read everything.
    let _ = stream.write_all(request);
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

#[test]
fn pages() {
    let address = http();
    let get = |path: &str| {
        send(
            &address,
            format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes(),
        )
    };
    let metrics = get("/metrics");
    assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
    assert!(metrics.contains("\ndromon_relay_seqno{domain=\"0\",server_id=\"1\"} 7\n"));
    assert!(metrics.contains("\ndromon_relay_storing 1\n"));
    let status = get("/status.json");
    let body = status.split_once("\r\n\r\n").expect("a body").1;
    let json: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(json["gtid_binlog_pos"], "0-1-7");
    assert_eq!(json["primary"]["connected"], false);
    assert!(get("/replica/3?max_lag=1").starts_with("HTTP/1.1 503 "));
    assert!(get("/replica/3").starts_with("HTTP/1.1 400 "));
    assert!(get("/else").starts_with("HTTP/1.1 404 "));
    let head = send(&address, b"HEAD /metrics HTTP/1.0\r\n\r\n");
    assert!(
        head.ends_with("\r\n\r\n") && head.contains(" 200 "),
        "{head}"
    );
}

#[test]
fn http_has_limits() {
    let address = http();
    let long = [&b"GET /"[..], &[b'a'; 100_000]].concat();
    let said = send(&address, &long);
    // The answer may be lost, as it does not read the rest.
    assert!(
        said.is_empty() || said.starts_with("HTTP/1.1 431 "),
        "{said}"
    );
    // Those who say nothing are sent away after a while.
    let mut idle = TcpStream::connect(&address).expect("it listens");
    let begun = Instant::now();
    let mut said = String::new();
    let _ = idle.read_to_string(&mut said);
    assert!(said.starts_with("HTTP/1.1 408 "), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

/// Strangers who say nothing, or do not end their request, keep nobody out who asks at once.
#[test]
fn who_says_nothing_keeps_nobody_out() {
    let address = http();
    let stop = Arc::new(AtomicBool::new(false));
    let silent = |n: usize| {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        if n.is_multiple_of(2) {
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
        }
        stream
    };
    let mut idle: VecDeque<TcpStream> = (0..32).map(silent).collect();
    thread::scope(|scope| {
        // Each place that is lost is taken again.
        scope.spawn(|| {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                idle.push_back(silent(n));
                idle.pop_front();
                thread::sleep(Duration::from_millis(20));
            }
        });
        let until = Instant::now() + Duration::from_secs(7);
        let mut longest = Duration::ZERO;
        let mut refused = 0;
        while Instant::now() < until {
            let begun = Instant::now();
            let said = send(&address, b"GET /metrics HTTP/1.1\r\n\r\n");
            longest = longest.max(begun.elapsed());
            refused += usize::from(!said.starts_with("HTTP/1.1 200 "));
            thread::sleep(Duration::from_millis(200));
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(refused, 0);
        assert!(longest < Duration::from_secs(2), "{longest:?}");
    });
}
