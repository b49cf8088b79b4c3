//! Sockets of HTTP.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::page::{HEAD_MAX, Request, Response, request};
use crate::log::{Level, Log, Seldom};
use crate::net::share;

/// Most connections at a time. With one more another one ends, see [`victim`].
const CONNECTIONS_MAX: usize = 32;
/// Most of them that end and have not ended: who waits for an answer does so for a second.
const ENDING_MAX: usize = 480;
/// Time for a request, and for an answer.
const LIMIT: Duration = Duration::from_secs(5);
const STACK: usize = 256 << 10;

/// Makes an answer of a request.
pub type Answer = dyn Fn(&Request) -> Response + Send + Sync;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has not sent a whole request.
    Asks,
    /// Its answer is made.
    Waits,
    /// It is to take its answer.
    Takes,
}

/// A connection.
struct Guest {
    number: u64,
    stream: Arc<TcpStream>,
    from: IpAddr,
    stage: Stage,
}

/// Those that are there, oldest first.
#[derive(Default)]
struct Guests {
    list: Vec<Guest>,
    /// Threads, also of those that were ended.
    threads: usize,
}

type Shared = Mutex<Guests>;

fn lock(guests: &Shared) -> MutexGuard<'_, Guests> {
    guests.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who ends when all places are taken: of those that have not sent a whole request, or else of those
/// that do not take their answer, or else of those that wait for it, the oldest one of whoever has most of
/// them. So who says nothing keeps nobody out who asks at once, nor does who waits for a replica that does
/// not answer. `None`: nobody is there.
fn victim(guests: impl Iterator<Item = (IpAddr, Stage)> + Clone) -> Option<usize> {
    [Stage::Asks, Stage::Takes, Stage::Waits]
        .into_iter()
        .find_map(|stage| {
            let mut those = guests
                .clone()
                .enumerate()
                .filter(|(_, guest)| guest.1 == stage)
                .map(|(n, guest)| (n, share(guest.0)));
            let all: Vec<IpAddr> = those.clone().map(|(_, from)| from).collect();
            let count = |from: IpAddr| all.iter().filter(|other| **other == from).count();
            let most = all.iter().map(|from| count(*from)).max()?;
            those.find(|(_, from)| count(*from) == most).map(|(n, _)| n)
        })
}

impl Guests {
    /// A place for one more, if there is one.
    fn comes(&mut self, number: u64, stream: &Arc<TcpStream>, from: IpAddr) -> bool {
        if self.threads >= CONNECTIONS_MAX + ENDING_MAX {
            return false;
        }
        if self.list.len() >= CONNECTIONS_MAX {
            let Some(at) = victim(self.list.iter().map(|g| (g.from, g.stage))) else {
                return false;
            };
            // It may have gone.
            let _ = self.list.remove(at).stream.shutdown(Shutdown::Both);
        }
        self.threads += 1;
        self.list.push(Guest {
            number,
            stream: Arc::clone(stream),
            from,
            stage: Stage::Asks,
        });
        true
    }

    /// True: it was not ended.
    fn is_at(&mut self, number: u64, stage: Stage) -> bool {
        let guest = self.list.iter_mut().find(|g| g.number == number);
        guest.map(|guest| guest.stage = stage).is_some()
    }

    fn goes(&mut self, number: u64) {
        self.threads -= 1;
        self.list.retain(|g| g.number != number);
    }
}

