//! What came of something that was under way when a replica died, or lost its connection.
//!
//! Statements that no rollback takes back are sent over one connection of each replica. The next one has
//! waited for the end of its statement, and ended it ([`super::fence`]): nothing of it can come later.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use dromon_binlog::{Ending, Gtid, Payload, Position};
use dromon_relay::log::{Level, Log};
use dromon_relay::pull::Wish;

use super::gtids;
use super::texts::{TEXT, begun_rows, is_of, is_of_rows, shown};
use super::{Doubt, End, Progress, Settings};
use crate::client::{Client, ClientError};
use crate::compile::{is_announced, is_frame};
use crate::source::{Came, Link, Puller, Source};
use crate::target::{Channel, Doing};
use crate::unit::Transaction;

/// How often it looks whether a statement has ended.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// How often it says so: times that it looked.
pub(super) const SAY: u32 = 100;
/// How long a group may take to come that the target's binlog has.
const GROUP: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// What came of it.
pub(super) enum Settled {
    /// It was done.
    Done,
    /// It is to be done, but for so many steps; true: the others surely were not.
    Again(bool, usize),
    /// It cannot go on.
    Stop(End),
}

/// Finds out what came of it. `logs`: the target writes a binlog.
pub(super) fn settle(
    settings: &Settings,
    log: &Log,
    progress: &Progress,
    control: &mut Client,
    doing: &Doing,
    logs: bool,
) -> Result<Settled, ClientError> {
    if is_told_before_its_end(settings, log, progress, control, doing)? {
        return Ok(Settled::Stop(End::Told));
    }
    let mut what = format!(
        "{} was under way when the last run ended ({}…)",
        doing.gtid,
        shown(&doing.text)
    );
    // Its end is written down when its statement has ended.
    let end = Channel::new(&settings.channel).doing_binlog(control)?;
    if end.is_some_and(|end| end.ends_with(Doing::DONE)) {
        log.say(Level::Note, &format!("{what}; it was done to its end."));
        return Ok(Settled::Done);
    }
    let mut seen = Shown::Other;
    if doing.binlog == Doing::ASK && settings.doubt != Doubt::Skip {
        return Ok(Settled::Stop(End::Fatal(format!(
            "{what}: it ended with an error, the target had no room, and it cannot be said whether it was done. Look at the target: if it was, \
             start once with in_doubt = skip; if not, say so, and start again: UPDATE dromon_replica.position SET doing = NULL \
             WHERE channel = '{}'.",
            settings.channel
        ))));
    }
    if let Some(steps) = doing.binlog.strip_prefix(Doing::PARTS)
        && settings.doubt != Doubt::Skip
    {
        let Ok(steps) = steps.parse() else {
            return Ok(Settled::Stop(End::Fatal(format!(
                "{what}: it ended with an error, and parts of it are in tables that cannot be rolled back. Do the rest by hand and start \
                 once with in_doubt = skip; or take the parts back by hand, and say so: UPDATE dromon_replica.position SET doing = NULL \
                 WHERE channel = '{}'.",
                settings.channel
            ))));
        };
        log.say(
            Level::Note,
            &format!("{what}; its first {steps} steps are done. It goes on behind them."),
        );
        return Ok(Settled::Again(true, steps));
    }
    if let Some(before) = doing.binlog.strip_suffix(Doing::CHOSEN)
        && logs
    {
        let now = gtids::logged(control)?;
        let mut found = by_name(before, &now, doing.gtid);
        let place = before.trim_end_matches(['+', '~']);
        if now.get(doing.gtid.domain) == Some(doing.gtid)
            && found != ByName::Done
            && let Some(group) = group_behind(settings, log, place)?
            && group.gtid == doing.gtid
        {
            seen = shown_by(&group, &doing.text);
            if seen == Shown::All && !before.ends_with('+') {
                found = ByName::Done;
            }
        }
        match found {
            ByName::Done => {
                log.say(
                    Level::Note,
                    &format!("{what}; it stands in the target's binlog: it was done."),
                );
                return Ok(Settled::Done);
            }
            ByName::NotDone => {
                log.say(
                    Level::Note,
                    &format!("{what}; it does not stand in the target's binlog: it was not done. It is done now."),
                );
                return Ok(Settled::Again(true, 0));
            }
            ByName::Unknown(why) => what = format!("{what}; {why}"),
        }
        // Done again it could not have its GTID.
        let is_past = now
            .get(doing.gtid.domain)
            .is_some_and(|last| last.seqno >= doing.gtid.seqno);
        if is_past && settings.source_gtid && settings.doubt != Doubt::Skip {
            return Ok(Settled::Stop(End::Fatal(format!(
                "{what}. It cannot be said whether it was done, and it cannot be tried again with source_gtid = on. Look at the target; if all \
                 of it is there, or when the rest is done by hand (with a gtid_domain_id of the target's own), start \
                 once with in_doubt = skip. Or let it be tried again: start once with source_gtid = off and in_doubt = again."
            ))));
        }
    } else if logs && settings.binlog && logs_everything(control)? {
        let now = control.one("SELECT @@gtid_binlog_pos")?.unwrap_or_default();
        let before = doing.binlog.trim_end_matches(['+', '~']);
        let several = doing.binlog.ends_with('+');
        let rows = doing.binlog.ends_with('~');
        if now == before && !rows {
            log.say(
                Level::Note,
                &format!("{what}; the target's binlog shows that it was not done. It is done now."),
            );
            return Ok(Settled::Again(true, 0));
        }
        let own = doing.gtid.server.to_string();
        // Of several steps the first one is looked at, however many came.
        if (several && now != before || is_next(before, &now, &own))
            && let Some(group) = group_behind(settings, log, before)?
        {
            seen = shown_by(&group, &doing.text);
        }
        // Where rows came by themselves, nearly always all of them did.
        if matches!(seen, Shown::All | Shown::Rows) && !several {
            log.say(
                Level::Note,
                &format!("{what}; the target's binlog shows that it was done."),
            );
            return Ok(Settled::Done);
        }
    }
    // Done again, what is there would be done twice.
    let is_begun = matches!(seen, Shown::All | Shown::Begun) && is_of_rows(&doing.text);
    if is_begun && settings.doubt == Doubt::Again {
        return Ok(Settled::Stop(End::Fatal(format!(
            "{what}; the target's binlog shows that all of it is there, or a part: tables without transactions took part, and it did not come to \
             its end. Tried again, some of it would be done twice. Look at the target and do the rest by hand; then start once with \
             in_doubt = skip. Or take the parts back by hand, and say so: UPDATE dromon_replica.position SET doing = NULL WHERE channel = '{}'.",
            settings.channel
        ))));
    }
    let (level, then, settled) = match settings.doubt {
        Doubt::Again => (
            Level::Warning,
            "It is tried again (in_doubt = again).",
            Settled::Again(false, 0),
        ),
        Doubt::Skip => (
            Level::Warning,
            "It is taken for done (in_doubt = skip).",
            Settled::Done,
        ),
        Doubt::Stop => {
            return Ok(Settled::Stop(End::Fatal(format!(
                "{what}, and it cannot be said whether it was done. Look at the target, then start with in_doubt = skip if it was done, or \
                 in_doubt = again."
            ))));
        }
    };
    log.say(
        level,
        &format!("{what}, and it cannot be said whether it was done. {then}"),
    );
    Ok(settled)
}

