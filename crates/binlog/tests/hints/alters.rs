//! ALTERs that a primary writes in two parts (`binlog_alter_two_phase`): what comes between runs on a replica while it
//! builds keys that no catalog shows.

use dromon_binlog::hints::{Barrier, Catalog, Hint, Limits};
use dromon_binlog::{EventType, GtidExtra, Payload, Position, gtid_extra, gtid_flags};

use crate::rules::numbers;
use crate::stream::{Stream, insert, int};
use crate::support::{format_event, gtid, mariadb};

const ALTER: &str = "alter table t add unique key (v)";

fn at(seqno: u64) -> Position {
    format!("3-7-{seqno}").parse().expect("a position")
}

/// Seen from its third group on: an ALTER in two parts, and rows. Tables are offered when they are wanted.
struct Altered {
    s: Stream,
    seqno: u64,
    offers: usize,
}

impl Altered {
    fn new() -> Altered {
        let tables = vec![numbers("t", &["id", "v"], &[&["id"]])];
        Altered {
            s: Stream::new(tables, Limits::default()),
            seqno: 2,
            offers: 0,
        }
    }

    /// A part of the ALTER that began in the group of this number.
    fn part(&mut self, flags: u8, begin: u64) {
        self.seqno += 1;
        let mut event = gtid(self.seqno, gtid_flags::STANDALONE | gtid_flags::DDL);
        event.extra = Some(GtidExtra {
            flags,
            alter_begin: begin,
            ..GtidExtra::default()
        });
        let begin = self.s.made(EventType::GTID, &Payload::Gtid(event));
        assert!(self.s.raw(&begin).is_none());
        let statement = self.s.statement(ALTER);
        assert!(self.s.raw(&statement).is_some());
        self.offer();
    }

    /// A transaction. Whether its keys are known.
    fn knows(&mut self) -> bool {
        self.seqno += 1;
        let event = gtid(
            self.seqno,
            gtid_flags::TRANSACTIONAL | gtid_flags::ALLOW_PARALLEL,
        );
        let begin = self.s.made(EventType::GTID, &Payload::Gtid(event));
        let n = i32::try_from(self.seqno).expect("few");
        let rows = self.s.rows(&insert(0, vec![int(n), int(n)]), None);
        let hint: Hint = self.s.group(begin, rows);
        self.offer();
        match hint.barrier {
            None => true,
            Some(Barrier::UnknownTable(_)) => false,
            other => panic!("{other:?}"),
        }
    }

    fn offer(&mut self) {
        let hints = &mut self.s.hints;
        if !hints.has_catalog() && !hints.has_offer() {
            let catalog = Catalog::new(self.s.schemas.clone());
            hints.offer(at(self.seqno), at(self.seqno), catalog);
            self.offers += 1;
        }
    }
}

#[test]
fn nothing_is_known_within_one() {
    for end in [gtid_extra::COMMIT_ALTER, gtid_extra::ROLLBACK_ALTER] {
        let mut a = Altered::new();
        assert!(!a.knows());
        assert!(a.knows());
        a.part(gtid_extra::START_ALTER, 0);
        let (began, offers) = (a.seqno, a.offers);
        for _ in 0..5 {
            assert!(!a.knows());
        }
        assert_eq!(
            a.offers, offers,
            "a long one is no reason to read again and again"
        );
        // The end of another one, of which the beginning was not seen.
        a.part(end, 1);
        assert!(!a.knows());
        a.part(end, began);
        assert_eq!(a.offers, offers + 2, "what waited is void");
        assert!(a.knows());
    }
}

#[test]
fn two_at_once() {
    let mut a = Altered::new();
    a.part(gtid_extra::START_ALTER, 0);
    let first = a.seqno;
    a.part(gtid_extra::START_ALTER, 0);
    let second = a.seqno;
    a.part(gtid_extra::COMMIT_ALTER, second);
    assert!(!a.knows());
    a.part(gtid_extra::COMMIT_ALTER, first);
    assert!(a.knows());
}

/// The primary died within one, and one of its replicas is the primary: it never ends.
#[test]
fn another_primary() {
    for (domain, known) in [(2, false), (3, true)] {
        let mut a = Altered::new();
        a.part(gtid_extra::START_ALTER, 0);
        assert!(!a.knows());
        let mut of = gtid(9, gtid_flags::STANDALONE);
        of.gtid.domain = domain;
        let mut of = a.s.made(EventType::GTID, &Payload::Gtid(of));
        // The server id of the header.
        of[5] = 8;
        let len = of.len() - 4;
        let sum = crc32fast::hash(&of[..len]).to_le_bytes();
        of[len..].copy_from_slice(&sum);
        assert!(a.s.raw(&of).is_none());
        let statement = a.s.statement("truncate t");
        assert!(a.s.raw(&statement).is_some());
        assert_eq!(a.knows(), known);
    }
}

/// The primary was killed within one: it never ends.
#[test]
fn a_primary_that_was_started_anew() {
    let mut a = Altered::new();
    a.part(gtid_extra::START_ALTER, 0);
    let mut format = mariadb(dromon_binlog::Checksum::Crc32);
    for (created, known) in [(0, false), (1_700_000_000, true)] {
        format.created = created;
        assert!(a.s.raw(&format_event(&format)).is_none());
        assert!(!a.knows());
        assert_eq!(a.knows(), known);
    }
}
