//! Statements in total order isolation, and votes on what failed here.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use dromon_gates::Seqno;
use dromon_order::OrderError;
use dromon_writeset::{Flags, KeyType};

use super::local::KeyParts;
use super::{Node, OwnBallots, Phase, Shared, lock};
use crate::cluster::{ClusterView, Member};
use crate::database::{Meta, Outcome};
use crate::ddl_marks::MARKS_FILE;
use crate::messages::{Control, Position, encode, kind};
use crate::trx::{Kind, Stage, Trx};
use crate::votes::{NOBODY, is_failure};

impl Shared {
    /// Whether the members count on what this node says of what it has applied.
    fn serves(&self) -> bool {
        let there = matches!(
            self.phase,
            Phase::Joined | Phase::NonPrimary | Phase::Leaving
        );
        there && self.brought_up
    }

    /// Whether no other member is there whose word counts in votes.
    fn nobody_else_has_data(&self) -> bool {
        let counts = |m: &&Member| m.complete && !m.witness && m.uuid != self.uuid;
        let members = self.view.iter().flat_map(|v| &v.members);
        members.filter(counts).count() == 0
    }

    /// Whether this one is a member with data, and no other is there.
    pub(super) fn is_last_with_data(&self) -> bool {
        let members = self.view.iter().flat_map(|v| &v.members);
        let mut own = members.filter(|m| m.uuid == self.uuid);
        own.any(|m| m.complete) && self.nobody_else_has_data()
    }

    /// Whether the word of one other member counts in votes.
    fn is_one_of_two(&self) -> bool {
        let counts = |m: &&Member| m.complete && !m.witness;
        let members = self.view.iter().flat_map(|v| &v.members);
        members.filter(counts).count() == 2
    }
}

impl OwnBallots {
    /// Takes what is asked, and was finished where `released` is: each with the answer. What failed here has its ballot
    /// mostly; not where this node was alone then. Of what was given up this node has no word of its own: it has neither its success nor its failure, and agrees with
    /// those who have if `yields`.
    fn finished(&mut self, released: Seqno, yields: bool) -> Vec<(Seqno, u64)> {
        let later = self.asked.split_off(&(released + 1));
        let asked = std::mem::replace(&mut self.asked, later);
        let answer = |(seqno, digest)| match self.failed.get(&seqno) {
            Some(own) => (seqno, *own),
            None if yields && self.given_up.contains(&seqno) => (seqno, digest),
            None => (seqno, 0),
        };
        asked.into_iter().map(answer).collect()
    }

    /// A fragment at `seqno` is rolled back here instead.
    fn gives_up(&mut self, seqno: Seqno) {
        self.given_up.insert(seqno);
        while self.given_up.len() > VOTES_KEPT {
            self.given_up.pop_first();
        }
    }
}

/// What is said then.
fn not_noted(seqno: Seqno, e: &std::io::Error) -> String {
    format!(
        "that seqno {seqno} failed here could not be noted in {MARKS_FILE}: {e}. After a restart nobody could tell whether \
         this database has it"
    )
}

/// After so long it is said whom a vote waits for, and then as often as this.
const VOTE_LONG: Duration = Duration::from_secs(10);
const VOTE_AGAIN: Duration = Duration::from_secs(60);

/// Outcomes of votes that are kept when they are through.
const VOTES_KEPT: usize = 1024;

/// What could not be said of `seqno` now is to be said later, unless the vote on it is decided. The one who tells of
/// that notes it in `votes` first and takes it from `own` then.
fn put_back(
    own: &Mutex<OwnBallots>,
    votes: &Mutex<BTreeMap<Seqno, u64>>,
    seqno: Seqno,
    digest: u64,
) {
    lock(own).asked.insert(seqno, digest);
    if lock(votes).contains_key(&seqno) {
        lock(own).asked.remove(&seqno);
    }
}

