//! What is set and kept on the target.
//!
//! ```text
//! dromon_replica.position     one row for each channel
//!   channel                   name of this replica
//!   epoch                     rises with each start: who has an older one can commit nothing
//!   gtid_pos                  everything up to here is applied; changed in the same transaction
//!   ahead                     what was applied beyond it when this epoch began
//!   doing                     GTID of what is under way that no rollback takes back; NULL: nothing
//!   doing_text                the beginning of its statement; of one with a password its first words and a hash;
//!                             NULL with doing
//!   doing_connection          number of the connection that runs it
//!   doing_binlog              gtid_binlog_pos of the target before it
//!
//! dromon_replica.commits      rows for each channel whose commits are not one after the other
//!   channel, slot             the number of a unit modulo the number of slots
//!   epoch                     as above
//!   gtid_pos                  everything up to here was applied when that unit began to commit
//!   ahead                     what that unit is; changed in the same transaction
//!
//! dromon_replica.prepared     XA transactions that are prepared and not decided
//!   channel, xid, part        its name as XA RECOVER FORMAT='SQL' has it; parts of its events
//!   gtid                      of its first phase
//!   form                      in part 0: the format description of its events
//!   events                    its events, one behind the other
//! ```
//!
//! And [`crate::made`].

use std::str::FromStr;

use dromon_binlog::{Gtid, Position};
use dromon_relay::wire::Row;

use crate::ahead::{Ahead, SLOTS, recover};
use crate::client::{Client, ClientError, Result as Answer};
use crate::made::Made;
use crate::schedule::Order;
use crate::value::put_text;
use crate::xa::Kept;

/// A session for rows: bytes are taken as they are, time is UTC, what the source had checked is not
/// checked again, but nothing is changed in silence.
pub const ROWS: &str = "SET NAMES binary, time_zone='+00:00', foreign_key_checks=1, unique_checks=1, check_constraint_checks=0, \
     sql_mode='STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES', sql_if_exists=0, autocommit=1, timestamp=DEFAULT, \
     sql_auto_is_null=0, explicit_defaults_for_timestamp=1, auto_increment_increment=1, auto_increment_offset=1, tx_isolation='READ-COMMITTED'";

/// The same, but what the target computes is as behind its own replica threads.
pub const LOCAL: &[u8] = b"SET time_zone=@@global.time_zone";
/// And back.
pub const UTC: &[u8] = b"SET time_zone='+00:00'";

/// Once for each connection. The first statement makes it known among others.
///
/// What the target limits for its users must not end what the source has done: not the time of a
/// statement, nor that of a transaction that waits for its turn. What its own replica threads may
/// is allowed: to alter tables with a history. What errors say is read here: in one language. Texts are
/// written for [`ROWS`] ([`put_text`]), where a backslash escapes, and of a limit the default is the target's.
pub const ONCE: &str = "SET @dromon_replica=1, wait_timeout=2147483, net_read_timeout=600, net_write_timeout=600, \
     max_statement_time=0, idle_transaction_timeout=0, idle_write_transaction_timeout=0, idle_readonly_transaction_timeout=0, \
     sql_safe_updates=0, sql_select_limit=18446744073709551615, sql_big_selects=1, autocommit=1, system_versioning_alter_history=KEEP, \
     sql_mode='STRICT_ALL_TABLES', lc_messages='en_US'";

const TABLE: &str = "CREATE TABLE IF NOT EXISTS dromon_replica.position (\
    channel VARCHAR(64) NOT NULL PRIMARY KEY, \
    epoch BIGINT UNSIGNED NOT NULL, \
    gtid_pos MEDIUMTEXT NOT NULL, \
    ahead MEDIUMTEXT NULL, \
    doing VARCHAR(64) NULL, \
    doing_text TEXT NULL, \
    doing_connection BIGINT UNSIGNED NULL, \
    doing_binlog MEDIUMTEXT NULL, \
    changed TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)\
    ) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4";

