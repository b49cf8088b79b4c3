//! Writers that count up rows, and the account of what was acknowledged to them, row by row.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::ensure;

use super::set_up;
use crate::check;
use crate::harness::Case;
use crate::load::{RETRY, Session, Storm, Writer};

const ROWS: u64 = 500;
const CLIENTS: usize = 4;
/// Rows named in a complaint.
const NAMED: usize = 10;

/// How often each row's increment was acknowledged.
#[derive(Clone, Default)]
pub struct Acknowledged(Arc<Mutex<BTreeMap<u64, u64>>>);

impl Acknowledged {
    /// One more of this row.
    pub fn one(&self, id: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *all.entry(id).or_default() += 1;
    }

    /// Each node has all of `of` rows, each with what was acknowledged, and no more. `sql` answers ids and
    /// counts. Answers the sum.
    pub fn are_there(&self, case: &Case, sql: &str, of: u64) -> anyhow::Result<u64> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for node in case.cluster().nodes() {
            let rows = Session::open(node, &case.db, 0)?.rows(sql)?;
            compare(&all, &rows, of, &node.name())?;
        }
        Ok(all.values().sum())
    }
}

/// The same through all storms of a scenario.
#[derive(Default)]
pub struct Increments {
    acknowledged: Acknowledged,
}

impl Increments {
    /// Makes the table, with all counters at 0.
    pub fn set_up(case: &Case) -> anyhow::Result<Self> {
        let rows = format!("INSERT INTO t SELECT seq, 0 FROM seq_1_to_{ROWS}");
        let table = "CREATE TABLE t (id INT PRIMARY KEY, v BIGINT NOT NULL)";
        set_up(case, &[table, &rows])?;
        Ok(Self::default())
    }

    /// Starts clients on two nodes.
    pub fn on(&self, case: &Case, nodes: [usize; 2]) -> anyhow::Result<Storm> {
        let writers = (0..CLIENTS)
            .map(|client| {
                let acknowledged = self.acknowledged.clone();
                Writer::new(&case.node(nodes[client % 2]), move |s| {
                    let id = s.rng.below(ROWS) + 1;
                    s.exec(&format!("UPDATE t SET v = v + 1 WHERE id = {id}"))?;
                    // Each row is there: also one that was told of no row has been promised one.
                    acknowledged.one(id);
                    Ok(())
                })
            })
            .collect();
        let storm = Storm::start(&case.db, writers, RETRY)?;
        storm.blow(Duration::from_millis(300));
        Ok(storm)
    }

    /// Waits until the nodes have come to rest; then each has what was acknowledged, and no more. The
    /// clients of a storm know of each step whether it was made. Answers the sum.
    pub fn are_there(&self, case: &Case) -> anyhow::Result<u64> {
        check::settled(&case.cluster(), &case.db)?;
        (self.acknowledged).are_there(case, "SELECT id, v FROM t", ROWS)
    }
}

fn compare(
    all: &BTreeMap<u64, u64>,
    rows: &[(u64, u64)],
    of: u64,
    node: &str,
) -> anyhow::Result<()> {
    ensure!(
        rows.len() as u64 == of,
        "{node} has {} rows of {of}",
        rows.len()
    );
    let told = |id: &u64| all.get(id).copied().unwrap_or(0);
    let wrong: Vec<_> = (rows.iter())
        .filter(|(id, v)| *v != told(id))
        .map(|(id, v)| (*id, *v, told(id)))
        .collect();
    ensure!(
        wrong.is_empty(),
        "{node}: {} of {of} counters are not what was acknowledged: id, value, acknowledged: {:?}",
        wrong.len(),
        &wrong[..wrong.len().min(NAMED)]
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_counts_for_itself() {
        let all = BTreeMap::from([(1, 3), (2, 1)]);
        let mut rows: Vec<(u64, u64)> = (1..=ROWS).map(|id| (id, 0)).collect();
        (rows[0].1, rows[1].1) = (3, 1);
        assert!(compare(&all, &rows, ROWS, "db1").is_ok());
        // Lost in one, twice in another: the sum is the same.
        (rows[0].1, rows[1].1) = (2, 2);
        let error = compare(&all, &rows, ROWS, "db1").expect_err("two are wrong");
        assert!(error.to_string().ends_with("[(1, 2, 3), (2, 2, 1)]"));
        assert!(
            compare(&all, &rows[1..], ROWS, "db1").is_err(),
            "one is gone"
        );
    }
}
