//! What results are written down with: tables of text, CSV, charts as SVG, and the files of a run.

mod csv;
mod drawing;
mod files;
mod panels;
mod table;

pub use csv::{Csv, cell, fields, line};
pub use drawing::{Drawing, FAINT, INK, escape, nice};
pub use files::{refuse_results, write_files};
pub use panels::Panels;
pub use table::{aligned, number, with_notes};
