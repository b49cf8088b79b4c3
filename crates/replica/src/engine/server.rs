//! What a session asks of the server that it applies to, before it begins.

use dromon_relay::log::{Level, Log};
use dromon_relay::wire::Row;

use super::begin::NotBegun;
use super::own::Own;
use super::{Progress, Settings, gtids};
use crate::client::{Client, ClientError};
use crate::compile::Collations;
use crate::target::ONCE;

/// The oldest version of MariaDB that can be a target.
const OLDEST: (u32, u32, u32) = (10, 6, 9);

/// Of a version's text.
fn numbers(version: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|n| n.parse::<u32>().ok());
    Some((next()?, next()?, next()?))
}

/// Whether a server of this version that is no node of a cluster ends by a signal where BINLOG brings it rows of a
/// sequence: those of May 2023 to April 2024 do.
fn falls_by_sequences(version: &str) -> bool {
    match numbers(version) {
        Some((10, minor, patch)) => match minor {
            6 => (13..18).contains(&patch),
            8 => patch >= 8,
            9 => patch >= 6,
            10 => patch >= 4,
            11 => (3..8).contains(&patch),
            _ => false,
        },
        Some((11, minor, patch)) => match minor {
            0 => (2..6).contains(&patch),
            1 => (1..5).contains(&patch),
            2 => patch < 4,
            3 => true,
            4 => patch < 2,
            _ => false,
        },
        _ => false,
    }
}

/// Why a server of this version cannot be a target. One that does not tell a version is tried.
pub(super) fn too_old(version: &str) -> Option<String> {
    let found = numbers(version)?;
    (found < OLDEST).then(|| {
        let (a, b, c) = OLDEST;
        format!(
            "The target is version {version}; this replica needs MariaDB {a}.{b}.{c} or newer there (not MySQL). Nothing was \
             applied. Upgrade the target first."
        )
    })
}

/// The server that is applied to, and the connection that decides.
pub(super) struct Server {
    pub control: Client,
    /// It is a node of a cluster.
    pub node: bool,
    /// It writes a binlog, and what is written by `control` does not come into it.
    pub logs: bool,
    /// What is applied has the source's GTIDs in its binlog.
    pub gtids: bool,
    /// It does not survive a BINLOG of rows of a sequence.
    falls_by_sequences: bool,
}

impl Server {
    /// Connects to it, and looks whether it can be applied to.
    pub(super) fn find(
        settings: &Settings,
        log: &Log,
        progress: &Progress,
    ) -> Result<Server, NotBegun> {
        let mut control = Client::connect(&settings.target)?;
        // It may let in whom it does not answer then: who is told to end waits for nothing of it.
        progress.beginning(control.cut());
        control.identify()?;
        // A proxy greets with a version of its own.
        let version = control.one("SELECT VERSION()")?;
        let version = version.unwrap_or_else(|| control.version.clone());
        if let Some(why) = too_old(&version) {
            return Err(NotBegun::fatal(why));
        }
        control.query(ONCE.as_bytes())?;
        let node = is_node(&mut control)?;
        if node && !settings.binlog {
            return Err(NotBegun::fatal(
                "The target is a node of a cluster, and binlog = off: the other nodes would get nothing of what is applied. Nothing \
                 was applied. Leave binlog at on.",
            ));
        }
        // What a node does not log the other nodes do not get, and they need the replica's own tables, too.
        let logs = !node && control.one("SELECT @@log_bin")?.as_deref() == Some("1");
        if logs {
            // What is written here is this replica's own affair.
            control.query(b"SET SESSION sql_log_bin=0")?;
        }
        let gtids = match settings.source_gtid {
            false => false,
            true => gtids::check(&mut control, node)?.map_err(NotBegun::fatal)?,
        };
        if settings.source_gtid && !gtids {
            log.say(
                Level::Note,
                "The target writes no binlog: source_gtid = on has nothing to do.",
            );
        }
        Ok(Server {
            control,
            node,
            logs,
            gtids,
            falls_by_sequences: !node && falls_by_sequences(&version),
        })
    }

    /// What only this replica needs is in the target's binlog. It would have GTIDs of the target.
    pub(super) fn has_own_logged(&self, settings: &Settings) -> bool {
        self.logs && settings.binlog && !self.gtids
    }
}

/// What is set there, and does not change while a session lasts.
pub(super) struct Facts {
    pub collations: Collations,
    /// The longest packet it takes, in bytes.
    pub packet_max: usize,
    /// Its number as a server, and what it wrote.
    pub own: Own,
    /// Pages that InnoDB's buffer pool holds.
    pub pages: usize,
}

