//! Tests of the options as a whole.

use std::path::PathBuf;

use dromon_order::Gathering;

use super::*;
use crate::flow::FlowLimits;

mod changes;
mod page;
mod values;

const UUID: &str = "d020871d-e5f0-11f1-9a18-667f5d04e35a";

fn env() -> Env {
    Env {
        node_address: "127.0.0.1:28567".into(),
        data_dir: "/var/lib/mysql/".into(),
    }
}

fn fresh() -> Options {
    Options::new(env())
}

fn started(text: &str) -> Options {
    let mut options = fresh();
    let outcome = options.parse_init(text).expect(text);
    assert_eq!(outcome.error, None);
    options
}

const CONNECTED: Phase = Phase::Runtime { connected: true };
const APART: Phase = Phase::Runtime { connected: false };

/// The string of a running 26.4.23 with the same address and data directory.
const PEER: &str = "base_dir = /var/lib/mysql/; base_host = 127.0.0.1; base_port = 28567; \
    cert.log_conflicts = no; cert.optimistic_pa = yes; debug = no; evs.auto_evict = 0; \
    evs.causal_keepalive_period = PT1S; evs.debug_log_mask = 0x1; evs.delay_margin = PT1S; \
    evs.delayed_keep_period = PT30S; evs.inactive_check_period = PT0.5S; \
    evs.inactive_timeout = PT15S; evs.info_log_mask = 0; evs.install_timeout = PT7.5S; \
    evs.join_retrans_period = PT1S; evs.keepalive_period = PT1S; evs.max_install_timeouts = 3; \
    evs.send_window = 4; evs.stats_report_period = PT1M; evs.suspect_timeout = PT5S; \
    evs.use_aggregate = true; evs.user_send_window = 2; evs.version = 1; \
    evs.view_forget_timeout = P1D; gcache.dir = /var/lib/mysql/; gcache.keep_pages_size = 0; \
    gcache.mem_size = 0; gcache.name = galera.cache; gcache.page_size = 128M; \
    gcache.recover = yes; gcache.size = 128M; gcomm.thread_prio = ; gcs.fc_debug = 0; \
    gcs.fc_factor = 1.0; gcs.fc_limit = 16; gcs.fc_master_slave = no; \
    gcs.fc_single_primary = no; gcs.max_packet_size = 64500; gcs.max_throttle = 0.25; \
    gcs.recv_q_hard_limit = 9223372036854775807; gcs.recv_q_soft_limit = 0.25; \
    gcs.sync_donor = no; gmcast.listen_addr = tcp://0.0.0.0:28567; gmcast.mcast_addr = ; \
    gmcast.mcast_ttl = 1; gmcast.peer_timeout = PT3S; gmcast.segment = 0; \
    gmcast.time_wait = PT5S; gmcast.version = 0; ist.recv_addr = 127.0.0.1; \
    pc.announce_timeout = PT3S; pc.checksum = false; pc.ignore_quorum = false; \
    pc.ignore_sb = false; pc.linger = PT20S; pc.npvo = false; pc.recovery = true; \
    pc.version = 0; pc.wait_prim = true; pc.wait_prim_timeout = PT30S; pc.weight = 1; \
    protonet.backend = asio; protonet.version = 0; repl.causal_read_timeout = PT30S; \
    repl.commit_order = 3; repl.key_format = FLAT8; repl.max_ws_size = 2147483647; \
    repl.proto_max = 11; socket.checksum = 2; socket.recv_buf_size = auto; \
    socket.send_buf_size = auto; ";

/// Names, kinds and flags from the config service of 26.4.23: s(tring), b(ool),
/// i(nteger), d(ouble), r(ead only), o(ld).
const PEER_PARAMETERS: &str = "base_dir sr, base_host sr, base_port ir, cert.log_conflicts b, \
    cert.optimistic_pa b, debug b, evs.auto_evict br, evs.causal_keepalive_period d, \
    evs.debug_log_mask s, evs.delay_margin d, evs.delayed_keep_period d, evs.evict s, \
    evs.inactive_check_period d, evs.inactive_timeout d, evs.info_log_mask s, \
    evs.install_timeout d, evs.join_retrans_period d, evs.keepalive_period d, \
    evs.max_install_timeouts i, evs.send_window i, evs.stats_report_period d, \
    evs.suspect_timeout d, evs.use_aggregate b, evs.user_send_window i, evs.version sr, \
    evs.view_forget_timeout dr, gcache.dir sr, gcache.keep_pages_size i, gcache.mem_size i, \
    gcache.name sr, gcache.page_size i, gcache.recover br, gcache.size ir, gcomm.thread_prio s, \
    gcs.fc_debug i, gcs.fc_factor d, gcs.fc_limit i, gcs.fc_master_slave bo, \
    gcs.fc_single_primary br, gcs.max_packet_size i, gcs.max_throttle d, \
    gcs.recv_q_hard_limit i, gcs.recv_q_soft_limit d, gcs.stateless br, gcs.sync_donor b, \
    gcs.vote_policy ir, gmcast.group sr, gmcast.listen_addr sr, gmcast.mcast_addr sr, \
    gmcast.mcast_ttl ir, gmcast.peer_addr s, gmcast.peer_timeout dr, gmcast.segment ir, \
    gmcast.time_wait dr, gmcast.version sr, ist.recv_addr sr, ist.recv_bind sr, \
    pc.announce_timeout dr, pc.bootstrap b, pc.checksum b, pc.ignore_quorum b, pc.ignore_sb b, \
    pc.linger dr, pc.npvo b, pc.recovery br, pc.version sr, pc.wait_prim br, \
    pc.wait_prim_timeout dr, pc.weight i, protonet.backend sro, protonet.version sro, \
    repl.causal_read_timeout d, repl.commit_order s, repl.key_format s, repl.max_ws_size i, \
    repl.proto_max s, socket.checksum ir, socket.dynamic br, socket.recv_buf_size s, \
    socket.send_buf_size s, socket.ssl br, socket.ssl_ca sr, socket.ssl_cert sr, \
    socket.ssl_cipher sr, socket.ssl_compression bro, socket.ssl_key sr, \
    socket.ssl_password_file sr, socket.ssl_reload b";

