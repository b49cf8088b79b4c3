//! Changes while the node runs.

use super::*;

#[test]
fn refusals_at_run_time_say_what_stays() {
    for (text, phase, message) in [
        (
            "gcs.fc_limit=x",
            CONNECTED,
            "Option 'gcs.fc_limit' cannot be 'x': it takes a whole number from 0 up, K, M, G or T \
             may follow, for example 128M. It stays '16'",
        ),
        (
            "gcache.size=256M",
            APART,
            "Option 'gcache.size' cannot change after the start of the server: it stays '128M'. \
             Put gcache.size=256M into wsrep_provider_options in the configuration file and \
             restart this node",
        ),
        (
            "gmcast.segment=1",
            CONNECTED,
            "Option 'gmcast.segment' cannot change while this node is connected to a cluster: it \
             stays '0'. Put gmcast.segment=1 into wsrep_provider_options in the configuration \
             file and restart this node",
        ),
        (
            "gmcast.isolate=x",
            CONNECTED,
            "Option 'gmcast.isolate' cannot be 'x': it takes a whole number from 0 to 2",
        ),
    ] {
        let mut options = started("");
        let error = options.set(text, phase).error.expect(text);
        assert_eq!(error.to_string(), message);
        assert_eq!(options.to_string(), PEER);
    }
}

#[test]
fn items_before_the_first_bad_one_are_in_force() {
    let mut options = started("");
    let outcome = options.set("gcs.fc_limit=20;nope=1;gcs.fc_factor=0.7", CONNECTED);
    assert_eq!(outcome.changed, ["gcs.fc_limit"]);
    assert!(matches!(outcome.error, Some(OptionError::Unknown { .. })));
    assert_eq!(options.settings().fc_limit, 20);
    assert_eq!(options.settings().fc_factor, 1.0);
    // A string that is no list changes nothing.
    let outcome = options.set("gcs.fc_limit=30;gcs.fc_factor", CONNECTED);
    assert!(outcome.changed.is_empty());
    assert_eq!(options.settings().fc_limit, 20);
}

#[test]
fn blanks_and_empty_items_do_not_matter() {
    let mut options = started("");
    for text in [
        "",
        " ",
        ";;",
        " ; ",
        "gcs.fc_limit = 16 ;",
        "\tgcs.fc_limit=16;;",
    ] {
        let outcome = options.set(text, CONNECTED);
        assert_eq!(outcome, Outcome::default(), "{text}");
    }
    assert_eq!(options.to_string(), PEER);
}

#[test]
fn the_last_of_two_counts() {
    let o = started("gcs.fc_limit=16;gcs.fc_limit=17");
    assert_eq!(o.settings().fc_limit, 17);
}

#[test]
fn orders_come_out_as_actions_and_are_not_kept() {
    let mut options = started("");
    let member: Uuid = UUID.parse().expect("a uuid");
    for (text, actions) in [
        ("pc.bootstrap=YES", vec![Action::Bootstrap]),
        ("pc.bootstrap=1", vec![Action::Bootstrap]),
        ("pc.bootstrap=no", vec![]),
        ("pc.bootstrap=", vec![]),
        (
            "evs.evict=d020871d-e5f0-11f1-9a18-667f5d04e35a",
            vec![Action::Evict(Some(member))],
        ),
        ("evs.evict=", vec![Action::Evict(None)]),
        ("gmcast.isolate = 1", vec![Action::Isolate(Isolation::On)]),
        (
            "gmcast.isolate=2",
            vec![Action::Isolate(Isolation::Shutdown)],
        ),
        ("gmcast.isolate=0", vec![Action::Isolate(Isolation::Off)]),
        ("socket.ssl_reload=yes", vec![Action::ReloadTls]),
        ("socket.ssl_reload=no", vec![]),
        (
            "gmcast.isolate=1;pc.bootstrap=1",
            vec![Action::Isolate(Isolation::On), Action::Bootstrap],
        ),
        ("gmcast.isolate=1;x=1", vec![Action::Isolate(Isolation::On)]),
    ] {
        let outcome = options.set(text, CONNECTED);
        assert_eq!(outcome.actions, actions, "{text}");
        assert!(outcome.changed.is_empty() && outcome.notes.is_empty());
        assert_eq!(options.to_string(), PEER, "{text}");
    }
    let outcome = options.set("pc.weight=3;pc.weight=3", CONNECTED);
    assert_eq!(outcome.actions, [Action::Weight(3)]);
    assert_eq!(options.get("pc.weight"), Some("3"));
}

#[test]
fn orders_in_the_configuration() {
    let text = format!(
        "pc.bootstrap=yes;evs.evict={UUID};gmcast.isolate=1;socket.ssl_reload=1;pc.weight=2"
    );
    let outcome = fresh().parse_init(&text).expect("known options");
    // Nothing but this is for a node that has just been started.
    assert_eq!(outcome.actions, [Action::Isolate(Isolation::On)]);
    let notes: Vec<&str> = outcome.notes.iter().map(|n| n.0.as_str()).collect();
    assert_eq!(
        notes,
        [
            "Option 'pc.bootstrap' does nothing in the configuration: it is an order to a running \
             node. Give it with SET GLOBAL wsrep_provider_options",
            "Option 'evs.evict' does nothing in the configuration: it is an order to a running \
             node. Give it with SET GLOBAL wsrep_provider_options",
            "Option 'pc.weight' differs here: if one of three or more members weighs more than all \
             others together, it alone votes; a member of weight 0 has no vote while others of more \
             have one; else each has one vote, and of two that vote the heavier one goes on without the other",
        ]
    );
}

#[test]
fn what_counts_when_the_node_connects_is_refused_while_it_is_connected() {
    for (name, value) in [("dromon.piece_size", "4096"), ("base_port", "4999")] {
        let mut opts = started("");
        let text = format!("{name}={value}");
        let set = opts.set(&text, Phase::Runtime { connected: true });
        assert!(
            matches!(set.error, Some(OptionError::ReadOnly { .. })),
            "{set:?}"
        );
        let set = opts.set(&text, Phase::Runtime { connected: false });
        assert!(set.error.is_none(), "{set:?}");
    }
}
