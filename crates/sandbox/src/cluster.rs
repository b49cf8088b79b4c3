//! A whole cluster: create, start, ask, stop, remove.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::config::{ClusterSpec, client_cnf, my_cnf, split_settings, unfit};
use crate::error::{IoContext, Left, Result, SandboxError};
use crate::node::Node;
use crate::ports::{self, is_soon};
use crate::process::{StopReport, who_is_in};
use crate::record::{
    ClusterRecord, DirLock, Hold, NodeRecord, Store, is_ours, random_hex, refuse_others,
};
use crate::secure;
use crate::status::{ClusterStatus, NodeStatus, members_differ};
use crate::template::{SQL_USER, Template, program, server_version};
use crate::who::{ServerUser, first_unreachable};
use crate::witness::{self, Witness};

mod starting;

/// Longest path a Unix socket may have.
const SOCKET_PATH_MAX: usize = 107;
/// After which nodes that name different members are asked again.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// In which order the later nodes join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinPlan {
    /// Each waits until the one before is Synced.
    OneByOne,
    /// All at once.
    Together,
}

/// A local cluster in a directory. All methods take `&self`: tests start, stop
/// and ask nodes from several threads.
#[derive(Debug)]
pub struct Cluster {
    store: Arc<Store>,
    nodes: Vec<Arc<Node>>,
    witness: Option<Arc<Witness>>,
}

impl Cluster {
    /// Prepares directories and settings; starts nothing.
    ///
    /// # Errors
    /// When the directory is taken or closed to the servers, the provider or a
    /// program is missing, or ports are taken.
    pub fn create(spec: &ClusterSpec) -> Result<Self> {
        if spec.nodes == 0 {
            return Err(SandboxError::BadRequest(
                "A cluster needs at least one node".into(),
            ));
        }
        // What the caller got wrong first, what the machine lacks second.
        let (settings, options) = split_settings(&spec.settings)?;
        let provider = fs::canonicalize(&spec.provider)
            .ok()
            .filter(|p| fs::metadata(p).is_ok_and(|m| m.is_file()))
            .ok_or_else(|| SandboxError::ProviderMissing {
                path: spec.provider.clone(),
            })?;
        let dir = std::path::absolute(&spec.dir).at("find the absolute name of", &spec.dir)?;
        if dir
            .join(format!("db{}/mysqld.sock", spec.nodes))
            .as_os_str()
            .len()
            > SOCKET_PATH_MAX
        {
            return Err(SandboxError::DirectoryTooLong { path: dir });
        }
        if let Some(found) = unfit(&dir) {
            return Err(SandboxError::DirectoryUnfit { path: dir, found });
        }
        refuse_used(&dir)?;
        if spec.witness.is_some() && !is_ours(&provider) {
            return Err(SandboxError::BadRequest(format!(
                "A witness works with Dromon's library only, and {} is another one. Leave --witness out; the peer's arbitrator is garbd",
                provider.display()
            )));
        }
        let program_of_witness = match &spec.witness {
            Some(path) => Some(fs::canonicalize(path).at("find the program of the witness", path)?),
            None => None,
        };
        let with_witness = spec.nodes + usize::from(spec.witness.is_some());
        let mut ports = ports::choose(with_witness, spec.port, spec.port_hint)?;
        let port_of_witness = ports.split_off(spec.nodes).first().map(|p| p.group);
        let user = ServerUser::find()?;
        let version = server_version()?;
        if spec.tls {
            program("openssl", "openssl")?;
        }
        for (name, package) in spec.sst_method.programs() {
            program(name, package)?;
        }
        if let Some(blocker) = first_unreachable(&dir)? {
            return Err(SandboxError::DirectoryClosed {
                path: dir,
                blocker,
                user: user.name,
            });
        }
        make_open_dirs(&dir)?;
        refuse_others(&dir)?;
        let _lock = DirLock::take(&dir)?;
        refuse_used(&dir)?; // again, now that nobody else can be creating it
        let template = Template::get(&user, &version, &spec.settings)?;
        let file_name = provider.file_name().unwrap_or("provider.so".as_ref());
        let record = ClusterRecord {
            shape: ClusterRecord::SHAPE,
            complete: false,
            id: random_hex(8)?,
            name: "dromon".into(),
            server: version,
            provider_copy: dir.join("lib").join(file_name),
            provider,
            sst_method: spec.sst_method,
            appliers: spec.appliers,
            tls: spec.tls,
            sst_tls: spec.sst_method.can_encrypt(),
            provider_options: options.unwrap_or_else(|| spec.provider_options.clone()),
            settings,
            user: SQL_USER.into(),
            password: template.password.clone(),
            nodes: ports
                .into_iter()
                .enumerate()
                .map(|(i, ports)| node_record(&dir, i, ports))
                .collect(),
            witness: program_of_witness
                .zip(port_of_witness)
                .map(|(program, port)| witness::record(&dir, &program, port)),
            dir,
        };
        // Recorded before anything lies there, so that what a failure below leaves
        // can be removed.
        record.save()?;
        let lib = record.dir.join("lib");
        make_open_dirs(&lib)?;
        for node in &record.nodes {
            user.create_dir_with(&node.dir, || {
                user.create_dir(&node.dir.join("tmp"))?;
                template.copy_to(&node.data_dir, &user)
            })?;
        }
        if let Some(witness) = &record.witness {
            user.create_dir(&witness.dir)?;
        }
        if record.tls {
            secure::make(&record, &user)?;
        }
        let cluster = Self::assemble(record, &user);
        cluster.write_settings(&user)?;
        cluster.refresh_provider()?;
        let mut record = cluster.store.get();
        record.complete = true;
        record.save()?;
        drop(record);
        Ok(cluster)
    }

