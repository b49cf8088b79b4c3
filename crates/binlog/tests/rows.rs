//! Rows of random tables against a writer of the simplest kind.

mod support;

use dromon_binlog::{
    Cell, Change, Checksum, ColumnType, Event, EventType, Flaw, Payload, Row, RowsEvent,
    TableMapParts, Updates, Value, compress, encode_event,
};
use proptest::collection::vec;
use proptest::prelude::*;
use support::{header, mariadb};

/// A column: its number, its metadata, and how a value of it is stored.
#[derive(Clone, Debug)]
struct Column {
    number: u8,
    meta: Vec<u8>,
    kind: ColumnType,
    /// Bytes of the length before a value, or its fixed size.
    size: Result<usize, usize>,
}

fn column() -> impl Strategy<Value = Column> {
    let fixed = |number, meta: &[u8], kind, size| {
        Just(Column {
            number,
            meta: meta.to_vec(),
            kind,
            size: Err(size),
        })
    };
    let long = |number, meta: Vec<u8>, kind, len_bytes| Column {
        number,
        meta,
        kind,
        size: Ok(len_bytes),
    };
    prop_oneof![
        fixed(1, &[], ColumnType::Int { bytes: 1 }, 1),
        fixed(9, &[], ColumnType::Int { bytes: 3 }, 3),
        fixed(8, &[], ColumnType::Int { bytes: 8 }, 8),
        fixed(4, &[4], ColumnType::Float, 4),
        fixed(13, &[], ColumnType::Year, 1),
        fixed(16, &[1, 1], ColumnType::Bit { bits: 9 }, 2),
        fixed(254, &[247, 2], ColumnType::Enum { bytes: 2 }, 2),
        fixed(254, &[248, 5], ColumnType::Set { bytes: 5 }, 5),
        (0u8..7).prop_map(|fraction| Column {
            number: 18,
            meta: vec![fraction],
            kind: ColumnType::DateTime { fraction },
            size: Err(5 + usize::from(fraction).div_ceil(2)),
        }),
        (1u16..1024).prop_map(move |bytes| {
            // Bits 8 and 9 of the length, inverted, among the type's.
            let high = (bytes >> 4 & 0x30) as u8 ^ 0x30;
            let meta = vec![254 & !0x30 | high, bytes as u8];
            long(
                254,
                meta,
                ColumnType::Char { bytes },
                if bytes > 255 { 2 } else { 1 },
            )
        }),
        any::<u16>().prop_map(move |bytes| {
            let meta = bytes.to_le_bytes().to_vec();
            long(
                15,
                meta,
                ColumnType::VarChar { bytes },
                if bytes > 255 { 2 } else { 1 },
            )
        }),
        (1u8..5).prop_map(move |n| long(
            252,
            vec![n],
            ColumnType::Blob { len_bytes: n },
            usize::from(n)
        )),
        (1u8..5).prop_map(move |n| long(
            255,
            vec![n],
            ColumnType::Geometry { len_bytes: n },
            usize::from(n)
        )),
    ]
}

/// What an image says of a column; the bytes are cut or filled to size.
type Said = Option<Option<Vec<u8>>>;

fn value_of(column: &Column, bytes: &[u8]) -> Vec<u8> {
    match column.size {
        Err(size) => bytes
            .iter()
            .copied()
            .chain(std::iter::repeat(0))
            .take(size)
            .collect(),
        Ok(_) => bytes.to_vec(),
    }
}

fn write_image(
    columns: &[Column],
    present: &[bool],
    said: &[Option<Vec<u8>>],
    out: &mut Vec<u8>,
) -> Vec<Said> {
    let mine: Vec<usize> = (0..columns.len()).filter(|n| present[*n]).collect();
    let mut nulls = vec![0u8; mine.len().div_ceil(8)];
    for (nth, n) in mine.iter().enumerate() {
        if said[*n].is_none() {
            nulls[nth / 8] |= 1 << (nth % 8);
        }
    }
    out.extend(nulls);
    let mut expected: Vec<Said> = vec![None; columns.len()];
    for n in mine {
        expected[n] = Some(said[n].as_ref().map(|bytes| {
            let value = value_of(&columns[n], bytes);
            if let Ok(len_bytes) = columns[n].size {
                out.extend(&(value.len() as u64).to_le_bytes()[..len_bytes]);
            }
            out.extend(&value);
            value
        }));
    }
    expected
}

