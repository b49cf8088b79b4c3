//! How many files and sockets the relay may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::log::{Level, Log};

/// For each connection: its socket, a file of events, a file of hints; and somebody who logs in.
const EACH: u64 = 4;
/// For all else, more of those that log in among it.
const OTHERS: u64 = 300;

/// So many are needed at most.
fn needed(connections: usize) -> u64 {
    EACH.saturating_mul(connections as u64)
        .saturating_add(OTHERS)
}

/// Raises the limit as far as the system lets, and says if that may not do.
pub(crate) fn raise(connections: usize, log: &Log) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let all = Rlimit {
            current: limit.maximum,
            ..limit
        };
        // What came of it is looked at below.
        let _ = setrlimit(Resource::Nofile, all);
    }
    let has = getrlimit(Resource::Nofile).current;
    let needs = needed(connections);
    // No number: no limit.
    if let Some(has) = has.filter(|has| *has < needs) {
        let text = format!(
            "The system lets the relay have {has} files and sockets open; with connections = {connections} it needs up to {needs}. \
             Raise that limit (LimitNOFILE= of its unit, ulimit -n), or lower connections. A replica that there is no descriptor \
             for is sent away, and comes again."
        );
        log.say(Level::Warning, &text);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn as_many_as_may_be() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log");
        let log = Log::file(&path).expect("writable");
        raise(1, &log);
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        let said = fs::read_to_string(&path).expect("readable");
        assert_eq!(said, "", "some hundreds are always there");
        raise(1 << 40, &log);
        let said = fs::read_to_string(&path).expect("readable");
        let complains = said.contains("LimitNOFILE");
        assert_eq!(complains, limit.current.is_some(), "{said}");
    }
}
