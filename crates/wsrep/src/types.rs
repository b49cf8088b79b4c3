//! Plain values that cross the border: statuses, identifiers, write-set metadata,
//! the arguments of `init`, status variables and configuration parameters.
//!
//! [`Uuid`], [`Gtid`], [`Stid`] and [`TrxMeta`] have the layout of their C
//! counterparts, so that metadata is read and written in place.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

/// Sequence number of an ordered event; the first one is 1, [`SEQNO_UNDEFINED`] means none.
pub type Seqno = i64;

/// "No sequence number".
pub const SEQNO_UNDEFINED: Seqno = -1;

/// The transaction id of "no transaction".
pub const TRX_ID_UNDEFINED: u64 = u64::MAX;

/// The connection id of "no connection" (rollback fragments carry it).
pub const CONN_ID_UNDEFINED: u64 = u64::MAX;

/// What a provider function answers to the server.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// Minor failure; the server rolls the transaction back.
    Warning = 1,
    /// The transaction is not known to the provider.
    TrxMissing = 2,
    /// Certification failed; the client gets a deadlock error.
    TrxFail = 3,
    /// The transaction was aborted by one that is ordered and must be replayed.
    BfAbort = 4,
    /// The write set is larger than the provider takes.
    SizeExceeded = 5,
    /// No connection to a primary component.
    ConnFail = 6,
    /// The provider on this node is in a bad state.
    NodeFail = 7,
    /// The server must abort.
    Fatal = 8,
    /// The function is not supported.
    NotImplemented = 9,
    /// The operation is not permitted now.
    NotAllowed = 10,
}

impl Status {
    /// The status of a C value; `None` for an unknown one.
    pub fn from_raw(raw: u32) -> Option<Status> {
        Some(match raw {
            0 => Status::Ok,
            1 => Status::Warning,
            2 => Status::TrxMissing,
            3 => Status::TrxFail,
            4 => Status::BfAbort,
            5 => Status::SizeExceeded,
            6 => Status::ConnFail,
            7 => Status::NodeFail,
            8 => Status::Fatal,
            9 => Status::NotImplemented,
            10 => Status::NotAllowed,
            _ => return None,
        })
    }
}

/// Severity of a line in the server's error log.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogLevel {
    /// The node cannot go on.
    Fatal = 0,
    /// Something failed.
    Error = 1,
    /// Something may need attention.
    Warn = 2,
    /// Ordinary course of events.
    Info = 3,
    /// Shown only while the server's `wsrep_debug` is on.
    Debug = 4,
}

/// 16 bytes that identify a history or one incarnation of a node; all zero means none.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// The all-zero value, "no uuid".
    pub const UNDEFINED: Uuid = Uuid([0; 16]);

    /// Whether this is the all-zero value.
    pub fn is_undefined(&self) -> bool {
        *self == Uuid::UNDEFINED
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Global transaction id: a position in a history.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gtid {
    /// The history.
    pub uuid: Uuid,
    /// The place in it.
    pub seqno: Seqno,
}

impl Gtid {
    /// Nil uuid and seqno -1: the only form the server takes for "undefined".
    pub const UNDEFINED: Gtid = Gtid {
        uuid: Uuid::UNDEFINED,
        seqno: SEQNO_UNDEFINED,
    };

    /// Whether both parts are undefined.
    pub fn is_undefined(&self) -> bool {
        *self == Gtid::UNDEFINED
    }
}

impl Default for Gtid {
    fn default() -> Self {
        Gtid::UNDEFINED
    }
}

impl fmt::Display for Gtid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uuid, self.seqno)
    }
}

/// Source and transaction id: which client transaction a write set belongs to.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stid {
    /// The node the transaction runs on.
    pub node: Uuid,
    /// The transaction id there.
    pub trx: u64,
    /// The client connection id there.
    pub conn: u64,
}

impl Stid {
    /// No node, no transaction, no connection.
    pub const UNDEFINED: Stid = Stid {
        node: Uuid::UNDEFINED,
        trx: TRX_ID_UNDEFINED,
        conn: CONN_ID_UNDEFINED,
    };
}

impl Default for Stid {
    fn default() -> Self {
        Stid::UNDEFINED
    }
}

/// Metadata of a write set.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TrxMeta {
    /// Its place in the total order.
    pub gtid: Gtid,
    /// Where it comes from.
    pub stid: Stid,
    /// The highest seqno that must be released before this one may be applied; -1 = none or failed.
    pub depends_on: Seqno,
}

