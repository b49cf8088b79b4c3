//! MariaDB's GTID event, which begins a group.
//!
//! ```text
//!  0  seqno u64         13  commit id u64          if GROUP_COMMIT_ID
//!  8  domain u32            format u32, lengths    if PREPARED_XA or COMPLETED_XA
//! 12  flags u8              u8 and u8, xid
//!                           extra flags u8         if bytes are left, and not 0
//!                             engines u8           if MULTI_ENGINE
//!                             begin u64            if COMMIT_ALTER, ROLLBACK_ALTER
//!                             thread u64           if THREAD_ID
//!                           zeros, up to 19 bytes in all at least
//! ```
//!
//! The server id is the header's. A body may be longer than its parts: readers
//! ignore what follows. So 8 bytes of zeros at the end are room for a commit
//! id, which [`crate::patch_gtid`] uses.

use crate::bytes::{Reader, put_len_u8};
use crate::error::{EventError, Flaw};
use crate::gtid::Gtid;
use crate::header::Header;

/// Least length in bytes of the body. Servers read so much unasked.
pub(crate) const BODY_MIN: usize = 19;

/// Flags of a GTID event.
pub mod gtid_flags {
    /// The group is one statement, without a commit at its end.
    pub const STANDALONE: u8 = 1;
    /// There is a commit id.
    pub const GROUP_COMMIT_ID: u8 = 2;
    /// It can be rolled back: no table of it is non-transactional.
    pub const TRANSACTIONAL: u8 = 4;
    /// The client did not forbid to run it in parallel.
    pub const ALLOW_PARALLEL: u8 = 8;
    /// It waited for a lock on the primary.
    pub const WAITED: u8 = 16;
    /// It is a DDL.
    pub const DDL: u8 = 32;
    /// It ends with XA PREPARE.
    pub const PREPARED_XA: u8 = 64;
    /// It is XA COMMIT or XA ROLLBACK.
    pub const COMPLETED_XA: u8 = 128;
}

/// Extra flags of a GTID event.
pub mod gtid_extra {
    /// More than one engine with two-phase commit took part.
    pub const MULTI_ENGINE: u8 = 1;
    /// An ALTER begins.
    pub const START_ALTER: u8 = 2;
    /// An ALTER that has begun is committed.
    pub const COMMIT_ALTER: u8 = 4;
    /// An ALTER that has begun is rolled back.
    pub const ROLLBACK_ALTER: u8 = 8;
    /// The connection on the primary follows (MariaDB 11).
    pub const THREAD_ID: u8 = 16;
    /// Those that are known here.
    pub(crate) const KNOWN: u8 = 31;
}

/// Longest part of an XA name in bytes; servers have no room for more.
const XA_PART_MAX: usize = 64;

/// Name of an XA transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XaName<'a> {
    /// As the client gave it.
    pub format: u32,
    /// The global part, at most 64 bytes.
    pub gtrid: &'a [u8],
    /// The branch, at most 64 bytes.
    pub bqual: &'a [u8],
}

impl<'a> XaName<'a> {
    fn decode(r: &mut Reader<'a>) -> Result<XaName<'a>, EventError> {
        let format = r.u32("XA format")?;
        let gtrid = usize::from(r.u8("XA length")?);
        let bqual = usize::from(r.u8("XA length")?);
        XaName::parts(r, format, gtrid, bqual)
    }

    fn parts(
        r: &mut Reader<'a>,
        format: u32,
        gtrid: usize,
        bqual: usize,
    ) -> Result<XaName<'a>, EventError> {
        if let Some(long) = [gtrid, bqual].into_iter().find(|len| *len > XA_PART_MAX) {
            return Err(r.bad("length of an XA name", long as u64));
        }
        Ok(XaName {
            format,
            gtrid: r.take(gtrid, "XA name")?,
            bqual: r.take(bqual, "XA branch")?,
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.format.to_le_bytes());
        put_len_u8(out, self.gtrid.len());
        put_len_u8(out, self.bqual.len());
        out.extend_from_slice(self.gtrid);
        out.extend_from_slice(self.bqual);
    }
}

/// The end of the first phase of an XA transaction.
///
/// ```text
/// one phase u8, format u32, lengths u32 and u32, names
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XaPrepare<'a> {
    /// Which.
    pub name: XaName<'a>,
    /// It is its commit too: XA COMMIT … ONE PHASE.
    pub one_phase: bool,
}

impl<'a> XaPrepare<'a> {
    pub(crate) fn decode(r: &mut Reader<'a>) -> Result<XaPrepare<'a>, EventError> {
        let one_phase = match r.u8("one-phase mark")? {
            0 => false,
            1 => true,
            other => return Err(r.bad("one-phase mark", u64::from(other))),
        };
        let format = r.u32("XA format")?;
        let gtrid = r.u32("XA length")? as usize;
        let bqual = r.u32("XA length")? as usize;
        let name = XaName::parts(r, format, gtrid, bqual)?;
        r.end()?;
        Ok(XaPrepare { name, one_phase })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let XaName {
            format,
            gtrid,
            bqual,
        } = self.name;
        out.push(u8::from(self.one_phase));
        out.extend_from_slice(&format.to_le_bytes());
        out.extend_from_slice(&(gtrid.len() as u32).to_le_bytes());
        out.extend_from_slice(&(bqual.len() as u32).to_le_bytes());
        out.extend_from_slice(gtrid);
        out.extend_from_slice(bqual);
    }
}

/// What the extra flags bring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GtidExtra {
    /// See [`gtid_extra`]; not 0 in what a server writes.
    pub flags: u8,
    /// With MULTI_ENGINE: how many engines besides the first; 255: not known.
    pub engines: u8,
    /// With COMMIT_ALTER or ROLLBACK_ALTER: seqno of the group that began it.
    pub alter_begin: u64,
    /// With THREAD_ID: the connection on the primary.
    pub thread_id: u64,
}

