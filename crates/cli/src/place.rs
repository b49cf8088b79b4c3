//! Where the cluster lies when the user does not say.

use std::ffi::{OsStr, OsString};
use std::fs;
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

/// What to type for this program: its name where PATH leads to the same file, else as it was called.
pub fn program() -> String {
    let called = std::env::args_os().next().unwrap_or_default();
    let own = std::env::current_exe().unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    typed(&called, &own, &path)
}

fn typed(called: &OsString, own: &Path, path: &OsStr) -> String {
    let own = fs::canonicalize(own).ok();
    // The first one is what a shell takes.
    let mut found = std::env::split_paths(path).map(|dir| dir.join("dromon"));
    let found = found.find(|program| program.is_file());
    let is_found = found.is_some_and(|f| own.is_some() && fs::canonicalize(f).ok() == own);
    let called = called.to_string_lossy();
    let is_plain = |c: char| c.is_alphanumeric() || "/._+-".contains(c);
    match called.chars().all(is_plain) {
        _ if is_found || called.is_empty() => "dromon".into(),
        true => called.into_owned(),
        false => format!("'{}'", called.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_name_is_enough_where_the_path_leads_to_it() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (bin, link) = (dir.path().join("bin"), dir.path().join("link"));
        let own = dir.path().join("dromon");
        for dir in [&bin, &link] {
            fs::create_dir(dir).expect("made");
        }
        fs::write(&own, "").expect("written");
        fs::write(bin.join("dromon"), "").expect("written");
        std::os::unix::fs::symlink(&own, link.join("dromon")).expect("linked");
        let path = |dirs: &[&Path]| std::env::join_paths(dirs).expect("a PATH");
        let typed = |called: &str, dirs: &[&Path]| typed(&called.into(), &own, &path(dirs));
        let called = "target/release/dromon";
        assert_eq!(typed(called, &[]), called);
        assert_eq!(typed(called, &[&link]), "dromon");
        assert_eq!(typed(called, &[&bin, &link]), called, "another one first");
        assert_eq!(typed("my it's/dromon", &[]), r"'my it'\''s/dromon'");
    }

    #[test]
    fn the_users_word_wins_then_the_state_home_then_here() {
        let (dir, home) = (Path::new("/a"), Path::new("/state"));
        assert_eq!(pick(Some(dir), Some(home), |_| true), dir);
        assert_eq!(pick(None, Some(home), |_| true), Path::new("/state/dromon"));
        assert_eq!(pick(None, None, |_| true), Path::new(".dromon"));
        assert_eq!(pick(None, None, |_| false), Path::new("/var/tmp/dromon"));
    }
}
