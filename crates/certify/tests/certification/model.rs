//! The naive model: the whole history, every pair of keys, no map, no purge.

use dromon_certify::{MAX_LENGTH, PA_RANGE_MAX, Rule, Verdict, rule};
use dromon_writeset::{KeyType, Seqno};

use crate::traffic::{NaiveKey, Spec};

/// Which earlier references a key is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Contract D.3: of REFERENCE and UPDATE only the last one of each key, as
    /// row locks have ordered a source's own after the others'. Of SHARED and
    /// EXCLUSIVE all.
    Contract,
    /// Of all types all of them.
    EveryPair,
}

/// A mistake planted in the model, to show that the comparison finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// One cell of the matrix is another.
    Cell(KeyType, KeyType, Rule),
    /// A failed write set leaves its keys behind.
    FailedIsInstalled,
    /// A reference at exactly `last_seen` counts as unseen.
    LastSeenIsUnseen,
    /// TOI of the own source never conflicts.
    OwnToiIsForgiven,
    /// Transactions of one source conflict like any others.
    OwnSourceConflicts,
    /// Prefixes are left out.
    NoPrefixes,
    /// A key for a whole table is taken for an ordinary EXCLUSIVE one.
    WholeTableIsOrdinary,
    /// Views do not hold anything back.
    ViewsAreOvertaken,
    /// A failed PA_UNSAFE write set is remembered too.
    FailedPaUnsafeCounts,
    /// A fragment does not wait for the one before it.
    FragmentsAreFree,
    /// Rollback fragments wait for nothing.
    RollbackIsFree,
    /// A write set with `last_seen` below the cut is let in.
    CutIsIgnored,
    /// The end of a streaming transaction passes statements it has not seen.
    EndsPassDdl,
    /// Rows are kept, however many they are.
    AllRowsAreKept,
    /// Of very many rows nothing is kept but that their tables were looked at.
    ManyRowsAreLost,
    /// Those of statements count, too, as very many.
    ToiRowsAreTables,
}

/// A write set that passed.
struct Passed {
    seqno: Seqno,
    source: u8,
    toi: bool,
    keys: Vec<NaiveKey>,
}

/// What the model says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NaiveVerdict {
    Passed {
        depends_on: Seqno,
        /// By keys alone.
        by_key: Seqno,
    },
    /// Seqnos of all write sets it conflicts with.
    Conflict(Vec<Seqno>),
    TooOld,
    TooLong,
    /// The end of a streaming transaction, and the last statement in isolation that
    /// it has not seen.
    BesideDdl(Seqno),
    FromFuture,
}

pub struct Model {
    reading: Reading,
    fault: Fault,
    history: Vec<Passed>,
    floor: Seqno,
    position: Seqno,
    last_pa_unsafe: Seqno,
    listed_max: usize,
}

impl Model {
    pub fn new(start: Seqno, reading: Reading, fault: Fault) -> Self {
        Model {
            listed_max: usize::MAX,
            reading,
            fault,
            history: Vec::new(),
            floor: start,
            position: start,
            last_pa_unsafe: start,
        }
    }

    /// Of write sets with more keys than this the tables are kept.
    pub fn listing(mut self, keys: usize) -> Self {
        self.listed_max = keys;
        self
    }

    pub fn view(&mut self, seqno: Seqno) {
        self.position = seqno;
        if self.fault != Fault::ViewsAreOvertaken {
            self.last_pa_unsafe = seqno;
        }
    }

    pub fn skip(&mut self, seqno: Seqno) {
        self.position = seqno;
    }

    pub fn cut(&mut self, cut: Seqno) {
        self.floor = self.floor.max(cut.min(self.position));
    }

    pub fn certify(&mut self, seqno: Seqno, spec: &Spec) -> NaiveVerdict {
        let mut keys = spec.expanded();
        if self.fault == Fault::NoPrefixes {
            // Whatever another key has below it is a prefix.
            let all = keys.clone();
            keys.retain(|k| {
                k.key_type != KeyType::Shared
                    || !all
                        .iter()
                        .any(|o| o.path.len() > k.path.len() && o.path.starts_with(&k.path))
            });
        }
        let verdict = self.verdict(seqno, spec, &keys);
        let passed = matches!(verdict, NaiveVerdict::Passed { .. });
        if passed || self.fault == Fault::FailedIsInstalled {
            let keys = if spec.flags.is_rollback() {
                Vec::new()
            } else {
                keys
            };
            let toi = spec.flags.is_toi();
            let keys = match spec.key_count() > self.listed_max {
                true => self.tables_of(keys, toi),
                false => keys,
            };
            self.history.push(Passed {
                seqno,
                source: spec.source,
                toi,
                keys,
            });
        }
        let remembered = passed || self.fault == Fault::FailedPaUnsafeCounts;
        if remembered && spec.flags.pa_unsafe() {
            self.last_pa_unsafe = seqno;
        }
        self.position = seqno;
        verdict
    }

    /// Each row becomes the whole table to all who come later.
    fn tables_of(&self, mut keys: Vec<NaiveKey>, toi: bool) -> Vec<NaiveKey> {
        let stays = match self.fault {
            Fault::AllRowsAreKept => true,
            Fault::ToiRowsAreTables => false,
            _ => toi,
        };
        if stays {
            return keys;
        }
        for key in keys.iter_mut().filter(|k| k.path.len() > 2) {
            key.path.truncate(2);
            key.key_type = match self.fault {
                Fault::ManyRowsAreLost => KeyType::Shared,
                _ => KeyType::Exclusive,
            };
        }
        keys
    }

