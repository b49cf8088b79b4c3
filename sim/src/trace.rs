//! What happened, in one line each: hashed, and the last lines kept.

use std::collections::VecDeque;
use std::fmt::Write;

use twox_hash::XxHash3_64;

/// Lines kept for the report of a violation.
const KEPT: usize = 80;

/// The trace of one run.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    lines: VecDeque<String>,
    count: u64,
    print: bool,
}

impl Trace {
    /// An empty trace; with `print`, every line goes to standard output too.
    pub fn new(print: bool) -> Self {
        Trace {
            hash: 0,
            lines: VecDeque::new(),
            count: 0,
            print,
        }
    }

    /// Adds a line about `slot` (`None`: the world) at `now_us`.
    pub fn line(&mut self, now_us: u64, slot: Option<usize>, what: std::fmt::Arguments<'_>) {
        let mut line = if self.lines.len() == KEPT {
            self.lines.pop_front().unwrap_or_default()
        } else {
            String::with_capacity(100)
        };
        line.clear();
        // Writing into a string has no way to fail.
        let _ = write!(
            line,
            "{:>6}.{:03} ",
            now_us / 1_000_000,
            now_us / 1000 % 1000
        );
        let _ = match slot {
            Some(slot) => write!(line, "n{slot} "),
            None => write!(line, "-- "),
        };
        let _ = line.write_fmt(what);
        self.hash = XxHash3_64::oneshot_with_seed(self.hash, line.as_bytes());
        self.count += 1;
        if self.print {
            println!("{line}");
        }
        self.lines.push_back(line);
    }

    /// A hash of every line so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How many lines there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The last lines.
    pub fn tail(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_covers_every_line_and_the_tail_is_bounded() {
        let mut a = Trace::new(false);
        let mut b = Trace::new(false);
        for i in 0..200 {
            a.line(i * 1000, Some(1), format_args!("line {i}"));
            b.line(i * 1000, Some(1), format_args!("line {}", i.max(1)));
        }
        assert_ne!(a.hash(), b.hash(), "one early line differs");
        assert_eq!((a.tail().len(), a.count()), (KEPT, 200));
        assert_eq!(a.tail(), b.tail());
    }
}
