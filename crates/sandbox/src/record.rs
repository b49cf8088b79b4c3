//! `cluster.json`: what was started where, so that another process can ask and
//! stop it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::config::{Setting, SstMethod};
use crate::error::{IoContext, Result, SandboxError};
use crate::ports::Ports;
use crate::process::ProcessId;
use crate::who::name_of;
use crate::witness::WitnessRecord;

/// Version of the file's shape; another version is refused.
const SHAPE: u32 = 1;

/// A cluster as recorded in `cluster.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// Version of this shape.
    pub shape: u32,
    /// All its files were made. Until then, and while it is being removed, nothing of
    /// it can be started; records of before this field are of whole ones.
    #[serde(default = "whole")]
    pub complete: bool,
    /// Random; part of the environment mark of every process started for it.
    pub id: String,
    /// `wsrep_cluster_name`.
    pub name: String,
    /// The directory.
    pub dir: PathBuf,
    /// The server's version line.
    pub server: String,
    /// The provider library that was asked for.
    pub provider: PathBuf,
    /// The copy the servers load.
    pub provider_copy: PathBuf,
    /// How joiners get a full copy.
    pub sst_method: SstMethod,
    /// `wsrep_slave_threads`.
    pub appliers: usize,
    /// Provider options besides the addresses.
    pub provider_options: String,
    /// Connections between nodes are encrypted and need a secret.
    #[serde(default)]
    pub tls: bool,
    /// With [`ClusterRecord::tls`]: full copies are encrypted, too.
    #[serde(default)]
    pub sst_tls: bool,
    /// Settings beyond the quick start's.
    pub settings: Vec<Setting>,
    /// SQL user with all privileges, from this machine only.
    pub user: String,
    /// Its password.
    pub password: String,
    /// The nodes, in order of their names.
    pub nodes: Vec<NodeRecord>,
    /// The witness, if there is one.
    #[serde(default)]
    pub witness: Option<WitnessRecord>,
}

fn whole() -> bool {
    true
}

/// A node as recorded in `cluster.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeRecord {
    /// `wsrep_node_name`: db1, db2, …
    pub name: String,
    /// Everything of the node lies here.
    pub dir: PathBuf,
    /// Data directory.
    pub data_dir: PathBuf,
    /// Unix socket.
    pub socket: PathBuf,
    /// Error log.
    pub log: PathBuf,
    /// Ports at [`NodeRecord::address`].
    pub ports: Ports,
    /// A network of its own; none: 127.0.0.1, like all the others.
    #[serde(default)]
    pub network: Option<NodeNetwork>,
    /// The server's process; none when it was stopped by us or never started.
    pub process: Option<ProcessId>,
}

/// The network namespace a server is started in, made by the caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeNetwork {
    /// The server's address in it. Other nodes must reach it.
    pub address: Ipv4Addr,
    /// The namespace, as `nsenter --net=` takes it, for instance `/proc/77/ns/net`.
    pub namespace: PathBuf,
}

impl NodeRecord {
    /// Where the node listens for the other nodes.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.network
            .as_ref()
            .map_or(Ipv4Addr::LOCALHOST, |n| n.address)
    }
}

impl ClusterRecord {
    pub(crate) const SHAPE: u32 = SHAPE;

    /// The `gcomm://` address naming all nodes.
    #[must_use]
    pub fn address(&self) -> String {
        let members: Vec<String> = self
            .nodes
            .iter()
            .map(|n| format!("{}:{}", n.address(), n.ports.group))
            .collect();
        format!("gcomm://{}", members.join(","))
    }

    /// Whether the provider is ours and not the peer; if it is gone, its copy tells.
    #[must_use]
    pub fn is_dromon(&self) -> bool {
        match self.provider.is_file() {
            true => is_ours(&self.provider),
            false => {
                has_own_version(&self.provider_copy).unwrap_or_else(|| is_ours(&self.provider))
            }
        }
    }

    /// Sets how joiners get a full copy, encrypted if this machine can.
    pub fn choose_copies(&mut self, method: SstMethod) {
        self.sst_method = method;
        self.sst_tls = method.can_encrypt();
    }

    /// Whether full copies are encrypted.
    #[must_use]
    pub fn copies_encrypted(&self) -> bool {
        self.tls && self.sst_tls
    }

    /// `NAME=value` that marks the processes of node `index`.
    pub(crate) fn marker(&self, index: usize) -> (&'static str, String) {
        (
            "DROMON_SANDBOX_NODE",
            format!("{}/{}", self.id, self.nodes[index].name),
        )
    }

