//! Sockets that an emergency brake outside of this crate may cut at any moment.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Cuts this process off from the other nodes, whatever its threads do just then.
///
/// Pulling it shuts the covered sockets down and wakes nobody by itself: who uses
/// one finds its end, and whoever makes or takes a connection looks here first.
pub trait Brake: Send + Sync {
    /// Whether it is pulled: nothing may be sent, no connection made or taken.
    fn pulled(&self) -> bool;

    /// Cuts `socket` when it is pulled, and at once if it is. `false`: there is no
    /// room for another one, and the connection must not be used.
    fn cover(&self, socket: BorrowedFd<'_>) -> bool;

    /// Forgets a covered socket. Called before it is closed, as its number may
    /// belong to somebody else afterwards.
    fn release(&self, socket: BorrowedFd<'_>);
}

/// A connection under the brake, if there is one, for as long as it is open.
pub(super) struct Socket {
    stream: TcpStream,
    brake: Option<Arc<dyn Brake>>,
    /// The first bytes that came, as many as are counted: whoever takes them for TLS does not give them back.
    first: [u8; FIRST],
    heard: usize,
}

/// So many tell one protocol from another.
const FIRST: usize = 16;

impl Socket {
    /// `None` if the brake has no room for it; the connection is closed then.
    pub(super) fn new(stream: TcpStream, brake: Option<Arc<dyn Brake>>) -> Option<Socket> {
        match &brake {
            Some(b) if !b.cover(stream.as_fd()) => None,
            _ => Some(Socket {
                stream,
                brake,
                first: [0; FIRST],
                heard: 0,
            }),
        }
    }

    pub(super) fn tcp(&self) -> &TcpStream {
        &self.stream
    }

    /// The first bytes that came.
    pub(super) fn first(&self) -> &[u8] {
        &self.first[..self.heard]
    }
}

impl Drop for Socket {
    /// The stream is closed after this.
    fn drop(&mut self) {
        if let Some(brake) = &self.brake {
            brake.release(self.stream.as_fd());
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (own, before) = (self.get_mut(), buf.filled().len());
        let read = Pin::new(&mut own.stream).poll_read(cx, buf);
        if own.heard < FIRST {
            let come = &buf.filled()[before..];
            let some = come.len().min(FIRST - own.heard);
            own.first[own.heard..][..some].copy_from_slice(&come[..some]);
            own.heard += some;
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
