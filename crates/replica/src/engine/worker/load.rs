//! LOAD DATA with a file of the source's.

use dromon_relay::wire::Row;

use super::{Trouble, Worker};
use crate::client::Loaded;
use crate::compile::Load;

/// Most bytes of a file in one packet.
const BLOCK_MAX: usize = 128 << 10;
/// Errors of a server that takes no files from clients.
const NO_FILES: [u16; 2] = [4166, 1148];
/// Error of a row that is there already.
const DUPLICATE: u16 = 1062;
/// So many warnings are kept, and counted, at most.
const WARNINGS_MAX: usize = 65_535;
/// Warnings of rows that were left out but are not counted: a view's CHECK OPTION, a table's CHECK.
const NOT_COUNTED: [u16; 2] = [1369, 4025];
/// Warnings of values that were changed to fit. Under a strict sql_mode they are errors.
const CHANGED: [u16; 9] = [1048, 1261, 1262, 1263, 1264, 1265, 1364, 1366, 1406];
/// The same, if it says so of a column; of an expression it is none.
const INCORRECT: u16 = 1292;

impl Worker {
    /// Runs it. What LOCAL makes a warning of is an error.
    pub(super) fn load(&mut self, text: &[u8], load: &Load) -> Result<(), Trouble> {
        if text.len() + 16 > self.allowed {
            return Err(Trouble::Long(text.len()));
        }
        let block = self.allowed.saturating_sub(16).clamp(1, BLOCK_MAX);
        let client = &mut self.session.client;
        let loaded = client
            .load(text, &load.file, block)
            .map_err(|error| match error.code() {
                Some(code) if NO_FILES.contains(&code) => Trouble::Error(
                    code,
                    format!(
                        "{error}. LOAD DATA needs local_infile = ON on the target: set it there, and in its configuration"
                    ),
                ),
                _ => error.into(),
            })?;
        if !load.whole {
            return Ok(());
        }
        let warnings = match loaded.warnings {
            0 => Vec::new(),
            _ => client.rows("SHOW WARNINGS")?,
        };
        match difference(&loaded, &warnings, load.strict) {
            None => Ok(()),
            Some((code, why)) => Err(Trouble::Error(code, why)),
        }
    }
}

/// What the target did otherwise than the source, where nothing was wrong with any row.
fn difference(loaded: &Loaded, warnings: &[Row], strict: bool) -> Option<(u16, String)> {
    let cell = |row: &Row, n: usize| {
        let bytes = row.get(n).cloned().flatten().unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    // Notes say what is no error under any sql_mode.
    let warnings: Vec<(u16, String)> = warnings
        .iter()
        .filter(|row| cell(row, 0) != "Note")
        .map(|row| (cell(row, 1).parse().unwrap_or(0), cell(row, 2)))
        .collect();
    let changed = |(code, text): &&(u16, String)| {
        CHANGED.contains(code) || *code == INCORRECT && text.contains(" for column ")
    };
    let Some(left_out) = loaded.left_out else {
        let why = "the target does not say how many rows of its file it left out".to_owned();
        return Some((0, why));
    };
    let not_counted = warnings
        .iter()
        .filter(|(code, _)| NOT_COUNTED.contains(code));
    let left_out = left_out + not_counted.count() as u64;
    if left_out > 0 {
        let first = warnings.iter().find(|warning| !changed(warning));
        let (code, text) = first
            .cloned()
            .unwrap_or((DUPLICATE, "it does not say why".into()));
        return Some((
            code,
            format!(
                "the target left out {left_out} rows of its file, of which the source left out none; the first: {text}"
            ),
        ));
    }
    if !strict {
        return None;
    }
    if let Some((code, text)) = warnings.iter().find(changed) {
        return Some((
            *code,
            format!("the target changed a value of its file, which the source did not: {text}"),
        ));
    }
    let all = warnings.len() >= usize::from(loaded.warnings) && warnings.len() < WARNINGS_MAX;
    (!all).then(|| {
        let why = "the target gave more warnings than it keeps; whether it changed values of its file is not known";
        (0, why.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(
        left_out: Option<u64>,
        all: &[(&str, &str, &str)],
        strict: bool,
    ) -> Option<(u16, String)> {
        let cell = |text: &str| Some(text.as_bytes().to_vec());
        let rows: Vec<Row> = all
            .iter()
            .map(|(level, code, text)| vec![cell(level), cell(code), cell(text)])
            .collect();
        let loaded = Loaded {
            left_out,
            warnings: rows.iter().filter(|row| row[0] != cell("Note")).count() as u16,
        };
        difference(&loaded, &rows, strict)
    }

    #[test]
    fn what_local_hides() {
        let duplicate = ("Warning", "1062", "Duplicate entry '9' for key 'PRIMARY'");
        let short = ("Warning", "1265", "Data truncated for column 'v' at row 2");
        assert_eq!(seen(Some(0), &[], true), None);
        let (code, why) = seen(Some(2), &[short, duplicate], false).expect("rows are missing");
        assert_eq!(code, 1062);
        assert!(
            why.contains("left out 2 rows") && why.contains("entry '9'"),
            "{why}"
        );
        let check = ("Warning", "4025", "CONSTRAINT `c` failed for `d`.`t`");
        let (code, _) = seen(Some(0), &[short, check], false).expect("a row is missing");
        assert_eq!(code, 4025);
        assert_eq!(seen(Some(0), &[short], false), None);
        let (code, why) = seen(Some(0), &[short], true).expect("a value is another one");
        assert!(code == 1265 && why.contains("'v' at row 2"), "{why}");
        assert_eq!(seen(Some(0), &[("Note", short.1, short.2)], true), None);
        let date = "Incorrect date value: 'x' for column `d`.`t`.`a` at row 1";
        assert!(seen(Some(0), &[("Warning", "1292", date)], true).is_some());
        let number = "Truncated incorrect INTEGER value: 'x'";
        assert_eq!(seen(Some(0), &[("Warning", "1292", number)], true), None);
        // An answer in another form, and one that does not say all.
        assert!(seen(None, &[], false).is_some());
        let unseen = Loaded {
            left_out: Some(0),
            warnings: 3,
        };
        assert!(difference(&unseen, &[], true).is_some());
        assert!(difference(&unseen, &[], false).is_none());
    }
}
