//! The beginning of a connection.
//!
//! ```text
//! server  greeting: version 10, its version, connection u32, salt 8, 0, capabilities u16,
//!         character set u8, status u16, capabilities u16, length of the salt u8, 10 bytes,
//!         salt 12, 0, plugin
//! client  login: capabilities u32, longest packet u32, character set u8, 23 bytes, user, reply,
//!         [database], [plugin], [attributes]
//! server  ok, or error, or: 0xfe, plugin, salt, 0; then the client replies anew
//! ```

use super::WireError;
use super::auth::SALT_LEN;
use super::bytes::{Reader, put_lenenc_bytes, put_short_bytes, put_zero_ended};

/// The one way to prove who one is that is known here.
pub const NATIVE_PASSWORD: &str = "mysql_native_password";

/// What both sides can.
pub mod capabilities {
    /// Set by MySQL only; MariaDB has capabilities of its own if it is clear.
    pub const LONG_PASSWORD: u32 = 1;
    /// More flags of columns.
    pub const LONG_FLAG: u32 = 4;
    /// A database in the login.
    pub const CONNECT_WITH_DB: u32 = 8;
    /// The protocol since 4.1; nothing else is spoken here.
    pub const PROTOCOL_41: u32 = 0x200;
    /// TLS.
    pub const SSL: u32 = 0x800;
    /// Status flags.
    pub const TRANSACTIONS: u32 = 0x2000;
    /// Salts of 20 bytes.
    pub const SECURE_CONNECTION: u32 = 0x8000;
    /// Names of plugins.
    pub const PLUGIN_AUTH: u32 = 0x8_0000;
    /// Attributes in the login.
    pub const CONNECT_ATTRS: u32 = 0x10_0000;
    /// A reply of any length in the login.
    pub const PLUGIN_AUTH_LENENC: u32 = 0x20_0000;
    /// What is offered and wanted here.
    pub const OURS: u32 =
        LONG_FLAG | CONNECT_WITH_DB | PROTOCOL_41 | TRANSACTIONS | SECURE_CONNECTION | PLUGIN_AUTH;
}
use capabilities as can;

/// utf8mb4_general_ci.
const CHARSET: u8 = 45;
const AUTOCOMMIT: u16 = 2;
/// A login made here has neither a database nor attributes.
const NOT_IN_LOGIN: u32 = can::CONNECT_WITH_DB | can::CONNECT_ATTRS;

/// The server's first packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Of the server.
    pub version: String,
    /// Number of the connection.
    pub connection: u32,
    /// For the reply.
    pub salt: [u8; SALT_LEN],
    /// What it can.
    pub capabilities: u32,
    /// How it wants to be replied to.
    pub plugin: String,
}

impl Greeting {
    /// As a packet.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![10];
        put_zero_ended(&mut out, self.version.as_bytes());
        out.extend_from_slice(&self.connection.to_le_bytes());
        out.extend_from_slice(&self.salt[..8]);
        out.push(0);
        let capabilities = self.capabilities.to_le_bytes();
        out.extend_from_slice(&capabilities[..2]);
        out.push(CHARSET);
        out.extend_from_slice(&AUTOCOMMIT.to_le_bytes());
        out.extend_from_slice(&capabilities[2..]);
        out.push(SALT_LEN as u8 + 1);
        out.extend_from_slice(&[0; 10]);
        out.extend_from_slice(&self.salt[8..]);
        out.push(0);
        put_zero_ended(&mut out, self.plugin.as_bytes());
        out
    }

    /// From a packet that is no error.
    pub fn decode(packet: &[u8]) -> Result<Greeting, WireError> {
        let mut r = Reader::new(packet, "a greeting");
        if r.u8()? != 10 {
            return Err(r.bad("its version is not 10; it is no MySQL or MariaDB server"));
        }
        let version = text(r.zero_ended()?);
        let connection = r.u32()?;
        let mut salt = [0; SALT_LEN];
        salt[..8].copy_from_slice(r.take(8)?);
        r.u8()?;
        let low = r.u16()?;
        r.u8()?;
        r.u16()?;
        let high = r.u16()?;
        let capabilities = u32::from(low) | u32::from(high) << 16;
        if capabilities & can::PROTOCOL_41 == 0 || capabilities & can::SECURE_CONNECTION == 0 {
            return Err(r.bad("the server is older than MySQL 4.1"));
        }
        let len = r.u8()?;
        r.take(10)?;
        let rest = usize::from(len).saturating_sub(8).max(13);
        let second = r.take(rest.min(r.left()))?;
        if second.len() < 12 {
            return Err(r.short());
        }
        salt[8..].copy_from_slice(&second[..12]);
        let plugin = match capabilities & can::PLUGIN_AUTH {
            0 => NATIVE_PASSWORD.to_owned(),
            // Some servers leave its end out.
            _ => text(r.rest().split(|b| *b == 0).next().unwrap_or_default()),
        };
        Ok(Greeting {
            version,
            connection,
            salt,
            capabilities,
            plugin,
        })
    }
}

