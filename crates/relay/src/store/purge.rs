//! Which files may go. Decided from sizes, times and needs; removed elsewhere.

/// What may be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in all; `None`: any number.
    pub size: Option<u64>,
    /// Seconds since a file's newest group; `None`: for ever.
    pub age: Option<u64>,
    /// Bytes in all even if a replica needs them: what the operator was told will break that
    /// replica. `None`: never.
    pub size_hard: Option<u64>,
}

/// A file, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its number.
    pub number: u64,
    /// Its bytes.
    pub bytes: u64,
    /// None of its groups was made later, in seconds since 1970; 0: not known.
    pub newest: u32,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// So many of the oldest files go.
    pub remove: usize,
    /// So many more would go if no replica needed them.
    pub held: usize,
}

/// `needed`: the oldest file that a known replica needs. `now`: seconds since 1970.
/// The last file, which is written to, never goes.
pub fn verdict(files: &[Candidate], limits: Limits, needed: Option<u64>, now: u64) -> Verdict {
    let mut left: u64 = files.iter().map(|f| f.bytes).sum();
    let mut verdict = Verdict::default();
    let Some((_, closed)) = files.split_last() else {
        return verdict;
    };
    for file in closed {
        let above = |limit: Option<u64>| limit.is_some_and(|limit| left > limit);
        let old = limits
            .age
            .is_some_and(|age| file.newest > 0 && now.saturating_sub(u64::from(file.newest)) > age);
        if !above(limits.size) && !old && !above(limits.size_hard) {
            break;
        }
        let needed = needed.is_some_and(|needed| needed <= file.number);
        // Never past one that stays: the files have no gap.
        if verdict.held > 0 || needed && !above(limits.size_hard) {
            verdict.held += 1;
        } else {
            verdict.remove += 1;
        }
        left -= file.bytes;
    }
    verdict
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits() -> impl Strategy<Value = Limits> {
        let limit = || proptest::option::of(0u64..60);
        (limit(), limit(), limit()).prop_map(|(size, age, size_hard)| Limits {
            size,
            age,
            size_hard,
        })
    }

    proptest! {
        #[test]
        fn promises(
            sizes in proptest::collection::vec((1u64..20, 0u32..100), 0..8), limits in limits(),
            needed in proptest::option::of(1u64..10), now in 0u64..200
        ) {
            let mut files: Vec<_> = sizes.iter().enumerate()
                .map(|(n, (bytes, newest))| Candidate { number: n as u64 + 1, bytes: *bytes, newest: *newest })
                .collect();
            files.sort_by_key(|f| f.number);
            let v = verdict(&files, limits, needed, now);
            prop_assert!(v.remove + v.held < files.len().max(1), "the last one stays");
            let left = |gone: usize| files[gone..].iter().map(|f| f.bytes).sum::<u64>();
            // What a replica needs goes only beyond the hard limit.
            for (n, file) in files.iter().enumerate().take(v.remove) {
                if needed.is_some_and(|needed| needed <= file.number) {
                    prop_assert!(limits.size_hard.is_some_and(|l| left(n) > l));
                }
            }
            // Without needs, the limits are kept as far as closed files go.
            if needed.is_none() {
                prop_assert_eq!(v.held, 0);
                if let Some(size) = limits.size {
                    prop_assert!(left(v.remove) <= size || v.remove + 1 == files.len());
                }
            }
            if let Some(hard) = limits.size_hard {
                let all_closed = v.remove + 1 >= files.len();
                prop_assert!(left(v.remove) <= hard || all_closed || v.held > 0);
            }
            // No limit, nothing goes.
            if limits == Limits::default() {
                prop_assert_eq!(v, Verdict::default());
            }
        }
    }

    #[test]
    fn held_back_by_a_replica() {
        let file = |number, newest| Candidate {
            number,
            bytes: 10,
            newest,
        };
        let files = [file(1, 100), file(2, 200), file(3, 300), file(4, 400)];
        let of = |size, age, size_hard, needed| {
            let limits = Limits {
                size,
                age,
                size_hard,
            };
            let v = verdict(&files, limits, needed, 500);
            (v.remove, v.held)
        };
        assert_eq!(of(Some(25), None, None, None), (2, 0));
        assert_eq!(of(Some(25), None, None, Some(2)), (1, 1));
        assert_eq!(of(Some(25), None, None, Some(1)), (0, 2));
        assert_eq!(of(Some(5), None, Some(25), Some(1)), (2, 1));
        assert_eq!(of(None, Some(250), None, None), (2, 0));
        assert_eq!(of(None, Some(250), None, Some(2)), (1, 1));
        assert_eq!(of(None, Some(0), None, None), (3, 0));
        assert_eq!(of(None, None, None, None), (0, 0));
    }
}
