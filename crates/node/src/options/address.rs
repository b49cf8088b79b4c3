//! Addresses: of one node, and of a cluster (`wsrep_cluster_address`).

use std::net::Ipv6Addr;

pub use dromon_order::address::HostPort;
use dromon_order::address::is_host;

/// Port of the cluster's connections when nothing else is said.
pub const DEFAULT_PORT: u16 = 4567;

/// The host as it stands in front of a `:port`.
pub(super) fn bracketed(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_string()
    }
}

/// Why an address cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// No scheme at all.
    #[error(
        "Invalid backend URI: '{given}' is not a cluster address. Write gcomm:// and the addresses \
         of the members, for example wsrep_cluster_address=gcomm://10.0.0.1,10.0.0.2"
    )]
    NoScheme {
        /// The whole address as given.
        given: String,
    },
    /// A scheme other than `gcomm`.
    #[error(
        "Backend not supported: {scheme}://. A cluster address begins with gcomm://, for example \
         wsrep_cluster_address=gcomm://10.0.0.1,10.0.0.2"
    )]
    Scheme {
        /// What stands before `://`.
        scheme: String,
    },
    /// A list of commas.
    #[error(
        "The cluster address '{given}' has separators, but no address between them. Name the \
         members, or write gcomm:// alone to found a new cluster"
    )]
    OnlySeparators {
        /// The whole address as given.
        given: String,
    },
    /// One member's address is malformed.
    #[error("The address '{part}' in '{given}' {problem}")]
    Member {
        /// The whole address as given.
        given: String,
        /// The part that is wrong.
        part: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// An option behind `?` without a value.
    #[error(
        "The cluster address '{given}' contains '{part}' where an option is expected. Options \
         follow a question mark and are separated by &, for example \
         gcomm://10.0.0.1?gmcast.segment=1&pc.wait_prim=no"
    )]
    Option {
        /// The whole address as given.
        given: String,
        /// The part that is wrong.
        part: String,
    },
}

/// A parsed `wsrep_cluster_address`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterAddress {
    /// Members to try, in the order given, each once; without a port: the
    /// default one. Empty: this node founds a new cluster.
    pub members: Vec<(String, Option<u16>)>,
    /// Options behind the `?`, in the order given.
    pub options: Vec<(String, String)>,
}

impl ClusterAddress {
    /// Parses `gcomm://host[:port],...[?option=value&...]`.
    ///
    /// # Errors
    /// See [`AddressError`]; its message says what to write instead.
    pub fn parse(text: &str) -> Result<ClusterAddress, AddressError> {
        let given = text.trim();
        let Some((scheme, rest)) = given.split_once("://") else {
            return Err(AddressError::NoScheme {
                given: given.to_string(),
            });
        };
        if !scheme.eq_ignore_ascii_case("gcomm") {
            return Err(AddressError::Scheme {
                scheme: scheme.to_string(),
            });
        }
        let (list, query) = rest.split_once('?').unwrap_or((rest, ""));
        let list = list.strip_suffix('/').unwrap_or(list);
        let mut out = ClusterAddress::default();
        for part in list.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let member = parse_host(part).map_err(|problem| AddressError::Member {
                given: given.to_string(),
                part: part.to_string(),
                problem,
            })?;
            if !out.members.contains(&member) {
                out.members.push(member);
            }
        }
        if out.members.is_empty() && !list.trim().is_empty() {
            return Err(AddressError::OnlySeparators {
                given: given.to_string(),
            });
        }
        for part in query.split('&').map(str::trim).filter(|p| !p.is_empty()) {
            match part.split_once('=') {
                Some((key, value)) if !key.trim().is_empty() => out
                    .options
                    .push((key.trim().to_string(), value.trim().to_string())),
                _ => {
                    return Err(AddressError::Option {
                        given: given.to_string(),
                        part: part.to_string(),
                    });
                }
            }
        }
        Ok(out)
    }

    /// Whether the list is empty, which asks to found a new cluster.
    pub fn founds(&self) -> bool {
        self.members.is_empty()
    }

    /// The members with the missing ports filled in.
    pub fn resolve(&self, default_port: u16) -> Vec<HostPort> {
        let mut out: Vec<HostPort> = Vec::with_capacity(self.members.len());
        for (host, port) in &self.members {
            let full = HostPort {
                host: host.clone(),
                port: port.unwrap_or(default_port),
            };
            if !out.contains(&full) {
                out.push(full);
            }
        }
        out
    }
}

