use super::*;
use proptest::prelude::*;

fn mark(seqno: Seqno, progress: Progress) -> Mark {
    Mark {
        at: Position {
            history: Uuid([7; 16]),
            seqno,
        },
        progress,
        untold: 0,
        former: None,
    }
}

fn slot(number: u64, mark: Mark) -> Slot {
    Slot {
        number,
        mark: Some(mark),
        data: number % 3,
        notes: number.is_multiple_of(2),
    }
}

const BEGUN: Progress = Progress::Begun;
const OVER: Progress = Progress::Ended { ok: true };
const FAILED: Progress = Progress::Ended { ok: false };

#[test]
fn marks_are_read_back_and_forgotten() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut marks = Marks::open(dir.path(), dir.path()).expect("no file yet");
    assert_eq!(marks.newest(), None);
    let all = [
        mark(5, BEGUN),
        mark(5, Progress::Ended { ok: false }),
        mark(9, BEGUN),
        mark(9, OVER),
        mark(12, Progress::RowsFailed),
    ];
    for m in all {
        marks.write(m).expect("a disk that works");
        let again = Marks::open(dir.path(), dir.path()).expect("a file");
        assert_eq!(again.newest(), Some(m));
    }
    // A copy script has swept the directory.
    std::fs::remove_file(dir.path().join(MARKS_FILE)).expect("a file");
    marks.forget().expect("a disk that works");
    assert_eq!(
        Marks::open(dir.path(), dir.path())
            .expect("a file")
            .newest(),
        None
    );
}

#[test]
fn marks_are_about_the_files_that_were_there() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = tempfile::tempdir().expect("a directory");
    let file = data.path().join(DATA_FILE);
    let open = || Marks::open(dir.path(), data.path()).expect("readable");
    let (done, stop) = (mark(9, OVER), mark(12, Progress::Stopped { whole: true }));
    open().write(done).expect("a disk that works");
    std::fs::write(&file, "one").expect("room");
    assert!(!open().exchanged(), "that mark does not tell");
    let mut marks = open();
    marks.write(done).expect("a disk that works");
    marks.write(stop).expect("a disk that works");
    std::fs::write(&file, "grown").expect("room");
    let same = open();
    assert_eq!((same.stopped(), same.exchanged()), (Some(stop.at), false));
    // As a copy is put there.
    std::fs::write(data.path().join("copy"), "one").expect("room");
    std::fs::rename(data.path().join("copy"), &file).expect("a file");
    let mut other = open();
    assert_eq!((other.stopped(), other.exchanged()), (None, true));
    assert_eq!(other.newest(), Some(done));
    other.write(mark(13, BEGUN)).expect("a disk that works");
    assert!(!other.exchanged() && !open().exchanged());
    std::fs::remove_file(&file).expect("a file");
    assert!(!open().exchanged(), "nothing is known of those");
}

#[test]
fn a_stop_tells_whether_the_log_had_more() {
    let dir = tempfile::tempdir().expect("a directory");
    let open = || Marks::open(dir.path(), dir.path()).expect("readable");
    for whole in [true, false] {
        let stop = mark(12, Progress::Stopped { whole });
        let mut marks = open();
        marks.write(mark(9, OVER)).expect("a disk that works");
        marks.write(stop).expect("a disk that works");
        let says = |marks: &Marks, whole| {
            assert_eq!(marks.stopped(), Some(stop.at));
            assert_eq!(marks.stopped_whole(), Some(stop.at).filter(|_| whole));
            assert_eq!(marks.newest(), Some(mark(9, OVER)));
        };
        says(&marks, whole);
        says(&open(), whole);
        marks.log_grows().expect("a disk that works");
        says(&marks, false);
        says(&open(), false);
        marks.runs().expect("a disk that works");
        for marks in [marks, open()] {
            assert_eq!((marks.stopped(), marks.stopped_whole()), (None, None));
        }
    }
}