const SLOT_TABLE: &str = "CREATE TABLE IF NOT EXISTS dromon_replica.commits (\
    channel VARCHAR(64) NOT NULL, \
    slot INT UNSIGNED NOT NULL, \
    epoch BIGINT UNSIGNED NOT NULL, \
    gtid_pos MEDIUMTEXT NOT NULL, \
    ahead MEDIUMTEXT NOT NULL, \
    PRIMARY KEY (channel, slot)\
    ) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4";

const PREPARED_TABLE: &str = "CREATE TABLE IF NOT EXISTS dromon_replica.prepared (\
    channel VARCHAR(64) NOT NULL, \
    xid VARCHAR(300) CHARACTER SET ascii NOT NULL, \
    part INT UNSIGNED NOT NULL, \
    gtid VARCHAR(64) NOT NULL, \
    form BLOB NOT NULL, \
    events MEDIUMBLOB NOT NULL, \
    PRIMARY KEY (channel, xid, part)\
    ) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4";

/// A table that is neither the server's nor a replica's.
const TABLES: &str = "SELECT CONCAT(TABLE_SCHEMA,'.',TABLE_NAME) FROM information_schema.TABLES \
    WHERE TABLE_SCHEMA NOT IN ('mysql','sys','information_schema','performance_schema','dromon_replica') LIMIT 1";

const NO_DATABASE: u16 = 1049;
const NO_TABLE: u16 = 1146;

const HAS_PREPARED: &str = "SELECT 1 FROM information_schema.TABLES \
    WHERE TABLE_SCHEMA='dromon_replica' AND TABLE_NAME='prepared'";

const COLUMNS: &str = "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS \
    WHERE TABLE_SCHEMA='dromon_replica' AND COLUMN_NAME='ahead'";

/// Behind an INSERT: a row that is there stays. IGNORE would cut a position that is too long, amid a number.
const IF_NOT_THERE: &str = "ON DUPLICATE KEY UPDATE channel = channel";

/// Columns of an older build that take 64 KiB. A position has a GTID of each domain that there ever was.
const NARROW: &str = "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS \
    WHERE TABLE_SCHEMA='dromon_replica' AND TABLE_NAME IN ('position','commits') AND DATA_TYPE='text' \
    AND COLUMN_NAME IN ('gtid_pos','ahead','doing_binlog')";

/// Positions of so many bytes are worth it that these are altered.
const LONG: usize = 16 << 10;

// Whoever follows the target may have no such tables.
const WIDE: &str = "ALTER TABLE IF EXISTS dromon_replica.position MODIFY gtid_pos MEDIUMTEXT NOT NULL, MODIFY ahead MEDIUMTEXT NULL, \
    MODIFY doing_binlog MEDIUMTEXT NULL";
const WIDE_SLOTS: &str = "ALTER TABLE IF EXISTS dromon_replica.commits MODIFY gtid_pos MEDIUMTEXT NOT NULL, MODIFY ahead MEDIUMTEXT NOT NULL";

/// Error of a value that is longer than its column.
const TOO_LONG: u16 = 1406;

/// What to do if this is of a position that is too long, of which a new session would say the same.
pub fn too_long(error: &ClientError) -> Option<String> {
    (error.code() == Some(TOO_LONG)).then(|| {
        format!(
            "A position has a GTID of each domain that there ever was, and this one is longer than the columns of an older build take, in \
             dromon_replica.position or .commits. Everything before it is in the target. Start again: the columns are made wider then. If this \
             is said once more, the target did not let that be done, or source_gtid = on, with which its replicas would not hear of it. Then do \
             it by hand, and on its replicas, too: {WIDE}; {WIDE_SLOTS}"
        )
    })
}

