//! The rules of certification (contract D.2 to D.6), one write set at a time.

use std::ops::ControlFlow;

use dromon_writeset::{Expanded, Flags, Head, KeyHash, KeyType, Seqno};

use crate::index::{Index, NO_REF, Origin};
use crate::open::{OpenSet, OpenSets};
use crate::verdict::{Conflict, FailReason, Verdict};

/// A write set ordered more than this many seqnos after its `last_seen` fails.
/// The same on all nodes of all versions (`cert.max_length` of the peer).
pub const MAX_LENGTH: Seqno = 16384;

/// A write set may be applied at most this many seqnos ahead of its
/// `last_seen` if nothing else holds it back.
pub const PA_RANGE_MAX: Seqno = 65535;

/// Of a write set with more keys than this the index holds the tables instead of the rows.
///
/// The index has a bound ([`Certifier::keep_within`]). One write set that takes most of it makes it
/// forget all before, and is the next to be forgotten, while no node has applied it yet: everybody
/// who has not seen it would fail, whatever he touches. So whoever touches its tables does.
pub const LISTED_MAX: usize = 1_750_000;

/// Certifies write sets in their total order.
///
/// Every seqno above the start must pass through exactly one of
/// [`certify`](Self::certify), [`view`](Self::view) and [`skip`](Self::skip),
/// in order; anything else is a bug of the caller that would make nodes
/// diverge, and panics.
#[derive(Clone, Debug)]
pub struct Certifier {
    pub(crate) index: Index,
    /// Write sets that are being applied in chunks.
    pub(crate) open: OpenSets,
    /// The last seqno that was taken.
    pub(crate) position: Seqno,
    /// The start, or the highest cut.
    pub(crate) floor: Seqno,
    /// The last PA_UNSAFE write set that passed, or the last view.
    pub(crate) last_pa_unsafe: Seqno,
    /// How far behind a write set may be; see [`Certifier::set_window`].
    window: Seqno,
    /// See [`LISTED_MAX`].
    listed_max: usize,
    /// Keys of the write set under test; kept for its memory.
    scratch: Vec<(KeyHash, KeyType)>,
}

/// What the index holds, for status variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Distinct keys, prefixes included.
    pub keys: usize,
    /// Of them those that no cut takes away: of large transactions that are open.
    pub open_keys: usize,
    /// Write sets that passed and were not purged.
    pub write_sets: usize,
    /// Seqnos from the lowest write set held to the last one taken.
    pub interval: u64,
    /// Memory of the index, about, in bytes.
    pub memory_bytes: usize,
}

impl Certifier {
    /// An empty index for a history whose last seqno is `start` (0: a new one).
    ///
    /// Only a fresh history may start like this: a node that joins an older
    /// one must start from a checkpoint, or its verdicts differ.
    pub fn new(start: Seqno) -> Self {
        let start = start.max(0);
        Certifier::with(Index::default(), start, start, start)
    }

    pub(crate) fn with(index: Index, position: Seqno, floor: Seqno, last_pa_unsafe: Seqno) -> Self {
        Certifier {
            index,
            open: OpenSets::default(),
            position,
            floor,
            last_pa_unsafe,
            window: MAX_LENGTH,
            listed_max: LISTED_MAX,
            scratch: Vec::new(),
        }
    }

    /// Takes the next seqno with the write set ordered there.
    ///
    /// A [`dromon_writeset::WriteSet`] derefs to its head. Panics if `seqno` is
    /// not the next one.
    pub fn certify(&mut self, seqno: Seqno, ws: &Head) -> Verdict {
        self.advance(seqno);
        self.scratch.clear();
        let result = if ws.flags().is_toi() {
            self.collect_toi(ws);
            Ok(seqno - 1)
        } else if ws.flags().is_rollback() {
            Ok(seqno - 1)
        } else {
            self.test(seqno, ws)
        };
        match result {
            Ok(depends_on) => {
                self.install(seqno, ws);
                assert!(
                    depends_on < seqno,
                    "a write set depends on itself or a later one"
                );
                Verdict::Passed { depends_on }
            }
            Err(reason) => {
                self.index.pass_over();
                Verdict::Failed { reason }
            }
        }
    }

