//! What a replica or a tool asks, and what the relay says. Without I/O and clocks: what is asked
//! about is in [`Facts`].
//!
//! A relay writes nothing: what is not answered here is refused, by name.

use std::collections::BTreeMap;

use dromon_binlog::{Checksum, GtidSet};

use super::registry::Called;
use super::sql::{Placed, Token, are, is, items, like, starts, tokens};
use super::upstream::{Upstream, slave_status};
use super::wants::{From, Wants};
use crate::log::utc;
use crate::store::{Kind, Listed};
use crate::wire::{
    CHANNEL_VARIABLE, Dump, DumpGtid, Failure, LAG_MS_VARIABLE, LAG_VARIABLE, TextResult,
    ZSTD_LEVEL_MAX, ZSTD_VARIABLE, dump_flags, server_uuid,
};

/// Most variables of a connection, and longest value in bytes.
const VARS_MAX: usize = 64;
const VALUE_MAX: usize = 64 << 10;
/// Most values of one SELECT: each may be as long.
const ITEMS_MAX: usize = 64;
/// Bytes of a statement that does not set variables.
const STATEMENT_MAX: usize = 2 * VALUE_MAX;
/// Variables with a GTID for each domain that there ever was: as long as a statement may be.
const POSITIONS: [&str; 2] = ["slave_connect_state", "slave_until_gtid"];
/// Bytes of a pattern: each name is held against it.
const PATTERN_MAX: usize = 256;

/// Least time between heartbeats, in nanoseconds: no replica needs them closer, and each costs a write.
const HEARTBEAT_MIN_NS: u64 = 50_000_000;

/// MariaDB's numbers of errors.
pub mod errors {
    /// Syntax.
    pub const PARSE: u16 = 1064;
    /// No such variable.
    pub const UNKNOWN_VARIABLE: u16 = 1193;
    /// The dump cannot go on; a replica stops.
    pub const DUMP: u16 = 1236;
    /// The statement cannot be followed with what it names.
    pub const ARGUMENTS: u16 = 1210;
    /// The account may not.
    pub const DENIED: u16 = 1227;
    /// Not offered.
    pub const NOT_SUPPORTED: u16 = 1235;
    /// Read-only.
    pub const READ_ONLY: u16 = 1290;
    /// A file could not be written.
    pub const WRITE: u16 = 1026;
}

/// A replica, for SHOW SLAVE HOSTS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its server id.
    pub server_id: u32,
    /// As it calls itself.
    pub host: String,
    /// The same.
    pub port: u16,
}

/// A replica for which files are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// As for SHOW SLAVE HOSTS.
    pub host: Host,
    /// It is here.
    pub connected: bool,
    /// When it was here, in seconds since 1970.
    pub last_seen: u64,
    /// The oldest file that is kept for it.
    pub needs: String,
    /// That is gone already, and nothing is kept for it.
    pub cut_off: bool,
}

/// What there is to say.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The relay's own.
    pub server_id: u32,
    /// As of the server whose events it has.
    pub version: String,
    /// Of this connection.
    pub connection: u32,
    /// Of this connection.
    pub user: String,
    /// The user may have replicas forgotten.
    pub admin: bool,
    /// `gtid_binlog_pos`.
    pub position: String,
    /// `gtid_binlog_state`.
    pub state: String,
    /// The files, oldest first.
    pub files: Vec<Listed>,
    /// Replicas that are connected.
    pub hosts: Vec<Host>,
    /// Replicas that are known, connected or not.
    pub known: Vec<Listing>,
    /// Seconds since 1970.
    pub now: u64,
    /// Where it listens.
    pub port: u16,
    /// Compresses for relays that ask for it.
    pub zstd: bool,
    /// What the files are.
    pub kind: Kind,
    /// `gtid_executed`, of MySQL.
    pub executed: String,
    /// `gtid_purged`, of MySQL.
    pub purged: String,
    /// How many milliseconds it is behind its primary, if it knows.
    pub lag_ms: Option<u64>,
    /// Its own connection, if it follows anybody.
    pub upstream: Option<Upstream>,
    /// Why nothing more is stored.
    pub failure: Option<String>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Done.
    Ok,
    /// A table.
    Table(TextResult),
    /// Nothing is to be kept any more for this replica; the user may say so.
    Forget(Called),
    /// Refused.
    Error(Failure),
}

