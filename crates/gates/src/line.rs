//! The events that wait, oldest first, the most of them elsewhere if there are too many.

use std::collections::VecDeque;
use std::fmt::Debug;

use crate::positions::Seqno;
use crate::queue::QueueItem;

/// Where events lie that are too many for memory: first in, first out. The queue's lock is not held while it
/// reads or writes: a disk that hangs must not stop who only asks how much waits.
pub trait Overflow<T>: Debug + Send {
    /// Whether `item` may lie there: it has a seqno of its own and is not exclusive, and
    /// what it gives back takes as many bytes of memory as the queue may know (none).
    fn takes(&self, item: &QueueItem<T>) -> bool;
    /// Takes the next one, of a higher seqno than all before; waits for nothing. True:
    /// [`Overflow::write`] is due.
    fn push(&mut self, item: QueueItem<T>) -> bool;
    /// Puts away what it has taken.
    fn write(&mut self);
    /// The oldest ones, `max` at most; none only if it has none.
    fn pop(&mut self, max: usize) -> Kept<T>;
    /// Drops all with a seqno up to this one; answers how many.
    fn drop_through(&mut self, seqno: Seqno) -> usize;
    /// An empty one of the same kind.
    fn fresh(&self) -> Box<dyn Overflow<T>>;
}

/// What [`Overflow::pop`] gives back.
#[derive(Debug)]
pub enum Kept<T> {
    /// Events, oldest first.
    Events(Vec<QueueItem<T>>),
    /// Nothing that lies there can be had any more: this stands for all of it.
    Lost(QueueItem<T>),
}

/// So many are fetched at a time.
const BLOCK: usize = 1024;
/// Room for so many stays, however few wait.
pub(crate) const ROOM_KEPT: usize = 4096;

#[derive(Debug)]
pub(crate) struct Line<T> {
    slots: VecDeque<Slot<T>>,
    /// Events in memory, and all.
    here: usize,
    len: usize,
    bytes: usize,
    exclusive: usize,
    /// With so many in memory the next one goes elsewhere.
    here_max: usize,
    overflow: Option<Box<dyn Overflow<T>>>,
    /// Somebody reads or writes the overflow, and has it meanwhile.
    lent: bool,
}

#[derive(Debug)]
enum Slot<T> {
    Here(QueueItem<T>),
    /// So many lie in the overflow.
    Away(usize),
}

/// What comes first.
pub(crate) enum Front {
    Nothing,
    /// One in memory, with this seqno.
    Here(Seqno),
    /// So many lie in the overflow: they are to be fetched first ([`Line::fetched`]).
    Away(usize),
}

impl<T> Line<T> {
    /// An empty one. Without an overflow all of it is in memory.
    pub(crate) fn new(here_max: usize, overflow: Option<Box<dyn Overflow<T>>>) -> Self {
        Line {
            slots: VecDeque::new(),
            here: 0,
            len: 0,
            bytes: 0,
            exclusive: 0,
            here_max,
            overflow,
            lent: false,
        }
    }

    /// An empty one of the same kind.
    pub(crate) fn fresh(&self) -> Self {
        let overflow = self.overflow.as_ref().map(|o| o.fresh());
        Line::new(self.here_max, overflow)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many lie in the overflow.
    pub(crate) fn away(&self) -> usize {
        self.len - self.here
    }

    /// Bytes held by what is in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether an exclusive one waits.
    pub(crate) fn has_exclusive(&self) -> bool {
        self.exclusive > 0
    }

    /// The overflow, for who reads or writes it without the queue's lock. Until it is back nothing
    /// is asked of the line that needs it ([`Line::is_lent`]).
    pub(crate) fn lend(&mut self) -> Option<Box<dyn Overflow<T>>> {
        let overflow = self.overflow.take();
        self.lent = overflow.is_some();
        overflow
    }

    /// The overflow is back.
    pub(crate) fn is_back(&mut self, overflow: Box<dyn Overflow<T>>) {
        self.overflow = Some(overflow);
        self.lent = false;
    }

    /// Whether somebody has the overflow.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent
    }

    /// Whether the next one goes to the overflow, if that takes it.
    pub(crate) fn is_full(&self) -> bool {
        self.here >= self.here_max
    }

    /// True: [`Overflow::write`] is due.
    pub(crate) fn push_back(&mut self, item: QueueItem<T>) -> bool {
        if self.is_full()
            && let Some(overflow) = self.overflow.as_mut().filter(|o| o.takes(&item))
        {
            let due = overflow.push(item);
            self.len += 1;
            match self.slots.back_mut() {
                Some(Slot::Away(n)) => *n += 1,
                _ => self.slots.push_back(Slot::Away(1)),
            }
            return due;
        }
        self.count(&item);
        self.slots.push_back(Slot::Here(item));
        false
    }