    /// Reads the record of `dir`; refuses that of another directory.
    pub(crate) fn load(dir: &Path) -> Result<Self> {
        let path = dir.join("cluster.json");
        let opened = File::open(&path).and_then(|mut file| {
            let mut text = String::new();
            let meta = file.metadata()?;
            file.read_to_string(&mut text).map(|_| (meta, text))
        });
        let text = match opened {
            Ok((meta, text)) => {
                refuse_others_of(&path, &meta)?;
                text
            }
            Err(e) => return Err(unreadable(e, dir, path)),
        };
        let record: Self = serde_json::from_str(&text).map_err(|e| SandboxError::BadRecord {
            path: path.clone(),
            why: e.to_string(),
        })?;
        if record.shape != SHAPE {
            let why = format!(
                "its shape is {}, this program knows {SHAPE}: use the one that wrote it",
                record.shape
            );
            return Err(SandboxError::BadRecord { path, why });
        }
        // All paths and processes in it are those of the directory it was written for.
        let is_here = fs::canonicalize(&record.dir)
            .is_ok_and(|recorded| fs::canonicalize(dir).is_ok_and(|here| here == recorded));
        if !is_here {
            return Err(SandboxError::MovedDirectory {
                dir: dir.to_path_buf(),
                recorded: record.dir,
            });
        }
        Ok(record)
    }

    /// Writes the record so that a reader sees the old or the new one.
    pub(crate) fn save(&self) -> Result<()> {
        let path = self.dir.join("cluster.json");
        let fresh = self.dir.join("cluster.json.new");
        let text = serde_json::to_string_pretty(self)
            .expect("a record is plain data and always has a JSON form");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)
            .at("write", &fresh)?;
        file.write_all(text.as_bytes()).at("write", &fresh)?;
        // Else a power cut may leave the name with nothing behind it.
        file.sync_all().at("sync", &fresh)?;
        fs::rename(&fresh, &path).at("replace", &path)?;
        let dir = File::open(&self.dir).and_then(|dir| dir.sync_all());
        dir.at("sync the directory", &self.dir)
    }
}

impl ClusterRecord {
    /// Saves that this is a process of the cluster now, or that there is none. Where there is no room a process
    /// that is gone stays recorded: it is known by its start time not to be there.
    pub(crate) fn save_process(&self, process: Option<ProcessId>) -> Result<()> {
        match self.save() {
            Err(error) if process.is_none() && error.is_full() => Ok(()),
            saved => saved,
        }
    }
}

/// Why the record in `dir` cannot be read. It holds the password: of another user's cluster it never can.
fn unreadable(source: std::io::Error, dir: &Path, path: PathBuf) -> SandboxError {
    match source.kind() {
        std::io::ErrorKind::NotFound => SandboxError::NoCluster {
            dir: dir.to_path_buf(),
        },
        std::io::ErrorKind::PermissionDenied => SandboxError::OthersCluster {
            owner: match fs::metadata(&path).map(|meta| meta.uid()) {
                Ok(0) => "root".into(),
                Ok(uid) => format!("user {uid}"),
                Err(_) => "another user".into(),
            },
            path,
        },
        _ => SandboxError::Io {
            what: "read",
            path,
            source,
        },
    }
}

/// The record in memory, saved at each change of a node's process.
#[derive(Debug)]
pub(crate) struct Store {
    record: Mutex<ClusterRecord>,
    /// The lock that a command holds over several operations.
    held: Mutex<Weak<DirLock>>,
}

impl Store {
    pub fn new(record: ClusterRecord) -> Self {
        Self {
            record: Mutex::new(record),
            held: Mutex::default(),
        }
    }

    /// The lock of the directory: the one that is held, or taken for as long as the
    /// answer lives. Then the record is read anew: another process may have changed it.
    pub fn lock(&self) -> Result<Arc<DirLock>> {
        if let Some(lock) = self.held().upgrade() {
            return Ok(lock);
        }
        let dir = self.get().dir.clone();
        let lock = Arc::new(DirLock::take(&dir)?);
        let fresh = ClusterRecord::load(&dir)?;
        let mut record = self.get();
        if fresh.id != record.id {
            return Err(SandboxError::BadRequest(format!(
                "The cluster in {} was removed and another one made meanwhile; nothing was done. Run the command again",
                dir.display()
            )));
        }
        *record = fresh;
        drop(record);
        Ok(lock)
    }

