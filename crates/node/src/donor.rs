//! Which member gives a joiner its copy: the same choice on every node.

use crate::cluster::{Member, MemberState};
use dromon_writeset::Uuid;

/// Chooses the donor for `joiner` out of `members` (in uuid order).
///
/// `wanted` is `wsrep_sst_donor`: names in order of preference; an empty last
/// item (or an empty list) means "else anyone". Only synced members that give
/// to nobody else are asked, never a witness, nor one that is not to give
/// (`gcs.stateless`); the joiner's own segment is preferred.
pub fn choose<'a>(
    joiner: &Member,
    wanted: &str,
    members: impl Iterator<Item = &'a Member> + Clone,
    busy: impl Fn(&Uuid) -> bool,
) -> Option<Uuid> {
    let free = members
        .filter(|m| m.uuid != joiner.uuid && m.state == MemberState::Synced && !busy(&m.uuid))
        .filter(|m| gives(m));
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

/// Whether it ever gives anything.
fn gives(m: &Member) -> bool {
    !m.witness && !m.stateless
}

/// When a bypass can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// Somebody can give it.
    Now,
    /// Somebody who came earlier will be able to.
    Later,
    /// Nobody is there who could, or they wait for this member.
    Never,
}

/// When a bypass can be had for `own`. Of members that come back at once
/// the one that came first waits for nobody, and the others for it.
///
/// After an outage members stand there that died with it, until they are back or
/// evicted: who is not `heard` gives nothing.
pub fn bypass_from(own: &Uuid, members: &[Member], heard: impl Fn(&Uuid) -> bool) -> Prospect {
    let joined_at = members.iter().find(|m| m.uuid == *own);
    let joined_at = joined_at.map_or(0, |m| m.joined_at);
    let mut prospect = Prospect::Never;
    for m in members.iter().filter(|m| m.uuid != *own && gives(m)) {
        match m.state {
            MemberState::Synced if heard(&m.uuid) => return Prospect::Now,
            MemberState::Synced | MemberState::Donor => prospect = Prospect::Later,
            _ if m.complete && m.joined_at < joined_at => prospect = Prospect::Later,
            _ => {}
        }
    }
    prospect
}

/// Whom to ask for a copy while some members are not `heard`: `wanted` without those. After an
/// outage members stand there that died with it, and one of them would be chosen, and cost the
/// joiner its start when it is evicted. None: nobody who is wanted is heard.
pub fn heard_of(
    joiner: &Member,
    wanted: &str,
    members: &[Member],
    heard: impl Fn(&Uuid) -> bool,
) -> Option<String> {
    let others = members.iter().filter(|m| m.uuid != joiner.uuid && gives(m));
    let synced = others.filter(|m| m.state == MemberState::Synced);
    let (there, silent): (Vec<_>, Vec<_>) = synced.partition(|m| heard(&m.uuid));
    if silent.is_empty() {
        return Some(wanted.to_owned());
    }
    let one_of = |members: &[&Member], name: &str| members.iter().any(|m| m.name == name);
    let is_silent = |name: &str| one_of(&silent, name) && !one_of(&there, name);
    let names = wanted.split(',').map(str::trim);
    let anyone = names.clone().any(str::is_empty);
    let named = names.filter(|n| !n.is_empty() && !is_silent(n));
    let mut asked: Vec<&str> = named.collect();
    if anyone {
        let mut there = there.clone();
        there.sort_by_key(|m| (m.segment != joiner.segment, m.uuid));
        asked.extend(there.iter().map(|m| m.name.as_str()));
    }
    (!asked.is_empty()).then(|| asked.join(","))
}

/// A list of wanted donors that leaves out those who `failed`, as long as there
/// are others.
fn others_than(failed: &[Uuid], members: &[Member]) -> String {
    let names = members
        .iter()
        .filter(|m| m.state == MemberState::Synced && gives(m) && !failed.contains(&m.uuid));
    names.map(|m| format!("{},", m.name)).collect()
}

/// Whom a joiner asks, as its wanted donors (`wsrep_sst_donor`) and the answers have it.
#[derive(Debug)]
pub struct Asked {
    wanted: String,
    list: String,
    not_now: Vec<Uuid>,
    failed: Vec<Uuid>,
}

