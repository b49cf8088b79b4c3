//! Units made into steps: which rows are folded, which go in order, which by BINLOG.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::Arc;

use dromon_binlog::{
    Change, ColumnType, Event, EventType, Gtid, Header, Image, Payload, RowsEvent, TableMap,
    encode_event, gtid_flags, rows_flags,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::default_database::asks_database;
use super::event::on_replica;
use super::fold::Fold;
use super::images::Origin;
use super::invoker;
use super::load::Files;
use super::statement::{Before, Collations, cut_off, is_announced, lacks, wording};
use super::writer::Writer;
use super::{Compare, CompileError, Note, Op, Options, Style};
use crate::catalog::{ColumnInfo, TableInfo, Tables};
use crate::source::incident;
use crate::unit::{Alone, Form, Own, Transaction, Unit};
use crate::value::is_fit;

/// Most bytes of rows that are decompressed.
const DATA_MAX: usize = 1 << 30;

/// A BINLOG statement takes no further event with so many bytes of rows: a packet has its limits, and
/// the server decodes a long one slowly.
const BINLOG_BYTES: usize = 1 << 20;

/// Rows of one event.
pub(super) struct Part<'a> {
    pub event: RowsEvent<'a>,
    pub data: Cow<'a, [u8]>,
    pub table: Arc<TableInfo>,
    pub types: Arc<[ColumnType]>,
    origin: Origin<'a>,
    gtid: Gtid,
    /// Its transaction comes last.
    last: bool,
}

/// What a unit consists of, in its order.
pub(super) enum Piece<'a> {
    /// Statements can say them.
    Rows(Part<'a>),
    /// A statement of the source, or a part of it: its table maps and rows.
    Binlog {
        text: Vec<u8>,
        tables: Vec<String>,
        gtid: Gtid,
        /// As of [`Op::Binlog`].
        local: bool,
        /// Triggers run for its rows, which may read and write any table.
        triggers_run: bool,
    },
    Statement(Op),
    /// On the replica's own tables.
    Own(&'a Own, Gtid),
}

/// A table as a table map gave it.
struct Mapped {
    name: String,
    wanted: bool,
    /// A column of numbers that are UNSIGNED on one side only. BINLOG would take one for the other.
    other_sign: Option<String>,
    /// A column of texts whose character set is another one on the source, and that set. Its bytes would be other
    /// characters, however they come.
    other_charset: Option<(String, String)>,
    /// A column that is at another place on the source, and the one that is there here. Its values would go into that
    /// one: BINLOG goes by places.
    other_place: Option<(String, String)>,
    /// The target may compute something with its rows that goes by the session.
    local: bool,
    /// As of [`Piece::Binlog`].
    triggers_run: bool,
    /// It is a sequence, and the target does not survive rows of it.
    fatal: bool,
    /// `None`: rows of it go by BINLOG.
    plain: Option<(Arc<TableInfo>, Arc<[ColumnType]>)>,
}

/// Table maps of a unit by their bodies: its transactions bring the same ones again and again.
#[derive(Default)]
struct Maps<'a> {
    /// How the events look from which they are.
    form: Option<&'a Form>,
    seen: FxHashMap<&'a [u8], Arc<Mapped>>,
}

impl<'a> Maps<'a> {
    /// `tables`: none if they may be others now; and what they were before.
    fn find(
        &mut self,
        map: &TableMap<'a>,
        body: &'a [u8],
        form: &'a Form,
        (tables, before): (Option<&Tables>, &Tables),
        options: &Options<'_>,
    ) -> Arc<Mapped> {
        let make = || {
            let mut mapped = mapped(map, tables, options, form.format.flavour());
            // What makes a sequence is a transaction of its own.
            mapped.fatal = options.collations.falls_by_sequences
                && before.is_sequence(map.database, map.table);
            Arc::new(mapped)
        };
        if tables.is_none() {
            return make();
        }
        if !self.form.is_some_and(|seen| std::ptr::eq(seen, form)) {
            self.seen.clear();
            self.form = Some(form);
        }
        Arc::clone(self.seen.entry(body).or_insert_with(make))
    }
}

fn bit(map: &[u8], n: usize) -> bool {
    map.get(n / 8).is_some_and(|byte| byte >> (n % 8) & 1 == 1)
}

