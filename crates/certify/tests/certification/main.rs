//! Certification against a naive model, clause by clause, and across restarts.

mod checkpoints;
mod clauses;
mod model;
mod properties;
mod traffic;
