//! What no rollback takes back, and what it does.

use super::*;

/// A transaction that makes temporary tables is one here, too; what it made goes before it is tried again.
#[test]
fn temporary_tables_within_a_transaction() {
    let create = "CREATE TEMPORARY TABLE tmp (a INT)";
    let there = "CREATE TEMPORARY TABLE IF NOT EXISTS old AS SELECT 1";
    let run = |drops: bool| {
        let last = fails(1213, usize::from(drops));
        let looks = Mutex::new(0);
        let fake = Fake::new(move |text| match text {
            "UPDATE acc SET v=2" => last(),
            // The first time after the table that was there.
            "SHOW WARNINGS" => {
                let mut looks = looks.lock().expect("nobody panics");
                *looks += 1;
                Some(match *looks % 2 {
                    1 => Reply::Row(["Note", "1050", "it exists"].map(String::from).to_vec()),
                    _ => Reply::Nothing,
                })
            }
            other => epoch(other),
        });
        let all = [create, there, "UPDATE acc SET v=1", "UPDATE acc SET v=2"];
        let unit = alone(Alone::NotTransactional, Ending::Xid, &all);
        assert_eq!(applied(&fake, &[], unit), End::Told);
        steps(&fake)
    };
    let once = [
        "BEGIN",
        create,
        there,
        "UPDATE acc SET v=1",
        "UPDATE acc SET v=2",
    ];
    let end = ["position", "COMMIT"];
    assert_eq!(run(false), [&["doing"][..], &once, &end].concat());
    let back = ["ROLLBACK", "DROP TEMPORARY TABLE IF EXISTS `tmp`"];
    let wanted = [&["doing"][..], &once, &back, &once, &end].concat();
    assert_eq!(run(true), wanted);
}

/// With the source's GTIDs each rollback of it would be a group of its own.
#[test]
fn no_temporary_tables_with_chosen_gtids() {
    let fake = Fake::new(epoch);
    let all = ["CREATE TEMPORARY TABLE tmp (a INT)", "UPDATE acc SET v=1"];
    let unit = alone(Alone::NotTransactional, Ending::Xid, &all);
    let End::Fatal(why) = applied(&fake, &CHOSEN, unit) else {
        panic!("it must end");
    };
    assert!(why.contains("drops a temporary table"), "{why}");
    assert!(why.contains("Nothing of it"), "{why}");
    assert_eq!(steps(&fake), [""; 0]);
}
