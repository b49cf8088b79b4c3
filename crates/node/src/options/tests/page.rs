//! The page on options, against the table.

use super::super::table::Origin;
use super::*;

#[test]
fn the_documentation_lists_every_option_with_its_fate() {
    let page = include_str!("../../../../../docs/options.md");
    for spec in TABLE {
        let fate = match spec.fate {
            Fate::Kept => "kept",
            Fate::Mapped => "mapped",
            Fate::Ignored => "ignored",
            Fate::Ours => "ours",
        };
        let row = page
            .lines()
            .find(|l| l.starts_with(&format!("| `{}` |", spec.name)))
            .unwrap_or_else(|| panic!("{} is not in docs/options.md", spec.name));
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let when = match spec.when {
            When::Load => "start",
            When::Connect => "not connected",
            When::Any => "always",
            When::Action => "order",
        };
        let shown = match spec.shown {
            Shown::Always => "yes",
            Shown::IfSet => "if set",
            Shown::Encrypted => "if encrypted",
            Shown::Never => "no",
        };
        assert_eq!(cells[3..7], [when, shown, fate, spec.why], "{row}");
        let default = match spec.origin {
            Origin::Is("") => "(empty)".to_owned(),
            Origin::Is(text) => format!("`{text}`"),
            Origin::DataDir => "data directory".to_owned(),
            Origin::Of(name) => format!("as `{name}`"),
            Origin::HalfOf(name) => format!("half of `{name}`"),
            Origin::Host => "host of `wsrep_node_address`".to_owned(),
            Origin::Port => format!("port of `wsrep_node_address`, else {DEFAULT_PORT}"),
            Origin::Listen => {
                "`tcp://0.0.0.0:` and `base_port`; `[::]` where the own address is of IPv6"
                    .to_owned()
            }
        };
        let rest = cells[2].strip_prefix(&default);
        assert!(
            rest.is_some_and(|r| r.is_empty() || r.starts_with(" (")),
            "{default}: {row}"
        );
        let size = |n: i64| match n {
            n if n > 0 && n % (1 << 20) == 0 => format!("{}M", n >> 20),
            n if n > 0 && n % 1024 == 0 => format!("{}K", n >> 10),
            n => n.to_string(),
        };
        let words: Vec<String> = match spec.kind {
            Kind::Choice(words) => words.iter().map(|w| (*w).to_owned()).collect(),
            _ if spec.fate == Fate::Ignored => Vec::new(),
            Kind::Int(low, high) | Kind::Size(low, high) if high < i64::MAX => {
                vec![size(low), size(high)]
            }
            Kind::Double(low, high) if high < 1e9 => vec![low.to_string(), high.to_string()],
            _ => Vec::new(),
        };
        for word in words {
            assert!(cells[2].contains(&format!("`{word}`")), "{word}: {row}");
        }
    }
    let rows = page.lines().filter(|l| l.starts_with("| `")).count();
    assert_eq!(rows, TABLE.len());
}