    /// Opens the cluster that another process (or this one) created in `dir`.
    ///
    /// # Errors
    /// When there is none, its record cannot be read, or the directory is a copy
    /// of a cluster's, or one that was moved.
    pub fn open(dir: &Path) -> Result<Self> {
        let dir = std::path::absolute(dir).at("find the absolute name of", dir)?;
        Ok(Self::assemble(
            ClusterRecord::load(&dir)?,
            &ServerUser::find()?,
        ))
    }

    fn assemble(record: ClusterRecord, user: &ServerUser) -> Self {
        let count = record.nodes.len();
        let has_witness = record.witness.is_some();
        let store = Arc::new(Store::new(record));
        let witness = has_witness.then(|| Arc::new(Witness::new(Arc::clone(&store), user.clone())));
        let nodes = (0..count)
            .map(|i| Arc::new(Node::new(i, Arc::clone(&store), user.clone())))
            .collect();
        Self {
            store,
            nodes,
            witness,
        }
    }

    /// Keeps other processes from starting, changing or stopping the cluster until the
    /// answer is dropped: for several operations that belong together. The record is
    /// read anew.
    ///
    /// # Errors
    /// When another process is doing such a thing now.
    pub fn hold(&self) -> Result<Hold> {
        self.store.hold().map(Hold)
    }

    /// What is recorded of the cluster.
    #[must_use]
    pub fn record(&self) -> ClusterRecord {
        self.store.get().clone()
    }

    /// The nodes; the first one founds the cluster.
    #[must_use]
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// The witness, if there is one.
    #[must_use]
    pub fn witness(&self) -> Option<&Arc<Witness>> {
        self.witness.as_ref()
    }

    /// Node by position (0 is db1).
    ///
    /// # Panics
    /// When there are fewer nodes.
    #[must_use]
    pub fn node(&self, index: usize) -> &Arc<Node> {
        &self.nodes[index]
    }

    /// Replaces the further settings (see [`ClusterSpec::settings`]) and writes
    /// every `my.cnf` again; running servers see it at their next start.
    ///
    /// # Errors
    /// When another process is at work on the cluster, or a file cannot be written.
    pub fn change_settings(&self, change: impl FnOnce(&mut ClusterRecord)) -> Result<()> {
        let _lock = self.store.lock()?;
        {
            let mut record = self.store.get();
            change(&mut record);
            record.save()?;
        }
        self.write_settings(&ServerUser::find()?)
    }

    /// Makes a new key and certificate for the node at `index`; its server uses
    /// them after `SET GLOBAL wsrep_provider_options='socket.ssl_reload=1'`.
    ///
    /// # Errors
    /// When the cluster is not encrypted, or openssl fails.
    pub fn renew_certificate(&self, index: usize) -> Result<()> {
        let record = self.record();
        if !record.tls {
            return Err(SandboxError::BadRequest(
                "This cluster is not encrypted: it has no certificates".into(),
            ));
        }
        secure::certify(&record, &record.nodes[index].name, &ServerUser::find()?)
    }