#[test]
fn the_table_is_sorted_and_lower_case() {
    for pair in TABLE.windows(2) {
        assert!(pair[0].name < pair[1].name, "{}", pair[1].name);
    }
    for spec in TABLE {
        assert!(!spec.name.contains(|c: char| c.is_ascii_uppercase()));
        assert!(
            !spec.why.is_empty() && !spec.why.ends_with('.'),
            "{}",
            spec.name
        );
    }
}

#[test]
fn the_default_string_is_the_peers() {
    assert_eq!(started("").to_string(), PEER);
    assert_eq!(fresh().to_string(), PEER);
}

#[test]
fn every_default_is_a_value_of_its_kind() {
    let options = fresh();
    for (spec, entry) in TABLE.iter().zip(&options.entries) {
        let parsed = parse(spec.kind, &entry.text, 1).map(|p| p.0);
        // The listen address has its port already.
        assert_eq!(parsed.as_ref(), Some(&entry.value), "{}", spec.name);
        assert_eq!(entry.value, entry.default, "{}", spec.name);
    }
}

#[test]
fn the_config_service_lists_the_peers_parameters_and_ours() {
    let shown: Vec<String> = fresh()
        .parameters()
        .iter()
        .filter(|p| !p.name.starts_with("dromon."))
        .map(|p| {
            let kind = match p.value {
                ParameterValue::Str(_) => "s",
                ParameterValue::Bool(_) => "b",
                ParameterValue::Int(_) => "i",
                ParameterValue::Double(_) => "d",
            };
            let read_only = if p.read_only { "r" } else { "" };
            let old = if p.deprecated { "o" } else { "" };
            format!("{} {kind}{read_only}{old}", p.name)
        })
        .collect();
    assert_eq!(shown.len(), 88);
    assert_eq!(shown.join(", "), PEER_PARAMETERS);
    let ours = fresh()
        .parameters()
        .iter()
        .filter(|p| p.name.starts_with("dromon."))
        .count();
    assert_eq!(ours, 11);
}

#[test]
fn the_config_service_has_the_values() {
    let mut options = started("gcache.size=10M;evs.suspect_timeout=PT0.5S;gcs.fc_factor=0.8");
    let _ = options.set("evs.auto_evict=3;pc.ignore_sb=on", CONNECTED);
    let value = |name: &str| {
        let found = options.parameters().into_iter().find(|p| p.name == name);
        found.expect(name).value
    };
    assert_eq!(value("gcache.size"), ParameterValue::Int(10 << 20));
    assert_eq!(value("evs.suspect_timeout"), ParameterValue::Double(0.5));
    assert_eq!(
        value("evs.view_forget_timeout"),
        ParameterValue::Double(86400.0)
    );
    assert_eq!(value("gcs.fc_factor"), ParameterValue::Double(0.8));
    assert_eq!(value("evs.auto_evict"), ParameterValue::Bool(true));
    assert_eq!(value("pc.ignore_sb"), ParameterValue::Bool(true));
    assert_eq!(value("evs.evict"), ParameterValue::Str(String::new()));
    let auto = ParameterValue::Str("auto".into());
    assert_eq!(value("socket.recv_buf_size"), auto);
}

/// `SET GLOBAL wsrep_provider_x = DEFAULT` on a newer server sends this.
#[test]
fn values_as_the_newer_server_writes_them_are_taken() {
    let mut options = started("gcache.size=10M;evs.suspect_timeout=PT10S");
    let before = options.parameters();
    for p in &before {
        if p.read_only {
            continue;
        }
        let text = match &p.value {
            ParameterValue::Bool(v) => if *v { "yes" } else { "no" }.to_string(),
            ParameterValue::Int(v) => v.to_string(),
            ParameterValue::Double(v) => format!("{v:.6}"),
            ParameterValue::Str(v) => v.clone(),
        };
        let outcome = options.set(&format!("{}={text};", p.name), CONNECTED);
        assert_eq!(outcome.error, None, "{} = {text}", p.name);
        assert!(outcome.changed.is_empty(), "{}", p.name);
    }
    assert_eq!(options.parameters(), before);
    assert_eq!(options.get("evs.suspect_timeout"), Some("PT10S"));
    let outcome = options.set("evs.keepalive_period=0.500000;", CONNECTED);
    assert_eq!(outcome.error, None);
    assert_eq!(options.get("evs.keepalive_period"), Some("PT0.5S"));
}

