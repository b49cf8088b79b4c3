//! XA transactions of which statements were logged, beside others.

use super::*;

/// The target has `d.t` and `d.u`, of which `u` has a trigger or not.
fn with_tables(trigger: bool) -> impl Fn(&str) -> Option<Reply> + Send + Sync + 'static {
    let rows = |all: &[&[&str]]| {
        let row = |cells: &&[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        Some(Reply::Rows(all.iter().map(row).collect()))
    };
    move |text| match text {
        _ if text.contains("FROM information_schema.TABLES ") && text.contains("ENGINE") => {
            rows(&[
                &["d", "t", "BASE TABLE", "InnoDB"],
                &["d", "u", "BASE TABLE", "InnoDB"],
            ])
        }
        _ if text.contains("FROM information_schema.COLUMNS ") && text.contains("EXTRA") => {
            rows(&[
                &["d", "t", "grp", "int(11)", "", "", "", "NEVER", "", ""],
                &["d", "u", "id", "int(11)", "", "", "", "NEVER", "", ""],
            ])
        }
        _ if text.contains("FROM information_schema.STATISTICS ") => rows(&[
            &["d", "t", "PRIMARY", "grp", "", "0", "BTREE"],
            &["d", "u", "PRIMARY", "id", "", "0", "BTREE"],
        ]),
        _ if trigger && text.contains("FROM information_schema.TRIGGERS ") => rows(&[&["d", "u"]]),
        text => serves(text),
    }
}

/// Its statements are run behind what others did to other tables, if that is certain.
#[test]
fn what_others_did_to_other_tables() {
    for (between, trigger, runs) in [
        ("UPDATE u SET id = 5", false, true),
        ("UPDATE d.u SET id = 5", false, true),
        ("UPDATE t SET grp = 5", false, false),
        // It may change another table, here or there.
        ("UPDATE u SET id = 5", true, false),
        ("UPDATE u SET id = f(5)", false, false),
        ("CALL p()", false, false),
        ("UPDATE v SET id = 5", false, false),
    ] {
        let whole = gtid_flags::TRANSACTIONAL;
        let text = query(between, "d");
        let packets = [
            vec![started(0)],
            xa_prepare("0-1-5", whole),
            vec![
                gtid(6, whole),
                event(EventType::QUERY, &Payload::Other(&text[19..])),
                event(EventType::XID, &Payload::Other(&[1, 0, 0, 0, 0, 0, 0, 0])),
            ],
            xa_commit("0-1-7"),
        ];
        let source = sends(packets.concat());
        let target = Fake::new(with_tables(trigger));
        let mut settings = settings(&target, &[]);
        settings.source.address = source.account().address;
        let running = Running::of(settings);
        let ran = || {
            target
                .said()
                .contains(&"DELETE FROM t WHERE grp = 5".to_owned())
        };
        if runs {
            running.until(ran);
            running.told_to_end();
        } else {
            let end = running.end();
            let refused = matches!(&end, End::Fatal(why) if why.contains("others committed since"));
            assert!(refused && !ran(), "{between}: {end:?}");
        }
        let said = target.said();
        let at = |text: &str| said.iter().position(|said| said == text);
        assert!(at(between).is_some(), "{between}: {said:?}");
        assert!(!runs || at(between) < at("DELETE FROM t WHERE grp = 5"));
    }
}
