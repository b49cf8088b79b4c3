//! Payloads that come in pieces stay in the log, if they may be applied in chunks, and are
//! read there when they are applied, as the server's node does it.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use dromon_node::cluster::Chunked;
use dromon_node::in_log::{LeftMessage, PieceLog, ReadLog};
use dromon_node::messages::kind;
use dromon_order::Order;
use dromon_order::sequencer::{PieceAt, PieceStore, StoreError, StreamKey};
use dromon_writeset::{Arrival, Arrived, Payload};

use super::Session;

/// What has come of each.
struct Places {
    log: PieceLog,
    all: HashMap<StreamKey, (Place, Arrival)>,
}

enum Place {
    Log(Box<LeftMessage>),
    Memory(Vec<u8>),
}

impl Session {
    /// Where this session collects pieces.
    pub(super) fn piece_store(self: &Arc<Self>) -> Box<dyn PieceStore> {
        let session = Arc::downgrade(self);
        let read: ReadLog = Arc::new(move |from, to| {
            let session = session.upgrade().ok_or("the session is over")?;
            let engine = session.engine().ok_or("there is no engine")?;
            let read = engine.read_log(from, to, 16 << 10);
            read.map_err(|e| e.to_string())
        });
        let log = PieceLog {
            read,
            left: self.left.clone(),
        };
        Box::new(Places {
            log,
            all: HashMap::new(),
        })
    }

    /// All of a large payload. None: it cannot be read, which is told.
    pub(super) fn payload_of(&self, chunked: &Chunked) -> Option<Bytes> {
        match chunked.write_set.payload() {
            Payload::Here(payload) => Some(payload.clone()),
            Payload::Elsewhere(kept) => self.sound(chunked, kept.read(0..kept.len())),
        }
    }

    /// Chunk `n` of it. None likewise.
    pub(super) fn chunk_of(&self, chunked: &Chunked, n: usize) -> Option<Bytes> {
        match chunked.write_set.payload() {
            Payload::Here(payload) => chunked.plan.chunk(payload, n),
            Payload::Elsewhere(kept) => self.sound(chunked, chunked.plan.read_chunk(kept, n)),
        }
    }

    fn sound(&self, chunked: &Chunked, read: Result<Bytes, String>) -> Option<Bytes> {
        if let Err(why) = &read {
            let what = format_args!("seqno {} cannot be read again: {why}", chunked.id);
            self.shared.unsound(self.host.slot, what);
        }
        read.ok()
    }
}

impl PieceStore for Places {
    fn append(
        &mut self,
        key: StreamKey,
        at: Option<PieceAt>,
        piece: &[u8],
    ) -> Result<(), StoreError> {
        let log = &self.log;
        let (place, arrival) = self.all.entry(key).or_insert_with(|| {
            let mut arrival = Arrival::new();
            arrival.take(piece);
            let at = at.filter(|at| at.kind == kind::WRITE_SET && arrival.may_be_cut());
            let place = match (at, arrival.front_len()) {
                (Some(at), Some(front)) => {
                    Place::Log(Box::new(LeftMessage::begin(key, log, at, front)))
                }
                _ => Place::Memory(Vec::new()),
            };
            // It takes this piece once more below.
            (place, Arrival::new())
        });
        arrival.take(piece);
        match (place, at) {
            (Place::Log(left), Some(at)) => left.push(at, piece),
            (Place::Memory(bytes), _) => bytes.extend_from_slice(piece),
            (Place::Log(_), None) => {
                return Err(StoreError {
                    key,
                    doing: "written",
                    why: "a piece is not known to be in the log".into(),
                });
            }
        }
        Ok(())
    }

    fn read(&self, key: StreamKey) -> Result<Bytes, StoreError> {
        let read = match self.all.get(&key) {
            Some((Place::Log(left), _)) => left.read_all(),
            Some((Place::Memory(bytes), _)) => Ok(Bytes::copy_from_slice(bytes)),
            None => Err("nothing has come".into()),
        };
        read.map_err(|why| StoreError {
            key,
            doing: "read",
            why,
        })
    }

    fn finish(&mut self, key: StreamKey) -> Result<(Bytes, Option<Arrived>), StoreError> {
        match self.all.remove(&key) {
            Some((Place::Log(left), arrival)) => {
                let (front, rest) = left.finish();
                let arrived = arrival.finish().zip(rest);
                Ok((front, arrived.map(|(found, rest)| found.left(rest))))
            }
            Some((Place::Memory(bytes), arrival)) => Ok((bytes.into(), arrival.finish())),
            None => Ok((self.read(key)?, None)),
        }
    }

    fn discard(&mut self, key: StreamKey) {
        self.all.remove(&key);
    }
}
