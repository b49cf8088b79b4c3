//! The source's GTIDs in the target's binlog (`source_gtid`).
//!
//! ```text
//!  a transaction    GTID; BEGIN, rows, position, COMMIT                one group
//!  a DDL            GTID; the statement                                one group
//!                   position                                           not logged
//!  rows of tables   GTID; BEGIN, rows (logged when they end), COMMIT   one group
//!  without trans-   position                                           not logged
//!  actions
//! ```
//!
//! What would be several groups is refused before it is begun: only one of them could have the GTID.

use dromon_binlog::{Gtid, Position};

use super::settle::logs_everything;
use crate::ahead::Ahead;
use crate::client::{Client, ClientError};
use crate::compile::{Filter, Op};
use crate::names::temporary;
use crate::unit::{Alone, Unit};

/// Error of a missing privilege.
const NO_PRIVILEGE: u16 = 1227;
/// Error of a variable that a server does not know.
const NO_VARIABLE: u16 = 1193;

/// Whether the target can have them: `Ok(false)`: it writes no binlog, and there is nothing to do.
/// The inner error says why it cannot.
pub(super) fn check(client: &mut Client, node: bool) -> Result<Result<bool, String>, ClientError> {
    const THEN: &str = "Nothing was applied. Or set source_gtid = off: then the target numbers what is applied by itself.";
    if node {
        return Ok(Err(format!(
            "source_gtid = on, and the target is a node of a cluster, which numbers transactions by itself. {THEN}"
        )));
    }
    if client.one("SELECT @@log_bin")?.as_deref() != Some("1") {
        return Ok(Ok(false));
    }
    // The other two variables need the same privilege.
    match client.query(b"SET SESSION gtid_domain_id=@@SESSION.gtid_domain_id") {
        Err(error) if error.code() == Some(NO_PRIVILEGE) => {
            return Ok(Err(format!(
                "source_gtid = on, and target_user may not choose GTIDs: {error}. On the target: GRANT BINLOG REPLAY ON *.* TO it \
                 (before 10.5: SUPER). {THEN}"
            )));
        }
        done => done?,
    };
    let everything = match logs_everything(client) {
        Err(error) if error.code() == Some(NO_PRIVILEGE) => {
            return Ok(Err(format!(
                "source_gtid = on, and target_user may not ask whether the target's binlog has everything (SHOW MASTER STATUS): {error}. On the \
                 target: GRANT BINLOG MONITOR ON *.* TO it (before 10.5: REPLICATION CLIENT). {THEN}"
            )));
        }
        everything => everything?,
    };
    if !everything {
        return Ok(Err(format!(
            "source_gtid = on, and the target leaves databases out of its binlog (binlog_do_db, binlog_ignore_db): the GTIDs of what \
             changes only these would be missing there. {THEN}"
        )));
    }
    Ok(Ok(true))
}

/// Why what was applied out of order before cannot be followed by this.
pub(super) fn has_gaps(position: &Position, ahead: &Ahead) -> Option<String> {
    (!ahead.is_empty()).then(|| {
        format!(
            "source_gtid = on, and of what follows {position} the target has {ahead} already, with GTIDs of its own (commit_order = group \
             was set before): the source's would be out of order in its binlog. Nothing was applied. Run once with source_gtid = off \
             until all of that is applied (the position is behind it), then set source_gtid = on."
        )
    })
}

/// An ALTER TABLE must not have two groups, of which the first one says nothing of its end: only one can
/// have the GTID, and what was under way in a crash is known by one.
pub(super) fn in_one_group(client: &mut Client) -> Result<(), ClientError> {
    match client.query(b"SET SESSION binlog_alter_two_phase=0") {
        // Older servers always write one.
        Err(error) if error.code() == Some(NO_VARIABLE) => Ok(()),
        done => done.map(|_| ()),
    }
}

/// Where the target's binlog is, in each domain.
pub(super) fn logged(client: &mut Client) -> Result<Position, ClientError> {
    let text = client.one("SELECT @@gtid_binlog_pos")?.unwrap_or_default();
    Ok(text.parse().unwrap_or_default())
}