#[test]
fn defaults_follow_the_environment_and_other_options() {
    let host = |address: &str, text: &str| {
        let mut options = Options::new(Env {
            node_address: address.into(),
            data_dir: "/d/".into(),
        });
        let notes = options.parse_init(text).expect(text).notes.len();
        let of = |name| options.get(name).unwrap_or_default().to_string();
        let shown = [
            of("base_host"),
            of("base_port"),
            of("gmcast.listen_addr"),
            of("ist.recv_addr"),
        ];
        let advertised = options.settings().advertised.to_string();
        (shown.join(" "), advertised, notes)
    };
    let is = |shown: &str, advertised: &str, notes| (shown.into(), advertised.into(), notes);
    assert_eq!(
        host("10.0.0.1", ""),
        is(
            "10.0.0.1 4567 tcp://0.0.0.0:4567 10.0.0.1",
            "10.0.0.1:4567",
            0
        )
    );
    assert_eq!(
        host(
            "127.0.0.1:28567",
            "gmcast.listen_addr=127.0.0.2;base_port=28569;base_host=127.0.0.3"
        ),
        is(
            "127.0.0.3 28569 tcp://127.0.0.2:28569 127.0.0.3",
            "127.0.0.3:28569",
            0
        )
    );
    assert_eq!(
        host(
            "[::1]:28567",
            "gmcast.listen_addr=tcp://[::]:28567;ist.recv_addr=[::1]:99"
        ),
        is("[::1] 28567 tcp://[::]:28567 [::1]:99", "[::1]:28567", 1)
    );
    // Not an address, and none at all: said in a note.
    for address in ["a:b:c", ""] {
        assert_eq!(
            host(address, ""),
            is(
                "127.0.0.1 4567 tcp://0.0.0.0:4567 127.0.0.1",
                "127.0.0.1:4567",
                1
            )
        );
    }
    let o = started("base_dir=/a;evs.keepalive_period=PT0.5S;evs.inactive_timeout=PT100M");
    assert_eq!(o.get("gcache.dir"), Some("/a"));
    assert_eq!(o.get("evs.causal_keepalive_period"), Some("PT0.5S"));
    assert_eq!(o.get("evs.install_timeout"), Some("PT50M"));
    assert_eq!(o.get("evs.inactive_timeout"), Some("PT1H40M"));
}

#[test]
fn that_encryption_is_off_is_shown_once_somebody_said_so() {
    for files in ["socket.ssl_key=/k", "socket.ssl_cert=/c;socket.ssl_key=/k"] {
        let mut o = started(files);
        assert_eq!(o.set("socket.ssl=no", APART).error, None);
        let other = started(&o.to_string());
        assert_eq!(other.settings().tls, o.settings().tls, "{o}");
    }
}

#[test]
fn others_are_sent_to_the_port_that_this_node_listens_at() {
    let of = |address: &str, text: &str| {
        let mut options = Options::new(Env {
            node_address: address.into(),
            data_dir: "/d/".into(),
        });
        let _ = options.parse_init(text).expect(text);
        let s = options.settings();
        let members = ClusterAddress::parse("gcomm://b").expect("an address");
        let member = members.resolve(s.base_port)[0].to_string();
        (s.advertised.to_string(), member, s.listens_elsewhere())
    };
    let is = |own: &str, member: &str| (own.to_string(), member.to_string(), None);
    let at = "gmcast.listen_addr=tcp://0.0.0.0:5567";
    assert_eq!(of("10.0.0.2", at), is("10.0.0.2:5567", "b:4567"));
    let both = format!("{at};base_port=5567");
    assert_eq!(of("10.0.0.2", &both), is("10.0.0.2:5567", "b:5567"));
    assert_eq!(of("10.0.0.2:4600", ""), is("10.0.0.2:4600", "b:4600"));
    let v6 = is("[2001:db8::9]:4567", "b:4567");
    assert_eq!(of("[2001:db8::9]", ""), v6, "at [::]");
    // What does not fit is said: somebody may pass connections on.
    for (address, text, own) in [
        ("10.0.0.2:4567", at, "10.0.0.2:4567"),
        ("10.0.0.2", "gmcast.listen_addr=10.1.0.2", "10.0.0.2:4567"),
        ("[2001:db8::9]", at, "[2001:db8::9]:5567"),
    ] {
        let (announced, _, said) = of(address, text);
        assert_eq!(announced, own);
        let said = said.expect(text);
        assert!(
            said.contains(&format!("the others to come to {own}")),
            "{said}"
        );
    }
}

