//! Who is not evicted although it is silent.
//!
//! A witness may lead. If it evicted the last member with data, nobody would be
//! left to serve, to be copied from, or to hold the log for who comes back. So one
//! stays a member, and goes on where it was.

use dromon_writeset::Uuid;

use crate::cluster::{Member, MemberState};

/// Of those with data the one to be kept, if all of them are `silent`. `asked`:
/// its eviction is on its way already.
pub fn kept<'a>(
    members: impl IntoIterator<Item = &'a Member>,
    silent: impl Fn(&Uuid) -> bool,
    asked: impl Fn(&Uuid) -> bool,
) -> Option<Uuid> {
    let members = members.into_iter();
    let data: Vec<_> = members.filter(|m| m.complete && !m.witness).collect();
    if data.iter().any(|m| !silent(&m.uuid)) {
        return None;
    }
    let stays = data.iter().filter(|m| !asked(&m.uuid));
    // Who was up to date rather than who was catching up.
    let stays = stays.min_by_key(|m| m.state != MemberState::Synced);
    stays.map(|m| m.uuid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::tests::member;

    /// Two with data, a joiner without, a witness.
    fn members() -> Vec<Member> {
        let mut members = vec![
            member(1, "a", MemberState::Joined),
            member(2, "b", MemberState::Synced),
            member(3, "j", MemberState::Joiner),
            member(4, "w", MemberState::Synced),
        ];
        members[2].complete = false;
        members[3].witness = true;
        members
    }

    fn kept_of(silent: &[u8], asked: &[u8]) -> Option<u8> {
        let members = members();
        let of = |who: &[u8]| {
            let who = who.to_vec();
            move |uuid: &Uuid| who.contains(&uuid.0[0])
        };
        kept(&members, of(silent), of(asked)).map(|uuid| uuid.0[0])
    }

    #[test]
    fn the_last_one_with_data_stays() {
        assert_eq!(kept_of(&[1, 3], &[]), None, "b has the data");
        assert_eq!(kept_of(&[1, 2], &[]), Some(2));
        assert_eq!(kept_of(&[1, 2, 3], &[]), Some(2), "a joiner has none");
    }

    #[test]
    fn of_two_on_their_way_out_the_second_stays() {
        assert_eq!(kept_of(&[1, 2], &[2]), Some(1));
        assert_eq!(kept_of(&[1, 2], &[1, 2]), None, "too late to choose");
    }
}
