//! From the server's start to the first connection: options and state file.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, RwLock};

use dromon_gates::{ApplyQueue, Gates};
use dromon_writeset::Uuid;

use super::chunks::Chunks;
use super::duties::Timings;
use super::leave::Behind;
use super::service::Job;
use super::{Counters, Delivered, Engines, Node, Pending, Phase, Setup, Shared, lock};
use crate::closed::ClosedTables;
use crate::database::{Database, Level};
use crate::ddl_marks::{MARKS_FILE, Mark, Marks, Progress};
use crate::failed::Failed;
use crate::flow::Flow;
use crate::grastate::{GraState, STATE_FILE, StateFile, ViewState};
use crate::lacking::{LACKING_FILE, Lacking, LackingFile};
use crate::messages::{Control, LeaveReason, Position, encode, kind};
use crate::options::{self, Options, Settings};
use crate::overflow::QueueFiles;
use crate::spool::Spooler;
use crate::streams::Streams;
use crate::trx::TrxMap;
use crate::version;

/// The node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An option is wrong.
    #[error("wsrep_provider_options: {0}")]
    Option(#[from] options::OptionError),
    /// A file of encryption or secret cannot be used.
    #[error("{0}")]
    Security(String),
    /// The state file cannot be used.
    #[error("{0}")]
    State(String),
    /// An option that is an order cannot be carried out.
    #[error("wsrep_provider_options: {0}")]
    Order(String),
}

/// How a full copy is asked for, whatever else there is. Without `grastate.dat` a start counts as
/// the first one where there is no log, or one that is not to be trusted, and goes by the engine.
pub(super) const COPY_ASKED: &str = "set uuid to 00000000-0000-0000-0000-000000000000 and safe_to_bootstrap to 0 in \
                                     grastate.dat";

/// The option whose value is refused where its file cannot be used.
const SECRET_FILE: &str = "dromon.secret_file";

/// What the state file says where only a full copy helps.
const NO_DATA: GraState = GraState {
    uuid: Uuid::NIL,
    seqno: -1,
    safe_to_bootstrap: false,
};

/// Full copies empty the directories of a data directory, or put the donor's in their place; what lies in the
/// data directory itself under a name of ours they leave alone.
fn refuse_below(settings: &Settings, data_dir: &Path) -> Result<(), OpenError> {
    let real = |dir: &Path| dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
    // A link below it, wherever on the way, goes as a directory does.
    let named = |dir: &Path| match (dir.parent(), dir.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => real(dir),
    };
    let data = real(data_dir);
    let options = [
        ("base_dir", &settings.base_dir, "the state files"),
        ("gcache.dir", &settings.log_dir, "the log"),
    ];
    for (option, dir, what) in options {
        let below = |dir: &Path| dir != data && dir.starts_with(&data);
        let is_below = below(&real(dir)) || dir.ancestors().any(|part| below(&named(part)));
        if is_below && real(dir) != data {
            return Err(OpenError::State(format!(
                "{option} is {}, a directory below the data directory {}. A full copy (SST) empties such \
                 directories, or puts the donor's in their place, and {what} of this node would be lost while it \
                 runs. So it does not start. Stop the server, move what this node has there (dromon-*, and \
                 {STATE_FILE} in base_dir) into the data directory itself, or into one outside of it, and set \
                 {option} to that, or remove it from wsrep_provider_options: then it is the data directory",
                dir.display(),
                data.display(),
            )));
        }
    }
    Ok(())
}

/// Sees to it that notes on what this database lacks are not taken for none because somebody removed them. The error is
/// a sentence for the operator. `asks_copy`: the database counts for nothing.
fn keep_notes(
    dir: &Path,
    file: &LackingFile,
    lacking: &Lacking,
    marks: &mut Marks,
    asks_copy: bool,
) -> Result<(), String> {
    let there = file.exists().map_err(|e| {
        format!(
            "{LACKING_FILE} in {} cannot be looked for: {e}",
            dir.display()
        )
    })?;
    if !there && marks.has_notes() && !asks_copy {
        return Err(format!(
            "{LACKING_FILE} in {} is gone: there was something in it when this node ran last. It says what this database \
             has of large transactions that were under way; without it only a full copy is safe: {COPY_ASKED}, and start \
             again. If somebody has it, put it back instead",
            dir.display()
        ));
    }
    // That there were some may stand in the marks for a while, though a copy was asked for.
    if !there && marks.has_notes() {
        file.make()
            .map_err(|e| format!("{LACKING_FILE} in {} cannot be written: {e}", dir.display()))?;
    }
    marks
        .set_notes(!lacking.is_empty())
        .map_err(|e| format!("{MARKS_FILE} in {} cannot be written: {e}", dir.display()))
}

