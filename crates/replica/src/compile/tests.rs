//! Rows of small tables made into statements.

pub(crate) mod binlog;
mod counter;
mod last;
mod mending;
mod numbers;
mod places;
mod sequences;
mod types;

use std::sync::Arc;

use dromon_binlog::hints::TableName;
use dromon_binlog::{
    ColumnType, Ending, EventType, Format, Group, GroupName, Gtid, Header, Payload, compress,
    encode_event, gtid_flags,
};

use super::*;
use crate::ahead::Ahead;
use crate::catalog::{ColumnInfo, TableInfo, Tables};
use crate::unit::{Form, Made, Transaction, Unit};

/// An event.
pub(crate) type Raw = Vec<u8>;

pub(crate) fn table(name: &str) -> TableInfo {
    let column = |name: &str, charset: Option<&str>| ColumnInfo {
        name: name.into(),
        unsigned: false,
        generated: false,
        charset: charset.map(str::to_owned),
        collation: charset.map(|charset| format!("{charset}_bin")),
        short_year: false,
        digits: None,
        padded: None,
        on_update: false,
        auto_increment: false,
        stored: match charset {
            None => Some(ColumnType::Int { bytes: 4 }),
            Some(_) => None,
        },
    };
    TableInfo {
        name: format!("d.{name}"),
        quoted: format!("`d`.`{name}`").into_bytes(),
        column_list: b"`id`,`v`".to_vec(),
        columns: vec![column("id", None), column("v", Some("latin1"))],
        key: vec![0],
        unique: Vec::new(),
        indexes: Vec::new(),
        keys: vec![("PRIMARY".into(), vec![0])],
        related: false,
        plain: true,
        local: false,
        transactional: true,
        care: crate::catalog::Care::default(),
    }
}

/// All kinds of tables, each of an INT and a VARCHAR(9).
pub(crate) fn tables() -> Tables {
    let with = |name: &str, change: fn(&mut TableInfo)| {
        let mut info = table(name);
        change(&mut info);
        (TableName::new("d", name), info)
    };
    Tables::of([
        with("plain", |_| {}),
        with("unique", |t| t.unique = vec![1]),
        // Unique by a column that no statement of a test changes.
        with("also", |t| t.unique = vec![0]),
        with("child", |t| t.related = true),
        with("keyless", |t| {
            t.key.clear();
            t.plain = false;
        }),
        with("text", |t| t.key = vec![1]),
        with("indexed", |t| t.indexes = vec![("v".into(), vec![1])]),
        with("counted", |t| t.columns[0].auto_increment = true),
    ])
}

pub(crate) fn event(kind: u8, body: &[u8]) -> Raw {
    let mut raw = vec![0; 19];
    raw[4] = kind;
    raw[9..13].copy_from_slice(&(19 + body.len() as u32).to_le_bytes());
    raw.extend_from_slice(body);
    raw
}

/// The format description of a server that was started at this time.
pub(crate) fn started(created: u32) -> Raw {
    let format = Format {
        created,
        ..Format::unknown()
    };
    let header = Header {
        timestamp: created,
        kind: EventType::FORMAT_DESCRIPTION,
        server_id: 1,
        len: 0,
        end_pos: 4711,
        flags: 0,
    };
    encode_event(&header, &Payload::Format(Box::new(format.clone())), &format)
}

fn table_map(id: u8, name: &str) -> Raw {
    let mut body = vec![id, 0, 0, 0, 0, 0, 1, 0, 1, b'd', 0, name.len() as u8];
    body.extend_from_slice(name.as_bytes());
    // INT, VARCHAR of 9 bytes, which may be NULL.
    body.extend_from_slice(&[0, 2, 3, 15, 2, 9, 0, 2]);
    event(19, &body)
}

pub(crate) type Image<'a> = (i32, Option<&'a str>);

fn put(body: &mut Vec<u8>, (id, text): Image<'_>) {
    body.push(if text.is_none() { 2 } else { 0 });
    body.extend_from_slice(&id.to_le_bytes());
    if let Some(text) = text {
        body.push(text.len() as u8);
        body.extend_from_slice(text.as_bytes());
    }
}

/// A statement as a text.
pub(crate) fn query(text: &str, database: &str) -> Raw {
    query_with(text, database, &[])
}

