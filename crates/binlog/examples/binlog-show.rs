//! Shows binlog files, one line for each event, and checks that they are
//! understood: `binlog-show [--rows] [--packets] FILE…`.
//!
//! Of every event the checksum and the place are verified, and its body is
//! decoded and written again, which must give the same bytes. GTID events get
//! room for a commit id, one is set and taken away again. With `--rows` the
//! values of changed rows follow, numbered as `mariadb-binlog -v` does it. A
//! file that ends within a group is no error; where it does is said. With
//! `--packets` a file is what a primary sent: each event behind its length, a
//! u32, without the protocol's own bytes.

use std::collections::HashMap;
use std::process::ExitCode;

use dromon_binlog::{
    Cell, Change, Checksum, ColumnType, Cut, EVENT_MAX, Event, EventType, Format, Grouper,
    GtidHint, Image, Metadata, Payload, RowsEvent, Step, check_magic, cut_event, encode_event,
    normalise_gtid, patch_gtid, uuid_text, with_checksum,
};

type Failure = Box<dyn std::error::Error>;

struct Table {
    name: String,
    columns: Vec<ColumnType>,
    unsigned: Vec<bool>,
}

#[derive(Default)]
struct Totals {
    events: u64,
    groups: u64,
    rows: u64,
}

fn main() -> ExitCode {
    let mut rows = false;
    let mut packets = false;
    let mut failed = false;
    let mut files = 0;
    for arg in std::env::args().skip(1) {
        if arg == "--rows" {
            rows = true;
            continue;
        }
        if arg == "--packets" {
            packets = true;
            continue;
        }
        files += 1;
        match show(&arg, rows, packets) {
            Ok(totals) => println!(
                "{arg}: {} events, {} groups, {} rows; all checked",
                totals.events, totals.groups, totals.rows
            ),
            Err(error) => {
                println!("{arg}: {error}");
                failed = true;
            }
        }
    }
    if files == 0 {
        eprintln!("usage: binlog-show [--rows] [--packets] FILE…");
    }
    match failed || files == 0 {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

/// The event that comes next, `None` at the end.
fn next_event<'a>(
    bytes: &'a [u8],
    at: u64,
    packets: &mut Option<usize>,
) -> Result<Option<&'a [u8]>, Failure> {
    if let Some(place) = packets {
        let Some((len, rest)) = bytes[*place..].split_first_chunk() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*len) as usize;
        *place += 4 + len;
        return Ok(rest.get(..len));
    }
    Ok(match cut_event(&bytes[at as usize..], at, EVENT_MAX)? {
        Cut::Event(raw) => Some(raw),
        Cut::More { .. } => None,
    })
}

fn show(name: &str, rows: bool, packets: bool) -> Result<Totals, Failure> {
    let bytes = std::fs::read(name)?;
    let mut place = packets.then_some(0);
    let mut grouper = match packets {
        true => Grouper::of_connection(),
        false => {
            check_magic(&bytes)?;
            Grouper::of_file()
        }
    };
    let mut tables = HashMap::new();
    let mut totals = Totals::default();
    while let Some(raw) = next_event(&bytes, grouper.at(), &mut place)? {
        let at = grouper.at();
        let seen = grouper.event(raw)?;
        let format = grouper.format().cloned().unwrap_or_else(Format::unknown);
        let payload = seen.event.decode(&format)?;
        totals.events += 1;
        println!(
            "{at} {} server {} to {} flags {:x}: {}",
            seen.event.kind(),
            seen.event.header().server_id,
            seen.event.header().end_pos,
            seen.event.header().flags,
            describe(&payload, &format, &mut tables)?
        );
        check(&seen.event, &payload, &format)?;
        if let Payload::Rows(event) = &payload {
            totals.rows += show_rows(event, &tables, rows)?;
        }
        if let Some(group) = seen.abandoned {
            println!("! group at {} was never finished", group.begin);
        }
        if let Step::End(group, ending) | Step::Alone(group, ending) = seen.step {
            totals.groups += 1;
            println!(
                "= group {:?}: {} events, {} bytes, flags {:x}, commit id {:?}, {ending:?}",
                group.name,
                group.events,
                group.bytes(),
                group.flags,
                group.commit_id
            );
        }
    }
    let end = match packets {
        true => grouper.at(),
        false => bytes.len() as u64,
    };
    if grouper.settled() != end {
        println!("! torn from byte {} on", grouper.settled());
    }
    Ok(totals)
}

