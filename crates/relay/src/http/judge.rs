//! Whether readers may be sent to a replica.

use super::status::ReplicaStatus;

/// The verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// They may.
    pub good: bool,
    /// How far behind the primary it is, as far as known.
    pub lag_ms: Option<u64>,
    /// In words.
    pub why: String,
}

/// Judges by name. `relay_lag_ms`: of the relay itself behind its primary. `applied`: age of the
/// oldest group that the replica has not applied, if it was asked, or why it cannot be asked.
pub fn judge(
    name: &str,
    found: &[ReplicaStatus],
    max_lag_ms: u64,
    relay_lag_ms: Option<u64>,
    applied: Option<Result<u64, String>>,
) -> Judged {
    let bad = |lag_ms, why: String| Judged {
        good: false,
        lag_ms,
        why,
    };
    let replica = match found {
        [] => return bad(None, format!("No replica {name} is known here.")),
        [one] => one,
        _ => {
            let why = format!(
                "{} replicas are called {name}: ask by server id.",
                found.len()
            );
            return bad(None, why);
        }
    };
    let Some(sent) = replica.sent_lag_ms.filter(|_| replica.connected) else {
        return bad(
            None,
            format!("Replica {name} is not connected to this relay."),
        );
    };
    let Some(relay) = relay_lag_ms else {
        let why = "Nothing has come from the primary yet: the lag is not known.".to_owned();
        return bad(None, why);
    };
    let (behind, what) = match applied {
        None => (sent, "was not sent"),
        Some(Ok(applied)) => (applied, "has not applied"),
        Some(Err(why)) => {
            let why = format!("Replica {name} could not be asked what it has applied: {why}.");
            return bad(None, why);
        }
    };
    let lag = behind + relay;
    let why = format!(
        "The oldest transaction that replica {name} {what} is {behind} ms old; the relay is {relay} ms behind the primary."
    );
    Judged {
        good: lag <= max_lag_ms,
        lag_ms: Some(lag),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(sent: u64) -> ReplicaStatus {
        ReplicaStatus {
            server_id: 3,
            connected: true,
            sent_lag_ms: Some(sent),
            ..ReplicaStatus::default()
        }
    }

    #[test]
    fn verdicts() {
        let good = |found: &[ReplicaStatus], relay, applied| {
            let judged = judge("db", found, 1000, relay, applied);
            assert!(!judged.why.is_empty());
            (judged.good, judged.lag_ms)
        };
        assert_eq!(good(&[here(400)], Some(0), None), (true, Some(400)));
        assert_eq!(good(&[here(400)], Some(600), None), (true, Some(1000)));
        assert_eq!(good(&[here(400)], Some(601), None), (false, Some(1001)));
        // What it applied counts, if it is asked.
        assert_eq!(
            good(&[here(0)], Some(0), Some(Ok(5000))),
            (false, Some(5000))
        );
        assert_eq!(good(&[here(9000)], Some(0), Some(Ok(5))), (true, Some(5)));
        let silent = Some(Err("refused".to_owned()));
        assert_eq!(good(&[here(0)], Some(0), silent), (false, None));
        // When in doubt, no.
        assert_eq!(good(&[], Some(0), None), (false, None));
        assert_eq!(good(&[here(0), here(0)], Some(0), None), (false, None));
        assert_eq!(good(&[here(0)], None, None), (false, None));
        let away = ReplicaStatus {
            connected: false,
            ..here(0)
        };
        assert_eq!(good(&[away], Some(0), None), (false, None));
    }
}
