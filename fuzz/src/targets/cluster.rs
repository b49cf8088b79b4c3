//! What nodes say to each other, and the state that all of them keep.

use std::fmt::Debug;

use bytes::Bytes;
use dromon_node::Position;
use dromon_node::chain::Compared;
use dromon_node::cluster::ClusterState;
use dromon_node::messages::{
    Answer, CheckpointParts, Control, Join, LeaveReason, Need, Progress, Request, decode, encode,
    kind,
};
use dromon_order::{Committed, CommittedBody, Leadership, Part, RawMessage};
use dromon_writeset::{Flags, Header, KeyCollector, KeyType, Uuid};
use serde::{Deserialize, Serialize};

use super::Target;
use crate::bytes_in::Input;

/// Control messages, requests, answers, reports.
pub const NODE_MESSAGE: Target = Target {
    name: "node_message",
    run: |data| {
        same::<Control>(data);
        same::<Request>(data);
        same::<Answer>(data);
        same::<Progress>(data);
        same::<CheckpointParts>(data);
    },
    seeds: || {
        let mut seeds: Vec<Vec<u8>> = controls().iter().map(|c| encode(c).to_vec()).collect();
        seeds.push(encode(&Request::Join(join(1, Need::Copy))).to_vec());
        seeds.push(
            encode(&Answer::Refused(
                "this node leads but has no state to give".into(),
            ))
            .to_vec(),
        );
        seeds.push(
            encode(&Answer::State {
                need: Need::Log,
                compared: Compared::Differs { ours: 1, yours: 2 },
                checkpoint: CheckpointParts {
                    log_id: (1, 2, 3),
                    members_id: None,
                    configs: vec![vec![1, 2], vec![3]],
                    addrs: vec![(1, "a:1".into())],
                    sequencer: vec![1; 20],
                    node: vec![2; 20],
                },
                term: 5,
            })
            .to_vec(),
        );
        seeds.push(
            encode(&Progress {
                uuid: Uuid([1; 16]),
                ordered: 5,
                released: 4,
                safe: 3,
                needs_log: 2,
                queue: 1,
                ready: 4,
                stop: false,
                number: 9,
                digest: (1, 2),
                durable: true,
            })
            .to_vec(),
        );
        seeds
    },
};

fn same<T: Serialize + for<'a> Deserialize<'a> + PartialEq + Debug>(data: &[u8]) {
    if let Some(message) = decode::<T>(data) {
        assert_eq!(decode::<T>(&encode(&message)), Some(message));
    }
}

fn uuid(n: u8) -> Uuid {
    Uuid([n; 16])
}

fn join(n: u8, need: Need) -> Join {
    Join {
        uuid: uuid(n),
        origin: uuid(n),
        name: format!("n{n}"),
        incoming: String::new(),
        addr: format!("10.0.0.{n}:4567"),
        raft_id: n.into(),
        segment: 0,
        weight: 1,
        vote_policy: 0,
        witness: false,
        stateless: false,
        position: Position {
            history: uuid(0xaa),
            seqno: 10,
        },
        need,
        log_start: 0,
    }
}

/// One of each kind, in an order that makes sense.
fn controls() -> Vec<Control> {
    vec![
        Control::Join(join(1, Need::Log)),
        Control::Join(join(2, Need::Copy)),
        Control::StateRequest {
            joiner: uuid(2),
            donors: "n1,".into(),
            request: b"rsync".to_vec(),
        },
        Control::StateSent {
            donor: uuid(1),
            joiner: uuid(2),
            position: Position {
                history: uuid(0xaa),
                seqno: 12,
            },
            error: 0,
            gaps: vec![dromon_node::lacking::Gap {
                first: 5,
                from: 6,
                until: 11,
            }],
        },
        Control::Joined { uuid: uuid(2) },
        Control::BypassRequest {
            joiner: uuid(2),
            donors: "n1".into(),
            request: b"rsync".to_vec(),
            position: Position {
                history: uuid(0xaa),
                seqno: 12,
            },
        },
        Control::Synced { uuid: uuid(2) },
        Control::Desync { uuid: uuid(1) },
        Control::Resync { uuid: uuid(1) },
        Control::Vote {
            uuid: uuid(2),
            seqno: 11,
            digest: 99,
        },
        Control::Cut { seqno: 11 },
        Control::Weight {
            uuid: uuid(1),
            weight: 3,
        },
        Control::Rejoin {
            uuid: uuid(2),
            released: 3,
        },
        Control::Evict {
            uuid: uuid(2),
            by: Leadership { term: 1, leader: 1 },
        },
        Control::Leave {
            uuid: uuid(1),
            reason: LeaveReason::Graceful,
        },
    ]
}

fn genesis() -> ClusterState {
    ClusterState::genesis(Position {
        history: uuid(0xaa),
        seqno: 10,
    })
}

