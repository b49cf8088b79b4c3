//! The chart: a panel per provider and mode with the throughput of the small
//! transactions over time, the large one's marks, and for each node a strip
//! that is red where it acknowledged nothing.

use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

use dromon_load::paper::{Drawing, FAINT, INK, Panels, nice};
use dromon_load::series;

use crate::figures::{Figures, commits_of};
use crate::plan::Mode;
use crate::report::{Entry, Report};
use crate::trial::{Outcome, Trace};

/// Where panels stand; [`Panels::below`] grows with the strips of the nodes.
const PANELS: Panels = Panels {
    width: 520.0,
    height: 120.0,
    left: 62.0,
    above: 66.0,
    below: 26.0,
    gap: 22.0,
    head: 58.0,
};
const WIDTH: f64 = PANELS.width;
const HEIGHT: f64 = PANELS.height;
const LEFT: f64 = PANELS.left;
const ABOVE: f64 = PANELS.above;
/// Height of a node's strip.
const STRIP: f64 = 9.0;
/// Room for the title.
const WIDTH_MIN: f64 = 760.0;
/// Slices a panel can show.
const SLICES_MAX: u32 = 520;
/// A node that acknowledges nothing for so long is red.
const SILENT: Duration = Duration::from_millis(300);
/// A gap of the whole cluster is shaded and named from here on.
const STALL: Duration = Duration::from_millis(500);

const BLUE: &str = "#0969da";
const RED: &str = "#cf222e";

/// The chart of one round.
pub fn svg(report: &Report, round: usize) -> String {
    let (providers, modes) = (report.providers(), report.modes());
    let panels = Panels {
        below: PANELS.below + nodes(report) as f64 * STRIP,
        ..PANELS
    };
    let width = panels.across(providers.len()).max(WIDTH_MIN);
    let top = highest(report, round);
    let about = format!(
        "Commits per second of all nodes over seconds since the large transaction's statement began. A strip per node is red where it acknowledged nothing for {} ms.",
        SILENT.as_millis()
    );
    let subtitle = "Commits per second of all nodes, over seconds since the large one began. Strips, one per node: red where it acknowledged nothing.";
    let mut out = panels.begin((width, modes.len()), &report.title, subtitle, &about);
    for (row, mode) in modes.iter().enumerate() {
        for (column, provider) in providers.iter().enumerate() {
            let entry = report
                .entries
                .iter()
                .find(|e| e.round == round && e.mode == *mode && e.provider == *provider);
            panels.panel(&mut out, (row, column), |out| {
                panel(out, provider, *mode, entry, top);
            });
        }
    }
    out.end()
}

fn panel(out: &mut Drawing, provider: &str, mode: Mode, entry: Option<&Entry>, top: f64) {
    out.text(LEFT, 14.0, 13, "start", INK, &format!("{provider}, {mode}"));
    let why = match entry.map(|e| &e.outcome) {
        Some(Outcome::Measured(all)) => return curve(out, &all.0, &all.1, top),
        Some(Outcome::Skipped(why)) => format!("left out: {why}"),
        Some(Outcome::Failed(why)) => format!("failed: {why}"),
        None => "not measured in this round".to_string(),
    };
    out.add(format_args!(
        r#"<rect x="{LEFT}" y="{ABOVE}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="{FAINT}"/>"#
    ));
    let mut short: String = why.chars().take(90).collect();
    if short.len() < why.len() {
        short.push('…');
    }
    PANELS.instead(out, &short);
}