impl Facts {
    pub(super) fn read(server: &mut Server) -> Result<Facts, ClientError> {
        let falls = server.falls_by_sequences;
        let control = &mut server.control;
        let its_number = number(control, "SELECT @@server_id")?;
        let its_number = its_number.and_then(|n| n.try_into().ok()).unwrap_or(0);
        Ok(Facts {
            collations: collations(control)?.that_falls_by_sequences(falls),
            packet_max: number(control, "SELECT @@max_allowed_packet")?.unwrap_or(1 << 20),
            own: Own::read(control, its_number)?,
            pages: number(
                control,
                "SELECT @@innodb_buffer_pool_size DIV @@innodb_page_size",
            )?
            .unwrap_or(8192),
        })
    }
}

fn number(control: &mut Client, asked: &str) -> Result<Option<usize>, ClientError> {
    Ok(control.one(asked)?.and_then(|n| n.parse().ok()))
}

/// How the target compares texts, and what else of it decides how rows and tables read.
fn collations(control: &mut Client) -> Result<Collations, ClientError> {
    let known = collation_rows(control)?.into_iter().filter_map(|row| {
        let mut texts = row
            .into_iter()
            .map(|c| String::from_utf8_lossy(&c.unwrap_or_default()).into_owned());
        Some((texts.next()?.parse().ok()?, texts.next()?, texts.next()?))
    });
    let known = Collations::of(known);
    let mut has = |name: &str| {
        let asked = format!("SHOW VARIABLES WHERE Variable_name='{name}'");
        control.rows(&asked).map(|rows| !rows.is_empty())
    };
    let known = known
        .with_defaults(has("character_set_collations")?)
        .with_history(has("system_versioning_insert_history")?);
    let mode = control.one("SELECT @@global.sql_mode")?;
    let no_directories = mode.is_some_and(|mode| mode.contains("NO_DIR_IN_CREATE"));
    Ok(known.without_directories(no_directories))
}

/// Whether it is a node of a cluster.
fn is_node(client: &mut Client) -> Result<bool, ClientError> {
    let on = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_VARIABLES WHERE VARIABLE_NAME='WSREP_ON'";
    Ok(client.one(on)?.as_deref() == Some("ON"))
}

/// Whether the target's own row applier, which runs BINLOG statements, passes over rows that are missing
/// or there already; and what to do about it.
pub(super) fn forgives(client: &mut Client) -> Result<Option<String>, ClientError> {
    let mode = client.one("SELECT @@global.slave_exec_mode")?;
    let errors = client.one("SELECT @@global.slave_skip_errors")?;
    let set = match (mode.as_deref(), errors.as_deref()) {
        (Some("IDEMPOTENT"), _) => "slave_exec_mode = IDEMPOTENT",
        (_, Some(errors)) if !errors.is_empty() && errors != "OFF" => "slave_skip_errors",
        _ => return Ok(None),
    };
    Ok(Some(format!(
        "The target has {set}: of tables without a primary key, and all others whose rows go by BINLOG, rows that are missing or there \
         already would be passed over in silence. Take it back."
    )))
}

/// All collations by number: those that several character sets share have one for each.
fn collation_rows(client: &mut Client) -> Result<Vec<Row>, ClientError> {
    const NO_COLUMN: u16 = 1054;
    let of_each = client.rows(
        "SELECT ID, FULL_COLLATION_NAME, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY \
         WHERE ID IS NOT NULL",
    );
    match of_each {
        // None are shared.
        Err(error) if error.code() == Some(NO_COLUMN) => client.rows(
            "SELECT ID, COLLATION_NAME, CHARACTER_SET_NAME FROM information_schema.COLLATIONS WHERE ID IS NOT NULL",
        ),
        rows => rows,
    }
}

