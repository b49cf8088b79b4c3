//! Whether a primary refuses because it has lost what it had sent. Then it will use the same numbers for
//! other transactions, and once it has used them all it would not refuse any more.

use dromon_binlog::{Gtid, GtidSet, Position};

use super::session::SessionError;

/// Why a server refuses a place in its binlog (ER_MASTER_FATAL_ERROR_READING_BINLOG).
const NOT_THERE: u16 = 1236;

/// What of the position a primary of MariaDB, of this server id, once wrote and has not any more;
/// `None`: it refuses for another reason. What another server wrote it may still get.
pub(super) fn lost(error: &SessionError, has: &Position, server_id: u32) -> Option<Gtid> {
    let SessionError::Refused { failure, .. } = error else {
        return None;
    };
    if failure.code != NOT_THERE {
        return None;
    }
    // It names the one that it does not find; of a place that it has purged it names none.
    let words = failure
        .message
        .split(|c: char| c != '-' && !c.is_ascii_digit());
    let named = words.filter_map(|word| word.parse::<Gtid>().ok());
    let mut lost = named.filter(|gtid| {
        has.get(gtid.domain) == Some(*gtid) && gtid.server == server_id && server_id != 0
    });
    lost.next()
}

/// The same of MySQL: what it lacks of its own, by its uuid.
pub(super) fn lost_set(lacks: &GtidSet, server_uuid: &str) -> GtidSet {
    let mut lost = GtidSet::new();
    for (source, list) in lacks.iter() {
        if dromon_binlog::uuid_text(source).eq_ignore_ascii_case(server_uuid.trim()) {
            for (begin, end) in list {
                lost.add_interval(*source, *begin, *end);
            }
        }
    }
    lost
}

/// What it means, and what to do.
pub(super) fn why(server_id: u32, lost: &str) -> String {
    format!(
        "The primary (server id {server_id}) has lost {lost}, which it wrote itself and the relay has stored: RESET MASTER was run \
         there, or it crashed with sync_binlog other than 1, or it was restored from an older copy. It uses these numbers again for \
         other transactions, so no more is pulled from it, and what is stored is served."
    )
}

#[cfg(test)]
mod tests {
    use super::super::session::refused;
    use super::*;
    use crate::wire::Failure;

    #[test]
    fn who_has_lost_what() {
        let has: Position = "0-1-100,5-2-7".parse().expect("a position");
        let says = |code, text: &str| refused("to send", Failure::new(code, text));
        let named = "GTID 0-1-100, which is not there";
        let gtid = "0-1-100".parse().expect("a GTID");
        for (code, text, server_id, expected) in [
            (1236, named, 1, Some(gtid)),
            (1236, "'0-1-100'.", 1, Some(gtid)),
            // Another server's, which this one may still get.
            (1236, named, 2, None),
            (1236, "GTID 5-2-7 is not there", 1, None),
            (1045, named, 1, None),
            // Not what was asked for.
            (1236, "GTID 0-1-99", 1, None),
            (1236, "GTID 0-1-1000", 1, None),
            (1236, "purged", 1, None),
            (1236, "0-1 0-1- -0-1-100 2026-11-27 é", 1, None),
        ] {
            let found = lost(&says(code, text), &has, server_id);
            assert_eq!(found, expected, "{code} {text} {server_id}");
        }
        assert_eq!(lost(&SessionError::NoTls, &has, 1), None);
    }

    #[test]
    fn of_mysql() {
        const A: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";
        const B: &str = "8e11fa47-71ca-11e1-9e33-c80aa9429563";
        let lacks: GtidSet = format!("{A}:3-5:9,{B}:1").parse().expect("a set");
        let of = |uuid: &str| lost_set(&lacks, uuid).to_string();
        assert_eq!(of(&A.to_uppercase()), format!("{A}:3-5:9"));
        assert_eq!(of(B), format!("{B}:1"));
        assert_eq!(of(""), "");
    }
}
