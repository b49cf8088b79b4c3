//! Rows of sequences, of which some targets die.

use super::*;

/// A row of the sequence `d.seq` (of the tests' two columns), or only its first column.
fn row(whole: bool) -> Vec<Raw> {
    let mut events = rows("seq", &[(None, Some((4, Some("a"))))]);
    if !whole {
        events[1] = event(23, &[3, 0, 0, 0, 0, 0, 1, 0, 2, 1, 0, 4, 0, 0, 0]);
    }
    events
}

fn made(statements: Vec<Vec<Raw>>, falls: bool, filter: &Filter) -> Result<Vec<Op>, String> {
    let mut unit = unit(statements);
    let seq = TableName::new("d", "seq");
    unit.tables = Arc::new(tables().with_sequences([&seq]));
    let collations = Collations::default().that_falls_by_sequences(falls);
    let options = options_of(Style::Folded, Compare::Key, filter, &collations);
    compile(&unit, &options).map_err(|error| error.to_string())
}

/// A target that dies of them gets none; every other one does.
#[test]
fn a_row_of_a_sequence_ends_no_target() {
    let all = Filter::default();
    let is_binlog = |made: Result<Vec<Op>, String>| matches!(&made.expect("it goes")[..], [Op::Binlog { note, .. }] if note.table == "d.seq");
    let why = made(vec![row(true)], true, &all).expect_err("it is refused");
    assert!(
        why.contains("0-1-1") && why.contains("the sequence d.seq") && why.contains("10.6.18"),
        "{why}"
    );
    assert!(is_binlog(made(vec![row(true)], false, &all)));
    assert!(is_binlog(made(vec![row(false)], false, &all)));
    made(vec![row(false)], true, &all).expect_err("it is refused");
    let without = Filter::new(Vec::new(), vec!["d.seq".into()]);
    assert_eq!(made(vec![row(true)], true, &without), Ok(Vec::new()));
    // Behind a statement of its own transaction, too.
    let mut behind = vec![query("INSERT INTO m VALUES (NEXTVAL(seq))", "d")];
    behind.extend(row(true));
    made(vec![behind], true, &all).expect_err("it is refused");
    // A table that is not there may look the same.
    let other = rows("other", &[(None, Some((4, Some("a"))))]);
    assert_eq!(made(vec![other], true, &all).map(|ops| ops.len()), Ok(1));
}
