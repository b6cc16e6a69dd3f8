//! The messages of a callback channel: a length, then so many bytes of JSON.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use lillux::CancelToken;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde_json::Value;

/// The longest message.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// Until when one waits.
#[derive(Clone, Copy)]
pub(super) struct WaitLimit<'a> {
    /// Ends it early.
    pub(super) cancel: Option<&'a CancelToken>,
    /// When it is over.
    pub(super) deadline: Option<Instant>,
}

impl WaitLimit<'_> {
    /// For as long as it takes.
    pub(super) const NONE: WaitLimit<'static> = WaitLimit { cancel: None, deadline: None };

    /// Waits until the socket can do `what`.
    fn wait(&self, socket: BorrowedFd<'_>, events: PollFlags) -> io::Result<()> {
        loop {
            let remaining = self.deadline.map(|until| until.saturating_duration_since(Instant::now()));
            if remaining.is_some_and(|remaining| remaining.is_zero()) {
                return Err(ErrorKind::TimedOut.into());
            }
            let mut polled = vec![PollFd::new(&socket, events)];
            polled.extend(self.cancel.map(|cancel| PollFd::new(cancel, PollFlags::IN)));
            let remaining = remaining.and_then(|remaining| Timespec::try_from(remaining).ok());
            match rustix::event::poll(&mut polled, remaining.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if self.cancel.is_some_and(CancelToken::is_cancelled) {
                return Err(ErrorKind::Interrupted.into());
            }
            if !polled[0].revents().is_empty() {
                return Ok(());
            }
        }
    }
}

/// Sends one message.
pub(super) fn send(socket: &OwnedFd, message: &Value, limit: WaitLimit<'_>) -> io::Result<()> {
    let text = message.to_string();
    if text.len() > MAX_MESSAGE_BYTES {
        return Err(io::Error::new(ErrorKind::InvalidData, "the message is too long"));
    }
    let length = u32::try_from(text.len()).map_err(io::Error::other)?;
    for bytes in [&length.to_be_bytes()[..], text.as_bytes()] {
        let mut rest = bytes;
        while !rest.is_empty() {
            match rustix::net::send(socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::AGAIN) => limit.wait(socket.as_fd(), PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Receives one message; `None` when the other side has left.
pub(super) fn receive(socket: &OwnedFd, limit: WaitLimit<'_>) -> io::Result<Option<Value>> {
    let mut length = [0; 4];
    if !read_full(socket, &mut length, limit)? {
        return Ok(None);
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_MESSAGE_BYTES {
        return Err(io::Error::new(ErrorKind::InvalidData, "the message is too long"));
    }
    let mut bytes = Vec::new();
    while bytes.len() < length {
        // What was announced is not accepted before it is there.
        let mut piece = vec![0; (length - bytes.len()).min(64 << 10)];
        if !read_full(socket, &mut piece, limit)? {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&piece);
    }
    // A request is judged by what it says, and an answer decides: neither has a key twice.
    let message = rye_item::json::parse_unique(&bytes);
    message.map(Some).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// Whether it could be filled; not at all is `false`, half is an error.
fn read_full(socket: &OwnedFd, bytes: &mut [u8], limit: WaitLimit<'_>) -> io::Result<bool> {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::net::recv(socket, &mut bytes[filled..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) if filled == 0 => return Ok(false),
            Ok((_, 0)) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok((_, count)) => filled += count,
            Err(Errno::AGAIN) => limit.wait(socket.as_fd(), PollFlags::IN)?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let (one, other) = UnixStream::pair().expect("a pair");
        (one.into(), other.into())
    }

    fn short_limit() -> WaitLimit<'static> {
        WaitLimit { cancel: None, deadline: Some(Instant::now() + Duration::from_secs(60)) }
    }

    #[test]
    fn messages_arrive_whole_and_in_order() {
        let (one, other) = pair();
        let long = json!({"text": "x".repeat(3 << 20)});
        let sent = long.clone();
        let sending = std::thread::spawn(move || {
            for message in [&json!(1), &sent, &json!({"last": true})] {
                send(&one, message, short_limit()).expect("sent");
            }
        });
        for message in [json!(1), long, json!({"last": true})] {
            assert_eq!(receive(&other, short_limit()).expect("received"), Some(message));
        }
        sending.join().expect("sent");
        assert_eq!(receive(&other, short_limit()).expect("the end"), None);
    }

    #[test]
    fn malformed_frames_are_rejected() {
        let twice = b"\0\0\0\x0d{\"a\":1,\"a\":2}";
        for bytes in [&[0, 0][..], &[0, 0, 0, 5, b'1'], &[0xff, 0, 0, 0, b'1'], &[0, 0, 0, 1, b'x'], twice] {
            let (one, other) = pair();
            rustix::io::write(&one, bytes).expect("written");
            drop(one);
            assert!(receive(&other, short_limit()).is_err(), "{bytes:?}");
        }
        let (one, _other) = pair();
        assert!(send(&one, &json!("x".repeat(MAX_MESSAGE_BYTES)), short_limit()).is_err());
    }

    #[test]
    fn receive_respects_cancel_and_deadline() {
        let (_one, other) = pair();
        let cancel = CancelToken::new().expect("an event");
        cancel.cancel();
        let cancelled = WaitLimit { cancel: Some(&cancel), deadline: None };
        assert_eq!(receive(&other, cancelled).expect_err("cancelled").kind(), ErrorKind::Interrupted);
        let late = WaitLimit { cancel: None, deadline: Some(Instant::now()) };
        assert_eq!(receive(&other, late).expect_err("late").kind(), ErrorKind::TimedOut);
    }
}
