//! What applies to the target beside this replica: the target's own replica threads.

use std::collections::BTreeMap;

use dromon_relay::log::{Level, Log};

use crate::client::{Client, ClientError};

const ASKED: &str = "SHOW ALL SLAVES STATUS";
const SKIPPED: &str = "SHOW GLOBAL VARIABLES LIKE 'skip_slave_start'";

/// What the server's own threads may leave out, or write elsewhere. Not every version has all of these columns.
const FILTERS: [&str; 10] = [
    "Replicate_Rewrite_DB",
    "Replicate_Do_DB",
    "Replicate_Ignore_DB",
    "Replicate_Do_Table",
    "Replicate_Ignore_Table",
    "Replicate_Wild_Do_Table",
    "Replicate_Wild_Ignore_Table",
    "Replicate_Do_Domain_Ids",
    "Replicate_Ignore_Domain_Ids",
    "Replicate_Ignore_Server_Ids",
];

/// A connection of the target's own threads.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Connection {
    name: String,
    /// Whom they follow, as `host:port`, and its number if they know it.
    master: String,
    server: Option<u32>,
    applies: bool,
    filters: bool,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    connections: Vec<Connection>,
    /// The server says that it does not start them by itself.
    stay_stopped: bool,
}

impl Beside {
    /// Asks the target. Who may not know has nothing beside it.
    pub(crate) fn ask(client: &mut Client) -> Result<Beside, ClientError> {
        let rows = match client.named(ASKED) {
            Err(error) if error.code().is_some() => return Ok(Beside::default()),
            rows => rows?,
        };
        let connections: Vec<Connection> = rows.iter().map(Connection::of).collect();
        if connections.is_empty() {
            return Ok(Beside::default());
        }
        let skipped = client.named(SKIPPED)?;
        let value = skipped.first().and_then(|row| row.get("Value"));
        Ok(Beside {
            connections,
            stay_stopped: value.is_some_and(|value| value.eq_ignore_ascii_case("ON")),
        })
    }

    /// Why the source with this address and number is not to be followed: they apply from it, too. `filters`:
    /// this replica leaves something out. `warned`: what was said last, of what is no reason.
    pub(crate) fn refuses(
        &self,
        source: (&str, u32),
        filters: bool,
        warned: &mut String,
        log: &Log,
    ) -> Option<String> {
        let mut texts = Vec::new();
        for found in &self.connections {
            match found.master_is(source) {
                Same::No => {}
                Same::Yes if found.applies && !filters && !found.filters => {
                    return Some(found.why_not(source));
                }
                Same::Yes if found.applies => texts.push(found.parts(source.0)),
                Same::Perhaps if found.applies => texts.push(found.perhaps(source)),
                // Nobody runs, and nothing but the address is known.
                Same::Perhaps if found.server.is_none() => {}
                _ if self.stay_stopped => {}
                Same::Yes => texts.push(found.stopped(source.0)),
                Same::Perhaps => texts.push(found.perhaps(source)),
            }
        }
        let text = texts.join(" ");
        if *warned != text && !text.is_empty() {
            log.say(Level::Warning, &text);
        }
        *warned = text;
        None
    }
}

/// Whether two servers are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Same {
    Yes,
    No,
    /// A server has several names, and many have the number 1, which is the default.
    Perhaps,
}

impl Connection {
    fn of(row: &BTreeMap<String, String>) -> Connection {
        let cell = |name: &str| row.get(name).map_or("", String::as_str);
        let server = cell("Master_Server_Id").parse().ok();
        Connection {
            name: cell("Connection_name").to_owned(),
            master: format!("{}:{}", cell("Master_Host"), cell("Master_Port")),
            // 0 until they have reached it.
            server: server.filter(|server| *server != 0),
            applies: cell("Slave_SQL_Running") == "Yes",
            filters: FILTERS.iter().any(|name| !cell(name).is_empty()),
        }
    }

    fn master_is(&self, (address, server): (&str, u32)) -> Same {
        let by_address = self.master.eq_ignore_ascii_case(address);
        match self.server {
            // It has another number since, or another server has its address, perhaps as seen from here only.
            Some(known) if known != server && by_address => Same::Perhaps,
            Some(known) if known != server => Same::No,
            _ if by_address => Same::Yes,
            _ => Same::Perhaps,
        }
    }

