//! Columns that have another type here than on the source.

use super::*;

/// Inserts a row of an INT and a column with this type and metadata, whose value is `bytes`.
fn of(kind: u8, meta: &[u8], bytes: &[u8]) -> Vec<Raw> {
    of_table("plain", kind, meta, bytes)
}

/// The same of any table.
fn of_table(name: &str, kind: u8, meta: &[u8], bytes: &[u8]) -> Vec<Raw> {
    let id = name.as_bytes()[0];
    let mut map = vec![id, 0, 0, 0, 0, 0, 1, 0, 1, b'd', 0, name.len() as u8];
    map.extend_from_slice(name.as_bytes());
    map.extend_from_slice(&[0, 2, 3, kind, meta.len() as u8]);
    map.extend_from_slice(meta);
    map.push(2);
    let mut row = vec![id, 0, 0, 0, 0, 0, 1, 0, 2, 3, 0, 1, 0, 0, 0];
    row.extend_from_slice(bytes);
    vec![event(19, &map), event(23, &row)]
}

/// The step that comes of it where the column is of the type `stored`.
fn made(statement: Vec<Raw>, stored: ColumnType, charset: Option<&str>) -> String {
    made_in(statement, |column| {
        column.stored = Some(stored);
        column.charset = charset.map(str::to_owned);
    })
}

/// The same of any column.
fn made_in(statement: Vec<Raw>, change: impl FnOnce(&mut ColumnInfo)) -> String {
    let mut info = table("plain");
    info.columns[1].charset = None;
    change(&mut info.columns[1]);
    let mut unit = unit(vec![statement]);
    unit.tables = Arc::new(Tables::of([(TableName::new("d", "plain"), info)]));
    let ops = steps_of(&unit, Style::Folded, &Filter::default(), Compare::Changed);
    let [(text, _)] = &shown(ops)[..] else {
        panic!("one step");
    };
    text.clone()
}

/// The server refuses them, or converts them as it is told to.
#[test]
fn of_another_type_by_binlog() {
    let (latin1, decimal) = (Some("latin1"), |precision, scale| ColumnType::Decimal {
        precision,
        scale,
    });
    let enumerated = || of(254, &[247, 1], &[2]);
    let set = || of(254, &[248, 1], &[2]);
    let bits = || of(16, &[0, 1], &[65]);
    let timestamp = || of(17, &[0], &[0x65, 0, 0, 0]);
    let datetime = || of(18, &[0], &[0x99, 0xb2, 0xc2, 0xc0, 0]);
    let number = || of(246, &[10, 4], &[0x80, 0, 1, 0, 1]);
    let double = || of(5, &[8], &1.5f64.to_le_bytes());
    let text = ColumnType::VarChar { bytes: 20 };
    for (statement, stored, charset) in [
        (enumerated(), text, latin1),
        (set(), text, latin1),
        (bits(), text, latin1),
        (timestamp(), ColumnType::DateTime { fraction: 0 }, None),
        (datetime(), ColumnType::Timestamp { fraction: 0 }, None),
        (datetime(), ColumnType::Date, None),
        (number(), decimal(10, 2), None),
        (double(), ColumnType::Float, None),
        (
            of(15, &[21, 0], b"\x01a"),
            ColumnType::VarChar { bytes: 20 },
            latin1,
        ),
    ] {
        let text = made(statement, stored, charset);
        assert_eq!(text, "BINLOG d.plain 0-1-1", "{stored:?}");
    }
    for (statement, stored, charset, wanted) in [
        (enumerated(), ColumnType::Enum { bytes: 1 }, None, "2"),
        (set(), ColumnType::Set { bytes: 2 }, None, "2"),
        (bits(), ColumnType::Bit { bits: 8 }, None, "65"),
        (
            timestamp(),
            ColumnType::Timestamp { fraction: 3 },
            None,
            "'2023-09-12 06:06:56'",
        ),
        (number(), decimal(12, 4), None, "1.0001"),
        (double(), ColumnType::Double, None, "1.5e0"),
        (of(15, &[9, 0], b"\x01a"), text, latin1, "'a'"),
    ] {
        let text = made(statement, stored, charset);
        let insert = format!("INSERT INTO `d`.`plain`(`id`,`v`)VALUES(1,{wanted}) -- 1");
        assert_eq!(text, insert, "{stored:?}");
    }
}

