//! The rules of docs/hints.md, by example.

use dromon_binlog::hints::{
    Barrier, Catalog, Hint, Hints, KeyPart, Limits, TableName, TableSchema,
};
use dromon_binlog::{EventType, LogicalClock, MySqlGtid, Payload, Position, gtid_flags};

use crate::stream::{
    Change, ORDINARY, Row, Stream, batches, column, delete, insert, int, place, table, text,
    update, whole,
};
use crate::toy::{Design, Does, Link};

/// A table with a primary key `id`, a unique `u` of this collation, and `v`.
pub fn plain(name: &str, collation: &str) -> TableSchema {
    let columns = vec![
        column("id", "int(11)", None),
        column("u", "varchar(50)", Some(collation)),
        column("v", "int(11)", None),
    ];
    table(name, columns, vec![vec![whole("id")], vec![whole("u")]])
}

pub fn row(id: i32, u: &str, v: i32) -> Row {
    vec![int(id), text(u), int(v)]
}

pub fn numbers(name: &str, columns: &[&str], unique: &[&[&str]]) -> TableSchema {
    let columns = columns.iter().map(|c| column(c, "int(11)", None)).collect();
    let key = |key: &&[&str]| key.iter().map(|c| whole(c)).collect();
    table(name, columns, unique.iter().map(key).collect())
}

fn stream_with(tables: Vec<TableSchema>, limits: Limits) -> Stream {
    let mut stream = Stream::new(tables.clone(), limits);
    stream.hints.learn(Catalog::new(tables));
    // The first one is alone, as it is not known what came before.
    assert_eq!(stream.transaction(&[]).commit_id, None);
    stream
}

pub fn stream(tables: Vec<TableSchema>) -> Stream {
    stream_with(tables, Limits::default())
}

/// Sizes of the batches of these transactions, one change each.
pub fn sizes(stream: &mut Stream, changes: &[Change]) -> Vec<usize> {
    let one = |c: &Change| stream.transaction(std::slice::from_ref(c));
    let hints: Vec<Hint> = changes.iter().map(one).collect();
    batches(&hints).iter().map(Vec::len).collect()
}

const CI: &str = "utf8mb4_unicode_ci";
pub const BIN: &str = "utf8mb4_bin";

#[test]
fn rows_by_all_their_unique_keys() {
    let mut s = stream(vec![plain("t", BIN)]);
    let others = [
        insert(0, row(1, "a", 1)),
        insert(0, row(2, "b", 1)),
        delete(0, row(3, "c", 1)),
    ];
    assert_eq!(sizes(&mut s, &others), [3]);
    let same = [
        update(0, row(1, "a", 1), row(1, "a", 2)),
        update(0, row(1, "a", 2), row(1, "a", 3)),
    ];
    assert_eq!(sizes(&mut s, &same), [1, 1]);
    // What one gives up the other takes, under another primary key.
    let passed_on = [delete(0, row(1, "a", 3)), insert(0, row(9, "a", 1))];
    assert_eq!(sizes(&mut s, &passed_on), [1, 1]);
    let passed_on = [
        update(0, row(9, "a", 1), row(9, "z", 1)),
        insert(0, row(8, "a", 1)),
    ];
    assert_eq!(sizes(&mut s, &passed_on), [1, 1]);
    // The same values elsewhere.
    let mut s = stream(vec![plain("t", BIN), plain("o", BIN)]);
    assert_eq!(
        sizes(
            &mut s,
            &[insert(0, row(1, "a", 1)), insert(1, row(1, "a", 1))]
        ),
        [2]
    );
}

#[test]
fn null_is_no_key_and_a_row_without_one_is_the_table() {
    let null = crate::stream::Val::Null;
    let mut s = stream(vec![numbers("t", &["id", "u"], &[&["id"], &["u"]])]);
    let rows = [
        insert(0, vec![int(1), null.clone()]),
        insert(0, vec![int(2), null.clone()]),
    ];
    assert_eq!(sizes(&mut s, &rows), [2]);
    let mut s = stream(vec![numbers("t", &["u", "v"], &[&["u"]])]);
    let named = [
        insert(0, vec![int(1), int(1)]),
        insert(0, vec![int(2), int(1)]),
    ];
    assert_eq!(sizes(&mut s, &named), [2]);
    let nameless = [
        insert(0, vec![null.clone(), int(1)]),
        insert(0, vec![int(2), int(1)]),
    ];
    assert_eq!(sizes(&mut s, &nameless), [1, 1]);
}

#[test]
fn tables_that_are_one_key() {
    let mut opaque = numbers("o", &["id"], &[&["id"]]);
    opaque.opaque = true;
    let mut old = numbers("d", &["id", "at"], &[&["id"]]);
    old.columns[1].kind = "datetime(3)".into();
    let other = numbers("n", &["id"], &[&["id"]]);
    let mut s = stream(vec![numbers("k", &["x"], &[]), opaque, old, other]);
    for (table, width) in [(0, 1), (1, 1), (2, 2)] {
        let changed = |n| insert(table, vec![int(n); width]);
        assert_eq!(sizes(&mut s, &[changed(1), changed(2)]), [1, 1], "{table}");
        // Beside others.
        assert_eq!(
            sizes(&mut s, &[changed(1), insert(3, vec![int(table as i32)])]),
            [2]
        );
    }
}

