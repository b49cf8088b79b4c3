//! Where the cluster lies when the user does not say.

use std::path::{Path, PathBuf};

use dromon_sandbox::reachable_by_server;

/// `--dir`, else `$XDG_STATE_HOME/dromon`, else `./.dromon`, else (when user
/// mysql cannot enter the current directory) `/var/tmp/dromon`.
///
/// The same answer from the same directory, so that `status` and `down` find
/// what `up` started.
pub fn choose(dir: Option<&Path>) -> PathBuf {
    let state_home = std::env::var_os("XDG_STATE_HOME")
        .filter(|v| !v.is_empty())
        .map(PathBuf::from);
    pick(dir, state_home.as_deref(), reachable_by_server)
}

fn pick(
    dir: Option<&Path>,
    state_home: Option<&Path>,
    reachable: impl Fn(&Path) -> bool,
) -> PathBuf {
    if let Some(dir) = dir {
        return dir.to_path_buf();
    }
    if let Some(home) = state_home {
        return home.join("dromon");
    }
    let here = PathBuf::from(".dromon");
    if reachable(&here) {
        here
    } else {
        PathBuf::from("/var/tmp/dromon")
    }
}

/// `--dir X` for the hints in messages; empty when the default leads there.
pub fn hint(dir: Option<&Path>) -> String {
    dir.map(|d| format!(" --dir {}", d.display()))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_word_wins_then_the_state_home_then_here() {
        let (dir, home) = (Path::new("/a"), Path::new("/state"));
        assert_eq!(pick(Some(dir), Some(home), |_| true), dir);
        assert_eq!(pick(None, Some(home), |_| true), Path::new("/state/dromon"));
        assert_eq!(pick(None, None, |_| true), Path::new(".dromon"));
        assert_eq!(pick(None, None, |_| false), Path::new("/var/tmp/dromon"));
    }
}
