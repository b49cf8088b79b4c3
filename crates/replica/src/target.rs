//! What is set and kept on the target.
//!
//! ```text
//! dromon_replica.position     one row for each channel
//!   channel                   name of this replica
//!   epoch                     rises with each start: who has an older one can commit nothing
//!   gtid_pos                  everything up to here is applied; changed in the same transaction
//!   ahead                     what was applied beyond it when this epoch began
//!   doing                     GTID of what is under way that no rollback takes back; NULL: nothing
//!   doing_text                the beginning of its statement
//!   doing_connection          number of the connection that runs it
//!   doing_binlog              gtid_binlog_pos of the target before it
//!
//! dromon_replica.commits      rows for each channel whose commits are not one after the other
//!   channel, slot             the number of a unit modulo the number of slots
//!   epoch                     as above
//!   gtid_pos                  everything up to here was applied when that unit began to commit
//!   ahead                     what that unit is; changed in the same transaction
//! ```

use std::str::FromStr;

use dromon_binlog::{Gtid, Position};
use dromon_relay::wire::Row;

use crate::ahead::{Ahead, SLOTS, recover};
use crate::client::{Client, ClientError};
use crate::schedule::Order;
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
    ahead TEXT NULL, \
    doing VARCHAR(64) NULL, \
    doing_text TEXT NULL, \
    doing_connection BIGINT UNSIGNED NULL, \
    doing_binlog TEXT NULL, \
    changed TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)\
    ) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4";

const SLOT_TABLE: &str = "CREATE TABLE IF NOT EXISTS dromon_replica.commits (\
    channel VARCHAR(64) NOT NULL, \
    slot INT UNSIGNED NOT NULL, \
    epoch BIGINT UNSIGNED NOT NULL, \
    gtid_pos TEXT NOT NULL, \
    ahead TEXT NOT NULL, \
    PRIMARY KEY (channel, slot)\
    ) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4";

