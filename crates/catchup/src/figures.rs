//! What can be said of the trials: medians of the rounds, speed-up over the serial server, and
//! what is aimed at. Pure.

use dromon_load::series::median;

use crate::plan::{Candidate, Condition, Policy, ServerMode, Workload};
use crate::report::Entry;
use crate::trial::{Measured, Outcome};

/// Slow reads for each transaction below which nobody waits for pages. A table of which a fifth fits
/// into memory takes one and more.
const READS_MIN: f64 = 0.1;

/// A candidate with one number of threads, of all rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// What was committed.
    pub workload: Workload,
    /// Under which condition.
    pub condition: Condition,
    /// Who caught up.
    pub candidate: Candidate,
    /// Rounds.
    pub rounds: usize,
    /// Transactions a second; this and all numbers below: none if there was trouble in any round.
    pub rate: Option<f64>,
    /// By the serial server's.
    pub speedup: Option<f64>,
    /// Until it had caught up, or was cut.
    pub seconds: Option<f64>,
    /// CPU of the server, seconds for 1,000 transactions.
    pub cpu_server: Option<f64>,
    /// Of replica or relay, the same.
    pub cpu_own: Option<f64>,
    /// What was applied again.
    pub retries: Option<f64>,
    /// fsyncs.
    pub fsyncs: Option<f64>,
    /// Slow reads.
    pub reads: Option<f64>,
    /// Slow reads for each transaction.
    pub reads_each: Option<f64>,
    /// Some round was cut.
    pub is_cut: bool,
    /// What went wrong in some round.
    pub trouble: Option<String>,
    /// That was no more than being too slow to apply anything, in every round with trouble.
    pub is_only_slow: bool,
}

impl Line {
    /// CPU of server and own program, seconds for 1,000 transactions.
    #[must_use]
    pub fn cpu(&self) -> Option<f64> {
        Some(self.cpu_server? + self.cpu_own?)
    }
}

/// A line for each candidate, in the order in which they were measured first.
#[must_use]
pub fn lines(entries: &[Entry]) -> Vec<Line> {
    let mut all: Vec<Line> = Vec::new();
    for entry in entries {
        if !all.iter().any(|l| is_of(l, entry)) {
            let own: Vec<&Entry> = entries.iter().filter(|e| entry.is_like(e)).collect();
            all.push(line(&own));
        }
    }
    let serial: Vec<Line> = all
        .iter()
        .filter(|l| l.candidate == Candidate::Serial)
        .cloned()
        .collect();
    for line in &mut all {
        let base = serial
            .iter()
            .find(|s| s.workload == line.workload && s.condition == line.condition);
        line.speedup = ratio(line.rate, base.and_then(|s| s.rate));
    }
    all
}

fn is_of(line: &Line, entry: &Entry) -> bool {
    line.workload == entry.workload
        && line.condition == entry.condition
        && line.candidate == entry.candidate
}

fn line(own: &[&Entry]) -> Line {
    let trouble = own.iter().find_map(|e| trouble(e, own.len()));
    let measured: Vec<&Measured> = match trouble {
        // Who fails now and then, or comes to something else, is no measure of how fast.
        Some(_) => Vec::new(),
        None => own.iter().filter_map(|e| e.outcome.measured()).collect(),
    };
    let mid = |value: fn(&Measured) -> f64| median(measured.iter().map(|m| value(m)));
    let per_1000 = |m: &Measured| 1000.0 / m.applied.max(1) as f64;
    Line {
        workload: own[0].workload,
        condition: own[0].condition,
        candidate: own[0].candidate.clone(),
        rounds: own.len(),
        rate: mid(Measured::rate),
        speedup: None,
        seconds: mid(|m| m.time.as_secs_f64()),
        cpu_server: median(
            measured
                .iter()
                .map(|m| m.cpu_server.as_secs_f64() * per_1000(m)),
        ),
        cpu_own: median(
            measured
                .iter()
                .map(|m| m.cpu_own.as_secs_f64() * per_1000(m)),
        ),
        retries: mid(|m| m.retries as f64),
        fsyncs: mid(|m| m.fsyncs as f64),
        reads: mid(|m| m.reads as f64),
        reads_each: mid(|m| m.reads as f64 / m.applied.max(1) as f64),
        is_cut: measured.iter().any(|m| m.is_cut),
        trouble,
        is_only_slow: own
            .iter()
            .all(|e| matches!(e.outcome, Outcome::Measured(_))),
    }
}

