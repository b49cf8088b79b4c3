//! Names of the files in the relay's directory.

/// Digits that a number has at least, as a server writes them.
const DIGITS: usize = 6;

/// `relay-bin.000001`.
pub fn file_name(prefix: &str, number: u64) -> String {
    format!("{prefix}.{number:0DIGITS$}")
}

/// The number in a name of this prefix; `None` for any other name.
pub fn file_number(prefix: &str, name: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?.strip_prefix('.')?;
    let number = digits.parse().ok()?;
    // `+1` and `1` would be read, but they are not what is written.
    (number > 0 && file_name(prefix, number) == name).then_some(number)
}

/// What a name has before the number, if it is one of such a file, whatever the prefix.
pub fn file_prefix(name: &str) -> Option<&str> {
    let (prefix, _) = name.rsplit_once('.')?;
    file_number(prefix, name).map(|_| prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for n in [1, 999_999, 1_000_000, u64::MAX] {
            assert_eq!(file_number("b", &file_name("b", n)), Some(n));
            assert_eq!(file_prefix(&file_name("b.c", n)), Some("b.c"));
        }
        for name in ["b.1", "b.+00001", "b.000000", "b000001", "c.000001", "b."] {
            assert_eq!(file_number("b", name), None, "{name}");
            assert_eq!(file_prefix(name).filter(|p| *p == "b"), None, "{name}");
        }
    }
}
