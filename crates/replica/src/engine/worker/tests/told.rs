//! What people are told who must put the target right.

use super::*;

/// Who has the lock for which a unit waited in vain is named, if it is no connection of the session's.
#[test]
fn who_has_the_lock_is_named() {
    let why = |of: u64, code: u16, there: bool| {
        let fake = Fake::new(move |text| match text {
            _ if text.contains("PROCESSLIST WHERE ID=4711") && there => {
                Some(cell("app from web1:5000, Sleep for 300 s"))
            }
            _ if text.contains("PROCESSLIST") => Some(Reply::Nothing),
            other => epoch(other),
        });
        let settings = settings(&fake, &[]);
        let shared = Arc::new(Shared::new(&settings, "0-1-4".into(), 64));
        shared.lock().stranger = Some((of, 4711));
        let mut worker = worker(settings, &shared, None);
        let unit = unit(vec![rows("plain", &[(None, Some((1, Some("a"))))])]);
        let trouble = Trouble::Error(code, "Lock wait timeout exceeded".into());
        let End::Fatal(why) = worker.fatal(1, &unit, &trouble) else {
            panic!("it must end");
        };
        why
    };
    let named = why(1, 1205, true);
    assert!(
        named.contains("Connection 4711") && named.contains("web1") && named.contains("KILL 4711"),
        "{named}"
    );
    let gone = why(1, 1205, false);
    assert!(
        gone.contains("Connection 4711") && gone.contains("is gone"),
        "{gone}"
    );
    assert!(
        !why(2, 1205, true).contains("4711"),
        "it was another unit's"
    );
    assert!(!why(1, 1213, true).contains("4711"), "it was no wait");
}

/// An option that forbids a statement is named, also where the statement is not shown.
#[test]
fn options_that_forbid_a_statement_are_named() {
    const STRICT: &str = "The MariaDB server is running with the --strict-password-validation option so it cannot execute this statement";
    const CREATE: &str = "CREATE USER a IDENTIFIED BY PASSWORD '*geheim'";
    let why = |code: u16, said: &'static str| {
        let fake = Fake::new(move |text| match text {
            CREATE => Some(Reply::Says(code, said)),
            other => epoch(other),
        });
        let unit = alone(Alone::Statement, Ending::Statement, &[CREATE]);
        match applied(&fake, &[], unit) {
            End::Fatal(why) => why,
            end => panic!("it must stop: {end:?}"),
        }
    };
    let strict = why(1290, STRICT);
    assert!(strict.contains(STRICT), "{strict}");
    assert!(
        strict.contains("SET GLOBAL strict_password_validation = OFF"),
        "{strict}"
    );
    assert!(!strict.contains("geheim"), "{strict}");
    let other = why(1290, "the --skip-grant-tables option");
    assert!(
        other.contains("--skip-grant-tables") && !other.contains("SET GLOBAL"),
        "{other}"
    );
    let role = why(1698, "Access denied for user 'dromon'@'%'");
    assert!(
        role.contains("'dromon'@'%' (") && role.contains("GRANT role TO target_user WITH ADMIN"),
        "{role}"
    );
    assert!(!why(1064, "near '*geheim'").contains("geheim"));
}

/// A row that cannot be put right, as another one has its unique value, is named.
#[test]
fn what_cannot_be_repaired_is_named() {
    let fake = Fake::new(|text| match text {
        _ if text.starts_with("INSERT INTO `d`.`unique`") => Some(Reply::Fail(1062)),
        _ if text.starts_with("UPDATE `d`.`unique`") => Some(Reply::Done(0)),
        other => epoch(other),
    });
    let insert = rows("unique", &[(None, Some((1, Some("a"))))]);
    let End::Fatal(why) = applied(&fake, &["difference=repair"], unit(vec![insert])) else {
        panic!("it must stop");
    };
    assert!(
        why.contains("the insert into d.unique where `id`=1 (0-1-1)"),
        "{why}"
    );
    assert!(!why.contains("difference = repair"), "{why}");
    let done = fake.done();
    assert!(
        done.iter().any(|text| text.contains("WHERE NOT EXISTS")),
        "{done:?}"
    );
}

/// A server says only in its own threads that a column's type does not fit.
#[test]
fn events_that_do_not_fit_are_explained() {
    let why = |code: u16| {
        let fake = Fake::new(move |text| match text {
            // Not the description of their format, which the unit does not have.
            _ if text.starts_with("BINLOG") && text.len() > 40 => Some(Reply::Fail(code)),
            other => epoch(other),
        });
        let insert = unit(vec![rows("keyless", &[(None, Some((1, Some("a"))))])]);
        match applied(&fake, &[], insert) {
            End::Fatal(why) => why,
            end => panic!("it must stop: {end:?}"),
        }
    };
    let fit = why(1105);
    assert!(
        fit.contains("the rows of d.keyless (0-1-1)") && fit.contains("slave_type_conversions"),
        "{fit}"
    );
    assert!(!why(1032).contains("slave_type_conversions"));
}

/// Of several transactions none is in the target, also not those before the one that is named.
#[test]
fn what_is_there_of_transactions_that_are_applied_as_one() {
    let why = |all: Vec<Vec<_>>| {
        let fake = Fake::new(move |text| match text {
            _ if text.starts_with("UPDATE `d`") => Some(Reply::Done(0)),
            _ if text.starts_with("SELECT CONCAT_WS") => Some(Reply::Nothing),
            _ if text.starts_with("INSERT INTO `d`") => Some(Reply::Done(1)),
            other => epoch(other),
        });
        match applied(&fake, &[], unit(all)) {
            End::Fatal(why) => why,
            end => panic!("it must stop: {end:?}"),
        }
    };
    let good = || rows("plain", &[(None, Some((1, Some("a"))))]);
    let bad = || rows("plain", &[(Some((2, Some("a"))), Some((2, Some("b"))))]);
    let two = why(vec![good(), bad()]);
    let parts = [
        "0-1-1 to 0-1-2 cannot be applied: the update of d.plain where `id`=2 (0-1-2): the row is missing on the target. ",
        "none of 0-1-1 to 0-1-2 is in the target; everything before 0-1-1 is. Put",
        "merge = 1",
    ];
    assert!(parts.iter().all(|part| two.contains(part)), "{two}");
    let one = why(vec![bad()]);
    assert!(
        one.contains("Nothing of it is in the target; everything before it is")
            && !one.contains("merge"),
        "{one}"
    );
}
