//! `dromon log show`: what is in a log.

mod lines;
mod place;

use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use dromon_log::{
    Device, End, FileKind, LogError, Look, LookDevice, Record, Seen, SmallState, Totals,
};
use dromon_node::logbook::{Line, LogBook};
use dromon_order::{LogId, show};

use lines::Out;
use place::Place;

use crate::output;

/// How often what looks torn is looked at again, 50 ms apart: a running node may be
/// writing it just now.
const PATIENCE: u32 = 20;

/// Options of `dromon log`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show the entries of a log, or verify it. Only reads, also beside a running server.
    Show(Show),
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "PLACE is a seqno (500) or a place in the log (index:700).\nExit codes: 0 intact; 1 damaged, or it cannot be read; 2 the command line is wrong.\nWith --to, 0 means: as far as it was read. The whole log is judged without it, or by --verify."
)]
struct Show {
    /// A server's data directory, or one file: a segment, a checkpoint, the small values;
    /// also one that was set aside (damaged-…, former-…).
    path: PathBuf,
    /// Read every byte, check all checksums and the chain, and say only what was found.
    #[arg(long, conflicts_with_all = ["from", "to", "keys"])]
    verify: bool,
    /// First entry to show.
    #[arg(long, value_name = "PLACE")]
    from: Option<Place>,
    /// Last entry to show.
    #[arg(long, value_name = "PLACE")]
    to: Option<Place>,
    /// Show the keys of write sets, too.
    #[arg(long)]
    keys: bool,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// With a directory: the log in it that was set aside at this time, the number in
    /// damaged-SECONDS-dromon-… or former-SECONDS-dromon-….
    #[arg(long, value_name = "SECONDS")]
    set_aside: Option<u64>,
}

/// Runs `dromon log …`.
pub fn run(args: &Args) -> ExitCode {
    let Command::Show(args) = &args.command;
    let mut out = Out::new(args.json, args.keys);
    let code = match show(args, &mut out) {
        Ok(()) => 0,
        Err(Stop::Pipe) => return ExitCode::SUCCESS,
        Err(Stop::Output(error)) => return ExitCode::from(output::judge(Err(error), 1)),
        Err(Stop::Usage(why)) => {
            output::tell(format_args!("dromon: {why}"));
            2
        }
        Err(Stop::Bad(why)) => {
            out.trouble(&why);
            output::tell(format_args!("dromon: {why}"));
            1
        }
    };
    ExitCode::from(output::judge(out.flush(), code))
}

/// Why it ended early.
enum Stop {
    /// Who reads the output has enough.
    Pipe,
    /// What was asked for makes no sense here.
    Usage(String),
    /// The output cannot be written.
    Output(io::Error),
    /// Damaged, or unreadable.
    Bad(String),
}

impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Stop {
        match e.kind() {
            io::ErrorKind::BrokenPipe => Stop::Pipe,
            _ => Stop::Output(e),
        }
    }
}

fn bad(e: impl std::fmt::Display) -> Stop {
    Stop::Bad(e.to_string())
}

fn show(args: &Show, out: &mut Out) -> Result<(), Stop> {
    let path = &args.path;
    let metadata = std::fs::metadata(path)
        .map_err(|e| Stop::Bad(format!("{} cannot be read: {e}", path.display())))?;
    if metadata.is_dir() {
        return whole(args, path, out);
    }
    if args.set_aside.is_some() {
        return Err(Stop::Usage(
            "--set-aside goes with a directory; name the file alone, or the directory".into(),
        ));
    }
    let (dir, prefix, name) = split(path);
    let device = look_device(&dir, &prefix)?;
    match kind_of(path, &name)? {
        FileKind::Segment => {
            let checkpoints = checkpoints_beside(&device);
            let look = Look::segment(device.clone(), &name, PATIENCE);
            let beside = Beside::Log(device);
            walk(args, &look, checkpoints, beside, out)
        }
        FileKind::SmallValues => {
            let small = SmallState::load(&*device, &name).map_err(bad)?;
            small_values(&small, out)?;
            copies(&small, &name).map_or(Ok(()), |why| Err(Stop::Bad(why)))
        }
        FileKind::Checkpoint => {
            let ((_, index), content) =
                dromon_log::load_checkpoint(&*device, &name).map_err(bad)?;
            let text = checkpoint(&content).map_err(|why| {
                Stop::Bad(format!(
                    "The checkpoint file {name} has the right checksums but cannot be read: {why}"
                ))
            })?;
            out.checkpoint(index, content.len(), &text)?;
            Ok(())
        }
    }
}