/// Whether an image has all that statements say.
fn is_full(map: &[u8], table: &TableInfo) -> bool {
    let mut columns = table.columns.iter().enumerate();
    columns.all(|(n, column)| column.generated || bit(map, n))
}

/// Columns of whole numbers that are UNSIGNED on one side only, as far as the source says so; `None`: it does not
/// say, and there are columns that are not of the same width here, or no whole numbers. What looks the
/// same is taken for the same.
fn other_signs(
    table: &TableInfo,
    types: &[ColumnType],
    said: Option<&[bool]>,
) -> Option<Vec<usize>> {
    let numbers = || {
        let both = table.columns.iter().zip(types).enumerate();
        both.filter(|(_, (column, kind))| {
            !column.generated && matches!(kind, ColumnType::Int { .. })
        })
    };
    match said {
        Some(unsigned) => {
            let others = numbers().filter(|(n, (column, _))| column.unsigned != unsigned[*n]);
            Some(others.map(|(n, _)| n).collect())
        }
        None => numbers()
            .all(|(_, (column, kind))| column.stored == Some(*kind))
            .then(Vec::new),
    }
}

/// Whether all values are here what they are on the source. The server's own applier refuses others, or converts
/// them as it is told to.
fn kept(table: &TableInfo, types: &[ColumnType]) -> bool {
    let mut both = table.columns.iter().zip(types);
    both.all(|(column, kind)| column.generated || column.holds(*kind))
}

/// The first column of texts whose bytes mean something else here, as far as the source says in which character
/// set they are.
fn other_charset(
    table: &TableInfo,
    said: Option<&[Option<u64>]>,
    collations: &Collations,
) -> Option<(String, String)> {
    let mut both = table.columns.iter().zip(said?);
    both.find_map(|(column, number)| {
        let (_, charset) = collations.find(u32::try_from((*number)?).ok()?)?;
        let other = !column.generated && !column.reads(charset);
        other.then(|| (column.name.clone(), charset.clone()))
    })
}

/// The first column of the source that stands elsewhere here, and the one that stands at its place. One that has another
/// name here, and no other one has its own, was renamed.
fn other_place(table: &TableInfo, said: Option<&[&[u8]]>) -> Option<(String, String)> {
    let is = |name: &[u8], column: &ColumnInfo| name.eq_ignore_ascii_case(column.name.as_bytes());
    let mut all = said?.iter().enumerate();
    all.find_map(|(n, name)| {
        let at = table.columns.iter().position(|column| is(name, column))?;
        let here = || match table.columns.get(n) {
            Some(column) => format!("column {}", column.name),
            None => "no column".into(),
        };
        (at != n).then(|| (String::from_utf8_lossy(name).into_owned(), here()))
    })
}

fn mapped(
    map: &TableMap<'_>,
    tables: Option<&Tables>,
    options: &Options<'_>,
    flavour: dromon_binlog::Flavour,
) -> Mapped {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (mut other_sign, mut other_set, mut elsewhere) = (None, None, None);
    let found = tables.and_then(|tables| tables.find(map.database, map.table));
    let mut plain = || {
        let table = found?;
        let types = map.columns().ok()?;
        let by_event = options.computed && table.columns.iter().any(|column| column.generated);
        let fit = table.plain
            && !by_event
            && table.columns.len() == types.len()
            && types.iter().all(|t| is_fit(*t))
            && kept(table, &types);
        let said = map.metadata(&types, flavour).ok()?;
        other_set = other_charset(table, said.collations.as_deref(), options.collations);
        elsewhere = other_place(table, said.names.as_deref());
        let same = said.names.is_none_or(|names| {
            let mut both = names.iter().zip(&table.columns);
            both.all(|(name, column)| name.eq_ignore_ascii_case(column.name.as_bytes()))
        });
        let others = other_signs(table, &types, said.unsigned.as_deref())?;
        let first = others.first().map(|n| table.columns[*n].name.clone());
        other_sign.clone_from(&first);
        (fit && same).then(|| {
            let table = match first {
                None => Arc::clone(table),
                // Literals say what the source means.
                Some(_) => Arc::new(with_signs_of_the_source(table, &others)),
            };
            (table, types.into())
        })
    };
    let plain = plain();
    // Columns that the source does not have get their defaults; in rows that a foreign key changes there may
    // be columns to compute.
    let local = found
        .is_none_or(|table| table.local || table.related || table.columns.len() != map.width());
    Mapped {
        // The order of its rows is by name: the target may spell it otherwise.
        name: match found {
            Some(table) => table.name.clone(),
            None => format!("{}.{}", text(map.database), text(map.table)),
        },
        wanted: options.filter.wants(map.database, map.table),
        other_sign,
        other_charset: other_set,
        other_place: elsewhere,
        local,
        triggers_run: found.is_some_and(|table| table.care.fires(map)),
        fatal: false,
        plain,
    }
}

