//! Many who log in at once.

use std::net::TcpStream;

use super::{Raw, ask, number, serve};

/// As many as there may be replicas, and more, are in the middle of it.
#[test]
fn a_fleet_that_comes_back() {
    let (address, ..) = serve(false, false);
    let greeted: Vec<_> = (0..170).map(|_| Raw::greeted(&address)).collect();
    for (mut raw, greeting) in greeted {
        let answer = raw.says_who(&greeting, "repl");
        // There may be too many by then: that is an answer.
        assert!(matches!(number(&answer), 0 | 1040), "{answer:?}");
    }
}

/// Strangers who come and say nothing keep nobody out.
#[test]
fn strangers_keep_nobody_out() {
    let (address, ..) = serve(false, false);
    let strangers: Vec<TcpStream> = (0..300)
        .map(|_| TcpStream::connect(&address).expect("it listens"))
        .collect();
    assert_eq!(
        ask(&address, "secret", None).expect("an answer"),
        "42 0-1-7"
    );
    drop(strangers);
}
