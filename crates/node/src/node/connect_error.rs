//! Why a node did not get into the cluster, and what to do then.

use dromon_order::{LogId, OrderStatus};
use dromon_writeset::{Seqno, Uuid};

use super::alone::named;
use super::open::COPY_ASKED;
use super::unsaid::ASK_ENGINE;
use crate::messages::Position;
use crate::options::{AddressError, OptionError};

/// What to do about a damaged log.
pub(super) const ONLY_PLACE: &str = "It may be the only place of what was acknowledged last. Start the other nodes first, then \
                          this one as usual (without --wsrep-new-cluster): once they form a primary component, it sets \
                          its log aside by itself and takes a full copy. Only if no other node is left: keep a copy of \
                          the dromon-*.log files, move them away and found the cluster here; it goes on with what its \
                          storage engine has";

/// The node could not get into the cluster.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A file of encryption or secret cannot be used.
    #[error("{0}")]
    Security(String),
    /// The cluster address is malformed.
    #[error("wsrep_cluster_address: {0}")]
    Address(#[from] AddressError),
    /// An option in it is wrong.
    #[error("wsrep_cluster_address: {0}")]
    Option(#[from] OptionError),
    /// A witness was told to found a cluster.
    #[error(
        "a witness has no data and cannot found a cluster. Nothing was changed. Name the data nodes in its address, for \
         example gcomm://10.0.0.1,10.0.0.2; the first data node founds the cluster (--wsrep-new-cluster)"
    )]
    NothingToFound,
    /// The server was paused for a copy, and disconnected amid it.
    #[error(
        "this server was disconnected amid a copy (SST) that it gave, and is still paused for that: nothing could be \
         applied here. If wsrep_sst_* still runs, try again when it has ended; if not, restart this server"
    )]
    Paused,
    /// Already connected.
    #[error("this node is connected already; it must leave first")]
    Connected,
    /// Founding a new cluster here may lose data.
    #[error(
        "It may not be safe to bootstrap the cluster from this node. It was not the last one to leave the cluster \
         and may not contain all the updates. To force cluster bootstrap with this node, edit the grastate.dat file \
         manually and set safe_to_bootstrap to 1 .{}", rather(.named, *.no_log)
    )]
    NotSafe {
        /// The others that the own log names.
        named: Vec<String>,
        /// Why no cluster can go on with that log, if so.
        no_log: Option<&'static str>,
    },
    /// Nobody knows what the database contains.
    #[error(
        "{}, but its position is unknown after a crash. Nothing was \
         changed. A Note above says why the storage engine did not tell it: mend that and start again, it is asked anew. If \
         it runs already (wsrep_sst_method=mysqldump needs it), nobody can ask it then: run '{ask}' first, and start \
         with --wsrep-start-position=<the recovered position>", whose_data(history), ask = ASK_ENGINE
    )]
    UnknownPosition {
        /// The history in the state file; nil: there is no such file, and a log.
        history: Uuid,
    },
    /// The state file and the storage engine speak of different data.
    #[error(
        "grastate.dat says that the data here belongs to history {file}, but the storage engine stands at {engine}: a \
         cluster founded here would pass one off as the other. Nothing was changed. Write uuid: {} into grastate.dat \
         (or remove the file: then the engine's word counts) and start again; to take a full copy of a running \
         cluster instead, start without --wsrep-new-cluster", .engine.history
    )]
    OtherData {
        /// The history in the state file.
        file: Uuid,
        /// What the engine says.
        engine: Position,
    },
    /// The state file says that the data is not whole, and founding was asked for.
    #[error(
        "grastate.dat has no history (uuid 00000000-…): a full copy did not come to its end here, or this node's data \
         differed from the others'. safe_to_bootstrap: 1 does not change that, so no cluster is founded: it could lack \
         transactions that were acknowledged. Nothing was changed. If this node was the last one to stop, or is all \
         that is left, keep a copy of its data and of its dromon-*.log files, look in its log for what it said when it \
         left, and remove grastate.dat: then the storage engine's word counts. Otherwise found the cluster on the node \
         that stopped last of those whose grastate.dat has a uuid, and start this one without --wsrep-new-cluster"
    )]
    NoUsableData,
    /// Founding was asked for, and another node's log has more.
    #[error(
        "safe_to_bootstrap is 1 in grastate.dat, but {addr}, which {}, runs and has \
         more of the log ({}; here {}): a cluster founded here could lose transactions \
         that were acknowledged. Nothing was changed. {}",
        who_names(*.listed), named(*.theirs), named(*.ours), rather_than_before_it(*.no_log)
    )]
    MoreElsewhere {
        /// Who has more.
        addr: String,
        /// Its address is listed, and the log here does not name it.
        listed: bool,
        /// The last entry there.
        theirs: LogId,
        /// And here.
        ours: LogId,
        /// Why no cluster can go on with the log here, if so.
        no_log: Option<&'static str>,
    },
    /// Founding was asked for, and a member may be there that cannot be asked.
    #[error(
        "safe_to_bootstrap is 1 in grastate.dat, but {why}. Nothing was changed. {}", rather_than_beside_it(*.no_log)
    )]
    Untold {
        /// Who, and what is known of it.
        why: String,
        /// Why no cluster can go on with the log here, if so.
        no_log: Option<&'static str>,
    },
    /// Founding was asked for by who has no log that names others, and a cluster of this name is, or may be, where
    /// the address list says.
    #[error(
        "safe_to_bootstrap is 1 in grastate.dat, or there is none yet, but {why}. Nothing was changed"
    )]
    Listed {
        /// Who, what is known of it, and what to do.
        why: String,
    },
    /// Founding was asked for, too few of the others answer, and the flag alone is not to do.
    #[error(
        "safe_to_bootstrap is 1 in grastate.dat, but this node's log names other voters ({}), of which too few answer \
         for a majority of the logs, and dromon.found_alone=no forbids to go on without them: they may have \
         transactions that were acknowledged and are not here. Nothing was changed. {}",
        .named.join(", "), rather_than_alone(*.no_log)
    )]
    TooFewAnswer {
        /// The others that the own log names.
        named: Vec<String>,
        /// Why no cluster can go on with that log, if so.
        no_log: Option<&'static str>,
    },
    /// The ordering engine did not start.
    #[error("the ordering engine did not start: {0}")]
    Engine(String),
    /// The own log is damaged; the others may have what it had.
    #[error("this node's log is damaged: {0} {only}", only = ONLY_PLACE)]
    Damaged(String),
    /// The same, and no others are there.
    #[error(
        "this node's log is damaged, and no primary component of other nodes was reached within {seconds} s: \
         {missing}. It may be the only place of what was acknowledged last, so nothing was changed. Start the other \
         nodes first: once they form a primary component, this node sets its log aside by itself and takes a full \
         copy. The damage: {damage}"
    )]
    DamagedAlone {
        /// How long was tried.
        seconds: u64,
        /// What each address said last.
        missing: String,
        /// What is wrong with the log.
        damage: String,
    },
    /// All who were asked answered that this node will never get in, or it cannot go on here.
    #[error("{0}")]
    Refused(String),
    /// There is nobody to ask.
    #[error(
        "wsrep_cluster_address names only this node itself ({own}), so there is no other node to join. Nothing was \
         changed. Name the other nodes there; to found a new cluster on this one, start it with --wsrep-new-cluster \
         (galera_new_cluster does)"
    )]
    OnlyItself {
        /// What the list says.
        own: String,
    },
    /// Nobody answered in time.
    #[error("{}", no_primary(*.seconds, .missing, .next, *.left_last))]
    NoPrimary {
        /// How long was tried.
        seconds: u64,
        /// What each address said last.
        missing: String,
        /// What to do now.
        next: String,
        /// This node was the last one that was stopped: what the others say matters less.
        left_last: bool,
    },
    /// The database is ahead of the log it should follow.
    #[error(
        "the database stands at seqno {position}, but the cluster's log ends at {last} in the same history: joining \
         would undo transactions. Nothing was changed. To give up what only this database has, {asked} and start it again: it \
         takes a full copy. Keep the dromon-*.log files, which tell what that is", asked = COPY_ASKED
    )]
    Ahead {
        /// The database's seqno.
        position: Seqno,
        /// The last one ordered before this node joined.
        last: Seqno,
    },
    /// Another running node has the identity of this one's log.
    #[error(
        "{why}. It has been so for {seconds} s, longer than the former process of a node that was restarted is heard: a \
         machine was cloned, or a data directory copied, with the log that tells who a node is. Waiting here, this one \
         would take the other one's place the moment that one ends, so its start ends here. Which of the two is the copy \
         is for you to say: if this one is, do with it as said; if that one is, stop it and start this one again"
    )]
    Copy {
        /// What a member says.
        why: String,
        /// For how long.
        seconds: u64,
    },
    /// The own log begins after what the database contains.
    #[error(
        "the database stands at seqno {position}, but this node's log begins only at {first}: what lies between is \
         missing here. Nothing was changed. Start the other nodes first, then this one: it takes a full copy. If they wait for \
         this one's log to make a majority, {asked} and start it again: its log then votes with theirs, and its data is copied \
         anew from one of them", asked = COPY_ASKED
    )]
    LogTooShort {
        /// The database's seqno.
        position: Seqno,
        /// The log's first.
        first: Seqno,
        /// A primary component of others is there.
        others: bool,
    },
    /// The others went on without this node's log.
    #[error("the others form a primary component without this node's log")]
    Evicted,
    /// Who leads cannot send what this node needs of the log.
    #[error("{0}")]
    LogGone(String),
    /// The leader refused to order the join for all that time.
    #[error("the cluster did not order this node's join within {seconds} s: {why}")]
    JoinRefused {
        /// How long was tried.
        seconds: u64,
        /// What it said last.
        why: String,
    },
    /// The process is to end, and nobody would call disconnect: its server does so once it has started.
    #[error(
        "the server was told to stop (SIGTERM) while this node was {0}, so its start ends here. Its data and its log stay \
         as they are now, and nothing acknowledged is given up: start it again as usual"
    )]
    ToldToStop(&'static str),
    /// The own log is of another build, and may have more than the database.
    #[error(
        "{tried}this node's log was written by another build of the library (format {theirs}; this one has format {ours}), and \
         {}: what was acknowledged last may be in that log and nowhere else. Nothing was changed. Start this node with the \
         build that wrote its log, {}. Upgrade once it runs: stop all nodes cleanly first. Only to give up what only this log \
         has, keep a copy of the dromon-*.log files and move them away",
        unclean(*has_seqno),
        with_its_build(*alone)
    )]
    OtherBuild {
        /// What came of looking for others, a sentence; none if that was not it.
        tried: String,
        /// The log's format.
        theirs: u8,
        /// This build's.
        ours: u8,
        /// Whether grastate.dat has a seqno.
        has_seqno: bool,
        /// The log names no other node.
        alone: bool,
    },
    /// Who leads runs another build, and what it gives to start from cannot be read here.
    #[error(
        "{addr} leads the cluster and runs another build of the library, whose checkpoints this one cannot read (format \
         {theirs}; this one has format {ours}). Nothing was changed. Start this node with the build that runs there (dromon \
         --version prints the format). To go over to this one, stop all nodes cleanly, install it on all, and start the one \
         that stopped last with --wsrep-new-cluster (galera_new_cluster does), then the others (docs/wire.md)"
    )]
    LedByOtherBuild {
        /// Where it is.
        addr: String,
        /// Its format.
        theirs: u8,
        /// This build's.
        ours: u8,
    },
    /// The join was not ordered in time.
    #[error("the cluster did not order this node's join within {seconds} s ({log}); try again")]
    JoinTimeout {
        /// How long that was waited for.
        seconds: u64,
        /// How the log here stands: whose fault it may be.
        log: String,
    },
}

