//! A table that is made and filled in one write set (CREATE TABLE ... SELECT), where that is fed again.
//!
//! It is no statement in total order isolation: its first event is one, the rest are rows. A server commits
//! the table by itself, before the rows, and on its origin the engine's position does not move at all. After a crash
//! the table may be there, without its rows or with them, behind a position that does not have it: to make it again fails.
//! With OR REPLACE it comes out right in each case.
//!
//! ```text
//!   [GTID]  QUERY "CREATE TABLE ..."  [ANNOTATE TABLE_MAP rows..]
//! ```

use bytes::{Bytes, BytesMut};

use crate::events::{HEADER, LENGTH_AT, QUERY, TYPE_AT, begins_with, text_at};

/// Of a server that follows another one.
const GTID: u8 = 162;
const CREATE: &[u8] = b"CREATE TABLE ";
/// It was made, or there would be no write set.
const UNLESS_THERE: &[u8] = b"IF NOT EXISTS ";
const REPLACE: &[u8] = b"CREATE OR REPLACE TABLE ";

/// The same payload, so that a table that it makes first replaces one that is there. `None`: it makes none, or
/// replaces it anyway.
pub fn replacing(payload: &[u8]) -> Option<Bytes> {
    let mut at = 0;
    loop {
        let event = payload.get(at..)?;
        let length = event.get(LENGTH_AT..LENGTH_AT + 4)?;
        let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
        let event = event.get(..length).filter(|_| length >= HEADER)?;
        match event[TYPE_AT] {
            GTID => at += length,
            QUERY => return replaced(payload, at, event),
            _ => return None,
        }
    }
}

/// With the statement in `event`, which lies at `at`, changed.
fn replaced(payload: &[u8], at: usize, event: &[u8]) -> Option<Bytes> {
    let begin = text_at(event)?;
    let text = event.get(begin..)?;
    let rest = text.get(CREATE.len()..)?;
    if !begins_with(text, CREATE) {
        return None;
    }
    let rest = match begins_with(rest, UNLESS_THERE) {
        true => &rest[UNLESS_THERE.len()..],
        false => rest,
    };
    let length = u32::try_from(begin + REPLACE.len() + rest.len()).ok()?;
    let mut out = BytesMut::with_capacity(payload.len() + REPLACE.len());
    out.extend_from_slice(&payload[..at + begin]);
    out.extend_from_slice(REPLACE);
    out.extend_from_slice(rest);
    out.extend_from_slice(&payload[at + event.len()..]);
    out[at + LENGTH_AT..at + LENGTH_AT + 4].copy_from_slice(&length.to_le_bytes());
    Some(out.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::made::{event, query};
    use proptest::prelude::*;

    fn whole(events: &[Vec<u8>]) -> Vec<u8> {
        events.concat()
    }

    #[test]
    fn a_table_that_is_made_first_replaces_one() {
        let (gtid, map, rows) = (event(GTID, b"gtid"), event(19, b"map"), event(23, b"rows"));
        let made = query("CREATE TABLE `d`.`c` (\n  `id` int)");
        let unless = query("create table if not exists `d`.`c` (\n  `id` int)");
        let replaces = query("CREATE OR REPLACE TABLE `d`.`c` (\n  `id` int)");
        let wanted = whole(&[replaces.clone(), map.clone(), rows.clone()]);
        for made in [&made, &unless] {
            let mut changed = replaces.clone();
            let all = whole(&[made.clone(), map.clone(), rows.clone()]);
            assert_eq!(replacing(&all).as_deref(), Some(&wanted[..]));
            // Without rows, and behind a GTID.
            assert_eq!(replacing(made).as_deref(), Some(&changed[..]));
            changed.splice(..0, gtid.iter().copied());
            let behind = whole(&[gtid.clone(), made.clone()]);
            assert_eq!(replacing(&behind).as_deref(), Some(&changed[..]));
        }
    }

    #[test]
    fn nothing_else_is_changed() {
        let (map, rows) = (event(19, b"map"), event(23, b"rows"));
        let made = query("CREATE TABLE `d`.`c` (`id` int)");
        for other in [
            whole(&[
                query("CREATE OR REPLACE TABLE `d`.`c` (`id` int)"),
                map.clone(),
            ]),
            query("CREATE TABLESPACE x"),
            query("SAVEPOINT `a`"),
            query(""),
            // Not first.
            whole(&[map, rows, made.clone()]),
            made[..made.len() - 1].to_vec(),
            Vec::new(),
        ] {
            assert_eq!(replacing(&other), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_changed_or_not(mut bytes in prop::collection::vec(any::<u8>(), 0..120), kind in 0..3u8) {
            if let Some(at) = bytes.get_mut(TYPE_AT) {
                *at = [QUERY, GTID, 19][kind as usize];
            }
            replacing(&bytes);
            if bytes.len() >= HEADER {
                let length = (bytes.len() as u32).to_le_bytes();
                bytes[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&length);
                replacing(&bytes);
            }
        }
    }
}
