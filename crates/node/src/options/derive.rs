//! What follows from the options: defaults that depend on others, and the
//! settings of the node.

use std::path::PathBuf;
use std::time::Duration;

use dromon_order::Gathering;

use super::address::{bracketed, parse_host, parse_listen};
use super::table::{Origin, TABLE, index};
use super::value::{Value, format_span};
use super::{DEFAULT_PORT, Durability, Entry, Env, HostPort, Settings, SlowNode, Tls, parse};

/// Host and port of the node's own address; `None`: unusable.
pub(super) fn node_address(env: &Env) -> Option<(String, Option<u16>)> {
    let text = env.node_address.trim();
    if text.is_empty() {
        return Some(("127.0.0.1".into(), None));
    }
    parse_host(text).ok()
}

/// Settles every default, and every value that still follows its default.
pub(super) fn fill_defaults(env: &Env, entries: &mut [Entry]) {
    let (host, own_port) = node_address(env).unwrap_or(("127.0.0.1".into(), None));
    // Twice: a default may follow an option later in the table, and that one a
    // third (gcache.dir follows base_dir, listen_addr follows socket.ssl).
    for _ in 0..2 {
        for (at, spec) in TABLE.iter().enumerate() {
            let text = match spec.origin {
                Origin::Is(text) => text.to_string(),
                Origin::DataDir => env.data_dir.clone(),
                Origin::Of(name) => entry(entries, name).text.clone(),
                Origin::HalfOf(name) => format_span(span(entries, name) / 2),
                Origin::Host => bracketed(&host),
                Origin::Port => own_port.unwrap_or(DEFAULT_PORT).to_string(),
                Origin::Listen => {
                    let scheme = if tls_enabled(entries) && !flag(entries, "socket.dynamic") {
                        "ssl"
                    } else {
                        "tcp"
                    };
                    format!("{scheme}://{}:{}", any_of(&host), port(entries))
                }
            };
            let base_port = port(entries);
            let (value, text) = parse(spec.kind, &text, base_port)
                // Only what the environment brings can fail; it is text then.
                .unwrap_or_else(|| (Value::Text(text.clone()), text));
            let entry = &mut entries[at];
            if !entry.given {
                entry.value = value.clone();
                entry.text = text;
            }
            entry.default = value;
        }
    }
}

/// Parts every value from a source that has moved away under it: it stays what
/// it is, now and after the connection.
pub(super) fn keep_values(entries: &mut [Entry]) {
    for (at, spec) in TABLE.iter().enumerate() {
        let source = match spec.origin {
            Origin::Of(name) => entry(entries, name).value.clone(),
            Origin::HalfOf(name) => Value::Span(span(entries, name) / 2),
            _ => continue,
        };
        let entry = &mut entries[at];
        entry.given |= entry.value != source;
    }
}

