//! From the greeting to being let in, as a client. Without I/O.
//!
//! ```text
//! greeting ─> [ask for TLS ─> TLS] ─> login ─> [another proof ─> [the password, over TLS]] ─> ok
//! ```

use super::session::{SessionError, refused};
use crate::wire::{
    Answer, AuthSwitch, Greeting, Login, NATIVE_PASSWORD, SALT_LEN, capabilities, ed25519_reply,
    native_reply, sha2_reply, tls_request,
};

/// The default of MySQL 8.
const CACHING_SHA2: &str = "caching_sha2_password";
/// MariaDB's, of a plugin.
const ED25519: &str = "client_ed25519";
/// Bytes of its salt.
const ED25519_SALT: usize = 32;
/// Begins what else a way to prove has to say.
const MORE: u8 = 1;
/// Then: it has seen the account of late, and the proof is good.
const FAST: &[u8] = &[MORE, 3];
/// Or: it wants the password.
const FULL: &[u8] = &[MORE, 4];

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryStep {
    /// Send this, with the next sequence number.
    Reply(Vec<u8>),
    /// Send this, then begin TLS, then go on with [`Entry::encrypted`].
    Encrypt(Vec<u8>),
    /// Nothing: the server has more to say.
    Wait,
    /// It is in.
    Done,
}

/// The beginning of a connection.
#[derive(Debug)]
pub struct Entry {
    user: String,
    password: String,
    tls: bool,
    more: u32,
    at: At,
    /// Its version, as the greeting says.
    version: String,
    connection: u32,
}

#[derive(Debug)]
enum At {
    Greeting,
    /// What is sent when TLS has come about.
    Shaking(Login),
    /// The way that the last proof was made.
    Proof(String),
}

impl Entry {
    /// Before the greeting. `tls`: nothing of the login goes out in the clear.
    pub fn new(user: &str, password: &str, tls: bool) -> Entry {
        Entry {
            user: user.to_owned(),
            password: password.to_owned(),
            tls,
            more: 0,
            at: At::Greeting,
            version: String::new(),
            connection: 0,
        }
    }

    /// These capabilities are wanted, too, if the server has them.
    #[must_use]
    pub fn wanting(mut self, more: u32) -> Entry {
        self.more = more;
        self
    }

    /// Number of the connection at the server.
    pub fn connection(&self) -> u32 {
        self.connection
    }

    /// Of the server.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// A packet of the server.
    ///
    /// # Errors
    /// [`SessionError`]: it does not let in.
    pub fn packet(&mut self, packet: &[u8]) -> Result<EntryStep, SessionError> {
        let unexpected = |what: &str| SessionError::Unexpected { what: what.into() };
        match &self.at {
            At::Greeting => {
                if let Some(0xff) = packet.first()
                    && let Answer::Error(failure) = Answer::decode(packet)?
                {
                    return Err(refused("the connection", failure));
                }
                let greeting = Greeting::decode(packet)?;
                self.version = greeting.version;
                self.connection = greeting.connection;
                let mut wanted = capabilities::OURS | self.more;
                if self.tls {
                    if greeting.capabilities & capabilities::SSL == 0 {
                        return Err(SessionError::NoTls);
                    }
                    wanted |= capabilities::SSL;
                }
                let login = Login {
                    capabilities: wanted & greeting.capabilities,
                    user: self.user.clone(),
                    reply: native_reply(self.password.as_bytes(), &greeting.salt),
                    plugin: NATIVE_PASSWORD.into(),
                };
                if self.tls {
                    let request = tls_request(login.capabilities);
                    self.at = At::Shaking(login);
                    return Ok(EntryStep::Encrypt(request));
                }
                self.at = At::Proof(NATIVE_PASSWORD.into());
                Ok(EntryStep::Reply(login.encode()))
            }
            At::Shaking(_) => Err(unexpected("the request for TLS")),
            At::Proof(plugin) => match packet {
                [0xfe, ..] => {
                    let switch = AuthSwitch::decode(packet)?;
                    let reply = self.proof(&switch)?;
                    self.at = At::Proof(switch.plugin);
                    Ok(EntryStep::Reply(reply))
                }
                [MORE, ..] if plugin == CACHING_SHA2 => match packet {
                    FAST => Ok(EntryStep::Wait),
                    FULL if self.tls => {
                        let password = [self.password.as_bytes(), &[0]].concat();
                        Ok(EntryStep::Reply(password))
                    }
                    FULL => Err(SessionError::WantsTls {
                        plugin: plugin.clone(),
                    }),
                    _ => Err(unexpected("the login")),
                },
                _ => match Answer::decode(packet)? {
                    Answer::Ok => Ok(EntryStep::Done),
                    Answer::Error(failure) => Err(refused("the login", failure)),
                    _ => Err(unexpected("the login")),
                },
            },
        }
    }

