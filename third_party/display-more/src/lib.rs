//! `Display` for options, results, slices and sets.
//!
//! Stand-in for the crate of the same name, whose licence we cannot link; it
//! was written from openraft's use of it alone and covers only that.

use std::collections::BTreeSet;
use std::fmt::{Display, Formatter, Result as FmtResult};

/// How many elements of a list are shown unless told otherwise.
const SHOWN: usize = 5;

/// Shows `None` or the value.
pub struct DisplayOption<'a, T>(&'a Option<T>);

/// Adds `display` to options.
pub trait DisplayOptionExt<T> {
    /// Shows `None` or the value.
    fn display(&self) -> DisplayOption<'_, T>;
}

impl<T: Display> DisplayOptionExt<T> for Option<T> {
    fn display(&self) -> DisplayOption<'_, T> {
        DisplayOption(self)
    }
}

impl<T: Display> Display for DisplayOption<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> FmtResult {
        match self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("None"),
        }
    }
}

/// Shows `Ok(value)` or `Err(error)`.
pub struct DisplayResult<'a, T, E>(&'a Result<T, E>);

/// Adds `display` to results.
pub trait DisplayResultExt<T, E> {
    /// Shows `Ok(value)` or `Err(error)`.
    fn display(&self) -> DisplayResult<'_, T, E>;
}

impl<T: Display, E: Display> DisplayResultExt<T, E> for Result<T, E> {
    fn display(&self) -> DisplayResult<'_, T, E> {
        DisplayResult(self)
    }
}

impl<T: Display, E: Display> Display for DisplayResult<'_, T, E> {
    fn fmt(&self, f: &mut Formatter<'_>) -> FmtResult {
        match self.0 {
            Ok(value) => write!(f, "Ok({value})"),
            Err(error) => write!(f, "Err({error})"),
        }
    }
}

/// Shows the first elements of a slice in brackets.
pub struct DisplaySlice<'a, T>(&'a [T], usize);

/// Adds `display` to slices.
pub trait DisplaySliceExt<T> {
    /// Shows at most `shown` elements.
    fn display_n(&self, shown: usize) -> DisplaySlice<'_, T>;

    /// Shows a few elements.
    fn display(&self) -> DisplaySlice<'_, T> {
        self.display_n(SHOWN)
    }
}

impl<T: Display> DisplaySliceExt<T> for [T] {
    fn display_n(&self, shown: usize) -> DisplaySlice<'_, T> {
        DisplaySlice(self, shown)
    }
}

impl<T: Display> Display for DisplaySlice<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> FmtResult {
        list(f, ["[", "]"], self.0.iter(), self.0.len(), self.1)
    }
}

/// Shows the first elements of a set in braces.
pub struct DisplayBTreeSet<'a, T>(&'a BTreeSet<T>, usize);

/// Adds `display` to sets.
pub trait DisplayBTreeSetExt<T> {
    /// Shows at most `shown` elements.
    fn display_n(&self, shown: usize) -> DisplayBTreeSet<'_, T>;

    /// Shows a few elements.
    fn display(&self) -> DisplayBTreeSet<'_, T> {
        self.display_n(SHOWN)
    }
}

impl<T: Display> DisplayBTreeSetExt<T> for BTreeSet<T> {
    fn display_n(&self, shown: usize) -> DisplayBTreeSet<'_, T> {
        DisplayBTreeSet(self, shown)
    }
}

impl<T: Display> Display for DisplayBTreeSet<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> FmtResult {
        list(f, ["{", "}"], self.0.iter(), self.0.len(), self.1)
    }
}

fn list<'a, T: Display + 'a>(
    f: &mut Formatter<'_>,
    brackets: [&str; 2],
    elements: impl Iterator<Item = &'a T>,
    len: usize,
    shown: usize,
) -> FmtResult {
    f.write_str(brackets[0])?;
    for (i, element) in elements.take(shown).enumerate() {
        if i > 0 {
            f.write_str(",")?;
        }
        element.fmt(f)?;
    }
    if len > shown {
        write!(f, ",..{} more", len - shown)?;
    }
    f.write_str(brackets[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows() {
        assert_eq!(Some(3).display().to_string(), "3");
        assert_eq!(None::<u8>.display().to_string(), "None");
        assert_eq!(Ok::<_, u8>(1).display().to_string(), "Ok(1)");
        assert_eq!([1, 2, 3][..].display_n(2).to_string(), "[1,2,..1 more]");
        assert_eq!(BTreeSet::from([2, 1]).display().to_string(), "{1,2}");
    }
}
