//! A callback channel: descriptors that a process inherits, one of them a socket to the process that started it.
//!
//! A client in the process connects by one message with a few bytes and its own socket. So many clients can connect
//! at once over one descriptor, and what they say never mixes. What is said, and whether it is accepted, is for others.

use std::fmt::Debug;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

pub use super::fork::dup_inherited_fd;

/// The most bytes a connection request carries.
pub const MAX_CONNECT_BYTES: usize = 4096;

/// What a process is given beside its streams, and what is notified when it connects.
pub trait CallbackChannel: Debug + Send + Sync {
    /// Descriptors for the process, each with the variable that will hold its number. At most [`MAX_INHERITED_FDS`].
    fn inherited_fds(&self) -> Vec<(&'static str, BorrowedFd<'_>)>;

    /// Readable once a client connects.
    fn listener_fd(&self) -> BorrowedFd<'_>;

    /// A client has connected. Called once, and must not block: from here on the channel watches its listener itself.
    fn on_connect(&self);
}

/// How many descriptors a callback channel can hand over.
pub const MAX_INHERITED_FDS: usize = 2;

/// The two ends of a channel: clients use the second to connect to the first.
///
/// # Errors
/// When there are no descriptors left.
pub fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    unix_socket_pair(SocketType::SEQPACKET)
}

fn unix_socket_pair(kind: SocketType) -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}

/// Bytes in sealed memory, which can no longer be changed.
///
/// # Errors
/// When there is no descriptor or memory left.
pub fn seal_bytes(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::write(&memory, rest)?;
        rest = &rest[written..];
    }
    rustix::fs::seek(&memory, rustix::fs::SeekFrom::Start(0))?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&memory, seals)?;
    Ok(memory)
}

/// Reads what [`seal_bytes`] wrote, at most `max` bytes. The descriptor's offset, which other holders share, is not moved.
///
/// # Errors
/// When it cannot be read, or is longer.
pub fn read_sealed(memory: impl AsFd, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; max + 1];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::pread(&memory, &mut bytes[filled..], filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    if filled > max {
        return Err(io::Error::other("it is too long"));
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Connects with these bytes and returns the socket of the connection.
///
/// # Errors
/// When the listener is closed, or there are too many bytes.
pub fn connect(channel: impl AsFd, bytes: &[u8]) -> io::Result<OwnedFd> {
    if bytes.is_empty() || bytes.len() > MAX_CONNECT_BYTES {
        return Err(io::Error::other("a connection needs at least one byte"));
    }
    let (own, theirs) = unix_socket_pair(SocketType::STREAM)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let passed = [theirs.as_fd()];
    if !control.push(SendAncillaryMessage::ScmRights(&passed)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    rustix::net::sendmsg(&channel, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(own)
}

/// Accepts the next connection: its bytes and its socket. `None` when no client is left. One that is truncated, or
/// brings no socket, is an error, and the next can be taken all the same.
///
/// # Errors
/// When what came is not a connection request, or nothing is there to be taken without waiting.
pub fn accept(listener: impl AsFd) -> io::Result<Option<(Vec<u8>, OwnedFd)>> {
    let mut bytes = vec![0; MAX_CONNECT_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = rustix::net::recvmsg(&listener, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    if received.bytes == 0 && descriptors.is_empty() {
        return Ok(None);
    }
    let is_cut = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    let socket = descriptors.pop().filter(|_| !is_cut && descriptors.is_empty());
    let socket = socket.filter(is_unix_stream).ok_or(io::ErrorKind::InvalidData)?;
    bytes.truncate(received.bytes);
    Ok(Some((bytes, socket)))
}

/// Whether it is one end of a local stream: nothing that could be opened, listened to or waited for otherwise.
fn is_unix_stream(socket: &OwnedFd) -> bool {
    let is_socket =
        rustix::fs::fstat(socket).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
    is_socket
        && rustix::net::sockopt::socket_domain(socket).is_ok_and(|domain| domain == AddressFamily::UNIX)
        && rustix::net::sockopt::socket_type(socket).is_ok_and(|kind| kind == SocketType::STREAM)
        && rustix::net::sockopt::socket_acceptconn(socket).is_ok_and(|listens| !listens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_carries_bytes_and_a_socket() {
        let (listener, channel) = socket_pair().expect("a channel");
        let one = connect(&channel, b"one").expect("a request");
        let two = connect(&channel, b"two").expect("a request");
        for (own, word) in [(one, b"one"), (two, b"two")] {
            let (bytes, theirs) = accept(&listener).expect("a request").expect("a client");
            assert_eq!(bytes, word);
            rustix::io::write(&theirs, b"hello").expect("said");
            let mut buffer = [0; 8];
            assert_eq!(rustix::io::read(&own, &mut buffer).expect("heard"), 5);
        }
        assert_eq!(accept(&listener).expect_err("nothing").kind(), io::ErrorKind::WouldBlock);
        drop(channel);
        assert!(accept(&listener).expect("the end").is_none());
    }

    #[test]
    fn connect_without_local_stream_is_refused() {
        let (listener, channel) = socket_pair().expect("a channel");
        let send = |bytes: &[u8], descriptors: &[BorrowedFd<'_>]| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
            rustix::net::sendmsg(&channel, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
                .expect("sent");
        };
        let file = std::fs::File::open("/dev/null").expect("a file");
        let (packets, _other) = socket_pair().expect("packets");
        let (stream, _end) = unix_socket_pair(SocketType::STREAM).expect("a stream");
        send(b"x", &[]);
        send(b"x", &[file.as_fd()]);
        send(b"x", &[packets.as_fd()]);
        send(b"x", &[stream.as_fd(), stream.as_fd(), stream.as_fd()]);
        send(&[b'x'; MAX_CONNECT_BYTES + 1], &[stream.as_fd()]);
        for _ in 0..5 {
            assert_eq!(accept(&listener).expect_err("refused").kind(), io::ErrorKind::InvalidData);
        }
        send(b"x", &[stream.as_fd()]);
        assert!(accept(&listener).expect("a request").is_some());
    }

    #[test]
    fn sealed_bytes_are_readable_and_immutable() {
        let memory = seal_bytes("test", b"words").expect("memory");
        for _ in 0..2 {
            assert_eq!(read_sealed(&memory, 5).expect("read"), b"words");
        }
        assert!(read_sealed(&memory, 4).is_err());
        assert!(rustix::io::write(&memory, b"other").is_err());
    }
}