#[test]
fn images_that_are_not_whole() {
    let mut s = stream(vec![plain("t", BIN)]);
    let mut one = |n: i32, present: [bool; 3]| {
        let change = update(0, row(n, &n.to_string(), 1), row(n, &n.to_string(), 2));
        let events = s.rows(&change, Some(&present));
        let begin = s.begin(ORDINARY);
        s.group(begin, events)
    };
    // The third column is in no key.
    let hints = [one(1, [true, true, false]), one(2, [true, true, false])];
    assert_eq!(batches(&hints).len(), 1);
    let hints = [one(3, [true, false, true]), one(4, [true, true, true])];
    assert_eq!(batches(&hints).len(), 2);
    // After an update what does not stand there stayed as it was.
    let mut changed = |id: i32, to: &str| {
        let change = update(0, row(id, "x", 1), row(id, to, 1));
        let events = s.some_rows(&change, [&[true; 3], &[false, true, false]]);
        let begin = s.begin(ORDINARY);
        s.group(begin, events)
    };
    let hints = [changed(20, "a"), changed(21, "b")];
    assert_eq!(batches(&hints).len(), 2, "both give up x");
    let mut moved = |id: i32, u: &str| {
        let change = update(0, row(id, u, 1), row(id, u, 2));
        let events = s.some_rows(&change, [&[true; 3], &[false, false, true]]);
        let begin = s.begin(ORDINARY);
        s.group(begin, events)
    };
    let hints = [moved(22, "c"), moved(23, "d"), moved(22, "e")];
    let sizes: Vec<usize> = batches(&hints).iter().map(Vec::len).collect();
    assert_eq!(sizes, [2, 1]);
    // No column at all: nobody knows how many rows there are.
    let mut one = |n: i32, present: [bool; 3]| {
        let change = update(0, row(n, &n.to_string(), 1), row(n, &n.to_string(), 2));
        let events = s.rows(&change, Some(&present));
        let begin = s.begin(ORDINARY);
        s.group(begin, events)
    };
    let hints = [one(5, [false; 3]), one(6, [true; 3])];
    assert_eq!(batches(&hints).len(), 2);
    assert!(hints.iter().all(|h| h.barrier.is_none()));
}

/// Rows that end in the middle of one: those that could be read are not all.
#[test]
fn rows_that_cannot_be_read() {
    let mut s = stream(vec![plain("t", BIN)]);
    let mut one = |n: i32, cut: usize| {
        let mut events = s.rows(&insert(0, row(n, &n.to_string(), 1)), None);
        let body = events[1][19..events[1].len() - 4 - cut].to_vec();
        events[1] = s.made(EventType::WRITE_ROWS_V1, &Payload::Other(&body));
        let begin = s.begin(ORDINARY);
        s.group(begin, events)
    };
    assert_eq!(batches(&[one(1, 0), one(2, 0)]).len(), 1);
    let hints = [one(3, 1), one(4, 0)];
    assert_eq!(batches(&hints).len(), 2);
    assert!(hints.iter().all(|h| h.barrier.is_none()));
}

#[test]
fn texts_as_their_collations_compare() {
    let of = |collation: &str, a: &str, b: &str| {
        let mut s = stream(vec![plain("t", collation)]);
        sizes(&mut s, &[insert(0, row(1, a, 1)), insert(0, row(2, b, 1))]).len() == 1
    };
    for (a, b) in [
        ("a", "A"),
        ("a", "a "),
        ("ss", "ß"),
        ("x", "é"),
        ("a\u{1}", "a"),
        ("é", "É"),
    ] {
        assert!(!of(CI, a, b), "{a:?} {b:?}");
    }
    assert!(of(CI, "a", "b") && of(CI, "ab", "ba"));
    assert!(!of(BIN, "a", "a "));
    assert!(of(BIN, "a", "A") && of(BIN, "ss", "ß"));
    // Nothing is known of these: to Lithuanian rules i is y.
    assert!(!of("utf8mb4_lithuanian_ci", "y", "i"));
    assert!(!of("utf8mb4_lithuanian_ci", "a", "b"));
    // A value that may equal any does so in its index alone.
    let mut s = stream(vec![plain("t", CI), plain("o", CI)]);
    assert_eq!(
        sizes(
            &mut s,
            &[insert(0, row(1, "é", 1)), insert(1, row(1, "é", 1))]
        ),
        [2]
    );
}

#[test]
fn keys_of_prefixes() {
    let mut schema = plain("t", BIN);
    schema.unique[1][0] = KeyPart {
        prefix: 2,
        ..whole("u")
    };
    let two = |a: &str, b: &str| {
        let mut s = stream(vec![schema.clone()]);
        sizes(&mut s, &[insert(0, row(1, a, 1)), insert(0, row(2, b, 1))])
    };
    assert_eq!(two("abc", "abd"), [1, 1]);
    assert_eq!(two("acc", "abd"), [2]);
    // Characters of two bytes: fewer are looked at than count.
    assert_eq!(two("éa", "éb"), [1, 1]);
}

