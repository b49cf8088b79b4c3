//! Trials as lines of CSV, written and read.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use dromon_load::paper;

use crate::plan::Candidate;
use crate::report::Entry;
use crate::trial::{Measured, Outcome};

const HEAD: [&str; 19] = [
    "workload",
    "condition",
    "candidate",
    "threads",
    "round",
    "outcome",
    "seconds",
    "applied",
    "cut",
    "trx_per_second",
    "cpu_server_s",
    "cpu_own_s",
    "again",
    "fsyncs",
    "slow_reads",
    "others_s",
    "begun",
    "build",
    "why",
];
/// Columns of what was measured; empty if it failed.
const NUMBERS: std::ops::Range<usize> = 6..16;

/// The first line.
pub fn head() -> String {
    paper::line(&HEAD)
}

/// A trial's line.
pub fn line(entry: &Entry) -> String {
    let (outcome, measured, why) = match &entry.outcome {
        Outcome::Measured(m) => ("measured", Some(m), ""),
        Outcome::Differs(m, why) => ("differs", Some(m), why.as_str()),
        Outcome::Failed(why) => ("failed", None, why.as_str()),
    };
    // One line for each: what others say has any number of them.
    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
    let numbers = measured.map(numbers).unwrap_or_default();
    let key = [
        entry.workload.to_string(),
        entry.condition.to_string(),
        entry.candidate.line(),
        entry.candidate.threads().to_string(),
        entry.round.to_string(),
        outcome.to_string(),
    ];
    let rest = [entry.begun.clone(), entry.build.clone(), why];
    paper::line(&[&key[..], &numbers[..], &rest[..]].concat())
}

fn numbers(m: &Measured) -> [String; NUMBERS.end - NUMBERS.start] {
    let seconds = |time: Duration| format!("{:.3}", time.as_secs_f64());
    [
        seconds(m.time),
        m.applied.to_string(),
        u8::from(m.is_cut).to_string(),
        format!("{:.2}", m.rate()),
        seconds(m.cpu_server),
        seconds(m.cpu_own),
        m.retries.to_string(),
        m.fsyncs.to_string(),
        m.reads.to_string(),
        seconds(m.others),
    ]
}

/// All trials of a file of whole lines, in their order.
///
/// # Errors
/// The number of the first line that is none, and why.
pub fn read(text: &str) -> anyhow::Result<Vec<Entry>> {
    let mut lines = text.lines().enumerate();
    let head = lines.next().and_then(|(_, line)| paper::fields(line));
    ensure!(
        head.is_some_and(|found| found == HEAD),
        "Its first line is not that of this program: it was written by another version"
    );
    let mut all: Vec<Entry> = Vec::new();
    for (number, line) in lines {
        let entry = trial(line).with_context(|| format!("line {}", number + 1))?;
        if let Some(first) = all.iter().position(|e| e.key() == entry.key()) {
            bail!("line {}: the trial of line {} again", number + 1, first + 2);
        }
        all.push(entry);
    }
    Ok(all)
}

fn trial(line: &str) -> anyhow::Result<Entry> {
    let cells = paper::fields(line).context("its quotes do not match")?;
    ensure!(
        cells.len() == HEAD.len(),
        "it has {} fields instead of {}",
        cells.len(),
        HEAD.len()
    );
    let cell = |name: &str| {
        let at = HEAD.iter().position(|h| *h == name);
        cells[at.expect("a name in the head")].as_str()
    };
    let why = cell("why").to_string();
    let outcome = match cell("outcome") {
        "measured" => Outcome::Measured(measured(&cell)?),
        "differs" => Outcome::Differs(measured(&cell)?, why),
        "failed" => Outcome::Failed(why),
        other => bail!("no trial ends as {other:?}"),
    };
    let word = anyhow::Error::msg::<String>;
    let threads = cell("threads").parse().map_err(word)?;
    Ok(Entry {
        workload: cell("workload").parse().map_err(word)?,
        condition: cell("condition").parse().map_err(word)?,
        candidate: Candidate::read(cell("candidate"), threads).map_err(word)?,
        round: usize::try_from(count(&cell, "round")?)?,
        outcome,
        begun: cell("begun").to_string(),
        build: cell("build").to_string(),
    })
}

