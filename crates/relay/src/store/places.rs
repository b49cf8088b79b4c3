//! Which groups stand in which file, and where a replica must begin.
//!
//! Of each file the state at its beginning is known (its GTID list), and of some places in
//! it, some ten thousand bytes apart. Everything here is decided from these; nothing is
//! read and no clock is asked.
//!
//! A place *suits* a position if everything before it was taken by who has the position.
//! The states only grow along the files, so the places that suit are a beginning of all
//! places, and the last of them is the best. What was taken and stands behind it is
//! skipped: see [`Wanted`].

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use dromon_binlog::{BinlogState, Gtid, GtidSet, Position};

use super::history::History;
use super::lacks::{Lacks, text};
use super::mark::Place;
use super::points::Point;

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Its number.
    pub number: u64,
    /// All groups before it.
    pub start: History,
    /// No group before it was made later, in seconds since 1970; of the first file some time before its
    /// groups; 0: not known.
    pub start_time: u32,
    /// Up to where it may be served.
    pub len: u64,
    /// Where the event stands that says what came before.
    pub list: u64,
    /// Where its first group can begin.
    pub body: u64,
    /// Places in it, rising.
    pub points: Vec<Point>,
    /// Whether the points reach its end.
    pub indexed: bool,
}

/// Bytes of memory that places take of all files, but those of the newest one. Each takes some 650 where
/// there is one domain, and 2 KB where there are ten.
const POINTS_MAX: usize = 64 << 20;

/// What the places of a file take.
fn weight(points: &[Point]) -> usize {
    points.iter().map(Point::weight).sum()
}

/// All files, without a gap.
#[derive(Clone, Debug, Default)]
pub struct Places {
    files: VecDeque<FileEntry>,
    /// Of which places are kept: their numbers and what these places take, the one read through or begun last
    /// behind. Some may be gone.
    indexed: VecDeque<(u64, usize)>,
    /// Shared with who stores and who reads, as it may be large: nobody is to wait for a copy.
    state: Arc<History>,
    /// No group was made later.
    newest: u32,
}

/// Why a replica cannot be served from its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// What follows its position is not here (any more).
    #[error(
        "The relay has nothing before {oldest} any more, and the replica asks for what follows {asked}. It needs a new \
         copy of the data, or the primary itself"
    )]
    Purged {
        /// What it asked for.
        asked: Text,
        /// Where the relay begins.
        oldest: Text,
    },
    /// Of whole domains the replica has nothing, and their beginning is not here (any more).
    #[error(
        "The relay has nothing before {oldest} any more, and the replica, with {asked}, has nothing of other domains: the relay has had {lacks}. \
         If its data has that (domains were dropped with DELETE_DOMAIN_ID), say there, with the slave stopped: SET GLOBAL \
         gtid_slave_pos='{all}'. Else it needs a new copy of the data, or the primary itself"
    )]
    Domains {
        /// What it has.
        asked: Text,
        /// Where the relay begins.
        oldest: Text,
        /// What of that is in domains of which it has nothing.
        lacks: Text,
        /// Both.
        all: Text,
    },
    /// The replica has a group that the primary never had.
    #[error(
        "The replica has {has}, which is not in the relay's binlog, where the domain goes on to {last}. Either the replica \
         has executed transactions of its own, or it follows another history"
    )]
    Forked {
        /// What the replica has.
        has: Gtid,
        /// What the relay has in that domain.
        last: Gtid,
    },
    /// The replica lacks groups of MySQL that are not here any more.
    #[error(
        "The replica is connecting with MASTER_AUTO_POSITION = 1, but the relay has purged, or never had, transactions that it \
         lacks: {lacks}. It needs a new copy of the data, or the primary itself"
    )]
    PurgedSet {
        /// Which.
        lacks: Text,
    },
    /// The replica has groups of MySQL that the primary never had.
    #[error(
        "The replica has {has}, which neither the relay nor its primary has, though they have others of the same server. Either \
         the replica has executed transactions of its own, or the primary has lost what it had sent"
    )]
    Errant {
        /// Which.
        has: Text,
    },
}

