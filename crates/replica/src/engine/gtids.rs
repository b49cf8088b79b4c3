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
use crate::client::{Client, ClientError};
use crate::compile::{Filter, Op};
use crate::unit::{Alone, Unit};

/// Error of a missing privilege.
const NO_PRIVILEGE: u16 = 1227;

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
    if !logs_everything(client)? {
        return Ok(Err(format!(
            "source_gtid = on, and the target leaves databases out of its binlog (binlog_do_db, binlog_ignore_db): the GTIDs of what \
             changes only these would be missing there. {THEN}"
        )));
    }
    Ok(Ok(true))
}

/// Where the target's binlog is, in each domain.
pub(super) fn logged(client: &mut Client) -> Result<Position, ClientError> {
    let text = client.one("SELECT @@gtid_binlog_pos")?.unwrap_or_default();
    Ok(text.parse().unwrap_or_default())
}

/// Why a transaction of the source cannot come behind what the target's binlog has.
pub(super) fn misplaced(logged: &Position, gtid: Gtid) -> Option<String> {
    let last = logged.get(gtid.domain)?;
    (last.seqno >= gtid.seqno).then(|| {
        format!(
            "{gtid} comes next, and the target's binlog is at {last} already: with source_gtid = on its GTIDs would be out of order there, and \
             whoever follows the target would miss transactions. Nothing of {gtid} is in the target; everything before it is. Did others write \
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
    let kinds = unit.kinds(filter);
    match (kinds.transactional, kinds.not_transactional) {
        (true, true) => Some("it changes tables with and without transactions"),
        (_, false) if !ops.iter().any(|op| matches!(op, Op::Statement { .. })) => None,
        _ if ops.len() > 1 => Some("it has several statements on tables without transactions"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, Reply, cell};

    fn gtid(text: &str) -> Gtid {
        text.parse().expect("a GTID")
    }

    #[test]
    fn what_comes_too_late() {
        let logged: Position = "0-2-7,3-2-1".parse().expect("a position");
        let why = misplaced(&logged, gtid("0-1-7")).expect("it is there already");
        assert!(why.contains("0-1-7") && why.contains("at 0-2-7"), "{why}");
        assert_eq!(misplaced(&logged, gtid("0-1-8")), None);
        assert_eq!(misplaced(&logged, gtid("1-1-1")), None);
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
