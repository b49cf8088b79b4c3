//! What the target wrote itself: transactions of its number that the source has may be its own, which came back, or those of
//! another server with that number. Its binlog says which it wrote.

use std::collections::BTreeMap;

use dromon_binlog::Gtid;

use crate::client::{Client, ClientError};

/// The newest of each domain.
type Newest = BTreeMap<u32, u64>;

/// What is known of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Own {
    /// Its number as a server.
    pub server: u32,
    /// It writes a binlog.
    logs: bool,
    /// When the session began, before that wrote anything.
    before: Newest,
    /// When what this replica needs had been made: that took numbers of the target's own.
    made: Newest,
    now: Newest,
}

impl Own {
    /// `before`: the target's `gtid_binlog_state` before the session wrote anything. `made`: it may have written something
    /// since that came into the target's binlog.
    pub(super) fn read(
        client: &mut Client,
        server: u32,
        before: &str,
        made: bool,
    ) -> Result<Own, ClientError> {
        let before = newest(before, server);
        let now = newest(&state(client)?, server);
        Ok(Own {
            server,
            logs: client.one("SELECT @@log_bin")?.as_deref() == Some("1"),
            made: if made { now.clone() } else { before.clone() },
            before,
            now,
        })
    }

    /// Whether the target cannot have written anything that came back: it writes no binlog, or that had nothing of its own
    /// when the session began.
    pub(super) fn wrote_nothing(&self) -> bool {
        !self.logs || self.before.is_empty() && self.made == self.now
    }

    fn has(&self, gtid: Gtid) -> bool {
        let is_in = |newest: &Newest| newest.get(&gtid.domain).is_some_and(|n| *n >= gtid.seqno);
        is_in(&self.before) || is_in(&self.now) && !is_in(&self.made)
    }

    /// Why a transaction of its number is not one that it wrote.
    pub(super) fn lacks(
        &mut self,
        client: &mut Client,
        gtid: Gtid,
    ) -> Result<Option<String>, ClientError> {
        if self.has(gtid) {
            return Ok(None);
        }
        // It may have been written since.
        for (domain, seqno) in newest(&state(client)?, self.server) {
            let known = self.now.entry(domain).or_default();
            *known = seqno.max(*known);
        }
        if self.has(gtid) {
            return Ok(None);
        }
        let found = match self.now.get(&gtid.domain) {
            _ if !self.logs => "writes no binlog, from which others could have it".to_owned(),
            None => "has none of its own in its binlog in that domain".to_owned(),
            Some(_) if self.made.get(&gtid.domain) >= Some(&gtid.seqno) => {
                "did not have it in its binlog before this replica began".to_owned()
            }
            Some(seqno) => format!(
                "has its own in its binlog up to {}-{}-{seqno}",
                gtid.domain, gtid.server
            ),
        };
        Ok(Some(found))
    }
}

/// Each server's newest of each domain that the target's binlog ever had.
pub(super) fn state(client: &mut Client) -> Result<String, ClientError> {
    let state = client.one("SELECT @@gtid_binlog_state")?;
    Ok(state.unwrap_or_default())
}

fn newest(state: &str, server: u32) -> Newest {
    let gtids = state
        .split(',')
        .filter_map(|gtid| gtid.trim().parse::<Gtid>().ok());
    let own = gtids.filter(|gtid| gtid.server == server);
    own.map(|gtid| (gtid.domain, gtid.seqno)).collect()
}

/// What to do with a transaction that has its number where it wrote nothing.
pub(super) fn not_its_own(gtid: Gtid, found: &str, channel: &str) -> String {
    format!(
        "{gtid} comes next, and has the target's own server_id, {}; but the target did not write it: it {found}. Passed over as what came back \
         it would be missing. Everything before it is in the target, and nothing of it. Does another server have this server_id (1 is the \
         default of all), or is the target an older copy of the server that wrote it? Then give the target another server_id (SET GLOBAL \
         server_id, and in its file), and start again. If the target did write it, and its binlog was emptied or taken away since, set gtid_pos \
         in dromon_replica.position (channel '{channel}') behind the last one that it has.",
        gtid.server
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_target::{Fake, cell};

    #[test]
    fn what_the_target_wrote() {
        let lacks = |before: &str, made: Option<&'static str>, now: &'static str, gtid: &str| {
            let asked = std::sync::atomic::AtomicUsize::new(0);
            let fake = Fake::new(move |text| match text {
                "SELECT @@gtid_binlog_state" => {
                    let first = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
                    Some(cell(if first { made.unwrap_or(now) } else { now }))
                }
                "SELECT @@log_bin" => Some(cell("1")),
                _ => None,
            });
            let mut client = Client::connect(&fake.account()).expect("a target");
            let own = Own::read(&mut client, 2, before, made.is_some());
            let gtid = gtid.parse().expect("a GTID");
            let found = own.expect("answers").lacks(&mut client, gtid);
            found.expect("answers")
        };
        let state = "0-2-7,0-1-9,3-1-50,3-2-5";
        for (gtid, is_there) in [
            ("0-2-7", true),
            ("0-2-8", false),
            // Of another server, or domain.
            ("0-2-9", false),
            ("3-2-5", true),
            ("3-2-6", false),
            ("4-2-1", false),
        ] {
            assert_eq!(
                lacks(state, None, state, gtid).is_none(),
                is_there,
                "{gtid}"
            );
            assert_eq!(lacks("", None, state, gtid).is_none(), is_there, "{gtid}");
        }
        // What this replica made took numbers that others have.
        for (gtid, is_there) in [("0-2-7", true), ("0-2-9", false), ("0-2-11", true)] {
            let found = lacks("0-2-7", Some("0-2-10"), "0-2-12", gtid);
            assert_eq!(found.is_none(), is_there, "{gtid}: {found:?}");
        }
    }
}
