//! What a server answers: ok, error, end, or a table of texts.
//!
//! ```text
//! ok      0, rows n, id n, status u16, warnings u16
//! error   0xff, code u16, '#', state 5 bytes, message
//! end     0xfe, warnings u16, status u16                (shorter than 9 bytes)
//! table   columns n; for each its definition; end; rows; end
//! row     for each column: length n and bytes, or 0xfb for NULL
//! ```

use std::fmt;

use super::WireError;
use super::bytes::{Reader, put_lenenc, put_lenenc_bytes};
use super::packet::put_packet;

const AUTOCOMMIT: u16 = 2;
/// Most columns that are read.
const COLUMNS_MAX: u64 = 4096;

/// `ok`.
pub fn ok() -> Vec<u8> {
    let mut out = vec![0, 0, 0];
    out.extend_from_slice(&AUTOCOMMIT.to_le_bytes());
    out.extend_from_slice(&[0, 0]);
    out
}

/// `end`.
pub fn eof() -> Vec<u8> {
    let mut out = vec![0xfe, 0, 0];
    out.extend_from_slice(&AUTOCOMMIT.to_le_bytes());
    out
}

/// An error as a server says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// As in MariaDB's list.
    pub code: u16,
    /// Five characters.
    pub state: [u8; 5],
    /// For people.
    pub message: String,
}

impl Failure {
    /// Of the state HY000.
    pub fn new(code: u16, message: impl Into<String>) -> Failure {
        Failure {
            code,
            state: *b"HY000",
            message: message.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error {}: {}", self.code, self.message)
    }
}

/// `error`.
pub fn error(failure: &Failure) -> Vec<u8> {
    let mut out = vec![0xff];
    out.extend_from_slice(&failure.code.to_le_bytes());
    out.push(b'#');
    out.extend_from_slice(&failure.state);
    out.extend_from_slice(failure.message.as_bytes());
    out
}

/// A row of texts.
pub type Row = Vec<Option<Vec<u8>>>;

/// A table of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextResult {
    /// Names.
    pub columns: Vec<String>,
    /// As many cells in each as there are columns.
    pub rows: Vec<Row>,
}

impl TextResult {
    /// Of these columns, without rows.
    pub fn new(columns: &[&str]) -> TextResult {
        TextResult {
            columns: columns.iter().map(|c| (*c).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row of texts.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|c| Some(c.into_bytes()));
        self.rows.push(cells.collect());
    }
}

/// Adds all packets of a table. Gives the next sequence number.
pub fn put_result(out: &mut Vec<u8>, mut sequence: u8, result: &TextResult) -> u8 {
    let mut packet = Vec::new();
    put_lenenc(&mut packet, result.columns.len() as u64);
    sequence = put_packet(out, sequence, &packet);
    for column in &result.columns {
        packet.clear();
        for text in ["def", "", "", "", column, ""] {
            put_lenenc_bytes(&mut packet, text.as_bytes());
        }
        // utf8mb4_general_ci; longest value; VAR_STRING.
        packet.extend_from_slice(&[12, 45, 0, 0, 4, 0, 0, 253, 0, 0, 0, 0, 0]);
        sequence = put_packet(out, sequence, &packet);
    }
    sequence = put_packet(out, sequence, &eof());
    for row in &result.rows {
        packet.clear();
        for cell in row {
            match cell {
                Some(bytes) => put_lenenc_bytes(&mut packet, bytes),
                None => packet.push(0xfb),
            }
        }
        sequence = put_packet(out, sequence, &packet);
    }
    put_packet(out, sequence, &eof())
}

/// The first packet of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done.
    Ok,
    /// Refused.
    Error(Failure),
    /// Nothing more.
    End,
    /// A table of so many columns follows.
    Table(usize),
}

impl Answer {
    /// From a packet.
    pub fn decode(packet: &[u8]) -> Result<Answer, WireError> {
        let mut r = Reader::new(packet, "an answer");
        match packet.first() {
            None => Err(r.short()),
            Some(0) => Ok(Answer::Ok),
            Some(0xff) => {
                r.u8()?;
                let code = r.u16()?;
                let rest = r.rest();
                let (state, message) = match rest.strip_prefix(b"#") {
                    Some(rest) => rest
                        .split_first_chunk::<5>()
                        .map_or((*b"HY000", rest), |(s, m)| (*s, m)),
                    None => (*b"HY000", rest),
                };
                Ok(Answer::Error(Failure {
                    code,
                    state,
                    message: String::from_utf8_lossy(message).into_owned(),
                }))
            }
            Some(0xfe) if packet.len() < 9 => Ok(Answer::End),
            Some(0xfb) => Err(r.bad("the server asks for a file")),
            Some(_) => match r.lenenc()? {
                Some(n) if n <= COLUMNS_MAX && r.left() == 0 => Ok(Answer::Table(n as usize)),
                _ => Err(r.bad("it is neither ok, error, end nor a number of columns")),
            },
        }
    }
}

/// A row of so many columns.
pub fn parse_row(packet: &[u8], columns: usize) -> Result<Row, WireError> {
    let mut r = Reader::new(packet, "a row");
    let mut row = Vec::with_capacity(columns.min(packet.len()));
    for _ in 0..columns {
        row.push(r.lenenc_bytes()?.map(<[u8]>::to_vec));
    }
    match r.left() {
        0 => Ok(row),
        _ => Err(r.bad("it has more cells than columns")),
    }
}
