//! What a replica has made in the target's binlog by the target's own numbers: its tables and rows, which the target's
//! replicas need. So that it can be told from what the target wrote itself, it is written down; that is not in the binlog.
//!
//! ```text
//! dromon_replica.made
//!   server, domain, seqno     a GTID that such a statement took
//!   own_before                the newest one of the same server and domain before it; 0: there was none. Or the one before
//!                             it, if others wrote there meanwhile
//! ```
//!
//! Under another number than the target's such things would go round for ever where servers follow each other: each leaves
//! out what has its own number, and nobody would leave out this.

use std::collections::BTreeMap;

use dromon_binlog::Gtid;

use crate::client::{Client, ClientError, Result as Answer};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS dromon_replica.made (\
    server INT UNSIGNED NOT NULL, \
    domain INT UNSIGNED NOT NULL, \
    seqno BIGINT UNSIGNED NOT NULL, \
    own_before BIGINT UNSIGNED NOT NULL, \
    PRIMARY KEY (server, domain, seqno)\
    ) ENGINE=InnoDB";

const BEFORE: &str =
    "SELECT @@server_id, @@last_gtid, @@gtid_binlog_state, @@GLOBAL.gtid_slave_pos";
const BEHIND: &str = "SELECT @@last_gtid";

const NO_DATABASE: u16 = 1049;
const NO_TABLE: u16 = 1146;

/// Of each domain, which numbers such statements took, and the newest own one before each.
pub(crate) type Numbers = BTreeMap<u32, BTreeMap<u64, u64>>;
/// The newest of each domain.
pub(crate) type Newest = BTreeMap<u32, u64>;

/// Statements of which replicas of the target are to hear, if what is applied is in its binlog.
#[derive(Debug)]
pub(crate) struct Made {
    logged: bool,
    found: Vec<(Gtid, u64)>,
}

impl Made {
    /// `logged`: they come into the binlog.
    pub(crate) fn new(logged: bool) -> Made {
        Made {
            logged,
            found: Vec::new(),
        }
    }

    /// Runs one of them.
    pub(crate) fn write(
        &mut self,
        client: &mut Client,
        text: &[u8],
    ) -> Result<Vec<Answer>, ClientError> {
        if !self.logged {
            return client.query(text);
        }
        let mut row = client.rows(BEFORE)?.into_iter().flatten();
        let mut cell = || {
            let cell = row.next().flatten().unwrap_or_default();
            String::from_utf8_lossy(&cell).into_owned()
        };
        let (server, last, state, applied) = (cell(), cell(), cell(), cell());
        let done = client.query(text)?;
        let behind = client.one(BEHIND)?.unwrap_or_default();
        if behind != last
            && let Ok(gtid) = behind.parse::<Gtid>()
            && gtid.server.to_string() == server
        {
            self.found.push((gtid, own_before(gtid, &state, &applied)));
        }
        Ok(done)
    }

    /// Writes down which numbers they took, when the session's statements are not in the binlog any more.
    pub(crate) fn keep(self, client: &mut Client) -> Result<(), ClientError> {
        if self.found.is_empty() {
            return Ok(());
        }
        let rows: Vec<String> = self
            .found
            .iter()
            .map(|(gtid, before)| {
                let Gtid {
                    domain,
                    server,
                    seqno,
                } = gtid;
                format!("({server},{domain},{seqno},{before})")
            })
            .collect();
        client.query(TABLE.as_bytes())?;
        let text = format!(
            "INSERT INTO dromon_replica.made (server, domain, seqno, own_before) VALUES {} \
             ON DUPLICATE KEY UPDATE own_before=VALUES(own_before)",
            rows.join(",")
        );
        client.query(text.as_bytes()).map(|_| ())
    }
}

/// The newest one of its server and domain before it. `state`: that of the binlog, which was asked for a moment before: if
/// something has come since, that may have been the server's own. `applied`: what its own replica threads have, or a copy
/// brought along. It counts on from there, too, and wrote none of it.
fn own_before(gtid: Gtid, state: &str, applied: &str) -> u64 {
    let of = |text: &str| -> Vec<Gtid> {
        let all = text.split(',').filter_map(|it| it.trim().parse().ok());
        all.filter(|it: &Gtid| it.domain == gtid.domain).collect()
    };
    let there = of(state);
    let all = there.iter().copied().chain(of(applied));
    let newest = all.map(|it| it.seqno).max().unwrap_or(0);
    if newest + 1 != gtid.seqno {
        return gtid.seqno.saturating_sub(1);
    }
    let own = there.iter().find(|it| it.server == gtid.server);
    own.map_or(0, |it| it.seqno)
}

/// The newest ones of this server that the target's binlog ever had.
pub(crate) fn newest(client: &mut Client, server: u32) -> Result<Newest, ClientError> {
    let state = client
        .one("SELECT @@gtid_binlog_state")?
        .unwrap_or_default();
    let gtids = state
        .split(',')
        .filter_map(|gtid| gtid.trim().parse::<Gtid>().ok());
    let own = gtids.filter(|gtid| gtid.server == server);
    Ok(own.map(|gtid| (gtid.domain, gtid.seqno)).collect())
}