impl TrxMeta {
    /// Every field undefined.
    pub const UNDEFINED: TrxMeta = TrxMeta {
        gtid: Gtid::UNDEFINED,
        stid: Stid::UNDEFINED,
        depends_on: SEQNO_UNDEFINED,
    };
}

impl Default for TrxMeta {
    fn default() -> Self {
        TrxMeta::UNDEFINED
    }
}

/// How strongly a key is used by a transaction, weakest first.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyType {
    /// Shared use.
    Shared = 0,
    /// A reference to a row (foreign key parent).
    Reference = 1,
    /// The row is changed, its key is not.
    Update = 2,
    /// The row is inserted, deleted, or its key changed.
    Exclusive = 3,
}

impl KeyType {
    /// The type of a C value; `None` for an unknown one.
    pub fn from_raw(raw: u32) -> Option<KeyType> {
        Some(match raw {
            0 => KeyType::Shared,
            1 => KeyType::Reference,
            2 => KeyType::Update,
            3 => KeyType::Exclusive,
            _ => return None,
        })
    }
}

/// What kind of data is appended to a write set.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    /// Applied in total order (the only type MariaDB sends).
    Ordered = 0,
    /// Applied in any order.
    Unordered = 1,
    /// Human-readable annotation.
    Annotation = 2,
}

impl DataType {
    /// The type of a C value; `None` for an unknown one.
    pub fn from_raw(raw: u32) -> Option<DataType> {
        Some(match raw {
            0 => DataType::Ordered,
            1 => DataType::Unordered,
            2 => DataType::Annotation,
            _ => return None,
        })
    }
}

/// Write-set flag bits. Flags are handed through as a plain `u32`.
pub mod flags {
    /// Last (or only) write set of its transaction.
    pub const TRX_END: u32 = 1 << 0;
    /// Roll the transaction back.
    pub const ROLLBACK: u32 = 1 << 1;
    /// Total order isolation (DDL).
    pub const ISOLATION: u32 = 1 << 2;
    /// Must not be applied in parallel with anything before it.
    pub const PA_UNSAFE: u32 = 1 << 3;
    /// Commutes with others.
    pub const COMMUTATIVE: u32 = 1 << 4;
    /// Native write set.
    pub const NATIVE: u32 = 1 << 5;
    /// First (or only) write set of its transaction.
    pub const TRX_START: u32 = 1 << 6;
    /// Prepares the transaction.
    pub const TRX_PREPARE: u32 = 1 << 7;
    /// Snapshot write set.
    pub const SNAPSHOT: u32 = 1 << 8;
    /// Dependencies are implicit in the order.
    pub const IMPLICIT_DEPS: u32 = 1 << 9;
}

/// Capability bits of a provider.
pub mod capability {
    /// Every node may write.
    pub const MULTI_MASTER: u32 = 1 << 0;
    /// Write sets are certified.
    pub const CERTIFICATION: u32 = 1 << 1;
    /// Write sets may be applied in parallel.
    pub const PARALLEL_APPLYING: u32 = 1 << 2;
    /// Aborted ordered transactions can be replayed.
    pub const TRX_REPLAY: u32 = 1 << 3;
    /// Total order isolation.
    pub const ISOLATION: u32 = 1 << 4;
    /// `pause` and `resume` work.
    pub const PAUSE: u32 = 1 << 5;
    /// Causal reads (`sync_wait` without a position).
    pub const CAUSAL_READS: u32 = 1 << 6;
    /// Causal transactions.
    pub const CAUSAL_TRX: u32 = 1 << 7;
    /// Write sets may be appended to bit by bit.
    pub const INCREMENTAL_WRITESET: u32 = 1 << 8;
    /// Session locks.
    pub const SESSION_LOCKS: u32 = 1 << 9;
    /// Distributed locks.
    pub const DISTRIBUTED_LOCKS: u32 = 1 << 10;
    /// Consistency check.
    pub const CONSISTENCY_CHECK: u32 = 1 << 11;
    /// Unordered data.
    pub const UNORDERED: u32 = 1 << 12;
    /// Annotations.
    pub const ANNOTATION: u32 = 1 << 13;
    /// Preordered write sets.
    pub const PREORDERED: u32 = 1 << 14;
    /// Streaming replication.
    pub const STREAMING: u32 = 1 << 15;
    /// Snapshot write sets.
    pub const SNAPSHOT: u32 = 1 << 16;
    /// Non-blocking DDL.
    pub const NBO: u32 = 1 << 17;
}

