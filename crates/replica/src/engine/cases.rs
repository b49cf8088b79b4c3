//! Whether upper and lower case of names are the same to filters, as they are to the servers.

use std::sync::PoisonError;

use dromon_relay::log::{Level, Log};

use super::{Progress, Settings};
use crate::client::{Account, Client, ClientError};
use crate::compile::Filter;

const UNKNOWN_VARIABLE: u16 = 1193;
const ASK: &str = "SELECT @@lower_case_table_names";

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
    use crate::fake::{self, Fake, Reply, cell};

    fn wants(fake: &Fake, address: &str, target: bool) -> Result<bool, String> {
        let mut settings = fake::settings(fake, &["without=Shop.Log"]);
        settings.source.address = address.into();
        let progress = Progress::default();
        let filter = filter(&settings, target, &progress, &Log::terminal())?;
        Ok(filter.wants(b"shop", b"LOG"))
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