fn curve(out: &mut Drawing, figures: &Figures, trace: &Trace, top: f64) {
    let scale = Scale::new(trace, top);
    let all: Vec<Duration> = trace.commits.iter().map(|c| c.done).collect();
    let bottom = PANELS.bottom();
    axes(out, &scale);
    if figures.gap >= STALL {
        let window = trace.marks.begin..trace.until;
        if let Some(from) = first_gap(&all, &window, figures.gap) {
            let (x1, x2) = (scale.x(from), scale.x(from + figures.gap));
            out.add(format_args!(
                r#"<rect class="stall" x="{x1:.1}" y="{ABOVE}" width="{:.1}" height="{HEIGHT}" fill="{RED}" fill-opacity="0.12"/>"#,
                x2 - x1
            ));
            let label = format!("no commit for {:.1} s", figures.gap.as_secs_f64());
            let (x, anchor) = scale.label(x1);
            out.text(x, ABOVE + 12.0, 11, anchor, RED, &label);
        }
    }
    let rate_y = scale.y(figures.rate_before);
    out.add(format_args!(
        r#"<line x1="{LEFT}" x2="{:.1}" y1="{rate_y:.1}" y2="{rate_y:.1}" stroke="{INK}" stroke-dasharray="1 3"/>"#,
        PANELS.right()
    ));
    let width = scale.slice();
    let window = scale.from..scale.to;
    let mut path = format!("M{LEFT:.1} {bottom:.1}");
    for (i, count) in series::slices(&all, &window, width).iter().enumerate() {
        let at = scale.from + width * u32::try_from(i).unwrap_or(u32::MAX);
        let end = (at + width).min(scale.to);
        let y = scale.y(*count as f64 / (end - at).as_secs_f64());
        write!(path, "L{:.1} {y:.1}H{:.1}", scale.x(at), scale.x(end))
            .expect("writing to a String cannot fail");
    }
    write!(path, "V{bottom:.1}Z").expect("writing to a String cannot fail");
    out.add(format_args!(
        r#"<path class="rate" d="{path}" fill="{BLUE}" fill-opacity="0.25" stroke="{BLUE}" stroke-width="0.8"/>"#
    ));
    marks(out, trace, &scale);
    strips(out, trace, &scale);
}

fn axes(out: &mut Drawing, scale: &Scale) {
    for part in [0.0, 0.5, 1.0] {
        let rate = scale.top * part;
        PANELS.level(out, scale.y(rate), FAINT, &format!("{rate:.0}"));
    }
    let span = (scale.to - scale.from).as_secs_f64();
    let step = nice(span / 10.0).max(0.5);
    let zero = scale.zero.as_secs_f64();
    let mut tick = ((scale.from.as_secs_f64() - zero) / step).ceil() * step;
    while tick <= scale.to.as_secs_f64() - zero {
        let x = scale.x(Duration::from_secs_f64((tick + zero).max(0.0)));
        // A tick next to nought must not read "-0".
        let label = format!("{}", (tick * 10.0).round() / 10.0 + 0.0);
        PANELS.tick(out, x, scale.strips + 16.0, &label);
        tick += step;
    }
}

/// A line and a word for each mark, the words one above the other.
fn marks(out: &mut Drawing, trace: &Trace, scale: &Scale) {
    let marks = &trace.marks;
    let list = [
        ("begin", marks.begin),
        ("replicate", marks.replicate),
        ("end", marks.end),
        ("applied", marks.over()),
    ];
    for (i, (name, at)) in list.into_iter().enumerate() {
        let x = scale.x(at);
        let y = 28.0 + 11.0 * i as f64;
        out.add(format_args!(
            r#"<line class="mark {name}" x1="{x:.1}" x2="{x:.1}" y1="{:.1}" y2="{:.1}" stroke="{INK}" stroke-dasharray="4 2"/>"#,
            y - 8.0,
            ABOVE + HEIGHT + scale.strips
        ));
        let (x, anchor) = scale.label(x);
        let since = at.saturating_sub(marks.begin).as_secs_f64();
        let label = match i {
            0 => name.to_string(),
            _ => format!("{name} {since:.1} s"),
        };
        out.text(x, y, 10, anchor, INK, &label);
    }
}