/// Why a trial gives no figures; `rounds`: how many its candidate had.
fn trouble(entry: &Entry, rounds: usize) -> Option<String> {
    let (what, why) = match &entry.outcome {
        Outcome::Measured(m) if m.applied == 0 => {
            let seconds = m.time.as_secs_f64();
            ("CUT", format!("nothing was applied in {seconds:.0} s"))
        }
        Outcome::Measured(_) => return None,
        Outcome::Differs(_, why) => ("TABLES DIFFER", why.clone()),
        Outcome::Failed(why) => ("FAILED", why.clone()),
    };
    Some(match rounds {
        1 => format!("{what}: {why}"),
        _ => format!("{what} in round {}: {why}", entry.round),
    })
}

/// Whether the server's own threads wait for pages of this workload where reads are slow.
#[must_use]
pub fn is_read_bound(lines: &[Line], workload: Workload) -> bool {
    let own = lines.iter().filter(|l| {
        l.workload == workload && l.condition == Condition::CacheMiss && l.candidate.is_built_in()
    });
    // Without any figure nothing is known to the contrary.
    let mut reads = own.filter_map(|l| l.reads_each).peekable();
    reads.peek().is_none() || reads.any(|each| each >= READS_MIN)
}

fn ratio(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    Some(a? / b?).filter(|r| r.is_finite())
}

/// Something that is aimed at, and what came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Aim {
    /// What was committed.
    pub workload: Workload,
    /// Under which condition.
    pub condition: Condition,
    /// What is compared.
    pub what: &'static str,
    /// The one and the other.
    pub of: String,
    /// Why the comparison says nothing: somebody who might be the other one gave no figures.
    pub not_judged: Option<String>,
    /// The one was tried and has no figures: that is missed.
    pub is_lacking: bool,
    /// Found, if both have figures.
    pub found: Option<f64>,
    /// Wanted: at least, or at most.
    pub wanted: f64,
    /// See `wanted`.
    pub at_most: bool,
}

impl Aim {
    /// Whether it is reached.
    #[must_use]
    pub fn is_met(&self) -> bool {
        let reached = self.found.is_some_and(|found| match self.at_most {
            true => found <= self.wanted,
            false => found >= self.wanted,
        });
        reached && self.not_judged.is_none()
    }

    /// `met`, `missed`, or why neither.
    #[must_use]
    pub fn verdict(&self) -> String {
        match &self.not_judged {
            Some(why) if !self.is_lacking => format!("not judged: {why}"),
            _ if self.is_met() => "met".into(),
            _ => "missed".into(),
        }
    }
}

/// What is aimed at, as far as what it needs was measured.
#[must_use]
pub fn aims(lines: &[Line]) -> Vec<Aim> {
    let mut all = Vec::new();
    let mut seen: Vec<(Workload, Condition)> = Vec::new();
    for line in lines {
        let cell = (line.workload, line.condition);
        if !seen.contains(&cell) {
            seen.push(cell);
            let own: Vec<&Line> = lines
                .iter()
                .filter(|l| (l.workload, l.condition) == cell)
                .collect();
            if line.condition != Condition::CacheMiss || is_read_bound(lines, line.workload) {
                all.extend(aims_of(cell, &own));
            }
        }
    }
    all
}

/// Those of one kind: the fastest of them, and what keeps that from being certain.
struct Field<'a> {
    /// Anyone of them, with figures or without.
    first: Option<&'a Line>,
    best: Option<&'a Line>,
    /// How many have figures.
    count: usize,
    /// Somebody of them failed, or came to other tables: it might have been the fastest.
    doubt: Option<String>,
}