fn measured<'a>(cell: &impl Fn(&str) -> &'a str) -> anyhow::Result<Measured> {
    Ok(Measured {
        time: seconds(cell, "seconds")?,
        applied: count(cell, "applied")?,
        is_cut: match cell("cut") {
            "0" => false,
            "1" => true,
            other => bail!("cut is 0 or 1, not {other:?}"),
        },
        cpu_server: seconds(cell, "cpu_server_s")?,
        cpu_own: seconds(cell, "cpu_own_s")?,
        retries: count(cell, "again")?,
        fsyncs: count(cell, "fsyncs")?,
        reads: count(cell, "slow_reads")?,
        others: seconds(cell, "others_s")?,
    })
}

fn count<'a>(cell: &impl Fn(&str) -> &'a str, name: &str) -> anyhow::Result<u64> {
    let text = cell(name);
    text.parse()
        .with_context(|| format!("{name} is a whole number, not {text:?}"))
}

/// Written with three digits, so whole milliseconds.
fn seconds<'a>(cell: &impl Fn(&str) -> &'a str, name: &str) -> anyhow::Result<Duration> {
    let text = cell(name);
    let found = text.parse().ok().map(|s: f64| (s * 1e3).round());
    let ms = found.filter(|ms| (0.0..1e15).contains(ms));
    let ms = ms.with_context(|| format!("{name} is a number of seconds, not {text:?}"))?;
    Ok(Duration::from_millis(ms as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Threads;
    use crate::report::tests::sample;
    use crate::trial::tests::measured;

    fn text(entries: &[Entry]) -> String {
        head() + &entries.iter().map(line).collect::<String>()
    }

    #[test]
    fn trials_are_read_as_they_were_written() {
        let mut entries = sample().entries;
        entries[3].candidate = Candidate::Replica("none".parse().expect("a mode"), Threads::Auto);
        entries[1].outcome =
            Outcome::Differs(measured(3, 7), "not as on the primary: d.t, d.u".into());
        entries[2].outcome = Outcome::Failed("it said \"no\"".into());
        if let Outcome::Measured(m) = &mut entries[3].outcome {
            m.is_cut = true;
            m.time = Duration::from_millis(30_007);
        }
        let read = read(&text(&entries)).expect("all of it");
        assert_eq!(read, entries);
    }

    #[test]
    fn every_line_of_a_failure_is_one() {
        let mut entry = sample().entries[0].clone();
        entry.outcome = Outcome::Failed("one\n  two\r\nthree".into());
        let entries = read(&text(&[entry])).expect("a trial");
        assert_eq!(entries[0].outcome, Outcome::Failed("one two three".into()));
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        let good = text(&sample().entries[..2]);
        let bad = |from: &str, to: &str, word: &str| {
            let damaged = good.replacen(from, to, 1);
            assert_ne!(damaged, good, "{from}");
            let error = format!("{:#}", read(&damaged).expect_err(word));
            assert!(error.contains("line 2") && error.contains(word), "{error}");
        };
        bad("built-in serial", "built-in cereal", "no mode cereal");
        bad("built-in serial", "nobody", "nobody");
        bad("slow-commit", "slow", "no condition slow");
        bad(",1,1,measured,", ",many,1,measured,", "a number or auto");
        bad(",measured,", ",guessed,", "guessed");
        bad(",100.000,", ",-1,", "seconds");
        bad(",1000,", ",1e3,", "applied");
        bad(",1000,0,", ",1000,2,", "cut is 0 or 1");
        bad("w1,", "w1,,", "20 fields");
        bad("w1,", "\"w1,", "quotes");
        let error = read("").expect_err("nothing at all").to_string();
        assert!(error.contains("another version"), "{error}");
    }
}