    fn rule(&self, held: KeyType, new: &NaiveKey) -> Rule {
        if new.whole_table && self.fault != Fault::WholeTableIsOrdinary {
            return Rule::Conflict;
        }
        match self.fault {
            Fault::Cell(h, n, other) if (h, n) == (held, new.key_type) => other,
            _ => rule(held, new.key_type),
        }
    }

    fn verdict(&self, seqno: Seqno, spec: &Spec, keys: &[NaiveKey]) -> NaiveVerdict {
        let all = |depends_on| NaiveVerdict::Passed {
            depends_on,
            by_key: 0,
        };
        if spec.flags.is_toi() {
            return all(seqno - 1);
        }
        if spec.flags.is_rollback() && self.fault != Fault::RollbackIsFree {
            return all(seqno - 1);
        }
        if !spec.flags.is_rollback() {
            if spec.last_seen >= seqno {
                return NaiveVerdict::FromFuture;
            }
            if spec.last_seen < self.floor && self.fault != Fault::CutIsIgnored {
                return NaiveVerdict::TooOld;
            }
            if seqno - spec.last_seen > MAX_LENGTH {
                return NaiveVerdict::TooLong;
            }
            let unseen = |p: &&Passed| p.toi && p.seqno > spec.last_seen;
            let ends = spec.flags.ends() && !spec.flags.starts();
            let ddl = self.history.iter().rev().find(unseen);
            if ends
                && self.fault != Fault::EndsPassDdl
                && let Some(ddl) = ddl
            {
                return NaiveVerdict::BesideDdl(ddl.seqno);
            }
        }
        let mut by_key = 0;
        let mut conflicts = Vec::new();
        for new in keys {
            for held in KeyType::ALL {
                let mut references: Vec<&Passed> = self
                    .history
                    .iter()
                    .filter(|p| {
                        p.keys
                            .iter()
                            .any(|k| k.path == new.path && k.key_type == held)
                    })
                    .collect();
                let lock_ordered = matches!(held, KeyType::Reference | KeyType::Update);
                if self.reading == Reading::Contract && lock_ordered {
                    references.drain(..references.len().saturating_sub(1));
                }
                for reference in references {
                    let rule = self.rule(held, new);
                    if rule == Rule::Conflict && self.unseen(reference, spec) {
                        conflicts.push(reference.seqno);
                    }
                    if rule != Rule::Free {
                        by_key = by_key.max(reference.seqno);
                    }
                }
            }
        }
        if !conflicts.is_empty() {
            return NaiveVerdict::Conflict(conflicts);
        }
        NaiveVerdict::Passed {
            depends_on: self.depends_on(seqno, spec, by_key),
            by_key,
        }
    }

    fn unseen(&self, reference: &Passed, spec: &Spec) -> bool {
        let first_unseen = match self.fault {
            Fault::LastSeenIsUnseen => spec.last_seen,
            _ => spec.last_seen + 1,
        };
        let own = reference.source == spec.source && self.fault != Fault::OwnSourceConflicts;
        let toi = reference.toi && self.fault != Fault::OwnToiIsForgiven;
        // What was purged cannot be looked at, even if the cut is ignored.
        let there = reference.seqno > self.floor;
        there && reference.seqno >= first_unseen && (toi || !own)
    }

    /// Contract D.4, rule by rule.
    fn depends_on(&self, seqno: Seqno, spec: &Spec, by_key: Seqno) -> Seqno {
        let mut at_least = vec![by_key, self.last_pa_unsafe];
        if spec.flags.pa_unsafe() && !spec.flags.is_rollback() {
            at_least.push(seqno - 1);
        } else if spec.flags.implicit_deps() {
            at_least.push(spec.last_seen);
        } else {
            at_least.push(spec.last_seen - PA_RANGE_MAX);
        }
        if self.fault != Fault::FragmentsAreFree {
            at_least.push(spec.prev_fragment);
        }
        let lowest = self
            .history
            .iter()
            .map(|p| p.seqno)
            .find(|s| *s > self.floor);
        at_least.push(lowest.unwrap_or(seqno) - 1);
        at_least.into_iter().max().unwrap_or(0).min(seqno - 1)
    }
}

/// Whether the certifier said the same; if not, how they differ.
pub fn agree(real: &Verdict, naive: &NaiveVerdict) -> Result<(), String> {
    use dromon_certify::FailReason as R;
    let same = match (real, naive) {
        (
            Verdict::Passed { depends_on: a },
            NaiveVerdict::Passed {
                depends_on: b,
                by_key,
            },
        ) => a == b && a >= by_key,
        (Verdict::Failed { reason }, naive) => match (reason, naive) {
            (R::Conflict(c), NaiveVerdict::Conflict(seqnos)) => seqnos.contains(&c.seqno),
            (R::TooOld { .. }, NaiveVerdict::TooOld) => true,
            (R::TooLong { .. }, NaiveVerdict::TooLong) => true,
            (R::BesideDdl { ddl, .. }, NaiveVerdict::BesideDdl(at)) => ddl == at,
            (R::FromFuture { .. }, NaiveVerdict::FromFuture) => true,
            _ => false,
        },
        (Verdict::Passed { .. }, _) => false,
    };
    if same {
        Ok(())
    } else {
        Err(format!("the certifier says {real:?}, the model {naive:?}"))
    }
}