/// A position as text, with a word for the empty one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(pub String);

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.is_empty() {
            true => f.write_str("nothing (an empty position)"),
            false => f.write_str(&self.0),
        }
    }
}

/// Where to begin, and what to leave out from there on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Here.
    pub place: Place,
    /// All groups before it.
    pub state: History,
    /// What to leave out.
    pub wanted: Wanted,
}

/// Which groups a replica wants: in each domain those behind its own last one, or those of MySQL
/// that are not in its set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    seeking: BTreeMap<u32, Seek>,
    lacks: Lacks,
    /// Said of a group that is [`Seek::old`] and does not come.
    purged: Option<Refused>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seek {
    last: Gtid,
    found: Found,
    /// It may have been before the oldest file, or before the relay began: of its server nothing has come yet,
    /// and the domain was past its number. Without gtid_strict_mode it may as well be still to come, so it is
    /// looked for.
    old: bool,
    /// See [`Wanted::has_other_ways`].
    other_ways: bool,
}

impl Seek {
    /// It may come after all, in a domain that has come as far as `last`.
    fn may_come(&self, last: Option<Gtid>) -> bool {
        self.other_ways && last.is_none_or(|last| last.seqno < self.last.seqno)
    }
}

/// Where the last group is that a replica has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// In the files.
    Here,
    /// Not yet: the relay is behind the replica, or the replica has another history.
    Awaited,
    /// Nowhere: the primary did not have it either when the replica came.
    Nowhere,
}

impl Wanted {
    /// All.
    pub fn all() -> Wanted {
        Wanted::default()
    }

    /// The replica gets the same history by other ways, too: what it has may come here as late as ever the primary
    /// of this relay gets it.
    pub fn has_other_ways(&mut self) {
        for seek in self.seeking.values_mut() {
            seek.other_ways = true;
        }
    }

    /// Those of MySQL.
    pub fn set(lacks: Lacks) -> Wanted {
        Wanted {
            lacks,
            ..Wanted::default()
        }
    }

    /// As [`Wanted::takes`], of a group of MySQL.
    pub fn takes_of(&mut self, source: &[u8; 16], number: u64) -> Result<bool, Refused> {
        self.lacks.takes(source, number)
    }

    /// Whether the replica has something that the relay has not reached.
    pub fn awaits(&self) -> bool {
        self.ahead().next().is_some() || self.lacks.awaits()
    }

    /// What that is, of domains and sources that are here: others concern others, mostly for ever.
    pub fn awaited(&self, here: &BinlogState, executed: &GtidSet) -> String {
        let here = here.position();
        let domains = self.ahead().filter(|g| here.get(g.domain).is_some());
        let mut all: Vec<String> = domains.map(|g| g.to_string()).collect();
        let set = self.lacks.ahead(executed);
        if !set.is_empty() {
            all.push(text(&set).0);
        }
        all.join(",")
    }

    /// As [`Wanted::complete`], of MySQL.
    pub fn complete_set(&mut self, executed: &GtidSet) -> Result<(), Refused> {
        self.lacks.complete(executed)
    }

    /// Whether the replica is to get this group, the next one in the files.
    pub fn takes(&mut self, gtid: Gtid) -> Result<bool, Refused> {
        let Some(seek) = self.seeking.get(&gtid.domain).copied() else {
            return Ok(true);
        };
        if gtid == seek.last {
            self.seeking.remove(&gtid.domain);
            return Ok(false);
        }
        // A server's own numbers rise, so its group will not come any more. Other servers'
        // may be out of order, unless the group was not there when the replica came.
        let beyond = match seek.found {
            Found::Here => gtid.seqno > seek.last.seqno && gtid.server == seek.last.server,
            Found::Awaited => gtid.seqno >= seek.last.seqno,
            Found::Nowhere => true,
        };
        if beyond {
            return Err(self.never(&seek, gtid));
        }
        // What came before this one is before what the replica has, too.
        if gtid.server == seek.last.server
            && let Some(seek) = self.seeking.get_mut(&gtid.domain)
        {
            seek.old = false;
        }
        Ok(false)
    }

