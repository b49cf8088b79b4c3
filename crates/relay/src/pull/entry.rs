//! From the greeting to being let in, as a client. Without I/O.
//!
//! ```text
//! greeting ─> [ask for TLS ─> TLS] ─> login ─> [another proof] ─> ok
//! ```

use super::session::{SessionError, refused};
use crate::wire::{
    Answer, AuthSwitch, Greeting, Login, NATIVE_PASSWORD, SALT_LEN, capabilities, native_reply,
    tls_request,
};

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryStep {
    /// Send this, with the next sequence number.
    Reply(Vec<u8>),
    /// Send this, then begin TLS, then go on with [`Entry::encrypted`].
    Encrypt(Vec<u8>),
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
    Proof,
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
                self.at = At::Proof;
                Ok(EntryStep::Reply(login.encode()))
            }
            At::Shaking(_) => Err(unexpected("the request for TLS")),
            At::Proof => {
                if packet.first() == Some(&0xfe) {
                    let switch = AuthSwitch::decode(packet)?;
                    let salt: Option<[u8; SALT_LEN]> = switch.salt[..].try_into().ok();
                    return match salt {
                        Some(salt) if switch.plugin == NATIVE_PASSWORD => Ok(EntryStep::Reply(
                            native_reply(self.password.as_bytes(), &salt),
                        )),
                        _ => Err(SessionError::Plugin {
                            plugin: switch.plugin,
                        }),
                    };
                }
                match Answer::decode(packet)? {
                    Answer::Ok => Ok(EntryStep::Done),
                    Answer::Error(failure) => Err(refused("the login", failure)),
                    _ => Err(unexpected("the login")),
                }
            }
        }
    }

    /// TLS has come about. Gives what to send.
    pub fn encrypted(&mut self) -> Option<Vec<u8>> {
        match std::mem::replace(&mut self.at, At::Proof) {
            At::Shaking(login) => Some(login.encode()),
            other => {
                self.at = other;
                None
            }
        }
    }
}
