//! Stored events, made into what one replica gets. Decides; sends nothing itself.
//!
//! ```text
//! begin      rotate (made here), format description, GTID list (made here)
//! then       events as stored; groups that it has are left out; checksum as it wants it
//! new file   the stored rotate, a rotate made here, and all of that file
//! ```

use dromon_binlog::{
    BinlogState, Checksum, Event, EventError, EventType, Format, GroupName, Grouper, GtidList,
    Maker, Place as At, Step, StreamError, format_for_replica, with_checksum,
};

use crate::store::{Refused, Wanted};
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

/// One replica's feed.
#[derive(Debug)]
pub struct Feed {
    server_id: u32,
    checksum: Checksum,
    annotate: bool,
    wanted: Wanted,
    grouper: Grouper,
    /// The open group is left out.
    skips: bool,
    /// The last event named the next file.
    turned: bool,
    sequence: u8,
    out: Vec<u8>,
    groups: u64,
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
            skips: false,
            turned: false,
            sequence,
            out: Vec::new(),
            groups: 0,
        }
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
        self.turned = false;
        self.skips = false;
        Ok(())
    }

    /// Goes on with the next file, from its first event.
    pub fn next_file(&mut self, file: &str) -> Result<(), FeedError> {
        if !self.turned {
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
        self.turned = false;
    }

    fn put_format(&mut self, event: &Event<'_>, from_beginning: bool) -> Result<(), FeedError> {
        let closed = format_for_replica(event, from_beginning)?;
        let closed = Event::parse(&closed, Checksum::Crc32)?;
        let wanted = with_checksum(&closed, self.checksum)?;
        self.put(&wanted);
        Ok(())
    }

    /// The next stored event.
    pub fn event(&mut self, raw: &[u8]) -> Result<(), FeedError> {
        let seen = self.grouper.event(raw)?;
        let (event, step) = (seen.event, seen.step);
        if let Step::Begin(group) | Step::Alone(group, _) = step {
            self.skips = match group.name {
                GroupName::MariaDb(gtid) => !self.wanted.takes(gtid)?,
                _ => false,
            };
            self.groups += u64::from(!self.skips);
        }
        self.turned = event.kind() == EventType::ROTATE;
        if event.kind() == EventType::FORMAT_DESCRIPTION {
            return self.put_format(&event, true);
        }
        let of_group = step != Step::Between;
        if of_group && self.skips || event.kind() == EventType::ANNOTATE_ROWS && !self.annotate {
            return Ok(());
        }
        let wanted = with_checksum(&event, self.checksum)?;
        self.put(&wanted);
        Ok(())
    }

    /// The replica is to know that the relay is there.
    pub fn heartbeat(&mut self, file: &str, at: u64) {
        // Beyond 4 GiB the position does not fit; that it has not moved is true then, too.
        let position = at.min(u64::from(u32::MAX));
        if let Some(event) = self.maker().heartbeat(file, position) {
            self.put(&event);
        }
    }
}