impl<'a> Field<'a> {
    fn of(lines: &[&'a Line], which: impl Fn(&Candidate) -> bool) -> Self {
        let all = || lines.iter().copied().filter(|l| which(&l.candidate));
        let with_rate = || all().filter_map(|l| Some((l, l.rate?)));
        let best = with_rate().max_by(|a, b| a.1.total_cmp(&b.1));
        let mut doubtful = all().filter(|l| l.trouble.is_some() && !l.is_only_slow);
        Field {
            first: all().next(),
            best: best.map(|(line, _)| line),
            count: with_rate().count(),
            doubt: doubtful.next().map(|first| match doubtful.count() {
                0 => format!("{} has no figures", first.candidate),
                more => format!("{} and {more} others have no figures", first.candidate),
            }),
        }
    }
}

fn aims_of((workload, condition): (Workload, Condition), lines: &[&Line]) -> Vec<Aim> {
    let mut all = Vec::new();
    let mut aim = |what, one: &Field, other: &Field, wanted, at_most: bool| {
        // What was not tried at all is not aimed at.
        let (Some(ours), Some(theirs)) = (one.best.or(one.first), other.best.or(other.first))
        else {
            return;
        };
        let found = match at_most {
            true => ratio(ours.cpu(), theirs.cpu()),
            false => ratio(ours.rate, theirs.rate),
        };
        let among = match other.count {
            0 | 1 => String::new(),
            n => format!(", the best of {n}"),
        };
        // The best of ours may be another one: that makes the comparison worse for us only.
        let doubt = one.doubt.as_ref();
        let doubt = doubt.map_or(String::new(), |doubt| format!("; {doubt}"));
        let no_other = || format!("{} has no figures", theirs.candidate);
        all.push(Aim {
            workload,
            condition,
            what,
            of: format!("{} : {}{among}{doubt}", ours.candidate, theirs.candidate),
            not_judged: match found {
                Some(_) => other.doubt.clone(),
                None => Some(other.doubt.clone().unwrap_or_else(no_other)),
            },
            is_lacking: one.best.is_none(),
            found,
            wanted,
            at_most,
        });
    };
    let built_in = &Field::of(lines, Candidate::is_built_in);
    let serial = &Field::of(lines, |c| *c == Candidate::Serial);
    let replica = &Field::of(lines, |c| matches!(c, Candidate::Replica(..)));
    let group = &Field::of(lines, |c| matches!(c, Candidate::Relay(Policy::Group, _)));
    let plain = &Field::of(lines, |c| {
        matches!(c, Candidate::BuiltIn(ServerMode::Conservative, _))
    });
    match condition {
        _ if workload.is_hot() => {
            let what = "hot rows: replica by best built-in";
            aim(what, replica, built_in, 0.9, false);
        }
        Condition::SlowCommit => {
            aim("replica by best built-in", replica, built_in, 4.0, false);
            aim("replica by serial", replica, serial, 40.0, false);
        }
        Condition::Memory => {
            aim("replica by best built-in", replica, built_in, 1.5, false);
            aim(
                "CPU of replica by best built-in",
                replica,
                built_in,
                0.5,
                true,
            );
        }
        Condition::CacheMiss => {
            aim("replica by best built-in", replica, built_in, 1.5, false);
        }
    }
    if condition == Condition::CacheMiss {
        let what = "conservative with hints by without";
        aim(what, group, plain, 5.0, false);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;
    use crate::trial::tests::measured;

    fn of<'a>(lines: &'a [Line], condition: Condition, name: &str) -> &'a Line {
        let found = lines
            .iter()
            .find(|l| l.condition == condition && l.candidate.to_string() == name);
        found.expect(name)
    }

    #[test]
    fn speed_up_is_over_the_serial_server() {
        let lines = lines(&sample().entries);
        let serial = of(&lines, Condition::SlowCommit, "built-in serial");
        assert_eq!((serial.rate, serial.speedup), (Some(10.0), Some(1.0)));
        let replica = of(&lines, Condition::SlowCommit, "replica writeset, 8 threads");
        assert_eq!(replica.speedup, Some(50.0));
        assert_eq!(replica.cpu(), Some(3.0));
    }