/// One connection.
#[derive(Debug, Default)]
pub struct Session {
    vars: BTreeMap<String, Option<String>>,
    kind: Kind,
}

type Said = Result<Reply, Failure>;

fn parse_error(why: &str) -> Failure {
    Failure {
        state: *b"42000",
        ..Failure::new(
            errors::PARSE,
            format!("The relay does not understand the statement: {why}"),
        )
    }
}

/// The first words of statements that change something.
const WRITES: &[&str] = &[
    "INSERT",
    "UPDATE",
    "DELETE",
    "REPLACE",
    "CREATE",
    "DROP",
    "ALTER",
    "TRUNCATE",
    "RENAME",
    "GRANT",
    "REVOKE",
    "LOAD",
    "CALL",
    "EXECUTE",
    "PREPARE",
    "LOCK",
    "FLUSH",
    "RESET",
    "CHANGE",
    "START",
    "STOP",
    "INSTALL",
    "UNINSTALL",
    "ANALYZE",
    "OPTIMIZE",
    "REPAIR",
    "XA",
    "BINLOG",
    "PURGE",
    "BACKUP",
    "HANDLER",
    "IMPORT",
    "DO",
    "SHUTDOWN",
    "KILL",
];

impl Session {
    /// A new connection.
    pub fn new() -> Session {
        Session::default()
    }

    /// The same, of a relay with files of this kind.
    pub fn of(kind: Kind) -> Session {
        Session {
            kind,
            ..Session::default()
        }
    }

    /// Answers a statement.
    pub fn query(&mut self, text: &str, facts: &Facts) -> Reply {
        self.answer(text, facts).unwrap_or_else(Reply::Error)
    }

    fn answer(&mut self, text: &str, facts: &Facts) -> Said {
        let sets = text.get(..3).is_some_and(|t| t.eq_ignore_ascii_case("SET"));
        if text.len() > STATEMENT_MAX && !sets {
            let len = text.len();
            let why = format!("it has {len} bytes; {STATEMENT_MAX} are read");
            return Err(parse_error(&why));
        }
        let tokens = tokens(text).map_err(parse_error)?;
        let first = match tokens.first() {
            None => return Err(parse_error("it is empty")),
            Some(Placed {
                token: Token::Word(word),
                ..
            }) => word.to_ascii_uppercase(),
            Some(_) => return Err(parse_error("it does not begin with a word")),
        };
        let rest = &tokens[1..];
        match &first[..] {
            "SET" => self.set(rest, facts),
            "SELECT" => self.select(text, rest, facts),
            "SHOW" => show(rest, facts),
            "FORGET" => forget(rest, facts),
            "USE" | "BEGIN" | "COMMIT" | "ROLLBACK" => Ok(Reply::Ok),
            "START" if is(rest.first(), "TRANSACTION") => Ok(Reply::Ok),
            word if WRITES.contains(&word) => Err(read_only(&format!("{word} is refused"))),
            word => Err(not_offered(&format!("{word} is not offered"))),
        }
    }

    fn set(&mut self, tokens: &[Placed], facts: &Facts) -> Said {
        if starts(tokens, &["NAMES"])
            || starts(tokens, &["CHARACTER", "SET"])
            || starts(tokens, &["TRANSACTION"])
            || starts(tokens, &["SESSION", "TRANSACTION"])
        {
            return Ok(Reply::Ok);
        }
        if starts(tokens, &["PASSWORD"]) || starts(tokens, &["ROLE"]) {
            return Err(read_only("accounts are in the relay's settings"));
        }
        for item in items(tokens) {
            let scope = ["SESSION", "LOCAL", "GLOBAL"];
            let scoped = scope.iter().find(|s| is(item.first(), s));
            let item = if scoped.is_some() { &item[1..] } else { item };
            let (target, value) = match item {
                [
                    target,
                    Placed {
                        token: Token::Sign('='),
                        ..
                    },
                    value @ ..,
                ] => (target, value),
                [
                    target,
                    Placed {
                        token: Token::Sign(':'),
                        ..
                    },
                    Placed {
                        token: Token::Sign('='),
                        ..
                    },
                    value @ ..,
                ] => (target, value),
                _ => return Err(parse_error("SET needs a name, = and a value")),
            };
            match &target.token {
                Token::UserVar(name) => {
                    let value = self.value(value, facts)?;
                    let len = value.as_ref().map_or(0, String::len).max(name.len());
                    if len > VALUE_MAX && !POSITIONS.contains(&&name[..]) {
                        let why = format!("@{name} has {len} bytes; {VALUE_MAX} are kept");
                        return Err(not_offered(&why));
                    }
                    if self.vars.len() >= VARS_MAX && !self.vars.contains_key(name) {
                        let why = format!("@{name} is beyond {VARS_MAX} variables");
                        return Err(not_offered(&why));
                    }
                    self.vars.insert(name.clone(), value);
                }
                Token::SysVar(_, false) | Token::Word(_) if scoped != Some(&"GLOBAL") => {
                    // Of the connection; nothing here depends on it.
                    self.value(value, facts)?;
                }
                Token::SysVar(..) | Token::Word(_) => {
                    return Err(read_only(
                        "global variables cannot be set; they are in the relay's settings",
                    ));
                }
                _ => return Err(parse_error("SET needs the name of a variable")),
            }
        }
        Ok(Reply::Ok)
    }