/// The directory, what stands before a log file's own name, and that name.
fn split(path: &Path) -> (PathBuf, String, String) {
    let dir = match path.parent() {
        Some(dir) if dir != Path::new("") => dir.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let name = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    match name.rfind("dromon-") {
        Some(at) => (dir, name[..at].to_owned(), name[at..].to_owned()),
        None => (dir, String::new(), name),
    }
}

fn look_device(dir: &Path, prefix: &str) -> Result<Arc<dyn Device>, Stop> {
    let device = LookDevice::open(dir, prefix)
        .map_err(|e| Stop::Bad(format!("{} cannot be read: {e}", dir.display())))?;
    Ok(Arc::new(device))
}

/// By its first bytes; by its name if those say nothing, so that damage there is told.
fn kind_of(path: &Path, name: &str) -> Result<FileKind, Stop> {
    let mut head = Vec::new();
    std::fs::File::open(path)
        .and_then(|f| f.take(8).read_to_end(&mut head))
        .map_err(|e| Stop::Bad(format!("{} cannot be read: {e}", path.display())))?;
    if let Some(kind) = dromon_log::file_kind(&head) {
        return Ok(kind);
    }
    match name {
        "dromon-meta.log" => Ok(FileKind::SmallValues),
        _ if name.starts_with("dromon-ckpt-") => Ok(FileKind::Checkpoint),
        _ if name.starts_with("dromon-0") => Ok(FileKind::Segment),
        _ => Err(Stop::Bad(format!(
            "{} is no file of a log: it begins with none of their marks, and has none of their \
             names (dromon-<16 hexadecimal digits>.log, dromon-meta.log, dromon-ckpt-….log)",
            path.display()
        ))),
    }
}

fn checkpoints_beside(device: &Arc<dyn Device>) -> Vec<Saved> {
    let names = device.list().unwrap_or_default();
    let index = |n: &String| {
        let digits = n.strip_prefix("dromon-ckpt-")?.strip_suffix(".log")?;
        u64::from_str_radix(digits, 16).ok()
    };
    let saved = |n: String| Some(Saved::of(index(&n)?, load(device, &n)));
    names.into_iter().filter_map(saved).collect()
}

fn load(device: &Arc<dyn Device>, name: &str) -> Result<bytes::Bytes, String> {
    let found = dromon_log::load_checkpoint(&**device, name);
    found.map(|(_, content)| content).map_err(|e| e.to_string())
}

/// A checkpoint: where, and its state or what is wrong with it.
struct Saved {
    index: u64,
    found: Result<dromon_order::Checkpoint, String>,
}

impl Saved {
    fn of(index: u64, content: Result<bytes::Bytes, String>) -> Saved {
        let found = content.and_then(|content| {
            checkpoint(&content).map_err(|why| {
                format!("The checkpoint at index {index} has the right checksums but cannot be read: {why}")
            })?;
            show::checkpoint(content).map_err(|e| e.to_string())
        });
        Saved { index, found }
    }
}

/// All of what is in a directory.
fn whole(args: &Show, dir: &Path, out: &mut Out) -> Result<(), Stop> {
    let prefix = args.set_aside.map_or(String::new(), |s| prefix(dir, s));
    let device = look_device(dir, &prefix)?;
    let aside = set_aside(dir);
    let look = Look::whole(device.clone(), PATIENCE).map_err(|e| match &e {
        LogError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            let mut why = format!(
                "there is no log in {}: no {prefix}dromon-meta.log. A node keeps its log in its \
                 data directory, or where base_dir or gcache.dir of wsrep_provider_options say",
                dir.display()
            );
            if !aside.is_empty() {
                why += &format!("; set aside: --set-aside {}", aside.join(", --set-aside "));
            }
            Stop::Bad(why)
        }
        _ => bad(e),
    })?;
    let mut checkpoints = Vec::new();
    for &index in look.checkpoints() {
        let content = match look.checkpoint(index) {
            // A running node dropped it.
            Err(LogError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                continue;
            }
            found => found.map_err(|e| e.to_string()),
        };
        checkpoints.push(Saved::of(index, content));
    }
    let small = look.small();
    if let (Some(small), false) = (&small, args.verify) {
        small_values(small, out)?;
        let at: Vec<u64> = checkpoints.iter().map(|c| c.index).collect();
        out.checkpoints(&at)?;
    }
    if !aside.is_empty() && args.set_aside.is_none() {
        out.note(&format!(
            "a log was set aside here: --set-aside {} shows it",
            aside.join(", --set-aside ")
        ))?;
    }
    let trouble = match &small {
        Some(small) if args.verify => copies(small, "dromon-meta.log"),
        _ => None,
    };
    walk(args, &look, checkpoints, Beside::Trouble(trouble), out)
}