    #[test]
    fn rounds_give_the_median() {
        let mut entries = vec![sample().entries[0].clone(); 3];
        for (entry, seconds) in entries.iter_mut().zip([1, 4, 2]) {
            entry.outcome = Outcome::Measured(measured(seconds, 1000));
        }
        entries[0].round = 1;
        let all = lines(&entries);
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].rate, all[0].seconds), (Some(500.0), Some(2.0)));
    }

    #[test]
    fn what_differs_is_no_measure() {
        let mut entries = vec![sample().entries[0].clone()];
        entries[0].outcome = Outcome::Differs(measured(1, 1), "d.t".into());
        let all = lines(&entries);
        assert_eq!((all[0].rate, all[0].speedup), (None, None));
        assert_eq!(all[0].trouble.as_deref(), Some("TABLES DIFFER: d.t"));
        assert!(aims(&all).is_empty());
    }

    #[test]
    fn who_applied_nothing_has_no_rate() {
        let mut entries = vec![sample().entries[0].clone()];
        let mut nothing = measured(30, 0);
        nothing.is_cut = true;
        entries[0].outcome = Outcome::Measured(nothing);
        let all = lines(&entries);
        assert_eq!((all[0].rate, all[0].cpu()), (None, None));
        let trouble = all[0].trouble.as_deref();
        assert_eq!(trouble, Some("CUT: nothing was applied in 30 s"));
    }

    #[test]
    fn what_is_in_memory_is_not_held_to_the_aims_for_slow_reads() {
        let mut entries = sample().entries;
        for entry in &mut entries {
            if let Outcome::Measured(m) = &mut entry.outcome {
                m.reads = m.applied / 20;
            }
        }
        let all = lines(&entries);
        assert!(!is_read_bound(&all, Workload::W1));
        assert!(
            aims(&all)
                .iter()
                .all(|a| a.condition == Condition::SlowCommit)
        );
        // One that reads is enough: the best may read ahead.
        for entry in &mut entries {
            if let (Candidate::Serial, Outcome::Measured(m)) =
                (&entry.candidate, &mut entry.outcome)
            {
                m.reads = m.applied;
            }
        }
        assert!(is_read_bound(&lines(&entries), Workload::W1));
        assert!(is_read_bound(&[], Workload::W1), "nothing is known");
    }

    #[test]
    fn aims_are_those_of_the_condition() {
        let all = aims(&lines(&sample().entries));
        let find = |what: &str, condition| {
            let found = all
                .iter()
                .find(|a| a.what == what && a.condition == condition);
            found.and_then(|a| Some((a.found?, a.is_met())))
        };
        let built_in = "replica by best built-in";
        assert_eq!(find(built_in, Condition::SlowCommit), Some((5.0, true)));
        assert_eq!(
            find("replica by serial", Condition::SlowCommit),
            Some((50.0, true))
        );
        assert_eq!(find(built_in, Condition::CacheMiss), Some((1.0, false)));
        let hints = "conservative with hints by without";
        assert_eq!(find(hints, Condition::CacheMiss), Some((6.0, true)));
        assert_eq!(find(hints, Condition::SlowCommit), None);
    }

    #[test]
    fn hot_rows_have_an_aim_of_their_own() {
        let mut entries = sample().entries;
        entries.iter_mut().for_each(|e| e.workload = Workload::W6);
        let all = aims(&lines(&entries));
        let hot = |a: &&Aim| a.wanted == 0.9 && a.what.starts_with("hot rows");
        assert_eq!(all.iter().filter(hot).count(), 2, "one for each condition");
        assert!(all.iter().all(Aim::is_met));
        let hints: Vec<Condition> = all
            .iter()
            .filter(|a| !hot(a))
            .map(|a| a.condition)
            .collect();
        assert_eq!(
            hints,
            [Condition::CacheMiss],
            "what hints bring is asked of all"
        );
    }

    #[test]
    fn cpu_is_aimed_at_from_above() {
        let mut entries = sample().entries;
        entries
            .iter_mut()
            .for_each(|e| e.condition = Condition::Memory);
        let all = aims(&lines(&entries));
        let cpu = all.iter().find(|a| a.at_most).expect("CPU");
        assert_eq!((cpu.wanted, cpu.is_met()), (0.5, false));
    }

    #[test]
    fn a_comparison_says_nothing_if_the_fastest_may_be_missing() {
        let before = aims(&lines(&sample().entries));
        let built_in = |all: &[Aim]| {
            let found = all.iter().find(|a| {
                a.what == "replica by best built-in" && a.condition == Condition::SlowCommit
            });
            found.expect("an aim").clone()
        };
        assert!(built_in(&before).is_met());
        let mut entries = sample().entries;
        let mut failed = entries[0].clone();
        failed.candidate = Candidate::BuiltIn(ServerMode::Optimistic, 32);
        failed.condition = Condition::SlowCommit;
        failed.outcome = Outcome::Failed("error 1213".into());
        entries.push(failed.clone());
        let aim = built_in(&aims(&lines(&entries)));
        assert!(!aim.is_met());
        let verdict = aim.verdict();
        assert!(
            verdict.starts_with("not judged: ") && verdict.contains("optimistic"),
            "{verdict}"
        );
        // Who is only slow is not the fastest.
        let mut nothing = measured(30, 0);
        nothing.is_cut = true;
        failed.outcome = Outcome::Measured(nothing);
        entries.pop();
        entries.push(failed);
        assert_eq!(built_in(&aims(&lines(&entries))).verdict(), "met");
    }
    #[test]
    fn an_aim_of_somebody_without_figures_is_missed() {
        let mut entries = sample().entries;
        for entry in &mut entries {
            if matches!(entry.candidate, Candidate::Replica(..)) {
                entry.outcome = Outcome::Failed("error 1213".into());
            }
        }
        let all = aims(&lines(&entries));
        let ours = all.iter().filter(|a| a.what.starts_with("replica by "));
        let verdicts: Vec<_> = ours.map(|a| (a.found, a.is_met(), a.verdict())).collect();
        assert_eq!(verdicts, vec![(None, false, "missed".to_owned()); 3]);
        // CPU is aimed at from above: nothing is not little.
        entries
            .iter_mut()
            .for_each(|e| e.condition = Condition::Memory);
        let all = aims(&lines(&entries));
        let cpu = all.iter().find(|a| a.at_most).expect("CPU");
        assert_eq!((cpu.is_met(), cpu.verdict().as_str()), (false, "missed"));
        // Who was not tried is not aimed at.
        entries.retain(|e| !matches!(e.candidate, Candidate::Replica(..)));
        let all = aims(&lines(&entries));
        assert!(all.iter().all(|a| !a.what.contains("replica")), "{all:?}");
    }

    #[test]
    fn an_aim_beside_somebody_without_figures_is_not_judged() {
        let mut entries = sample().entries;
        for entry in &mut entries {
            if entry.candidate == Candidate::Serial {
                entry.outcome = Outcome::Measured(measured(30, 0));
            }
        }
        let all = aims(&lines(&entries));
        let by_serial = all.iter().find(|a| a.what == "replica by serial");
        let verdict = by_serial.expect("an aim").verdict();
        assert_eq!(verdict, "not judged: built-in serial has no figures");
    }

    #[test]
    fn doubt_about_ours_is_shown() {
        let mut entries = sample().entries;
        let replica = entries
            .iter()
            .find(|e| matches!(e.candidate, Candidate::Replica(..)));
        let mut failed = replica.expect("a replica").clone();
        failed.candidate = Candidate::Replica(
            "optimistic".parse().expect("a mode"),
            crate::plan::Threads::Fixed(8),
        );
        failed.outcome = Outcome::Failed("error 1213".into());
        entries.push(failed);
        let all = aims(&lines(&entries));
        let aim = all.iter().find(|a| a.what == "replica by serial");
        let aim = aim.expect("an aim");
        assert!(aim.is_met());
        let words = "; replica optimistic, 8 threads has no figures";
        assert!(aim.of.ends_with(words), "{}", aim.of);
    }
}