#[test]
fn marks_that_cannot_be_written_show_before_one_comes() {
    let dir = tempfile::tempdir().expect("a directory");
    let away = dir.path().join("away");
    std::os::unix::fs::symlink(away.join("marks"), dir.path().join(MARKS_FILE)).expect("a link");
    let mut marks = Marks::open(dir.path(), dir.path()).expect("none are there");
    assert!(marks.ready().is_err());
    std::fs::create_dir(away).expect("room");
    marks.ready().expect("now there is a place");
    marks.write(mark(5, BEGUN)).expect("a disk that works");
    let found = Marks::open(dir.path(), dir.path()).expect("readable");
    assert_eq!(found.newest(), Some(mark(5, BEGUN)));
}

#[test]
fn each_slot_says_whether_there_are_notes() {
    let dir = tempfile::tempdir().expect("a directory");
    let open = || Marks::open(dir.path(), dir.path()).expect("readable");
    open().ready().expect("room");
    assert!(!open().has_notes(), "nobody has said so");
    let first = Mark {
        untold: 3,
        ..mark(9, BEGUN)
    };
    let stop = mark(12, Progress::Stopped { whole: true });
    let mut marks = open();
    for m in [first, mark(9, OVER), mark(11, BEGUN)] {
        marks.write(m).expect("a disk that works");
        assert!(!open().has_notes(), "{m:?}");
    }
    // Before they are written.
    marks.set_notes(true).expect("a disk that works");
    let same = open();
    assert!(same.has_notes());
    assert_eq!(same.newest(), marks.newest());
    marks.write(stop).expect("a disk that works");
    assert!(open().has_notes());
    open().log_grows().expect("a disk that works");
    assert!(open().has_notes());
    open().runs().expect("a disk that works");
    let mut after = open();
    let former = after.newest().and_then(|m| m.former);
    assert_eq!(former.map(|f| (f.seqno, f.untold)), Some((9, 3)));
    assert!(after.has_notes());
    after.set_notes(false).expect("nothing is written");
    after.write(stop).expect("a disk that works");
    assert!(!open().has_notes());
    // An earlier build left notes.
    let mut after = open();
    after.set_notes(true).expect("a disk that works");
    assert_eq!(
        (open().stopped(), open().has_notes()),
        (Some(stop.at), false)
    );
    after.runs().expect("a disk that works");
    assert_eq!((open().stopped(), open().has_notes()), (None, true));
}

#[test]
fn that_there_are_notes_does_not_make_marks_be_about_other_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = tempfile::tempdir().expect("a directory");
    let file = data.path().join(DATA_FILE);
    let open = || Marks::open(dir.path(), data.path()).expect("readable");
    std::fs::write(&file, "one").expect("room");
    open().write(mark(9, OVER)).expect("a disk that works");
    std::fs::write(data.path().join("copy"), "one").expect("room");
    std::fs::rename(data.path().join("copy"), &file).expect("a file");
    let mut marks = open();
    marks.set_notes(true).expect("a disk that works");
    for marks in [marks, open()] {
        assert!(marks.exchanged() && marks.has_notes());
        assert_eq!(marks.newest(), Some(mark(9, OVER)));
    }
}

#[test]
fn a_start_does_not_make_marks_be_about_other_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = tempfile::tempdir().expect("a directory");
    let file = data.path().join(DATA_FILE);
    let open = || Marks::open(dir.path(), data.path()).expect("readable");
    let (done, stop) = (mark(9, OVER), mark(12, Progress::Stopped { whole: true }));
    std::fs::write(&file, "one").expect("room");
    open().write(done).expect("a disk that works");
    std::fs::write(data.path().join("copy"), "one").expect("room");
    std::fs::rename(data.path().join("copy"), &file).expect("a file");
    open().write(stop).expect("a disk that works");
    let mut marks = open();
    assert_eq!((marks.stopped(), marks.exchanged()), (Some(stop.at), true));
    marks.runs().expect("a disk that works");
    assert!(marks.exchanged());
    let again = open();
    assert_eq!((again.stopped(), again.exchanged()), (None, true));
    assert_eq!(again.newest(), Some(done));
}

