//! Which members of a log have a link to this node, and which are to be looked for or started.

use std::collections::BTreeMap;

use dromon_order::RaftId;

/// The one that was stopped last is by itself since the others left in order: it founds, and they join it.
const CLEANLY: &str = "if all were stopped cleanly, first the one whose grastate.dat says safe_to_bootstrap: 1, with \
                       --wsrep-new-cluster (galera_new_cluster does; stop it before if it runs)";

/// Which of the members are here and which are to be started.
pub(super) fn missing(
    addrs: &BTreeMap<RaftId, String>,
    own: RaftId,
    linked: &BTreeMap<RaftId, String>,
) -> String {
    let others = addrs.iter().filter(|(id, _)| **id != own);
    let (here, missing): (Vec<_>, Vec<_>) = others.partition(|(id, _)| linked.contains_key(id));
    let names = |some: Vec<(&RaftId, &String)>| {
        let names: Vec<&str> = some.into_iter().map(|(_, addr)| addr.as_str()).collect();
        names.join(", ")
    };
    match (here.is_empty(), missing.is_empty()) {
        (true, _) => format!("start the missing nodes: {}; {CLEANLY}", names(missing)),
        (false, true) => format!("all are here: {}", names(here)),
        (false, false) => format!(
            "start the missing nodes: {} (here: {}); {CLEANLY}",
            names(missing),
            names(here)
        ),
    }
}

/// Those of `listed` to which no link stands. That the log names one says nothing: another
/// member may be there now.
pub(super) fn unlinked(listed: Vec<String>, linked: &BTreeMap<RaftId, String>) -> Vec<String> {
    let all = listed.into_iter();
    all.filter(|addr| linked.values().all(|at| at != addr))
        .collect()
}

/// Whether that the log of `id` is at `addr` is news. `own` is at its address under another name.
pub(super) fn has_moved(
    id: RaftId,
    own: RaftId,
    addr: &str,
    named: &BTreeMap<RaftId, String>,
    linked: &BTreeMap<RaftId, String>,
) -> bool {
    id != own && !linked.contains_key(&id) && named.get(&id).is_some_and(|at| at != addr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_here_is_not_to_be_started() {
        let at = |ids: &[RaftId]| -> BTreeMap<RaftId, String> {
            ids.iter().map(|id| (*id, format!("n{id}"))).collect()
        };
        let said = |linked: &[RaftId]| missing(&at(&[1, 2, 3]), 1, &at(linked));
        let first = "; if all were stopped cleanly, first the one whose grastate.dat says safe_to_bootstrap: 1, with";
        let begins = |linked: &[RaftId], words: &str| {
            let says = said(linked);
            assert!(says.starts_with(&format!("{words}{first}")), "{says}");
        };
        begins(&[], "start the missing nodes: n2, n3");
        begins(&[2], "start the missing nodes: n3 (here: n2)");
        assert_eq!(said(&[2, 3]), "all are here: n2, n3");
    }

    #[test]
    fn members_that_swapped_addresses_are_looked_for() {
        let at = |all: &[(RaftId, &str)]| -> BTreeMap<RaftId, String> {
            all.iter().map(|(id, a)| (*id, (*a).to_owned())).collect()
        };
        let listed = || vec!["a:1".to_owned(), "c:1".to_owned()];
        // This is 1, and runs where 2 was.
        let named = at(&[(1, "a:1"), (2, "b:1"), (3, "c:1")]);
        assert_eq!(unlinked(listed(), &at(&[])), ["a:1", "c:1"]);
        assert!(has_moved(2, 1, "a:1", &named, &at(&[])));
        assert!(!has_moved(3, 1, "c:1", &named, &at(&[])), "the log says so");
        assert!(!has_moved(1, 1, "10.0.0.1:1", &named, &at(&[])), "itself");
        assert!(!has_moved(4, 1, "a:1", &named, &at(&[])), "no member");
        let linked = at(&[(2, "a:1")]);
        assert_eq!(unlinked(listed(), &linked), ["c:1"]);
        assert!(!has_moved(2, 1, "d:1", &named, &linked), "the link stands");
    }
}