    /// A value: one token, or a function.
    fn value(&self, tokens: &[Placed], facts: &Facts) -> Result<Option<String>, Failure> {
        let one = |token: &Token| -> Result<Option<String>, Failure> {
            Ok(match token {
                Token::Text(text) | Token::Number(text) => Some(text.clone()),
                Token::Word(word) if word.eq_ignore_ascii_case("NULL") => None,
                Token::Word(word) => Some(word.clone()),
                Token::UserVar(name) => self.vars.get(name).cloned().flatten(),
                Token::SysVar(name, _) => match system(name, facts) {
                    Some(value) => Some(value.selected()),
                    None => {
                        return Err(Failure::new(
                            errors::UNKNOWN_VARIABLE,
                            format!("Unknown system variable '{name}'"),
                        ));
                    }
                },
                Token::Sign(_) => return Err(not_offered("such an expression is not offered")),
            })
        };
        match tokens {
            [only] => one(&only.token),
            [
                Placed {
                    token: Token::Sign('-'),
                    ..
                },
                Placed {
                    token: Token::Number(n),
                    ..
                },
            ] => Ok(Some(format!("-{n}"))),
            [
                Placed {
                    token: Token::Word(name),
                    ..
                },
                Placed {
                    token: Token::Sign('('),
                    ..
                },
                inner @ ..,
                Placed {
                    token: Token::Sign(')'),
                    ..
                },
            ] => function(name, inner, facts),
            _ => Err(not_offered("such an expression is not offered")),
        }
    }

