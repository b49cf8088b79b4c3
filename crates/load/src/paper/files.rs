//! The files of a run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

/// Results are never written over: a directory with something in it is refused.
///
/// # Errors
/// A sentence that says what to do instead.
pub fn refuse_results(out: &Path) -> anyhow::Result<()> {
    if !out.exists() {
        return Ok(());
    }
    ensure!(
        out.is_dir(),
        "--out {} is a file; name a directory",
        out.display()
    );
    let entry = fs::read_dir(out)?.flatten().next();
    if let Some(entry) = entry {
        bail!(
            "--out {} holds {} already and nothing was touched; name a new or empty directory",
            out.display(),
            entry.file_name().to_string_lossy()
        );
    }
    Ok(())
}

/// Writes these files into `dir`, which is made if it is not there; returns their paths.
///
/// # Errors
/// When a file cannot be written.
pub fn write_files<N: AsRef<Path>>(
    dir: &Path,
    files: impl IntoIterator<Item = (N, String)>,
) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let mut written = Vec::new();
    for (name, text) in files {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        written.push(path);
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_written_into_a_new_directory_and_never_over_others() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let dir = home.path().join("new");
        refuse_results(&dir).expect("it is not there");
        let written = write_files(&dir, [("a.csv", "1\n".to_string())]).expect("written");
        assert_eq!(written, [dir.join("a.csv")]);
        assert_eq!(fs::read_to_string(&written[0]).expect("there"), "1\n");
        let error = refuse_results(&dir)
            .expect_err("it holds something")
            .to_string();
        assert!(
            error.contains("a.csv") && error.contains("nothing was touched"),
            "{error}"
        );
        let error = refuse_results(&written[0]).expect_err("a file").to_string();
        assert!(error.contains("is a file"), "{error}");
        let error = write_files(&written[0], [("b", String::new())]).expect_err("no directory");
        assert!(format!("{error:#}").contains("a.csv"), "{error:#}");
    }
}