/// What a node calls logs that it sets aside: a damaged one, and one of another history.
const ASIDE: [&str; 2] = ["damaged-", "former-"];

/// What stands before the names of a log that was set aside in `dir` at this time.
fn prefix(dir: &Path, seconds: u64) -> String {
    let names = ASIDE.map(|word| format!("{word}{seconds}-"));
    let is_there = |name: &&String| dir.join(format!("{name}dromon-meta.log")).exists();
    let found = names.iter().find(is_there).unwrap_or(&names[0]);
    found.clone()
}

/// The times of logs set aside in a directory.
fn set_aside(dir: &Path) -> Vec<String> {
    let mut found: Vec<String> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
        .filter_map(|n| {
            let time = ASIDE
                .iter()
                .find_map(|word| n.strip_prefix(word))?
                .strip_suffix("-dromon-meta.log")?;
            Some(time.to_owned())
        })
        .collect();
    found.sort_unstable();
    found
}

fn small_values(small: &SmallState, out: &mut Out) -> Result<(), Stop> {
    let engine = match small.values.get(show::SMALL_STATE) {
        Some(value) => Some(show::small_state(value.clone()).map_err(|e| {
            Stop::Bad(format!(
                "the small values have the right checksum but cannot be read: {e}"
            ))
        })?),
        None => None,
    };
    out.small(small, engine)?;
    Ok(())
}

/// What is wrong if not both copies of the small values are whole.
fn copies(small: &SmallState, name: &str) -> Option<String> {
    if small.both_whole {
        return None;
    }
    Some(format!(
        "One of the two copies in {name} cannot be read or is older than the other. Nothing is \
         lost: the other one is whole, and the node restores this one at its next start. A loss \
         of power while it was written leaves this behind; if there was none, check the disk."
    ))
}

/// In words, what a checkpoint holds.
fn checkpoint(content: &bytes::Bytes) -> Result<String, String> {
    let found = show::checkpoint(content.clone()).map_err(|e| e.to_string())?;
    let mut book = LogBook::new();
    book.start_at(&found)?;
    let names: Vec<String> = book.members().into_iter().map(|m| m.0).collect();
    let position = book.position().map(|p| p.to_string()).unwrap_or_default();
    Ok(format!(
        "state behind entry {}, position {position}, {} members: {}",
        found.log_id.index,
        names.len(),
        names.join(", ")
    ))
}

/// What else is known of what is walked.
enum Beside {
    /// It is a whole log, and this is wrong with it already.
    Trouble(Option<String>),
    /// It is one file of what lies here.
    Log(Arc<dyn Device>),
}

impl Beside {
    /// What is wrong, if the walk ended so. One segment does not show whether what follows
    /// its last record had been stable: the log's other files may.
    fn trouble(self, end: &End) -> Option<String> {
        match (self, end) {
            (Beside::Trouble(known), _) => known,
            (Beside::Log(device), End::Torn { .. }) => {
                let whole = Look::whole(device, PATIENCE).ok()?;
                let walked = whole.walk(&mut |_| ControlFlow::Continue(()));
                let damage = walked.err().filter(LogError::is_corruption);
                damage.map(|e| e.to_string())
            }
            (Beside::Log(_), _) => None,
        }
    }
}

/// Walks the segments, explains the entries and prints those asked for.
fn walk(
    args: &Show,
    look: &Look,
    mut checkpoints: Vec<Saved>,
    beside: Beside,
    out: &mut Out,
) -> Result<(), Stop> {
    let mut course = Course {
        args,
        book: LogBook::new(),
        first_seqno: None,
        begun: args.from.is_none(),
        shown: 0,
        stop: None,
    };
    let mut worst = None;
    checkpoints.retain(|c| match &c.found {
        Ok(_) => true,
        Err(why) => {
            worst.get_or_insert_with(|| why.clone());
            false
        }
    });
    if !args.verify {
        out.head()?;
    }
    let walked = look.walk(&mut |seen| match course.see(seen, &checkpoints, out) {
        Ok(true) => ControlFlow::Continue(()),
        Ok(false) => ControlFlow::Break(()),
        Err(stop) => {
            course.stop = Some(stop);
            ControlFlow::Break(())
        }
    });
    if let Some(stop) = course.stop {
        return Err(stop);
    }
    let totals = walked.map_err(bad)?;
    let worst = beside.trouble(&totals.end).or(worst);
    let seqnos = course
        .first_seqno
        .zip(course.book.position().map(|p| p.seqno));
    if course.shown == 0 && !args.verify && (args.from.is_some() || args.to.is_some()) {
        out.note("no entry of this log lies in that range")?;
    }
    out.end(
        &totals,
        seqnos,
        checkpoints.len(),
        worst.is_none(),
        args.verify,
    )?;
    match worst {
        Some(why) => Err(Stop::Bad(why)),
        None => Ok(()),
    }
}

