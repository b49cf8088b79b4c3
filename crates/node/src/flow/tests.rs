use super::*;

fn progress(n: u8, number: u64, stop: bool, safe: Seqno) -> Progress {
    Progress {
        uuid: Uuid([n; 16]),
        ordered: 0,
        released: 0,
        safe,
        needs_log: 0,
        ready: 0,
        queue: 0,
        stop,
        number,
        digest: (0, 0),
        durable: true,
    }
}

fn counted(ns: &[u8]) -> BTreeMap<Uuid, String> {
    ns.iter()
        .map(|&n| (Uuid([n; 16]), format!("n{n}")))
        .collect()
}

#[test]
fn who_lacks_much_of_the_log_is_waited_for_while_it_moves() {
    let flow = Flow::default();
    let [a, b] = [1, 2].map(|n| Uuid([n; 16]));
    flow.set_counted(counted(&[1, 2]), BTreeMap::new(), &[a, b]);
    let limits = FlowLimits::new(16, 0.5, true, 2);
    let lacks = |ordered, bytes| {
        let b = Lacks {
            uuid: b,
            ordered,
            bytes,
        };
        flow.report(progress(2, ordered as u64, false, 0));
        flow.set_lacks(&[b], 100);
        let seen = flow.look(limits).remove(0);
        (
            flow.stats().active,
            flow.holds_payloads(),
            seen.holds,
            seen.caught_up,
        )
    };
    assert_eq!(lacks(1, 25), (false, false, false, true));
    assert_eq!(lacks(2, 26), (false, false, false, false));
    assert_eq!(lacks(3, 51), (false, true, false, false));
    assert_eq!(lacks(4, 101), (true, true, true, false));
    assert_eq!(flow.stats().waiting_for, ["n2"]);
    assert!(flow.lacks_log(&b) && !flow.lacks_log(&a));
    assert_eq!(lacks(5, 100), (false, true, false, false));
    // Small ones that are let go each time may keep it there for ever.
    flow.lock().lags.payloads_waited(&b);
    assert!(!flow.holds_payloads());
    assert_eq!(lacks(5, 101), (true, true, true, false));
    assert_eq!(lacks(5, 100), (false, false, false, false));
    assert_eq!(lacks(5, 50), (false, false, false, false));
    assert_eq!(lacks(5, 100), (false, true, false, false));
    // For a moment more it may have been away.
    assert_eq!(lacks(6, 101), (true, true, true, false));
    flow.lock().lags.stands(&b);
    assert_eq!(lacks(6, 101), (false, false, false, false));
    assert_eq!(lacks(7, 101), (true, true, true, false));
    // Whoever is not waited for, or does not count.
    flow.set_quarantined([b].into());
    assert_eq!((flow.stats().active, flow.holds_payloads()), (false, false));
    flow.set_quarantined(BTreeSet::new());
    assert!(flow.stats().active);
    flow.set_counted(counted(&[1]), counted(&[2]), &[a, b]);
    assert_eq!((flow.stats().active, flow.holds_payloads()), (false, false));
}

#[test]
fn what_all_others_have_finished() {
    let flow = Flow::default();
    let all = [1, 2, 3].map(|n| Uuid([n; 16]));
    flow.set_counted(counted(&[1, 2, 3]), BTreeMap::new(), &all);
    let lowest = || flow.lowest_released_but(&all[0]);
    assert_eq!(lowest(), Some(Seqno::MIN), "nobody is heard");
    for (n, released) in [(1, 3), (2, 7), (3, 5)] {
        flow.report(Progress {
            released,
            ..progress(n, 1, false, 0)
        });
    }
    assert_eq!(lowest(), Some(5));
    assert_eq!(flow.lowest_released(), Some(3));
    flow.set_quarantined(BTreeSet::from([all[2]]));
    assert_eq!(lowest(), Some(7));
    flow.set_counted(counted(&[1, 3]), BTreeMap::new(), &all);
    assert_eq!(lowest(), None, "nobody else counts");
}

