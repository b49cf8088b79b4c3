//! What is set and kept on the target.
//!
//! ```text
//! dromon_replica.position     one row for each channel
//!   channel                   name of this replica
//!   epoch                     rises with each start: who has an older one can commit nothing
//!   gtid_pos                  everything up to here is applied; changed in the same transaction
//!   doing                     GTID of what is under way that no rollback takes back; NULL: nothing
//!   doing_text                the beginning of its statement
//!   doing_connection          number of the connection that runs it
//!   doing_binlog              gtid_binlog_pos of the target before it
//! ```

use dromon_binlog::{Gtid, Position};

use crate::client::{Client, ClientError};
use crate::value::put_text;

/// A session for rows: bytes are taken as they are, time is UTC, what the source had checked is not
/// checked again, but nothing is changed in silence.
pub const ROWS: &str = "SET NAMES binary, time_zone='+00:00', foreign_key_checks=1, unique_checks=1, check_constraint_checks=0, \
     sql_mode='STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES', sql_if_exists=0, autocommit=1, timestamp=DEFAULT, \
     sql_auto_is_null=0, explicit_defaults_for_timestamp=1, auto_increment_increment=1, auto_increment_offset=1, tx_isolation='READ-COMMITTED'";

/// Once for each connection. The first statement makes it known among others.
pub const ONCE: &str =
    "SET @dromon_replica=1, wait_timeout=2147483, net_read_timeout=600, net_write_timeout=600";

const TABLE: &str = "CREATE TABLE IF NOT EXISTS dromon_replica.position (\
    channel VARCHAR(64) NOT NULL PRIMARY KEY, \
    epoch BIGINT UNSIGNED NOT NULL, \
    gtid_pos TEXT NOT NULL, \
    doing VARCHAR(64) NULL, \
    doing_text TEXT NULL, \
    doing_connection BIGINT UNSIGNED NULL, \
    doing_binlog TEXT NULL, \
    changed TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)\
    ) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4";

/// Something that was under way and cannot be rolled back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doing {
    /// What.
    pub gtid: Gtid,
    /// The beginning of its statement.
    pub text: String,
    /// Who ran it.
    pub connection: u64,
    /// The target's `gtid_binlog_pos` before; empty: it writes no binlog.
    pub binlog: String,
}

/// Where a channel stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stand {
    /// Of this run.
    pub epoch: u64,
    /// Everything up to here is applied.
    pub position: Position,
    /// What may or may not have been done.
    pub doing: Option<Doing>,
}

/// Why a position cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StandError {
    /// The target does not answer, or refuses.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// What stands there is not ours.
    #[error("dromon_replica.position cannot be read: {0}")]
    Odd(String),
}

/// A channel's row.
#[derive(Clone, Debug)]
pub struct Channel {
    quoted: Vec<u8>,
}

impl Channel {
    /// Of this name.
    pub fn new(name: &str) -> Channel {
        let mut quoted = Vec::new();
        put_text(&mut quoted, name.as_bytes(), 0);
        Channel { quoted }
    }

    fn row(&self) -> String {
        format!("channel = {}", String::from_utf8_lossy(&self.quoted))
    }

    /// Begins a new epoch: waits for commits of an older one that are under way, and no other can
    /// follow. `start`: where a channel begins that is not there yet.
    pub fn begin(&self, client: &mut Client, start: &Position) -> Result<Stand, StandError> {
        if client.one("SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA='dromon_replica' AND TABLE_NAME='position'")?.is_none() {
            client.query(b"CREATE DATABASE IF NOT EXISTS dromon_replica")?;
            client.query(TABLE.as_bytes())?;
        }
        let name = String::from_utf8_lossy(&self.quoted);
        client.query(
            format!(
                "INSERT INTO dromon_replica.position (channel, epoch, gtid_pos) VALUES ({name}, 1, '{start}') \
                 ON DUPLICATE KEY UPDATE epoch = epoch + 1"
            )
            .as_bytes(),
        )?;
        let rows = client.rows(&format!(
            "SELECT epoch, gtid_pos, doing, doing_text, doing_connection, doing_binlog FROM dromon_replica.position WHERE {}",
            self.row()
        ))?;
        let row = rows.into_iter().next().unwrap_or_default();
        let text = |n: usize| {
            let cell = row.get(n)?.as_ref()?;
            Some(String::from_utf8_lossy(cell).into_owned())
        };
        let odd = |what: &str| StandError::Odd(format!("{what} of {name}"));
        let epoch = text(0).and_then(|t| t.parse().ok());
        let position = text(1).ok_or_else(|| odd("gtid_pos"))?;
        let doing = match text(2) {
            None => None,
            Some(gtid) => Some(Doing {
                gtid: gtid.parse().map_err(|_| odd("doing"))?,
                text: text(3).unwrap_or_default(),
                connection: text(4).and_then(|t| t.parse().ok()).unwrap_or(0),
                binlog: text(5).unwrap_or_default(),
            }),
        };
        Ok(Stand {
            epoch: epoch.ok_or_else(|| odd("epoch"))?,
            position: position
                .parse()
                .map_err(|e| StandError::Odd(format!("{e}")))?,
            doing,
        })
    }

    /// The newest epoch.
    pub fn epoch(&self, client: &mut Client) -> Result<Option<u64>, ClientError> {
        let text = client.one(&format!(
            "SELECT epoch FROM dromon_replica.position WHERE {}",
            self.row()
        ))?;
        Ok(text.and_then(|text| text.parse().ok()))
    }

    /// The statement that moves the position. It fails in any other epoch, and with it the packet
    /// in which a commit follows.
    pub fn put_move(&self, out: &mut Vec<u8>, epoch: u64, position: &str) {
        out.extend_from_slice(b"UPDATE dromon_replica.position SET doing=NULL, gtid_pos=IF(epoch=");
        out.extend_from_slice(epoch.to_string().as_bytes());
        out.extend_from_slice(b",'");
        out.extend_from_slice(position.as_bytes());
        out.extend_from_slice(format!("',{FAILS}) WHERE channel=").as_bytes());
        out.extend_from_slice(&self.quoted);
    }

    /// The statement that says that nothing is under way any more.
    pub fn put_undone(&self, out: &mut Vec<u8>, epoch: u64) {
        let text = format!(
            "UPDATE dromon_replica.position SET doing=IF(epoch={epoch},NULL,doing) WHERE channel="
        );
        out.extend_from_slice(text.as_bytes());
        out.extend_from_slice(&self.quoted);
    }

    /// The statement that says what is begun now that no rollback takes back.
    pub fn put_doing(&self, out: &mut Vec<u8>, epoch: u64, doing: &Doing) {
        out.extend_from_slice(
            format!(
                "UPDATE dromon_replica.position SET doing=IF(epoch={epoch},'{}',{FAILS}), doing_connection={}, \
                 doing_binlog='{}', doing_text=",
                doing.gtid, doing.connection, doing.binlog
            )
            .as_bytes(),
        );
        put_text(out, doing.text.as_bytes(), 0);
        out.extend_from_slice(b" WHERE channel=");
        out.extend_from_slice(&self.quoted);
    }
}

/// An expression that is an error if it is computed, whatever the sql_mode is: the largest number,
/// and more.
const FAILS: &str = "18446744073709551615+epoch";

/// The error of a statement of [`Channel`] in another epoch.
pub const OTHER_EPOCH: u16 = 1690;
