//! What a store finds when it is opened, and how the end that a crash left is put right.

use std::cmp::Ordering;
use std::io::IoSlice;
use std::sync::Arc;

use dromon_binlog::FILE_MAGIC;
use dromon_log::{Device, DeviceFile};

use super::beside::Beside;
use super::error::StoreError;
use super::history::Kind;
use super::mark::{self, Place};
use super::names::{file_name, file_prefix};
use super::points::Pace;
use super::scan::{self, Head, Rest, Scan};
use super::{OpenFile, Opened, StoreOptions};

/// Bytes written again at once.
const PIECE: u64 = 1 << 20;

/// One of these is there in the directory of that kind.
const KINDS: &[(Kind, &str)] = &[
    (Kind::Mirror, "dromon-relay.mirror"),
    (Kind::MySql, "dromon-relay.mysql"),
];

/// There are no files of this prefix, and the mark is of some. Those of another prefix are the relay's: it
/// would begin anew beside them, and what is known of them would no more fit either.
pub(super) fn check_prefix(
    device: &dyn Device,
    names: &[String],
    prefix: &str,
) -> Result<(), StoreError> {
    let mut others: Vec<&String> = names
        .iter()
        .filter(|name| file_prefix(name).is_some_and(|p| p != prefix))
        .collect();
    others.sort_unstable();
    for name in others {
        let file = device.open(name).map_err(StoreError::io("open", name))?;
        let mut magic = [0; FILE_MAGIC.len()];
        let n = file
            .read_at(&mut magic, 0)
            .map_err(StoreError::io("read", name))?;
        // Hints have numbers, too.
        if magic[..n] == FILE_MAGIC {
            return Err(StoreError::Prefix {
                file: name.clone(),
                here: file_prefix(name).unwrap_or_default().to_owned(),
                wanted: prefix.to_owned(),
            });
        }
    }
    Ok(())
}

/// Files of one kind cannot go on as the other. `first`: the number of the first file, if there are any.
pub(super) fn check_kind(
    device: &dyn Device,
    options: &StoreOptions,
    first: Option<u64>,
) -> Result<(), StoreError> {
    let names = device
        .list()
        .map_err(StoreError::io("list", &device.place()))?;
    let marked = KINDS
        .iter()
        .find(|(_, mark)| names.iter().any(|name| name == mark));
    // A mark that was lost, or not copied with the files, must not make them those of the kind that has none.
    if let (None, Some(first)) = (marked, first) {
        check_unmarked(device, &file_name(&options.prefix, first))?;
    }
    let here = marked.map_or(Kind::MariaDb, |(kind, _)| *kind);
    if here == options.kind {
        return Ok(());
    }
    if first.is_some() {
        return Err(StoreError::Kind {
            here: here.follow(),
        });
    }
    if let Some((_, mark)) = marked {
        device
            .remove(mark)
            .and_then(|()| device.sync_dir())
            .map_err(StoreError::io("remove", mark))?;
    }
    if let Some((_, mark)) = KINDS.iter().find(|(kind, _)| *kind == options.kind) {
        device
            .create(mark)
            .and_then(|file| file.sync_all())
            .and_then(|()| device.sync_dir())
            .map_err(StoreError::io("create", mark))?;
    }
    Ok(())
}

/// Files without the mark of a kind are MariaDB's, unless the first one says that it is not.
fn check_unmarked(device: &dyn Device, name: &str) -> Result<(), StoreError> {
    let file = device.open(name).map_err(StoreError::io("open", name))?;
    let len = file.len().map_err(StoreError::io("look at", name))?;
    let head = scan::head(&*file, name, len, Kind::MariaDb)?;
    match head.err().and_then(|rest| rest.foreign) {
        Some(found) => Err(StoreError::Unmarked {
            file: name.to_owned(),
            found,
        }),
        None => Ok(()),
    }
}

/// Stored bytes are not what was written.
pub(super) fn damaged(file: String, rest: Rest) -> StoreError {
    StoreError::Damaged {
        file,
        at: rest.at,
        what: rest.what,
    }
}

/// Opens the mark, or makes it.
pub(super) fn open_mark(device: &dyn Device) -> Result<Arc<dyn DeviceFile>, StoreError> {
    match device.open(mark::NAME) {
        Ok(file) => Ok(file),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let file = device
                .create(mark::NAME)
                .map_err(StoreError::io("create", mark::NAME))?;
            device
                .sync_dir()
                .map_err(StoreError::io("sync the directory of", mark::NAME))?;
            Ok(file)
        }
        Err(error) => Err(StoreError::io("open", mark::NAME)(error)),
    }
}

