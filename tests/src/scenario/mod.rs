//! The scenarios, in the order they run.

mod admin;
mod bad_input;
mod big;
mod blanks;
mod conflicts;
mod cut_kinds;
mod ddl_crash;
mod ddl_storm;
mod floors;
mod followed;
mod increments;
mod isolation;
mod joins;
mod kinds;
mod members;
mod mixture;
mod outage;
mod reads;
pub mod relay;
pub mod replica;
mod replication;
mod secure;
mod service;
mod slow_node;
mod stall;
mod statements;
mod switch;
mod sysbench;
pub mod torture;
mod triggers;
mod witness;

use std::time::Duration;

use crate::check;
use crate::harness::{Case, Run, Scenario, Servers};
use crate::load::Session;

/// All scenarios; those that share servers first.
pub fn all() -> Vec<Scenario> {
    use Servers::{Own, Shared};
    let table: Vec<(&str, &str, Servers, Run)> = vec![
        (
            "toi",
            "every statement kind that runs in total order takes one seqno and works everywhere",
            Shared,
            statements::toi,
        ),
        (
            "ddl_fails",
            "DDL that fails everywhere fails alike and harms no node",
            Shared,
            statements::ddl_fails,
        ),
        (
            "ddl_waits",
            "DDL behind an open transaction: the victim gets 1213, the DDL finishes",
            Shared,
            statements::ddl_waits,
        ),
        (
            "ddl_streams",
            "DDL against streaming transactions that only read its table: nothing stays, nothing is lost",
            Shared,
            statements::ddl_streams,
        ),
        (
            "sysbench",
            "sysbench oltp_read_write on all nodes at once: only errors 1213 and 1020",
            Shared,
            sysbench::read_write,
        ),
        (
            "counter",
            "two nodes increment one row: the sum is what was acknowledged",
            Shared,
            conflicts::counter,
        ),
        (
            "ranges",
            "range updates and inserts on one secondary index from three nodes",
            Shared,
            conflicts::ranges,
        ),
        (
            "foreign_keys",
            "cascading deletes and updates against inserts of children",
            Shared,
            conflicts::foreign_keys,
        ),
        (
            "savepoints",
            "with a binary log nothing is sent of what was rolled back to a savepoint",
            Own,
            statements::savepoints,
        ),
        (
            "one_applier",
            "one applier each, and streams at locks that others need: foreign keys, no keys; nothing stands still",
            Own,
            conflicts::one_applier,
        ),
        (
            "unique_keys",
            "REPLACE and updates on two unique secondary keys",
            Shared,
            conflicts::unique_keys,
        ),
        (
            "blanks",
            "keys that differ in blanks and capitals only: each name once, each count right",
            Shared,
            blanks::blanks,
        ),
        (
            "isolation",
            "FOR UPDATE, and all levels of isolation, on the same rows from three nodes: no update is lost",
            Shared,
            isolation::isolation,
        ),
        (
            "no_primary_key",
            "tables without primary key, wsrep_mode=''",
            Shared,
            conflicts::no_primary_key,
        ),
        (
            "ddl_storm",
            "ALTER, CREATE, DROP, RENAME, TRUNCATE against DML from other nodes",
            Shared,
            ddl_storm::storm,
        ),
        (
            "kinds",
            "sequences, system-versioned tables, triggers, routines, events, used and made anew: equal on all nodes",
            Shared,
            kinds::kinds,
        ),
        (
            "sync_wait",
            "write on A, read on B with wsrep_sync_wait=7: never stale",
            Shared,
            reads::sync_wait,
        ),
        (
            "ftwrl",
            "FLUSH TABLES WITH READ LOCK holds one node, not the others",
            Shared,
            admin::ftwrl,
        ),
        (
            "backup_stage",
            "BACKUP STAGE START to END under load",
            Shared,
            admin::backup_stage,
        ),
        (
            "rsu",
            "rolling schema upgrade under load",
            Shared,
            admin::rsu,
        ),
        (
            "desync",
            "wsrep_desync on and off under load",
            Shared,
            admin::desync,
        ),
        (
            "slow_node",
            "a node whose appliers are held: waited for and named, or in quarantine; then it catches up",
            Shared,
            slow_node::slow_node,
        ),
        (
            "flush_status",
            "FLUSH STATUS resets averages, not counters",
            Shared,
            admin::flush_status,
        ),
        (
            "kills",
            "KILL QUERY and KILL CONNECTION during commits lose nothing acknowledged",
            Shared,
            admin::kills,
        ),
        (
            "limits",
            "max_statement_time ends clients in COMMIT: nothing acknowledged is lost, nothing stands still",
            Shared,
            admin::limits,
        ),
        (
            "big",
            "a big write set beside small ones",
            Shared,
            big::beside_small,
        ),
        (
            "stall",
            "an UPDATE of 300,000 rows beside small ones, streamed by itself and whole: streamed it keeps them less",
            Shared,
            stall::stall,
        ),
        (
            "join_rsync",
            "an empty node joins by rsync under load",
            Own,
            joins::rsync,
        ),
        (
            "join_mariabackup",
            "an empty node joins by mariabackup under load",
            Own,
            joins::mariabackup,
        ),
        (
            "join_mysqldump",
            "an empty node joins by mysqldump under load",
            Own,
            joins::mysqldump,
        ),
        (
            "rejoin",
            "graceful leave and rejoin by IST, of a stopped and of a running node",
            Own,
            joins::rejoin,
        ),
        (
            "outage",
            "all nodes killed under load come back by themselves, in any order, and have all that was acknowledged",
            Own,
            outage::all_killed,
        ),
        (
            "last_one",
            "the last node of a cluster, killed or stopped in order, comes back by itself, and the others join it",
            Own,
            outage::last_one,
        ),
        (
            "switch",
            "a cluster changes its library for this one, back and once more, as README says: its history and rows go on",
            Own,
            switch::over_and_back,
        ),
        (
            "witness",
            "two data nodes and a witness: each dies under load and comes back, then all three; nothing acknowledged is lost",
            Own,
            witness::each_dies,
        ),
        (
            "witness_disk",
            "a witness whose disk is lost joins anew, and counts again: then a data node dies",
            Own,
            witness::disk_lost,
        ),
        (
            "systemd",
            "started by the unit's line with galera_recovery; a node that waits for the others is not given up",
            Own,
            service::unit,
        ),
        (
            "ddl_crash",
            "one node, then all, killed in the middle of RENAMEs of a ring of tables and of ALTERs: each statement once",
            Own,
            ddl_crash::crashes,
        ),
        (
            "create_select",
            "one node, or all, killed right behind CREATE TABLE ... SELECT: the table is there once, and no copy is needed",
            Own,
            ddl_crash::create_select,
        ),
        (
            "five_to_one",
            "one of five evicted by an operator; then they leave one by one, the leader first, with writes after each leave",
            Own,
            members::five_to_one,
        ),
        (
            "two_halves",
            "db1 cut off and forced to go on while the others do: status tells, and the next start founds on neither unasked",
            Own,
            members::two_halves,
        ),
        (
            "outvoted",
            "a write set fails on one node of three, it is dromon.log_max behind, or its binary log refuses one: it goes, and takes a full copy",
            Own,
            members::outvoted,
        ),
        (
            "sync_wait_cut",
            "with the other nodes held, a current read fails instead of answering",
            Own,
            reads::cut_off,
        ),
        (
            "stream_cut",
            "the other nodes are held while the end of a stream is under way: all rows or none, on all nodes",
            Own,
            reads::stream_cut,
        ),
        (
            "tls",
            "TLS and a secret: three nodes replicate, certificates are renewed, strangers learn nothing",
            Own,
            secure::tls,
        ),
        (
            "tls_rolling",
            "a plain cluster is encrypted node by node with socket.dynamic, under load",
            Own,
            secure::rolling,
        ),
        (
            "ipv6",
            "three nodes at [::1]: copies, a kill, an outage",
            Own,
            secure::ipv6,
        ),
        (
            "allowlist",
            "the server's allowlist decides who may greet",
            Own,
            secure::allowlist,
        ),
        (
            "followed",
            "the settings of a node that something follows, a node killed under load: every binary log has each transaction once",
            Own,
            followed::followed,
        ),
        (
            "bad_input",
            "wrong starts and strangers at the port: words, exit code and time of docs/bad-input.md",
            Own,
            bad_input::bad_input,
        ),
    ];
    table
        .into_iter()
        .map(|(name, shows, servers, run)| Scenario {
            name,
            shows,
            servers,
            run,
            round: Duration::ZERO,
            timed: false,
        })
        .chain(torture::all())
        .collect()
}

