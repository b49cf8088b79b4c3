//! Settings as they are given, on a command line and in a file of `key = value` lines; each program
//! makes of them what it needs.

use std::fs;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::net::{ClientTls, TlsError, TlsKeys, TlsWish};

/// What a program can be told.
#[derive(Debug)]
pub struct Known {
    /// As in "a setting of a relay".
    pub program: &'static str,
    /// Every setting, what it is for, and its default: a value that can be written, or, in brackets,
    /// what it means that it is empty.
    pub settings: &'static [(&'static str, &'static str, &'static str)],
}

/// What was said; nothing is checked yet. The last word of a key counts.
#[derive(Clone, Debug)]
pub struct Given {
    known: &'static Known,
    said: Vec<Said>,
    /// Files with secrets in settings themselves.
    secret_files: Vec<PathBuf>,
}

/// Settings whose value is a secret, or holds one.
fn is_secret(key: &str) -> bool {
    key.ends_with("password") || matches!(key, "account" | "admin")
}

/// Whether something stands behind a value that looks like a comment. A secret may look like anything.
fn has_comment(said: &Said) -> bool {
    let mut before = ' ';
    !is_secret(&said.key)
        && said.value.chars().any(|c| {
            let begins = c == '#' && before.is_whitespace();
            before = c;
            begins
        })
}

/// What is within quotes around a whole value: on a command line the shell takes them away.
fn quoted(value: &str) -> Option<&str> {
    // With one more of them inside these are not its ends: a comment may follow.
    let within = |quote: char| {
        let inner = value.strip_prefix(quote)?.strip_suffix(quote)?;
        (!inner.contains(quote)).then_some(inner)
    };
    within('"').or_else(|| within('\''))
}

/// Settings that name a file with secrets.
fn names_secrets(key: &str) -> bool {
    key.ends_with("password_file") || matches!(key, "account_file" | "admin_file")
}

/// What is wrong with a line, or with what is before its =. In a file that is not of settings that may be a
/// secret, of letters and digits, or with an = of base64 at its end: it is repeated only if it is a name
/// that was mistyped.
fn no_setting(key: &str, equals: bool, known: &Known) -> String {
    let names = known.settings.iter().map(|(name, _, _)| *name);
    let names: Vec<&str> = names.collect();
    let first = key.split(|c: char| c.is_whitespace() || c == ':').next();
    if let Some(name) = names.iter().find(|name| Some(**name) == first) {
        return format!("'{name}' has no = behind it; write {name} = value");
    }
    if !equals {
        return "this is not a setting; write key = value. It is not repeated, as it may be a secret"
            .into();
    }
    let fits = |c: char| c.is_ascii_lowercase() || matches!(c, '_' | '-');
    let key = match (1..=32).contains(&key.len()) && key.chars().all(fits) {
        true => format!("'{key}'"),
        false => "what stands before = (not repeated, as it may be a secret)".into(),
    };
    let (program, names) = (known.program, names.join(", "));
    format!("{key} is not a setting of a {program}. It knows {names}")
}

/// Whether a socket could connect there: only the name is left to be asked for.
fn server_address(address: &str) -> Result<(), &'static str> {
    let is_ipv6 = |text: &str| {
        let number = text.split_once('%').map_or(text, |(number, _)| number);
        number.parse::<Ipv6Addr>().is_ok()
    };
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let reachable = port.parse::<u16>().is_ok_and(|port| port > 0);
    let bracketed = address.parse::<SocketAddrV6>().is_ok();
    // A number of IPv6 without brackets passes, too, if what is before the last colon is a whole one.
    let named = !host.is_empty() && !host.contains([':', '[', ']', ' ', '\t']);
    let named = named || bracketed || is_ipv6(host);
    match (named, reachable) {
        (true, true) => Ok(()),
        _ if is_ipv6(address) || address.starts_with('[') => {
            Err("write an IPv6 address in brackets, and a port, as in [2001:db8::1]:3306")
        }
        (true, false) if address.contains(':') => {
            Err("the port must be a number from 1 to 65535, as in db1:3306")
        }
        _ => Err("write host:port, as in db1:3306"),
    }
}

/// A setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    key: String,
    /// What it is set to.
    pub value: String,
    /// File and line, or the command line.
    pub place: String,
}

impl Said {
    /// It cannot be used.
    pub fn bad(&self, why: &str) -> ConfigError {
        ConfigError::Bad {
            place: self.place.clone(),
            why: format!("{} = {}: {why}", self.key, self.value),
        }
    }
}

/// The settings cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A setting that must be there is not.
    #[error(
        "no {key} given. Write '{key} = {example}' in the file of --config, or --set {key}={example}"
    )]
    Missing {
        /// Which.
        key: &'static str,
        /// How it looks.
        example: &'static str,
    },
    /// The file cannot be read.
    #[error("the settings file {} cannot be read: {why}", file.display())]
    Unreadable {
        /// Which.
        file: PathBuf,
        /// Why.
        why: String,
    },
    /// Something in it makes no sense.
    #[error("{place}: {why}")]
    Bad {
        /// File and line.
        place: String,
        /// What.
        why: String,
    },
}