/// What is written down of a server of this number whose own newest are these. If it is at less than that it has begun to
/// count anew (RESET MASTER, an older copy): that says nothing any more, and is removed.
pub(crate) fn read(
    client: &mut Client,
    server: u32,
    newest: &Newest,
) -> Result<Numbers, ClientError> {
    let text =
        format!("SELECT domain, seqno, own_before FROM dromon_replica.made WHERE server={server}");
    let rows = match client.rows(&text) {
        Err(error) if matches!(error.code(), Some(NO_TABLE | NO_DATABASE)) => Vec::new(),
        rows => rows?,
    };
    let mut all = Numbers::new();
    for row in rows {
        let mut numbers = row.into_iter().map(|cell| {
            let cell = String::from_utf8(cell.unwrap_or_default()).ok()?;
            cell.parse::<u64>().ok()
        });
        let mut next = || numbers.next().flatten();
        if let (Some(domain), Some(seqno), Some(before)) = (next(), next(), next())
            && let Ok(domain) = u32::try_from(domain)
        {
            all.entry(domain).or_default().insert(seqno, before);
        }
    }
    let past_of = |newest: &Newest| -> Vec<u32> {
        let is_past = |domain: &u32, numbers: &BTreeMap<u64, u64>| {
            let last = numbers.last_key_value().map_or(0, |(seqno, _)| *seqno);
            newest.get(domain).is_none_or(|newest| *newest < last)
        };
        let past = all
            .iter()
            .filter(|(domain, numbers)| is_past(domain, numbers));
        past.map(|(domain, _)| *domain).collect()
    };
    let mut past = past_of(newest);
    if !past.is_empty() {
        // Another channel may have begun since that was asked, and what it made be written down here.
        past = past_of(&self::newest(client, server)?);
    }
    for domain in past {
        all.remove(&domain);
        let text =
            format!("DELETE FROM dromon_replica.made WHERE server={server} AND domain={domain}");
        client.query(text.as_bytes())?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::fake_target::{Fake, Reply, cell};

    #[test]
    fn what_was_own_before() {
        for (gtid, state, applied, wanted) in [
            ("0-2-1", "", "", 0),
            ("0-2-8", "0-2-5,0-1-7,3-2-9", "", 5),
            ("0-2-8", "0-1-7", "", 0),
            // Something else came between, and may be its own.
            ("0-2-9", "0-1-7", "", 8),
            ("3-2-1", "0-2-9", "", 0),
            // It counts on from what it has of others, or of the server whose number it has now.
            ("0-2-4001", "", "0-1-4000", 0),
            ("0-2-4001", "", "3-1-7,0-2-4000", 0),
            ("0-2-4001", "0-2-5", "0-1-4000", 5),
            ("0-2-4002", "0-2-4001", "0-1-4000", 4001),
            ("0-2-4002", "", "0-1-4000", 4001),
            ("0-2-1", "", "3-1-4000", 0),
        ] {
            let gtid = gtid.parse().expect("a GTID");
            assert_eq!(own_before(gtid, state, applied), wanted, "{gtid}");
        }
    }

    /// What has come into the binlog is written down, and nothing else.
    #[test]
    fn numbers_are_written_down() {
        let kept = |logged: bool| {
            let asked = AtomicUsize::new(0);
            let fake = Fake::new(move |text| match text {
                BEFORE => {
                    let n = asked.load(Ordering::Relaxed);
                    let last = ["", "0-2-8", "0-2-8"][n];
                    let state = ["0-1-7", "0-1-7,0-2-8", "0-1-7,0-2-8"][n];
                    let row = ["2", last, state, "0-1-7"].map(str::to_owned);
                    Some(Reply::Row(row.to_vec()))
                }
                // The second one changes nothing.
                BEHIND => Some(cell(
                    ["0-2-8", "0-2-8", "0-2-9"][asked.fetch_add(1, Ordering::Relaxed)],
                )),
                _ => None,
            });
            let mut client = Client::connect(&fake.account()).expect("a target");
            let mut made = Made::new(logged);
            for text in ["CREATE a", "CREATE b", "CREATE c"] {
                made.write(&mut client, text.as_bytes()).expect("it is");
            }
            made.keep(&mut client).expect("it is");
            let said = fake.done();
            assert_eq!(said[..3], ["CREATE a", "CREATE b", "CREATE c"]);
            said[3..].join("; ")
        };
        assert_eq!(kept(false), "");
        let text = kept(true);
        assert!(text.contains("VALUES (2,0,8,0),(2,0,9,8) ON"), "{text}");
    }

    #[test]
    fn what_counts_anew() {
        for (newest, now, is_there) in [
            (Some(9), "", true),
            (Some(8), "0-2-8,3-2-9", false),
            (None, "0-1-9", false),
            // Another channel has made something between the two questions.
            (Some(8), "0-2-9", true),
            (None, "0-1-10,0-2-9", true),
        ] {
            let fake = Fake::new(move |text| {
                let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
                let rows = vec![row(["0", "8", "0"]), row(["0", "9", "8"])];
                match text {
                    "SELECT @@gtid_binlog_state" => Some(cell(now)),
                    _ => text.starts_with("SELECT").then_some(Reply::Rows(rows)),
                }
            });
            let mut client = Client::connect(&fake.account()).expect("a target");
            let newest: Newest = newest.map(|n| (0, n)).into_iter().collect();
            let all = read(&mut client, 2, &newest).expect("answers");
            assert_eq!(all.contains_key(&0), is_there);
            assert_eq!(fake.done().is_empty(), is_there, "{:?}", fake.said());
        }
        let fake = Fake::new(|text| text.starts_with("SELECT").then_some(Reply::Fail(NO_TABLE)));
        let mut client = Client::connect(&fake.account()).expect("a target");
        let all = read(&mut client, 2, &BTreeMap::new()).expect("there is none");
        assert!(all.is_empty());
    }
}
