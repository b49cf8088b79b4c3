//! Provider options: every name, its type, its value.
//!
//! One string comes from the server at start (`wsrep_provider_options`), parts
//! of it again with every `SET GLOBAL`, and some options hide behind the `?` of
//! the cluster address. [`Options`] holds one value for each known name, gives
//! the string back in the peer's form, and keeps [`Settings`] up to date for the
//! rest of the node.
//!
//! ```text
//!   "k = v; k2 = v2"  --parse_init / set / connect-->  Options  --settings()-->  node
//!                                                        |  \--> Outcome: notes to log,
//!   SHOW VARIABLES   <--------- to_string() -------------+            actions to do
//!   11.8 sysvars     <--------- parameters() ------------+
//! ```
//!
//! Invariant: setting the whole shown string again changes nothing and succeeds,
//! in every phase, whatever the options are.

mod address;
mod derive;
mod error;
mod settings;
mod suggest;
mod table;
#[cfg(test)]
mod tests;
mod value;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use dromon_writeset::Uuid;

pub use address::{AddressError, ClusterAddress, DEFAULT_PORT, HostPort};
pub use error::OptionError;
pub use settings::{Durability, Settings, SlowNode, Tls};
pub use value::format_span;

use address::{bracketed, parse_host, parse_listen};
use derive::{
    byte, derive_settings, entry, fill_defaults, int, keep_values, node_address, port, span,
};
use table::{Fate, Kind, Listed, Shown, Spec, TABLE, When, index};
use value::{Value, echo, parse_bool, parse_double, parse_int, parse_size, parse_span};

/// What the defaults depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Env {
    /// `wsrep_node_address`: host, host:port, IPv6 in brackets, or empty.
    pub node_address: String,
    /// The server's data directory, as the server writes it.
    pub data_dir: String,
}

/// When a string of options arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// With the load of the library.
    Init,
    /// Behind the `?` of the cluster address.
    Connect,
    /// From `SET GLOBAL`.
    Runtime {
        /// This node is connected to a cluster.
        connected: bool,
    },
}

/// Something an operator should read once; to be logged as a Note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note(pub String);

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An option that is an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make this component primary by force (`pc.bootstrap`).
    Bootstrap,
    /// Remove a member (`evs.evict`); `None`: forget earlier evictions, which bar nobody.
    Evict(Option<Uuid>),
    /// Cut this node off, or end that (`gmcast.isolate`).
    Isolate(Isolation),
    /// Read certificate and key again (`socket.ssl_reload`).
    ReloadTls,
    /// Tell the cluster the new weight (`pc.weight`).
    Weight(u8),
}

/// How far a node is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Not at all.
    Off,
    /// No connections.
    On,
    /// No connections, and the node shuts its cluster side down.
    Shutdown,
}

/// What a string of options led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "notes want to be logged, actions to be done, and the error to be returned"]
pub struct Outcome {
    /// Names whose value is another one now, in the order given.
    pub changed: Vec<&'static str>,
    /// Orders, in the order given.
    pub actions: Vec<Action>,
    /// To be logged. Each note comes once in the life of the [`Options`].
    pub notes: Vec<Note>,
    /// The first bad item. Items before it are in force, later ones were not
    /// looked at.
    pub error: Option<OptionError>,
}

/// An option as the config service of newer servers wants it.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Dotted name in lower case.
    pub name: &'static str,
    /// Kind and value in one.
    pub value: ParameterValue,
    /// The server refuses to set it.
    pub read_only: bool,
    /// The server warns when it is set.
    pub deprecated: bool,
}

/// Kind and value of a [`Parameter`].
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterValue {
    /// A switch.
    Bool(bool),
    /// A whole number; sizes are in bytes.
    Int(i64),
    /// A decimal number; durations are in seconds.
    Double(f64),
    /// Anything else; never a null pointer for the server.
    Str(String),
}

/// One value for every known option.
#[derive(Clone, Debug)]
pub struct Options {
    env: Env,
    /// Parallel to [`TABLE`].
    entries: Vec<Entry>,
    settings: Settings,
    noted: BTreeSet<&'static str>,
    witness: bool,
}

#[derive(Clone, Debug)]
struct Entry {
    /// As it is shown.
    text: String,
    value: Value,
    default: Value,
    /// Somebody has set it, so it no longer follows its default.
    given: bool,
    /// Given at start, so it is shown even at its default.
    pinned: bool,
}

