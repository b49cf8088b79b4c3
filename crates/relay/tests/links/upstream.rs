//! What a relay says of its own connection, to tools that look after replicas.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dromon_binlog::BinlogState;
use dromon_log::SimDevice;
use dromon_relay::net::ClientTls;
use dromon_relay::pull::{Asker, Following, Login};
use dromon_relay::store::{Store, StoreOptions};

use super::{ca, puller, serve, serve_view, until};

/// Of SHOW SLAVE STATUS: whether the threads run, the number and text of the storing's error, and
/// whether the primary's name was compared.
fn status(address: &str) -> [String; 5] {
    let login = Login {
        address: address.to_owned(),
        user: "repl".into(),
        password: "secret".into(),
        tls: None,
        limit: Duration::from_secs(10),
        in_all: None,
    };
    let mut asker = Asker::connect(&login).expect("an account");
    let rows = asker.ask("SHOW SLAVE STATUS", 1 << 16).expect("a table");
    let cell = |n: usize| {
        let cell = rows[0][n].as_deref().unwrap_or_default();
        String::from_utf8_lossy(cell).into_owned()
    };
    [10, 11, 36, 37, 33].map(cell)
}

/// A sync fails: monitoring sees that nothing more is stored.
#[test]
fn a_disk_that_fails_is_seen() {
    let (primary, ..) = serve(true, false);
    let relay = |tls: Option<ClientTls>, fails: bool| {
        let device = Arc::new(SimDevice::new(6));
        let options = StoreOptions::default();
        let (store, _) = Store::open(device.clone(), options, BinlogState::new()).expect("empty");
        let view = store.view();
        if fails {
            device.fail_sync(1, io::ErrorKind::Other);
        }
        let puller = puller(store, &primary, None, tls, Duration::from_secs(5));
        let following = puller.following();
        let thread = thread::spawn(move || puller.run());
        let (address, server, view) = serve_view(view, None, false);
        server.follows(Arc::clone(&following));
        (address, following, view, thread)
    };
    // Encrypted is not yet that the name was compared.
    for tls in [None, ca("ca.pem", false)] {
        let encrypted = tls.is_some();
        let (address, following, view, thread) = relay(tls, false);
        until("it has all", || !view.state().position().is_empty());
        assert_eq!(status(&address), ["Yes", "Yes", "0", "", "No"]);
        let is = following.lock().expect("alive").encrypted;
        assert_eq!(is, encrypted);
        Following::stop(&following);
        thread.join().expect("it ends").expect("a good disk");
    }
    for named in [false, true] {
        let tls = ca("ca.pem", named).expect("settings");
        assert_eq!(tls.is_named(), named);
    }
    let (address, _, view, thread) = relay(None, true);
    let error = thread.join().expect("it ends").expect_err("a bad disk");
    assert!(view.failure().is_some());
    let [io, sql, number, text, _] = status(&address);
    assert_eq!([&io[..], &sql, &number], ["No", "No", "1026"]);
    assert_eq!(text, error.to_string());
}
