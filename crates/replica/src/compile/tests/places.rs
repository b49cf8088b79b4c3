//! Columns at other places than on the source, and rows for which triggers run.

use super::*;

/// The table of [`rows`], and what its columns are called on the source.
fn named(names: [&str; 2], statement: Vec<Raw>) -> Vec<Raw> {
    let mut more = vec![4, names.iter().map(|name| name.len() as u8 + 1).sum()];
    for name in names {
        more.push(name.len() as u8);
        more.extend_from_slice(name.as_bytes());
    }
    let mut statement = statement.into_iter();
    let map = statement.next().expect("a table map");
    let map = event(19, &[&map[19..], &more].concat());
    std::iter::once(map).chain(statement).collect()
}

fn tried(unit: &Unit) -> Result<Vec<Op>, CompileError> {
    let (collations, filter) = (Collations::default(), Filter::default());
    let options = options_of(Style::Folded, Compare::Key, &filter, &collations);
    compile(unit, &options)
}

/// A column that stands elsewhere here is refused by name; one that is only called otherwise goes by its place.
#[test]
fn columns_in_another_order() {
    let of = |names, change: fn(&mut TableInfo)| {
        let insert = rows("plain", &[(None, Some((1, Some("a"))))]);
        let mut unit = unit(vec![named(names, insert)]);
        let mut info = table("plain");
        change(&mut info);
        unit.tables = Arc::new(Tables::of([(TableName::new("d", "plain"), info)]));
        match tried(&unit) {
            Ok(ops) => Ok(shown(ops).remove(0).0),
            Err(error) => Err(error.to_string()),
        }
    };
    let insert = Ok("INSERT INTO `d`.`plain`(`id`,`v`)VALUES(1,'a') -- 1".to_owned());
    assert_eq!(of(["id", "v"], |_| {}), insert);
    assert_eq!(of(["ID", "V"], |_| {}), insert);
    let binlog = Ok("BINLOG d.plain 0-1-1".to_owned());
    assert_eq!(of(["id", "text"], |_| {}), binlog);
    let why = of(["v", "id"], |_| {}).expect_err("both are elsewhere");
    assert!(
        why.contains("column v of d.plain") && why.contains("column id"),
        "{why}"
    );
    // One that only the target has.
    let amid = of(["id", "v"], |t| {
        let more = ColumnInfo {
            name: "more".into(),
            ..t.columns[1].clone()
        };
        t.columns.insert(1, more);
    });
    let why = amid.expect_err("it would get the values of another one");
    assert!(
        why.contains("column v of d.plain") && why.contains("column more"),
        "{why}"
    );
}

/// A trigger on the target may read what other rows of its transaction have written.
#[test]
fn rows_for_which_triggers_run() {
    let of = |run: bool| {
        let orders = rows("plain", &[(None, Some((1, Some("a"))))]);
        let items = rows("fired", &[(None, Some((7, Some("b"))))]);
        let later = rows("plain", &[(Some((1, Some("a"))), Some((1, Some("c"))))]);
        let mut unit = unit(vec![[orders, items, later].concat()]);
        let mut fired = table("fired");
        fired.plain = false;
        fired.care.triggers_run = run;
        let tables = [("plain", table("plain")), ("fired", fired)];
        let tables = tables.map(|(name, info)| (TableName::new("d", name), info));
        unit.tables = Arc::new(Tables::of(tables));
        let ops = shown(tried(&unit).expect("it can be compiled"));
        let begins = |(text, _): (String, _)| text.chars().take(12).collect::<String>();
        ops.into_iter().map(begins).collect::<Vec<_>>()
    };
    assert_eq!(of(true), ["INSERT INTO ", "BINLOG d.fir", "UPDATE `d`.`"]);
    // Where none run, all that the source did with a row is one statement.
    assert_eq!(of(false), ["BINLOG d.fir", "INSERT INTO "]);
}
