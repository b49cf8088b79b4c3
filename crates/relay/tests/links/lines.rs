//! Nobody fills the log from outside.

use std::sync::Arc;
use std::time::Duration;

use dromon_binlog::BinlogState;
use dromon_log::SimDevice;
use dromon_relay::log::Log;
use dromon_relay::pull::{Asker, Login};
use dromon_relay::store::{Store, StoreOptions};

use super::{serve_logged, until};

#[test]
fn names_and_refusals() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log");
    let log = Log::file(&path).expect("writable");
    let device = Arc::new(SimDevice::new(6));
    let options = StoreOptions::default();
    let (store, _) = Store::open(device, options, BinlogState::new()).expect("empty");
    let (address, ..) = serve_logged(store.view(), None, false, log);
    for _ in 0..20 {
        let login = Login {
            address: address.clone(),
            user: "x".repeat(60_000),
            password: "wrong".into(),
            tls: None,
            limit: Duration::from_secs(10),
            in_all: None,
        };
        let error = Asker::connect(&login).map(drop).expect_err("a stranger");
        let text = error.to_string();
        assert!(
            text.contains("Access denied") && text.len() < 1000,
            "{text}"
        );
    }
    let said = || std::fs::read_to_string(&path).expect("there");
    until("it is said", || said().contains("Access denied"));
    // Twenty came; one more may be said on a machine that took ten seconds for them.
    let lines = said().lines().count();
    assert!(
        lines < 10 && said().lines().all(|line| line.len() < 1000),
        "{lines}"
    );
}
