//! State transfers: full copies, given and taken, and those that bypass the copy.
//!
//! ```text
//!   by copy   script ready ── StateRequest ──> donor: all of it ──> received X: events <= X are dropped
//!   bypass    script ready ── BypassRequest ─> donor: a few words ─> received P: its own position
//! ```
//!
//! A bypass is for a node that comes back by the log: the donor's script tells
//! what no write set does (with `wsrep_gtid_mode` the domain of the server's
//! GTIDs), and the tables stay as they are. Who finds nobody to tell it goes on
//! without.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use dromon_gates::{Seqno, Waiter};
use dromon_writeset::Uuid;

use super::leave::ended;
use super::unsaid::unsaid;
use super::{Node, Phase, Shared, lock};
use crate::cluster::{ClusterView, Member, MemberState};
use crate::database::{Applier, Level, Outcome};
use crate::donor::{self, Asked, Prospect};
use crate::lacking::Gap;
use crate::messages::{Control, Position, encode, kind};

/// How long a joiner waits before it asks again for a donor.
const DONOR_RETRY: Duration = Duration::from_secs(1);
/// How long one waits for members that were here before it to be able to give
/// a bypass. After an outage all come back at once: the first of them waits for
/// nobody.
const BYPASS_PATIENCE: Duration = Duration::from_secs(20);
/// Whose last report is older does not count as there.
const HEARD: Duration = Duration::from_secs(2);
/// A donor may be about to report, or to be Synced: until then nobody is told that there is none.
const UNSAID: Duration = Duration::from_secs(3);
/// How long nobody is asked for a copy who is not heard: longer than the dead are members.
const UNHEARD: Duration = Duration::from_secs(60);
/// How long one waits for somebody to be heard before it looks again.
const HEARD_RETRY: Duration = Duration::from_millis(50);
/// How often who waits for a donor says so.
const IN_VAIN: Duration = Duration::from_secs(60);
/// How long a donor may take to say what became of a copy that is here.
const DONOR_WORD: Duration = Duration::from_secs(60);
/// So long it is looked whether a donor gave up because this node was removed.
const SAID_BEHIND: Duration = Duration::from_millis(300);
/// How many donors may fail to give one.
const BYPASS_ATTEMPTS: usize = 3;

/// What is with the data of who waits for a copy in vain.
const UNUSABLE: &str = "the data is unusable until the next start takes a full copy";
/// And of who came by the log.
const UNTOUCHED: &str = "the data is untouched";

/// How long a joiner waits until all file systems of its machine are written.
const SYNC_ELSEWHERE: Duration = Duration::from_secs(120);

/// What a donor says that may give a copy in a while: -EAGAIN.
pub(super) const NOT_NOW: i32 = -11;

/// Why a transfer did not bring what was wanted.
pub(super) enum NoCopy {
    /// The server was made ready for one, and it does not come.
    Never(String),
    /// Nothing was begun.
    NotNow(String),
}

/// How a bypass ended.
pub(super) enum Bypass {
    /// Received: the engines run and stand here.
    Done(Position),
    /// Not wanted, or nobody to give it. The engines do not run yet, unless they
    /// did before.
    None,
    /// The node leaves meanwhile.
    Left,
}

/// What a joiner waits for.
#[derive(Clone, Copy)]
enum Wanted {
    Copy,
    /// The database stands there.
    Bypass(Position),
}

