//! Who is told to be at an address, by what comes from there.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use super::secure_tests::{files, node, secret, security, tls};
use super::tests::{SOON, addr, config, identity};
use super::*;
use crate::network::Presence;
use crate::wire::Hello;

/// Somebody at an address of its own that says `word` to one who connects, and ends; with none it
/// only keeps the connection.
fn answers(word: Option<&'static [u8]>) -> String {
    let fake = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = fake.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut s, _) = fake.accept().unwrap();
        if let Some(word) = word {
            let _ = s.write_all(word);
            let _ = s.shutdown(std::net::Shutdown::Write);
        }
        let _ = s.read_to_end(&mut Vec::new());
    });
    at
}

const OTHERS: [(&[u8], &str); 2] = [
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "like HTTP"),
    (
        b"\x4a\0\0\0\x0a5.5.5-10.11",
        "(the cluster's port is usually",
    ),
];

#[tokio::test]
async fn who_may_be_there_is_told_from_who_is_not() {
    let (_d1, with) = secret("a secret of the cluster");
    let (_d2, other) = secret("a secret of another one");
    let open = SecurityConfig::default();
    let encrypted = tls(files("node"));
    let of = |at: String, as_: &SecurityConfig, who: Identity, limit| {
        let security = security(as_);
        async move {
            let asked = request(&at, &who, &security, Bytes::new(), limit).await;
            let e = asked.unwrap_err();
            (e.presence(), e.to_string())
        }
    };
    // A node of this cluster to which the one who asks does not fit.
    for (there, here) in [
        (&encrypted, &tls(files("expired"))),
        (&encrypted, &open),
        (&open, &encrypted),
        (&with, &other),
        (&with, &open),
        (&open, &with),
    ] {
        let (a, ..) = node(1, there);
        let said = of(addr(&a), here, identity(0), SOON).await;
        assert_eq!(said.0, Presence::Untold, "{}", said.1);
    }
    let mut c = config(1).0;
    let not_listed = |_: &Hello, _| Err(Refusal::new(RefusalCode::NotAllowed, "not on the list"));
    c.admit = Some(Arc::new(not_listed));
    let a = TcpNetwork::bind(c).unwrap();
    let said = of(addr(&a), &open, identity(0), SOON).await;
    assert_eq!(said.0, Presence::Untold, "{}", said.1);
    // Something else has its address.
    let mut elsewhere = identity(0);
    elsewhere.cluster = "another".to_owned();
    let (a, ..) = node(1, &open);
    let said = of(addr(&a), &open, elsewhere, SOON).await;
    assert_eq!(said.0, Presence::Other, "{}", said.1);
    for here in [&open, &encrypted] {
        for (word, like) in OTHERS {
            let said = of(answers(Some(word)), here, identity(0), SOON).await;
            assert_eq!(said.0, Presence::Other, "{}", said.1);
            assert!(said.1.contains(like), "{}", said.1);
        }
        let short = Duration::from_millis(50);
        let said = of(answers(None), here, identity(0), short).await;
        assert_eq!(said.0, Presence::Silent, "{}", said.1);
    }
    // Nobody has it.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = closed.local_addr().unwrap().to_string();
    drop(closed);
    for at in [at, "nobody.invalid".to_owned()] {
        let said = of(at, &encrypted, identity(0), SOON).await;
        assert_eq!(said.0, Presence::Nobody, "{}", said.1);
    }
}