struct Course<'a> {
    args: &'a Show,
    book: LogBook,
    /// The seqno before the first entry that is explained by a state.
    first_seqno: Option<i64>,
    /// The first entry to show was reached.
    begun: bool,
    shown: u64,
    stop: Option<Stop>,
}

impl Course<'_> {
    /// Whether to go on.
    fn see(&mut self, seen: Seen<'_>, checkpoints: &[Saved], out: &mut Out) -> Result<bool, Stop> {
        match seen {
            Seen::Record {
                record,
                file,
                offset,
            } => self.record(&record, file, offset, checkpoints, out),
            Seen::Segment {
                file, first, bytes, ..
            } => {
                if self.begun && !self.args.verify {
                    out.segment(file, first, bytes)?;
                }
                Ok(true)
            }
            Seen::Mark {
                offset,
                stable_below,
                ..
            } => {
                if self.begun && !self.args.verify {
                    out.mark(offset, stable_below)?;
                }
                Ok(true)
            }
        }
    }

    fn record(
        &mut self,
        record: &Record,
        file: &str,
        offset: u64,
        checkpoints: &[Saved],
        out: &mut Out,
    ) -> Result<bool, Stop> {
        if self.book.position().is_none() {
            self.start(record.index, checkpoints)?;
        }
        let place = LogId {
            term: record.term,
            leader: record.leader,
            index: record.index,
        };
        let unreadable = |why: String| {
            Stop::Bad(format!(
                "Entry {} ({file}, byte {offset}) has the right checksum but cannot be read: \
                 {why}. So it was written; a node that comes to it stops. Keep the file, start \
                 the newest version of Dromon on all nodes, and report this if that does not help.",
                record.index
            ))
        };
        let entry = show::entry(place, record.body.clone());
        let entry = entry.map_err(|e| unreadable(e.to_string()))?;
        let line = self.book.entry(place, record.body.len() as u64, &entry);
        if let (Some(why), true) = (&line.damage, self.args.verify) {
            return Err(unreadable(why.clone()));
        }
        if self.args.verify {
            return Ok(true);
        }
        if self.past(&line) {
            return Ok(false);
        }
        self.begun = self.begun || self.reached(&line);
        if self.begun {
            self.shown += 1;
            out.entry(&line, file, offset)?;
        }
        if let Some(why) = &line.damage {
            return Err(unreadable(why.clone()));
        }
        Ok(true)
    }

    fn start(&mut self, index: u64, checkpoints: &[Saved]) -> Result<(), Stop> {
        let before = checkpoints.iter().find(|c| c.index + 1 == index);
        if let Some(Saved { found: Ok(c), .. }) = before {
            // It was read before, so it can be read again.
            self.book.start_at(c).map_err(Stop::Bad)?;
            self.first_seqno = self.book.position().map(|p| p.seqno);
            return Ok(());
        }
        let by_seqno = [self.args.from, self.args.to]
            .iter()
            .any(|p| matches!(p, Some(Place::Seqno(_))));
        let comes = checkpoints.iter().any(|c| c.index > index);
        if by_seqno && !comes {
            return Err(Stop::Usage(
                "no checkpoint lies beside this file from which its seqnos could be counted: \
                 name places as index:N, or the directory instead of the file"
                    .into(),
            ));
        }
        Ok(())
    }

    fn reached(&self, line: &Line) -> bool {
        match self.args.from {
            None => true,
            Some(Place::Index(index)) => line.place.index >= index,
            Some(Place::Seqno(seqno)) => line.seqno.is_some_and(|s| s >= seqno),
        }
    }

    fn past(&self, line: &Line) -> bool {
        match self.args.to {
            None => false,
            Some(Place::Index(index)) => line.place.index > index,
            Some(Place::Seqno(seqno)) => line.seqno.is_some_and(|s| s > seqno),
        }
    }
}

/// How a log ends, in words.
fn ending(totals: &Totals, sound: bool) -> String {
    match &totals.end {
        End::Torn { file, offset } if !sound => format!("read up to byte {offset} of {file}"),
        End::Closed => "closed cleanly".into(),
        End::Open => "not closed: its node runs, or was killed".into(),
        End::Torn { file, offset } => format!(
            "behind byte {offset} of {file} lies a write that is under way, or that a crash cut \
             short: nobody was told that it is stored, and the node cuts it at its next start"
        ),
        End::Resetting => {
            "the node was replacing its log by a new one; it goes on with that at its next start"
                .into()
        }
        End::Stopped => "read up to here; what follows was not looked at".into(),
    }
}