fn with_signs_of_the_source(table: &TableInfo, others: &[usize]) -> TableInfo {
    let mut table = table.clone();
    for n in others {
        let column = &mut table.columns[*n];
        column.unsigned = !column.unsigned;
        // Not as the target's own: no event of rows may be made of it.
        column.stored = None;
    }
    table
}

/// The same rows, not compressed: BINLOG takes no others.
fn plain_event(
    event: &Event<'_>,
    rows: &RowsEvent<'_>,
    data: &[u8],
    unit_format: &dromon_binlog::Format,
) -> Vec<u8> {
    if !rows.compressed {
        return event.raw().to_vec();
    }
    let kind = match event.kind() {
        EventType::WRITE_ROWS_COMPRESSED_V1 => EventType::WRITE_ROWS_V1,
        EventType::UPDATE_ROWS_COMPRESSED_V1 => EventType::UPDATE_ROWS_V1,
        EventType::DELETE_ROWS_COMPRESSED_V1 => EventType::DELETE_ROWS_V1,
        EventType::WRITE_ROWS_COMPRESSED_V2 => EventType::WRITE_ROWS_V2,
        EventType::UPDATE_ROWS_COMPRESSED_V2 => EventType::UPDATE_ROWS_V2,
        EventType::DELETE_ROWS_COMPRESSED_V2 => EventType::DELETE_ROWS_V2,
        other => other,
    };
    let header = Header {
        kind,
        ..*event.header()
    };
    let mut plain = *rows;
    plain.compressed = false;
    plain.stored = data;
    encode_event(&header, &Payload::Rows(plain), unit_format)
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A BINLOG statement as two statements that set variables, and one that takes what stands there: for
/// an event that is too long for a packet.
pub(crate) fn in_fragments(statement: &[u8]) -> [Vec<u8>; 3] {
    let text = statement.strip_prefix(b"BINLOG '").unwrap_or_default();
    let text = text.strip_suffix(b"'").unwrap_or_default();
    let (one, two) = text.split_at(text.len() / 2);
    let set =
        |name: &str, text: &[u8]| [b"SET @dromon_", name.as_bytes(), b"='", text, b"'"].concat();
    [
        set("a", one),
        set("b", two),
        b"BINLOG @dromon_a, @dromon_b".to_vec(),
    ]
}

/// Events as a BINLOG statement.
pub(crate) fn binlog_statement<'a>(events: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = b"BINLOG '".to_vec();
    for event in events {
        for three in event.chunks(3) {
            let n =
                three.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)) << (8 * (3 - three.len()));
            for at in 0..4 {
                out.push(match at <= three.len() {
                    true => BASE64[(n >> (18 - 6 * at) & 63) as usize],
                    false => b'=',
                });
            }
        }
        // Each event by itself, as the server reads them.
        out.push(b'\n');
    }
    out.push(b'\'');
    out
}

