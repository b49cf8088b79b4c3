//! Starts, hurts and stops local clusters of real servers.

#![forbid(unsafe_code)]