/// Derived at start, each is its own in a cluster, and stays so afterwards.
#[test]
fn in_a_cluster_no_value_follows_another() {
    let mut o = started("");
    let texts = |o: &Options| {
        ["evs.install_timeout", "evs.causal_keepalive_period"]
            .map(|name| o.get(name).unwrap_or_default().to_string())
    };
    let text = "evs.inactive_timeout=PT30S;evs.keepalive_period=PT0.5S";
    assert_eq!(o.set(text, CONNECTED).error, None);
    assert_eq!(texts(&o), ["PT7.5S", "PT1S"]);
    let _ = o.set("debug=yes", APART);
    assert_eq!(texts(&o), ["PT7.5S", "PT1S"]);
    // Outside of one, what nobody set and nothing parted still follows.
    let mut o = started("");
    assert_eq!(o.set(text, APART).error, None);
    assert_eq!(texts(&o), ["PT15S", "PT0.5S"]);
    let _ = o.set("evs.keepalive_period=PT1S", CONNECTED);
    let _ = o.set("evs.inactive_timeout=PT15S", APART);
    assert_eq!(texts(&o), ["PT7.5S", "PT0.5S"]);
}

/// Pairs of what was set and what a running 26.4.23 showed then.
#[test]
fn values_are_shown_in_the_peers_spelling() {
    let shown = |o: &Options, item: &str| {
        let name = item.split('=').next().unwrap_or_default();
        o.get(name).unwrap_or_default().to_string()
    };
    for (item, text) in [
        ("gcs.fc_factor=0.250000", "0.25"),
        ("gcs.fc_factor=0.8", "0.8"),
        ("gcs.fc_factor=1e-3", "0.001"),
        ("gcs.fc_factor=1", "1"),
        ("gcs.fc_factor=0.3333333333", "0.3333333333"),
        ("gcs.max_throttle=0.50", "0.5"),
        ("gcs.recv_q_soft_limit=0.125000", "0.125"),
        ("gcs.recv_q_hard_limit=1048576", "1M"),
        ("gcs.recv_q_hard_limit=1000", "1000"),
        ("gcs.fc_limit=1k", "1K"),
        ("gcs.fc_limit=2048", "2K"),
        ("gcs.fc_limit=1000", "1000"),
        ("gcache.page_size=131072K", "128M"),
        ("gcache.page_size=1024M", "1G"),
        ("gcache.keep_pages_size=1048576", "1M"),
        ("gcache.keep_pages_size=0", "0"),
        ("repl.max_ws_size=1048576", "1048576"),
        ("evs.send_window=1024", "1024"),
        ("evs.use_aggregate=off", "false"),
        ("evs.use_aggregate=1", "true"),
        ("cert.log_conflicts=on", "on"),
        ("pc.ignore_sb=yes", "yes"),
        ("evs.suspect_timeout=PT300S", "PT5M"),
        ("evs.keepalive_period=0.50", "PT0.5S"),
        ("evs.delayed_keep_period=86400", "P1D"),
        ("evs.debug_log_mask=1", "0x1"),
        ("evs.debug_log_mask=0X3", "0x3"),
        ("evs.info_log_mask=0", "0"),
        ("repl.causal_read_timeout=PT90S", "PT90S"),
        ("repl.key_format=FLAT16", "FLAT16"),
        ("socket.recv_buf_size=1M", "1M"),
    ] {
        let mut options = started("");
        assert_eq!(options.set(item, CONNECTED).error, None, "{item}");
        assert_eq!(shown(&options, item), text, "{item}");
    }
    // At start the queues and the cache keep the words of the configuration.
    for (item, text) in [
        ("gcs.fc_factor=0.250000", "0.250000"),
        ("gcs.fc_limit=1024", "1024"),
        ("gcache.size=134217728", "134217728"),
        ("gcache.page_size=131072K", "131072K"),
        ("evs.suspect_timeout=PT300S", "PT5M"),
        ("evs.inactive_timeout=PT1000S", "PT16M40S"),
        ("evs.use_aggregate=off", "false"),
        ("evs.info_log_mask=0X4", "0x4"),
        ("evs.view_forget_timeout=PT24H", "P1D"),
        ("gmcast.peer_timeout=3.0", "PT3S"),
        ("pc.linger=20", "PT20S"),
        ("debug=off", "off"),
    ] {
        assert_eq!(shown(&started(item), item), text, "{item}");
    }
}

#[test]
fn encryption_follows_its_files_unless_told_otherwise() {
    let files = "socket.ssl_cert=/c;socket.ssl_key=/k";
    let o = started(files);
    assert!(o.settings().tls.enabled);
    assert_eq!(o.get("gmcast.listen_addr"), Some("ssl://0.0.0.0:28567"));
    assert!(
        o.to_string()
            .contains("socket.ssl_cert = /c; socket.ssl_key = /k; socket.ssl_reload = no; ")
    );
    assert!(!started("").to_string().contains("ssl_reload"));
    let o = started(&format!("{files};socket.ssl=no"));
    assert!(!o.settings().tls.half_named);
    for half in ["socket.ssl_cert=/c;socket.ssl_ca=/a", "socket.ssl_key=/k"] {
        assert!(started(half).settings().tls.half_named, "{half}");
        let told = started(&format!("{half};socket.ssl=no"));
        assert!(!told.settings().tls.half_named);
    }
    assert!(!o.settings().tls.enabled);
    let o = started(&format!("socket.ssl=yes;socket.dynamic=true;{files}"));
    assert!(o.settings().tls.enabled && o.settings().tls.dynamic);
    assert_eq!(o.get("gmcast.listen_addr"), Some("tcp://0.0.0.0:28567"));
}