/// What takes longer than it may in the short list, or meets what servers do wrong now and then (`mixture`): run by
/// name, and by `make torture`.
pub fn long() -> Vec<Scenario> {
    let mixture = Scenario {
        name: "mixture",
        shows: "statements of all kinds by lot, streams, savepoints and KILL: nothing stands still, all equal",
        servers: Servers::Shared,
        run: mixture::mixture,
        round: Duration::from_secs(60),
        timed: false,
    };
    let through_a_node = Scenario {
        name: "async",
        shows: "a primary, a node, a replica, with wsrep_gtid_mode and without: the node killed under load, then all equal",
        servers: Servers::Own,
        run: replication::through_a_node,
        round: Duration::from_secs(60),
        timed: false,
    };
    let cut_kinds = Scenario {
        name: "cut_kinds",
        shows: "every kind of large transaction from each node, with small chunks: cut or whole as it must be, equal on all",
        servers: Servers::Own,
        run: cut_kinds::cut_kinds,
        round: Duration::ZERO,
        timed: false,
    };
    vec![
        through_a_node,
        mixture,
        cut_kinds,
        torture::origin_dies(),
        torture::cut_off(),
    ]
}

/// What stands still with every provider, as the server has it so: run by name, to see whether it still does.
pub fn known() -> Vec<Scenario> {
    let table: [(&str, &str, Run); 2] = [
        (
            "hashed",
            "a unique key USING HASH, wanted by clients of all nodes: known to stand still",
            blanks::hashed,
        ),
        (
            "trigger_ddl",
            "rows under a trigger that does nothing, amid ALTERs of the table that it names: known to stand still",
            triggers::amid_ddl,
        ),
    ];
    let of = |(name, shows, run)| Scenario {
        name,
        shows,
        servers: Servers::Shared,
        run,
        round: Duration::ZERO,
        timed: false,
    };
    table.into_iter().map(of).collect()
}

/// Runs statements on db1 and waits until all nodes have them.
fn set_up(case: &Case, statements: &[&str]) -> anyhow::Result<()> {
    let mut session = case.session(0)?;
    for statement in statements {
        session.exec(statement)?;
    }
    check::drained(&case.cluster()).map(drop)
}

/// `wsrep_mode` on every node; [`QUICK_START_MODE`] is what the others expect.
fn set_mode(case: &Case, mode: &str) -> anyhow::Result<()> {
    for node in 0..case.cluster().nodes().len() {
        case.session(node)?
            .exec(&format!("SET GLOBAL wsrep_mode = '{mode}'"))?;
    }
    Ok(())
}

const QUICK_START_MODE: &str = "REQUIRED_PRIMARY_KEY,STRICT_REPLICATION";

/// A value from node `index`, seen after everything ordered before.
fn ask<T: dromon_sandbox::mysql::prelude::FromRow>(
    case: &Case,
    index: usize,
    sql: &str,
) -> anyhow::Result<T> {
    let mut session: Session = case.session(index)?;
    session.exec("SET SESSION wsrep_sync_wait = 7")?;
    session
        .one(sql)?
        .ok_or_else(|| anyhow::anyhow!("{sql} returned no row on {}", case.node(index).name()))
}