/// How a log stands, for whoever waits in vain for what is to be ordered.
pub(super) fn log_in_words(status: &OrderStatus) -> String {
    let leader = match &status.leader {
        Some((_, addr)) => format!("led by {addr}"),
        None => "nobody leads".to_owned(),
    };
    let primary = if status.primary { "" } else { ", no majority" };
    let held_up = status.log_held_up.as_ref();
    let held_up = held_up.map_or(String::new(), |why| format!(". {why}"));
    format!(
        "{leader} in term {}{primary}; the log here goes to {}, stored are {}, committed {}, delivered {}; {} messages of \
         this node wait to be ordered{held_up}",
        status.term,
        status.last.index,
        status.durable,
        status.committed,
        status.delivered,
        status.pending,
    )
}

/// By what one is known.
fn who_names(listed: bool) -> &'static str {
    match listed {
        true => "wsrep_cluster_address lists",
        false => "this node's log names as a member",
    }
}

/// Why a database may lack what its log has.
fn unclean(has_seqno: bool) -> &'static str {
    match has_seqno {
        true => {
            "the node was not stopped cleanly with all of it in its database, or the seqno in grastate.dat or the database's \
             files are others since (edited, restored, copied to another place)"
        }
        false => {
            "the node was not stopped cleanly with all of it in its database (grastate.dat has no seqno)"
        }
    }
}