impl Given {
    /// Nothing yet.
    pub fn new(known: &'static Known) -> Given {
        Given {
            known,
            said: Vec::new(),
            secret_files: Vec::new(),
        }
    }

    /// Reads a file of settings.
    ///
    /// # Errors
    /// [`ConfigError::Unreadable`], [`ConfigError::Bad`].
    pub fn read(known: &'static Known, file: &Path) -> Result<Given, ConfigError> {
        let text = fs::read_to_string(file).map_err(|e| ConfigError::Unreadable {
            file: file.to_owned(),
            why: e.to_string(),
        })?;
        let mut given = Given::new(known);
        for (n, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let place = format!("{}, line {}", file.display(), n + 1);
            given.line(line, place.clone())?;
            let Some(said) = given.said.last_mut() else {
                continue;
            };
            if let Some(inner) = quoted(&said.value) {
                said.value = inner.to_owned();
            } else if has_comment(said) {
                let key = &said.key;
                let why = format!(
                    "{key}: a comment stands on a line of its own; behind a value it would be part of it. If it is, \
                     put the whole value in quotes, or say --set '{key}=…' instead"
                );
                return Err(ConfigError::Bad { place, why });
            }
        }
        if given.said.iter().any(|s| is_secret(&s.key)) {
            given.secret_files.push(file.to_owned());
        }
        Ok(given)
    }

    /// Adds `key=value`, said at a place.
    ///
    /// # Errors
    /// [`ConfigError::Bad`].
    pub fn line(&mut self, line: &str, place: String) -> Result<(), ConfigError> {
        let bad = |why| {
            Err(ConfigError::Bad {
                place: place.clone(),
                why,
            })
        };
        let Some((key, value)) = line.split_once('=') else {
            return bad(no_setting(line, false, self.known));
        };
        let (key, value) = (key.trim(), value.trim());
        if !self.known.settings.iter().any(|(name, _, _)| *name == key) {
            return bad(no_setting(key, true, self.known));
        }
        self.said.push(Said {
            key: key.to_owned(),
            value: value.to_owned(),
            place,
        });
        Ok(())
    }

    /// What `more` says, too, and first.
    #[must_use]
    pub fn and(mut self, more: Given) -> Given {
        self.said.extend(more.said);
        self.secret_files.extend(more.secret_files);
        self
    }

