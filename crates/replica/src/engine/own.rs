//! What the target wrote itself: transactions of its number that the source has may be its own, which came back, or those of
//! another server with that number. Its binlog says which it wrote.

use dromon_binlog::Gtid;

use crate::client::{Client, ClientError};
use crate::made::{self, Newest, Numbers};

/// What is known of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Own {
    /// Its number as a server.
    pub server: u32,
    /// It writes a binlog.
    logs: bool,
    now: Newest,
    /// What replicas made there took numbers of the target's own.
    made: Numbers,
}

impl Own {
    pub(super) fn read(client: &mut Client, server: u32) -> Result<Own, ClientError> {
        let now = made::newest(client, server)?;
        let logs = client.one("SELECT @@log_bin")?.as_deref() == Some("1");
        // Without a binlog it says nothing of what one had.
        let made = match logs {
            true => made::read(client, server, &now)?,
            false => Numbers::new(),
        };
        Ok(Own {
            server,
            logs,
            made,
            now,
        })
    }

    /// Whether the target cannot have written anything that came back: it writes no binlog, or that has nothing of its own
    /// but what replicas made.
    pub(super) fn wrote_nothing(&self) -> bool {
        let wrote = |(domain, newest): (&u32, &u64)| {
            let made = self.made.get(domain);
            let before = |seqno: &u64| made.and_then(|made| made.get(seqno)).copied();
            let all = std::iter::successors(Some(*newest), before);
            all.last().is_some_and(|first| first > 0)
        };
        !self.logs || !self.now.iter().any(wrote)
    }

    /// Whether it lies where the target's newest own one was followed by what a replica made.
    fn is_of_made(&self, gtid: Gtid) -> bool {
        let made = self.made.get(&gtid.domain);
        let next = made.and_then(|made| made.range(gtid.seqno..).next());
        next.is_some_and(|(_, before)| *before < gtid.seqno)
    }

    fn has(&self, gtid: Gtid) -> bool {
        let newest = self.now.get(&gtid.domain);
        newest.is_some_and(|newest| *newest >= gtid.seqno) && !self.is_of_made(gtid)
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
        let now = made::newest(client, self.server)?;
        if self.logs && now != self.now {
            self.made = made::read(client, self.server, &now)?;
            self.now = now;
        }
        if self.has(gtid) {
            return Ok(None);
        }
        let found = match self.now.get(&gtid.domain) {
            _ if !self.logs => "writes no binlog, from which others could have it".to_owned(),
            None => "has none of its own in its binlog in that domain".to_owned(),
            Some(_) if self.is_of_made(gtid) => {
                "did not have it in its binlog before a replica made its own tables and rows there"
                    .to_owned()
            }
            Some(seqno) => format!(
                "has its own in its binlog up to {}-{}-{seqno}",
                gtid.domain, gtid.server
            ),
        };
        Ok(Some(found))
    }
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::fake_target::{Fake, Reply, cell};

    #[test]
    fn what_the_target_wrote() {
        // What a replica made took numbers that others have, of which some have come back.
        let made: &[[&'static str; 3]] = &[
            ["0", "8", "7"],
            ["0", "10", "8"],
            ["5", "1", "0"],
            ["5", "4", "1"],
        ];
        let rows = |rows: &[[&str; 3]]| match rows.is_empty() {
            true => Reply::Nothing,
            false => Reply::Rows(
                rows.iter()
                    .map(|row| row.map(str::to_owned).to_vec())
                    .collect(),
            ),
        };
        let lacks = |made: &'static [[&str; 3]], state: [&'static str; 2], gtid: &str| {
            let asked = AtomicUsize::new(0);
            let fake = Fake::new(move |text| match text {
                "SELECT @@gtid_binlog_state" => {
                    Some(cell(state[asked.fetch_add(1, Ordering::Relaxed).min(1)]))
                }
                "SELECT @@log_bin" => Some(cell("1")),
                _ => text.starts_with("SELECT domain").then(|| rows(made)),
            });
            let mut client = Client::connect(&fake.account()).expect("a target");
            let mut own = Own::read(&mut client, 2).expect("answers");
            let gtid = gtid.parse().expect("a GTID");
            let found = own.lacks(&mut client, gtid).expect("answers");
            (found.is_some(), own.wrote_nothing())
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
            // Also what is written since.
            for before in [state, ""] {
                assert_eq!(
                    lacks(&[], [before, state], gtid),
                    (!is_there, false),
                    "{gtid}"
                );
            }
        }
        let state = "0-2-12,5-2-4";
        for (gtid, is_there) in [
            ("0-2-7", true),
            ("0-2-8", false),
            // Another server's took that number here.
            ("0-2-9", false),
            ("0-2-10", false),
            ("0-2-11", true),
            ("5-2-3", false),
        ] {
            assert_eq!(
                lacks(made, [state, state], gtid),
                (!is_there, false),
                "{gtid}"
            );
        }
        // Nothing but what replicas made, in this session or an earlier one.
        let only: &[[&'static str; 3]] = &[["0", "3", "0"], ["0", "7", "3"]];
        assert_eq!(
            lacks(only, ["0-2-7,0-1-9", "0-2-7,0-1-9"], "0-2-7"),
            (true, true)
        );
        assert_eq!(lacks(only, ["0-2-7", "0-2-8"], "0-2-7"), (true, false));
        assert_eq!(lacks(&[], ["", ""], "0-2-7"), (true, true));
    }
}