impl Options {
    /// All defaults. An unusable `node_address` counts as empty here;
    /// [`Options::parse_init`] says so in a note.
    pub fn new(env: Env) -> Options {
        let blank = || Entry {
            text: String::new(),
            value: Value::Bool(false),
            default: Value::Bool(false),
            given: false,
            pinned: false,
        };
        let mut entries: Vec<Entry> = TABLE.iter().map(|_| blank()).collect();
        fill_defaults(&env, &mut entries);
        let settings = derive_settings(&env, &entries);
        Options {
            env,
            entries,
            settings,
            noted: BTreeSet::new(),
            witness: false,
        }
    }

    /// Those of a witness: notes name what it can set.
    pub fn of_witness(mut self) -> Options {
        self.witness = true;
        self
    }

    /// Takes the string given at start. Afterwards the defaults that follow
    /// other options (`gmcast.listen_addr` from `base_port`, ...) are settled.
    ///
    /// # Errors
    /// The first bad item; the library must not start with it.
    pub fn parse_init(&mut self, text: &str) -> Result<Outcome, OptionError> {
        let mut outcome = self.apply(text, Phase::Init, None);
        if self.env.node_address.trim().is_empty()
            && !self.entry("base_host").given
            && self.noted.insert("node_address")
        {
            let setting = match self.witness {
                true => "base_host in --options",
                false => "wsrep_node_address",
            };
            outcome.notes.push(Note(format!(
                "No address of this node is known: set {setting}, or nodes on other hosts cannot reach this one"
            )));
        } else if node_address(&self.env).is_none() && self.noted.insert("node_address") {
            outcome.notes.push(Note(format!(
                "The node address '{}' is not a host or host:port; 127.0.0.1 is announced instead",
                self.env.node_address
            )));
        }
        match outcome.error.take() {
            Some(error) => Err(error),
            None => Ok(outcome),
        }
    }

    /// Takes the options behind the `?` of a cluster address. They stay until
    /// they are set again.
    ///
    /// # Errors
    /// The first bad item; connecting must be refused with it. Nothing is set then: the next
    /// address need not name those before it.
    pub fn connect(&mut self, address: &ClusterAddress) -> Result<Outcome, OptionError> {
        let before = self.clone();
        let outcome = self.set_all(address.options.clone(), Phase::Connect);
        match outcome.error {
            Some(error) => {
                *self = before;
                Err(error)
            }
            None => Ok(outcome),
        }
    }

    /// Takes the argument of a `SET`: items from left to right up to the first
    /// bad one. A string that cannot be split into items changes nothing.
    pub fn set(&mut self, text: &str, phase: Phase) -> Outcome {
        self.apply(text, phase, None)
    }

    /// The same, up to the first item that is `name`.
    pub fn set_before(&mut self, name: &str, text: &str, phase: Phase) -> Outcome {
        self.apply(text, phase, Some(name))
    }

    /// The values in use.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The text of one option as it is shown, also if it is hidden from the
    /// whole string. `None`: no such option.
    pub fn get(&self, name: &str) -> Option<&str> {
        index(name).map(|i| self.entries[i].text.as_str())
    }

    /// All options for the config service, in order of names.
    pub fn parameters(&self) -> Vec<Parameter> {
        TABLE
            .iter()
            .zip(&self.entries)
            .filter(|(spec, _)| spec.listed != Listed::No)
            .map(|(spec, entry)| Parameter {
                name: spec.name,
                value: parameter_value(spec.listed, entry),
                read_only: spec.read_only,
                deprecated: spec.deprecated,
            })
            .collect()
    }

    fn apply(&mut self, text: &str, phase: Phase, end: Option<&str>) -> Outcome {
        match split_items(text) {
            Ok(mut items) => {
                if let Some(at) = items.iter().position(|(n, _)| Some(n.as_str()) == end) {
                    items.truncate(at);
                }
                self.set_all(items, phase)
            }
            Err(error) => Outcome {
                error: Some(error),
                ..Outcome::default()
            },
        }
    }

    fn set_all(&mut self, mut items: Vec<(String, String)>, phase: Phase) -> Outcome {
        if !matches!(phase, Phase::Runtime { .. }) {
            // A listen address without a port takes this one, wherever it stands.
            items.sort_by_key(|(name, _)| name != "base_port");
        }
        let mut outcome = Outcome::default();
        let mut touched = Vec::new();
        for (name, value) in items {
            match self.set_one(&name, &value, phase, &mut outcome) {
                Ok(at) => touched.extend(at),
                Err(error) => {
                    outcome.error = Some(error);
                    break;
                }
            }
        }
        self.settle(phase);
        // Only now is it known what differs from its default.
        for at in touched {
            self.note(at, &mut outcome);
        }
        self.note_timeouts(&mut outcome);
        outcome
    }