impl Node {
    pub(super) fn donate(
        self: &Arc<Self>,
        applier: &mut dyn Applier,
        waiter: &Arc<Waiter>,
        seqno: Seqno,
        joiner: Uuid,
        request: &[u8],
        bypass: Option<Position>,
    ) {
        // The database may copy itself inside the call (mysqldump): nothing may
        // commit meanwhile. Delivery holds what comes behind this event.
        let ready = self.gates.wait_released(seqno, waiter, false, None).is_ok();
        let (wanted, left) = {
            let mut shared = self.shared();
            let wanted = ready && shared.donating == Some(joiner);
            let left = wanted && shared.donation_left;
            shared.donation_open |= wanted && !left;
            (wanted && !left, left)
        };
        let position = bypass.unwrap_or_else(|| self.last_committed_at(seqno));
        if wanted && bypass.is_none() {
            lock(&self.chunks).lacking.watch();
        }
        let lacks = wanted && bypass.is_none() && self.lacks_chunks(position);
        let begun = !wanted || !lacks && applier.donate(request, position, bypass.is_some());
        if bypass.is_none() {
            self.gates.unhold(seqno);
        }
        if lacks {
            self.note("gives no copy now: its own lacks a large transaction that is under way; the joiner asks again");
        }
        if left {
            self.note_now_and_then(
                "gives no copy now: the script of one that it gave before it was connected anew still runs (wsrep_sst_*), and \
                 the end of that would be taken for this one's. The joiner asks again; end that script if it hangs",
            );
            self.say_sent(joiner, Position::UNDEFINED, NOT_NOW, Vec::new());
        }
        if !begun {
            let error = if lacks { NOT_NOW } else { -libc_ecanceled() };
            self.transfer_sent(Position::UNDEFINED, error);
        }
    }

    /// The database says how its donation ended.
    pub fn transfer_sent(&self, position: Position, error: i32) -> Outcome {
        if std::mem::take(&mut self.shared().donation_left) {
            return Outcome::Ok; // nobody waits for that
        }
        // The script has made its copy: what is thrown away from here on is in it.
        let gaps = lock(&self.chunks).lacking.unwatch();
        let joiner = {
            let mut shared = self.shared();
            let open = std::mem::take(&mut shared.donation_open);
            match shared.donating {
                Some(joiner) => joiner,
                // The joiner is gone; the server's part is done all the same.
                None if open => return Outcome::Ok,
                None => return Outcome::ConnFail,
            }
        };
        let error = if error == 0 && !position.is_defined() {
            -libc_ecanceled()
        } else {
            error
        };
        self.say_sent(joiner, position, error, gaps)
    }

    fn say_sent(&self, joiner: Uuid, position: Position, error: i32, gaps: Vec<Gap>) -> Outcome {
        let message = encode(&Control::StateSent {
            donor: self.shared().uuid,
            joiner,
            position,
            error,
            gaps,
        });
        match self.order().map(|o| o.propose(kind::CONTROL, 0, message)) {
            Some(Ok(_)) => Outcome::Ok,
            _ => Outcome::ConnFail,
        }
    }

    /// The database says what the state transfer brought it to.
    pub fn transfer_received(&self, position: Position, error: i32) -> Outcome {
        let mut shared = self.shared();
        if shared.phase != Phase::Joining || shared.received.is_some() {
            return Outcome::ConnFail;
        }
        let ok = error == 0 && position.is_defined();
        shared.received = Some(if ok { Ok(position) } else { Err(error) });
        drop(shared);
        self.changed.notify_all();
        Outcome::Ok
    }

    /// A full copy from a donor. None: the node leaves meanwhile.
    pub(super) fn take_copy(
        self: &Arc<Self>,
        applier: &mut dyn Applier,
        view: &ClusterView,
        own: Uuid,
    ) -> Result<Option<Position>, NoCopy> {
        let request = server_ready(applier)?;
        if request.is_empty() {
            return Err(NoCopy::NotNow(
                "this node needs a full copy, which a running server cannot take: it leaves the cluster. Restart it; its \
                 data is kept until then"
                    .into(),
            ));
        }
        if is_trivial(&request) {
            self.note("state transfer is skipped as configured: the data is taken to be that of the cluster");
            let seqno = view.position.seqno - 1;
            return Ok(Some(Position {
                history: view.position.history,
                seqno,
            }));
        }
        if self.was_up.load(Relaxed) {
            // Until here it was not known that this server can take one.
            self.give_data_up().map_err(NoCopy::Never)?;
        }
        let Some(position) = self.receive_transfer(view, own, request, Wanted::Copy)? else {
            return Ok(None);
        };
        // Scripts write files and sync none of them: after a loss of power
        // now the engine would find holes where its tables were.
        self.sync_elsewhere();
        if let Err(e) = self.engines.sync_data(&self.setup.data_dir) {
            return Err(NoCopy::Never(format!(
                "the copy in {} could not be synced: {e}. It cannot be trusted; check that disk, then \
                 start this node again: it takes another copy",
                self.setup.data_dir.display()
            )));
        }
        self.note(&format!(
            "State transfer to {} complete: {position}",
            self.setup.name
        ));
        Ok(Some(position))
    }

