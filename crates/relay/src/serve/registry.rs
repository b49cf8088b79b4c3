//! The replicas that are known, and what each still needs.
//!
//! When a replica connects it says what it has; mostly that is what it *received*. What it has not
//! applied of that it may lose again, with its host or at its next start, and ask for it once more. So a
//! file counts as needed until the replica was sent all of it *and* was connected so long after
//! (`hold_secs`), over however many connections; while it is away nothing moves on. If it was asked what
//! it has applied, a file also counts as long as something of it is not. All that is decided
//! here goes by the clock that nobody sets ([`Now::up`]): the other one is for people to read.
//!
//! Kept across restarts, a line for each: `server id, file, port, last seen, host`, and behind a tab, which no
//! host has, the GTIDs that it had made itself: a build that does not know of these takes them for the host's.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Write as _};
use std::net::IpAddr;

use dromon_binlog::Position;

use super::session::Host;
use crate::clock::Now;
use crate::wire::Compressed;

/// A replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// As it calls itself.
    pub host: String,
    /// The same.
    pub port: u16,
    /// The oldest file that it needs: by what it was sent, or by what it has applied, which is older.
    pub needs: u64,
    /// The same by what it was sent alone.
    held: u64,
    /// What it said when it was asked last; if it was not since the relay's start, what it needed before.
    applied: Option<Applied>,
    /// When it was asked, by [`Now::up`].
    asked: Option<u64>,
    /// It came with GTIDs, so those that it has applied say where it goes on.
    by_gtid: bool,
    /// Of what it came with, now or before, what it had made itself, and so never applies.
    own: Position,
    /// When it was here, in seconds since 1970.
    pub last_seen: u64,
    /// The same, by [`Now::up`]; `None`: not since the relay's start.
    seen: Option<u64>,
    /// Its connection, if it is here.
    pub connection: Option<u32>,
    /// Where it came from.
    pub address: Option<IpAddr>,
    /// Congestion control of its connection.
    pub congestion: String,
    /// Of `dromon replica`: the name under which its target has what it applied.
    pub channel: Option<String>,
    /// What it had when it came, and was sent since.
    pub sent: Position,
    /// Groups that it was sent since it came.
    pub groups: u64,
    /// Of them, those with the commit id of the one before.
    pub joined: u64,
    /// What compressing has spared, if it is a relay that asked for it.
    pub zstd: Option<Compressed>,
    /// Since when, by [`Now::up`], it was sent something of which files; rising. The time that it was
    /// away since counts as if it had not been.
    entered: VecDeque<(u64, u64)>,
}

/// What a replica has applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Applied {
    /// All before this file.
    file: u64,
    /// It said so then, by [`Now::up`]. The time that it was away since counts as if it had not been.
    at: u64,
}

impl Known {
    /// One of which nothing else is known.
    fn new(host: &str, port: u16, needs: u64, last_seen: u64) -> Known {
        Known {
            host: host.to_owned(),
            port,
            needs,
            held: needs,
            applied: None,
            asked: None,
            by_gtid: false,
            own: Position::new(),
            last_seen,
            seen: None,
            connection: None,
            address: None,
            congestion: String::new(),
            channel: None,
            sent: Position::new(),
            groups: 0,
            joined: 0,
            zstd: None,
            entered: VecDeque::new(),
        }
    }

    /// Which file it needs, after something else has changed. Tells whether that has.
    fn settle(&mut self) -> bool {
        let needs = self.applied_file().map_or(self.held, |a| a.min(self.held));
        std::mem::replace(&mut self.needs, needs) != needs
    }

    /// It has applied all before this file; `None`: that is not known, and what it was sent alone counts.
    pub fn applied_file(&self) -> Option<u64> {
        self.applied.map(|applied| applied.file)
    }

    /// Whether what it has applied says what it needs, and not how long ago it was sent what.
    pub fn needs_by_applied(&self) -> bool {
        self.needs < self.held
    }

    /// All that it has of what is here, if it has applied that.
    pub(crate) fn has_if_applied(&self, mut applied: Position) -> Position {
        for own in self.own.iter() {
            if applied.get(own.domain).is_none_or(|a| a.seqno < own.seqno) {
                applied.set(own);
            }
        }
        applied
    }

    fn is_here(&mut self, now: Now) {
        self.last_seen = now.unix;
        self.seen = Some(now.up);
    }

    /// Whether nothing that is left would do for it, if the oldest file of all is this.
    pub fn is_cut_off(&self, oldest: u64) -> bool {
        self.holds(oldest).is_none()
    }