    fn select(&self, text: &str, tokens: &[Placed], facts: &Facts) -> Said {
        let end = tokens
            .iter()
            .position(|t| is(Some(t), "LIMIT") || is(Some(t), "FROM"))
            .unwrap_or(tokens.len());
        let tail = &tokens[end..];
        let plain = tail.is_empty()
            || are(tail, &["FROM", "DUAL"])
            || is(tail.first(), "LIMIT")
                && matches!(tail.get(1).map(|t| &t.token), Some(Token::Number(_)));
        if !plain {
            return Err(not_offered("the relay has no tables to SELECT from"));
        }
        let mut table = TextResult::default();
        let (mut row, mut bytes) = (Vec::new(), 0);
        for item in items(&tokens[..end]) {
            if row.len() == ITEMS_MAX {
                return Err(not_offered("so many values at once are not offered"));
            }
            let (value, name) = match item {
                [
                    value @ ..,
                    Placed {
                        token: Token::Word(r#as),
                        ..
                    },
                    Placed {
                        token: Token::Word(name) | Token::Text(name),
                        ..
                    },
                ] if r#as.eq_ignore_ascii_case("AS") => (value, Some(name.clone())),
                [
                    value @ ..,
                    Placed {
                        token: Token::Word(name),
                        ..
                    },
                ] if !value.is_empty() => (value, Some(name.clone())),
                value => (value, None),
            };
            let (Some(first), Some(last)) = (value.first(), value.last()) else {
                return Err(parse_error("SELECT needs something to select"));
            };
            if let (1, Token::Word(word)) = (value.len(), &first.token)
                && !word.eq_ignore_ascii_case("NULL")
            {
                return Err(not_offered("the relay has no columns to SELECT"));
            }
            let cell = self.value(value, facts)?;
            bytes += cell.as_ref().map_or(0, String::len);
            if bytes > ITEMS_MAX * VALUE_MAX {
                return Err(not_offered("so long values at once are not offered"));
            }
            table
                .columns
                .push(name.unwrap_or_else(|| text[first.from..last.to].to_owned()));
            row.push(cell.map(String::into_bytes));
        }
        table.rows.push(row);
        Ok(Reply::Table(table))
    }

    /// The level at which what is sent after the dump is to be compressed, also an error.
    pub fn zstd(&self, facts: &Facts) -> Option<u8> {
        let wanted = self.vars.get(ZSTD_VARIABLE)?.as_deref()?;
        let level = wanted.parse::<u8>().ok().filter(|level| *level > 0)?;
        facts.zstd.then_some(level.min(ZSTD_LEVEL_MAX))
    }

    /// What a replica that asks for events wants.
    pub fn dump(&self, dump: &Dump) -> Result<Wants, Failure> {
        let refuse = |why: String| Err(Failure::new(errors::DUMP, why));
        let capability = self.capability();
        if self.kind == Kind::MariaDb && capability.is_none_or(|c| c < 4) {
            return refuse(
                "The relay serves replicas that know MariaDB's GTID events (@mariadb_slave_capability 4: MariaDB 10.0 and \
                 later)."
                    .into(),
            );
        }
        let until = self.var("slave_until_gtid").filter(|v| !v.is_empty());
        let until = match until.map(str::parse).transpose() {
            Ok(until) => until,
            Err(error) => return refuse(format!("@slave_until_gtid: {error}.")),
        };
        let from = match self.var("slave_connect_state") {
            Some(_) if self.kind == Kind::Mirror => {
                return refuse(
                    "This relay mirrors the files of a primary without GTIDs of MariaDB: it can be asked by file and byte only \
                     (MASTER_USE_GTID=no, MASTER_LOG_FILE, MASTER_LOG_POS; as on that primary)."
                        .into(),
                );
            }
            Some(_) if self.kind == Kind::MySql => {
                return refuse(
                    "This relay has GTIDs of MySQL: replicas of MySQL ask by MASTER_AUTO_POSITION = 1, relays with follow = mysql_gtid."
                        .into(),
                );
            }
            Some(text) => match text.parse() {
                Ok(position) => From::Gtid(position),
                Err(error) => return refuse(format!("@slave_connect_state: {error}.")),
            },
            None => From::File(
                String::from_utf8_lossy(&dump.file).into_owned(),
                dump.position.into(),
            ),
        };
        let wants = self.wants(from, dump.flags, dump.server_id)?;
        Ok(Wants {
            annotate: dump.flags & dump_flags::ANNOTATE_ROWS != 0,
            until,
            ..wants
        })
    }

    /// The same by GTIDs of MySQL.
    pub fn dump_gtid(&self, dump: &DumpGtid) -> Result<Wants, Failure> {
        let refuse = |why: String| Err(Failure::new(errors::DUMP, why));
        if self.kind != Kind::MySql {
            return refuse(format!(
                "This relay has no GTIDs of MySQL (it has follow = {}): it cannot be asked with MASTER_AUTO_POSITION = 1.",
                self.kind.follow()
            ));
        }
        match GtidSet::decode(&dump.set) {
            Ok(set) => self.wants(From::Set(set), dump.flags, dump.server_id),
            Err(error) => refuse(format!(
                "The set of GTIDs that the replica has cannot be read: {}.",
                error.flaw
            )),
        }
    }

    fn var(&self, name: &str) -> Option<&str> {
        self.vars.get(name).and_then(|v| v.as_deref())
    }

    /// A wish of the replica, by either of its names: those of MySQL say both from 8.0.26 on, and some
    /// clients the newer one alone.
    fn wish(&self, name: &str) -> Option<&str> {
        let of = |whose: &str| self.var(&format!("{whose}_{name}"));
        of("master").or_else(|| of("source"))
    }

    fn capability(&self) -> Option<u32> {
        self.var("mariadb_slave_capability")?.parse().ok()
    }

    fn wants(&self, from: From, flags: u16, server_id: u32) -> Result<Wants, Failure> {
        let refuse = |why: String| Err(Failure::new(errors::DUMP, why));
        let wanted = self.wish("binlog_checksum");
        let checksum = match wanted.map(str::to_ascii_uppercase).as_deref() {
            Some("NONE") => Checksum::Off,
            Some("CRC32") => Checksum::Crc32,
            Some(other) => return refuse(format!("@master_binlog_checksum cannot be {other}.")),
            None => {
                return refuse(
                    "The replica knows no checksums (@master_binlog_checksum was not set).".into(),
                );
            }
        };
        Ok(Wants {
            from,
            until: None,
            checksum,
            annotate: true,
            non_block: flags & dump_flags::NON_BLOCK != 0,
            heartbeat_ns: match self.wish("heartbeat_period").map(str::parse) {
                Some(Ok(ns @ 1..)) => HEARTBEAT_MIN_NS.max(ns),
                _ => 0,
            },
            server_id,
            mariadb: self.capability().is_some(),
            lag: self.var(LAG_VARIABLE) == Some("1"),
            other_ways: self.var("slave_gtid_ignore_duplicates") == Some("1"),
            channel: self.var(CHANNEL_VARIABLE).map(str::to_owned),
        })
    }
}

fn read_only(what: &str) -> Failure {
    Failure::new(
        errors::READ_ONLY,
        format!("This is a dromon relay. It has no data and is read-only: {what}"),
    )
}

fn not_offered(what: &str) -> Failure {
    Failure {
        state: *b"42000",
        ..Failure::new(
            errors::NOT_SUPPORTED,
            format!(
                "This is a dromon relay. It answers what replicas ask, SHOW MASTER STATUS, SHOW BINARY LOGS, SHOW SLAVE HOSTS, \
                 SHOW KNOWN REPLICAS, SHOW SLAVE STATUS, SHOW VARIABLES and SELECT @@variables: {what}"
            ),
        )
    }
}

fn function(name: &str, inner: &[Placed], facts: &Facts) -> Result<Option<String>, Failure> {
    let name = name.to_ascii_uppercase();
    match (&name[..], inner.is_empty()) {
        ("UNIX_TIMESTAMP", true) => Ok(Some(facts.now.to_string())),
        ("VERSION", true) => Ok(Some(facts.version.clone())),
        ("CONNECTION_ID", true) => Ok(Some(facts.connection.to_string())),
        ("USER" | "CURRENT_USER" | "SESSION_USER", true) => Ok(Some(format!("{}@%", facts.user))),
        ("DATABASE" | "SCHEMA", true) => Ok(None),
        _ => Err(not_offered(&format!("the function {name} is not offered"))),
    }
}

/// A value of a system variable: switches look different in SHOW and SELECT.
enum Value {
    Text(String),
    Switch(bool),
}

impl Value {
    fn shown(&self) -> String {
        match self {
            Value::Text(text) => text.clone(),
            Value::Switch(on) => if *on { "ON" } else { "OFF" }.into(),
        }
    }