/// What the server says at start. Everything is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitArgs {
    /// `wsrep_node_name`.
    pub node_name: String,
    /// `wsrep_node_address`; may hold a port.
    pub node_address: String,
    /// `wsrep_node_incoming_address`, where clients reach this node.
    pub node_incoming: String,
    /// The data directory (MariaDB sends it with a trailing slash).
    pub data_dir: PathBuf,
    /// `wsrep_provider_options`, possibly empty.
    pub options: String,
    /// The highest application protocol version the server speaks (4).
    pub proto_ver: i32,
    /// The storage engine's position, undefined unless `--wsrep-start-position` was given.
    pub state_id: Gtid,
    /// The state that belongs to `state_id`; MariaDB passes none.
    pub state: Option<Vec<u8>>,
}

/// One status variable; the server shows it with `wsrep_` before the name.
#[derive(Clone, Debug, PartialEq)]
pub struct StatsVar {
    /// The name without `wsrep_`.
    pub name: Cow<'static, str>,
    /// Its value now.
    pub value: StatsValue,
}

impl StatsVar {
    /// A variable of any type, e.g. `StatsVar::new("cluster_size", 3_i64)`.
    pub fn new(name: impl Into<Cow<'static, str>>, value: impl Into<StatsValue>) -> StatsVar {
        StatsVar {
            name: name.into(),
            value: value.into(),
        }
    }
}

/// The value of a status variable.
#[derive(Clone, Debug, PartialEq)]
pub enum StatsValue {
    /// Text.
    String(Cow<'static, str>),
    /// A whole number.
    Int(i64),
    /// Shown with six significant digits.
    Double(f64),
}

impl From<i64> for StatsValue {
    fn from(value: i64) -> Self {
        StatsValue::Int(value)
    }
}

impl From<u64> for StatsValue {
    /// Values above `i64::MAX` are shown as `i64::MAX`.
    fn from(value: u64) -> Self {
        StatsValue::Int(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<f64> for StatsValue {
    fn from(value: f64) -> Self {
        StatsValue::Double(value)
    }
}

impl From<String> for StatsValue {
    fn from(value: String) -> Self {
        StatsValue::String(Cow::Owned(value))
    }
}

impl From<&'static str> for StatsValue {
    fn from(value: &'static str) -> Self {
        StatsValue::String(Cow::Borrowed(value))
    }
}

/// One option as the config service reports it (MariaDB 11.8 makes a system variable of each).
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Dotted lower-case name; the server turns dots into underscores, and upper case breaks SET.
    pub name: Cow<'static, str>,
    /// Type and present value, which the server also takes as the default.
    pub value: ParameterValue,
    /// SET is refused by the server.
    pub read_only: bool,
    /// SET makes the server warn.
    pub deprecated: bool,
}

impl Parameter {
    /// A parameter that can be set at run time.
    pub fn new(name: impl Into<Cow<'static, str>>, value: ParameterValue) -> Parameter {
        Parameter {
            name: name.into(),
            value,
            read_only: false,
            deprecated: false,
        }
    }

    /// The same, but refused by SET.
    pub fn read_only(mut self) -> Parameter {
        self.read_only = true;
        self
    }

    /// The same, but with a warning at SET.
    pub fn deprecated(mut self) -> Parameter {
        self.deprecated = true;
        self
    }
}

/// Type and value of a [`Parameter`].
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterValue {
    /// Set as `yes` or `no`.
    Bool(bool),
    /// Set as a decimal number.
    Integer(i64),
    /// Set with six decimals; the server clamps 0 and negative values.
    Double(f64),
    /// Set as raw text.
    String(String),
}

/// What the server asks its allowlist about.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllowlistKey {
    /// An IP address.
    Ip = 0,
    /// The subject of a TLS certificate.
    TlsSubject = 1,
}

/// A callback into the server did not succeed, or the server offers none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallbackFailed {
    /// Which callback.
    pub callback: &'static str,
}

impl fmt::Display for CallbackFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "The server's {} callback did not succeed; the server's own lines above say why.",
            self.callback
        )
    }
}

impl std::error::Error for CallbackFailed {}
