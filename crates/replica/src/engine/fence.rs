//! Ends what an older session of the channel has left on the target.
//!
//! A target that hears nothing of the end of a connection, because its network was cut or the host of its
//! client died, keeps it for hours, and a transaction that waits for its turn keeps its locks. So each
//! connection of a session has a named lock as long as it lives, by which the next one finds it. What
//! workers run can be rolled back, and is. Of what no rollback takes back the end is waited for.

use std::thread;

use dromon_relay::log::{Level, Log};

use super::settle::{LOOK, SAY};
use super::texts::begun;
use super::{ANOTHER, End, Progress};
use crate::client::{Client, ClientError};
use crate::target::Channel;

/// Error of a KILL that finds nobody.
const NO_CONNECTION: u16 = 1094;

/// Ends all connections of older sessions of this channel, the one over which goes what no rollback takes
/// back behind the statement that it runs. Gives why it must end itself meanwhile.
pub(super) fn fence(
    client: &mut Client,
    channel: &Channel,
    epoch: u64,
    log: &Log,
    progress: &Progress,
) -> Result<Option<End>, ClientError> {
    for looks in 0u32.. {
        // Nobody newer can begin meanwhile: whoever has a lock is older.
        client.query(b"BEGIN")?;
        let is_newest = channel.epoch_locked(client)? == Some(epoch);
        let left = match is_newest {
            true => end_older(client, channel)?,
            false => None,
        };
        client.query(b"COMMIT")?;
        if !is_newest {
            return Ok(Some(End::Fatal(ANOTHER.into())));
        }
        let Some(what) = left else {
            break;
        };
        if looks.is_multiple_of(SAY) {
            log.say(Level::Note, &what);
        }
        if progress.is_told() {
            return Ok(Some(End::Told));
        }
        thread::sleep(LOOK);
    }
    Ok(None)
}

/// Gives what it waits for, if there were any.
fn end_older(client: &mut Client, channel: &Channel) -> Result<Option<String>, ClientError> {
    let killed = client.rows(&channel.holders())?.into_iter().flatten();
    let mut killed: Vec<String> = killed
        .flatten()
        .map(|id| String::from_utf8_lossy(&id).into_owned())
        .collect();
    for id in &killed {
        kill(client, id)?;
    }
    let alone = format!("SELECT IS_USED_LOCK({})", channel.lock_name());
    if let Some(id) = client.one(&alone)? {
        let running = format!(
            "SELECT COALESCE(INFO,'') FROM information_schema.PROCESSLIST WHERE ID={id} AND COMMAND='Query'"
        );
        if let Some(text) = client.one(&running)? {
            let text = begun(text.as_bytes());
            return Ok(Some(format!(
                "A statement is still running from before ({text}…); its end is waited for."
            )));
        }
        kill(client, &id)?;
        killed.push(id);
    }
    Ok((!killed.is_empty()).then(|| {
        format!(
            "Ends what an older session has left on the target, connection {}. What it had not committed is rolled back, which may take as \
             long as that took.",
            killed.join(", ")
        )
    }))
}

fn kill(client: &mut Client, id: &str) -> Result<(), ClientError> {
    match client.query(format!("KILL CONNECTION {id}").as_bytes()) {
        Err(error) if error.code() != Some(NO_CONNECTION) => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::fake_target::{Fake, Reply, cell, settings};

    /// So many looks find the connections of an older session, of which 99 runs a statement at first. The
    /// newest epoch is 3.
    fn older(epoch: u64, looks: usize) -> (Option<End>, Vec<String>) {
        older_with(epoch, looks, &Log::terminal())
    }

    fn older_with(epoch: u64, looks: usize, log: &Log) -> (Option<End>, Vec<String>) {
        let seen = AtomicUsize::new(0);
        let fake = Fake::new(move |text| match text {
            _ if text.starts_with("SELECT epoch") => {
                seen.fetch_add(1, Ordering::Relaxed);
                Some(cell("3"))
            }
            _ if text.starts_with("SELECT DISTINCT IS_USED_LOCK") => {
                let left = seen.load(Ordering::Relaxed) <= looks;
                let workers = ["41", "42"].map(|id| vec![id.to_owned()]).to_vec();
                Some(if left {
                    Reply::Rows(workers)
                } else {
                    Reply::Nothing
                })
            }
            _ if text.contains("IS_USED_LOCK") => {
                let left = seen.load(Ordering::Relaxed) <= looks + 1;
                Some(if left { cell("99") } else { Reply::Nothing })
            }
            _ if text.contains("PROCESSLIST") => {
                let busy = seen.load(Ordering::Relaxed) <= looks;
                Some(if busy {
                    cell("TRUNCATE t")
                } else {
                    Reply::Nothing
                })
            }
            // They may end by themselves meanwhile.
            _ if text.starts_with("KILL") => Some(Reply::Fail(NO_CONNECTION)),
            _ => None,
        });
        let settings = settings(&fake, &[]);
        let mut control = Client::connect(&settings.target).expect("a target");
        let (channel, progress) = (Channel::new("c"), Progress::default());
        let ended = fence(&mut control, &channel, epoch, log, &progress);
        (ended.expect("answers"), fake.done())
    }

    #[test]
    fn it_is_said_what_is_waited_for() {
        for (busy, wanted) in [(true, "TRUNCATE t"), (false, "connection 41, 99.")] {
            let fake = Fake::new(move |text| match text {
                _ if text.starts_with("SELECT DISTINCT IS_USED_LOCK") => Some(cell("41")),
                _ if text.contains("IS_USED_LOCK") => Some(cell("99")),
                _ if text.contains("PROCESSLIST") && busy => Some(cell("TRUNCATE t")),
                _ if text.contains("PROCESSLIST") => Some(Reply::Nothing),
                _ => None,
            });
            let mut control = Client::connect(&fake.account()).expect("a target");
            let said = end_older(&mut control, &Channel::new("c")).expect("answers");
            let said = said.expect("there are some");
            assert!(said.contains(wanted), "{said}");
        }
        // At the first look, and then now and then.
        let path = std::env::temp_dir().join(format!("dromon-fence-{}", std::process::id()));
        let log = Log::file(&path).expect("a file");
        assert_eq!(older_with(3, 3, &log).0, None);
        let lines = std::fs::read_to_string(&path).expect("a log");
        std::fs::remove_file(&path).expect("it is there");
        assert_eq!(lines.lines().count(), 1, "{lines}");
    }

    /// The workers at once, as they may have locks; the connection of what no rollback takes back behind the
    /// statement that it runs. All while nobody newer can begin.
    #[test]
    fn older_ones_are_ended() {
        let (ended, said) = older(3, 2);
        assert_eq!(ended, None);
        let look = [
            "BEGIN",
            "KILL CONNECTION 41",
            "KILL CONNECTION 42",
            "COMMIT",
        ];
        let last = ["BEGIN", "KILL CONNECTION 99", "COMMIT", "BEGIN", "COMMIT"];
        assert_eq!(said, [&look[..], &look, &last].concat());
    }

    /// Those of a session that has begun later are none of its affair.
    #[test]
    fn newer_ones_are_left_alone() {
        let (ended, said) = older(2, 2);
        assert_eq!(ended, Some(End::Fatal(ANOTHER.into())));
        assert_eq!(said, ["BEGIN", "COMMIT"]);
    }
}