/// A literal is rounded to the digits that a column has; where that makes another number of it, the event brings it.
#[test]
fn of_numbers_with_digits() {
    let made = |stored, digits, bytes: &[u8]| {
        let statement = match stored {
            ColumnType::Float => of(4, &[4], bytes),
            _ => of(5, &[8], bytes),
        };
        let text = made_in(statement, |column| {
            (column.stored, column.digits) = (Some(stored), digits);
        });
        let values = text.strip_prefix("INSERT INTO `d`.`plain`(`id`,`v`)VALUES(1,");
        match values.and_then(|rest| rest.strip_suffix(") -- 1")) {
            Some(value) => value.to_owned(),
            None => text,
        }
    };
    let float = |digits, n: f32| made(ColumnType::Float, digits, &n.to_le_bytes());
    let double = |digits, n: f64| made(ColumnType::Double, digits, &n.to_le_bytes());
    let binlog = "BINLOG d.plain 0-1-1";
    // What 999999.99 became on the source.
    assert_eq!(float(Some((8, 2)), 1e6), binlog);
    assert_eq!(float(None, 1e6), "1e6");
    assert_eq!(float(Some((8, 2)), 0.1), "1.0000000149011612e-1");
    assert_eq!(float(Some((8, 2)), -12345.67), "-1.2345669921875e4");
    assert_eq!(float(Some((7, 3)), 1.0005), binlog);
    assert_eq!(double(Some((10, 2)), 99_999_999.99), "9.999999999e7");
    assert_eq!(double(Some((10, 2)), -1e8), binlog);
    assert_eq!(double(Some((10, 2)), 1.2345), binlog);
    assert_eq!(double(None, 1.2345), "1.2345e0");
    assert_eq!(double(Some((255, 30)), 1e220), "1e220");
    assert_eq!(double(Some((255, 30)), 1e230), binlog);
}

/// A literal of -0 would be stored as 0.
#[test]
fn of_minus_zero() {
    let made = |bytes: &[u8], stored| {
        let statement = match bytes.len() {
            4 => of(4, &[4], bytes),
            _ => of(5, &[8], bytes),
        };
        made_in(statement, |column| column.stored = Some(stored))
    };
    let float = (-0f32).to_le_bytes();
    let says = |text: &str, value: &str| text.contains(&format!("VALUES(1,{value})"));
    let text = made(&float, ColumnType::Float);
    assert!(says(&text, "-1e-60"), "{text}");
    // There it would be another number.
    let text = made(&float, ColumnType::Double);
    assert!(says(&text, "-0e0"), "{text}");
    let text = made(&(-0f64).to_le_bytes(), ColumnType::Double);
    assert_eq!(text, "BINLOG d.plain 0-1-1");
    let text = made(&0f64.to_le_bytes(), ColumnType::Double);
    assert!(says(&text, "0e0"), "{text}");
}

/// Its bytes would be other characters, whichever way they come.
#[test]
fn of_another_character_set() {
    let collations = Collations::of([
        (8, "latin1_swedish_ci".into(), "latin1".into()),
        (45, "utf8mb4_general_ci".into(), "utf8mb4".into()),
        (63, "binary".into(), "binary".into()),
    ]);
    let filter = Filter::default();
    let made = |said: &[u8], charset: Option<&str>, plain| {
        let mut statement = of(15, &[20, 0], b"\x02\xc3\xa9");
        let map = [&statement[0][19..], said].concat();
        statement[0] = event(19, &map);
        let mut info = table("plain");
        info.plain = plain;
        info.columns[1].charset = charset.map(str::to_owned);
        let mut unit = unit(vec![statement]);
        unit.tables = Arc::new(Tables::of([(TableName::new("d", "plain"), info)]));
        let options = options_of(Style::Folded, Compare::Changed, &filter, &collations);
        compile(&unit, &options).map_err(|error| error.to_string())
    };
    for plain in [true, false] {
        for (said, charset) in [
            (&[2, 1, 45][..], "latin1"),
            (&[3, 1, 45], "latin1"),
            (&[2, 1, 8], "utf8mb4"),
        ] {
            let why = made(said, Some(charset), plain).expect_err("other characters");
            assert!(
                why.starts_with("0-1-1 ") && why.contains("column v of d.plain is in "),
                "{why}"
            );
        }
        for (said, charset) in [
            (&[2, 1, 45][..], Some("utf8mb4")),
            (&[2, 1, 45], None),
            (&[2, 1, 63], Some("latin1")),
            // Not known here.
            (&[2, 1, 99], Some("latin1")),
            // The source says nothing of it.
            (&[], Some("latin1")),
        ] {
            assert!(made(said, charset, plain).is_ok(), "{said:?} {charset:?}");
        }
    }
}