impl Node {
    /// Reads options and state; nothing is connected yet.
    pub fn open(
        db: Arc<dyn Database>,
        engines: Box<dyn Engines>,
        setup: Setup,
        option_text: &str,
    ) -> Result<Arc<Node>, OpenError> {
        // Before anything may fail.
        db.log(Level::Note, &format!("dromon {}", version::words()));
        let env = options::Env {
            node_address: setup.address.clone(),
            data_dir: setup.data_dir.to_string_lossy().into_owned(),
        };
        let mut opts = match setup.witness {
            true => Options::new(env).of_witness(),
            false => Options::new(env),
        };
        let outcome = opts.parse_init(option_text)?;
        let settings = Arc::new(opts.settings().clone());
        let timings = Timings::of(&settings);
        if !setup.witness {
            refuse_below(&settings, &setup.data_dir)?;
        }
        let state_file = if setup.witness {
            None // its log says it all
        } else {
            let file = StateFile::open(&settings.base_dir);
            Some(file.map_err(|e| OpenError::State(e.to_string()))?)
        };
        let mut ddl_marks = Marks::open(&settings.base_dir, &setup.data_dir).map_err(|e| {
            OpenError::State(format!(
                "{MARKS_FILE} in {} cannot be read: {e}. It says whether a statement (DDL) was under way when this \
                 node stopped; without it only a full copy is safe: remove that file, {COPY_ASKED}, and \
                 start again",
                settings.base_dir.display()
            ))
        })?;
        let failed = Failed::open(&settings.base_dir, &setup.data_dir).map_err(|e| {
            OpenError::State(format!(
                "{MARKS_FILE} in {} cannot be read: {e}",
                settings.base_dir.display()
            ))
        })?;
        let (lacking_file, lacking) = LackingFile::open(&settings.base_dir).map_err(|e| {
            OpenError::State(format!(
                "{LACKING_FILE} in {} cannot be read: {e}. It says what this database has of large transactions that \
                 were under way; without it only a full copy is safe: remove that file, {COPY_ASKED}, and \
                 start again",
                settings.base_dir.display()
            ))
        })?;
        // A witness runs no statement, and has no database.
        if let Some(file) = &state_file {
            let asks_copy = !file.is_new() && file.state().uuid == Uuid::NIL;
            let dir = &settings.base_dir;
            keep_notes(dir, &lacking_file, &lacking, &mut ddl_marks, asks_copy)
                .map_err(OpenError::State)?;
            ddl_marks.ready().map_err(|e| {
                OpenError::State(format!(
                    "{MARKS_FILE} in {} cannot be written: {e}. Each statement (DDL) is noted there before it runs, and \
                     a node that cannot do that leaves the cluster, so it does not start. Give the server's user read \
                     and write access to it, and room on that file system; then start this node again",
                    dir.display()
                ))
            })?;
        }
        let saved = state_file
            .as_ref()
            .map_or_else(GraState::default, StateFile::state);
        let position = if setup.position.is_defined() {
            setup.position
        } else {
            Position {
                history: saved.uuid,
                seqno: saved.seqno,
            }
        };
        if !setup.witness {
            // If that fails now, it is tried again before the first sync.
            let _ = engines.hold_data(&setup.data_dir);
        }
        let spooler = Spooler::new(&settings.base_dir, engines.map_file());
        if state_file.is_some() {
            // The directory is locked: no other process uses it.
            spooler.remove_left();
        }
        let files = QueueFiles::new(spooler.clone(), db.clone());
        let node = Arc::new(Node {
            db,
            spooler,
            engines,
            options: Mutex::new(opts),
            settings: RwLock::new(settings),
            state_file: Mutex::new(state_file),
            gates: Gates::new(position.seqno),
            queue: ApplyQueue::with_overflow(setup.queue_here, Box::new(files)),
            trxs: TrxMap::default(),
            toi: Mutex::new(HashMap::new()),
            pending: Mutex::new(Pending::default()),
            unsent: Default::default(),
            given_up: RwLock::default(),
            chunks: Mutex::new(Chunks::new(lacking)),
            held: Mutex::default(),
            over: AtomicI64::new(-1),
            working: Mutex::default(),
            holds: Default::default(),
            held_changed: Default::default(),
            spared: Default::default(),
            back_at: Default::default(),
            settles_at_view: Default::default(),
            streams: Mutex::new(Streams::default()),
            streaming: Mutex::default(),
            newest_toi: AtomicI64::new(0),
            newest_small: AtomicI64::new(0),
            count_small: AtomicI64::new(0),
            ready_ahead: AtomicI64::new(0),
            kept_ahead: AtomicI64::new(0),
            going_alone: Default::default(),
            forgetful_told: AtomicBool::new(false),
            log_held_up: AtomicBool::new(false),
            log_too_slow: AtomicBool::new(false),
            told: Mutex::default(),
            addresses_told: Mutex::default(),
            unread_told: AtomicBool::new(false),
            durabilities: Mutex::default(),
            lacking_file: Mutex::new(lacking_file),
            chunks_more: Condvar::new(),
            shared: Mutex::new(Shared::closed()),
            changed: Condvar::new(),
            order: RwLock::new(None),
            delivered: Mutex::new(Delivered::default()),
            delivered_more: Condvar::new(),
            votes: Mutex::new(BTreeMap::new()),
            vote_decided: Condvar::new(),
            own_ballots: Mutex::default(),
            failed: Mutex::new(failed),
            catching_up: Mutex::default(),
            checkpoints: Mutex::new(VecDeque::new()),
            left_in_log: Arc::default(),
            queued_in_log: Arc::default(),
            flow: Flow::default(),
            slow: Mutex::default(),
            own_slow: Mutex::default(),
            own_lack: AtomicU64::new(0),
            holders: Mutex::default(),
            counters: Counters::default(),
            progress_number: AtomicU64::new(0),
            digests: Mutex::default(),
            recounts: Mutex::default(),
            delayed: Mutex::default(),
            opened_at: std::time::Instant::now(),
            durable: Mutex::default(),
            syncs: Mutex::default(),
            ddl_marks: Mutex::new(ddl_marks),
            refed: Mutex::default(),
            syncer: Mutex::default(),
            threads: Mutex::new(Vec::new()),
            services: Mutex::new(None),
            history: Mutex::new(position.history),
            cut_asked: Mutex::new(0),
            evicting: Mutex::new(HashMap::new()),
            promised: Default::default(),
            kept_told: Mutex::new(None),
            weighing_told: Mutex::default(),
            weight_told: Mutex::new(None),
            primary_lost: Mutex::new(None),
            timings: Mutex::new(timings),
            sought: Mutex::new(None),
            last_tick: Mutex::new(None),
            first_seen: Mutex::default(),
            closed: ClosedTables::default(),
            unique_tables: Arc::default(),
            stalled: Mutex::default(),
            losing: Mutex::default(),
            connected_before: Default::default(),
            was_up: Default::default(),
            was_synced: Default::default(),
            starting_told: Mutex::default(),
            standing_told: Mutex::default(),
            engine_failed: Default::default(),
            rejoiner: Mutex::new(None),
            seeker: Mutex::new(None),
            beside: Mutex::default(),
            handed_over: Mutex::default(),
            force_primary: Default::default(),
            engine_word: Mutex::default(),
            engine_silent: Default::default(),
            wants_copy: AtomicBool::new(false),
            went_alone: Default::default(),
            forced_here: Default::default(),
            founds_alone: Default::default(),
            forget_log: Default::default(),
            last_with_data: Default::default(),
            copy_pause: Default::default(),
            secured: Mutex::default(),
            setup,
        });
        for note in outcome.notes {
            node.note(&note.0);
        }
        node.secure(true).map_err(OpenError::Security)?;
        if let Some(text) = node.settings().listens_elsewhere() {
            node.warn(&text);
        }
        for action in outcome.actions {
            node.act(action).map_err(OpenError::Order)?;
        }
        if !node.is_witness() {
            node.note(&format!("recovered position: {position}"));
        }
        Ok(node)
    }