/// The same, with what it depends on.
pub(crate) fn query_with(text: &str, database: &str, status: &[u8]) -> Raw {
    let mut body = vec![0; 13];
    body[8] = database.len() as u8;
    body[11] = status.len() as u8;
    body.extend_from_slice(status);
    body.extend_from_slice(database.as_bytes());
    body.push(0);
    body.extend_from_slice(text.as_bytes());
    event(2, &body)
}

/// The same statement of [`query`], of a database of one letter, compressed.
pub(crate) fn packed(query: &[u8]) -> Raw {
    let (head, text) = query.split_at(34);
    event(165, &[&head[19..], &compress(text)].concat())
}

/// The end of a transaction.
pub(crate) fn xid() -> Raw {
    event(16, &[1, 0, 0, 0, 0, 0, 0, 0])
}

/// A statement: rows of one table.
pub(crate) fn rows(name: &str, all: &[(Option<Image<'_>>, Option<Image<'_>>)]) -> Vec<Raw> {
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

pub(crate) fn unit(statements: Vec<Vec<Raw>>) -> Unit {
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
            events: events.into_iter().collect(),
            form: Arc::clone(&form),
            own: None,
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
        last: Vec::new(),
        bytes: 0,
        left_out: 0,
        keyless: 0,
        made: Made::default(),
    }
}

/// Each statement with the number of rows that it must change.
fn compiled(statements: Vec<Vec<Raw>>, style: Style, filter: &Filter) -> Vec<String> {
    let shown = shown(steps(statements, style, filter, Compare::Key));
    shown.into_iter().map(|(text, _)| text).collect()
}

/// Steps of a unit.
fn steps(statements: Vec<Vec<Raw>>, style: Style, filter: &Filter, compare: Compare) -> Vec<Op> {
    steps_of(&unit(statements), style, filter, compare)
}

fn options_of<'a>(
    style: Style,
    compare: Compare,
    filter: &'a Filter,
    collations: &'a Collations,
) -> Options<'a> {
    Options {
        style,
        filter,
        compare,
        packet_max: 1 << 20,
        longest: 16 << 20,
        collations,
        whole: false,
        events: true,
        computed: false,
    }
}

fn steps_of(unit: &Unit, style: Style, filter: &Filter, compare: Compare) -> Vec<Op> {
    let collations = Collations::default();
    let options = options_of(style, compare, filter, &collations);
    compile(unit, &options).expect("it can be compiled")
}

/// Each statement, and what is asked if it does not do what it must.
fn shown(ops: Vec<Op>) -> Vec<(String, Option<String>)> {
    let mut out = Vec::new();
    for op in ops {
        match op {
            Op::Rows { text, expects } => {
                let text = String::from_utf8_lossy(&text).into_owned();
                let parts: Vec<&str> = text.split(';').collect();
                assert_eq!(parts.len(), expects.len());
                for (part, expect) in parts.iter().zip(&expects) {
                    let rows = expect.rows.map_or("any".into(), |n| n.to_string());
                    let look = expect.look.as_ref();
                    let look = look.map(|look| String::from_utf8_lossy(look).into_owned());
                    out.push((format!("{part} -- {rows}"), look));
                }
            }
            Op::Binlog { note, .. } => {
                out.push((format!("BINLOG {} {}", note.table, note.gtid), None));
            }
            Op::Statement { .. } => out.push(("statement".into(), None)),
            Op::Last => out.push(("last".into(), None)),
        }
    }
    out
}

/// The same, what changes compared.
pub(crate) fn changed(statements: Vec<Vec<Raw>>, style: Style) -> Vec<(String, Option<String>)> {
    let all = Filter::default();
    shown(steps(statements, style, &all, Compare::Changed))
}

