//! The state file that tools read and edit.
