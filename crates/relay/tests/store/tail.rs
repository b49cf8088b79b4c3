//! What stays in memory of the newest that was stored.

use dromon_binlog::GroupName;
use dromon_log::SimDevice;
use dromon_relay::store::{Part, StoreError, StoreOptions};

use crate::CRC;
use crate::common::{self, beginning, format_event, groups, gtid, read, transaction};

/// As a primary's stream is read: what has come ends amid a group as a rule.
#[test]
fn a_flush_amid_a_group_keeps_what_is_in_memory() -> Result<(), StoreError> {
    let device = SimDevice::new(1);
    let options = StoreOptions {
        tail_max: 1 << 20,
        ..StoreOptions::default()
    };
    let mut store = common::open(&device, options)?;
    store.begin_file(&format_event(CRC))?;
    let mut held = store.view().tail_bytes();
    for n in 1..5 {
        let mut group = transaction(gtid(0, 1, n), 3, 100, CRC)
            .into_iter()
            .enumerate();
        let begun: Vec<_> = group.by_ref().take(2).collect();
        for (i, raw) in begun {
            store.append(raw, if i == 0 { Part::Begin } else { Part::Within })?;
        }
        store.flush()?;
        let rest: Vec<_> = group.collect();
        let last = rest.len() - 1;
        for (i, (_, raw)) in rest.into_iter().enumerate() {
            store.append(
                raw,
                if i == last {
                    Part::End(GroupName::MariaDb(gtid(0, 1, n)), 1000)
                } else {
                    Part::Within
                },
            )?;
        }
        store.flush()?;
        let now = store.view().tail_bytes();
        assert!(now > held, "{now} bytes behind {held}");
        held = now;
    }
    let view = store.view();
    assert_eq!(groups(&read(&view, beginning(&view))?).len(), 4);
    Ok(())
}