#[test]
fn keys_whose_values_do_not_stand_in_rows() {
    let mut computed = numbers("t", &["id", "c"], &[&["id"], &["c"]]);
    computed.columns[1].generated = true;
    let mut expression = numbers("e", &["id"], &[&["id"]]);
    expression.unique.push(vec![KeyPart::default()]);
    let mut s = stream(vec![computed, expression]);
    let first = [
        insert(0, vec![int(1), int(1)]),
        insert(0, vec![int(2), int(2)]),
    ];
    assert_eq!(sizes(&mut s, &first), [1, 1]);
    assert_eq!(
        sizes(&mut s, &[insert(1, vec![int(1)]), insert(1, vec![int(2)])]),
        [1, 1]
    );
}

/// p(id, v), c(id, pid -> p, qid -> q), q(id), g(id, cid -> c).
fn family(does: Does) -> Design {
    let tables = vec![
        numbers("p", &["id", "v"], &[&["id"]]),
        numbers("c", &["id", "pid", "qid"], &[&["id"]]),
        numbers("q", &["id"], &[&["id"]]),
        numbers("g", &["id", "cid"], &[&["id"]]),
    ];
    let link = |child, column, parent| Link {
        child,
        columns: vec![column],
        parent,
        parent_columns: vec![0],
        on_delete: does,
        on_update: does,
    };
    Design::new(tables, vec![link(1, 1, 0), link(1, 2, 2), link(3, 1, 1)])
}

#[test]
fn children_read_their_parents() {
    let null = crate::stream::Val::Null;
    let mut s = stream(family(Does::Refuse).tables);
    let child = |id, pid| vec![int(id), int(pid), null.clone()];
    let parent = |id| vec![int(id), int(0)];
    // Beside each other, and beside another parent.
    let of = [
        insert(1, child(1, 7)),
        insert(1, child(2, 7)),
        insert(0, parent(8)),
    ];
    assert_eq!(sizes(&mut s, &of), [3]);
    assert_eq!(
        sizes(&mut s, &[insert(0, parent(7)), insert(1, child(1, 7))]),
        [1, 1]
    );
    // The child must be gone before the parent goes.
    assert_eq!(
        sizes(&mut s, &[delete(1, child(1, 7)), delete(0, parent(7))]),
        [1, 1]
    );
    let moved = update(1, child(2, 7), child(2, 8));
    assert_eq!(sizes(&mut s, &[moved, delete(0, parent(7))]), [1, 1]);
    // NULL names no parent.
    let orphan = insert(1, vec![int(3), null.clone(), null.clone()]);
    assert_eq!(sizes(&mut s, &[orphan, delete(0, parent(8))]), [2]);
}

#[test]
fn cascades_are_in_no_event() {
    let null = crate::stream::Val::Null;
    let parent = |id, v| vec![int(id), int(v)];
    let child = |id| insert(1, vec![int(id), null.clone(), null.clone()]);
    let grandchild = |id| insert(3, vec![int(id), null.clone()]);
    for does in [Does::Cascade, Does::SetNull] {
        let mut s = stream(family(does).tables);
        let gone = || delete(0, parent(1, 0));
        let renamed = || update(0, parent(1, 0), parent(2, 0));
        let causes: [&dyn Fn() -> Change; 2] = [&gone, &renamed];
        for cause in causes {
            for other in [child(5), grandchild(5), delete(2, vec![int(5)])] {
                assert_eq!(
                    sizes(&mut s, &[cause(), other.clone()]),
                    [1, 1],
                    "{other:?}"
                );
                assert_eq!(sizes(&mut s, &[other, cause()]), [1, 1]);
            }
        }
        // What keeps its key does not cascade.
        let changed = update(0, parent(1, 0), parent(1, 1));
        assert_eq!(sizes(&mut s, &[changed, child(6), grandchild(6)]), [3]);
        // Nor does what comes new.
        assert_eq!(sizes(&mut s, &[insert(0, parent(3, 0)), child(7)]), [2]);
    }
    // Without a cascade it is refused, or touches nothing.
    let mut s = stream(family(Does::Refuse).tables);
    assert_eq!(sizes(&mut s, &[delete(0, parent(1, 0)), child(5)]), [2]);
}

#[test]
fn keys_that_cannot_be_compared() {
    let mut tables = family(Does::Refuse).tables;
    tables[0].columns[0].kind = "bigint(20)".into();
    let mut s = stream(tables);
    // The child's int is not the parent's bigint: all of the parent's key.
    let null = crate::stream::Val::Null;
    let child = insert(1, vec![int(1), int(7), null.clone()]);
    assert_eq!(
        sizes(&mut s, &[insert(0, vec![int(8), int(0)]), child]),
        [1, 1]
    );
    // How wide a number is shown changes nothing.
    let mut tables = family(Does::Refuse).tables;
    tables[0].columns[0].kind = "INT".into();
    let mut s = stream(tables);
    let child = insert(1, vec![int(1), int(7), null]);
    assert_eq!(
        sizes(&mut s, &[insert(0, vec![int(8), int(0)]), child]),
        [2]
    );
}

