//! How logs are opened and looked into.

use super::*;
use futures_util::FutureExt;
use openraft::storage::RaftLogReader;
use std::collections::BTreeSet;

/// How it was kept decides, not how it would be from now on.
#[test]
fn a_log_that_was_kept_in_memory_only_is_not_resumed() {
    for durable in [true, false] {
        let store: Arc<dyn LogStore> = Arc::new(crate::memlog::MemLog::new());
        let open = |start: Start| {
            let ids = (7, durable || matches!(start, Start::Resume));
            Storage::open(store.clone(), &start, ids, "a:1", 1 << 20, Box::new(|_| {}))
        };
        let genesis = Bytes::from_static(b"g");
        let begun = open(Start::Bootstrap {
            genesis,
            after: None,
        });
        assert!(begun.is_ok());
        let found = inspect(&store).expect("it can be read").expect("a log");
        assert_eq!(found.durable, durable);
        match (durable, open(Start::Resume)) {
            (true, Ok(_)) | (false, Err(OrderError::Refused(_))) => {}
            (_, other) => panic!("{durable}: {:?}", other.map(|_| ())),
        }
    }
}

/// It is not read when the log is opened.
#[test]
fn a_damaged_checkpoint_is_damage() {
    let dir = tempfile::tempdir().expect("a directory");
    let open = || -> Arc<dyn LogStore> {
        let device = dromon_log::DirDevice::open(dir.path()).expect("a directory");
        let (log, _) = dromon_log::Log::open(Arc::new(device), Default::default())
            .expect("a log that is whole");
        let writer = dromon_log::WriterHandle::inline(log);
        Arc::new(crate::disklog::DiskLog::new(writer))
    };
    let store = open();
    let start = Start::Bootstrap {
        genesis: Bytes::from(vec![7; 5000]),
        after: None,
    };
    let begun = Storage::open(
        store.clone(),
        &start,
        (7, true),
        "a:1",
        1 << 20,
        Box::new(|_| {}),
    );
    begun.map(|_| ()).expect("a new log");
    assert!(matches!(inspect(&store), Ok(Some(_))));
    store.close();
    let files = std::fs::read_dir(dir.path()).expect("a directory");
    let mut files = files.flatten().map(|e| e.path());
    let is_checkpoint = |p: &std::path::PathBuf| p.to_string_lossy().contains("dromon-ckpt-");
    let checkpoint = files.find(is_checkpoint).expect("a checkpoint");
    let mut bytes = std::fs::read(&checkpoint).expect("a file");
    bytes[2000] ^= 1;
    std::fs::write(&checkpoint, &bytes).expect("a file");

    let store = open();
    let found = inspect(&store).map(|_| ());
    assert!(matches!(found, Err(OrderError::Damaged(_))), "{found:?}");
    let resumed = Storage::open(
        store,
        &Start::Resume,
        (7, true),
        "a:1",
        1 << 20,
        Box::new(|_| {}),
    );
    let resumed = resumed.map(|_| ());
    assert!(
        matches!(resumed, Err(OrderError::Damaged(_))),
        "{resumed:?}"
    );
}

/// It is no log that never was: what it holds may be the only copy of it.
#[test]
fn a_log_without_its_checkpoints_is_damaged() {
    for durable in [true, false] {
        let store: Arc<dyn LogStore> = Arc::new(crate::memlog::MemLog::new());
        assert!(matches!(inspect(&store), Ok(None)), "nothing was begun");
        let start = Start::Bootstrap {
            genesis: Bytes::from_static(b"g"),
            after: None,
        };
        let observer: Observer = Box::new(|_| {});
        let ids = (7, durable);
        let begun = Storage::open(store.clone(), &start, ids, "a:1", 1 << 20, observer);
        assert!(begun.is_ok());
        wait_for(&store, WriteOp::DropCheckpointsBefore(u64::MAX)).expect("removed");
        let found = inspect(&store).map(|found| found.is_some());
        match durable {
            true => assert!(matches!(found, Err(OrderError::Damaged(_))), "{found:?}"),
            // None of these is gone on with.
            false => assert!(matches!(found, Ok(false)), "{found:?}"),
        }
    }
}