    fn to_do(&self) -> String {
        format!(
            "set skip_slave_start in the target's my.cnf, or RESET SLAVE '{}' ALL there (note what it follows before)",
            self.name
        )
    }

    fn why_not(&self, (address, server): (&str, u32)) -> String {
        let Connection { name, master, .. } = self;
        format!(
            "the target's own replica threads (connection '{name}', from {master}) apply from {address} (server id {server}), too: \
             one of both would do everything once more, and put old values back. Nothing was applied by this session. STOP SLAVE \
             '{name}' there; and {}, as else they start again with the server",
            self.to_do()
        )
    }

    fn parts(&self, address: &str) -> String {
        let Connection { name, master, .. } = self;
        format!(
            "The target's own replica threads (connection '{name}', from {master}) apply from {address}, too, and something is left out \
             there or here. What both apply is done twice, and old values are put back: see that nothing is for both."
        )
    }

    fn stopped(&self, address: &str) -> String {
        let Connection { name, master, .. } = self;
        format!(
            "The target's own replica threads (connection '{name}', from {master}) are set to follow {address}, too. They are stopped, \
             but start with the server, apply what is applied here already and put old values back, unless skip_slave_start is in its \
             my.cnf, which it does not tell. If it is not: {}.",
            self.to_do()
        )
    }