/// How a node goes on under the build that wrote its log.
fn with_its_build(alone: bool) -> &'static str {
    match alone {
        true => "with --wsrep-new-cluster (galera_new_cluster does), as that names no other node",
        false => {
            "and the others likewise: after a crash of all they form the cluster again by themselves, started as usual"
        }
    }
}

/// What to do rather than to force it, where there are others.
fn rather(named: &[String], no_log: Option<&str>) -> String {
    if named.is_empty() {
        return String::new();
    }
    let named = named.join(", ");
    if let Some(why) = no_log {
        return format!(
            " Not before it is compared with the others: this node's log names {named} too, and what only they have would be \
             lost. If all were stopped cleanly, found it on the one whose grastate.dat says safe_to_bootstrap: 1. {}",
            by_engines(why)
        );
    }
    format!(
        " Do not while they can still be started: this node's log names {named} too, and what only they have would be lost. After \
         a crash or loss of power start all nodes as usual, this one too, without --wsrep-new-cluster (galera_new_cluster), in \
         any order: they form the cluster again by themselves. If all were stopped cleanly, found it on the one whose \
         grastate.dat says safe_to_bootstrap: 1. Only if most of them are gone for good, force it, while all that are left wait"
    )
}

/// The same where the flag is set, and is not to do that.
fn rather_than_alone(no_log: Option<&str>) -> String {
    match no_log {
        Some(why) => format!("{} (and with dromon.found_alone=yes there)", by_engines(why)),
        None => "Start all nodes as usual, this one too, without --wsrep-new-cluster: the logs of a majority form the \
                 cluster by themselves. Only if most of them are gone for good, start this one with \
                 dromon.found_alone=yes and --wsrep-new-cluster"
            .to_owned(),
    }
}

