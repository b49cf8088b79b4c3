//! What a relay is asked over HTTP. Without I/O.

use super::page::{Request, Response};

/// What somebody wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// `/metrics`.
    Metrics,
    /// `/status.json`.
    Status,
    /// `/replica/NAME?max_lag=SECONDS`; milliseconds here.
    Replica(String, u64),
}

/// What a request means here.
pub fn asked(request: &Request) -> Result<Asked, Response> {
    match request.path.as_str() {
        "/metrics" => return Ok(Asked::Metrics),
        "/status.json" => return Ok(Asked::Status),
        _ => {}
    }
    let name = request.path.strip_prefix("/replica/").and_then(decoded);
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        let text = "There is /metrics, /status.json and /replica/NAME?max_lag=SECONDS.";
        return Err(Response::text(404, text));
    };
    Ok(Asked::Replica(name, request.max_lag_ms()?))
}

/// Without %-signs. `None`: they are wrong.
fn decoded(text: &str) -> Option<String> {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digits = [bytes.next()?, bytes.next()?];
        let digits = std::str::from_utf8(&digits).ok()?;
        out.push(u8::from_str_radix(digits, 16).ok()?);
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::http::request;

    fn get(target: &str) -> Result<Asked, u16> {
        let text = format!("GET {target} HTTP/1.1\r\nHost: r\r\n\r\n");
        let (request, head) = request(text.as_bytes()).expect("whole");
        assert!(!head);
        asked(&request.expect("a request")).map_err(|r| r.code)
    }

    #[test]
    fn what_is_offered() {
        assert_eq!(get("/metrics"), Ok(Asked::Metrics));
        assert_eq!(get("/status.json?x=y"), Ok(Asked::Status));
        let replica = |name: &str, ms| Ok(Asked::Replica(name.into(), ms));
        assert_eq!(get("/replica/3?max_lag=2"), replica("3", 2000));
        assert_eq!(
            get("/replica/db%2D1?a=b&max_lag=0.25"),
            replica("db-1", 250)
        );
        for bad in [
            "/replica/3",
            "/replica/3?max_lag=x",
            "/replica/3?max_lag=-1",
            "/replica/3?max_lag=NaN",
        ] {
            assert_eq!(get(bad), Err(400), "{bad}");
        }
        for bad in ["/", "/replica/", "/replica/%zz?max_lag=1", "/etc/passwd"] {
            assert_eq!(get(bad), Err(404), "{bad}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_path(path in "/replica/[ -~]{0,40}") {
            get(&path.replace(' ', "%20")).ok();
        }
    }
}