/// Something that was under way and cannot be rolled back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doing {
    /// What.
    pub gtid: Gtid,
    /// The beginning of its statement, without what may be a password: others may read it.
    pub text: String,
    /// Who ran it.
    pub connection: u64,
    /// The target's `gtid_binlog_pos` before, and whether it says enough; empty: it writes no binlog.
    /// Or [`Doing::PARTS`], or [`Doing::ASK`].
    pub binlog: String,
}

impl Doing {
    /// In the place of [`Doing::binlog`], before a number of steps that are done for good: it ended
    /// with an error behind them. Without a number: nobody knows how far it came.
    pub const PARTS: &str = "!";
    /// In the place of [`Doing::binlog`]: it ended with an error, and may be done all the same. No binlog shows which. It
    /// begins as [`Doing::PARTS`], so that older builds stop there, too.
    pub const ASK: &str = "!?";
    /// At the end of [`Doing::binlog`]: it has its GTID in the target's binlog, if it was done.
    pub const CHOSEN: &str = "=";
    /// Behind all of [`Doing::binlog`]: it was done to its end.
    pub const DONE: &str = ".";
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
    /// It has rows for commits that are not one after the other.
    pub slots: bool,
}

impl Stand {
    /// It stands where it begins. That alone does not say that it is new: nothing may have come for long.
    pub fn is_at(&self, start: &Position) -> bool {
        self.position == *start && self.ahead.is_empty() && self.doing.is_none()
    }
}

/// Where a channel begins.
#[derive(Clone, Copy, Debug)]
pub struct Start<'s> {
    /// Behind this, if it has no row.
    pub at: &'s Position,
    /// It had none a moment ago: one may be made.
    pub is_new: bool,
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
    /// The channel's row is that of another name, which the column takes for the same.
    #[error(
        "channel = {name}, and dromon_replica.position has {there}: names that differ in upper and lower case, accents or spaces at \
         their end are one row there. Nothing was applied. Set channel = {there} if it is this one, or take another name"
    )]
    Spelled {
        /// As it is set.
        name: String,
        /// As it stands there.
        there: String,
    },
    /// The channel's row was there a moment ago.
    #[error(
        "another replica has just taken back the row of this channel, which it had not begun with"
    )]
    TakenBack,
}

/// Most connections of a kind that a session has.
pub const CONNECTIONS_MAX: usize = 512;
/// Numbers of places have two digits of so many.
const DIGITS: usize = 33;

/// Which connection of its session one is. What no rollback takes back has none of these
/// ([`Channel::lock_name`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// One that applies.
    Worker(usize),
    /// One that reads ahead.
    Reader(usize),
    /// The one that watches.
    Watcher,
    /// The one that prepares, and plans.
    Control,
}

impl Place {
    fn number(self) -> usize {
        match self {
            Place::Worker(n) => n,
            Place::Reader(n) => CONNECTIONS_MAX + n,
            Place::Watcher => 2 * CONNECTIONS_MAX,
            Place::Control => 2 * CONNECTIONS_MAX + 1,
        }
    }
}

/// A channel's row.
#[derive(Clone, Debug)]
pub struct Channel {
    name: String,
    quoted: Vec<u8>,
}

impl Channel {
    /// Of this name.
    pub fn new(name: &str) -> Channel {
        // It stands in sessions of the source's statements, too: neither their sql_mode nor their character
        // set may count. A text, not CONVERT: the column's collation is to be that of a comparison.
        let quoted = match name.is_ascii() && !name.contains(['\'', '\\']) {
            true => format!("'{name}'"),
            false => {
                let hex: String = name.bytes().map(|byte| format!("{byte:02X}")).collect();
                format!("_utf8mb4 X'{hex}'")
            }
        };
        Channel {
            name: name.to_owned(),
            quoted: quoted.into_bytes(),
        }
    }

    /// Of the lock that the connection has over which goes what no rollback takes back: an
    /// expression. The others have one each, of their [`Place`].
    pub fn lock_name(&self) -> String {
        let name = String::from_utf8_lossy(&self.quoted);
        format!("CONCAT('dromon_replica ',MD5({name}))")
    }