    /// What the replica has does not come, in a domain that has come as far as `last`.
    fn never(&self, seek: &Seek, last: Gtid) -> Refused {
        let has = seek.last;
        let purged = self.purged.clone().filter(|_| seek.old);
        purged.unwrap_or(Refused::Forked { has, last })
    }

    /// Groups that the replica has and the relay has not reached.
    pub fn ahead(&self) -> impl Iterator<Item = Gtid> + '_ {
        let awaited = |s: &&Seek| s.found == Found::Awaited;
        self.seeking.values().filter(awaited).map(|s| s.last)
    }

    /// `state` has all that the primary had at some time after the replica came. What the replica
    /// has and is not in it never comes, unless it has other ways: in a domain that has groups that is an error,
    /// in another one its first group will be.
    pub fn complete(&mut self, state: &BinlogState) -> Result<(), Refused> {
        let mut never = None;
        for seek in self.seeking.values_mut() {
            if seek.found != Found::Awaited {
                continue;
            }
            let Gtid { domain, server, .. } = seek.last;
            let here = state.get(domain, server);
            if here.is_some_and(|seqno| seqno >= seek.last.seqno) {
                seek.found = Found::Here;
                continue;
            }
            let last = state.last(domain);
            if seek.may_come(last) {
                continue;
            }
            if let Some(last) = last {
                never = Some((*seek, last));
                break;
            }
            seek.found = Found::Nowhere;
        }
        match never {
            Some((seek, last)) => Err(self.never(&seek, last)),
            None => Ok(()),
        }
    }

    /// The next group was made after the replica came: all that the replica had was before it, unless it has
    /// other ways.
    pub fn passed(&mut self) {
        self.lacks.passed();
        for seek in self.seeking.values_mut() {
            if seek.found == Found::Awaited && !seek.other_ways {
                seek.found = Found::Nowhere;
            }
        }
    }
}

/// Whether everything in `state` was taken by who has `position`.
fn suits(state: &History, position: &Position) -> bool {
    let state = &state.mariadb;
    state.lasts().all(|last| match position.get(last.domain) {
        None => false,
        Some(taken) if taken == last => true,
        // Taken must be still to come.
        Some(taken) => state
            .get(taken.domain, taken.server)
            .is_none_or(|seqno| seqno < taken.seqno),
    })
}

impl Places {
    /// Of files that are there, what is in all of them, and when the newest of it was made.
    pub fn new(files: VecDeque<FileEntry>, state: History, newest: u32) -> Places {
        let indexed = files.iter().filter(|f| f.indexed);
        let indexed = indexed.map(|f| (f.number, weight(&f.points)));
        Places {
            indexed: indexed.collect(),
            files,
            state: Arc::new(state),
            newest,
        }
    }

    /// It is `now`, in seconds since 1970: what is here was made before, whatever it says.
    pub fn came_by(&mut self, now: u32) {
        self.newest = self.newest.min(now);
    }

    /// The files, oldest first.
    pub fn files(&self) -> &VecDeque<FileEntry> {
        &self.files
    }

    /// A file by its number.
    pub fn file(&self, number: u64) -> Option<&FileEntry> {
        let first = self.files.front()?.number;
        self.files
            .get(usize::try_from(number.checked_sub(first)?).ok()?)
    }

    fn file_mut(&mut self, number: u64) -> Option<&mut FileEntry> {
        let first = self.files.front()?.number;
        self.files
            .get_mut(usize::try_from(number.checked_sub(first)?).ok()?)
    }

    /// All groups in the files and before them.
    pub fn state(&self) -> &Arc<History> {
        &self.state
    }

    /// No group was made later, in seconds since 1970; 0: not known. A session may say any time: one
    /// ahead of the relay's clock counts as that of its coming, and one of long ago makes nothing old.
    pub fn newest(&self) -> u32 {
        self.newest
    }

