//! Requests and responses. Without I/O.

/// Longest head of a request, in bytes, and most lines of it.
pub(super) const HEAD_MAX: usize = 8 << 10;
const LINES_MAX: usize = 64;

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

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Of HTTP.
    pub code: u16,
    /// Of the body.
    pub kind: &'static str,
    /// For those who want more than the head.
    pub body: String,
}

impl Response {
    /// A line of text.
    pub fn text(code: u16, text: impl Into<String>) -> Response {
        Response {
            code,
            kind: "text/plain; charset=utf-8",
            body: text.into() + "\n",
        }
    }

    /// JSON.
    pub fn json(code: u16, value: &serde_json::Value) -> Response {
        Response {
            code,
            kind: "application/json",
            body: format!("{value:#}\n"),
        }
    }

    /// As bytes. `head`: without the body.
    pub fn bytes(&self, head: bool) -> Vec<u8> {
        let reason = match self.code {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            431 => "Request Header Fields Too Large",
            _ => "Service Unavailable",
        };
        let mut out = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
            self.code,
            self.kind,
            self.body.len()
        );
        if !head {
            out.push_str(&self.body);
        }
        out.into_bytes()
    }
}

/// Reads a request, as much as has come. `None`: more must come. Tells whether only the head of
/// the answer is wanted.
pub fn asked(bytes: &[u8]) -> Option<(Result<Asked, Response>, bool)> {
    let mut lines = [httparse::EMPTY_HEADER; LINES_MAX];
    let mut request = httparse::Request::new(&mut lines);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX => None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            let text =
                format!("A request may have {HEAD_MAX} bytes and {LINES_MAX} header lines here.");
            Some((Err(Response::text(431, text)), false))
        }
        Err(error) => {
            let text = format!("This is no request of HTTP: {error}.");
            Some((Err(Response::text(400, text)), false))
        }
        Ok(httparse::Status::Complete(_)) => {
            let head = request.method == Some("HEAD");
            if !head && request.method != Some("GET") {
                let text = "Only GET and HEAD are offered here.";
                return Some((Err(Response::text(405, text)), false));
            }
            Some((path(request.path.unwrap_or_default()), head))
        }
    }
}

fn path(target: &str) -> Result<Asked, Response> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    match path {
        "/metrics" => return Ok(Asked::Metrics),
        "/status.json" => return Ok(Asked::Status),
        _ => {}
    }
    let name = path.strip_prefix("/replica/").and_then(decoded);
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        let text = "There is /metrics, /status.json and /replica/NAME?max_lag=SECONDS.";
        return Err(Response::text(404, text));
    };
    let max = query.split('&').find_map(|p| p.strip_prefix("max_lag="));
    let seconds = max.and_then(|text| text.parse::<f64>().ok());
    match seconds.filter(|s| (0.0..=1e9).contains(s)) {
        Some(seconds) => Ok(Asked::Replica(name, (seconds * 1000.0).round() as u64)),
        None => Err(Response::text(
            400,
            "Say how far behind a good replica may be: ?max_lag=SECONDS, as in max_lag=1.5.",
        )),
    }
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

    fn get(target: &str) -> Result<Asked, u16> {
        let text = format!("GET {target} HTTP/1.1\r\nHost: r\r\n\r\n");
        let (asked, head) = asked(text.as_bytes()).expect("whole");
        assert!(!head);
        asked.map_err(|r| r.code)
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

    #[test]
    fn limits() {
        assert_eq!(asked(b"GET / HT"), None);
        let (head, only) = asked(b"HEAD /metrics HTTP/1.0\r\n\r\n").expect("whole");
        assert!(only && head == Ok(Asked::Metrics));
        let code = |bytes: &[u8]| asked(bytes).expect("whole").0.expect_err("bad").code;
        assert_eq!(code(b"POST /metrics HTTP/1.1\r\n\r\n"), 405);
        assert_eq!(code(b"\x16\x03\x01\x00"), 400);
        let long = [b"GET /".to_vec(), vec![b'a'; HEAD_MAX]].concat();
        assert_eq!(code(&long), 431);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(LINES_MAX + 1));
        assert_eq!(code(many.as_bytes()), 431);
    }

    #[test]
    fn bytes_of_an_answer() {
        let response = Response::text(503, "no");
        let text = String::from_utf8(response.bytes(false)).expect("a text");
        assert!(text.starts_with("HTTP/1.1 503 Service Unavailable\r\n"));
        assert!(text.ends_with(
            "Content-Length: 3\r\nCache-Control: no-store\r\nConnection: close\r\n\r\nno\n"
        ));
        assert!(response.bytes(true).ends_with(b"\r\n\r\n"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            asked(&bytes);
            asked(&[b"GET /replica/", &bytes[..]].concat());
        }
    }
}
