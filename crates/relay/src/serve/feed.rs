//! Stored events, made into what one replica gets. Decides; sends nothing itself.
//!
//! ```text
//! begin      rotate (made here), format description, GTID list (made here)
//! then       events as stored; groups that it has are left out; checksum as it wants it
//! new file   the stored rotate, a rotate made here, and all of that file
//! ```

use std::collections::BTreeMap;

use dromon_binlog::{
    BinlogState, Checksum, Event, EventError, EventType, Format, GroupName, Grouper, Gtid,
    GtidHint, GtidList, GtidSet, LogicalClock, Maker, Payload, Place as At, Position, Step,
    StreamError, format_for_replica, gtid_list_flags, patch_clock, patch_gtid, with_checksum,
};

use crate::store::{GroupKey, Refused, Said, Wanted, checksum_of, ended};
use crate::wire::put_packet_of;

/// Why a replica cannot be fed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeedError {
    /// What is stored is damaged.
    #[error("{0}")]
    Stream(#[from] StreamError),
    /// The same.
    #[error("{0}")]
    Event(#[from] EventError),
    /// It does not fit the replica.
    #[error("{0}")]
    Refused(#[from] Refused),
    /// A file ends without naming the next one.
    #[error("It ends without naming the next file: its end is missing.")]
    NoEnd,
}

/// What is done with commit ids and logical clocks, by which a parallel replica knows what it may run
/// at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// They are the primary's.
    #[default]
    Pass,
    /// Those of the relay, from what transactions write. A group of which nothing was found out has
    /// the primary's.
    Group,
    /// MySQL's `last_committed` is that of the relay, where that allows more. A group of
    /// which nothing was found out has the primary's.
    LogicalClock,
}

impl Policy {
    /// As in the settings.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Pass => "pass",
            Policy::Group => "group",
            Policy::LogicalClock => "logical_clock",
        }
    }
}

/// Set in commit ids of the primary that stand among those of the relay, which are seqnos.
const FOREIGN: u64 = 1 << 63;
/// Odd, so that no two products are the same.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// As many seconds may a group be ahead of the relay's clock and count as made when it says: clocks
/// differ. A session may say any time.
const AHEAD: u32 = 2;
/// Domains whose last commit id is remembered.
const DOMAINS_MAX: usize = 1024;

/// One replica's feed.
#[derive(Debug)]
pub struct Feed {
    server_id: u32,
    checksum: Checksum,
    annotate: bool,
    wanted: Wanted,
    grouper: Grouper,
    /// Files need not end with the name of the next one: the primary's did not, after a crash.
    mirror: bool,
    /// The replica is one of MySQL.
    mysql: bool,
    /// The open group is left out.
    skips: bool,
    /// The last event named this next file, which the replica believes to be in since.
    turned: Option<String>,
    sequence: u8,
    out: Vec<u8>,
    groups: u64,
    policy: Policy,
    /// Groups that the replica may run beside the one before.
    joined: u64,
    /// Of the last group of each domain.
    last_ids: BTreeMap<u32, Option<u64>>,
    /// What the replica had, and has by now if it took what it was given.
    given: Position,
    /// A group made later than this was made after the replica came.
    came: u32,
    /// See [`Feed::now`].
    now: u32,
    /// Where the replica is to stop, in each domain in which it is not there yet.
    until: Option<Position>,
    /// It was told that it is there.
    is_over: bool,
}

impl Feed {
    /// Before the first event. `sequence`: of the next packet.
    pub fn new(
        server_id: u32,
        checksum: Checksum,
        annotate: bool,
        wanted: Wanted,
        sequence: u8,
    ) -> Feed {
        Feed {
            server_id,
            checksum,
            annotate,
            wanted,
            grouper: Grouper::of_file(),
            mirror: false,
            mysql: false,
            skips: false,
            turned: None,
            sequence,
            out: Vec::new(),
            groups: 0,
            policy: Policy::Pass,
            joined: 0,
            last_ids: BTreeMap::new(),
            given: Position::new(),
            came: u32::MAX,
            now: 0,
            until: None,
            is_over: false,
        }
    }

    /// When the replica came, in seconds of the primary's clock, or later.
    pub fn came(&mut self, time: u32) {
        self.came = time;
    }

    /// What time it is, in seconds since 1970, as long as the replica has something that is awaited: a
    /// group that says that it was made later does not say when it was.
    pub fn now(&mut self, time: u32) {
        self.now = time;
    }

    /// What the relay has by now is all that the primary had at some time after the replica came.
    pub fn complete(&mut self, state: &BinlogState) -> Result<(), FeedError> {
        Ok(self.wanted.complete(state)?)
    }

    /// The same of MySQL.
    pub fn complete_set(&mut self, executed: &GtidSet) -> Result<(), FeedError> {
        Ok(self.wanted.complete_set(executed)?)
    }