    /// Takes the next seqno with a write set that is applied in chunks from
    /// here on. If it passes, its keys are open: whatever touches them fails,
    /// until [`Self::close`] or [`Self::drop_open`] is called with this seqno.
    /// With `closes`, so does whatever changes anything in a table that it changes.
    ///
    /// Panics if `seqno` is not the next one.
    pub fn certify_open(&mut self, seqno: Seqno, ws: &Head, closes: bool) -> Verdict {
        self.advance(seqno);
        self.scratch.clear();
        let result = self.test(seqno, ws);
        self.index.pass_over();
        match result {
            Ok(_) => {
                let set = OpenSet {
                    origin: origin_of(ws),
                    tables: self.tables_of(ws),
                    keys: std::mem::take(&mut self.scratch),
                    closes: match closes {
                        true => ws.keys().changed_tables(),
                        false => Vec::new(),
                    },
                };
                self.open.insert(seqno, set);
                self.last_pa_unsafe = seqno;
                Verdict::Passed {
                    depends_on: seqno - 1,
                }
            }
            Err(reason) => Verdict::Failed { reason },
        }
    }

    /// Takes the next seqno with a write set that fails for what the caller knows.
    ///
    /// Panics if `seqno` is not the next one.
    pub fn refuse(&mut self, seqno: Seqno, reason: FailReason) -> Verdict {
        self.skip(seqno);
        Verdict::Failed { reason }
    }

    /// What one more chunk of an open write set, whose last one stands at `before`,
    /// depends on. Its keys are open, so no neighbour touches them: it shares its
    /// time with others as plain write sets do. The seqno that it takes is
    /// [skipped](Self::skip).
    pub fn chunk_depends_on(&self, before: Seqno) -> Seqno {
        self.last_pa_unsafe.max(before)
    }

    /// Takes the next seqno as the place where the open write set `id` commits:
    /// to whoever comes later its keys were changed here, or, if they are very many
    /// ([`LISTED_MAX`]), its tables.
    ///
    /// Panics if `seqno` is not the next one, or nothing is open at `id`.
    pub fn close(&mut self, id: Seqno, seqno: Seqno) {
        self.advance(seqno);
        let set = self.open.remove(id);
        let Some(set) = set else {
            panic!("no write set is open at seqno {id}; this node must stop before it diverges");
        };
        let keys = set.tables.unwrap_or(set.keys);
        self.index.install(seqno, set.origin, keys.into_iter());
        self.last_pa_unsafe = seqno;
    }

    /// Takes the next seqno as the place where the open write set `id` is rolled
    /// back: it leaves no trace.
    ///
    /// Panics if `seqno` is not the next one.
    pub fn drop_open(&mut self, id: Seqno, seqno: Seqno) {
        self.open.remove(id);
        self.view(seqno);
    }

    /// The open write sets that a DDL touches: they give way to it.
    pub fn open_met_by(&mut self, ddl: &Head) -> Vec<Seqno> {
        if self.open.is_empty() {
            return Vec::new();
        }
        self.scratch.clear();
        self.collect_toi(ddl);
        let mut met = Vec::new();
        for (hash, key_type) in &self.scratch {
            met.extend(self.open.met_by(*hash, *key_type));
        }
        met.sort_unstable();
        met.dedup();
        met
    }

    /// The tables that the open write set `id` closes.
    pub fn closes(&self, id: Seqno) -> &[KeyHash] {
        self.open.closes(id)
    }

    /// The seqnos at which open write sets were certified.
    pub fn open(&self) -> impl Iterator<Item = Seqno> {
        self.open.ids()
    }

    /// Takes the next seqno as that of a view: nothing later overtakes it.
    ///
    /// Panics if `seqno` is not the next one.
    pub fn view(&mut self, seqno: Seqno) {
        self.advance(seqno);
        self.index.pass_over();
        self.last_pa_unsafe = seqno;
    }

    /// Takes the next seqno for something that needs no certification.
    ///
    /// Panics if `seqno` is not the next one.
    pub fn skip(&mut self, seqno: Seqno) {
        self.advance(seqno);
        self.index.pass_over();
    }

