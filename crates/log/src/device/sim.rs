//! A directory in memory that forgets like a disk: what was not synced may be lost,
//! kept or torn in a crash, sector by sector, decided by a seed.
//!
//! It is meaner than most file systems: names not synced come and go one by one, sectors
//! persist in any order, a failed fsync loses what it should have stored for good. It is
//! not meaner than all of them: a cut (`set_len`) happens whole or not at all, and a rename
//! is one step.

use super::{Device, DeviceFile};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Bytes a disk writes as one piece.
const SECTOR: usize = 512;
/// Versions of one unsynced sector that are remembered; older ones are forgotten.
const VERSIONS_MAX: usize = 8;
/// `allocate` extends files only up to this length, to save memory in simulations.
const ALLOCATE_MAX: u64 = 1 << 20;

/// A simulated directory. Clones are the same directory.
#[derive(Clone)]
pub struct SimDevice {
    state: Arc<Mutex<State>>,
}

struct State {
    rng: Rng,
    /// Counts crashes: handles from before are dead.
    boot: u64,
    files: BTreeMap<u64, File>,
    next_file: u64,
    names: BTreeMap<String, u64>,
    /// Names as of the last `sync_dir`, and what happened since.
    durable_names: BTreeMap<String, u64>,
    pending_names: Vec<NameChange>,
    fail_sync: Option<Countdown>,
    fail_write: Option<Countdown>,
    /// Bytes that cannot be read any more, by file.
    bad: BTreeSet<(u64, u64)>,
    capacity: Option<u64>,
    power: Option<u64>,
    off: bool,
    syncs: u64,
    changes: u64,
}

#[derive(Clone)]
enum NameChange {
    Create(String, u64),
    Remove(String),
    /// From, to, and which file: a crash never renames another one.
    Rename(String, String, u64),
}

struct Countdown {
    left: u64,
    kind: io::ErrorKind,
}

#[derive(Default)]
struct File {
    data: Vec<u8>,
    /// Unsynced sectors.
    dirty: BTreeMap<u64, Sector>,
    /// Possible lengths after a crash, per cut since the last sync. `lens[0][0]` is the
    /// synced one.
    lens: Vec<Vec<u64>>,
    /// Open handles; a nameless file lives as long as one.
    handles: u64,
}

struct Sector {
    synced: [u8; SECTOR],
    later: Vec<Version>,
    /// A sync of it failed: no later sync stores these versions.
    lost: bool,
}

struct Version {
    /// Number of cuts before it.
    epoch: usize,
    /// Made by a cut: once that cut counts, nothing older does.
    barrier: bool,
    bytes: [u8; SECTOR],
}

impl SimDevice {
    /// An empty directory. The seed decides the partial effect of failed writes.
    pub fn new(seed: u64) -> SimDevice {
        SimDevice {
            state: Arc::new(Mutex::new(State {
                rng: Rng(seed),
                boot: 0,
                files: BTreeMap::new(),
                next_file: 0,
                names: BTreeMap::new(),
                durable_names: BTreeMap::new(),
                pending_names: Vec::new(),
                fail_sync: None,
                fail_write: None,
                bad: BTreeSet::new(),
                capacity: None,
                power: None,
                off: false,
                syncs: 0,
                changes: 0,
            })),
        }
    }

    /// The power goes and comes back: handles die, unsynced data and names are kept, lost
    /// or torn as the seed decides, faults (except the capacity) are forgotten.
    pub fn crash(&self, seed: u64) {
        self.state.lock().crash(&mut Rng(seed));
    }

    /// All processes die but the operating system lives: handles die, no data is lost.
    pub fn kill(&self) {
        let mut s = self.state.lock();
        s.boot += 1;
        for file in s.files.values_mut() {
            file.handles = 0;
        }
        s.off = false;
        s.power = None;
        s.fail_sync = None;
        s.fail_write = None;
    }