    /// Takes the lock of a connection's place in its session, which it has as long as it lives. False:
    /// another one has it.
    pub fn hold(&self, client: &mut Client, place: Place) -> Result<bool, ClientError> {
        let name = String::from_utf8_lossy(&self.quoted);
        let number = place.number();
        let has = client.one(&format!(
            "SELECT GET_LOCK(CONCAT('dromon_replica ',MD5({name}),' {number}'),10)"
        ))?;
        Ok(has.as_deref() != Some("0"))
    }

    /// The question which connections have one of these, in whatever place; NULL is none.
    pub fn holders(&self) -> String {
        let name = String::from_utf8_lossy(&self.quoted);
        let digits: Vec<String> = (0..DIGITS).map(|n| format!("SELECT {n} n")).collect();
        let digits = digits.join(" UNION ALL ");
        format!(
            "SELECT DISTINCT IS_USED_LOCK(CONCAT('dromon_replica ',MD5({name}),' ',a.n+{DIGITS}*b.n)) FROM ({digits}) a, ({digits}) b"
        )
    }

    fn row(&self) -> String {
        format!("channel = {}", String::from_utf8_lossy(&self.quoted))
    }

    /// Makes room for long positions in tables of an older build, if there is one here: others are as they
    /// were, as the target's replicas must alter theirs, too. `logged`: in the target's binlog they hear of it.
    ///
    /// What the target refuses is no harm until a position is too long ([`too_long`]): gives what to say of it.
    pub fn widen(
        &self,
        client: &mut Client,
        start: &Position,
        logged: bool,
    ) -> Result<Option<String>, ClientError> {
        let narrow = client.rows(NARROW)?;
        if narrow.is_empty() {
            return Ok(None);
        }
        let longest = client.one(&format!(
            "SELECT GREATEST(LENGTH(@@gtid_binlog_pos), \
             IFNULL((SELECT LENGTH(gtid_pos) FROM dromon_replica.position WHERE {}),0))",
            self.row()
        ))?;
        let longest = longest.and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
        if usize::max(longest, start.to_string().len()) < LONG {
            return Ok(None);
        }
        let is_in = |table: &str| {
            let named =
                |row: &Row| matches!(row.first(), Some(Some(name)) if name == table.as_bytes());
            narrow.iter().any(named)
        };
        let both = [("position", WIDE), ("commits", WIDE_SLOTS)];
        // Whoever has read the tables in a transaction that is open need not end that for this.
        client.query(b"SET SESSION lock_wait_timeout=5")?;
        if logged {
            client.query(b"SET SESSION sql_log_bin=1")?;
        }
        let mut made = Made::new(logged);
        let mut altered = both.iter().filter(|(table, _)| is_in(table));
        let done =
            altered.try_for_each(|(_, text)| made.write(client, text.as_bytes()).map(|_| ()));
        let refused = match done {
            Err(error) if error.is_lost() => return Err(error),
            Err(error) => Some(format!(
                "Columns of an older build in dromon_replica, which take positions of 64 KiB, are not made wider: {error}. A longer position would \
                 end the replica. It is tried again when a session begins; or do it by hand, and on the target's replicas, too: {WIDE}; {WIDE_SLOTS}."
            )),
            Ok(()) => None,
        };
        if logged {
            client.query(b"SET SESSION sql_log_bin=0")?;
        }
        made.keep(client)?;
        client.query(b"SET SESSION lock_wait_timeout=DEFAULT")?;
        Ok(refused)
    }