#[test]
fn rows_that_failed_are_in_doubt_where_the_engine_has_passed_them() {
    let failed = mark(9, Progress::RowsFailed);
    let left = |seqno| left_behind(Some(failed), mark(seqno, BEGUN).at);
    assert_eq!(left(9), Left::Unknown);
    assert_eq!(left(8), Left::Nothing, "they are applied again");
    assert_eq!(left(10), Left::Nothing);
    assert_eq!(left(5), Left::Done, "a statement at 6 was over before them");
    let decided = mark(9, OVER);
    assert_eq!(left_behind(Some(decided), failed.at), Left::Nothing);
}

#[test]
fn a_statement_that_is_over_does_not_hide_rows_that_failed_behind_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut marks = Marks::open(dir.path(), dir.path()).expect("no file yet");
    let failed = mark(6, Progress::RowsFailed);
    for m in [mark(5, BEGUN), failed, mark(5, OVER), mark(5, FAILED)] {
        marks.write(m).expect("a disk that works");
    }
    let in_file = || {
        Marks::open(dir.path(), dir.path())
            .expect("a file")
            .newest()
    };
    assert_eq!((marks.newest(), in_file()), (Some(failed), Some(failed)));
    let left = |seqno| left_behind(in_file(), mark(seqno, BEGUN).at);
    assert_eq!(left(6), Left::Unknown);
    assert_eq!(left(5), Left::Nothing, "6 comes again");
    assert_eq!(left(4), Left::Done, "5 is over");
    let other = Mark {
        at: Position {
            history: Uuid([1; 16]),
            seqno: 5,
        },
        progress: OVER,
        untold: 0,
        former: None,
    };
    for m in [mark(6, OVER), mark(5, BEGUN), failed, other] {
        marks.write(m).expect("a disk that works");
        assert_eq!((marks.newest(), in_file()), (Some(m), Some(m)));
    }
}

#[test]
fn damage_that_no_crash_does_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut marks = Marks::open(dir.path(), dir.path()).expect("no file yet");
    marks.write(mark(5, BEGUN)).expect("a disk that works");
    marks.write(mark(5, OVER)).expect("a disk that works");
    let path = dir.path().join(MARKS_FILE);
    let whole = std::fs::read(&path).expect("there");
    let damaged = |places: &[usize]| {
        let mut bytes = whole.clone();
        places.iter().for_each(|at| bytes[*at] ^= 1);
        std::fs::write(&path, bytes).expect("room");
        Marks::open(dir.path(), dir.path()).map(|marks| marks.newest())
    };
    assert!(damaged(&[20]).is_ok_and(|m| m.is_some()));
    assert!(damaged(&[SLOT + 20]).is_ok_and(|m| m.is_some()));
    let refused = damaged(&[20, SLOT + 20]).expect_err("neither can be read");
    assert!(refused.to_string().contains("damaged"), "{refused}");
}