/// Why a transaction of the source cannot come behind what the target's binlog has.
/// `under_way`: what was, when the last run ended.
pub(super) fn misplaced(logged: &Position, gtid: Gtid, under_way: Option<Gtid>) -> Option<String> {
    let last = logged.get(gtid.domain)?;
    let there = match under_way == Some(gtid) {
        true => format!(
            "{gtid} was under way when the last run ended: all of it may be in the target, parts, or nothing; look there."
        ),
        false if last == gtid => format!(
            "It has {gtid} itself, which this channel did not apply: if somebody else did, set gtid_pos in dromon_replica.position behind it."
        ),
        false => format!("This channel has applied everything before {gtid}, and nothing of it."),
    };
    (last.seqno >= gtid.seqno).then(|| {
        format!(
            "{gtid} comes next, and the target's binlog is at {last} already: with source_gtid = on its GTIDs would be out of order there, and \
             whoever follows the target would miss transactions. {there} Did others write \
             to the target (give it a gtid_domain_id of its own), or was this channel applied with source_gtid = off before? If nobody \
             follows the target, empty its binlog (RESET MASTER) and start again; or set source_gtid = off."
        )
    })
}

/// The statements that give the next group of a session this GTID. The domain must be set before the
/// number is checked.
pub(super) fn next(gtid: Gtid) -> String {
    format!(
        "SET SESSION sql_log_bin=1, gtid_domain_id={}, server_id={};SET SESSION gtid_seq_no={}",
        gtid.domain, gtid.server, gtid.seqno
    )
}

/// What a session's last group says of a GTID that it was to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Logged {
    /// None has it.
    No,
    /// The last one has it.
    Once,
    /// Others followed.
    More(Gtid),
}

/// Asks for it.
pub(super) fn last(client: &mut Client, gtid: Gtid) -> Result<Logged, ClientError> {
    let text = client.one("SELECT @@last_gtid")?.unwrap_or_default();
    Ok(match text.parse::<Gtid>() {
        Ok(last) if last == gtid => Logged::Once,
        Ok(last) if last.domain == gtid.domain && last.seqno > gtid.seqno => Logged::More(last),
        _ => Logged::No,
    })
}

/// Why a unit that cannot be rolled back would be several groups in the target's binlog.
pub(super) fn several(unit: &Unit, ops: &[Op], filter: &Filter) -> Option<&'static str> {
    if unit.alone != Some(Alone::NotTransactional) {
        return (ops.len() > 1).then_some(
            "its first statement commits by itself, and rows follow it (CREATE TABLE … SELECT)",
        );
    }
    let is_temporary =
        |op: &Op| matches!(op, Op::Statement { text, .. } if temporary(text).is_some());
    if ops.len() > 1 && ops.iter().any(is_temporary) {
        return Some(
            "it makes or drops a temporary table, so that it would be logged once more each time that it has to be rolled back",
        );
    }
    // Among rows that can be rolled back places are in their group; beside other tables they would be one more.
    let is_statement = |op: &Op| matches!(op, Op::Statement { .. }) && !op.is_place();
    let kinds = unit.kinds(filter);
    match (kinds.transactional, kinds.not_transactional) {
        (true, true) => Some("it changes tables with and without transactions"),
        (_, false) if !ops.iter().any(is_statement) => None,
        _ if ops.len() > 1 => Some("it has several statements on tables without transactions"),
        _ => None,
    }
}

/// Whether a statement that commits by itself is done as a whole, or not at all, even if it is killed. Of
/// others what was done until then is logged. Not known: no.
pub(super) fn is_whole(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text).to_ascii_uppercase();
    let words: Vec<&str> = text.split_whitespace().take(4).collect();
    match words[..] {
        ["ALTER" | "CREATE", "USER" | "ROLE", ..] => !text.contains(','),
        ["CREATE", "OR", "REPLACE", ..] => false,
        ["CREATE", ..] => !text.contains("SELECT"),
        ["ALTER" | "TRUNCATE", ..] => true,
        ["DROP", "DATABASE" | "SCHEMA", ..] => false,
        ["DROP", ..] => !text.contains(','),
        _ => false,
    }
}

/// What to do if the target's binlog has a number already that the source's next one needs.
pub(super) fn out_of_order(last: Option<Gtid>) -> String {
    last.map_or(String::new(), |last| {
        format!(
            " The target's binlog is at {last}, so that the source's next ones would be out of order there: start with source_gtid = off; or, \
             if nobody follows the target, empty its binlog (RESET MASTER) first."
        )
    })
}