#[test]
fn too_many_keys() {
    let limits = Limits {
        table_keys: 3,
        transaction_keys: 12,
        ..Limits::default()
    };
    let tables: Vec<TableSchema> = (0..6)
        .map(|n| numbers(&format!("t{n}"), &["id"], &[&["id"]]))
        .collect();
    let mut s = stream_with(tables, limits);
    let some = |table, ids: std::ops::Range<i32>| -> Vec<Change> {
        ids.map(|id| insert(table, vec![int(id)])).collect()
    };
    let hints = [s.transaction(&some(0, 0..3)), s.transaction(&some(0, 5..6))];
    assert_eq!(batches(&hints).len(), 1);
    // A fourth value makes it all of the table.
    let hints = [s.transaction(&some(0, 0..4)), s.transaction(&some(0, 5..6))];
    assert_eq!(batches(&hints).len(), 2);
    let hints = [
        s.transaction(&some(0, 0..40)),
        s.transaction(&some(1, 5..6)),
    ];
    assert_eq!(batches(&hints).len(), 1);
    let many: Vec<Change> = (0..6).flat_map(|table| some(table, 0..3)).collect();
    assert_eq!(s.transaction(&many).barrier, Some(Barrier::TooLarge));
}

/// A group of these events, which must be a barrier: nothing shares a batch
/// with it.
fn barrier_of(s: &mut Stream, begin: Vec<u8>, events: Vec<Vec<u8>>) -> Barrier {
    let before = s.transaction(&[]);
    let hint = s.group(begin, events);
    let after = s.transaction(&[]);
    assert_eq!(hint.placed.after, before.placed.number);
    assert_eq!(after.placed.after, hint.placed.number);
    assert_eq!(hint.commit_id, None);
    assert!(after.commit_id.is_some() && after.commit_id != before.commit_id);
    hint.barrier.expect("a barrier")
}

#[test]
fn barriers() {
    let mut s = stream(vec![plain("t", BIN)]);
    let rows = s.rows(&insert(0, row(1, "a", 1)), None);
    let statement = s.statement("insert into t values (1)");
    let other = |s: &Stream, kind| {
        let len = if kind == 11 { 4 } else { 9 };
        s.made(EventType(kind), &Payload::Other(&[0; 9][..len]))
    };

    let begin = s.begin(ORDINARY);
    assert_eq!(
        barrier_of(&mut s, begin, vec![statement]),
        Barrier::Statement
    );
    let begin = s.begin(gtid_flags::ALLOW_PARALLEL);
    assert_eq!(
        barrier_of(&mut s, begin, rows.clone()),
        Barrier::NotTransactional
    );
    let begin = s.begin(gtid_flags::TRANSACTIONAL);
    assert_eq!(barrier_of(&mut s, begin, rows.clone()), Barrier::Forbidden);
    let begin = s.begin(ORDINARY | gtid_flags::DDL);
    assert_eq!(barrier_of(&mut s, begin, rows.clone()), Barrier::Standalone);
    // Rows of a table that no map named.
    let begin = s.begin(ORDINARY);
    assert_eq!(
        barrier_of(&mut s, begin, rows[1..].to_vec()),
        Barrier::Damaged
    );
    // Parts of statements, a partial update: tables stay known.
    for kind in [5, 13, 14, 9, 11, 17] {
        let (begin, event) = (s.begin(ORDINARY), other(&s, kind));
        assert_eq!(barrier_of(&mut s, begin, vec![event]), Barrier::Statement);
    }
    for kind in [20, 21, 22, 39] {
        let (begin, event) = (s.begin(ORDINARY), other(&s, kind));
        let barrier = barrier_of(&mut s, begin, vec![event]);
        assert_eq!(barrier, Barrier::UnknownEvent(EventType(kind)));
    }
    assert!(s.hints.has_catalog());
    // Ended by a statement: tables took part that cannot roll back.
    let begin = s.begin(ORDINARY);
    assert!(s.raw(&begin).is_none());
    let commit = s.statement("COMMIT");
    let hint = s.raw(&commit).unwrap();
    assert_eq!(hint.barrier, Some(Barrier::NotTransactional));
    // What nobody knows may have done anything.
    for kind in [26, 36, 200] {
        let tables = s.schemas.clone();
        s.hints.learn(Catalog::new(tables));
        let (begin, event) = (s.begin(ORDINARY), other(&s, kind));
        let barrier = barrier_of(&mut s, begin, vec![event]);
        assert_eq!(barrier, Barrier::UnknownEvent(EventType(kind)));
        assert!(!s.hints.has_catalog());
    }
    let begin = s.begin(ORDINARY);
    let unknown = Barrier::UnknownTable(TableName::new("db", "t"));
    assert_eq!(barrier_of(&mut s, begin, rows), unknown);
}