    /// What of a copy lies on other file systems than the data directory's is written, too. One that hangs
    /// need not have anything of it.
    fn sync_elsewhere(self: &Arc<Self>) {
        let (done, is_done) = mpsc::channel();
        let node = self.clone();
        let thread = std::thread::Builder::new().name("dromon-syncs".into());
        let begun = thread.spawn(move || {
            node.engines.sync_all();
            // Nobody may wait any more.
            let _ = done.send(());
        });
        if begun.is_err() || is_done.recv_timeout(SYNC_ELSEWHERE).is_err() {
            self.warn(&format!(
                "the copy is there, but some file system of this machine was not written within {} s. If a part of the \
                 database lies on that one (innodb_log_group_home_dir, innodb_undo_directory, a directory behind a \
                 symbolic link), look after it before the machine loses power",
                SYNC_ELSEWHERE.as_secs()
            ));
        }
    }

    /// A bypass for a database that stands at `position` and needs no
    /// copy, if the database wants one and somebody is there to give it.
    pub(super) fn bypass(
        self: &Arc<Self>,
        applier: &mut dyn Applier,
        view: &ClusterView,
        own: Uuid,
        position: Position,
    ) -> Result<Bypass, NoCopy> {
        // What it was told once it knows as long as its process lives.
        if self.was_up.load(Relaxed) || !self.db.wants_bypass() {
            return Ok(Bypass::None);
        }
        match self.bypass_to_come(&own)? {
            Some(true) => {}
            Some(false) => {
                self.note(
                    "no other member can tell this server its wsrep_gtid_domain_id now (bypass): it goes on with its own \
                     setting. Set the same one on all nodes",
                );
                return Ok(Bypass::None);
            }
            None => return Ok(Bypass::Left),
        }
        // The server may ask where it stands.
        self.gates.reset(position.seqno);
        let request = server_ready(applier)?;
        if request.is_empty() || is_trivial(&request) {
            // A server that ran before it was connected, or one without scripts.
            return Ok(Bypass::None);
        }
        let heard = self.receive_transfer(view, own, request, Wanted::Bypass(position))?;
        let Some(at) = heard else {
            return Ok(Bypass::Left);
        };
        if at.seqno < position.seqno {
            // What lies between may have moved no position of the engine's (write sets that failed), or is not there:
            // the log gives it again, from where the engine stands.
            self.save_running();
            return Err(NoCopy::NotNow(format!(
                "the storage engine stands at {at}, but this node was told {position}. Nothing is lost: start it again, \
                 it goes on from where its engine stands"
            )));
        }
        self.note(&format!(
            "State transfer to {} complete (bypass): {at}",
            self.setup.name
        ));
        Ok(Bypass::Done(at))
    }

    /// Whether somebody can give a bypass now; waits a while for those who soon
    /// can. None: the node leaves meanwhile.
    fn bypass_to_come(&self, own: &Uuid) -> Result<Option<bool>, NoCopy> {
        let deadline = Instant::now() + BYPASS_PATIENCE;
        let mut shared = self.shared();
        loop {
            if ended(shared.phase) {
                return Ok(None);
            }
            still_member(&shared, UNTOUCHED)?;
            let members = shared.view.as_ref().map_or(&[][..], |v| &v.members);
            let now = Instant::now();
            match donor::bypass_from(own, members, |m| self.is_heard(m)) {
                Prospect::Now => return Ok(Some(true)),
                Prospect::Later if now < deadline => {
                    shared = self.wait_shared(shared, deadline.min(now + DONOR_RETRY));
                }
                Prospect::Later | Prospect::Never => return Ok(Some(false)),
            }
        }
    }

