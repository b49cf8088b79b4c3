//! Large payloads that nobody is going to apply: they are only counted and summed.
//!
//! What explains a log needs header and keys of each write set, and to know whether its
//! payload is right. So it writes no files, whatever there is room for, and has no payload in memory.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use dromon_order::sequencer::{PieceAt, PieceStore, StoreError, StreamKey};
use dromon_writeset::{Arrival, Arrived, Keeper, Kept};

const COUNTED: &str = "it was only counted";

/// Half-arrived payloads, of which write sets leave header and keys behind.
#[derive(Debug, Default)]
pub(super) struct Counted(HashMap<StreamKey, Payload>);

#[derive(Debug, Default)]
struct Payload {
    arrival: Arrival,
    /// Header and keys; all, as long as it is not known to be a write set.
    front: BytesMut,
    len: u64,
}

impl Payload {
    fn take(&mut self, piece: &[u8]) {
        self.arrival.take(piece);
        self.len += piece.len() as u64;
        let wanted = self.arrival.front_len().unwrap_or(u64::MAX);
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let more = wanted.saturating_sub(self.front.len()).min(piece.len());
        self.front.extend_from_slice(&piece[..more]);
    }
}

impl PieceStore for Counted {
    fn append(
        &mut self,
        key: StreamKey,
        _: Option<PieceAt>,
        piece: &[u8],
    ) -> Result<(), StoreError> {
        self.0.entry(key).or_default().take(piece);
        Ok(())
    }

    /// Only a checkpoint asks for that, and none is written of a log that is only explained.
    fn read(&self, key: StreamKey) -> Result<Bytes, StoreError> {
        Err(StoreError {
            key,
            doing: "read",
            why: COUNTED.into(),
        })
    }

    fn finish(&mut self, key: StreamKey) -> Result<(Bytes, Option<Arrived>), StoreError> {
        let Payload {
            arrival,
            front,
            len,
        } = self.0.remove(&key).unwrap_or_default();
        let rest = len - front.len() as u64;
        let arrived = arrival
            .finish()
            .map(|a| a.left(Kept::by(Arc::new(Gone(rest)))));
        Ok((front.freeze(), arrived))
    }

    fn discard(&mut self, key: StreamKey) {
        self.0.remove(&key);
    }
}

/// What was counted of a payload, in bytes.
#[derive(Debug)]
struct Gone(u64);

impl Keeper for Gone {
    fn len(&self) -> u64 {
        self.0
    }

    fn read_to(&self, _: Range<u64>, _: &mut BytesMut) -> Result<(), String> {
        Err(COUNTED.into())
    }
}