#[test]
fn savepoints_are_none() {
    let mut s = stream(vec![plain("t", BIN)]);
    let hints: Vec<Hint> = (0..3)
        .map(|n| {
            let mut events = vec![s.statement("SAVEPOINT `a`")];
            events.extend(s.rows(&insert(0, row(n, &n.to_string(), 1)), None));
            events.push(s.statement("ROLLBACK TO `a`"));
            let begin = s.begin(ORDINARY);
            s.group(begin, events)
        })
        .collect();
    assert_eq!(batches(&hints).len(), 1);
}

#[test]
fn what_is_known_of_tables() {
    let mut s = Stream::new(vec![plain("t", BIN)], Limits::default());
    let tables = s.schemas.clone();
    let one = insert(0, row(1, "a", 1));
    let unknown = Some(Barrier::UnknownTable(TableName::new("db", "t")));
    assert_eq!(s.transaction(std::slice::from_ref(&one)).barrier, unknown);
    s.hints.learn(Catalog::new(tables.clone()));
    assert_eq!(s.transaction(std::slice::from_ref(&one)).barrier, None);
    // Statements that leave columns and keys alone, and others.
    for (text, known) in [
        ("TRUNCATE TABLE t", true),
        ("insert into t values (1)", true),
        ("CREATE TABLE x(a int)", false),
        ("/* a comment */ TRUNCATE TABLE t", false),
        ("ALTER TABLE x ADD y int", false),
    ] {
        s.hints.learn(Catalog::new(tables.clone()));
        assert_eq!(s.alone(text).barrier, Some(Barrier::Standalone));
        assert_eq!(s.hints.has_catalog(), known, "{text}");
        let barrier = s.transaction(std::slice::from_ref(&one)).barrier;
        assert_eq!(barrier.is_none(), known, "{text}");
    }
    // In the middle of a group too.
    s.hints.learn(Catalog::new(tables.clone()));
    let events = [vec![s.statement("drop table x")], s.rows(&one, None)].concat();
    let begin = s.begin(ORDINARY);
    assert_eq!(s.group(begin, events).barrier, Some(Barrier::Statement));
    assert!(!s.hints.has_catalog());
    // A table that is not the one in the catalog: more columns, another name
    // of one, another primary key.
    s.hints.learn(Catalog::new(vec![numbers(
        "t",
        &["id", "u", "v", "w"],
        &[&["id"]],
    )]));
    assert_eq!(s.transaction(std::slice::from_ref(&one)).barrier, unknown);
    for (optional, known) in [
        (&b"\x04\x07\x02id\x01u\x01v"[..], true),
        (&b"\x04\x07\x02id\x01u\x01x"[..], false),
        (&b"\x08\x01\x00"[..], true),
        (&b"\x08\x01\x02"[..], false),
    ] {
        s.hints.learn(Catalog::new(tables.clone()));
        s.optional = optional.to_vec();
        let barrier = s.transaction(std::slice::from_ref(&one)).barrier;
        assert_eq!(barrier.is_none(), known, "{optional:?}");
    }
}

#[test]
fn relatives_must_be_known_too() {
    let all = family(Does::Cascade).tables;
    let knows = |tables: &[TableSchema], name| {
        Catalog::new(tables.to_vec()).knows(&TableName::new("db", name))
    };
    for name in ["p", "c", "q", "g"] {
        assert!(knows(&all, name));
    }
    // Without q: c reads it, and what cascades into c does too.
    let some: Vec<TableSchema> = all
        .iter()
        .filter(|t| t.name.table != "q")
        .cloned()
        .collect();
    assert!(!knows(&some, "p") && !knows(&some, "c") && knows(&some, "g"));
    let mut wrong = all.clone();
    wrong[1].foreign[0].parent_columns = vec!["nothing".into()];
    assert!(!knows(&wrong, "p") && !knows(&wrong, "c"));
    let mut wrong = all;
    wrong[3].unique[0][0] = whole("nothing");
    assert!(!knows(&wrong, "g"));
}

#[test]
fn domains_have_batches_of_their_own() {
    let mut s = stream(vec![plain("t", BIN)]);
    let mut one = |domain, n: i32| {
        let events = s.rows(&insert(0, row(n, &n.to_string(), 1)), None);
        let begin = s.begin_in(domain);
        s.group(begin, events).commit_id
    };
    assert_eq!((one(5, 1), one(6, 1)), (None, None));
    let ids = [one(5, 2), one(6, 2), one(5, 3), one(6, 3), one(5, 2)];
    assert!(ids.iter().all(|id| id.is_some()));
    assert_eq!((ids[0], ids[1]), (ids[2], ids[3]));
    assert_ne!(ids[0], ids[1]);
    assert_ne!(ids[2], ids[4]);
}

