//! Decides which UNIX sockets a run connects to. The filter of system calls reports each `connect` to the supervisor, which
//! looks at the address, connects the socket itself if the address is allowed, and answers the call.
//!
//! The call is never let through to the kernel: between a look at its address and the call itself, another thread could
//! change both the address and the socket. What was looked at is what is connected.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, WaitOptions};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::fork::{ForkResult, exit_immediately, fork};
use super::protocol;
use super::raw::{self, SyscallNotification};
use crate::sandbox::SocketAccess;

/// The longest address there is (`sockaddr_storage`).
const MAX_ADDRESS_BYTES: usize = 128;

/// Where the path begins in the address of a UNIX socket.
const PATH_OFFSET: usize = 2;

/// How many connections that take their time are made at once.
const MAX_PENDING: usize = 512;

/// `PIDFD_THREAD`: the number may be that of any thread.
const ANY_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0o200);

/// What the supervisor's own privileges must not lend to a connection.
const NETWORK_PRIVILEGES: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::NET_BROADCAST)
    .union(CapabilitySet::NET_RAW);

/// The supervisor's side of reported connections.
#[derive(Debug)]
pub(super) struct SocketBroker {
    /// Hands over the listener, then closes.
    handover: Option<OwnedFd>,
    listener: Option<OwnedFd>,
    /// Processes that wait for a connection in the place of the tool.
    pending: Vec<Pid>,
}

impl SocketBroker {
    pub(super) fn new(handover: OwnedFd) -> Self {
        Self { handover: Some(handover), listener: None, pending: Vec::new() }
    }

    /// What is to be waited for.
    pub(super) fn poll_fd(&self) -> Option<&OwnedFd> {
        self.listener.as_ref().or(self.handover.as_ref())
    }

    /// Takes what is there: the listener first, then one reported call after the other.
    pub(super) fn serve(&mut self, access: Option<&SocketAccess>) {
        let Some(listener) = &self.listener else {
            self.listener =
                self.handover.take().and_then(|handover| protocol::receive_descriptor(&handover).ok()?);
            if self.listener.is_some() {
                drop_network_privileges();
            }
            return;
        };
        let call = match raw::receive_notification(listener.as_fd()) {
            Ok(call) => call,
            // The calling process has ended, or no process is left that could call.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => return,
            Err(_) => {
                self.listener = None;
                return;
            }
        };
        self.pending.retain(|pid| !has_ended(*pid));
        let error_code = match check_connection(listener.as_fd(), &call, access) {
            Ok(connection) if !connection.may_block => Some(connection.connect()),
            Ok(_) if self.pending.len() >= MAX_PENDING => Some(libc::EAGAIN),
            Ok(connection) => match connection.connect_in_child(listener.as_fd(), &call) {
                Ok(pid) => {
                    self.pending.push(pid);
                    None
                }
                Err(_) => Some(libc::EAGAIN),
            },
            Err(error) => Some(error.raw_os_error().unwrap_or(libc::EACCES)),
        };
        if let Some(error) = error_code {
            // A caller that is gone needs no answer.
            let _ = raw::respond(listener.as_fd(), call.id, error);
        }
    }

    /// Takes no further calls: no process is left that could make one.
    pub(super) fn close(&mut self) {
        self.listener = None;
        self.handover = None;
    }

    /// How many processes wait for a connection in the place of the tool.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Ends connections whose caller has ended.
    pub(super) fn stop(&mut self) {
        for pid in self.pending.drain(..) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
        }
        self.close();
    }
}

fn has_ended(pid: Pid) -> bool {
    !matches!(rustix::process::waitpid(Some(pid), WaitOptions::NOHANG), Ok(None))
}

/// A connection that is allowed.
struct AllowedConnection {
    socket: OwnedFd,
    address: Vec<u8>,
    /// The file that the address names by its descriptor.
    _target: Option<OwnedFd>,
    /// Whether the caller may make the supervisor wait. Only datagrams never do: whether a socket waits can be changed by
    /// the caller at any moment.
    may_block: bool,
}

impl AllowedConnection {
    /// Connects, and returns the number of the error, or 0.
    fn connect(&self) -> i32 {
        loop {
            match raw::connect(self.socket.as_fd(), &self.address) {
                Ok(()) => return 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.raw_os_error().unwrap_or(libc::EACCES),
            }
        }
    }

    /// Connects in a process of its own, which answers the call when it is done.
    fn connect_in_child(&self, listener: BorrowedFd<'_>, call: &SyscallNotification) -> io::Result<Pid> {
        match fork()? {
            ForkResult::Parent(pid) => Ok(pid),
            ForkResult::Child => {
                let _ = raw::respond(listener, call.id, self.connect());
                exit_immediately(0)
            }
        }
    }
}

