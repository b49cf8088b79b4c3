//! The few fields of a certificate that are shown or compared here. What
//! proves anything is judged by the TLS library, not from these.

/// One element of DER: its tag, its content, and what follows it.
fn element(input: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = input.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let n = usize::from(first & 0x7f);
            let (bytes, rest) = rest.split_at_checked(n)?;
            let len = bytes.iter().fold(0, |v, b| v << 8 | usize::from(*b));
            (len, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

/// When a certificate begins and ends to be valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// Its version: 1 to 3.
    pub version: u8,
    /// First second of validity, since 1970.
    pub from: u64,
    /// Last second of validity.
    pub until: u64,
}

/// Reads them; `None` if this is no certificate.
pub(super) fn facts(der: &[u8]) -> Option<Facts> {
    const SEQUENCE: u8 = 0x30;
    let (SEQUENCE, certificate, _) = element(der)? else {
        return None;
    };
    let (SEQUENCE, mut at, _) = element(certificate)? else {
        return None;
    };
    let mut version = 1;
    let (tag, content, rest) = element(at)?;
    if tag == 0xA0 {
        let (_, number, _) = element(content)?;
        version = number.last()?.checked_add(1)?;
        at = rest;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        at = element(at)?.2;
    }
    let (SEQUENCE, validity, _) = element(at)? else {
        return None;
    };
    let (tag, text, rest) = element(validity)?;
    let from = seconds(tag, text)?;
    let (tag, text, _) = element(rest)?;
    Some(Facts {
        version,
        from,
        until: seconds(tag, text)?,
    })
}

/// `YYMMDDhhmmssZ` (tag 0x17) or `YYYYMMDDhhmmssZ` (tag 0x18).
fn seconds(tag: u8, text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let (year, rest) = match (tag, text.len()) {
        (0x17, 12) => {
            let y: u64 = text[..2].parse().ok()?;
            (if y < 50 { 2000 + y } else { 1900 + y }, &text[2..])
        }
        (0x18, 14) => (text[..4].parse().ok()?, &text[4..]),
        _ => return None,
    };
    let two = |i: usize| rest[2 * i..2 * i + 2].parse::<u64>().ok();
    let (month, day, h, m, s) = (two(0)?, two(1)?, two(2)?, two(3)?, two(4)?);
    if !(1..=12).contains(&month) || year < 1970 {
        return None;
    }
    Some(((days(year, month, day)? * 24 + h) * 60 + m) * 60 + s)
}

/// Days since 1970-01-01.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let before = (1970..year).map(|y| 365 + u64::from(leap(y))).sum::<u64>();
    let lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let in_year =
        lengths.iter().take(month as usize - 1).sum::<u64>() + u64::from(month > 2 && leap(year));
    (before + in_year + day).checked_sub(1)
}

/// `YYYY-MM-DD`, for people.
pub(super) fn date(since_1970: u64) -> String {
    let day = since_1970 / 86_400;
    let year = (1970..)
        .take_while(|y| days(*y, 1, 1).is_some_and(|d| d <= day))
        .last()
        .unwrap_or(1970);
    let month = (1..=12)
        .take_while(|m| days(year, *m, 1).is_some_and(|d| d <= day))
        .last()
        .unwrap_or(1);
    let first = days(year, month, 1).unwrap_or(0);
    format!("{year:04}-{month:02}-{:02}", day - first + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_shown() {
        assert_eq!(seconds(0x17, b"700101000000Z"), Some(0));
        assert_eq!(seconds(0x17, b"000229120000Z"), Some(951_825_600));
        assert_eq!(seconds(0x18, b"20400227030303Z"), Some(2_213_924_583));
        assert_eq!(date(951_825_600), "2000-02-29");
        assert_eq!(date(2_213_924_583), "2040-02-27");
        assert_eq!(date(0), "1970-01-01");
        for bad in [&b"700101000000"[..], b"7001010000Z", b"701301000000Z", b""] {
            assert_eq!(seconds(0x17, bad), None);
        }
    }

    #[test]
    fn nonsense_is_no_certificate() {
        for bad in [
            &[][..],
            &[0x30],
            &[0x30, 0x84],
            &[0x30, 2, 0x30, 0],
            &[7; 40],
        ] {
            assert_eq!(facts(bad), None);
        }
    }
}
