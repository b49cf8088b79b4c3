//! What is found out about transactions.

use dromon_binlog::hints::{Catalog, Column, KeyPart, TableName, TableSchema};

use super::*;
use crate::compile::tests::{block, load, packed, query, rows, unit, xid};

/// The table `d.plain`.
fn plain() -> TableSchema {
    let column = |name: &str, kind: &str, collation: Option<&str>| Column {
        name: name.into(),
        kind: kind.into(),
        collation: collation.map(str::to_owned),
        generated: false,
    };
    let key = KeyPart {
        column: Some("id".into()),
        prefix: 0,
    };
    TableSchema {
        name: TableName::new("d", "plain"),
        columns: vec![
            column("id", "int(11)", None),
            column("v", "varchar(9)", Some("latin1_swedish_ci")),
        ],
        unique: vec![vec![key]],
        foreign: Vec::new(),
        opaque: false,
    }
}

/// What is found about a transaction of these events, if `d.plain` is all that the target has.
fn found(filter: &Filter, events: Vec<Vec<crate::compile::tests::Raw>>) -> Found {
    found_by(false, filter, events)
}

/// `any_case`: the target has `lower_case_table_names`.
fn found_by(
    any_case: bool,
    filter: &Filter,
    events: Vec<Vec<crate::compile::tests::Raw>>,
) -> Found {
    let mut collector = Collector::new(limits());
    let catalog = Catalog::new(vec![plain()]);
    collector.learn(match any_case {
        true => catalog.of_any_case(),
        false => catalog,
    });
    found_with(&mut collector, filter, events)
}

fn found_with(
    collector: &mut Collector,
    filter: &Filter,
    events: Vec<Vec<crate::compile::tests::Raw>>,
) -> Found {
    let mut all = vec![query("BEGIN", "d")];
    all.extend(events.into_iter().flatten());
    all.push(xid());
    let mut of = unit(vec![all]);
    of.transactions[0].group.flags = gtid_flags::TRANSACTIONAL | gtid_flags::ALLOW_PARALLEL;
    let tables = Arc::clone(&of.tables);
    look(collector, &tables, filter, &of.transactions[0]).expect("it can be read")
}

/// Of what came behind a DDL only what changes tables itself is read again.
#[test]
fn what_is_forgotten_is_told_once() {
    let all = Filter::default();
    let mut collector = Collector::new(limits());
    collector.learn(Catalog::new(Vec::new()));
    let mut schema = |text: &str| {
        let events = vec![vec![query(text, "d")]];
        found_with(&mut collector, &all, events).schema
    };
    assert!(schema("ALTER TABLE plain ADD c INT").is_some());
    assert!(schema("UPDATE plain SET v='b'").is_none());
    assert!(schema("ALTER TABLE plain ADD e INT").is_some());
}

/// It is about rows, of whatever database.
#[test]
fn a_place_to_go_back_to_is_no_change() {
    let only = Filter::new(vec!["x".into()], vec![]);
    let text = |text| vec![query(text, "d")];
    let places = || vec![text("SAVEPOINT `a`"), text("ROLLBACK TO `a`")];
    assert!(!found(&only, places()).left_out);
    assert!(found(&only, [places(), vec![insert("plain")]].concat()).left_out);
}

fn insert(table: &str) -> Vec<crate::compile::tests::Raw> {
    rows(table, &[(None, Some((1, Some("a"))))])
}

/// A source that takes upper and lower case for two, and a target that does not.
#[test]
fn names_in_any_case() {
    let all = Filter::default();
    let lower = found_by(true, &all, vec![insert("plain")]);
    let upper = found_by(true, &all, vec![insert("Plain")]);
    assert_eq!(upper.alone, None);
    assert!(upper.set.barrier().is_none() && upper.set.conflicts_with(&lower.set));
    let exact = found(&all, vec![insert("Plain")]);
    assert_eq!(exact.alone, Some(Alone::UnknownTable));
}

/// Rows of tables that are left out, and that the target need not have.
#[test]
fn what_is_left_out_counts_for_nothing() {
    let without = Filter::new(Vec::new(), vec!["d.elsewhere".into()]);
    let all = Filter::default();
    let mixed = || vec![insert("elsewhere"), insert("plain")];
    let known = found(&all, vec![insert("plain")]);
    assert_eq!(known.alone, None);
    assert!(known.set.barrier().is_none());
    assert_eq!(found(&all, mixed()).alone, Some(Alone::UnknownTable));
    let some = found(&without, mixed());
    assert_eq!(some.alone, None);
    assert!(some.set.barrier().is_none() && some.set.conflicts_with(&known.set));
    let none = found(&without, vec![insert("elsewhere")]);
    assert_eq!(none.alone, None);
    assert!(none.set.barrier().is_none() && none.databases.is_empty());
    assert!(none.left_out && !some.left_out && !known.left_out);
    // Statements, too; one about both kinds of tables is refused later.
    let update = |table: &str| vec![query(&format!("TRUNCATE TABLE {table}"), "d")];
    let left_out = |events| found(&without, events).left_out;
    assert!(left_out(vec![update("elsewhere")]));
    assert!(!left_out(vec![update("elsewhere"), update("plain")]));
    assert!(!left_out(vec![insert("plain"), update("elsewhere")]));
    assert!(!left_out(vec![]), "nothing was there to be applied");
    assert!(!none.changes && some.changes && known.changes);
    // What is kept of an XA transaction goes with it, whatever it changes.
    let of_xa = |table: &str| {
        let mut of = unit(vec![
            [vec![query("BEGIN", "d")], insert(table), vec![xid()]].concat(),
        ]);
        of.transactions[0].own = Some(crate::unit::Own {
            name: b"x".to_vec(),
            statements: Vec::new(),
        });
        let mut collector = Collector::new(limits());
        let tables = Arc::clone(&of.tables);
        look(&mut collector, &tables, &without, &of.transactions[0]).expect("it can be read")
    };
    let (away, here) = (of_xa("elsewhere"), of_xa("plain"));
    assert!(!away.changes && !away.left_out);
    assert!(here.changes && !here.left_out);
}