fn bitmap(bits: &[bool]) -> Vec<u8> {
    let mut map = vec![0u8; bits.len().div_ceil(8)];
    for (n, set) in bits.iter().enumerate() {
        map[n / 8] |= u8::from(*set) << (n % 8);
    }
    map
}

fn said(image: &Option<Vec<Cell<'_>>>) -> Option<Vec<Said>> {
    image.as_ref().map(|cells| {
        cells
            .iter()
            .map(|cell| match cell {
                Cell::Absent => None,
                Cell::Null => Some(None),
                Cell::Bytes(bytes) => Some(Some(bytes.to_vec())),
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn rows(
        columns in vec(column(), 1..20),
        seeds in vec(any::<bool>(), 40),
        values in vec(vec(proptest::option::of(vec(any::<u8>(), 0..9)), 20), 1..8),
        change in 0usize..3, second_version: bool, packed: bool, cut: usize
    ) {
        let width = columns.len();
        let types: Vec<u8> = columns.iter().map(|c| c.number).collect();
        let meta: Vec<u8> = columns.iter().flat_map(|c| c.meta.clone()).collect();
        let nullable = vec![0xff; width.div_ceil(8)];
        let parts = TableMapParts {
            table_id: 9, database: b"d", table: b"t", types: &types, meta: &meta,
            nullable: &nullable, optional: &[],
        };
        let kinds = parts.table_map().unwrap().columns().unwrap();
        prop_assert_eq!(&kinds, &columns.iter().map(|c| c.kind).collect::<Vec<_>>());

        let change = [Change::Insert, Change::Update, Change::Delete][change];
        let mut present = seeds[..width].to_vec();
        let mut present_after = seeds[20..20 + width].to_vec();
        // At least one column, or the rows take no bytes.
        present[0] = true;
        present_after[width - 1] = true;
        let mut data = Vec::new();
        let mut expected = Vec::new();
        // Where each row ends.
        let mut ends = Vec::new();
        let images = if change == Change::Update { 2 } else { 1 };
        for pair in values.chunks_exact(images) {
            let first = write_image(&columns, &present, &pair[0], &mut data);
            expected.push(match change {
                Change::Insert => (None, Some(first)),
                Change::Delete => (Some(first), None),
                Change::Update => {
                    let after = write_image(&columns, &present_after, &pair[1], &mut data);
                    (Some(first), Some(after))
                }
            });
            ends.push(data.len());
        }
        let mut kind = match change { Change::Insert => 23, Change::Update => 24, Change::Delete => 25 };
        if second_version { kind += 7; }
        if packed { kind = if second_version { kind + 139 } else { kind + 143 }; }
        let mut body = vec![9, 0, 0, 0, 0, 0, 1, 0];
        if second_version { body.extend([2, 0]); }
        body.push(width as u8);
        body.extend(bitmap(&present));
        if change == Change::Update { body.extend(bitmap(&present_after)); }
        let stored = if packed { compress(&data) } else { data.clone() };
        body.extend(&stored);
        let format = mariadb(Checksum::Crc32);
        let raw = encode_event(&header(EventType(kind)), &Payload::Other(&body), &format);
        let event = Event::parse(&raw, Checksum::Crc32).unwrap();
        let Payload::Rows(event) = event.decode(&format).unwrap() else { panic!("it carries rows") };
        prop_assert_eq!(event.change, change);
        let read = event.data(1 << 20).unwrap();
        prop_assert_eq!(&read[..], &data[..]);
        let rows: Vec<_> = event.rows(&read, &kinds).unwrap().collect::<Result<_, _>>().unwrap();
        let found: Vec<_> = rows.iter().map(|r| (said(&r.before), said(&r.after))).collect();
        prop_assert_eq!(found, expected);
        // Values of any bytes are values or errors.
        for cell in rows.iter().flat_map(|r| r.before.iter().chain(&r.after)).flatten().zip(kinds.iter().cycle()) {
            if let Some(Ok(value)) = cell.0.value(*cell.1, true, 0) {
                let _ = value.to_string();
            }
        }
        check_cut(&event, &data, &kinds, cut % data.len().max(1), &ends, &rows);
    }

    /// What is put together is read alike, and is what a server that writes these columns would write.
    #[test]
    fn updates_put_together(
        columns in vec(column(), 1..20),
        seeds in vec(any::<bool>(), 40),
        values in vec(vec(proptest::option::of(vec(any::<u8>(), 0..9)), 20), 2..9),
        fits: bool,
    ) {
        let width = columns.len();
        let kinds: Vec<_> = columns.iter().map(|c| c.kind).collect();
        let mut present = seeds[..width].to_vec();
        let present_after = seeds[20..20 + width].to_vec();
        present[0] = true;
        let stands = |present: &[bool]| (0..width).rev().filter(|n| present[*n]).collect::<Vec<_>>();
        let mut updates = Updates::new(&kinds, &stands(&present), &stands(&present_after));
        let mut data = Vec::new();
        for pair in values.chunks_exact(2) {
            write_image(&columns, &present, &pair[0], &mut data);
            write_image(&columns, &present_after, &pair[1], &mut data);
            // Images have more than what stands in the event.
            let whole = |said: &[Option<Vec<u8>>]| -> Vec<Option<Vec<u8>>> {
                columns.iter().zip(said).map(|(c, said)| said.as_ref().map(|bytes| value_of(c, bytes))).collect()
            };
            let (before, after) = (whole(&pair[0]), whole(&pair[1]));
            let cells = |all: &'_ [Option<Vec<u8>>]| -> Vec<Cell<'static>> {
                all.iter().map(|v| v.clone().map_or(Cell::Null, |v| Cell::Bytes(v.leak()))).collect()
            };
            prop_assert!(updates.row(&cells(&before), &cells(&after)));
        }
        let count = updates.count();
        prop_assert_eq!(count, values.len() / 2);
        if !fits {
            // Nothing is left of a row that lacks a column.
            prop_assert!(!updates.row(&vec![Cell::Absent; width], &vec![Cell::Null; width]));
        }
        prop_assert_eq!((updates.count(), updates.bytes()), (count, data.len()));
        let format = mariadb(Checksum::Crc32);
        let kind = EventType::UPDATE_ROWS_V1;
        let raw = encode_event(&header(kind), &Payload::Rows(updates.event(9)), &format);
        let mut body = vec![9, 0, 0, 0, 0, 0, 1, 0, width as u8];
        body.extend(bitmap(&present));
        body.extend(bitmap(&present_after));
        body.extend(&data);
        prop_assert_eq!(&raw, &encode_event(&header(kind), &Payload::Other(&body), &format));
    }
}

#[test]
fn values_of_another_length_are_not_put_into_updates() {
    let types = [
        ColumnType::Int { bytes: 4 },
        ColumnType::VarChar { bytes: 9 },
    ];
    let mut updates = Updates::new(&types, &[0], &[1]);
    let row = |id: &'static [u8], text: &'static [u8]| vec![Cell::Bytes(id), Cell::Bytes(text)];
    assert!(!updates.row(&row(b"123", b""), &row(b"1234", b"")));
    assert!(!updates.row(&row(b"1234", b""), &row(b"1234", &[b'x'; 256])));
    assert_eq!((updates.count(), updates.bytes()), (0, 0));
    assert!(updates.row(&row(b"1234", b""), &row(b"1234", &[b'x'; 9])));
}

/// Of rows cut anywhere those come that are whole, and then an error, unless
/// they were cut between two.
fn check_cut(
    event: &RowsEvent<'_>,
    data: &[u8],
    kinds: &[ColumnType],
    cut: usize,
    ends: &[usize],
    rows: &[Row<'_>],
) {
    let parts: Vec<_> = event.rows(&data[..cut], kinds).unwrap().collect();
    let whole = ends.iter().filter(|end| **end <= cut).count();
    let torn = cut > 0 && !ends.contains(&cut);
    assert_eq!(parts.len(), whole + usize::from(torn));
    for (part, row) in parts.iter().zip(&rows[..whole]) {
        assert_eq!(part.as_ref(), Ok(row));
    }
    if let Some(Err(error)) = parts.get(whole) {
        assert!(matches!(error.flaw, Flaw::Short { .. }), "{error}");
        // The place is that in the event: behind its head and the whole rows.
        let begin = whole.checked_sub(1).map_or(0, |last| ends[last]);
        let head = event.rows(&[], kinds).unwrap().count();
        assert_eq!(head, 0);
        assert!(error.offset > begin && error.offset <= 19 + 40 + cut);
    } else {
        assert!(!torn);
    }
}

/// An event with rows that are written out.
fn with_body(kind: EventType, body: &[u8]) -> Vec<u8> {
    encode_event(
        &header(kind),
        &Payload::Other(body),
        &mariadb(Checksum::Off),
    )
}

fn rows_event(raw: &[u8]) -> RowsEvent<'_> {
    let event = Event::parse(raw, Checksum::Off).unwrap();
    match event.decode(&mariadb(Checksum::Off)).unwrap() {
        Payload::Rows(event) => event,
        other => panic!("it carries rows, not {other:?}"),
    }
}

#[test]
fn columns_of_another_table() {
    let body = [9, 0, 0, 0, 0, 0, 1, 0, 2, 3, 0, 1, 1];
    let raw = with_body(EventType::WRITE_ROWS_V1, &body);
    let event = rows_event(&raw);
    let tiny = ColumnType::Int { bytes: 1 };
    let error = event.rows(event.stored, &[tiny]).unwrap_err();
    assert!(error.to_string().contains("number of columns"), "{error}");
    let columns = [tiny, tiny];
    let mut rows = event.rows(event.stored, &columns).unwrap();
    let row = rows.next().unwrap().unwrap();
    let after = row.after.unwrap();
    assert_eq!(after[1].value(tiny, false, 0), Some(Ok(Value::Int(1))));
    assert!(rows.next().is_none());
}

#[test]
fn rows_without_columns_end() {
    // Two columns, none of them present, and yet bytes.
    let body = [9, 0, 0, 0, 0, 0, 1, 0, 2, 0, 7, 7];
    let raw = with_body(EventType::WRITE_ROWS_V1, &body);
    let event = rows_event(&raw);
    let tiny = ColumnType::Int { bytes: 1 };
    let columns = [tiny, tiny];
    let mut rows = event.rows(event.stored, &columns).unwrap();
    assert!(rows.next().unwrap().is_err());
    assert!(rows.next().is_none());
}

/// An insert of defaults alone under `binlog_row_image=MINIMAL`: rows that take
/// no bytes. Nobody may believe that there are none.
#[test]
fn rows_without_columns_are_not_none() {
    let tiny = ColumnType::Int { bytes: 1 };
    let kinds = [
        (EventType::WRITE_ROWS_V1, 1),
        (EventType::DELETE_ROWS_V1, 1),
        (EventType::UPDATE_ROWS_V1, 2),
    ];
    for (kind, images) in kinds {
        // Bits beyond the last column have no meaning.
        for bits in [0, 0xfc] {
            let mut body = vec![9, 0, 0, 0, 0, 0, 1, 0, 2];
            body.extend(vec![bits; images]);
            let raw = with_body(kind, &body);
            let event = rows_event(&raw);
            let columns = [tiny, tiny];
            let mut rows = event.rows(event.stored, &columns).unwrap();
            let error = rows.next().unwrap().unwrap_err();
            assert!(error.to_string().contains("nobody can count"), "{error}");
            assert!(rows.next().is_none());
        }
    }
    // Of no table: it only ends a statement.
    let body = [0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 0];
    let raw = with_body(EventType::WRITE_ROWS_V1, &body);
    let event = rows_event(&raw);
    assert!(event.rows(event.stored, &[]).unwrap().next().is_none());
}

/// Column types that no table map says.
#[test]
fn impossible_columns_are_refused() {
    let body = [9, 0, 0, 0, 0, 0, 1, 0, 1, 1, 0, 7, 7, 7, 7];
    let raw = with_body(EventType::WRITE_ROWS_V1, &body);
    let event = rows_event(&raw);
    for column in [
        ColumnType::Int { bytes: 0 },
        ColumnType::Decimal {
            precision: 1,
            scale: 2,
        },
        ColumnType::Timestamp { fraction: 7 },
    ] {
        assert!(event.rows(event.stored, &[column]).is_err(), "{column:?}");
    }
}
