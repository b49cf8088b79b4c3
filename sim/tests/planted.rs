//! Each oracle is shown to fire: for every planted fault, some seed among a
//! few breaks exactly the promise that the fault is meant to break.

use std::time::Duration;

use dromon_sim::{Config, Directed, Oracle, Plant, run};

/// Runs `plant` under `seed`, which shows `oracle` fire. A change of the engine
/// or of the faults makes other runs of all seeds: then the next ones may show
/// it, `more` of them at most.
fn fires(plant: Plant, oracle: Oracle, seed: u64, more: u64, seconds: u64) {
    fires_in(plant, oracle, seed, more, seconds, false);
}

/// The same with large transactions in every run.
fn fires_large(plant: Plant, oracle: Oracle, seed: u64, more: u64, seconds: u64) {
    fires_in(plant, oracle, seed, more, seconds, true);
}

fn fires_in(plant: Plant, oracle: Oracle, seed: u64, more: u64, seconds: u64, large: bool) {
    let how = if large { "--large " } else { "" };
    let config = |seed| {
        let drawn = Config::drawn(seed);
        Config {
            faults_for: Duration::from_secs(seconds),
            large: large || drawn.large,
            ..drawn
        }
    };
    first_fired(plant, oracle, seed, more, how, config);
}

/// Runs `plant` with a plan that is made for it, and `seconds` behind that, which shows `oracle` fire in `seed` or
/// in one of the `more` behind it; without the plant the same seed breaks nothing.
fn fires_by(plan: Directed, plant: Plant, oracle: Oracle, seed: u64, more: u64, seconds: u64) {
    let config = |seed| Config {
        faults_for: Duration::from_secs(seconds),
        ..Config::directed(seed, plan)
    };
    let how = format!("--plan {plan} ");
    let seed = first_fired(plant, oracle, seed, more, &how, config);
    let sound = run(config(seed)).violation.map(|v| v.to_string());
    assert_eq!(sound, None, "{plan}, seed {seed}, with nothing planted");
}

/// The first seed from `seed` on, of `more` behind it at most, in which `plant` makes `oracle` fire. `how`: of the command.
fn first_fired(
    plant: Plant,
    oracle: Oracle,
    seed: u64,
    more: u64,
    how: &str,
    config: impl Fn(u64) -> Config,
) -> u64 {
    let mut others = Vec::new();
    for seed in seed..=seed + more {
        let config = Config {
            plant: Some(plant),
            ..config(seed)
        };
        let seconds = config.faults_for.as_secs();
        match run(config).violation {
            Some(v) if v.oracle == oracle => {
                println!(
                    "dromon-sim --start {seed} --seeds 1 {how}--seconds {seconds} --plant {plant}: {v}"
                );
                return seed;
            }
            Some(v) => others.push(v.to_string()),
            None => {}
        }
    }
    panic!(
        "{plant} does not make the oracle of {oracle} fire in seed {seed} and the {more} behind \
         it; others: {others:?}"
    );
}

#[test]
fn acknowledging_before_the_order_loses_what_was_acknowledged() {
    fires(Plant::AckAtPropose, Oracle::Acknowledged, 1, 3, 10);
}

#[test]
fn calling_entries_durable_too_early_is_seen() {
    fires(Plant::EarlyDurable, Oracle::Durable, 1, 2, 5);
}

#[test]
fn a_failed_sync_taken_for_success_is_seen() {
    fires(Plant::DeafToDisk, Oracle::Durable, 1, 10, 20);
}

#[test]
fn delivering_copies_puts_a_transaction_at_two_places() {
    fires(Plant::DedupeOff, Oracle::ExactlyOnce, 1, 5, 20);
}

#[test]
fn certifying_differently_on_one_node_gives_other_verdicts() {
    fires(Plant::SkipKeyType, Oracle::SameOrder, 1, 5, 10);
}

#[test]
fn a_seqno_left_out_is_a_gap() {
    fires(Plant::SkipSeqno, Oracle::Dense, 1, 3, 20);
}

#[test]
fn reads_answered_from_what_a_node_knows_are_stale() {
    fires(Plant::LocalRead, Oracle::ReadIndex, 1, 3, 20);
}

#[test]
fn a_deposed_leader_that_answers_reads_is_caught() {
    fires(Plant::LeaderRead, Oracle::ReadIndex, 2, 19, 30);
}

#[test]
fn an_altered_state_digest_is_seen() {
    fires(Plant::AlteredDigest, Oracle::StateDigest, 1, 3, 10);
}

#[test]
fn cutting_the_index_at_local_points_is_seen() {
    fires(Plant::LocalCut, Oracle::SameOrder, 1, 9, 20);
    fires(Plant::LocalCut, Oracle::StateDigest, 13, 30, 20);
}