fn strips(out: &mut Drawing, trace: &Trace, scale: &Scale) {
    for (node, name) in trace.nodes.iter().enumerate() {
        let y = ABOVE + HEIGHT + 4.0 + STRIP * node as f64;
        let height = STRIP - 2.0;
        out.add(format_args!(
            r#"<rect x="{LEFT}" y="{y:.1}" width="{WIDTH}" height="{height:.1}" fill="{FAINT}"/>"#
        ));
        out.text(LEFT - 6.0, y + height, 9, "end", INK, name);
        let own = commits_of(&trace.commits, node);
        for (from, to) in silences(&own, &(scale.from..scale.to)) {
            let x = scale.x(from);
            out.add(format_args!(
                r#"<rect class="silent" x="{x:.1}" y="{y:.1}" width="{:.1}" height="{height:.1}" fill="{RED}"/>"#,
                scale.x(to) - x
            ));
        }
    }
}

/// From which moment to which.
struct Scale {
    from: Duration,
    to: Duration,
    zero: Duration,
    top: f64,
    strips: f64,
}

impl Scale {
    fn new(trace: &Trace, top: f64) -> Self {
        let zero = trace.marks.begin;
        let first = trace.commits.first().map_or(zero, |c| c.done);
        Self {
            // What came while everything warmed up is of no interest.
            from: first
                .max(zero.saturating_sub(Duration::from_secs(8)))
                .min(zero),
            to: trace
                .until
                .max(trace.marks.over() + Duration::from_millis(100)),
            zero,
            top,
            strips: STRIP * trace.nodes.len() as f64,
        }
    }

    fn x(&self, at: Duration) -> f64 {
        let span = (self.to - self.from).as_secs_f64();
        let part = at.saturating_sub(self.from).as_secs_f64() / span;
        LEFT + WIDTH * part.min(1.0)
    }

    fn y(&self, rate: f64) -> f64 {
        ABOVE + HEIGHT * (1.0 - (rate / self.top).clamp(0.0, 1.0))
    }

    /// At least 100 ms, and not more slices than can be seen.
    fn slice(&self) -> Duration {
        let least = (self.to - self.from) / SLICES_MAX;
        let tenths = least.as_millis().div_ceil(100).max(1);
        Duration::from_millis(100) * u32::try_from(tenths).unwrap_or(u32::MAX)
    }

    /// Beside a line, within the panel.
    fn label(&self, x: f64) -> (f64, &'static str) {
        if x > LEFT + WIDTH - 110.0 {
            (x - 3.0, "end")
        } else {
            (x + 3.0, "start")
        }
    }
}

/// From each moment to the next, within the window and up to its edges.
fn pauses(all: &[Duration], window: &Range<Duration>) -> Vec<(Duration, Duration)> {
    let inside = all.iter().copied().filter(|m| window.contains(m));
    let edges: Vec<Duration> = [window.start]
        .into_iter()
        .chain(inside)
        .chain([window.end])
        .collect();
    edges.windows(2).map(|w| (w[0], w[1])).collect()
}

/// Where the first gap of this length begins.
fn first_gap(all: &[Duration], window: &Range<Duration>, gap: Duration) -> Option<Duration> {
    let found = pauses(all, window)
        .into_iter()
        .find(|(a, b)| *b - *a >= gap);
    found.map(|(from, _)| from)
}

/// Stretches of at least [`SILENT`] without an acknowledgement.
fn silences(own: &[Duration], window: &Range<Duration>) -> Vec<(Duration, Duration)> {
    let mut found = pauses(own, window);
    found.retain(|(a, b)| *b - *a >= SILENT);
    found
}

/// The top of all panels' axes, so that they can be compared.
fn highest(report: &Report, round: usize) -> f64 {
    let of_round = report.entries.iter().filter(|e| e.round == round);
    let most = of_round.filter_map(|entry| {
        let Outcome::Measured(all) = &entry.outcome else {
            return None;
        };
        let trace = &all.1;
        let scale = Scale::new(trace, 1.0);
        let commits: Vec<Duration> = trace.commits.iter().map(|c| c.done).collect();
        let slices = series::slices(&commits, &(scale.from..scale.to), scale.slice());
        // Single high slices are cut off: backlogs come in bursts.
        let mut rates: Vec<f64> = slices
            .iter()
            .map(|n| *n as f64 / scale.slice().as_secs_f64())
            .collect();
        rates.sort_by(f64::total_cmp);
        series::quantile(&rates, 0.98)
    });
    nice(most.fold(1.0, f64::max))
}