/// Copies the caller's socket and address, and decides whether it may connect.
fn check_connection(
    listener: BorrowedFd<'_>,
    call: &SyscallNotification,
    access: Option<&SocketAccess>,
) -> io::Result<AllowedConnection> {
    let denied = || io::Error::from_raw_os_error(libc::EACCES);
    let [number, pointer, length, ..] = call.arguments;
    let length = usize::try_from(length & 0xffff_ffff).map_err(|_| denied())?;
    if length > MAX_ADDRESS_BYTES {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut address = vec![0; length];
    let memory = File::open(format!("/proc/{}/mem", call.thread)).map_err(|_| denied())?;
    memory.read_exact_at(&mut address, pointer).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
    let socket = copy_fd(call.thread, number)?;
    let folder =
        rustix::fs::open(format!("/proc/{}/cwd", call.thread), OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    if !raw::is_pending(listener, call.id) {
        return Err(denied());
    }
    let domain = sockopt::socket_domain(&socket)?;
    if domain != AddressFamily::UNIX {
        let may_block =
            sockopt::socket_type(&socket)? != SocketType::DGRAM && domain != AddressFamily::NETLINK;
        return Ok(AllowedConnection { socket, address, _target: None, may_block });
    }
    let path = socket_path(&address).ok_or_else(denied)?;
    let target = open_socket(&folder.map_err(|_| denied())?, &path, access.ok_or_else(denied)?)?;
    // The descriptor names the very file that was looked at.
    let address = socket_address(&format!("/proc/self/fd/{}", target.as_raw_fd()));
    Ok(AllowedConnection { socket, address, _target: Some(target), may_block: true })
}

/// A copy of a descriptor of the thread's process.
fn copy_fd(thread: u32, number: u64) -> io::Result<OwnedFd> {
    let number =
        i32::try_from(number & 0xffff_ffff).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    let open = |pid: i32, flags| {
        let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        rustix::process::pidfd_open(pid, flags)
    };
    let thread = i32::try_from(thread).map_err(io::Error::other)?;
    let process = open(thread, ANY_THREAD).or_else(|_| open(thread_group_of(thread), PidfdFlags::empty()))?;
    Ok(rustix::process::pidfd_getfd(process, number, PidfdGetfdFlags::empty())?)
}

/// The process a thread belongs to; 0 if that cannot be said.
fn thread_group_of(thread: i32) -> i32 {
    let path = format!("/proc/{thread}/status");
    let Ok((text, _)) = crate::file::read_bounded(Path::new(&path), 64 << 10) else { return 0 };
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

/// The path in an address of a UNIX socket. Abstract and unnamed addresses have none.
fn socket_path(address: &[u8]) -> Option<PathBuf> {
    let family = address.get(..PATH_OFFSET)?;
    if family != u16::try_from(libc::AF_UNIX).ok()?.to_ne_bytes() {
        return None;
    }
    let path = address[PATH_OFFSET..].split(|byte| *byte == 0).next()?;
    (!path.is_empty()).then(|| PathBuf::from(std::ffi::OsStr::from_bytes(path)))
}

fn socket_address(path: &str) -> Vec<u8> {
    let family = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap_or_default();
    [family.to_ne_bytes().as_slice(), path.as_bytes(), &[0]].concat()
}

/// Opens the socket at a path, if it lies where the run may connect to.
fn open_socket(cwd: &OwnedFd, path: &Path, access: &SocketAccess) -> io::Result<OwnedFd> {
    let base = if path.is_absolute() { CWD } else { cwd.as_fd() };
    // Descriptors below `/proc` would be this process's own: they are not there, whether they exist or not.
    let resolve = ResolveFlags::NO_MAGICLINKS;
    let target = rustix::fs::openat2(base, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
        .map_err(|error| if error == Errno::LOOP { Errno::NOENT } else { error })?;
    if FileType::from_raw_mode(rustix::fs::fstat(&target)?.st_mode) != FileType::Socket {
        return Err(io::Error::from_raw_os_error(libc::ECONNREFUSED));
    }
    let real_path = rustix::fs::readlink(format!("/proc/self/fd/{}", target.as_raw_fd()), Vec::new())?;
    let real_path = Path::new(std::ffi::OsStr::from_bytes(real_path.as_bytes()));
    let mut allowed = access.own.iter().chain(&access.allowed).map(|path| crate::canonicalize_existing(path));
    if allowed.any(|allowed| real_path.starts_with(allowed)) {
        Ok(target)
    } else {
        Err(io::Error::from_raw_os_error(libc::EACCES))
    }
}

/// Connections are made with the tool's rights, which has none over the network.
fn drop_network_privileges() {
    if let Ok(CapabilitySets { effective, permitted, inheritable }) = rustix::thread::capabilities(None) {
        let reduced = CapabilitySets {
            effective: effective.difference(NETWORK_PRIVILEGES),
            permitted: permitted.difference(NETWORK_PRIVILEGES),
            inheritable: inheritable.difference(NETWORK_PRIVILEGES),
        };
        let _ = rustix::thread::set_capabilities(None, reduced);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_unix_addresses_have_a_path() {
        assert_eq!(socket_path(&socket_address("/run/x.sock")), Some(PathBuf::from("/run/x.sock")));
        assert_eq!(socket_path(b"\x01\x00\0abstract"), None);
        assert_eq!(socket_path(b"\x01\x00"), None);
        assert_eq!(socket_path(b"\x02\x00/run/x.sock"), None);
        assert_eq!(socket_path(b""), None);
    }
}