    /// The end of the last file.
    pub fn end(&self) -> Place {
        self.files.back().map_or(Place::default(), |f| Place {
            file: f.number,
            at: f.len,
        })
    }

    /// A file was begun.
    pub fn push(&mut self, file: FileEntry) {
        debug_assert!(
            self.files
                .back()
                .is_none_or(|f| f.number + 1 == file.number)
        );
        self.indexed.push_back((file.number, weight(&file.points)));
        self.files.push_back(file);
        self.forget_points();
    }

    /// Forgets the places of files that were read through or begun longest ago, if they take too much:
    /// who begins there reads the file through again, as after a start.
    fn forget_points(&mut self) {
        // Never of the newest, which is written.
        let newest = self.files.back().map(|f| f.number);
        let mut kept = VecDeque::new();
        let mut bytes = 0;
        for (number, of_it) in std::mem::take(&mut self.indexed).into_iter().rev() {
            if self.file(number).is_none() {
                continue;
            }
            if newest == Some(number) || kept.is_empty() || bytes + of_it <= POINTS_MAX {
                bytes += of_it;
                kept.push_front((number, of_it));
            } else if let Some(file) = self.file_mut(number) {
                file.points = Vec::new();
                file.indexed = false;
            }
        }
        self.indexed = kept;
    }

    /// The last file has grown by groups of which none was made later than `newest`. Gives the state of before,
    /// which takes its time to let go.
    pub fn grown(
        &mut self,
        len: u64,
        points: Vec<Point>,
        state: Arc<History>,
        newest: u32,
    ) -> Arc<History> {
        if let Some(file) = self.files.back_mut() {
            file.len = len;
            let last = self.indexed.iter_mut().rev();
            if let Some((_, of_it)) = last.into_iter().find(|(n, _)| *n == file.number) {
                *of_it += weight(&points);
            }
            file.points.extend(points);
        }
        self.newest = self.newest.max(newest);
        std::mem::replace(&mut self.state, state)
    }

    /// A file was read through.
    pub fn index(&mut self, number: u64, points: Vec<Point>) {
        if let Some(file) = self.file_mut(number).filter(|f| !f.indexed) {
            let of_it = weight(&points);
            file.points = points;
            file.indexed = true;
            self.indexed.push_back((number, of_it));
            self.forget_points();
        }
    }

    /// Forgets the oldest file.
    pub fn pop(&mut self) -> Option<FileEntry> {
        // There is always one to write to.
        (self.files.len() > 1)
            .then(|| self.files.pop_front())
            .flatten()
    }

    /// The oldest file could not be removed: it is back.
    pub fn unpop(&mut self, file: FileEntry) {
        debug_assert!(
            self.files
                .front()
                .is_none_or(|f| file.number + 1 == f.number)
        );
        self.files.push_front(file);
    }

    /// No group of this file was made later, as far as known. Its own beginning counts, too: the next file
    /// may have begun while the clock was not set yet.
    pub fn newest_group(&self, index: usize) -> u32 {
        let began = |index: usize| self.files.get(index).map(|f| f.start_time);
        let next = began(index + 1).unwrap_or(self.newest);
        next.max(began(index).unwrap_or(0))
    }

    /// The file in which a replica with this position must begin.
    pub fn file_for(&self, position: &Position) -> Result<u64, Refused> {
        for taken in position.iter() {
            let Some(last) = self.state.mariadb.last(taken.domain) else {
                continue;
            };
            let has = self.state.mariadb.get(taken.domain, taken.server);
            if has.is_some_and(|seqno| seqno >= taken.seqno) || last.seqno < taken.seqno {
                continue;
            }
            let oldest = self.oldest().mariadb.last(taken.domain);
            return Err(match oldest.is_some_and(|o| o.seqno > taken.seqno) {
                // Whether it was there once cannot be told.
                true => self.purged(position),
                false => Refused::Forked { has: taken, last },
            });
        }
        let found = self.files.iter().rev().find(|f| suits(&f.start, position));
        match (found, self.files.front()) {
            (Some(file), _) => Ok(file.number),
            (None, None) if suits(&self.state, position) => Ok(0),
            (None, _) => Err(self.purged(position)),
        }
    }