impl Asked {
    /// Before the first question.
    pub fn new(wanted: &str) -> Self {
        Asked {
            wanted: wanted.to_owned(),
            list: wanted.to_owned(),
            not_now: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// The list to ask with next.
    pub fn list(&self) -> &str {
        &self.list
    }

    /// `donor` gives nothing now: others are asked first, if others may be.
    pub fn not_now(&mut self, donor: Uuid, members: &[Member]) {
        self.not_now.push(donor);
        self.list = without(&self.wanted, &self.not_now, members);
    }

    /// `donor` failed: it is not asked again as long as there are others. How many have.
    pub fn failed(&mut self, donor: Uuid, members: &[Member]) -> usize {
        self.failed.push(donor);
        self.list = others_than(&self.failed, members);
        self.failed.len()
    }

    /// Nobody of the list gives anything: who said "not now" may by the next question.
    /// True: somebody had.
    pub fn nobody(&mut self) -> bool {
        let anew = !self.not_now.is_empty();
        if anew {
            self.not_now.clear();
            self.list.clone_from(&self.wanted);
        }
        anew
    }
}

/// What is said while nobody gives to `own`: whom it wants, and who is there.
pub fn in_vain(own: &Uuid, wanted: &str, members: &[Member]) -> String {
    let others = || members.iter().filter(|m| m.uuid != *own && gives(m));
    let synced: Vec<&str> = others()
        .filter(|m| m.state == MemberState::Synced)
        .map(|m| m.name.as_str())
        .collect();
    let names: Vec<&str> = wanted.split(',').map(str::trim).collect();
    let strict = !names.contains(&"");
    let unknown = !others().any(|m| names.contains(&m.name.as_str()));
    let list = |names: &[&str], none: &str| match names.iter().all(|n| n.is_empty()) {
        true => none.to_owned(),
        false => names.join(","),
    };
    format!(
        "no member can be donor now: wsrep_sst_donor wants {}, synced are {}; will keep asking every second{}",
        list(&names, "anyone"),
        list(&synced, "none"),
        match strict && unknown {
            true => {
                ". No member has a name of that list, and without a comma at its end nobody else is asked: start that \
                 member, or start this node again with another wsrep_sst_donor"
            }
            false => "",
        }
    )
}

/// A list of wanted donors to ask with next: `wanted` without those who said that they
/// give nothing now, as long as others may be asked.
fn without(wanted: &str, not_now: &[Uuid], members: &[Member]) -> String {
    let is_out = |name: &str| {
        let mut out = members.iter().filter(|m| not_now.contains(&m.uuid));
        out.any(|m| m.name == name)
    };
    let names = wanted.split(',').map(str::trim);
    let anyone = names.clone().any(str::is_empty);
    let left: Vec<&str> = names.filter(|n| !n.is_empty() && !is_out(n)).collect();
    match (left.is_empty(), anyone) {
        (_, true) => left.join(",") + "," + &others_than(not_now, members),
        (false, false) => left.join(","),
        (true, false) => wanted.to_owned(),
    }
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
        if wanted == "b," {
            members[1].stateless = true;
        }
        choose(&joiner, wanted, members.iter(), |u| u.0[0] == 4).map(|u| u.0[0])
    }

    #[test]
    fn who_gives_nothing_now_is_left_out_if_others_may_be_asked() {
        let members = [
            member(1, "a", MemberState::Synced),
            member(2, "b", MemberState::Synced),
            member(3, "c", MemberState::Donor),
        ];
        let of = |n: u8| members[usize::from(n) - 1].uuid;
        let next = |wanted: &str, out: &[u8]| {
            let out: Vec<_> = out.iter().map(|n| of(*n)).collect();
            without(wanted, &out, &members)
        };
        assert_eq!(next("", &[1]), ",b,");
        assert_eq!(next("a,b,", &[1]), "b,b,");
        assert_eq!(next("a,b", &[1]), "b");
        assert_eq!(next("a", &[1]), "a", "nobody else is wanted");
        assert_eq!(next("", &[1, 2]), ",", "anyone");
        let joiner = member(9, "j", MemberState::Joiner);
        let chosen = choose(&joiner, &next("a,", &[1]), members.iter(), |_| false);
        assert_eq!(chosen, Some(of(2)));
    }

    #[test]
    fn who_said_not_now_is_asked_again_once_nobody_else_gives() {
        let members = [
            member(1, "a", MemberState::Synced),
            member(2, "b", MemberState::Joiner),
        ];
        let joiner = member(9, "j", MemberState::Joiner);
        let chosen = |asked: &Asked| choose(&joiner, asked.list(), members.iter(), |_| false);
        let a = members[0].uuid;
        let mut asked = Asked::new("a,b");
        for _ in 0..2 {
            assert_eq!(chosen(&asked), Some(a));
            asked.not_now(a, &members);
            assert_eq!(chosen(&asked), None, "b first, which copies itself");
            assert!(asked.nobody());
        }
        assert_eq!(chosen(&asked), Some(a));
        assert!(!asked.nobody(), "nobody was left out");
        // Who failed stays out.
        assert_eq!(asked.failed(a, &members), 1);
        assert!(!asked.nobody());
        assert_eq!(asked.list(), others_than(&[a], &members));
    }

    #[test]
    fn who_waits_in_vain_says_whom_it_wants_and_who_is_there() {
        let members = [
            member(1, "a", MemberState::Synced),
            member(2, "b", MemberState::Donor),
            member(3, "c", MemberState::Synced),
            member(9, "j", MemberState::Joiner),
        ];
        let said = |wanted: &str, n: usize| in_vain(&members[3].uuid, wanted, &members[n..]);
        assert!(said("", 3).contains("wants anyone, synced are none;"));
        assert!(said("b", 0).ends_with("wants b, synced are a,c; will keep asking every second"));
        assert!(
            said("db9,", 0).ends_with("every second"),
            "others are asked"
        );
        let lost = said("db9, j", 0);
        assert!(lost.contains("wants db9,j, synced are a,c;"), "{lost}");
        assert!(lost.contains("No member has a name of that list"), "{lost}");
    }

    #[test]
    fn a_bypass_comes_from_who_is_synced_or_was_here_first() {
        let mut members = [
            member(1, "a", MemberState::Joined),
            member(2, "b", MemberState::Joined),
            member(3, "w", MemberState::Synced),
        ];
        members[2].witness = true;
        for (n, m) in members.iter_mut().enumerate() {
            m.complete = true;
            m.joined_at = 10 + n as i64;
        }
        let of = |n: usize, members: &[Member]| bypass_from(&members[n].uuid, members, |_| true);
        assert_eq!(of(0, &members), Prospect::Never, "the first");
        assert_eq!(of(1, &members), Prospect::Later, "it waits for the first");
        members[0].complete = false;
        assert_eq!(of(1, &members), Prospect::Never, "the first takes a copy");
        members[0].complete = true;
        members[0].state = MemberState::Donor;
        assert_eq!(of(1, &members), Prospect::Later);
        members[0].state = MemberState::Synced;
        assert_eq!(of(1, &members), Prospect::Now);
        let silent = bypass_from(&members[1].uuid, &members, |_| false);
        assert_eq!(silent, Prospect::Later, "it may be dead");
        members[1].state = MemberState::Synced;
        assert_eq!(of(0, &members), Prospect::Now, "though it came later");
        let silent = bypass_from(&members[0].uuid, &members, |_| false);
        assert_eq!(silent, Prospect::Later, "it will be evicted, or be back");
        members[1].state = MemberState::Joined;
        assert_eq!(others_than(&[], &members), "a,");
        assert_eq!(others_than(&[members[0].uuid], &members), "");
    }

    #[test]
    fn who_is_not_heard_is_not_asked() {
        let joiner = member(9, "j", MemberState::Joiner);
        let mut members = vec![
            member(1, "dead", MemberState::Synced),
            member(2, "b", MemberState::Synced),
            member(3, "c", MemberState::Synced),
            member(4, "copies", MemberState::Joiner),
            joiner.clone(),
        ];
        members[1].segment = 1;
        let asked = |wanted: &str, members: &[Member]| {
            heard_of(&joiner, wanted, members, |u| u.0[0] == 2 || u.0[0] == 3)
        };
        assert_eq!(
            asked("", &members).as_deref(),
            Some("c,b"),
            "its own segment first"
        );
        assert_eq!(asked("b,", &members).as_deref(), Some("b,c,b"));
        assert_eq!(asked("dead,b", &members).as_deref(), Some("b"));
        assert_eq!(asked("dead", &members), None, "nobody else is wanted");
        assert_eq!(asked("dead,", &members).as_deref(), Some("c,b"));
        let list = asked("", &members).expect("two are heard");
        let chosen = choose(&joiner, &list, members.iter(), |u| u.0[0] == 3);
        assert_eq!(chosen, Some(members[1].uuid));
        let chosen = choose(&joiner, &list, members.iter(), |u| u.0[0] != 1);
        assert_eq!(chosen, None, "both are busy: later");
        members[0].name = "b".to_owned();
        assert_eq!(
            asked("b", &members).as_deref(),
            Some("b"),
            "one of two of that name is there"
        );
        members.truncate(1);
        assert_eq!(asked("", &members), None);
        // The dead one has been evicted.
        members.clear();
        assert_eq!(asked("a,", &members).as_deref(), Some("a,"));
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
        assert_eq!(pick("b,"), Some(1), "told to give nobody a copy");
    }
}