/// Splits `host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address.
pub(super) fn parse_host(text: &str) -> Result<(String, Option<u16>), &'static str> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest
            .split_once(']')
            .ok_or("has a '[' without the closing ']'")?;
        if host
            .split('%')
            .next()
            .unwrap_or(host)
            .parse::<Ipv6Addr>()
            .is_err()
        {
            return Err("has brackets around something that is not an IPv6 address");
        }
        match after.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if after.is_empty() => (host, None),
            None => return Err("has something other than ':port' behind the ']'"),
        }
    } else {
        match text.split_once(':') {
            None => (text, None),
            Some((host, port)) if !port.contains(':') => (host, Some(port)),
            Some(_) if text.parse::<Ipv6Addr>().is_ok() => (text, None),
            Some(_) => {
                return Err(
                    "has several colons; write an IPv6 address in brackets, as in [fe80::1]:4567",
                );
            }
        }
    };
    if host.is_empty() {
        return Err("has no host name");
    }
    let odd = |c: char| c.is_whitespace() || c.is_control() || "/\\?&=;,@'\"[]".contains(c);
    // What cannot be connected to later is refused now. Behind a `%` a zone may have any name.
    if host.contains(odd) || !host.contains(':') && !is_host(host) {
        return Err("has a character that cannot be in a host name");
    }
    let port = match port {
        None => None,
        Some(p) => match p.parse::<u16>() {
            Ok(n) if n > 0 && p.bytes().all(|b| b.is_ascii_digit()) => Some(n),
            _ => return Err("has a port that is not a number from 1 to 65535"),
        },
    };
    Ok((host.to_string(), port))
}

