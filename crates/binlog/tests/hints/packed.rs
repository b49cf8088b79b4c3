//! Transactions that MySQL compressed as a whole.

use dromon_binlog::hints::{Barrier, Catalog, Limits, TableSchema};
use dromon_binlog::{EventType, Payload};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::stream::{Change, Stream, column, delete, insert, int, packed, table, update, whole};

fn tables() -> Vec<TableSchema> {
    let number = |name| column(name, "int(11)", None);
    ["a", "b"]
        .map(|name| {
            let keys = vec![vec![whole("id")], vec![whole("u")]];
            table(name, vec![number("id"), number("u"), number("v")], keys)
        })
        .into()
}

fn stream(limits: Limits) -> Stream {
    let mut s = Stream::mysql(tables(), limits);
    s.hints.learn(Catalog::new(tables()));
    s
}

fn change() -> impl Strategy<Value = Change> {
    (0usize..2, 0i32..6, 0i32..6, 0i32..6, 0u8..3).prop_map(|(table, id, u, other, what)| {
        let row = |u| vec![int(id), int(u), int(0)];
        match what {
            0 => insert(table, row(u)),
            1 => update(table, row(u), row(other)),
            _ => delete(table, row(u)),
        }
    })
}

proptest! {
    /// The hints are those of the same transactions as they are.
    #[test]
    fn nothing_else_comes_of_it(plans in vec((vec(change(), 1..4), any::<bool>()), 1..30)) {
        let (mut plain, mut mixed) = (stream(Limits::default()), stream(Limits::default()));
        for (changes, compressed) in &plans {
            let hint = plain.transaction(changes);
            let other = match compressed {
                true => mixed.packed(changes),
                false => mixed.transaction(changes),
            };
            prop_assert_eq!(&other.barrier, &None);
            prop_assert_eq!((other.placed, other.clock), (hint.placed, hint.clock));
            prop_assert!(mixed.hints.has_catalog());
        }
    }

    /// Of what cannot be read to its end nobody knows what it did.
    #[test]
    fn damaged(at: usize, to: u8) {
        let mut s = stream(Limits::default());
        let mut events = vec![s.statement("BEGIN")];
        events.extend(s.rows(&insert(0, vec![int(1), int(2), int(3)]), None));
        events.push(s.made(EventType::XID, &Payload::Xid(1)));
        let mut body = packed(&events);
        let at = at % body.len();
        body[at] = to;
        let unread = Some(Barrier::UnknownEvent(EventType::TRANSACTION_PAYLOAD));
        prop_assert!(s.packed_group(&body).barrier != unread || !s.hints.has_catalog());
    }
}

#[test]
fn what_may_have_changed_a_table() {
    let kind = EventType::TRANSACTION_PAYLOAD;
    let unread = Some(Barrier::UnknownEvent(kind));
    let s = stream(Limits::default());
    let begin = s.statement("BEGIN");
    let rows = s.rows(&insert(0, vec![int(1), int(2), int(3)]), None);
    let xid = s.made(EventType::XID, &Payload::Xid(1));
    let all = |first: Vec<u8>, last: Vec<u8>| [vec![first], rows.clone(), vec![last]].concat();
    let whole = packed(&all(begin.clone(), xid.clone()));
    let create = s.statement("CREATE TABLE `n` (`id` int) START TRANSACTION");
    let of_xa = s.statement("XA START X'31',X'',1");
    let commit = s.statement("COMMIT");
    let other = s.made(EventType::INCIDENT, &Payload::Other(b""));
    let within = s.made(kind, &Payload::Other(&whole));
    let open = [vec![begin.clone()], rows.clone()].concat();
    for (body, barrier, known) in [
        (whole.clone(), None, true),
        (
            packed(&all(create, xid.clone())),
            Some(Barrier::Statement),
            false,
        ),
        (packed(&all(of_xa, xid.clone())), Some(Barrier::Xa), true),
        (
            packed(&all(begin.clone(), commit)),
            Some(Barrier::NotTransactional),
            true,
        ),
        (
            packed(&all(other, xid.clone())),
            Some(Barrier::UnknownEvent(EventType::INCIDENT)),
            false,
        ),
        // Nobody knows what is missing, or is in it.
        (packed(&open), unread.clone(), false),
        (packed(&[]), unread.clone(), false),
        (packed(&[begin, within, xid]), unread.clone(), false),
        (whole[..whole.len() - 1].to_vec(), unread.clone(), false),
        (b"zstd".to_vec(), unread.clone(), false),
    ] {
        let mut s = stream(Limits::default());
        assert_eq!(s.packed_group(&body).barrier, barrier);
        assert_eq!(s.hints.has_catalog(), known, "{barrier:?}");
    }
    // More than may be unpacked.
    let mut s = stream(Limits {
        bytes: 100,
        ..Limits::default()
    });
    assert_eq!(s.packed_group(&whole).barrier, unread);
    assert!(!s.hints.has_catalog());
}
