//! Comma-separated values, as RFC 4180 has them but for the ends of lines.

/// A file in the making.
#[derive(Debug)]
pub struct Csv {
    text: String,
    columns: usize,
}

impl Csv {
    /// Begins with a line of names.
    #[must_use]
    pub fn new(head: &[&str]) -> Self {
        Self {
            text: line(head),
            columns: head.len(),
        }
    }

    /// Adds a line, which has a cell for each name.
    ///
    /// # Panics
    /// When it has more or fewer: all that read it would take one for another.
    pub fn add<T: AsRef<str>>(&mut self, cells: &[T]) {
        assert_eq!(cells.len(), self.columns, "a cell for each column");
        self.text.push_str(&line(cells));
    }

    /// The whole of it.
    #[must_use]
    pub fn end(self) -> String {
        self.text
    }
}

/// Cells as a line, with its end.
#[must_use]
pub fn line<T: AsRef<str>>(cells: &[T]) -> String {
    let cells: Vec<String> = cells.iter().map(|c| field(c.as_ref())).collect();
    cells.join(",") + "\n"
}

/// A number; nothing where there is none.
#[must_use]
pub fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or(String::new(), |v| format!("{v:.digits$}"))
}

fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text.to_string()
}

/// The cells of a line without its end; none if its quotes do not match. Cells that hold ends of
/// lines are not read.
#[must_use]
pub fn fields(line: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    let mut rest = line;
    loop {
        let (one, behind) = match rest.strip_prefix('"') {
            Some(quoted) => unquoted(quoted)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                let (one, behind) = rest.split_at(end);
                (Some(one.to_string()).filter(|o| !o.contains('"'))?, behind)
            }
        };
        all.push(one);
        match behind.strip_prefix(',') {
            Some(next) => rest = next,
            None => return behind.is_empty().then_some(all),
        }
    }
}

/// What stands before the closing quote, and what behind it.
fn unquoted(mut rest: &str) -> Option<(String, &str)> {
    let mut one = String::new();
    loop {
        let (before, behind) = rest.split_once('"')?;
        one.push_str(before);
        match behind.strip_prefix('"') {
            Some(more) => {
                one.push('"');
                rest = more;
            }
            None => return Some((one, behind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_with_a_comma_is_quoted() {
        let mut csv = Csv::new(&["name", "n"]);
        csv.add(&["a,\"b", "1"]);
        csv.add(&["a b", ""]);
        assert_eq!(csv.end(), "name,n\n\"a,\"\"b\",1\na b,\n");
        assert_eq!(
            (cell(None, 2), cell(Some(0.126), 2)),
            (String::new(), "0.13".into())
        );
    }

    #[test]
    #[should_panic(expected = "a cell for each column")]
    fn no_line_is_shorter_than_its_head() {
        Csv::new(&["a", "b"]).add(&["1"]);
    }

    #[test]
    fn quotes_that_do_not_match_are_no_line() {
        for bad in ["\"a", "\"a\"b,c", "a\"b", "a,\"b\"\"", "\""] {
            assert_eq!(fields(bad), None, "{bad}");
        }
        assert_eq!(fields(""), Some(vec![String::new()]));
        assert_eq!(
            fields("a,,"),
            Some(["a", "", ""].map(String::from).to_vec())
        );
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(cells in proptest::collection::vec("[a\",x ]{0,6}", 1..5)) {
            let text = line(&cells);
            prop_assert_eq!(fields(text.trim_end_matches('\n')), Some(cells));
        }
    }
}