/// A catalog is read while the primary goes on.
#[test]
fn catalogs_that_are_offered() {
    let tables = vec![plain("t", BIN)];
    let catalog = || Catalog::new(tables.clone());
    let at = |seqno: u64| -> Position { format!("3-7-{seqno}").parse().unwrap() };
    // Groups 1, 2, ...; the one of this number changes a table.
    let run = |upto: u64, change: u64, offered: (u64, u64, u64)| {
        let mut s = Stream::new(tables.clone(), Limits::default());
        let mut learnt = None;
        for n in 1..=upto {
            match n == change {
                true => s.alone("alter table t add x int"),
                false => s.transaction(&[]),
            };
            let (when, before, after) = offered;
            if when == n {
                s.hints.offer(at(before), at(after), catalog());
            }
            if learnt.is_none() && s.hints.has_catalog() {
                learnt = Some(n);
            }
        }
        (learnt, s.hints.has_catalog(), s.hints.has_offer())
    };
    // Read between 5 and 7, while the stream is at 3: learnt at 7.
    assert_eq!(run(9, 0, (3, 5, 7)), (Some(7), true, false));
    assert_eq!(run(6, 0, (3, 5, 7)), (None, false, true));
    // The stream is ahead already.
    assert_eq!(run(9, 0, (8, 5, 7)), (Some(8), true, false));
    // A change that it shows, one that it may show or not, one that comes later.
    assert_eq!(run(9, 5, (3, 5, 7)), (Some(7), true, false));
    assert_eq!(run(9, 6, (3, 5, 7)), (None, false, false));
    assert_eq!(run(9, 7, (3, 5, 7)), (None, false, false));
    assert_eq!(run(9, 6, (8, 5, 7)), (None, false, false));
    assert_eq!(run(9, 8, (3, 5, 7)), (Some(7), false, false));
    assert_eq!(run(9, 8, (9, 5, 7)), (None, false, false));
    // What was before the stream is not known.
    let mut hints = Hints::behind(Limits::default(), at(50));
    hints.offer(at(49), at(50), catalog());
    assert!(!hints.has_catalog() && !hints.has_offer());
    hints.offer(at(50), at(50), catalog());
    assert!(hints.has_catalog());
}

/// What was read before a group may not show what the first event of that group has changed.
#[test]
fn a_catalog_that_is_offered_within_a_group_that_has_changed_a_table_is_not_learnt() {
    let tables = vec![plain("t", BIN)];
    let at = |seqno: u64| -> Position { format!("3-7-{seqno}").parse().unwrap() };
    let mut s = Stream::new(tables.clone(), Limits::default());
    s.alone("alter table t add x int");
    let begin = s.begin(ORDINARY);
    let statement = s.statement("create or replace table t (a int, unique (a))");
    assert!(s.raw(&begin).is_none());
    assert!(s.raw(&statement).is_none());
    s.hints.offer(at(1), at(1), Catalog::new(tables));
    for raw in s.rows(&insert(0, row(1, "a", 1)), None) {
        assert!(s.raw(&raw).is_none());
    }
    let commit = s.made(EventType::XID, &Payload::Xid(1));
    assert!(s.raw(&commit).is_some());
    assert!(!s.hints.has_catalog() && !s.hints.has_offer());
    s.hints
        .offer(at(2), at(2), Catalog::new(vec![plain("t", BIN)]));
    assert!(s.hints.has_catalog());
}

/// An incident stands for what the primary could not write, a DDL perhaps, and has no place of its own: what was
/// read before it, or begun to be read, is not learnt behind it.
#[test]
fn a_catalog_that_is_offered_before_an_incident_is_not_learnt() {
    let tables = vec![plain("t", BIN)];
    let at = |seqno: u64| -> Position { format!("3-7-{seqno}").parse().unwrap() };
    // Whether the tables are known after it; `waits`: they were offered before.
    let learnt = |waits: bool, offers: usize| {
        let mut s = Stream::new(tables.clone(), Limits::default());
        s.transaction(&[]);
        if waits {
            s.hints.offer(at(1), at(2), Catalog::new(tables.clone()));
            assert!(s.hints.has_offer());
        }
        let incident = s.made(EventType::INCIDENT, &Payload::Other(&[1, 0, 0]));
        let hint = s.raw(&incident).expect("a group of its own");
        assert!(hint.barrier.is_some() && !s.hints.has_offer());
        s.transaction(&[]);
        for _ in 0..offers {
            s.hints.offer(at(2), at(2), Catalog::new(tables.clone()));
        }
        s.hints.has_catalog()
    };
    assert!(!learnt(true, 0));
    assert!(learnt(true, 1), "it was begun behind it");
    assert!(!learnt(false, 1), "it may have been begun before");
    assert!(learnt(false, 2));
}