    /// Lets the `n`th sync from now (1 = the next) of a file or of the directory fail. What
    /// it should have stored is never stored by a later one.
    pub fn fail_sync(&self, n: u64, kind: io::ErrorKind) {
        self.state.lock().fail_sync = Some(Countdown { left: n, kind });
    }

    /// Lets the `n`th write from now (1 = the next) fail after writing a part.
    pub fn fail_write(&self, n: u64, kind: io::ErrorKind) {
        self.state.lock().fail_write = Some(Countdown { left: n, kind });
    }

    /// From now on nobody can read this byte of a file, as on a bad sector; false if there is no
    /// such file.
    pub fn make_unreadable(&self, name: &str, offset: u64) -> bool {
        let mut s = self.state.lock();
        let id = s.names.get(name).copied();
        id.is_some_and(|id| s.bad.insert((id, offset)))
    }

    /// Limits the sum of the lengths of all files, in bytes: writes beyond it fail with
    /// `StorageFull`.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().capacity = bytes;
    }

    /// Turns the power off at the `n`th change from now (1 = the next write, sync or
    /// change of a name or length): that change and all after it fail until `crash`.
    pub fn power_off_after(&self, n: u64) {
        self.state.lock().power = Some(n);
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        self.state.lock().off
    }

    /// Number of successful syncs of files so far.
    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }

    /// Number of changes (as `power_off_after` counts them) so far.
    pub fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// A second directory with the same content, all of it synced, and no faults.
    pub fn fork(&self) -> SimDevice {
        let s = self.state.lock();
        let fork = SimDevice::new(s.rng.0);
        {
            let mut f = fork.state.lock();
            f.names = s.names.clone();
            f.durable_names = s.names.clone();
            f.next_file = s.next_file;
            for id in s.names.values() {
                if let Some(file) = s.files.get(id) {
                    let mut copy = File::new();
                    copy.data.clone_from(&file.data);
                    copy.synced();
                    f.files.insert(*id, copy);
                }
            }
        }
        fork
    }

    /// The present content of a file.
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let s = self.state.lock();
        let id = s.names.get(name)?;
        s.files.get(id).map(|f| f.data.clone())
    }

    /// Inverts one bit of a file, on the disk and in memory. Returns false if there is no
    /// such bit.
    pub fn flip_bit(&self, name: &str, offset: u64, bit: u32) -> bool {
        let mut s = self.state.lock();
        let Some(id) = s.names.get(name).copied() else {
            return false;
        };
        let Some(byte) = s
            .files
            .get_mut(&id)
            .and_then(|f| f.data.get_mut(offset as usize))
        else {
            return false;
        };
        *byte ^= 1 << (bit % 8);
        true
    }

    fn file(&self, s: &mut State, id: u64) -> Arc<dyn DeviceFile> {
        if let Some(file) = s.files.get_mut(&id) {
            file.handles += 1;
        }
        let boot = s.boot;
        Arc::new(SimFile {
            device: self.clone(),
            id,
            boot,
        })
    }
}

impl State {
    /// Counts a change and says whether it may happen. `Err` also when the power is off.
    fn change(&mut self) -> io::Result<()> {
        self.powered()?;
        self.changes += 1;
        if let Some(left) = &mut self.power {
            *left -= 1;
            if *left == 0 {
                self.off = true;
                self.power = None;
            }
        }
        Ok(())
    }

    fn powered(&self) -> io::Result<()> {
        if self.off {
            return Err(io::Error::other("The simulated power is off."));
        }
        Ok(())
    }

    fn alive(&self, boot: u64) -> io::Result<()> {
        if boot != self.boot {
            return Err(io::Error::other(
                "The handle is from before the simulated crash.",
            ));
        }
        self.powered()
    }

    fn take_fault(fault: &mut Option<Countdown>) -> Option<io::ErrorKind> {
        let f = fault.as_mut()?;
        f.left -= 1;
        if f.left > 0 {
            return None;
        }
        fault.take().map(|f| f.kind)
    }