/// Steps of a unit of the tables `a`, whose column is wider here and of another sign if the source says so, and
/// `b` and `c`, each with an ENUM.
fn steps_of_some(statements: Vec<Vec<Raw>>, last: Vec<bool>) -> Vec<String> {
    let with = |name: &str, stored, charset: Option<&str>| {
        let mut info = table(name);
        info.columns[0].unsigned = name == "a";
        info.columns[1].stored = Some(stored);
        info.columns[1].charset = charset.map(str::to_owned);
        (TableName::new("d", name), info)
    };
    let enumerated = ColumnType::Enum { bytes: 1 };
    let mut unit = unit(statements);
    unit.tables = Arc::new(Tables::of([
        with("a", ColumnType::VarChar { bytes: 20 }, Some("latin1")),
        with("b", enumerated, None),
        with("c", enumerated, None),
    ]));
    unit.last = last;
    let ops = steps_of(&unit, Style::Folded, &Filter::default(), Compare::Changed);
    shown(ops).into_iter().map(|(text, _)| text).collect()
}

/// A value that no literal says sends its own table by BINLOG. Others, which the server would refuse there, or take for
/// something else, are what they are by themselves.
#[test]
fn only_the_table_with_the_value_goes_by_binlog() {
    let a = |said: &[u8]| {
        let mut events = of_table("a", 15, &[9, 0], b"\x01a");
        events[0] = event(19, &[&events[0][19..], said].concat());
        events
    };
    let enumerated = |name: &str, n: u8| of_table(name, 254, &[247, 1], &[n]);
    let insert = "INSERT INTO `d`.`a`(`id`,`v`)VALUES(1,'a') -- 1";
    // Nothing is said of the sign, or the target has another one.
    for said in [&[][..], &[1, 1, 0]] {
        let mut other = enumerated("b", 2);
        other[1][19 + 11] = 7;
        let unit = vec![a(said), enumerated("b", 0), other];
        assert_eq!(
            steps_of_some(unit, Vec::new()),
            ["BINLOG d.b 0-1-2", "BINLOG d.b 0-1-3", insert]
        );
    }
    // Of `c` nothing comes that must be said, until it goes by BINLOG with `b`: then its order counts.
    let (mut both, two) = (enumerated("b", 0), enumerated("c", 2));
    both[1][19 + 6] = 0;
    both.insert(1, two[0].clone());
    both.push(two[1].clone());
    let added = enumerated("c", 0);
    let mut gone = added.clone();
    gone[1][4] = 25;
    let unit = vec![a(&[1, 1, 0]), added, gone, both];
    assert_eq!(
        steps_of_some(unit, Vec::new()),
        [
            "BINLOG d.c 0-1-2",
            "BINLOG d.c 0-1-3",
            "BINLOG d.b, d.c 0-1-4",
            insert
        ]
    );
    // In what comes first, too.
    let mut update = enumerated("b", 2);
    let body = update[1][19..].to_vec();
    let after = [0, 1, 0, 0, 0, 0];
    update[1] = event(24, &[&body[..10], &[3], &body[10..], &after].concat());
    assert_eq!(
        steps_of_some(vec![update, a(&[])], vec![false, true]),
        ["last", "BINLOG d.b 0-1-1", insert]
    );
}
