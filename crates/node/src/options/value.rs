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

/// Longest duration that is taken: what fits 63 bits of nanoseconds, 292 years.
const SPAN_SECONDS_MAX: f64 = 9.2e9;

/// `yes`/`no`, `true`/`false`, `on`/`off`, `1`/`0`, in any case.
pub(super) fn parse_bool(text: &str) -> Option<bool> {
    const YES: [&str; 4] = ["yes", "true", "on", "1"];
    const NO: [&str; 4] = ["no", "false", "off", "0"];
    let is = |word: &&str| text.eq_ignore_ascii_case(word);
    if YES.iter().any(is) {
        Some(true)
    } else if NO.iter().any(is) {
        Some(false)
    } else {
        None
    }
}

/// A decimal whole number, with or without a sign.
pub(super) fn parse_int(text: &str) -> Option<i64> {
    text.parse().ok()
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

/// A number in decimal, or in hexadecimal after `0x`.
pub(super) fn parse_mask(text: &str) -> Option<i64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if digits.bytes().all(|b| b.is_ascii_hexdigit()) => {
            i64::from_str_radix(digits, 16).ok()
        }
        Some(_) => None,
        None => parse_int(text),
    }
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
/// each may have a fraction. Years and months are refused: their length is not
/// fixed, and `P1M` is usually a misspelt `PT1M`.
pub(super) fn parse_span(text: &str) -> Option<Duration> {
    let seconds = match text.bytes().next()? {
        b'P' | b'p' => iso_seconds(&text[1..])?,
        b'-' | b'+' => return None,
        _ => parse_double(text)?,
    };
    if !(0.0..SPAN_SECONDS_MAX).contains(&seconds) {
        return None;
    }
    // Whole nanoseconds, so that 0.1 and PT0.1S are one and the same.
    Some(Duration::from_nanos((seconds * 1e9).round() as u64))
}

fn iso_seconds(text: &str) -> Option<f64> {
    const DATE: [(u8, f64); 2] = [(b'W', 604_800.0), (b'D', 86_400.0)];
    const TIME: [(u8, f64); 3] = [(b'H', 3600.0), (b'M', 60.0), (b'S', 1.0)];
    let (date, time) = match text.find(['T', 't']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let mut total = 0.0;
    let mut parts = 0;
    sum_parts(date, &DATE, &mut total, &mut parts)?;
    if let Some(time) = time {
        let before = parts;
        sum_parts(time, &TIME, &mut total, &mut parts)?;
        if parts == before {
            return None;
        }
    }
    (parts > 0).then_some(total)
}

fn sum_parts(
    mut text: &str,
    units: &[(u8, f64)],
    total: &mut f64,
    parts: &mut usize,
) -> Option<()> {
    let mut next = 0;
    while !text.is_empty() {
        let at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let letter = text.as_bytes()[at].to_ascii_uppercase();
        let place = next + units[next..].iter().position(|u| u.0 == letter)?;
        let number: f64 = text[..at].parse().ok()?;
        *total += number * units[place].1;
        *parts += 1;
        next = place + 1;
        // `letter` is one of the ASCII letters above, so this is a boundary.
        text = &text[at + 1..];
    }
    Some(())
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
