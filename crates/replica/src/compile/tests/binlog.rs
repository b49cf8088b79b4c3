//! What goes by BINLOG.

use dromon_binlog::{Cell, Checksum, ColumnType, Event, EventType, Payload, Row, version_bytes};

use super::*;
use crate::compile::rows::LOOKED;

/// A table that the target spells otherwise, of which some rows go by BINLOG: all stay in the source's order.
#[test]
fn names_in_any_case() {
    let name = "Plain";
    let minimal = |id: u8| {
        // Of an insert only the first column.
        let body = [name.len() as u8, 0, 0, 0, 0, 0, 1, 0, 2, 1, 0, id, 0, 0, 0];
        vec![table_map(name.len() as u8, name), event(23, &body)]
    };
    let (full, a) = (|change| rows(name, &[change]), Some("a"));
    let events = [
        full((None, Some((1, a)))),
        minimal(2),
        full((Some((1, a)), None)),
    ];
    let mut unit = unit(vec![events.concat()]);
    unit.tables = Arc::new(tables().of_any_case());
    let ops = steps_of(&unit, Style::Folded, &Filter::default(), Compare::Key);
    let texts: Vec<String> = shown(ops).into_iter().map(|(text, _)| text).collect();
    assert_eq!(
        texts,
        [
            "INSERT INTO `d`.`plain`(`id`,`v`)VALUES(1,'a') -- 1",
            "BINLOG d.plain 0-1-1",
            "DELETE FROM `d`.`plain` WHERE `id`=1 -- 1",
        ]
    );
}

/// Behind a LOAD DATA the session checks foreign keys again: rows of which the source did not check them say so once more.
#[test]
fn unchecked_rows_behind_a_statement() {
    let unchecked = |id: u8| {
        let body = [5, 0, 0, 0, 0, 0, 3, 0, 2, 3, 0, id, 0, 0, 0, 1, b'a'];
        vec![table_map(5, "child"), event(25, &body)]
    };
    let text = r"LOAD DATA INFILE '/a.txt' INTO TABLE `plain` LINES TERMINATED BY '\n'";
    let loads = vec![block(true, 1, "7\n"), load(1, text, "d", &[], 0)];
    let unit = unit(vec![[unchecked(1), loads, unchecked(2)].concat()]);
    for style in [Style::Folded, Style::Single] {
        let ops = steps_of(&unit, style, &Filter::default(), Compare::Key);
        let texts = shown(ops).into_iter().map(|(text, _)| text);
        let begins: Vec<String> = texts.map(|text| text.chars().take(24).collect()).collect();
        let wanted = [
            "SET foreign_key_checks=0",
            "DELETE FROM `d`.`child` ",
            "statement",
            "SET foreign_key_checks=0",
            "DELETE FROM `d`.`child` ",
            "SET foreign_key_checks=1",
        ];
        assert_eq!(begins, wanted);
    }
}

/// What the session takes part in is for the target's zone; plain rows by BINLOG are not.
#[test]
fn what_is_computed_is_local() {
    let mut zoned = table("zoned");
    (zoned.plain, zoned.local) = (false, true);
    let mut wider = table("widened");
    wider.plain = false;
    wider.columns.push(wider.columns[1].clone());
    let mut parent = table("parent");
    (parent.plain, parent.related) = (false, true);
    let mut none = table("keyless");
    (none.plain, none.key) = (false, Vec::new());
    let named = |info: TableInfo| {
        let name = TableName::new("d", info.name.trim_start_matches("d."));
        (name, info)
    };
    let all = Arc::new(Tables::of([zoned, wider, parent, none].map(named)));
    let is_local = |name: &str| {
        let mut unit = unit(vec![rows(name, &[(None, Some((1, Some("a"))))])]);
        unit.tables = Arc::clone(&all);
        let ops = steps_of(&unit, Style::Folded, &Filter::default(), Compare::Key);
        let [Op::Binlog { local, .. }] = ops[..] else {
            panic!("{name} goes by BINLOG, not {:?}", shown(ops));
        };
        local
    };
    assert!(!is_local("keyless"));
    for name in ["zoned", "widened", "parent", "unknown"] {
        assert!(is_local(name), "{name}");
    }
}

