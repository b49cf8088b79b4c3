//! The format description: what a file's first event says about the others.
//!
//! ```text
//!  0  binlog version u16 = 4       54  length of the headers u8 = 19
//!  2  server version, 50 bytes     55  length of the part behind the header,
//!     of text, padded with zeros       u8 for each type from 1 on
//! 52  created u32, seconds; 0: not      checksum u8: 0 none, 1 CRC-32
//!     the first file of a server's      CRC-32 of this event, whatever the
//!     life                              byte before it says
//! ```
//!
//! Servers older than MariaDB 5.3 and MySQL 5.6.1 have neither of the last two.
//!
//! A primary changes the event while it sends it (creation time, flags, end),
//! and where the others have no checksums it leaves this one as it was: what
//! came over a connection and says 0 has a last field without meaning.

use crate::bytes::Reader;
use crate::checksum::{self, CRC_LEN, Checksum};
use crate::error::{EventError, Flaw};
use crate::event::Event;
use crate::header::{EventType, HEADER_LEN, Header};

const VERSION_LEN: usize = 50;
/// Servers too old for checksums know no more types than this. Others do, so
/// that a damaged version does not make us believe that there are no checksums.
const OLD_TYPES_MAX: usize = 35;

/// Whose events these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// MariaDB.
    MariaDb,
    /// MySQL, Percona Server, or something else that is like it.
    MySql,
}

/// What a format description says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// Always 4 here.
    pub binlog_version: u16,
    /// As sent, padded with zeros.
    pub server_version: [u8; VERSION_LEN],
    /// When the server was started, if this is its first file since; else 0.
    pub created: u32,
    /// Lengths in bytes of the fixed part behind the header, for type 1 on.
    pub post_header_lens: Vec<u8>,
    /// Of all other events; `None` if the server is too old to know any.
    pub checksum: Option<Checksum>,
}

impl Format {
    /// Reads a whole event, checksum included, and verifies it.
    pub fn decode(event: &[u8]) -> Result<Format, EventError> {
        let format = Format::read(event)?;
        if format.checksum.is_some() {
            checksum::verify(event)?;
        }
        Ok(format)
    }

    /// What this event says, whose checksum was looked at when it was parsed, as far as it has a meaning:
    /// see [`Event::parse_sent`].
    pub fn of(event: &Event<'_>) -> Result<Format, EventError> {
        Format::read(event.raw())
    }

    /// Reads a whole event whose checksum was looked at before.
    pub(crate) fn read(event: &[u8]) -> Result<Format, EventError> {
        let kind = EventType::FORMAT_DESCRIPTION;
        let header = Header::decode(event)?;
        let mut r = Reader::new(&event[HEADER_LEN..], HEADER_LEN, header.kind);
        if header.kind != kind {
            return Err(EventError {
                kind: header.kind,
                offset: 4,
                flaw: Flaw::Unsupported("a format description was expected here"),
            });
        }
        if header.len as usize != event.len() {
            return Err(r.error(Flaw::Length {
                said: header.len,
                have: event.len(),
            }));
        }
        let binlog_version = r.u16("binlog version")?;
        if binlog_version != 4 {
            return Err(EventError {
                kind,
                offset: HEADER_LEN,
                flaw: Flaw::Unsupported("only version 4 of the binlog is known here (MySQL 5.0)"),
            });
        }
        let server_version = r.array("server version")?;
        let created = r.u32("creation time")?;
        let header_len = r.u8("header length")?;
        if usize::from(header_len) != HEADER_LEN {
            return Err(r.bad("header length", u64::from(header_len)));
        }
        let (post_header_lens, checksum) = if knows_checksums(&server_version) {
            let Some(n) = r.left().checked_sub(1 + CRC_LEN) else {
                return Err(r.error(Flaw::Short {
                    field: "checksum",
                    need: 1 + CRC_LEN,
                    have: r.left(),
                }));
            };
            let lens = r.take(n, "lengths")?;
            let number = r.u8("checksum algorithm")?;
            let Some(checksum) = Checksum::from_number(number) else {
                return Err(r.bad("checksum algorithm", u64::from(number)));
            };
            (lens, Some(checksum))
        } else {
            let types = r.left();
            if types > OLD_TYPES_MAX {
                return Err(r.bad("number of types, for so old a server,", types as u64));
            }
            (r.rest(), None)
        };
        Ok(Format {
            binlog_version,
            server_version,
            created,
            post_header_lens: post_header_lens.to_vec(),
            checksum,
        })
    }

