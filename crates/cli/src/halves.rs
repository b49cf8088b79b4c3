//! What the logs of two halves say: the state files alone do not tell which half was forced.

use std::path::Path;

use dromon_log::{LookDevice, SmallState};
use dromon_order::{LogId, incarnation, show};
use dromon_sandbox::SandboxError;

/// Adds to the refusal of two halves what the nodes' logs say.
pub fn with_logs(mut error: SandboxError) -> SandboxError {
    if let SandboxError::TwoHalves { nodes, .. } = &mut error {
        for node in nodes {
            node.log = last_of(&node.data_dir);
        }
    }
    error
}

/// The term and the end of the log in a data directory; none if there is no readable one.
fn last_of(dir: &Path) -> Option<String> {
    let device = LookDevice::open(dir, "").ok()?;
    let small = SmallState::load(&device, "dromon-meta.log").ok()?;
    let state = show::small_state(small.values.get(show::SMALL_STATE)?.clone()).ok()??;
    let committed = state.committed?;
    Some(words(committed))
}

fn words(committed: LogId) -> String {
    let LogId {
        term,
        leader,
        index,
    } = committed;
    let (term, forced) = match incarnation(term) {
        0 => (term.to_string(), ""),
        // The number of the incarnation is no count of them.
        n => (
            format!("{n}:{}", term & u64::from(u32::MAX)),
            " (was forced to go on alone)",
        ),
    };
    format!("term {term}{forced}, leader {leader:016x}, committed up to entry {index}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use dromon_sandbox::Left;

    #[test]
    fn a_forced_half_is_told_by_its_term() {
        let at = |term, index| {
            words(LogId {
                term,
                leader: 0xb,
                index,
            })
        };
        assert_eq!(
            at(7, 20),
            "term 7, leader 000000000000000b, committed up to entry 20"
        );
        assert_eq!(
            at((1 << 32) | 8, 21),
            "term 1:8 (was forced to go on alone), leader 000000000000000b, committed up to entry 21"
        );
    }

    #[test]
    fn a_node_without_a_log_says_nothing_of_one() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let left = Left {
            node: "db1".into(),
            data_dir: dir.path().into(),
            uuid: "u".into(),
            seqno: "3".into(),
            is_safe: true,
            log: None,
        };
        let error = with_logs(SandboxError::TwoHalves {
            dir: dir.path().into(),
            nodes: vec![left],
        });
        assert!(!error.to_string().contains(", log: "), "{error}");
    }
}
