//! The chart: a panel for each workload and condition, speed-up over the serial server against
//! threads, both logarithmic, a curve for each candidate.

use std::fmt::Write as _;

use dromon_load::bench::unique;
use dromon_load::paper::{Drawing, FAINT, INK, Panels, escape};

use crate::figures::Line;
use crate::plan::{Candidate, Condition, Threads, Workload};
use crate::report::Report;

/// Where panels stand; [`Panels::head`] grows with the legend.
const PANELS: Panels = Panels {
    width: 330.0,
    height: 210.0,
    left: 44.0,
    above: 26.0,
    below: 34.0,
    gap: 22.0,
    head: 54.0,
};
/// Between the most threads and those that were found.
const AUTO: f64 = 36.0;
/// A line of the legend.
const LEGEND: f64 = 16.0;
/// Entries of the legend side by side.
const LEGEND_WIDTH: f64 = 230.0;
/// Colours that also people see apart who do not see all (Okabe and Ito).
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
];
const MARKS: [f64; 19] = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3,
    2e3, 5e3, 1e4,
];

/// The chart of a run.
pub fn svg(report: &Report) -> String {
    let lines = report.lines();
    let workloads = unique(lines.iter().map(|l| l.workload));
    let conditions = unique(lines.iter().map(|l| l.condition));
    let curves = unique(
        lines
            .iter()
            .filter(|l| l.candidate != Candidate::Serial)
            .map(|l| l.candidate.line()),
    );
    let width = PANELS.across(conditions.len()).max(3.0 * LEGEND_WIDTH);
    let beside = ((width - PANELS.gap) / LEGEND_WIDTH).floor().max(1.0) as usize;
    let panels = Panels {
        head: PANELS.head + LEGEND * curves.len().div_ceil(beside) as f64,
        ..PANELS
    };
    let about = "Speed-up over the server's own serial replication against threads, both axes logarithmic; a panel for each workload and condition, a curve for each candidate.";
    let subtitle = "Speed-up over the server's own serial replication, against threads. Solid: built-in; dashed: Dromon. Hollow: cut, the rate until then. ×: failed.";
    let mut out = panels.begin((width, workloads.len()), &report.title, subtitle, about);
    for (i, name) in curves.iter().enumerate() {
        let x = PANELS.gap + LEGEND_WIDTH * (i % beside) as f64;
        let y = PANELS.head + LEGEND * (i / beside) as f64;
        let stroke = stroke(&curves, name);
        out.add(format_args!(
            r#"<line x1="{x:.1}" x2="{:.1}" y1="{y:.1}" y2="{y:.1}" {stroke}/>"#,
            x + 24.0
        ));
        out.text(x + 30.0, y + 4.0, 11, "start", INK, name);
    }
    let axes = Axes::new(&lines);
    for (row, workload) in workloads.iter().enumerate() {
        for (column, condition) in conditions.iter().enumerate() {
            panels.panel(&mut out, (row, column), |out| {
                panel(out, &lines, *workload, *condition, &curves, &axes);
            });
        }
    }
    out.end()
}

fn panel(
    out: &mut Drawing,
    lines: &[Line],
    workload: Workload,
    condition: Condition,
    curves: &[String],
    axes: &Axes,
) {
    let title = format!("{workload}: {}; {condition}", workload.about());
    out.text(PANELS.left, 14.0, 12, "start", INK, &title);
    frame(out, axes);
    let own = |l: &&Line| l.workload == workload && l.condition == condition;
    let serial = lines
        .iter()
        .filter(own)
        .find(|l| l.candidate == Candidate::Serial);
    if serial.is_none_or(|s| s.rate.is_none()) {
        return PANELS.instead(out, "no serial server to compare with");
    }
    for name in curves {
        let mut own: Vec<&Line> = lines
            .iter()
            .filter(own)
            .filter(|l| l.candidate.line() == *name)
            .collect();
        own.sort_by_key(|l| l.candidate.threads());
        curve(out, &own, curves, name, axes);
    }
}

