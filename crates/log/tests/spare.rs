//! A process that has no descriptor left. Alone in its file: the limit is the process's.

use dromon_log::{Device, DirDevice};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::error::Error;
use std::fs::File;

#[test]
fn the_spare_descriptor_makes_one_file_more() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let device = DirDevice::open(dir.path())?;
    let few = Rlimit {
        current: Some(64),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, few)?;
    let mut taken: Vec<File> = std::iter::from_fn(|| File::open(dir.path()).ok()).collect();
    assert_eq!(device.list()?, [""; 0]);
    assert_eq!(device.list()?, [""; 0], "it has it again");
    let one = device.create("one")?;
    assert!(device.create("two").is_err());
    // It is taken again when there is one.
    taken.pop();
    assert_eq!(device.list()?, ["one"]);
    taken.extend(std::iter::from_fn(|| File::open(dir.path()).ok()));
    let two = device.create("two")?;
    drop((one, two, taken));
    Ok(())
}