    fn perhaps(&self, (address, server): (&str, u32)) -> String {
        let Connection { name, master, .. } = self;
        let does = match self.applies {
            true => "apply",
            false => "are stopped, but set to apply",
        };
        let (known, same, other) = match self.server {
            Some(before) if before != server => (
                format!("which had the server id {before} when they last heard from it"),
                format!("{address} has {server} now, and may be the same server"),
                ", and nothing is to be done",
            ),
            Some(_) => (
                format!("which has the server id {server}, as {address} has"),
                format!("It may be the same server as {address}, by another name"),
                ", and one of them is better given another server_id",
            ),
            None => (
                "whose server id they do not know yet".to_owned(),
                format!("It may be the same server as {address}, by another name"),
                ", and nothing is to be done",
            ),
        };
        format!(
            "The target's own replica threads (connection '{name}') {does} from {master}, {known}. {same}: then one of both does \
             everything once more, and puts old values back. If it is: STOP SLAVE '{name}' there; and {}. \
             If not, it is no harm{other}.",
            self.to_do()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_target::{Fake, Reply, cell};

    const COLUMNS: [&str; 6] = [
        "Connection_name",
        "Master_Host",
        "Master_Port",
        "Slave_SQL_Running",
        "Replicate_Do_DB",
        "Master_Server_Id",
    ];

    fn found(rows: &[[&str; 6]], skipped: Option<&'static str>, filters: bool) -> (bool, String) {
        let rows = rows.iter().map(|row| row.map(str::to_owned).to_vec());
        let rows: Vec<Vec<String>> = rows.collect();
        let fake = Fake::new(move |text| match text {
            ASKED => Some(Reply::Named(&COLUMNS, rows.clone())),
            SKIPPED => Some(skipped.map_or(Reply::Nothing, |value| {
                let row = ["skip_slave_start", value].map(str::to_owned).to_vec();
                Reply::Named(&["Variable_name", "Value"], vec![row])
            })),
            _ => None,
        });
        let mut client = Client::connect(&fake.account()).expect("a target");
        let beside = Beside::ask(&mut client).expect("answers");
        let mut warned = String::new();
        let source = ("db1:3306", 7);
        let why = beside.refuses(source, filters, &mut warned, &Log::terminal());
        (why.is_some(), why.unwrap_or(warned))
    }

    /// They would apply once more what this replica has applied.
    #[test]
    fn own_threads_of_the_target() {
        let nothing = (false, String::new());
        for (row, skipped, filters, refused, says) in [
            (
                ["", "db1", "3306", "Yes", "", "0"],
                None,
                false,
                true,
                "connection ''",
            ),
            (
                ["a", "DB1", "3306", "Yes", "", "7"],
                None,
                false,
                true,
                "STOP SLAVE 'a'",
            ),
            // Another name, or another server with the same number.
            (
                ["a", "10.0.0.1", "3306", "Yes", "", "7"],
                None,
                false,
                false,
                "has the server id 7, as db1:3306 has. It may be the same",
            ),
            (
                ["a", "10.0.0.1", "3306", "No", "", "7"],
                None,
                false,
                false,
                "are stopped, but set to apply from 10.0.0.1:3306",
            ),
            (
                ["a", "db1", "3307", "Yes", "", "0"],
                None,
                false,
                false,
                "they do not know yet. It may be the same",
            ),
            // Another number at the same address.
            (
                ["a", "DB1", "3306", "Yes", "", "8"],
                None,
                false,
                false,
                "had the server id 8 when they last heard from it. db1:3306 has 7 now",
            ),
            (
                ["a", "db1", "3306", "No", "", "8"],
                None,
                false,
                false,
                "are stopped, but set to apply from db1:3306, which had the server id 8",
            ),
            // Other parts of the same.
            (
                ["", "db1", "3306", "Yes", "shop", "7"],
                None,
                false,
                false,
                "nothing is for both",
            ),
            (
                ["", "db1", "3306", "Yes", "", "7"],
                None,
                true,
                false,
                "nothing is for both",
            ),
            (
                ["", "db1", "3306", "No", "", "0"],
                None,
                false,
                false,
                "skip_slave_start",
            ),
            (
                ["", "db1", "3306", "No", "", "0"],
                Some("OFF"),
                false,
                false,
                "skip_slave_start",
            ),
        ] {
            let (is, text) = found(&[row], skipped, filters);
            assert_eq!(is, refused, "{row:?}: {text}");
            assert!(text.contains(says), "{row:?}: {text}");
        }
        // Another source, whatever its name is, and what stays stopped.
        let other = ["", "db2", "3306", "Yes", "", "8"];
        assert_eq!(found(&[other], None, false), nothing);
        let another = ["", "db1", "3307", "Yes", "", "8"];
        assert_eq!(found(&[another], None, false), nothing);
        let moved = ["", "db1", "3306", "No", "", "8"];
        assert_eq!(found(&[moved], Some("ON"), false), nothing);
        let idle = ["", "db2", "3306", "No", "", "0"];
        assert_eq!(found(&[idle], None, false), nothing);
        let namesake = ["", "db2", "3306", "No", "", "7"];
        assert_eq!(found(&[namesake], Some("ON"), false), nothing);
        let stopped = ["", "db1", "3306", "No", "", "7"];
        assert_eq!(found(&[stopped], Some("ON"), false), nothing);
        assert_eq!(found(&[], None, false), nothing);
        // One that applies counts before one that does not.
        let applies = ["b", "db1", "3306", "Yes", "", "7"];
        assert!(found(&[stopped, applies], None, false).0);
        // Of several each is named.
        let (refused, text) = found(
            &[["a", "db2", "3306", "Yes", "", "0"], stopped],
            None,
            false,
        );
        assert!(!refused && text.contains("(connection 'a')"), "{text}");
        assert!(text.contains("skip_slave_start is in its"), "{text}");
        // What is written to another database is not the same twice.
        let row = ["Replicate_Rewrite_DB", "Slave_SQL_Running"].map(str::to_owned);
        let row = row.into_iter().zip(["a->b", "Yes"].map(str::to_owned));
        assert!(Connection::of(&row.collect()).filters);
        // Who may not ask is not kept from anything.
        let fake = Fake::new(|text| (text == ASKED).then_some(Reply::Fail(1227)));
        let mut client = Client::connect(&fake.account()).expect("a target");
        let beside = Beside::ask(&mut client).expect("no reason");
        assert_eq!(beside, Beside::default());
        client.query(b"DO 1").expect("it goes on");
        // Nor is another statement's answer one with names.
        let fake = Fake::new(|_| Some(cell("1")));
        let mut client = Client::connect(&fake.account()).expect("a target");
        assert_eq!(
            client.one("SELECT 1").expect("answers").as_deref(),
            Some("1")
        );
    }
}