    fn write_settings(&self, user: &ServerUser) -> Result<()> {
        let record = self.record();
        refuse_others(&record.dir)?;
        for node in &record.nodes {
            let path = node.dir.join("my.cnf");
            user.write(&path, &my_cnf(&record, node))?;
            let path = node.dir.join("client.cnf");
            user.write(&path, &client_cnf(&record, node))?;
        }
        Ok(())
    }

    /// Copies the provider, and the witness's program, to where user mysql can read
    /// them and where a new build does not change them under a running process.
    fn refresh_provider(&self) -> Result<()> {
        let record = self.record();
        refuse_others(&record.dir)?;
        let (from, to) = (&record.provider, &record.provider_copy);
        if !from.is_file() {
            return Err(SandboxError::ProviderMissing { path: from.clone() });
        }
        replace(from, to, "copy the provider to")?;
        match &record.witness {
            Some(w) => replace(
                &w.program,
                &w.program_copy,
                "copy the program of the witness to",
            ),
            None => Ok(()),
        }
    }

    fn refuse_incomplete(&self) -> Result<()> {
        let record = self.record();
        match record.complete {
            true => Ok(()),
            false => Err(SandboxError::Incomplete { dir: record.dir }),
        }
    }

    /// Which node founds the cluster at this start; none: nobody has to.
    fn founder(&self) -> Result<Option<usize>> {
        let left: Vec<Option<Left>> = self.nodes.iter().map(|n| n.left()).collect();
        let is_safe = |left: &Option<Left>| left.as_ref().is_some_and(|l| l.is_safe);
        let record = self.record();
        // One that stops last, and cleanly, is the only one with the flag. Whichever of two
        // were taken, the other's half would be overwritten.
        if left.iter().filter(|l| is_safe(l)).count() > 1 {
            return Err(SandboxError::TwoHalves {
                dir: record.dir,
                nodes: left.into_iter().flatten().collect(),
            });
        }
        if let Some(safe) = left.iter().position(is_safe) {
            return Ok(Some(safe));
        }
        if left.iter().all(Option::is_none) {
            return Ok(Some(0));
        }
        if record.is_dromon() {
            Ok(None)
        } else {
            Err(SandboxError::NoneSafeToBootstrap { dir: record.dir })
        }
    }

    /// Number of nodes whose process is alive, the witness included.
    #[must_use]
    pub fn running(&self) -> usize {
        let witness = self.witness.iter().filter(|w| w.process().is_some());
        self.nodes.iter().filter(|n| n.process().is_some()).count() + witness.count()
    }

    /// Asks all nodes at once; each has `limit` to answer. If they name different
    /// members they are asked again a second later: a change reaches them one by one.
    #[must_use]
    pub fn status(&self, limit: Duration) -> ClusterStatus {
        let mut nodes = self.ask(limit);
        if members_differ(&nodes) {
            thread::sleep(SECOND_LOOK);
            nodes = self.ask(limit);
        }
        ClusterStatus::judge(nodes, self.witness.as_ref().map(|w| w.describe()))
    }

    fn ask(&self, limit: Duration) -> Vec<NodeStatus> {
        let asks: Vec<_> = self
            .nodes
            .iter()
            .map(|node| {
                let node = Arc::clone(node);
                thread::spawn(move || node.describe(limit))
            })
            .collect();
        asks.into_iter()
            .map(|ask| ask.join().expect("describing a node does not panic"))
            .collect()
    }

    /// Stops the witness, then all nodes, the founder last, so that its state
    /// file says that it may found the cluster again. Each has `limit` before
    /// it is killed.
    ///
    /// # Errors
    /// When a process cannot be signalled, or does not end: the others are stopped all the same.
    pub fn stop_all(&self, limit: Duration) -> Result<Vec<(String, StopReport)>> {
        let named = |(name, report): (String, Result<StopReport>)| Ok((name, report?));
        self.stop_each(limit)?.into_iter().map(named).collect()
    }