/// Reads a state back and compares.
fn survives(state: &ClusterState) {
    let (sequencer, node) = state.encode();
    let back = ClusterState::decode(&sequencer, &node).expect("what was encoded can be read");
    assert_eq!(back.digest(), state.digest());
    assert_eq!(back.encode(), (sequencer, node));
}

/// The node's part of a checkpoint.
pub const CLUSTER_STATE: Target = Target {
    name: "cluster_state",
    run: |data| {
        let _ = ClusterState::peek_position(data);
        let Ok(mut state) = ClusterState::decode(&[], data) else {
            return;
        };
        survives(&state);
        // It goes on working.
        order(&mut state, 1, &Control::Join(join(7, Need::Log)));
        let _ = (state.view(), state.desired(), state.digest());
    },
    seeds: || {
        let mut state = genesis();
        let mut seeds = vec![state.encode().1.to_vec()];
        for (n, control) in (1..).zip(&controls()) {
            order(&mut state, n, control);
            seeds.push(state.encode().1.to_vec());
        }
        seeds
    },
};

/// Delivers the `n`th control message of the first origin.
fn order(state: &mut ClusterState, n: u64, control: &Control) {
    let message = RawMessage {
        origin: uuid(1),
        oseq: n,
        kind: kind::CONTROL,
        tag: 0,
        part: Part::Whole,
        body: encode(control),
    };
    deliver(state, n, message);
}

fn deliver(state: &mut ClusterState, index: u64, message: RawMessage) {
    let _ = state.deliver(&Committed {
        index,
        term: 1,
        leader: 1,
        body: CommittedBody::Message(message),
    });
}

/// A stream of entries through the state: control messages and write sets of four origins,
/// whole and in pieces, in order and not. Each is: what, origin, length, content.
pub const DELIVERY: Target = Target {
    name: "delivery",
    run: |data| {
        let mut state = genesis();
        let mut numbers = [0u64; 4];
        let mut input = Input::new(data);
        let mut index = 0;
        while !input.is_empty() && index < 400 {
            index += 1;
            let (what, who) = (input.u8(), input.u8() % 4);
            let len = usize::from(input.u8());
            let body = input.take(len);
            let number = &mut numbers[usize::from(who)];
            if what & 0x80 == 0 {
                *number += 1;
            }
            let part = match what & 0x40 {
                0 => Part::Whole,
                _ => Part::Piece {
                    stream: u64::from(what & 1),
                    i: u32::from(what >> 1 & 3),
                    n: 4,
                },
            };
            let (kind, body) = match what & 0x3f {
                0..0x20 => (kind::CONTROL, Bytes::copy_from_slice(body)),
                0x20..0x3e => (kind::WRITE_SET, write_set(body, state.position().seqno)),
                0x3e => (kind::WRITE_SET, Bytes::copy_from_slice(body)),
                other => (other, Bytes::new()),
            };
            let message = RawMessage {
                origin: uuid(who + 1),
                oseq: *number,
                kind,
                tag: 0,
                part,
                body,
            };
            deliver(&mut state, index, message);
        }
        survives(&state);
        let _ = (state.view(), state.desired(), state.open_bytes());
    },
    seeds: || {
        let mut all = Vec::new();
        let mut put = |what: u8, who: u8, body: &[u8]| {
            all.extend_from_slice(&[what, who, body.len() as u8]);
            all.extend_from_slice(body);
        };
        for control in &controls()[..6] {
            put(0, 0, &encode(control));
            put(0x20, 0, &[2, 9, 1]);
            put(0x21, 1, &[3, 9, 1]);
        }
        for i in 0..4 {
            put(0x60 | i << 1, 0, b"a part");
        }
        for control in &controls()[6..] {
            put(0, 0, &encode(control));
        }
        let (some, whole) = (all[..all.len() / 2].to_vec(), all);
        vec![some, whole]
    },
};

/// A write set with keys from these bytes, that has seen a little less than `seqno`.
fn write_set(bytes: &[u8], seqno: i64) -> Bytes {
    let mut input = Input::new(bytes);
    let mut keys = KeyCollector::new();
    let header = Header {
        flags: match input.u8() % 6 {
            0 => Flags::TRX_START,
            1 => Flags::TRX_END,
            2 => Flags::TRX_START | Flags::TRX_END | Flags::ISOLATION,
            3 => Flags::ROLLBACK,
            _ => Flags::TRX_START | Flags::TRX_END,
        },
        source: uuid(input.u8()),
        trx_id: 5,
        conn_id: 6,
        last_seen: seqno.wrapping_sub(i64::from(input.u8()) - 2),
        prev_fragment: -1,
        chunk: 0,
    };
    while !input.is_empty() {
        let kind = KeyType::ALL[usize::from(input.u8() % 4)];
        let row = input.take(1);
        keys.add(&[b"d", b"t", row], kind).expect("a key");
    }
    dromon_writeset::encode(&header, &keys, b"data")
}