/// Rows of one statement that need several BINLOG statements, each of which says what its table is and
/// ends a statement.
#[test]
fn long_statements_by_binlog() {
    let name = "keyless";
    let long = |n: i32, end: bool| {
        let mut body = vec![name.len() as u8, 0, 0, 0, 0, 0, u8::from(end), 0, 2, 3];
        for k in 0..40_000 {
            put(&mut body, (n * 40_000 + k, Some("123456789")));
        }
        event(23, &body)
    };
    let events = vec![
        table_map(name.len() as u8, name),
        long(0, false),
        long(1, false),
        long(2, true),
    ];
    let unit = unit(vec![events]);
    let ops = steps_of(&unit, Style::Folded, &Filter::default(), Compare::Key);
    assert_eq!(ops.len(), 3);
    for op in &ops {
        let Op::Binlog { text, .. } = op else {
            panic!("rows go by BINLOG");
        };
        let lines: Vec<&[u8]> = text.split(|b| *b == b'\n').collect();
        // A table map, rows, and the last quote.
        assert_eq!(lines.len(), 3);
        // The flags of the rows stand in bytes 25 and 26: the end of a statement is 1.
        let flags = &lines[1][32..36];
        assert_eq!(flags, &binlog_statement([&[0, 1, 0][..]])[8..12]);
    }
}

/// A value that no packet takes as a literal.
#[test]
fn long_values_go_by_binlog() {
    let (collations, filter) = (Collations::default(), Filter::default());
    let options = |longest| Options {
        style: Style::Single,
        filter: &filter,
        compare: Compare::Key,
        packet_max: 1 << 20,
        longest,
        collations: &collations,
        whole: false,
        events: true,
        computed: false,
    };
    let unit = unit(vec![rows("plain", &[(None, Some((1, Some("'''''''''"))))])]);
    let by_binlog = |longest| {
        let ops = compile(&unit, &options(longest)).expect("it can be compiled");
        matches!(ops[..], [Op::Binlog { .. }])
    };
    assert!(by_binlog(100) && !by_binlog(200));
    // Its own table, and no other one.
    let short = rows("also", &[(None, Some((1, Some("a"))))]);
    let long = rows("plain", &[(None, Some((1, Some("'''''''''''''''''"))))]);
    let ops = compile(&super::unit(vec![short, long]), &options(120)).expect("it can be compiled");
    let insert = "INSERT INTO `d`.`also`(`id`,`v`)VALUES(1,'a') -- 1";
    let shown = shown(ops).into_iter().map(|(text, _)| text);
    assert_eq!(shown.collect::<Vec<_>>(), [insert, "BINLOG d.plain 0-1-2"]);
}

/// A BINLOG statement in three.
#[test]
fn fragments() {
    let parts =
        in_fragments(b"BINLOG 'TQ==\nTWE=\n'").map(|p| String::from_utf8_lossy(&p).into_owned());
    assert_eq!(
        parts,
        [
            "SET @dromon_a='TQ==\n'",
            "SET @dromon_b='TWE=\n'",
            "BINLOG @dromon_a, @dromon_b"
        ]
    );
}

#[test]
fn base64() {
    let text = binlog_statement([&b"M"[..], b"Ma", b"Man", b"Many"]);
    assert_eq!(text, b"BINLOG 'TQ==\nTWE=\nTWFu\nTWFueQ==\n'");
}

