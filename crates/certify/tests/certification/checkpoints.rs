//! Checkpoints: a restored certifier cannot be told from one that ran on.

use dromon_certify::{Certifier, CheckpointError, Verdict};
use proptest::prelude::*;
use twox_hash::XxHash3_64;

use crate::traffic::{Placed, Spec, events, listed_max, make_cuts_safe, place};

fn step(c: &mut Certifier, placed: &Placed) -> Option<Verdict> {
    match placed {
        Placed::WriteSet(seqno, spec) => return Some(c.certify(*seqno, &spec.make(*seqno))),
        Placed::View(seqno) => c.view(*seqno),
        Placed::Skip(seqno) => c.skip(*seqno),
        Placed::Cut(cut) => c.purge(*cut),
    }
    None
}

fn restart(c: &Certifier) -> Certifier {
    Certifier::decode(&c.encode()).expect("what encode wrote can be read")
}

/// Behind other bytes it is the same.
#[test]
fn a_state_follows_what_is_there() {
    let mut c = Certifier::new(7);
    let spec = Spec::plain(1, 7).with(&["d", "t", "r"], dromon_writeset::KeyType::Update);
    assert!(c.certify(8, &spec.make(8)).passed());
    let mut bytes = b"before".to_vec();
    c.encode_behind(&mut bytes);
    assert_eq!(bytes, [&b"before"[..], &c.encode()].concat());
}

fn same(a: &Certifier, b: &Certifier) -> Result<(), TestCaseError> {
    prop_assert_eq!(a.digest(), b.digest());
    prop_assert_eq!(a.encode(), b.encode());
    prop_assert_eq!(a.position(), b.position());
    prop_assert_eq!(a.floor(), b.floor());
    let (a, b) = (a.stats(), b.stats());
    prop_assert_eq!(
        (a.keys, a.write_sets, a.interval),
        (b.keys, b.write_sets, b.interval)
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// One runs on, one is restarted once in mid-stream, one after each event:
    /// they agree on every later verdict and end in the same state.
    #[test]
    fn a_restart_changes_nothing(
        events in events(80),
        at in any::<prop::sample::Index>(),
        start in 0i64..1000,
    ) {
        let order = place(events, start);
        let at = at.index(order.len());
        let mut runs_on = Certifier::new(start);
        let mut once = Certifier::new(start);
        let mut always = Certifier::new(start);
        for (i, placed) in order.iter().enumerate() {
            if i == at {
                once = restart(&once);
            }
            always = restart(&always);
            let verdict = step(&mut runs_on, placed);
            prop_assert_eq!(&step(&mut once, placed), &verdict);
            prop_assert_eq!(&step(&mut always, placed), &verdict);
            prop_assert_eq!(runs_on.digest(), always.digest());
        }
        same(&runs_on, &once)?;
        same(&runs_on, &always)?;
    }

    /// Nor does it where the index may hold only so many keys.
    #[test]
    fn a_restart_changes_nothing_of_what_is_kept(
        events in events(80),
        keys in 0usize..40,
        keep in 0i64..10,
        listed in listed_max(),
    ) {
        let mut runs_on = Certifier::new(0);
        runs_on.set_listed_max(listed);
        let mut always = Certifier::new(0);
        for placed in place(events, 0) {
            always = restart(&always);
            always.set_listed_max(listed);
            prop_assert_eq!(step(&mut runs_on, &placed), step(&mut always, &placed));
            runs_on.keep_within(keys, keep);
            always.keep_within(keys, keep);
            same(&runs_on, &always)?;
            let left = runs_on.stats();
            prop_assert!(left.keys <= keys || left.interval <= keep as u64);
        }
    }

    /// Many cuts or only the last one: the same state.
    #[test]
    fn the_path_of_cuts_leaves_no_trace(events in events(80)) {
        let mut order = place(events, 0);
        make_cuts_safe(&mut order);
        let (mut many, mut last) = (Certifier::new(0), Certifier::new(0));
        for placed in &order {
            step(&mut many, placed);
            if !matches!(placed, Placed::Cut(_)) {
                step(&mut last, placed);
            }
        }
        last.purge(many.floor());
        same(&many, &last)?;
    }

    /// Each event changes the digest, and two states have one digest only if
    /// they have one encoding.
    #[test]
    fn digests_tell_states_apart(events in events(60)) {
        let mut c = Certifier::new(0);
        let mut seen = vec![(c.digest(), c.encode())];
        for placed in place(events, 0) {
            step(&mut c, &placed);
            seen.push((c.digest(), c.encode()));
        }
        for (i, a) in seen.iter().enumerate() {
            for b in &seen[..i] {
                prop_assert_eq!(a.0 == b.0, a.1 == b.1);
            }
        }
    }

    /// Changed bytes under a right checksum: refused, or a state that encodes
    /// to just these bytes and works on. Never a panic.
    #[test]
    fn hostile_checkpoints(
        events in events(30),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..4), 0..4),
    ) {
        let mut c = Certifier::new(0);
        for placed in place(events, 0) {
            step(&mut c, &placed);
        }
        let mut bytes = c.encode().to_vec();
        bytes.truncate(bytes.len() - 8);
        for (at, byte, how) in changes {
            let at = 5 + at.index(bytes.len() - 5);
            match how {
                0 => bytes[at] = byte,
                1 => bytes[at] ^= 1 << (byte % 8),
                2 => bytes.insert(at, byte),
                _ => bytes.truncate(at + 1),
            }
        }
        let sum = XxHash3_64::oneshot(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        if let Ok(mut got) = Certifier::decode(&bytes) {
            prop_assert_eq!(&got.encode()[..], &bytes[..]);
            let next = got.position() + 1;
            let spec = Spec::plain(1, next - 1).with(&["d"], dromon_writeset::KeyType::Exclusive);
            prop_assert!(got.certify(next, &spec.make(next)).passed());
            got.purge(next);
            prop_assert_eq!(got.stats().keys, 0);
        }
    }

    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Certifier::decode(&bytes).is_err());
        let mut bytes = [b"DCRT\x01".to_vec(), bytes].concat();
        let sum = XxHash3_64::oneshot(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        // Room is taken only for what can be there; this must simply return.
        let _ = Certifier::decode(&bytes);
    }
}

#[test]
fn damage_is_noticed_and_named() {
    let mut c = Certifier::new(7);
    let spec = Spec::plain(1, 7).with(&["d", "t", "r"], dromon_writeset::KeyType::Update);
    assert!(c.certify(8, &spec.make(8)).passed());
    let bytes = c.encode();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1 << bit;
            let err = Certifier::decode(&damaged).expect_err("a bit was flipped");
            match at {
                0..4 => assert_eq!(err, CheckpointError::Magic),
                4 => assert_eq!(err, CheckpointError::Version { found: damaged[4] }),
                _ => assert!(matches!(err, CheckpointError::Checksum { .. }), "{err}"),
            }
        }
    }
    for len in 0..bytes.len() {
        Certifier::decode(&bytes[..len]).expect_err("the end is missing");
    }
    let version = CheckpointError::Version { found: 3 }.to_string();
    assert!(version.contains("version 3") && version.contains("version 1"));
}

#[test]
fn an_empty_state_comes_back() {
    for start in [0, 1, 1 << 40] {
        let c = Certifier::new(start);
        let back = restart(&c);
        assert_eq!(
            (back.position(), back.floor(), back.digest()),
            (start, start, c.digest())
        );
    }
    assert_ne!(Certifier::new(1).digest(), Certifier::new(2).digest());
}
