//! Taking a port, and saying who has it if somebody else does.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

use socket2::{Domain, Protocol, Socket, Type};

use crate::address::{AddressError, HostPort, parse_address};

/// Why this node cannot listen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The address cannot be used.
    #[error("cannot listen for other nodes: {0}")]
    Address(#[from] AddressError),
    /// The name has no address.
    #[error(
        "cannot listen for other nodes: the host name in {addr} cannot be resolved ({why}); check the name, or give a number"
    )]
    Resolve {
        /// The address asked for.
        addr: String,
        /// What the resolver said.
        why: String,
    },
    /// Somebody else listens there.
    #[error(
        "cannot listen for other nodes: {addr} is in use by {by}; stop that process or choose another port \
         (gmcast.listen_addr)"
    )]
    InUse {
        /// The address asked for.
        addr: String,
        /// Name and pid of the process, as far as can be seen.
        by: String,
    },
    /// The address belongs to another machine.
    #[error(
        "cannot listen for other nodes: {addr} is not an address of this machine; use one of its own or 0.0.0.0 \
         (gmcast.listen_addr)"
    )]
    NotLocal {
        /// The address asked for.
        addr: String,
    },
    /// The operating system forbids it.
    #[error(
        "cannot listen for other nodes: this process may not use {addr}; ports below 1024 need a privilege"
    )]
    Denied {
        /// The address asked for.
        addr: String,
    },
    /// Something else.
    #[error("cannot listen for other nodes on {addr}: {why}")]
    Other {
        /// The address asked for.
        addr: String,
        /// What the operating system said.
        why: String,
    },
    /// Not called from inside a tokio runtime.
    #[error(
        "cannot listen for other nodes: there is no runtime to listen in; this is a mistake in the program"
    )]
    NoRuntime,
}

/// Connections that wait to be taken.
pub(super) const BACKLOG: i32 = 256;

/// Opens a listening socket: non-blocking, close-on-exec, address reusable
/// right after a restart. `[::]` takes IPv4, too.
pub(super) fn listen(addr: &str, default_port: u16) -> Result<TcpListener, BindError> {
    let hp = parse_address(addr, default_port)?;
    let shown = hp.to_string();
    let found = resolve(&hp).map_err(|e| BindError::Resolve {
        addr: shown.clone(),
        why: e.to_string(),
    })?;
    let mut last = None;
    for at in found {
        match open(at) {
            Ok(l) => return Ok(l),
            Err(e) => last = Some((at, e)),
        }
    }
    let Some((at, e)) = last else {
        return Err(BindError::Resolve {
            addr: shown,
            why: "the name has no address".to_owned(),
        });
    };
    let addr = shown;
    Err(match e.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse {
            addr,
            by: who_listens(at.port()).unwrap_or_else(|| "another process".to_owned()),
        },
        io::ErrorKind::AddrNotAvailable => BindError::NotLocal { addr },
        io::ErrorKind::PermissionDenied => BindError::Denied { addr },
        _ => BindError::Other {
            addr,
            why: e.to_string(),
        },
    })
}

fn resolve(hp: &HostPort) -> io::Result<Vec<SocketAddr>> {
    Ok((hp.host.as_str(), hp.port).to_socket_addrs()?.collect())
}

fn open(at: SocketAddr) -> io::Result<TcpListener> {
    let mut s = bind(at)?;
    if at.port() == 0 {
        // Only a port that was asked for stays this node's while it does not listen.
        let taken = s.local_addr()?.as_socket();
        s = bind(taken.unwrap_or(at))?;
    }
    s.listen(BACKLOG)?;
    s.set_nonblocking(true)?;
    Ok(s.into())
}

fn bind(at: SocketAddr) -> io::Result<Socket> {
    let s = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
    s.set_reuse_address(true)?;
    if at.is_ipv6() && at.ip().is_unspecified() {
        s.set_only_v6(false)?;
    }
    s.bind(&at.into())?;
    Ok(s)
}

/// Name and pid of whoever listens on `port` here, from `/proc`. Best effort:
/// processes of other users cannot be seen.
fn who_listens(port: u16) -> Option<String> {
    let inodes: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|p| std::fs::read_to_string(p).ok())
        .flat_map(|t| {
            t.lines()
                .filter_map(|l| listener_inode(l, port))
                .collect::<Vec<_>>()
        })
        .collect();
    let wanted: Vec<_> = inodes.iter().map(|i| format!("socket:[{i}]")).collect();
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().filter(|n| n.parse::<u32>().is_ok()) else {
            continue;
        };
        let Ok(fds) = std::fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        for fd in fds.flatten() {
            let Ok(target) = std::fs::read_link(fd.path()) else {
                continue;
            };
            if target
                .to_str()
                .is_some_and(|t| wanted.iter().any(|w| w == t))
            {
                let comm = std::fs::read_to_string(process.path().join("comm"));
                let comm = comm.as_deref().map_or("a process", str::trim);
                return Some(format!("{comm} (pid {pid})"));
            }
        }
    }
    None
}

/// The inode in a line of `/proc/net/tcp` if it is a listener on `port`.
fn listener_inode(line: &str, port: u16) -> Option<String> {
    let mut words = line.split_whitespace();
    let local = words.nth(1)?;
    let (_, hex) = local.rsplit_once(':')?;
    let state = words.nth(1)?;
    if state != "0A" || u16::from_str_radix(hex, 16) != Ok(port) {
        return None;
    }
    words.nth(5).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_taken_names_the_process_that_has_it() {
        let first = listen("127.0.0.1:0", 4567).unwrap();
        let port = first.local_addr().unwrap().port();
        let e = listen(&format!("tcp://127.0.0.1:{port}"), 4567).unwrap_err();
        let text = e.to_string();
        let me = format!("(pid {})", std::process::id());
        assert!(matches!(e, BindError::InUse { .. }), "{text}");
        assert!(
            text.contains(&me) && text.contains(&format!("127.0.0.1:{port}")),
            "{text}"
        );
    }

    #[test]
    fn each_failure_has_its_words() {
        let text = |a: &str| listen(a, 4567).unwrap_err().to_string();
        assert!(text("192.0.2.1:4567").contains("not an address of this machine"));
        assert!(text("127.0.0.1:x").contains("the port must be a number"));
        assert!(text("ssl://127.0.0.1:4567").contains("socket.ssl"));
    }

    #[test]
    fn any_address_of_version_6_takes_version_4_too() {
        let Ok(l) = listen("[::]:0", 4567) else {
            // A machine without IPv6 cannot show it.
            assert!(!std::path::Path::new("/proc/net/if_inet6").exists());
            return;
        };
        let port = l.local_addr().unwrap().port();
        std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    }
}
