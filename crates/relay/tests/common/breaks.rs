//! A relay that follows a primary while connections break, the relay is killed and power is lost.

use std::fmt::Debug;

use dromon_log::SimDevice;
use dromon_relay::pull::{Ingest, take};
use dromon_relay::store::{Store, StoreOptions};
use proptest::prelude::*;

/// How one connection to the primary goes.
#[derive(Clone, Copy, Debug)]
pub struct Break {
    /// Events after which it ends.
    after: usize,
    /// Events after which what came is flushed, again and again.
    flush_every: usize,
    how: How,
}

#[derive(Clone, Copy, Debug)]
enum How {
    /// The connection breaks.
    Connection,
    /// The relay is killed.
    Killed,
    /// Power is lost; the disk keeps what this seed says.
    Power(u64),
}

/// Any breaks, each after fewer events than `after`.
pub fn breaks(after: usize) -> impl Strategy<Value = Vec<Break>> {
    let how = prop_oneof![
        1 => Just(How::Connection),
        1 => Just(How::Killed),
        2 => any::<u64>().prop_map(How::Power),
    ];
    let one = (0..after, 1usize..8, how).prop_map(|(after, flush_every, how)| Break {
        after,
        flush_every,
        how,
    });
    proptest::collection::vec(one, 0..12)
}

/// What differs between kinds of primaries.
pub struct Follower<Send, Flushed, Has> {
    pub options: StoreOptions,
    /// Of a new connection.
    pub ingest: fn() -> Ingest,
    /// What the primary sends to a relay that has this.
    pub send: Send,
    /// How far a store is that has just been flushed.
    pub flushed: Flushed,
    /// How far a store is.
    pub has: Has,
}

/// Through all breaks, then to the end. What was flushed is there whatever happens, and no store
/// begins within a group.
pub fn follow<Far: PartialOrd + Debug>(
    device: &SimDevice,
    breaks: Vec<Break>,
    follower: Follower<
        impl Fn(&Store) -> Vec<Vec<u8>>,
        impl Fn(&Store) -> Far,
        impl Fn(&Store) -> Far,
    >,
) -> Store {
    let open = || super::open(device, follower.options.clone()).expect("empty, or mended");
    let last = Break {
        after: usize::MAX,
        flush_every: 3,
        how: How::Connection,
    };
    let mut store = open();
    let mut flushed = None;
    for one in breaks.into_iter().chain([last]) {
        let mut ingest = (follower.ingest)();
        let sent = (follower.send)(&store);
        for (n, event) in sent.iter().take(one.after).enumerate() {
            take(&mut ingest, &mut store, event).expect("a good primary and disk");
            if n % one.flush_every == 0 {
                store.flush().expect("a good disk");
                flushed = Some((follower.flushed)(&store));
            }
        }
        match one.how {
            How::Connection => {
                ingest.interrupt();
                store.abandon().expect("a good disk");
                store.flush().expect("a good disk");
            }
            How::Killed => {
                drop(store);
                device.kill();
                store = open();
            }
            How::Power(seed) => {
                drop(store);
                device.crash(seed);
                store = open();
            }
        }
        assert!(!store.in_group(), "{one:?}");
        let has = (follower.has)(&store);
        assert!(
            flushed.as_ref().is_none_or(|f| has >= *f),
            "{flushed:?} was flushed, and after {one:?} there is {has:?}"
        );
    }
    store
}