/// A statement in one domain changes what keys mean in all.
#[test]
fn no_batch_goes_on_over_a_new_catalog() {
    let mut before = plain("t", BIN);
    before.unique.truncate(1);
    let mut s = stream(vec![before]);
    let mut one = |change: Change, learn: bool| {
        if learn {
            s.alone("alter table t add unique (u)");
            s.hints.learn(Catalog::new(vec![plain("t", BIN)]));
        }
        let events = s.rows(&change, None);
        let begin = s.begin_in(5);
        s.group(begin, events).commit_id
    };
    one(delete(0, row(8, "x", 1)), false);
    let ids = [
        one(delete(0, row(9, "y", 1)), false),
        one(delete(0, row(1, "a", 1)), false),
        one(insert(0, row(2, "a", 1)), true),
    ];
    assert!(ids[0].is_some() && ids[0] == ids[1]);
    assert_ne!(ids[1], ids[2]);
}

/// The same, of a stream whose places are bytes of files.
#[test]
fn catalogs_that_are_offered_by_place() {
    let tables = vec![plain("t", BIN)];
    let catalog = || Catalog::new(tables.clone());
    // Offered when the stream has ended its n-th group, or stands within the next one; read between
    // the ends of two groups. The group `change` changes a table.
    let run = |upto: usize, change: usize, offered: (usize, bool, usize, usize)| {
        let mut ends = vec![0];
        // The places are known beforehand, as the primary knows them.
        for wet in [false, true] {
            let mut s = Stream::mysql(tables.clone(), Limits::default());
            let mut learnt = None;
            for n in 1..=if wet { upto } else { 9 } {
                let (when, within, before, after) = offered;
                let begin = s.begin(ORDINARY);
                let now = wet && when + 1 == n;
                if now && !within {
                    s.hints
                        .offer(place(ends[before]), place(ends[after]), catalog());
                }
                assert!(s.raw(&begin).is_none());
                if now && within {
                    s.hints
                        .offer(place(ends[before]), place(ends[after]), catalog());
                }
                let text = match n == change {
                    true => "alter table t add x int",
                    false => "BEGIN",
                };
                let raw = s.statement(text);
                let mut hint = s.raw(&raw);
                if n != change {
                    let commit = s.made(EventType::XID, &Payload::Xid(1));
                    hint = s.raw(&commit);
                }
                assert!(hint.is_some());
                if !wet {
                    ends.push(s.at());
                }
                if learnt.is_none() && s.hints.has_catalog() {
                    learnt = Some(n);
                }
            }
            if wet {
                return (learnt, s.hints.has_catalog(), s.hints.has_offer());
            }
        }
        unreachable!()
    };
    for within in [false, true] {
        // Read between 5 and 7, while the stream is at 3: learnt at 7.
        assert_eq!(run(9, 0, (3, within, 5, 7)), (Some(7), true, false));
        assert_eq!(run(6, 0, (3, within, 5, 7)), (None, false, true));
        assert_eq!(run(9, 0, (8, within, 5, 7)), (Some(9), true, false));
        // A change that it shows, one that it may show or not, one that comes later.
        assert_eq!(run(9, 5, (3, within, 5, 7)), (Some(7), true, false));
        assert_eq!(run(9, 6, (3, within, 5, 7)), (None, false, false));
        assert_eq!(run(9, 7, (3, within, 5, 7)), (None, false, false));
        assert_eq!(run(9, 6, (8, within, 5, 7)), (None, false, false));
        assert_eq!(run(9, 8, (3, within, 5, 7)), (Some(7), false, false));
        assert_eq!(run(9, 8, (8, within, 5, 7)), (None, false, false));
    }
    // A place behind the last group: a file ended there, or began.
    let mut s = Stream::mysql(tables.clone(), Limits::default());
    s.transaction(&[]);
    let end = s.at();
    s.hints.offer(place(end), place(end + 40), catalog());
    assert!(!s.hints.has_catalog());
    let raw = s.made(EventType::PREVIOUS_GTIDS, &Payload::Other(&[0; 30]));
    assert!(s.raw(&raw).is_none() && s.at() >= end + 40);
    assert!(s.hints.has_catalog());
    // What was before the stream is not known.
    let mut hints = Hints::behind(Limits::default(), place(50));
    hints.offer(place(49), place(50), catalog());
    assert!(!hints.has_catalog() && !hints.has_offer());
    hints.offer(place(50), place(50), catalog());
    assert!(hints.has_catalog());
}