const COLUMNS: &str = "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS \
    WHERE TABLE_SCHEMA='dromon_replica' AND COLUMN_NAME='ahead'";

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
    /// And this of what follows.
    pub ahead: Ahead,
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
    pub fn begin(
        &self,
        client: &mut Client,
        order: Order,
        start: &Position,
    ) -> Result<Stand, StandError> {
        let text = |row: &Row, n: usize| {
            let cell = row.get(n)?.as_ref()?;
            Some(String::from_utf8_lossy(cell).into_owned())
        };
        let name = String::from_utf8_lossy(&self.quoted);
        let odd = |what: &str| StandError::Odd(format!("{what} of {name}"));
        let tables: Vec<Option<String>> =
            client.rows(COLUMNS)?.iter().map(|r| text(r, 0)).collect();
        let has = |table: &str| tables.iter().flatten().any(|t| t == table);
        if !has("position") {
            client.query(b"CREATE DATABASE IF NOT EXISTS dromon_replica")?;
            client.query(TABLE.as_bytes())?;
            // From before there was this column.
            client.query(b"ALTER TABLE dromon_replica.position ADD COLUMN IF NOT EXISTS ahead TEXT NULL AFTER gtid_pos")?;
        }
        if order != Order::Strict && !has("commits") {
            client.query(SLOT_TABLE.as_bytes())?;
        }
        let slots = order != Order::Strict || has("commits");
        client.query(b"BEGIN")?;
        client.query(
            format!(
                "INSERT INTO dromon_replica.position (channel, epoch, gtid_pos) VALUES ({name}, 1, '{start}') \
                 ON DUPLICATE KEY UPDATE epoch = epoch + 1"
            )
            .as_bytes(),
        )?;
        let rows = client.rows(&format!(
            "SELECT epoch, gtid_pos, doing, doing_text, doing_connection, doing_binlog, ahead FROM dromon_replica.position \
             WHERE {} FOR UPDATE",
            self.row()
        ))?;
        let row = rows.into_iter().next().unwrap_or_default();
        let epoch: u64 = text(&row, 0)
            .and_then(|t| t.parse().ok())
            .ok_or_else(|| odd("epoch"))?;
        let position: Position = parsed(&text(&row, 1).ok_or_else(|| odd("gtid_pos"))?)?;
        let known: Ahead = parsed(&text(&row, 6).unwrap_or_default())?;
        let doing = match text(&row, 2) {
            None => None,
            Some(gtid) => Some(Doing {
                gtid: gtid.parse().map_err(|_| odd("doing"))?,
                text: text(&row, 3).unwrap_or_default(),
                connection: text(&row, 4).and_then(|t| t.parse().ok()).unwrap_or(0),
                binlog: text(&row, 5).unwrap_or_default(),
            }),
        };
        let mut stored = vec![(Position::new(), known)];
        if slots {
            let empty: Vec<String> = (0..SLOTS)
                .map(|slot| format!("({name},{slot},{epoch},'','')"))
                .collect();
            client.query(
                format!(
                    "INSERT INTO dromon_replica.commits (channel, slot, epoch, gtid_pos, ahead) VALUES {} \
                     ON DUPLICATE KEY UPDATE epoch={epoch}",
                    empty.join(",")
                )
                .as_bytes(),
            )?;
            for row in client.rows(&format!(
                "SELECT gtid_pos, ahead FROM dromon_replica.commits WHERE {} FOR UPDATE",
                self.row()
            ))? {
                let (base, done) = (text(&row, 0), text(&row, 1));
                stored.push((
                    parsed(&base.unwrap_or_default())?,
                    parsed(&done.unwrap_or_default())?,
                ));
            }
        }
        let (position, ahead) = recover(position, &stored);
        let mut all = format!(
            "UPDATE dromon_replica.position SET gtid_pos='{position}', ahead='{ahead}' WHERE {};",
            self.row()
        );
        if slots {
            all += &format!(
                "UPDATE dromon_replica.commits SET gtid_pos='', ahead='' WHERE {};",
                self.row()
            );
        }
        client.query((all + "COMMIT").as_bytes())?;
        Ok(Stand {
            epoch,
            position,
            ahead,
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

    /// The statement that moves the position. It fails in any other epoch, and if the position is
    /// not the one that it must be before, and with it the packet in which a commit follows.
    pub fn put_move(&self, out: &mut Vec<u8>, epoch: u64, before: Option<&str>, position: &str) {
        let before = before.map_or(String::new(), |at| format!(" AND gtid_pos='{at}'"));
        out.extend_from_slice(
            format!(
                "UPDATE dromon_replica.position SET doing=NULL, gtid_pos=IF(epoch={epoch}{before},'{position}',{FAILS}) \
                 WHERE channel="
            )
            .as_bytes(),
        );
        out.extend_from_slice(&self.quoted);
    }

    /// The statement that writes into a slot what a unit is, and up to where all before it is
    /// there. It fails in any other epoch.
    pub fn put_slot(&self, out: &mut Vec<u8>, epoch: u64, slot: u64, base: &str, ahead: &Ahead) {
        out.extend_from_slice(
            format!(
                "UPDATE dromon_replica.commits SET gtid_pos='{base}', ahead=IF(epoch={epoch},'{ahead}',{FAILS}) \
                 WHERE slot={slot} AND channel="
            )
            .as_bytes(),
        );
        out.extend_from_slice(&self.quoted);
    }

    /// The statement that writes down a position that has been reached.
    pub fn put_save(&self, out: &mut Vec<u8>, epoch: u64, position: &str) {
        let text = format!(
            "UPDATE dromon_replica.position SET gtid_pos=IF(epoch={epoch},'{position}',gtid_pos) WHERE channel="
        );
        out.extend_from_slice(text.as_bytes());
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

fn parsed<T: FromStr>(text: &str) -> Result<T, StandError>
where
    T::Err: std::fmt::Display,
{
    text.parse()
        .map_err(|error| StandError::Odd(format!("{error}")))
}

/// An expression that is an error if it is computed, whatever the sql_mode is: the largest number,
/// and more.
const FAILS: &str = "18446744073709551615+epoch";

/// The error of a statement of [`Channel`] in another epoch, or behind another position.
pub const OTHER_EPOCH: u16 = 1690;
