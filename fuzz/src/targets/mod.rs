//! The targets.

mod binlog;
mod cluster;
mod files;
mod log_files;
mod marks;
mod mysql;
mod network;
mod texts;
mod write_sets;

/// One parser, or several that belong together.
pub struct Target {
    /// Its name on the command line.
    pub name: &'static str,
    /// Tries one input; panics if something is wrong.
    pub run: fn(&[u8]),
    /// Inputs to begin with: all kinds of what is really written.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    network::GREETING,
    network::FRAMES,
    network::ENGINE_MESSAGE,
    network::SECRET,
    network::CERTIFICATE,
    write_sets::WRITE_SET,
    write_sets::KEYS,
    files::LOG_ENTRY,
    files::CHECKPOINT,
    files::SMALL_STATE,
    files::SEQUENCER,
    files::CERTIFIER,
    log_files::LOG_FILES,
    cluster::NODE_MESSAGE,
    cluster::CLUSTER_STATE,
    cluster::DELIVERY,
    binlog::BINLOG,
    mysql::MYSQL_PACKETS,
    texts::OPTIONS,
    texts::ADDRESSES,
    texts::STATE_FILES,
    texts::WITNESS_FILE,
    texts::RECOVERED,
    marks::DDL_MARKS,
    marks::LACKING,
    marks::FAILED,
];

/// What `again` makes of an input that it can read, it must make of that, too.
fn stable(name: &str, input: &[u8], again: impl Fn(bytes::Bytes) -> Option<bytes::Bytes>) {
    let Some(once) = again(bytes::Bytes::copy_from_slice(input)) else {
        return;
    };
    let twice = again(once.clone());
    assert_eq!(twice.as_ref(), Some(&once), "{name} says it differently");
}