/// The same where another one has more.
fn rather_than_before_it(no_log: Option<&str>) -> String {
    match no_log {
        Some(why) => by_engines(why),
        None => "Start this node without --wsrep-new-cluster: the logs of a majority form the cluster again by themselves. If \
                 a majority of the nodes is gone for good, stop that node and found the cluster there (safe_to_bootstrap: 1 \
                 in its grastate.dat, galera_new_cluster), then start this one as usual"
            .to_owned(),
    }
}

/// The same where somebody may be there.
fn rather_than_beside_it(no_log: Option<&str>) -> String {
    match no_log {
        Some(why) => format!(
            "Started without --wsrep-new-cluster, this node joins the others if they are a primary component. {}",
            by_engines(why)
        ),
        None => "Started without --wsrep-new-cluster, this node goes on with the others as soon as a majority of the logs is \
                 there"
            .to_owned(),
    }
}

/// What to do where nobody made a primary component in time: after an orderly stop of all nobody
/// does without a word, and after a crash of all only logs do that can be gone on with.
pub(super) fn what_next(left_last: bool, no_log: Option<&str>) -> String {
    const CHECK: &str = "Check that the others run and that wsrep_cluster_address names them.";
    const CLEANLY: &str = "If all were stopped cleanly, first start the one whose grastate.dat says \
                            safe_to_bootstrap: 1 with --wsrep-new-cluster (galera_new_cluster does)";
    match (left_last, no_log) {
        (true, _) => {
            "This node was the last one that was stopped (safe_to_bootstrap: 1 in its grastate.dat): if no other node is \
             primary, start it with --wsrep-new-cluster (galera_new_cluster does), then the others as usual"
                .to_owned()
        }
        (false, None) => format!(
            "{CHECK} After a crash or loss of power start all of them as usual, none with --wsrep-new-cluster: they form the \
             cluster again by themselves. {CLEANLY}"
        ),
        (false, Some(why)) => format!("{CHECK} {CLEANLY}. {}", by_engines(why)),
    }
}

fn no_primary(seconds: u64, missing: &str, next: &str, left_last: bool) -> String {
    let tried = format!("failed to reach primary view within {seconds} s");
    match left_last {
        true => format!("{tried}. {next}. Nothing was changed here. Asked were {missing}"),
        false => format!("{tried}: {missing}. Nothing was changed here. {next}"),
    }
}

/// What is said from time to time by who finds no primary component, and was, or was not, the last one that was stopped.
pub(super) fn still_looking(missing: &str, left_last: bool) -> String {
    const LOOKS: &str = "still looking for a primary component";
    match left_last {
        true => format!("{LOOKS}. {}. Asked were {missing}", what_next(true, None)),
        false => format!("{LOOKS}: {missing}"),
    }
}

/// How one knows that there is data.
fn whose_data(history: &Uuid) -> String {
    match history.is_nil() {
        true => "there is no grastate.dat, and this node's log (dromon-*.log) says that there was data here".to_owned(),
        false => format!("the data directory belongs to history {history}"),
    }
}