/// The events of a BINLOG statement.
pub(crate) fn events_of(text: &[u8]) -> Vec<Vec<u8>> {
    let text = String::from_utf8_lossy(text).into_owned();
    let inner = text
        .strip_prefix("BINLOG '")
        .and_then(|t| t.strip_suffix("\n'"));
    let digit = |c: char| match c {
        'A'..='Z' => c as u32 - 65,
        'a'..='z' => c as u32 - 71,
        '0'..='9' => c as u32 + 4,
        '+' => 62,
        _ => 63,
    };
    let lines = inner.expect("a BINLOG statement").lines();
    let event = |line: &str| {
        let digits: Vec<u32> = line.trim_end_matches('=').chars().map(digit).collect();
        let four = |four: &[u32]| {
            let n = four.iter().fold(0, |n, d| n << 6 | d) << (6 * (4 - four.len()));
            n.to_be_bytes()[1..four.len()].to_vec()
        };
        digits.chunks(4).flat_map(four).collect()
    };
    lines.map(event).collect()
}

/// The same unit, from a MariaDB server whose tables the target's are the twins of.
fn of_twins(mut unit: Unit, version: &str, twin: fn(&mut TableInfo)) -> Unit {
    let form = Arc::new(Form {
        format: Format {
            server_version: version_bytes(version),
            ..Format::unknown()
        },
        raw: Vec::new(),
    });
    for transaction in &mut unit.transactions {
        transaction.form = Arc::clone(&form);
    }
    let tables = ["plain", "unique", "also"].map(|name| {
        let mut info = table(name);
        info.columns[0].stored = Some(ColumnType::Int { bytes: 4 });
        info.columns[1].stored = Some(ColumnType::VarChar { bytes: 9 });
        info.unique = match name {
            "unique" => vec![1],
            "also" => vec![0],
            _ => Vec::new(),
        };
        twin(&mut info);
        (TableName::new("d", name), info)
    });
    unit.tables = Arc::new(Tables::of(tables));
    unit
}

const MARIADB: &str = "10.11.6-MariaDB-log";

/// Updates of so many rows of a table, each a transaction, the last ones first.
fn updates(table: &str, count: i32) -> Unit {
    let row = |id| {
        rows(
            table,
            &[(
                Some((id, Some("a"))),
                Some((id, (id % 3 > 0).then_some("b"))),
            )],
        )
    };
    unit((0..count).rev().map(row).collect())
}

/// Where only the key is compared, many updates are one event, in the order of their keys, which says
/// the key before and what changes.
#[test]
fn updates_by_their_key_alone_are_one_event() {
    let all = Filter::default();
    for name in ["plain", "also"] {
        let unit = of_twins(updates(name, 12), MARIADB, |_| {});
        let ops = steps_of(&unit, Style::Folded, &all, Compare::Key);
        let [Op::Binlog { text, note, .. }] = &ops[..] else {
            panic!("one event, not {:?}", shown(ops));
        };
        assert_eq!(
            (note.table.as_str(), note.gtid.seqno),
            (&*format!("d.{name}"), 1)
        );
        let events = events_of(text);
        assert_eq!(events.len(), 2);
        assert_eq!(events[0], table_map(name.len() as u8, name));
        let format = &unit.transactions[0].form.format;
        let event = Event::parse(&events[1], Checksum::Off).expect("an event");
        assert_eq!(event.kind(), EventType::UPDATE_ROWS_V1);
        let Ok(Payload::Rows(rows)) = event.decode(format) else {
            panic!("rows");
        };
        assert_eq!((rows.table_id, rows.flags), (name.len() as u64, 1));
        let types = [
            ColumnType::Int { bytes: 4 },
            ColumnType::VarChar { bytes: 9 },
        ];
        let found: Vec<Row<'_>> = rows
            .rows(rows.stored, &types)
            .and_then(Iterator::collect)
            .expect("rows");
        let ids: Vec<[u8; 4]> = (0..12i32).map(i32::to_le_bytes).collect();
        let wanted: Vec<Row<'_>> = ids
            .iter()
            .enumerate()
            .map(|(n, id)| Row {
                before: Some(vec![Cell::Bytes(id), Cell::Absent]),
                after: Some(vec![
                    Cell::Absent,
                    if n % 3 > 0 {
                        Cell::Bytes(b"b")
                    } else {
                        Cell::Null
                    },
                ]),
            })
            .collect();
        assert_eq!(found, wanted);
    }
}

