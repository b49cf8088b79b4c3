//! The dromon command.

fn main() {}