    /// Writes the body, without the checksum at its end.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.binlog_version.to_le_bytes());
        out.extend_from_slice(&self.server_version);
        out.extend_from_slice(&self.created.to_le_bytes());
        out.push(HEADER_LEN as u8);
        out.extend_from_slice(&self.post_header_lens);
        if let Some(checksum) = self.checksum {
            out.push(checksum.number());
        }
    }

    /// Before the first format description was seen: as MySQL 5.0, without
    /// checksums. Only a format description or an artificial rotate may be
    /// read so.
    pub fn unknown() -> Format {
        Format {
            binlog_version: 4,
            server_version: [0; VERSION_LEN],
            created: 0,
            post_header_lens: Vec::new(),
            checksum: None,
        }
    }

    /// What secures the other events.
    pub fn checksum(&self) -> Checksum {
        self.checksum.unwrap_or_default()
    }

    /// The server version as text.
    pub fn version_text(&self) -> String {
        let end = self.server_version.iter().position(|b| *b == 0);
        let text = &self.server_version[..end.unwrap_or(VERSION_LEN)];
        String::from_utf8_lossy(text).into_owned()
    }

    /// MariaDB or MySQL.
    pub fn flavour(&self) -> Flavour {
        flavour(&self.server_version)
    }

    /// The server version as three numbers; zeros for what is no number.
    pub fn version(&self) -> (u32, u32, u32) {
        version(&self.server_version)
    }

    /// Length in bytes of the fixed part of such events, `None` if the server
    /// does not know the type.
    pub fn post_header_len(&self, kind: EventType) -> Option<usize> {
        let at = usize::from(kind.0).checked_sub(1)?;
        self.post_header_lens.get(at).map(|n| usize::from(*n))
    }

    /// Bytes of a table id in such events: 4 in those of early MySQL 5.1, else 6.
    pub(crate) fn table_id_len(&self, kind: EventType) -> usize {
        match self.post_header_len(kind) {
            Some(6) => 4,
            _ => 6,
        }
    }
}

fn flavour(server_version: &[u8]) -> Flavour {
    match server_version.windows(7).any(|w| w == b"MariaDB") {
        true => Flavour::MariaDb,
        false => Flavour::MySql,
    }
}

fn version(server_version: &[u8]) -> (u32, u32, u32) {
    let mut numbers = server_version
        .split(|b| *b == b'.')
        .map(|part| {
            part.iter()
                .take_while(|b| b.is_ascii_digit())
                .take(6)
                .fold(0, |n, b| n * 10 + u32::from(b - b'0'))
        })
        .chain([0, 0, 0]);
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

fn knows_checksums(server_version: &[u8]) -> bool {
    let since = match flavour(server_version) {
        Flavour::MariaDb => (5, 3, 0),
        Flavour::MySql => (5, 6, 1),
    };
    version(server_version) >= since
}

/// The 50 bytes of a server version. What is longer is cut.
pub fn version_bytes(text: &str) -> [u8; VERSION_LEN] {
    let mut out = [0; VERSION_LEN];
    for (to, from) in out.iter_mut().zip(text.bytes().take(VERSION_LEN - 1)) {
        *to = from;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let of = |text| {
            let bytes = version_bytes(text);
            (flavour(&bytes), version(&bytes), knows_checksums(&bytes))
        };
        let (maria, my) = (Flavour::MariaDb, Flavour::MySql);
        assert_eq!(
            of("10.11.19-MariaDB-0+deb12u1-log"),
            (maria, (10, 11, 19), true)
        );
        assert_eq!(of("5.2.14-MariaDB"), (maria, (5, 2, 14), false));
        assert_eq!(of("5.6.0-m4"), (my, (5, 6, 0), false));
        assert_eq!(of("8.0.36"), (my, (8, 0, 36), true));
        assert_eq!(of("5.5.62-log"), (my, (5, 5, 62), false));
        assert_eq!(of(""), (my, (0, 0, 0), false));
        assert_eq!(of("x.9999999999.3"), (my, (0, 999_999, 3), false));
    }
}