/// What the server would do otherwise, or would not do, goes in statements.
#[test]
fn other_updates_go_in_statements() {
    let all = Filter::default();
    let by_binlog = |unit: &Unit, style, compare| {
        let ops = steps_of(unit, style, &all, compare);
        assert!(!ops.is_empty());
        ops.iter().any(|op| matches!(op, Op::Binlog { .. }))
    };
    let as_it_is = |_: &mut TableInfo| {};
    let (folded, single) = (Style::Folded, Style::Single);
    let of = |name, count, version, twin| of_twins(updates(name, count), version, twin);
    assert!(by_binlog(
        &of("plain", 12, MARIADB, as_it_is),
        folded,
        Compare::Key
    ));
    // The row that is missing is to be named.
    assert!(!by_binlog(
        &of("plain", 12, MARIADB, as_it_is),
        single,
        Compare::Key
    ));
    for compare in [Compare::Changed, Compare::Row] {
        assert!(!by_binlog(
            &of("plain", 40, MARIADB, as_it_is),
            folded,
            compare
        ));
    }
    assert!(!by_binlog(
        &of("plain", 11, MARIADB, as_it_is),
        folded,
        Compare::Key
    ));
    assert!(!by_binlog(
        &of("plain", 40, "5.6.24-log", as_it_is),
        folded,
        Compare::Key
    ));
    // A target that may pass over rows that it lacks.
    let collations = Collations::default();
    let careful = Options {
        style: folded,
        filter: &all,
        compare: Compare::Key,
        packet_max: 1 << 20,
        longest: 16 << 20,
        whole: false,
        events: false,
        computed: false,
        collations: &collations,
    };
    let ops = compile(&of("plain", 12, MARIADB, as_it_is), &careful).expect("it can be compiled");
    assert!(!ops.iter().any(|op| matches!(op, Op::Binlog { .. })));
    // A unique key changes: in the source's order.
    assert!(!by_binlog(
        &of("unique", 40, MARIADB, as_it_is),
        folded,
        Compare::Key
    ));
    let others: [fn(&mut TableInfo); 3] = [
        |t| t.columns[1].stored = Some(ColumnType::VarChar { bytes: 10 }),
        |t| t.columns[1].stored = None,
        |t| t.columns[0].generated = true,
    ];
    for twin in others {
        assert!(!by_binlog(
            &of("plain", 40, MARIADB, twin),
            folded,
            Compare::Key
        ));
    }
}

/// An event does not get longer than a packet may be, and each of them ends a statement.
#[test]
fn long_updates_are_several_events() {
    let all = Filter::default();
    let text = Some("123456789");
    let row = |id| rows("plain", &[(Some((id, Some("a"))), Some((id, text)))]);
    let unit = of_twins(unit((0..60_000).map(row).collect()), MARIADB, |_| {});
    let ops = steps_of(&unit, Style::Folded, &all, Compare::Key);
    let format = &unit.transactions[0].form.format;
    let mut count = 0;
    for op in &ops {
        let Op::Binlog { text, .. } = op else {
            panic!("rows go by BINLOG");
        };
        assert!(text.len() < 1 << 20, "{}", text.len());
        let events = events_of(text);
        let event = Event::parse(&events[1], Checksum::Off).expect("an event");
        let Ok(Payload::Rows(rows)) = event.decode(format) else {
            panic!("rows");
        };
        assert_eq!(rows.flags, 1);
        let types = [
            ColumnType::Int { bytes: 4 },
            ColumnType::VarChar { bytes: 9 },
        ];
        count += rows.rows(rows.stored, &types).expect("rows").count();
    }
    assert_eq!(count, 60_000);
    assert!(ops.len() > 1);
}

