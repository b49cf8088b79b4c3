//! The lines that `dromon log show` prints: for people, or JSON, one object a line.

use std::io::{self, BufWriter, Stdout, Write};

use dromon_certify::Verdict;
use dromon_log::{End, SmallState, Totals};
use dromon_node::logbook::{Line, What, WriteSetLine};
use dromon_order::show;
use serde_json::{Value, json};

/// Where lines go.
pub struct Out {
    to: BufWriter<Stdout>,
    json: bool,
    keys: bool,
}

impl Out {
    /// Prints to the standard output; `keys`: those of write sets, too.
    pub fn new(json: bool, keys: bool) -> Out {
        Out {
            to: BufWriter::with_capacity(64 << 10, io::stdout()),
            json,
            keys,
        }
    }

    /// Brings out what was printed.
    ///
    /// # Errors
    /// When some of it cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    fn object(&mut self, value: Value) -> io::Result<()> {
        writeln!(self.to, "{value}")
    }

    /// Something is wrong; the words go to the standard error, too.
    pub fn trouble(&mut self, why: &str) {
        if self.json {
            let _ = self.object(json!({"type": "verdict", "intact": false, "why": why}));
        }
    }

    /// A remark.
    pub fn note(&mut self, text: &str) -> io::Result<()> {
        if self.json {
            return self.object(json!({"type": "note", "text": text}));
        }
        writeln!(self.to, "# {text}")
    }

    /// The small values beside the log. `engine`: absent, void, or there.
    pub fn small(
        &mut self,
        small: &SmallState,
        engine: Option<Option<show::SmallState>>,
    ) -> io::Result<()> {
        let state = engine.flatten();
        if self.json {
            return self.object(json!({
                "type": "log",
                "identity": format!("{:032x}", small.identity),
                "resetting": small.resetting,
                "purged": small.purged.map(|p| p.index),
                "closed_at": small.closed_at,
                "both_copies_whole": small.both_whole,
                "void": engine == Some(None),
                "log_id": state.map(|s| format!("{:016x}", s.id)),
                "vote": state.and_then(|s| s.vote).map(|(term, leader, leads)| json!({
                    "term": term, "term_text": term_text(term),
                    "for": format!("{leader:016x}"), "leads": leads,
                })),
                "committed": state.and_then(|s| s.committed).map(|c| c.index),
            }));
        }
        writeln!(self.to, "# log {:032x}", small.identity)?;
        if let Some(state) = state {
            writeln!(self.to, "# {}", of_member(&state))?;
            if let Some(committed) = state.committed {
                writeln!(self.to, "# {}", noted_as_committed(committed.index))?;
            }
        }
        if engine == Some(None) {
            writeln!(self.to, "# being made new: there is nothing to go on with")?;
        }
        if let Some(purged) = small.purged {
            writeln!(self.to, "# begins behind {}", purged.index)?;
        }
        Ok(())
    }

    /// Where checkpoints are.
    pub fn checkpoints(&mut self, at: &[u64]) -> io::Result<()> {
        if self.json {
            return self.object(json!({"type": "checkpoints", "indexes": at}));
        }
        let at: Vec<String> = at.iter().map(u64::to_string).collect();
        writeln!(self.to, "# checkpoints: {}", at.join(", "))
    }

    /// One checkpoint's file.
    pub fn checkpoint(&mut self, index: u64, bytes: usize, text: &str) -> io::Result<()> {
        if self.json {
            return self.object(
                json!({"type": "checkpoint", "index": index, "bytes": bytes, "text": text}),
            );
        }
        writeln!(self.to, "checkpoint of {bytes} bytes: {text}; intact")
    }

    /// The names of the columns.
    pub fn head(&mut self) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        writeln!(
            self.to,
            "{:>10} {:>5} {:>10} {:<9} {:>9}  {:<12} what",
            "index", "term", "seqno", "kind", "bytes", "from"
        )
    }

    /// A segment begins.
    pub fn segment(&mut self, file: &str, first: u64, bytes: u64) -> io::Result<()> {
        if self.json {
            return self
                .object(json!({"type": "segment", "file": file, "first": first, "bytes": bytes}));
        }
        writeln!(self.to, "# {file}")
    }

    /// A mark behind the last record.
    pub fn mark(&mut self, offset: u64, stable_below: u64) -> io::Result<()> {
        if self.json {
            return self
                .object(json!({"type": "mark", "offset": offset, "stable_below": stable_below}));
        }
        writeln!(
            self.to,
            "# mark: every entry below {stable_below} was on stable storage"
        )
    }

    /// An entry.
    pub fn entry(&mut self, line: &Line, file: &str, offset: u64) -> io::Result<()> {
        if self.json {
            let value = object_of(line, file, offset, self.keys);
            return self.object(value);
        }
        let from = match &line.from {
            Some((_, Some(name), _)) => name.clone(),
            Some((origin, None, _)) => origin.to_string(),
            None => "-".into(),
        };
        let term = term_text(line.place.term);
        writeln!(
            self.to,
            "{:>10} {term:>5} {:>10} {:<9} {:>9}  {from:<12} {}",
            line.place.index,
            line.seqno.map_or("-".into(), |s| s.to_string()),
            line.what.kind(),
            line.bytes,
            line.what
        )?;
        if let (What::WriteSet(w), true) = (&line.what, self.keys) {
            for key in w.head.keys().iter() {
                writeln!(self.to, "{:>38}{key:?}", "")?;
            }
        }
        Ok(())
    }

    /// The end of the walk. `sound`: nothing wrong was found; of a walk that stopped
    /// before the log's end that says nothing of the rest.
    pub fn end(
        &mut self,
        totals: &Totals,
        seqnos: Option<(i64, i64)>,
        checkpoints: usize,
        sound: bool,
        verify: bool,
    ) -> io::Result<()> {
        let ending = super::ending(totals, sound);
        let is_read = totals.end != End::Stopped;
        let intact = (is_read || !sound).then_some(sound);
        if self.json {
            return self.object(json!({
                "type": "end",
                "segments": totals.segments,
                "entries": totals.records,
                "bytes": totals.bytes,
                "first": totals.first,
                "last": totals.last.map(|l| l.index),
                "first_seqno": seqnos.map(|s| s.0 + 1),
                "last_seqno": seqnos.map(|s| s.1),
                "checkpoints": checkpoints,
                "end": match totals.end {
                    End::Closed => "closed",
                    End::Open => "open",
                    End::Torn { .. } => "torn",
                    End::Resetting => "resetting",
                    End::Stopped => "stopped",
                },
                "intact": intact,
            }));
        }
        let mut text = format!("{}, {}", count(totals.segments, "segment"), {
            match totals.records {
                1 => "1 entry".to_owned(),
                n => format!("{n} entries"),
            }
        });
        if let (Some(first), Some(last)) = (totals.first, totals.last) {
            text += &format!(", {first} to {}", last.index);
        }
        if let Some((before, last)) = seqnos.filter(|(before, last)| last > before) {
            text += &format!(" (seqnos {} to {last})", before + 1);
        }
        if checkpoints > 0 {
            text += &format!(", {}", count(checkpoints as u64, "checkpoint"));
        }
        if intact == Some(true) {
            text += ", intact";
        }
        let mark = if verify { "" } else { "# " };
        writeln!(self.to, "{mark}{text}; {ending}")?;
        // Which of two logs has more is told by these three, in this order.
        if let (Some(last), true, false) = (totals.last, is_read, verify) {
            writeln!(
                self.to,
                "# last entry: term {}, leader {:016x}, index {}",
                term_text(last.term),
                last.leader,
                last.index
            )?;
        }
        Ok(())
    }
}

