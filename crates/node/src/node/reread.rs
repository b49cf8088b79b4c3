//! Payloads that are read from the log again.

use std::ops::Range;

use bytes::Bytes;
use dromon_order::sequencer::{PieceStore, StreamKey};
use dromon_order::{Committed, CommittedBody, OrderError, Part};

use super::Node;
use crate::spool::PieceFiles;

/// So many entries are read at a time, or fewer if not so many pieces are missing: what lies between is
/// read with them.
const RUN: Range<u64> = 8..256;

impl Node {
    /// The payload that ends at `index` of the log. The error says why it cannot be had.
    pub(super) fn payload_from_log(
        &self,
        index: u64,
        source: dromon_writeset::Uuid,
    ) -> Result<Bytes, String> {
        let order = self.order().ok_or("the log is closed")?;
        let entries = order
            .read_log(index, index, usize::MAX)
            .map_err(|e| e.to_string())?;
        let Some(CommittedBody::Message(message)) = entries.into_iter().next().map(|c| c.body)
        else {
            return Err(format!("log index {index} holds no message"));
        };
        let body = match message.part {
            Part::Whole => message.body,
            Part::Piece { stream, n, .. } => {
                let key = StreamKey {
                    origin: message.origin,
                    stream,
                };
                let read = |from, to| order.read_log(from, to, usize::MAX);
                let pieces = gather(read, || order.status().first_log, index, key, n)?;
                let mut files = PieceFiles::new(self.spooler.clone());
                for piece in pieces {
                    files.append(key, None, &piece).map_err(|e| e.to_string())?;
                }
                files.read(key).map_err(|e| e.to_string())?
            }
        };
        let write_set = dromon_writeset::WriteSet::decode(body).map_err(|e| e.to_string())?;
        if write_set.header().source != source {
            return Err(format!(
                "log index {index} holds another member's write set"
            ));
        }
        let payload = write_set.payload().here().cloned();
        payload.ok_or_else(|| "its payload is elsewhere".to_owned())
    }
}

/// The `n` pieces of one payload, walking back from its `last` one. `first`: where the log begins now.
fn gather(
    read: impl Fn(u64, u64) -> Result<Vec<Committed>, OrderError>,
    first: impl Fn() -> u64,
    last: u64,
    key: StreamKey,
    n: u32,
) -> Result<Vec<Bytes>, String> {
    let mut found: Vec<Option<Bytes>> = vec![None; n as usize];
    let mut missing = n as usize;
    let mut to = last;
    while missing > 0 {
        let begins = first().max(1);
        if begins > to {
            return Err(format!("{missing} of {n} pieces are not in the log"));
        }
        let run = (missing as u64).clamp(RUN.start, RUN.end);
        let from = (to + 1).saturating_sub(run).max(begins);
        let entries = match read(from, to) {
            Ok(entries) => entries,
            // It was shortened meanwhile, and what is wanted may lie behind that.
            Err(_) if first() > from => continue,
            Err(e) => return Err(e.to_string()),
        };
        for entry in entries {
            if let CommittedBody::Message(m) = entry.body
                && m.origin == key.origin
                && let Part::Piece { stream, i, .. } = m.part
                && stream == key.stream
                && found.get(i as usize).is_some_and(Option::is_none)
            {
                found[i as usize] = Some(m.body);
                missing -= 1;
            }
        }
        to = from - 1;
    }
    Ok(found.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use dromon_order::RawMessage;
    use dromon_writeset::Uuid;

    use super::*;

    const KEY: StreamKey = StreamKey {
        origin: Uuid([7; 16]),
        stream: 3,
    };

    /// Entry `index`: every third one is a piece of three.
    fn entry(index: u64) -> Committed {
        let part = match index % 3 {
            0 => Part::Piece {
                stream: KEY.stream,
                i: (index / 3 - 1) as u32,
                n: 3,
            },
            _ => Part::Whole,
        };
        Committed {
            index,
            term: 1,
            leader: 1,
            body: CommittedBody::Message(RawMessage {
                origin: KEY.origin,
                oseq: index,
                kind: 0,
                tag: 0,
                part,
                body: Bytes::copy_from_slice(&index.to_le_bytes()),
            }),
        }
    }

    /// Gathers what ends at entry 9 of a log that begins at 1, and at `later` once it is first read.
    fn gathers(later: u64) -> Result<Vec<Bytes>, String> {
        let begins = Cell::new(1);
        let read = |from, to| {
            let first = begins.replace(later);
            match from < later {
                true if first == 1 => Err(OrderError::Purged {
                    wanted: from,
                    first: later,
                }),
                _ => Ok((from..=to).map(entry).collect()),
            }
        };
        gather(read, || begins.get(), 9, KEY, 3)
    }

    #[test]
    fn a_log_that_is_shortened_meanwhile_still_gives_what_lies_behind_that() {
        let all: Vec<Bytes> = [3, 6, 9u64]
            .map(|n| Bytes::copy_from_slice(&n.to_le_bytes()))
            .into();
        assert_eq!(gathers(3), Ok(all));
        let why = gathers(4).expect_err("the first one is gone");
        assert_eq!(why, "1 of 3 pieces are not in the log");
        let why = gathers(12).expect_err("all of it is gone");
        assert_eq!(why, "3 of 3 pieces are not in the log");
    }

    #[test]
    fn pieces_that_lie_far_apart_are_found_and_another_error_ends_it() {
        let far = |index| match index {
            1000 => entry(9),
            600 => entry(6),
            1 => entry(3),
            _ => entry(4),
        };
        let read = |from, to| Ok((from..=to).map(far).collect());
        let found = gather(read, || 0, 1000, KEY, 3).expect("all of it is there");
        assert_eq!(found.len(), 3);
        let broken = |_, _| Err(OrderError::Log("the disk".into()));
        assert!(gather(broken, || 1, 1000, KEY, 3).is_err());
    }
}