    fn name(&self, name: &str) -> io::Result<u64> {
        self.names
            .get(name)
            .copied()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn open_file(&mut self, id: u64) -> io::Result<&mut File> {
        self.files
            .get_mut(&id)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn used(&self) -> u64 {
        self.names
            .values()
            .filter_map(|id| self.files.get(id))
            .map(|f| f.data.len() as u64)
            .sum()
    }

    /// Frees files that nothing can reach any more.
    fn forget_files(&mut self) {
        if self.pending_names.is_empty() {
            let named: BTreeSet<u64> = self.names.values().copied().collect();
            self.files
                .retain(|id, f| f.handles > 0 || named.contains(id));
        }
    }

    /// The same of one file.
    fn forget_file(&mut self, id: u64) {
        let closed = self.files.get(&id).is_some_and(|f| f.handles == 0);
        if closed && self.pending_names.is_empty() && !self.names.values().any(|n| *n == id) {
            self.files.remove(&id);
        }
    }

    /// After the effect of a change: the one at which the power went reports failure.
    fn report(&self) -> io::Result<()> {
        self.powered()
    }

    fn crash(&mut self, rng: &mut Rng) {
        self.boot += 1;
        self.off = false;
        self.power = None;
        self.fail_sync = None;
        self.fail_write = None;
        let mut names = std::mem::take(&mut self.durable_names);
        let fate = Fate::draw(rng);
        for change in std::mem::take(&mut self.pending_names) {
            if !fate.keeps(rng) {
                continue;
            }
            match change {
                NameChange::Create(name, id) => {
                    names.insert(name, id);
                }
                NameChange::Remove(name) => {
                    names.remove(&name);
                }
                NameChange::Rename(from, to, id) => {
                    if names.get(&from) == Some(&id) {
                        names.remove(&from);
                    }
                    names.insert(to, id);
                }
            }
        }
        self.files.retain(|id, _| names.values().any(|n| n == id));
        for file in self.files.values_mut() {
            file.handles = 0;
            let fate = Fate::draw(rng);
            file.crash(rng, fate);
        }
        self.durable_names = names.clone();
        self.names = names;
    }
}

/// How much unsynced data a crash leaves.
#[derive(Clone, Copy)]
enum Fate {
    Nothing,
    Everything,
    Some,
}

impl Fate {
    fn draw(rng: &mut Rng) -> Fate {
        match rng.below(4) {
            0 => Fate::Nothing,
            1 => Fate::Everything,
            _ => Fate::Some,
        }
    }

    fn keeps(self, rng: &mut Rng) -> bool {
        match self {
            Fate::Nothing => false,
            Fate::Everything => true,
            Fate::Some => rng.below(2) == 0,
        }
    }
}

impl File {
    fn new() -> File {
        File {
            data: Vec::new(),
            dirty: BTreeMap::new(),
            lens: vec![vec![0]],
            handles: 0,
        }
    }

    fn sector(&self, n: u64) -> [u8; SECTOR] {
        let mut bytes = [0; SECTOR];
        let at = n as usize * SECTOR;
        if at < self.data.len() {
            let end = (at + SECTOR).min(self.data.len());
            bytes[..end - at].copy_from_slice(&self.data[at..end]);
        }
        bytes
    }

    /// Remembers the synced content of the sectors of a range before they change.
    fn touch(&mut self, from: u64, to: u64) {
        for n in from / SECTOR as u64..to.div_ceil(SECTOR as u64) {
            let synced = self.sector(n);
            self.dirty.entry(n).or_insert(Sector {
                synced,
                later: Vec::new(),
                lost: false,
            });
        }
    }

    /// Remembers the content after a change.
    fn note(&mut self, from: u64, to: u64, barrier: bool) {
        let epoch = self.lens.len() - 1;
        for n in from / SECTOR as u64..to.div_ceil(SECTOR as u64) {
            let bytes = self.sector(n);
            if let Some(sector) = self.dirty.get_mut(&n) {
                sector.lost = false;
                if sector.later.len() == VERSIONS_MAX {
                    sector.later.remove(0);
                }
                sector.later.push(Version {
                    epoch,
                    barrier,
                    bytes,
                });
            }
        }
    }

    fn grown(&mut self) {
        let len = self.data.len() as u64;
        if let Some(lens) = self.lens.last_mut()
            && lens.last() != Some(&len)
        {
            lens.push(len);
        }
    }

    fn write(&mut self, bytes: &[u8], offset: u64) {
        let end = offset + bytes.len() as u64;
        let from = offset.min(self.data.len() as u64);
        self.touch(from, end);
        if self.data.len() < end as usize {
            self.data.resize(end as usize, 0);
        }
        self.data[offset as usize..end as usize].copy_from_slice(bytes);
        self.grown();
        self.note(from, end, false);
    }

    fn set_len(&mut self, len: u64) {
        let old = self.data.len() as u64;
        if len >= old {
            self.data.resize(len as usize, 0);
            self.grown();
            return;
        }
        self.touch(len, old);
        self.data.truncate(len as usize);
        self.lens.push(vec![len]);
        self.note(len, old, true);
    }

    fn synced(&mut self) {
        self.dirty.retain(|_, s| s.lost);
        self.lens = vec![vec![self.data.len() as u64]];
        for s in self.dirty.values_mut() {
            for v in &mut s.later {
                v.epoch = 0;
            }
        }
    }

    fn sync_failed(&mut self) {
        for s in self.dirty.values_mut() {
            s.lost = true;
        }
    }

    /// What a failed sync did not store is in memory only, which is given up.
    fn reread(&mut self) {
        let lost: Vec<u64> = self
            .dirty
            .iter()
            .filter(|(_, s)| s.lost)
            .map(|(n, _)| *n)
            .collect();
        for n in lost {
            let Some(sector) = self.dirty.remove(&n) else {
                continue;
            };
            let at = n as usize * SECTOR;
            if at < self.data.len() {
                let end = (at + SECTOR).min(self.data.len());
                self.data[at..end].copy_from_slice(&sector.synced[..end - at]);
            }
        }
    }

    fn crash(&mut self, rng: &mut Rng, fate: Fate) {
        let epoch = match fate {
            Fate::Nothing => 0,
            Fate::Everything => self.lens.len() - 1,
            Fate::Some => rng.below(self.lens.len() as u64) as usize,
        };
        let lens = &self.lens[epoch];
        let len = match fate {
            Fate::Nothing => lens[0],
            Fate::Everything => lens[lens.len() - 1],
            Fate::Some => lens[rng.below(lens.len() as u64) as usize],
        };
        let longest = self.lens.iter().flatten().copied().max().unwrap_or(0);
        self.data.resize(longest as usize, 0);
        for (n, sector) in std::mem::take(&mut self.dirty) {
            let usable: Vec<&Version> = sector.later.iter().filter(|v| v.epoch <= epoch).collect();
            let after = usable.iter().rposition(|v| v.barrier);
            let mut choices: Vec<&[u8; SECTOR]> = Vec::new();
            if after.is_none() {
                choices.push(&sector.synced);
            }
            choices.extend(usable[after.unwrap_or(0)..].iter().map(|v| &v.bytes));
            let pick = match fate {
                Fate::Nothing => 0,
                Fate::Everything => choices.len() - 1,
                Fate::Some => rng.below(choices.len() as u64) as usize,
            };
            let at = n as usize * SECTOR;
            if at < self.data.len() {
                let end = (at + SECTOR).min(self.data.len());
                self.data[at..end].copy_from_slice(&choices[pick][..end - at]);
            }
        }
        self.data.truncate(len as usize);
        self.lens = vec![vec![len]];
    }
}

impl Device for SimDevice {
    fn list(&self) -> io::Result<Vec<String>> {
        let s = self.state.lock();
        s.powered()?;
        Ok(s.names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DeviceFile>> {
        let mut s = self.state.lock();
        s.powered()?;
        let id = s.name(name)?;
        Ok(self.file(&mut s, id))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DeviceFile>> {
        let mut s = self.state.lock();
        s.change()?;
        if s.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let id = s.next_file;
        s.next_file += 1;
        s.files.insert(id, File::new());
        s.names.insert(name.to_owned(), id);
        s.pending_names
            .push(NameChange::Create(name.to_owned(), id));
        s.report()?;
        Ok(self.file(&mut s, id))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut s = self.state.lock();
        s.change()?;
        s.name(name)?;
        s.names.remove(name);
        s.pending_names.push(NameChange::Remove(name.to_owned()));
        s.report()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut s = self.state.lock();
        s.change()?;
        let id = s.name(from)?;
        s.names.remove(from);
        s.names.insert(to.to_owned(), id);
        s.pending_names
            .push(NameChange::Rename(from.to_owned(), to.to_owned(), id));
        s.report()
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut s = self.state.lock();
        s.change()?;
        s.report()?;
        if let Some(kind) = State::take_fault(&mut s.fail_sync) {
            return Err(kind.into());
        }
        s.durable_names = s.names.clone();
        s.pending_names.clear();
        s.forget_files();
        Ok(())
    }

    fn place(&self) -> String {
        "the simulated directory".to_owned()
    }
}

struct SimFile {
    device: SimDevice,
    id: u64,
    boot: u64,
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut s = self.device.state.lock();
        if s.boot == self.boot
            && let Some(file) = s.files.get_mut(&self.id)
        {
            file.handles -= 1;
            s.forget_file(self.id);
        }
    }
}

impl SimFile {
    fn sync(&self) -> io::Result<()> {
        let mut s = self.device.state.lock();
        s.alive(self.boot)?;
        s.change()?;
        s.report()?;
        let fault = State::take_fault(&mut s.fail_sync);
        let file = s.open_file(self.id)?;
        if let Some(kind) = fault {
            file.sync_failed();
            return Err(kind.into());
        }
        file.synced();
        s.syncs += 1;
        Ok(())
    }
}

impl DeviceFile for SimFile {
    fn write_at(&self, slices: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let bytes: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).collect();
        let mut s = self.device.state.lock();
        s.alive(self.boot)?;
        s.change()?;
        let fault = State::take_fault(&mut s.fail_write);
        let used = s.used();
        let len = s.open_file(self.id)?.data.len() as u64;
        let growth = (offset + bytes.len() as u64).saturating_sub(len);
        let full = s.capacity.is_some_and(|c| used + growth > c);
        if fault.is_some() || full {
            let part = s.rng.below(bytes.len() as u64 + 1) as usize;
            if !full {
                s.open_file(self.id)?.write(&bytes[..part], offset);
            }
            return Err(fault.unwrap_or(io::ErrorKind::StorageFull).into());
        }
        s.open_file(self.id)?.write(&bytes, offset);
        s.report()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut s = self.device.state.lock();
        s.alive(self.boot)?;
        let covered = (self.id, offset)..(self.id, offset + buf.len() as u64);
        if s.bad.range(covered).next().is_some() {
            return Err(rustix::io::Errno::IO.into());
        }
        let data = &s.open_file(self.id)?.data;
        let at = (offset as usize).min(data.len());
        let n = buf.len().min(data.len() - at);
        buf[..n].copy_from_slice(&data[at..at + n]);
        Ok(n)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut s = self.device.state.lock();
        s.alive(self.boot)?;
        s.change()?;
        s.open_file(self.id)?.set_len(len);
        s.report()
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut s = self.device.state.lock();
        s.alive(self.boot)?;
        s.change()?;
        let used = s.used();
        let capacity = s.capacity;
        let file = s.open_file(self.id)?;
        let old = file.data.len() as u64;
        let fits = capacity.is_none_or(|c| used + len.saturating_sub(old) <= c);
        if len > old && len <= ALLOCATE_MAX && fits {
            file.set_len(len);
        }
        s.report()
    }

    fn reread(&self) {
        let mut s = self.device.state.lock();
        if s.alive(self.boot).is_ok()
            && let Ok(file) = s.open_file(self.id)
        {
            file.reread();
        }
    }

    fn len(&self) -> io::Result<u64> {
        let mut s = self.device.state.lock();
        s.alive(self.boot)?;
        Ok(s.open_file(self.id)?.data.len() as u64)
    }
}

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; `n` is not 0.
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::write_one;

    #[test]
    fn what_was_synced_survives_every_crash() -> io::Result<()> {
        for seed in 0..200 {
            let d = SimDevice::new(seed);
            let f = d.create("a")?;
            write_one(&*f, &[1; 1500], 0)?;
            f.sync_data()?;
            d.sync_dir()?;
            write_one(&*f, &[2; 1500], 700)?;
            d.crash(seed);
            assert!(f.len().is_err(), "an old handle is dead");
            let now = d.content("a").unwrap_or_default();
            assert!(now.len() >= 1500);
            assert!(now[..700].iter().all(|b| *b == 1));
            assert!(now[700..].iter().all(|b| *b <= 2));
        }
        Ok(())
    }

    #[test]
    fn crashes_drop_keep_and_tear() -> io::Result<()> {
        let (mut gone, mut lost, mut kept, mut torn) = (0, 0, 0, 0);
        for seed in 0..200 {
            let d = SimDevice::new(0);
            let f = d.create("a")?;
            write_one(&*f, &[0; 4096], 0)?;
            f.sync_data()?;
            if seed % 2 == 0 {
                d.sync_dir()?;
            }
            write_one(&*f, &[2; 4096], 0)?;
            d.crash(seed);
            match d.content("a") {
                None => gone += 1,
                Some(c) if c.iter().all(|b| *b == 0) => lost += 1,
                Some(c) if c.iter().all(|b| *b == 2) => kept += 1,
                Some(c) => {
                    torn += 1;
                    assert!(c.chunks(SECTOR).all(|s| s.iter().all(|b| *b == s[0])));
                }
            }
        }
        assert!(
            gone > 10 && lost > 10 && kept > 10 && torn > 10,
            "{gone} {lost} {kept} {torn}"
        );
        Ok(())
    }

    #[test]
    fn a_failed_sync_is_never_made_good() -> io::Result<()> {
        let mut lost = 0;
        for seed in 0..50 {
            let d = SimDevice::new(0);
            let f = d.create("a")?;
            d.sync_dir()?;
            write_one(&*f, &[2; 512], 0)?;
            d.fail_sync(1, io::ErrorKind::Other);
            assert!(f.sync_data().is_err());
            f.sync_data()?;
            d.crash(seed);
            if d.content("a").unwrap_or_default() != vec![2; 512] {
                lost += 1;
            }
        }
        assert!(lost > 5, "{lost}");
        Ok(())
    }

    #[test]
    fn a_cut_is_whole() -> io::Result<()> {
        for seed in 0..100 {
            let d = SimDevice::new(0);
            let f = d.create("a")?;
            write_one(&*f, &[2; 2048], 0)?;
            f.sync_data()?;
            d.sync_dir()?;
            f.set_len(100)?;
            f.allocate(2048)?;
            d.crash(seed);
            let c = d.content("a").unwrap_or_default();
            let whole = c == vec![2; 2048];
            let cut = c.len() >= 100
                && c[..100].iter().all(|b| *b == 2)
                && c[100..].iter().all(|b| *b == 0);
            assert!(whole || cut, "{:?}", c);
        }
        Ok(())
    }
}