    /// Whether a member has reported of late.
    pub(super) fn is_heard(&self, member: &Uuid) -> bool {
        self.flow
            .silent(member)
            .is_some_and(|silent| silent < HEARD)
    }

    /// Has a donor chosen and waits for what its script brings. None: the node
    /// leaves meanwhile.
    fn receive_transfer(
        self: &Arc<Self>,
        view: &ClusterView,
        own: Uuid,
        request: Vec<u8>,
        wanted: Wanted,
    ) -> Result<Option<Position>, NoCopy> {
        let wishes = self.shared().donors.clone();
        let mut asked = Asked::new(&wishes);
        // For a bypass they are only a preference.
        let asks_for = match wanted {
            Wanted::Copy => wishes.as_str(),
            Wanted::Bypass(_) => "",
        };
        let kept = match wanted {
            Wanted::Copy => UNUSABLE,
            Wanted::Bypass(_) => "the data is untouched; see the messages of the script above",
        };
        let kept_if_removed = match wanted {
            Wanted::Copy => UNUSABLE,
            Wanted::Bypass(_) => UNTOUCHED,
        };
        let mut ask_at = Instant::now();
        let begun = ask_at;
        let unheard_until = begun + UNHEARD;
        let mut told = None;
        let mut nobody_since: Option<Instant> = None;
        // Not while the lock is held: the server's log may lie on a disk that hangs.
        let mut say: Vec<(Level, String)> = Vec::new();
        loop {
            for (level, text) in say.drain(..) {
                self.db.log(level, &text);
            }
            let mut shared = self.shared();
            match shared.received.take() {
                Some(Ok(position)) if position.history != view.position.history => {
                    return Err(NoCopy::Never(format!(
                        "the state transfer brought history {} but the cluster has {}",
                        position.history, view.position.history
                    )));
                }
                Some(Ok(position)) if matches!(wanted, Wanted::Bypass(_)) => {
                    drop(shared);
                    let there = self.wait_delivered(position.seqno, UNTOUCHED)?;
                    return Ok(there.then_some(position));
                }
                Some(Ok(position)) => {
                    drop(shared);
                    let there = self.wait_delivered(position.seqno, UNUSABLE)?
                        && self.is_whole(position)?;
                    return Ok(there.then_some(position));
                }
                Some(Err(error)) => {
                    // Nobody was asked for a copy yet.
                    let kept = match self.engine_silent.load(Relaxed) {
                        true => UNTOUCHED,
                        false => kept,
                    };
                    return Err(NoCopy::Never(format!(
                        "the state transfer failed here (error {error}); {kept}"
                    )));
                }
                None => {}
            }
            let now = Instant::now();
            if shared.transfer_failed.is_some() {
                // If the others removed this node its donor stopped because of that: it is said just behind.
                let until = now + SAID_BEHIND;
                while !(shared.removed || shared.own_leave) && Instant::now() < until {
                    shared = self.wait_shared(shared, until);
                }
                still_member(&shared, kept)?;
            }
            if let Some((donor, error)) = shared.transfer_failed.take() {
                // The script here still waits: another donor may be luckier.
                let members = shared.view.as_ref().map_or(&[][..], |v| &v.members);
                let failed = asked.failed(donor, members);
                if matches!(wanted, Wanted::Copy) || failed == BYPASS_ATTEMPTS {
                    let name = members.iter().find(|m| m.uuid == donor);
                    let name = name.map_or("which has left", |m| &m.name);
                    return Err(NoCopy::Never(format!(
                        "Will never receive state. Need to abort. The donor, {name}, gave up (error {error}): its error log \
                         says why, or this server's, if its own script ended first; start this node again; {kept}"
                    )));
                }
                ask_at = now + DONOR_RETRY;
            }
            if ended(shared.phase) {
                return Ok(None);
            }
            // It may have been given up since it was asked last.
            let kept_if_removed = match self.engine_silent.load(Relaxed) {
                true => UNTOUCHED,
                false => kept_if_removed,
            };
            still_member(&shared, kept_if_removed)?;
            let not_now = shared.not_now.take();
            if let Some(donor) = not_now {
                let members = shared.view.as_ref().map_or(&[][..], |v| &v.members);
                asked.not_now(donor, members);
            }
            if std::mem::take(&mut shared.no_donor) {
                if not_now.is_none() {
                    asked.nobody();
                }
                ask_at = now + DONOR_RETRY;
                if matches!(wanted, Wanted::Bypass(_)) {
                    let members = shared.view.as_ref().map_or(&[][..], |v| &v.members);
                    let never =
                        donor::bypass_from(&own, members, |m| self.is_heard(m)) == Prospect::Never;
                    let since = *nobody_since.get_or_insert(now);
                    if !never {
                        nobody_since = None;
                    } else if now >= since + BYPASS_PATIENCE {
                        return Err(NoCopy::Never(format!(
                            "the member that was to tell this server its wsrep_gtid_domain_id has left, and there is \
                             no other; start this node again, then it goes on without; {kept}"
                        )));
                    }
                }
                say.extend(in_vain(&mut told, now, &shared, asks_for));
            }
            if !say.is_empty() {
                continue;
            }
            if now < ask_at {
                drop(self.wait_shared(shared, ask_at.min(now + DONOR_RETRY)));
                continue;
            }
            let is_silent = self.engine_silent.load(Relaxed);
            if matches!(wanted, Wanted::Copy) && self.waits_for_donor(&shared, &own, asked.list()) {
                if now < begun + UNSAID {
                    ask_at = now + HEARD_RETRY;
                    continue;
                }
                if told.is_none() {
                    say.push((Level::Warning, unsaid()));
                }
                say.extend(in_vain(&mut told, now, &shared, asks_for));
                ask_at = now + DONOR_RETRY;
                continue;
            }
            let mut donors = asked.list().to_owned();
            if matches!(wanted, Wanted::Copy) && (is_silent || now < unheard_until) {
                let members = shared.view.as_ref().map_or(&[][..], |v| &v.members);
                // Who was not heard yet may be about to report for the first time.
                let may_come = now + UNHEARD < unheard_until + HEARD;
                let not_yet = |m: &Member| {
                    let gives = m.uuid != own && m.state == MemberState::Synced && !m.witness;
                    gives && self.flow.silent(&m.uuid).is_none()
                };
                if may_come && members.iter().any(not_yet) {
                    ask_at = now + HEARD_RETRY;
                    continue;
                }
                let joiner = members.iter().find(|m| m.uuid == own);
                let heard = joiner
                    .map(|joiner| donor::heard_of(joiner, &donors, members, |m| self.is_heard(m)));
                match heard {
                    Some(None) => {
                        // Members report as soon as there is a link.
                        if !may_come {
                            say.extend(in_vain(&mut told, now, &shared, asks_for));
                        }
                        let again = asked.nobody();
                        ask_at = now + if again { DONOR_RETRY } else { HEARD_RETRY };
                        continue;
                    }
                    Some(Some(heard)) => donors = heard,
                    None => {}
                }
            }
            shared.transfer_gaps = None;
            drop(shared);
            if matches!(wanted, Wanted::Copy) && is_silent {
                // The server waits for the copy alone by now.
                self.give_data_up().map_err(NoCopy::Never)?;
            }
            ask_at = now + Duration::from_secs(3600);
            let request = request.clone();
            let message = match wanted {
                Wanted::Copy => Control::StateRequest {
                    joiner: own,
                    donors,
                    request,
                },
                Wanted::Bypass(position) => Control::BypassRequest {
                    joiner: own,
                    donors,
                    request,
                    position,
                },
            };
            if let Some(order) = self.order() {
                // The order resends it for as long as this node is a member.
                let _ = order.propose(kind::CONTROL, 0, encode(&message));
            }
        }
    }