#[test]
fn groups_of_mysql() {
    let mut s = stream(vec![plain("t", BIN)]);
    let begin = |s: &Stream, sequence_number: i64| {
        let gtid = MySqlGtid {
            flags: 0,
            source: [7; 16],
            number: 1000 + sequence_number as u64,
            clock: Some(LogicalClock {
                last_committed: 0,
                sequence_number,
            }),
            commit: None,
            tail: &[],
            anonymous: false,
        };
        s.made(EventType::MYSQL_GTID, &Payload::MySqlGtid(gtid))
    };
    let one = |s: &mut Stream, sequence: i64, n: i32| {
        let mut events = vec![s.statement("BEGIN")];
        events.extend(s.rows(&insert(0, row(n, &n.to_string(), 1)), None));
        let first = begin(s, sequence);
        let hint = s.group(first, events);
        assert_eq!(hint.barrier, None);
        hint.clock.map(|c| (c.last_committed, c.sequence_number))
    };
    // Numbers are those of the file. The stream of MariaDB before it is another domain.
    s.hints.begin_file();
    assert_eq!(one(&mut s, 1, 1), Some((0, 1)));
    assert_eq!(one(&mut s, 2, 2), Some((1, 2)));
    assert_eq!(one(&mut s, 3, 3), Some((1, 3)));
    assert_eq!(one(&mut s, 4, 2), Some((2, 4)));
    s.hints.begin_file();
    assert_eq!(one(&mut s, 1, 2), Some((0, 1)));
    // Compressed as a whole, a phase of XA, a DDL.
    let first = begin(&s, 2);
    assert!(s.raw(&first).is_none());
    let payload = s.made(EventType::TRANSACTION_PAYLOAD, &Payload::Other(b"zstd"));
    let hint = s.raw(&payload).unwrap();
    let kind = EventType::TRANSACTION_PAYLOAD;
    assert_eq!(hint.barrier, Some(Barrier::UnknownEvent(kind)));
    let clock = hint.clock.unwrap();
    assert_eq!((clock.last_committed, clock.sequence_number), (1, 2));
    let first = begin(&s, 3);
    let xa = s.statement("XA START X'31',X'',1");
    assert_eq!(s.group(first, vec![xa]).barrier, Some(Barrier::Xa));
    let first = begin(&s, 4);
    assert!(s.raw(&first).is_none());
    let ddl = s.statement("create table x(a int)");
    assert_eq!(s.raw(&ddl).unwrap().barrier, Some(Barrier::Standalone));
}

/// Numbers that do not follow each other: the first one has no hint, and those behind it depend on
/// all before.
#[test]
fn numbers_of_mysql_that_do_not_follow() {
    let table = plain("t", BIN);
    let mut s = Stream::mysql(vec![table.clone()], Limits::default());
    s.hints.learn(Catalog::new(vec![table]));
    let one = |s: &mut Stream, sequence: i64, n: i32| {
        let events = s.rows(&insert(0, row(n, &n.to_string(), 1)), None);
        let first = s.begin_anonymous(0, sequence);
        let hint = s.group(first, events);
        assert_eq!(hint.barrier, None);
        hint.clock.map(|c| (c.last_committed, c.sequence_number))
    };
    // The hints begin in the middle of a file.
    assert_eq!(one(&mut s, 57, 1), None);
    assert_eq!(one(&mut s, 58, 2), Some((56, 58)));
    assert_eq!(one(&mut s, 59, 1), Some((57, 59)));
    // One is missing; one comes again; a file begins of which nobody told; none are counted.
    assert_eq!(one(&mut s, 61, 3), None);
    assert_eq!(one(&mut s, 62, 4), Some((60, 62)));
    assert_eq!(one(&mut s, 62, 5), None);
    assert_eq!(one(&mut s, 63, 6), Some((61, 63)));
    assert_eq!(one(&mut s, 1, 3), None);
    assert_eq!(one(&mut s, 2, 4), Some((1, 2)));
    assert_eq!(one(&mut s, 0, 5), None);
    assert_eq!(one(&mut s, -3, 5), None);
    assert_eq!(one(&mut s, 3, 6), None);
    assert_eq!(one(&mut s, 4, 7), Some((2, 4)));
    // A group without a GTID event has no place for a hint, and takes a number.
    let raw = s.statement("BEGIN");
    assert!(s.raw(&raw).is_none());
    let commit = s.made(EventType::XID, &Payload::Xid(1));
    let hint = s.raw(&commit).unwrap();
    assert_eq!((hint.barrier, hint.clock), (Some(Barrier::Nameless), None));
    assert_eq!(one(&mut s, 5, 8), None);
    // The beginning of this one was not seen: its numbers are not those of the one before.
    assert_eq!(one(&mut s, 6, 9), Some((4, 6)));
    let first = s.begin_anonymous(0, 7);
    assert!(s.raw(&first).is_none());
    s.hints.interrupt();
    let commit = s.made(EventType::XID, &Payload::Xid(1));
    assert_eq!(s.raw(&commit).unwrap().clock, None);
}

#[test]
fn groups_that_never_end() {
    let mut s = stream(vec![plain("t", BIN)]);
    let begin = s.begin(ORDINARY);
    assert!(s.raw(&begin).is_none());
    for raw in s.rows(&insert(0, row(1, "a", 1)), None) {
        assert!(s.raw(&raw).is_none());
    }
    // The primary died; what follows has nothing to do with it.
    let hints = [
        s.transaction(&[insert(0, row(1, "a", 1))]),
        s.transaction(&[insert(0, row(2, "b", 1))]),
    ];
    assert_eq!(batches(&hints).len(), 1);
    assert!(hints.iter().all(|h| h.barrier.is_none()));
    // Of a group whose beginning was not seen nothing is known.
    let begin = s.begin(ORDINARY);
    assert!(s.raw(&begin).is_none());
    s.hints.interrupt();
    let commit = s.made(EventType::XID, &Payload::Xid(1));
    assert_eq!(s.raw(&commit).unwrap().barrier, Some(Barrier::Damaged));
}
