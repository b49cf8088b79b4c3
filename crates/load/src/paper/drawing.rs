//! Charts, as SVG.

use std::fmt::Write as _;

/// Of text and axes.
pub const INK: &str = "#24292f";
/// Of frames and grids.
pub const FAINT: &str = "#d0d7de";

/// An SVG in the making.
#[derive(Debug, Default)]
pub struct Drawing(pub String);

impl Drawing {
    /// Begins one of this size, white, with a title and a description for readers
    /// who do not see it.
    #[must_use]
    pub fn begin(width: f64, height: f64, title: &str, description: &str) -> Self {
        let mut out = Self::default();
        out.add(format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" font-family="sans-serif" font-size="11" fill="{INK}" role="img">"#
        ));
        out.add(format_args!("<title>{}</title>", escape(title)));
        out.add(format_args!("<desc>{}</desc>", escape(description)));
        out.add(format_args!(
            r##"<rect width="100%" height="100%" fill="#ffffff"/>"##
        ));
        out
    }

    /// The whole of it.
    #[must_use]
    pub fn end(mut self) -> String {
        self.add(format_args!("</svg>"));
        self.0
    }

    /// Adds an element.
    pub fn add(&mut self, line: std::fmt::Arguments) {
        writeln!(self.0, "{line}").expect("writing to a String cannot fail");
    }

    /// Adds words; `anchor` is `start`, `middle` or `end`.
    pub fn text(&mut self, x: f64, y: f64, size: u32, anchor: &str, fill: &str, text: &str) {
        let text = escape(text);
        self.add(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">{text}</text>"#
        ));
    }
}

/// For XML text; what XML cannot hold at all becomes a blank.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// The next higher of 1, 1.5, 2, 3, 5 and their tenfolds, for the end of an axis.
#[must_use]
pub fn nice(value: f64) -> f64 {
    if !(value.is_finite() && value > 0.0) {
        return 1.0;
    }
    let unit = 10f64.powf(value.log10().floor());
    [1.0, 1.5, 2.0, 3.0, 5.0, 10.0]
        .into_iter()
        .map(|n| n * unit)
        .find(|n| *n >= value * 0.999_999)
        .unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, top) in [
            (0.7, 1.0),
            (1.0, 1.0),
            (1.2, 1.5),
            (333.0, 500.0),
            (600.0, 1000.0),
        ] {
            assert!((nice(value) - top).abs() < 1e-9, "{value}: {}", nice(value));
        }
        assert_eq!(nice(0.0), 1.0);
        assert_eq!(nice(f64::NAN), 1.0);
    }

    #[test]
    fn words_of_others_stay_words() {
        let mut drawing = Drawing::begin(10.0, 20.0, "a<b", "x & y");
        drawing.text(1.0, 2.0, 9, "end", INK, "<\u{1}&>");
        let text = drawing.end();
        assert!(text.contains("<title>a&lt;b</title>") && text.contains("x &amp; y"));
        assert!(text.contains(">&lt; &amp;&gt;</text>"), "{text}");
        assert!(text.ends_with("</svg>\n"));
    }
}
