//! Rows of small tables made into statements.

use std::sync::Arc;

use dromon_binlog::hints::TableName;
use dromon_binlog::{Ending, Format, Group, GroupName, Gtid};

use super::*;
use crate::ahead::Ahead;
use crate::catalog::{ColumnInfo, TableInfo, Tables};
use crate::unit::{Form, Raw, Transaction, Unit};

fn table(name: &str) -> TableInfo {
    let column = |name: &str, charset: Option<&str>| ColumnInfo {
        name: name.into(),
        unsigned: false,
        generated: false,
        charset: charset.map(str::to_owned),
        padded: None,
        on_update: false,
    };
    TableInfo {
        name: format!("d.{name}"),
        quoted: format!("`d`.`{name}`").into_bytes(),
        column_list: b"`id`,`v`".to_vec(),
        columns: vec![column("id", None), column("v", Some("latin1"))],
        key: vec![0],
        unique: Vec::new(),
        indexes: Vec::new(),
        related: false,
        plain: true,
        transactional: true,
    }
}

/// All kinds of tables, each of an INT and a VARCHAR(9).
fn tables() -> Tables {
    let with = |name: &str, change: fn(&mut TableInfo)| {
        let mut info = table(name);
        change(&mut info);
        (TableName::new("d", name), info)
    };
    Tables::of([
        with("plain", |_| {}),
        with("unique", |t| t.unique = vec![1]),
        with("child", |t| t.related = true),
        with("keyless", |t| {
            t.key.clear();
            t.plain = false;
        }),
        with("text", |t| t.key = vec![1]),
        with("indexed", |t| t.indexes = vec![("v".into(), vec![1])]),
    ])
}

fn event(kind: u8, body: &[u8]) -> Raw {
    let mut raw = vec![0; 19];
    raw[4] = kind;
    raw[9..13].copy_from_slice(&(19 + body.len() as u32).to_le_bytes());
    raw.extend_from_slice(body);
    Raw::new(raw, 0)
}

fn table_map(id: u8, name: &str) -> Raw {
    let mut body = vec![id, 0, 0, 0, 0, 0, 1, 0, 1, b'd', 0, name.len() as u8];
    body.extend_from_slice(name.as_bytes());
    // INT, VARCHAR of 9 bytes, which may be NULL.
    body.extend_from_slice(&[0, 2, 3, 15, 2, 9, 0, 2]);
    event(19, &body)
}

type Image<'a> = (i32, Option<&'a str>);

fn put(body: &mut Vec<u8>, (id, text): Image<'_>) {
    body.push(if text.is_none() { 2 } else { 0 });
    body.extend_from_slice(&id.to_le_bytes());
    if let Some(text) = text {
        body.push(text.len() as u8);
        body.extend_from_slice(text.as_bytes());
    }
}

/// A statement: rows of one table.
fn rows(name: &str, all: &[(Option<Image<'_>>, Option<Image<'_>>)]) -> Vec<Raw> {
    let id = name.len() as u8;
    let mut out = vec![table_map(id, name)];
    for (n, (before, after)) in all.iter().enumerate() {
        let end = u8::from(n + 1 == all.len());
        let mut body = vec![id, 0, 0, 0, 0, 0, end, 0, 2, 3];
        let kind = match (before, after) {
            (None, _) => 23,
            (Some(_), Some(_)) => {
                body.push(3);
                24
            }
            (Some(_), None) => 25,
        };
        for image in before.iter().chain(after) {
            put(&mut body, *image);
        }
        out.push(event(kind, &body));
    }
    out
}

fn unit(statements: Vec<Vec<Raw>>) -> Unit {
    let form = Arc::new(Form {
        format: Format::unknown(),
        raw: Vec::new(),
    });
    let transactions = statements.into_iter().enumerate().map(|(n, events)| {
        let gtid = Gtid {
            domain: 0,
            server: 1,
            seqno: n as u64 + 1,
        };
        Transaction {
            gtid,
            group: Group {
                name: GroupName::MariaDb(gtid),
                flags: 0,
                commit_id: None,
                timestamp: 0,
                begin: 0,
                end: 0,
                events: events.len() as u64,
            },
            ending: Ending::Xid,
            events,
            form: Arc::clone(&form),
        }
    });
    Unit {
        transactions: transactions.collect(),
        before: String::new(),
        position: "0-1-9".into(),
        ahead: Ahead::default(),
        done: false,
        tables: Arc::new(tables()),
        alone: None,
        keys: Arc::default(),
        bytes: 0,
    }
}