/// A statement of the source, in rows.
#[derive(Default)]
struct Open<'a> {
    /// What each table is, and the event that says so.
    maps: FxHashMap<u64, (Arc<Mapped>, &'a [u8])>,
    parts: Vec<(Event<'a>, RowsEvent<'a>, Cow<'a, [u8]>, u64)>,
}

fn close<'a>(
    open: Open<'a>,
    pieces: &mut Vec<Piece<'a>>,
    (gtid, last): (Gtid, bool),
    form: &'a Form,
    by_binlog: &FxHashSet<String>,
    most: usize,
) -> Result<(), CompileError> {
    let Open { maps, parts } = open;
    let format = &form.format;
    let unknown = || CompileError::Unsupported {
        gtid,
        what: "rows of a table that no event before them names".into(),
    };
    let mut all_plain = true;
    let mut wanted = Vec::new();
    for part in parts {
        // An event of no table ends a statement.
        if part.1.width == 0 && part.1.stored.is_empty() {
            continue;
        }
        let (map, _) = maps.get(&part.3).ok_or_else(unknown)?;
        if map.wanted {
            if let Some((column, charset)) = &map.other_charset {
                return Err(CompileError::Unsupported {
                    gtid,
                    what: format!(
                        "column {column} of {} is in {charset} on the source and in another character set on the target, where its bytes would be \
                         other characters",
                        map.name
                    ),
                });
            }
            if let Some((column, here)) = &map.other_place {
                return Err(CompileError::Unsupported {
                    gtid,
                    what: format!(
                        "column {column} of {} is at another place on the source, where the target has {here}, and rows go by places: give the \
                         target's table the source's order of columns (ALTER TABLE … MODIFY … AFTER …)",
                        map.name
                    ),
                });
            }
            let (event, before) = (&part.1, part.1.columns);
            // Those without all columns, too: where the target logs whole rows it takes them for whole.
            if map.fatal {
                return Err(CompileError::Unsupported {
                    gtid,
                    what: format!(
                        "rows of the sequence {} go by BINLOG, of which a server of the target's version dies, after each restart once more. \
                         Upgrade the target (to 10.6.18, 10.11.8, 11.4.2 or newer); or leave the sequence out (without), and set it there by \
                         hand (SETVAL) before the target takes the source's place",
                        map.name
                    ),
                });
            }
            all_plain &= !by_binlog.contains(&map.name);
            all_plain &= map.plain.as_ref().is_some_and(|(table, types)| {
                let after = match event.change {
                    Change::Update => event.columns_after,
                    _ => before,
                };
                types.len() == event.width && is_full(before, table) && is_full(after, table)
            });
            wanted.push(part);
        }
    }
    if all_plain {
        for (_, event, data, id) in wanted {
            let (mapped, map) = &maps[&id];
            let (table, types) = mapped.plain.clone().ok_or_else(unknown)?;
            let origin = Origin {
                map,
                table_id: id,
                form,
            };
            pieces.push(Piece::Rows(Part {
                event,
                data,
                table,
                types,
                origin,
                gtid,
                last,
            }));
        }
        return Ok(());
    }
    for (_, _, _, id) in &wanted {
        let (map, _) = &maps[id];
        if let Some(column) = &map.other_sign {
            return Err(CompileError::Unsupported {
                gtid,
                what: format!(
                    "column {column} of {} is UNSIGNED on one side only, and its rows go by BINLOG, which would take one number for another",
                    map.name
                ),
            });
        }
    }
    if wanted.is_empty() {
        return Ok(());
    }
    // Each piece begins with what its tables are, and ends a statement.
    let mut rest = &wanted[..];
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = rest.iter().take_while(|(_, _, data, _)| {
            let first = bytes == 0;
            bytes += data.len();
            first || bytes <= most
        });
        let (now, later) = rest.split_at(fits.count().max(1));
        rest = later;
        let mut events: Vec<Vec<u8>> = Vec::new();
        let mut tables = Vec::new();
        let mut mapped = FxHashSet::default();
        let (mut local, mut triggers_run) = (false, false);
        for (_, _, _, id) in now {
            if mapped.insert(*id) {
                let (map, raw) = &maps[id];
                events.push(raw.to_vec());
                tables.push(map.name.clone());
                local |= map.local;
                triggers_run |= map.triggers_run;
            }
        }
        for (n, (event, rows, data, _)) in now.iter().enumerate() {
            let mut raw = plain_event(event, rows, data, format);
            if n + 1 == now.len() && rows.flags & rows_flags::STATEMENT_END == 0 {
                raw = ended(&raw, format);
            }
            events.push(raw);
        }
        pieces.push(Piece::Binlog {
            text: binlog_statement(events.iter().map(Vec::as_slice)),
            tables,
            gtid,
            local,
            triggers_run,
        });
    }
    Ok(())
}

