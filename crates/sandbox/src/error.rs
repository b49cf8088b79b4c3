//! What can go wrong, in sentences: what failed, on which node, what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, SandboxError>;

/// Why a cluster could not be created, started, asked or stopped.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A program of a Debian package is not installed.
    #[error("{program} was not found. Install it: apt-get install {package}")]
    ProgramMissing {
        /// Name of the program.
        program: String,
        /// Debian package that holds it.
        package: &'static str,
    },
    /// The provider library is not a readable file.
    #[error(
        "There is no provider library at {path}. Build ours with `cargo build --release -p dromon-provider` (it becomes target/release/libdromon.so) or name another one, for instance --provider /usr/lib/galera/libgalera_smm.so"
    )]
    ProviderMissing {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// User mysql cannot enter the directory.
    #[error(
        "The servers run as user {user}, who cannot enter {blocker}, so {path} cannot hold a cluster. Nothing was started. Choose another place, for instance --dir /var/tmp/dromon"
    )]
    DirectoryClosed {
        /// The cluster's directory.
        path: PathBuf,
        /// The folder above it that is closed.
        blocker: PathBuf,
        /// The user the servers run as.
        user: String,
    },
    /// A socket path may have at most 107 bytes.
    #[error(
        "The directory name {path} is too long: a server's socket inside it would pass the system's limit of 107 bytes. Choose a shorter --dir"
    )]
    DirectoryTooLong {
        /// The cluster's directory.
        path: PathBuf,
    },
    /// The name would be another one in the servers' settings.
    #[error(
        "The directory name {} has {found:?} in it: in a my.cnf, or in the server's scripts, that begins or ends something, and the servers would use another directory. Nothing was made. Choose a --dir without any of # ' \" \\, white space and control characters",
        path.display()
    )]
    DirectoryUnfit {
        /// The cluster's directory.
        path: PathBuf,
        /// The first such character.
        found: char,
    },
    /// The servers run as a user this machine does not have.
    #[error(
        "This machine has no user {user}, as whom the servers run when root starts them. Install the server, which creates it: apt-get install mariadb-server"
    )]
    UserMissing {
        /// The name looked for.
        user: String,
    },
    /// The directory already holds a cluster.
    #[error(
        "{dir} already holds a cluster ({nodes} nodes, {running} running). Use it (`dromon status --dir {dir}`), stop it (`dromon down --dir {dir}`), or remove it with its data (`dromon down --purge --dir {dir}`)"
    )]
    AlreadyThere {
        /// The cluster's directory.
        dir: PathBuf,
        /// Nodes recorded.
        nodes: usize,
        /// Nodes whose process is alive.
        running: usize,
    },
    /// There is no cluster in the directory.
    #[error(
        "There is no cluster in {dir}. Start one there with `dromon up --dir {dir}`, or name its place with --dir"
    )]
    NoCluster {
        /// The directory looked into.
        dir: PathBuf,
    },
    /// The directory holds files that are not a cluster's.
    #[error(
        "{dir} holds other files (for instance {example}) and is not a cluster of ours; nothing was touched. Choose an empty or new --dir"
    )]
    ForeignDirectory {
        /// The directory looked into.
        dir: PathBuf,
        /// One of the files found.
        example: String,
    },
    /// The record in a directory is another directory's.
    #[error(
        "{dir} holds the record of the cluster in {recorded}, so it was copied or moved. Nothing was touched, neither here nor there: the servers, sockets and settings named in it are those of {recorded}. If it was moved, move it back, or remove it; if it is a copy, use the cluster with --dir {recorded}, and remove the copy by hand (rm -r) when you no longer need it"
    )]
    MovedDirectory {
        /// The directory opened.
        dir: PathBuf,
        /// The one that the record names.
        recorded: PathBuf,
    },
    /// The cluster's files were not all made, or some were removed.
    #[error(
        "The cluster in {dir} is not whole: making it, or removing it, was interrupted. Nothing was started or removed. `dromon up --dir {dir}` makes it anew only where no node has data (grastate.dat); `dromon down --purge --dir {dir}` removes what there is"
    )]
    Incomplete {
        /// The cluster's directory.
        dir: PathBuf,
    },
    /// `cluster.json` cannot be understood.
    #[error(
        "{path} cannot be read as a cluster's record ({why}). Nothing was started or removed. The nodes' data is as it was, in {dir}/db*/data: keep the directory. For another record: stop the servers that still run (db*/mysqld.pid), move {dir} away, make a cluster there anew with the same options (`dromon up --dir {dir}`, then `dromon down --dir {dir}`), copy its cluster.json into the directory that was moved away, with the password that its db1/client.cnf has, and put that one back in its place. If nobody needs the data, remove the directory",
        dir = path.parent().unwrap_or(path).display()
    )]
    BadRecord {
        /// The record.
        path: PathBuf,
        /// The parser's words.
        why: String,
    },
    /// The record is another user's.
    #[error(
        "{path} cannot be read: the cluster is that of {owner}, and only who started it may ask, start or stop it, as its record holds the password. Run the same command as {owner}, or name a directory of your own with --dir"
    )]
    OthersCluster {
        /// The record.
        path: PathBuf,
        /// Whose it is.
        owner: String,
    },
    /// What is there may be somebody else's work.
    #[error(
        "{path} is not used: {why}. What it says would be believed, and done with the rights of who asks. Nothing was done. If it is yours all the same, make it so (chown) and close it to others (chmod o-w); else name another directory with --dir"
    )]
    NotOurs {
        /// A directory, or a file in it.
        path: PathBuf,
        /// Who could have made or changed it.
        why: String,
    },
    /// Another process is starting or stopping this cluster.
    #[error(
        "Another process is starting or stopping the cluster in {dir}. Wait for it, then try again"
    )]
    Busy {
        /// The cluster's directory.
        dir: PathBuf,
    },
    /// A port a node needs is taken.
    #[error(
        "Node {node} needs port {port} on 127.0.0.1 for {purpose}, and another process listens there. Stop that process (`ss -ltnp 'sport = :{port}'` names it). A cluster that was made keeps its ports; a new one can take others (--port)"
    )]
    PortTaken {
        /// The node.
        node: String,
        /// The port.
        port: u16,
        /// What the node uses it for.
        purpose: &'static str,
    },
    /// No run of free ports was found.
    #[error(
        "No {needed} free ports in a row were found between {from} and {to} on 127.0.0.1. Stop other local clusters or choose a start with --port"
    )]
    NoFreePorts {
        /// Length of the run.
        needed: usize,
        /// First port tried.
        from: u16,
        /// Last port tried.
        to: u16,
    },
    /// The node's process ended by itself.
    #[error(
        "Node {node} ended while {during} ({how}). {log}\nThe data directory was left as it is. Look into the log, then start again"
    )]
    NodeEnded {
        /// The node.
        node: String,
        /// What it was at.
        during: During,
        /// Exit status or signal.
        how: String,
        /// Its error log.
        log: Box<LogTail>,
    },
    /// The witness's process ended by itself.
    #[error(
        "The witness ended while the cluster started ({how}). {log}\nLook into the log, then start again"
    )]
    WitnessEnded {
        /// Exit status or signal.
        how: String,
        /// Its messages.
        log: Box<LogTail>,
    },
    /// The node did not become what was waited for.
    #[error(
        "Node {node} was not {wanted} after {} s ({now}); its process was running. {log}",
        waited.as_secs()
    )]
    NotInTime {
        /// The node.
        node: String,
        /// What we were waiting for.
        wanted: &'static str,
        /// How long.
        waited: Duration,
        /// What it last said.
        now: String,
        /// Its error log.
        log: Box<LogTail>,
    },
    /// An operation needs a running node.
    #[error("Node {node} is not running; start it first (its log is {log})")]
    NotRunning {
        /// The node.
        node: String,
        /// Its error log.
        log: PathBuf,
    },
    /// Somebody else started a process on what would be removed.
    #[error(
        "Process {pid} is at work in {dir}, and was not started by `dromon up`. Nothing was removed. End that process first \
         (kill {pid}), if the data is not wanted any more"
    )]
    InUse {
        /// Its process id.
        pid: i32,
        /// The directory with the data.
        dir: PathBuf,
    },
    /// An operation needs a stopped node.
    #[error("Node {node} already runs as process {pid}")]
    StillRunning {
        /// The node.
        node: String,
        /// Its process id.
        pid: i32,
    },
    /// No node may bootstrap the stopped cluster.
    #[error(
        "No node of the stopped cluster in {dir} is marked safe to bootstrap, and this provider needs one. Look at the seqno of each db*/data/grastate.dat (-1 after a crash: then run `mariadbd --defaults-file={dir}/dbN/my.cnf --user=mysql --wsrep-recover --skip-log-bin --disable-log-error --skip-silent-startup`), set safe_to_bootstrap: 1 in the most advanced one and run `dromon up --dir {dir}` again, or give the data up with `dromon down --purge --dir {dir}`"
    )]
    NoneSafeToBootstrap {
        /// The cluster's directory.
        dir: PathBuf,
    },
    /// Several nodes of the stopped cluster may found it.
    #[error(
        "Nothing was started: more than one node of the stopped cluster in {dir} may found it (safe_to_bootstrap: 1). So these are two halves that went on apart, or somebody edited the files; each half may have acknowledged writes that the other lacks.\n{}Only one half can go on: whoever starts second takes a full copy of it, and what only that node had is lost. Compare the halves first (`dromon log show DATA_DIR` shows what each wrote last) and keep a copy of {dir}. Then write safe_to_bootstrap: 0 into the grastate.dat of the half to give up, and run `dromon up --dir {dir}` again",
        nodes.iter().map(|n| format!("  {n}\n")).collect::<String>()
    )]
    TwoHalves {
        /// The cluster's directory.
        dir: PathBuf,
        /// All nodes that have a state file.
        nodes: Vec<Left>,
    },
    /// A node that does not run was the last one of a component of its own.
    #[error(
        "Nothing was started: other nodes of the cluster in {dir} run, and {} says safe_to_bootstrap: 1, so that node stopped as the last one of its component. It may have acknowledged writes that those that run lack; started now it takes a full copy of them, and these are lost. Compare the two (`dromon log show {}` shows what it wrote last) and keep a copy of its directory. To give its writes up, write safe_to_bootstrap: 0 into its grastate.dat and run `dromon up --dir {dir}` again",
        node.node,
        node.data_dir.display()
    )]
    OtherHalf {
        /// The cluster's directory.
        dir: PathBuf,
        /// The node.
        node: Box<Left>,
    },
    /// The node refused or failed a statement.
    #[error("Node {node} failed the statement {statement}: {source}")]
    Sql {
        /// The node.
        node: String,
        /// The statement, or "connect".
        statement: String,
        /// The driver's error.
        source: Box<mysql::Error>,
    },
    /// Creating the system tables failed.
    #[error("mariadb-install-db failed. It said:\n{output}\nNothing was started")]
    InstallDb {
        /// Last lines of its output.
        output: String,
    },
    /// A file operation failed.
    #[error("Cannot {what} {path}: {source}")]
    Io {
        /// Verb, for instance "create the directory".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A process is there even after SIGKILL.
    #[error(
        "Process {pid} is still there {} s after SIGKILL: it waits inside the kernel, mostly for a disk. It stays recorded and nothing of it was removed, as it may still write. Run the same `dromon down`, with the same --dir, again when it has ended (`ps -o pid,stat,wchan -p {pid}`)",
        waited.as_secs()
    )]
    OutlivesKill {
        /// Process id.
        pid: i32,
        /// How long it had to end.
        waited: Duration,
    },
    /// A process operation failed.
    #[error("Cannot {what} process {pid}: {source}")]
    Process {
        /// Verb, for instance "signal".
        what: &'static str,
        /// Process id.
        pid: i32,
        /// The system's error.
        source: io::Error,
    },
    /// A value makes no sense.
    #[error("{0}")]
    BadRequest(String),
}