    /// Sets how far behind the order a write set's `last_seen` may be, at least
    /// [`MAX_LENGTH`], from the next write set on. Not part of the saved state:
    /// whoever sets it does so for every write set, from what the order says.
    pub fn set_window(&mut self, window: Seqno) {
        self.window = window.max(MAX_LENGTH);
    }

    /// Sets another bound than [`LISTED_MAX`], for tests. Not part of the saved state.
    pub fn set_listed_max(&mut self, keys: usize) {
        self.listed_max = keys;
    }

    /// Forgets all write sets up to `cut`.
    ///
    /// Only at a cut that stands in the total order. Changes no verdict on a
    /// write set with `last_seen >= cut`; one that saw less fails from now on.
    /// A cut below an earlier one does nothing.
    ///
    /// A cut at [`position`](Self::position) - [`MAX_LENGTH`] is always safe,
    /// whoever lags: what lies below it fails by its length anyway. That bounds
    /// the index when the reports of a slow node hold the other cuts back.
    pub fn purge(&mut self, cut: Seqno) {
        let cut = cut.min(self.position);
        if cut > self.floor {
            self.floor = cut;
            self.index.purge(cut);
        }
    }

    /// Forgets the oldest write sets while the index has more than `keys`, but none of the last `keep`
    /// seqnos. A write set with a lower `last_seen` fails from then on, as after a cut.
    ///
    /// Whoever calls this does so at the same places of the total order everywhere, with the same numbers.
    /// That bounds the index when write sets are large and reports of a slow node hold the cuts back.
    pub fn keep_within(&mut self, keys: usize, keep: Seqno) {
        let newest = self.position - keep;
        while self.index.keys() > keys
            && let Some(lowest) = self.index.lowest().filter(|lowest| *lowest <= newest)
        {
            self.purge(lowest);
        }
    }

    /// The last seqno taken.
    pub fn position(&self) -> Seqno {
        self.position
    }

    /// The start of the index: where it began, or the highest cut.
    pub fn floor(&self) -> Seqno {
        self.floor
    }

    /// What the index holds.
    pub fn stats(&self) -> Stats {
        let lowest = self.index.lowest().unwrap_or(self.position + 1);
        Stats {
            keys: self.index.keys() + self.open.keys(),
            open_keys: self.open.keys(),
            write_sets: self.index.held(),
            interval: (self.position + 1).abs_diff(lowest),
            memory_bytes: self.index.memory(),
        }
    }

    fn advance(&mut self, seqno: Seqno) {
        assert!(
            seqno == self.position + 1,
            "certification was given seqno {seqno} after {}: a hole or a repetition in the total \
             order; this node must stop before it diverges",
            self.position
        );
        self.position = seqno;
    }

    fn collect_toi(&mut self, ws: &Head) {
        let scratch = &mut self.scratch;
        let _: ControlFlow<()> = ws.keys().expand(|e| {
            let t = if e.key.prefix {
                KeyType::Shared
            } else {
                KeyType::Exclusive
            };
            scratch.push((e.hash, t));
            ControlFlow::Continue(())
        });
    }