/// The beginning of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GtidEvent<'a> {
    /// Its name.
    pub gtid: Gtid,
    /// See [`gtid_flags`]. Those which stand for optional parts are what the
    /// parts below say.
    pub flags: u8,
    /// Groups that were committed together have the same.
    pub commit_id: Option<u64>,
    /// The XA transaction that is prepared or completed.
    pub xa: Option<XaName<'a>>,
    /// The second byte of flags and its parts.
    pub extra: Option<GtidExtra>,
    /// What follows: zeros, or parts of a later version.
    pub tail: &'a [u8],
}

const PARTS: u8 = gtid_flags::GROUP_COMMIT_ID | gtid_flags::PREPARED_XA | gtid_flags::COMPLETED_XA;

impl<'a> GtidEvent<'a> {
    pub(crate) fn decode(r: &mut Reader<'a>, header: &Header) -> Result<GtidEvent<'a>, EventError> {
        if r.left() < BODY_MIN {
            return Err(r.error(Flaw::Short {
                field: "body",
                need: BODY_MIN,
                have: r.left(),
            }));
        }
        let seqno = r.u64("seqno")?;
        let domain = r.u32("domain")?;
        let flags = r.u8("flags")?;
        let commit_id = match flags & gtid_flags::GROUP_COMMIT_ID {
            0 => None,
            _ => Some(r.u64("commit id")?),
        };
        let xa = match flags & (gtid_flags::PREPARED_XA | gtid_flags::COMPLETED_XA) {
            0 => None,
            _ => Some(XaName::decode(r)?),
        };
        let extra = match r.peek_rest().first() {
            None | Some(0) => None,
            Some(_) => Some(GtidExtra::decode(r)?),
        };
        Ok(GtidEvent {
            gtid: Gtid {
                domain,
                server: header.server_id,
                seqno,
            },
            flags,
            commit_id,
            xa,
            extra,
            tail: r.rest(),
        })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        let mut flags = self.flags & !PARTS;
        if self.commit_id.is_some() {
            flags |= gtid_flags::GROUP_COMMIT_ID;
        }
        if self.xa.is_some() {
            let both = gtid_flags::PREPARED_XA | gtid_flags::COMPLETED_XA;
            flags |= match self.flags & both {
                0 => gtid_flags::PREPARED_XA,
                which => which,
            };
        }
        out.extend_from_slice(&self.gtid.seqno.to_le_bytes());
        out.extend_from_slice(&self.gtid.domain.to_le_bytes());
        out.push(flags);
        if let Some(commit_id) = self.commit_id {
            out.extend_from_slice(&commit_id.to_le_bytes());
        }
        if let Some(name) = &self.xa {
            name.encode(out);
        }
        if let Some(extra) = &self.extra {
            extra.encode(out);
        }
        out.extend_from_slice(self.tail);
        if out.len() - begin < BODY_MIN {
            out.resize(begin + BODY_MIN, 0);
        }
    }

    /// Whether all these flags are set.
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }
}

impl GtidExtra {
    fn decode(r: &mut Reader<'_>) -> Result<GtidExtra, EventError> {
        let mut extra = GtidExtra {
            flags: r.u8("extra flags")?,
            ..GtidExtra::default()
        };
        // Parts of an unknown flag would stand among the others.
        if extra.flags & !gtid_extra::KNOWN != 0 {
            return Ok(extra);
        }
        if extra.flags & gtid_extra::MULTI_ENGINE != 0 {
            extra.engines = r.u8("number of engines")?;
        }
        if extra.flags & (gtid_extra::COMMIT_ALTER | gtid_extra::ROLLBACK_ALTER) != 0 {
            extra.alter_begin = r.u64("seqno of the begin")?;
        }
        if extra.flags & gtid_extra::THREAD_ID != 0 {
            extra.thread_id = r.u64("thread id")?;
        }
        Ok(extra)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.flags);
        if self.flags & !gtid_extra::KNOWN != 0 {
            return;
        }
        if self.flags & gtid_extra::MULTI_ENGINE != 0 {
            out.push(self.engines);
        }
        if self.flags & (gtid_extra::COMMIT_ALTER | gtid_extra::ROLLBACK_ALTER) != 0 {
            out.extend_from_slice(&self.alter_begin.to_le_bytes());
        }
        if self.flags & gtid_extra::THREAD_ID != 0 {
            out.extend_from_slice(&self.thread_id.to_le_bytes());
        }
    }
}
