//! The majority is lost, and options allow to go on without it: when that is tried, and for how long.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Forced, LOOK, Probed};
use crate::node::{Node, Phase, lock};

/// When another one is there that leads on, or was just started, the majority may be back
/// at any moment: how long a node waits for it before it becomes non-primary, as nobody
/// need notice anything.
const BACK: Duration = Duration::from_secs(3);

/// The names of members that this host looked up since the majority was lost.
///
/// The name server may fall silent with the peer. The resolver gives up after half a minute or so, and before that
/// nobody knows whether the peer can be asked. That it gave up is known for some seconds; then the same name is looked up
/// again, and with several names always one of them may be. So what came of it once holds.
#[derive(Debug, Default)]
pub(super) struct Looks(Mutex<Since>);

#[derive(Debug, Default)]
struct Since {
    /// Where it was looked in vain.
    in_vain: BTreeSet<String>,
    /// A look of which nothing has come is under way.
    open: bool,
}

impl Looks {
    pub(super) fn begin(&self) {
        *lock(&self.0) = Since::default();
    }

    fn are_open(&self) -> bool {
        lock(&self.0).open
    }

    /// Whose name is being looked up once more counts as gone.
    pub(super) fn weigh(&self, probed: &mut Probed) {
        let mut since = lock(&self.0);
        since.in_vain.extend(probed.unlooked.drain(..));
        probed
            .looking
            .retain(|addr, _| !since.in_vain.contains(addr));
        since.open = !probed.looking.is_empty();
    }
}

impl Node {
    /// The majority is lost: tries to go on without it on a thread of its own,
    /// and becomes non-primary if that may not be. On the service thread.
    pub(in crate::node) fn try_alone(self: &Arc<Self>) {
        let mut trying = lock(&self.rejoiner);
        if trying.as_ref().is_some_and(|t| !t.is_finished()) {
            return;
        }
        let node = self.clone();
        let thread = std::thread::Builder::new()
            .name("dromon-alone".into())
            .spawn(move || node.go_alone_or_wait());
        match thread {
            Ok(thread) => *trying = Some(thread),
            Err(e) => {
                self.error(&format!("no thread to go on alone: {e}"));
                self.lost_primary();
            }
        }
    }

    /// Goes on alone, or waits for the majority while another one is there, and becomes non-primary if it does not
    /// come. While the resolver looks for another one it goes on asking: nothing else would make it try again.
    fn go_alone_or_wait(&self) {
        let looks = &self.going_alone.looks;
        looks.begin();
        let serves_until = Instant::now() + BACK;
        let mut until = serves_until;
        loop {
            // Who is silent takes all that time.
            let is_last = Instant::now() >= until;
            let refused = match self.go_alone(Forced::Lost) {
                Ok(_) => return,
                Err(refused) => refused,
            };
            let looking = refused.leads_on && looks.are_open();
            if looking {
                // It comes to something else then.
                until = Instant::now() + BACK;
            }
            let ends = !(looking || refused.leads_on && !is_last) || !self.may_try_alone();
            if ends {
                self.note(&format!("not going on without a majority: {}", refused.why));
                return self.lost_primary();
            }
            if Instant::now() >= serves_until {
                let again = match looking {
                    true => "until the resolver has answered",
                    false => "once",
                };
                self.note_now_and_then(&format!(
                    "not going on without a majority yet: {}. It is asked again {again}",
                    refused.why
                ));
                self.lost_primary();
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Whether it makes sense to try again.
    fn may_try_alone(&self) -> bool {
        let works = || {
            self.order()
                .is_some_and(|order| order.status().failed.is_none())
        };
        matches!(self.phase(), Phase::Joined | Phase::NonPrimary) && works() && self.may_go_alone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_looked_for_in_vain_once_is_gone_while_its_name_is_looked_up_again() {
        let looks = Looks::default();
        // Who is still waited for.
        let waits = |looking: &[&str], unlooked: &[&str]| -> Vec<String> {
            let told = looking.iter().map(|a| ((*a).to_owned(), String::new()));
            let mut probed = Probed {
                reached: Vec::new(),
                untold: None,
                barred: None,
                silent: None,
                going: None,
                looking: told.collect(),
                unlooked: unlooked.iter().map(|a| (*a).to_owned()).collect(),
            };
            looks.weigh(&mut probed);
            assert_eq!(looks.are_open(), !probed.looking.is_empty());
            probed.looking.into_keys().collect()
        };
        looks.begin();
        assert_eq!(waits(&["b", "c"], &[]), ["b", "c"]);
        assert_eq!(waits(&["c"], &["b"]), ["c"]);
        // Never both at once.
        assert_eq!(waits(&["b", "c"], &[]), ["c"]);
        assert!(waits(&["b"], &["c"]).is_empty());
        // The majority was back meanwhile.
        looks.begin();
        assert_eq!(waits(&["b"], &[]), ["b"]);
    }
}
