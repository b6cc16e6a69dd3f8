//! What caller, supervisor and tool say to one another: the order with its descriptors, and the answers.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::{Deserialize, Serialize};

use super::{End, Limits};
use crate::confine::{Confinement, Receipt};

/// The name the launcher is started under.
pub(crate) const MARK: &str = "rye-supervisor";

/// The byte that asks the supervisor to end the run.
pub(crate) const CANCEL: u8 = b'c';

/// An order is held in memory by three processes; environments and arguments are far smaller.
const MAX_ORDER: usize = 64 << 20;

/// Standard input, output, error and the result channel.
const MAX_DESCRIPTORS: usize = 4;

/// What the launcher is asked to do. It may hold secrets, so it never travels as arguments or environment.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) folder: PathBuf,
    pub(crate) timeout_milliseconds: u64,
    pub(crate) limits: Limits,
    pub(crate) manner: Manner,
    pub(crate) confinement: Option<Confinement>,
    /// The caller, for rules that protect it where no namespace does.
    pub(crate) caller: u32,
}

/// How the caller stands to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Manner {
    /// It waits for the end.
    Awaited,
    /// It talks to the tool, and the run ends with its interest.
    Conversing,
    /// It leaves once the tool has begun.
    Detached,
}

/// What the supervisor answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The tool itself has begun.
    Started,
    /// The run is over.
    Ended { end: End, receipt: Receipt },
    /// It was not begun, since it could not be confined.
    Refused { reason: String, receipt: Receipt },
    /// It could not be begun.
    Failed { reason: String },
    /// Said by the launcher, last of all: no process of the run is left but itself.
    Gone,
}

/// Sends an order and its descriptors.
pub(crate) fn send_order(socket: impl AsFd, order: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let length = u32::try_from(order.len()).ok().filter(|_| order.len() <= MAX_ORDER);
    let length = length.ok_or_else(|| io::Error::other("arguments and environment are too large"))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors"));
    }
    rustix::net::sendmsg(&socket, &[IoSlice::new(&length.to_le_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    let mut rest = order;
    while !rest.is_empty() {
        let sent = rustix::net::send(&socket, rest, SendFlags::NOSIGNAL)?;
        rest = &rest[sent..];
    }
    Ok(())
}

/// Receives an order and its descriptors.
pub(crate) fn receive_order(socket: impl AsFd) -> io::Result<(Order, Vec<OwnedFd>)> {
    let mut length = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        &socket,
        &mut [IoSliceMut::new(&mut length)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL,
    )?;
    if received.bytes != length.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_ORDER {
        return Err(io::Error::other("the order is too large"));
    }
    let mut order = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match rustix::io::read(&socket, &mut order[filled..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => filled += count,
        }
    }
    Ok((serde_json::from_slice(&order)?, descriptors))
}

/// Sends one line of JSON.
pub(crate) fn send_line(to: impl AsFd, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    let mut rest = line.as_slice();
    while !rest.is_empty() {
        match rustix::io::write(&to, rest) {
            Ok(written) => rest = &rest[written..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
