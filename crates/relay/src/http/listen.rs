//! Sockets of HTTP.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::page::{HEAD_MAX, Request, Response, request};
use crate::log::{Level, Log};

/// Most connections at a time.
const CONNECTIONS_MAX: usize = 32;
/// Time for a request, and for an answer.
const LIMIT: Duration = Duration::from_secs(5);
const STACK: usize = 256 << 10;

/// Makes an answer of a request.
pub type Answer = dyn Fn(&Request) -> Response + Send + Sync;

/// Takes connections until the process ends.
pub fn listen(listener: &TcpListener, log: &Log, answer: Arc<Answer>) {
    let count = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                let text = format!("A connection of HTTP could not be taken: {error}.");
                log.say(Level::Warning, &text);
                thread::sleep(Duration::from_millis(200));
                continue;
            }
        };
        // Those beyond are closed at once: who asks comes again.
        if count.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            count.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (answer, counted) = (Arc::clone(&answer), Arc::clone(&count));
        let builder = thread::Builder::new().name("dromon-http".into());
        let spawned = builder.stack_size(STACK).spawn(move || {
            // Whoever asks and goes is no news.
            let _ = connection(stream, &*answer);
            counted.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn connection(mut stream: TcpStream, answer: &Answer) -> io::Result<()> {
    let until = Instant::now() + LIMIT;
    stream.set_write_timeout(Some(LIMIT))?;
    let mut bytes = Vec::new();
    let (response, head) = loop {
        if let Some((request, head)) = request(&bytes) {
            break (
                request.map_or_else(|refused| refused, |request| answer(&request)),
                head,
            );
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break (
                Response::text(408, "The request did not come in time."),
                false,
            );
        }
        stream.set_read_timeout(Some(left))?;
        let mut piece = [0; 1024];
        let room = piece.len().min(HEAD_MAX - bytes.len());
        match stream.read(&mut piece[..room]) {
            Ok(0) => return Ok(()),
            Ok(n) => bytes.extend_from_slice(&piece[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) => {}
            Err(e) => return Err(e),
        }
    };
    stream.write_all(&response.bytes(head))?;
    stream.shutdown(std::net::Shutdown::Write)
}
