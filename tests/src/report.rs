//! A text that says what was run, on what, and what came of it.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use dromon_load::machine;

use crate::harness::{Note, Options, Scenario};

/// The report so far; nothing is written if no file was named.
#[derive(Default)]
pub struct Report {
    file: Option<PathBuf>,
    /// Where the clusters lie: not of interest elsewhere.
    base: String,
    head: String,
    /// Names of what was chosen, in its order, and what came of each so far.
    parts: Vec<(&'static str, String)>,
}

impl Report {
    /// Begins a report: the machine and the options.
    pub fn new(file: PathBuf, options: &Options, chosen: &[Scenario], lanes: usize) -> Self {
        let library = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().into_owned()
        };
        let mut head =
            String::from("Rounds of faults on three real servers (storms --torture)\n\n");
        let mut line = |what: &str, value: String| {
            writeln!(head, "{what:<22}{value}").expect("writing to a String cannot fail");
        };
        line("provider", library(&options.provider));
        if let Some(peer) = &options.peer {
            line("measured beside", library(peer));
        }
        line("commit", commit());
        line(
            "server",
            dromon_sandbox::server_version().unwrap_or_default(),
        );
        line("kernel", machine::kernel());
        line("processors", machine::processors().to_string());
        line("begun (UTC)", machine::now());
        let beside = if options.times_judged {
            format!("{lanes}; what is judged by seconds ran alone")
        } else {
            lanes.to_string()
        };
        line("beside each other", beside);
        line("rounds", options.rounds.to_string());
        line("seconds of load", options.seconds.as_secs().to_string());
        line("first seed", options.seed.to_string());
        line("entries to re-feed", options.entries.to_string());
        Self {
            file: Some(file),
            base: options.base().display().to_string(),
            head,
            parts: chosen.iter().map(|s| (s.name, String::new())).collect(),
        }
    }

    /// Adds a scenario's result and writes the file.
    pub fn add(&mut self, scenario: &Scenario, result: &anyhow::Result<Vec<Note>>, took: f64) {
        let Some(file) = &self.file else { return };
        let (word, lines) = match result {
            Ok(notes) => ("ok", notes.iter().map(|n| n.text.clone()).collect()),
            Err(error) => ("FAILED", vec![format!("{error:#}")]),
        };
        let mut part = format!(
            "\n{} ... {word} ({took:.0} s)\n    {}\n",
            scenario.name, scenario.shows
        );
        for line in lines {
            let line = line.trim_end().replace(&self.base, "...");
            part += &format!("  - {}\n", line.replace('\n', "\n    "));
        }
        let open = |(name, text): &&mut (&str, String)| *name == scenario.name && text.is_empty();
        if let Some((_, text)) = self.parts.iter_mut().find(open) {
            *text = part;
        }
        let parts: String = self.parts.iter().map(|(_, text)| text.as_str()).collect();
        let text = self.head.clone() + &parts;
        if let Err(e) = fs::write(file, &text) {
            println!(
                "    the report could not be written to {}: {e}",
                file.display()
            );
        }
    }
}

/// Of the working copy in which this runs; nothing elsewhere.
fn commit() -> String {
    Command::new("git")
        .args(["describe", "--always", "--dirty"])
        .output()
        .map(|o| String::from_utf8_lossy(&o.stdout).trim().to_string())
        .unwrap_or_default()
}