    /// The same; what could not be done at one hides nothing of the others.
    ///
    /// # Errors
    /// When another process is at work on the cluster.
    pub fn stop_each(&self, limit: Duration) -> Result<Vec<(String, Result<StopReport>)>> {
        let _lock = self.store.lock()?;
        let witness = self.witness.as_ref();
        let witness = witness.map(|w| (witness::NAME.to_string(), w.stop(limit)));
        // One that cannot be stopped keeps no other one running.
        let nodes = self.nodes.iter().rev();
        let mut all: Vec<_> = nodes.map(|n| (n.name(), n.stop(limit))).collect();
        all.reverse();
        all.extend(witness);
        Ok(all)
    }

    /// Kills every running node, and the witness: first the signals, then the
    /// waiting. Returns the time between the first node's signal and the last's.
    ///
    /// # Errors
    /// When a process cannot be signalled.
    pub fn kill_all(&self) -> Result<Duration> {
        let running: Vec<_> = self
            .nodes
            .iter()
            .filter(|n| n.process().is_some())
            .collect();
        let begin = Instant::now();
        let struck: Vec<_> = running.iter().map(|n| n.strike()).collect();
        let took = begin.elapsed();
        let bury = |(node, process): (&&Arc<Node>, Result<_>)| node.bury(process?);
        let mut buried: Vec<Result<()>> = running.iter().zip(struck).map(bury).collect();
        if let Some(witness) = self.witness.iter().find(|w| w.process().is_some()) {
            buried.push(witness.kill().map(|_| ()));
        }
        buried.into_iter().collect::<Result<()>>()?;
        Ok(took)
    }

    /// Removes the stopped cluster's directory.
    ///
    /// # Errors
    /// When a node still runs, another process is at work on the cluster, or files
    /// cannot be removed.
    pub fn purge(self) -> Result<()> {
        let _lock = self.store.lock()?;
        for node in &self.nodes {
            if let Some(process) = node.process() {
                return Err(SandboxError::StillRunning {
                    node: node.name(),
                    pid: process.pid,
                });
            }
        }
        if let Some(process) = self.witness.as_ref().and_then(|w| w.process()) {
            return Err(SandboxError::StillRunning {
                node: witness::NAME.into(),
                pid: process.pid,
            });
        }
        // Started by hand, say.
        for dir in self.nodes.iter().map(|node| node.record().data_dir) {
            let mut user = None;
            // What a server started may just be ending, and what is just being started has its parent's files.
            is_soon(|| {
                user = who_is_in(&dir);
                user.is_none()
            });
            if let Some(pid) = user {
                return Err(SandboxError::InUse { pid, dir });
            }
        }
        let dir = self.record().dir;
        let kept = ["cluster.json", "cluster.lock"].map(|name| dir.join(name));
        // Nobody starts what is left if this ends amid, and the record goes last, so
        // that it can be repeated.
        {
            let mut record = self.store.get();
            record.complete = false;
            match record.save() {
                // There are only copies in lib, which each start makes anew.
                Err(error) if error.is_full() => {
                    let lib = dir.join("lib");
                    fs::remove_dir_all(&lib).at("remove", &lib)?;
                    // Of it as much was written as there was room for.
                    let _ = fs::remove_file(dir.join("cluster.json.new"));
                    record.save()?;
                }
                saved => saved?,
            }
        }
        // Only what we made: the directory itself goes when nothing else is in it.
        for name in fs::read_dir(&dir).at("read the directory", &dir)? {
            let path = name.at("read the directory", &dir)?.path();
            if !ours(&path) || kept.contains(&path) {
                continue;
            }
            if path.is_dir() {
                fs::remove_dir_all(&path).at("remove", &path)?;
            } else {
                fs::remove_file(&path).at("remove", &path)?;
            }
        }
        for path in kept.iter().filter(|path| path.exists()) {
            fs::remove_file(path).at("remove", path)?;
        }
        match fs::remove_dir(&dir) {
            Err(e) if e.kind() == std::io::ErrorKind::DirectoryNotEmpty => Ok(()),
            other => other.at("remove", &dir),
        }
    }
}

/// Makes a directory, and those above it that are missing, so that the servers' user can enter them,
/// whatever the umask says.
fn make_open_dirs(dir: &Path) -> Result<()> {
    if dir.exists() {
        return Ok(());
    }
    if let Some(above) = dir.parent() {
        make_open_dirs(above)?;
    }
    match fs::create_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => return Ok(()),
        made => made.at("create the directory", dir)?,
    }
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(dir, mode).at("set the mode of", dir)
}