    /// Makes the tables and the channel's rows, if they are not there. `start`: where it begins.
    ///
    /// Commits change these rows. So replicas of the target need them, too, if these commits are in its
    /// binlog: `logged`, and they come by the binlog as well. Nothing else of this replica's affairs
    /// does. Gives whether it has rows for commits that are not one after the other.
    fn prepare(
        &self,
        client: &mut Client,
        order: Order,
        start: Start<'_>,
        logged: bool,
    ) -> Result<bool, StandError> {
        let tables = client.rows(COLUMNS)?;
        let has = |table: &str| {
            let named =
                |row: &Row| matches!(row.first(), Some(Some(name)) if name == table.as_bytes());
            tables.iter().any(named)
        };
        let slots = order != Order::Strict || has("commits");
        let row = |client: &mut Client, table: &str| {
            let text = format!(
                "SELECT 1 FROM dromon_replica.{table} WHERE {} LIMIT 1",
                self.row()
            );
            client.one(&text)
        };
        let has_row = has("position") && row(client, "position")?.is_some();
        let has_slots = has("commits") && row(client, "commits")?.is_some();
        if has_row && (has_slots || !slots) {
            return Ok(slots);
        }
        let Start { at, is_new } = start;
        // In tables from before there was this column it is looked for later.
        if has("position") && !has_row && !is_new {
            return Err(StandError::TakenBack);
        }
        if logged {
            // A binlog of statements refuses rows where READ COMMITTED is the target's level.
            client.query(b"SET SESSION sql_log_bin=1, binlog_format=ROW")?;
        }
        let mut made = Made::new(logged);
        let done = match self.make(client, &mut made, slots, at) {
            Err(error) if error.is_lost() => return Err(error.into()),
            done => done,
        };
        // What was made before an error has its numbers, too.
        let kept = match logged {
            true => client.query(b"SET SESSION sql_log_bin=0").map(|_| ()),
            false => Ok(()),
        };
        let kept = kept.and_then(|()| made.keep(client));
        done.and(kept)?;
        Ok(slots)
    }

    /// The statements of [`Channel::prepare`]. `slots`: with those for commits that are not one after the other.
    fn make(
        &self,
        client: &mut Client,
        made: &mut Made,
        slots: bool,
        at: &Position,
    ) -> Result<(), ClientError> {
        made.write(client, b"CREATE DATABASE IF NOT EXISTS dromon_replica")?;
        made.write(client, TABLE.as_bytes())?;
        // From before there was this column.
        made.write(client, b"ALTER TABLE dromon_replica.position ADD COLUMN IF NOT EXISTS ahead MEDIUMTEXT NULL AFTER gtid_pos")?;
        let name = String::from_utf8_lossy(&self.quoted);
        let insert = format!(
            "INSERT INTO dromon_replica.position (channel, epoch, gtid_pos) VALUES ({name}, 0, '{at}') {IF_NOT_THERE}"
        );
        made.write(client, insert.as_bytes())?;
        if slots {
            made.write(client, SLOT_TABLE.as_bytes())?;
            let empty: Vec<String> = (0..SLOTS)
                .map(|slot| format!("({name},{slot},0,'','')"))
                .collect();
            let insert = format!(
                "INSERT INTO dromon_replica.commits (channel, slot, epoch, gtid_pos, ahead) VALUES {} {IF_NOT_THERE}",
                empty.join(",")
            );
            made.write(client, insert.as_bytes())?;
        }
        Ok(())
    }

