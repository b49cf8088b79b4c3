//! Generated columns that a source without a strict sql_mode had cut to fit.

use super::*;
use crate::catalog::Tables;

/// Inserts into `d.plain`, whose second column is computed, and into another table, against a target that
/// refuses the first with this error. Gives what came of it, and which statements were run.
fn run(code: u16, why: &'static str, lines: &[&str]) -> (End, Vec<String>) {
    run_as(code, why, lines, None)
}

/// The same, of a unit that runs alone: the other table is without transactions here, or not.
fn run_as(
    code: u16,
    why: &'static str,
    lines: &[&str],
    alone: Option<(Alone, bool)>,
) -> (End, Vec<String>) {
    let name = |name: &str| dromon_binlog::hints::TableName::new("d", name);
    let mut computed = crate::compile::tests::table("plain");
    computed.columns[1].generated = true;
    computed.column_list = b"`id`".to_vec();
    let mut other = crate::compile::tests::table("other");
    if let Some((_, true)) = alone {
        (other.transactional, other.plain) = (false, false);
    }
    let insert = |table: &str| rows(table, &[(None, Some((1, Some("a"))))]);
    let mut unit = match alone {
        // One that runs alone is one transaction.
        Some(_) => unit(vec![[insert("other"), insert("plain")].concat()]),
        None => unit(vec![insert("other"), insert("plain")]),
    };
    unit.alone = alone.map(|(alone, _)| alone);
    unit.tables = Arc::new(Tables::of([
        (name("plain"), computed),
        (name("other"), other),
    ]));
    let fake = Fake::new(move |text| match text {
        _ if text.starts_with("INSERT INTO `d`.`plain`") => Some(Reply::Says(code, why)),
        other => epoch(other),
    });
    let end = applied(&fake, lines, unit);
    let begins = [
        "INSERT INTO `d`.`other`",
        "INSERT INTO `d`.`plain`",
        "BINLOG",
    ];
    let said = fake.said().into_iter().filter_map(|text| {
        // That of the format description is one, too.
        let begin = begins.iter().find(|begin| text.starts_with(**begin));
        begin
            .filter(|_| text.len() > 12)
            .map(|begin| (*begin).to_owned())
    });
    (end, said.collect())
}

/// An event says what the column has become; other tables are compared as ever.
#[test]
fn what_the_source_had_cut() {
    for (code, why) in [
        (1264, "Out of range value for column 'v' at row 1"),
        (1406, "Data too long for column 'v' at row 1"),
        (
            1366,
            "Incorrect integer value: 'id' for column `d`.`plain`.`v` at row 1",
        ),
        (1292, "Truncated incorrect INTEGER value: 'abc'"),
        // Values that read like columns.
        (1292, "Truncated incorrect INTEGER value: 'id'"),
        (1292, "Truncated incorrect INTEGER value: 'for column 'id''"),
        (
            1292,
            "Truncated incorrect INTEGER value: 'for column 'id' at row 1'",
        ),
        (
            1366,
            "Incorrect integer value: 'for column 'id' at row 1' for column `d`.`plain`.`v` at row 1",
        ),
        (1441, "Datetime function: datetime field overflow"),
        (
            1918,
            "Encountered illegal value 'abc' when converting to INT",
        ),
        (
            1301,
            "Result of repeat() was larger than max_allowed_packet (16777216) - truncated",
        ),
        (1139, "Regex error 'match limit exceeded'"),
        (
            4038,
            "Syntax error in JSON text in argument 1 to function 'json_extract' at position 1",
        ),
    ] {
        for lines in [&[][..], &["difference=repair"]] {
            let (end, said) = run(code, why, lines);
            assert_eq!(end, End::Told, "{why}");
            let last = ["INSERT INTO `d`.`other`", "BINLOG"];
            assert!(said.ends_with(&last.map(String::from)), "{said:?}");
        }
    }
}

/// What the source sent, and the target's column does not take, is named.
#[test]
fn what_does_not_fit_the_target() {
    for (code, why) in [
        (1264, "Out of range value for column 'id' at row 1"),
        (1265, "Data truncated for column 'ID' at row 1"),
        (
            1366,
            "Incorrect integer value: 'v' for column `d`.`plain`.`id` at row 1",
        ),
        (1142, "INSERT command denied"),
    ] {
        let (end, said) = run(code, why, &[]);
        let End::Fatal(text) = end else {
            panic!("{end:?}");
        };
        let row = format!("the insert into d.plain where `id`=1 (0-1-2): error {code}: {why}");
        assert!(text.contains(&row), "{text}");
        assert!(!said.contains(&"BINLOG".to_owned()), "{said:?}");
    }
}

/// Tables without transactions on the source, which have them here: all is in one transaction with the position.
#[test]
fn what_had_no_transactions_on_the_source() {
    let why = "Out of range value for column 'v' at row 1";
    let run = |stays| run_as(1264, why, &[], Some((Alone::NotTransactional, stays)));
    let (end, said) = run(false);
    assert_eq!(end, End::Told);
    let wanted = [
        "INSERT INTO `d`.`other`",
        "INSERT INTO `d`.`plain`",
        "INSERT INTO `d`.`other`",
        "BINLOG",
    ];
    assert_eq!(said, wanted);
    // Where something may stay it is as it was begun.
    let (end, said) = run(true);
    assert!(matches!(end, End::Fatal(_)), "{end:?}");
    assert_eq!(said, ["BINLOG", "INSERT INTO `d`.`plain`"]);
}