    /// A warning for each file with passwords that every user of the machine can read.
    pub fn exposed(&self) -> Vec<String> {
        let named = self.said.iter().filter(|s| names_secrets(&s.key));
        let named = named.map(|s| Path::new(&s.value));
        let mut files: Vec<&Path> = named.collect();
        files.extend(self.secret_files.iter().map(PathBuf::as_path));
        files.sort_unstable();
        files.dedup();
        let open = |file: &&Path| {
            fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o004 != 0)
        };
        let warning = |file: &Path| {
            format!(
                "warning: {0} holds passwords, and every user of this machine can read it: chmod o-r {0}",
                file.display()
            )
        };
        files.into_iter().filter(open).map(warning).collect()
    }

    /// A setting that is not empty.
    pub fn get(&self, key: &str) -> Option<&Said> {
        let said = self.all(key).next_back()?;
        (!said.value.is_empty()).then_some(said)
    }

    /// A setting that may be repeated, each time it was.
    pub fn all(&self, key: &str) -> impl DoubleEndedIterator<Item = &Said> {
        self.said.iter().filter(move |s| s.key == key)
    }

    /// What a setting is set to.
    pub fn text(&self, key: &str) -> Option<String> {
        self.get(key).map(|s| s.value.clone())
    }

    /// The same, of a setting that is a file.
    pub fn file(&self, key: &str) -> Option<PathBuf> {
        self.text(key).map(PathBuf::from)
    }

    /// What a setting that must be there is set to.
    ///
    /// # Errors
    /// [`ConfigError::Missing`], with the example.
    pub fn must(&self, key: &'static str, example: &'static str) -> Result<String, ConfigError> {
        self.text(key).ok_or(ConfigError::Missing { key, example })
    }

    /// What a setting means, if it is there.
    ///
    /// # Errors
    /// [`ConfigError::Bad`], if `parse` says why.
    pub fn parsed<T>(
        &self,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, ConfigError> {
        let parsed = |said: &Said| parse(&said.value).map_err(|why| said.bad(&why));
        self.get(key).map(parsed).transpose()
    }

    /// An error of a setting, with the place where it was said.
    pub fn bad(&self, key: &str, why: &str) -> ConfigError {
        match self.get(key) {
            Some(said) => said.bad(why),
            None => ConfigError::Bad {
                place: "settings".into(),
                why: format!("{key} = : {why}"),
            },
        }
    }

    /// The address of a server, which must be there.
    ///
    /// # Errors
    /// [`ConfigError::Missing`], [`ConfigError::Bad`].
    pub fn server(&self, key: &'static str) -> Result<String, ConfigError> {
        let address = self.must(key, "db1:3306")?;
        match server_address(&address) {
            Ok(()) => Ok(address),
            Err(why) => Err(self.bad(key, why)),
        }
    }

    /// Where HTTP is answered; `off` or nothing: nowhere.
    ///
    /// # Errors
    /// [`ConfigError::Bad`].
    pub fn http(&self, example: &str) -> Result<Option<String>, ConfigError> {
        let http = self.parsed("http", |text| match text.rsplit_once(':') {
            None if text == "off" => Ok(None),
            Some((_, port)) if port.parse::<u16>().is_ok() => Ok(Some(text.to_owned())),
            _ => Err(format!("write address:port, as in {example}")),
        })?;
        Ok(http.flatten())
    }

    /// The number that a server has of its own, which must be there.
    ///
    /// # Errors
    /// [`ConfigError::Missing`], [`ConfigError::Bad`].
    pub fn server_id(&self, example: &'static str) -> Result<u32, ConfigError> {
        let key = "server_id";
        match self.parsed(key, number)? {
            None => Err(ConfigError::Missing { key, example }),
            Some(0) => Err(self.bad(key, "it must be above 0")),
            Some(id) => Ok(id),
        }
    }

    /// `on` or `off`.
    ///
    /// # Errors
    /// [`ConfigError::Bad`].
    pub fn switch(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        Ok(self.parsed(key, switch)?.unwrap_or(default))
    }

    /// A time.
    ///
    /// # Errors
    /// [`ConfigError::Bad`].
    pub fn time(&self, key: &str, default_secs: u64) -> Result<Duration, ConfigError> {
        let found = self.parsed(key, duration)?;
        Ok(found.unwrap_or(Duration::from_secs(default_secs)))
    }

    /// How often a silent server is to say that it is there, and the silence after
    /// which it counts as dead.
    ///
    /// # Errors
    /// [`ConfigError::Bad`].
    pub fn silence(&self) -> Result<(Duration, Duration), ConfigError> {
        let heartbeat = self.time("heartbeat", 1)?;
        let dead_after = self.time("dead_after", 5)?;
        if dead_after <= heartbeat {
            let why = "it must be longer than heartbeat, better three times as long";
            return Err(self.bad("dead_after", why));
        }
        Ok((heartbeat, dead_after))
    }

    /// A password, said or in the first line of a file; empty if there is none.
    ///
    /// # Errors
    /// [`ConfigError::Bad`].
    pub fn password(&self, key: &str, file_key: &str) -> Result<String, ConfigError> {
        let Some(file) = self.get(file_key) else {
            return Ok(self.text(key).unwrap_or_default());
        };
        if self.get(key).is_some() {
            return Err(file.bad(&format!("there is {key}, too; write one of the two")));
        }
        let text = fs::read_to_string(&file.value).map_err(|e| file.bad(&e.to_string()))?;
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }

    /// TLS towards a server, by the settings with these names.
    ///
    /// # Errors
    /// [`ConfigError::Bad`].
    pub fn client_tls(&self, keys: TlsKeys) -> Result<Option<ClientTls>, ConfigError> {
        ClientTls::wished(keys, |key| self.text(key)).map_err(|error| match error {
            TlsWish::Bad { key, why } => self.bad(key, &why),
            TlsWish::File(error) => self.unusable(&error),
        })
    }

    /// Files for TLS that cannot be used.
    pub fn unusable(&self, error: &TlsError) -> ConfigError {
        let said = self.get(error.key);
        ConfigError::Bad {
            place: said.map_or("settings".into(), |s| s.place.clone()),
            why: error.to_string(),
        }
    }
}

/// A number from 0 on.
///
/// # Errors
/// What to write instead.
pub fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "write a number".to_owned())
}

fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "yes" | "true" | "on" => Ok(true),
        "0" | "no" | "false" | "off" => Ok(false),
        _ => Err("write on or off".into()),
    }
}

/// The same, or the words for an empty setting.
///
/// # Errors
/// Those of `parse`.
pub fn or_none<T>(
    parse: impl Fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<Option<T>, String> {
    move |text| match text {
        "none" | "never" => Ok(None),
        text => parse(text).map(Some),
    }
}

/// A number with a unit behind it.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    let factor = units.iter().find(|(u, _)| u.eq_ignore_ascii_case(unit))?.1;
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// Bytes: `1048576`, `256M`.
///
/// # Errors
/// What to write instead.
pub fn size(text: &str) -> Result<u64, String> {
    let units = [
        ("", 1),
        ("K", 1 << 10),
        ("M", 1 << 20),
        ("G", 1 << 30),
        ("T", 1 << 40),
    ];
    with_unit(text, &units).ok_or_else(|| "write a size, as in 256M or 10G".into())
}

/// `500ms`, `10s`, `7d`.
///
/// # Errors
/// What to write instead.
pub fn duration(text: &str) -> Result<Duration, String> {
    let units = [
        ("ms", 1),
        ("s", 1000),
        ("m", 60_000),
        ("h", 3_600_000),
        ("d", 86_400_000),
    ];
    match with_unit(text, &units) {
        Some(ms) if ms > 0 => Ok(Duration::from_millis(ms)),
        _ => Err("write a time, as in 500ms, 10s, 5m, 2h or 7d".into()),
    }
}
