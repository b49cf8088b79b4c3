//! The durable ordered log, which is also the write-set cache.

#![forbid(unsafe_code)]