pub(crate) fn folded(statements: Vec<Vec<Raw>>) -> Vec<String> {
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
    let without = Filter::new(Vec::new(), vec!["d.plain".into()]);
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
    let mut first = insert;
    first[19 + 6] = 0;
    both.push(first);
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

/// Rows behind a statement of their transaction: the table may be another one than it was.
#[test]
fn rows_of_a_table_that_is_replaced() {
    let create = "CREATE OR REPLACE TABLE plain (v VARCHAR(9), id INT PRIMARY KEY) AS SELECT 1";
    let mut replaced = vec![query(create, "d")];
    replaced.extend(rows("plain", &[(None, Some((1, Some("a"))))]));
    let next = rows("plain", &[(Some((1, Some("a"))), None)]);
    assert_eq!(
        folded(vec![replaced, next]),
        [
            "statement",
            "BINLOG d.plain 0-1-1",
            "DELETE FROM `d`.`plain` WHERE `id`=1 -- 1",
        ]
    );
}

/// Rows of a table whose types change within a unit are read by their own.
#[test]
fn types_that_change() {
    let a = Some("a");
    let mut other = rows("plain", &[(Some((1, a)), None)]);
    let mut map = other[0].clone();
    // The length of the VARCHAR.
    let at = map.len() - 3;
    assert_eq!(map[at], 9);
    map[at] = 10;
    other[0] = map;
    let insert = || rows("plain", &[(None, Some((1, a)))]);
    assert_eq!(folded(vec![insert(), other]).len(), 2);
    let same = rows("plain", &[(Some((1, a)), None)]);
    assert!(folded(vec![insert(), same]).is_empty());
}

/// Where rows are compared as a whole, that is byte by byte.
#[test]
fn rows_compared_as_a_whole() {
    let (a, b) = (Some("a"), Some("b"));
    let changes = [(Some((1, a)), Some((1, b))), (Some((2, None)), None)];
    let changes = vec![rows("plain", &changes)];
    let ops = steps(changes, Style::Folded, &Filter::default(), Compare::Row);
    let [Op::Rows { text, .. }] = &ops[..] else {
        panic!("{ops:?}");
    };
    assert_eq!(
        String::from_utf8_lossy(text),
        "UPDATE `d`.`plain` SET `v`='b' WHERE `id`=1 AND BINARY `v`<=>'a';\
         DELETE FROM `d`.`plain` WHERE `id`=2 AND BINARY `v`<=>NULL"
    );
}

/// A place to go back to is nothing if nobody goes back there.
#[test]
fn savepoints() {
    let a = Some("a");
    let with = |texts: &[&str], made: fn(&[u8]) -> Raw| {
        let texts = texts.iter().map(|text| made(&query(text, "d")));
        let mut events: Vec<Raw> = texts.collect();
        events.extend(rows("plain", &[(None, Some((1, a)))]));
        folded(vec![events, rows("plain", &[(Some((1, a)), None)])])
    };
    let insert = "BINLOG d.plain 0-1-1";
    for made in [<[u8]>::to_vec, packed] {
        assert!(with(&["SAVEPOINT x"], made).is_empty());
        let back = with(&["SAVEPOINT x", "ROLLBACK TO x"], made);
        assert_eq!(back[..3], ["statement", "statement", insert]);
    }
}

/// What an event does comes as changes: it must not run here, too.
#[test]
fn events_are_made_not_to_run() {
    let text = "CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO DELETE FROM plain";
    let (collations, filter) = (Collations::default(), Filter::default());
    let options = Options {
        style: Style::Single,
        filter: &filter,
        compare: Compare::Key,
        packet_max: 1 << 20,
        longest: 16 << 20,
        collations: &collations,
        whole: false,
        events: true,
        computed: false,
    };
    let ops = compile(&unit(vec![vec![query(text, "d")]]), &options).expect("it can be compiled");
    let [Op::Statement { text, .. }] = &ops[..] else {
        panic!("{ops:?}");
    };
    let wanted = "CREATE EVENT e ON SCHEDULE EVERY 1 DAY DISABLE ON SLAVE DO DELETE FROM plain";
    assert_eq!(String::from_utf8_lossy(text), wanted);
}

/// Whoever locked himself out on the source did not lock out the replica.
#[test]
fn the_current_user_is_the_sources() {
    let status = b"\x0b\x03app\x09localhost";
    let text = "ALTER USER CURRENT_USER() ACCOUNT LOCK";
    let statements = vec![vec![query_with(text, "d", status)]];
    let ops = steps(statements, Style::Folded, &Filter::default(), Compare::Key);
    let [Op::Statement { text, .. }] = &ops[..] else {
        panic!("{ops:?}");
    };
    let wanted = "ALTER USER `app`@`localhost` ACCOUNT LOCK";
    assert_eq!(String::from_utf8_lossy(text), wanted);
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
    let options = options_of(Style::Folded, Compare::Key, &filter, &collations);
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
    assert_eq!(keys, [4; 10]);
}

/// REPLACE: a row is deleted and inserted, and takes another row's unique key.
#[test]
fn rows_that_were_replaced() {
    let (a, b) = (Some("a"), Some("b"));
    let all = folded(vec![
        rows("unique", &[(Some((1, a)), None), (Some((2, b)), None)]),
        rows("unique", &[(None, Some((1, b))), (None, Some((2, a)))]),
        rows(
            "unique",
            &[(Some((3, None)), None), (None, Some((3, None)))],
        ),
    ]);
    assert_eq!(
        all,
        [
            "DELETE FROM `d`.`unique` WHERE `id` IN(1,2) -- 2",
            "INSERT INTO `d`.`unique`(`id`,`v`)VALUES(1,'b'),(2,'a') -- 2",
        ]
    );
}

#[test]
fn tables_by_name() {
    let row = |name| rows(name, &[(None, Some((1, None)))]);
    let unit = unit(vec![row("plain"), row("indexed"), row("plain")]);
    let names: Vec<String> = unit.table_names().into_iter().collect();
    assert_eq!(names, ["d.indexed", "d.plain"]);
}

/// Where upper and lower case of names are the same.
#[test]
fn filters_of_any_case() {
    let exact = Filter::new(vec!["Shop".into(), "b.TÄ".into()], vec!["shop.NO".into()]);
    let any = exact.of_any_case();
    for (database, table, wanted) in [
        ("shop", "x", true),
        ("SHOP", "X", true),
        ("Shop", "no", false),
        ("B", "tä", true),
        ("b", "x", false),
    ] {
        let is = any.wants(database.as_bytes(), table.as_bytes());
        assert_eq!(is, wanted, "{database}.{table}");
    }
    assert!(!exact.wants(b"shop", b"x") && exact.wants(b"Shop", b"x"));
    let wants = |filter: &Filter, text: &str| filter.wants_statement(text.as_bytes(), b"c");
    for (text, wanted) in [
        ("ALTER TABLE SHOP.x ADD c INT", true),
        ("DROP TABLE shop.No", false),
        ("CREATE DATABASE sHoP", true),
        ("DROP DATABASE B", true),
    ] {
        assert_eq!(wants(&any, text), Ok(wanted), "{text}");
    }
    assert_eq!(wants(&exact, "CREATE DATABASE sHoP"), Ok(false));
    let within = any.wants_statement(b"INSERT INTO x VALUES (1)", b"SHOP");
    assert_eq!(within, Ok(true));
}

#[test]
fn filters() {
    let filter = Filter::new(vec!["a".into(), "b.t".into()], vec!["a.no".into()]);
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
        ("ALTER DATABASE CHARACTER SET utf8mb4", "a", true),
        ("ALTER DATABASE DEFAULT CHARACTER SET utf8mb4", "c", false),
    ] {
        assert_eq!(wants(text, database), Ok(wanted), "{text} in {database}");
    }
    // What follows the names need not be understood.
    for (text, database, wanted) in [
        ("ALTER TABLE a.x ADD n INT COMMENT 'ä'", "c", true),
        ("ALTER TABLE no ADD n INT COMMENT 'ä'", "a", false),
        (r"ALTER TABLE a.x ADD n INT COMMENT 'it\'s'", "c", true),
        (
            "ALTER TABLE no ADD `ä` INT /*!50000 NOT NULL */",
            "a",
            false,
        ),
        (
            "CREATE TABLE a.x (`ä` INT) /*!50100 ENGINE=Aria */",
            "c",
            true,
        ),
        ("/*!40000 ALTER TABLE `no` DISABLE KEYS */", "a", false),
        (
            "RENAME TABLE a.x NOWAIT TO a.y, a.z WAIT 3 TO a.u",
            "c",
            true,
        ),
        // What a database is about is its event's default one.
        ("CREATE DATABASE /*!32312 IF NOT EXISTS*/ `a`", "a", true),
        ("ALTER DATABASE `ä` COMMENT 'x'", "c", false),
        ("CREATE VIEW v AS SELECT 'TABLE' /*!50000 , 2 */", "a", true),
    ] {
        assert_eq!(wants(text, database), Ok(wanted), "{text} in {database}");
    }
    for text in [
        r"ALTER TABLE a.x COMMENT '\', RENAME TO c.x, COMMENT ''",
        "ALTER TABLE a.x /*!50000 RENAME */ TO c.x",
        "ALTER TABLE a.x EXCHANGE PARTITION p WITH /*!50000 TABLE c.x */",
        "DROP TABLE a.x /*!50000 , c.x */",
        "TRUNCATE a /*!50000 .x */",
        "CREATE /*!32302 TEMPORARY */ TABLE a.x (a INT)",
        "CREATE TABLE `ä` (a INT)",
        "RENAME TABLE a.x TO ä",
    ] {
        for database in ["a", "c"] {
            let why = wants(text, database).expect_err(text);
            assert!(why.contains("cannot be seen which tables"), "{text}: {why}");
        }
        let all = Filter::default().wants_statement(text.as_bytes(), b"c");
        assert_eq!(all, Ok(true), "{text}");
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
    // What a replica upstream does with its own tables, wherever it says so from.
    let none = Filter::default();
    for (text, wanted) in [
        ("DROP DATABASE dromon_replica", false),
        (
            "CREATE TABLE IF NOT EXISTS Dromon_Replica.position (a INT)",
            false,
        ),
        ("ALTER TABLE `dromon_replica`.`position` ADD b INT", false),
        (
            "CREATE TABLE a.t (s VARCHAR(20) DEFAULT 'dromon_replica')",
            true,
        ),
        ("INSERT INTO a.t VALUES ('dromon_replica')", true),
    ] {
        assert_eq!(
            none.wants_statement(text.as_bytes(), b"a"),
            Ok(wanted),
            "{text}"
        );
    }
    let both = none.wants_statement(b"DROP TABLE a.t, dromon_replica.position", b"a");
    assert!(both.expect_err("one of each").contains("a.t"));
    assert!(!none.wants(b"DROMON_REPLICA", b"position"));
}

/// The status of a statement: its sql_mode.
fn mode(bits: u64) -> Vec<u8> {
    [&[1][..], &bits.to_le_bytes()].concat()
}

/// LOAD DATA of a file, as the source writes it.
pub(crate) fn load(file: u8, text: &str, database: &str, status: &[u8], error: u8) -> Raw {
    let begin = text.find(" INFILE").expect("it names a file");
    let end = text.find("INTO").expect("a table follows") + 4;
    let duplicates = match &text[begin..end] {
        name if name.contains("IGNORE") => 1,
        name if name.contains("REPLACE") => 2,
        _ => 0,
    };
    let mut body = vec![0; 26];
    body[8] = database.len() as u8;
    body[9] = error;
    body[11] = status.len() as u8;
    body[13] = file;
    body[17] = begin as u8;
    body[21] = end as u8;
    body[25] = duplicates;
    body.extend_from_slice(status);
    body.extend_from_slice(database.as_bytes());
    body.push(0);
    body.extend_from_slice(text.as_bytes());
    event(18, &body)
}

/// A block of a file, which may be its first one.
pub(crate) fn block(first: bool, file: u8, bytes: &str) -> Raw {
    let kind = if first { 17 } else { 9 };
    event(kind, &[&[file, 0, 0, 0], bytes.as_bytes()].concat())
}

const LOADS: &str = r"LOAD DATA INFILE '/a.txt' INTO TABLE `plain` FIELDS TERMINATED BY '\t' LINES TERMINATED BY '\n'";

/// Each LOAD DATA, with its file and whether it must be whole and strict.
fn loads(events: Vec<Raw>, flags: u8, filter: &Filter) -> Result<Vec<String>, String> {
    let collations = Collations::default();
    let options = Options {
        style: Style::Folded,
        filter,
        compare: Compare::Key,
        packet_max: 1 << 20,
        longest: 16 << 20,
        collations: &collations,
        whole: false,
        events: true,
        computed: false,
    };
    let mut unit = unit(vec![events]);
    unit.transactions[0].group.flags = flags;
    let ops = compile(&unit, &options).map_err(|error| error.to_string())?;
    let shown = ops.into_iter().map(|op| match op {
        Op::Statement {
            text,
            load: Some(load),
            setup,
            ..
        } => {
            let told = String::from_utf8_lossy(&setup).contains("lc_messages");
            assert_eq!(told, load.whole);
            let (text, file) = (
                String::from_utf8_lossy(&text),
                String::from_utf8_lossy(&load.file),
            );
            let place = text.find(" FIELDS").unwrap_or(text.len());
            format!(
                "{} <- {file:?} {} {}",
                &text[..place],
                load.whole,
                load.strict
            )
        }
        Op::Statement { .. } => "statement".into(),
        other => panic!("{other:?}"),
    });
    Ok(shown.collect())
}

#[test]
fn files_are_loaded() {
    const TRANSACTIONAL: u8 = gtid_flags::TRANSACTIONAL;
    let all = Filter::default();
    let (strict, trans) = (mode(1 << 22), mode(1 << 21));
    // Blocks of two files; a third one is not needed.
    let replace = LOADS.replace("INTO", "REPLACE INTO");
    let events = || {
        vec![
            block(true, 1, "a\n"),
            block(true, 2, "x\n"),
            block(false, 1, "b\n"),
            load(1, LOADS, "d", &strict, 0),
            block(true, 3, "y\n"),
            event(11, &[3, 0, 0, 0]),
            query("INSERT INTO plain VALUES (1, 'a')", "d"),
            load(2, &replace, "d", &strict, 0),
            xid(),
        ]
    };
    let wanted = [
        r#"LOAD DATA LOCAL INFILE 'dromon' INTO TABLE `plain` <- "a\nb\n" true true"#,
        "statement",
        r#"LOAD DATA LOCAL INFILE 'dromon' REPLACE INTO TABLE `plain` <- "x\n" false false"#,
    ];
    assert_eq!(loads(events(), TRANSACTIONAL, &all).expect("known"), wanted);
    // What tables without transactions are not strict in.
    let one = |status: &[u8], flags| {
        let events = vec![block(true, 1, ""), load(1, LOADS, "d", status, 0)];
        let one = loads(events, flags, &all).expect("it is known").pop();
        let one = one.expect("a statement");
        (one.contains("true true"), one.contains("true false"))
    };
    assert_eq!(one(&trans, TRANSACTIONAL), (true, false));
    assert_eq!(one(&trans, 0), (false, true));
    assert_eq!(one(&strict, 0), (true, false));
    assert_eq!(one(&[], TRANSACTIONAL), (false, true));
    // The table counts, not the default database, and what comes before a statement ends with it.
    let without = Filter::new(Vec::new(), vec!["d.plain".into()]);
    let elsewhere = load(2, &LOADS.replace("`plain`", "`x`.`t`"), "d", &[], 0);
    let variable = event(5, &[2, 9, 0, 0, 0, 0, 0, 0, 0]);
    let blocks = [block(true, 1, "a"), block(true, 2, "b")];
    let mut events = blocks.to_vec();
    events.extend([variable, load(1, LOADS, "d", &[], 0), elsewhere]);
    let wanted = [r#"LOAD DATA LOCAL INFILE 'dromon' INTO TABLE `x`.`t` <- "b" true false"#];
    assert_eq!(loads(events, 0, &without).expect("it is known"), wanted);
    // It is a statement: a savepoint before it may be one that is gone back to.
    let events = vec![
        query("SAVEPOINT s", "d"),
        block(true, 1, "a"),
        load(1, LOADS, "d", &[], 0),
    ];
    assert_eq!(loads(events, 0, &all).expect("it is known").len(), 2);
}

#[test]
fn files_that_cannot_be_loaded() {
    let said = |events: Vec<Raw>| {
        let error = loads(events, 0, &Filter::default()).expect_err("it cannot be applied");
        assert!(error.starts_with("0-1-1"), "{error}");
        error
    };
    let of = |text: &str, status: &[u8], error| {
        said(vec![
            block(true, 1, "a\n"),
            load(1, text, "d", status, error),
        ])
    };
    let why = said(vec![load(7, LOADS, "d", &[], 0)]);
    assert!(why.contains("of file 7, no block"), "{why}");
    let twice = || load(1, LOADS, "d", &[], 0);
    let why = said(vec![block(true, 1, ""), twice(), twice()]);
    assert!(why.contains("of file 1, no block"), "{why}");
    let deleted = event(11, &[1, 0, 0, 0]);
    let why = said(vec![block(true, 1, ""), deleted, twice()]);
    assert!(why.contains("of file 1, no block"), "{why}");
    let why = said(vec![block(false, 1, "")]);
    assert!(why.contains("without the beginning"), "{why}");
    let why = of(LOADS, &[], 38);
    assert!(why.contains("with error 38 on the source"), "{why}");
    let why = of(LOADS, &mode(1 << 20), 0);
    assert!(why.contains("NO_BACKSLASH_ESCAPES"), "{why}");
    let why = of(&LOADS.replace(r"'\n'", "'<row>'"), &[], 0);
    assert!(why.contains("LOAD XML"), "{why}");
    let why = said(vec![
        block(true, 1, " <r><row/></r>"),
        load(1, &LOADS.replace(r"'\n'", "'row'"), "d", &[], 0),
    ]);
    assert!(why.contains("LOAD XML"), "{why}");
    let why = of(&LOADS.replace(" INFILE '", " INFILES'"), &[], 0);
    assert!(why.contains("something else"), "{why}");
}
