//! What the node does wrong and the judge looks past, so that the rest can be
//! judged. Each goes to `false`, and then away, with its mend.

/// A local transaction that failed or was aborted, and is ordered behind a
/// pause, takes its place all the same.
pub const PAUSE_LEAKS: bool = true;
