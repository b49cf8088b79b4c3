//! Starting the nodes of a cluster, and the witness: who is waited for, and who has ended meanwhile.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Cluster, JoinPlan};
use crate::error::{During, Result, SandboxError};
use crate::node::{Node, Start};

/// How often it is looked whether all live.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What this call has started.
#[derive(Debug, Default)]
struct Started {
    nodes: Vec<usize>,
    witness: bool,
}

impl Cluster {
    /// Starts all nodes and waits until each is Synced; returns when each was,
    /// counted from the call.
    ///
    /// A new cluster is founded by the first node. A stopped one is founded
    /// again by the node that left last; if no state file names one, all nodes
    /// start as members and find out among themselves.
    ///
    /// # Errors
    /// When two nodes say that they left last (nothing is started then), a node
    /// runs already, a process ends, or a node is not Synced within `limit`.
    pub fn start_all(&self, plan: JoinPlan, limit: Duration) -> Result<Vec<Duration>> {
        let _lock = self.store.lock()?;
        self.refuse_incomplete()?;
        let running = self.running();
        if running > 0 {
            return Err(SandboxError::AlreadyThere {
                dir: self.record().dir,
                nodes: self.nodes.len(),
                running,
            });
        }
        let founder = self.founder()?;
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        self.check_ports(&all)?;
        self.refresh_provider()?;
        let begin = Instant::now();
        let mut took = vec![Duration::ZERO; self.nodes.len()];
        let mut started = Started::default();
        if let Some(founder) = founder {
            self.start_and_wait(
                &[founder],
                Start::NewCluster,
                &mut started,
                limit,
                begin,
                &mut took,
            )?;
        }
        self.start_witness(&mut started)?;
        let others: Vec<usize> = all.into_iter().filter(|i| Some(*i) != founder).collect();
        let at_once = match plan {
            JoinPlan::OneByOne if founder.is_some() => 1,
            _ => others.len().max(1),
        };
        for nodes in others.chunks(at_once) {
            self.start_and_wait(nodes, Start::Join, &mut started, limit, begin, &mut took)?;
        }
        self.wait_whole(&started, limit)?;
        Ok(took)
    }

    /// Starts the nodes that do not run, beside those that do, and waits until
    /// all are members; returns when each was Synced, counted from the call.
    pub fn start_missing(&self, limit: Duration) -> Result<Vec<Duration>> {
        let _lock = self.store.lock()?;
        self.refuse_incomplete()?;
        let missing: Vec<usize> = (0..self.nodes.len())
            .filter(|i| self.nodes[*i].process().is_none())
            .collect();
        self.check_ports(&missing)?;
        let flagged = missing.iter().filter_map(|i| self.nodes[*i].left());
        if let Some(node) = flagged.into_iter().find(|left| left.is_safe) {
            return Err(SandboxError::OtherHalf {
                dir: self.record().dir,
                node: Box::new(node),
            });
        }
        let begin = Instant::now();
        let mut took = vec![Duration::ZERO; self.nodes.len()];
        let mut started = Started::default();
        self.start_witness(&mut started)?;
        let how = Start::Join;
        self.start_and_wait(&missing, how, &mut started, limit, begin, &mut took)?;
        self.wait_whole(&started, limit)?;
        Ok(took)
    }

    /// Fails if a port of these nodes, which do not run, or of a witness that does not, is taken by others.
    fn check_ports(&self, nodes: &[usize]) -> Result<()> {
        for &i in nodes {
            self.nodes[i].check_ports()?;
        }
        match &self.witness {
            Some(witness) if witness.process().is_none() => witness.check_port(),
            _ => Ok(()),
        }
    }