/// Rows that come last have an event of their own.
#[test]
fn updates_that_come_last() {
    let all = Filter::default();
    let mut unit = of_twins(updates("plain", 40), MARIADB, |_| {});
    unit.last = (0..40).map(|n| n < 15).collect();
    let ops = steps_of(&unit, Style::Folded, &all, Compare::Key);
    let kinds: Vec<String> = shown(ops).into_iter().map(|(text, _)| text).collect();
    assert_eq!(
        kinds,
        ["BINLOG d.plain 0-1-1", "last", "BINLOG d.plain 0-1-1"]
    );
}

/// Whether anything in a transaction counts for its savepoints is looked for once, however many there are.
#[test]
fn many_savepoints() {
    let a = Some("a");
    let transaction = |id: i32, last: &[&str]| {
        let mut events = Vec::new();
        for n in 0..100 {
            events.push(query("SAVEPOINT x", "d"));
            events.extend(rows("plain", &[(None, Some((id + n, a)))]));
            events.push(query("RELEASE SAVEPOINT x", "d"));
        }
        events.extend(last.iter().map(|text| query(text, "d")));
        events
    };
    let looked = |all: Vec<Vec<Raw>>| {
        LOOKED.set(0);
        let made = folded(all);
        (made.len(), LOOKED.get())
    };
    assert_eq!(looked(vec![rows("plain", &[(None, Some((1, a)))])]), (1, 0));
    let none = || vec![transaction(0, &[]), transaction(100, &[])];
    assert_eq!(looked(none()), (1, 2));
    // Here the rows between them go by BINLOG.
    let back = vec![transaction(0, &["ROLLBACK TO x"])];
    assert_eq!(looked(back), (301, 1));
}

/// They are about the rows between them, whatever the default database is.
#[test]
fn savepoints_amid_what_is_left_out() {
    let a = Some("a");
    let only = Filter::new(vec!["d".into()], vec![]);
    let without = Filter::new(vec![], vec!["x".into()]);
    for (filter, database) in [(&only, "x"), (&only, ""), (&without, "x")] {
        let mut events = vec![query("SAVEPOINT `a`", database)];
        events.extend(rows("plain", &[(None, Some((1, a)))]));
        events.push(query("ROLLBACK TO `a`", database));
        let ops = compiled(vec![events], Style::Folded, filter);
        assert_eq!(
            ops,
            ["statement", "BINLOG d.plain 0-1-1", "statement"],
            "{database}"
        );
    }
}

/// Where all that is between them is left out, they are, too.
#[test]
fn savepoints_of_what_is_left_out() {
    let a = Some("a");
    let of = |table: &str| {
        let mut events = vec![query("SAVEPOINT `a`", "x")];
        events.extend(rows(table, &[(None, Some((1, a)))]));
        events.push(query("INSERT INTO t VALUES (1)", "x"));
        events.push(query("ROLLBACK TO `a`", "x"));
        events
    };
    let filter = Filter::new(vec!["d".into()], vec!["d.child".into()]);
    let run = |statements| compiled(statements, Style::Folded, &filter);
    assert_eq!(run(vec![of("child")]), [""; 0]);
    assert_eq!(
        run(vec![of("child"), of("plain"), of("child")]),
        ["statement", "BINLOG d.plain 0-1-2", "statement"]
    );
    let mut unit = unit(vec![of("child")]);
    unit.transactions[0].own = Some(crate::unit::Own {
        name: b"x".to_vec(),
        statements: vec![(b"UPDATE own".to_vec(), 1)],
    });
    let ops = steps_of(&unit, Style::Folded, &filter, Compare::Key);
    let kinds: Vec<String> = shown(ops).into_iter().map(|(text, _)| text).collect();
    assert_eq!(kinds, ["UPDATE own -- 1"]);
}