/// The same event as the last one of its statement: what followed it was filtered.
fn ended(raw: &[u8], format: &dromon_binlog::Format) -> Vec<u8> {
    let again = || {
        let event = Event::parse_unverified(raw, format.checksum()).ok()?;
        let Payload::Rows(mut rows) = event.decode(format).ok()? else {
            return None;
        };
        rows.flags |= rows_flags::STATEMENT_END;
        Some(encode_event(event.header(), &Payload::Rows(rows), format))
    };
    again().unwrap_or_else(|| raw.to_vec())
}

/// Whether a statement only begins or ends a transaction.
pub(crate) fn is_frame(text: &[u8]) -> bool {
    ["BEGIN", "COMMIT", "ROLLBACK"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word.as_bytes()))
}

/// Whether a statement only marks a place to go back to. Without a statement that goes back there it
/// does nothing.
pub(crate) fn is_savepoint(text: &[u8]) -> bool {
    ["SAVEPOINT ", "RELEASE SAVEPOINT "].iter().any(|words| {
        let begin = text.get(..words.len());
        begin.is_some_and(|begin| begin.eq_ignore_ascii_case(words.as_bytes()))
    })
}

/// Whether it only names a place in its transaction, or goes back to one: it is about no table and no database.
pub(crate) fn is_place(text: &[u8]) -> bool {
    const BACK: &[u8] = b"ROLLBACK TO ";
    let begin = text.get(..BACK.len());
    is_savepoint(text) || begin.is_some_and(|begin| begin.eq_ignore_ascii_case(BACK))
}

