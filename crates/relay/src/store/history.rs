//! Which groups stand before a place, and which kinds of files there are.

use dromon_binlog::{BinlogState, GroupName, GtidSet};

/// What the files of a directory are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The relay's own, of groups with GTIDs of MariaDB; a file begins with a GTID list.
    #[default]
    MariaDb,
    /// Equal to those of a primary without GTIDs.
    Mirror,
    /// The relay's own, of groups with GTIDs of MySQL; a file begins with the set of previous GTIDs.
    MySql,
}

impl Kind {
    /// The setting `follow` that makes them.
    pub fn follow(self) -> &'static str {
        match self {
            Kind::MariaDb => "gtid",
            Kind::Mirror => "file",
            Kind::MySql => "mysql_gtid",
        }
    }

    /// Whether someone's progress is told by places in the files: only the GTIDs of MariaDB are
    /// positions.
    pub fn by_place(self) -> bool {
        self != Kind::MariaDb
    }
}

/// All groups before a place. One of the two is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Of MariaDB.
    pub mariadb: BinlogState,
    /// Of MySQL.
    pub mysql: GtidSet,
}

impl From<BinlogState> for History {
    fn from(mariadb: BinlogState) -> History {
        History {
            mariadb,
            mysql: GtidSet::new(),
        }
    }
}

impl From<GtidSet> for History {
    fn from(mysql: GtidSet) -> History {
        History {
            mariadb: BinlogState::new(),
            mysql,
        }
    }
}

impl History {
    /// Bytes of memory that it takes, about.
    pub(super) fn weight(&self) -> usize {
        let sets = self.mysql.iter().map(|(_, list)| 100 + 16 * list.len());
        self.mariadb.weight() + sets.sum::<usize>()
    }

    /// For a place in a file that began behind `start`: see [`Point::state`](super::Point::state).
    pub(super) fn since(&self, start: &GtidSet) -> History {
        History {
            mariadb: self.mariadb.clone(),
            mysql: self.mysql.minus(start),
        }
    }

    /// A group came.
    pub fn add(&mut self, name: GroupName) {
        match name {
            GroupName::MariaDb(gtid) => self.mariadb.add(gtid),
            GroupName::MySql { source, number } => self.mysql.add(source, number),
            GroupName::Nameless => {}
        }
    }
}
