//! Which dooms count, and what they change.

use dromon_certify::FailReason;
use dromon_order::Part;
use dromon_writeset::{Flags, KeyCollector, KeyType};

use super::super::tests::{Feed, join};
use super::*;
use crate::messages::{Control, LeaveReason, Need};

const TRX: u64 = 42;

/// A fragment of transaction 42 of `origin`, or its end, or its rollback.
fn fragment(origin: u8, last_seen: Seqno, row: u64, flags: Flags) -> bytes::Bytes {
    let mut keys = KeyCollector::new();
    if !flags.is_rollback() {
        let row = row.to_le_bytes();
        keys.add(&[b"db", b"t", &row], KeyType::Exclusive)
            .expect("a key of three parts");
    }
    let header = Header {
        flags,
        source: Uuid([origin; 16]),
        trx_id: TRX,
        conn_id: 1,
        last_seen,
        prev_fragment: -1,
        chunk: 0,
    };
    dromon_writeset::encode(&header, &keys, b"rows")
}

const END: Flags = Flags::from_bits(Flags::TRX_END.bits() | Flags::PA_UNSAFE.bits());
const BACK: Flags = Flags::from_bits(Flags::ROLLBACK.bits() | Flags::PA_UNSAFE.bits());

/// Two members; what the second one sends is a stream.
fn two() -> Feed {
    let mut f = Feed::new();
    for n in [1, 2] {
        let position = f.state.position();
        f.send(n, &join(n, position, Need::Log));
    }
    f
}

fn now(f: &Feed) -> Seqno {
    f.state.position().seqno
}

fn send(f: &mut Feed, row: u64, flags: Flags) -> (Option<FailReason>, Option<RollsBack>) {
    let body = fragment(2, now(f), row, flags);
    match f.part(2, Part::Whole, body).pop() {
        Some(Event::WriteSet {
            verdict,
            rolls_back,
            ..
        }) => match verdict {
            dromon_certify::Verdict::Passed { .. } => (None, rolls_back),
            dromon_certify::Verdict::Failed { reason } => (Some(reason), rolls_back),
        },
        other => panic!("not a write set: {other:?}"),
    }
}

fn doom(f: &mut Feed, waits: Seqno) -> Option<Seqno> {
    let doom = Control::Doom {
        source: Uuid([2; 16]),
        trx_id: TRX,
        waits,
    };
    match f.send(1, &doom).pop() {
        None => None,
        Some(Event::Doomed { seqno, .. }) => Some(seqno),
        other => panic!("not a doom: {other:?}"),
    }
}

/// What the first member writes while the stream is open.
fn between(f: &mut Feed) -> Seqno {
    let ws = super::super::tests::write_set(1, now(f), 900);
    f.part(1, Part::Whole, ws);
    now(f)
}

#[test]
fn a_doom_counts_once_and_as_long_as_the_stream_is_open() {
    let mut f = two();
    assert_eq!(send(&mut f, 1, Flags::TRX_START), (None, None));
    let first = now(&f);
    assert_eq!(doom(&mut f, first), None, "nobody waits before it");
    let waits = between(&mut f);
    assert_eq!(doom(&mut f, waits + 1), None, "that is not ordered");
    assert_eq!(doom(&mut f, waits), Some(waits + 1));
    assert_eq!(doom(&mut f, waits), None, "once");

    // No fragment passes any more, nor its end; and its own rollback ends it.
    let at = waits + 1;
    let gone = Some(RollsBack {
        first,
        gone: Some(at),
    });
    let doomed = || Some(FailReason::Doomed { at });
    assert_eq!(send(&mut f, 2, Flags::NONE), (doomed(), gone));
    assert_eq!(send(&mut f, 3, END), (doomed(), gone));
    assert_eq!(send(&mut f, 0, BACK), (None, gone));
    assert_eq!(f.state.open_streams().count(), 0);
    assert_eq!(doom(&mut f, waits), None);
    assert_eq!(send(&mut f, 4, Flags::TRX_START), (None, None), "another one");
}

#[test]
fn whoever_takes_the_freed_rows_comes_after_the_doom() {
    let mut f = two();
    send(&mut f, 1, Flags::TRX_START);
    let waits = between(&mut f);
    let at = doom(&mut f, waits).expect("it is open");
    let ws = super::super::tests::write_set(1, now(&f), 1);
    let events = f.part(1, Part::Whole, ws);
    let [Event::WriteSet { verdict, .. }] = events.as_slice() else {
        panic!("not a write set: {events:?}")
    };
    assert_eq!(verdict.depends_on(), at);
}

#[test]
fn what_failed_or_ended_first_needs_no_doom() {
    let mut f = two();
    send(&mut f, 1, Flags::TRX_START);
    let waits = between(&mut f);
    assert_eq!(send(&mut f, 1, END), (None, None));
    assert_eq!(doom(&mut f, waits), None, "it commits");

    send(&mut f, 1, Flags::TRX_START);
    let first = now(&f);
    let waits = between(&mut f);
    let seen = now(&f) - 1;
    let late = fragment(2, seen, 900, Flags::NONE);
    let events = f.part(2, Part::Whole, late);
    let failed = now(&f);
    let back = RollsBack { first, gone: None };
    let Some(Event::WriteSet {
        verdict,
        rolls_back,
        ..
    }) = events.first()
    else {
        panic!("not a write set: {events:?}")
    };
    assert!(!verdict.passed(), "it has not seen what it meets");
    assert_eq!(*rolls_back, Some(back));
    assert_eq!(doom(&mut f, waits), None, "that rolls it back");
    let gone = RollsBack {
        first,
        gone: Some(failed),
    };
    assert_eq!(send(&mut f, 0, BACK), (None, Some(gone)));
    assert_eq!(send(&mut f, 0, BACK), (None, None), "nobody knows it");
}

#[test]
fn a_checkpoint_remembers_what_was_doomed_and_a_view_forgets_it() {
    let mut f = two();
    send(&mut f, 1, Flags::TRX_START);
    let waits = between(&mut f);
    let before = f.state.digest();
    let at = doom(&mut f, waits).expect("it is open");
    assert_ne!(f.state.digest(), before);
    let (sequencer, node) = f.state.encode();
    let digest = f.state.digest();
    f.state = ClusterState::decode(&sequencer, &node).expect("its own bytes");
    assert_eq!(f.state.digest(), digest);
    let (failed, _) = send(&mut f, 2, Flags::NONE);
    assert_eq!(failed, Some(FailReason::Doomed { at }));
    let leave = Control::Leave {
        uuid: Uuid([2; 16]),
        reason: LeaveReason::Evicted,
    };
    f.send(1, &leave);
    assert_eq!(f.state.open_streams().count(), 0);
    assert_eq!(doom(&mut f, waits), None);
}

#[test]
fn who_lost_touch_has_no_stream_when_it_is_back() {
    let mut f = two();
    send(&mut f, 1, Flags::TRX_START);
    let released = now(&f);
    let uuid = Uuid([2; 16]);
    f.send(2, &Control::Rejoin { uuid, released });
    assert_eq!(f.state.open_streams().count(), 0);
    // What was on its way belongs to nothing.
    assert_eq!(send(&mut f, 2, Flags::NONE), (None, None));
    assert_eq!(f.state.open_streams().count(), 0);
}
