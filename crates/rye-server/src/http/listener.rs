//! A listener that holds only so many connections at once. Where there are too many, the one that has waited longest
//! without a valid token is closed: connections that say nothing never keep a client out.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Connections at once.
const MAX_CONNECTIONS: usize = 512;
/// How long a connection may take until its first request with a valid token has come.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The connections that are open, the oldest first.
type Connections = Arc<Mutex<Vec<Arc<Connection>>>>;

/// What is known of a connection.
pub(crate) struct Connection {
    /// A request with a valid token has come.
    is_authenticated: AtomicBool,
    /// Cancelled when it has to close.
    closed: CancellationToken,
}

impl Connection {
    fn new() -> Self {
        Self { is_authenticated: AtomicBool::new(false), closed: CancellationToken::new() }
    }

    fn is_open(&self) -> bool {
        !self.closed.is_cancelled()
    }

    fn is_authenticated(&self) -> bool {
        self.is_authenticated.load(Ordering::SeqCst)
    }
}

/// A connection as its requests know it.
#[derive(Clone)]
pub(crate) struct ConnectionHandle(Arc<Connection>);

impl ConnectionHandle {
    /// A request with a valid token has come.
    pub(crate) fn authenticate(&self) {
        self.0.is_authenticated.store(true, Ordering::SeqCst);
    }
}

impl Connected<IncomingStream<'_, BoundedListener>> for ConnectionHandle {
    fn connect_info(stream: IncomingStream<'_, BoundedListener>) -> Self {
        Self(Arc::clone(&stream.io().connection))
    }
}

pub(crate) struct BoundedListener {
    listener: TcpListener,
    connections: Connections,
    /// Notified when a connection has ended.
    on_end: Arc<Notify>,
    max_connections: usize,
}

impl BoundedListener {
    pub(crate) fn new(listener: TcpListener) -> Self {
        Self::with_capacity(listener, MAX_CONNECTIONS)
    }

    fn with_capacity(listener: TcpListener, max_connections: usize) -> Self {
        Self { listener, connections: Connections::default(), on_end: Arc::default(), max_connections }
    }

    /// Makes room for one more connection; `None` if all are authenticated clients'.
    fn admit(&self) -> Option<Arc<Connection>> {
        let mut connections = lock(&self.connections);
        let open = || connections.iter().filter(|connection| connection.is_open());
        if open().count() >= self.max_connections {
            open().find(|connection| !connection.is_authenticated())?.closed.cancel();
        }
        let connection = Arc::new(Connection::new());
        connections.push(Arc::clone(&connection));
        Some(connection)
    }

    async fn wait_for_slot(&self) -> Arc<Connection> {
        loop {
            let ended = self.on_end.notified();
            match self.admit() {
                Some(connection) => return connection,
                None => ended.await,
            }
        }
    }
}

impl Listener for BoundedListener {
    type Io = BoundedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (BoundedStream, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        // In a burst of connections, those that were closed end first.
        tokio::task::yield_now().await;
        let connection = self.wait_for_slot().await;
        // Small messages go back and forth; without it they wait for each other.
        let _ = stream.set_nodelay(true);
        tokio::spawn(close_if_unauthenticated(Arc::clone(&connection)));
        let closing = Box::pin(connection.closed.clone().cancelled_owned());
        let (connections, on_end) = (Arc::clone(&self.connections), Arc::clone(&self.on_end));
        (BoundedStream { stream, connection, connections, on_end, closing }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Closes a connection whose first valid request does not come in time.
async fn close_if_unauthenticated(connection: Arc<Connection>) {
    tokio::select! {
        () = tokio::time::sleep(FIRST_REQUEST_TIMEOUT) => {
            if !connection.is_authenticated() {
                connection.closed.cancel();
            }
        }
        () = connection.closed.cancelled() => {}
    }
}

/// A connection, which ends when it has to close.
pub(crate) struct BoundedStream {
    stream: TcpStream,
    connection: Arc<Connection>,
    connections: Connections,
    on_end: Arc<Notify>,
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl BoundedStream {
    /// Fails once the connection has to close.
    fn poll_closing(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.closing.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl Drop for BoundedStream {
    fn drop(&mut self) {
        self.connection.closed.cancel();
        lock(&self.connections).retain(|known| !Arc::ptr_eq(known, &self.connection));
        self.on_end.notify_one();
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_closing(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_closing(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_closing(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A listener, and the runtime it belongs to.
    fn listener(max_connections: usize) -> (tokio::runtime::Runtime, BoundedListener) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).expect("a listener");
        (runtime, BoundedListener::with_capacity(listener, max_connections))
    }

    fn authenticate(connection: &Arc<Connection>) {
        ConnectionHandle(Arc::clone(connection)).authenticate();
    }

    #[test]
    fn oldest_unauthenticated_connection_is_closed() {
        let (_runtime, listener) = listener(3);
        let client = listener.admit().expect("room");
        authenticate(&client);
        let (second, third) = (listener.admit().expect("room"), listener.admit().expect("room"));
        let fourth = listener.admit().expect("room");
        assert!(client.is_open() && !second.is_open() && third.is_open() && fourth.is_open());
        let fifth = listener.admit().expect("room");
        assert!(client.is_open() && !third.is_open() && fourth.is_open() && fifth.is_open());
        [&fourth, &fifth].into_iter().for_each(authenticate);
        assert!(listener.admit().is_none());
        fourth.closed.cancel();
        assert!(listener.admit().is_some());
    }

    #[test]
    fn a_closed_connection_fails_its_reader() {
        let (runtime, mut listener) = listener(1);
        runtime.block_on(async {
            let address = listener.local_addr().expect("an address");
            let _first = TcpStream::connect(address).await.expect("connected");
            let (mut stream, _) = listener.accept().await;
            let _second = TcpStream::connect(address).await.expect("connected");
            let (_next, _) = listener.accept().await;
            let mut byte = [0];
            let read = tokio::io::AsyncReadExt::read(&mut stream, &mut byte).await;
            assert_eq!(read.expect_err("closed").kind(), io::ErrorKind::ConnectionAborted);
        });
    }
}
