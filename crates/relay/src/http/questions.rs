//! Questions to replicas: of each one is under way at a time, and who asks meanwhile gets its answer. So one
//! that does not answer keeps few waiting, however many ask.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dromon_binlog::Position;

/// A position is good for so long: by then it says less than is true, and never more.
const GOOD: Duration = Duration::from_millis(200);
/// One that could not be asked is not asked again for so long.
const REST: Duration = Duration::from_secs(1);

/// The replica's server id, and its connection here.
pub type Who = (u32, u32);
/// What a replica has applied, or why it cannot be asked.
pub type Told = Result<Position, String>;

/// What somebody who asks is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Turn {
    /// Ask, and tell the others.
    Ask,
    /// Wait for who asks.
    Wait,
    /// Take this.
    Take(Told),
}

#[derive(Debug)]
enum State {
    /// Under way.
    Asked,
    /// Since then.
    Told(Duration, Told),
}

/// What was asked lately. Without a clock: times are those since some beginning.
#[derive(Debug, Default)]
struct Book {
    all: BTreeMap<Who, State>,
}

impl Book {
    fn turn(&mut self, who: Who, now: Duration) -> Turn {
        self.all.retain(|_, state| match state {
            State::Asked => true,
            State::Told(at, told) => {
                let good = if told.is_ok() { GOOD } else { REST };
                now.saturating_sub(*at) < good
            }
        });
        match self.all.get(&who) {
            None => {
                self.all.insert(who, State::Asked);
                Turn::Ask
            }
            Some(State::Asked) => Turn::Wait,
            Some(State::Told(_, told)) => Turn::Take(told.clone()),
        }
    }

    fn told(&mut self, who: Who, told: Told, now: Duration) {
        self.all.insert(who, State::Told(now, told));
    }
}

/// For all who ask at once.
#[derive(Debug)]
pub struct Questions {
    began: Instant,
    book: Mutex<Book>,
    told: Condvar,
}

impl Default for Questions {
    fn default() -> Questions {
        Questions {
            began: Instant::now(),
            book: Mutex::default(),
            told: Condvar::new(),
        }
    }
}

/// The question under way. If it ends without an answer, that is told, too: nobody waits for ever.
struct Asks<'a> {
    of: &'a Questions,
    who: Who,
    told: Told,
}

impl Drop for Asks<'_> {
    fn drop(&mut self) {
        let told = std::mem::replace(&mut self.told, Err(String::new()));
        let now = self.of.began.elapsed();
        self.of.book().told(self.who, told, now);
        self.of.told.notify_all();
    }
}

impl Questions {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `ask` gives, now or a moment ago, here or for somebody else. It must end after a while.
    pub fn ask(&self, who: Who, ask: impl FnOnce() -> Told) -> Told {
        let mut book = self.book();
        loop {
            match book.turn(who, self.began.elapsed()) {
                Turn::Take(told) => return told,
                Turn::Wait => {
                    book = self.told.wait(book).unwrap_or_else(PoisonError::into_inner);
                }
                Turn::Ask => break,
            }
        }
        drop(book);
        let mut asks = Asks {
            of: self,
            who,
            told: Err("the question was given up".into()),
        };
        let told = ask();
        asks.told = told.clone();
        told
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn one_at_a_time() {
        let ms = Duration::from_millis;
        let (one, two) = ((1, 7), (2, 8));
        let has: Told = Ok("0-1-7".parse().expect("a position"));
        let silent: Told = Err("it does not answer".into());
        let mut book = Book::default();
        assert_eq!(book.turn(one, ms(0)), Turn::Ask);
        assert_eq!(book.turn(one, ms(900)), Turn::Wait);
        assert_eq!(book.turn(two, ms(900)), Turn::Ask);
        book.told(one, silent.clone(), ms(1000));
        book.told(two, has.clone(), ms(1000));
        assert_eq!(book.turn(one, ms(1199)), Turn::Take(silent.clone()));
        assert_eq!(book.turn(two, ms(1199)), Turn::Take(has));
        assert_eq!(book.turn(two, ms(1200)), Turn::Ask);
        assert_eq!(book.turn(one, ms(1999)), Turn::Take(silent));
        // Of a replica that has come anew nothing is known.
        assert_eq!(book.turn((1, 9), ms(1999)), Turn::Ask);
        assert_eq!(book.turn(one, ms(2000)), Turn::Ask);
        // What is not asked for any more is forgotten.
        book.told(two, Err("gone".into()), ms(2000));
        book.turn(one, ms(3000));
        assert!(!book.all.contains_key(&two));
    }

    #[test]
    fn who_asks_meanwhile_gets_the_answer() {
        let questions = Questions::default();
        let asked = AtomicUsize::new(0);
        let ask = || {
            asked.fetch_add(1, Ordering::Relaxed);
            Err("it does not answer".to_owned())
        };
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| assert!(questions.ask((1, 1), ask).is_err()));
            }
        });
        // The first ones may be long done when the last one asks.
        assert!((1..20).contains(&asked.load(Ordering::Relaxed)));
        // A defect in one keeps nobody waiting.
        let given_up = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            questions.ask((2, 1), || panic!("a defect"))
        }));
        assert!(given_up.is_err());
        assert!(questions.ask((2, 1), ask).is_err());
    }
}
