//! Looks at the cluster from outside, for the oracle of standing still.

use std::sync::atomic::Ordering;

use super::{Machine, World};
use crate::node::Picture;
use crate::oracle::Oracle;
use crate::shared::lock;
use crate::standstill::{Health, LIMIT};

impl World {
    pub(super) fn picture_of(&self, slot: usize) -> Option<Picture> {
        let r = self.machines[slot].running.as_ref()?;
        let _inside = r.runtime.enter();
        r.process.picture()
    }

    /// Whether a majority is up and gets nothing done.
    pub(super) fn watch_standstill(&mut self) {
        if !self.shared.clients_on.load(Ordering::Relaxed) {
            return;
        }
        let settings = &self.shared.settings;
        let health: Vec<Health> = self
            .machines
            .iter()
            .map(|m| m.health(!settings.is_witness(m.host.slot)))
            .collect();
        let acked = self.shared.oracles().acked_count();
        let now_us = self.shared.now_us();
        let electorate = self.shared.electorate().clone();
        let net = &self.shared.net;
        let linked = |a, b| net.is_clear(a, b);
        let stands = self
            .standstill
            .look(now_us, acked, &electorate, &health, linked);
        let Some(slots) = stands else { return };
        let mut what = format!(
            "for more than {LIMIT:?} nodes {slots:?} were up, healthy and connected, are a majority \
             of {electorate:x?}, and nothing was acknowledged"
        );
        for slot in 0..self.machines.len() {
            let text = self.picture_of(slot).map(|p| p.text);
            what += &format!(
                "\nn{slot} {}",
                text.unwrap_or_else(|| "has no session".into())
            );
        }
        self.shared.oracles().fire(Oracle::Standstill, what);
    }
}

impl Machine {
    fn health(&self, data: bool) -> Health {
        let on_time = self.paused_until_us.is_none() && self.jump.is_zero() && self.lag.is_zero();
        let disk = self.slow_until_us == (0, 0)
            && self.hung_until_us == 0
            && self.full_until_us == 0
            && !self.host.disk_may_fail()
            && !lock(&self.host.truth).failed();
        Health {
            id: self.host.raft_id.load(Ordering::Relaxed),
            well: self.running.is_some() && on_time && disk && !self.leaves,
            data: data && self.host.database().now.position.is_defined(),
        }
    }
}
