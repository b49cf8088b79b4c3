//! Names in filters: whether upper and lower case are the same, as they are to the servers; and which of
//! them the target has.

use std::sync::PoisonError;

use dromon_relay::log::{Level, Log};

use super::{Progress, Settings};
use crate::catalog::Known;
use crate::client::{Account, Client, ClientError};
use crate::compile::Filter;

const UNKNOWN_VARIABLE: u16 = 1193;
const ASK: &str = "SELECT @@lower_case_table_names";
const DATABASES: &str = "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA";
/// Databases whose tables are not looked at.
const SYSTEM: [&str; 4] = ["mysql", "sys", "information_schema", "performance_schema"];

/// Says which names of the filter neither a database nor a table of the target has: they may come
/// later, but a misspelt one would leave out everything, or nothing, without a word.
pub(super) fn warn(
    filter: &Filter,
    control: &mut Client,
    known: &Known,
    log: &Log,
) -> Result<(), ClientError> {
    for name in unknown(filter, control, known)? {
        let text = format!(
            "only or without names {name}, and the target has no such database or table. Is it misspelt? Names count as they are, whole, and \
             without wildcards: what only does not name is not applied, and what without does not name is."
        );
        log.say(Level::Warning, &text);
    }
    Ok(())
}

fn unknown<'f>(
    filter: &'f Filter,
    control: &mut Client,
    known: &Known,
) -> Result<Vec<&'f str>, ClientError> {
    if filter.is_empty() {
        return Ok(Vec::new());
    }
    let databases = control.rows(DATABASES)?.into_iter().flatten().flatten();
    let databases = databases.map(|name| String::from_utf8_lossy(&name).into_owned());
    let mut names = filter.not_among(databases.chain(known.names()));
    names.retain(|name| {
        let database = name.split('.').next().unwrap_or_default();
        !SYSTEM.contains(&database.to_lowercase().as_str())
    });
    Ok(names)
}

/// The filter as it must compare. `target`: the target takes them for the same.
///
/// # Errors
/// The source cannot be asked now: nobody knows what is to be left out.
pub(super) fn filter(
    settings: &Settings,
    target: bool,
    progress: &Progress,
    log: &Log,
) -> Result<Filter, String> {
    let filter = &settings.filter;
    if filter.is_empty() {
        return Ok(filter.clone());
    }
    if target {
        return Ok(filter.of_any_case());
    }
    let mut known = progress
        .any_case
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let source = match *known {
        Some(source) => source,
        None => match ask(settings) {
            Ok(source) => source,
            // A relay does not know.
            Err(error) if error.code() == Some(UNKNOWN_VARIABLE) => {
                let text = format!(
                    "The source cannot be asked for lower_case_table_names: {error}. In only and without upper and lower case count, \
                     as on the target: write names there as they stand in the source's binlog."
                );
                log.say(Level::Warning, &text);
                false
            }
            Err(error) => {
                return Err(format!(
                    "the source cannot be asked whether upper and lower case count in only and without: {error}"
                ));
            }
        },
    };
    *known = Some(source);
    Ok(match source {
        true => filter.of_any_case(),
        false => filter.clone(),
    })
}

fn ask(settings: &Settings) -> Result<bool, ClientError> {
    let source = &settings.source;
    let mut client = Client::connect(&Account {
        address: source.address.clone(),
        user: source.wish.user.clone(),
        password: source.wish.password.clone(),
        tls: source.tls.clone(),
        patience: source.dead_after,
    })?;
    client.limit(source.dead_after)?;
    Ok(client.one(ASK)?.is_some_and(|text| text != "0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_target::{self, Fake, Reply, cell};

    fn wants(fake: &Fake, address: &str, target: bool) -> Result<bool, String> {
        let mut settings = fake_target::settings(fake, &["without=Shop.Log"]);
        settings.source.address = address.into();
        let progress = Progress::default();
        let filter = filter(&settings, target, &progress, &Log::terminal())?;
        Ok(filter.wants(b"shop", b"LOG"))
    }

    /// What is named, and not there.
    #[test]
    fn names_that_the_target_lacks() {
        let fake = Fake::new(|text| match text {
            DATABASES => Some(Reply::Rows(vec![vec!["shop".into()], vec!["empty".into()]])),
            _ if text.contains("FROM information_schema.TABLES") => {
                let row = ["shop", "orders", "BASE TABLE", "InnoDB"];
                Some(Reply::Row(row.map(String::from).to_vec()))
            }
            "SELECT @@lower_case_table_names" => Some(cell("0")),
            _ if text.starts_with("SELECT ") => Some(Reply::Nothing),
            _ => None,
        });
        let mut control = Client::connect(&fake.account()).expect("a target");
        let known = Known::read(&mut control).expect("its tables");
        let mut lacks = |only: &[&str], without: &[&str], any_case: bool| {
            let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let mut filter = Filter::new(all(only), all(without));
            if any_case {
                filter = filter.of_any_case();
            }
            let unknown = unknown(&filter, &mut control, &known).expect("answers");
            unknown.into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(lacks(&["shop", "empty"], &["shop.orders"], false), [""; 0]);
        let named = lacks(&["Shop", "shop.order"], &["log", "mysql.user"], false);
        assert_eq!(named, ["Shop", "shop.order", "log"]);
        assert_eq!(lacks(&["Shop", "SHOP.Orders"], &[], true), [""; 0]);
    }

    /// Either server may take them for the same.
    #[test]
    fn as_the_servers_compare() {
        let with = |reply: Reply| Fake::new(move |text| (text == ASK).then(|| reply.clone()));
        for (reply, target, wanted) in [
            (cell("0"), false, true),
            (cell("1"), false, false),
            (cell("2"), false, false),
            (cell("0"), true, false),
            (Reply::Fail(1193), false, true),
        ] {
            let fake = with(reply);
            let address = fake.account().address;
            assert_eq!(wants(&fake, &address, target), Ok(wanted));
        }
        // One that is away may be either.
        let fake = with(cell("0"));
        let why = wants(&fake, "127.0.0.1:1", false).expect_err("it is away");
        assert!(why.contains("upper and lower case"), "{why}");
        assert_eq!(wants(&fake, "127.0.0.1:1", true), Ok(false));
    }
}