/// Puts a copy of `from` in the place of `to`; whoever has that open keeps the old one.
fn replace(from: &Path, to: &Path, what: &'static str) -> Result<()> {
    let fresh = to.with_extension("new");
    fs::copy(from, &fresh).at(what, &fresh)?;
    // The servers' user loads or runs it, whatever the mode of what was built.
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&fresh, mode).at("set the mode of", &fresh)?;
    fs::rename(&fresh, to).at("replace", to)
}

fn node_record(dir: &Path, index: usize, ports: ports::Ports) -> NodeRecord {
    let name = format!("db{}", index + 1);
    let dir = dir.join(&name);
    NodeRecord {
        data_dir: dir.join("data"),
        socket: dir.join("mysqld.sock"),
        log: dir.join("error.log"),
        ports,
        network: None,
        process: None,
        name,
        dir,
    }
}

/// True for the names that a cluster puts at the top of its directory.
fn ours(path: &Path) -> bool {
    let name = path
        .file_name()
        .map(|n| n.to_string_lossy())
        .unwrap_or_default();
    let node = name
        .strip_prefix("db")
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    node || [
        "lib",
        "tls",
        witness::NAME,
        "cluster.json",
        "cluster.json.new",
        "cluster.lock",
    ]
    .contains(&name.as_ref())
}