/// Waits for the end of its statement, if it was sent by a replica that has no lock. The number of
/// the connection may be that of somebody else by now.
fn is_told_before_its_end(
    settings: &Settings,
    log: &Log,
    progress: &Progress,
    control: &mut Client,
    doing: &Doing,
) -> Result<bool, ClientError> {
    let running = format!(
        "SELECT USER,INFO FROM information_schema.PROCESSLIST WHERE ID={} AND ID<>CONNECTION_ID() AND COMMAND='Query'",
        doing.connection
    );
    for looks in 0u32.. {
        let row = control
            .rows(&running)?
            .into_iter()
            .next()
            .unwrap_or_default();
        let text = |n: usize| row.get(n).cloned().flatten().unwrap_or_default();
        let is_it = text(0) == settings.target.user.as_bytes() && is_of(&text(1), &doing.text);
        if !is_it {
            return Ok(false);
        }
        if progress.is_told() {
            return Ok(true);
        }
        if looks.is_multiple_of(SAY) {
            log.say(
                Level::Note,
                &format!(
                    "{} is still running from before ({}…); its end is waited for.",
                    doing.gtid,
                    shown(&doing.text)
                ),
            );
        }
        thread::sleep(LOOK);
    }
    Ok(false)
}

/// What the target's binlog says of something that has its GTID there, if it was done.
#[derive(Debug, PartialEq, Eq)]
enum ByName {
    Done,
    NotDone,
    /// And why.
    Unknown(String),
}

