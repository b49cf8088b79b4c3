//! What chunks and statements need of binlog events, as a server puts them into a payload: without checksums.
//!
//! ```text
//!   time 4 | type 1 | server 4 | length 4 | position 4 | flags 2 | body
//!   a statement's body: thread 4 | time 4 | length of db 1 | error 2 | length of status 2 | status | db | 0 | text
//! ```

/// Bytes before an event's body.
pub(crate) const HEADER: usize = 19;
pub(crate) const TYPE_AT: usize = 4;
pub(crate) const LENGTH_AT: usize = 9;

/// A statement.
pub(crate) const QUERY: u8 = 2;

/// Where the text of a QUERY event begins.
pub(crate) fn text_at(event: &[u8]) -> Option<usize> {
    let db = *event.get(HEADER + 8)? as usize;
    let status = event.get(HEADER + 11..HEADER + 13)?;
    let status = u16::from_le_bytes([status[0], status[1]]) as usize;
    Some(HEADER + 13 + status + db + 1)
}

/// The text of a QUERY event.
pub(crate) fn text_of(event: &[u8]) -> Option<&[u8]> {
    event.get(text_at(event)?..)
}

/// Whether `text` begins with these words, in letters of any case.
pub(crate) fn begins_with(text: &[u8], words: &[u8]) -> bool {
    let begin = text.get(..words.len());
    begin.is_some_and(|begin| begin.eq_ignore_ascii_case(words))
}

/// Events for tests.
#[cfg(test)]
pub(crate) mod made {
    use super::*;

    pub fn event(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut e = vec![0; HEADER];
        e[TYPE_AT] = kind;
        e[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&((HEADER + body.len()) as u32).to_le_bytes());
        e.extend_from_slice(body);
        e
    }

    pub fn query(text: &str) -> Vec<u8> {
        let mut body = vec![0; 13];
        body[8] = 2; // "db"
        body[11] = 3; // three bytes of status
        body.extend_from_slice(b"xyzdb\0");
        body.extend_from_slice(text.as_bytes());
        event(QUERY, &body)
    }
}
