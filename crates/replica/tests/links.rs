//! Connections to a server, with and without TLS. A relay stands for it.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dromon_binlog::BinlogState;
use dromon_log::SimDevice;
use dromon_relay::log::Log;
use dromon_relay::net::{ClientTls, ServerTls, TlsKeys};
use dromon_relay::serve::{Account as Served, Policy, Registry, ServeOptions, Server};
use dromon_relay::store::{Store, StoreOptions};
use dromon_relay::wire::PasswordHash;
use dromon_replica::client::{Account, Client, ClientError};

const KEYS: TlsKeys = TlsKeys {
    mode: "target_tls",
    ca: "target_tls_ca",
    cert: "target_tls_cert",
    key: "target_tls_key",
};

fn pki(name: &str) -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.join("../order/tests/pki").join(name)
}

fn serve(tls: bool, tls_required: bool) -> String {
    let device = Arc::new(SimDevice::new(5));
    let (store, _) =
        Store::open(device, StoreOptions::default(), BinlogState::new()).expect("empty");
    let options = ServeOptions {
        zstd: false,
        server_id: 42,
        accounts: vec![Served {
            name: "repl".into(),
            password: PasswordHash::of(b"secret"),
            admin: false,
        }],
        policy: Policy::Pass,
        policies: BTreeMap::new(),
        congestion: None,
        tls: tls
            .then(|| ServerTls::load(&pki("node.pem"), &pki("node.key"), None).expect("a pair")),
        tls_required,
        connections_max: 50,
        write_timeout: Duration::from_secs(5),
        heartbeat: Duration::from_secs(1),
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let server = Server::new(options, store.view(), Registry::new(60), Log::terminal(), 0);
    thread::spawn(move || server.listen(&listener));
    // It serves what the store has as long as it lives.
    std::mem::forget(store);
    address
}

fn connect(address: &str, password: &str, tls: Option<ClientTls>) -> Result<Client, ClientError> {
    Client::connect(&Account {
        address: address.into(),
        user: "repl".into(),
        password: password.into(),
        tls,
        patience: Duration::from_secs(10),
    })
}

fn ca(name: &str, named: bool) -> Option<ClientTls> {
    Some(ClientTls::load(KEYS, &pki(name), named, None).expect("an authority"))
}

#[test]
fn with_and_without_tls() {
    let (open, both, strict) = (serve(false, false), serve(true, false), serve(true, true));
    for (address, tls) in [
        (&open, None),
        (&both, None),
        (&both, ca("ca.pem", false)),
        (&strict, ca("ca.pem", false)),
    ] {
        let wanted = tls.is_some();
        let mut client = connect(address, "secret", tls).expect("let in");
        assert_eq!(client.is_encrypted(), wanted);
        // More than once, and more than one read.
        for _ in 0..3 {
            let id = client.one("SELECT @@server_id").expect("an answer");
            assert_eq!(id.as_deref(), Some("42"));
        }
        let error = client.one("SELECT nothing").expect_err("refused");
        assert!(!error.is_lost(), "{error}");
        assert!(client.id > 0 && !client.version.is_empty());
    }
}

#[test]
fn nobody_else_is_told_anything() {
    let (open, both, strict) = (serve(false, false), serve(true, false), serve(true, true));
    let refused = |address: &str, tls| {
        connect(address, "secret", tls)
            .expect_err("refused")
            .to_string()
    };
    let said = refused(&strict, None);
    assert!(said.contains("encrypted connections only"), "{said}");
    let said = refused(&open, ca("ca.pem", false));
    assert!(said.contains("does not offer TLS"), "{said}");
    let said = refused(&both, ca("other-ca.pem", false));
    assert!(
        said.contains("cannot be encrypted") && said.contains("target_tls_ca"),
        "{said}"
    );
    let said = refused(&both, ca("ca.pem", true));
    assert!(said.contains("cannot be encrypted"), "{said}");
    for tls in [None, ca("ca.pem", false)] {
        let error = connect(&both, "wrong", tls).expect_err("refused");
        assert!(error.to_string().contains("Access denied"), "{error}");
    }
}
