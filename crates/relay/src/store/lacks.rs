//! Which groups of MySQL a replica lacks, and where it must begin.
//!
//! A replica says which GTIDs it has, as a set. Of each file the set before it is known, and of some
//! places in it; these sets only grow along the files. So it begins at the last place before which
//! it has everything; what it has of what follows is left out.
//!
//! What it has and the relay has not may be on its way. MySQL's numbers may come in any order, so no
//! number tells that another one will not come: only that the primary had nothing more, or time.
//! Sources of which the relay has nothing concern others: a replica may have written for itself, as
//! a primary of MySQL allows it.

use dromon_binlog::GtidSet;

use super::mark::Place;
use super::places::{Begin, FileEntry, Places, Refused, Text, Wanted};

/// Longest text of a set in an error: what a replica shows has some five hundred bytes.
const TEXT_MAX: usize = 200;

/// A set as text, cut if it is long.
pub(super) fn text(set: &GtidSet) -> Text {
    Text(set.shown(TEXT_MAX))
}

/// What is left out of what follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lacks {
    /// What the replica has.
    has: GtidSet,
    /// Of that, what the relay has not, as far as is known.
    awaited: GtidSet,
    /// What is awaited should have come.
    overdue: bool,
}

impl Lacks {
    /// Of a replica that has this set, where the relay has that one.
    pub fn new(has: GtidSet, executed: &GtidSet) -> Lacks {
        Lacks {
            awaited: has.minus(executed),
            has,
            overdue: false,
        }
    }

    /// Whether the replica is to get this group, the next one in the files.
    pub fn takes(&mut self, source: &[u8; 16], number: u64) -> Result<bool, Refused> {
        if self.has.contains(source, number) {
            if !self.awaited.is_empty() {
                self.awaited.remove(source, number);
            }
            return Ok(false);
        }
        if self.overdue && self.awaited.knows(source) {
            let mut of = GtidSet::new();
            of.add(*source, number);
            return Err(errant(&self.awaited.of_sources(&of)));
        }
        Ok(true)
    }

    /// What the replica has and the relay has not reached, of sources that are here.
    pub fn ahead(&self, executed: &GtidSet) -> GtidSet {
        self.awaited.of_sources(executed)
    }

    /// Whether anything is awaited, be it of sources that are not here.
    pub fn awaits(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// The relay has all that the primary had at some time after the replica came. What the replica
    /// has and is not in it never comes: of a source that has groups here that is an error, of another
    /// one its first group will be.
    pub fn complete(&mut self, executed: &GtidSet) -> Result<(), Refused> {
        self.awaited = self.awaited.minus(executed);
        let never = self.awaited.of_sources(executed);
        if !never.is_empty() {
            return Err(errant(&never));
        }
        self.overdue = true;
        Ok(())
    }

    /// The next group was made after the replica came: all that the replica had was before it.
    pub fn passed(&mut self) {
        self.overdue = true;
    }
}

fn errant(never: &GtidSet) -> Refused {
    Refused::Errant { has: text(never) }
}

impl Places {
    /// The last file before which a replica that has this set has everything.
    fn entry_for_set(&self, has: &GtidSet) -> Result<Option<&FileEntry>, Refused> {
        let files = self.files();
        // Sets grow along the files.
        let suiting = files.partition_point(|f| f.start.mysql.is_subset(has));
        if let Some(n) = suiting.checked_sub(1) {
            return Ok(files.get(n));
        }
        let lacks = self.oldest().mysql.minus(has);
        match lacks.is_empty() {
            // There is no file yet.
            true => Ok(None),
            false => Err(Refused::PurgedSet {
                lacks: text(&lacks),
            }),
        }
    }

    /// The file in which a replica that has this set must begin; 0: there is none.
    pub fn file_for_set(&self, has: &GtidSet) -> Result<u64, Refused> {
        let file = self.entry_for_set(has)?;
        Ok(file.map_or(0, |file| file.number))
    }

    /// The best place in that file as far as its points are known.
    pub fn begin_set(&self, has: &GtidSet) -> Result<Option<Begin>, Refused> {
        let Some(file) = self.entry_for_set(has)? else {
            return Ok(None);
        };
        // What came before the file is in its set.
        let suiting = file
            .points
            .partition_point(|p| p.state.mysql.is_subset(has));
        let mut state = file.start.clone();
        let at = match suiting.checked_sub(1).map(|n| &file.points[n]) {
            Some(point) => {
                state.mysql.unite(&point.state.mysql);
                point.at
            }
            // With the set of previous GTIDs.
            None => file.list,
        };
        let place = Place {
            file: file.number,
            at,
        };
        Ok(Some(Begin {
            place,
            state,
            wanted: Wanted::set(Lacks::new(has.clone(), &self.state().mysql)),
        }))
    }
}
