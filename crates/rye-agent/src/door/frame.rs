//! How the two sides of a door talk: a length, then so many bytes of JSON.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use lillux::Cancel;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde_json::Value;

/// The longest message.
pub const LONGEST: usize = 16 << 20;

/// Until when one waits.
#[derive(Clone, Copy)]
pub(super) struct Patience<'a> {
    /// Ends it early.
    pub(super) cancel: Option<&'a Cancel>,
    /// When it is over.
    pub(super) until: Option<Instant>,
}

impl Patience<'_> {
    /// For as long as it takes.
    pub(super) const ENDLESS: Patience<'static> = Patience { cancel: None, until: None };

    /// Waits until the socket can do `what`.
    fn wait(&self, socket: BorrowedFd<'_>, what: PollFlags) -> io::Result<()> {
        loop {
            let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(ErrorKind::TimedOut.into());
            }
            let mut polled = vec![PollFd::new(&socket, what)];
            polled.extend(self.cancel.map(|cancel| PollFd::new(cancel, PollFlags::IN)));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match rustix::event::poll(&mut polled, left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if self.cancel.is_some_and(Cancel::is_cancelled) {
                return Err(ErrorKind::Interrupted.into());
            }
            if !polled[0].revents().is_empty() {
                return Ok(());
            }
        }
    }
}

/// Sends one message.
pub(super) fn send(socket: &OwnedFd, message: &Value, patience: Patience<'_>) -> io::Result<()> {
    let text = message.to_string();
    if text.len() > LONGEST {
        return Err(io::Error::new(ErrorKind::InvalidData, "the message is too long"));
    }
    let length = u32::try_from(text.len()).map_err(io::Error::other)?;
    for bytes in [&length.to_be_bytes()[..], text.as_bytes()] {
        let mut rest = bytes;
        while !rest.is_empty() {
            match rustix::net::send(socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::AGAIN) => patience.wait(socket.as_fd(), PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Receives one message; `None` when the other side has left.
pub(super) fn receive(socket: &OwnedFd, patience: Patience<'_>) -> io::Result<Option<Value>> {
    let mut length = [0; 4];
    if !fill(socket, &mut length, patience)? {
        return Ok(None);
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > LONGEST {
        return Err(io::Error::new(ErrorKind::InvalidData, "the message is too long"));
    }
    let mut bytes = Vec::new();
    while bytes.len() < length {
        // What was announced is not believed before it is there.
        let mut piece = vec![0; (length - bytes.len()).min(64 << 10)];
        if !fill(socket, &mut piece, patience)? {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&piece);
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// Whether it could be filled; not at all is `false`, half is an error.
fn fill(socket: &OwnedFd, bytes: &mut [u8], patience: Patience<'_>) -> io::Result<bool> {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::net::recv(socket, &mut bytes[filled..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) if filled == 0 => return Ok(false),
            Ok((_, 0)) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok((_, count)) => filled += count,
            Err(Errno::AGAIN) => patience.wait(socket.as_fd(), PollFlags::IN)?,
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

    fn soon() -> Patience<'static> {
        Patience { cancel: None, until: Some(Instant::now() + Duration::from_secs(60)) }
    }

    #[test]
    fn messages_come_whole_and_in_order_however_long() {
        let (one, other) = pair();
        let long = json!({"text": "x".repeat(3 << 20)});
        let sent = long.clone();
        let sending = std::thread::spawn(move || {
            for message in [&json!(1), &sent, &json!({"last": true})] {
                send(&one, message, soon()).expect("sent");
            }
        });
        for message in [json!(1), long, json!({"last": true})] {
            assert_eq!(receive(&other, soon()).expect("received"), Some(message));
        }
        sending.join().expect("sent");
        assert_eq!(receive(&other, soon()).expect("the end"), None);
    }

    #[test]
    fn what_is_cut_too_long_or_no_json_is_an_error() {
        for bytes in [&[0, 0][..], &[0, 0, 0, 5, b'1'], &[0xff, 0, 0, 0, b'1'], &[0, 0, 0, 1, b'x']] {
            let (one, other) = pair();
            rustix::io::write(&one, bytes).expect("written");
            drop(one);
            assert!(receive(&other, soon()).is_err(), "{bytes:?}");
        }
        let (one, _other) = pair();
        assert!(send(&one, &json!("x".repeat(LONGEST)), soon()).is_err());
    }

    #[test]
    fn nobody_waits_longer_than_told() {
        let (_one, other) = pair();
        let cancel = Cancel::new().expect("an event");
        cancel.cancel();
        let cancelled = Patience { cancel: Some(&cancel), until: None };
        assert_eq!(receive(&other, cancelled).expect_err("cancelled").kind(), ErrorKind::Interrupted);
        let late = Patience { cancel: None, until: Some(Instant::now()) };
        assert_eq!(receive(&other, late).expect_err("late").kind(), ErrorKind::TimedOut);
    }
}