#[test]
fn the_place_of_the_secret_is_kept_but_shown_nowhere() {
    let mut o = started("dromon.secret_file=/etc/mysql/secret");
    assert_eq!(o.settings().secret_file, PathBuf::from("/etc/mysql/secret"));
    assert!(!o.to_string().contains("secret"));
    assert!(!o.parameters().iter().any(|p| p.name.contains("secret")));
    let outcome = o.set("dromon.secret_file=/other", CONNECTED);
    assert_eq!(
        (outcome.error, outcome.changed),
        (None, vec!["dromon.secret_file"])
    );
    assert_eq!(o.settings().secret_file, PathBuf::from("/other"));
}

#[test]
fn an_address_that_asks_for_encryption_is_told_apart() {
    let tls = |text: &str| started(text).settings().tls.clone();
    assert!(tls("gmcast.listen_addr=ssl://0.0.0.0:1").said_by_address);
    assert!(!tls("gmcast.listen_addr=tcp://0.0.0.0:1").said_by_address);
    assert!(!tls("").said_by_address);
}

#[test]
fn settings_have_the_defaults_in_units() {
    let s = fresh().settings().clone();
    let sec = Duration::from_secs;
    assert_eq!(s.base_dir, PathBuf::from("/var/lib/mysql/"));
    assert_eq!(s.log_dir, PathBuf::from("/var/lib/mysql/"));
    assert_eq!(s.listen.to_string(), "0.0.0.0:28567");
    assert_eq!((s.segment, s.weight, s.stateless), (0, 1, false));
    assert_eq!((s.suspect_timeout, s.inactive_timeout), (sec(5), sec(15)));
    assert_eq!((s.keepalive_period, s.wait_prim_timeout), (sec(1), sec(30)));
    assert!(!s.wait_prim_timeout_given);
    assert!(!s.ignore_quorum && !s.ignore_sb);
    assert_eq!(
        (s.fc_limit, s.fc_factor, s.fc_single_primary),
        (16, 1.0, false)
    );
    assert_eq!(
        (s.causal_read_timeout, s.max_ws_size),
        (sec(30), 2147483647)
    );
    assert!(s.vote_policy == 0 && !s.log_conflicts);
    assert_eq!(s.tls, Tls::default());
    assert_eq!((s.log_retain, s.log_max), (128 << 20, 4 << 30));
    assert_eq!(
        (s.durability, s.slow_node),
        (Durability::Majority, SlowNode::Wait)
    );
    assert!(s.found_alone && !started("dromon.found_alone=no").settings().found_alone);
    assert!(!s.binlog_groups && started("dromon.binlog_groups=1").settings().binlog_groups);
    assert_eq!(s.gather, Gathering::Auto);
    assert_eq!(
        started("dromon.gather=Never").settings().gather,
        Gathering::Never
    );
    assert_eq!(
        started("dromon.gather=always").settings().gather,
        Gathering::Always
    );
    assert_eq!((s.key_escalation, s.auto_stream_size), (200_000, 16 << 20));
    assert_eq!((s.bulk_share, s.piece_size), (0.6, 256 << 10));
    assert_eq!(s.bulk_bound, None, "nobody has set it");
}

#[test]
fn a_share_that_somebody_sets_bounds_more_than_pieces() {
    let given = started("dromon.bulk_share=0.25");
    assert_eq!(given.settings().bulk_bound, Some(0.25));
    let mut later = started("");
    let running = Phase::Runtime { connected: true };
    let whole = later.to_string();
    let _ = later.set(&whole, running);
    assert_eq!(later.settings().bulk_bound, None);
    for (text, share) in [("0.25", 0.25), ("0.7", 0.7), ("1", 1.0)] {
        let _ = later.set(&format!("dromon.bulk_share={text}"), running);
        let s = later.settings();
        assert_eq!((s.bulk_share, s.bulk_bound), (share, Some(share)));
    }
}

#[test]
fn settings_follow_every_change() {
    let mut o = started("dromon.durability=MEMORY;pc.wait_prim_timeout=8;gcache.size=8G");
    let s = o.settings();
    assert_eq!(s.durability, Durability::Memory);
    assert_eq!(s.wait_prim_timeout, Duration::from_secs(8));
    assert!(s.wait_prim_timeout_given);
    // Nobody is given up below what joiners may still want.
    assert_eq!(s.log_max, 8 << 30);
    assert_eq!(s.stall_patience, Duration::from_secs(1));
    let text = "gcs.fc_limit=1K;dromon.key_escalation=0;dromon.slow_node=quarantine;dromon.stall_patience=PT0S;\
                socket.recv_buf_size=1M;repl.max_ws_size=512;repl.causal_read_timeout=PT0.1S";
    assert_eq!(o.set(text, CONNECTED).error, None);
    let s = o.settings();
    assert_eq!((s.fc_limit, s.key_escalation), (1024, u64::MAX));
    assert_eq!(
        (s.slow_node, s.stall_patience),
        (SlowNode::Quarantine, Duration::ZERO)
    );
    assert_eq!(s.max_ws_size, 512);
    assert_eq!(s.causal_read_timeout, Duration::from_millis(100));
    assert_eq!(o.get("gcs.fc_limit"), Some("1K"));
    assert_eq!(o.get("socket.recv_buf_size"), Some("1M"));
}

