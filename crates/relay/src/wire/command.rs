//! What a client sends after its login.
//!
//! ```text
//! query      3, statement          quit 1    database 2, name    ping 14
//! register   21, server id u32, length u8 and host, user, password, port u16, rank u32,
//!            id of its primary u32
//! dump       18, position u32, flags u16, server id u32, file
//! dump gtid  30, flags u16, server id u32, length u32 and file, position u64, length u32 and set
//! semi-sync  0xef, position u64, file               (no command: in the middle of a dump)
//! ```

use super::WireError;
use super::bytes::{Reader, put_short_bytes};

/// Flags of a dump.
pub mod dump_flags {
    /// End instead of waiting for more.
    pub const NON_BLOCK: u16 = 1;
    /// Send the statements behind rows.
    pub const ANNOTATE_ROWS: u16 = 2;
}

/// A replica introduces itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// Its server id.
    pub server_id: u32,
    /// Its `report_host`.
    pub host: String,
    /// Its `report_port`.
    pub port: u16,
}

/// A replica wants events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    /// From this byte of the file on.
    pub position: u32,
    /// See [`dump_flags`].
    pub flags: u16,
    /// Its server id.
    pub server_id: u32,
    /// The file; empty: the oldest, or where its GTIDs say.
    pub file: Vec<u8>,
}

/// A replica wants what is not in its set of MySQL's GTIDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpGtid {
    /// See [`dump_flags::NON_BLOCK`]. MySQL 8.0.26 and later have another meaning for the next one.
    pub flags: u16,
    /// Its server id.
    pub server_id: u32,
    /// The set, not looked at yet.
    pub set: Vec<u8>,
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The client goes.
    Quit,
    /// A default database.
    InitDb,
    /// A statement.
    Query(Vec<u8>),
    /// Is anybody there?
    Ping,
    /// A replica introduces itself.
    Register(Register),
    /// It wants events.
    Dump(Dump),
    /// The same, by GTIDs of MySQL.
    DumpGtid(DumpGtid),
    /// Anything else.
    Other(u8),
}

impl Command {
    /// As a packet.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Command::Quit => vec![1],
            Command::InitDb => vec![2],
            Command::Query(text) => [&[3], &text[..]].concat(),
            Command::Ping => vec![14],
            Command::Register(register) => {
                let mut out = vec![21];
                out.extend_from_slice(&register.server_id.to_le_bytes());
                put_short_bytes(&mut out, register.host.as_bytes());
                put_short_bytes(&mut out, &[]);
                put_short_bytes(&mut out, &[]);
                out.extend_from_slice(&register.port.to_le_bytes());
                out.extend_from_slice(&[0; 8]);
                out
            }
            Command::Dump(dump) => {
                let mut out = vec![18];
                out.extend_from_slice(&dump.position.to_le_bytes());
                out.extend_from_slice(&dump.flags.to_le_bytes());
                out.extend_from_slice(&dump.server_id.to_le_bytes());
                out.extend_from_slice(&dump.file);
                out
            }
            Command::DumpGtid(dump) => {
                let mut out = vec![30];
                out.extend_from_slice(&dump.flags.to_le_bytes());
                out.extend_from_slice(&dump.server_id.to_le_bytes());
                // No file, and the first byte of it: servers look at the set alone.
                out.extend_from_slice(&0u32.to_le_bytes());
                out.extend_from_slice(&4u64.to_le_bytes());
                out.extend_from_slice(&(dump.set.len() as u32).to_le_bytes());
                out.extend_from_slice(&dump.set);
                out
            }
            Command::Other(kind) => vec![*kind],
        }
    }

    /// From a packet.
    pub fn decode(packet: &[u8]) -> Result<Command, WireError> {
        let mut r = Reader::new(packet, "a command");
        Ok(match r.u8()? {
            1 => Command::Quit,
            2 => Command::InitDb,
            3 => Command::Query(r.rest().to_vec()),
            14 => Command::Ping,
            21 => {
                let server_id = r.u32()?;
                let host = String::from_utf8_lossy(r.short_bytes()?).into_owned();
                r.short_bytes()?;
                r.short_bytes()?;
                let port = r.u16()?;
                Command::Register(Register {
                    server_id,
                    host,
                    port,
                })
            }
            18 => Command::Dump(Dump {
                position: r.u32()?,
                flags: r.u16()?,
                server_id: r.u32()?,
                file: r.rest().to_vec(),
            }),
            30 => {
                let flags = r.u16()?;
                let server_id = r.u32()?;
                let file = r.u32()? as usize;
                r.take(file)?;
                r.u64()?;
                let set = r.u32()? as usize;
                Command::DumpGtid(DumpGtid {
                    flags,
                    server_id,
                    set: r.take(set)?.to_vec(),
                })
            }
            other => Command::Other(other),
        })
    }
}

/// A replica has stored everything up to here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckSemiSync {
    /// The end of the event, in the primary's file.
    pub position: u64,
    /// The primary's file.
    pub file: Vec<u8>,
}

impl AckSemiSync {
    const MAGIC: u8 = 0xef;

    /// As a packet.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![AckSemiSync::MAGIC];
        out.extend_from_slice(&self.position.to_le_bytes());
        out.extend_from_slice(&self.file);
        out
    }

    /// From a packet.
    pub fn decode(packet: &[u8]) -> Result<AckSemiSync, WireError> {
        let mut r = Reader::new(packet, "a semi-sync acknowledgement");
        if r.u8()? != AckSemiSync::MAGIC {
            return Err(r.bad("it does not begin with 0xef"));
        }
        Ok(AckSemiSync {
            position: r.u64()?,
            file: r.rest().to_vec(),
        })
    }
}