    fn selected(self) -> String {
        match self {
            Value::Text(text) => text,
            Value::Switch(on) => u8::from(on).to_string(),
        }
    }
}

/// Names of the variables there are, sorted.
const VARIABLES: &[&str] = &[
    "auto_increment_increment",
    "auto_increment_offset",
    "autocommit",
    "binlog_checksum",
    "binlog_format",
    "binlog_row_image",
    "character_set_client",
    "character_set_connection",
    "character_set_database",
    "character_set_results",
    "character_set_server",
    "collation_connection",
    "collation_database",
    "collation_server",
    "dromon_relay_lag_ms",
    "dromon_relay_zstd",
    "enforce_gtid_consistency",
    "gtid_binlog_pos",
    "gtid_binlog_state",
    "gtid_current_pos",
    "gtid_domain_id",
    "gtid_executed",
    "gtid_ignore_duplicates",
    "gtid_mode",
    "gtid_owned",
    "gtid_purged",
    "gtid_slave_pos",
    "gtid_strict_mode",
    "hostname",
    "init_connect",
    "interactive_timeout",
    "license",
    "log_bin",
    "log_slave_updates",
    "lower_case_table_names",
    "max_allowed_packet",
    "net_buffer_length",
    "net_write_timeout",
    "performance_schema",
    "port",
    "read_only",
    "server_id",
    "server_uuid",
    "sql_mode",
    "system_time_zone",
    "time_zone",
    "transaction_isolation",
    "tx_isolation",
    "version",
    "version_comment",
    "wait_timeout",
];

fn system(name: &str, facts: &Facts) -> Option<Value> {
    let text = |text: &str| Value::Text(text.to_owned());
    Some(match name {
        "server_id" => Value::Text(facts.server_id.to_string()),
        // What MySQL's replicas ask.
        "gtid_mode" | "enforce_gtid_consistency" if facts.kind == Kind::MySql => text("ON"),
        "gtid_mode" if facts.kind == Kind::Mirror => text("OFF"),
        "server_uuid" if facts.kind != Kind::MariaDb => Value::Text(server_uuid(facts.server_id)),
        "gtid_executed" if facts.kind == Kind::MySql => text(&facts.executed),
        "gtid_purged" if facts.kind == Kind::MySql => text(&facts.purged),
        "gtid_owned" if facts.kind == Kind::MySql => text(""),
        ZSTD_VARIABLE if facts.zstd => Value::Text(ZSTD_LEVEL_MAX.to_string()),
        LAG_MS_VARIABLE => Value::Text(facts.lag_ms.map_or(String::new(), |ms| ms.to_string())),
        "version" => text(&facts.version),
        "version_comment" => text("dromon relay: a binlog server, read-only"),
        "hostname" => text("dromon-relay"),
        "port" => Value::Text(facts.port.to_string()),
        "read_only" | "log_bin" | "log_slave_updates" | "autocommit" => Value::Switch(true),
        "gtid_strict_mode" | "gtid_ignore_duplicates" | "performance_schema" => {
            Value::Switch(false)
        }
        "gtid_binlog_pos" | "gtid_current_pos" | "gtid_slave_pos" => text(&facts.position),
        "gtid_binlog_state" => text(&facts.state),
        "gtid_domain_id" | "lower_case_table_names" => text("0"),
        "binlog_format" => text("ROW"),
        "binlog_row_image" => text("FULL"),
        "binlog_checksum" => text("CRC32"),
        "max_allowed_packet" => text("1073741824"),
        "net_buffer_length" => text("16384"),
        "wait_timeout" | "interactive_timeout" => text("28800"),
        "net_write_timeout" => text("60"),
        "auto_increment_increment" | "auto_increment_offset" => text("1"),
        "character_set_client"
        | "character_set_connection"
        | "character_set_results"
        | "character_set_server"
        | "character_set_database" => text("utf8mb4"),
        "collation_connection" | "collation_server" | "collation_database" => {
            text("utf8mb4_general_ci")
        }
        "sql_mode" | "init_connect" => text(""),
        "system_time_zone" => text("UTC"),
        "time_zone" => text("SYSTEM"),
        "tx_isolation" | "transaction_isolation" => text("REPEATABLE-READ"),
        "license" => text("MIT"),
        _ => return None,
    })
}

/// `FORGET REPLICA` and a server id or a name: the one thing that a client can change.
fn forget(tokens: &[Placed], facts: &Facts) -> Said {
    let named = match tokens {
        [what, name] if is(Some(what), "REPLICA") || is(Some(what), "SLAVE") => match &name.token {
            Token::Number(id) => id.parse().ok().map(Called::Id),
            Token::Text(name) | Token::Word(name) if !name.is_empty() => {
                Some(Called::Name(name.clone()))
            }
            _ => None,
        },
        _ => None,
    };
    let Some(called) = named else {
        return Err(parse_error(
            "write FORGET REPLICA 7, with the server id, or FORGET REPLICA 'name', with its report_host. SHOW KNOWN REPLICAS \
             has both",
        ));
    };
    if facts.admin {
        return Ok(Reply::Forget(called));
    }
    Err(Failure {
        state: *b"42000",
        ..Failure::new(
            errors::DENIED,
            format!(
                "Access denied; FORGET REPLICA is for the accounts of the relay's setting admin = name:password. '{}' is \
                 none of them. Nothing was forgotten",
                facts.user
            ),
        )
    })
}

fn show(tokens: &[Placed], facts: &Facts) -> Said {
    let scopes = ["GLOBAL", "SESSION", "LOCAL"];
    let scoped = scopes.iter().any(|s| is(tokens.first(), s));
    let tokens = if scoped { &tokens[1..] } else { tokens };
    if is(tokens.first(), "VARIABLES") {
        return variables(&tokens[1..], facts);
    }
    let table = |columns: &[&str]| TextResult::new(columns);
    let any = |choices: &[&[&str]]| choices.iter().any(|words| are(tokens, words));
    if any(&[
        &["MASTER", "STATUS"],
        &["BINLOG", "STATUS"],
        &["BINARY", "LOG", "STATUS"],
    ]) {
        let columns = ["File", "Position", "Binlog_Do_DB", "Binlog_Ignore_DB"];
        let none = String::new;
        let file = |last: &Listed| [last.name.clone(), last.bytes.to_string(), none(), none()];
        let last = facts.files.last().map(file);
        if facts.kind != Kind::MySql {
            let mut t = table(&columns);
            if let Some(last) = last {
                t.row(last);
            }
            return Ok(Reply::Table(t));
        }
        let [a, b, c, d] = columns;
        let mut t = table(&[a, b, c, d, "Executed_Gtid_Set"]);
        if let Some([a, b, c, d]) = last {
            t.row([a, b, c, d, facts.executed.clone()]);
        }
        return Ok(Reply::Table(t));
    }
    if any(&[&["BINARY", "LOGS"], &["MASTER", "LOGS"]]) {
        let mut t = table(&["Log_name", "File_size"]);
        for file in &facts.files {
            t.row([file.name.clone(), file.bytes.to_string()]);
        }
        return Ok(Reply::Table(t));
    }
    let mysql = any(&[&["REPLICAS"]]);
    if mysql || any(&[&["SLAVE", "HOSTS"], &["REPLICA", "HOSTS"]]) {
        let mut t = match mysql {
            true => table(&["Server_Id", "Host", "Port", "Source_Id", "Replica_UUID"]),
            false => table(&["Server_id", "Host", "Port", "Master_id"]),
        };
        for host in &facts.hosts {
            let cells = [
                host.server_id.to_string(),
                host.host.clone(),
                host.port.to_string(),
                facts.server_id.to_string(),
            ];
            // The UUID is not kept.
            t.row(cells.into_iter().chain(mysql.then(String::new)));
        }
        return Ok(Reply::Table(t));
    }
    if any(&[&["KNOWN", "REPLICAS"], &["KNOWN", "SLAVES"]]) {
        let columns = [
            "Server_id",
            "Host",
            "Port",
            "Connected",
            "Last_seen_utc",
            "Needed_file",
            "Cut_off",
        ];
        let mut t = table(&columns);
        for known in &facts.known {
            t.row([
                known.host.server_id.to_string(),
                known.host.host.clone(),
                known.host.port.to_string(),
                if known.connected { "Yes" } else { "No" }.to_owned(),
                utc(known.last_seen),
                known.needs.clone(),
                if known.cut_off { "Yes" } else { "No" }.to_owned(),
            ]);
        }
        return Ok(Reply::Table(t));
    }
    if any(&[&["SLAVE", "STATUS"], &["REPLICA", "STATUS"]]) {
        return Ok(Reply::Table(slave_status(facts, false)));
    }
    if any(&[&["ALL", "SLAVES", "STATUS"], &["ALL", "REPLICAS", "STATUS"]]) {
        return Ok(Reply::Table(slave_status(facts, true)));
    }
    if any(&[&["WARNINGS"], &["ERRORS"]]) {
        return Ok(Reply::Table(table(&["Level", "Code", "Message"])));
    }
    if is(tokens.first(), "STATUS") {
        return Ok(Reply::Table(table(&["Variable_name", "Value"])));
    }
    if is(tokens.first(), "DATABASES") {
        return Ok(Reply::Table(table(&["Database"])));
    }
    Err(not_offered("this SHOW is not offered"))
}

fn variables(tokens: &[Placed], facts: &Facts) -> Said {
    let pattern = match tokens {
        [] => "%",
        [
            like,
            Placed {
                token: Token::Text(pattern),
                ..
            },
        ] if is(Some(like), "LIKE") => pattern,
        [
            r#where,
            name,
            Placed {
                token: Token::Sign('='),
                ..
            },
            Placed {
                token: Token::Text(value),
                ..
            },
        ] if is(Some(r#where), "WHERE") && is(Some(name), "Variable_name") => value,
        _ => return Err(not_offered("SHOW VARIABLES is offered with LIKE")),
    };
    if pattern.len() > PATTERN_MAX {
        return Err(parse_error("the pattern is too long"));
    }
    let mut table = TextResult::new(&["Variable_name", "Value"]);
    for name in VARIABLES.iter().filter(|name| like(name, pattern)) {
        if let Some(value) = system(name, facts) {
            table.row([(*name).to_owned(), value.shown()]);
        }
    }
    Ok(Reply::Table(table))
}

#[cfg(test)]
mod tests;