impl SandboxError {
    /// Whether there was no room on the disk.
    pub(crate) fn is_full(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, SandboxError::Io { source, .. } if full.contains(&source.kind()))
    }
}

/// What a node was at when its process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum During {
    /// It was to answer.
    Starting,
    /// It was to tell its engine's position.
    Recovering,
    /// It was to be this, as in [`SandboxError::NotInTime`].
    Becoming(&'static str),
}

impl fmt::Display for During {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => f.write_str("starting"),
            Self::Recovering => f.write_str("recovering its position"),
            Self::Becoming(wanted) => write!(f, "becoming {wanted}"),
        }
    }
}

/// How a stopped node was left, as its state file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The node.
    pub node: String,
    /// Its data directory.
    pub data_dir: PathBuf,
    /// The history its data belongs to.
    pub uuid: String,
    /// Its position there, as written; -1 after a crash.
    pub seqno: String,
    /// It may found the cluster.
    pub is_safe: bool,
    /// What its log says, by whoever can read one.
    pub log: Option<String>,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: safe_to_bootstrap: {}, seqno {}, history {}",
            self.node,
            u8::from(self.is_safe),
            self.seqno,
            self.uuid
        )?;
        if let Some(log) = &self.log {
            write!(f, ", log: {log}")?;
        }
        write!(f, " ({})", self.data_dir.join("grastate.dat").display())
    }
}

