//! What was found out about groups: what is kept of it, and what is said if it is next to nothing.

use dromon_binlog::hints::{Barrier, Hint};
use dromon_binlog::{EventType, GroupName};

use crate::store::Store;

/// So many groups are counted together.
const STRETCH: u64 = 1000;

/// What was found out about a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HintTook {
    /// It may run beside the one before: it is in a batch with it, or depends on less.
    pub joined: bool,
    /// Nothing may run beside it.
    pub barrier: bool,
    /// That is as it was logged as statements.
    pub statement: bool,
    /// That is as it was compressed as a whole.
    pub compressed: bool,
}

/// A batch is called after its first group.
fn own(hint: &Hint) -> Option<u64> {
    match hint.group.name {
        GroupName::MariaDb(gtid) => Some(gtid.seqno),
        _ => None,
    }
}

/// Whether something is known of what a group does. If not, the primary's own commit id is as good as
/// ever: groups that have the same one held their locks together.
fn found_out(hint: &Hint) -> bool {
    use Barrier::{Statement, TooLarge, UnknownEvent, UnknownTable};
    !matches!(
        hint.barrier,
        Some(Statement | TooLarge | UnknownEvent(_) | UnknownTable(_))
    )
}

/// Keeps a hint beside its group, which was stored just now, if it tells more than the group itself.
pub(super) fn keep(hint: &Hint, store: &mut Store) -> HintTook {
    let joined = match hint.clock {
        Some(clock) => clock.beside_the_last(),
        None => hint.commit_id.is_some_and(|id| Some(id) != own(hint)),
    };
    match (hint.clock, hint.group.name) {
        // Others say no more than that a replica shall wait.
        (Some(clock), _) if joined => store.hint_clock(clock),
        (None, GroupName::MariaDb(gtid)) if found_out(hint) && !store.is_mirror() => {
            store.hint(gtid, hint.commit_id);
        }
        _ => {}
    }
    HintTook {
        joined,
        barrier: hint.barrier.is_some(),
        statement: hint.barrier == Some(Barrier::Statement),
        compressed: hint.barrier == Some(Barrier::UnknownEvent(EventType::TRANSACTION_PAYLOAD)),
    }
}

/// Notices that nearly all groups are statements, or compressed as a whole.
#[derive(Debug, Default)]
pub(super) struct Statements {
    groups: u64,
    statements: u64,
    compressed: u64,
    said: bool,
}

impl Statements {
    /// The next group. Gives what is to be said: once, and again only if there were nearly none meanwhile.
    pub(super) fn count(&mut self, took: HintTook) -> Option<String> {
        self.groups += 1;
        self.statements += u64::from(took.statement);
        self.compressed += u64::from(took.compressed);
        if self.groups < STRETCH {
            return None;
        }
        let useless = self.statements + self.compressed;
        let (most, few) = (useless >= STRETCH - STRETCH / 10, useless <= STRETCH / 10);
        let text = (most && !self.said).then(|| {
            let (what, needs) = match (self.statements, self.compressed) {
                (_, 0) => ("logged as statements", "binlog_format=ROW"),
                (0, _) => ("compressed as a whole", "binlog_transaction_compression=OFF"),
                _ => (
                    "logged as statements or compressed as a whole",
                    "binlog_format=ROW and binlog_transaction_compression=OFF",
                ),
            };
            format!(
                "{useless} of the last {STRETCH} transactions were {what}, about which the relay finds nothing out: \
                 replicas run them as parallel as the primary did. Hints need {needs} on the primary."
            )
        });
        *self = Statements {
            said: most || self.said && !few,
            ..Statements::default()
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearly_all_are_statements() {
        let mut statements = Statements::default();
        // What is said in a stretch with so many statements.
        let mut stretch = |with: u64| {
            let said = (0..STRETCH).filter_map(|n| {
                statements.count(HintTook {
                    joined: false,
                    barrier: n < with,
                    statement: n < with,
                    compressed: false,
                })
            });
            said.collect::<Vec<_>>()
        };
        assert!(stretch(0).is_empty());
        assert!(stretch(899).is_empty());
        let said = stretch(900);
        assert!(said.len() == 1 && said[0].contains("900 of the last 1000"));
        assert!(said[0].contains("binlog_format=ROW"), "{said:?}");
        // Not again, nor after some that are none.
        for with in [1000, 500, 1000] {
            assert!(stretch(with).is_empty());
        }
        assert!(stretch(100).is_empty());
        assert_eq!(stretch(1000).len(), 1, "it was mended meanwhile");
    }

    #[test]
    fn nearly_all_are_compressed() {
        let said = |every: u64| {
            let mut statements = Statements::default();
            let took = |n: u64| HintTook {
                joined: false,
                barrier: true,
                statement: n % every == 1,
                compressed: n % every != 1,
            };
            let said: Vec<_> = (0..STRETCH)
                .filter_map(|n| statements.count(took(n)))
                .collect();
            assert_eq!(said.len(), 1, "{said:?}");
            said.concat()
        };
        let text = said(2);
        assert!(
            text.contains("were logged as statements or compressed"),
            "{text}"
        );
        let text = said(1);
        assert!(
            text.contains("1000 of the last 1000 transactions were compressed"),
            "{text}"
        );
        assert!(
            text.contains("need binlog_transaction_compression=OFF on"),
            "{text}"
        );
    }
}
