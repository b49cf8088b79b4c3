//! What the server throws away of a large transaction that it applied in chunks: it is in the way of a statement, by a
//! lock that no key names. All of it is applied again, whole, at its end.

use dromon_writeset::Seqno;

use super::super::{Node, lock};
use crate::cluster::chunked_id_of;

impl Node {
    /// The server throws away what it applied of transaction `victim`. True if
    /// that is one that comes in chunks: it is applied whole in the end.
    pub(in crate::node) fn thrown_away(&self, victim: u64) -> bool {
        let Some(id) = chunked_id_of(victim) else {
            return false;
        };
        let history = *lock(&self.history);
        let known = {
            let mut chunks = lock(&self.chunks);
            let known = chunks.lacking.contains(history, id);
            if !known {
                let is_open = chunks.open.contains_key(&id);
                let (delivered, from) = (self.gates.last_ordered(), self.gates.told());
                (chunks.lacking).thrown_away(history, id, is_open, delivered, from);
            }
            known
        };
        if !known {
            self.note(&format!(
                "the server gives up what it has of the large transaction that began at seqno {id}; it is applied \
                 whole at its end"
            ));
            self.note_lacking();
        }
        true
    }

    /// Whether the server has thrown away what the chunk at `seqno`, which failed here, belongs to: then it failed for
    /// that, and there is nothing that the members could be asked.
    pub(in crate::node) fn was_thrown_away(&self, seqno: Seqno) -> bool {
        let history = *lock(&self.history);
        let chunks = lock(&self.chunks);
        let of = chunks.at_work.iter().find(|(place, _)| *place == seqno);
        of.is_some_and(|(_, id)| chunks.lacking.contains(history, *id))
    }
}
