//! A cluster that was made and never started.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use dromon_sandbox::{Cluster, ClusterSpec};

/// Of one node, in `dir/c`.
pub fn cluster(dir: &Path) -> Cluster {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("the servers may enter");
    let provider = dir.join("libdromon.so");
    fs::write(&provider, "").expect("written");
    let mut spec = ClusterSpec::new(&dir.join("c"), &provider);
    spec.nodes = 1;
    spec.tls = false;
    Cluster::create(&spec).expect("made")
}
