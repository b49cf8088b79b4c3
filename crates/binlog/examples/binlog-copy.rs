//! Copies a binlog file as a relay stores it: `binlog-copy FROM TO [COMMIT_ID|none]`.
//!
//! GTID events get room for a commit id, and this one if it is given, or none
//! if so said; as they grow, all events are told their new places. Everything else stays the same,
//! which `mariadb-binlog` can confirm.

use std::process::ExitCode;

use dromon_binlog::{
    Checksum, Cut, EVENT_MAX, EventType, FILE_MAGIC, Grouper, GtidHint, Payload, check_magic,
    cut_event, has_room, normalise_gtid, patch_gtid, place,
};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (from, to, commit_id) = match &args[..] {
        [from, to] => (from, to, None),
        [from, to, id] if id == "none" => (from, to, Some(None)),
        [from, to, id] if id.parse::<u64>().is_ok() => (from, to, Some(id.parse().ok())),
        _ => {
            eprintln!("usage: binlog-copy FROM TO [COMMIT_ID|none]");
            return ExitCode::FAILURE;
        }
    };
    match copy(from, to, commit_id) {
        Ok(grown) => {
            println!("{to}: {grown} GTID events were given room");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{from}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `commit_id`: what it shall be, or nothing is changed.
fn copy(
    from: &str,
    to: &str,
    commit_id: Option<Option<u64>>,
) -> Result<u64, Box<dyn std::error::Error>> {
    let bytes = std::fs::read(from)?;
    check_magic(&bytes)?;
    let mut out = FILE_MAGIC.to_vec();
    let mut grouper = Grouper::of_file();
    let mut grown = 0;
    loop {
        let at = grouper.at();
        let Cut::Event(raw) = cut_event(&bytes[at as usize..], at, EVENT_MAX)? else {
            break;
        };
        let event = grouper.event(raw)?.event;
        let mut stored = raw.to_vec();
        if event.kind() == EventType::GTID {
            grown += u64::from(!has_room(&event)?);
            stored = normalise_gtid(&event)?.into_owned();
            if let Some(commit_id) = commit_id {
                let hint = GtidHint {
                    commit_id,
                    flags: None,
                };
                patch_gtid(&mut stored, event.checksum(), hint)?;
            }
        }
        place(&mut stored, event.checksum(), out.len() as u64)?;
        out.extend_from_slice(&stored);
    }
    verify(&out)?;
    std::fs::write(to, out)?;
    Ok(grown)
}

/// Reads the copy again.
fn verify(copy: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
    let mut grouper = Grouper::of_file();
    while let Cut::Event(raw) = cut_event(&copy[grouper.at() as usize..], grouper.at(), EVENT_MAX)?
    {
        let event = grouper.event(raw)?.event;
        let Some(format) = grouper.format() else {
            return Err("no format description".into());
        };
        if let Payload::Format(own) = event.decode(format)?
            && own.checksum() == Checksum::Off
        {
            println!("events have no checksums");
        }
    }
    Ok(())
}