    /// The oldest file that is kept for it, if the oldest one of all is this. One that lacks what is not
    /// there any more can begin only with a file that it was sent something of; `None`: it was sent
    /// nothing of any that is left, and nothing that is kept would help it.
    pub fn holds(&self, oldest: u64) -> Option<u64> {
        let sent = self.entered.iter().map(|(_, file)| *file);
        [self.needs, self.held]
            .into_iter()
            .chain(sent)
            .find(|file| *file >= oldest)
    }
}

/// A replica for which nothing is kept any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// Its server id.
    pub server_id: u32,
    /// As it called itself.
    pub host: String,
    /// The oldest file that was kept for it.
    pub needed: u64,
    /// When, in seconds since 1970.
    pub at: u64,
    /// Who said so.
    pub by: String,
}

/// Which replica is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Called {
    /// By its server id.
    Id(u32),
    /// By what it calls itself, or, if none calls itself so, its server id.
    Name(String),
}

impl fmt::Display for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Called::Id(id) => write!(f, "{id}"),
            Called::Name(name) => write!(f, "'{name}'"),
        }
    }
}

/// Why a replica is not forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unforgettable {
    /// Nobody is called so.
    Unknown,
    /// These are.
    Several(Vec<u32>),
    /// It is here: it would be known again at once.
    Here(u32, Box<Known>),
    /// The relay has just started, and it had no time yet to come back: that is over in so many seconds.
    TooSoon(u32, Box<Known>, u64),
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    known: BTreeMap<u32, Known>,
    hold_secs: u64,
    /// Those that are here are asked what they have applied.
    asks: bool,
    changed: bool,
    /// When the relay began, by [`Now::up`]: nobody counts as away since before then.
    started: Option<u64>,
    /// When the text was given last, by the same.
    told: u64,
    /// Files that would be purged, and who needs them.
    held: Option<(usize, u32)>,
    /// Since the start, oldest first.
    forgotten: VecDeque<Forgotten>,
    /// Those that had to make room and are still to be told: the first ones, and how many.
    crowded: (Vec<u32>, usize),
}

/// So long after the relay's start a replica that was not here since may be about to come back, in
/// seconds: by default they try each minute.
const BACK_SECS: u64 = 120;

/// How often a replica is asked what it has applied, in seconds.
const ASK_SECS: u64 = 60;

/// So long an answer counts at least, in seconds: some questions may fail. It counts for as long as what
/// was sent, if that is longer: all that was there when it came counts as applied then in any case.
const SAID_SECS: u64 = 600;

/// Most of those that are known, unless more are here: a client may come with any server id.
pub(crate) const KNOWN_MAX: usize = 1000;

/// Of so many domains it is kept across restarts what a replica had made itself.
const OWN_KEPT: usize = 64;

/// So many of those that had to make room are named.
const NAMED_MAX: usize = 10;

/// Most of those that are remembered to have been forgotten.
const FORGOTTEN_MAX: usize = 32;

/// How often what is known is told again while somebody is here, in seconds: else who was here for
/// long would look as if away for long after the relay was killed.
const AGAIN_SECS: u64 = 3600;

impl Registry {
    /// Nobody is known.
    pub fn new(hold_secs: u64) -> Registry {
        Registry {
            hold_secs,
            ..Registry::default()
        }
    }

    /// From [`Registry::text`].
    pub fn parse(text: &str, hold_secs: u64) -> Result<Registry, String> {
        let mut registry = Registry::new(hold_secs);
        for (n, line) in text.lines().enumerate().filter(|(_, l)| !l.is_empty()) {
            let mut words = line.splitn(5, ' ');
            let mut number = || words.next().and_then(|w| w.parse::<u64>().ok());
            let fields = (number(), number(), number(), number());
            let host = words.next().unwrap_or_default();
            let (host, own) = host.split_once('\t').unwrap_or((host, ""));
            let (Some(id), Some(needs), Some(port), Some(last_seen)) = fields else {
                return Err(format!("line {}: {line}", n + 1));
            };
            let (Ok(id), Ok(port), Ok(own)) = (u32::try_from(id), u16::try_from(port), own.parse())
            else {
                return Err(format!("line {}: {line}", n + 1));
            };
            let known = Known {
                own,
                ..Known::new(host, port, needs, last_seen)
            };
            registry.known.insert(id, known);
        }
        Ok(registry)
    }

    /// From now on those that are here are asked what they have applied.
    pub(crate) fn asks(&mut self) {
        self.asks = true;
    }