/// `before`: as it stands in [`Doing::binlog`].
fn by_name(before: &str, now: &Position, gtid: Gtid) -> ByName {
    let place = before.trim_end_matches(['+', '~']);
    let whole = place.len() == before.len();
    let last = now.get(gtid.domain);
    if last == Some(gtid) {
        return match whole {
            true => ByName::Done,
            false => ByName::Unknown(format!(
                "the target's binlog has {gtid}, but that may be a part of it"
            )),
        };
    }
    let Ok(place) = place.parse::<Position>() else {
        return ByName::Unknown("where the target's binlog was before it is not known".into());
    };
    // Other domains go on; what vanished was taken away, and more may have been.
    let mut others = place.iter().filter(|g| g.domain != gtid.domain);
    let remains = others.all(|g| now.get(g.domain).is_some_and(|n| n.seqno >= g.seqno));
    if last != place.get(gtid.domain) || !remains {
        return ByName::Unknown(format!(
            "the target's binlog was at {place} before, and is at {now} now: others wrote there, or it was emptied"
        ));
    }
    match whole {
        true => ByName::NotDone,
        false => ByName::Unknown(format!(
            "the target's binlog does not have {gtid}, but parts of it may be in tables without transactions"
        )),
    }
}

/// Whether no database is left out of the target's binlog.
pub(super) fn logs_everything(control: &mut Client) -> Result<bool, ClientError> {
    let rows = control.rows("SHOW MASTER STATUS")?;
    let filters = rows.iter().flat_map(|row| row.iter().skip(2).take(2));
    Ok(filters.flatten().all(Vec::is_empty))
}

/// Whether exactly one group of this server came between two positions.
fn is_next(before: &str, now: &str, server: &str) -> bool {
    let (Ok(before), Ok(now)) = (before.parse::<Position>(), now.parse::<Position>()) else {
        return false;
    };
    let changed: Vec<_> = now
        .iter()
        .filter(|g| before.get(g.domain) != Some(*g))
        .collect();
    match changed[..] {
        [one] => {
            let last = before.get(one.domain).map_or(0, |g| g.seqno);
            one.seqno == last + 1 && one.server.to_string() == server
        }
        _ => false,
    }
}

/// The first group of the target's binlog behind a position. `None`: it did not come, for whatever
/// reason; then nothing is known.
///
/// # Errors
/// Nobody is there to look: that says nothing of the target.
fn group_behind(
    settings: &Settings,
    log: &Log,
    before: &str,
) -> Result<Option<Transaction>, ClientError> {
    let Ok(position) = before.parse() else {
        return Ok(None);
    };
    let target = &settings.target;
    let source = Source {
        address: target.address.clone(),
        wish: Wish {
            user: target.user.clone(),
            password: target.password.clone(),
            tls: target.tls.is_some(),
            ..settings.source.wish.clone()
        },
        tls: target.tls.clone(),
        ..settings.source.clone()
    };
    let (to, from) = mpsc::sync_channel(1);
    let link = Arc::new(Link::new(settings.memory as u64));
    let puller = Puller::new(source, position, to, Arc::clone(&link), log.clone());
    let pulls = thread::Builder::new().name("dromon-look".into());
    let pulls = pulls.spawn(move || puller.run());
    let pulls = pulls.map_err(ClientError::Thread)?;
    let came = from.recv_timeout(GROUP);
    link.stop();
    drop(from);
    // It ends when it has nobody to give to.
    let _ = pulls.join();
    Ok(match came {
        Ok(Came::Transaction(transaction)) => Some(*transaction),
        _ => None,
    })
}

/// What a group of the target's binlog shows of something that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// It was done.
    All,
    /// It was begun; whether all of it was done is not seen.
    Begun,
    /// The same of rows that were written down as such.
    Rows,
    /// Nothing: the group is another one's.
    Other,
}

/// Whether a group is what was written down as begun, and all of it.
fn shown_by(group: &Transaction, text: &str) -> Shown {
    match (seen_in(group, text), group.ending) {
        // What tables without transactions have of it stays.
        (Shown::All | Shown::Begun, Ending::Rollback) => Shown::Begun,
        // In rows, that is a group of its own.
        (_, Ending::Rollback) => Shown::Other,
        (seen, _) => seen,
    }
}

