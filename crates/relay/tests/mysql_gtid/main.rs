//! MySQL with GTIDs: what comes of primaries that follow each other, what replicas get of it, and all
//! of it over TCP.

mod over_tcp;
mod primary;
mod stored;