    pub(crate) fn push_front(&mut self, item: QueueItem<T>) {
        self.count(&item);
        self.slots.push_front(Slot::Here(item));
    }

    pub(crate) fn front(&self) -> Front {
        match self.slots.front() {
            None => Front::Nothing,
            Some(Slot::Here(item)) => Front::Here(item.seqno),
            Some(Slot::Away(n)) => Front::Away((*n).min(BLOCK)),
        }
    }

    /// The oldest one, if that is in memory.
    pub(crate) fn pop_here(&mut self) -> Option<QueueItem<T>> {
        let item = match self.slots.pop_front()? {
            Slot::Here(item) => item,
            away => {
                self.slots.push_front(away);
                return None;
            }
        };
        self.uncount(&item);
        self.give_back();
        Some(item)
    }

    /// The oldest one, wherever it lies.
    fn pop_front(&mut self) -> Option<QueueItem<T>> {
        while let Front::Away(n) = self.front() {
            let kept = self.overflow.as_mut().map(|o| o.pop(n));
            self.fetched(kept);
        }
        self.pop_here()
    }

    /// Drops the ordered ones in memory up to `seqno`; answers how many.
    pub(crate) fn drop_here(&mut self, seqno: Seqno) -> usize {
        let before = self.len;
        for slot in std::mem::take(&mut self.slots) {
            match slot {
                Slot::Here(item) if item.ordered && item.seqno <= seqno => self.uncount(&item),
                other => self.slots.push_back(other),
            }
        }
        self.give_back();
        before - self.len
    }

    /// The overflow has dropped its `gone` oldest ones.
    pub(crate) fn drop_away(&mut self, gone: usize) {
        let mut left = gone;
        self.slots.retain_mut(|slot| match slot {
            Slot::Here(_) => true,
            Slot::Away(n) => {
                let here = left.min(*n);
                left -= here;
                *n -= here;
                *n > 0
            }
        });
        self.len -= gone - left;
        self.give_back();
    }

    fn count(&mut self, item: &QueueItem<T>) {
        self.here += 1;
        self.len += 1;
        self.bytes += item.bytes;
        self.exclusive += usize::from(item.exclusive);
    }

    fn uncount(&mut self, item: &QueueItem<T>) {
        self.here -= 1;
        self.len -= 1;
        self.bytes -= item.bytes;
        self.exclusive -= usize::from(item.exclusive);
    }

    /// What [`Overflow::pop`] gave of those that lie away at the front.
    pub(crate) fn fetched(&mut self, kept: Option<Kept<T>>) {
        match kept {
            Some(Kept::Events(events)) if !events.is_empty() => {
                if let Some(Slot::Away(n)) = self.slots.pop_front()
                    && n > events.len()
                {
                    self.slots.push_front(Slot::Away(n - events.len()));
                }
                self.len -= events.len();
                for item in events.into_iter().rev() {
                    self.push_front(item);
                }
            }
            lost => {
                self.slots.retain(|slot| matches!(slot, Slot::Here(_)));
                self.len = self.here;
                if let Some(Kept::Lost(item)) = lost {
                    self.push_front(item);
                }
            }
        }
    }

    /// Gives memory back that a long line needed, of a copy or a pause.
    fn give_back(&mut self) {
        let (len, room) = (self.slots.len(), self.slots.capacity());
        if room > ROOM_KEPT && len < room / 8 {
            self.slots.shrink_to((2 * len).max(ROOM_KEPT));
        }
    }

    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        self.slots.capacity()
    }
}

/// All that waited, oldest first.
#[derive(Debug)]
pub struct Drained<T>(pub(crate) Line<T>);

impl<T> Iterator for Drained<T> {
    type Item = QueueItem<T>;

