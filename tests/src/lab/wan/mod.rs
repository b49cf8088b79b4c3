//! Two places with a long, lossy link between them, and the kernel's own TCP at both ends.
//!
//! ```text
//!   namespace of this program (near)        namespace of the far place
//!   wan0 10.78.0.1 ── TUN ── emulator ── TUN ── 10.78.0.2 wan0
//!   aside0 10.79.0.1 ─────────── veth ─────────── 10.79.0.2 aside0    for looking on
//! ```

mod emulator;
mod lane;
mod reset;

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::network::Namespace;
use super::run;
pub use emulator::run as emulate;
pub use lane::Line;

/// The near place's end of the link.
pub const NEAR: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// The far place, seen without the link.
pub const FAR_ASIDE: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);

/// Opens a TUN device of this name as this file descriptor and becomes what follows. In Perl (part
/// of every Debian), as an ioctl of one's own is unsafe in Rust: TUNSETIFF with IFF_TUN and
/// IFF_NO_PI.
const OPEN: &str = r#"use POSIX ();
my ($name, $fd, @next) = @ARGV;
open(my $tun, "+<", "/dev/net/tun") or die "/dev/net/tun: $!\n";
ioctl($tun, 0x400454ca, pack("a16 s x22", $name, 0x1001)) or die "TUNSETIFF: $!\n";
POSIX::dup2(fileno($tun), $fd) // die "dup2: $!\n";
exec { $next[0] } @next or die "$next[0]: $!\n";
"#;

/// What a link did: packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Moved.
    pub passed: u64,
    /// By chance.
    pub lost: u64,
    /// Too many waited.
    pub dropped: u64,
    /// While it was cut.
    pub cut: u64,
    /// Made into resets.
    pub reset: u64,
}

/// A link and the place behind it.
pub struct Wan {
    far: Namespace,
    emulator: Child,
    control: UnixDatagram,
    control_path: PathBuf,
}

impl Wan {
    /// Makes the far place and the link. `dir`: for a socket.
    pub fn new(dir: &Path, line: &Line, seed: u64) -> anyhow::Result<Wan> {
        super::required_net("A long link")?;
        let far = Namespace::new()?;
        let control_path = dir.join("link");
        let own_path = dir.join("link.asks");
        let control = UnixDatagram::bind(&own_path)?;
        control.set_read_timeout(Some(Duration::from_secs(5)))?;
        let own = std::env::current_exe()?;
        let here = format!("--net=/proc/{}/ns/net", std::process::id());
        let there = format!("--net={}", far.path());
        let text = emulator::format(line, seed, super::disks::text(&control_path)?);
        let open = |net: &str, fd: &str| -> Vec<String> {
            let words = ["nsenter", net, "--", "perl", "-e", OPEN, "wan0", fd];
            words.map(str::to_owned).to_vec()
        };
        let mut chain = open(&here, "0");
        chain.extend(open(&there, "1"));
        chain.push("nsenter".into());
        chain.push(here);
        chain.push("--".into());
        chain.push(super::disks::text(&own)?.to_owned());
        chain.push(format!("--link={text}"));
        let emulator = Command::new(&chain[0])
            .args(&chain[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .context("starting the emulator of a link")?;
        let mut wan = Wan {
            far,
            emulator,
            control,
            control_path,
        };
        let until = Instant::now() + Duration::from_secs(20);
        while !wan.control_path.exists() {
            if let Some(status) = wan.emulator.try_wait()? {
                bail!("the emulator of a link ended with {status}: is there a /dev/net/tun?");
            }
            ensure!(
                Instant::now() < until,
                "the emulator of a link does not start"
            );
            thread::sleep(Duration::from_millis(10));
        }
        let aside = "link add aside0 type veth peer name aside0 netns";
        let up = "link set wan0 mtu 1500 txqueuelen 5000 up\nlink set aside0 up\n";
        let near_ip = format!(
            "{aside} {}\naddr add {NEAR}/30 dev wan0\naddr add 10.79.0.1/30 dev aside0\n{up}",
            wan.far.id()
        );
        run("ip", &["-batch", "-"], &near_ip)?;
        wan.far.ip(&format!(
            "link set lo up\naddr add {FAR}/30 dev wan0\naddr add {FAR_ASIDE}/30 dev aside0\n{up}"
        ))?;
        Ok(wan)
    }

    /// The far place's network.
    pub fn far(&self) -> PathBuf {
        self.far.path().into()
    }

    /// Congestion control, at both ends, of connections that choose none themselves.
    pub fn congestion(&self, name: &str) -> anyhow::Result<()> {
        // By route: the system's default may not be changed in a namespace.
        let route = |to| format!("route replace {to}/32 dev wan0 congctl {name}\n");
        run("ip", &["-batch", "-"], &route(FAR)).with_context(|| {
            format!(
                "this kernel has no congestion control {name}; it has {}",
                Self::known()
            )
        })?;
        self.far.ip(&route(NEAR))
    }

    /// What the kernel has.
    pub fn known() -> String {
        let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
        fs::read_to_string(path).unwrap_or_default().trim().into()
    }

    fn tell(&self, what: &str) -> anyhow::Result<Counts> {
        self.control
            .send_to(what.as_bytes(), &self.control_path)
            .context("the emulator of a link has ended")?;
        let mut buf = [0; 200];
        let n = self.control.recv(&mut buf)?;
        let numbers: Vec<u64> = String::from_utf8_lossy(&buf[..n])
            .split(' ')
            .filter_map(|w| w.parse().ok())
            .collect();
        let &[passed, lost, dropped, cut, reset] = &numbers[..] else {
            bail!("the emulator of a link answers nonsense");
        };
        Ok(Counts {
            passed,
            lost,
            dropped,
            cut,
            reset,
        })
    }

    /// Nothing passes for so long; nobody is told.
    pub fn cut(&self, time: Duration) -> anyhow::Result<Counts> {
        self.tell(&format!("cut {}", time.as_millis()))
    }

    /// Connections that speak meanwhile are reset.
    pub fn reset(&self, time: Duration) -> anyhow::Result<Counts> {
        self.tell(&format!("reset {}", time.as_millis()))
    }

    /// So far.
    pub fn counts(&self) -> anyhow::Result<Counts> {
        self.tell("counts")
    }

    /// Packets to the far end and nothing back: from its kernel, as nobody listens. Gives how many
    /// passed; shows that the link is one.
    pub fn knock(&self, packets: u64) -> anyhow::Result<u64> {
        let before = self.counts()?;
        let socket = UdpSocket::bind((NEAR, 0))?;
        for _ in 0..packets {
            // The answer that nobody listens comes back as an error.
            let _ = socket.send_to(&[0; 100], (FAR, 9));
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(300));
        Ok(self.counts()?.passed - before.passed)
    }
}

impl Drop for Wan {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.emulator.kill();
        let _ = self.emulator.wait();
    }
}
