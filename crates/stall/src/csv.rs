//! What was recorded, for other programs. Times are milliseconds since the
//! large transaction's begin; before it they are negative.

use std::time::Duration;

use dromon_load::paper::Csv;
use dromon_load::series;

use crate::figures::{Figures, Times, commits_of};
use crate::report::{Entry, Report};
use crate::sampler::EVERY;
use crate::trial::{Outcome, Trace};

/// One line per node and 100 ms: the clients' acknowledgements in them and the
/// node's own counters at their end.
pub fn samples(report: &Report) -> String {
    let mut out = csv(&[
        "t_ms",
        "node",
        "acknowledged",
        "last_committed",
        "local_commits",
        "recv_queue",
        "flow_control_paused_ms",
        "replicated_bytes",
        "provider_memory_peak",
    ]);
    for (entry, trace) in traces(report) {
        for (node, name) in trace.nodes.iter().enumerate() {
            let own = commits_of(&trace.commits, node);
            let mut from = Duration::ZERO;
            for sample in trace.samples.iter().filter(|s| s.node == node) {
                let acknowledged = series::count(&own, &(from..sample.at));
                from = sample.at;
                line(
                    &mut out,
                    entry,
                    &[
                        since_begin(trace, sample.at),
                        name.clone(),
                        acknowledged.to_string(),
                        sample.last_committed.to_string(),
                        sample.local_commits.to_string(),
                        sample.recv_queue.to_string(),
                        (sample.paused_ns / 1_000_000).to_string(),
                        sample.replicated_bytes.to_string(),
                        sample.memory_peak.map_or(String::new(), |m| m.to_string()),
                    ],
                );
            }
        }
    }
    debug_assert!(EVERY == Duration::from_millis(100), "as the docs say");
    out.end()
}

/// One line per mark.
pub fn events(report: &Report) -> String {
    let mut out = csv(&["t_ms", "event", "node"]);
    for (entry, trace) in traces(report) {
        let origin = trace.nodes.first().map_or("", String::as_str);
        let marks = &trace.marks;
        let own = [
            ("begin", marks.begin),
            ("replicate", marks.replicate),
            ("end", marks.end),
        ];
        let own = own.map(|(what, at)| (what, at, origin));
        let applied = marks
            .applied
            .iter()
            .zip(&trace.nodes)
            .map(|(at, node)| ("applied", *at, node.as_str()));
        for (event, at, node) in own.into_iter().chain(applied) {
            let cells = [since_begin(trace, at), event.into(), node.into()];
            line(&mut out, entry, &cells);
        }
    }
    out.end()
}

/// One line per mode with all numbers of the tables; what failed has none.
pub fn summary(report: &Report) -> String {
    let mut out = csv(&[
        "outcome",
        "rate_before",
        "rate_beside",
        "rate_commit",
        "gap_s",
        "gap_of_a_node_s",
        "worst_second",
        "offered",
        "worst_of_offered",
        "share_done",
        "p99_before_ms",
        "p99_beside_ms",
        "longest_wait_ms",
        "seqnos",
        "alone_sent_s",
        "alone_acked_s",
        "alone_applied_s",
        "beside_sent_s",
        "beside_acked_s",
        "beside_applied_s",
        "times_alone",
        "cpu_alone_s",
        "cpu_beside_s",
        "provider_memory",
        "server_memory",
    ]);
    for entry in &report.entries {
        let outcome = match &entry.outcome {
            Outcome::Measured(_) => "measured",
            Outcome::Skipped(_) => "skipped",
            Outcome::Failed(_) => "failed",
        };
        let mut cells = vec![outcome.to_string()];
        match entry.figures() {
            Some(figures) => cells.extend(numbers(figures)),
            None => cells.extend((0..24).map(|_| String::new())),
        }
        line(&mut out, entry, &cells);
    }
    out.end()
}

