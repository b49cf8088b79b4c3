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
}

impl Socket {
    /// `None` if the brake has no room for it; the connection is closed then.
    pub(super) fn new(stream: TcpStream, brake: Option<Arc<dyn Brake>>) -> Option<Socket> {
        match &brake {
            Some(b) if !b.cover(stream.as_fd()) => None,
            _ => Some(Socket { stream, brake }),
        }
    }

    pub(super) fn tcp(&self) -> &TcpStream {
        &self.stream
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
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
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
