//! Sets of MySQL's GTIDs: which transactions a server has, or a file begins behind.
//!
//! ```text
//! text     uuid:1-4:7,uuid:3-999
//! bytes    count u64, then for each source: uuid, count of intervals u64, and for
//!          each a begin u64 and an end u64, which is behind the last one
//! ```
//!
//! The bytes stand in Previous_gtids events and in COM_BINLOG_DUMP_GTID. Sets with tags (MySQL 8.3)
//! say so in the count's highest byte and are refused.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::bytes::Reader;
use crate::error::{EventError, Flaw};
use crate::header::EventType;
use crate::mysql_gtid::uuid_text;

/// Behind the highest number that a GTID may have.
const END_MAX: u64 = i64::MAX as u64;

/// A set of GTIDs of MySQL. Equal sets are equal values, whatever they were made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GtidSet {
    /// No source is without intervals. These rise, and between two is a hole; the end is behind
    /// the last one.
    sources: BTreeMap<[u8; 16], Vec<(u64, u64)>>,
}

/// A text that is no set of GTIDs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is no set of GTIDs of MySQL ({why}); one looks like 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-23:42"
)]
pub struct ParseGtidSetError {
    /// The part that cannot be read.
    pub text: String,
    /// Why.
    pub why: &'static str,
}

impl GtidSet {
    /// Nothing.
    pub fn new() -> GtidSet {
        GtidSet::default()
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Whether a transaction can have this number.
    pub fn is_number(number: u64) -> bool {
        (1..END_MAX).contains(&number)
    }

    /// The sources, and of each the intervals; an end is behind the last one.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8; 16], &[(u64, u64)])> {
        self.sources
            .iter()
            .map(|(source, list)| (source, &list[..]))
    }

    /// Whether anything of this source is in it.
    pub fn knows(&self, source: &[u8; 16]) -> bool {
        self.sources.contains_key(source)
    }

    /// Whether this one is in it.
    pub fn contains(&self, source: &[u8; 16], number: u64) -> bool {
        let Some(list) = self.sources.get(source) else {
            return false;
        };
        let behind = list.partition_point(|(begin, _)| *begin <= number);
        behind > 0 && number < list[behind - 1].1
    }

    /// Adds one. What no transaction can have is left out.
    pub fn add(&mut self, source: [u8; 16], number: u64) {
        if GtidSet::is_number(number) {
            self.add_interval(source, number, number + 1);
        }
    }

    /// Adds an interval, which is none if it is empty or goes beyond what there can be.
    pub fn add_interval(&mut self, source: [u8; 16], begin: u64, end: u64) {
        if begin == 0 || begin >= end || end > END_MAX {
            return;
        }
        let list = self.sources.entry(source).or_default();
        // Those that overlap it or touch it become one with it.
        let from = list.partition_point(|old| old.1 < begin);
        let to = list.partition_point(|old| old.0 <= end);
        let joined = match list.get(from..to) {
            Some([first, .., last]) => (begin.min(first.0), end.max(last.1)),
            Some([only]) => (begin.min(only.0), end.max(only.1)),
            _ => (begin, end),
        };
        list.splice(from..to, [joined]);
    }

    /// Takes one out.
    pub fn remove(&mut self, source: &[u8; 16], number: u64) {
        let Some(list) = self.sources.get_mut(source) else {
            return;
        };
        let behind = list.partition_point(|(begin, _)| *begin <= number);
        let Some(at) = behind.checked_sub(1).filter(|at| number < list[*at].1) else {
            return;
        };
        let (begin, end) = list[at];
        let rest = [(begin, number), (number + 1, end)];
        list.splice(at..=at, rest.into_iter().filter(|(begin, end)| begin < end));
        if list.is_empty() {
            self.sources.remove(source);
        }
    }

    /// Adds all of another one.
    pub fn unite(&mut self, other: &GtidSet) {
        for (source, list) in &other.sources {
            for (begin, end) in list {
                self.add_interval(*source, *begin, *end);
            }
        }
    }

    /// Whether all of it is in `other`.
    pub fn is_subset(&self, other: &GtidSet) -> bool {
        self.sources.iter().all(|(source, list)| {
            let theirs = other.sources.get(source).map_or(&[][..], |list| &list[..]);
            list.iter().all(|(begin, end)| {
                let behind = theirs.partition_point(|old| old.0 <= *begin);
                behind > 0 && *end <= theirs[behind - 1].1
            })
        })
    }