fn numbers(f: &Figures) -> [String; 24] {
    let s = |d: Duration| format!("{:.3}", d.as_secs_f64());
    let part = |x: Option<f64>| x.map_or(String::new(), |x| format!("{x:.4}"));
    let ms =
        |d: Option<Duration>| d.map_or(String::new(), |d| format!("{:.3}", d.as_secs_f64() * 1e3));
    let times = |t: &Times| [s(t.statement), s(t.total), s(t.applied)];
    let [a, b, c] = times(&f.alone);
    let [d, e, g] = times(&f.beside);
    [
        format!("{:.2}", f.rate_before),
        format!("{:.2}", f.rate_beside),
        format!("{:.2}", f.rate_commit),
        s(f.gap),
        s(f.gap_of_a_node),
        f.worst_second.map_or(String::new(), |w| w.to_string()),
        f.offered.map_or(String::new(), |x| format!("{x:.2}")),
        part(f.worst_of_offered()),
        part(f.share_done),
        ms(f.p99_before),
        ms(f.p99_beside),
        ms(f.longest_wait),
        f.seqnos.to_string(),
        a,
        b,
        c,
        d,
        e,
        g,
        format!("{:.4}", f.times_alone()),
        s(f.cpu_alone),
        s(f.cpu_beside),
        f.provider_memory.map_or(String::new(), |m| m.to_string()),
        f.server_memory.to_string(),
    ]
}

fn traces(report: &Report) -> impl Iterator<Item = (&Entry, &Trace)> {
    report.entries.iter().filter_map(|e| match &e.outcome {
        Outcome::Measured(all) => Some((e, &all.1)),
        _ => None,
    })
}

/// A file whose lines begin with what was measured.
fn csv(head: &[&str]) -> Csv {
    Csv::new(&[&["provider", "round", "mode"], head].concat())
}

fn line(out: &mut Csv, entry: &Entry, cells: &[String]) {
    let measured = [
        entry.provider.clone(),
        entry.round.to_string(),
        entry.mode.to_string(),
    ];
    out.add(&[&measured, cells].concat());
}

fn since_begin(trace: &Trace, at: Duration) -> String {
    let begin = trace.marks.begin.as_secs_f64();
    format!("{:.1}", (at.as_secs_f64() - begin) * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn every_line_has_as_many_cells_as_the_head() {
        let report = sample();
        for text in [samples(&report), events(&report), summary(&report)] {
            let cells: Vec<usize> = text.lines().map(|l| l.split(',').count()).collect();
            assert!(cells.len() > 1);
            assert!(cells.iter().all(|c| *c == cells[0]), "{text}");
        }
    }

    #[test]
    fn the_summary_tells_what_was_offered() {
        let mut report = sample();
        if let Outcome::Measured(all) = &mut report.entries[0].outcome {
            (all.0.offered, all.0.worst_second) = (Some(300.0), Some(150));
            all.0.beside.applied = all.0.alone.applied * 3 / 2;
        }
        let text = summary(&report);
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split(',').collect()).collect();
        let cell = |line: usize, name: &str| {
            let at = lines[0].iter().position(|head| *head == name);
            lines[line][at.expect("a column")]
        };
        assert_eq!(cell(1, "offered"), "300.00");
        assert_eq!(cell(1, "worst_of_offered"), "0.5000");
        assert_eq!(cell(1, "times_alone"), "1.5000");
        // In closed loop nothing is offered.
        assert_eq!((cell(3, "offered"), cell(3, "worst_of_offered")), ("", ""));
    }

    #[test]
    fn events_count_from_the_begin() {
        let text = events(&sample());
        assert!(text.contains("\ndromon,1,whole,0.0,begin,db1\n"), "{text}");
        assert!(
            text.contains("\ndromon,1,whole,1000.0,replicate,db1\n"),
            "{text}"
        );
        assert!(
            text.contains("\ndromon,1,whole,4000.0,applied,db2\n"),
            "{text}"
        );
    }

    #[test]
    fn samples_hold_what_was_acknowledged_between_them() {
        let text = samples(&sample());
        // 10 commits until 100 ms; the rest of db1's 1000 until 11.9 s.
        let line = |t: &str| {
            let start = format!("dromon,1,whole,{t},db1,");
            text.lines()
                .find_map(|l| l.strip_prefix(&start))
                .map(str::to_string)
        };
        assert_eq!(line("-4900.0").as_deref(), Some("10,10,0,0,0,0,5242880"));
        assert_eq!(line("6900.0").as_deref(), Some("980,17,0,0,0,0,9437184"));
    }
}
