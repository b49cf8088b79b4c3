//! The tables on the terminal. Of several rounds: the median of rates, ratios and durations, the
//! worst of gaps, worst seconds, waits and memory, and of what was done of what was offered.

use std::time::Duration;

use dromon_load::paper::{aligned, number, with_notes};
use dromon_load::series::median;

use crate::figures::Figures;
use crate::report::{Entry, Report};
use crate::trial::Outcome;

/// A column: its head and what stands in it.
type Column = (&'static str, fn(&[&Figures]) -> String);

const SMALL: &[Column] = &[
    ("offered/s", |f| {
        number(median(f.iter().filter_map(|x| x.offered)), 0)
    }),
    ("before/s", |f| number(mid(f, |x| x.rate_before), 0)),
    ("beside/s", |f| number(mid(f, |x| x.rate_beside), 0)),
    ("ratio", |f| number(mid(f, Figures::ratio_beside), 2)),
    ("in commit", |f| number(mid(f, Figures::ratio_commit), 2)),
    ("gap s", |f| seconds(f.iter().map(|x| x.gap).max())),
    ("gap of a node s", |f| {
        seconds(f.iter().map(|x| x.gap_of_a_node).max())
    }),
    ("worst second", |f| {
        let worst = f.iter().filter_map(|x| x.worst_second).min();
        worst.map_or("-".into(), |w| w.to_string())
    }),
    // By what the same round offered.
    ("worst : offered", |f| {
        number(least(f, Figures::worst_of_offered), 2)
    }),
    ("offered done", |f| number(least(f, |x| x.share_done), 2)),
    ("p99 before ms", |f| millis(most(f, |x| x.p99_before))),
    ("p99 beside ms", |f| millis(most(f, |x| x.p99_beside))),
    ("longest wait s", |f| seconds(most(f, |x| x.longest_wait))),
];

const LARGE: &[Column] = &[
    ("seqnos", |f| number(mid(f, |x| x.seqnos as f64), 0)),
    ("alone: sent s", |f| took(f, |x| x.alone.statement)),
    ("acked s", |f| took(f, |x| x.alone.total)),
    ("applied s", |f| took(f, |x| x.alone.applied)),
    ("CPU s", |f| took(f, |x| x.cpu_alone)),
    ("beside: sent s", |f| took(f, |x| x.beside.statement)),
    ("acked s", |f| took(f, |x| x.beside.total)),
    ("applied s", |f| took(f, |x| x.beside.applied)),
    ("CPU s", |f| took(f, |x| x.cpu_beside)),
    ("beside : alone", |f| {
        number(mid(f, Figures::times_alone), 2)
    }),
    ("provider MB", |f| megabytes(most(f, |x| x.provider_memory))),
    ("server MB", |f| {
        megabytes(most(f, |x| Some(x.server_memory).filter(|m| *m > 0)))
    }),
];

/// Both tables, and what failed or was left out.
pub fn text(report: &Report) -> String {
    let mut out = format!("{}\n\n", report.title);
    out += "The small ones (commits of all nodes):\n";
    out += &table(report, SMALL);
    out += "\nThe large one:\n";
    out += &table(report, LARGE);
    let lost = report.entries.chunk_by(same_reason).filter_map(lost);
    with_notes(out, lost.chain(report.notes.iter().cloned()))
}

/// What is said of modes that were lost together.
fn lost(entries: &[Entry]) -> Option<String> {
    let (what, why) = match &entries[0].outcome {
        Outcome::Measured(_) => return None,
        Outcome::Skipped(why) => ("left out", why),
        Outcome::Failed(why) => ("FAILED", why),
    };
    let modes: Vec<String> = entries.iter().map(|e| e.mode.to_string()).collect();
    let Entry {
        provider, round, ..
    } = &entries[0];
    let modes = modes.join(", ");
    Some(format!("{provider}, {modes}, round {round}: {what}: {why}"))
}

/// Whether two modes were lost together: one cluster, one reason, said once.
fn same_reason(one: &Entry, other: &Entry) -> bool {
    let why = match (&one.outcome, &other.outcome) {
        (Outcome::Failed(a), Outcome::Failed(b)) => a == b,
        (Outcome::Skipped(a), Outcome::Skipped(b)) => a == b,
        _ => false,
    };
    why && one.provider == other.provider && one.round == other.round
}

fn table(report: &Report, columns: &[Column]) -> String {
    let mut rows: Vec<Vec<String>> = vec![
        ["provider", "mode"]
            .into_iter()
            .chain(columns.iter().map(|c| c.0))
            .map(String::from)
            .collect(),
    ];
    for provider in report.providers() {
        for mode in report.modes() {
            let entries = report.entries.iter();
            let figures: Vec<&Figures> = entries
                .filter(|e| e.provider == provider && e.mode == mode)
                .filter_map(Entry::figures)
                .collect();
            if figures.is_empty() {
                continue;
            }
            let cells = columns.iter().map(|c| c.1(&figures));
            rows.push(
                [provider.to_string(), mode.to_string()]
                    .into_iter()
                    .chain(cells)
                    .collect(),
            );
        }
    }
    aligned(&rows, 2)
}

fn mid(figures: &[&Figures], value: impl Fn(&Figures) -> f64) -> Option<f64> {
    median(figures.iter().map(|f| value(f)))
}

fn most<T: Ord>(figures: &[&Figures], value: impl Fn(&Figures) -> Option<T>) -> Option<T> {
    figures.iter().filter_map(|f| value(f)).max()
}

fn least(figures: &[&Figures], value: impl Fn(&Figures) -> Option<f64>) -> Option<f64> {
    let values = figures.iter().filter_map(|f| value(f));
    values.min_by(f64::total_cmp)
}

fn took(figures: &[&Figures], value: impl Fn(&Figures) -> Duration) -> String {
    number(mid(figures, |f| value(f).as_secs_f64()), 2)
}

fn seconds(value: Option<Duration>) -> String {
    number(value.map(|d| d.as_secs_f64()), 2)
}

fn millis(value: Option<Duration>) -> String {
    number(value.map(|d| d.as_secs_f64() * 1e3), 1)
}

fn megabytes(value: Option<u64>) -> String {
    number(value.map(|bytes| bytes as f64 / 1e6), 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn the_tables_of_a_run() {
        let text = text(&sample());
        let expected = "\
UPDATE of 1000 rows

The small ones (commits of all nodes):
provider  mode   offered/s  before/s  beside/s  ratio  in commit  gap s  gap of a node s  worst second  worst : offered  offered done  p99 before ms  p99 beside ms  longest wait s
dromon    whole          -       300       100   0.33       0.11   2.01             3.01             0                -             -            4.0            4.0            0.00
a<b       whole          -       300       100   0.33       0.11   2.01             3.01             0                -             -            4.0            4.0            0.00

The large one:
provider  mode   seqnos  alone: sent s  acked s  applied s  CPU s  beside: sent s  acked s  applied s  CPU s  beside : alone  provider MB  server MB
dromon    whole       7           1.00     2.00       4.00   2.50            1.00     2.00       4.00   2.50            1.00          9.4      314.6
a<b       whole       7           1.00     2.00       4.00   2.50            1.00     2.00       4.00   2.50            1.00          9.4      314.6

dromon, auto, round 1: left out: no such option
a<b, auto, round 1: FAILED: it said \"no\" & <left>
a note
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_reason_that_modes_share_is_said_once() {
        let mut report = sample();
        let mut entry = report.entries.pop().expect("the failed one");
        report.entries.push(entry.clone());
        entry.mode = crate::Mode::Rows(7);
        report.entries.push(entry.clone());
        entry.round = 2;
        report.entries.push(entry);
        let text = text(&report);
        assert!(
            text.contains("a<b, auto, 7rows, round 1: FAILED: it said"),
            "{text}"
        );
        assert!(
            text.contains("a<b, 7rows, round 2: FAILED: it said"),
            "{text}"
        );
        assert_eq!(text.matches("it said").count(), 2, "{text}");
    }

    #[test]
    fn rounds_give_the_median_and_the_worst() {
        let mut report = sample();
        report.entries.truncate(1);
        for (round, gap) in [(2, 5), (3, 1)] {
            let mut entry = report.entries[0].clone();
            entry.round = round;
            if let Outcome::Measured(all) = &mut entry.outcome {
                all.0.gap = Duration::from_secs(gap);
                all.0.rate_before = 200.0 + round as f64;
            }
            report.entries.push(entry);
        }
        let text = text(&report);
        let line = text.lines().nth(4).expect("the figures");
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((cells[3], cells[7]), ("203", "5.00"));
    }

    #[test]
    fn a_bad_round_is_not_hidden_by_the_others() {
        let mut report = sample();
        let entry = report.entries[0].clone();
        report.entries.clear();
        // Each cluster has its own offer: the fewest commits are not the worst part of it.
        for (round, offered, worst, done) in [
            (1, 1000.0, 400, 0.9),
            (2, 3000.0, 600, 0.7),
            (3, 1000.0, 500, 1.0),
        ] {
            let mut entry = entry.clone();
            entry.round = round;
            if let Outcome::Measured(all) = &mut entry.outcome {
                (all.0.offered, all.0.worst_second) = (Some(offered), Some(worst));
                all.0.share_done = Some(done);
                all.0.beside.applied = all.0.alone.applied * round as u32;
            }
            report.entries.push(entry);
        }
        let text = text(&report);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        assert_eq!((lines[4][2], lines[4][9]), ("1000", "400"));
        assert_eq!((lines[4][10], lines[4][11]), ("0.20", "0.70"));
        assert_eq!(lines[8][11], "2.00");
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        assert_eq!(megabytes(None), "-");
    }
}