    /// The files equal those of a primary without GTIDs of MariaDB.
    pub fn mirrors(&mut self) {
        self.mirror = true;
    }

    /// The replica is one of MySQL.
    pub fn is_mysql(&mut self) {
        self.mysql = true;
    }

    /// What is done with commit ids and clocks.
    pub fn policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Groups that the replica may run beside the one before: they have its commit id (the one before
    /// in their domain), or their `last_committed` lies before it.
    pub fn joined(&self) -> u64 {
        self.joined
    }

    /// What the replica has before the first event.
    pub fn has(&mut self, position: Position) {
        self.given = position;
    }

    /// It wants nothing beyond this position, and nothing of domains that this does not name: those in
    /// which it is there before the first event (see [`crate::store::View::not_there`]).
    pub fn until(&mut self, until: Position) {
        self.until = Some(until);
    }

    /// Where the replica is to stop it was told so: nothing follows.
    pub fn is_over(&mut self) -> bool {
        if !self.is_over && self.until.as_ref().is_some_and(Position::is_empty) {
            self.is_over = true;
            let list = GtidList {
                flags: gtid_list_flags::UNTIL_REACHED,
                gtids: self.given.iter().collect(),
            };
            let list = self.maker().gtid_list(&list);
            self.put(&list);
        }
        self.is_over
    }

    /// Whether a group lies behind where the replica is to stop. Of the last one before it knows it
    /// when it ends. Only a server's own numbers rise; those of others say nothing.
    fn is_beyond(&mut self, gtid: Gtid) -> bool {
        let Some(until) = &mut self.until else {
            return false;
        };
        match until.get(gtid.domain) {
            None => true,
            Some(last) if gtid.server == last.server && gtid.seqno > last.seqno => {
                until.remove(gtid.domain);
                true
            }
            Some(_) => false,
        }
    }

    /// All that it has if it took what it was given.
    pub fn given(&self) -> &Position {
        &self.given
    }

    /// What is to be sent.
    pub fn out(&self) -> &[u8] {
        &self.out
    }

    /// It was sent.
    pub fn sent(&mut self) {
        self.out.clear();
        // After one large event not all of its room is kept.
        self.out.shrink_to(256 << 10);
    }

    /// Of the next packet.
    pub fn sequence(&self) -> u8 {
        self.sequence
    }

    /// Groups given so far.
    pub fn groups(&self) -> u64 {
        self.groups
    }

    /// What is left out.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    fn put(&mut self, event: &[u8]) {
        self.sequence = put_packet_of(&mut self.out, self.sequence, &[&[0], event]);
    }

    fn maker(&self) -> Maker {
        Maker {
            server_id: self.server_id,
            timestamp: 0,
            checksum: self.checksum,
            place: At::Nowhere,
        }
    }

    /// Begins at a byte of a file, at which an event begins. `state`: all groups before, for a
    /// replica with GTIDs.
    pub fn begin(
        &mut self,
        file: &str,
        at: u64,
        format_event: &[u8],
        state: Option<&BinlogState>,
    ) -> Result<(), FeedError> {
        let rotate = self.maker().rotate(file, at);
        self.put(&rotate);
        let event = Event::parse(format_event, Checksum::Crc32)?;
        let format = Format::decode(format_event)?;
        self.put_format(&event, false)?;
        if let Some(state) = state {
            let list = self.maker().gtid_list(&GtidList::of(state));
            self.put(&list);
        }
        self.grouper = Grouper::of_file_from(at, format);
        self.turned = None;
        self.skips = false;
        Ok(())
    }

    /// Goes on with the next file, from its first event.
    pub fn next_file(&mut self, file: &str) -> Result<(), FeedError> {
        if self.turned.is_none() && !self.mirror {
            return Err(FeedError::NoEnd);
        }
        self.begin_file(file);
        Ok(())
    }

    /// Begins with the first event of a file.
    pub fn begin_file(&mut self, file: &str) {
        let rotate = self.maker().rotate(file, 4);
        self.put(&rotate);
        self.grouper = Grouper::of_file();
        self.turned = None;
    }

    fn put_format(&mut self, event: &Event<'_>, from_beginning: bool) -> Result<(), FeedError> {
        let closed = format_for_replica(event, from_beginning)?;
        let closed = Event::parse(&closed, Checksum::Crc32)?;
        let wanted = with_checksum(&closed, self.checksum)?;
        self.put(&wanted);
        Ok(())
    }

