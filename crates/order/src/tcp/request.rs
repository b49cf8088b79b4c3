//! One question over a connection of its own, without a running engine.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, sleep_until};

use super::aside::no_thread;
use super::conn::{Deadline, FrameReader, ReadError, greet, read_message, write_message};
use super::secure::{Security, Stream, dial, prove};
use super::{ANSWER_MAX, DEFAULT_PORT, REQUEST_MAX, lock};
use crate::network::NetError;
use crate::types::RaftId;
use crate::wire::{FrameKind, Hello, HelloAnswer, Identity, Purpose};

/// An answer that flows may take this many times as long as one may take to begin. Whoever
/// answers could else hold the asker for as long as it likes.
pub(super) const WHOLE: u32 = 40;

/// Asks the node at `addr` (`host`, `host:port`, `tcp://…`) and waits for its
/// answer: connecting, greeting and the answer's beginning take `timeout` together at
/// most. An answer may be long and the way slow, so from there on only as long a silence
/// ends it, or 40 times the `timeout` for the whole.
///
/// `who` is how this node introduces itself; the cluster's name decides
/// whether it is heard. Needs a tokio runtime with I/O and time.
pub async fn request(
    addr: &str,
    who: &Identity,
    security: &Security,
    body: Bytes,
    timeout: Duration,
) -> Result<Bytes, NetError> {
    if body.len() > REQUEST_MAX {
        return Err(NetError::TooLarge {
            len: body.len(),
            limit: REQUEST_MAX,
        });
    }
    let deadline = Deadline::after(timeout);
    let whole = deadline.at() + timeout * (WHOLE - 1);
    let (stream, _, rest) = reach(addr, who, security, deadline, timeout).await?;
    let (read, mut write) = tokio::io::split(stream);
    let heard = Heard::default();
    if !rest.is_empty() {
        heard.now();
    }
    let read = Listening {
        from: read,
        heard: heard.clone(),
    };
    let talk = async {
        write_message(&mut write, FrameKind::Request, body)
            .await
            .map_err(|e| ReadError::Io(e).into_net(addr))?;
        write
            .flush()
            .await
            .map_err(|e| ReadError::Io(e).into_net(addr))?;
        let mut reader = FrameReader::new(read, rest);
        match read_message(&mut reader, FrameKind::Answer, ANSWER_MAX).await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(NetError::NoAnswer {
                addr: addr.to_owned(),
            }),
            Err(e) => Err(e.into_net(addr)),
        }
    };
    let timed_out = |what, timeout| NetError::TimedOut {
        addr: addr.to_owned(),
        what,
        timeout,
        taken: true,
    };
    tokio::select! {
        // After a pause of this process the bytes may be there already.
        biased;
        answer = talk => answer,
        what = heard.silent(deadline, timeout) => Err(timed_out(what, timeout)),
        () = sleep_until(whole) => Err(timed_out("finish its answer", timeout * WHOLE)),
    }
}

/// When bytes of the answer last came.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Option<Instant>>>);

impl Heard {
    fn now(&self) {
        *lock(&self.0) = Some(Instant::now());
    }

    /// Waits until nothing has come by the `first` deadline, or for `limit` afterwards; what did
    /// not happen then.
    async fn silent(&self, first: Deadline, limit: Duration) -> &'static str {
        loop {
            let (until, what) = match *lock(&self.0) {
                None => (first.at(), "answer"),
                Some(at) => (at + limit, "go on with its answer"),
            };
            if until <= Instant::now() {
                return what;
            }
            sleep_until(until).await;
        }
    }
}

/// Notes when bytes come.
struct Listening<R> {
    from: R,
    heard: Heard,
}

impl<R: AsyncRead + Unpin> AsyncRead for Listening<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.from).poll_read(cx, buf);
        if buf.filled().len() > before {
            this.heard.now();
        }
        read
    }
}

/// Connects and greets.
async fn reach(
    addr: &str,
    who: &Identity,
    security: &Security,
    deadline: Deadline,
    timeout: Duration,
) -> Result<(Stream, HelloAnswer, BytesMut), NetError> {
    let mut stream = dial(security, addr, DEFAULT_PORT, timeout, deadline, || deadline).await?;
    let proving = prove(security, &mut stream, addr, &who.cluster);
    deadline.bound(addr, "prove the secret", proving).await??;
    let hello = Hello::new(Purpose::Request, who.clone());
    let (answer, rest) = greet(&mut stream, addr, &hello, deadline).await?;
    Ok((stream, answer, rest))
}

/// [`request`] for callers without a runtime: blocks this thread. May also be
/// called from inside one, where it blocks just the same.
pub fn request_blocking(
    addr: &str,
    who: &Identity,
    security: &Security,
    body: Bytes,
    timeout: Duration,
) -> Result<Bytes, NetError> {
    blocking(addr, request(addr, who, security, body, timeout))
}

/// The id of the node at `addr`; 0 if it has none yet. Blocks like [`request_blocking`].
pub fn who_is_at(
    addr: &str,
    who: &Identity,
    security: &Security,
    timeout: Duration,
) -> Result<RaftId, NetError> {
    let deadline = Deadline::after(timeout);
    blocking(addr, async move {
        let (_, answer, _) = reach(addr, who, security, deadline, timeout).await?;
        Ok(answer.who.raft_id)
    })
}

pub(super) fn blocking<T: Send>(
    addr: &str,
    work: impl Future<Output = Result<T, NetError>> + Send,
) -> Result<T, NetError> {
    let failed = |why: String| NetError::NotAsked {
        addr: addr.to_owned(),
        why,
    };
    // A thread of its own: a runtime cannot be entered from inside another.
    std::thread::scope(|s| {
        let worker = std::thread::Builder::new()
            .name("dromon-request".to_owned())
            .spawn_scoped(s, || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .map_err(|e| failed(format!("no runtime could be made: {e}")))?;
                runtime.block_on(work)
            });
        match worker {
            Ok(w) => w
                .join()
                .unwrap_or_else(|_| Err(failed("the asking thread failed".to_owned()))),
            Err(e) => Err(failed(no_thread(&e))),
        }
    })
}
