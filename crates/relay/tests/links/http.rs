//! Pages over HTTP, and what keeps strangers from using it up.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dromon_relay::http::{HttpServer, Questions};
use dromon_relay::log::Log;
use socket2::{Domain, Socket, Type};

use crate::serve;

fn http() -> String {
    let (_, server, view) = serve(false, false);
    let http = Arc::new(HttpServer {
        address: "db1:3306".into(),
        server,
        view,
        following: Arc::default(),
        watch: None,
        questions: Questions::default(),
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

/// A connection from this address that says nothing, or does not end its request.
fn silent(from: [u8; 4], address: &str, n: usize) -> std::io::Result<TcpStream> {
    let to: SocketAddr = address.parse().expect("an address");
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.connect(&to.into())?;
    let mut stream = TcpStream::from(socket);
    if n.is_multiple_of(2) {
        stream.write_all(b"GET /metrics HTTP/1.1\r\n")?;
    }
    Ok(stream)
}

/// Strangers who say nothing keep nobody out who asks at once.
#[test]
fn who_says_nothing_keeps_nobody_out() {
    let get = |address: &str| {
        let begun = Instant::now();
        let said = send(address, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
        assert!(begun.elapsed() < Duration::from_secs(2));
    };
    // All places, from the same address.
    let address = http();
    let idle: Vec<_> = (0..32)
        .map(|n| silent([127, 0, 0, 1], &address, n).expect("it listens"))
        .collect();
    thread::sleep(Duration::from_millis(300));
    get(&address);
    drop(idle);
    // From another one, and each place that is lost is taken again.
    let address = http();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for n in 0..32 {
            let (address, over) = (&address, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    if let Ok(mut stream) = silent([127, 0, 0, 2], address, n) {
                        let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
                        // Until it is ended.
                        let _ = stream.read(&mut [0]);
                    }
                    thread::sleep(Duration::from_millis(20));
                }
            });
        }
        thread::sleep(Duration::from_millis(300));
        let got = std::panic::catch_unwind(|| {
            for _ in 0..20 {
                get(&address);
                thread::sleep(Duration::from_millis(100));
            }
        });
        over.store(true, Ordering::Relaxed);
        assert!(got.is_ok(), "it was kept out");
    });
}