    /// What is in it and not in `other`.
    #[must_use]
    pub fn minus(&self, other: &GtidSet) -> GtidSet {
        let mut out = GtidSet::new();
        for (source, list) in &self.sources {
            let theirs = other.sources.get(source).map_or(&[][..], |list| &list[..]);
            for (begin, end) in list {
                let mut at = *begin;
                let first = theirs.partition_point(|old| old.1 <= at);
                for (from, to) in theirs[first..].iter().take_while(|old| old.0 < *end) {
                    out.add_interval(*source, at, *from);
                    at = *to;
                }
                out.add_interval(*source, at, *end);
            }
        }
        out
    }

    /// What is in it of sources that `other` has something of.
    #[must_use]
    pub fn of_sources(&self, other: &GtidSet) -> GtidSet {
        let known = self
            .sources
            .iter()
            .filter(|(source, _)| other.knows(source));
        GtidSet {
            sources: known
                .map(|(source, list)| (*source, list.clone()))
                .collect(),
        }
    }

    /// From the bytes of COM_BINLOG_DUMP_GTID.
    ///
    /// # Errors
    /// They are no set, or one with tags.
    pub fn decode(bytes: &[u8]) -> Result<GtidSet, EventError> {
        GtidSet::read(&mut Reader::new(bytes, 0, EventType::PREVIOUS_GTIDS))
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<GtidSet, EventError> {
        let count = r.u64("number of sources")?;
        if count >> 48 != 0 {
            return Err(r.error(Flaw::Unsupported(
                "GTIDs with tags (MySQL 8.3) are not known to this build",
            )));
        }
        let mut set = GtidSet::new();
        for _ in 0..count {
            let source: [u8; 16] = r.array("source")?;
            let count = r.u64("number of intervals")?;
            // As servers read it: intervals of a source rise, and do not touch.
            let mut last = 0;
            for _ in 0..count {
                let begin = r.u64("begin of an interval")?;
                if begin <= last {
                    return Err(r.bad("begin of an interval", begin));
                }
                let end = r.u64("end of an interval")?;
                if end <= begin || end > END_MAX {
                    return Err(r.bad("end of an interval", end));
                }
                last = end;
                set.add_interval(source, begin, end);
            }
        }
        r.end()?;
        Ok(set)
    }

    /// As text of so many bytes at most, and a sign that it goes on: for messages, as a set may be as
    /// long as it likes.
    pub fn shown(&self, max: usize) -> String {
        cut(&self.to_string(), max)
    }

    /// As bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.sources.len() as u64).to_le_bytes());
        for (source, list) in &self.sources {
            out.extend_from_slice(source);
            out.extend_from_slice(&(list.len() as u64).to_le_bytes());
            for (begin, end) in list {
                out.extend_from_slice(&begin.to_le_bytes());
                out.extend_from_slice(&end.to_le_bytes());
            }
        }
    }
}

impl fmt::Display for GtidSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (source, list)) in self.sources.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            write!(f, "{comma}{}", uuid_text(source))?;
            for (begin, end) in list {
                match end - 1 {
                    last if last == *begin => write!(f, ":{begin}")?,
                    last => write!(f, ":{begin}-{last}")?,
                }
            }
        }
        Ok(())
    }
}

impl FromStr for GtidSet {
    type Err = ParseGtidSetError;

    /// As servers show it, with line breaks and in any order.
    fn from_str(text: &str) -> Result<GtidSet, ParseGtidSetError> {
        let mut set = GtidSet::new();
        let parts = text.split(',').map(str::trim);
        for part in parts.filter(|part| !part.is_empty()) {
            let bad = |why| ParseGtidSetError {
                text: cut(part, SHOWN),
                why,
            };
            let mut words = part.split(':').map(str::trim);
            let source = words.next().and_then(uuid);
            let source = source.ok_or_else(|| bad("it does not begin with a uuid"))?;
            let mut any = false;
            for word in words {
                any = true;
                if word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
                    return Err(bad("tags (MySQL 8.3) are not known to this build"));
                }
                let (begin, last) = word.split_once('-').unwrap_or((word, word));
                let number = |text: &str| text.trim().parse::<u64>().ok();
                match (number(begin), number(last)) {
                    (Some(begin), Some(last))
                        if begin <= last
                            && GtidSet::is_number(begin)
                            && GtidSet::is_number(last) =>
                    {
                        set.add_interval(source, begin, last + 1);
                    }
                    _ => return Err(bad("its numbers are none, or in the wrong order")),
                }
            }
            if !any {
                return Err(bad("it has no numbers"));
            }
        }
        Ok(set)
    }
}