#[cfg(test)]
thread_local! {
    /// How often this thread has looked for statements in a transaction.
    pub(super) static LOOKED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Whether a transaction has statements that do something.
fn has_statements(transaction: &Transaction) -> bool {
    #[cfg(test)]
    LOOKED.set(LOOKED.get() + 1);
    let format = &transaction.form.format;
    transaction
        .events()
        .flatten()
        .any(|event| match event.decode(format) {
            Ok(Payload::Query(query)) => {
                let begin = query.begin();
                !is_frame(&begin) && !is_savepoint(&begin)
            }
            Ok(Payload::LoadQuery(_)) => true,
            _ => false,
        })
}

/// `by_binlog`: tables whose rows go so, whatever they are.
pub(super) fn pieces<'a>(
    unit: &'a Unit,
    options: &Options<'_>,
    by_binlog: &FxHashSet<String>,
) -> Result<Vec<Piece<'a>>, CompileError> {
    let mut pieces = Vec::new();
    let mut maps = Maps::default();
    let together = options.whole && unit.alone == Some(Alone::NotTransactional);
    let most = if together { usize::MAX } else { BINLOG_BYTES };
    for (nth, transaction) in unit.transactions.iter().enumerate() {
        let gtid = transaction.gtid;
        let began = pieces.len();
        let last = unit.last.get(nth).copied().unwrap_or(false);
        let format = &transaction.form.format;
        let mut open = Open::default();
        let mut before = Before::of(format);
        let mut files = Files::default();
        let mut tables = Some(&*unit.tables);
        // Asked once: some clients set a savepoint for each row, and the answer may lie behind all of them.
        let does = OnceCell::new();
        for event in transaction.events() {
            let bad = |error| CompileError::Event { gtid, error };
            let event = event.map_err(bad)?;
            let unsupported = |what: &str| CompileError::Unsupported {
                gtid,
                what: what.into(),
            };
            if let Some(taken) = before.event(&event, options.collations) {
                taken.map_err(unsupported)?;
                continue;
            }
            match event.decode(format).map_err(bad)? {
                Payload::Gtid(_) | Payload::Annotate(_) | Payload::Xid(_) => {}
                Payload::TableMap(map) => {
                    let tables = (tables, &*unit.tables);
                    let of = maps.find(&map, event.body(), &transaction.form, tables, options);
                    open.maps.insert(map.table_id, (of, event.raw()));
                }
                Payload::Rows(rows) => {
                    let data = rows.data(DATA_MAX).map_err(bad)?;
                    let ends = rows.flags & rows_flags::STATEMENT_END != 0;
                    open.parts.push((event, rows, data, rows.table_id));
                    if ends {
                        close(
                            std::mem::take(&mut open),
                            &mut pieces,
                            (gtid, last),
                            &transaction.form,
                            by_binlog,
                            most,
                        )?;
                    }
                }
                Payload::Query(query) => {
                    let begin = query.begin();
                    if is_frame(&begin) || is_announced(&query) {
                        continue;
                    }
                    if is_savepoint(&begin) && !does.get_or_init(|| has_statements(transaction)) {
                        continue;
                    }
                    // It may have made the table of the rows that follow.
                    tables = None;
                    let mut op = before.statement(&query, &event, gtid, options.collations)?;
                    let Op::Statement {
                        setup, uses, text, ..
                    } = &mut op
                    else {
                        continue;
                    };
                    if is_place(text) {
                        // Rows of other databases may lie behind it, and the target need not have this one.
                        setup.drain(std::mem::replace(uses, 0..0));
                        pieces.push(Piece::Statement(op));
                        continue;
                    }
                    let how = wording(query.status(), options.collations);
                    let wanted = options.filter.wants_statement_of(text, query.database, how);
                    if wanted.map_err(|why| unsupported(&why))? {
                        if let Some(why) = cut_off(query.error) {
                            return Err(unsupported(&why));
                        }
                        let asks = || asks_database(text, query.database, how);
                        if let Some(why) = lacks(query.status(), options.collations).or_else(asks) {
                            return Err(unsupported(why));
                        }
                        if let Some(changed) = on_replica(text, how).map_err(unsupported)? {
                            *text = changed;
                        }
                        let named = invoker::named(text, query.status(), how);
                        if let Some(changed) = named.map_err(|why| unsupported(&why))? {
                            *text = changed;
                        }
                        pieces.push(Piece::Statement(op));
                    }
                }
                Payload::FileBlock(block) => {
                    let taken = files.block(event.kind(), &block);
                    taken.map_err(|why| unsupported(&why))?;
                }
                Payload::DeleteFile(file) => files.delete(file),
                Payload::LoadQuery(load) => {
                    let whole = transaction.group.flags & gtid_flags::TRANSACTIONAL != 0;
                    let op = files.load(&load, &event, gtid, whole, &mut before, options)?;
                    pieces.extend(op.map(Piece::Statement));
                }
                // What it stands for is decided.
                Payload::XaPrepare(_) if transaction.own.is_some() => {}
                Payload::XaPrepare(_) => {
                    return Err(unsupported("XA COMMIT … ONE PHASE of MySQL is not offered"));
                }
                _ if event.kind() == EventType::INCIDENT => {
                    let what = format!("the source sent an INCIDENT: {}", incident(&event));
                    return Err(unsupported(&what));
                }
                _ => {
                    return Err(unsupported(&format!(
                        "events of the type {} are not offered",
                        event.kind()
                    )));
                }
            }
        }
        if !open.parts.is_empty() {
            close(
                open,
                &mut pieces,
                (gtid, last),
                &transaction.form,
                by_binlog,
                most,
            )?;
        }
        // Around what is left out, places are for nothing.
        let is_empty = |piece: &Piece<'_>| matches!(piece, Piece::Statement(op) if op.is_place());
        if pieces[began..].iter().all(is_empty) {
            pieces.truncate(began);
        }
        pieces.extend(transaction.own.iter().map(|own| Piece::Own(own, gtid)));
    }
    Ok(pieces)
}

/// Makes steps of a unit.
pub fn compile(unit: &Unit, options: &Options<'_>) -> Result<Vec<Op>, CompileError> {
    // Not the others, which BINLOG may not take as they are here: each of them would pass by itself.
    let mut by_binlog = FxHashSet::default();
    loop {
        let (ops, unfit) = attempt(unit, options, &by_binlog)?;
        if unfit.is_empty() {
            return Ok(ops);
        }
        let before = by_binlog.len();
        by_binlog.extend(unfit);
        if by_binlog.len() == before {
            return Err(CompileError::Unsupported {
                gtid: unit.transactions[0].gtid,
                what: "a statement of it is longer than the target's max_allowed_packet".into(),
            });
        }
    }
}