/// Whose log it is, and whom that one has voted for.
fn of_member(state: &show::SmallState) -> String {
    let of = format!("of the member {:016x}", state.id);
    let Some((term, leader, leads)) = state.vote else {
        return of;
    };
    let how = if leads { "follows" } else { "votes for" };
    let term = term_text(term);
    format!("{of}, which {how} {leader:016x} in term {term}")
}

/// The file lags, and for long where little comes: that a log is idle is no sign that nothing is safe.
fn noted_as_committed(index: u64) -> String {
    format!(
        "noted on disk as committed: up to {index}. More may be (while its node runs, wsrep_dromon_log_committed tells); what is \
         not may be replaced"
    )
}

/// A term; after a forced recovery with the incarnation, which its upper half tells.
fn term_text(term: u64) -> String {
    match dromon_order::incarnation(term) {
        0 => term.to_string(),
        n => format!("{n}:{}", term & u64::from(u32::MAX)),
    }
}

fn count(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn object_of(line: &Line, file: &str, offset: u64, keys: bool) -> Value {
    let mut value = json!({
        "type": "entry",
        "file": file,
        "offset": offset,
        "index": line.place.index,
        "term": line.place.term,
        "term_text": term_text(line.place.term),
        "leader": format!("{:016x}", line.place.leader),
        "kind": line.what.kind(),
        "seqno": line.seqno,
        "bytes": line.bytes,
        "text": line.what.to_string(),
    });
    if let Some((origin, name, number)) = &line.from {
        value["origin"] = json!(origin.to_string());
        value["node"] = json!(name);
        value["number"] = json!(number);
    }
    match &line.what {
        What::WriteSet(w) => value["write_set"] = write_set(w, keys),
        What::Members { voters, learners } => {
            let ids = |list: &[(u64, String)]| -> Vec<Value> {
                let one = |(id, addr): &(u64, String)| json!({"log_id": format!("{id:016x}"), "address": addr});
                list.iter().map(one).collect()
            };
            value["voters"] = json!(ids(voters));
            value["learners"] = json!(ids(learners));
        }
        What::Piece { number, of } => value["piece"] = json!({"number": number, "of": of}),
        _ => {}
    }
    value
}

fn write_set(w: &WriteSetLine, keys: bool) -> Value {
    let header = w.head.header();
    let mut value = json!({
        "source": header.source.to_string(),
        "transaction": header.trx_id,
        "connection": header.conn_id,
        "last_seen": header.last_seen,
        "flags": header.flags.to_string(),
        "data_bytes": w.head.payload_len(),
        "keys_count": w.head.keys().len(),
        "pieces": w.pieces,
    });
    match &w.verdict {
        Some(Verdict::Passed { depends_on }) => {
            value["passed"] = json!(true);
            value["depends_on"] = json!(depends_on);
        }
        Some(Verdict::Failed { reason }) => {
            value["passed"] = json!(false);
            value["reason"] = json!(reason.to_string());
        }
        None => {}
    }
    if keys {
        let one = |k: dromon_writeset::Key<'_>| {
            json!({
                "type": k.key_type.name(),
                "table": k.table_text(),
                "key": k.row_text(),
                "whole_table": k.whole_table,
            })
        };
        value["keys"] = w.head.keys().iter().map(one).collect();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_lines_say_what_the_disk_has() {
        let mut state = show::SmallState {
            id: 0xa,
            vote: None,
            committed: None,
            purged: None,
        };
        assert_eq!(of_member(&state), "of the member 000000000000000a");
        state.vote = Some(((856_764 << 32) | 1, 0xb, true));
        let says = of_member(&state);
        // As the entries have it.
        let follows = ", which follows 000000000000000b in term 856764:1";
        assert!(says.ends_with(follows), "{says}");
        state.vote = Some((7, 0xb, false));
        let says = of_member(&state);
        let votes = ", which votes for 000000000000000b in term 7";
        assert!(says.ends_with(votes), "{says}");
        let says = noted_as_committed(0);
        assert!(says.starts_with("noted on disk as committed: up to 0. More may be"));
        assert!(says.contains("wsrep_dromon_log_committed"), "{says}");
    }
}
