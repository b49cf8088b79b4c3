//! Who is the first member with data.

use super::*;

fn again(n: u8, raft_id: u64, need: Need) -> Control {
    match join(n, NOWHERE, need) {
        Control::Join(j) => Control::Join(Join { raft_id, ..j }),
        other => other,
    }
}

/// The only one with data leaves amid a copy, and who took it is back first, on its log: it waits.
#[test]
fn who_needs_a_copy_is_not() {
    let mut f = Feed::new();
    f.send(1, &join(1, NOWHERE, Need::Log));
    f.send(2, &join(2, NOWHERE, Need::Copy));
    let uuid = Uuid([1; 16]);
    let reason = LeaveReason::Graceful;
    f.send(1, &Control::Leave { uuid, reason });
    assert_eq!(f.state.members().count(), 1);
    f.send(3, &again(3, 2, Need::Copy));
    assert_eq!(state_of(&f, 2), None);
    assert_eq!(state_of(&f, 3), Some(MemberState::Joiner));
    assert!(f.state.members().all(|m| !m.complete));
    f.send(4, &again(4, 1, Need::Log));
    assert_eq!(state_of(&f, 4), Some(MemberState::Synced));
    let ask = Control::StateRequest {
        joiner: Uuid([3; 16]),
        donors: String::new(),
        request: vec![1],
    };
    let gives = |e: &Event| matches!(e, Event::Donate { donor, .. } if *donor == Uuid([4; 16]));
    assert!(f.send(3, &ask).iter().any(gives));
}