fn nodes(report: &Report) -> usize {
    let counts = report.entries.iter().filter_map(|e| match &e.outcome {
        Outcome::Measured(all) => Some(all.1.nodes.len()),
        _ => None,
    });
    counts.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;
    use roxmltree::Document;

    fn classes<'a>(document: &'a Document, class: &str) -> Vec<roxmltree::Node<'a, 'a>> {
        let has = |n: &roxmltree::Node| {
            n.attribute("class")
                .is_some_and(|c| c.split(' ').any(|c| c == class))
        };
        document.descendants().filter(has).collect()
    }

    #[test]
    fn the_chart_is_xml_and_has_a_panel_for_each_and_all_marks() {
        let text = svg(&sample(), 1);
        let document = Document::parse(&text).expect("it is XML");
        assert_eq!(document.root_element().tag_name().name(), "svg");
        assert_eq!(classes(&document, "panel").len(), 4);
        // Two panels are measured.
        for mark in ["begin", "replicate", "end", "applied"] {
            assert_eq!(classes(&document, mark).len(), 2, "{mark}");
        }
        assert_eq!(classes(&document, "rate").len(), 2);
        let words: String = document
            .descendants()
            .filter_map(|n| n.text())
            .collect::<Vec<_>>()
            .join("|");
        for word in [
            "a<b, whole",
            "applied 4.0 s",
            "no commit for 2.0 s",
            "left out: no such option",
            "failed: it said \"no\" & <left>",
        ] {
            assert!(words.contains(word), "{word} is missing in {words}");
        }
    }

    #[test]
    fn marks_stand_where_they_happened_and_in_order() {
        let text = svg(&sample(), 1);
        let document = Document::parse(&text).expect("it is XML");
        let x = |mark: &str| -> f64 {
            let line = classes(&document, mark)[0];
            line.attribute("x1")
                .and_then(|x| x.parse().ok())
                .expect("a place")
        };
        let (begin, replicate, end, applied) = (x("begin"), x("replicate"), x("end"), x("applied"));
        assert!(begin < replicate && replicate < end && end < applied);
        // 1 s, 1 s and 2 s apart.
        assert!(((end - replicate) - (replicate - begin)).abs() < 0.3);
        assert!(((applied - end) - 2.0 * (end - replicate)).abs() < 0.3);
    }

    #[test]
    fn every_number_is_finite_and_every_place_inside() {
        let mut report = sample();
        for entry in &mut report.entries {
            if let Outcome::Measured(all) = &mut entry.outcome {
                all.1.commits.clear();
                all.0.rate_before = 0.0;
            }
        }
        for text in [svg(&sample(), 1), svg(&report, 1)] {
            let document = Document::parse(&text).expect("it is XML");
            for node in document.descendants() {
                for name in ["x", "x1", "x2", "y", "y1", "y2", "width", "height"] {
                    let Some(value) = node.attribute(name).filter(|v| *v != "100%") else {
                        continue;
                    };
                    let value: f64 = value.parse().expect("a number");
                    assert!((0.0..2000.0).contains(&value), "{name}={value}");
                }
            }
        }
    }

    #[test]
    fn the_red_stretches_are_where_a_node_was_silent() {
        let ms = Duration::from_millis;
        let own = [ms(100), ms(200), ms(900), ms(1000)];
        assert_eq!(silences(&own, &(ms(0)..ms(1100))), [(ms(200), ms(900))]);
        assert_eq!(silences(&[], &(ms(0)..ms(400))), [(ms(0), ms(400))]);
        let text = svg(&sample(), 1);
        let document = Document::parse(&text).expect("it is XML");
        // Each node of each of the two panels once.
        assert_eq!(classes(&document, "silent").len(), 6);
        assert_eq!(classes(&document, "stall").len(), 2);
    }
}