    /// The same, and what follows does not take it again while the answer lives.
    pub fn hold(&self) -> Result<Arc<DirLock>> {
        let lock = self.lock()?;
        *self.held() = Arc::downgrade(&lock);
        Ok(lock)
    }

    fn held(&self) -> MutexGuard<'_, Weak<DirLock>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self) -> MutexGuard<'_, ClusterRecord> {
        // A record is replaced field by field with plain values: a panic
        // elsewhere cannot leave it half changed.
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_process(&self, index: usize, process: Option<ProcessId>) -> Result<()> {
        let mut record = self.get();
        if record.nodes[index].process == process {
            return Ok(());
        }
        record.nodes[index].process = process;
        record.save_process(process)
    }
}

/// Keeps other processes from starting, changing or stopping a cluster as long as it lives.
#[derive(Debug)]
pub struct Hold(#[expect(dead_code, reason = "dropping it ends the lock")] pub(crate) Arc<DirLock>);

/// A process that another thread is just starting has this one's files, locks with them, until its program runs.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// Keeps other processes from starting or stopping the same cluster.
#[derive(Debug)]
pub(crate) struct DirLock(#[expect(dead_code, reason = "closing the file ends the lock")] File);

impl DirLock {
    pub fn take(dir: &Path) -> Result<Self> {
        let path = dir.join("cluster.lock");
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(&path)
            .at("open", &path)?;
        let until = Instant::now() + LOCK_PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self(file)),
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    thread::sleep(Duration::from_millis(10));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(SandboxError::Busy {
                        dir: dir.to_path_buf(),
                    });
                }
                Err(TryLockError::Error(source)) => {
                    return Err(SandboxError::Io {
                        what: "lock",
                        path,
                        source,
                    });
                }
            }
        }
    }
}

/// Refuses a directory that others than the caller can have filled, before anything is written there.
pub(crate) fn refuse_others(dir: &Path) -> Result<()> {
    refuse_others_of(dir, &fs::metadata(dir).at("look at", dir)?)
}

fn refuse_others_of(path: &Path, meta: &fs::Metadata) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let mode = meta.mode();
    let why = if ![own, 0].contains(&meta.uid()) {
        // Root may act as that user, whose rights are all that is given then.
        let how = match name_of(meta.uid()) {
            Some(name) if own == 0 => {
                format!("; as that one root asks by runuser -u {name} -- dromon …")
            }
            _ => String::new(),
        };
        format!("it belongs to user {}{how}", meta.uid())
    } else if mode & 0o002 != 0 {
        "everybody may write there".to_owned()
    } else if own == 0 && mode & 0o020 != 0 && meta.gid() != 0 {
        format!("group {} may write there", meta.gid())
    } else {
        return Ok(());
    };
    Err(SandboxError::NotOurs {
        path: path.to_path_buf(),
        why,
    })
}

/// `bytes` random bytes in hexadecimal.
pub(crate) fn random_hex(bytes: usize) -> Result<String> {
    use std::fmt::Write as _;
    let path = Path::new("/dev/urandom");
    let mut raw = vec![0u8; bytes];
    File::open(path)
        .and_then(|mut f| f.read_exact(&mut raw))
        .at("read", path)?;
    Ok(raw.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    }))
}

/// How our library's version begins, behind the peer's that it is an equal of.
const OWN_VERSION: &[u8] = b"(rdromon-";
/// How a library begins.
const ELF: &[u8] = b"\x7fELF";

/// Whether this provider library is ours and not the peer: by the version in it, as files are renamed. What is no
/// library, or cannot be read, goes by its name.
#[must_use]
pub fn is_ours(provider: &Path) -> bool {
    has_own_version(provider).unwrap_or_else(|| {
        let name = provider.file_name().unwrap_or_default();
        name.to_string_lossy().contains("dromon")
    })
}

/// Whether our version is in this library; none if it is no library.
fn has_own_version(library: &Path) -> Option<bool> {
    let mut file = File::open(library).ok()?;
    let mut begin = [0; ELF.len()];
    file.read_exact(&mut begin).ok()?;
    if begin != ELF {
        return None;
    }
    let mut bytes = Vec::new();
    loop {
        // What the last part ended with may be the beginning of it.
        bytes.drain(..bytes.len().saturating_sub(OWN_VERSION.len()));
        if (&file).take(1 << 16).read_to_end(&mut bytes).ok()? == 0 {
            return Some(false);
        }
        if bytes.windows(OWN_VERSION.len()).any(|w| w == OWN_VERSION) {
            return Some(true);
        }
    }
}