    /// Sets one option; its place in the table if that may need a note.
    fn set_one(
        &mut self,
        name: &str,
        text: &str,
        phase: Phase,
        outcome: &mut Outcome,
    ) -> Result<Option<usize>, OptionError> {
        let at = index(name).ok_or_else(|| OptionError::Unknown {
            name: name.to_string(),
            suggestion: suggest::closest(name),
        })?;
        let spec = &TABLE[at];
        if spec.when == When::Action {
            return self.order(spec, text, phase, outcome).map(|()| None);
        }
        let port = self.port();
        let Some((value, shown)) = parse(spec.kind, text, port) else {
            return Err(self.bad_value(spec, text, phase));
        };
        let entry = &mut self.entries[at];
        let same = entry.value == value;
        let apart = matches!(phase, Phase::Connect | Phase::Runtime { connected: false });
        let open =
            phase == Phase::Init || spec.when == When::Any || (spec.when == When::Connect && apart);
        if !open {
            return if same {
                Ok(None)
            } else {
                Err(OptionError::ReadOnly {
                    name: spec.name,
                    value: text.to_string(),
                    current: entry.text.clone(),
                    restart: spec.when == When::Load,
                })
            };
        }
        // The text it has already stays, or setting the whole string back could change it.
        if entry.text != text {
            entry.text = echo(spec.name, &value, shown, phase == Phase::Init);
        }
        entry.value = value;
        // What somebody has set before is said already, or was in force when it was.
        let news = !same || !entry.given;
        // Setting the whole string back must not make every default a decision; what it
        // does not show is one.
        let back = matches!(phase, Phase::Runtime { .. }) && spec.shown != Shown::IfSet;
        entry.given |= !same || !back;
        // That nobody has said it means something else, so what is said is shown.
        entry.pinned |= phase == Phase::Init || spec.name == "socket.ssl";
        if !same {
            outcome.changed.push(spec.name);
            if spec.name == "pc.weight" && phase != Phase::Init {
                let weight = self.int("pc.weight");
                outcome.actions.push(Action::Weight(byte(weight)));
            }
        }
        Ok(news.then_some(at))
    }

    /// An option that is an order: checked, handed out, not kept.
    fn order(
        &mut self,
        spec: &'static Spec,
        text: &str,
        phase: Phase,
        outcome: &mut Outcome,
    ) -> Result<(), OptionError> {
        let bad = || self.bad_value(spec, text, phase);
        let action = match spec.name {
            // An empty text is no, as the server sends it for an unset string.
            "pc.bootstrap" if text.is_empty() => None,
            "pc.bootstrap" => parse_bool(text)
                .ok_or_else(bad)?
                .then_some(Action::Bootstrap),
            "socket.ssl_reload" if text.is_empty() => None,
            "socket.ssl_reload" => parse_bool(text)
                .ok_or_else(bad)?
                .then_some(Action::ReloadTls),
            "evs.evict" if text.is_empty() => Some(Action::Evict(None)),
            "evs.evict" => Some(Action::Evict(Some(text.parse().map_err(|_| bad())?))),
            _ => Some(Action::Isolate(match text {
                "0" => Isolation::Off,
                "1" => Isolation::On,
                "2" => Isolation::Shutdown,
                _ => return Err(bad()),
            })),
        };
        let Some(action) = action else {
            return Ok(());
        };
        let early = matches!(action, Action::Bootstrap | Action::Evict(Some(_)));
        if early && !matches!(phase, Phase::Runtime { .. }) {
            if self.noted.insert(spec.name) {
                outcome.notes.push(Note(format!(
                    "Option '{}' does nothing in the configuration: it is an order to a running \
                     node. Give it with SET GLOBAL wsrep_provider_options",
                    spec.name
                )));
            }
            return Ok(());
        }
        let idle = matches!(action, Action::Evict(None) | Action::ReloadTls);
        if idle && !matches!(phase, Phase::Runtime { .. }) {
            return Ok(());
        }
        outcome.actions.push(action);
        Ok(())
    }