    /// The relay begins: before, nobody could be here.
    pub fn started(&mut self, now: Now) {
        self.started = Some(now.up);
        self.told = now.up;
    }

    /// `last`: the number of the newest file; `first`: there is none, and this one will be begun. Files
    /// with higher numbers were moved away, and what was in them comes again from there on: nobody needs
    /// a later one. Tells whether that changes anything.
    pub fn renumber(&mut self, last: Option<u64>, first: Option<u64>) -> bool {
        let mut changed = false;
        for known in self.known.values_mut() {
            let needs = match (last, first) {
                (Some(last), _) => known.needs.min(last),
                (None, Some(first)) => first,
                (None, None) => continue,
            };
            known.held = needs;
            changed |= known.settle();
        }
        self.changed |= changed;
        changed
    }

    /// For the file.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (id, k) in &self.known {
            let host: String = k.host.chars().filter(|c| !c.is_control()).collect();
            // Writing to a string does not fail.
            let _ = write!(out, "{id} {} {} {} {host}", k.needs, k.port, k.last_seen);
            for (n, gtid) in k.own.iter().take(OWN_KEPT).enumerate() {
                let _ = write!(out, "{}{gtid}", if n == 0 { '\t' } else { ',' });
            }
            out.push('\n');
        }
        out
    }

    /// Whether what [`Registry::text`] gives has changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// It could not be written down, and is still to be.
    pub fn is_unsaved(&mut self) {
        self.changed = true;
    }

    /// A replica is sent events from this file on. A connection with the same server id that is
    /// still there is a leftover, and must end.
    pub fn begins(&mut self, id: u32, host: &str, port: u16, connection: u32, file: u64, now: Now) {
        let mut known = Known {
            seen: Some(now.up),
            connection: Some(connection),
            ..Known::new(host, port, file, now.unix)
        };
        if let Some(before) = self.known.remove(&id) {
            let away = match (before.connection, before.seen) {
                (None, Some(seen)) => now.up.saturating_sub(seen),
                _ => 0,
            };
            known.held = file.min(before.held);
            known.asked = before.asked;
            known.own = before.own;
            known.applied = match before.applied {
                // What it needed before the relay's start it may not have applied: that counts as its answer until it
                // gives one, which may take longer than what it was sent is held for.
                None if before.seen.is_none() && self.asks => Some(Applied {
                    file: known.held,
                    at: now.up,
                }),
                answer => answer.map(|applied| Applied {
                    at: applied.at + away,
                    ..applied
                }),
            };
            let still = before.entered.into_iter().filter(|e| e.1 <= file);
            known
                .entered
                .extend(still.map(|(since, file)| (since + away, file)));
        }
        if known.entered.back().map_or(known.held, |(_, last)| *last) < file {
            known.entered.push_back((now.up, file));
        }
        known.settle();
        self.known.insert(id, known);
        self.changed = true;
        self.make_room(now);
    }

    /// If too many are known, the one is forgotten that is away for longest; nobody that is here.
    fn make_room(&mut self, now: Now) {
        while self.known.len() > KNOWN_MAX {
            let away = self.known.iter().filter(|(_, k)| k.connection.is_none());
            let Some((id, _)) = away.min_by_key(|(_, k)| (k.seen, k.last_seen)) else {
                return;
            };
            let id = *id;
            self.remove(id, Forgotten::BY_NUMBER, now);
            let (named, all) = &mut self.crowded;
            *all += 1;
            if named.len() < NAMED_MAX {
                named.push(id);
            }
        }
    }

    /// Those that were forgotten since the last call as too many were known: the first ones, and how many.
    pub(crate) fn take_crowded(&mut self) -> (Vec<u32>, usize) {
        std::mem::take(&mut self.crowded)
    }

    /// What it has as it comes; whether it says that by GTIDs.
    pub fn comes_with(&mut self, id: u32, connection: u32, has: &Position, by_gtid: bool) {
        let Some(known) = self.here(id, connection) else {
            return;
        };
        known.sent.clone_from(has);
        known.by_gtid = by_gtid;
        // A replica whose SQL thread ran on says what it received, where the GTIDs of others may cover its own. If it
        // has less than what it had made, that is lost.
        let had = std::mem::take(&mut known.own);
        let still = had.iter().filter(|own| {
            let now = has.get(own.domain);
            now.is_some_and(|now| now.seqno >= own.seqno)
        });
        for own in still.chain(has.iter().filter(|gtid| gtid.server == id)) {
            known.own.set(own);
        }
        // After a start of the relay nobody else could tell.
        let changed = known.own != had;
        self.changed |= changed;
    }

    /// Who is to be asked next what it has applied: of those that are here and can be, the one that was
    /// asked longest ago, if that is a while.
    pub(crate) fn next_to_ask(&mut self, now: Now) -> Option<(u32, Known)> {
        let due = |k: &Known| k.asked.is_none_or(|at| at + ASK_SECS <= now.up);
        let can = |k: &Known| k.connection.is_some() && k.address.is_some() && k.by_gtid;
        let all = self.known.iter_mut().filter(|(_, k)| can(k) && due(k));
        let (id, known) = all.min_by_key(|(_, k)| k.asked)?;
        known.asked = Some(now.up);
        Some((*id, known.clone()))
    }

    /// It was asked, and has applied all before this file.
    pub fn has_applied(&mut self, id: u32, connection: u32, file: u64, now: Now) {
        if let Some(known) = self.here(id, connection) {
            known.applied = Some(Applied { file, at: now.up });
            let changed = known.settle();
            self.changed |= changed;
        }
    }

    /// Where it came from, and the congestion control of its connection.
    pub fn at(&mut self, id: u32, connection: u32, address: IpAddr, congestion: String) {
        if let Some(known) = self.here(id, connection) {
            known.congestion = congestion;
            // Behind one port for both kinds one of IPv4 looks like one of IPv6, and no certificate is for that.
            known.address = Some(address.to_canonical());
        }
    }

    /// It is `dromon replica`, with this channel; or it is not.
    pub fn applies(&mut self, id: u32, connection: u32, channel: Option<String>) {
        if let Some(known) = self.here(id, connection) {
            known.channel = channel;
        }
    }

    /// It was sent so many groups, and has all up to there, if it took them.
    pub fn was_sent(
        &mut self,
        id: u32,
        connection: u32,
        sent: &Position,
        groups: u64,
        joined: u64,
    ) {
        if let Some(known) = self.here(id, connection) {
            known.sent.clone_from(sent);
            known.groups = groups;
            known.joined = joined;
        }
    }

    /// What it was sent was compressed to that.
    pub fn squeezed(&mut self, id: u32, connection: u32, so_far: Compressed) {
        if let Some(known) = self.here(id, connection) {
            known.zstd = Some(so_far);
        }
    }

    fn here(&mut self, id: u32, connection: u32) -> Option<&mut Known> {
        let known = self.known.get_mut(&id)?;
        (known.connection == Some(connection)).then_some(known)
    }

    /// The replicas of this name: the server id, or what it calls itself.
    pub fn named(&self, name: &str) -> Vec<(u32, &Known)> {
        match name.parse() {
            Ok(id) => self.with_id(id),
            Err(_) => self.with_host(name),
        }
    }

    fn with_id(&self, id: u32) -> Vec<(u32, &Known)> {
        self.known.get(&id).map(|k| (id, k)).into_iter().collect()
    }

    fn with_host(&self, name: &str) -> Vec<(u32, &Known)> {
        let named = self.known.iter().filter(|(_, k)| k.host == name);
        named.map(|(id, k)| (*id, k)).collect()
    }

    fn called(&self, called: &Called) -> Vec<(u32, &Known)> {
        match called {
            Called::Id(id) => self.with_id(*id),
            Called::Name(name) => {
                let named = self.with_host(name);
                match named.is_empty() {
                    true => self.named(name),
                    false => named,
                }
            }
        }
    }

    /// Whether this is still the replica's connection.
    pub fn is_current(&self, id: u32, connection: u32) -> bool {
        let known = self.known.get(&id);
        known.is_some_and(|k| k.connection == Some(connection))
    }

    /// It is sent the first of a file.
    pub fn enters(&mut self, id: u32, connection: u32, file: u64, now: Now) {
        if let Some(known) = self.known.get_mut(&id)
            && known.connection == Some(connection)
        {
            known.entered.push_back((now.up, file));
        }
    }

    /// It is gone.
    pub fn ends(&mut self, id: u32, connection: u32, now: Now) {
        if let Some(known) = self.known.get_mut(&id)
            && known.connection == Some(connection)
        {
            known.connection = None;
            known.is_here(now);
            self.changed = true;
        }
    }

    /// How many files would be purged if it were not for a replica, and which one that is.
    pub fn held(&self) -> Option<(usize, u32)> {
        self.held
    }

    /// See [`Registry::held`].
    pub fn set_held(&mut self, held: Option<(usize, u32)>) {
        self.held = held;
    }

    /// Time passes. `forget_secs`: who is away for longer is forgotten; tells whom.
    pub fn tick(&mut self, now: Now, forget_secs: Option<u64>) -> Vec<u32> {
        let here = |known: &&mut Known| known.connection.is_some();
        for known in self.known.values_mut().filter(here) {
            known.is_here(now);
            while let Some((since, file)) = known.entered.front().copied()
                && since.saturating_add(self.hold_secs) <= now.up
            {
                known.entered.pop_front();
                known.held = file;
            }
            let counts = self.hold_secs.max(SAID_SECS);
            let counts = |applied: &Applied| applied.at.saturating_add(counts) > now.up;
            known.applied = known.applied.filter(counts);
            self.changed |= known.settle();
        }
        if self.told.saturating_add(AGAIN_SECS) <= now.up {
            self.told = now.up;
            self.changed |= self.known.values().any(|k| k.connection.is_some());
        }
        let Some(forget) = forget_secs else {
            return Vec::new();
        };
        let started = self.started.unwrap_or(0);
        let gone = |k: &Known| {
            let seen = k.seen.unwrap_or(started);
            k.connection.is_none() && seen.saturating_add(forget) < now.up
        };
        let ids: Vec<u32> = self
            .known
            .iter()
            .filter(|(_, k)| gone(k))
            .map(|(id, _)| *id)
            .collect();
        for id in &ids {
            self.remove(*id, Forgotten::BY_SETTING, now);
        }
        ids
    }

    /// An operator says so: nothing is kept any more for the replica with this server id or name. Gives
    /// what was known of it.
    ///
    /// # Errors
    /// It is here, or may be about to come back after the relay's start, or it is not clear which one
    /// that is.
    pub fn forget(
        &mut self,
        name: &Called,
        by: &str,
        now: Now,
    ) -> Result<(u32, Known), Unforgettable> {
        let named = self.called(name);
        let (id, known) = match &named[..] {
            [] => return Err(Unforgettable::Unknown),
            [(id, known)] => (*id, *known),
            several => {
                let ids = several.iter().map(|(id, _)| *id).collect();
                return Err(Unforgettable::Several(ids));
            }
        };
        if known.connection.is_some() {
            return Err(Unforgettable::Here(id, Box::new(known.clone())));
        }
        let back = self.started.map_or(0, |at| at.saturating_add(BACK_SECS));
        if known.seen.is_none() && now.up < back {
            let known = Box::new(known.clone());
            return Err(Unforgettable::TooSoon(id, known, back - now.up));
        }
        let known = self.remove(id, by, now).ok_or(Unforgettable::Unknown)?;
        Ok((id, known))
    }

    fn remove(&mut self, id: u32, by: &str, now: Now) -> Option<Known> {
        let known = self.known.remove(&id)?;
        self.changed = true;
        // What it held is counted anew in a moment.
        self.held = self.held.filter(|(_, by)| *by != id);
        if self.forgotten.len() == FORGOTTEN_MAX {
            self.forgotten.pop_front();
        }
        self.forgotten.push_back(Forgotten {
            server_id: id,
            host: known.host.clone(),
            needed: known.needs,
            at: now.unix,
            by: by.to_owned(),
        });
        Some(known)
    }

    /// The last ones that were forgotten since the start, oldest first.
    pub fn forgotten(&self) -> impl Iterator<Item = &Forgotten> {
        self.forgotten.iter()
    }

    /// The oldest file that anybody needs, and who; `oldest`: the oldest one that is there. See
    /// [`Known::holds`].
    pub fn needed(&self, oldest: u64) -> Option<(u64, u32)> {
        let held = |(id, known): (&u32, &Known)| Some((known.holds(oldest)?, *id));
        self.known.iter().filter_map(held).min()
    }

    /// Those for which nothing that is left would do.
    pub fn cut_off(&self, oldest: u64) -> impl Iterator<Item = (u32, &Known)> {
        let known = self.known.iter();
        let known = known.filter(move |(_, k)| k.is_cut_off(oldest));
        known.map(|(id, k)| (*id, k))
    }

    /// Those that are here.
    pub fn hosts(&self) -> Vec<Host> {
        let here = self.known.iter().filter(|(_, k)| k.connection.is_some());
        here.map(|(id, k)| Host {
            server_id: *id,
            host: k.host.clone(),
            port: k.port,
        })
        .collect()
    }

    /// Everybody, by server id.
    pub fn known(&self) -> &BTreeMap<u32, Known> {
        &self.known
    }
}

#[cfg(test)]
mod tests;
