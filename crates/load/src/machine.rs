//! What results were measured on, and when.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The kernel, as `uname -sr` has it.
#[must_use]
pub fn kernel() -> String {
    let part = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        text.trim().to_string()
    };
    format!("{} {}", part("ostype"), part("osrelease"))
}

/// Processors that this program may use.
#[must_use]
pub fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// What the processors are, as they call themselves.
#[must_use]
pub fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    model(&text).unwrap_or("of unknown kind").to_string()
}

fn model(text: &str) -> Option<&str> {
    let line = text.lines().find(|l| l.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim())
}

/// A name that no other machine has, and that it keeps when it is started again; its host's name if it
/// has none.
#[must_use]
pub fn identity() -> String {
    let read = |path| {
        fs::read_to_string(path)
            .ok()
            .filter(|t| !t.trim().is_empty())
    };
    let id = read("/etc/machine-id").or_else(|| read("/proc/sys/kernel/hostname"));
    id.unwrap_or_default().trim().to_string()
}

/// Memory in all, as the kernel has it.
#[must_use]
pub fn memory() -> String {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"));
    line.map_or("unknown", str::trim).to_string()
}

/// Kind and source of the file system in which a path lies, or would.
#[must_use]
pub fn file_system(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let there = path.ancestors().find_map(|p| fs::canonicalize(p).ok());
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounted(&text, &there.unwrap_or(path)).unwrap_or_else(|| "unknown".into())
}

/// See proc(5), `/proc/pid/mountinfo`: the fifth field is where, and behind " - " come kind and source.
/// Of two at one place the later one hides the other.
fn mounted(text: &str, path: &Path) -> Option<String> {
    let mounts = text.lines().filter_map(|line| {
        let (where_, what) = line.split_once(" - ")?;
        let place = where_.split(' ').nth(4)?.replace("\\040", " ");
        let mut what = what.split(' ');
        let found = format!("{} on {}", what.next()?, what.next()?);
        path.starts_with(&place).then_some((place.len(), found))
    });
    mounts.max_by_key(|(len, _)| *len).map(|(_, found)| found)
}

/// How this program, and what it starts, gets processors: `policy 0, nice 0` if nobody said otherwise.
#[must_use]
pub fn priority() -> String {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let (policy, nice) = policy_and_nice(&text).unwrap_or(("unknown", "unknown"));
    format!("policy {policy}, nice {nice}")
}

/// Fields 41 and 19 of `/proc/pid/stat`; the second one, the name, may have anything in it.
fn policy_and_nice(text: &str) -> Option<(&str, &str)> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let nice = fields.nth(19 - 3)?;
    let policy = fields.nth(41 - 19 - 1)?;
    Some((policy, nice))
}

/// Ticks a second in `/proc/stat`; Linux shows programs this number whatever it uses inside.
const TICKS_PER_SECOND: u64 = 100;

/// For how long its processors have worked since it was started, all together: also for the
/// system, and, where this is a virtual machine, for others (steal).
#[must_use]
pub fn busy() -> Option<Duration> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let ticks = busy_ticks(&text)?;
    Some(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

/// User, nice, system, interrupts of both kinds and steal; not idle and waiting for the disk. What
/// guests use is in user and nice.
fn busy_ticks(text: &str) -> Option<u64> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let fields: Option<Vec<u64>> = line.split_whitespace().map(|n| n.parse().ok()).collect();
    match fields?[..] {
        [user, nice, system, _, _, irq, softirq, steal, ..] => {
            Some(user + nice + system + irq + softirq + steal)
        }
        _ => None,
    }
}

/// The time, UTC, to the minute: `2026-11-24 03:36`.
#[must_use]
pub fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    utc(since.unwrap_or(Duration::ZERO).as_secs())
}

/// From seconds since 1970. Days become a date by Howard Hinnant's `civil_from_days`
/// (<https://howardhinnant.github.io/date_algorithms.html>): years begin in March, so that the day
/// too many of a leap year is the last one of its year.
fn utc(seconds: u64) -> String {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute) = (of_day / 3600, of_day / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00"),
            (951_782_399, "2000-02-28 23:59"),
            (951_782_400, "2000-02-29 00:00"),
            (951_868_800, "2000-03-01 00:00"),
            (1_772_323_199, "2026-02-28 23:59"),
            (1_798_761_540, "2026-12-31 23:59"),
            (4_107_542_400, "2100-03-01 00:00"),
        ] {
            assert_eq!(utc(seconds), date);
        }
    }

    #[test]
    fn time_of_processors_is_read() {
        let text = "cpu  1 2 4 1000 1000 8 16 32 64 128\ncpu0 1 1 1 1\n";
        assert_eq!(busy_ticks(text), Some(63));
        assert_eq!(busy_ticks("cpu 1 2 3"), None);
        assert_eq!(busy_ticks("cpu  a"), None);
        let before = busy().expect("a Linux");
        let begin = std::time::Instant::now();
        while busy().expect("a Linux") == before {
            assert!(begin.elapsed() < Duration::from_secs(60), "no time passes");
        }
    }

    #[test]
    fn a_file_system_is_that_of_the_deepest_mount() {
        let text = "22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw\n\
                    23 22 0:20 / /dev/shm rw - tmpfs tmpfs rw\n\
                    24 22 0:21 / /dev/sh rw - proc none rw\n";
        let of = |path: &str| mounted(text, Path::new(path));
        assert_eq!(of("/tmp/x").as_deref(), Some("ext4 on /dev/vda"));
        assert_eq!(of("/dev/shm/x").as_deref(), Some("tmpfs on tmpfs"));
        assert_eq!(of("/dev/shmx").as_deref(), Some("ext4 on /dev/vda"));
        assert_ne!(file_system(Path::new("/proc/none/x")), "unknown");
        assert!(file_system(Path::new("/proc/none/x")).starts_with("proc "));
    }

    #[test]
    fn a_priority_is_read_behind_any_name() {
        let mut fields: Vec<String> = (3..=52).map(|n| format!("f{n}")).collect();
        fields[19 - 3] = "10".into();
        fields[41 - 3] = "5".into();
        let text = format!("7 (a) b) {}", fields.join(" "));
        assert_eq!(policy_and_nice(&text), Some(("5", "10")));
        assert_eq!(policy_and_nice("7 (a) S"), None);
        assert!(!priority().contains("unknown") && !memory().contains("unknown"));
    }

    #[test]
    fn the_machine_has_a_kernel_and_processors() {
        assert!(kernel().starts_with("Linux "), "{}", kernel());
        assert!(processors() > 0);
        assert_eq!(model("processor : 0\nmodel name\t: A B\n"), Some("A B"));
        assert_eq!(model(""), None);
    }
}
