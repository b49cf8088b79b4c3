//! Tables of text.

/// Rows of cells below one another: the first `names` columns to the left, the others to
/// the right.
#[must_use]
pub fn aligned(rows: &[Vec<String>], names: usize) -> String {
    let mut widths = vec![0; rows.iter().map(Vec::len).max().unwrap_or(0)];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(i, (cell, width))| match i < names {
                true => format!("{cell:<width$}"),
                false => format!("{cell:>width$}"),
            })
            .collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// A number for a table; a dash where there is none.
#[must_use]
pub fn number(value: Option<f64>, digits: usize) -> String {
    match value {
        Some(value) if value.is_finite() => format!("{value:.digits$}"),
        _ => "-".into(),
    }
}

/// A text with further lines below it.
#[must_use]
pub fn with_notes(text: String, notes: impl IntoIterator<Item = String>) -> String {
    let mut out = text;
    for note in notes {
        out.push('\n');
        out.push_str(&note);
    }
    out.truncate(out.trim_end().len());
    out + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_left_and_numbers_right() {
        let rows = [["name", "n", "m"], ["x", "10", "7"]];
        let rows = rows.map(|row| row.map(String::from).to_vec());
        assert_eq!(aligned(&rows, 1), "name   n  m\nx     10  7\n");
        assert_eq!(aligned(&rows, 2), "name  n   m\nx     10  7\n");
        assert_eq!(aligned(&[], 1), "");
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        assert_eq!(number(None, 1), "-");
        assert_eq!(number(Some(f64::NAN), 1), "-");
        assert_eq!(number(Some(f64::INFINITY), 1), "-");
        assert_eq!(number(Some(2.345), 1), "2.3");
    }

    #[test]
    fn notes_stand_below_and_the_last_line_ends() {
        let notes = |all: &[&str]| all.iter().map(|n| (*n).to_string()).collect::<Vec<_>>();
        assert_eq!(with_notes("a\n".into(), notes(&[])), "a\n");
        assert_eq!(with_notes("a\n".into(), notes(&["b", "c"])), "a\n\nb\nc\n");
    }
}
