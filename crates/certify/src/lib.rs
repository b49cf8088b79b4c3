//! Certification: an ordered write set in, a verdict and its dependency out.

#![forbid(unsafe_code)]