    /// The password, in the way that the server wants to see it.
    fn proof(&self, switch: &AuthSwitch) -> Result<Vec<u8>, SessionError> {
        let password = self.password.as_bytes();
        let salt: Option<&[u8; SALT_LEN]> = switch.salt[..].try_into().ok();
        match (&*switch.plugin, salt) {
            (NATIVE_PASSWORD, Some(salt)) => Ok(native_reply(password, salt)),
            (CACHING_SHA2, Some(salt)) => Ok(sha2_reply(password, salt)),
            // Its salt does not end with a zero, or with one of its own.
            (ED25519, _) if switch.salt.len() + 1 >= ED25519_SALT => {
                let mut salt = switch.salt.clone();
                salt.resize(ED25519_SALT, 0);
                Ok(ed25519_reply(password, &salt))
            }
            _ => Err(SessionError::Plugin {
                plugin: switch.plugin.clone(),
            }),
        }
    }

    /// TLS has come about. Gives what to send.
    pub fn encrypted(&mut self) -> Option<Vec<u8>> {
        match std::mem::replace(&mut self.at, At::Proof(NATIVE_PASSWORD.into())) {
            At::Shaking(login) => Some(login.encode()),
            other => {
                self.at = other;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry whose login was answered with the wish for another proof.
    fn switched(tls: bool, plugin: &str, salt: &[u8]) -> (Entry, Result<EntryStep, SessionError>) {
        let mut entry = Entry::new("u", "secret", tls);
        let greeting = Greeting {
            version: "8.0.40".into(),
            connection: 7,
            salt: [9; SALT_LEN],
            capabilities: capabilities::OURS | capabilities::SSL,
            plugin: plugin.into(),
        };
        match entry.packet(&greeting.encode()).expect("a greeting") {
            EntryStep::Encrypt(_) => assert!(entry.encrypted().is_some()),
            step => assert!(!tls, "{step:?}"),
        }
        let switch = AuthSwitch {
            plugin: plugin.into(),
            salt: salt.to_vec(),
        };
        let step = entry.packet(&switch.encode());
        (entry, step)
    }

    const OK: &[u8] = &[0, 0, 0, 2, 0, 0, 0];

    #[test]
    fn an_account_that_was_seen_of_late() {
        let (mut entry, step) = switched(false, CACHING_SHA2, &[5; SALT_LEN]);
        let wanted = sha2_reply(b"secret", &[5; SALT_LEN]);
        assert_eq!(step, Ok(EntryStep::Reply(wanted)));
        assert_eq!(entry.packet(FAST), Ok(EntryStep::Wait));
        assert_eq!(entry.packet(OK), Ok(EntryStep::Done));
    }

    /// Nobody on the way sees a password.
    #[test]
    fn the_password_itself_over_tls_only() {
        let (mut entry, _) = switched(true, CACHING_SHA2, &[5; SALT_LEN]);
        let password = EntryStep::Reply(b"secret\0".to_vec());
        assert_eq!(entry.packet(FULL), Ok(password));
        assert_eq!(entry.packet(OK), Ok(EntryStep::Done));
        let (mut entry, _) = switched(false, CACHING_SHA2, &[5; SALT_LEN]);
        let refused = entry.packet(FULL);
        assert!(
            matches!(&refused, Err(SessionError::WantsTls { .. })),
            "{refused:?}"
        );
        // Whoever says so without having asked for that proof.
        let (mut entry, _) = switched(true, NATIVE_PASSWORD, &[5; SALT_LEN]);
        for more in [FAST, FULL, &[MORE], &[MORE, 9, 9]] {
            let step = entry.packet(more);
            assert!(step.is_err(), "{step:?}");
        }
    }

    #[test]
    fn a_salt_that_ends_with_a_zero() {
        for last in [3, 0] {
            let mut salt = [8; ED25519_SALT];
            salt[ED25519_SALT - 1] = last;
            let wanted = EntryStep::Reply(ed25519_reply(b"secret", &salt));
            // The plugin sends no zero of its own behind it, other servers in its place might.
            let (mut entry, _) = switched(false, NATIVE_PASSWORD, &[5; SALT_LEN]);
            let bare = [&[0xfe], ED25519.as_bytes(), &[0], &salt].concat();
            assert_eq!(entry.packet(&bare), Ok(wanted.clone()));
            let (_, step) = switched(false, ED25519, &salt);
            assert_eq!(step, Ok(wanted));
        }
        let (_, short) = switched(false, ED25519, &[8; 20]);
        assert!(
            matches!(short, Err(SessionError::Plugin { .. })),
            "{short:?}"
        );
        let (_, other) = switched(true, "mysql_clear_password", b"");
        assert!(
            matches!(other, Err(SessionError::Plugin { .. })),
            "{other:?}"
        );
    }
}