    /// Tests a write set; leaves its keys in `scratch`. The dependency if it
    /// passes.
    fn test(&mut self, seqno: Seqno, ws: &Head) -> Result<Seqno, FailReason> {
        let header = ws.header();
        let last_seen = header.last_seen;
        if last_seen >= seqno {
            return Err(FailReason::FromFuture { last_seen, seqno });
        }
        if last_seen < self.floor {
            return Err(FailReason::TooOld {
                last_seen,
                floor: self.floor,
            });
        }
        if seqno - last_seen > self.window {
            return Err(FailReason::TooLong { last_seen, seqno });
        }
        // The statement may have met a table that the transaction only read, which no
        // key tells: its node has aborted it then, and its server cannot replay what
        // came in fragments.
        let ends_stream = header.flags.ends() && !header.flags.starts();
        if ends_stream && let Some(ddl) = self.index.toi_after(last_seen) {
            return Err(FailReason::BesideDdl { last_seen, ddl });
        }
        let (index, scratch) = (&self.index, &mut self.scratch);
        let open = (!self.open.is_empty()).then_some(&self.open);
        let mut by_key = NO_REF;
        let flow = ws.keys().expand(|Expanded { hash, table, key }| {
            scratch.push((hash, key.key_type));
            let (key_type, whole, source) = (key.key_type, key.whole_table, header.source);
            let met = open.and_then(|o| {
                // What an end brings was in the fragments before, if not in it.
                let asks = key.changes || ends_stream;
                let closed = asks.then(|| o.closed_by(table)).flatten();
                closed.or_else(|| o.meets(hash, key_type, whole, source))
            });
            let tested = match met {
                Some(hit) => Err(hit),
                None => index.test(hash, key_type, whole, source, last_seen),
            };
            match tested {
                Ok(seqno) => {
                    by_key = by_key.max(seqno);
                    ControlFlow::Continue(())
                }
                Err(hit) => ControlFlow::Break(Conflict {
                    table: key.table_text(),
                    key: key.row_text(),
                    new_type: key.key_type,
                    whole_table: key.whole_table,
                    held_type: hit.held_type,
                    seqno: hit.seqno,
                    source: hit.origin.source,
                    trx_id: hit.origin.trx_id,
                    conn_id: hit.origin.conn_id,
                    toi: hit.origin.toi,
                }),
            }
        });
        match flow {
            ControlFlow::Break(conflict) => Err(FailReason::Conflict(Box::new(conflict))),
            ControlFlow::Continue(()) => Ok(self.depends_on(seqno, ws, by_key)),
        }
    }

    /// Contract D.4.
    fn depends_on(&self, seqno: Seqno, ws: &Head, by_key: Seqno) -> Seqno {
        let header = ws.header();
        let start = if header.flags.pa_unsafe() {
            seqno - 1
        } else if header.flags.implicit_deps() {
            header.last_seen
        } else {
            // A follow-up fragment at least waits for the one before it.
            header
                .last_seen
                .saturating_sub(PA_RANGE_MAX)
                .max(header.prev_fragment)
        };
        // What was purged is below the lowest one held.
        let purged = self.index.lowest().unwrap_or(seqno) - 1;
        start
            .max(purged)
            .max(by_key)
            .max(self.last_pa_unsafe)
            .min(seqno - 1)
    }

    /// Whether the index holds the tables of a write set instead of its rows ([`LISTED_MAX`]).
    pub fn counts_by_tables(&self, ws: &Head) -> bool {
        ws.keys().len() > self.listed_max && !ws.flags().is_toi()
    }

    /// Each of them, with a key that stands for all rows there. As EXCLUSIVE it meets the SHARED
    /// prefix of any row.
    fn tables_of(&self, ws: &Head) -> Option<Vec<(KeyHash, KeyType)>> {
        if !self.counts_by_tables(ws) {
            return None;
        }
        let mut tables = Vec::new();
        let mut last = None;
        let _: ControlFlow<()> = ws.keys().expand(|Expanded { hash, table, key }| {
            if hash == table {
                tables.push((hash, key.key_type));
            } else if last.replace(table) != Some(table) {
                tables.push((table, KeyType::Exclusive));
            }
            ControlFlow::Continue(())
        });
        Some(tables)
    }

    fn install(&mut self, seqno: Seqno, ws: &Head) {
        let header = ws.header();
        let origin = origin_of(ws);
        match self.tables_of(ws) {
            Some(tables) => self.index.install(seqno, origin, tables.into_iter()),
            None => {
                let keys = self.scratch.iter().copied();
                self.index.install(seqno, origin, keys);
            }
        }
        if header.flags.pa_unsafe() {
            self.last_pa_unsafe = seqno;
        }
        // One huge transaction must not pin its memory for ever.
        self.scratch.clear();
        self.scratch.shrink_to(4096);
    }
}

fn origin_of(ws: &Head) -> Origin {
    let header = ws.header();
    Origin {
        source: header.source,
        trx_id: header.trx_id,
        conn_id: header.conn_id,
        toi: header.flags.contains(Flags::ISOLATION),
    }
}