    /// Starts the witness, if there is one that does not run.
    fn start_witness(&self, started: &mut Started) -> Result<()> {
        match &self.witness {
            Some(witness) if witness.process().is_none() => {
                witness.start(&[])?;
                started.witness = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Starts these nodes at once and waits until each is Synced.
    fn start_and_wait(
        &self,
        nodes: &[usize],
        how: Start,
        started: &mut Started,
        limit: Duration,
        begin: Instant,
        took: &mut [Duration],
    ) -> Result<()> {
        for &i in nodes {
            self.nodes[i].start(how, &[])?;
            started.nodes.push(i);
        }
        let synced = move |node: &Node| node.wait_usable(limit).map(|_| begin.elapsed());
        for (i, time) in self.wait(nodes, started, synced)? {
            took[i] = time;
        }
        Ok(())
    }

    /// Who was there saw the others come; it must see all of them now.
    fn wait_whole(&self, started: &Started, limit: Duration) -> Result<()> {
        let members = self.nodes.len() + usize::from(self.witness.is_some());
        let size = i64::try_from(members).unwrap_or(i64::MAX);
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        let whole = move |node: &Node| {
            node.wait_for("a member of the whole cluster", limit, |s| {
                s.is_usable() && s.size() == size
            })
        };
        self.wait(&all, started, whole).map(drop)
    }

    /// Waits for each of these nodes. The first failure counts, or the first process of those started
    /// that has ended, also of a node that is not waited for: what the others wait for in vain.
    fn wait(
        &self,
        nodes: &[usize],
        started: &Started,
        wait: impl Fn(&Node) -> Result<Duration> + Copy + Send + 'static,
    ) -> Result<Vec<(usize, Duration)>> {
        let (sender, receiver) = mpsc::channel();
        for &i in nodes {
            let (node, sender) = (Arc::clone(&self.nodes[i]), sender.clone());
            thread::spawn(move || {
                let _ = sender.send((i, wait(&node))); // who waits may have given up
            });
        }
        drop(sender);
        let mut all = Vec::new();
        while all.len() < nodes.len() {
            match receiver.recv_timeout(LOOK_EVERY) {
                Ok((i, Ok(time))) => all.push((i, time)),
                Ok((_, Err(error))) => {
                    // Time is up because of it, too.
                    self.refuse_ended(started)?;
                    return Err(error);
                }
                Err(RecvTimeoutError::Timeout) => self.refuse_ended(started)?,
                Err(RecvTimeoutError::Disconnected) => {
                    unreachable!("waiting for a node does not panic")
                }
            }
        }
        Ok(all)
    }

    /// Fails if one of these processes has ended.
    fn refuse_ended(&self, started: &Started) -> Result<()> {
        if let Some(witness) = self.witness.as_ref().filter(|_| started.witness) {
            witness.refuse_ended()?;
        }
        for &i in &started.nodes {
            self.nodes[i].fail_if_ended(During::Becoming("Synced"), true)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::tests::recorded;
    use crate::node::tests::shell;
    use std::fs;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::{Command, Stdio};

    /// Far longer than the tests take: nobody waits for it.
    const LIMIT: Duration = Duration::from_secs(600);

    /// A cluster of two nodes with a witness that runs `script`.
    fn with_witness(dir: &Path, script: &str) -> Cluster {
        let program = dir.join("stub");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("written");
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&program, open.clone()).expect("it runs");
        fs::set_permissions(dir, open).expect("the servers may enter");
        let cluster = recorded(dir);
        let ports = crate::ports::choose(3, None, None).expect("free ones");
        cluster
            .change_settings(|record| {
                let mut witness = crate::witness::record(dir, &program, ports[2].group);
                witness.program_copy = program.clone();
                record.witness = Some(witness);
                // Its processes are told from those of other tests by it.
                record.id = crate::record::random_hex(8).expect("random");
                for (node, ports) in record.nodes.iter_mut().zip(&ports) {
                    node.ports = *ports;
                    node.log = node.dir.join("error.log");
                }
            })
            .expect("recorded");
        fs::create_dir(dir.join("witness")).expect("made");
        Cluster::open(dir).expect("it is there")
    }

    #[test]
    fn the_port_of_the_witness_is_looked_at_too() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let cluster = with_witness(dir.path(), "sleep 600");
        let port = cluster.record().witness.expect("recorded").port;
        let _taken = crate::ports::listen(port);
        for refused in [
            cluster.start_all(JoinPlan::Together, LIMIT),
            cluster.start_missing(LIMIT),
        ] {
            let error = refused.expect_err("it is taken");
            assert!(matches!(error, SandboxError::PortTaken { .. }), "{error}");
            let text = error.to_string();
            let words = ["witness needs port", "was made keeps its ports"];
            assert!(words.iter().all(|w| text.contains(w)), "{text}");
        }
    }

    /// As socat of a joiner's script does whose server was killed.
    #[test]
    fn who_was_left_behind_with_a_port_is_killed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let cluster = with_witness(dir.path(), "sleep 600");
        let port = cluster.node(1).ports().sst;
        let listener = crate::ports::listen(port);
        let (name, value) = cluster.record().marker(1);
        let mut command = Command::new("sleep");
        command.arg("600").env(name, value);
        let mut child = command
            .stdin(OwnedFd::from(listener))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it runs");
        // The port is the child's alone.
        drop(command);
        let refused = crate::ports::check_port(port, "db2", "");
        assert!(refused.is_err(), "it listens");
        thread::spawn(move || child.wait());
        cluster.check_ports(&[0, 1]).expect("it was its own");
        // Of others nobody is killed.
        let _taken = crate::ports::listen(port);
        let error = cluster.check_ports(&[0, 1]).expect_err("it is taken");
        assert!(matches!(error, SandboxError::PortTaken { .. }), "{error}");
    }

    #[test]
    fn a_witness_that_ends_is_named_at_once() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let cluster = with_witness(dir.path(), "echo out of luck; exit 1");
        shell(cluster.node(0), "while :; do sleep 0.05; done");
        let mut started = Started {
            nodes: vec![0],
            witness: false,
        };
        cluster.start_witness(&mut started).expect("it ran");
        let begin = Instant::now();
        let wait = |node: &Node| node.wait_usable(LIMIT);
        let error = cluster.wait(&[0], &started, wait).expect_err("it ended");
        assert!(begin.elapsed() < LIMIT / 2);
        let text = error.to_string();
        assert!(
            text.contains("witness ended")
                && text.contains("exit code 1")
                && text.contains("out of luck"),
            "{text}"
        );
        cluster.kill_all().expect("killed");
    }

    #[test]
    fn the_node_that_ended_is_named_and_not_the_one_that_waits_for_it() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let cluster = with_witness(dir.path(), "sleep 600");
        shell(cluster.node(0), "while :; do sleep 0.05; done");
        shell(cluster.node(1), "echo no disk; exit 7");
        let started = Started {
            nodes: vec![0, 1],
            witness: false,
        };
        let wait = |node: &Node| node.wait_usable(LIMIT);
        // Also when it is not waited for any more: it was Synced before.
        for nodes in [&[0, 1][..], &[0]] {
            let begin = Instant::now();
            let error = cluster.wait(nodes, &started, wait).expect_err("it ended");
            assert!(begin.elapsed() < LIMIT / 2);
            let text = error.to_string();
            assert!(
                text.contains("Node db2 ended") && text.contains("exit code 7"),
                "{text}"
            );
        }
        cluster.kill_all().expect("killed");
    }
}
