//! A word to the service manager that the start takes longer.
//!
//! systemd gives up a service of `Type=notify` that is not ready in time, and
//! kills it. A node that waits for a majority of its cluster's logs waits without
//! limit, so it asks for more time as long as it waits. The server itself does
//! the same during a full copy and while its engines recover.
//!
//! A server is ready for systemd once its engines run, and says no more then. So who has
//! shown what its start waits for also shows when that is over, and who is synced no more
//! shows that.
//!
//! The same word would prolong the time that systemd gives a service to stop. So who
//! was told to stop while it starts does not send it any more.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use dromon_node::Standing;
use dromon_wsrep::process;

/// What is asked for each time. Whoever asks does so again long before.
const MORE: Duration = Duration::from_secs(60);

/// Who started this process, if it wants to be told.
pub(crate) struct ServiceManager {
    way: Option<(UnixDatagram, SocketAddr)>,
    /// Whether this process is to end.
    told_to_stop: fn() -> bool,
    /// Whether the status shown is this library's and another one than being synced.
    shows_other: AtomicBool,
}

impl ServiceManager {
    /// As the environment says (`NOTIFY_SOCKET`).
    pub(crate) fn of_environment() -> Self {
        match std::env::var_os("NOTIFY_SOCKET") {
            Some(place) => Self::at(&place, process::told_to_stop),
            None => Self {
                way: None,
                told_to_stop: process::told_to_stop,
                shows_other: AtomicBool::new(false),
            },
        }
    }

    /// At a path, or, after `@`, an abstract name. Any other place, and one that
    /// cannot be used, is told nothing.
    fn at(place: &OsStr, told_to_stop: fn() -> bool) -> Self {
        let address = match place.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
            [b'/', ..] => SocketAddr::from_pathname(place).ok(),
            _ => None,
        };
        let socket = UnixDatagram::unbound().and_then(|socket| {
            // Nobody here waits for a service manager that does not read.
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        Self {
            way: socket.ok().zip(address),
            told_to_stop,
            shows_other: AtomicBool::new(false),
        }
    }

    /// Whether this process is to end.
    pub(crate) fn told_to_stop(&self) -> bool {
        (self.told_to_stop)()
    }

    /// Asks for more time to start; `doing` is shown as the service's status.
    pub(crate) fn more_time(&self, doing: &str) {
        if self.told_to_stop() {
            return;
        }
        self.shows_other.store(true, Relaxed);
        self.tell(&format!(
            "EXTEND_TIMEOUT_USEC={}\nSTATUS=Starting: {doing}\n",
            MORE.as_micros()
        ));
    }

    /// Shows how the node stands. That it is synced only takes back what was shown before: else
    /// the server's own words stay.
    pub(crate) fn stands(&self, standing: Standing) {
        if self.told_to_stop() {
            return;
        }
        let other = standing != Standing::Synced;
        if self.shows_other.swap(other, Relaxed) || other {
            self.tell(&format!("STATUS={}\n", standing.words()));
        }
    }

    fn tell(&self, text: &str) {
        let Some((socket, address)) = &self.way else {
            return;
        };
        // More time is asked for again soon; a manager that is gone gives nobody up.
        let _ = socket.send_to_addr(text.as_bytes(), address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_an_abstract_name_are_told() {
        let id = std::process::id();
        let path = std::env::temp_dir().join(format!("dromon-notify-{id}"));
        let name = format!("dromon-notify-{id}");
        let abstract_place = SocketAddr::from_abstract_name(&name).expect("a name");
        let by_path = UnixDatagram::bind(&path).expect("a socket");
        let by_name = UnixDatagram::bind_addr(&abstract_place).expect("a socket");
        let at = format!("@{name}");
        for (place, listener) in [
            (path.as_os_str(), by_path),
            (OsStr::new(at.as_str()), by_name),
        ] {
            ServiceManager::at(place, || false).more_time("waiting for db2");
            let mut heard = [0; 200];
            let len = listener.recv(&mut heard).expect("a message");
            assert_eq!(
                String::from_utf8_lossy(&heard[..len]),
                "EXTEND_TIMEOUT_USEC=60000000\nSTATUS=Starting: waiting for db2\n"
            );
        }
        std::fs::remove_file(&path).expect("it was there");
        // Gone, and no such place: nothing happens.
        ServiceManager::at(path.as_os_str(), || false).more_time("x");
        ServiceManager::at(OsStr::new("nowhere"), || false).more_time("x");
        let nobody = ServiceManager {
            way: None,
            told_to_stop: || false,
            shows_other: AtomicBool::new(false),
        };
        nobody.more_time("x");
        nobody.stands(Standing::Synced);
    }

    /// systemd would wait that much longer for its end.
    #[test]
    fn who_is_told_to_stop_asks_for_no_more_time() {
        let path = std::env::temp_dir().join(format!("dromon-notify-ends-{}", std::process::id()));
        let listener = UnixDatagram::bind(&path).expect("a socket");
        listener.set_nonblocking(true).expect("a socket");
        let mut heard = [0; 200];
        ServiceManager::at(path.as_os_str(), || true).more_time("x");
        assert!(listener.recv(&mut heard).is_err());
        ServiceManager::at(path.as_os_str(), || true).stands(Standing::Inconsistent);
        assert!(listener.recv(&mut heard).is_err(), "nor shows anything");
        ServiceManager::at(path.as_os_str(), || false).more_time("x");
        assert!(listener.recv(&mut heard).is_ok());
        std::fs::remove_file(&path).expect("it was there");
    }

    /// The server says nothing after that: who is not told would show the start for ever.
    #[test]
    fn who_is_up_shows_the_start_no_more() {
        let place = std::env::temp_dir().join(format!("dromon-notify-up-{}", std::process::id()));
        let listener = UnixDatagram::bind(&place).expect("a socket");
        listener.set_nonblocking(true).expect("a socket");
        let hear = || {
            let mut heard = [0; 200];
            let len = listener.recv(&mut heard).ok()?;
            Some(String::from_utf8_lossy(&heard[..len]).into_owned())
        };
        let manager = ServiceManager::at(place.as_os_str(), || false);
        manager.stands(Standing::Synced);
        assert_eq!(
            hear(),
            None,
            "nothing was shown: the server's own words stay"
        );
        manager.more_time("catching up");
        assert!(hear().is_some());
        manager.stands(Standing::Synced);
        manager.stands(Standing::Synced);
        assert_eq!(hear().as_deref(), Some("STATUS=Synced with the cluster\n"));
        assert_eq!(hear(), None, "once");
        // Nor does one that is synced no more show that it is.
        let shown = [
            (Standing::NonPrimary, "STATUS=Non-primary: "),
            (Standing::Joined, "STATUS=Joined: catching up"),
            (Standing::Synced, "STATUS=Synced with the cluster\n"),
            (Standing::Inconsistent, "STATUS=Inconsistent: "),
        ];
        for (standing, words) in shown {
            manager.stands(standing);
            let heard = hear().expect("a word");
            assert!(heard.starts_with(words), "{heard}");
        }
        assert_eq!(hear(), None, "no more than that");
        std::fs::remove_file(&place).expect("it was there");
    }

    #[test]
    fn one_who_does_not_read_holds_nobody_up() {
        let path = std::env::temp_dir().join(format!("dromon-notify-full-{}", std::process::id()));
        let listener = UnixDatagram::bind(&path).expect("a socket");
        let manager = ServiceManager::at(path.as_os_str(), || false);
        // More than a socket keeps.
        for _ in 0..5000 {
            manager.more_time("x");
        }
        drop(listener);
        std::fs::remove_file(&path).expect("it was there");
    }
}