/// Each statement with the number of rows that it must change.
fn compiled(statements: Vec<Vec<Raw>>, style: Style, filter: &Filter) -> Vec<String> {
    let collations = Collations::default();
    let options = Options {
        style,
        filter,
        whole_rows: false,
        packet_max: 1 << 20,
        collations: &collations,
    };
    let ops = compile(&unit(statements), &options).expect("it can be compiled");
    let mut out = Vec::new();
    for op in ops {
        match op {
            Op::Rows { text, expects } => {
                let text = String::from_utf8_lossy(&text).into_owned();
                let parts: Vec<&str> = text.split(';').collect();
                assert_eq!(parts.len(), expects.len());
                for (part, expect) in parts.iter().zip(&expects) {
                    let rows = expect.rows.map_or("any".into(), |n| n.to_string());
                    out.push(format!("{part} -- {rows}"));
                }
            }
            Op::Binlog { note, .. } => out.push(format!("BINLOG {} {}", note.table, note.gtid)),
            Op::Statement { .. } => out.push("statement".into()),
        }
    }
    out
}

fn folded(statements: Vec<Vec<Raw>>) -> Vec<String> {
    compiled(statements, Style::Folded, &Filter::default())
}

#[test]
fn many_rows_in_few_statements() {
    let (a, b) = (Some("a"), Some("b"));
    let got = folded(vec![
        rows("plain", &[(None, Some((1, a))), (None, Some((2, None)))]),
        rows("plain", &[(Some((7, a)), Some((7, b)))]),
        rows("plain", &[(Some((8, a)), Some((8, None)))]),
        rows("plain", &[(Some((2, None)), Some((2, Some("it's"))))]),
        rows("plain", &[(Some((9, b)), None), (Some((10, b)), None)]),
        rows("plain", &[(Some((1, a)), None)]),
    ]);
    assert_eq!(
        got,
        [
            "DELETE FROM `d`.`plain` WHERE `id` IN(9,10) -- 2",
            "INSERT INTO `d`.`plain`(`id`,`v`)VALUES(7,'b'),(8,NULL)ON DUPLICATE KEY UPDATE `v`=VALUES(`v`) -- 4",
            r"INSERT INTO `d`.`plain`(`id`,`v`)VALUES(2,'it\'s') -- 1",
        ]
    );
}

#[test]
fn row_by_row() {
    let a = Some("a");
    let statements = || {
        vec![
            rows("plain", &[(None, Some((1, a))), (None, Some((2, a)))]),
            rows("plain", &[(Some((1, a)), Some((1, None)))]),
            rows("plain", &[(Some((2, a)), None)]),
        ]
    };
    assert_eq!(
        compiled(statements(), Style::Single, &Filter::default()),
        [
            "INSERT INTO `d`.`plain`(`id`,`v`)VALUES(1,'a') -- 1",
            "INSERT INTO `d`.`plain`(`id`,`v`)VALUES(2,'a') -- 1",
            "UPDATE `d`.`plain` SET `v`=NULL WHERE `id`=1 -- 1",
            "DELETE FROM `d`.`plain` WHERE `id`=2 -- 1",
        ]
    );
    let without = Filter {
        only: Vec::new(),
        without: vec!["d.plain".into()],
    };
    assert!(compiled(statements(), Style::Single, &without).is_empty());
}

/// A unique value that changes hands, and foreign keys: the source's order.
#[test]
fn order_where_it_counts() {
    let (a, b) = (Some("a"), Some("b"));
    let got = folded(vec![
        rows("child", &[(None, Some((1, a)))]),
        rows("plain", &[(None, Some((1, a)))]),
        rows("child", &[(Some((1, a)), None)]),
        rows("unique", &[(Some((1, a)), Some((1, None)))]),
        rows("unique", &[(Some((2, b)), Some((2, a)))]),
    ]);
    assert_eq!(
        got,
        [
            "INSERT INTO `d`.`child`(`id`,`v`)VALUES(1,'a') -- 1",
            "DELETE FROM `d`.`child` WHERE `id`=1 -- 1",
            "UPDATE `d`.`unique` SET `v`=NULL WHERE `id`=1 -- 1",
            "UPDATE `d`.`unique` SET `v`='a' WHERE `id`=2 -- 1",
            "INSERT INTO `d`.`plain`(`id`,`v`)VALUES(1,'a') -- 1",
        ]
    );
    // None changes hands: deletes go first, and free what inserts take.
    let got = folded(vec![
        rows("unique", &[(Some((1, a)), None)]),
        rows("unique", &[(None, Some((2, a)))]),
    ]);
    assert_eq!(
        got,
        [
            "DELETE FROM `d`.`unique` WHERE `id` IN(1) -- 1",
            "INSERT INTO `d`.`unique`(`id`,`v`)VALUES(2,'a') -- 1",
        ]
    );
}

#[test]
fn keys_of_text_have_their_character_set() {
    let got = folded(vec![rows("text", &[(Some((1, Some("k"))), None)])]);
    assert_eq!(
        got,
        ["DELETE FROM `d`.`text` WHERE `v` IN(_latin1'k') -- 1"]
    );
}