/// Notes what the members decided of `seqno`. What is said of a late ballot comes after that, and may be less: they
/// forget. What is behind `released` is kept, however much: it may yet be waited for here. Whether it was known.
pub(super) fn note_winner(
    votes: &mut BTreeMap<Seqno, u64>,
    seqno: Seqno,
    winner: u64,
    released: Seqno,
) -> bool {
    let known = votes.contains_key(&seqno);
    votes.entry(seqno).or_insert(winner);
    while votes.len() > VOTES_KEPT && votes.keys().next().is_some_and(|first| *first <= released) {
        votes.pop_first();
    }
    known
}

impl Node {
    /// Orders a statement that every node runs alone at its place, and waits
    /// for that place.
    pub fn toi_start(
        &self,
        conn: u64,
        keys: &[KeyParts<'_>],
        data: &[u8],
        flags: Flags,
        meta: &mut Meta,
    ) -> Outcome {
        self.look_for_undone();
        let trx = Trx::local(u64::MAX, Kind::Toi, usize::MAX);
        *meta = self.undefined_meta(u64::MAX, conn);
        {
            let mut body = trx.lock();
            for (parts, _) in keys {
                if let Err(e) = body.keys.add(parts, KeyType::Exclusive) {
                    self.error(&format!("statement of connection {conn}: {e}"));
                    return Outcome::NodeFail;
                }
            }
            if let Err(e) = body.data.push(data, &self.spooler) {
                self.error(&format!("statement of connection {conn}: {e}"));
                return Outcome::SizeExceeded;
            }
            body.flags = flags | Flags::ISOLATION;
            body.conn = conn;
            body.stage = Stage::Waiting;
        }
        let outcome = self.certify_waiting(&trx, meta);
        let seqno = meta.position.seqno;
        if outcome != Outcome::Ok {
            if seqno >= 0 {
                // The place must be passed all the same. What failed there is nothing, anywhere; what
                // passed has run on the others, and is not finished here.
                match outcome {
                    Outcome::TrxFail => self.gates.cancel(seqno),
                    _ => {
                        self.runs_elsewhere(conn, seqno);
                        self.give_up(seqno);
                    }
                }
                meta.position = Position::UNDEFINED;
            }
            return outcome;
        }
        if self
            .gates
            .enter_apply(seqno, seqno - 1, &trx.waiter, false)
            .is_err()
        {
            self.runs_elsewhere(conn, seqno);
            self.give_up(seqno);
            meta.position = Position::UNDEFINED;
            // Of a lost connection the server would try again by itself, and run it twice.
            return Outcome::NodeFail;
        }
        self.wait_none_goes();
        if !self.ddl_begins(seqno) {
            self.gates.pass_commit(seqno);
            meta.position = Position::UNDEFINED;
            return Outcome::NodeFail;
        }
        lock(&self.toi).insert(conn, trx);
        self.statement_begins(seqno);
        Outcome::Ok
    }

    /// A client's statement was sent, and the node lost the others before they said where its place is. The server
    /// tells it of a lock wait (1205).
    pub(super) fn may_run_yet(&self, conn: u64) {
        self.warn(&format!(
            "connection {conn}: its statement (DDL) was sent, and nobody can tell whether it takes its place: it may run on \
             all nodes yet, when a majority is back. The server tells its client error 1205, which is no lock wait. Look \
             whether its effect is there before it is run again"
        ));
    }

    /// A client's statement has its place, and is not run here. The server tells it of a lock wait (1205).
    pub(super) fn runs_elsewhere(&self, conn: u64, seqno: Seqno) {
        let where_else = match self.shared().nobody_else_has_data() {
            true => {
                "has its place, and is not run on this node, which has the data alone and ends: it comes from this node's log \
                     at its next start"
            }
            false => {
                "runs on the other nodes, and not on this one, which leaves: it has it when it is back"
            }
        };
        self.warn(&format!(
            "connection {conn}: its statement (DDL) at seqno {seqno} {where_else}. The server tells its client error 1205, which \
             is no lock wait. Do not run it again"
        ));
    }

    /// The statement has run; `error`: what went wrong here, if anything.
    pub fn toi_end(&self, conn: u64, error: Option<&[u8]>) -> Outcome {
        let Some(trx) = lock(&self.toi).remove(&conn) else {
            return Outcome::ConnFail;
        };
        let seqno = trx.lock().seqno;
        self.work_ends(seqno);
        let ok = error.is_none_or(<[u8]>::is_empty);
        self.ddl_ended(seqno, ok);
        let outcome = self.commit_order_leave(&trx, error);
        if !ok && outcome == Outcome::Ok {
            // It failed everywhere, or where it counts.
            self.ddl_ended(seqno, true);
        }
        if outcome == Outcome::NodeFail {
            self.outvoted(
                seqno,
                &format!("a statement of connection {conn} failed here and not elsewhere"),
            );
            // Not finished here, ever: the position must not pass it. The client has the statement's own error.
            return Outcome::Ok;
        }
        self.gates.release(seqno);
        outcome
    }

    /// Decides together with the others what an error here means. Called inside commit order: what this node
    /// learns must be on its disk before anything behind may move the engine's position.
    pub(super) fn vote(&self, seqno: Seqno, statement: bool, error: &[u8]) -> Outcome {
        let text = String::from_utf8_lossy(error);
        let text = text.trim_end_matches('\0').trim();
        let (uuid, alone, serving) = {
            let shared = self.shared();
            // Who has left, or was left out, is not alone: others go on. Who has no data, or not all, has no say.
            let alone_in = |v: &ClusterView| {
                let within = v.members.iter().any(|m| m.uuid == shared.uuid);
                let silent = |m: &Member| within && (m.witness || !m.complete);
                v.members.iter().all(|m| m.uuid == shared.uuid || silent(m))
            };
            let alone = shared.view.as_ref().is_none_or(alone_in);
            (shared.uuid, alone, shared.serves())
        };
        if statement && self.had_begun(seqno) {
            self.warn(&format!(
                "seqno {seqno} failed here when it was fed again after a crash: {text}. It had begun before the crash, \
                 so its effect may be what is in its way; it counts as done. Compare the tables it names with the \
                 other members' (CHECKSUM TABLE)"
            ));
            if let Err(e) = self.note_failed(seqno) {
                self.warn(&not_noted(seqno, &e));
            }
            return Outcome::Ok;
        }
        if !statement && self.was_thrown_away(seqno) {
            lock(&self.failed).add_later(seqno);
            self.note(&format!(
                "the chunk at seqno {seqno} failed here ({text}), as the server has given up its transaction meanwhile"
            ));
            return Outcome::Ok;
        }
        // What comes again after a crash may have been voted on.
        let had_failed = (lock(&self.votes).get(&seqno)).is_some_and(|w| is_failure(*w));
        let digest = twox_hash::XxHash3_64::oneshot(error).clamp(1, NOBODY - 1);
        let propose = || {
            let ballot = encode(&Control::Vote {
                uuid,
                seqno,
                digest,
            });
            self.order().map(|o| o.propose(kind::CONTROL, 0, ballot))
        };
        if alone {
            // Of a vote before a crash this node hears once more.
            self.own_failed(seqno, digest);
            if let Err(e) = self.note_failed(seqno) {
                self.warn(&not_noted(seqno, &e));
            }
            if statement {
                // Who comes back by the log is to know that it failed here, and why. Of rows others have more.
                let _ = propose();
            }
            if !statement && !had_failed {
                self.tell_uncompared(seqno, text, false);
            }
            return Outcome::Ok;
        }
        if !serving {
            self.error(&format!(
                "seqno {seqno} failed here while catching up: {text}"
            ));
            return self.vote_lost(seqno, statement);
        }
        // The engine's position has passed it already: who is killed before the others have spoken must know
        // that it failed here.
        if statement {
            self.ddl_ended(seqno, false);
        } else if !self.rows_failed(seqno) {
            return Outcome::NodeFail;
        }
        // Before anybody counts its ballot: the next process hears of the outcome, too.
        if let Err(e) = self.note_failed(seqno) {
            self.inconsistent(&not_noted(seqno, &e));
            return Outcome::NodeFail;
        }
        self.own_failed(seqno, digest);
        // Who votes on that may wait for what this one has finished.
        self.say_finished();
        self.note(&format!(
            "Member {} initiates vote on {seqno},{digest:016x}: {text}",
            self.setup.name
        ));
        let winner = match propose() {
            Some(Ok(_)) => self.wait_vote(seqno),
            _ => None,
        };
        match winner {
            Some(winner) if winner == digest => {
                if !statement {
                    self.rows_ended(seqno);
                    if !had_failed && self.shared().nobody_else_has_data() {
                        self.tell_uncompared(seqno, text, false);
                    }
                }
                Outcome::Ok
            }
            // The others have left without a word, as if it had been alone when it failed.
            Some(NOBODY) => {
                match statement {
                    true => self.ddl_ended(seqno, true),
                    false => self.rows_ended(seqno),
                }
                self.tell_uncompared(seqno, text, statement);
                Outcome::Ok
            }
            Some(_) => self.vote_lost(seqno, statement),
            None => {
                self.error(&format!(
                    "the vote on seqno {seqno} could not be decided: this node ends before"
                ));
                self.vote_lost(seqno, statement)
            }
        }
    }

    /// A fragment of a client of this node has its place at `seqno`, and is rolled back here.
    pub(super) fn fragment_given_up(&self, seqno: Seqno) {
        lock(&self.own_ballots).gives_up(seqno);
        lock(&self.failed).add_later(seqno);
    }

    fn own_failed(&self, seqno: Seqno, digest: u64) {
        let mut own = lock(&self.own_ballots);
        own.failed.insert(seqno, digest);
        while own.failed.len() > 1024 {
            own.failed.pop_first();
        }
    }

    /// Something failed here, and no other member could say whether it does elsewhere.
    fn tell_uncompared(&self, seqno: Seqno, text: &str, statement: bool) {
        let (what, missing) = match statement {
            true => (
                "failed here",
                "its effect is missing here, and members that come back may have it",
            ),
            false => (
                "could not be applied here",
                "its rows are missing here, and members that come back may have them",
            ),
        };
        self.error(&format!(
            "seqno {seqno} {what}: {text}. No other member with data is there to compare with, so it counts as done: \
             {missing}. Compare the tables then (CHECKSUM TABLE); if they differ, have this node take a full copy"
        ));
    }

    /// Leaves over what failed here at `seqno`, whose place is not passed yet.
    fn vote_lost(&self, seqno: Seqno, statement: bool) -> Outcome {
        // Else this node stops before it, and it comes with the next start.
        if !self.gates.is_beyond_end(seqno) {
            let what = match statement {
                true => "a statement",
                false => "applying it",
            };
            self.outvoted(seqno, &format!("{what} failed here and not elsewhere"));
        }
        Outcome::NodeFail
    }

    /// Who may be what a vote waits for, and what that means.
    fn tell_vote_waits(&self, seqno: Seqno) {
        let shared = self.shared();
        if shared.phase == Phase::NonPrimary {
            return; // that is told, and whoever is stopped now is one fewer for a majority
        }
        let members = shared.view.iter().flat_map(|v| &v.members);
        let counts = members.filter(|m| m.complete && !m.witness && m.uuid != shared.uuid);
        let others: Vec<String> = counts
            .map(|m| format!("{} ({:?})", m.name, m.state))
            .collect();
        drop(shared);
        self.warn(&format!(
            "what failed here at seqno {seqno} waits for the other members' word whether it did there, and commits on this \
             node wait behind it: {}. One that is paused (FLUSH TABLES WITH READ LOCK, a backup, a copy that it gives, RSU) \
             says so when that ends. To go on before that, end it there, or stop that node",
            others.join(", ")
        ));
    }

    /// Waits for what the members decide. Without a majority nobody decides: that comes when it is back, in the
    /// same order. `None`: this node hears no more of it.
    fn wait_vote(&self, seqno: Seqno) -> Option<u64> {
        let mut votes = lock(&self.votes);
        let mut tell_at = Instant::now() + VOTE_LONG;
        loop {
            if let Some(winner) = votes.get(&seqno) {
                return Some(*winner);
            }
            if Instant::now() >= tell_at {
                tell_at = Instant::now() + VOTE_AGAIN;
                drop(votes);
                self.tell_vote_waits(seqno);
                votes = lock(&self.votes);
                continue;
            }
            let wait = self
                .vote_decided
                .wait_timeout(votes, Duration::from_secs(1));
            votes = wait.unwrap_or_else(std::sync::PoisonError::into_inner).0;
            if !self.hears_votes() {
                return votes.get(&seqno).copied();
            }
        }
    }

    /// The members are asked what became of `seqno`. On the delivery thread.
    pub(super) fn vote_asked(&self, seqno: Seqno, digest: u64) {
        lock(&self.own_ballots).asked.insert(seqno, digest);
        self.say_finished();
    }

    /// Answers for whatever the members are asked about and is finished here. No applier is needed for that: all of
    /// them may wait for what others say of a later one, or for the end of a pause. Never blocks.
    pub(super) fn say_finished(&self) {
        if lock(&self.own_ballots).asked.is_empty() {
            return;
        }
        let (uuid, serving, two) = {
            let shared = self.shared();
            (shared.uuid, shared.serves(), shared.is_one_of_two())
        };
        let Some(order) = self.order().filter(|_| serving) else {
            return; // what the gates say is not what the database has, or nobody hears it
        };
        // Of more the others have most votes anyway, and may differ.
        let yields = two || self.settings().vote_policy > 0;
        let due = lock(&self.own_ballots).finished(self.gates.released(), yields);
        for (seqno, digest) in due {
            let ballot = encode(&Control::Vote {
                uuid,
                seqno,
                digest,
            });
            // Lost with the connection: then a view recounts without us.
            if let Err(OrderError::Full { .. }) = order.propose(kind::CONTROL, 0, ballot) {
                put_back(&self.own_ballots, &self.votes, seqno, digest);
            }
        }
    }

    /// Most members failed at `seqno`, or the only one there was (`alone`). One that failed in another way has left
    /// by now; one that did not fail has data that they have not.
    pub(super) fn check_own_ballot(&self, seqno: Seqno, alone: bool) {
        let (from, known) = {
            let own = lock(&self.own_ballots);
            let known = own.failed.contains_key(&seqno) || own.given_up.contains(&seqno);
            (own.from, known)
        };
        let at = self.at(seqno);
        match from {
            None => {}
            Some(from) if seqno <= from => {
                let succeeded = lock(&self.failed).has(seqno) == Some(false);
                // What nobody else can give a copy of is not to be given up.
                let stays = alone
                    || self.forced_here.load(Relaxed)
                    || self.shared().nobody_else_has_data();
                match succeeded && !known {
                    true if stays => self.tell_others_lack(at),
                    true => self.leave_inconsistent(&format!(
                        "Vote on {at}: it has failed on the members that were there, after this node had left, and its data \
                         has it. Leaving cluster: a full copy settles that, at the next start"
                    )),
                    false => {}
                }
            }
            // How a statement went before a crash nobody here knows: it may have failed like everywhere.
            Some(_) if known || self.came_again(seqno) => {
                if let Err(e) = self.note_failed(seqno) {
                    self.warn(&not_noted(seqno, &e));
                }
            }
            Some(_) => self.leave_inconsistent(&format!(
                "Vote 0 (success) on {at} is inconsistent with group. Leaving cluster. It was applied here but failed \
                 on most members"
            )),
        }
    }

    /// What failed at `at` on one member that went on alone, or on members that are gone, succeeded here. It is not to be
    /// given up for that: it was acknowledged, and nobody could tell them, or nobody else has data.
    fn tell_others_lack(&self, at: Position) {
        self.error(&format!(
            "{at} has succeeded here, and failed on those that were there after this node had left: their data differs from this \
             node's. Compare the tables (CHECKSUM TABLE; a statement (DDL) by their definitions) before another one is used \
             beside it. If they differ, have one take a full copy of the other: what only the former has is lost then"
        ));
    }

    /// The database stands at `seqno`: what is known to have failed before that; `anew`: it is another database.
    pub(super) fn knows_failed(&self, seqno: Seqno, anew: bool) {
        let at = self.at(seqno);
        // A copy may have removed the file.
        let ready = lock(&self.ddl_marks).ready();
        let stands = lock(&self.failed).stands(at, anew);
        if let Err(e) = ready.and(stands) {
            self.warn(&format!(
                "{MARKS_FILE} in {} cannot be written: {e}. It says what failed here and on the other members alike; until it \
                 can be, a node that finds something to fail leaves the cluster",
                self.settings().base_dir.display()
            ));
        }
    }

    /// Makes durable that something failed here at `seqno`.
    fn note_failed(&self, seqno: Seqno) -> std::io::Result<()> {
        lock(&self.failed).add(seqno)
    }

    /// Whether what the members decide comes to this node, now or when it is back. One that was evicted cannot
    /// know: it must have finished what it has before it joins again.
    fn hears_votes(&self) -> bool {
        let Some(order) = self.order() else {
            return false;
        };
        let (phase, left) = {
            let shared = self.shared();
            (shared.phase, shared.own_leave)
        };
        match phase {
            _ if lock(&self.delivered).stopped => false,
            Phase::Joined | Phase::NonPrimary => true,
            Phase::Leaving => !left && order.status().primary,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_said_is_said_again_while_it_is_open() {
        let (own, votes) = (Mutex::default(), Mutex::default());
        put_back(&own, &votes, 4, 7);
        note_winner(&mut lock(&votes), 5, 0, 0);
        put_back(&own, &votes, 5, 7);
        assert_eq!(lock(&own).finished(9, false), [(4, 0)]);
    }

    #[test]
    fn what_was_decided_first_counts() {
        let mut votes = BTreeMap::new();
        assert!(!note_winner(&mut votes, 4, 7, 0));
        assert!(note_winner(&mut votes, 4, 0, 0), "it was known");
        assert_eq!(votes, BTreeMap::from([(4, 7)]));
        assert!((5..=2000).all(|seqno| !note_winner(&mut votes, seqno, 0, seqno)));
        assert_eq!((votes.len(), votes.get(&4)), (VOTES_KEPT, None));
    }

    #[test]
    fn what_is_decided_late_is_there_for_who_waits_for_it() {
        let mut votes = BTreeMap::new();
        assert!((2000..4000).all(|seqno| !note_winner(&mut votes, seqno, 7, 4)));
        note_winner(&mut votes, 5, 7, 4);
        assert_eq!(votes.get(&5), Some(&7));
        note_winner(&mut votes, 4001, 7, 3999);
        assert_eq!((votes.len(), votes.get(&5)), (VOTES_KEPT, None));
    }

    #[test]
    fn what_is_asked_is_answered_once_when_it_is_finished() {
        let mut own = OwnBallots::default();
        own.asked.extend([(4, 7), (5, 7), (6, 7), (8, 7)]);
        // Failed here, perhaps otherwise than there.
        own.failed.insert(5, 9);
        assert_eq!(own.finished(3, false), []);
        assert_eq!(own.finished(6, false), [(4, 0), (5, 9), (6, 0)]);
        assert_eq!(own.finished(7, false), [], "said once");
        assert_eq!(own.finished(8, true), [(8, 0)]);
    }

    #[test]
    fn of_what_was_given_up_it_has_no_word_of_its_own() {
        let mut own = OwnBallots::default();
        own.gives_up(4);
        own.asked.extend([(4, 7), (5, 7)]);
        assert_eq!(own.finished(9, true), [(4, 7), (5, 0)]);
        own.asked.insert(4, 7);
        assert_eq!(own.finished(9, false), [(4, 0)]);
        (5..).take(VOTES_KEPT).for_each(|seqno| own.gives_up(seqno));
        assert_eq!(
            (own.given_up.len(), own.given_up.contains(&4)),
            (VOTES_KEPT, false)
        );
    }
}