/// Before its successor is removed: who cannot read this one either shall have lost nothing.
fn check_head(device: &dyn Device, options: &StoreOptions, number: u64) -> Result<(), StoreError> {
    let name = file_name(&options.prefix, number);
    let file = device.open(&name).map_err(StoreError::io("open", &name))?;
    let len = file.len().map_err(StoreError::io("look at", &name))?;
    match scan::head(&*file, &name, len, options.kind)? {
        Ok(_) => Ok(()),
        Err(rest) => Err(damaged(name, rest)),
    }
}

/// Writes again, at its place, what stands from `from` on. After a failed fsync the system keeps what
/// was not stored as if it was, and another fsync does not store it: only what is written anew is.
fn rewrite(file: &dyn DeviceFile, mut from: u64, len: u64) -> std::io::Result<()> {
    let mut piece = vec![0; (len.saturating_sub(from)).min(PIECE) as usize];
    while from < len {
        let want = (len - from).min(PIECE) as usize;
        let n = file.read_at(&mut piece[..want], from)?;
        if n == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        file.write_at(&mut [IoSlice::new(&piece[..n])], from)?;
        from += n as u64;
    }
    Ok(())
}

/// Reads the last file through and cuts off what is not whole. A last file that was never
/// wholly begun is removed, and the one before it is the last. That one was whole before its
/// successor was made: there are not two of this kind.
pub(super) fn recover_last(
    device: &Arc<dyn Device>,
    options: &StoreOptions,
    numbers: &mut Vec<u64>,
    safe: Place,
    opened: &mut Opened,
) -> Result<Option<(OpenFile, Scan, Head)>, StoreError> {
    loop {
        let Some(number) = numbers.last().copied() else {
            return Ok(None);
        };
        let name = file_name(&options.prefix, number);
        let file = device.open(&name).map_err(StoreError::io("open", &name))?;
        let len = file.len().map_err(StoreError::io("look at", &name))?;
        let known = match safe.file.cmp(&number) {
            Ordering::Less => 0,
            Ordering::Equal => safe.at,
            // One that had a successor was stored as a whole.
            Ordering::Greater => len,
        };
        // What a killed process wrote may not be on the disk, nor its name in the directory. What is
        // read below is what was brought there.
        rewrite(&*file, known, len).map_err(StoreError::io("write again the end of", &name))?;
        file.sync_all().map_err(StoreError::io("sync", &name))?;
        device
            .sync_dir()
            .map_err(StoreError::io("sync the directory of", &name))?;
        let mut scan = scan::scan(&*file, &name, len, options.point_every, options.kind)?;
        if scan.settled < known {
            let what = format!("It ends here, but {known} bytes of it were on the disk.");
            let rest = scan.rest.unwrap_or(Rest::new(scan.settled, what));
            return Err(damaged(name, rest));
        }
        if let Some(rest) = scan.rest.take_if(|rest| rest.foreign.is_some()) {
            return Err(damaged(name, rest));
        }
        let Some(head) = scan.head.take() else {
            // What was begun after it is a proof that it was whole.
            if safe.file > number || opened.torn.is_some() {
                let rest = scan.rest.unwrap_or(Rest::new(0, "It has no beginning."));
                return Err(damaged(name, rest));
            }
            if let [.., before, _] = numbers[..] {
                check_head(&**device, options, before)?;
            }
            device
                .remove(&name)
                .map_err(StoreError::io("remove", &name))?;
            device
                .sync_dir()
                .map_err(StoreError::io("sync the directory of", &name))?;
            opened.torn = Some((name, 0, len, "It was never wholly begun.".into()));
            numbers.pop();
            continue;
        };
        if scan.settled < len {
            let why = scan.rest.take().map_or(String::new(), |rest| rest.what);
            opened.torn = Some((name.clone(), scan.settled, len - scan.settled, why));
            file.set_len(scan.settled)
                .map_err(StoreError::io("cut", &name))?;
            file.sync_all().map_err(StoreError::io("sync", &name))?;
        }
        let mut beside = Beside::of(number);
        beside.cut(&**device, scan.settled)?;
        let open = OpenFile {
            group_at: scan.settled,
            group_first: 0,
            hints: Vec::new(),
            beside,
            number,
            name,
            file,
            format: head.format.clone(),
            format_event: head.format_event.clone(),
            written: scan.settled,
            buf: Vec::new(),
            settled: scan.settled,
            published: scan.settled,
            start: head.start.mysql.clone(),
            pace: Pace::new(
                options.point_every,
                scan.points.last().map_or(head.body, |p| p.at),
            ),
            points: Vec::new(),
        };
        return Ok(Some((open, scan, head)));
    }
}
