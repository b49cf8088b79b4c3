//! The three gates: certify in order, apply in parallel, commit in order.

#![forbid(unsafe_code)]
