//! Directories that a process without descriptors cannot read. Alone in its file: the limit is the process's.

use std::error::Error;
use std::fs::{File, create_dir, write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use dromon_node::spool::MapFile;
use dromon_node::tcp::{Brake, Host, Tcp};
use dromon_node::{EngineError, Engines, Position};
use dromon_order::sequencer::{InMemory, PieceStore};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

struct Bare;

impl Host for Bare {
    fn event(&self, _: &str) {}

    fn admit(&self, _: IpAddr) -> Result<(), String> {
        Ok(())
    }

    fn map_file(&self) -> MapFile {
        Arc::new(|_, _| Err(std::io::Error::other("none here")))
    }

    fn recover_position(&self, _: &Path) -> Result<Position, String> {
        Err("none here".to_owned())
    }

    fn memory(&self) -> (u64, u64) {
        (0, 0)
    }

    fn forget_memory_peak(&self) {}

    fn brake(&self) -> Option<Arc<dyn Brake>> {
        None
    }
}

#[test]
fn a_directory_that_cannot_be_read_is_not_taken_for_one_without_contents()
-> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let db = dir.path().join("db");
    create_dir(&db)?;
    write(db.join("t#P#p.par"), "partitions")?;
    let few = Rlimit {
        current: Some(64),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, few)?;
    let engines = Tcp::new(Arc::new(Bare));
    // The data directory, the database's, and the file there are open at once.
    for (left, enough) in [(0, false), (1, false), (2, false), (3, true)] {
        let mut taken: Vec<File> = std::iter::from_fn(|| File::open(&db).ok()).collect();
        taken.truncate(taken.len() - left);
        let synced = engines.sync_definitions(dir.path(), SystemTime::now());
        assert_eq!(synced.is_ok(), enough, "{left}: {synced:?}");
        // A log, if there is one, lies in the directory.
        let found = engines.inspect(dir.path()).map(|log| log.is_some());
        let pieces: (Box<dyn PieceStore>, u64) = (Box::new(InMemory), 1 << 20);
        let sum = engines.log_sum(dir.path(), Position::UNDEFINED, pieces);
        match left {
            0 => {
                assert!(matches!(found, Err(EngineError::Other(_))), "{found:?}");
                assert!(sum.is_err(), "{sum:?}");
            }
            _ => {
                assert!(matches!(found, Ok(false)), "{found:?}");
                assert_eq!(sum, Ok(None));
            }
        }
    }
    let found = engines.inspect(&dir.path().join("nowhere"));
    assert!(matches!(found, Ok(None)), "{found:?}");
    Ok(())
}
