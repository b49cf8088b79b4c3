//! Addresses as people write them: `host`, `host:port`, `tcp://host:port`,
//! `[v6]:port`, `v6`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// A host (name or number) and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// Name or address, without brackets.
    pub host: String,
    /// TCP port; 0 only makes sense for listening.
    pub port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl HostPort {
    /// The host as a number, if it is one. A zone (`fe80::1%eth0`) is a name here.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

/// The text is no address this transport can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" is not a usable address: {why}; write it as host:port, for example 192.168.0.1:4567 or [::1]:4567"
)]
pub struct AddressError {
    /// What was given.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

/// Whether this may be the name of a host, or an IPv4 address.
pub fn is_host(text: &str) -> bool {
    let ok = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    (1..=253).contains(&text.len()) && text.bytes().all(ok)
}

/// Reads an address; `default_port` stands in for a missing one.
pub fn parse_address(text: &str, default_port: u16) -> Result<HostPort, AddressError> {
    let bad = |why| AddressError {
        text: text.to_owned(),
        why,
    };
    let t = text.trim();
    let rest = match t.split_once("://") {
        None => t,
        Some(("tcp", rest)) => rest,
        Some(("ssl", _)) => {
            return Err(bad(
                "encryption is switched on with socket.ssl, not with ssl://",
            ));
        }
        Some(_) => return Err(bad("the only scheme this transport knows is tcp://")),
    };
    if rest.is_empty() {
        return Err(bad("there is no host in it"));
    }
    let port = |p: &str| match p.parse::<u16>() {
        Ok(n) if p.bytes().all(|b| b.is_ascii_digit()) => Ok(n),
        _ => Err(bad("the port must be a number from 0 to 65535")),
    };
    if let Some(inner) = rest.strip_prefix('[') {
        let (host, after) = inner
            .split_once(']')
            .ok_or_else(|| bad("the bracket is not closed"))?;
        let bare = host.split('%').next().unwrap_or(host);
        if bare.parse::<Ipv6Addr>().is_err() {
            return Err(bad("what stands in brackets is not an IPv6 address"));
        }
        let port = match after.strip_prefix(':') {
            Some(p) => port(p)?,
            None if after.is_empty() => default_port,
            None => return Err(bad("only :port may follow the bracket")),
        };
        return Ok(HostPort {
            host: host.to_owned(),
            port,
        });
    }
    // More than one colon without brackets can only be a bare IPv6 address.
    if rest.parse::<Ipv6Addr>().is_ok() {
        return Ok(HostPort {
            host: rest.to_owned(),
            port: default_port,
        });
    }
    let (host, port) = match rest.split_once(':') {
        Some((_, p)) if p.contains(':') => {
            return Err(bad("an IPv6 address with a port needs brackets"));
        }
        Some((h, p)) => (h, port(p)?),
        None => (rest, default_port),
    };
    if host.is_empty() {
        return Err(bad("there is no host in it"));
    }
    if !is_host(host) {
        return Err(bad("the host name has characters a host name cannot have"));
    }
    Ok(HostPort {
        host: host.to_owned(),
        port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write() {
        for (text, shown) in [
            ("127.0.0.1:4567", "127.0.0.1:4567"),
            ("tcp://0.0.0.0:4567", "0.0.0.0:4567"),
            ("[::1]:4567", "[::1]:4567"),
            ("tcp://[::]:1", "[::]:1"),
            ("[::1]", "[::1]:4567"),
            ("::1", "[::1]:4567"),
            ("[fe80::1%eth0]:9", "[fe80::1%eth0]:9"),
            ("db1", "db1:4567"),
            (" db-1.example.org:99 ", "db-1.example.org:99"),
        ] {
            assert_eq!(
                parse_address(text, 4567).unwrap().to_string(),
                shown,
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_refused() {
        for text in [
            "",
            "tcp://",
            ":4567",
            "db1:",
            "db1:65536",
            "db1:+1",
            "udp://a:1",
            "ssl://a:1",
            "[::1",
            "[::1]4567",
            "[db1]:1",
            "::1:4567:x",
            "db 1:2",
            "a/b:1",
        ] {
            let e = parse_address(text, 4567).unwrap_err();
            assert!(e.to_string().contains("is not a usable address"), "{text}");
        }
    }
}