#[test]
fn a_flipped_bit_does_not_hide_that_a_statement_had_begun() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join(MARKS_FILE);
    let file = || -> [u8; 2 * SLOT] {
        let bytes = std::fs::read(&path).expect("there");
        *bytes.first_chunk().expect("two slots")
    };
    let flipped = |at: usize, bit: u8| {
        let mut bytes = file();
        bytes[at] ^= 1 << bit;
        read(&bytes).expect("one is whole").mark
    };
    let places = || (0..2 * SLOT).flat_map(|at| (0..8).map(move |bit| (at, bit)));
    let mut marks = Marks::open(dir.path(), dir.path()).expect("no file yet");
    for seqno in [5, 9, 30] {
        marks.write(mark(seqno, BEGUN)).expect("a disk that works");
        for (at, bit) in places() {
            let found = flipped(at, bit);
            assert_eq!(found, Some(mark(seqno, BEGUN)), "byte {at}, bit {bit}");
        }
        marks.write(mark(seqno, OVER)).expect("a disk that works");
        for (at, bit) in places() {
            let left = left_behind(flipped(at, bit), mark(seqno - 1, BEGUN).at);
            assert_ne!(left, Left::Nothing, "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn an_orderly_stop_counts_until_the_node_runs_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let open = || Marks::open(dir.path(), dir.path()).expect("readable");
    let stop = mark(12, Progress::Stopped { whole: true });
    let mut marks = open();
    marks.write(mark(9, BEGUN)).expect("a disk that works");
    marks.write(mark(9, OVER)).expect("a disk that works");
    assert_eq!(marks.stopped(), None);
    marks.write(stop).expect("a disk that works");
    assert_eq!(open().stopped(), Some(stop.at));
    assert_eq!(left_behind(open().newest(), stop.at), Left::Nothing);
    // The engine lost its last moments, in spite of the orderly stop.
    let earlier = mark(8, BEGUN).at;
    assert_eq!(left_behind(open().newest(), earlier), Left::Done);
    marks = open();
    marks.runs().expect("a disk that works");
    assert_eq!(open().stopped(), None);
    assert_eq!(open().newest(), Some(mark(9, OVER)));
    let path = dir.path().join(MARKS_FILE);
    for at in 0..2 * SLOT {
        let whole = std::fs::read(&path).expect("there");
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        std::fs::write(&path, bytes).expect("room");
        assert_eq!(open().stopped(), None, "byte {at}");
        std::fs::write(&path, whole).expect("room");
    }
}

#[test]
fn what_lay_before_a_statement_is_kept_from_when_it_began() {
    let dir = tempfile::tempdir().expect("a directory");
    let open = || Marks::open(dir.path(), dir.path()).expect("readable");
    let with = |untold, mark| Mark { untold, ..mark };
    let mut marks = open();
    marks
        .write(with(3, mark(9, BEGUN)))
        .expect("a disk that works");
    assert_eq!(open().newest(), Some(with(3, mark(9, BEGUN))));
    marks.write(mark(9, OVER)).expect("a disk that works");
    let stop = mark(12, Progress::Stopped { whole: true });
    marks.write(stop).expect("a disk that works");
    assert_eq!(open().newest(), Some(with(3, mark(9, OVER))));
    open().runs().expect("a disk that works");
    assert_eq!(open().newest(), Some(with(3, mark(9, OVER))));
    let mut marks = open();
    marks.write(mark(10, OVER)).expect("a disk that works");
    let untold = open().newest().map(|m| (m.at.seqno, m.untold));
    assert_eq!(untold, Some((10, 0)), "of another place");
}

#[test]
fn a_statement_right_behind_another_does_not_hide_what_lay_before_that() {
    let dir = tempfile::tempdir().expect("a directory");
    let open = || Marks::open(dir.path(), dir.path()).expect("readable");
    let mut marks = open();
    let first = Mark {
        untold: 3,
        ..mark(9, BEGUN)
    };
    for m in [first, mark(9, OVER)] {
        marks.write(m).expect("a disk that works");
    }
    let next = [
        (10, BEGUN),
        (10, OVER),
        (12, Progress::RowsFailed),
        (12, OVER),
    ];
    for (seqno, progress) in next {
        marks
            .write(mark(seqno, progress))
            .expect("a disk that works");
        for found in [marks.newest(), open().newest()] {
            let found = found.expect("written");
            assert_eq!(found.at, mark(seqno, progress).at);
            // The first one is what comes next, and over.
            for at in 5..=8 {
                let at = mark(at, BEGUN).at;
                assert_eq!(found.stands(at), 8, "{found:?} at {at:?}");
                assert_eq!(left_behind(Some(found), at), Left::Done);
            }
            assert_eq!(found.stands(mark(4, BEGUN).at), 4);
            assert_eq!(found.stands(mark(9, BEGUN).at), 9);
        }
    }
    let far = mark(9 + (1 << FORMER_BITS), BEGUN);
    marks.write(far).expect("a disk that works");
    assert_eq!(open().newest(), Some(far), "further than is kept");
}

#[test]
fn what_is_left_behind_a_position() {
    let at = |seqno| mark(seqno, BEGUN).at;
    assert_eq!(left_behind(None, at(4)), Left::Nothing);
    assert_eq!(left_behind(Some(mark(5, BEGUN)), at(4)), Left::Unknown);
    assert_eq!(left_behind(Some(mark(5, OVER)), at(4)), Left::Done);
    assert_eq!(left_behind(Some(mark(5, FAILED)), at(4)), Left::Unknown);
    assert_eq!(left_behind(Some(mark(5, OVER)), at(5)), Left::Nothing);
    assert_eq!(left_behind(Some(mark(5, BEGUN)), at(5)), Left::Nothing);
    assert_eq!(left_behind(Some(mark(5, FAILED)), at(5)), Left::Unknown);
    assert_eq!(left_behind(Some(mark(5, FAILED)), at(6)), Left::Nothing);
    assert_eq!(
        left_behind(Some(mark(8, BEGUN)), at(4)),
        Left::Done,
        "what lies between is over, or 8 had not begun"
    );
    let other = Position {
        history: Uuid([1; 16]),
        seqno: 4,
    };
    assert_eq!(left_behind(Some(mark(5, BEGUN)), other), Left::Nothing);
    // Nothing was told of 7 and 8.
    let behind = |seqno, progress| {
        let mark = Mark {
            untold: 2,
            ..mark(9, progress)
        };
        (left_behind(Some(mark), at(seqno)), mark.stands(at(seqno)))
    };
    for seqno in 6..=8 {
        assert_eq!(behind(seqno, BEGUN), (Left::Unknown, 8));
        assert_eq!(behind(seqno, OVER), (Left::Done, 8));
        assert_eq!(behind(seqno, FAILED), (Left::Unknown, 8));
    }
    assert_eq!(behind(5, BEGUN), (Left::Done, 5), "6 moves the position");
    assert_eq!(behind(9, OVER), (Left::Nothing, 9));
    assert_eq!(behind(9, FAILED), (Left::Unknown, 9));
    let nothing = Position::UNDEFINED;
    assert_eq!(left_behind(Some(mark(0, BEGUN)), nothing), Left::Nothing);
}

proptest! {
    #[test]
    fn a_torn_or_damaged_slot_leaves_the_other_one(
        numbers in 1..1000u64,
        at in 0..SLOT,
        flip in 1..=255u8,
        torn in 0..SLOT,
    ) {
        let (old, new) = (mark(numbers as i64, OVER), mark(numbers as i64 + 3, BEGUN));
        let mut bytes = [0; 2 * SLOT];
        let place = |n: u64| (n % 2) as usize * SLOT;
        bytes[place(numbers)..][..SLOT].copy_from_slice(&encode(slot(numbers, old)));
        let next = encode(slot(numbers + 1, new));
        // A write that stopped half way over what was there before.
        let mut half = bytes;
        half[place(numbers + 1)..][..torn].copy_from_slice(&next[..torn]);
        let whole = half[place(numbers + 1)..][..SLOT] == next;
        prop_assert_eq!(newest(&half).mark, Some(if whole { new } else { old }));
        bytes[place(numbers + 1)..][..SLOT].copy_from_slice(&next);
        prop_assert_eq!(newest(&bytes), slot(numbers + 1, new));
        bytes[place(numbers + 1) + at] ^= flip;
        prop_assert_eq!(newest(&bytes).mark, Some(old));
    }
}