    /// Begins a new epoch: waits for commits of an older one that are under way, and no other can
    /// follow. `logged`: its commits are in the target's binlog; this session's statements are not.
    pub fn begin(
        &self,
        client: &mut Client,
        order: Order,
        start: Start<'_>,
        logged: bool,
    ) -> Result<Stand, StandError> {
        let text = |row: &Row, n: usize| {
            let cell = row.get(n)?.as_ref()?;
            Some(String::from_utf8_lossy(cell).into_owned())
        };
        let name = String::from_utf8_lossy(&self.quoted);
        let odd = |what: &str| StandError::Odd(format!("{what} of {}", self.name));
        let slots = self.prepare(client, order, start, logged)?;
        client.query(b"BEGIN")?;
        // Another process may just have taken back what it had made. A row that is made here would not be in the binlog,
        // and what else counts for a new channel was not looked at: the next session does both.
        let raises = format!(
            "UPDATE dromon_replica.position SET epoch = epoch + 1 WHERE {}",
            self.row()
        );
        if client.query(raises.as_bytes())? == [Answer::Done(0)] {
            client.query(b"ROLLBACK")?;
            return Err(StandError::TakenBack);
        }
        let rows = client.rows(&format!(
            "SELECT epoch, gtid_pos, doing, doing_text, doing_connection, doing_binlog, ahead, channel FROM dromon_replica.position \
             WHERE {} FOR UPDATE",
            self.row()
        ))?;
        let row = rows.into_iter().next().unwrap_or_default();
        // The epoch is not raised until the commit.
        if let Some(there) = text(&row, 7).filter(|there| *there != self.name) {
            let name = self.name.clone();
            return Err(StandError::Spelled { name, there });
        }
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
        // Of the server that this one has followed: it came here with a row, and its end did not.
        let doing = doing.filter(|doing| !position.has(doing.gtid));
        let nothing = match doing {
            None => "doing=NULL, ",
            Some(_) => "",
        };
        // An older build, or an operator, left the text of what is done.
        let mut all = format!(
            "UPDATE dromon_replica.position SET gtid_pos='{position}', ahead='{ahead}', {nothing}\
             doing_text=IF(doing IS NULL,NULL,doing_text) WHERE {};",
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
            slots,
        })
    }

    /// What people run to have the channel begin anew. (Without `commit_order = group` there may be no second table.)
    pub fn removed_by(&self) -> String {
        let row = self.row();
        format!(
            "DELETE FROM dromon_replica.position WHERE {row}; DELETE FROM dromon_replica.commits WHERE {row}"
        )
    }

    /// Takes back what [`Channel::begin`] made for a new channel, if nothing was applied since: the next one to
    /// begin takes the start that it has then. `logged`: as there. Gives whether it is gone.
    pub fn forget(
        &self,
        client: &mut Client,
        epoch: u64,
        start: &Position,
        logged: bool,
    ) -> Result<bool, ClientError> {
        let slots = client
            .rows(COLUMNS)?
            .iter()
            .any(|row| matches!(row.first(), Some(Some(name)) if name == b"commits"));
        if logged {
            client.query(b"SET SESSION sql_log_bin=1, binlog_format=ROW")?;
        }
        client.query(b"BEGIN")?;
        let row = self.row();
        let mut text = format!(
            "DELETE FROM dromon_replica.position WHERE {row} AND epoch={epoch} AND gtid_pos='{start}' \
             AND IFNULL(ahead,'')='' AND doing IS NULL"
        );
        if slots {
            text += &format!(
                " AND NOT EXISTS (SELECT 1 FROM dromon_replica.commits WHERE {row} AND (gtid_pos<>'' OR ahead<>''))"
            );
        }
        let is_gone = client.query(text.as_bytes())? == [Answer::Done(1)];
        if is_gone && slots {
            client.query(format!("DELETE FROM dromon_replica.commits WHERE {row}").as_bytes())?;
        }
        // With it the deletes come into the binlog.
        let mut made = Made::new(logged);
        made.write(client, b"COMMIT")?;
        if logged {
            client.query(b"SET SESSION sql_log_bin=0")?;
        }
        made.keep(client)?;
        Ok(is_gone)
    }

    /// Writes the channel's row into the target's binlog, before anything commits. What commits wrote into
    /// slots its replicas have; they may lose it when these are written over, as what was ahead is here in
    /// the row now. Not in [`Channel::begin`]: what is in doubt is looked for behind a place in that binlog.
    ///
    /// All of the row, as nothing else of it was logged. And with the number that a commit has: a source
    /// that follows the target has no such table, and passes over what has its own.
    pub fn tell_replicas(&self, client: &mut Client, stand: &Stand) -> Result<(), ClientError> {
        let own = client.one("SELECT @@global.server_id")?;
        let own: Option<u32> = own.and_then(|n| n.parse().ok());
        let mut set =
            "SET SESSION sql_log_bin=1, binlog_format=ROW, binlog_row_image=FULL".to_owned();
        let other = stand.position.iter().find(|gtid| Some(gtid.server) != own);
        if let Some(gtid) = other {
            set += &format!(", server_id={}", gtid.server);
        }
        client.query(set.as_bytes())?;
        // What has not changed is not logged.
        let text = format!(
            "UPDATE dromon_replica.position SET changed=CURRENT_TIMESTAMP(6) WHERE epoch={} AND {}",
            stand.epoch,
            self.row()
        );
        let mut made = Made::new(other.is_none());
        made.write(client, text.as_bytes())?;
        client.query(b"SET SESSION sql_log_bin=0, server_id=DEFAULT")?;
        made.keep(client)
    }

    /// XA transactions that are prepared and not decided.
    pub fn prepared(&self, client: &mut Client) -> Result<Vec<Kept>, StandError> {
        if client.one(HAS_PREPARED)?.is_none() {
            return Ok(Vec::new());
        }
        let rows = client.rows(&format!(
            "SELECT xid, COUNT(*), MIN(gtid) FROM dromon_replica.prepared WHERE {} GROUP BY xid",
            self.row()
        ))?;
        let named = rows.into_iter().map(|row| {
            let mut cells = row
                .into_iter()
                .map(|cell| String::from_utf8_lossy(&cell.unwrap_or_default()).into_owned());
            Some(Kept {
                name: cells.next()?,
                parts: cells.next()?.parse().ok()?,
                first: cells.next()?.parse().ok()?,
            })
        });
        let odd = || StandError::Odd("dromon_replica.prepared".into());
        named.collect::<Option<Vec<_>>>().ok_or_else(odd)
    }

    /// Makes the table for them; like the others it is in the target's binlog if commits are.
    pub fn prepare_prepared(&self, client: &mut Client, logged: bool) -> Result<(), ClientError> {
        if logged {
            client.query(b"SET SESSION sql_log_bin=1")?;
        }
        let mut made = Made::new(logged);
        made.write(client, PREPARED_TABLE.as_bytes())?;
        if logged {
            client.query(b"SET SESSION sql_log_bin=0")?;
        }
        made.keep(client)
    }

    /// What is kept of one: the format description of its events, and these.
    pub fn prepared_events(
        &self,
        client: &mut Client,
        xid: &str,
    ) -> Result<(Vec<u8>, Vec<u8>), ClientError> {
        let mut name = Vec::new();
        put_text(&mut name, xid.as_bytes(), 0);
        let rows = client.rows(&format!(
            "SELECT form, events FROM dromon_replica.prepared WHERE {} AND xid={} ORDER BY part",
            self.row(),
            String::from_utf8_lossy(&name)
        ))?;
        let (mut form, mut events) = (Vec::new(), Vec::new());
        for row in rows {
            let mut cells = row.into_iter().map(Option::unwrap_or_default);
            form.extend(cells.next().unwrap_or_default());
            events.extend(cells.next().unwrap_or_default());
        }
        Ok((form, events))
    }

    /// The statement that keeps a part of the events of one.
    pub fn put_keep(
        &self,
        out: &mut Vec<u8>,
        xid: &str,
        part: usize,
        gtid: Gtid,
        form: &[u8],
        events: &[u8],
    ) {
        out.extend_from_slice(
            b"INSERT INTO dromon_replica.prepared (channel,xid,part,gtid,form,events) VALUES (",
        );
        out.extend_from_slice(&self.quoted);
        out.push(b',');
        put_text(out, xid.as_bytes(), 0);
        out.extend_from_slice(format!(",{part},'{gtid}',").as_bytes());
        put_text(out, form, 0);
        out.push(b',');
        put_text(out, events, 0);
        out.push(b')');
    }

    /// The statement that removes all of one.
    pub fn put_decided(&self, out: &mut Vec<u8>, xid: &str) {
        out.extend_from_slice(b"DELETE FROM dromon_replica.prepared WHERE channel=");
        out.extend_from_slice(&self.quoted);
        out.extend_from_slice(b" AND xid=");
        put_text(out, xid.as_bytes(), 0);
    }

    /// Whether the channel has no row yet.
    pub fn is_new(&self, client: &mut Client) -> Result<bool, ClientError> {
        match self.epoch(client) {
            Err(error) if matches!(error.code(), Some(NO_TABLE | NO_DATABASE)) => Ok(true),
            epoch => Ok(epoch?.is_none()),
        }
    }

    /// The newest epoch.
    pub fn epoch(&self, client: &mut Client) -> Result<Option<u64>, ClientError> {
        self.epoch_by(client, "")
    }

    /// The same; until the end of the client's transaction it remains the newest.
    pub fn epoch_locked(&self, client: &mut Client) -> Result<Option<u64>, ClientError> {
        self.epoch_by(client, " FOR UPDATE")
    }

    fn epoch_by(&self, client: &mut Client, how: &str) -> Result<Option<u64>, ClientError> {
        let text = client.one(&format!(
            "SELECT epoch FROM dromon_replica.position WHERE {}{how}",
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
                "UPDATE dromon_replica.position SET doing=NULL, doing_text=NULL, gtid_pos=IF(epoch={epoch}{before},'{position}',{FAILS}) \
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
            "UPDATE dromon_replica.position SET doing=IF(epoch={epoch},NULL,doing), \
             doing_text=IF(epoch={epoch},NULL,doing_text) WHERE channel="
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

    /// The statement that says that it is done to its end: of this connection, in whatever epoch. The next
    /// replica may have begun, but waits for what this connection runs. By its number: CONNECTION_ID() gives
    /// `pseudo_thread_id`, which is the source's where temporary tables take part.
    pub fn put_done(&self, out: &mut Vec<u8>, doing: &Doing) {
        let text = format!(
            "UPDATE dromon_replica.position SET doing_binlog=CONCAT(doing_binlog,'{}') WHERE doing='{}' AND \
             doing_connection={} AND channel=",
            Doing::DONE,
            doing.gtid,
            doing.connection
        );
        out.extend_from_slice(text.as_bytes());
        out.extend_from_slice(&self.quoted);
    }

    /// What is written down of it now: its end may have been, since the epoch began.
    pub fn doing_binlog(&self, client: &mut Client) -> Result<Option<String>, ClientError> {
        client.one(&format!(
            "SELECT doing_binlog FROM dromon_replica.position WHERE {}",
            self.row()
        ))
    }
}

/// What there is on a target, so that a source's oldest transactions are not to be applied to it; `None`:
/// nothing.
pub fn has_data(client: &mut Client) -> Result<Option<String>, ClientError> {
    let position = client.one("SELECT @@GLOBAL.gtid_slave_pos")?;
    let position = position.filter(|position| !position.is_empty());
    let table = client.one(TABLES)?;
    let position = position.map(|position| format!("gtid_slave_pos is {position}"));
    let table = table.map(|table| format!("it has the table {table}"));
    let found: Vec<String> = position.into_iter().chain(table).collect();
    Ok((!found.is_empty()).then(|| found.join(", and ")))
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

/// A statement that fails unless the one before it changed a row, and with it the packet in which a
/// commit follows.
pub const ROW_IS_THERE: &[u8] = b";SET @dromon_rows=18446744073709551615+(1-ROW_COUNT())";

/// The error of a statement of [`Channel`] in another epoch, or behind another position.
pub const OTHER_EPOCH: u16 = 1690;

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