/// What was rolled back on the source must be here, whatever statements it has.
#[test]
fn what_was_rolled_back() {
    let text = "INSERT INTO my SELECT id FROM plain";
    let mut of = unit(vec![vec![
        query("BEGIN", "d"),
        query(text, "d"),
        query("ROLLBACK", "d"),
    ]]);
    for flags in [0, gtid_flags::DDL] {
        of.transactions[0].group.flags = flags;
        of.transactions[0].ending = Ending::Rollback;
        let tables = Arc::clone(&of.tables);
        let mut collector = Collector::new(limits());
        let filter = Filter::default();
        let found = look(&mut collector, &tables, &filter, &of.transactions[0]);
        let alone = found.expect("it can be read").alone;
        assert_eq!(alone, Some(Alone::NotTransactional));
    }
}

/// A temporary table in a transaction makes no DDL of it; a table that is made from a SELECT does.
#[test]
fn temporary_tables_in_a_transaction() {
    let update = || vec![query("UPDATE plain SET v = 'b'", "d")];
    let of = |flags: u8, text: &str, more: Vec<crate::compile::tests::Raw>| {
        let mut events = vec![query("BEGIN", "d"), query(text, "d")];
        events.extend(more);
        events.push(xid());
        let mut of = unit(vec![events]);
        of.transactions[0].group.flags = flags | gtid_flags::ALLOW_PARALLEL;
        let mut collector = Collector::new(limits());
        collector.learn(Catalog::new(Vec::new()));
        let tables = Arc::clone(&of.tables);
        let filter = Filter::default();
        let found = look(&mut collector, &tables, &filter, &of.transactions[0]);
        found.expect("it can be read").alone
    };
    let ddl = gtid_flags::DDL;
    for text in [
        "CREATE TEMPORARY TABLE x (a INT)",
        "DROP TEMPORARY TABLE `x` /* generated by server */",
        "/* by hand */ CREATE TEMPORARY TABLE x (a INT)",
        "CREATE /*!32302 TEMPORARY */ TABLE x (a INT)",
        "UPDATE plain SET v = 'a'",
    ] {
        let alone = of(ddl, text, update());
        assert_eq!(alone, Some(Alone::NotTransactional), "{text}");
    }
    // Of tables with and without transactions.
    let odd = of(0, "/*! UPDATE */ m SET v = 1", update());
    assert_eq!(odd, Some(Alone::NotTransactional));
    for text in [
        "CREATE TABLE `new` (`a` INT)",
        "CREATE OR REPLACE TABLE `new` (`a` INT)",
    ] {
        let made = of(ddl, text, insert("new"));
        assert_eq!(made, Some(Alone::Statement), "{text}");
    }
    let set = "SET STATEMENT gtid_domain_id=3 FOR TRUNCATE x";
    assert_eq!(of(0, set, Vec::new()), Some(Alone::Statement));
    let standalone = of(
        ddl | gtid_flags::STANDALONE,
        "CREATE TEMPORARY TABLE x (a INT)",
        Vec::new(),
    );
    assert_eq!(standalone, Some(Alone::Statement));
}

/// What is compressed is of the same kind as what is not, however long it is.
#[test]
fn compressed_statements() {
    let long = "x".repeat(STATEMENT_MAX);
    let insert = format!("INSERT INTO plain VALUES (7, '{long}')");
    let set = |text: &str| format!("SET STATEMENT gtid_domain_id=3 FOR {text}");
    for (text, wanted) in [
        (set("INSERT INTO plain VALUES (7, 'a')"), Alone::Statement),
        (set(&insert), Alone::Statement),
        (insert, Alone::Within),
    ] {
        let statement = query(&text, "d");
        for statement in [packed(&statement), statement] {
            let found = found(&Filter::default(), vec![vec![statement]]);
            assert_eq!(found.alone, Some(wanted), "{}", &text[..40]);
        }
    }
    let place = vec![packed(&query("SAVEPOINT `a`", "d"))];
    let found = found(&Filter::default(), vec![place, self::insert("plain")]);
    assert_eq!(found.alone, None);
}

