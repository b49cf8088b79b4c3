//! Textual forms of option values: durations, sizes, switches, numbers.

use std::time::Duration;

/// A parsed value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    Int(i64),
    Double(f64),
    Span(Duration),
    Text(String),
}

/// `yes`/`no`, `y`/`n`, `true`/`false`, `on`/`off`, `1`/`0`, in any case.
pub(super) fn parse_bool(text: &str) -> Option<bool> {
    const YES: [&str; 5] = ["yes", "y", "true", "on", "1"];
    const NO: [&str; 5] = ["no", "n", "false", "off", "0"];
    let is = |word: &&str| text.eq_ignore_ascii_case(word);
    if YES.iter().any(is) {
        Some(true)
    } else if NO.iter().any(is) {
        Some(false)
    } else {
        None
    }
}

/// A whole number: decimal, with or without a sign, or hexadecimal after `0x`.
pub(super) fn parse_int(text: &str) -> Option<i64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if digits.bytes().all(|b| b.is_ascii_hexdigit()) => {
            i64::from_str_radix(digits, 16).ok()
        }
        Some(_) => None,
        None => text.parse().ok(),
    }
}

/// A whole number with an optional K, M, G or T (powers of 1024) behind it.
pub(super) fn parse_size(text: &str) -> Option<i64> {
    let shift = match text.bytes().last()?.to_ascii_uppercase() {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => return parse_int(text),
    };
    // The suffix is one ASCII byte, so the cut is a character boundary.
    parse_int(text[..text.len() - 1].trim_end())?.checked_mul(1 << shift)
}

/// A decimal number; no infinity, no NaN.
pub(super) fn parse_double(text: &str) -> Option<f64> {
    let plain = text
        .bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'+' | b'e' | b'E'));
    if !plain {
        return None;
    }
    text.parse().ok().filter(|v: &f64| v.is_finite())
}

/// An ISO 8601 duration (`PT5S`, `PT0.5S`, `P1DT2H`), or decimal seconds.
///
/// Weeks, days, hours, minutes and seconds, each at most once, in this order;
/// each may have a fraction, of which nanoseconds count. Years and months are
/// refused: their length is not fixed, and `P1M` is usually a misspelt `PT1M`.
/// Exact, so that a shown duration reads back as the same one.
pub(super) fn parse_span(text: &str) -> Option<Duration> {
    let nanos = match text.bytes().next()? {
        b'P' | b'p' => iso_nanos(&text[1..])?,
        _ => decimal_nanos(text, 1)?,
    };
    // The peer's limit as well: 63 bits of nanoseconds, 292 years.
    let nanos = u64::try_from(nanos)
        .ok()
        .filter(|n| *n <= i64::MAX as u64)?;
    Some(Duration::from_nanos(nanos))
}

fn iso_nanos(text: &str) -> Option<u128> {
    const DATE: [(u8, u64); 2] = [(b'W', 604_800), (b'D', 86_400)];
    const TIME: [(u8, u64); 3] = [(b'H', 3600), (b'M', 60), (b'S', 1)];
    let (date, time) = match text.find(['T', 't']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    if date.is_empty() && time.is_none() || time == Some("") {
        return None;
    }
    Some(sum_parts(date, &DATE)? + sum_parts(time.unwrap_or(""), &TIME)?)
}

fn sum_parts(mut text: &str, units: &[(u8, u64)]) -> Option<u128> {
    let mut total = 0;
    let mut next = 0;
    while !text.is_empty() {
        let at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let letter = text.as_bytes()[at].to_ascii_uppercase();
        let place = next + units[next..].iter().position(|u| u.0 == letter)?;
        total += decimal_nanos(&text[..at], units[place].1)?;
        next = place + 1;
        // `letter` is one of the ASCII letters above, so this is a boundary.
        text = &text[at + 1..];
    }
    Some(total)
}

/// A decimal number times so many seconds, in nanoseconds.
fn decimal_nanos(text: &str, unit_seconds: u64) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    // 19 digits are beyond the limit of a duration, and far below that of u128.
    if whole.is_empty() || whole.len() > 19 || !digits(whole) || !digits(fraction) {
        return None;
    }
    if text.ends_with('.') {
        return None;
    }
    let kept = &fraction[..fraction.len().min(9)];
    let fraction: u128 = format!("{kept:0<9}").parse().ok()?;
    let nanos = whole.parse::<u128>().ok()? * 1_000_000_000 + fraction;
    Some(nanos * u128::from(unit_seconds))
}

/// A size in the largest of T, G, M, K that divides it: `128M`, `1000`.
fn format_size(bytes: i64) -> String {
    for (shift, letter) in [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')] {
        if bytes != 0 && bytes & ((1 << shift) - 1) == 0 {
            return format!("{}{letter}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// How a value that was just set is shown; `given` is its own spelling.
///
/// As the peer does it, measured on a running 26.4.23: its group layer rewrites
/// durations, masks and switches at any time, its queues and its cache sizes and
/// decimals once they are set at run time; everything else stays as given.
pub(super) fn echo(name: &str, value: &Value, given: String, at_start: bool) -> String {
    let of = |prefix: &str| name.starts_with(prefix);
    let group = of("evs.") || of("gmcast.") || name == "pc.linger";
    let counted = !at_start && (of("gcs.") || of("gcache.") || of("dromon."));
    match value {
        Value::Span(span) if group => format_span(*span),
        Value::Bool(on) if name == "evs.use_aggregate" => on.to_string(),
        Value::Int(0) if name.ends_with("_log_mask") => "0".into(),
        Value::Int(mask) if name.ends_with("_log_mask") => format!("{mask:#x}"),
        Value::Int(size) if counted => format_size(*size),
        Value::Double(number) if counted => number.to_string(),
        _ => given,
    }
}

/// The shortest ISO 8601 form: `PT5S`, `PT1H40M`, `P1D`, `PT0.5S`.
pub fn format_span(span: Duration) -> String {
    let mut left = span.as_secs();
    let nanos = span.subsec_nanos();
    let mut out = String::from("P");
    let days = left / 86_400;
    left %= 86_400;
    if days > 0 {
        out.push_str(&format!("{days}D"));
    }
    if left == 0 && nanos == 0 && days > 0 {
        return out;
    }
    out.push('T');
    let (hours, minutes, seconds) = (left / 3600, left / 60 % 60, left % 60);
    if hours > 0 {
        out.push_str(&format!("{hours}H"));
    }
    if minutes > 0 {
        out.push_str(&format!("{minutes}M"));
    }
    if nanos > 0 {
        let fraction = format!("{nanos:09}");
        out.push_str(&format!("{seconds}.{}S", fraction.trim_end_matches('0')));
    } else if seconds > 0 || (hours == 0 && minutes == 0) {
        out.push_str(&format!("{seconds}S"));
    }
    out
}