/// Takes connections until the process ends.
pub fn listen(listener: &TcpListener, log: &Log, answer: Arc<Answer>) {
    let guests = Arc::new(Shared::default());
    let mut not_taken = Seldom::default();
    for number in 0.. {
        let (stream, address) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                let text = format!("A connection of HTTP could not be taken: {error}.");
                log.say_seldom(&mut not_taken, Level::Warning, &text);
                thread::sleep(Duration::from_millis(200));
                continue;
            }
        };
        let stream = Arc::new(stream);
        // One without a place is closed at once: who asks comes again.
        if !lock(&guests).comes(number, &stream, address.ip()) {
            continue;
        }
        let (answer, there) = (Arc::clone(&answer), Arc::clone(&guests));
        let builder = thread::Builder::new().name("dromon-http".into());
        let spawned = builder.stack_size(STACK).spawn(move || {
            let at = |stage| lock(&there).is_at(number, stage);
            // Whoever asks and goes is no news.
            let _ = connection(&stream, &*answer, at);
            lock(&there).goes(number);
        });
        if spawned.is_err() {
            lock(&guests).goes(number);
        }
    }
}

/// `at`: says how far it is. False: it was ended.
fn connection(
    mut stream: &TcpStream,
    answer: &Answer,
    at: impl Fn(Stage) -> bool,
) -> io::Result<()> {
    let until = Instant::now() + LIMIT;
    stream.set_write_timeout(Some(LIMIT))?;
    let mut bytes = Vec::new();
    let (response, head) = loop {
        if let Some((request, head)) = request(&bytes) {
            if !at(Stage::Waits) {
                return Ok(());
            }
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
    if !at(Stage::Takes) {
        return Ok(());
    }
    stream.write_all(&response.bytes(head))?;
    stream.shutdown(Shutdown::Write)
}

#[cfg(test)]
mod tests {
    use std::sync::{RwLock, mpsc};

    use super::*;

    #[test]
    fn who_ends_for_another_one() {
        let of = |all: &[(&str, Stage)]| {
            let guests: Vec<_> = all
                .iter()
                .map(|(from, stage)| (from.parse().expect("an address"), *stage))
                .collect();
            victim(guests.into_iter())
        };
        let (asks, waits, takes) = (Stage::Asks, Stage::Waits, Stage::Takes);
        let (one, two) = ("10.0.0.1", "10.0.0.2");
        assert_eq!(of(&[(one, takes), (one, waits), (two, asks)]), Some(2));
        // Who has most of them.
        assert_eq!(of(&[(one, asks), (two, asks), (two, asks)]), Some(1));
        assert_eq!(of(&[(one, asks), (two, waits), (two, asks)]), Some(0));
        let six = [
            (one, asks),
            ("2001:db8::1:0:0:1", asks),
            ("2001:db8::2:0:0:1", asks),
        ];
        assert_eq!(of(&six), Some(1));
        assert_eq!(of(&[("::ffff:10.0.0.1", asks), (two, asks)]), Some(0));
        // Who does not take an answer; if all wait for one, who waits for longest.
        assert_eq!(of(&[(one, waits), (two, takes)]), Some(1));
        assert_eq!(of(&[(one, waits), (two, waits)]), Some(0));
        assert_eq!(of(&[]), None);
    }

    /// Replicas that do not answer take all places, and more.
    #[test]
    fn who_waits_keeps_nobody_out() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let log = Log::terminal();
        let (waits, waiting) = mpsc::channel();
        let over = Arc::new(RwLock::new(()));
        let until = Arc::clone(&over);
        let held = over.write().expect("nobody has it");
        let answer = move |request: &Request| {
            if request.path == "/waits" {
                waits.send(()).expect("somebody counts");
                drop(until.read());
            }
            Response::text(200, "here")
        };
        thread::spawn(move || listen(&listener, &log, Arc::new(answer)));
        let ask = |path: &str| {
            let mut stream = TcpStream::connect(address).expect("it listens");
            let text = format!("GET {path} HTTP/1.1\r\n\r\n");
            stream.write_all(text.as_bytes()).expect("it reads");
            stream
        };
        let mut all = Vec::new();
        for _ in 0..CONNECTIONS_MAX + 40 {
            all.push(ask("/waits"));
            waiting
                .recv_timeout(Duration::from_secs(20))
                .expect("it has a place");
        }
        let mut said = String::new();
        // An error says that it was not let in.
        let _ = ask("/metrics").read_to_string(&mut said);
        assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
        drop(held);
    }
}
