//! An endless series of waiting times between retries.
//!
//! Stand-in for the crate of the same name, whose licence we cannot link; it
//! was written from openraft's use of it alone. Only a single constant delay
//! is understood: a number with the unit `us`, `ms` or `s`.

use std::error::Error;
use std::fmt;
use std::iter::Repeat;
use std::time::Duration;

/// A constant delay, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffSeries(Duration);

impl BackoffSeries {
    /// Reads a delay like `200ms`.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let bad = || ParseError(text.to_owned());
        let trimmed = text.trim();
        let digits = trimmed
            .find(|c: char| !c.is_ascii_digit())
            .ok_or_else(bad)?;
        let (number, unit) = trimmed.split_at(digits);
        let number: u64 = number.parse().map_err(|_| bad())?;
        match unit {
            "us" => Ok(BackoffSeries(Duration::from_micros(number))),
            "ms" => Ok(BackoffSeries(Duration::from_millis(number))),
            "s" => Ok(BackoffSeries(Duration::from_secs(number))),
            _ => Err(bad()),
        }
    }

    /// The delays, one for each retry.
    pub fn build(&self) -> Repeat<Duration> {
        std::iter::repeat(self.0)
    }
}

/// The text was not a number with a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError(String);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a delay: expected a number and us, ms or s",
            self.0
        )
    }
}

impl Error for ParseError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_delays() {
        let first = |t| BackoffSeries::parse(t).map(|s| s.build().next());
        assert_eq!(first("200ms"), Ok(Some(Duration::from_millis(200))));
        assert_eq!(first(" 1s "), Ok(Some(Duration::from_secs(1))));
        for bad in ["", "12", "ms", "1h", "99999999999999999999s"] {
            assert!(BackoffSeries::parse(bad).is_err(), "{bad}");
        }
    }
}
