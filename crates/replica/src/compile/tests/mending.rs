//! What puts a row right that is missing or other than it was on the source.

use super::*;

/// What mends the one statement that comes of it.
fn mend(name: &str, row: (Option<Image<'_>>, Option<Image<'_>>)) -> String {
    let unit = vec![rows(name, &[row])];
    let ops = steps(unit, Style::Single, &Filter::default(), Compare::Key);
    let [Op::Rows { expects, .. }] = &ops[..] else {
        panic!("{ops:?}");
    };
    String::from_utf8_lossy(&expects[0].mend.join(&b';')).into_owned()
}

/// What puts an update right whose key changes leaves no row at the old key.
#[test]
fn mending_an_update_of_a_key() {
    let (a, b) = (Some("a"), Some("b"));
    let update = |to| mend("plain", (Some((1, a)), Some((to, b))));
    let insert = |id| {
        format!(
            "INSERT INTO `d`.`plain`(`id`,`v`)VALUES({id},'b')ON DUPLICATE KEY UPDATE `id`=VALUES(`id`),`v`=VALUES(`v`)"
        )
    };
    assert_eq!(update(1), insert(1));
    let both = format!("DELETE FROM `d`.`plain` WHERE `id`=1;{}", insert(2));
    assert_eq!(update(2), both);
}

/// Other rows are not touched: one that has the same unique value, and those that refer to this one.
#[test]
fn mending_beside_other_rows() {
    let (a, b) = (Some("a"), Some("b"));
    for name in ["unique", "child"] {
        let update = |at, id| format!("UPDATE `d`.`{name}` SET `id`={id},`v`='b' WHERE `id`={at}");
        let insert = |id| {
            format!(
                "INSERT INTO `d`.`{name}`(`id`,`v`)SELECT {id},'b' FROM DUAL WHERE NOT EXISTS(SELECT 1 FROM `d`.`{name}` WHERE `id`={id})"
            )
        };
        let same = [update(1, 1), insert(1)].join(";");
        assert_eq!(mend(name, (None, Some((1, b)))), same);
        assert_eq!(mend(name, (Some((1, a)), Some((1, b)))), same);
        // Those that refer to it go with it.
        let moved = [update(1, 2), update(2, 2), insert(2)].join(";");
        assert_eq!(mend(name, (Some((1, a)), Some((2, b)))), moved);
        let delete = format!("DELETE FROM `d`.`{name}` WHERE `id`=1");
        assert_eq!(mend(name, (Some((1, a)), None)), delete);
    }
}
