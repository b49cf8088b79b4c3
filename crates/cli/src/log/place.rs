//! Places in a log, as they are typed.

use std::str::FromStr;

/// Where in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// By the number that the server shows.
    Seqno(i64),
    /// By the number in the log.
    Index(u64),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let place = match text.split_once(':') {
            Some(("index", n)) => n.parse().ok().map(Place::Index),
            Some(("seqno", n)) => n.parse().ok().map(Place::Seqno),
            Some(_) => None,
            None => text.parse().ok().map(Place::Seqno),
        };
        place.ok_or_else(|| {
            format!("'{text}' is no place in a log: write a seqno (500) or a log index (index:700)")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seqnos_and_indexes() {
        assert_eq!("500".parse(), Ok(Place::Seqno(500)));
        assert_eq!("seqno:500".parse(), Ok(Place::Seqno(500)));
        assert_eq!("index:7".parse(), Ok(Place::Index(7)));
        for wrong in ["", "x", "index:", "index:-1", "row:1", "1:2"] {
            let why = wrong.parse::<Place>().expect_err("no place");
            assert!(why.contains("index:700"), "{why}");
        }
    }
}
