//! A process that has no descriptor left. Alone in its file: the limit is the process's.

use std::error::Error;
use std::fs::File;

use dromon_node::Position;
use dromon_node::ddl_marks::{MARKS_FILE, Mark, Marks, Progress};
use dromon_writeset::Uuid;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_statement_is_noted_all_the_same() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let mut marks = Marks::open(dir.path(), dir.path())?;
    marks.runs()?;
    let few = Rlimit {
        current: Some(64),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, few)?;
    let mut taken: Vec<File> = std::iter::from_fn(|| File::open(dir.path()).ok()).collect();
    let mark = |seqno, progress| Mark {
        at: Position {
            history: Uuid([7; 16]),
            seqno,
        },
        progress,
        untold: 0,
        former: None,
    };
    marks.write(mark(5, Progress::Begun))?;
    marks.write(mark(5, Progress::Ended { ok: true }))?;
    // A copy has replaced it: now one is needed.
    std::fs::rename(dir.path().join(MARKS_FILE), dir.path().join("before"))?;
    assert!(marks.write(mark(6, Progress::Begun)).is_err());
    taken.truncate(taken.len() - 2);
    marks.write(mark(6, Progress::Begun))?;
    drop(taken);
    let read = Marks::open(dir.path(), dir.path())?.newest();
    assert_eq!(read, Some(mark(6, Progress::Begun)));
    Ok(())
}
