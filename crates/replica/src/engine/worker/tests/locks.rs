//! Locks that others have.

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