    /// All groups before the first file, be it still to come.
    pub(super) fn oldest(&self) -> &History {
        let first = self.files.front().map(|file| &file.start);
        first.unwrap_or(&self.state)
    }

    fn purged(&self, position: &Position) -> Refused {
        let oldest = self.oldest().mariadb.position();
        let (mut all, mut lacks) = (position.clone(), Position::new());
        for gtid in oldest.iter().filter(|g| position.get(g.domain).is_none()) {
            all.set(gtid);
            lacks.set(gtid);
        }
        let (asked, oldest) = (Text(position.to_string()), Text(oldest.to_string()));
        // One without anything needs a copy in any case.
        let domains_alone =
            !position.is_empty() && !lacks.is_empty() && self.file_for(&all).is_ok();
        match domains_alone {
            false => Refused::Purged { asked, oldest },
            true => Refused::Domains {
                asked,
                oldest,
                lacks: Text(lacks.to_string()),
                all: Text(all.to_string()),
            },
        }
    }

    /// The best place in that file as far as its points are known.
    pub fn begin(&self, position: &Position) -> Result<Option<Begin>, Refused> {
        let number = self.file_for(position)?;
        let Some(file) = self.file(number) else {
            return Ok(None);
        };
        let suiting = file.points.partition_point(|p| suits(&p.state, position));
        let (at, state) = match suiting.checked_sub(1) {
            Some(n) => (file.points[n].at, &file.points[n].state),
            None => (file.body, &file.start),
        };
        let (here, oldest) = (&state.mariadb, &self.oldest().mariadb);
        let mut wanted = Wanted::all();
        for taken in position.iter().filter(|g| here.last(g.domain) != Some(*g)) {
            let seqno = self.state.mariadb.get(taken.domain, taken.server);
            wanted.seeking.insert(
                taken.domain,
                Seek {
                    last: taken,
                    found: match seqno.is_some_and(|seqno| seqno >= taken.seqno) {
                        true => Found::Here,
                        false => Found::Awaited,
                    },
                    old: here.get(taken.domain, taken.server).is_none()
                        && oldest
                            .last(taken.domain)
                            .is_some_and(|begin| begin.seqno > taken.seqno),
                    other_ways: false,
                },
            );
        }
        if wanted.seeking.values().any(|seek| seek.old) {
            wanted.purged = Some(self.purged(position));
        }
        Ok(Some(Begin {
            place: Place { file: number, at },
            state: state.clone(),
            wanted,
        }))
    }
}

