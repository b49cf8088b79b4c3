//! The directory of a witness's log, and the address that others are told.

use std::fs::{self, File, TryLockError};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};

use dromon_node::options::{ClusterAddress, DEFAULT_PORT, Env, Options, Settings};

/// Names that only the directory of a server has.
const OF_A_SERVER: [&str; 4] = ["grastate.dat", "ibdata1", "aria_log_control", "mysql"];

/// The directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// It cannot be made or read.
    #[error(
        "the directory {} for the witness's log cannot be used: {source}. Choose another with --dir, or create it for \
         this user", dir.display()
    )]
    Io {
        /// Which.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another witness runs there.
    #[error("another witness runs in {}; stop it first, or choose another --dir", dir.display())]
    Busy {
        /// Which.
        dir: PathBuf,
    },
    /// A server lives there.
    #[error(
        "{} is the data directory of a server (it has {found}). Nothing was touched. A witness needs a directory of its \
         own: choose another --dir", dir.display()
    )]
    Server {
        /// Which.
        dir: PathBuf,
        /// What betrays it.
        found: &'static str,
    },
}

/// The directory, held by this process.
#[derive(Debug)]
pub struct Place {
    /// Its absolute name.
    pub dir: PathBuf,
    #[expect(dead_code, reason = "closing the file ends the lock")]
    lock: File,
}

/// Makes the directory if need be, and takes it.
pub fn take(dir: &Path) -> Result<Place, PlaceError> {
    let io = |source| PlaceError::Io {
        dir: dir.to_owned(),
        source,
    };
    fs::create_dir_all(dir).map_err(io)?;
    let dir = fs::canonicalize(dir).map_err(io)?;
    if let Some(found) = OF_A_SERVER.into_iter().find(|n| dir.join(n).exists()) {
        return Err(PlaceError::Server { dir, found });
    }
    let io = |source| PlaceError::Io {
        dir: dir.clone(),
        source,
    };
    let path = dir.join("witness.lock");
    let lock = File::options().create(true).append(true).open(path);
    let lock = lock.map_err(io)?;
    match lock.try_lock() {
        Ok(()) => Ok(Place { dir, lock }),
        Err(TryLockError::WouldBlock) => Err(PlaceError::Busy { dir }),
        Err(TryLockError::Error(e)) => Err(io(e)),
    }
}

/// The settings that `options` make, with the address `own`. The text may be
/// wrong: whoever opens the node says so.
fn settings(options: &str, own: &str, dir: &Path) -> Option<Settings> {
    let mut parsed = Options::new(Env {
        node_address: own.to_owned(),
        data_dir: dir.to_string_lossy().into_owned(),
    });
    // Its notes are written, and its orders carried out, where the node is opened.
    let _ = parsed.parse_init(options).ok()?;
    Some(parsed.settings().clone())
}

/// The port of members whose address names none.
pub fn base_port(options: &str, dir: &Path) -> u16 {
    settings(options, "", dir).map_or(DEFAULT_PORT, |s| s.base_port)
}

/// Where others reach this witness: what the options say, else the interface
/// that leads to the cluster, with the port it listens at.
pub fn own_address(options: &str, address: &str, dir: &Path) -> String {
    let Some(given) = settings(options, "", dir) else {
        return String::new();
    };
    let any = |host: &str| matches!(host, "0.0.0.0" | "::" | "");
    let host = if !any(&given.listen.host) {
        given.listen.host.clone()
    } else {
        let members = ClusterAddress::parse(address).unwrap_or_default();
        let members = members.resolve(given.base_port);
        let way = members
            .iter()
            .find_map(|m| way_to(&m.host, m.port))
            .map(|ip| ip.to_string());
        way.unwrap_or_default()
    };
    match host.as_str() {
        "" => String::new(),
        host if host.contains(':') => format!("[{host}]:{}", given.listen.port),
        host => format!("{host}:{}", given.listen.port),
    }
}

/// The own address on the way to `host`. Nothing is sent.
fn way_to(host: &str, port: u16) -> Option<IpAddr> {
    for any in ["0.0.0.0:0", "[::]:0"] {
        if let Ok(socket) = UdpSocket::bind(any)
            && socket.connect((host, port)).is_ok()
            && let Ok(local) = socket.local_addr()
        {
            return Some(local.ip());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_directory_and_a_busy_one_are_refused() {
        let home = tempfile::tempdir().expect("a directory");
        let dir = home.path().join("w");
        let place = take(&dir).expect("a new directory");
        assert!(matches!(take(&dir), Err(PlaceError::Busy { .. })));
        drop(place);
        drop(take(&dir).expect("free again"));
        fs::write(dir.join("grastate.dat"), "").expect("written");
        let refused = take(&dir).expect_err("a server lives there").to_string();
        assert!(refused.contains("grastate.dat"), "{refused}");
        let file = home.path().join("file");
        fs::write(&file, "").expect("written");
        assert!(matches!(take(&file), Err(PlaceError::Io { .. })));
    }

    #[test]
    fn the_address_follows_options_then_the_way_to_the_cluster() {
        let dir = Path::new("/tmp");
        let of = |options, address| own_address(options, address, dir);
        assert_eq!(of("", "gcomm://127.0.0.1:5000"), "127.0.0.1:4567");
        assert_eq!(
            of(
                "gmcast.listen_addr=tcp://0.0.0.0:5001",
                "gcomm://127.0.0.1:5000"
            ),
            "127.0.0.1:5001"
        );
        assert_eq!(
            of(
                "gmcast.listen_addr=tcp://127.0.0.3:5001",
                "gcomm://127.0.0.1"
            ),
            "127.0.0.3:5001"
        );
        assert_eq!(of("base_port=6000", "gcomm://127.0.0.1"), "127.0.0.1:6000");
        let own = of("", "gcomm://[::1]");
        assert_eq!(own, "[::1]:4567");
        let listen = settings("", &own, dir).expect("no options").listen;
        assert_eq!(listen.to_string(), "[::]:4567", "which it is reached at");
        assert_eq!(of("nonsense=1", "gcomm://127.0.0.1"), "", "said elsewhere");
    }

    #[test]
    fn who_has_no_address_is_told_what_a_witness_can_set() {
        let notes = |options: &str| {
            let mut all = Options::new(Env::default()).of_witness();
            let outcome = all.parse_init(options).expect("they are good");
            outcome.notes.into_iter().map(|n| n.0).collect::<Vec<_>>()
        };
        let told = notes("").join("\n");
        assert!(told.contains("set base_host in --options"), "{told}");
        assert!(!told.contains("wsrep_"), "{told}");
        assert_eq!(
            notes("base_host=10.0.0.3"),
            Vec::<String>::new(),
            "it helps"
        );
    }
}