    /// Takes what a user typed into `SET GLOBAL wsrep_provider_options`.
    pub fn set_options(&self, text: &str) -> Result<(), String> {
        // Who tries to come back has no order between two attempts, and goes on with what it had.
        let connected = self.order().is_some() || self.phase() == Phase::Rejoining;
        let mut opts = lock(&self.options);
        let before = opts.clone();
        let phase = options::Phase::Runtime { connected };
        let mut outcome = opts.set(text, phase);
        let mut refused = None;
        if outcome.changed.contains(&SECRET_FILE)
            && let Err(e) = self.secure_with(opts.settings(), true)
        {
            *opts = before;
            outcome = opts.set_before(SECRET_FILE, text, phase);
            refused = Some(e);
        }
        if outcome.changed.contains(&"dromon.bulk_share")
            && let Some(order) = self.order()
        {
            order.set_bulk_share(opts.settings().bulk_share);
        }
        *self
            .settings
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(opts.settings().clone());
        drop(opts);
        for note in outcome.notes {
            self.note(&note.0);
        }
        let times = ["evs.suspect_timeout", "evs.keepalive_period"];
        if connected && outcome.changed.iter().any(|name| times.contains(name)) {
            self.note_timings(&self.settings());
        }
        for action in outcome.actions {
            self.act(action)?;
        }
        let refused = refused.or_else(|| outcome.error.map(|e| e.to_string()));
        refused.map_or(Ok(()), Err)
    }

