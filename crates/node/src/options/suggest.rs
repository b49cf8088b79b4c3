//! Which known name was probably meant.

use super::table::TABLE;

/// The known option that is closest to a misspelt name, if one is close.
///
/// Tried in this order: the same letters in another case; the name under which
/// newer servers show it (`wsrep_provider_gcs_fc_limit`); the name without its
/// group (`fc_limit`); the smallest edit distance. Ties go to the first in the
/// alphabet.
pub(super) fn closest(wrong: &str) -> Option<&'static str> {
    let wrong = wrong.trim().to_ascii_lowercase();
    let wrong = wrong.replace('-', "_");
    let short = wrong.strip_prefix("wsrep_provider_").unwrap_or(&wrong);
    let flat = short.replace('.', "_");
    let names = || TABLE.iter().map(|s| s.name);
    if let Some(name) = names().find(|n| n.replace('.', "_") == flat) {
        return Some(name);
    }
    if short.len() >= 4 {
        let mut without_group = names().filter(|n| n.split_once('.').is_some_and(|p| p.1 == short));
        if let (Some(name), None) = (without_group.next(), without_group.next()) {
            return Some(name);
        }
    }
    let limit = (short.chars().count() / 3).min(3);
    names()
        .map(|n| (distance(short, n), n))
        .filter(|(d, _)| *d <= limit)
        .min_by_key(|(d, _)| *d)
        .map(|(_, n)| n)
}

/// Edits between two texts: insertion, deletion, substitution, and a swap of
/// neighbours (the restricted Damerau-Levenshtein distance).
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(64).collect();
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let differ = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (above[j] + 1)
                .min(row[j - 1] + 1)
                .min(above[j - 1] + differ);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row[j] = best;
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_names_find_their_option() {
        for (wrong, right) in [
            ("gmcasts.segment", Some("gmcast.segment")),
            ("gcache.sise", Some("gcache.size")),
            ("GCS.FC_LIMIT", Some("gcs.fc_limit")),
            ("gcs.fclimit", Some("gcs.fc_limit")),
            ("gcs_fc_limit", Some("gcs.fc_limit")),
            ("gcs.fc-limit", Some("gcs.fc_limit")),
            ("wsrep_provider_gcs_fc_limit", Some("gcs.fc_limit")),
            ("fc_limit", Some("gcs.fc_limit")),
            ("evs.suspect_timout", Some("evs.suspect_timeout")),
            ("evs.supsect_timeout", Some("evs.suspect_timeout")),
            ("pc.ignore_split_brain", None),
            ("pc.wieght", Some("pc.weight")),
            ("dromon.durablity", Some("dromon.durability")),
            ("socket.ssl_key_file", None),
            ("a", None),
            ("nope", None),
            ("", None),
            ("dbug", Some("debug")),
        ] {
            assert_eq!(closest(wrong), right, "{wrong}");
        }
    }

    #[test]
    fn one_wrong_letter_always_finds_the_option() {
        for spec in TABLE.iter().filter(|s| s.name.len() >= 6) {
            let mut wrong = spec.name.to_string();
            wrong.replace_range(2..3, "#");
            assert_eq!(closest(&wrong), Some(spec.name), "{wrong}");
        }
    }

    #[test]
    fn distance_counts_edits() {
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "acb"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
