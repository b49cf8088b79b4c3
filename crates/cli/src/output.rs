//! What the program prints. Somebody who stops reading stops no work, and what could not be
//! written is no success.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// The standard output.
#[derive(Debug)]
pub struct Output<W: Write = io::Stdout> {
    to: W,
    failed: Option<io::Error>,
}

impl Output {
    /// The program's own.
    pub fn new() -> Self {
        Self::to(io::stdout())
    }
}

impl<W: Write> Output<W> {
    fn to(to: W) -> Self {
        Self { to, failed: None }
    }

    /// Prints a line.
    pub fn line(&mut self, text: impl Display) {
        self.text(format_args!("{text}\n"));
    }

    /// Prints as it is. After a failure nothing more is tried; [`Self::end`] tells.
    pub fn text(&mut self, text: impl Display) {
        if self.failed.is_none() {
            self.failed = write!(self.to, "{text}").err();
        }
    }

    /// The exit code: `code`, or 1 instead of 0 if something could not be written.
    pub fn end(mut self, code: u8) -> ExitCode {
        let flushed = self.to.flush();
        ExitCode::from(judge(self.failed.map_or(flushed, Err), code))
    }
}

/// The exit code after the last of the output was written, or not.
pub fn judge(written: io::Result<()>, code: u8) -> u8 {
    match written {
        Ok(()) => code,
        // Who reads no more has what he wanted.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => code,
        Err(e) => {
            tell(format_args!("dromon: the output could not be written: {e}"));
            code.max(1)
        }
    }
}

/// A line on the standard error. Whether it is read must not matter to the work.
pub fn tell(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Says why a program does not start, or go on; the exit code `code`.
pub fn refuse(error: &dyn Display, code: u8) -> ExitCode {
    tell(format_args!("dromon: {error}"));
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reader_that_left_is_no_failure() {
        let failed = |kind: io::ErrorKind| Err(io::Error::from(kind));
        assert_eq!(judge(Ok(()), 2), 2);
        assert_eq!(judge(failed(io::ErrorKind::BrokenPipe), 0), 0);
        assert_eq!(judge(failed(io::ErrorKind::StorageFull), 0), 1);
        assert_eq!(judge(failed(io::ErrorKind::StorageFull), 2), 2);
    }

    #[test]
    fn lines_after_a_failure_are_left_out() {
        let mut room = [0u8; 4];
        let mut out = Output::to(&mut room[..]);
        out.line("abc");
        out.line("d");
        assert!(out.failed.is_some());
        let mut all = Vec::new();
        let mut out = Output::to(&mut all);
        out.line("abc");
        out.text("d");
        assert!(out.failed.is_none());
        drop(out);
        assert_eq!(all, b"abc\nd");
    }
}