/// The same, however the group ends.
fn seen_in(group: &Transaction, text: &str) -> Shown {
    let same = |it: &[u8]| is_of(it, text);
    let mut tables = Vec::new();
    let mut statements = 0;
    let mut all = true;
    // The statement that rows are of: it ran as one, and is logged as rows.
    let mut annotated = false;
    for event in group.events().flatten() {
        match event.decode(&group.form.format) {
            Ok(Payload::Query(query)) => {
                let whole = query.text(1 << 30).unwrap_or_default();
                if is_frame(&whole) {
                    continue;
                }
                statements += 1;
                // Of an ALTER that is only announced nothing is done; its text is that of all of it.
                if !same(&whole) || is_announced(&query) {
                    return Shown::Other;
                }
                // With an error, what was killed. And the server writes of a DROP what it dropped.
                let whole = String::from_utf8_lossy(&whole);
                let first = whole.split_whitespace().next().unwrap_or_default();
                let is_seen = !first.eq_ignore_ascii_case("DROP")
                    || whole.chars().count() <= TEXT
                    || gtids::is_whole(whole.as_bytes());
                all &= is_seen && query.error == 0;
            }
            Ok(Payload::Annotate(text)) => annotated |= same(text),
            Ok(Payload::TableMap(map)) => {
                let name = |bytes| String::from_utf8_lossy(bytes).into_owned();
                let name = format!("{}.{}", name(map.database), name(map.table));
                if !tables.contains(&name) {
                    tables.push(name);
                }
            }
            _ => {}
        }
    }
    let of_rows = begun_rows(&tables.join(", ")) == text;
    match (statements, tables.is_empty()) {
        (1, true) if all => Shown::All,
        // Killed, a statement on a table without transactions is logged as far as it came.
        (0, false) if annotated => Shown::Begun,
        (0, false) if of_rows => Shown::Rows,
        (0, _) => Shown::Other,
        _ => Shown::Begun,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::tests::{event, query, query_with, rows, unit};
    use crate::engine::texts::begun;
    use crate::fake_target::{Fake, Reply, cell, settings};

    #[test]
    fn one_group_more() {
        assert!(is_next("0-2-5", "0-2-6", "2"));
        assert!(is_next("", "0-2-1", "2"));
        assert!(is_next("0-2-5,1-7-9", "0-2-6,1-7-9", "2"));
        assert!(!is_next("0-2-5", "0-2-7", "2"));
        assert!(!is_next("0-2-5", "0-3-6", "2"));
        assert!(!is_next("0-2-5,1-7-9", "0-2-6,1-7-10", "2"));
        assert!(!is_next("?", "0-2-6", "2"));
    }

    /// Another's group is not taken for it.
    #[test]
    fn whose_group_it_is() {
        let one = |events| unit(vec![events]).transactions.remove(0);
        let alter = one(vec![query("ALTER TABLE t ADD c INT", "d")]);
        let shown = |group: &Transaction, text: &[u8]| shown_by(group, &begun(text));
        assert_eq!(shown(&alter, b"ALTER TABLE t ADD c INT"), Shown::All);
        assert_eq!(shown(&alter, b"ALTER TABLE t ADD e INT"), Shown::Other);
        // Of one in two phases: announced, and taken back; and done.
        for (phase, seen) in [
            (&[130, 2][..], Shown::Other),
            (&[130, 8, 5, 0, 0, 0, 0, 0, 0, 0], Shown::Other),
            (&[130, 4, 5, 0, 0, 0, 0, 0, 0, 0], Shown::All),
        ] {
            let text = "ALTER TABLE t ADD c INT";
            let phase = one(vec![query_with(text, "d", phase)]);
            assert_eq!(shown(&phase, text.as_bytes()), seen);
        }
        // With a password, as this build and older ones wrote it down.
        let create = "CREATE USER a IDENTIFIED BY 'b'";
        let user = one(vec![query(create, "d")]);
        assert_eq!(shown(&user, create.as_bytes()), Shown::All);
        assert_eq!(shown_by(&user, create), Shown::All);
        let other = "CREATE USER a IDENTIFIED BY 'c'";
        assert_eq!(shown(&user, other.as_bytes()), Shown::Other);
        let insert = rows("plain", &[(None, Some((1, Some("a"))))]);
        let insert = one(insert);
        assert_eq!(shown_by(&insert, &begun_rows("d.plain")), Shown::Rows);
        assert_eq!(shown_by(&insert, &begun_rows("d.keyless")), Shown::Other);
        assert_eq!(shown(&insert, b"ALTER TABLE t ADD c INT"), Shown::Other);
        // A statement that the target logged as rows, beginning with its text.
        let long = format!("UPDATE plain SET v = '{}'", "x".repeat(TEXT));
        for text in ["UPDATE plain SET v = 'b'", long.as_str()] {
            let mut events = vec![event(160, text.as_bytes())];
            events.extend(rows(
                "plain",
                &[(Some((1, Some("a"))), Some((1, Some("b"))))],
            ));
            let update = one(events);
            assert_eq!(shown(&update, text.as_bytes()), Shown::Begun);
            assert_eq!(shown(&update, b"UPDATE plain SET v = 'c'"), Shown::Other);
        }
    }

    /// Of what can be done in part.
    #[test]
    fn whether_a_group_is_all_of_it() {
        let one = |events| unit(vec![events]).transactions.remove(0);
        let drop = one(vec![query("DROP TABLE `a`,`b`", "d")]);
        assert_eq!(shown_by(&drop, "DROP TABLE `a`,`b`"), Shown::All);
        assert_eq!(shown_by(&drop, "DROP TABLE `a`,`b`,`c`"), Shown::Other);
        let long = format!("DROP TABLE `a`,`{}`", "b".repeat(TEXT));
        let drop = one(vec![query(&long, "d")]);
        // Not seen whole.
        assert_eq!(shown_by(&drop, &begun(long.as_bytes())), Shown::Begun);
        let alter = format!("ALTER TABLE t COMMENT '{}'", "b".repeat(TEXT));
        let long = one(vec![query(&alter, "d")]);
        assert_eq!(shown_by(&long, &begun(alter.as_bytes())), Shown::All);
        let insert = |error: u8| {
            let mut statement = query("INSERT INTO m SELECT 1", "d");
            let at = statement.len() - "INSERT INTO m SELECT 1".len() - "d\0".len() - 4;
            statement[at] = error;
            one(vec![query("BEGIN", "d"), statement])
        };
        assert_eq!(shown_by(&insert(0), "INSERT INTO m SELECT 1"), Shown::All);
        assert_eq!(
            shown_by(&insert(37), "INSERT INTO m SELECT 1"),
            Shown::Begun
        );
        let mut taken_back = insert(0);
        taken_back.ending = Ending::Rollback;
        assert_eq!(
            shown_by(&taken_back, "INSERT INTO m SELECT 1"),
            Shown::Begun
        );
        let mut rows = one(rows("plain", &[(None, Some((1, Some("a"))))]));
        assert_eq!(shown_by(&rows, &begun_rows("d.plain")), Shown::Rows);
        rows.ending = Ending::Rollback;
        assert_eq!(shown_by(&rows, &begun_rows("d.plain")), Shown::Other);
    }

    fn doing() -> Doing {
        Doing {
            gtid: "0-1-5".parse().expect("a GTID"),
            text: "ALTER TABLE t".into(),
            connection: 99,
            binlog: "0-2-5".into(),
        }
    }

    fn settled(fake: &Fake, lines: &[&str], doing: &Doing, told: bool) -> Settled {
        let settings = settings(fake, lines);
        let mut control = Client::connect(&settings.target).expect("a target");
        let progress = Progress::default();
        if told {
            progress.tell_to_end();
        }
        let log = Log::terminal();
        settle(&settings, &log, &progress, &mut control, doing, true).expect("answers")
    }

    /// Somebody else may have the number of its connection now; and whoever waits can be told to end.
    #[test]
    fn whose_end_is_waited_for() {
        let with = |user: &'static str, info: &'static str| {
            Fake::new(move |text| match text {
                _ if text.contains("PROCESSLIST") => {
                    Some(Reply::Row(vec![user.into(), info.into()]))
                }
                "SELECT @@gtid_binlog_pos" => Some(cell("0-2-5")),
                "SHOW MASTER STATUS" => Some(Reply::Nothing),
                _ => None,
            })
        };
        let report = with("reports", "ALTER TABLE t");
        let other = with("t", "SELECT SLEEP(1000)");
        for fake in [report, other] {
            let settled = settled(&fake, &[], &doing(), false);
            assert!(matches!(settled, Settled::Again(true, 0)));
        }
        let own = with("t", "ALTER TABLE t");
        let settled = settled(&own, &[], &doing(), true);
        assert!(matches!(settled, Settled::Stop(End::Told)));
    }

    /// Where the binlog does not have everything it shows nothing.
    #[test]
    fn a_binlog_with_filters() {
        let fake = Fake::new(|text| match text {
            _ if text.contains("PROCESSLIST") => Some(Reply::Nothing),
            "SELECT @@gtid_binlog_pos" => Some(cell("0-2-5")),
            "SHOW MASTER STATUS" => Some(Reply::Row(vec![
                "bin.000001".into(),
                "400".into(),
                "shop".into(),
                String::new(),
            ])),
            _ => None,
        });
        assert!(matches!(
            settled(&fake, &[], &doing(), false),
            Settled::Again(false, 0)
        ));
    }

    /// What ended with an error, and how far it came.
    #[test]
    fn parts_that_are_there() {
        let fake = || Fake::new(|text| text.contains("PROCESSLIST").then_some(Reply::Nothing));
        let with = |binlog: &str| Doing {
            binlog: binlog.into(),
            ..doing()
        };
        let settled_of = |line, binlog| settled(&fake(), &[line], &with(binlog), false);
        let again = "in_doubt=again";
        assert!(matches!(settled_of(again, "!2"), Settled::Again(true, 2)));
        assert!(matches!(
            settled_of(again, "!"),
            Settled::Stop(End::Fatal(_))
        ));
        assert!(matches!(settled_of("in_doubt=skip", "!"), Settled::Done));
        // It may be done: nothing is done again that nobody has looked at.
        for line in [again, "in_doubt=stop"] {
            let Settled::Stop(End::Fatal(why)) = settled_of(line, Doing::ASK) else {
                panic!("it must stop: {line}");
            };
            let says = why.contains("whether it was done") && why.contains("SET doing = NULL");
            assert!(says, "{why}");
        }
        let skipped = settled_of("in_doubt=skip", Doing::ASK);
        assert!(matches!(skipped, Settled::Done));
    }

    /// What has its own GTID in the target's binlog is found by it.
    #[test]
    fn what_stands_in_the_binlog_by_name() {
        let run_with = |lines: &[&str], binlog: &str, now: &'static str| {
            let fake = Fake::new(move |text| match text {
                _ if text.contains("PROCESSLIST") => Some(Reply::Nothing),
                "SELECT @@gtid_binlog_pos" => Some(cell(now)),
                _ => None,
            });
            let doing = Doing {
                binlog: binlog.into(),
                ..doing()
            };
            settled(&fake, lines, &doing, false)
        };
        let run = |binlog, now| run_with(&["in_doubt=again"], binlog, now);
        assert!(matches!(run("0-1-4=", "0-1-5,1-2-9"), Settled::Done));
        assert!(matches!(
            run("0-1-4,1-2-8=", "0-1-4,1-2-9"),
            Settled::Again(true, 0)
        ));
        // Where it was before is not known; several steps.
        assert!(matches!(run("?=", "0-1-4"), Settled::Again(false, 0)));
        assert!(matches!(run("0-1-4+=", "0-1-4"), Settled::Again(false, 0)));
        // Others wrote there, or it was emptied.
        for now in ["0-1-6", "0-2-5", "1-2-9", "0-1-4"] {
            let settled = run("0-1-4,1-2-9=", now);
            assert!(matches!(settled, Settled::Again(false, 0)), "{now}");
        }
        // It may be a part; and it could not have its GTID once more.
        let on = ["source_gtid=on", "merge=1", "in_doubt=again"];
        for (binlog, now) in [("0-1-4~=", "0-1-5"), ("0-1-4=", "0-1-6")] {
            let Settled::Stop(End::Fatal(why)) = run_with(&on, binlog, now) else {
                panic!("it must stop: {now}");
            };
            assert!(why.contains("0-1-5") && why.contains("skip"), "{why}");
            let skip = [&on[..2], &["in_doubt=skip"]].concat();
            assert!(matches!(run_with(&skip, binlog, now), Settled::Done));
        }
        assert!(matches!(run("0-1-4=", "0-1-4"), Settled::Again(true, 0)));
        // Rows may be there before the binlog has them.
        assert!(matches!(run("0-1-4~=", "0-1-4"), Settled::Again(false, 0)));
        assert!(matches!(run("?=", "0-1-5"), Settled::Done));
    }
}