/// What to do with a transaction that cannot be one group.
pub(super) fn by_hand(gtid: Gtid, channel: &str) -> String {
    format!(
        "Do it by hand, as one statement: SET SESSION gtid_domain_id = {}, server_id = {}; SET SESSION gtid_seq_no = {}; and it. Then SET \
         SESSION sql_log_bin = 0, set gtid_pos behind it in dromon_replica.position (channel '{channel}'), and start again. Or start with \
         source_gtid = off.",
        gtid.domain, gtid.server, gtid.seqno
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_target::{Fake, Reply, cell};

    fn gtid(text: &str) -> Gtid {
        text.parse().expect("a GTID")
    }

    #[test]
    fn what_comes_too_late() {
        let logged: Position = "0-2-7,3-2-1".parse().expect("a position");
        let why = misplaced(&logged, gtid("0-1-7"), None).expect("it is there already");
        assert!(why.contains("0-1-7") && why.contains("at 0-2-7"), "{why}");
        assert!(why.contains("nothing of it"), "{why}");
        assert_eq!(misplaced(&logged, gtid("0-1-8"), None), None);
        assert_eq!(misplaced(&logged, gtid("1-1-1"), None), None);
        // What is there of it is not known.
        let why = misplaced(&logged, gtid("0-1-7"), Some(gtid("0-1-7")));
        let why = why.expect("it is there already");
        assert!(why.contains("may be in the target"), "{why}");
        let why = misplaced(&logged, gtid("0-2-7"), None).expect("it is there already");
        assert!(
            why.contains("0-2-7 itself") && !why.contains("nothing"),
            "{why}"
        );
    }

    #[test]
    fn what_is_done_as_a_whole() {
        let whole = [
            "ALTER TABLE t ADD a INT, ADD b INT",
            "create table t (a INT, b INT)",
            "TRUNCATE t",
            "DROP TABLE `t` /* generated by server */",
        ];
        let parts = [
            "DROP TABLE a,b",
            "drop database d",
            "CREATE OR REPLACE TABLE t (a INT)",
            "CREATE USER a, b",
            "/* x */ DROP TABLE a",
            "INSERT INTO m SELECT 1",
        ];
        assert!(whole.iter().all(|text| is_whole(text.as_bytes())));
        assert!(!parts.iter().any(|text| is_whole(text.as_bytes())));
    }

    /// Older servers have no such variable.
    #[test]
    fn an_alter_is_one_group() {
        let with = |code: Option<u16>| {
            let fake = Fake::new(move |text| match text.contains("two_phase") {
                true => code.map(Reply::Fail),
                false => None,
            });
            let mut client = Client::connect(&fake.account()).expect("a target");
            in_one_group(&mut client).is_ok()
        };
        assert!(with(None) && with(Some(NO_VARIABLE)) && !with(Some(NO_PRIVILEGE)));
    }

    #[test]
    fn what_is_applied_out_of_order() {
        let before: Position = "0-1-4".parse().expect("a position");
        assert_eq!(has_gaps(&before, &Ahead::default()), None);
        let ahead = Ahead::between(&before, [gtid("0-1-6")]);
        let why = has_gaps(&before, &ahead).expect("it is ahead");
        assert!(
            why.contains("0-1-4") && why.contains("source_gtid = off"),
            "{why}"
        );
    }

    /// What a target says that cannot have them.
    #[test]
    fn targets_that_cannot() {
        let checked = |answers: fn(&str) -> Option<Reply>, node: bool| {
            let fake = Fake::new(move |text| match answers(text) {
                None if text == "SELECT @@log_bin" => Some(cell("1")),
                None if text == "SHOW MASTER STATUS" => Some(Reply::Nothing),
                other => other,
            });
            let mut client = Client::connect(&fake.account()).expect("a target");
            check(&mut client, node).expect("answers")
        };
        assert_eq!(checked(|_| None, false), Ok(true));
        let silent = |text: &str| (text == "SELECT @@log_bin").then(|| cell("0"));
        assert_eq!(checked(silent, false), Ok(false));
        let refuses = |text: &str| {
            text.contains("gtid_domain_id")
                .then_some(Reply::Fail(NO_PRIVILEGE))
        };
        let why = checked(refuses, false).expect_err("it may not");
        assert!(why.contains("GRANT BINLOG REPLAY"), "{why}");
        let refuses =
            |text: &str| (text == "SHOW MASTER STATUS").then_some(Reply::Fail(NO_PRIVILEGE));
        let why = checked(refuses, false).expect_err("it may not look");
        assert!(why.contains("GRANT BINLOG MONITOR"), "{why}");
        let filters = |text: &str| {
            let row = ["bin.1", "4", "shop", ""].map(String::from).to_vec();
            (text == "SHOW MASTER STATUS").then_some(Reply::Row(row))
        };
        let why = checked(filters, false).expect_err("some are missing");
        assert!(why.contains("binlog_do_db"), "{why}");
        let why = checked(|_| None, true).expect_err("a node");
        assert!(why.contains("node of a cluster"), "{why}");
    }
}