/// Why all these connections cannot be used together: one is to another server than the watcher, which sees
/// all that are where it is.
pub(super) fn elsewhere<'c>(
    watcher: &mut Client,
    others: impl Iterator<Item = &'c mut Client>,
) -> Result<Option<String>, ClientError> {
    let mut others: Vec<&mut Client> = others.collect();
    let ids = others.iter().map(|client| client.id).chain([watcher.id]);
    let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
    let there = watcher.rows(&format!(
        "SELECT ID FROM information_schema.PROCESSLIST WHERE ID IN ({})",
        ids.join(",")
    ))?;
    let sees = |id: u32| {
        there
            .iter()
            .flatten()
            .flatten()
            .any(|seen| *seen == id.to_string().into_bytes())
    };
    let missing = others.iter_mut().find(|client| !sees(client.id));
    let Some(client) = missing.filter(|_| sees(watcher.id)) else {
        return Ok(None);
    };
    // Or it has been ended meanwhile.
    client.query(b"DO 1")?;
    Ok(Some(format!(
        "target leads to several servers: connection {} is to another one than connection {}. What one of them commits the others \
         would wait for. Name one server; a proxy or a balancer in between must lead all connections to one.",
        client.id, watcher.id
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_target::{Fake, Reply, cell};

    /// Rows of sequences are kept from those that die of them, and from no others.
    #[test]
    fn targets_that_sequences_end() {
        for (version, falls) in [
            ("10.6.12-MariaDB-log", false),
            ("10.6.13-MariaDB", true),
            ("10.6.17-MariaDB", true),
            ("10.6.18-MariaDB", false),
            ("10.7.8-MariaDB", false),
            ("10.10.7-MariaDB", true),
            ("10.11.2-MariaDB", false),
            ("10.11.3-MariaDB-1", true),
            ("10.11.7-MariaDB", true),
            ("10.11.8-MariaDB", false),
            ("10.11.19-MariaDB-deb12", false),
            ("11.0.5-MariaDB", true),
            ("11.2.4-MariaDB", false),
            ("11.4.1-MariaDB", true),
            ("11.4.2-MariaDB", false),
            ("11.8.2-MariaDB", false),
            ("12.3.3-MariaDB", false),
            ("proxy", false),
        ] {
            assert_eq!(falls_by_sequences(version), falls, "{version}");
        }
        let found = |version: &'static str, node: &'static str| {
            let fake = Fake::of_version("10.6.18-proxy", move |text| match text {
                "SELECT VERSION()" => Some(cell(version)),
                _ if text.contains("'WSREP_ON'") => Some(cell(node)),
                _ if text.starts_with("SELECT @@") => Some(cell("1")),
                _ if text.starts_with("SELECT") || text.starts_with("SHOW") => Some(Reply::Nothing),
                _ => None,
            });
            let settings = crate::fake_target::settings(&fake, &[]);
            let Ok(mut server) = Server::find(&settings, &Log::terminal(), &Progress::default())
            else {
                panic!("it can be a target");
            };
            let facts = Facts::read(&mut server).expect("answers");
            facts.collations.falls_by_sequences
        };
        assert!(found("10.11.6-MariaDB", "OFF"));
        assert!(!found("10.11.6-MariaDB", "ON"), "a node does not");
        assert!(!found("10.11.8-MariaDB", "OFF"));
    }

    /// A balancer that leads to several servers.
    #[test]
    fn all_connections_are_to_one_server() {
        let found = |lacks: &'static [u32], cut: bool| {
            let fake = Fake::new(move |text| match text.split_once("WHERE ID IN (") {
                Some((_, ids)) => {
                    let ids = ids.trim_end_matches(')').split(',');
                    let seen = ids.filter(|id| !lacks.iter().any(|lack| lack.to_string() == *id));
                    Some(Reply::Rows(seen.map(|id| vec![id.into()]).collect()))
                }
                None => None,
            });
            let connect = || Client::connect(&fake.account()).expect("a target");
            let (mut watcher, mut one, mut two) = (connect(), connect(), connect());
            (watcher.id, one.id, two.id) = (7, 8, 9);
            if cut {
                two.cut().cut();
            }
            elsewhere(&mut watcher, [&mut one, &mut two].into_iter())
        };
        assert_eq!(found(&[], false).expect("answers"), None);
        let why = found(&[9], false)
            .expect("answers")
            .expect("it is elsewhere");
        assert!(
            why.contains("connection 9") && why.contains("Name one server"),
            "{why}"
        );
        assert!(found(&[9], true).is_err(), "it has only been lost");
        assert_eq!(
            found(&[7, 8, 9], false).expect("answers"),
            None,
            "nothing is seen"
        );
    }

    #[test]
    fn targets_that_forgive() {
        let said = |mode: &'static str, errors: &'static str| {
            let fake = Fake::new(move |text| match text {
                "SELECT @@global.slave_exec_mode" => Some(cell(mode)),
                "SELECT @@global.slave_skip_errors" => Some(cell(errors)),
                _ => None,
            });
            let mut client = Client::connect(&fake.account()).expect("a target");
            forgives(&mut client).expect("answers")
        };
        assert_eq!(said("STRICT", "OFF"), None);
        assert_eq!(said("STRICT", ""), None);
        let why = said("IDEMPOTENT", "OFF").expect("it forgives");
        assert!(why.contains("slave_exec_mode"), "{why}");
        let why = said("STRICT", "1062").expect("it forgives");
        assert!(why.contains("slave_skip_errors"), "{why}");
    }
}
