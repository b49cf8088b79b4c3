//! Total order among the members of a cluster.

#![forbid(unsafe_code)]