/// Refuses a directory that holds a cluster or somebody else's files.
fn refuse_used(dir: &Path) -> Result<()> {
    match Cluster::open(dir) {
        Ok(found) => {
            let (nodes, running) = (found.nodes.len(), found.running());
            Err(SandboxError::AlreadyThere {
                dir: dir.to_path_buf(),
                nodes,
                running,
            })
        }
        Err(SandboxError::NoCluster { .. }) => {
            let Ok(entries) = fs::read_dir(dir) else {
                return Ok(());
            };
            match entries.flatten().find(|e| e.file_name() != "cluster.lock") {
                None => Ok(()),
                Some(entry) => Err(SandboxError::ForeignDirectory {
                    dir: dir.to_path_buf(),
                    example: entry.file_name().to_string_lossy().into_owned(),
                }),
            }
        }
        Err(other) => Err(other),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn only_our_names_are_removed() {
        for name in ["db1", "db12", "lib", "tls", "cluster.json", "cluster.lock"] {
            assert!(ours(Path::new(name)), "{name}");
        }
        for name in ["db", "dbx", "data", "db1.bak", "src"] {
            assert!(!ours(Path::new(name)), "{name}");
        }
    }

    /// A recorded cluster of two nodes in `dir`, never started.
    pub(crate) fn recorded(dir: &Path) -> Cluster {
        let mut record = crate::record::sample();
        record.dir = dir.to_path_buf();
        for node in &mut record.nodes {
            node.dir = dir.join(&node.name);
            node.data_dir = node.dir.join("data");
            fs::create_dir_all(&node.data_dir).expect("made");
        }
        record.save().expect("saved");
        Cluster::open(dir).expect("it is there")
    }

    #[test]
    fn of_two_halves_none_is_founded() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let cluster = recorded(dir.path());
        let ports = ports::choose(2, None, None).expect("free ones");
        let free = |record: &mut ClusterRecord| {
            let nodes = record.nodes.iter_mut().zip(&ports);
            nodes.for_each(|(node, ports)| node.ports = *ports);
        };
        cluster.change_settings(free).expect("recorded");
        let state = |node: usize, seqno: i64, safe: u8| {
            let text = format!(
                "# GALERA saved state\nversion: 2.1\nuuid:    u-{node}\nseqno:   {seqno}\nsafe_to_bootstrap: {safe}\n"
            );
            let path = cluster.node(node).record().data_dir.join("grastate.dat");
            fs::write(path, text).expect("written");
        };
        assert_eq!(cluster.founder().expect("new"), Some(0));
        state(0, 11, 0);
        state(1, 14, 1);
        assert_eq!(cluster.founder().expect("one is flagged"), Some(1));
        state(0, 11, 1);
        let error = cluster
            .start_all(JoinPlan::Together, Duration::from_secs(1))
            .expect_err("two are flagged");
        assert!(matches!(error, SandboxError::TwoHalves { .. }), "{error}");
        let text = error.to_string();
        for words in [
            "Nothing was started",
            "db1: safe_to_bootstrap: 1, seqno 11, history u-0",
            "db2: safe_to_bootstrap: 1, seqno 14, history u-1",
            "safe_to_bootstrap: 0 into the grastate.dat",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        // Beside those that run a flagged one is the other half.
        state(1, 14, 0);
        let error = cluster
            .start_missing(Duration::from_secs(1))
            .expect_err("one is flagged");
        assert!(matches!(error, SandboxError::OtherHalf { .. }), "{error}");
        assert!(
            error.to_string().contains("db1 says safe_to_bootstrap: 1"),
            "{error}"
        );
        assert_eq!(cluster.running(), 0);
        assert!(cluster.nodes().iter().all(|n| !n.record().log.exists()));
    }

    /// By the engines' positions nobody may found: acknowledged is what a majority of our logs has.
    #[test]
    fn nobody_founds_by_the_engines_positions_with_our_library_under_another_name() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let cluster = recorded(dir.path());
        for node in cluster.nodes() {
            let file = node.record().data_dir.join("grastate.dat");
            fs::write(file, "uuid: u\nseqno: -1\nsafe_to_bootstrap: 0\n").expect("written");
        }
        let provider = dir.path().join("provider.so");
        let change = |record: &mut ClusterRecord| record.provider = provider.clone();
        cluster.change_settings(change).expect("recorded");
        fs::write(&provider, b"\x7fELF 4.24(r4a5b)").expect("written");
        let peer = cluster.founder().expect_err("the peer needs one");
        assert!(matches!(peer, SandboxError::NoneSafeToBootstrap { .. }));
        fs::write(&provider, b"\x7fELF 4.24(rdromon-0.1.0)").expect("written");
        assert_eq!(cluster.founder().expect("they find out"), None);
    }

    #[test]
    fn what_was_not_made_whole_is_not_started_and_can_be_removed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let cluster = recorded(dir.path());
        cluster
            .change_settings(|record| record.complete = false)
            .expect("written");
        let error = cluster
            .start_all(JoinPlan::Together, Duration::from_secs(1))
            .expect_err("it is not whole");
        assert!(error.to_string().contains("down --purge"), "{error}");
        fs::write(dir.path().join("mine"), "").expect("written");
        cluster.purge().expect("removed");
        let left = fs::read_dir(dir.path()).expect("it stays").count();
        assert_eq!(left, 1, "only what is not ours");
    }

    /// Nothing of it can be changed on a full disk; so it must be possible to remove it.
    #[test]
    fn without_room_it_is_stopped_and_removed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let cluster = recorded(dir.path());
        fs::create_dir(dir.path().join("lib")).expect("made");
        fs::write(dir.path().join("lib/p.so"), "a copy").expect("written");
        let gone = crate::process::ProcessId {
            pid: 1,
            started: u64::MAX,
        };
        let ran = |record: &mut ClusterRecord| record.nodes[0].process = Some(gone);
        cluster.change_settings(ran).expect("recorded");
        let fresh = dir.path().join("cluster.json.new");
        // Another failure is that of its node alone.
        fs::create_dir(&fresh).expect("made");
        let all = cluster.stop_each(Duration::from_secs(1)).expect("tried");
        assert!(
            matches!(&all[0], (name, Err(_)) if name == "db1"),
            "{all:?}"
        );
        let was_down = |report: &Result<StopReport>| matches!(report, Ok(StopReport::WasDown));
        assert!(was_down(&all[1].1), "{all:?}");
        fs::remove_dir(&fresh).expect("there");

        std::os::unix::fs::symlink("/dev/full", &fresh).expect("linked");
        let all = cluster.stop_each(Duration::from_secs(1)).expect("tried");
        assert!(all.iter().all(|(_, report)| was_down(report)), "{all:?}");
        cluster.purge().expect("removed");
        assert!(!dir.path().exists());
    }

    #[test]
    fn nothing_is_changed_or_removed_while_another_command_works() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (one, two) = (
            recorded(dir.path()),
            Cluster::open(dir.path()).expect("there"),
        );
        let read = || fs::read(dir.path().join("cluster.json")).expect("it is there");
        let before = read();
        let hold = one.hold().expect("free");
        let busy = |result: Result<()>| matches!(result, Err(SandboxError::Busy { .. }));
        assert!(busy(two.change_settings(|r| r.appliers = 99)));
        assert!(busy(Cluster::open(dir.path()).expect("there").purge()));
        assert_eq!(read(), before);
        assert!(!dir.path().join("db1/my.cnf").exists() && dir.path().join("db1/data").exists());
        // What it belongs to goes on, and what it wrote is seen afterwards.
        one.change_settings(|r| r.appliers = 5).expect("held");
        drop(hold);
        two.change_settings(|r| r.tls = false).expect("free again");
        assert_eq!(
            Cluster::open(dir.path()).expect("there").record().appliers,
            5
        );
        let text = fs::read_to_string(dir.path().join("db1/my.cnf")).expect("written");
        assert!(text.starts_with("# Written by dromon"), "{text}");

        // Removed and made anew: not the same cluster.
        one.purge().expect("removed");
        drop(recorded(dir.path()));
        let other = Cluster::open(dir.path()).expect("there");
        other
            .change_settings(|r| r.id = "new".into())
            .expect("written");
        let error = two.purge().expect_err("another one").to_string();
        assert!(error.contains("another one made meanwhile"), "{error}");
        assert!(dir.path().join("db1/data").exists());
    }

    #[test]
    fn nothing_is_removed_under_a_server_that_somebody_else_started() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let cluster = recorded(dir.path());
        let data = dir.path().join("db1/data");
        let open = fs::File::create(data.join("ibdata1")).expect("made");
        let error = cluster.purge().expect_err("it is in use").to_string();
        let pid = std::process::id().to_string();
        assert!(
            error.contains(&pid) && error.contains("db1/data"),
            "{error}"
        );
        assert!(data.join("ibdata1").exists());
        drop(open);
        let again = Cluster::open(dir.path()).expect("there");
        again.purge().expect("removed");
        assert!(!data.exists());
    }

    #[test]
    fn a_copy_is_refused_and_the_original_left_alone() {
        let (dir, copy) = (tempfile::tempdir(), tempfile::tempdir());
        let (dir, copy) = (dir.expect("made"), copy.expect("made"));
        drop(recorded(dir.path()));
        let record = dir.path().join("cluster.json");
        fs::copy(&record, copy.path().join("cluster.json")).expect("copied");
        for error in [
            Cluster::open(copy.path()).expect_err("a copy").to_string(),
            refuse_used(copy.path()).expect_err("a copy").to_string(),
        ] {
            for path in [dir.path(), copy.path()] {
                assert!(error.contains(&*path.to_string_lossy()), "{error}");
            }
        }
        // By another name of the same directory it is no copy.
        let link = copy.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).expect("linked");
        Cluster::open(&link)
            .expect("the same")
            .purge()
            .expect("removed");
        assert!(!record.exists() && copy.path().join("cluster.json").exists());

        // The original is gone: it may have been moved here.
        let error = Cluster::open(copy.path()).expect_err("moved").to_string();
        assert!(error.contains("move it back"), "{error}");
    }

    #[test]
    fn a_directory_that_a_my_cnf_would_misread_is_refused() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let provider = home.path().join("libdromon.so");
        fs::write(&provider, "").expect("written");
        for name in ["a#b", r"a\tb", "it's", "a\"b", "a\nb", "a b"] {
            let spec = ClusterSpec::new(&home.path().join(name), &provider);
            let error = Cluster::create(&spec).expect_err(name);
            assert!(
                matches!(error, SandboxError::DirectoryUnfit { .. }),
                "{error}"
            );
        }
        let left = fs::read_dir(home.path()).expect("readable").count();
        assert_eq!(left, 1, "nothing was made");
    }

    #[test]
    fn a_directory_with_other_files_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        assert!(refuse_used(&dir.path().join("new")).is_ok());
        assert!(refuse_used(dir.path()).is_ok());
        fs::write(dir.path().join("thesis.txt"), "x").expect("written");
        let error = refuse_used(dir.path()).expect_err("it is used").to_string();
        assert!(error.contains("thesis.txt"), "{error}");
    }
}
