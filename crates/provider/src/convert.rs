//! The server's types and the node's: the same things under two names.

use dromon_node::options::{Parameter as NodeParameter, ParameterValue as NodeValue};
use dromon_node::status::{StatusValue, StatusVar};
use dromon_node::{Meta, Outcome, Position, View as NodeView};
use dromon_writeset::{KeyType as NodeKeyType, Uuid as NodeUuid};
use dromon_wsrep::{
    Gtid, KeyType, MemberInfo, Parameter, ParameterValue, StatsValue, StatsVar, Status, Stid,
    TrxMeta, Uuid, View, ViewStatus,
};

pub(crate) fn status(outcome: Outcome) -> Status {
    match outcome {
        Outcome::Ok => Status::Ok,
        Outcome::TrxMissing => Status::TrxMissing,
        Outcome::TrxFail => Status::TrxFail,
        Outcome::BfAbort => Status::BfAbort,
        Outcome::SizeExceeded => Status::SizeExceeded,
        Outcome::ConnFail => Status::ConnFail,
        Outcome::NodeFail => Status::NodeFail,
        Outcome::Fatal => Status::Fatal,
        Outcome::NotImplemented => Status::NotImplemented,
        Outcome::NotAllowed => Status::NotAllowed,
    }
}

pub(crate) fn to_gtid(p: Position) -> Gtid {
    if p.history.is_nil() {
        return Gtid::UNDEFINED;
    }
    Gtid {
        uuid: Uuid(p.history.0),
        seqno: p.seqno,
    }
}

pub(crate) fn from_gtid(g: Gtid) -> Position {
    Position {
        history: NodeUuid(g.uuid.0),
        seqno: g.seqno,
    }
}

pub(crate) fn to_meta(m: &TrxMeta) -> Meta {
    Meta {
        position: from_gtid(m.gtid),
        source: NodeUuid(m.stid.node.0),
        trx_id: m.stid.trx,
        conn_id: m.stid.conn,
        depends_on: m.depends_on,
    }
}

pub(crate) fn write_meta(meta: &mut TrxMeta, m: &Meta) {
    // Undefined means both parts: the server tests uuid and seqno.
    meta.gtid = if m.position.is_defined() {
        to_gtid(m.position)
    } else {
        Gtid::UNDEFINED
    };
    meta.stid = Stid {
        node: Uuid(m.source.0),
        trx: m.trx_id,
        conn: m.conn_id,
    };
    meta.depends_on = m.depends_on;
}

/// What `work` makes of `meta`, also of a part of it that a panic ends: whoever called must know whether it was
/// ordered by then.
pub(crate) fn filling<T>(meta: &mut TrxMeta, work: impl FnOnce(&mut Meta) -> T) -> T {
    struct Filling<'a>(&'a mut TrxMeta, Meta);
    impl Drop for Filling<'_> {
        fn drop(&mut self) {
            write_meta(self.0, &self.1);
        }
    }
    let m = to_meta(meta);
    let mut filling = Filling(meta, m);
    work(&mut filling.1)
}

pub(crate) fn key_type(kind: KeyType) -> NodeKeyType {
    match kind {
        KeyType::Shared => NodeKeyType::Shared,
        KeyType::Reference => NodeKeyType::Reference,
        KeyType::Update => NodeKeyType::Update,
        KeyType::Exclusive => NodeKeyType::Exclusive,
    }
}

pub(crate) fn to_view(v: &NodeView, capabilities: u32, proto_ver: i32) -> View {
    View {
        state_id: to_gtid(v.position),
        view: v.number,
        status: if v.primary {
            ViewStatus::Primary
        } else {
            ViewStatus::NonPrimary
        },
        capabilities,
        own_index: v.own,
        members: v
            .members
            .iter()
            .map(|m| MemberInfo {
                id: Uuid(m.uuid.0),
                name: m.name.clone(),
                incoming: m.incoming.clone(),
            })
            .collect(),
        proto_ver,
    }
}

pub(crate) fn stats_var(v: StatusVar) -> StatsVar {
    let value = match v.value {
        StatusValue::Str(s) => StatsValue::String(s.into()),
        StatusValue::Int(n) => StatsValue::Int(n),
        StatusValue::Double(d) => StatsValue::Double(d),
    };
    StatsVar {
        name: v.name,
        value,
    }
}

pub(crate) fn parameter(p: NodeParameter) -> Parameter {
    let value = match p.value {
        NodeValue::Bool(b) => ParameterValue::Bool(b),
        NodeValue::Int(n) => ParameterValue::Integer(n),
        NodeValue::Double(d) => ParameterValue::Double(d),
        NodeValue::Str(s) => ParameterValue::String(s),
    };
    let mut parameter = Parameter::new(p.name, value);
    parameter.read_only = p.read_only;
    parameter.deprecated = p.deprecated;
    parameter
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_does_not_hide_that_it_was_ordered() {
        let at = Position {
            history: NodeUuid([7; 16]),
            seqno: 12,
        };
        let mut meta = TrxMeta::default();
        let answer = filling(&mut meta, |m| {
            m.position = at;
            3
        });
        assert_eq!((answer, from_gtid(meta.gtid)), (3, at));
        let mut meta = TrxMeta::default();
        let panics = catch_unwind(AssertUnwindSafe(|| {
            filling(&mut meta, |m| {
                m.position = at;
                panic!("a mistake behind the order");
            })
        }));
        assert!(panics.is_err());
        assert_eq!(from_gtid(meta.gtid), at);
    }
}