/// What statements cannot say goes to the server's own applier; its tables stay in order.
#[test]
fn tables_without_keys() {
    let a = Some("a");
    let mut both = rows("plain", &[(None, Some((1, a)))]);
    // One statement of two tables.
    both.splice(1..1, [table_map(7, "keyless")]);
    let insert = both.pop().expect("an event");
    let mut first = insert.bytes().to_vec();
    first[19 + 6] = 0;
    both.push(Raw::new(first, 0));
    both.extend(rows("keyless", &[(None, Some((5, a)))]).pop());
    let got = folded(vec![
        rows("keyless", &[(None, Some((1, a)))]),
        both,
        rows("plain", &[(Some((1, a)), None)]),
    ]);
    assert_eq!(
        got,
        [
            "BINLOG d.keyless 0-1-1",
            "BINLOG d.plain, d.keyless 0-1-2",
            "DELETE FROM `d`.`plain` WHERE `id`=1 -- 1",
        ]
    );
}

#[test]
fn what_is_read_ahead() {
    let (a, b) = (Some("a"), Some("b"));
    let unit = unit(vec![
        rows(
            "indexed",
            &[(Some((1, a)), Some((1, b))), (None, Some((2, None)))],
        ),
        rows("indexed", &[(Some((2, None)), Some((2, None)))]),
        rows("plain", &[(Some((7, a)), None)]),
        rows("keyless", &[(None, Some((5, a)))]),
    ]);
    let (collations, filter) = (Collations::default(), Filter::default());
    let options = Options {
        style: Style::Folded,
        filter: &filter,
        whole_rows: false,
        packet_max: 1 << 20,
        collations: &collations,
    };
    let got: Vec<(String, usize)> = reads(&unit, &options)
        .into_iter()
        .map(|(text, keys)| (String::from_utf8_lossy(&text).into_owned(), keys))
        .collect();
    let wanted = [
        (
            "SELECT COUNT(*) FROM `d`.`indexed` FORCE INDEX(PRIMARY) WHERE (`id`=1) OR (`id`=2)",
            2,
        ),
        // Where the entry is and where it will be; not of a row whose entry stays.
        (
            "SELECT COUNT(*) FROM `d`.`indexed` FORCE INDEX(`v`) WHERE (`v`<=>NULL AND `id`=2) OR \
             (`v`<=>_latin1'a' AND `id`=1) OR (`v`<=>_latin1'b' AND `id`=1)",
            3,
        ),
        (
            "SELECT COUNT(*) FROM `d`.`plain` FORCE INDEX(PRIMARY) WHERE (`id`=7)",
            1,
        ),
    ];
    assert_eq!(got, wanted.map(|(text, keys)| (text.to_owned(), keys)));
    // Many keys are several statements.
    let many: Vec<_> = (0..40).map(|n| (None, Some((n, a)))).collect();
    let keys: Vec<usize> = reads(&self::unit(vec![rows("plain", &many)]), &options)
        .iter()
        .map(|r| r.1)
        .collect();
    assert_eq!(keys, [16, 16, 8]);
}

#[test]
fn base64() {
    let text = binlog_statement([&b"M"[..], b"Ma", b"Man", b"Many"]);
    assert_eq!(text, b"BINLOG 'TQ==\nTWE=\nTWFu\nTWFueQ==\n'");
}

#[test]
fn filters() {
    let filter = Filter {
        only: vec!["a".into(), "b.t".into()],
        without: vec!["a.no".into()],
    };
    assert!(filter.wants(b"a", b"x") && filter.wants(b"b", b"t"));
    assert!(!filter.wants(b"a", b"no") && !filter.wants(b"b", b"x") && !filter.wants(b"c", b"t"));
    let wants =
        |text: &str, database: &str| filter.wants_statement(text.as_bytes(), database.as_bytes());
    // Of some kinds it is known what they are about.
    for (text, database, wanted) in [
        ("INSERT INTO x VALUES (1)", "a", true),
        ("INSERT INTO x VALUES (1)", "b", true),
        ("INSERT INTO a.x VALUES (1)", "c", false),
        ("ALTER TABLE no ADD c INT", "a", false),
        ("ALTER TABLE a.x ADD c INT", "c", true),
        ("DROP TABLE c.x, b.x", "a", false),
        ("DROP TABLE x, b.t", "a", true),
        ("DROP DATABASE c", "a", false),
        ("CREATE DATABASE b", "c", true),
    ] {
        assert_eq!(wants(text, database), Ok(wanted), "{text} in {database}");
    }
    let why = wants("RENAME TABLE x TO no", "a").expect_err("one of each");
    assert!(
        why.contains("a.x, which is applied, and about a.no"),
        "{why}"
    );
    assert_eq!(
        Filter::default().wants_statement(b"DROP TABLE c.x", b"c"),
        Ok(true)
    );
}