#[test]
fn stamping_write_sets_too_late_loses_updates() {
    fires(Plant::LateStamp, Oracle::LostUpdate, 1, 3, 10);
}

#[test]
fn a_write_set_not_applied_is_seen_in_the_database() {
    fires(Plant::SkipApply, Oracle::Contents, 1, 3, 20);
}

#[test]
fn erasing_logs_on_the_word_of_a_leader_ends_the_cluster() {
    fires(Plant::EraseFirst, Oracle::Liveness, 139, 70, 30);
}

#[test]
fn joining_by_the_log_with_the_data_of_another_history_is_seen() {
    fires(Plant::JoinUnchecked, Oracle::Contents, 55, 30, 30);
}

#[test]
fn joining_by_the_log_with_the_data_of_a_copy_that_ran_by_itself_is_seen() {
    fires(Plant::ChainUnchecked, Oracle::Contents, 2, 30, 30);
}

#[test]
fn a_node_that_never_gets_in_is_not_waited_for_for_ever() {
    fires(Plant::NeverJoined, Oracle::Liveness, 1, 1, 5);
}

#[test]
fn a_node_that_serves_nobody_is_seen_though_the_others_do() {
    fires(Plant::RefusesWrites, Oracle::Liveness, 1, 3, 5);
    fires(Plant::ReadsUnanswered, Oracle::Liveness, 1, 3, 5);
}

#[test]
fn waiting_for_all_members_after_an_outage_is_standing_still() {
    fires(Plant::WaitForAll, Oracle::Standstill, 7, 20, 30);
}

/// No seed shows it since a heartbeat's answer is waited for longer.
#[test]
fn a_log_without_a_vote_that_waits_for_the_leader_that_waits_for_it_is_standing_still() {
    fires_by(
        Directed::VoteUnheardLong,
        Plant::LearnerWaits,
        Oracle::Standstill,
        0,
        10,
        25,
    );
}

/// It was a standstill in seed 575, before a leader that hears nobody kept silent.
#[test]
fn cutting_the_log_behind_a_voter_that_is_only_half_removed_is_standing_still() {
    fires(Plant::CutBehind, Oracle::Liveness, 277, 0, 30);
}

/// No seed shows it since lost answers begin a session of appends anew at once.
#[test]
fn erasing_a_log_that_is_just_being_given_a_vote_is_seen() {
    for plan in [Directed::VoteUnheardShort, Directed::VoteUnheardLong] {
        fires_by(plan, Plant::LearnerErases, Oracle::Liveness, 0, 10, 0);
    }
}

#[test]
fn letting_those_left_behind_follow_by_the_log_mixes_incarnations() {
    fires(Plant::ForkUnchecked, Oracle::Contents, 15, 20, 30);
}

#[test]
fn keeping_data_that_a_copy_is_to_replace_mixes_incarnations() {
    // Until the copy begins, though the log that told of it is gone.
    fires(Plant::CopyLate, Oracle::Contents, 199, 60, 30);
}

#[test]
fn chunks_that_a_database_has_not_and_nobody_remembers_are_lost() {
    fires(Plant::LackingForgotten, Oracle::Contents, 14, 20, 20);
}

#[test]
fn chunks_that_do_not_survive_a_crash_are_lost() {
    fires(Plant::ChunksLost, Oracle::Contents, 6, 20, 20);
}

#[test]
fn chunks_that_stay_behind_are_seen() {
    fires(Plant::RollbackIgnored, Oracle::NothingOpen, 6, 20, 20);
}

#[test]
fn touching_what_is_open_is_seen() {
    fires(Plant::LocksDropped, Oracle::LostUpdate, 6, 20, 20);
}

#[test]
fn a_copy_without_chunks_is_seen() {
    fires(Plant::LackingDonates, Oracle::Contents, 145, 60, 30);
    // Their end was delivered before they were thrown away.
    fires_large(Plant::EndMissed, Oracle::Contents, 99, 0, 30);
}

#[test]
fn chunks_that_nobody_asks_for_are_seen() {
    fires(Plant::AskerSilent, Oracle::Liveness, 20, 40, 10);
}

#[test]
fn chunks_that_come_back_after_a_crash_are_seen() {
    fires_large(Plant::RowsComeBack, Oracle::NothingOpen, 13, 60, 30);
}

/// No seed shows it since a heartbeat's answer is waited for longer. The witness's log must be cut behind the
/// eviction, as in one seed of ten.
#[test]
fn evicting_the_last_member_with_data_is_the_end() {
    fires_by(
        Directed::LastDataStandsStill,
        Plant::EvictLastData,
        Oracle::Liveness,
        10,
        30,
        0,
    );
}
