//! Statements in total order isolation across a crash: the marks around them,
//! and what a start makes of the marks it finds (`docs/node.md`, DDL and a crash).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dromon_gates::Seqno;
use dromon_order::Order;
use dromon_writeset::{Flags, replacing};

use super::{ConnectError, Node, Phase, lock};
use crate::ddl_marks::{Left, MARKS_FILE, Mark, Progress, left_behind};
use crate::messages::{Answer, Need, Position, Request, decode, encode};
use crate::options::HostPort;

/// How long a node in doubt waits for members that may know better.
const DOUBT: Duration = Duration::from_secs(60);
/// Pause between two looks at the others.
const LOOK: Duration = Duration::from_millis(300);
/// How long one question may take.
const ASK: Duration = Duration::from_secs(1);

/// What a node in doubt does until then.
const DOING: &str = "waiting for a member that knows how a statement ended";

/// What is fed again after a crash and was run before it.
#[derive(Debug, Default)]
pub(super) struct Refed {
    /// The statement whose effect the database has already.
    done: Option<Seqno>,
    /// Statements up to here had begun before: an error of theirs may only say
    /// that their effect is there.
    through: Seqno,
    /// Those of them that came again.
    statements: BTreeSet<Seqno>,
    /// What the mark is about has its place behind it here, without its effect: it is not fed again.
    passed: bool,
    /// Where the node joined, if it went on from what an earlier process left: that had begun nothing behind it.
    joined_at: Seqno,
}

impl Node {
    /// Looks at what a crash left behind `position`.
    pub(super) fn look_at_marks(&self, position: Position) {
        let (mark, exchanged) = {
            let marks = lock(&self.ddl_marks);
            (marks.newest(), marks.exchanged())
        };
        let left = match left_behind(mark, position) {
            // A backup from before it lacks the effect, a copy of files from behind it has it.
            Left::Done if exchanged => Left::Unknown,
            left => left,
        };
        let through = mark
            .filter(|_| left != Left::Nothing)
            .map_or(0, |m| m.at.seqno);
        let stands = mark.map_or(position.seqno, |m| m.stands(position));
        let passed = left == Left::Unknown && mark.is_some_and(|m| m.at.seqno == position.seqno);
        *lock(&self.refed) = Refed {
            done: (left == Left::Done).then_some(stands + 1),
            through,
            statements: BTreeSet::new(),
            passed,
            joined_at: 0,
        };
        self.shared().in_doubt = left == Left::Unknown;
        let rows = mark.is_some_and(|m| m.progress == Progress::RowsFailed);
        if left == Left::Unknown && rows {
            self.warn(&format!(
                "this node stopped while the members were asked about the write set at {}:{through}, which could not be applied \
                 here; its storage engine counts it as done. A full copy of another member settles that",
                position.history
            ));
        } else if left == Left::Unknown && passed {
            self.warn(&format!(
                "this node stopped while the members were asked about the statement (DDL) at {}:{through}, which failed here; its \
                 storage engine counts it as done{}. A full copy of another member settles that",
                position.history,
                match exchanged {
                    true => format!(
                        " (the database's files are others than those that {MARKS_FILE} is about, so nobody can tell \
                         whether these have its effect)"
                    ),
                    false => String::new(),
                }
            ));
        } else if left == Left::Unknown && exchanged {
            self.warn(&format!(
                "the database's files are others than those that {MARKS_FILE} is about (restored, or copied from elsewhere), and \
                 they stand at {position}, before the statement (DDL) at {}:{through}: nobody can tell whether they have \
                 its effect. A full copy of another member settles that; without one, what lies between is run again. \
                 If the files are a backup from before that statement, a copy can be spared: stop this server, \
                 remove {MARKS_FILE} in {}, and start it again",
                position.history,
                self.settings().base_dir.display()
            ));
        } else if left == Left::Unknown {
            self.warn(&format!(
                "this node stopped while its server ran the statement (DDL) at {}:{through}; nobody can tell whether \
                 its tables have the effect. A full copy of a member that knows settles that; only if no member does, \
                 one runs the statement again",
                position.history
            ));
        }
    }

    /// Whether a statement has been run here that lies beyond `position`, or was begun there.
    pub(super) fn ran_beyond(&self, position: Position) -> bool {
        let mark = lock(&self.ddl_marks).newest();
        mark.is_some_and(|m| {
            let ran = !matches!(m.progress, Progress::Stopped { .. } | Progress::RowsFailed);
            ran && m.at.history == position.history && m.at.seqno > position.seqno
        })
    }

    /// The database is a fresh copy: no mark is about it.
    pub(super) fn forget_marks(&self) {
        *lock(&self.refed) = Refed::default();
        if let Err(e) = lock(&self.ddl_marks).forget() {
            self.warn(&format!("the marks of statements cannot be cleared: {e}"));
        }
    }