/// What this crate claims about every event.
fn check(event: &Event<'_>, payload: &Payload<'_>, format: &Format) -> Result<(), Failure> {
    let of_event = &Format {
        checksum: Some(event.checksum()),
        ..format.clone()
    };
    let again = encode_event(event.header(), payload, of_event);
    if again != event.raw() {
        return Err(format!("written again it differs: {:02x?}", event.raw()).into());
    }
    // A format description has its own checksum always, and says what others have.
    let own = match event.kind() {
        EventType::FORMAT_DESCRIPTION => format.checksum(),
        _ => event.checksum(),
    };
    for other in [Checksum::Off, Checksum::Crc32] {
        let changed = with_checksum(event, other)?;
        let parsed = Event::parse(&changed, other)?;
        if *with_checksum(&parsed, own)? != *event.raw() {
            return Err("another checksum and back differs".into());
        }
    }
    if event.kind() == EventType::GTID {
        let roomy = normalise_gtid(event)?.into_owned();
        let mut patched = roomy.clone();
        let before = Event::parse(&roomy, event.checksum())?.decode(format)?;
        let Payload::Gtid(before) = before else {
            return Err("a normalised GTID event is none".into());
        };
        for commit_id in [Some(77), None, before.commit_id] {
            let hint = GtidHint {
                commit_id,
                flags: None,
            };
            patch_gtid(&mut patched, event.checksum(), hint)?;
            let parsed = Event::parse(&patched, event.checksum())?;
            match parsed.decode(format)? {
                Payload::Gtid(after) => {
                    let same = after.gtid == before.gtid
                        && after.xa == before.xa
                        && after.extra == before.extra;
                    if !same || after.commit_id != commit_id {
                        return Err("a hint changed more than the hint".into());
                    }
                }
                _ => return Err("a patched GTID event is none".into()),
            }
        }
        if patched != roomy {
            return Err("a hint taken back left something".into());
        }
    }
    Ok(())
}

fn text(bytes: &[u8]) -> String {
    let shown: String = String::from_utf8_lossy(bytes)
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    match shown.char_indices().nth(100) {
        Some((at, _)) => format!("{}…", &shown[..at]),
        None => shown,
    }
}

fn describe(
    payload: &Payload<'_>,
    format: &Format,
    tables: &mut HashMap<u64, Table>,
) -> Result<String, Failure> {
    Ok(match payload {
        Payload::Format(f) => format!(
            "{} {:?}, checksum {:?}, {} types",
            f.version_text(),
            f.flavour(),
            f.checksum,
            f.post_header_lens.len()
        ),
        Payload::Rotate(r) => format!("{} at {}", text(r.file), r.position),
        Payload::Stop => String::new(),
        Payload::Heartbeat(h) => format!("{} at {}", text(h.file), h.position),
        Payload::Query(q) => {
            let status: Vec<_> = q.status().collect::<Result<_, _>>()?;
            format!(
                "thread {} in {}: {} {status:?}",
                q.thread_id,
                text(q.database),
                text(&q.text(EVENT_MAX as usize)?)
            )
        }
        Payload::FileBlock(b) => format!("file {}, {} bytes", b.file, b.bytes.len()),
        Payload::DeleteFile(file) => format!("file {file}"),
        Payload::LoadQuery(l) => {
            let status: Vec<_> = l.status().collect::<Result<_, _>>()?;
            let [before, name, behind] = l.parts().map(text);
            format!(
                "thread {} in {}, file {}, duplicates {:?}, error {}: {before}[{name}]{behind} {status:?}",
                l.query.thread_id,
                text(l.query.database),
                l.file,
                l.duplicates,
                l.query.error
            )
        }
        Payload::Xid(n) => n.to_string(),
        Payload::XaPrepare(x) => format!("{x:?}"),
        Payload::TableMap(map) => {
            let columns = map.columns()?;
            let metadata = map.metadata(&columns, format.flavour())?;
            let name = format!("`{}`.`{}`", text(map.database), text(map.table));
            let shown = describe_table(&name, map.table_id, &columns, &metadata);
            let table = Table {
                name,
                unsigned: metadata
                    .unsigned
                    .unwrap_or_else(|| vec![false; columns.len()]),
                columns,
            };
            tables.insert(map.table_id, table);
            shown
        }
        Payload::Rows(r) => format!(
            "table {} flags {:x} columns {:x?} {:x?}, {} bytes",
            r.table_id,
            r.flags,
            r.columns,
            r.columns_after,
            r.stored.len()
        ),
        Payload::Gtid(g) => format!(
            "{} flags {:x} commit id {:?} {:?} {:?} and {} bytes",
            g.gtid,
            g.flags,
            g.commit_id,
            g.xa,
            g.extra,
            g.tail.len()
        ),
        Payload::GtidList(l) => format!("flags {:x} [{}]", l.flags, l.state()),
        Payload::Annotate(t) => text(t),
        Payload::Checkpoint(c) => text(c.file),
        Payload::StartEncryption(s) => format!("{s:?}"),
        Payload::MySqlGtid(g) => format!(
            "{}:{} {:?} {:?}",
            uuid_text(&g.source),
            g.number,
            g.clock,
            g.commit
        ),
        Payload::PreviousGtids(set) => set.to_string(),
        Payload::Other(body) => format!("{} bytes", body.len()),
    })
}