/// How a cluster goes on whose logs tell nothing.
fn by_engines(why: &str) -> String {
    format!(
        "After a crash or loss of power the log here cannot be gone on with ({why}). If a majority of the nodes says so, no \
         cluster is formed unless somebody founds it: stop all, run '{ASK_ENGINE}' on each, set safe_to_bootstrap: 1 in \
         grastate.dat where the recovered position is highest, start that one with --wsrep-new-cluster \
         (galera_new_cluster does), then the others as usual: they take full copies"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_stopped_last_is_told_so_before_what_the_others_say() {
        let says = |left_last| {
            let e = ConnectError::NoPrimary {
                seconds: 30,
                missing: "a:1: not the leader".to_owned(),
                next: what_next(left_last, None),
                left_last,
            };
            [
                e.to_string(),
                still_looking("a:1: not the leader", left_last),
            ]
        };
        for text in says(true) {
            let at = |words| text.find(words).unwrap_or_else(|| panic!("{text}"));
            assert!(at("start it with --wsrep-new-cluster") < at("not the leader"));
        }
        let [end, looks] = says(false);
        assert!(end.starts_with("failed to reach primary view within 30 s: a:1: not the leader. "));
        assert_eq!(
            looks,
            "still looking for a primary component: a:1: not the leader"
        );
    }

    #[test]
    fn after_an_orderly_stop_of_all_it_is_said_who_begins() {
        assert!(what_next(true, None).contains("start it with --wsrep-new-cluster"));
        let next = what_next(false, None);
        let (usual, first) = (
            next.find("start all of them as usual, none with"),
            next.find("the one whose grastate.dat says safe_to_bootstrap: 1"),
        );
        assert!(usual.is_some() && usual < first, "{next}");
    }

    #[test]
    fn where_no_log_can_be_gone_on_with_the_engines_are_compared() {
        let why = Some("dromon.durability=memory");
        let named = vec!["n2:1".to_owned()];
        let said = [
            what_next(false, why),
            ConnectError::NotSafe {
                named: named.clone(),
                no_log: why,
            }
            .to_string(),
            ConnectError::TooFewAnswer { named, no_log: why }.to_string(),
            ConnectError::MoreElsewhere {
                addr: "n2:1".into(),
                listed: true,
                theirs: LogId::default(),
                ours: LogId::default(),
                no_log: why,
            }
            .to_string(),
            ConnectError::Untold {
                why: "n2:1 may be there".into(),
                no_log: why,
            }
            .to_string(),
        ];
        for said in said {
            assert!(!said.contains("by themselves"), "{said}");
            assert!(said.contains(ASK_ENGINE), "{said}");
            assert!(said.contains("dromon.durability=memory"), "{said}");
        }
        let last = what_next(true, why);
        assert!(last.contains("was the last one that was stopped"), "{last}");
    }

    #[test]
    fn who_is_ahead_is_not_told_to_remove_the_log_that_proves_it() {
        let (position, last) = (120, 100);
        let said = ConnectError::Ahead { position, last }.to_string();
        assert!(said.contains(COPY_ASKED), "{said}");
        assert!(said.contains("Keep the dromon-*.log files"), "{said}");
        assert!(!said.contains("remove"), "{said}");
    }

    #[test]
    fn who_waits_in_vain_is_told_how_its_log_stands() {
        let mut status = OrderStatus {
            term: 7,
            durable: 15,
            committed: 14,
            delivered: 13,
            pending: 1,
            ..OrderStatus::default()
        };
        status.last.index = 16;
        let said = |status: &OrderStatus| {
            let (seconds, log) = (30, log_in_words(status));
            ConnectError::JoinTimeout { seconds, log }.to_string()
        };
        let first = said(&status);
        assert!(
            first.contains("within 30 s (nobody leads in term 7, no majority;"),
            "{first}"
        );
        assert!(
            first.contains("to 16, stored are 15, committed 14, delivered 13; 1 messages"),
            "{first}"
        );
        status.primary = true;
        status.leader = Some((1, "10.0.0.1:4567".to_owned()));
        status.log_held_up = Some("The disk is full".to_owned());
        let second = said(&status);
        assert!(
            second.contains("(led by 10.0.0.1:4567 in term 7; the log"),
            "{second}"
        );
        assert!(second.contains("ordered. The disk is full)"), "{second}");
    }

    /// With its binary log a server may keep a later transaction without an earlier one.
    #[test]
    fn nobody_is_told_to_ask_an_engine_with_its_binary_log() {
        let said = ConnectError::UnknownPosition { history: Uuid::NIL }.to_string();
        assert!(said.contains("it is asked anew"), "{said}");
        assert!(said.contains("--wsrep-recover --skip-log-bin"), "{said}");
        assert_eq!(said.matches("--wsrep-recover").count(), 1, "{said}");
    }
}