/// Of a part that cannot be read, as much is named.
const SHOWN: usize = 100;

/// At most so many bytes.
fn cut(text: &str, max: usize) -> String {
    match text.len() <= max {
        true => text.to_owned(),
        false => format!("{}…", &text[..text.floor_char_boundary(max)]),
    }
}

/// With hyphens or without.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = match text.len() {
        32 => text.bytes().collect(),
        36 => {
            let hyphens = |(n, byte): (usize, u8)| matches!(n, 8 | 13 | 18 | 23) == (byte == b'-');
            if !text.bytes().enumerate().all(hyphens) {
                return None;
            }
            text.bytes().filter(|byte| *byte != b'-').collect()
        }
        _ => return None,
    };
    let mut out = [0; 16];
    for (byte, pair) in out.iter_mut().zip(digits.chunks(2)) {
        let digit = |n: usize| char::from(pair[n]).to_digit(16);
        *byte = (digit(0)? * 16 + digit(1)?) as u8;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    type Model = BTreeSet<([u8; 16], u64)>;

    fn of(model: &Model) -> GtidSet {
        let mut set = GtidSet::new();
        for (source, number) in model {
            set.add(*source, *number);
        }
        set
    }

    fn model(set: &GtidSet) -> Model {
        let numbers = |(source, list): (&[u8; 16], &[(u64, u64)])| {
            let source = *source;
            let list = list.to_vec();
            list.into_iter()
                .flat_map(move |(begin, end)| (begin..end).map(move |n| (source, n)))
        };
        set.iter().flat_map(numbers).collect()
    }

    fn models() -> impl Strategy<Value = Model> {
        let one = (0u8..3, 1u64..24).prop_map(|(source, number)| ([source; 16], number));
        proptest::collection::btree_set(one, 0..40)
    }

    /// What everything relies on.
    fn is_sound(set: &GtidSet) -> bool {
        set.sources.values().all(|list| {
            !list.is_empty()
                && list.iter().all(|(begin, end)| 0 < *begin && begin < end)
                && list.windows(2).all(|w| w[0].1 < w[1].0)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn as_sets_are(
            a in models(), b in models(),
            order in proptest::collection::vec((0u8..3, 1u64..24, 0u64..6), 0..20),
            source in 0u8..3, number in 0u64..26
        ) {
            let (x, y) = (of(&a), of(&b));
            prop_assert!(is_sound(&x));
            prop_assert_eq!(&model(&x), &a);
            prop_assert_eq!(x.is_empty(), a.is_empty());
            prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
            let minus = x.minus(&y);
            prop_assert!(is_sound(&minus));
            prop_assert_eq!(model(&minus), a.difference(&b).copied().collect::<Model>());
            let mut united = x.clone();
            united.unite(&y);
            prop_assert!(is_sound(&united));
            prop_assert_eq!(model(&united), a.union(&b).copied().collect::<Model>());
            let known: BTreeSet<_> = b.iter().map(|(source, _)| *source).collect();
            let shared: Model = a.iter().copied().filter(|(source, _)| known.contains(source)).collect();
            prop_assert_eq!(model(&x.of_sources(&y)), shared);
            let one = ([source; 16], number);
            prop_assert_eq!(x.contains(&one.0, one.1), a.contains(&one));
            let mut without = x.clone();
            without.remove(&one.0, one.1);
            prop_assert!(is_sound(&without));
            prop_assert_eq!(model(&without), a.iter().copied().filter(|g| *g != one).collect::<Model>());
            // Intervals in any order, over each other.
            let (mut set, mut plain) = (x.clone(), a.clone());
            for (source, begin, len) in order {
                set.add_interval([source; 16], begin, begin + len);
                plain.extend((begin..begin + len).map(|n| ([source; 16], n)));
                prop_assert!(is_sound(&set));
            }
            prop_assert_eq!(model(&set), plain);
        }

        #[test]
        fn there_and_back(a in models()) {
            let set = of(&a);
            let mut bytes = Vec::new();
            set.encode(&mut bytes);
            prop_assert_eq!(GtidSet::decode(&bytes), Ok(set.clone()));
            prop_assert_eq!(set.to_string().parse(), Ok(set.clone()));
            for cut in 0..bytes.len() {
                prop_assert!(GtidSet::decode(&bytes[..cut]).is_err());
            }
            bytes.push(0);
            prop_assert!(GtidSet::decode(&bytes).is_err());
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200), count in 0u64..4) {
            let bytes = [&count.to_le_bytes(), &bytes[..]].concat();
            if let Ok(set) = GtidSet::decode(&bytes) {
                prop_assert!(is_sound(&set));
            }
        }

        #[test]
        fn any_text(text in "[0-9a-f:, -]{0,80}") {
            if let Ok(set) = text.parse::<GtidSet>() {
                prop_assert!(is_sound(&set));
                prop_assert_eq!(set.to_string().parse(), Ok(set));
            }
        }
    }

    const A: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";

    #[test]
    fn as_servers_write_it() {
        let set: GtidSet = format!(
            "{}:7:1-4,\n {A}:5 , 3E11FA4771CA11E19E33C80AA9429563:9",
            A.to_uppercase()
        )
        .parse()
        .expect("a set");
        assert_eq!(
            set.to_string(),
            format!("{A}:1-5:7,3e11fa47-71ca-11e1-9e33-c80aa9429563:9")
        );
        assert_eq!("".parse(), Ok(GtidSet::new()));
        for (text, why) in [
            ("x", "does not begin with a uuid"),
            ("0-1-5", "does not begin with a uuid"),
            (A, "no numbers"),
            (&format!("{A}:0"), "its numbers"),
            (&format!("{A}:5-3"), "its numbers"),
            (&format!("{A}:9223372036854775807"), "its numbers"),
            (&format!("{A}:tag:1-3"), "tags"),
        ] {
            let error = text.parse::<GtidSet>().expect_err(text).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn messages_are_short() {
        let mut set = GtidSet::new();
        (1..10_000).for_each(|n| set.add([0xaa; 16], 2 * n));
        let text = set.to_string();
        assert_eq!(set.shown(200), format!("{}…", &text[..200]));
        assert_eq!(set.shown(text.len()), text);
        let wrong = "é".repeat(10_000);
        let error = wrong.parse::<GtidSet>().expect_err("no set").to_string();
        assert!(error.len() < 400 && error.contains("éé…'"), "{error}");
    }

    #[test]
    fn what_no_server_sends() {
        let bytes = |sources: &[(u8, &[(u64, u64)])]| {
            let mut out = (sources.len() as u64).to_le_bytes().to_vec();
            for (source, list) in sources {
                out.extend([*source; 16]);
                out.extend((list.len() as u64).to_le_bytes());
                out.extend(
                    list.iter()
                        .flat_map(|(a, b)| [a.to_le_bytes(), b.to_le_bytes()].concat()),
                );
            }
            out
        };
        // Sources in any order, or twice.
        let set = GtidSet::decode(&bytes(&[(2, &[(1, 3)]), (1, &[(5, 9)]), (2, &[(2, 5)])]));
        let set = set.expect("readable");
        let of = |n: u8| uuid_text(&[n; 16]);
        assert_eq!(set.to_string(), format!("{}:5-8,{}:1-4", of(1), of(2)));
        for bad in [
            &[(0, 3)][..],
            &[(3, 3)],
            &[(3, 2)],
            &[(1, 3), (2, 5)],
            &[(1, 3), (3, 5)],
            &[(5, 7), (1, 2)],
            &[(1, 1 << 63)],
        ] {
            assert!(GtidSet::decode(&bytes(&[(1, bad)])).is_err(), "{bad:?}");
        }
        // More than there is, and tags.
        for count in [1, u64::MAX, 1 << 56, 1 << 40] {
            assert!(GtidSet::decode(&u64::to_le_bytes(count)).is_err());
        }
    }
}