    fn next(&mut self) -> Option<QueueItem<T>> {
        self.0.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// In memory after all.
    #[derive(Debug, Default)]
    struct Elsewhere {
        items: VecDeque<(Seqno, u8)>,
        lost: bool,
    }

    fn item(seqno: Seqno, value: u8) -> QueueItem<u8> {
        QueueItem {
            seqno,
            ordered: value != 1,
            depends_on: 0,
            exclusive: value == 1,
            bytes: 10,
            value,
        }
    }

    impl Overflow<u8> for Elsewhere {
        fn takes(&self, item: &QueueItem<u8>) -> bool {
            item.value == 0
        }

        fn push(&mut self, item: QueueItem<u8>) -> bool {
            self.items.push_back((item.seqno, item.value));
            false
        }

        fn write(&mut self) {}

        fn pop(&mut self, max: usize) -> Kept<u8> {
            if self.lost {
                return Kept::Lost(item(0, 9));
            }
            let n = max.min(self.items.len());
            Kept::Events(
                self.items
                    .drain(..n)
                    .map(|(seqno, value)| QueueItem {
                        bytes: 0,
                        ..item(seqno, value)
                    })
                    .collect(),
            )
        }

        fn drop_through(&mut self, seqno: Seqno) -> usize {
            let before = self.items.len();
            self.items.retain(|(s, _)| *s > seqno);
            before - self.items.len()
        }

        fn fresh(&self) -> Box<dyn Overflow<u8>> {
            Box::<Elsewhere>::default()
        }
    }

    fn drop_through(line: &mut Line<u8>, seqno: Seqno) -> usize {
        let here = line.drop_here(seqno);
        let away = line.overflow.as_mut().map_or(0, |o| o.drop_through(seqno));
        line.drop_away(away);
        here + away
    }

    fn line(here_max: usize) -> Line<u8> {
        Line::new(here_max, Some(Box::<Elsewhere>::default()))
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// 0: may lie elsewhere; 1: exclusive, without a seqno of its own; 2: neither.
        Push(u8),
        PushFront,
        Pop(u8),
        DropThrough(u8),
        Drain,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => prop_oneof![6 => Just(0u8), 1 => Just(1), 1 => Just(2)].prop_map(Step::Push),
            1 => Just(Step::PushFront),
            5 => (1..6u8).prop_map(Step::Pop),
            1 => any::<u8>().prop_map(Step::DropThrough),
            1 => Just(Step::Drain),
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_line_wherever_they_lie(steps in prop::collection::vec(step(), 1..200), here in 0..8usize) {
            let mut line = line(here);
            let mut model: VecDeque<(Seqno, u8)> = VecDeque::new();
            let mut last = 0;
            for step in steps {
                match step {
                    Step::Push(value) => {
                        last += Seqno::from(value != 1);
                        line.push_back(item(last, value));
                        model.push_back((last, value));
                    }
                    Step::PushFront => {
                        line.push_front(item(last, 1));
                        model.push_front((last, 1));
                    }
                    Step::Pop(n) => for _ in 0..n {
                        if let Front::Here(seqno) = line.front() {
                            prop_assert_eq!(Some(seqno), model.front().map(|m| m.0));
                        }
                        let popped = line.pop_front().map(|i| (i.seqno, i.value));
                        prop_assert_eq!(popped, model.pop_front());
                    },
                    Step::DropThrough(back) => {
                        let seqno = last - Seqno::from(back % 16);
                        let before = model.len();
                        model.retain(|(s, value)| *value == 1 || *s > seqno);
                        prop_assert_eq!(drop_through(&mut line, seqno), before - model.len());
                    }
                    Step::Drain => {
                        let fresh = line.fresh();
                        let all: Vec<_> = Drained(std::mem::replace(&mut line, fresh)).map(|i| (i.seqno, i.value)).collect();
                        prop_assert_eq!(all, Vec::from(std::mem::take(&mut model)));
                    }
                }
                prop_assert_eq!(line.len(), model.len());
                prop_assert_eq!(line.has_exclusive(), model.iter().any(|m| m.1 == 1));
                // A block is fetched at a time, and these are few.
                let away: usize = line.slots.iter().map(|s| match s { Slot::Away(n) => *n, Slot::Here(_) => 0 }).sum();
                prop_assert_eq!(line.here + away, line.len());
                let bytes: usize = line.slots.iter().map(|s| match s { Slot::Here(i) => i.bytes, Slot::Away(_) => 0 }).sum();
                prop_assert_eq!(line.bytes(), bytes);
            }
        }
    }

    #[test]
    fn few_are_in_memory_however_many_wait() {
        let mut line = line(100);
        for seqno in 1..=50_000 {
            line.push_back(item(seqno, 0));
        }
        assert_eq!(
            (line.len(), line.here, line.slots.len()),
            (50_000, 100, 101)
        );
        for seqno in 1..=50_000 {
            assert_eq!(line.pop_front().map(|i| i.seqno), Some(seqno));
            assert!(line.here <= BLOCK);
        }
        assert_eq!((line.len(), line.bytes()), (0, 0));
    }

    #[test]
    fn what_is_lost_elsewhere_is_told_of_once_in_its_place() {
        let overflow = Elsewhere {
            lost: true,
            ..Elsewhere::default()
        };
        let mut line = Line::new(1, Some(Box::new(overflow)));
        for (seqno, value) in [(1, 2), (2, 0), (3, 0), (3, 1), (4, 0)] {
            line.push_back(item(seqno, value));
        }
        let all: Vec<_> = std::iter::from_fn(|| line.pop_front().map(|i| i.value)).collect();
        assert_eq!(all, [2, 9, 1]);
        assert_eq!(line.len(), 0);
    }
}