/// The steps, if rows of some tables go by BINLOG, and the further tables of which there is a value that no
/// literal says.
fn attempt(
    unit: &Unit,
    options: &Options<'_>,
    by_binlog: &FxHashSet<String>,
) -> Result<(Vec<Op>, FxHashSet<String>), CompileError> {
    let pieces = pieces(unit, options, by_binlog)?;
    // Tables whose rows must stay in the source's order.
    let mut ordered: FxHashSet<&str> = FxHashSet::default();
    let mut rows: Vec<(usize, &Part<'_>, Vec<dromon_binlog::Row<'_>>)> = Vec::new();
    let mut first_of: FxHashMap<&str, &Part<'_>> = FxHashMap::default();
    for (n, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Rows(part) => {
                let bad = |error| CompileError::Event {
                    gtid: part.gtid,
                    error,
                };
                let all = part.event.rows(&part.data, &part.types).map_err(bad)?;
                let all = all.collect::<Result<Vec<_>, _>>().map_err(bad)?;
                let table = &part.table;
                let swaps = !table.unique.is_empty()
                    && all.iter().any(|row| match (&row.before, &row.after) {
                        (Some(a), Some(b)) => {
                            let mut columns = table.unique.iter().chain(&table.key);
                            columns.any(|n| a[*n] != b[*n])
                        }
                        _ => false,
                    });
                // The source altered it meanwhile, without saying so.
                let first = first_of.entry(&table.name).or_insert(part);
                let differs = *first.types != *part.types || !Arc::ptr_eq(&first.table, table);
                let single = options.style == Style::Single || options.compare == Compare::Row;
                if single || table.related || swaps || differs {
                    ordered.insert(&table.name);
                }
                rows.push((n, part, all));
            }
            Piece::Binlog { tables, .. } => ordered.extend(tables.iter().map(String::as_str)),
            Piece::Statement(_) | Piece::Own(..) => {}
        }
    }
    // A statement may touch any table, and so may a trigger.
    let statements = pieces.iter().any(|piece| match piece {
        Piece::Statement(_) => true,
        Piece::Binlog { triggers_run, .. } => *triggers_run,
        Piece::Rows(_) | Piece::Own(..) => false,
    });
    let mut writer = Writer::new(options);
    let mut folds: Vec<Fold<'_>> = Vec::new();
    let mut fold_of: FxHashMap<*const TableInfo, usize> = FxHashMap::default();
    let mut rows = rows.into_iter().peekable();
    for (n, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Rows(_) => {
                let Some((_, part, all)) = rows.next_if(|(at, ..)| *at == n) else {
                    continue;
                };
                let table: &TableInfo = &part.table;
                let in_order = statements || ordered.contains(table.name.as_str());
                let no_checks = part.event.flags & rows_flags::NO_FOREIGN_KEYS != 0;
                let fold = (!in_order).then(|| {
                    *fold_of.entry(std::ptr::from_ref(table)).or_insert_with(|| {
                        folds.push(Fold::new(table, &part.types, Some(part.origin)));
                        folds.len() - 1
                    })
                });
                for row in all {
                    match fold {
                        Some(at) => folds[at].row(part.gtid, row, part.last),
                        None => {
                            writer.checks(!(no_checks && table.related));
                            writer.row(table, &part.types, part.gtid, row);
                        }
                    }
                }
            }
            Piece::Binlog {
                text,
                tables,
                gtid,
                local,
                ..
            } => {
                writer.push(Op::Binlog {
                    text: text.clone(),
                    note: Note {
                        gtid: *gtid,
                        table: tables.join(", "),
                        change: None,
                        key: String::new(),
                    },
                    local: *local,
                });
            }
            Piece::Statement(op) => writer.push(op.clone()),
            Piece::Own(own, gtid) => writer.own(own, *gtid),
        }
    }
    writer.checks(true);
    let in_two = unit.last.contains(&true);
    let mut first = Writer::new(options);
    for fold in folds {
        fold.write(&mut writer, in_two.then_some(&mut first));
    }
    let (rest, mut unfit) = writer.finish();
    if !in_two {
        return Ok((rest, unfit));
    }
    let (mut ops, unfit_first) = first.finish();
    unfit.extend(unfit_first);
    ops.push(Op::Last);
    ops.extend(rest);
    Ok((ops, unfit))
}

/// Cells of a row, for whoever writes it.
pub(super) type Cells<'a> = Image<'a>;
