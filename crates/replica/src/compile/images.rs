//! Updates of many rows by one event of rows: of each what finds it and what it becomes.
//!
//! Against a list that the target joins ([`super::updates`]) a row costs it a quarter less: nothing is parsed but
//! the statement's frame, and the row is read once. The server compares nothing but the key then, so only
//! where no more is wanted ([`Compare::Key`](super::Compare::Key)).

use dromon_binlog::{
    Change, ColumnType, EventType, Flavour, Gtid, Header, Payload, Updates, encode_event,
};

use super::rows::binlog_statement;
use super::updates::Update;
use super::writer::Writer;
use super::{Op, note};
use crate::catalog::TableInfo;
use crate::unit::Form;

/// Fewer rows are not worth the round trip.
const LEAST: usize = 12;
/// An event with so many bytes of rows takes no further one: its statement is a third longer.
const BYTES: usize = 512 << 10;

/// What a table is to the source: the table map of the first rows of a unit, as an event.
#[derive(Clone, Copy)]
pub(super) struct Origin<'a> {
    /// The event.
    pub map: &'a [u8],
    /// The number that it gives the table.
    pub table_id: u64,
    /// How it looks.
    pub form: &'a Form,
}

/// Whether the target takes rows of the table as the source has them: it would refuse others, or change
/// them without a word.
pub(super) fn fits(table: &TableInfo, types: &[ColumnType], origin: &Origin<'_>) -> bool {
    let mariadb = origin.form.format.flavour() == Flavour::MariaDb;
    let mut columns = table.columns.iter().zip(types);
    mariadb
        && !table.key.is_empty()
        && table.columns.len() == types.len()
        && columns.all(|(column, kind)| column.stored == Some(*kind) && !column.generated)
}

/// Adds steps for as many of the rows as go so: all or none. `columns` change in some of them.
/// False: none.
pub(super) fn write(
    writer: &mut Writer<'_>,
    table: &TableInfo,
    (types, columns): (&[ColumnType], &[usize]),
    gtid: Gtid,
    origin: &Origin<'_>,
    rows: &[Update<'_, '_>],
) -> bool {
    let Ok(header) = Header::decode(origin.map) else {
        return false;
    };
    if rows.len() < LEAST || !writer.events() || !fits(table, types, origin) {
        return false;
    }
    let most = BYTES.min(writer.packet_max() / 2);
    let mut statements = Vec::new();
    let mut updates = Updates::new(types, &table.key, columns);
    for (n, (before, after)) in rows.iter().enumerate() {
        if !updates.row(before, after) {
            return false;
        }
        if updates.bytes() >= most || n + 1 == rows.len() {
            let event = encode_event(
                &Header {
                    kind: EventType::UPDATE_ROWS_V1,
                    ..header
                },
                &Payload::Rows(updates.event(origin.table_id)),
                &origin.form.format,
            );
            statements.push(binlog_statement([origin.map, &event]));
            updates = Updates::new(types, &table.key, columns);
        }
    }
    for text in statements {
        writer.push(Op::Binlog {
            text,
            note: note(gtid, table, Change::Update, b""),
            local: false,
        });
    }
    true
}
