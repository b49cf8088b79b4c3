//! Panels side by side: all of one size, below a head.

use super::{Drawing, INK};

/// Where panels stand. Lengths are pixels; within a panel they count from its upper left corner.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Panels {
    /// Size of the area in which a panel is drawn.
    pub width: f64,
    /// See `width`.
    pub height: f64,
    /// Room on the left of it, for the labels of its axis.
    pub left: f64,
    /// Room above it, for the panel's title.
    pub above: f64,
    /// Room below it, for the labels of its other axis.
    pub below: f64,
    /// Between panels and around all of them.
    pub gap: f64,
    /// Height of what stands above all panels: title, subtitle, legend.
    pub head: f64,
}

impl Panels {
    /// Where the area ends.
    #[must_use]
    pub fn right(&self) -> f64 {
        self.left + self.width
    }

    /// See [`Self::right`].
    #[must_use]
    pub fn bottom(&self) -> f64 {
        self.above + self.height
    }

    /// Width of a column.
    fn column(&self) -> f64 {
        self.left + self.width + self.gap
    }

    /// Height of a row.
    fn row(&self) -> f64 {
        self.above + self.height + self.below + self.gap
    }

    /// Width of a drawing of so many columns.
    #[must_use]
    pub fn across(&self, columns: usize) -> f64 {
        self.gap + self.column() * columns as f64
    }

    /// Begins a drawing of so many rows, with a title and what is said below it; `description` is
    /// for readers who do not see it.
    #[must_use]
    pub fn begin(
        &self,
        (width, rows): (f64, usize),
        title: &str,
        subtitle: &str,
        description: &str,
    ) -> Drawing {
        let height = self.head + self.row() * rows as f64;
        let mut out = Drawing::begin(width, height, title, description);
        out.text(self.gap, 22.0, 13, "start", INK, title);
        out.text(self.gap, 42.0, 11, "start", INK, subtitle);
        out
    }

    /// Draws one panel at its place, counted from 0.
    pub fn panel(
        &self,
        out: &mut Drawing,
        (row, column): (usize, usize),
        draw: impl FnOnce(&mut Drawing),
    ) {
        let x = self.gap + self.column() * column as f64;
        let y = self.head + self.row() * row as f64;
        out.add(format_args!(
            r#"<g class="panel" transform="translate({x:.1} {y:.1})">"#
        ));
        draw(out);
        out.add(format_args!("</g>"));
    }

    /// A line across the area, with its label on the left.
    pub fn level(&self, out: &mut Drawing, y: f64, stroke: &str, label: &str) {
        let (left, right) = (self.left, self.right());
        out.add(format_args!(
            r#"<line x1="{left}" x2="{right:.1}" y1="{y:.1}" y2="{y:.1}" stroke="{stroke}"/>"#
        ));
        out.text(left - 6.0, y + 4.0, 11, "end", INK, label);
    }

    /// A mark at the lower edge, with its label so far below it.
    pub fn tick(&self, out: &mut Drawing, x: f64, down: f64, label: &str) {
        let bottom = self.bottom();
        out.add(format_args!(
            r#"<line x1="{x:.1}" x2="{x:.1}" y1="{bottom:.1}" y2="{:.1}" stroke="{INK}"/>"#,
            bottom + 3.0
        ));
        out.text(x, bottom + down, 11, "middle", INK, label);
    }

    /// Words in the middle of a panel that has nothing to show.
    pub fn instead(&self, out: &mut Drawing, words: &str) {
        let middle = self.above + self.height / 2.0;
        out.text(self.left + 8.0, middle, 11, "start", INK, words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PANELS: Panels = Panels {
        width: 100.0,
        height: 50.0,
        left: 10.0,
        above: 20.0,
        below: 5.0,
        gap: 4.0,
        head: 60.0,
    };

    #[test]
    fn panels_stand_beside_and_below_one_another() {
        assert_eq!((PANELS.right(), PANELS.bottom()), (110.0, 70.0));
        let width = PANELS.across(2);
        assert_eq!(width, 4.0 + 2.0 * 114.0);
        let mut out = PANELS.begin((width, 3), "t", "s", "d");
        PANELS.panel(&mut out, (2, 1), |out| {
            PANELS.level(out, 30.0, "#123456", "7");
            PANELS.tick(out, 60.0, 16.0, "8");
            PANELS.instead(out, "nothing");
        });
        let text = out.end();
        // The head and three rows of 79.
        assert!(text.contains(r#"viewBox="0 0 232 297""#), "{text}");
        assert!(
            text.contains(r#"transform="translate(118.0 218.0)""#),
            "{text}"
        );
        for part in [
            r##"<line x1="10" x2="110.0" y1="30.0" y2="30.0" stroke="#123456"/>"##,
            r##"<line x1="60.0" x2="60.0" y1="70.0" y2="73.0""##,
            r#"<text x="60.0" y="86.0""#,
            r#"<text x="18.0" y="45.0""#,
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }
}