/// Else the time until the next report would be spent as well.
#[test]
fn who_is_below_the_limit_again_is_looked_at_once() {
    let flow = Flow::default();
    let limits = FlowLimits::new(4, 1.0, true, 3);
    let most = Duration::from_millis(200);
    for _ in 0..4 {
        assert!(!flow.own(5, limits, false, most) && flow.counts_above());
        assert!(!flow.own(4, limits, false, most) && !flow.counts_above());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(!flow.own_stop());
}

#[test]
fn only_counted_members_hold_the_others() {
    let flow = Flow::default();
    flow.set_counted(
        counted(&[1]),
        BTreeMap::new(),
        &[Uuid([1; 16]), Uuid([2; 16])],
    );
    flow.report(progress(2, 1, true, 0));
    assert!(!flow.stats().active);
    flow.set_counted(
        counted(&[1, 2]),
        BTreeMap::new(),
        &[Uuid([1; 16]), Uuid([2; 16])],
    );
    assert_eq!(flow.stats().waiting_for, ["n2"]);
    assert!(
        !flow.report(progress(2, 1, false, 0)),
        "a late copy changes nothing"
    );
    assert!(flow.stats().active);
    flow.set_counted(counted(&[1]), BTreeMap::new(), &[Uuid([1; 16])]);
    assert!(!flow.stats().active, "a departed member holds nobody");
}

#[test]
fn who_looks_late_sees_how_much_of_all_the_time_was_a_pause() {
    let flow = Flow::default();
    flow.set_counted(counted(&[1]), BTreeMap::new(), &[Uuid([1; 16])]);
    let moment = Duration::from_millis(20);
    flow.report(progress(1, 1, true, 0));
    std::thread::sleep(moment);
    flow.report(progress(1, 2, false, 0));
    std::thread::sleep(moment);
    let (first, next) = (flow.stats(), flow.stats());
    assert!(first.paused >= moment);
    let fraction = first.paused_fraction;
    assert!(fraction > 0.0 && fraction < 1.0, "{fraction}");
    assert!(next.paused_fraction <= fraction, "no pause since");
    flow.reset_stats();
    let reset = flow.stats();
    assert_eq!((reset.paused, reset.paused_fraction), (next.paused, 0.0));
}

#[test]
fn a_waiting_origin_is_woken_or_interrupted() {
    let flow = Arc::new(Flow::default());
    flow.set_counted(counted(&[1]), BTreeMap::new(), &[Uuid([1; 16])]);
    flow.report(progress(1, 1, true, 0));
    let interrupted = Arc::new(Waiter::new());
    interrupted.interrupt();
    let limits = || FlowLimits::new(16, 1.0, true, 2);
    assert!(!flow.wait(&interrupted, limits));
    let thread = {
        let flow = flow.clone();
        std::thread::spawn(move || flow.wait(&Arc::new(Waiter::new()), limits))
    };
    flow.report(progress(1, 2, false, 0));
    assert_eq!(thread.join().ok(), Some(true));
}

#[test]
fn the_own_wish_has_two_limits() {
    let flow = Flow::default();
    let limits = FlowLimits::new(16, 0.5, false, 4);
    assert_eq!((limits.upper, limits.lower), (32, 16));
    assert!(!flow.own(32, limits, false, Duration::ZERO));
    assert!(flow.own(33, limits, false, Duration::ZERO));
    assert!(!flow.own(17, limits, false, Duration::ZERO));
    assert!(flow.own(16, limits, false, Duration::ZERO));
}

#[test]
fn origins_slow_down_before_they_stop() {
    let limits = FlowLimits::new(100, 1.0, true, 3);
    for rate in [0.0, 10.0, 1e6] {
        assert_eq!(limits.slow_down(0, rate), Duration::ZERO);
        assert_eq!(limits.slow_down(50, rate), Duration::ZERO);
        let steps: Vec<_> = (50..=100).map(|q| limits.slow_down(q, rate)).collect();
        assert!(steps.windows(2).all(|w| w[0] < w[1]), "{steps:?}");
    }
    for rate in [0.0, 10.0] {
        assert_eq!(limits.slow_down(75, rate), SLOW_MAX / 4);
        assert_eq!(limits.slow_down(1000, rate), SLOW_MAX);
    }
    assert_eq!(
        limits.slow_down(100, 50_000.0),
        Duration::from_millis(2),
        "no longer than the queue's work takes"
    );
}

#[test]
fn a_members_rate_is_that_of_its_busy_time() {
    let report = |queue, released| Progress {
        queue,
        released,
        ..progress(1, 1, false, 0)
    };
    let mut r = Reported {
        progress: report(5, 1000),
        at: Instant::now(),
        rate: 0.0,
    };
    let tenth = Duration::from_millis(100);
    assert_eq!(r.next_rate(&report(0, 1500), tenth), 0.0, "it ran out");
    r.rate = r.next_rate(&report(5, 1500), tenth);
    assert_eq!(r.rate, 5000.0);
    assert_eq!(r.next_rate(&report(0, 1000), tenth), 5000.0, "idle");
    let stuck = r.next_rate(&report(5, 1000), tenth);
    assert!(stuck > 4000.0 && stuck < 4200.0, "{stuck}");
    let longer = r.next_rate(&report(5, 1000), Duration::from_secs(10));
    assert!(longer < 0.01, "{longer}");
}

#[test]
fn only_full_queues_of_counted_members_slow_an_origin_down() {
    let flow = Flow::default();
    flow.set_counted(
        counted(&[1]),
        BTreeMap::new(),
        &[Uuid([1; 16]), Uuid([2; 16])],
    );
    let full = |n| Progress {
        queue: 40,
        ..progress(n, 1, false, 0)
    };
    let limits = || FlowLimits::new(40, 1.0, true, 2);
    let interrupted = Arc::new(Waiter::new());
    interrupted.interrupt();
    flow.report(full(2));
    assert!(flow.wait(&interrupted, limits), "it did not wait at all");
    flow.report(full(1));
    assert!(!flow.wait(&interrupted, limits), "it would have waited");
    let before = flow.stats();
    assert!(flow.wait(&Arc::new(Waiter::new()), limits));
    let after = flow.stats();
    assert!(
        after.paused >= before.paused + SLOW_MAX,
        "that counts: {after:?}"
    );
    assert!(!after.active && after.paused_fraction > 0.0);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(flow.stats().paused, after.paused, "it is over");
}

#[test]
fn nobody_waits_for_who_is_in_quarantine() {
    let flow = Flow::default();
    flow.set_counted(
        counted(&[1, 2]),
        BTreeMap::new(),
        &[Uuid([1; 16]), Uuid([2; 16])],
    );
    flow.report(progress(2, 1, true, 0));
    let limits = FlowLimits::new(16, 1.0, true, 2);
    assert!(flow.look(limits).iter().all(|s| s.holds && !s.caught_up));
    assert!(flow.stats().active);
    flow.set_quarantined([Uuid([2; 16])].into());
    let stats = flow.stats();
    assert!(!stats.active);
    assert_eq!(
        (stats.waiting_for.len(), stats.quarantined),
        (0, vec!["n2".to_owned()])
    );
    assert!(flow.wait(&Arc::new(Waiter::new()), || limits));
    flow.set_quarantined(BTreeSet::new());
    assert_eq!(flow.stats().waiting_for, ["n2"]);
}

#[test]
fn nothing_is_safe_until_all_have_reported() {
    let flow = Flow::default();
    let (a, b) = (Uuid([1; 16]), Uuid([2; 16]));
    flow.report(progress(1, 1, false, 10));
    assert_eq!(flow.safe(&[a, b]), None);
    flow.report(progress(2, 1, false, 7));
    assert_eq!(flow.safe(&[a, b]), Some(7));
}

#[test]
fn who_catches_up_holds_only_by_its_wish() {
    let flow = Flow::default();
    let (a, b) = (Uuid([1; 16]), Uuid([2; 16]));
    flow.set_counted(counted(&[1]), counted(&[2]), &[a, b]);
    let behind = |number, stop| Progress {
        queue: 50_000,
        ..progress(2, number, stop, 0)
    };
    let limits = FlowLimits::new(16, 1.0, true, 2);
    let interrupted = Arc::new(Waiter::new());
    interrupted.interrupt();
    flow.report(progress(1, 1, false, 0));
    flow.report(behind(1, false));
    assert!(flow.wait(&interrupted, || limits), "its queue says nothing");
    assert!(flow.look(limits).iter().all(|s| !s.holds));
    assert_eq!(flow.look(limits).len(), 2);
    assert_eq!(flow.lowest_released(), Some(0));
    flow.report(behind(2, true));
    assert!(!flow.wait(&interrupted, || limits));
    assert_eq!(flow.stats().waiting_for, ["n2"]);
    assert!(flow.look(limits).iter().any(|s| s.uuid == b && s.holds));
    flow.set_only_synced(true);
    assert!(flow.wait(&interrupted, || limits));
    assert!(flow.look(limits).iter().all(|s| s.uuid == a));
    flow.set_only_synced(false);
    flow.set_counted(counted(&[1, 2]), BTreeMap::new(), &[a, b]);
    assert!(flow.stats().active, "it has caught up, and still asks");
    flow.set_counted(counted(&[1]), BTreeMap::new(), &[a]);
    assert!(!flow.stats().active);
}

#[test]
fn the_own_catching_up() {
    let flow = Flow::default();
    let own = Uuid([1; 16]);
    flow.catch_up(&own, true, 500);
    assert_eq!(flow.allowed(), None, "it has just begun");
    if let Some(member) = &mut flow.lock().own {
        member.look(400, 0.0, Instant::now() + crate::catching_up::GRACE);
    }
    assert_eq!(flow.allowed(), Some(400));
    let limits = FlowLimits::new(16, 0.5, true, 2).beyond(400);
    assert!(
        !flow.own(416, limits, false, Duration::ZERO)
            && flow.own(417, limits, false, Duration::ZERO)
    );
    assert!(
        !flow.own(409, limits, false, Duration::ZERO)
            && flow.own(408, limits, false, Duration::ZERO)
    );
    assert!(
        flow.own(417, limits, false, Duration::ZERO)
            && flow.own(417, FlowLimits::NONE, false, Duration::ZERO)
    );
    assert!(!flow.own(1_000_000, FlowLimits::NONE, false, Duration::ZERO));
    flow.catch_up(&own, false, 300);
    assert_eq!(flow.allowed(), None);
}