/// Where a node's error log lies and how it ends.
#[derive(Debug)]
pub struct LogTail {
    /// The file.
    pub path: PathBuf,
    /// Its last lines, indented.
    pub lines: String,
}

impl fmt::Display for LogTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Its log {} ends with:\n{}",
            self.path.display(),
            self.lines
        )
    }
}

/// Attaches a verb and a path to an [`io::Error`].
pub(crate) trait IoContext<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| SandboxError::Io {
            what,
            path: path.to_path_buf(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_was_at_reads_as_a_sentence() {
        let ended = |during| {
            let error = SandboxError::NodeEnded {
                node: "db1".into(),
                during,
                how: "exit code 1".into(),
                log: Box::new(LogTail {
                    path: "/l".into(),
                    lines: String::new(),
                }),
            };
            let text = error.to_string();
            text.split_once(" (").expect("how").0.to_owned()
        };
        for (during, said) in [
            (During::Becoming("Synced"), "becoming Synced"),
            (During::Becoming("one of two"), "becoming one of two"),
            (During::Recovering, "recovering its position"),
        ] {
            assert_eq!(ended(during), format!("Node db1 ended while {said}"));
        }
    }

    #[test]
    fn where_the_servers_cannot_go_nothing_is_to_be_opened_for_them() {
        let error = SandboxError::DirectoryClosed {
            path: "/root/try".into(),
            blocker: "/root".into(),
            user: "mysql".into(),
        };
        let text = error.to_string();
        assert!(
            text.ends_with("for instance --dir /var/tmp/dromon"),
            "{text}"
        );
        assert!(!text.contains("chmod"), "{text}");
    }

    /// Without it the command would be for the cluster of the current directory.
    #[test]
    fn commands_name_the_directory_that_they_are_for() {
        let dir = || PathBuf::from("/srv/try");
        let left = || Left {
            node: "db1".into(),
            data_dir: "/srv/try/db1/data".into(),
            uuid: "-".into(),
            seqno: "1".into(),
            is_safe: true,
            log: None,
        };
        let errors = [
            SandboxError::AlreadyThere {
                dir: dir(),
                nodes: 3,
                running: 1,
            },
            SandboxError::NoCluster { dir: dir() },
            SandboxError::Incomplete { dir: dir() },
            SandboxError::BadRecord {
                path: dir().join("cluster.json"),
                why: String::new(),
            },
            SandboxError::NoneSafeToBootstrap { dir: dir() },
            SandboxError::TwoHalves {
                dir: dir(),
                nodes: vec![left(), left()],
            },
            SandboxError::OtherHalf {
                dir: dir(),
                node: Box::new(left()),
            },
        ];
        for error in errors {
            let text = error.to_string();
            let commands: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
            let ours = |c: &&&str| {
                ["up", "down", "status"]
                    .iter()
                    .any(|what| c.starts_with(&format!("dromon {what}")))
            };
            assert!(commands.iter().any(|c| ours(&c)), "{text}");
            for command in commands.iter().filter(ours) {
                assert!(command.ends_with(" --dir /srv/try"), "{command}: {text}");
            }
        }
    }
}