impl Places {
    /// In which domains of `until` one that has `has` and all of `before` is not there yet. Only a server's
    /// own numbers rise, so those of another one say nothing.
    pub fn not_there(&self, until: &Position, has: &Position, before: &BinlogState) -> Position {
        let oldest = &self.oldest().mariadb;
        let mut left = Position::new();
        for last in until.iter() {
            let Gtid { domain, server, .. } = last;
            let had = has.get(domain).filter(|has| has.server == server);
            let had = had.map(|has| has.seqno).max(before.get(domain, server));
            // The relay may have begun behind it (`start`), and does not know all servers of before.
            let old = self.state.mariadb.get(domain, server).is_none()
                && oldest
                    .last(domain)
                    .is_some_and(|begin| begin.seqno >= last.seqno);
            if !old && had.is_none_or(|seqno| seqno < last.seqno) {
                left.set(last);
            }
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(seqno: u64) -> History {
        let state: BinlogState = format!("0-1-{seqno}").parse().expect("a state");
        state.into()
    }

    fn points(number: u64) -> Vec<Point> {
        let each = 0..10_000;
        each.map(|n| Point {
            at: 1000 + n,
            state: history(number * 100_000 + n),
            time: 0,
        })
        .collect()
    }

    /// The relay was started before its clock was set: what it had stored before is not old for that.
    #[test]
    fn a_file_is_no_older_than_its_beginning() {
        let mut all = Places::default();
        for (number, start_time) in [(1, 1000), (2, 1100), (3, 60)] {
            all.push(FileEntry {
                number,
                start: history(number),
                start_time,
                len: 1000,
                list: 4,
                body: 1000,
                points: Vec::new(),
                indexed: true,
            });
        }
        all.grown(2000, Vec::new(), Arc::new(history(9)), 1300);
        let newest: Vec<u32> = (0..3).map(|n| all.newest_group(n)).collect();
        assert_eq!(newest, [1100, 1100, 1300]);
    }

    /// However much is kept, the places in it that are held in memory are bounded, and those of a file that
    /// somebody needs come back.
    #[test]
    fn places_of_old_files_are_forgotten() {
        let mut all = Places::default();
        let held = |all: &Places| all.files.iter().map(|f| weight(&f.points)).sum::<usize>();
        let each = weight(&points(1));
        for number in 1..=30 {
            all.push(FileEntry {
                number,
                start: history(number * 100_000 - 1),
                start_time: 0,
                len: 1000,
                list: 4,
                body: 1000,
                points: Vec::new(),
                indexed: true,
            });
            all.grown(
                20_000,
                points(number),
                Arc::new(history(number * 100_000 + 10_000)),
                0,
            );
            assert!(held(&all) <= POINTS_MAX + each);
        }
        assert!(held(&all) >= POINTS_MAX - each, "as many as may be");
        assert!(!all.files[0].indexed && all.files[29].indexed);
        // A replica needs the third one; others need others then.
        let position: Position = "0-1-305000".parse().expect("a position");
        let at = |all: &Places| {
            let begin = all.begin(&position).expect("it is here");
            begin.expect("a file").place
        };
        assert_eq!(at(&all), Place { file: 3, at: 1000 }, "its beginning");
        all.index(3, points(3));
        assert_eq!(at(&all), Place { file: 3, at: 6000 });
        for number in 4..=20 {
            all.index(number, points(number));
            assert!(held(&all) <= POINTS_MAX + each);
            assert!(all.files[number as usize - 1].indexed, "the one just read");
        }
        assert!(!all.files[2].indexed && all.files[29].indexed);
        assert_eq!(all.files[29].points.len(), 10_000, "it is written");
        // Those that are gone do not count.
        while all.pop().is_some() {}
        all.push(FileEntry {
            number: 31,
            ..all.files[0].clone()
        });
        let indexed = all.indexed.iter().map(|(number, _)| *number);
        assert_eq!(indexed.collect::<Vec<_>>(), [30, 31]);
    }

    /// It is memory that counts: few places may take much.
    #[test]
    fn heavy_places_are_forgotten() {
        let state = |seqno: u64| -> History {
            let domains = (0..500).map(|domain| Gtid {
                domain,
                server: 1,
                seqno,
            });
            BinlogState::from_gtids(domains).into()
        };
        let mut all = Places::default();
        for number in 1..=100 {
            all.push(FileEntry {
                number,
                start: state(number * 100),
                start_time: 0,
                len: 1000,
                list: 4,
                body: 1000,
                points: Vec::new(),
                indexed: true,
            });
            let points = (1..=10).map(|n| Point {
                at: 1000 + n,
                state: state(number * 100 + n),
                time: 0,
            });
            let last = Arc::new(state(number * 100 + 10));
            all.grown(2000, points.collect(), last, 0);
        }
        let held = all.files.iter().map(|f| weight(&f.points)).sum::<usize>();
        let each = weight(&all.files[99].points);
        assert!(
            held > POINTS_MAX - each && held <= POINTS_MAX + each,
            "{held}"
        );
        assert!(!all.files[0].indexed && all.files[99].indexed);
    }
}
