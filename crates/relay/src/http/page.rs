//! Requests and responses. Without I/O.

/// Longest head of a request, in bytes, and most lines of it.
pub(super) const HEAD_MAX: usize = 8 << 10;
const LINES_MAX: usize = 64;

/// What somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Without what follows a question mark.
    pub path: String,
    /// That.
    pub query: String,
}

impl Request {
    fn of(target: &str) -> Request {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Request {
            path: path.to_owned(),
            query: query.to_owned(),
        }
    }

    /// `max_lag=SECONDS` of the query, in milliseconds.
    ///
    /// # Errors
    /// An answer that says what is wrong.
    pub fn max_lag_ms(&self) -> Result<u64, Response> {
        let mut parts = self.query.split('&');
        let max = parts.find_map(|p| p.strip_prefix("max_lag="));
        let seconds = max.and_then(|text| text.parse::<f64>().ok());
        match seconds.filter(|s| (0.0..=1e9).contains(s)) {
            Some(seconds) => Ok((seconds * 1000.0).round() as u64),
            None => Err(Response::text(
                400,
                "Say how far behind a good replica may be: ?max_lag=SECONDS, as in max_lag=1.5.",
            )),
        }
    }
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

    /// What Prometheus reads.
    pub fn metrics(body: String) -> Response {
        Response {
            code: 200,
            kind: "text/plain; version=0.0.4; charset=utf-8",
            body,
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
pub fn request(bytes: &[u8]) -> Option<(Result<Request, Response>, bool)> {
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
            Some((Ok(Request::of(request.path.unwrap_or_default())), head))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn limits() {
        assert_eq!(request(b"GET / HT"), None);
        let (head, only) = request(b"HEAD /metrics HTTP/1.0\r\n\r\n").expect("whole");
        assert!(only && head == Ok(Request::of("/metrics")));
        let code = |bytes: &[u8]| request(bytes).expect("whole").0.expect_err("bad").code;
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
            request(&bytes);
            request(&[b"GET /replica/", &bytes[..]].concat());
        }
    }
}
