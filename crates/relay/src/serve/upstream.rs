//! How the relay stands towards its primary, in the words that tools know of replicas.

use super::session::{Facts, errors};
use crate::store::Kind;
use crate::wire::TextResult;

/// Of the relay's own connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upstream {
    /// Host and port of the primary.
    pub address: String,
    /// Account there.
    pub user: String,
    /// Events are coming.
    pub connected: bool,
    /// Over TLS.
    pub encrypted: bool,
    /// And the primary's certificate was for its address.
    pub named: bool,
    /// Of the primary; 0: not known yet.
    pub server_id: u32,
    /// Where it is, in its own files.
    pub file: String,
    /// The same.
    pub position: u64,
    /// Why the last connection ended.
    pub last_error: Option<String>,
}

/// What servers say as SHOW SLAVE STATUS; `all`: as SHOW ALL SLAVES STATUS. What a relay does not
/// have is empty. It applies nothing: that its "SQL thread" runs says that it stores. When that has
/// ended for good both threads stand, as those of a server whose disk fails.
pub fn slave_status(facts: &Facts, all: bool) -> TextResult {
    let Some(up) = &facts.upstream else {
        return TextResult::new(&["Slave_IO_State"]);
    };
    let yes = |is: bool| if is { "Yes" } else { "No" }.to_owned();
    let (host, port) = up.address.rsplit_once(':').unwrap_or((&up.address, ""));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let file = facts.files.last();
    let stored: u64 = facts.files.iter().map(|file| file.bytes).sum();
    // Then it follows nobody either, until it is started again.
    let failure = facts.failure.as_deref();
    let connected = up.connected && failure.is_none();
    let lag = facts.lag_ms.filter(|_| connected);
    let error = up.last_error.clone();
    let error = error.filter(|_| !connected && failure.is_none());
    let state = match (failure, connected) {
        (Some(_), _) => "",
        (None, true) => "Waiting for master to send event",
        (None, false) => "Reconnecting after a failed master event read",
    };
    let stores = match failure {
        Some(_) => "A dromon relay that stores nothing more, and serves what it has",
        None => "A dromon relay stores, and applies nothing",
    };
    // MariaDB's GTIDs; a mirror has none.
    let gtid = facts.kind == Kind::MariaDb;
    // ER_SLAVE_FATAL_ERROR would stop replicas of a server; a relay goes on trying: 2013, connection lost.
    let number = if error.is_some() { "2013" } else { "0" };
    let text = str::to_owned;
    let none = String::new;
    let mut cells: Vec<(&str, Option<String>)> = Vec::new();
    let mut put = |name, value: String| cells.push((name, Some(value)));
    if all {
        put("Connection_name", none());
        put("Slave_SQL_State", text(stores));
    }
    put("Slave_IO_State", text(state));
    put("Master_Host", text(host));
    put("Master_User", up.user.clone());
    put("Master_Port", text(port));
    put("Connect_Retry", text("1"));
    put("Master_Log_File", up.file.clone());
    put("Read_Master_Log_Pos", up.position.to_string());
    put(
        "Relay_Log_File",
        file.map_or(none(), |file| file.name.clone()),
    );
    put(
        "Relay_Log_Pos",
        file.map_or(0, |file| file.bytes).to_string(),
    );
    put("Relay_Master_Log_File", up.file.clone());
    // Tools look for exactly "Yes" here.
    put(
        "Slave_IO_Running",
        match failure.is_none() && !connected {
            true => text("Connecting"),
            false => yes(connected),
        },
    );
    put("Slave_SQL_Running", yes(failure.is_none()));
    for name in [
        "Replicate_Do_DB",
        "Replicate_Ignore_DB",
        "Replicate_Do_Table",
        "Replicate_Ignore_Table",
        "Replicate_Wild_Do_Table",
        "Replicate_Wild_Ignore_Table",
    ] {
        put(name, none());
    }
    let failed = failure.map_or(0, |_| errors::WRITE).to_string();
    put("Last_Errno", failed.clone());
    put("Last_Error", text(failure.unwrap_or_default()));
    put("Skip_Counter", text("0"));
    put("Exec_Master_Log_Pos", up.position.to_string());
    put("Relay_Log_Space", stored.to_string());
    put("Until_Condition", text("None"));
    put("Until_Log_File", none());
    put("Until_Log_Pos", text("0"));
    put("Master_SSL_Allowed", yes(up.encrypted));
    for name in [
        "Master_SSL_CA_File",
        "Master_SSL_CA_Path",
        "Master_SSL_Cert",
        "Master_SSL_Cipher",
        "Master_SSL_Key",
    ] {
        put(name, none());
    }
    cells.push((
        "Seconds_Behind_Master",
        lag.map(|ms| (ms / 1000).to_string()),
    ));
    let mut put = |name, value: String| cells.push((name, Some(value)));
    put("Master_SSL_Verify_Server_Cert", yes(up.named));
    put("Last_IO_Errno", text(number));
    put("Last_IO_Error", error.unwrap_or_default());
    put("Last_SQL_Errno", failed);
    put("Last_SQL_Error", text(failure.unwrap_or_default()));
    put("Replicate_Ignore_Server_Ids", none());
    put("Master_Server_Id", up.server_id.to_string());
    put("Master_SSL_Crl", none());
    put("Master_SSL_Crlpath", none());
    put("Using_Gtid", text(if gtid { "Slave_Pos" } else { "No" }));
    put(
        "Gtid_IO_Pos",
        match gtid {
            true => facts.position.clone(),
            false => facts.executed.clone(),
        },
    );
    put("Replicate_Do_Domain_Ids", none());
    put("Replicate_Ignore_Domain_Ids", none());
    put("Parallel_Mode", text("conservative"));
    put("SQL_Delay", text("0"));
    cells.push(("SQL_Remaining_Delay", None));
    let mut put = |name, value: String| cells.push((name, Some(value)));
    put("Slave_SQL_Running_State", text(stores));
    for name in [
        "Slave_DDL_Groups",
        "Slave_Non_Transactional_Groups",
        "Slave_Transactional_Groups",
    ] {
        put(name, text("0"));
    }
    put("Replicate_Rewrite_DB", none());
    if all {
        put("Gtid_Slave_Pos", facts.position.clone());
    }
    let names: Vec<&str> = cells.iter().map(|(name, _)| *name).collect();
    let mut table = TextResult::new(&names);
    let row = cells
        .into_iter()
        .map(|(_, value)| value.map(String::into_bytes));
    table.rows.push(row.collect());
    table
}
