//! Which member gives a joiner its copy: the same choice on every node.

use crate::cluster::{Member, MemberState};
use dromon_writeset::Uuid;

/// Chooses the donor for `joiner` out of `members` (in uuid order).
///
/// `wanted` is `wsrep_sst_donor`: names in order of preference; an empty last
/// item (or an empty list) means "else anyone". Only synced members that give
/// to nobody else are asked, never a witness; the joiner's own segment is preferred.
pub fn choose<'a>(
    joiner: &Member,
    wanted: &str,
    members: impl Iterator<Item = &'a Member> + Clone,
    busy: impl Fn(&Uuid) -> bool,
) -> Option<Uuid> {
    let free = members
        .filter(|m| m.uuid != joiner.uuid && m.state == MemberState::Synced && !busy(&m.uuid))
        .filter(|m| !m.witness);
    let mut anyone = wanted.trim().is_empty();
    for name in wanted.split(',').map(str::trim) {
        if name.is_empty() {
            anyone = true;
            continue;
        }
        if let Some(m) = free.clone().find(|m| m.name == name) {
            return Some(m.uuid);
        }
    }
    if !anyone {
        return None;
    }
    free.min_by_key(|m| (m.segment != joiner.segment, m.uuid))
        .map(|m| m.uuid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::tests::member;

    fn pick(wanted: &str) -> Option<u8> {
        let joiner = member(9, "j", MemberState::Joiner);
        let mut members = [
            member(1, "a", MemberState::Synced),
            member(2, "b", MemberState::Synced),
            member(3, "c", MemberState::Donor),
            member(4, "d", MemberState::Synced),
        ];
        members[0].segment = 1;
        choose(&joiner, wanted, members.iter(), |u| u.0[0] == 4).map(|u| u.0[0])
    }

    #[test]
    fn names_first_then_segment_then_uuid() {
        assert_eq!(pick(""), Some(2), "own segment before lower uuid");
        assert_eq!(pick("a"), Some(1));
        assert_eq!(pick("c,a"), Some(1), "a donor cannot give twice");
        assert_eq!(pick("c"), None, "no trailing comma: nobody else");
        assert_eq!(pick("c,"), Some(2));
        assert_eq!(pick("d"), None, "busy");
        assert_eq!(pick("nobody,"), Some(2));
    }
}
