//! Rows as a server puts them into a write set: binlog events, so that a large
//! one can be cut, and parts of one put together. Only what that depends on is real.

use super::Change;

const MAP: u8 = 19;
const ROWS: u8 = 24;
const ANNOTATE: u8 = 160;
const HEADER: usize = 19;

fn event(out: &mut Vec<u8>, kind: u8, body: &[u8]) {
    let mut header = [0; HEADER];
    header[4] = kind;
    header[9..13].copy_from_slice(&((HEADER + body.len()) as u32).to_le_bytes());
    out.extend_from_slice(&header);
    out.extend_from_slice(body);
}

/// One statement for each table's run of changes.
pub fn encode(changes: &[Change]) -> Vec<u8> {
    encode_wide(changes, 0)
}

/// The same with so many bytes before each row, that say nothing.
pub fn encode_wide(changes: &[Change], wide: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for run in changes.chunk_by(|a, b| a.key.table == b.key.table) {
        let table = run[0].key.table;
        event(&mut out, MAP, &[table, 0, 0, 0, 0, 0]);
        for (i, change) in run.iter().enumerate() {
            let last = u8::from(i + 1 == run.len());
            let mut body = vec![table, 0, 0, 0, 0, 0, last, 0];
            body.extend(postcard::to_allocvec(change).expect("plain data"));
            out.extend(padding(wide));
            event(&mut out, ROWS, &body);
        }
    }
    out
}

/// So many bytes that say nothing.
pub fn padding(bytes: usize) -> Vec<u8> {
    let mut out = Vec::new();
    if bytes > 0 {
        event(&mut out, ANNOTATE, &vec![0; bytes]);
    }
    out
}

/// What a server makes of it. An error: rows of a table that is not open, or a
/// statement without an end, would be lost without a word.
pub fn decode(data: &[u8]) -> Result<Vec<Change>, String> {
    let (mut changes, mut open, mut at) = (Vec::new(), Vec::new(), 0);
    while at < data.len() {
        let length = data.get(at + 9..at + 13).ok_or("a torn event")?;
        let length = u32::from_le_bytes(length.try_into().map_err(|_| "a torn event")?) as usize;
        let body = data.get(at + HEADER..at + length).ok_or("a torn event")?;
        match data[at + 4] {
            MAP => open.push(body[0]),
            ANNOTATE => {}
            ROWS if open.contains(&body[0]) => {
                changes.push(postcard::from_bytes(&body[8..]).map_err(|e| e.to_string())?);
                if body[6] == 1 {
                    open.clear();
                }
            }
            ROWS => return Err(format!("rows of table {}, which is not open", body[0])),
            other => return Err(format!("an event of type {other}")),
        }
        at += length;
    }
    match open.is_empty() {
        true => Ok(changes),
        false => Err("a statement without an end".into()),
    }
}