/// A candidate's points, and what joins them.
fn curve(out: &mut Drawing, own: &[&Line], curves: &[String], name: &str, axes: &Axes) {
    let colour = colour(curves, name);
    let points: Vec<(&Line, f64)> = own.iter().filter_map(|l| Some((*l, l.speedup?))).collect();
    let mut path = String::new();
    for (i, (line, speedup)) in points.iter().enumerate() {
        // Whatever was found by itself is no number among the others.
        if line.candidate.threads() == Threads::Auto {
            continue;
        }
        let (x, y) = (axes.x(line.candidate.threads()), axes.y(*speedup));
        let step = if i == 0 { 'M' } else { 'L' };
        write!(path, "{step}{x:.1} {y:.1}").expect("writing to a String cannot fail");
    }
    if path.contains('L') {
        let stroke = stroke(curves, name);
        out.add(format_args!(
            r#"<path class="curve" d="{path}" fill="none" {stroke}/>"#
        ));
    }
    for (line, speedup) in points {
        let threads = line.candidate.threads();
        let (cut, fill) = match line.is_cut {
            true => (", cut", "#ffffff"),
            false => ("", colour),
        };
        let about = format!("{name}, {threads} threads: {speedup:.2}{cut}");
        out.add(format_args!(
            r#"<circle class="point" cx="{:.1}" cy="{:.1}" r="2.5" fill="{fill}" stroke="{colour}"><title>{}</title></circle>"#,
            axes.x(threads),
            axes.y(speedup),
            escape(&about)
        ));
    }
    for line in own {
        let Some(trouble) = &line.trouble else {
            continue;
        };
        let x = axes.x(line.candidate.threads());
        let y = PANELS.bottom() - 4.0;
        let about = format!("{}: {trouble}", line.candidate);
        out.add(format_args!(
            r#"<text class="trouble" x="{x:.1}" y="{y:.1}" font-size="12" text-anchor="middle" fill="{colour}">×<title>{}</title></text>"#,
            escape(&about)
        ));
    }
}

fn frame(out: &mut Drawing, axes: &Axes) {
    for mark in MARKS {
        if mark < axes.low || mark > axes.high {
            continue;
        }
        let stroke = if mark == 1.0 { INK } else { FAINT };
        PANELS.level(out, axes.y(mark), stroke, &format!("{mark}"));
    }
    let numbers = axes.threads.iter().map(|n| Threads::Fixed(*n));
    for threads in numbers.chain(axes.auto.then_some(Threads::Auto)) {
        PANELS.tick(out, axes.x(threads), 16.0, &threads.to_string());
    }
    let (middle, below) = (PANELS.left + PANELS.width / 2.0, PANELS.bottom() + 30.0);
    out.text(middle, below, 11, "middle", INK, "threads");
}

fn colour(curves: &[String], name: &str) -> &'static str {
    let at = curves.iter().position(|c| c == name).unwrap_or(0);
    COLOURS[at % COLOURS.len()]
}