#[test]
fn a_node_knows_its_own_addresses() {
    let own = |options: &str, list: &str| -> Vec<bool> {
        let settings = started(options).settings().clone();
        let address = ClusterAddress::parse(&format!("gcomm://{list}")).expect(list);
        let all = address.resolve(settings.listen.port);
        all.iter().map(|a| settings.is_own(a)).collect()
    };
    let names = "base_host=Node1;base_port=5000";
    assert_eq!(own(names, "node1,node1:5000,node2"), [true, false]);
    assert_eq!(own(names, "localhost,127.0.0.9,[::1]"), [true; 3]);
    assert_eq!(own(names, "localhost:5001,10.0.0.1,node1:5001"), [false; 3]);
    // Who listens at one address only leaves the others of the host to others.
    let one = "base_host=10.0.0.1;gmcast.listen_addr=tcp://127.0.0.2:4567;base_port=4567";
    assert_eq!(own(one, "127.0.0.2,10.0.0.1"), [true; 2]);
    assert_eq!(own(one, "127.0.0.1,localhost,127.0.0.2:4568"), [false; 3]);
}

#[test]
fn flow_control_grows_with_the_cluster() {
    let limits = |text: &str, members| {
        let s = started(text).settings().clone();
        let limits = FlowLimits::new(s.fc_limit, s.fc_factor, s.fc_single_primary, members);
        (limits.lower, limits.upper)
    };
    assert_eq!(limits("", 1), (16, 16));
    assert_eq!(limits("", 3), (27, 27));
    assert_eq!(limits("gcs.fc_factor=0.5", 1), (8, 16));
    assert_eq!(limits("gcs.fc_single_primary=yes", 9), (16, 16));
    assert_eq!(limits("gcs.fc_master_slave=yes", 9), (16, 16));
    assert_eq!(limits("gcs.fc_limit=100", 4), (200, 200));
    assert_eq!(limits("gcs.fc_limit=0", 3), (0, 0));
}

