//! What caller, supervisor and tool say to one another: the order with its descriptors, and the answers.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::{ExitReason, ProcessLimits};
use crate::sandbox::{Confinement, Receipt};

/// The name the launcher is started under.
pub(crate) const LAUNCHER_ARGV0: &str = "rye-supervisor";

/// What a process that is started under that name does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LauncherRole {
    /// It launches what its order says.
    Launcher,
    /// The same, and it has left its namespaces by the time the order comes, which must be for a confined run.
    Isolated,
    /// It forks launchers.
    Zygote,
}

impl LauncherRole {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Launcher => "launcher",
            Self::Isolated => "prepared",
            Self::Zygote => "source",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        [Self::Launcher, Self::Isolated, Self::Zygote].into_iter().find(|role| role.as_str() == name)
    }
}

/// The byte that asks the supervisor to end the run.
pub(crate) const CANCEL: u8 = b'c';

/// An order is held in memory by three processes; environments and arguments are far smaller.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// How long a forked launcher may take to say who it is.
const HELLO_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Standard input, output, error, the result channel and what a callback channel hands over.
const MAX_DESCRIPTORS: usize = 4 + super::callback::MAX_INHERITED_FDS;

/// What the launcher is asked to do. It may hold secrets, so it never travels as arguments or environment.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LaunchRequest {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: BTreeMap<String, String>,
    #[serde(rename = "folder")]
    pub(crate) current_dir: PathBuf,
    pub(crate) timeout_milliseconds: u64,
    pub(crate) limits: ProcessLimits,
    #[serde(rename = "manner")]
    pub(crate) mode: LaunchMode,
    /// The variables that name the descriptors beyond the three streams, in their order.
    #[serde(rename = "named")]
    pub(crate) fd_variables: Vec<String>,
    pub(crate) confinement: Option<Confinement>,
    /// The caller, for rules that protect it where no namespace does.
    pub(crate) caller: u32,
}

/// What the next order is expected to be held to. A launcher that knows it has everything in force when the order comes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PrewarmSpec {
    pub(crate) confinement: Confinement,
    pub(crate) limits: ProcessLimits,
    pub(crate) caller: u32,
}

/// What a launcher hears from its caller.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LauncherMessage {
    /// What to run.
    #[serde(rename = "order")]
    Launch(Box<LaunchRequest>),
    /// What will be to run; its order is given to the process that becomes the tool, at the socket that comes along.
    #[serde(rename = "expected")]
    Prewarm(Box<PrewarmSpec>),
}

impl LauncherMessage {
    /// As it is sent.
    pub(crate) fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(self)
    }
}

/// How the caller stands to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LaunchMode {
    /// It waits for the end.
    #[serde(rename = "awaited")]
    Wait,
    /// It talks to the tool, and the run ends with its interest.
    #[serde(rename = "conversing")]
    Interactive,
    /// It leaves once the tool has begun.
    Detached,
}

/// What the supervisor answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SupervisorReply {
    /// The tool itself has begun.
    Started,
    /// The run is over.
    Ended { end: ExitReason, receipt: Receipt },
    /// It was not begun, since it could not be confined.
    Refused { reason: String, receipt: Receipt },
    /// It could not be begun.
    Failed { reason: String },
    /// Said by the launcher, last of all: no process of the run is left but itself.
    Gone,
}

/// [`SupervisorReply::Gone`] as it is sent.
pub(crate) const GONE_LINE: &[u8] = b"\"gone\"\n";

/// Hands over one descriptor.
pub(crate) fn send_descriptor(socket: impl AsFd, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    send_word(socket, 0, &[descriptor])
}

/// Takes a descriptor that was handed over. `None` when none comes.
pub(crate) fn receive_descriptor(socket: impl AsFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0; 4];
    rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut word)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let received = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut received) => received.next(),
        _ => None,
    });
    Ok(received)
}

/// Sends four bytes with descriptors.
fn send_word(socket: impl AsFd, word: u32, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors"));
    }
    rustix::net::sendmsg(&socket, &[IoSlice::new(&word.to_le_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives four bytes with descriptors.
fn receive_word(socket: impl AsFd) -> io::Result<(u32, Vec<OwnedFd>)> {
    let mut word = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        &socket,
        &mut [IoSliceMut::new(&mut word)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL,
    )?;
    if received.bytes != word.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok((u32::from_le_bytes(word), descriptors))
}

/// Asks a source for a launcher that is to talk over `control`.
pub(crate) fn send_role(socket: impl AsFd, role: LauncherRole, control: BorrowedFd<'_>) -> io::Result<()> {
    send_word(socket, role as u32, &[control])
}

/// Receives what [`send_role`] sent.
pub(crate) fn receive_role(socket: impl AsFd) -> io::Result<(LauncherRole, OwnedFd)> {
    let (word, descriptors) = receive_word(socket)?;
    let role = [LauncherRole::Launcher, LauncherRole::Isolated].into_iter().find(|role| *role as u32 == word);
    role.zip(descriptors.into_iter().next()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Says who a forked launcher is.
pub(crate) fn send_hello(control: impl AsFd, own: Pid, exit: &OwnedFd) -> io::Result<()> {
    send_word(control, own.as_raw_pid().cast_unsigned(), &[exit.as_fd()])
}

/// Receives what [`send_hello`] sent: the launcher's number, and what tells of its end.
pub(crate) fn receive_hello(control: &OwnedFd) -> io::Result<(u32, OwnedFd)> {
    let mut polled = [PollFd::new(control, PollFlags::IN)];
    if rustix::event::poll(&mut polled, Some(&HELLO_TIMEOUT))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let (pid, descriptors) = receive_word(control)?;
    let exit = descriptors.into_iter().next().ok_or(io::ErrorKind::InvalidData)?;
    Ok((pid, exit))
}

/// Sends a message and its descriptors.
pub(crate) fn send_message(
    socket: impl AsFd,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let length = u32::try_from(message.len()).ok().filter(|_| message.len() <= MAX_MESSAGE_BYTES);
    let length = length.ok_or_else(|| io::Error::other("arguments and environment are too large"))?;
    send_word(&socket, length, descriptors)?;
    let mut rest = message;
    while !rest.is_empty() {
        let sent = rustix::net::send(&socket, rest, SendFlags::NOSIGNAL)?;
        rest = &rest[sent..];
    }
    Ok(())
}

/// Receives a message and its descriptors.
pub(crate) fn receive_message(socket: impl AsFd) -> io::Result<(LauncherMessage, Vec<OwnedFd>)> {
    let (length, descriptors) = receive_word(&socket)?;
    let length = length as usize;
    if length > MAX_MESSAGE_BYTES {
        return Err(io::Error::other("the order is too large"));
    }
    let mut message = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match rustix::io::read(&socket, &mut message[filled..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => filled += count,
        }
    }
    Ok((serde_json::from_slice(&message)?, descriptors))
}

/// Receives an order and its descriptors.
pub(crate) fn receive_request(socket: impl AsFd) -> io::Result<(LaunchRequest, Vec<OwnedFd>)> {
    match receive_message(socket)? {
        (LauncherMessage::Launch(request), descriptors) => Ok((*request, descriptors)),
        (LauncherMessage::Prewarm(_), _) => Err(io::ErrorKind::InvalidData.into()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gone_reply_matches_its_bytes() {
        assert_eq!(
            [serde_json::to_vec(&SupervisorReply::Gone).expect("text"), b"\n".to_vec()].concat(),
            GONE_LINE
        );
    }
}