fn stroke(curves: &[String], name: &str) -> String {
    let colour = colour(curves, name);
    let dashes = match name.starts_with("built-in") {
        true => "",
        false => r#" stroke-dasharray="6 3""#,
    };
    format!(r#"stroke="{colour}" stroke-width="1.8"{dashes}"#)
}

/// Shared by all panels, so that they can be compared.
struct Axes {
    low: f64,
    high: f64,
    threads: Vec<u32>,
    /// Someone finds them by itself: that stands right of the numbers.
    auto: bool,
}

impl Axes {
    fn new(lines: &[Line]) -> Self {
        let all: Vec<f64> = lines.iter().filter_map(|l| l.speedup).collect();
        let least = all.iter().copied().fold(1.0, f64::min);
        let most = all.iter().copied().fold(2.0, f64::max);
        let all = unique(lines.iter().map(|l| l.candidate.threads()));
        let numbers = all.iter().filter_map(|threads| match threads {
            Threads::Fixed(n) => Some(*n),
            Threads::Auto => None,
        });
        let mut threads: Vec<u32> = numbers.collect();
        threads.sort_unstable();
        let below = MARKS.into_iter().rev().find(|m| *m <= least);
        Self {
            low: below.unwrap_or(MARKS[0]),
            high: MARKS.into_iter().find(|m| *m >= most).unwrap_or(most),
            threads,
            auto: all.contains(&Threads::Auto),
        }
    }

    fn x(&self, threads: Threads) -> f64 {
        // Not on the frame: points there would be cut in half.
        let (left, right) = (PANELS.left + 8.0, PANELS.left + PANELS.width - 8.0);
        let Threads::Fixed(threads) = threads else {
            return right;
        };
        let right = right - if self.auto { AUTO } else { 0.0 };
        let most = self.threads.last().copied().unwrap_or(2).max(2);
        let part = f64::from(threads.max(1)).log2() / f64::from(most).log2();
        left + (right - left) * part.clamp(0.0, 1.0)
    }

    fn y(&self, speedup: f64) -> f64 {
        let part = (speedup / self.low).ln() / (self.high / self.low).ln();
        PANELS.above + PANELS.height * (1.0 - part.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;
    use crate::trial::Outcome;
    use roxmltree::Document;

    fn classes<'a>(document: &'a Document, class: &str) -> Vec<roxmltree::Node<'a, 'a>> {
        let has = |n: &roxmltree::Node| n.attribute("class") == Some(class);
        document.descendants().filter(has).collect()
    }

    #[test]
    fn a_panel_for_each_and_a_point_for_each() {
        let text = svg(&sample());
        let document = Document::parse(&text).expect("it is XML");
        assert_eq!(classes(&document, "panel").len(), 2);
        assert_eq!(classes(&document, "point").len(), 7);
        assert_eq!(classes(&document, "curve").len(), 1, "one has two points");
        let words: String = document
            .descendants()
            .filter_map(|n| n.text())
            .collect::<Vec<_>>()
            .join("|");
        for word in [
            "w1 & more",
            "w1: single rows; slow-commit",
            "relay group, conservative",
            "replica writeset, 8 threads: 50.00",
        ] {
            assert!(words.contains(word), "{word} is missing in {words}");
        }
    }

    #[test]
    fn who_was_cut_or_failed_is_seen_to_be() {
        let mut report = sample();
        if let Outcome::Measured(m) = &mut report.entries[2].outcome {
            m.is_cut = true;
        }
        report.entries[3].outcome = Outcome::Failed("gone & lost".into());
        let text = svg(&report);
        let document = Document::parse(&text).expect("it is XML");
        let points = classes(&document, "point");
        let hollow = points
            .iter()
            .filter(|p| p.attribute("fill") == Some("#ffffff"));
        let about: Vec<&str> = hollow
            .filter_map(|p| p.first_element_child()?.text())
            .collect();
        assert_eq!(about, ["built-in conservative, 8 threads: 10.00, cut"]);
        let trouble = classes(&document, "trouble");
        let about: Vec<&str> = trouble
            .iter()
            .filter_map(|t| t.first_element_child()?.text())
            .collect();
        assert_eq!(about, ["replica writeset, 8 threads: FAILED: gone & lost"]);
        assert_eq!(points.len(), 6, "who failed has no point");
    }

    #[test]
    fn points_stand_where_they_belong() {
        let lines = sample().lines();
        let axes = Axes::new(&lines);
        assert_eq!((axes.low, axes.high), (1.0, 50.0));
        assert_eq!(axes.threads, [1, 8]);
        let x = |n| axes.x(Threads::Fixed(n));
        assert!(x(1) < x(2) && x(2) < x(8));
        assert!((x(4) - x(2) - (x(8) - x(4))).abs() < 1e-6);
        assert_eq!(axes.y(1.0), PANELS.bottom());
        assert_eq!(axes.y(50.0), PANELS.above);
        assert!(axes.y(10.0) < axes.y(5.0));
    }

    /// It has a place of its own, and is joined with nothing.
    #[test]
    fn what_was_found_by_itself() {
        let mut report = sample();
        let mut auto = report.entries[3].clone();
        let mode = "writeset".parse().expect("a mode");
        auto.candidate = Candidate::Replica(mode, Threads::Auto);
        report.entries.insert(4, auto);
        let axes = Axes::new(&report.lines());
        assert!(axes.auto && axes.threads == [1, 8]);
        assert!(axes.x(Threads::Fixed(8)) + AUTO <= axes.x(Threads::Auto));
        let text = svg(&report);
        let document = Document::parse(&text).expect("it is XML");
        assert_eq!(classes(&document, "point").len(), 8);
        assert_eq!(
            classes(&document, "curve").len(),
            1,
            "that of the server's own"
        );
        let texts = document.descendants().filter(|n| n.is_text());
        let words: Vec<&str> = texts.filter_map(|n| n.text()).collect();
        assert!(
            words.contains(&"replica writeset, auto threads: 50.00"),
            "{words:?}"
        );
        assert_eq!(
            words.iter().filter(|word| **word == "auto").count(),
            2,
            "a tick in each panel"
        );
        let table = report.table();
        let auto = ["replica", "writeset", "auto", "500"];
        let has = |line: &str| line.split_whitespace().take(4).eq(auto);
        assert!(table.lines().any(has), "{table}");
    }

    #[test]
    fn every_number_is_finite_and_every_place_inside() {
        let mut failed = sample();
        for entry in &mut failed.entries {
            entry.outcome = Outcome::Failed("gone".into());
        }
        let mut serial = sample();
        serial.entries.truncate(1);
        let mut empty = sample();
        empty.entries.clear();
        for text in [svg(&sample()), svg(&failed), svg(&serial), svg(&empty)] {
            let document = Document::parse(&text).expect("it is XML");
            for node in document.descendants() {
                for name in [
                    "x", "x1", "x2", "y", "y1", "y2", "cx", "cy", "width", "height",
                ] {
                    let Some(value) = node.attribute(name).filter(|v| *v != "100%") else {
                        continue;
                    };
                    let value: f64 = value.parse().expect("a number");
                    assert!((0.0..2000.0).contains(&value), "{name}={value}");
                }
            }
        }
    }
}