#[test]
fn bad_strings_at_start_say_what_to_write() {
    for (text, message) in [
        (
            "nope=1",
            "Unknown parameter 'nope': no provider option has this name, nor one like it. \
             docs/options.md lists them all",
        ),
        (
            "gmcasts.segment=1",
            "Unknown parameter 'gmcasts.segment': no provider option has this name. Did you mean \
             'gmcast.segment'?",
        ),
        (
            "gcs.fc_limit",
            "The options contain 'gcs.fc_limit' without a value, so none of them was set. Write \
             gcs.fc_limit=VALUE and put semicolons between options",
        ),
        (
            "debug=yes;=5",
            "The options contain '=5' without a name, so none of them was set. Write NAME=VALUE \
             and put semicolons between options",
        ),
        (
            "gcs.fc_limit=abc",
            "Option 'gcs.fc_limit' cannot be 'abc': it takes a whole number from 0 up, K, M, G or \
             T may follow, for example 128M",
        ),
        (
            "gcs.fc_limit=-1",
            "Option 'gcs.fc_limit' cannot be '-1': it takes a whole number from 0 up, K, M, G or \
             T may follow, for example 128M",
        ),
        (
            "gcache.size=99999999999T",
            "Option 'gcache.size' cannot be '99999999999T': it takes a whole number from 0 up, K, \
             M, G or T may follow, for example 128M",
        ),
        (
            "gcache.size=128MB",
            "Option 'gcache.size' cannot be '128MB': it takes a whole number from 0 up, K, M, G \
             or T may follow, for example 128M",
        ),
        (
            "gcs.fc_factor=1.5",
            "Option 'gcs.fc_factor' cannot be '1.5': it takes a number from 0 to 1, for example \
             0.5",
        ),
        (
            "gcs.fc_factor=nan",
            "Option 'gcs.fc_factor' cannot be 'nan': it takes a number from 0 to 1, for example \
             0.5",
        ),
        (
            "pc.weight=256",
            "Option 'pc.weight' cannot be '256': it takes a whole number from 0 to 255",
        ),
        (
            "evs.suspect_timeout=P1M",
            "Option 'evs.suspect_timeout' cannot be 'P1M': it takes a duration of at least PT0.1S \
             such as PT5S, PT0.5S, PT1M, P1D, or plain seconds",
        ),
        (
            "evs.suspect_timeout=0",
            "Option 'evs.suspect_timeout' cannot be '0': it takes a duration of at least PT0.1S \
             such as PT5S, PT0.5S, PT1M, P1D, or plain seconds",
        ),
        (
            "repl.causal_read_timeout=5s",
            "Option 'repl.causal_read_timeout' cannot be '5s': it takes a duration such as PT5S, \
             PT0.5S, PT1M, P1D, or plain seconds",
        ),
        (
            "cert.log_conflicts=maybe",
            "Option 'cert.log_conflicts' cannot be 'maybe': it takes yes or no (also true/false, \
             on/off, 1/0)",
        ),
        (
            "repl.key_format=foo",
            "Option 'repl.key_format' cannot be 'foo': it takes one of FLAT8, FLAT8A, FLAT16, \
             FLAT16A",
        ),
        (
            "dromon.durability=disk",
            "Option 'dromon.durability' cannot be 'disk': it takes one of majority, memory",
        ),
        (
            "dromon.piece_size=1",
            "Option 'dromon.piece_size' cannot be '1': it takes a whole number from 4096 to \
             16777216, K, M, G or T may follow, for example 128K",
        ),
        (
            "base_port=70000",
            "Option 'base_port' cannot be '70000': it takes a port from 1 to 65535",
        ),
        (
            "base_host=a:4567",
            "Option 'base_host' cannot be 'a:4567': it takes a host name or IP address without a \
             port",
        ),
        (
            "gmcast.listen_addr=udp://0.0.0.0",
            "Option 'gmcast.listen_addr' cannot be 'udp://0.0.0.0': it takes an address such as \
             tcp://0.0.0.0:4567 or tcp://[::]:4567 (scheme and port may be missing)",
        ),
        (
            "ist.recv_addr=a:b:c",
            "Option 'ist.recv_addr' cannot be 'a:b:c': it takes a host or host:port, an IPv6 \
             address in brackets, tcp:// or ssl:// before it if need be",
        ),
        (
            "evs.debug_log_mask=0xg",
            "Option 'evs.debug_log_mask' cannot be '0xg': it takes a number, decimal or \
             hexadecimal (0x4)",
        ),
        (
            "socket.recv_buf_size=big",
            "Option 'socket.recv_buf_size' cannot be 'big': it takes auto, or a size in bytes, \
             for example 1M",
        ),
        (
            "evs.evict=foo",
            "Option 'evs.evict' cannot be 'foo': it takes the uuid of a member, as in \
             wsrep_gcomm_uuid, or nothing",
        ),
        (
            "gmcast.isolate=3",
            "Option 'gmcast.isolate' cannot be '3': it takes a whole number from 0 to 2",
        ),
        (
            "pc.bootstrap=perhaps",
            "Option 'pc.bootstrap' cannot be 'perhaps': it takes yes or no (also true/false, \
             on/off, 1/0)",
        ),
    ] {
        let error = fresh().parse_init(text).expect_err(text);
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn notes_come_once_and_only_for_other_values() {
    let mut options = fresh();
    let note =
        |outcome: Outcome| -> Vec<String> { outcome.notes.into_iter().map(|n| n.0).collect() };
    // The default of one follows the other, so that one does not differ.
    let quiet = options
        .parse_init("evs.send_window=4;evs.install_timeout=PT15S;evs.inactive_timeout=PT30S")
        .expect("known options");
    assert_eq!(note(quiet), [""; 0]);
    assert_eq!(
        note(options.set("evs.install_timeout=PT20S", APART)),
        [
            "Option 'evs.install_timeout' is accepted, but has no effect here: a view is an entry \
             of the ordered log and needs no separate installation"
        ]
    );
    assert_eq!(
        note(options.set("evs.send_window=1024;gcs.fc_master_slave=yes", APART)),
        [
            "Option 'evs.send_window' is accepted, but has no effect here: messages in flight are \
             limited by bytes, which adapts by itself",
            "Option 'gcs.fc_master_slave' is deprecated: it is the old name of \
             gcs.fc_single_primary",
        ]
    );
    assert_eq!(note(options.set("evs.send_window=512", CONNECTED)), [""; 0]);
    assert_eq!(
        note(options.set(
            "evs.keepalive_period=PT3S;evs.inactive_timeout=PT1S",
            CONNECTED
        )),
        [
            "Option 'evs.keepalive_period' = PT3S does not fit 'evs.suspect_timeout' = PT5S: \
             PT1.666666666S is used",
        ]
    );
}

/// Whoever asks for something must read that it is not there; who keeps a
/// default is told nothing.
#[test]
fn what_this_version_lacks_is_said_when_it_is_asked_for() {
    for text in [
        "socket.ssl_compression=yes",
        "pc.recovery=false",
        "pc.wait_prim=FALSE",
        "gcs.sync_donor=yes",
        "cert.optimistic_pa=no",
        "debug=yes",
        "socket.recv_buf_size=1M",
    ] {
        let outcome = fresh().parse_init(text).expect(text);
        let notes: Vec<String> = outcome.notes.into_iter().map(|n| n.0).collect();
        let name = text.split('=').next().unwrap_or_default();
        let start = format!("Option '{name}' is accepted, but has no effect here: ");
        assert!(
            notes.len() == 1 && notes[0].starts_with(&start),
            "{notes:?}"
        );
    }
    let defaults = fresh().parse_init(PEER).expect("the defaults");
    assert_eq!(defaults.notes, []);
}

#[test]
fn read_only_options_take_the_value_they_have() {
    let mut options = started("gcache.size=10M");
    for text in [
        "gcache.size=10M",
        "gcache.size=10240K",
        "base_port=28567",
        "pc.wait_prim=YES",
    ] {
        let outcome = options.set(text, CONNECTED);
        assert_eq!(outcome, Outcome::default(), "{text}");
    }
    assert_eq!(options.get("gcache.size"), Some("10M"));
    assert_eq!(options.get("pc.wait_prim"), Some("true"));
}

#[test]
fn apart_from_a_cluster_more_can_change() {
    let mut options = started("");
    let outcome = options.set("base_port=7;pc.wait_prim=no", APART);
    assert_eq!(outcome.error, None);
    assert_eq!(outcome.changed, ["base_port", "pc.wait_prim"]);
    assert_eq!(options.get("gmcast.listen_addr"), Some("tcp://0.0.0.0:7"));
    assert_eq!(options.get("pc.wait_prim"), Some("no"));
}

#[test]
fn options_of_the_cluster_address_apply() {
    let mut options = started("gmcast.segment=1");
    let url = "gcomm://a?gmcast.segment=2&pc.wait_prim_timeout=PT30S&gmcast.listen_addr=b";
    let address = ClusterAddress::parse(url).expect("an address");
    let outcome = options.connect(&address).expect("known options");
    assert_eq!(outcome.changed, ["gmcast.segment", "gmcast.listen_addr"]);
    assert_eq!(options.settings().segment, 2);
    assert!(options.settings().wait_prim_timeout_given);
    assert_eq!(options.get("gmcast.listen_addr"), Some("tcp://b:28567"));
    let address = ClusterAddress::parse("gcomm://a?gcache.size=1G").expect("an address");
    let error = options.connect(&address).expect_err("fixed at load");
    assert!(matches!(error, OptionError::ReadOnly { restart: true, .. }));
}

#[test]
fn a_refused_cluster_address_leaves_no_option_behind() {
    let mut options = started("");
    let before = options.clone();
    let url = "gcomm://a?pc.ignore_quorum=yes&gcs.max_throttle=0.5&pc.wiat_prim=no";
    let address = ClusterAddress::parse(url).expect("an address");
    let error = options.connect(&address).expect_err("misspelt");
    assert!(matches!(error, OptionError::Unknown { .. }));
    assert_eq!(options.get("pc.ignore_quorum"), Some("false"));
    assert_eq!(options.settings(), before.settings());
    // What is to be said of them is still unsaid.
    let url = "gcomm://a?gcs.max_throttle=0.5";
    let address = ClusterAddress::parse(url).expect("an address");
    let outcome = options.connect(&address).expect("known options");
    assert_eq!(outcome.changed, ["gcs.max_throttle"]);
    assert_eq!(outcome.notes.len(), 1);
}

#[test]
fn our_options_show_when_they_are_set() {
    let o = started("dromon.durability=majority");
    assert!(o.to_string().contains("; dromon.durability = majority; "));
    let mut o = started("");
    let _ = o.set("dromon.slow_node=quarantine", CONNECTED);
    assert!(o.to_string().contains("; dromon.slow_node = quarantine; "));
    let _ = o.set("dromon.slow_node=wait", CONNECTED);
    assert_eq!(o.to_string(), PEER);
}

/// What the test suites write into their configuration.
#[test]
fn strings_in_use_are_taken() {
    for text in [
        "repl.causal_read_timeout=PT90S;base_port=16001;evs.suspect_timeout=PT10S;\
         evs.inactive_timeout=PT30S;evs.install_timeout=PT15S;pc.wait_prim_timeout=PT60S;\
         gcache.size=10M",
        "gcache.size=1;gcs.max_packet_size=2",
        "gmcast.listen_addr=127.0.0.2",
        "gcs.fc_limit=1K;cert.log_conflicts=YES;pc.ignore_quorum=TRUE;pc.wait_prim=FALSE",
        "gcs.stateless=1",
        "socket.ssl=yes;socket.ssl_cipher=AES256-SHA;socket.ssl_ca=/ca.pem",
        "cert.max_length=16384;cert.length_check=127;ist.keep_keys=true;gmcast.mcast_port=4567",
        "gcache.freeze_purge_at_seqno=now;gcs.fc_auto_evict_window=10;gcs.check_appl_proto=0",
        "ist.recv_addr=[::1]:4568;ist.recv_bind=127.0.0.1",
        "ist.recv_addr=ssl://10.0.0.1:4568;ist.recv_bind=tcp://0.0.0.0",
    ] {
        let mut options = started(text);
        let shown = options.to_string();
        for phase in [CONNECTED, APART] {
            let outcome = options.set(&shown, phase);
            assert_eq!((outcome.error, outcome.changed), (None, vec![]), "{text}");
            assert_eq!(options.to_string(), shown, "{text}");
        }
    }
}