    /// Does what an option orders.
    pub(super) fn act(&self, action: options::Action) -> Result<(), String> {
        match action {
            options::Action::Isolate(how) => {
                let on = how != options::Isolation::Off;
                self.engines.isolate(on);
                self.note(if on {
                    "gmcast.isolate: this node is cut off from the others until it is set to 0"
                } else {
                    "gmcast.isolate: this node is not cut off"
                });
                Ok(())
            }
            options::Action::Weight(weight) => self.set_weight(weight),
            options::Action::Evict(Some(uuid)) => self
                .evict_member(uuid)
                .map_err(|why| format!("evs.evict: nobody was removed: {why}")),
            options::Action::Evict(None) => Ok(()),
            options::Action::Bootstrap => {
                if self.order().is_some_and(|o| o.status().primary) {
                    self.note("pc.bootstrap: this component is primary already");
                    return Ok(());
                }
                self.go_alone(super::alone::Forced::Asked)
                    .map(drop)
                    .map_err(|refused| format!("pc.bootstrap: {}", refused.why))
            }
            options::Action::ReloadTls => self.secure(true),
        }
    }

    /// Has the cluster remove a member for good.
    fn evict_member(&self, uuid: Uuid) -> Result<(), String> {
        if !self.serving() {
            return Err(format!(
                "{} is not in a primary component now, and only members of one decide who is. Give the order on a node \
                 with wsrep_cluster_status=Primary",
                self.setup.name
            ));
        }
        let members = self
            .shared()
            .view
            .as_ref()
            .map_or_else(Vec::new, |v| v.members.clone());
        if members.iter().all(|m| m.uuid != uuid) {
            let members: Vec<_> = members
                .iter()
                .map(|m| format!("{} ({})", m.uuid, m.name))
                .collect();
            return Err(format!(
                "{uuid} is not a member. Members are {}; each shows its own uuid in wsrep_gcomm_uuid",
                members.join(", ")
            ));
        }
        self.order_control(Control::Leave {
            uuid,
            reason: LeaveReason::Expelled,
        })
    }

    /// Reads the files of encryption and secret anew; `again`: says what it
    /// found even if that is what it found before.
    pub(super) fn secure(&self, again: bool) -> Result<(), String> {
        self.secure_with(&self.settings(), again)
    }

    fn secure_with(&self, settings: &options::Settings, again: bool) -> Result<(), String> {
        if settings.tls.said_by_address && !settings.tls.enabled {
            return Err(
                "gmcast.listen_addr begins with ssl://, but socket.ssl is off: switch it on, or write tcp://".into(),
            );
        }
        if settings.tls.half_named {
            return Err(
                "of socket.ssl_cert and socket.ssl_key only one is named, so connections would not be encrypted: name \
                 both, or say socket.ssl=no"
                    .into(),
            );
        }
        let notes = self.engines.secure(settings)?;
        let mut said = lock(&self.secured);
        if again || *said != notes {
            notes.iter().for_each(|note| self.note(note));
            *said = notes;
        }
        Ok(())
    }

    pub(super) fn order_control(&self, control: Control) -> Result<(), String> {
        let Some(order) = self.order() else {
            return Ok(());
        };
        order
            .propose(kind::CONTROL, 0, encode(&control))
            .map(|_| ())
            .map_err(|e| e.to_string())
    }

