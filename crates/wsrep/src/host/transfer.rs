//! State transfers: request, donor and joiner, with a position instead of a copy.
//!
//! ```text
//!   joiner                                      donor
//!   sst_request_cb: "bench", file  ─ provider ─>  sst_donate_cb
//!   thread sst-joiner                             thread sst-donor
//!     looks for the file  <──────────────────────   writes its position there
//!     sst_received                                  sst_sent
//! ```

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::callbacks::CB_FAILURE;
use super::{Inner, lock};
use crate::abi::{CB_SUCCESS, wsrep_cb_status_t};
use crate::types::{Gtid, Status, Uuid};

/// First part of a request for state.
const METHOD: &[u8] = b"bench\0";
/// How often and how long a joiner looks for the position of its donor.
const RETRY: Duration = Duration::from_millis(10);
const LIMIT: Duration = Duration::from_secs(30);

/// A side of a transfer, at work.
pub(super) type Thread = JoinHandle<()>;

impl Inner {
    /// A request for state as a server makes it: method and address, each with its NUL. The
    /// address is a file here. (A request `trivial` would name the case that there is nothing
    /// to copy, but with it Galera 26.4.23 waits for ever for its donor's certification index.)
    pub(super) fn transfer_request(&self) -> Vec<u8> {
        let mut request = METHOD.to_vec();
        request.extend(self.transfer_file.as_os_str().as_bytes());
        request.push(0);
        request
    }

    /// The joiner's side, on a thread of its own.
    pub(super) fn begin_to_receive(&self) -> wsrep_cb_status_t {
        self.start("sst-joiner", |host| receive(&host))
    }

    /// The donor's side, on a thread of its own.
    pub(super) fn begin_to_donate(&self, request: &[u8], position: Gtid) -> wsrep_cb_status_t {
        let Some(file) = requested_file(request) else {
            self.events.violation(format!(
                "the donor got the request {:?}, which no joiner made",
                String::from_utf8_lossy(request)
            ));
            return CB_FAILURE;
        };
        self.start("sst-donor", move |host| donate(&host, &file, position))
    }

    /// Starts a side, as the server starts its script.
    fn start(
        &self,
        name: &str,
        run: impl FnOnce(Arc<Inner>) + Send + 'static,
    ) -> wsrep_cb_status_t {
        // Held until the thread is entered, so that `close` misses none.
        let mut threads = lock(&self.transfers);
        let (Some(threads), Some(host)) = (threads.as_mut(), self.me.upgrade()) else {
            self.events
                .violation(format!("{name} was wanted of a host that closes"));
            return CB_FAILURE;
        };
        let started = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(host));
        match started {
            Ok(thread) => {
                threads.push(thread);
                CB_SUCCESS
            }
            Err(error) => {
                self.events
                    .violation(format!("the thread {name} cannot be started: {error}"));
                CB_FAILURE
            }
        }
    }
}

/// Hands the donor's position over, then says so. There is nothing to copy.
fn donate(host: &Inner, file: &Path, position: Gtid) {
    if let Err(error) = leave_position(file, position) {
        host.events.violation(format!(
            "the donor could not write {}: {error}",
            file.display()
        ));
    }
    let status = host.sst_sent(position);
    if status != Status::Ok {
        host.events
            .violation(format!("sst_sent at {position} answered {status:?}"));
    }
}

/// Waits for the donor's position, then says that the state is there.
fn receive(host: &Inner) {
    let deadline = Instant::now() + LIMIT;
    let mut last = "no donor has handed over its position".to_owned();
    while Instant::now() < deadline {
        if let Some(position) = read_position(&host.transfer_file) {
            let status = host.sst_received(position);
            if status == Status::Ok {
                return;
            }
            last = format!("sst_received at {position} answers {status:?}");
        }
        thread::sleep(RETRY);
    }
    host.events
        .violation(format!("after {} s {last}", LIMIT.as_secs()));
}

fn requested_file(request: &[u8]) -> Option<PathBuf> {
    let file = request.strip_prefix(METHOD)?.strip_suffix(b"\0")?;
    Some(PathBuf::from(OsStr::from_bytes(file)))
}

/// 16 bytes of uuid, 8 of seqno.
fn leave_position(file: &Path, position: Gtid) -> std::io::Result<()> {
    let mut bytes = position.uuid.0.to_vec();
    bytes.extend(position.seqno.to_le_bytes());
    // Renamed into place, so that the joiner never reads half of it.
    let draft = file.with_extension("draft");
    fs::write(&draft, bytes)?;
    fs::rename(&draft, file)
}

fn read_position(file: &Path) -> Option<Gtid> {
    let bytes = fs::read(file).ok()?;
    let (uuid, seqno) = bytes.split_first_chunk::<16>()?;
    Some(Gtid {
        uuid: Uuid(*uuid),
        seqno: i64::from_le_bytes(seqno.try_into().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_survives_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("position");
        assert_eq!(read_position(&file), None);
        let position = Gtid {
            uuid: Uuid([3; 16]),
            seqno: -7,
        };
        leave_position(&file, position).unwrap();
        assert_eq!(read_position(&file), Some(position));
        fs::write(&file, [0; 23]).unwrap();
        assert_eq!(read_position(&file), None);
    }

    #[test]
    fn only_a_request_of_a_joiner_names_a_file() {
        let file = |request: &[u8]| requested_file(request);
        assert_eq!(file(b"bench\0/a/b\0"), Some(PathBuf::from("/a/b")));
        for wrong in [&b"bench\0/a/b"[..], b"rsync\0/a/b\0", b"bench", b""] {
            assert_eq!(file(wrong), None);
        }
    }
}