/// The checkpoint was saved behind it, so it had been stored; the disk lost it, or whoever
/// copied the files.
#[test]
fn a_log_that_ends_before_its_checkpoint_is_damaged() {
    let begun = |durable| -> Arc<dyn LogStore> {
        let store: Arc<dyn LogStore> = Arc::new(crate::memlog::MemLog::new());
        let start = Start::Bootstrap {
            genesis: Bytes::from_static(b"g"),
            after: None,
        };
        let opened = Storage::open(
            store.clone(),
            &start,
            (7, durable),
            "a:1",
            1 << 20,
            Box::new(|_| {}),
        );
        assert!(opened.is_ok());
        store
    };
    let store = begun(true);
    let blank = |index| {
        let log_id = LogId {
            term: 1,
            leader: 7,
            index,
        };
        to_record(&RaftEntry {
            log_id: to_raft_log_id(log_id),
            payload: EntryPayload::Blank,
        })
    };
    let write = |store: &Arc<dyn LogStore>, op| wait_for(store, op).expect("it is stored");
    write(&store, WriteOp::Append((1..=10).map(blank).collect()));
    let state = store.load_checkpoint(0).expect("the first one");
    let state = decode_checkpoint(state).expect("a state");
    let at = |index| Checkpoint {
        log_id: LogId {
            term: 1,
            leader: 7,
            index,
        },
        ..state.clone()
    };
    let save = |store: &Arc<dyn LogStore>| {
        let bytes = encode_checkpoint(&at(10));
        write(store, WriteOp::SaveCheckpoint(10, bytes));
    };
    save(&store);
    let resume = |store: &Arc<dyn LogStore>| {
        let ids = (7, true);
        let start = Start::Resume;
        Storage::open(store.clone(), &start, ids, "a:1", 1 << 20, Box::new(|_| {})).map(|_| ())
    };
    assert!(matches!(inspect(&store), Ok(Some(_))));
    assert!(resume(&store).is_ok());
    for next in [10, 6] {
        write(&store, WriteOp::TruncateFrom(next));
        let said = format!("it ends before index {next}, but the checkpoint at 10");
        for found in [inspect(&store).map(|_| ()), resume(&store)] {
            assert!(
                matches!(&found, Err(OrderError::Damaged(why)) if why.contains(&said)),
                "{found:?}"
            );
        }
    }
    // Of one that was not kept on the disk nothing else is to be expected.
    let forgetful = begun(false);
    save(&forgetful);
    let found = inspect(&forgetful).expect("no damage").expect("a log");
    assert!(!found.durable);
}

#[test]
fn nothing_is_read_behind_the_end() {
    let store: Arc<dyn LogStore> = Arc::new(crate::memlog::MemLog::new());
    let start = Start::Bootstrap {
        genesis: Bytes::from_static(b"g"),
        after: None,
    };
    let ids = (7, true);
    let opened = Storage::open(store, &start, ids, "a:1", 1 << 20, Box::new(|_| {}));
    let storage = opened.expect("a new log");
    for index in 1..=3 {
        let log_id = LogId {
            term: 1,
            leader: 7,
            index,
        };
        storage.lock().tail.push_back(RaftEntry {
            log_id: to_raft_log_id(log_id),
            payload: EntryPayload::Blank,
        });
    }
    for (from, found) in [(2, 2), (3, 1), (4, 0), (5, 0), (50, 0)] {
        let read = storage.read(from, 60, usize::MAX).expect("no error");
        assert_eq!(read.len(), found, "from {from}");
    }
}