    /// All options as one string.
    pub fn options_text(&self) -> String {
        lock(&self.options).to_string()
    }

    /// All options one by one.
    pub fn parameters(&self) -> Vec<options::Parameter> {
        lock(&self.options).parameters()
    }

    fn save(&self, state: GraState) -> bool {
        self.save_if(|_| Some(state))
    }

    /// Writes what `next` makes of what the state file says, if it makes anything of it.
    /// The file is locked first of all, then `shared`, then the marks. False: it cannot be
    /// written.
    fn save_if(&self, next: impl FnOnce(GraState) -> Option<GraState>) -> bool {
        let mut file = lock(&self.state_file);
        let Some(mut state) = next(
            file.as_ref()
                .map_or_else(GraState::default, StateFile::state),
        ) else {
            return true;
        };
        match self.phase() {
            // Whoever has more to say was overtaken: once this data is not the others',
            // nothing but a copy helps.
            Phase::Inconsistent => state = self.inconsistent_state(),
            // It has said where it stopped, or that.
            Phase::Closed if state != NO_DATA => return true,
            _ => {}
        }
        if state.seqno < 0
            && let Err(e) = lock(&self.ddl_marks).runs()
        {
            self.warn(&format!(
                "{MARKS_FILE} in {} still says where this node stopped last: {e}",
                self.settings().base_dir.display()
            ));
        }
        let result = match file.as_mut() {
            Some(file) => file.write(state),
            None => return true,
        };
        drop(file);
        if let Err(e) = &result {
            self.error(&e.to_string());
        }
        result.is_ok()
    }

    /// The node runs: the file says the history, not the position.
    pub(super) fn save_running(&self) {
        self.save_running_as(self.alone());
    }

    /// The same; `founds`: it may found a cluster alone.
    pub(super) fn save_running_as(&self, founds: bool) {
        let uuid = self.history();
        self.save(GraState {
            uuid,
            seqno: -1,
            safe_to_bootstrap: founds,
        });
        self.save_view_file();
    }

    /// All others have left before it, while it still finishes what it has: should it be killed amid that, the file
    /// says so.
    pub(super) fn save_left_last(&self) {
        if self.shared().brought_up && !self.setup.witness {
            self.save_if(|saved| {
                (!saved.safe_to_bootstrap).then_some(GraState {
                    safe_to_bootstrap: true,
                    ..saved
                })
            });
        }
    }

    /// A view came: whether this node may found a cluster alone has changed.
    pub(super) fn save_view_state(&self) {
        let alone = self.alone();
        if self.shared().brought_up {
            self.save_if(|saved| {
                (saved.safe_to_bootstrap != alone).then_some(GraState {
                    safe_to_bootstrap: alone,
                    ..saved
                })
            });
        }
        self.save_view_file();
    }

    /// Others are there, and this node may not found a cluster alone any more: that is not to wait for an
    /// applier, which may stand behind a pause or a statement when the view comes.
    pub(super) fn look_not_alone(&self) {
        if self.phase() != Phase::Joined || self.others().is_empty() || !self.shared().brought_up {
            return;
        }
        // Whoever writes it may wait for a disk.
        let flagged = self.state_file.try_lock().is_ok_and(|file| {
            let file = file.as_ref();
            file.is_some_and(|f| f.state().safe_to_bootstrap)
        });
        if flagged && let Some(services) = self.services() {
            // A full queue only delays this.
            let _ = services.try_send(Job::NotAlone);
        }
    }

    /// See [`Node::look_not_alone`]. On a service thread.
    pub(super) fn save_not_alone(&self) {
        self.save_if(|saved| {
            let untrue = saved.safe_to_bootstrap && !self.others().is_empty();
            untrue.then_some(GraState {
                safe_to_bootstrap: false,
                ..saved
            })
        });
    }

    /// `gvwstate.dat`: the primary view, for tools and for whoever looks after a crash.
    fn save_view_file(&self) {
        if self.setup.witness {
            return;
        }
        let view = {
            let shared = self.shared();
            let view = shared
                .view
                .as_ref()
                .filter(|v| v.index_of(&shared.uuid).is_some());
            view.and_then(|v| {
                Some(ViewState {
                    my_uuid: shared.uuid,
                    view_id: (v.members.first()?.uuid, u64::try_from(v.number).ok()?),
                    bootstrap: false,
                    members: v.members.iter().map(|m| (m.uuid, m.segment)).collect(),
                })
            })
        };
        if let Some(view) = view
            && let Err(e) = view.write(&self.settings().base_dir)
        {
            self.warn(&e.to_string());
        }
    }

