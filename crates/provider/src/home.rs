//! Where the server says its data directory is.
//!
//! `wsrep_data_home_dir` may name another directory than `datadir`. What is taken for the data directory is
//! synced for the database's data, and guarded against what a full copy does in it.

use std::fs::canonicalize;
use std::path::Path;

/// Why a server that stands in its data directory `here` cannot pass `given` for it.
pub(crate) fn is_apart(here: &Path, given: &Path) -> Option<String> {
    let (data, home) = (canonicalize(here).ok()?, canonicalize(given).ok()?);
    (data != home).then(|| {
        let (data, home) = (data.display(), home.display());
        format!(
            "wsrep_data_home_dir is {home}, which is not the data directory {data}. What is synced before the log is cut \
             would be the wrong file system, and a full copy (SST) could replace this node's log while it runs. So it does \
             not start. Nothing was changed. Remove wsrep_data_home_dir; to leave the state files and the log where they \
             are, set base_dir={home};gcache.dir={home} in wsrep_provider_options, unless that is below the data directory"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_apart_from_the_data_directory_is_refused() {
        let dir = std::env::temp_dir().join(format!("dromon-home-{}", std::process::id()));
        let [data, beside, below] = ["data", "beside", "data/wsrep"].map(|d| dir.join(d));
        for dir in [&below, &beside] {
            std::fs::create_dir_all(dir).expect("a directory");
        }
        let link = dir.join("link");
        std::os::unix::fs::symlink(&data, &link).expect("a link");
        let same = [&data, &link, &beside.join("../data/")].map(|at| is_apart(&data, at));
        let apart = [&beside, &below].map(|at| (at.display(), is_apart(&data, at)));
        std::fs::remove_dir_all(&dir).expect("it was made here");
        assert_eq!(same, [None, None, None]);
        for (at, why) in apart {
            let why = why.expect("it is another one");
            assert!(why.contains(&format!("gcache.dir={at} in")), "{why}");
        }
    }
}