/// LOAD DATA is a statement, and changes no table's columns.
#[test]
fn files_that_are_loaded() {
    let text = "LOAD DATA INFILE 'a' INTO TABLE `plain`";
    let events = vec![block(true, 1, "1\ta\n"), load(1, text, "d", &[], 0)];
    let found = found(&Filter::default(), vec![events]);
    assert_eq!(found.alone, Some(Alone::Within));
    assert!(found.schema.is_none());
}

/// What a source with `binlog_format=MIXED` writes all day long.
#[test]
fn statements_that_change_no_table() {
    let all = Filter::default();
    let of = |text: &str| found(&all, vec![vec![query(text, "d")]]);
    for text in [
        "DROP /*!40005 TEMPORARY */ TABLE IF EXISTS `t`,`plain`",
        "DROP TEMPORARY TABLE `plain` /* generated by server */",
        "CREATE ALGORITHM=UNDEFINED DEFINER=`r`@`h` SQL SECURITY DEFINER VIEW `v` AS select 1",
        "ALTER USER `a`@`h` ACCOUNT LOCK",
    ] {
        let found = of(text);
        assert_eq!(found.schema, None, "{text}");
        assert!(
            found.alone.is_some() && found.set.barrier().is_some(),
            "{text}"
        );
    }
    for text in [
        "DROP /*!199999 TEMPORARY */ TABLE `plain`",
        "DROP TRIGGER plain",
    ] {
        assert_eq!(of(text).schema, Some(Touched::All), "{text}");
    }
    let rebuilt = of("OPTIMIZE TABLE plain").schema.expect("it may change");
    assert_eq!(rebuilt, Touched::by(b"OPTIMIZE TABLE plain", b"d"));
    assert_ne!(rebuilt, Touched::All);
    // Whoever wants but some of its tables gets what the target can do of it.
    let only = Filter::new(vec!["d.plain".into()], Vec::new());
    let some = found(&only, vec![vec![query("OPTIMIZE TABLE plain, other", "d")]]);
    assert!(!some.left_out);
    assert_eq!(
        only.wants_statement(b"OPTIMIZE TABLE plain, other", b"d"),
        Ok(true)
    );
}

/// A place to go back to, and nobody goes back there.
#[test]
fn savepoints() {
    let all = Filter::default();
    let with = |texts: &[&str]| {
        let mut events: Vec<_> = texts.iter().map(|text| vec![query(text, "d")]).collect();
        events.push(insert("plain"));
        found(&all, events).alone
    };
    assert_eq!(with(&["SAVEPOINT `x`"]), None);
    assert_eq!(with(&["SAVEPOINT a", "savepoint `b`"]), None);
    let back = ["SAVEPOINT a", "ROLLBACK TO `a`"];
    assert_eq!(with(&back), Some(Alone::Within));
    let statement = ["SAVEPOINT a", "INSERT INTO plain VALUES (9, 'a')"];
    assert_eq!(with(&statement), Some(Alone::Within));
}

/// Rows of tables that need care: alone where others must not be in one transaction with them, or counted.
#[test]
fn tables_that_need_care() {
    let of_source = |had_triggers: bool, change: fn(&mut crate::catalog::TableInfo)| {
        let mut events = vec![query("BEGIN", "d")];
        events.extend(insert("plain"));
        if had_triggers {
            // The upper byte of the table map's flags.
            events[1][19 + 6 + 1] |= 0x40;
        }
        events.push(xid());
        let mut of = unit(vec![events]);
        of.transactions[0].group.flags = gtid_flags::TRANSACTIONAL | gtid_flags::ALLOW_PARALLEL;
        let mut table = crate::compile::tests::table("plain");
        change(&mut table);
        let tables = Tables::of([(TableName::new("d", "plain"), table)]);
        let mut collector = Collector::new(limits());
        collector.learn(Catalog::new(vec![plain()]));
        let filter = Filter::default();
        let found = look(&mut collector, &tables, &filter, &of.transactions[0]);
        let found = found.expect("it can be read");
        (found.alone, found.keyless)
    };
    let of = |change| of_source(false, change);
    assert_eq!(of(|_| {}), (None, false));
    assert_eq!(of(|t| t.care.keyless = true), (None, true));
    let alone = of(|t| t.care.triggers_run = true);
    assert_eq!(alone, (Some(Alone::Triggers), false));
    // Where the source has run its own, what these wrote comes, too.
    let alone = of_source(true, |t| t.care.triggers_run = true);
    assert_eq!(alone, (None, false));
    let always = of_source(true, |t| {
        (t.care.triggers_run, t.care.triggers_always) = (true, true);
    });
    assert_eq!(always, (Some(Alone::Triggers), false));
    let alone = of(|t| t.care.versions = true);
    assert_eq!(alone, (Some(Alone::Versions), false));
    let alone = of(|t| (t.care.triggers_run, t.transactional) = (true, false));
    assert_eq!(alone, (Some(Alone::NotTransactional), false));
}