    /// Whether this node is the only member.
    pub(super) fn alone(&self) -> bool {
        let shared = self.shared();
        let only = shared.view.as_ref().map(|v| match v.members.as_slice() {
            [one] => one.uuid == shared.uuid,
            _ => false,
        });
        only.unwrap_or(false)
    }

    /// The database is clean at `position`.
    pub(super) fn save_position(&self, position: Position) {
        let alone = self.alone();
        self.save(GraState {
            uuid: position.history,
            seqno: position.seqno,
            safe_to_bootstrap: alone,
        });
    }

    /// The node has stopped cleanly at `position`, and its log has that `behind` it.
    pub(super) fn save_stopped(&self, position: Position, last: bool, behind: Behind) {
        self.save(GraState {
            uuid: position.history,
            seqno: match behind {
                // Who goes on from a seqno there, and does not read this log, would give it up.
                Behind::Only => -1,
                Behind::Nothing | Behind::Others => position.seqno,
            },
            safe_to_bootstrap: last,
        });
        let whole = behind == Behind::Nothing;
        // If that fails, an outcome that comes later may cost a copy.
        let _ = lock(&self.failed).flush();
        let stopped = Mark {
            at: position,
            progress: Progress::Stopped { whole },
            untold: 0,
            former: None,
        };
        if position.is_defined()
            && (whole || !self.setup.witness)
            && let Err(e) = lock(&self.ddl_marks).write(stopped)
        {
            self.note(&format!(
                "the orderly stop could not be noted in {MARKS_FILE} ({e}){}",
                match self.setup.witness {
                    true => "",
                    false => ": the next start asks the storage engine",
                }
            ));
        }
        if let Err(e) = ViewState::remove(&self.settings().base_dir) {
            self.warn(&e.to_string());
        }
    }

    /// Only a full copy helps, if there is anybody to give it. False: the file cannot be written.
    pub(super) fn save_inconsistent(&self) -> bool {
        self.save(self.inconsistent_state())
    }

    fn inconsistent_state(&self) -> GraState {
        match self.last_with_data.load(Relaxed) {
            true => GraState {
                uuid: self.history(),
                seqno: -1,
                safe_to_bootstrap: true,
            },
            false => NO_DATA,
        }
    }

    /// Whether there is no state file yet, or an empty one.
    pub(super) fn never_saved(&self) -> bool {
        lock(&self.state_file)
            .as_ref()
            .is_none_or(StateFile::is_new)
    }

    /// What the state file says.
    pub(super) fn saved(&self) -> GraState {
        let file = lock(&self.state_file);
        file.as_ref()
            .map_or_else(GraState::default, StateFile::state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_below_the_data_directory_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("data");
        let (below, beside) = (data.join("log"), dir.path().join("data-log"));
        for dir in [&below, &beside] {
            std::fs::create_dir_all(dir).expect("a directory");
        }
        let (link, inside) = (dir.path().join("link"), data.join("inside"));
        let further = inside.join("further");
        std::fs::create_dir(beside.join("further")).expect("a directory");
        for (link, to) in [(&link, &below), (&inside, &beside)] {
            std::os::unix::fs::symlink(to, link).expect("a link");
        }
        let refused = |text: String| {
            let mut options = Options::new(options::Env {
                node_address: "10.0.0.1".into(),
                data_dir: data.to_string_lossy().into_owned(),
            });
            let _ = options.parse_init(&text).expect("right options");
            let refused = refuse_below(options.settings(), &data);
            refused.err().map(|e| e.to_string())
        };
        assert_eq!(refused(String::new()), None);
        for allowed in [
            &data,
            &beside,
            &dir.path().into(),
            &data.join("../data-log"),
        ] {
            assert_eq!(refused(format!("gcache.dir={}", allowed.display())), None);
        }
        for (option, dir) in [
            ("gcache.dir", &below),
            ("gcache.dir", &link),
            ("gcache.dir", &inside),
            ("gcache.dir", &further),
            ("base_dir", &below),
        ] {
            let why =
                refused(format!("{option}={}", dir.display())).expect("it is lost with a copy");
            assert!(why.starts_with(&format!("{option} is ")), "{why}");
        }
    }
}