/// Splits a listen address: `tcp://host:port`, `ssl://host:port`, either part
/// of it missing but the host. Returns scheme, host, port.
pub(super) fn parse_listen(text: &str) -> Option<(Option<&str>, String, Option<u16>)> {
    let (scheme, rest) = match text.split_once("://") {
        Some((s, rest)) if matches!(s, "tcp" | "ssl") => (Some(s), rest),
        Some(_) => return None,
        None => (None, text),
    };
    let (host, port) = parse_host(rest).ok()?;
    Some((scheme, host, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn members(text: &str) -> Vec<String> {
        ClusterAddress::parse(text)
            .expect(text)
            .resolve(4567)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn lists_of_members() {
        assert_eq!(members("gcomm://"), [""; 0]);
        assert!(ClusterAddress::parse("gcomm://").unwrap().founds());
        assert!(ClusterAddress::parse(" GCOMM:// ").unwrap().founds());
        assert_eq!(members("gcomm://a"), ["a:4567"]);
        assert_eq!(members("gcomm://a:1,b ,, c:3,"), ["a:1", "b:4567", "c:3"]);
        assert_eq!(members("gcomm://a,a:4567,b/"), ["a:4567", "b:4567"]);
        assert_eq!(
            members("gcomm://[::1]:24510,[fe80::2%eth0],fe80::3"),
            ["[::1]:24510", "[fe80::2%eth0]:4567", "[fe80::3]:4567"]
        );
    }

    #[test]
    fn options_behind_the_question_mark() {
        let a = ClusterAddress::parse(
            "gcomm://a:1?gmcast.segment=1&gmcast.listen_addr=tcp://0.0.0.0:7&pc.weight= 2 ",
        )
        .unwrap();
        assert_eq!(a.resolve(9)[0].to_string(), "a:1");
        let opts: Vec<_> = a.options.iter().map(|(k, v)| format!("{k}|{v}")).collect();
        assert_eq!(
            opts,
            [
                "gmcast.segment|1",
                "gmcast.listen_addr|tcp://0.0.0.0:7",
                "pc.weight|2"
            ]
        );
        let a = ClusterAddress::parse("gcomm://?pc.weight=1").unwrap();
        assert!(a.founds() && a.options.len() == 1);
    }

    #[test]
    fn bad_addresses_say_what_to_write() {
        for (text, message) in [
            (
                "AUTO",
                "Invalid backend URI: 'AUTO' is not a cluster address. Write gcomm:// and the \
                 addresses of the members, for example \
                 wsrep_cluster_address=gcomm://10.0.0.1,10.0.0.2",
            ),
            (
                "foo://",
                "Backend not supported: foo://. A cluster address begins with gcomm://, for \
                 example wsrep_cluster_address=gcomm://10.0.0.1,10.0.0.2",
            ),
            (
                "gcomm://,",
                "The cluster address 'gcomm://,' has separators, but no address between them. \
                 Name the members, or write gcomm:// alone to found a new cluster",
            ),
            (
                "gcomm://a:x",
                "The address 'a:x' in 'gcomm://a:x' has a port that is not a number from 1 to \
                 65535",
            ),
            (
                "gcomm://a:0",
                "The address 'a:0' in 'gcomm://a:0' has a port that is not a number from 1 to \
                 65535",
            ),
            (
                "gcomm://a:+5",
                "The address 'a:+5' in 'gcomm://a:+5' has a port that is not a number from 1 to \
                 65535",
            ),
            (
                "gcomm://a,:4567",
                "The address ':4567' in 'gcomm://a,:4567' has no host name",
            ),
            (
                "gcomm://[::1",
                "The address '[::1' in 'gcomm://[::1' has a '[' without the closing ']'",
            ),
            (
                "gcomm://[node1]:4567",
                "The address '[node1]:4567' in 'gcomm://[node1]:4567' has brackets around \
                 something that is not an IPv6 address",
            ),
            (
                "gcomm://[::1]4567",
                "The address '[::1]4567' in 'gcomm://[::1]4567' has something other than ':port' \
                 behind the ']'",
            ),
            (
                "gcomm://a:1:2",
                "The address 'a:1:2' in 'gcomm://a:1:2' has several colons; write an IPv6 address \
                 in brackets, as in [fe80::1]:4567",
            ),
            (
                "gcomm://a b",
                "The address 'a b' in 'gcomm://a b' has a character that cannot be in a host name",
            ),
            (
                "gcomm://a?pc.weight",
                "The cluster address 'gcomm://a?pc.weight' contains 'pc.weight' where an option \
                 is expected. Options follow a question mark and are separated by &, for example \
                 gcomm://10.0.0.1?gmcast.segment=1&pc.wait_prim=no",
            ),
        ] {
            let err = ClusterAddress::parse(text).expect_err(text);
            assert_eq!(err.to_string(), message);
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,60}") {
            let _ = ClusterAddress::parse(&text);
            let _ = ClusterAddress::parse(&format!("gcomm://{text}"));
            let _ = parse_listen(&text);
        }

        /// What is taken here can be connected to, as far as words tell.
        #[test]
        fn the_transport_takes_what_is_taken(text in "[a-f~ä:.%0-9_-]{1,12}|\\[[a-f:0-9%~ä]{2,9}\\](:[0-9]{1,5})?|\\PC{1,20}") {
            if let Ok((host, port)) = parse_host(&text) {
                let full = HostPort { host, port: port.unwrap_or(1) };
                let dialled = dromon_order::address::parse_address(&full.to_string(), 2);
                prop_assert_eq!(dialled, Ok(full));
            }
        }

        #[test]
        fn shown_addresses_parse_again(
            list in prop::collection::vec(("[a-z][a-z0-9.-]{0,12}|([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}", 1u16..), 0..5)
        ) {
            let full: Vec<HostPort> =
                list.into_iter().map(|(host, port)| HostPort { host, port }).collect();
            let text: Vec<String> = full.iter().map(ToString::to_string).collect();
            let parsed = ClusterAddress::parse(&format!("gcomm://{}", text.join(","))).unwrap();
            let mut unique = full;
            let mut seen = Vec::new();
            unique.retain(|a| !seen.contains(a) && { seen.push(a.clone()); true });
            prop_assert_eq!(parsed.resolve(1), unique);
        }
    }
}
