//! What experiments on real servers have in common: rounds, names, places.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, bail};

/// Told what happens, line by line.
pub type Say<'a> = &'a dyn Fn(&str);

/// What is measured in a round, from 1: forth, and back in the next one, so that a slow drift of
/// the machine hits all alike.
#[must_use]
pub fn forth_and_back<T>(mut all: Vec<T>, round: usize) -> Vec<T> {
    if round.is_multiple_of(2) {
        all.reverse();
    }
    all
}

/// Each value once, in the order in which they are met first.
#[must_use]
pub fn unique<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

/// Refuses a list that names one thing twice.
///
/// # Errors
/// A sentence with that name.
pub fn refuse_twice<T: PartialEq + fmt::Display>(what: &str, all: &[T]) -> anyhow::Result<()> {
    match (1..all.len()).find(|i| all[..*i].contains(&all[*i])) {
        Some(twice) => bail!("The {what} {} is named twice", all[twice]),
        None => Ok(()),
    }
}

/// What a title says of more rounds than one.
#[must_use]
pub fn in_rounds(rounds: usize) -> String {
    match rounds {
        0 | 1 => String::new(),
        n => format!("; {n} rounds"),
    }
}

/// The number in what `mariadbd --version` says.
#[must_use]
pub fn version(line: &str) -> &str {
    let is_number = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
    let word = line.split_whitespace().find(is_number).unwrap_or(line);
    word.split('-').next().unwrap_or(word)
}

/// Makes a directory that the servers' user can enter, unless it is there.
///
/// # Errors
/// When it cannot be made.
pub fn make_place(dir: &Path) -> anyhow::Result<()> {
    if !dir.exists() {
        fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("setting the mode of {}", dir.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_go_forth_and_back() {
        assert_eq!(forth_and_back(vec![1, 2, 3], 1), [1, 2, 3]);
        assert_eq!(forth_and_back(vec![1, 2, 3], 2), [3, 2, 1]);
        assert_eq!(forth_and_back(vec![1, 2, 3], 3), [1, 2, 3]);
        assert_eq!(
            (in_rounds(1).as_str(), in_rounds(3).as_str()),
            ("", "; 3 rounds")
        );
    }

    #[test]
    fn names_are_taken_once() {
        assert_eq!(unique(["b", "a", "b", "c", "a"]), ["b", "a", "c"]);
        assert!(refuse_twice("mode", &["a", "b"]).is_ok());
        let error = refuse_twice("mode", &["a", "b", "a"]).expect_err("twice");
        assert_eq!(error.to_string(), "The mode a is named twice");
    }

    #[test]
    fn the_number_of_a_version_is_found() {
        for (line, number) in [
            ("mariadbd  Ver 10.11.6-MariaDB for Linux", "10.11.6"),
            ("/usr/sbin/mariadbd  Ver 11.8.3-MariaDB-1 for x", "11.8.3"),
            ("10.11", "10.11"),
            ("unknown", "unknown"),
        ] {
            assert_eq!(version(line), number);
        }
    }

    #[test]
    fn a_place_can_be_entered_by_all_and_is_left_as_it_was() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let mode = |dir: &Path| fs::metadata(dir).expect("there").permissions().mode() & 0o777;
        let new = home.path().join("a/b");
        make_place(&new).expect("made");
        assert_eq!(mode(&new), 0o755);
        fs::set_permissions(&new, fs::Permissions::from_mode(0o700)).expect("set");
        make_place(&new).expect("it is there");
        assert_eq!(mode(&new), 0o700);
    }
}