#[test]
fn what_a_log_says_of_its_end_names_the_leader() {
    let store: Arc<dyn LogStore> = Arc::new(crate::memlog::MemLog::new());
    let start = Start::Bootstrap {
        genesis: Bytes::from_static(b"g"),
        after: None,
    };
    let opened = Storage::open(
        store.clone(),
        &start,
        (7, true),
        "a:1",
        1 << 20,
        Box::new(|_| {}),
    );
    assert!(opened.is_ok());
    let last = LogId {
        term: 3,
        leader: 9,
        index: 1,
    };
    let blank = to_record(&RaftEntry {
        log_id: to_raft_log_id(last),
        payload: EntryPayload::Blank,
    });
    wait_for(&store, WriteOp::Append(vec![blank])).expect("it is stored");
    let vote = |term, id| {
        let meta = Meta {
            id: 7,
            vote: Some(vote_for(term, id)),
            committed: None,
            purged: None,
            durable: true,
        };
        wait_for(&store, WriteOp::SaveMeta(encode_meta(Some(&meta)))).expect("it is stored");
        let found = inspect(&store).expect("it can be read").expect("a log");
        assert_eq!(found.last, last);
        (found.voted.term, found.voted.leader)
    };
    assert_eq!(vote(3, 8), (3, 9), "it has an entry of a later leader");
    assert_eq!(vote(3, 10), (3, 10), "the same term, another leader");
    assert_eq!(vote(4, 1), (4, 1));
}

#[test]
fn forced_recoveries_on_different_sides_come_into_different_incarnations() {
    // Alike in their last byte.
    let ids: Vec<RaftId> = (1..=10).map(|n| n << 8 | 5).collect();
    let next = |term, id| next_incarnation(term, id).expect("there are many");
    let once: Vec<u64> = ids.iter().map(|id| next(7, *id)).collect();
    let mut all: BTreeSet<u64> = once.iter().copied().collect();
    for before in &once {
        assert_eq!(*before as u32, 0, "the first term of it");
        assert!(incarnation(*before) > 0);
        for id in &ids {
            let twice = next(before + 3, *id);
            assert!(incarnation(twice) > incarnation(*before));
            all.insert(twice);
        }
    }
    assert_eq!(all.len(), 110, "no two of them meet");
}

#[test]
fn the_last_incarnation_is_followed_by_none() {
    for id in 1..100 {
        let last = u64::from(u32::MAX) << 32;
        for term in [last, last + 7, u64::MAX] {
            assert!(matches!(
                next_incarnation(term, id),
                Err(OrderError::Refused(_))
            ));
        }
        let mut term = (u64::from(u32::MAX) - (1 << 21)) << 32;
        while let Ok(next) = next_incarnation(term, id) {
            assert!(next > term, "{term} is followed by {next}");
            term = next;
        }
        assert!(
            incarnation(term) > u32::MAX - (1 << 20),
            "not before the end"
        );
    }
}

/// Of most questions of a search by halves nothing is needed but the answer; where it ends the rest follows.
#[test]
fn what_is_read_for_a_search_is_one_entry() {
    let store: Arc<dyn LogStore> = Arc::new(crate::memlog::MemLog::new());
    let open = |start| {
        let opened = Storage::open(
            store.clone(),
            &start,
            (7, true),
            "a:1",
            1 << 20,
            Box::new(|_| {}),
        );
        opened.expect("a log")
    };
    let genesis = Bytes::from_static(b"g");
    open(Start::Bootstrap {
        genesis,
        after: None,
    });
    let record = |index| Record {
        index,
        term: 1,
        leader: 7,
        body: encode_payload(&EntryPayload::Blank),
    };
    let written = wait_for(&store, WriteOp::Append((1..=100).map(record).collect()));
    written.expect("they follow");
    let mut log = RaftLog::new(open(Start::Resume));
    let mut read = |from| {
        let found = log.limited_get_log_entries(from, 101).now_or_never();
        let found = found.expect("at once").expect("it can be read");
        assert_eq!(found[0].log_id.index, from);
        found.len()
    };
    assert_eq!([read(50), read(25), read(37)], [1, 1, 1]);
    assert_eq!([read(38), read(80), read(81)], [63, 1, 20]);
}
