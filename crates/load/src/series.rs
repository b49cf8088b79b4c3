//! What can be said of moments: rates, gaps, the worst second, percentiles.
//!
//! A series is a sorted list of moments, each the time since a run's zero. A
//! window includes its beginning and not its end.

use std::ops::Range;
use std::time::Duration;

/// One second: what a user notices.
const SECOND: Duration = Duration::from_secs(1);

/// How many moments lie in the window.
#[must_use]
pub fn count(series: &[Duration], window: &Range<Duration>) -> usize {
    inside(series, window).len()
}

/// Moments per second in the window; 0 for an empty window.
#[must_use]
pub fn rate(series: &[Duration], window: &Range<Duration>) -> f64 {
    let length = window.end.saturating_sub(window.start).as_secs_f64();
    if length == 0.0 {
        return 0.0;
    }
    count(series, window) as f64 / length
}

/// The longest time within the window without a moment. The edges count: a
/// window without any moment is one gap.
#[must_use]
pub fn longest_gap(series: &[Duration], window: &Range<Duration>) -> Duration {
    let mut last = window.start;
    let mut longest = Duration::ZERO;
    for moment in inside(series, window).iter().chain([&window.end]) {
        longest = longest.max(moment.saturating_sub(last));
        last = *moment;
    }
    longest
}

/// The fewest moments in any second that lies wholly in the window, wherever
/// that second begins; none if the window is shorter than a second.
#[must_use]
pub fn worst_second(series: &[Duration], window: &Range<Duration>) -> Option<usize> {
    let last_start = window.end.checked_sub(SECOND)?;
    if last_start < window.start {
        return None;
    }
    // The count falls only when a moment leaves at the second's beginning.
    let after = |moment: &Duration| *moment + Duration::from_nanos(1);
    inside(series, window)
        .iter()
        .map(after)
        .take_while(|start| *start <= last_start)
        .chain([window.start, last_start])
        .map(|start| count(series, &(start..start + SECOND)))
        .min()
}

/// Moments per slice of the window; the last slice may be shorter.
#[must_use]
pub fn slices(series: &[Duration], window: &Range<Duration>, width: Duration) -> Vec<usize> {
    assert!(!width.is_zero(), "a slice has a length");
    let mut all = Vec::new();
    let mut from = window.start;
    while from < window.end {
        let to = (from + width).min(window.end);
        all.push(count(series, &(from..to)));
        from = to;
    }
    all
}

/// The value below or at which `part` (0 to 1) of the sorted values lie, by
/// nearest rank; none of no values.
#[must_use]
pub fn quantile<T: Copy>(sorted: &[T], part: f64) -> Option<T> {
    let rank = (part.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// The middle value; of an even number what lies between the two in the middle. None of no values,
/// and a value that is not a number is left out.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|v| !v.is_nan()).collect();
    values.sort_by(f64::total_cmp);
    let (lower, upper) = (values.len().checked_sub(1)? / 2, values.len() / 2);
    Some(f64::midpoint(values[lower], values[upper]))
}

fn inside<'a>(series: &'a [Duration], window: &Range<Duration>) -> &'a [Duration] {
    debug_assert!(series.is_sorted(), "a series is sorted");
    let from = series.partition_point(|m| *m < window.start);
    let to = series.partition_point(|m| *m < window.end);
    series.get(from..to).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(list: &[u64]) -> Vec<Duration> {
        list.iter().map(|m| Duration::from_millis(*m)).collect()
    }

    fn window(from: u64, to: u64) -> Range<Duration> {
        Duration::from_millis(from)..Duration::from_millis(to)
    }

    #[test]
    fn a_window_includes_its_beginning_and_not_its_end() {
        let series = ms(&[0, 100, 400, 1500, 1600]);
        assert_eq!(count(&series, &window(100, 1500)), 2);
        assert_eq!(count(&series, &window(1500, 100)), 0);
        assert!((rate(&series, &window(0, 500)) - 6.0).abs() < 1e-9);
        assert_eq!(rate(&series, &window(7, 7)), 0.0);
    }

    #[test]
    fn gaps_reach_to_the_edges() {
        let series = ms(&[0, 100, 400, 1500, 1600]);
        let gap = |from, to| longest_gap(&series, &window(from, to)).as_millis();
        assert_eq!(gap(300, 1000), 600);
        assert_eq!(gap(50, 1590), 1100);
        assert_eq!(longest_gap(&[], &window(0, 70)).as_millis(), 70);
        assert_eq!(longest_gap(&series, &window(9, 9)), Duration::ZERO);
    }

    #[test]
    fn the_worst_second_begins_anywhere() {
        // 10 a second, and nothing from 1550 to 2450: a second that begins at
        // a whole one never sees it all.
        let series = ms(&(0..40)
            .map(|i| i * 100)
            .filter(|m| !(1550..2450).contains(m))
            .collect::<Vec<_>>());
        assert_eq!(worst_second(&series, &window(0, 4000)), Some(1));
        assert_eq!(count(&series, &window(1000, 2000)), 6);
        assert_eq!(worst_second(&series, &window(0, 999)), None);
        assert_eq!(worst_second(&[], &window(0, 1000)), Some(0));
        assert_eq!(worst_second(&series, &window(2000, 100)), None);
    }

    #[test]
    fn slices_cover_the_window_once() {
        let series = ms(&[0, 99, 100, 250, 260]);
        assert_eq!(
            slices(&series, &window(0, 260), Duration::from_millis(100)),
            vec![2, 1, 1]
        );
    }

    #[test]
    fn quantiles_are_by_nearest_rank() {
        let sorted: Vec<u32> = (1..=100).collect();
        assert_eq!(quantile(&sorted, 0.5), Some(50));
        assert_eq!(quantile(&sorted, 0.99), Some(99));
        assert_eq!(quantile(&sorted, 1.0), Some(100));
        assert_eq!(quantile(&sorted, 0.0), Some(1));
        assert_eq!(quantile(&[7], 0.99), Some(7));
        assert_eq!(quantile::<u32>(&[], 0.5), None);
        assert_eq!(median([3.0, f64::NAN, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0]), Some(2.5));
        assert_eq!(median([]), None);
    }

    proptest! {
        #[test]
        fn no_second_holds_fewer_than_the_worst(
            moments in proptest::collection::vec(0u64..4000, 0..60),
            from in 0u64..1500,
            length in 1000u64..2500,
        ) {
            let mut series = ms(&moments);
            series.sort();
            let window = window(from, from + length);
            let worst = worst_second(&series, &window).expect("longer than a second");
            let naive = (from..=from + length - 1000)
                .map(|start| moments.iter().filter(|m| (start..start + 1000).contains(*m)).count())
                .min();
            prop_assert_eq!(Some(worst), naive);
        }

        #[test]
        fn slices_sum_up_to_the_count(
            moments in proptest::collection::vec(0u64..3000, 0..60),
            to in 0u64..3000,
            width in 1u64..700,
        ) {
            let mut series = ms(&moments);
            series.sort();
            let all = slices(&series, &window(0, to), Duration::from_millis(width));
            prop_assert_eq!(all.iter().sum::<usize>(), count(&series, &window(0, to)));
        }
    }
}
