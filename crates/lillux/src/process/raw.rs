//! System calls that have no safe form in a library: mount attributes of a whole tree, a filter with a listener, what the
//! listener hears and answers, and a connection to an address that is known as bytes alone.
#![expect(unsafe_code, reason = "these calls have no safe form")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use seccompiler::sock_filter;

/// `MOUNT_ATTR_RDONLY`.
pub(crate) const MOUNT_READ_ONLY: u64 = 0x1;
/// `MOUNT_ATTR_NOSUID`.
pub(crate) const MOUNT_NO_SUID: u64 = 0x2;

const RECURSIVE: libc::c_int = 0x8000;

/// `SECCOMP_IOCTL_NOTIF_RECV`, `…_SEND` and `…_ID_VALID`.
const NOTIF_RECV: libc::Ioctl = 0xc050_2100_u32 as libc::Ioctl;
const NOTIF_SEND: libc::Ioctl = 0xc018_2101_u32 as libc::Ioctl;
const NOTIF_ID_VALID: libc::Ioctl = 0x4008_2102_u32 as libc::Ioctl;

/// `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`: a call that is being answered is not interrupted by signals.
const WAIT_KILLABLE: libc::c_ulong = 1 << 5;

#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// How far a change of mount attributes reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountScope {
    /// The mount at the path alone.
    Mount,
    /// It and every mount below.
    Tree,
}

/// Changes attributes of the mount at `path`.
pub(crate) fn set_mount_attributes(path: &Path, set: u64, clear: u64, scope: MountScope) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attributes = MountAttributes { set, clear, propagation: 0, user_namespace: 0 };
    let flags = libc::AT_SYMLINK_NOFOLLOW | if scope == MountScope::Tree { RECURSIVE } else { 0 };
    // SAFETY: the path ends with NUL, and the structure has the size that is given; both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Restricts this process to a filter, and returns the descriptor that hears of the calls it reports.
pub(crate) fn apply_filter_with_listener(program: &[sock_filter]) -> io::Result<OwnedFd> {
    let length = u16::try_from(program.len()).map_err(io::Error::other)?;
    // `sock_filter` of both crates is the kernel's.
    let filter = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut().cast() };
    let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let apply = |flags: libc::c_ulong| {
        // SAFETY: the program outlives the call, and the kernel checks it.
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter) }
    };
    let mut result = apply(listener | WAIT_KILLABLE);
    if result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        result = apply(listener);
    }
    match i32::try_from(result) {
        // SAFETY: the kernel has just made it, so nothing else owns it.
        Ok(number) if number >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
        Ok(_) | Err(_) => Err(io::Error::last_os_error()),
    }
}

/// A system call that waits for an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyscallNotification {
    pub(crate) id: u64,
    /// The thread that made it.
    pub(crate) thread: u32,
    pub(crate) arguments: [u64; 6],
}

/// Takes the next reported call. It must have been said to be there.
pub(crate) fn receive_notification(listener: BorrowedFd<'_>) -> io::Result<SyscallNotification> {
    // SAFETY: the structure consists of numbers, for which zero is a value; the kernel wants it zeroed.
    let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one such structure.
    let result = unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_RECV, &raw mut call) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(SyscallNotification { id: call.id, thread: call.pid, arguments: call.data.args })
}

/// Whether the call still waits: what was looked up by its thread's number was that thread's.
pub(crate) fn is_pending(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the kernel reads one number.
    unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_ID_VALID, &raw const id) == 0 }
}

/// Answers a call: it returns 0, or fails with the given number of an error.
pub(crate) fn respond(listener: BorrowedFd<'_>, id: u64, error: i32) -> io::Result<()> {
    let response = libc::seccomp_notif_resp { id, val: 0, error: -error, flags: 0 };
    // SAFETY: the kernel reads one such structure.
    match unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_SEND, &raw const response) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Connects a socket to an address as the kernel reads it.
pub(crate) fn connect(socket: BorrowedFd<'_>, address: &[u8]) -> io::Result<()> {
    let length = libc::socklen_t::try_from(address.len()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `length` bytes, and the slice has as many.
    match unsafe { libc::connect(socket.as_raw_fd(), address.as_ptr().cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