    /// Says once what an option does not do here, if it is set to anything but
    /// its default.
    fn note(&mut self, at: usize, outcome: &mut Outcome) {
        let (spec, entry) = (&TABLE[at], &self.entries[at]);
        if entry.value == entry.default || self.noted.contains(spec.name) {
            return;
        }
        let text = match spec.fate {
            Fate::Ignored => format!(
                "Option '{}' is accepted, but has no effect here: {}",
                spec.name, spec.why
            ),
            Fate::Mapped => format!("Option '{}' differs here: {}", spec.name, spec.why),
            Fate::Kept if spec.deprecated => {
                format!(
                    "Option '{}' is deprecated: it is the {}",
                    spec.name, spec.why
                )
            }
            Fate::Kept | Fate::Ours => return,
        };
        self.noted.insert(spec.name);
        outcome.notes.push(Note(text));
    }

    /// Says once when two timeouts contradict each other, and what counts.
    fn note_timeouts(&mut self, outcome: &mut Outcome) {
        let suspect = self.settings.suspect_timeout;
        let settings = &self.settings;
        let used = settings.keepalive_period;
        let said = span(&self.entries, "evs.keepalive_period");
        if said != used && self.noted.insert("keepalive") {
            outcome.notes.push(Note(format!(
                "Option 'evs.keepalive_period' = {} does not fit 'evs.suspect_timeout' = {}: {} is used",
                format_span(said),
                format_span(suspect),
                format_span(used)
            )));
        }
    }

    /// Brings defaults that follow other options, and the settings, up to date.
    /// What nobody has set follows up to the connection, so setting a value to
    /// what it already is has nothing to move. In a cluster each is its own.
    fn settle(&mut self, phase: Phase) {
        if phase == (Phase::Runtime { connected: true }) {
            keep_values(&mut self.entries);
        } else {
            fill_defaults(&self.env, &mut self.entries);
        }
        self.settings = derive_settings(&self.env, &self.entries);
    }

    fn bad_value(&self, spec: &'static Spec, text: &str, phase: Phase) -> OptionError {
        OptionError::BadValue {
            name: spec.name,
            value: text.to_string(),
            expected: expected(spec.kind),
            kept: (phase != Phase::Init && spec.when != When::Action)
                .then(|| self.entry(spec.name).text.clone()),
        }
    }

    fn entry(&self, name: &str) -> &Entry {
        entry(&self.entries, name)
    }

    fn int(&self, name: &str) -> i64 {
        int(&self.entries, name)
    }

    fn port(&self) -> u16 {
        port(&self.entries)
    }
}

/// The whole string in the peer's form: `key = value; ` for each shown option.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (spec, entry) in TABLE.iter().zip(&self.entries) {
            let shown = match spec.shown {
                Shown::Always => true,
                Shown::IfSet => entry.pinned || entry.value != entry.default,
                Shown::Encrypted => self.settings.tls.enabled,
                Shown::Never => false,
            };
            if shown {
                write!(f, "{} = {}; ", spec.name, escape(&entry.text))?;
            }
        }
        Ok(())
    }
}

/// Splits `k=v;k2=v2` into trimmed pairs; empty items are skipped.
///
/// A semicolon that belongs to a value is written `\;`, a backslash in front of
/// a semicolon or of another backslash is written `\\`.
fn split_items(text: &str) -> Result<Vec<(String, String)>, OptionError> {
    let mut items = Vec::new();
    let mut item = String::new();
    let mut chars = text.chars().peekable();
    loop {
        let c = chars.next();
        match c {
            Some('\\') => match chars.next_if(|next| matches!(next, ';' | '\\')) {
                Some(escaped) => item.push(escaped),
                None => item.push('\\'),
            },
            Some(';') | None => {
                let whole = item.trim();
                if !whole.is_empty() {
                    items.push(split_pair(whole)?);
                }
                item.clear();
                if c.is_none() {
                    return Ok(items);
                }
            }
            Some(c) => item.push(c),
        }
    }
}