    /// Whether a copy that stands at `position` has all that it should: only its donor knows
    /// what its database did not have while it was copied, and only here is it known where
    /// the copy stands. False: the node leaves meanwhile.
    fn is_whole(&self, position: Position) -> Result<bool, NoCopy> {
        let mut deadline = Instant::now() + DONOR_WORD;
        let why = loop {
            // Without a majority it cannot be said. Asked before the lock is taken.
            let can_be_said = self.order().is_some_and(|order| order.status().primary);
            if !can_be_said {
                deadline = Instant::now() + DONOR_WORD;
            }
            let shared = self.shared();
            if ended(shared.phase) {
                return Ok(false);
            }
            if let Some(gaps) = &shared.transfer_gaps {
                match gaps.iter().find(|gap| gap.is_in(position.seqno)) {
                    None => return Ok(true),
                    Some(gap) => {
                        break format!(
                            "its donor had set aside the large or streaming transaction that began at seqno {}",
                            gap.first
                        );
                    }
                }
            }
            still_member(&shared, UNUSABLE)?;
            if let Some((_, error)) = shared.transfer_failed {
                break format!("its donor gave up, or left (error {error})");
            }
            if Instant::now() >= deadline {
                break "its donor does not say that it is whole".to_owned();
            }
            let look = Instant::now() + DONOR_RETRY;
            drop(self.wait_shared(shared, deadline.min(look)));
        };
        self.save_inconsistent();
        Err(NoCopy::Never(format!(
            "the copy stands at {position}, and may lack something: {why}. Nothing of the cluster's is lost; start this node again: it takes another copy"
        )))
    }

