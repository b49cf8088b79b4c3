//! What can be wrong with a string of options.

use std::fmt;

/// Why options were refused. Nothing but the operator's text is at fault, and
/// no data is affected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// An item without `=`.
    #[error(
        "The options contain '{item}' without a value, so none of them was set. Write \
         {item}=VALUE and put semicolons between options"
    )]
    MissingValue {
        /// The item as given.
        item: String,
    },
    /// An item that begins with `=`.
    #[error(
        "The options contain '{item}' without a name, so none of them was set. Write NAME=VALUE \
         and put semicolons between options"
    )]
    MissingName {
        /// The item as given.
        item: String,
    },
    /// A name nobody knows.
    #[error("Unknown parameter '{name}': no provider option has this name{}", Meant(.suggestion))]
    Unknown {
        /// The name as given.
        name: String,
        /// A known name that is close to it.
        suggestion: Option<&'static str>,
    },
    /// A known name, but not a value for it.
    #[error("Option '{name}' cannot be '{value}': it takes {expected}{}", Kept(.kept))]
    BadValue {
        /// The option.
        name: &'static str,
        /// The value as given.
        value: String,
        /// What the option takes.
        expected: String,
        /// The value that stays, if there is one already.
        kept: Option<String>,
    },
    /// It cannot change now.
    #[error("{}", read_only(name, value, current, *restart))]
    ReadOnly {
        /// The option.
        name: &'static str,
        /// The value as given.
        value: String,
        /// The value that stays.
        current: String,
        /// It needs a restart of the server; otherwise a new connection to the
        /// cluster is enough.
        restart: bool,
    },
}

struct Meant<'a>(&'a Option<&'static str>);

impl fmt::Display for Meant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(f, ". Did you mean '{name}'?"),
            None => f.write_str(", nor one like it. docs/options.md lists them all"),
        }
    }
}

struct Kept<'a>(&'a Option<String>);

impl fmt::Display for Kept<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(text) => write!(f, ". It stays '{text}'"),
            None => Ok(()),
        }
    }
}

fn read_only(name: &str, value: &str, current: &str, restart: bool) -> String {
    let when = if restart {
        "after the start of the server"
    } else {
        "while this node is connected to a cluster"
    };
    format!(
        "Option '{name}' cannot change {when}: it stays '{current}'. Put {name}={value} into \
         wsrep_provider_options in the configuration file and restart this node"
    )
}
