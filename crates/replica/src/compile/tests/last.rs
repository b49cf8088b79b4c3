//! Units of which some transactions come last.

use super::*;

/// Rows that a transaction touches which comes last, those that are no mere updates, and those that have an
/// order, come behind the others.
#[test]
fn some_transactions_come_last() {
    let (a, b, c) = (Some("a"), Some("b"), Some("c"));
    let update = |table, id, from, to| rows(table, &[(Some((id, from)), Some((id, to)))]);
    let mut of = unit(vec![
        update("plain", 1, a, b),
        update("plain", 2, a, b),
        update("plain", 2, b, c),
        update("unique", 3, a, b),
        rows("plain", &[(None, Some((4, a)))]),
        rows("plain", &[(Some((5, a)), None)]),
        update("also", 6, a, b),
        rows("plain", &[(Some((7, a)), Some((8, a)))]),
        rows("unique", &[(Some((9, a)), None)]),
        rows("unique", &[(None, Some((9, c)))]),
    ]);
    let shown = |of: &Unit, style| -> String {
        let ops = steps_of(of, style, &Filter::default(), Compare::Changed);
        let texts = shown(ops).into_iter().map(|(text, _)| text);
        texts.collect::<Vec<_>>().join("\n")
    };
    assert!(!shown(&of, Style::Folded).contains("last"));
    of.last = (0..10).map(|n| n == 1).collect();
    let text = shown(&of, Style::Folded);
    let (first, rest) = text.split_once("\nlast\n").expect("both");
    let firsts: Vec<&str> = first.lines().collect();
    assert_eq!(firsts.len(), 2, "{text}");
    for (line, id) in firsts.iter().zip(["`id`=1", "`id`=6"]) {
        assert!(line.starts_with("UPDATE") && line.contains(id), "{text}");
    }
    for part in ["`id`=2", "`id`=3", "(4,", "5", "(8,", "9"] {
        assert!(rest.contains(part), "{part}: {text}");
    }
    assert!(
        !rest.contains("`id`=1 ") && !rest.contains("`id`=6 "),
        "{text}"
    );
    assert!(shown(&of, Style::Single).starts_with("last\n"));
    // A statement may need any of them.
    of.transactions
        .extend(unit(vec![vec![query("DO 1", "d")]]).transactions);
    assert!(shown(&of, Style::Folded).starts_with("last\n"));
}
