//! Whole numbers of a source whose columns are not the target's twins.

use dromon_binlog::version_bytes;

use super::*;

/// An unsigned number of four bytes, as a signed one has them.
const HIGH: i32 = 3_000_000_000_u32 as i32;

/// Inserts, updates and deletes; the source says of `id` whether it is UNSIGNED, or nothing.
fn of(name: &str, said: Option<bool>) -> Vec<Vec<Raw>> {
    let (a, b) = (Some("a"), Some("b"));
    let statement = |all: &[_]| {
        let mut events = rows(name, all);
        let mut body = events[0][19..].to_vec();
        if let Some(unsigned) = said {
            body.extend_from_slice(&[1, 1, if unsigned { 0x80 } else { 0 }]);
        }
        events[0] = event(19, &body);
        events
    };
    vec![
        statement(&[(None, Some((HIGH, a)))]),
        statement(&[(Some((7, a)), Some((7, b))), (Some((HIGH - 1, a)), None)]),
    ]
}

/// `d.plain`, as the target has it.
fn with(change: fn(&mut ColumnInfo)) -> Arc<Tables> {
    let named = ["plain", "keyless"].map(|name| {
        let mut info = table(name);
        info.columns[1].stored = Some(ColumnType::VarChar { bytes: 9 });
        change(&mut info.columns[0]);
        if name == "keyless" {
            info.key.clear();
            info.plain = false;
        }
        (TableName::new("d", name), info)
    });
    Arc::new(Tables::of(named))
}

fn compiled(
    statements: Vec<Vec<Raw>>,
    change: fn(&mut ColumnInfo),
    compare: Compare,
) -> Result<String, String> {
    let mut unit = unit(statements);
    let form = Arc::new(Form {
        format: Format {
            server_version: version_bytes("10.11.6-MariaDB-log"),
            ..Format::unknown()
        },
        raw: Vec::new(),
    });
    for transaction in &mut unit.transactions {
        transaction.form = Arc::clone(&form);
    }
    unit.tables = with(change);
    let (collations, filter) = (Collations::default(), Filter::default());
    let options = options_of(Style::Folded, compare, &filter, &collations);
    let ops = compile(&unit, &options).map_err(|error| error.to_string())?;
    let shown = shown(ops).into_iter().map(|(text, _)| text);
    Ok(shown.collect::<Vec<_>>().join("\n"))
}

fn bigint(column: &mut ColumnInfo) {
    column.stored = Some(ColumnType::Int { bytes: 8 });
}

/// Whether they are UNSIGNED nobody knows: the server's own applier decides whether it takes them.
#[test]
fn of_another_width() {
    for change in [
        bigint,
        |c: &mut ColumnInfo| c.stored = Some(ColumnType::VarChar { bytes: 20 }),
        |c: &mut ColumnInfo| c.stored = None,
    ] {
        let text =
            compiled(of("plain", None), change, Compare::Changed).expect("it can be compiled");
        assert_eq!(text, "BINLOG d.plain 0-1-1\nBINLOG d.plain 0-1-2");
    }
    // Those of the same width are taken for the same.
    let text = compiled(of("plain", None), |_| {}, Compare::Changed).expect("it can be compiled");
    assert!(text.contains("(-1294967296,'a')"), "{text}");
    let same = compiled(of("plain", None), |c| c.unsigned = true, Compare::Changed);
    let text = same.expect("it can be compiled");
    assert!(text.contains("(3000000000,'a')"), "{text}");
}

/// The source says what they are.
#[test]
fn of_which_the_sign_is_known() {
    let unsigned = |said, change| {
        let text = compiled(of("plain", Some(said)), change, Compare::Changed);
        let text = text.expect("it can be compiled");
        assert!(!text.contains("BINLOG"), "{text}");
        let says = |a: &str, b: &str| {
            text.contains(&format!("({a},'a')")) && text.contains(&format!("IN({b})"))
        };
        let (yes, no) = (
            says("3000000000", "2999999999"),
            says("-1294967296", "-1294967297"),
        );
        assert!(yes != no, "{text}");
        yes
    };
    assert!(unsigned(true, bigint) && !unsigned(false, bigint));
    // Here the target refuses what does not fit.
    assert!(unsigned(true, |_| {}) && !unsigned(false, |c| c.unsigned = true));
    assert!(unsigned(true, |c| c.unsigned = true) && !unsigned(false, |_| {}));
    // What is computed is said by nobody.
    let computed = |c: &mut ColumnInfo| c.generated = true;
    assert!(compiled(of("plain", None), computed, Compare::Changed).is_ok());
}

/// By BINLOG one would be taken for the other.
#[test]
fn of_another_sign_by_binlog() {
    for (said, change) in [
        (true, (|_| {}) as fn(&mut ColumnInfo)),
        (false, |c| c.unsigned = true),
        (true, bigint),
    ] {
        let refused = compiled(of("keyless", Some(said)), change, Compare::Changed);
        let why = refused.expect_err("a number may be another one");
        assert!(
            why.starts_with("0-1-1 ") && why.contains("column id of d.keyless"),
            "{why}"
        );
    }
    let same = compiled(of("keyless", Some(false)), |_| {}, Compare::Changed);
    assert_eq!(
        same.as_deref(),
        Ok("BINLOG d.keyless 0-1-1\nBINLOG d.keyless 0-1-2")
    );
    // Nor is an event made of many updates.
    let (a, b) = (Some("a"), Some("b"));
    let many = |said| {
        let mut all = Vec::new();
        for id in 0..40 {
            let mut events = rows("plain", &[(Some((id, a)), Some((id, b)))]);
            let mut body = events[0][19..].to_vec();
            body.extend_from_slice(&[1, 1, said]);
            events[0] = event(19, &body);
            all.push(events);
        }
        compiled(all, |_| {}, Compare::Key).expect("it can be compiled")
    };
    assert_eq!(many(0), "BINLOG d.plain 0-1-1");
    assert!(many(0x80).starts_with("UPDATE"));
}

/// Table maps of one table that are not the same: its rows are one table's.
#[test]
fn of_two_maps() {
    let a = Some("a");
    let mut all = Vec::new();
    for (id, row) in [(1, (None, Some((HIGH, a)))), (2, (Some((HIGH, a)), None))] {
        let mut events = rows("plain", &[row]);
        let mut body = events[0][19..].to_vec();
        body.extend_from_slice(&[1, 1, 0x80]);
        body[0] = id;
        events[0] = event(19, &body);
        let mut body = events[1][19..].to_vec();
        body[0] = id;
        events[1] = event(events[1][4], &body);
        all.push(events);
    }
    let text = compiled(all, bigint, Compare::Changed).expect("it can be compiled");
    let at = |what: &str| {
        text.find(what)
            .unwrap_or_else(|| panic!("{what} in {text}"))
    };
    assert!(at("INSERT") < at("DELETE"), "{text}");
}
