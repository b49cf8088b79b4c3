//! Whether all members keep their logs alike (`dromon.durability`).
//!
//! A member at `memory` confirms a write set that is not on its disk yet, and the
//! leader counts that like any other word. So what a member says to its clients holds
//! only as far as all are set alike. They need not be while the setting is changed,
//! node by node: whoever is told says so, once for each change.

/// Who keeps its log otherwise than this node, as last told.
#[derive(Debug, Default)]
pub struct Durabilities {
    others: Vec<String>,
}

/// What is to be said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is not as it should be.
    Warning(String),
    /// It is again.
    Note(String),
}

impl Durabilities {
    /// The names of those whose setting differs.
    pub fn differing(&self) -> &[String] {
        &self.others
    }

    /// This node waits for its disk, if `own`; `others`: names, and whether they do.
    /// Answers what is new.
    pub fn look<'a>(
        &mut self,
        own: bool,
        others: impl Iterator<Item = (&'a str, bool)>,
    ) -> Option<Told> {
        let differing = others.filter(|(_, durable)| *durable != own);
        let mut differing: Vec<String> = differing.map(|(name, _)| name.to_owned()).collect();
        differing.sort();
        if differing == self.others {
            return None;
        }
        self.others = differing;
        let names = self.others.join(", ");
        Some(match (own, names.is_empty()) {
            (_, true) => Told::Note("dromon.durability is the same on all members again".into()),
            (true, false) => Told::Warning(format!(
                "dromon.durability is majority here and memory on {names}: these confirm a write set before it is on \
                 their disks, and are counted all the same. What is acknowledged here may be on this node's disk \
                 alone, and is lost with it if they lose power, too. Set it alike on all members, restarting one \
                 after the other"
            )),
            (false, false) => Told::Warning(format!(
                "dromon.durability is memory here and majority on {names}: their clients are promised that a majority \
                 has what is acknowledged on its disks, and this node, which is counted, has it in memory only. Set \
                 it alike on all members, restarting one after the other"
            )),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_told_once_and_so_is_its_end() {
        let mut seen = Durabilities::default();
        assert_eq!(
            seen.look(true, [("n2", true), ("n3", true)].into_iter()),
            None
        );
        let warned = |told: Option<Told>, words: &str| match told {
            Some(Told::Warning(text)) => assert!(text.contains(words), "{text}"),
            other => panic!("{other:?} instead of a warning: {words}"),
        };
        let mixed = [("n3", false), ("n2", true)];
        warned(seen.look(true, mixed.into_iter()), "memory on n3:");
        assert_eq!(seen.look(true, mixed.into_iter()), None);
        assert_eq!(seen.differing(), ["n3"]);
        // One after the other is changed.
        let both = [("n3", false), ("n2", false)];
        warned(seen.look(true, both.into_iter()), "memory on n2, n3:");
        // This node too: it starts anew.
        let mut seen = Durabilities::default();
        assert_eq!(seen.look(false, both.into_iter()), None);
        warned(seen.look(false, mixed.into_iter()), "majority on n2:");
        let over = seen.look(false, both.into_iter());
        assert!(matches!(over, Some(Told::Note(_))), "{over:?}");
        assert!(seen.differing().is_empty());
    }
}
