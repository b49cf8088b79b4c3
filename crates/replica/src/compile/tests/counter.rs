//! AUTO_INCREMENT.

use super::*;

/// Of rows that are gone again the one with the greatest number is inserted and deleted, so that the target
/// counts on where the source does. Not if one that stays has a greater one.
#[test]
fn numbers_of_rows_that_are_gone_again() {
    let a = Some("a");
    let insert = |id| rows("counted", &[(None, Some((id, a)))]);
    let delete = |id| rows("counted", &[(Some((id, a)), None)]);
    let gone = |more: Vec<Vec<Raw>>| {
        let mut all = vec![
            insert(5),
            delete(5),
            insert(7),
            delete(7),
            insert(6),
            delete(6),
        ];
        all.extend(more);
        folded(all)
    };
    let seven = [
        "INSERT INTO `d`.`counted`(`id`,`v`)VALUES(7,'a') -- 1",
        "DELETE FROM `d`.`counted` WHERE `id` IN(7) -- 1",
    ];
    assert_eq!(gone(Vec::new()), seven);
    for more in [vec![insert(9)], vec![insert(9), insert(8), delete(8)]] {
        let nine = ["INSERT INTO `d`.`counted`(`id`,`v`)VALUES(9,'a') -- 1"];
        assert_eq!(gone(more), nine);
    }
    // Between what frees keys and what takes them.
    assert_eq!(
        gone(vec![delete(1), insert(3)]),
        [
            "DELETE FROM `d`.`counted` WHERE `id` IN(1) -- 1",
            seven[0],
            seven[1],
            "INSERT INTO `d`.`counted`(`id`,`v`)VALUES(3,'a') -- 1",
        ]
    );
    // It came back.
    let again = ["INSERT INTO `d`.`counted`(`id`,`v`)VALUES(7,'a') -- 1"];
    assert_eq!(gone(vec![insert(7)]), again);
    // It has another key now; that of a row that was there before says nothing.
    let moved = |from, to| rows("counted", &[(Some((from, a)), Some((to, a)))]);
    let three = "INSERT INTO `d`.`counted`(`id`,`v`)VALUES(3,'a') -- 1";
    assert_eq!(
        folded(vec![insert(7), moved(7, 3)]),
        [seven[0], seven[1], three]
    );
    assert_eq!(
        folded(vec![moved(7, 3)]),
        ["DELETE FROM `d`.`counted` WHERE `id` IN(7) -- 1", three]
    );
}
