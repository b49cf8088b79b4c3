//! Whose address a joiner announces.
//!
//! A join puts out every member at the joiner's address: that is how a node that
//! was started anew takes the place of the one before. A copied configuration, or an
//! address that was guessed and is the same on all machines, announces that of a
//! member which runs, so the leader looks first.

use std::time::Duration;

use dromon_writeset::Uuid;

use crate::cluster::Member;
use crate::messages::Join;

/// Who was heard within this time runs. A node that was started again asks again.
const HEARD: Duration = Duration::from_secs(2);

/// Why the leader `own` does not order `join`, if a member that is here has its address.
/// `silent`: for how long a member has been, if it ever spoke.
pub fn refusal<'a>(
    members: impl IntoIterator<Item = &'a Member>,
    own: &Uuid,
    join: &Join,
    silent: impl Fn(&Uuid) -> Option<Duration>,
) -> Option<String> {
    let mut members = members.into_iter();
    let holder = members.find(|m| {
        let here = m.uuid == *own || silent(&m.uuid).is_some_and(|s| s < HEARD);
        m.addr == join.addr && m.raft_id != join.raft_id && m.uuid != join.uuid && here
    })?;
    Some(format!(
        "{} is the address of {}, a member that is here. Two nodes cannot have one address: set wsrep_node_address of the \
         joining node to that at which the others reach it",
        join.addr, holder.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::MemberState;
    use crate::cluster::tests::{join, member};
    use crate::messages::{Control, Need, Position};

    /// What 1, the leader, says to 4 at the address of `addr_of`, if 2 was heard `heard` ago.
    fn says(addr_of: u8, heard: Option<u64>, change: impl Fn(&mut Join)) -> Option<String> {
        let members = [1, 2].map(|n| member(n, &format!("n{n}"), MemberState::Synced));
        let Control::Join(mut join) = join(4, Position::UNDEFINED, Need::Copy) else {
            panic!("a join");
        };
        join.addr = format!("127.0.0.1:{addr_of}");
        change(&mut join);
        let silent = |uuid: &Uuid| match uuid.0[0] {
            2 => heard.map(Duration::from_millis),
            _ => None,
        };
        refusal(&members, &Uuid([1; 16]), &join, silent)
    }

    #[test]
    fn the_address_of_a_member_that_is_here_is_taken() {
        let same = |_: &mut Join| ();
        let why = says(2, Some(100), same).expect("it was just heard");
        assert!(
            why.starts_with("127.0.0.1:2 is the address of n2, a"),
            "{why}"
        );
        assert!(says(1, None, same).is_some(), "the leader itself");
        assert_eq!(says(4, Some(100), same), None, "nobody's");
    }

    #[test]
    fn who_comes_back_takes_its_place() {
        let same = |_: &mut Join| ();
        assert_eq!(says(2, Some(2000), same), None, "the one before is dead");
        assert_eq!(says(2, None, same), None, "and never spoke");
        let log = |join: &mut Join| join.raft_id = 2;
        assert_eq!(says(2, Some(100), log), None, "the same log");
        let incarnation = |join: &mut Join| join.uuid = Uuid([2; 16]);
        assert_eq!(
            says(2, Some(100), incarnation),
            None,
            "the same incarnation"
        );
    }
}
