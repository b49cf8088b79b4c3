//! Primaries that are silent while they look for the place to go on.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use dromon_binlog::BinlogState;
use dromon_log::SimDevice;
use dromon_relay::log::Log;
use dromon_relay::pull::{Following, Puller};
use dromon_relay::store::{Store, StoreOptions};

use crate::{pull_with, serve, source, until};

/// Passes all on, but nothing of the server's for `search` after a dump was asked for, and nothing
/// at all `lives` later.
fn stalls(server: String, search: Duration, lives: Duration) -> String {
    const DUMP: u8 = 18;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.expect("a connection");
            let server = TcpStream::connect(&server).expect("it listens");
            let (mut from, mut to) = (client.try_clone(), server.try_clone());
            let asked = Arc::new(Mutex::new(None));
            let asks = Arc::clone(&asked);
            thread::spawn(move || {
                let (from, to) = (from.as_mut().expect("open"), to.as_mut().expect("open"));
                let mut buf = [0; 4096];
                while let Ok(n @ 1..) = from.read(&mut buf) {
                    if buf[3..n].starts_with(&[0, DUMP]) {
                        *asks.lock().expect("alive") = Some(Instant::now());
                    }
                    if to.write_all(&buf[..n]).is_err() {
                        break;
                    }
                }
            });
            let (mut from, mut to) = (server, client);
            let mut buf = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut buf) {
                let at: Option<Instant> = *asked.lock().expect("alive");
                if let Some(at) = at {
                    thread::sleep((at + search).saturating_duration_since(Instant::now()));
                    if at.elapsed() > search + lives {
                        // The next connection is taken when this one is given up.
                        while matches!(to.peek(&mut [0]), Ok(1..)) {
                            thread::sleep(Duration::from_millis(50));
                        }
                        break;
                    }
                }
                if to.write_all(&buf[..n]).is_err() {
                    break;
                }
            }
        }
    });
    address
}

/// A primary that has to search for the place is silent; later silence means that it is dead.
#[test]
fn a_primary_that_searches() {
    let (address, _, view) = serve(false, false);
    let dead_after = Duration::from_millis(800);
    let address = stalls(address, dead_after * 3, Duration::from_secs(2));
    let (following, pulled, thread) = pull_with(&address, "", None, None, dead_after);
    until("it has all", || pulled.state() == view.state());
    assert_eq!(following.lock().expect("alive").connections, 1);
    until("it counts as dead", || {
        let said = following.lock().expect("alive").last_error.clone();
        said.unwrap_or_default()
            .contains("Nothing came from the primary for 0.8 s")
    });
    Following::stop(&following);
    thread.join().expect("it ends");
}

/// Retention and the list of replicas go on meanwhile.
#[test]
fn house_is_kept_while_a_primary_searches() {
    let (address, _, _) = serve(false, false);
    for zstd in [None, Some(3)] {
        let minute = Duration::from_secs(60);
        let address = stalls(address.clone(), minute, minute);
        let device = Arc::new(SimDevice::new(6));
        let opened = Store::open(device, StoreOptions::default(), BinlogState::new());
        let log = Log::file(&std::env::temp_dir().join("dromon-relay-links.log"));
        let kept = Arc::<AtomicUsize>::default();
        let keeps = Arc::clone(&kept);
        let puller = Puller::new(
            source(&address, zstd, None, Duration::from_secs(5)),
            opened.expect("empty").0,
            log.expect("writable"),
            Box::new(move || {
                keeps.fetch_add(1, Ordering::Relaxed);
            }),
            None,
        );
        let following = puller.following();
        let thread = thread::spawn(move || puller.run().expect("a good disk"));
        until("house is kept", || kept.load(Ordering::Relaxed) > 3);
        let state = following.lock().expect("alive").clone();
        assert_eq!((state.connections, state.last_error), (1, None));
        assert_eq!(state.zstd.is_some(), zstd.is_some());
        Following::stop(&following);
        thread.join().expect("it ends");
    }
}
