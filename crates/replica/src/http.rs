//! How a replica stands, over HTTP: for Prometheus, people, and load balancers.
//!
//! ```text
//! GET /metrics                Prometheus' text format
//! GET /status.json            all of it
//! GET /ready?max_lag=SECONDS  200: send readers to the target; 503: do not, and why
//! ```

use std::net::TcpListener;
use std::sync::Arc;

use dromon_relay::http::{Request, Response, listen};
use dromon_relay::log::Log;
use serde_json::json;

use crate::engine::{Progress, Settings, Status};

/// Answers until the process ends.
pub fn serve(listener: &TcpListener, log: &Log, settings: Settings, progress: Arc<Progress>) {
    listen(
        listener,
        log,
        Arc::new(move |request| answer(request, &progress.status(&settings))),
    );
}

fn answer(request: &Request, status: &Status) -> Response {
    match request.path.as_str() {
        "/metrics" => Response::metrics(status.metrics()),
        "/status.json" => Response::json(200, &status.json()),
        "/ready" => match request.max_lag_ms() {
            Err(refused) => refused,
            Ok(max) => {
                let ready = status.ready(max);
                Response::json(
                    if ready.good { 200 } else { 503 },
                    &json!({
                        "ok": ready.good,
                        "lag_ms": status.lag_ms,
                        "max_lag_ms": max,
                        "why": ready.why,
                    }),
                )
            }
        },
        _ => Response::text(
            404,
            "There is /metrics, /status.json and /ready?max_lag=SECONDS.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Conflict;

    fn get(target: &str, status: &Status) -> Response {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let request = Request {
            path: path.into(),
            query: query.into(),
        };
        answer(&request, status)
    }

    /// Who asks need not log in, and who reads the log could read the tables.
    #[test]
    fn values_of_rows_stand_in_the_log_only() {
        let conflict = Conflict {
            later: "0-1-7".into(),
            earlier: "0-1-5".into(),
            how: "keys",
            what: "shop.users email".into(),
            whole: "shop.users email ('ann@example.org')".into(),
        };
        let status = Status {
            conflicts: vec![conflict.clone()],
            ..Status::default()
        };
        for page in ["/status.json", "/metrics", "/ready?max_lag=1"] {
            let body = get(page, &status).body;
            assert!(!body.contains("ann@"), "{body}");
        }
        let body = get("/status.json", &status).body;
        assert!(body.contains("\"shop.users email\""), "{body}");
        assert_eq!(
            conflict.to_string(),
            "0-1-7 gave way to 0-1-5 (keys): shop.users email ('ann@example.org')"
        );
    }

    #[test]
    fn what_is_offered() {
        let status = Status {
            applying: true,
            lag_ms: Some(900),
            ..Status::default()
        };
        let code = |target| get(target, &status).code;
        assert_eq!(code("/metrics"), 200);
        assert_eq!(code("/status.json"), 200);
        assert_eq!(code("/ready?max_lag=1"), 200);
        assert_eq!(code("/ready?max_lag=0.5"), 503);
        assert_eq!(code("/ready"), 400);
        assert_eq!(code("/replica/1?max_lag=1"), 404);
        let body = get("/ready?max_lag=0.5", &status).body;
        assert!(body.contains("at most 900 ms old"), "{body}");
    }
}