    /// The next stored event. `hint`: asked for groups that are given, if the policy wants it, and
    /// gives what is known of them.
    pub fn event(
        &mut self,
        raw: &[u8],
        hint: impl FnOnce(GroupKey) -> Option<Said>,
    ) -> Result<(), FeedError> {
        let seen = self.grouper.event(raw)?;
        let (event, step) = (seen.event, seen.step);
        if let Step::Begin(group) | Step::Alone(group, _) = step {
            let possible = group.timestamp <= self.now.saturating_add(AHEAD);
            if possible && group.timestamp > self.came {
                self.wanted.passed();
            }
            self.skips = match group.name {
                GroupName::MariaDb(gtid) => !self.wanted.takes(gtid)? || self.is_beyond(gtid),
                GroupName::MySql { source, number } => !self.wanted.takes_of(&source, number)?,
                GroupName::Nameless => false,
            };
            self.groups += u64::from(!self.skips);
        }
        if let Some(gtid) = ended(step) {
            if !self.skips {
                self.given.set(gtid);
            }
            if let Some(until) = &mut self.until
                && until.get(gtid.domain) == Some(gtid)
            {
                until.remove(gtid.domain);
            }
        }
        self.turned = match (event.kind(), self.grouper.format()) {
            (EventType::ROTATE, Some(format)) => match event.decode(format)? {
                Payload::Rotate(rotate) => Some(String::from_utf8_lossy(rotate.file).into_owned()),
                _ => None,
            },
            _ => None,
        };
        if event.kind() == EventType::FORMAT_DESCRIPTION {
            return self.put_format(&event, true);
        }
        let of_group = step != Step::Between;
        if of_group && self.skips || event.kind() == EventType::ANNOTATE_ROWS && !self.annotate {
            return Ok(());
        }
        let mut wanted = with_checksum(&event, self.checksum)?;
        if let Step::Begin(group) = step
            && let GroupName::MariaDb(gtid) = group.name
            && event.kind() == EventType::GTID
        {
            let mut id = group.commit_id;
            if self.policy == Policy::Group {
                let hint = match hint(GroupKey::Gtid(gtid)) {
                    Some(Said::Batch(id)) => Some(id),
                    _ => None,
                };
                id = self.patch(wanted.to_mut(), gtid, id, hint);
            }
            let last = self.last_ids.insert(gtid.domain, id);
            self.joined += u64::from(id.is_some() && last == Some(id));
            if self.last_ids.len() > DOMAINS_MAX {
                self.last_ids.clear();
            }
        } else if let Step::Begin(_) = step
            && let Some(own) = clock_of(&event)
        {
            let mut clock = own;
            if self.policy == Policy::LogicalClock
                && let Some(Said::Clock(found)) = hint(GroupKey::First(checksum_of(raw)))
            {
                clock = own.hinted(found);
            }
            if clock != own {
                patch_clock(wanted.to_mut(), self.checksum, clock)?;
            }
            self.joined += u64::from(clock.beside_the_last());
        }
        self.put(&wanted);
        Ok(())
    }

    /// Sets the commit id of a group of MariaDB. Gives what it is then.
    fn patch(
        &self,
        raw: &mut [u8],
        gtid: Gtid,
        own: Option<u64>,
        hint: Option<Option<u64>>,
    ) -> Option<u64> {
        let id = match hint {
            Some(id) => id.filter(|id| id & FOREIGN == 0),
            // As the primary said. Its numbers may be those of other batches by chance.
            None => own.map(foreign),
        };
        let mut set = |commit_id| {
            let hint = GtidHint {
                commit_id,
                flags: None,
            };
            patch_gtid(raw, self.checksum, hint).is_ok()
        };
        if set(id) {
            return id;
        }
        // It has parts that this build does not know, so nothing can be added or taken away. A
        // number of its own is as good as none.
        let alone = own.map(|_| gtid.seqno);
        match alone.is_some() && set(alone) {
            true => alone,
            false => own,
        }
    }

    /// The replica is to know that the relay is there, at a byte of a file: that of the last event. A
    /// replica stops if that is not the file and not behind the byte at which it believes to be.
    /// `behind`: for a relay, how many seconds all that was given is behind the primary; else 0.
    pub fn heartbeat(&mut self, file: &str, at: u64, behind: u32) {
        let turned = self.turned.clone();
        let (file, at) = turned.as_deref().map_or((file, at), |next| (next, 4));
        let maker = Maker {
            timestamp: behind,
            ..self.maker()
        };
        let event = match u32::try_from(at) {
            Ok(_) => maker.heartbeat(file, at),
            // One of MySQL knows no place so far, and a nearer one would stop it.
            Err(_) if self.mysql => None,
            Err(_) => Some(maker.heartbeat_long(file, at)),
        };
        if let Some(event) = event {
            self.put(&event);
        }
    }
}

/// The primary's commit id, among those of the relay. A primary that is another relay has both kinds: 5 and a
/// foreign 5 are two batches there, and stay two.
fn foreign(id: u64) -> u64 {
    match id & FOREIGN {
        0 => id | FOREIGN,
        _ => id.wrapping_mul(SPREAD) | FOREIGN,
    }
}

/// The numbers of MySQL's GTID event.
fn clock_of(event: &Event<'_>) -> Option<LogicalClock> {
    match event.decode(&Format::unknown()) {
        Ok(Payload::MySqlGtid(gtid)) => gtid.clock,
        _ => None,
    }
}
