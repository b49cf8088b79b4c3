//! Which builds may run in one cluster: those of the same two numbers.

use std::sync::LazyLock;

use dromon_order::wire::{VERSION_MAX, VERSION_MIN};

use crate::cluster::ClusterState;

static WORDS: LazyLock<String> = LazyLock::new(|| {
    let protocol = match VERSION_MIN == VERSION_MAX {
        true => VERSION_MAX.to_string(),
        false => format!("{VERSION_MIN} to {VERSION_MAX}"),
    };
    format!(
        "{} (cluster protocol {protocol}, log format {})",
        env!("CARGO_PKG_VERSION"),
        ClusterState::FORMAT
    )
});

/// This build's version, with what nodes refuse each other for.
pub fn words() -> &'static str {
    &WORDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_name_the_numbers_of_this_build() {
        let page = include_str!("../../../docs/wire.md");
        for said in [
            format!("This code speaks version {VERSION_MAX} alone."),
            format!("now {})", ClusterState::FORMAT),
        ] {
            assert!(page.contains(&said), "{said}");
        }
        let page = include_str!("../../../docs/first-cluster.md");
        let printed = format!("`dromon {}`", words());
        assert!(page.contains(&printed), "{printed}");
        assert_eq!(VERSION_MIN, VERSION_MAX, "it speaks one alone");
    }
}