    /// Waits until this node's own delivery has reached `seqno`: the copy is
    /// ahead of it if the joiner's log still catches up. False: the node leaves
    /// meanwhile. `kept`: what is with the data if the others removed this node.
    fn wait_delivered(&self, seqno: Seqno, kept: &str) -> Result<bool, NoCopy> {
        loop {
            let delivered = lock(&self.delivered);
            if delivered.seqno >= seqno {
                return Ok(true);
            }
            if delivered.stopped {
                return Ok(false);
            }
            drop(self.wait_delivery(delivered, Duration::from_millis(200)));
            let shared = self.shared();
            if ended(shared.phase) {
                return Ok(false);
            }
            still_member(&shared, kept)?;
        }
    }
}

/// Why nobody gives anything to this node, if it is time to say so again.
fn in_vain(
    told: &mut Option<Instant>,
    now: Instant,
    shared: &Shared,
    wanted: &str,
) -> Option<(Level, String)> {
    if told.is_some_and(|at| now < at + IN_VAIN) {
        return None;
    }
    *told = Some(now);
    let members = shared.view.as_ref().map_or(&[][..], |v| &v.members);
    Some((Level::Note, donor::in_vain(&shared.uuid, wanted, members)))
}

/// Fails if the others removed this node while it waited; `kept`: what is with its
/// data.
fn still_member(shared: &Shared, kept: &str) -> Result<(), NoCopy> {
    if let Some(why) = &shared.join_failed {
        return Err(NoCopy::Never(format!(
            "{why}. The others go on, and nothing of theirs is lost; {kept}. Start this node again: it joins anew"
        )));
    }
    let why = if shared.removed {
        "it was silent for longer than evs.suspect_timeout: look after its network, and whether this machine stood still"
    } else if shared.own_leave {
        "an operator evicted it"
    } else {
        return Ok(());
    };
    Err(NoCopy::Never(format!(
        "the others removed this node from the cluster while it waited for a state transfer: {why}. They go on, and \
         nothing of theirs is lost; {kept}. Start this node again: it joins anew"
    )))
}

/// Makes the server ready to receive; what a donor must be told.
fn server_ready(applier: &mut dyn Applier) -> Result<Vec<u8>, NoCopy> {
    applier.state_request().ok_or_else(|| {
        NoCopy::Never(
            "SST request callback failed. This is unrecoverable, restart required. The server could not prepare \
             to receive a state transfer; see its messages above"
                .into(),
        )
    })
}

/// Whether the server was told to do without a transfer (`wsrep_sst_method=skip`).
fn is_trivial(request: &[u8]) -> bool {
    matches!(request, b"trivial" | b"trivial\0")
}

/// ECANCELED on Linux: a donation that did not take place.
const fn libc_ecanceled() -> i32 {
    125
}
