//! Checks every model in every order of events, and that each planted fault is found.
//!
//! `docs/models.md` says what each model stands for. Exit code 1: a rule is broken, a
//! planted fault was not found, or something that should be reachable is not.

#![forbid(unsafe_code)]

mod bootstrap;
mod eviction;
mod lease;
mod read_index;
mod resend;
mod witness;

use std::fmt::Debug;
use std::hash::Hash;
use std::process::ExitCode;
use std::time::Instant;

use stateright::{Checker, Expectation, Model};

/// What a check came to.
struct Outcome {
    states: usize,
    /// Rules that were broken, with the shortest way there.
    broken: Vec<(&'static str, Vec<String>)>,
    /// What should happen in some run and happens in none.
    missing: Vec<&'static str>,
}

fn explore<M>(model: M) -> Outcome
where
    M: Model + Send + Sync + 'static,
    M::State: Debug + Hash + Send + Sync + Clone + PartialEq,
    M::Action: Debug + Send + Sync + Clone + PartialEq,
{
    let properties = model.properties();
    let checker = model.checker().spawn_bfs().join();
    let mut broken = Vec::new();
    let mut missing = Vec::new();
    for p in &properties {
        let found = checker.discovery(p.name);
        match (&p.expectation, found) {
            (Expectation::Sometimes, None) => missing.push(p.name),
            (Expectation::Always, Some(path)) => {
                let steps = path.into_actions();
                broken.push((p.name, steps.iter().map(|a| format!("{a:?}")).collect()));
            }
            _ => {}
        }
    }
    Outcome {
        states: checker.unique_state_count(),
        broken,
        missing,
    }
}

/// One model as it is, or with a fault.
struct Run {
    model: &'static str,
    /// The planted fault; `None`: the model is as the code is.
    plant: Option<&'static str>,
    explore: fn() -> Outcome,
}

macro_rules! runs {
    ($($model:literal, $module:ident: $($plant:ident $words:literal),+;)+) => {
        &[$(
            Run {
                model: $model,
                plant: None,
                explore: || explore($module::TheModel { plant: None }),
            },
            $(Run {
                model: $model,
                plant: Some($words),
                explore: || explore($module::TheModel { plant: Some($module::Plant::$plant) }),
            },)+
        )+]
    };
}

const RUNS: &[Run] = runs! {
    "resend", resend:
        CountsCopies "a copy counts again",
        ForgetsEarly "the origin forgets what a leader took";
    "read index", read_index:
        CountsLateAnswers "an answer counts by when it comes";
    "lease", lease:
        FromTheAnswer "the lease runs from the answer, not from the question",
        VotesAtOnce "voters do not keep faith in a leader they hear";
    "eviction", eviction:
        InAnyTerm "an eviction counts in whatever term it is ordered";
    "forced recovery", bootstrap:
        SameIncarnation "all who go alone count up by one",
        StepById "they count up by a number that depends on the id alone",
        JoinsByLength "a joiner is taken by its position alone";
    "witness", witness:
        VotesWithoutStoring "the witness votes and stores nothing",
        HandsOverEarly "the witness hands over before the data node has all";
};

fn main() -> ExitCode {
    let mut bad = 0;
    for run in RUNS {
        let begin = Instant::now();
        let outcome = (run.explore)();
        let took = begin.elapsed().as_millis();
        let states = outcome.states;
        let (fine, words) = judge(run, &outcome);
        bad += usize::from(!fine);
        let plant = run
            .plant
            .map_or(String::new(), |p| format!(", planted: {p}"));
        println!(
            "{}{plant}: {states} states in {took} ms: {words}",
            run.model
        );
    }
    let plants = RUNS.iter().filter(|r| r.plant.is_some()).count();
    println!(
        "{} models, {plants} planted faults, {bad} not as they should be",
        RUNS.len() - plants
    );
    ExitCode::from(u8::from(bad > 0))
}

/// Whether this is as it should be, and what to say.
fn judge(run: &Run, outcome: &Outcome) -> (bool, String) {
    match (&outcome.broken[..], run.plant) {
        ([], None) if outcome.missing.is_empty() => (true, "holds".into()),
        ([], None) => (
            false,
            format!("NEVER HAPPENS: {}", outcome.missing.join("; ")),
        ),
        ([], Some(_)) => (false, "NOT FOUND".into()),
        ([(rule, steps), ..], Some(_)) => (
            true,
            format!("found: not \"{rule}\" after {} steps", steps.len()),
        ),
        ([(rule, steps), ..], None) => (
            false,
            format!("BROKEN: \"{rule}\" after {}", steps.join(", ")),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_holds_and_every_planted_fault_is_found() {
        for run in RUNS {
            let outcome = (run.explore)();
            let (fine, words) = judge(run, &outcome);
            assert!(fine, "{} {:?}: {words}", run.model, run.plant);
            assert!(
                outcome.states > 20,
                "{}: {} states",
                run.model,
                outcome.states
            );
        }
    }
}
