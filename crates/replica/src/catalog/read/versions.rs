//! Tables whose rows have versions that go by transactions (ROW START is a number).

use std::collections::{BTreeMap, BTreeSet};

use dromon_binlog::hints::{Action, ForeignKey, TableName};

use super::{Raw, word};

/// Whether versions of its rows go by transactions, not by time.
fn by_transaction(of: &Raw) -> bool {
    let mut columns = of.columns.iter();
    of.kind == "SYSTEM VERSIONED"
        && columns.any(|(column, _)| {
            let formula = of.formulas.get(&column.name);
            word(&column.kind) == "bigint" && formula.is_some_and(|f| f.text == "ROW START")
        })
}

/// These tables, and all whose changes change these by foreign keys, as their names are compared.
pub(super) fn versioned(
    raw: &BTreeMap<TableName, Raw>,
    spelled: impl Fn(&TableName) -> TableName,
    foreign: impl Fn(&Raw) -> Vec<ForeignKey>,
) -> BTreeSet<TableName> {
    let own = raw.iter().filter(|(_, of)| by_transaction(of));
    let mut all: BTreeSet<TableName> = own.map(|(name, _)| spelled(name)).collect();
    let mut before = 0;
    while before < all.len() {
        before = all.len();
        let children = raw.iter().filter(|(name, _)| all.contains(&spelled(name)));
        let keys = children.flat_map(|(_, of)| foreign(of));
        let change = |key: &ForeignKey| [key.on_delete, key.on_update].contains(&Action::Change);
        let parents: Vec<TableName> = keys.filter(change).map(|key| key.parent).collect();
        all.extend(parents);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::Known;
    use super::*;
    use crate::catalog::formula::Formula;
    use dromon_binlog::hints::Column;

    /// A table with a primary key, which names another one if so.
    fn raw(parent: Option<(&str, Action)>) -> Raw {
        let mut of = Raw {
            kind: "BASE TABLE".into(),
            engine: "InnoDB".into(),
            ..Raw::default()
        };
        of.unique.insert("PRIMARY".into(), Vec::new());
        if let Some((parent, action)) = parent {
            let key = ForeignKey {
                parent: TableName::new("d", parent),
                on_delete: Action::Refuse,
                on_update: action,
                ..ForeignKey::default()
            };
            of.foreign.insert("f".into(), key);
        }
        of
    }

    fn with_versions(mut of: Raw, kind: &str) -> Raw {
        let column = Column {
            name: "rs".into(),
            kind: kind.into(),
            collation: None,
            generated: true,
        };
        let info = crate::compile::tests::table("t").columns[0].clone();
        of.columns.push((column, info));
        let formula = Formula {
            stored: true,
            text: "ROW START".into(),
        };
        of.formulas.insert("rs".into(), formula);
        of.kind = "SYSTEM VERSIONED".into();
        of
    }

    fn known(tables: Vec<(&str, Raw)>) -> Known {
        let named = tables.into_iter();
        Known {
            raw: named
                .map(|(name, of)| (TableName::new("d", name), of))
                .collect(),
            ..Known::default()
        }
    }

    /// Those that make versions by transactions, and what changes them by foreign keys.
    #[test]
    fn versions_by_transaction() {
        let tables = known(vec![
            ("top", raw(None)),
            ("parent", raw(Some(("top", Action::Change)))),
            (
                "v",
                with_versions(raw(Some(("parent", Action::Change))), "bigint(20) unsigned"),
            ),
            ("refuses", raw(None)),
            (
                "w",
                with_versions(
                    raw(Some(("refuses", Action::Refuse))),
                    "bigint(20) unsigned",
                ),
            ),
            ("by_time", with_versions(raw(None), "timestamp(6)")),
            ("child", raw(Some(("v", Action::Change)))),
        ])
        .prepare();
        let versions = |name: &str| {
            tables
                .find(b"d", name.as_bytes())
                .expect(name)
                .care
                .versions
        };
        assert!(["top", "parent", "v", "w"].into_iter().all(versions));
        assert!(!["refuses", "by_time", "child"].into_iter().any(versions));
    }

    /// Another table without transactions does not make this one such a one.
    #[test]
    fn triggers_that_run() {
        let fired = || Raw {
            triggers: true,
            ..raw(None)
        };
        let stays = || Raw {
            engine: "Aria".into(),
            unique: BTreeMap::new(),
            ..raw(None)
        };
        for (run, always) in [(true, true), (true, false), (false, false)] {
            let mut known = known(vec![("fired", fired()), ("other", stays())]);
            (known.triggers_run, known.triggers_always) = (run, always);
            let tables = known.prepare();
            let table = tables.find(b"d", b"fired").expect("it is there");
            assert_eq!(table.care.triggers_run, run);
            assert_eq!(table.care.triggers_always, always);
            assert!(table.transactional);
        }
    }

    #[test]
    fn tables_without_keys() {
        let without = Raw {
            unique: BTreeMap::new(),
            ..raw(None)
        };
        let tables = known(vec![("with", raw(None)), ("without", without)]).prepare();
        let keyless = |name: &[u8]| tables.find(b"d", name).expect("it is there").care.keyless;
        assert!(keyless(b"without") && !keyless(b"with"));
    }
}