pub(super) fn derive_settings(env: &Env, entries: &[Entry]) -> Settings {
    let text = |name| entry(entries, name).text.clone();
    let path = |name| PathBuf::from(text(name));
    let count = |name| int(entries, name).max(0) as u64;
    let or_never = |name| match count(name) {
        0 => u64::MAX,
        n => n,
    };
    let base_port = port(entries);
    let listen = match parse_listen(&entry(entries, "gmcast.listen_addr").text) {
        Some((_, host, port)) => HostPort {
            host,
            port: port.unwrap_or(base_port),
        },
        None => HostPort {
            host: "0.0.0.0".into(),
            port: base_port,
        },
    };
    let (host, port) = parse_host(&text("base_host")).unwrap_or_else(|_| (text("base_host"), None));
    let mut advertised = HostPort {
        host,
        port: port.unwrap_or(base_port),
    };
    // Others come to where this node listens, as with the peer, unless a port was named for them.
    let named = entry(entries, "base_port");
    if named.value == named.default && own_port(env).is_none() {
        advertised.port = listen.port;
    }
    let suspect_timeout = span(entries, "evs.suspect_timeout");
    let log_retain = count("gcache.size");
    let single = flag(entries, "gcs.fc_single_primary") || flag(entries, "gcs.fc_master_slave");
    Settings {
        base_dir: path("base_dir"),
        log_dir: path("gcache.dir"),
        advertised,
        listen,
        base_port,
        segment: byte(int(entries, "gmcast.segment")),
        weight: byte(int(entries, "pc.weight")),
        stateless: flag(entries, "gcs.stateless"),
        suspect_timeout,
        inactive_timeout: span(entries, "evs.inactive_timeout").max(suspect_timeout),
        keepalive_period: span(entries, "evs.keepalive_period").min(suspect_timeout / 3),
        delay_margin: span(entries, "evs.delay_margin"),
        delayed_keep_period: span(entries, "evs.delayed_keep_period"),
        wait_prim_timeout: span(entries, "pc.wait_prim_timeout"),
        wait_prim_timeout_given: entry(entries, "pc.wait_prim_timeout").given,
        ignore_quorum: flag(entries, "pc.ignore_quorum"),
        ignore_sb: flag(entries, "pc.ignore_sb"),
        fc_limit: count("gcs.fc_limit"),
        fc_factor: double(entries, "gcs.fc_factor"),
        fc_single_primary: single,
        stall_patience: span(entries, "dromon.stall_patience"),
        causal_read_timeout: span(entries, "repl.causal_read_timeout"),
        max_ws_size: count("repl.max_ws_size"),
        vote_policy: byte(int(entries, "gcs.vote_policy")),
        log_conflicts: flag(entries, "cert.log_conflicts"),
        tls: Tls {
            enabled: tls_enabled(entries),
            dynamic: flag(entries, "socket.dynamic"),
            ca: path("socket.ssl_ca"),
            cert: path("socket.ssl_cert"),
            key: path("socket.ssl_key"),
            cipher: text("socket.ssl_cipher"),
            password_file: path("socket.ssl_password_file"),
            half_named: half_named(entries),
            said_by_address: parse_listen(&entry(entries, "gmcast.listen_addr").text)
                .is_some_and(|(scheme, ..)| scheme == Some("ssl")),
        },
        secret_file: path("dromon.secret_file"),
        log_retain,
        log_max: count("dromon.log_max").max(log_retain),
        durability: match text("dromon.durability").to_ascii_lowercase().as_str() {
            "memory" => Durability::Memory,
            _ => Durability::Majority,
        },
        found_alone: flag(entries, "dromon.found_alone"),
        gather: match text("dromon.gather").to_ascii_lowercase().as_str() {
            "always" => Gathering::Always,
            "never" => Gathering::Never,
            _ => Gathering::Auto,
        },
        slow_node: match text("dromon.slow_node").to_ascii_lowercase().as_str() {
            "quarantine" => SlowNode::Quarantine,
            _ => SlowNode::Wait,
        },
        key_escalation: or_never("dromon.key_escalation"),
        auto_stream_size: or_never("dromon.auto_stream_size"),
        binlog_groups: flag(entries, "dromon.binlog_groups"),
        bulk_share: double(entries, "dromon.bulk_share"),
        bulk_bound: {
            let share = entry(entries, "dromon.bulk_share");
            share.given.then(|| double(entries, "dromon.bulk_share"))
        },
        piece_size: count("dromon.piece_size") as usize,
    }
}

/// `socket.ssl`, or, when that was not said, certificate and key named.
fn tls_enabled(entries: &[Entry]) -> bool {
    let named = |name| !entry(entries, name).text.is_empty();
    if entry(entries, "socket.ssl").given {
        flag(entries, "socket.ssl")
    } else {
        named("socket.ssl_cert") && named("socket.ssl_key")
    }
}

/// Certificate or key are named, not both, and nobody said whether to encrypt.
fn half_named(entries: &[Entry]) -> bool {
    let named = |name| !entry(entries, name).text.is_empty();
    !entry(entries, "socket.ssl").given && named("socket.ssl_cert") != named("socket.ssl_key")
}

/// The port that the node's own address names.
fn own_port(env: &Env) -> Option<u16> {
    node_address(env)?.1
}

/// All addresses of this host, of IPv6 too if `host` is one of those. (IPv4 alone has no brackets and needs no IPv6
/// in the kernel.)
fn any_of(host: &str) -> &'static str {
    match host.parse::<std::net::Ipv6Addr>() {
        Ok(_) => "[::]",
        Err(_) => "0.0.0.0",
    }
}

/// The entry of a name that is in the table.
///
/// # Panics
/// On any other name. Names are literals of this module, and every one of them
/// is looked up whenever the defaults and settings are built.
pub(super) fn entry<'a>(entries: &'a [Entry], name: &str) -> &'a Entry {
    match index(name) {
        Some(at) => &entries[at],
        None => unreachable!("option {name} is not in the table"),
    }
}

pub(super) fn flag(entries: &[Entry], name: &str) -> bool {
    matches!(entry(entries, name).value, Value::Bool(true))
}

pub(super) fn int(entries: &[Entry], name: &str) -> i64 {
    match entry(entries, name).value {
        Value::Int(v) => v,
        _ => 0,
    }
}

fn double(entries: &[Entry], name: &str) -> f64 {
    match entry(entries, name).value {
        Value::Double(v) => v,
        _ => 0.0,
    }
}

pub(super) fn span(entries: &[Entry], name: &str) -> Duration {
    match entry(entries, name).value {
        Value::Span(v) => v,
        _ => Duration::ZERO,
    }
}

pub(super) fn port(entries: &[Entry]) -> u16 {
    u16::try_from(int(entries, "base_port")).unwrap_or(DEFAULT_PORT)
}

/// The table bounds these numbers to 0..=255.
pub(super) fn byte(number: i64) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}
