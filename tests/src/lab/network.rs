//! A network for each node, and a switch between them that can lose packets.
//!
//! ```text
//!   namespace of db1          namespace of the switch        namespace of db2
//!   eth0 10.77.0.1  ───veth─── port1 ══ bridge ══ port2 ───veth───  10.77.0.2 eth0
//! ```
//!
//! Each node has a fixed table of the others' hardware addresses. To cut the way
//! from one to another, its entry is set to an address that nobody has: packets
//! leave and get lost, in this direction alone, and nobody is told.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_sandbox::{Cluster, NodeNetwork};

use super::{required, run};

/// Nobody has it: locally administered, and no node's.
const NOBODY: &str = "02:77:00:00:ff:ff";

/// A namespace that exists as long as this process holds its pipe.
pub(super) struct Namespace(Child);

impl Namespace {
    pub(super) fn new() -> anyhow::Result<Self> {
        // cat ends when our end of its input closes, also when we are killed.
        let child = Command::new("unshare")
            .args(["--net", "--", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .context("running unshare")?;
        let own = fs::read_link("/proc/self/ns/net")?;
        let namespace = Self(child);
        let end = Instant::now() + Duration::from_secs(5);
        while fs::read_link(namespace.path()).map_or(true, |theirs| theirs == own) {
            ensure!(
                Instant::now() < end,
                "a network namespace could not be made (CAP_SYS_ADMIN)"
            );
            thread::sleep(Duration::from_millis(5));
        }
        Ok(namespace)
    }

    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(super) fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    /// `ip -batch` in the namespace.
    pub(super) fn ip(&self, lines: &str) -> anyhow::Result<()> {
        let net = format!("--net={}", self.path());
        run("nsenter", &[&net, "--", "ip", "-batch", "-"], lines)
            .with_context(|| format!("setting up a network: {lines}"))
            .map(drop)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait(); // cat has nothing else to do than to end
    }
}

/// The networks of a cluster's nodes.
pub struct Network {
    nodes: Vec<Namespace>,
    _switch: Namespace,
}

impl Network {
    /// Gives each node of the cluster, which must not have been started yet, a
    /// network of its own.
    pub fn give(cluster: &Cluster) -> anyhow::Result<Self> {
        required("A cut network")?;
        let switch = Namespace::new()?;
        let nodes = (0..cluster.nodes().len())
            .map(|_| Namespace::new())
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut ports = String::from("link add br0 type bridge\nlink set br0 up\n");
        for (i, node) in nodes.iter().enumerate() {
            ports += &format!(
                "link add port{i} type veth peer name eth0 netns {}\nlink set port{i} master br0\nlink set port{i} up\n",
                node.0.id()
            );
        }
        switch.ip(&ports)?;
        let network = Self {
            nodes,
            _switch: switch,
        };
        for (i, node) in network.nodes.iter().enumerate() {
            node.ip(&format!(
                "link set lo up\nlink set eth0 address {}\naddr add {}/24 dev eth0\nlink set eth0 up\n",
                hardware(i),
                address(i)
            ))?;
        }
        network.heal()?;
        cluster.change_settings(|record| {
            for (i, node) in record.nodes.iter_mut().enumerate() {
                node.network = Some(NodeNetwork {
                    address: address(i),
                    namespace: network.nodes[i].path().into(),
                });
            }
        })?;
        Ok(network)
    }

    /// Packets from one node to another get lost.
    pub fn cut_way(&self, from: usize, to: usize) -> anyhow::Result<()> {
        self.neighbour(from, to, NOBODY)
    }

    /// Nothing passes between this node and all others.
    pub fn cut_off(&self, node: usize) -> anyhow::Result<()> {
        for other in (0..self.nodes.len()).filter(|o| *o != node) {
            self.cut_way(node, other)?;
            self.cut_way(other, node)?;
        }
        Ok(())
    }

    /// Everything passes again.
    pub fn heal(&self) -> anyhow::Result<()> {
        for from in 0..self.nodes.len() {
            for to in (0..self.nodes.len()).filter(|to| *to != from) {
                self.neighbour(from, to, &hardware(to))?;
            }
        }
        Ok(())
    }

    fn neighbour(&self, from: usize, to: usize, lladdr: &str) -> anyhow::Result<()> {
        self.nodes[from].ip(&format!(
            "neigh replace {} lladdr {lladdr} dev eth0 nud permanent\n",
            address(to)
        ))
    }
}

fn address(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, u8::try_from(node + 1).unwrap_or(u8::MAX))
}

fn hardware(node: usize) -> String {
    format!("02:77:00:00:00:{:02x}", node + 1)
}