    /// A cluster is founded on the database as it is: nothing of the former sequence is fed any more, and the numbers
    /// that the marks are about come again.
    pub(super) fn founds_without_marks(&self) -> Result<(), ConnectError> {
        *lock(&self.refed) = Refed::default();
        if std::mem::take(&mut self.shared().in_doubt) {
            self.note("a cluster is founded here on the database as it is: no statement from before is run again");
        }
        lock(&self.ddl_marks).forget().map_err(|e| {
            ConnectError::Refused(format!(
                "the marks of statements in {MARKS_FILE} in {} cannot be cleared: {e}. They are about what was before \
                 the cluster that is founded here: put that right and start again",
                self.settings().base_dir.display()
            ))
        })
    }

    /// Whether the statement at `seqno` must only be passed.
    pub(super) fn is_done(&self, seqno: Seqno) -> bool {
        let done = lock(&self.refed).done == Some(seqno);
        if done {
            self.note(&format!(
                "the statement (DDL) at seqno {seqno} was over when this node stopped: its place is passed, it is not \
                 run again"
            ));
        }
        if done && self.db.wants_bypass() {
            self.warn(&format!(
                "wsrep_gtid_mode is on, and the server does not count the statement at seqno {seqno} again: the GTIDs that \
                 it gives to what follows are one below the other members' (compare gtid_binlog_pos). The data is whole. \
                 Before an asynchronous replica follows this node by GTID, have it take a full copy; with \
                 innodb_flush_log_at_trx_commit=1 and sync_binlog=1 this does not happen"
            ));
        }
        done
    }

    /// Whether an error at `seqno` may come of its first run before the crash.
    pub(super) fn had_begun(&self, seqno: Seqno) -> bool {
        seqno <= lock(&self.refed).through
    }

    /// A statement comes that may have run before the crash.
    pub(super) fn statement_comes(&self, seqno: Seqno) {
        let mut refed = lock(&self.refed);
        if seqno <= refed.through {
            refed.statements.insert(seqno);
        }
    }

    /// Whether the statement at `seqno` came again after a crash.
    pub(super) fn came_again(&self, seqno: Seqno) -> bool {
        lock(&self.refed).statements.contains(&seqno)
    }

    /// What comes up to `joined_at` may have been begun by an earlier process on the same database. 0: nothing.
    pub(super) fn comes_again(&self, joined_at: Seqno) {
        lock(&self.refed).joined_at = joined_at;
    }

    /// A write set that makes a table and fills it, as it is applied at `seqno`: an earlier process may have left
    /// the table there ([`replacing`]).
    pub(super) fn as_it_comes_again(&self, seqno: Seqno, flags: Flags, payload: Bytes) -> Bytes {
        let may = flags.starts() && !flags.is_toi() && !flags.is_rollback();
        if !may || seqno > lock(&self.refed).joined_at {
            return payload;
        }
        replacing(&payload).unwrap_or(payload)
    }

    /// The database is about to run the statement at `seqno`. False: that could
    /// not be noted, and the node leaves.
    pub(super) fn ddl_begins(&self, seqno: Seqno) -> bool {
        self.mark_ddl(seqno, Progress::Begun)
    }

    /// The statement at `seqno` is over.
    pub(super) fn ddl_ended(&self, seqno: Seqno, ok: bool) {
        let begun = lock(&self.ddl_marks).begun().filter(|_| ok);
        let synced = begun.map(|at| self.engines.sync_definitions(&self.setup.data_dir, at));
        if let Some(Err(e)) = synced {
            // It stays begun: where the engine's position is lost, too, nobody takes it for done.
            self.warn(&format!(
                "what the statement (DDL) at seqno {seqno} changed in {} could not be brought to the disk: {e}. It is whole \
                 in this server; after a loss of power definition files there may be older than the data. Look after the \
                 disk, and have this node take a full copy if that happens",
                self.setup.data_dir.display()
            ));
            return;
        }
        self.mark_ddl(seqno, Progress::Ended { ok });
    }

    /// Rows failed at `seqno`, and the members have said that this is no reason to leave.
    pub(super) fn rows_ended(&self, seqno: Seqno) {
        self.mark_ddl(seqno, Progress::Ended { ok: true });
    }

    /// Rows could not be applied at `seqno`: who is killed before the others have spoken must know, as
    /// the engine's position passes them before that. False: that could not be noted.
    pub(super) fn rows_failed(&self, seqno: Seqno) -> bool {
        self.mark_ddl(seqno, Progress::RowsFailed)
    }

