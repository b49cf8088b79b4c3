//! Prometheus' text format, version 0.0.4.

use std::fmt::Write as _;

/// Families of values, one after the other.
#[derive(Debug)]
pub struct Families {
    prefix: &'static str,
    text: String,
}

impl Families {
    /// All names begin with this.
    pub fn new(prefix: &'static str) -> Families {
        Families {
            prefix,
            text: String::new(),
        }
    }

    /// Begins a family. `kind`: `gauge` or `counter`.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        // Writing to a string does not fail, here and below.
        let _ = writeln!(
            self.text,
            "# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}"
        );
    }

    /// A value of the family that was begun last.
    pub fn value(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let _ = write!(self.text, "{}{name}", self.prefix);
        for (n, (label, text)) in labels.iter().enumerate() {
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(
                self.text,
                "{}{label}=\"{text}\"",
                if n == 0 { '{' } else { ',' }
            );
        }
        let _ = writeln!(
            self.text,
            "{} {value}",
            if labels.is_empty() { "" } else { "}" }
        );
    }

    /// A family of one value without labels.
    pub fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.family(name, kind, help);
        self.value(name, &[], value);
    }

    /// All of it.
    pub fn text(self) -> String {
        self.text
    }

    /// For tests: each family stands there once, with its kind before its values, which are
    /// numbers.
    ///
    /// # Panics
    /// If it is otherwise.
    pub fn check(text: &str) {
        let mut seen = std::collections::BTreeSet::new();
        for line in text.lines() {
            match line.strip_prefix("# TYPE ") {
                Some(rest) => {
                    let name = rest.split(' ').next().unwrap_or_default().to_owned();
                    assert!(seen.insert(name), "twice: {line}");
                }
                None if line.starts_with('#') => {}
                None => {
                    let name = line.split(['{', ' ']).next().unwrap_or_default();
                    assert!(seen.contains(name), "of no family: {line}");
                    let value = line.rsplit(' ').next().unwrap_or_default();
                    assert!(value.parse::<f64>().is_ok(), "no number: {line}");
                }
            }
        }
    }
}