fn describe_table(name: &str, id: u64, columns: &[ColumnType], m: &Metadata<'_>) -> String {
    let names = m.names.as_ref().map(|names| {
        let names: Vec<_> = names.iter().map(|n| text(n)).collect();
        names.join(" ")
    });
    format!(
        "{id} is {name} {columns:?} names {names:?} key {:?} unsigned {:?} collations {:?} {:?} enums {:?} sets {:?} geometries {:?}",
        m.primary_key
            .as_ref()
            .map(|key| key.iter().map(|k| (k.column, k.prefix)).collect::<Vec<_>>()),
        m.unsigned.as_ref().map(|all| all
            .iter()
            .map(|u| u8::from(*u).to_string())
            .collect::<String>()),
        m.collations,
        m.enum_collations,
        m.enum_values.as_ref().map(Vec::len),
        m.set_values.as_ref().map(Vec::len),
        m.geometry_types,
    )
}

fn show_rows(
    event: &RowsEvent<'_>,
    tables: &HashMap<u64, Table>,
    print: bool,
) -> Result<u64, Failure> {
    let Some(table) = tables.get(&event.table_id) else {
        return match event.width {
            0 => Ok(0),
            _ => Err(format!("rows of the table {} without its columns", event.table_id).into()),
        };
    };
    let images = event.columns.iter().chain(event.columns_after);
    if event.width > 0 && images.fold(0, |any, byte| any | byte) == 0 {
        println!(
            "! rows of {} without a column: nobody can count them",
            table.name
        );
        return Ok(0);
    }
    let data = event.data(EVENT_MAX as usize)?;
    let mut count = 0;
    for row in event.rows(&data, &table.columns)? {
        let row = row?;
        count += 1;
        let verb = match event.change {
            Change::Insert => "INSERT INTO",
            Change::Update => "UPDATE",
            Change::Delete => "DELETE FROM",
        };
        if print {
            println!("### {verb} {}", table.name);
        }
        for (title, image) in [("WHERE", &row.before), ("SET", &row.after)] {
            if let Some(image) = image {
                if print {
                    println!("### {title}");
                }
                show_image(image, table, print)?;
            }
        }
    }
    Ok(count)
}

fn show_image(image: &Image<'_>, table: &Table, print: bool) -> Result<(), Failure> {
    for (n, cell) in image.iter().enumerate() {
        if *cell == Cell::Absent {
            continue;
        }
        let value = cell.value(table.columns[n], table.unsigned[n], EVENT_MAX as usize);
        if let Some(value) = value.transpose()?
            && print
        {
            println!("###   @{}={value}", n + 1);
        }
    }
    Ok(())
}