/// The client's first packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// What it can.
    pub capabilities: u32,
    /// Who.
    pub user: String,
    /// The proof.
    pub reply: Vec<u8>,
    /// How it was made.
    pub plugin: String,
}

/// The client's first packet if it wants TLS before it says who it is.
pub fn tls_request(capabilities: u32) -> Vec<u8> {
    // A server believes this one, not the login that follows: see [`Login::encode`].
    let capabilities = capabilities & !NOT_IN_LOGIN | can::SSL;
    let mut out = capabilities.to_le_bytes().to_vec();
    out.extend_from_slice(&(1u32 << 30).to_le_bytes());
    out.push(CHARSET);
    out.extend_from_slice(&[0; 23]);
    out
}

impl Login {
    /// As a packet.
    pub fn encode(&self) -> Vec<u8> {
        let capabilities = self.capabilities & !NOT_IN_LOGIN;
        let mut out = Vec::new();
        out.extend_from_slice(&capabilities.to_le_bytes());
        out.extend_from_slice(&(1u32 << 30).to_le_bytes());
        out.push(CHARSET);
        out.extend_from_slice(&[0; 23]);
        put_zero_ended(&mut out, self.user.as_bytes());
        match capabilities & can::PLUGIN_AUTH_LENENC {
            0 => put_short_bytes(&mut out, &self.reply),
            _ => put_lenenc_bytes(&mut out, &self.reply),
        }
        if capabilities & can::PLUGIN_AUTH != 0 {
            put_zero_ended(&mut out, self.plugin.as_bytes());
        }
        out
    }

    /// From a packet. `Ok(None)`: it asks for TLS first.
    pub fn decode(packet: &[u8]) -> Result<Option<Login>, WireError> {
        let mut r = Reader::new(packet, "a login");
        let capabilities = r.u32()?;
        if capabilities & can::PROTOCOL_41 == 0 || capabilities & can::SECURE_CONNECTION == 0 {
            return Err(r.bad("the client is older than MySQL 4.1"));
        }
        r.u32()?;
        r.u8()?;
        r.take(23)?;
        if capabilities & can::SSL != 0 && r.left() == 0 {
            return Ok(None);
        }
        let user = text(r.zero_ended()?);
        let reply = match capabilities & can::PLUGIN_AUTH_LENENC {
            0 => r.short_bytes()?,
            _ => r
                .lenenc_bytes()?
                .ok_or_else(|| r.bad("its reply cannot be NULL"))?,
        };
        let reply = reply.to_vec();
        if capabilities & can::CONNECT_WITH_DB != 0 && r.left() > 0 {
            r.zero_ended()?;
        }
        let plugin = match capabilities & can::PLUGIN_AUTH {
            0 => NATIVE_PASSWORD.to_owned(),
            _ if r.left() == 0 => NATIVE_PASSWORD.to_owned(),
            _ => text(r.zero_ended()?),
        };
        Ok(Some(Login {
            capabilities,
            user,
            reply,
            plugin,
        }))
    }
}

/// The server wants another proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthSwitch {
    /// How.
    pub plugin: String,
    /// For the reply.
    pub salt: Vec<u8>,
}

impl AuthSwitch {
    /// As a packet.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0xfe];
        put_zero_ended(&mut out, self.plugin.as_bytes());
        out.extend_from_slice(&self.salt);
        out.push(0);
        out
    }

    /// From a packet that begins with 0xfe.
    pub fn decode(packet: &[u8]) -> Result<AuthSwitch, WireError> {
        let mut r = Reader::new(packet, "a request for another proof");
        if r.u8()? != 0xfe {
            return Err(r.bad("it does not begin with 0xfe"));
        }
        if r.left() == 0 {
            return Err(r.bad("the server wants passwords as before MySQL 4.1"));
        }
        let plugin = text(r.zero_ended()?);
        let salt = r.rest();
        let salt = salt.strip_suffix(&[0]).unwrap_or(salt);
        Ok(AuthSwitch {
            plugin,
            salt: salt.to_vec(),
        })
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