    fn mark_ddl(&self, seqno: Seqno, progress: Progress) -> bool {
        let at = Position {
            history: self.history(),
            seqno,
        };
        // Rows may fail while others before them are on their way to the database.
        let told = match progress {
            Progress::Begun => self.gates.told(),
            _ => seqno - 1,
        };
        let mark = Mark {
            at,
            progress,
            untold: u32::try_from(seqno - 1 - told).unwrap_or(0),
            former: None,
        };
        let written = lock(&self.ddl_marks).write(mark);
        if let Err(e) = &written {
            self.inconsistent(&format!(
                "that the statement (DDL) or write set at {at} {} could not be noted in {} in {}: {e}. After a crash nobody could \
                 tell whether the tables have its effect",
                match progress {
                    Progress::Begun => "begins",
                    Progress::RowsFailed => "failed",
                    Progress::Ended { .. } | Progress::Stopped { .. } => "is over",
                },
                MARKS_FILE,
                self.settings().base_dir.display()
            ));
        }
        written.is_ok()
    }

    /// For a node in doubt whose log goes on: waits until a member that knows
    /// better can give a copy, or until it is clear that this node must go first.
    /// Its log votes and stores meanwhile.
    pub(super) fn resolve_doubt(
        &self,
        order: &Arc<dyn Order>,
        cluster: &str,
        listed: &[HostPort],
    ) -> Result<Need, ConnectError> {
        let began = Instant::now();
        let mut told: Option<Instant> = None;
        let mut moved = None;
        loop {
            if self.phase() == Phase::Leaving {
                return Err(ConnectError::Refused("told to leave meanwhile".into()));
            }
            let status = order.status();
            if let Some(why) = status.failed {
                return Err(ConnectError::Engine(why));
            }
            let others = status.members.addrs.iter();
            let others = others.filter(|(id, _)| **id != status.id);
            let mut silent = Vec::new();
            let mut somebody_knows = false;
            let (linked, own) = (order.linked(), self.own_addr());
            for (id, addr) in others {
                self.unless_told_to_stop(DOING)?;
                // It may have moved, and this node to where it was.
                let Some(addr) = linked.get(id).or((*addr != own).then_some(addr)) else {
                    silent.push(addr.clone());
                    continue;
                };
                let answer = self
                    .engines
                    .ask(cluster, addr, encode(&Request::Probe), ASK);
                match answer.ok().and_then(|b| decode::<Answer>(&b)) {
                    Some(Answer::Info {
                        in_doubt: false,
                        primary,
                        name,
                        ..
                    }) => {
                        if primary {
                            self.note(&format!(
                                "{addr} ({name}) knows better: taking a full copy from it"
                            ));
                            // First, as the cluster may not have noticed yet that others are dead; if it leaves, anyone.
                            self.shared().donors = format!("{name},");
                            return Ok(Need::Copy);
                        }
                        somebody_knows = true;
                    }
                    Some(Answer::Info { .. }) => {}
                    _ => silent.push(addr.clone()),
                }
            }
            let all_doubt = !somebody_knows && (silent.is_empty() || began.elapsed() >= DOUBT);
            if status.primary && status.is_leader && all_doubt {
                let newest = lock(&self.ddl_marks).newest();
                let rows = newest.is_some_and(|m| m.progress == Progress::RowsFailed);
                let passed = lock(&self.refed).passed;
                self.warn(&format!(
                    "no member that can be reached knows how {} others copy from this one{}",
                    match (rows, passed) {
                        (true, _) => {
                            "the write set that could not be applied here went: it counts as done, its rows are missing \
                             here, and the"
                        }
                        (_, true) => {
                            "the statement went that failed here: it counts as done, its effect is missing here, or there in part (compare \
                             with those not reached before they join: if they have it, start this node from a copy of \
                             theirs instead), and the"
                        }
                        _ => "the statement ended: this node runs it again, and the",
                    },
                    match silent.is_empty() {
                        true => String::new(),
                        false => format!(" (not reached: {})", silent.join(", ")),
                    }
                ));
                self.shared().in_doubt = false;
                return Ok(Need::Log);
            }
            if !status.primary && self.was_evicted(order) {
                return Err(ConnectError::Evicted);
            }
            if !status.primary {
                self.force_unless_moved(cluster, order, listed, &mut moved);
            }
            if told.is_none_or(|at| at.elapsed() >= Duration::from_secs(10)) {
                told = Some(Instant::now());
                self.note(&format!(
                    "waiting for a member that knows how the statement ended{}",
                    match silent.is_empty() {
                        true => String::new(),
                        false => format!("; start the missing nodes: {}", silent.join(", ")),
                    }
                ));
            }
            self.still_starting(DOING);
            self.unless_told_to_stop(DOING)?;
            std::thread::sleep(LOOK);
        }
    }
}
