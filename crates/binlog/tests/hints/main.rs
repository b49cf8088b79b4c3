//! Hints: rules by example, and whole streams against a small database.

mod alters;
mod domains;
mod hidden;
mod packed;
mod rules;
mod stream;
#[path = "../support/mod.rs"]
mod support;
mod toy;
mod worlds;