#[cfg(test)]
pub(crate) fn sample() -> ClusterRecord {
    let node = |k: u16| NodeRecord {
        name: format!("db{}", k + 1),
        dir: PathBuf::from(format!("/c/db{}", k + 1)),
        data_dir: PathBuf::from(format!("/c/db{}/data", k + 1)),
        socket: PathBuf::from(format!("/c/db{}/mysqld.sock", k + 1)),
        log: PathBuf::from(format!("/c/db{}/error.log", k + 1)),
        ports: Ports {
            sql: 23306 + 10 * k,
            group: 23307 + 10 * k,
            ist: 23308 + 10 * k,
            sst: 23309 + 10 * k,
        },
        network: None,
        process: None,
    };
    ClusterRecord {
        shape: SHAPE,
        complete: true,
        id: "0123".into(),
        name: "dromon".into(),
        dir: PathBuf::from("/c"),
        server: "10.11".into(),
        provider: PathBuf::from("/p.so"),
        provider_copy: PathBuf::from("/c/lib/p.so"),
        sst_method: SstMethod::Rsync,
        appliers: 8,
        provider_options: String::new(),
        tls: false,
        sst_tls: false,
        settings: Vec::new(),
        user: "dromon".into(),
        password: "secret".into(),
        nodes: vec![node(0), node(1)],
        witness: None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn who_may_not_read_a_record_is_told_whose_it_is() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("cluster.json");
        fs::write(&path, "").expect("written");
        let owner = match fs::metadata(&path).expect("it is there").uid() {
            0 => "root".to_owned(),
            uid => format!("user {uid}"),
        };
        let said = |kind: std::io::ErrorKind, path: &Path| {
            unreadable(kind.into(), dir.path(), path.to_path_buf()).to_string()
        };
        let denied = said(std::io::ErrorKind::PermissionDenied, &path);
        let words = format!("Run the same command as {owner}, or");
        assert!(denied.contains(&words), "{denied}");
        assert!(
            !denied.contains("and root"),
            "root is refused, too: {denied}"
        );
        let hidden = dir.path().join("gone/cluster.json");
        let denied = said(std::io::ErrorKind::PermissionDenied, &hidden);
        assert!(denied.contains("that of another user"), "{denied}");
        let gone = said(std::io::ErrorKind::NotFound, &path);
        assert!(gone.contains("There is no cluster in"), "{gone}");
    }

    #[test]
    fn a_library_is_known_by_what_is_in_it() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let ours = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            fs::write(&path, bytes).expect("written");
            is_ours(&path)
        };
        let library = |version: &str, before: usize| {
            [ELF, &vec![0; before], version.as_bytes(), &[0; 100]].concat()
        };
        for before in [9, (1 << 16) - 4, 200_000] {
            let renamed = library("4.24(rdromon-0.1.0)", before);
            assert!(ours("provider.so", &renamed), "{before}");
        }
        assert!(!ours("galera-for-dromon.so", &library("4.24(r4a5b)", 9)));
        assert!(ours("libdromon.so", b"no library"));
        assert!(!ours("libgalera_smm.so", b""));
        assert!(is_ours(Path::new("/nowhere/libdromon.so")));
        let provider = include_str!("../../provider/src/lib.rs");
        let version = std::str::from_utf8(OWN_VERSION).expect("text");
        assert!(provider.contains(version), "the provider's own");

        // The file it was made with may be gone.
        let mut record = sample();
        record.provider_copy = dir.path().join("copy.so");
        assert!(!record.is_dromon());
        let bytes = library("4.24(rdromon-0.1.0)", 9);
        fs::write(&record.provider_copy, bytes).expect("written");
        assert!(record.is_dromon());
    }

    #[test]
    fn a_record_survives_saving_and_loading() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut record = sample();
        record.dir = dir.path().to_path_buf();
        record.nodes[1].process = Some(ProcessId { pid: 7, started: 9 });
        record.save().expect("saved");
        let again = ClusterRecord::load(dir.path()).expect("loaded");
        assert_eq!(again.nodes[1].process, record.nodes[1].process);
        assert_eq!(again.nodes[1].ports, record.nodes[1].ports);
        assert_eq!(again.password, "secret");
    }

    #[test]
    fn without_room_only_a_new_process_must_be_recorded() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut record = sample();
        record.dir = dir.path().to_path_buf();
        let process = Some(ProcessId { pid: 7, started: 9 });
        record.nodes[1].process = process;
        record.save().expect("saved");
        let fresh = dir.path().join("cluster.json.new");
        std::os::unix::fs::symlink("/dev/full", &fresh).expect("linked");
        let store = Store::new(record);
        let full = store.set_process(0, process).expect_err("it must be found");
        assert!(full.is_full(), "{full}");
        store.set_process(1, None).expect("it is gone all the same");
        fs::remove_file(&fresh).expect("there");
        fs::create_dir(&fresh).expect("made");
        store.set_process(1, None).expect("nothing to write");
        let again = ClusterRecord::load(dir.path()).expect("loaded");
        assert_eq!(again.nodes[1].process, process);
    }

    #[test]
    fn a_record_of_before_is_of_a_whole_cluster() {
        let mut value = serde_json::to_value(sample()).expect("plain data");
        value
            .as_object_mut()
            .expect("an object")
            .remove("complete")
            .expect("it is written");
        let record: ClusterRecord = serde_json::from_value(value).expect("read");
        assert!(record.complete);
    }

    #[test]
    fn missing_broken_and_foreign_records_are_told_apart() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        assert!(matches!(
            ClusterRecord::load(dir.path()),
            Err(SandboxError::NoCluster { .. })
        ));
        fs::write(dir.path().join("cluster.json"), "{").expect("written");
        assert!(matches!(
            ClusterRecord::load(dir.path()),
            Err(SandboxError::BadRecord { .. })
        ));
        let mut record = sample();
        record.dir = dir.path().to_path_buf();
        record.shape = SHAPE + 1;
        record.save().expect("saved");
        assert!(matches!(
            ClusterRecord::load(dir.path()),
            Err(SandboxError::BadRecord { .. })
        ));
    }

    /// As a power cut may have left it.
    #[test]
    fn without_a_record_the_data_is_not_given_up() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::write(dir.path().join("cluster.json"), "").expect("written");
        let error = ClusterRecord::load(dir.path()).expect_err("nothing is in it");
        let said = error.to_string();
        let here = dir.path().display();
        for words in [
            &format!("{here}/cluster.json cannot be read"),
            "Nothing was started or removed",
            &format!("in {here}/db*/data: keep the directory"),
            &format!("`dromon up --dir {here}`"),
            "password that its db1/client.cnf has",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }

    #[test]
    fn what_others_could_have_written_is_not_believed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut record = sample();
        record.dir = dir.path().to_path_buf();
        record.save().expect("saved");
        let path = dir.path().join("cluster.json");
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
        };
        let refused = |what: &Path| match ClusterRecord::load(dir.path()) {
            Err(SandboxError::NotOurs { path, .. }) => assert_eq!(path, what),
            other => panic!("{:?}", other.map(|r| r.id)),
        };
        ClusterRecord::load(dir.path()).expect("its own");
        mode(&path, 0o606);
        refused(&path);
        mode(&path, 0o600);
        if rustix::process::geteuid().is_root() {
            chown(&path, Some(65_534), None).expect("given away");
            refused(&path);
            let error = ClusterRecord::load(dir.path()).expect_err("given away");
            let how = "runuser -u nobody -- dromon";
            let named = name_of(65_534).is_none_or(|name| name != "nobody");
            assert!(named || error.to_string().contains(how), "{error}");
            chown(&path, Some(0), None).expect("taken back");
        }
        // In a directory of others its own record is shown and stopped, and nothing is written.
        mode(dir.path(), 0o777);
        ClusterRecord::load(dir.path()).expect("its own again");
        let closed = refuse_others(dir.path()).expect_err("everybody may write there");
        assert!(closed.to_string().contains("chmod o-w"), "{closed}");
        mode(dir.path(), 0o755);
        refuse_others(dir.path()).expect("its own");
        if rustix::process::geteuid().is_root() {
            chown(dir.path(), Some(65_534), None).expect("given away");
            ClusterRecord::load(dir.path()).expect("its own");
            assert!(refuse_others(dir.path()).is_err());
        }
    }

    #[test]
    fn only_one_holder_of_the_lock() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let first = DirLock::take(dir.path()).expect("free");
        assert!(matches!(
            DirLock::take(dir.path()),
            Err(SandboxError::Busy { .. })
        ));
        drop(first);
        DirLock::take(dir.path()).expect("free again");
    }
}