fn split_pair(item: &str) -> Result<(String, String), OptionError> {
    match item.split_once('=') {
        None => Err(OptionError::MissingValue {
            item: item.to_string(),
        }),
        Some((name, _)) if name.trim().is_empty() => Err(OptionError::MissingName {
            item: item.to_string(),
        }),
        Some((name, value)) => Ok((name.trim().to_string(), value.trim().to_string())),
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace(';', "\\;")
}

/// Value and shown text of a given text; `None`: not a value of this kind.
fn parse(kind: Kind, text: &str, base_port: u16) -> Option<(Value, String)> {
    let within = |v: i64, low: i64, high: i64| (low..=high).contains(&v).then_some(Value::Int(v));
    let value = match kind {
        Kind::Bool => Value::Bool(parse_bool(text)?),
        // The peer shows counts like sizes (`gcs.fc_limit=1K`), so it reads them so.
        Kind::Int(low, high) => within(parse_size(text)?, low, high)?,
        Kind::Size(low, high) => within(parse_size(text)?, low, high)?,
        Kind::SizeOrAuto if text.eq_ignore_ascii_case("auto") => Value::Text("auto".into()),
        Kind::SizeOrAuto => within(parse_size(text)?, 1, i64::from(i32::MAX))?,
        Kind::Mask => Value::Int(parse_int(text)?),
        Kind::Double(low, high) => {
            let v = parse_double(text)?;
            (low..=high).contains(&v).then_some(Value::Double(v))?
        }
        Kind::Span(low) => {
            let v = parse_span(text).filter(|v| *v >= Duration::from_millis(low))?;
            if !text.starts_with(['P', 'p']) {
                return Some((Value::Span(v), format_span(v)));
            }
            Value::Span(v)
        }
        Kind::Choice(words) => {
            let word = words.iter().find(|w| w.eq_ignore_ascii_case(text))?;
            Value::Text(word.to_string())
        }
        Kind::Text | Kind::Member => Value::Text(text.to_string()),
        Kind::Port => within(parse_int(text)?, 1, 65535)?,
        Kind::Listen => {
            let (scheme, host, port) = parse_listen(text)?;
            let port = port.unwrap_or(base_port);
            let scheme = scheme.unwrap_or("tcp");
            let full = format!("{scheme}://{}:{port}", bracketed(&host));
            return Some((Value::Text(full.clone()), full));
        }
        Kind::Node => match parse_host(text).ok()? {
            (_, None) => Value::Text(text.to_string()),
            _ => return None,
        },
        Kind::Address => {
            if !text.is_empty() {
                parse_listen(text)?; // the peer takes a scheme, and prints one
            }
            Value::Text(text.to_string())
        }
    };
    Some((value, text.to_string()))
}

/// What a kind takes, for the message about a bad value.
fn expected(kind: Kind) -> String {
    match kind {
        Kind::Bool => "yes or no (also true/false, on/off, 1/0)".into(),
        Kind::Int(low, i64::MAX) => format!("a whole number from {low} up"),
        Kind::Int(low, high) => format!("a whole number from {low} to {high}"),
        Kind::Size(low, i64::MAX) => {
            format!("a whole number from {low} up, K, M, G or T may follow, for example 128M")
        }
        Kind::Size(low, high) => format!(
            "a whole number from {low} to {high}, K, M, G or T may follow, for example 128K"
        ),
        Kind::SizeOrAuto => "auto, or a size in bytes, for example 1M".into(),
        Kind::Mask => "a number, decimal or hexadecimal (0x4)".into(),
        Kind::Double(low, high) => format!("a number from {low} to {high}, for example 0.5"),
        Kind::Span(0) => "a duration such as PT5S, PT0.5S, PT1M, P1D, or plain seconds".into(),
        Kind::Span(low) => format!(
            "a duration of at least {} such as PT5S, PT0.5S, PT1M, P1D, or plain seconds",
            format_span(Duration::from_millis(low))
        ),
        Kind::Choice(words) => format!("one of {}", words.join(", ")),
        Kind::Text => "a text".into(),
        Kind::Port => "a port from 1 to 65535".into(),
        Kind::Listen => {
            "an address such as tcp://0.0.0.0:4567 or tcp://[::]:4567 (scheme and port may be \
             missing)"
                .into()
        }
        Kind::Node => "a host name or IP address without a port".into(),
        Kind::Address => {
            "a host or host:port, an IPv6 address in brackets, tcp:// or ssl:// before it if need be".into()
        }
        Kind::Member => "the uuid of a member, as in wsrep_gcomm_uuid, or nothing".into(),
    }
}

fn parameter_value(listed: Listed, entry: &Entry) -> ParameterValue {
    match (listed, &entry.value) {
        (Listed::Bool, Value::Bool(v)) => ParameterValue::Bool(*v),
        (Listed::Bool, Value::Int(v)) => ParameterValue::Bool(*v != 0),
        (Listed::Int, Value::Int(v)) => ParameterValue::Int(*v),
        (Listed::Dbl, Value::Double(v)) => ParameterValue::Double(*v),
        (Listed::Dbl, Value::Span(v)) => ParameterValue::Double(v.as_secs_f64()),
        _ => ParameterValue::Str(entry.text.clone()),
    }
}
